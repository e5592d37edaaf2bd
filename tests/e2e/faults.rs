//! Programs die under a live session, and the session does not notice.

use carrel_tests::cluster::{Cluster, Options};
use carrel_tests::terminal::Terminal;
use carrel_tests::user::{ALICE, ROOT};
use carrel_tests::wait;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::processes::ssh_servers;

const SMALL: [&str; 6] = ["--gpus", "2", "-c", "1", "--mem", "64M"];

/// An open terminal in a session through OpenSSH and the alias.
fn terminal(cluster: &Cluster, alias: &str) -> Terminal {
    let mut terminal = Terminal::start(&cluster.ssh(ALICE, ["-tt", alias]));
    terminal.ask("echo start-$((40 + 2))", "start-42");
    terminal
}

/// `kill -9` of the broker: open connections go on, and after its restart the
/// session is the same job with the same GPUs.
#[test]
fn the_broker_is_killed() {
    let mut cluster = Cluster::start(&Options::default());
    let (before, mut open) = {
        let session = cluster.open(ALICE, "dev", &SMALL);
        let record = session.record();
        let terminal = terminal(&cluster, &session.alias());
        // Removed at the end, by name: the broker is replaced in between.
        std::mem::forget(session);
        (record, terminal)
    };

    cluster.broker.kill9();
    open.ask("echo without-$((40 + 2))", "without-42");
    cluster.carrel(ALICE, ["ps"]).run().fails(4, &["broker"]);

    cluster.broker.restart();
    cluster.ready("the broker answers", |this| {
        this.carrel(ALICE, ["ps"]).run().code == 0
    });
    open.ask("echo after-$((40 + 2))", "after-42");
    let after = cluster.json(ALICE, ["show", "dev"]);
    assert_eq!(after["state"], "RUNNING", "{after}");
    assert_eq!(after["job"]["id"], before["job"]["id"]);
    assert_eq!(
        after["job"]["nodes"][0]["gpus"],
        before["job"]["nodes"][0]["gpus"]
    );
    assert_eq!(after["job"]["deadline"], before["job"]["deadline"]);

    cluster.ready("new connections come about", |this| {
        this.ssh(ALICE, ["carrel-dev", "true"]).run().code == 0
    });
    open.line("exit");
    assert_eq!(open.wait(), 0, "{open}");
    cluster.carrel(ALICE, ["rm", "-f", "dev"]).ok();
    cluster.ready("its GPUs are free", |this| {
        this.json(ROOT, ["nodes"])[0]["gpus_free"] == 8
    });
}

/// `kill -9` of the agent: the container goes on, and the next agent adopts it.
#[test]
fn the_agent_is_killed() {
    let mut cluster = Cluster::start(&Options::default());
    std::mem::forget(cluster.open(ALICE, "dev", &SMALL));
    let before = cluster.json(ALICE, ["show", "dev"]);
    let ssh = |cluster: &Cluster, command: &str| cluster.ssh(ALICE, ["carrel-dev", command]);
    ssh(
        &cluster,
        "echo $$ > /tmp/mark; sleep 100000 </dev/null >/dev/null 2>&1 & echo $! > /tmp/sleeper",
    )
    .ok();

    cluster.agents[0].kill9();
    cluster.agents[0].restart();
    cluster.ready("connections through the new agent", |this| {
        ssh(this, "true").run().code == 0
    });
    ssh(&cluster, "test -e /tmp/mark && kill -0 $(cat /tmp/sleeper)").ok();
    let after = cluster.json(ALICE, ["show", "dev"]);
    assert_eq!(after["state"], "RUNNING", "{after}");
    assert_eq!(after["job"]["id"], before["job"]["id"]);

    // Adopted, not only left alone: it can be ended, and leaves nothing.
    cluster.carrel(ALICE, ["rm", "-f", "dev"]).ok();
    cluster.ready("its GPUs are free", |this| {
        this.json(ROOT, ["nodes"])[0]["gpus_free"] == 8
    });
}

/// The gateway is killed: sessions go on, and new connections come about after its restart,
/// even while there is no broker.
#[test]
fn the_gateway_is_killed() {
    let mut cluster = Cluster::start(&Options::default());
    std::mem::forget(cluster.open(ALICE, "dev", &SMALL));
    cluster.gateway.kill9();
    cluster.gateway.restart();
    cluster.ready("new connections come about", |this| {
        this.ssh(ALICE, ["carrel-dev", "true"]).run().code == 0
    });
    assert_eq!(cluster.json(ALICE, ["show", "dev"])["state"], "RUNNING");
    cluster.carrel(ALICE, ["rm", "-f", "dev"]).ok();
}

/// The SSH server inside a session is killed: other processes go on, and it is there again.
#[test]
fn the_ssh_server_is_killed() {
    let cluster = Cluster::start(&Options::default());
    let session = cluster.open(ALICE, "dev", &SMALL);
    session
        .ssh(["sleep 100000 </dev/null >/dev/null 2>&1 & echo $! > /tmp/sleeper"])
        .ok();
    let servers = ssh_servers(&cluster);
    assert_eq!(servers.len(), 1, "one server in one session: {servers:?}");
    kill(Pid::from_raw(servers[0]), Signal::SIGKILL).expect("it runs");
    cluster.ready("it is there again", |_| {
        session.ssh(["kill -0 $(cat /tmp/sleeper)"]).run().code == 0
    });
}

/// A cluster that is stopped whole and started again still has its session.
#[test]
fn everything_is_killed() {
    let mut cluster = Cluster::start(&Options::default());
    std::mem::forget(cluster.open(ALICE, "dev", &SMALL));
    cluster.ssh(ALICE, ["carrel-dev", "touch /tmp/mark"]).ok();
    cluster.broker.kill9();
    cluster.gateway.kill9();
    cluster.agents[0].kill9();
    cluster.agents[0].restart();
    cluster.gateway.restart();
    cluster.broker.restart();
    cluster.ready("the session is entered again", |this| {
        this.ssh(ALICE, ["carrel-dev", "test -e /tmp/mark"]).run().code == 0
    });
    wait::until("one job is listed", || {
        cluster.json(ALICE, ["ps"]).as_array().map(Vec::len) == Some(1)
    });
    cluster.carrel(ALICE, ["rm", "-f", "dev"]).ok();
}
