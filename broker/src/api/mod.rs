//! The users' API, `carrel.v1.Broker`: one call a file.

pub mod convert;
pub mod create_token;
pub mod refuse;
pub mod ticket;

mod add_ssh_key;
mod adopt_found;
mod cancel_job;
mod create_node_token;
mod edit_account;
mod edit_partition;
mod edit_qos;
mod edit_reservation;
mod end_found;
mod environment;
mod explain_job;
mod extend_session;
mod get_cluster;
mod get_job;
mod get_session;
mod get_usage;
mod list_accounts;
mod list_found;
mod list_history;
mod list_jobs;
mod list_nodes;
mod list_partitions;
mod list_qos;
mod list_queue;
mod list_reservations;
mod list_sessions;
mod list_ssh_keys;
mod list_tokens;
mod list_users;
mod open_log;
mod open_session;
mod open_stream;
mod past_jobs;
mod plan_session;
mod put_user;
mod read_audit;
mod remove_session;
mod remove_ssh_key;
mod requeue_job;
mod revoke_token;
mod set_user_role;
mod share_session;
mod sign_ssh_key;
mod signal_job;
mod stop_session;
mod submit_job;
mod unshare_session;
mod update_job;
mod update_node;
mod watch_job;
mod watch_session;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use carrel_core::broker::{Call as Right, Input, Reply, SessionRef, State, queue_position};
use carrel_core::model::array::JobRef;
use carrel_core::model::audit::{Action, AuditRecord};
use carrel_core::model::ids::{JobId, SessionId};
use carrel_core::model::indices::IndexSet;
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
    right: Right,
}

impl Call {
    fn snapshot(&self) -> Snapshot {
        self.context.handle.snapshot()
    }

    async fn input(&self, input: Input) -> Result<Reply, Status> {
        self.context.handle.call(input).await.map_err(refuse::status)
    }

    /// The session that the caller means, if this call may be made of it.
    fn session(&self, state: &State, reference: &SessionRef) -> Result<Arc<Session>, Status> {
        state
            .session_for(&self.asker.caller, reference, self.right)
            .map(Arc::clone)
            .map_err(refuse::status)
    }

    /// Whether the call reaches what is another's.
    fn reaches_others(&self) -> bool {
        self.asker.caller.reaches_others(self.right)
    }

    /// A record of the audit log about what the caller did.
    fn record(&self, action: Action, subject: impl Into<String>, detail: impl Into<String>) -> AuditRecord {
        let caller = &self.asker.caller;
        let user = Some(caller.user.clone());
        AuditRecord::new(user, caller.origin.clone(), action, subject, detail)
    }

    /// A job as it is now.
    async fn job_message(&self, name: &JobRef) -> Result<v1::Job, Status> {
        let snapshot = self.snapshot();
        let state = snapshot.state();
        let job = self.job(state, name).await?;
        Ok(convert::job(state, &job, queue_position(state, job.id)))
    }

    /// A session as it is now; as `last` says of one that is no more.
    fn session_message(&self, id: SessionId, last: Option<&Session>) -> Result<v1::Session, Status> {
        let snapshot = self.snapshot();
        let state = snapshot.state();
        let session = state.sessions.get(&id).map(|session| &**session).or(last);
        let session = session.ok_or_else(|| Status::not_found("the session was removed meanwhile"))?;
        Ok(convert::session(state, session, &self.asker.caller.user))
    }
}

/// Reads how a request names a job, an array or tasks of one.
fn job_ref(id: u64, tasks: &str) -> Result<JobRef, Status> {
    let tasks = match tasks {
        "" => None,
        text => Some(
            text.parse::<IndexSet>()
                .map_err(|error| refuse::invalid(error.to_string()))?,
        ),
    };
    Ok(JobRef {
        job: JobId(id),
        tasks,
    })
}

/// Reads how a request names a session.
fn session_ref(text: &str) -> Result<SessionRef, Status> {
    text.parse().map_err(refuse::bad_name)
}

