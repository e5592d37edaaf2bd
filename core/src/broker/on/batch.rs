//! Batch jobs: queued, and queued again.

use std::sync::Arc;

use crate::broker::input::{Caller, SubmitJob};
use crate::broker::{Broker, Call, Reject, RejectKind, Reply};
use crate::model::audit::Action;
use crate::model::batch::Batch;
use crate::model::ids::JobId;
use crate::model::job::{Ending, Hold, Job, JobKind, JobState, Phase};
use crate::model::time::Timestamp;

/// Arguments of a command, and bytes of them: they are kept with the job.
const MAX_ARGUMENTS: usize = 4_096;
const MAX_COMMAND_BYTES: usize = 64 * 1024;

impl Broker {
    pub(super) fn on_submit_job(
        &mut self,
        now: Timestamp,
        caller: &Caller,
        request: SubmitJob,
    ) -> Result<Reply, Reject> {
        caller.must(Call::OpenSession)?;
        must_be_a_command(&request.command)?;
        let terms = self.state.terms(&caller.user, caller.role, &request.spec.terms)?;
        let spec = self.state.complete(request.spec, &terms)?;
        self.state.must_be_acceptable(&caller.user, &spec, &terms)?;
        let start = request.start;
        let id = self.next_job_id(&start)?;
        let job = Job {
            id,
            name: request.name.to_string(),
            kind: JobKind::Batch,
            owner: caller.user.clone(),
            session: None,
            request: spec.request,
            time_limit: spec.time_limit,
            submitted: now,
            after: None,
            terms,
            hold: start.hold.then_some(Hold::User),
            begin: start.begin.filter(|begin| *begin > now),
            conditions: start.conditions,
            give_up: start.within.map(|within| now.after(within)),
            past_runs: Vec::new(),
            requeue: request.requeue,
            batch: Some(Arc::new(Batch {
                command: request.command,
                image: spec.image,
                env: spec.env,
                workdir: spec.workdir,
                container: spec.container,
            })),
            phase: Phase::Pending,
        };
        self.queue_new(now, job);
        Ok(Reply::Job(id))
    }

    /// By its owner or an operator.
    pub(super) fn on_requeue_job(
        &mut self,
        now: Timestamp,
        caller: &Caller,
        id: JobId,
    ) -> Result<Reply, Reject> {
        let job = self.batch_job(caller, id)?;
        let foreign = job.owner != caller.user;
        let wrong = |message: String| Reject::new(RejectKind::WrongState, message);
        match job.placed() {
            Some(placed) if placed.comes_again() => return Ok(Reply::Done),
            Some(placed) if placed.ending.is_none() => {}
            Some(_) | None => {
                return Err(
                    wrong(format!("job {id} does not run: it is {}", job.state().name()))
                        .hint("only what runs can be queued again"),
                );
            }
        }
        let ending = Ending {
            state: JobState::Cancelled,
            reason: format!("queued again by {}", caller.user),
            exit_code: None,
        };
        if foreign {
            self.audit(caller, Action::JobUpdate, format!("job {id}"), "queued again");
        }
        self.begin_end(now, id, ending, true, None);
        Ok(Reply::Done)
    }

    /// By its owner or an operator; of what is over nothing is left to do.
    pub(super) fn on_cancel_job(
        &mut self,
        now: Timestamp,
        caller: &Caller,
        id: JobId,
    ) -> Result<Reply, Reject> {
        let job = self.batch_job(caller, id)?;
        if job.owner != caller.user {
            self.audit(caller, Action::JobUpdate, format!("job {id}"), "cancelled");
        }
        let ending = Ending {
            state: JobState::Cancelled,
            reason: format!("cancelled by {}", caller.user),
            exit_code: None,
        };
        self.end_for_good(now, id, ending);
        Ok(Reply::Done)
    }

    /// A batch job that is the caller's to change.
    fn batch_job(&self, caller: &Caller, id: JobId) -> Result<Arc<Job>, Reject> {
        caller.must(Call::UpdateJob)?;
        let Some(job) = self.state.jobs.get(&id) else {
            return Err(Reject::new(RejectKind::NotFound, format!("there is no job {id}"))
                .hint("`carrel queue` lists those that wait and run"));
        };
        if job.owner != caller.user {
            caller.must_reach_others(Call::UpdateJob)?;
        }
        if job.kind != JobKind::Batch {
            return Err(Reject::new(
                RejectKind::WrongState,
                format!("job {id} is a session's, and no batch job"),
            )
            .hint("`carrel stop` and `carrel open` end a session and start it anew"));
        }
        Ok(Arc::clone(job))
    }
}

fn must_be_a_command(command: &[String]) -> Result<(), Reject> {
    let invalid = |message: String| Err(Reject::new(RejectKind::Invalid, message));
    let bytes: usize = command.iter().map(String::len).sum();
    if command.first().is_none_or(String::is_empty) {
        return invalid("there is no command to run".to_owned());
    }
    if command.iter().any(|argument| argument.contains('\0')) {
        return invalid("a command cannot hold the character NUL".to_owned());
    }
    if command.len() > MAX_ARGUMENTS || bytes > MAX_COMMAND_BYTES {
        return invalid(format!(
            "a command of {} arguments and {bytes} bytes is too long ({MAX_ARGUMENTS} and {MAX_COMMAND_BYTES} at most)",
            command.len()
        ));
    }
    Ok(())
}
