//! A node's runtime with a containerd of its own, and what the tests start in it.

// Each test program uses a part of it.
#![allow(dead_code)]

use std::fs;
use std::future::Future;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use carrel_core::model::cpus::Binding;
use carrel_core::model::gpu::GpuInfo;
use carrel_core::model::ids::{Generation, JobId, JobKey, SessionId};
use carrel_core::model::time::Timestamp;
use carrel_node::runtime::{
    Container, ContainerRecord, ContainerSpec, ContainerState, LeaseEnd, NetworkMode, Runtime, RuntimeOptions,
};
use carrel_proto::v1::Identity;
use futures::FutureExt;

/// Longest wait for anything; only a failing test waits so long.
pub const PATIENCE: Duration = Duration::from_mins(1);

pub struct Rig {
    pub dir: PathBuf,
    pub options: RuntimeOptions,
    pub runtime: Runtime,
    /// What progress was told, by any call that was given [`Rig::progress`].
    pub told: Mutex<Vec<String>>,
}

/// Runs a test against a runtime of its own, and takes everything down afterwards, come what may.
pub fn with_rig<F: Future<Output = ()>>(
    adjust: impl FnOnce(&mut RuntimeOptions),
    test: impl FnOnce(std::sync::Arc<Rig>) -> F,
) {
    assert!(
        nix::unistd::geteuid().is_root(),
        "these tests start containers: run them as root"
    );
    // Shown for failing tests.
    let _set_before = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::INFO)
        .with_test_writer()
        .try_init();
    let threads = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    threads.block_on(async {
        // Short: sockets lie below it.
        let dir = tempfile::Builder::new().prefix("cr").tempdir_in("/tmp").unwrap();
        // As the agent makes its state directory: others may pass through.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711)).unwrap();
        let mut options = RuntimeOptions::new(dir.path().join("s"), "/bin/busybox");
        options.private_containerd = true;
        options.network = NetworkMode::Loopback;
        options.cdi_dirs = vec![dir.path().join("cdi")];
        adjust(&mut options);
        let runtime = Runtime::open(options.clone()).await.unwrap();
        let rig = Rig {
            dir: dir.path().to_owned(),
            options,
            runtime: runtime.clone(),
            told: Mutex::default(),
        };
        let outcome = AssertUnwindSafe(test(std::sync::Arc::new(rig)))
            .catch_unwind()
            .await;
        let down = runtime.down().await;
        if let Err(panic) = outcome {
            eprintln!(
                "containerd's log: {}",
                fs::read_to_string(dir.path().join("s/containerd.log")).unwrap_or_default()
            );
            resume_unwind(panic);
        }
        down.unwrap();
        assert_eq!(mounts_below(dir.path()), [""; 0], "mounts are left");
    });
}

impl Rig {
    pub fn progress(&self) -> impl Fn(String) + Send + Sync + '_ {
        |line| self.told.lock().unwrap().push(line)
    }

    pub fn was_told(&self, part: &str) -> bool {
        self.told.lock().unwrap().iter().any(|line| line.contains(part))
    }

    /// Imports a root file system of a busybox and nothing else.
    pub async fn import_busybox(&self, name: &str) {
        let path = self.dir.join("busybox.tar");
        fs::write(&path, busybox_layer(&[])).unwrap();
        self.runtime
            .import_image(&path, name, &self.progress())
            .await
            .unwrap();
    }

    pub async fn state(&self, key: JobKey) -> Option<ContainerState> {
        self.runtime
            .get(key)
            .await
            .unwrap()
            .map(|container| container.state)
    }

    /// Waits until process 1 has ended; gives what it wrote.
    pub async fn ended(&self, key: JobKey) -> String {
        eventually(&format!("job {key} ends"), || async {
            matches!(self.state(key).await, Some(ContainerState::Ended(_)))
        })
        .await;
        self.runtime.init_log(key, 1000)
    }

    /// Runs a script to its end and removes it; gives its exit code and output.
    pub async fn run(&self, spec: &ContainerSpec) -> (Option<i32>, String) {
        let key = spec.record.key;
        self.runtime.create(spec, &self.progress()).await.unwrap();
        let output = self.ended(key).await;
        let exit = self.runtime.remove(key).await.unwrap();
        (exit.code, output)
    }

    /// Asserts that nothing of a job is left on the host.
    pub async fn assert_gone(&self, key: JobKey) {
        assert_eq!(self.runtime.get(key).await.unwrap(), None);
        assert!(
            !self.runtime.run_dir(key).parent().unwrap().exists(),
            "the job's directory is left"
        );
        assert!(self.runtime.cgroup_empty(key).await.unwrap());
        let cgroup = self.runtime.cgroup(key);
        for root in fs::read_dir("/sys/fs/cgroup").unwrap() {
            let left = root.unwrap().path().join(cgroup.trim_start_matches('/'));
            assert!(!left.exists(), "{} is left", left.display());
        }
        let name = format!("{}-{}", key.job, key.generation.0);
        let left: Vec<_> = mounts_below(&self.dir)
            .into_iter()
            .filter(|line| line.contains(&name))
            .collect();
        assert_eq!(left, [""; 0], "mounts are left");
    }

    /// Active snapshots, as containerd has them on disk.
    pub fn snapshots(&self) -> usize {
        let dir = self
            .dir
            .join("s/containerd/root/io.containerd.snapshotter.v1.overlayfs/snapshots");
        fs::read_dir(dir).unwrap().count()
    }
}

