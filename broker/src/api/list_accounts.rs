//! The tree of accounts: operators see all of it, others what is theirs.

use std::collections::BTreeSet;

use carrel_core::broker::{State, all_standings};
use carrel_core::model::account::{Account, Member};
use carrel_core::model::ids::{AccountName, UserName};
use carrel_core::model::time::Timestamp;
use carrel_core::queue::Holder;
use carrel_core::queue::tally::above;
use carrel_proto::v1::{self, ListAccountsRequest, ListAccountsResponse};
use tonic::Status;

use super::Call;

pub(super) async fn list_accounts(
    call: Call,
    _: ListAccountsRequest,
) -> Result<ListAccountsResponse, Status> {
    let snapshot = call.snapshot();
    let state = snapshot.state();
    let now = call.context.clock.now();
    let me = &call.asker.caller.user;
    let all = call.reaches_others();
    let own = own(state, me);
    let accounts = state.accounts.values();
    let accounts = accounts.filter(|account| all || own.contains(&account.name));
    let people = state.people.values();
    let people = people.filter(|person| all || person.user == *me);
    Ok(ListAccountsResponse {
        accounts: accounts
            .map(|account| message(state, account, now, |user| all || user == me))
            .collect(),
        people: people
            .map(|person| v1::Person {
                user: person.user.to_string(),
                default_account: person
                    .default_account
                    .as_ref()
                    .map(ToString::to_string)
                    .unwrap_or_default(),
                limits: Some((&person.limits).into()),
                held: Some(held(state, &Holder::User(person.user.clone()), now)),
            })
            .collect(),
    })
}

/// The accounts that a user is in, and those above them.
fn own(state: &State, user: &UserName) -> BTreeSet<AccountName> {
    let all = state.accounts.values();
    let theirs = all.filter(|account| account.members.contains_key(user));
    theirs
        .flat_map(|account| {
            let above = above(&state.accounts, &account.name);
            above.into_iter().chain([account.name.clone()])
        })
        .collect()
}

fn message(
    state: &State,
    account: &Account,
    now: Timestamp,
    shows: impl Fn(&UserName) -> bool,
) -> v1::Account {
    let members = account.members.iter().filter(|(user, _)| shows(user));
    let standings = all_standings(state);
    let member = |(user, member): (&UserName, &Member)| {
        let standing = standings.get(&(account.name.clone(), user.clone()));
        let holder = Holder::Member(account.name.clone(), user.clone());
        v1::Member {
            user: user.to_string(),
            shares: member.shares,
            limits: Some((&member.limits).into()),
            held: Some(held(state, &holder, now)),
            fair_share: standing.map(|standing| standing.factor),
        }
    };
    v1::Account {
        name: account.name.to_string(),
        parent: account
            .parent
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        description: account.description.clone(),
        shares: account.shares,
        limits: Some((&account.limits).into()),
        per_user: Some((&account.per_user).into()),
        members: members.map(member).collect(),
        held: Some(held(state, &Holder::Account(account.name.clone()), now)),
    }
}

/// What is held and waits under a name, and what was used.
pub(super) fn held(state: &State, holder: &Holder, now: Timestamp) -> v1::Held {
    let tally = state.tallies.of(holder);
    v1::Held {
        gpu_milli: tally.gpu_milli,
        running: tally.running,
        submitted: tally.submitted,
        used_gpu_hours: tally.usage.decayed(now, state.settings.queue.decay()) / 3_600.0,
    }
}
