//! What users do, and what operators do about what is found.

use std::collections::BTreeMap;
use std::time::Duration;

use carrel_core::broker::{Broker, Caller, Input, OpenSession, Reply, SessionRef, found_jobs};
use carrel_core::model::ids::{JobId, JobKey, SessionId};
use carrel_core::model::resources::{ResourceRequest, UnitRequest};
use carrel_core::model::session::{ContainerOptions, SessionSpec};
use carrel_core::model::terms::TermsRequest;

use super::node::GPUS;
use super::world::{USERS, World, caller, cluster, user};

const NAMES: [&str; 4] = ["dev", "exp", "big", "notebook"];

impl World {
    pub(super) fn open(&mut self) {
        let (caller, request) = match self.unanswered.take() {
            Some(repeated) => {
                self.counts.add("request repeated");
                repeated
            }
            None => self.new_request(),
        };
        self.know_users();
        match self.input(Input::OpenSession(caller.clone(), request.clone())) {
            None => self.unanswered = Some((caller, request)),
            Some(Err(reject)) => {
                self.note(format!("{} is refused: {reject}", caller.user));
                self.counts.add("request refused");
            }
            Some(Ok(Reply::Session(id, _))) => {
                let state = self.broker.as_ref().map(Broker::state);
                let job = state
                    .and_then(|state| state.sessions.get(&id))
                    .and_then(|session| session.job);
                if let Some(job) = job {
                    self.note(format!("{} has session {id}, job {job}", caller.user));
                    self.counts.add("session opened");
                    self.told.sessions.insert(id, job);
                }
            }
            Some(Ok(Reply::Done | Reply::Deadline(_))) => {}
        }
    }

    /// The name service tells of users that the directory does not have: its store may have been lost.
    fn know_users(&mut self) {
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

    fn new_request(&mut self) -> (Caller, OpenSession) {
        let user = USERS[self.rng.below(USERS.len() as u64) as usize];
        let named = !self.rng.one_in(3);
        let name = NAMES[self.rng.below(NAMES.len() as u64) as usize];
        self.requests += 1;
        let unit = match self.rng.below(6) {
            0 => UnitRequest::Mig("1g.10gb".into()),
            1 => UnitRequest::Mig("3g.40gb".into()),
            2 => UnitRequest::Share {
                milli: 1 + self.rng.below(900) as u16,
                sharing: None,
            },
            _ => UnitRequest::Whole,
        };
        let request = ResourceRequest {
            nodes: if self.rng.one_in(4) { 2 } else { 1 },
            // Sometimes more than there is.
            gpus_per_node: self.rng.below(u64::from(GPUS) + 2) as u32,
            gpu_model: String::new(),
            nvlink: unit == UnitRequest::Whole && self.rng.one_in(3),
            unit,
            cpus_per_node: self.rng.below(9) as u32,
            memory_bytes_per_node: self.rng.below(64) << 30,
            ..ResourceRequest::default()
        };
        let spec = SessionSpec {
            request,
            image: String::new(),
            time_limit: Duration::from_mins(2 + self.rng.below(30)),
            env: BTreeMap::new(),
            workdir: String::new(),
            terms: TermsRequest::default(),
            container: ContainerOptions::default(),
        };
        let request = OpenSession {
            name: named.then(|| name.parse().expect("a session name")),
            spec: Some(spec),
            must_start: self.rng.one_in(4),
            ephemeral: !named,
            request_key: format!("r{}", self.requests),
        };
        (caller(user), request)
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
    fn wish_end(&mut self, id: SessionId) -> Option<JobId> {
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
        if let Some(Ok(_)) = self.input(Input::StopSession(caller, SessionRef::Id(id), None)) {
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
        let job = self
            .broker
            .as_ref()
            .and_then(|broker| broker.state().sessions.get(&id)?.job);
        let add = Duration::from_mins(1 + self.rng.below(10));
        let answer = self.input(Input::ExtendSession(caller, SessionRef::Id(id), add));
        if let (Some(Ok(Reply::Deadline(deadline))), Some(job)) = (answer, job) {
            self.note(format!("session {id} is extended"));
            self.counts.add("session extended");
            self.told.deadlines.insert(job, deadline);
        }
    }

    pub(super) fn stop_everything(&mut self) {
        let Some(broker) = &self.broker else { return };
        let sessions: Vec<_> = broker
            .state()
            .sessions
            .values()
            .map(|s| (s.id, s.owner.to_string()))
            .collect();
        for (id, owner) in sessions {
            self.wish_end(id);
            self.input(Input::StopSession(caller(&owner), SessionRef::Id(id), None));
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

    fn adopt(&mut self, key: JobKey) -> Option<Result<Reply, carrel_core::broker::Reject>> {
        self.input(Input::AdoptJob(caller("root"), key))
    }
}
