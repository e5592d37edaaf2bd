//! What is held and waits on each account, and the limits that it counts against.

use std::fmt;

use imbl::OrdMap;

use super::past::{PastKey, PastUse};
use super::usage::{Decay, Usage};
use crate::model::account::{Account, Limits, MAX_DEPTH};
use crate::model::ids::{AccountName, PartitionName, QosName, UserName};
use crate::model::job::{Job, Phase};
use crate::model::terms::Terms;
use crate::model::time::Timestamp;

/// Whose jobs are counted together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holder {
    /// A user's, in all accounts.
    User(UserName),
    /// A user's in an account.
    Member(AccountName, UserName),
    /// All in an account and below it.
    Account(AccountName),
    /// All with a QOS.
    Qos(QosName),
    /// A user's with a QOS.
    QosUser(QosName, UserName),
    /// All in a partition.
    Partition(PartitionName),
    /// A user's in a partition.
    PartitionUser(PartitionName, UserName),
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(user) => write!(f, "{user}"),
            Self::Member(account, user) => write!(f, "{user} in account {account}"),
            Self::Account(account) => write!(f, "account {account}"),
            Self::Qos(qos) => write!(f, "QOS {qos}"),
            Self::QosUser(qos, user) => write!(f, "{user} with QOS {qos}"),
            Self::Partition(partition) => write!(f, "partition {partition}"),
            Self::PartitionUser(partition, user) => write!(f, "{user} in partition {partition}"),
        }
    }
}

impl Holder {
    /// Whether a job of these is counted here, but for accounts above its own.
    fn counts(&self, owner: &UserName, terms: &Terms, above: &[AccountName]) -> bool {
        match self {
            Self::User(user) => user == owner,
            Self::Member(account, user) => *account == terms.account && user == owner,
            Self::Account(account) => *account == terms.account || above.contains(account),
            Self::Qos(qos) => *qos == terms.qos,
            Self::QosUser(qos, user) => *qos == terms.qos && user == owner,
            Self::Partition(partition) => *partition == terms.partition,
            Self::PartitionUser(partition, user) => *partition == terms.partition && user == owner,
        }
    }
}

/// What is held and waits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// GPUs that jobs hold, thousandths.
    pub gpu_milli: u64,
    /// Jobs that hold something.
    pub running: u32,
    /// Jobs that wait or hold something.
    pub submitted: u32,
    /// What was used.
    pub usage: Usage,
}

/// Accounts by name.
pub type Accounts = OrdMap<AccountName, std::sync::Arc<Account>>;

/// The accounts above one, the next one first.
pub fn above(accounts: &Accounts, account: &AccountName) -> Vec<AccountName> {
    let mut above = Vec::new();
    let mut at = accounts.get(account);
    while let Some(parent) = at.and_then(|account| account.parent.clone()) {
        // A ring cannot be made; one that a store holds is not followed for ever.
        if above.len() == MAX_DEPTH {
            break;
        }
        at = accounts.get(&parent);
        above.push(parent);
    }
    above
}

/// All tallies. Cloning is cheap.
#[derive(Clone, Debug, Default)]
pub struct Tallies(OrdMap<Holder, Tally>);

/// A time in which a job held something.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub from: Timestamp,
    /// None: it still does.
    pub to: Option<Timestamp>,
    pub billing_milli: u64,
}

pub(super) fn runs(job: &Job) -> Vec<Run> {
    let past = job.past_runs.iter().map(|run| Run {
        from: run.started,
        to: Some(run.ended),
        billing_milli: run.billing_milli,
    });
    let (last, to) = match &job.phase {
        Phase::Pending => (None, None),
        Phase::Placed(placed) => (Some(placed), None),
        Phase::Ended { last, at, .. } => (last.as_ref(), Some(*at)),
    };
    let last = last.map(|placed| Run {
        from: placed.started,
        to,
        billing_milli: placed.billing_milli,
    });
    past.chain(last).collect()
}

/// GPUs, running jobs and jobs that a job counts as.
fn counted(job: &Job) -> (u64, u32, u32) {
    match &job.phase {
        Phase::Pending => (0, 0, job.count()),
        Phase::Placed(placed) => (placed.allocation.gpu_milli(), 1, 1),
        Phase::Ended { .. } => (0, 0, 0),
    }
}

impl Tallies {
    /// What is counted for somebody.
    pub fn of(&self, holder: &Holder) -> Tally {
        self.0.get(holder).copied().unwrap_or_default()
    }

    /// Somebody for whom something is counted, as is known here.
    pub fn known(&self, holder: &Holder) -> Option<&Holder> {
        self.0.get_key_value(holder).map(|(known, _)| known)
    }

    /// Everybody for whom something is counted.
    pub fn iter(&self) -> impl Iterator<Item = (&Holder, &Tally)> {
        self.0.iter()
    }

