//! In which order pending jobs are looked at.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::state::State;
use crate::model::ids::{AccountName, JobId, QosName, UserName};
use crate::model::job::{Charge, Job, JobKind};
use crate::model::qos::MAX_PRIORITY;
use crate::model::resources::{Allocation, ResourceRequest, UnitRequest};
use crate::model::time::Timestamp;
use crate::queue::fair_tree::{Branch, Standing, Standings, Who, standings};
use crate::queue::pending::{Line, LineKey, Place};
use crate::queue::{Class, ClassKey, Factors, Holder, Points};

/// How old fair-share may be: use hardly moves in less, against half-lives of days.
const STANDINGS_AGE: Duration = Duration::from_mins(1);

/// A job's priority, factor by factor.
#[derive(Clone, Debug, PartialEq)]
pub struct Priority {
    /// An operator has put it before all others.
    pub top: bool,
    /// The lines.
    pub points: Vec<Points>,
    /// Level fair-share of its user beside the account's others; none: it was not worked out.
    pub standing: Option<Standing>,
    /// GPU-equivalent hours that its user has used in its account, decayed.
    pub used_hours: f64,
}

impl Priority {
    /// The sum.
    pub fn total(&self) -> i64 {
        self.points.iter().map(|line| line.points).sum()
    }
}

impl State {
    /// Works fair-share out anew, if that is due, or if it knows nothing of a job that has just come. Whether it was.
    pub(super) fn refresh_standings(&mut self, now: Timestamp, new: Option<JobId>) -> bool {
        let (at, known) = &self.standings;
        let job = new.and_then(|id| self.jobs.get(&id));
        let member = job.map(|job| (job.terms.account.clone(), job.owner.clone()));
        let unknown = member.is_some_and(|member| !known.contains_key(&member));
        if *at != Timestamp(0) && at.after(STANDINGS_AGE) > now && !unknown {
            return false;
        }
        // Jobs are in another order if somebody's place is; and priorities may be others where it was forgotten.
        let place = |(member, standing): (_, &Standing)| (member, standing.factor);
        let forgotten = *at == Timestamp(0);
        let new = standings(&self.tree(now));
        let same = !forgotten && self.standings.1.iter().map(place).eq(new.iter().map(place));
        self.standings = (now, Arc::new(new));
        self.ordered += u64::from(!same);
        !same
    }

    /// The accounts and their users, and what they have used.
    fn tree(&self, now: Timestamp) -> Vec<Branch> {
        let decay = self.settings.queue.decay();
        let mut users: BTreeMap<AccountName, BTreeMap<UserName, u32>> = BTreeMap::new();
        for account in self.accounts.values() {
            let members = account.members.iter();
            let members = members.map(|(user, member)| (user.clone(), member.shares));
            users.insert(account.name.clone(), members.collect());
        }
        // Who is in no account, or in one no more, has one share where there are jobs to count.
        for (holder, _) in self.tallies.iter() {
            if let Holder::Member(account, user) = holder {
                let members = users.entry(account.clone()).or_default();
                members.entry(user.clone()).or_insert(1);
            }
        }
        let mut branches: BTreeMap<AccountName, Branch> = BTreeMap::new();
        for (account, members) in users {
            let below = members.into_iter().map(|(user, shares)| Branch {
                usage: self
                    .tallies
                    .of(&Holder::Member(account.clone(), user.clone()))
                    .usage
                    .decayed(now, decay),
                who: Who::User(account.clone(), user),
                shares,
                below: Vec::new(),
            });
            let branch = Branch {
                shares: self.accounts.get(&account).map_or(1, |account| account.shares),
                usage: self
                    .tallies
                    .of(&Holder::Account(account.clone()))
                    .usage
                    .decayed(now, decay),
                below: below.collect(),
                who: Who::Account(account.clone()),
            };
            branches.insert(account, branch);
        }
        self.grow(branches)
    }

