//! The config file.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use carrel_core::model::fabric::{BlockText, Entry, Fabric, FabricText, SwitchText};
use carrel_core::model::gang_network::Subnet;
use carrel_core::model::policy::Policy;
use serde::Deserialize;
use toml::Spanned;

use super::idle::IdleConfig;
use super::queue::QueueConfig;
use super::units::{Size, Span};
use crate::signin::oidc::OidcFile;

/// The config file: every key may be absent, no other may be there.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigFile {
    pub(super) cluster: Option<String>,
    pub(super) state: Option<PathBuf>,
    pub(super) socket: Option<PathBuf>,
    pub(super) listen: Option<String>,
    pub(super) advertise: Option<String>,
    pub(super) tls_names: Option<Vec<String>>,
    pub(super) default_image: Option<String>,
    pub(super) default_time: Option<Span>,
    pub(super) max_time: Option<Span>,
    pub(super) lease: Option<Span>,
    pub(super) contact_timeout: Option<Span>,
    pub(super) grace: Option<Span>,
    pub(super) warn_before: Option<Vec<Span>>,
    pub(super) idle: Option<IdleConfig>,
    pub(super) gang_subnet: Option<Subnet>,
    pub(super) mail_program: Option<PathBuf>,
    pub(super) cpus_per_gpu: Option<u32>,
    pub(super) memory_per_gpu: Option<Size>,
    pub(super) cpus_reserved_per_gpu: Option<u32>,
    pub(super) memory_reserved_per_gpu: Option<Size>,
    pub(super) cpus: Option<u32>,
    pub(super) memory: Option<Size>,
    pub(super) admins: Option<Vec<String>>,
    pub(super) policy: Option<Policy>,
    pub(super) queue: Option<QueueConfig>,
    pub(super) audit_retention: Option<Span>,
    pub(super) jobs_in_memory: Option<Span>,
    pub(super) oidc: Option<OidcFile>,
    pub(super) fabric: Option<Fabric>,
}

impl ConfigFile {
    /// Reads a file. An error names file, line and key.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the config file {}", path.display()))?;
        Self::parse(&text, path)
    }

    pub(super) fn parse(text: &str, path: &Path) -> Result<Self> {
        let wrong = |start: usize, message: &str| {
            let start = start.min(text.len());
            let line = String::from_utf8_lossy(&text.as_bytes()[..start])
                .matches('\n')
                .count()
                + 1;
            let key = text.lines().nth(line - 1).unwrap_or_default().trim();
            anyhow!("{}:{line}: {message} (in: {key})", path.display())
        };
        toml::from_str(text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start);
            // Of a fabric that is wrong as a whole only its beginning is told.
            let (start, message) = misplaced(text).unwrap_or((start, error.message().to_owned()));
            wrong(start, &message)
        })
    }
}

/// Where in a file the entry is with which its fabric goes wrong, and how; none: it does not, or in no entry.
fn misplaced(text: &str) -> Option<(usize, String)> {
    /// The entries as they are, and where.
    #[derive(Deserialize)]
    struct Entries {
        #[serde(default)]
        switch: Vec<Spanned<SwitchText>>,
        #[serde(default)]
        block: Vec<Spanned<BlockText>>,
    }
    #[derive(Deserialize)]
    struct File {
        fabric: Entries,
    }
    let Entries { switch, block } = toml::from_str::<File>(text).ok()?.fabric;
    let described = FabricText {
        switch: switch.iter().map(|entry| entry.get_ref().clone()).collect(),
        block: block.iter().map(|entry| entry.get_ref().clone()).collect(),
    };
    let bad = Fabric::try_from(described).err()?;
    let span = match bad.at? {
        Entry::Switch(at) => switch.get(at)?.span(),
        Entry::Block(at) => block.get(at)?.span(),
    };
    Some((span.start, bad.to_string()))
}
