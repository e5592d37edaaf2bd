//! Job arrays from the command line to the containers and back: tasks, throttle, ranges, dependencies, restarts.

use std::collections::BTreeSet;

use carrel_tests::cluster::{Cluster, Options};
use carrel_tests::user::{ALICE, BOB, ROOT};

use crate::shared::{self, SMALL};

/// What a list calls the jobs of an array, with their states.
fn listed(cluster: &Cluster, verb: &[&str], array: &str) -> BTreeSet<(String, String)> {
    let jobs = cluster.json(ROOT, verb);
    let of = jobs.as_array().expect("a list").iter();
    let of = of.filter(|job| job["array_job_id"].as_u64().map(|id| id.to_string()).as_deref() == Some(array));
    of.map(|job| {
        let tasks = match (job["array_task_id"].as_u64(), job["array_tasks"].as_str()) {
            (Some(task), _) => task.to_string(),
            (None, Some(tasks)) => tasks.to_owned(),
            (None, None) => panic!("no task: {job}"),
        };
        (tasks, job["state"].as_str().unwrap_or_default().to_owned())
    })
    .collect()
}

fn pairs(expected: &[(&str, &str)]) -> BTreeSet<(String, String)> {
    let pairs = expected.iter();
    pairs.map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
}

/// Two run at once; some are cancelled; the broker dies in the midst; and others wait for all of it.
#[test]
fn an_array_runs_task_by_task() {
    let mut cluster = Cluster::start(&Options::default());
    let line = "touch runs.$SLURM_ARRAY_TASK_ID; ls runs.* | wc -l >> at-once; \
        echo $SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID $SLURM_ARRAY_TASK_COUNT $SLURM_ARRAY_TASK_MIN \
        $SLURM_ARRAY_TASK_MAX $SLURM_ARRAY_TASK_STEP; until [ -e go ]; do sleep 0.1; done; \
        rm runs.$SLURM_ARRAY_TASK_ID";
    let id = cluster.submit_small(ALICE, &["--array=0-5%2", "--gpus", "1", "--wrap", line]);
    cluster.until(&format!("{id}_0"), "RUNNING");
    cluster.until(&format!("{id}_1"), "RUNNING");
    let running = [("0", "RUNNING"), ("1", "RUNNING"), ("2-5", "PENDING")];
    assert_eq!(listed(&cluster, &["ps", "-a"], &id), pairs(&running));
    let shown = cluster.carrel(ALICE, ["ps"]).ok();
    for label in [format!("{id}_0 "), format!("{id}_1 "), format!("{id}_[2-5%2] ")] {
        assert!(shown.contains(&label), "{label}: {shown}");
    }
    let queue = cluster.carrel(ALICE, ["queue"]).ok();
    assert!(queue.contains("JobArrayTaskLimit"), "{queue}");
    let one = cluster.show(&format!("{id}_1"));
    assert_ne!(one["id"].to_string(), id, "it has a number of its own: {one}");
    assert_eq!(one["array_throttle"], 2, "{one}");
    let all = cluster.submit_small(ALICE, &["-d", &format!("afterany:{id}"), "--wrap", "echo all"]);
    let ok = cluster.submit_small(
        ALICE,
        &["-d", &format!("afterok:{id}_[0-1]"), "--wrap", "echo two"],
    );
    cluster
        .carrel(BOB, ["cancel", &format!("{id}_3")])
        .run()
        .fails(5, &[]);
    cluster.carrel(ALICE, ["cancel", &format!("{id}_[3-4]")]).ok();
    let left = [("0", "RUNNING"), ("1", "RUNNING"), ("2,5", "PENDING")];
    assert_eq!(listed(&cluster, &["ps", "-a"], &id), pairs(&left));
    cluster.broker.kill9();
    cluster.broker.restart();
    cluster.ready("the broker answers", |this| {
        this.carrel(ROOT, ["ps"]).run().code == 0
    });
    assert_eq!(listed(&cluster, &["ps", "-a"], &id), pairs(&left));
    cluster.write(ALICE, "go", "");
    cluster.until(&all, "COMPLETED");
    cluster.until(&ok, "COMPLETED");
    let over = [
        ("0", "COMPLETED"),
        ("1", "COMPLETED"),
        ("2", "COMPLETED"),
        ("3-4", "CANCELLED"),
        ("5", "COMPLETED"),
    ];
    // Whoever reaches others' jobs and names them means them.
    let history = ["history", &id];
    assert_eq!(listed(&cluster, &history, &id), pairs(&over));
    let table = cluster.carrel(ROOT, history).ok();
    assert!(table.contains(&format!("{id}_[3-4] ")), "{table}");
    let two = ["history", "-a", &format!("{id}_2"), &format!("{id}_4")];
    assert_eq!(
        listed(&cluster, &two, &id),
        pairs(&[("2", "COMPLETED"), ("3-4", "CANCELLED")])
    );
    for task in [0, 1, 2, 5] {
        let said = cluster.read(ALICE, &format!("carrel-{id}_{task}.out"));
        assert_eq!(said, format!("{id} {task} 6 0 5 1\n"));
        assert_eq!(
            cluster
                .carrel(ALICE, ["logs", &format!("{id}_{task}")])
                .run()
                .stdout,
            said
        );
    }
    let numbers = cluster.read(ALICE, "at-once");
    let numbers: Vec<u32> = numbers
        .lines()
        .map(|line| line.trim().parse().expect(line))
        .collect();
    assert_eq!(numbers.len(), 4, "each ran once");
    assert!(numbers.iter().all(|count| *count <= 2), "{numbers:?}");
    let show = cluster.carrel(ROOT, ["show", &id]).ok();
    assert!(
        show.contains("6 tasks, 2 at once: 4 ended well, 2 did not"),
        "{show}"
    );
}

