//! Accounts, the users in them, and what is set for users whatever the account.

use std::collections::BTreeSet;

use super::limits::{limits_text, must_be_at_most, must_be_description};
use crate::broker::change::Change;
use crate::broker::edit::{AccountEdit, Edit, MemberEdit, PersonEdit, Way};
use crate::broker::input::Caller;
use crate::broker::{Broker, Call, Reject, RejectKind, Reply, State};
use crate::model::account::{Account, MAX_DEPTH, MAX_SHARES, Member, Person};
use crate::model::audit::Action;
use crate::model::ids::{AccountName, UserName};
use crate::queue::Holder;
use crate::queue::tally::above;

/// Accounts: each is a step of working out fair-share.
const MAX_ACCOUNTS: usize = 10_000;
/// Users of one account: it is written whole.
const MAX_MEMBERS: usize = 10_000;
/// Users for whom something is set whatever the account.
const MAX_PEOPLE: usize = 100_000;
/// Names in one message: more would say less.
const MAX_NAMED: usize = 4;

const NO_ACCOUNT: &str = "`carrel admin account list` lists them, `carrel admin account add` makes one";

impl Broker {
    pub(super) fn on_edit(&mut self, caller: &Caller, edit: Edit) -> Result<Reply, Reject> {
        caller.must(match &edit {
            Edit::Account(..)
            | Edit::DeleteAccount(_)
            | Edit::Members(..)
            | Edit::RemoveMembers(..)
            | Edit::Person(..) => Call::EditAccount,
            Edit::Qos(..) | Edit::DeleteQos(_) => Call::EditQos,
            Edit::Partition(..) | Edit::DeletePartition(_) => Call::EditPartition,
            Edit::Reservation(..) | Edit::DeleteReservation(_) => Call::EditReservation,
        })?;
        let told = match edit {
            Edit::Account(name, way, edit) => self.edit_account(caller, name, way, edit)?,
            Edit::DeleteAccount(name) => self.delete_account(caller, &name)?,
            Edit::Members(name, way, users, edit) => self.edit_members(caller, &name, way, users, &edit)?,
            Edit::RemoveMembers(name, users) => self.remove_members(caller, &name, &users)?,
            Edit::Person(user, edit) => self.edit_person(caller, user, edit)?,
            Edit::Qos(name, way, edit) => self.edit_qos(caller, name, way, edit)?,
            Edit::DeleteQos(name) => self.delete_qos(caller, &name)?,
            Edit::Partition(name, way, edit) => self.edit_partition(caller, name, way, edit)?,
            Edit::DeletePartition(name) => self.delete_partition(caller, &name)?,
            Edit::Reservation(name, way, edit) => self.edit_reservation(caller, name, way, edit)?,
            Edit::DeleteReservation(name) => self.delete_reservation(caller, &name)?,
        };
        // Who may use which reservation may be otherwise.
        self.state.look_again_reserved();
        self.output.room = true;
        Ok(if told.is_empty() {
            Reply::Done
        } else {
            Reply::Told(told)
        })
    }

    fn edit_account(
        &mut self,
        caller: &Caller,
        name: AccountName,
        way: Way,
        edit: AccountEdit,
    ) -> Result<Vec<String>, Reject> {
        let known = self.state.accounts.get(&name).map(|account| (**account).clone());
        let mut account = record(known, way, "account", &name, NO_ACCOUNT, || {
            Account::new(name.clone())
        })?;
        must_be_few("accounts", self.state.accounts.len(), MAX_ACCOUNTS, way)?;
        let AccountEdit {
            parent,
            description,
            shares,
            limits,
            per_user,
        } = edit;
        if let Some(parent) = parent {
            self.state.must_hang_below(&name, parent.as_ref())?;
            account.parent = parent;
        }
        if let Some(description) = description {
            must_be_description(&description)?;
            account.description = description;
        }
        if let Some(shares) = shares {
            must_be_at_most("a number of shares", shares, MAX_SHARES)?;
            account.shares = shares;
        }
        account.limits = limits.on(&account.limits)?;
        account.per_user = per_user.on(&account.per_user)?;
        let place = match &account.parent {
            Some(parent) => format!("below {parent}"),
            None => "at the top".to_owned(),
        };
        let detail = format!("{place}, {} shares", account.shares)
            + &limits_text("all jobs", &account.limits)
            + &limits_text("each user's", &account.per_user);
        self.audit(caller, Action::AccountPut, format!("account {name}"), detail);
        let mut told = self.state.over(&Holder::Account(name.clone()), &account.limits);
        let theirs = |holder: &Holder| matches!(holder, Holder::Member(account, _) if *account == name);
        told.extend(self.state.over_by_user(&account.per_user, theirs));
        self.put_account(account);
        Ok(told)
    }

