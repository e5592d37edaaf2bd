//! The host's CPUs and memory nodes, as far as jobs may use them, from sysfs.

use std::fs;
use std::path::{Path, PathBuf};

use carrel_core::model::cpus::{CpuSet, HostCpus, NumaNode};

/// What the cgroup that jobs' cgroups are made in may use; empty: whatever there is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Its CPUs.
    pub cpus: CpuSet,
    /// Its memory nodes.
    pub mems: CpuSet,
}

/// Where the kernel tells of its CPUs.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// A mounted sysfs.
    pub sys: PathBuf,
    /// A mounted procfs.
    pub proc: PathBuf,
}

impl Default for Kernel {
    fn default() -> Self {
        Self {
            sys: "/sys".into(),
            proc: "/proc".into(),
        }
    }
}

impl Kernel {
    /// CPUs that jobs may be given: online, and allowed both to this process, as an operator may limit
    /// it (`taskset`, systemd's `CPUAffinity`), and to their cgroup. Cheap: asked before each start.
    pub fn usable(&self, limits: &Limits) -> CpuSet {
        let online = list(&self.sys.join("devices/system/cpu/online")).unwrap_or_default();
        within(within(online, &self.allowed("Cpus_allowed_list:")), &limits.cpus)
    }

    /// All of it. `None` for the limits of a host whose cgroups cannot bind. Blocks.
    pub fn cpus(&self, limits: Option<&Limits>) -> HostCpus {
        let none = Limits::default();
        let some = limits.unwrap_or(&none);
        let usable = self.usable(some);
        HostCpus {
            cores: self.cores(&usable),
            nodes: self.nodes(&usable, some),
            can_bind: limits.is_some(),
            usable,
        }
    }

    /// The hardware threads of each physical core, the offline ones left out.
    fn cores(&self, usable: &CpuSet) -> Vec<CpuSet> {
        let mut left = usable.clone();
        let mut cores = Vec::new();
        while let Some(cpu) = left.first() {
            let alone = CpuSet::from_iter([cpu]);
            let topology = self.sys.join(format!("devices/system/cpu/cpu{cpu}/topology"));
            // The name before Linux 5.7 came, which is still there.
            let siblings = list(&topology.join("thread_siblings_list")).unwrap_or_default();
            let core = siblings.and(&left).or(&alone);
            left = left.without(&core);
            cores.push(core);
        }
        cores
    }

    fn nodes(&self, usable: &CpuSet, limits: &Limits) -> Vec<NumaNode> {
        let dir = self.sys.join("devices/system/node");
        let Some(online) = list(&dir.join("online")) else {
            // A kernel without NUMA.
            return vec![NumaNode {
                cpus: usable.clone(),
                ..NumaNode::default()
            }];
        };
        let mems = within(
            within(online.clone(), &self.allowed("Mems_allowed_list:")),
            &limits.mems,
        );
        let node = |id: u32| {
            let dir = dir.join(format!("node{id}"));
            let distances = word(&dir.join("distance")).unwrap_or_default();
            let distances = distances.split_whitespace().filter_map(|far| far.parse().ok());
            NumaNode {
                id,
                cpus: list(&dir.join("cpulist")).unwrap_or_default(),
                memory_bytes: if mems.contains(id) { memory(&dir) } else { 0 },
                // One for each node that is online, in order.
                distances: online.iter().zip(distances).collect(),
            }
        };
        online.iter().map(node).collect()
    }

    /// What this process may use, by proc(5)'s `status`.
    fn allowed(&self, name: &str) -> CpuSet {
        let status = fs::read_to_string(self.proc.join("self/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|list| list.parse().ok()).unwrap_or_default()
    }
}

/// Those that are in both; an empty limit is none.
fn within(set: CpuSet, limit: &CpuSet) -> CpuSet {
    if limit.is_empty() { set } else { set.and(limit) }
}

/// `MemTotal` of a node's meminfo ("Node 0 MemTotal: 24103736 kB"), in bytes.
fn memory(node: &Path) -> u64 {
    let text = fs::read_to_string(node.join("meminfo")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.split_once("MemTotal:"));
    let number = line.and_then(|(_, rest)| rest.split_whitespace().next()?.parse::<u64>().ok());
    number.and_then(|kib| kib.checked_mul(1024)).unwrap_or(0)
}

fn list(path: &Path) -> Option<CpuSet> {
    word(path)?.parse().ok()
}

/// A one-line file's content; none when it is not there.
fn word(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> CpuSet {
        text.parse().expect(text)
    }

    /// A kernel's files.
    fn kernel(files: &[(&str, &str)]) -> (tempfile::TempDir, Kernel) {
        let dir = tempfile::tempdir().expect("a directory");
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().expect("a directory")).expect("made");
            fs::write(path, format!("{text}\n")).expect("written");
        }
        let kernel = Kernel {
            sys: dir.path().join("sys"),
            proc: dir.path().join("proc"),
        };
        (dir, kernel)
    }

