//! What users do, and what operators do about what is found.

use std::time::Duration;

use carrel_core::broker::{Broker, Caller, Input, Reject, Reply, SessionRef, SubmitJob, found_jobs};
use carrel_core::model::batch::{Output, Place};
use carrel_core::model::ids::{JobId, JobKey, SessionId};
use carrel_core::model::start::StartWish;

use super::promises::Answer;
use super::world::{USERS, World, caller, cluster, user};

impl World {
    pub(super) fn open(&mut self) {
        let (caller, request) = if let Some(repeated) = self.unanswered.take() {
            self.counts.add("request repeated");
            repeated
        } else {
            let request = self.new_request();
            self.perhaps_reserved(request)
        };
        self.know_users();
        match self.input(Input::OpenSession(caller.clone(), request.clone())) {
            None => self.unanswered = Some((caller, request)),
            Some(Err(reject)) => {
                self.note(format!("{} is refused: {reject}", caller.user));
                self.answer = Some(Answer::Refused(Box::new(request), reject));
            }
            Some(Ok(Reply::Session(id, _))) => {
                let state = self.broker.as_ref().map(Broker::state);
                let job = state
                    .and_then(|state| state.sessions.get(&id))
                    .and_then(|session| session.job);
                if let Some(job) = job {
                    self.note(format!("{} has session {id}, job {job}", caller.user));
                    self.counts.add("session opened");
                    self.answer = Some(Answer::Accepted(job));
                    self.told.sessions.insert(id, job);
                }
            }
            Some(Ok(Reply::Done | Reply::Job(_) | Reply::Told(_) | Reply::Deadline(_))) => {}
        }
    }

    /// A batch job, of the sizes that sessions have.
    pub(super) fn submit(&mut self) {
        let (caller, request) = self.new_request();
        self.know_users();
        self.perhaps_tasks();
        let array = self.perhaps_an_array();
        let request = SubmitJob {
            name: "train".to_owned(),
            spec: request.spec.expect("it says what it is to be"),
            command: vec!["train".to_owned()],
            script: None,
            output: Output::default(),
            submitted_from: Place::default(),
            comment: String::new(),
            request_key: String::new(),
            requeue: self.rng.one_in(2),
            mail: None,
            start: StartWish::default(),
            array,
        };
        if let Some(Ok(Reply::Job(job))) = self.input(Input::SubmitJob(caller, Box::new(request))) {
            self.note(format!("batch job {job} is submitted"));
            self.counts.add("batch job submitted");
            self.told.jobs.insert(job);
        }
    }

    /// The name service tells of users that the directory does not have: its store may have been lost.
    pub(super) fn know_users(&mut self) {
        for number in 0..USERS.len() {
            let user = user(number);
            let known = self
                .broker
                .as_ref()
                .is_none_or(|broker| broker.state().users.contains_key(&user.name));
            if !known {
                self.input(Input::PutUser(None, user));
            }
        }
    }

    /// One of the sessions that somebody was told of and that is still there.
    fn pick_session(&mut self) -> Option<(SessionId, Caller)> {
        let state = self.broker.as_ref()?.state();
        let known = self.told.sessions.keys().filter_map(|id| state.sessions.get(id));
        let known: Vec<_> = known
            .map(|session| (session.id, session.owner.to_string()))
            .collect();
        let (id, owner) = self.rng.pick(&known)?.clone();
        Some((id, caller(&owner)))
    }

    /// The job that a session has now; somebody wishes it to end.
    pub(super) fn wish_end(&mut self, id: SessionId) -> Option<JobId> {
        let state = self.broker.as_ref()?.state();
        let job = state.sessions.get(&id)?.job?;
        let key = state.jobs.get(&job).and_then(|job| job.key());
        self.wished.extend(key);
        Some(job)
    }

    pub(super) fn stop(&mut self) {
        let Some((id, caller)) = self.pick_session() else {
            return;
        };
        let job = self.wish_end(id);
        // By its user's wish, or since the command that it was there for has ended, well or not.
        let input = match job {
            Some(job) if job.0 % 2 == 0 => {
                let code = u8::from(job.0 % 4 == 0) * 3;
                Input::EndSession(caller, SessionRef::Id(id), job, code)
            }
            _ => Input::StopSession(caller, SessionRef::Id(id), None),
        };
        if let Some(Ok(_)) = self.input(input) {
            self.note(format!("session {id} is stopped"));
            self.counts.add("session stopped");
            self.told.stopped.extend(job);
        }
    }

    pub(super) fn remove(&mut self) {
        let Some((id, caller)) = self.pick_session() else {
            return;
        };
        self.wish_end(id);
        let answer = self.input(Input::RemoveSession(caller, SessionRef::Id(id)));
        match answer {
            Some(Ok(_)) => {
                self.note(format!("session {id} is removed"));
                self.counts.add("session removed");
                self.told.sessions.remove(&id);
                self.told.removed.insert(id);
            }
            Some(Err(_)) => {}
            // Without an answer it may be removed, or not.
            None => drop(self.told.sessions.remove(&id)),
        }
    }

    pub(super) fn extend(&mut self) {
        let Some((id, caller)) = self.pick_session() else {
            return;
        };
        let allocation = self.broker.as_ref().and_then(|broker| {
            let state = broker.state();
            let job = state.sessions.get(&id)?.job?;
            state.jobs.get(&job)?.key()
        });
        let add = Duration::from_mins(1 + self.rng.below(10));
        let answer = self.input(Input::ExtendSession(caller, SessionRef::Id(id), add));
        if let (Some(Ok(Reply::Deadline(deadline))), Some(key)) = (answer, allocation) {
            self.note(format!("session {id} is extended"));
            self.counts.add("session extended");
            self.told.deadlines.insert(key, deadline);
        }
    }

    /// An operator takes found nodes back, and adopts or ends what they run.
    pub(super) fn operate(&mut self) {
        self.know_users();
        let Some(broker) = &self.broker else { return };
        let nodes = broker.state().nodes.values();
        let found = nodes.filter(|node| node.found.is_some());
        let found: Vec<_> = found.map(|node| node.name.clone()).collect();
        for node in found {
            if let Some(Ok(_)) = self.input(Input::AdoptNode(caller("root"), node.clone())) {
                self.note(format!("{node} is adopted"));
                self.counts.add("node adopted");
            }
        }
        let Some(broker) = &self.broker else { return };
        let jobs = found_jobs(broker.state());
        let jobs: Vec<JobKey> = jobs
            .iter()
            .filter(|job| job.cluster == cluster() && !job.ending)
            .map(|job| job.key)
            .collect();
        for key in jobs {
            self.counts.add("job found");
            let adopt = !self.rng.one_in(3);
            if adopt && let Some(Ok(Reply::Session(session, _))) = self.adopt(key) {
                self.note(format!("job {key} is adopted as session {session}"));
                self.counts.add("found job adopted");
                // It lives again, whatever somebody was told of a job of that id.
                self.told.removed.remove(&session);
                self.told.stopped.remove(&key.job);
                self.told.sessions.insert(session, key.job);
            } else if !self.faults || self.rng.one_in(3) {
                self.wished.insert(key);
                if let Some(Ok(_)) = self.input(Input::EndFound(caller("root"), key)) {
                    self.note(format!("job {key} is ended"));
                    self.counts.add("found job ended");
                }
            }
        }
    }

    fn adopt(&mut self, key: JobKey) -> Option<Result<Reply, Reject>> {
        // It has what it has, whatever its session asks for by now.
        self.judged.insert(key);
        self.excused.insert(key);
        self.input(Input::AdoptJob(caller("root"), key))
    }
}
