//! What of GPUs a job's container is given: whole GPUs, and MIG slices, which are cut where they are not there.
//!
//! A cut goes through `nvidia-smi mig`, one at a time on each GPU. It removes idle instances only: those that
//! no job holds and in which NVML lists no process. What has been done is what NVML says after it. A cut that
//! fails is undone. One that was cut off (the agent was killed) needs no clearing: the next start finds what
//! NVML says, and an instance that was left without a device is removed by the next cut in its place.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use carrel_core::model::gpu::{GpuInfo, Inventory, MigInstance};
use carrel_core::model::gpu_unit::{GpuUnit, Slice};
use carrel_core::model::ids::{GpuUuid, JobKey};
use tokio::process::Command;
use tokio::sync::{Notify, watch};
use tokio_util::task::TaskTracker;

use super::cut::{CannotCut, Plan, Wanted, difference, find, plan};
use super::usage;
use crate::gpu::{self, Given, GivenSlice, GpuInstance, Inside, MigState, NvmlSource};
use crate::runtime::locks::KeyedLocks;

/// Longest wait for NVML, which hangs on sick hardware.
const LOOK_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest wait for one command of nvidia-smi: they take less than a second each.
const COMMAND_TIMEOUT: Duration = Duration::from_mins(1);
/// What of nvidia-smi's answer is told, bytes.
const MAX_TOLD: usize = 400;

/// What each job of this node holds.
pub type Held = BTreeMap<JobKey, Vec<GpuUnit>>;

/// Why a job does not get its GPUs.
#[derive(Debug)]
pub(crate) enum NotGiven {
    /// Others use them.
    Blocked(String),
    /// It cannot.
    Failed(anyhow::Error),
}

impl From<anyhow::Error> for NotGiven {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

/// Gives jobs what of GPUs is theirs. Cheap to clone.
#[derive(Clone)]
pub struct Slices {
    inner: Arc<Inner>,
}

struct Inner {
    nvml: NvmlSource,
    held: watch::Receiver<Held>,
    /// Told after each cut, and when a GPU is not what it was last seen to be.
    changed: Arc<Notify>,
    /// One GPU is cut at a time by one.
    locks: KeyedLocks<GpuUuid>,
    /// Cuts, which must not be given up half-way.
    tasks: TaskTracker,
    /// GPUs of which the last cut failed.
    failed: Mutex<BTreeMap<GpuUuid, Failed>>,
}

/// A cut that failed.
#[derive(Debug)]
struct Failed {
    why: String,
    /// The GPU is as before. Where it is not, it is not cut again.
    undone: bool,
    /// As the GPU was left: when it is cut otherwise, by us or by an operator, this is over.
    left: Vec<GpuInstance>,
}

impl Slices {
    /// `held` says what jobs hold; `changed` is told when a GPU is not what it was last seen to be.
    pub fn new(nvml: NvmlSource, held: watch::Receiver<Held>, changed: Arc<Notify>) -> Self {
        Self {
            inner: Arc::new(Inner {
                nvml,
                held,
                changed,
                locks: KeyedLocks::default(),
                tasks: TaskTracker::new(),
                failed: Mutex::default(),
            }),
        }
    }

    /// Waits for cuts that are under way.
    pub async fn finish(&self) {
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
    }

    /// Corrects an inventory by what is known of cuts that failed.
    pub fn correct(&self, inventory: &mut Inventory) {
        let mut failed = self.inner.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let mut notes = Vec::new();
        for gpu in &mut inventory.gpus {
            let Some(mig) = &mut gpu.mig else { continue };
            let Some(Failed { why, undone, left }) = failed.get(&gpu.uuid) else {
                continue;
            };
            let devices = left.iter().filter_map(|instance| match &instance.inside {
                Inside::Device(device) => Some(&device.uuid),
                Inside::Nothing | Inside::Parts(_) => None,
            });
            if !devices.eq(mig.instances.iter().map(|instance| &instance.uuid)) {
                failed.remove(&gpu.uuid);
            } else if *undone {
                notes.push(format!("GPU {} {why}", gpu.index));
            } else {
                mig.recut = false;
                notes.push(format!(
                    "GPU {} is not cut anew until an operator has seen to it: it {why}",
                    gpu.index
                ));
            }
        }
        let before = std::mem::take(&mut inventory.gpu_note);
        let all: Vec<String> = std::iter::once(before)
            .filter(|note| !note.is_empty())
            .chain(notes)
            .collect();
        inventory.gpu_note = all.join("; ");
    }

