//! One world, from its first second to its last.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use carrel_core::broker::{
    Broker, Caller, Change, Effect, Input, OpenSession, Output, PreemptionSettings, QueueSettings, Reject,
    Reply, ReservationSettings, Settings,
};
use carrel_core::model::audit::Origin;
use carrel_core::model::ids::{ClusterId, JobId, JobKey, NodeName};
use carrel_core::model::job::JobState;
use carrel_core::model::qos::{Preemption, Qos};
use carrel_core::model::time::Timestamp;
use carrel_core::model::user::{NodeToken, Role, User};

use super::arrays;
use super::clock::BrokerClock;
use super::count::Counts;
use super::fabric::Wires;
use super::idle;
use super::mutant::{self, Mutant};
use super::network::{Message, Network};
use super::node::Node;
use super::outfit::Outfit;
use super::promises::{Answer, Told};
use super::reservations::USERS_GPUS;
use super::rng::Rng;

/// When the world begins, Unix milliseconds.
pub(super) const BEGIN: u64 = 1_700_000_000_000;
/// Times in a row that a job may be ended for others.
pub(super) const MAX_PREEMPTIONS: u32 = 2;
/// Users' acts and faults in a world.
const EVENTS: u64 = 60;
/// Longest time between two of them, milliseconds.
const PAUSE: u64 = 90_000;
/// Steps after which a world is stuck.
const MAX_STEPS: u64 = 200_000;
/// Clocks are wrong by so much at most when the world begins, milliseconds.
const SKEW: u64 = 30_000;
/// A broker whose timer could not be kept for want of room tries again after this, milliseconds.
const FULL_RETRY: u64 = 2_000;

/// What a seed found.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The seed that shows it again.
    pub seed: u64,
    /// The bug that was planted.
    pub mutant: Option<Mutant>,
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
        let mutant = self.mutant.map(|mutant| format!(" --mutant {mutant}"));
        write!(
            f,
            "replay it with: ./dev sim --seed {}{}",
            self.seed,
            mutant.unwrap_or_default()
        )
    }
}

/// Runs one world, with a bug or without. The counts say how often what occurred.
pub fn run(seed: u64, mutant: Option<Mutant>) -> Result<Counts, Box<Finding>> {
    let mut world = World::new(seed, mutant);
    match world.live() {
        Ok(()) => Ok(world.counts),
        Err(what) => Err(Box::new(Finding {
            seed,
            mutant,
            at: world.now - BEGIN,
            what,
            log: world.log,
        })),
    }
}

/// What the broker's disk holds.
#[derive(Debug, Default)]
pub(super) struct Store {
    pub(super) changes: Vec<Change>,
    /// Backups: how much of it there was, and what users had been told by then.
    pub(super) backups: Vec<(usize, Told)>,
    /// The cluster's own store, while another cluster's is in its place, and until when.
    pub(super) aside: Option<(Vec<Change>, u64)>,
    /// No room on it until then.
    pub(super) full_until: u64,
}

