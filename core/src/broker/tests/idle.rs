//! Sessions that nobody uses end, with a warning, by what their nodes say; those that are used, or of which nobody
//! knows, do not.

use super::*;
use crate::model::activity::{Counter, HostUse, Seen, Signals, Used};

const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;
/// Between two reports of a node.
const BEAT: Duration = Duration::from_secs(10);

fn minutes(count: u64) -> Duration {
    Duration::from_mins(count)
}

/// After two hours, with a warning half an hour before.
fn with_idle() -> Settings {
    Settings {
        idle: IdleSettings {
            after: Some(minutes(120)),
            ..IdleSettings::default()
        },
        ..settings()
    }
}

fn seen(for_ms: u64) -> Seen {
    Seen {
        for_ms,
        ..Seen::default()
    }
}

/// A world in which somebody plays the nodes.
struct Quiet {
    world: World,
    job: JobId,
    nodes: Vec<&'static str>,
    /// Since when the nodes' agents look, and the last of each sign of use.
    since: Timestamp,
    active: Signals<Option<Timestamp>>,
    counter: Counter,
    host: HostUse,
}

impl Quiet {
    /// A session that has just become ready.
    fn new(settings: Settings, spec: SessionSpec) -> Self {
        let mut world = World::with(settings, &["n1", "n2"]);
        let (_, job) = world.open("alice", open("dev", spec));
        let parts = &world.job(job).placed().expect("placed").allocation.nodes;
        let nodes = ["n1", "n2"]
            .into_iter()
            .filter(|name| parts.iter().any(|part| part.node == node(name)));
        let mut quiet = Self {
            nodes: nodes.collect(),
            since: world.now,
            active: Signals::default(),
            counter: Counter::default(),
            host: HostUse::default(),
            world,
            job,
        };
        quiet.beat();
        assert_eq!(quiet.world.state(job), JobState::Running);
        quiet
    }

    fn key(&self) -> JobKey {
        self.world.job(self.job).key().expect("placed")
    }

    /// All nodes speak, ten seconds later.
    fn beat(&mut self) {
        self.world.wait(BEAT);
        for name in self.nodes.clone() {
            self.speak(name);
        }
    }

    fn speak(&mut self, name: &str) {
        let now = self.world.now;
        let ago = |at: Option<Timestamp>| at.map(|at| now.0 - at.0);
        if self.world.state(self.job) == JobState::Running || self.world.job(self.job).key().is_some() {
            let seen = Seen {
                ago_ms: Signals {
                    gpu: ago(self.active.gpu),
                    cpu: ago(self.active.cpu),
                    input: ago(self.active.input),
                    connection: ago(self.active.connection),
                },
                ..seen(now.0 - self.since.0)
            };
            let said = Activity {
                seen: Some(seen),
                counter: self.counter.clone(),
                host: self.host,
            };
            self.world.activity = [(self.key(), said)].into();
        }
        let phase = match self.world.state(self.job) {
            JobState::Completing => ObservedPhase::Released,
            _ => ObservedPhase::Ready,
        };
        let told = self.world.seen(self.job, name, phase);
        self.world.report(name, vec![told]);
    }

    /// Time passes, with reports all the time, until a session is warned or over; how long that was.
    fn until(&mut self, most: u64, what: impl Fn(&Self) -> bool) -> Duration {
        let began = self.world.now;
        while !what(self) && self.world.now.since(began).as_millis() < u128::from(most) {
            self.beat();
        }
        self.world.now.since(began)
    }

    fn pass(&mut self, ms: u64) {
        self.until(ms, |_| false);
    }

    fn warned(&self) -> Option<IdleEnd> {
        self.world.broker.state().idle.get(&self.job).copied()
    }

    fn idle_ends(&self, name: &str) -> Option<Timestamp> {
        let desired = self.world.broker.desired(&node(name)).expect("desired");
        desired.jobs.first().and_then(|job| job.idle_ends)
    }

    fn used(&self) -> JobUse {
        let state = self.world.broker.state();
        state.job_use(&state.jobs[&self.job]).expect("it runs")
    }

    fn is_over(&self) -> bool {
        self.world.state(self.job) != JobState::Running
    }
}

