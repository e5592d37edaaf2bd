//! CDI's documents (SPEC.md 0.3 to 1.0). Unknown keys are of later versions and are passed over.

use serde::Deserialize;

/// One specification file.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Spec {
    /// "vendor.com/class".
    pub kind: String,
    #[serde(default)]
    pub devices: Vec<Device>,
    /// For any of its devices.
    #[serde(default)]
    pub container_edits: ContainerEdits,
}

/// One device of a specification.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Device {
    /// A UUID, an index, or "all".
    pub name: String,
    #[serde(default)]
    pub container_edits: ContainerEdits,
}

/// What is done to a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerEdits {
    /// "NAME=value".
    pub env: Vec<String>,
    /// Device nodes to make.
    pub device_nodes: Vec<DeviceNode>,
    /// Host paths to bind.
    pub mounts: Vec<Mount>,
    /// OCI hooks.
    pub hooks: Vec<Hook>,
    /// Groups that process 1 gets besides.
    #[serde(rename = "additionalGids")]
    pub additional_gids: Vec<u32>,
}

impl ContainerEdits {
    /// Adds what `other` says and this does not say yet.
    pub fn merge(&mut self, other: &Self) {
        fn add<T: Clone + PartialEq>(to: &mut Vec<T>, from: &[T]) {
            for item in from {
                if !to.contains(item) {
                    to.push(item.clone());
                }
            }
        }
        add(&mut self.env, &other.env);
        add(&mut self.device_nodes, &other.device_nodes);
        add(&mut self.mounts, &other.mounts);
        add(&mut self.hooks, &other.hooks);
        add(&mut self.additional_gids, &other.additional_gids);
    }
}

/// A device node in the container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceNode {
    /// Path in the container.
    pub path: String,
    /// The host's node that tells what is missing below; none: `path`.
    pub host_path: Option<String>,
    /// "c", "b" or "p"; none: as the host's node.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Device numbers; none: as the host's node.
    pub major: Option<i64>,
    /// See `major`.
    pub minor: Option<i64>,
    /// Permission bits; none: as the host's node.
    pub file_mode: Option<u32>,
    /// Cgroup access, of "rwm"; none: "rw" ("rwm" is CDI's word for it, but nobody may make nodes).
    pub permissions: Option<String>,
    /// Owner; none: as the host's node.
    pub uid: Option<u32>,
    /// Group; none: as the host's node.
    pub gid: Option<u32>,
}

/// A host path in the container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Mount {
    /// On the host.
    pub host_path: String,
    /// In the container.
    pub container_path: String,
    /// Mount options.
    pub options: Vec<String>,
    /// File system; empty: a bind mount.
    #[serde(rename = "type")]
    pub kind: String,
}

/// A program that runc runs at some point of the container's start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Hook {
    /// OCI's name of the point ("createContainer").
    pub hook_name: String,
    /// Program on the host.
    pub path: String,
    /// Its arguments, with argument 0.
    pub args: Vec<String>,
    /// Its environment.
    pub env: Vec<String>,
    /// Seconds.
    pub timeout: Option<i64>,
}
