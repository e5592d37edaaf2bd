//! `carrel proxy`: the way of SSH's bytes.

use std::time::Duration;

use carrel_core::stream::StreamId;

use crate::context::{Context, Member};
use crate::error::{CliError, Kind, Result};
use crate::signals::Signals;
use crate::ssh::access::Access;
use crate::ssh::{SshDir, keys};
use crate::stream::{Begin, Ending, pump};
use crate::way::{self, Way};
use crate::{shell, stdio, terminal, units};

/// Connect stdin and stdout to a session, as SSH's ProxyCommand.
///
/// Starts the session if it is stopped, and waits for it. The SSH aliases that `carrel open`
/// writes use this; so may any SSH client's config. When the way to the session is cut, it finds
/// another, and SSH goes on where it was: for three days, sleep included. Exits with 255 when there
/// is no connection.
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
    /// Fail if the session is not running, rather than start it
    #[arg(long, conflicts_with = "wait")]
    pub no_start: bool,
    /// Only see that the SSH key has a certificate with more than five minutes left; CLUSTER's id
    /// spares asking the broker for it
    #[arg(long, value_name = "CLUSTER", num_args = 0..=1, default_missing_value = "", conflicts_with_all = ["member", "rank"])]
    pub renew: Option<String>,
}

/// Runs the verb.
pub async fn run(context: &Context, args: ProxyArgs) -> Result<u8> {
    if let Some(cluster) = &args.renew {
        return renew(context, cluster).await;
    }
    let Some(member) = args.member else {
        return Err(CliError::usage("a session is needed"));
    };
    let rank = args.rank.unwrap_or(member.rank);
    let start = (!args.no_start).then_some(args.wait);
    let mut signals = Signals::catch()?;
    let mut way = Way::new(context.address()?, member.session.clone(), rank);
    let id = StreamId(rand::random());
    // Nothing is lost with a stream that has not begun.
    let first = tokio::select! {
        first = way.first(id, start) => first,
        signal = signals.next() => return Ok(signal.exit_code()),
    };
    let socket = match first {
        Ok(socket) => socket,
        Err(error) => {
            shell::report(shell::Report::NoConnection(&error.message))?;
            return Err(error.with_kind(Kind::Connection));
        }
    };
    let begin = Begin {
        id,
        socket,
        dialler: way,
        input: stdio::input(),
        output: stdio::output(),
        session: member.session,
    };
    // SSH takes its proxy down with a signal when it ends.
    match pump(begin, signals.next()).await {
        Ending::FarEnd | Ending::NearEnd => Ok(0),
        Ending::Left(signal) => Ok(signal.exit_code()),
        Ending::Broken(why) => {
            shell::report(shell::Report::Broken(&why))?;
            terminal::leave_line();
            Err(CliError::new(Kind::Connection, why))
        }
    }
}

/// Sees that key and certificate are good for a while. Quick when they are: it only reads files.
async fn renew(context: &Context, cluster: &str) -> Result<u8> {
    if !cluster.is_empty() && keys::current_user(&SshDir::open()?.cluster(cluster)?).is_some() {
        return Ok(0);
    }
    let address = context.address()?;
    Access::prepare(&mut way::patiently_connect(&address).await?, &address).await?;
    Ok(0)
}
