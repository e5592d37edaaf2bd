//! A job's cgroup, on hosts with version 1, version 2 or both.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use carrel_core::model::activity::HostUse;
use carrel_core::model::cpus::CpuSet;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::cpus::Limits;

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

    /// The hierarchy that binds to CPUs and memory nodes; none: this host's cannot.
    fn cpuset_root(&self) -> Option<&PathBuf> {
        let can_bind = |root: &&PathBuf| {
            if !self.unified {
                return root.join("cpuset.cpus").exists();
            }
            let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
            controllers.split_whitespace().any(|name| name == "cpuset")
        };
        self.roots.iter().find(can_bind)
    }

    /// What cgroups made below this one may be bound to; none: nothing can be bound on this host.
    pub fn limits(&self, path: &str) -> Option<Limits> {
        let root = self.cpuset_root()?;
        let dir = root.join(path.trim_start_matches('/'));
        // runc makes the missing ones as their parents are.
        let there = dir.ancestors().take_while(|dir| dir.starts_with(root));
        let read = |names: [&str; 3]| {
            let mut found = there.clone().flat_map(|dir| names.map(|name| dir.join(name)));
            found.find_map(|file| {
                let set: CpuSet = fs::read_to_string(file).ok()?.parse().ok()?;
                (!set.is_empty()).then_some(set)
            })
        };
        // Version 2's name first.
        let cpus = read(["cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"]);
        let mems = read(["cpuset.mems.effective", "cpuset.effective_mems", "cpuset.mems"]);
        Some(Limits {
            cpus: cpus.unwrap_or_default(),
            mems: mems.unwrap_or_default(),
        })
    }

    /// Binds a cgroup's memory to no node any more. Absent is fine.
    pub fn free_memory(&self, path: &str) -> Result<()> {
        let Some(root) = self.cpuset_root() else {
            return Ok(());
        };
        let dir = root.join(path.trim_start_matches('/'));
        let any = match dir.parent() {
            // Version 1 takes no empty list.
            Some(parent) if !self.unified => fs::read_to_string(parent.join("cpuset.mems")),
            Some(_) | None => Ok("\n".to_owned()),
        };
        match any.and_then(|any| fs::write(dir.join("cpuset.mems"), any)) {
            Err(error) if !is_gone(&error) => {
                Err(error).with_context(|| format!("freeing the memory of cgroup {}", dir.display()))
            }
            _ => Ok(()),
        }
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

    /// Makes a cgroup, for processes that are only to be found and ended by it, in one of the hierarchies; gives its
    /// directory. May be there already.
    pub fn make(&self, path: &str) -> Result<PathBuf> {
        // New ones of version 1's cpuset take no process before they are set up.
        let mut roots = self.roots.iter().rev();
        let root = roots.find(|root| self.unified || !root.join("cpuset.cpus").exists());
        let root = root.context("this host has no cgroups")?;
        let dir = root.join(path.trim_start_matches('/'));
        fs::create_dir_all(&dir).with_context(|| format!("making cgroup {}", dir.display()))?;
        Ok(dir)
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

    /// What a cgroup and those below it have used of CPUs and memory, as [`HostUse`] means it; 0 what is not counted.
    pub fn host_use(&self, path: &str) -> HostUse {
        let all = self.cpu_time(path).unwrap_or(0);
        let dirs = self.dirs(path);
        let read = |names: [&str; 2]| {
            let mut files = dirs.iter().flat_map(|dir| names.map(|name| dir.join(name)));
            files.find_map(|file| fs::read_to_string(file).ok())
        };
        // Version 2 counts both exactly. What version 1 has of them is in ticks: only their relation is of use.
        let times = dirs.iter().find_map(|dir| {
            let text = fs::read_to_string(dir.join("cpuacct.stat"));
            let text = text.or_else(|_| fs::read_to_string(dir.join("cpu.stat"))).ok()?;
            let user = value(&text, "user_usec").or_else(|| value(&text, "user"))?;
            let system = value(&text, "system_usec").or_else(|| value(&text, "system"))?;
            Some((user, system))
        });
        let user_us = match times {
            Some((user, system)) if user + system > 0 => {
                let part = u128::from(all) * u128::from(user) / u128::from(user + system);
                u64::try_from(part).unwrap_or(all)
            }
            Some(_) | None => all,
        };
        // "total_" is version 1's for what includes those below.
        let memory_bytes = dirs.iter().find_map(|dir| {
            let text = fs::read_to_string(dir.join("memory.stat")).ok()?;
            let anonymous = value(&text, "total_rss").or_else(|| value(&text, "anon"))?;
            let shared = value(&text, "total_shmem").or_else(|| value(&text, "shmem"));
            Some(anonymous.saturating_add(shared.unwrap_or(0)))
        });
        let memory_bytes = memory_bytes.unwrap_or(0);
        // When the kernel ends processes for want of memory it has taken back all pages of files that it could: its
        // mark is what the processes had. Where it keeps none (version 2 before Linux 5.19), that was the limit.
        let mark = (self.out_of_memory_kills(path) > 0).then(|| {
            let mark = read(["memory.peak", "memory.max_usage_in_bytes"]);
            let mark = mark.or_else(|| read(["memory.max", "memory.limit_in_bytes"]));
            mark.and_then(|text| text.trim().parse().ok())
        });
        HostUse {
            user_us,
            system_us: all - user_us,
            memory_bytes,
            peak_bytes: mark.flatten().unwrap_or(0).max(memory_bytes),
        }
    }

    /// CPU time of a cgroup and those below it, microseconds; none: it is not counted.
    fn cpu_time(&self, path: &str) -> Option<u64> {
        // Version 1 counts nanoseconds in a file of its own. Where both are mounted, the other's count may stand still.
        let times = self.dirs(path).into_iter().filter_map(|dir| {
            let version1 = fs::read_to_string(dir.join("cpuacct.usage")).ok();
            let version1 = version1.and_then(|text| text.trim().parse::<u64>().ok());
            version1.map(|time| time / 1_000).or_else(|| {
                let text = fs::read_to_string(dir.join("cpu.stat")).ok()?;
                let time = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
                time.trim().parse().ok()
            })
        });
        times.max()
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

/// The number in the line "NAME NUMBER" of such a file.
fn value(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    let (_, number) = lines.find(|(key, _)| *key == name)?;
    number.trim().parse().ok()
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

    /// Plain files stand for the kernel's.
    #[test]
    fn what_may_be_bound_is_the_nearest_parent_s() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let cgroups = |unified| Cgroups {
            roots: vec![root.path().to_owned()],
            unified,
        };
        assert_eq!(cgroups(false).limits("/carrel"), None);
        assert_eq!(cgroups(true).limits("/carrel"), None);
        write("cpuset.cpus", "0-7\n");
        write("cpuset.mems", "0-1\n");
        let limits = |unified, path: &str| {
            let limits = cgroups(unified).limits(path).unwrap();
            (limits.cpus.to_string(), limits.mems.to_string())
        };
        let all = ("0-7".to_owned(), "0-1".to_owned());
        assert_eq!(limits(false, "/carrel/jobs"), all);
        // One that is there and not set up yet.
        write("carrel/cpuset.cpus", "\n");
        assert_eq!(limits(false, "/carrel/jobs"), all);
        write("carrel/cpuset.effective_cpus", "2-5\n");
        assert_eq!(limits(false, "/carrel"), ("2-5".into(), "0-1".into()));
        write("cgroup.controllers", "cpu cpuset memory\n");
        write("cpuset.cpus.effective", "0-3\n");
        fs::remove_dir_all(root.path().join("carrel")).unwrap();
        assert_eq!(limits(true, "/carrel"), ("0-3".into(), "0-1".into()));
        // Bound no longer: as the parent is in version 1, empty in version 2.
        write("carrel/1-1/cpuset.mems", "0\n");
        write("carrel/cpuset.mems", "0-1\n");
        let mems = || fs::read_to_string(root.path().join("carrel/1-1/cpuset.mems")).unwrap();
        cgroups(false).free_memory("/carrel/1-1").unwrap();
        assert_eq!(mems(), "0-1\n");
        cgroups(true).free_memory("/carrel/1-1").unwrap();
        assert_eq!(mems(), "\n");
        cgroups(true).free_memory("/carrel/2-1").unwrap();
    }

    #[test]
    fn cpu_time_is_read_from_both_versions() {
        let root = tempfile::tempdir().unwrap();
        let cgroups = Cgroups {
            roots: vec![root.path().join("v1"), root.path().join("v2")],
            unified: false,
        };
        for dir in ["v1/job", "v2/job"] {
            fs::create_dir_all(root.path().join(dir)).unwrap();
        }
        assert_eq!(cgroups.cpu_time("/job"), None);
        fs::write(
            root.path().join("v2/job/cpu.stat"),
            "usage_usec 1500\nuser_usec 1000\n",
        )
        .unwrap();
        assert_eq!(cgroups.cpu_time("/job"), Some(1_500));
        fs::write(root.path().join("v1/job/cpuacct.usage"), "7000999\n").unwrap();
        // Version 1 has a cpu.stat as well, with other lines.
        fs::write(root.path().join("v1/job/cpu.stat"), "nr_periods 0\n").unwrap();
        assert_eq!(cgroups.cpu_time("/job"), Some(7_000));
        assert_eq!(cgroups.cpu_time("/gone"), None);
    }

    /// Plain files stand for the kernel's, with lines that it has around what is read.
    #[test]
    fn cpu_time_and_memory_are_read_from_both_versions() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let cgroups = |names: &[&str]| Cgroups {
            roots: names.iter().map(|name| root.path().join(name)).collect(),
            unified: names.len() == 1,
        };
        let (version1, version2) = (cgroups(&["cpuacct", "memory", "unified"]), cgroups(&["v2"]));
        assert_eq!(version2.host_use("/job"), HostUse::default());

        write(
            "v2/job/cpu.stat",
            "usage_usec 5000\nuser_usec 4000\nsystem_usec 1000\nnr_periods 0\n",
        );
        write(
            "v2/job/memory.stat",
            "anon 8192\nfile 999999\nkernel 77\nanon_thp 4096\nshmem 4096\ninactive_anon 3\n",
        );
        write("v2/job/memory.events", "low 0\nmax 3\noom 0\noom_kill 0\n");
        write("v2/job/memory.peak", "5000000\n");
        let seen = HostUse {
            user_us: 4_000,
            system_us: 1_000,
            memory_bytes: 12_288,
            peak_bytes: 12_288,
        };
        // The kernel's own mark counts pages of files, too.
        assert_eq!(version2.host_use("/job"), seen);
        write("v2/job/memory.events", "low 0\nmax 3\noom 1\noom_kill 1\n");
        let killed = |peak_bytes| HostUse { peak_bytes, ..seen };
        assert_eq!(version2.host_use("/job"), killed(5_000_000));
        fs::remove_file(root.path().join("v2/job/memory.peak")).unwrap();
        write("v2/job/memory.max", "6000000\n");
        assert_eq!(version2.host_use("/job"), killed(6_000_000));
        write("v2/job/memory.max", "max\n");
        assert_eq!(version2.host_use("/job"), seen);

        // Nanoseconds, of which ticks say how they are divided; the second hierarchy stands still.
        write("cpuacct/job/cpuacct.usage", "8000000\n");
        write("cpuacct/job/cpuacct.stat", "user 3\nsystem 1\n");
        write(
            "unified/job/cpu.stat",
            "usage_usec 0\nuser_usec 0\nsystem_usec 0\n",
        );
        write(
            "memory/job/memory.stat",
            "rss 1\ncache 7\ntotal_cache 9\ntotal_rss 4096\ntotal_shmem 8192\n",
        );
        write("memory/job/memory.max_usage_in_bytes", "70000\n");
        let seen = HostUse {
            user_us: 6_000,
            system_us: 2_000,
            memory_bytes: 12_288,
            peak_bytes: 12_288,
        };
        assert_eq!(version1.host_use("/job"), seen);
        write(
            "memory/job/memory.oom_control",
            "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
        );
        assert_eq!(
            version1.host_use("/job"),
            HostUse {
                peak_bytes: 70_000,
                ..seen
            }
        );
        // No tick yet: all of it is taken for the user's.
        write("cpuacct/job/cpuacct.stat", "user 0\nsystem 0\n");
        let host = version1.host_use("/job");
        assert_eq!((host.user_us, host.system_us), (8_000, 0));
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
