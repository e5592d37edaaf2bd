//! Everything that a broker knows.

use std::collections::BTreeMap;
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};

use super::arrays::Array;
use super::backfill::Promise;
use super::change::{Change, ClusterRecord};
use super::headroom::ByModel;
use super::idle::IdleEnd;
use super::settings::Settings;
use super::usage::NodeUsage;
use crate::model::account::Person;
use crate::model::batch::Batch;
use crate::model::ids::{
    ClusterId, Generation, Incarnation, JobId, JobKey, NodeName, PartitionName, QosName, ReservationName,
    SessionId, SessionName, UserName,
};
use crate::model::job::{Job, Phase};
use crate::model::node::{NodeRecord, Observed, ObservedJob, ObservedPhase};
use crate::model::partition::Partition;
use crate::model::qos::Qos;
use crate::model::reservation::Reservation;
use crate::model::resources::ResourceRequest;
use crate::model::session::Session;
use crate::model::time::Timestamp;
use crate::model::user::{ApiToken, NodeToken, User};
use crate::placement::{Hosts, Recent};
use crate::queue::fair_tree::Standings;
use crate::queue::headroom::Demand;
use crate::queue::past::{PastKey, PastUse};
use crate::queue::tally::Accounts;
use crate::queue::{Pending, Tallies};

/// Jobs that a start looks back at for what is asked for: older ones count for next to nothing.
const MAX_REMEMBERED: usize = 4096;

/// Everything that a broker knows. Cloning is cheap: the maps share their parts.
///
/// What is kept in the store comes first; what follows is derived from it or
/// heard from nodes, and is built anew at a start.
#[derive(Clone, Debug)]
pub struct State {
    /// What the operator set.
    pub settings: Settings,
    /// The cluster's record.
    pub cluster: ClusterRecord,
    /// The directory.
    pub users: OrdMap<UserName, Arc<User>>,
    /// API tokens by id.
    pub tokens: OrdMap<Arc<str>, Arc<ApiToken>>,
    /// Nodes' one-time tokens by hash.
    pub node_tokens: OrdMap<[u8; 32], Arc<NodeToken>>,
    /// Nodes.
    pub nodes: OrdMap<NodeName, Arc<NodeRecord>>,
    /// Sessions.
    pub sessions: OrdMap<SessionId, Arc<Session>>,
    /// Jobs: those that are not over, and those that were until lately, or that something still refers to.
    pub jobs: OrdMap<JobId, Arc<Job>>,
    /// What jobs have used that are here no more.
    pub past_use: OrdMap<PastKey, Arc<PastUse>>,
    /// What those of them that were interactive held of each model of GPU.
    pub past_demand: OrdMap<String, Demand>,
    /// Kept changes that nodes are to delete.
    pub removals: OrdMap<(NodeName, SessionId), ()>,
    /// Found jobs that an operator wants ended.
    pub tombstones: OrdSet<(NodeName, JobKey)>,
    /// The tree of accounts.
    pub accounts: Accounts,
    /// What is set for users, whatever the account.
    pub people: OrdMap<UserName, Arc<Person>>,
    /// Qualities of service that operators have made.
    pub qos: OrdMap<QosName, Arc<Qos>>,
    /// Partitions that operators have made.
    pub partitions: OrdMap<PartitionName, Arc<Partition>>,
    /// Reservations that are not over.
    pub reservations: OrdMap<ReservationName, Arc<Reservation>>,

