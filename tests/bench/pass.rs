//! `pass`: what a pass of the broker takes when many jobs wait: all of them looked at at once while the cluster fills
//! up, after one release, and for one more job.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use carrel_core::broker::{Broker, Caller, Edit, Input, LimitsEdit, QosEdit, Settings, Way};
use carrel_core::model::account::Limits;
use carrel_core::model::audit::Origin;
use carrel_core::model::fabric::{BlockText, Fabric, FabricText, SwitchText};
use carrel_core::model::ids::{JobId, NodeName, QosName};
use carrel_core::model::node::EndCause;
use carrel_core::model::resources::ResourceRequest;
use carrel_core::model::time::Timestamp;
use carrel_core::model::topology::Link;
use carrel_core::model::user::Role;
use carrel_core::queue::Limit;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::nodes::{self, Host, Nodes};
use crate::report::{figure, quantile};

/// Sizes of GPU requests, as often as they stand here.
const SIZES: [u32; 10] = [1, 1, 1, 1, 2, 2, 4, 4, 8, 8];
/// Time limits, hours, each as often as the others.
const HOURS: [u64; 6] = [1, 2, 4, 8, 24, 72];
/// Clusters of ten thousand jobs that are opened up.
const COLD: u64 = 5;
/// Users.
const USERS: u32 = 200;
/// Releases and submissions that are looked at.
const ROUNDS: usize = 20;
/// When it begins.
const BEGIN: Timestamp = Timestamp(1_500_000_000_000);
/// Nodes are never out of reach.
const EVER: Duration = Duration::from_hours(24 * 365 * 100);

/// How large.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Seed of what is asked for
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs it at two sizes.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let flat = || Arc::new(Fabric::default());
    for (jobs, nodes, budget, fabric, kind) in [
        (10_000, 1_000, "<= 50", flat(), ""),
        (10_000, 1_000, "<= 50", leaves(1_000), ".fabric"),
        (100_000, 10_000, "", flat(), ""),
        (100_000, 10_000, "", leaves(10_000), ".fabric"),
    ] {
        let size = format!("{jobs}x{nodes}{kind}");
        let mut bench = Bench::new(nodes, Arc::clone(&fabric), options.seed)?;
        let before = resident();
        bench.queue(jobs)?;
        let grown = resident().saturating_sub(before);
        figure(
            &format!("pass.{size}.memory_per_job"),
            grown as f64 / f64::from(jobs) / 1024.0,
            "KiB",
            "",
        );
        // What kept all of them from starting is taken away: one pass looks at all of them. The first time a process
        // does that, it gets its memory from the system besides.
        let mut cold = vec![bench.open_up()?];
        for round in 1..if jobs > 10_000 { 1 } else { COLD } {
            bench = Bench::new(nodes, Arc::clone(&fabric), options.seed + round)?;
            bench.queue(jobs)?;
            cold.push(bench.open_up()?);
        }
        let (waiting, running) = (
            bench.broker.state().pending.len(),
            bench.broker.state().deadlines.len(),
        );
        eprintln!("{size}: {running} started, {waiting} wait");
        figure(&format!("pass.{size}.cold"), quantile(&cold, 0.5), "ms", budget);
        figure(&format!("pass.{size}.cold.max"), quantile(&cold, 1.0), "ms", "");
        let (mut released, mut submitted) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            released.push(bench.release()?);
            submitted.push(bench.submit()?);
        }
        for (name, times) in [("after_release", released), ("submit", submitted)] {
            figure(
                &format!("pass.{size}.{name}"),
                quantile(&times, 0.5),
                "ms",
                budget,
            );
            figure(
                &format!("pass.{size}.{name}.max"),
                quantile(&times, 1.0),
                "ms",
                "",
            );
        }
    }
    Ok(())
}

struct Bench {
    broker: Broker,
    nodes: Nodes,
    now: Timestamp,
    random: SmallRng,
    submitted: u64,
}

impl Bench {
    /// Hosts of eight H100 each.
    fn new(nodes: usize, fabric: Arc<Fabric>, seed: u64) -> anyhow::Result<Self> {
        let mut settings = Settings {
            lease: EVER,
            contact_timeout: EVER,
            fabric,
            ..Settings::default()
        };
        // All come at once: the largest would come first, and a few of them fill the cluster.
        settings.queue.weights.size = 0;
        let host = Host {
            gpus: 8,
            cpus: 192,
            memory_bytes: 2 << 40,
            link: Link::NvLink(18),
        };
        let (broker, nodes) = nodes::broker(settings, (nodes as u32, host), USERS, Vec::new(), BEGIN)?;
        let mut bench = Self {
            broker,
            nodes,
            now: BEGIN,
            random: SmallRng::seed_from_u64(seed),
            submitted: 0,
        };
        let one = Limits {
            running: Some(1),
            ..Limits::default()
        };
        bench.limit(
            Way::Add,
            LimitsEdit {
                set: one,
                ..LimitsEdit::default()
            },
        )?;
        Ok(bench)
    }

