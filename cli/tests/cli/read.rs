//! What people and programs read: tables, JSON, errors, exit codes.

use carrel_proto::v1;
use carrel_proto::v1::JobState;
use serde_json::{Value, json};

use crate::fake::Fake;
use crate::run::{Done, carrel, run};

fn json_of(fake: &Fake, args: &[&str]) -> Value {
    let done = run(carrel(fake, &[args, &["--output", "json"]].concat()));
    assert_eq!(done.code, Some(0), "{done:?}");
    serde_json::from_str(&done.stdout).expect("JSON")
}

fn node() -> v1::Node {
    let gpu = |index| v1::GpuInfo {
        index,
        model: "NVIDIA H100 80GB HBM3".into(),
        ..Default::default()
    };
    v1::Node {
        name: "h100-01".into(),
        state: "MIXED".into(),
        inventory: Some(v1::Inventory {
            cpus: 208,
            memory_bytes: 2 << 40,
            gpus: (0..8).map(gpu).collect(),
            ..Default::default()
        }),
        gpu_holders: [17, 17, 17, 17, 0, 0, 0, 0]
            .map(|job| v1::GpuHolders {
                holders: (job > 0)
                    .then_some(v1::GpuHolder {
                        job,
                        ..Default::default()
                    })
                    .into_iter()
                    .collect(),
            })
            .to_vec(),
        cpus_held: 32,
        memory_held: 256 << 30,
        ..Default::default()
    }
}

#[test]
fn tables() {
    let fake = Fake::start(JobState::Running);
    fake.change(|world| world.nodes = vec![node()]);
    assert_eq!(run(carrel(&fake, &["ps"])).stderr, "carrel: no jobs\n");
    run(carrel(
        &fake,
        &["alloc", "--gpus", "4", "--name", "dev", "--no-shell"],
    ));
    let ps = run(carrel(&fake, &["ps"])).stdout;
    let mut lines = ps.lines();
    assert_eq!(lines.next().unwrap().split_whitespace().next(), Some("JOB"));
    let row: Vec<_> = lines.next().unwrap().split_whitespace().collect();
    assert_eq!(
        (&row[..4], &row[5..]),
        (
            &["17", "dev", "alice", "RUNNING"][..],
            &["h100-01", "GPUs", "0-3", "(exclusive)"][..]
        ),
        "{ps}"
    );
    let nodes = run(carrel(&fake, &["nodes"])).stdout;
    assert_eq!(
        nodes,
        "NODE     STATE  GPUS FREE            CPUS FREE  MEMORY FREE  REASON\n\
         h100-01  MIXED  4/8 H100 80GB HBM3  176/208    1.8T/2T\n"
            .replace("GPUS FREE            ", "GPUS FREE           ")
    );
}

#[test]
fn json_for_programs() {
    let fake = Fake::start(JobState::Running);
    fake.change(|world| world.nodes = vec![node()]);
    assert_eq!(json_of(&fake, &["ps"]), json!([]));
    run(carrel(
        &fake,
        &["alloc", "--gpus", "4", "--name", "dev", "--no-shell"],
    ));
    let job = &json_of(&fake, &["ps"])[0];
    assert_eq!(
        (
            &job["id"],
            &job["kind"],
            &job["submitted"],
            &job["deadline"],
            &job["exit_code"]
        ),
        (
            &json!(17),
            &json!("interactive"),
            &json!("2026-01-01T00:00:00Z"),
            &Value::Null,
            &Value::Null
        )
    );
    let session = json_of(&fake, &["show", "dev"]);
    assert_eq!(&session["job"], job);
    assert_eq!(
        (&session["state"], &session["ssh_alias"]),
        (&json!("RUNNING"), &json!("carrel-dev"))
    );
    assert_eq!(&json_of(&fake, &["show", "17"]), job);
    assert_eq!(json_of(&fake, &["ps", "--sessions"])[0]["name"], "dev");
    let nodes = json_of(&fake, &["nodes"]);
    assert_eq!(
        (&nodes[0]["gpus_free"], &nodes[0]["gpus"][0]["holders"][0]["job"]),
        (&json!(4), &json!(17))
    );
    assert_eq!(
        json_of(&fake, &["explain", "dev"])["worst_links"],
        json!(["NV18"])
    );
    assert_eq!(json_of(&fake, &["node", "token"])["ca_fingerprint"], "sha256:00");
    assert_eq!(json_of(&fake, &["version"])["broker"], "9.9.9");
}

