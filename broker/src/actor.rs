//! The single writer: owns the core and the store.
//!
//! It takes the inputs that wait, lets the core handle each, commits all their
//! changes in one transaction, publishes the new state, and only then answers
//! and releases the effects. Readers look at the published state and never
//! wait for it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use carrel_core::broker::{Broker, Change, Effect, Input, Mail, Reject, Reply, Settings};
use carrel_core::model::time::Timestamp;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::limits::{MAX_BATCH, MAX_WAITING_INPUTS};
use crate::mail::Mailer;
use crate::start::{Origin, Start};
use crate::store::{Store, StoreError};

/// Timers look at the clock at least so often: it may have been set.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);
/// A timer whose work could not be kept, for want of room, tries again after this.
const FULL_RETRY: Duration = Duration::from_secs(2);

/// The core as of the last commit; never changes.
pub type Snapshot = Arc<Broker>;

/// Why an input had no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The core refused it.
    #[error(transparent)]
    Reject(#[from] Reject),
    /// It could not be kept.
    #[error("{0}: nothing can be changed until there is room")]
    Full(String),
    /// The broker is stopping.
    #[error("the broker is stopping")]
    Stopping,
}

/// What is done with the core's effects. Called on the writer's thread: must not wait.
pub trait Effects: Send + Sync + 'static {
    /// Effects of one transaction.
    fn release(&self, effects: BTreeSet<Effect>);
}

struct Envelope {
    input: Input,
    answer: oneshot::Sender<Result<Reply, Refusal>>,
}

/// Sends inputs and reads states. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle {
    inputs: mpsc::Sender<Envelope>,
    snapshots: watch::Receiver<Snapshot>,
}

impl Handle {
    /// Hands in an input and waits until it is on disk, or refused. When the
    /// caller stops waiting the input still counts.
    pub async fn call(&self, input: Input) -> Result<Reply, Refusal> {
        let (answer, answered) = oneshot::channel();
        self.inputs
            .send(Envelope { input, answer })
            .await
            .map_err(|_| Refusal::Stopping)?;
        answered.await.map_err(|_| Refusal::Stopping)?
    }

    /// The state as of the last commit.
    pub fn snapshot(&self) -> Snapshot {
        Arc::clone(&self.snapshots.borrow())
    }

    /// Tells of each new state.
    pub fn watch(&self) -> watch::Receiver<Snapshot> {
        self.snapshots.clone()
    }
}

/// The writer itself; [`Writer::run`] is its life.
pub struct Writer {
    core: Broker,
    store: Store,
    clock: Arc<Clock>,
    inputs: mpsc::Receiver<Envelope>,
    snapshots: watch::Sender<Snapshot>,
    effects: Arc<dyn Effects>,
    mailer: Mailer,
    start: Start,
    /// The last write found no room: inputs go one by one, so that those that need no write pass.
    full: bool,
}

impl Writer {
    /// Reads the store back and records this start in it.
    pub fn start(
        mut store: Store,
        settings: Settings,
        clock: Arc<Clock>,
        (effects, mailer): (Arc<dyn Effects>, Mailer),
        authority: Origin,
    ) -> Result<(Handle, Self, Start), StoreError> {
        let records = store.load()?;
        let found = records.len();
        let cluster = authority.cluster.clone();
        let (core, changes) = Broker::start(settings, records, cluster, rand::random(), clock.now());
        store.commit(&changes)?;
        let cluster = &core.state().cluster;
        tracing::info!(
            cluster = %cluster.id,
            incarnation = cluster.incarnation.number,
            records = found,
            "the state is read"
        );
        let start = Start {
            authority,
            was_empty: found == 0,
            incarnation: cluster.incarnation.number,
        };
        if let Some(what) = start.explain(core.state()) {
            tracing::warn!("{what}");
        }
        let (sender, inputs) = mpsc::channel(MAX_WAITING_INPUTS);
        let (snapshots, watched) = watch::channel(Arc::new(core.clone()));
        let handle = Handle {
            inputs: sender,
            snapshots: watched,
        };
        let this = Self {
            start: start.clone(),
            core,
            store,
            clock,
            inputs,
            snapshots,
            effects,
            mailer,
            full: false,
        };
        Ok((handle, this, start))
    }

