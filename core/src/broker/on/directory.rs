//! Users, their roles and their keys.

use std::sync::Arc;

use crate::broker::change::Change;
use crate::broker::input::Caller;
use crate::broker::{Broker, Call, Reject, RejectKind, Reply};
use crate::model::audit::Action;
use crate::model::ids::UserName;
use crate::model::job::Job;
use crate::model::user::{Role, User};

/// SSH keys that one user may have.
const MAX_KEYS: usize = 64;

impl Broker {
    pub(super) fn on_put_user(&mut self, caller: Option<&Caller>, mut user: User) -> Result<Reply, Reject> {
        if let Some(caller) = caller {
            caller.must(Call::PutUser)?;
        }
        self.check_uid(&user)?;
        if let Some(old) = self.state.users.get(&user.name) {
            user.ssh_keys.clone_from(&old.ssh_keys);
            if caller.is_none() {
                // The name service does not know who administers this cluster.
                user.role = old.role;
            }
            if **old == user {
                return Ok(Reply::Done);
            }
        }
        let detail = user_detail(&user);
        let subject = format!("user {}", user.name);
        match caller {
            Some(caller) => self.audit(caller, Action::UserPut, subject, detail),
            None => self.audit_own(None, Action::UserPut, subject, detail + ", from the name service"),
        }
        self.put_user(user);
        Ok(Reply::Done)
    }

    pub(super) fn on_set_role(
        &mut self,
        caller: &Caller,
        name: &UserName,
        role: Role,
    ) -> Result<Reply, Reject> {
        caller.must(Call::SetUserRole)?;
        let Some(user) = self.state.users.get(name).cloned() else {
            return Err(
                Reject::new(RejectKind::NotFound, format!("there is no user {name}"))
                    .hint("`carrel user list` lists them, `carrel user add` creates one"),
            );
        };
        if user.role == role {
            return Ok(Reply::Done);
        }
        let detail = format!("{role} instead of {}", user.role);
        self.audit(caller, Action::UserRole, format!("user {name}"), detail);
        self.put_user(User {
            role,
            ..(*user).clone()
        });
        Ok(Reply::Done)
    }

    /// Refuses a record whose user id is somebody else's.
    pub(super) fn check_uid(&self, user: &User) -> Result<(), Reject> {
        let mut others = self.state.users.values().filter(|other| other.name != user.name);
        match others.find(|other| other.uid == user.uid) {
            Some(other) => Err(Reject::new(
                RejectKind::AlreadyExists,
                format!("user id {} is already that of {}", user.uid, other.name),
            )),
            None => Ok(()),
        }
    }

    pub(super) fn put_user(&mut self, user: User) {
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
        caller.must(Call::AddSshKey)?;
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
        self.audit(caller, Action::KeyAdd, format!("user {}", caller.user), &*key);
        user.ssh_keys.push(key);
        self.put_user(user);
        self.touch_jobs_of(caller);
        Ok(Reply::Done)
    }

    pub(super) fn on_remove_ssh_key(&mut self, caller: &Caller, key: &Arc<str>) -> Result<Reply, Reject> {
        caller.must(Call::RemoveSshKey)?;
        let mut user = self.own_record(caller)?;
        let before = user.ssh_keys.len();
        user.ssh_keys.retain(|own| own != key);
        if user.ssh_keys.len() == before {
            return Err(Reject::new(RejectKind::NotFound, "that key is not registered")
                .hint("`carrel key list` lists yours"));
        }
        self.audit(caller, Action::KeyRemove, format!("user {}", caller.user), &**key);
        self.put_user(user);
        self.touch_jobs_of(caller);
        Ok(Reply::Done)
    }

    /// Who may enter a user's running sessions, and those that are shared with them, changed.
    fn touch_jobs_of(&mut self, caller: &Caller) {
        let held: Vec<_> = self
            .state
            .deadlines
            .iter()
            .filter_map(|(_, id)| self.state.jobs.get(id))
            .filter(|job| job.owner == caller.user || self.is_shared(job, &caller.user))
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

    /// A job of a session that is shared with a user.
    fn is_shared(&self, job: &Job, user: &UserName) -> bool {
        let session = job.session.and_then(|id| self.state.sessions.get(&id));
        session.is_some_and(|session| session.shares.contains_key(user))
    }
}

/// What the audit log says of a user's record.
pub(super) fn user_detail(user: &User) -> String {
    format!("uid {}, gid {}, role {}", user.uid, user.gid, user.role)
}
