//! Terminals that outlive their connections and the server, with the real OpenSSH client.

mod support;

use std::io::Read;
use std::process::Stdio;

use carrel_core::terminal::{Mark, Marks};
use carrel_proto::v1::{TerminalExit, TerminalList};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use prost::Message;
use support::terminal::Terminal;
use support::{Way, World, wait_for};

const SUBSYSTEM: &str = "carrel-terminal";

/// An ssh that asks for a terminal.
fn attach(world: &World, words: &str) -> Terminal {
    Terminal::open(world, &["-tt", "-s", "s", &format!("{SUBSYSTEM} {words}")])
}

fn list(world: &World) -> TerminalList {
    let output = world.ssh(&["-s", "s", &format!("{SUBSYSTEM} list")]);
    world.check(&output);
    TerminalList::decode(&output.stdout[..]).unwrap()
}

/// `command=…` for a line of a shell.
fn command(line: &str) -> String {
    let escaped: String = line.bytes().map(|byte| format!("%{byte:02x}")).collect();
    format!("command={escaped}")
}

fn kill_server(world: &World) {
    let before = world.control().next().restarts;
    kill(Pid::from_raw(world.server_pid()), Signal::SIGKILL).unwrap();
    wait_for("the next server", || {
        let status = world.control().try_next();
        status.is_ok_and(|status| status.ready && status.restarts > before)
    });
}

#[test]
fn a_shell_outlives_its_connection_and_its_exit_code_arrives() {
    let world = World::start_with(Way::Raw, |config| config.banner = "ends at noon".into());
    let mut first = attach(&world, "new name=work");
    first.wait("ends at noon\r\n");
    first.line("x=$((6 * 7)); echo terminal=$CARREL_TERMINAL job=$SLURM_JOB_ID term=$TERM");
    first.wait("terminal=1 job=7 term=xterm-256color");
    first.cut();
    wait_for("nobody to look", || list(&world).terminals[0].writers == 0);

    let mut again = attach(&world, "name=work");
    again.wait("ends at noon\r\n");
    again.wait("terminal=1 job=7");
    again.line("echo x=$x size=$(stty size)");
    again.wait("x=42 size=33 101");
    again.line("exit 3");
    assert_eq!(again.code(), 3);

    // Also without a name: it was the last one, and it has ended, so this is a new one.
    let mut new = attach(&world, "");
    new.line("echo terminal=$CARREL_TERMINAL");
    new.wait("terminal=2");
    new.cut();
    let mut last = attach(&world, "");
    last.wait("terminal=2");
    last.line("kill -TERM $$; kill -KILL $$");
    assert_eq!(last.code(), 255, "a death by signal, to OpenSSH");
    let exits: Vec<_> = list(&world)
        .terminals
        .into_iter()
        .map(|terminal| terminal.exit)
        .collect();
    let exit = |status, signal| Some(TerminalExit { status, signal });
    assert_eq!(exits, [exit(3, 0), exit(0, 9)]);
}

#[test]
fn two_see_the_same_and_one_that_reads_changes_nothing() {
    let world = World::start();
    let mut writer = attach(&world, "new");
    writer.line("echo begin=$((1+1))");
    writer.wait("begin=2");
    let ask = format!("{SUBSYSTEM} id=1 read-only");
    let mut reader = Terminal::open_unread(&world, (60, 20), &["-tt", "-s", "s", &ask]);
    reader.read();
    reader.wait("begin=2");
    let mut other = attach(&world, "id=1");
    other.wait("begin=2");
    let listed = list(&world).terminals.remove(0);
    assert_eq!((listed.id, listed.writers, listed.readers), (1, 2, 1));
    assert_eq!((listed.columns, listed.rows), (101, 33));

    reader.line("echo intru\"\"der");
    reader.resize(50, 10);
    writer.line("echo size=$(stty size) writer=$((2+2))");
    for terminal in [&writer, &reader, &other] {
        terminal.wait("size=33 101 writer=4");
    }
    // Whoever was active last has the size: by resizing, by typing.
    other.resize(120, 50);
    wait_for("the other's size", || {
        let listed = list(&world).terminals.remove(0);
        (listed.columns, listed.rows) == (120, 50)
    });
    writer.line("echo size=$(stty size) again=$((3+3))");
    reader.wait("size=33 101 again=6");
    other.line("echo size=$(stty size) other=$((4+4))");
    writer.wait("size=50 120 other=8");
    for terminal in [&writer, &reader, &other] {
        assert!(!terminal.seen().contains("intruder"), "{}", terminal.seen());
    }
    writer.line("exit 4");
    for terminal in [&mut writer, &mut reader, &mut other] {
        assert_eq!(terminal.code(), 4);
    }
}