    /// So many more jobs.
    fn queue(&mut self, jobs: u32) -> anyhow::Result<()> {
        for _ in 0..jobs {
            self.submit()?;
        }
        Ok(())
    }

    /// How long it took, milliseconds.
    fn tell(&mut self, input: Input) -> anyhow::Result<f64> {
        let begun = Instant::now();
        nodes::tell(&mut self.broker, self.now, input)?;
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    }

    /// All jobs may start that nothing else keeps from it, and not one of them only.
    fn open_up(&mut self) -> anyhow::Result<f64> {
        self.limit(
            Way::Set,
            LimitsEdit {
                clear: vec![Limit::Running],
                ..LimitsEdit::default()
            },
        )
    }

    /// Limits all jobs together.
    fn limit(&mut self, way: Way, limits: LimitsEdit) -> anyhow::Result<f64> {
        let operator = Caller {
            user: "operator".parse()?,
            role: Role::Admin,
            origin: Origin::Local(0),
        };
        let edit = QosEdit {
            limits,
            ..QosEdit::default()
        };
        self.tell(Input::Edit(
            operator,
            Box::new(Edit::Qos(QosName::normal(), way, edit)),
        ))
    }

    /// One more job.
    fn submit(&mut self) -> anyhow::Result<f64> {
        self.submitted += 1;
        let request = request(&mut self.random);
        let user = self.random.random_range(0..USERS);
        let (caller, mut open) = nodes::wish(user, &format!("j{}", self.submitted), request)?;
        let hours = HOURS[self.random.random_range(0..HOURS.len())];
        if let Some(spec) = &mut open.spec {
            spec.time_limit = Duration::from_hours(hours);
        }
        self.tell(Input::OpenSession(caller, open))
    }

    /// Some job ends; of a gang all nodes say so, and the longest of their reports counts.
    fn release(&mut self) -> anyhow::Result<f64> {
        let state = self.broker.state();
        let running: Vec<JobId> = state.deadlines.iter().map(|(_, id)| *id).collect();
        let id = running[self.random.random_range(0..running.len())];
        let placed = state
            .jobs
            .get(&id)
            .and_then(|job| job.placed())
            .context("it runs")?;
        let nodes: Vec<NodeName> = placed
            .allocation
            .nodes
            .iter()
            .map(|part| part.node.clone())
            .collect();
        let mut longest = 0.0_f64;
        for node in &nodes {
            let report = self
                .nodes
                .report(self.broker.state(), node, Some((id, EndCause::Exited)))?;
            longest = longest.max(self.tell(report)?);
        }
        Ok(longest)
    }
}

/// This process' resident memory, bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}

/// Leaf switches of 32 nodes, sixteen below a spine, and blocks of 16 nodes.
fn leaves(nodes: usize) -> Arc<Fabric> {
    let count = nodes.div_ceil(32);
    let switch = |name, nodes, switches| SwitchText {
        name,
        nodes,
        switches,
    };
    let leaf = |n: usize| {
        let range = format!("n[{}-{}]", 32 * n, (32 * n + 31).min(nodes - 1));
        switch(format!("leaf{n}"), range, String::new())
    };
    let spine = |n: usize| {
        let range = format!("leaf[{}-{}]", 16 * n, (16 * n + 15).min(count - 1));
        switch(format!("spine{n}"), String::new(), range)
    };
    let block = |n: usize| BlockText {
        name: format!("block{n}"),
        nodes: format!("n[{}-{}]", 16 * n, (16 * n + 15).min(nodes - 1)),
    };
    let text = FabricText {
        switch: (0..count)
            .map(leaf)
            .chain((0..count.div_ceil(16)).map(spine))
            .collect(),
        block: (0..nodes.div_ceil(16)).map(block).collect(),
    };
    Arc::new(text.try_into().expect("a fabric"))
}

/// One in ten is a gang; CPUs and memory vary, so that hosts come to differ in what is left.
fn request(random: &mut SmallRng) -> ResourceRequest {
    let gpus = SIZES[random.random_range(0..SIZES.len())];
    ResourceRequest {
        nodes: if random.random_range(0..10) == 0 {
            random.random_range(2..=8)
        } else {
            1
        },
        gpus_per_node: gpus,
        nvlink: gpus > 1,
        cpus_per_node: gpus * random.random_range(4..=16),
        memory_bytes_per_node: u64::from(gpus * random.random_range(16..=128)) << 30,
        ..ResourceRequest::default()
    }
}
