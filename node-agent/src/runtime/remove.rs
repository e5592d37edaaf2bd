//! The end of containers, with nothing left over.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use carrel_core::model::ids::JobKey;
use containerd_client::services::v1::snapshots::RemoveSnapshotRequest;
use containerd_client::services::v1::{
    DeleteContainerRequest, DeleteTaskRequest, ListContainersRequest, WaitRequest,
};
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use tokio::time::{Instant, sleep};

use super::client::{SNAPSHOTTER, Settled, Told};
use super::record::{Exit, container_id, job_snapshot, key_of_dir};
use super::{Runtime, STATUS_STOPPED, command, userns};

/// How long killed processes may take to go: longer only when the kernel is stuck with one (a dead
/// NFS server, a GPU's driver).
const KILL_TIMEOUT: Duration = Duration::from_secs(30);
/// Between two looks at a dying cgroup.
const POLL: Duration = Duration::from_millis(20);

impl Runtime {
    pub(super) async fn remove_locked(&self, key: JobKey) -> Result<Exit> {
        let exit = self
            .end_task(key)
            .await
            .with_context(|| format!("ending job {key}"))?;
        self.empty_cgroup(key).await?;
        let containerd = &self.inner.containerd;
        self.inner.network.leave(key).await?;
        let delete = containerd.request(DeleteContainerRequest {
            id: container_id(key),
        });
        containerd
            .containers()
            .delete(delete)
            .await
            .absent_ok()
            .told("deleting a container")?;
        self.remove_snapshot(&job_snapshot(key)).await?;
        let (cgroups, path, dir) = (self.inner.cgroups.clone(), self.cgroup(key), self.job_dir(key));
        let (shifted, run_dir, logs) = (self.shifted_dir(key), self.run_dir(key), self.logs_dir());
        tokio::task::spawn_blocking(move || {
            userns::clear(&shifted)?;
            cgroups.remove(&path)?;
            let kept = command::keep_output(&run_dir, &logs, key).and_then(|()| command::prune(&logs));
            if let Err(error) = kept {
                // Its GPUs are worth more than its words.
                tracing::warn!(job = %key, error = format!("{error:#}"), "its output is not kept");
            }
            remove_tree(&dir)
        })
        .await??;
        Ok(exit)
    }

    /// Ends process 1 and everything with it, and gets its exit status; what an earlier try found is kept.
    async fn end_task(&self, key: JobKey) -> Result<Exit> {
        let note = self.job_dir(key).join("exit.json");
        let Some(task) = self.task(key).await? else {
            // An agent that died while its process was being deleted leaves one that has forgotten it, and that ends
            // only when it is asked again.
            if let Err(error) = self.delete_task(key).await {
                // Nothing of the job is in it.
                tracing::warn!(job = %key, error = format!("{error:#}"), "a shim may be left");
            }
            let noted = fs::read(note)
                .ok()
                .and_then(|bytes| serde_json::from_slice(&bytes).ok());
            return Ok(noted.unwrap_or_else(|| self.exit(key, None)));
        };
        let containerd = &self.inner.containerd;
        let id = container_id(key);
        if task.status != STATUS_STOPPED {
            self.kill(key, libc::SIGKILL).await?;
            let wait = containerd.request(WaitRequest {
                container_id: id.clone(),
                exec_id: String::new(),
            });
            match tokio::time::timeout(KILL_TIMEOUT, containerd.tasks().wait(wait)).await {
                Ok(waited) => drop(waited.absent_ok().told("waiting for its end")?),
                Err(_) => bail!(
                    "its process {} does not die within {} s of SIGKILL: look at /proc/{}/stack on the node",
                    task.pid,
                    KILL_TIMEOUT.as_secs(),
                    task.pid
                ),
            }
        }
        // With the task goes the cgroup, and with that what it counted.
        let counted = self.exit(key, None);
        let was_started = self.was_started(key);
        let code = self.delete_task(key).await?.filter(|_| was_started);
        let exit = Exit {
            code: counted.code.or(code),
            ..counted
        };
        if let Err(error) = fs::write(&note, serde_json::to_vec(&exit)?)
            && error.kind() != ErrorKind::NotFound
        {
            return Err(error).context("noting how it ended");
        }
        Ok(exit)
    }

