//! A broker that holds one session and does as it is told.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use carrel_proto::v1::broker_server::{Broker, BrokerServer};
use carrel_proto::v1::{self, JobState, SessionState};
use russh::keys::ssh_key::certificate::{Builder, CertType};
use russh::keys::{Algorithm, PrivateKey, PublicKey};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_stream::wrappers::{UnixListenerStream, WatchStream};
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status};

/// Id of its session's job.
pub const JOB: u64 = 17;

/// What the broker knows, and what it was asked.
#[derive(Clone, Debug, Default)]
pub struct World {
    /// The one session.
    pub session: Option<v1::Session>,
    /// State of a job that is opened.
    pub opened_as: JobState,
    /// Why it waits.
    pub reason: String,
    /// Refuses OpenSession.
    pub refusal: Option<Status>,
    /// Calls that change something, in order.
    pub calls: Vec<String>,
    /// The last OpenSession.
    pub request: Option<v1::OpenSessionRequest>,
    /// What OpenStream answers with.
    pub way: Option<v1::OpenStreamResponse>,
    /// Jump host.
    pub ssh_gateway: String,
    /// What ListNodes answers with.
    pub nodes: Vec<v1::Node>,
}

impl World {
    /// Puts the job into a state, and the session with it.
    pub fn put(&mut self, state: JobState, reason: &str) {
        let session = self.session.as_mut().expect("a session");
        session.set_state(match state {
            JobState::Pending => SessionState::Pending,
            JobState::Configuring => SessionState::Starting,
            JobState::Running => SessionState::Running,
            _ => SessionState::Stopped,
        });
        let job = session.job.as_mut().expect("a job");
        job.set_state(state);
        job.reason = reason.into();
        job.queue_position = if state == JobState::Pending { 2 } else { 0 };
        if matches!(state, JobState::Configuring | JobState::Running) {
            let gpu = |index| v1::Gpu {
                uuid: format!("GPU-{index}"),
                index,
                model: "NVIDIA H100 80GB HBM3".into(),
                isolation: "exclusive".into(),
                ..v1::Gpu::default()
            };
            job.started_ms = Some(1_767_225_601_000);
            job.nodes = vec![v1::NodeAllocation {
                node: "h100-01".into(),
                gpus: (0..4).map(gpu).collect(),
                cpus: 32,
                memory_bytes: 256 << 30,
                fence: Some(v1::FenceReport {
                    checks: 41,
                    micros: 1_234,
                }),
                ..Default::default()
            }];
        }
    }

    fn open(&mut self, request: &v1::OpenSessionRequest) -> bool {
        let live = self
            .session
            .as_ref()
            .is_some_and(|s| s.state() != SessionState::Stopped);
        if live {
            return false;
        }
        let name = if request.name.is_empty() {
            format!("alloc-{JOB}")
        } else {
            request.name.clone()
        };
        let old = self
            .session
            .take()
            .and_then(|s| s.job)
            .map_or(JOB - 1, |job| job.id);
        let spec = request.spec.clone().unwrap_or_default();
        self.session = Some(v1::Session {
            id: 5,
            host_principal: format!("{name}.alice.carrel"),
            user: "alice".into(),
            image: "local/debian".into(),
            created_ms: 1_767_225_600_000,
            ephemeral: request.ephemeral,
            job: Some(v1::Job {
                id: old + 1,
                name: name.clone(),
                kind: v1::JobKind::Interactive.into(),
                user: "alice".into(),
                submitted_ms: 1_767_225_600_000,
                session: 5,
                request: spec.resources,
                time_limit_s: 3600,
                isolation: "exclusive".into(),
                ..Default::default()
            }),
            called: name.clone(),
            name,
            ..Default::default()
        });
        let (state, reason) = (self.opened_as, self.reason.clone());
        self.put(state, &reason);
        true
    }
}

/// The running broker. Dropping it closes its socket.
pub struct Fake {
    world: Arc<watch::Sender<World>>,
    runtime: tokio::runtime::Runtime,
    server: Mutex<Option<tokio::task::JoinHandle<()>>>,
    /// Its directory, also the user's home.
    pub dir: tempfile::TempDir,
}

