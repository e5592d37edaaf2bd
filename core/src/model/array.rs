//! Job arrays: many tasks of one kind, that wait as one.
//!
//! Tasks that have not started are one job, whose part in the array says which they are. A task becomes a job of its own
//! when it starts, or when somebody treats it otherwise than the rest; the last one that is left keeps the number.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::ids::JobId;
use super::indices::{BadIndices, IndexSet};
use super::job::JobState;

/// Ranges that an array may be written in: they are kept with it.
pub const MAX_RANGES: usize = 4_096;

/// A text that does not name jobs.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text:?} is no job id: {why}")]
pub struct BadJobRef {
    /// What was given, or its beginning.
    pub text: String,
    /// What it must be.
    pub why: String,
}

/// A job as people name it: "12" (of an array: all of it), "12_3", "12_[3-7,9]".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRef {
    /// The job, or the array.
    pub job: JobId,
    /// Tasks of the array; none: all of it.
    pub tasks: Option<IndexSet>,
}

impl From<JobId> for JobRef {
    fn from(job: JobId) -> Self {
        Self { job, tasks: None }
    }
}

impl fmt::Display for JobRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.tasks {
            None => write!(f, "{}", self.job),
            Some(tasks) => f.write_str(&tasks_label(self.job, tasks)),
        }
    }
}

impl FromStr for JobRef {
    type Err = BadJobRef;

    fn from_str(text: &str) -> Result<Self, BadJobRef> {
        let bad = |why: String| BadJobRef {
            text: text.chars().take(80).collect(),
            why,
        };
        let number = |digits: &str| {
            let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse().ok().filter(|_| plain)
        };
        let rule = || bad("write 12, or of an array 12_3 or 12_[3-7,9]".to_owned());
        let (job, tasks) = match text.split_once('_') {
            Some((job, tasks)) => (job, Some(tasks)),
            None => (text, None),
        };
        let job = JobId(number(job).ok_or_else(rule)?);
        let Some(tasks) = tasks else {
            return Ok(job.into());
        };
        let tasks = match tasks.strip_prefix('[') {
            Some(rest) => {
                let inner = rest.strip_suffix(']').ok_or_else(rule)?;
                // As a list shows it, with the throttle behind.
                let set = inner.split_once('%').map_or(inner, |(set, _)| set);
                set.parse().map_err(|error: BadIndices| bad(error.why))?
            }
            None => IndexSet::one(
                number(tasks)
                    .and_then(|task| u32::try_from(task).ok())
                    .ok_or_else(rule)?,
            ),
        };
        Ok(Self {
            job,
            tasks: Some(tasks),
        })
    }
}

/// "12_3", "12_[3-7,9]"
fn tasks_label(array: JobId, tasks: &IndexSet) -> String {
    match tasks.only() {
        Some(task) => format!("{array}_{task}"),
        None => format!("{array}_[{tasks}]"),
    }
}

/// A text that does not describe an array.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadArray {
    /// Its indices.
    #[error(transparent)]
    Indices(#[from] BadIndices),
    /// Its throttle.
    #[error("{0:?} is no number of tasks that may run at once (write 0-99%5; %0 is as none)")]
    Throttle(String),
}

/// What is asked for with `--array`: "0-99%5".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArraySpec {
    /// Its tasks.
    pub tasks: IndexSet,
    /// So many run at once at most; none: as many as there is room for. Zero is none, as in Slurm.
    pub throttle: Option<u32>,
}

impl FromStr for ArraySpec {
    type Err = BadArray;

    fn from_str(text: &str) -> Result<Self, BadArray> {
        let (set, throttle) = match text.split_once('%') {
            Some((set, throttle)) => (set, Some(throttle)),
            None => (text, None),
        };
        let throttle = throttle.map(|count| {
            let digits = !count.is_empty() && count.bytes().all(|byte| byte.is_ascii_digit());
            let read = count.parse::<u32>().ok().filter(|_| digits);
            read.ok_or_else(|| BadArray::Throttle(count.chars().take(20).collect()))
        });
        let throttle = throttle.transpose()?.filter(|most| *most > 0);
        let inner = set.strip_prefix('[').and_then(|set| set.strip_suffix(']'));
        Ok(Self {
            tasks: inner.unwrap_or(set).parse()?,
            throttle,
        })
    }
}

impl fmt::Display for ArraySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.tasks)?;
        self.throttle.map_or(Ok(()), |most| write!(f, "%{most}"))
    }
}

/// What an array was when it was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Tasks.
    pub count: u32,
    /// Least index.
    pub min: u32,
    /// Greatest index.
    pub max: u32,
    /// Between two, where it is the same between all; else 1.
    pub step: u32,
}

impl Shape {
    /// Of these tasks.
    pub fn of(tasks: &IndexSet) -> Self {
        Self {
            count: u32::try_from(tasks.len()).unwrap_or(u32::MAX),
            min: tasks.first().unwrap_or(0),
            max: tasks.last().unwrap_or(0),
            step: tasks.step(),
        }
    }
}

