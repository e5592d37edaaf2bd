//! The `GatewayLink` service: agents' links, over mutual TLS.

use std::time::Duration;

use carrel_proto::v1::gateway_link_server::{GatewayLink, GatewayLinkServer};
use carrel_proto::v1::{AgentSays, agent_says};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status, Streaming};
use tracing::{Instrument, debug, info, info_span};

use super::links::{Ask, Links, Registration};
use super::{limits, net};
use crate::ca::tls::CurrentTls;
use crate::ca::x509::{NodePeer, node_of};
use crate::handshakes::Handshakes;

/// TLS connections handed to HTTP/2 and not yet taken: it takes them at once.
const ACCEPTED_QUEUE: usize = 32;

/// Serves links until cancelled.
pub(super) async fn serve(
    listener: TcpListener,
    tls: CurrentTls,
    links: Links,
    tasks: TaskTracker,
    cancel: CancellationToken,
) -> anyhow::Result<()> {
    let service = Service {
        links,
        tasks: tasks.clone(),
        cancel: cancel.clone(),
    };
    let service = GatewayLinkServer::new(service).max_decoding_message_size(limits::LINK_MESSAGE);
    let (accepted, connections) = mpsc::channel(ACCEPTED_QUEUE);
    let accepting = async {
        accept(&listener, tls, &tasks, &cancel, accepted).await;
        Ok(())
    };
    let serving = async {
        tonic::transport::Server::builder()
            .http2_keepalive_interval(Some(limits::LINK_PING.0))
            .http2_keepalive_timeout(Some(limits::LINK_PING.1))
            // One stream is a link; the rest is room for a reconnect that overtakes an end.
            .max_concurrent_streams(8)
            .add_service(service)
            .serve_with_incoming_shutdown(ReceiverStream::new(connections), cancel.cancelled())
            .await
            .map_err(anyhow::Error::from)
    };
    tokio::try_join!(accepting, serving).map(|_| ())
}

/// Accepts connections and shakes hands, each in its own task, a bounded number at once.
async fn accept(
    listener: &TcpListener,
    tls: CurrentTls,
    tasks: &TaskTracker,
    cancel: &CancellationToken,
    accepted: mpsc::Sender<std::io::Result<TlsStream<TcpStream>>>,
) {
    let handshakes = Handshakes::new(limits::HANDSHAKES);
    net::accept_all(
        "link",
        cancel,
        || net::accept_tcp(listener),
        |(stream, peer)| {
            let handshake = handshakes.enter(peer.ip());
            let (tls, accepted, cancel) = (tls.acceptor(), accepted.clone(), cancel.clone());
            tasks.spawn(async move {
                // Cancelled handshakes drop the connection.
                let stream = tokio::select! {
                    () = cancel.cancelled() => return,
                    // TLS has no words for this; an agent tries again.
                    () = handshake.cut() => return debug!(%peer, "too many handshakes at once: one is cut"),
                    stream = tokio::time::timeout(limits::HELLO_TIMEOUT, tls.accept(stream)) => stream,
                };
                drop(handshake);
                match stream {
                    // Nobody takes it when the server has ended.
                    Ok(Ok(stream)) => drop(accepted.send(Ok(stream)).await),
                    Ok(Err(error)) => debug!(%peer, %error, "TLS handshake failed"),
                    Err(_) => debug!(%peer, "TLS handshake took too long"),
                }
            });
        },
    )
    .await;
}

struct Service {
    links: Links,
    tasks: TaskTracker,
    cancel: CancellationToken,
}

#[tonic::async_trait]
impl GatewayLink for Service {
    type ConnectStream = ReceiverStream<Ask>;

    async fn connect(
        &self,
        request: Request<Streaming<AgentSays>>,
    ) -> Result<Response<Self::ConnectStream>, Status> {
        let peer = peer(&request)?;
        self.links.check(&peer)?;
        let mut says = request.into_inner();
        hello(&mut says, &peer).await?;

        let (asks, asked) = mpsc::channel(limits::LINK_QUEUE);
        let registration = self
            .links
            .register(peer.clone(), asks.clone(), self.cancel.child_token())?;
        let span = info_span!("link", node = %peer.node);
        self.tasks.spawn(hear(says, registration, asks).instrument(span));
        Ok(Response::new(ReceiverStream::new(asked)))
    }
}

/// Who dials, by its certificate.
fn peer(request: &Request<Streaming<AgentSays>>) -> Result<NodePeer, Status> {
    let certificates = request.peer_certs();
    let leaf = certificates.as_deref().and_then(|chain| chain.first());
    let leaf = leaf.ok_or_else(|| Status::unauthenticated("a node's certificate is needed"))?;
    node_of(leaf).map_err(|error| Status::permission_denied(error.to_string()))
}

/// The first message, in bounded time, from whom the certificate says.
async fn hello(says: &mut Streaming<AgentSays>, peer: &NodePeer) -> Result<(), Status> {
    let first: Duration = limits::HELLO_TIMEOUT;
    let first = tokio::time::timeout(first, says.message()).await;
    let first = first.map_err(|_| Status::deadline_exceeded("no AgentHello came"))??;
    match first.and_then(|says| says.what) {
        Some(agent_says::What::Hello(hello)) if hello.node == peer.node.as_str() => Ok(()),
        Some(agent_says::What::Hello(hello)) => {
            let (said, is) = (hello.node.chars().take(253).collect::<String>(), &peer.node);
            Err(Status::permission_denied(format!(
                "the certificate is of node {is}, not of {said:?}"
            )))
        }
        Some(agent_says::What::Refused(_)) | None => Err(Status::invalid_argument(
            "the first message must be an AgentHello",
        )),
    }
}

/// Hears what an agent says until its link ends, in whatever way.
async fn hear(mut says: Streaming<AgentSays>, registration: Registration, asks: mpsc::Sender<Ask>) {
    info!("the node is connected");
    loop {
        // Safe to cancel: the link is at its end then.
        let said = tokio::select! {
            () = registration.end.cancelled() => {
                // No room: the agent sees the end without the reason.
                drop(asks.try_send(Err(Status::unavailable("the gateway ended this link"))));
                info!("the link is ended: replaced, revoked, or the gateway stops");
                return;
            }
            said = says.message() => said,
        };
        match said {
            Ok(Some(AgentSays {
                what: Some(agent_says::What::Refused(refused)),
            })) => {
                registration.refused(&refused);
            }
            // A second hello, or something that a newer agent says: nothing to do.
            Ok(Some(AgentSays {
                what: Some(agent_says::What::Hello(_)) | None,
            })) => {}
            Ok(None) => {
                info!("the node has disconnected");
                return;
            }
            Err(status) => {
                info!(reason = %status.message(), "the node's link broke");
                return;
            }
        }
    }
}
