//! A year of jobs in the broker's store: how long searches, reports and a start take.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use carrel_broker::store::{By, History, HistoryFilter, Place, STORE_FILE, Store, UsageFilter};
use carrel_core::broker::{Broker, Change, Settings};
use carrel_core::model::ids::{ClusterId, Generation, JobId};
use carrel_core::model::job::{Charge, Ending, Job, JobKind, JobState, Phase, Placed, RankStatus};
use carrel_core::model::resources::{Allocation, NodeAllocation, ResourceRequest};
use carrel_core::model::start::Conditions;
use carrel_core::model::terms::Terms;
use carrel_core::model::time::Timestamp;

use crate::report;

const DAY: u64 = 86_400_000;
/// Jobs of one transaction.
const BATCH: u64 = 5_000;
/// A time at which the year ends: 2026-11-22.
const END: u64 = 20_779 * DAY;

/// Options of `bench history`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Jobs that are over.
    #[arg(long, default_value_t = 2_000_000)]
    jobs: u64,
    /// In so many days.
    #[arg(long, default_value_t = 365)]
    days: u64,
    /// Of so many users, on a tenth as many accounts.
    #[arg(long, default_value_t = 500)]
    users: u64,
    /// Jobs that wait, at the start of a broker.
    #[arg(long, default_value_t = 20_000)]
    pending: u64,
    /// Where the store is made; it is removed afterwards [default: a temporary directory]
    #[arg(long)]
    dir: Option<PathBuf>,
}

/// Runs it.
pub fn run(options: &Options) -> Result<()> {
    let temporary = tempfile::tempdir_in(options.dir.clone().unwrap_or_else(std::env::temp_dir))?;
    let dir = temporary.path();
    let mut store = Store::open(dir)?;
    fill(&mut store, options)?;
    let size = std::fs::metadata(dir.join(STORE_FILE))?.len();
    report::figure("store", size as f64 / 1e9, "GB", "");
    searches(&History::new(dir), options)?;
    reports(&History::new(dir))?;
    start(store, dir, options)
}

