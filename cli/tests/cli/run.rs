//! The program as a child, watched while it runs.

use std::io::{Read, Write as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::fake::Fake;

/// For conditions that come at once unless something is broken.
const PATIENCE: Duration = Duration::from_secs(30);

/// `carrel` with arguments, as a user of this broker whose home is its directory.
pub fn carrel(fake: &Fake, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_carrel"));
    let bin = fake.dir.path().join("bin");
    command
        .args(args)
        .env_clear()
        .env("HOME", fake.dir.path())
        .env("PATH", format!("{}:/usr/bin:/bin", bin.display()))
        .env("CARREL_BROKER", format!("unix:{}", fake.socket().display()))
        .stdin(Stdio::null());
    command
}

/// Puts a script in the place of a program. A shell writes it: a file that this process had open
/// for writing while another test forks could not be executed (ETXTBSY).
pub fn script(fake: &Fake, name: &str, body: &str) {
    let path = fake.dir.path().join("bin").join(name);
    let written = Command::new("sh")
        .args([
            "-c",
            r#"mkdir -p "$(dirname "$0")" && printf '#!/bin/sh\n%s\n' "$1" > "$0" && chmod 755 "$0""#,
        ])
        .arg(path)
        .arg(body)
        .status();
    assert!(written.expect("sh").success());
}

/// What a finished program left.
#[derive(Debug)]
pub struct Done {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs it to its end.
pub fn run(mut command: Command) -> Done {
    let output = command.output().expect("it starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Done {
        code: output.status.code(),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

/// A running program.
pub struct Running {
    child: Child,
    stdout: Text,
    stderr: Text,
}

/// What a pipe has given so far.
struct Text {
    text: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Text {
    fn of(mut pipe: impl Read + Send + 'static) -> Self {
        let text = Arc::new(Mutex::new(String::new()));
        let shared = Arc::clone(&text);
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 1024];
            while let Ok(count @ 1..) = pipe.read(&mut buffer) {
                shared
                    .lock()
                    .expect("no panic")
                    .push_str(&String::from_utf8_lossy(&buffer[..count]));
            }
        });
        Self {
            text,
            reader: Some(reader),
        }
    }

    fn so_far(&self) -> String {
        self.text.lock().expect("no panic").clone()
    }

    fn all(&mut self) -> String {
        if let Some(reader) = self.reader.take() {
            reader.join().expect("no panic");
        }
        self.so_far()
    }
}

impl Running {
    /// Starts it.
    pub fn start(mut command: Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let stdout = Text::of(child.stdout.take().expect("a pipe"));
        let stderr = Text::of(child.stderr.take().expect("a pipe"));
        Self {
            child,
            stdout,
            stderr,
        }
    }

    /// Waits until it has said something on stderr.
    #[track_caller]
    pub fn until_said(&self, what: &str) {
        until(
            || self.stderr.so_far().contains(what),
            || format!("{what:?} in {:?}", self.stderr.so_far()),
        );
    }

    /// Waits until it has shown something on stdout.
    #[track_caller]
    pub fn until_shown(&self, what: &str) {
        until(
            || self.stdout.so_far().contains(what),
            || format!("{what:?} in {:?}", self.stdout.so_far()),
        );
    }

    /// Types.
    pub fn write(&mut self, text: &str) {
        self.child
            .stdin
            .as_mut()
            .expect("a pipe")
            .write_all(text.as_bytes())
            .expect("it reads");
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("it lives");
    }

    /// Waits for its end.
    pub fn end(mut self) -> Done {
        let status: ExitStatus = self.child.wait().expect("a child");
        Done {
            code: status.code(),
            stdout: self.stdout.all(),
            stderr: self.stderr.all(),
        }
    }
}

/// Waits for a condition.
#[track_caller]
pub fn until(mut condition: impl FnMut() -> bool, what: impl Fn() -> String) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "still not so: {}", what());
        std::thread::sleep(Duration::from_millis(5));
    }
}
