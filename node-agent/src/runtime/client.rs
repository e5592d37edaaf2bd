//! The connection to containerd: one channel that dials again by itself.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow};
use containerd_client::services::v1::containers_client::ContainersClient;
use containerd_client::services::v1::content_client::ContentClient;
use containerd_client::services::v1::diff_client::DiffClient;
use containerd_client::services::v1::events_client::EventsClient;
use containerd_client::services::v1::images_client::ImagesClient;
use containerd_client::services::v1::introspection_client::IntrospectionClient;
use containerd_client::services::v1::leases_client::LeasesClient;
use containerd_client::services::v1::snapshots::snapshots_client::SnapshotsClient;
use containerd_client::services::v1::tasks_client::TasksClient;
use containerd_client::services::v1::version_client::VersionClient;
use containerd_client::services::v1::{CreateRequest, DeleteRequest, PluginsRequest};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request, Status};

use super::private::PrivateContainerd;

/// How long an ordinary call may take. Creating a task runs runc and hooks; the rest is quick.
const CALL_TIMEOUT: Duration = Duration::from_mins(2);
/// Largest answer taken: a list of containers carries all of their specs.
const MAX_MESSAGE: usize = 64 << 20;
/// How long what a lease holds outlives a crash of the agent in the middle of a pull.
const LEASE_LIFE: Duration = Duration::from_hours(24);

/// The snapshotter that all images are unpacked to.
pub(crate) const SNAPSHOTTER: &str = "overlayfs";

/// A containerd and the namespace that we use in it. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Containerd {
    channel: Channel,
    namespace: MetadataValue<Ascii>,
    socket: Arc<Path>,
}

impl Containerd {
    /// A client of the containerd at `socket`. Dials at the first call, and again
    /// whenever the connection is lost; a private containerd that is gone is started.
    pub fn new(socket: &Path, namespace: &str, private: Option<Arc<PrivateContainerd>>) -> Result<Self> {
        let dialled: Arc<Path> = socket.into();
        let socket = dialled.clone();
        // The address is never used: the connector knows the socket.
        let connector = tower::service_fn(move |_: Uri| {
            let socket = dialled.clone();
            let private = private.clone();
            async move { dial(&socket, private.as_deref()).await.map(TokioIo::new) }
        });
        let channel = Endpoint::from_static("http://containerd").connect_with_connector_lazy(connector);
        let namespace = namespace.parse().context("containerd namespace")?;
        Ok(Self {
            channel,
            namespace,
            socket,
        })
    }

    /// The socket of this containerd.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// A call of ordinary length.
    pub fn request<T>(&self, message: T) -> Request<T> {
        let mut request = self.endless(message);
        request.set_timeout(CALL_TIMEOUT);
        request
    }

