//! Permissions for byte streams.

use std::time::Duration;

use carrel_core::broker::State;
use carrel_core::model::ids::UserName;
use carrel_core::model::job::{Job, JobState, Placed};
use carrel_core::model::session::Session;
use carrel_core::model::time::Timestamp;
use carrel_proto::v1::StreamTicket;
use tonic::{Code, Status};

use super::refuse::{invalid, with_hint};

/// Enough to dial a gateway with; a new one costs one call.
pub(super) const VALIDITY: Duration = Duration::from_mins(1);

/// A ticket's content, without id, for a rank of a session that runs.
pub fn ticket_for(
    state: &State,
    session: &Session,
    rank: u32,
    user: &UserName,
    now: Timestamp,
) -> Result<StreamTicket, Status> {
    let name = &session.name;
    let job = state.live_job(session);
    let running = job.filter(|job| job.state() == JobState::Running);
    let Some((job, placed)) = running.and_then(|job| Some((job, job.placed()?))) else {
        let (message, hint) = match job.map(|job| job.state()) {
            Some(JobState::Pending | JobState::Configuring) => (
                format!("session {name} is not ready yet"),
                format!("`carrel ssh {name}` waits for it"),
            ),
            Some(JobState::Completing) => (
                format!("session {name} is ending"),
                format!("`carrel open {name}` starts it again"),
            ),
            _ => (
                format!("session {name} is stopped"),
                format!("`carrel open {name}` starts it"),
            ),
        };
        return Err(with_hint(Code::FailedPrecondition, message, &hint));
    };
    ticket_of(job, placed, rank, user, now)
}

/// The same for a rank of any job that runs: a batch job has no session.
pub fn ticket_for_job(job: &Job, rank: u32, user: &UserName, now: Timestamp) -> Result<StreamTicket, Status> {
    let id = job.label();
    match (job.state(), job.placed()) {
        (JobState::Running, Some(placed)) => ticket_of(job, placed, rank, user, now),
        (JobState::Pending | JobState::Configuring, _) => Err(with_hint(
            Code::FailedPrecondition,
            format!("job {id} does not run yet"),
            &format!("`carrel explain {id}` says why"),
        )),
        (state, _) => Err(with_hint(
            Code::FailedPrecondition,
            format!("job {id} does not run any more: it is {}", state.name()),
            &format!("`carrel show {id}` says how it ended"),
        )),
    }
}

fn ticket_of(
    job: &Job,
    placed: &Placed,
    rank: u32,
    user: &UserName,
    now: Timestamp,
) -> Result<StreamTicket, Status> {
    let nodes = &placed.allocation.nodes;
    let Some(part) = nodes.get(rank as usize) else {
        return Err(invalid(format!(
            "{} has ranks 0 to {}, not {rank}",
            match job.session {
                Some(_) => format!("session {}", job.name),
                None => format!("job {}", job.label()),
            },
            nodes.len().saturating_sub(1)
        )));
    };
    Ok(StreamTicket {
        id: Vec::new(),
        job: job.id.0,
        generation: placed.generation.0,
        node: part.node.to_string(),
        user: user.to_string(),
        session: job.session.map_or(0, |session| session.0),
        expires_ms: now.after(VALIDITY).millis(),
        made_ms: now.millis(),
        stream: Vec::new(),
        log: false,
    })
}
