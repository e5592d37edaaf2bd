//! Jobs that give way: which of them are ended so that another one can start, and what protects them.
//!
//! What is lost with a job is what it has held for how long, as fair-share counts it. The jobs that are ended are
//! enough, by placement's own answer, beside everything that is promised to those in front; without any one of them it
//! would not be. Of a few every choice is tried, so no other one loses less. Of many it is exact for a job on one node,
//! whose every node has a few; a gang takes the nodes with the least to lose.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::backfill::{Promise, Promises, by_node, usage_between};
use super::state::State;
use super::usage::{HeldUnit, NodeUsage};
use crate::model::constraints::Constraints;
use crate::model::ids::{JobId, NodeName, QosName};
use crate::model::job::{Ending, Job, JobKind, JobState};
use crate::model::qos::Preemption;
use crate::model::resources::{ResourceRequest, UnitRequest};
use crate::model::time::Timestamp;
use crate::placement::{Assume, Hosts, Needs, Room, find, fits};
use crate::queue::Holder;

/// Waiting jobs for which one pass looks for others that could end: each look goes over all nodes.
const MAX_LOOKS: u32 = 16;
/// Jobs of which every choice is tried: a thousand choices.
const MAX_EXACT: usize = 10;
/// What is ended is waited for so much longer than it should take; then others are ended in its place.
const LATE: Duration = Duration::from_secs(30);

/// Jobs that hold something and may be ended for others.
#[derive(Default)]
pub(super) struct Yielding {
    candidates: Vec<Candidate>,
    /// What is being ended for whom, and when it is killed.
    ending: BTreeMap<JobId, Vec<(Timestamp, JobId)>>,
    /// When the next job is no longer protected.
    next: Option<Timestamp>,
    looks: u32,
    /// Somebody would have others end, and cannot yet.
    in_vain: bool,
}

struct Candidate {
    job: JobId,
    qos: QosName,
    nodes: BTreeSet<NodeName>,
    /// What it has used, thousandths of GPU-equivalents times milliseconds.
    loss: u128,
    grace: Duration,
}

/// Who is ended, and what is promised in their place.
pub(super) struct TakeOver {
    /// Those that end.
    pub victims: BTreeSet<JobId>,
    /// What is promised.
    pub promise: Promise,
}

impl Yielding {
    /// As it is now.
    pub fn of(state: &State, now: Timestamp) -> Self {
        let mut all = Self::default();
        if !state.has_yielding() {
            return all;
        }
        let settings = &state.settings.queue.preemption;
        for (_, id) in &state.deadlines {
            let Some(job) = state.jobs.get(id) else { continue };
            let Some(placed) = job.placed() else { continue };
            if let Some(leaving) = placed.leaving {
                if let Some(other) = leaving.for_job {
                    all.ending.entry(other).or_default().push((leaving.killed, *id));
                }
                continue;
            }
            let often = job.preemptions() >= settings.max_preemptions as usize;
            if state.gives_way(job).is_none() || placed.ending.is_some() || often {
                continue;
            }
            let free_from = placed.started.after(settings.min_runtime);
            if free_from > now {
                all.next = all.next.into_iter().chain([free_from]).min();
                continue;
            }
            let ending = Ending {
                state: JobState::Preempted,
                reason: String::new(),
                exit_code: None,
            };
            let parts = placed.unreleased().map(|part| part.node.clone());
            all.candidates.push(Candidate {
                job: *id,
                qos: job.terms.qos.clone(),
                nodes: parts.collect(),
                loss: u128::from(placed.billing_milli) * now.since(placed.started).as_millis(),
                grace: state.grace_of(job, &ending),
            });
        }
        all
    }

