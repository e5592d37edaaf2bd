//! Tasks, and what belongs to each of them or to each GPU: Slurm's spellings, made into numbers for each node.

use carrel_proto::v1;

use crate::error::{CliError, Result};
use crate::units::{self, GpuCount, GpuUnit};

/// Largest memory of a node that is taken for meant, bytes.
const MOST_MEMORY: u64 = 1 << 50;

/// What is asked for by task or by GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "What to ask for")]
pub struct TaskArgs {
    /// Tasks over all nodes: what -c and --gpus-per-task count
    #[arg(short = 'n', long, value_name = "N", value_parser = units::parse_count, allow_hyphen_values = true)]
    pub ntasks: Option<u32>,
    /// Tasks on each node
    #[arg(long, alias = "tasks-per-node", value_name = "N", value_parser = units::parse_count, allow_hyphen_values = true)]
    pub ntasks_per_node: Option<u32>,
    /// CPUs for each task [default: one task on each node]
    #[arg(short = 'c', long, value_name = "CPUS", value_parser = units::parse_count, conflicts_with = "cpus", allow_hyphen_values = true)]
    pub cpus_per_task: Option<u32>,
    /// CPUs on each node at least, as Slurm calls them
    #[arg(long, hide = true, value_name = "CPUS", value_parser = units::parse_count, allow_hyphen_values = true)]
    pub mincpus: Option<u32>,
    /// CPUs for each GPU
    #[arg(long, value_name = "CPUS", value_parser = units::parse_count, conflicts_with_all = ["cpus", "cpus_per_task"], allow_hyphen_values = true)]
    pub cpus_per_gpu: Option<u32>,
    /// GPUs for each task
    #[arg(long, value_name = "[MODEL:][PROFILE:]K", value_parser = units::parse_gpus, allow_hyphen_values = true)]
    pub gpus_per_task: Option<GpuCount>,
    /// Memory for each CPU
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size, conflicts_with_all = ["mem", "mem_per_gpu"], allow_hyphen_values = true)]
    pub mem_per_cpu: Option<u64>,
    /// Memory for each GPU
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size, conflicts_with = "mem", allow_hyphen_values = true)]
    pub mem_per_gpu: Option<u64>,
}

impl TaskArgs {
    /// Nothing is asked for so.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Nodes that the tasks take where nothing else says; none: they do not say either.
    pub fn nodes(&self) -> Option<u32> {
        let (tasks, per_node) = self.ntasks.zip(self.ntasks_per_node)?;
        Some(tasks.div_ceil(per_node))
    }

    /// Of so many nodes as many as there are tasks for: none has nothing to do, as in Slurm (`_opt_verify`).
    pub fn nodes_of(&self, nodes: u32) -> u32 {
        self.ntasks.map_or(nodes, |tasks| nodes.min(tasks))
    }

    /// What is said where these are fewer.
    pub fn fewer_nodes(&self, nodes: u32) -> Option<String> {
        let fewer = self.nodes_of(nodes);
        let plural = if fewer == 1 { "" } else { "s" };
        (fewer < nodes)
            .then(|| format!("--nodes {nodes} is {fewer}: there are no more than {fewer} task{plural}"))
    }

    /// GPUs on each node, by those of each task; `asked` are the GPUs that other flags ask for, and how many
    /// of them on each node.
    pub fn gpus(&self, nodes: u32, asked: Option<(&GpuCount, u32)>) -> Result<Option<(&GpuCount, u32)>> {
        let Some(each) = &self.gpus_per_task else {
            return Ok(None);
        };
        if asked.is_some_and(|(asked, _)| each.unit != GpuUnit::Whole && each.unit != asked.unit) {
            return Err(
                CliError::usage("--gpus-per-task names other GPUs or slices than the job's")
                    .hint("name them once, and count them in the other flag"),
            );
        }
        let asked = asked.map(|(_, count)| count);
        let tasks = match (self.tasks(nodes)?, asked) {
            (Some(tasks), _) => tasks,
            // As many tasks as the GPUs are for.
            (None, Some(gpus)) => gpus / each.count,
            (None, None) => 1,
        };
        let gpus = product("GPUs", tasks, each.count)?;
        match asked {
            Some(asked) if asked != gpus => Err(CliError::usage(format!(
                "{asked} GPUs are asked for on each node, and {} of them by its tasks: {tasks} with {} each",
                gpus, each.count
            ))
            .hint("leave one of the flags out: either gives the other")),
            _ => Ok(Some((each, gpus))),
        }
    }

