//! `squeue`: jobs that wait, run or have just ended.

use std::cmp::Ordering;
use std::time::Duration;

use carrel_proto::v1::JobState;

use super::format::{self, Field, Layout, Part};
use super::job::{self, NULL, Row};
use super::options::Takes::{Nothing, Perhaps, Value};
use super::options::{Given, NO_MORE_TALK, NONE, ONE_CLUSTER, Usage, noted, refused, taken, used};
use super::{Called, json, words};
use crate::error::{CliError, Result};
use crate::{output, view};

/// The command.
pub const USAGE: Usage = Usage {
    name: "squeue",
    line: "[OPTIONS]",
    about: "Lists jobs that wait and run.",
    options: &[
        used('A', "account", Value, "on these accounts"),
        taken('a', "all", Nothing, "no partition is hidden"),
        used('r', "array", Nothing, "a line for each task of an array"),
        noted(
            NONE,
            "array-unique",
            Nothing,
            "tasks that wait stand in one line without it",
        ),
        taken(NONE, "federation", Nothing, ONE_CLUSTER),
        used('o', "format", Value, "what is shown: \"%.18i %.9P %R\""),
        used('O', "Format", Value, "the same by long names: jobid:10,state"),
        used(NONE, "help", Nothing, "this text"),
        taken(NONE, "hide", Nothing, "no partition is hidden"),
        used('i', "iterate", Value, "again every so many seconds"),
        used('j', "jobs", Perhaps, "these jobs: 12,13_4"),
        used(NONE, "json", Perhaps, "as JSON, with Slurm's names"),
        refused('L', "licenses", Value, "there are no licenses"),
        taken(NONE, "local", Nothing, ONE_CLUSTER),
        used('l', "long", Nothing, "more of each"),
        taken('M', "clusters", Value, ONE_CLUSTER),
        used(NONE, "me", Nothing, "one's own"),
        used('n', "name", Value, "of these names"),
        used('h', "noheader", Nothing, "no header"),
        used(NONE, "noconvert", Nothing, "units are as they are"),
        used('w', "nodelist", Value, "on these nodes"),
        used(NONE, "notme", Nothing, "others'"),
        taken(NONE, "only-job-state", Nothing, "everything is known"),
        used('p', "partition", Value, "in these partitions"),
        taken('P', "priority", Nothing, "a job is in one partition"),
        used('q', "qos", Value, "with these QOS"),
        used('R', "reservation", Value, "in these reservations"),
        taken(NONE, "sibling", Nothing, ONE_CLUSTER),
        used('S', "sort", Value, "in this order: P,-p,i"),
        used(NONE, "start", Nothing, "when those that wait start"),
        used('t', "states", Value, "in these states: PD,R, or all"),
        refused('s', "step", Perhaps, "steps are not listed"),
        used(NONE, "usage", Nothing, "how it is called"),
        used('u', "user", Value, "of these users"),
        taken('v', "verbose", Nothing, NO_MORE_TALK),
        used('V', "version", Nothing, "the version"),
        refused(NONE, "yaml", Perhaps, "--json is there"),
    ],
};

const USUAL: &str = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R";
const LONG: &str = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R";
const START: &str = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %20Y %R";

