//! Images from a registry.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use base64::Engine as _;
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt, TryStreamExt};
use oci_client::Reference;
use oci_client::client::{Client, ClientConfig, ClientProtocol, SizedStream};
use oci_client::errors::{OciDistributionError, OciErrorCode};
use oci_client::secrets::RegistryAuth;
use serde::Deserialize;

use super::content::{Blob, Labels, has_blob, write_blob, write_document};
use super::manifest::{
    DOCKER_LIST, DOCKER_MANIFEST, Descriptor, Document, MAX_DOCUMENT, Manifest, OCI_INDEX, OCI_MANIFEST,
};
use super::{ImageInfo, Images, Progress, name};
use crate::runtime::client::Lease;

/// Layers fetched at once; Docker's default too.
const PARALLEL_LAYERS: usize = 3;
/// Tries for a layer whose transfer breaks off.
const LAYER_TRIES: usize = 3;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest silence within a transfer.
const READ_TIMEOUT: Duration = Duration::from_mins(1);

impl Images {
    /// Fetches an image and unpacks it.
    pub(super) async fn pull(&self, reference: &Reference, progress: Progress<'_>) -> Result<ImageInfo> {
        progress("pulling image".to_owned());
        let lease = self.containerd.lease("pull").await?;
        let pulled = self.pull_leased(&lease, reference, progress).await;
        self.containerd.release(lease).await;
        pulled
    }

    async fn pull_leased(
        &self,
        lease: &Lease,
        reference: &Reference,
        progress: Progress<'_>,
    ) -> Result<ImageInfo> {
        let registry = Registry::new(self, reference)?;
        let (bytes, manifest) = registry.manifest().await?;
        let config = registry.document(&manifest.config).await?;
        let digest = write_document(&self.containerd, lease, config, Labels::new()).await?;
        if digest != manifest.config.digest {
            bail!(
                "registry {} sent a configuration of another digest",
                reference.registry()
            );
        }
        self.fetch_layers(lease, &registry, &manifest, progress).await?;
        self.complete(lease, &reference.whole(), &manifest, Some(bytes), progress)
            .await
    }

    async fn fetch_layers(
        &self,
        lease: &Lease,
        registry: &Registry<'_>,
        manifest: &Manifest,
        progress: Progress<'_>,
    ) -> Result<()> {
        let mut missing: BTreeMap<&str, &Descriptor> = BTreeMap::new();
        for layer in &manifest.layers {
            if !has_blob(&self.containerd, &layer.digest).await? {
                missing.insert(&layer.digest, layer);
            }
        }
        let meter = Meter::new(missing.values().map(|layer| layer.size).sum(), progress);
        // Boxed: the compiler does not see otherwise that the whole is Send.
        let mut transfers: Vec<BoxFuture<'_, Result<()>>> = Vec::new();
        for layer in missing.into_values() {
            transfers.push(Box::pin(self.fetch_layer(lease, registry, layer, &meter)));
        }
        stream::iter(transfers)
            .buffer_unordered(PARALLEL_LAYERS)
            .try_collect::<()>()
            .await
    }

    async fn fetch_layer(
        &self,
        lease: &Lease,
        registry: &Registry<'_>,
        layer: &Descriptor,
        meter: &Meter<'_>,
    ) -> Result<()> {
        // Another image that is being pulled may share the layer.
        let _once = self.locks.lock(format!("layer {}", layer.digest)).await;
        if has_blob(&self.containerd, &layer.digest).await? {
            meter.add(layer.size);
            return Ok(());
        }
        let mut tries = 0;
        loop {
            tries += 1;
            let (received, result) = self.transfer(lease, registry, layer, meter).await;
            match result {
                Ok(()) => {
                    meter.add(layer.size.saturating_sub(received));
                    return Ok(());
                }
                Err(error) if tries < LAYER_TRIES => {
                    tracing::warn!(
                        layer = layer.digest,
                        error = format!("{error:#}"),
                        "a layer's transfer broke off"
                    );
                    meter.take_back(received);
                }
                Err(error) => {
                    return Err(error.context(format!("pulling image {}", registry.reference.whole())));
                }
            }
        }
    }

