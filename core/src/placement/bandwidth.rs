//! How fast a link is: what link sums are made of.

use crate::model::topology::Link;

/// Bandwidth of a link in MB/s, in one direction.
///
/// One NVLink carries, by NVIDIA's architecture whitepapers (their figures, for
/// both directions and all links: P100 160 GB/s by 4, V100 300 by 6, A100 600
/// by 12, H100 900 by 18, B200 1800 by 18):
///
/// | version | GPUs | GB/s |
/// |---|---|---|
/// | 1 | Pascal | 20 |
/// | 2, 3, 4 | Volta, Ampere, Hopper | 25 |
/// | 5 | Blackwell | 50 |
/// | 0: unknown | | 25 |
///
/// Paths over PCIe, in GB/s. The generation is not known here and scales all of
/// them alike, so what counts is their order and their distance to NVLink:
///
/// | link | GB/s | source |
/// |---|---|---|
/// | PIX | 12 | NCCL `PCI_BW`, third generation x16 |
/// | PXB | 11 | between its neighbours |
/// | PHB | 10 | NCCL: 12 less its `INTEL_P2P_OVERHEAD` of 6/5 through a CPU |
/// | NODE | 9 | between its neighbours |
/// | SYS | 6 | NCCL `QPI_BW`, the slowest interconnect between sockets |
///
/// (NCCL: `src/graph/topo.h`.)
pub fn link_bandwidth(link: Link, nvlink_version: u32) -> u32 {
    match link {
        Link::Sys => 6_000,
        Link::Node => 9_000,
        Link::Phb => 10_000,
        Link::Pxb => 11_000,
        Link::Pix => 12_000,
        Link::NvLink(count) => {
            let one = match nvlink_version {
                1 => 20_000,
                0 | 2..=4 => 25_000,
                5.. => 50_000,
            };
            u32::from(count) * one
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_better_link_is_faster() {
        let ladder = [
            Link::Sys,
            Link::Node,
            Link::Phb,
            Link::Pxb,
            Link::Pix,
            Link::NvLink(1),
            Link::NvLink(2),
            Link::NvLink(18),
        ];
        for version in 0..8 {
            assert!(ladder.is_sorted_by_key(|link| (*link, link_bandwidth(*link, version))));
        }
        assert_eq!(link_bandwidth(Link::NvLink(18), 4), 450_000);
    }
}
