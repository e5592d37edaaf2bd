//! `sacct`: jobs that are over, and those that wait and run.

use std::collections::BTreeSet;

use carrel_core::model::array::JobRef;
use carrel_proto::v1;

use super::format::{self, Field, Style};
use super::job::{self, Row};
use super::options::Takes::{Nothing, Perhaps, Value};
use super::options::{Given, NO_MORE_TALK, NONE, ONE_CLUSTER, Usage, noted, refused, taken, used};
use super::{Called, json, user_name, words};
use crate::connect::Client;
use crate::error::Result;
use crate::{output, times};

/// The command.
pub const USAGE: Usage = Usage {
    name: "sacct",
    line: "[OPTIONS]",
    about: "Lists jobs of the history, one's own since midnight (UTC) where nothing else is said.",
    options: &[
        used('A', "accounts", Value, "on these accounts"),
        used('a', "allusers", Nothing, "everybody's; for operators"),
        used('X', "allocations", Nothing, "jobs alone, without their steps"),
        taken(
            NONE,
            "array",
            Nothing,
            "each task that has started has a line of its own",
        ),
        refused('B', "batch-script", Nothing, "scripts are not kept for that"),
        used('b', "brief", Nothing, "JobID, State, ExitCode"),
        refused('C', "cluster-constraints", Value, ONE_CLUSTER),
        taken('M', "clusters", Value, ONE_CLUSTER),
        refused('c', "completion", Nothing, "there is one history"),
        taken('D', "duplicates", Nothing, "a job has one line"),
        used(NONE, "delimiter", Value, "between fields, with -p and -P"),
        used('E', "endtime", Value, "not what was submitted later"),
        refused(NONE, "env-vars", Nothing, "variables are not kept for that"),
        taken(NONE, "expand-patterns", Nothing, "they are"),
        taken(NONE, "federation", Nothing, ONE_CLUSTER),
        refused('f', "file", Value, "the history is the broker's"),
        noted('F', "flags", Value, "jobs are not told apart by them"),
        used('o', "format", Value, "what is shown: JobID%20,State"),
        refused('g', "gid", Value, "--user names whom"),
        refused(NONE, "group", Value, "--user names whom"),
        used('h', "help", Nothing, "this text"),
        used('e', "helpformat", Nothing, "what there is to show"),
        used('j', "jobs", Value, "these jobs: 12,13_4, whenever they were"),
        used(NONE, "json", Perhaps, "as JSON, with Slurm's names"),
        taken('L', "allclusters", Nothing, ONE_CLUSTER),
        used('l', "long", Nothing, "more of each"),
        taken(NONE, "local", Nothing, ONE_CLUSTER),
        used(NONE, "name", Value, "of these names"),
        used('i', "nnodes", Value, "on so many nodes: 2, 2-4"),
        used('I', "ncpus", Value, "on so many CPUs"),
        used(NONE, "noconvert", Nothing, "measured memory in bytes"),
        used('N', "nodelist", Value, "on these nodes"),
        used('n', "noheader", Nothing, "no header"),
        used('p', "parsable", Nothing, "'|' behind each field"),
        used('P', "parsable2", Nothing, "'|' between fields"),
        used('r', "partition", Value, "in these partitions"),
        used('q', "qos", Value, "with these QOS"),
        used(
            'S',
            "starttime",
            Value,
            "not what was over before: now-1day, 2026-11-22",
        ),
        used('s', "state", Value, "in these states: F,TO"),
        used('K', "timelimit-max", Value, "with a time limit up to this"),
        used(
            'k',
            "timelimit-min",
            Value,
            "with a time limit of this, or from this on",
        ),
        noted('T', "truncate", Nothing, "times are as they were"),
        used(
            NONE,
            "units",
            Value,
            "measured memory in this unit: K, M, G, T, P",
        ),
        used(NONE, "uid", Value, "of these users, by number"),
        used('U', "usage", Nothing, "how it is called"),
        used('u', "user", Value, "of these users; another's for operators"),
        taken(NONE, "use-local-uid", Nothing, "names are this machine's"),
        taken('v', "verbose", Nothing, NO_MORE_TALK),
        used('V', "version", Nothing, "the version"),
        refused('W', "wckeys", Value, "use is counted on accounts"),
        noted('x', "associations", Value, "associations have no numbers"),
        refused(NONE, "yaml", Perhaps, "--json is there"),
    ],
};

