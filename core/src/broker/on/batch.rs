//! Batch jobs: queued, and queued again.

use std::sync::Arc;

use crate::broker::input::{Caller, SubmitJob};
use crate::broker::{Broker, Call, Reject, RejectKind, Reply};
use crate::model::audit::Action;
use crate::model::batch::{Batch, Output, Place};
use crate::model::ids::JobId;
use crate::model::job::{Ending, Hold, Job, JobKind, JobState, Phase};
use crate::model::time::Timestamp;

/// Arguments of a command, and bytes of them: they are kept with the job.
const MAX_ARGUMENTS: usize = 4_096;
const MAX_COMMAND_BYTES: usize = 64 * 1024;
/// Bytes of a script: it is kept with the job and travels with each Desired. A script of people's has some KiB.
pub const MAX_SCRIPT: usize = 256 * 1024;
/// Bytes of a job's name: it is among the labels of its containers.
const MAX_NAME: usize = 200;
/// Bytes of a file's name, as the kernel takes it (`PATH_MAX`).
const MAX_PATH: usize = 4_096;

impl Broker {
    pub(super) fn on_submit_job(
        &mut self,
        now: Timestamp,
        caller: &Caller,
        request: SubmitJob,
    ) -> Result<Reply, Reject> {
        caller.must(Call::SubmitJob)?;
        let key = (caller.user.clone(), request.request_key.clone());
        if let Some(id) = self.state.submit_keys.get(&key)
            && self.state.jobs.contains_key(id)
        {
            return Ok(Reply::Job(*id));
        }
        must_be_runnable(&request)?;
        let terms = self.state.terms(&caller.user, caller.role, &request.spec.terms)?;
        let spec = self.state.complete(request.spec, &terms)?;
        self.state.must_be_acceptable(&caller.user, &spec, &terms)?;
        let start = request.start;
        let id = self.next_job_id(&start)?;
        let job = Job {
            id,
            name: request.name,
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
                script: request.script,
                output: request.output,
                submitted_from: request.submitted_from,
                request_key: request.request_key,
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
        let job = self.batch_job(caller, Call::RequeueJob, id)?;
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
        let job = self.batch_job(caller, Call::CancelJob, id)?;
        if job.state().is_final() {
            return Ok(Reply::Done);
        }
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
    fn batch_job(&self, caller: &Caller, call: Call, id: JobId) -> Result<Arc<Job>, Reject> {
        caller.must(call)?;
        let Some(job) = self.state.jobs.get(&id) else {
            return Err(Reject::new(RejectKind::NotFound, format!("there is no job {id}"))
                .hint("`carrel queue` lists those that wait and run"));
        };
        if job.owner != caller.user {
            caller.must_reach_others(call)?;
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

fn must_be_runnable(request: &SubmitJob) -> Result<(), Reject> {
    let invalid = |message: String| Err(Reject::new(RejectKind::Invalid, message));
    let name = &request.name;
    if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
        return invalid(format!(
            "a job's name has 1 to {MAX_NAME} bytes, and no control characters"
        ));
    }
    let Output { stdout, stderr, .. } = &request.output;
    let Place { host, directory } = &request.submitted_from;
    for path in [stdout, stderr, host, directory] {
        if path.len() > MAX_PATH || path.contains(['\0', '\n']) {
            return invalid(format!(
                "the name of a file has at most {MAX_PATH} bytes, in one line: {:.80}",
                path.escape_debug().to_string()
            ));
        }
    }
    must_be_a_command(&request.command, request.script.is_some())?;
    request.script.as_deref().map_or(Ok(()), must_be_a_script)
}

fn must_be_a_command(command: &[String], of_script: bool) -> Result<(), Reject> {
    let invalid = |message: String| Err(Reject::new(RejectKind::Invalid, message));
    let bytes: usize = command.iter().map(String::len).sum();
    if !of_script && command.first().is_none_or(String::is_empty) {
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

fn must_be_a_script(script: &str) -> Result<(), Reject> {
    let invalid = |message: String, hint: &str| Err(Reject::new(RejectKind::Invalid, message).hint(hint));
    if script.len() > MAX_SCRIPT {
        return invalid(
            format!("the script has {} bytes, {MAX_SCRIPT} at most", script.len()),
            "put what is long into files beside it",
        );
    }
    if script.contains('\0') {
        return invalid(
            "the script holds the character NUL: it is no text".to_owned(),
            "to run a program, write it after --",
        );
    }
    let interpreter = script.lines().next().and_then(|line| line.strip_prefix("#!"));
    if !interpreter.is_some_and(|rest| rest.trim_start().starts_with('/')) {
        return invalid(
            "the script's first line does not name its interpreter".to_owned(),
            "begin it with #!/bin/bash",
        );
    }
    Ok(())
}