pub(super) struct World {
    pub(super) rng: Rng,
    pub(super) now: u64,
    pub(super) mutant: Option<Mutant>,
    pub(super) broker: Option<Broker>,
    pub(super) clock: BrokerClock,
    /// When a dead broker comes back.
    pub(super) broker_back: u64,
    /// Its timer could not be kept: not before then.
    pub(super) tick_after: u64,
    pub(super) store: Store,
    pub(super) network: Network,
    pub(super) wires: Wires,
    pub(super) nodes: BTreeMap<String, Node>,
    pub(super) told: Told,
    /// Allocations of several nodes: one rank's end is all ranks'.
    pub(super) gangs: BTreeSet<JobKey>,
    /// What a user was answered, and nobody has judged yet.
    pub(super) answer: Option<Answer>,
    /// Allocations that were judged, or that this broker did not choose.
    pub(super) judged: BTreeSet<JobKey>,
    /// Allocations that reservations do not matter to.
    pub(super) excused: BTreeSet<JobKey>,
    /// The broker's clock was set: what waits for a time may have waited for longer, or for less.
    pub(super) clock_was_set: bool,
    /// A request whose answer was lost, to be repeated.
    pub(super) unanswered: Option<(Caller, OpenSession)>,
    pub(super) requests: u64,
    /// What somebody wished to end, whether they were answered or not.
    pub(super) wished: BTreeSet<JobKey>,
    /// What was over when somebody wished it to run once more.
    pub(super) anew: BTreeSet<JobId>,
    /// Deadlines as the broker has them.
    pub(super) deadlines: BTreeMap<JobKey, Timestamp>,
    /// States in which jobs were seen last.
    pub(super) states: BTreeMap<JobId, JobState>,
    /// The store is another one than before: its jobs have not come to their states just now.
    pub(super) other_store: bool,
    pub(super) counts: Counts,
    /// Chance for arrays, in worlds that have them.
    pub(super) arrays: Option<Rng>,
    log: Vec<String>,
    pub(super) next_event: u64,
    events: u64,
    pub(super) faults: bool,
    /// The broker has answered what it has not committed, and dies.
    doomed: bool,
    /// Something of the broker's records, or of the nodes, has changed since the last judgement.
    pub(super) broker_moved: bool,
    pub(super) nodes_moved: bool,
    /// Sessions end when they are idle.
    pub(super) idle: bool,
    /// The last use of each rank that its node has told the broker of, world milliseconds.
    pub(super) used: BTreeMap<(String, JobKey), u64>,
}

pub(super) fn settings(wires: &Wires, mutant: Option<Mutant>, idle: bool) -> Settings {
    Settings {
        fabric: match mutant {
            Some(Mutant::FabricIgnored) => Arc::default(),
            _ => Arc::clone(&wires.fabric),
        },
        default_image: "local/debian".into(),
        default_time: Duration::from_mins(20),
        max_time: Duration::from_hours(1),
        idle: idle::settings(idle),
        lease: Duration::from_mins(5),
        lease_margin: Duration::from_secs(30),
        contact_timeout: Duration::from_mins(1),
        // Longer than any node is away: what it speaks of then is known.
        jobs_in_memory: Duration::from_mins(30),
        queue: QueueSettings {
            preemption: PreemptionSettings {
                min_runtime: Duration::from_mins(1),
                max_preemptions: MAX_PREEMPTIONS,
            },
            reservations: ReservationSettings {
                gpus: USERS_GPUS,
                ..ReservationSettings::default()
            },
            ..QueueSettings::default()
        },
        ..Settings::default()
    }
}

/// The cluster that its authority says it is, whatever its store says.
pub(super) fn cluster() -> ClusterId {
    ClusterId("5eed".into())
}

pub(super) fn caller(name: &str) -> Caller {
    Caller {
        user: name.parse().expect("a user name"),
        role: if name == "root" { Role::Admin } else { Role::User },
        origin: Origin::Local(0),
    }
}

/// QOS whose jobs give way: they wait again, or are over.
pub(super) const GIVES_WAY: [&str; 2] = ["low", "spare"];

pub(super) const USERS: [&str; 3] = ["alice", "bob", "carol"];

/// A user as the name service knows them.
pub(super) fn user(number: usize) -> User {
    let name = USERS[number];
    User {
        name: name.parse().expect("a user name"),
        uid: 1000 + number as u32,
        gid: 1000,
        groups: vec![],
        group_names: BTreeMap::new(),
        home: format!("/home/{name}"),
        shell: String::new(),
        role: Role::User,
        ssh_keys: vec![],
    }
}

