//! `carrel alloc`: waiting, leaving, and never a GPU left behind.

use std::process::{Command, Stdio};

use carrel_proto::v1::{JobState, SessionState};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::fake::{Fake, JOB};
use crate::run::{Running, carrel, run, script, until};

const STOPPED: &str = "stop alloc-17 job 17";

/// An ssh that lasts as long as the test, whose directory goes with it.
const UNTIL_THE_END: &str = "touch \"$HOME/in\"; while [ -e \"$HOME/in\" ]; do sleep 0.05; done";

fn is_stopped(fake: &Fake) -> bool {
    fake.world().calls.iter().any(|call| call == STOPPED)
}

#[test]
fn a_grant_without_a_shell_is_printed_and_kept() {
    let fake = Fake::start(JobState::Running);
    let done = run(carrel(
        &fake,
        &["alloc", "--gpus", "h100:4", "--no-shell", "--output", "json"],
    ));
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(
        done.stderr,
        "carrel: Granted job allocation 17: h100-01 GPUs 0-3 (NV18, exclusive)\n"
    );
    let job: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_eq!((&job["id"], &job["state"]), (&JOB.into(), &"RUNNING".into()));
    assert_eq!(job["nodes"][0]["gpus"][3]["uuid"], "GPU-3");
    assert!(!is_stopped(&fake));
    let request = fake.world().request.expect("a request");
    let resources = request.spec.and_then(|spec| spec.resources).expect("resources");
    assert_eq!(
        (resources.gpus_per_node, resources.gpu_model.as_str()),
        (4, "h100")
    );
    assert!(request.must_start && request.ephemeral && request.request_key.len() == 32);
}

#[test]
fn a_wait_says_why_and_in_which_place() {
    let fake = Fake::start(JobState::Pending);
    fake.change(|world| world.reason = "Resources: fewer than 4 free GPUs".into());
    let alloc = Running::start(carrel(&fake, &["alloc", "--gpus", "4", "--no-shell"]));
    alloc.until_said(
        "carrel: Pending job allocation 17, 2nd in the queue: Resources: fewer than 4 free GPUs\n",
    );
    fake.change(|world| world.put(JobState::Pending, "Priority"));
    alloc.until_said("carrel: Pending job allocation 17, 2nd in the queue: Priority\n");
    fake.change(|world| world.put(JobState::Configuring, ""));
    alloc.until_said("carrel: Granted job allocation 17: h100-01 GPUs 0-3 (NV18, exclusive)\n");
    fake.change(|world| {
        let job = world
            .session
            .as_mut()
            .and_then(|s| s.job.as_mut())
            .expect("a job");
        job.nodes[0].progress = "pulling image, 34 %".into();
    });
    alloc.until_said("carrel: Starting job 17: h100-01: pulling image, 34 %\n");
    fake.change(|world| world.put(JobState::Running, ""));
    assert_eq!(alloc.end().code, Some(0));
    assert!(!is_stopped(&fake));
}

#[test]
fn leaving_the_queue_cancels() {
    for (signal, code) in [
        (Signal::SIGINT, 130),
        (Signal::SIGTERM, 143),
        (Signal::SIGHUP, 129),
    ] {
        let fake = Fake::start(JobState::Pending);
        let alloc = Running::start(carrel(&fake, &["alloc", "--gpus", "4", "--", "true"]));
        alloc.until_said("Pending job allocation 17");
        alloc.signal(signal);
        let done = alloc.end();
        assert_eq!(done.code, Some(code), "{done:?}");
        assert!(
            done.stderr.contains("Job allocation 17 has been cancelled"),
            "{done:?}"
        );
        assert!(is_stopped(&fake));
    }
}

#[test]
fn a_broker_that_restarts_is_waited_for() {
    let fake = Fake::start(JobState::Pending);
    let alloc = Running::start(carrel(&fake, &["alloc", "--gpus", "4", "--no-shell"]));
    alloc.until_said("Pending job allocation 17");
    fake.stop();
    alloc.until_said("the broker does not answer");
    fake.serve();
    fake.change(|world| world.put(JobState::Running, ""));
    let done = alloc.end();
    assert_eq!(done.code, Some(0), "{done:?}");
}