/// Slurm's names for what there is to show.
pub const FIELDS: &[Field<Row>] = &[
    field('a', "Account", "ACCOUNT", |job| job.terms.account.clone()),
    field('A', "JobID", "JOBID", |job| job.id.to_string()),
    field('b', "tres-per-node", "TRES_PER_NODE", |job| {
        some(job.tres_per_node(), "N/A")
    }),
    field('B', "BatchHost", "EXEC_HOST", |job| {
        some(job.nodes.first().cloned().unwrap_or_default(), "n/a")
    }),
    field('c', "MinCpus", "MIN_CPUS", |job| {
        job.request.cpus_per_node.max(1).to_string()
    }),
    field('C', "NumCPUs", "CPUS", |job| job.cpu_count().to_string()),
    field('d', "MinTmpDisk", "MIN_TMP_DISK", |_| "0".to_owned()),
    field('D', "NumNodes", "NODES", |job| job.node_count().to_string()),
    field('e', "EndTime", "END_TIME", |job| words::stamp_or(end(job), "N/A")),
    field('E', "Dependency", "DEPENDENCY", dependency),
    field('f', "Feature", "FEATURES", |job| some(features(job), NULL)),
    field('F', "ArrayJobID", "ARRAY_JOB_ID", |job| {
        job.array_id().to_string()
    }),
    field('g', "GroupName", "GROUP", |job| {
        job::group(&job.user).map_or_else(|| "N/A".to_owned(), |found| found.1)
    }),
    field('G', "GroupID", "GROUP", |job| {
        job::group(&job.user).map_or_else(|| "N/A".to_owned(), |found| found.0.to_string())
    }),
    field('h', "OverSubscribe", "OVER_SUBSCRIBE", |job| {
        words::over_subscribe(&job.request).to_owned()
    }),
    field('H', "Sockets", "SOCKETS_PER_NODE", |_| "*".to_owned()),
    field('i', "JobArrayID", "JOBID", Row::label),
    field('I', "Cores", "CORES_PER_SOCKET", |_| "*".to_owned()),
    field('j', "Name", "NAME", |job| job.name.clone()),
    field('J', "Threads", "THREADS_PER_CORE", |_| "*".to_owned()),
    field('k', "Comment", "COMMENT", |job| {
        some(job.what.comment.clone(), NULL)
    }),
    field('K', "ArrayTaskID", "ARRAY_TASK_ID", |job| {
        some(job.tasks(), "N/A")
    }),
    field('l', "TimeLimit", "TIME_LIMIT", |job| words::clock(job.limit_s)),
    field('L', "TimeLeft", "TIME_LEFT", |job| {
        words::clock(job.left_s().unwrap_or(job.limit_s))
    }),
    field('m', "MinMemory", "MIN_MEMORY", |job| {
        words::memory(job.memory_per_node())
    }),
    field('M', "TimeUsed", "TIME", |job| words::clock(job.elapsed_s)),
    field('n', "ReqNodes", "REQ_NODES", |job| {
        constraint(job, |of| of.nodelist.clone())
    }),
    field('N', "NodeList", "NODELIST", Row::node_list),
    field('o', "Command", "COMMAND", Row::command),
    field('O', "Contiguous", "CONTIGUOUS", |_| "0".to_owned()),
    field('p', "Priority", "PRIORITY", |job| {
        format!("{:.10}", job.priority.unwrap_or(0) as f64 / f64::from(u32::MAX))
    }),
    field('P', "Partition", "PARTITION", |job| job.terms.partition.clone()),
    field('q', "QOS", "QOS", |job| job.terms.qos.clone()),
    field('Q', "PriorityLong", "PRIORITY", |job| {
        job.priority.unwrap_or(0).to_string()
    }),
    field('r', "Reason", "REASON", Row::reason),
    field('R', "ReasonList", "NODELIST(REASON)", Row::nodes_or_reason),
    field('s', "SelectJobInfo", "SELECT_JOBINFO", |_| String::new()),
    field('S', "StartTime", "START_TIME", |job| {
        words::stamp_or(job.start_ms, "N/A")
    }),
    field('t', "StateCompact", "ST", |job| {
        words::short_state(job.state).to_owned()
    }),
    field('T', "State", "STATE", |job| view::job_state(job.state).to_owned()),
    field('u', "UserName", "USER", |job| job.user.clone()),
    field('U', "UserID", "USER", |job| {
        job.uid().map_or_else(|| "N/A".to_owned(), |uid| uid.to_string())
    }),
    field('v', "Reservation", "RESERVATION", |job| {
        some(job.terms.reservation.clone(), NULL)
    }),
    field('V', "SubmitTime", "SUBMIT_TIME", |job| {
        words::stamp(job.submitted_ms)
    }),
    field('w', "WCKey", "WCKEY", |_| NULL.to_owned()),
    field('W', "Licenses", "LICENSES", |_| NULL.to_owned()),
    field('x', "ExcNodes", "EXC_NODES", |job| {
        constraint(job, |of| of.exclude.clone())
    }),
    field('X', "CoreSpec", "CORE_SPEC", |_| "N/A".to_owned()),
    field('y', "Nice", "NICE", |job| job.terms.nice.to_string()),
    field('Y', "SchedNodes", "SCHEDNODES", |_| NULL.to_owned()),
    field('z', "SCT", "S:C:T", |_| "*:*:*".to_owned()),
    field('Z', "WorkDir", "WORK_DIR", |job| job.what.workdir.clone()),
    field(NONE, "tres-alloc", "TRES_ALLOC", |job| {
        some(job.allocated_tres(), "N/A")
    }),
    field(NONE, "tres", "TRES", |job| some(job.allocated_tres(), "N/A")),
    field(NONE, "Gres", "GRES", |job| some(job.tres_per_node(), "N/A")),
    field(NONE, "tres-per-job", "TRES_PER_JOB", |_| "N/A".to_owned()),
    field(NONE, "tres-per-task", "TRES_PER_TASK", |_| "N/A".to_owned()),
    field(NONE, "NumTasks", "TASKS", |job| job.node_count().to_string()),
    field(NONE, "cpus-per-task", "CPUS_PER_TASK", |_| "N/A".to_owned()),
    field(NONE, "STDOUT", "STDOUT", Row::stdout),
    field(NONE, "STDERR", "STDERR", Row::stderr),
    field(NONE, "STDIN", "STDIN", |_| "/dev/null".to_owned()),
    field(NONE, "exit_code", "EXIT_CODE", |job| {
        job.exit_code.unwrap_or(0).to_string()
    }),
    field(NONE, "RestartCnt", "RESTART_COUNT", |job| {
        job.restarts.to_string()
    }),
    field(NONE, "Requeue", "REQUEUE", |job| {
        u8::from(job.what.requeue).to_string()
    }),
    field(NONE, "BatchFlag", "BATCH_FLAG", |job| {
        u8::from(job.batch).to_string()
    }),
    field(NONE, "AllocNodes", "ALLOC_NODES", |job| {
        some(job.what.submit_host.clone(), NULL)
    }),
    field(NONE, "EligibleTime", "ELIGIBLE_TIME", |job| {
        words::stamp(job.submitted_ms)
    }),
    field(NONE, "AccrueTime", "ACCRUE_TIME", |job| {
        words::stamp(job.submitted_ms)
    }),
    field(NONE, "PreemptTime", "PREEMPT_TIME", |_| "N/A".to_owned()),
    field(NONE, "Deadline", "DEADLINE", |_| "N/A".to_owned()),
    field(NONE, "MaxCpus", "MAX_CPUS", |_| "0".to_owned()),
    field(NONE, "MaxNodes", "MAX_NODES", |_| "0".to_owned()),
    field(NONE, "PendingTime", "PENDING_TIME", |job| {
        let until = job
            .start_ms
            .filter(|_| job.started)
            .unwrap_or_else(crate::times::now_ms);
        ((until - job.submitted_ms).max(0) / 1_000).to_string()
    }),
    field(NONE, "Cluster", "CLUSTER", |_| "N/A".to_owned()),
    field(NONE, "Container", "CONTAINER", |job| job.image.clone()),
    field(NONE, "AdminComment", "ADMIN_COMMENT", |_| NULL.to_owned()),
    field(NONE, "AllocSID", "ALLOC_SID", |_| "0".to_owned()),
    field(NONE, "AssocID", "ASSOCID", |_| "N/A".to_owned()),
    field(NONE, "BoardsPerNode", "BOARDS_PER_NODE", |_| "*".to_owned()),
    field(NONE, "BurstBuffer", "BURST_BUFFER", |_| NULL.to_owned()),
    field(NONE, "BurstBufferState", "BURST_BUFFER_STATE", |_| String::new()),
    field(NONE, "ClusterFeature", "CLUSTER_FEATURES", |_| NULL.to_owned()),
    field(NONE, "ContainerID", "CONTAINER_ID", |_| String::new()),
    field(NONE, "CPUFreq", "CPUFREQ", |_| "N/A".to_owned()),
    field(NONE, "cpus-per-tres", "CPUS_PER_TRES", |_| "N/A".to_owned()),
    field(NONE, "DelayBoot", "DELAY_BOOT", |_| "0:00".to_owned()),
    field(NONE, "DerivedEC", "DERIVED_EXIT_CODE", |_| "0".to_owned()),
    field(NONE, "HetJobID", "HET_JOB_ID", |_| "N/A".to_owned()),
    field(NONE, "HetJobIDSet", "HET_JOB_ID_SET", |_| "N/A".to_owned()),
    field(NONE, "HetJobOffset", "HET_JOB_OFFSET", |_| "N/A".to_owned()),
    field(NONE, "LastSchedEval", "LAST_SCHED_EVAL", |_| "N/A".to_owned()),
    field(NONE, "MCSLabel", "MCSLABEL", |_| "N/A".to_owned()),
    field(NONE, "mem-per-tres", "MEM_PER_TRES", |_| "N/A".to_owned()),
    field(NONE, "MinTime", "MIN_TIME", |_| "N/A".to_owned()),
    field(NONE, "Network", "NETWORK", |_| NULL.to_owned()),
    field(NONE, "NTPerBoard", "NTASKS_PER_BOARD", |_| "*".to_owned()),
    field(NONE, "NTPerCore", "NTASKS_PER_CORE", |_| "*".to_owned()),
    field(NONE, "NTPerNode", "NTASKS_PER_NODE", |_| "*".to_owned()),
    field(NONE, "NTPerSocket", "NTASKS_PER_SOCKET", |_| "*".to_owned()),
    field(NONE, "Origin", "ORIGIN", |_| "N/A".to_owned()),
    field(NONE, "OriginRaw", "ORIGIN", |_| "N/A".to_owned()),
    field(NONE, "Prefer", "PREFER", |_| NULL.to_owned()),
    field(NONE, "Profile", "PROFILE", |_| String::new()),
    field(NONE, "Reboot", "REBOOT", |_| "0".to_owned()),
    field(NONE, "ReqSwitch", "REQ_SWITCH", |_| "0".to_owned()),
    field(NONE, "ResizeTime", "RESIZE_TIME", |_| "N/A".to_owned()),
    field(NONE, "ResvPort", "RESV_PORTS", |_| "0".to_owned()),
    field(NONE, "SiblingsActive", "ACTIVE_SIBLINGS", |_| "N/A".to_owned()),
    field(NONE, "SiblingsActiveRaw", "ACTIVE_SIBLINGS", |_| "N/A".to_owned()),
    field(NONE, "SiblingsViable", "VIALBLE_SIBLINGS", |_| "N/A".to_owned()),
    field(NONE, "SiblingsViableRaw", "VIALBLE_SIBLINGS", |_| {
        "N/A".to_owned()
    }),
    field(NONE, "SPerBoard", "SOCKETS_PER_BOARD", |_| "*".to_owned()),
    field(NONE, "system_comment", "SYSTEM_COMMENT", |_| NULL.to_owned()),
    field(NONE, "tres-bind", "TRES_BIND", |_| "N/A".to_owned()),
    field(NONE, "tres-freq", "TRES_FREQ", |_| "N/A".to_owned()),
    field(NONE, "tres-per-socket", "TRES_PER_SOCKET", |_| "N/A".to_owned()),
    field(NONE, "tres-per-step", "TRES_PER_STEP", |_| "N/A".to_owned()),
    field(NONE, "Wait4Switch", "WAIT4SWITCH", |_| "0".to_owned()),
    field(NONE, "Nodes", "NODELIST", Row::node_list),
];

