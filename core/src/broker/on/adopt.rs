//! What is found after the store was lost, or was replaced by an older one: operators take it over, or end it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::broker::change::Change;
use crate::broker::found::{FoundPart, parts_of};
use crate::broker::input::Caller;
use crate::broker::state::{NodeLink, State};
use crate::broker::{Broker, Call, Reject, RejectKind, Reply};
use crate::model::activity::Metered;
use crate::model::audit::Action;
use crate::model::gpu::Inventory;
use crate::model::gpu_unit::{GpuUnit, Slice};
use crate::model::ids::{ClusterId, JobKey, NodeName, QosName, SessionId, SessionName, UserName};
use crate::model::job::{Job, JobKind, Phase, Placed, RankStatus};
use crate::model::node::{NodeRecord, ObservedPhase};
use crate::model::resources::{Allocation, NodeAllocation, ResourceRequest, UnitRequest};
use crate::model::session::{ContainerOptions, Session, SessionSpec};
use crate::model::start::Conditions;
use crate::model::terms::{Terms, TermsRequest};
use crate::model::time::Timestamp;

impl Broker {
    pub(super) fn on_find_node(
        &mut self,
        now: Timestamp,
        name: &NodeName,
        certificate: String,
    ) -> Result<Reply, Reject> {
        let Some(record) = self.state.nodes.get(name) else {
            self.put_node(NodeRecord {
                name: name.clone(),
                inventory: Inventory::default(),
                drained: None,
                certificate,
                former_certificate: String::new(),
                revoked: Vec::new(),
                boot_id: String::new(),
                version: String::new(),
                images: Vec::new(),
                found: Some(now),
                features: BTreeSet::new(),
            });
            let link = NodeLink::new(now.after(self.state.settings.lease));
            self.state.put_link(name, link);
            return Ok(Reply::Done);
        };
        if record.accepts(&certificate) {
            return Ok(Reply::Done);
        }
        if record.revoked.contains(&certificate) {
            return Err(Reject::new(
                RejectKind::Denied,
                format!("the certificate of node {name} was replaced or revoked"),
            )
            .hint("join the host again: `carrel-node join` with a token from `carrel node token`"));
        }
        // Every certificate that was handed out is on record, unless the record is a backup's: then this
        // one was renewed since.
        let mut record = (**record).clone();
        let former = std::mem::replace(&mut record.certificate, certificate);
        let unused = std::mem::replace(&mut record.former_certificate, former);
        record
            .revoked
            .extend(Some(unused).filter(|serial| !serial.is_empty()));
        self.put_node(record);
        Ok(Reply::Done)
    }

    pub(super) fn on_adopt_node(&mut self, caller: &Caller, name: &NodeName) -> Result<Reply, Reject> {
        caller.must(Call::UpdateNode)?;
        let record = NodeRecord {
            found: None,
            ..(**self.state.node_named(name)?).clone()
        };
        self.put_node(record);
        self.audit(caller, Action::NodeAdopt, format!("node {name}"), "");
        self.output.room = true;
        Ok(Reply::Done)
    }

    pub(super) fn on_adopt_job(
        &mut self,
        now: Timestamp,
        caller: &Caller,
        key: JobKey,
    ) -> Result<Reply, Reject> {
        caller.must(Call::AdoptFound)?;
        let session = self.adopt_job(now, key)?;
        self.audit(caller, Action::FoundAdopt, format!("job {key}"), "");
        Ok(Reply::Session(session, false))
    }

    pub(super) fn on_end_found(&mut self, caller: &Caller, key: JobKey) -> Result<Reply, Reject> {
        caller.must(Call::EndFound)?;
        let parts = parts_of(&self.state, key);
        if parts.is_empty() {
            return Err(nothing_found(key));
        }
        for part in parts {
            if self.state.tombstones.insert((part.node.clone(), key)).is_none() {
                self.record(Change::PutTombstone(part.node.clone(), key));
                self.touch(&part.node);
            }
        }
        self.audit(caller, Action::FoundEnd, format!("job {key}"), "");
        Ok(Reply::Done)
    }

