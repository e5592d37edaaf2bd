//! How the GPUs of one host are joined.

mod text;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use text::{Topology, TopologyError, TopologyNic};

/// The link between two devices of a host, as `nvidia-smi topo -m` names it.
/// Ordered from the slowest to the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Link {
    /// Over PCIe and the interconnect between NUMA nodes (legacy name `SOC`).
    Sys,
    /// Over PCIe and between the host bridges of one NUMA node.
    Node,
    /// Over PCIe and a PCIe host bridge.
    Phb,
    /// Over several PCIe switches.
    Pxb,
    /// Over one PCIe switch.
    Pix,
    /// Over this many bonded NVLinks.
    NvLink(u8),
}

impl Link {
    /// Joined by NVLink.
    pub fn is_nvlink(self) -> bool {
        matches!(self, Self::NvLink(_))
    }

    /// The link that a name stands for, as [`fmt::Display`] prints it or as old
    /// drivers did (`SOC`); none for any other text.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "SYS" | "SOC" => Some(Self::Sys),
            "NODE" => Some(Self::Node),
            "PHB" => Some(Self::Phb),
            "PXB" => Some(Self::Pxb),
            "PIX" => Some(Self::Pix),
            _ => {
                let count = name.strip_prefix("NV")?;
                let digits = !count.is_empty() && count.bytes().all(|b| b.is_ascii_digit());
                let count = if digits { count.parse().ok()? } else { 0 };
                (count > 0).then_some(Self::NvLink(count))
            }
        }
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sys => f.write_str("SYS"),
            Self::Node => f.write_str("NODE"),
            Self::Phb => f.write_str("PHB"),
            Self::Pxb => f.write_str("PXB"),
            Self::Pix => f.write_str("PIX"),
            Self::NvLink(count) => write!(f, "NV{count}"),
        }
    }
}

/// The links between all pairs of a host's GPUs; symmetric.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LinkMatrix {
    gpus: usize,
    /// Upper triangle, row by row: (0,1), (0,2) … (1,2) ….
    upper: Vec<Link>,
}

impl LinkMatrix {
    /// A matrix of `gpus` GPUs whose every pair is joined by `link(i, j)`, asked with `i < j`.
    pub fn from_fn(gpus: usize, mut link: impl FnMut(usize, usize) -> Link) -> Self {
        let mut upper = Vec::with_capacity(gpus * gpus.saturating_sub(1) / 2);
        for i in 0..gpus {
            for j in i + 1..gpus {
                upper.push(link(i, j));
            }
        }
        Self { gpus, upper }
    }

    /// From an upper triangle; none when its length is not that of `gpus` GPUs.
    pub fn from_upper(gpus: usize, upper: Vec<Link>) -> Option<Self> {
        (upper.len() == gpus * gpus.saturating_sub(1) / 2).then_some(Self { gpus, upper })
    }

    /// Number of GPUs.
    pub fn len(&self) -> usize {
        self.gpus
    }

    /// No GPUs.
    pub fn is_empty(&self) -> bool {
        self.gpus == 0
    }

    /// The link between two different GPUs, by position.
    ///
    /// # Panics
    /// When the positions are equal or out of range.
    pub fn link(&self, a: usize, b: usize) -> Link {
        let (i, j) = if a < b { (a, b) } else { (b, a) };
        assert!(
            i != j && j < self.gpus,
            "no link between GPUs {a} and {b} of {}",
            self.gpus
        );
        self.upper[i * self.gpus - i * (i + 1) / 2 + (j - i - 1)]
    }

    /// The upper triangle, row by row.
    pub fn upper(&self) -> &[Link] {
        &self.upper
    }

    /// The slowest link within a set of positions; none for fewer than two.
    pub fn worst(&self, set: &[usize]) -> Option<Link> {
        let pairs = set
            .iter()
            .enumerate()
            .flat_map(|(n, a)| set[n + 1..].iter().map(move |b| (*a, *b)));
        pairs.map(|(a, b)| self.link(a, b)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_upper_triangle_is_indexed_both_ways() {
        let matrix = LinkMatrix::from_fn(4, |i, j| Link::NvLink((10 * i + j) as u8));
        assert_eq!(matrix.link(1, 3), Link::NvLink(13));
        assert_eq!(matrix.link(3, 1), Link::NvLink(13));
        assert_eq!(matrix.link(2, 3), Link::NvLink(23));
        assert_eq!(matrix.worst(&[0, 2, 3]), Some(Link::NvLink(2)));
        assert_eq!(matrix.worst(&[1]), None);
    }
}
