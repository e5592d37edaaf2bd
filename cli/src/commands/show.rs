//! `carrel show`: everything about a session or a job.

use std::time::Duration;

use carrel_proto::v1;
use carrel_proto::v1::gpu_unit_request::Unit;

use crate::context::{self, Context, Found, JobOrSession};
use crate::error::Result;
use crate::output::visible;
use crate::request::{Cpus, Memory};
use crate::ssh::alias;
use crate::{constraints, grant, output, times, units, view};

/// Show a session or a job.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  carrel show dev\n  carrel show 17 --output json\n  carrel show 17_3\n  carrel show                inside a session: that one"
)]
pub struct ShowArgs {
    /// Session name, or job id; inside a session, none: that one
    #[arg(value_name = "NAME|JOB", add = super::completion::sessions())]
    pub what: Option<JobOrSession>,
}

/// Runs the verb.
pub async fn run(context: &Context, args: ShowArgs) -> Result<u8> {
    let mut client = context.client().await?;
    let found = context::find(context, &mut client, args.what.as_ref()).await?;
    match (found, context.json()) {
        (Found::Job(job), true) => output::json(&view::Job::from(*job))?,
        (Found::Job(job), false) => output::text(output::fields(job_fields(&job)))?,
        (Found::Session(session), true) => output::json(&view::Session::from(*session))?,
        (Found::Session(session), false) => output::text(session_text(&session))?,
    }
    Ok(0)
}

/// A session and its job, for people.
pub fn session_text(session: &v1::Session) -> String {
    let mut fields = vec![
        ("session", session.name.clone()),
        ("user", session.user.clone()),
        ("session state", view::session_state(session.state()).to_owned()),
        ("session reason", session.reason.clone()),
        ("created", units::rfc3339(session.created_ms)),
        ("shared with", super::share::list(&session.shares)),
        ("ssh alias", alias::name_of(&session.called)),
        (
            "kept",
            if session.ephemeral {
                "no, removed at its end".into()
            } else {
                String::new()
            },
        ),
    ];
    match &session.job {
        Some(job) => fields.extend(job_fields(job).into_iter().filter(|(name, _)| *name != "user")),
        None => fields.push(("image", session.image.clone())),
    }
    output::fields(fields)
}

fn job_fields(job: &v1::Job) -> Vec<(&'static str, String)> {
    let time = |ms: Option<i64>| ms.map(units::rfc3339).unwrap_or_default();
    let limit = Duration::from_secs(job.time_limit_s);
    let models: std::collections::BTreeSet<&str> = job
        .nodes
        .iter()
        .flat_map(|node| &node.gpus)
        .map(|gpu| gpu.model.as_str())
        .collect();
    let queue = if job.queue_position > 0 {
        units::ordinal(job.queue_position)
    } else {
        String::new()
    };
    let batch = job.batch.clone().unwrap_or_default();
    let command = match (&job.batch, batch.script) {
        (None, _) => String::new(),
        (Some(_), true) => format!("script {}", batch.command.join(" ")),
        (Some(_), false) => batch.command.join(" "),
    };
    let restarts = match job.restarts {
        0 => String::new(),
        count => count.to_string(),
    };
    let file = |name: &str| match name {
        "" => String::new(),
        name if name.starts_with('/') || batch.workdir.is_empty() => name.to_owned(),
        name => format!("{}/{name}", batch.workdir.trim_end_matches('/')),
    };
    let used = view::HostUse::of(job, times::now_ms());
    vec![
        ("job", view::label(job.id, job.array.as_ref(), job.state())),
        ("own number", own_number(job)),
        ("array", job.array.as_ref().map(array).unwrap_or_default()),
        ("name", job.name.clone()),
        ("user", job.user.clone()),
        ("state", view::job_state(job.state()).to_owned()),
        ("reason", job.reason.clone()),
        ("place in queue", queue),
        ("keeps off", keeps_off(job)),
        ("asked for", job.request.as_ref().map(asked).unwrap_or_default()),
        ("holds", grant::describe(job, &[])),
        ("fabric", fabric(job)),
        ("CPU ids", grant::own_cpus(job)),
        ("in use by", in_use(job)),
        ("GPU use", job.measured.map(gpu_use).unwrap_or_default()),
        ("CPU time", used.map(view::HostUse::cpu_text).unwrap_or_default()),
        ("memory", used.map(view::HostUse::memory_text).unwrap_or_default()),
        ("efficiency", view::efficiency(job)),
        ("ends when idle", ends_when_idle(job)),
        ("GPU model", models.into_iter().collect::<Vec<_>>().join(", ")),
        ("fence", fence(job)),
        ("out of memory", out_of_memory(job)),
        ("image", job.image.clone()),
        ("command", command.trim_end().to_owned()),
        ("working directory", batch.workdir.clone()),
        ("output", file(&batch.stdout)),
        ("error output", file(&batch.stderr)),
        ("submitted from", batch.submit_host.clone()),
        ("mail", mail(&batch)),
        ("comment", visible(&batch.comment)),
        ("queued again", restarts),
        (
            "time limit",
            if limit.is_zero() {
                String::new()
            } else {
                units::clock(limit)
            },
        ),
        ("submitted", units::rfc3339(job.submitted_ms)),
        ("started", time(job.started_ms)),
        ("deadline", time(job.deadline_ms)),
        ("ended", time(job.ended_ms)),
        (
            "exit code",
            job.exit_code.map(|code| code.to_string()).unwrap_or_default(),
        ),
    ]
}