    /// Sets CPUs and memory of each node, of which nodes and GPUs are set; `cpus` are those that --cpus asks for.
    pub fn set(
        &self,
        resources: &mut v1::ResourceRequest,
        cpus: Option<u32>,
        mem: Option<u64>,
    ) -> Result<()> {
        let gpus = resources.gpus_per_node;
        let tasks = self.tasks(resources.nodes)?;
        // By GPUs alone: so many tasks as they are for.
        let by_gpus = self.gpus_per_task.as_ref().map(|each| gpus / each.count);
        let wanted = match (cpus, self.cpus_per_task, self.cpus_per_gpu) {
            (Some(cpus), _, _) => Some(cpus),
            (None, Some(each), _) => Some(product("CPUs", tasks.or(by_gpus).unwrap_or(1), each)?),
            (None, None, Some(_)) if gpus == 0 => return Err(no_gpus("--cpus-per-gpu")),
            (None, None, Some(each)) => Some(product("CPUs", gpus, each)?),
            // One each, as in Slurm; beside GPUs the cluster's default for these, as there.
            (None, None, None) if gpus == 0 => tasks,
            // Memory for each of them makes them count.
            (None, None, None) if self.mem_per_cpu.is_some() => tasks.or(by_gpus),
            (None, None, None) => None,
        };
        let least = self.mincpus.unwrap_or(0);
        let known = wanted.or(Some(resources.cpus_per_node).filter(|cpus| *cpus > 0));
        // Memory by CPUs that nobody has counted: one for each task, as in Slurm. How many come with GPUs is not known
        // before there is a node.
        let alone = self.mem_per_cpu.is_some();
        resources.cpus_per_node = known.unwrap_or(u32::from(alone)).max(least);
        let memory = match (mem, self.mem_per_gpu, self.mem_per_cpu) {
            (Some(bytes), _, _) => Some(bytes),
            (None, Some(_), _) if gpus == 0 => return Err(no_gpus("--mem-per-gpu")),
            (None, Some(each), _) => Some(memory(each, gpus)?),
            (None, None, Some(each)) => Some(memory(each, resources.cpus_per_node)?),
            (None, None, None) => None,
        };
        if let Some(memory) = memory {
            resources.memory_bytes_per_node = memory;
            resources.all_memory = memory == 0;
        }
        Ok(())
    }

    /// Tasks on each node; none: nothing is said of tasks.
    fn tasks(&self, nodes: u32) -> Result<Option<u32>> {
        let Some(tasks) = self.ntasks else {
            return Ok(self.ntasks_per_node);
        };
        if tasks % nodes != 0 && (tasks < nodes || self.gpus_per_task.is_some()) {
            // Of CPUs and memory every node may have what the fullest needs; GPUs are too dear for that.
            let plural = if tasks == 1 { "" } else { "s" };
            return Err(CliError::usage(format!(
                "{tasks} task{plural} cannot be spread evenly over {nodes} nodes"
            ))
            .hint("every node gets the same: let -n be a multiple of the nodes, or say --ntasks-per-node"));
        }
        let each = tasks.div_ceil(nodes);
        match self.ntasks_per_node {
            Some(most) if each > most => Err(CliError::usage(format!(
                "{tasks} tasks on {nodes} nodes are {each} on each, and --ntasks-per-node {most} allows fewer"
            ))),
            _ => Ok(Some(each)),
        }
    }
}

fn no_gpus(flag: &str) -> CliError {
    CliError::usage(format!("{flag} says something of GPUs, but none are asked for"))
        .hint("say how many, such as --gpus 4")
}

fn product(what: &str, count: u32, each: u32) -> Result<u32> {
    let product = count.checked_mul(each).filter(|product| *product <= units::MOST);
    product.ok_or_else(|| CliError::usage(format!("{count} times {each} {what} on one node is absurd")))
}

fn memory(each: u64, count: u32) -> Result<u64> {
    let product = each
        .checked_mul(u64::from(count))
        .filter(|bytes| *bytes <= MOST_MEMORY);
    product.ok_or_else(|| {
        CliError::usage(format!(
            "{count} times {} of memory on one node is absurd",
            units::bytes(each)
        ))
    })
}

