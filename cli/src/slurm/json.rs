//! What `--json` prints, with the names of Slurm's data_parser (v0.0.41), as far as tools read them.

use carrel_proto::v1;
use serde_json::{Value, json};

use super::job::{self, Row};
use super::{sacct, squeue, words};
use crate::view;

/// A number that may not be there.
fn number(value: Option<u64>) -> Value {
    json!({"set": value.is_some(), "infinite": false, "number": value.unwrap_or(0)})
}

fn seconds(millis: Option<i64>) -> Option<u64> {
    millis.and_then(|millis| u64::try_from(millis / 1_000).ok())
}

fn meta(command: &str) -> Value {
    json!({
        "plugin": {"type": "", "name": "", "data_parser": "data_parser/v0.0.41", "accounting_storage": ""},
        "client": {"source": "", "user": "", "group": ""},
        "command": [command],
        "slurm": {
            "version": {"major": "24", "micro": "0", "minor": "05"},
            "release": super::LIKE,
            "cluster": "carrel",
        },
    })
}

fn document(command: &str, key: &str, values: Vec<Value>) -> Value {
    let now = seconds(Some(crate::times::now_ms()));
    json!({
        key: values,
        "last_backfill": number(None),
        "last_update": number(now),
        "meta": meta(command),
        "errors": [],
        "warnings": [],
    })
}

fn exit_code(job: &Row) -> Value {
    let (code, signal) = words::exit_code(job.state, job.exit_code);
    let status = match (job.state, code, signal) {
        (state, _, _) if words::is_live(state) => "PENDING",
        (_, 0, 0) => "SUCCESS",
        (_, _, 1..) => "SIGNALED",
        _ => "ERROR",
    };
    json!({
        "status": [status],
        "return_code": number(u64::try_from(code).ok()),
        "signal": {"id": number(u64::try_from(signal).ok()), "name": signal_name(signal)},
    })
}

fn signal_name(signal: i32) -> String {
    let known = nix::sys::signal::Signal::try_from(signal).ok();
    known.map_or_else(String::new, |known| {
        known.as_str().trim_start_matches("SIG").to_owned()
    })
}

/// What `squeue --json` and `scontrol show job --json` print.
pub fn queue(rows: &[Row]) -> Value {
    document("squeue", "jobs", rows.iter().map(queued).collect())
}

fn queued(job: &Row) -> Value {
    let group = job::group(&job.user);
    let nodes: Vec<Value> = job.nodes.iter().map(|node| json!({"name": node})).collect();
    let minutes = job.limit_s / 60;
    json!({
        "account": job.terms.account,
        "accrue_time": number(seconds(Some(job.submitted_ms))),
        "array_job_id": number(Some(job.array.as_ref().map_or(0, |part| part.array))),
        "array_task_id": number(job.task().map(u64::from)),
        "array_max_tasks": number(Some(job.array.as_ref().map_or(0, |part| part.throttle.into()))),
        "array_task_string": if job.task().is_some() { String::new() } else { job.tasks() },
        "batch_flag": job.batch,
        "batch_host": job.nodes.first().cloned().unwrap_or_default(),
        "cluster": "carrel",
        "command": if job.batch { job.command() } else { String::new() },
        "comment": job.what.comment,
        "container": job.image,
        "cpus": number(Some(job.cpu_count().into())),
        "current_working_directory": job.what.workdir,
        "deadline": number(Some(0)),
        "dependency": "",
        "derived_exit_code": exit_code(job),
        "eligible_time": number(seconds(Some(job.submitted_ms))),
        "end_time": number(seconds(squeue::end(job))),
        "exit_code": exit_code(job),
        "features": job.request.constraints.as_ref().map(|of| of.features.clone()).unwrap_or_default(),
        "group_id": group.as_ref().map(|group| group.0),
        "group_name": group.map(|group| group.1),
        "hold": job.reason().starts_with("JobHeld"),
        "job_id": job.id,
        "job_resources": {"nodes": {
            "count": job.nodes.len(),
            "list": job.node_list(),
            "allocation": nodes,
        }},
        "job_state": [view::job_state(job.state)],
        "max_cpus": number(Some(0)),
        "memory_per_node": number(Some(job.memory_per_node() >> 20)),
        "name": job.name,
        "nice": job.terms.nice,
        "node_count": number(Some(job.node_count().into())),
        "nodes": job.node_list(),
        "partition": job.terms.partition,
        "priority": number(Some(u64::try_from(job.priority.unwrap_or(0)).unwrap_or(0))),
        "qos": job.terms.qos,
        "requeue": job.what.requeue,
        "required_nodes": job.request.constraints.as_ref().map(|of| of.nodelist.clone()).unwrap_or_default(),
        "restart_cnt": job.restarts,
        "resv_name": job.terms.reservation,
        "standard_error": job.stderr(),
        "standard_input": "/dev/null",
        "standard_output": job.stdout(),
        "start_time": number(seconds(job.start_ms)),
        "state_description": job.said,
        "state_reason": job.reason(),
        "submit_time": number(seconds(Some(job.submitted_ms))),
        "tasks": number(Some(job.node_count().into())),
        "time_limit": number(Some(minutes)),
        "tres_alloc_str": job.allocated_tres(),
        "tres_per_node": job.tres_per_node(),
        "tres_req_str": job.requested_tres(),
        "user_id": job.uid(),
        "user_name": job.user,
    })
}

