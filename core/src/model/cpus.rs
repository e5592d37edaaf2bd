//! CPUs and memory of a host, as its kernel tells of them.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Highest number that a [`CpuSet`] takes: kernels are built for at most 8192 CPUs.
const MAX_NUMBER: u32 = 16_383;

/// CPUs (hardware threads) by the kernel's numbers; also NUMA nodes, which the kernel lists in the
/// same way. Written as a kernel cpulist: "0-51,104-155" (cpuset(7), "List format").
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuSet {
    /// Bit n of word w is number 64 w + n; the last word is never 0.
    words: Vec<u64>,
}

/// A text that is no kernel cpulist.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is no list of CPUs such as 0-3,8")]
pub struct BadCpuList(String);

impl CpuSet {
    /// Nothing in it.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// It is in it.
    pub fn contains(&self, number: u32) -> bool {
        let word = self.words.get(number as usize / 64);
        word.is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    /// All, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let words = self.words.iter().zip(0u32..);
        words.flat_map(|(word, at)| {
            (0..64)
                .filter(move |bit| word >> bit & 1 == 1)
                .map(move |bit| at * 64 + bit)
        })
    }

    /// The lowest.
    pub fn first(&self) -> Option<u32> {
        self.iter().next()
    }

    /// Those in both.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self::of(self.words.iter().zip(&other.words).map(|(a, b)| a & b).collect())
    }

    /// Those in either.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        let word = |words: &[u64], at| words.get(at).copied().unwrap_or(0);
        let count = self.words.len().max(other.words.len());
        Self::of(
            (0..count)
                .map(|at| word(&self.words, at) | word(&other.words, at))
                .collect(),
        )
    }

    /// Those not in the other.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        let theirs = other.words.iter().copied().chain(std::iter::repeat(0));
        Self::of(self.words.iter().zip(theirs).map(|(a, b)| a & !b).collect())
    }

    /// All are in the other.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.without(other).is_empty()
    }

    /// None is in the other.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        self.and(other).is_empty()
    }

    fn of(mut words: Vec<u64>) -> Self {
        while words.last() == Some(&0) {
            words.pop();
        }
        Self { words }
    }

    fn insert(&mut self, number: u32) {
        let at = number as usize / 64;
        if self.words.len() <= at {
            self.words.resize(at + 1, 0);
        }
        self.words[at] |= 1 << (number % 64);
    }
}

/// Numbers beyond those of any kernel are left out.
impl FromIterator<u32> for CpuSet {
    fn from_iter<T: IntoIterator<Item = u32>>(numbers: T) -> Self {
        let mut set = Self::default();
        for number in numbers.into_iter().filter(|number| *number <= MAX_NUMBER) {
            set.insert(number);
        }
        set
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<u32> = self.iter().collect();
        for (n, run) in all.chunk_by(|a, b| a + 1 == *b).enumerate() {
            let comma = if n > 0 { "," } else { "" };
            match run {
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                [one] => write!(f, "{comma}{one}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

impl FromStr for CpuSet {
    type Err = BadCpuList;

    fn from_str(text: &str) -> Result<Self, BadCpuList> {
        let bad = || BadCpuList(text.chars().take(80).collect());
        let number = |text: &str| text.parse().ok().filter(|number| *number <= MAX_NUMBER);
        let mut set = Self::default();
        if text.trim().is_empty() {
            return Ok(set);
        }
        for part in text.trim().split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = number(first).zip(number(last)).ok_or_else(bad)?;
            if first > last {
                return Err(bad());
            }
            (first..=last).for_each(|number| set.insert(number));
        }
        Ok(set)
    }
}

impl TryFrom<String> for CpuSet {
    type Error = BadCpuList;

    fn try_from(text: String) -> Result<Self, BadCpuList> {
        text.parse()
    }
}

impl From<CpuSet> for String {
    fn from(set: CpuSet) -> Self {
        set.to_string()
    }
}

/// What a container is bound to; cgroups' `cpuset.cpus` and `cpuset.mems`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Binding {
    /// CPUs that no other job has; empty: any of the host.
    pub cpus: CpuSet,
    /// NUMA nodes that its memory comes from; empty: any of the host.
    pub mems: CpuSet,
}

/// A NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumaNode {
    /// The kernel's number.
    pub id: u32,
    /// Its CPUs.
    pub cpus: CpuSet,
    /// Memory that it has, bytes; 0: none, or none that containers may use.
    pub memory_bytes: u64,
    /// How far others are, by their numbers: 10 is itself (ACPI's SLIT).
    pub distances: BTreeMap<u32, u32>,
}

/// A host's CPUs and memory, as far as containers may use them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostCpus {
    /// CPUs that are online and that the agent, and the cgroup of its jobs, may use.
    pub usable: CpuSet,
    /// The hardware threads of each physical core.
    pub cores: Vec<CpuSet>,
    /// Ascending.
    pub nodes: Vec<NumaNode>,
    /// The host's cgroups can bind a container to CPUs.
    pub can_bind: bool,
}

impl HostCpus {
    /// Why jobs get no cores of their own on a node that offers so many CPUs; none: they get them.
    pub fn obstacle(&self, offered: u32) -> Option<String> {
        let there = self.usable.len();
        if !self.can_bind {
            Some("this host's cgroups have no cpuset controller".to_owned())
        } else if offered as usize > there {
            // The operator's number stands: it may be more than the host has.
            Some(format!("the node offers {offered} CPUs and its host has {there}"))
        } else {
            None
        }
    }

