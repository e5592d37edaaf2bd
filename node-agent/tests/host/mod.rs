//! A node for agents' tests: the real program, with tests/fake-nvml as its NVML, its `nvidia-smi` and its
//! `nvidia-cuda-mps-control`, against a broker that says what the test wants said.

// Each test program uses a part of it.
#![allow(dead_code)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use carrel_core::model::ids::{Generation, JobId, JobKey};
use carrel_node::identity::{JoinOptions, Membership};
use carrel_node::runtime::{ContainerState, NetworkMode, Runtime, RuntimeOptions};
use carrel_proto::v1;
use nvidia_ml::host::Host;

use crate::broker::{Broker, CLUSTER, PATIENCE, TOKEN};

/// What cargo and `./dev` build, from this test's place on.
pub fn built(path: &str) -> Option<PathBuf> {
    let deps = std::env::current_exe().expect("this test's path");
    Some(deps.with_file_name(path)).filter(|path| path.is_file())
}

fn init() -> Option<PathBuf> {
    let arch = std::env::consts::ARCH;
    let named = std::env::var_os("CARREL_INIT").map(PathBuf::from);
    let own = || built(&format!("../../{arch}-unknown-linux-musl/debug/carrel-init"));
    named.filter(|path| path.is_file()).or_else(own)
}

/// A node with two H100s, of which the first is in MIG mode.
pub struct Node {
    dir: tempfile::TempDir,
    pub runtime: Runtime,
    broker: Broker,
    agent: Option<Child>,
    generation: u64,
    pub jobs: Vec<v1::DesiredJob>,
    tombstones: Vec<v1::Tombstone>,
}

