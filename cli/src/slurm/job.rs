//! A job as Slurm's commands see it, from the queue or from the history.

use carrel_core::model::array::JobRef;
use carrel_core::model::host_list;
use carrel_core::model::ids::NodeName;
use carrel_core::model::indices::IndexSet;
use carrel_proto::v1::gpu_unit_request::Unit;
use carrel_proto::v1::{self, JobState};

use super::words;
use crate::connect::Client;
use crate::context::request as job_request;
use crate::error::Result;
use crate::{times, units, view};

/// What Slurm writes where there is nothing.
pub const NULL: &str = "(null)";

/// A job, or tasks of an array that wait as one; or its batch step.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Its own number.
    pub id: u64,
    /// Its part in an array.
    pub array: Option<v1::ArrayPart>,
    /// Its name.
    pub name: String,
    /// Login name.
    pub user: String,
    /// It runs by itself.
    pub batch: bool,
    /// Its state.
    pub state: JobState,
    /// Why, as we say it.
    pub said: String,
    /// On what terms.
    pub terms: v1::Terms,
    /// Unix milliseconds.
    pub submitted_ms: i64,
    /// When it started, or is to start.
    pub start_ms: Option<i64>,
    /// It has started then.
    pub started: bool,
    /// When it ended.
    pub ended_ms: Option<i64>,
    /// When it ends at the latest.
    pub deadline_ms: Option<i64>,
    /// Time limit, seconds.
    pub limit_s: u64,
    /// How long it has held something, seconds.
    pub elapsed_s: u64,
    /// Nodes that it has or had, by rank.
    pub nodes: Vec<String>,
    /// CPUs and bytes that it has or had.
    pub cpus: u32,
    /// See `cpus`.
    pub memory_bytes: u64,
    /// GPUs that it has or had, thousandths.
    pub gpu_milli: u64,
    /// What it asked for.
    pub request: v1::ResourceRequest,
    /// Exit code of its main command, or 128 + signal.
    pub exit_code: Option<i32>,
    /// How often it was queued again.
    pub restarts: u32,
    /// What it runs.
    pub what: v1::Batch,
    /// Image reference.
    pub image: String,
    /// Points; none: it does not wait, or they are not known.
    pub priority: Option<i64>,
    /// Session that it is a run of; 0: none.
    pub session: u64,
    /// It is the batch step of this.
    pub step: bool,
    /// What it has used of CPUs and memory; none: that was not measured.
    pub host_use: Option<v1::HostUseInAll>,
    /// How measured memory is written.
    pub units: words::Units,
}

impl Row {
    /// A job as the broker knows it now.
    pub fn of(job: v1::Job) -> Self {
        let now = times::now_ms();
        let state = job.state();
        let until = job.ended_ms.unwrap_or(now);
        let gpus = job.nodes.iter().map(|held| gpu_milli(&held.gpus)).sum();
        Self {
            id: job.id,
            array: job.array,
            name: job.name,
            user: job.user,
            batch: job.kind == i32::from(v1::JobKind::Batch),
            state,
            said: job.reason,
            terms: job.terms.unwrap_or_default(),
            submitted_ms: job.submitted_ms,
            start_ms: job.started_ms,
            started: job.started_ms.is_some(),
            ended_ms: job.ended_ms,
            deadline_ms: job.deadline_ms,
            limit_s: job.time_limit_s,
            elapsed_s: job.started_ms.map_or(0, |from| seconds(until - from)),
            cpus: job.nodes.iter().map(|held| held.cpus).sum(),
            memory_bytes: job.nodes.iter().map(|held| held.memory_bytes).sum(),
            gpu_milli: gpus,
            nodes: job.nodes.into_iter().map(|held| held.node).collect(),
            request: job.request.unwrap_or_default(),
            exit_code: job.exit_code,
            restarts: job.restarts,
            what: job.batch.unwrap_or_default(),
            image: job.image,
            priority: None,
            session: job.session,
            step: false,
            host_use: job.host_use,
            units: words::Units::default(),
        }
    }