/// About as long as was meant: reports come every ten seconds.
fn about(time: Duration, minutes: u64) {
    let meant = Duration::from_mins(minutes);
    assert!(time.abs_diff(meant) <= 3 * BEAT, "{time:?}, not {meant:?}");
}

#[test]
fn an_idle_session_is_warned_and_then_ends() {
    let mut quiet = Quiet::new(with_idle(), gpus(4));
    about(quiet.until(3 * HOUR, |this| this.warned().is_some()), 90);
    let about_to = quiet.warned().expect("warned");
    assert_eq!(quiet.idle_ends("n1"), Some(about_to.ends), "its node tells of it");
    quiet.beat();
    let used = quiet.used();
    assert!(used.warned);
    assert_eq!(used.held_by, "nothing for 1 h 30 min: ends in 29 min");
    assert_eq!(used.ends, Some(about_to.ends));
    assert_eq!(used.after, Some(minutes(120)));
    about(quiet.until(HOUR, Quiet::is_over), 30);
    assert_eq!(quiet.world.state(quiet.job), JobState::Completing);
    quiet.beat();
    assert_eq!(quiet.world.state(quiet.job), JobState::Timeout);
    let reason = quiet.world.reason(quiet.job);
    assert!(reason.starts_with("idle since 1970-01-01T00:16Z: "), "{reason}");
    // The session stays, and starts again.
    let (_, again) = quiet.world.open("alice", open("dev", gpus(4)));
    assert_ne!(again, quiet.job);
    assert_eq!(quiet.warned(), None);
}

#[test]
fn each_sign_of_use_keeps_a_session() {
    type Sign = fn(&mut Signals<Option<Timestamp>>) -> &mut Option<Timestamp>;
    let signs: [(Sign, &str); 4] = [
        (|signals| &mut signals.gpu, "gpu"),
        (|signals| &mut signals.cpu, "cpu"),
        (|signals| &mut signals.input, "terminal input 10 s ago"),
        (|signals| &mut signals.connection, "connection 10 s ago"),
    ];
    for (sign, held_by) in signs {
        let mut quiet = Quiet::new(with_idle(), gpus(1));
        for _ in 0..6 {
            quiet.pass(HOUR);
            *sign(&mut quiet.active) = Some(quiet.world.now);
            quiet.beat();
            assert_eq!(quiet.warned(), None);
            let used = quiet.used();
            assert_eq!((used.held_by.as_str(), used.idle_since), (held_by, None));
        }
        // Between warning and end it is taken back.
        quiet.until(3 * HOUR, |this| this.warned().is_some());
        assert!(quiet.idle_ends("n1").is_some());
        *sign(&mut quiet.active) = Some(quiet.world.now);
        quiet.beat();
        assert_eq!((quiet.warned(), quiet.idle_ends("n1")), (None, None));
        quiet.pass(HOUR);
        assert!(!quiet.is_over());
    }
}

#[test]
fn a_session_may_ask_for_less_and_not_for_more() {
    let asking = |time| {
        let mut spec = gpus(1);
        spec.container.idle = Some(time);
        spec
    };
    let mut quiet = Quiet::new(with_idle(), asking(minutes(20)));
    // Not half of it is over before the warning.
    about(quiet.until(HOUR, |this| this.warned().is_some()), 10);
    about(quiet.until(HOUR, Quiet::is_over), 10);
    let refused = World::with(with_idle(), &["n1"])
        .handle(Input::OpenSession(
            caller("alice"),
            open("dev", asking(minutes(121))),
        ))
        .expect_err("longer than the cluster's");
    assert!(refused.message.contains("idle time of 2 h 1 min"), "{refused:?}");
    assert_eq!(refused.hint, "the longest is 2 h");
    // Where the cluster says nothing, the session's wish counts, and without one it stays.
    let mut quiet = Quiet::new(settings(), asking(minutes(20)));
    quiet.until(HOUR, Quiet::is_over);
    assert!(quiet.is_over());
    let mut quiet = Quiet::new(settings(), gpus(1));
    quiet.pass(5 * HOUR);
    assert!(!quiet.is_over());
    let used = quiet.used();
    assert_eq!((used.ends, used.after), (None, None));
    assert!(used.held_by.starts_with("started 5 h"), "{used:?}");
}

