//! The user's settings (`config.toml`, written by hand) and sign-ins
//! (`credentials.toml`, written by `carrel login`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{CliError, Result};
use crate::paths;

/// `config.toml`. Every key may be left out; an unknown one is an error.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The broker: `unix:/path` or `https://host:port`.
    pub broker: Option<String>,
    /// Image for new sessions.
    pub image: Option<String>,
    /// Editor for `carrel open`.
    pub editor: Option<String>,
    /// The user's SSH config file, when it is not `~/.ssh/config`.
    pub ssh_config: Option<PathBuf>,
}

/// A sign-in at one broker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Credential {
    /// The bearer token.
    pub token: String,
    /// Certificates that the broker's TLS certificate must lead to, PEM.
    pub ca: String,
}

/// `credentials.toml`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Credentials {
    /// Broker that was signed in to last.
    pub default: Option<String>,
    /// By broker address.
    #[serde(default)]
    pub brokers: BTreeMap<String, Credential>,
}

impl Config {
    /// Reads the user's; defaults when there is none.
    pub fn load() -> Result<Self> {
        Ok(load_toml(&paths::config_dir()?.join("config.toml"))?.unwrap_or_default())
    }
}

impl Credentials {
    /// Reads the user's; none when there are none.
    pub fn load() -> Result<Self> {
        Ok(load_toml(&paths::config_dir()?.join("credentials.toml"))?.unwrap_or_default())
    }

    /// Writes them, readable by the user only.
    pub fn save(&self) -> Result<PathBuf> {
        let dir = paths::config_dir()?;
        paths::create_private_dir(&dir)?;
        let path = dir.join("credentials.toml");
        let text =
            toml::to_string(self).map_err(|e| CliError::failed(format!("cannot write credentials: {e}")))?;
        paths::write_private(&path, text.as_bytes())?;
        Ok(path)
    }
}

fn load_toml<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(CliError::usage(format!(
                "cannot read {}: {error}",
                path.display()
            )));
        }
    };
    toml::from_str(&text).map(Some).map_err(|error| {
        let line = error.span().map_or(0, |span| {
            text[..span.start.min(text.len())].matches('\n').count() + 1
        });
        let place = if line > 0 {
            format!("{}:{line}", path.display())
        } else {
            path.display().to_string()
        };
        CliError::usage(format!("{place}: {}", error.message())).hint("the keys are listed in docs/cli.md")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_key_is_refused_with_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        std::fs::write(&path, "broker = \"unix:/x\"\nbrokker = 1\n").unwrap();
        let error = load_toml::<Config>(&path).unwrap_err();
        assert_eq!(error.kind, crate::error::Kind::Usage);
        assert!(
            error.message.contains("config.toml:2: unknown field `brokker`"),
            "{}",
            error.message
        );
    }

    #[test]
    fn a_missing_file_is_no_error() {
        assert_eq!(
            load_toml::<Config>(Path::new("/nonexistent/config.toml")).unwrap(),
            None
        );
    }
}
