//! Images from archives: OCI layouts, `docker save`, and plain root file systems.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Component, Path};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use futures::stream::{self, StreamExt};
use serde::Deserialize;

use super::content::{Blob, Chunks, Labels, write_blob, write_document};
use super::manifest::{
    Config, Descriptor, Document, Index, MAX_DOCUMENT, Manifest, OCI_CONFIG, OCI_LAYER, OCI_LAYER_GZIP,
    RootFs, architecture,
};
use super::{ImageInfo, Images, Progress};
use crate::runtime::client::Lease;

/// Bytes read and sent at once; containerd takes messages of up to 16 MiB.
const CHUNK: usize = 1 << 20;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

impl Images {
    pub(super) async fn import_archive(
        &self,
        path: &Path,
        name: &str,
        progress: Progress<'_>,
    ) -> Result<ImageInfo> {
        progress("reading archive".to_owned());
        let (path, scratch) = (path.to_owned(), self.scratch.clone());
        let archive = tokio::task::spawn_blocking(move || Archive::open(&path, &scratch)).await??;
        let lease = self.containerd.lease("import").await?;
        let imported = self.import_leased(&lease, archive, name, progress).await;
        self.containerd.release(lease).await;
        imported
    }

    async fn import_leased(
        &self,
        lease: &Lease,
        archive: Archive,
        name: &str,
        progress: Progress<'_>,
    ) -> Result<ImageInfo> {
        let (own_name, manifest, bytes) = match archive.kind()? {
            Kind::OciLayout => self.store_layout(lease, &archive, name).await?,
            Kind::DockerSave => self.store_docker_save(lease, &archive, name).await?,
            Kind::RootFs => self.store_rootfs(lease, &archive).await?,
        };
        let name = match (name, own_name) {
            ("", Some(own)) => own,
            ("", None) => bail!("it does not say what the image is called: give a name"),
            (given, _) => given.to_owned(),
        };
        self.complete(lease, &name, &manifest, bytes, progress).await
    }

    async fn store_layout(&self, lease: &Lease, archive: &Archive, name: &str) -> Result<Stored> {
        let index: Index = serde_json::from_slice(&archive.document("index.json")?).context("index.json")?;
        let (own_name, mut descriptor) = choose(&index, name)?;
        let (bytes, manifest) = loop {
            let bytes = archive.document(&blob_path(&descriptor.digest)?)?;
            match Document::parse(&bytes)? {
                Document::Manifest(manifest) => break (bytes, manifest),
                Document::Index(index) => descriptor = index.for_this_platform()?.clone(),
            }
        };
        for part in manifest.layers.iter().chain([&manifest.config]) {
            let entry = archive.entry(&blob_path(&part.digest)?)?;
            let blob = Blob {
                digest: Some(&part.digest),
                size: entry.size,
                labels: Labels::new(),
            };
            write_blob(&self.containerd, lease, blob, archive.stream(entry)).await?;
        }
        Ok((own_name, manifest, Some(bytes)))
    }

    async fn store_docker_save(&self, lease: &Lease, archive: &Archive, name: &str) -> Result<Stored> {
        let images: Vec<SavedImage> =
            serde_json::from_slice(&archive.document("manifest.json")?).context("manifest.json")?;
        let image = match images.as_slice() {
            [only] => only,
            several => several
                .iter()
                .find(|image| image.repo_tags.iter().any(|tag| tag == name))
                .with_context(|| {
                    let tags: Vec<_> = several
                        .iter()
                        .flat_map(|image| &image.repo_tags)
                        .map(String::as_str)
                        .collect();
                    format!(
                        "it holds several images; give the name of one of them: {}",
                        tags.join(", ")
                    )
                })?,
        };
        let config = archive.document(&image.config)?;
        let size = config.len() as u64;
        let digest = write_document(&self.containerd, lease, config, Labels::new()).await?;
        let config = Descriptor::new(OCI_CONFIG, digest, size);
        let mut layers = Vec::with_capacity(image.layers.len());
        for path in &image.layers {
            let entry = archive.entry(path)?;
            let media_type = if archive.is_gzip(entry)? {
                OCI_LAYER_GZIP
            } else {
                OCI_LAYER
            };
            let blob = Blob {
                digest: None,
                size: entry.size,
                labels: Labels::new(),
            };
            let digest = write_blob(&self.containerd, lease, blob, archive.stream(entry)).await?;
            layers.push(Descriptor::new(media_type, digest, entry.size));
        }
        Ok((
            image.repo_tags.first().cloned(),
            Manifest::new(config, layers),
            None,
        ))
    }

