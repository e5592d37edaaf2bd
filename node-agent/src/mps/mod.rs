//! GPUs that jobs share by NVIDIA's Multi-Process Service: a daemon for each, as long as somebody has a share.
//!
//! A daemon's server serves one user at a time; placement keeps to that, the agent's ledger does, and here nobody is
//! let in beside another's clients. While it is there, the GPU's compute mode lets nobody else have a context on it:
//! who does not go through MPS, and its limits, does not get to the GPU at all. The limits that no client can exceed
//! are those of the largest share that is held of the GPU; smaller ones are in their programs' environment.

mod control;
mod daemon;
mod share;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use carrel_core::agent::ContainerEvent;
use carrel_core::model::gpu::{GpuInfo, Inventory};
use carrel_core::model::gpu_unit::GpuUnit;
use carrel_core::model::ids::{GpuUuid, JobKey};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::gpu::{self, NvmlSource};
use crate::jobs::{Held, NotGiven};
use crate::runtime::Runtime;
use crate::runtime::locks::KeyedLocks;
use daemon::Place;
use share::{Limits, milli};

pub(crate) use share::environment;

/// Between two looks at the daemons: a file each.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// How long a GPU whose daemon does not start is not offered, and until one that jobs wait for is tried again.
const RETRY: Duration = Duration::from_mins(1);
/// Longest time for taking a container's clients from a server before they are killed: the kill must not be late.
const FAREWELL: Duration = Duration::from_secs(3);
/// Longest wait for NVML, which hangs on sick hardware.
const NVML_TIMEOUT: Duration = Duration::from_secs(20);

/// The MPS daemons of this node. Cheap to clone.
#[derive(Clone)]
pub struct Mps {
    inner: Arc<Inner>,
}

struct Inner {
    nvml: NvmlSource,
    runtime: Runtime,
    /// Where each daemon has a directory.
    root: PathBuf,
    held: watch::Receiver<Held>,
    /// Told when a GPU has become another in what is said of it.
    changed: Arc<Notify>,
    /// One thing at a time is done to a daemon.
    locks: KeyedLocks<GpuUuid>,
    /// Jobs that were let in by this agent and are not gone.
    let_in: Mutex<BTreeMap<GpuUuid, BTreeSet<JobKey>>>,
    /// What is wrong.
    troubles: Mutex<BTreeMap<GpuUuid, Trouble>>,
    /// Starts, which must not be given up half-way.
    tasks: TaskTracker,
}

/// What is wrong with a GPU's daemon.
#[derive(Clone, Debug)]
enum Trouble {
    /// It does not start, or work; the GPU is not offered until then.
    Broken { why: String, until: Instant },
    /// It ended under its jobs, and was started anew.
    Restarted(String),
}

