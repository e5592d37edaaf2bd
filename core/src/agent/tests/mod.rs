//! The agent's behaviour, tested from outside: an agent, and containers as a shell would tell of them.

mod adoption;
mod binding;
mod ending;
mod meter;
mod obeying;
mod places;
mod random;
mod starting;

use std::collections::BTreeMap;

use super::*;
use crate::model::cpus::{CpuSet, NumaNode};
use crate::model::gang_network::{RankNetwork, Subnet};
use crate::model::gpu::GpuInfo;
use crate::model::node::{EndCause, ObservedJob, ObservedPhase, Tombstone};
use crate::model::session::ContainerOptions;
use crate::model::topology::{Link, LinkMatrix};

const LEASE_MS: u64 = 600_000;
const HOUR_MS: u64 = 3_600_000;

/// An agent and its node, without a shell: actions are kept for the test to look at.
struct Rig {
    agent: Agent,
    now: Now,
    ledger: Option<Ledger>,
    incarnation: Incarnation,
    generation: u64,
}

impl Rig {
    /// A node with 4 GPUs, 8 CPUs and 64 GiB, adopted and empty.
    fn new() -> Self {
        let mut rig = Self::unadopted(
            None,
            "boot-1",
            Now {
                wall: Timestamp(1_000_000_000),
                boot_ms: 5_000,
            },
        );
        rig.input(Input::World(Vec::new()));
        rig
    }

    fn unadopted(ledger: Option<Ledger>, boot_id: &str, now: Now) -> Self {
        let myself = Myself {
            cluster: ClusterId("ours".into()),
            node: "n1".parse().expect("a name"),
            version: "1".into(),
            boot_id: boot_id.into(),
        };
        let mut rig = Self {
            agent: Agent::new(myself, ledger, now),
            now,
            ledger: None,
            incarnation: Incarnation { number: 3, nonce: 1 },
            generation: 1,
        };
        rig.input(Input::Inventory(Box::new(inventory())));
        rig.input(Input::Cpus(Box::new(cpus())));
        rig
    }

    /// The agent's process dies and another one starts, `later_ms` after.
    fn restart(&mut self, later_ms: u64, boot_id: &str) {
        let now = Now {
            wall: Timestamp(self.now.wall.0 + later_ms),
            boot_ms: if boot_id == "boot-1" {
                self.now.boot_ms + later_ms
            } else {
                1_000
            },
        };
        let (incarnation, generation) = (self.incarnation, self.generation);
        *self = Self {
            incarnation,
            generation,
            ..Self::unadopted(self.ledger.clone(), boot_id, now)
        };
    }

    fn input(&mut self, input: Input) -> Vec<Action> {
        let actions = self.agent.handle(self.now, input);
        if let Some(Action::Persist { .. }) = actions.first() {
            self.ledger = Some(self.agent.ledger());
        }
        let late = actions
            .iter()
            .skip(1)
            .any(|action| matches!(action, Action::Persist { .. }));
        assert!(!late, "an action before what it rests on is written: {actions:?}");
        actions
    }

    fn pass(&mut self, ms: u64) -> Vec<Action> {
        self.now.wall.0 += ms;
        self.now.boot_ms += ms;
        self.input(Input::Tick)
    }

    /// A desired state that answers a report sent now.
    fn desired(&mut self, jobs: Vec<DesiredJob>, tombstones: Vec<Tombstone>) -> Desired {
        self.generation += 1;
        Desired {
            cluster: ClusterId("ours".into()),
            incarnation: self.incarnation,
            generation: self.generation,
            renews: self.agent.observed(self.now).seq,
            lease_ms: LEASE_MS,
            jobs,
            tombstones,
            removed_sessions: Vec::new(),
            thresholds: Thresholds::default(),
        }
    }

    fn want(&mut self, jobs: Vec<DesiredJob>, tombstones: Vec<Tombstone>) -> Vec<Action> {
        let desired = self.desired(jobs, tombstones);
        self.input(Input::Desired(Box::new(desired)))
    }

    fn event(&mut self, key: JobKey, event: ContainerEvent) -> Vec<Action> {
        self.input(Input::Container(key, event))
    }

    /// Wants a job alone and has it run.
    fn run(&mut self, job: &DesiredJob) {
        let actions = self.want(vec![job.clone()], Vec::new());
        assert!(starts(&actions, job.key), "{actions:?}");
        self.event(job.key, ready());
    }