    /// Hangs accounts below each other.
    fn grow(&self, mut branches: BTreeMap<AccountName, Branch>) -> Vec<Branch> {
        // The deepest first: whoever is hung up has everything below it by then.
        let mut by_depth: Vec<(usize, AccountName)> = branches
            .keys()
            .map(|name| {
                (
                    crate::queue::tally::above(&self.accounts, name).len(),
                    name.clone(),
                )
            })
            .collect();
        by_depth.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        let mut top = Vec::new();
        for (_, name) in by_depth {
            let Some(branch) = branches.remove(&name) else {
                continue;
            };
            let parent = self
                .accounts
                .get(&name)
                .and_then(|account| account.parent.as_ref());
            match parent.and_then(|parent| branches.get_mut(parent)) {
                Some(parent) => parent.below.push(branch),
                None => top.push(branch),
            }
        }
        top
    }

    /// What is known of jobs of a class, but for their age.
    fn factors(&self, line: &LineKey, class: &ClassKey) -> Factors {
        self.factors_of_class(self.factors_of_line(line), class)
    }

    /// The same, where what it has in common with the rest of its line is known.
    fn factors_of_class(&self, line: Factors, class: &ClassKey) -> Factors {
        let member = (class.account.clone(), class.owner.clone());
        let standing = self.standings.1.get(&member);
        Factors {
            fair_share: standing.map_or(1.0, |standing| standing.factor),
            nice: class.nice,
            ..line
        }
    }

    /// What all jobs of a line have in common of that.
    fn factors_of_line(&self, line: &LineKey) -> Factors {
        let of = |priority: u32| f64::from(priority.min(MAX_PRIORITY)) / f64::from(MAX_PRIORITY);
        Factors {
            size: self.share_of_cluster(self.least_gpu_milli(&line.request)),
            qos: self.qos.get(&line.qos).map_or(0.0, |qos| of(qos.priority)),
            partition: self
                .partitions
                .get(&line.partition)
                .map_or(0.0, |partition| of(partition.priority)),
            interactive: match line.kind {
                JobKind::Interactive => 1.0,
                JobKind::Batch => 0.0,
            },
            ..Factors::default()
        }
    }

    fn share_of_cluster(&self, gpu_milli: u64) -> f64 {
        let all = self.hosts.gpus() * 1_000;
        if all == 0 {
            0.0
        } else {
            (gpu_milli as f64 / all as f64).min(1.0)
        }
    }

    /// Puts a job that may start among those that it waits with.
    pub(super) fn line_up(&mut self, job: &Job) {
        let (line, class) = self.keys(job);
        let rest = self.settings.queue.weights.rest(&self.factors(&line, &class));
        let since = job.since();
        let class = |line| ClassKey { line, ..class };
        self.pending.insert(job.id, line, class, since, rest);
    }

    /// A pending job holds what it has in common with others that wait as they hold it, and no copy.
    pub(super) fn share(&self, job: &mut Job) {
        let (line, _) = self.keys(job);
        if let Some(known) = self.pending.known(&line) {
            job.request = known.request.clone();
            job.terms.qos = known.qos.clone();
            job.terms.partition = known.partition.clone();
        }
        let user = Holder::User(job.owner.clone());
        if let Some(Holder::User(owner)) = self.tallies.known(&user) {
            job.owner = owner.clone();
        }
        if let Some((account, _)) = self.accounts.get_key_value(&job.terms.account) {
            job.terms.account = account.clone();
        }
    }

    /// In which line a job waits, and in which class of which line that is numbered yet to be.
    fn keys(&self, job: &Job) -> (LineKey, ClassKey) {
        let terms = &job.terms;
        let is_shared = |one: &ResourceRequest| matches!(one.unit, UnitRequest::Share { .. });
        let shared = job.request.components().any(is_shared);
        let own = job.request.relaxes_after().next().is_some() || job.failed_soon().next().is_some();
        let line = LineKey {
            time_limit: job.time_limit,
            request: job.request.clone(),
            kind: job.kind,
            root: self.wants_root(job),
            qos: terms.qos.clone(),
            partition: terms.partition.clone(),
            reservation: terms.reservation.clone(),
            owner: shared.then(|| job.owner.clone()),
            alone: own.then_some(job.id),
        };
        let class = ClassKey {
            line: 0,
            owner: job.owner.clone(),
            account: terms.account.clone(),
            nice: terms.nice,
            top: terms.top,
        };
        (line, class)
    }