const fn field(
    letter: char,
    name: &'static str,
    header: &'static str,
    value: fn(&Row) -> String,
) -> Field<Row> {
    Field {
        letter: if letter == NONE { None } else { Some(letter) },
        name,
        header,
        width: 0,
        value,
    }
}

fn some(text: String, none: &str) -> String {
    if text.is_empty() { none.to_owned() } else { text }
}

fn constraint(job: &Row, of: fn(&carrel_proto::v1::NodeConstraints) -> String) -> String {
    job.request.constraints.as_ref().map(of).unwrap_or_default()
}

fn features(job: &Row) -> String {
    constraint(job, |of| of.features.clone())
}

/// When it ended, or ends at the latest.
pub fn end(job: &Row) -> Option<i64> {
    job.ended_ms.or(job.deadline_ms).or_else(|| {
        let limit = i64::try_from(job.limit_s).ok()?;
        job.start_ms.map(|start| start + limit * 1_000)
    })
}

/// Jobs that it waits for, as far as its reason names one.
pub fn dependency(job: &Row) -> String {
    let Some(rest) = job.said.strip_prefix("Dependency: it waits for job ") else {
        return NULL.to_owned();
    };
    match rest.trim_end_matches(')').split_once(" (") {
        Some((on, kind)) => format!("{kind}:{on}(unfulfilled)"),
        None => NULL.to_owned(),
    }
}

