//! Whole nodes, and jobs of unlike components, as scripts for Slurm ask for them.

use carrel_tests::cluster::{Cluster, Options};
use carrel_tests::user::{ALICE, BOB};

use crate::shared::SMALL;

/// A job on a whole node has all of it, nothing else starts there, and what is used in part is not given as a whole.
#[test]
fn a_whole_node_is_one_jobs() {
    let cluster = Cluster::start(&Options {
        hosts: vec![Some("hgx-h100"), Some("hgx-h100")],
        ..Options::default()
    });
    let beside = cluster.open(BOB, "beside", &[&["--gpus", "1"][..], &SMALL].concat());
    let record = beside.record();
    let taken = record["job"]["nodes"][0]["node"]
        .as_str()
        .expect("a node")
        .to_owned();
    cluster.write(
        ALICE,
        "whole.sh",
        "#!/bin/sh\n\
         #SBATCH --exclusive --gpus-per-node=2 -o whole.out\n\
         echo $SLURMD_NODENAME $SLURM_CPUS_ON_NODE $SLURM_GPUS_ON_NODE\n\
         until [ -e whole.go ]; do sleep 0.1; done\n",
    );
    let whole = cluster.submit(ALICE, &["whole.sh"]);
    let record = cluster.until(&whole, "RUNNING");
    let other = if taken == "n0" { "n1" } else { "n0" };
    assert_eq!(record["nodes"][0]["node"], other);
    assert_eq!(record["nodes"][0]["gpus"].as_array().map(Vec::len), Some(8));
    assert_eq!(record["request"]["exclusive"], true);
    cluster.ready("it says what it has", |this| {
        this.read(ALICE, "whole.out") == format!("{other} 104 8\n")
    });
    // The rest of the other node is for whoever does not ask for all of it.
    let second = cluster.submit(ALICE, &["--exclusive", "--gpus-per-node", "1", "--", "true"]);
    let waits = cluster.until(&second, "PENDING");
    let why = waits["reason"].as_str().unwrap_or_default();
    assert!(why.contains("not idle on 2 nodes"), "{why}");
    let small = cluster.submit(
        ALICE,
        &[&["--gpus", "1", "-t", "1"][..], &SMALL, &["--", "true"]].concat(),
    );
    assert_eq!(
        cluster.until(&small, "COMPLETED")["nodes"][0]["node"],
        taken.as_str()
    );
    let there = cluster.submit(ALICE, &[&["-w", other][..], &SMALL, &["--", "true"]].concat());
    cluster.until(&there, "PENDING");
    // All of a node's memory is nobody else's either.
    let memory = cluster.submit(ALICE, &["-w", &taken, "--mem=0", "-c1", "--", "true"]);
    let waits = cluster.until(&memory, "PENDING");
    let why = waits["reason"].as_str().unwrap_or_default();
    assert!(why.contains("not all of the memory free"), "{why}");
    cluster
        .carrel(ALICE, ["submit", "--exclusive", "--gpus", "0.5", "--", "true"])
        .run()
        .fails(2, &["whole nodes"]);
    cluster.write(ALICE, "whole.go", "");
    for id in [&whole, &there, &second] {
        cluster.until(id, "COMPLETED");
    }
    drop(beside);
    cluster.until(&memory, "COMPLETED");
}