    /// A job of the history.
    pub fn past(job: v1::HistoryJob) -> Self {
        let state = job.state();
        Self {
            batch: job.kind == i32::from(v1::JobKind::Batch),
            state,
            id: job.id,
            array: job.array,
            name: job.name,
            user: job.user,
            said: job.reason,
            terms: job.terms.unwrap_or_default(),
            submitted_ms: job.submitted_ms,
            start_ms: job.started_ms,
            started: job.started_ms.is_some(),
            ended_ms: job.ended_ms,
            deadline_ms: None,
            limit_s: job.time_limit_s,
            elapsed_s: job.elapsed_ms / 1_000,
            nodes: host_list::expanded(&job.nodes).unwrap_or_default(),
            cpus: job.cpus,
            memory_bytes: job.memory_bytes,
            gpu_milli: job.gpu_milli,
            request: job.request.unwrap_or_default(),
            exit_code: job.exit_code,
            restarts: job.restarts,
            what: v1::Batch {
                workdir: job.workdir,
                comment: job.comment,
                ..v1::Batch::default()
            },
            image: String::new(),
            priority: None,
            session: job.session,
            step: false,
            host_use: job.host_use,
            units: words::Units::default(),
        }
    }

    /// Its batch step, as sacct lists it; none: it has none.
    pub fn batch_step(&self) -> Option<Self> {
        (self.batch && self.started).then(|| Self {
            name: "batch".to_owned(),
            state: match self.state {
                // What ends with its job is cancelled in Slurm's eyes.
                JobState::Timeout | JobState::Preempted | JobState::NodeFail => JobState::Cancelled,
                JobState::Configuring | JobState::Completing => JobState::Running,
                other => other,
            },
            step: true,
            ..self.clone()
        })
    }

    /// "12", "12_3", "12_[3-7%5]"; of a step "12.batch".
    pub fn label(&self) -> String {
        let label = view::label(self.id, self.array.as_ref(), self.state);
        if self.step {
            format!("{label}.batch")
        } else {
            label
        }
    }

    /// The number of its array, or its own.
    pub fn array_id(&self) -> u64 {
        self.array.as_ref().map_or(self.id, |part| part.array)
    }

    /// The task that it is; none: it is in no array, or several wait.
    pub fn task(&self) -> Option<u32> {
        self.array.as_ref().and_then(|part| part.tasks.parse().ok())
    }

    /// Tasks that it is, with the throttle: "3-7%5"; empty: it is in no array.
    pub fn tasks(&self) -> String {
        match &self.array {
            Some(part) if part.throttle > 0 && self.task().is_none() => {
                format!("{}%{}", part.tasks, part.throttle)
            }
            Some(part) => part.tasks.clone(),
            None => String::new(),
        }
    }

    /// The same as several, each one task.
    pub fn by_task(self) -> Vec<Self> {
        let tasks: Option<IndexSet> = match &self.array {
            Some(part) if self.task().is_none() => part.tasks.parse().ok(),
            Some(_) | None => None,
        };
        let Some(tasks) = tasks else { return vec![self] };
        let one = |task: u32| Self {
            array: self.array.clone().map(|part| v1::ArrayPart {
                tasks: task.to_string(),
                ..part
            }),
            ..self.clone()
        };
        tasks.iter().map(one).collect()
    }

    /// Whether a name of jobs means it, or some of it.
    pub fn is(&self, name: &JobRef) -> bool {
        let Some(wanted) = &name.tasks else {
            return name.job.0 == self.id || name.job.0 == self.array_id();
        };
        let own = self.array.as_ref().filter(|part| part.array == name.job.0);
        let own = own.and_then(|part| part.tasks.parse::<IndexSet>().ok());
        own.is_some_and(|own| own.common(wanted).next().is_some())
    }

    /// Slurm's word for why.
    pub fn reason(&self) -> String {
        words::reason(self.state, &self.said)
    }

    /// Its nodes, as a host list.
    pub fn node_list(&self) -> String {
        compressed(&self.nodes)
    }

    /// Nodes, or why it has none: "(Resources)".
    pub fn nodes_or_reason(&self) -> String {
        match self.state {
            JobState::Pending => format!("({})", self.reason()),
            state if !words::is_live(state) && state != JobState::Completed && self.nodes.is_empty() => {
                format!("({})", self.reason())
            }
            _ => self.node_list(),
        }
    }

    /// Nodes that it has, or asks for.
    pub fn node_count(&self) -> u32 {
        let asked = || components(&self.request).map(|one| one.nodes).sum();
        u32::try_from(self.nodes.len())
            .ok()
            .filter(|count| *count > 0)
            .unwrap_or_else(asked)
    }

    /// CPUs that it has, or asks for; one where it says nothing.
    pub fn cpu_count(&self) -> u32 {
        let asked = || {
            components(&self.request)
                .map(|one| one.nodes * one.cpus_per_node.max(1))
                .sum()
        };
        if self.cpus > 0 { self.cpus } else { asked() }
    }

