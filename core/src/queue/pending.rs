//! Pending jobs, arranged for passes: those that are equal but for their age wait in one line.
//!
//! Whether a job can start depends on what it asks for, for how long, and on whose account: a pass looks at one
//! job of each such class, and what it finds holds for those behind. So a pass costs what differs, and not
//! what waits. Borg calls this equivalence classes (<https://research.google/pubs/pub43438/>, 3.4).

use std::sync::Arc;
use std::time::Duration;

use imbl::{OrdMap, OrdSet};

use super::headroom::Kept;
use super::tally::Reached;
use crate::model::ids::{JobId, ReservationName, UserName};
use crate::model::job::JobKind;
use crate::model::resources::ResourceRequest;
use crate::model::terms::Terms;
use crate::model::time::Timestamp;

/// What decides whether and when a job can start, but for its age.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClassKey {
    /// Whose.
    pub owner: UserName,
    /// On what terms.
    pub terms: Terms,
    /// Interactive or batch.
    pub kind: JobKind,
    /// What is asked for.
    pub request: Arc<ResourceRequest>,
    /// For how long.
    pub time_limit: Duration,
    /// As root.
    pub root: bool,
    /// A job that is like no other: what it asks for changes as it waits.
    pub alone: Option<JobId>,
}

/// Jobs that are equal but for their age.
#[derive(Clone, Debug)]
pub struct Class {
    /// In what they are equal.
    pub key: Arc<ClassKey>,
    /// Since when each could have started.
    pub jobs: OrdSet<(Timestamp, JobId)>,
    /// Why they wait, as the last pass found it; none: no pass has looked at them.
    pub why: Option<Wait>,
    /// Whether it would fit were all nodes free that are in service, as found at this epoch of the hosts
    /// ([`crate::placement::Hosts::epoch`]); none: no pass has looked.
    pub when_free: Option<(u64, bool)>,
    /// What of their priority is not age ([`super::Weights::rest`]), and by which version of the order; none: nobody has
    /// worked it out.
    pub rest: Option<(OrderVersion, i64)>,
}

/// Tells an order of pending jobs from one by other fair-share or other hosts: the number of each.
pub type OrderVersion = (u64, u64);

/// Why a class waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Others hold what it needs.
    Resources,
    /// What it needs is promised to this job, and others.
    Priority(JobId),
    /// What it needs is reserved.
    Reserved(ReservationName),
    /// Nodes that could hold it are down or drained.
    Nodes,
    /// It could start, and holds out for something better.
    Wish,
    /// A limit.
    Limit(Box<Reached>),
    /// What is kept for interactive jobs.
    Headroom(Box<Kept>),
}

/// All pending jobs. Cloning is cheap.
#[derive(Clone, Debug, Default)]
pub struct Pending {
    /// Classes by number.
    classes: OrdMap<u32, Class>,
    numbers: OrdMap<Arc<ClassKey>, u32>,
    /// Each job's class and since when it could have started; none: it may not start yet, whatever is free.
    jobs: OrdMap<JobId, Option<(u32, Timestamp)>>,
    next: u32,
}

impl Pending {
    /// Jobs.
    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    /// None waits.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Whether a job is among them.
    pub fn contains(&self, job: JobId) -> bool {
        self.jobs.contains_key(&job)
    }

    /// All, in the order of their ids.
    pub fn ids(&self) -> impl Iterator<Item = JobId> + '_ {
        self.jobs.keys().copied()
    }

    /// Those that may not start yet.
    pub fn aside(&self) -> impl Iterator<Item = JobId> + '_ {
        self.jobs
            .iter()
            .filter(|(_, place)| place.is_none())
            .map(|(job, _)| *job)
    }

    /// The classes.
    pub fn classes(&self) -> impl Iterator<Item = (u32, &Class)> {
        self.classes.iter().map(|(number, class)| (*number, class))
    }

    /// A class.
    pub fn class(&self, number: u32) -> Option<&Class> {
        self.classes.get(&number)
    }

    /// A job's class, and since when it could have started; none: it is not here, or may not start yet.
    pub fn class_of(&self, job: JobId) -> Option<(u32, Timestamp)> {
        self.jobs.get(&job).copied().flatten()
    }

    /// Puts a job into its class.
    pub fn insert(&mut self, job: JobId, key: ClassKey, since: Timestamp) {
        self.remove(job);
        let number = match self.numbers.get(&key) {
            Some(number) => *number,
            None => self.add(key),
        };
        if let Some(class) = self.classes.get_mut(&number) {
            class.jobs.insert((since, job));
        }
        self.jobs.insert(job, Some((number, since)));
    }

    fn add(&mut self, key: ClassKey) -> u32 {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        let key = Arc::new(key);
        self.numbers.insert(Arc::clone(&key), number);
        let class = Class {
            key,
            jobs: OrdSet::new(),
            why: None,
            when_free: None,
            rest: None,
        };
        self.classes.insert(number, class);
        number
    }

    /// Takes note of a job that may not start yet.
    pub fn set_aside(&mut self, job: JobId) {
        self.remove(job);
        self.jobs.insert(job, None);
    }

    /// Takes a job out.
    pub fn remove(&mut self, job: JobId) {
        let Some(Some((number, since))) = self.jobs.remove(&job) else {
            return;
        };
        let Some(class) = self.classes.get_mut(&number) else {
            return;
        };
        class.jobs.remove(&(since, job));
        if class.jobs.is_empty()
            && let Some(class) = self.classes.remove(&number)
        {
            self.numbers.remove(&class.key);
        }
    }

    /// Takes note of why a class waits.
    pub fn set_why(&mut self, number: u32, why: Wait) {
        let same = self
            .class(number)
            .is_some_and(|class| class.why.as_ref() == Some(&why));
        if let Some(class) = self.classes.get_mut(&number).filter(|_| !same) {
            class.why = Some(why);
        }
    }

    /// Takes note of whether a class would fit were all nodes free.
    pub fn set_when_free(&mut self, number: u32, when_free: (u64, bool)) {
        if let Some(class) = self.classes.get_mut(&number) {
            class.when_free = Some(when_free);
        }
    }

    /// Takes note of what of a class's priority is not age.
    pub fn set_rest(&mut self, number: u32, rest: (OrderVersion, i64)) {
        if let Some(class) = self.classes.get_mut(&number) {
            class.rest = Some(rest);
        }
    }
}
