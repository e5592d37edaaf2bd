//! What nodes run and no record knows.

use carrel_core::broker::{FoundJob, FoundPart, State, found_jobs};
use carrel_core::model::ids::JobKey;
use carrel_proto::v1::{self, ListFoundRequest, ListFoundResponse};
use tonic::{Code, Status};

use super::{Call, refuse};

pub(super) async fn list_found(call: Call, _: ListFoundRequest) -> Result<ListFoundResponse, Status> {
    let snapshot = call.snapshot();
    let state = snapshot.state();
    let nodes = state.nodes.values().filter(|node| node.found.is_some());
    Ok(ListFoundResponse {
        jobs: found_jobs(state).into_iter().map(message).collect(),
        nodes: nodes.map(|node| node.name.to_string()).collect(),
        store: call.context.start.explain(state).unwrap_or_default(),
    })
}

fn message(job: FoundJob) -> v1::FoundJob {
    let part = |FoundPart { node, seen }: FoundPart| v1::FoundPart {
        node: node.to_string(),
        gpus: seen.gpus.iter().map(ToString::to_string).collect(),
        cpus: seen.cpus,
        memory_bytes: seen.memory_bytes,
    };
    let obstacle = job.obstacle.map(|reject| match reject.hint.as_str() {
        "" => reject.message,
        hint => format!("{}: {hint}", reject.message),
    });
    v1::FoundJob {
        key: job.key.to_string(),
        cluster: job.cluster.to_string(),
        user: job.owner.map(|user| user.to_string()).unwrap_or_default(),
        name: job.name,
        session: job.session.map_or(0, |session| session.0),
        parts: job.parts.into_iter().map(part).collect(),
        nodes: job.nodes,
        started_ms: job.started.millis(),
        deadline_ms: job.deadline.millis(),
        ending: job.ending,
        obstacle: obstacle.unwrap_or_default(),
    }
}

/// The found job that a request means: "41@7.1", or "41" where there is only one.
pub(super) fn meant(state: &State, text: &str) -> Result<JobKey, Status> {
    if text.contains('@') {
        return text.parse().map_err(refuse::bad_name);
    }
    let of_that_id = found_jobs(state)
        .into_iter()
        .map(|job| job.key)
        .filter(|key| key.job.to_string() == text);
    let keys: Vec<JobKey> = of_that_id.collect();
    match keys[..] {
        [key] => Ok(key),
        [] => Err(refuse::with_hint(
            Code::NotFound,
            format!("no node runs a job {text:.20} that this broker does not know"),
            "`carrel found` lists what nodes run and no record knows",
        )),
        [..] => {
            let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
            Err(refuse::invalid(format!(
                "there are several jobs {text}: name one of {}",
                keys.join(", ")
            )))
        }
    }
}