    /// A root file system becomes an image of one layer: the archive itself.
    async fn store_rootfs(&self, lease: &Lease, archive: &Archive) -> Result<Stored> {
        let whole = Entry {
            offset: 0,
            size: archive.size,
        };
        let blob = Blob {
            digest: None,
            size: whole.size,
            labels: Labels::new(),
        };
        let diff_id = write_blob(&self.containerd, lease, blob, archive.stream(whole)).await?;
        let layer = Descriptor::new(OCI_LAYER, diff_id.clone(), whole.size);
        let mut config = Config {
            architecture: architecture().to_owned(),
            os: "linux".to_owned(),
            rootfs: RootFs {
                kind: "layers".to_owned(),
                diff_ids: vec![diff_id],
            },
            ..Config::default()
        };
        config.config.env = vec![format!("PATH={}", crate::runtime::DEFAULT_PATH)];
        let bytes = serde_json::to_vec(&config)?;
        let size = bytes.len() as u64;
        let digest = write_document(&self.containerd, lease, bytes, Labels::new()).await?;
        Ok((
            None,
            Manifest::new(Descriptor::new(OCI_CONFIG, digest, size), vec![layer]),
            None,
        ))
    }
}

/// The archive's own name for the image, its manifest, and the manifest's bytes if it had some.
type Stored = (Option<String>, Manifest, Option<Vec<u8>>);

/// One image of `docker save`'s manifest.json.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SavedImage {
    config: String,
    #[serde(default)]
    repo_tags: Vec<String>,
    layers: Vec<String>,
}

/// The image of a layout: the only one, or that of the wanted name; with its name.
fn choose(index: &Index, wanted: &str) -> Result<(Option<String>, Descriptor)> {
    // containerd's annotation holds the whole name, OCI's often only the tag.
    let name_of = |descriptor: &Descriptor| {
        let annotation = |key: &str| descriptor.annotations.get(key).cloned();
        annotation("io.containerd.image.name").or_else(|| annotation("org.opencontainers.image.ref.name"))
    };
    if let [only] = index.manifests.as_slice() {
        return Ok((name_of(only), only.clone()));
    }
    let named = index
        .manifests
        .iter()
        .find(|descriptor| name_of(descriptor).is_some_and(|name| name == wanted));
    match named {
        Some(found) => Ok((name_of(found), found.clone())),
        None if index
            .manifests
            .iter()
            .all(|descriptor| name_of(descriptor).is_none()) =>
        {
            Ok((None, index.for_this_platform()?.clone()))
        }
        None => {
            let names: Vec<_> = index.manifests.iter().filter_map(name_of).collect();
            bail!(
                "it holds several images; give the name of one of them: {}",
                names.join(", ")
            )
        }
    }
}

fn blob_path(digest: &str) -> Result<String> {
    let (algorithm, hex) = digest.split_once(':').context("a digest without algorithm")?;
    Ok(format!("blobs/{algorithm}/{hex}"))
}

/// Where a file's bytes lie in the archive.
#[derive(Clone, Copy, Debug)]
struct Entry {
    offset: u64,
    size: u64,
}

/// What an archive is.
pub(crate) enum Kind {
    OciLayout,
    DockerSave,
    RootFs,
}

/// An uncompressed tar file, and where its entries lie.
pub(crate) struct Archive {
    file: Arc<File>,
    size: u64,
    entries: BTreeMap<String, Entry>,
    /// Symbolic and hard links, to the path that they name.
    links: BTreeMap<String, String>,
}

impl Archive {
    /// Opens an archive; a compressed one is decompressed into an unnamed file first.
    pub fn open(path: &Path, scratch: &Path) -> Result<Self> {
        let mut file = File::open(path)?;
        ensure!(file.metadata()?.is_file(), "it is not a file");
        let mut magic = [0; 6];
        let length = read_up_to(&mut file, &mut magic)?;
        file.seek(SeekFrom::Start(0))?;
        match &magic[..length] {
            [0x1f, 0x8b, ..] => file = decompress(&file, scratch)?,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => {
                bail!("it is compressed with zstd: decompress it first (zstd -d)")
            }
            [0xfd, b'7', b'z', b'X', b'Z', ..] => {
                bail!("it is compressed with xz: decompress it first (xz -d)")
            }
            [b'B', b'Z', b'h', ..] => bail!("it is compressed with bzip2: decompress it first (bzip2 -d)"),
            _ => {}
        }
        let size = file.metadata()?.len();
        let mut entries = BTreeMap::new();
        let mut links = BTreeMap::new();
        let mut tar = tar::Archive::new(&file);
        for entry in tar.entries_with_seek().context("it is not a tar archive")? {
            let entry = entry.context("it is not a tar archive, or it is damaged")?;
            let path = plain(&entry.path()?);
            let kind = entry.header().entry_type();
            if kind.is_file() {
                entries.insert(
                    path,
                    Entry {
                        offset: entry.raw_file_position(),
                        size: entry.size(),
                    },
                );
            } else if (kind.is_symlink() || kind.is_hard_link())
                && let Some(target) = entry.link_name()?
            {
                let base = if kind.is_symlink() {
                    Path::new(&path).parent().unwrap_or(Path::new(""))
                } else {
                    Path::new("")
                };
                links.insert(path.clone(), plain(&base.join(target)));
            }
        }
        ensure!(
            !entries.is_empty() || !links.is_empty(),
            "it is empty, or it is not a tar archive"
        );
        Ok(Self {
            file: Arc::new(file),
            size,
            entries,
            links,
        })
    }