    /// Arrays, with what their jobs make of them.
    pub arrays: OrdMap<JobId, Arc<Array>>,
    /// API tokens by hash.
    pub token_hashes: OrdMap<[u8; 32], Arc<str>>,
    /// Sessions by owner and name.
    pub session_names: OrdMap<(UserName, SessionName), SessionId>,
    /// Sessions by the key of the request that last started them.
    pub request_keys: OrdMap<(UserName, String), SessionId>,
    /// Batch jobs by the key of the request that submitted them.
    pub submit_keys: OrdMap<(UserName, String), JobId>,
    /// Pending jobs.
    pub pending: Pending,
    /// When pending jobs will ask for less.
    pub patience: OrdSet<(Timestamp, JobId)>,
    /// When users are to hear that so many hundredths of a job's time are over.
    pub time_parts: OrdSet<(Timestamp, JobId, u8)>,
    /// When pending jobs may start that may not before.
    pub begins: OrdSet<(Timestamp, JobId)>,
    /// When it was last looked which reservations are in force.
    pub reserved_at: Timestamp,
    /// Pending jobs that wait for the end of each job.
    pub dependents: OrdMap<JobId, OrdSet<JobId>>,
    /// Pending jobs that wait for all earlier ones of their user and name.
    pub singletons: OrdMap<(UserName, String), OrdSet<JobId>>,
    /// When and where the first of the pending jobs start at the latest, as the last pass found it.
    pub promises: OrdMap<JobId, Arc<Promise>>,
    /// Whose of them the next pass looks at again, by rank.
    pub improve_next: usize,
    /// When the next pass is due though nothing happens.
    pub next_pass: Option<Timestamp>,
    /// What jobs hold of each model of GPU.
    pub by_model: ByModel,
    /// What jobs hold and have used on each account.
    pub tallies: Tallies,
    /// Fair-share, and when it was worked out.
    pub standings: (Timestamp, Arc<Standings>),
    /// How often it became another one.
    pub ordered: u64,
    /// Jobs that are over, by when that was.
    pub ended: OrdSet<(Timestamp, JobId)>,
    /// When those that are to leave are looked for next.
    pub forget_next: Timestamp,
    /// Jobs that hold something, by when they end at the latest.
    pub deadlines: OrdSet<(Timestamp, JobId)>,
    /// Sessions that are about to end since nobody uses them.
    pub idle: OrdMap<JobId, IdleEnd>,
    /// What live jobs hold on each node.
    pub usage: OrdMap<NodeName, Arc<NodeUsage>>,
    /// Jobs with something unreleased on each node.
    pub placed_on: OrdMap<NodeName, OrdSet<JobId>>,
    /// What of each node may be given away, arranged for placement.
    pub hosts: Hosts,
    /// What was asked for lately: what hosts are worth follows from it.
    pub recent: Recent,
    /// Contact with each node since the start.
    pub links: OrdMap<NodeName, Arc<NodeLink>>,
    /// The next allocation's fencing token.
    pub next_generation: Generation,
    /// The latest time that has been told.
    pub ticked: Timestamp,
    /// When this process started.
    pub started: Timestamp,
    /// When the audit log was last trimmed.
    pub audit_trimmed: Timestamp,
}

/// Contact with a node since the broker's start.
#[derive(Clone, Debug)]
pub struct NodeLink {
    /// The agent's stream is up.
    pub connected: bool,
    /// When it last spoke.
    pub last_contact: Timestamp,
    /// The latest time at which it may still hold a lease.
    pub lease_until: Timestamp,
    /// Generation of its desired state.
    pub generation: u64,
    /// Generation since which each job stands in its desired state as it does now.
    pub since: OrdMap<JobId, u64>,
    /// Generation since which each removal stands in it.
    pub removals_since: OrdMap<SessionId, u64>,
    /// What it last said.
    pub observed: Option<Arc<Observed>>,
    /// Nothing was done about that, since it could not be kept.
    pub undone: bool,
}

impl NodeLink {
    /// A link to a node that has not spoken yet.
    pub(super) fn new(lease_until: Timestamp) -> Self {
        Self {
            connected: false,
            last_contact: Timestamp(0),
            lease_until,
            generation: 1,
            since: OrdMap::new(),
            removals_since: OrdMap::new(),
            observed: None,
            undone: false,
        }
    }