#[test]
fn an_extension_is_use() {
    let mut quiet = Quiet::new(with_idle(), gpus(1));
    quiet.until(3 * HOUR, |this| this.warned().is_some());
    let dev = || "dev".parse().expect("a name");
    quiet
        .world
        .must(Input::ExtendSession(caller("alice"), dev(), minutes(60)));
    assert_eq!((quiet.warned(), quiet.idle_ends("n1")), (None, None));
    quiet.beat();
    assert_eq!(quiet.used().held_by, "extended 10 s ago");
    // It is remembered over a restart of the broker.
    quiet.world.restart_with(with_idle(), 8);
    about(quiet.until(3 * HOUR, |this| this.warned().is_some()), 90);
}

#[test]
fn who_is_not_heard_of_is_not_ended() {
    // An agent that says nothing of use, as one from before it could.
    let mut quiet = Quiet::new(with_idle(), gpus(1));
    quiet.until(3 * HOUR, |this| this.warned().is_some());
    for _ in 0..1_000 {
        quiet.world.wait(BEAT);
        quiet.world.activity.clear();
        let told = quiet.world.seen(quiet.job, "n1", ObservedPhase::Ready);
        quiet.world.report("n1", vec![told]);
    }
    assert!(!quiet.is_over());
    assert_eq!(quiet.used().held_by, "not measured");

    // One that has looked at nothing lately.
    for _ in 0..1_000 {
        quiet.world.wait(BEAT);
        quiet.world.activity = [(quiet.key(), Activity::default())].into();
        let told = quiet.world.seen(quiet.job, "n1", ObservedPhase::Ready);
        quiet.world.report("n1", vec![told]);
    }
    assert!(!quiet.is_over());

    // A node that is silent, and comes back with a new agent: what was between, nobody saw.
    let mut quiet = Quiet::new(with_idle(), gpus(1));
    quiet.until(3 * HOUR, |this| this.warned().is_some());
    quiet.world.must(Input::Disconnected(node("n1")));
    for _ in 0..30 {
        quiet.world.wait(BEAT);
        quiet.world.must(Input::Tick);
    }
    assert!(!quiet.is_over());
    quiet.since = quiet.world.now;
    quiet.beat();
    assert_eq!(quiet.warned(), None);
    about(quiet.until(3 * HOUR, |this| this.warned().is_some()), 90);
}

#[test]
fn a_gang_is_as_used_as_the_most_used_of_it_and_ends_only_with_all_heard() {
    let mut spec = gpus(8);
    spec.request.nodes = 2;
    let mut quiet = Quiet::new(with_idle(), spec);
    assert_eq!(quiet.nodes.len(), 2);
    // The second node is used, the first is not.
    for _ in 0..2_000 {
        quiet.world.wait(BEAT);
        quiet.active.gpu = None;
        quiet.speak("n1");
        quiet.active.gpu = Some(quiet.world.now);
        quiet.speak("n2");
        assert_eq!(quiet.warned(), None);
    }
    quiet.active.gpu = Some(quiet.world.now);
    quiet.until(3 * HOUR, |this| this.warned().is_some());
    assert!(quiet.idle_ends("n1").is_some() && quiet.idle_ends("n2").is_some());
    // One is not heard any more.
    quiet.nodes = vec!["n1"];
    quiet.world.must(Input::Disconnected(node("n2")));
    for _ in 0..40 {
        quiet.beat();
    }
    assert!(!quiet.is_over());
    quiet.nodes = vec!["n1", "n2"];
    quiet.until(HOUR, Quiet::is_over);
    assert!(quiet.is_over());
}

/// A node that acts on nothing has warned nobody.
#[test]
fn nobody_is_ended_without_a_warning() {
    let mut quiet = Quiet::new(with_idle(), gpus(1));
    quiet.until(3 * HOUR, |this| this.warned().is_some());
    let link = |this: &Quiet| this.world.broker.state().links[&node("n1")].generation;
    let stuck = link(&quiet) - 1;
    for _ in 0..360 {
        quiet.world.wait(BEAT);
        let told = quiet.world.seen(quiet.job, "n1", ObservedPhase::Ready);
        let ago = quiet.world.now.0 - quiet.since.0;
        let said = Activity {
            seen: Some(seen(ago)),
            counter: Counter::default(),
            host: HostUse::default(),
        };
        quiet.world.activity = [(quiet.key(), said)].into();
        quiet.world.report_at("n1", vec![told], stuck);
    }
    assert!(!quiet.is_over());
    // Once it does, there is time again.
    quiet.beat();
    quiet.beat();
    about(quiet.until(2 * HOUR, Quiet::is_over), 30);
}