    /// Has containerd forget a process that has ended, and end what watched over it; its exit status. Absent is fine.
    async fn delete_task(&self, key: JobKey) -> Result<Option<i32>> {
        let containerd = &self.inner.containerd;
        let delete = containerd.request(DeleteTaskRequest {
            container_id: container_id(key),
        });
        let deleted = containerd.tasks().delete(delete).await.absent_ok();
        let deleted = deleted.told("deleting its process")?;
        Ok(deleted.map(|deleted| deleted.exit_status as i32))
    }

    /// Kills what is left when containerd knows of nothing: its record may have been lost.
    async fn empty_cgroup(&self, key: JobKey) -> Result<()> {
        let deadline = Instant::now() + KILL_TIMEOUT;
        loop {
            let (cgroups, path) = (self.inner.cgroups.clone(), self.cgroup(key));
            let left = tokio::task::spawn_blocking(move || cgroups.kill(&path)).await??;
            if left == 0 {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!(
                    "{left} processes of job {key} do not die; see cgroup {} on the node",
                    self.cgroup(key)
                );
            }
            sleep(POLL).await;
        }
    }

    /// Deletes a snapshot. Absent is fine.
    pub(super) async fn remove_snapshot(&self, snapshot: &str) -> Result<()> {
        let containerd = &self.inner.containerd;
        let remove = RemoveSnapshotRequest {
            snapshotter: SNAPSHOTTER.to_owned(),
            key: snapshot.to_owned(),
        };
        let removed = containerd.snapshots().remove(containerd.request(remove)).await;
        removed
            .absent_ok()
            .told(format!("deleting snapshot {snapshot}"))?;
        Ok(())
    }

    /// Jobs that left a directory but no container: a start or a `remove` that was cut off by the agent's death.
    pub async fn leftovers(&self) -> Result<Vec<JobKey>> {
        let mut keys = BTreeSet::new();
        for parent in ["jobs", "shifted"] {
            let listed = match fs::read_dir(self.inner.options.state_dir.join(parent)) {
                Ok(listed) => listed,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(error).context("reading the jobs' directories"),
            };
            for entry in listed {
                keys.extend(key_of_dir(&entry?.file_name().to_string_lossy()));
            }
        }
        keys.extend(self.inner.network.members()?);
        let mut found = Vec::new();
        for key in keys {
            // One that something is being done to right now is not left over.
            let Some(_lock) = self.inner.jobs.try_lock(key) else {
                continue;
            };
            if self.stored(key).await?.is_none() {
                found.push(key);
            }
        }
        Ok(found)
    }

    /// Ends everything on this node: containers, network rules, cgroups, mounts, the private containerd.
    /// Images and sessions' kept changes stay.
    pub async fn down(&self) -> Result<()> {
        let containerd = &self.inner.containerd;
        let request = containerd.request(ListContainersRequest { filters: Vec::new() });
        let stored = containerd
            .containers()
            .list(request)
            .await
            .told("listing containers")?
            .into_inner();
        let mut keys = self.leftovers().await?;
        keys.extend(
            stored
                .containers
                .iter()
                .filter_map(|container| super::key_of(&container.id)),
        );
        for key in keys {
            self.remove(key).await?;
        }
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
        self.inner
            .network
            .down()
            .await
            .context("taking the network's rules away")?;
        self.inner.cgroups.remove(&self.inner.cgroup_parent)?;
        if let Some(private) = &self.inner.private {
            private.stop().await?;
        }
        unmount_below(&self.inner.options.state_dir)
    }
}

/// Removes a directory with all that is in it. Absent is fine.
fn remove_tree(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", dir.display()))
        }
        _ => Ok(()),
    }
}

/// Unmounts everything below a directory, the last mount first.
fn unmount_below(dir: &Path) -> Result<()> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("reading /proc/self/mounts")?;
    for line in mounts.lines().rev() {
        let point = line.split(' ').nth(1).unwrap_or_default().replace("\\040", " ");
        if Path::new(&point).starts_with(dir) && Path::new(&point) != dir {
            match umount2(point.as_str(), MntFlags::MNT_DETACH) {
                Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => {}
                Err(error) => return Err(error).with_context(|| format!("unmounting {point}")),
            }
        }
    }
    Ok(())
}
