//! What jobs leave on their hosts: nothing.

use std::fmt::Write as _;

use carrel_tests::cluster::Cluster;
use carrel_tests::user::ROOT;

/// What a node's host has for containers: interfaces, rules and routes, the agent's notes, containerd's records.
const OF_A_NODE: &str = r#"
cd "$0"
ip -o link | grep -o 'veth[^@:]*@' | sed 's/.*/veth/'
iptables-save | grep -v -e '^#' -e '^:'
ip route | grep 10.214
ls jobs gangs shifted 2>/dev/null
for what in 'containers ls -q' 'tasks ls -q' 'snapshots ls'; do
  ctr -a containerd/c.sock -n carrel $what | grep -e job -e session
done
true
"#;

/// What all of them have: processes, namespaces, mounts, cgroups.
const OF_ALL: &str = r"
ps -eo comm= | grep -e carrel-init -e carrel-ssh -e carrel-log -e containerd-shim -e '^runc'
ls /run/netns
cut -d' ' -f5 /proc/self/mountinfo
find /sys/fs/cgroup -type d | grep -v '^/sys/fs/cgroup/[^/]*$'
true
";

/// All that a cluster's jobs have on their hosts, a line a thing.
pub fn look(cluster: &Cluster) -> String {
    let mut seen = String::new();
    for index in 0..cluster.agents.len() {
        let state = cluster.node_state(index);
        let of_node = cluster.node_cmd(index, "bash").args(["-c", OF_A_NODE]).arg(state);
        let _ = writeln!(seen, "n{index}:\n{}", of_node.ok());
    }
    seen + &cluster.cmd(ROOT, "bash").args(["-c", OF_ALL]).ok()
}

/// Waits until there is on the hosts what there was `before`, and every GPU is free.
#[track_caller]
pub fn nothing(cluster: &Cluster, what: &str, before: &str) {
    let free = |this: &Cluster| {
        let nodes = this.json(ROOT, ["nodes"]);
        let nodes = nodes.as_array().expect("nodes");
        nodes.iter().all(|node| node["gpus_free"] == node["gpus_total"])
    };
    cluster.ready(&format!("{what}: all GPUs are free"), free);
    let mut left = String::new();
    let tidy = carrel_tests::wait::poll(carrel_tests::wait::PATIENCE, || {
        left = look(cluster);
        (left == before).then_some(())
    });
    assert!(tidy.is_some(), "{what}: {}", difference(before, &left));
}

fn difference(before: &str, after: &str) -> String {
    let only = |these: &str, those: &str| {
        let mut those: Vec<&str> = those.lines().collect();
        let mut only = Vec::new();
        for line in these.lines() {
            match those.iter().position(|other| *other == line) {
                Some(at) => {
                    those.remove(at);
                }
                None => only.push(line.to_owned()),
            }
        }
        only.join("\n")
    };
    format!(
        "left:\n{}\nmissing:\n{}",
        only(after, before),
        only(before, after)
    )
}
