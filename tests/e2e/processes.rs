//! The processes of a test's cluster, as the host sees them.

use carrel_tests::cluster::Cluster;

fn read(pid: i32, file: &str) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default()
}

/// Parent of a process; 0: it is gone.
pub fn parent(pid: i32) -> i32 {
    let status = read(pid, "status");
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    line.and_then(|pid| pid.trim().parse().ok()).unwrap_or(0)
}

/// Processes of a name inside a cluster's sandbox that have not ended: what nobody has waited for has no
/// command line.
pub fn named(cluster: &Cluster, name: &str) -> Vec<i32> {
    let in_sandbox = |pid: i32| {
        let mut ancestors = std::iter::successors(Some(pid), |pid| Some(parent(*pid)).filter(|pid| *pid > 1));
        ancestors.any(|pid| pid.unsigned_abs() == cluster.sandbox().init())
    };
    let all = std::fs::read_dir("/proc").expect("/proc").flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| read(*pid, "comm").trim() == name && !read(*pid, "cmdline").is_empty())
        .filter(|pid| in_sandbox(*pid))
        .collect()
}

/// SSH servers of the sandbox's containers: children of carrel-init.
pub fn ssh_servers(cluster: &Cluster) -> Vec<i32> {
    let servers = named(cluster, "carrel-ssh").into_iter();
    servers
        .filter(|pid| read(parent(*pid), "comm").trim() == "carrel-init")
        .collect()
}

/// A `carrel` of a cluster's user with these arguments first. It is no descendant of the sandbox's
/// process 1: it was entered from outside.
pub fn carrel(cluster: &Cluster, args: &[&str]) -> Option<i32> {
    let program = cluster.root().display().to_string();
    let all = std::fs::read_dir("/proc").expect("/proc").flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| read(*pid, "comm").trim() == "carrel")
        .find(|pid| {
            let line = read(*pid, "cmdline");
            let mut words = line.split('\0');
            words.next().is_some_and(|first| first.starts_with(&program))
                && args.iter().all(|arg| words.next() == Some(arg))
        })
}