impl Fake {
    /// Starts one whose jobs begin in a state.
    pub fn start(opened_as: JobState) -> Self {
        let world = World {
            opened_as,
            ..World::default()
        };
        let fake = Self {
            world: Arc::new(watch::Sender::new(world)),
            runtime: tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .expect("a runtime"),
            server: Mutex::new(None),
            dir: tempfile::tempdir().expect("a directory"),
        };
        fake.serve();
        fake
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("broker.sock")
    }

    /// Serves, again after [`stop`](Self::stop).
    pub fn serve(&self) {
        let _guard = self.runtime.enter();
        std::fs::remove_file(self.socket()).ok();
        let listener = UnixListener::bind(self.socket()).expect("a socket");
        let service = Service {
            world: Arc::clone(&self.world),
            ca: Arc::new(ca()),
        };
        let server = tonic::transport::Server::builder()
            .add_service(BrokerServer::new(service))
            .serve_with_incoming(UnixListenerStream::new(listener));
        let server = self.runtime.spawn(async { server.await.expect("it serves") });
        *self.server.lock().expect("no panic") = Some(server);
    }

    /// Cuts every connection, as a broker that dies does.
    pub fn stop(&self) {
        if let Some(server) = self.server.lock().expect("no panic").take() {
            server.abort();
            // Its connections are tasks of their own, which end with their streams.
            self.world.send_modify(|world| world.calls.push("cut".into()));
        }
        std::fs::remove_file(self.socket()).ok();
    }

    /// Changes what it knows.
    pub fn change(&self, change: impl FnOnce(&mut World)) {
        self.world.send_modify(change);
    }

    /// What it knows.
    pub fn world(&self) -> World {
        self.world.borrow().clone()
    }

    /// The runtime, for a test's own servers.
    pub fn runtime(&self) -> &tokio::runtime::Runtime {
        &self.runtime
    }
}

fn ca() -> PrivateKey {
    PrivateKey::random(&mut rand::rng(), Algorithm::Ed25519).expect("a key")
}

struct Service {
    world: Arc<watch::Sender<World>>,
    ca: Arc<PrivateKey>,
}

type Answer<T> = Result<Response<T>, Status>;
type Sessions = Pin<Box<dyn Stream<Item = Result<v1::Session, Status>> + Send>>;

impl Service {
    fn session(&self, name: &str) -> Result<v1::Session, Status> {
        let world = self.world.borrow();
        let found = world
            .session
            .as_ref()
            .filter(|s| s.name == name || format!("#{}", s.id) == name);
        found
            .cloned()
            .ok_or_else(|| Status::not_found(format!("there is no session {name}")))
    }

    fn not_here<T>() -> Answer<T> {
        Err(Status::unimplemented("not in this test"))
    }
}

#[tonic::async_trait]
impl Broker for Service {
    async fn get_cluster(&self, _: Request<v1::GetClusterRequest>) -> Answer<v1::Cluster> {
        let user = v1::User {
            name: "alice".into(),
            uid: 1001,
            home: "/home/alice".into(),
            ..Default::default()
        };
        Ok(Response::new(v1::Cluster {
            id: "c0ffee00c0ffee00c0ffee00c0ffee00".into(),
            name: "test".into(),
            version: "9.9.9".into(),
            user: Some(user),
            host_cas: vec![self.ca.public_key().to_openssh().expect("a key")],
            domain: "carrel".into(),
            ssh_gateway: self.world.borrow().ssh_gateway.clone(),
            ..Default::default()
        }))
    }

    async fn open_session(
        &self,
        request: Request<v1::OpenSessionRequest>,
    ) -> Answer<v1::OpenSessionResponse> {
        let request = request.into_inner();
        if let Some(refusal) = &self.world.borrow().refusal {
            return Err(refusal.clone());
        }
        let mut started = false;
        self.world.send_modify(|world| {
            world.calls.push("open".into());
            world.request = Some(request.clone());
            started = world.open(&request);
        });
        Ok(Response::new(v1::OpenSessionResponse {
            session: self.world.borrow().session.clone(),
            started,
        }))
    }

    async fn get_session(&self, request: Request<v1::GetSessionRequest>) -> Answer<v1::Session> {
        self.session(&request.get_ref().name).map(Response::new)
    }

