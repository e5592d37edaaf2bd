//! Whom and what a caller means, and whether it is theirs.

use std::sync::Arc;

use super::input::{Caller, SessionRef};
use super::reject::{Reject, RejectKind};
use super::rights::{Call, Inside, not_from_inside};
use super::state::State;
use crate::model::audit::Origin;
use crate::model::ids::{JobId, JobKey, NodeName, SessionId, SessionName, UserName};
use crate::model::job::Job;
use crate::model::node::NodeRecord;
use crate::model::session::Session;
use crate::model::user::Role;

impl State {
    /// The session that a caller means, if this call may be made of it: it is
    /// theirs, it is shared with them far enough, or their role reaches it.
    ///
    /// Another user's session is denied by the name that the caller gave, and
    /// says no more than that name did.
    pub fn session_for(
        &self,
        caller: &Caller,
        wanted: &SessionRef,
        call: Call,
    ) -> Result<&Arc<Session>, Reject> {
        let found = match wanted {
            SessionRef::Id(id) => self.sessions.get(id),
            SessionRef::Own(name) => self.session_named(&caller.user, name),
            SessionRef::Of(name, user) => self.session_named(user, name),
        };
        if let Some(own) = caller.job() {
            return self.session_inside(own, found, call);
        }
        let needs = call.needs();
        let all = caller.reaches_others(call);
        let foreign = |user: &str| {
            let who = needs
                .others
                .map_or(String::new(), |role| format!("; others' take the role {role}"));
            Reject::new(
                RejectKind::Denied,
                format!("that session belongs to another user{user}"),
            )
            .hint(format!("`carrel ps` lists your own sessions{who}"))
        };
        let shared = found.and_then(|session| session.shares.get(&caller.user));
        match (found, wanted) {
            (Some(session), _) if session.owner == caller.user || all => Ok(session),
            (Some(session), _) if shared.is_some() => {
                if needs.share.is_some_and(|least| shared >= Some(&least)) {
                    return Ok(session);
                }
                Err(Reject::new(
                    RejectKind::Denied,
                    format!(
                        "session {} is shared with you, but is {}'s",
                        session.name, session.owner
                    ),
                )
                .hint(format!("only {} may do this", session.owner)))
            }
            (Some(_), SessionRef::Id(_)) => Err(foreign("")),
            (_, SessionRef::Of(_, user)) if *user != caller.user && !all => {
                Err(foreign(&format!(", {user}")))
            }
            (_, SessionRef::Id(id)) => Err(missing(&format!("with id {id}"))),
            (_, SessionRef::Own(name)) => Err(missing(&format!("named {name}"))),
            (_, SessionRef::Of(name, user)) => Err(missing(&format!("named {name} of {user}"))),
        }
    }

    /// The session that a caller means from inside a job: the job's own, while the job holds that very
    /// allocation. What else there is, it does not learn.
    fn session_inside<'a>(
        &'a self,
        own: JobKey,
        found: Option<&'a Arc<Session>>,
        call: Call,
    ) -> Result<&'a Arc<Session>, Reject> {
        if call.needs().inside == Inside::No {
            return Err(not_from_inside());
        }
        let lives = self.jobs.get(&own.job).is_some_and(|job| job.key() == Some(own));
        found
            .filter(|session| lives && session.job == Some(own.job))
            .ok_or_else(|| {
                Reject::new(
                    RejectKind::Denied,
                    "from inside a session only that session can be reached",
                )
                .hint("without a name, `carrel show`, `extend` and `stop` mean the session that they run in")
            })
    }

    /// The job that a caller means, if it is theirs to see.
    pub fn job_for(&self, caller: &Caller, id: JobId) -> Result<&Arc<Job>, Reject> {
        let found = self.jobs.get(&id);
        if caller.job().is_some() && !found.is_some_and(|job| self.within_reach(caller, job)) {
            return Err(out_of_reach());
        }
        found.ok_or_else(|| {
            Reject::new(RejectKind::NotFound, format!("there is no job {id}"))
                .hint("`carrel ps` lists your sessions and their jobs")
        })
    }

    /// Whether a job may be seen and changed from where a caller asks: from inside a job that job, the other tasks of
    /// its array, and what it has submitted; from outside that is no question.
    pub fn within_reach(&self, caller: &Caller, job: &Job) -> bool {
        let Some(own) = caller.job() else { return true };
        // What was under way when a job ended reaches nothing any more.
        let Some(asks) = self.jobs.get(&own.job).filter(|job| job.key() == Some(own)) else {
            return false;
        };
        if job.id == own.job {
            return true;
        }
        let array_of = |job: &Job| job.array.as_ref().map(|part| part.array);
        let own_array = array_of(asks);
        let child = job.batch.as_ref().and_then(|batch| batch.submitted_by) == Some(own.job);
        job.owner == caller.user && (child || own_array.is_some() && own_array == array_of(job))
    }

    /// Who asks from inside an allocation, if it is this node that runs it: the job's owner, confined
    /// to that job.
    ///
    /// `certificate` is the serial of the one that the node came with. A job that its node still ends is
    /// still there.
    pub fn caller_inside(&self, node: &NodeName, certificate: &str, key: JobKey) -> Result<Caller, Reject> {
        let known = self
            .nodes
            .get(node)
            .is_some_and(|record| record.accepts(certificate));
        let job = self
            .jobs
            .get(&key.job)
            .filter(|job| known && job.key() == Some(key));
        let placed = job.and_then(|job| job.placed().map(|placed| (job, placed)));
        let runs = placed.and_then(|(job, placed)| {
            let mut parts = placed.allocation.nodes.iter().zip(&placed.ranks);
            parts
                .any(|(part, rank)| part.node == *node && !rank.released)
                .then_some(job)
        });
        let job = runs.ok_or_else(|| {
            Reject::new(
                RejectKind::Denied,
                format!("job {} does not run on node {node}, or does no longer", key.job),
            )
        })?;
        Ok(Caller {
            user: job.owner.clone(),
            role: Role::User,
            origin: Origin::Job(node.clone(), key),
        })
    }

    /// A user's sessions, by name.
    pub fn sessions_of<'a>(&'a self, user: &'a UserName) -> impl Iterator<Item = SessionId> + 'a {
        let all = self.session_names.range((user.clone(), SessionName::first())..);
        all.take_while(move |((owner, _), _)| owner == user)
            .map(|(_, id)| *id)
    }

    fn session_named(&self, user: &UserName, name: &SessionName) -> Option<&Arc<Session>> {
        let id = self.session_names.get(&(user.clone(), name.clone()))?;
        self.sessions.get(id)
    }

    /// The node of that name.
    pub(super) fn node_named(&self, name: &NodeName) -> Result<&Arc<NodeRecord>, Reject> {
        self.nodes.get(name).ok_or_else(|| {
            Reject::new(RejectKind::NotFound, format!("there is no node named {name}"))
                .hint("`carrel nodes` lists the nodes")
        })
    }
}

/// From inside a job, of another one.
pub(super) fn out_of_reach() -> Reject {
    Reject::new(
        RejectKind::Denied,
        "from inside a session only its own job, and what it has submitted, can be reached",
    )
    .hint("`carrel ps` shows them")
}

fn missing(what: &str) -> Reject {
    Reject::new(RejectKind::NotFound, format!("there is no session {what}"))
        .hint("`carrel ps` lists your sessions; `carrel open NAME --gpus N` makes one")
}
