//! What a job's programs say to the broker: a socket in each container, and a relay behind it.
//!
//! Nothing from inside is trusted. The relay takes calls of the users' API by name, from the job's own
//! user, and hands on the message alone: headers, address and deadline of what goes to the broker are
//! the relay's, and so is the word which job it is. What a job may do, the broker decides.

use std::convert::Infallible;
use std::error::Error as _;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::{Buf, BufMut, Bytes};
use carrel_core::broker::Call;
use carrel_core::model::ids::JobKey;
use carrel_proto::inside::{DEADLINE_NAME, HEADER, SOCKET_NAME};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::{Body, BoxFuture, Service, StdError, http};
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use crate::streams::TlsMaterial;

/// Connections of one job: a command has one, for as long as it runs. Those beyond wait for one to end.
const MAX_CONNECTIONS: usize = 16;
/// A connection's longest life, so that forgotten ones do not keep others out.
const MAX_AGE: Duration = Duration::from_mins(1);
/// Calls under way on one connection; a command makes one after the other.
const MAX_STREAMS: u32 = 4;
/// Calls of one job that the relay hands on at a time; the others wait. All jobs of a node share one
/// connection to the broker, which takes 256.
const MAX_CALLS: usize = 4;
/// All headers of a call: what gRPC adds is some hundred bytes.
const MAX_HEADERS: u32 = 8 << 10;
/// Longest message from inside: a batch job with its script (256 KiB), its arguments and its variables.
const MAX_REQUEST: usize = 1 << 20;
/// Longest answer: a session whose gang has a thousand nodes.
const MAX_ANSWER: usize = 4 << 20;
/// Longest wait for the broker's answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);
/// So long a call waits for a broker that cannot be connected to: it may be restarting.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two attempts to connect.
const RETRY: Duration = Duration::from_millis(200);
/// After an error that concerns this process (out of descriptors), before the next accept.
const PAUSE: Duration = Duration::from_millis(100);
/// Where calls are, in HTTP.
const SERVICE: &str = "/carrel.v1.Broker/";
/// Metadata key of what to do about a refusal.
const HINT: &str = "carrel-hint";

/// The way to the broker that the calls of all jobs share.
pub struct Upstream {
    broker: String,
    tls: watch::Receiver<TlsMaterial>,
    /// With the certificate that it was made with.
    channel: Mutex<Option<(TlsMaterial, Channel)>>,
}

impl Upstream {
    /// To the broker at this address ("https://host:port"), with the newest certificate.
    pub fn new(broker: String, tls: watch::Receiver<TlsMaterial>) -> Self {
        Self {
            broker,
            tls,
            channel: Mutex::default(),
        }
    }

    fn channel(&self) -> Result<Channel> {
        let material = self.tls.borrow().clone();
        let mut kept = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, channel)) = kept.as_ref().filter(|(old, _)| *old == material) {
            return Ok(channel.clone());
        }
        let channel = material.channel(&self.broker)?;
        *kept = Some((material, channel.clone()));
        Ok(channel)
    }
}

/// A job, as the relay knows it.
struct Job {
    key: JobKey,
    /// Whose processes it has, as this host counts.
    uid: u32,
    upstream: Arc<Upstream>,
    turns: Semaphore,
}

/// Says when the job ends, to its programs: whole, or as before.
pub fn write_deadline(dir: &Path, text: &str) -> Result<()> {
    let (path, new) = (dir.join(DEADLINE_NAME), dir.join(".deadline.new"));
    fs::write(&new, text)
        .and_then(|()| fs::set_permissions(&new, Permissions::from_mode(0o644)))
        .and_then(|()| fs::rename(&new, &path))
        .with_context(|| format!("writing {}", path.display()))
}

/// Serves a job's socket in `dir`, which the job's container shows at [`carrel_proto::inside::DIR`].
/// Dropping it cuts the connections; an agent that comes after takes the socket over.
///
/// # Errors
/// The socket cannot be made.
pub async fn serve(dir: &Path, key: JobKey, uid: u32, upstream: Arc<Upstream>) -> Result<Infallible> {
    let listener = bind(dir, SOCKET_NAME)?;
    let job = Arc::new(Job {
        key,
        uid,
        upstream,
        turns: Semaphore::new(MAX_CALLS),
    });
    // As many as there may be; they end with this future.
    let mut connections = JoinSet::new();
    loop {
        // Both arms only wait: cancelled, they have taken nothing.
        tokio::select! {
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                Ok((stream, _)) => drop(connections.spawn(connection(Arc::clone(&job), stream))),
                Err(error) => {
                    tracing::warn!(%error, "a connection from inside could not be accepted");
                    tokio::time::sleep(PAUSE).await;
                }
            },
            Some(ended) = connections.join_next() => if let Err(error) = ended {
                tracing::error!(%error, "a connection from inside ended badly");
            },
        }
    }
}

/// A socket for the job's programs, in place of one that an earlier agent left.
pub(crate) fn bind(dir: &Path, name: &str) -> Result<UnixListener> {
    let path = dir.join(name);
    let what = || format!("the socket {}", path.display());
    match fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error).with_context(what),
        _ => {}
    }
    let listener = UnixListener::bind(&path).with_context(what)?;
    // The directory is root's: what has this name is the socket. Who connects is asked of the kernel.
    fs::set_permissions(&path, Permissions::from_mode(0o666)).with_context(what)?;
    Ok(listener)
}

