//! A simulated host: the real agent, and a world of containers for it to rule.

use std::collections::{BTreeMap, BTreeSet};

use carrel_core::agent::{
    Action, Agent, ContainerEvent, Found, FoundState, Holding, Input, Ledger, Myself, Now,
};
use carrel_core::model::gpu::Inventory;
use carrel_core::model::ids::{ClusterId, JobKey, NodeName};
use carrel_core::model::job::FenceReport;
use carrel_core::model::node::{Desired, DesiredJob, Observed};
use carrel_core::model::time::Timestamp;

use super::count::Counts;
use super::idle;
use super::mutant::{self, Mutant};
use super::outfit::{CPUS, MEMORY, Outfit, cpus};
use super::rng::Rng;

/// Between two reports when nothing changes, milliseconds.
pub const HEARTBEAT: u64 = 15_000;
/// What carrel-init grants at the lease's end, milliseconds.
const LEASE_GRACE: u64 = 10_000;
/// Within it an agent that is up has ended what is past its deadline, milliseconds: grace, kill, and retries.
const END_WITHIN: u64 = 60_000;
/// Reports of which it is known when they were sent.
const MAX_SENT: usize = 512;

/// A container as it really is, whatever anybody believes.
#[derive(Clone, Debug)]
pub struct Container {
    /// What its labels say.
    pub holding: Holding,
    /// How far it really is.
    pub state: Physical,
    /// carrel-init's own lease, boot milliseconds.
    pub lease_end: Option<u64>,
    /// Its end has begun, and is done at this time, boot milliseconds.
    dies_at: Option<u64>,
    /// It was told that its gang is complete.
    pub go: bool,
    /// It, or its start, came back with a snapshot of its host: the world may count it as over.
    pub revived: bool,
}

/// How far a container really is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Physical {
    /// Being made: nothing of it runs.
    Unstarted,
    /// Its processes run and use its GPUs.
    Running,
    /// Its processes are gone.
    Ended(Option<i32>),
}

/// Something that completes later.
#[derive(Clone, Debug)]
enum Later {
    /// The agent hears of it, if it still lives.
    Tell(Input),
    /// A container's start is done.
    Started(JobKey),
    /// A container ends, with this exit code, for want of memory or not.
    Ends(JobKey, Option<i32>, bool),
    /// What is left of a container is gone.
    Removed(JobKey),
}

/// Something that the world judges.
#[derive(Clone, Copy, Debug)]
pub enum Deed {
    /// A container's processes came to run.
    Started(JobKey),
    /// The agent ends what runs. Nothing here asks for it: neither deadline nor lease.
    Ended(JobKey),
    /// The agent starts what it has ended before.
    Again(JobKey),
}

/// A simulated host.
#[derive(Clone)]
pub struct Node {
    /// Its name.
    pub name: NodeName,
    /// In what it differs from the others.
    pub outfit: Outfit,
    cluster: ClusterId,
    boots: u64,
    /// World time of the last boot, milliseconds.
    booted_at: u64,
    /// The agent's process; none while it is down.
    agent: Option<Agent>,
    /// Which agent process this is: completions of a former one reach nobody.
    process: u64,
    ledger: Option<Ledger>,
    /// Everything that is there.
    pub containers: BTreeMap<JobKey, Container>,
    later: Vec<(u64, u64, Later)>,
    next_report: u64,
    /// World milliseconds from which on the agent's timer may be heard again.
    next_tick: u64,
    /// Its agent dies as soon as it has taken in that nothing is left of a container.
    doomed: bool,
    /// When the agent comes back, world milliseconds; none: it is up.
    pub down_until: Option<u64>,
    /// The host is suspended until then, world milliseconds.
    pub asleep_until: Option<u64>,
    /// How far its wall clock is ahead of the world's, milliseconds.
    pub skew: i64,
    /// The last ledger that survives a loss of power.
    synced: Option<Ledger>,
    /// The agent, awake, since then, world milliseconds.
    up_since: u64,
    /// It came back from a snapshot, and has not heard of the broker since.
    stale: bool,
    /// The newest message of the broker that came, and what deadlines it told.
    newest: (u64, u64),
    deadlines: BTreeMap<JobKey, Timestamp>,
    /// When reports were sent, boot milliseconds.
    sent: BTreeMap<u64, u64>,
    /// What the world has not judged yet.
    pub deeds: Vec<Deed>,
    /// Ends that the agent has begun: each is judged once, when it begins.
    noted: BTreeSet<JobKey>,
    /// What the agent has removed, and has written down that it is over.
    over: BTreeSet<JobKey>,
    snapshot: Option<(u64, Box<Node>)>,
    mutant: Option<Mutant>,
    /// Somebody looks at what its jobs do.
    pub looks: bool,
    /// Since when the broker says of sessions that they are about to end as idle, world milliseconds.
    idle: BTreeMap<JobKey, u64>,
}