    /// What of the GPUs a job is to have, in its order; slices that are not there are cut. `progress` is told of that.
    pub(super) async fn give(
        &self,
        key: JobKey,
        inventory: &Inventory,
        units: &[GpuUnit],
        progress: &(dyn Fn(String) + Send + Sync),
    ) -> Result<Vec<Given>, NotGiven> {
        let given = self.give_each(key, inventory, units, progress).await;
        if let Err(NotGiven::Failed(_)) = given {
            // It is not what the broker went by: it is to know before it places the next job there.
            self.inner.changed.notify_one();
        }
        given
    }

    async fn give_each(
        &self,
        key: JobKey,
        inventory: &Inventory,
        units: &[GpuUnit],
        progress: &(dyn Fn(String) + Send + Sync),
    ) -> Result<Vec<Given>, NotGiven> {
        let mut given = Vec::with_capacity(units.len());
        for unit in units {
            let gpu = known(inventory, unit)?;
            let slice = match &unit.slice {
                Slice::Whole | Slice::Share { .. } => None,
                Slice::Mig {
                    profile,
                    start,
                    width,
                } => {
                    let wanted = Wanted {
                        profile: profile.clone(),
                        start: *start,
                        width: *width,
                    };
                    Some(self.slice(key, &gpu, wanted, progress).await?)
                }
            };
            given.push(Given { gpu, slice });
        }
        Ok(given)
    }

    /// What of the GPUs a job has that runs; its slices must be there.
    pub(super) async fn given(&self, inventory: &Inventory, units: &[GpuUnit]) -> Result<Vec<Given>> {
        let mut given = Vec::with_capacity(units.len());
        for unit in units {
            let gpu = known(inventory, unit)?;
            let slice = match &unit.slice {
                Slice::Whole | Slice::Share { .. } => None,
                Slice::Mig { profile, start, .. } => {
                    let state = self.inner.look(&gpu).await?;
                    let there = find(&state, profile, *start);
                    let (instance, device) = there
                        .with_context(|| format!("GPU {} has no slice {profile} at {start}", gpu.index))?;
                    Some(GivenSlice {
                        gpu_instance: instance.id,
                        device: device.clone(),
                    })
                }
            };
            given.push(Given { gpu, slice });
        }
        Ok(given)
    }

    /// Those of these slices of a GPU that are there now; none: it is being cut.
    pub(crate) async fn there(&self, gpu: &GpuInfo, instances: &[MigInstance]) -> Result<Vec<Given>> {
        let Some(_uncut) = self.inner.locks.try_lock(gpu.uuid.clone()) else {
            return Ok(Vec::new());
        };
        let state = self.inner.look(gpu).await?;
        let there = instances.iter().filter_map(|instance| {
            let (found, device) = find(&state, &instance.profile, instance.start)?;
            Some(Given {
                gpu: gpu.clone(),
                slice: Some(GivenSlice {
                    gpu_instance: found.id,
                    device: device.clone(),
                }),
            })
        });
        Ok(there.collect())
    }

    async fn slice(
        &self,
        key: JobKey,
        gpu: &GpuInfo,
        wanted: Wanted,
        progress: &(dyn Fn(String) + Send + Sync),
    ) -> Result<GivenSlice, NotGiven> {
        let index = gpu.index;
        let lock = self.inner.locks.lock(gpu.uuid.clone()).await;
        let state = self.inner.look(gpu).await?;
        let held = self.inner.held_of(&gpu.uuid, key, &wanted);
        let recut = self.inner.may_cut(gpu, &state);
        let (remove, profile) = match plan(&state, &wanted, &held, recut) {
            Ok(Plan::There { gpu_instance, device }) => return Ok(GivenSlice { gpu_instance, device }),
            Ok(Plan::Cut { remove, profile }) => (remove, profile),
            Err(CannotCut::Held(why)) => return Err(NotGiven::Blocked(format!("GPU {index}: {why}"))),
            Err(CannotCut::Never(why)) => return Err(anyhow::anyhow!("GPU {index}: {why}").into()),
        };
        if let Some(why) = self.inner.used(gpu, &remove).await? {
            return Err(NotGiven::Blocked(why));
        }
        progress(format!(
            "cutting GPU {index} into {} at {}",
            wanted.profile, wanted.start
        ));
        let cut = Cut {
            inner: Arc::clone(&self.inner),
            gpu: gpu.clone(),
            before: state.instances,
            remove,
            profile,
            wanted,
        };
        // On its own: what is given up half-way would leave the GPU in parts.
        let made = self.inner.tasks.spawn(async move {
            let _one_at_a_time = lock;
            let made = cut.run().await;
            cut.inner.changed.notify_one();
            made
        });
        made.await.context("the cut broke")?.map_err(NotGiven::Failed)
    }
}

fn known(inventory: &Inventory, unit: &GpuUnit) -> Result<GpuInfo> {
    let known = inventory.gpus.iter().find(|gpu| gpu.uuid == unit.gpu);
    known
        .cloned()
        .with_context(|| format!("this node has no GPU {}", unit.gpu))
}

impl Inner {
    /// A GPU in MIG mode, as it is now.
    async fn look(&self, gpu: &GpuInfo) -> Result<MigState> {
        let (source, uuid) = (self.nvml.clone(), gpu.uuid.clone());
        let looking = tokio::task::spawn_blocking(move || gpu::mig_state(&source, &uuid));
        let looked = tokio::time::timeout(LOOK_TIMEOUT, looking).await;
        let state = looked.context("NVML does not answer what GPUs are cut into")???;
        state.with_context(|| format!("GPU {} is not in MIG mode", gpu.index))
    }

