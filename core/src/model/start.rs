//! When a job may start, beside when there is room for it.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ids::JobId;
use super::job::JobState;
use super::time::Timestamp;

/// Dependencies of one job.
pub const MAX_DEPENDENCIES: usize = 256;

/// What has to have become of another job, as in Slurm's `--dependency`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DependencyKind {
    /// It has started, or been cancelled.
    After,
    /// It is over.
    AfterAny,
    /// It is over, with exit code 0.
    AfterOk,
    /// It is over, and failed.
    AfterNotOk,
    /// Of an array: the task of the same index is over, with exit code 0; of another job as [`Self::AfterOk`].
    AfterCorr,
}

impl DependencyKind {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::After,
        Self::AfterAny,
        Self::AfterOk,
        Self::AfterNotOk,
        Self::AfterCorr,
    ];

    /// Slurm's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::After => "after",
            Self::AfterAny => "afterany",
            Self::AfterOk => "afterok",
            Self::AfterNotOk => "afternotok",
            Self::AfterCorr => "aftercorr",
        }
    }

    /// Whether the state of the other job is what is waited for; none: it never will be.
    pub fn is_met(self, state: JobState, has_started: bool) -> Option<bool> {
        match self {
            Self::After => Some(has_started || state.is_final()),
            Self::AfterAny => Some(state.is_final()),
            Self::AfterOk | Self::AfterCorr if state.is_final() => {
                (state == JobState::Completed).then_some(true)
            }
            Self::AfterNotOk if state.is_final() => (state != JobState::Completed).then_some(true),
            Self::AfterOk | Self::AfterNotOk | Self::AfterCorr => Some(false),
        }
    }
}

/// A job that another waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Dependency {
    /// What has to have become of it.
    pub kind: DependencyKind,
    /// The job, or the array.
    pub job: JobId,
    /// The task of the array; none: all of it.
    #[serde(default)]
    pub task: Option<u32>,
}

impl Dependency {
    /// The job as people call it: "12", "12_3".
    pub fn on(&self) -> String {
        match self.task {
            Some(task) => format!("{}_{task}", self.job),
            None => self.job.to_string(),
        }
    }
}

impl fmt::Display for Dependency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind.name(), self.on())
    }
}

/// What a job waits for by its user's wish.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Conditions {
    /// These other jobs.
    pub dependencies: Vec<Dependency>,
    /// One of the dependencies is enough.
    pub any: bool,
    /// The end of all earlier jobs of the same name and user.
    pub singleton: bool,
}

impl Conditions {
    /// Without what is decided already, by jobs that are over: those that are left.
    ///
    /// # Errors
    /// This dependency will never be met.
    pub fn settle(
        mut self,
        over: impl Fn(&Dependency) -> Option<(JobState, bool)>,
    ) -> Result<Self, Dependency> {
        let met = |one: &Dependency| over(one).map(|(state, started)| one.kind.is_met(state, started));
        let decided =
            |one: &Dependency, as_wished: bool| met(one).is_some_and(|met| met.is_some() == as_wished);
        if self.any && self.dependencies.iter().any(|one| decided(one, true)) {
            self.dependencies.clear();
            return Ok(self);
        }
        let never = self.dependencies.iter().find(|one| decided(one, false)).copied();
        let open = self.dependencies.iter().any(|one| met(one).is_none());
        match never {
            Some(never) if !self.any || !open => Err(never),
            _ => {
                self.dependencies.retain(|one| met(one).is_none());
                Ok(self)
            }
        }
    }

    /// None.
    pub fn is_empty(&self) -> bool {
        self.dependencies.is_empty() && !self.singleton
    }
}

/// What is wished for a job when it is submitted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartWish {
    /// Not before.
    pub begin: Option<Timestamp>,
    /// Not until its owner lets it go.
    pub hold: bool,
    /// Not before these.
    pub conditions: Conditions,
    /// Not at all, if not within this time.
    pub within: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Job 1 is completed, job 2 failed, job 3 is not over.
    fn over(on: &Dependency) -> Option<(JobState, bool)> {
        match on.job.0 {
            1 => Some((JobState::Completed, true)),
            2 => Some((JobState::Failed, true)),
            _ => None,
        }
    }

    fn settled(any: bool, dependencies: &[(DependencyKind, u64)]) -> Result<Vec<u64>, u64> {
        let dependency = |(kind, job): &(DependencyKind, u64)| Dependency {
            kind: *kind,
            job: JobId(*job),
            task: None,
        };
        let conditions = Conditions {
            dependencies: dependencies.iter().map(dependency).collect(),
            any,
            singleton: false,
        };
        let settled = conditions.settle(over);
        let left = settled.map(|left| left.dependencies.iter().map(|one| one.job.0).collect());
        left.map_err(|never| never.job.0)
    }

    #[test]
    fn what_is_over_is_decided() {
        use DependencyKind::{After, AfterAny, AfterNotOk, AfterOk};
        assert_eq!(
            settled(false, &[(AfterOk, 1), (AfterAny, 2), (After, 1)]),
            Ok(vec![])
        );
        assert_eq!(settled(false, &[(AfterOk, 1), (AfterOk, 3)]), Ok(vec![3]));
        assert_eq!(settled(false, &[(AfterOk, 3), (AfterOk, 2)]), Err(2));
        assert_eq!(settled(false, &[(AfterNotOk, 1)]), Err(1));
        // One is enough.
        assert_eq!(settled(true, &[(AfterOk, 2), (AfterOk, 3)]), Ok(vec![3]));
        assert_eq!(settled(true, &[(AfterOk, 3), (AfterNotOk, 2)]), Ok(vec![]));
        assert_eq!(settled(true, &[(AfterOk, 2), (AfterNotOk, 1)]), Err(2));
    }
}
