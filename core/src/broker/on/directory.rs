//! Users, their keys and their tokens.

use std::sync::Arc;

use crate::broker::change::Change;
use crate::broker::input::Caller;
use crate::broker::{Broker, Reject, RejectKind, Reply};
use crate::model::user::{ApiToken, User};

/// SSH keys and API tokens that one user may have.
const MAX_KEYS: usize = 64;

impl Broker {
    pub(super) fn on_put_user(&mut self, caller: Option<&Caller>, mut user: User) -> Result<Reply, Reject> {
        if let Some(caller) = caller {
            caller.must_administer()?;
        }
        let taken = self
            .state
            .users
            .values()
            .find(|other| other.uid == user.uid && other.name != user.name);
        if let Some(other) = taken {
            return Err(Reject::new(
                RejectKind::AlreadyExists,
                format!("user id {} is already that of {}", user.uid, other.name),
            ));
        }
        if let Some(old) = self.state.users.get(&user.name) {
            user.ssh_keys.clone_from(&old.ssh_keys);
            if caller.is_none() {
                // The name service does not know who administers this cluster.
                user.admin |= old.admin;
            }
            if **old == user {
                return Ok(Reply::Done);
            }
        }
        self.put_user(user);
        Ok(Reply::Done)
    }

    fn put_user(&mut self, user: User) {
        let user = Arc::new(user);
        self.state.users.insert(user.name.clone(), Arc::clone(&user));
        self.record(Change::PutUser(user));
    }

    fn own_record(&self, caller: &Caller) -> Result<User, Reject> {
        self.state
            .users
            .get(&caller.user)
            .map(|user| (**user).clone())
            .ok_or_else(|| {
                Reject::new(
                    RejectKind::NotFound,
                    format!("user {} is not in the directory", caller.user),
                )
            })
    }

    pub(super) fn on_add_ssh_key(&mut self, caller: &Caller, key: Arc<str>) -> Result<Reply, Reject> {
        let mut user = self.own_record(caller)?;
        let owner = self
            .state
            .users
            .values()
            .find(|user| user.ssh_keys.contains(&key));
        match owner {
            Some(owner) if owner.name == caller.user => return Ok(Reply::Done),
            Some(_) => {
                return Err(Reject::new(
                    RejectKind::AlreadyExists,
                    "another user has registered this key",
                ));
            }
            None => {}
        }
        if user.ssh_keys.len() >= MAX_KEYS {
            return Err(Reject::new(
                RejectKind::Exhausted,
                format!("{MAX_KEYS} keys are registered already"),
            )
            .hint("`carrel key remove` takes one back"));
        }
        user.ssh_keys.push(key);
        self.put_user(user);
        self.touch_jobs_of(caller);
        Ok(Reply::Done)
    }

    pub(super) fn on_remove_ssh_key(&mut self, caller: &Caller, key: &Arc<str>) -> Result<Reply, Reject> {
        let mut user = self.own_record(caller)?;
        let before = user.ssh_keys.len();
        user.ssh_keys.retain(|own| own != key);
        if user.ssh_keys.len() == before {
            return Err(Reject::new(RejectKind::NotFound, "that key is not registered")
                .hint("`carrel key list` lists yours"));
        }
        self.put_user(user);
        self.touch_jobs_of(caller);
        Ok(Reply::Done)
    }

    /// Who may enter a user's running sessions changed.
    fn touch_jobs_of(&mut self, caller: &Caller) {
        let held: Vec<_> = self
            .state
            .deadlines
            .iter()
            .filter_map(|(_, id)| self.state.jobs.get(id))
            .filter(|job| job.owner == caller.user)
            .filter_map(|job| {
                job.placed()
                    .map(|placed| (job.id, placed.allocation.nodes.clone()))
            })
            .collect();
        for (_, parts) in held {
            for part in parts {
                self.touch(&part.node);
            }
        }
    }

    pub(super) fn on_create_token(&mut self, caller: &Caller, token: ApiToken) -> Result<Reply, Reject> {
        if token.user != caller.user {
            caller.must_administer()?;
        }
        if !self.state.users.contains_key(&token.user) {
            return Err(
                Reject::new(RejectKind::NotFound, format!("there is no user {}", token.user))
                    .hint("`carrel user add` creates one"),
            );
        }
        let held = self
            .state
            .tokens
            .values()
            .filter(|other| other.user == token.user)
            .count();
        if held >= MAX_KEYS {
            return Err(Reject::new(
                RejectKind::Exhausted,
                format!("{} has {held} tokens already", token.user),
            )
            .hint("`carrel token revoke ID` ends one"));
        }
        let token = Arc::new(token);
        self.state.token_hashes.insert(token.hash, Arc::clone(&token.id));
        self.state
            .tokens
            .insert(Arc::clone(&token.id), Arc::clone(&token));
        self.record(Change::PutToken(token));
        Ok(Reply::Done)
    }

    pub(super) fn on_revoke_token(&mut self, caller: &Caller, id: &Arc<str>) -> Result<Reply, Reject> {
        let token = self
            .state
            .tokens
            .get(id)
            .filter(|token| token.user == caller.user || caller.admin);
        if token.is_none() {
            return Err(
                Reject::new(RejectKind::NotFound, format!("there is no token {id}"))
                    .hint("`carrel token list` lists yours"),
            );
        }
        self.delete_token(id);
        Ok(Reply::Done)
    }

    pub(super) fn delete_token(&mut self, id: &Arc<str>) {
        if let Some(token) = self.state.tokens.remove(id) {
            self.state.token_hashes.remove(&token.hash);
            self.record(Change::DeleteToken(Arc::clone(id)));
        }
    }
}
