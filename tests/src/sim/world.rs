//! One world, from its first second to its last.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use carrel_core::broker::{
    Broker, Caller, Change, Effect, Input, OpenSession, Output, Reject, Reply, SessionRef, Settings,
};
use carrel_core::model::ids::{ClusterId, JobId, NodeName, SessionId};
use carrel_core::model::job::{JobState, Phase};
use carrel_core::model::resources::ResourceRequest;
use carrel_core::model::session::SessionSpec;
use carrel_core::model::time::Timestamp;
use carrel_core::model::user::{NodeToken, User};

use super::count::Counts;
use super::network::{Message, Network};
use super::node::{GPUS, Node};
use super::oracle;
use super::rng::Rng;

/// When the world begins, Unix milliseconds.
const BEGIN: u64 = 1_700_000_000_000;
/// Users' acts and faults in a world.
const EVENTS: u64 = 60;
/// Longest time between two of them, milliseconds.
const PAUSE: u64 = 90_000;
/// Steps after which a world is stuck.
const MAX_STEPS: u64 = 200_000;
/// How long a world has to come to rest once nothing goes wrong any more, milliseconds:
/// two leases and the longest time limit.
const REST: u64 = 90 * 60_000;

/// What a seed found.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The seed that shows it again.
    pub seed: u64,
    /// World time, milliseconds since its beginning.
    pub at: u64,
    /// What is wrong.
    pub what: String,
    /// What happened last.
    pub log: Vec<String>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {} at {} ms: {}", self.seed, self.at, self.what)?;
        for line in &self.log {
            writeln!(f, "    {line}")?;
        }
        write!(f, "replay it with: ./dev sim --seed {}", self.seed)
    }
}

/// Runs one world. The counts say how often what occurred.
pub fn run(seed: u64) -> Result<Counts, Box<Finding>> {
    let mut world = World::new(seed);
    match world.live() {
        Ok(()) => Ok(world.counts),
        Err(what) => Err(Box::new(Finding {
            seed,
            at: world.now - BEGIN,
            what,
            log: world.log,
        })),
    }
}

/// What users were told, and may rely on.
#[derive(Debug, Default)]
struct Told {
    sessions: BTreeMap<SessionId, JobId>,
    removed: BTreeSet<SessionId>,
    stopped: BTreeSet<JobId>,
    deadlines: BTreeMap<JobId, Timestamp>,
}

struct World {
    rng: Rng,
    now: u64,
    broker: Option<Broker>,
    /// When a dead broker comes back.
    broker_back: u64,
    store: Vec<Change>,
    network: Network,
    nodes: BTreeMap<String, Node>,
    /// When a cut ends.
    cuts: BTreeMap<NodeName, u64>,
    told: Told,
    /// A request whose answer was lost, to be repeated.
    unanswered: Option<(Caller, OpenSession)>,
    requests: u64,
    counts: Counts,
    log: Vec<String>,
    next_event: u64,
    events: u64,
    faults: bool,
    seen_final: BTreeSet<JobId>,
    seen_ending: BTreeSet<JobId>,
    seen_ready: BTreeSet<JobId>,
}

fn settings() -> Settings {
    Settings {
        default_image: "local/debian".into(),
        default_time: Duration::from_mins(20),
        max_time: Duration::from_hours(1),
        lease: Duration::from_mins(5),
        lease_margin: Duration::from_secs(30),
        contact_timeout: Duration::from_mins(1),
        ..Settings::default()
    }
}

fn cluster() -> ClusterId {
    ClusterId("5eed".into())
}

fn caller(name: &str) -> Caller {
    Caller {
        user: name.parse().expect("a user name"),
        admin: name == "root",
    }
}