const USUAL: &str = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode";
const BRIEF: &str = "JobID,State,ExitCode";
const LONG: &str = "JobID,JobIDRaw,JobName,Partition,MaxRSS,MaxRSSNode,MaxRSSTask,AveRSS,MinCPU,MinCPUNode,MinCPUTask,\
    AveCPU,NTasks,AllocCPUS,Elapsed,State,ExitCode,ReqMem,AllocTRES,NodeList";
/// Jobs of one answer.
const PAGE: u32 = 500;

const fn field(name: &'static str, width: i32, value: fn(&Row) -> String) -> Field<Row> {
    Field {
        letter: None,
        name,
        header: name,
        width,
        value,
    }
}

const fn unknown(name: &'static str) -> Field<Row> {
    field(name, 10, |_| String::new())
}

/// What there is to show. What is not measured is empty, as in Slurm without its accounting.
pub const FIELDS: &[Field<Row>] = &[
    field("Account", 10, |job| job.terms.account.clone()),
    unknown("AdminComment"),
    field("AllocCPUS", 10, |job| job.cpus.to_string()),
    field("AllocNodes", 10, |job| job.nodes.len().to_string()),
    field("AllocTRES", 10, Row::allocated_tres),
    unknown("AssocID"),
    field("AveCPU", 10, Row::average_cpu),
    unknown("AveCPUFreq"),
    unknown("AveDiskRead"),
    unknown("AveDiskWrite"),
    unknown("AvePages"),
    field("AveRSS", 10, Row::average_rss),
    unknown("AveVMSize"),
    unknown("BlockID"),
    field("Cluster", 10, |_| "carrel".to_owned()),
    field("Comment", 10, |job| {
        if job.step {
            String::new()
        } else {
            job.what.comment.clone()
        }
    }),
    unknown("Constraints"),
    unknown("ConsumedEnergy"),
    unknown("ConsumedEnergyRaw"),
    field("Container", 20, |job| job.image.clone()),
    field("CPUTime", 10, |job| words::long_clock(cpu_seconds(job))),
    field("CPUTimeRAW", 10, |job| cpu_seconds(job).to_string()),
    unknown("DBIndex"),
    field("DerivedExitCode", 15, |_| "0:0".to_owned()),
    field("Elapsed", 10, |job| words::long_clock(job.elapsed_s)),
    field("ElapsedRaw", 10, |job| job.elapsed_s.to_string()),
    field("Eligible", 19, |job| words::stamp(job.submitted_ms)),
    field("End", 19, |job| words::stamp_or(job.ended_ms, "Unknown")),
    field("ExitCode", 8, |job| {
        let (code, signal) = words::exit_code(job.state, job.exit_code);
        format!("{code}:{signal}")
    }),
    unknown("Extra"),
    unknown("FailedNode"),
    field("Flags", 20, |_| String::new()),
    field("GID", 6, |job| {
        job::group(&job.user).map_or_else(String::new, |found| found.0.to_string())
    }),
    field("Group", 9, |job| {
        job::group(&job.user).map_or_else(String::new, |found| found.1)
    }),
    field("JobID", 12, Row::label),
    field("JobIDRaw", 12, |job| {
        if job.step {
            format!("{}.batch", job.id)
        } else {
            job.id.to_string()
        }
    }),
    field("JobName", 10, |job| job.name.clone()),
    field("Layout", 9, |_| String::new()),
    unknown("Licenses"),
    unknown("MaxDiskRead"),
    unknown("MaxDiskReadNode"),
    unknown("MaxDiskReadTask"),
    unknown("MaxDiskWrite"),
    unknown("MaxDiskWriteNode"),
    unknown("MaxDiskWriteTask"),
    unknown("MaxPages"),
    unknown("MaxPagesNode"),
    unknown("MaxPagesTask"),
    field("MaxRSS", 10, Row::max_rss),
    field("MaxRSSNode", 10, Row::max_rss_node),
    field("MaxRSSTask", 10, Row::max_rss_task),
    unknown("MaxVMSize"),
    unknown("MaxVMSizeNode"),
    unknown("MaxVMSizeTask"),
    unknown("McsLabel"),
    field("MinCPU", 10, Row::min_cpu),
    field("MinCPUNode", 10, Row::min_cpu_node),
    field("MinCPUTask", 10, Row::min_cpu_task),
    field("NCPUS", 10, |job| job.cpus.to_string()),
    field("NNodes", 8, |job| job.node_count().to_string()),
    field("NodeList", 15, |job| {
        if job.nodes.is_empty() {
            "None assigned".to_owned()
        } else {
            job.node_list()
        }
    }),
    field("NTasks", 8, |job| {
        if job.step {
            job.node_count().to_string()
        } else {
            String::new()
        }
    }),
    field("Partition", 10, |job| {
        if job.step {
            String::new()
        } else {
            job.terms.partition.clone()
        }
    }),
    field("Planned", 10, |job| words::long_clock(waited_s(job))),
    field("PlannedCPU", 10, |job| {
        words::long_clock(waited_s(job) * u64::from(job.cpu_count()))
    }),
    field("PlannedCPURAW", 10, |job| {
        (waited_s(job) * u64::from(job.cpu_count())).to_string()
    }),
    field("Priority", 10, |job| {
        job.priority.map_or_else(String::new, |points| points.to_string())
    }),
    field("QOS", 10, |job| {
        if job.step {
            String::new()
        } else {
            job.terms.qos.clone()
        }
    }),
    unknown("QOSRAW"),
    unknown("QOSREQ"),
    field(
        "Reason",
        22,
        |job| if job.step { String::new() } else { job.reason() },
    ),
    unknown("ReqCPUFreq"),
    unknown("ReqCPUFreqGov"),
    unknown("ReqCPUFreqMax"),
    unknown("ReqCPUFreqMin"),
    field("ReqCPUS", 8, |job| job.cpu_count().to_string()),
    field("ReqMem", 10, |job| {
        if job.step {
            String::new()
        } else {
            words::memory(job.memory_per_node())
        }
    }),
    field("ReqNodes", 8, |job| job.node_count().to_string()),
    field("ReqTRES", 10, |job| {
        if job.step {
            String::new()
        } else {
            job.requested_tres()
        }
    }),
    field("Reservation", 20, |job| job.terms.reservation.clone()),
    unknown("ReservationId"),
    field("Reserved", 10, |job| words::long_clock(waited_s(job))),
    field("Restarts", 8, |job| job.restarts.to_string()),
    field("Start", 19, |job| {
        words::stamp_or(job.start_ms.filter(|_| job.started), "Unknown")
    }),
    field("State", 10, Row::state_by),
    unknown("StdErr"),
    unknown("StdIn"),
    unknown("StdOut"),
    field("Submit", 19, |job| words::stamp(job.submitted_ms)),
    field("SubmitLine", 20, |_| String::new()),
    field("Suspended", 10, |_| "00:00:00".to_owned()),
    field("SystemCPU", 10, Row::system_cpu),
    unknown("SystemComment"),
    field("Timelimit", 10, |job| {
        if job.step {
            String::new()
        } else {
            words::long_clock(job.limit_s)
        }
    }),
    field("TimelimitRaw", 10, |job| {
        if job.step {
            String::new()
        } else {
            (job.limit_s / 60).to_string()
        }
    }),
    field("TotalCPU", 10, Row::total_cpu),
    field("TRESUsageInAve", 10, Row::average_tres),
    field("TRESUsageInMax", 10, Row::max_tres),
    field("TRESUsageInMaxNode", 10, Row::max_tres_node),
    field("TRESUsageInMaxTask", 10, Row::max_tres_task),
    field("TRESUsageInMin", 10, Row::min_tres),
    field("TRESUsageInMinNode", 10, Row::min_tres_node),
    field("TRESUsageInMinTask", 10, Row::min_tres_task),
    field("TRESUsageInTot", 10, Row::total_tres),
    unknown("TRESUsageOutAve"),
    unknown("TRESUsageOutMax"),
    unknown("TRESUsageOutMaxNode"),
    unknown("TRESUsageOutMaxTask"),
    unknown("TRESUsageOutMin"),
    unknown("TRESUsageOutMinNode"),
    unknown("TRESUsageOutMinTask"),
    unknown("TRESUsageOutTot"),
    field("UID", 6, |job| {
        if job.step {
            String::new()
        } else {
            job.uid().map_or_else(String::new, |uid| uid.to_string())
        }
    }),
    field(
        "User",
        9,
        |job| if job.step { String::new() } else { job.user.clone() },
    ),
    field("UserCPU", 10, Row::user_cpu),
    unknown("WCKey"),
    unknown("WCKeyID"),
    field("WorkDir", 20, |job| {
        if job.step {
            String::new()
        } else {
            job.what.workdir.clone()
        }
    }),
];

