//! Steps: `carrel run` inside jobs, from elsewhere, over the nodes of a gang, and with an allocation of its own.

use std::collections::BTreeSet;

use carrel_tests::cluster::{Cluster, Options};
use carrel_tests::terminal::Terminal;
use carrel_tests::user::{ALICE, BOB, ROOT};

use crate::shared::{self, SMALL};

fn lines(text: &str) -> BTreeSet<String> {
    text.lines().map(str::to_owned).collect()
}

/// In a session's shell: tasks, their places, their output whole and in order, their ends, and what they are told.
#[test]
fn a_session_runs_steps() {
    let cluster = shared::cluster();
    let session = cluster.open(ALICE, "steps", &["-c", "2", "--mem", "512M"]);
    let run = |command: &str| session.ssh([command.to_owned()]);
    let said = run("FOO=bar carrel run -n 2 -l sh -c 'echo $SLURM_PROCID/$SLURM_NTASKS $LOCAL_RANK $WORLD_SIZE $FOO $SLURM_CPUS_PER_TASK'").ok();
    assert_eq!(
        lines(&said),
        lines("0: 0/2 0 2 bar 1\n1: 1/2 1 2 bar 1"),
        "{said}"
    );
    let failed = run("carrel run -n 2 sh -c 'echo out; exit $((SLURM_PROCID * 5))'").run();
    failed.fails(5, &["task 1: Exited with exit code 5"]);
    run("carrel run sh -c 'kill -9 $$'")
        .run()
        .fails(137, &["task 0: Killed"]);
    run("carrel run no-such-program")
        .run()
        .fails(127, &["no-such-program"]);
    // Each task's output is whole and in order, however much there is of it.
    let much = run("carrel run -n 2 -l sh -c 'seq 1 20000' | sort -s -n -t: -k1,1 | md5sum").ok();
    let expected = run("(seq 1 20000 | sed 's/^/0: /'; seq 1 20000 | sed 's/^/1: /') | md5sum").ok();
    assert_eq!(much, expected);
    // Input: all of them, one of them, none.
    assert_eq!(run("echo in | carrel run -n 2 cat").ok(), "in\nin");
    assert_eq!(run("echo in | carrel run -n 2 -l -i 1 cat").ok(), "1: in");
    assert_eq!(run("echo in | carrel run -i none cat").ok(), "");
    // Files: each task's own, and one for all.
    run("carrel run -n 2 -o 'own-%j-%t.out' sh -c 'echo $SLURM_PROCID'").ok();
    let job = session.record()["job"]["id"].to_string();
    assert_eq!(cluster.read(ALICE, &format!("own-{job}-1.out")), "1\n");
    run("carrel run -n 2 --output=both.out sh -c 'echo x; echo y >&2'").ok();
    let both = cluster.read(ALICE, "both.out");
    assert_eq!((both.lines().count(), lines(&both)), (4, lines("x\ny")), "{both}");
    run("carrel run -o /nowhere/x true")
        .run()
        .fails(1, &["cannot write /nowhere/x"]);
    // Several programs in one step.
    run("printf '0 echo first %%t\\n* echo other %%t\\n' > programs").ok();
    let both = run("carrel run -n 2 --multi-prog programs").ok();
    assert_eq!(lines(&both), lines("first 0\nother 1"));
    run("carrel run --multi-prog nowhere")
        .run()
        .fails(1, &["cannot read nowhere"]);
    run("carrel run -r 1 true")
        .run()
        .fails(1, &["--relative=1 leaves none"]);
    // More than there is.
    run("carrel run -n 3 true")
        .run()
        .fails(1, &["3 tasks", "--overcommit"]);
    assert_eq!(run("carrel run -n 3 -O sh -c 'echo x'").ok(), "x\nx\nx");
    run("carrel run -N2 true").run().fails(1, &["2 nodes"]);
    run("carrel run -n 1 --gpus 1 true").run().fails(1, &["GPU"]);
    // Nothing else of one's own is reached from inside, and nothing of another's.
    let other = cluster.open(ALICE, "steps-other", &SMALL).record()["job"]["id"].to_string();
    run(&format!("carrel run --job {other} true"))
        .run()
        .fails(5, &["only its own job"]);
}

