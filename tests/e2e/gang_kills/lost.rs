//! Nodes of gangs that do not come back before their leases are over.

use carrel_tests::cluster::Cluster;
use carrel_tests::gates::Verb;
use carrel_tests::user::ROOT;
use serde_json::Value;

use super::{first, hosts, left, read, show, submit, touch, until};

fn submit_gang(cluster: &Cluster, name: &str, more: &[&str], script: &str) -> String {
    let output = format!("{name}.out");
    let args = [
        "-N2",
        "--ntasks-per-node=1",
        "--gpus-per-node=8",
        "-J",
        name,
        "-o",
        &output,
    ];
    submit(
        cluster,
        &[&args[..], more].concat(),
        &script.replace("NAME", name),
    )
}

/// The index of a job's node.
fn node(job: &Value, rank: usize) -> usize {
    let name = job["nodes"][rank]["node"].as_str().expect("a node");
    name[1..].parse().expect("its number")
}

/// Everything that runs on a node dies at once, and the agent with it.
fn power_fails(cluster: &mut Cluster, node: usize) {
    cluster.agents[node].kill9();
    let kill = format!("for p in $(ip netns pids n{node}); do pkill -9 -P $p; kill -9 $p; done; true");
    cluster.cmd(ROOT, "sh").args(["-c", &kill]).ok();
}

/// Three gangs lose a node: one under a step, one that is not to be queued again its first node with its script, one while
/// its containers are made. Nobody gets what they hold before it is known to be free.
#[test]
fn lost_nodes_end_their_gangs() {
    const NODES: usize = 6;
    let mut cluster = hosts(NODES, &["--lease", "15s"]);
    let before = first(&cluster, NODES);
    let step = "echo run $SLURM_RESTART_COUNT >> NAME.runs\n\
        carrel run -N2 -n2 sh -c 'echo $SLURM_RESTART_COUNT $SLURM_PROCID >> NAME.tasks; until [ -e NAME.over ]; do sleep 0.1; done'";
    let plain = "echo run $SLURM_RESTART_COUNT >> NAME.runs; until [ -e NAME.over ]; do sleep 0.1; done";
    let stepping = submit_gang(&cluster, "stepping", &[], step);
    let once = submit_gang(&cluster, "once", &["--no-requeue"], plain);
    let [under_step, scripts] = [&stepping, &once].map(|id| until(&cluster, id, "RUNNING"));
    let (under_step, scripts) = (node(&under_step, 1), node(&scripts, 0));
    cluster.ready("they run", |this| {
        read(this, "stepping.tasks").lines().count() == 2 && read(this, "once.runs") == "run 0\n"
    });
    let gates = cluster.gates();
    for node in 0..NODES {
        gates.shut(node, Verb::Create);
    }
    let making = submit_gang(&cluster, "making", &[], plain);
    let made_on = until(&cluster, &making, "CONFIGURING");
    gates.reached(node(&made_on, 0), Verb::Create);
    gates.reached(node(&made_on, 1), Verb::Create);
    gates.open(node(&made_on, 0), Verb::Create);
    let made_on = node(&made_on, 1);

    power_fails(&mut cluster, under_step);
    power_fails(&mut cluster, made_on);
    // Its container lives on, and ends itself.
    cluster.agents[scripts].kill9();
    for node in 0..NODES {
        gates.open(node, Verb::Create);
    }
    // It waits for all nodes that are left, and gets none of what the lost ones hold.
    let next = submit_gang(&cluster, "next", &[], "true");
    for id in [&stepping, &once] {
        assert_eq!(show(&cluster, id)["state"], "RUNNING");
    }
    assert_eq!(show(&cluster, &next)["state"], "PENDING");

    let job = until(&cluster, &once, "NODE_FAIL");
    let reason = job["reason"].as_str().expect("a reason");
    assert!(reason.contains(&format!("node n{scripts} was lost")), "{job}");
    assert_eq!(read(&cluster, "once.runs"), "run 0\n");
    // On three nodes one after the other, whichever can be had first.
    touch(&cluster, "making.over");
    let again = until(&cluster, &stepping, "RUNNING");
    assert_eq!(again["restarts"], 1, "{again}");
    cluster.ready("its tasks run again", |this| {
        read(this, "stepping.tasks").lines().count() == 4
    });
    touch(&cluster, "stepping.over");
    let ended = until(&cluster, &stepping, "COMPLETED");
    assert_eq!(ended["restarts"], 1, "{ended}");
    assert_eq!(read(&cluster, "stepping.runs"), "run 0\nrun 1\n");
    let ended = until(&cluster, &making, "COMPLETED");
    assert_eq!(ended["restarts"], 1, "{ended}");
    assert_eq!(read(&cluster, "making.runs"), "run 1\n", "it had not begun");
    until(&cluster, &next, "COMPLETED");

    // They come back, and clear away what they had.
    for node in [under_step, made_on, scripts] {
        cluster.agents[node].restart();
    }
    cluster.ready("all nodes are back", |this| {
        let nodes = this.json(ROOT, ["nodes"]);
        let nodes = nodes.as_array().expect("nodes");
        nodes.iter().filter(|node| node["state"] == "IDLE").count() == NODES
    });
    left::nothing(&cluster, "lost nodes", &before);
    assert_eq!(read(&cluster, "once.runs"), "run 0\n");
}