/// What `sacct --json` prints.
pub fn history(rows: &[Row]) -> Value {
    document("sacct", "jobs", rows.iter().map(past).collect())
}

fn tres(text: &str) -> Vec<Value> {
    let parts = text.split(',').filter_map(|part| part.split_once('='));
    let value = |(name, count): (&str, &str)| {
        let (kind, name) = name.split_once('/').unwrap_or((name, ""));
        // Memory in megabytes, as Slurm counts it.
        let count = match count.strip_suffix('G') {
            Some(giga) => giga.parse::<f64>().unwrap_or(0.0) * 1024.0,
            None => count.trim_end_matches('M').parse().unwrap_or(0.0),
        };
        json!({"type": kind, "name": name, "id": 0, "count": count.ceil() as u64})
    };
    parts.map(value).collect()
}

fn past(job: &Row) -> Value {
    let (requested, allocated) = (tres(&job.requested_tres()), tres(&job.allocated_tres()));
    let steps: Vec<Value> = job.batch_step().iter().map(step).collect();
    json!({
        "account": job.terms.account,
        "array": {
            "job_id": job.array.as_ref().map_or(0, |part| part.array),
            "limits": {"max": {"running": {"tasks": job.array.as_ref().map_or(0, |part| part.throttle)}}},
            "task_id": number(job.task().map(u64::from)),
            "task": if job.task().is_some() { String::new() } else { job.tasks() },
        },
        "allocation_nodes": job.nodes.len(),
        "cluster": "carrel",
        "comment": {"administrator": "", "job": job.what.comment, "system": ""},
        "container": job.image,
        "derived_exit_code": exit_code(job),
        "exit_code": exit_code(job),
        "flags": [],
        "group": job::group(&job.user).map(|group| group.1),
        "job_id": job.id,
        "name": job.name,
        "nodes": if job.nodes.is_empty() { "None assigned".to_owned() } else { job.node_list() },
        "partition": job.terms.partition,
        "priority": number(None),
        "qos": job.terms.qos,
        "required": {
            "CPUs": job.cpu_count(),
            "memory_per_cpu": number(None),
            "memory_per_node": number(Some(job.memory_per_node() >> 20)),
        },
        "reservation": {"id": 0, "name": job.terms.reservation},
        "restart_cnt": job.restarts,
        "state": {"current": [sacct::state_name(job)], "reason": job.reason()},
        "steps": steps,
        "submit_line": "",
        "time": {
            "elapsed": job.elapsed_s,
            "eligible": seconds(Some(job.submitted_ms)),
            "end": seconds(job.ended_ms).unwrap_or(0),
            "limit": number(Some(job.limit_s / 60)),
            "start": seconds(job.start_ms.filter(|_| job.started)).unwrap_or(0),
            "submission": seconds(Some(job.submitted_ms)),
            "suspended": 0,
            "system": time(job.cpu_times().1),
            "total": time(job.cpu_times().0.saturating_add(job.cpu_times().1)),
            "user": time(job.cpu_times().0),
        },
        "tres": {"requested": requested, "allocated": allocated},
        "user": job.user,
        "working_directory": job.what.workdir,
    })
}

fn step(job: &Row) -> Value {
    json!({
        "step": {"id": job.label(), "name": job.name},
        "state": [view::job_state(job.state)],
        "exit_code": exit_code(job),
        "nodes": {"count": job.nodes.len(), "range": job.node_list(), "list": job.nodes},
        "time": {
            "elapsed": job.elapsed_s,
            "start": number(seconds(job.start_ms)),
            "end": number(seconds(job.ended_ms)),
            "system": time(job.cpu_times().1),
            "total": time(job.cpu_times().0.saturating_add(job.cpu_times().1)),
            "user": time(job.cpu_times().0),
        },
        "tasks": {"count": job.node_count()},
        "tres": {"allocated": tres(&job.allocated_tres()), "requested": used(job)},
    })
}

/// A time of microseconds.
fn time(micros: u64) -> Value {
    json!({"seconds": micros / 1_000_000, "microseconds": micros % 1_000_000})
}