fn cpu_seconds(job: &Row) -> u64 {
    job.elapsed_s * u64::from(job.cpus)
}

fn waited_s(job: &Row) -> u64 {
    let until = job
        .start_ms
        .filter(|_| job.started)
        .or(job.ended_ms)
        .unwrap_or_else(times::now_ms);
    u64::try_from((until - job.submitted_ms) / 1_000).unwrap_or(0)
}

/// Runs it.
pub async fn run(called: &Called, given: Given) -> Result<u8> {
    if given.has("helpformat") {
        let names: Vec<&str> = FIELDS.iter().map(|field| field.name).collect();
        return output::text(names.join("\n") + "\n").map(|()| 0);
    }
    if let Some(word) = given.words.first() {
        return Err(USAGE.wrong(&format!("Unrecognized argument: {word}")));
    }
    let columns = format::names(&shown(&given), FIELDS)?;
    let style = style(&given);
    let wanted = Wanted::of(&given)?;
    let units = units(&given)?;
    let mut client = called.context.client().await?;
    let mut rows = found(&mut client, &wanted.request).await?;
    rows.retain(|row| wanted.takes(row));
    for row in &mut rows {
        row.units = units;
    }
    // As they were submitted, the tasks of an array beside each other.
    rows.sort_by_key(|row| (row.array_id(), row.task().unwrap_or(u32::MAX), row.id));
    if given.has("json") {
        return output::json(&json::history(&rows)).map(|()| 0);
    }
    if !given.has("allocations") {
        rows = rows
            .into_iter()
            .flat_map(|row| {
                let step = row.batch_step();
                std::iter::once(row).chain(step)
            })
            .collect();
    }
    rows.retain(|row| wanted.means(row));
    output::text(format::table(&columns, &rows, &style, !given.has("noheader"))).map(|()| 0)
}

