//! Chaos: programs are killed at random under a load, and what was promised is looked after.
//!
//! The oracle is outside of what is tested: a job holds a GPU by a kernel's lock on a file that all
//! jobs of the user share, so that whoever is given a GPU while a process of its last holder lives
//! finds it locked; what a user was told is kept by the user's threads.

mod finding;
mod load;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;

pub use finding::{Findings, Report};

use crate::cluster::{Cluster, Options as ClusterOptions};
use crate::image::Image;
use crate::process::Cmd;
use crate::programs::Profile;
use crate::sim::rng::Rng;
use crate::user::{ALICE, ROOT, User};
use crate::wait;

/// Sessions that are opened at the start and must be there, the same, at the end.
const KEPT: usize = 3;
/// GPUs of the cluster: two described hosts of eight.
const GPUS: u64 = 16;
/// Longest pause before a kill, and between it and the restart.
const MAX_PAUSE_MS: u64 = 800;

/// What to do.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Rounds of killing.
    pub rounds: u64,
    /// Chance's seed: which programs are killed, and when.
    pub seed: u64,
    /// Which build of the programs.
    pub profile: Profile,
}

/// What may be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Victim {
    /// The broker.
    Broker,
    /// The gateway.
    Gateway,
    /// The agent of the node with this number.
    Agent(usize),
}

const VICTIMS: [Victim; 4] = [
    Victim::Broker,
    Victim::Gateway,
    Victim::Agent(0),
    Victim::Agent(1),
];

/// The cluster as threads share it: a command is made under the lock and run outside of it.
struct Stage {
    cluster: Mutex<Cluster>,
    findings: Mutex<Findings>,
    ending: AtomicBool,
}

impl Stage {
    fn cluster(&self) -> MutexGuard<'_, Cluster> {
        // A panic elsewhere fails the run; what it held is as it was.
        self.cluster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn findings(&self) -> MutexGuard<'_, Findings> {
        self.findings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    fn carrel<S: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Cmd {
        self.cluster().carrel(ALICE, args)
    }

    fn ssh(&self, name: &str, script: &str) -> Cmd {
        self.cluster().ssh(ALICE, [&format!("carrel-{name}"), script])
    }

    /// What `carrel … --output json` says; none while there is no broker.
    fn json(&self, user: User, args: &[&str]) -> Option<Value> {
        let command = self.cluster().carrel(user, args).args(["--output", "json"]);
        serde_json::from_str(&command.run().stdout).ok()
    }
}

/// Runs it.
///
/// # Panics
/// The cluster does not come up, or not again after a kill.
pub fn run(options: &Options, mut told: impl FnMut(&str)) -> Report {
    let stage = Stage {
        cluster: Mutex::new(Cluster::start(&ClusterOptions {
            hosts: vec![Some("hgx-h100"), Some("hgx-h100")],
            images: vec![Image::Debian],
            profile: options.profile,
            ..ClusterOptions::default()
        })),
        findings: Mutex::default(),
        ending: AtomicBool::new(false),
    };
    let mut rng = Rng::new(options.seed);
    let kept: Vec<load::Kept> = (0..KEPT).map(|n| load::Kept::open(&stage, n)).collect();
    std::thread::scope(|scope| {
        // Whatever happens here, the others end.
        let _ending = Ending(&stage.ending);
        for n in 0..load::HOLDERS {
            let (stage, mut rng) = (&stage, Rng::new(rng.bits()));
            scope.spawn(move || load::hold(stage, &mut rng, n));
        }
        for n in 0..load::BOOKKEEPERS {
            let stage = &stage;
            scope.spawn(move || load::keep_books(stage, n));
        }
        for one in &kept[1..] {
            let stage = &stage;
            scope.spawn(move || load::transfer(stage, one));
        }
        for round in 1..=options.rounds {
            let victims = kill_some(&stage, &mut rng);
            settle(&stage);
            for one in &kept {
                one.look(&stage);
            }
            told(&format!(
                "round {round} of {}: killed {victims:?}",
                options.rounds
            ));
        }
    });
    for one in kept {
        one.look(&stage);
        one.remove(&stage);
    }
    clear(&stage);
    let findings = stage
        .findings
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    findings.report(options.rounds)
}

/// Says that it is over when it goes.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Kills one program or several, and starts them again.
fn kill_some(stage: &Stage, rng: &mut Rng) -> Vec<Victim> {
    let pause = |rng: &mut Rng| std::thread::sleep(Duration::from_millis(rng.below(MAX_PAUSE_MS)));
    let mut victims: Vec<Victim> = VICTIMS.into_iter().filter(|_| rng.one_in(3)).collect();
    if victims.is_empty() {
        victims.extend(rng.pick(&VICTIMS));
    }
    for victim in &victims {
        pause(rng);
        let mut cluster = stage.cluster();
        daemon(&mut cluster, *victim).kill9();
        stage.findings().killed(*victim);
    }
    for victim in &victims {
        pause(rng);
        let mut cluster = stage.cluster();
        daemon(&mut cluster, *victim).restart();
    }
    victims
}

fn daemon(cluster: &mut Cluster, victim: Victim) -> &mut crate::process::Daemon {
    match victim {
        Victim::Broker => &mut cluster.broker,
        Victim::Gateway => &mut cluster.gateway,
        Victim::Agent(n) => &mut cluster.agents[n],
    }
}

/// Until the broker answers and both nodes are there.
fn settle(stage: &Stage) {
    let there = wait::poll(wait::PATIENCE, || {
        let nodes = stage.json(ROOT, &["nodes"])?;
        let up = |node: &Value| node["state"] != "DOWN" && node["state"] != "UNKNOWN";
        nodes.as_array()?.iter().all(up).then_some(())
    });
    assert!(
        there.is_some(),
        "the cluster does not come up again{}",
        stage.cluster().last_logs()
    );
}

/// Ends what is left of the load, and waits until every GPU is free.
fn clear(stage: &Stage) {
    let free = wait::poll(wait::PATIENCE, || {
        for job in stage.json(ALICE, &["ps"])?.as_array()? {
            let name = job["name"].as_str()?;
            stage.carrel(["rm", "-f", name]).run();
        }
        let nodes = stage.json(ROOT, &["nodes"])?;
        let free: u64 = nodes
            .as_array()?
            .iter()
            .filter_map(|node| node["gpus_free"].as_u64())
            .sum();
        (free == GPUS).then_some(())
    });
    if free.is_none() {
        let nodes = stage.json(ROOT, &["nodes"]);
        stage.findings().not_released(format!("{nodes:?}"));
    }
}