    /// What jobs hold of a GPU, without what is to be made for one of them.
    fn held_of(&self, gpu: &GpuUuid, job: JobKey, wanted: &Wanted) -> Vec<Slice> {
        let held = self.held.borrow();
        let units = held
            .iter()
            .flat_map(|(key, units)| units.iter().map(move |unit| (*key, unit)));
        let others = units.filter(|(key, unit)| unit.gpu == *gpu && !(*key == job && wanted.is(&unit.slice)));
        others.map(|(_, unit)| unit.slice.clone()).collect()
    }

    fn may_cut(&self, gpu: &GpuInfo, state: &MigState) -> bool {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if failed
            .get(&gpu.uuid)
            .is_some_and(|failed| failed.left != state.instances)
        {
            failed.remove(&gpu.uuid);
        }
        let stuck = failed.get(&gpu.uuid).is_some_and(|failed| !failed.undone);
        self.nvml.policy.recut.has(gpu) && !stuck
    }

    /// Who is in any of these instances; none: nobody.
    async fn used(&self, gpu: &GpuInfo, instances: &[GpuInstance]) -> Result<Option<String>> {
        let units: Vec<GpuUnit> = instances
            .iter()
            .map(|instance| GpuUnit {
                gpu: gpu.uuid.clone(),
                slice: Slice::Mig {
                    profile: instance.profile.clone(),
                    start: instance.start,
                    width: instance.width,
                },
            })
            .collect();
        let inventory = Inventory {
            gpus: vec![gpu.clone()],
            ..Inventory::default()
        };
        usage::used_by(&self.nvml, &inventory, &units).await
    }
}

/// A cut under way.
struct Cut {
    inner: Arc<Inner>,
    gpu: GpuInfo,
    before: Vec<GpuInstance>,
    remove: Vec<GpuInstance>,
    profile: u32,
    wanted: Wanted,
}

impl Cut {
    async fn run(&self) -> Result<GivenSlice> {
        let (index, Wanted { profile, start, .. }) = (self.gpu.index, &self.wanted);
        let removed: Vec<String> = self
            .remove
            .iter()
            .map(|one| format!("{} at {}", one.profile, one.start))
            .collect();
        tracing::info!(gpu = index, profile, start, ?removed, "cutting");
        let error = match self.make().await {
            Ok(slice) => return Ok(slice),
            Err(error) => error,
        };
        let undone = self.undo().await;
        let why = match &undone {
            Ok(()) => format!("could not be cut into {profile} at {start}, and is as before: {error:#}"),
            Err(undone) => format!(
                "could not be cut into {profile} at {start} ({error:#}), nor made as before ({undone:#})"
            ),
        };
        tracing::error!(gpu = index, why, "a cut failed");
        let failed = Failed {
            why: why.clone(),
            undone: undone.is_ok(),
            // Not known: then the next look, which finds something, ends it.
            left: self.inner.look(&self.gpu).await.unwrap_or_default().instances,
        };
        let mut all = self.inner.failed.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(self.gpu.uuid.clone(), failed);
        bail!("GPU {index} {why}")
    }

    async fn make(&self) -> Result<GivenSlice> {
        for instance in &self.remove {
            self.destroy(instance).await?;
        }
        self.create(self.profile, self.wanted.start).await?;
        let state = self.inner.look(&self.gpu).await?;
        let made = find(&state, &self.wanted.profile, self.wanted.start);
        let (instance, device) = made.context("nvidia-smi made it, and NVML does not list it")?;
        let gone = |one: &GpuInstance| self.remove.contains(one);
        let mut should: Vec<GpuInstance> = self.before.iter().filter(|one| !gone(one)).cloned().collect();
        should.push(instance.clone());
        if let Some(difference) = difference(&should, &state.instances) {
            bail!("something else changed it meanwhile: {difference}");
        }
        Ok(GivenSlice {
            gpu_instance: instance.id,
            device: device.clone(),
        })
    }

