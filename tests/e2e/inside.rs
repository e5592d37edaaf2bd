//! `carrel` inside a session: it shows, extends and stops the session that it runs in, and nothing else.

use carrel_tests::cluster::{Cluster, Options, Session};
use carrel_tests::terminal::Terminal;
use carrel_tests::user::{ALICE, BOB, ROOT};
use serde_json::Value;

use crate::shared::{self, SMALL};

const SOCKET: &str = "unix:/.carrel/api/api.sock";

/// A session of alice's with `carrel` in it.
fn open<'a>(cluster: &'a Cluster, name: &str) -> Session<'a> {
    let session = cluster.open(ALICE, name, &SMALL);
    let found = session.ssh(["command -v carrel"]).run();
    assert_eq!(
        found.stdout.trim(),
        "/.carrel/bin/carrel",
        "is the static carrel built? ./dev test builds it: {found}"
    );
    session
}

fn json(session: &Session<'_>, command: &str) -> Value {
    let text = session.ssh([format!("{command} --output json")]).ok();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{command}: no JSON ({error}): {text}"))
}

/// What is the caller's own, without a name; and what they hold besides is not there.
#[test]
fn a_session_sees_itself() {
    let cluster = shared::cluster();
    let session = open(cluster, "inside");
    let _other = cluster.open(ALICE, "inside-other", &SMALL);
    let record = session.record();
    let shown = json(&session, "carrel show");
    assert_eq!(shown["id"], record["id"], "{shown}");
    assert_eq!(shown["job"]["id"], record["job"]["id"], "{shown}");
    assert_eq!(json(&session, "carrel show inside")["id"], record["id"]);
    for list in ["carrel ps", "carrel ps --all --ended"] {
        let jobs = json(&session, list);
        assert_eq!(jobs.as_array().map(Vec::len), Some(1), "{list}: {jobs}");
        assert_eq!(jobs[0]["id"], record["job"]["id"], "{list}: {jobs}");
    }
    let sessions = json(&session, "carrel ps --sessions --all");
    assert_eq!(sessions.as_array().map(Vec::len), Some(1), "{sessions}");
    assert_eq!(sessions[0]["name"], "inside", "{sessions}");
    session.ssh(["carrel explain && carrel version"]).ok();

    let extended = session.ssh(["carrel extend 1h"]).ok();
    assert!(extended.contains("inside now ends at"), "{extended}");
    let deadline = |record: &Value| record["job"]["deadline"].as_str().map(str::to_owned);
    assert!(deadline(&session.record()) > deadline(&record), "{record}");
    // By the cluster's rules, as from outside.
    session
        .ssh(["carrel extend 1000-0"])
        .run()
        .fails(2, &["longer than this cluster allows"]);
}

/// In every channel, with what a shell's profile makes of PATH, and whatever a client sends along.
#[test]
fn it_is_found_in_every_channel() {
    let cluster = shared::cluster();
    let session = open(cluster, "inside-channels");
    for command in [
        "carrel show",
        "bash -lc 'carrel show'",
        "env --unset=CARREL_BROKER carrel show",
    ] {
        let shown = session.ssh([command]).ok();
        assert!(shown.contains("inside-channels"), "{command}: {shown}");
    }
    let sent = cluster
        .ssh(ALICE, ["-o", "SetEnv=CARREL_BROKER=unix:/elsewhere"])
        .arg(session.alias())
        .arg("echo $CARREL_BROKER")
        .ok();
    assert_eq!(sent, SOCKET);
    let mut terminal = Terminal::start(&cluster.ssh(ALICE, ["-tt"]).arg(session.alias()));
    terminal.ask("carrel ps | sed s/^/inside:/", "inside:JOB");
    terminal.line("exit");
    assert_eq!(terminal.wait(), 0, "{terminal}");
    // The image's own programs come first.
    let path = session.ssh(["echo $PATH"]).ok();
    assert!(path.ends_with(":/.carrel/bin"), "{path}");
}

/// Another session is refused, be it the same user's; so is everything that is done from outside.
#[test]
fn everything_else_is_refused() {
    let cluster = shared::cluster();
    let session = open(cluster, "inside-fenced");
    let other = cluster.open(ALICE, "inside-beside", &SMALL);
    let bobs = cluster.open(BOB, "inside-bobs", &SMALL);
    cluster.carrel(BOB, ["share", "inside-bobs", "alice"]).ok();
    let (id, job) = (other.record()["id"].clone(), other.record()["job"]["id"].clone());
    let names = [
        "inside-beside".to_owned(),
        format!("'#{id}'"),
        "inside-bobs.bob".to_owned(),
        "no-such-session".to_owned(),
    ];
    for name in names {
        for verb in ["show", "stop", "explain"] {
            session
                .ssh([format!("carrel {verb} {name}")])
                .run()
                .fails(5, &["only that session"]);
        }
        session
            .ssh([format!("carrel extend {name} 1h")])
            .run()
            .fails(5, &["only that session"]);
    }
    session
        .ssh([format!("carrel show {job}; carrel stop {job}")])
        .run()
        .fails(5, &["only its own job"]);
    let outside = [
        "alloc",
        "open more",
        "ssh inside-beside",
        "attach inside-beside",
        "usage",
        "rm inside-fenced",
        "share inside-fenced bob",
        "login https://127.0.0.1:7070",
        "up",
        "token list",
        "key list",
        "node token",
        "user list",
        "admin audit",
        "found",
        "proxy inside-beside",
    ];
    for command in outside {
        let refused = session.ssh([format!("carrel {command} </dev/null")]).run();
        refused.fails(5, &["not possible from inside a session"]);
        assert_eq!(
            refused.stderr.lines().count(),
            2,
            "an error and a hint: {refused}"
        );
        assert_eq!(refused.stdout, "", "{refused}");
    }
    // The host's own path to the socket: closed to the user, and of no use to root.
    let own = format!("/{}-", session.record()["job"]["id"]);
    let found = cluster
        .cmd(ROOT, "find")
        .args([0, 1].map(|node| cluster.node_state(node)))
        .args(["-path", "*/api/api.sock"])
        .run();
    let socket = found.stdout.lines().find(|path| path.contains(&own));
    let address = format!("unix:{}", socket.expect("its socket"));
    cluster
        .carrel(ROOT, ["--broker", &address, "ps"])
        .run()
        .fails(5, &["is for the user of job"]);
    cluster
        .carrel(ALICE, ["--broker", &address, "ps"])
        .run()
        .fails(4, &["permission denied"]);
    // Nothing can be put in its place.
    let replaced = session
        .ssh(["rm /.carrel/api/api.sock || touch /.carrel/api/x"])
        .run();
    assert_ne!(replaced.code, 0, "{replaced}");
    for session in [&session, &other, &bobs] {
        assert_eq!(session.record()["state"], "RUNNING");
    }
}

