//! Byte streams: links to the gateways, and the connections that they ask for.
//!
//! The agent keeps a `GatewayLink` to every gateway. When a gateway asks for a
//! stream to a job, the agent connects to that job's carrel-init, dials the
//! gateway's stream endpoint, proves that it was asked, and relays bytes, which
//! it cannot read. Streams live in tasks of their own and outlive the link.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use carrel_core::model::ids::{Generation, JobId, JobKey, NodeName};
use carrel_proto::relay::relay;
use carrel_proto::socket::{Socket, open_as_asked};
use carrel_proto::stream::{Endpoint, Id, Secret};
use carrel_proto::v1;
use carrel_proto::v1::gateway_link_client::GatewayLinkClient;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint as Dial, Identity};
use tracing::{Instrument, debug, info, info_span, warn};

use crate::backoff::Backoff;
use crate::logs::Logs;

/// Streams of one node at a time: each holds four file descriptors and a pipe pair,
/// and the agent's hard limit of open files may be as low as 20,000.
const MAX_STREAMS: usize = 2_000;
/// Refusals that wait for a link to take them; more are dropped, and the gateway gives up by its own timeout.
const MAX_REFUSALS: usize = 64;
/// Longest wait for a gateway's stream endpoint, or for a container's socket.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// HTTP/2 pings find a dead gateway, and keep a NAT's entry alive.
const PING: Duration = Duration::from_secs(10);
/// Time for the answer to one.
const PING_ANSWER: Duration = Duration::from_secs(10);
/// Longest wait before a gateway is dialled again. A gateway waits longer than this for a node
/// before it refuses a client that comes back after its restart.
const LINK_RETRY: Duration = Duration::from_secs(2);

/// What is needed to dial the broker and its gateways with mutual TLS.
#[derive(Clone, PartialEq, Eq)]
pub struct TlsMaterial {
    /// CA certificates, PEM.
    pub ca_pem: String,
    /// The node's certificate, PEM.
    pub certificate_pem: String,
    /// Its key, PEM.
    pub key_pem: String,
}

impl TlsMaterial {
    /// A channel to this URI ("https://host:port"), connected at its first use.
    pub fn channel(&self, uri: &str) -> Result<Channel> {
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&self.ca_pem))
            .identity(Identity::from_pem(&self.certificate_pem, &self.key_pem));
        let dial = Dial::from_shared(uri.to_owned())
            .with_context(|| format!("{uri} is not an address"))?
            .tls_config(tls)
            .context("the node's TLS certificate or key cannot be used")?
            .connect_timeout(DIAL_TIMEOUT)
            .http2_keep_alive_interval(PING)
            .keep_alive_timeout(PING_ANSWER)
            .keep_alive_while_idle(true)
            .tcp_nodelay(true);
        Ok(dial.connect_lazy())
    }
}

/// What the links share.
struct Shared {
    node: NodeName,
    tls: watch::Receiver<TlsMaterial>,
    run_dir: Box<dyn Fn(JobKey) -> PathBuf + Send + Sync>,
    logs: Logs,
    slots: Arc<Semaphore>,
    streams: TaskTracker,
    cancel: CancellationToken,
}

/// Keeps a link to every gateway that the broker names.
pub struct Streams {
    shared: Arc<Shared>,
    links: BTreeMap<(String, String), CancellationToken>,
}

impl Streams {
    /// Without links yet. `run_dir` says where a job's sockets are.
    pub fn new(
        node: NodeName,
        tls: watch::Receiver<TlsMaterial>,
        run_dir: impl Fn(JobKey) -> PathBuf + Send + Sync + 'static,
        logs: Logs,
        cancel: CancellationToken,
    ) -> Self {
        let shared = Shared {
            node,
            tls,
            run_dir: Box::new(run_dir),
            logs,
            slots: Arc::new(Semaphore::new(MAX_STREAMS)),
            streams: TaskTracker::new(),
            cancel,
        };
        Self {
            shared: Arc::new(shared),
            links: BTreeMap::new(),
        }
    }

    /// Opens links to new gateways, and lets go of those that are no longer named.
    /// Streams through the latter go on until they end.
    pub fn set(&mut self, gateways: &[v1::GatewayEndpoint]) {
        let wanted =
            |link: &str, streams: &str| gateways.iter().any(|g| g.link == link && g.streams == streams);
        self.links.retain(|(link, streams), cancel| {
            let keep = wanted(link, streams);
            if !keep {
                cancel.cancel();
            }
            keep
        });
        for gateway in gateways {
            let key = (gateway.link.clone(), gateway.streams.clone());
            if self.links.contains_key(&key) {
                continue;
            }
            let cancel = self.shared.cancel.child_token();
            self.links.insert(key, cancel.clone());
            let span = info_span!("gateway", name = %gateway.name);
            self.shared
                .streams
                .spawn(keep_link(Arc::clone(&self.shared), gateway.clone(), cancel).instrument(span));
        }
    }

    /// Waits for all links and streams to end, once the token given to [`Streams::new`] is cancelled.
    pub async fn finish(&self) {
        self.shared.streams.close();
        self.shared.streams.wait().await;
    }
}

/// Keeps one link up until it is cancelled.
async fn keep_link(shared: Arc<Shared>, gateway: v1::GatewayEndpoint, cancel: CancellationToken) {
    let mut backoff = Backoff::up_to(LINK_RETRY);
    loop {
        let connected = tokio::select! {
            // A link holds nothing that must be put right: dropping it closes it.
            () = cancel.cancelled() => return,
            ended = run_link(&shared, &gateway, &mut backoff) => ended,
        };
        match connected {
            Ok(()) => info!("the gateway closed the link"),
            Err(error) => warn!(error = %format!("{error:#}"), "no link to the gateway"),
        }
        tokio::select! {
            () = cancel.cancelled() => return,
            () = backoff.wait() => {}
        }
    }
}