#[cfg(test)]
mod tests {
    use crate::request::tests::{resources, spec};

    /// Nodes, GPUs, CPUs and MiB of each node.
    fn asked(line: &str) -> (u32, u32, u32, u64) {
        let r = resources(line);
        (
            r.nodes,
            r.gpus_per_node,
            r.cpus_per_node,
            r.memory_bytes_per_node >> 20,
        )
    }

    #[test]
    fn tasks_become_numbers_for_each_node() {
        assert_eq!(asked("-n 4"), (1, 0, 4, 0));
        assert_eq!(asked("-n 4 -c 3"), (1, 0, 12, 0));
        assert_eq!(asked("-c 3"), (1, 0, 3, 0));
        assert_eq!(asked("-N 2 -c 3"), (2, 0, 3, 0));
        assert_eq!(asked("-N 2 -n 8 -c 3"), (2, 0, 12, 0));
        assert_eq!(asked("-n 8 --ntasks-per-node 4 -c 2"), (2, 0, 8, 0));
        assert_eq!(asked("-N 4 -n 8 --ntasks-per-node 4 -c 2"), (4, 0, 4, 0));
        // Every node has what the fullest needs.
        assert_eq!(asked("-N 2 -n 5 -c 2"), (2, 0, 6, 0));
        assert_eq!(asked("-n 7 --ntasks-per-node 3"), (3, 0, 3, 0));
        assert_eq!(asked("-N 2 -n 5 --gpus-per-node 4"), (2, 4, 0, 0));
        assert_eq!(asked("-n 2 --ntasks-per-node 8 -c 2"), (1, 0, 4, 0));
        assert_eq!(asked("--ntasks-per-node 2 --cpus-per-task 5"), (1, 0, 10, 0));
        assert_eq!(asked("--tasks-per-node=2 --cpus-per-task 5"), (1, 0, 10, 0));
        assert_eq!(asked("--cpus 5 -n 2"), (1, 0, 5, 0));
        assert_eq!(asked("-n 8 --tasks-per-node 4"), (2, 0, 4, 0));
        assert_eq!(asked("-n 4 --mincpus 8"), (1, 0, 8, 0));
        assert_eq!(asked("-n 4 -c 4 --mincpus 8"), (1, 0, 16, 0));
    }

    #[test]
    fn no_node_is_without_a_task() {
        assert_eq!(asked("-N 2 -n 1"), (1, 0, 1, 0));
        assert_eq!(asked("-N 4 -n 2 --gpus 8"), (2, 4, 0, 0));
        let notes = crate::request::tests::args("-N 4 -n 2").notes();
        assert_eq!(notes, ["--nodes 4 is 2: there are no more than 2 tasks"]);
        assert!(crate::request::tests::args("-N 2 -n 2").notes().is_empty());
    }

    #[test]
    fn gpus_bring_what_belongs_to_them() {
        assert_eq!(
            asked("--gpus 4 --cpus-per-gpu 12 --mem-per-gpu 64G"),
            (1, 4, 48, 4 * 65_536)
        );
        assert_eq!(asked("-N 2 --gpus 4 --cpus-per-gpu 12"), (2, 2, 24, 0));
        assert_eq!(asked("-n 4 --gpus-per-task h100:2"), (1, 8, 0, 0));
        assert_eq!(resources("-n 4 --gpus-per-task h100:2").gpu_model, "h100");
        assert_eq!(asked("-N 2 -n 4 --gpus-per-task 2 -c 6"), (2, 4, 12, 0));
        assert_eq!(asked("--gpus-per-task 2"), (1, 2, 0, 0));
        // As many tasks as the GPUs are for.
        assert_eq!(asked("--gpus 8 --gpus-per-task 2 -c 6"), (1, 8, 24, 0));
        assert_eq!(
            asked("-N 2 --gpus-per-node 4 --gpus-per-task 1 -c 6"),
            (2, 4, 24, 0)
        );
        // Beside GPUs the cluster's default for them.
        assert_eq!(asked("-n 4 --gpus 4"), (1, 4, 0, 0));
        assert_eq!(asked("-n 4 -c 2 --mem-per-cpu 2G"), (1, 0, 8, 16_384));
        assert_eq!(asked("--mem-per-cpu 2G"), (1, 0, 1, 2_048));
        assert_eq!(asked("-n 4 --gpus 1 --mem-per-cpu 2G"), (1, 1, 4, 8_192));
        assert_eq!(
            asked("--gpus 2 --cpus-per-gpu 4 --mem-per-cpu 1G"),
            (1, 2, 8, 8_192)
        );
        // Memory by CPUs that nobody has counted: one for each task, as in Slurm.
        for (line, is) in [
            ("--mem-per-cpu 4G", (1, 0, 1, 4_096)),
            ("-n 1 --gpus-per-node 1 --mem-per-cpu 4G", (1, 1, 1, 4_096)),
            (
                "-N 2 --ntasks-per-node 2 --gpus-per-node 1 --mem-per-cpu 1G",
                (2, 1, 2, 2_048),
            ),
            ("--gpus 4 --gpus-per-task 2 --mem-per-cpu 1G", (1, 4, 2, 2_048)),
        ] {
            assert_eq!(asked(line), is, "{line}");
        }
    }

