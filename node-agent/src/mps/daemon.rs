//! The MPS daemon of one GPU: its files, its processes, and the GPU's compute mode while it is there.
//!
//! Everything of it is found again after the agent's death, whenever that was: a directory that is there before
//! anything else, and a cgroup that its processes are in from their first moment.
//!
//! ```text
//! mps/<GPU>/about.json  which GPU, whose, and its compute mode before
//! mps/<GPU>/shm/        a tmpfs: /dev/shm of the daemon and of the GPU's containers; sockets in nvidia-mps/
//! mps/<GPU>/log/        control.log and server.log, by NVIDIA
//! mps/<GPU>/output      what the daemon wrote to its standard output and error
//! mps/<GPU>/pid         the daemon's process
//! ```

use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use carrel_core::model::ids::GpuUuid;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use super::control::{Control, told};
use super::share::Limits;
use crate::gpu::{self, Mode, NvmlSource};
use crate::runtime::{Runtime, has_ended};

/// How long a daemon may take to answer, and a server to be there, which makes its contexts first.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long both may take to end when they are told to, and when they are killed.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for NVML, which hangs on sick hardware.
const NVML_TIMEOUT: Duration = Duration::from_secs(20);
/// Between two looks at what starts or ends.
const POLL: Duration = Duration::from_millis(20);
/// What of the end of a log is read for its last words, bytes.
const LOG_TAIL: u64 = 4096;
/// Most characters of a GPU's UUID in a directory's name: NVIDIA's have 40.
const MAX_NAME: usize = 64;

/// What is kept of a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct About {
    /// The GPU.
    pub gpu: GpuUuid,
    /// The user whose clients its server takes.
    pub uid: u32,
    /// The GPU's compute mode before.
    before: Mode,
}

/// The place of one GPU's daemon. Nothing need be there.
#[derive(Clone)]
pub(super) struct Place {
    nvml: NvmlSource,
    runtime: Runtime,
    gpu: GpuUuid,
    dir: PathBuf,
}

impl Place {
    /// Of a GPU; `root` has the directories of all.
    pub fn new(nvml: NvmlSource, runtime: Runtime, root: &Path, gpu: &GpuUuid) -> Self {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let name: String = gpu
            .as_str()
            .chars()
            .filter(|c| plain(*c))
            .take(MAX_NAME)
            .collect();
        Self {
            nvml,
            runtime,
            gpu: gpu.clone(),
            dir: root.join(name),
        }
    }

    /// What is kept of it; none: there is nothing of a daemon.
    ///
    /// # Errors
    /// It cannot be read, or is another GPU's.
    pub fn about(&self) -> Result<Option<About>> {
        let Some(about) = about_in(&self.dir)? else {
            return Ok(None);
        };
        let dir = self.dir.display();
        ensure!(about.gpu == self.gpu, "{dir} is of GPU {}", about.gpu);
        Ok(Some(about))
    }

    /// The host's side of the containers' `/dev/shm`.
    pub fn shm(&self) -> PathBuf {
        self.dir.join("shm")
    }

