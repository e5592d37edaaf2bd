//! Which task runs where: counts and ranks of a step's tasks, node by node, as srun deals them out.

use crate::error::{CliError, Result};

/// How ranks follow each other over the nodes (`man srun`, --distribution).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Distribution {
    /// Neighbours are on one node.
    #[default]
    Block,
    /// Neighbours are on different nodes.
    Cyclic,
    /// So many neighbours are on one node.
    Plane(u32),
}

impl std::str::FromStr for Distribution {
    type Err = String;

    /// The first level counts; what stands after a colon says how tasks lie on sockets, and there CPUs are the job's own.
    fn from_str(text: &str) -> Result<Self, String> {
        let first = text.split([':', ',']).next().unwrap_or_default();
        match first {
            "block" | "*" => Ok(Self::Block),
            "cyclic" | "fcyclic" => Ok(Self::Cyclic),
            "arbitrary" => Err("tasks are dealt out by block, cyclic or plane=SIZE; for your own order, run a step for each node (-w)".to_owned()),
            _ => match first.strip_prefix("plane=").map(str::parse) {
                Some(Ok(size)) if size > 0 => Ok(Self::Plane(size)),
                _ => Err("block, cyclic or plane=SIZE".to_owned()),
            },
        }
    }
}

/// A node of the allocation, as a step sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its rank in the job.
    pub rank: u32,
    /// CPUs that the job has there.
    pub cpus: u32,
    /// GPUs, slices or shares of them that the job has there.
    pub gpus: u32,
    /// Memory that the job has there, bytes; none: it is not known.
    pub memory: Option<u64>,
}

/// What a step asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Tasks over all nodes.
    pub tasks: Option<u32>,
    /// Tasks of each node.
    pub per_node: Option<u32>,
    /// Nodes, at least and at most.
    pub nodes: Option<u32>,
    /// CPUs of each task.
    pub cpus_per_task: u32,
    /// GPUs of each task; 0: none of its own.
    pub gpus_per_task: u32,
    /// More tasks than CPUs are meant.
    pub overcommit: bool,
    /// The order of the ranks.
    pub distribution: Distribution,
}

/// The tasks of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The node.
    pub node: Node,
    /// Ranks of its tasks, in order.
    pub ranks: Vec<u32>,
}

/// Deals tasks out to these nodes, which are in the order of the job.
///
/// # Errors
/// More is asked for than the job has.
pub fn layout(asked: &Asked, nodes: &[Node]) -> Result<Vec<Part>> {
    let wanted = wanted_nodes(asked, nodes)?;
    let nodes = &nodes[..wanted];
    let count = u32::try_from(wanted).unwrap_or(u32::MAX);
    let tasks = asked
        .tasks
        .or_else(|| asked.per_node.map(|each| each.saturating_mul(count)))
        .unwrap_or(count);
    let counts = counts(asked, nodes, tasks)?;
    let mut parts: Vec<Part> = nodes
        .iter()
        .map(|node| Part {
            node: node.clone(),
            ranks: Vec::new(),
        })
        .collect();
    let run = match asked.distribution {
        Distribution::Block => u32::MAX,
        Distribution::Cyclic => 1,
        Distribution::Plane(size) => size,
    };
    let mut next = 0;
    while next < tasks {
        for (part, count) in parts.iter_mut().zip(&counts) {
            let left = *count - u32::try_from(part.ranks.len()).unwrap_or(u32::MAX);
            let taken = left.min(run).min(tasks - next);
            part.ranks.extend(next..next + taken);
            next += taken;
        }
    }
    parts.retain(|part| !part.ranks.is_empty());
    Ok(parts)
}

fn wanted_nodes(asked: &Asked, nodes: &[Node]) -> Result<usize> {
    let by_tasks = || match (asked.tasks, asked.per_node) {
        (Some(tasks), Some(each)) => Some(tasks.div_ceil(each)),
        (Some(tasks), None) => Some(tasks),
        (None, _) => None,
    };
    let have = nodes.len();
    let wanted = match (asked.nodes, asked.tasks) {
        // As srun does: a node without a task is none of the step's.
        (Some(wanted), Some(tasks)) => wanted.min(tasks),
        (Some(wanted), None) => wanted,
        (None, _) => {
            let least = by_tasks().unwrap_or(u32::MAX);
            least.min(u32::try_from(have).unwrap_or(u32::MAX))
        }
    };
    let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
    if wanted > have || have == 0 {
        let plural = if have == 1 { "" } else { "s" };
        return Err(CliError::failed(format!(
            "{wanted} nodes are asked for, and the step may have {have} node{plural} of the job's"
        )));
    }
    Ok(wanted)
}