/// The records of a cluster with these nodes, as its broker keeps them before anything happens.
pub(super) fn fresh_store<'a>(
    id: ClusterId,
    nodes: impl Iterator<Item = &'a str>,
    settings: Settings,
    nonce: u64,
    now: Timestamp,
) -> (Broker, Vec<Change>) {
    let (mut broker, mut store) = Broker::start(settings, Vec::new(), id, nonce, now);
    let mut settle = |input: Input| {
        let output = broker.handle(now, input).expect("accepted");
        store.extend(output.changes);
    };
    for number in 0..USERS.len() {
        settle(Input::PutUser(None, user(number)));
    }
    for (number, name) in (0..).zip(nodes) {
        let hash = [number; 32];
        let token = NodeToken {
            hash,
            node: None,
            expires: now.after(Duration::from_mins(1)),
        };
        settle(Input::CreateNodeToken(caller("root"), token));
        settle(Input::JoinNode {
            token: hash,
            node: name.parse().expect("a node name"),
            certificate: name.to_owned(),
            origin: Origin::Local(0),
        });
    }
    (broker, store)
}

impl World {
    fn new(seed: u64, mutant: Option<Mutant>) -> Self {
        let mut rng = Rng::new(seed);
        let idle = idle::is_in(seed);
        // Their order by number is not the one of their texts.
        let names: Vec<String> = (0..2 + rng.below(5))
            .map(|number| format!("n{}", 8 + number))
            .collect();
        let wires = Wires::random(&mut rng, names.iter().map(String::as_str));
        let now = BEGIN;
        let skew = |rng: &mut Rng| rng.below(2 * SKEW) as i64 - SKEW as i64;
        let clock = BrokerClock::new(now, skew(&mut rng));
        let (_, mut changes) = fresh_store(
            cluster(),
            names.iter().map(String::as_str),
            settings(&wires, mutant, idle),
            rng.bits(),
            Timestamp(clock.now(now)),
        );
        for (name, preemptible) in [
            (GIVES_WAY[0], Preemption::Requeue),
            (GIVES_WAY[1], Preemption::Cancel),
        ] {
            changes.push(Change::PutQos(Arc::new(Qos {
                preemptible: Some(preemptible),
                ..Qos::new(name.parse().expect("a name"))
            })));
        }
        let (settings, wall) = (settings(&wires, mutant, idle), Timestamp(clock.now(now)));
        let (broker, more) = Broker::start(settings, changes.clone(), cluster(), rng.bits(), wall);
        changes.extend(more);
        let node = |name: String| {
            let outfit = Outfit::random(&mut rng);
            let mut node = Node::new(&name, outfit, &cluster(), now, skew(&mut rng), mutant);
            node.looks = idle;
            (name, node)
        };
        let nodes = names.into_iter().map(node).collect();
        Self {
            rng,
            now,
            mutant,
            broker: Some(broker),
            clock,
            broker_back: 0,
            tick_after: 0,
            store: Store {
                changes,
                ..Store::default()
            },
            network: Network::default(),
            wires,
            nodes,
            told: Told::default(),
            gangs: BTreeSet::new(),
            answer: None,
            judged: BTreeSet::new(),
            excused: BTreeSet::new(),
            clock_was_set: false,
            unanswered: None,
            requests: 0,
            wished: BTreeSet::new(),
            anew: BTreeSet::new(),
            deadlines: BTreeMap::new(),
            states: BTreeMap::new(),
            other_store: false,
            counts: Counts::default(),
            arrays: arrays::chance(seed),
            log: Vec::new(),
            next_event: now + 1_000,
            events: EVENTS,
            faults: true,
            doomed: false,
            broker_moved: true,
            nodes_moved: true,
            idle,
            used: BTreeMap::new(),
        }
    }

