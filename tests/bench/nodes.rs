//! Nodes that exist in what is told of them only: a broker's state machine is told what agents would report.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::Context;
use carrel_core::broker::{Broker, Caller, Change, Input, OpenSession, Output, Settings, State};
use carrel_core::model::audit::Origin;
use carrel_core::model::cpus::Binding;
use carrel_core::model::gpu::{GpuInfo, Inventory};
use carrel_core::model::ids::{ClusterId, JobId, NodeName};
use carrel_core::model::job::{Containment, Job, Placed};
use carrel_core::model::node::{EndCause, NodeRecord, Observed, ObservedJob, ObservedPhase};
use carrel_core::model::resources::ResourceRequest;
use carrel_core::model::session::{ContainerOptions, SessionSpec};
use carrel_core::model::start::StartWish;
use carrel_core::model::terms::TermsRequest;
use carrel_core::model::time::Timestamp;
use carrel_core::model::topology::{Link, LinkMatrix};
use carrel_core::model::user::{Role, User};

/// The nodes of a broker.
pub struct Nodes {
    /// What each has, and the number of its last report.
    nodes: BTreeMap<NodeName, (Inventory, u64)>,
}

/// What every node has.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// GPUs, at most 64.
    pub gpus: u32,
    /// Hardware threads.
    pub cpus: u32,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// How any two GPUs are joined.
    pub link: Link,
}

/// A broker with so many nodes in service and these users; `records` are what else its store holds.
pub fn broker(
    settings: Settings,
    (count, host): (u32, Host),
    users: u32,
    mut records: Vec<Change>,
    now: Timestamp,
) -> anyhow::Result<(Broker, Nodes)> {
    for number in 0..users {
        records.push(Change::PutUser(Arc::new(user(number)?)));
    }
    let mut nodes = Nodes {
        nodes: BTreeMap::new(),
    };
    for number in 0..count {
        let name: NodeName = format!("n{number}").parse()?;
        let inventory = inventory(number, host)?;
        records.push(Change::PutNode(Arc::new(record(&name, &inventory))));
        nodes.nodes.insert(name, (inventory, 0));
    }
    let (mut broker, _) = Broker::start(settings, records, ClusterId("bench".into()), 1, now);
    let names: Vec<NodeName> = nodes.nodes.keys().cloned().collect();
    for name in &names {
        let input = nodes.report(broker.state(), name, None)?;
        tell(&mut broker, now, input)?;
    }
    Ok((broker, nodes))
}

/// Has an input handled that is to be accepted.
pub fn tell(broker: &mut Broker, now: Timestamp, input: Input) -> anyhow::Result<Output> {
    let output = broker.handle(now, input);
    output.map_err(|reject| anyhow::anyhow!("the broker refuses: {reject:?}"))
}

/// A wish of a user, by number, for a session that is gone when its job is.
pub fn wish(user: u32, name: &str, request: ResourceRequest) -> anyhow::Result<(Caller, OpenSession)> {
    let caller = Caller {
        user: format!("u{user}").parse()?,
        role: Role::User,
        origin: Origin::Local(0),
    };
    let spec = SessionSpec {
        request: request.into(),
        image: "any".into(),
        time_limit: std::time::Duration::ZERO,
        env: BTreeMap::new(),
        workdir: String::new(),
        terms: TermsRequest::default(),
        container: ContainerOptions::default(),
    };
    let open = OpenSession {
        name: Some(name.parse()?),
        spec: Some(spec),
        must_start: true,
        ephemeral: true,
        request_key: String::new(),
        start: StartWish::default(),
    };
    Ok((caller, open))
}

