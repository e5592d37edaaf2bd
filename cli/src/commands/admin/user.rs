//! `carrel admin user`: who is in which account, and what users may have.

use carrel_proto::v1;
use carrel_proto::v1::edit_account_request::Edit;
use clap::Subcommand;

use super::limits::{self, LimitArgs, Setting};
use super::{not_there, tell};
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::{output, view};

/// Users in accounts, and what users may have.
///
/// Who users are, their ids and roles, is `carrel user`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    carrel admin user add alice bob -A physics\n  \
    carrel admin user set alice -A physics --shares 3 --max-gpus 8\n  \
    carrel admin user set alice --default-account physics --max-running 10\n  \
    carrel admin user list -A physics")]
pub struct UserArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: UserCommand,
}

/// What is done to users.
#[derive(Clone, Debug, Subcommand)]
pub enum UserCommand {
    /// Put users into an account
    Add {
        /// Login names
        #[arg(value_name = "USER", required = true)]
        users: Vec<String>,
        /// Account
        #[arg(short = 'A', long, value_name = "ACCOUNT")]
        account: String,
        /// Shares of each beside the account's other users and accounts [default: 1]
        #[arg(long, value_name = "SHARES")]
        shares: Option<u32>,
        /// Of each one's jobs in this account.
        #[command(flatten)]
        limits: LimitArgs,
    },
    /// Change users in an account; without -A, what holds in all accounts
    Set(SetArgs),
    /// Take users without jobs in it out of an account
    Rm {
        /// Login names
        #[arg(value_name = "USER", required = true)]
        users: Vec<String>,
        /// Account
        #[arg(short = 'A', long, value_name = "ACCOUNT")]
        account: String,
    },
    /// List users in accounts, what they hold and have used
    List {
        /// Only those in this account
        #[arg(short = 'A', long, value_name = "ACCOUNT")]
        account: Option<String>,
    },
    /// Show a user's accounts, shares and limits
    Show {
        /// Login name
        #[arg(value_name = "USER")]
        user: String,
    },
}

/// What is set of users.
#[derive(Clone, Debug, clap::Args)]
pub struct SetArgs {
    /// Login names
    #[arg(value_name = "USER", required = true)]
    pub users: Vec<String>,
    /// Account [default: what holds in all]
    #[arg(short = 'A', long, value_name = "ACCOUNT")]
    pub account: Option<String>,
    /// Shares of each beside the account's other users and accounts
    #[arg(long, value_name = "SHARES", requires = "account")]
    pub shares: Option<u32>,
    /// Account of jobs that name none; "none": the first that the user is in
    #[arg(long, value_name = "ACCOUNT", value_parser = limits::parse_name, conflicts_with = "account")]
    pub default_account: Option<Setting<String>>,
    /// Of each one's jobs.
    #[command(flatten)]
    pub limits: LimitArgs,
}

/// Columns of a table of users in one account.
pub const MEMBER_HEADER: [&str; 8] = [
    "USER",
    "SHARES",
    "GPUS",
    "RUNNING",
    "JOBS",
    "USED",
    "FAIR-SHARE",
    "LIMITS",
];

/// A row of it.
pub fn member_row(member: &v1::Member) -> [String; 8] {
    let [gpus, running, jobs, used] = limits::columns(member.held.as_ref());
    [
        member.user.clone(),
        member.shares.to_string(),
        gpus,
        running,
        jobs,
        used,
        member
            .fair_share
            .map(|share| format!("{share:.3}"))
            .unwrap_or_default(),
        limits::text(member.limits.as_ref()),
    ]
}

/// Runs the verb.
pub async fn run(context: &Context, args: UserArgs) -> Result<u8> {
    match args.command {
        UserCommand::List { account } => list(context, account.as_deref()).await,
        UserCommand::Show { user } => show(context, &user).await,
        UserCommand::Add {
            users,
            account,
            shares,
            limits,
        } => {
            let done = format!("in account {account}: {}", users.join(", "));
            let edit = v1::MembersEdit {
                account,
                users,
                create: true,
                shares,
                limits: Some(limits.edit()),
            };
            send(context, vec![Edit::Members(edit)], &done).await
        }
        UserCommand::Rm { users, account } => {
            let done = format!("no longer in account {account}: {}", users.join(", "));
            let edit = v1::MembersRemoval { account, users };
            send(context, vec![Edit::RemoveMembers(edit)], &done).await
        }
        UserCommand::Set(set) => set.send(context).await,
    }
}