fn shown(given: &Given) -> Vec<String> {
    let usual = || match std::env::var("SACCT_FORMAT") {
        Ok(format) if !format.is_empty() => format,
        Ok(_) | Err(_) => USUAL.to_owned(),
    };
    let text = match (given.place("format"), given.place("brief"), given.place("long")) {
        (Some(_), _, _) => return with_usual(&given.list("format")),
        (None, Some(brief), long) if Some(brief) > long => BRIEF.to_owned(),
        (None, _, Some(_)) => LONG.to_owned(),
        (None, _, None) => usual(),
    };
    text.split(',').map(str::to_owned).collect()
}

/// "ALL" stands for every field.
fn with_usual(words: &[String]) -> Vec<String> {
    let all = || FIELDS.iter().map(|field| field.name.to_owned()).collect();
    let expand = |word: &String| match word.to_ascii_lowercase().as_str() {
        "all" => all(),
        _ => vec![word.clone()],
    };
    words.iter().flat_map(expand).collect()
}

/// As `--units` and `--noconvert` have it; the former is stronger.
pub fn units(given: &Given) -> Result<words::Units> {
    match given.value("units") {
        Some(unit) => words::Units::parse(unit),
        None if given.has("noconvert") => Ok(words::Units::Bytes),
        None => Ok(words::Units::Whole),
    }
}

/// As `--parsable`, `--parsable2` and `--delimiter` have it.
pub fn style(given: &Given) -> Style {
    let delimiter = given.value("delimiter").unwrap_or("|").to_owned();
    match (given.place("parsable"), given.place("parsable2")) {
        (None, None) => Style::Columns,
        (trailing, none) => Style::Parsable {
            delimiter,
            trailing: trailing > none,
        },
    }
}

