//! The documents of an image, in OCI's form and Docker's:
//! <https://github.com/opencontainers/image-spec> (`descriptor.md`, `manifest.md`, `image-index.md`, `config.md`).

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Media types, OCI's and Docker's.
pub(crate) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(crate) const OCI_LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
pub(crate) const OCI_LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
pub(crate) const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
pub(crate) const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";

/// Largest manifest, index or config taken, bytes; registries' own limit is 4 MiB.
pub(crate) const MAX_DOCUMENT: u64 = 8 << 20;

/// A reference to content by its digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default)]
    pub media_type: String,
    pub digest: String,
    /// Bytes.
    pub size: u64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
}

impl Descriptor {
    pub fn new(media_type: &str, digest: String, size: u64) -> Self {
        Self {
            media_type: media_type.to_owned(),
            digest,
            size,
            annotations: BTreeMap::new(),
            platform: None,
        }
    }
}

impl From<Descriptor> for containerd_client::types::Descriptor {
    fn from(descriptor: Descriptor) -> Self {
        Self {
            media_type: descriptor.media_type,
            digest: descriptor.digest,
            size: descriptor.size as i64,
            annotations: descriptor.annotations.into_iter().collect(),
        }
    }
}

/// What an image of a list is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Platform {
    pub architecture: String,
    pub os: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

/// One image.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Manifest {
    pub schema_version: u32,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub media_type: String,
    pub config: Descriptor,
    pub layers: Vec<Descriptor>,
}

impl Manifest {
    /// A manifest made here, of the given parts.
    pub fn new(config: Descriptor, layers: Vec<Descriptor>) -> Self {
        Self {
            schema_version: 2,
            media_type: OCI_MANIFEST.to_owned(),
            config,
            layers,
        }
    }
}

/// Images of several platforms, or of several names.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Index {
    pub manifests: Vec<Descriptor>,
}

impl Index {
    /// The entry for the platform that we run on.
    pub fn for_this_platform(&self) -> Result<&Descriptor> {
        let architecture = architecture();
        let fits = |descriptor: &&Descriptor| {
            descriptor
                .platform
                .as_ref()
                .is_some_and(|p| p.os == "linux" && p.architecture == architecture)
        };
        if let Some(found) = self.manifests.iter().find(fits) {
            return Ok(found);
        }
        // An index of one image need not say for what.
        if let [only] = self.manifests.as_slice()
            && only.platform.is_none()
        {
            return Ok(only);
        }
        let offered: Vec<_> = self
            .manifests
            .iter()
            .filter_map(|descriptor| descriptor.platform.as_ref())
            .filter(|platform| platform.os != "unknown")
            .map(|platform| format!("{}/{}", platform.os, platform.architecture))
            .collect();
        bail!(
            "it has no image for linux/{architecture}, only for: {}",
            offered.join(", ")
        )
    }
}

/// This machine's architecture by Go's name, as images say it.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

/// What a manifest's bytes turned out to be.
pub(crate) enum Document {
    Manifest(Manifest),
    Index(Index),
}

impl Document {
    /// Tells the kinds apart by what they hold; their media type may be missing.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let value: serde_json::Value = serde_json::from_slice(bytes).context("the manifest is not JSON")?;
        if value.get("manifests").is_some() {
            Ok(Self::Index(
                serde_json::from_value(value).context("the image index is not valid")?,
            ))
        } else if value.get("schemaVersion") == Some(&1.into()) {
            bail!("it has a manifest of version 1, which registries gave up in 2019: push it again");
        } else {
            let manifest: Manifest = serde_json::from_value(value).context("the manifest is not valid")?;
            ensure!(
                !manifest.layers.is_empty(),
                "it has no layers: it is not a container image"
            );
            Ok(Self::Manifest(manifest))
        }
    }
}

/// The part of an image's configuration that we use.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Config {
    pub architecture: String,
    pub os: String,
    #[serde(default)]
    pub config: RunConfig,
    pub rootfs: RootFs,
}

/// How its processes start.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct RunConfig {
    #[serde(deserialize_with = "null_as_empty")]
    pub env: Vec<String>,
    pub working_dir: String,
}

/// Its layers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct RootFs {
    #[serde(rename = "type")]
    pub kind: String,
    /// Digests of the uncompressed layers, lowest first.
    pub diff_ids: Vec<String>,
}

fn null_as_empty<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl RootFs {
    /// The chain ids: names of the snapshots that the layers add up to, lowest first
    /// (image-spec `config.md`, "Layer ChainID").
    pub fn chain_ids(&self) -> Vec<String> {
        let mut chain: Vec<String> = Vec::with_capacity(self.diff_ids.len());
        for diff_id in &self.diff_ids {
            chain.push(match chain.last() {
                None => diff_id.clone(),
                Some(parent) => digest_of(format!("{parent} {diff_id}").as_bytes()),
            });
        }
        chain
    }
}

/// The digest of some bytes, "sha256:…".
pub(crate) fn digest_of(bytes: &[u8]) -> String {
    digest_text(&Sha256::digest(bytes))
}

/// "sha256:" and hexadecimal digits.
pub(crate) fn digest_text(hash: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(7 + 2 * hash.len());
    text.push_str("sha256:");
    for byte in hash {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chain_ids_are_those_of_the_specification() {
        let rootfs = RootFs {
            kind: "layers".into(),
            diff_ids: vec!["sha256:a".into(), "sha256:b".into()],
        };
        let chain = rootfs.chain_ids();
        assert_eq!(chain[0], "sha256:a");
        assert_eq!(chain[1], digest_of(b"sha256:a sha256:b"));
    }

    #[test]
    fn an_index_gives_this_platform_or_says_what_it_has() {
        let entry = |os: &str, architecture: &str| {
            format!(
                r#"{{"digest":"sha256:{os}{architecture}","size":1,"platform":{{"os":"{os}","architecture":"{architecture}"}}}}"#
            )
        };
        let index = |entries: &[String]| match Document::parse(
            format!(r#"{{"manifests":[{}]}}"#, entries.join(",")).as_bytes(),
        )
        .unwrap()
        {
            Document::Index(index) => index,
            Document::Manifest(_) => panic!("an index was taken for a manifest"),
        };
        let both = index(&[entry("windows", architecture()), entry("linux", architecture())]);
        assert_eq!(
            both.for_this_platform().unwrap().digest,
            format!("sha256:linux{}", architecture())
        );
        let none = index(&[entry("linux", "mips")]);
        assert!(
            none.for_this_platform()
                .unwrap_err()
                .to_string()
                .contains("linux/mips")
        );
    }
}
