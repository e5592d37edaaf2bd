//! What a pass has found not to fit: whoever asks for as much of the same, or for more, need not be looked at. And what
//! it has found to fit were all nodes free: as much does, or less.
//!
//! In a pass what is free only becomes less, so what is learned stays true.

use std::cmp::Ordering;

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
    kinds: Vec<OfKind>,
    /// Places in `kinds`, by their kinds.
    sorted: Vec<usize>,
}

/// What is known of a kind.
struct OfKind {
    kind: Kind,
    /// What does not fit.
    unfit: Vec<(Amount, Known)>,
    /// What fits were all nodes free.
    fit: Vec<Amount>,
}

/// A request as it is looked up: of which kind, and how much of it.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    /// None: it has several components, of which nothing is ever known.
    kind: Option<usize>,
    amount: Amount,
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
        Self {
            gpus: asked.gpus_per_node,
            root: line.root,
            alone: (asked.exclusive, asked.all_memory),
            nodes: Self::nodes(asked),
            partition: line.partition.clone(),
            reservation: line.reservation.clone(),
            owner: line.owner.clone(),
            unit: asked.unit.clone(),
            gpu_model: asked.gpu_model.clone(),
            constraints: asked.constraints.clone(),
        }
    }

    fn nodes(asked: &ResourceRequest) -> Option<u32> {
        let anywhere = asked.constraints == Constraints::default();
        (!anywhere).then_some(asked.nodes)
    }

    /// Where it stands to a request's own, which need not be made for that.
    fn beside(&self, asked: &ResourceRequest, line: &LineKey) -> Ordering {
        let alone = (asked.exclusive, asked.all_memory);
        let few = (self.gpus, self.root, self.alone).cmp(&(asked.gpus_per_node, line.root, alone));
        few.then_with(|| self.nodes.cmp(&Self::nodes(asked)))
            .then_with(|| self.partition.cmp(&line.partition))
            .then_with(|| self.reservation.cmp(&line.reservation))
            .then_with(|| self.owner.cmp(&line.owner))
            .then_with(|| self.unit.cmp(&asked.unit))
            .then_with(|| self.gpu_model.cmp(&asked.gpu_model))
            .then_with(|| self.constraints.cmp(&asked.constraints))
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
    /// How a request is looked up.
    pub fn asked(&mut self, asked: &ResourceRequest, line: &LineKey) -> Asked {
        let amount = Amount::of(asked);
        if !asked.more.is_empty() {
            return Asked { kind: None, amount };
        }
        let known = self
            .sorted
            .binary_search_by(|at| self.kinds[*at].kind.beside(asked, line));
        let kind = match known {
            Ok(place) => self.sorted[place],
            Err(place) => {
                self.kinds.push(OfKind {
                    kind: Kind::of(asked, line),
                    unfit: Vec::new(),
                    fit: Vec::new(),
                });
                self.sorted.insert(place, self.kinds.len() - 1);
                self.kinds.len() - 1
            }
        };
        let kind = Some(kind);
        Asked { kind, amount }
    }

    /// What is known of a request.
    pub fn known(&self, asked: Asked) -> Known {
        let mut all = Known::default();
        let known = asked.kind.map(|kind| &self.kinds[kind].unfit);
        for (_, known) in known
            .into_iter()
            .flatten()
            .filter(|(amount, _)| amount.is_within(&asked.amount))
        {
            all.now |= known.now;
            all.until = all.until.into_iter().chain(known.until).min();
        }
        all
    }

    /// It does not fit on what is free.
    pub fn learn_now(&mut self, asked: Asked) {
        let known = Known {
            now: true,
            until: None,
        };
        self.learn(asked, known);
    }

    /// It does not fit beside what is promised, if it ends at that time.
    pub fn learn_until(&mut self, asked: Asked, until: Timestamp) {
        let known = Known {
            now: false,
            until: Some(until),
        };
        self.learn(asked, known);
    }

    fn learn(&mut self, Asked { kind, amount }: Asked, new: Known) {
        let Some(all) = kind.map(|kind| &mut self.kinds[kind].unfit) else {
            return;
        };
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
    pub fn would_fit(&self, asked: Asked) -> bool {
        let known = asked.kind.map(|kind| &self.kinds[kind].fit);
        let mut known = known.into_iter().flatten();
        known.any(|amount| asked.amount.is_within(amount))
    }

    /// Whether it would fit were all nodes free that are in service, if that is known or else as `looked` says.
    pub fn fits_when_free(&mut self, asked: Asked, looked: impl FnOnce() -> bool) -> bool {
        if self.would_fit(asked) {
            return true;
        }
        let fits = looked();
        if let Some(kind) = asked.kind.filter(|_| fits) {
            let known = &mut self.kinds[kind].fit;
            known.retain(|amount| !amount.is_within(&asked.amount));
            if known.len() < MAX_REMEMBERED {
                known.push(asked.amount);
            }
        }
        fits
    }
}
