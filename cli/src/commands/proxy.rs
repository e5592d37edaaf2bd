//! `carrel proxy`: the way of SSH's bytes.

use std::time::Duration;

use carrel_proto::socket::{self, OpenError};
use carrel_proto::{stream, v1};
use tonic::Code;

use crate::connect::{self, Address, Client};
use crate::context::{Context, Member, no_session};
use crate::error::{CliError, Kind, Result};
use crate::progress::Progress;
use crate::signals::Signals;
use crate::ssh::access::Access;
use crate::ssh::{SshDir, keys};
use crate::stream::{Ending, pump};
use crate::units;
use crate::wait::{self, End, Limit};
use crate::{request, shell, stdio};

/// Connect stdin and stdout to a session, as SSH's ProxyCommand.
///
/// Starts the session if it is stopped, and waits for it. The SSH aliases that `carrel open`
/// writes use this; so may any SSH client's config. Exits with 255 when there is no connection.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    ssh -o ProxyCommand='carrel proxy dev' -o HostKeyAlias=dev.alice.carrel alice@dev\n  \
    carrel proxy --renew    see that the certificate is valid for a while")]
pub struct ProxyArgs {
    /// Session, with a rank if wanted: dev, dev.1
    #[arg(value_name = "NAME[.RANK]", required_unless_present = "renew", add = super::completion::sessions())]
    pub member: Option<Member>,
    /// Rank in the session's gang
    #[arg(long, value_name = "RANK")]
    pub rank: Option<u32>,
    /// How long to wait for a session that has to start
    #[arg(long, value_name = "TIME", value_parser = units::parse_time, default_value = "10m")]
    pub wait: Duration,
    /// Only see that the SSH key has a certificate with more than five minutes left; CLUSTER's id
    /// spares asking the broker for it
    #[arg(long, value_name = "CLUSTER", num_args = 0..=1, default_missing_value = "", conflicts_with_all = ["member", "rank"])]
    pub renew: Option<String>,
}

/// A broker that restarts is back within this.
const BROKER_PATIENCE: Duration = Duration::from_secs(10);
/// A gateway, or a node's link to it, that restarts is back within this.
const WAY_PATIENCE: Duration = Duration::from_secs(10);
/// A gateway that has not answered by now does not.
const GATEWAY_TIMEOUT: Duration = Duration::from_secs(20);
/// Between attempts.
const RETRY: Duration = Duration::from_millis(200);

/// Runs the verb.
pub async fn run(context: &Context, args: ProxyArgs) -> Result<u8> {
    if let Some(cluster) = &args.renew {
        return renew(context, cluster).await;
    }
    let Some(member) = args.member else {
        return Err(CliError::usage("a session is needed"));
    };
    let rank = args.rank.unwrap_or(member.rank);
    let mut signals = Signals::catch()?;
    // SSH takes its proxy down with a signal when it ends.
    let ending = tokio::select! {
        ending = connect_and_pump(context, &member.session, rank, args.wait) => ending,
        signal = signals.next() => return Ok(signal.exit_code()),
    };
    match ending {
        Ok(Ending::FarEnd | Ending::NearEnd) => Ok(0),
        Ok(Ending::Broken(why)) => {
            shell::report(shell::Report::Broken(&why))?;
            Err(CliError::new(Kind::Connection, why))
        }
        Err(error) => {
            shell::report(shell::Report::NoConnection(&error.message))?;
            Err(error.with_kind(Kind::Connection))
        }
    }
}

async fn connect_and_pump(context: &Context, name: &str, rank: u32, patience: Duration) -> Result<Ending> {
    let address = context.address()?;
    let mut client = patiently_connect(&address).await?;
    let socket = open_way(&mut client, name, rank, patience).await?;
    drop(client);
    Ok(pump(socket, stdio::input(), stdio::output()).await)
}

async fn patiently_connect(address: &Address) -> Result<Client> {
    let begun = tokio::time::Instant::now();
    loop {
        match connect::connect(address).await {
            Err(error) if error.kind == Kind::Unreachable && begun.elapsed() < BROKER_PATIENCE => {
                tokio::time::sleep(RETRY).await;
            }
            other => return other,
        }
    }
}

/// Opens a stream to a rank of a session, which is started if need be.
async fn open_way(client: &mut Client, name: &str, rank: u32, patience: Duration) -> Result<socket::Socket> {
    let begun = tokio::time::Instant::now();
    let mut since_running = None;
    loop {
        let request = v1::OpenStreamRequest {
            name: name.to_owned(),
            rank,
        };
        let failure = match client.open_stream(request).await {
            Ok(way) => match dial(&way.into_inner()).await {
                Ok(socket) => return Ok(socket),
                Err(failure) => failure,
            },
            Err(status) if status.code() == Code::FailedPrecondition => {
                let left = patience.saturating_sub(begun.elapsed());
                if left.is_zero() {
                    return Err(status.into());
                }
                start(client, name, left).await?;
                since_running = None;
                continue;
            }
            Err(status) if status.code() == Code::NotFound => return Err(no_session(name, status)),
            Err(status) if wait::is_passing(status.code()) => CliError::from(status),
            Err(status) => return Err(status.into()),
        };
        let since = *since_running.get_or_insert_with(tokio::time::Instant::now);
        if since.elapsed() >= WAY_PATIENCE {
            return Err(failure);
        }
        tokio::time::sleep(RETRY).await;
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

/// Tries the gateways in their order of preference.
async fn dial(way: &v1::OpenStreamResponse) -> Result<socket::Socket> {
    let mut reasons = Vec::new();
    for text in &way.endpoints {
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
        let opened = tokio::time::timeout(
            GATEWAY_TIMEOUT,
            socket::open_with_ticket(&endpoint, &way.ticket, &way.secret),
        );
        match opened.await {
            Ok(Ok(socket)) => return Ok(socket),
            // The ticket is used up: another gateway would refuse it.
            Ok(Err(OpenError::Refused(reason))) => return Err(CliError::failed(reason)),
            Ok(Err(error @ (OpenError::Connection(..) | OpenError::Protocol(..)))) => {
                reasons.push(format!("{error}: {}", crate::error::innermost(&error)));
            }
            Err(_) => reasons.push(format!("the gateway at {text} does not answer")),
        }
    }
    if reasons.is_empty() {
        return Err(
            CliError::failed("no gateway is up").hint("`carrel-broker gateway` has to run beside the broker")
        );
    }
    Err(CliError::failed(reasons.join("; ")))
}

/// Sees that key and certificate are good for a while. Quick when they are: it only reads files.
async fn renew(context: &Context, cluster: &str) -> Result<u8> {
    if !cluster.is_empty() && keys::current_user(&SshDir::open()?.cluster(cluster)?).is_some() {
        return Ok(0);
    }
    let address = context.address()?;
    Access::prepare(&mut patiently_connect(&address).await?, &address).await?;
    Ok(0)
}