/// Runs it.
pub async fn run(called: &Called, mut given: Given) -> Result<u8> {
    from_environment(&mut given);
    let every = given.value("iterate").map(|text| {
        let seconds = text.parse::<u64>().ok().filter(|seconds| *seconds > 0);
        seconds.ok_or_else(|| USAGE.wrong(&format!("--iterate={text} is no number of seconds")))
    });
    let every = every.transpose()?;
    loop {
        once(called, &given).await?;
        match every {
            None => return Ok(0),
            Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
        }
    }
}

/// What `man squeue` lists under ENVIRONMENT VARIABLES.
fn from_environment(given: &mut Given) {
    let formats = given.has("format") || given.has("Format");
    for (variable, long) in [
        ("SQUEUE_ACCOUNT", "account"),
        ("SQUEUE_ARRAY", "array"),
        ("SQUEUE_FORMAT", "format"),
        ("SQUEUE_FORMAT2", "Format"),
        ("SQUEUE_NAMES", "name"),
        ("SQUEUE_PARTITION", "partition"),
        ("SQUEUE_QOS", "qos"),
        ("SQUEUE_SORT", "sort"),
        ("SQUEUE_STATES", "states"),
        ("SQUEUE_USERS", "user"),
    ] {
        let is_format = long.eq_ignore_ascii_case("format");
        if let Some(value) = std::env::var(variable).ok().filter(|value| !value.is_empty())
            && !given.has(long)
            && !(is_format && (formats || given.has("long") || given.has("start")))
        {
            given.set(long, &value);
        }
    }
}