/// How many tasks each node gets: one after the other as long as there is room, as srun counts for every order.
fn counts(asked: &Asked, nodes: &[Node], tasks: u32) -> Result<Vec<u32>> {
    let cpus_each = asked.cpus_per_task.max(1);
    let room = |node: &Node| {
        let by_cpus = if asked.overcommit {
            u32::MAX
        } else {
            node.cpus / cpus_each
        };
        let by_gpus = node.gpus.checked_div(asked.gpus_per_task).unwrap_or(u32::MAX);
        by_cpus.min(by_gpus).min(asked.per_node.unwrap_or(u32::MAX))
    };
    let rooms: Vec<u32> = nodes.iter().map(room).collect();
    let all = rooms.iter().fold(0_u32, |sum, room| sum.saturating_add(*room));
    if all < tasks {
        return Err(too_many(asked, nodes, tasks, all));
    }
    let mut counts = vec![0; nodes.len()];
    let mut left = tasks;
    let step = match asked.distribution {
        Distribution::Plane(size) => size,
        Distribution::Block | Distribution::Cyclic => 1,
    };
    while left > 0 {
        for (count, room) in counts.iter_mut().zip(&rooms) {
            let taken = step.min(room - *count).min(left);
            *count += taken;
            left -= taken;
        }
    }
    Ok(counts)
}

fn too_many(asked: &Asked, nodes: &[Node], tasks: u32, room: u32) -> CliError {
    let (cpus, gpus): (u32, u32) = nodes
        .iter()
        .fold((0, 0), |(cpus, gpus), node| (cpus + node.cpus, gpus + node.gpus));
    let each = asked.cpus_per_task.max(1);
    let per_node = asked
        .per_node
        .map(|most| format!(", {most} on each node at most"));
    let with_gpus = match asked.gpus_per_task {
        0 => String::new(),
        gpus => format!(" and {gpus} GPUs"),
    };
    let error = CliError::failed(format!(
        "{tasks} tasks with {each} CPUs{with_gpus} each{} do not fit: there is room for {room} on {} nodes with {cpus} CPUs and {gpus} GPUs",
        per_node.unwrap_or_default(),
        nodes.len()
    ));
    if asked.gpus_per_task == 0 && asked.per_node.is_none() {
        error.hint("--overcommit runs more tasks than there are CPUs")
    } else {
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(cpus: &[u32]) -> Vec<Node> {
        let all = cpus.iter().enumerate();
        all.map(|(rank, cpus)| Node {
            name: format!("n{rank}"),
            rank: rank as u32,
            cpus: *cpus,
            gpus: *cpus,
            memory: None,
        })
        .collect()
    }

    fn asked(tasks: Option<u32>) -> Asked {
        Asked {
            tasks,
            cpus_per_task: 1,
            ..Asked::default()
        }
    }

    fn ranks(asked: &Asked, cpus: &[u32]) -> Vec<Vec<u32>> {
        let parts = layout(asked, &nodes(cpus)).expect("room");
        parts.into_iter().map(|part| part.ranks).collect()
    }

    #[test]
    fn tasks_are_dealt_out_as_srun_does() {
        assert_eq!(ranks(&asked(Some(3)), &[2, 2]), [vec![0, 1], vec![2]]);
        assert_eq!(ranks(&asked(Some(4)), &[8, 8]), [vec![0, 1], vec![2, 3]]);
        assert_eq!(ranks(&asked(Some(5)), &[1, 8]), [vec![0], vec![1, 2, 3, 4]]);
        assert_eq!(ranks(&asked(None), &[4, 4]), [vec![0], vec![1]]);
        assert_eq!(ranks(&asked(Some(1)), &[4, 4]), [vec![0]]);
        let cyclic = Asked {
            distribution: Distribution::Cyclic,
            ..asked(Some(5))
        };
        assert_eq!(ranks(&cyclic, &[4, 4]), [vec![0, 2, 4], vec![1, 3]]);
        let plane = Asked {
            distribution: Distribution::Plane(2),
            ..asked(Some(7))
        };
        assert_eq!(ranks(&plane, &[4, 4]), [vec![0, 1, 4, 5], vec![2, 3, 6]]);
        let two_each = Asked {
            per_node: Some(2),
            ..asked(None)
        };
        assert_eq!(ranks(&two_each, &[4, 4]), [vec![0, 1], vec![2, 3]]);
        let packed = Asked {
            per_node: Some(2),
            ..asked(Some(2))
        };
        assert_eq!(ranks(&packed, &[4, 4]), [vec![0, 1]]);
        let spread = Asked {
            nodes: Some(2),
            ..asked(Some(4))
        };
        assert_eq!(ranks(&spread, &[4, 4, 4]), [vec![0, 1], vec![2, 3]]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let large = Asked {
            cpus_per_task: 3,
            ..asked(Some(3))
        };
        assert!(layout(&large, &nodes(&[4, 4])).is_err());
        let over = Asked {
            overcommit: true,
            ..large.clone()
        };
        assert_eq!(ranks(&over, &[4, 4]), [vec![0, 1], vec![2]]);
        let gpus = Asked {
            gpus_per_task: 4,
            ..asked(Some(3))
        };
        assert!(layout(&gpus, &nodes(&[4, 4])).is_err());
        let nodes_asked = Asked {
            nodes: Some(3),
            ..asked(None)
        };
        assert!(layout(&nodes_asked, &nodes(&[4, 4])).is_err());
        assert!(layout(&asked(None), &[]).is_err());
    }

    #[test]
    fn orders_are_read() {
        assert_eq!("cyclic:block".parse(), Ok(Distribution::Cyclic));
        assert_eq!("plane=4".parse(), Ok(Distribution::Plane(4)));
        assert!("plane=0".parse::<Distribution>().is_err() && "x".parse::<Distribution>().is_err());
    }
}