impl SetArgs {
    async fn send(self, context: &Context) -> Result<u8> {
        if self.shares.is_none() && self.default_account.is_none() && self.limits == LimitArgs::default() {
            return Err(CliError::usage("nothing is to be changed")
                .hint("name shares, a default account or limits: `carrel admin user set --help`"));
        }
        let done = format!("changed: {}", self.users.join(", "));
        let limits = Some(self.limits.edit());
        let edits = if let Some(account) = self.account {
            vec![Edit::Members(v1::MembersEdit {
                account,
                users: self.users,
                create: false,
                shares: self.shares,
                limits,
            })]
        } else {
            let default = limits::name_of(self.default_account);
            let person = |user| {
                Edit::Person(v1::PersonEdit {
                    user,
                    default_account: default.clone(),
                    limits: limits.clone(),
                })
            };
            self.users.into_iter().map(person).collect()
        };
        send(context, edits, &done).await
    }
}

async fn send(context: &Context, edits: Vec<Edit>, done: &str) -> Result<u8> {
    let mut client = context.client().await?;
    let mut all = v1::EditResponse::default();
    for edit in edits {
        let request = v1::EditAccountRequest { edit: Some(edit) };
        all.told
            .extend(client.edit_account(request).await?.into_inner().told);
    }
    tell(context, done, all)
}

async fn list(context: &Context, only: Option<&str>) -> Result<u8> {
    let mut client = context.client().await?;
    let all = client
        .list_accounts(v1::ListAccountsRequest {})
        .await?
        .into_inner();
    if let Some(name) = only.filter(|name| all.accounts.iter().all(|account| account.name != *name)) {
        return Err(not_there("account", name));
    }
    let accounts = all.accounts.iter();
    let accounts = accounts.filter(|account| only.is_none_or(|only| account.name == only));
    let members = accounts.flat_map(|account| {
        account
            .members
            .iter()
            .map(|member| (account.name.clone(), member))
    });
    if context.json() {
        let members = members.map(|(account, member)| view::MemberOf::new(account, member.clone()));
        output::json(&members.collect::<Vec<_>>())?;
        return Ok(0);
    }
    let header = [
        "USER",
        "ACCOUNT",
        "SHARES",
        "GPUS",
        "RUNNING",
        "JOBS",
        "USED",
        "FAIR-SHARE",
        "LIMITS",
    ];
    let rows: Vec<_> = members
        .map(|(account, member)| {
            let [user, shares, gpus, running, jobs, used, fair_share, limits] = member_row(member);
            [
                user, account, shares, gpus, running, jobs, used, fair_share, limits,
            ]
        })
        .collect();
    if rows.is_empty() {
        crate::terminal::say("carrel: nobody is in an account");
        return Ok(0);
    }
    output::text(output::table(header, rows))?;
    Ok(0)
}

async fn show(context: &Context, user: &str) -> Result<u8> {
    let mut client = context.client().await?;
    let all = client
        .list_accounts(v1::ListAccountsRequest {})
        .await?
        .into_inner();
    let person = all.people.into_iter().find(|person| person.user == user);
    let members = all.accounts.into_iter().flat_map(|account| {
        let own = account.members.into_iter().filter(|member| member.user == user);
        let name = account.name;
        own.map(move |member| (name.clone(), member)).collect::<Vec<_>>()
    });
    let members: Vec<(String, v1::Member)> = members.collect();
    if person.is_none() && members.is_empty() {
        return Err(CliError::new(
            crate::error::Kind::NotFound,
            format!("{user} is in no account, and nothing is set for them"),
        )
        .hint("`carrel admin user add USER -A ACCOUNT` puts users into accounts"));
    }
    if context.json() {
        output::json(&view::UserTerms::new(user.to_owned(), person, members))?;
        return Ok(0);
    }
    let person = person.unwrap_or_default();
    output::text(output::fields([
        ("user", user.to_owned()),
        ("default account", person.default_account),
        ("limits", limits::text(person.limits.as_ref())),
    ]))?;
    let header = [
        "ACCOUNT",
        "SHARES",
        "GPUS",
        "RUNNING",
        "JOBS",
        "USED",
        "FAIR-SHARE",
        "LIMITS",
    ];
    let rows = members.iter().map(|(account, member)| {
        let mut row = member_row(member);
        row[0].clone_from(account);
        row
    });
    output::text(output::table(header, rows))?;
    Ok(0)
}
