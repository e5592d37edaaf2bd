//! Whole nodes: `--exclusive`, as Slurm has it.

use std::fmt;
use std::str::FromStr;

use carrel_proto::v1;

use crate::units;

/// What `--exclusive` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exclusive {
    /// Nodes on which nothing of another job runs.
    Nodes,
    /// Nodes on which there is nothing of another user, label or block: nodes are shared with these all the same.
    Among(&'static str),
}

/// Words that Slurm takes behind `--exclusive=`, of which there is nothing here.
const AMONG: [&str; 4] = ["user", "mcs", "topo", "oversubscribe"];

impl FromStr for Exclusive {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.eq_ignore_ascii_case("exclusive") {
            return Ok(Self::Nodes);
        }
        let among = AMONG.into_iter().find(|word| word.eq_ignore_ascii_case(text));
        among
            .map(Self::Among)
            .ok_or_else(|| format!("{text:?} is not known: --exclusive without a word asks for whole nodes"))
    }
}

impl Exclusive {
    /// What is said of one that means nothing here.
    pub fn note(self) -> Option<String> {
        match self {
            Self::Nodes => None,
            Self::Among(word) => Some(format!(
                "--exclusive={word} is ignored: nodes are shared; --exclusive alone asks for whole nodes"
            )),
        }
    }
}

/// How much memory of each node is asked for, for people.
pub struct Memory<'a>(pub &'a v1::ResourceRequest);

impl fmt::Display for Memory<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.all_memory {
            f.write_str("all of the memory")
        } else {
            f.write_str(&units::bytes(self.0.memory_bytes_per_node))
        }
    }
}

/// How many CPUs of each node are asked for, for people.
pub struct Cpus<'a>(pub &'a v1::ResourceRequest);

impl fmt::Display for Cpus<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.cpus_per_node {
            0 | 1 if self.0.exclusive => f.write_str("all CPUs"),
            cpus if self.0.exclusive => write!(f, "all CPUs, {cpus} at least"),
            cpus => f.write_str(&units::counted(cpus, "CPU")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::tests::resources;

    #[test]
    fn whole_nodes_are_asked_for_as_in_slurm() {
        let request = resources("-N2 --exclusive --gpus-per-node 2");
        assert!(request.exclusive && !request.all_memory);
        assert_eq!((request.nodes, request.gpus_per_node), (2, 2));
        let request = resources("--exclusive --mem 4G -c 8");
        assert_eq!(
            (request.cpus_per_node, request.memory_bytes_per_node),
            (8, 4 << 30)
        );
        assert!(!resources("--exclusive=user").exclusive);
        let note = "user"
            .parse::<Exclusive>()
            .expect("known")
            .note()
            .expect("a note");
        assert!(note.starts_with("--exclusive=user is ignored"), "{note}");
        assert!("nonsense".parse::<Exclusive>().is_err());
    }
}
