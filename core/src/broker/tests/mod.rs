//! The state machine, seen from outside: inputs, and what they cause.

mod accounts;
mod arrays;
mod avoid;
mod backfill;
mod backfill_model;
mod constraints;
mod forecast;
mod forget;
mod found;
mod gang;
mod hardware;
mod idle;
mod inside;
mod jobs;
mod lifecycle;
mod mail;
mod mps;
mod nodes;
mod preemption;
mod requests;
mod reservations;
mod rights;
mod sharing;
mod sizes;
mod tokens;
mod unfit;
mod whole;

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::model::activity::Activity;
use crate::model::audit::Origin;
use crate::model::cpus::Binding;
use crate::model::gang_network::{RankNetwork, Reach};
use crate::model::gpu::{GpuInfo, Inventory, Mig, MigProfile};
use crate::model::gpu_unit::Sharing;
use crate::model::ids::{ClusterId, JobId, JobKey, NodeName, SessionId, UserName};
use crate::model::job::{Containment, Job, JobState};
use crate::model::node::{EndCause, Observed, ObservedJob, ObservedPhase};
use crate::model::resources::{ResourceRequest, UnitRequest};
use crate::model::session::{ContainerOptions, SessionSpec};
use crate::model::start::StartWish;
use crate::model::terms::TermsRequest;
use crate::model::time::Timestamp;
use crate::model::topology::{Link, LinkMatrix};
use crate::model::user::{NodeToken, Role, User};

/// A broker with its store, and nodes that do what they are told when they are asked to.
struct World {
    broker: Broker,
    store: Vec<Change>,
    now: Timestamp,
    seq: u64,
    /// What nodes say of the use of jobs.
    activity: BTreeMap<JobKey, Activity>,
}

fn cluster() -> ClusterId {
    ClusterId("c0ffee".into())
}

fn settings() -> Settings {
    Settings {
        default_image: "local/debian".into(),
        ..Settings::default()
    }
}

fn caller(name: &str) -> Caller {
    Caller {
        user: name.parse().expect("a user name"),
        role: match name {
            "root" => Role::Admin,
            "ops" => Role::Operator,
            _ => Role::User,
        },
        origin: Origin::Local(0),
    }
}

fn node(name: &str) -> NodeName {
    name.parse().expect("a node name")
}

/// Eight H100 joined through NVSwitch, on two NUMA nodes. Nodes whose names begin with "old" cannot make
/// users root in their containers; on those with "mig" the last GPU is in MIG mode, and the first two are
/// shared, by MPS on those with "mps"; on those with "pair" NVLink joins two each; those that begin with "ib" have
/// that feature; those that begin with "tiny" have little else than GPUs; those that begin with "net" can route gangs' addresses, and with "open" give gangs the host's network, too.
fn inventory(node: &str) -> Inventory {
    let gpus = (0..8u32).map(|index| GpuInfo {
        uuid: format!(
            "GPU-{}-{index}",
            if node.starts_with("twin") { "twin" } else { node }
        )
        .parse()
        .expect("a UUID"),
        index,
        model: "NVIDIA H100 80GB HBM3".into(),
        memory_bytes: 80 << 30,
        pci_address: format!("00000000:{index:02X}:00.0"),
        numa_node: Some(index / 4),
        minor: Some(index),
        mig: (node.starts_with("mig") && index == 7).then(|| Mig {
            profiles: vec![slice("3g.40gb", 3, 4, &[0, 4]), slice("7g.80gb", 7, 8, &[0])],
            instances: Vec::new(),
            recut: true,
        }),
        sharing: match (index < 2, node.get(..3)) {
            (true, Some("mig")) => Some(Sharing::TimeSlice),
            (true, Some("mps")) => Some(Sharing::Mps),
            (true | false, _) => None,
        },
        drained: None,
        cpu_affinity: String::new(),
        nvlink_version: 4,
    });
    let (cpus, memory_bytes) = if node.starts_with("tiny") {
        (2, 2 << 30)
    } else {
        (104, 1 << 40)
    };
    Inventory {
        cpus,
        memory_bytes,
        gpus: gpus.collect(),
        links: LinkMatrix::from_fn(8, |a, b| {
            if node.starts_with("pair") && a / 2 != b / 2 {
                Link::Sys
            } else {
                Link::NvLink(18)
            }
        }),
        no_root: if node.starts_with("old") {
            "it has Linux 5.10".to_owned()
        } else {
            String::new()
        },
        features: node
            .starts_with("ib")
            .then(|| "ib".to_owned())
            .into_iter()
            .collect(),
        reach: reach(node),
        ..Inventory::default()
    }
}