fn job(number: u64, options: &Options) -> Job {
    // Spread by multiplication with a large prime: the same jobs each time.
    let spread = |salt: u64| (number.wrapping_add(salt)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33;
    let year = options.days * DAY;
    let submitted = END - year + number * year / options.jobs.max(1);
    let user = spread(1) % options.users;
    let started = submitted + spread(2) % (4 * 3_600_000);
    let ended = started + 60_000 + spread(3) % (6 * 3_600_000);
    let gpus = 1 << (spread(4) % 4);
    let node = spread(5) % 500;
    let charge = Charge {
        model: if node < 250 {
            "NVIDIA H100 80GB HBM3"
        } else {
            "NVIDIA A100-SXM4-80GB"
        }
        .to_owned(),
        gpu_milli: gpus * 1_000,
        billing_milli: gpus * 1_000,
    };
    let part = NodeAllocation {
        node: format!("gpu{node:03}").parse().expect("a name"),
        gpus: (0..gpus)
            .map(|gpu| {
                format!("GPU-{node:08x}-0000-0000-0000-{gpu:012x}")
                    .parse()
                    .expect("a UUID")
            })
            .collect(),
        cpus: 12 * gpus as u32,
        memory_bytes: gpus << 37,
    };
    let failed = spread(6) % 1_000;
    let state = match failed {
        0 => JobState::OutOfMemory,
        1..=50 => JobState::Failed,
        _ => JobState::Completed,
    };
    Job {
        id: JobId(number + 1),
        name: format!("train-{}", spread(7) % 5_000),
        kind: JobKind::Batch,
        owner: format!("user{user}").parse().expect("a name"),
        session: None,
        request: ResourceRequest {
            gpus_per_node: gpus as u32,
            cpus_per_node: part.cpus,
            memory_bytes_per_node: part.memory_bytes,
            ..ResourceRequest::default()
        }
        .into(),
        time_limit: Duration::from_hours(8),
        submitted: Timestamp(submitted),
        after: None,
        terms: Terms {
            account: format!("account{}", user / 10).parse().expect("a name"),
            ..Terms::default()
        },
        hold: None,
        begin: None,
        conditions: Conditions::default(),
        give_up: None,
        past_runs: Vec::new(),
        requeue: false,
        batch: None,
        array: None,
        phase: Phase::Ended {
            ending: Ending {
                state,
                reason: "its command ended with exit code 0".to_owned(),
                exit_code: Some(i32::from(state != JobState::Completed)),
            },
            at: Timestamp(ended),
            last: Some(Box::new(Placed {
                generation: Generation::default(),
                allocation: Allocation { nodes: vec![part] },
                started: Timestamp(started),
                deadline: Timestamp(started + 8 * 3_600_000),
                billing_milli: charge.billing_milli,
                charges: vec![charge],
                ranks: vec![RankStatus {
                    ready: true,
                    released: true,
                    ..RankStatus::default()
                }],
                ending: None,
                leaving: None,
                extended: None,
                signalled: None,
            })),
        },
    }
}

fn fill(store: &mut Store, options: &Options) -> Result<()> {
    let begun = Instant::now();
    for first in (0..options.jobs).step_by(BATCH as usize) {
        let jobs = first..options.jobs.min(first + BATCH);
        let changes: Vec<Change> = jobs
            .map(|number| Change::ForgetJob(Arc::new(job(number, options))))
            .collect();
        store.commit(&changes)?;
        if first % (BATCH * 40) == 0 {
            eprintln!("{first} jobs after {:?}", begun.elapsed());
        }
    }
    let each = begun.elapsed().as_secs_f64() * 1e6 / options.jobs.max(1) as f64;
    report::figure("move of a job into the history", each, "µs", "");
    Ok(())
}

/// The best of three: what is not in the operating system's cache is the disk's matter.
fn timed<T>(name: &str, budget: &str, mut work: impl FnMut() -> Result<T>) -> Result<T> {
    let mut best = Duration::MAX;
    let mut last = None;
    for _ in 0..3 {
        let begun = Instant::now();
        last = Some(work()?);
        best = best.min(begun.elapsed());
    }
    report::figure(name, best.as_secs_f64() * 1_000.0, "ms", budget);
    last.context("it ran")
}

fn searches(history: &History, options: &Options) -> Result<()> {
    let day = |before: u64| (END - before * DAY) as i64;
    let of = |since: i64, until: i64| HistoryFilter {
        since_ms: since,
        until_ms: until,
        ..HistoryFilter::default()
    };
    let own = |filter: HistoryFilter| HistoryFilter {
        users: vec!["user7".to_owned()],
        ..filter
    };
    let year = of(day(options.days), day(0));
    let searches = [
        ("one's own of a day, 100", own(of(day(1), day(0)))),
        ("one's own of a year, 100", own(year.clone())),
        (
            "one's own of a day half a year ago, 100",
            own(of(day(181), day(180))),
        ),
        (
            "everybody's of a day half a year ago, 100",
            of(day(181), day(180)),
        ),
        ("everybody's of a year, 100", year.clone()),
        (
            "an account's failures of a year, 100",
            HistoryFilter {
                accounts: vec!["account7".to_owned()],
                states: vec![JobState::Failed],
                ..year.clone()
            },
        ),
        (
            "a name that nobody uses, of a year, the first answer",
            HistoryFilter {
                names: vec!["nobody".to_owned()],
                ..year
            },
        ),
    ];
    for (name, filter) in searches {
        let page = timed(name, "", || Ok(history.page(&filter, Place::FIRST, 100)?))?;
        eprintln!(
            "{name}: {} jobs, more: {}",
            page.jobs.len(),
            page.looked_to.is_some()
        );
    }
    let one = [JobId(options.jobs / 2)];
    let found = timed("a job by its id", "", || Ok(history.jobs(&one)?))?;
    anyhow::ensure!(found.len() == 1, "the job is found");
    Ok(())
}

fn reports(history: &History) -> Result<()> {
    for (name, days, by, users) in [
        ("use of a day by user", 1, vec![By::User], vec![]),
        (
            "use of 30 days by account and user",
            30,
            vec![By::Account, By::User],
            vec![],
        ),
        ("use of a year by account", 365, vec![By::Account], vec![]),
        ("use of a year by day", 365, vec![By::Day], vec![]),
        (
            "one's own use of 30 days",
            30,
            vec![By::Day],
            vec!["user7".to_owned()],
        ),
    ] {
        let filter = UsageFilter {
            since_ms: (END - days * DAY) as i64,
            until_ms: END as i64,
            users,
            by: by.into_iter().collect(),
            ..UsageFilter::default()
        };
        let sums = timed(name, "", || {
            history
                .usage(&filter, END as i64, usize::MAX)?
                .context("all of them")
        })?;
        eprintln!("{name}: {} lines", sums.len());
    }
    Ok(())
}

/// A broker's start beside that history, with jobs that wait.
fn start(mut store: Store, dir: &std::path::Path, options: &Options) -> Result<()> {
    let pending = (0..options.pending).map(|number| {
        let job = job(options.jobs + number, options);
        Change::PutJob(Arc::new(Job {
            phase: Phase::Pending,
            ..job
        }))
    });
    let pending: Vec<Change> = pending.collect();
    store.commit(&pending)?;
    drop(store);
    timed("start with jobs that wait", "<= 500", || {
        let store = Store::open(dir)?;
        let records = store.load()?;
        let id = ClusterId("bench".into());
        let (broker, _) = Broker::start(Settings::default(), records, id, 7, Timestamp(END));
        anyhow::ensure!(
            broker.state().jobs.len() as u64 == options.pending,
            "they are there"
        );
        Ok(())
    })
}