#[test]
fn arrays_are_waited_for_and_depended_on() {
    let cluster = shared::cluster();
    let wait = |args: &[&str]| {
        cluster
            .carrel(ALICE, [&["submit", "-W"][..], &SMALL, args].concat())
            .run()
    };
    let failed = wait(&[
        "--array=1,3-5:2",
        "-o",
        "w-%A-%a.out",
        "--wrap",
        "exit $SLURM_ARRAY_TASK_ID",
    ]);
    assert_eq!(failed.code, 5, "the highest of all: {failed}");
    assert!(failed.stderr.contains("3 of its 3 tasks"), "{failed}");
    assert_eq!(wait(&["-a", "2-3", "--wrap", "true"]).code, 0);
    // Each task after its like, from a script and by the environment.
    let script = "#!/bin/sh\n#SBATCH --array=1-2\n#SBATCH --hold\n#SBATCH -o first-%a.out\necho $SLURM_ARRAY_TASK_ID\n";
    let stdin = [&["submit", "--parsable"][..], &SMALL].concat();
    let first = cluster
        .carrel(ALICE, stdin)
        .stdin(script)
        .run()
        .stdout
        .trim()
        .to_owned();
    let second = cluster.cmd_with(
        ALICE,
        &[("SBATCH_ARRAY_INX", "1-2")],
        cluster.sandbox().program("carrel"),
    );
    let after = format!("aftercorr:{first}");
    let args = [
        &["submit", "--parsable", "-d", &after][..],
        &SMALL,
        &["--wrap", "cat first-$SLURM_ARRAY_TASK_ID.out"],
    ];
    let second = second.args(args.concat()).run().stdout.trim().to_owned();
    cluster.carrel(ALICE, ["release", &format!("{first}_2")]).ok();
    cluster.until(&format!("{second}_2"), "COMPLETED");
    assert_eq!(cluster.carrel(ALICE, ["logs", &format!("{second}_2")]).ok(), "2");
    assert_eq!(cluster.show(&format!("{second}_1"))["state"], "PENDING");
    cluster.carrel(ALICE, ["release", &first]).ok();
    cluster.until(&format!("{second}_1"), "COMPLETED");
}

#[test]
fn what_is_no_array_is_refused_in_one_sentence() {
    let cluster = shared::cluster();
    let submit = |array: &str| {
        let option = format!("--array={array}");
        cluster.carrel(ALICE, ["submit", &option, "--wrap", "true"]).run()
    };
    for (array, part) in [
        ("", "zero tasks"),
        ("5-1", "5-1 runs backwards"),
        ("0-9:0", "1 at least"),
        ("0-9%x", "may run at once"),
        ("a", "no index"),
        ("0-100001", "index 100001 is beyond 100000"),
    ] {
        let refused = submit(array);
        assert!(
            refused.code != 0 && refused.stderr.contains(part),
            "{array}: {refused}"
        );
    }
    for (args, code, part) in [
        (["cancel", "4711_3"], 3, "there is no array 4711"),
        (["cancel", "4711_[3"], 2, "12_[3-7,9]"),
        (["logs", "x_3"], 2, "12_3"),
    ] {
        cluster.carrel(ALICE, args).run().fails(code, &[part]);
    }
}