    /// The node has acted on this incarnation's desired state of this generation, or a later one.
    pub(super) fn has_applied(&self, cluster: &ClusterRecord, generation: u64) -> bool {
        self.observed.as_ref().is_some_and(|observed| {
            let ours = observed
                .accepted
                .as_ref()
                .is_some_and(|(id, incarnation)| *id == cluster.id && *incarnation == cluster.incarnation);
            ours && observed.generation >= generation
        })
    }
}

/// Jobs of one array hold one text of what they run, as they did before they were kept.
fn shared(jobs: BTreeMap<JobId, Arc<Job>>) -> impl Iterator<Item = Arc<Job>> {
    let mut of_arrays: BTreeMap<JobId, Arc<Batch>> = BTreeMap::new();
    jobs.into_values().map(move |mut job| {
        if let (Some(part), Some(batch)) = (&job.array, &job.batch) {
            let known = of_arrays.entry(part.array).or_insert_with(|| Arc::clone(batch));
            if !Arc::ptr_eq(known, batch) && known == batch {
                let known = Arc::clone(known);
                Arc::make_mut(&mut job).batch = Some(known);
            }
        }
        job
    })
}

impl State {
    pub(super) fn start(
        settings: Settings,
        records: Vec<Change>,
        new_cluster: ClusterId,
        nonce: u64,
        now: Timestamp,
    ) -> Self {
        let lease_ms = u64::try_from(settings.lease.as_millis()).unwrap_or(u64::MAX);
        let pending = Pending::by(settings.queue.weights.clone());
        let hosts = Hosts::over(Arc::clone(&settings.fabric));
        let mut state = Self {
            settings,
            cluster: ClusterRecord {
                id: new_cluster,
                incarnation: Incarnation::default(),
                next_job: 1,
                next_session: 1,
                lease_ms,
            },
            users: OrdMap::new(),
            tokens: OrdMap::new(),
            node_tokens: OrdMap::new(),
            nodes: OrdMap::new(),
            sessions: OrdMap::new(),
            jobs: OrdMap::new(),
            past_use: OrdMap::new(),
            past_demand: OrdMap::new(),
            removals: OrdMap::new(),
            tombstones: OrdSet::new(),
            accounts: OrdMap::new(),
            people: OrdMap::new(),
            qos: OrdMap::new(),
            partitions: OrdMap::new(),
            reservations: OrdMap::new(),
            arrays: OrdMap::new(),
            token_hashes: OrdMap::new(),
            session_names: OrdMap::new(),
            request_keys: OrdMap::new(),
            submit_keys: OrdMap::new(),
            pending,
            patience: OrdSet::new(),
            time_parts: OrdSet::new(),
            begins: OrdSet::new(),
            reserved_at: now,
            dependents: OrdMap::new(),
            singletons: OrdMap::new(),
            promises: OrdMap::new(),
            improve_next: 0,
            next_pass: None,
            by_model: ByModel::default(),
            tallies: Tallies::default(),
            standings: (Timestamp(0), Arc::default()),
            ended: OrdSet::new(),
            forget_next: now,
            ordered: 0,
            deadlines: OrdSet::new(),
            idle: OrdMap::new(),
            usage: OrdMap::new(),
            placed_on: OrdMap::new(),
            hosts,
            recent: Recent::default(),
            links: OrdMap::new(),
            next_generation: Generation::default(),
            ticked: now,
            started: now,
            audit_trimmed: now,
        };
        state.hosts.keep(state.settings.reserve);
        // Jobs are counted on accounts, and say what they ask for through their sessions: they come last.
        let mut jobs: BTreeMap<JobId, Arc<Job>> = BTreeMap::new();
        let mut arrays = BTreeMap::new();
        for record in records {
            match record {
                Change::PutJob(job) => {
                    jobs.insert(job.id, job);
                }
                Change::ForgetJob(job) => {
                    jobs.remove(&job.id);
                }
                Change::PutArray(array) => {
                    arrays.insert(array.id, array);
                }
                Change::ForgetArray(array) => {
                    arrays.remove(&array.id);
                }
                other => state.apply(other),
            }
        }
        for (model, demand) in &state.past_demand {
            state.by_model.set_past(model.clone(), *demand);
        }
        let decay = state.settings.queue.decay();
        for past in state.past_use.values() {
            state.tallies.count_past(&state.accounts, past, decay);
        }
        for array in arrays.into_values() {
            state.insert_array(array);
        }
        for mut job in shared(jobs) {
            if job.phase == Phase::Pending {
                state.share(Arc::make_mut(&mut job));
            }
            state.insert_job(job);
        }
        // What jobs wait for may have been read after them.
        let dependents = state.dependents.values().flatten().copied();
        let dependents: std::collections::BTreeSet<JobId> = dependents.collect();
        for id in dependents {
            state.look_again(id);
        }
        let lately = state.jobs.values().rev().take(MAX_REMEMBERED);
        let mut lately: Vec<Arc<Job>> = lately.cloned().collect();
        lately.reverse();
        for job in lately {
            state.recent.note(&job.request);
        }
        state.hosts.expect(state.recent.outlook());
        // Leases given before this start end at most one former lease after it.
        let lease_until = now.after(std::time::Duration::from_millis(
            state.cluster.lease_ms.max(lease_ms),
        ));
        state.cluster.lease_ms = state.cluster.lease_ms.max(lease_ms);
        state.cluster.incarnation = Incarnation {
            number: state.cluster.incarnation.number + 1,
            nonce,
        };
        state.next_generation = Generation::before(state.cluster.incarnation);
        let nodes: Vec<NodeName> = state.nodes.keys().cloned().collect();
        for node in &nodes {
            state.put_link(node, NodeLink::new(lease_until));
        }
        state
    }