    /// Memory asked for on a node, bytes; 0: all of it.
    pub fn memory_per_node(&self) -> u64 {
        asked_memory(&self.request)
    }

    /// "cpu=8,mem=64G,node=1,gres/gpu=4", as it was asked for.
    pub fn requested_tres(&self) -> String {
        let memory = components(&self.request)
            .map(|one| u64::from(one.nodes) * asked_memory(one))
            .sum();
        let cpus: u32 = components(&self.request)
            .map(|one| one.nodes * one.cpus_per_node.max(1))
            .sum();
        let nodes: u32 = components(&self.request).map(|one| one.nodes).sum();
        tres(cpus, memory, nodes, asked_gpu_milli(&self.request))
    }

    /// The same as it has it; empty: nothing.
    pub fn allocated_tres(&self) -> String {
        if self.nodes.is_empty() {
            return String::new();
        }
        let nodes = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        tres(self.cpus, self.memory_bytes, nodes, self.gpu_milli)
    }

    /// "gres/gpu:h100:4" on each node; empty: none.
    pub fn tres_per_node(&self) -> String {
        let request = &self.request;
        if request.gpus_per_node == 0 {
            return String::new();
        }
        let model = match request.gpu_model.as_str() {
            "" => String::new(),
            model => format!(":{model}"),
        };
        format!("gres/gpu{model}:{}", request.gpus_per_node)
    }

    /// Seconds until it ends at the latest; none: it does not run.
    pub fn left_s(&self) -> Option<u64> {
        let deadline = self.deadline_ms.filter(|_| self.state != JobState::Pending)?;
        Some(seconds(deadline - times::now_ms()))
    }

    /// What it runs, as squeue shows it.
    pub fn command(&self) -> String {
        match (&self.what.command[..], self.batch) {
            (_, false) => NULL.to_owned(),
            _ if self.what.script => self.name.clone(),
            (command, true) => command.join(" "),
        }
    }

    /// Its output file, absolute where that can be said.
    pub fn stdout(&self) -> String {
        absolute(&self.what.workdir, &self.what.stdout)
    }

    /// The same of standard error.
    pub fn stderr(&self) -> String {
        match self.what.stderr.as_str() {
            "" => self.stdout(),
            file => absolute(&self.what.workdir, file),
        }
    }

    /// Its user's number here; none: this machine does not know them.
    pub fn uid(&self) -> Option<u32> {
        uid(&self.user)
    }

    /// "CANCELLED by 1001"; other states by their name.
    pub fn state_by(&self) -> String {
        let by = self
            .said
            .strip_prefix("cancelled by ")
            .or(self.said.strip_prefix("stopped by "));
        let by = by.and_then(|rest| rest.split_whitespace().next());
        match (self.state, by) {
            (JobState::Cancelled, Some(user)) if !self.step => match uid(user) {
                Some(uid) => format!("CANCELLED by {uid}"),
                None => "CANCELLED".to_owned(),
            },
            _ => self.state_name().to_owned(),
        }
    }

    /// Slurm's records know no states in between, and tools take what they do not know for the end.
    pub fn state_name(&self) -> &'static str {
        match self.state {
            JobState::Configuring | JobState::Completing => view::job_state(JobState::Running),
            state => view::job_state(state),
        }
    }
}

/// All components of a request, itself first.
pub fn components(request: &v1::ResourceRequest) -> impl Iterator<Item = &v1::ResourceRequest> {
    std::iter::once(request).chain(&request.more)
}

/// Memory on a node, bytes; 0, as it was written: all of it.
fn asked_memory(request: &v1::ResourceRequest) -> u64 {
    if request.all_memory {
        0
    } else {
        request.memory_bytes_per_node
    }
}

fn asked_gpu_milli(request: &v1::ResourceRequest) -> u64 {
    let of = |one: &v1::ResourceRequest| {
        let unit = one.unit.as_ref().and_then(|unit| unit.unit.as_ref());
        let each = match unit {
            Some(Unit::Share(share)) => u64::from(share.milli),
            Some(Unit::MigProfile(_) | Unit::Least(_)) | None => 1_000,
        };
        u64::from(one.nodes) * u64::from(one.gpus_per_node) * each
    };
    components(request).map(of).sum()
}

fn gpu_milli(gpus: &[v1::Gpu]) -> u64 {
    let of = |gpu: &v1::Gpu| {
        let share = gpu
            .slice
            .split_once(" by ")
            .and_then(|(part, _)| part.parse::<f64>().ok());
        share.map_or(1_000, |part| (part * 1_000.0).round() as u64)
    };
    gpus.iter().map(of).sum()
}