    /// Handles inputs until cancelled, then those that wait already, and ends.
    /// An error means that what was handled last is not known to be kept.
    pub async fn run(mut self, cancel: CancellationToken) -> Result<(), StoreError> {
        let mut retry = None;
        loop {
            let sleep = retry.take().unwrap_or_else(|| self.until_deadline());
            let mut batch = Vec::new();
            // Each arm only waits: cancelled, it has taken nothing.
            tokio::select! {
                first = self.inputs.recv() => match first {
                    Some(first) => batch.push(first),
                    None => return Ok(()),
                },
                () = tokio::time::sleep(sleep) => {}
                () = cancel.cancelled(), if !self.inputs.is_closed() => {
                    self.inputs.close();
                    continue;
                }
            }
            let most = if self.full { 1 } else { MAX_BATCH };
            while batch.len() < most {
                let Ok(next) = self.inputs.try_recv() else { break };
                batch.push(next);
            }
            if self.tick()? == Kept::NoRoom {
                retry = Some(FULL_RETRY);
            }
            self.handle(batch)?;
        }
    }

    fn until_deadline(&self) -> Duration {
        let Some(deadline) = self.core.next_deadline() else {
            return LONGEST_SLEEP;
        };
        deadline.since(self.clock.now()).min(LONGEST_SLEEP)
    }

    /// The time. The core is told first when the wall clock was set.
    fn now(&mut self) -> Timestamp {
        let stepped = self.clock.take_step();
        let now = self.clock.now();
        if !stepped.is_zero() {
            tracing::warn!(
                seconds = stepped.as_secs(),
                "the clock was set forward; leases move with it"
            );
            // Nothing of it is kept, and it is never refused.
            self.core.handle(now, Input::ClockStepped(stepped)).ok();
        }
        now
    }

    /// Handles the timers that are due.
    fn tick(&mut self) -> Result<Kept, StoreError> {
        let now = self.now();
        if self.core.next_deadline().is_none_or(|deadline| deadline > now) {
            return Ok(Kept::Yes);
        }
        let before = self.core.clone();
        match self.core.handle(now, Input::Tick) {
            Ok(output) => self.keep(before, &output.changes, (output.effects, output.mails)),
            Err(reject) => {
                tracing::error!(%reject, "the core refused a tick");
                Ok(Kept::NoRoom)
            }
        }
    }

    /// Handles inputs, keeps what they changed, and answers them.
    fn handle(&mut self, batch: Vec<Envelope>) -> Result<(), StoreError> {
        if batch.is_empty() {
            return Ok(());
        }
        let now = self.now();
        let before = self.core.clone();
        let mut changes: Vec<Change> = Vec::new();
        let (mut effects, mut mails) = (BTreeSet::new(), Vec::new());
        let mut answers = Vec::with_capacity(batch.len());
        for Envelope { input, answer } in batch {
            let result = match self.core.handle(now, input) {
                Ok(output) => {
                    changes.extend(output.changes);
                    effects.extend(output.effects);
                    mails.extend(output.mails);
                    Ok(output.reply)
                }
                Err(reject) => {
                    tracing::debug!(%reject, "refused");
                    Err(Refusal::Reject(reject))
                }
            };
            answers.push((answer, result));
        }
        let kept = self.keep(before, &changes, (effects, mails))?;
        for (answer, result) in answers {
            let result = match &kept {
                Kept::Yes => result,
                Kept::NoRoom => result.and(Err(Refusal::Full(self.store.no_room()))),
            };
            // Who no longer waits is not told.
            answer.send(result).ok();
        }
        Ok(())
    }

    /// Commits, publishes, releases effects, and has mail sent; or goes back to `before`.
    fn keep(
        &mut self,
        before: Broker,
        changes: &[Change],
        (effects, mails): (BTreeSet<Effect>, Vec<Mail>),
    ) -> Result<Kept, StoreError> {
        match self.store.commit(changes) {
            Ok(()) => {
                let number = |core: &Broker| core.state().cluster.incarnation.number;
                if number(&before) != number(&self.core)
                    && let Some(what) = self.start.explain(self.core.state())
                {
                    tracing::warn!("{what}");
                }
                if self.full && !changes.is_empty() {
                    tracing::info!("the store takes writes again");
                    self.full = false;
                }
                self.snapshots.send_replace(Arc::new(self.core.clone()));
                if !effects.is_empty() {
                    self.effects.release(effects);
                }
                for mail in mails {
                    self.mailer.send(mail);
                }
                Ok(Kept::Yes)
            }
            Err(error @ StoreError::Full { .. }) => {
                if !self.full {
                    tracing::error!(%error, "the store takes no writes; reads go on");
                    self.full = true;
                }
                self.core = before;
                Ok(Kept::NoRoom)
            }
            Err(error) => Err(error),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kept {
    Yes,
    NoRoom,
}