    /// Applies one record of the store.
    fn apply(&mut self, change: Change) {
        match change {
            Change::PutCluster(record) => self.cluster = *record,
            Change::PutUser(user) => {
                self.users.insert(user.name.clone(), user);
            }
            Change::DeleteUser(name) => {
                self.users.remove(&name);
            }
            Change::PutToken(token) => {
                self.token_hashes.insert(token.hash, Arc::clone(&token.id));
                self.tokens.insert(Arc::clone(&token.id), token);
            }
            Change::DeleteToken(id) => {
                if let Some(token) = self.tokens.remove(&id) {
                    self.token_hashes.remove(&token.hash);
                }
            }
            Change::PutNodeToken(token) => {
                self.node_tokens.insert(token.hash, token);
            }
            Change::DeleteNodeToken(hash) => {
                self.node_tokens.remove(&hash);
            }
            Change::PutNode(node) => self.insert_node(node),
            Change::DeleteNode(name) => self.remove_node(&name),
            Change::PutSession(session) => self.insert_session(session),
            Change::DeleteSession(id) => self.remove_session(id),
            Change::PutPastUse(past) => {
                self.past_use.insert(past.key.clone(), past);
            }
            Change::PutPastDemand(model, demand) => {
                self.past_demand.insert(model, *demand);
            }
            Change::PutJob(_) | Change::ForgetJob(_) | Change::PutArray(_) | Change::ForgetArray(_) => {
                unreachable!("jobs and their arrays come last")
            }
            Change::PutRemoval(node, session) => {
                self.removals.insert((node, session), ());
            }
            Change::DeleteRemoval(node, session) => {
                self.removals.remove(&(node, session));
            }
            Change::PutTombstone(node, key) => {
                self.tombstones.insert((node, key));
            }
            Change::DeleteTombstone(node, key) => {
                self.tombstones.remove(&(node, key));
            }
            Change::PutAccount(account) => {
                self.accounts.insert(account.name.clone(), account);
            }
            Change::DeleteAccount(name) => {
                self.accounts.remove(&name);
            }
            Change::PutPerson(person) => {
                self.people.insert(person.user.clone(), person);
            }
            Change::PutQos(qos) => {
                self.qos.insert(qos.name.clone(), qos);
            }
            Change::DeleteQos(name) => {
                self.qos.remove(&name);
            }
            Change::PutPartition(partition) => {
                self.partitions.insert(partition.name.clone(), partition);
            }
            Change::DeletePartition(name) => {
                self.partitions.remove(&name);
            }
            Change::PutReservation(reservation) => {
                self.reservations.insert(reservation.name.clone(), reservation);
            }
            Change::DeleteReservation(name) => {
                self.reservations.remove(&name);
            }
            // The log is not a part of the state.
            Change::Audit(_) | Change::TrimAudit(..) => {}
        }
    }

