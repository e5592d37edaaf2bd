//! `carrel ssh`: a login.

use std::os::unix::process::CommandExt as _;

use carrel_core::terminal::{Attach, Which};
use carrel_proto::v1;

use crate::attach::{self, Way};
use crate::context::{Context, Member, no_session};
use crate::error::Result;
use crate::signals::Signals;
use crate::ssh::access::Access;
use crate::ssh::{alias, client};
use crate::terminal;

/// Log in to a session.
///
/// Starts the session if it is stopped. Without anything after the name it opens a terminal that
/// outlives its connection: it attaches again by itself, and what runs in it goes on when this program
/// is gone; see `carrel attach`. What follows the name goes to ssh as it stands: options, or a command
/// line for the shell there; that login ends with its connection.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    carrel ssh dev\n  \
    carrel ssh dev nvidia-smi -L\n  \
    carrel ssh dev.1                         the gang's second node\n  \
    carrel ssh dev -A -L 8888:localhost:8888 forward the agent and a port")]
pub struct SshArgs {
    /// Session, with a rank if wanted: dev, dev.1
    #[arg(value_name = "NAME[.RANK]", add = super::completion::sessions())]
    pub member: Member,
    /// Options and command for ssh
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<String>,
}

/// Runs the verb: shows a terminal, or becomes ssh.
pub async fn run(context: &Context, args: SshArgs) -> Result<u8> {
    let address = context.address()?;
    let mut client = crate::connect::connect(&address).await?;
    let member = args.member.to_string();
    let name = args.member.session;
    let session = client
        .get_session(v1::GetSessionRequest { name: name.clone() })
        .await
        .map_err(|status| no_session(&name, status))?
        .into_inner();
    let access = Access::prepare(&mut client, &address).await?;
    if !session.ephemeral {
        access.write_alias(&session)?;
    }
    let route = access.route(&session, args.member.rank);
    if args.arguments.is_empty() && terminal::is_interactive() {
        let mut signals = Signals::catch()?;
        let mut way = Way {
            client: &mut client,
            address: &address,
            route,
        };
        let which = Which::New {
            name: None,
            command: None,
        };
        let left = attach::run(&mut way, Attach::new(which), &mut signals).await?;
        return super::attach::outcome(&session.name, &member, left);
    }
    let mut ssh = route.command()?;
    ssh.arg(alias::name_of(&route.session)).args(args.arguments);
    // Returns only if it cannot be started.
    Err(client::cannot_start(&ssh.exec()))
}
