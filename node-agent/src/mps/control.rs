//! `nvidia-cuda-mps-control`: run as the daemon of one GPU, and to say something to it.
//!
//! Source: "CUDA Multi-Process Service", Tools and Interface Reference. Daemon, servers and clients meet in a
//! directory of sockets and in `/dev/shm`, and must see both at the same paths. So each run of the program is in a
//! mount namespace of its own in which `/dev/shm` is the GPU's, with the sockets below it, as it is in the containers
//! of that GPU; the host's is not touched.

use std::ffi::{CStr, CString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use carrel_core::model::ids::GpuUuid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

use crate::runtime::DEFAULT_PATH;

/// Where the sockets are, for the daemon and in containers, in the GPU's shared memory: `CUDA_MPS_PIPE_DIRECTORY`.
pub(super) const PIPES: &str = "/dev/shm/nvidia-mps";
/// Where the daemon and its servers write their logs: `CUDA_MPS_LOG_DIRECTORY`. Mounted for them alone.
const LOGS: &str = "/dev/shm/nvidia-mps/log";
/// Longest wait for an answer: it is there at once, unless the daemon waits for a server that hangs.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest answer that is read, bytes: a list of the most clients that a server takes is a fraction of it.
const MAX_ANSWER: u64 = 64 << 10;
/// What of an answer is told, characters.
const MAX_TOLD: usize = 200;
/// Most processes that an answer may list: servers take 60 clients at most, and there is one server.
const MAX_PIDS: usize = 256;

/// The program, for one GPU.
#[derive(Clone, Debug)]
pub(super) struct Control {
    /// The program.
    pub program: PathBuf,
    /// The GPU.
    pub gpu: GpuUuid,
    /// What is its `/dev/shm`.
    pub shm: PathBuf,
    /// Where its logs are on the host.
    pub logs: PathBuf,
}

impl Control {
    /// Where the daemon's sockets are on the host.
    pub fn pipes(&self) -> PathBuf {
        self.shm.join("nvidia-mps")
    }

    /// Where its logs are mounted.
    pub fn log_point(&self) -> PathBuf {
        self.pipes().join("log")
    }

    /// Starts the daemon, in a session of its own and in this cgroup. It goes on when the agent ends.
    pub fn start(&self, cgroup: &Path, output: File) -> Result<Child> {
        let procs = cgroup.join("cgroup.procs");
        let procs = OpenOptions::new()
            .write(true)
            .open(&procs)
            .with_context(|| format!("opening {}", procs.display()))?;
        let mut command = self.command()?;
        command
            .arg("-f")
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        in_own_session(&mut command, procs);
        let child = Command::from(command).kill_on_drop(false).spawn();
        child.with_context(|| format!("starting {}", self.program.display()))
    }

    /// Says something to the daemon, and gives its answer.
    ///
    /// # Errors
    /// There is no daemon, it does not answer in time, or it refuses.
    pub async fn say(&self, words: &str) -> Result<String> {
        let said = tokio::time::timeout(ANSWER_TIMEOUT, self.say_now(words)).await;
        let answer = said.with_context(|| {
            let seconds = ANSWER_TIMEOUT.as_secs();
            format!("the MPS daemon does not answer `{words}` within {seconds} s")
        })??;
        tracing::trace!(words, answer, "MPS daemon");
        Ok(answer)
    }

    /// Processes that the daemon lists.
    pub async fn pids(&self, words: &str) -> Result<Vec<i32>> {
        let answer = self.say(words).await?;
        let pids = answer.split_whitespace().map(str::parse::<i32>);
        let pids: Option<Vec<i32>> = pids.map(|pid| pid.ok().filter(|pid| *pid > 0)).collect();
        let pids = pids.filter(|pids| pids.len() <= MAX_PIDS);
        pids.with_context(|| {
            format!(
                "the MPS daemon's answer to `{words}` is no list of processes: {:?}",
                told(&answer)
            )
        })
    }

    async fn say_now(&self, words: &str) -> Result<String> {
        let mut command = self.command()?;
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = Command::from(command).kill_on_drop(true).spawn();
        let mut child = child.with_context(|| format!("running {}", self.program.display()))?;
        let (Some(mut stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            bail!("{} has no standard streams", self.program.display());
        };
        // It may have ended already, for want of a daemon: then that is what it says.
        let written = stdin.write_all(format!("{words}\n").as_bytes()).await;
        drop(stdin);
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let (mut stdout, mut stderr) = (stdout.take(MAX_ANSWER), stderr.take(MAX_ANSWER));
        tokio::try_join!(stdout.read_to_end(&mut out), stderr.read_to_end(&mut err))?;
        let status = child.wait().await?;
        let (out, err) = (String::from_utf8_lossy(&out), String::from_utf8_lossy(&err));
        ensure!(
            status.success(),
            "the MPS daemon was told `{words}`: {}",
            told(if err.trim().is_empty() { &out } else { &err })
        );
        written?;
        Ok(out.trim().to_owned())
    }

    fn command(&self) -> Result<std::process::Command> {
        let mut command = std::process::Command::new(&self.program);
        let path = std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
        command
            .env_clear()
            .env("PATH", path)
            .env("LC_ALL", "C")
            .env("CUDA_VISIBLE_DEVICES", self.gpu.as_str())
            .env("CUDA_MPS_PIPE_DIRECTORY", PIPES)
            .env("CUDA_MPS_LOG_DIRECTORY", LOGS)
            .current_dir("/");
        if let Some(libraries) = std::env::var_os("LD_LIBRARY_PATH") {
            command.env("LD_LIBRARY_PATH", libraries);
        }
        let path = |path: &Path| CString::new(path.as_os_str().as_bytes());
        in_own_mounts(&mut command, path(&self.shm)?, path(&self.logs)?);
        Ok(command)
    }
}

/// The first line, cut.
pub(super) fn told(text: &str) -> String {
    let first = text.lines().map(str::trim).find(|line| !line.is_empty());
    first
        .unwrap_or("it failed without a word")
        .chars()
        .take(MAX_TOLD)
        .collect()
}

/// Runs a command where `/dev/shm` and [`LOGS`] are these directories.
#[allow(unsafe_code)]
fn in_own_mounts(command: &mut std::process::Command, shm: CString, logs: CString) {
    const LOGS_POINT: &CStr = c"/dev/shm/nvidia-mps/log";
    let enter = move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)?;
        mount(c"none", c"/", libc::MS_REC | libc::MS_SLAVE)?;
        mount(&shm, c"/dev/shm", libc::MS_BIND)?;
        mount(&logs, LOGS_POINT, libc::MS_BIND)
    };
    // SAFETY: between fork and exec, system calls on strings that were made before it, without allocation.
    unsafe { command.pre_exec(enter) };
}

