//! `carrel user`: the broker's directory of users, for administrators.

use carrel_proto::v1;
use clap::Subcommand;

use crate::context::Context;
use crate::error::Result;
use crate::{output, view};

/// Administer users of the broker's directory.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    carrel user add alice --uid 1001 --gid 1001 --home /home/alice\n  carrel user list")]
pub struct UserArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: UserCommand,
}

/// What is done to users.
#[derive(Clone, Debug, Subcommand)]
pub enum UserCommand {
    /// Create a user, or change one
    Add(AddArgs),
    /// List users
    List,
}

/// A user to be.
#[derive(Clone, Debug, clap::Args)]
pub struct AddArgs {
    /// Login name
    #[arg(value_name = "NAME", value_parser = parse_user)]
    pub name: String,
    /// Numeric user id
    #[arg(long, value_name = "UID")]
    pub uid: u32,
    /// Numeric primary group id [default: the uid]
    #[arg(long, value_name = "GID")]
    pub gid: Option<u32>,
    /// Supplementary group ids
    #[arg(long, value_name = "GID,…", value_delimiter = ',')]
    pub groups: Vec<u32>,
    /// Home directory, on nodes and in containers [default: /home/NAME]
    #[arg(long, value_name = "PATH")]
    pub home: Option<String>,
    /// Login shell [default: what the image has]
    #[arg(long, value_name = "PATH", default_value = "", hide_default_value = true)]
    pub shell: String,
    /// May administer the cluster
    #[arg(long)]
    pub admin: bool,
}

fn parse_user(text: &str) -> Result<String, String> {
    text.parse::<carrel_core::model::ids::UserName>()
        .map(|_| text.to_owned())
        .map_err(|e| e.to_string())
}

/// Runs the verb.
pub async fn run(context: &Context, args: UserArgs) -> Result<u8> {
    let mut client = context.client().await?;
    let users = match args.command {
        UserCommand::Add(user) => {
            let home = user.home.unwrap_or_else(|| format!("/home/{}", user.name));
            let user = v1::User {
                gid: user.gid.unwrap_or(user.uid),
                name: user.name,
                uid: user.uid,
                groups: user.groups,
                home,
                shell: user.shell,
                admin: user.admin,
            };
            vec![
                client
                    .put_user(v1::PutUserRequest { user: Some(user) })
                    .await?
                    .into_inner(),
            ]
        }
        UserCommand::List => {
            client
                .list_users(v1::ListUsersRequest {})
                .await?
                .into_inner()
                .users
        }
    };
    if context.json() {
        output::json(&users.into_iter().map(view::User::from).collect::<Vec<_>>())?;
        return Ok(0);
    }
    let rows = users.into_iter().map(|u| {
        let role = if u.admin { "admin" } else { "" };
        [
            u.name,
            u.uid.to_string(),
            u.gid.to_string(),
            u.home,
            role.to_owned(),
        ]
    });
    output::text(output::table(["NAME", "UID", "GID", "HOME", "ROLE"], rows))?;
    Ok(0)
}
