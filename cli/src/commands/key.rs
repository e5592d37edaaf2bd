//! `carrel key`: plain SSH keys, for clients that know no certificates.

use std::path::PathBuf;

use carrel_proto::v1;
use clap::Subcommand;
use russh::keys::{HashAlg, PublicKey};
use serde::Serialize;

use crate::context::Context;
use crate::error::{CliError, Context as _, Result};
use crate::output;
use crate::terminal::say;

/// Administer your plain SSH keys.
///
/// For SSH clients that know no certificates; OpenSSH needs none of them.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  carrel key add ~/.ssh/id_ed25519.pub\n  ssh-add -L | carrel key add -")]
pub struct KeyArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: KeyCommand,
}

/// What is done to keys.
#[derive(Clone, Debug, Subcommand)]
pub enum KeyCommand {
    /// Register the public keys of a file
    Add {
        /// Public key file; - is stdin
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// List your keys
    List,
    /// Take a key away
    Remove {
        /// Its fingerprint, as listed
        #[arg(value_name = "FINGERPRINT")]
        fingerprint: String,
    },
}

/// A registered key.
#[derive(Debug, Serialize)]
struct Key {
    fingerprint: String,
    public_key: String,
}

/// Runs the verb.
pub async fn run(context: &Context, args: KeyArgs) -> Result<u8> {
    match args.command {
        KeyCommand::Add { file } => add(context, &file).await?,
        KeyCommand::List => list(context).await?,
        KeyCommand::Remove { fingerprint } => {
            let mut client = context.client().await?;
            let request = v1::RemoveSshKeyRequest {
                fingerprint: fingerprint.clone(),
            };
            client.remove_ssh_key(request).await?;
            say(format_args!("carrel: key {fingerprint} is removed"));
        }
    }
    Ok(0)
}

async fn add(context: &Context, file: &std::path::Path) -> Result<()> {
    let text = if file.as_os_str() == "-" {
        std::io::read_to_string(std::io::stdin()).context("cannot read stdin")?
    } else {
        std::fs::read_to_string(file).context(format_args!("cannot read {}", file.display()))?
    };
    if text.contains("PRIVATE KEY") {
        return Err(
            CliError::usage(format!("{} is a private key, which stays here", file.display()))
                .hint(format!("the public one is {}.pub", file.display())),
        );
    }
    let lines = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut keys = Vec::new();
    for line in lines {
        let key = PublicKey::from_openssh(line).map_err(|error| {
            CliError::usage(format!("{} holds no SSH public key: {error}", file.display()))
        })?;
        keys.push(key.to_openssh().context("the key")?);
    }
    if keys.is_empty() {
        return Err(CliError::usage(format!(
            "{} holds no SSH public key",
            file.display()
        )));
    }
    let mut client = context.client().await?;
    let mut added = Vec::new();
    for public_key in keys {
        let request = v1::AddSshKeyRequest {
            public_key: public_key.clone(),
        };
        let fingerprint = client.add_ssh_key(request).await?.into_inner().fingerprint;
        added.push(Key {
            fingerprint,
            public_key,
        });
    }
    print(context, &added)
}

async fn list(context: &Context) -> Result<()> {
    let mut client = context.client().await?;
    let keys = client
        .list_ssh_keys(v1::ListSshKeysRequest {})
        .await?
        .into_inner()
        .public_keys;
    let keys = keys.into_iter().map(|public_key| {
        let fingerprint = PublicKey::from_openssh(&public_key)
            .map(|key| key.fingerprint(HashAlg::Sha256).to_string())
            .unwrap_or_default();
        Key {
            fingerprint,
            public_key,
        }
    });
    print(context, &keys.collect::<Vec<_>>())
}

fn print(context: &Context, keys: &[Key]) -> Result<()> {
    if context.json() {
        return output::json(&keys);
    }
    let kind = |key: &Key| key.public_key.split(' ').next().unwrap_or_default().to_owned();
    output::text(output::table(
        ["FINGERPRINT", "TYPE"],
        keys.iter().map(|k| [k.fingerprint.clone(), kind(k)]),
    ))
}
