//! Images: found on the node, pulled from a registry, or imported from an archive.
//!
//! containerd keeps content, snapshots and names; there is no daemon of ours
//! and no state here but a cache. What a pull makes is held by a lease until
//! the image's name refers to it.

pub(crate) mod archive;
mod content;
pub(crate) mod manifest;
pub(crate) mod name;
mod pull;
mod unpack;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use containerd_client::services::v1::{
    CreateImageRequest, GetImageRequest, Image, ListImagesRequest, UpdateImageRequest,
};

use crate::runtime::client::{Containerd, Lease, Settled, Told};
use crate::runtime::locks::KeyedLocks;
use content::{Labels, read_document, write_document};
use manifest::{Config, Descriptor, Document, Manifest, OCI_MANIFEST};
use unpack::Unpack;

pub(crate) use unpack::snapshot_exists;

/// Images kept parsed in memory; more than a node has in use.
const KNOWN_IMAGES: usize = 256;

/// Told about progress in words: "pulling image, 34 %".
pub type Progress<'a> = &'a (dyn Fn(String) + Send + Sync);

/// Where images come from, as the operator says.
#[derive(Clone, Debug, Default)]
pub struct ImageOptions {
    /// Registries (host or host:port) that are spoken to without TLS; loopback ones always are.
    pub insecure_registries: Vec<String>,
    /// Credentials, in the form of Docker's `config.json` ("auths"); none: anonymous.
    pub registry_auth: Option<PathBuf>,
}

/// An image that is on this node, unpacked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageInfo {
    /// Its name here.
    pub name: String,
    /// Digest of its manifest.
    pub digest: String,
    /// Snapshot of its files.
    pub chain_id: String,
    /// Its environment, "NAME=value" each.
    pub env: Vec<String>,
    /// Its working directory; empty: none.
    pub workdir: String,
}

/// The images of one node.
pub(crate) struct Images {
    containerd: Containerd,
    options: ImageOptions,
    /// For archives that must be decompressed first.
    scratch: PathBuf,
    locks: KeyedLocks<String>,
    /// By manifest digest, which never changes its meaning.
    known: Mutex<BTreeMap<String, ImageInfo>>,
}

impl Images {
    pub fn new(containerd: Containerd, options: ImageOptions, scratch: PathBuf) -> Self {
        Self {
            containerd,
            options,
            scratch,
            locks: KeyedLocks::default(),
            known: Mutex::default(),
        }
    }

    /// The image of this name, pulled if need be. Concurrent pulls of one image are one.
    pub async fn ensure(&self, name: &str, progress: Progress<'_>) -> Result<ImageInfo> {
        if let Some(found) = self.find(name, progress).await? {
            return Ok(found);
        }
        let reference = name::parse(name).context("the image is not on this node")?;
        let key = format!("pull {}", reference.whole());
        let _pulling = if let Some(guard) = self.locks.try_lock(key.clone()) {
            guard
        } else {
            progress("waiting for another job's pull of the image".to_owned());
            self.locks.lock(key).await
        };
        match self.find(name, progress).await? {
            Some(found) => Ok(found),
            None => self.pull(&reference, progress).await,
        }
    }

    /// Loads an archive under a name; empty: the one that the archive itself gives.
    pub async fn import(&self, path: &Path, name: &str, progress: Progress<'_>) -> Result<ImageInfo> {
        let _once = self.locks.lock(format!("import {name}")).await;
        self.import_archive(path, name, progress)
            .await
            .with_context(|| format!("importing image archive {}", path.display()))
    }

    /// Names of all images here.
    pub async fn names(&self) -> Result<Vec<String>> {
        let mut names: Vec<_> = self.list().await?.into_iter().map(|image| image.name).collect();
        names.sort_unstable();
        Ok(names)
    }

    async fn list(&self) -> Result<Vec<Image>> {
        let request = self.containerd.request(ListImagesRequest { filters: Vec::new() });
        Ok(self
            .containerd
            .images()
            .list(request)
            .await
            .told("listing images")?
            .into_inner()
            .images)
    }

    /// An image that is here: by its very name (an imported one may be called anything), or
    /// by the reference that the name stands for.
    async fn find(&self, name: &str, progress: Progress<'_>) -> Result<Option<ImageInfo>> {
        let whole = name::parse(name).map(|reference| reference.whole()).ok();
        for candidate in std::iter::once(name).chain(whole.as_deref()) {
            let request = self.containerd.request(GetImageRequest {
                name: candidate.to_owned(),
            });
            let found = self.containerd.images().get(request).await.absent_ok();
            if let Some(image) = found
                .told("looking for the image")?
                .and_then(|response| response.image)
            {
                return self.load(image, progress).await;
            }
        }
        // "tool:latest" also finds what was imported as "tool".
        let Some(whole) = whole else { return Ok(None) };
        for image in self.list().await? {
            if name::parse(&image.name).is_ok_and(|reference| reference.whole() == whole) {
                return self.load(image, progress).await;
            }
        }
        Ok(None)
    }