#[allow(unsafe_code)]
fn mount(source: &CStr, target: &CStr, flags: libc::c_ulong) -> io::Result<()> {
    let none = std::ptr::null();
    // SAFETY: both strings end with zero and outlive the call; bind mounts and changes of propagation
    // take no type and no data.
    let done = unsafe { libc::mount(source.as_ptr(), target.as_ptr(), none, flags, none.cast()) };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Runs a command as the leader of a session of its own, in the cgroup of which this is `cgroup.procs`: it is there
/// before it is anything else, so none is ever lost.
#[allow(unsafe_code)]
fn in_own_session(command: &mut std::process::Command, procs: File) {
    let enter = move || {
        // SAFETY: a descriptor that this closure owns, and a byte that is constant.
        let written = unsafe { libc::write(procs.as_raw_fd(), c"0".as_ptr().cast(), 1) };
        if written != 1 {
            return Err(io::Error::last_os_error());
        }
        nix::unistd::setsid().map(drop).map_err(io::Error::from)
    };
    // SAFETY: between fork and exec, system calls without allocation.
    unsafe { command.pre_exec(enter) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_short() {
        assert_eq!(
            told("\n  Cannot find MPS control daemon process\nmore"),
            "Cannot find MPS control daemon process"
        );
        assert_eq!(told(" \n"), "it failed without a word");
        assert_eq!(told(&"x".repeat(9_000)).len(), MAX_TOLD);
        assert_eq!(LOGS, format!("{PIPES}/log"));
    }
}
