//! Sessions that nobody uses end, and say so before; those that are used stay, and say by what.

use std::fs;

use carrel_tests::cluster::{Cluster, Options};
use carrel_tests::user::ALICE;
use serde_json::Value;

use crate::shared::SMALL;

/// Looks that are close together, so that little time is waited for.
const AGENT: &str = "heartbeat = \"300ms\"\nmeasure_every = \"300ms\"\n";
/// What the session's own programs do on a loaded machine is no use.
const BROKER: &str = "[idle]\nafter = \"1h\"\nwarn = \"15s\"\ncpu_percent = 80\n";

fn busy_gpus(cluster: &Cluster) {
    let lines: String = (0..8).map(|gpu| format!("{gpu} 97\n")).collect();
    fs::write(cluster.host(0).join("utilization"), lines).expect("own file");
}

fn told_inside(cluster: &Cluster, name: &str) -> Value {
    let command = ["ssh", name, "cat $CARREL_DEADLINE_FILE"];
    let text = cluster.carrel(ALICE, command).ok();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn an_idle_session_ends_with_a_warning_and_a_busy_one_is_kept() {
    let cluster = Cluster::start(&Options {
        broker_config: BROKER.to_owned(),
        agent_configs: vec![AGENT],
        ..Options::default()
    });
    busy_gpus(&cluster);
    let idle = ["--idle", "40s"];
    let busy = cluster.open(ALICE, "busy", &[&["--gpus", "1"], &idle[..], &SMALL].concat());
    let mut shell = cluster.terminal(ALICE, [&["alloc", "--name", "quiet"], &idle[..], &SMALL].concat());
    shell.ask("echo here=$((1 + 1))", "here=2");
    let longer = ["alloc", "--idle", "2h"];
    let refused = cluster.carrel(ALICE, [&longer[..], &SMALL].concat()).run();
    assert!(
        refused.stderr.contains("idle time of 2 h is over this cluster's"),
        "{refused}"
    );

    // Who types is told that it counts.
    shell.expect("carrel: nobody uses this session: it ends in ");
    shell.line("echo still=$((1 + 2))");
    shell.expect("carrel: this session is in use again, and stays");
    shell.expect("carrel: nobody uses this session: it ends in ");
    let listed = cluster.carrel(ALICE, ["ps"]).ok();
    assert!(
        listed.contains("nothing for") && listed.contains("`carrel extend quiet`"),
        "{listed}"
    );
    let about = cluster.json(ALICE, ["show", "quiet"]);
    assert!(about["job"]["idle_ends_at"].is_string(), "{about}");
    cluster.ready("it is over", |this| {
        this.json(ALICE, ["show", "quiet"])["state"] == "STOPPED"
    });
    let over = cluster.json(ALICE, ["show", "quiet"]);
    assert_eq!(over["job"]["state"], "TIMEOUT", "{over}");
    let reason = over["job"]["reason"].as_str().expect("a reason");
    assert!(reason.starts_with("idle since "), "{over}");
    let past = cluster.json(ALICE, ["history", "-s", "TIMEOUT"]);
    assert!(
        past[0]["reason"]
            .as_str()
            .is_some_and(|why| why.starts_with("idle since ")),
        "{past}"
    );
    assert!(past[0]["used_gpu_hours"].is_null(), "it had no GPU: {past}");

    // The other one is as old, and nobody has typed into it at all.
    let record = busy.record();
    assert_eq!(record["state"], "RUNNING", "{record}");
    assert_eq!(record["job"]["held_by"], "gpu 97 %", "{record}");
    assert_eq!(record["job"]["gpu_percent"], 97, "{record}");
    assert!(record["job"]["idle_ends_at"].is_null(), "{record}");
    let told = told_inside(&cluster, "busy");
    assert!(told["idle_ends_ms"].is_null(), "{told}");
    let text = cluster.carrel(ALICE, ["show", "busy"]).ok();
    assert!(text.contains("gpu 97 %"), "{text}");

    // What was used of what was held.
    cluster.carrel(ALICE, ["stop", "busy"]).ok();
    cluster.ready("its use is counted", |this| {
        this.json(ALICE, ["usage", "--by", "model"])["total"]["used_gpu_hours"]
            .as_f64()
            .is_some_and(|used| used > 0.0)
    });
    let usage = cluster.json(ALICE, ["usage", "--by", "model"]);
    let percent = usage["total"]["used_percent"].as_f64().expect("measured");
    assert!((96.0..=98.0).contains(&percent), "{usage}");
    let table = cluster.carrel(ALICE, ["usage", "--by", "model"]).ok();
    assert!(table.contains("USED") && table.contains("97"), "{table}");
}
