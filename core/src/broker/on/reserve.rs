//! What a reservation gets, and who is in its way.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::accounts::some_of;
use super::reservation::named;
use crate::broker::backfill::{Promise, by_node, usage_between};
use crate::broker::edit::{ReservationEdit, Wanted};
use crate::broker::input::Caller;
use crate::broker::reserved::{Reserved, in_each_others_way};
use crate::broker::{Reject, RejectKind, State};
use crate::model::host_list;
use crate::model::ids::{JobId, NodeName, PartitionName};
use crate::model::job::{Job, Placed};
use crate::model::partition::NodeSet;
use crate::model::reservation::{Reservation, Span};
use crate::model::resources::{Allocation, NodeAllocation, ResourceRequest};
use crate::model::time::Timestamp;
use crate::model::user::Role;
use crate::placement::{Assume, Hosts, MAX_GPUS, Needs, fits, place};

/// GPUs of one reservation that are chosen by number: more than any cluster known has.
const MAX_COUNT: u32 = 1_000_000;

/// What may be in the way of what is chosen.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    /// Jobs that run, and promises.
    Promises,
    /// Jobs that run.
    Jobs,
    /// Other reservations alone.
    Nothing,
}

impl State {
    /// Chooses what a reservation holds.
    pub(super) fn choose(
        &self,
        caller: &Caller,
        one: &mut Reservation,
        wanted: &Wanted,
        edit: &ReservationEdit,
        now: Timestamp,
    ) -> Result<(), Reject> {
        let within = edit
            .partition
            .as_ref()
            .map(|name| self.nodes_of(name))
            .transpose()?;
        let mut beside = vec![Beside::Promises];
        // What users reserve harms nobody; operators are asked to do just that.
        if caller.role >= Role::Operator {
            beside.push(Beside::Jobs);
        }
        if edit.ignore_jobs {
            beside.push(Beside::Nothing);
        }
        let (nodes, parts) = match wanted {
            Wanted::Nodes(nodes) if nodes.is_empty() => {
                return Err(Reject::new(RejectKind::Invalid, "no node is named"));
            }
            Wanted::Nodes(nodes) => {
                if let Some(missing) = nodes.iter().find(|node| !self.nodes.contains_key(*node)) {
                    let why = format!("there is no node {missing}");
                    return Err(Reject::new(RejectKind::NotFound, why).hint("`carrel nodes` lists them"));
                }
                (nodes.clone(), None)
            }
            Wanted::Count(count) => {
                let find = |beside| self.free_nodes(one, *count, within, now, beside);
                let found = beside.into_iter().find_map(find);
                let what = format!("{count} nodes");
                (found.ok_or_else(|| Self::too_few(&what, one))?, None)
            }
            Wanted::Gpus { count, model } => {
                let find = |beside| self.free_gpus(one, (*count, model), within, now, beside);
                let found = beside.into_iter().find_map(find);
                let what = if model.is_empty() {
                    format!("{count} GPUs")
                } else {
                    format!("{count} GPUs {model}")
                };
                let found = found.ok_or_else(|| Self::too_few(&what, one))?;
                let nodes = found.nodes.iter().map(|part| part.node.clone()).collect();
                (nodes, Some(found))
            }
        };
        one.nodes = NodeSet {
            only: Some(nodes),
            ..NodeSet::default()
        };
        one.parts = parts;
        Ok(())
    }

    fn nodes_of(&self, name: &PartitionName) -> Result<&NodeSet, Reject> {
        let known = self.partitions.get(name).map(|partition| &partition.nodes);
        known.ok_or_else(|| {
            Reject::new(RejectKind::NotFound, format!("there is no partition {name}"))
                .hint("`carrel admin partition list` lists them")
        })
    }

    fn too_few(what: &str, one: &Reservation) -> Reject {
        let when = one.times;
        Reject::new(RejectKind::Exhausted, format!("{what} are not free {when}"))
            .hint("`carrel queue --all` says what runs until when, `carrel admin reservation list` what is reserved")
    }

    /// From its next beginning to its last end.
    fn hull(&self, one: &Reservation, now: Timestamp) -> (Timestamp, Timestamp) {
        let next = one.closed(self.settings.grace).next(now);
        let span = next.unwrap_or(Span { start: now, end: now });
        let end = if one.times.every.is_some() {
            Timestamp::MAX
        } else {
            span.end
        };
        (span.start.max(now), end)
    }