/// What Slurm calls the step's requested TRES: what it used. CPU time in milliseconds, memory in bytes.
fn used(step: &Row) -> Value {
    let Some(used) = &step.host_use else {
        return json!({"max": [], "min": [], "average": [], "total": []});
    };
    let sum = used.sum.unwrap_or_default();
    let cpu_ms = sum.cpu_user_us.saturating_add(sum.cpu_system_us) / 1_000;
    let nodes = u64::from(used.nodes.max(1));
    let one = |kind: &str, count: u64| json!({"type": kind, "name": "", "id": 0, "count": count});
    let on = |kind: &str, count: u64, node: &str, task: u32| json!({"type": kind, "name": "", "id": 0, "count": count, "node": node, "task": task});
    json!({
        "max": [on("mem", used.memory_peak_bytes, &used.memory_peak_node, used.memory_peak_rank)],
        "min": [on("cpu", used.cpu_least_us / 1_000, &used.cpu_least_node, used.cpu_least_rank)],
        "average": [one("cpu", cpu_ms / nodes), one("mem", sum.memory_peak_bytes / nodes)],
        "total": [one("cpu", cpu_ms), one("mem", sum.memory_peak_bytes)],
    })
}

/// What `sinfo --json` prints: a line of it each.
pub fn nodes(lines: Vec<Value>) -> Value {
    document("sinfo", "sinfo", lines)
}

/// What `scontrol show node --json` prints.
pub fn node(node: &v1::Node, partitions: &[String]) -> Value {
    let inventory = node.inventory.clone().unwrap_or_default();
    json!({
        "name": node.name,
        "hostname": node.name,
        "address": node.name,
        "state": [super::sinfo::state(node)],
        "reason": node.reason,
        "cpus": inventory.cpus,
        "alloc_cpus": node.cpus_held,
        "alloc_idle_cpus": inventory.cpus.saturating_sub(node.cpus_held),
        "real_memory": inventory.memory_bytes >> 20,
        "alloc_memory": node.memory_held >> 20,
        "features": node.features,
        "active_features": node.features,
        "gres": super::sinfo::gres(node),
        "gres_used": super::sinfo::gres_used(node),
        "partitions": partitions,
        "operating_system": inventory.os,
        "version": node.version,
        "architecture": std::env::consts::ARCH,
        "boards": 1,
        "sockets": 1,
        "cores": inventory.cpus,
        "threads": 1,
        "weight": 1,
        "temporary_disk": 0,
        "free_mem": number(Some(inventory.memory_bytes.saturating_sub(node.memory_held) >> 20)),
        "tres": super::words::node_tres(node),
        "tres_used": if node.cpus_held > 0 { super::words::node_tres_held(node) } else { String::new() },
        "comment": "",
        "owner": "",
    })
}

/// A document of nodes.
pub fn node_list(values: Vec<Value>) -> Value {
    document("scontrol", "nodes", values)
}

/// A document of partitions.
pub fn partition_list(values: Vec<Value>) -> Value {
    document("scontrol", "partitions", values)
}

#[cfg(test)]
mod tests {
    use super::super::job::tests::{runs, waits};
    use super::*;
    use carrel_proto::v1::JobState;

    #[test]
    fn jobs_have_the_names_that_tools_read() {
        let document = queue(&[runs(), waits()]);
        let (one, two) = (&document["jobs"][0], &document["jobs"][1]);
        assert_eq!(one["job_state"], json!(["RUNNING"]));
        assert_eq!(
            one["array_job_id"],
            json!({"set": true, "infinite": false, "number": 12})
        );
        assert_eq!(one["array_task_id"]["number"], 3);
        assert_eq!(one["nodes"], "n[1-2]");
        assert_eq!(one["submit_time"]["number"], 1_000);
        assert_eq!(one["time_limit"]["number"], 60);
        assert_eq!(
            (&two["state_reason"], &two["array_task_string"]),
            (&json!("Resources"), &json!("4-8%5"))
        );
        assert_eq!(two["array_task_id"]["set"], false);
        assert!(document["errors"].as_array().is_some_and(Vec::is_empty));
    }

    #[test]
    fn past_jobs_have_the_names_that_tools_read() {
        let over = Row {
            state: JobState::Failed,
            exit_code: Some(139),
            ended_ms: Some(3_000_000),
            elapsed_s: 1_000,
            ..runs()
        };
        let document = history(&[over]);
        let job = &document["jobs"][0];
        assert_eq!(job["state"]["current"], json!(["FAILED"]));
        assert_eq!(
            job["exit_code"]["signal"],
            json!({"id": {"set": true, "infinite": false, "number": 11}, "name": "SEGV"})
        );
        assert_eq!(
            (&job["time"]["start"], &job["time"]["end"]),
            (&json!(2_000), &json!(3_000))
        );
        let memory = job["tres"]["allocated"][1].clone();
        assert_eq!(
            (&memory["type"], &memory["count"]),
            (&json!("mem"), &json!(2_048))
        );
        let step = &job["steps"][0];
        assert_eq!(step["step"]["id"], "12_3.batch");
        assert_eq!(
            step["tres"]["requested"]["max"][0],
            json!({"type": "mem", "name": "", "id": 0, "count": 4_198_400, "node": "n2", "task": 1})
        );
        assert_eq!(
            step["time"]["total"],
            json!({"seconds": 100, "microseconds": 41_000})
        );
        assert_eq!(
            job["time"]["user"],
            json!({"seconds": 90, "microseconds": 500_000})
        );
    }
}
