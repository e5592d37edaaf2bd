//! `carrel login`: signing in to a cluster.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use carrel_core::model::ids::UserName;
use carrel_core::model::user::Scope;
use carrel_proto::v1;
use rustls::pki_types::CertificateDer;

use crate::config::{Credential, Credentials};
use crate::connect::{self, Address};
use crate::context::Context;
use crate::error::{CliError, Context as _, Result};
use crate::sign_in::{self, KeySource, Method, Wanted};
use crate::terminal::{ask_secret, confirm, say, stderr_is_terminal};
use crate::{output, tls, units, view};

/// Sign in to a cluster.
///
/// In a browser, where the cluster has an OpenID Connect provider: here, or on any other machine
/// with the code that is shown. Otherwise with a token, or with an SSH key that is registered
/// (`carrel key add`). Keeps the broker's address, a token and the broker's certificate authority in
/// ~/.config/carrel/credentials.toml, readable by you only, and makes this cluster the default.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    carrel login https://head:7070                    in a browser, or asks for a token\n  \
    carrel login https://head:7070 --ssh-key          with a key of your ssh-agent, or ~/.ssh\n  \
    carrel login https://head:7070 --ssh-key ~/.ssh/work --user alice\n  \
    carrel login https://head:7070 --token - < token.txt\n  \
    carrel login https://head:7070 --fingerprint sha256:9f86d0…")]
pub struct LoginArgs {
    /// The broker: https://host:port
    #[arg(value_name = "ADDRESS")]
    pub address: Address,
    /// The token; - reads it from stdin [env: CARREL_TOKEN, where no other way is named]
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,
    /// Sign in with a registered SSH key: of the ssh-agent or ~/.ssh, or in FILE
    #[arg(
        long,
        value_name = "FILE",
        num_args = 0..=1,
        conflicts_with_all = ["token", "device"]
    )]
    // Absent, without a value, with one: clap's form of an option with an optional value.
    #[allow(clippy::option_option)]
    pub ssh_key: Option<Option<PathBuf>>,
    /// Sign in at the cluster's OpenID Connect provider, in any browser; what is done where there
    /// is one and nothing else was asked for
    #[arg(long, aliases = ["web", "use-device-code"], conflicts_with = "token")]
    pub device: bool,
    /// Open no browser on this machine
    #[arg(long)]
    pub no_browser: bool,
    /// Your login name there [default: as here]
    #[arg(long, value_name = "USER", requires = "ssh_key")]
    pub user: Option<UserName>,
    /// How long the sign-in is good for
    #[arg(long, value_name = "TIME", value_parser = units::parse_time, default_value = "30d")]
    pub ttl: Duration,
    /// What it is good for: read (looking), sessions (opening, entering, stopping them), or full
    #[arg(long, value_name = "SCOPE", default_value = "full")]
    pub scope: Scope,
    /// The broker's certificate authority, PEM
    #[arg(long, value_name = "FILE", conflicts_with = "fingerprint")]
    pub ca: Option<PathBuf>,
    /// Fingerprint of the broker's certificate authority, as its administrator tells it
    #[arg(long, value_name = "sha256:HEX")]
    pub fingerprint: Option<String>,
}

/// Runs the verb.
pub async fn run(context: &Context, args: LoginArgs) -> Result<u8> {
    let mut credentials = Credentials::load()?;
    let mut client = match &args.address {
        Address::Unix(_) => {
            let client = connect::connect(&args.address).await?;
            credentials.default = Some(args.address.to_string());
            client
        }
        Address::Tls(url) => {
            let ca = authority(url, &args, credentials.brokers.get(url)).await?;
            let token = match method(url, &ca, &args).await? {
                Some(method) => sign_in::sign_in(url, &ca, &method, &wanted(&args)).await?.token,
                None => token(&args)?,
            };
            let credential = Credential { token, ca };
            let client = connect::connect_tls(url, &credential).await?;
            credentials.brokers.insert(url.clone(), credential);
            credentials.default = Some(url.clone());
            client
        }
    };
    let cluster = client.get_cluster(v1::GetClusterRequest {}).await?.into_inner();
    let path = credentials.save()?;
    let user = cluster.user.clone().unwrap_or_default();
    if context.json() {
        output::json(&view::User::from(user))?;
    } else {
        let name = if cluster.name.is_empty() {
            &cluster.id
        } else {
            &cluster.name
        };
        say(format_args!(
            "carrel: signed in to {name} as {}; kept in {}",
            user.name,
            path.display()
        ));
    }
    Ok(0)
}