/// Steps of one job wait for each other's CPUs, but for those that are beside others; a step whose client is gone ends.
#[test]
fn steps_wait_for_each_other() {
    let cluster = shared::cluster();
    let session = cluster.open(ALICE, "waits", &["--cpus", "2", "--mem", "512M"]);
    let run = |command: &str| session.ssh([command.to_owned()]);
    let order = run(
        "carrel run -n 2 sh -c 'until [ -e waits-go ]; do sleep 0.1; done; echo first >> waits-order' & \
        sleep 1; carrel run sh -c 'echo second >> waits-order' 2> waits-said & \
        until grep -q 'needs 1 CPU' waits-said; do sleep 0.1; done; \
        carrel run --overlap sh -c 'echo beside >> waits-order'; touch waits-go; wait; cat waits-order",
    );
    assert_eq!(order.ok(), "beside\nfirst\nfirst\nsecond");
    run("carrel run -n 2 -I sleep 100 & sleep 1; carrel run -I true; code=$?; kill $!; exit $code")
        .run()
        .fails(1, &["needs 1 CPU"]);
    // Killed without a word: its tasks go with it, and what they held is free.
    run("T=7654; carrel run -n 2 sleep $T & until pgrep -f 'sleep 765[4]' > /dev/null; do sleep 0.1; done; kill -9 $!; \
        while pgrep -f 'sleep 765[4]' > /dev/null; do sleep 0.1; done; carrel run -I -n 2 true")
    .ok();
    // What runs its tasks is killed: they go with it, and the step says so.
    run(
        "carrel run -n 2 sh -c 'touch waits-up-$SLURM_PROCID; exec sleep 7656' & \
        until [ -e waits-up-0 ] && [ -e waits-up-1 ]; do sleep 0.1; done; \
        pkill -9 -f 'carrel step-nod[e]'; wait $!; code=$?; \
        while pgrep -f '^sleep 7656' > /dev/null; do sleep 0.1; done; exit $code",
    )
    .run()
    .fails(1, &["what ran the tasks ended with signal: 9"]);
    // Who reads slowly reads all of it, though the tasks are long over.
    let slow = run("carrel run seq 1 280000 | (sleep 4; md5sum)").ok();
    assert_eq!(slow, run("seq 1 280000 | md5sum").ok());
    // Signals go to the tasks; one's bad end is all tasks' end where that is asked for.
    run("carrel run -n 2 sh -c 'trap \"exit 9\" USR1; touch waits-$SLURM_PROCID; while :; do sleep 0.1; done' & \
        until [ -e waits-0 ] && [ -e waits-1 ]; do sleep 0.1; done; kill -USR1 $!; wait $!")
    .run()
    .fails(9, &["tasks 0-1: Exited with exit code 9"]);
    run("carrel run -n 2 -K sh -c '[ $SLURM_PROCID = 1 ] && exit 3; sleep 7655'")
        .run()
        .fails(143, &["task 1: Exited with exit code 3", "task 0: Terminated"]);
}

/// From the batch script of a gang, its tasks run in the containers of all nodes, each with its own GPUs.
#[test]
fn a_gangs_script_runs_steps_on_all_nodes() {
    let mut cluster = Cluster::start(&Options {
        hosts: vec![Some("hgx-h100"), Some("hgx-h100"), Some("hgx-h100")],
        ..Options::default()
    });
    let script = "#!/bin/sh\n\
        #SBATCH -N3 --ntasks-per-node=2 --gpus-per-node=4 -c1 -o gang.out\n\
        carrel run -l sh -c 'echo $SLURMD_NODENAME $SLURM_NODEID $SLURM_LOCALID $RANK/$WORLD_SIZE $SLURM_STEP_TASKS_PER_NODE'\n\
        carrel run -N3 -n3 --gpus-per-task 2 sh -c 'echo $CUDA_VISIBLE_DEVICES | tr , \"\\n\" | wc -l' > gpus.out\n\
        carrel run -r1 -N2 -n2 sh -c 'echo $SLURMD_NODENAME' | sort > later.out\n\
        carrel run -n1 -w n2 sh -c 'echo $SLURMD_NODENAME' > one.out\n\
        carrel run -n6 sh -c '[ $SLURM_PROCID = 5 ] && exit 7; exit 0'\n\
        code=$?\n\
        echo ready > gang.ready\n\
        carrel run -N3 -n3 sh -c 'touch up-$SLURM_PROCID; until [ -e gang.go ]; do sleep 0.1; done; echo over' > over.out\n\
        carrel run -n6 sh -c 'echo again' > again.out\n\
        carrel run -N2 -n2 -l seq 1 30000 | sort -n | md5sum > much.out\n\
        (seq 1 30000 | sed 's/^/0: /'; seq 1 30000 | sed 's/^/1: /') | sort -n | md5sum > expected.out\n\
        exit $code\n";
    cluster.write(ALICE, "gang.sh", script);
    let id = cluster.submit(ALICE, &["gang.sh"]);
    cluster.ready("the first steps are over", |this| {
        assert_ne!(
            this.show(&id)["state"],
            "FAILED",
            "{}",
            this.read(ALICE, "gang.out")
        );
        this.read(ALICE, "gang.ready") == "ready\n"
    });
    let said = cluster.read(ALICE, "gang.out");
    for rank in 0..6 {
        let (node, local) = (rank / 2, rank % 2);
        let line = format!("{rank}: n{node} {node} {local} {rank}/6 2(x3)\n");
        assert!(said.contains(&line), "{line}{said}");
    }
    assert!(said.contains("n2: task 5: Exited with exit code 7"), "{said}");
    assert_eq!(cluster.read(ALICE, "gpus.out"), "2\n2\n2\n");
    assert_eq!(cluster.read(ALICE, "one.out"), "n2\n");
    assert_eq!(cluster.read(ALICE, "later.out"), "n1\nn2\n");
    // From the laptop, and nobody else from theirs.
    let outside = cluster
        .carrel(
            ALICE,
            [
                "run",
                "--job",
                &id,
                "--overlap",
                "-N3",
                "-l",
                "sh",
                "-c",
                "echo $SLURMD_NODENAME",
            ],
        )
        .ok();
    assert_eq!(lines(&outside), lines("0: n0\n1: n1\n2: n2"), "{outside}");
    cluster
        .carrel(BOB, ["run", "--job", &id, "--overlap", "true"])
        .run()
        .fails(5, &[]);
    // A step that is under way outlives its broker, its gateway and the agents at both of its ends.
    cluster.ready("a step is under way", |this| {
        (0..3).all(|rank| this.sandbox().home(ALICE).join(format!("up-{rank}")).exists())
    });
    cluster.broker.kill9();
    cluster.gateway.kill9();
    cluster.agents[0].kill9();
    cluster.agents[1].kill9();
    cluster.broker.restart();
    cluster.gateway.restart();
    cluster.agents[0].restart();
    cluster.agents[1].restart();
    cluster.ready("the broker answers", |this| {
        this.carrel(ROOT, ["ps"]).run().code == 0
    });
    cluster.write(ALICE, "gang.go", "");
    let job = cluster.until(&id, "FAILED");
    assert_eq!(job["exit_code"], 7, "{job}: {}", cluster.read(ALICE, "gang.out"));
    assert_eq!(cluster.read(ALICE, "again.out"), "again\n".repeat(6));
    assert_eq!(cluster.read(ALICE, "over.out"), "over\n".repeat(3));
    let much = cluster.read(ALICE, "much.out");
    assert_eq!((much.len(), &much), (36, &cluster.read(ALICE, "expected.out")));
    cluster
        .carrel(ALICE, ["run", "--job", &id, "true"])
        .run()
        .fails(1, &["does not run any more"]);
}

