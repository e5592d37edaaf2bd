//! Broker and agent, agent and carrel-init: messages of programs that may have been taken over.

use std::sync::Arc;
use std::time::Duration;

use carrel_core::agent::{self, Agent, Myself, Now};
use carrel_core::broker::{Broker, Caller, Change, Input, OpenSession, Settings, Violation, check};
use carrel_core::model::activity::{Activity, Counter, HostUse, Seen, Used};
use carrel_core::model::audit::Origin;
use carrel_core::model::cpus::{Binding, CpuSet};
use carrel_core::model::gang_network::RankNetwork;
use carrel_core::model::gpu::{GpuInfo, Inventory};
use carrel_core::model::ids::{ClusterId, Generation, Incarnation, JobId, JobKey, SessionId};
use carrel_core::model::job::{Containment, FenceReport};
use carrel_core::model::node::{Desired, Observed, ObservedJob, ObservedPhase};
use carrel_core::model::resources::ResourceRequest;
use carrel_core::model::session::{ContainerOptions, SessionSpec};
use carrel_core::model::start::StartWish;
use carrel_core::model::terms::TermsRequest;
use carrel_core::model::time::Timestamp;
use carrel_core::model::topology::{Link, LinkMatrix};
use carrel_core::model::user::{NodeToken, Role, User};
use carrel_proto::v1;
use prost::Message;

use crate::Target;

/// What an agent tells of its host, as the broker takes it in: several messages, each after its length.
pub const OBSERVED: Target = Target {
    name: "observed",
    run: observed,
    seeds: || {
        let (idle, busy) = (report(1, &[]), report(2, &[of_job()]));
        let one = |report: &Observed| framed(&v1::Observed::from(report));
        vec![one(&idle), one(&busy), [one(&busy), one(&idle)].concat()]
    },
};

/// What a broker wants of a host, as the agent takes it in: several messages, each after its length.
pub const DESIRED: Target = Target {
    name: "desired",
    run: desired,
    seeds: || {
        let mut message = v1::Desired {
            cluster: CLUSTER.into(),
            incarnation: Some(v1::Incarnation { number: 1, nonce: 7 }),
            generation: 1,
            renews: 1,
            lease_ms: 600_000,
            jobs: vec![v1::DesiredJob {
                job: 1,
                generation: Generation::first_of(1).0,
                session: 1,
                name: "dev".into(),
                identity: Some(v1::Identity {
                    name: "alice".into(),
                    uid: 1001,
                    ..v1::Identity::default()
                }),
                image: "local/debian".into(),
                gpus: vec!["GPU-0".into()],
                cpus: 2,
                memory_bytes: 1 << 30,
                deadline_ms: 2_000_000,
                go: true,
                ..v1::DesiredJob::default()
            }],
            ..v1::Desired::default()
        };
        let first = framed(&message);
        message.generation = 2;
        message.jobs[0].ready = true;
        message.tombstones.push(v1::Tombstone {
            job: 1,
            generation: Generation::first_of(1).0,
            grace_ms: 10_000,
        });
        let second = framed(&message);
        vec![first.clone(), [first, second].concat()]
    },
};

/// What a carrel-init says of itself, as the agent reads it.
pub const STATUS: Target = Target {
    name: "status",
    run: |data| {
        if let Ok(status) = v1::InitStatus::decode(data) {
            assert_eq!(v1::InitStatus::decode(&*status.encode_to_vec()), Ok(status));
        }
    },
    seeds: || {
        let status = v1::InitStatus {
            host_public_key: "ssh-ed25519 AAAA".into(),
            ready: true,
            connections: 2,
            idle_ms: Some(1500),
            fence: Some(v1::FenceReport::default()),
            ..v1::InitStatus::default()
        };
        vec![status.encode_to_vec()]
    },
};

const CLUSTER: &str = "c0ffee";
const START: Timestamp = Timestamp(1_000_000);

fn framed(message: &impl Message) -> Vec<u8> {
    let mut bytes = (message.encoded_len() as u16).to_be_bytes().to_vec();
    bytes.extend(message.encode_to_vec());
    bytes
}