impl Node {
    /// A host that has joined, with its agent up.
    pub fn new(
        name: &str,
        outfit: Outfit,
        cluster: &ClusterId,
        now: u64,
        skew: i64,
        mutant: Option<Mutant>,
    ) -> Self {
        let mut node = Self {
            name: name.parse().expect("a node name"),
            outfit,
            cluster: cluster.clone(),
            boots: 0,
            booted_at: now,
            agent: None,
            process: 0,
            ledger: None,
            containers: BTreeMap::new(),
            later: Vec::new(),
            next_report: now,
            next_tick: now,
            doomed: false,
            down_until: None,
            asleep_until: None,
            skew,
            synced: None,
            up_since: now,
            stale: false,
            newest: (0, 0),
            deadlines: BTreeMap::new(),
            sent: BTreeMap::new(),
            deeds: Vec::new(),
            noted: BTreeSet::new(),
            over: BTreeSet::new(),
            snapshot: None,
            mutant,
            looks: false,
            idle: BTreeMap::new(),
        };
        node.start(now);
        node
    }

    /// What it has.
    pub fn inventory(&self) -> Inventory {
        self.outfit.inventory(&self.name)
    }

    fn clocks(&self, now: u64) -> Now {
        Now {
            wall: Timestamp(now.saturating_add_signed(self.skew)),
            boot_ms: self.boot_ms(now),
        }
    }

    /// This host's time since its boot, milliseconds.
    pub fn boot_ms(&self, now: u64) -> u64 {
        now.saturating_sub(self.booted_at)
    }

    /// The agent is up.
    pub fn is_up(&self) -> bool {
        self.agent.is_some()
    }

    /// Starts the agent: it reads its ledger and looks at what is there.
    fn start(&mut self, now: u64) {
        self.down_until = None;
        self.process += 1;
        let myself = Myself {
            cluster: self.cluster.clone(),
            node: self.name.clone(),
            version: "sim".into(),
            boot_id: format!("boot-{}", self.boots),
        };
        let forgets = self.mutant == Some(Mutant::AdoptionForgetsGpus);
        if let Some(ledger) = self.ledger.as_mut().filter(|_| forgets) {
            for entry in &mut ledger.entries {
                entry.holding.gpus.clear();
                entry.holding.places.clear();
            }
        }
        self.agent = Some(Agent::new(myself, self.ledger.clone(), self.clocks(now)));
        self.next_report = now;
        self.up_since = now;
        self.sent.clear();
        let mut inventory = self.inventory();
        mutant::inventory(self.mutant, &mut inventory);
        self.tell_now(now, Input::Inventory(Box::new(inventory)));
        self.tell_now(now, Input::Cpus(Box::new(cpus())));
        let found = self.containers.iter().map(|(key, container)| Found {
            key: *key,
            holding: Holding {
                gpus: if forgets {
                    Vec::new()
                } else {
                    container.holding.gpus.clone()
                },
                places: if forgets {
                    BTreeMap::new()
                } else {
                    container.holding.places.clone()
                },
                ..container.holding.clone()
            },
            state: match container.state {
                Physical::Unstarted => FoundState::Unstarted,
                Physical::Running => FoundState::Running,
                Physical::Ended(code) => FoundState::Ended {
                    code,
                    out_of_memory: false,
                    command: false,
                },
            },
        });
        let found = found.collect();
        self.tell_now(now, Input::World(found));
    }

    /// Inputs at a start have their actions done without faults between.
    fn tell_now(&mut self, now: u64, input: Input) {
        let clocks = self.clocks(now);
        let Some(agent) = self.agent.as_mut() else { return };
        let actions = agent.handle(clocks, input);
        let mut rng = Rng::new(now);
        for action in actions {
            self.act(now, action, &mut rng);
        }
    }

