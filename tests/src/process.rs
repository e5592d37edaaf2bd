//! Running commands to their end, and programs until they are killed.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::sandbox::only_child;
use crate::wait;

/// Longest time a command may take before it is ended and the test fails.
const COMMAND_LIMIT: Duration = Duration::from_mins(2);

/// A command to be run.
#[derive(Clone, Debug)]
pub struct Cmd {
    argv: Vec<OsString>,
    stdin: Vec<u8>,
    limit: Duration,
}

/// What a command did.
#[derive(Clone, Debug)]
pub struct Output {
    command: String,
    /// Its exit code, or 128 + signal.
    pub code: i32,
    /// What it wrote to standard output.
    pub bytes: Vec<u8>,
    /// The same as text.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
}

impl Cmd {
    /// A command with its arguments, run as they stand.
    pub fn new(argv: Vec<OsString>) -> Self {
        Self {
            argv,
            stdin: Vec::new(),
            limit: COMMAND_LIMIT,
        }
    }

    /// One more argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.argv.push(arg.as_ref().to_owned());
        self
    }

    /// More arguments.
    #[must_use]
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.argv
            .extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// What it reads from standard input; nothing when not called.
    #[must_use]
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = bytes.into();
        self
    }

    /// It may take so long, in place of the usual.
    #[must_use]
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// The command line.
    pub fn argv(&self) -> &[OsString] {
        &self.argv
    }

    /// Starts it and comes back at once.
    ///
    /// # Panics
    /// It cannot be started.
    pub fn spawn(self) -> Running {
        let mut child = std::process::Command::new(&self.argv[0])
            .args(&self.argv[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{self}: {error}"));
        let mut stdin = child.stdin.take().expect("piped");
        let input = self.stdin.clone();
        // A command that ends without reading closes the pipe: not this side's business.
        let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
        let stdout = reader(child.stdout.take().expect("piped"));
        let stderr = reader(child.stderr.take().expect("piped"));
        Running {
            command: self.to_string(),
            limit: self.limit,
            child,
            writer,
            stdout,
            stderr,
        }
    }

    /// Runs it to its end.
    ///
    /// # Panics
    /// It does not end in time.
    #[track_caller]
    pub fn run(self) -> Output {
        self.spawn().wait()
    }

    /// Runs it and gives what it wrote to standard output, without the last line end.
    ///
    /// # Panics
    /// It fails.
    #[track_caller]
    pub fn ok(self) -> String {
        self.run().ok()
    }
}

impl fmt::Display for Cmd {
    /// The part of the command line that the test asked for.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<_> = self.argv.iter().map(|word| word.to_string_lossy()).collect();
        let start = words
            .iter()
            .position(|word| word.starts_with("TERM="))
            .map_or(0, |at| at + 1);
        f.write_str(&words[start..].join(" "))
    }
}

impl Output {
    /// Standard output without the last line end.
    ///
    /// # Panics
    /// The command failed: with all that it said.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self}");
        self.stdout.strip_suffix('\n').unwrap_or(&self.stdout).to_owned()
    }

    /// That it failed with this code and said something like each of `words`, in any case of letters.
    ///
    /// # Panics
    /// It did not.
    #[track_caller]
    pub fn fails(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, code, "{self}");
        let said = self.stderr.to_lowercase();
        for word in words {
            assert!(
                said.contains(&word.to_lowercase()),
                "nothing about {word:?}: {self}"
            );
        }
    }
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "`{}` ended with {}", self.command, self.code)?;
        writeln!(
            f,
            "--- stdout ---\n{}\n--- stderr ---\n{}",
            self.stdout.trim_end(),
            self.stderr.trim_end()
        )
    }
}

/// A command that was started.
#[derive(Debug)]
pub struct Running {
    command: String,
    limit: Duration,
    child: Child,
    writer: JoinHandle<()>,
    stdout: JoinHandle<Vec<u8>>,
    stderr: JoinHandle<Vec<u8>>,
}