    /// CPUs near to a device, of which this is told: its affinity, as a kernel cpulist, and its NUMA
    /// node. Empty: not known, or not of this host.
    pub fn near(&self, affinity: &str, numa_node: Option<u32>) -> CpuSet {
        let told = affinity.parse::<CpuSet>().unwrap_or_default().and(&self.usable);
        if !told.is_empty() {
            return told;
        }
        let node = self.nodes.iter().find(|node| Some(node.id) == numa_node);
        node.map(|node| node.cpus.and(&self.usable)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> CpuSet {
        text.parse().expect(text)
    }

    #[test]
    fn lists_are_the_kernel_s() {
        for text in ["", "0", "0-51,104-155", "1,3,5", "63-64,128", "0-8191"] {
            assert_eq!(set(text).to_string(), text);
        }
        assert_eq!(set(" 3,1,2,8-8\n").to_string(), "1-3,8");
        for bad in ["x", "1,", "-1", "3-1", "1-", "1--2", "0-4294967295", "16384"] {
            assert!(bad.parse::<CpuSet>().is_err(), "{bad}");
        }
        assert_eq!(set("0-3,70").len(), 5);
        assert_eq!(set("2,70").iter().collect::<Vec<_>>(), [2, 70]);
    }

    #[test]
    fn sets_are_equal_whatever_they_come_from() {
        let (a, b) = (set("0-3,64-67"), set("2-5,70"));
        assert_eq!(a.and(&b), set("2-3"));
        assert_eq!(a.or(&b), set("0-5,64-67,70"));
        assert_eq!(a.without(&b), set("0-1,64-67"));
        assert_eq!(set("0,64").without(&set("64")), set("0"));
        assert!(set("1-2").is_subset(&a) && !a.is_subset(&b) && set("9").is_disjoint(&a));
        assert!(a.contains(67) && !a.contains(68) && !a.contains(1000));
        assert_eq!([u32::MAX, 4].into_iter().collect::<CpuSet>(), set("4"));
    }

    #[test]
    fn a_device_s_cpus_are_those_that_are_there() {
        let host = HostCpus {
            usable: set("0-7"),
            nodes: vec![NumaNode {
                id: 1,
                cpus: set("4-7"),
                ..NumaNode::default()
            }],
            ..HostCpus::default()
        };
        assert_eq!(host.near("2-11", Some(1)), set("2-7"));
        assert_eq!(host.near("52-103", Some(1)), set("4-7"));
        assert_eq!(host.near("52-103", Some(3)), set(""));
        assert_eq!(host.near("nonsense", None), set(""));
    }
}