/// "END,FAIL to a@example.org"; empty: none is asked for.
fn mail(batch: &v1::Batch) -> String {
    let to = match batch.mail_user.as_str() {
        "" => String::new(),
        user => format!(" to {}", visible(user)),
    };
    let note = if batch.mail_sent {
        ""
    } else {
        " (this cluster sends none)"
    };
    match batch.mail_type.as_str() {
        "" => String::new(),
        types => format!("{types}{to}{note}"),
    }
}

/// "n1 until 2026-11-22T08:00:00Z (it failed there at once)"; empty: it does not wait, or keeps off none.
fn keeps_off(job: &v1::Job) -> String {
    let nodes = job.keeps_off.iter();
    let nodes: Vec<String> = nodes
        .map(|one| format!("{} until {}", visible(&one.node), units::rfc3339(one.until_ms)))
        .collect();
    match nodes.as_slice() {
        [] => String::new(),
        nodes => format!("{} (it failed there at once)", nodes.join(", ")),
    }
}

/// "gpu 97 % (gpu 97 %, cpu 340 %, 2 connections)"; empty: it does not run.
fn in_use(job: &v1::Job) -> String {
    let Some(activity) = &job.activity else {
        return String::new();
    };
    let percent = |name: &str, percent: Option<u32>| percent.map(|percent| format!("{name} {percent} %"));
    let connections = match activity.connections {
        0 => None,
        1 => Some("1 connection".to_owned()),
        more => Some(format!("{more} connections")),
    };
    let figures = [
        percent("gpu", activity.gpu_percent),
        percent("cpu", activity.cpu_percent),
        connections,
    ];
    let figures: Vec<String> = figures.into_iter().flatten().collect();
    let held_by = visible(&activity.held_by);
    if figures.is_empty() {
        held_by
    } else {
        format!("{held_by} ({})", figures.join(", "))
    }
}

/// "1.50 GPU-hours, 75 % of what was held while it was measured".
fn gpu_use(measured: v1::MeasuredUse) -> String {
    let share = view::used_percent(measured).unwrap_or_default();
    let used = measured.used_gpu_hours;
    format!("{used:.2} GPU-hours, {share:.0} % of what was held while it was measured")
}

/// "after 8:00:00 without use; as it is at 2026-11-22T08:00:00Z"; empty: it does not.
fn ends_when_idle(job: &v1::Job) -> String {
    let Some(activity) = job.activity.as_ref().filter(|activity| activity.idle_after_s > 0) else {
        return String::new();
    };
    let after = units::clock(Duration::from_secs(activity.idle_after_s));
    match activity.idle_ends_ms {
        None => format!("after {after} without use"),
        Some(at) => format!("after {after} without use: at {}", units::rfc3339(at)),
    }
}

/// Of a task of an array that has another number than the array.
fn own_number(job: &v1::Job) -> String {
    let other = job.array.as_ref().filter(|part| part.array != job.id);
    other.map(|_| job.id.to_string()).unwrap_or_default()
}

/// "100 tasks, 5 at once: 90 wait, 5 run, 4 ended well, 1 did not"
fn array(part: &v1::ArrayPart) -> String {
    let mut text = match part.count {
        1 => "1 task".to_owned(),
        count => format!("{count} tasks"),
    };
    if part.throttle > 0 {
        text += &format!(", {} at once", part.throttle);
    }
    if let Some(now) = &part.now {
        let counts = [
            (now.waiting, "wait"),
            (now.running, "run"),
            (now.completed, "ended well"),
            (now.failed, "did not"),
        ];
        let counts = counts.iter().filter(|(count, _)| *count > 0);
        let counts: Vec<String> = counts.map(|(count, what)| format!("{count} {what}")).collect();
        text += &format!(": {}", counts.join(", "));
    }
    text
}

