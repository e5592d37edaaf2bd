//! A simulated host: the real agent, and a world of containers for it to rule.

use std::collections::BTreeMap;

use carrel_core::agent::{
    Action, Agent, ContainerEvent, Found, FoundState, Holding, Input, Ledger, Myself, Now,
};
use carrel_core::model::gpu::{GpuInfo, Inventory};
use carrel_core::model::ids::{ClusterId, GpuUuid, JobKey, NodeName};
use carrel_core::model::node::{Desired, Observed};
use carrel_core::model::time::Timestamp;
use carrel_core::model::topology::{Link, LinkMatrix};

use super::count::Counts;
use super::rng::Rng;

/// Between two reports when nothing changes, milliseconds.
pub const HEARTBEAT: u64 = 15_000;
/// GPUs of a host.
pub const GPUS: u32 = 4;
/// CPUs of a host.
const CPUS: u32 = 16;
/// Memory of a host, bytes.
const MEMORY: u64 = 256 << 30;

/// A container as it really is, whatever anybody believes.
#[derive(Clone, Debug)]
pub struct Container {
    /// What its labels say.
    pub holding: Holding,
    /// How far it really is.
    pub state: Physical,
    /// carrel-init's own lease, boot milliseconds.
    pub lease_end: Option<u64>,
    /// It was told that its gang is complete.
    pub go: bool,
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
    /// A container ends by itself, with this exit code.
    Ends(JobKey, Option<i32>),
    /// What is left of a container is gone.
    Removed(JobKey),
}

/// A simulated host.
pub struct Node {
    /// Its name.
    pub name: NodeName,
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
    /// When it comes back, world milliseconds; none: it is up.
    pub down_until: Option<u64>,
}

impl Node {
    /// A host that has joined, with its agent up.
    pub fn new(name: &str, cluster: &ClusterId, now: u64) -> Self {
        let mut node = Self {
            name: name.parse().expect("a node name"),
            cluster: cluster.clone(),
            boots: 0,
            booted_at: now,
            agent: None,
            process: 0,
            ledger: None,
            containers: BTreeMap::new(),
            later: Vec::new(),
            next_report: now,
            down_until: None,
        };
        node.start(now);
        node
    }

    /// Four GPUs joined by NVLink in pairs.
    fn inventory(&self) -> Inventory {
        let gpus = (0..GPUS).map(|index| GpuInfo {
            uuid: gpu(&self.name, index),
            index,
            model: "NVIDIA A100-PCIE-80GB".into(),
            memory_bytes: 80 << 30,
            pci_address: format!("00000000:{index:02X}:00.0"),
            numa_node: Some(index / 2),
            minor: Some(index),
            mig_enabled: false,
            drained: None,
            cpu_affinity: String::new(),
            nvlink_version: 3,
        });
        Inventory {
            cpus: CPUS,
            memory_bytes: MEMORY,
            gpus: gpus.collect(),
            links: LinkMatrix::from_fn(GPUS as usize, |a, b| {
                if a / 2 == b / 2 {
                    Link::NvLink(12)
                } else {
                    Link::Sys
                }
            }),
            ..Inventory::default()
        }
    }

    fn clocks(&self, now: u64) -> Now {
        Now {
            wall: Timestamp(now),
            boot_ms: now - self.booted_at,
        }
    }

    /// This host's time since its boot, milliseconds.
    pub fn boot_ms(&self, now: u64) -> u64 {
        now - self.booted_at
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
        self.agent = Some(Agent::new(myself, self.ledger.clone(), self.clocks(now)));
        self.next_report = now;
        let inventory = self.inventory();
        self.tell_now(now, Input::Inventory(Box::new(inventory)));
        let found = self.containers.iter().map(|(key, container)| Found {
            key: *key,
            holding: container.holding.clone(),
            state: match container.state {
                Physical::Unstarted => FoundState::Unstarted,
                Physical::Running => FoundState::Running,
                Physical::Ended(code) => FoundState::Ended {
                    code,
                    out_of_memory: false,
                },
            },
        });
        let found = found.collect();
        self.tell_now(now, Input::World(found));
    }

    /// Inputs at a start have their actions done without faults between.
    fn tell_now(&mut self, now: u64, input: Input) {
        let Some(agent) = self.agent.as_mut() else { return };
        let clocks = Now {
            wall: Timestamp(now),
            boot_ms: now - self.booted_at,
        };
        let actions = agent.handle(clocks, input);
        let mut rng = Rng::new(now);
        for action in actions {
            self.act(now, action, &mut rng);
        }
    }

    /// The agent's process dies; what it had under way stays half done.
    pub fn kill_agent(&mut self, now: u64, rng: &mut Rng) {
        self.agent = None;
        self.process += 1;
        self.down_until = Some(now + rng.below(60_000));
    }

    /// The host loses power: every process is gone, the disk stays.
    pub fn power_off(&mut self, now: u64, rng: &mut Rng) {
        self.kill_agent(now, rng);
        self.boots += 1;
        self.booted_at = now;
        self.later.clear();
        for container in self.containers.values_mut() {
            if container.state == Physical::Running {
                container.state = Physical::Ended(None);
            }
            container.lease_end = None;
        }
    }

