//! The way to a session: a ticket from the broker, a gateway that takes it; and the way back, with
//! the gateway's own ticket, while there is no broker.

use std::time::Duration;

use carrel_core::stream::StreamId;
use carrel_proto::socket::{self, OpenError, Socket};
use carrel_proto::stream::{self, Ticket};
use carrel_proto::v1::{self, StreamRefusal};
use tokio::time::Instant;
use tonic::Code;

use crate::connect::{self, Address, Client};
use crate::context::no_session;
use crate::error::{CliError, Kind, Result, innermost};
use crate::progress::Progress;
use crate::request;
use crate::signals::Signals;
use crate::stream::{Dialler, Failure};
use crate::wait::{self, End, Limit};

/// A broker that restarts is back within this.
const BROKER_PATIENCE: Duration = Duration::from_secs(10);
/// A gateway, or a node's link to it, that restarts is back within this.
const WAY_PATIENCE: Duration = Duration::from_secs(10);
/// A gateway that has not answered by now does not.
const GATEWAY_TIMEOUT: Duration = Duration::from_secs(20);
/// Nor does a broker, when one comes back to a stream.
const BROKER_TIMEOUT: Duration = Duration::from_secs(10);
/// Between attempts.
const RETRY: Duration = Duration::from_millis(200);

/// The way to one rank of a session.
#[derive(Debug)]
pub struct Way {
    address: Address,
    session: String,
    rank: u32,
    /// A job, in place of the session; 0: none.
    job: u64,
    /// The host key there, as the broker said last.
    host_key: String,
    /// Gateways, as the broker named them last, in order of preference.
    gateways: Vec<String>,
    /// The last gateway's ticket, for coming back.
    resumption: Option<Ticket>,
}

/// Why no gateway opened a stream.
#[derive(Debug)]
enum Denied {
    /// None was reached.
    Unreached(String),
    /// One refused.
    Refused(StreamRefusal, String),
}

impl Denied {
    fn into_text(self) -> String {
        match self {
            Self::Unreached(text) | Self::Refused(_, text) => text,
        }
    }
}

impl Way {
    /// Not yet gone.
    pub fn new(address: Address, session: String, rank: u32) -> Self {
        Self {
            address,
            session,
            rank,
            job: 0,
            host_key: String::new(),
            gateways: Vec::new(),
            resumption: None,
        }
    }

    /// To a rank of one's own job.
    pub fn to_job(address: Address, job: u64, rank: u32) -> Self {
        Self {
            job,
            ..Self::new(address, String::new(), rank)
        }
    }

    /// The SSH host key of the container there (OpenSSH text), once a stream was opened; empty: the broker does not know it.
    pub fn host_key(&self) -> &str {
        &self.host_key
    }