/// "gpu1 leaf1 < spine, block nvl1; gpu2 leaf1 < spine", rank by rank; empty: nothing is known.
fn fabric(job: &v1::Job) -> String {
    let spots = job.nodes.iter().filter_map(|held| {
        let spot = spot(&held.switch_path, &held.block);
        (!spot.is_empty()).then(|| format!("{} {spot}", held.node))
    });
    spots.collect::<Vec<_>>().join("; ")
}

/// "leaf1 < spine, block nvl1": where a node is in the fabric; empty: it is not known.
pub fn spot(switch_path: &str, block: &str) -> String {
    let block = match block {
        "" => String::new(),
        name => format!("block {name}"),
    };
    let mut parts = vec![switch_path.to_owned(), block];
    parts.retain(|part| !part.is_empty());
    parts.join(", ")
}

/// "41 checks passed, in 1.2 ms"; where there are several nodes, the fewest and the slowest of them.
fn fence(job: &v1::Job) -> String {
    let reports: Vec<_> = job.nodes.iter().filter_map(|node| node.fence).collect();
    let (Some(checks), Some(micros)) = (
        reports.iter().map(|report| report.checks).min(),
        reports.iter().map(|report| report.micros).max(),
    ) else {
        return String::new();
    };
    let each = match job.nodes.len() {
        0 | 1 => String::new(),
        nodes if reports.len() == nodes => " on each node".to_owned(),
        nodes => format!(" on {} of {nodes} nodes", reports.len()),
    };
    format!(
        "{checks} checks passed at the start{each}, in {:.1} ms",
        f64::from(micros) / 1000.0
    )
}

/// "the kernel ended 2 processes for want of memory (peak 8G, limit 8G)"; empty: it did not.
fn out_of_memory(job: &v1::Job) -> String {
    let hit = job.nodes.iter().filter(|node| node.oom_kills > 0);
    let told = hit.map(|node| {
        let (kills, limit) = (node.oom_kills, units::bytes(node.memory_bytes));
        let processes = if kills == 1 { "process" } else { "processes" };
        let place = if job.nodes.len() > 1 {
            format!(" on {}", node.node)
        } else {
            String::new()
        };
        let peak = node.host_use.map_or(0, |used| used.memory_peak_bytes);
        let peak = match peak {
            0 => String::new(),
            peak => format!("peak {}, ", units::bytes(peak)),
        };
        format!("the kernel ended {kills} {processes}{place} for want of memory ({peak}limit {limit})")
    });
    told.collect::<Vec<_>>().join("; ")
}

fn asked(request: &v1::ResourceRequest) -> String {
    let mut text = match (request.nodes, request.exclusive) {
        (0 | 1, false) => String::new(),
        (0 | 1, true) => "a whole node with ".to_owned(),
        (nodes, false) => format!("{nodes} nodes, each "),
        (nodes, true) => format!("{nodes} whole nodes, each with "),
    };
    if request.gpus_per_node > 0 {
        let model = if request.gpu_model.is_empty() {
            String::new()
        } else {
            format!("{} ", request.gpu_model)
        };
        // What is only preferred is among the wishes.
        let insists = request
            .patience
            .is_none_or(|patience| patience.nvlink_ms.is_none());
        let nvlink = if request.nvlink && insists {
            " joined by NVLink"
        } else {
            ""
        };
        let count = request.gpus_per_node;
        let s = if count == 1 { "" } else { "s" };
        if request.exclusive {
            text += "at least ";
        }
        text += &match request.unit.as_ref().and_then(|unit| unit.unit.as_ref()) {
            None | Some(Unit::Least(false)) if request.gpu_memory_bytes > 0 => {
                let memory = units::gpu_bytes(request.gpu_memory_bytes);
                format!("{count} {model}GPU{s} with {memory}{nvlink}, ")
            }
            None | Some(Unit::Least(false)) => format!("{count} {model}GPU{s}{nvlink}, "),
            Some(Unit::Least(true)) => {
                let memory = units::gpu_bytes(request.gpu_memory_bytes);
                format!("{count} {model}GPU{s} or slice{s} with {memory}, ")
            }
            Some(Unit::MigProfile(profile)) => format!("{count} {model}slice{s} {}, ", visible(profile)),
            Some(Unit::Share(share)) => format!("{} of a {model}GPU, ", f64::from(share.milli) / 1000.0),
        };
    }
    let wishes = constraints::describe(request);
    text + &format!(
        "{}, {}{}{wishes}",
        Cpus(request),
        Memory(request),
        if wishes.is_empty() { "" } else { "; " },
    ) + &request
        .more
        .iter()
        .map(|one| format!(" : {}", asked(one)))
        .collect::<String>()
}