const USERS: [&str; 3] = ["alice", "bob", "carol"];
const NAMES: [&str; 4] = ["dev", "exp", "big", "notebook"];

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let count = 2 + rng.below(3);
        let now = BEGIN;
        let (broker, store) = Broker::start(settings(), Vec::new(), cluster(), rng.bits(), Timestamp(now));
        let mut world = Self {
            rng,
            now,
            broker: Some(broker),
            broker_back: 0,
            store,
            network: Network::default(),
            nodes: BTreeMap::new(),
            cuts: BTreeMap::new(),
            told: Told::default(),
            unanswered: None,
            requests: 0,
            counts: Counts::default(),
            log: Vec::new(),
            next_event: now + 1_000,
            events: EVENTS,
            faults: true,
            seen_final: BTreeSet::new(),
            seen_ending: BTreeSet::new(),
            seen_ready: BTreeSet::new(),
        };
        world.populate(count);
        world
    }

    /// Users and nodes, before anything goes wrong.
    fn populate(&mut self, count: u64) {
        for (number, name) in USERS.iter().enumerate() {
            let user = User {
                name: name.parse().expect("a user name"),
                uid: 1000 + number as u32,
                gid: 1000,
                groups: vec![],
                home: format!("/home/{name}"),
                shell: String::new(),
                admin: false,
                ssh_keys: vec![],
            };
            self.settle(Input::PutUser(None, user));
        }
        for number in 0..count {
            let name = format!("n{number}");
            let hash = [number as u8; 32];
            let token = NodeToken {
                hash,
                node: None,
                expires: Timestamp(self.now + 60_000),
            };
            self.settle(Input::CreateNodeToken(caller("root"), token));
            let node: NodeName = name.parse().expect("a node name");
            self.settle(Input::JoinNode {
                token: hash,
                node,
                certificate: name.clone(),
            });
            self.nodes
                .insert(name.clone(), Node::new(&name, &cluster(), self.now));
        }
    }

    fn settle(&mut self, input: Input) {
        let broker = self.broker.as_mut().expect("a broker");
        let output = broker.handle(Timestamp(self.now), input).expect("accepted");
        self.store.extend(output.changes);
    }

    fn note(&mut self, what: impl Into<String>) {
        const KEPT: usize = 40;
        if self.log.len() >= KEPT {
            self.log.remove(0);
        }
        self.log.push(format!("{:>9} {}", self.now - BEGIN, what.into()));
    }

    /// Lives until everything has happened and has come to rest.
    fn live(&mut self) -> Result<(), String> {
        for _ in 0..MAX_STEPS {
            if self.events == 0 && self.faults {
                self.calm_down();
            }
            self.step();
            self.judge()?;
            if !self.faults && self.at_rest() {
                return Ok(());
            }
            if !self.faults && self.now > self.next_event + REST {
                return Err(format!("the world does not come to rest: {}", self.restless()));
            }
        }
        Err(format!("{MAX_STEPS} steps were not enough: {}", self.restless()))
    }

    /// From here on nothing goes wrong, and every user stops what they have.
    fn calm_down(&mut self) {
        self.note("nothing goes wrong any more");
        self.faults = false;
        self.network.calm = true;
        self.network.cut.clear();
        self.cuts.clear();
        self.broker_back = self.now;
        for node in self.nodes.values_mut().filter(|node| !node.is_up()) {
            node.down_until = Some(self.now);
        }
        self.next_event = self.now + 60_000;
    }

    fn step(&mut self) {
        let next = self.next();
        self.now = next.max(self.now);
        if self.broker.is_none() && self.broker_back <= self.now {
            self.start_broker();
        }
        let healed: Vec<NodeName> = self
            .cuts
            .iter()
            .filter(|(_, until)| **until <= self.now)
            .map(|(node, _)| node.clone())
            .collect();
        for node in healed {
            self.note(format!("{node} is reached again"));
            self.cuts.remove(&node);
            self.network.cut.retain(|cut| *cut != node);
        }
        if let Some(message) = self.network.arrived(self.now) {
            return self.deliver(message);
        }
        let due = self.broker.as_ref().and_then(Broker::next_deadline);
        if due.is_some_and(|due| due.0 <= self.now) {
            self.input(Input::Tick);
            return;
        }
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        for name in names {
            let Some(node) = self.nodes.get_mut(&name) else {
                continue;
            };
            if node.next(self.now).is_some_and(|at| at <= self.now) {
                if let Some(observed) = node.step(self.now, &mut self.rng, &mut self.counts) {
                    let message = Message::Observed(Box::new(observed));
                    self.network
                        .send(self.now, message, &mut self.rng, &mut self.counts);
                }
                return;
            }
        }
        if self.next_event <= self.now {
            if self.faults {
                self.events -= 1;
                self.next_event = self.now + 1 + self.rng.below(PAUSE);
                self.happen();
            } else {
                self.next_event = self.now + 60_000;
                self.stop_everything();
            }
        }
    }

    fn next(&self) -> u64 {
        let broker = match &self.broker {
            Some(broker) => broker.next_deadline().map(|at| at.0),
            None => Some(self.broker_back),
        };
        let nodes = self.nodes.values().filter_map(|node| node.next(self.now)).min();
        let cuts = self.cuts.values().copied().min();
        let all = [broker, nodes, cuts, self.network.next(), Some(self.next_event)];
        all.into_iter().flatten().min().unwrap_or(self.next_event)
    }

    fn deliver(&mut self, message: Message) {
        match message {
            Message::Observed(observed) => {
                self.input(Input::Observed(observed));
            }
            Message::Desired(name, desired) => {
                if let Some(node) = self.nodes.get_mut(name.as_str()) {
                    node.hear(self.now, *desired, &mut self.rng, &mut self.counts);
                }
            }
        }
    }

    /// One input through the broker's process: handle, commit, speak; it may die between any two.
    /// None: nobody heard an answer.
    fn input(&mut self, input: Input) -> Option<Result<Reply, Reject>> {
        let broker = self.broker.as_mut()?;
        let Output {
            changes,
            effects,
            reply,
        } = match broker.handle(Timestamp(self.now), input) {
            Ok(output) => output,
            Err(reject) => return Some(Err(reject)),
        };
        if self.faults && self.rng.one_in(700) {
            self.counts.add("broker killed before a commit");
            self.kill_broker();
            return None;
        }
        self.store.extend(changes);
        if self.faults && self.rng.one_in(700) {
            self.counts.add("broker killed after a commit, before it spoke");
            self.kill_broker();
            return None;
        }
        for effect in effects {
            match effect {
                Effect::SendDesired(node) => {
                    let desired = self.broker.as_ref().and_then(|broker| broker.desired(&node));
                    if let Some(desired) = desired {
                        let message = Message::Desired(node, Box::new(desired));
                        self.network
                            .send(self.now, message, &mut self.rng, &mut self.counts);
                    }
                }
                Effect::Disconnect(_) => {}
            }
        }
        Some(Ok(reply))
    }

    fn kill_broker(&mut self) {
        self.note("the broker is killed");
        self.broker = None;
        self.network.drop_all();
        // Sometimes longer than a lease.
        self.broker_back = self.now
            + 1
            + self.rng.below(if self.rng.clone().one_in(6) {
                900_000
            } else {
                30_000
            });
    }

    fn start_broker(&mut self) {
        self.note("the broker starts");
        self.counts.add("broker started again");
        let nonce = self.rng.bits();
        let (broker, changes) = Broker::start(
            settings(),
            self.store.clone(),
            cluster(),
            nonce,
            Timestamp(self.now),
        );
        self.store.extend(changes);
        self.broker = Some(broker);
    }

    /// A user acts, or something breaks.
    fn happen(&mut self) {
        match self.rng.below(20) {
            0..=7 => self.open(),
            8..=10 => self.stop(),
            11 => self.remove(),
            12 => self.extend(),
            13 => {
                self.counts.add("broker killed");
                self.kill_broker();
            }
            14 | 15 => self.break_agent(),
            16 => self.break_host(),
            17 | 18 => self.cut(),
            _ => self.crash_container(),
        }
    }

    fn pick_node(&mut self) -> Option<String> {
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        self.rng.pick(&names).cloned()
    }

    fn break_agent(&mut self) {
        let Some(name) = self.pick_node() else { return };
        self.note(format!("the agent of {name} is killed"));
        self.counts.add("agent killed");
        if let Some(node) = self.nodes.get_mut(&name) {
            node.kill_agent(self.now, &mut self.rng);
            if self.rng.one_in(5) {
                node.down_until = Some(self.now + 1_200_000);
            }
        }
    }

    fn break_host(&mut self) {
        let Some(name) = self.pick_node() else { return };
        self.note(format!("{name} loses power"));
        self.counts.add("host lost power");
        if let Some(node) = self.nodes.get_mut(&name) {
            node.power_off(self.now, &mut self.rng);
        }
    }

    fn cut(&mut self) {
        let Some(name) = self.pick_node() else { return };
        let Ok(node) = name.parse::<NodeName>() else {
            return;
        };
        let length = if self.rng.one_in(3) { 1_200_000 } else { 120_000 };
        let length = self.rng.below(length);
        self.note(format!("{name} is cut off for {length} ms"));
        self.counts.add("node cut off");
        self.network.cut.push(node.clone());
        self.cuts.insert(node.clone(), self.now + length);
        if self.rng.one_in(2) {
            self.input(Input::Disconnected(node));
        }
    }

    fn crash_container(&mut self) {
        let Some(name) = self.pick_node() else { return };
        if let Some(node) = self.nodes.get_mut(&name)
            && node.crash_container(self.now, &mut self.rng)
        {
            self.counts.add("container crashed");
        }
    }

    fn open(&mut self) {
        let (caller, request) = match self.unanswered.take() {
            Some(repeated) => {
                self.counts.add("request repeated");
                repeated
            }
            None => self.new_request(),
        };
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

    fn new_request(&mut self) -> (Caller, OpenSession) {
        let user = USERS[self.rng.below(USERS.len() as u64) as usize];
        let named = !self.rng.one_in(3);
        let name = NAMES[self.rng.below(NAMES.len() as u64) as usize];
        self.requests += 1;
        let request = ResourceRequest {
            nodes: if self.rng.one_in(4) { 2 } else { 1 },
            // Sometimes more than there is.
            gpus_per_node: self.rng.below(u64::from(GPUS) + 2) as u32,
            gpu_model: String::new(),
            nvlink: self.rng.one_in(3),
            cpus_per_node: self.rng.below(9) as u32,
            memory_bytes_per_node: self.rng.below(64) << 30,
        };
        let spec = SessionSpec {
            request,
            image: String::new(),
            time_limit: Duration::from_mins(2 + self.rng.below(30)),
            env: BTreeMap::new(),
            workdir: String::new(),
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

    fn stop(&mut self) {
        let Some((id, caller)) = self.pick_session() else {
            return;
        };
        let job = self
            .broker
            .as_ref()
            .and_then(|broker| broker.state().sessions.get(&id)?.job);
        if let Some(Ok(_)) = self.input(Input::StopSession(caller, SessionRef::Id(id), None)) {
            self.note(format!("session {id} is stopped"));
            self.counts.add("session stopped");
            self.told.stopped.extend(job);
        }
    }

    fn remove(&mut self) {
        let Some((id, caller)) = self.pick_session() else {
            return;
        };
        let answer = self.input(Input::RemoveSession(caller, SessionRef::Id(id)));
        // Without an answer it may be removed, or not.
        self.told.sessions.remove(&id);
        if let Some(Ok(_)) = answer {
            self.note(format!("session {id} is removed"));
            self.counts.add("session removed");
            self.told.removed.insert(id);
        }
    }

    fn extend(&mut self) {
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

    fn stop_everything(&mut self) {
        let Some(broker) = &self.broker else { return };
        let sessions: Vec<_> = broker
            .state()
            .sessions
            .values()
            .map(|s| (s.id, s.owner.to_string()))
            .collect();
        for (id, owner) in sessions {
            self.input(Input::StopSession(caller(&owner), SessionRef::Id(id), None));
        }
    }

    /// Whether everything is as it must be.
    fn judge(&mut self) -> Result<(), String> {
        self.count_transitions()?;
        let state = self.broker.as_ref().map(Broker::state);
        let wrongs = oracle::wrongs(state, &self.nodes);
        if !wrongs.is_empty() {
            return Err(wrongs.join("; "));
        }
        let Some(state) = state else { return Ok(()) };
        for (id, job) in &self.told.sessions {
            if !state.jobs.contains_key(job) {
                return Err(format!("job {job} was acknowledged and is lost"));
            }
            let ephemeral_end = state.jobs.get(job).is_some_and(|job| job.state().is_final());
            if !state.sessions.contains_key(id) && !ephemeral_end {
                return Err(format!("session {id} was acknowledged and is lost"));
            }
        }
        for id in &self.told.removed {
            if state.sessions.get(id).is_some_and(|session| !session.removing) {
                return Err(format!("session {id} was removed and is there again"));
            }
        }
        for job in &self.told.stopped {
            let running = state.jobs.get(job).is_some_and(|job| {
                matches!(
                    job.state(),
                    JobState::Pending | JobState::Configuring | JobState::Running
                )
            });
            if running {
                return Err(format!("job {job} was stopped and goes on"));
            }
        }
        for (job, deadline) in &self.told.deadlines {
            let placed = state.jobs.get(job).and_then(|job| job.placed());
            if placed.is_some_and(|placed| placed.deadline < *deadline) {
                return Err(format!("the extension of job {job} was acknowledged and is lost"));
            }
        }
        let keys: BTreeSet<&str> = state
            .sessions
            .values()
            .map(|session| session.request_key.as_str())
            .collect();
        if keys.len() != state.sessions.len() {
            return Err("one request has made two sessions".to_owned());
        }
        Ok(())
    }

    fn count_transitions(&mut self) -> Result<(), String> {
        let Some(broker) = &self.broker else { return Ok(()) };
        for job in broker.state().jobs.values() {
            if let Some(placed) = job.placed()
                && job.state() == JobState::Running
                && placed.ranks.len() > 1
                && self.seen_ready.insert(job.id)
            {
                self.counts.add("gang ready");
            }
            let ending = job.last_placed().is_some_and(|placed| placed.ending.is_some());
            if ending
                && self.seen_ending.insert(job.id)
                && let Some(wrong) = oracle::wrongly_lost(job, &self.nodes, self.now)
            {
                return Err(wrong);
            }
            if let Phase::Ended { ending, .. } = &job.phase
                && self.seen_final.insert(job.id)
            {
                self.counts.add(match ending.state {
                    JobState::Completed => "job COMPLETED",
                    JobState::Failed => "job FAILED",
                    JobState::Cancelled => "job CANCELLED",
                    JobState::Timeout => "job TIMEOUT",
                    JobState::NodeFail => "job NODE_FAIL",
                    JobState::OutOfMemory => "job OUT_OF_MEMORY",
                    JobState::Preempted => "job PREEMPTED",
                    JobState::Pending
                    | JobState::Configuring
                    | JobState::Running
                    | JobState::Completing
                    | JobState::Suspended => {
                        return Err(format!("job {} ended as {}", job.id, ending.state.name()));
                    }
                });
            }
        }
        Ok(())
    }

    /// Every job is over, nothing runs, nothing is held.
    fn at_rest(&self) -> bool {
        self.restless().is_empty()
    }

    fn restless(&self) -> String {
        let Some(broker) = &self.broker else {
            return "the broker is down".to_owned();
        };
        let state = broker.state();
        let mut what: Vec<String> = Vec::new();
        for job in state.jobs.values().filter(|job| !job.state().is_final()) {
            what.push(format!("job {} is {}", job.id, job.state().name()));
        }
        for node in self.nodes.values() {
            what.extend(
                node.containers
                    .keys()
                    .map(|key| format!("{} still has {key}", node.name)),
            );
            if let Some(usage) = state.usage.get(&node.name)
                && (usage.cpus > 0 || !usage.gpus.is_empty())
            {
                what.push(format!("something of {} is held", node.name));
            }
            if let Some(why) = state.unavailable(&node.name) {
                what.push(format!("{}: {why}", node.name));
            }
            if state.strangers(&node.name).next().is_some() {
                what.push(format!("{} reports a job that is over", node.name));
            }
        }
        what.extend(
            state
                .removals
                .keys()
                .map(|(node, session)| format!("{node} keeps session {session}")),
        );
        what.join(", ")
    }
}
