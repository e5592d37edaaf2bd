//! CPUs and memory of requests that name none.

use super::state::State;
use crate::model::gpu_unit::WHOLE_MILLI;
use crate::model::partition::NodeSet;
use crate::model::resources::{ResourceRequest, UnitRequest};
use crate::placement::{HostKind, Needs, meant};

/// Of the GPUs that could be meant, so many parts of a hundred come with what a request gets by default.
const MOST: u64 = 75;
/// Memory that nothing does with less of, bytes.
const LEAST_MEMORY: u64 = 64 << 20;

impl State {
    /// CPUs and memory where none were asked for: the default, but no more than the GPUs' share of most nodes that could
    /// be meant. So no GPU stays without CPUs because others have more of them than their share; and a few small
    /// nodes, or one that is set up wrong, are no measure for all.
    pub(super) fn default_sizes(&self, request: &mut ResourceRequest, root: bool, within: Option<&NodeSet>) {
        if request.exclusive {
            // Whole nodes come with all of their memory, if no other amount is asked for, and with whole GPUs.
            request.all_memory |= request.memory_bytes_per_node == 0;
            request.cpus_per_node = request.cpus_per_node.max(1);
            if request.unit == UnitRequest::Least {
                request.unit = UnitRequest::Whole;
            }
        }
        if request.all_memory {
            request.memory_bytes_per_node = request.memory_bytes_per_node.max(1);
        }
        if request.cpus_per_node > 0 && request.memory_bytes_per_node > 0 {
            return;
        }
        let needs = Needs {
            request,
            root,
            within,
            user: None,
        };
        let hosts = meant(&self.hosts, needs);
        let gpus = request.gpus_per_node;
        // In thousandths: of slices and shares a part.
        let milli = u64::from(gpus) * u64::from(unit_milli(request, &hosts));
        let of_default = |one: u64| (u128::from(one) * u128::from(milli) / u128::from(WHOLE_MILLI)) as u64;
        let settings = &self.settings;
        let (mut cpus, mut memory) = if gpus == 0 {
            (u64::from(settings.cpus), settings.memory)
        } else {
            let cpus = of_default(settings.cpus_per_gpu.into());
            (cpus, of_default(settings.memory_per_gpu))
        };
        // At least something, where there is something.
        let share = |of: u64, host: &HostKind| match (gpus, host.gpus() as u64 * u64::from(WHOLE_MILLI)) {
            (0, _) => of,
            (_, have) => {
                let part = u128::from(of) * u128::from(milli.min(have)) / u128::from(have.max(1));
                (part as u64).max(of.min(1))
            }
        };
        let weight =
            |host: &HostKind, count: usize| if gpus == 0 { count } else { host.gpus() * count } as u64;
        let most = |amount: &dyn Fn(&HostKind) -> u64| {
            let shares = hosts
                .iter()
                .map(|(host, count)| (share(amount(host), host), weight(host, *count)));
            most_have(shares.collect())
        };
        cpus = cpus.min(most(&|host| host.cpus.into()));
        memory = memory.min(most(&|host| host.memory_bytes));
        if request.cpus_per_node == 0 {
            request.cpus_per_node = u32::try_from(cpus.max(1)).unwrap_or(u32::MAX);
        }
        if request.memory_bytes_per_node == 0 {
            request.memory_bytes_per_node = memory.max(LEAST_MEMORY);
        }
    }
}

/// About how much of a GPU a unit is, thousandths: by its memory where that may be a slice.
fn unit_milli(request: &ResourceRequest, hosts: &[(&HostKind, usize)]) -> u16 {
    let may_be_cut = |host: &HostKind| host.mig.iter().any(Option::is_some);
    if request.unit != UnitRequest::Least || !hosts.iter().any(|(host, _)| may_be_cut(host)) {
        return request.unit.milli();
    }
    let memory = hosts.iter().flat_map(|(host, _)| host.gpu_memory.iter().copied());
    let least = memory.filter(|bytes| *bytes >= request.gpu_memory_bytes).min();
    let of = |bytes: u64| {
        u128::from(request.gpu_memory_bytes) * u128::from(WHOLE_MILLI) / u128::from(bytes.max(1))
    };
    least.map_or(WHOLE_MILLI, |bytes| of(bytes).clamp(1, WHOLE_MILLI.into()) as u16)
}

/// The largest amount that [`MOST`] of all have, by their weights; no bound if there are none.
fn most_have(mut shares: Vec<(u64, u64)>) -> u64 {
    shares.retain(|(share, _)| *share > 0);
    shares.sort_unstable_by(|a, b| b.cmp(a));
    let all: u64 = shares.iter().map(|(_, weight)| weight).sum();
    let mut so_far = 0;
    let enough = shares.iter().find(|(_, weight)| {
        so_far += weight;
        so_far * 100 >= all * MOST
    });
    enough.map_or(u64::MAX, |(share, _)| *share)
}

#[cfg(test)]
mod tests {
    use super::most_have;

    #[test]
    fn a_few_small_ones_are_no_measure() {
        assert_eq!(most_have(vec![(24, 800), (1, 2), (0, 100)]), 24);
        assert_eq!(most_have(vec![(24, 8), (8, 8)]), 8);
        assert_eq!(most_have(vec![(24, 74), (8, 26)]), 8);
        assert_eq!(most_have(vec![(8, 25), (24, 75)]), 24);
        assert_eq!(most_have(vec![]), u64::MAX);
    }
}
