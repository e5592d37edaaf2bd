//! Protects: jobs that share a GPU by MPS find its daemon and no other, keep to its limits, and are one user's; the
//! daemon is there as long as somebody has a share, whatever dies, and the GPU is as before afterwards.
//!
//! The agent is the real program, with tests/fake-nvml as its NVML and its `nvidia-cuda-mps-control`, against a broker
//! that says what the test wants said.

mod broker;
mod host;

use std::fs;
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use broker::PATIENCE;
use carrel_core::model::ids::{Generation, JobId, JobKey};
use carrel_proto::v1;
use host::{Node, file, job, note};

const MPS: &str = "[sharing]\ngpus = \"all\"\nmode = \"mps\"\nmps_control = \"DIR/nvidia-cuda-mps-control\"";
/// alice's, as tests' jobs are hers.
const ALICE: &str = "12345";
/// NVML's number of the mode in which one process may have a context.
const EXCLUSIVE: &str = "1 3\n";
const DEFAULT: &str = "1 0\n";

/// A CUDA program in a job; ended with the value.
struct Program {
    process: Child,
    log: std::path::PathBuf,
}

impl Program {
    /// In the job's cgroup, and by the sockets that the container has.
    async fn start(node: &Node, number: u64, limits: &[&str]) -> Self {
        let pid = node.pid(number).await;
        let socket = format!("/proc/{pid}/root/dev/shm/nvidia-mps/control");
        let log = node.at(&format!(
            "program-{number}-{}",
            limits.join("-").replace('=', "_")
        ));
        let process = Command::new(node.at("nvidia-cuda-mps-control"))
            .args(["--client", &socket, ALICE])
            .args(limits)
            .stdout(fs::File::create(&log).expect("a log"))
            .stdin(Stdio::null())
            .spawn()
            .expect("a program");
        let key = JobKey {
            job: JobId(number),
            generation: Generation(number),
        };
        let cgroup = node.runtime.cgroup(key);
        let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
        for line in mounts.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let procs = format!("{}{cgroup}/cgroup.procs", fields[1]);
            if fields[2].starts_with("cgroup")
                && let Ok(mut procs) = fs::OpenOptions::new().write(true).open(procs)
            {
                write!(procs, "{}", process.id()).expect("moved");
            }
        }
        Self { process, log }
    }

    async fn says(&self, what: &str) {
        let said = async {
            while !fs::read_to_string(&self.log).is_ok_and(|log| log.contains(what)) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let in_time = tokio::time::timeout(PATIENCE, said).await.is_ok();
        assert!(
            in_time,
            "it does not say {what:?}: {:?}",
            fs::read_to_string(&self.log)
        );
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let held = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, held).await.is_ok(), "{what}");
}

fn modes(node: &Node) -> String {
    fs::read_to_string(node.at("modes")).unwrap_or_default()
}

fn faults(node: &Node, faults: &str) {
    fs::write(node.at("mps-faults"), faults).expect("written");
}

/// The directory of the GPU's daemon.
fn place(node: &Node) -> std::path::PathBuf {
    node.at("s/mps").join(&node.host().gpus[1].uuid)
}

fn daemon(node: &Node) -> i32 {
    let pid = fs::read_to_string(place(node).join("pid")).expect("a daemon");
    pid.trim().parse().expect("a process")
}

fn lives(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

fn kill(pid: i32) {
    let killed = Command::new("kill").args(["-9", &pid.to_string()]).status();
    assert!(killed.expect("kill").success());
}

fn detail(number: u64, says: &str) -> impl Fn(&v1::Observed) -> bool + '_ {
    move |seen| {
        seen.jobs
            .iter()
            .any(|job| job.job == number && job.detail.contains(says))
    }
}

fn drained(seen: &v1::Observed) -> String {
    let inventory = seen.inventory.as_ref();
    inventory
        .and_then(|inventory| Some(inventory.gpus.get(1)?.drained.clone()))
        .unwrap_or_default()
}

async fn environment(node: &Node, number: u64) -> Vec<String> {
    let environment = fs::read(format!("/proc/{}/environ", node.pid(number).await)).expect("its environment");
    let environment = String::from_utf8_lossy(&environment).into_owned();
    let mut own: Vec<String> = environment
        .split('\0')
        .filter(|line| line.starts_with("CUDA_MPS"))
        .map(str::to_owned)
        .collect();
    own.sort();
    own
}

