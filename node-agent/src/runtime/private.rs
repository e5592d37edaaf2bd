//! A containerd of our own, for hosts that run none.
//!
//! It runs in its own session and outlives the agent; a restarted agent finds
//! it again by its socket. Everything that it has lies under one directory.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::net::UnixStream;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use super::client::find_program;

/// Longest path of a Unix socket (`sun_path` less the final zero), for containerd's second one.
const MAX_SOCKET_PATH: usize = 107;
/// How long a containerd may take to open its socket. It is there within a second on an idle host.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long it may take to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// Between two looks at a starting or ending containerd.
const POLL: Duration = Duration::from_millis(20);

/// Plugins that we never use; some create directories outside our own.
const DISABLED_PLUGINS: [&str; 7] = [
    "io.containerd.grpc.v1.cri",
    "io.containerd.internal.v1.opt",
    "io.containerd.internal.v1.restart",
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.zfs",
];

/// A containerd in a directory of its own.
pub(crate) struct PrivateContainerd {
    dir: PathBuf,
    /// One starts it at a time.
    starting: Mutex<()>,
    /// Ended on purpose: a later call must not start it again.
    ended: AtomicBool,
}

impl PrivateContainerd {
    /// The containerd of `dir`; nothing is started yet.
    ///
    /// # Errors
    /// The directory's path is too long for a socket in it.
    pub fn new(dir: PathBuf) -> Result<Self> {
        let this = Self {
            dir,
            starting: Mutex::new(()),
            ended: AtomicBool::new(false),
        };
        let length = this.ttrpc_socket().as_os_str().len();
        ensure!(
            length <= MAX_SOCKET_PATH,
            "the state directory's path is too long: containerd's socket {} would have {length} bytes, \
             Unix sockets may have {MAX_SOCKET_PATH}; choose a shorter state directory",
            this.ttrpc_socket().display(),
        );
        Ok(this)
    }