async fn once(called: &Called, given: &Given) -> Result<()> {
    let layout = layout(given)?;
    let wanted = Wanted::of(given)?;
    let mut client = called.context.client().await?;
    let mut rows = job::list(&mut client, wanted.ended).await?;
    if let [only] = wanted.jobs.as_slice()
        && !rows.iter().any(|row| row.is(only))
        && !wanted.ended
        && let Err(status) = job::get(&mut client, only).await
        && status.code() == tonic::Code::NotFound
    {
        return Err(CliError::failed(super::NO_SUCH_JOB));
    }
    rows.retain(|row| wanted.takes(row));
    job::add_queue(&mut client, &mut rows, given.has("start") || given.has("json")).await?;
    if given.has("start") {
        rows.retain(|row| row.state == JobState::Pending);
    }
    if given.has("array") {
        rows = rows.into_iter().flat_map(Row::by_task).collect();
    }
    sort(&mut rows, given.value("sort").unwrap_or("P,t,-p"))?;
    if given.has("json") {
        return output::json(&json::queue(&rows));
    }
    let mut text = String::new();
    if !given.has("noheader") {
        text += &format::line(&layout, None);
    }
    text.extend(rows.iter().map(|row| format::line(&layout, Some(row))));
    output::text(text)
}

fn layout(given: &Given) -> Result<Layout<Row>> {
    if given.place("Format") > given.place("format") {
        return format::long(given.value("Format").unwrap_or_default(), FIELDS);
    }
    let text = match given.value("format") {
        Some(text) => text,
        None if given.has("start") => START,
        None if given.has("long") => LONG,
        None => USUAL,
    };
    format::letters(text, FIELDS)
}