    fn seen(&mut self, key: JobKey) -> Option<ObservedJob> {
        let observed = self.agent.observed(self.now);
        observed.jobs.into_iter().find(|job| job.key == key)
    }

    fn phase(&mut self, key: JobKey) -> Option<ObservedPhase> {
        self.seen(key).map(|job| job.phase)
    }
}

const FENCE: FenceReport = FenceReport {
    checks: 40,
    micros: 900,
};

fn ready() -> ContainerEvent {
    ContainerEvent::Ready {
        host_key: "ssh-ed25519 AAAA".into(),
        fence: FENCE,
    }
}

fn released() -> ContainerEvent {
    ContainerEvent::Released {
        code: Some(0),
        out_of_memory: false,
        command: false,
    }
}

fn exited(code: i32) -> ContainerEvent {
    ContainerEvent::Exited {
        code: Some(code),
        out_of_memory: false,
        command: false,
        detail: String::new(),
    }
}

fn starts(actions: &[Action], key: JobKey) -> bool {
    actions
        .iter()
        .any(|action| matches!(action, Action::Start(job) if job.key == key))
}

fn inventory() -> Inventory {
    let gpu = |index: u32| GpuInfo {
        uuid: uuid(index),
        index,
        model: "NVIDIA H100".into(),
        memory_bytes: 80 << 30,
        pci_address: String::new(),
        numa_node: Some(index / 2),
        minor: None,
        mig: None,
        sharing: None,
        drained: None,
        cpu_affinity: String::new(),
        nvlink_version: 4,
    };
    Inventory {
        cpus: 8,
        memory_bytes: 64 << 30,
        gpus: (0..4).map(gpu).collect(),
        links: LinkMatrix::from_fn(4, |_, _| Link::NvLink(18)),
        ..Inventory::default()
    }
}

/// Two NUMA nodes, each with two cores of two threads and 32 GiB.
fn cpus() -> HostCpus {
    let node = |id: u32| NumaNode {
        id,
        cpus: (4 * id..4 * id + 4).collect(),
        memory_bytes: 32 << 30,
        distances: (0..2).map(|to| (to, if to == id { 10 } else { 21 })).collect(),
    };
    HostCpus {
        usable: (0..8).collect(),
        cores: (0..4).map(|core| (2 * core..2 * core + 2).collect()).collect(),
        nodes: (0..2).map(node).collect(),
        can_bind: true,
    }
}

fn uuid(index: u32) -> GpuUuid {
    format!("GPU-{index}").parse().expect("a UUID")
}

fn key(job: u64) -> JobKey {
    JobKey {
        job: JobId(job),
        generation: Generation(job),
    }
}

/// A job with one CPU and 1 GiB that ends in an hour.
fn job(id: u64, gpus: &[u32]) -> DesiredJob {
    DesiredJob {
        key: key(id),
        session: Some(SessionId(id)),
        name: "dev".into(),
        owner: "alice".parse().expect("a name"),
        image: "busybox".into(),
        gpus: gpus.iter().map(|index| uuid(*index).into()).collect(),
        cpus: 1,
        memory_bytes: 1 << 30,
        rank: 0,
        peers: Vec::new(),
        gang_subnet: Subnet::GANGS,
        env: Vec::new(),
        deadline: Timestamp(1_000_000_000 + HOUR_MS),
        go: false,
        host_key: String::new(),
        host_principals: Vec::new(),
        workdir: String::new(),
        ready: false,
        container: ContainerOptions::default(),
        batch: None,
        idle_ends: None,
        signalled: None,
    }
}

fn tombstone(job: u64) -> Tombstone {
    Tombstone {
        key: key(job),
        grace_ms: 5_000,
    }
}

fn found(job: &DesiredJob, state: FoundState) -> Found {
    Found {
        key: job.key,
        holding: Holding {
            session: job.session,
            name: job.name.clone(),
            user: Some(job.owner.clone()),
            cluster: ClusterId("ours".into()),
            gpus: job.gpus.clone(),
            cpus: job.cpus,
            memory_bytes: job.memory_bytes,
            deadline: job.deadline,
            rank: 0,
            nodes: 1,
            started: Timestamp(0),
            image: String::new(),
            binding: Binding::default(),
            network: RankNetwork::Own,
            places: BTreeMap::new(),
        },
        state,
    }
}