    /// Makes records of a found job and, where need be, of its session.
    pub(super) fn adopt_job(&mut self, now: Timestamp, key: JobKey) -> Result<SessionId, Reject> {
        let parts = parts_of(&self.state, key);
        let adopted = self
            .state
            .must_be_adoptable(&self.state.cluster.id, key, &parts)?;
        let session = self.adopted_session(now, &adopted, key, &parts);
        let id = session.id;
        let known = self.state.jobs.get(&key.job).map(|job| (**job).clone());
        let asked = known.as_ref().map_or(&session.spec.request, |job| &job.request);
        let has_whole = |(part, asked): (&FoundPart, &ResourceRequest)| {
            let node = self.state.nodes.get(&part.node);
            !asked.exclusive || node.is_some_and(|node| part.seen.cpus >= node.inventory.cpus)
        };
        // The session may have been asked for otherwise since the backup.
        let request =
            if asked.all_nodes() == parts.len() as u64 && parts.iter().zip(asked.by_rank()).all(has_whole) {
                asked.clone()
            } else {
                held(&parts).into()
            };
        let job = Job {
            phase: Phase::Placed(Box::new(adopted.placed.clone())),
            request,
            ..known.unwrap_or_else(|| Job {
                id: key.job,
                name: session.name.to_string(),
                kind: JobKind::Interactive,
                owner: adopted.owner.clone(),
                session: Some(id),
                request: session.spec.request.clone(),
                time_limit: session.spec.time_limit,
                submitted: adopted.placed.started,
                after: None,
                terms: Terms::default(),
                hold: None,
                begin: None,
                conditions: Conditions::default(),
                give_up: None,
                past_runs: Vec::new(),
                requeue: false,
                batch: None,
                array: None,
                phase: Phase::Pending,
            })
        };
        let record = &mut self.state.cluster;
        let next = (
            record.next_job.max(key.job.0 + 1),
            record.next_session.max(id.0 + 1),
        );
        if next != (record.next_job, record.next_session) {
            (record.next_job, record.next_session) = next;
            self.put_cluster();
        }
        self.put_session(session);
        self.put_job(job);
        for part in &parts {
            self.touch_job(&part.node, key.job);
        }
        self.output.room = true;
        Ok(id)
    }

    /// The session, found or made: what its user set for it beyond what its containers hold is lost.
    fn adopted_session(
        &self,
        now: Timestamp,
        adopted: &Adoptable,
        key: JobKey,
        parts: &[FoundPart],
    ) -> Session {
        let nodes = parts.iter().map(|part| part.node.clone());
        if let Some(known) = self.state.sessions.get(&adopted.session) {
            let mut session = (**known).clone();
            session.job = Some(key.job);
            let new: Vec<NodeName> = nodes.filter(|node| !session.kept_on.contains(node)).collect();
            session.kept_on.extend(new);
            return session;
        }
        let first = &parts[0].seen;
        let placed = &adopted.placed;
        Session {
            id: adopted.session,
            name: self.free_name(&adopted.owner, &first.name, key),
            owner: adopted.owner.clone(),
            spec: SessionSpec {
                request: held(parts).into(),
                image: first.image.clone(),
                time_limit: placed.deadline.since(placed.started).max(Duration::from_mins(1)),
                env: std::collections::BTreeMap::new(),
                workdir: String::new(),
                terms: TermsRequest::default(),
                container: ContainerOptions::default(),
            },
            created: now,
            ephemeral: false,
            removing: false,
            job: Some(key.job),
            kept_on: nodes.collect(),
            request_key: String::new(),
            shares: std::collections::BTreeMap::new(),
        }
    }

    /// The session's own name; "found-41" where it is taken by now, or is none.
    fn free_name(&self, owner: &UserName, wanted: &str, key: JobKey) -> SessionName {
        let spare = (1u64..).map(|n| match n {
            1 => format!("found-{}", key.job),
            n => format!("found-{}-{n}", key.job),
        });
        let names = std::iter::once(wanted.to_owned()).chain(spare);
        let free = |name: &SessionName| {
            let taken = (owner.clone(), name.clone());
            !self.state.session_names.contains_key(&taken)
        };
        let mut free = names.filter_map(|name| name.parse().ok()).filter(free);
        free.next().unwrap_or_else(|| unreachable!("names are endless"))
    }
}

/// What the record of a found job is made of.
pub(in crate::broker) struct Adoptable {
    owner: UserName,
    session: SessionId,
    placed: Placed,
}