    /// Hosts with what of them is free whenever a reservation is in force.
    fn free_for(&self, one: &Reservation, now: Timestamp, beside: Beside) -> Hosts {
        let hull = self.hull(one, now);
        let closed = Reserved::beside(self, one, now);
        let mut promises: Vec<&Promise> = closed.all().map(Arc::as_ref).collect();
        if beside == Beside::Promises {
            promises.extend(self.promises.values().map(AsRef::as_ref));
        }
        let gone: BTreeSet<JobId> = match beside {
            Beside::Promises | Beside::Jobs => self.jobs_of(&one.name).0.into_iter().collect(),
            Beside::Nothing => self.deadlines.iter().map(|(_, id)| *id).collect(),
        };
        let mut hosts = self.hosts.clone();
        let promises = by_node(promises);
        for node in self.nodes.keys() {
            let promises = promises.get(node).map_or(&[][..], Vec::as_slice);
            let usage = usage_between(self, node, now, hull, promises, &gone);
            if let Some(room) = self.room_beside(node, Some(&usage)) {
                hosts.set_room(node, room);
            }
        }
        hosts
    }

    /// Nodes of which nothing is held, close to each other in the fabric; those with GPUs first.
    fn free_nodes(
        &self,
        one: &Reservation,
        count: u32,
        within: Option<&NodeSet>,
        now: Timestamp,
        beside: Beside,
    ) -> Option<BTreeSet<NodeName>> {
        let hosts = self.free_for(one, now, beside);
        let idle = |name: &&NodeName| {
            let (Some(node), Some(room)) = (self.nodes.get(*name), hosts.room(name)) else {
                return false;
            };
            room.unavailable.is_none()
                && room.cpus == node.inventory.cpus
                && room.memory_bytes == node.inventory.memory_bytes
        };
        let idle: Vec<&NodeName> = self.nodes.keys().filter(idle).collect();
        let with_gpus = idle.iter().copied().filter(|name| {
            let node = self.nodes.get(*name);
            node.is_some_and(|node| !node.inventory.gpus.is_empty())
        });
        let with_gpus: Vec<&NodeName> = with_gpus.collect();
        let request = ResourceRequest {
            nodes: count,
            ..ResourceRequest::default()
        };
        let needs = Needs {
            within,
            ..Needs::from(&request)
        };
        let choices = [with_gpus, idle].into_iter();
        let mut found = choices.filter_map(|nodes| place(&hosts.only(nodes), needs, Assume::Now).ok());
        let parts = (count > 0).then(|| found.next()).flatten()?;
        Some(parts.into_iter().map(|part| part.node).collect())
    }

    /// GPUs, with the CPUs and memory that jobs get with them, on as few nodes as it takes.
    fn free_gpus(
        &self,
        one: &Reservation,
        (count, model): (u32, &str),
        within: Option<&NodeSet>,
        now: Timestamp,
        beside: Beside,
    ) -> Option<Allocation> {
        if count == 0 || count > MAX_COUNT {
            return None;
        }
        let hosts = self.free_for(one, now, beside);
        let of = |nodes: u32, gpus_per_node: u32| {
            let mut request = ResourceRequest {
                nodes,
                gpus_per_node,
                gpu_model: model.to_owned(),
                cpus_per_node: 0,
                memory_bytes_per_node: 0,
                ..ResourceRequest::default()
            };
            self.default_sizes(&mut request, false, within);
            request
        };
        let each = (1..=count.min(MAX_GPUS as u32)).rev();
        each.into_iter().find_map(|each| {
            let mut request = of(count / each, each);
            let rest = count % each;
            request.more = (rest > 0).then(|| of(1, rest)).into_iter().collect();
            let needs = Needs {
                within,
                ..Needs::from(&request)
            };
            let parts = fits(&hosts, needs, Assume::Now).then(|| place(&hosts, needs, Assume::Now).ok());
            parts.flatten().map(|parts| self.allocation(&parts, &request))
        })
    }

    /// Refuses a reservation of what another one holds at some time.
    pub(super) fn must_not_overlap(&self, one: &Reservation, now: Timestamp) -> Result<(), Reject> {
        let parts = self.parts_of(one);
        let grace = self.settings.grace;
        let others = self.reservations.values();
        let others = others.filter(|other| other.name != one.name && !other.overlap && !one.overlap);
        for other in others.filter(|other| other.closed(grace).meets(&one.closed(grace), now)) {
            let theirs = self.parts_of(other);
            let common = parts
                .iter()
                .filter(|part| theirs.iter().any(|held| self.cannot_both_be(part, held)));
            let common: Vec<&NodeName> = common.map(|part| &part.node).collect();
            if !common.is_empty() {
                let why = format!(
                    "reservation {} holds {} {}",
                    other.name,
                    host_list::format(common),
                    other.times
                );
                return Err(Reject::new(RejectKind::WrongState, why)
                    .hint("choose other nodes or another time; with --overlap a maintenance may overlap"));
            }
        }
        Ok(())
    }