impl Nodes {
    /// A node reports all that it holds; of this job, that it is gone, and why.
    pub fn report(
        &mut self,
        state: &State,
        node: &NodeName,
        gone: Option<(JobId, EndCause)>,
    ) -> anyhow::Result<Input> {
        let held = state.placed_on.get(node).into_iter().flatten();
        let jobs = held.filter_map(|id| {
            let job = state.jobs.get(id)?;
            let gone = gone.filter(|(gone, _)| gone == id).map(|(_, cause)| cause);
            observed(&state.cluster.id, job, job.placed()?, node, gone)
        });
        let (inventory, seq) = self.nodes.get_mut(node).context("no such node")?;
        *seq += 1;
        Ok(Input::Observed(Arc::new(Observed {
            node: node.clone(),
            boot_id: String::new(),
            seq: *seq,
            accepted: Some((state.cluster.id.clone(), state.cluster.incarnation)),
            generation: state.links.get(node).map_or(0, |link| link.generation),
            inventory: inventory.clone(),
            jobs: jobs.collect(),
            version: String::new(),
            images: Vec::new(),
            activity: BTreeMap::new(),
        })))
    }
}

fn user(number: u32) -> anyhow::Result<User> {
    Ok(User {
        name: format!("u{number}").parse()?,
        uid: 10_000 + number,
        gid: 10_000,
        groups: Vec::new(),
        group_names: BTreeMap::new(),
        home: "/home".into(),
        shell: String::new(),
        role: Role::User,
        ssh_keys: Vec::new(),
    })
}

fn inventory(node: u32, host: Host) -> anyhow::Result<Inventory> {
    let gpus = (0..host.gpus).map(|index| {
        Ok(GpuInfo {
            uuid: format!("GPU-{node}-{index}").parse()?,
            index,
            model: "NVIDIA H100 80GB HBM3".into(),
            memory_bytes: 80 << 30,
            pci_address: String::new(),
            numa_node: Some(index * 2 / host.gpus),
            minor: Some(index),
            mig: None,
            sharing: None,
            drained: None,
            cpu_affinity: String::new(),
            nvlink_version: 4,
        })
    });
    Ok(Inventory {
        cpus: host.cpus,
        memory_bytes: host.memory_bytes,
        gpus: gpus.collect::<anyhow::Result<_>>()?,
        links: LinkMatrix::from_fn(host.gpus as usize, |_, _| host.link),
        ..Inventory::default()
    })
}

fn record(name: &NodeName, inventory: &Inventory) -> NodeRecord {
    NodeRecord {
        name: name.clone(),
        inventory: inventory.clone(),
        drained: None,
        certificate: "1".into(),
        former_certificate: String::new(),
        revoked: Vec::new(),
        boot_id: String::new(),
        version: String::new(),
        images: Vec::new(),
        found: None,
        features: BTreeSet::new(),
    }
}

/// What a node says of a job of which it holds something.
fn observed(
    cluster: &ClusterId,
    job: &Job,
    placed: &Placed,
    node: &NodeName,
    gone: Option<EndCause>,
) -> Option<ObservedJob> {
    let rank = placed
        .allocation
        .nodes
        .iter()
        .position(|part| part.node == *node)?;
    let part = &placed.allocation.nodes[rank];
    Some(ObservedJob {
        key: job.key()?,
        session: job.session,
        phase: match gone {
            Some(_) => ObservedPhase::Released,
            None if placed.ending.is_some() => ObservedPhase::Stopping,
            None => ObservedPhase::Ready,
        },
        detail: String::new(),
        host_key: String::new(),
        cause: gone,
        exit_code: gone.is_some_and(|cause| cause == EndCause::Exited).then_some(0),
        gpus: part.gpus.clone(),
        cpus: part.cpus,
        memory_bytes: part.memory_bytes,
        user: Some(job.owner.clone()),
        name: job.name.clone(),
        deadline: placed.deadline,
        cluster: cluster.clone(),
        connections: 0,
        rank: rank as u32,
        nodes: placed.allocation.nodes.len() as u32,
        started: placed.started,
        image: String::new(),
        containment: Containment::default(),
        binding: Binding::default(),
        network: placed.ranks[rank].network,
    })
}