#[test]
fn keys_and_signals_reach_the_program() {
    let world = World::start();
    let mut terminal = attach(&world, "new");
    terminal.line("sh -c 'echo rea\"\"dy; exec sleep 1000'");
    terminal.wait("ready");
    terminal.write("\x03");
    terminal.line("echo code=$?");
    terminal.wait("code=130");
    // SSH's own escape leaves, and nothing ends.
    terminal.line("echo left=$((1+1))");
    terminal.wait("left=2");
    terminal.write("\r~.");
    assert_eq!(terminal.code(), 255);
    assert!(list(&world).terminals[0].exit.is_none());
}

/// The scrollback is bounded, and begins with a whole line.
#[test]
fn what_is_shown_again_is_bounded_and_begins_at_a_line() {
    let world = World::start();
    let lines = 300_000;
    let run = command(&format!(
        "seq -f 'line %g.' {lines}; echo don\"\"e; exec sleep 1000"
    ));
    let first = attach(&world, &format!("new {run}"));
    first.wait("done");
    assert!(first.seen().starts_with("line 1.\r\n"), "the first sees all");
    assert!(first.seen().contains("\nline 150000.\r\n"));
    first.cut();
    let again = attach(&world, "id=1");
    again.wait("done");
    let seen = again.seen();
    assert!(seen.len() > 900_000 && seen.len() <= 1 << 20, "{}", seen.len());
    let first: u64 = seen
        .strip_prefix("line ")
        .and_then(|seen| seen.split_once(".\r\n"))
        .and_then(|(number, _)| number.parse().ok())
        .unwrap_or_else(|| panic!("a whole line at first: {:?}", &seen[..40]));
    let expected: String = (first..=lines).map(|n| format!("line {n}.\r\n")).collect();
    assert!(seen.starts_with(&expected), "no line is missing after it");
}

#[test]
fn a_viewer_that_stalls_stops_neither_the_program_nor_the_others() {
    let world = World::start();
    let ask = format!("{SUBSYSTEM} new");
    let mut slow = Terminal::open_unread(&world, (80, 24), &["-tt", "-s", "s", &ask]);
    wait_for("the terminal", || !list(&world).terminals.is_empty());
    // Alone, for a while it is waited for; then the program goes on.
    slow.line("seq 1000000; touch finished");
    let finished = world.path("home/finished");
    wait_for("the program's end", || finished.exists());
    // With another, that one gets everything.
    let mut quick = attach(&world, "id=1");
    quick.line("seq -f 'line %g.' 300000; echo don\"\"e");
    quick.wait("done");
    let seen = quick.seen();
    let from = seen.find("line 1.\r\n").expect("the first line");
    let expected: String = (1..=300_000).map(|n| format!("line {n}.\r\n")).collect();
    assert!(seen[from..].starts_with(&expected), "a line is missing");
    // When it moves again, it is told, and shown the end.
    slow.read();
    slow.wait("[carrel: some output was too fast for this connection and is left out here]");
    slow.wait("line 300000.\r\ndone");
    slow.line("echo slow=$((1+1))");
    slow.wait("slow=2");
}

