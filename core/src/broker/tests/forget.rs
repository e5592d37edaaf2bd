//! Jobs that are over leave the state; what they have used, and what is said of them, stays.

use super::*;
use crate::model::start::{Conditions, Dependency, DependencyKind};
use crate::queue::{Holder, Usage};

fn short_lived() -> Settings {
    Settings {
        jobs_in_memory: Duration::from_mins(10),
        ..settings()
    }
}

impl World {
    /// A job of so many GPUs that runs for so long, as an ephemeral session's.
    fn ran(&mut self, user: &str, name: &str, count: u32, time: Duration) -> JobId {
        let request = OpenSession {
            ephemeral: true,
            ..open(name, gpus(count))
        };
        let (_, id) = self.open(user, request);
        let ready = self.seen(id, "n1", ObservedPhase::Ready);
        self.report("n1", vec![ready]);
        self.wait(time);
        let mut gone = self.seen(id, "n1", ObservedPhase::Released);
        gone.cause = Some(EndCause::Exited);
        gone.exit_code = Some(0);
        self.report("n1", vec![gone]);
        assert_eq!(self.state(id), JobState::Completed);
        self.report("n1", vec![]);
        id
    }

    fn tick(&mut self) {
        self.report("n1", vec![]);
        self.must(Input::Tick);
    }

    fn knows(&self, id: JobId) -> bool {
        self.broker.state().jobs.contains_key(&id)
    }

    fn used(&self, user: &str) -> Usage {
        let user = Holder::User(user.parse().expect("a name"));
        self.broker.state().tallies.of(&user).usage
    }
}

/// Decayed use is a sum of roundings in another order.
fn alike(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(1.0)
}

#[test]
fn what_is_over_leaves_and_stays_counted_over_restarts() {
    let mut world = World::with(short_lived(), &["n1"]);
    let (first, second) = (
        world.ran("alice", "a", 4, Duration::from_mins(30)),
        world.ran("alice", "b", 2, Duration::from_mins(7)),
    );
    let decay = world.broker.state().settings.queue.decay();
    let headroom = world.broker.state().headroom(world.now);
    world.wait(Duration::from_mins(9));
    world.tick();
    assert!(
        !world.knows(first) || world.knows(second),
        "the oldest leaves first"
    );
    world.wait(Duration::from_mins(11));
    let before = world.used("alice");
    world.tick();
    assert!(!world.knows(first) && !world.knows(second));
    assert_eq!(world.used("alice"), before, "use is not forgotten with the job");
    let forgotten = world
        .store
        .iter()
        .filter(|change| matches!(change, Change::ForgetJob(_)));
    assert_eq!(forgotten.count(), 2);

    world.restart_with(short_lived(), 8);
    let after = world.used("alice");
    assert!(alike(
        before.decayed(world.now, decay),
        after.decayed(world.now, decay)
    ));
    assert_eq!(
        before.in_period(world.now, decay),
        after.in_period(world.now, decay)
    );
    assert!(after.in_period(world.now, decay) > 0);
    // As much is kept for interactive jobs as if they were still known.
    world.report("n1", vec![]);
    let kept = world.broker.state().headroom(world.now);
    assert_eq!(kept.len(), headroom.len());
    assert!(!world.broker.state().past_demand.is_empty());
}

/// A move of the account counts everything anew, what has left too.
#[test]
fn what_has_left_moves_with_its_account() {
    let mut world = World::with(short_lived(), &["n1"]);
    let lab: crate::model::ids::AccountName = "lab".parse().expect("a name");
    let top: crate::model::ids::AccountName = "top".parse().expect("a name");
    let make = |name: &crate::model::ids::AccountName, way, parent| {
        let edit = AccountEdit {
            parent,
            ..AccountEdit::default()
        };
        Input::Edit(caller("root"), Box::new(Edit::Account(name.clone(), way, edit)))
    };
    world.must(make(&lab, Way::Add, None));
    world.must(make(&top, Way::Add, None));
    let member = Edit::Members(
        lab.clone(),
        Way::Add,
        ["alice".parse().expect("a name")].into(),
        MemberEdit::default(),
    );
    world.must(Input::Edit(caller("root"), Box::new(member)));
    let id = world.ran("alice", "a", 4, Duration::from_mins(30));
    world.wait(Duration::from_mins(11));
    world.tick();
    assert!(!world.knows(id));
    let decay = world.broker.state().settings.queue.decay();
    let of = |world: &World, account: &crate::model::ids::AccountName| {
        let tally = world.broker.state().tallies.of(&Holder::Account(account.clone()));
        tally.usage.in_period(world.now, decay)
    };
    assert_eq!(of(&world, &top), 0);
    world.must(make(&lab, Way::Set, Some(Some(top.clone()))));
    assert!(of(&world, &lab) > 0);
    assert_eq!(of(&world, &top), of(&world, &lab));
}

#[test]
fn what_something_refers_to_stays() {
    let mut world = World::with(short_lived(), &["n1"]);
    // A session shows its last job.
    let (_, shown) = world.open("alice", open("dev", gpus(1)));
    let ready = world.seen(shown, "n1", ObservedPhase::Ready);
    world.report("n1", vec![ready]);
    world.must(Input::StopSession(
        caller("alice"),
        "dev".parse().expect("a name"),
        None,
    ));
    let gone = world.seen(shown, "n1", ObservedPhase::Released);
    world.report("n1", vec![gone]);
    // A job waits for one that failed, and will be told so for as long as it waits.
    let awaited = world.ran("alice", "a", 1, Duration::from_mins(1));
    let never = StartWish {
        conditions: Conditions {
            dependencies: vec![Dependency {
                kind: DependencyKind::AfterNotOk,
                job: awaited,
                task: None,
            }],
            ..Conditions::default()
        },
        ..StartWish::default()
    };
    let (_, waits) = world.open(
        "alice",
        OpenSession {
            start: never,
            ..open("later", gpus(1))
        },
    );
    let why = world.reason(waits);
    // And a node still speaks of one.
    let spoken = world.ran("alice", "b", 1, Duration::from_mins(1));
    let seen = world.seen(spoken, "n1", ObservedPhase::Released);
    world.wait(Duration::from_mins(30));
    world.report("n1", vec![seen]);
    world.must(Input::Tick);
    assert!(world.knows(shown) && world.knows(awaited) && world.knows(spoken));
    assert_eq!(world.reason(waits), why);

    world.wait(Duration::from_mins(1));
    world.tick();
    assert!(!world.knows(spoken), "the node has done with it");
    world.must(Input::RemoveSession(
        caller("alice"),
        "later".parse().expect("a name"),
    ));
    world.must(Input::RemoveSession(
        caller("alice"),
        "dev".parse().expect("a name"),
    ));
    world.wait(Duration::from_mins(30));
    world.tick();
    assert!(!world.knows(shown) && !world.knows(awaited) && !world.knows(waits));
}
