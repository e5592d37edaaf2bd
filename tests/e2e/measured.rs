//! CPU time and memory of jobs: measured on their nodes, shown while they run and after, whoever dies meanwhile.

use carrel_tests::cluster::{Cluster, Options};
use carrel_tests::image::Image;
use carrel_tests::user::{ALICE, ROOT};
use serde_json::Value;

use crate::shared::{self, SMALL};

const MIB: u64 = 1 << 20;
/// What the job has of memory, MiB, and each time of CPU time, seconds, at least.
const HAS: u64 = 200;
const BURNS: f64 = 2.0;

/// Has so much, and goes on from step to step when files tell it to.
const JOB: &str = r#"
import os, time

def told(name):
    while not os.path.exists(os.path.expanduser("~/measured-" + name)):
        time.sleep(0.05)

def burn():
    until = time.process_time() + 2
    while time.process_time() < until:
        pass

memory = b"x" * (200 << 20)
burn()
told("less")
del memory
told("more")
burn()
told("last")
burn()
open(os.path.expanduser("~/measured-done"), "w").close()
"#;

/// What a job has burnt, seconds.
fn burnt(job: &Value) -> f64 {
    job["cpu_user_seconds"].as_f64().unwrap_or(0.0) + job["cpu_system_seconds"].as_f64().unwrap_or(0.0)
}

fn peak(job: &Value) -> u64 {
    job["memory_peak_bytes"].as_u64().unwrap_or(0)
}

/// Fields of one line as Slurm's command prints them, by Slurm's name.
fn slurm(cluster: &Cluster, words: &[&str]) -> Vec<Vec<String>> {
    let (name, args) = words.split_first().expect("a command");
    let dir = cluster.sandbox().home(ALICE).join("measured-slurm");
    if !dir.exists() {
        cluster.carrel(ALICE, ["slurm", "install"]).arg(&dir).ok();
    }
    let output = cluster.cmd(ALICE, dir.join(name)).args(args).run();
    assert_eq!(output.code, 0, "{words:?}: {output}");
    let lines = output.stdout.lines();
    lines
        .map(|line| line.split('|').map(str::to_owned).collect())
        .collect()
}

/// Seconds of "1-02:03:04", "02:03:04", "03:04.567".
fn seconds(text: &str) -> f64 {
    let (days, rest) = text.split_once('-').unwrap_or(("0", text));
    let number = |text: &str| {
        text.parse::<f64>()
            .unwrap_or_else(|_| panic!("{text:?} is no time"))
    };
    let within = rest.split(':').fold(0.0, |sum, part| sum * 60.0 + number(part));
    number(days) * 86_400.0 + within
}

/// Bytes of "1234K", "3M", "77".
fn bytes(text: &str) -> u64 {
    let digits = text.trim_end_matches(['K', 'M', 'G']);
    let shift = match text.trim_start_matches(digits) {
        "" => 0,
        "K" => 10,
        "M" => 20,
        _ => 30,
    };
    digits
        .parse::<u64>()
        .unwrap_or_else(|_| panic!("{text:?} is no size"))
        << shift
}