/// Which jobs are wanted; what is empty is no condition.
struct Wanted {
    jobs: Vec<carrel_core::model::array::JobRef>,
    users: Vec<String>,
    not_user: Option<String>,
    accounts: Vec<String>,
    partitions: Vec<String>,
    qos: Vec<String>,
    names: Vec<String>,
    reservations: Vec<String>,
    nodes: Vec<String>,
    /// None: in any.
    states: Option<Vec<JobState>>,
    /// Those that are over are among them.
    ended: bool,
}

impl Wanted {
    fn of(given: &Given) -> Result<Self> {
        let states = match given.value("states") {
            Some(_) => words::states(&given.list("states"))?,
            None => Some(
                words::STATES
                    .iter()
                    .map(|(state, _)| *state)
                    .filter(|state| words::is_live(*state))
                    .collect(),
            ),
        };
        let mut users: Vec<String> = given
            .list("user")
            .iter()
            .map(|user| super::user_name(user))
            .collect();
        if given.has("me") {
            users.push(Called::user()?);
        }
        let mut jobs = job::names(&given.all("jobs"))
            .map_err(|error| USAGE.wrong(&format!("Invalid job id: {error}")))?;
        // As an option's value it stands behind a blank, too.
        for word in &given.words {
            let more = job::names(word).ok().filter(|_| given.has("jobs"));
            jobs.extend(more.ok_or_else(|| USAGE.wrong(&format!("Unrecognized option: {word}")))?);
        }
        let nodes = given.value("nodelist").unwrap_or_default();
        Ok(Self {
            jobs,
            users,
            not_user: given.has("notme").then(Called::user).transpose()?,
            accounts: given.list("account"),
            partitions: given.list("partition"),
            qos: given.list("qos"),
            names: given.list("name"),
            reservations: given.list("reservation"),
            nodes: carrel_core::model::host_list::expanded(nodes)
                .map_err(|error| USAGE.wrong(&error.to_string()))?,
            ended: states
                .as_ref()
                .is_none_or(|states| states.iter().any(|state| !words::is_live(*state))),
            states,
        })
    }

    fn takes(&self, row: &Row) -> bool {
        let is = |wanted: &[String], own: &str| wanted.is_empty() || wanted.iter().any(|one| one == own);
        (self.jobs.is_empty() || self.jobs.iter().any(|name| row.is(name)))
            && is(&self.users, &row.user)
            && self.not_user.as_ref() != Some(&row.user)
            && is(&self.accounts, &row.terms.account)
            && is(&self.partitions, &row.terms.partition)
            && is(&self.qos, &row.terms.qos)
            && is(&self.names, &row.name)
            && is(&self.reservations, &row.terms.reservation)
            && (self.nodes.is_empty() || row.nodes.iter().any(|node| self.nodes.contains(node)))
            && self
                .states
                .as_ref()
                .is_none_or(|states| states.contains(&row.state))
    }
}

/// Orders rows by fields' letters, with '-' before one the other way round; what is equal by number.
fn sort(rows: &mut [Row], by: &str) -> Result<()> {
    let mut keys = Vec::new();
    for word in by.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let (down, letter) = match word.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, word.strip_prefix('+').unwrap_or(word)),
        };
        let layout = format::letters(&format!("%{letter}"), FIELDS)?;
        let [Part::Column(column)] = layout.as_slice() else {
            return Err(USAGE.wrong(&format!("Invalid sort specification: {word}")));
        };
        keys.push((column.field, down));
    }
    rows.sort_by(|a, b| {
        for (field, down) in &keys {
            let order = match field.letter {
                // By how far they are.
                Some('t' | 'T') => place(a.state).cmp(&place(b.state)),
                Some('p' | 'Q') => a.priority.cmp(&b.priority),
                _ => natural(&(field.value)(a), &(field.value)(b)),
            };
            match order {
                Ordering::Equal => {}
                order if *down => return order.reverse(),
                order => return order,
            }
        }
        a.array_id().cmp(&b.array_id()).then(a.id.cmp(&b.id))
    });
    Ok(())
}