#[test]
fn the_server_is_killed_and_the_terminal_does_not_notice() {
    let world = World::start();
    let mut first = attach(&world, "new name=work");
    first.line("x=$((6 * 7)); echo pid=$$.");
    first.wait("pid=");
    first.line("(while [ ! -e go ]; do sleep 0.05; done; echo with\"\"out) & echo back=$((1+1))");
    first.wait("back=2");
    let pid = |terminal: &Terminal| {
        let seen = terminal.seen();
        let at = seen.rfind("pid=").unwrap() + 4;
        seen[at..].split('.').next().unwrap().to_owned()
    };
    for _ in 0..2 {
        kill_server(&world);
    }
    assert_eq!(first.code(), 255);
    std::fs::write(world.path("home/go"), "").unwrap();

    let mut again = attach(&world, "name=work");
    again.wait("back=2");
    again.wait("without");
    assert_eq!(pid(&again), pid(&first));
    again.line("echo x=$x");
    again.wait("x=42");
    // A number is never given twice, whoever serves.
    let mut new = attach(&world, "new");
    new.line("echo terminal=$CARREL_TERMINAL");
    new.wait("terminal=2");
    // The end is known to the server after the one that it happened under.
    new.line("exit 6");
    assert_eq!(new.code(), 6);
    kill_server(&world);
    assert_eq!(attach(&world, "id=2").code(), 6);
    let mut again = attach(&world, "name=work");
    again.line("exit 5");
    assert_eq!(again.code(), 5);
}

#[test]
fn an_end_that_nobody_saw_is_told_to_who_comes_back() {
    let world = World::start();
    let run = command("echo begun; until [ -e go ]; do sleep 0.02; done; echo last words; exit 9");
    let first = attach(&world, &format!("new {run}"));
    first.wait("begun");
    first.cut();
    std::fs::write(world.path("home/go"), "").unwrap();
    wait_for("the end", || list(&world).terminals[0].exit.is_some());
    let mut again = attach(&world, "id=1");
    assert_eq!(again.code(), 9);
    again.wait("begun\r\nlast words\r\n");
}

/// A program that has the whole screen is asked to draw it anew: it sees another size, and its own.
#[test]
fn a_full_screen_is_drawn_anew() {
    let world = World::start();
    let run = command(
        "printf '\\033[?1049h\\033[?25l'; trap 'echo drawn=$(stty size)' WINCH; echo up; while :; do sleep 0.02; done",
    );
    let first = attach(&world, &format!("new {run}"));
    first.wait("up");
    first.cut();
    wait_for("nobody to look", || list(&world).terminals[0].writers == 0);
    let again = attach(&world, "id=1");
    again.wait("\x1b[?1049h\x1b[?25l");
    again.wait("drawn=32 101\r\n");
    again.wait("drawn=33 101\r\n");
}

/// A client with marks, without a terminal of its own: all that it gets, until it is stopped.
struct Marked {
    child: std::process::Child,
    output: Vec<u8>,
}

impl Marked {
    fn start(world: &World, words: &str) -> Self {
        let ask = format!("{SUBSYSTEM} {words} marks");
        let child = world
            .client("ssh")
            .args(["-tt", "-s", "s", &ask])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            child,
            output: Vec::new(),
        }
    }

    /// Reads until there is so much, or the end.
    fn read(&mut self, length: usize) {
        let stdout = self.child.stdout.as_mut().unwrap();
        let mut buffer = [0; 1000];
        while self.output.len() < length {
            let count = stdout.read(&mut buffer).unwrap();
            if count == 0 {
                return;
            }
            self.output.extend_from_slice(&buffer[..count]);
        }
    }

    /// Cuts it, if it has not ended: its output, its marks, its code.
    fn end(mut self, cut: bool) -> (Vec<u8>, Vec<Mark>, Option<i32>) {
        if cut {
            self.child.kill().unwrap();
        } else {
            self.read(usize::MAX);
        }
        let mut stderr = Vec::new();
        self.child
            .stderr
            .take()
            .unwrap()
            .read_to_end(&mut stderr)
            .unwrap();
        let (marks, rest) = Marks::default().take(&stderr);
        assert_eq!(String::from_utf8_lossy(&rest), "");
        (self.output, marks, self.child.wait().unwrap().code())
    }
}

