//! Slurm's names: links to `carrel`, from outside and from inside of jobs, as the tools use them that know Slurm.

use std::path::PathBuf;

use carrel_tests::cluster::Cluster;
use carrel_tests::process::{Cmd, Output};
use carrel_tests::user::{ALICE, User};
use serde_json::Value;

use crate::shared::{self, SMALL};

/// The links, made by the program itself in a user's home.
struct Links<'a> {
    cluster: &'a Cluster,
    user: User,
    dir: PathBuf,
}

impl<'a> Links<'a> {
    fn install(cluster: &'a Cluster, user: User, name: &str) -> Self {
        let dir = cluster.sandbox().home(user).join(name);
        let done = cluster.carrel(user, ["slurm", "install"]).arg(&dir).run();
        assert_eq!(done.code, 0, "{done}");
        Self { cluster, user, dir }
    }

    fn cmd(&self, words: &[&str]) -> Cmd {
        let (name, args) = words.split_first().expect("a command");
        self.cluster.cmd(self.user, self.dir.join(name)).args(args)
    }

    /// With these variables in the environment.
    fn with(&self, env: &[(&str, &str)], words: &[&str]) -> Cmd {
        let (name, args) = words.split_first().expect("a command");
        self.cluster
            .cmd_with(self.user, env, self.dir.join(name))
            .args(args)
    }

    fn run(&self, words: &[&str]) -> Output {
        self.cmd(words).run()
    }

    #[track_caller]
    fn ok(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert_eq!(output.code, 0, "{words:?}: {output}");
        output.stdout
    }

    /// `sbatch` with small sizes: the job's number.
    #[track_caller]
    fn sbatch(&self, args: &[&str]) -> String {
        let said = self.ok(&[&["sbatch"][..], &SMALL, args].concat());
        let id = said.trim().strip_prefix("Submitted batch job ");
        id.unwrap_or_else(|| panic!("{said}")).to_owned()
    }

