//! Exec and shell with the real OpenSSH client: what runs, where, with what, and how it ends.

mod support;

use std::io::{Read, Write};
use std::process::Stdio;

use portable_pty::PtySize;
use support::terminal::Terminal;
use support::{Way, World, wait_for};

#[test]
fn exec_has_the_allocation_in_its_environment_and_starts_at_home() {
    let world = World::start();
    assert_eq!(world.say("echo $SLURM_JOB_ID $USER $LOGNAME; echo $HOME; pwd"), {
        let home = world.path("home");
        format!("7 alice alice\n{0}\n{0}\n", home.display())
    });
    let mut client = world.client("ssh");
    let output = client
        .env("LC_TEST", "ok")
        .args(["-o", "SendEnv=LC_TEST", "s", "echo $LC_TEST"])
        .output()
        .unwrap();
    world.check(&output);
    assert_eq!(output.stdout, b"ok\n");
    let output = world.ssh(&["-o", "SetEnv=BASH_ENV=/tmp/x", "s", "echo ${BASH_ENV-unset}"]);
    assert_eq!(output.stdout, b"unset\n");
}

#[test]
fn exit_codes_signals_and_stderr_come_through() {
    let world = World::start();
    let output = world.ssh(&["s", "echo out; echo err >&2; exit 42"]);
    assert_eq!(output.status.code(), Some(42));
    assert_eq!(
        (output.stdout, output.stderr),
        (b"out\n".to_vec(), b"err\n".to_vec())
    );
    // A death by signal is 255 to OpenSSH's client.
    assert_eq!(world.ssh(&["s", "kill -TERM $$"]).status.code(), Some(255));
    assert_eq!(world.ssh(&["s", "no-such-program"]).status.code(), Some(127));
}

#[test]
fn input_reaches_the_command_to_its_end_and_comes_back_whole() {
    let world = World::start();
    let mut child = world
        .client("ssh")
        .args(["s", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let data: Vec<u8> = (0..20_000_000_u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let mut input = child.stdin.take().unwrap();
    let sent = data.clone();
    let writer = std::thread::spawn(move || input.write_all(&sent).unwrap());
    let mut back = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut back).unwrap();
    writer.join().unwrap();
    assert!(child.wait().unwrap().success(), "{}", world.log());
    assert!(back == data, "{} of {} bytes", back.len(), data.len());
}

/// Output that grows far beyond its input must not wait for the rest of the input.
#[test]
fn a_command_that_expands_its_input_does_not_stall() {
    let world = World::start();
    let command = "head -c 64M /dev/zero | gzip -1 | cat - - > big.gz; \
        while IFS= read -r -N 100000 chunk; do printf '%s%s%s%s%s' \"$chunk\" \"$chunk\" \"$chunk\" \"$chunk\" \"$chunk\"; done";
    let mut child = world
        .client("ssh")
        .args(["s", command])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || input.write_all(&vec![b'x'; 12_000_000]).unwrap());
    let mut length = 0_u64;
    let mut output = child.stdout.take().unwrap();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let count = output.read(&mut buffer).unwrap();
        if count == 0 {
            break;
        }
        length += count as u64;
    }
    writer.join().unwrap();
    assert_eq!(length, 60_000_000);
    child.wait().unwrap();
}

