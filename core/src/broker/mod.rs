//! The broker's state machine: `handle(now, Input) -> Result<Output, Reject>`.
//!
//! One actor owns a [`Broker`]. For each input it commits the output's changes,
//! and only then replies and releases the effects. Effects are derivable from
//! the state and harmless when repeated; there is no outbox. [`State`] is a
//! persistent structure: cloning it is cheap, and a clone is a snapshot for readers.

mod arrays;
mod audit;
mod avoid;
mod backfill;
mod change;
mod check;
mod desired;
mod edit;
mod environment;
mod forecast;
mod found;
mod future;
mod gang;
mod headroom;
mod idle;
mod index;
mod input;
mod limits;
mod mail;
mod names;
mod on;
mod order;
mod preempt;
mod queued;
mod reject;
mod reservations;
mod reserved;
mod rights;
mod room;
mod schedule;
mod settings;
mod sizes;
mod state;
#[cfg(test)]
mod tests;
mod unfit;
mod usage;
mod view;

use std::collections::BTreeSet;
use std::sync::Arc;

pub use arrays::{Array, Named};
pub use backfill::Promise;
pub use change::{Change, ClusterRecord};
pub use check::{Violation, check};
pub use desired::output_files;
pub use edit::{
    AccountEdit, Edit, LimitsEdit, MemberEdit, PartitionEdit, PersonEdit, QosEdit, ReservationEdit, Wanted,
    Way,
};
pub use forecast::{Choice, Plan, Start, plan, start_of, starts_of};
pub use found::{FoundJob, FoundPart, found_jobs, found_on};
pub use headroom::ByModel;
pub use idle::{IdleEnd, IdlePolicy, JobUse, LastUse, UsedBy};
pub use index::Aside;
pub use input::{
    Caller, FeatureChange, Input, JobUpdate, MailEdit, OpenSession, Reply, SessionRef, SignIn, SubmitJob,
};
pub use mail::Mail;
pub use order::{Priority, all_standings};
pub use queued::{Queued, Reasons, queued};
pub use reject::{Reject, RejectKind};
pub use rights::{Call, Inside, Needs};
pub use settings::{
    HeadroomSettings, IdleSettings, PreemptionSettings, QueueSettings, ReservationSettings, Settings,
};
pub use state::{NodeLink, State};
pub use usage::{HeldUnit, NodeUsage};
pub use view::{
    Explanation, NodeView, explain, node_state, node_view, queue_position, rank_detail, seats, session_state,
    state_reason,
};

use crate::model::audit::Action;
use crate::model::ids::NodeName;
use crate::model::node::Desired;
use crate::model::time::Timestamp;

/// What an input caused.
#[derive(Debug, Default)]
pub struct Output {
    /// To be committed, in this order, in one transaction, before anything else happens.
    pub changes: Vec<Change>,
    /// To be done after the commit.
    pub effects: BTreeSet<Effect>,
    /// To be sent after the commit, once or never.
    pub mails: Vec<Mail>,
    /// To be given to whoever sent the input, after the commit.
    pub reply: Reply,
}

/// Something to do after the commit. Doing one twice, or never, is made good by the next.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// Send this node its [`Broker::desired`].
    SendDesired(NodeName),
    /// Cut this node's link: its certificate is no longer good, or it is forgotten.
    Disconnect(NodeName),
}

/// The broker's state machine.
#[derive(Clone, Debug)]
pub struct Broker {
    state: State,
    output: Pending,
}

/// The output under construction.
#[derive(Clone, Debug, Default)]
struct Pending {
    /// The time of the input.
    now: Timestamp,
    changes: Vec<Change>,
    effects: BTreeSet<Effect>,
    mails: Vec<Mail>,
    /// What is free, or who may have it, has changed: a pass is due before the input is done.
    room: bool,
}

impl Broker {
    /// A new cluster, or one read back from its store, at the start of a process.
    ///
    /// `records` are all entities of the store, in any order; empty for a new
    /// store, then with `new_cluster` as the id. `nonce` is random. The changes
    /// returned must be committed before the first input is handled: they hold
    /// the new incarnation.
    pub fn start(
        settings: Settings,
        records: Vec<Change>,
        new_cluster: crate::model::ids::ClusterId,
        nonce: u64,
        now: Timestamp,
    ) -> (Self, Vec<Change>) {
        let state = State::start(settings, records, new_cluster, nonce, now);
        let mut broker = Self::of(state);
        broker.output.now = now;
        broker.put_cluster();
        let incarnation = broker.state.cluster.incarnation.number;
        let subject = format!("cluster {}", broker.state.cluster.id);
        broker.audit_own(None, Action::BrokerStart, subject, format!("start {incarnation}"));
        broker.trim_audit(now);
        let output = std::mem::take(&mut broker.output);
        (broker, output.changes)
    }

