//! What users are told of their batch jobs by mail.
//!
//! Mail follows from how a job changes: whatever changes it, [`Broker::put_job`] compares what it was with what it is.
//! What is to be sent leaves with the output of the input, beside its effects, and is in no state: what a broker had not
//! sent when it ended is not sent by the next one, so nobody is told anything twice. Subjects and variables are those of
//! Slurm's `MailProg` (src/slurmctld/agent.c), `CARREL_` beside `SLURM_`.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Broker;
use super::state::State;
use crate::model::ids::JobId;
use crate::model::job::{Ending, Job, JobState, Phase};
use crate::model::mail::{MailEvent, MailWish};
use crate::model::time::Timestamp;

/// A mail to be sent, after the commit, once or never.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mail {
    /// The job that it is about.
    pub job: JobId,
    /// What it tells of.
    pub event: MailEvent,
    /// To whom.
    pub to: String,
    /// One line.
    pub subject: String,
    /// What the program that sends it finds in its environment.
    pub env: BTreeMap<String, String>,
}

impl Broker {
    /// A job is about to be what is given: its user may be told. Called before it is.
    pub(super) fn note_mail(&mut self, job: &Job) {
        if !self.state.settings.mail || job.batch.as_ref().is_none_or(|batch| batch.mail.is_none()) {
            return;
        }
        let Some(old) = self.state.jobs.get(&job.id).cloned() else {
            return;
        };
        let event = match (&old.phase, &job.phase) {
            (Phase::Placed(was), Phase::Placed(is)) => {
                let timed_out = |ending: &Option<Ending>| {
                    ending
                        .as_ref()
                        .is_some_and(|ending| ending.state == JobState::Timeout)
                };
                if !timed_out(&was.ending) && timed_out(&is.ending) {
                    Some(MailEvent::TimeLimit)
                } else {
                    let begins = old.state() != JobState::Running && job.state() == JobState::Running;
                    begins.then_some(MailEvent::Begin)
                }
            }
            (Phase::Placed(_) | Phase::Ended { .. }, Phase::Pending) => Some(MailEvent::Requeue),
            (Phase::Placed(_) | Phase::Pending, Phase::Ended { ending, .. }) => {
                // Who is over in another way did not do what it was to do.
                let well = matches!(ending.state, JobState::Completed | JobState::Cancelled);
                Some(if well { MailEvent::End } else { MailEvent::Fail })
            }
            (Phase::Pending, Phase::Pending | Phase::Placed(_))
            | (Phase::Ended { .. }, Phase::Ended { .. } | Phase::Placed(_)) => None,
        };
        if let Some(event) = event {
            self.mail(job, event);
        }
    }

    /// So much of the time of these jobs is over.
    pub(super) fn mail_time_parts(&mut self, now: Timestamp) {
        for (part, id) in self.state.take_time_parts(now) {
            let Some(job) = self.state.jobs.get(&id).cloned() else {
                continue;
            };
            if job.placed().is_some_and(|placed| placed.ending.is_none()) {
                self.mail(&job, MailEvent::TimePart(part));
            }
        }
    }

    fn mail(&mut self, job: &Job, event: MailEvent) {
        let Some(wish) = job.batch.as_ref().and_then(|batch| batch.mail.as_ref()) else {
            return;
        };
        let whole = job.array.is_some() && !wish.types.array_tasks;
        if whole && !self.state.is_of_whole_array(job, event) {
            return;
        }
        // An array has failed if any of its tasks has.
        let event = match event {
            MailEvent::End if whole && self.state.has_failed_tasks(job) => MailEvent::Fail,
            event => event,
        };
        // As with Slurm, who wants to hear of ends hears of failures as well.
        let wanted = wish.types.events.contains(&event)
            || (event == MailEvent::Fail) && wish.types.events.contains(&MailEvent::End);
        if !wanted {
            return;
        }
        let mail = compose(&self.state, self.output.now, (job, whole), event, wish);
        self.output.mails.push(mail);
    }
}