    /// Makes again what was removed, in place of what was made.
    async fn undo(&self) -> Result<()> {
        let now = self.inner.look(&self.gpu).await?;
        let place = |one: &GpuInstance| (one.profile_id, one.start);
        for instance in &now.instances {
            let ours = place(instance) == (self.profile, self.wanted.start);
            if ours && !self.before.iter().any(|before| place(before) == place(instance)) {
                self.destroy(instance).await?;
            }
        }
        for instance in &self.remove {
            let left = now.instances.iter().find(|left| place(left) == place(instance));
            match (left.map(|left| &left.inside), &instance.inside) {
                (None, Inside::Device(_)) => self.create(instance.profile_id, instance.start).await?,
                (Some(Inside::Nothing), Inside::Device(_)) => {
                    self.smi(&["-cci", "-gi", &instance.id.to_string()]).await?;
                }
                // An empty one was of no use, and is not missed.
                (_, Inside::Nothing | Inside::Parts(_)) | (Some(Inside::Device(_) | Inside::Parts(_)), _) => {
                }
            }
        }
        let useful = |all: &[GpuInstance]| -> Vec<GpuInstance> {
            all.iter()
                .filter(|one| one.inside != Inside::Nothing)
                .cloned()
                .collect()
        };
        let now = self.inner.look(&self.gpu).await?;
        match difference(&useful(&self.before), &useful(&now.instances)) {
            None => Ok(()),
            Some(difference) => bail!("{difference}"),
        }
    }

    async fn create(&self, profile: u32, start: u8) -> Result<()> {
        self.smi(&["-cgi", &format!("{profile}:{start}"), "-C"]).await
    }

    async fn destroy(&self, instance: &GpuInstance) -> Result<()> {
        let id = instance.id.to_string();
        if instance.inside != Inside::Nothing {
            self.smi(&["-dci", "-gi", &id]).await?;
        }
        self.smi(&["-dgi", "-gi", &id]).await
    }

    /// Runs `nvidia-smi mig` on the GPU.
    async fn smi(&self, arguments: &[&str]) -> Result<()> {
        let program: PathBuf = self.inner.nvml.policy.smi().context(
            "nvidia-smi is not found: install the driver's utilities, or name it in [mig] nvidia_smi",
        )?;
        let running = Command::new(&program)
            .args(["mig", "-i", self.gpu.uuid.as_str()])
            .args(arguments)
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let line = format!("`nvidia-smi mig -i {} {}`", self.gpu.uuid, arguments.join(" "));
        let output = tokio::time::timeout(COMMAND_TIMEOUT, running)
            .await
            .with_context(|| format!("{line} does not end"))?
            .with_context(|| format!("running {}", program.display()))?;
        tracing::debug!(command = line, status = %output.status, "nvidia-smi");
        ensure!(
            output.status.success(),
            "{line}: {}",
            told(&output.stdout, &output.stderr)
        );
        Ok(())
    }
}

/// nvidia-smi's reason: it says what it could not do first.
fn told(stdout: &[u8], stderr: &[u8]) -> String {
    let (stdout, stderr) = (String::from_utf8_lossy(stdout), String::from_utf8_lossy(stderr));
    let lines = stdout.lines().chain(stderr.lines()).map(str::trim);
    let mut failures = lines.filter(|line| !line.is_empty() && !line.starts_with("Successfully"));
    let first = failures.next().unwrap_or("it failed without a word");
    first.chars().take(MAX_TOLD).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nvidia_smis_reason_is_told() {
        let out = "Successfully created GPU instance ID 13 on GPU  0 using profile MIG 1g.5gb (ID 19)\n\
                   Unable to create a GPU instance on GPU  0 using profile 9: Insufficient Resources\n\
                   Failed to create GPU instances: Insufficient Resources\n";
        let why = "Unable to create a GPU instance on GPU  0 using profile 9: Insufficient Resources";
        assert_eq!(told(out.as_bytes(), b""), why);
        assert_eq!(told(b"", b"no permission\n"), "no permission");
        assert_eq!(told(b"", b""), "it failed without a word");
        assert_eq!(told(&[b'x'; 5000], b"").len(), MAX_TOLD);
    }
}
