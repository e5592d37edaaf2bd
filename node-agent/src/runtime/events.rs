//! What happens to containers, as containerd tells it.

use std::time::Duration;

use anyhow::{Context, Result};
use carrel_core::model::ids::JobKey;
use containerd_client::events::{TaskExit, TaskOom};
use containerd_client::services::v1::{PublishRequest, SubscribeRequest};
use containerd_client::types::Envelope;
use futures::future::BoxFuture;
use prost::Message;
use tonic::{Response, Status, Streaming};

use super::client::{Containerd, Told};
use super::record::{container_id, key_of};

/// First and longest wait between two tries to reach containerd.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LAST: Duration = Duration::from_secs(5);

/// A subscription is answered with its first event: we publish one ourselves, so
/// as not to wait for it. Nobody else looks at it.
const KNOCK_TOPIC: &str = "/carrel/knock";
/// Between two of them: one that came before the subscription is lost.
const KNOCK_EVERY: Duration = Duration::from_millis(20);

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuntimeEvent {
    /// The subscription is new or was interrupted: anything may have happened
    /// before it. Look at [`super::Runtime::list`].
    Resync,
    /// Process 1 ended.
    Exited {
        /// Whose.
        key: JobKey,
        /// Exit code, or 128 + signal.
        code: i32,
    },
    /// The kernel killed something in the container for want of memory. May come several times.
    OutOfMemory {
        /// Whose.
        key: JobKey,
    },
}

/// A subscription to [`RuntimeEvent`]s that renews itself. It has no queue and
/// no task: dropping it ends it.
pub struct Events {
    containerd: Containerd,
    namespace: String,
    /// A subscription that is not answered yet.
    pending: Option<BoxFuture<'static, Result<Response<Streaming<Envelope>>, Status>>>,
    stream: Option<Streaming<Envelope>>,
    retry: Duration,
}

impl Events {
    pub(super) fn new(containerd: Containerd, namespace: String) -> Self {
        Self {
            containerd,
            namespace,
            pending: None,
            stream: None,
            retry: RETRY_FIRST,
        }
    }

    /// The next event; waits for containerd where it is away. Begins with
    /// [`RuntimeEvent::Resync`]. Safe to cancel: no event is lost by it.
    pub async fn next(&mut self) -> RuntimeEvent {
        loop {
            let Some(stream) = &mut self.stream else {
                match self.subscribed().await {
                    Ok(stream) => {
                        self.stream = Some(stream);
                        self.retry = RETRY_FIRST;
                        return RuntimeEvent::Resync;
                    }
                    Err(error) => {
                        tracing::warn!(error = format!("{error:#}"), "containerd's events cannot be had");
                        tokio::time::sleep(self.retry).await;
                        self.retry = (self.retry * 2).min(RETRY_LAST);
                        continue;
                    }
                }
            };
            match stream.message().await {
                Ok(Some(envelope)) => match read(&envelope) {
                    Ok(Some(event)) => return event,
                    Ok(None) => {}
                    Err(error) => {
                        tracing::warn!(
                            topic = envelope.topic,
                            error = format!("{error:#}"),
                            "an event was not understood"
                        );
                    }
                },
                Ok(None) => self.stream = None,
                Err(status) => {
                    tracing::info!(reason = status.message(), "containerd's events broke off");
                    self.stream = None;
                }
            }
        }
    }

    /// Waits for the subscription to be answered, and makes it if there is none.
    async fn subscribed(&mut self) -> Result<Streaming<Envelope>> {
        let containerd = self.containerd.clone();
        let pending = self.pending.get_or_insert_with(|| {
            let filter = |topic: &str| format!("namespace=={:?},topic=={topic:?}", self.namespace);
            let filters = ["/tasks/exit", "/tasks/oom", KNOCK_TOPIC].map(filter).to_vec();
            let request = containerd.endless(SubscribeRequest { filters });
            let mut client = containerd.events();
            Box::pin(async move { client.subscribe(request).await })
        });
        loop {
            tokio::select! {
                // Kept in `self` when it is dropped here.
                response = &mut *pending => {
                    self.pending = None;
                    return Ok(response.told("subscribing to events")?.into_inner());
                }
                // A timer.
                () = tokio::time::sleep(KNOCK_EVERY) => {}
            }
            let event = prost_types::Any {
                type_url: "carrel.knock".to_owned(),
                value: Vec::new(),
            };
            let knock = PublishRequest {
                topic: KNOCK_TOPIC.to_owned(),
                event: Some(event),
            };
            // That containerd is away is seen from the subscription.
            let _lost = containerd.events().publish(containerd.request(knock)).await;
        }
    }
}

fn read(envelope: &Envelope) -> Result<Option<RuntimeEvent>> {
    let body = envelope.event.as_ref().context("it is empty")?.value.as_slice();
    Ok(match envelope.topic.as_str() {
        "/tasks/exit" => {
            let exit = TaskExit::decode(body)?;
            // Processes that were added to a container have ids of their own.
            key_of(&exit.container_id)
                .filter(|key| exit.id == container_id(*key))
                .map(|key| RuntimeEvent::Exited {
                    key,
                    code: exit.exit_status as i32,
                })
        }
        "/tasks/oom" => {
            key_of(&TaskOom::decode(body)?.container_id).map(|key| RuntimeEvent::OutOfMemory { key })
        }
        _ => None,
    })
}