#[test]
fn a_command_s_code_passes_through_and_the_gpus_are_freed() {
    let fake = Fake::start(JobState::Running);
    script(
        &fake,
        "ssh",
        "printf '%s\\n' \"$@\" > \"$HOME/args\"; cat; exit 7",
    );
    let mut command = carrel(&fake, &["alloc", "--gpus", "4", "--", "train", "--lr", "1 e-3"]);
    let stdin = fake.dir.path().join("stdin");
    std::fs::write(&stdin, "from stdin").unwrap();
    command.stdin(std::fs::File::open(&stdin).unwrap());
    let done = run(command);
    assert_eq!(
        (done.code, done.stdout.as_str()),
        (Some(7), "from stdin"),
        "{done:?}"
    );
    assert!(
        done.stderr.ends_with("carrel: Relinquishing job allocation 17\n"),
        "{done:?}"
    );
    assert!(is_stopped(&fake));
    let args = std::fs::read_to_string(fake.dir.path().join("args")).unwrap();
    for expected in [
        "-F\nnone\n",
        "HostKeyAlias=alloc-17.alice.carrel\n",
        "StrictHostKeyChecking=yes\n",
        " proxy alloc-17 --no-start\n",
        "-T\n--\ncarrel-alloc-17\n",
        " sh train --lr '1 e-3'\n",
    ] {
        assert!(args.contains(expected), "no {expected:?} in {args}");
    }
}

#[test]
fn a_connection_that_never_was_frees_the_gpus_and_says_why() {
    let fake = Fake::start(JobState::Running);
    script(
        &fake,
        "ssh",
        "echo 'none the gateway is down' > \"$CARREL_PROXY_REPORT\"; exit 255",
    );
    let done = run(carrel(&fake, &["alloc", "--gpus", "4"]));
    assert_eq!(done.code, Some(255), "{done:?}");
    assert!(
        done.stderr
            .contains("error: no connection to session alloc-17: the gateway is down"),
        "{done:?}"
    );
    assert!(is_stopped(&fake));
}

#[test]
fn a_job_that_ended_by_itself_is_said_to_have() {
    let fake = Fake::start(JobState::Running);
    script(
        &fake,
        "ssh",
        "touch \"$HOME/in\"; while [ ! -e \"$HOME/out\" ]; do sleep 0.01; done; exit 255",
    );
    let alloc = Running::start(carrel(&fake, &["alloc", "--gpus", "4", "--", "sleep", "inf"]));
    until(|| fake.dir.path().join("in").exists(), || "ssh runs".into());
    fake.change(|world| world.put(JobState::Timeout, ""));
    std::fs::write(fake.dir.path().join("out"), "").unwrap();
    let done = alloc.end();
    assert_eq!(done.code, Some(255), "{done:?}");
    assert!(
        done.stderr.contains("carrel: job 17 reached its time limit\n"),
        "{done:?}"
    );
    assert!(!is_stopped(&fake), "there was nothing to stop");
}

#[test]
fn signals_under_a_shell() {
    // The terminal goes away: the allocation stays, for a return.
    let fake = Fake::start(JobState::Running);
    script(&fake, "ssh", UNTIL_THE_END);
    let alloc = Running::start(carrel(&fake, &["alloc", "--gpus", "4"]));
    until(|| fake.dir.path().join("in").exists(), || "ssh runs".into());
    alloc.signal(Signal::SIGINT);
    alloc.signal(Signal::SIGHUP);
    alloc.until_said("`carrel attach alloc-17` returns to it");
    assert!(!is_stopped(&fake));
    drop(alloc);

    // Told to end: the GPUs are freed.
    let fake = Fake::start(JobState::Running);
    script(&fake, "ssh", UNTIL_THE_END);
    let alloc = Running::start(carrel(&fake, &["alloc", "--gpus", "4"]));
    until(|| fake.dir.path().join("in").exists(), || "ssh runs".into());
    alloc.signal(Signal::SIGTERM);
    assert_eq!(alloc.end().code, Some(143));
    assert!(is_stopped(&fake));
}

#[test]
fn a_missing_ssh_frees_the_gpus() {
    let fake = Fake::start(JobState::Running);
    let mut command = carrel(&fake, &["alloc", "--gpus", "4"]);
    command.env("PATH", "/nonexistent");
    let done = run(command);
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(done.stderr.contains("openssh-client"), "{done:?}");
    assert!(is_stopped(&fake));
}

