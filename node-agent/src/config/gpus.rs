//! What the configuration file says of GPUs.

use std::path::PathBuf;

use anyhow::{Result, bail};
use carrel_core::model::gpu_unit::Sharing;
use serde::Deserialize;

use super::named;
use crate::gpu::{Chosen, GpuName, GpuPolicy};

/// GPUs in MIG mode.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct MigSection {
    recut: Recut,
    nvidia_smi: Option<PathBuf>,
}

/// Which GPUs may be cut anew: all in MIG mode or none, or these.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "true, false, or a list of GPUs (index, UUID or model)")]
enum Recut {
    Whether(bool),
    These(Vec<GpuName>),
}

impl Default for Recut {
    fn default() -> Self {
        Self::Whether(false)
    }
}

/// GPUs that jobs share.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct SharingSection {
    gpus: Shared,
    mode: Option<String>,
    mps_control: Option<PathBuf>,
}

/// Which GPUs are shared.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "\"all\", or a list of GPUs (index, UUID or model)")]
enum Shared {
    All(All),
    These(Vec<GpuName>),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum All {
    All,
}

impl Default for Shared {
    fn default() -> Self {
        Self::These(Vec::new())
    }
}

/// What a configuration file lets be done with GPUs.
pub(super) fn policy(mig: MigSection, sharing: SharingSection) -> Result<GpuPolicy> {
    let these = |names: Vec<GpuName>| match names.len() {
        0 => Chosen::None,
        _ => Chosen::These(names),
    };
    let policy = GpuPolicy {
        recut: match mig.recut {
            Recut::Whether(false) => Chosen::None,
            Recut::Whether(true) => Chosen::All,
            Recut::These(names) => these(names),
        },
        nvidia_smi: named(mig.nvidia_smi),
        shared: match sharing.gpus {
            Shared::All(All::All) => Chosen::All,
            Shared::These(names) => these(names),
        },
        sharing: match sharing.mode.as_deref() {
            None | Some("time-slice") => Some(Sharing::TimeSlice),
            Some("mps") => Some(Sharing::Mps),
            Some(other) => bail!("[sharing] mode {other:?} is not known: it is \"time-slice\" or \"mps\""),
        },
        mps_control: named(sharing.mps_control),
    };
    if let Some(name) = policy.recut.common(&policy.shared).next() {
        bail!(
            "GPU {name} is named in [mig] recut and in [sharing] gpus: one in MIG mode is cut into slices and \
             cannot be shared; take it out of one of them"
        );
    }
    Ok(policy)
}
