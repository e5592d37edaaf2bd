//! Pending jobs, arranged for passes: those that are equal but for whose they are and for how long they have waited
//! stand in one line.
//!
//! Whether there is room for a job depends on what it asks for, for how long, and where it may have it: a pass looks
//! at one job of each line that may start, and what it finds holds for those behind. In a line, jobs of one user on
//! the same terms are a class: what limits one of them limits all. So a pass costs what differs, and not what waits.
//! Borg calls this equivalence classes (<https://research.google/pubs/pub43438/>, 3.4).

use std::cmp::Reverse;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use std::time::Duration;

use imbl::{OrdMap, OrdSet};

use super::headroom::Kept;
use super::priority::Weights;
use super::tally::Reached;
use crate::model::ids::{AccountName, JobId, PartitionName, QosName, ReservationName, UserName};
use crate::model::job::JobKind;
use crate::model::resources::ResourceRequest;
use crate::model::shared::Shared;
use crate::model::time::Timestamp;

/// What decides between two pending jobs; the smallest comes first: an operator's hand, the score, the age, the id.
pub type Place = (i64, Reverse<i64>, Timestamp, JobId);

/// Heads that are read in the time that it takes to search for one, about.
const SEARCH: usize = 8;

/// Comes before all others.
const FIRST: Place = (i64::MIN, Reverse(i64::MAX), Timestamp(0), JobId(0));

/// What decides whether there is room for a job, and when.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LineKey {
    /// For how long.
    pub time_limit: Duration,
    /// What is asked for.
    pub request: Shared<ResourceRequest>,
    /// Interactive or batch.
    pub kind: JobKind,
    /// As root.
    pub root: bool,
    /// With which QOS.
    pub qos: QosName,
    /// In which part of the cluster.
    pub partition: PartitionName,
    /// In which reservation.
    pub reservation: Option<ReservationName>,
    /// Whose, where that matters: GPUs are shared by jobs of one user.
    pub owner: Option<UserName>,
    /// A job that is like no other: what it asks for changes as it waits.
    pub alone: Option<JobId>,
}

/// Jobs for which there is room where there is for one of them.
#[derive(Clone, Debug)]
pub struct Line {
    /// In what they are equal.
    pub key: Arc<LineKey>,
    /// Why those that no limit keeps from starting wait, as the last pass found it; none: it has looked at none.
    pub why: Option<Wait>,
    /// Whether there would be room were all nodes free that are in service, as found at this epoch of the hosts
    /// ([`crate::placement::Hosts::epoch`]); none: no pass has looked.
    pub when_free: Option<(u64, bool)>,
}

/// What decides, beside its line and its age, which place a job has and what limits it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClassKey {
    /// Its line's number.
    pub line: u32,
    /// Whose.
    pub owner: UserName,
    /// On whose account.
    pub account: AccountName,
    /// Taken from the priority.
    pub nice: i32,
    /// Put before all others.
    pub top: Option<i64>,
}

/// Jobs that are equal but for their age.
#[derive(Clone, Debug)]
pub struct Class {
    /// In what they are equal.
    pub key: ClassKey,
    /// What of their priority is not age ([`Weights::rest`]).
    rest: i64,
}

/// Tells an order of pending jobs from one by other fair-share or in a cluster of another size: the number of the
/// first, and the second in GPUs.
pub type OrderVersion = (u64, u64);

/// Why a line waits.
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
    /// A limit: of a class, and not of its line.
    Limit(Box<Reached>),
    /// What is kept for interactive jobs.
    Headroom(Box<Kept>),
}

/// A job in a line: where a pass is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Spot {
    /// Its place.
    pub place: Place,
    /// Its line.
    pub line: u32,
    /// Its class.
    pub class: u32,
    /// It is the first of its class.
    pub first: bool,
    /// It is the first of its line.
    pub turn: bool,
}

impl Spot {
    fn first(line: u32, place: Place, class: u32) -> Self {
        Self {
            place,
            line,
            class,
            first: true,
            turn: true,
        }
    }

    /// The job.
    pub fn job(&self) -> JobId {
        self.place.3
    }
}

