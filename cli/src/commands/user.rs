//! `carrel user`: the broker's directory of users, for administrators.

use std::collections::BTreeMap;
use std::str::FromStr;

use carrel_core::model::user::Role;
use carrel_proto::v1;
use clap::Subcommand;

use crate::context::Context;
use crate::error::Result;
use crate::{output, view};

/// Administer users of the broker's directory.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    carrel user add alice --uid 1001 --gid 1001:staff --groups 2000:lab,2001\n  \
    carrel user role alice operator\n  \
    carrel user list")]
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
    /// Change what a user may do to the cluster
    ///
    /// An operator runs it: nodes, everybody's jobs, the audit log. An administrator also decides
    /// who may what: users, roles, others' tokens.
    Role {
        /// Login name
        #[arg(value_name = "NAME", value_parser = parse_user)]
        name: String,
        /// user, operator or admin
        #[arg(value_name = "ROLE")]
        role: Role,
    },
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
    /// Primary group: its id, and its name where the broker's machine does not know it [default: the uid]
    #[arg(long, value_name = "GID[:NAME]")]
    pub gid: Option<Group>,
    /// Supplementary groups
    #[arg(long, value_name = "GID[:NAME],…", value_delimiter = ',')]
    pub groups: Vec<Group>,
    /// Home directory, on nodes and in containers [default: /home/NAME]
    #[arg(long, value_name = "PATH")]
    pub home: Option<String>,
    /// Login shell [default: what the image has]
    #[arg(long, value_name = "PATH", default_value = "", hide_default_value = true)]
    pub shell: String,
    /// What they may do to the cluster: user, operator or admin
    #[arg(long, value_name = "ROLE", default_value = "user")]
    pub role: Role,
}

/// A group: `2000` or `2000:lab`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    id: u32,
    name: Option<String>,
}

impl FromStr for Group {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (id, name) = text
            .split_once(':')
            .map_or((text, None), |(id, name)| (id, Some(name.to_owned())));
        match id.parse() {
            Ok(id) if name.as_deref() != Some("") => Ok(Self { id, name }),
            Ok(_) | Err(_) => Err(format!("{text:?} is no group: 2000, or 2000:lab")),
        }
    }
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
            let gid = user.gid.unwrap_or(Group {
                id: user.uid,
                name: None,
            });
            let named = user.groups.iter().chain([&gid]);
            let names = named.filter_map(|group| Some((group.id, group.name.clone()?)));
            let user = v1::User {
                group_names: names.collect::<BTreeMap<_, _>>(),
                gid: gid.id,
                name: user.name,
                uid: user.uid,
                groups: user.groups.iter().map(|group| group.id).collect(),
                home,
                shell: user.shell,
                role: v1::Role::from(user.role).into(),
            };
            vec![
                client
                    .put_user(v1::PutUserRequest { user: Some(user) })
                    .await?
                    .into_inner(),
            ]
        }
        UserCommand::Role { name, role } => {
            let request = v1::SetUserRoleRequest {
                user: name,
                role: v1::Role::from(role).into(),
            };
            vec![client.set_user_role(request).await?.into_inner()]
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
        let role = view::role(u.role());
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