    /// The agent's process dies; what it had under way stays half done.
    pub fn kill_agent(&mut self, now: u64, rng: &mut Rng) {
        self.agent = None;
        self.doomed = false;
        self.process += 1;
        self.down_until = Some(now + rng.below(60_000));
    }

    /// The host loses power: every process is gone, the disk stays, less what was not synced.
    pub fn power_off(&mut self, now: u64, rng: &mut Rng, counts: &mut Counts) {
        self.kill_agent(now, rng);
        self.reboot(now);
        if self.ledger != self.synced && rng.one_in(2) {
            counts.add("unsynced ledger lost");
            self.ledger.clone_from(&self.synced);
        }
    }

    fn reboot(&mut self, now: u64) {
        self.boots += 1;
        self.booted_at = now;
        self.asleep_until = None;
        self.later.clear();
        for container in self.containers.values_mut() {
            if container.state == Physical::Running {
                container.state = Physical::Ended(None);
            }
            container.lease_end = None;
            container.dies_at = None;
        }
    }

    /// The agent's ledger is lost; its containers are not.
    pub fn lose_ledger(&mut self, now: u64, rng: &mut Rng) {
        self.kill_agent(now, rng);
        self.ledger = None;
        self.synced = None;
        self.over.clear();
    }

    /// The host is suspended: its clocks go on, nothing else does.
    pub fn suspend(&mut self, now: u64, length: u64) {
        self.asleep_until = Some(now + length);
        if self.mutant == Some(Mutant::LeaseStopsInSleep) {
            self.booted_at += length;
            for (at, _, _) in &mut self.later {
                *at += length;
            }
        }
    }

    /// The host's wall clock is set.
    pub fn set_clock(&mut self, now: u64, skew: i64) {
        self.skew = skew;
        // The agent looks at it once a minute at least; it gets its time to act on what it sees.
        self.up_since = now;
        self.next_report = now;
    }

    /// Somebody takes a snapshot of the host as it is.
    pub fn take_snapshot(&mut self, now: u64) {
        self.snapshot = None;
        let copy = Self {
            deeds: Vec::new(),
            ..self.clone()
        };
        self.snapshot = Some((now, Box::new(copy)));
    }

    /// The host is put back to its snapshot, as if nothing had happened since. With its memory everything
    /// runs on, and the boot's clock with it; its disk alone is started from. False: there is no snapshot.
    pub fn restore(&mut self, now: u64, with_memory: bool, rng: &mut Rng) -> bool {
        let Some((taken, copy)) = self.snapshot.take() else {
            return false;
        };
        let (boots, process) = (self.boots, self.process);
        *self = *copy;
        let back = now - taken;
        let taken_with = std::mem::replace(&mut self.process, process + 1);
        let same = self.process;
        for (at, process, _) in &mut self.later {
            *at += back;
            // What the agent of the snapshot waits for still comes to it.
            *process = if *process == taken_with { same } else { 0 };
        }
        self.booted_at += back;
        self.next_report += back;
        self.up_since = now;
        self.down_until = self.down_until.map(|until| until + back);
        self.asleep_until = self.asleep_until.map(|until| until + back);
        self.stale = true;
        for container in self.containers.values_mut() {
            container.revived = true;
        }
        if !with_memory {
            self.boots = boots;
            self.ledger.clone_from(&self.synced);
            self.kill_agent(now, rng);
            self.reboot(now);
        }
        true
    }

    /// The broker's message arrives.
    pub fn hear(&mut self, now: u64, mut desired: Desired, rng: &mut Rng, counts: &mut Counts) {
        if self.asleep_until.is_some() || self.agent.is_none() {
            counts.add("message to nobody");
            return;
        }
        let order = (desired.incarnation.number, desired.generation);
        if desired.cluster == self.cluster && order >= self.newest {
            self.newest = order;
            let moved_back = |job: &DesiredJob| {
                let known = self.deadlines.get(&job.key);
                known.is_some_and(|deadline| *deadline > job.deadline)
            };
            if desired.jobs.iter().any(moved_back) {
                // A restored backup does not know of an extension: the agent gets its time to end what is past.
                self.up_since = now;
            }
            let told = desired.jobs.iter().map(|job| (job.key, job.deadline));
            self.deadlines.extend(told);
            self.note_idle(now, &desired, counts);
            self.stale = false;
        }
        let runs: Vec<JobKey> = self.running().map(|(key, _)| *key).collect();
        let sent = self.sent.get(&desired.renews).copied();
        let waited = sent.map_or(0, |sent| self.boot_ms(now).saturating_sub(sent));
        mutant::desired(self.mutant, &mut desired, &runs, waited);
        self.tell(now, Input::Desired(Box::new(desired)), rng, counts);
    }