    pub(super) fn note(&mut self, what: impl Into<String>) {
        const KEPT: usize = 60;
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
            self.step()?;
            self.judge()?;
            if !self.faults && self.at_rest() {
                return Ok(());
            }
            if !self.faults && self.now > self.rest_by() {
                return Err(format!("the world does not come to rest: {}", self.restless()));
            }
        }
        Err(format!("{MAX_STEPS} steps were not enough: {}", self.restless()))
    }

    fn step(&mut self) -> Result<(), String> {
        let next = self.next();
        self.now = next.max(self.now);
        if std::mem::take(&mut self.doomed) {
            self.kill_broker();
        }
        if self
            .store
            .aside
            .as_ref()
            .is_some_and(|(_, until)| *until <= self.now)
        {
            self.put_own_store_back();
        }
        if self.broker.is_none() && self.broker_back <= self.now {
            self.start_broker();
        }
        for node in self.network.heal(self.now) {
            self.note(format!("{node} is reached again"));
        }
        if let Some(message) = self.network.arrived(self.now) {
            self.deliver(message);
            return Ok(());
        }
        if self.tick_due().is_some_and(|due| due <= self.now) {
            if self.input(Input::Tick).is_some_and(|answer| answer.is_err()) {
                self.tick_after = self.now + FULL_RETRY;
            }
            return Ok(());
        }
        if self.step_nodes() {
            return Ok(());
        }
        if self.next_event <= self.now {
            if self.faults {
                self.events -= 1;
                self.next_event = self.now + 1 + self.rng.below(PAUSE);
                self.happen();
            } else {
                self.clear_up()?;
            }
        }
        Ok(())
    }

    /// Lets one node do what is due there; false: nothing is.
    fn step_nodes(&mut self) -> bool {
        for node in self.nodes.values_mut() {
            if node.next(self.now).is_none_or(|at| at > self.now) {
                continue;
            }
            self.nodes_moved = true;
            if let Some(observed) = node.step(self.now, &mut self.rng, &mut self.counts) {
                let message = Message::Observed(Box::new(observed));
                self.network
                    .send(self.now, message, &mut self.rng, &mut self.counts);
            }
            return true;
        }
        false
    }

    /// When the broker's timer is due, in world time.
    fn tick_due(&self) -> Option<u64> {
        let due = self.broker.as_ref()?.next_deadline()?;
        let wait = due.0.saturating_sub(self.clock.now(self.now));
        Some((self.now + wait).max(self.tick_after))
    }

    fn next(&self) -> u64 {
        let broker = match &self.broker {
            Some(_) => self.tick_due(),
            None => Some(self.broker_back),
        };
        let nodes = self.nodes.values().filter_map(|node| node.next(self.now)).min();
        let aside = self.store.aside.as_ref().map(|(_, until)| *until);
        let all = [broker, nodes, aside, self.network.next(), Some(self.next_event)];
        all.into_iter().flatten().min().unwrap_or(self.next_event)
    }

    fn deliver(&mut self, message: Message) {
        match message {
            Message::Observed(mut observed) => {
                self.note_use(&observed);
                let Some(broker) = &self.broker else { return };
                mutant::observed(self.mutant, &mut observed, broker.state());
                let node = observed.node.clone();
                if !broker.state().nodes.contains_key(&node) {
                    self.counts.add("node found");
                    self.note(format!("{node} is found"));
                    let certificate = node.to_string();
                    self.input(Input::FindNode { node, certificate });
                }
                if self.store.aside.is_some() {
                    self.counts.add("report to another cluster's broker");
                }
                self.input(Input::Observed((*observed).into()));
            }
            Message::Desired(name, desired) => {
                if let Some(node) = self.nodes.get_mut(name.as_str()) {
                    self.nodes_moved = true;
                    node.hear(self.now, *desired, &mut self.rng, &mut self.counts);
                }
            }
        }
    }

    /// One input through the broker's process: handle, commit, speak; it may die between any two.
    /// None: nobody heard an answer.
    pub(super) fn input(&mut self, input: Input) -> Option<Result<Reply, Reject>> {
        let (wall, stepped) = self.clock.look(self.now);
        let full = self.store.full_until > self.now;
        let broker = self.broker.as_mut()?;
        if !stepped.is_zero() && self.mutant != Some(Mutant::ClockStepIgnored) {
            broker.handle(wall, Input::ClockStepped(stepped)).ok();
        }
        let contact = match &input {
            Input::Observed(observed) if full => Some(observed.clone()),
            _ => None,
        };
        let before = full.then(|| broker.clone());
        let mut result = broker.handle(wall, input);
        if let (Some(before), Ok(output)) = (before, &result)
            && !output.changes.is_empty()
        {
            self.counts.add("write without room");
            *broker = before;
            result = match contact {
                Some(observed) => broker.handle(wall, Input::Contact(observed)),
                None => Err(no_room()),
            };
        }
        let Output {
            changes,
            effects,
            mails: _,
            reply,
        } = match result {
            Ok(output) => output,
            Err(reject) => return Some(Err(reject)),
        };
        if self.mutant == Some(Mutant::ReplyBeforeCommit) {
            self.speak(effects.clone());
        }
        if self.faults && self.rng.one_in(700) {
            self.counts.add("broker killed before a commit");
            if self.mutant == Some(Mutant::ReplyBeforeCommit) {
                self.doomed = true;
                return Some(Ok(reply));
            }
            self.kill_broker();
            return None;
        }
        self.broker_moved |= !changes.is_empty();
        for change in &changes {
            if let Change::ForgetJob(job) = change {
                self.counts.add("job that is over forgotten");
                self.told.forget(job);
                // What is found of it later is not known any more, and an operator may adopt it.
                self.states.remove(&job.id);
            }
        }
        self.store.changes.extend(changes);
        if self.faults && self.rng.one_in(700) {
            self.counts.add("broker killed after a commit, before it spoke");
            self.kill_broker();
            return None;
        }
        self.speak(effects);
        Some(Ok(reply))
    }

    fn speak(&mut self, effects: BTreeSet<Effect>) {
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
    }

    pub(super) fn kill_broker(&mut self) {
        self.note("the broker is killed");
        self.broker = None;
        self.broker_moved = true;
        self.network.drop_all(&mut self.rng);
        // Sometimes longer than a lease.
        let longest = if self.rng.one_in(6) { 900_000 } else { 30_000 };
        self.broker_back = self.now + 1 + self.rng.below(longest);
    }

    fn start_broker(&mut self) {
        self.note("the broker starts");
        self.counts.add("broker started again");
        let nonce = self.rng.bits();
        self.clock = BrokerClock::new(self.now, self.clock.skew);
        let mut wall = Timestamp(self.clock.now(self.now));
        if self.mutant == Some(Mutant::RestartForgetsLeases) {
            wall.0 -= 6 * 60_000;
        }
        let changes = self.store.changes.clone();
        let other_wires = self.rng.one_in(4);
        if other_wires {
            self.note("the fabric is described otherwise");
            self.counts.add("fabric described otherwise");
            self.wires = Wires::random(&mut self.rng, self.nodes.keys().map(String::as_str));
        }
        let settings = settings(&self.wires, self.mutant, self.idle);
        let (broker, changes) = Broker::start(settings, changes, cluster(), nonce, wall);
        if other_wires {
            // They were chosen for the fabric that was.
            let jobs = broker.state().jobs.values();
            self.judged.extend(jobs.filter_map(|job| job.key()));
        }
        self.store.changes.extend(changes);
        self.broker = Some(broker);
        self.broker_moved = true;
        self.tick_after = 0;
    }

    pub(super) fn pick_node(&mut self) -> Option<(String, NodeName)> {
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        let name = self.rng.pick(&names).cloned()?;
        let node = name.parse().ok()?;
        Some((name, node))
    }
}

fn no_room() -> Reject {
    Reject::new(carrel_core::broker::RejectKind::Exhausted, "no room on the disk")
}