impl Running {
    /// Whether it has not ended.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends a signal to the command itself (not to what brings it into its sandbox).
    pub fn signal(&self, signal: Signal) {
        send(only_child(self.child.id()), signal);
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// It does not end in time.
    #[track_caller]
    pub fn wait(mut self) -> Output {
        let status = wait::poll(self.limit, || self.child.try_wait().expect("an own child"));
        if status.is_none() {
            self.signal(Signal::SIGKILL);
            send(Some(self.child.id()), Signal::SIGKILL);
        }
        self.writer.join().expect("it does not panic");
        let bytes = self.stdout.join().expect("it does not panic");
        let stderr = self.stderr.join().expect("it does not panic");
        let output = Output {
            command: self.command,
            code: status.map_or(-1, exit_code),
            stdout: String::from_utf8_lossy(&bytes).into_owned(),
            bytes,
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
        };
        assert!(
            status.is_some(),
            "it did not end within {} s: {output}",
            self.limit.as_secs()
        );
        output
    }
}

fn reader(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // A broken pipe ends it as an end of file does.
        drop(from.read_to_end(&mut bytes));
        bytes
    })
}

fn exit_code(status: ExitStatus) -> i32 {
    status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .unwrap_or(-1)
}

/// Whether a process does nothing because it was told so (proc(5): state T).
fn stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| rest.starts_with('T'))
}

fn send(pid: Option<u32>, signal: Signal) {
    if let Some(pid) = pid {
        // It may have ended by itself just now: then there is nobody to send to.
        kill(Pid::from_raw(pid as i32), signal).ok();
    }
}

/// A program that runs until it is ended, with its log in a file.
#[derive(Debug)]
pub struct Daemon {
    name: String,
    argv: Vec<OsString>,
    log: PathBuf,
    child: Option<Child>,
    pid: u32,
}

impl Daemon {
    /// Starts it inside a sandbox; `argv` is a sandbox's command line.
    ///
    /// # Panics
    /// It cannot be started.
    pub fn start(name: &str, argv: Vec<OsString>, logs: &Path) -> Self {
        let mut this = Self {
            name: name.into(),
            argv,
            log: logs.join(format!("{name}.log")),
            child: None,
            pid: 0,
        };
        this.restart();
        this
    }

    /// Starts it again, with the same command line. It must have ended.
    ///
    /// # Panics
    /// It cannot be started.
    pub fn restart(&mut self) {
        assert!(self.child.is_none(), "{} runs", self.name);
        let log = File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .expect("own file");
        let child = std::process::Command::new(&self.argv[0])
            .args(&self.argv[1..])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("own file"))
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", self.name));
        self.pid = only_child(child.id())
            .unwrap_or_else(|| panic!("{} did not start:\n{}", self.name, self.last_log()));
        self.child = Some(child);
    }

    /// Its process id, as the host counts.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// `kill -9`, and waits until it is gone.
    pub fn kill9(&mut self) {
        self.end(Signal::SIGKILL);
    }

    /// Has it do nothing more, as on a host that hangs: until it is killed, or [`Self::go_on`].
    ///
    /// # Panics
    /// It goes on.
    pub fn stand_still(&self) {
        let child = self.child.as_ref().expect("it runs");
        send(Some(self.pid), Signal::SIGSTOP);
        // nsenter(1) stops itself when its child is stopped, and has the child go on when it is continued.
        wait::until(&format!("{} stands still", self.name), || {
            stopped(self.pid) && stopped(child.id())
        });
    }

    /// Has it go on after [`Self::stand_still`]; one that was killed meanwhile, or runs, is let be.
    pub fn go_on(&self) {
        send(self.child.as_ref().map(Child::id), Signal::SIGCONT);
    }

    /// Asks it to end, and gives its exit code.
    ///
    /// # Panics
    /// It does not end.
    pub fn terminate(&mut self) -> i32 {
        self.end(Signal::SIGTERM)
    }

    /// Its exit code, if it ended by itself.
    pub fn ended(&mut self) -> Option<i32> {
        let status = self.child.as_mut()?.try_wait().expect("an own child")?;
        self.child = None;
        Some(exit_code(status))
    }

    fn end(&mut self, signal: Signal) -> i32 {
        let Some(mut child) = self.child.take() else {
            return 0;
        };
        send(Some(self.pid), signal);
        // What brought it into its sandbox stands still when it does: see `stand_still`.
        send(Some(child.id()), Signal::SIGCONT);
        let status = wait::poll(wait::PATIENCE, || child.try_wait().expect("an own child"));
        exit_code(
            status.unwrap_or_else(|| panic!("{} did not end on {signal}:\n{}", self.name, self.last_log())),
        )
    }

    /// All of its log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The last lines of its log, under its name.
    pub fn last_log(&self) -> String {
        const LINES: usize = 40;
        let log = self.log();
        let lines: Vec<_> = log.lines().collect();
        let tail = &lines[lines.len().saturating_sub(LINES)..];
        format!("--- log of {} ---\n{}\n", self.name, tail.join("\n"))
    }
}
