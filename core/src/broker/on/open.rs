//! A session is to be open: find it or create it, and see that it has a live job.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::broker::input::{Caller, OpenSession};
use crate::broker::{Broker, Call, Reject, RejectKind, Reply, State};
use crate::model::ids::{JobId, SessionId, SessionName, UserName};
use crate::model::job::{Hold, Job, JobKind, Phase};
use crate::model::policy::Refusal;
use crate::model::resources::{ResourceRequest, UnitRequest};
use crate::model::session::{Session, SessionSpec};
use crate::model::start::StartWish;
use crate::model::terms::Terms;
use crate::model::time::Timestamp;
use crate::placement::{MAX_COMPONENTS, Needs};

/// Sessions that one user may have; more is a script gone wrong.
const MAX_SESSIONS_PER_USER: usize = 1_000;
/// Jobs that may wait; beyond it the broker's memory would be the limit.
const MAX_PENDING: usize = 200_000;
/// Nodes of one job: the largest GPU cluster known has some ten thousand hosts.
const MAX_NODES: u32 = 16_384;
/// GPUs of one host: placement's masks are 64 bits wide.
const MAX_GPUS_PER_NODE: u32 = 64;
/// Hardware threads of one host.
const MAX_CPUS: u32 = 65_536;
/// Memory of one host, bytes: 64 TiB.
const MAX_MEMORY: u64 = 64 << 40;
/// Variables of a session, and bytes of them: they travel with each Desired.
const MAX_ENV: usize = 256;
const MAX_ENV_BYTES: usize = 32 * 1024;
/// Characters of an image reference or a path.
const MAX_TEXT: usize = 1_024;

impl Broker {
    pub(super) fn on_open(
        &mut self,
        now: Timestamp,
        caller: &Caller,
        request: OpenSession,
    ) -> Result<Reply, Reject> {
        caller.must(Call::OpenSession)?;
        if let Some(id) = self.repeated(caller, &request.request_key) {
            return Ok(Reply::Session(id, true));
        }
        let existing = match &request.name {
            Some(name) => self
                .state
                .session_names
                .get(&(caller.user.clone(), name.clone()))
                .copied(),
            None => None,
        };
        match existing.and_then(|id| self.state.sessions.get(&id)).cloned() {
            Some(session) => self.reopen(now, caller, (*session).clone(), request),
            None => self.create(now, caller, request),
        }
    }

    fn repeated(&self, caller: &Caller, key: &str) -> Option<SessionId> {
        self.state
            .request_keys
            .get(&(caller.user.clone(), key.to_owned()))
            .copied()
            .filter(|_| !key.is_empty())
    }

    fn reopen(
        &mut self,
        now: Timestamp,
        caller: &Caller,
        mut session: Session,
        request: OpenSession,
    ) -> Result<Reply, Reject> {
        let name = &session.name;
        if session.removing {
            return Err(
                Reject::new(RejectKind::WrongState, format!("session {name} is being removed"))
                    .hint("try again in a moment, or use another name"),
            );
        }
        let live = self.state.live_job(&session).cloned();
        if let Some(job) = live
            .as_ref()
            .filter(|job| job.placed().is_none_or(|p| p.ending.is_none() || p.comes_again()))
        {
            if request.must_start {
                return Err(Reject::new(
                    RejectKind::AlreadyExists,
                    format!(
                        "session {name} already has job {} ({})",
                        job.id,
                        job.state().name()
                    ),
                )
                .hint(format!(
                    "`carrel ssh {name}` enters it, `carrel stop {name}` ends it; or use another name"
                )));
            }
            return Ok(Reply::Session(session.id, false));
        }
        let wanted = request.spec.as_ref().unwrap_or(&session.spec);
        let terms = self.state.terms(&session.owner, caller.role, &wanted.terms)?;
        if let Some(spec) = request.spec {
            session.spec = self.state.complete(spec, &terms)?;
        }
        self.state
            .must_be_acceptable(&session.owner, &session.spec, &terms)?;
        session.ephemeral = request.ephemeral;
        session.request_key = request.request_key;
        let id = session.id;
        self.submit(now, session, (terms, request.start), live.map(|job| job.id))?;
        Ok(Reply::Session(id, true))
    }