    /// Takes note of a job in place of its former self.
    pub fn change(&mut self, accounts: &Accounts, old: Option<&Job>, new: &Job, decay: Decay) {
        let before = old.map(counted).unwrap_or_default();
        let after = counted(new);
        let known = old.map(runs).unwrap_or_default();
        let runs = runs(new);
        let moved = old.filter(|old| old.terms != new.terms);
        if before == after && known == runs && moved.is_none() {
            return;
        }
        if let Some(old) = moved {
            // What waits has used nothing since its last run: that stays where it was charged.
            let (gpu_milli, running, submitted) = before;
            for holder in holders(accounts, old) {
                self.update(holder, |tally| {
                    tally.gpu_milli -= gpu_milli;
                    tally.running -= running;
                    tally.submitted -= submitted;
                });
            }
        }
        let before = if moved.is_some() { (0, 0, 0) } else { before };
        for holder in holders(accounts, new) {
            self.update(holder, |tally| {
                tally.gpu_milli = tally.gpu_milli + after.0 - before.0;
                tally.running = tally.running + after.1 - before.1;
                tally.submitted = tally.submitted + after.2 - before.2;
                for (number, run) in runs.iter().enumerate() {
                    let known = known.get(number);
                    if known.is_none() {
                        tally.usage.begin(run.from, run.billing_milli, decay);
                    }
                    if let (Some(to), true) = (run.to, known.is_none_or(|known| known.to.is_none())) {
                        tally.usage.end(to, run.billing_milli, decay);
                    }
                }
            });
        }
    }

    /// Counts what was used by jobs that are not in the state any more.
    pub fn count_past(&mut self, accounts: &Accounts, past: &PastUse, decay: Decay) {
        for holder in holders_of(accounts, &past.key) {
            self.update(holder, |tally| tally.usage.merge(past.usage, decay));
        }
    }

    fn update(&mut self, holder: Holder, change: impl FnOnce(&mut Tally)) {
        if let Some(tally) = self.0.get_mut(&holder) {
            change(tally);
            if *tally == Tally::default() {
                self.0.remove(&holder);
            }
            return;
        }
        let mut tally = Tally::default();
        change(&mut tally);
        if tally != Tally::default() {
            self.0.insert(holder, tally);
        }
    }
}

/// For whom a job is counted.
pub fn holders(accounts: &Accounts, job: &Job) -> Vec<Holder> {
    holders_of(accounts, &PastKey::of(job))
}

fn holders_of(accounts: &Accounts, key: &PastKey) -> Vec<Holder> {
    let PastKey {
        user,
        account,
        qos,
        partition,
    } = key;
    let mut holders = vec![
        Holder::User(user.clone()),
        Holder::Member(account.clone(), user.clone()),
        Holder::Account(account.clone()),
        Holder::Qos(qos.clone()),
        Holder::QosUser(qos.clone(), user.clone()),
        Holder::Partition(partition.clone()),
        Holder::PartitionUser(partition.clone(), user.clone()),
    ];
    holders.extend(above(accounts, account).into_iter().map(Holder::Account));
    holders
}

/// Whether a job is among those that are counted for a holder.
pub fn is_counted(accounts: &Accounts, job: &Job, holder: &Holder) -> bool {
    holder.counts(&job.owner, &job.terms, &above(accounts, &job.terms.account))
}

/// What a limit is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// GPUs at once.
    Gpus,
    /// Jobs that run at once.
    Running,
    /// Jobs that wait or run.
    Submitted,
    /// Time of one job.
    Time,
    /// GPU-minutes in a period.
    GpuMinutes,
}

/// A limit that is in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reached {
    /// Whose.
    pub holder: Holder,
    /// What it limits.
    pub limit: Limit,
    /// How much there is already: thousandths of GPUs, jobs, minutes.
    pub held: u64,
    /// How much there may be.
    pub most: u64,
    /// How much more was wanted.
    pub wanted: u64,
}

impl Limits {
    /// The first of these that keeps a job from starting now.
    pub fn keeps_waiting(
        &self,
        holder: &Holder,
        tally: Tally,
        gpu_milli: u64,
        now: Timestamp,
        decay: Decay,
    ) -> Option<Reached> {
        let reached = |limit, held, most, wanted| Reached {
            holder: holder.clone(),
            limit,
            held,
            most,
            wanted,
        };
        if let Some(most) = self.gpu_milli.filter(|most| tally.gpu_milli + gpu_milli > *most) {
            return Some(reached(Limit::Gpus, tally.gpu_milli, most, gpu_milli));
        }
        if let Some(most) = self.running.filter(|most| tally.running >= *most) {
            return Some(reached(Limit::Running, tally.running.into(), most.into(), 1));
        }
        let minutes = self.gpu_minutes.filter(|_| gpu_milli > 0)?;
        let used = (tally.usage.in_period(now, decay) / 60_000) as u64;
        (used >= minutes).then(|| reached(Limit::GpuMinutes, used, minutes, 0))
    }

    /// The first of these that a job can never keep to, or that keeps it from being submitted.
    pub fn refuses(&self, holder: &Holder, tally: Tally, gpu_milli: u64, time_ms: u64) -> Option<Reached> {
        let reached = |limit, held, most, wanted| Reached {
            holder: holder.clone(),
            limit,
            held,
            most,
            wanted,
        };
        if let Some(most) = self.gpu_milli.filter(|most| gpu_milli > *most) {
            return Some(reached(Limit::Gpus, 0, most, gpu_milli));
        }
        let longest = self
            .time
            .map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        if let Some(most) = longest.filter(|most| time_ms > *most) {
            return Some(reached(Limit::Time, 0, most, time_ms));
        }
        if let Some(most) = self.submitted.filter(|most| tally.submitted >= *most) {
            return Some(reached(Limit::Submitted, tally.submitted.into(), most.into(), 1));
        }
        self.running
            .filter(|most| *most == 0)
            .map(|_| reached(Limit::Running, 0, 0, 1))
    }
}
