//! A job now, and again at each change, until it is over.

use std::pin::Pin;
use std::sync::Arc;

use carrel_core::broker::queue_position;
use carrel_core::model::ids::JobId;
use carrel_core::model::job::Job;
use carrel_proto::v1::{self, GetJobRequest};
use futures::Stream;
use tokio::sync::watch;
use tonic::Status;

use super::{Call, convert, refuse};
use crate::actor::{Refusal, Snapshot};
use crate::context::Context;

pub(super) async fn watch_job(
    call: Call,
    request: GetJobRequest,
) -> Result<Pin<Box<dyn Stream<Item = Result<v1::Job, Status>> + Send>>, Status> {
    let id = JobId(request.id);
    call.snapshot()
        .state()
        .job_for(&call.asker.caller, id)
        .map_err(refuse::status)?;
    let watch = Watch {
        states: call.context.handle.watch(),
        context: call.context,
        id,
        seen: None,
        over: false,
    };
    Ok(Box::pin(futures::stream::unfold(watch, Watch::next)))
}

/// A watch. It works only while its client takes what it sends.
struct Watch {
    context: Arc<Context>,
    states: watch::Receiver<Snapshot>,
    id: JobId,
    /// The job as it was last sent.
    seen: Option<Arc<Job>>,
    over: bool,
}

impl Watch {
    async fn next(mut self) -> Option<(Result<v1::Job, Status>, Self)> {
        while !self.over {
            let snapshot = Arc::clone(&self.states.borrow_and_update());
            let state = snapshot.state();
            let job = state.jobs.get(&self.id)?;
            let is_same = self.seen.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, job));
            if !is_same {
                self.seen = Some(Arc::clone(job));
                self.over = job.state().is_final();
                let message = convert::job(state, job, queue_position(state, self.id));
                return Some((Ok(message), self));
            }
            drop(snapshot);
            // Each arm only waits.
            let stopping = tokio::select! {
                changed = self.states.changed() => changed.is_err(),
                () = self.context.stopping.cancelled() => true,
            };
            if stopping {
                self.over = true;
                return Some((Err(refuse::status(Refusal::Stopping)), self));
            }
        }
        None
    }
}