    /// The first transport of a stream. `patience`: if need be the session is started, within this.
    pub async fn first(&mut self, id: StreamId, patience: Option<Duration>) -> Result<Socket> {
        let mut client = patiently_connect(&self.address).await?;
        let begun = Instant::now();
        let mut since_running = None;
        loop {
            let failure = match self.ask(&mut client).await {
                Ok(ticket) => match self.through(&ticket, id).await {
                    Ok(socket) => return Ok(socket),
                    Err(Denied::Unreached(text)) if self.gateways.is_empty() => {
                        CliError::failed(text).hint("`carrel-broker gateway` has to run beside the broker")
                    }
                    Err(denied) => CliError::failed(denied.into_text()),
                },
                Err(status) if status.code() == Code::FailedPrecondition => {
                    let left = patience.map_or(Duration::ZERO, |patience| {
                        patience.saturating_sub(begun.elapsed())
                    });
                    if left.is_zero() {
                        return Err(status.into());
                    }
                    start(&mut client, &self.session, left).await?;
                    since_running = None;
                    continue;
                }
                Err(status) if status.code() == Code::NotFound && self.job == 0 => {
                    return Err(no_session(&self.session, status));
                }
                Err(status) if wait::is_passing(status.code()) => CliError::from(status),
                Err(status) => return Err(status.into()),
            };
            let since = *since_running.get_or_insert_with(Instant::now);
            if since.elapsed() >= WAY_PATIENCE {
                return Err(failure);
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// A new ticket from the broker, which also names the gateways of now.
    async fn ask(&mut self, client: &mut Client) -> Result<Ticket, tonic::Status> {
        let request = v1::OpenStreamRequest {
            name: self.session.clone(),
            rank: self.rank,
            job: self.job,
        };
        let way = client.open_stream(request).await?.into_inner();
        self.gateways = way.endpoints;
        self.host_key = way.host_key;
        let wrong = |_| tonic::Status::internal("the broker's ticket has a secret of the wrong length");
        Ok(Ticket {
            content: way.ticket,
            secret: way.secret.try_into().map_err(wrong)?,
        })
    }

    /// Tries the gateways in their order of preference.
    async fn through(&mut self, ticket: &Ticket, id: StreamId) -> Result<Socket, Denied> {
        let mut reasons = Vec::new();
        for text in &self.gateways {
            let endpoint: stream::Endpoint = match text.parse() {
                Ok(endpoint) => endpoint,
                Err(error) => {
                    reasons.push(format!("{error}"));
                    continue;
                }
            };
            if let stream::Endpoint::Unix(path) = &endpoint
                && !path.exists()
            {
                // For those on the gateway's own machine only.
                reasons.push(format!("{text} is not on this machine"));
                continue;
            }
            let opened = socket::open_with_ticket(&endpoint, ticket, id);
            match tokio::time::timeout(GATEWAY_TIMEOUT, opened).await {
                Ok(Ok((socket, resumption))) => {
                    self.resumption = resumption;
                    return Ok(socket);
                }
                // Another gateway would say the same.
                Ok(Err(OpenError::Refused(refusal, reason))) => return Err(Denied::Refused(refusal, reason)),
                Ok(Err(error @ (OpenError::Connection(..) | OpenError::Protocol(..)))) => {
                    reasons.push(format!("{error}: {}", innermost(&error)));
                }
                Err(_) => reasons.push(format!("the gateway at {text} does not answer")),
            }
        }
        if reasons.is_empty() {
            reasons.push("no gateway is up".to_owned());
        }
        Err(Denied::Unreached(reasons.join("; ")))
    }

    /// Asks the broker for another way back, or whether there can be none.
    async fn ask_again(&mut self) -> Result<Ticket, Failure> {
        let asking = async {
            let mut client = match connect::connect(&self.address).await {
                Ok(client) => client,
                Err(error) => {
                    let signed_out = error.kind == Kind::Denied && self.resumption.is_none();
                    return Err((signed_out, error.message));
                }
            };
            self.ask(&mut client).await.map_err(|status| {
                // A broker that knows the session, and that it does not run.
                let over = status.code() == Code::FailedPrecondition;
                // A broker may have lost what it knew: while there is a ticket, the gateway's and
                // the node's word counts for more.
                let unknown = matches!(
                    status.code(),
                    Code::NotFound | Code::PermissionDenied | Code::Unauthenticated
                );
                let is_final = over || (unknown && self.resumption.is_none());
                (is_final, CliError::from(status).message)
            })
        };
        match tokio::time::timeout(BROKER_TIMEOUT, asking).await {
            Ok(Ok(ticket)) => Ok(ticket),
            Ok(Err((true, text))) => Err(Failure::Final(text)),
            Ok(Err((false, text))) => Err(Failure::Passing(text)),
            Err(_) => Err(Failure::Passing("the broker does not answer".into())),
        }
    }
}

impl Dialler for Way {
    async fn dial(&mut self, id: StreamId) -> Result<Socket, Failure> {
        let mut denied = None;
        if let Some(ticket) = self.resumption.clone() {
            match self.through(&ticket, id).await {
                Ok(socket) => return Ok(socket),
                Err(Denied::Refused(StreamRefusal::Gone, text)) => return Err(Failure::Final(text)),
                Err(Denied::Refused(StreamRefusal::Ticket, _)) => self.resumption = None,
                Err(Denied::Refused(StreamRefusal::Unspecified, text)) => denied = Some(text),
                // The broker may know other gateways.
                Err(Denied::Unreached(_)) => {}
            }
        }
        let asked = self.ask_again().await;
        if let (Some(text), Ok(_) | Err(Failure::Passing(_))) = (denied, &asked) {
            return Err(Failure::Passing(text));
        }
        match self.through(&asked?, id).await {
            Ok(socket) => Ok(socket),
            Err(Denied::Refused(StreamRefusal::Gone, text)) => Err(Failure::Final(text)),
            Err(denied) => Err(Failure::Passing(denied.into_text())),
        }
    }
}

/// Connects to a broker that may just be restarting.
pub async fn patiently_connect(address: &Address) -> Result<Client> {
    let begun = Instant::now();
    loop {
        match connect::connect(address).await {
            Err(error) if error.kind == Kind::Unreachable && begun.elapsed() < BROKER_PATIENCE => {
                tokio::time::sleep(RETRY).await;
            }
            other => return other,
        }
    }
}

/// Starts a session as it was last time, or finds it on its way, and waits until it runs.
async fn start(client: &mut Client, name: &str, patience: Duration) -> Result<()> {
    let request = v1::OpenSessionRequest {
        name: name.to_owned(),
        spec: None,
        must_start: false,
        request_key: request::new_key(),
        ephemeral: false,
        start: None,
    };
    let (session, _) = wait::session_of(wait::open_session(client, request).await?)?;
    let mut progress = Progress::begin();
    // The signals that matter end the whole proxy, one level up.
    let mut signals = Signals::catch()?;
    let limit = Limit::Running(patience);
    let (session, end) = wait::until_running(client, session, limit, &mut progress, &mut signals).await?;
    match end {
        End::Running => Ok(()),
        End::Over => Err(wait::over_error(&session)),
        End::Left(_) => Err(CliError::failed("interrupted")),
        End::TimedOut => {
            let why = session.job.map(|job| job.reason).unwrap_or_default();
            Err(
                CliError::failed(format!("session {name} still waits: {why}")).hint(format!(
                    "it stays in the queue; `carrel open {name}` waits for it, `carrel stop {name}` gives up"
                )),
            )
        }
    }
}