    /// Puts a node in place of its former self, indexes and all.
    pub(super) fn insert_node(&mut self, node: Arc<NodeRecord>) {
        let name = node.name.clone();
        self.hosts.set_inventory(&name, &node.offer());
        self.nodes.insert(name.clone(), node);
        self.refresh(&name);
    }

    /// Takes a node out, and what was heard of it.
    pub(super) fn remove_node(&mut self, name: &NodeName) {
        self.nodes.remove(name);
        self.hosts.remove(name);
        self.links.remove(name);
        self.usage.remove(name);
    }

    /// Takes note of what was asked for: more of the like is to be expected.
    pub(super) fn note_request(&mut self, request: &ResourceRequest) {
        if let Some(outlook) = self.recent.note(request) {
            self.hosts.expect(outlook);
        }
    }

    /// Takes note of what of a node is free, after anything that it depends on has changed.
    pub(super) fn refresh(&mut self, name: &NodeName) {
        if let Some(room) = self.room(name) {
            self.hosts.set_room(name, room);
        }
    }

    /// Puts a session in place of its former self, indexes and all.
    pub(super) fn insert_session(&mut self, session: Arc<Session>) {
        let old = self.sessions.get(&session.id);
        let same = old.is_some_and(|old| {
            (&old.owner, &old.name, &old.request_key) == (&session.owner, &session.name, &session.request_key)
        });
        if !same {
            self.remove_session(session.id);
            self.session_names
                .insert((session.owner.clone(), session.name.clone()), session.id);
            if !session.request_key.is_empty() {
                self.request_keys
                    .insert((session.owner.clone(), session.request_key.clone()), session.id);
            }
        }
        self.sessions.insert(session.id, session);
    }

    /// Takes a session out, indexes and all.
    pub(super) fn remove_session(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.remove(&id) {
            self.session_names
                .remove(&(session.owner.clone(), session.name.clone()));
            self.request_keys
                .remove(&(session.owner.clone(), session.request_key.clone()));
        }
    }

    /// Changes a node's link, made if need be.
    pub(super) fn update_link(&mut self, node: &NodeName, update: impl FnOnce(&mut NodeLink)) {
        self.update_desired(node, update);
        self.refresh(node);
    }

    /// The same where only what the node is to do changes: that makes nothing free.
    pub(super) fn update_desired(&mut self, node: &NodeName, update: impl FnOnce(&mut NodeLink)) {
        if let Some(link) = self.links.get_mut(node) {
            return update(Arc::make_mut(link));
        }
        let mut link = NodeLink::new(Timestamp(0));
        update(&mut link);
        self.links.insert(node.clone(), Arc::new(link));
    }

    /// Puts a node's link in place of its former self.
    pub(super) fn put_link(&mut self, node: &NodeName, link: NodeLink) {
        self.links.insert(node.clone(), Arc::new(link));
        self.refresh(node);
    }

    /// A node's desired state changed.
    pub(super) fn bump_generation(&mut self, node: &NodeName) {
        self.update_desired(node, |link| link.generation += 1);
    }

    /// The session's live job; none when it is stopped.
    pub fn live_job(&self, session: &Session) -> Option<&Arc<Job>> {
        session
            .job
            .and_then(|id| self.jobs.get(&id))
            .filter(|job| !job.state().is_final())
    }

