//! Who asks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use carrel_core::broker::{Call, Caller, Input, State};
use carrel_core::model::audit::{Action, AuditRecord, Origin};
use carrel_core::model::ids::{JobKey, UserName};
use carrel_core::model::user::{ApiToken, Role, Scope, User};
use carrel_proto::inside;
use tonic::Status;
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};

use crate::actor::{Handle, Refusal};
use crate::api::refuse;
use crate::clock::Clock;
use crate::listen::Peer;
use crate::name_service;
use crate::notes::Notes;
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
    /// How far their token goes; all the way on the Unix socket, and as far as sessions from inside one.
    pub scope: Scope,
}

impl Asker {
    /// Refuses a call that their role, their token, or the job that they ask from does not reach.
    pub fn must(&self, call: Call) -> Result<(), Status> {
        self.caller.must_reach(call).map_err(refuse::status)?;
        let needed = call.needs().scope;
        if self.scope < needed {
            return Err(refuse::with_hint(
                tonic::Code::PermissionDenied,
                format!("this token's scope is {}, and this takes {needed}", self.scope),
                &format!("`carrel token create --scope {needed}` makes one that reaches so far"),
            ));
        }
        self.caller.must(call).map_err(refuse::status)
    }
}

/// Tells who asks.
#[derive(Debug)]
pub struct Auth {
    handle: Handle,
    clock: Arc<Clock>,
    notes: Arc<Notes>,
    admins: BTreeSet<UserName>,
    own_uid: u32,
    /// Names of user ids that came before: a hint, checked against the directory at each use.
    names: Mutex<BTreeMap<u32, UserName>>,
}

impl Auth {
    /// With the administrators that the operator named.
    pub fn new(handle: Handle, clock: Arc<Clock>, notes: Arc<Notes>, admins: BTreeSet<UserName>) -> Self {
        let own_uid = nix::unistd::geteuid().as_raw();
        Self {
            handle,
            clock,
            notes,
            admins,
            own_uid,
            names: Mutex::default(),
        }
    }

    /// Who sent a request: the socket's peer, the bearer of a token, or a job through its node's agent.
    pub async fn who(&self, peer: &Peer, metadata: &MetadataMap) -> Result<Asker, Status> {
        if let Some(job) = metadata.get(inside::HEADER) {
            return match self.inside(peer, job) {
                Ok(asker) => Ok(asker),
                Err(status) => {
                    let origin = match peer {
                        Peer::Remote { node: Some(node), .. } => Origin::Node(node.node.clone()),
                        Peer::Remote { .. } | Peer::Local { .. } => peer.origin(),
                    };
                    Err(self.failed(origin, "job", status).await)
                }
            };
        }
        match peer {
            Peer::Local { uid } => {
                let user = self.local_user(*uid).await?;
                // Root, and whoever can read the broker's store anyway.
                let role = if self.is_own_uid(*uid) {
                    Role::Admin
                } else {
                    self.role(&user)
                };
                Ok(Asker {
                    caller: Caller {
                        user: user.name.clone(),
                        role,
                        origin: Origin::Local(*uid),
                    },
                    user,
                    local: true,
                    scope: Scope::Full,
                })
            }
            Peer::Remote { address, .. } => {
                let origin = Origin::Remote(*address);
                let (user, token) = match self.bearer(metadata) {
                    Ok(found) => found,
                    Err(status) => return Err(self.failed(origin, "token", status).await),
                };
                self.used(&token, &origin).await;
                // A token for less than everything is its user's, and not their office's.
                let role = match token.scope {
                    Scope::Full => self.role(&user),
                    Scope::Read | Scope::Sessions => Role::User,
                };
                Ok(Asker {
                    caller: Caller {
                        user: user.name.clone(),
                        role,
                        origin,
                    },
                    user,
                    local: false,
                    scope: token.scope,
                })
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

    /// What a user may do to the cluster: by their record, or by the broker's configuration.
    pub fn role(&self, user: &User) -> Role {
        if self.admins.contains(&user.name) {
            Role::Admin
        } else {
            user.role
        }
    }

    /// The owner of a job, who asks from inside it. Only the agent of the node that runs it says so.
    fn inside(&self, peer: &Peer, job: &MetadataValue<Ascii>) -> Result<Asker, Status> {
        let Peer::Remote { node: Some(node), .. } = peer else {
            return Err(refuse::unauthenticated(
                "only the agent of a node speaks for a job, with the node's certificate",
                "leave out the header carrel-job",
            ));
        };
        let key: JobKey = job
            .to_str()
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| refuse::invalid("the header carrel-job names no allocation"))?;
        let snapshot = self.handle.snapshot();
        let state = snapshot.state();
        let caller = state
            .caller_inside(&node.node, node.serial.as_str(), key)
            .map_err(refuse::status)?;
        let user = state.users.get(&caller.user).cloned().ok_or_else(|| {
            refuse::unauthenticated(
                format!("user {} is no longer in the directory", caller.user),
                "an administrator of the cluster can add you again",
            )
        })?;
        Ok(Asker {
            caller,
            user,
            local: false,
            scope: Scope::Sessions,
        })
    }

    /// Notes what did not prove who asks.
    async fn failed(&self, origin: Origin, what: &str, status: Status) -> Status {
        let record = AuditRecord::new(None, origin, Action::SignIn, what, status.message());
        self.notes.write(&self.handle, record.refused()).await;
        status
    }

    /// Notes now and then that a token is in use.
    async fn used(&self, token: &ApiToken, origin: &Origin) {
        if token.use_is_due(self.clock.now()) {
            let input = Input::UseToken(Arc::clone(&token.id), origin.clone());
            if let Err(error) = self.handle.call(input).await {
                tracing::debug!(token = %token.id, %error, "a token's use is not kept");
            }
        }
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

    fn bearer(&self, metadata: &MetadataMap) -> Result<(Arc<User>, Arc<ApiToken>), Status> {
        const HINT: &str = "`carrel login` signs in";
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
        let user = state.users.get(&record.user).cloned();
        let user = user.ok_or_else(|| {
            refuse::unauthenticated(
                format!("user {} is no longer in the directory", record.user),
                HINT,
            )
        })?;
        Ok((user, Arc::clone(record)))
    }
}
