//! The link to the broker: whole Observed out, whole Desired in.
//!
//! It knows nothing of what the messages say. It is always there: dialled again
//! after each end, for as long as the agent lives.

use std::error::Error as _;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use carrel_proto::v1;
use carrel_proto::v1::agent_link_client::AgentLinkClient;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use crate::backoff::Backoff;
use crate::streams::TlsMaterial;

/// Reports on their way: a broker that is slow is sent the newest once it has taken the last.
const UNDER_WAY: usize = 1;
/// Longest wait for the broker to take the link.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Between attempts when the broker refuses this node: only an operator can change that.
const REFUSED_WAIT: Duration = Duration::from_secs(30);
/// A failure that goes on is logged so often.
const REMIND: Duration = Duration::from_mins(1);
/// Longest Desired: a thousand jobs with large environments.
const MAX_MESSAGE: usize = 64 << 20;

/// What the link tells.
#[derive(Debug)]
pub enum LinkEvent {
    /// It is up: a fresh report is wanted.
    Up,
    /// The broker spoke.
    Desired(Box<v1::Desired>),
}

/// One node's link.
pub struct Link {
    /// "https://host:port".
    pub broker: String,
    /// Certificate and key; the newest are used for each attempt.
    pub tls: watch::Receiver<TlsMaterial>,
    /// The newest report.
    pub reports: watch::Receiver<Option<v1::Observed>>,
    /// Where events go.
    pub events: mpsc::Sender<LinkEvent>,
}

/// How an attempt ended.
enum End {
    /// The broker does not want this node.
    Refused(anyhow::Error),
    /// Anything that may be over in a moment.
    Broken(anyhow::Error),
}

impl Link {
    /// Keeps it up until cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        let mut backoff = Backoff::default();
        let mut said: Option<(String, Instant)> = None;
        loop {
            let end = tokio::select! {
                // A link holds nothing that must be put right: dropping it closes it.
                () = cancel.cancelled() => return,
                end = self.attempt(&mut backoff) => end,
            };
            let (wait, error) = match end {
                End::Refused(error) => (Some(REFUSED_WAIT), error),
                End::Broken(error) => (None, error),
            };
            let text = format!("{error:#}");
            let old = said
                .as_ref()
                .is_some_and(|(last, at)| *last == text && at.elapsed() < REMIND);
            if !old {
                tracing::warn!(broker = %self.broker, error = %text, "no link to the broker; running jobs go on, trying again");
                said = Some((text, Instant::now()));
            }
            let pause = async {
                match wait {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => backoff.wait().await,
                }
            };
            tokio::select! {
                () = cancel.cancelled() => return,
                () = pause => {}
            }
        }
    }

    async fn attempt(&mut self, backoff: &mut Backoff) -> End {
        match self.talk(backoff).await {
            Ok(()) => End::Broken(anyhow::anyhow!("the broker closed the link")),
            Err(error) => {
                let code = error.downcast_ref::<Status>().map(Status::code);
                let refused = matches!(code, Some(Code::Unauthenticated | Code::PermissionDenied));
                let error = match error.downcast::<Status>() {
                    Ok(status) => explain(status),
                    Err(error) => error,
                };
                if refused {
                    End::Refused(error)
                } else {
                    End::Broken(error)
                }
            }
        }
    }

    async fn talk(&mut self, backoff: &mut Backoff) -> Result<()> {
        let channel = self.tls.borrow().channel(&self.broker)?;
        let mut client = AgentLinkClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
        let (outgoing, reports) = mpsc::channel(UNDER_WAY);
        let connect = client.connect(ReceiverStream::new(reports));
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, connect)
            .await
            .context("the broker does not answer")?;
        let mut incoming = answer?.into_inner();
        // What was reported before must not be sent again under its old number.
        self.reports.mark_unchanged();
        self.events
            .send(LinkEvent::Up)
            .await
            .context("the agent is ending")?;
        let mut linked = false;
        let mut due = false;
        loop {
            tokio::select! {
                // Loses nothing: the newest value stays.
                changed = self.reports.changed(), if !due => {
                    changed.context("the agent is ending")?;
                    due = true;
                }
                // Takes nothing before it is done.
                permit = outgoing.reserve(), if due => {
                    let Ok(permit) = permit else { bail!("the broker closed the link") };
                    due = false;
                    if let Some(report) = self.reports.borrow_and_update().clone() {
                        permit.send(report);
                    }
                }
                // Keeps a part of a message over cancellation.
                desired = incoming.message() => {
                    let Some(desired) = desired? else { return Ok(()) };
                    if !linked {
                        linked = true;
                        backoff.reset();
                        tracing::info!(broker = %self.broker, "linked to the broker");
                    }
                    self.events.send(LinkEvent::Desired(Box::new(desired))).await.context("the agent is ending")?;
                }
            }
        }
    }
}

/// A status as people read it: the broker's words with its hint, or what the transport met.
fn explain(status: Status) -> anyhow::Error {
    if status.source().is_none() {
        return crate::identity::explain(status);
    }
    let mut causes: Vec<String> = Vec::new();
    let mut next = status.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        if causes.last() != Some(&text) && text != "transport error" {
            causes.push(text);
        }
        next = cause.source();
    }
    if causes.is_empty() {
        causes.push(status.message().to_owned());
    }
    let text = causes.join(": ");
    if text.contains("UnknownIssuer") {
        return anyhow::anyhow!(
            "{text}: the broker is another cluster's, or its certificate authority was replaced; join this host \
             again with a token of `carrel node token`"
        );
    }
    anyhow::anyhow!(text)
}
