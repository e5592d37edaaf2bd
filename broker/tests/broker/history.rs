//! Jobs that are over, and what was held, against a model that looks at everything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use carrel_broker::store::{
    By, Entry, History, HistoryFilter, Place, Store, UsageFilter, UsageKey, UsageSum,
};
use carrel_core::broker::Change;
use carrel_core::model::activity::{Counter, Metered, Used};
use carrel_core::model::ids::{Generation, JobId};
use carrel_core::model::job::{Charge, Ending, Job, JobKind, JobState, PastRun, Phase, Placed, RankStatus};
use carrel_core::model::resources::{Allocation, ResourceRequest};
use carrel_core::model::start::Conditions;
use carrel_core::model::terms::Terms;
use carrel_core::model::time::Timestamp;

const HOUR: u64 = 3_600_000;
/// Everything happens in so many hours.
const HOURS: u64 = 24 * 20;
/// Days are told apart from here on.
const BEGIN: u64 = 400_000 * HOUR;
const USERS: [&str; 3] = ["alice", "bob", "carol"];
const ACCOUNTS: [&str; 2] = ["lab", "physics"];
const MODELS: [&str; 3] = ["", "A100", "H100"];
const STATES: [JobState; 4] = [
    JobState::Completed,
    JobState::Failed,
    JobState::Timeout,
    JobState::Cancelled,
];

/// Knuth's linear congruential generator (MMIX).
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len() as u64) as usize]
    }
}

fn at(hour: u64) -> Timestamp {
    Timestamp(BEGIN + hour * HOUR)
}

fn placed(rng: &mut Rng, started: u64) -> Placed {
    let mut models: BTreeSet<&str> = BTreeSet::new();
    for _ in 0..=rng.below(2) {
        models.insert(MODELS[rng.below(3) as usize]);
    }
    let charges: Vec<Charge> = models
        .into_iter()
        .map(|model| Charge {
            model: model.to_owned(),
            gpu_milli: if model.is_empty() {
                0
            } else {
                500 * (1 + rng.below(16))
            },
            billing_milli: 100 * (1 + rng.below(100)),
        })
        .collect();
    Placed {
        generation: Generation::default(),
        allocation: Allocation::default(),
        started: at(started),
        deadline: at(HOURS * 2),
        billing_milli: charges.iter().map(|charge| charge.billing_milli).sum(),
        charges,
        ranks: Vec::new(),
        ending: None,
        leaving: None,
        extended: None,
        signalled: None,
    }
}

/// What a job has been so far, and what it is in the end: waiting, running, over, or over without having run.
fn life(rng: &mut Rng, id: u64) -> Vec<Job> {
    let mut hour = rng.below(HOURS - 60);
    let mut job = Job {
        id: JobId(id),
        name: format!("job{}", rng.below(4)),
        kind: JobKind::Batch,
        owner: rng.pick(&USERS).parse().expect("a name"),
        session: None,
        request: ResourceRequest::default().into(),
        time_limit: Duration::from_hours(1),
        submitted: at(hour),
        after: None,
        terms: Terms {
            account: rng.pick(&ACCOUNTS).parse().expect("a name"),
            ..Terms::default()
        },
        hold: None,
        begin: None,
        conditions: Conditions::default(),
        give_up: None,
        past_runs: Vec::new(),
        requeue: true,
        batch: None,
        array: None,
        phase: Phase::Pending,
    };
    let mut states = vec![job.clone()];
    for turn in 0..=rng.below(3) {
        hour += rng.below(5);
        let held = placed(rng, hour);
        job.phase = Phase::Placed(Box::new(held.clone()));
        states.push(job.clone());
        hour += rng.below(12);
        match rng.below(4) {
            0 if turn > 0 => return states,
            1 => {
                job.past_runs.push(PastRun {
                    generation: held.generation,
                    started: held.started,
                    ended: at(hour),
                    billing_milli: held.billing_milli,
                    state: JobState::Preempted,
                    for_job: None,
                    failed_soon_on: Vec::new(),
                });
                job.phase = Phase::Pending;
                states.push(job.clone());
                // It waits for a moment at least: what runs again began later.
                hour += 1;
            }
            _ => {
                job.phase = Phase::Ended {
                    ending: Ending {
                        state: *rng.pick(&STATES),
                        reason: String::new(),
                        exit_code: None,
                    },
                    at: at(hour),
                    last: Some(Box::new(held)),
                };
                states.push(job);
                return states;
            }
        }
    }
    states
}

struct World {
    _dir: tempfile::TempDir,
    history: History,
    store: Store,
    lives: Vec<Vec<Job>>,
}