async fn connection(job: Arc<Job>, stream: UnixStream) {
    let uid = match stream.peer_cred() {
        Ok(peer) => peer.uid(),
        Err(error) => {
            tracing::warn!(%error, "a peer's user id could not be read");
            return;
        }
    };
    let mut server = auto::Builder::new(TokioExecutor::new()).http2_only();
    server
        .http2()
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADERS);
    let relay = TowerToHyperService::new(Relay { job, uid });
    let serving = server.serve_connection(TokioIo::new(stream), relay);
    match tokio::time::timeout(MAX_AGE, serving).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection from inside broke"),
        Err(_) => tracing::debug!("a connection from inside has lasted too long and is cut"),
    }
}

/// Answers the calls of one connection.
#[derive(Clone)]
struct Relay {
    job: Arc<Job>,
    /// The peer's user id, from the kernel.
    uid: u32,
}

impl<B> Service<http::Request<B>> for Relay
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<StdError> + Send,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let (job, uid) = (Arc::clone(&self.job), self.uid);
        Box::pin(async move {
            let path = match job.admit(uid, request.uri().path()) {
                Ok(path) => path,
                Err(status) => return Ok(status.into_http()),
            };
            let relay = tower::service_fn(move |request: Request<Bytes>| {
                let (job, path) = (Arc::clone(&job), path.clone());
                async move { job.relay(&path, request.into_inner()).await }
            });
            let mut grpc = tonic::server::Grpc::new(Messages).max_decoding_message_size(MAX_REQUEST);
            Ok(grpc.unary(relay, request).await)
        })
    }
}

impl Job {
    /// Where a call goes: by its name in the table of rights, and as the relay spells it.
    fn admit(&self, uid: u32, path: &str) -> Result<PathAndQuery, Status> {
        if uid != self.uid {
            return Err(Status::permission_denied(format!(
                "this socket is for the user of job {} only",
                self.key.job
            )));
        }
        let known = Call::ALL
            .into_iter()
            .map(|call| format!("{SERVICE}{call:?}"))
            .find(|known| known == path);
        known
            .and_then(|path| PathAndQuery::try_from(path).ok())
            .ok_or_else(|| Status::unimplemented("there is no such call from inside a session"))
    }

    /// The broker's answer to a call.
    async fn relay(&self, path: &PathAndQuery, message: Bytes) -> Result<Response<Bytes>, Status> {
        let _turn = self
            .turns
            .acquire()
            .await
            .map_err(|_| Status::unavailable("the node's agent is ending"))?;
        let begun = Instant::now();
        loop {
            let asked = tokio::time::timeout(CALL_TIMEOUT, self.ask(path, message.clone()));
            let asked = asked.await.unwrap_or_else(|_| {
                let seconds = CALL_TIMEOUT.as_secs();
                Err(away(&format!("it has not answered for {seconds} s")))
            });
            match asked {
                Ok(answer) => return Ok(Response::new(answer)),
                // What was not sent may be sent again.
                Err(status) if is_unsent(&status) && begun.elapsed() < PATIENCE => {
                    tokio::time::sleep(RETRY).await;
                }
                Err(status) => return Err(told(&status)),
            }
        }
    }

    async fn ask(&self, path: &PathAndQuery, message: Bytes) -> Result<Bytes, Status> {
        let channel = self.upstream.channel().map_err(|error| {
            tracing::error!(error = format!("{error:#}"), "no way to the broker for jobs");
            away("the node's own certificate cannot be used")
        })?;
        let mut request = Request::new(message);
        let key = MetadataValue::try_from(self.key.to_string())
            .map_err(|_| Status::internal("the job's id is no header"))?;
        request.metadata_mut().insert(HEADER, key);
        let mut client = tonic::client::Grpc::new(channel).max_decoding_message_size(MAX_ANSWER);
        client
            .ready()
            .await
            .map_err(|error| Status::from_error(error.into()))?;
        let answer = client.unary(request, path.clone(), Messages).await?;
        Ok(answer.into_inner())
    }
}

/// The broker was not connected to.
fn is_unsent(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// A refusal as it is told inside: the broker's words and hint, or what became of the way to it.
fn told(status: &Status) -> Status {
    let mut innermost = status.source();
    while let Some(cause) = innermost.and_then(std::error::Error::source) {
        innermost = Some(cause);
    }
    if let Some(cause) = innermost {
        return away(&cause.to_string());
    }
    let mut clean = Status::new(status.code(), status.message());
    if let Some(hint) = status.metadata().get(HINT) {
        clean.metadata_mut().insert(HINT, hint.clone());
    }
    clean
}

fn away(why: &str) -> Status {
    let mut status = Status::new(
        Code::Unavailable,
        format!("the broker cannot be reached from this node: {why}"),
    );
    let hint = MetadataValue::from_static("this session goes on without it; try again in a moment");
    status.metadata_mut().insert(HINT, hint);
    status
}

/// Messages as they are: the relay looks into none.
#[derive(Clone, Copy, Debug)]
struct Messages;

impl Codec for Messages {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Messages {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(item);
        Ok(())
    }
}

impl Decoder for Messages {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}
