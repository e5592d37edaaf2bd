//! Who asks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use carrel_core::broker::{Caller, Input, State};
use carrel_core::model::ids::UserName;
use carrel_core::model::user::User;
use tonic::Status;
use tonic::metadata::MetadataMap;

use crate::actor::{Handle, Refusal};
use crate::api::refuse;
use crate::clock::Clock;
use crate::listen::Peer;
use crate::name_service;
use crate::secret;

/// Who asks, authenticated.
#[derive(Clone, Debug)]
pub struct Asker {
    /// For the core.
    pub caller: Caller,
    /// Their record.
    pub user: Arc<User>,
    /// On this machine: can use Unix sockets.
    pub local: bool,
}

/// Tells who asks.
#[derive(Debug)]
pub struct Auth {
    handle: Handle,
    clock: Arc<Clock>,
    admins: BTreeSet<UserName>,
    own_uid: u32,
    /// Names of user ids that came before: a hint, checked against the directory at each use.
    names: Mutex<BTreeMap<u32, UserName>>,
}

impl Auth {
    /// With the administrators that the operator named.
    pub fn new(handle: Handle, clock: Arc<Clock>, admins: BTreeSet<UserName>) -> Self {
        let own_uid = nix::unistd::geteuid().as_raw();
        Self {
            handle,
            clock,
            admins,
            own_uid,
            names: Mutex::default(),
        }
    }

    /// Who sent a request: the socket's peer, or the bearer of a token.
    pub async fn who(&self, peer: &Peer, metadata: &MetadataMap) -> Result<Asker, Status> {
        match peer {
            Peer::Local { uid } => {
                let user = self.local_user(*uid).await?;
                Ok(self.asker(user, true))
            }
            Peer::Remote { .. } => {
                let user = self.bearer(metadata)?;
                Ok(self.asker(user, false))
            }
        }
    }

    /// The peer is root or the broker's own user, on this machine.
    pub fn is_own(&self, peer: &Peer) -> bool {
        matches!(peer, Peer::Local { uid } if self.is_own_uid(*uid))
    }

    fn is_own_uid(&self, uid: u32) -> bool {
        uid == 0 || uid == self.own_uid
    }

    /// May administer the cluster.
    pub fn is_admin(&self, user: &User) -> bool {
        user.admin || self.is_own_uid(user.uid) || self.admins.contains(&user.name)
    }

    fn asker(&self, user: Arc<User>, local: bool) -> Asker {
        let caller = Caller {
            user: user.name.clone(),
            admin: self.is_admin(&user),
        };
        Asker { caller, user, local }
    }

    async fn local_user(&self, uid: u32) -> Result<Arc<User>, Status> {
        if let Some(user) = self.by_uid(self.handle.snapshot().state(), uid) {
            return Ok(user);
        }
        let looked_up = tokio::task::spawn_blocking(move || name_service::user(uid)).await;
        let found = looked_up.map_err(|error| Status::internal(format!("name service: {error}")))?;
        let user = found.map_err(|error| {
            refuse::unauthenticated(
                format!("you are user id {uid} here, and {error}"),
                "an administrator of the cluster can add you to its directory",
            )
        })?;
        let snapshot = self.handle.snapshot();
        if let Some(other) = snapshot
            .state()
            .users
            .get(&user.name)
            .filter(|other| other.uid != uid)
        {
            return Err(refuse::unauthenticated(
                format!(
                    "user {} has id {uid} on this machine and {} in the cluster",
                    user.name, other.uid
                ),
                "an administrator of the cluster has to settle which is right",
            ));
        }
        tracing::info!(user = %user.name, uid, "a user of this machine came for the first time");
        match self.handle.call(Input::PutUser(None, user.clone())).await {
            Ok(_) => {}
            // Reads go on without room: they do not need the record.
            Err(Refusal::Full(_)) => return Ok(Arc::new(user)),
            Err(refusal) => return Err(refuse::status(refusal)),
        }
        self.by_uid(self.handle.snapshot().state(), uid)
            .ok_or_else(|| Status::aborted("your user record was changed meanwhile: try again"))
    }

    /// The directory's user of that id.
    fn by_uid(&self, state: &State, uid: u32) -> Option<Arc<User>> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let known = names
            .get(&uid)
            .and_then(|name| state.users.get(name))
            .filter(|user| user.uid == uid);
        if let Some(user) = known {
            return Some(Arc::clone(user));
        }
        let found = state.users.values().find(|user| user.uid == uid).cloned();
        match &found {
            Some(user) => names.insert(uid, user.name.clone()),
            None => names.remove(&uid),
        };
        found
    }

    fn bearer(&self, metadata: &MetadataMap) -> Result<Arc<User>, Status> {
        const HINT: &str = "`carrel login` signs in with a token; an administrator can make one";
        let header = metadata
            .get("authorization")
            .and_then(|value| value.to_str().ok());
        let token = header.and_then(|value| {
            let (scheme, token) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then_some(token)
        });
        let Some(token) = token else {
            return Err(refuse::unauthenticated(
                "this address needs a token, and none was given",
                HINT,
            ));
        };
        let snapshot = self.handle.snapshot();
        let state = snapshot.state();
        let record = secret::hash(token, secret::TOKEN_PREFIX)
            .and_then(|hash| state.token_hashes.get(&hash))
            .and_then(|id| state.tokens.get(id));
        let Some(record) = record else {
            return Err(refuse::unauthenticated(
                "this token is not known, or was revoked",
                HINT,
            ));
        };
        if record.expires <= self.clock.now() {
            return Err(refuse::unauthenticated("this token has expired", HINT));
        }
        let user = state.users.get(&record.user);
        user.cloned().ok_or_else(|| {
            refuse::unauthenticated(
                format!("user {} is no longer in the directory", record.user),
                HINT,
            )
        })
    }
}