    fn note_idle(&mut self, now: u64, desired: &Desired, counts: &mut Counts) {
        for job in &desired.jobs {
            let known = self.idle.contains_key(&job.key);
            match job.idle_ends {
                Some(_) if !known => {
                    counts.add("session warned of its end as idle");
                    self.idle.insert(job.key, now);
                }
                None if known => {
                    counts.add("warned session used again");
                    self.idle.remove(&job.key);
                }
                Some(_) | None => {}
            }
        }
    }

    /// Since when a session is told of its end as idle, world milliseconds; none: it is not.
    pub fn idle_since(&self, key: JobKey) -> Option<u64> {
        self.idle.get(&key).copied()
    }

    /// Tells the agent something, and does what it says, unless it dies in the middle of that.
    fn tell(&mut self, now: u64, input: Input, rng: &mut Rng, counts: &mut Counts) {
        let clocks = self.clocks(now);
        let Some(agent) = self.agent.as_mut() else { return };
        let dies = self.doomed && matches!(input, Input::Container(_, ContainerEvent::Released { .. }));
        for action in agent.handle(clocks, input) {
            if rng.one_in(2_000) {
                counts.add("agent killed between two actions");
                self.kill_agent(now, rng);
                return;
            }
            self.act(now, action, rng);
        }
        if dies {
            counts.add("agent killed after a release");
            self.kill_agent(now, rng);
        }
    }

    /// The agent will be killed before it can report what it releases next.
    pub fn doom_agent(&mut self) {
        self.doomed = true;
    }

    /// The agent ends what runs: notes it, if nothing that is known here asks for it.
    fn note_end(&mut self, now: u64, key: JobKey) {
        let lease_over = self
            .agent
            .as_ref()
            .and_then(Agent::lease_end_ms)
            .is_some_and(|end| end <= self.boot_ms(now));
        let over = self
            .deadlines
            .get(&key)
            .is_some_and(|at| *at <= self.clocks(now).wall);
        let runs = self
            .containers
            .get(&key)
            .is_some_and(|container| container.state == Physical::Running && !container.revived);
        if runs && self.noted.insert(key) && !lease_over && !over {
            self.deeds.push(Deed::Ended(key));
        }
    }

    fn act(&mut self, now: u64, action: Action, rng: &mut Rng) {
        let Some(agent) = self.agent.as_ref() else { return };
        match action {
            Action::Persist { synced } => {
                if self.mutant == Some(Mutant::LedgerNotWritten) {
                    return;
                }
                self.ledger = Some(agent.ledger());
                if synced {
                    self.synced.clone_from(&self.ledger);
                }
            }
            Action::Start(job) => {
                let key = job.key;
                let holding = agent.holding(key).cloned();
                let Some(holding) = holding else { return };
                if self.over.contains(&key) {
                    self.deeds.push(Deed::Again(key));
                }
                if rng.one_in(25) {
                    let why = "the image was not found".to_owned();
                    self.tell_later(
                        now,
                        rng.below(2_000),
                        Input::Container(key, ContainerEvent::StartFailed(why)),
                    );
                    return;
                }
                let container = Container {
                    holding,
                    state: Physical::Unstarted,
                    lease_end: None,
                    dies_at: None,
                    go: false,
                    revived: self.stale,
                };
                self.containers.entry(key).or_insert(container);
                self.later(now, rng.below(3_000), Later::Started(key));
            }
            Action::Adopt(key) => {
                let ready = ContainerEvent::Ready {
                    host_key: format!("ssh-ed25519 {key}"),
                    fence: FenceReport::default(),
                };
                self.tell_later(now, rng.below(200), Input::Container(key, ready));
            }
            Action::Configure(key) => {
                let clocks = self.clocks(now);
                let remaining = agent.lease_remaining_ms(clocks);
                let wanted = agent.job(key);
                let go = wanted.is_some_and(|job| job.go);
                let deadline = wanted.map(|job| job.deadline);
                if let Some(container) = self.containers.get_mut(&key) {
                    container.lease_end = remaining.map(|remaining| clocks.boot_ms + remaining);
                    container.go |= go;
                    if let Some(holding) = agent.holding(key) {
                        container.holding.binding.mems.clone_from(&holding.binding.mems);
                    }
                    if let Some(deadline) = deadline {
                        // Its labels are kept true.
                        container.holding.deadline = deadline;
                    }
                }
            }
            Action::Stop { key, grace_ms } => {
                self.note_end(now, key);
                self.later(
                    now,
                    rng.below(grace_ms + 4_000),
                    Later::Ends(key, Some(143), false),
                );
            }
            Action::Remove(key) => {
                self.note_end(now, key);
                self.over.insert(key);
                self.later(now, rng.below(1_500), Later::Removed(key));
            }
            Action::RemoveSession(session) => {
                let result = if rng.one_in(10) {
                    Err("busy".to_owned())
                } else {
                    Ok(())
                };
                self.tell_later(now, rng.below(500), Input::SessionRemoved(session, result));
            }
            Action::Report => self.next_report = now,
        }
    }

