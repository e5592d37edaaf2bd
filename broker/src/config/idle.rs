//! `[idle]`: when sessions end that are not used.

use std::time::Duration;

use anyhow::{Result, bail};
use carrel_core::broker::IdleSettings;
use carrel_core::model::activity::Thresholds;
use serde::{Deserialize, Serialize};

use super::{LONGEST, Span};

/// Hardware threads whose time a threshold may be, in per cent: all of a large host.
const MOST_CPU_PERCENT: u32 = 100_000;

/// When sessions end that are not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct IdleConfig {
    /// After so long; none: only those end that ask for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<Span>,
    /// So long before that their users are warned.
    warn: Span,
    /// Less of the busiest GPU's time, in per cent, is no use.
    gpu_percent: u32,
    /// Less CPU time, in per cent of one hardware thread, is no use.
    cpu_percent: u32,
}

impl Default for IdleConfig {
    fn default() -> Self {
        let IdleSettings {
            after,
            warn,
            thresholds,
        } = IdleSettings::default();
        Self {
            after: after.map(Span),
            warn: Span(warn),
            gpu_percent: thresholds.gpu_percent,
            cpu_percent: thresholds.cpu_percent,
        }
    }
}

impl IdleConfig {
    pub(super) fn check(&self) -> Result<()> {
        for (key, span) in [("idle.after", self.after), ("idle.warn", Some(self.warn))] {
            if let Some(Span(span)) = span
                && (span < Duration::from_secs(1) || span > LONGEST)
            {
                bail!(
                    "{key} = \"{}\": it is to be a second at least and at most {}; leave idle.after out for no limit",
                    Span(span),
                    Span(LONGEST)
                );
            }
        }
        if let Some(Span(after)) = self.after
            && self.warn.0 >= after
        {
            bail!(
                "idle.warn = \"{}\" is to be less than idle.after = \"{}\"",
                self.warn,
                Span(after)
            );
        }
        if !(1..=100).contains(&self.gpu_percent) {
            bail!("idle.gpu_percent = {}: it is to be 1 to 100", self.gpu_percent);
        }
        if !(1..=MOST_CPU_PERCENT).contains(&self.cpu_percent) {
            bail!(
                "idle.cpu_percent = {}: it is to be 1 to {MOST_CPU_PERCENT}, of which 100 are one hardware thread",
                self.cpu_percent
            );
        }
        Ok(())
    }

    pub(super) fn settings(&self) -> IdleSettings {
        IdleSettings {
            after: self.after.map(|Span(after)| after),
            warn: self.warn.0,
            thresholds: Thresholds {
                gpu_percent: self.gpu_percent,
                cpu_percent: self.cpu_percent,
            },
        }
    }
}