fn tres(cpus: u32, memory: u64, nodes: u32, gpu_milli: u64) -> String {
    let mut parts = vec![format!("cpu={cpus}")];
    if memory > 0 {
        parts.push(format!("mem={}", words::memory(memory)));
    }
    parts.push(format!("node={nodes}"));
    parts.push(format!("billing={cpus}"));
    if gpu_milli > 0 {
        parts.push(format!("gres/gpu={}", units::thousandths(gpu_milli)));
    }
    parts.join(",")
}

fn absolute(dir: &str, file: &str) -> String {
    if file.is_empty() || file.starts_with('/') || dir.is_empty() {
        return file.to_owned();
    }
    format!("{dir}/{file}")
}

fn seconds(millis: i64) -> u64 {
    u64::try_from(millis / 1_000).unwrap_or(0)
}

/// A user's number on this machine.
pub fn uid(user: &str) -> Option<u32> {
    let found = nix::unistd::User::from_name(user).ok()??;
    Some(found.uid.as_raw())
}

/// A user's primary group's number and name on this machine.
pub fn group(user: &str) -> Option<(u32, String)> {
    let found = nix::unistd::User::from_name(user).ok()??;
    let group = nix::unistd::Group::from_gid(found.gid).ok()??;
    Some((found.gid.as_raw(), group.name))
}

/// Names as a host list.
pub fn compressed(names: &[String]) -> String {
    let known: Vec<NodeName> = names.iter().filter_map(|name| name.parse().ok()).collect();
    if known.len() == names.len() {
        host_list::format(&known)
    } else {
        names.join(",")
    }
}

/// Reads names of jobs with commas between them: "12,13_4,14_[1-3,5]".
///
/// # Errors
/// One that is no job's.
pub fn names(text: &str) -> Result<Vec<JobRef>, String> {
    Ok(names_and_steps(text)?.into_iter().map(|(name, _)| name).collect())
}

/// The same, and of those that are steps which ones: "12.batch", "12.0".
///
/// # Errors
/// One that is no job's.
pub fn names_and_steps(text: &str) -> Result<Vec<(JobRef, Option<String>)>, String> {
    let mut in_brackets = false;
    let parts = text.split(|c: char| {
        in_brackets = c == '[' || (in_brackets && c != ']');
        (c == ',' || c.is_whitespace()) && !in_brackets
    });
    let parts = parts.map(str::trim).filter(|part| !part.is_empty());
    let named = parts.map(|part| match part.split_once('.') {
        Some((job, step)) => (job.parse::<JobRef>(), Some(step.to_owned())),
        None => (part.parse::<JobRef>(), None),
    });
    named
        .map(|(name, step)| Ok((name.map_err(|error| error.to_string())?, step)))
        .collect()
}

/// Jobs that wait or hold something, and on demand those that are over and still in memory.
pub async fn list(client: &mut Client, ended: bool) -> Result<Vec<Row>> {
    let request = v1::ListJobsRequest {
        all_users: true,
        ended,
    };
    let jobs = client.list_jobs(request).await?.into_inner().jobs;
    Ok(jobs.into_iter().map(Row::of).collect())
}

/// One job, wherever it is kept.
pub async fn get(client: &mut Client, name: &JobRef) -> Result<Row, tonic::Status> {
    Ok(Row::of(client.get_job(job_request(name)).await?.into_inner()))
}