    /// The broker's message arrives.
    pub fn hear(&mut self, now: u64, desired: Desired, rng: &mut Rng, counts: &mut Counts) {
        self.tell(now, Input::Desired(Box::new(desired)), rng, counts);
    }

    /// Tells the agent something, and does what it says, unless it dies in the middle of that.
    fn tell(&mut self, now: u64, input: Input, rng: &mut Rng, counts: &mut Counts) {
        let clocks = self.clocks(now);
        let Some(agent) = self.agent.as_mut() else { return };
        for action in agent.handle(clocks, input) {
            if rng.one_in(2_000) {
                counts.add("agent killed between two actions");
                self.kill_agent(now, rng);
                return;
            }
            self.act(now, action, rng);
        }
    }

    fn act(&mut self, now: u64, action: Action, rng: &mut Rng) {
        let Some(agent) = self.agent.as_ref() else { return };
        match action {
            Action::Persist { .. } => self.ledger = Some(agent.ledger()),
            Action::Start(job) => {
                let key = job.key;
                let holding = agent.holding(key).cloned();
                let Some(holding) = holding else { return };
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
                    go: false,
                };
                self.containers.entry(key).or_insert(container);
                self.later(now, rng.below(3_000), Later::Started(key));
            }
            Action::Adopt(key) => {
                let ready = ContainerEvent::Ready {
                    host_key: format!("ssh-ed25519 {key}"),
                };
                self.tell_later(now, rng.below(200), Input::Container(key, ready));
            }
            Action::Configure(key) => {
                let clocks = Now {
                    wall: Timestamp(now),
                    boot_ms: now - self.booted_at,
                };
                let remaining = agent.lease_remaining_ms(clocks);
                let go = agent.job(key).is_some_and(|job| job.go);
                if let Some(container) = self.containers.get_mut(&key) {
                    container.lease_end = remaining.map(|remaining| clocks.boot_ms + remaining);
                    container.go |= go;
                }
            }
            Action::Stop { key, grace_ms } => {
                self.later(now, rng.below(grace_ms + 4_000), Later::Ends(key, Some(143)));
            }
            Action::Remove(key) => self.later(now, rng.below(1_500), Later::Removed(key)),
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
    pub fn crash_container(&mut self, now: u64, rng: &mut Rng) -> bool {
        let running: Vec<JobKey> = self
            .containers
            .iter()
            .filter(|(_, c)| c.state == Physical::Running)
            .map(|(key, _)| *key)
            .collect();
        let Some(key) = rng.pick(&running).copied() else {
            return false;
        };
        self.later(now, 0, Later::Ends(key, Some(1)));
        true
    }

    /// When something happens here next.
    pub fn next(&self, now: u64) -> Option<u64> {
        let later = self.later.iter().map(|(at, _, _)| *at).min();
        let lease = self
            .containers
            .values()
            .filter(|c| c.state == Physical::Running)
            .filter_map(|c| c.lease_end);
        let lease = lease.map(|end| end + self.booted_at).min();
        let up = self.agent.as_ref().map(|agent| {
            let tick = agent.next_tick(self.clocks(now));
            let tick = tick.map_or(u64::MAX, |wait| {
                now.saturating_add(wait.as_millis() as u64).max(now + 1)
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
        if self.down_until.is_some_and(|until| until <= now) {
            counts.add("agent started again");
            self.start(now);
        }
        // carrel-init holds the lease itself, agent or no agent.
        let boot = self.boot_ms(now);
        for container in self.containers.values_mut() {
            if container.state == Physical::Running && container.lease_end.is_some_and(|end| end <= boot) {
                counts.add("carrel-init ended at its lease");
                container.state = Physical::Ended(Some(75));
            }
        }
        while let Some(position) = self.later.iter().position(|(at, _, _)| *at <= now) {
            let (_, process, what) = self.later.remove(position);
            self.complete(now, process, what, rng, counts);
        }
        if self.agent.is_some() {
            self.tell(now, Input::Tick, rng, counts);
        }
        if self.next_report > now {
            return None;
        }
        self.next_report = now + HEARTBEAT;
        let clocks = self.clocks(now);
        self.agent.as_mut().map(|agent| agent.observed(clocks))
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
                counts.add("container started");
                if same {
                    let ready = ContainerEvent::Ready {
                        host_key: format!("ssh-ed25519 {key}"),
                    };
                    self.tell(now, Input::Container(key, ready), rng, counts);
                }
            }
            Later::Ends(key, code) => {
                let Some(container) = self.containers.get_mut(&key) else {
                    return;
                };
                if container.state != Physical::Running {
                    return;
                }
                container.state = Physical::Ended(code);
                let ended = ContainerEvent::Exited {
                    code,
                    out_of_memory: false,
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

/// UUID of a host's GPU.
pub fn gpu(node: &NodeName, index: u32) -> GpuUuid {
    format!("GPU-{node}-{index}").parse().expect("a GPU UUID")
}