    #[test]
    fn zero_is_none_of_gpus_and_all_of_memory() {
        for line in [
            "--gpus 0",
            "--gpus-per-node=0",
            "--gpus h100:0",
            "-G0",
            "--gpus-per-node gpu:0",
        ] {
            assert_eq!(asked(line), (1, 0, 0, 0), "{line}");
            assert_eq!(resources(line).gpu_model, "", "{line}");
        }
        for line in ["--mem=0", "--mem 0M", "--mem 00G"] {
            let all = resources(line);
            assert_eq!((all.all_memory, all.memory_bytes_per_node), (true, 0), "{line}");
        }
        let some = resources("--mem 10G");
        assert_eq!((some.all_memory, some.memory_bytes_per_node), (false, 10 << 30));
        let base = spec("--mem 0 --exclusive").expect("understood");
        let later = crate::request::tests::args("--mem 1G")
            .over(base)
            .expect("understood");
        let later = later.resources.expect("resources");
        assert_eq!(
            (later.exclusive, later.all_memory, later.memory_bytes_per_node),
            (true, false, 1 << 30)
        );
        for line in ["--mem 0X", "--mem-per-cpu 0", "--gpus-per-task 0", "--gpus 0.0"] {
            assert!(super::super::tests::read(line).is_err(), "{line}");
        }
    }

    #[test]
    fn contradictions_are_refused_in_one_sentence() {
        let refused = |line: &str| spec(line).expect_err(line).to_string();
        for (line, part) in [
            (
                "-N 2 -n 5 --gpus-per-task 1",
                "5 tasks cannot be spread evenly over 2 nodes",
            ),
            ("-w gpu[1-2] -n 1", "1 task cannot be spread evenly over 2 nodes"),
            (
                "-n 7 --ntasks-per-node 3 --gpus-per-task 1",
                "7 tasks cannot be spread evenly over 3 nodes",
            ),
            (
                "-N 2 -n 5 --ntasks-per-node 2",
                "5 tasks on 2 nodes are 3 on each, and --ntasks-per-node 2 allows fewer",
            ),
            (
                "-N 2 -n 8 --ntasks-per-node 2",
                "4 on each, and --ntasks-per-node 2 allows fewer",
            ),
            (
                "--gpus 8 -n 2 --gpus-per-task 2",
                "8 GPUs are asked for on each node, and 4 of them",
            ),
            (
                "--gpus 5 --gpus-per-task 2",
                "5 GPUs are asked for on each node, and 4 of them",
            ),
            ("--cpus-per-gpu 4", "--cpus-per-gpu says something of GPUs"),
            ("--mem-per-gpu 4G", "--mem-per-gpu says something of GPUs"),
            (
                "-n 1000000 -c 1000000",
                "1000000 times 1000000 CPUs on one node is absurd",
            ),
            ("-c 1000000 --mem-per-cpu 512T", "of memory on one node is absurd"),
            (
                "--gpus a100:4 -n 2 --gpus-per-task h100:2",
                "two GPU models are asked for",
            ),
        ] {
            let said = refused(line);
            assert!(said.contains(part), "{line}: {said}");
        }
    }
}
