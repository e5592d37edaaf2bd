//! Who somebody is here, by what the provider says of them.

use carrel_core::model::ids::UserName;
use carrel_core::model::user::Role;
use serde_json::Value;

use super::OidcConfig;

/// The standard's claim of an address; it counts only where the provider has verified it.
const EMAIL: &str = "email";
/// Longest part of what the provider says that is repeated in a message.
const MAX_REPEATED: usize = 80;

/// Why somebody whom the provider knows is nobody here. For them: they have proved who they are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stranger {
    /// The claim is not there.
    #[error("the provider does not say your {0:?}")]
    NoClaim(String),
    /// What it says cannot be a login name.
    #[error("the provider calls you {0:?}, which cannot be a login name")]
    Name(String),
    /// An address of another domain.
    #[error("the provider calls you {0:?}, and that is not of this cluster's domains")]
    Domain(String),
    /// No address that the provider stands for.
    #[error("the provider has not verified your e-mail address")]
    Unverified,
    /// In no group that may come.
    #[error("you are in none of the groups that may use this cluster")]
    Group,
}

/// The login name of somebody, by the claims of their verified ID token.
pub fn login_name(config: &OidcConfig, claims: &Value) -> Result<UserName, Stranger> {
    let claim = text(claims, &config.user_claim)?;
    let is_address = claim.contains('@');
    if config.user_claim == EMAIL || (!config.domains.is_empty() && !is_address) {
        let verified = claims.get("email_verified").and_then(Value::as_bool) == Some(true);
        let address = text(claims, EMAIL)?;
        if !verified {
            return Err(Stranger::Unverified);
        }
        if !config.domains.is_empty() {
            local_part(config, address)?;
        }
    }
    // An address is a name only within the domains that were named: elsewhere it is another's.
    let name = if is_address && !config.domains.is_empty() {
        local_part(config, claim)?.to_ascii_lowercase()
    } else {
        claim.to_owned()
    };
    name.parse().map_err(|_| Stranger::Name(short(claim)))
}

/// Whether somebody's groups let them in, and the role that these give them; none: the provider
/// does not decide on roles.
pub fn role(config: &OidcConfig, claims: &Value) -> Result<Option<Role>, Stranger> {
    let groups = groups(config, claims);
    let in_one_of = |wanted: &[String]| wanted.iter().any(|group| groups.contains(&plain(group)));
    if !config.groups.is_empty() && !in_one_of(&config.groups) {
        return Err(Stranger::Group);
    }
    let role = if in_one_of(&config.admin_groups) {
        Role::Admin
    } else if in_one_of(&config.operator_groups) {
        Role::Operator
    } else {
        Role::User
    };
    Ok(config.decides_on_roles().then_some(role))
}

fn text<'a>(claims: &'a Value, claim: &str) -> Result<&'a str, Stranger> {
    let value = claims.get(claim).and_then(Value::as_str);
    value
        .filter(|value| !value.is_empty())
        .ok_or_else(|| Stranger::NoClaim(claim.to_owned()))
}

/// What is before the @ of an address of one of the domains.
fn local_part<'a>(config: &OidcConfig, address: &'a str) -> Result<&'a str, Stranger> {
    let ours = |domain: &str| config.domains.iter().any(|own| own.eq_ignore_ascii_case(domain));
    match address.rsplit_once('@') {
        Some((local, domain)) if ours(domain) && !local.contains('@') => Ok(local),
        Some(_) | None => Err(Stranger::Domain(short(address))),
    }
}

/// A list, or one.
fn groups<'a>(config: &OidcConfig, claims: &'a Value) -> Vec<&'a str> {
    match claims.get(&config.groups_claim) {
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).map(plain).collect(),
        Some(Value::String(one)) => vec![plain(one)],
        Some(_) | None => Vec::new(),
    }
}

/// A group without the slash that Keycloak writes before those at the top.
fn plain(group: &str) -> &str {
    group.strip_prefix('/').unwrap_or(group)
}