    /// One that goes on from a state.
    fn of(state: State) -> Self {
        Self {
            state,
            output: Pending::default(),
        }
    }

    /// Handles one input. A rejected input has changed nothing.
    pub fn handle(&mut self, now: Timestamp, input: Input) -> Result<Output, Reject> {
        let before = self.state.clone();
        self.output.now = now;
        self.state.ticked = self.state.ticked.max(now);
        match self.dispatch(now, input) {
            Ok(reply) => {
                if std::mem::take(&mut self.output.room) {
                    self.schedule(now);
                }
                let Pending {
                    now: _,
                    changes,
                    effects,
                    mails,
                    room: _,
                } = std::mem::take(&mut self.output);
                Ok(Output {
                    changes,
                    effects,
                    mails,
                    reply,
                })
            }
            Err(reject) => {
                self.state = before;
                self.output = Pending::default();
                Err(reject)
            }
        }
    }

    /// When a [`Input::Tick`] is due; none: never.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.state.next_deadline()
    }

    /// The state, for readers; clone it for a snapshot.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Everything that a node is to be; none for a node that has not been heard of since the start.
    pub fn desired(&self, node: &NodeName) -> Option<Desired> {
        desired::desired(&self.state, node)
    }

    fn record(&mut self, change: Change) {
        self.output.changes.push(change);
    }

    /// A node's desired state changed.
    fn touch(&mut self, node: &NodeName) {
        self.state.bump_generation(node);
        self.output.effects.insert(Effect::SendDesired(node.clone()));
    }

    fn put_job(&mut self, mut job: crate::model::job::Job) {
        self.note_mail(&job);
        if job.phase == crate::model::job::Phase::Pending {
            self.state.share(&mut job);
        }
        let job = Arc::new(job);
        self.state.insert_job(Arc::clone(&job));
        self.record(Change::PutJob(job));
    }

    fn put_session(&mut self, session: crate::model::session::Session) {
        let session = Arc::new(session);
        self.state.insert_session(Arc::clone(&session));
        self.record(Change::PutSession(session));
    }

    fn put_node(&mut self, node: crate::model::node::NodeRecord) {
        let node = Arc::new(node);
        self.state.insert_node(Arc::clone(&node));
        self.record(Change::PutNode(node));
    }

    fn put_account(&mut self, account: crate::model::account::Account) {
        let account = Arc::new(account);
        self.state.insert_account(Arc::clone(&account));
        self.record(Change::PutAccount(account));
    }

    fn put_person(&mut self, person: crate::model::account::Person) {
        let person = Arc::new(person);
        self.state.people.insert(person.user.clone(), Arc::clone(&person));
        self.record(Change::PutPerson(person));
    }

    fn put_qos(&mut self, qos: crate::model::qos::Qos) {
        let qos = Arc::new(qos);
        let old = self.state.qos.insert(qos.name.clone(), Arc::clone(&qos));
        if old.is_none_or(|old| old.priority != qos.priority) {
            self.state.forget_order();
        }
        self.record(Change::PutQos(qos));
    }

    fn put_partition(&mut self, partition: crate::model::partition::Partition) {
        let partition = Arc::new(partition);
        let all = &mut self.state.partitions;
        let old = all.insert(partition.name.clone(), Arc::clone(&partition));
        if old.is_none_or(|old| old.priority != partition.priority) {
            self.state.forget_order();
        }
        self.state.hosts.note_change();
        self.record(Change::PutPartition(partition));
    }

    fn put_reservation(&mut self, reservation: crate::model::reservation::Reservation) {
        let reservation = Arc::new(reservation);
        let all = &mut self.state.reservations;
        all.insert(reservation.name.clone(), Arc::clone(&reservation));
        self.state.hosts.note_change();
        self.record(Change::PutReservation(reservation));
    }

    fn put_cluster(&mut self) {
        let record = Box::new(self.state.cluster.clone());
        self.record(Change::PutCluster(record));
    }
}