    /// Those for whom others are being ended, whoever has waited longest first; `former` has those for whom the last
    /// one has just gone.
    pub fn takers<'a>(&self, former: impl Iterator<Item = &'a Promise>) -> Vec<JobId> {
        let ending = self.ending.iter();
        let ending = ending.filter_map(|(job, all)| Some((all.iter().min()?.0, *job)));
        let former = former.filter(|promise| !promise.takes_over.is_empty());
        let former = former.map(|promise| (promise.start, promise.job));
        let mut by_time: BTreeMap<JobId, Timestamp> = BTreeMap::new();
        for (at, job) in ending.chain(former) {
            let first = by_time.entry(job).or_insert(at);
            *first = at.min(*first);
        }
        let mut takers: Vec<(Timestamp, JobId)> = by_time.into_iter().map(|(job, at)| (at, job)).collect();
        takers.sort_unstable();
        takers.into_iter().map(|(_, job)| job).collect()
    }

    /// Nobody holds anything that could be ended for another, or is being ended.
    pub fn is_empty(&self) -> bool {
        self.candidates.is_empty() && self.ending.is_empty() && self.next.is_none()
    }

    /// Jobs that are being ended for one.
    pub fn ending_for(&self, job: JobId) -> Vec<JobId> {
        let all = self.ending.get(&job).into_iter().flatten();
        all.map(|(_, victim)| *victim).collect()
    }

    /// When something may be otherwise though nothing happens: a job is no longer protected, or not gone in time.
    pub fn next_look(&self, now: Timestamp) -> Option<Timestamp> {
        let protected = self.next.filter(|_| self.in_vain);
        let late = self.ending.values().flatten();
        let late = late.map(|(killed, _)| killed.after(LATE)).filter(|at| *at > now);
        late.chain(protected).min()
    }

    /// Who is to end so that a job that does not fit now can start; none: nobody, or it starts in that time anyway.
    pub fn look(
        &mut self,
        state: &State,
        promises: &Promises,
        now: Timestamp,
        (job, asked): (&Job, &ResourceRequest),
    ) -> Option<TakeOver> {
        let in_time = |(killed, _): &(Timestamp, JobId)| killed.after(LATE) > now;
        let mut ending = self.ending.get(&job.id).into_iter().flatten();
        if !state.may_preempt(job) || ending.any(in_time) {
            return None;
        }
        self.in_vain = true;
        let others = self.candidates.iter().filter(|one| one.qos != job.terms.qos);
        let others: Vec<&Candidate> = others.collect();
        let grace = others.iter().map(|one| one.grace).max()?;
        if self.looks >= MAX_LOOKS || job.give_up.is_some_and(|at| at <= now.after(grace)) {
            return None;
        }
        self.looks += 1;
        let needs = state.needs(job, asked);
        let search = |from: Timestamp| {
            let end = from.after(job.time_limit).after(state.settings.grace);
            Search::new(state, promises.beside((from, end)), now, (from, end), needs)
        };
        let whole = search(now.after(grace));
        if whole.enough(&BTreeSet::new()) {
            return None;
        }
        let victims = whole.victims(&others)?;
        // Those that end may be gone sooner than others would be.
        let own = others.iter().filter(|one| victims.contains(&one.job));
        let own = now.after(own.map(|one| one.grace).max()?);
        let found = Some(search(own))
            .filter(|search| search.enough(&victims))
            .unwrap_or(whole);
        let parts = find(&found.without(&found.base, &victims), needs, Assume::Now)?;
        Some(TakeOver {
            promise: Promise {
                job: job.id,
                start: found.span.0,
                end: found.span.1,
                allocation: state.allocation(&parts, asked),
                takes_over: victims.iter().copied().collect(),
                stands_for: Vec::new(),
                rank: 0,
            },
            victims,
        })
    }

    /// These are being ended for a job.
    pub fn taken(&mut self, over: &TakeOver) {
        self.candidates.retain(|one| !over.victims.contains(&one.job));
        let all = self.ending.entry(over.promise.job).or_default();
        all.extend(over.victims.iter().map(|victim| (over.promise.start, *victim)));
    }
}

/// What would be free in a time to come.
struct Search<'a> {
    state: &'a State,
    /// Promises by the nodes that they are for.
    promises: BTreeMap<&'a NodeName, Vec<&'a Promise>>,
    now: Timestamp,
    span: (Timestamp, Timestamp),
    needs: Needs<'a>,
    /// Hosts, if nobody is ended.
    base: Hosts,
}

impl<'a> Search<'a> {
    fn new(
        state: &'a State,
        promises: Vec<&'a Promise>,
        now: Timestamp,
        span: (Timestamp, Timestamp),
        needs: Needs<'a>,
    ) -> Self {
        let mut search = Self {
            state,
            promises: by_node(promises),
            now,
            span,
            needs,
            base: state.hosts.clone(),
        };
        let held = state.placed_on.iter().filter(|(_, jobs)| !jobs.is_empty());
        let held = held.map(|(node, _)| node);
        let nodes: BTreeSet<&NodeName> = held.chain(search.promises.keys().copied()).collect();
        for node in nodes {
            if let Some(room) = search.room(node, &BTreeSet::new()) {
                search.base.set_room(node, room);
            }
        }
        search
    }