    /// What a node says runs on it that is no live job of ours: still held, so not free.
    pub fn strangers<'a>(&'a self, node: &NodeName) -> impl Iterator<Item = &'a ObservedJob> + 'a {
        let observed = self.links.get(node).and_then(|link| link.observed.as_deref());
        let node = node.clone();
        observed
            .into_iter()
            .flat_map(|observed| &observed.jobs)
            .filter(|job| job.phase != ObservedPhase::Released)
            .filter(move |job| job.cluster != self.cluster.id || !self.holds(job.key, &node))
    }

    /// An allocation of ours that was given and is over, or is over on the node that speaks of it.
    pub(super) fn is_over(&self, stranger: &ObservedJob) -> bool {
        let known = self.jobs.get(&stranger.key.job);
        stranger.cluster == self.cluster.id && known.is_some_and(|job| job.had(stranger.key.generation))
    }

    /// Found jobs that an operator wants ended on a node.
    pub(super) fn tombstones_on<'a>(&'a self, node: &'a NodeName) -> impl Iterator<Item = JobKey> + 'a {
        let all = self.tombstones.iter().filter(move |(on, _)| on == node);
        all.map(|(_, key)| *key)
    }

    /// The node obeys another cluster's broker.
    pub fn is_foreign(&self, observed: &Observed) -> bool {
        observed
            .accepted
            .as_ref()
            .is_some_and(|(cluster, _)| *cluster != self.cluster.id)
    }

    /// A live job of ours holds this allocation on this node.
    pub fn holds(&self, key: JobKey, node: &NodeName) -> bool {
        self.jobs
            .get(&key.job)
            .and_then(|job| job.placed())
            .is_some_and(|placed| {
                placed.generation == key.generation
                    && placed
                        .allocation
                        .nodes
                        .iter()
                        .zip(&placed.ranks)
                        .any(|(part, rank)| part.node == *node && !rank.released)
            })
    }

    /// When jobs that are over leave the state next.
    fn next_forgotten(&self) -> Option<Timestamp> {
        let (oldest, _) = self.ended.get_min()?;
        let due = if self.ended.len() > super::on::MAX_ENDED {
            Timestamp(0)
        } else {
            oldest.after(self.settings.jobs_in_memory)
        };
        Some(due.max(self.forget_next))
    }

    /// When the next timer is due.
    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        let job = self.deadlines.iter().find_map(|(at, id)| {
            let ending = self
                .jobs
                .get(id)
                .and_then(|job| job.placed())
                .is_some_and(|p| p.ending.is_some());
            (!ending).then_some(*at)
        });
        let nodes = self.links.iter().filter_map(|(node, link)| {
            let holds = self
                .usage
                .get(node)
                .is_some_and(|usage| **usage != NodeUsage::default());
            let silent = link
                .connected
                .then(|| link.last_contact.after(self.settings.contact_timeout));
            let lost = holds.then(|| link.lease_until.after(self.settings.lease_margin));
            silent.into_iter().chain(lost).min()
        });
        let tokens = self.node_tokens.values().map(|token| token.expires);
        let tokens = tokens.chain(self.tokens.values().map(|token| token.expires));
        let waits = [self.patience.get_min(), self.begins.get_min()];
        let patience = waits.into_iter().flatten().map(|(at, _)| *at);
        let trim = self.audit_trimmed.after(super::on::AUDIT_TRIM);
        let time_parts = self.time_parts.get_min().map(|(at, ..)| *at);
        let jobs = job
            .into_iter()
            .chain(patience)
            .chain(self.next_pass)
            .chain(time_parts);
        let jobs = jobs.chain(self.next_reservation());
        let forgotten = self.next_forgotten();
        jobs.chain(nodes)
            .chain(tokens)
            .chain(forgotten)
            .chain([trim])
            .min()
    }
}