#[test]
fn what_a_job_uses_is_known_while_it_runs_and_after_whoever_dies() {
    let mut cluster = Cluster::start(&Options {
        images: vec![Image::Debian],
        ..Options::default()
    });
    cluster.write(ALICE, "measured.py", JOB);
    let submit = [
        &["submit", "--parsable"][..],
        &SMALL,
        &["--", "python3", "measured.py"],
    ]
    .concat();
    let id = cluster.carrel(ALICE, submit).ok().trim().to_owned();
    cluster.ready("it has burnt, and has its memory", |this| {
        let job = this.show(&id);
        burnt(&job) >= BURNS && job["memory_used_bytes"].as_u64() >= Some(HAS * MIB)
    });
    let job = cluster.show(&id);
    assert!((HAS * MIB..512 * MIB).contains(&peak(&job)), "{job}");
    assert_eq!(job["memory_peak_node"], "n0", "{job}");
    assert!(job["nodes"][0]["cpu_user_seconds"].as_f64() > Some(0.0), "{job}");
    let text = cluster.carrel(ALICE, ["show", &id]).ok();
    assert!(text.contains("of 512M") && text.contains("% of 1 CPU"), "{text}");
    assert!(!text.contains("efficiency"), "it is not over: {text}");

    let shown = "--format=JobID,MaxRSS,MaxRSSNode,AveRSS,AveCPU,MinCPU";
    let stat = slurm(&cluster, &["sstat", "-nP", "-j", &format!("{id}.batch"), shown]);
    assert_eq!(
        (stat.len(), stat[0][0].as_str()),
        (1, format!("{id}.batch").as_str())
    );
    assert!(
        bytes(&stat[0][1]) >= HAS * MIB && stat[0][1].ends_with(['K', 'M']),
        "{stat:?}"
    );
    assert_eq!(
        (stat[0][2].as_str(), &stat[0][1]),
        ("n0", &stat[0][3]),
        "{stat:?}"
    );
    assert!(
        seconds(&stat[0][4]) >= BURNS && stat[0][4] == stat[0][5],
        "{stat:?}"
    );
    let raw = slurm(
        &cluster,
        &["sstat", "-nP", "--noconvert", "-j", &id, "-o", "MaxRSS"],
    );
    assert!(
        raw[0][0].parse::<u64>().is_ok_and(|bytes| bytes >= HAS * MIB),
        "{raw:?}"
    );
    let shown = "JobID,MaxRSS,MaxRSSNode,TotalCPU,UserCPU,SystemCPU,AveCPU";
    let rows = |cluster: &Cluster| slurm(cluster, &["sacct", "-nP", "-j", &id, "-o", shown]);
    let now = rows(&cluster);
    assert!(seconds(&now[0][3]) >= BURNS && now[0][1].is_empty(), "{now:?}");
    assert!(bytes(&now[1][1]) >= HAS * MIB && now[1][2] == "n0", "{now:?}");

    // An agent that has never seen the memory, and a broker that has to remember it.
    cluster.write(ALICE, "measured-less", "");
    cluster.ready("its memory has gone", |this| {
        let job = this.show(&id);
        job["memory_used_bytes"]
            .as_u64()
            .is_some_and(|bytes| bytes < HAS * MIB / 2)
    });
    cluster.agents[0].kill9();
    cluster.agents[0].restart();
    cluster.write(ALICE, "measured-more", "");
    cluster.ready("the new agent counts on", |this| {
        burnt(&this.show(&id)) >= 2.0 * BURNS
    });
    assert!(peak(&cluster.show(&id)) >= HAS * MIB);
    cluster.broker.kill9();
    cluster.broker.restart();
    cluster.ready("the broker answers", |this| {
        this.carrel(ROOT, ["ps"]).run().code == 0
    });
    assert!(peak(&cluster.show(&id)) >= HAS * MIB, "{}", cluster.show(&id));

    // It ends while nobody looks.
    cluster.ready("the broker hears its agent", |this| {
        this.show(&id)["memory_used_bytes"].as_u64() > Some(0)
    });
    cluster.agents[0].kill9();
    cluster.write(ALICE, "measured-last", "");
    let done = cluster.sandbox().home(ALICE).join("measured-done");
    cluster.ready("it has ended", |_| done.exists());
    cluster.agents[0].restart();
    cluster.ready("its end is known", |this| this.show(&id)["state"] == "COMPLETED");
    let job = cluster.show(&id);
    assert!(burnt(&job) >= 3.0 * BURNS, "{job}");
    assert!(
        peak(&job) >= HAS * MIB && job["memory_used_bytes"].is_null(),
        "{job}"
    );
    let over = rows(&cluster);
    assert!(bytes(&over[1][1]) >= HAS * MIB && over[1][2] == "n0", "{over:?}");
    for row in &over {
        let [total, user, system] = [3, 4, 5].map(|field| seconds(&row[field]));
        assert!(
            total >= 3.0 * BURNS && (total - user - system).abs() < 0.01,
            "{over:?}"
        );
    }
    assert!(seconds(&over[1][6]) >= 3.0 * BURNS, "{over:?}");
    let text = cluster.carrel(ALICE, ["show", &id]).ok();
    let line = text.lines().find(|line| line.starts_with("efficiency"));
    assert!(
        line.is_some_and(|line| line.contains("% of 1 CPU, memory 2") && line.contains(" of 512M")),
        "{text}"
    );
    let past = cluster.json(ALICE, ["history", &id]);
    assert!(
        peak(&past[0]) >= HAS * MIB && burnt(&past[0]) >= 3.0 * BURNS,
        "{past}"
    );
    let table = cluster.carrel(ALICE, ["history", &id]).ok();
    assert!(table.contains("CPU") && table.contains("MEMORY"), "{table}");
}

/// The peak is the kernel's own: nothing that looks now and then sees a process that is ended as it grows.
#[test]
fn what_runs_out_of_memory_names_its_peak_and_its_limit() {
    let cluster = shared::cluster();
    let greedy = "x = b'x' * (1 << 30)";
    let submit = [
        "submit",
        "--parsable",
        "-c",
        "1",
        "--mem",
        "64M",
        "--",
        "python3",
        "-c",
        greedy,
    ];
    let id = cluster.carrel(ALICE, submit).ok().trim().to_owned();
    cluster.ready("it has run out of memory", |this| {
        this.show(&id)["state"] == "OUT_OF_MEMORY"
    });
    let job = cluster.show(&id);
    assert!((48 * MIB..=65 * MIB).contains(&peak(&job)), "{job}");
    let reason = job["reason"].as_str().expect("a reason");
    assert!(
        reason.contains("its peak was ") && reason.contains(" of 64 MiB"),
        "{reason}"
    );
    let text = cluster.carrel(ALICE, ["show", &id]).ok();
    assert!(
        text.contains("for want of memory (peak ") && text.contains("limit 64M)"),
        "{text}"
    );
}
