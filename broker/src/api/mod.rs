//! The users' API, `carrel.v1.Broker`: one call a file.

pub mod convert;
pub mod refuse;
pub mod ticket;

mod add_ssh_key;
mod adopt_found;
mod create_node_token;
mod create_token;
mod end_found;
mod environment;
mod explain_job;
mod extend_session;
mod get_cluster;
mod get_job;
mod get_session;
mod list_found;
mod list_jobs;
mod list_nodes;
mod list_sessions;
mod list_ssh_keys;
mod list_tokens;
mod list_users;
mod open_session;
mod open_stream;
mod put_user;
mod remove_session;
mod remove_ssh_key;
mod revoke_token;
mod sign_ssh_key;
mod stop_session;
mod update_node;
mod watch_session;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use carrel_core::broker::{Input, Reply, SessionRef, State};
use carrel_core::model::ids::SessionId;
use carrel_core::model::session::Session;
use carrel_proto::v1;
use futures::Stream;
use tonic::{Request, Response, Status};
use tracing::Instrument;

use crate::actor::Snapshot;
use crate::auth::Asker;
use crate::context::Context;
use crate::listen::Peer;

/// The service.
#[derive(Debug)]
pub struct Api(pub Arc<Context>);

/// One authenticated call.
struct Call {
    context: Arc<Context>,
    asker: Asker,
}

impl Call {
    fn snapshot(&self) -> Snapshot {
        self.context.handle.snapshot()
    }

    async fn input(&self, input: Input) -> Result<Reply, Status> {
        self.context.handle.call(input).await.map_err(refuse::status)
    }

    /// The session that the caller means, if it is theirs.
    fn session(&self, state: &State, reference: &SessionRef) -> Result<Arc<Session>, Status> {
        state
            .session_for(&self.asker.caller, reference)
            .map(Arc::clone)
            .map_err(refuse::status)
    }

    /// A session as it is now; as `last` says of one that is no more.
    fn session_message(&self, id: SessionId, last: Option<&Session>) -> Result<v1::Session, Status> {
        let snapshot = self.snapshot();
        let state = snapshot.state();
        let session = state.sessions.get(&id).map(|session| &**session).or(last);
        let session = session.ok_or_else(|| Status::not_found("the session was removed meanwhile"))?;
        Ok(convert::session(state, session))
    }

    fn must_administer(&self) -> Result<(), Status> {
        if self.asker.caller.admin {
            return Ok(());
        }
        Err(refuse::with_hint(
            tonic::Code::PermissionDenied,
            format!("{} may not administer this cluster", self.asker.caller.user),
            "ask an administrator of the cluster",
        ))
    }
}

/// Reads how a request names a session.
fn session_ref(text: &str) -> Result<SessionRef, Status> {
    text.parse().map_err(refuse::bad_name)
}

impl Api {
    /// Authenticates a call and answers it.
    async fn answer<Q, A, F>(
        &self,
        name: &'static str,
        request: Request<Q>,
        answer: impl FnOnce(Call, Q) -> F + Send,
    ) -> Result<Response<A>, Status>
    where
        Q: Send,
        F: Future<Output = Result<A, Status>> + Send,
    {
        let asker = self.0.auth.who(Peer::of(&request)?, request.metadata()).await?;
        let span = tracing::info_span!("call", name, user = %asker.caller.user);
        let call = Call {
            context: Arc::clone(&self.0),
            asker,
        };
        let answered = answer(call, request.into_inner()).instrument(span.clone()).await;
        if let Err(status) = &answered {
            tracing::debug!(parent: &span, code = ?status.code(), message = status.message(), "refused");
        }
        answered.map(Response::new)
    }
}

/// The trait's methods, each handed to the function of its name.
macro_rules! calls {
    ($($name:ident: $request:ident -> $response:ident;)*) => {
        #[tonic::async_trait]
        impl v1::broker_server::Broker for Api {
            $(
                async fn $name(
                    &self,
                    request: Request<v1::$request>,
                ) -> Result<Response<v1::$response>, Status> {
                    self.answer(stringify!($name), request, $name::$name).await
                }
            )*

            type WatchSessionStream = Pin<Box<dyn Stream<Item = Result<v1::Session, Status>> + Send>>;

            async fn watch_session(
                &self,
                request: Request<v1::GetSessionRequest>,
            ) -> Result<Response<Self::WatchSessionStream>, Status> {
                self.answer("watch_session", request, watch_session::watch_session).await
            }
        }
    };
}

calls! {
    get_cluster: GetClusterRequest -> Cluster;
    open_session: OpenSessionRequest -> OpenSessionResponse;
    get_session: GetSessionRequest -> Session;
    list_sessions: ListSessionsRequest -> ListSessionsResponse;
    extend_session: ExtendSessionRequest -> Session;
    stop_session: StopSessionRequest -> Session;
    remove_session: RemoveSessionRequest -> RemoveSessionResponse;
    open_stream: OpenStreamRequest -> OpenStreamResponse;
    sign_ssh_key: SignSshKeyRequest -> SignSshKeyResponse;
    get_job: GetJobRequest -> Job;
    list_jobs: ListJobsRequest -> ListJobsResponse;
    explain_job: GetJobRequest -> Explanation;
    list_nodes: ListNodesRequest -> ListNodesResponse;
    list_found: ListFoundRequest -> ListFoundResponse;
    adopt_found: AdoptFoundRequest -> Session;
    end_found: EndFoundRequest -> EndFoundResponse;
    create_node_token: CreateNodeTokenRequest -> CreateNodeTokenResponse;
    update_node: UpdateNodeRequest -> Node;
    create_token: CreateTokenRequest -> CreateTokenResponse;
    list_tokens: ListTokensRequest -> ListTokensResponse;
    revoke_token: RevokeTokenRequest -> RevokeTokenResponse;
    add_ssh_key: AddSshKeyRequest -> AddSshKeyResponse;
    list_ssh_keys: ListSshKeysRequest -> ListSshKeysResponse;
    remove_ssh_key: RemoveSshKeyRequest -> RemoveSshKeyResponse;
    put_user: PutUserRequest -> User;
    list_users: ListUsersRequest -> ListUsersResponse;
}