impl World {
    /// Every state of every job is committed, many jobs in a transaction, as a broker does.
    fn new(rng: &mut Rng, jobs: u64) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let mut store = Store::open(dir.path()).expect("opened");
        let lives: Vec<Vec<Job>> = (1..=jobs).map(|id| life(rng, id)).collect();
        let longest = lives.iter().map(Vec::len).max().unwrap_or(0);
        for turn in 0..longest {
            let states = lives.iter().filter_map(|life| life.get(turn));
            let changes: Vec<Change> = states.map(|job| Change::PutJob(Arc::new(job.clone()))).collect();
            store.commit(&changes).expect("committed");
        }
        Self {
            history: History::new(dir.path()),
            _dir: dir,
            store,
            lives,
        }
    }

    fn over(&self) -> Vec<&Job> {
        let last = self.lives.iter().filter_map(|life| life.last());
        last.filter(|job| job.state().is_final()).collect()
    }

    fn forget_all(&mut self) {
        let forgotten = self
            .over()
            .into_iter()
            .map(|job| Change::ForgetJob(Arc::new(job.clone())));
        let forgotten: Vec<Change> = forgotten.collect();
        self.store.commit(&forgotten).expect("committed");
    }
}

#[test]
fn a_search_finds_what_a_look_at_every_job_finds() {
    let mut rng = Rng(7);
    let mut world = World::new(&mut rng, 400);
    world.forget_all();
    let left = world.store.load().expect("loaded");
    assert_eq!(
        left.len(),
        world.lives.len() - world.over().len(),
        "what is over has left"
    );
    let all = world.over();
    let mut found_any = 0;
    for _ in 0..300 {
        let (a, b) = (rng.below(HOURS), rng.below(HOURS));
        let some = |rng: &mut Rng, all: &[&str]| -> Vec<String> {
            let count = rng.below(3);
            (0..count).map(|_| (*rng.pick(all)).to_owned()).collect()
        };
        let filter = HistoryFilter {
            since_ms: at(a.min(b)).millis(),
            until_ms: at(a.max(b) + 1).millis(),
            users: some(&mut rng, &USERS),
            accounts: some(&mut rng, &ACCOUNTS),
            states: (0..rng.below(2)).map(|_| *rng.pick(&STATES)).collect(),
            names: some(&mut rng, &["job1", "job2", "none"]),
            jobs: (0..rng.below(40).saturating_sub(30))
                .map(|_| JobId(rng.below(420)).into())
                .collect(),
            ..HistoryFilter::default()
        };
        let mut expected: Vec<&Job> = all
            .iter()
            .copied()
            .filter(|job| filter.takes(&Entry::of(job)))
            .collect();
        expected.sort_by_key(|job| std::cmp::Reverse(Entry::of(job).place()));
        found_any += usize::from(!expected.is_empty());
        // Page by page, to the end.
        let (mut found, mut after) = (Vec::new(), Place::FIRST);
        let most = 1 + rng.below(30) as usize;
        loop {
            let page = world.history.page(&filter, after, most).expect("read");
            assert!(page.jobs.len() <= most);
            found.extend(page.jobs);
            let Some(place) = page.looked_to else { break };
            assert!(place < after, "it goes on");
            after = place;
        }
        assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{filter:?}");
    }
    assert!(found_any > 100, "{found_any}");
}

/// Every run of a job: user, account, model, GPUs, what they count as, from and until which hour; none: it goes on.
type RunOf<'a> = (&'a Job, &'a Charge, u64, Option<u64>);

fn runs(lives: &[Vec<Job>]) -> Vec<RunOf<'_>> {
    let hour = |at: Timestamp| (at.0 - BEGIN) / HOUR;
    let mut runs = Vec::new();
    for life in lives {
        for (number, job) in life.iter().enumerate() {
            let Some(placed) = job.placed() else { continue };
            let end = life.get(number + 1).map(|next| match &next.phase {
                Phase::Ended { at, .. } => hour(*at),
                Phase::Pending | Phase::Placed(_) => hour(next.past_runs.last().expect("a run").ended),
            });
            runs.extend(
                placed
                    .charges
                    .iter()
                    .map(|charge| (job, charge, hour(placed.started), end)),
            );
        }
    }
    runs
}

