//! The caller's sessions and those that are shared with them, or everybody's, by id.

use carrel_core::model::session::Session;
use carrel_proto::v1::{ListSessionsRequest, ListSessionsResponse};
use tonic::Status;

use super::list_jobs::positions;
use super::{Call, convert};

pub(super) async fn list_sessions(
    call: Call,
    request: ListSessionsRequest,
) -> Result<ListSessionsResponse, Status> {
    let snapshot = call.snapshot();
    let state = snapshot.state();
    let caller = &call.asker.caller;
    let all = request.all_users && call.reaches_others();
    let shared = |session: &Session| session.shares.contains_key(&caller.user);
    // From inside a job: the one that it is a run of.
    let seen =
        |session: &Session| caller.job().is_none() || session.job.is_some_and(|job| caller.sees_job(job));
    let positions = positions(state);
    let sessions = state
        .sessions
        .values()
        .filter(|session| seen(session) && (all || session.owner == caller.user || shared(session)));
    let messages = sessions.map(|session| {
        let position = session.job.and_then(|job| positions.get(&job).copied());
        convert::session_at(state, session, &caller.user, position)
    });
    Ok(ListSessionsResponse {
        sessions: messages.collect(),
    })
}
