//! What users do to their sessions.

use std::time::Duration;

use crate::broker::audit::session_subject;
use crate::broker::input::{Caller, SessionRef};
use crate::broker::{Broker, Call, Reject, RejectKind, Reply};
use crate::model::audit::Action;
use crate::model::ids::JobId;
use crate::model::job::{Ending, Job, JobState, Placed};
use crate::model::time::Timestamp;
use crate::model::user::Role;

impl Broker {
    pub(super) fn on_extend(
        &mut self,
        now: Timestamp,
        caller: &Caller,
        wanted: &SessionRef,
        add: Duration,
    ) -> Result<Reply, Reject> {
        let session = self.state.session_for(caller, wanted, Call::ExtendSession)?;
        let (name, subject) = (session.name.clone(), session_subject(session));
        let foreign = session.owner != caller.user;
        let job = self.state.live_job(session).cloned();
        let Some((job, mut placed)) = job.and_then(|job| job.placed().cloned().map(|placed| (job, placed)))
        else {
            return Err(
                Reject::new(RejectKind::WrongState, format!("session {name} is not running"))
                    .hint(format!("`carrel open {name}` starts it")),
            );
        };
        if placed.ending.is_some() {
            return Err(Reject::new(
                RejectKind::WrongState,
                format!("session {name} is already ending"),
            ));
        }
        if add.is_zero() {
            return Err(Reject::new(RejectKind::Invalid, "the time to add is zero").hint("for example +2h"));
        }
        let latest = placed.started.after(self.state.settings.max_time);
        let deadline = placed.deadline.after(add);
        if deadline > latest {
            let left = latest.since(placed.deadline).as_secs() / 60;
            return Err(Reject::new(
                RejectKind::Invalid,
                format!("session {name} would run longer than this cluster allows"),
            )
            .hint(format!("at most {left} more minutes can be added")));
        }
        // Operators decide for all.
        if !(foreign && caller.role >= Role::Operator) {
            self.state.must_keep_off(now, &job, deadline)?;
            self.state.must_harm_nobody(now, &job, deadline)?;
        }
        // Who does this is there.
        placed.extended = Some(now);
        self.put_deadline(&job, placed, deadline);
        if foreign {
            let detail = format!("by {} s", add.as_secs());
            self.audit(caller, Action::SessionExtend, subject, detail);
        }
        Ok(Reply::Deadline(deadline))
    }

    /// What a job holds is its until another time.
    pub(super) fn put_deadline(&mut self, job: &Job, placed: Placed, deadline: Timestamp) {
        self.state.idle.remove(&job.id);
        let nodes: Vec<_> = placed
            .allocation
            .nodes
            .iter()
            .map(|part| part.node.clone())
            .collect();
        self.put_job(job.with_placed(Placed { deadline, ..placed }));
        for node in nodes {
            self.touch_job(&node, job.id);
        }
        // What was promised to others may have to be promised anew.
        self.output.room = true;
    }

    pub(super) fn on_stop(
        &mut self,
        now: Timestamp,
        caller: &Caller,
        wanted: &SessionRef,
        only: Option<JobId>,
    ) -> Result<Reply, Reject> {
        let session = self.state.session_for(caller, wanted, Call::StopSession)?;
        let (id, subject) = (session.id, session_subject(session));
        let foreign = session.owner != caller.user;
        let live = self.state.live_job(session).map(|job| job.id);
        // A stop that is repeated, or comes after the end, finds nothing to do.
        if let Some(job) = live.filter(|job| only.is_none_or(|only| only == *job)) {
            let inside = if caller.job().is_some() {
                " from inside"
            } else {
                ""
            };
            self.stop_job(now, job, &format!("stopped by {}{inside}", caller.user));
            if foreign {
                self.audit(caller, Action::SessionStop, subject, format!("job {job}"));
            }
        }
        Ok(Reply::Session(id, false))
    }

    /// Its job ends as one does whose command ends by itself.
    pub(super) fn on_end(
        &mut self,
        now: Timestamp,
        caller: &Caller,
        wanted: &SessionRef,
        job: JobId,
        code: u8,
    ) -> Result<Reply, Reject> {
        let session = self.state.session_for(caller, wanted, Call::StopSession)?;
        let live = self.state.live_job(session).filter(|live| live.id == job);
        if session.owner != caller.user || live.is_some_and(|live| live.state() != JobState::Running) {
            // It was not there for their command, or has run none.
            return self.on_stop(now, caller, wanted, Some(job));
        }
        let id = session.id;
        if live.is_some() {
            let (state, how) = match code {
                0 => (JobState::Completed, String::new()),
                _ => (JobState::Failed, format!(" with exit code {code}")),
            };
            let ending = Ending {
                state,
                reason: format!("its command ended{how}"),
                exit_code: Some(code.into()),
            };
            self.end_for_good(now, job, ending);
        }
        Ok(Reply::Session(id, false))
    }

    pub(super) fn on_remove(
        &mut self,
        now: Timestamp,
        caller: &Caller,
        wanted: &SessionRef,
    ) -> Result<Reply, Reject> {
        let session = self.state.session_for(caller, wanted, Call::RemoveSession)?;
        let mut session = (**session).clone();
        if session.owner != caller.user {
            self.audit(caller, Action::SessionRemove, session_subject(&session), "");
        }
        let live = self.state.live_job(&session).map(|job| job.id);
        session.removing = true;
        let id = session.id;
        self.put_session(session);
        match live {
            Some(job) => self.stop_job(now, job, &format!("removed by {}", caller.user)),
            None => self.forget_session(id),
        }
        Ok(Reply::Session(id, false))
    }

    /// Ends a job by its user's wish.
    pub(super) fn stop_job(&mut self, now: Timestamp, id: JobId, reason: &str) {
        let Some(job) = self.state.jobs.get(&id) else {
            return;
        };
        let state = match job.state() {
            JobState::Pending | JobState::Configuring => JobState::Cancelled,
            _ => JobState::Completed,
        };
        self.end_for_good(
            now,
            id,
            Ending {
                state,
                reason: reason.to_owned(),
                exit_code: None,
            },
        );
    }
}
