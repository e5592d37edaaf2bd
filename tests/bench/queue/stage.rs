//! A cluster for jobs to wait in, and clients of its API.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use carrel_proto::v1::broker_client::BrokerClient;
use carrel_proto::v1::{
    self, GetJobRequest, GetSessionRequest, JobState, OpenSessionRequest, ResourceRequest, SessionSpec,
    StopSessionRequest, SubmitJobRequest,
};
use carrel_tests::cluster::{Cluster, Options as ClusterOptions};
use carrel_tests::programs::Profile;
use hyper_util::rt::TokioIo;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};

/// GPUs of each described host.
pub const GPUS: u32 = 8;
/// Clients at once where there are many.
pub const CLIENTS: u64 = 16;
/// Time limits, hours.
const HOURS: [u64; 6] = [1, 2, 4, 8, 24, 72];
/// What a job runs: it ends when it is told to.
const SCRIPT: &str = "#!/bin/sh\nexec sleep 1000000\n";
/// Time limit of what is to outlast everything else.
const LONG: Duration = Duration::from_hours(7 * 24);
/// How long anything may take that is no figure.
const PATIENCE: Duration = Duration::from_mins(2);

/// A client of the API, over the broker's Unix socket.
pub type Api = BrokerClient<Channel>;

/// A running cluster of described hosts.
pub struct Stage {
    /// The cluster.
    pub cluster: Cluster,
    /// Where clients run.
    pub runtime: Runtime,
    submitted: Arc<AtomicU64>,
}

impl Stage {
    /// Starts one with so many nodes of eight GPUs; programs are of this program's own build.
    pub fn start(nodes: usize) -> anyhow::Result<Self> {
        eprintln!("  starting a cluster of {nodes} described HGX H100");
        let profile = if cfg!(debug_assertions) {
            Profile::Debug
        } else {
            Profile::Release
        };
        Ok(Self {
            cluster: Cluster::start(&ClusterOptions {
                hosts: vec![Some("hgx-h100"); nodes],
                profile,
                ..ClusterOptions::default()
            }),
            runtime: tokio::runtime::Builder::new_multi_thread().enable_all().build()?,
            submitted: Arc::default(),
        })
    }

    /// A connection of its own.
    pub fn api(&self) -> anyhow::Result<Api> {
        let socket = self.cluster.root().join("broker/broker.sock");
        self.runtime.block_on(connect(&socket))
    }

    /// Number of the next job.
    pub fn next(&self) -> u64 {
        self.submitted.fetch_add(1, Ordering::Relaxed)
    }

    /// Numbers of next jobs, for a client of its own.
    pub fn numbers(&self) -> impl Fn() -> u64 + Send + use<> {
        let submitted = Arc::clone(&self.submitted);
        move || submitted.fetch_add(1, Ordering::Relaxed)
    }

    /// A session that holds all GPUs of some node, and is there.
    pub fn hold_a_node(&self) -> anyhow::Result<()> {
        let mut api = self.api()?;
        let resources = ResourceRequest {
            nodes: 1,
            gpus_per_node: GPUS,
            ..small()
        };
        self.runtime.block_on(async {
            let session = open(&mut api, "holder", resources, LONG).await?;
            until(&mut api, session, JobState::Running).await
        })
    }

    /// So many jobs submitted through the API by so many clients, each of which waits for its answer before it sends
    /// the next; how long it took from the first to the last answer.
    pub fn submit(
        &self,
        jobs: u64,
        clients: u64,
        mut make: impl FnMut(u64) -> SubmitJobRequest,
    ) -> anyhow::Result<Duration> {
        let mut shares: Vec<Vec<SubmitJobRequest>> = vec![Vec::new(); clients as usize];
        for n in 0..jobs {
            shares[(n % clients) as usize].push(make(self.next()));
        }
        let apis = (0..clients)
            .map(|_| self.api())
            .collect::<anyhow::Result<Vec<_>>>()?;
        let mut tasks = JoinSet::new();
        let begun = Instant::now();
        for (mut api, share) in apis.into_iter().zip(shares) {
            let task = async move {
                for job in share {
                    api.submit_job(job).await.context("submitting")?;
                }
                anyhow::Ok(())
            };
            tasks.spawn_on(task, self.runtime.handle());
        }
        self.runtime.block_on(async {
            while let Some(ended) = tasks.join_next().await {
                ended.context("a client broke")??;
            }
            Ok(begun.elapsed())
        })
    }

    /// `carrel` outside of the sandbox, as this program's own user: started as fast as anything is.
    pub fn command(&self, args: &[&str]) -> Command {
        let carrel = self.cluster.sandbox().program_outside("carrel");
        let home = self.cluster.root().join("home");
        let mut command = Command::new(carrel);
        command
            .args(args)
            .env("CARREL_BROKER", self.cluster.address())
            .env("HOME", &home)
            .env("XDG_CONFIG_HOME", home.join("config"))
            .current_dir("/tmp")
            .stdin(Stdio::null());
        command
    }
}

/// A client over the broker's socket.
pub async fn connect(socket: &Path) -> anyhow::Result<Api> {
    let socket = socket.to_owned();
    let connect = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { Ok::<_, std::io::Error>(TokioIo::new(tokio::net::UnixStream::connect(socket).await?)) }
    });
    // The URI is never dialled; HTTP/2 wants one.
    let channel = Endpoint::from_static("http://broker");
    let channel = channel
        .connect_with_connector(connect)
        .await
        .context("the broker's socket")?;
    Ok(BrokerClient::new(channel))
}

