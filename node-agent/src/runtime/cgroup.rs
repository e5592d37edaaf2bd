//! A job's cgroup, on hosts with version 1, version 2 or both.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The cgroup hierarchies of this host.
#[derive(Clone, Debug)]
pub(crate) struct Cgroups {
    roots: Vec<PathBuf>,
    unified: bool,
}

impl Cgroups {
    /// Reads this process's mounts.
    pub fn of_this_host() -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").context("reading /proc/self/mounts")?;
        Ok(Self::from_mounts(&mounts))
    }

    fn from_mounts(mounts: &str) -> Self {
        let of_type = |wanted: &str| -> Vec<PathBuf> {
            let lines = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
            lines
                .filter(|fields| fields.get(2) == Some(&wanted))
                .map(|fields| PathBuf::from(fields[1]))
                .collect()
        };
        let (version1, version2) = (of_type("cgroup"), of_type("cgroup2"));
        // On hybrid hosts the controllers are version 1's; runc makes a cgroup of version 2 besides.
        Self {
            unified: version1.is_empty(),
            roots: version1.into_iter().chain(version2).collect(),
        }
    }

    /// Swap is counted, so that it can be limited.
    pub fn counts_swap(&self) -> bool {
        self.unified
            || self
                .roots
                .iter()
                .any(|root| root.join("memory.memsw.limit_in_bytes").exists())
    }

    /// CPU time can be limited.
    pub fn has_quota(&self) -> bool {
        self.unified
            || self
                .roots
                .iter()
                .any(|root| root.join("cpu.cfs_quota_us").exists())
    }

    /// A cgroup's directories that exist. `path` is absolute within the hierarchy.
    fn dirs(&self, path: &str) -> Vec<PathBuf> {
        let relative = path.trim_start_matches('/');
        self.roots
            .iter()
            .map(|root| root.join(relative))
            .filter(|dir| dir.is_dir())
            .collect()
    }

    /// Processes in a cgroup and below it, each once.
    pub fn processes(&self, path: &str) -> Result<Vec<i32>> {
        let mut found = Vec::new();
        for dir in self.dirs(path) {
            walk(&dir, &mut |dir| {
                let listed = match fs::read_to_string(dir.join("cgroup.procs")) {
                    Ok(listed) => listed,
                    Err(error) if is_gone(&error) => return Ok(()),
                    Err(error) => return Err(error),
                };
                found.extend(listed.lines().filter_map(|line| line.parse::<i32>().ok()));
                Ok(())
            })
            .with_context(|| format!("reading cgroup {}", dir.display()))?;
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    /// Kills everything in a cgroup; gives the number of processes signalled.
    pub fn kill(&self, path: &str) -> Result<usize> {
        let processes = self.processes(path)?;
        for pid in &processes {
            match kill(Pid::from_raw(*pid), Signal::SIGKILL) {
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("killing process {pid} of cgroup {path}"));
                }
            }
        }
        Ok(processes.len())
    }

    /// Processes of a cgroup that the kernel killed for want of memory.
    pub fn out_of_memory_kills(&self, path: &str) -> u32 {
        let counts = self.dirs(path).into_iter().flat_map(|dir| {
            // Version 2 has memory.events, version 1 memory.oom_control; both say "oom_kill N".
            ["memory.events", "memory.oom_control"].map(|file| {
                let text = fs::read_to_string(dir.join(file)).unwrap_or_default();
                let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
                count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
            })
        });
        counts.max().unwrap_or(0)
    }

    /// Removes a cgroup without processes, and those below it. Absent is fine.
    pub fn remove(&self, path: &str) -> Result<()> {
        for dir in self.dirs(path) {
            let removed = walk(&dir, &mut |dir| match fs::remove_dir(dir) {
                Err(error) if !is_gone(&error) => Err(error),
                _ => Ok(()),
            });
            removed.with_context(|| format!("removing cgroup {}", dir.display()))?;
        }
        Ok(())
    }
}

/// Visits a directory tree, the deepest first.
fn walk(dir: &Path, visit: &mut dyn FnMut(&Path) -> io::Result<()>) -> io::Result<()> {
    let listed = match fs::read_dir(dir) {
        Ok(listed) => listed,
        Err(error) if is_gone(&error) => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in listed {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) if is_gone(&error) => continue,
            Err(error) => return Err(error),
        };
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            walk(&entry.path(), visit)?;
        }
    }
    visit(dir)
}

/// A cgroup may go at any moment: its directory is missing, or its files answer ENODEV.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(Errno::ENODEV as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hybrid_hosts_count_as_version_1() {
        let hybrid = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let cgroups = Cgroups::from_mounts(hybrid);
        assert!(!cgroups.unified);
        assert_eq!(
            cgroups.roots,
            ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/unified"].map(PathBuf::from)
        );
        assert!(Cgroups::from_mounts("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n").unified);
    }

    #[test]
    fn a_tree_of_cgroups_is_seen_whole() {
        // Plain files stand for the kernel's here: the walk is what is tested.
        let root = tempfile::tempdir().unwrap();
        let job = root.path().join("carrel/1-1");
        fs::create_dir_all(job.join("inner")).unwrap();
        fs::write(job.join("cgroup.procs"), "11\n").unwrap();
        fs::write(job.join("inner/cgroup.procs"), "12\n11\n").unwrap();
        fs::write(
            job.join("memory.oom_control"),
            "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
        )
        .unwrap();
        let cgroups = Cgroups {
            roots: vec![root.path().to_owned()],
            unified: false,
        };
        assert_eq!(cgroups.processes("/carrel/1-1").unwrap(), [11, 12]);
        assert_eq!(cgroups.processes("/carrel/2-1").unwrap(), [0; 0]);
        assert_eq!(cgroups.out_of_memory_kills("/carrel/1-1"), 0);
        fs::write(
            job.join("memory.oom_control"),
            "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        )
        .unwrap();
        assert_eq!(cgroups.out_of_memory_kills("/carrel/1-1"), 2);
    }
}