/// Without an allocation one is asked for, and freed; at a terminal, and with Ctrl-C.
#[test]
fn a_step_alone_has_an_allocation_of_its_own() {
    let cluster = shared::cluster();
    let small = [&["run"][..], &SMALL].concat();
    let run = |args: &[&str]| cluster.carrel(ALICE, [&small[..], args].concat());
    let said = run(&[
        "-l",
        "sh",
        "-c",
        "echo $SLURM_PROCID of $SLURM_NTASKS on $SLURM_JOB_NUM_NODES",
    ])
    .run();
    assert_eq!((said.code, said.stdout.trim()), (0, "0: 0 of 1 on 1"), "{said}");
    run(&["-J", "ends-badly", "sh", "-c", "exit 4"])
        .run()
        .fails(4, &["Exited with exit code 4"]);
    let alloc = |name, script| {
        let args = [
            &["alloc", "--name", name][..],
            &SMALL,
            &["--", "sh", "-c", script],
        ]
        .concat();
        cluster.carrel(ALICE, args).run().code
    };
    assert_eq!(
        (alloc("ended-badly", "exit 4"), alloc("ended-well", "true")),
        (4, 0)
    );
    for (name, state, code) in [
        ("ends-badly", "FAILED", 4),
        ("ended-badly", "FAILED", 4),
        ("ended-well", "COMPLETED", 0),
    ] {
        // It is over when its node has said so.
        cluster.ready("it ends as its command did", |this| {
            let job = &this.json(ALICE, ["show", name])["job"];
            (&job["state"], &job["exit_code"]) == (&state.into(), &code.into())
        });
    }
    cluster
        .carrel(ALICE, ["run", "--gpus", "1000", "true"])
        .run()
        .fails(2, &[]);
    let mut terminal = Terminal::start(&run(&["--pty", "sh"]));
    terminal.ask("stty size; tty | cut -d/ -f1-3", "/dev/pts");
    terminal.ask("echo $((6 * 7))", "42");
    terminal.line("exit 6");
    assert_eq!(terminal.wait(), 6);
    let tasks = [
        "alloc",
        "-n",
        "2",
        "--mem",
        "512M",
        "--",
        "carrel",
        "run",
        "-l",
        "printenv",
        "SLURM_NTASKS",
    ];
    let said = cluster.carrel(ALICE, tasks).run();
    assert_eq!(
        (said.code, lines(&said.stdout)),
        (0, lines("0: 2\n1: 2")),
        "{said}"
    );
    let mut long = Terminal::start(&run(&["-J", "step-alone", "sh", "-c", "echo begun; sleep 100"]));
    long.expect("begun");
    long.write("\x03");
    long.expect("interrupt");
    assert_eq!(long.wait(), 130);
    cluster.ready("what it held is free", |this| {
        this.json(ALICE, ["show", "step-alone"])["state"] == "STOPPED"
    });
}