impl Node {
    /// None: what it takes is not built. In `policy`, DIR is the node's directory; the programs are in it, too.
    pub async fn start(instances: &[&str], policy: &str) -> Option<Self> {
        let fakes = (
            built("../carrel-fake-nvidia-smi"),
            built("../carrel-fake-mps-control"),
        );
        let (Some(init), (Some(smi), Some(mps))) = (init(), fakes) else {
            eprintln!(
                "not tested: carrel-init or the fakes of NVIDIA's programs are not built (./dev test builds them)"
            );
            return None;
        };
        // Short: sockets lie below it.
        let dir = tempfile::Builder::new()
            .prefix("cs")
            .tempdir_in("/tmp")
            .expect("a directory");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711)).expect("open");
        let at = |name: &str| dir.path().join(name);
        // Its own: what it is to fail at stands beside it.
        fs::copy(mps, at("nvidia-cuda-mps-control")).expect("copied");
        let policy = policy.replace("DIR", &dir.path().display().to_string());
        let described = format!(
            "model = \"NVIDIA H100 80GB HBM3\"\nmemory_mib = 81559\nprocesses = \"busy\"\nutilization = \"utilization\"\nmig_state = \"mig\"\n\
             mig_faults = \"faults\"\ncompute_modes = \"modes\"\ntopology = \"\"\"\n\
             \tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tSYS\t0-1\t0\nGPU1\tSYS\t X \t0-1\t0\n\"\"\"\n\
             [[gpus]]\nmig = {{ instances = {instances:?} }}\n"
        );
        fs::write(at("host.toml"), described).expect("a description");
        let host = Host::read(&at("host.toml"), "").expect("a host");
        fs::create_dir(at("cdi")).expect("a directory");
        fs::write(at("cdi/described.json"), nvidia_ml::cdi::specification(&host)).expect("written");
        let library = built("libnvidia_ml.so").expect("cargo builds it for this test");
        let node = format!(
            "state = \"{0}/s\"\nnvml_library = \"{1}\"\ncpus = 8\nmemory = \"8G\"\nprivate_containerd = true\n\
             network = \"loopback\"\ncdi_dirs = [\"{0}/cdi\"]\ninit_binary = \"{2}\"\nheartbeat = \"100ms\"\n\
             measure_every = \"100ms\"\n\
             [mig]\nnvidia_smi = \"{3}\"\n{policy}\n",
            dir.path().display(),
            library.display(),
            init.display(),
            smi.display()
        );
        fs::write(at("node.toml"), node).expect("a configuration");

        let broker = Broker::start().await;
        let join = JoinOptions {
            broker: broker.uri.clone(),
            token: TOKEN.into(),
            node: "n1".parse().expect("a name"),
            ca_fingerprint: broker.fingerprint.clone(),
        };
        let membership = Membership::join(&join).await.expect("joined");
        membership.store(&at("s")).expect("kept");
        let mut options = RuntimeOptions::new(at("s"), &init);
        options.private_containerd = true;
        options.network = NetworkMode::Loopback;
        options.cdi_dirs = vec![at("cdi")];
        let runtime = Runtime::open(options).await.expect("a runtime");
        let archive = at("busybox.tar");
        busybox(&archive);
        let imported = runtime.import_image(&archive, "local/busybox", &|_| {});
        imported.await.expect("imported");
        let mut node = Self {
            dir,
            runtime,
            broker,
            agent: None,
            generation: 0,
            jobs: Vec::new(),
            tombstones: Vec::new(),
        };
        node.start_agent();
        Some(node)
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn start_agent(&mut self) {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.at("agent.log"))
            .expect("a log");
        let agent = Command::new(env!("CARGO_BIN_EXE_carrel-node"))
            .args(["run", "--config"])
            .arg(self.at("node.toml"))
            .env("CARREL_FAKE_NVML", self.at("host.toml"))
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn();
        self.agent = Some(agent.expect("carrel-node"));
    }

    /// By SIGKILL.
    pub fn kill_agent(&mut self) {
        let mut agent = self.agent.take().expect("it runs");
        agent.kill().expect("killed");
        agent.wait().expect("ended");
    }

    pub fn host(&self) -> Host {
        Host::read(&self.at("host.toml"), "").expect("a host")
    }

    /// "3g.40gb@0+4" of the first GPU; "1/500/1000,time-slice" of the second, "1/" all of it.
    pub fn unit(&self, unit: &str) -> String {
        let (gpu, slice) = match unit.split_once('/') {
            Some(("1", slice)) => (1, slice),
            _ => (0, unit),
        };
        let uuid = &self.host().gpus[gpu].uuid;
        match slice {
            "" => uuid.clone(),
            slice => format!("{uuid}:{slice}"),
        }
    }

    /// What the first GPU is cut into: "1g.10gb@0"; with a "?" where there is no device.
    pub fn cut(&self) -> Vec<String> {
        let host = self.host();
        let gpu = &host.gpus[0];
        let geometry = host.geometry(gpu);
        let mut instances = host.mig(gpu).instances;
        instances.sort_by_key(|instance| instance.start);
        let named = instances.iter().map(|instance| {
            let profile = geometry.by_id(instance.profile).expect("a profile");
            let device = if instance.parts.is_empty() { "?" } else { "" };
            format!(
                "{}@{}{device}",
                geometry.name(profile, host.memory_mib()),
                instance.start
            )
        });
        named.collect()
    }

    pub fn say(&mut self) {
        self.generation += 1;
        self.broker.say(v1::Desired {
            cluster: CLUSTER.into(),
            incarnation: Some(v1::Incarnation { number: 5, nonce: 7 }),
            generation: self.generation,
            lease_ms: 600_000,
            jobs: self.jobs.clone(),
            tombstones: self.tombstones.clone(),
            ..v1::Desired::default()
        });
    }

    /// Wants a job with these units.
    pub fn want(&mut self, number: u64, units: &[&str]) {
        let units = units.iter().map(|unit| self.unit(unit)).collect();
        self.jobs.push(job(number, units));
        self.say();
    }

    pub fn end(&mut self, number: u64) {
        self.jobs.retain(|job| job.job != number);
        self.tombstones.push(v1::Tombstone {
            job: number,
            generation: number,
            grace_ms: 1_000,
        });
        self.say();
    }

    pub async fn observed(&self, what: &str, holds: impl Fn(&v1::Observed) -> bool) -> v1::Observed {
        self.broker.observed(what, holds).await
    }

    pub async fn phase(&self, number: u64, phase: v1::ObservedPhase) -> v1::ObservedJob {
        let of = |observed: &v1::Observed| observed.jobs.iter().find(|job| job.job == number).cloned();
        let what = format!("job {number} is {phase:?}");
        let observed = self
            .observed(&what, |seen| of(seen).is_some_and(|job| job.phase() == phase))
            .await;
        of(&observed).expect("observed")
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.at("agent.log")).unwrap_or_default()
    }

    /// Process 1 of a job.
    pub async fn pid(&self, number: u64) -> u32 {
        let key = JobKey {
            job: JobId(number),
            generation: Generation(number),
        };
        match self
            .runtime
            .get(key)
            .await
            .expect("asked")
            .map(|container| container.state)
        {
            Some(ContainerState::Running { pid }) => pid,
            other => panic!("job {number} does not run: {other:?}"),
        }
    }

    /// The GPUs' nodes in a job's container, and by what its programs find its GPUs.
    pub async fn inside(&self, number: u64) -> (Vec<String>, String) {
        let pid = self.pid(number).await;
        let mut nodes = Vec::new();
        for dir in ["dev", "dev/nvidia-caps"] {
            // A GPU itself has no capabilities.
            let listed = fs::read_dir(format!("/proc/{pid}/root/{dir}"));
            for entry in listed.into_iter().flatten() {
                let name = entry.expect(dir).file_name().to_string_lossy().into_owned();
                if name.starts_with("nvidia") && name != "nvidia-caps" {
                    nodes.push(name);
                }
            }
        }
        nodes.sort();
        let environment = fs::read(format!("/proc/{pid}/environ")).expect("its environment");
        let environment = String::from_utf8_lossy(&environment).into_owned();
        let visible = environment
            .split('\0')
            .find_map(|line| line.strip_prefix("CUDA_VISIBLE_DEVICES="));
        (nodes, visible.unwrap_or_default().to_owned())
    }

    pub async fn down(mut self) {
        self.kill_agent();
        self.runtime.down().await.expect("down");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(agent) = &mut self.agent {
            agent.kill().ok();
            agent.wait().ok();
        }
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
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

pub fn job(number: u64, gpus: Vec<String>) -> v1::DesiredJob {
    let deadline = std::time::SystemTime::now() + Duration::from_hours(1);
    let deadline = deadline
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after the epoch");
    v1::DesiredJob {
        job: number,
        generation: number,
        session: number,
        name: format!("job{number}"),
        identity: Some(v1::Identity {
            name: "alice".into(),
            uid: 12_345,
            gid: 12_345,
            home: "/home/alice".into(),
            ..v1::Identity::default()
        }),
        image: "local/busybox".into(),
        gpus,
        cpus: 1,
        memory_bytes: 128 << 20,
        deadline_ms: i64::try_from(deadline.as_millis()).expect("in range"),
        ssh: Some(v1::SshAccess::default()),
        ..v1::DesiredJob::default()
    }
}

/// What is said of the node's GPUs.
pub fn note(observed: &v1::Observed) -> String {
    observed
        .inventory
        .as_ref()
        .map(|inventory| inventory.gpu_note.clone())
        .unwrap_or_default()
}

/// What a file says, once it says something.
pub async fn file(path: &Path) -> String {
    let written = tokio::time::timeout(PATIENCE, async {
        loop {
            match fs::read_to_string(path) {
                Ok(text) if !text.is_empty() => return text,
                _ => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    });
    written
        .await
        .unwrap_or_else(|_| panic!("{} is not written", path.display()))
}