    /// Puts pending jobs in order anew, where what their priorities come from is something else by now.
    pub(super) fn refresh_order(&mut self) {
        let version = (self.ordered, self.hosts.gpus());
        let mut pending = std::mem::take(&mut self.pending);
        let of_line = |line: &LineKey| self.factors_of_line(line);
        pending.reorder(version, of_line, |factors, class| {
            self.settings
                .queue
                .weights
                .rest(&self.factors_of_class(*factors, class))
        });
        self.pending = pending;
    }

    /// Points of each of a class's jobs, in the same order.
    pub(super) fn points<'a>(
        &'a self,
        (number, class, line): (u32, &'a Class, &'a Line),
        now: Timestamp,
    ) -> impl Iterator<Item = (JobId, i64)> + 'a {
        let factors = self.factors(&line.key, &class.key);
        self.pending.members(number).map(move |(since, job)| {
            let factors = Factors { since, ..factors };
            let lines = self.settings.queue.weights.priority(&factors, now);
            (job, lines.iter().map(|line| line.points).sum())
        })
    }

    /// All pending jobs, the next one first; those that may not start yet come last.
    pub fn in_order(&self) -> Vec<JobId> {
        let mut places: Vec<Place> = Vec::with_capacity(self.pending.len());
        for (number, class, _) in self.pending.classes() {
            places.extend(self.pending.places(number, class));
        }
        places.sort_unstable();
        let jobs = places.into_iter().map(|(.., job)| job);
        jobs.chain(self.pending.aside()).collect()
    }

    /// Pending jobs that come before one, the next one first.
    pub fn ahead_of(&self, job: JobId) -> Vec<JobId> {
        let Some(own) = self.pending.place_of(job) else {
            return Vec::new();
        };
        let mut ahead: Vec<Place> = self.pending.before(own).collect();
        ahead.sort_unstable();
        ahead.into_iter().map(|(.., job)| job).collect()
    }

    /// A pending job's priority, as it is now.
    pub fn priority(&self, job: &Job, now: Timestamp) -> Priority {
        let (line, class) = self.keys(job);
        let factors = Factors {
            since: job.since(),
            ..self.factors(&line, &class)
        };
        let member = (job.terms.account.clone(), job.owner.clone());
        let tally = self
            .tallies
            .of(&Holder::Member(member.0.clone(), member.1.clone()));
        let used = tally.usage.decayed(now, self.settings.queue.decay());
        Priority {
            top: job.terms.top.is_some(),
            points: self.settings.queue.weights.priority(&factors, now),
            standing: self.standings.1.get(&member).copied(),
            used_hours: used / 3_600.0,
        }
    }

    /// What a job counts as that holds this, by model.
    pub(super) fn charges(&self, qos: &QosName, held: &Allocation) -> Vec<Charge> {
        let queue = &self.settings.queue;
        let mut by_model: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for part in &held.nodes {
            if part.gpus.is_empty() {
                by_model.entry("").or_default().1 += u64::from(part.cpus) * u64::from(queue.cpu_weight);
            }
            let gpus = self.nodes.get(&part.node).map(|node| &node.inventory.gpus);
            for unit in &part.gpus {
                let mut known = gpus.into_iter().flatten();
                let model = known
                    .find(|gpu| gpu.uuid == unit.gpu)
                    .map(|gpu| gpu.model.as_str());
                let weight = model.map_or(1_000, |model| queue.gpu_weight(model));
                let milli = u64::from(unit.slice.milli());
                let (gpus, billed) = by_model.entry(model.unwrap_or("unknown")).or_default();
                *gpus += milli;
                *billed += milli * u64::from(weight) / 1_000;
            }
        }
        let factor = u64::from(self.qos.get(qos).map_or(1_000, |qos| qos.usage_milli));
        let charge = |(model, (gpu_milli, billed)): (&str, (u64, u64))| Charge {
            model: model.to_owned(),
            gpu_milli,
            billing_milli: billed * factor / 1_000,
        };
        by_model.into_iter().map(charge).collect()
    }
}

/// Fair-share of everybody, for lists.
pub fn all_standings(state: &State) -> &Standings {
    &state.standings.1
}