    fn usage(&self, node: &NodeName, gone: &BTreeSet<JobId>) -> NodeUsage {
        let promises = self.promises.get(node).map_or(&[][..], Vec::as_slice);
        usage_between(self.state, node, self.now, self.span, promises, gone)
    }

    fn room(&self, node: &NodeName, gone: &BTreeSet<JobId>) -> Option<Room> {
        self.state.room_beside(node, Some(&self.usage(node, gone)))
    }

    /// Hosts without some jobs.
    fn without(&self, hosts: &Hosts, gone: &BTreeSet<JobId>) -> Hosts {
        let mut hosts = hosts.clone();
        let jobs = gone.iter().filter_map(|id| self.state.jobs.get(id)?.placed());
        let nodes: BTreeSet<&NodeName> = jobs
            .flat_map(|placed| placed.allocation.nodes.iter().map(|part| &part.node))
            .collect();
        for node in nodes.into_iter().filter(|node| self.base.room(node).is_some()) {
            if let Some(room) = self.room(node, gone) {
                hosts.set_room(node, room);
            }
        }
        hosts
    }

    /// It would start if these were gone.
    fn enough(&self, gone: &BTreeSet<JobId>) -> bool {
        fits(&self.without(&self.base, gone), self.needs, Assume::Now)
    }

    /// Those who lose the least of all that are enough.
    fn victims(&self, candidates: &[&Candidate]) -> Option<BTreeSet<JobId>> {
        if candidates.len() <= MAX_EXACT {
            return least(candidates, None, |_| true, |gone| self.enough(gone)).map(|choice| choice.jobs);
        }
        let single = self.needs.request.all_nodes() == 1;
        let nodes = self.by_node(candidates, single);
        if single {
            return nodes.into_iter().next().map(|choice| choice.jobs);
        }
        let first = |count: usize| -> BTreeSet<JobId> {
            let jobs = nodes[..count].iter().flat_map(|choice| &choice.jobs);
            jobs.copied().collect()
        };
        let (mut short, mut long) = (0, nodes.len());
        let chosen = if self.enough(&first(long)) {
            // No node more than it takes.
            while long - short > 1 {
                let middle = short + (long - short) / 2;
                if self.enough(&first(middle)) {
                    long = middle;
                } else {
                    short = middle;
                }
            }
            first(long)
        } else {
            candidates.iter().map(|one| one.job).collect()
        };
        let chosen: Vec<&Candidate> = candidates
            .iter()
            .copied()
            .filter(|one| chosen.contains(&one.job))
            .collect();
        least(&chosen, None, |_| true, |gone| self.enough(gone)).map(|choice| choice.jobs)
    }

    /// Who has to end on each node so that it can hold one of the job's nodes, the least loss first.
    fn by_node(&self, candidates: &[&Candidate], single: bool) -> Vec<Choice> {
        let mut on: BTreeMap<&NodeName, Vec<&Candidate>> = BTreeMap::new();
        for one in candidates {
            for node in &one.nodes {
                on.entry(node).or_default().push(one);
            }
        }
        let one_of = |request: &ResourceRequest| ResourceRequest {
            nodes: 1,
            constraints: Constraints {
                exclude: request.constraints.exclude.clone(),
                features: request.constraints.features.clone(),
                ..Constraints::default()
            },
            more: Vec::new(),
            ..request.clone()
        };
        let asked: Vec<ResourceRequest> = if single {
            vec![self.needs.request.clone()]
        } else {
            self.needs.request.components().map(one_of).collect()
        };
        let mut choices: Vec<Choice> = Vec::new();
        let mut best: Option<(u128, u32)> = None;
        for (node, candidates) in on {
            let host = self.base.only([node]);
            let enough = |gone: &BTreeSet<JobId>| {
                let host = self.without(&host, gone);
                let needs = |request| Needs {
                    request,
                    ..self.needs
                };
                asked.iter().any(|one| fits(&host, needs(one), Assume::Now))
            };
            let could = self.could(node, &candidates, &asked);
            let bound = best.filter(|_| single);
            if let Some(choice) = least(&candidates, bound, could, enough) {
                best = Some(choice.cost());
                choices.push(choice);
            }
        }
        choices.sort();
        choices
    }

