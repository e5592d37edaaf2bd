//! The agent, whole, against a broker that says what the test wants said.

mod broker;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use broker::{Broker, CLUSTER, PATIENCE, TOKEN};
use carrel_node::config::Config;
use carrel_node::gpu::{HostSizes, NvmlSource};
use carrel_node::identity::{JoinOptions, Membership};
use carrel_node::runtime::{NetworkMode, Runtime, RuntimeOptions};
use carrel_node::service;
use carrel_proto::v1;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

fn join_options(broker: &Broker) -> JoinOptions {
    JoinOptions {
        broker: broker.uri.clone(),
        token: TOKEN.into(),
        node: "n1".parse().expect("a name"),
        ca_fingerprint: broker.fingerprint.clone(),
    }
}

/// A host with a containerd of its own, which goes with it.
struct Host {
    dir: TempDir,
    config: Config,
    agent: Option<(CancellationToken, JoinHandle<anyhow::Result<()>>)>,
}

impl Host {
    async fn joined(broker: &Broker, init: &Path) -> Self {
        // Shown for failing tests; a test before may have set it.
        tracing_subscriber::fmt()
            .with_max_level(tracing::Level::INFO)
            .with_test_writer()
            .try_init()
            .ok();
        // Short: sockets lie below it.
        let dir = tempfile::Builder::new()
            .prefix("ca")
            .tempdir_in("/tmp")
            .expect("a directory");
        let state = dir.path().join("s");
        let membership = Membership::join(&join_options(broker)).await.expect("joined");
        membership.store(&state).expect("kept");
        let mut runtime = RuntimeOptions::new(&state, init);
        runtime.private_containerd = true;
        runtime.network = NetworkMode::Loopback;
        runtime.pids_limit = 200;
        let config = Config {
            state,
            nvml: NvmlSource {
                library: Some("/nonexistent/libnvidia-ml.so.1".into()),
                sizes: HostSizes {
                    cpus: Some(4),
                    memory_bytes: Some(4 << 30),
                    ..HostSizes::default()
                },
                ..NvmlSource::default()
            },
            runtime,
            heartbeat: Duration::from_millis(100),
            measure_every: Duration::from_millis(200),

            allow_root: None,
        };
        Self {
            dir,
            config,
            agent: None,
        }
    }

    fn start(&mut self) {
        let membership = Membership::load(&self.config.state)
            .expect("readable")
            .expect("joined");
        let cancel = CancellationToken::new();
        let agent = tokio::spawn(service::run(self.config.clone(), membership, cancel.clone()));
        self.agent = Some((cancel, agent));
    }

    /// As by SIGTERM.
    async fn stop(&mut self) {
        if let Some((cancel, agent)) = self.agent.take() {
            cancel.cancel();
            let ended = tokio::time::timeout(PATIENCE, agent).await.expect("ends in time");
            ended.expect("no panic").expect("no error");
        }
    }

    async fn down(mut self) {
        self.stop().await;
        let runtime = Runtime::open(self.config.runtime.clone())
            .await
            .expect("a runtime");
        runtime.down().await.expect("down");
        drop(self.dir);
    }
}