fn reach(node: &str) -> Reach {
    let last = node.bytes().last().unwrap_or_default();
    Reach {
        routed: node.starts_with("net") || node.starts_with("open"),
        host: node.starts_with("open"),
        address: Some([192, 0, 2, last].into()),
        namespace: node.to_owned(),
    }
}

fn slice(name: &str, compute: u8, width: u8, starts: &[u8]) -> MigProfile {
    MigProfile {
        name: name.into(),
        id: compute.into(),
        compute,
        memory_bytes: u64::from(width) * (10 << 30),
        width,
        starts: starts.to_vec(),
        most: starts.len() as u8,
    }
}

fn gpus(count: u32) -> SessionSpec {
    SessionSpec {
        request: ResourceRequest {
            nodes: 1,
            gpus_per_node: count,
            gpu_model: String::new(),
            nvlink: true,
            cpus_per_node: 0,
            memory_bytes_per_node: 0,
            ..ResourceRequest::default()
        }
        .into(),
        image: String::new(),
        time_limit: Duration::ZERO,
        env: BTreeMap::new(),
        workdir: String::new(),
        terms: TermsRequest::default(),
        container: ContainerOptions::default(),
    }
}

fn open(name: &str, spec: SessionSpec) -> OpenSession {
    OpenSession {
        name: Some(name.parse().expect("a session name")),
        spec: Some(spec),
        must_start: false,
        ephemeral: false,
        request_key: String::new(),
        start: StartWish::default(),
    }
}

impl World {
    /// A new cluster with these nodes, connected and idle, and the users alice and bob.
    fn new(nodes: &[&str]) -> Self {
        Self::with(settings(), nodes)
    }

    fn with(settings: Settings, nodes: &[&str]) -> Self {
        let now = Timestamp(1_000_000);
        let (broker, store) = Broker::start(settings, Vec::new(), cluster(), 7, now);
        let mut world = Self {
            broker,
            store,
            now,
            seq: 0,
            activity: BTreeMap::new(),
        };
        for (name, uid) in [("alice", 1001), ("bob", 1002)] {
            let user = User {
                name: name.parse().expect("a user name"),
                uid,
                gid: uid,
                groups: vec![],
                group_names: BTreeMap::new(),
                home: format!("/home/{name}"),
                shell: String::new(),
                role: Role::User,
                ssh_keys: vec![],
            };
            world.must(Input::PutUser(None, user));
        }
        for (number, name) in nodes.iter().enumerate() {
            let hash = [number as u8; 32];
            let token = NodeToken {
                hash,
                node: None,
                expires: now.after(Duration::from_mins(1)),
            };
            world.must(Input::CreateNodeToken(caller("root"), token));
            world.must(Input::JoinNode {
                token: hash,
                node: node(name),
                certificate: format!("{number:x}"),
                origin: Origin::Local(0),
            });
            world.report(name, vec![]);
        }
        world
    }

    fn handle(&mut self, input: Input) -> Result<Output, Reject> {
        let result = self.broker.handle(self.now, input);
        assert_eq!(check(self.broker.state()), vec![], "after an input");
        if let Ok(output) = &result {
            self.store.extend(output.changes.iter().cloned());
        }
        result
    }

    fn must(&mut self, input: Input) -> Output {
        self.handle(input).expect("accepted")
    }