#[test]
fn immediate_gives_up_with_the_reason() {
    let fake = Fake::start(JobState::Pending);
    fake.change(|world| world.reason = "Resources: fewer than 4 free GPUs".into());
    let done = run(carrel(
        &fake,
        &["alloc", "--gpus", "4", "--immediate", "--", "true"],
    ));
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(
        done.stderr
            .contains("not granted in time: Resources: fewer than 4 free GPUs"),
        "{done:?}"
    );
    assert!(is_stopped(&fake));
}

#[test]
fn a_job_that_fails_to_start_says_why() {
    let fake = Fake::start(JobState::Configuring);
    let alloc = Running::start(carrel(&fake, &["alloc", "--gpus", "4"]));
    alloc.until_said("Granted job allocation");
    fake.change(|world| world.put(JobState::Failed, "image nowhere/none: not found"));
    let done = alloc.end();
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(
        done.stderr
            .contains("error: job 17 failed: image nowhere/none: not found\n"),
        "{done:?}"
    );
}

#[test]
fn a_refusal_is_shown_with_its_hint() {
    let fake = Fake::start(JobState::Running);
    let mut refusal = tonic::Status::failed_precondition("9 GPUs on one node; the largest has 8");
    refusal
        .metadata_mut()
        .insert("carrel-hint", "ask for 8, or for two nodes".parse().unwrap());
    fake.change(|world| world.refusal = Some(refusal));
    let done = run(carrel(&fake, &["alloc", "--gpus", "9"]));
    assert_eq!(done.code, Some(1), "{done:?}");
    assert_eq!(
        done.stderr,
        "error: 9 GPUs on one node; the largest has 8\nhint: ask for 8, or for two nodes\n"
    );
}

#[test]
fn a_named_session_stays_with_its_alias() {
    let fake = Fake::start(JobState::Running);
    script(&fake, "ssh", "exit 0");
    let done = run(carrel(&fake, &["alloc", "--gpus", "4", "--name", "dev"]));
    assert_eq!(done.code, Some(0), "{done:?}");
    let world = fake.world();
    assert!(!world.request.expect("a request").ephemeral);
    assert_eq!(world.session.expect("it stays").state(), SessionState::Stopped);
    let config = std::fs::read_to_string(fake.dir.path().join(".ssh/carrel/config")).unwrap();
    assert!(config.contains("Host carrel-dev\n"), "{config}");
    assert!(
        !fake.dir.path().join(".ssh/config").exists(),
        "the user's own is for `open` to change"
    );
}

/// `carrel alloc --gpus 4` on a terminal.
fn on_a_terminal(fake: &Fake) -> Running {
    let alloc = carrel(fake, &["alloc", "--gpus", "4"]);
    let line = format!("exec {} alloc --gpus 4", env!("CARGO_BIN_EXE_carrel"));
    let mut terminal = Command::new("script");
    terminal
        .args(["-qefc", &line, "/dev/null"])
        .env_clear()
        .env("TERM", "xterm")
        .stdin(Stdio::piped());
    terminal.envs(
        alloc
            .get_envs()
            .filter_map(|(name, value)| value.map(|value| (name, value))),
    );
    Running::start(terminal)
}

#[test]
fn on_a_terminal_one_living_line_waits_and_ctrl_c_cancels() {
    let fake = Fake::start(JobState::Pending);
    fake.change(|world| world.reason = "Resources: fewer than 4 free GPUs".into());
    let mut terminal = on_a_terminal(&fake);
    terminal.until_shown("fewer than");
    terminal.write("\x03");
    let done = terminal.end();
    assert_eq!(done.code, Some(130), "{done:?}");
    assert!(
        done.stdout.contains("Job allocation 17 has been cancelled"),
        "{done:?}"
    );
    assert!(is_stopped(&fake));
}

/// An ssh that shows a terminal and breaks; each later time it does `next`.
fn breaking(fake: &Fake, next: &str) {
    let body = format!(
        r#"echo "$*" >> "$HOME/args"
if [ -e "$HOME/broken" ]; then
{next}
fi
touch "$HOME/broken"
printf '\036at 17 1 0 0\n' >&2
printf 'one\n$ tw'
echo 'broken the gateway died' > "$CARREL_PROXY_REPORT"; exit 255"#
    );
    script(fake, "ssh", &body);
}

