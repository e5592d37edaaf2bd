//! What tasks of steps write, kept by the nodes that they run on, and read by rank from anywhere.

use carrel_tests::cluster::{Cluster, Options};
use carrel_tests::user::{ALICE, BOB};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::processes::named;
use crate::shared;

fn kept(cluster: &Cluster, id: &str, rank: &str) -> String {
    cluster.carrel(ALICE, ["logs", "--rank", rank, id]).run().stdout
}

/// Waits until a task has been heard to say so much.
fn says(cluster: &Cluster, id: &str, rank: &str, text: &str) {
    cluster.ready(&format!("rank {rank} of job {id} says {text:?}"), |this| {
        kept(this, id, rank).contains(text)
    });
}

/// Ranks on both nodes of a gang: followed from before they begin, over the deaths of the node's agent and of who keeps
/// the output, and read after the end.
#[test]
fn any_rank_of_a_gang_is_read_from_anywhere() {
    let mut cluster = Cluster::start(&Options {
        hosts: vec![Some("hgx-h100"), Some("hgx-h100")],
        ..Options::default()
    });
    let script = "#!/bin/sh\n\
        #SBATCH -N2 --ntasks-per-node=2 --gpus-per-node=4 -c1 -o gang.out\n\
        until [ -e gang.begin ]; do sleep 0.1; done\n\
        carrel run sh count.sh > /dev/null 2>&1\n\
        carrel run -o step-%t.out echo again\n";
    let count = "echo rank $SLURM_PROCID on $SLURMD_NODENAME\n\
        n=0; until [ -e gang.go ]; do n=$((n+1)); echo line $n >&2; sleep 0.1; done\n\
        echo last of $SLURM_PROCID\n";
    let home = cluster.sandbox().home(ALICE);
    cluster.write(ALICE, "gang.sh", script);
    cluster.write(ALICE, "count.sh", count);
    let id = cluster.submit(ALICE, &["gang.sh"]);
    let follower = cluster.carrel(ALICE, ["logs", "-f", "--rank", "3", &id]).spawn();
    cluster.until(&id, "RUNNING");
    cluster
        .carrel(ALICE, ["logs", "--rank", "3", &id])
        .run()
        .fails(1, &["no task's output is kept"]);
    cluster.write(ALICE, "gang.begin", "");
    says(&cluster, &id, "0", "rank 0 on n0\n");
    says(&cluster, &id, "3", "rank 3 on n1\n");
    let node = 1;
    cluster.agents[node].kill9();
    cluster.agents[node].restart();
    says(&cluster, &id, "3", "line 40\n");
    let said = kept(&cluster, &id, "3");
    let lines: Vec<&str> = said.lines().filter(|line| line.starts_with("line ")).collect();
    let expected: Vec<String> = (1..=lines.len()).map(|n| format!("line {n}")).collect();
    assert_eq!(lines, expected, "an agent's death loses nothing");
    for pid in named(&cluster, "carrel-ranks") {
        kill(Pid::from_raw(pid), Signal::SIGKILL).expect("it runs");
    }
    let later = format!("line {}\n", lines.len() + 40);
    says(&cluster, &id, "3", &later);
    // Another rank's is not among it, and nobody else reads it.
    assert!(!kept(&cluster, &id, "3").contains("rank 2"));
    cluster
        .carrel(ALICE, ["logs", "--rank", "9", &id])
        .run()
        .fails(1, &["has kept no rank 9, but ranks 0-3"]);
    assert_ne!(cluster.carrel(BOB, ["logs", "--rank", "3", &id]).run().code, 0);
    cluster.write(ALICE, "gang.go", "");
    let followed = follower.wait();
    cluster.until(&id, "COMPLETED");
    let all = cluster.carrel(ALICE, ["logs", "--rank", "3", &id]).run();
    assert_eq!((all.code, &all.stdout), (0, &followed.stdout), "{all}{followed}");
    let end = "last of 3\n--- step 1: echo again ---\nagain\n";
    assert!(
        all.stdout.starts_with("rank 3 on n1\n") && all.stdout.ends_with(end),
        "{all}"
    );
    let last = cluster
        .carrel(ALICE, ["logs", "-n", "1", "--rank", "0", &id])
        .ok();
    assert_eq!(last, "again");
    let file = std::fs::read_to_string(home.join("step-3.out")).expect("its own file");
    assert_eq!(file, "again\n");
    cluster
        .carrel(ALICE, ["logs", "-f", "--rank", "4", &id])
        .run()
        .fails(1, &["has kept no rank 4, but ranks 0-3"]);
}