    /// The broker dies and starts again from its store.
    fn restart(&mut self, nonce: u64) {
        self.restart_with(settings(), nonce);
    }

    fn restart_with(&mut self, settings: Settings, nonce: u64) {
        let (broker, changes) = Broker::start(settings, self.store.clone(), cluster(), nonce, self.now);
        self.broker = broker;
        self.store.extend(changes);
        assert_eq!(check(self.broker.state()), vec![], "after a restart");
    }

    fn wait(&mut self, duration: Duration) {
        self.now = self.now.after(duration);
    }

    /// A node reports these jobs, having acted on everything that it was told.
    fn report(&mut self, name: &str, jobs: Vec<ObservedJob>) {
        let link = self.broker.state().links.get(&node(name));
        let generation = link.map_or(0, |link| link.generation);
        self.report_at(name, jobs, generation);
    }

    /// The same, having acted on the desired state of this generation.
    fn report_at(&mut self, name: &str, jobs: Vec<ObservedJob>, generation: u64) {
        self.seq += 1;
        let state = self.broker.state();
        let accepted = Some((state.cluster.id.clone(), state.cluster.incarnation));
        let observed = Observed {
            node: node(name),
            boot_id: "boot".into(),
            seq: self.seq,
            accepted,
            generation,
            inventory: inventory(name),
            jobs,
            version: "0.1.0".into(),
            images: vec![],
            activity: self.activity.clone(),
        };
        self.must(Input::Observed(Arc::new(observed)));
    }

    fn open(&mut self, user: &str, request: OpenSession) -> (SessionId, JobId) {
        let output = self.must(Input::OpenSession(caller(user), request));
        let Reply::Session(id, _) = output.reply else {
            panic!("not a session: {:?}", output.reply)
        };
        (id, self.broker.state().sessions[&id].job.expect("a job"))
    }

    fn job(&self, id: JobId) -> &Job {
        &self.broker.state().jobs[&id]
    }

    fn state(&self, id: JobId) -> JobState {
        self.job(id).state()
    }

    fn reason(&self, id: JobId) -> String {
        state_reason(self.broker.state(), self.job(id))
    }

    /// What a node would say of a job of ours.
    fn seen(&self, id: JobId, name: &str, phase: ObservedPhase) -> ObservedJob {
        let job = self.job(id);
        let placed = job.last_placed().expect("placed");
        let mut parts = placed.allocation.nodes.iter();
        let rank = parts
            .position(|part| part.node == node(name))
            .expect("on that node");
        let part = &placed.allocation.nodes[rank];
        ObservedJob {
            key: crate::model::ids::JobKey {
                job: id,
                generation: placed.generation,
            },
            session: job.session,
            phase,
            detail: String::new(),
            host_key: "ssh-ed25519 AAAA".into(),
            cause: (phase >= ObservedPhase::Stopping).then_some(EndCause::Tombstone),
            exit_code: None,
            gpus: part.gpus.clone(),
            cpus: part.cpus,
            memory_bytes: part.memory_bytes,
            user: Some(job.owner.clone()),
            name: job.name.clone(),
            deadline: placed.deadline,
            cluster: cluster(),
            connections: 0,
            rank: rank as u32,
            nodes: placed.allocation.nodes.len() as u32,
            started: placed.started,
            image: "local/debian".into(),
            containment: Containment::default(),
            binding: Binding::default(),
            network: placed.ranks[rank].network,
        }
    }
}

#[test]
fn names_of_kinds_do_not_collide() {
    assert_eq!("#12".parse(), Ok(SessionRef::Id(SessionId(12))));
    assert_eq!("dev".parse(), Ok(SessionRef::Own("dev".parse().expect("a name"))));
    let alice: UserName = "alice".parse().expect("a user");
    assert_eq!(
        "dev.alice".parse(),
        Ok(SessionRef::Of("dev".parse().expect("a name"), alice))
    );
    assert!("#x".parse::<SessionRef>().is_err());
}