    fn create(&mut self, now: Timestamp, caller: &Caller, request: OpenSession) -> Result<Reply, Reject> {
        let Some(spec) = request.spec else {
            let name = request.name.map(|name| name.to_string()).unwrap_or_default();
            return Err(
                Reject::new(RejectKind::NotFound, format!("there is no session named {name}")).hint(format!(
                    "`carrel open {name} --gpus N` makes one; `carrel ps` lists yours"
                )),
            );
        };
        let terms = self.state.terms(&caller.user, caller.role, &spec.terms)?;
        let spec = self.state.complete(spec, &terms)?;
        self.state.must_be_acceptable(&caller.user, &spec, &terms)?;
        let owned = self.state.sessions_of(&caller.user).count();
        if owned >= MAX_SESSIONS_PER_USER {
            return Err(Reject::new(
                RejectKind::Exhausted,
                format!(
                    "{} has {owned} sessions, the most that a user may have",
                    caller.user
                ),
            )
            .hint("`carrel rm NAME` removes one"));
        }
        let id = SessionId(self.state.cluster.next_session);
        let name = match request.name {
            Some(name) => name,
            None => self.make_up_name(caller)?,
        };
        let session = Session {
            id,
            name,
            owner: caller.user.clone(),
            spec,
            created: now,
            ephemeral: request.ephemeral,
            removing: false,
            job: None,
            kept_on: Vec::new(),
            request_key: request.request_key,
            shares: BTreeMap::new(),
        };
        self.state.cluster.next_session += 1;
        self.submit(now, session, (terms, request.start), None)?;
        Ok(Reply::Session(id, true))
    }

    /// "alloc-17", after the job that is about to be submitted.
    fn make_up_name(&self, caller: &Caller) -> Result<SessionName, Reject> {
        let next = self.state.cluster.next_job;
        let names =
            std::iter::once(format!("alloc-{next}")).chain((2..).map(|n| format!("alloc-{next}-{n}")));
        for text in names {
            let name: SessionName = text.parse().map_err(|bad: crate::model::ids::BadName| {
                Reject::new(RejectKind::Invalid, bad.to_string())
            })?;
            if !self
                .state
                .session_names
                .contains_key(&(caller.user.clone(), name.clone()))
            {
                return Ok(name);
            }
        }
        unreachable!("names are endless")
    }

    fn submit(
        &mut self,
        now: Timestamp,
        mut session: Session,
        (terms, start): (Terms, StartWish),
        after: Option<JobId>,
    ) -> Result<(), Reject> {
        let id = self.next_job_id(&start)?;
        let job = Job {
            id,
            name: session.name.to_string(),
            kind: JobKind::Interactive,
            owner: session.owner.clone(),
            session: Some(session.id),
            request: session.spec.request.clone(),
            time_limit: session.spec.time_limit,
            submitted: now,
            after,
            terms,
            hold: start.hold.then_some(Hold::User),
            begin: start.begin.filter(|begin| *begin > now),
            conditions: start.conditions,
            give_up: start.within.map(|within| now.after(within)),
            past_runs: Vec::new(),
            requeue: false,
            batch: None,
            array: None,
            phase: Phase::Pending,
        };
        session.job = Some(id);
        self.put_session(session);
        self.queue_new(now, job);
        Ok(())
    }

    /// The id of a job that is about to be submitted.
    pub(super) fn next_job_id(&mut self, start: &StartWish) -> Result<JobId, Reject> {
        self.state.must_exist(&start.conditions)?;
        if self.state.pending.len() >= MAX_PENDING {
            return Err(
                Reject::new(RejectKind::Exhausted, format!("{MAX_PENDING} jobs wait already"))
                    .hint("try again when some have started"),
            );
        }
        let id = JobId(self.state.cluster.next_job);
        self.state.cluster.next_job += 1;
        self.put_cluster();
        Ok(id)
    }

    /// Queues a job that has just been submitted.
    pub(super) fn queue_new(&mut self, now: Timestamp, job: Job) {
        let id = job.id;
        self.state.note_request(&job.request);
        self.put_job(job);
        self.schedule_new(now, id);
    }
}