    /// Its gRPC socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("c.sock")
    }

    /// Where runc keeps its state: two containerds must not share it.
    pub fn runc_root(&self) -> PathBuf {
        self.dir.join("runc")
    }

    fn ttrpc_socket(&self) -> PathBuf {
        self.dir.join("c.sock.ttrpc")
    }

    fn config_path(&self) -> PathBuf {
        self.dir.join("config.toml")
    }

    fn log_path(&self) -> PathBuf {
        // Beside the directory, where people look for logs.
        self.dir.with_extension("log")
    }

    /// Starts it unless it runs; returns when its socket takes connections.
    pub async fn ensure_running(&self) -> Result<()> {
        let _starting = self.starting.lock().await;
        if UnixStream::connect(self.socket()).await.is_ok() {
            return Ok(());
        }
        ensure!(
            !self.ended.load(Ordering::Acquire),
            "the private containerd was stopped"
        );
        if self.pid().is_none() {
            self.forget_earlier_boot()
                .context("clearing what an earlier boot left of containerd")?;
            let pid = self.spawn()?;
            tracing::info!(pid, socket = %self.socket().display(), "started a private containerd");
        }
        let deadline = Instant::now() + START_TIMEOUT;
        while UnixStream::connect(self.socket()).await.is_err() {
            if self.pid().is_none() {
                bail!(
                    "containerd ended at its start; {} says: {}",
                    self.log_path().display(),
                    self.last_log()
                );
            }
            if Instant::now() > deadline {
                bail!(
                    "containerd did not open {} within {} s; see {}",
                    self.socket().display(),
                    START_TIMEOUT.as_secs(),
                    self.log_path().display()
                );
            }
            sleep(POLL).await;
        }
        Ok(())
    }

    /// Ends it, if it runs.
    pub async fn stop(&self) -> Result<()> {
        self.ended.store(true, Ordering::Release);
        let _starting = self.starting.lock().await;
        let Some(pid) = self.pid() else { return Ok(()) };
        kill(pid, Signal::SIGTERM).context("ending containerd")?;
        let deadline = Instant::now() + STOP_TIMEOUT;
        while self.pid().is_some() {
            if Instant::now() > deadline {
                bail!(
                    "containerd (process {pid}) does not end; see {}",
                    self.log_path().display()
                );
            }
            sleep(POLL).await;
        }
        Ok(())
    }

    /// The running process, told from another that took its number by its command line.
    fn pid(&self) -> Option<Pid> {
        let pid: i32 = fs::read_to_string(self.dir.join("pid"))
            .ok()?
            .trim()
            .parse()
            .ok()?;
        let command_line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let config = self.config_path();
        // Empty for a process that ended and was not waited for; and for an instant of execve(2).
        let ours = if command_line.is_empty() {
            !has_ended(pid)
        } else {
            command_line
                .split(|byte| *byte == 0)
                .any(|argument| argument == config.as_os_str().as_encoded_bytes())
        };
        ours.then(|| Pid::from_raw(pid))
    }

    fn spawn(&self) -> Result<u32> {
        let containerd = find_program("containerd");
        let runc = find_program("runc");
        let (Some(containerd), Some(_)) = (containerd, runc) else {
            bail!(
                "no containerd is running and {} is not installed: install the packages `containerd` and `runc` \
                 (Debian: apt-get install containerd runc), or name a running containerd's socket",
                if find_program("containerd").is_none() {
                    "`containerd`"
                } else {
                    "`runc`"
                }
            );
        };
        fs::create_dir_all(&self.dir)?;
        fs::write(self.config_path(), self.config()).context("writing containerd's configuration")?;
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_path())?;
        let mut path = std::env::var_os("PATH").unwrap_or_default();
        path.push(":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        let mut command = std::process::Command::new(&containerd);
        command
            .arg("--config")
            .arg(self.config_path())
            .env("PATH", path)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .current_dir("/");
        own_session(&mut command);
        // tokio reaps a child that was dropped; it is never killed by us here.
        let child = tokio::process::Command::from(command)
            .kill_on_drop(false)
            .spawn()
            .with_context(|| format!("starting {}", containerd.display()))?;
        let pid = child.id().context("containerd ended at once")?;
        fs::write(self.dir.join("pid"), format!("{pid}\n"))?;
        Ok(pid)
    }

    /// runc's state and containerd's bundles speak of processes; after a reboot there are none.
    fn forget_earlier_boot(&self) -> Result<()> {
        fs::create_dir_all(&self.dir)?;
        let marker = self.dir.join("boot-id");
        let boot = boot_id()?;
        if fs::read_to_string(&marker).is_ok_and(|earlier| earlier == boot) {
            return Ok(());
        }
        for stale in [self.runc_root(), self.dir.join("state")] {
            match fs::remove_dir_all(&stale) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            }
        }
        fs::write(marker, boot)?;
        Ok(())
    }

    fn config(&self) -> String {
        let quoted = |path: &Path| toml::Value::String(path.display().to_string()).to_string();
        let disabled: Vec<_> = DISABLED_PLUGINS
            .iter()
            .map(|plugin| format!("{plugin:?}"))
            .collect();
        format!(
            "# Written by carrel-node at each start.\nversion = 2\nroot = {}\nstate = {}\ndisabled_plugins = [{}]\n\
             [grpc]\naddress = {}\n[ttrpc]\naddress = {}\n\
             # Ended jobs' files go at once, not after a hundred more.\n\
             [plugins.\"io.containerd.gc.v1.scheduler\"]\ndeletion_threshold = 1\n",
            quoted(&self.dir.join("root")),
            quoted(&self.dir.join("state")),
            disabled.join(", "),
            quoted(&self.socket()),
            quoted(&self.ttrpc_socket()),
        )
    }

    fn last_log(&self) -> String {
        let log = fs::read_to_string(self.log_path()).unwrap_or_default();
        let lines: Vec<_> = log.lines().rev().take(3).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
    }
}

/// A process that is gone, or that nobody has waited for (proc(5): states Z and X).
pub(crate) fn has_ended(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state follows the name, which may hold anything.
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    matches!(state, None | Some('Z' | 'X'))
}

/// The kernel's id of this boot.
pub(crate) fn boot_id() -> Result<String> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").context("reading the boot id")?;
    Ok(text.trim().to_owned())
}

/// Lets the child lead a session of its own, so that no terminal's hangup or interrupt reaches it.
#[allow(unsafe_code)]
fn own_session(command: &mut std::process::Command) {
    // SAFETY: setsid(2) is async-signal-safe and touches no memory of ours.
    unsafe {
        command.pre_exec(|| nix::unistd::setsid().map(drop).map_err(std::io::Error::from));
    }
}