impl Api {
    /// Authenticates a call, sees that it may be made, and answers it.
    async fn answer<Q, A, F>(
        &self,
        name: &'static str,
        right: Right,
        request: Request<Q>,
        answer: impl FnOnce(Call, Q) -> F + Send,
    ) -> Result<Response<A>, Status>
    where
        Q: Send,
        F: Future<Output = Result<A, Status>> + Send,
    {
        let asker = self.0.auth.who(Peer::of(&request)?, request.metadata()).await?;
        let span = tracing::info_span!("call", name, user = %asker.caller.user);
        let caller = asker.caller.clone();
        let answered = match asker.must(right) {
            Ok(()) => {
                let call = Call {
                    context: Arc::clone(&self.0),
                    asker,
                    right,
                };
                answer(call, request.into_inner()).instrument(span.clone()).await
            }
            Err(status) => Err(status),
        };
        if let Err(status) = &answered {
            tracing::debug!(parent: &span, code = ?status.code(), message = status.message(), "refused");
            if status.code() == tonic::Code::PermissionDenied {
                let (user, origin) = (Some(caller.user), caller.origin);
                let record = AuditRecord::new(user, origin, Action::Denied, name, status.message());
                self.0.note(record.refused()).await;
            }
        }
        answered.map(Response::new)
    }
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The trait's methods, each handed to the function of its name, with what the table of rights
/// (`carrel_core::broker::Call`) says of it.
macro_rules! calls {
    ($($name:ident $right:ident: $request:ident -> $response:ident;)*) => {
        #[tonic::async_trait]
        impl v1::broker_server::Broker for Api {
            $(
                async fn $name(
                    &self,
                    request: Request<v1::$request>,
                ) -> Result<Response<v1::$response>, Status> {
                    self.answer(stringify!($name), Right::$right, request, $name::$name).await
                }
            )*

            type WatchSessionStream = Answers<v1::Session>;

            async fn watch_session(
                &self,
                request: Request<v1::GetSessionRequest>,
            ) -> Result<Response<Self::WatchSessionStream>, Status> {
                self.answer("watch_session", Right::WatchSession, request, watch_session::watch_session)
                    .await
            }

            type WatchJobStream = Answers<v1::Job>;

            async fn watch_job(
                &self,
                request: Request<v1::GetJobRequest>,
            ) -> Result<Response<Self::WatchJobStream>, Status> {
                self.answer("watch_job", Right::WatchJob, request, watch_job::watch_job)
                    .await
            }

            type ReadAuditStream = Answers<v1::AuditRecord>;

            async fn read_audit(
                &self,
                request: Request<v1::ReadAuditRequest>,
            ) -> Result<Response<Self::ReadAuditStream>, Status> {
                self.answer("read_audit", Right::ReadAudit, request, read_audit::read_audit)
                    .await
            }
        }
    };
}

calls! {
    get_cluster GetCluster: GetClusterRequest -> Cluster;
    plan_session PlanSession: PlanSessionRequest -> Plan;
    open_session OpenSession: OpenSessionRequest -> OpenSessionResponse;
    get_session GetSession: GetSessionRequest -> Session;
    list_sessions ListSessions: ListSessionsRequest -> ListSessionsResponse;
    extend_session ExtendSession: ExtendSessionRequest -> Session;
    stop_session StopSession: StopSessionRequest -> Session;
    remove_session RemoveSession: RemoveSessionRequest -> RemoveSessionResponse;
    share_session ShareSession: ShareSessionRequest -> Session;
    unshare_session UnshareSession: UnshareSessionRequest -> Session;
    open_stream OpenStream: OpenStreamRequest -> OpenStreamResponse;
    sign_ssh_key SignSshKey: SignSshKeyRequest -> SignSshKeyResponse;
    submit_job SubmitJob: SubmitJobRequest -> Job;
    requeue_job RequeueJob: GetJobRequest -> Job;
    cancel_job CancelJob: GetJobRequest -> Job;
    signal_job SignalJob: SignalJobRequest -> Job;
    open_log OpenLog: OpenLogRequest -> OpenStreamResponse;
    get_job GetJob: GetJobRequest -> Job;
    list_history ListHistory: ListHistoryRequest -> ListHistoryResponse;
    get_usage GetUsage: GetUsageRequest -> GetUsageResponse;
    list_jobs ListJobs: ListJobsRequest -> ListJobsResponse;
    update_job UpdateJob: UpdateJobRequest -> Job;
    explain_job ExplainJob: GetJobRequest -> Explanation;
    list_nodes ListNodes: ListNodesRequest -> ListNodesResponse;
    list_found ListFound: ListFoundRequest -> ListFoundResponse;
    adopt_found AdoptFound: AdoptFoundRequest -> Session;
    end_found EndFound: EndFoundRequest -> EndFoundResponse;
    create_node_token CreateNodeToken: CreateNodeTokenRequest -> CreateNodeTokenResponse;
    update_node UpdateNode: UpdateNodeRequest -> Node;
    create_token CreateToken: CreateTokenRequest -> CreateTokenResponse;
    list_tokens ListTokens: ListTokensRequest -> ListTokensResponse;
    revoke_token RevokeToken: RevokeTokenRequest -> RevokeTokenResponse;
    add_ssh_key AddSshKey: AddSshKeyRequest -> AddSshKeyResponse;
    list_ssh_keys ListSshKeys: ListSshKeysRequest -> ListSshKeysResponse;
    remove_ssh_key RemoveSshKey: RemoveSshKeyRequest -> RemoveSshKeyResponse;
    put_user PutUser: PutUserRequest -> User;
    set_user_role SetUserRole: SetUserRoleRequest -> User;
    list_users ListUsers: ListUsersRequest -> ListUsersResponse;
    list_queue ListQueue: ListQueueRequest -> ListQueueResponse;
    edit_account EditAccount: EditAccountRequest -> EditResponse;
    list_accounts ListAccounts: ListAccountsRequest -> ListAccountsResponse;
    edit_qos EditQos: EditQosRequest -> EditResponse;
    list_qos ListQos: ListQosRequest -> ListQosResponse;
    edit_partition EditPartition: EditPartitionRequest -> EditResponse;
    list_partitions ListPartitions: ListPartitionsRequest -> ListPartitionsResponse;
    edit_reservation EditReservation: EditReservationRequest -> EditResponse;
    list_reservations ListReservations: ListReservationsRequest -> ListReservationsResponse;
}