    fn delete_account(&mut self, caller: &Caller, name: &AccountName) -> Result<Vec<String>, Reject> {
        let account = self.state.account_named(name)?;
        let refused = |why: String, hint: &str| Err(Reject::new(RejectKind::WrongState, why).hint(hint));
        let below = self.state.accounts.values();
        let below = below.filter(|other| other.parent.as_ref() == Some(name));
        let below: Vec<&str> = below.map(|other| other.name.as_str()).collect();
        if !below.is_empty() {
            let why = format!(
                "account {name} has {} below it: {}",
                counted(below.len(), "account"),
                some_of(&below)
            );
            return refused(
                why,
                "move them with `carrel admin account set … --parent`, or remove them first",
            );
        }
        self.state.must_have_no_jobs(
            &format!("account {name}"),
            |job| job.terms.account == *name,
            "stop them, or wait for their end",
        )?;
        if !account.members.is_empty() {
            let users: Vec<&str> = account.members.keys().map(UserName::as_str).collect();
            let why = format!(
                "account {name} has {}: {}",
                counted(users.len(), "user"),
                some_of(&users)
            );
            return refused(why, "take them out with `carrel admin user rm … -A ACCOUNT`");
        }
        let qos = self.state.qos.values().filter(|qos| qos.accounts.contains(name));
        let qos = qos.map(|qos| format!("QOS {}", qos.name));
        let partitions = self.state.partitions.values();
        let partitions = partitions.filter(|partition| partition.accounts.contains(name));
        let partitions = partitions.map(|partition| format!("partition {}", partition.name));
        if let Some(user) = qos.chain(partitions).next() {
            let why = format!("{user} is for account {name}");
            return refused(
                why,
                "change its --accounts first: one that is for none is for all",
            );
        }
        self.audit(caller, Action::AccountDelete, format!("account {name}"), "");
        self.state.remove_account(name);
        self.record(Change::DeleteAccount(name.clone()));
        Ok(Vec::new())
    }

    fn edit_members(
        &mut self,
        caller: &Caller,
        name: &AccountName,
        way: Way,
        users: BTreeSet<UserName>,
        edit: &MemberEdit,
    ) -> Result<Vec<String>, Reject> {
        let mut account = self.state.account_named(name)?;
        must_be_somebody(&users)?;
        if let Some(shares) = edit.shares {
            must_be_at_most("a number of shares", shares, MAX_SHARES)?;
        }
        let mut told = Vec::new();
        for user in &users {
            let known = account.members.get(user).cloned();
            let mut member = match (way, known) {
                (Way::Add, None) => Member::default(),
                (Way::Set, Some(member)) => member,
                (Way::Add, Some(_)) => {
                    let why = format!("{user} is in account {name} already");
                    return Err(Reject::new(RejectKind::AlreadyExists, why)
                        .hint("`carrel admin user set` changes shares and limits"));
                }
                (Way::Set, None) => return Err(not_in(user, name)),
            };
            member.shares = edit.shares.unwrap_or(member.shares);
            member.limits = edit.limits.on(&member.limits)?;
            let holder = Holder::Member(name.clone(), user.clone());
            told.extend(self.state.over(&holder, &member.limits));
            account.members.insert(user.clone(), member);
            if way == Way::Add {
                told.extend(self.state.is_new(user));
            }
        }
        if account.members.len() > MAX_MEMBERS {
            let why = format!("an account has at most {MAX_MEMBERS} users");
            return Err(Reject::new(RejectKind::Exhausted, why));
        }
        let shares = edit.shares.map(|shares| format!("; {shares} shares"));
        let all: Vec<&str> = users.iter().map(UserName::as_str).collect();
        let detail =
            all.join(" ") + &shares.unwrap_or_default() + &limits_text("each one's jobs", &edit.limits.set);
        self.audit(caller, Action::MemberPut, format!("account {name}"), detail);
        self.put_account(account);
        Ok(told)
    }

    fn remove_members(
        &mut self,
        caller: &Caller,
        name: &AccountName,
        users: &BTreeSet<UserName>,
    ) -> Result<Vec<String>, Reject> {
        let mut account = self.state.account_named(name)?;
        must_be_somebody(users)?;
        for user in users {
            if account.members.remove(user).is_none() {
                return Err(not_in(user, name));
            }
            self.state.must_have_no_jobs(
                &format!("{user} in account {name}"),
                |job| job.owner == *user && job.terms.account == *name,
                "stop them, or wait for their end; a limit of 0 running jobs lets no more start",
            )?;
            let person = self.state.people.get(user).map(|person| (**person).clone());
            if let Some(person) = person.filter(|person| person.default_account.as_ref() == Some(name)) {
                self.put_person(Person {
                    default_account: None,
                    ..person
                });
            }
        }
        let all: Vec<&str> = users.iter().map(UserName::as_str).collect();
        self.audit(
            caller,
            Action::MemberRemove,
            format!("account {name}"),
            all.join(" "),
        );
        self.put_account(account);
        Ok(Vec::new())
    }