/// A command that does not read stops its own channel only.
#[test]
fn a_stalled_channel_does_not_stop_the_others_of_its_connection() {
    let world = World::start();
    let control = world.path("control");
    let master = ["-o", "ControlMaster=yes", "-o", "ControlPersist=no", "-N", "-S"];
    let mut master = world
        .client("ssh")
        .args(master)
        .arg(&control)
        .arg("s")
        .spawn()
        .unwrap();
    wait_for("control socket", || control.exists());
    let with = |arguments: &[&str]| {
        let mut command = world.client("ssh");
        command.arg("-S").arg(&control).args(arguments);
        command
    };
    let mut stalled = with(&["s", "exec sleep 1000"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = stalled.stdin.take().unwrap();
    std::thread::spawn(move || {
        let block = vec![0; 1 << 20];
        while input.write_all(&block).is_ok() {}
    });
    for _ in 0..3 {
        let output = with(&["s", "head -c 5M /dev/zero | wc -c"]).output().unwrap();
        assert_eq!(output.stdout, b"5242880\n", "{}", world.log());
    }
    let status = world.control().next();
    assert_eq!(status.connections, 1, "all of them share one");
    stalled.kill().unwrap();
    stalled.wait().unwrap();
    master.kill().unwrap();
    master.wait().unwrap();
}

#[test]
fn background_processes_outlive_their_command() {
    let world = World::start();
    let pid = world.say("nohup sleep 1000 > /dev/null 2>&1 & echo $!");
    let alive = format!("/proc/{}", pid.trim());
    assert!(std::path::Path::new(&alive).exists());
    // As with sshd, output that is still open is waited for.
    assert_eq!(world.say("(sleep 0.3; echo late) & echo early"), "early\nlate\n");
    drop(world);
    assert!(!std::path::Path::new(&alive).exists(), "the end of all ends it");
}

#[test]
fn a_shell_has_a_terminal_that_follows_the_clients_size() {
    let world = World::start_with(Way::Raw, |config| config.banner = "ends at noon".into());
    let mut terminal = Terminal::open(&world, &["s"]);
    terminal.wait("ends at noon\r\n");
    terminal.line("echo term=$TERM size=$(stty size) tty=$SSH_TTY name=$0");
    terminal.wait("term=xterm-256color size=33 101 tty=/dev/pts/");
    terminal.wait("name=-bash");
    terminal.line("trap 'echo now=$(stty size)' WINCH; echo ready=$((1+1))");
    terminal.wait("ready=2");
    terminal
        .master
        .resize(PtySize {
            rows: 50,
            cols: 120,
            pixel_width: 0,
            pixel_height: 0,
        })
        .unwrap();
    wait_for("the new size", || {
        terminal.line("");
        terminal.seen().contains("now=50 120")
    });
    // The interrupt key reaches the foreground process.
    terminal.line("sleep 1000; echo after=$?");
    terminal.wait("after=$?");
    let status = world.control().until(|status| status.processes == 1);
    assert!(status.idle_ms.is_some());
    terminal.input.write_all(b"\x03").unwrap();
    terminal.line("echo next=$((2+2))");
    terminal.wait("next=4");
    terminal.line("exit 3");
    assert_eq!(terminal.child.wait().unwrap().exit_code(), 3);
}

#[test]
fn a_lost_connection_hangs_its_terminal_up() {
    let world = World::start();
    let mut terminal = Terminal::open(&world, &["-t", "s", "echo pid=$$; exec sleep 1000"]);
    terminal.wait("pid=");
    wait_for("the process", || world.control().next().processes == 1);
    terminal.child.kill().unwrap();
    world
        .control()
        .until(|status| status.processes == 0 && status.connections == 0);
}

#[test]
fn a_client_may_send_signals() {
    // OpenSSH's client has no way to; the multiplexer's escape is none either. What it sends for
    // ~B is a break. So: a terminal's keys, above, and a hangup here.
    let world = World::start();
    let mut terminal = Terminal::open(
        &world,
        &[
            "-t",
            "s",
            "trap 'echo hup >> hups; exit' HUP; echo up; while :; do sleep 0.1; done",
        ],
    );
    terminal.wait("up");
    terminal.child.kill().unwrap();
    let mark = world.path("home/hups");
    wait_for("the hangup", || mark.exists());
}

#[test]
fn everything_works_through_the_resumable_stream_too() {
    let world = World::start_with(Way::Framed, |_| {});
    assert_eq!(world.say("echo framed"), "framed\n");
    let output = world.ssh(&["s", "head -c 30M /dev/zero; exit 5"]);
    assert_eq!(
        (output.stdout.len(), output.status.code()),
        (30 << 20, Some(5)),
        "{}",
        world.log()
    );
    let mut child = world
        .client("ssh")
        .args(["s", "wc -c"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&vec![1; 30 << 20]).unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"31457280\n");
}