fn desired(number: u64, generation: u64) -> v1::Desired {
    v1::Desired {
        cluster: CLUSTER.into(),
        incarnation: Some(v1::Incarnation { number, nonce: 7 }),
        generation,
        lease_ms: 600_000,
        ..v1::Desired::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_needs_the_right_ca_and_token_and_keeps_its_key_private() {
    let broker = Broker::start().await;
    let good = join_options(&broker);
    let wrong_ca = JoinOptions {
        ca_fingerprint: format!("sha256:{}", "ab".repeat(32)),
        ..join_options(&broker)
    };
    let error = Membership::join(&wrong_ca).await.err().expect("refused");
    assert!(format!("{error:#}").contains("another fingerprint"), "{error:#}");
    let wrong_token = JoinOptions {
        token: "carrel_node_other".into(),
        ..join_options(&broker)
    };
    let error = Membership::join(&wrong_token).await.err().expect("refused");
    assert!(
        format!("{error:#}").contains("this join token is not known"),
        "{error:#}"
    );

    let membership = Membership::join(&good).await.expect("joined");
    assert_eq!(
        (membership.node.as_str(), membership.cluster.as_str()),
        ("n1", CLUSTER)
    );
    let dir = tempfile::tempdir().expect("a directory");
    let state = dir.path().join("s");
    membership.store(&state).expect("kept");
    let mode = fs::metadata(state.join("identity.json"))
        .expect("a file")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(Membership::load(&state).expect("readable").expect("there") == membership);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_reports_obeys_the_newest_broker_only_and_comes_back() {
    let mut broker = Broker::start().await;
    let mut host = Host::joined(&broker, Path::new("/bin/busybox")).await;
    host.start();
    let first = broker.observed("the first report", |_| true).await;
    assert_eq!(
        (first.node.as_str(), first.incarnation, first.cluster.as_str()),
        ("n1", None, "")
    );
    let inventory = first.inventory.expect("an inventory");
    assert_eq!((inventory.cpus, inventory.memory_bytes), (4, 4 << 30));
    assert!(
        inventory.gpu_note.contains("/nonexistent"),
        "a node without NVML says so: {}",
        inventory.gpu_note
    );

    broker.say(desired(5, 3));
    let accepted =
        |number: u64| move |o: &v1::Observed| o.incarnation.is_some_and(|accepted| accepted.number == number);
    broker
        .observed("incarnation 5", |o| accepted(5)(o) && o.generation == 3)
        .await;
    let stale = v1::Desired {
        generation: 9,
        ..desired(4, 9)
    };
    broker.say(stale);
    let seen = broker.reports();
    broker
        .observed("a report after the stale one", |o| {
            o.seq > 0 && broker.reports() > seen + 2
        })
        .await;
    let last = broker.observed("a report", |_| true).await;
    assert!(
        accepted(5)(&last) && last.generation == 3,
        "an overtaken broker is not obeyed: {last:?}"
    );

    broker.stop().await;
    broker.again().await;
    broker.say(desired(6, 1));
    broker
        .observed("incarnation 6 over a new link", |o| {
            accepted(6)(o) && o.generation == 1
        })
        .await;

    broker.stop().await;
    broker.refuse(Some(tonic::Status::unauthenticated(
        "the certificate of node n1 was replaced or revoked",
    )));
    broker.again().await;
    host.down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_renews_itself_and_is_used_after() {
    let broker = Broker::start().await;
    // Made ten seconds ago, good for five more: past two thirds.
    broker.validity(Duration::from_secs(5));
    let mut host = Host::joined(&broker, Path::new("/bin/busybox")).await;
    let before = fs::read(host.config.state.join("identity.json")).expect("kept");
    broker.validity(Duration::from_hours(24));
    host.start();
    broker.signed(2).await;
    broker.observed("a report", |_| true).await;
    let path = host.config.state.join("identity.json");
    let renewed = tokio::time::timeout(PATIENCE, async {
        while fs::read(&path).expect("kept") == before {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    renewed.await.expect("the renewed certificate is kept");
    host.down().await;
}

/// The static carrel-init; none: it is not built.
fn carrel_init() -> Option<PathBuf> {
    let named = std::env::var_os("CARREL_INIT").map(PathBuf::from);
    let arch = std::env::consts::ARCH;
    let built = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(format!("../target/{arch}-unknown-linux-musl/debug/carrel-init"));
    named.or(Some(built)).filter(|path| path.is_file())
}

fn session(job: u64, host_certificate: &str) -> v1::DesiredJob {
    let deadline = std::time::SystemTime::now() + Duration::from_hours(1);
    let deadline = deadline
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after the epoch");
    v1::DesiredJob {
        job,
        generation: job,
        session: 1,
        name: "dev".into(),
        identity: Some(v1::Identity {
            name: "alice".into(),
            uid: 12_345,
            gid: 12_345,
            home: "/home/alice".into(),
            ..v1::Identity::default()
        }),
        image: "local/busybox".into(),
        cpus: 1,
        memory_bytes: 256 << 20,
        env: vec![v1::EnvVar {
            name: "SLURM_JOB_ID".into(),
            value: job.to_string(),
        }],
        deadline_ms: i64::try_from(deadline.as_millis()).expect("in range"),
        ssh: Some(v1::SshAccess {
            host_certificate: host_certificate.into(),
            ..v1::SshAccess::default()
        }),
        ..v1::DesiredJob::default()
    }
}

/// A tar archive of a busybox.
fn busybox(path: &Path) {
    let bytes = fs::read("/bin/busybox").expect("install the package busybox-static");
    let mut header = tar::Header::new_gnu();
    header.set_size(bytes.len() as u64);
    header.set_mode(0o755);
    header.set_cksum();
    let mut builder = tar::Builder::new(fs::File::create(path).expect("a file"));
    builder
        .append_data(&mut header, "bin/busybox", bytes.as_slice())
        .expect("written");
    builder.finish().expect("written");
}

fn phase(observed: &v1::Observed, job: u64) -> Option<v1::ObservedPhase> {
    observed
        .jobs
        .iter()
        .find(|seen| seen.job == job)
        .map(v1::ObservedJob::phase)
}

/// The life of a session on its node, with an agent's restart in the middle.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_starts_survives_the_agent_and_ends_by_its_tombstone() {
    let Some(init) = carrel_init() else {
        eprintln!("not tested: carrel-init is not built (./dev test builds it)");
        return;
    };
    let mut broker = Broker::start().await;
    let mut host = Host::joined(&broker, &init).await;
    let archive = host.dir.path().join("busybox.tar");
    busybox(&archive);
    let runtime = Runtime::open(host.config.runtime.clone())
        .await
        .expect("a runtime");
    runtime
        .import_image(&archive, "local/busybox", &|_| {})
        .await
        .expect("imported");
    host.start();
    broker
        .observed("the image", |o| {
            o.images.iter().any(|image| image.contains("local/busybox"))
        })
        .await;

    let root = v1::DesiredJob {
        identity: Some(v1::Identity {
            name: "root".into(),
            home: "/root".into(),
            ..v1::Identity::default()
        }),
        session: 2,
        ..session(2, "")
    };
    let forbidden = Config {
        allow_root: Some(false),
        ..host.config.clone()
    };
    host.stop().await;
    host.config = forbidden;
    host.start();
    broker.say(v1::Desired {
        jobs: vec![session(1, ""), root],
        ..desired(5, 2)
    });
    let up = broker
        .observed("ready", |o| phase(o, 1) == Some(v1::ObservedPhase::Ready))
        .await;
    let host_key = up.jobs[0].host_public_key.clone();
    assert!(host_key.starts_with("ssh-ed25519 "), "{host_key}");
    let refused = broker
        .observed("root", |o| phase(o, 2) == Some(v1::ObservedPhase::Released))
        .await;
    let refused = refused.jobs.iter().find(|job| job.job == 2).expect("reported");
    assert_eq!(refused.cause(), v1::EndCause::StartFailed);
    assert!(refused.detail.contains("user 0"), "{}", refused.detail);

    // Without a broker: the agent is restarted, the container is the same.
    broker.stop().await;
    host.stop().await;
    host.start();
    broker.again().await;
    broker.say(v1::Desired {
        jobs: vec![session(1, "")],
        ..desired(6, 1)
    });
    let up = broker
        .observed("ready again", |o| phase(o, 1) == Some(v1::ObservedPhase::Ready))
        .await;
    assert_eq!(up.jobs[0].host_public_key, host_key, "the same carrel-init");

    let tombstone = v1::Tombstone {
        job: 1,
        generation: 1,
        grace_ms: 5_000,
    };
    broker.say(v1::Desired {
        tombstones: vec![tombstone],
        ..desired(6, 2)
    });
    let gone = broker
        .observed("released", |o| phase(o, 1) == Some(v1::ObservedPhase::Released))
        .await;
    assert_eq!(gone.jobs[0].cause(), v1::EndCause::Tombstone);
    assert!(runtime.list().await.expect("listed").is_empty());
    let removed = v1::Desired {
        removed_sessions: vec![1],
        ..desired(6, 3)
    };
    broker.say(removed);
    broker
        .observed("forgotten, and its files deleted", |o| {
            o.jobs.is_empty() && o.generation == 3
        })
        .await;
    host.down().await;
}