#[tokio::test(flavor = "multi_thread")]
async fn one_users_jobs_share_a_gpu_with_limits_and_the_last_one_gives_it_back() {
    let Some(mut node) = Node::start(&[], MPS).await else {
        return;
    };
    node.want(1, &["1/500/1000,mps"]);
    node.want(2, &["1/250/1000,mps"]);
    for number in [1, 2] {
        node.phase(number, v1::ObservedPhase::Ready).await;
    }
    assert_eq!(modes(&node), EXCLUSIVE);
    assert_eq!(
        environment(&node, 2).await,
        [
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=20389M",
            "CUDA_MPS_PIPE_DIRECTORY=/dev/shm/nvidia-mps",
        ]
    );
    // As its environment says; and who leaves that out gets no more than the largest share.
    let first = Program::start(&node, 1, &["50", "0=40779M"]).await;
    first.says("50 %, 40779M").await;
    let second = Program::start(&node, 2, &["25", "0=20389M"]).await;
    second.says("25 %, 20389M").await;
    let greedy = Program::start(&node, 2, &["100"]).await;
    greedy.says("50 %, 40779M").await;

    // Another user waits until all of them are gone.
    let mut of_bob = job(4, vec![node.unit("1/100/1000,mps")]);
    of_bob.identity = Some(v1::Identity {
        name: "bob".into(),
        uid: 12_346,
        gid: 12_346,
        home: "/home/bob".into(),
        ..v1::Identity::default()
    });
    node.jobs.push(of_bob);
    node.say();
    node.observed("bob waits", detail(4, "MPS serves one user at a time"))
        .await;

    let pid = daemon(&node);
    node.end(1);
    node.phase(1, v1::ObservedPhase::Released).await;
    // Its client was taken from the server before it was killed.
    first.says("terminated").await;
    assert_eq!(daemon(&node), pid, "the others' daemon goes on");
    let greedy = Program::start(&node, 2, &["99"]).await;
    greedy.says("25 %, 20389M").await;

    node.end(2);
    node.phase(2, v1::ObservedPhase::Released).await;
    node.phase(4, v1::ObservedPhase::Ready).await;
    assert!(!lives(pid), "alice's daemon has ended");
    assert_ne!(daemon(&node), pid);
    let about = fs::read_to_string(place(&node).join("about.json")).expect("kept");
    assert!(about.contains("12346"), "{about}");
    node.end(4);
    node.phase(4, v1::ObservedPhase::Released).await;
    assert_eq!(modes(&node), DEFAULT);
    assert!(!place(&node).exists());
    // And all of it can be had.
    node.want(5, &["1/"]);
    node.phase(5, v1::ObservedPhase::Ready).await;
    assert!(environment(&node, 5).await.is_empty());
    node.down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_outlives_the_agent_and_nothing_is_left_of_one_that_nobody_needs() {
    let Some(mut node) = Node::start(&[], MPS).await else {
        return;
    };
    // Killed while the daemon starts: the next agent ends that one, and starts another.
    faults(&node, "start hang\n");
    node.want(1, &["1/500/1000,mps"]);
    file(&place(&node).join("pid")).await;
    let hung = daemon(&node);
    node.kill_agent();
    assert!(lives(hung));
    faults(&node, "");
    node.start_agent();
    node.phase(1, v1::ObservedPhase::Ready).await;
    until("the first one is gone", || !lives(hung)).await;

    // Killed while a job runs: its programs notice nothing.
    let (pid, program) = (daemon(&node), Program::start(&node, 1, &["50"]).await);
    program.says("50 %").await;
    node.kill_agent();
    node.start_agent();
    node.phase(1, v1::ObservedPhase::Ready).await;
    node.want(2, &["1/250/1000,mps"]);
    node.phase(2, v1::ObservedPhase::Ready).await;
    assert_eq!(daemon(&node), pid);

    // Ended while there is no agent.
    node.kill_agent();
    node.end(1);
    node.end(2);
    node.start_agent();
    for number in [1, 2] {
        node.phase(number, v1::ObservedPhase::Released).await;
    }
    until("the daemon is gone", || !lives(pid) && !place(&node).exists()).await;
    assert_eq!(modes(&node), DEFAULT);
    node.down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_dies_under_jobs_is_started_anew_and_they_are_told() {
    let Some(mut node) = Node::start(&[], MPS).await else {
        return;
    };
    node.want(1, &["1/500/1000,mps"]);
    node.phase(1, v1::ObservedPhase::Ready).await;
    let program = Program::start(&node, 1, &["50"]).await;
    program.says("50 %").await;
    let pid = daemon(&node);
    kill(pid);
    node.observed(
        "the job is told",
        detail(1, "the MPS daemon of GPU 1 ended and was started anew"),
    )
    .await;
    let told = node
        .observed("the node says so", |seen| {
            note(seen).contains("MPS daemon ended under its jobs")
        })
        .await;
    assert_eq!(drained(&told), "");
    program.says("the daemon is gone").await;
    assert_ne!(daemon(&node), pid);
    // By the same mount, and with the same limits.
    let again = Program::start(&node, 1, &["60"]).await;
    again.says("50 %").await;
    node.phase(1, v1::ObservedPhase::Ready).await;

    // Where it cannot be started again, the GPU is given to nobody.
    faults(&node, "start exit\n");
    kill(daemon(&node));
    let broken = |seen: &v1::Observed| drained(seen).contains("no CUDA-capable device is detected");
    node.observed("the GPU is drained", broken).await;
    node.observed("the job is told", detail(1, "does not start again"))
        .await;
    node.end(1);
    node.phase(1, v1::ObservedPhase::Released).await;
    assert_eq!(modes(&node), DEFAULT);
    node.down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_server_still_has_of_a_job_is_waited_for() {
    let Some(mut node) = Node::start(&[], MPS).await else {
        return;
    };
    node.want(1, &["1/500/1000,mps"]);
    node.want(2, &["1/500/1000,mps"]);
    for number in [1, 2] {
        node.phase(number, v1::ObservedPhase::Ready).await;
    }
    let program = Program::start(&node, 1, &["50"]).await;
    program.says("50 %").await;
    faults(&node, "linger\n");
    node.end(1);
    // A killed child of this test is there until it is waited for.
    let pid = program.process.id();
    until("the program is killed", || {
        !lives(i32::try_from(pid).expect("a process"))
    })
    .await;
    drop(program);
    let says = format!("still holds memory of process {pid}");
    node.observed("who is waited for", detail(1, &says)).await;
    faults(&node, "");
    node.phase(1, v1::ObservedPhase::Released).await;
    // A daemon that answers nobody any more is ended all the same.
    faults(&node, "answer hang\n");
    let pid = daemon(&node);
    node.end(2);
    node.phase(2, v1::ObservedPhase::Released).await;
    assert!(!lives(pid) && !place(&node).exists());
    assert_eq!(modes(&node), DEFAULT);
    node.down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_does_not_work_fails_the_start_with_its_reason() {
    for (fault, why) in [
        ("start exit", "no CUDA-capable device is detected"),
        ("answer garbage", "is no list of processes"),
        ("deaf", "does not keep to 40 % of the GPU's threads"),
    ] {
        let Some(mut node) = Node::start(&[], MPS).await else {
            return;
        };
        faults(&node, fault);
        node.want(1, &["1/400/1000,mps"]);
        let failed = node.phase(1, v1::ObservedPhase::Released).await;
        assert_eq!(failed.cause(), v1::EndCause::StartFailed, "{fault}");
        for part in ["GPU 1 cannot be shared by MPS", why] {
            assert!(failed.detail.contains(part), "{fault}: {}", failed.detail);
        }
        node.observed("the GPU is drained", |seen| drained(seen).contains(why))
            .await;
        until("nothing is left", || !place(&node).exists()).await;
        assert_eq!(modes(&node), DEFAULT, "{fault}");
        node.down().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn gpus_are_not_shared_where_the_program_is_missing_or_somebody_uses_them() {
    let Some(mut node) = Node::start(&[], MPS).await else {
        return;
    };
    let mut stranger = Command::new("sleep").arg("1000").spawn().expect("sleep");
    fs::write(node.at("busy"), format!("1 {}\n", stranger.id())).expect("written");
    node.want(1, &["1/400/1000,mps"]);
    let says = format!("GPU 1 is in use by process {}", stranger.id());
    node.observed("who is in the way", detail(1, &says)).await;
    assert_eq!(modes(&node), "", "nothing was done to the GPU");
    stranger.kill().expect("killed");
    stranger.wait().expect("ended");
    node.phase(1, v1::ObservedPhase::Ready).await;
    node.end(1);
    node.phase(1, v1::ObservedPhase::Released).await;

    node.kill_agent();
    fs::remove_file(node.at("nvidia-cuda-mps-control")).expect("removed");
    node.start_agent();
    node.observed("what is missing", |seen| {
        note(seen).contains("GPUs are not shared by MPS: nvidia-cuda-mps-control is not found")
    })
    .await;
    node.want(2, &["1/400/1000,mps"]);
    let refused = node.phase(2, v1::ObservedPhase::Released).await;
    assert!(
        refused.detail.contains("GPU 1 is not shared by mps"),
        "{}",
        refused.detail
    );
    node.down().await;
}