impl Mps {
    /// `held` says what jobs hold; `changed` is told when what is to be said of a GPU has changed.
    pub fn new(
        nvml: NvmlSource,
        runtime: Runtime,
        state: &Path,
        held: watch::Receiver<Held>,
        changed: Arc<Notify>,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                nvml,
                runtime,
                root: state.join("mps"),
                held,
                changed,
                locks: KeyedLocks::default(),
                let_in: Mutex::default(),
                troubles: Mutex::default(),
                tasks: TaskTracker::new(),
            }),
        }
    }

    /// Waits for starts that are under way.
    pub async fn finish(&self) {
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
    }

    /// Corrects an inventory by what is known of daemons.
    pub fn correct(&self, inventory: &mut Inventory) {
        let mut troubles = self.inner.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        let over = |trouble: &Trouble| match trouble {
            Trouble::Broken { until, .. } => *until <= Instant::now(),
            Trouble::Restarted(_) => false,
        };
        troubles.retain(|_, trouble| !over(trouble));
        let mut notes = Vec::new();
        for gpu in &mut inventory.gpus {
            match troubles.get(&gpu.uuid) {
                Some(Trouble::Broken { why, .. }) => {
                    gpu.drained
                        .get_or_insert_with(|| format!("it cannot be shared by MPS: {why}"));
                }
                Some(Trouble::Restarted(note)) => notes.push(format!("GPU {}: {note}", gpu.index)),
                None => {}
            }
        }
        let before = std::mem::take(&mut inventory.gpu_note);
        let all = std::iter::once(before)
            .filter(|note| !note.is_empty())
            .chain(notes);
        inventory.gpu_note = all.collect::<Vec<_>>().join("; ");
    }

    /// Has the daemon there for a job that is about to start; gives the directory that is to be its `/dev/shm`, or
    /// none where it has no share by MPS.
    pub(crate) async fn let_in(
        &self,
        key: JobKey,
        uid: u32,
        inventory: &Inventory,
        units: &[GpuUnit],
    ) -> Result<Option<PathBuf>, NotGiven> {
        let mut shares = units.iter().filter_map(|unit| Some((unit, milli(unit)?)));
        let Some((unit, milli)) = shares.next() else {
            return Ok(None);
        };
        if shares.next().is_some() {
            let why = "a job can have one share by MPS on a node: its programs find one daemon";
            return Err(anyhow::anyhow!(why).into());
        }
        let gpu = inventory.gpus.iter().find(|gpu| gpu.uuid == unit.gpu);
        let gpu = gpu
            .cloned()
            .with_context(|| format!("this node has no GPU {}", unit.gpu))?;
        let this = self.clone();
        // On its own: what is given up half-way would leave a daemon without its limits.
        let let_in = self.inner.tasks.spawn(async move {
            let _one_at_a_time = this.inner.locks.lock(gpu.uuid.clone()).await;
            this.inner.admit(key, uid, &gpu, milli).await
        });
        let_in
            .await
            .context("the start of the MPS daemon broke")?
            .map(Some)
    }

    /// Takes a container's clients from their server, before they are killed: a client that is killed in the middle of
    /// its work can take the server with it ("CUDA Multi-Process Service", Client Early Termination).
    pub(crate) async fn farewell(&self, key: JobKey, units: &[GpuUnit]) {
        for unit in units.iter().filter(|unit| milli(unit).is_some()) {
            let taken = async {
                let _one_at_a_time = self.inner.locks.lock(unit.gpu.clone()).await;
                self.inner.take_clients(key, &unit.gpu).await
            };
            let told = tokio::time::timeout(FAREWELL, taken).await;
            let told = told
                .unwrap_or_else(|_| Err(anyhow::anyhow!("the MPS server does not let go of them in time")));
            if let Err(error) = told {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "clients of MPS are killed as they are"
                );
            }
        }
    }

    /// Gives a job's share back once nothing of its container is left; the last one ends the daemon.
    ///
    /// # Errors
    /// The server still has something of it, or the daemon does not end.
    pub(crate) async fn release(&self, key: JobKey, inventory: &Inventory, units: &[GpuUnit]) -> Result<()> {
        for unit in units.iter().filter(|unit| milli(unit).is_some()) {
            let (this, unit, inventory) = (self.clone(), unit.clone(), inventory.clone());
            let released = self.inner.tasks.spawn(async move {
                let _one_at_a_time = this.inner.locks.lock(unit.gpu.clone()).await;
                this.inner.dismiss(key, &inventory, &unit.gpu).await
            });
            released.await??;
        }
        Ok(())
    }

    /// Ends daemons that nobody needs, and starts anew those that ended under their jobs, until cancelled. To be
    /// begun when it is known what jobs hold.
    pub async fn watch(self, events: mpsc::Sender<(JobKey, ContainerEvent)>, cancel: CancellationToken) {
        let mut held = self.inner.held.clone();
        loop {
            match daemon::all_in(&self.inner.root) {
                Ok(gpus) => {
                    for gpu in gpus {
                        self.inner.look(&gpu, &events).await;
                    }
                }
                Err(error) => {
                    tracing::error!(error = format!("{error:#}"), "MPS daemons cannot be looked at");
                }
            }
            tokio::select! {
                // All arms only wait.
                () = cancel.cancelled() => return,
                changed = held.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(LOOK_INTERVAL) => {}
            }
        }
    }

    /// Ends all daemons, whoever uses them.
    pub async fn down(nvml: NvmlSource, runtime: &Runtime, state: &Path) -> Result<()> {
        let root = state.join("mps");
        for gpu in daemon::all_in(&root)? {
            Place::new(nvml.clone(), runtime.clone(), &root, &gpu)
                .end()
                .await?;
        }
        Ok(())
    }
}

impl Inner {
    fn place(&self, gpu: &GpuUuid) -> Place {
        Place::new(self.nvml.clone(), self.runtime.clone(), &self.root, gpu)
    }

    /// Jobs that hold shares of a GPU, with their thousandths.
    fn holders(&self, gpu: &GpuUuid) -> Vec<(JobKey, u16)> {
        let held = self.held.borrow();
        let units = held
            .iter()
            .flat_map(|(key, units)| units.iter().map(|unit| (*key, unit)));
        let of_it = units.filter(|(_, unit)| unit.gpu == *gpu);
        of_it
            .filter_map(|(key, unit)| Some((key, milli(unit)?)))
            .collect()
    }

    /// Those of them that have, or will have in a moment, programs that use it.
    async fn users(&self, gpu: &GpuUuid) -> Result<Vec<(JobKey, u16)>> {
        let mut users = Vec::new();
        for (key, milli) in self.holders(gpu) {
            let let_in = || {
                let let_in = self.let_in.lock().unwrap_or_else(PoisonError::into_inner);
                let_in.get(gpu).is_some_and(|jobs| jobs.contains(&key))
            };
            if let_in() || !self.runtime.cgroup_empty(key).await? {
                users.push((key, milli));
            }
        }
        Ok(users)
    }

