//! The user's SSH: a key with a short-lived certificate, aliases, and the system's client.
//!
//! ```text
//! ~/.ssh/config                  the user's; one Include line is ours
//! ~/.ssh/carrel/config           aliases, written whole from sessions.json
//! ~/.ssh/carrel/id_ed25519       the key
//! ~/.ssh/carrel/<cluster>/       that cluster's known_hosts and our certificate from it
//! ```

pub mod access;
pub mod alias;
pub mod client;
pub mod include;
pub mod keys;

use std::path::{Path, PathBuf};

use carrel_proto::v1;

use crate::error::{CliError, Context as _, Result};
use crate::paths;

/// Carrel's own directory, `~/.ssh/carrel`.
#[derive(Clone, Debug)]
pub struct SshDir {
    root: PathBuf,
}

impl SshDir {
    /// The user's, created if missing.
    pub fn open() -> Result<Self> {
        let root = paths::home()?.join(".ssh/carrel");
        paths::create_private_dir(&root)?;
        Ok(Self { root })
    }

    /// A given one.
    #[cfg(test)]
    pub fn at(root: &Path) -> Self {
        Self { root: root.into() }
    }

    /// The generated SSH config.
    pub fn config(&self) -> PathBuf {
        self.root.join("config")
    }

    /// The list of sessions that have an alias.
    pub fn sessions(&self) -> PathBuf {
        self.root.join("sessions.json")
    }

    /// The private key.
    pub fn key(&self) -> PathBuf {
        self.root.join("id_ed25519")
    }

    /// What belongs to one cluster.
    pub fn cluster(&self, id: &str) -> Result<ClusterDir> {
        // The id comes from the broker and becomes a path: only what an id can hold.
        let valid =
            (1..=64).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        if !valid {
            return Err(CliError::failed(format!(
                "the broker calls its cluster {id:?}, which is no cluster id"
            )));
        }
        Ok(ClusterDir {
            key: self.key(),
            root: self.root.join(&id[..id.len().min(16)]),
        })
    }

    /// Waits until no other `carrel` changes these files, and keeps others waiting until dropped.
    pub fn lock(&self) -> Result<std::fs::File> {
        let path = self.root.join("lock");
        let what = format!("cannot lock {}", path.display());
        let file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&path)
            .context(&what)?;
        file.lock().context(&what)?;
        Ok(file)
    }
}

/// One cluster's files, and the key that they go with.
#[derive(Clone, Debug)]
pub struct ClusterDir {
    key: PathBuf,
    root: PathBuf,
}

impl ClusterDir {
    /// The private key.
    pub fn key(&self) -> &Path {
        &self.key
    }

    /// Our certificate from this cluster.
    pub fn certificate(&self) -> PathBuf {
        self.root.join("id_ed25519-cert.pub")
    }

    /// Its host CAs.
    pub fn known_hosts(&self) -> PathBuf {
        self.root.join("known_hosts")
    }

    /// Sees that the host CAs are those that the broker names.
    pub fn trust(&self, cluster: &v1::Cluster) -> Result<()> {
        paths::create_private_dir(&self.root)?;
        let domain = if cluster.domain.is_empty() {
            "carrel"
        } else {
            &cluster.domain
        };
        let mut lines = String::new();
        for ca in &cluster.host_cas {
            // One key on one line: nothing else gets into known_hosts.
            let key = russh::keys::PublicKey::from_openssh(ca.trim()).context("the broker's host CA key")?;
            let key = key.to_openssh().context("the broker's host CA key")?;
            lines += &format!("@cert-authority *.{domain} {key}\n");
        }
        let path = self.known_hosts();
        if std::fs::read(&path).is_ok_and(|old| old == lines.as_bytes()) {
            return Ok(());
        }
        paths::write_private(&path, lines.as_bytes())
    }
}