/// How to sign in: as asked for, or else at the cluster's provider; none: with a token.
async fn method(url: &str, ca: &str, args: &LoginArgs) -> Result<Option<Method>> {
    if let Some(file) = &args.ssh_key {
        return Ok(Some(ssh_key(file.as_deref(), args)?));
    }
    let device = args.device || given_token(args).is_none() && sign_in::has_provider(url, ca).await?;
    let person_is_here = std::io::stdin().is_terminal() && stderr_is_terminal();
    Ok(device.then_some(Method::Device {
        open_browser: person_is_here && !args.no_browser,
    }))
}

fn ssh_key(file: Option<&Path>, args: &LoginArgs) -> Result<Method> {
    let source = file.map_or(KeySource::Usual, |file| KeySource::File(file.to_owned()));
    let user = match &args.user {
        Some(user) => user.to_string(),
        None => std::env::var("USER")
            .map_err(|_| CliError::usage("your login name is not known").hint("--user USER"))?,
    };
    Ok(Method::SshKey(user, source))
}

fn wanted(args: &LoginArgs) -> Wanted {
    let host = nix::unistd::gethostname().unwrap_or_default();
    Wanted {
        label: format!("sign-in on {}", host.to_string_lossy()),
        ttl_s: args.ttl.as_secs(),
        scope: args.scope,
    }
}

/// As given by flag or environment. The latter may be there for other commands' sake, and is no
/// reason to refuse another way that is named.
fn given_token(args: &LoginArgs) -> Option<String> {
    let kept = || {
        std::env::var("CARREL_TOKEN")
            .ok()
            .filter(|token| !token.is_empty())
    };
    args.token.clone().or_else(kept)
}

fn token(args: &LoginArgs) -> Result<String> {
    let token = match given_token(args) {
        Some(token) if token == "-" => {
            std::io::read_to_string(std::io::stdin()).context("cannot read stdin")?
        }
        Some(token) => token,
        None if std::io::stdin().is_terminal() => ask_secret("Token: ").context("cannot read the token")?,
        None => {
            return Err(CliError::usage("a token is needed")
                .hint("--token TOKEN, or --token - to read it from stdin; --ssh-key does without"));
        }
    };
    let token = token.trim().to_owned();
    if token.is_empty() {
        return Err(CliError::usage("the token is empty"));
    }
    Ok(token)
}

/// The broker's authority, PEM: from a file, by its fingerprint, as before, or as the person confirms.
async fn authority(url: &str, args: &LoginArgs, kept: Option<&Credential>) -> Result<String> {
    if let Some(path) = &args.ca {
        return std::fs::read_to_string(path).context(format_args!("cannot read {}", path.display()));
    }
    if args.fingerprint.is_none()
        && let Some(kept) = kept
    {
        return Ok(kept.ca.clone());
    }
    let shown = tls::certificates_of(url).await?;
    if let Some(wanted) = &args.fingerprint {
        let wanted = normal(wanted);
        return shown
            .iter()
            .find(|c| tls::fingerprint(c) == wanted)
            .map(tls::pem)
            .ok_or_else(|| {
                CliError::failed(format!(
                    "{url} shows no certificate with that fingerprint, but {}",
                    listed(&shown)
                ))
                .hint("do not go on unless you know why: somebody may be in between")
            });
    }
    let authority = shown
        .last()
        .ok_or_else(|| CliError::failed(format!("{url} shows no certificate")))?;
    let fingerprint = tls::fingerprint(authority);
    if !std::io::stdin().is_terminal() {
        return Err(
            CliError::usage(format!("the certificate authority of {url} is not known")).hint(format!(
                "if {fingerprint} is its fingerprint, add --fingerprint {fingerprint}"
            )),
        );
    }
    say(format_args!(
        "The certificate authority of {url} has the fingerprint\n  {fingerprint}"
    ));
    if !confirm("Is that what your administrator says?") {
        return Err(CliError::failed("not signed in"));
    }
    Ok(tls::pem(authority))
}

fn normal(fingerprint: &str) -> String {
    let text = fingerprint.trim().to_ascii_lowercase();
    let hex: String = text
        .trim_start_matches("sha256:")
        .chars()
        .filter(|c| *c != ':')
        .collect();
    format!("sha256:{hex}")
}

fn listed(shown: &[CertificateDer<'_>]) -> String {
    shown.iter().map(tls::fingerprint).collect::<Vec<_>>().join(", ")
}