fn hour_by_hour(runs: &[RunOf<'_>], filter: &UsageFilter, now: u64) -> BTreeMap<UsageKey, UsageSum> {
    let mut sums: BTreeMap<UsageKey, (UsageSum, BTreeSet<(JobId, u64)>)> = BTreeMap::new();
    for (job, charge, from, to) in runs {
        let (user, account) = (job.owner.to_string(), job.terms.account.to_string());
        let is = |wanted: &[String], own: &String| wanted.is_empty() || wanted.contains(own);
        if !is(&filter.users, &user) || !is(&filter.accounts, &account) {
            continue;
        }
        for hour in *from..to.unwrap_or(now).min(now) {
            let ms = at(hour).millis();
            if ms < filter.since_ms || ms >= filter.until_ms {
                continue;
            }
            let told = |by: By, name: &str| filter.by.contains(&by).then(|| name.to_owned());
            let key = UsageKey {
                day_ms: filter
                    .by
                    .contains(&By::Day)
                    .then_some(ms / 86_400_000 * 86_400_000),
                account: told(By::Account, &account),
                user: told(By::User, &user),
                model: told(By::Model, &charge.model),
            };
            let (sum, jobs) = sums.entry(key).or_default();
            sum.gpu += u128::from(charge.gpu_milli * HOUR);
            sum.billed += u128::from(charge.billing_milli * HOUR);
            jobs.insert((job.id, *from));
        }
    }
    let sums = sums.into_iter().map(|(key, (sum, runs))| {
        let runs = runs.len() as u64;
        (key, UsageSum { runs, ..sum })
    });
    sums.collect()
}

#[test]
fn sums_are_those_of_every_hour_of_every_run() {
    let mut rng = Rng(11);
    let mut world = World::new(&mut rng, 300);
    for round in 0..2 {
        let runs = runs(&world.lives);
        assert!(runs.iter().any(|(.., end)| end.is_none()), "some go on");
        assert!(
            runs.iter().any(|(job, ..)| job.past_runs.len() > 1),
            "some ran often"
        );
        for _ in 0..200 {
            let (a, b) = (rng.below(HOURS), rng.below(HOURS));
            let by = [By::User, By::Account, By::Day, By::Model];
            let filter = UsageFilter {
                since_ms: at(a.min(b)).millis(),
                until_ms: at(a.max(b) + 1).millis(),
                users: (0..rng.below(2))
                    .map(|_| (*rng.pick(&USERS)).to_owned())
                    .collect(),
                accounts: (0..rng.below(2))
                    .map(|_| (*rng.pick(&ACCOUNTS)).to_owned())
                    .collect(),
                by: by.into_iter().filter(|_| rng.below(2) == 0).collect(),
            };
            let now = HOURS - rng.below(100);
            let sums = world.history.usage(&filter, at(now).millis(), usize::MAX);
            let sums = sums.expect("read").expect("not too many");
            assert_eq!(
                sums,
                hour_by_hour(&runs, &filter, now),
                "round {round}: {filter:?}"
            );
        }
        // What has left the state has been used all the same.
        world.forget_all();
    }
    let all = UsageFilter {
        until_ms: i64::MAX,
        by: [By::User, By::Day].into(),
        ..UsageFilter::default()
    };
    let cut = world.history.usage(&all, at(HOURS).millis(), 3).expect("read");
    assert_eq!(cut, None, "more than was wanted is said to be so");
}

/// Of a run use is spread evenly over its time; what was not measured is not nothing.
#[test]
fn measured_use_is_a_part_of_what_was_held() {
    let mut rng = Rng(3);
    let dir = tempfile::tempdir().expect("a directory");
    let mut store = Store::open(dir.path()).expect("opened");
    let mut job = life(&mut rng, 1).swap_remove(0);
    let charge = |model: &str| Charge {
        model: model.to_owned(),
        gpu_milli: 1_000,
        billing_milli: 1_000,
    };
    let mut metered = Metered::default();
    let used = Used {
        busy: 2_000 * HOUR,
        measured: 4_000 * HOUR,
    };
    metered.take(&Counter {
        since: 1,
        by_model: [("H100".to_owned(), used)].into(),
    });
    let held = Placed {
        charges: vec![charge("A100"), charge("H100")],
        ranks: vec![RankStatus {
            metered,
            ..RankStatus::default()
        }],
        ..placed(&mut rng, 10)
    };
    let part = |of: fn(&UsageSum) -> Option<Used>, now: u64| {
        let filter = UsageFilter {
            since_ms: at(11).millis(),
            until_ms: at(12).millis(),
            by: [By::Model].into(),
            ..UsageFilter::default()
        };
        let sums = History::new(dir.path()).usage(&filter, at(now).millis(), usize::MAX);
        let sums = sums.expect("read").expect("not too many");
        let sums = sums
            .into_iter()
            .map(|(key, sum)| (key.model.expect("told apart"), of(&sum)));
        sums.collect::<BTreeMap<String, Option<Used>>>()
    };
    let quarter = Used {
        busy: 500 * HOUR,
        measured: 1_000 * HOUR,
    };
    // While it runs, of the time until now; then of all its time.
    for (phase, now) in [
        (Phase::Placed(Box::new(held.clone())), 14),
        (
            Phase::Ended {
                ending: Ending {
                    state: JobState::Completed,
                    reason: String::new(),
                    exit_code: None,
                },
                at: at(14),
                last: Some(Box::new(held)),
            },
            HOURS,
        ),
    ] {
        job.phase = phase;
        let change = Change::PutJob(Arc::new(job.clone()));
        store.commit(&[change]).expect("committed");
        let used = part(|sum| sum.used, now);
        assert_eq!(used["A100"], None);
        assert_eq!(used["H100"], Some(quarter));
    }
}