    /// Two nodes of two cores with two threads; CPU 7 is offline, and the agent may not use CPU 0.
    fn host() -> (tempfile::TempDir, Kernel) {
        let siblings = |cpu: u32| {
            let path = format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
            (path, format!("{},{}", cpu % 4, cpu % 4 + 4))
        };
        let siblings: Vec<_> = (0..7).map(siblings).collect();
        let mut files = vec![
            ("sys/devices/system/cpu/online", "0-6"),
            ("sys/devices/system/node/online", "0-1"),
            ("sys/devices/system/node/node0/cpulist", "0-1,4-5"),
            ("sys/devices/system/node/node0/distance", "10 21"),
            (
                "sys/devices/system/node/node0/meminfo",
                "Node 0 MemTotal:       1048576 kB\nNode 0 MemFree: 1 kB",
            ),
            ("sys/devices/system/node/node1/cpulist", "2-3,6"),
            ("sys/devices/system/node/node1/distance", "21 10"),
            (
                "sys/devices/system/node/node1/meminfo",
                "Node 1 MemTotal:       2097152 kB",
            ),
            (
                "proc/self/status",
                "Name:\tx\nCpus_allowed_list:\t1-7\nMems_allowed_list:\t0-1",
            ),
        ];
        files.extend(siblings.iter().map(|(path, text)| (path.as_str(), text.as_str())));
        kernel(&files)
    }

    #[test]
    fn a_host_is_read() {
        let (_dir, kernel) = host();
        let host = kernel.cpus(Some(&Limits::default()));
        assert_eq!(host.usable, set("1-6"));
        assert_eq!(host.cores, [set("1,5"), set("2,6"), set("3"), set("4")]);
        assert!(host.can_bind);
        let node = &host.nodes[1];
        assert_eq!(
            (node.id, &node.cpus, node.memory_bytes),
            (1, &set("2-3,6"), 2 << 30)
        );
        assert_eq!(node.distances, [(0, 21), (1, 10)].into());
    }

    #[test]
    fn the_jobs_cgroup_limits_it_further() {
        let (_dir, kernel) = host();
        let limits = Limits {
            cpus: set("2-7"),
            mems: set("1"),
        };
        let host = kernel.cpus(Some(&limits));
        assert_eq!(host.usable, set("2-6"));
        assert_eq!(host.nodes[0].memory_bytes, 0);
        assert!(!kernel.cpus(None).can_bind);
    }

    #[test]
    fn a_kernel_without_numa_has_one_node() {
        let (_dir, kernel) = kernel(&[("sys/devices/system/cpu/online", "0-1")]);
        let host = kernel.cpus(Some(&Limits::default()));
        assert_eq!((&host.usable, host.cores.len()), (&set("0-1"), 2));
        assert_eq!(host.nodes.len(), 1);
        assert_eq!(host.nodes[0].cpus, set("0-1"));
    }

    /// This machine's own: a NUMA node's CPUs and memory are read in the forms that kernels write.
    #[test]
    fn this_host_is_read() {
        let host = Kernel::default().cpus(Some(&Limits::default()));
        let threads = std::thread::available_parallelism().expect("some").get();
        assert!(host.usable.len() >= threads, "{}", host.usable);
        let of_cores: usize = host.cores.iter().map(CpuSet::len).sum();
        assert_eq!(of_cores, host.usable.len());
        assert!(host.nodes.iter().any(|node| !node.cpus.is_disjoint(&host.usable)));
    }
}
