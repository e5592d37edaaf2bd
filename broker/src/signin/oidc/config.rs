//! `[oidc]` in the broker's configuration.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use openidconnect::IssuerUrl;
use serde::{Deserialize, Serialize};

/// Ids below are the system's, on every distribution (`UID_MIN`, login.defs(5)).
pub const FIRST_USER_UID: u32 = 1000;
/// First id of users that are made: above what distributions, systemd (its UIDS-GIDS.md) and SSSD
/// (`ldap_idmap_range_max`) give out, and below 2^31, which some programs take for negative.
const DEFAULT_FIRST_UID: u32 = 2_100_000_000;

/// `[oidc]` in the config file: every key but issuer and `client_id` may be absent.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OidcFile {
    issuer: String,
    client_id: String,
    client_secret_file: Option<PathBuf>,
    ca_file: Option<PathBuf>,
    scopes: Option<Vec<String>>,
    user_claim: Option<String>,
    domains: Option<Vec<String>>,
    groups_claim: Option<String>,
    groups: Option<Vec<String>>,
    operator_groups: Option<Vec<String>>,
    admin_groups: Option<Vec<String>>,
    create_users: Option<bool>,
    first_uid: Option<u32>,
}

/// How people sign in at an OpenID Connect provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OidcConfig {
    /// The provider's address, as its tokens name it.
    pub issuer: String,
    /// Our name there.
    pub client_id: String,
    /// File with our secret there, for a confidential client; none: a public one.
    pub client_secret_file: Option<PathBuf>,
    /// Authorities to trust beside the system's, PEM.
    pub ca_file: Option<PathBuf>,
    /// What is asked for beside "openid".
    pub scopes: Vec<String>,
    /// The claim that is the login name.
    pub user_claim: String,
    /// Domains of which somebody's address must be; empty: any, or none.
    pub domains: Vec<String>,
    /// The claim that lists groups.
    pub groups_claim: String,
    /// Groups of which somebody must be in one; empty: no matter.
    pub groups: Vec<String>,
    /// Groups whose members are operators. With this or the next, the provider decides on roles.
    pub operator_groups: Vec<String>,
    /// Groups whose members are administrators.
    pub admin_groups: Vec<String>,
    /// Make users whom neither the directory nor the name service knows.
    pub create_users: bool,
    /// The first id for users that are made.
    pub first_uid: u32,
}

impl OidcFile {
    /// With the defaults.
    pub fn resolve(self) -> Result<OidcConfig> {
        let list = Option::unwrap_or_default;
        let path = |path: Option<PathBuf>| path.filter(|path| !path.as_os_str().is_empty());
        let config = OidcConfig {
            issuer: self.issuer,
            client_id: self.client_id,
            client_secret_file: path(self.client_secret_file),
            ca_file: path(self.ca_file),
            scopes: self
                .scopes
                .unwrap_or_else(|| vec!["profile".into(), "email".into()]),
            user_claim: self.user_claim.unwrap_or_else(|| "preferred_username".into()),
            domains: list(self.domains),
            groups_claim: self.groups_claim.unwrap_or_else(|| "groups".into()),
            groups: list(self.groups),
            operator_groups: list(self.operator_groups),
            admin_groups: list(self.admin_groups),
            create_users: self.create_users.unwrap_or(false),
            first_uid: self.first_uid.unwrap_or(DEFAULT_FIRST_UID),
        };
        config.check()?;
        Ok(config)
    }
}

impl OidcConfig {
    fn check(&self) -> Result<()> {
        let issuer = IssuerUrl::new(self.issuer.clone())
            .with_context(|| format!("oidc.issuer = {:?}: write an https:// address", self.issuer))?;
        let host = issuer.url().host_str().unwrap_or_default();
        // Without TLS whoever is in between could vouch for anybody.
        let secure = match issuer.url().scheme() {
            "https" => !host.is_empty(),
            "http" => matches!(host, "localhost" | "127.0.0.1" | "[::1]"),
            _ => false,
        };
        if !secure {
            bail!("oidc.issuer = {:?}: write an https:// address", self.issuer);
        }
        if self.client_id.is_empty() {
            bail!("oidc.client_id is empty: write what the provider calls this cluster");
        }
        if self.user_claim.is_empty() || self.groups_claim.is_empty() {
            bail!(
                "oidc.user_claim and oidc.groups_claim are names of claims, such as \"email\" and \"groups\""
            );
        }
        if self.first_uid < FIRST_USER_UID {
            bail!(
                "oidc.first_uid = {}: ids below {FIRST_USER_UID} are the system's",
                self.first_uid
            );
        }
        Ok(())
    }

    /// The provider decides on roles.
    pub fn decides_on_roles(&self) -> bool {
        !self.operator_groups.is_empty() || !self.admin_groups.is_empty()
    }

    /// Claims without which somebody cannot be told.
    pub fn needed_claims(&self) -> Vec<&str> {
        let mut needed = vec![self.user_claim.as_str()];
        if !self.domains.is_empty() || self.user_claim == "email" {
            needed.extend(["email", "email_verified"]);
        }
        if !self.groups.is_empty() || self.decides_on_roles() {
            needed.push(&self.groups_claim);
        }
        needed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(issuer: &str, more: &str) -> Result<OidcConfig> {
        let text = format!("issuer = {issuer:?}\nclient_id = \"carrel\"\n{more}");
        toml::from_str::<OidcFile>(&text)?.resolve()
    }

    #[test]
    fn the_provider_is_reached_by_tls() {
        for good in [
            "https://sso.example/realms/lab",
            "http://localhost:8080",
            "http://127.0.0.1:8080/op",
            "http://[::1]:8080",
        ] {
            assert!(resolve(good, "").is_ok(), "{good}");
        }
        for bad in [
            "http://sso.example",
            "http://127.0.0.1.sso.example",
            "http://localhost:x@sso.example",
            "http://localhost@sso.example",
            "sso",
            "https://",
            "file:///etc/passwd",
        ] {
            let error = resolve(bad, "").expect_err(bad).to_string();
            assert!(
                error.contains("oidc.issuer") && error.contains("https"),
                "{error}"
            );
        }
    }

    #[test]
    fn mistakes_in_the_configuration_are_named() {
        for (more, word) in [
            ("first_uid = 999", "first_uid"),
            ("user_claim = \"\"", "user_claim"),
            ("client_secret = \"s\"", "client_secret"),
        ] {
            let error = resolve("https://sso.example", more).expect_err(more);
            assert!(error.to_string().contains(word), "{error}");
        }
    }

    #[test]
    fn no_file_may_be_written_out() {
        let config = resolve("https://sso.example", "client_secret_file = \"\"\nca_file = \"\"");
        let config = config.expect("a configuration");
        assert_eq!((config.client_secret_file, config.ca_file), (None, None));
    }

    #[test]
    fn what_is_not_used_is_not_needed() {
        let needed = |more: &str| {
            let config = resolve("https://sso.example", more).expect("a configuration");
            config.needed_claims().join(" ")
        };
        assert_eq!(needed(""), "preferred_username");
        assert_eq!(
            needed("domains = [\"lab.example\"]"),
            "preferred_username email email_verified"
        );
        assert_eq!(
            needed("user_claim = \"sub\"\ngroups_claim = \"roles\"\nadmin_groups = [\"a\"]"),
            "sub roles"
        );
    }
}