    fn later(&mut self, now: u64, after: u64, what: Later) {
        self.later.push((now + 1 + after, self.process, what));
    }

    fn tell_later(&mut self, now: u64, after: u64, input: Input) {
        self.later(now, after, Later::Tell(input));
    }

    /// A running container's process 1 ends by itself.
    pub fn crash_container(&mut self, now: u64, out_of_memory: bool, rng: &mut Rng) -> bool {
        let running: Vec<JobKey> = self
            .containers
            .iter()
            .filter(|(_, c)| c.state == Physical::Running)
            .map(|(key, _)| *key)
            .collect();
        let Some(key) = rng.pick(&running).copied() else {
            return false;
        };
        let code = if out_of_memory { 137 } else { 1 };
        self.later(now, 0, Later::Ends(key, Some(code), out_of_memory));
        true
    }

    /// When something happens here next.
    pub fn next(&self, now: u64) -> Option<u64> {
        if self.asleep_until.is_some() {
            return self.asleep_until;
        }
        let later = self.later.iter().map(|(at, _, _)| *at).min();
        let lease = self
            .containers
            .values()
            .filter(|c| c.state == Physical::Running)
            .filter_map(|c| c.dies_at.or(c.lease_end));
        let lease = lease.map(|end| end + self.booted_at).min();
        let up = self.agent.as_ref().map(|agent| {
            let tick = agent.next_tick(self.clocks(now));
            let tick = tick.map_or(u64::MAX, |wait| {
                now.saturating_add(wait.as_millis() as u64).max(self.next_tick)
            });
            tick.min(self.next_report)
        });
        later
            .into_iter()
            .chain(lease)
            .chain(up)
            .chain(self.down_until)
            .min()
    }

    /// Does everything that is due; returns the report to send, if there is one.
    pub fn step(&mut self, now: u64, rng: &mut Rng, counts: &mut Counts) -> Option<Observed> {
        if self.asleep_until.is_some_and(|until| until > now) {
            return None;
        }
        if self.asleep_until.take().is_some() {
            self.up_since = now;
        }
        self.end_at_leases(now, rng, counts);
        if self.down_until.is_some_and(|until| until <= now) {
            counts.add("agent started again");
            self.start(now);
        }
        while let Some(position) = self.later.iter().position(|(at, _, _)| *at <= now) {
            let (_, process, what) = self.later.remove(position);
            self.complete(now, process, what, rng, counts);
        }
        if self.agent.is_some() {
            self.next_tick = now + 1;
            self.tell(now, Input::Tick, rng, counts);
        }
        if self.next_report > now {
            return None;
        }
        if self.looks {
            let readings = idle::look(&self.containers, now);
            self.tell(now, Input::Measured(readings), rng, counts);
        }
        self.next_report = now + HEARTBEAT;
        let clocks = self.clocks(now);
        let observed = self.agent.as_mut()?.observed(clocks);
        self.sent.insert(observed.seq, clocks.boot_ms);
        while self.sent.len() > MAX_SENT {
            self.sent.pop_first();
        }
        Some(observed)
    }