fn place(state: JobState) -> usize {
    let found = words::STATES.iter().position(|(one, _)| *one == state);
    found.unwrap_or(words::STATES.len())
}

/// As numbers, where both are.
fn natural(a: &str, b: &str) -> Ordering {
    match (a.parse::<f64>(), b.parse::<f64>()) {
        (Ok(a), Ok(b)) => a.total_cmp(&b),
        _ => carrel_core::model::host_list::natural(a, b),
    }
}

#[cfg(test)]
mod tests {
    use super::super::job::tests::{runs, waits};
    use super::*;

    fn lines(format: &str, rows: &[Row]) -> String {
        let layout = format::letters(format, FIELDS).expect(format);
        let lines = std::iter::once(format::line(&layout, None));
        lines
            .chain(rows.iter().map(|row| format::line(&layout, Some(row))))
            .collect()
    }

    #[test]
    fn the_usual_columns_are_slurm_s() {
        let mut rows = [runs(), waits()];
        rows[0].elapsed_s = 3_605;
        rows[1].elapsed_s = 0;
        insta::assert_snapshot!(lines(USUAL, &rows), @r"
                     JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)
                      12_3       all    train nobody-k  R    1:00:05      2 n[1-2]
                12_[4-8%5]       all    train nobody-k PD       0:00      2 (Resources)
        ");
    }

    #[test]
    fn what_drivers_ask_for_is_there() {
        // nextflow, parsl, snakemake, dask-jobqueue's wrappers.
        assert_eq!(lines("%i %t", &[runs()]), "JOBID ST\n12_3 R\n");
        assert_eq!(
            lines("%F_%K|%A|%Q|%C|%m|%b|%l|%a|%q|%o", &[waits()]),
            "ARRAY_JOB_ID_ARRAY_TASK_ID|JOBID|PRIORITY|CPUS|MIN_MEMORY|TRES_PER_NODE|TIME_LIMIT|ACCOUNT|QOS|COMMAND\n\
             12_4-8%5|12|0|8|1G|gres/gpu:h100:2|1:00:00|physics|normal|train\n"
        );
        let long = format::long("JobArrayID:.12,StateCompact:4,ReasonList:0", FIELDS).expect("read");
        assert_eq!(
            format::line(&long, Some(&waits())),
            "  12_[4-8%5]PD  (Resources)\n"
        );
    }

    #[test]
    fn each_letter_and_name_stands_for_one_thing() {
        let letters: std::collections::BTreeSet<char> =
            FIELDS.iter().filter_map(|field| field.letter).collect();
        assert_eq!(
            letters.len(),
            FIELDS.iter().filter(|field| field.letter.is_some()).count()
        );
        let names: std::collections::BTreeSet<&str> = FIELDS.iter().map(|field| field.name).collect();
        assert_eq!(names.len(), FIELDS.len());
    }

    #[test]
    fn rows_are_sorted_by_what_is_asked_for() {
        let ids = |by: &str| {
            let mut rows = vec![
                runs(),
                waits(),
                Row {
                    id: 2,
                    array: None,
                    ..runs()
                },
            ];
            sort(&mut rows, by).expect(by);
            rows.iter().map(|row| row.id).collect::<Vec<_>>()
        };
        assert_eq!(ids("t"), [12, 2, 14]);
        assert_eq!(ids("-A"), [14, 12, 2]);
        assert_eq!(ids("P,-t,i"), [2, 14, 12]);
        assert!(sort(&mut [], "nonsense").is_err());
    }
}