    /// A call that lasts as long as it lasts: streams, unpacking.
    pub fn endless<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request
            .metadata_mut()
            .insert("containerd-namespace", self.namespace.clone());
        request
    }

    /// [`Self::endless`], whose results belong to a lease until something else refers to them.
    pub fn leased<T>(&self, message: T, lease: &Lease) -> Request<T> {
        let mut request = self.endless(message);
        request
            .metadata_mut()
            .insert("containerd-lease", lease.header.clone());
        request
    }

    /// Service clients.
    pub fn containers(&self) -> ContainersClient<Channel> {
        ContainersClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }
    pub fn tasks(&self) -> TasksClient<Channel> {
        TasksClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }
    pub fn images(&self) -> ImagesClient<Channel> {
        ImagesClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }
    pub fn content(&self) -> ContentClient<Channel> {
        ContentClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }
    pub fn snapshots(&self) -> SnapshotsClient<Channel> {
        SnapshotsClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }
    pub fn diff(&self) -> DiffClient<Channel> {
        DiffClient::new(self.channel.clone())
    }
    pub fn events(&self) -> EventsClient<Channel> {
        EventsClient::new(self.channel.clone())
    }
    pub fn version(&self) -> VersionClient<Channel> {
        VersionClient::new(self.channel.clone())
    }
    /// Where the snapshots are on this host.
    pub async fn snapshots_dir(&self) -> Result<PathBuf> {
        let filters = vec![format!("type==io.containerd.snapshotter.v1,id=={SNAPSHOTTER}")];
        let request = self.request(PluginsRequest { filters });
        let plugins = IntrospectionClient::new(self.channel.clone())
            .plugins(request)
            .await
            .told("asking where the snapshots are")?
            .into_inner()
            .plugins;
        let root = plugins
            .into_iter()
            .find_map(|mut plugin| plugin.exports.remove("root"));
        let root = root.context("containerd does not say where the snapshots are")?;
        Ok(PathBuf::from(root).join("snapshots"))
    }

    fn leases(&self) -> LeasesClient<Channel> {
        LeasesClient::new(self.channel.clone())
    }

    /// A lease that keeps half-made things from being collected.
    pub async fn lease(&self, purpose: &str) -> Result<Lease> {
        let now = SystemTime::now();
        let nanos = now
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default()
            .as_nanos();
        let id = format!("carrel-{purpose}-{nanos:x}");
        let expires = prost_types::Timestamp::from(now + LEASE_LIFE).to_string();
        let labels = [("containerd.io/gc.expire".to_owned(), expires)].into();
        let header = id.parse().context("lease id")?;
        self.leases()
            .create(self.request(CreateRequest {
                id: id.clone(),
                labels,
            }))
            .await
            .told("making a lease")?;
        Ok(Lease { id, header })
    }

    /// Gives a lease back.
    pub async fn release(&self, lease: Lease) {
        let request = self.request(DeleteRequest {
            id: lease.id,
            sync: false,
        });
        if let Err(status) = self.leases().delete(request).await {
            // It expires by itself.
            tracing::debug!(status = status.message(), "a lease could not be deleted");
        }
    }
}

async fn dial(socket: &Path, private: Option<&PrivateContainerd>) -> io::Result<UnixStream> {
    match (UnixStream::connect(socket).await, private) {
        (Err(_), Some(private)) => {
            private
                .ensure_running()
                .await
                .map_err(|error| io::Error::other(format!("{error:#}")))?;
            UnixStream::connect(socket).await
        }
        (result, _) => result,
    }
}

/// A lease in containerd; see [`Containerd::lease`].
pub(crate) struct Lease {
    id: String,
    header: MetadataValue<Ascii>,
}

/// Turns a gRPC status into an error that says what was being done.
pub(crate) trait Told<T> {
    /// The error reads "containerd: WHAT: its message".
    fn told(self, what: impl std::fmt::Display) -> Result<T>;
}

impl<T> Told<T> for Result<T, Status> {
    fn told(self, what: impl std::fmt::Display) -> Result<T> {
        self.map_err(|status| match status.code() {
            Code::Unavailable => anyhow!("containerd cannot be reached: {what}: {}", status.message()),
            _ => anyhow!("containerd: {what}: {}", status.message()),
        })
    }
}

/// What a call may find to be so already.
pub(crate) trait Settled<T> {
    /// `None` where the thing is not there.
    fn absent_ok(self) -> Result<Option<T>, Status>;
    /// `None` where the thing is there already.
    fn exists_ok(self) -> Result<Option<T>, Status>;
}

impl<T> Settled<T> for Result<tonic::Response<T>, Status> {
    fn absent_ok(self) -> Result<Option<T>, Status> {
        match self {
            Ok(response) => Ok(Some(response.into_inner())),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(status),
        }
    }

    fn exists_ok(self) -> Result<Option<T>, Status> {
        match self {
            Ok(response) => Ok(Some(response.into_inner())),
            Err(status) if status.code() == Code::AlreadyExists => Ok(None),
            Err(status) => Err(status),
        }
    }
}

/// Finds a program on PATH, or where system programs are though PATH lacks it.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = [
        "/usr/local/sbin",
        "/usr/local/bin",
        "/usr/sbin",
        "/usr/bin",
        "/sbin",
        "/bin",
    ];
    std::env::split_paths(&path)
        .chain(system.iter().map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|candidate| candidate.is_file())
}