    /// Reads an image's documents; none where its content was lost, so that it is pulled again.
    async fn load(&self, image: Image, progress: Progress<'_>) -> Result<Option<ImageInfo>> {
        let target = image
            .target
            .with_context(|| format!("image {:?} refers to nothing", image.name))?;
        let known = self
            .known
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&target.digest)
            .cloned();
        if let Some(known) = known
            && snapshot_exists(&self.containerd, &known.chain_id).await?
        {
            return Ok(Some(ImageInfo {
                name: image.name,
                ..known
            }));
        }
        let mut digest = target.digest;
        let manifest = loop {
            let Some(bytes) = read_document(&self.containerd, &digest).await? else {
                return Ok(None);
            };
            match Document::parse(&bytes).with_context(|| format!("image {:?}", image.name))? {
                Document::Manifest(manifest) => break manifest,
                // Another client of containerd may have named an index.
                Document::Index(index) => digest.clone_from(&index.for_this_platform()?.digest),
            }
        };
        let Some(config) = self.config(&manifest).await? else {
            return Ok(None);
        };
        let lease = self.containerd.lease("unpack").await?;
        let unpack = Unpack {
            lease: &lease,
            config_digest: &manifest.config.digest,
            config: &config,
            layers: &manifest.layers,
            progress,
        };
        let chain_id = self.unpack(unpack).await;
        self.containerd.release(lease).await;
        Ok(Some(self.remember(&image.name, digest, chain_id?, config)))
    }

    async fn config(&self, manifest: &Manifest) -> Result<Option<Config>> {
        let Some(bytes) = read_document(&self.containerd, &manifest.config.digest).await? else {
            return Ok(None);
        };
        let config: Config =
            serde_json::from_slice(&bytes).context("the image's configuration is not valid")?;
        if config.os != "linux" || config.architecture != manifest::architecture() {
            bail!(
                "the image is for {}/{}, this node is linux/{}",
                config.os,
                config.architecture,
                manifest::architecture()
            );
        }
        Ok(Some(config))
    }

    /// Makes an image of content that is in the store: manifest, snapshots, name.
    /// `bytes` is the manifest as it came; none: it is made of `manifest`.
    async fn complete(
        &self,
        lease: &Lease,
        name: &str,
        manifest: &Manifest,
        bytes: Option<Vec<u8>>,
        progress: Progress<'_>,
    ) -> Result<ImageInfo> {
        let config = self
            .config(manifest)
            .await?
            .context("the image's configuration is missing")?;
        let bytes = match bytes {
            Some(bytes) => bytes,
            None => serde_json::to_vec(manifest)?,
        };
        let media_type = match manifest.media_type.as_str() {
            "" => OCI_MANIFEST,
            given => given,
        };
        let size = bytes.len() as u64;
        // What keeps content from being collected: name -> manifest -> configuration and layers;
        // the configuration refers to the snapshot.
        let mut labels = Labels::from([(
            "containerd.io/gc.ref.content.config".to_owned(),
            manifest.config.digest.clone(),
        )]);
        for (index, layer) in manifest.layers.iter().enumerate() {
            labels.insert(
                format!("containerd.io/gc.ref.content.l.{index}"),
                layer.digest.clone(),
            );
        }
        let digest = write_document(&self.containerd, lease, bytes, labels).await?;
        let unpack = Unpack {
            lease,
            config_digest: &manifest.config.digest,
            config: &config,
            layers: &manifest.layers,
            progress,
        };
        let chain_id = self.unpack(unpack).await?;
        let target = Descriptor::new(media_type, digest.clone(), size);
        self.name_it(lease, name, target).await?;
        Ok(self.remember(name, digest, chain_id, config))
    }

    async fn name_it(&self, lease: &Lease, name: &str, target: Descriptor) -> Result<()> {
        let image = Image {
            name: name.to_owned(),
            target: Some(target.into()),
            ..Image::default()
        };
        let create = CreateImageRequest {
            image: Some(image.clone()),
            ..CreateImageRequest::default()
        };
        let created = self
            .containerd
            .images()
            .create(self.containerd.leased(create, lease))
            .await;
        if created.exists_ok().told("naming the image")?.is_none() {
            let update = UpdateImageRequest {
                image: Some(image),
                ..UpdateImageRequest::default()
            };
            let updated = self
                .containerd
                .images()
                .update(self.containerd.leased(update, lease))
                .await;
            updated.told("naming the image")?;
        }
        Ok(())
    }

    fn remember(&self, name: &str, digest: String, chain_id: String, config: Config) -> ImageInfo {
        let info = ImageInfo {
            name: name.to_owned(),
            digest: digest.clone(),
            chain_id,
            env: config.config.env,
            workdir: config.config.working_dir,
        };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN_IMAGES {
            known.clear();
        }
        known.insert(digest, info.clone());
        info
    }
}

/// Shared by all clones of a runtime.
pub(crate) type SharedImages = Arc<Images>;