/// `carrel stop` ends the session that it is typed in, says so, and leaves the rest alone.
#[test]
fn a_session_stops_itself() {
    let cluster = shared::cluster();
    let session = open(cluster, "inside-stop");
    let other = cluster.open(ALICE, "inside-stays", &SMALL);
    let stopped = session.ssh(["carrel stop"]).run();
    assert!(stopped.stderr.contains("session inside-stop ends"), "{stopped}");
    cluster.ready("it is stopped", |_| session.record()["state"] == "STOPPED");
    let job = &session.record()["job"];
    assert_eq!(job["state"], "COMPLETED", "{job}");
    assert_eq!(job["reason"], "stopped by alice from inside", "{job}");
    assert_eq!(other.record()["state"], "RUNNING");
    // Outside there is no session to be meant.
    cluster.carrel(ALICE, ["stop"]).run().fails(2, &["which session"]);
}

/// Broker and agent are killed in turn: what is typed meanwhile is told so, and afterwards it works again.
/// In an image that holds only busybox.
#[test]
fn broker_and_agent_are_killed() {
    let mut cluster = Cluster::start(&Options::default());
    std::mem::forget(open(&cluster, "dev"));
    let inside = |cluster: &Cluster, command: &str| cluster.ssh(ALICE, ["carrel-dev", command]).run();
    // Nobody comes in anew meanwhile: what is inside asks until it is refused, and writes down why.
    let asking = |cluster: &Cluster, name: &str| {
        // Twice: the first call that fails may have been cut off under way.
        let again = format!("carrel show 2>{name}.said || {{ echo $? >{name}.code; break; }}");
        let ask = format!("carrel show || {again}");
        let command = format!("(while :; do {ask}; done) </dev/null >/dev/null 2>&1 &");
        inside(cluster, &command).ok();
    };
    let home = cluster.sandbox().home(ALICE);
    let refused = |cluster: &Cluster, name: &str| {
        let code = home.join(format!("{name}.code"));
        cluster.ready("what is inside is refused", |_| {
            std::fs::read_to_string(&code).is_ok_and(|text| text.ends_with('\n'))
        });
        let said = std::fs::read_to_string(home.join(format!("{name}.said"))).expect("its own file");
        (std::fs::read_to_string(code).expect("just seen"), said)
    };

    asking(&cluster, "broker");
    cluster.broker.kill9();
    let (code, said) = refused(&cluster, "broker");
    assert_eq!(code, "4\n", "{said}");
    assert!(
        said.contains("the broker cannot be reached") && said.contains("goes on"),
        "{said}"
    );
    cluster.broker.restart();
    cluster.ready("the broker answers inside", |this| {
        inside(this, "carrel show").code == 0
    });

    asking(&cluster, "agent");
    cluster.agents[0].kill9();
    let (code, said) = refused(&cluster, "agent");
    assert_eq!(code, "4\n", "{said}");
    assert!(said.contains("agent is away"), "{said}");
    cluster.agents[0].restart();
    cluster.ready("the next agent answers inside", |this| {
        inside(this, "carrel show").code == 0
    });
    inside(&cluster, "carrel extend 30").ok();
    cluster.carrel(ALICE, ["rm", "-f", "dev"]).ok();
}

/// A job that is submitted from a session finds the programs that are found there.
#[test]
fn what_is_active_in_a_session_is_its_jobs() {
    let cluster = shared::cluster();
    let session = open(cluster, "inside-active");
    let active = "mkdir -p venv/bin && printf '#!/bin/sh\necho of-the-venv\n' > venv/bin/tool && chmod +x venv/bin/tool \
                  && PATH=$PWD/venv/bin:$PATH";
    let submit = format!("{active} carrel submit --parsable -c 1 --mem 64M -o active.out --wait --wrap tool");
    session.ssh([submit]).ok();
    assert_eq!(cluster.read(ALICE, "active.out"), "of-the-venv\n");
}

/// Root in a container is its user; other users that root makes there are nobody to the broker.
#[test]
fn root_in_the_container_is_its_user() {
    let cluster = shared::cluster();
    let session = cluster.open(ALICE, "inside-root", &[&SMALL[..], &["--root"]].concat());
    let shown = json(&session, "carrel show");
    assert_eq!(
        (&shown["name"], &shown["user"]),
        (&"inside-root".into(), &"alice".into())
    );
    session
        .ssh(["HOME=/ setpriv --reuid=5 --regid=5 --clear-groups /.carrel/bin/carrel show"])
        .run()
        .fails(5, &["is for the user of job"]);
    session.ssh(["carrel stop"]).run();
    cluster.ready("it is stopped", |_| session.record()["state"] == "STOPPED");
}