    type WatchSessionStream = Sessions;

    async fn watch_session(&self, request: Request<v1::GetSessionRequest>) -> Answer<Sessions> {
        self.session(&request.get_ref().name)?;
        let changes = WatchStream::new(self.world.subscribe());
        let cuts = self
            .world
            .borrow()
            .calls
            .iter()
            .filter(|call| *call == "cut")
            .count();
        let sessions = changes
            .take_while(move |world| world.calls.iter().filter(|call| *call == "cut").count() == cuts)
            .filter_map(|world| world.session.map(Ok));
        Ok(Response::new(Box::pin(sessions)))
    }

    async fn list_sessions(&self, _: Request<v1::ListSessionsRequest>) -> Answer<v1::ListSessionsResponse> {
        let sessions = self.world.borrow().session.iter().cloned().collect();
        Ok(Response::new(v1::ListSessionsResponse { sessions }))
    }

    async fn list_history(&self, _: Request<v1::ListHistoryRequest>) -> Answer<v1::ListHistoryResponse> {
        Self::not_here()
    }

    async fn get_usage(&self, _: Request<v1::GetUsageRequest>) -> Answer<v1::GetUsageResponse> {
        Self::not_here()
    }

    async fn extend_session(&self, request: Request<v1::ExtendSessionRequest>) -> Answer<v1::Session> {
        let request = request.into_inner();
        let mut session = self.session(&request.name)?;
        self.world
            .send_modify(|world| world.calls.push(format!("extend by {}", request.add_s)));
        if let Some(job) = &mut session.job {
            job.deadline_ms = Some(1_767_232_800_000);
        }
        Ok(Response::new(session))
    }

    async fn stop_session(&self, request: Request<v1::StopSessionRequest>) -> Answer<v1::Session> {
        let request = request.into_inner();
        let session = self.session(&request.name)?;
        self.world.send_modify(|world| {
            world
                .calls
                .push(format!("stop {} job {}", session.name, request.job));
            world.put(JobState::Cancelled, "stopped by its user");
        });
        self.session(&request.name).map(Response::new)
    }

    async fn remove_session(
        &self,
        request: Request<v1::RemoveSessionRequest>,
    ) -> Answer<v1::RemoveSessionResponse> {
        let session = self.session(&request.get_ref().name)?;
        self.world.send_modify(|world| {
            world.calls.push(format!("remove {}", session.name));
            world.session = None;
        });
        Ok(Response::new(v1::RemoveSessionResponse {}))
    }

    async fn share_session(&self, request: Request<v1::ShareSessionRequest>) -> Answer<v1::Session> {
        let request = request.into_inner();
        let mut session = self.session(&request.name)?;
        let (user, mode) = (request.user.clone(), request.mode);
        session.shares.push(v1::Share { user, mode });
        self.world.send_modify(|world| {
            let mode = request.mode().as_str_name();
            world
                .calls
                .push(format!("share {} with {} {mode}", session.name, request.user));
            world.session = Some(session.clone());
        });
        Ok(Response::new(session))
    }

    async fn unshare_session(&self, request: Request<v1::UnshareSessionRequest>) -> Answer<v1::Session> {
        let request = request.into_inner();
        let mut session = self.session(&request.name)?;
        session.shares.retain(|share| share.user != request.user);
        self.world.send_modify(|world| {
            world
                .calls
                .push(format!("unshare {} with {}", session.name, request.user));
            world.session = Some(session.clone());
        });
        Ok(Response::new(session))
    }

    async fn set_user_role(&self, _: Request<v1::SetUserRoleRequest>) -> Answer<v1::User> {
        Self::not_here()
    }

    type ReadAuditStream = Pin<Box<dyn Stream<Item = Result<v1::AuditRecord, Status>> + Send>>;

    async fn read_audit(&self, request: Request<v1::ReadAuditRequest>) -> Answer<Self::ReadAuditStream> {
        let request = request.into_inner();
        let asked = format!("audit user={} action={}", request.user, request.action);
        self.world.send_modify(|world| world.calls.push(asked));
        let record = v1::AuditRecord {
            number: 4,
            at_ms: 1_767_225_600_000,
            user: "alice".into(),
            origin: "uid 1001".into(),
            action: "share".into(),
            subject: "session dev.alice".into(),
            outcome: "done".into(),
            detail: "with bob, ro".into(),
        };
        Ok(Response::new(Box::pin(tokio_stream::once(Ok(record)))))
    }

