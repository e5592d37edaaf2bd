//! Batch jobs: queued, and queued again.

use std::sync::Arc;

use super::end::MAX_RESTARTS;
use crate::broker::input::{Caller, SubmitJob};
use crate::broker::names::out_of_reach;
use crate::broker::{Broker, Call, Named, Reject, RejectKind, Reply, State};
use crate::model::array::{ArrayPart, ArrayRecord, ArraySpec, JobRef, MAX_RANGES, Shape};
use crate::model::audit::Action;
use crate::model::batch::{Batch, Output, Place};
use crate::model::indices::IndexSet;
use crate::model::job::{Ending, Hold, Job, JobKind, JobState, Phase, Placed};
use crate::model::mail::MailWish;
use crate::model::start::Conditions;
use crate::model::terms::Terms;
use crate::model::time::Timestamp;

/// Arguments of a command, and bytes of them: they are kept with the job.
const MAX_ARGUMENTS: usize = 4_096;
const MAX_COMMAND_BYTES: usize = 64 * 1024;
/// Bytes of a script: it is kept with the job and travels with each Desired. A script of people's has some KiB.
pub const MAX_SCRIPT: usize = 256 * 1024;
/// Bytes of a job's name: it is among the labels of its containers.
const MAX_NAME: usize = 200;
/// Bytes of what a user says of a job: programs write a line of words there.
const MAX_COMMENT: usize = 4_096;
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
            && (self.state.jobs.contains_key(id) || self.state.arrays.contains_key(id))
        {
            return Ok(Reply::Job(*id));
        }
        let request = self.state.as_inside(caller, request)?;
        must_be_runnable(&request)?;
        let terms = self.state.terms(&caller.user, caller.role, &request.spec.terms)?;
        let spec = self.state.complete(request.spec, &terms)?;
        self.state.must_be_acceptable(&caller.user, &spec, &terms)?;
        let mut start = request.start;
        let named = start.conditions.dependencies.iter();
        start.conditions.dependencies = named.map(|on| self.state.by_array(*on)).collect();
        if let Some(array) = &request.array {
            self.state
                .must_be_an_array(caller, &terms, array, &start.conditions)?;
        }
        let id = self.next_job_id(&start)?;
        let array = request.array.map(|spec| {
            let shape = Shape::of(&spec.tasks);
            self.put_array(ArrayRecord {
                id,
                tasks: spec.tasks.clone(),
                completed: IndexSet::default(),
                failed: IndexSet::default(),
                exit_code: 0,
                lowered: false,
            });
            Arc::new(ArrayPart {
                array: id,
                tasks: spec.tasks,
                throttle: spec.throttle,
                shape,
            })
        });
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
                submitted_by: caller.job().map(|own| own.job),
                mail: request.mail,
                comment: request.comment,
                request_key: request.request_key,
            })),
            array,
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
        name: &JobRef,
    ) -> Result<Reply, Reject> {
        let jobs = self.batch_jobs(caller, Call::RequeueJob, name)?;
        let runs = |job: &&Arc<Job>| job.placed().is_some_and(|placed| placed.ending.is_none());
        let again = |job: &Arc<Job>| job.placed().is_some_and(Placed::comes_again);
        let running: Vec<Arc<Job>> = jobs.iter().filter(runs).cloned().collect();
        if running.is_empty() {
            if jobs.iter().any(again) {
                return Ok(Reply::Done);
            }
            let anew: Vec<Job> = jobs.iter().filter_map(|job| job.once_more()).collect();
            if !anew.is_empty() {
                return self.run_once_more(caller, &jobs, anew, name);
            }
            let state = jobs.last().map_or("over", |job| job.state().name());
            return Err(Reject::new(
                RejectKind::WrongState,
                format!("job {name} does not run: it is {state}"),
            )
            .hint("what runs can be queued again, and what has run"));
        }
        self.audit_foreign(caller, &running, name, "queued again");
        for job in running {
            let ending = Ending {
                state: JobState::Cancelled,
                reason: format!("queued again by {}", caller.user),
                exit_code: None,
            };
            self.begin_end(now, job.id, ending, true, None);
        }
        Ok(Reply::Done)
    }

    /// What is over waits again, as a new run of the same job.
    fn run_once_more(
        &mut self,
        caller: &Caller,
        jobs: &[Arc<Job>],
        anew: Vec<Job>,
        name: &JobRef,
    ) -> Result<Reply, Reject> {
        if let Some(worn) = anew.iter().find(|job| job.past_runs.len() > MAX_RESTARTS) {
            return Err(Reject::new(
                RejectKind::Exhausted,
                format!("job {} has run {MAX_RESTARTS} times already", worn.label()),
            )
            .hint("submit it anew"));
        }
        if let Some(first) = anew.first() {
            let count = u32::try_from(anew.len()).unwrap_or(u32::MAX);
            self.state.must_have_room_for(&first.owner, &first.terms, count)?;
        }
        self.audit_foreign(caller, jobs, name, "queued again");
        for job in anew {
            self.put_job(job);
        }
        self.output.room = true;
        Ok(Reply::Done)
    }

    /// By its owner or an operator; of what is over nothing is left to do.
    pub(super) fn on_cancel_job(
        &mut self,
        now: Timestamp,
        caller: &Caller,
        name: &JobRef,
    ) -> Result<Reply, Reject> {
        let jobs = self.batch_jobs(caller, Call::CancelJob, name)?;
        let live = jobs.into_iter().filter(|job| !job.state().is_final());
        let live: Vec<Arc<Job>> = live.collect();
        self.audit_foreign(caller, &live, name, "cancelled");
        let tasks = self.state.tasks_of(name);
        for job in live {
            let job = match &tasks {
                Some(tasks) => self.set_apart(&job, tasks),
                None => job,
            };
            let ending = Ending {
                state: JobState::Cancelled,
                reason: format!("cancelled by {}", caller.user),
                exit_code: None,
            };
            self.end_for_good(now, job.id, ending);
        }
        Ok(Reply::Done)
    }

    pub(super) fn audit_foreign(&mut self, caller: &Caller, jobs: &[Arc<Job>], name: &JobRef, what: &str) {
        if jobs.iter().any(|job| job.owner != caller.user) {
            self.audit(caller, Action::JobUpdate, format!("job {name}"), what);
        }
    }

    /// The batch jobs that a caller names, if they are theirs to change: of an array those that its tasks are, or wait
    /// in.
    pub(super) fn batch_jobs(
        &self,
        caller: &Caller,
        call: Call,
        name: &JobRef,
    ) -> Result<Vec<Arc<Job>>, Reject> {
        caller.must(call)?;
        let named = self.state.named(name).map_err(|reject| match caller.job() {
            Some(_) => out_of_reach(),
            None => reject,
        });
        let jobs: Vec<Arc<Job>> = match named? {
            Named::Job(id) => self.state.jobs.get(&id).cloned().into_iter().collect(),
            Named::Tasks(array, tasks) => self.state.jobs_of_tasks(array, &tasks),
        };
        if jobs.iter().any(|job| !self.state.within_reach(caller, job)) {
            return Err(out_of_reach());
        }
        if jobs.iter().any(|job| job.owner != caller.user) {
            caller.must_reach_others(call)?;
        }
        if jobs.iter().any(|job| job.kind != JobKind::Batch) {
            return Err(Reject::new(
                RejectKind::WrongState,
                format!("job {name} is a session's, and no batch job"),
            )
            .hint("`carrel stop` and `carrel open` end a session and start it anew"));
        }
        Ok(jobs)
    }
}