/// The messages, up to one that is cut short.
fn messages(mut data: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = data.split_first_chunk::<2>()?;
        let (message, rest) = rest.split_at_checked(u16::from_be_bytes(*length).into())?;
        data = rest;
        Some(message)
    })
}

fn inventory() -> Inventory {
    let gpus = (0..4u32).map(|index| GpuInfo {
        uuid: format!("GPU-{index}").parse().expect("a UUID"),
        index,
        model: "NVIDIA H100 80GB HBM3".into(),
        memory_bytes: 80 << 30,
        pci_address: format!("00000000:{index:02X}:00.0"),
        numa_node: Some(index / 2),
        minor: Some(index),
        mig: None,
        sharing: None,
        drained: None,
        cpu_affinity: String::new(),
        nvlink_version: 4,
    });
    Inventory {
        cpus: 16,
        memory_bytes: 64 << 30,
        gpus: gpus.collect(),
        links: LinkMatrix::from_fn(4, |_, _| Link::NvLink(18)),
        ..Inventory::default()
    }
}

fn report(seq: u64, jobs: &[ObservedJob]) -> Observed {
    Observed {
        node: "n1".parse().expect("a name"),
        boot_id: "boot".into(),
        seq,
        accepted: Some((ClusterId(CLUSTER.into()), Incarnation { number: 1, nonce: 7 })),
        generation: 1,
        inventory: inventory(),
        jobs: jobs.to_vec(),
        version: "0.1.0".into(),
        images: vec!["local/debian".into()],
        activity: jobs.iter().map(|job| (job.key, activity())).collect(),
    }
}

fn activity() -> Activity {
    Activity {
        seen: Some(Seen {
            for_ms: 90_000,
            gpu_percent: Some(50),
            ..Seen::default()
        }),
        counter: Counter {
            since: 5,
            by_model: [("NVIDIA H100".to_owned(), Used { busy: 1, measured: 2 })].into(),
        },
        host: HostUse {
            user_us: 1_000_000,
            system_us: 1,
            memory_bytes: 1 << 29,
            peak_bytes: 1 << 30,
        },
    }
}

fn of_job() -> ObservedJob {
    ObservedJob {
        key: JobKey {
            job: JobId(1),
            generation: Generation::first_of(1),
        },
        session: Some(SessionId(1)),
        phase: ObservedPhase::Ready,
        detail: String::new(),
        host_key: "ssh-ed25519 AAAA".into(),
        cause: None,
        exit_code: None,
        gpus: vec!["GPU-0".parse().expect("a UUID")],
        cpus: 2,
        memory_bytes: 1 << 30,
        user: Some("alice".parse().expect("a name")),
        name: "dev".into(),
        deadline: Timestamp(2_000_000),
        cluster: ClusterId(CLUSTER.into()),
        connections: 0,
        rank: 0,
        nodes: 1,
        started: START,
        image: "local/debian".into(),
        containment: Containment {
            fence: Some(FenceReport {
                checks: 40,
                micros: 900,
            }),
            oom_kills: 0,
        },
        binding: Binding {
            cpus: "0-1".parse().expect("a list"),
            mems: CpuSet::default(),
        },
        network: RankNetwork::Own,
    }
}