/// What costs a node next to nothing.
pub fn small() -> ResourceRequest {
    ResourceRequest {
        nodes: 1,
        cpus_per_node: 1,
        memory_bytes_per_node: 64 << 20,
        ..ResourceRequest::default()
    }
}

/// A batch job that runs until it is ended.
pub fn job(number: u64, resources: ResourceRequest, time_limit: Duration) -> SubmitJobRequest {
    SubmitJobRequest {
        name: format!("job-{number}"),
        spec: Some(spec(resources, time_limit)),
        script: Some(SCRIPT.into()),
        stdout: "/dev/null".into(),
        submit_host: "bench".into(),
        submit_dir: "/tmp".into(),
        request_key: format!("bench-{number}"),
        ..SubmitJobRequest::default()
    }
}

fn spec(resources: ResourceRequest, time_limit: Duration) -> SessionSpec {
    SessionSpec {
        resources: Some(resources),
        time_limit_s: time_limit.as_secs(),
        workdir: "/tmp".into(),
        ..SessionSpec::default()
    }
}

/// A mixed queue: of ten jobs seven ask for one GPU, and the others for two, four or eight; CPUs, memory and time limits
/// vary. Those that ask for more come after the others, so that whatever GPU comes free is for the first that waits.
pub struct Mixed(SmallRng);

impl Mixed {
    /// The same for the same seed.
    pub fn new(seed: u64) -> Self {
        Self(SmallRng::seed_from_u64(seed))
    }

    /// One more.
    pub fn job(&mut self, number: u64) -> SubmitJobRequest {
        let gpus = match self.0.random_range(0..20) {
            0..14 => 1,
            14..17 => 2,
            17..19 => 4,
            _ => 8,
        };
        let resources = ResourceRequest {
            gpus_per_node: gpus,
            cpus_per_node: gpus * self.0.random_range(1..=8),
            memory_bytes_per_node: u64::from(gpus * self.0.random_range(1..=8)) << 26,
            ..small()
        };
        let hours = HOURS[self.0.random_range(0..HOURS.len())];
        let mut job = job(number, resources, Duration::from_hours(hours));
        if let Some(spec) = job.spec.as_mut().filter(|_| gpus > 1) {
            spec.terms = Some(v1::Terms {
                nice: 1_000_000,
                ..v1::Terms::default()
            });
        }
        job
    }
}

/// Asks for a session that goes with its job.
pub async fn open(
    api: &mut Api,
    name: &str,
    resources: ResourceRequest,
    time_limit: Duration,
) -> anyhow::Result<v1::Session> {
    let request = OpenSessionRequest {
        name: name.into(),
        spec: Some(spec(resources, time_limit)),
        must_start: true,
        request_key: format!("bench-{name}"),
        ephemeral: true,
        start: None,
    };
    let opened = api.open_session(request).await.context("opening a session")?;
    opened.into_inner().session.context("an answer without a session")
}

/// Whether a job holds its resources.
pub fn is_granted(job: &v1::Job) -> bool {
    matches!(job.state(), JobState::Configuring | JobState::Running)
}

/// Watches a session until its job is in a state, at once if it is.
pub async fn until(api: &mut Api, session: v1::Session, wanted: JobState) -> anyhow::Result<()> {
    watch(api, session, |job| job.state() == wanted)
        .await
        .with_context(|| format!("waiting for {wanted:?}"))
}

/// Watches a session until its job is as it should be.
pub async fn watch(
    api: &mut Api,
    session: v1::Session,
    is_so: impl Fn(&v1::Job) -> bool,
) -> anyhow::Result<()> {
    if session.job.as_ref().is_some_and(&is_so) {
        return Ok(());
    }
    let request = GetSessionRequest {
        name: format!("#{}", session.id),
    };
    let watched = async {
        let mut states = api.watch_session(request).await?.into_inner();
        while let Some(session) = states.message().await? {
            let Some(job) = &session.job else { continue };
            if is_so(job) {
                return Ok(());
            }
            let over = !is_granted(job) && job.state() != JobState::Pending;
            ensure!(
                !over,
                "session {} is {}: {}",
                session.name,
                job.state().as_str_name(),
                job.reason
            );
        }
        anyhow::bail!("session {} is gone", session.name)
    };
    let in_time = tokio::time::timeout(PATIENCE, watched).await;
    in_time.context("it does not come to that")?
}

/// Ends a session and waits until it is gone, with all that it held.
pub async fn close(api: &mut Api, session: &v1::Session) -> anyhow::Result<()> {
    let name = format!("#{}", session.id);
    let watched = api.watch_session(GetSessionRequest { name: name.clone() }).await;
    api.stop_session(StopSessionRequest {
        name,
        job: 0,
        exit_code: None,
    })
    .await
    .context("stopping a session")?;
    let mut states = watched?.into_inner();
    let gone = async {
        while states.message().await?.is_some() {}
        anyhow::Ok(())
    };
    tokio::time::timeout(PATIENCE, gone)
        .await
        .context("a session does not end")?
}

/// A job as it is; none: the broker has no such job.
pub async fn get(api: &mut Api, id: u64) -> anyhow::Result<Option<v1::Job>> {
    match api
        .get_job(GetJobRequest {
            id,
            ..GetJobRequest::default()
        })
        .await
    {
        Ok(job) => Ok(Some(job.into_inner())),
        Err(status) if status.code() == tonic::Code::NotFound => Ok(None),
        Err(status) => Err(status.into()),
    }
}