#[test]
fn a_clock_that_is_set_forward_and_a_new_start_end_nobody() {
    let mut quiet = Quiet::new(with_idle(), gpus(1));
    quiet.active.gpu = Some(quiet.world.now);
    quiet.pass(HOUR);
    // The wall clock jumps: what nodes say is counted back from when they say it.
    let jump = Duration::from_hours(5);
    quiet.world.wait(jump);
    let later = |at: Timestamp| at.after(jump);
    quiet.since = later(quiet.since);
    quiet.active.gpu = quiet.active.gpu.map(later);
    quiet.world.must(Input::ClockStepped(jump));
    quiet.world.must(Input::Tick);
    quiet.beat();
    assert_eq!(quiet.warned(), None);
    about(quiet.until(3 * HOUR, |this| this.warned().is_some()), 30);

    // What is left after a warning is a length of time.
    let before = quiet.warned().expect("warned");
    quiet.world.wait(jump);
    quiet.since = later(quiet.since);
    quiet.active.gpu = quiet.active.gpu.map(later);
    quiet.world.must(Input::ClockStepped(jump));
    assert_eq!(quiet.warned().expect("warned").ends, before.ends.after(jump));
    quiet.beat();
    assert!(!quiet.is_over());

    // A broker that starts knows of no warning: it gives one.
    quiet.pass(25 * MINUTE);
    quiet.world.restart_with(with_idle(), 8);
    assert_eq!(quiet.warned(), None);
    quiet.beat();
    assert!(quiet.warned().is_some());
    about(quiet.until(3 * HOUR, Quiet::is_over), 30);
}

#[test]
fn batch_jobs_are_never_idle() {
    let mut quiet = Quiet::new(with_idle(), gpus(1));
    let mut job = quiet.world.job(quiet.job).clone();
    assert!(quiet.world.broker.state().idle_policy(&job).is_some());
    job.kind = crate::model::job::JobKind::Batch;
    assert_eq!(quiet.world.broker.state().idle_policy(&job), None);
    let warnings = quiet
        .world
        .broker
        .state()
        .idle_warnings(quiet.world.job(quiet.job));
    assert_eq!(warnings, [30, 10, 5, 1].map(minutes));
    quiet.pass(MINUTE);
}

#[test]
fn what_is_counted_is_kept_now_and_then_and_at_the_end() {
    let mut quiet = Quiet::new(settings(), gpus(2));
    let count = |quiet: &mut Quiet, since, busy| {
        quiet.counter = Counter {
            since,
            by_model: [(
                "H100".to_owned(),
                Used {
                    busy,
                    measured: 2 * busy,
                },
            )]
            .into(),
        };
    };
    let kept = |quiet: &Quiet| {
        let placed = quiet.world.job(quiet.job).last_placed().cloned().expect("placed");
        placed.ranks[0].metered.total().get("H100").map(|used| used.busy)
    };
    assert_eq!(kept(&quiet), None);
    count(&mut quiet, 5, 100);
    quiet.beat();
    assert_eq!(kept(&quiet), Some(100));
    let written = quiet.world.store.len();
    count(&mut quiet, 5, 200);
    quiet.beat();
    assert_eq!(quiet.world.store.len(), written, "not at each report");
    quiet.pass(6 * MINUTE);
    assert_eq!(kept(&quiet), Some(200));
    // Another agent counts anew; what the one before had counted is not lost.
    count(&mut quiet, 5, 300);
    quiet.beat();
    count(&mut quiet, 900, 10);
    quiet.beat();
    assert_eq!(kept(&quiet), Some(310));
    quiet.world.restart(8);
    count(&mut quiet, 900, 20);
    quiet.beat();
    count(&mut quiet, 900, 30);
    let dev = || "dev".parse().expect("a name");
    quiet.world.must(Input::StopSession(caller("alice"), dev(), None));
    quiet.beat();
    assert_eq!(quiet.world.state(quiet.job), JobState::Completed);
    assert_eq!(kept(&quiet), Some(330));
}