#[test]
fn a_client_that_says_what_it_has_seen_misses_and_repeats_nothing() {
    let world = World::start();
    let all: String = (1..=40_000).map(|n| format!("{n}\r\n")).collect();
    let run = command("seq 20000; until [ -e go ]; do sleep 0.02; done; seq 20001 40000; exit 3");
    let mut first = Marked::start(&world, &format!("new {run}"));
    first.read(50_000);
    let (output, marks, _) = first.end(true);
    let at = |sent, position| Mark::At {
        job: 7,
        terminal: 1,
        sent,
        position,
    };
    assert_eq!(marks, [at(0, 0)]);
    assert_eq!(output, all.as_bytes()[..output.len()]);
    // All that was printed is in the terminal's memory: what the server has in hand as it is killed is lost.
    let mut second = Marked::start(&world, "id=1");
    second.read(all.find("20001").unwrap());
    second.end(true);
    kill_server(&world);
    std::fs::write(world.path("home/go"), "").unwrap();
    let seen = output.len();
    let (rest, marks, code) = Marked::start(&world, &format!("id=1 seen={seen} job=7")).end(false);
    let exited = Mark::Exited { status: 3, signal: 0 };
    assert_eq!(marks, [at(0, seen as u64), exited]);
    assert!([output, rest].concat() == all.as_bytes(), "other bytes");
    assert_eq!(code, Some(3));
    // What nobody can have seen is not believed.
    let (again, marks, _) = Marked::start(&world, "id=1 seen=99999999").end(false);
    assert_eq!(marks[0], at(0, 0));
    assert!(again == all.as_bytes());
}

#[test]
fn what_cannot_be_is_refused_with_the_reason() {
    let world = World::start();
    for (words, reason) in [
        ("id=1", "there is no terminal 1 here"),
        ("name=work", "there is no terminal work here"),
        ("read-only", "there is no terminal here to look at"),
        ("new job=8", "this is job 7; the one that was meant is over"),
        ("old", "\"old\" is no option of carrel-terminal"),
        ("name=7", "\"7\" is no name for a terminal"),
    ] {
        let mut plain = attach(&world, words);
        assert_eq!(plain.code(), 1, "{words}");
        plain.wait(&format!("carrel: {reason}"));
        if words.contains('=') && !words.contains("name=7") {
            let (_, marks, code) = Marked::start(&world, words).end(false);
            assert_eq!((marks, code), (vec![Mark::Refused(reason.into())], Some(1)));
        }
    }
    let output = world.ssh(&["-s", "s", &format!("{SUBSYSTEM} new")]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "carrel: a terminal is needed on your side: ssh -t\r\n"
    );
    assert!(list(&world).terminals.is_empty());
    // A certificate that may not have terminals has none of these either.
    world.certify("user", &["-n", "alice", "-V", "-5m:+1h", "-O", "no-pty"]);
    let output = world.ssh(&["-s", "s", &format!("{SUBSYSTEM} list")]);
    assert_eq!(output.status.code(), Some(255), "{output:?}");
}

#[test]
fn there_are_so_many_terminals_and_no_more() {
    let world = World::start();
    let sleep = command("echo up; exec sleep 1000");
    let limit = 32;
    for _ in 0..limit {
        let terminal = attach(&world, &format!("new {sleep}"));
        terminal.wait("up");
        terminal.cut();
    }
    let mut refused = attach(&world, "new");
    assert_eq!(refused.code(), 1);
    refused.wait("carrel: 32 terminals are open here, which is the most: end one of them first");
    // One that ends makes room, and those that have ended are known for a while only.
    for round in 0..10 {
        let mut terminal = attach(&world, &format!("id={}", limit + round));
        terminal.wait("up");
        terminal.write("\x03");
        terminal.code();
        let next = attach(&world, &format!("new {sleep}"));
        next.wait("up");
        next.cut();
    }
    assert_eq!(list(&world).terminals.len(), limit);
    let mut forgotten = attach(&world, &format!("id={limit}"));
    assert_eq!(forgotten.code(), 1);
    forgotten.wait("carrel: terminal 32 has ended, and how is no longer known here");
}