/// A number that tells a key from most others: they need not be read to be told apart. The same in every process.
fn hash(key: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

/// Those numbers that stand beside a hash.
fn with_hash(all: &OrdSet<(u64, u32)>, hash: u64) -> impl Iterator<Item = u32> {
    all.range((hash, 0)..=(hash, u32::MAX)).map(|(_, number)| *number)
}

/// All pending jobs. Cloning is cheap.
#[derive(Clone, Debug, Default)]
pub struct Pending {
    weights: Arc<Weights>,
    /// Lines by number.
    lines: OrdMap<u32, Line>,
    /// Their numbers by the hashes of their keys.
    line_numbers: OrdSet<(u64, u32)>,
    /// Classes by number.
    classes: OrdMap<u32, Class>,
    /// Their numbers by the hashes of their keys.
    class_numbers: OrdSet<(u64, u32)>,
    /// The jobs of each class, the first that could have started first.
    members: OrdSet<(u32, Timestamp, JobId)>,
    /// The first of each class, by lines.
    heads: OrdSet<(u32, Place, u32)>,
    /// Each job's class and since when it could have started; none: it may not start yet, whatever is free.
    jobs: OrdMap<JobId, Option<(u32, Timestamp)>>,
    next: u32,
    /// By which all are ordered.
    version: OrderVersion,
}

impl Pending {
    /// None yet; these weights order them.
    pub fn by(weights: Weights) -> Self {
        Self {
            weights: Arc::new(weights),
            ..Self::default()
        }
    }

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

    /// The classes, each with its number and line.
    pub fn classes(&self) -> impl Iterator<Item = (u32, &Class, &Line)> {
        let classes = self.classes.iter();
        classes.filter_map(|(number, class)| Some((*number, class, self.lines.get(&class.key.line)?)))
    }

    /// The jobs of a class and since when each could have started, in order.
    pub fn members(&self, class: u32) -> impl Iterator<Item = (Timestamp, JobId)> + '_ {
        let from = (class, Timestamp(0), JobId(0));
        let own = self.members.range(from..);
        own.take_while(move |(other, ..)| *other == class)
            .map(|(_, since, job)| (*since, *job))
    }

    /// How many lines there are.
    pub fn lines(&self) -> usize {
        self.lines.len()
    }

    /// A line.
    pub fn line(&self, number: u32) -> Option<&Line> {
        self.lines.get(&number)
    }

    /// A job's class, and since when it could have started; none: it is not here, or may not start yet.
    pub fn class_of(&self, job: JobId) -> Option<(u32, Timestamp)> {
        self.jobs.get(&job).copied().flatten()
    }

    /// A job's line; none: as above.
    pub fn line_of(&self, job: JobId) -> Option<u32> {
        let (class, _) = self.class_of(job)?;
        self.classes.get(&class).map(|class| class.key.line)
    }

    /// A job's place; none: as above.
    pub fn place_of(&self, job: JobId) -> Option<Place> {
        let (class, since) = self.class_of(job)?;
        Some(self.place(self.classes.get(&class)?, since, job))
    }

    /// The places of a class's jobs, in order.
    pub fn places<'a>(&'a self, number: u32, class: &'a Class) -> impl Iterator<Item = Place> + 'a {
        let members = self.members(number);
        members.map(|(since, job)| self.place(class, since, job))
    }

    /// The places of all that come before one, in no order.
    pub fn before(&self, own: Place) -> impl Iterator<Item = Place> + '_ {
        let ahead = move |line: &u32| {
            let line = *line;
            let heads = self.heads.range((line, FIRST, 0)..);
            heads.take_while(move |(other, place, _)| *other == line && *place < own)
        };
        let classes = self.lines.keys().flat_map(ahead);
        let classes = classes.filter_map(|(.., number)| Some((*number, self.classes.get(number)?)));
        classes
            .flat_map(move |(number, class)| self.places(number, class).take_while(move |place| *place < own))
    }

    fn place(&self, class: &Class, since: Timestamp, job: JobId) -> Place {
        let score = self.weights.score_since(class.rest, since);
        (class.key.top.unwrap_or(i64::MAX), Reverse(score), since, job)
    }

    /// The first of each line.
    pub fn firsts(&self) -> impl Iterator<Item = Spot> + '_ {
        // Whichever is less to read: all heads, or a search for each line.
        let all = self.heads.len() / SEARCH <= self.lines.len();
        let heads = all.then(|| self.heads.iter()).into_iter().flatten();
        let mut last = None;
        let read = heads
            .filter(move |(line, ..)| last.replace(*line) != Some(*line))
            .map(|(line, place, class)| Spot::first(*line, *place, *class));
        let lines = (!all).then(|| self.lines.keys()).into_iter().flatten();
        read.chain(lines.filter_map(|line| self.first(*line)))
    }

    /// The first of a line.
    pub fn first(&self, line: u32) -> Option<Spot> {
        self.first_after(line, None)
    }

    /// The first of a class that comes next in a line.
    fn first_after(&self, line: u32, after: Option<&Spot>) -> Option<Spot> {
        let from = after.map_or((line, FIRST, 0), |spot| (line, spot.place, spot.class));
        let bound = if after.is_some() {
            Excluded(from)
        } else {
            std::ops::Bound::Included(from)
        };
        let (other, place, class) = *self.heads.range((bound, Unbounded)).next()?;
        (other == line).then(|| Spot::first(line, place, class))
    }

    /// What a pass looks at after a spot: the next job of its class, unless it need not be looked at, and the first of
    /// the next class if this was the first of its own. Whoever has started since is not there any more: a class's
    /// new first comes in its place.
    pub fn after(&self, spot: &Spot, with_class: bool) -> impl Iterator<Item = Spot> {
        let (.., since, job) = spot.place;
        let moved = spot.first && self.class_of(job).is_none();
        let same = with_class && !moved;
        let next = same.then(|| self.next_of_class(spot.class, since, job)).flatten();
        let next = next.map(|place| Spot {
            place,
            first: false,
            turn: false,
            ..*spot
        });
        let other = spot
            .first
            .then(|| self.first_after(spot.line, Some(spot)))
            .flatten()
            .map(|other| Spot { turn: false, ..other });
        next.into_iter().chain(other)
    }

    fn next_of_class(&self, number: u32, since: Timestamp, job: JobId) -> Option<Place> {
        let class = self.classes.get(&number)?;
        let from = Excluded((number, since, job));
        let (other, since, job) = *self.members.range((from, Unbounded)).next()?;
        (other == number).then(|| self.place(class, since, job))
    }

    /// Puts a job into its class, if it is not there; its key is made by `key` from its line's number; `rest` is what of its priority is not age.
    pub fn insert(
        &mut self,
        job: JobId,
        line: LineKey,
        key: impl FnOnce(u32) -> ClassKey,
        since: Timestamp,
        rest: i64,
    ) {
        let line = self.line_like(&line).unwrap_or_else(|| self.add_line(line));
        let key = key(line);
        let number = self.class_like(&key).unwrap_or_else(|| self.add_class(key, rest));
        let old = self.jobs.insert(job, Some((number, since))).flatten();
        if old == Some((number, since)) {
            return;
        }
        self.move_head(number, |pending| {
            pending.members.insert((number, since, job));
        });
        if let Some((number, since)) = old {
            self.take_out(job, number, since);
        }
    }

    /// The line with such a key.
    fn line_like(&self, key: &LineKey) -> Option<u32> {
        let mut lines = with_hash(&self.line_numbers, hash(key));
        lines.find(|number| self.lines.get(number).is_some_and(|line| *line.key == *key))
    }

    fn class_like(&self, key: &ClassKey) -> Option<u32> {
        let mut classes = with_hash(&self.class_numbers, hash(key));
        classes.find(|number| self.classes.get(number).is_some_and(|class| class.key == *key))
    }

    /// A key that is equal to this one, if others wait in such a line.
    pub fn known(&self, key: &LineKey) -> Option<&Arc<LineKey>> {
        let number = self.line_like(key)?;
        self.lines.get(&number).map(|line| &line.key)
    }

    fn add_line(&mut self, key: LineKey) -> u32 {
        let number = self.number();
        self.line_numbers.insert((hash(&key), number));
        let line = Line {
            key: Arc::new(key),
            why: None,
            when_free: None,
        };
        self.lines.insert(number, line);
        number
    }

    fn add_class(&mut self, key: ClassKey, rest: i64) -> u32 {
        let number = self.number();
        self.class_numbers.insert((hash(&key), number));
        self.classes.insert(number, Class { key, rest });
        number
    }

    fn number(&mut self) -> u32 {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        number
    }

    /// Does something to a class's members, and keeps the place of its first.
    fn move_head(&mut self, number: u32, work: impl FnOnce(&mut Self)) {
        let before = self.head(number);
        work(self);
        let after = self.head(number);
        if before != after {
            before.map(|head| self.heads.remove(&head));
            after.map(|head| self.heads.insert(head));
        }
    }

    fn head(&self, number: u32) -> Option<(u32, Place, u32)> {
        let class = self.classes.get(&number)?;
        let (since, job) = self.members(number).next()?;
        Some((class.key.line, self.place(class, since, job), number))
    }

    /// Takes note of a job that may not start yet.
    pub fn set_aside(&mut self, job: JobId) {
        self.remove(job);
        self.jobs.insert(job, None);
    }

    /// Takes a job out.
    pub fn remove(&mut self, job: JobId) {
        if let Some(Some((number, since))) = self.jobs.remove(&job) {
            self.take_out(job, number, since);
        }
    }

    /// Takes a job out of a class, which is no more without it if it was the last.
    fn take_out(&mut self, job: JobId, number: u32, since: Timestamp) {
        self.members.remove(&(number, since, job));
        let Some(class) = self.classes.get(&number) else {
            return;
        };
        let next = self.members(number).next();
        if next.is_none_or(|next| (since, job) < next) {
            // It was the first.
            let head = |(since, job)| (class.key.line, self.place(class, since, job), number);
            let (former, next) = (head((since, job)), next.map(head));
            self.heads.remove(&former);
            next.map(|next| self.heads.insert(next));
        }
        if next.is_some() {
            return;
        }
        let Some(class) = self.classes.remove(&number) else {
            return;
        };
        self.class_numbers.remove(&(hash(&class.key), number));
        if self.first(class.key.line).is_none()
            && let Some(line) = self.lines.remove(&class.key.line)
        {
            self.line_numbers.remove(&(hash(&*line.key), class.key.line));
        }
    }

    /// Puts all in order by what of each class's priority is not age, as it is by this version: worked out from what
    /// its line has of it.
    pub fn reorder<T>(
        &mut self,
        version: OrderVersion,
        of_line: impl Fn(&LineKey) -> T,
        rest: impl Fn(&T, &ClassKey) -> i64,
    ) {
        if self.version == version {
            return;
        }
        self.version = version;
        let lines = self.lines.iter();
        let lines: Vec<(u32, T)> = lines
            .map(|(number, line)| (*number, of_line(&line.key)))
            .collect();
        let mut moved = Vec::new();
        for (number, class) in &self.classes {
            let line = lines.binary_search_by_key(&class.key.line, |(line, _)| *line);
            let of_line = line.ok().and_then(|index| lines.get(index));
            let rest = of_line.map(|(_, of_line)| rest(of_line, &class.key));
            if let Some(rest) = rest.filter(|rest| *rest != class.rest) {
                moved.push((*number, rest));
            }
        }
        for (number, rest) in moved {
            self.move_head(number, |pending| {
                if let Some(class) = pending.classes.get_mut(&number) {
                    class.rest = rest;
                }
            });
        }
    }

    /// Takes note of why a line waits.
    pub fn set_why(&mut self, number: u32, why: Option<Wait>) {
        let same = self.line(number).is_some_and(|line| line.why == why);
        if let Some(line) = self.lines.get_mut(&number).filter(|_| !same) {
            line.why = why;
        }
    }

    /// Takes note of why a line waits, and whether there would be room for it were all nodes free.
    pub fn set_waits(&mut self, number: u32, why: Wait, when_free: (u64, bool)) {
        if let Some(line) = self.lines.get_mut(&number) {
            line.why = Some(why);
            line.when_free = Some(when_free);
        }
    }

    /// Takes note of whether there would be room for a line were all nodes free.
    pub fn set_when_free(&mut self, number: u32, when_free: (u64, bool)) {
        if let Some(line) = self.lines.get_mut(&number) {
            line.when_free = Some(when_free);
        }
    }

    /// Whether its parts say the same of who waits where.
    pub fn is_consistent(&self) -> bool {
        let heads = self.classes.keys().filter_map(|number| self.head(*number));
        let heads: OrdSet<(u32, Place, u32)> = heads.collect();
        let members = self.jobs.iter();
        let members = members.filter_map(|(job, place)| place.map(|(class, since)| (class, since, *job)));
        let members: OrdSet<(u32, Timestamp, JobId)> = members.collect();
        heads == self.heads
            && members == self.members
            && heads.len() == self.classes.len()
            && self.class_numbers.len() == self.classes.len()
            && self.line_numbers.len() == self.lines.len()
            && self
                .class_numbers
                .iter()
                .all(|(_, number)| self.classes.contains_key(number))
            && self
                .line_numbers
                .iter()
                .all(|(_, number)| self.lines.contains_key(number))
            && self.firsts().count() == self.lines.len()
    }
}
