//! A session now, and again at each change, until it is removed.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use carrel_core::broker::{State, queue_position, state_reason};
use carrel_core::model::ids::{SessionId, UserName};
use carrel_core::model::job::{Job, Phase};
use carrel_core::model::node::Observed;
use carrel_core::model::session::Session;
use carrel_proto::v1::{self, GetSessionRequest};
use futures::Stream;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Status;

use super::refuse;
use super::{Call, convert, session_ref};
use crate::actor::{Refusal, Snapshot};
use crate::context::Context;

/// How often a waiting session's place in the queue is counted. Every other
/// change is sent at once.
const COUNT_EVERY: Duration = Duration::from_millis(500);

pub(super) async fn watch_session(
    call: Call,
    request: GetSessionRequest,
) -> Result<Pin<Box<dyn Stream<Item = Result<v1::Session, Status>> + Send>>, Status> {
    let record = call.session(call.snapshot().state(), &session_ref(&request.name)?)?;
    let watch = Watch {
        states: call.context.handle.watch(),
        to: call.asker.caller.user.clone(),
        context: call.context,
        id: record.id,
        record,
        seen: None,
        sent: None,
        counted: None,
        over: false,
    };
    Ok(Box::pin(futures::stream::unfold(watch, Watch::next)))
}

/// A watch. It works only while its client takes what it sends.
struct Watch {
    context: Arc<Context>,
    /// Who watches.
    to: UserName,
    states: watch::Receiver<Snapshot>,
    id: SessionId,
    /// The session as it last was.
    record: Arc<Session>,
    /// What the message sent last was made of.
    seen: Option<Seen>,
    sent: Option<v1::Session>,
    /// Place in the queue and why it waits, and when that was worked out.
    counted: Option<(Instant, Queued)>,
    over: bool,
}

impl Watch {
    async fn next(mut self) -> Option<(Result<v1::Session, Status>, Self)> {
        while !self.over {
            let snapshot = Arc::clone(&self.states.borrow_and_update());
            let state = snapshot.state();
            match state.sessions.get(&self.id) {
                Some(session) => self.record = Arc::clone(session),
                // Removed: what became of its job is the last thing to tell.
                None => self.over = true,
            }
            let recount = self.position(state);
            let queued = self.counted.as_ref().map(|(_, queued)| queued.clone());
            let seen = Seen::of(state, &self.record, queued.unwrap_or_default());
            if self.seen.as_ref() != Some(&seen) {
                let message = convert::session_at(state, &self.record, &self.to, seen.queued.position);
                self.seen = Some(seen);
                if self.sent.as_ref() != Some(&message) {
                    self.sent = Some(message.clone());
                    return Some((Ok(message), self));
                }
            }
            drop(snapshot);
            if self.over {
                return None;
            }
            // Each arm only waits.
            let stopping = tokio::select! {
                changed = self.states.changed() => changed.is_err(),
                () = self.context.stopping.cancelled() => true,
                () = tokio::time::sleep_until(recount.unwrap_or_else(Instant::now)), if recount.is_some() => false,
            };
            if stopping {
                self.over = true;
                return Some((Err(refuse::status(Refusal::Stopping)), self));
            }
        }
        None
    }

    /// Counts the place in the queue, if it is time to; when it is to be
    /// counted again, should the state have changed by then.
    fn position(&mut self, state: &State) -> Option<Instant> {
        let job = self.record.job.filter(|id| state.pending.contains(*id));
        let Some(job) = job else {
            self.counted = None;
            return None;
        };
        let now = Instant::now();
        if let Some((at, _)) = self.counted.as_ref().filter(|(at, _)| now < *at + COUNT_EVERY) {
            return Some(*at + COUNT_EVERY);
        }
        let queued = Queued {
            position: queue_position(state, job),
            reason: state
                .jobs
                .get(&job)
                .map(|job| state_reason(state, job))
                .unwrap_or_default(),
            start_ms: convert::promised_start(state, job),
        };
        self.counted = Some((now, queued));
        None
    }
}

/// What passes find of a waiting job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Queued {
    /// Place in the queue.
    position: Option<usize>,
    /// Why it waits.
    reason: String,
    /// When it is promised to start.
    start_ms: Option<i64>,
}

/// Everything that a session's message is made of, to be compared without making it.
struct Seen {
    session: Arc<Session>,
    job: Option<Arc<Job>>,
    /// For a job whose containers are being made: contact with its nodes.
    progress: Vec<(bool, Option<Arc<Observed>>)>,
    queued: Queued,
}

impl Seen {
    fn of(state: &State, session: &Arc<Session>, queued: Queued) -> Self {
        let job = session.job.and_then(|id| state.jobs.get(&id)).cloned();
        let progress = match job.as_deref().map(|job| &job.phase) {
            Some(Phase::Placed(placed)) if placed.ranks.iter().any(|rank| !rank.ready) => {
                let links = placed
                    .allocation
                    .nodes
                    .iter()
                    .filter_map(|part| state.links.get(&part.node));
                links
                    .map(|link| (link.connected, link.observed.clone()))
                    .collect()
            }
            Some(Phase::Placed(_) | Phase::Pending | Phase::Ended { .. }) | None => Vec::new(),
        };
        Self {
            session: Arc::clone(session),
            job,
            progress,
            queued,
        }
    }
}

impl PartialEq for Seen {
    fn eq(&self, other: &Self) -> bool {
        fn same<T>(a: Option<&Arc<T>>, b: Option<&Arc<T>>) -> bool {
            match (a, b) {
                (Some(a), Some(b)) => Arc::ptr_eq(a, b),
                (None, None) => true,
                (Some(_), None) | (None, Some(_)) => false,
            }
        }
        let mut progress = self.progress.iter().zip(&other.progress);
        Arc::ptr_eq(&self.session, &other.session)
            && same(self.job.as_ref(), other.job.as_ref())
            && self.queued == other.queued
            && self.progress.len() == other.progress.len()
            && progress.all(|(a, b)| a.0 == b.0 && same(a.1.as_ref(), b.1.as_ref()))
    }
}