/// Mount points below a directory.
pub fn mounts_below(dir: &Path) -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    points
        .filter(|point| Path::new(point).starts_with(dir))
        .map(str::to_owned)
        .collect()
}

/// Waits for a condition.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    assert!(waited.await.is_ok(), "it did not come to pass: {what}");
}

/// A job whose process 1 is a shell script, run by the image's busybox.
pub fn job(number: u64, image: &str, script: &str) -> ContainerSpec {
    ContainerSpec {
        record: ContainerRecord {
            key: JobKey {
                job: JobId(number),
                generation: Generation::first_of(1),
            },
            session: None,
            name: format!("job{number}"),
            user: "alice".into(),
            cluster: "0123456789abcdef0123456789abcdef".into(),
            image: image.into(),
            rank: 0,
            gpus: Vec::new(),
            cpus: 1,
            memory_bytes: 128 << 20,
            deadline: Timestamp(1_900_000_000_000),
            nodes: 1,
            started: Timestamp(1_700_000_000_000),
            binding: Binding::default(),
            visible: Vec::new(),
            network: carrel_core::model::gang_network::RankNetwork::Own,
        },
        hostname: format!("job{number}"),
        aliases: Vec::new(),
        address: None,
        gang: None,
        hostfile: String::new(),
        identity: Identity {
            name: "alice".into(),
            uid: 12345,
            gid: 12346,
            groups: vec![12347],
            home: "/home/alice".into(),
            ..Identity::default()
        },
        root: false,
        gpus: Vec::new(),
        others: Vec::new(),
        shm: None,
        pids_limit: 100,
        env: Vec::new(),
        mounts: Vec::new(),
        hosts: Vec::new(),
        script: None,
        init_config: b"configuration".to_vec(),
        lease: LeaseEnd::none(),
        command: Some(["/bin/busybox", "sh", "-c", script].map(str::to_owned).to_vec()),
    }
}

/// A run of a session.
pub fn run_of(session: u64, number: u64, image: &str, script: &str) -> ContainerSpec {
    let mut spec = job(number, image, script);
    spec.record.session = Some(SessionId(session));
    spec
}

/// Gives up a start `polls` wake-ups after progress told of `point`, unless it is done by then.
pub async fn cut_off(rig: &Rig, spec: &ContainerSpec, point: &str, polls: usize) {
    use std::sync::atomic::{AtomicBool, Ordering};
    let reached = AtomicBool::new(false);
    let progress = |line: String| {
        if line.contains(point) {
            reached.store(true, Ordering::SeqCst);
        }
    };
    let mut left = polls;
    let mut start = Box::pin(rig.runtime.create(spec, &progress));
    std::future::poll_fn(|context| {
        if reached.load(Ordering::SeqCst) {
            if left == 0 {
                return std::task::Poll::Ready(());
            }
            left -= 1;
        }
        start.as_mut().poll(context).map(|started| {
            if let Err(error) = started {
                // A start that was cut off after process 1 ran is not repeated by this runtime.
                assert!(error.to_string().contains("has run on this node"), "{error:#}");
            }
        })
    })
    .await;
    // Gives it up: it holds the job's lock.
    drop(start);
    // What is not running is cleared as the agent's restart would find it; what runs is ended.
    if matches!(
        rig.state(spec.record.key).await,
        Some(ContainerState::Running { .. } | ContainerState::Lost)
    ) {
        rig.runtime.remove(spec.record.key).await.unwrap();
    }
}

pub fn is_running(container: &Container) -> bool {
    matches!(container.state, ContainerState::Running { .. })
}

/// A tar archive of a busybox and some files.
pub fn busybox_layer(files: &[(&str, &[u8])]) -> Vec<u8> {
    let busybox = fs::read("/bin/busybox").expect("install the package busybox-static");
    let mut all: Vec<(&str, &[u8])> = vec![("bin/busybox", &busybox)];
    all.extend(files);
    archive(&all)
}

/// A tar archive.
pub fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o755);
        header.set_cksum();
        builder.append_data(&mut header, path, *bytes).unwrap();
    }
    builder.into_inner().unwrap()
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub fn digest(bytes: &[u8]) -> String {
    use sha2::Digest;
    let hash = sha2::Sha256::digest(bytes);
    hash.iter()
        .fold("sha256:".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

/// Go's name of this architecture.
pub fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") {
        "arm64"
    } else {
        "amd64"
    }
}

pub fn described_gpu(index: u32) -> GpuInfo {
    GpuInfo {
        uuid: format!("GPU-0000000{index}-1111-2222-3333-444444444444")
            .parse()
            .unwrap(),
        index,
        model: "NVIDIA H100 80GB HBM3".into(),
        memory_bytes: 80 << 30,
        pci_address: String::new(),
        numa_node: None,
        minor: Some(index),
        mig: None,
        sharing: None,
        drained: None,
        cpu_affinity: String::new(),
        nvlink_version: 4,
    }
}