    fn cannot_both_be(&self, part: &NodeAllocation, held: &NodeAllocation) -> bool {
        let node = self.nodes.get(&part.node).filter(|_| part.node == held.node);
        node.is_some_and(|node| in_each_others_way(part, held, &node.inventory))
    }

    /// Refuses a reservation of what jobs will still hold when it begins.
    pub(super) fn must_be_free(&self, one: &Reservation, now: Timestamp) -> Result<(), Reject> {
        let over = self.still_there(one, now);
        if over.is_empty() {
            return Ok(());
        }
        let said = over.iter().map(|(job, until)| Self::say_overrun(job, *until));
        let said: Vec<String> = said.collect();
        let why = format!("jobs will still run when it begins: {}", some_of(&said));
        Err(Reject::new(RejectKind::WrongState, why).hint(
            "begin later, or --ignore-jobs: they run on, and what they hold is the reservation's after that",
        ))
    }

    fn say_overrun(job: &Job, until: Option<Timestamp>) -> String {
        let nodes = job.placed().into_iter().flat_map(Placed::unreleased);
        let nodes: Vec<&NodeName> = nodes.map(|part| &part.node).collect();
        let until = until.map_or_else(
            || "without end".to_owned(),
            |until| format!("until {}", until.utc()),
        );
        format!(
            "{} on {} {until}",
            named(job.id, &job.owner),
            host_list::format(nodes)
        )
    }

    /// What is to be said of jobs that will still run when a reservation begins.
    pub(super) fn overrun(&self, one: &Reservation, now: Timestamp) -> Vec<String> {
        let over = self.still_there(one, now).into_iter();
        over.map(|(job, until)| format!("{} runs on", Self::say_overrun(job, until)))
            .collect()
    }

    /// Others' jobs that hold something of a reservation when it next begins, and until when.
    fn still_there(&self, one: &Reservation, now: Timestamp) -> Vec<(&Job, Option<Timestamp>)> {
        let (start, _) = self.hull(one, now);
        let parts = self.parts_of(one);
        let others = self
            .on_nodes_of(one)
            .filter(|job| job.terms.reservation.as_ref() != Some(&one.name));
        let late = others.filter_map(|job| {
            let end = self.end_of(job.placed()?, now);
            end.is_none_or(|end| end > start).then_some((&**job, end))
        });
        let late: Vec<(&Job, Option<Timestamp>)> = late.collect();
        let on = |job: &Job, part: &NodeAllocation| -> Vec<NodeAllocation> {
            let held = job.placed().into_iter().flat_map(Placed::unreleased);
            held.filter(|held| held.node == part.node).cloned().collect()
        };
        let mut in_the_way = BTreeSet::new();
        for part in &parts {
            // CPUs and memory are in the way together.
            let mut sum = NodeAllocation {
                gpus: Vec::new(),
                cpus: 0,
                memory_bytes: 0,
                ..part.clone()
            };
            for (job, _) in &late {
                for held in on(job, part) {
                    let gpus = NodeAllocation {
                        cpus: 0,
                        memory_bytes: 0,
                        ..held.clone()
                    };
                    if self.cannot_both_be(part, &gpus) {
                        in_the_way.insert(job.id);
                    }
                    sum.cpus = sum.cpus.saturating_add(held.cpus);
                    sum.memory_bytes = sum.memory_bytes.saturating_add(held.memory_bytes);
                }
            }
            if self.cannot_both_be(part, &sum) {
                let all = late.iter().filter(|(job, _)| !on(job, part).is_empty());
                in_the_way.extend(all.map(|(job, _)| job.id));
            }
        }
        let kept = late.into_iter().filter(|(job, _)| in_the_way.contains(&job.id));
        kept.collect()
    }

    /// Who was promised what a reservation holds.
    pub(super) fn promises_moved(&self, one: &Reservation) -> Option<String> {
        let parts = self.parts_of(one);
        let times = one.closed(self.settings.grace);
        let moved = self.promises.values().filter(|promise| {
            let span = Span {
                start: promise.start,
                end: promise.end,
            };
            let mut held = promise.allocation.nodes.iter();
            let job = self.jobs.get(&promise.job);
            job.is_some_and(|job| job.terms.reservation.as_ref() != Some(&one.name))
                && times.overlaps(span)
                && held.any(|held| parts.iter().any(|part| self.cannot_both_be(part, held)))
        });
        let moved = moved.filter_map(|promise| {
            let job = self.jobs.get(&promise.job)?;
            Some(named(job.id, &job.owner))
        });
        let moved: Vec<String> = moved.collect();
        (!moved.is_empty()).then(|| format!("promised a start anew: {}", some_of(&moved)))
    }
}