    async fn open_stream(&self, request: Request<v1::OpenStreamRequest>) -> Answer<v1::OpenStreamResponse> {
        let session = self.session(&request.get_ref().name)?;
        if session.state() != SessionState::Running {
            return Err(Status::failed_precondition(format!(
                "session {} is not running",
                session.name
            )));
        }
        self.world
            .borrow()
            .way
            .clone()
            .map(Response::new)
            .ok_or_else(|| Status::internal("no way in this test"))
    }

    async fn sign_ssh_key(&self, request: Request<v1::SignSshKeyRequest>) -> Answer<v1::SignSshKeyResponse> {
        let key = PublicKey::from_openssh(&request.get_ref().public_key).expect("a key");
        self.world.send_modify(|world| world.calls.push("sign".into()));
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .expect("a clock")
            .as_secs();
        let mut builder =
            Builder::new_with_random_nonce(&mut rand::rng(), key.key_data().clone(), now - 60, now + 43_200)
                .expect("times");
        builder.cert_type(CertType::User).expect("a type");
        builder.valid_principal("alice").expect("a principal");
        let certificate = builder
            .sign(&*self.ca)
            .expect("a signature")
            .to_openssh()
            .expect("text");
        Ok(Response::new(v1::SignSshKeyResponse {
            certificate,
            expires_ms: 0,
            user: "alice".into(),
        }))
    }

    async fn get_job(&self, request: Request<v1::GetJobRequest>) -> Answer<v1::Job> {
        let world = self.world.borrow();
        let job = world
            .session
            .as_ref()
            .and_then(|s| s.job.clone())
            .filter(|job| job.id == request.get_ref().id);
        job.map(Response::new)
            .ok_or_else(|| Status::not_found("there is no such job"))
    }

    async fn list_jobs(&self, _: Request<v1::ListJobsRequest>) -> Answer<v1::ListJobsResponse> {
        let world = self.world.borrow();
        let live = world
            .session
            .iter()
            .filter(|s| s.state() != SessionState::Stopped);
        Ok(Response::new(v1::ListJobsResponse {
            jobs: live.filter_map(|s| s.job.clone()).collect(),
        }))
    }

    async fn explain_job(&self, request: Request<v1::GetJobRequest>) -> Answer<v1::Explanation> {
        let job = self.get_job(request).await?.into_inner();
        Ok(Response::new(v1::Explanation {
            job: Some(job),
            summary: "It runs.".into(),
            seats: vec![v1::Seat {
                worst_link: "NV18".into(),
                ..Default::default()
            }],
            ..Default::default()
        }))
    }

    async fn plan_session(&self, request: Request<v1::PlanSessionRequest>) -> Answer<v1::Plan> {
        let spec = request.into_inner().spec.unwrap_or_default();
        Ok(Response::new(v1::Plan {
            choices: vec![v1::Choice {
                request: spec.resources,
                now: true,
                ..Default::default()
            }],
            ..Default::default()
        }))
    }

    async fn list_nodes(&self, _: Request<v1::ListNodesRequest>) -> Answer<v1::ListNodesResponse> {
        Ok(Response::new(v1::ListNodesResponse {
            nodes: self.world.borrow().nodes.clone(),
        }))
    }

    async fn create_node_token(
        &self,
        _: Request<v1::CreateNodeTokenRequest>,
    ) -> Answer<v1::CreateNodeTokenResponse> {
        Ok(Response::new(v1::CreateNodeTokenResponse {
            token: "node-secret".into(),
            expires_ms: 0,
            ca_fingerprint: "sha256:00".into(),
            broker: "https://head:7070".into(),
        }))
    }

    async fn submit_job(&self, _: Request<v1::SubmitJobRequest>) -> Answer<v1::Job> {
        Self::not_here()
    }

    async fn requeue_job(&self, _: Request<v1::GetJobRequest>) -> Answer<v1::Job> {
        Self::not_here()
    }

