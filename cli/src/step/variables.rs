//! The environment of a step's tasks (`man srun`, OUTPUT ENVIRONMENT VARIABLES), and RANK and the like, which PyTorch's
//! rendezvous reads; where it meets, the allocation says.

use std::collections::BTreeMap;

use carrel_proto::v1;

use carrel_core::model::host_list::{self, in_short};
use carrel_core::model::ids::NodeName;

/// Variables by name.
pub type Variables = BTreeMap<String, String>;

/// What a node says of itself: it counts over what comes from the node where the step was begun.
const OF_THE_NODE: [&str; 12] = [
    "CARREL_BROKER",
    "CARREL_DEADLINE_FILE",
    "CARREL_GO",
    "CARREL_NODE",
    "CARREL_RANK",
    "CUDA_VISIBLE_DEVICES",
    "HOSTNAME",
    "SLURMD_NODENAME",
    "SLURM_CPUS_ON_NODE",
    "SLURM_GPUS_ON_NODE",
    "SLURM_JOB_GPUS",
    "SLURM_MEM_PER_NODE",
];
/// What all tasks of a step have on this node.
pub fn of_step(start: &v1::StepStart, step: u32, own: Variables) -> Variables {
    let given = start
        .env
        .iter()
        .map(|variable| (variable.name.clone(), variable.value.clone()));
    let mut all: Variables = if start.whole_env {
        let of_node = own
            .into_iter()
            .filter(|(name, _)| OF_THE_NODE.contains(&name.as_str()));
        let mut all: Variables = given.collect();
        all.retain(|name, _| !OF_THE_NODE.contains(&name.as_str()));
        all.extend(of_node);
        all
    } else {
        let mut all = own;
        all.extend(given);
        all
    };
    let tasks: u32 = start.tasks_per_node.iter().sum();
    let nodes = start.nodes.len().to_string();
    let mut put = |name: &str, value: String| drop(all.insert(name.to_owned(), value));
    put("SLURM_STEP_ID", step.to_string());
    put("SLURM_STEPID", step.to_string());
    put("SLURM_STEP_NUM_NODES", nodes.clone());
    put("SLURM_NNODES", nodes);
    put("SLURM_STEP_NUM_TASKS", tasks.to_string());
    put("SLURM_NTASKS", tasks.to_string());
    put("SLURM_NPROCS", tasks.to_string());
    let names: Result<Vec<NodeName>, _> = start.nodes.iter().map(|node| node.parse()).collect();
    let list = names.map_or_else(|_| start.nodes.join(","), |names| host_list::format(&names));
    put("SLURM_STEP_NODELIST", list.clone());
    put("SLURM_NODELIST", list);
    put("SLURM_STEP_TASKS_PER_NODE", in_short(&start.tasks_per_node));
    put("SLURM_TASKS_PER_NODE", in_short(&start.tasks_per_node));
    put("SLURM_NODEID", start.node_index.to_string());
    put("SLURM_CPUS_PER_TASK", start.cpus_per_task.max(1).to_string());
    let ranks: Vec<String> = start.ranks.iter().map(ToString::to_string).collect();
    put("SLURM_GTIDS", ranks.join(","));
    put("WORLD_SIZE", tasks.to_string());
    put("LOCAL_WORLD_SIZE", start.ranks.len().to_string());
    // Unless a task has less than all; and what may come from the step that this one is begun in does not count.
    match all.get("SLURM_JOB_GPUS").cloned() {
        Some(gpus) => drop(all.insert("SLURM_STEP_GPUS".to_owned(), gpus)),
        None => drop(all.remove("SLURM_STEP_GPUS")),
    }
    all
}

/// The host's numbers of some of the job's GPUs, which are named as in `CUDA_VISIBLE_DEVICES`: programs count with
/// them. Slices share a number.
fn numbers(all: &Variables, gpus: &[String]) -> Option<String> {
    let of = |name: &str| all.get(name).map(|list| list.split(',').collect::<Vec<_>>());
    let (names, numbers) = (of("CUDA_VISIBLE_DEVICES")?, of("SLURM_JOB_GPUS")?);
    let number = |gpu: &String| {
        let at = names.iter().position(|name| name == gpu)?;
        match numbers[..] {
            [only] => Some(only),
            _ if numbers.len() == names.len() => numbers.get(at).copied(),
            _ => None,
        }
    };
    let mut found = gpus.iter().map(number).collect::<Option<Vec<_>>>()?;
    found.dedup();
    Some(found.join(","))
}

