//! Layers to snapshots.

use anyhow::{Context, Result, ensure};
use containerd_client::services::v1::ApplyRequest;
use containerd_client::services::v1::snapshots::{
    CommitSnapshotRequest, PrepareSnapshotRequest, RemoveSnapshotRequest, StatSnapshotRequest,
};

use super::Images;
use super::content::{Labels, add_labels};
use super::manifest::{Config, Descriptor};
use crate::runtime::client::{Containerd, Lease, SNAPSHOTTER, Settled, Told};

/// What one unpacking is told.
pub(super) struct Unpack<'a> {
    pub lease: &'a Lease,
    /// Digest of the configuration, which keeps the snapshots from being collected.
    pub config_digest: &'a str,
    pub config: &'a Config,
    /// Lowest first.
    pub layers: &'a [Descriptor],
    pub progress: &'a (dyn Fn(String) + Send + Sync),
}

impl Images {
    /// Unpacks the layers that are not unpacked yet; gives the chain id of the whole.
    pub(super) async fn unpack(&self, unpack: Unpack<'_>) -> Result<String> {
        let Unpack {
            lease,
            config_digest,
            config,
            layers,
            progress,
        } = unpack;
        let chain = config.rootfs.chain_ids();
        ensure!(
            chain.len() == layers.len(),
            "the image is broken: {} layers, but its configuration names {}",
            layers.len(),
            chain.len()
        );
        let top = chain.last().context("the image has no layers")?.clone();
        let mut ready = 0;
        for (index, name) in chain.iter().enumerate().rev() {
            if snapshot_exists(&self.containerd, name).await? {
                ready = index + 1;
                break;
            }
        }
        for index in ready..layers.len() {
            progress(format!(
                "unpacking image, layer {} of {}",
                index + 1,
                layers.len()
            ));
            let parent = index.checked_sub(1).map_or("", |below| chain[below].as_str());
            let _once = self.locks.lock(format!("unpack {}", chain[index])).await;
            if !snapshot_exists(&self.containerd, &chain[index]).await? {
                let layer = Layer {
                    descriptor: &layers[index],
                    diff_id: &config.rootfs.diff_ids[index],
                    name: &chain[index],
                    parent,
                };
                apply(&self.containerd, lease, layer)
                    .await
                    .with_context(|| format!("unpacking layer {}", layers[index].digest))?;
            }
        }
        let label = format!("containerd.io/gc.ref.snapshot.{SNAPSHOTTER}");
        add_labels(
            &self.containerd,
            config_digest,
            Labels::from([(label, top.clone())]),
            lease,
        )
        .await?;
        Ok(top)
    }
}

/// Whether a snapshot of this name or key is there.
pub(crate) async fn snapshot_exists(containerd: &Containerd, key: &str) -> Result<bool> {
    let stat = StatSnapshotRequest {
        snapshotter: SNAPSHOTTER.to_owned(),
        key: key.to_owned(),
    };
    let found = containerd
        .snapshots()
        .stat(containerd.request(stat))
        .await
        .absent_ok();
    Ok(found.told("looking for a snapshot")?.is_some())
}

struct Layer<'a> {
    descriptor: &'a Descriptor,
    diff_id: &'a str,
    name: &'a str,
    parent: &'a str,
}

async fn apply(containerd: &Containerd, lease: &Lease, layer: Layer<'_>) -> Result<()> {
    let key = format!("carrel-unpack-{:x}-{}", rand::random::<u64>(), layer.name);
    let prepare = PrepareSnapshotRequest {
        snapshotter: SNAPSHOTTER.to_owned(),
        key: key.clone(),
        parent: layer.parent.to_owned(),
        ..PrepareSnapshotRequest::default()
    };
    let prepared = containerd
        .snapshots()
        .prepare(containerd.leased(prepare, lease))
        .await;
    let mounts = prepared.told("preparing a snapshot")?.into_inner().mounts;
    let committed = async {
        let diff = Some(layer.descriptor.clone().into());
        let request = ApplyRequest {
            diff,
            mounts,
            ..ApplyRequest::default()
        };
        let response = containerd.diff().apply(containerd.leased(request, lease)).await;
        let applied = response
            .told("unpacking a layer")?
            .into_inner()
            .applied
            .unwrap_or_default();
        ensure!(
            applied.digest == layer.diff_id,
            "the layer unpacks to {}, the image's configuration says {}",
            applied.digest,
            layer.diff_id
        );
        let commit = CommitSnapshotRequest {
            snapshotter: SNAPSHOTTER.to_owned(),
            name: layer.name.to_owned(),
            key: key.clone(),
            ..CommitSnapshotRequest::default()
        };
        let response = containerd
            .snapshots()
            .commit(containerd.leased(commit, lease))
            .await;
        Ok(response.exists_ok().told("committing a snapshot")?.is_some())
    }
    .await;
    if !matches!(committed, Ok(true)) {
        let remove = RemoveSnapshotRequest {
            snapshotter: SNAPSHOTTER.to_owned(),
            key,
        };
        if let Err(status) = containerd.snapshots().remove(containerd.request(remove)).await {
            tracing::debug!(
                status = status.message(),
                "a half-made snapshot stays until its lease ends"
            );
        }
    }
    committed.map(|_| ())
}