impl State {
    /// What happens to this job is what happens to its array: it is the first to begin, or the last to end.
    fn is_of_whole_array(&self, job: &Job, event: MailEvent) -> bool {
        let Some(array) = job.array.as_ref().and_then(|part| self.arrays.get(&part.array)) else {
            return true;
        };
        let over = array.known.completed.len() + array.known.failed.len();
        match event {
            MailEvent::Begin => {
                let others = array.tasks.values().filter(|id| **id != job.id);
                let mut others = others.filter_map(|id| self.jobs.get(id));
                over == 0
                    && !others.any(|other| other.state() == JobState::Running || !other.past_runs.is_empty())
            }
            MailEvent::End | MailEvent::Fail => {
                let own = job.array.as_ref().map_or(0, |part| part.tasks.len());
                let whole = job.array.as_ref().map_or(0, |part| part.shape.count as usize);
                over + own >= whole
            }
            MailEvent::Requeue | MailEvent::TimeLimit | MailEvent::TimePart(_) => true,
        }
    }

    /// Tasks of its array are over that did not end well.
    fn has_failed_tasks(&self, job: &Job) -> bool {
        let array = job.array.as_ref().and_then(|part| self.arrays.get(&part.array));
        array.is_some_and(|array| !array.known.failed.is_empty())
    }
}

fn compose(
    state: &State,
    now: Timestamp,
    (job, whole): (&Job, bool),
    event: MailEvent,
    wish: &MailWish,
) -> Mail {
    let name: String = job
        .name
        .chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect();
    let what = match (job.task(), &job.array) {
        (_, Some(part)) if whole => format!("Array Summary Job_id={}_* ({})", part.array, job.id),
        (Some((array, task)), _) => format!("Array Task Job_id={array}_{task} ({})", job.id),
        (None, Some(_)) => format!("Job_id={}", job.label()),
        (None, None) => format!("Job_id={}", job.id),
    };
    // Of one that is queued again its last run is what is told of.
    let ran = match (&job.phase, job.past_runs.last()) {
        (Phase::Placed(placed), _) => Some(now.since(placed.started)),
        (Phase::Ended { at, last, .. }, _) => last.as_ref().map(|placed| at.since(placed.started)),
        (Phase::Pending, last) => last.map(|run| run.ended.since(run.started)),
    };
    let queued = job.placed().map(|placed| placed.started.since(job.since()));
    let time = match event {
        MailEvent::Begin => queued.map(|queued| format!(", Queued time {}", clock(queued))),
        MailEvent::End
        | MailEvent::Fail
        | MailEvent::Requeue
        | MailEvent::TimeLimit
        | MailEvent::TimePart(_) => ran.map(|ran| format!(", Run time {}", clock(ran))),
    };
    let (ending, code) = match &job.phase {
        Phase::Ended { ending, .. } => (Some(ending), ending.exit_code),
        Phase::Pending | Phase::Placed(_) => (None, None),
    };
    let ended = match (ending, whole) {
        (None, _) => String::new(),
        (Some(ending), false) => format!(", {}, ExitCode {}", ending.state.name(), code.unwrap_or(0)),
        (Some(ending), true) => state.array_ending(job, ending),
    };
    let subject = format!(
        "Slurm {what} Name={name} {}{}{ended}",
        event.phrase(),
        time.unwrap_or_default()
    );
    let to = if wish.to.is_empty() {
        job.owner.to_string()
    } else {
        wish.to.clone()
    };
    let seconds = |time: Option<Duration>| time.map(|time| time.as_secs().to_string());
    let nodes = job.last_placed().map(|placed| {
        let nodes = placed.allocation.nodes.iter();
        crate::model::host_list::format(nodes.map(|part| &part.node))
    });
    let values = [
        ("JOB_ID", Some(job.id.to_string())),
        ("JOB_NAME", Some(name)),
        ("JOB_USER", Some(job.owner.to_string())),
        ("JOB_ACCOUNT", Some(job.terms.account.to_string())),
        ("JOB_PARTITION", Some(job.terms.partition.to_string())),
        ("JOB_QOS", Some(job.terms.qos.to_string())),
        ("JOB_STATE", Some(job.state().name().to_owned())),
        ("JOB_MAIL_TYPE", Some(event.name())),
        ("JOB_MAIL_USER", Some(to.clone())),
        ("JOB_NODELIST", nodes),
        (
            "JOB_WORK_DIR",
            job.batch.as_ref().map(|batch| batch.workdir.clone()),
        ),
        ("JOB_QUEUED_TIME", queued.map(clock)),
        ("JOB_RUN_TIME", ran.map(clock)),
        ("JOB_RUN_SECONDS", seconds(ran)),
        ("JOB_EXIT_CODE", code.map(|code| code.to_string())),
        (
            "JOB_REASON",
            ending.map(|ending| ending.reason.replace(char::is_control, " ")),
        ),
        (
            "ARRAY_JOB_ID",
            job.array.as_ref().map(|part| part.array.to_string()),
        ),
        (
            "ARRAY_TASK_ID",
            job.task().filter(|_| !whole).map(|(_, task)| task.to_string()),
        ),
        ("CLUSTER_NAME", Some(state.settings.cluster_name.clone())),
    ];
    let mut env = BTreeMap::new();
    for (name, value) in values {
        // No variable can hold a zero byte.
        let Some(value) = value.filter(|value| !value.contains('\0')) else {
            continue;
        };
        env.insert(format!("SLURM_{name}"), value.clone());
        env.insert(format!("CARREL_{name}"), value);
    }
    Mail {
        job: job.id,
        event,
        to,
        subject,
        env,
    }
}