impl State {
    /// The tasks that a name picks out of an array; none: it means a job.
    pub(super) fn tasks_of(&self, name: &JobRef) -> Option<IndexSet> {
        match self.named(name) {
            Ok(Named::Tasks(_, tasks)) => Some(tasks),
            Ok(Named::Job(_)) | Err(_) => None,
        }
    }

    /// Refuses an array that is larger than may be here, or than its user may have.
    fn must_be_an_array(
        &self,
        caller: &Caller,
        terms: &Terms,
        array: &ArraySpec,
        conditions: &Conditions,
    ) -> Result<(), Reject> {
        let invalid = |message: String| Reject::new(RejectKind::Invalid, message);
        let most = self.settings.queue.max_array_size;
        let Some(last) = array.tasks.last() else {
            return Err(invalid("an array has one task at least".to_owned()).hint("write --array=0-99"));
        };
        if most == 0 {
            return Err(invalid("this cluster takes no arrays".to_owned())
                .hint("an administrator sets max_array_size in [queue]"));
        }
        if last >= most {
            return Err(
                invalid(format!("index {last} is beyond {}, the greatest here", most - 1))
                    .hint("an administrator sets max_array_size in [queue]"),
            );
        }
        if array.tasks.ranges() > MAX_RANGES {
            return Err(
                invalid(format!("an array is written in {MAX_RANGES} ranges at most"))
                    .hint("submit it in several arrays"),
            );
        }
        for on in conditions.dependencies.iter().filter(|on| self.is_by_task(on)) {
            let other = self.arrays.get(&on.job).map(|other| &other.record.tasks);
            let lacks = |task: &u32| other.is_some_and(|other| !other.contains(*task));
            if let Some(task) = array.tasks.iter().find(lacks) {
                return Err(invalid(format!(
                    "array {} has no task {task} for task {task} of this one to wait for",
                    on.job
                )));
            }
        }
        let count = u32::try_from(array.tasks.len()).unwrap_or(u32::MAX);
        self.must_have_room_for(&caller.user, terms, count)
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
    if request.comment.len() > MAX_COMMENT || request.comment.chars().any(char::is_control) {
        return invalid(format!(
            "a job's comment has at most {MAX_COMMENT} bytes, and no control characters"
        ));
    }
    if let Some(wrong) = request.mail.as_ref().and_then(MailWish::wrong) {
        return invalid(wrong);
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