    /// One try; also gives the bytes that were counted.
    async fn transfer(
        &self,
        lease: &Lease,
        registry: &Registry<'_>,
        layer: &Descriptor,
        meter: &Meter<'_>,
    ) -> (u64, Result<()>) {
        let opened = open_blob(registry, &layer.digest).await;
        let incoming = match opened {
            Ok(incoming) => incoming.stream,
            Err(error) => return (0, Err(anyhow!("{}", chain(&error)))),
        };
        // The store wants a stream of its own; the count comes back over a channel of the newest value.
        let (count, mut counted) = tokio::sync::watch::channel(0_u64);
        let counting =
            incoming.inspect_ok(move |chunk| count.send_modify(|total| *total += chunk.len() as u64));
        let blob = Blob {
            digest: Some(&layer.digest),
            size: layer.size,
            labels: Labels::new(),
        };
        let mut received = 0;
        let mut writing = std::pin::pin!(write_blob(&self.containerd, lease, blob, counting.boxed()));
        let result = loop {
            tokio::select! {
                // Dropped by no other arm: it is pinned outside of the loop.
                result = &mut writing => break result,
                // Loses nothing when dropped: the value stays.
                changed = counted.changed(), if received < layer.size => {
                    let total = *counted.borrow_and_update();
                    meter.add(total - received);
                    received = total;
                    if changed.is_err() {
                        break writing.await;
                    }
                }
            }
        };
        (received, result.map(drop))
    }
}

/// A registry, for one image.
struct Registry<'a> {
    client: Client,
    auth: RegistryAuth,
    reference: &'a Reference,
}

impl<'a> Registry<'a> {
    fn new(images: &Images, reference: &'a Reference) -> Result<Self> {
        // The TLS library takes one provider of algorithms for the whole process; a second call changes nothing.
        let _installed_before = rustls::crypto::ring::default_provider().install_default();
        let host = reference.resolve_registry();
        let protocol = if name::is_plain_http(host, &images.options.insecure_registries) {
            ClientProtocol::Http
        } else {
            ClientProtocol::Https
        };
        let config = ClientConfig {
            protocol,
            connect_timeout: Some(CONNECT_TIMEOUT),
            read_timeout: Some(READ_TIMEOUT),
            user_agent: concat!("carrel-node/", env!("CARGO_PKG_VERSION")),
            ..ClientConfig::default()
        };
        let client = Client::try_from(config).map_err(|error| anyhow!("{}", chain(&error)))?;
        let auth = match &images.options.registry_auth {
            None => RegistryAuth::Anonymous,
            Some(path) => credentials(path, host)
                .with_context(|| format!("reading registry credentials from {}", path.display()))?,
        };
        Ok(Self {
            client,
            auth,
            reference,
        })
    }

    /// The manifest for this platform, and its bytes.
    async fn manifest(&self) -> Result<(Vec<u8>, Manifest)> {
        let mut reference = self.reference.clone();
        // An index may point to an index; more than twice is nonsense.
        for _ in 0..3 {
            let accepted = [OCI_MANIFEST, OCI_INDEX, DOCKER_MANIFEST, DOCKER_LIST];
            let pulled = self
                .client
                .pull_manifest_raw(&reference, &self.auth, &accepted)
                .await;
            let (bytes, _digest) = pulled.map_err(|error| self.explain(&error))?;
            let document =
                Document::parse(&bytes).with_context(|| format!("image {}", self.reference.whole()))?;
            match document {
                Document::Manifest(manifest) => return Ok((bytes.to_vec(), manifest)),
                Document::Index(index) => {
                    let chosen = index
                        .for_this_platform()
                        .with_context(|| format!("image {}", self.reference.whole()))?;
                    reference = reference.clone_with_digest(chosen.digest.clone());
                }
            }
        }
        bail!("image {} is an index of indexes", self.reference.whole())
    }

    async fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>> {
        if descriptor.size > MAX_DOCUMENT {
            bail!(
                "image {} has a configuration of {} bytes",
                self.reference.whole(),
                descriptor.size
            );
        }
        let mut bytes = Vec::new();
        let pulled = whole_blob(self, &descriptor.digest, &mut bytes).await;
        pulled.map_err(|error| self.explain(&error))?;
        Ok(bytes)
    }

