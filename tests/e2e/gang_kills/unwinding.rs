//! One node of a gang fails: in making its container, under a step, by its container's death. The others go with it.

use carrel_tests::cluster::Cluster;
use carrel_tests::gates::Verb;
use carrel_tests::user::{ALICE, ROOT};
use serde_json::Value;

use super::{first, hosts, left, read, submit, until};

const NODES: usize = 3;

fn nodes_of(job: &Value) -> Vec<&str> {
    let nodes = job["nodes"].as_array().expect("nodes");
    nodes.iter().filter_map(|node| node["node"].as_str()).collect()
}

/// A gang of two nodes fails on the second one, says why, and has run nowhere; queued again, it keeps off that node.
fn fails_on_the_second(cluster: &Cluster, name: &str, words: &[&str], before: &str) {
    let output = format!("{name}.out");
    let args = ["-N2", "--gpus-per-node=8", "-J", name, "-o", &output];
    let id = submit(
        cluster,
        &args,
        &format!("echo run $SLURM_RESTART_COUNT >> {name}.runs"),
    );
    let job = until(cluster, &id, "FAILED");
    assert_eq!(nodes_of(&job), ["n0", "n1"], "{job}");
    let reason = job["reason"].as_str().expect("a reason");
    for part in [&["could not be started (node n1)"], words].concat() {
        assert!(reason.contains(part), "{name}: nothing of {part:?} in {reason}");
    }
    assert_eq!(read(cluster, &format!("{name}.runs")), "", "{name}");
    left::nothing(cluster, name, before);
    cluster.carrel(ALICE, ["requeue", &id]).ok();
    let job = until(cluster, &id, "COMPLETED");
    assert_eq!(
        (nodes_of(&job), &job["restarts"]),
        (vec!["n0", "n2"], &Value::from(1)),
        "{job}"
    );
    assert_eq!(read(cluster, &format!("{name}.runs")), "run 1\n", "{name}");
    left::nothing(cluster, name, before);
}

#[test]
fn a_container_that_cannot_be_made_unwinds_its_gang() {
    let cluster = hosts(NODES, &[]);
    let before = first(&cluster, NODES);
    let gates = cluster.gates();
    let of_runtime = [
        (Verb::Create, "no more room for cgroups"),
        (Verb::Start, "the device is gone"),
    ];
    for (verb, words) in of_runtime {
        gates.fails(1, verb, Some(words));
        fails_on_the_second(&cluster, &format!("{verb:?}"), &[words], &before);
        gates.fails(1, verb, None);
    }

    let jobs = cluster.node_state(1).join("jobs");
    let script = "mkdir -p $0 && mount -t tmpfs -o size=4k tmpfs $0 && echo x > $0/x && head -c 8192 /dev/zero > $0/x; true";
    cluster.cmd(ROOT, "sh").args(["-c", script]).arg(&jobs).ok();
    let full = left::look(&cluster);
    fails_on_the_second(&cluster, "full", &["No space left on device"], &full);
    cluster.cmd(ROOT, "umount").arg(&jobs).ok();

    let images = "cd $0; for i in $(ctr -a containerd/c.sock -n carrel images ls -q); do \
        ctr -a containerd/c.sock -n carrel images rm --sync $i; done";
    let remove = cluster.node_cmd(1, "sh").args(["-c", images]);
    remove.arg(cluster.node_state(1)).ok();
    fails_on_the_second(&cluster, "image", &["local/busybox"], &before);
}

/// One task's bad end, by itself or by a signal, is the step's, and with --kill-on-bad-exit that of all tasks on all
/// nodes; the step's exit code is the highest, as srun's.
#[test]
fn a_task_ends_badly_on_one_node() {
    let cluster = hosts(NODES, &[]);
    let before = first(&cluster, NODES);
    let script = "\
        carrel run -N3 -n3 sh -c 'echo $SLURMD_NODENAME >> ended; [ $SLURM_PROCID = 1 ] && exit 7; exit 0'; echo $? > codes\n\
        carrel run -N3 -n3 sh -c '[ $SLURM_PROCID = 1 ] && kill -9 $$; echo $SLURMD_NODENAME >> outlived'; echo $? >> codes\n\
        carrel run -N3 -n3 -K sh -c 'touch up-$SLURM_PROCID; [ $SLURM_PROCID = 1 ] || exec sleep 1000; \
          until [ -e up-0 ] && [ -e up-2 ]; do sleep 0.1; done; exit 7' 2> killed; echo $? >> codes\n\
        carrel run -N3 -n3 -l sh -c 'echo again' | wc -l >> codes\n\
        exit 9\n";
    let args = ["-N3", "--ntasks-per-node=1", "--gpus-per-node=8", "-o", "bad.out"];
    let id = submit(&cluster, &args, script);
    let job = until(&cluster, &id, "FAILED");
    let said = |name: &str| read(&cluster, name);
    assert_eq!(
        (said("codes"), &job["exit_code"]),
        ("7\n137\n143\n3\n".to_owned(), &Value::from(9)),
        "{job}"
    );
    assert_eq!(
        (said("ended").lines().count(), said("outlived").lines().count()),
        (3, 2)
    );
    let killed = said("killed");
    assert!(killed.contains("n1: task 1: Exited with exit code 7"), "{killed}");
    for rank in [0, 2] {
        assert!(
            killed.contains(&format!("n{rank}: task {rank}: Terminated")),
            "{killed}"
        );
    }
    left::nothing(&cluster, "bad ends", &before);
}

/// Process 1 of one node's container is killed under a step over all nodes: the job is over, by name and node.
#[test]
fn a_container_dies_under_a_step() {
    let cluster = hosts(NODES, &[]);
    let before = first(&cluster, NODES);
    let script =
        "echo run >> died.runs; carrel run -N3 -n3 sh -c 'echo $SLURM_PROCID >> died.tasks; exec sleep 1000'";
    let args = [
        "-N3",
        "--ntasks-per-node=1",
        "--gpus-per-node=8",
        "-o",
        "died.out",
    ];
    let id = submit(&cluster, &args, script);
    cluster.ready("all tasks run", |this| {
        read(this, "died.tasks").lines().count() == NODES
    });
    let kill = "for shim in $(ip netns pids n1); do pkill -9 -P $shim -x carrel-init; done; true";
    cluster.cmd(ROOT, "sh").args(["-c", kill]).ok();
    let job = until(&cluster, &id, "FAILED");
    let reason = job["reason"].as_str().expect("a reason");
    assert!(
        reason.contains("its container ended with exit code 137 (node n1)"),
        "{reason}"
    );
    assert_eq!(read(&cluster, "died.runs"), "run\n");
    left::nothing(&cluster, "a dead container", &before);
}