/// A broker with one node, on which alice has a session of two GPUs; and its store.
fn broker() -> (Broker, Vec<Change>) {
    let settings = Settings {
        default_image: "local/debian".into(),
        ..Settings::default()
    };
    let (mut broker, mut store) = Broker::start(settings, Vec::new(), ClusterId(CLUSTER.into()), 7, START);
    let caller = |name: &str, role| Caller {
        user: name.parse().expect("a name"),
        role,
        origin: Origin::Local(0),
    };
    let alice = User {
        name: "alice".parse().expect("a name"),
        uid: 1001,
        gid: 1001,
        groups: vec![],
        group_names: std::collections::BTreeMap::new(),
        home: "/home/alice".into(),
        shell: String::new(),
        role: Role::User,
        ssh_keys: vec![],
    };
    let token = NodeToken {
        hash: [1; 32],
        node: None,
        expires: START.after(Duration::from_mins(1)),
    };
    let join = Input::JoinNode {
        token: [1; 32],
        node: "n1".parse().expect("a name"),
        certificate: "1".into(),
        origin: Origin::Local(0),
    };
    let dev = OpenSession {
        name: Some("dev".parse().expect("a name")),
        spec: Some(SessionSpec {
            request: ResourceRequest {
                nodes: 1,
                gpus_per_node: 2,
                gpu_model: String::new(),
                nvlink: true,
                cpus_per_node: 0,
                memory_bytes_per_node: 0,
                ..ResourceRequest::default()
            }
            .into(),
            image: String::new(),
            time_limit: Duration::ZERO,
            env: std::collections::BTreeMap::new(),
            workdir: String::new(),
            terms: TermsRequest::default(),
            container: ContainerOptions::default(),
        }),
        must_start: true,
        ephemeral: false,
        request_key: String::new(),
        start: StartWish::default(),
    };
    for input in [
        Input::PutUser(None, alice),
        Input::CreateNodeToken(caller("root", Role::Admin), token),
        join,
        Input::Observed(Arc::new(report(0, &[]))),
        Input::OpenSession(caller("alice", Role::User), dev),
    ] {
        let output = broker.handle(START, input).expect("accepted");
        store.extend(output.changes);
    }
    (broker, store)
}

/// Whatever a node says, the broker's invariants hold, and a broker that starts from the store agrees.
fn observed(data: &[u8]) {
    let (mut broker, mut store) = broker();
    let mut now = START;
    for message in messages(data).take(16) {
        now = now.after(Duration::from_secs(3));
        let Ok(message) = v1::Observed::decode(message) else {
            continue;
        };
        let Ok(observed) = Observed::try_from(message) else {
            continue;
        };
        let again = Observed::try_from(v1::Observed::from(&observed));
        assert_eq!(again.as_ref(), Ok(&observed), "said again");
        if let Ok(output) = broker.handle(now, Input::Observed(Arc::new(observed))) {
            store.extend(output.changes);
        }
        holds(&broker);
        if let Ok(output) = broker.handle(now, Input::Tick) {
            store.extend(output.changes);
        }
    }
    holds(&broker);
    let (broker, _) = Broker::start(Settings::default(), store, ClusterId(CLUSTER.into()), 8, now);
    holds(&broker);
}

/// A node that says that it has shrunk is overcommitted, and nothing else is wrong.
fn holds(broker: &Broker) {
    let mut violations = check(broker.state());
    violations.retain(|violation| !matches!(violation, Violation::Overcommitted { .. }));
    assert_eq!(violations, vec![]);
}

/// Whatever a broker wants, the agent hands nothing out twice.
fn desired(data: &[u8]) {
    let myself = Myself {
        cluster: ClusterId(CLUSTER.into()),
        node: "n1".parse().expect("a name"),
        version: "0.1.0".into(),
        boot_id: "boot".into(),
    };
    let mut now = Now {
        wall: START,
        boot_ms: 5000,
    };
    let mut agent = Agent::new(myself, None, now);
    agent.handle(now, agent::Input::Inventory(Box::new(inventory())));
    agent.handle(now, agent::Input::World(Vec::new()));
    for message in messages(data).take(16) {
        let Ok(message) = v1::Desired::decode(message) else {
            continue;
        };
        let Ok(desired) = Desired::try_from(message) else {
            continue;
        };
        now.boot_ms += 1000;
        now.wall = now.wall.after(Duration::from_secs(1));
        agent.handle(now, agent::Input::Desired(Box::new(desired)));
        let mut held = std::collections::BTreeSet::new();
        for (key, holding) in agent.holders() {
            for gpu in &holding.gpus {
                assert!(held.insert(gpu.clone()), "{gpu} is held by {key} and another");
            }
        }
        let observed = agent.observed(now);
        assert_eq!(
            Observed::try_from(v1::Observed::from(&observed)).as_ref(),
            Ok(&observed)
        );
    }
}