    fn edit_person(
        &mut self,
        caller: &Caller,
        user: UserName,
        edit: PersonEdit,
    ) -> Result<Vec<String>, Reject> {
        let known = self.state.people.get(&user).map(|person| (**person).clone());
        if known.is_none() && self.state.people.len() >= MAX_PEOPLE {
            let why = format!("something is set for {MAX_PEOPLE} users already");
            return Err(Reject::new(RejectKind::Exhausted, why));
        }
        let mut person = known.unwrap_or_else(|| Person::new(user.clone()));
        if let Some(default) = edit.default_account {
            if let Some(name) = &default {
                let account = self.state.account_named(name)?;
                if !account.members.contains_key(&user) {
                    return Err(not_in(&user, name));
                }
            }
            person.default_account = default;
        }
        person.limits = edit.limits.on(&person.limits)?;
        let default = person.default_account.as_ref();
        let default = default.map_or("no default account".to_owned(), |name| {
            format!("default account {name}")
        });
        let detail = default + &limits_text("all jobs", &person.limits);
        self.audit(caller, Action::UserTerms, format!("user {user}"), detail);
        let mut told = self.state.over(&Holder::User(user.clone()), &person.limits);
        told.extend(self.state.is_new(&user));
        self.put_person(person);
        Ok(told)
    }
}

/// A record to be changed: a new one, or the one that is there.
pub(super) fn record<T>(
    known: Option<T>,
    way: Way,
    kind: &str,
    name: &impl std::fmt::Display,
    hint: &str,
    new: impl FnOnce() -> T,
) -> Result<T, Reject> {
    match (way, known) {
        (Way::Add, None) => Ok(new()),
        (Way::Set, Some(known)) => Ok(known),
        (Way::Add, Some(_)) => Err(Reject::new(
            RejectKind::AlreadyExists,
            format!("there is a {kind} {name} already"),
        )
        .hint("`set` changes it")),
        (Way::Set, None) => Err(unknown(kind, name, hint)),
    }
}

/// There is no such thing.
pub(super) fn unknown(kind: &str, name: &impl std::fmt::Display, hint: &str) -> Reject {
    Reject::new(RejectKind::NotFound, format!("there is no {kind} {name}")).hint(hint)
}

/// Refuses one more than there may be.
pub(super) fn must_be_few(what: &str, there: usize, most: usize, way: Way) -> Result<(), Reject> {
    if way == Way::Add && there >= most {
        return Err(Reject::new(
            RejectKind::Exhausted,
            format!("there are {most} {what} already"),
        ));
    }
    Ok(())
}

fn not_in(user: &UserName, account: &AccountName) -> Reject {
    Reject::new(
        RejectKind::NotFound,
        format!("{user} is not in account {account}"),
    )
    .hint("`carrel admin user add USER -A ACCOUNT` puts users into accounts")
}

fn must_be_somebody(users: &BTreeSet<UserName>) -> Result<(), Reject> {
    if users.is_empty() {
        return Err(Reject::new(RejectKind::Invalid, "no user is named"));
    }
    Ok(())
}

/// "1 user", "3 users"
fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// The first of some names.
pub(super) fn some_of(names: &[impl AsRef<str>]) -> String {
    let shown: Vec<&str> = names.iter().take(MAX_NAMED).map(AsRef::as_ref).collect();
    let more = names.len().saturating_sub(MAX_NAMED);
    match more {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

impl State {
    fn account_named(&self, name: &AccountName) -> Result<Account, Reject> {
        let known = self.accounts.get(name).map(|account| (**account).clone());
        known.ok_or_else(|| unknown("account", name, NO_ACCOUNT))
    }

    /// Refuses accounts that are not there.
    pub(super) fn must_be_accounts(&self, names: &BTreeSet<AccountName>) -> Result<(), Reject> {
        let mut missing = names.iter().filter(|name| !self.accounts.contains_key(*name));
        missing
            .next()
            .map_or(Ok(()), |name| Err(unknown("account", name, NO_ACCOUNT)))
    }

    /// Refuses a place in the tree that is no place.
    fn must_hang_below(&self, name: &AccountName, parent: Option<&AccountName>) -> Result<(), Reject> {
        let Some(parent) = parent else { return Ok(()) };
        if !self.accounts.contains_key(parent) {
            return Err(unknown("account", parent, NO_ACCOUNT));
        }
        let over = above(&self.accounts, parent);
        if parent == name || over.contains(name) {
            return Err(Reject::new(
                RejectKind::Invalid,
                format!("account {parent} cannot be above {name}: it is {name} or below it"),
            ));
        }
        // Its own depth below itself, and everything above.
        let own = self.accounts.keys().filter_map(|other| {
            let way = above(&self.accounts, other);
            way.iter().position(|step| step == name).map(|steps| steps + 1)
        });
        let depth = over.len() + 2 + own.max().unwrap_or(0);
        if depth > MAX_DEPTH {
            let why = format!("accounts would be {depth} deep, and may be {MAX_DEPTH}");
            return Err(Reject::new(RejectKind::Invalid, why));
        }
        Ok(())
    }

    /// What to say of a user whom nobody has seen.
    fn is_new(&self, user: &UserName) -> Option<String> {
        let known = self.users.contains_key(user);
        (!known).then(|| format!("{user} is not in the directory yet: check the name if this is a surprise"))
    }
}
