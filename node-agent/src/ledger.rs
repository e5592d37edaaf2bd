//! The ledger on disk: `STATE/ledger.json`, replaced whole.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use carrel_core::agent::Ledger;

/// The ledger of one state directory.
#[derive(Clone, Debug)]
pub struct LedgerFile {
    path: PathBuf,
}

impl LedgerFile {
    /// Of a state directory.
    pub fn new(state: &Path) -> Self {
        Self {
            path: state.join("ledger.json"),
        }
    }

    /// What was written last; none: nothing yet. One that cannot be understood is put aside: what
    /// runs is known from the containers themselves.
    ///
    /// # Errors
    /// The file is there and cannot be read.
    pub fn load(&self) -> Result<Option<Ledger>> {
        let bytes = match fs::read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("reading {}", self.path.display())),
        };
        match serde_json::from_slice(&bytes) {
            Ok(ledger) => Ok(Some(ledger)),
            Err(error) => {
                let aside = self.path.with_extension("json.damaged");
                tracing::error!(
                    %error,
                    kept = %aside.display(),
                    "the ledger is damaged; going on from what the containers say"
                );
                fs::rename(&self.path, aside).context("putting a damaged ledger aside")?;
                Ok(None)
            }
        }
    }

    /// Writes it; with `synced` it survives a crash of the node, else the one before may come back. Blocks.
    pub fn save(&self, ledger: &Ledger, synced: bool) -> Result<()> {
        self.replace(ledger, synced)
            .with_context(|| format!("writing {}", self.path.display()))
    }

    fn replace(&self, ledger: &Ledger, synced: bool) -> Result<()> {
        let next = self.path.with_extension("json.next");
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&next)?;
        file.write_all(&serde_json::to_vec(ledger)?)?;
        // In any case: a crash of the node between the rename and the data would leave neither.
        file.sync_data()?;
        fs::rename(&next, &self.path)?;
        if synced && let Some(dir) = self.path.parent() {
            fs::File::open(dir)?.sync_all()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use carrel_core::model::ids::ClusterId;

    use super::*;

    /// As versions wrote it that knew GPUs by their UUIDs alone.
    #[test]
    fn a_former_versions_ledger_is_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let text = r#"{"cluster": "c1", "accepted": null, "boot_id": "b", "lease_end_ms": null, "fences": [],
            "entries": [{"key": {"job": 38, "generation": 7}, "stage": "Ready", "cause": null, "detail": "",
                "exit_code": null, "holding": {"session": null, "name": "u1", "user": "alice", "cluster": "c1",
                "gpus": ["GPU-d75b"], "cpus": 1, "memory_bytes": 1, "deadline": 9}}]}"#;
        fs::write(dir.path().join("ledger.json"), text).expect("written");
        let ledger = LedgerFile::new(dir.path())
            .load()
            .expect("readable")
            .expect("a ledger");
        let holding = &ledger.entries[0].holding;
        assert_eq!((holding.name.as_str(), holding.places.len()), ("u1", 0));
    }

    #[test]
    fn a_ledger_comes_back_and_a_damaged_one_is_put_aside() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = LedgerFile::new(dir.path());
        assert_eq!(file.load().expect("readable"), None);
        let ledger = Ledger {
            cluster: ClusterId("c1".into()),
            accepted: None,
            boot_id: "b".into(),
            lease_end_ms: Some(7),
            fences: Vec::new(),
            entries: Vec::new(),
        };
        for synced in [true, false] {
            file.save(&ledger, synced).expect("written");
            assert_eq!(file.load().expect("readable").as_ref(), Some(&ledger));
        }
        fs::write(dir.path().join("ledger.json"), "{").expect("written");
        assert_eq!(file.load().expect("readable"), None);
        assert!(dir.path().join("ledger.json.damaged").exists());
    }
}