#[test]
fn exit_codes() {
    let fake = Fake::start(JobState::Running);
    let code = |args: &[&str]| run(carrel(&fake, args)).code;
    assert_eq!(code(&["show", "nobody"]), Some(3));
    assert_eq!(code(&["show", "99"]), Some(3));
    assert_eq!(code(&["alloc", "--gpus-per-task", "0"]), Some(2));
    assert_eq!(code(&["alloc", "--name", "Not A Name"]), Some(2));
    assert_eq!(code(&["frobnicate"]), Some(2));
    assert_eq!(code(&["--help"]), Some(0));
}

#[test]
fn a_broker_that_is_not_there_is_named() {
    let fake = Fake::start(JobState::Running);
    let unreachable = |done: Done, what: &str| {
        assert_eq!(done.code, Some(4), "{done:?}");
        assert!(
            done.stderr.contains(what) && done.stderr.contains("CARREL_BROKER"),
            "{done:?}"
        );
    };
    unreachable(
        run(carrel(&fake, &["--broker", "unix:/nonexistent/b.sock", "ps"])),
        "unix:/nonexistent/b.sock",
    );
    let mut nowhere = carrel(&fake, &["ps"]);
    nowhere.env_remove("CARREL_BROKER");
    unreachable(run(nowhere), "carrel login");
    let done = run(carrel(&fake, &["--broker", "ftp://x", "ps"]));
    assert_eq!(done.code, Some(2), "{done:?}");
    let done = run(carrel(&fake, &["--broker", "https://127.0.0.1:9", "ps"]));
    assert_eq!(done.code, Some(5), "not signed in there: {done:?}");
    assert!(
        done.stderr.contains("carrel login https://127.0.0.1:9"),
        "{done:?}"
    );
}

#[test]
fn config_files() {
    let fake = Fake::start(JobState::Running);
    let dir = fake.dir.path().join(".config/carrel");
    std::fs::create_dir_all(&dir).unwrap();
    let config = |text: &str| std::fs::write(dir.join("config.toml"), text).unwrap();
    let ps = || {
        let mut command = carrel(&fake, &["ps"]);
        command.env_remove("CARREL_BROKER");
        run(command)
    };
    config(&format!("broker = \"unix:{}\"\n", fake.socket().display()));
    assert_eq!(ps().code, Some(0));
    for (text, says) in [
        ("\nbrokker = 1\n", "config.toml:2: unknown field `brokker`"),
        ("broker = [", "config.toml:1: "),
        ("broker = \"ftp://x\"", "unix:/path"),
    ] {
        config(text);
        let done = ps();
        assert_eq!(done.code, Some(2), "{done:?}");
        assert!(done.stderr.contains(says), "{done:?}");
    }
}

#[test]
fn completion_knows_the_sessions() {
    let fake = Fake::start(JobState::Running);
    run(carrel(&fake, &["open", "development", "--editor", "none"]));
    for shell in ["bash", "zsh", "fish"] {
        assert!(
            run(carrel(&fake, &["completion", shell]))
                .stdout
                .contains("carrel"),
            "{shell}"
        );
    }
    fake.stop();
    let mut tab = carrel(&fake, &["--", "carrel", "ssh", "dev"]);
    tab.env("COMPLETE", "fish");
    let done = run(tab);
    assert!(done.stdout.contains("development"), "{done:?}");
}