/// What is asked for, and what this side looks at.
struct Wanted {
    request: v1::ListHistoryRequest,
    qos: Vec<String>,
    nodes: Vec<String>,
    node_counts: Option<(u64, u64)>,
    cpu_counts: Option<(u64, u64)>,
    limits: (u64, u64),
    /// Jobs, and steps of jobs, that are named; empty: none is.
    named: Vec<(JobRef, Option<String>)>,
}

impl Wanted {
    fn of(given: &Given) -> Result<Self> {
        let named = job::names_and_steps(&given.all("jobs"))
            .map_err(|error| USAGE.wrong(&format!("Invalid job id: {error}")))?;
        let now = times::now_ms();
        let states = words::states(&given.list("state"))?.filter(|_| given.has("state"));
        let until = match given.value("endtime") {
            Some(text) => words::time_gone_by(text)?,
            None => now,
        };
        let since = match given.value("starttime") {
            Some(text) => words::time_gone_by(text)?,
            None => times::midnight(now),
        };
        if since > until {
            return Err(USAGE.wrong("Start time is later than end time"));
        }
        let users: BTreeSet<String> = given
            .list("user")
            .iter()
            .chain(&given.list("uid"))
            .map(|user| user_name(user))
            .collect();
        let nodes = given.value("nodelist").unwrap_or_default();
        let minutes = |long: &str, none: u64| -> Result<u64> {
            given.value(long).map_or(Ok(none), |text| {
                let time = crate::units::parse_time(text)
                    .map_err(|rule| USAGE.wrong(&format!("--{long}: {rule}")))?;
                Ok(time.as_secs())
            })
        };
        let least = minutes("timelimit-min", 0)?;
        let most = minutes("timelimit-max", if least > 0 { least } else { u64::MAX })?;
        // Said, since the history leaves out what waits where nothing is.
        let all = words::STATES.iter().map(|(state, _)| *state);
        let states = states.unwrap_or_else(|| all.collect());
        Ok(Self {
            request: v1::ListHistoryRequest {
                since_ms: since,
                until_ms: until.saturating_add(1),
                all_users: given.has("allusers") && users.is_empty(),
                users: users.into_iter().collect(),
                accounts: given.list("accounts"),
                partitions: given.list("partition"),
                states: states.into_iter().map(Into::into).collect(),
                names: given.list("name"),
                ids: Vec::new(),
                limit: PAGE,
                after: String::new(),
                jobs: named.iter().map(|(job, _)| job.to_string()).collect(),
            },
            named,
            qos: given.list("qos"),
            nodes: carrel_core::model::host_list::expanded(nodes)
                .map_err(|error| USAGE.wrong(&error.to_string()))?,
            node_counts: span(given, "nnodes")?,
            cpu_counts: span(given, "ncpus")?,
            limits: (least, most),
        })
    }

    /// Whether a line is of what is named: who names a step means no other, and not its job.
    fn means(&self, row: &Row) -> bool {
        let is = |(job, step): &(JobRef, Option<String>)| match step {
            None => row.is(job),
            Some(step) => row.step && step == "batch" && row.is(job),
        };
        self.named.is_empty() || self.named.iter().any(is)
    }

    fn takes(&self, row: &Row) -> bool {
        let within = |span: Option<(u64, u64)>, count: u64| {
            span.is_none_or(|(least, most)| (least..=most).contains(&count))
        };
        (self.qos.is_empty() || self.qos.contains(&row.terms.qos))
            && (self.nodes.is_empty() || row.nodes.iter().any(|node| self.nodes.contains(node)))
            && within(self.node_counts, row.nodes.len() as u64)
            && within(self.cpu_counts, row.cpus.into())
            && (self.limits.0..=self.limits.1).contains(&row.limit_s)
    }
}

/// "2", "2-4".
fn span(given: &Given, long: &str) -> Result<Option<(u64, u64)>> {
    let Some(text) = given.value(long) else {
        return Ok(None);
    };
    let (least, most) = text.split_once('-').unwrap_or((text, text));
    match (least.parse(), most.parse()) {
        (Ok(least), Ok(most)) => Ok(Some((least, most))),
        _ => Err(USAGE.wrong(&format!(
            "--{long}={text} is no number, and no two with '-' between them"
        ))),
    }
}