impl State {
    /// How an array ended with its last job: ", COMPLETED, ExitCode 0", ", Mixed, ExitCode [0-3]".
    fn array_ending(&self, job: &Job, last: &Ending) -> String {
        let array = job.array.as_ref().and_then(|part| self.arrays.get(&part.array));
        let (completed, failed, highest) = array.map_or((0, 0, 0), |array| {
            let known = &array.known;
            (known.completed.len(), known.failed.len(), known.exit_code)
        });
        let well = last.state == JobState::Completed;
        let code = highest.max(last.exit_code.unwrap_or(0));
        if well && failed == 0 {
            ", COMPLETED, ExitCode 0".to_owned()
        } else if well || completed > 0 {
            format!(", Mixed, ExitCode [0-{code}]")
        } else {
            format!(", {}, ExitCode {code}", last.state.name())
        }
    }
}

/// "1-02:03:04", "00:01:05": as Slurm writes times.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let clock = format!("{:02}:{:02}:{:02}", rest / 3_600, rest / 60 % 60, rest % 60);
    if days > 0 {
        format!("{days}-{clock}")
    } else {
        clock
    }
}

/// When so many hundredths of a job's time are over of which its user wants to hear.
pub(super) fn time_parts(job: &Job) -> Vec<(Timestamp, u8)> {
    let wish = job.batch.as_ref().and_then(|batch| batch.mail.as_ref());
    let (Some(wish), Some(placed)) = (wish, job.placed().filter(|placed| placed.ending.is_none())) else {
        return Vec::new();
    };
    let length = placed.deadline.since(placed.started);
    let parts = wish.types.events.iter().filter_map(|event| match event {
        MailEvent::TimePart(part) => Some((placed.started.after(length * u32::from(*part) / 100), *part)),
        MailEvent::Begin | MailEvent::End | MailEvent::Fail | MailEvent::Requeue | MailEvent::TimeLimit => {
            None
        }
    });
    parts.collect()
}

impl State {
    /// Takes note of when a user is to hear that his job's time runs out, and forgets what was noted of its former self.
    /// What is past already is not told of any more: it was, or a broker was away.
    pub(super) fn count_time_parts(&mut self, old: Option<&Job>, job: &Job) {
        let has_wish = |job: &Job| job.batch.as_ref().is_some_and(|batch| batch.mail.is_some());
        if !has_wish(job) && !old.is_some_and(has_wish) {
            return;
        }
        for (at, part) in old.map(time_parts).unwrap_or_default() {
            self.time_parts.remove(&(at, job.id, part));
        }
        let coming = time_parts(job).into_iter().filter(|(at, _)| *at > self.ticked);
        self.time_parts
            .extend(coming.map(|(at, part)| (at, job.id, part)));
    }

    fn take_time_parts(&mut self, now: Timestamp) -> Vec<(u8, JobId)> {
        let due = self.time_parts.iter().take_while(|(at, ..)| *at <= now);
        let due: Vec<_> = due.copied().collect();
        for entry in &due {
            self.time_parts.remove(entry);
        }
        due.into_iter().map(|(_, id, part)| (part, id)).collect()
    }
}
