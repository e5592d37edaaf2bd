//! CPUs, memory and operating system of the host.

use std::fs;
use std::num::NonZeroUsize;

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
}