async fn found(client: &mut Client, request: &v1::ListHistoryRequest) -> Result<Vec<Row>> {
    let mut request = request.clone();
    let mut rows = Vec::new();
    loop {
        let answer = client.list_history(request.clone()).await?.into_inner();
        rows.extend(answer.jobs.into_iter().map(Row::past));
        if answer.next.is_empty() {
            return Ok(rows);
        }
        request.after = answer.next;
    }
}

/// "RUNNING", for the JSON.
pub fn state_name(row: &Row) -> &'static str {
    row.state_name()
}

#[cfg(test)]
mod tests {
    use super::super::job::tests::{runs, waits};
    use super::super::options;
    use super::*;
    use carrel_proto::v1::JobState;

    fn read(line: &str) -> Given {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        options::parse(&USAGE, &words, false).expect(line)
    }

    fn listed(line: &str, rows: &[Row]) -> String {
        let given = read(line);
        let columns = format::names(&shown(&given), FIELDS).expect(line);
        format::table(&columns, rows, &style(&given), !given.has("noheader"))
    }

    #[test]
    fn what_submitit_reads_is_there() {
        let step = runs().batch_step().expect("it runs");
        assert_eq!(
            listed(
                "-o JobID,State,NodeList --parsable2 -j 1 -j 2",
                &[runs(), step, waits()]
            ),
            "JobID|State|NodeList\n12_3|RUNNING|n[1-2]\n12_3.batch|RUNNING|n[1-2]\n12_[4-8%5]|PENDING|None assigned\n"
        );
        assert_eq!(
            Wanted::of(&read("-j 1 -j 2,3_4"))
                .map(|wanted| wanted.request.jobs)
                .expect("read"),
            ["1", "2", "3_4"]
        );
    }

    #[test]
    fn columns_have_widths_and_a_line_under_the_header() {
        let over = Row {
            state: JobState::Cancelled,
            said: "cancelled by root".into(),
            elapsed_s: 100,
            ..runs()
        };
        assert_eq!(
            listed("--format=JobID%8,State,ExitCode,Elapsed%-9", &[over]),
            "   JobID      State ExitCode Elapsed   \n\
             -------- ---------- -------- --------- \n\x20   12_3 CANCELLED+      0:0 00:01:40  \n"
        );
        assert_eq!(
            listed("-nPX --delimiter=; -o state,exitcode", &[runs()]),
            "RUNNING;0:0\n"
        );
        assert_eq!(listed("-np -o state,exitcode", &[runs()]), "RUNNING|0:0|\n");
    }

    #[test]
    fn what_was_measured_is_on_the_batch_step() {
        let step = runs().batch_step().expect("it runs");
        let line = "-nP -o JobID,MaxRSS,AveRSS,MaxRSSNode,TotalCPU,UserCPU,SystemCPU,AveCPU";
        assert_eq!(
            listed(line, &[runs(), step.clone()]),
            "12_3||||01:40.041|01:30.500|00:09.541|\n\
             12_3.batch|4100K|3M|n2|01:40.041|01:30.500|00:09.541|00:00:50\n"
        );
        for (line, shown) in [
            ("--noconvert", "4198400"),
            ("--units=M --noconvert", "4.00M"),
            ("", "4100K"),
        ] {
            let units = units(&read(line)).expect(line);
            let step = Row {
                units,
                ..step.clone()
            };
            assert_eq!(step.max_rss(), shown, "{line}");
        }
        assert!(units(&read("--units=x")).is_err());
    }

    #[test]
    fn each_name_stands_for_one_thing() {
        let names: BTreeSet<&str> = FIELDS.iter().map(|field| field.name).collect();
        assert_eq!(names.len(), FIELDS.len());
    }

    #[test]
    fn times_and_counts_are_conditions() {
        let wanted = Wanted::of(&read("-S 2026-11-01 -E 2026-11-02 -i 2-4 -k 30 -s F,TO")).expect("read");
        assert_eq!(wanted.request.until_ms - wanted.request.since_ms, 86_400_001);
        assert_eq!(wanted.node_counts, Some((2, 4)));
        assert_eq!(wanted.limits, (1_800, 1_800));
        assert_eq!(wanted.request.states.len(), 2);
        for line in [
            "-S 2026-11-02 -E 2026-11-01",
            "-S nonsense",
            "-s nonsense",
            "-i x",
            "-j x",
        ] {
            assert!(Wanted::of(&read(line)).is_err(), "{line}");
        }
    }
}