/// Puts the queue's numbers to rows: priority, and with `start` when those that wait are to start.
pub async fn add_queue(client: &mut Client, rows: &mut [Row], start: bool) -> Result<()> {
    let request = v1::ListQueueRequest {
        start,
        ..v1::ListQueueRequest::default()
    };
    let queue = client.list_queue(request).await?.into_inner().jobs;
    let queue: std::collections::BTreeMap<u64, v1::QueuedJob> =
        queue.into_iter().map(|job| (job.id, job)).collect();
    for row in rows.iter_mut().filter(|row| row.state == JobState::Pending) {
        if let Some(queued) = queue.get(&row.id) {
            row.priority = queued.priority;
            row.start_ms = queued.start_ms;
        }
    }
    Ok(())
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A task of an array that runs on two nodes.
    pub fn runs() -> Row {
        let node = |name: &str| v1::NodeAllocation {
            node: name.to_owned(),
            gpus: vec![v1::Gpu::default(); 2],
            cpus: 4,
            memory_bytes: 1 << 30,
            ..v1::NodeAllocation::default()
        };
        Row::of(v1::Job {
            id: 14,
            name: "train".into(),
            user: "nobody-knows".into(),
            kind: v1::JobKind::Batch.into(),
            state: JobState::Running.into(),
            submitted_ms: 1_000_000,
            started_ms: Some(2_000_000),
            ended_ms: None,
            deadline_ms: Some(5_600_000),
            time_limit_s: 3_600,
            nodes: vec![node("n1"), node("n2")],
            host_use: Some(v1::HostUseInAll {
                sum: Some(v1::HostUse {
                    cpu_user_us: 90_500_000,
                    cpu_system_us: 9_541_000,
                    memory_bytes: 3 << 20,
                    memory_peak_bytes: 6 << 20,
                }),
                nodes: 2,
                memory_peak_bytes: (4 << 20) + 4_096,
                memory_peak_node: "n2".into(),
                memory_peak_rank: 1,
                cpu_least_us: 40_000_000,
                cpu_least_node: "n1".into(),
                cpu_least_rank: 0,
            }),
            request: Some(v1::ResourceRequest {
                nodes: 2,
                gpus_per_node: 2,
                cpus_per_node: 4,
                memory_bytes_per_node: 1 << 30,
                gpu_model: "h100".into(),
                ..v1::ResourceRequest::default()
            }),
            terms: Some(v1::Terms {
                account: "physics".into(),
                qos: "normal".into(),
                partition: "all".into(),
                ..v1::Terms::default()
            }),
            batch: Some(v1::Batch {
                script: true,
                workdir: "/home/a".into(),
                stdout: "o.txt".into(),
                ..v1::Batch::default()
            }),
            array: Some(v1::ArrayPart {
                array: 12,
                tasks: "3".into(),
                throttle: 5,
                count: 9,
                now: None,
            }),
            ..v1::Job::default()
        })
    }

    /// What waits of that array.
    pub fn waits() -> Row {
        Row {
            id: 12,
            state: JobState::Pending,
            said: "Resources: fewer than 2 free GPUs".into(),
            start_ms: None,
            started: false,
            nodes: Vec::new(),
            array: Some(v1::ArrayPart {
                array: 12,
                tasks: "4-8".into(),
                throttle: 5,
                count: 9,
                now: None,
            }),
            ..runs()
        }
    }

    #[test]
    fn jobs_have_the_names_that_slurm_gives_them() {
        let (runs, waits) = (runs(), waits());
        assert_eq!(
            (runs.label(), waits.label()),
            ("12_3".into(), "12_[4-8%5]".into())
        );
        assert_eq!((runs.array_id(), runs.task(), waits.task()), (12, Some(3), None));
        assert_eq!(
            waits
                .by_task()
                .iter()
                .map(Row::label)
                .collect::<Vec<_>>()
                .join(" "),
            "12_4 12_5 12_6 12_7 12_8"
        );
        assert_eq!(runs.batch_step().expect("it runs").label(), "12_3.batch");
        assert!(self::waits().batch_step().is_none());
    }

    #[test]
    fn a_name_means_a_job_or_what_waits_of_it() {
        let one = |text: &str| names(text).expect(text);
        for (text, by_runs, by_waits) in [
            ("12", true, true),
            ("14", true, false),
            ("12_3", true, false),
            ("12_[7-20]", false, true),
            ("13", false, false),
            ("12_3.batch", true, false),
        ] {
            assert_eq!(
                (runs().is(&one(text)[0]), waits().is(&one(text)[0])),
                (by_runs, by_waits),
                "{text}"
            );
        }
        assert_eq!(one("12_[3-7,9],14, 15").len(), 3);
        assert!(names("12,x").is_err());
        let steps: Vec<_> = names_and_steps("12,14_3.batch,12_[1,2].0")
            .expect("names")
            .into_iter()
            .map(|(_, step)| step)
            .collect();
        assert_eq!(steps, [None, Some("batch".to_owned()), Some("0".to_owned())]);
    }

    #[test]
    fn what_a_job_has_is_said_in_slurm_s_words() {
        let runs = runs();
        assert_eq!(runs.node_list(), "n[1-2]");
        assert_eq!(runs.allocated_tres(), "cpu=8,mem=2G,node=2,billing=8,gres/gpu=4");
        assert_eq!(runs.tres_per_node(), "gres/gpu:h100:2");
        assert_eq!(waits().nodes_or_reason(), "(Resources)");
        assert_eq!(runs.stdout(), "/home/a/o.txt");
        assert_eq!(runs.stderr(), "/home/a/o.txt");
    }
}
