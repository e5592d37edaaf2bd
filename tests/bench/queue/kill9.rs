//! `kill -9` of the broker at a random moment in a stream of submits: which jobs that it had acknowledged does it know no
//! more, and which sessions are hurt that it had granted within the last second?

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use carrel_proto::v1::GetClusterRequest;
use carrel_tests::cluster::Cluster;
use carrel_tests::user::ALICE;
use carrel_tests::wait;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;

use super::Options;
use super::figures::Figures;
use super::grant::two_nodes;
use super::stage::{CLIENTS, Stage, get};

/// Between the answer to a client's submission and its next: a stream, not a storm.
const PAUSE: Duration = Duration::from_millis(5);
/// How long a stream lasts before its session is asked for, and before the kill after that.
const MAX_PAUSE_MS: u64 = 1_000;

/// Kills it; how much was lost.
pub fn run(options: &Options, figures: &mut Figures) -> anyhow::Result<usize> {
    // One node is held, and the jobs of the stream ask for two: they wait, and sessions get the other.
    let mut stage = Stage::start(2)?;
    stage.hold_a_node()?;
    let mut chance = SmallRng::seed_from_u64(options.seed);
    let (mut acknowledged, mut lost, mut sessions_lost) = (0, 0, 0);
    for round in 0..options.kills {
        let stream = Stream::start(&stage)?;
        std::thread::sleep(Duration::from_millis(chance.random_range(0..MAX_PAUSE_MS)));
        let name = format!("live-{round}");
        let session = Live::open(&stage.cluster, &name)?;
        std::thread::sleep(Duration::from_millis(chance.random_range(0..MAX_PAUSE_MS)));
        stage.cluster.broker.kill9();
        let jobs = stream.end(&stage)?;
        stage.cluster.broker.restart();
        let mut api = wait::poll(wait::PATIENCE, || {
            let mut api = stage.api().ok()?;
            let answer = stage
                .runtime
                .block_on(api.get_cluster(GetClusterRequest::default()));
            answer.ok().map(|_| api)
        })
        .context("the broker does not answer after its restart")?;
        let missing = stage.runtime.block_on(async {
            let mut missing = Vec::new();
            for id in &jobs {
                if get(&mut api, *id).await?.is_none() {
                    missing.push(*id);
                }
            }
            anyhow::Ok(missing)
        })?;
        let hurt = session.is_hurt(&stage.cluster);
        eprintln!(
            "  kill {round}: {} of {} acknowledged jobs lost{}",
            missing.len(),
            jobs.len(),
            hurt.as_ref()
                .map_or(String::new(), |why| format!("; the session is lost: {why}"))
        );
        acknowledged += jobs.len();
        lost += missing.len();
        sessions_lost += usize::from(hurt.is_some());
        stage.cluster.carrel(ALICE, ["rm", "-f", &name]).run();
    }
    figures.put(
        "kill9.acknowledged",
        acknowledged as f64,
        "count",
        "",
        "jobs of 16 clients, before the kills",
    );
    figures.put(
        "kill9.acknowledged_lost",
        lost as f64,
        "count",
        "0",
        "of these, not known after the restart",
    );
    figures.put(
        "kill9.sessions",
        options.kills as f64,
        "count",
        "",
        "sessions granted within the second before a kill",
    );
    figures.put(
        "kill9.sessions_lost",
        sessions_lost as f64,
        "count",
        "0",
        "of these, not the same job, or without the process that ran in it",
    );
    Ok(lost + sessions_lost)
}

/// Clients that submit until they are told to end, or get no answer.
struct Stream {
    over: Arc<AtomicBool>,
    clients: JoinSet<Vec<u64>>,
}

impl Stream {
    fn start(stage: &Stage) -> anyhow::Result<Self> {
        let over = Arc::new(AtomicBool::new(false));
        let mut clients = JoinSet::new();
        for _ in 0..CLIENTS {
            let mut api = stage.api()?;
            let (over, numbers) = (Arc::clone(&over), stage.numbers());
            let task = async move {
                let mut acknowledged = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    match api.submit_job(two_nodes(numbers())).await {
                        Ok(job) => acknowledged.push(job.into_inner().id),
                        // The kill: nothing was promised.
                        Err(_) => break,
                    }
                    tokio::time::sleep(PAUSE).await;
                }
                acknowledged
            };
            clients.spawn_on(task, stage.runtime.handle());
        }
        Ok(Self { over, clients })
    }

    /// Ids that were acknowledged.
    fn end(mut self, stage: &Stage) -> anyhow::Result<Vec<u64>> {
        self.over.store(true, Ordering::Relaxed);
        stage.runtime.block_on(async {
            let mut all = Vec::new();
            while let Some(ended) = self.clients.join_next().await {
                all.extend(ended.context("a client broke")?);
            }
            Ok(all)
        })
    }
}

/// A session with a process in it.
struct Live {
    name: String,
    job: serde_json::Value,
}

impl Live {
    fn open(cluster: &Cluster, name: &str) -> anyhow::Result<Self> {
        let args = [
            "open", name, "--editor", "none", "--gpus", "1", "-c", "1", "--mem", "128M",
        ];
        let opened = cluster.carrel(ALICE, args).run();
        anyhow::ensure!(opened.code == 0, "{opened}");
        let process = "sleep 1000000 </dev/null >/dev/null 2>&1 & echo $! >/tmp/live";
        let started = cluster
            .ssh(ALICE, [format!("carrel-{name}").as_str(), process])
            .run();
        anyhow::ensure!(started.code == 0, "{started}");
        let job = job_of(cluster, name).context("the session has a job")?;
        Ok(Self {
            name: name.into(),
            job,
        })
    }

    /// Why it is not what it was; none: it is.
    fn is_hurt(&self, cluster: &Cluster) -> Option<String> {
        let now = wait::poll(wait::PATIENCE, || job_of(cluster, &self.name));
        if now.as_ref() != Some(&self.job) {
            return Some(format!("its job was {}, and now is {now:?}", self.job));
        }
        let alias = format!("carrel-{}", self.name);
        let look = "kill -0 $(cat /tmp/live) && echo lives";
        let lives = wait::poll(wait::PATIENCE, || {
            let output = cluster.ssh(ALICE, [alias.as_str(), look]).run();
            (output.stdout == "lives\n").then_some(())
        });
        lives.is_none().then(|| "its process is gone".to_owned())
    }
}

/// Id and state of a session's job; none: nobody says.
fn job_of(cluster: &Cluster, name: &str) -> Option<serde_json::Value> {
    let output = cluster.carrel(ALICE, ["show", name, "--output", "json"]).run();
    let record: serde_json::Value = serde_json::from_str(&output.stdout).ok()?;
    let job = &record["job"];
    Some(serde_json::json!([job["id"], job["state"], job["started"]]))
}
