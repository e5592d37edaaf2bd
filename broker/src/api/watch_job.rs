//! A job now, and again at each change, until it is over.

use std::pin::Pin;
use std::sync::Arc;

use carrel_core::broker::{Caller, queue_position};
use carrel_core::model::array::JobRef;
use carrel_core::model::job::Job;
use carrel_proto::v1::{self, GetJobRequest};
use futures::Stream;
use tokio::sync::watch;
use tonic::Status;

use super::{Call, convert, job_ref, refuse};
use crate::actor::{Refusal, Snapshot};
use crate::context::Context;

pub(super) async fn watch_job(
    call: Call,
    request: GetJobRequest,
) -> Result<Pin<Box<dyn Stream<Item = Result<v1::Job, Status>> + Send>>, Status> {
    let name = job_ref(request.id, &request.tasks)?;
    call.snapshot()
        .state()
        .find_job(&call.asker.caller, &name)
        .map_err(refuse::status)?;
    let watch = Watch {
        states: call.context.handle.watch(),
        context: call.context,
        caller: call.asker.caller,
        name,
        seen: None,
        over: false,
    };
    Ok(Box::pin(futures::stream::unfold(watch, Watch::next)))
}

/// A watch. It works only while its client takes what it sends.
struct Watch {
    context: Arc<Context>,
    states: watch::Receiver<Snapshot>,
    caller: Caller,
    name: JobRef,
    /// The job as it was last sent; of an array the one that stood for it.
    seen: Option<Arc<Job>>,
    over: bool,
}

impl Watch {
    async fn next(mut self) -> Option<(Result<v1::Job, Status>, Self)> {
        while !self.over {
            let snapshot = Arc::clone(&self.states.borrow_and_update());
            let state = snapshot.state();
            let job = state.find_job(&self.caller, &self.name).ok()?;
            let is_same = self.seen.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, job));
            if !is_same {
                self.seen = Some(Arc::clone(job));
                // One that is over stands for its array only once all of it is.
                self.over = job.state().is_final();
                let position = queue_position(state, job.id);
                let message = convert::job(state, job, position);
                let whole = self.over && self.name.tasks.is_none();
                let message = if whole {
                    convert::whole_array(state, job, message)
                } else {
                    message
                };
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