    pub fn kind(&self) -> Result<Kind> {
        if self.entries.contains_key("oci-layout") && self.entries.contains_key("index.json") {
            return Ok(Kind::OciLayout);
        }
        if self.entries.contains_key("manifest.json") {
            return Ok(Kind::DockerSave);
        }
        let has = |path: &str| {
            let inside = format!("{path}/");
            let known = |paths: Option<&String>| {
                paths.is_some_and(|found| found == path || found.starts_with(&inside))
            };
            known(
                self.entries
                    .range(path.to_owned()..)
                    .next()
                    .map(|(found, _)| found),
            ) || known(self.links.range(path.to_owned()..).next().map(|(found, _)| found))
        };
        // A busybox alone is enough.
        ensure!(
            ["bin", "usr", "etc", "sbin"].into_iter().any(has),
            "it is no OCI layout (oci-layout, index.json), no `docker save` (manifest.json) and no root file system \
             (bin, usr, etc)"
        );
        Ok(Kind::RootFs)
    }

    fn entry(&self, path: &str) -> Result<Entry> {
        let mut path = plain(Path::new(path));
        // Old `docker save` links equal layers to each other.
        for _ in 0..8 {
            if let Some(entry) = self.entries.get(&path) {
                return Ok(*entry);
            }
            match self.links.get(&path) {
                Some(target) => path.clone_from(target),
                None => break,
            }
        }
        bail!("{path} is missing from the archive")
    }

    pub fn document(&self, path: &str) -> Result<Vec<u8>> {
        let entry = self.entry(path)?;
        ensure!(
            entry.size <= MAX_DOCUMENT,
            "{path} is larger than {MAX_DOCUMENT} bytes"
        );
        let mut bytes = vec![0; entry.size as usize];
        self.file.read_exact_at(&mut bytes, entry.offset)?;
        Ok(bytes)
    }

    fn is_gzip(&self, entry: Entry) -> Result<bool> {
        let mut magic = [0; 2];
        if entry.size >= 2 {
            self.file.read_exact_at(&mut magic, entry.offset)?;
        }
        Ok(magic == GZIP_MAGIC)
    }

    /// An entry's bytes, read on threads that may block.
    fn stream(&self, entry: Entry) -> Chunks {
        let file = self.file.clone();
        let end = entry.offset + entry.size;
        stream::try_unfold(entry.offset, move |offset| {
            let file = file.clone();
            async move {
                let length = CHUNK.min((end - offset) as usize);
                if length == 0 {
                    return Ok(None);
                }
                let read = move || {
                    let mut chunk = vec![0; length];
                    file.read_exact_at(&mut chunk, offset).map(|()| chunk)
                };
                let chunk = tokio::task::spawn_blocking(read)
                    .await
                    .map_err(io::Error::other)??;
                Ok(Some((Bytes::from(chunk), offset + length as u64)))
            }
        })
        .boxed()
    }
}

fn read_up_to(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match file.read(&mut buffer[length..])? {
            0 => break,
            more => length += more,
        }
    }
    Ok(length)
}

fn decompress(file: &File, scratch: &Path) -> Result<File> {
    std::fs::create_dir_all(scratch)?;
    let mut plain = tempfile::tempfile_in(scratch)?;
    let mut decoder = flate2::read::MultiGzDecoder::new(io::BufReader::with_capacity(CHUNK, file));
    io::copy(&mut decoder, &mut plain)
        .with_context(|| format!("decompressing into {}", scratch.display()))?;
    plain.seek(SeekFrom::Start(0))?;
    Ok(plain)
}

/// A path without "./", "..", or a leading "/".
fn plain(path: &Path) -> String {
    let mut parts: Vec<String> = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(part) => parts.push(part.to_string_lossy().into_owned()),
            Component::ParentDir => {
                parts.pop();
            }
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    parts.join("/")
}