    async fn signal_job(&self, _: Request<v1::SignalJobRequest>) -> Answer<v1::Job> {
        Self::not_here()
    }

    async fn cancel_job(&self, _: Request<v1::GetJobRequest>) -> Answer<v1::Job> {
        Self::not_here()
    }

    type WatchJobStream = Pin<Box<dyn Stream<Item = Result<v1::Job, Status>> + Send>>;

    async fn watch_job(&self, _: Request<v1::GetJobRequest>) -> Answer<Self::WatchJobStream> {
        Self::not_here()
    }

    async fn open_log(&self, _: Request<v1::OpenLogRequest>) -> Answer<v1::OpenStreamResponse> {
        Self::not_here()
    }

    async fn update_job(&self, _: Request<v1::UpdateJobRequest>) -> Answer<v1::Job> {
        Self::not_here()
    }

    async fn update_node(&self, _: Request<v1::UpdateNodeRequest>) -> Answer<v1::Node> {
        Self::not_here()
    }

    async fn list_found(&self, _: Request<v1::ListFoundRequest>) -> Answer<v1::ListFoundResponse> {
        Self::not_here()
    }

    async fn adopt_found(&self, _: Request<v1::AdoptFoundRequest>) -> Answer<v1::Session> {
        Self::not_here()
    }

    async fn end_found(&self, _: Request<v1::EndFoundRequest>) -> Answer<v1::EndFoundResponse> {
        Self::not_here()
    }

    async fn create_token(&self, _: Request<v1::CreateTokenRequest>) -> Answer<v1::CreateTokenResponse> {
        Self::not_here()
    }

    async fn list_tokens(&self, _: Request<v1::ListTokensRequest>) -> Answer<v1::ListTokensResponse> {
        Self::not_here()
    }

    async fn revoke_token(&self, _: Request<v1::RevokeTokenRequest>) -> Answer<v1::RevokeTokenResponse> {
        Self::not_here()
    }

    async fn add_ssh_key(&self, _: Request<v1::AddSshKeyRequest>) -> Answer<v1::AddSshKeyResponse> {
        Self::not_here()
    }

    async fn list_ssh_keys(&self, _: Request<v1::ListSshKeysRequest>) -> Answer<v1::ListSshKeysResponse> {
        Self::not_here()
    }

    async fn remove_ssh_key(&self, _: Request<v1::RemoveSshKeyRequest>) -> Answer<v1::RemoveSshKeyResponse> {
        Self::not_here()
    }

    async fn put_user(&self, _: Request<v1::PutUserRequest>) -> Answer<v1::User> {
        Self::not_here()
    }

    async fn list_users(&self, _: Request<v1::ListUsersRequest>) -> Answer<v1::ListUsersResponse> {
        Self::not_here()
    }

    async fn list_queue(&self, _: Request<v1::ListQueueRequest>) -> Answer<v1::ListQueueResponse> {
        Self::not_here()
    }

    async fn edit_account(&self, _: Request<v1::EditAccountRequest>) -> Answer<v1::EditResponse> {
        Self::not_here()
    }

    async fn list_accounts(&self, _: Request<v1::ListAccountsRequest>) -> Answer<v1::ListAccountsResponse> {
        Self::not_here()
    }

    async fn edit_qos(&self, _: Request<v1::EditQosRequest>) -> Answer<v1::EditResponse> {
        Self::not_here()
    }

    async fn list_qos(&self, _: Request<v1::ListQosRequest>) -> Answer<v1::ListQosResponse> {
        Self::not_here()
    }

    async fn edit_partition(&self, _: Request<v1::EditPartitionRequest>) -> Answer<v1::EditResponse> {
        Self::not_here()
    }

    async fn list_partitions(
        &self,
        _: Request<v1::ListPartitionsRequest>,
    ) -> Answer<v1::ListPartitionsResponse> {
        Self::not_here()
    }

    async fn edit_reservation(&self, _: Request<v1::EditReservationRequest>) -> Answer<v1::EditResponse> {
        Self::not_here()
    }

    async fn list_reservations(
        &self,
        _: Request<v1::ListReservationsRequest>,
    ) -> Answer<v1::ListReservationsResponse> {
        Self::not_here()
    }
}