#[test]
fn a_shell_is_attached_again_where_it_was_and_its_code_passes_through() {
    let fake = Fake::start(JobState::Running);
    // The second attempt fails as well, before it is attached.
    breaking(
        &fake,
        r#"[ -e "$HOME/twice" ] || { touch "$HOME/twice"; echo 'none no gateway is up' > "$CARREL_PROXY_REPORT"; exit 255; }
printf '\036at 17 1 0 4\n' >&2
printf '$ two\n'
printf '\036exited 7 0\n' >&2
exit 7"#,
    );
    let done = on_a_terminal(&fake).end();
    assert_eq!(done.code, Some(7), "{done:?}");
    for expected in [
        "one\r\n$ tw",
        "carrel: the connection to alloc-17 is lost: the gateway died; reattaching",
        "carrel: reattached",
        "$ two\r\n",
        "carrel: Relinquishing job allocation 17",
    ] {
        assert!(done.stdout.contains(expected), "{expected:?} in {done:?}");
    }
    assert!(is_stopped(&fake));
    let args = std::fs::read_to_string(fake.dir.path().join("args")).unwrap();
    let asked: Vec<_> = args
        .lines()
        .filter_map(|line| Some(line.split_once("carrel-terminal ")?.1))
        .collect();
    // From the beginning of the line that the break cut.
    let again = "id=1 marks seen=4 job=17";
    assert_eq!(asked, ["new marks job=17", again, again]);
    assert!(
        args.lines()
            .all(|line| line.contains(" proxy alloc-17 --no-start")),
        "nothing starts it anew: {args}"
    );
}

#[test]
fn who_does_not_wait_for_a_connection_keeps_the_allocation() {
    let fake = Fake::start(JobState::Running);
    breaking(
        &fake,
        r#"echo 'none no gateway is up' > "$CARREL_PROXY_REPORT"; exit 255"#,
    );
    let mut terminal = on_a_terminal(&fake);
    terminal.until_shown("Reattaching: no gateway is up");
    terminal.write("\x03");
    let done = terminal.end();
    assert_eq!(done.code, Some(130), "{done:?}");
    assert!(
        done.stdout.contains("carrel: not reattached; job 17 goes on until its deadline: `carrel attach alloc-17` returns to it"),
        "{done:?}"
    );
    assert!(!is_stopped(&fake));
}

#[test]
fn a_job_that_ends_meanwhile_ends_the_waiting() {
    let fake = Fake::start(JobState::Running);
    breaking(
        &fake,
        r#"touch "$HOME/again"; echo 'none it is not running' > "$CARREL_PROXY_REPORT"; exit 255"#,
    );
    let terminal = on_a_terminal(&fake);
    until(|| fake.dir.path().join("again").exists(), || "it tries".into());
    fake.change(|world| world.put(JobState::Timeout, ""));
    let done = terminal.end();
    assert_eq!(done.code, Some(255), "{done:?}");
    assert!(
        done.stdout.contains("carrel: job 17 reached its time limit"),
        "{done:?}"
    );
    assert!(!is_stopped(&fake), "there was nothing to stop");
}

#[test]
fn leaving_by_ssh_s_escape_keeps_the_allocation() {
    let fake = Fake::start(JobState::Running);
    script(
        &fake,
        "ssh",
        r"printf '\036at 17 1 0 0\n' >&2; printf 'Connection to carrel-alloc-17 closed.\r\n' >&2; exit 255",
    );
    let done = on_a_terminal(&fake).end();
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(
        done.stdout
            .contains("carrel: left; job 17 goes on until its deadline"),
        "{done:?}"
    );
    assert!(!done.stdout.contains("Connection to"), "{done:?}");
    assert!(!is_stopped(&fake));
}

#[test]
fn a_refusal_frees_what_cannot_be_used() {
    let fake = Fake::start(JobState::Running);
    script(
        &fake,
        "ssh",
        r"printf '\036refused this image has no shell\n' >&2; exit 1",
    );
    let done = on_a_terminal(&fake).end();
    assert_eq!(done.code, Some(255), "{done:?}");
    assert!(
        done.stdout.contains("alloc-17: this image has no shell"),
        "{done:?}"
    );
    assert!(is_stopped(&fake));
}