    async fn admit(&self, key: JobKey, uid: u32, gpu: &GpuInfo, milli: u16) -> Result<PathBuf, NotGiven> {
        if !self.holders(&gpu.uuid).iter().any(|(holder, _)| *holder == key) {
            return Err(NotGiven::Blocked("it is being ended".to_owned()));
        }
        let place = self.place(&gpu.uuid);
        let mut others = self.users(&gpu.uuid).await?;
        others.retain(|(other, _)| *other != key);
        if let Some(about) = place.about()?
            && about.uid != uid
        {
            if let Some((other, _)) = others.first() {
                let why = format!(
                    "waits for job {} to release GPU {}: MPS serves one user at a time",
                    other.job, gpu.index
                );
                return Err(NotGiven::Blocked(why));
            }
            // Not this job's fault: it waits, and the GPU is drained with the reason.
            let ended = place.end().await;
            ended.map_err(|error| NotGiven::Blocked(format!("GPU {}: {error:#}", gpu.index)))?;
        }
        let ready = self.make_ready(&place, uid, gpu, milli, &others).await;
        match ready {
            Ok(()) => {}
            Err(NotGiven::Blocked(why)) => return Err(NotGiven::Blocked(why)),
            Err(NotGiven::Failed(error)) => {
                let why = format!("{error:#}");
                self.break_down(&gpu.uuid, why.clone());
                if others.is_empty()
                    && let Err(error) = place.end().await
                {
                    tracing::warn!(
                        error = format!("{error:#}"),
                        "an MPS daemon is left; trying again"
                    );
                }
                let why = format!("GPU {} cannot be shared by MPS: {why}", gpu.index);
                return Err(NotGiven::Failed(anyhow::anyhow!(why)));
            }
        }
        let mut let_in = self.let_in.lock().unwrap_or_else(PoisonError::into_inner);
        let_in.entry(gpu.uuid.clone()).or_default().insert(key);
        Ok(place.shm())
    }

    async fn make_ready(
        &self,
        place: &Place,
        uid: u32,
        gpu: &GpuInfo,
        milli: u16,
        others: &[(JobKey, u16)],
    ) -> Result<(), NotGiven> {
        let largest = others.iter().map(|(_, milli)| *milli).chain([milli]).max();
        let limits = Limits::of(gpu, largest.unwrap_or(milli));
        if place.lives()? {
            let works = async {
                place.serve(uid).await?;
                place.limit(limits).await
            };
            match works.await {
                Ok(()) => return Ok(()),
                // One that was cut off at its start, say: nobody has anything to lose by another.
                Err(error) if others.is_empty() => {
                    tracing::warn!(
                        error = format!("{error:#}"),
                        "an MPS daemon that does not work is started anew"
                    );
                }
                Err(error) => return Err(error.into()),
            }
        } else if place.about()?.is_none()
            && let Some(why) = self.strangers(gpu).await?
        {
            return Err(NotGiven::Blocked(why));
        }
        place.start(uid).await?;
        place.limit(limits).await?;
        Ok(())
    }

    /// Who uses a GPU that has no daemon yet: beside them no server could start.
    async fn strangers(&self, gpu: &GpuInfo) -> Result<Option<String>> {
        let nvml = self.nvml.clone();
        let asked = tokio::task::spawn_blocking(move || gpu::processes(&nvml));
        let asked = tokio::time::timeout(NVML_TIMEOUT, asked).await;
        let used = asked.context("NVML does not answer which processes use the GPUs")???;
        let pids = used.get(&gpu.uuid).map(|processes| gpu::pids_in(processes, None));
        let first = pids.unwrap_or_default().first().copied();
        Ok(first.map(|pid| format!("GPU {} is in use by process {pid}", gpu.index)))
    }

    async fn take_clients(&self, key: JobKey, gpu: &GpuUuid) -> Result<()> {
        let place = self.place(gpu);
        if !place.lives()? {
            return Ok(());
        }
        let own = self.runtime.processes(key).await?;
        let (control, clients) = (place.control()?, place.clients().await?);
        for (server, client) in clients.into_iter().filter(|(_, client)| own.contains(client)) {
            control
                .say(&format!("terminate_client {server} {client}"))
                .await?;
        }
        Ok(())
    }