    /// carrel-init holds the lease itself, agent or no agent.
    fn end_at_leases(&mut self, now: u64, rng: &mut Rng, counts: &mut Counts) {
        let boot = self.boot_ms(now);
        let mut ended = Vec::new();
        for (key, container) in &mut self.containers {
            if container.state != Physical::Running {
                continue;
            }
            if let Some(end) = container.lease_end.filter(|end| *end <= boot)
                && container.dies_at.is_none()
            {
                counts.add("carrel-init ended at its lease");
                let last = (end + LEASE_GRACE).max(boot);
                container.dies_at = Some((boot + rng.below(LEASE_GRACE)).min(last));
            }
            if container.dies_at.is_some_and(|at| at <= boot) {
                container.state = Physical::Ended(Some(75));
                ended.push(*key);
            }
        }
        for key in ended {
            let exited = ContainerEvent::Exited {
                code: Some(75),
                out_of_memory: false,
                command: false,
                detail: String::new(),
            };
            self.tell(now, Input::Container(key, exited), rng, counts);
        }
    }

    /// What runs although an agent that is up should have ended it for its deadline.
    pub fn overdue(&self, now: u64) -> Option<JobKey> {
        let awake = self.agent.is_some() && self.asleep_until.is_none();
        if !awake || now < self.up_since + END_WITHIN {
            return None;
        }
        let wall = self.clocks(now).wall.0;
        let overdue = |key: &JobKey| {
            let told = self.deadlines.get(key);
            told.is_some_and(|deadline| deadline.0.saturating_add(END_WITHIN) <= wall)
        };
        self.running().map(|(key, _)| *key).find(overdue)
    }

    fn complete(&mut self, now: u64, process: u64, what: Later, rng: &mut Rng, counts: &mut Counts) {
        let same = process == self.process;
        match what {
            Later::Tell(input) if same => self.tell(now, input, rng, counts),
            Later::Tell(_) => {}
            Later::Started(key) => {
                // The runtime finishes what it was asked, or not, when the agent died meanwhile.
                if !same && rng.one_in(2) {
                    return;
                }
                let lease = self
                    .agent
                    .as_ref()
                    .and_then(|agent| agent.lease_remaining_ms(self.clocks(now)));
                let boot = self.boot_ms(now);
                let Some(container) = self.containers.get_mut(&key) else {
                    return;
                };
                if container.state != Physical::Unstarted {
                    return;
                }
                // Its first lease is in the configuration that it is started with.
                container.lease_end = Some(boot + lease.unwrap_or(0));
                container.state = Physical::Running;
                if !container.revived {
                    self.deeds.push(Deed::Started(key));
                }
                counts.add("container started");
                if same {
                    let ready = ContainerEvent::Ready {
                        host_key: format!("ssh-ed25519 {key}"),
                        fence: FenceReport::default(),
                    };
                    self.tell(now, Input::Container(key, ready), rng, counts);
                }
            }
            Later::Ends(key, code, out_of_memory) => {
                let Some(container) = self.containers.get_mut(&key) else {
                    return;
                };
                if container.state != Physical::Running {
                    return;
                }
                container.state = Physical::Ended(code);
                let ended = ContainerEvent::Exited {
                    code,
                    out_of_memory,
                    command: false,
                    detail: String::new(),
                };
                self.tell(now, Input::Container(key, ended), rng, counts);
            }
            Later::Removed(key) => {
                if !same {
                    return;
                }
                if rng.one_in(12) {
                    counts.add("release not verified at once");
                    if self.mutant == Some(Mutant::ReleaseUnverified) {
                        let released = ContainerEvent::Released {
                            code: None,
                            out_of_memory: false,
                            command: false,
                        };
                        return self.tell(now, Input::Container(key, released), rng, counts);
                    }
                    let still = ContainerEvent::NotReleased("a process is still there".to_owned());
                    self.tell(now, Input::Container(key, still), rng, counts);
                    return;
                }
                let code = match self.containers.remove(&key).map(|container| container.state) {
                    Some(Physical::Ended(code)) => code,
                    Some(Physical::Unstarted | Physical::Running) | None => None,
                };
                self.later
                    .retain(|(_, _, what)| !matches!(what, Later::Started(other) if *other == key));
                let released = ContainerEvent::Released {
                    code,
                    out_of_memory: false,
                    command: false,
                };
                self.tell(now, Input::Container(key, released), rng, counts);
            }
        }
    }

    /// Containers whose processes run.
    pub fn running(&self) -> impl Iterator<Item = (&JobKey, &Container)> {
        self.containers
            .iter()
            .filter(|(_, container)| container.state == Physical::Running)
    }

    /// What it may hold at most.
    pub fn capacity() -> (u64, u64) {
        (u64::from(CPUS), MEMORY)
    }
}
