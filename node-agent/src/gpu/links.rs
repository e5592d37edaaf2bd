//! How the GPUs of a host are joined: from what each GPU's NVLinks end at.

use std::collections::BTreeMap;

use carrel_core::model::topology::{Link, LinkMatrix};

/// A PCI address: domain, bus, device.
pub(super) type PciAddress = (u32, u32, u32);

/// What stands at the other end of an active NVLink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FarEnd {
    /// A GPU.
    Gpu,
    /// An NVSwitch.
    Switch,
    /// The processor.
    Processor,
    /// The driver does not say.
    Unknown,
}

/// An active NVLink of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Port {
    /// Kind of the other end.
    pub far_end: FarEnd,
    /// Its PCI address, where the driver says.
    pub remote: Option<PciAddress>,
}

/// A GPU and its active NVLinks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ports {
    /// The GPU's own address.
    pub address: PciAddress,
    /// In the order of the driver.
    pub active: Vec<Port>,
}

/// Facts about a pair of GPUs that are asked of the driver.
pub(super) trait Pairs {
    /// Peer access over NVLink works between them; none: the driver does not say.
    fn nvlink_works(&self, a: usize, b: usize) -> Option<bool>;
    /// The link over PCIe.
    fn pcie(&self, a: usize, b: usize) -> Link;
}

/// The links between all pairs, and the pairs that have NVLinks which do not work.
pub(super) fn matrix(gpus: &[Ports], pairs: &impl Pairs) -> (LinkMatrix, Vec<(usize, usize)>) {
    let mut broken = Vec::new();
    let links = LinkMatrix::from_fn(gpus.len(), |a, b| {
        let works = pairs.nvlink_works(a, b);
        let count = nvlinks(gpus, a, b, works);
        match u8::try_from(count) {
            Ok(0) => pairs.pcie(a, b),
            _ if works == Some(false) => {
                broken.push((a, b));
                pairs.pcie(a, b)
            }
            count => Link::NvLink(count.unwrap_or(u8::MAX)),
        }
    });
    (links, broken)
}

/// NVLinks between two GPUs: those that end at each other; else, behind
/// NVSwitches, as many as the GPU with fewer of them has.
fn nvlinks(gpus: &[Ports], a: usize, b: usize, works: Option<bool>) -> usize {
    let direct = |from: &Ports, to: &Ports| {
        from.active
            .iter()
            .filter(|port| port.remote == Some(to.address))
            .count()
    };
    let (there, back) = (direct(&gpus[a], &gpus[b]), direct(&gpus[b], &gpus[a]));
    if there.max(back) > 0 {
        // The same cables seen from both sides; a side that does not know counts as agreeing.
        return if there.min(back) > 0 {
            there.min(back)
        } else {
            there.max(back)
        };
    }
    let (a, b) = (switch_ports(gpus, a), switch_ports(gpus, b));
    if works.is_some() {
        return a.values().sum::<usize>().min(b.values().sum());
    }
    // Without the driver's word, only a switch that both reach joins them.
    // Switches may be cascaded, but then the driver is new enough to say so.
    a.iter()
        .map(|(switch, count)| b.get(switch).map_or(0, |other| *count.min(other)))
        .sum()
}

