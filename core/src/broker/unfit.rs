//! What a pass has found not to fit: whoever asks for as much of the same, or for more, need not be looked at. And what
//! it has found to fit were all nodes free: as much does, or less.
//!
//! In a pass what is free only becomes less, so what is learned stays true.

use std::collections::BTreeMap;

use crate::model::constraints::Constraints;
use crate::model::ids::{PartitionName, ReservationName, UserName};
use crate::model::resources::{ResourceRequest, UnitRequest};
use crate::model::time::Timestamp;
use crate::queue::LineKey;

/// Amounts of which none is less than another that are remembered of one kind: these are few.
const MAX_REMEMBERED: usize = 64;

/// What is known.
#[derive(Default)]
pub(super) struct Unfit {
    /// Of each kind, what does not fit.
    unfit: BTreeMap<Kind, Vec<(Amount, Known)>>,
    /// What fits were all nodes free.
    fit: BTreeMap<Kind, Vec<Amount>>,
}

/// What is known of a request.
#[derive(Clone, Copy, Default)]
pub(super) struct Known {
    /// It does not fit on what is free.
    pub now: bool,
    /// It does not fit beside what is promised, if it ends then or later.
    pub until: Option<Timestamp>,
}

/// What two requests must have in common so that one of them asks for more.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    /// Each host keeps something for its free GPUs: who takes more of them may have more besides. It stands first, as
    /// it tells most apart.
    gpus: u32,
    root: bool,
    /// The nodes are to be idle, or their memory.
    alone: (bool, bool),
    /// Where it matters how nodes lie to each other: more of them may fit where fewer do not.
    nodes: Option<u32>,
    partition: PartitionName,
    reservation: Option<ReservationName>,
    /// None: who it is does not matter, as it may where GPUs are shared.
    owner: Option<UserName>,
    unit: UnitRequest,
    gpu_model: String,
    constraints: Constraints,
}

impl Kind {
    fn of(asked: &ResourceRequest, line: &LineKey) -> Self {
        let anywhere = asked.constraints == Constraints::default();
        Self {
            gpus: asked.gpus_per_node,
            root: line.root,
            alone: (asked.exclusive, asked.all_memory),
            nodes: (!anywhere).then_some(asked.nodes),
            partition: line.partition.clone(),
            reservation: line.reservation.clone(),
            owner: line.owner.clone(),
            unit: asked.unit.clone(),
            gpu_model: asked.gpu_model.clone(),
            constraints: asked.constraints.clone(),
        }
    }
}

/// How much of a kind.
#[derive(Clone, Copy)]
struct Amount {
    nodes: u32,
    nvlink: bool,
    gpu_memory: u64,
    cpus: u32,
    memory: u64,
}

impl Amount {
    fn of(asked: &ResourceRequest) -> Self {
        Self {
            nodes: asked.nodes,
            nvlink: asked.nvlink,
            gpu_memory: asked.gpu_memory_bytes,
            cpus: asked.cpus_per_node,
            memory: asked.memory_bytes_per_node,
        }
    }

    /// It is no more of anything than the other.
    fn is_within(&self, other: &Self) -> bool {
        self.nodes <= other.nodes
            && self.nvlink <= other.nvlink
            && self.gpu_memory <= other.gpu_memory
            && self.cpus <= other.cpus
            && self.memory <= other.memory
    }
}

impl Unfit {
    /// What is known of a request. Of several components nothing ever is.
    pub fn known(&self, asked: &ResourceRequest, line: &LineKey) -> Known {
        let mut all = Known::default();
        if self.unfit.is_empty() || !asked.more.is_empty() {
            return all;
        }
        let wanted = Amount::of(asked);
        let known = self.unfit.get(&Kind::of(asked, line)).into_iter().flatten();
        for (_, known) in known.filter(|(amount, _)| amount.is_within(&wanted)) {
            all.now |= known.now;
            all.until = all.until.into_iter().chain(known.until).min();
        }
        all
    }

    /// It does not fit on what is free.
    pub fn learn_now(&mut self, asked: &ResourceRequest, line: &LineKey) {
        let known = Known {
            now: true,
            until: None,
        };
        self.learn(asked, line, known);
    }

    /// It does not fit beside what is promised, if it ends at that time.
    pub fn learn_until(&mut self, asked: &ResourceRequest, line: &LineKey, until: Timestamp) {
        let known = Known {
            now: false,
            until: Some(until),
        };
        self.learn(asked, line, known);
    }

    fn learn(&mut self, asked: &ResourceRequest, line: &LineKey, new: Known) {
        if !asked.more.is_empty() {
            return;
        }
        let all = self.unfit.entry(Kind::of(asked, line)).or_default();
        let amount = Amount::of(asked);
        // What follows from the new one need not be remembered.
        let follows = |known: &Known| match (new.until, known.until) {
            _ if known.now => new.now,
            (Some(new), Some(until)) => new <= until,
            (None, Some(_)) => new.now,
            (_, None) => true,
        };
        all.retain(|(old, known)| !(amount.is_within(old) && follows(known)));
        if all.len() < MAX_REMEMBERED {
            all.push((amount, new));
        }
    }

    /// Whether it is known that it would fit were all nodes free that are in service.
    pub fn would_fit(&self, asked: &ResourceRequest, line: &LineKey) -> bool {
        let known = self.fit.get(&Kind::of(asked, line)).into_iter().flatten();
        let wanted = Amount::of(asked);
        asked.more.is_empty() && known.into_iter().any(|amount| wanted.is_within(amount))
    }

    /// Whether it would fit were all nodes free that are in service, if that is known or else as `looked` says.
    pub fn fits_when_free(
        &mut self,
        asked: &ResourceRequest,
        line: &LineKey,
        looked: impl FnOnce() -> bool,
    ) -> bool {
        if !asked.more.is_empty() {
            return looked();
        }
        let known = self.fit.entry(Kind::of(asked, line)).or_default();
        let wanted = Amount::of(asked);
        if known.iter().any(|amount| wanted.is_within(amount)) {
            return true;
        }
        let fits = looked();
        if fits {
            known.retain(|amount| !amount.is_within(&wanted));
            if known.len() < MAX_REMEMBERED {
                known.push(wanted);
            }
        }
        fits
    }
}
