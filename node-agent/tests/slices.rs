//! Protects: a job gets the MIG slice that it was given and no other; GPUs are cut only where nobody is, and a
//! cut that fails, or whose agent is killed, leaves nothing in parts.
//!
//! The agent is the real program, with tests/fake-nvml as its NVML and its `nvidia-smi`, against a broker that
//! says what the test wants said.

mod broker;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use broker::{Broker, CLUSTER, PATIENCE, TOKEN};
use carrel_core::model::ids::{Generation, JobId, JobKey};
use carrel_node::identity::{JoinOptions, Membership};
use carrel_node::runtime::{ContainerState, NetworkMode, Runtime, RuntimeOptions};
use carrel_proto::v1;
use nvidia_ml::host::Host;

/// What cargo and `./dev` build, from this test's place on.
fn built(path: &str) -> Option<PathBuf> {
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
struct Node {
    dir: tempfile::TempDir,
    runtime: Runtime,
    broker: Broker,
    agent: Option<Child>,
    generation: u64,
    jobs: Vec<v1::DesiredJob>,
    tombstones: Vec<v1::Tombstone>,
}

impl Node {
    /// None: what it takes is not built.
    async fn start(instances: &[&str], policy: &str) -> Option<Self> {
        let (Some(init), Some(smi)) = (init(), built("../carrel-fake-nvidia-smi")) else {
            eprintln!(
                "not tested: carrel-init or carrel-fake-nvidia-smi is not built (./dev test builds them)"
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
        let described = format!(
            "model = \"NVIDIA H100 80GB HBM3\"\nmemory_mib = 81559\nprocesses = \"busy\"\nmig_state = \"mig\"\n\
             mig_faults = \"faults\"\ntopology = \"\"\"\n\
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

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn start_agent(&mut self) {
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
    fn kill_agent(&mut self) {
        let mut agent = self.agent.take().expect("it runs");
        agent.kill().expect("killed");
        agent.wait().expect("ended");
    }

    fn host(&self) -> Host {
        Host::read(&self.at("host.toml"), "").expect("a host")
    }

    /// "3g.40gb@0+4" of the first GPU, or "1/500/1000,time-slice" of the second.
    fn unit(&self, unit: &str) -> String {
        let (gpu, slice) = match unit.split_once('/') {
            Some(("1", slice)) => (1, slice),
            _ => (0, unit),
        };
        format!("{}:{slice}", self.host().gpus[gpu].uuid)
    }

    /// What the first GPU is cut into: "1g.10gb@0"; with a "?" where there is no device.
    fn cut(&self) -> Vec<String> {
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

    fn say(&mut self) {
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
    fn want(&mut self, number: u64, units: &[&str]) {
        let units = units.iter().map(|unit| self.unit(unit)).collect();
        self.jobs.push(job(number, units));
        self.say();
    }

    fn end(&mut self, number: u64) {
        self.jobs.retain(|job| job.job != number);
        self.tombstones.push(v1::Tombstone {
            job: number,
            generation: number,
            grace_ms: 1_000,
        });
        self.say();
    }

    async fn observed(&self, what: &str, holds: impl Fn(&v1::Observed) -> bool) -> v1::Observed {
        self.broker.observed(what, holds).await
    }

    async fn phase(&self, number: u64, phase: v1::ObservedPhase) -> v1::ObservedJob {
        let of = |observed: &v1::Observed| observed.jobs.iter().find(|job| job.job == number).cloned();
        let what = format!("job {number} is {phase:?}");
        let observed = self
            .observed(&what, |seen| of(seen).is_some_and(|job| job.phase() == phase))
            .await;
        of(&observed).expect("observed")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.at("agent.log")).unwrap_or_default()
    }

    /// Process 1 of a job.
    async fn pid(&self, number: u64) -> u32 {
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
    async fn inside(&self, number: u64) -> (Vec<String>, String) {
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

    async fn down(mut self) {
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

fn job(number: u64, gpus: Vec<String>) -> v1::DesiredJob {
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

fn gpu(observed: &v1::Observed) -> v1::Mig {
    let inventory = observed.inventory.as_ref();
    inventory
        .and_then(|inventory| inventory.gpus.first()?.mig.clone())
        .unwrap_or_default()
}

fn note(observed: &v1::Observed) -> String {
    observed
        .inventory
        .as_ref()
        .map(|inventory| inventory.gpu_note.clone())
        .unwrap_or_default()
}

async fn file(path: &Path) -> String {
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

#[tokio::test(flavor = "multi_thread")]
async fn slices_are_used_cut_and_used_again_beside_neighbours() {
    let Some(mut node) = Node::start(&["1g.10gb@0", "1g.10gb@1", "3g.40gb@4"], "recut = [0]").await else {
        return;
    };
    node.want(1, &["3g.40gb@4+4"]);
    node.phase(1, v1::ObservedPhase::Ready).await;
    assert_eq!(
        node.cut(),
        ["1g.10gb@0", "1g.10gb@1", "3g.40gb@4"],
        "nothing was cut"
    );
    let neighbour = node.pid(1).await;

    node.want(2, &["2g.20gb@0+2", "1g.10gb@2+1"]);
    node.phase(2, v1::ObservedPhase::Ready).await;
    let now = ["2g.20gb@0", "1g.10gb@2", "3g.40gb@4"];
    assert_eq!(node.cut(), now);
    assert_eq!(node.pid(1).await, neighbour, "the neighbour goes on");
    // The broker hears of it at once, long before the next look of its own.
    let told = node.observed("the new slices", |seen| {
        gpu(seen).instances.len() == 3 && gpu(seen).instances[0].profile == "2g.20gb"
    });
    let instances = gpu(&told.await).instances;
    let (nodes, visible) = node.inside(2).await;
    assert_eq!(visible, format!("{},{}", instances[0].uuid, instances[1].uuid));
    assert_eq!(
        nodes.len(),
        6,
        "one GPU, what is shared, and two nodes for each slice: {nodes:?}"
    );
    let (of_neighbour, _) = node.inside(1).await;
    let caps = |nodes: &[String]| -> Vec<String> {
        nodes
            .iter()
            .filter(|name| name.contains("cap"))
            .cloned()
            .collect()
    };
    assert!(
        caps(&nodes)
            .iter()
            .all(|name| !caps(&of_neighbour).contains(name)),
        "{nodes:?} {of_neighbour:?}"
    );

    // Its end leaves the slices, and the next job has them though nothing could be cut now.
    node.end(2);
    node.phase(2, v1::ObservedPhase::Released).await;
    assert_eq!(node.cut(), now);
    fs::write(
        node.at("faults"),
        "cgi * Unknown Error\ndgi * Unknown Error\ndci * Unknown Error\n",
    )
    .expect("written");
    node.want(3, &["2g.20gb@0+2"]);
    node.phase(3, v1::ObservedPhase::Ready).await;
    let (_, visible) = node.inside(3).await;
    assert_eq!(visible, instances[0].uuid);
    node.down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_that_fails_is_undone_and_reported() {
    let Some(mut node) = Node::start(&["1g.10gb@0", "1g.10gb@4"], "recut = true").await else {
        return;
    };
    node.want(1, &["1g.10gb@4+1"]);
    node.phase(1, v1::ObservedPhase::Ready).await;
    fs::write(node.at("faults"), "cgi 9:0 Insufficient Resources\n").expect("written");
    node.want(2, &["3g.40gb@0+4"]);
    let failed = node.phase(2, v1::ObservedPhase::Released).await;
    assert_eq!(failed.cause(), v1::EndCause::StartFailed);
    for part in [
        "GPU 0 could not be cut into 3g.40gb at 0, and is as before",
        "-cgi 9:0 -C",
        "Insufficient Resources",
    ] {
        assert!(failed.detail.contains(part), "{part}: {}", failed.detail);
    }
    assert_eq!(node.cut(), ["1g.10gb@0", "1g.10gb@4"]);

    // Between its two halves: the instance is there, its device is made again.
    fs::write(node.at("faults"), "dgi * In use by another client\n").expect("written");
    node.want(3, &["3g.40gb@0+4"]);
    let failed = node.phase(3, v1::ObservedPhase::Released).await;
    assert!(failed.detail.contains("is as before"), "{}", failed.detail);
    assert_eq!(node.cut(), ["1g.10gb@0", "1g.10gb@4"]);

    // When even that fails, the GPU is left alone until somebody has looked.
    fs::write(node.at("faults"), "cgi * Unknown Error\n").expect("written");
    node.want(4, &["3g.40gb@0+4"]);
    let failed = node.phase(4, v1::ObservedPhase::Released).await;
    assert!(failed.detail.contains("nor made as before"), "{}", failed.detail);
    let left = node.observed("no more cuts", |seen| !gpu(seen).recut).await;
    assert!(
        note(&left).contains("GPU 0 is not cut anew until an operator has seen to it"),
        "{}",
        note(&left)
    );
    assert_eq!(gpu(&left).instances.len(), 1);
    node.pid(1).await;
    node.down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_in_the_way_is_waited_for_and_what_may_not_be_cut_is_not() {
    let Some(mut node) = Node::start(&["1g.10gb@0", "1g.10gb@4"], "recut = true").await else {
        return;
    };
    let mut stranger = Command::new("sleep").arg("1000").spawn().expect("sleep");
    // GPU instance 7 is the one at 0.
    fs::write(node.at("busy"), format!("0 {} 7\n", stranger.id())).expect("written");
    node.want(1, &["3g.40gb@0+4"]);
    let says = format!(
        "slice 1g.10gb at 0 of GPU 0 is in use by process {}",
        stranger.id()
    );
    let told = |seen: &v1::Observed| seen.jobs.iter().any(|job| job.detail.contains(&says));
    node.observed("who is in the way", told).await;
    assert_eq!(node.cut(), ["1g.10gb@0", "1g.10gb@4"]);
    // He is in nobody else's way.
    node.want(2, &["1g.10gb@4+1"]);
    node.phase(2, v1::ObservedPhase::Ready).await;
    stranger.kill().expect("killed");
    stranger.wait().expect("ended");
    node.phase(1, v1::ObservedPhase::Ready).await;
    assert_eq!(node.cut(), ["3g.40gb@0", "1g.10gb@4"]);

    // A slice is free when nobody is in it any more, whoever is in the others.
    let mut lingerer = Command::new("sleep").arg("1000").spawn().expect("sleep");
    fs::write(node.at("busy"), format!("0 {} 2\n", lingerer.id())).expect("written");
    node.end(2);
    node.phase(2, v1::ObservedPhase::Released).await;
    node.end(1);
    let says = format!(
        "slice 3g.40gb at 0 of GPU 0 is in use by process {}",
        lingerer.id()
    );
    let told = |seen: &v1::Observed| seen.jobs.iter().any(|job| job.detail.contains(&says));
    node.observed("who keeps it", told).await;
    lingerer.kill().expect("killed");
    lingerer.wait().expect("ended");
    node.phase(1, v1::ObservedPhase::Released).await;
    node.down().await;
}

/// Killed when a device was removed and its instance was not, and when the instance was, too.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_killed_in_the_middle_of_a_cut_goes_on_from_what_is_there() {
    let Some(mut node) = Node::start(&["1g.10gb@0", "1g.10gb@4"], "recut = true").await else {
        return;
    };
    node.want(1, &["1g.10gb@4+1"]);
    node.phase(1, v1::ObservedPhase::Ready).await;
    for (number, fault, unit, left, then) in [
        (
            2,
            "dgi 7",
            "3g.40gb@0+4",
            &["1g.10gb@0?", "1g.10gb@4"][..],
            &["3g.40gb@0", "1g.10gb@4"][..],
        ),
        (
            3,
            "cgi 14:2",
            "2g.20gb@2+2",
            &["1g.10gb@4"],
            &["2g.20gb@2", "1g.10gb@4"],
        ),
    ] {
        let gate = node.at(&format!("gate{number}"));
        fs::write(node.at("faults"), format!("{fault} wait {}\n", gate.display())).expect("written");
        node.want(number, &[unit]);
        let smi = file(&gate.with_extension("reached")).await;
        node.kill_agent();
        Command::new("kill").args(["-9", &smi]).status().expect("kill");
        fs::remove_file(node.at("faults")).expect("removed");
        assert_eq!(node.cut(), left);
        node.start_agent();
        node.phase(number, v1::ObservedPhase::Ready).await;
        assert_eq!(node.cut(), then);
        node.pid(1).await;
        node.end(number);
        node.phase(number, v1::ObservedPhase::Released).await;
    }
    node.down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_goes_on_when_mig_mode_changes_behind_its_back() {
    let Some(mut node) = Node::start(&["1g.10gb@0"], "").await else {
        return;
    };
    node.want(1, &["1g.10gb@0+1"]);
    node.phase(1, v1::ObservedPhase::Ready).await;
    let (_, visible) = node.inside(1).await;
    // What is not allowed is said to be.
    node.want(2, &["2g.20gb@2+2"]);
    let refused = node.phase(2, v1::ObservedPhase::Released).await;
    assert!(
        refused.detail.contains("does not let it be cut anew"),
        "{}",
        refused.detail
    );
    node.kill_agent();
    fs::write(node.at("mig"), "gpu 0 off off\ngpu 1 on on\n").expect("written");
    node.start_agent();
    let changed = node
        .observed("the change", |seen| {
            note(seen).contains("GPU 0 is not in MIG mode any more")
        })
        .await;
    assert!(note(&changed).contains("job 1 goes on"), "{}", note(&changed));
    node.phase(1, v1::ObservedPhase::Ready).await;
    assert_eq!(node.inside(1).await.1, visible);
    node.end(1);
    node.phase(1, v1::ObservedPhase::Released).await;
    node.observed("no note", |seen| note(seen).is_empty()).await;
    node.down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shares_of_a_gpu_are_side_by_side_and_end_each_for_itself() {
    let Some(mut node) = Node::start(&[], "[sharing]\ngpus = \"all\"").await else {
        return;
    };
    node.want(1, &["1/500/1000,time-slice"]);
    node.want(2, &["1/500/1000,time-slice"]);
    node.want(3, &["1/1/1000,time-slice"]);
    // Of a GPU in MIG mode there are none, whatever the configuration says of it.
    node.want(4, &["500/1000,time-slice"]);
    let refused = node.phase(4, v1::ObservedPhase::Released).await;
    assert!(
        refused.detail.contains("GPU 0 is not shared by time-slice"),
        "{}",
        refused.detail
    );
    let uuid = node.host().gpus[1].uuid.clone();
    for number in [1, 2] {
        node.phase(number, v1::ObservedPhase::Ready).await;
        let (nodes, visible) = node.inside(number).await;
        assert_eq!(nodes, ["nvidia1", "nvidiactl"]);
        assert_eq!(visible, uuid);
    }
    let waits = |seen: &v1::Observed| {
        seen.jobs
            .iter()
            .any(|job| job.job == 3 && job.detail.contains("to release GPU 1"))
    };
    node.observed("there is no room for a third", waits).await;
    // What NVML lists is the neighbour's.
    fs::write(node.at("busy"), format!("1 {}\n", node.pid(2).await)).expect("written");
    node.end(1);
    node.phase(1, v1::ObservedPhase::Released).await;
    node.phase(3, v1::ObservedPhase::Ready).await;
    node.down().await;
}