    /// Waits until sacct says so of a job's own line, as submitit asks it.
    #[track_caller]
    fn until(&self, label: &str, state: &str) {
        let mut last = String::new();
        self.cluster.ready(&format!("{label} is {state}"), |_| {
            let job = label.split('_').next().unwrap_or(label);
            last = self.ok(&["sacct", "-o", "JobID,State,NodeList", "--parsable2", "-j", job]);
            assert!(last.starts_with("JobID|State|NodeList\n"), "{last}");
            let mut lines = last.lines().map(|line| line.split('|').collect::<Vec<_>>());
            lines.any(|line| line[0] == label && line[1].starts_with(state))
        });
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn jobs_go_from_sbatch_to_sacct() {
    let cluster = shared::cluster();
    let slurm = Links::install(cluster, ALICE, "slurm-outside");
    let home = cluster.sandbox().home(ALICE);
    let id = slurm.sbatch(&["-J", "well", "--comment=x", "--wrap", "echo said"]);
    slurm.until(&id, "COMPLETED");
    let output = std::fs::read_to_string(home.join(format!("slurm-{id}.out"))).expect("sbatch's usual file");
    assert_eq!(output, "said\n");
    let rows = slurm.ok(&["sacct", "-nP", "-j", &id, "--format=jobid,jobname,state,exitcode"]);
    assert_eq!(
        rows,
        format!("{id}|well|COMPLETED|0:0\n{id}.batch|batch|COMPLETED|0:0\n")
    );
    // Snakemake: what it has written there, and which of up to ten steps has failed.
    let about = |of: &str| slurm.ok(&["sacct", "-nP", "-j", of, "--format=jobid,comment,reason"]);
    assert_eq!(about(&id), format!("{id}|x|None\n{id}.batch||\n"));
    assert_eq!(about(&format!("{id}.batch")), format!("{id}.batch||\n"));
    assert_eq!(about(&format!("{id}.0")), "");
    let config = slurm.ok(&["scontrol", "show", "config"]);
    assert!(config.contains("MaxArraySize            = 4000001\n"), "{config}");
    // parsl and nextflow.
    let rows = slurm.ok(&[
        "sacct",
        "-X",
        "--noheader",
        "--format=jobid,state",
        &format!("--job={id}"),
    ]);
    assert_eq!(
        rows.split_whitespace().collect::<Vec<_>>(),
        [id.as_str(), "COMPLETED"]
    );
    let listed = slurm.ok(&["squeue", "--noheader", "-o", "%i %t", "-t", "all", "-u", "alice"]);
    assert!(listed.lines().any(|line| line == format!("{id} CD")), "{listed}");
    let shown = slurm.ok(&["scontrol", "show", "job", &id, "-o"]);
    assert!(shown.contains(&format!("JobId={id} JobName=well ")), "{shown}");
    assert!(shown.contains(" JobState=COMPLETED Reason=None "), "{shown}");
    assert!(shown.contains("UserId=alice("), "{shown}");
    let document = json(&slurm.ok(&["sacct", "--json", "-j", &id]));
    assert_eq!(
        document["jobs"][0]["state"]["current"],
        serde_json::json!(["COMPLETED"]),
        "{document}"
    );

    let failing = slurm.sbatch(&["--wrap", "exit 3"]);
    slurm.until(&failing, "FAILED");
    let rows = slurm.ok(&["sacct", "-nPX", "-j", &failing, "-o", "state,exitcode"]);
    assert_eq!(rows, "FAILED|3:0\n");

    // What is over runs once more.
    slurm.ok(&["scontrol", "requeue", &failing]);
    cluster.ready("it has run again", |_| {
        let shown = slurm.ok(&["scontrol", "show", "job", &failing, "-o"]);
        shown.contains(" Restarts=1 ") && shown.contains("JobState=FAILED")
    });
}

/// What the environment asks for where neither the command line nor the script says it, of all three commands.
#[test]
fn the_environment_asks_as_the_man_pages_say() {
    let cluster = shared::cluster();
    let slurm = Links::install(cluster, ALICE, "slurm-environment");
    let env = [
        ("SBATCH_EXCLUSIVE", ""),
        ("SBATCH_TIMELIMIT", "7"),
        ("SBATCH_JOB_NAME", "asked"),
        ("SBATCH_SIGNAL", "USR1@30"),
        ("SBATCH_CONSTRAINT", "none,such"),
        ("SBATCH_QOS", ""),
    ];
    // It never starts: it is looked at, and goes.
    cluster.write(
        ALICE,
        "asked.sh",
        "#!/bin/sh\n#SBATCH --hold -C ''\n#SBATCH --time=8\ntrue\n",
    );
    let id = slurm.with(&env, &["sbatch", "--parsable", "asked.sh"]).ok();
    let job = cluster.show(id.trim());
    assert_eq!(job["request"]["exclusive"], true, "{job}");
    assert_eq!(
        (&job["name"], &job["time_limit_seconds"]),
        (&"asked".into(), &480.into())
    );
    slurm.ok(&["scancel", id.trim()]);
    // What has no name of its own is called by the command's.
    let script = "#!/bin/sh\n#SBATCH -H\n#SBATCH --quiet\ntrue\n";
    let said = slurm.cmd(&["sbatch"]).stdin(script).ok();
    assert_eq!(said, "");
    let jobs = slurm.ok(&["squeue", "--me", "-h", "-n", "sbatch", "-o", "%i"]);
    slurm.ok(&["scancel", jobs.trim()]);
    let wrong = [("SBATCH_GPUS", "many")];
    let refused = slurm.with(&wrong, &["sbatch", "--hold", "--wrap", "true"]).run();
    assert!(
        refused.code == 1 && refused.stderr.contains("the variable SBATCH_GPUS: "),
        "{refused}"
    );

    let told = "echo $SLURM_GPUS_ON_NODE $(squeue -h -j $SLURM_JOB_ID -o %l)";
    let env = [
        ("SALLOC_GRES", "gpu:1"),
        ("SALLOC_TIMELIMIT", "3"),
        ("SLURM_TIMELIMIT", "4"),
    ];
    let command = [&SMALL[..], &["sh", "-c", told]].concat();
    let said = slurm.with(&env, &[&["salloc"][..], &command].concat()).ok();
    assert_eq!(said, "1 3:00");
    let said = slurm
        .with(&env, &[&["salloc", "-t", "5", "--gpus=2"][..], &command].concat())
        .ok();
    assert_eq!(said, "2 5:00");
    let said = slurm
        .with(
            &env,
            &[
                &["srun", "-n1"][..],
                &SMALL,
                &["sh", "-c", "squeue -h -j $SLURM_JOB_ID -o %l"],
            ]
            .concat(),
        )
        .ok();
    assert_eq!(said, "4:00");
}

#[test]
fn what_is_wrong_is_said_as_slurm_says_it() {
    let cluster = shared::cluster();
    let slurm = Links::install(cluster, ALICE, "slurm-wrong");
    for (words, said) in [
        (
            &["sbatch", "--nonsense", "x.sh"][..],
            "sbatch: error: unrecognized option '--nonsense'",
        ),
        (
            &["squeue", "--nonsense"],
            "squeue: error: unrecognized option '--nonsense'",
        ),
        (
            &["squeue", "-j", "99999999"],
            "slurm_load_jobs error: Invalid job id specified",
        ),
        (
            &["sacct", "-o", "nonsense"],
            "Invalid field requested: \"nonsense\"",
        ),
        (
            &["scancel", "99999999"],
            "scancel: error: Kill job error on job id 99999999: Invalid job id specified",
        ),
        (&["scancel"], "No job identification provided"),
        (
            &["scontrol", "show", "job", "99999999"],
            "Invalid job id specified",
        ),
        (&["sbatch", "--wrap", "true", "-N", "999"], "sbatch: error: "),
    ] {
        let output = slurm.run(words);
        assert_eq!(output.code, 1, "{words:?}: {output}");
        assert!(output.stderr.contains(said), "{words:?}: {output}");
        assert_eq!(output.stdout, "", "{words:?}: {output}");
    }
    let noted = slurm.run(&["sinfo", "--hide", "-h", "-p", "all", "-o", "%P %a %l %D %t %N"]);
    // Who reads both streams finds nothing that Slurm would not say.
    assert_eq!(noted.stderr, "", "{noted}");
    assert!(
        noted.stdout.lines().all(|line| line.starts_with("all* up ")),
        "{noted}"
    );
    let named = slurm.ok(&[
        "sacctmgr",
        "-nP",
        "show",
        "user",
        "alice",
        "format=user,adminlevel",
    ]);
    assert_eq!(named, "alice|None\n");
    let place = slurm.ok(&[
        "sacctmgr",
        "-nP",
        "-s",
        "list",
        "user",
        "alice",
        "format=account%256,qos",
    ]);
    assert_eq!(place, "default|normal\n");
    let qos = slurm.ok(&["sacctmgr", "-P", "list", "qos", "format=Name,Priority"]);
    assert!(qos.starts_with("Name|Priority\nnormal|"), "{qos}");
    let writes = slurm.run(&["sacctmgr", "-i", "add", "user", "bob", "account=physics"]);
    assert_eq!(writes.code, 1, "{writes}");
    assert!(
        writes.stderr.contains("`carrel admin user add` does it"),
        "{writes}"
    );
    assert!(slurm.ok(&["sinfo", "--version"]).starts_with("slurm "));
    assert!(slurm.ok(&["squeue", "--help"]).contains("--noheader"));
    let names = slurm.ok(&["scontrol", "show", "hostnames", "n[0-1,7]"]);
    assert_eq!(names, "n0\nn1\nn7\n");
    let nodes = slurm.ok(&["sinfo", "-hN", "-p", "all", "-o", "%N %c"]);
    assert_eq!(nodes.lines().count(), 2, "{nodes}");
    assert!(
        slurm
            .ok(&["scontrol", "show", "node", "n0"])
            .starts_with("NodeName=n0 ")
    );
    assert!(
        slurm
            .ok(&["scontrol", "show", "partition"])
            .contains("PartitionName=all")
    );
    for words in [
        &["sshare", "-P"][..],
        &[
            "sacctmgr",
            "-nP",
            "show",
            "assoc",
            "where",
            "user=alice",
            "format=account,user,qos",
        ],
        &["sprio"],
        &["squeue", "--json"],
        &["sinfo", "--json"],
    ] {
        slurm.ok(words);
    }
}

#[test]
fn an_array_is_listed_held_and_ended_task_by_task() {
    let cluster = shared::cluster();
    let slurm = Links::install(cluster, ALICE, "slurm-array");
    let id = slurm.sbatch(&["-J", "slurm-sweep", "--array=0-7%1", "--wrap", "exec sleep 600"]);
    let listed = |format: &str| slurm.ok(&["squeue", "-h", "-j", &id, "-o", format]);
    slurm.until(&format!("{id}_0"), "RUNNING");
    cluster.ready("the others wait", |_| {
        listed("%i %t %r")
            .lines()
            .any(|line| line == format!("{id}_[1-7%1] PD JobArrayTaskLimit"))
    });
    assert_eq!(
        slurm
            .ok(&["squeue", "-hr", "-j", &id, "-o", "%i"])
            .lines()
            .count(),
        8
    );
    slurm.ok(&[
        "scontrol",
        "update",
        &format!("JobId={id}"),
        "ArrayTaskThrottle=2",
    ]);
    slurm.until(&format!("{id}_1"), "RUNNING");
    let task = format!("{id}_1");
    slurm.ok(&[
        "scontrol",
        "update",
        &format!("JobId={task}"),
        "TimeLimit=00:07:00",
    ]);
    let limits = slurm.ok(&["squeue", "-h", "-j", &task, "-o", "%i %l"]);
    assert_eq!(limits, format!("{task} 7:00\n"), "one that runs");
    slurm.ok(&["scancel", &format!("{id}_[3-4]"), &format!("{id}_0")]);
    slurm.until(&format!("{id}_0"), "CANCELLED by ");
    slurm.until(&format!("{id}_2"), "RUNNING");
    slurm.ok(&["scontrol", "hold", &id]);
    cluster.ready("what waits is held", |_| {
        listed("%i %r")
            .lines()
            .any(|line| line == format!("{id}_[5-7%2] JobHeldUser"))
    });
    slurm.ok(&["scontrol", "release", &id]);
    slurm.ok(&["scancel", "--name=slurm-sweep", "--me"]);
    cluster.ready("nothing is left", |_| listed("%i").is_empty());
}

/// `scancel --signal` reaches what a script has started, once, and ends nothing by itself.
#[test]
fn a_signal_reaches_a_job_that_runs() {
    let cluster = shared::cluster();
    let slurm = Links::install(cluster, ALICE, "slurm-signal");
    let home = cluster.sandbox().home(ALICE);
    let script = "#!/bin/bash\nbash -c 'trap \"echo heard >>heard.txt\" USR1; echo ready >ready.txt; \
                  while [ ! -e enough.txt ]; do sleep 0.05; done'\n";
    std::fs::write(home.join("signal.sh"), script).expect("own file");
    let id = slurm.sbatch(&["signal.sh"]);
    cluster.ready("it listens", |_| home.join("ready.txt").exists());
    let heard = |count: usize| {
        let file = home.join("heard.txt");
        cluster.ready(&format!("it has heard {count}"), |_| {
            std::fs::read_to_string(&file).is_ok_and(|text| text.lines().count() == count)
        });
    };
    slurm.ok(&["scancel", "--signal=USR1", &id]);
    heard(1);
    slurm.ok(&["scancel", "-s", "USR1", &id]);
    heard(2);
    std::fs::write(home.join("enough.txt"), "").expect("own file");
    slurm.until(&id, "COMPLETED");
    heard(2);
    let over = slurm.run(&["scancel", "--signal=USR1", &id]);
    assert!(over.stderr.contains("does not run"), "{over}");
}

/// In the container they are on PATH: a job submits another, waits for it, sees both and no more, and runs once again.
#[test]
fn a_job_works_with_slurm_s_names_from_inside() {
    let cluster = shared::cluster();
    let slurm = Links::install(cluster, ALICE, "slurm-inside");
    let home = cluster.sandbox().home(ALICE);
    let beside = slurm.sbatch(&["-J", "beside", "--wrap", "exec sleep 600"]);
    let script = format!(
        "#!/bin/bash\n\
         exec >inside-$SLURM_RESTART_COUNT.txt 2>&1\n\
         set -x\n\
         if [ $SLURM_RESTART_COUNT = 1 ]; then exit 0; fi\n\
         child=$(sbatch --parsable -c1 --mem 64M -J child --wrap 'echo child')\n\
         while [ \"$(sacct -nXP -j $child -o state)\" != COMPLETED ]; do sleep 0.1; done\n\
         echo seen $(sacct -nXP -S now-1day -o jobname | sort)\n\
         echo queue $(squeue -h -o %j)\n\
         sbatch --account=elsewhere --wrap true; echo account $?\n\
         scancel {beside}; echo beside $?\n\
         scontrol show hostnames\n\
         echo nodes $(sinfo -hN -o '%N %t' | sort -u | sed 's/ .*//')\n\
         echo node $(scontrol show node n0 | head -n1)\n\
         echo partition $(scontrol -o show partition | sed 's/ .*//')\n\
         echo launched $(srun --propagate=NONE -N1-1 -n1 printenv SLURM_LAUNCH_NODE_IPADDR | grep -c '[.]')\n\
         scontrol requeue $SLURM_JOB_ID\n\
         sleep 600\n"
    );
    std::fs::write(home.join("inside.sh"), script).expect("own file");
    let id = slurm.sbatch(&["-J", "parent", "inside.sh"]);
    cluster.ready("it has run again", |_| {
        let shown = slurm.ok(&["scontrol", "show", "job", &id, "-o"]);
        shown.contains(" Restarts=1 ") && shown.contains("JobState=COMPLETED")
    });
    let said = std::fs::read_to_string(home.join("inside-0.txt")).expect("what it said");
    for line in [
        "seen child parent",
        "queue parent",
        "account 1",
        "beside 1",
        "nodes n0 n1",
        "partition PartitionName=all",
        "launched 1",
    ] {
        assert!(said.lines().any(|one| one == line), "{line}: {said}");
    }
    assert!(said.contains("\nnode NodeName=n0 "), "{said}");
    assert!(said.contains("no wider than itself"), "{said}");
    assert!(said.contains("can be reached"), "{said}");
    slurm.ok(&["scancel", &beside]);
}