fn short(text: &str) -> String {
    text.chars().take(MAX_REPEATED).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::signin::oidc::OidcFile;

    fn config(more: &str) -> OidcConfig {
        let text = format!("issuer = \"https://sso.example\"\nclient_id = \"carrel\"\n{more}");
        let file: OidcFile = toml::from_str(&text).expect("TOML");
        file.resolve().expect("a configuration")
    }

    fn name(config: &OidcConfig, claims: Value) -> Result<String, Stranger> {
        login_name(config, &claims).map(|name| name.to_string())
    }

    #[test]
    fn a_claim_is_the_login_name_as_it_stands() {
        let plain = config("");
        let named = |text: &str| name(&plain, json!({"preferred_username": text, "sub": "s"}));
        assert_eq!(named("alice"), Ok("alice".into()));
        // Another letter may be another person there.
        assert_eq!(named("Alice"), Ok("Alice".into()));
        // Without domains an address stands for itself, and not for what is before its @.
        assert_eq!(named("alice@evil.example"), Ok("alice@evil.example".into()));
        for bad in ["../etc", "-rf", "a b", "a:b", "ali\u{0441}e", "a\nb"] {
            assert_eq!(named(bad), Err(Stranger::Name(bad.into())), "{bad:?}");
        }
        let missing = Err(Stranger::NoClaim("preferred_username".into()));
        for claims in [
            json!({"sub": "1"}),
            json!({"preferred_username": 7}),
            json!({"preferred_username": ["alice"]}),
            json!({"preferred_username": ""}),
            json!(null),
        ] {
            assert_eq!(name(&plain, claims), missing);
        }
        let subject = config("user_claim = \"sub\"");
        assert_eq!(name(&subject, json!({"sub": "u17"})), Ok("u17".into()));
    }

    #[test]
    fn an_e_mail_address_counts_when_it_is_verified() {
        let any = config("user_claim = \"email\"");
        let ours = config("user_claim = \"email\"\ndomains = [\"lab.example\"]");
        let claims = |email: &str, verified: bool| json!({"email": email, "email_verified": verified});
        assert_eq!(name(&ours, claims("Alice@LAB.example", true)), Ok("alice".into()));
        assert_eq!(name(&any, claims("a@b.example", true)), Ok("a@b.example".into()));
        for config in [&any, &ours] {
            assert_eq!(
                name(config, claims("alice@lab.example", false)),
                Err(Stranger::Unverified)
            );
            let unsaid = json!({"email": "alice@lab.example"});
            assert_eq!(name(config, unsaid), Err(Stranger::Unverified));
            let text = json!({"email": "alice@lab.example", "email_verified": "no"});
            assert_eq!(name(config, text), Err(Stranger::Unverified));
        }
        for email in [
            "alice@evil.example",
            "alice@lab.example@evil.example",
            "alice@evil.example@lab.example",
            "alice@sub.lab.example",
            "alice",
        ] {
            let refused = name(&ours, claims(email, true));
            assert_eq!(refused, Err(Stranger::Domain(email.into())), "{email}");
        }
        assert!(matches!(
            name(&ours, claims("@lab.example", true)),
            Err(Stranger::Name(_))
        ));
    }

    /// Entra's preferred_username is an address without a word on whether it is verified; Keycloak's
    /// is a name, with the address beside it.
    #[test]
    fn domains_are_those_of_the_name_or_else_of_the_address_beside_it() {
        let ours = config("domains = [\"lab.example\"]");
        let of = |user: &str| name(&ours, json!({"preferred_username": user}));
        assert_eq!(of("Alice@lab.example"), Ok("alice".into()));
        assert_eq!(
            of("alice@x.example"),
            Err(Stranger::Domain("alice@x.example".into()))
        );
        assert_eq!(of("alice"), Err(Stranger::NoClaim("email".into())));
        let beside = |email: &str, verified: bool| {
            let claims = json!({"preferred_username": "alice", "email": email, "email_verified": verified});
            name(&ours, claims)
        };
        assert_eq!(beside("a.b@lab.example", true), Ok("alice".into()));
        assert_eq!(beside("a.b@lab.example", false), Err(Stranger::Unverified));
        assert_eq!(
            beside("a.b@x.example", true),
            Err(Stranger::Domain("a.b@x.example".into()))
        );
    }

    #[test]
    fn groups_let_in_and_give_roles() {
        let grouped = config(
            "groups = [\"gpu\", \"ops\"]\noperator_groups = [\"ops\"]\nadmin_groups = [\"root\", \"/it/gpu\"]",
        );
        let of = |groups: Value| role(&grouped, &json!({"groups": groups}));
        assert_eq!(of(json!(["gpu"])), Ok(Some(Role::User)));
        assert_eq!(of(json!(["/gpu", "/ops"])), Ok(Some(Role::Operator)));
        assert_eq!(of(json!("ops")), Ok(Some(Role::Operator)));
        assert_eq!(of(json!(["gpu", "root", "ops"])), Ok(Some(Role::Admin)));
        assert_eq!(of(json!(["gpu", "/it/gpu"])), Ok(Some(Role::Admin)));
        assert_eq!(
            of(json!(["root"])),
            Err(Stranger::Group),
            "not one of those that may come"
        );
        for none in [
            json!([]),
            json!(null),
            json!(7),
            json!(["x/gpu", "GPU", 7]),
            json!({"gpu": true}),
        ] {
            assert_eq!(of(none.clone()), Err(Stranger::Group), "{none}");
        }
        let open = config("");
        assert_eq!(role(&open, &json!({})), Ok(None), "the provider does not decide");
        let named = config("groups_claim = \"roles\"\nadmin_groups = [\"Carrel.Admin\"]");
        assert_eq!(
            role(&named, &json!({"roles": ["Carrel.Admin"]})),
            Ok(Some(Role::Admin))
        );
        assert_eq!(
            role(&named, &json!({"groups": ["Carrel.Admin"]})),
            Ok(Some(Role::User))
        );
    }
}
