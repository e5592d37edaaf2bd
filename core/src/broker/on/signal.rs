//! Signals to what runs of batch jobs, without ending it.

use std::sync::Arc;

use crate::broker::input::Caller;
use crate::broker::{Broker, Call, Reject, RejectKind, Reply};
use crate::model::array::JobRef;
use crate::model::job::{Job, JobState, Sent, Signalled};

impl Broker {
    /// By its owner or an operator. Of an array what runs of it is meant.
    pub(super) fn on_signal_job(
        &mut self,
        caller: &Caller,
        name: &JobRef,
        sent: Sent,
    ) -> Result<Reply, Reject> {
        let jobs = self.batch_jobs(caller, Call::SignalJob, name)?;
        if !sent.is_valid() {
            return Err(Reject::new(
                RejectKind::Invalid,
                format!("{} is no signal: they are 1 to 31", sent.signal),
            ));
        }
        let running: Vec<Arc<Job>> = jobs
            .iter()
            .filter(|job| job.state() == JobState::Running)
            .cloned()
            .collect();
        if running.is_empty() {
            let state = jobs.last().map_or("over", |job| job.state().name());
            return Err(Reject::new(
                RejectKind::WrongState,
                format!("job {name} does not run: it is {state}"),
            )
            .hint("only what runs can be sent a signal"));
        }
        self.audit_foreign(caller, &running, name, "sent a signal");
        for job in running {
            let Some(placed) = job.placed() else { continue };
            let mut placed = placed.clone();
            let count = placed.signalled.map_or(0, |last| last.count);
            placed.signalled = Some(Signalled {
                count: count.saturating_add(1),
                sent,
            });
            let nodes: Vec<_> = placed
                .allocation
                .nodes
                .iter()
                .map(|part| part.node.clone())
                .collect();
            self.put_job(job.with_placed(placed));
            for node in nodes {
                self.touch_job(&node, job.id);
            }
        }
        Ok(Reply::Done)
    }
}