/// What one task has besides.
pub fn of_task(all: &Variables, rank: u32, local: usize, gpus: Option<&[String]>) -> Variables {
    let mut env = all.clone();
    let mut put = |name: &str, value: String| drop(env.insert(name.to_owned(), value));
    put("SLURM_PROCID", rank.to_string());
    put("SLURM_LOCALID", local.to_string());
    put("RANK", rank.to_string());
    put("LOCAL_RANK", local.to_string());
    if let Some(gpus) = gpus {
        put(
            "SLURM_STEP_GPUS",
            numbers(all, gpus).unwrap_or_else(|| gpus.join(",")),
        );
        put("CUDA_VISIBLE_DEVICES", gpus.join(","));
        put("SLURM_GPUS_ON_NODE", gpus.len().to_string());
    }
    env
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start() -> v1::StepStart {
        v1::StepStart {
            ranks: vec![2, 3],
            node_index: 1,
            nodes: vec!["n1".into(), "n2".into()],
            tasks_per_node: vec![2, 2],
            cpus_per_task: 3,
            env: vec![
                v1::EnvVar {
                    name: "SEED".into(),
                    value: "7".into(),
                },
                v1::EnvVar {
                    name: "CUDA_VISIBLE_DEVICES".into(),
                    value: "theirs".into(),
                },
            ],
            ..Default::default()
        }
    }

    fn own() -> Variables {
        let pairs = [
            ("CUDA_VISIBLE_DEVICES", "GPU-1,GPU-2"),
            ("SLURM_JOB_GPUS", "5,2"),
            ("PATH", "/bin"),
            ("SLURM_JOB_ID", "5"),
            ("MASTER_PORT", "1"),
        ];
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn tasks_know_their_place() {
        let all = of_step(&start(), 4, own());
        let env = of_task(&all, 3, 1, Some(&["GPU-2".to_owned()]));
        for (name, value) in [
            ("SLURM_PROCID", "3"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_NODEID", "1"),
            ("SLURM_NTASKS", "4"),
            ("SLURM_STEP_ID", "4"),
            ("SLURM_TASKS_PER_NODE", "2(x2)"),
            ("SLURM_GTIDS", "2,3"),
            ("RANK", "3"),
            ("LOCAL_RANK", "1"),
            ("WORLD_SIZE", "4"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("CUDA_VISIBLE_DEVICES", "GPU-2"),
            ("SLURM_STEP_NODELIST", "n[1-2]"),
            ("SLURM_NODELIST", "n[1-2]"),
            ("MASTER_PORT", "1"),
            ("SEED", "7"),
            ("PATH", "/bin"),
        ] {
            assert_eq!(env.get(name).map(String::as_str), Some(value), "{name}");
        }
    }

    #[test]
    fn the_whole_environment_is_the_callers_but_for_what_nodes_say_of_themselves() {
        let start = v1::StepStart {
            whole_env: true,
            ..start()
        };
        let all = of_step(&start, 0, own());
        assert_eq!(
            all.get("CUDA_VISIBLE_DEVICES").map(String::as_str),
            Some("GPU-1,GPU-2")
        );
        assert_eq!(all.get("PATH"), None);
        // The host's numbers, with which programs reckon.
        assert_eq!(all.get("SLURM_STEP_GPUS").map(String::as_str), Some("5,2"));
        let task = of_task(&all, 3, 1, Some(&["GPU-2".to_owned()]));
        assert_eq!(task.get("SLURM_STEP_GPUS").map(String::as_str), Some("2"));
        let unknown = of_task(&all, 3, 1, Some(&["GPU-9".to_owned()]));
        assert_eq!(unknown.get("SLURM_STEP_GPUS").map(String::as_str), Some("GPU-9"));
        assert_eq!(all.get("SEED").map(String::as_str), Some("7"));
    }
}