    /// Whether a node could have GPUs enough without some of its jobs, a bit each, as far as counting tells.
    fn could(
        &self,
        node: &NodeName,
        candidates: &[&Candidate],
        asked: &[ResourceRequest],
    ) -> impl Fn(u32) -> bool + use<> {
        let usage = self.usage(node, &BTreeSet::new());
        let all = self
            .state
            .nodes
            .get(node)
            .map_or(0, |node| node.inventory.gpus.len());
        let free = all.saturating_sub(usage.gpus().count());
        let bit = |job: JobId| {
            let at = candidates.iter().take(MAX_EXACT).position(|one| one.job == job);
            at.map(|at| 1_u32 << at)
        };
        // Who has to go for each GPU that is held; of some others hold a part.
        let bits = |held: &[HeldUnit]| {
            held.iter()
                .try_fold(0, |sum, held| Some(sum | bit(held.key.job)?))
        };
        let held: Vec<u32> = usage.gpus().filter_map(bits).collect();
        let whole = asked.iter().all(|one| one.unit == UnitRequest::Whole);
        let wanted = asked.iter().map(|one| one.gpus_per_node).min().unwrap_or(0) as usize;
        // Then all have to go.
        let idle = asked.iter().all(ResourceRequest::wants_idle);
        let all = candidates.len().min(MAX_EXACT) as u32;
        move |gone| {
            if idle && gone.count_ones() < all {
                return false;
            }
            !whole || free + held.iter().filter(|bits| *bits & !gone == 0).count() >= wanted
        }
    }
}

/// Jobs that could end; the least cost comes first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Choice {
    loss: u128,
    jobs: BTreeSet<JobId>,
}

impl Choice {
    /// What is lost, and by how many.
    fn cost(&self) -> (u128, u32) {
        (self.loss, self.jobs.len() as u32)
    }
}

/// Those of some jobs who lose the least of all that are enough, if they lose less than `bound`; of more than
/// [`MAX_EXACT`] those of whom none can be spared. `could` says of a choice, a bit each, that it may be enough.
fn least(
    candidates: &[&Candidate],
    bound: Option<(u128, u32)>,
    could: impl Fn(u32) -> bool,
    enough: impl Fn(&BTreeSet<JobId>) -> bool,
) -> Option<Choice> {
    let mut all: BTreeSet<JobId> = candidates.iter().map(|one| one.job).collect();
    if !enough(&all) {
        return None;
    }
    if candidates.len() > MAX_EXACT {
        let mut by_loss: Vec<&&Candidate> = candidates.iter().collect();
        by_loss.sort_by_key(|one| std::cmp::Reverse((one.loss, one.job)));
        for one in &by_loss {
            all.remove(&one.job);
            if !enough(&all) {
                all.insert(one.job);
            }
        }
        let loss = by_loss.iter().filter(|one| all.contains(&one.job));
        let choice = Choice {
            loss: loss.map(|one| one.loss).sum(),
            jobs: all,
        };
        return Some(choice).filter(|choice| bound.is_none_or(|bound| choice.cost() < bound));
    }
    let of = |bits: u32| {
        let chosen = candidates.iter().enumerate();
        chosen
            .filter(move |(at, _)| (bits >> at) & 1 == 1)
            .map(|(_, one)| *one)
    };
    let choices = (0..1_u32 << candidates.len()).filter(|bits| could(*bits));
    let costs = choices.map(|bits| {
        (
            of(bits).map(|one| one.loss).sum::<u128>(),
            bits.count_ones(),
            bits,
        )
    });
    let mut costs: Vec<(u128, u32, u32)> = costs
        .filter(|(loss, count, _)| bound.is_none_or(|bound| (*loss, *count) < bound))
        .collect();
    costs.sort_unstable();
    costs.into_iter().find_map(|(loss, _, bits)| {
        let jobs: BTreeSet<JobId> = of(bits).map(|one| one.job).collect();
        enough(&jobs).then_some(Choice { loss, jobs })
    })
}

impl State {
    /// What becomes of a job whose GPUs another one needs; none: it does not give way.
    pub(super) fn gives_way(&self, job: &Job) -> Option<Preemption> {
        self.qos.get(&job.terms.qos).and_then(|qos| qos.preemptible)
    }

    /// Others may be ended so that a job starts.
    pub(super) fn may_preempt(&self, job: &Job) -> bool {
        let interactive = job.kind == JobKind::Interactive && self.gives_way(job).is_none();
        interactive || self.qos.get(&job.terms.qos).is_some_and(|qos| qos.preempts)
    }

    /// Some job that holds something gives way.
    pub(super) fn has_yielding(&self) -> bool {
        let mut qos = self.qos.values().filter(|qos| qos.preemptible.is_some());
        qos.any(|qos| self.tallies.of(&Holder::Qos(qos.name.clone())).running > 0)
    }
}