impl State {
    /// Whether a found job can be taken over as it is; `parts` by rank. Why not.
    pub(in crate::broker) fn must_be_adoptable(
        &self,
        cluster: &ClusterId,
        key: JobKey,
        parts: &[FoundPart],
    ) -> Result<Adoptable, Reject> {
        let Some(first) = parts.first().map(|part| &part.seen) else {
            return Err(nothing_found(key));
        };
        let wrong = |message: String| Reject::new(RejectKind::WrongState, message);
        if *cluster != self.id() {
            return Err(wrong(format!("job {key} is of another cluster, {cluster}")).hint(
                "it goes on until its deadline; `carrel-node down` on its node ends everything there",
            ));
        }
        self.parts_are_whole(key, parts)?;
        let (Some(owner), Some(session)) = (first.user.clone(), first.session) else {
            return Err(wrong(format!("job {key} is no user's session")));
        };
        if !self.users.contains_key(&owner) {
            return Err(Reject::new(
                RejectKind::NotFound,
                format!("{owner}, whose job {key} is, is not in the directory"),
            )
            .hint(format!(
                "`carrel user add {owner} --uid N` adds them, with the user id that they had"
            )));
        }
        self.records_are_free(key, &owner, session)?;
        self.resources_are_free(key, parts)?;
        self.addresses_are_free(key, parts)?;
        let started = parts
            .iter()
            .map(|part| part.seen.started)
            .min()
            .unwrap_or_default();
        let deadline = parts
            .iter()
            .map(|part| part.seen.deadline)
            .max()
            .unwrap_or_default();
        let nodes = parts.iter().map(|FoundPart { node, seen }| NodeAllocation {
            node: node.clone(),
            gpus: seen.gpus.clone(),
            cpus: seen.cpus,
            memory_bytes: seen.memory_bytes,
        });
        let ranks = parts.iter().map(|part| RankStatus {
            ready: part.seen.phase == ObservedPhase::Ready,
            released: false,
            host_key: part.seen.host_key.clone(),
            containment: part.seen.containment,
            binding: part.seen.binding.clone(),
            metered: Metered::default(),
            network: part.seen.network,
            ready_at: None,
            failed_soon: false,
        });
        let allocation = Allocation {
            nodes: nodes.collect(),
        };
        let charges = self.charges(&QosName::normal(), &allocation);
        Ok(Adoptable {
            owner,
            session,
            placed: Placed {
                generation: key.generation,
                billing_milli: charges.iter().map(|charge| charge.billing_milli).sum(),
                charges,
                allocation,
                started,
                deadline,
                ranks: ranks.collect(),
                ending: None,
                leaving: None,
                extended: None,
                signalled: None,
            },
        })
    }

    fn id(&self) -> ClusterId {
        self.cluster.id.clone()
    }

    /// All ranks are there, on nodes that are ours, and none of them is ending.
    fn parts_are_whole(&self, key: JobKey, parts: &[FoundPart]) -> Result<(), Reject> {
        let wrong = |message: String| Err(Reject::new(RejectKind::WrongState, message));
        let ranks = parts.iter().map(|part| part.seen.rank as usize);
        let whole = parts[0].seen.nodes as usize == parts.len() && ranks.eq(0..parts.len());
        if !whole {
            return wrong(format!(
                "job {key} runs on {} nodes, and {} of them report it",
                parts[0].seen.nodes,
                parts.len()
            ));
        }
        for FoundPart { node, seen } in parts {
            if self.nodes.get(node).is_some_and(|record| record.found.is_some()) {
                return Err(Reject::new(
                    RejectKind::WrongState,
                    format!("node {node}, on which job {key} runs, is not adopted"),
                )
                .hint(format!("`carrel node adopt {node}` first")));
            }
            let buried = self.tombstones.contains(&(node.clone(), key));
            if buried || seen.cause.is_some() || seen.phase > ObservedPhase::Ready {
                return wrong(format!("job {key} is ending on node {node}"));
            }
            if seen.cpus == 0 {
                return wrong(format!("job {key} waits on node {node} and holds nothing there"));
            }
        }
        Ok(())
    }

