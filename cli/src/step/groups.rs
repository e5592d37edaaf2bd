//! The components of a job that steps run on: `--het-group`, and a step of several programs, each on a component.

use carrel_core::model::indices::IndexSet;

use super::layout::{Asked, Node, Part, layout};
use crate::error::{CliError, Result};

/// Nodes of a job, component by component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Groups(Vec<Vec<Node>>);

impl Groups {
    /// Of nodes by rank, and how many each component has; nodes beyond are the last one's.
    pub fn of(nodes: &[Node], counts: &[u32]) -> Self {
        let mut rest = nodes;
        let mut groups: Vec<Vec<Node>> = Vec::new();
        for count in counts {
            let count = usize::try_from(*count).unwrap_or(usize::MAX).min(rest.len());
            let (own, others) = rest.split_at(count);
            groups.push(own.to_vec());
            rest = others;
        }
        match groups.last_mut() {
            Some(last) => last.extend_from_slice(rest),
            None => groups.push(rest.to_vec()),
        }
        Self(groups)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The nodes of one.
    ///
    /// # Errors
    /// The job has fewer.
    pub fn nodes(&self, group: u32) -> Result<&[Node]> {
        let found = usize::try_from(group).ok().and_then(|group| self.0.get(group));
        found.map(Vec::as_slice).ok_or_else(|| {
            let last = self.0.len() - 1;
            CliError::usage(format!(
                "--het-group={group}: the job has {} component{}, and the last one is {last}",
                self.0.len(),
                if last == 0 { "" } else { "s" }
            ))
            .hint("components are asked for with ':' between them: carrel submit -c8 : -N2 --gpus-per-node 8 job.sh")
        })
    }
}

/// Which components each of a step's programs runs on, by its place; none: on the whole job.
///
/// # Errors
/// Two programs are to run on one.
pub fn chosen(asked: &[Option<&IndexSet>], usual: Option<u32>) -> Result<Vec<Option<Vec<u32>>>> {
    let several = asked.len() > 1;
    let mut taken: Vec<u32> = Vec::new();
    let mut chosen = Vec::new();
    for (groups, place) in asked.iter().zip(0_u32..) {
        let own: Option<Vec<u32>> = match groups {
            Some(groups) => Some(groups.iter().collect()),
            None if several => Some(vec![place]),
            None => usual.map(|group| vec![group]),
        };
        for group in own.iter().flatten() {
            if taken.contains(group) {
                return Err(CliError::usage(format!(
                    "two programs of the step are to run on component {group}"
                ))
                .hint("each has components of its own: --het-group says which; --multi-prog runs several on the same nodes"));
            }
            taken.push(*group);
        }
        chosen.push(own);
    }
    Ok(chosen)
}

/// Deals tasks out on some nodes as if these were all, and numbers them from the next rank on, which moves behind them.
///
/// # Errors
/// More is asked for than the nodes have.
pub fn deal(asked: &Asked, nodes: &[Node], next: &mut u32) -> Result<Vec<Part>> {
    let mut parts = layout(asked, nodes)?;
    let tasks: usize = parts.iter().map(|part| part.ranks.len()).sum();
    for rank in parts.iter_mut().flat_map(|part| &mut part.ranks) {
        *rank += *next;
    }
    *next += u32::try_from(tasks).unwrap_or(u32::MAX);
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(count: u32) -> Vec<Node> {
        let node = |rank| Node {
            name: format!("n{rank}"),
            rank,
            cpus: 4,
            gpus: 0,
            memory: None,
        };
        (0..count).map(node).collect()
    }

    fn tasks(tasks: u32) -> Asked {
        Asked {
            tasks: Some(tasks),
            cpus_per_task: 1,
            ..Asked::default()
        }
    }

    #[test]
    fn nodes_are_the_components_in_their_order() {
        let groups = Groups::of(&nodes(4), &[1, 2, 1]);
        let names = |group| -> Vec<String> {
            let nodes = groups.nodes(group).expect("a component");
            nodes.iter().map(|node| node.name.clone()).collect()
        };
        assert_eq!(
            (names(0), names(1), names(2)),
            (
                vec!["n0".into()],
                vec!["n1".into(), "n2".into()],
                vec!["n3".into()]
            )
        );
        let error = groups.nodes(3).expect_err("there are three");
        assert!(error.message.contains("has 3 components"), "{error}");
        assert_eq!(Groups::of(&nodes(2), &[]).count(), 1);
    }

    #[test]
    fn each_program_has_components_of_its_own() {
        let set = |text: &str| text.parse::<IndexSet>().expect("numbers");
        assert_eq!(chosen(&[None], None).expect("one"), [None]);
        assert_eq!(chosen(&[None], Some(0)).expect("the first"), [Some(vec![0])]);
        assert_eq!(
            chosen(&[None, None], Some(0)).expect("each its own"),
            [Some(vec![0]), Some(vec![1])]
        );
        let both = set("0,2");
        assert_eq!(
            chosen(&[Some(&both), None], None).expect("apart"),
            [Some(vec![0, 2]), Some(vec![1])]
        );
        assert!(chosen(&[None, Some(&both)], None).is_err());
    }

    #[test]
    fn tasks_of_programs_are_numbered_through() {
        let all = nodes(3);
        let mut next = 0;
        let mut parts = deal(&tasks(1), &all[..1], &mut next).expect("room");
        assert!(deal(&tasks(9), &all[1..], &mut next).is_err());
        parts.extend(deal(&tasks(4), &all[1..], &mut next).expect("room"));
        assert_eq!(next, 5);
        let ranks: Vec<&[u32]> = parts.iter().map(|part| part.ranks.as_slice()).collect();
        assert_eq!(ranks, [&[0][..], &[1, 2], &[3, 4]]);
    }
}
