//! `carrel admin account`: the tree of accounts.

use std::collections::BTreeMap;

use carrel_proto::v1;
use carrel_proto::v1::edit_account_request::Edit;
use clap::Subcommand;

use super::limits::{self, LimitArgs, Setting, UserLimitArgs};
use super::{not_there, tell};
use crate::context::Context;
use crate::error::Result;
use crate::{output, view};

/// Accounts: whose GPUs jobs use, what each is promised, and what it may have.
///
/// Accounts are a tree, and shares say how much each is promised beside its siblings. Limits of an account are those of
/// everything in it and below it together.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    carrel admin account add science\n  \
    carrel admin account add physics --parent science --shares 3 --max-gpus 64 --user-max-gpus 16\n  \
    carrel admin account set physics --max-gpus none\n  \
    carrel admin user add alice bob -A physics")]
pub struct AccountArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: AccountCommand,
}

/// What is done to accounts.
#[derive(Clone, Debug, Subcommand)]
pub enum AccountCommand {
    /// Make an account
    Add(EditArgs),
    /// Change an account; what is not named stays
    Set(EditArgs),
    /// Forget an account without users, accounts below it, and jobs
    Rm {
        /// Account
        #[arg(value_name = "ACCOUNT")]
        name: String,
    },
    /// List accounts, what they hold and have used
    List,
    /// Show an account and its users
    Show {
        /// Account
        #[arg(value_name = "ACCOUNT")]
        name: String,
    },
}

/// What is set of an account.
#[derive(Clone, Debug, clap::Args)]
pub struct EditArgs {
    /// Account
    #[arg(value_name = "ACCOUNT")]
    pub name: String,
    /// The one above it; "none": it is at the top
    #[arg(long, value_name = "ACCOUNT", value_parser = limits::parse_name)]
    pub parent: Option<Setting<String>>,
    /// Shares beside its siblings [default: 1]
    #[arg(long, value_name = "SHARES")]
    pub shares: Option<u32>,
    /// What it is for
    #[arg(long, value_name = "TEXT")]
    pub description: Option<String>,
    /// Of all jobs in it and below it, together.
    #[command(flatten)]
    pub limits: LimitArgs,
    /// Of each user's jobs in it.
    #[command(flatten)]
    pub per_user: UserLimitArgs,
}

/// Runs the verb.
pub async fn run(context: &Context, args: AccountArgs) -> Result<u8> {
    let (edit, done) = match args.command {
        AccountCommand::List => return list(context).await,
        AccountCommand::Show { name } => return show(context, &name).await,
        AccountCommand::Add(edit) => {
            let done = format!("account {} is made", edit.name);
            (Edit::Account(edit.message(true)), done)
        }
        AccountCommand::Set(edit) => {
            let done = format!("account {} is changed", edit.name);
            (Edit::Account(edit.message(false)), done)
        }
        AccountCommand::Rm { name } => {
            let done = format!("account {name} is forgotten");
            (Edit::Delete(name), done)
        }
    };
    let request = v1::EditAccountRequest { edit: Some(edit) };
    let answer = context.client().await?.edit_account(request).await?;
    tell(context, &done, answer.into_inner())
}

impl EditArgs {
    fn message(self, create: bool) -> v1::AccountEdit {
        v1::AccountEdit {
            name: self.name,
            create,
            parent: limits::name_of(self.parent),
            description: self.description,
            shares: self.shares,
            limits: Some(self.limits.edit()),
            per_user: Some(LimitArgs::from(self.per_user).edit()),
        }
    }
}

async fn list(context: &Context) -> Result<u8> {
    let mut client = context.client().await?;
    let all = client
        .list_accounts(v1::ListAccountsRequest {})
        .await?
        .into_inner();
    if context.json() {
        output::json(
            &all.accounts
                .into_iter()
                .map(view::Account::from)
                .collect::<Vec<_>>(),
        )?;
        return Ok(0);
    }
    if all.accounts.is_empty() {
        crate::terminal::say("carrel: no accounts");
        return Ok(0);
    }
    let header = [
        "ACCOUNT", "SHARES", "USERS", "GPUS", "RUNNING", "JOBS", "USED", "LIMITS",
    ];
    let rows = in_tree(&all.accounts).into_iter().map(|(depth, account)| {
        let [gpus, running, jobs, used] = limits::columns(account.held.as_ref());
        [
            format!("{}{}", "  ".repeat(depth), account.name),
            account.shares.to_string(),
            account.members.len().to_string(),
            gpus,
            running,
            jobs,
            used,
            limits::text(account.limits.as_ref()),
        ]
    });
    output::text(output::table(header, rows))?;
    Ok(0)
}

/// Accounts, those below another after it, and how deep each is.
fn in_tree(accounts: &[v1::Account]) -> Vec<(usize, &v1::Account)> {
    let mut below: BTreeMap<&str, Vec<&v1::Account>> = BTreeMap::new();
    let known = |name: &str| accounts.iter().any(|account| account.name == name);
    for account in accounts.iter().rev() {
        let parent = account.parent.as_str();
        below
            .entry(if known(parent) { parent } else { "" })
            .or_default()
            .push(account);
    }
    let mut tree = Vec::new();
    let mut open: Vec<(usize, &v1::Account)> = Vec::new();
    let top = below.remove("").unwrap_or_default();
    open.extend(top.into_iter().map(|account| (0, account)));
    while let Some((depth, account)) = open.pop() {
        tree.push((depth, account));
        let next = below.remove(account.name.as_str()).unwrap_or_default();
        open.extend(next.into_iter().map(|account| (depth + 1, account)));
    }
    tree
}

async fn show(context: &Context, name: &str) -> Result<u8> {
    let mut client = context.client().await?;
    let all = client
        .list_accounts(v1::ListAccountsRequest {})
        .await?
        .into_inner();
    let account = all.accounts.into_iter().find(|account| account.name == name);
    let account = account.ok_or_else(|| not_there("account", name))?;
    if context.json() {
        output::json(&view::Account::from(account))?;
        return Ok(0);
    }
    output::text(output::fields([
        ("account", account.name.clone()),
        ("description", account.description.clone()),
        ("below", account.parent.clone()),
        ("shares", account.shares.to_string()),
        ("limits", limits::text(account.limits.as_ref())),
        ("limits of each user", limits::text(account.per_user.as_ref())),
        ("holds", limits::held(account.held.as_ref())),
    ]))?;
    if !account.members.is_empty() {
        let rows = account.members.iter().map(super::user::member_row);
        output::text(format!("\n{}", output::table(super::user::MEMBER_HEADER, rows)))?;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_listed_below_each_other() {
        let account = |name: &str, parent: &str| v1::Account {
            name: name.into(),
            parent: parent.into(),
            ..v1::Account::default()
        };
        let accounts = [
            account("a", "z"),
            account("b", ""),
            account("c", "unseen"),
            account("y", "z"),
            account("z", ""),
        ];
        let tree: Vec<(usize, &str)> = in_tree(&accounts)
            .into_iter()
            .map(|(depth, account)| (depth, account.name.as_str()))
            .collect();
        assert_eq!(tree, [(0, "b"), (0, "c"), (0, "z"), (1, "a"), (1, "y")]);
    }
}