/// A GPU's active NVLinks that end at switches, by the switch's address.
fn switch_ports(gpus: &[Ports], gpu: usize) -> BTreeMap<Option<PciAddress>, usize> {
    let mut switches = BTreeMap::new();
    for port in &gpus[gpu].active {
        let to_switch = match port.far_end {
            FarEnd::Switch => true,
            FarEnd::Gpu | FarEnd::Processor => false,
            // Old drivers do not tell what it is; what is no GPU of this host can only be a switch.
            FarEnd::Unknown => port
                .remote
                .is_none_or(|remote| gpus.iter().all(|other| other.address != remote)),
        };
        if to_switch {
            *switches.entry(port.remote).or_default() += 1;
        }
    }
    switches
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANYTHING_ELSE: Link = Link::Phb;

    struct Says(Option<bool>);

    impl Pairs for Says {
        fn nvlink_works(&self, _: usize, _: usize) -> Option<bool> {
            self.0
        }

        fn pcie(&self, _: usize, _: usize) -> Link {
            ANYTHING_ELSE
        }
    }

    fn gpu(bus: u32, ends: &[(FarEnd, Option<u32>, usize)]) -> Ports {
        let port = |(far_end, bus, count): &(FarEnd, Option<u32>, usize)| {
            vec![
                Port {
                    far_end: *far_end,
                    remote: bus.map(|bus| (0, bus, 0))
                };
                *count
            ]
        };
        Ports {
            address: (0, bus, 0),
            active: ends.iter().flat_map(port).collect(),
        }
    }

    fn upper(gpus: &[Ports], works: Option<bool>) -> Vec<Link> {
        matrix(gpus, &Says(works)).0.upper().to_vec()
    }

    #[test]
    fn links_between_gpus_are_counted_by_their_ends() {
        use FarEnd::Gpu;
        let gpus = [
            gpu(1, &[(Gpu, Some(2), 2), (Gpu, Some(3), 1)]),
            gpu(2, &[(Gpu, Some(1), 2)]),
            gpu(3, &[(Gpu, Some(1), 1)]),
        ];
        let expected = [Link::NvLink(2), Link::NvLink(1), ANYTHING_ELSE];
        assert_eq!(upper(&gpus, Some(true)), expected);
        assert_eq!(upper(&gpus, None), expected);
    }

    #[test]
    fn links_to_processors_and_to_gpus_elsewhere_join_nothing() {
        let gpus = [
            gpu(1, &[(FarEnd::Processor, Some(9), 3), (FarEnd::Gpu, Some(7), 2)]),
            gpu(2, &[(FarEnd::Processor, Some(9), 3), (FarEnd::Gpu, Some(7), 2)]),
        ];
        assert_eq!(upper(&gpus, Some(true)), [ANYTHING_ELSE]);
    }

    #[test]
    fn switches_join_with_the_links_of_the_gpu_that_has_fewer() {
        use FarEnd::{Switch, Unknown};
        let gpus = [
            gpu(1, &[(Switch, Some(8), 9), (Switch, Some(9), 9)]),
            gpu(2, &[(Switch, Some(8), 8), (Switch, Some(9), 9)]),
            gpu(3, &[(Unknown, Some(8), 9), (Unknown, Some(9), 9)]),
        ];
        let expected = [Link::NvLink(17), Link::NvLink(18), Link::NvLink(17)];
        assert_eq!(upper(&gpus, Some(true)), expected);
        assert_eq!(upper(&gpus, None), expected);
    }

    #[test]
    fn cascaded_and_unnamed_switches_join_where_the_driver_says_so() {
        use FarEnd::{Switch, Unknown};
        // A DGX-2: each GPU sees only the six switches of its own board.
        let boards = [gpu(1, &[(Switch, Some(8), 6)]), gpu(2, &[(Switch, Some(9), 6)])];
        assert_eq!(upper(&boards, Some(true)), [Link::NvLink(6)]);
        assert_eq!(upper(&boards, None), [ANYTHING_ELSE]);
        // A tray whose switches are in another box and have no address here.
        let tray = [gpu(1, &[(Unknown, None, 18)]), gpu(2, &[(Unknown, None, 18)])];
        assert_eq!(upper(&tray, Some(true)), [Link::NvLink(18)]);
    }

    #[test]
    fn nvlinks_that_do_not_work_are_told() {
        let gpus = [
            gpu(1, &[(FarEnd::Switch, Some(8), 18)]),
            gpu(2, &[(FarEnd::Switch, Some(8), 18)]),
        ];
        let (links, broken) = matrix(&gpus, &Says(Some(false)));
        assert_eq!(links.upper(), [ANYTHING_ELSE]);
        assert_eq!(broken, [(0, 1)]);
    }
}