    /// Neither its id nor its session's has become another's.
    fn records_are_free(&self, key: JobKey, owner: &UserName, session: SessionId) -> Result<(), Reject> {
        const HINT: &str = "it goes on until its deadline, or until `carrel found end`";
        let taken = |message: String| Err(Reject::new(RejectKind::AlreadyExists, message).hint(HINT));
        if let Some(job) = self.jobs.get(&key.job) {
            let same =
                matches!(job.phase, Phase::Pending) && job.session == Some(session) && job.owner == *owner;
            if !same {
                return taken(format!("job {} is another one by now, of {}", key.job, job.owner));
            }
        }
        let Some(known) = self.sessions.get(&session) else {
            return Ok(());
        };
        if known.owner != *owner {
            return taken(format!(
                "session #{session} is another one by now, of {}",
                known.owner
            ));
        }
        match self.live_job(known).filter(|job| job.id != key.job) {
            Some(job) => taken(format!("session {} has job {} by now", known.name, job.id)),
            None => Ok(()),
        }
    }

    /// No other live job has been given what it holds.
    fn resources_are_free(&self, key: JobKey, parts: &[FoundPart]) -> Result<(), Reject> {
        for FoundPart { node, seen } in parts {
            let usage = self
                .usage
                .get(node)
                .map(|usage| (**usage).clone())
                .unwrap_or_default();
            let owner = |key: &JobKey| self.jobs.get(&key.job).map(|job| &job.owner);
            let anothers = |unit: &GpuUnit| {
                let mut held = usage.of(&unit.gpu).iter();
                let other = held.find(|held| {
                    let owner = owner(&held.key);
                    held.slice.is_anothers(owner, &unit.slice, seen.user.as_ref())
                });
                other.map(|held| held.key)
            };
            let in_the_way = |unit: &GpuUnit| usage.in_the_way(unit).or_else(|| anothers(unit));
            if let Some(other) = seen.gpus.iter().find_map(in_the_way) {
                return Err(Reject::new(
                    RejectKind::AlreadyExists,
                    format!("a GPU of job {key} on node {node} is job {}'s by now", other.job),
                ));
            }
            let have = self.nodes.get(node).map(|record| &record.inventory);
            let fits = have.is_some_and(|have| {
                usage.cpus + u64::from(seen.cpus) <= u64::from(have.cpus)
                    && usage.memory.saturating_add(seen.memory_bytes) <= have.memory_bytes
            });
            if !fits {
                return Err(Reject::new(
                    RejectKind::Exhausted,
                    format!("node {node} no longer has the CPUs and the memory that job {key} holds"),
                ));
            }
        }
        Ok(())
    }

    /// No other gang has been given an address of its containers: it was not known of when that began.
    fn addresses_are_free(&self, key: JobKey, parts: &[FoundPart]) -> Result<(), Reject> {
        for FoundPart { node, seen } in parts {
            let Some(address) = seen.network.address() else {
                continue;
            };
            let has = |job: &&Arc<Job>| {
                let ranks = job.placed().map(|placed| placed.ranks.iter());
                let mut addresses = ranks
                    .into_iter()
                    .flatten()
                    .filter_map(|rank| rank.network.address());
                addresses.any(|other| other == address)
            };
            if let Some(other) = self.jobs.values().find(has) {
                return Err(Reject::new(
                    RejectKind::AlreadyExists,
                    format!(
                        "{address}, which job {key} has on node {node}, is job {}'s by now",
                        other.id
                    ),
                )
                .hint("it goes on until its deadline, or until `carrel found end`"));
            }
        }
        Ok(())
    }
}

/// A request for what these parts hold.
fn held(parts: &[FoundPart]) -> ResourceRequest {
    let first = &parts[0].seen;
    ResourceRequest {
        nodes: parts.len() as u32,
        gpus_per_node: first.gpus.len() as u32,
        unit: first.gpus.first().map(asked).unwrap_or_default(),
        gpu_memory_bytes: 0,
        gpu_model: String::new(),
        nvlink: false,
        cpus_per_node: first.cpus,
        memory_bytes_per_node: first.memory_bytes,
        ..ResourceRequest::default()
    }
}

/// What a job that holds such a unit asked for.
fn asked(unit: &GpuUnit) -> UnitRequest {
    match &unit.slice {
        Slice::Whole => UnitRequest::Whole,
        Slice::Mig { profile, .. } => UnitRequest::Mig(profile.clone()),
        Slice::Share { milli, sharing } => UnitRequest::Share {
            milli: *milli,
            sharing: Some(*sharing),
        },
    }
}

fn nothing_found(key: JobKey) -> Reject {
    Reject::new(
        RejectKind::NotFound,
        format!("no node runs a job {key} that this broker does not know"),
    )
    .hint("`carrel found` lists what nodes run and no record knows")
}