    /// What went wrong, where, and what to do.
    fn explain(&self, error: &OciDistributionError) -> anyhow::Error {
        let host = self.reference.resolve_registry();
        let image = self.reference.whole();
        let unknown = |code: &OciErrorCode| {
            matches!(
                code,
                OciErrorCode::ManifestUnknown | OciErrorCode::NameUnknown | OciErrorCode::NotFound
            )
        };
        let refused = |code: &OciErrorCode| matches!(code, OciErrorCode::Unauthorized | OciErrorCode::Denied);
        let why = match error {
            OciDistributionError::RegistryError { envelope, .. }
                if envelope.errors.iter().any(|e| unknown(&e.code)) =>
            {
                format!("registry {host} does not have it")
            }
            OciDistributionError::ServerError { code: 404, .. } => {
                format!("registry {host} does not have it")
            }
            OciDistributionError::UnauthorizedError { .. }
            | OciDistributionError::AuthenticationFailure(_) => {
                format!("registry {host} does not show it to this node: it does not exist, or it is private")
            }
            OciDistributionError::RegistryError { envelope, .. }
                if envelope.errors.iter().any(|e| refused(&e.code)) =>
            {
                format!("registry {host} does not show it to this node: it does not exist, or it is private")
            }
            OciDistributionError::RequestError(request) if request.is_connect() || request.is_timeout() => {
                format!("registry {host} cannot be reached: {}", chain(error))
            }
            other => format!("registry {host} failed: {}", chain(other)),
        };
        anyhow!(
            "image {image} is not on this node, and {why}. Check the name, or load an archive of it on the node \
             with `carrel-node image import`"
        )
    }
}

/// Begins a transfer. Boxed here, where the lifetimes have names: of an async function that holds the
/// client's generic future the compiler does not see that it is Send.
fn open_blob<'a>(
    registry: &'a Registry<'_>,
    digest: &'a str,
) -> BoxFuture<'a, Result<SizedStream, OciDistributionError>> {
    Box::pin(registry.client.pull_blob_stream(registry.reference, digest))
}

/// As [`open_blob`], of a small blob as a whole.
fn whole_blob<'a>(
    registry: &'a Registry<'_>,
    digest: &'a str,
    bytes: &'a mut Vec<u8>,
) -> BoxFuture<'a, Result<(), OciDistributionError>> {
    Box::pin(registry.client.pull_blob(registry.reference, digest, bytes))
}

/// An error and its sources in one line.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        source = error.source();
    }
    text
}

/// Docker's `config.json`, as far as it holds credentials.
#[derive(Default, Deserialize)]
#[serde(default)]
struct DockerConfig {
    auths: BTreeMap<String, DockerAuth>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct DockerAuth {
    auth: String,
    username: String,
    password: String,
}

fn credentials(path: &std::path::Path, host: &str) -> Result<RegistryAuth> {
    let config: DockerConfig = serde_json::from_slice(&std::fs::read(path)?)?;
    // Keys are hosts or addresses ("https://index.docker.io/v1/").
    let of = |key: &str| {
        let key = key.trim_start_matches("https://").trim_start_matches("http://");
        key.split('/').next().unwrap_or_default() == host
    };
    let Some((_, auth)) = config.auths.into_iter().find(|(key, _)| of(key)) else {
        return Ok(RegistryAuth::Anonymous);
    };
    if auth.auth.is_empty() {
        return Ok(RegistryAuth::Basic(auth.username, auth.password));
    }
    let decoded = base64::engine::general_purpose::STANDARD.decode(&auth.auth)?;
    let decoded = String::from_utf8(decoded)?;
    let (user, password) = decoded
        .split_once(':')
        .context("\"auth\" is not base64 of user:password")?;
    Ok(RegistryAuth::Basic(user.to_owned(), password.to_owned()))
}

/// Counts bytes and tells each new percent.
struct Meter<'a> {
    total: u64,
    received: AtomicU64,
    told: Mutex<Option<u64>>,
    progress: Progress<'a>,
}

impl<'a> Meter<'a> {
    fn new(total: u64, progress: Progress<'a>) -> Self {
        Self {
            total,
            received: AtomicU64::new(0),
            told: Mutex::new(None),
            progress,
        }
    }

    fn add(&self, bytes: u64) {
        let received = self.received.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let percent = (received.min(self.total) * 100)
            .checked_div(self.total)
            .unwrap_or(100);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if *told != Some(percent) {
            *told = Some(percent);
            (self.progress)(format!("pulling image, {percent} %"));
        }
    }

    fn take_back(&self, bytes: u64) {
        self.received.fetch_sub(bytes, Ordering::Relaxed);
    }
}
