//! A node's link: whole Observed in, whole Desired out.

use std::sync::Arc;

use carrel_core::broker::{Input, found_on};
use carrel_core::model::ids::NodeName;
use carrel_core::model::node::Observed;
use carrel_proto::v1;
use carrel_proto::v1::agent_link_server::AgentLink;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status, Streaming};
use tracing::Instrument;

use super::desired::{HostCertificates, message};
use super::registry::Entry;
use crate::actor::Refusal;
use crate::api::refuse;
use crate::context::Context;
use crate::listen::Peer;

/// Desired states on their way to one agent. A slow agent is sent the newest
/// once it has taken the last; nothing else waits.
const UNDER_WAY: usize = 1;
/// The core's placement masks are 64 bits wide.
const MAX_GPUS: usize = 64;

/// The service.
#[derive(Debug)]
pub struct Link {
    /// What it works on.
    pub context: Arc<Context>,
    /// Where its tasks live.
    pub tasks: TaskTracker,
}

type Outbound = mpsc::Sender<Result<v1::Desired, Status>>;

#[tonic::async_trait]
impl AgentLink for Link {
    type ConnectStream = ReceiverStream<Result<v1::Desired, Status>>;

    async fn connect(
        &self,
        request: Request<Streaming<v1::Observed>>,
    ) -> Result<Response<Self::ConnectStream>, Status> {
        let node = authenticate(&self.context, Peer::of(&request)?).await?;
        let entry = self.context.agents.enter(&node, &self.context.handle).await;
        let (sender, receiver) = mpsc::channel(UNDER_WAY);
        let span = tracing::info_span!("link", %node);
        let context = Arc::clone(&self.context);
        let task = async move {
            tracing::info!("the node is linked");
            let end = run(&context, &node, &entry, request.into_inner(), &sender).await;
            tracing::info!(reason = end.message(), "the link has ended");
            // An agent that is gone is told nothing.
            sender.try_send(Err(end)).ok();
            context.agents.leave(&node, &entry, &context.handle).await;
        };
        self.tasks.spawn(task.instrument(span));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

/// The node that a certificate is for, if it is the one that the node may come with.
///
/// A certificate of this cluster that the store does not know, and nobody revoked, is older than the store:
/// the store was lost, or is a backup. Its node is found; what runs on it keeps its lease.
pub(super) async fn authenticate(context: &Context, peer: &Peer) -> Result<NodeName, Status> {
    const HINT: &str = "join the host again: `carrel-node join` with a token from `carrel node token`";
    let Peer::Remote {
        node: Some(peer),
        address,
    } = peer
    else {
        return Err(refuse::unauthenticated(
            "only nodes come here, with the certificate that joining gave",
            HINT,
        ));
    };
    let snapshot = context.handle.snapshot();
    let record = snapshot.state().nodes.get(&peer.node);
    if record.is_some_and(|record| record.accepts(peer.serial.as_str())) {
        return Ok(peer.node.clone());
    }
    let known = record.is_some();
    drop(snapshot);
    let (node, serial) = (peer.node.clone(), peer.serial.as_str());
    let why = if context.gateways.is_removed(serial) {
        format!("node {node} was removed from this cluster")
    } else {
        let input = Input::FindNode {
            node: node.clone(),
            certificate: serial.to_owned(),
        };
        match context.handle.call(input).await {
            Ok(_) if known => {
                tracing::warn!(%node, serial, %address, "the node's certificate was renewed after the backup that this store is");
                return Ok(node);
            }
            Ok(_) => {
                tracing::warn!(
                    %node, serial, %address,
                    "a node of this cluster came that the store does not know: `carrel node adopt {node}` takes it \
                     back into service, `carrel found` lists what it runs"
                );
                return Ok(node);
            }
            Err(Refusal::Reject(reject)) => reject.message,
            Err(refusal @ (Refusal::Full(_) | Refusal::Stopping)) => return Err(refuse::status(refusal)),
        }
    };
    tracing::warn!(%node, serial, %address, why, "a node was refused");
    Err(refuse::unauthenticated(why, HINT))
}

/// What was said in the log of what a node reports, so that it is said once.
#[derive(Default)]
struct Said {
    found: usize,
    foreign: bool,
}

impl Said {
    fn about(&mut self, context: &Context, node: &NodeName, observed: &Observed) {
        let snapshot = context.handle.snapshot();
        let found = found_on(snapshot.state(), node).count();
        if found > self.found {
            tracing::warn!(
                jobs = found,
                "the node runs jobs that this broker does not know; they go on: `carrel found` lists them"
            );
        }
        let foreign = snapshot.state().is_foreign(observed);
        if foreign && !self.foreign {
            let theirs = observed.accepted.as_ref().map(|(cluster, _)| cluster.to_string());
            tracing::warn!(
                ours = %snapshot.state().cluster.id,
                theirs,
                "the node obeys another cluster's broker: its leases are renewed, nothing is placed on it"
            );
        }
        *self = Self { found, foreign };
    }
}

/// The link's life; why it ended.
async fn run(
    context: &Context,
    node: &NodeName,
    entry: &Entry,
    mut inbound: Streaming<v1::Observed>,
    outbound: &Outbound,
) -> Status {
    let mut certificates = HostCertificates::default();
    let mut due = false;
    let mut said = Said::default();
    loop {
        // `message` keeps a part of a message over cancellation, `notified` loses no
        // permit, `reserve` takes nothing before it is done.
        tokio::select! {
            () = entry.cut.cancelled() => {
                return Status::aborted("the broker has cut this link: a newer one replaced it, or the node's certificate is no longer good");
            }
            () = context.stopping.cancelled() => return refuse::status(Refusal::Stopping),
            () = entry.wake.notified() => due = true,
            permit = outbound.reserve(), if due => {
                let Ok(permit) = permit else { return Status::cancelled("the agent closed the link") };
                due = false;
                if let Some(desired) = message(context, &context.handle.snapshot(), node, &mut certificates) {
                    tracing::debug!(
                        generation = desired.generation,
                        renews = desired.renews,
                        jobs = desired.jobs.len(),
                        "desired"
                    );
                    permit.send(Ok(desired));
                }
            }
            received = inbound.message() => {
                let observed = match received {
                    Ok(Some(observed)) => observed,
                    Ok(None) => return Status::cancelled("the agent closed the link"),
                    Err(status) => return status,
                };
                match observe(context, node, observed, &mut said).await {
                    Ok(answered) => due |= answered,
                    Err(status) => return status,
                }
            }
        }
    }
}

/// Hands in what a node is; true when it is to be answered.
async fn observe(
    context: &Context,
    node: &NodeName,
    message: v1::Observed,
    said: &mut Said,
) -> Result<bool, Status> {
    let observed: Observed = message
        .try_into()
        .map_err(|error: carrel_proto::convert::ConvertError| {
            refuse::invalid(format!("this Observed cannot be taken: {error}"))
        })?;
    if observed.node != *node {
        return Err(refuse::invalid(format!(
            "node {node} speaks as {}",
            observed.node
        )));
    }
    if observed.inventory.gpus.len() > MAX_GPUS {
        return Err(refuse::invalid(format!("a node has at most {MAX_GPUS} GPUs")));
    }
    tracing::debug!(
        seq = observed.seq,
        generation = observed.generation,
        jobs = observed.jobs.len(),
        "observed"
    );
    let observed = Arc::new(observed);
    let mut heard = context.handle.call(Input::Observed(Arc::clone(&observed))).await;
    if let Err(refusal @ Refusal::Full(_)) = &heard {
        // What it says cannot be kept and is said again; its lease is renewed.
        tracing::debug!(%refusal, "a node's state was not noted");
        heard = context.handle.call(Input::Contact(Arc::clone(&observed))).await;
    }
    match heard {
        Ok(_) => {
            said.about(context, node, &observed);
            Ok(true)
        }
        Err(refusal) => Err(refuse::status(refusal)),
    }
}
