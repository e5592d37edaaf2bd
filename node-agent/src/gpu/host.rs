//! CPUs, memory and operating system of the host.

use std::fs;
use std::num::NonZeroUsize;

use carrel_core::placement::Bytes;

/// How much of the host is offered to jobs. What is not given is measured.
///
/// An operator gives sizes as in Slurm's node configuration: to keep some back,
/// or where the kernel's answer is not what the node stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostSizes {
    /// Hardware threads to offer; none: those that this process may run on, less the reserved ones.
    pub cpus: Option<u32>,
    /// Memory to offer, bytes; none: the kernel's `MemTotal`, less the reserve.
    pub memory_bytes: Option<u64>,
    /// Hardware threads kept back from what is measured.
    pub reserved_cpus: u32,
    /// Memory kept back from what is measured, bytes.
    pub reserved_memory_bytes: u64,
}

impl HostSizes {
    /// Hardware threads that jobs may use.
    pub fn offered_cpus(&self) -> u32 {
        self.cpus
            .unwrap_or_else(|| measured_cpus().saturating_sub(self.reserved_cpus))
    }

    /// What leaves nothing for jobs: the key that says it, and why; none: something is left.
    pub fn useless(&self) -> Option<(&'static str, String)> {
        const MACHINES: &str = "leave it out to offer what this machine has";
        let (cpus, memory) = (measured_cpus(), measured_memory());
        match self {
            Self { cpus: Some(0), .. } => Some(("cpus", format!("no CPU is left for jobs: {MACHINES}"))),
            Self {
                memory_bytes: Some(0),
                ..
            } => Some(("memory", format!("no memory is left for jobs: {MACHINES}"))),
            Self {
                cpus: None,
                reserved_cpus,
                ..
            } if *reserved_cpus >= cpus => Some((
                "reserved_cpus",
                format!("{reserved_cpus} of this machine's {cpus} CPUs leave none for jobs: keep back fewer"),
            )),
            Self {
                memory_bytes: None,
                reserved_memory_bytes: reserved,
                ..
            } if *reserved >= memory && *reserved > 0 => Some((
                "reserved_memory",
                format!(
                    "{} of this machine's {} leave nothing for jobs: keep back less",
                    Bytes(*reserved),
                    Bytes(memory)
                ),
            )),
            Self { .. } => None,
        }
    }

    /// What is offered though this machine does not have it, in words: jobs may be given it, and not find it.
    pub fn beyond(&self) -> Vec<String> {
        let (cpus, memory) = (measured_cpus(), measured_memory());
        let more_cpus = self.cpus.filter(|offered| *offered > cpus);
        let more_memory = self.memory_bytes.filter(|offered| *offered > memory);
        let cpus = more_cpus
            .map(|offered| format!("{offered} CPUs are offered to jobs, and this machine has {cpus}"));
        let memory = more_memory.map(|offered| {
            let (offered, memory) = (Bytes(offered), Bytes(memory));
            format!("{offered} of memory is offered to jobs, and this machine has {memory}")
        });
        cpus.into_iter().chain(memory).collect()
    }

    /// Memory that jobs may use, bytes.
    pub fn offered_memory(&self) -> u64 {
        self.memory_bytes
            .unwrap_or_else(|| measured_memory().saturating_sub(self.reserved_memory_bytes))
    }
}

/// The affinity mask of this process, and the CPU quota of its cgroup.
fn measured_cpus() -> u32 {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get) as u32
}

fn measured_memory() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    total_memory(&text).unwrap_or(0)
}

/// `MemTotal` of /proc/meminfo, which proc(5) gives in kibibytes, in bytes.
fn total_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim()
        .strip_suffix("kB")?
        .trim()
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

/// "Debian GNU/Linux 12 (bookworm), Linux 6.1.0-18-amd64".
pub(super) fn operating_system() -> String {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!(
        "{}, Linux {}",
        name.unwrap_or("Linux").trim_matches(['"', '\'']),
        kernel.trim()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_bytes() {
        assert_eq!(
            total_memory("MemTotal:       24689764 kB\nMemFree: 1 kB\n"),
            Some(24_689_764 * 1024)
        );
        assert_eq!(total_memory("MemFree: 1 kB\n"), None);
    }

    #[test]
    fn an_operators_sizes_stand_and_reserves_come_off_what_is_measured() {
        let given = HostSizes {
            cpus: Some(104),
            memory_bytes: Some(1 << 40),
            reserved_cpus: 1,
            reserved_memory_bytes: 1,
        };
        assert_eq!((given.offered_cpus(), given.offered_memory()), (104, 1 << 40));
        let all = HostSizes::default();
        let less = HostSizes {
            reserved_memory_bytes: 1 << 20,
            ..all
        };
        assert_eq!(all.offered_memory() - less.offered_memory(), 1 << 20);
        assert!(all.offered_cpus() >= 1);
    }

    #[test]
    fn sizes_that_leave_nothing_for_jobs_are_named() {
        let all = HostSizes::default();
        assert_eq!((all.useless(), all.beyond()), (None, Vec::new()));
        for (sizes, key) in [
            (HostSizes { cpus: Some(0), ..all }, "cpus"),
            (
                HostSizes {
                    memory_bytes: Some(0),
                    ..all
                },
                "memory",
            ),
            (
                HostSizes {
                    reserved_cpus: measured_cpus(),
                    ..all
                },
                "reserved_cpus",
            ),
            (
                HostSizes {
                    reserved_memory_bytes: 9 << 50,
                    ..all
                },
                "reserved_memory",
            ),
        ] {
            let (named, why) = sizes.useless().expect("refused");
            assert_eq!(named, key, "{why}");
        }
        // What is given stands, whatever is kept back of what is measured; more than there is, is only remarked.
        let given = HostSizes {
            cpus: Some(100_000),
            memory_bytes: Some(9 << 50),
            reserved_cpus: 100_000,
            reserved_memory_bytes: 9 << 50,
        };
        assert_eq!(given.useless(), None);
        let beyond = given.beyond();
        assert!(
            beyond[0].starts_with("100000 CPUs are offered") && beyond.len() == 2,
            "{beyond:?}"
        );
    }
}
