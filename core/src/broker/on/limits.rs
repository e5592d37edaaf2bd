//! What administrators set as limits: what makes sense, and what is over it already.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::broker::edit::LimitsEdit;
use crate::broker::limits::{gpus, names};
use crate::broker::{Reject, RejectKind, State};
use crate::model::account::Limits;
use crate::model::ids::{JobId, UserName};
use crate::model::job::Job;
use crate::queue::{Holder, Limit};

/// GPUs beyond which a limit is a slip of the keyboard, thousandths.
const MAX_GPU_MILLI: u64 = 10_000_000_000;
/// The same of a job's time: ten years.
const MAX_TIME: Duration = Duration::from_hours(10 * 366 * 24);
/// The same of GPU-minutes: all those GPUs for longer than any period.
const MAX_GPU_MINUTES: u64 = 1_000_000_000_000_000;
/// Characters of a description.
const MAX_DESCRIPTION: usize = 256;

fn invalid(why: impl Into<String>) -> Reject {
    Reject::new(RejectKind::Invalid, why)
}

impl LimitsEdit {
    /// Limits with this done to them.
    pub(super) fn on(&self, limits: &Limits) -> Result<Limits, Reject> {
        let set = &self.set;
        if set.gpu_milli.is_some_and(|milli| milli > MAX_GPU_MILLI) {
            let most = gpus(MAX_GPU_MILLI);
            return Err(invalid(format!("a limit of GPUs is at most {most}")));
        }
        if set.time.is_some_and(|time| time > MAX_TIME || time.is_zero()) {
            return Err(invalid(
                "a limit of time is more than nothing and at most ten years",
            ));
        }
        if set.gpu_minutes.is_some_and(|minutes| minutes > MAX_GPU_MINUTES) {
            return Err(invalid(format!(
                "a limit of GPU-minutes is at most {MAX_GPU_MINUTES}"
            )));
        }
        let mut limits = Limits {
            gpu_milli: set.gpu_milli.or(limits.gpu_milli),
            running: set.running.or(limits.running),
            submitted: set.submitted.or(limits.submitted),
            time: set.time.or(limits.time),
            gpu_minutes: set.gpu_minutes.or(limits.gpu_minutes),
        };
        for limit in &self.clear {
            let both = match limit {
                Limit::Gpus => limits.gpu_milli.take().is_some() && set.gpu_milli.is_some(),
                Limit::Running => limits.running.take().is_some() && set.running.is_some(),
                Limit::Submitted => limits.submitted.take().is_some() && set.submitted.is_some(),
                Limit::Time => limits.time.take().is_some() && set.time.is_some(),
                Limit::GpuMinutes => limits.gpu_minutes.take().is_some() && set.gpu_minutes.is_some(),
            };
            if both {
                return Err(invalid("a limit is to be set and to be taken away"));
            }
        }
        Ok(limits)
    }
}

/// What limits say, for the audit log: ", jobs of physics: 8 GPUs, 4 running".
pub(super) fn limits_text(of: &str, limits: &Limits) -> String {
    let parts = [
        limits.gpu_milli.map(|milli| format!("{} GPUs", gpus(milli))),
        limits.running.map(|jobs| format!("{jobs} running")),
        limits.submitted.map(|jobs| format!("{jobs} submitted")),
        limits
            .time
            .map(|time| format!("{} min each", time.as_secs() / 60)),
        limits.gpu_minutes.map(|minutes| format!("{minutes} GPU-minutes")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() {
        String::new()
    } else {
        format!("; {of}: {}", parts.join(", "))
    }
}

/// Refuses what is no description.
pub(super) fn must_be_description(text: &str) -> Result<(), Reject> {
    if text.chars().count() > MAX_DESCRIPTION || text.contains(char::is_control) {
        let rule = format!("a description has at most {MAX_DESCRIPTION} characters, on one line");
        return Err(invalid(rule));
    }
    Ok(())
}

/// Refuses a number beyond what it may be.
pub(super) fn must_be_at_most(what: &str, number: u32, most: u32) -> Result<(), Reject> {
    if number > most {
        return Err(invalid(format!("{what} of {number} is beyond {most}")));
    }
    Ok(())
}

impl State {
    /// Jobs that wait or hold something.
    fn live(&self) -> impl Iterator<Item = &Job> {
        let running = self.deadlines.iter().map(|(_, id)| *id);
        let ids = self.pending.ids().chain(running);
        ids.filter_map(|id| self.jobs.get(&id).map(AsRef::as_ref))
    }

    /// Refuses to forget what jobs wait or run with.
    pub(super) fn must_have_no_jobs(
        &self,
        what: &str,
        is_of: impl Fn(&Job) -> bool,
        hint: &str,
    ) -> Result<(), Reject> {
        let mut by_user: BTreeMap<UserName, u64> = BTreeMap::new();
        let mut first: Option<JobId> = None;
        for job in self.live().filter(|job| is_of(job)) {
            *by_user.entry(job.owner.clone()).or_default() += 1;
            first = first.min(Some(job.id)).or(Some(job.id));
        }
        let Some(first) = first else { return Ok(()) };
        let count: u64 = by_user.values().sum();
        let jobs = if count == 1 {
            "job that waits or runs"
        } else {
            "jobs that wait or run"
        };
        let whose = names(by_user, |count| count.to_string());
        Err(Reject::new(
            RejectKind::WrongState,
            format!("{what} has {count} {jobs}{whose}, such as job {first}"),
        )
        .hint(hint))
    }

    /// What is over limits that have just been set: nothing is ended for it, and nothing more starts.
    pub(super) fn over(&self, holder: &Holder, limits: &Limits) -> Vec<String> {
        let tally = self.tallies.of(holder);
        let mut over = Vec::new();
        if let Some(most) = limits.gpu_milli.filter(|most| tally.gpu_milli > *most) {
            over.push(format!(
                "{holder} holds {} GPUs and may now hold {}: nothing is ended, and nothing more starts until it fits",
                gpus(tally.gpu_milli),
                gpus(most)
            ));
        }
        if let Some(most) = limits.running.filter(|most| tally.running > *most) {
            over.push(format!(
                "{holder} runs {} jobs and may now run {most}: nothing is ended, and nothing more starts until it fits",
                tally.running
            ));
        }
        if let Some(most) = limits.submitted.filter(|most| tally.submitted > *most) {
            over.push(format!(
                "{holder} has {} jobs that wait or run and may now have {most}: nothing is ended, and no more are taken",
                tally.submitted
            ));
        }
        over
    }

    /// The same of every user's part of something.
    pub(super) fn over_by_user(&self, limits: &Limits, is_part: impl Fn(&Holder) -> bool) -> Vec<String> {
        if limits.is_empty() {
            return Vec::new();
        }
        let parts = self.tallies.iter().filter(|(holder, _)| is_part(holder));
        parts.flat_map(|(holder, _)| self.over(holder, limits)).collect()
    }
}