async fn run_link(shared: &Arc<Shared>, gateway: &v1::GatewayEndpoint, backoff: &mut Backoff) -> Result<()> {
    let material = shared.tls.borrow().clone();
    let mut client = GatewayLinkClient::new(material.channel(&gateway.link)?);
    let (says, outgoing) = mpsc::channel(MAX_REFUSALS);
    let hello = v1::AgentHello {
        node: shared.node.to_string(),
    };
    says.send(v1::AgentSays {
        what: Some(v1::agent_says::What::Hello(hello)),
    })
    .await?;
    let mut asks = client.connect(ReceiverStream::new(outgoing)).await?.into_inner();
    info!("linked to the gateway");
    backoff.reset();
    while let Some(ask) = asks.message().await? {
        accept(shared, gateway, ask, says.clone());
    }
    Ok(())
}

/// Why an ask is refused.
struct Refusal {
    reason: String,
    /// To ask again is of no use.
    gone: bool,
}

impl From<anyhow::Error> for Refusal {
    fn from(error: anyhow::Error) -> Self {
        Self {
            reason: format!("{error:#}"),
            gone: false,
        }
    }
}

/// Serves one ask in a task of its own, or refuses it.
fn accept(
    shared: &Arc<Shared>,
    gateway: &v1::GatewayEndpoint,
    ask: v1::GatewayAsks,
    says: mpsc::Sender<v1::AgentSays>,
) {
    let key = JobKey {
        job: JobId(ask.job),
        generation: Generation(ask.generation),
    };
    let refuse = move |stream_id: Vec<u8>, refusal: Refusal| {
        let Refusal { reason, gone } = refusal;
        warn!(%reason, "a stream was refused");
        let refused = v1::StreamRefused {
            stream_id,
            reason,
            gone,
        };
        if says
            .try_send(v1::AgentSays {
                what: Some(v1::agent_says::What::Refused(refused)),
            })
            .is_err()
        {
            debug!("the refusal was dropped: the link is gone or busy");
        }
    };
    let stream_id = ask.stream_id.to_vec();
    let Ok(slot) = Arc::clone(&shared.slots).try_acquire_owned() else {
        let busy = anyhow!("node {} serves {MAX_STREAMS} streams already", shared.node);
        refuse(stream_id, busy.into());
        return;
    };
    let endpoint = if ask.streams.is_empty() {
        gateway.streams.clone()
    } else {
        ask.streams.clone()
    };
    let span = info_span!("stream", job = %key.job);
    let task_shared = Arc::clone(shared);
    let task = async move {
        let _slot = slot;
        if ask.log {
            match open_log(&task_shared, key, &endpoint, &ask).await {
                Ok(mut outside) => {
                    tokio::select! {
                        // The reader comes back and says from where.
                        () = task_shared.cancel.cancelled() => {}
                        told = task_shared.logs.tell(key, &mut outside) => if let Err(error) = told {
                            debug!(error = format!("{error:#}"), "a reader of the output is gone");
                        },
                    }
                }
                Err(refusal) => refuse(stream_id, refusal),
            }
            return;
        }
        match open(&task_shared, key, &endpoint, &ask).await {
            Ok((inside, outside)) => {
                tokio::select! {
                    // Sockets close by being dropped; both ends see it.
                    () = task_shared.cancel.cancelled() => {}
                    relayed = relay(&inside, &outside) => match relayed {
                        Ok(_) => debug!("stream ended"),
                        Err(error) => debug!(%error, "stream broke"),
                    },
                }
            }
            Err(refusal) => refuse(stream_id, refusal),
        }
    };
    shared.streams.spawn(task.instrument(span));
}

/// A stream on which the agent itself tells what it keeps of a job's output.
async fn open_log(
    shared: &Shared,
    key: JobKey,
    endpoint: &str,
    ask: &v1::GatewayAsks,
) -> Result<Socket, Refusal> {
    if !shared.logs.has(key) {
        return Err(Refusal {
            reason: format!("node {} keeps no output of job {}", shared.node, key.job),
            gone: true,
        });
    }
    Ok(dial_gateway(endpoint, ask).await?)
}

async fn open(
    shared: &Shared,
    key: JobKey,
    endpoint: &str,
    ask: &v1::GatewayAsks,
) -> Result<(Socket, Socket), Refusal> {
    let path = (shared.run_dir)(key).join("ssh.sock");
    if !path.exists() {
        return Err(Refusal {
            reason: format!("job {} is not open on node {}", key.job, shared.node),
            gone: true,
        });
    }
    let inside = tokio::time::timeout(DIAL_TIMEOUT, Socket::dial(&Endpoint::Unix(path)))
        .await
        .with_context(|| format!("the container of job {} does not answer", key.job))?
        .with_context(|| format!("the container of job {} on node {}", key.job, shared.node))?;
    Ok((inside, dial_gateway(endpoint, ask).await?))
}

/// The connection that a gateway asked for.
async fn dial_gateway(endpoint: &str, ask: &v1::GatewayAsks) -> Result<Socket> {
    let stream_id: Id = ask
        .stream_id
        .as_ref()
        .try_into()
        .context("the gateway's stream id has a wrong length")?;
    let secret: Secret = ask
        .secret
        .as_ref()
        .try_into()
        .context("the gateway's secret has a wrong length")?;
    let endpoint: Endpoint = endpoint.parse().context("the gateway's stream endpoint")?;
    tokio::time::timeout(DIAL_TIMEOUT, open_as_asked(&endpoint, &stream_id, &secret))
        .await
        .context("the gateway's stream endpoint does not answer")?
        .with_context(|| format!("the gateway's stream endpoint {endpoint}"))
}