fn host(user_us: u64, peak_bytes: u64) -> HostUse {
    HostUse {
        user_us,
        system_us: 0,
        memory_bytes: peak_bytes / 2,
        peak_bytes,
    }
}

#[test]
fn cpu_time_and_memory_are_known_at_once_and_kept_now_and_then_and_at_the_end() {
    const SECOND: u64 = 1_000_000;
    let mut quiet = Quiet::new(settings(), gpus(2));
    let known = |quiet: &Quiet| {
        let state = quiet.world.broker.state();
        state.host_use(quiet.world.job(quiet.job))[0]
    };
    let kept = |quiet: &Quiet| {
        let placed = quiet.world.job(quiet.job).last_placed().cloned().expect("placed");
        placed.ranks[0].metered.host
    };
    assert!(known(&quiet).is_nothing());
    quiet.host = host(SECOND, 1 << 30);
    quiet.beat();
    quiet.pass(6 * MINUTE);
    assert_eq!((known(&quiet), kept(&quiet)), (quiet.host, quiet.host));
    // Next to nothing is not worth a write, nor is each report.
    let written = quiet.world.store.len();
    quiet.host = host(SECOND + 900_000, 1 << 30);
    quiet.pass(6 * MINUTE);
    assert_eq!(quiet.world.store.len(), written);
    quiet.host = host(9 * SECOND, 3 << 30);
    quiet.beat();
    assert_eq!(known(&quiet), quiet.host);
    quiet.pass(6 * MINUTE);
    assert_eq!(kept(&quiet), quiet.host);
    // Another agent has not seen the peak that the one before it saw last.
    quiet.host = host(10 * SECOND, 4 << 30);
    quiet.beat();
    assert_eq!(kept(&quiet), quiet.host);
    quiet.host = host(10 * SECOND, 5 << 30);
    quiet.beat();
    assert_eq!(kept(&quiet).peak_bytes, 4 << 30, "it was kept just now");
    // Nor, at first, anything at all.
    quiet.world.activity.clear();
    for name in quiet.nodes.clone() {
        let seen = quiet.world.seen(quiet.job, name, ObservedPhase::Ready);
        quiet.world.report(name, vec![seen]);
    }
    assert_eq!(kept(&quiet).peak_bytes, 5 << 30);
    (quiet.host, quiet.counter.since) = (host(11 * SECOND, 1 << 20), 900);
    quiet.beat();
    assert_eq!(
        (kept(&quiet).user_us, kept(&quiet).peak_bytes),
        (11 * SECOND, 5 << 30)
    );
    quiet.world.restart(8);
    assert_eq!(
        (known(&quiet).user_us, known(&quiet).peak_bytes),
        (11 * SECOND, 5 << 30)
    );
    // The last word is the one that counts.
    quiet.beat();
    quiet.host = host(11 * SECOND + 1, 2 << 20);
    let dev = || "dev".parse().expect("a name");
    quiet.world.must(Input::StopSession(caller("alice"), dev(), None));
    quiet.beat();
    assert_eq!(quiet.world.state(quiet.job), JobState::Completed);
    assert_eq!(
        (kept(&quiet).user_us, kept(&quiet).peak_bytes),
        (11 * SECOND + 1, 5 << 30)
    );
    assert_eq!(known(&quiet).memory_bytes, 0, "it is over");
}

#[test]
fn who_runs_out_of_memory_is_told_of_peak_and_limit() {
    let mut quiet = Quiet::new(settings(), gpus(1));
    let limit = quiet
        .world
        .job(quiet.job)
        .placed()
        .expect("placed")
        .allocation
        .nodes[0]
        .memory_bytes;
    let told = |quiet: &mut Quiet, name| ObservedJob {
        cause: Some(EndCause::OutOfMemory),
        exit_code: Some(137),
        ..quiet.world.seen(quiet.job, name, ObservedPhase::Stopping)
    };
    let name = quiet.nodes[0];
    quiet.host = host(5, limit);
    quiet.beat();
    let told = told(&mut quiet, name);
    quiet.world.report(name, vec![told]);
    let limit = crate::placement::Bytes(limit);
    let reason = quiet.world.reason(quiet.job);
    assert_eq!(
        reason,
        format!(
            "ran out of memory and was ended by the kernel (node {name}; its peak was {limit} of {limit})"
        )
    );
}