    /// The daemon's process is there.
    pub fn lives(&self) -> Result<bool> {
        let pid = match fs::read_to_string(self.dir.join("pid")) {
            Ok(pid) => pid,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error).context("reading the MPS daemon's process id"),
        };
        let pid: Option<i32> = pid.trim().parse().ok();
        let processes = self.processes()?;
        Ok(pid.is_some_and(|pid| processes.contains(&pid)))
    }

    /// The daemon and its servers, as far as they are there.
    pub fn processes(&self) -> Result<Vec<i32>> {
        let mut processes = self.runtime.cgroups().processes(&self.cgroup())?;
        processes.retain(|pid| !has_ended(*pid));
        Ok(processes)
    }

    /// To say something to it.
    pub fn control(&self) -> Result<Control> {
        let program = self.nvml.policy.mps_control().context(
            "nvidia-cuda-mps-control is not found: install the driver's compute utilities, or name it in \
             [sharing] mps_control",
        )?;
        Ok(Control {
            program,
            gpu: self.gpu.clone(),
            shm: self.shm(),
            logs: self.dir.join("log"),
        })
    }

    /// Starts the daemon, with a server for a user; whatever is left of another one is ended before.
    /// What is in the containers' `/dev/shm` stays.
    pub async fn start(&self, uid: u32) -> Result<()> {
        let control = self.control()?;
        self.kill().await?;
        self.prepare(&control, uid).await?;
        let output = File::create(self.dir.join("output"))?;
        let cgroup = self.runtime.cgroups().make(&self.cgroup())?;
        let mut child = control.start(&cgroup, output)?;
        let pid = child.id().context("the MPS daemon ended at once")?;
        fs::write(self.dir.join("pid"), format!("{pid}\n"))?;
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            if let Some(status) = child.try_wait()? {
                bail!(
                    "the MPS daemon ended at its start ({status}): {}",
                    self.last_words()
                );
            }
            match control.say("get_default_active_thread_percentage").await {
                Ok(_) => break,
                Err(error) if Instant::now() > deadline => {
                    return Err(error.context("the MPS daemon does not start"));
                }
                Err(_) => sleep(POLL).await,
            }
        }
        tracing::info!(gpu = %self.gpu, pid, uid, "started an MPS daemon");
        self.serve(uid).await
    }

    /// Has a server there for a user before anybody needs it: the GPU is its own from then on.
    pub async fn serve(&self, uid: u32) -> Result<()> {
        let control = self.control()?;
        if !control.pids("get_server_list").await?.is_empty() {
            return Ok(());
        }
        control.say(&format!("start_server -uid {uid}")).await?;
        let deadline = Instant::now() + START_TIMEOUT;
        while control.pids("get_server_list").await?.is_empty() {
            ensure!(
                Instant::now() < deadline,
                "the MPS server does not start: {}",
                self.last_words()
            );
            sleep(POLL).await;
        }
        Ok(())
    }

    /// Sets the most that clients may have which come from now on, and makes sure that it counts.
    pub async fn limit(&self, limits: Limits) -> Result<()> {
        let Limits { percent, memory_mib } = limits;
        let (control, gpu) = (self.control()?, &self.gpu);
        // For a server that comes after one that broke.
        control
            .say(&format!("set_default_active_thread_percentage {percent}"))
            .await?;
        if let Some(memory) = memory_mib {
            control
                .say(&format!("set_default_device_pinned_mem_limit {gpu} {memory}M"))
                .await?;
        }
        for server in control.pids("get_server_list").await? {
            control
                .say(&format!("set_active_thread_percentage {server} {percent}"))
                .await?;
            if let Some(memory) = memory_mib {
                control
                    .say(&format!("set_device_pinned_mem_limit {server} {gpu} {memory}M"))
                    .await?;
            }
            let words = format!("get_active_thread_percentage {server}");
            let is = control.say(&words).await?;
            let counts = is
                .parse()
                .is_ok_and(|is: f64| is > 0.0 && is <= f64::from(percent) + 0.5);
            ensure!(
                counts,
                "the MPS server does not keep to {percent} % of the GPU's threads: `{words}` says {:?}",
                told(&is)
            );
        }
        Ok(())
    }

    /// Its servers' clients: server and process.
    pub async fn clients(&self) -> Result<Vec<(i32, i32)>> {
        let control = self.control()?;
        let mut clients = Vec::new();
        for server in control.pids("get_server_list").await? {
            let of_it = control.pids(&format!("get_client_list {server}")).await?;
            clients.extend(of_it.into_iter().map(|client| (server, client)));
        }
        Ok(clients)
    }

    /// Ends everything of it, and gives the GPU back as it was. Absent is fine; may be repeated.
    pub async fn end(&self) -> Result<()> {
        // First, so that it can be gone on with.
        let about = self.about()?;
        if self.lives()?
            && let Ok(control) = self.control()
        {
            match control.say("quit").await {
                Ok(_) => drop(self.wait_until_empty(END_TIMEOUT).await?),
                Err(error) => {
                    tracing::warn!(gpu = %self.gpu, error = format!("{error:#}"), "the MPS daemon is killed");
                }
            }
        }
        self.kill().await?;
        if let Some(about) = about {
            self.set_mode(about.before).await?;
            tracing::info!(gpu = %self.gpu, "the MPS daemon has ended");
        }
        let (dir, shm) = (self.dir.clone(), self.shm());
        let removed = tokio::task::spawn_blocking(move || {
            unmount(&shm)?;
            match fs::remove_dir_all(&dir) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    Err(error).with_context(|| format!("removing {}", dir.display()))
                }
                _ => Ok(()),
            }
        });
        removed.await?
    }

    /// Kills whatever is left of its processes, and waits for their end.
    async fn kill(&self) -> Result<()> {
        let (cgroups, path) = (self.runtime.cgroups(), self.cgroup());
        if cgroups.kill(&path)? > 0 && !self.wait_until_empty(END_TIMEOUT).await? {
            let left = self.processes()?;
            bail!("processes {left:?} of the MPS daemon do not end: see dmesg on the node");
        }
        match fs::remove_file(self.dir.join("pid")) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        cgroups.remove(&path)
    }

    async fn wait_until_empty(&self, longest: Duration) -> Result<bool> {
        let deadline = Instant::now() + longest;
        while !self.processes()?.is_empty() {
            if Instant::now() > deadline {
                return Ok(false);
            }
            sleep(POLL).await;
        }
        Ok(true)
    }

    /// Directories, shared memory, and a GPU on which only one process has a context: the MPS server.
    async fn prepare(&self, control: &Control, uid: u32) -> Result<()> {
        let kept = self.about()?;
        let before = match &kept {
            Some(about) => about.before,
            None => self.mode().await?,
        };
        let about = About {
            gpu: self.gpu.clone(),
            uid,
            before,
        };
        let (this, control) = (self.clone(), control.clone());
        let made = tokio::task::spawn_blocking(move || this.make_files(&control, &about));
        made.await?.context("making the MPS daemon's files")?;
        let set = self.set_mode(Mode::ExclusiveProcess).await?;
        ensure!(set, "the GPU has fallen away: NVML does not list it any more");
        Ok(())
    }

    fn make_files(&self, control: &Control, about: &About) -> Result<()> {
        fs::create_dir_all(&self.dir)?;
        let (new, kept) = (self.dir.join("about.new"), self.dir.join("about.json"));
        fs::write(&new, serde_json::to_vec(about)?)?;
        fs::rename(&new, &kept)?;
        let (shm, logs) = (&control.shm, &control.logs);
        // What is said there is to be this daemon's.
        match fs::remove_dir_all(logs) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        fs::create_dir_all(shm)?;
        if !is_mounted(shm)? {
            let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
            // What is in it counts against the memory of the job that wrote it.
            mount(Some("shm"), shm, Some("tmpfs"), flags, Some("mode=1777"))?;
        }
        // Servers run as the user; nobody else gets below the state directory.
        for (dir, mode) in [
            (control.pipes(), 0o755),
            (control.log_point(), 0o755),
            (logs.clone(), 0o1777),
        ] {
            fs::create_dir_all(&dir)?;
            fs::set_permissions(&dir, Permissions::from_mode(mode))?;
        }
        // Sockets of a daemon that was killed.
        for entry in fs::read_dir(control.pipes())? {
            let entry = entry?;
            if !entry.file_type()?.is_dir() {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    async fn mode(&self) -> Result<Mode> {
        let (nvml, gpu) = (self.nvml.clone(), self.gpu.clone());
        let asked = tokio::task::spawn_blocking(move || gpu::compute_mode(&nvml, &gpu));
        let asked = tokio::time::timeout(NVML_TIMEOUT, asked).await;
        asked.context("NVML does not tell a GPU's compute mode")??
    }

    /// False: the GPU is not there.
    async fn set_mode(&self, mode: Mode) -> Result<bool> {
        let (nvml, gpu) = (self.nvml.clone(), self.gpu.clone());
        let set = tokio::task::spawn_blocking(move || gpu::set_compute_mode(&nvml, &gpu, mode));
        let set = tokio::time::timeout(NVML_TIMEOUT, set).await;
        set.context("NVML does not set a GPU's compute mode")??
    }

    /// What the daemon or its server said last.
    pub fn last_words(&self) -> String {
        let logs = ["output", "log/control.log", "log/server.log"];
        let last = logs
            .into_iter()
            .rev()
            .find_map(|log| last_line(&self.dir.join(log)));
        last.unwrap_or_else(|| format!("it said nothing in {}", self.dir.join("log").display()))
    }

    fn cgroup(&self) -> String {
        let name = self.dir.file_name().unwrap_or_default().to_string_lossy();
        format!("{}/mps-{name}", self.runtime.cgroup_parent())
    }
}

/// The GPUs of which there is a daemon, or something of one.
pub(super) fn all_in(root: &Path) -> Result<Vec<GpuUuid>> {
    let listed = match fs::read_dir(root) {
        Ok(listed) => listed,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("reading {}", root.display())),
    };
    let mut found = Vec::new();
    for entry in listed {
        let dir = entry?.path();
        // Where it says nothing, nothing was done yet.
        found.extend(about_in(&dir)?.map(|about| about.gpu));
    }
    found.sort();
    Ok(found)
}

fn about_in(dir: &Path) -> Result<Option<About>> {
    let path = dir.join("about.json");
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
    };
    let about = serde_json::from_slice(&text);
    about
        .map(Some)
        .with_context(|| format!("{} is not what carrel-node wrote", path.display()))
}

/// The last line of a file that is not empty, cut.
fn last_line(path: &Path) -> Option<String> {
    let mut file = File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL))).ok()?;
    let mut text = Vec::new();
    file.take(LOG_TAIL).read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    let last = text.lines().rev().find(|line| !line.trim().is_empty())?;
    Some(told(last))
}

fn is_mounted(dir: &Path) -> Result<bool> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("reading /proc/self/mounts")?;
    let dir = dir.to_string_lossy().replace(' ', "\\040");
    Ok(mounts.lines().any(|line| line.split(' ').nth(1) == Some(&dir)))
}

fn unmount(dir: &Path) -> Result<()> {
    while is_mounted(dir)? {
        umount2(dir, MntFlags::MNT_DETACH).with_context(|| format!("unmounting {}", dir.display()))?;
    }
    Ok(())
}