/// Of much the newest stays, in a session as well, and steps that write files write all of it.
#[test]
fn of_what_a_rank_writes_the_newest_is_kept() {
    let cluster = shared::cluster();
    let session = cluster.open(ALICE, "ranks", &["-c", "2", "--mem", "1G"]);
    let run = |command: &str| session.ssh([command.to_owned()]);
    let id = session.record()["job"]["id"].to_string();
    cluster
        .carrel(ALICE, ["logs", "--rank", "0", &id])
        .run()
        .fails(1, &["no task's output is kept"]);
    run("carrel run -n 2 sh -c 'seq 1 6900000; echo over $SLURM_PROCID' > /dev/null").ok();
    for rank in ["0", "1"] {
        let kept = cluster.carrel(ALICE, ["logs", "--rank", rank, &id]).run();
        let length = kept.bytes.len();
        assert!(((1 << 20)..=(2 << 20)).contains(&length), "{length} bytes");
        let end = format!("\n6899999\n6900000\nover {rank}\n");
        assert!(kept.stdout.ends_with(&end), "rank {rank} of {length} bytes");
    }
    let summed = run("carrel run -n 2 -o ranks-%t.out seq 1 300000; seq 1 300000 | md5sum; md5sum < ranks-0.out; md5sum < ranks-1.out").ok();
    let sums: Vec<&str> = summed.lines().collect();
    assert!(
        sums.len() == 3 && sums[0] == sums[1] && sums[1] == sums[2],
        "{summed}"
    );
    let kept = kept(cluster, &id, "1");
    assert!(kept.ends_with("\n299999\n300000\n"), "{} bytes", kept.len());
    run("rm ranks-0.out ranks-1.out").ok();
}

/// Of a job that was queued again it is the newest run.
#[test]
fn ranks_of_the_newest_run_are_read() {
    let cluster = shared::cluster();
    let line = "carrel run sh -c 'echo run $SLURM_RESTART_COUNT'; [ $SLURM_RESTART_COUNT = 1 ] || sleep 1000";
    let id = cluster.submit(ALICE, &["-o", "ranks.out", "--wrap", line]);
    says(cluster, &id, "0", "run 0\n");
    let follower = cluster.carrel(ALICE, ["logs", "-f", "--rank", "0", &id]).spawn();
    cluster.carrel(ALICE, ["requeue", &id]).ok();
    cluster.until(&id, "COMPLETED");
    assert_eq!(kept(cluster, &id, "0"), "run 1\n");
    let followed = follower.wait();
    assert!(
        followed.code == 0 && followed.stdout.ends_with("run 1\n"),
        "{followed}"
    );
}

/// Root in the container, from whom process 1's directory is taken away, has his ranks kept as well.
#[test]
fn ranks_of_root_in_a_container_are_kept() {
    let cluster = shared::cluster();
    let session = cluster.open(ALICE, "rootranks", &["--root", "-c", "1", "--mem", "512M"]);
    session.ssh(["carrel run sh -c 'echo I am $(id -u)'"]).ok();
    let id = session.record()["job"]["id"].to_string();
    assert_eq!(kept(cluster, &id, "0"), "I am 0\n");
    let found = session.ssh(["find / -xdev -name 0.0 2>/dev/null; true"]).ok();
    assert_eq!(found, "", "it is out of his reach");
}