/// A script's components get nodes of their own; its steps run on one, on several, or a program on each.
#[test]
fn a_script_of_components_runs_steps_on_each() {
    let cluster = Cluster::start(&Options {
        hosts: vec![Some("hgx-h100"), Some("hgx-h100"), None],
        ..Options::default()
    });
    cluster.write(ALICE, "coupled.sh", "#!/bin/sh\n\
         #SBATCH -J coupled -n1 -c2 --mem=512M -o coupled.out\n\
         #SBATCH hetjob\n\
         #SBATCH -N2 --ntasks-per-node=1 --gpus-per-node=2 -c1 --mem=512M\n\
         echo $SLURM_HET_SIZE $SLURM_JOB_NODELIST_HET_GROUP_0 $SLURM_JOB_NODELIST_HET_GROUP_1 $SLURM_NTASKS_HET_GROUP_1\n\
         srun -l sh -c 'echo $SLURMD_NODENAME' > own.out\n\
         srun -l --het-group=1 sh -c 'echo $SLURMD_NODENAME $SLURM_GPUS_ON_NODE' > other.out\n\
         srun -l --het-group=0,1 sh -c 'echo $SLURMD_NODENAME $SLURM_NTASKS' > both.out\n\
         srun -l sh -c 'echo server $SLURMD_NODENAME $SLURM_PROCID' : sh -c 'echo worker $SLURMD_NODENAME $SLURM_PROCID' > programs.out\n\
         srun --output=a-\"$SLURM_JOB_ID\".out --error=a.err --wait=60 --kill-on-bad-exit=1 --export=ALL,WHO=a \
           sh -c 'echo $WHO $SLURMD_NODENAME; echo of a >&2' : \
           --output=b-\"$SLURM_JOB_ID\".out --error=b.err --wait=60 --kill-on-bad-exit=1 --export=ALL,WHO=b \
           sh -c 'echo $WHO $SLURMD_NODENAME; echo of b >&2'\n\
         srun --het-group=2 true 2> wrong.out; echo $? >> wrong.out\n\
         srun --mem=900G true 2> memory.out; echo $? >> memory.out\n",
    );
    let id = cluster.submit(ALICE, &["coupled.sh"]);
    let record = cluster.until(&id, "COMPLETED");
    assert_eq!(record["request"]["more"][0]["nodes"], 2);
    assert_eq!(cluster.read(ALICE, "coupled.out"), "2 n2 n[0-1] 2\n");
    assert_eq!(cluster.read(ALICE, "own.out"), "0: n2\n");
    let sorted = |name: &str| {
        let text = cluster.read(ALICE, name);
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted("other.out"), ["0: n0 2", "1: n1 2"]);
    assert_eq!(sorted("both.out"), ["0: n2 3", "1: n0 3", "2: n1 3"]);
    assert_eq!(
        sorted("programs.out"),
        ["0: server n2 0", "1: worker n0 1", "2: worker n1 2"]
    );
    // Each program with files of its own, as TorchX has them.
    assert_eq!(sorted(&format!("a-{id}.out")), ["a n2"]);
    assert_eq!(sorted(&format!("b-{id}.out")), ["b n0", "b n1"]);
    assert_eq!(
        (sorted("a.err"), sorted("b.err").len()),
        (vec!["of a".to_owned()], 2)
    );
    let wrong = cluster.read(ALICE, "wrong.out");
    assert!(
        wrong.contains("the job has 2 components") && wrong.ends_with("\n1\n"),
        "{wrong}"
    );
    let memory = cluster.read(ALICE, "memory.out");
    assert!(
        memory.contains("Memory required by task is not available") && memory.ends_with("\n1\n"),
        "{memory}"
    );
    // The same on the command line; what is of the whole job is said once.
    let line = [
        "-n1",
        "-c1",
        "--mem=512M",
        "-o",
        "line.out",
        ":",
        "-c2",
        "--mem=512M",
        "--",
        "sh",
        "-c",
        "echo $SLURM_HET_SIZE :",
    ];
    let id = cluster.submit(ALICE, &line);
    cluster.until(&id, "COMPLETED");
    assert_eq!(cluster.read(ALICE, "line.out"), "2 :\n");
    cluster
        .carrel(ALICE, ["submit", "-t", "5", ":", "-t", "6", "--", "true"])
        .run()
        .fails(2, &["--time", "component 1"]);
    // With an allocation of its own.
    let said = cluster
        .carrel(
            ALICE,
            [
                "run",
                "-l",
                "-c1",
                "--mem=512M",
                "echo",
                "a",
                ":",
                "-c1",
                "--mem=512M",
                "echo",
                "b",
            ],
        )
        .ok();
    let mut lines: Vec<&str> = said.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["0: a", "1: b"]);
    // In an allocation that somebody sits in front of.
    let options = "-c1 --mem=512M : -N2 --ntasks-per-node=1 -c1 --mem=512M --gpus-per-node=1";
    let steps = "echo $SLURM_HET_SIZE $SLURM_JOB_NODELIST_HET_GROUP_0 $SLURM_JOB_NODELIST_HET_GROUP_1; \
        srun -l --het-group=1 sh -c 'echo $SLURMD_NODENAME $SLURM_GPUS_ON_NODE'";
    for verb in [&["alloc"][..], &["slurm", "salloc"]] {
        let words = [verb, &options.split(' ').collect::<Vec<_>>()].concat();
        // Only of our own a command stands behind "--" alone.
        let said = cluster.carrel(ALICE, words).args(["--", "sh", "-c", steps]).ok();
        let mut lines: Vec<&str> = said.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["0: n0 1", "1: n1 1", "2 n2 n[0-1]"], "{verb:?}");
    }
}
