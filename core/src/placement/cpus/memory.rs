//! Which NUMA nodes a job's memory is bound to.
//!
//! Binding (`cpuset.mems`) is hard: a job that has filled its nodes is ended for want of memory though
//! others have plenty. It is worth having all the same: where it is not bound, page cache on the near
//! node sends a job's new memory to a far one. So a job is bound only as long as its nodes have room
//! for the limits of everybody whose memory can lie there; jobs that are not bound count everywhere.
//! A job that comes later and is not bound can take that room away: then those who relied on it are
//! bound no longer. A job that is not bound, and has CPUs of its own, still gets the memory next to
//! them first: that is the kernel's default.

use crate::model::cpus::{CpuSet, HostCpus};

/// Memory nodes of a host.
#[derive(Clone, Copy, Debug)]
pub struct MemoryNodes<'a> {
    /// The host.
    pub host: &'a HostCpus,
    /// Memory that its node offers to jobs, bytes.
    pub offered: u64,
}

/// What a job may take of the host's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Nodes that it is bound to; empty: any.
    pub mems: CpuSet,
    /// Its limit, bytes.
    pub bytes: u64,
}

/// How a new job's memory is bound, and what that means for others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Nodes that it is bound to; empty: any.
    pub mems: CpuSet,
    /// Those of the others, by position, that must be bound no longer.
    pub freed: Vec<usize>,
}

impl MemoryNodes<'_> {
    /// Where the memory of a new job of this limit comes from, whose CPUs and GPUs are near to these
    /// CPUs. The others' claims are such that each has the room that it relies on.
    pub fn settle(&self, near: &CpuSet, bytes: u64, others: &[Claim]) -> Settled {
        let mut claims = others.to_vec();
        if let Some(mems) = self.nodes_of(near) {
            claims.push(Claim {
                mems: mems.clone(),
                bytes,
            });
            if claims.iter().all(|claim| self.has_room(claim, &claims)) {
                let freed = Vec::new();
                return Settled { mems, freed };
            }
            claims.pop();
        }
        let mems = CpuSet::default();
        claims.push(Claim { mems, bytes });
        let mut settled = Settled::default();
        // One that is freed may be in the way of the next.
        while let Some(at) = claims.iter().position(|claim| !self.has_room(claim, &claims)) {
            claims[at].mems = CpuSet::default();
            settled.freed.push(at);
        }
        settled
    }

    /// The nodes next to these CPUs that have memory; none: there is nothing to bind to.
    fn nodes_of(&self, near: &CpuSet) -> Option<CpuSet> {
        let with_memory = || self.host.nodes.iter().filter(|node| node.memory_bytes > 0);
        // Memory without CPUs is a GPU's own (Grace Hopper) or far (CXL): programs place what they want
        // there themselves, and must be able to.
        let all_have_cpus = with_memory().all(|node| !node.cpus.is_empty());
        let ids = with_memory()
            .filter(|node| !node.cpus.is_disjoint(near))
            .map(|node| node.id);
        let mems: CpuSet = ids.collect();
        let some = !mems.is_empty() && mems.len() < with_memory().count();
        (all_have_cpus && some).then_some(mems)
    }

    /// Whether a job's nodes have room for everything that may come to lie on them.
    fn has_room(&self, claim: &Claim, all: &[Claim]) -> bool {
        if claim.mems.is_empty() {
            return true;
        }
        let nodes = &self.host.nodes;
        let total: u128 = nodes.iter().map(|node| u128::from(node.memory_bytes)).sum();
        let here = nodes.iter().filter(|node| claim.mems.contains(node.id));
        let room: u128 = here.map(|node| u128::from(node.memory_bytes)).sum();
        // An operator may offer more than there is: then there is no room that one could rely on.
        let Some(kept_back) = total.checked_sub(u128::from(self.offered)) else {
            return false;
        };
        let may_lie_here = |other: &&Claim| other.mems.is_empty() || !other.mems.is_disjoint(&claim.mems);
        let claimed: u128 = all
            .iter()
            .filter(may_lie_here)
            .map(|other| u128::from(other.bytes))
            .sum();
        claimed + kept_back <= room
    }
}