/// A job's part in an array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayPart {
    /// The array: the number of the job that was submitted.
    pub array: JobId,
    /// The tasks that this job is. More than one only while they wait, or if they never started.
    pub tasks: IndexSet,
    /// So many of the whole array run at once at most; none: as many as there is room for.
    pub throttle: Option<u32>,
    /// What the array was when it was submitted.
    pub shape: Shape,
}

impl ArrayPart {
    /// "12_3", "12_[3-7,9]"
    pub fn label(&self) -> String {
        tasks_label(self.array, &self.tasks)
    }

    /// The task that this is; none: several wait.
    pub fn task(&self) -> Option<u32> {
        self.tasks.only()
    }
}

/// What is kept of an array beside its jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayRecord {
    /// Its number.
    pub id: JobId,
    /// Its tasks, as they were submitted.
    pub tasks: IndexSet,
    /// Those that ended well and have left the state.
    #[serde(default)]
    pub completed: IndexSet,
    /// Those that ended otherwise, or never started, and have left it.
    #[serde(default)]
    pub failed: IndexSet,
    /// The highest exit code of those that have left it.
    #[serde(default)]
    pub exit_code: i32,
    /// Its throttle was lowered while tasks ran: more than it lets start may still run.
    #[serde(default)]
    pub lowered: bool,
}

impl ArrayRecord {
    /// Takes note of what became of tasks.
    pub fn note(&mut self, tasks: &IndexSet, state: JobState, exit_code: Option<i32>) {
        let of = if state == JobState::Completed {
            &mut self.completed
        } else {
            &mut self.failed
        };
        match tasks.only() {
            Some(task) => of.insert(task),
            None => *of = of.union(tasks),
        }
        self.exit_code = self.exit_code.max(exit_code_of(state, exit_code));
    }

    /// Forgets it again: they run once more.
    pub fn take_back(&mut self, tasks: &IndexSet) {
        self.completed = self.completed.without(tasks);
        self.failed = self.failed.without(tasks);
    }

    /// What all tasks have become; none: some are not over.
    pub fn outcome(&self) -> Option<JobState> {
        let over = self.completed.len() + self.failed.len();
        (over >= self.tasks.len()).then(|| {
            if self.failed.is_empty() {
                JobState::Completed
            } else {
                JobState::Failed
            }
        })
    }

    /// What one has become; none: it is not over.
    pub fn outcome_of(&self, task: u32) -> Option<JobState> {
        if self.completed.contains(task) {
            return Some(JobState::Completed);
        }
        self.failed.contains(task).then_some(JobState::Failed)
    }
}

/// What somebody who waits for a job exits with: its own exit code, or 1 where it has none and did not end well.
pub fn exit_code_of(state: JobState, exit_code: Option<i32>) -> i32 {
    if state == JobState::Completed {
        return 0;
    }
    exit_code.filter(|code| *code != 0).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn jobs_are_named_as_in_slurm() {
        for (text, job, tasks, written) in [
            ("12", 12, None, "12"),
            ("12_3", 12, Some("3"), "12_3"),
            ("12_[3]", 12, Some("3"), "12_3"),
            ("12_[3-7,9]", 12, Some("3-7,9"), "12_[3-7,9]"),
            ("12_[3-99%5]", 12, Some("3-99"), "12_[3-99]"),
        ] {
            let read: JobRef = text.parse().expect(text);
            assert_eq!(read.job, JobId(job));
            assert_eq!(read.tasks, tasks.map(|set| set.parse().expect(set)));
            assert_eq!(read.to_string(), written);
        }
        for text in [
            "", "x", "12_", "_3", "12_x", "12_[", "12_[]", "12_[7-3]", "12_3_4", "-1", "12_-3", "+1",
        ] {
            assert!(text.parse::<JobRef>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_array_has_tasks_and_perhaps_a_throttle() {
        for (text, tasks, throttle, written) in [
            ("0-99%5", 100, Some(5), "0-99%5"),
            ("0-15:4", 4, None, "0-12:4"),
            ("1%0", 1, None, "1"),
            ("[0-5]%2", 6, Some(2), "0-5%2"),
        ] {
            let read: ArraySpec = text.parse().expect(text);
            assert_eq!((read.tasks.len(), read.throttle), (tasks, throttle), "{text}");
            assert_eq!(read.to_string(), written);
        }
        for text in ["0-9%", "0-9%x", "0-9%-1", "%5", "0-9%5%5", "0-9%99999999999"] {
            assert!(text.parse::<ArraySpec>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn names_are_read_as_they_are_written(
            job in 1u64..1_000_000,
            tasks in prop::option::of(prop::collection::btree_set(0u32..5_000, 1..50)),
        ) {
            let name = JobRef { job: JobId(job), tasks: tasks.map(|set| set.into_iter().collect()) };
            prop_assert_eq!(name.to_string().parse::<JobRef>(), Ok(name));
        }

        #[test]
        fn arrays_are_read_as_they_are_written(
            tasks in prop::collection::btree_set(0u32..5_000, 1..200),
            throttle in prop::option::of(1u32..1_000),
        ) {
            let spec = ArraySpec { tasks: tasks.into_iter().collect(), throttle };
            prop_assert_eq!(spec.to_string().parse::<ArraySpec>(), Ok(spec));
        }
    }
}