impl State {
    /// Fills in the cluster's defaults, and refuses what makes no sense.
    pub(in crate::broker) fn complete(
        &self,
        mut spec: SessionSpec,
        terms: &Terms,
    ) -> Result<SessionSpec, Reject> {
        let invalid = |message: String| Err(Reject::new(RejectKind::Invalid, message));
        let settings = &self.settings;
        let components = spec.request.components().count();
        if components > MAX_COMPONENTS {
            return invalid(format!(
                "{components} components are too many, {MAX_COMPONENTS} at most"
            ));
        }
        for request in spec.request.components() {
            must_be_of_this_world(request)?;
        }
        if spec.time_limit.is_zero() {
            spec.time_limit = self.default_time(terms);
        }
        if spec.time_limit > settings.max_time {
            return Err(Reject::new(
                RejectKind::Invalid,
                format!(
                    "a time limit of {} is over this cluster's",
                    hours(spec.time_limit)
                ),
            )
            .hint(format!("the longest is {}", hours(settings.max_time))));
        }
        if let (Some(own), Some(most)) = (spec.container.idle, settings.idle.after)
            && own > most
        {
            return Err(Reject::new(
                RejectKind::Invalid,
                format!("an idle time of {} is over this cluster's", hours(own)),
            )
            .hint(format!("the longest is {}", hours(most))));
        }
        if spec.image.is_empty() {
            spec.image.clone_from(&settings.default_image);
        }
        if spec.image.is_empty() {
            return Err(Reject::new(
                RejectKind::Invalid,
                "no image was asked for, and this cluster has no default",
            )
            .hint("add --image REFERENCE"));
        }
        if spec.image.len() > MAX_TEXT || spec.workdir.len() > MAX_TEXT {
            return invalid(format!("an image or path of over {MAX_TEXT} characters"));
        }
        let bytes: usize = spec
            .env
            .iter()
            .map(|(name, value)| name.len() + value.len())
            .sum();
        if spec.env.len() > MAX_ENV || bytes > MAX_ENV_BYTES {
            return invalid(format!(
                "{} variables of {bytes} bytes are too many ({MAX_ENV} of {MAX_ENV_BYTES} at most)",
                spec.env.len()
            ));
        }
        let (root, within) = (spec.container.root, self.within(terms));
        let request = &mut *spec.request;
        for request in &mut request.more {
            self.default_sizes(request, root, within);
        }
        self.default_sizes(request, root, within);
        Ok(spec)
    }

    /// Refuses what a user may not have, or could never get.
    pub(in crate::broker) fn must_be_acceptable(
        &self,
        user: &UserName,
        spec: &SessionSpec,
        terms: &Terms,
    ) -> Result<(), Reject> {
        self.must_be_allowed(user, spec)?;
        self.must_make_sense(&spec.request)?;
        self.must_keep_limits(user, terms, self.least_gpu_milli(&spec.request), spec.time_limit)?;
        self.must_be_possible(spec, terms)?;
        let needs = Needs {
            request: &spec.request.at_last(),
            root: spec.container.root,
            within: None,
            user: None,
        };
        self.must_fit_reserved(needs, terms.reservation.as_ref())
    }

    /// Refuses what operators do not let a user have.
    fn must_be_allowed(&self, user: &UserName, spec: &SessionSpec) -> Result<(), Reject> {
        let allowed = self.settings.policy.allows(user, &spec.image, &spec.container);
        allowed.map_err(|Refusal { message, hint }| Reject::new(RejectKind::Denied, message).hint(hint))
    }
}

/// Refuses sizes that no host has.
fn must_be_of_this_world(request: &ResourceRequest) -> Result<(), Reject> {
    let invalid = |message: String| Err(Reject::new(RejectKind::Invalid, message));
    for (what, value, most) in [
        ("nodes", u64::from(request.nodes), u64::from(MAX_NODES)),
        (
            "GPUs a node",
            u64::from(request.gpus_per_node),
            u64::from(MAX_GPUS_PER_NODE),
        ),
        (
            "CPUs a node",
            u64::from(request.cpus_per_node),
            u64::from(MAX_CPUS),
        ),
        (
            "bytes of memory a node",
            request.memory_bytes_per_node,
            MAX_MEMORY,
        ),
    ] {
        if value > most {
            return invalid(format!(
                "{value} {what} are more than any host has ({most} at most)"
            ));
        }
    }
    if request.unit != UnitRequest::Whole && request.nvlink {
        return invalid("NVLink joins whole GPUs only, no slices and no shares".to_owned());
    }
    if request.exclusive && matches!(request.unit, UnitRequest::Mig(_) | UnitRequest::Share { .. }) {
        return Err(Reject::new(
            RejectKind::Invalid,
            "whole nodes (--exclusive) come with whole GPUs, and slices or shares were asked for",
        )
        .hint("leave out --exclusive, or ask for whole GPUs"));
    }
    if request.nodes == 0 {
        return invalid("0 nodes were asked for; at least 1 is needed".to_owned());
    }
    if request.gpu_model.len() > MAX_TEXT {
        return invalid(format!("a model of over {MAX_TEXT} characters"));
    }
    Ok(())
}

fn hours(duration: Duration) -> String {
    let minutes = duration.as_secs() / 60;
    match (minutes / 60, minutes % 60) {
        (0, minutes) => format!("{minutes} min"),
        (hours, 0) => format!("{hours} h"),
        (hours, minutes) => format!("{hours} h {minutes} min"),
    }
}