    async fn dismiss(&self, key: JobKey, inventory: &Inventory, gpu: &GpuUuid) -> Result<()> {
        {
            let mut let_in = self.let_in.lock().unwrap_or_else(PoisonError::into_inner);
            let_in.entry(gpu.clone()).or_default().remove(&key);
            let_in.retain(|_, jobs| !jobs.is_empty());
        }
        let place = self.place(gpu);
        let mut others = self.users(gpu).await?;
        others.retain(|(other, _)| *other != key);
        if others.is_empty() {
            place.end().await?;
            self.forget(gpu);
            return Ok(());
        }
        if !place.lives()? {
            // With the servers, whatever they had is gone.
            ensure!(
                place.processes()?.is_empty(),
                "its MPS daemon has ended, and is started anew first"
            );
            return Ok(());
        }
        let clients = place.clients().await?;
        let gone = |client: i32| !Path::new("/proc").join(client.to_string()).exists();
        if let Some((server, client)) = clients.iter().find(|(_, client)| gone(*client)) {
            bail!("MPS server {server} still holds memory of process {client}, which has ended");
        }
        let known = inventory.gpus.iter().find(|known| known.uuid == *gpu);
        if let (Some(gpu), Some(largest)) = (known, others.iter().map(|(_, milli)| *milli).max()) {
            place.limit(Limits::of(gpu, largest)).await?;
        }
        Ok(())
    }

    /// Ends a daemon that nobody needs; starts one anew that ended under its jobs.
    async fn look(&self, gpu: &GpuUuid, events: &mpsc::Sender<(JobKey, ContainerEvent)>) {
        // Whoever has it sees to it.
        let Some(_one_at_a_time) = self.locks.try_lock(gpu.clone()) else {
            return;
        };
        if let Err(error) = self.mend(gpu, events).await {
            tracing::warn!(%gpu, error = format!("{error:#}"), "an MPS daemon is not as it should be; trying again");
        }
    }

    async fn mend(&self, gpu: &GpuUuid, events: &mpsc::Sender<(JobKey, ContainerEvent)>) -> Result<()> {
        let place = self.place(gpu);
        if self.holders(gpu).is_empty() {
            place.end().await?;
            self.forget(gpu);
            return Ok(());
        }
        let users = self.users(gpu).await?;
        let (Some(about), Some(largest)) = (place.about()?, users.iter().map(|(_, milli)| *milli).max())
        else {
            return Ok(());
        };
        if place.lives()? || self.is_broken(gpu) {
            return Ok(());
        }
        let said = place.last_words();
        tracing::error!(%gpu, said, "an MPS daemon ended under its jobs; starting it anew");
        let info = self.info(gpu).await?;
        let started = async {
            place.start(about.uid).await?;
            place.limit(Limits::of(&info, largest)).await
        };
        let text = match started.await {
            Ok(()) => {
                let note = "its MPS daemon ended under its jobs and was started anew; programs that used it must be \
                            started again";
                self.trouble(gpu, Trouble::Restarted(note.to_owned()));
                format!(
                    "the MPS daemon of GPU {} ended and was started anew: programs that used the GPU must be started again",
                    info.index
                )
            }
            Err(error) => {
                let why = format!("its MPS daemon ended under its jobs, and does not start again: {error:#}");
                self.break_down(gpu, why);
                format!(
                    "the MPS daemon of GPU {} ended, and does not start again: {error:#}",
                    info.index
                )
            }
        };
        for (key, _) in users {
            // The agent listens for as long as this is polled.
            events
                .send((key, ContainerEvent::Trouble(text.clone())))
                .await
                .ok();
        }
        Ok(())
    }

    /// A GPU as NVML describes it now.
    async fn info(&self, gpu: &GpuUuid) -> Result<GpuInfo> {
        let nvml = self.nvml.clone();
        let looked = tokio::task::spawn_blocking(move || gpu::discover(&nvml));
        let looked = tokio::time::timeout(NVML_TIMEOUT, looked).await;
        let inventory = looked.context("NVML does not answer")??;
        let known = inventory.gpus.into_iter().find(|known| known.uuid == *gpu);
        known.with_context(|| format!("NVML does not list GPU {gpu} any more"))
    }

    fn is_broken(&self, gpu: &GpuUuid) -> bool {
        let troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        match troubles.get(gpu) {
            Some(Trouble::Broken { until, .. }) => *until > Instant::now(),
            Some(Trouble::Restarted(_)) | None => false,
        }
    }

    fn break_down(&self, gpu: &GpuUuid, why: String) {
        let until = Instant::now() + RETRY;
        tracing::error!(%gpu, why, "a GPU cannot be shared by MPS");
        self.trouble(gpu, Trouble::Broken { why, until });
    }

    fn trouble(&self, gpu: &GpuUuid, trouble: Trouble) {
        let mut troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        troubles.insert(gpu.clone(), trouble);
        self.changed.notify_one();
    }

    /// Nobody has a share of it any more: what befell them is over.
    fn forget(&self, gpu: &GpuUuid) {
        let mut troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Trouble::Restarted(_)) = troubles.get(gpu) {
            troubles.remove(gpu);
            self.changed.notify_one();
        }
    }
}
