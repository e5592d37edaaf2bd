//! Terminals that outlive whatever lies between them and the person.

use carrel_tests::cluster::{Cluster, Options};
use carrel_tests::image::Image;
use carrel_tests::process::Daemon;
use carrel_tests::terminal::Terminal;
use carrel_tests::user::{ALICE, ROOT};
use carrel_tests::wait;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::processes::{self, ssh_servers};
use crate::shared::{self, SMALL};

/// How long a person waits before typing again.
const RETYPE: std::time::Duration = std::time::Duration::from_secs(2);

/// The number that a terminal showed last behind a word.
fn number_after(terminal: &Terminal, word: &str) -> String {
    let screen = terminal.screen();
    let at = screen.rfind(word).expect("it was shown") + word.len();
    screen[at..].chars().take_while(char::is_ascii_digit).collect()
}

/// Types until the shell answers: what was typed into a broken connection is lost.
fn answers(terminal: &mut Terminal, mark: &str) {
    let mut attempt = 0;
    let answered = wait::poll(wait::PATIENCE, || {
        attempt += 1;
        terminal.line(&format!("echo {mark}-{attempt}-$((40 + 2))."));
        let answer = format!("{mark}-{attempt}-42.");
        wait::poll(RETYPE, || terminal.screen().contains(&answer).then_some(()))
    });
    assert!(answered.is_some(), "no answer: {mark}\n{terminal}");
}

/// `alloc`'s shell lives on through the deaths of gateway, agent, broker and SSH server; the program
/// attaches again by itself, and the shell's exit code and the end of the allocation are as ever.
#[test]
fn a_shell_lives_through_the_deaths_of_all_programs() {
    let mut cluster = Cluster::start(&Options {
        images: vec![Image::Debian],
        ..Options::default()
    });
    let args = [&["alloc", "--gpus", "2", "--name", "dev"][..], &SMALL].concat();
    let mut terminal = cluster.terminal(ALICE, args);
    terminal.expect("Granted job allocation");
    terminal.ask("x=$((6 * 7)); echo pid=$$.", "pid=");
    terminal.ask("echo begun-$((40 + 2))", "begun-42");
    let pid = number_after(&terminal, "pid=");

    let restart = |daemon: &mut Daemon| {
        daemon.kill9();
        daemon.restart();
    };
    restart(&mut cluster.gateway);
    answers(&mut terminal, "gateway");
    restart(&mut cluster.agents[0]);
    answers(&mut terminal, "agent");
    let servers = ssh_servers(&cluster);
    assert_eq!(servers.len(), 1, "one server in one session: {servers:?}");
    kill(Pid::from_raw(servers[0]), Signal::SIGKILL).expect("it runs");
    terminal.expect("reattached");
    answers(&mut terminal, "server");
    restart(&mut cluster.broker);
    cluster.gateway.kill9();
    cluster.agents[0].kill9();
    cluster.gateway.restart();
    cluster.agents[0].restart();
    answers(&mut terminal, "all");
    terminal.ask("echo pid=$$. x=$x.", "x=42.");
    assert_eq!(number_after(&terminal, "pid="), pid, "another shell");

    terminal.line("exit 7");
    assert_eq!(terminal.wait(), 7, "{terminal}");
    cluster.ready("its GPUs are free", |this| {
        this.json(ROOT, ["nodes"])[0]["gpus_free"] == 8
    });
    cluster.carrel(ALICE, ["rm", "-f", "dev"]).ok();
}

/// A closed window ends nothing: the shell is listed, and shows itself to who comes back.
#[test]
fn a_closed_window_ends_nothing() {
    let cluster = shared::cluster();
    let args = [&["alloc", "--name", "window"][..], &SMALL].concat();
    let mut first = cluster.terminal(ALICE, args);
    first.expect("Granted job allocation");
    first.ask("x=$((6 * 7)); echo begun-$x", "begun-42");
    let list = || cluster.json(ALICE, ["attach", "window", "--list"]);
    let listed = list();
    assert_eq!(
        (&listed[0]["id"], &listed[0]["viewers"], &listed[0]["running"]),
        (&1.into(), &1.into(), &true.into()),
        "{listed}"
    );
    assert_eq!(
        (&listed[0]["columns"], &listed[0]["rows"]),
        (&80.into(), &24.into())
    );
    // As its window's end does.
    let alloc = processes::carrel(cluster, &["alloc", "--name", "window"]).expect("it runs");
    kill(Pid::from_raw(alloc), Signal::SIGHUP).expect("it runs");
    first.expect("`carrel attach window` returns to it");
    assert_eq!(first.wait(), 129, "{first}");
    cluster.ready("nobody looks", |_| list()[0]["viewers"] == 0);

    let mut again = cluster.terminal(ALICE, ["attach", "window"]);
    again.expect("begun-42");
    again.ask("echo still-$x", "still-42");
    let mut reader = cluster.terminal(ALICE, ["attach", "window", "--terminal", "1", "--read-only"]);
    reader.expect("still-42");
    reader.line("echo intru\"\"der");
    again.ask("echo seen-$((40 + 2))", "seen-42");
    reader.expect("seen-42");
    assert!(!again.screen().contains("intruder"), "{again}");
    // SSH's escape leaves, and nothing ends.
    reader.write("\r~.");
    reader.expect("carrel: left; the terminal goes on");
    assert_eq!(reader.wait(), 0, "{reader}");
    // Exit codes pass through; what ended is still listed.
    again.line("exit 5");
    assert_eq!(again.wait(), 5, "{again}");
    let listed = list();
    assert_eq!(
        (&listed[0]["running"], &listed[0]["exit_code"]),
        (&false.into(), &5.into()),
        "{listed}"
    );
    let command = [
        "attach",
        "window",
        "--new=build",
        "--",
        "sh",
        "-c",
        "echo \"a  b\"; exit 6",
    ];
    let mut build = cluster.terminal(ALICE, command);
    build.expect("a  b");
    assert_eq!(build.wait(), 6, "{build}");
    let table = cluster.carrel(ALICE, ["attach", "window", "--list"]).ok();
    assert!(table.contains("build") && table.contains("exited 6"), "{table}");
    cluster
        .carrel(ALICE, ["attach", "window"])
        .run()
        .fails(2, &["a terminal is needed"]);
    cluster.carrel(ALICE, ["rm", "-f", "window"]).ok();
    cluster.ready("there is no such session", |this| {
        this.carrel(ALICE, ["attach", "window", "--list"]).run().code == 3
    });
}

/// The job ends under a shell: that is said, and nothing is waited for.
#[test]
fn a_stopped_job_ends_its_terminal() {
    let cluster = shared::cluster();
    let args = [&["alloc", "--name", "stopped"][..], &SMALL].concat();
    let mut terminal = cluster.terminal(ALICE, args);
    terminal.expect("Granted job allocation");
    terminal.ask("echo begun-$((40 + 2))", "begun-42");
    cluster.carrel(ALICE, ["stop", "stopped"]).ok();
    terminal.expect("stopped by alice");
    assert_eq!(terminal.wait(), 255, "{terminal}");
    cluster.carrel(ALICE, ["rm", "-f", "stopped"]).ok();
}
