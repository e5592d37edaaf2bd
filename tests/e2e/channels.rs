//! What SSH clients ask of a session besides a shell: commands, terminals, their environment.

use carrel_tests::terminal::Terminal;
use carrel_tests::user::ALICE;

use crate::shared::{self, SMALL};

/// Exit codes and signals of commands are what OpenSSH reports for any host.
#[test]
fn exit_codes() {
    let session = shared::cluster().open(ALICE, "codes", &SMALL);
    for code in [0, 1, 42, 127, 254] {
        assert_eq!(session.ssh([format!("exit {code}")]).run().code, code);
    }
    assert_eq!(
        session.ssh(["kill -KILL $$"]).run().code,
        255,
        "OpenSSH's own code for a signal"
    );
    assert_eq!(session.ssh(["no-such-program"]).run().code, 127);
}

/// Both outputs stay apart, and neither loses or changes a byte.
#[test]
fn bytes_are_exact() {
    let session = shared::cluster().open(ALICE, "bytes", &SMALL);
    let bytes: Vec<u8> = (0..3_000_000_u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    let output = session.ssh(["cat"]).stdin(bytes.clone()).run();
    assert!(
        output.bytes == bytes,
        "{} bytes came back of {}",
        output.bytes.len(),
        bytes.len()
    );
    let output = session.ssh(["echo out; echo err >&2"]).run();
    assert_eq!(
        (output.stdout.as_str(), output.stderr.as_str()),
        ("out\n", "err\n")
    );
}

/// Editors start their server with a script of several KB, as an argument or on standard input.
#[test]
fn long_scripts() {
    let session = shared::cluster().open(ALICE, "scripts", &SMALL);
    let script = format!(
        "{}echo done-$((1 + 1))",
        "# an editor's bootstrap script is long\n".repeat(800)
    );
    assert_eq!(session.ssh([&script]).ok(), "done-2");
    assert_eq!(session.ssh(["bash", "-s"]).stdin(script).ok(), "done-2");
}

/// A background process that keeps no stream open does not keep the connection.
#[test]
fn background_processes_do_not_hold_the_connection() {
    let session = shared::cluster().open(ALICE, "background", &SMALL);
    let pid = session
        .ssh(["sleep 1000 </dev/null >/dev/null 2>&1 & echo $!"])
        .ok();
    assert_eq!(
        session.ssh([format!("kill -0 {pid} && echo lives")]).ok(),
        "lives"
    );
}

/// The allocation's environment is in every channel, not only in a login shell.
#[test]
fn the_allocation_s_environment() {
    let cluster = shared::cluster();
    let session = cluster.open(ALICE, "environment", &[&["--gpus", "2"][..], &SMALL].concat());
    let job = session.record()["job"]["id"].to_string();
    let ask = "echo $SLURM_JOB_ID/$SLURM_JOB_GPUS/$CUDA_VISIBLE_DEVICES/$CARREL_JOB_ID";
    let by_command = session.ssh([ask]).ok();
    let parts: Vec<_> = by_command.split('/').collect();
    assert_eq!((parts[0], parts[3]), (job.as_str(), job.as_str()), "{by_command}");
    assert_eq!(parts[1].split(',').count(), 2, "{by_command}");
    assert_eq!(parts[2].split(',').count(), 2, "{by_command}");

    let mut terminal = Terminal::start(&cluster.ssh(ALICE, ["-tt"]).arg(session.alias()));
    terminal.ask(&format!("{ask} | sed s/^/env:/"), &format!("env:{by_command}"));
    terminal.line("exit");
    assert_eq!(terminal.wait(), 0, "{terminal}");
}

/// Through OpenSSH's own `-t`: a terminal of the right size that follows.
#[test]
fn a_terminal_through_openssh() {
    let cluster = shared::cluster();
    let session = cluster.open(ALICE, "terminal", &SMALL);
    let mut terminal = Terminal::start(&cluster.ssh(ALICE, ["-tt"]).arg(session.alias()));
    terminal.ask("stty size | sed s/^/size:/; echo term:$TERM", "size:24 80");
    terminal.expect("term:xterm");
    terminal.resize(100, 50);
    terminal.ask("stty size | sed s/^/size:/", "size:50 100");
    terminal.line("exit 5");
    assert_eq!(terminal.wait(), 5, "{terminal}");
}

/// No question is ever asked, not even of a client with no known hosts.
#[test]
fn no_prompt_at_first_contact() {
    let session = shared::cluster().open(ALICE, "unasked", &SMALL);
    let output = session.ssh(["true"]).run();
    assert_eq!((output.code, output.stderr.as_str()), (0, ""), "{output}");
}
