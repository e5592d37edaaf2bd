//! What is reserved is kept from others, and for whom it is.

use super::*;
use crate::model::account::{Account, Member};
use crate::model::ids::ReservationName;
use crate::model::reservation::Every;
use crate::model::resources::Allocation;

fn name(text: &str) -> ReservationName {
    text.parse().expect("a reservation name")
}

fn minutes(count: u64) -> Duration {
    Duration::from_mins(count)
}

fn for_minutes(time: u64, nodes: u32, count: u32) -> SessionSpec {
    let mut spec = SessionSpec {
        time_limit: minutes(time),
        ..gpus(count)
    };
    spec.request.nodes = nodes;
    spec.request.nvlink = false;
    spec.request.cpus_per_node = count * 10;
    spec
}

fn inside(spec: SessionSpec, reservation: &str) -> SessionSpec {
    SessionSpec {
        terms: TermsRequest {
            reservation: Some(name(reservation)),
            ..spec.terms
        },
        ..spec
    }
}

fn nodes(names: &[&str]) -> Wanted {
    Wanted::Nodes(names.iter().map(|name| node(name)).collect())
}

fn some_gpus(count: u32) -> Wanted {
    Wanted::Gpus {
        count,
        model: "h100".into(),
    }
}

impl World {
    /// In so many minutes, for so many.
    fn in_minutes(&self, start: u64, time: u64) -> ReservationEdit {
        ReservationEdit {
            start: Some(self.now.after(minutes(start))),
            duration: Some(minutes(time)),
            ..ReservationEdit::default()
        }
    }

    fn try_reserve(&mut self, by: &str, named: &str, edit: ReservationEdit) -> Result<Vec<String>, Reject> {
        let edit = Edit::Reservation(name(named), Way::Add, edit);
        self.edit_as(by, edit)
    }

    fn edit_as(&mut self, by: &str, edit: Edit) -> Result<Vec<String>, Reject> {
        let output = self.handle(Input::Edit(caller(by), Box::new(edit)))?;
        Ok(match output.reply {
            Reply::Told(told) => told,
            _ => Vec::new(),
        })
    }

    fn reserve(&mut self, named: &str, edit: ReservationEdit) -> Vec<String> {
        self.try_reserve("ops", named, edit).expect("reserved")
    }

    fn tick_in(&mut self, time: u64) {
        self.wait(minutes(time));
        let nodes: Vec<String> = self
            .broker
            .state()
            .nodes
            .keys()
            .map(ToString::to_string)
            .collect();
        let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
        self.catch_up(&nodes);
        self.must(Input::Tick);
    }

    /// Nodes have done what they were told.
    fn catch_up(&mut self, names: &[&str]) {
        for name in names {
            let placed = self.broker.state().placed_on.get(&node(name)).cloned();
            let jobs = placed.into_iter().flatten().map(|id| {
                let over = self
                    .job(id)
                    .placed()
                    .is_some_and(|placed| placed.ending.is_some());
                let phase = if over {
                    ObservedPhase::Released
                } else {
                    ObservedPhase::Ready
                };
                self.seen(id, name, phase)
            });
            let jobs = jobs.collect();
            self.report(name, jobs);
        }
    }

    fn held(&self, id: JobId) -> Allocation {
        self.job(id).placed().expect("placed").allocation.clone()
    }

    fn start_of(&self, id: JobId) -> Option<u64> {
        let start = start_of(self.broker.state(), id, self.now)?;
        Some(start.at.since(self.now).as_secs() / 60)
    }
}

fn alices() -> std::collections::BTreeSet<UserName> {
    ["alice".parse().expect("a user")].into()
}

#[test]
fn a_maintenance_drains_in_time() {
    let mut world = World::new(&["n1", "n2"]);
    let maintenance = ReservationEdit {
        wanted: Some(nodes(&["n1", "n2"])),
        maintenance: Some(true),
        ..world.in_minutes(60, 120)
    };
    world.reserve("upgrade", maintenance);
    // With its grace it is gone by then.
    let (_, short) = world.open("bob", open("short", for_minutes(59, 1, 8)));
    assert_eq!(world.state(short), JobState::Configuring);
    let (_, long) = world.open("bob", open("long", for_minutes(60, 1, 8)));
    assert_eq!(world.state(long), JobState::Pending);
    let begins = world.now.after(minutes(60));
    assert_eq!(
        world.reason(long),
        format!(
            "ReqNodeNotAvail: reserved for maintenance (upgrade) from {} to {}",
            begins.utc(),
            begins.after(minutes(120)).utc()
        )
    );
    // It is promised the time at which the maintenance is over.
    assert_eq!(world.start_of(long), Some(180));
    world.catch_up(&["n1", "n2"]);
    world.tick_in(60);
    world.catch_up(&["n1", "n2"]);
    assert_eq!(world.state(short), JobState::Timeout);
    let (_, tiny) = world.open("alice", open("tiny", for_minutes(1, 1, 1)));
    assert_eq!(world.state(tiny), JobState::Pending, "nothing starts in it");
    world.tick_in(120);
    assert!(world.job(long).placed().is_some());
    assert!(world.job(tiny).placed().is_some());
    assert!(world.broker.state().reservations.is_empty(), "it is over");
}

#[test]
fn a_job_waits_for_its_reservation_and_ends_with_it() {
    let mut world = World::new(&["n1", "n2"]);
    let course = ReservationEdit {
        wanted: Some(nodes(&["n1"])),
        users: Some(alices()),
        ..world.in_minutes(30, 60)
    };
    world.reserve("course", course);
    let (_, own) = world.open("alice", open("own", inside(for_minutes(600, 1, 4), "course")));
    assert_eq!(
        world.reason(own),
        format!(
            "Reservation: reservation course begins at {}",
            world.now.after(minutes(30)).utc()
        )
    );
    assert_eq!(world.start_of(own), Some(30));
    // Others have the other node, however long, and this one until then.
    let (_, other) = world.open("bob", open("other", for_minutes(600, 1, 8)));
    assert_eq!(world.held(other).nodes[0].node, node("n2"));
    let (_, before) = world.open("bob", open("before", for_minutes(20, 1, 8)));
    assert_eq!(world.held(before).nodes[0].node, node("n1"));
    let (_, late) = world.open("bob", open("late", for_minutes(40, 1, 8)));
    assert_eq!(world.state(late), JobState::Pending);
    world.catch_up(&["n1", "n2"]);
    world.tick_in(20);
    world.catch_up(&["n1", "n2"]);
    assert_eq!(world.state(own), JobState::Pending);
    world.tick_in(10);
    assert_eq!(world.held(own).nodes[0].node, node("n1"));
    // It asked for ten hours, and has one.
    let deadline = world.job(own).placed().expect("placed").deadline;
    assert_eq!(deadline, world.now.after(minutes(60)));
    let more = world.handle(Input::ExtendSession(
        caller("alice"),
        "own".parse().expect("a name"),
        minutes(5),
    ));
    let refused = more.expect_err("it ends with its reservation");
    assert!(
        refused
            .message
            .starts_with("reservation course, in which it runs, ends at "),
        "{refused}"
    );
    // What is left of the node is the reservation's.
    let (_, foreign) = world.open("bob", open("foreign", for_minutes(5, 1, 1)));
    assert_eq!(world.state(foreign), JobState::Pending);
    let (_, second) = world.open("alice", open("second", inside(for_minutes(5, 1, 4), "course")));
    assert_eq!(world.state(second), JobState::Configuring);
    let (_, third) = world.open("alice", open("third", inside(for_minutes(5, 1, 1), "course")));
    assert_eq!(world.state(third), JobState::Pending, "{}", world.reason(third));
    assert_eq!(world.start_of(third), Some(5));
    world.catch_up(&["n1", "n2"]);
    world.tick_in(60);
    world.catch_up(&["n1", "n2"]);
    assert_eq!(world.state(own), JobState::Timeout);
    assert_eq!(world.reason(own), "its reservation course has ended");
    world.tick_in(1);
    let is_placed = |id| world.job(id).placed().is_some();
    assert!(is_placed(late) && !is_placed(foreign), "they waited longest");
}

#[test]
fn of_a_part_of_a_node_the_rest_is_for_others() {
    let mut world = World::new(&["n1"]);
    let part = ReservationEdit {
        wanted: Some(some_gpus(4)),
        users: Some(alices()),
        ..world.in_minutes(0, 240)
    };
    world.reserve("part", part);
    let reserved: Vec<_> = {
        let one = &world.broker.state().reservations[&name("part")];
        let parts = world.broker.state().parts_of(one);
        parts[0].gpus.iter().map(|unit| unit.gpu.clone()).collect()
    };
    assert_eq!(reserved.len(), 4);
    let (_, own) = world.open("alice", open("own", inside(for_minutes(60, 1, 2), "part")));
    let (_, others) = world.open("bob", open("others", for_minutes(600, 1, 4)));
    let (_, more) = world.open("bob", open("more", for_minutes(5, 1, 1)));
    let units = |id| -> Vec<_> {
        let held = world.held(id);
        held.nodes[0].gpus.iter().map(|unit| unit.gpu.clone()).collect()
    };
    assert!(units(own).iter().all(|gpu| reserved.contains(gpu)));
    assert!(units(others).iter().all(|gpu| !reserved.contains(gpu)));
    assert_eq!(world.state(more), JobState::Pending);
    let (_, rest) = world.open("alice", open("rest", inside(for_minutes(60, 1, 2), "part")));
    assert_eq!(world.state(rest), JobState::Configuring, "{}", world.reason(rest));
    let (_, full) = world.open("alice", open("full", inside(for_minutes(30, 1, 1), "part")));
    assert_eq!(world.state(full), JobState::Pending);
    assert_eq!(world.start_of(full), Some(60));
    let much = open("much", inside(for_minutes(5, 1, 5), "part"));
    let refused = world.handle(Input::OpenSession(caller("alice"), much));
    let refused = refused.expect_err("more than is reserved");
    assert_eq!(refused.message, "reservation part can never hold that");
}

#[test]
fn one_that_recurs_lets_others_in_between() {
    let mut world = World::new(&["n1"]);
    let nightly = ReservationEdit {
        wanted: Some(nodes(&["n1"])),
        users: Some(alices()),
        every: Some(Some(Every::Daily)),
        ..world.in_minutes(60, 60)
    };
    world.reserve("nightly", nightly);
    let (_, between) = world.open("bob", open("between", for_minutes(20 * 60, 1, 8)));
    assert_eq!(world.state(between), JobState::Pending);
    // Between two nights, and not in the first hour.
    assert_eq!(world.start_of(between), Some(120));
    let (_, own) = world.open("alice", open("own", inside(for_minutes(30, 1, 8), "nightly")));
    world.tick_in(60);
    assert_eq!(world.state(own), JobState::Configuring);
    world.catch_up(&["n1"]);
    world.tick_in(30);
    world.catch_up(&["n1"]);
    assert_eq!(world.state(own), JobState::Timeout);
    assert_eq!(world.reason(own), "reached its time limit");
    world.tick_in(31);
    assert_eq!(world.state(between), JobState::Configuring);
    let (_, next) = world.open("alice", open("next", inside(for_minutes(30, 1, 8), "nightly")));
    assert_eq!(world.start_of(next), Some(24 * 60 - 61));
    // Too long for any gap: it has no start.
    let (_, never) = world.open("bob", open("never", for_minutes(25 * 60, 1, 8)));
    assert_eq!(world.start_of(never), None);
    assert!(
        world.reason(never).starts_with("Resources"),
        "{}",
        world.reason(never)
    );
}

#[test]
fn running_jobs_are_named_that_are_in_the_way() {
    let mut world = World::new(&["n1", "n2"]);
    let (_, long) = world.open("bob", open("long", for_minutes(600, 1, 1)));
    let held = world.held(long).nodes[0].node.clone();
    let both = ReservationEdit {
        wanted: Some(nodes(&["n1", "n2"])),
        users: Some(alices()),
        ..world.in_minutes(60, 60)
    };
    let refused = world.try_reserve("ops", "both", both.clone());
    let refused = refused.expect_err("a job runs for longer");
    let until = world.now.after(minutes(600)).after(Duration::from_secs(10));
    assert_eq!(
        refused.message,
        format!(
            "jobs will still run when it begins: job {long} of bob on {held} until {}",
            until.utc()
        )
    );
    let told = world.reserve(
        "both",
        ReservationEdit {
            ignore_jobs: true,
            ..both.clone()
        },
    );
    assert!(told.iter().any(|line| line.ends_with("runs on")), "{told:?}");
    // What it holds is the reservation's as soon as it has ended.
    world.catch_up(&["n1", "n2"]);
    world.tick_in(60);
    let (_, own) = world.open("alice", open("own", inside(for_minutes(30, 2, 8), "both")));
    assert_eq!(world.state(own), JobState::Pending, "{}", world.reason(own));
    world.must(Input::StopSession(
        caller("bob"),
        "long".parse().expect("a name"),
        None,
    ));
    world.catch_up(&["n1", "n2"]);
    assert_eq!(world.state(own), JobState::Configuring);
    let overlapping = world.try_reserve("ops", "again", both.clone()).expect_err("held");
    assert!(
        overlapping
            .message
            .starts_with("reservation both holds n[1-2] from "),
        "{overlapping}"
    );
}

#[test]
fn gpus_are_chosen_where_they_are_free() {
    let mut world = World::new(&["n1", "n2", "n3"]);
    let (_, long) = world.open("bob", open("long", for_minutes(600, 1, 3)));
    let busy = world.held(long).nodes[0].node.clone();
    let many = ReservationEdit {
        wanted: Some(some_gpus(20)),
        users: Some(alices()),
        ..world.in_minutes(60, 60)
    };
    world.reserve("many", many.clone());
    let state = world.broker.state();
    let parts = state.parts_of(&state.reservations[&name("many")]);
    let gpus: usize = parts.iter().map(|part| part.gpus.len()).sum();
    assert_eq!(gpus, 20);
    let on_busy = parts.iter().find(|part| part.node == busy).expect("a part");
    assert!(on_busy.gpus.len() <= 5);
    let refused = world.try_reserve("ops", "more", many).expect_err("not so many");
    assert!(
        refused.message.starts_with("20 GPUs h100 are not free from "),
        "{refused}"
    );
}

#[test]
fn promises_make_room_for_operators_and_for_nobody_else() {
    let mut settings = settings();
    settings.queue.reservations.gpus = 8;
    let mut world = World::with(settings, &["n1"]);
    world.open("bob", open("a", for_minutes(60, 1, 8)));
    let (_, promised) = world.open("bob", open("b", for_minutes(60, 1, 8)));
    assert_eq!(world.start_of(promised), Some(60));
    let later = ReservationEdit {
        wanted: Some(some_gpus(4)),
        ..world.in_minutes(90, 30)
    };
    let refused = world.try_reserve("alice", "mine", later.clone());
    assert!(refused.expect_err("promised").message.contains("are not free"));
    let told = world.reserve(
        "theirs",
        ReservationEdit {
            users: Some(alices()),
            ..later
        },
    );
    assert!(
        told.iter()
            .any(|line| *line == format!("promised a start anew: job {promised} of bob")),
        "{told:?}"
    );
    assert_eq!(world.start_of(promised), Some(120));
}

#[test]
fn users_reserve_within_what_operators_let_them() {
    let mut world = World::new(&["n1"]);
    let mine = ReservationEdit {
        wanted: Some(some_gpus(2)),
        ..world.in_minutes(10, 30)
    };
    let denied = |world: &mut World, edit: ReservationEdit| {
        let refused = world.try_reserve("alice", "hers", edit).expect_err("not hers");
        assert_eq!(refused.kind, RejectKind::Denied, "{refused}");
        refused.message
    };
    assert_eq!(denied(&mut world, mine.clone()), "users reserve nothing here");
    let mut settings = settings();
    settings.queue.reservations.gpus = 3;
    settings.queue.reservations.time = minutes(60);
    let mut world = World::with(settings, &["n1"]);
    world.try_reserve("alice", "mine", mine.clone()).expect("hers");
    let one = &world.broker.state().reservations[&name("mine")];
    assert_eq!(one.users, alices());
    assert!(
        world
            .try_reserve("alice", "more", mine.clone())
            .expect_err("too many")
            .message
            .contains("would reserve 4 GPUs, and may reserve 3")
    );
    let longer = ReservationEdit {
        duration: Some(minutes(90)),
        ..ReservationEdit::default()
    };
    let set = |edit| Edit::Reservation(name("mine"), Way::Set, edit);
    let refused = world.edit_as("alice", set(longer.clone())).expect_err("too long");
    assert_eq!(refused.message, "users reserve for 1.0 h at most");
    world.edit_as("ops", set(longer)).expect("operators may");
    let refused = world.edit_as("bob", set(ReservationEdit::default()));
    assert_eq!(refused.expect_err("not his").kind, RejectKind::Denied);
    let refused = world.edit_as("bob", Edit::DeleteReservation(name("mine")));
    assert_eq!(refused.expect_err("not his").kind, RejectKind::Denied);
    for edit in [
        ReservationEdit {
            maintenance: Some(true),
            ..mine.clone()
        },
        ReservationEdit {
            wanted: Some(nodes(&["n1"])),
            ..mine.clone()
        },
        ReservationEdit {
            every: Some(Some(Every::Weekly)),
            ..mine.clone()
        },
        ReservationEdit {
            ignore_jobs: true,
            ..mine.clone()
        },
    ] {
        denied(&mut world, edit);
    }
    world
        .edit_as("alice", Edit::DeleteReservation(name("mine")))
        .expect("her own");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let mut world = World::new(&["n1"]);
    let good = ReservationEdit {
        wanted: Some(nodes(&["n1"])),
        users: Some(alices()),
        ..world.in_minutes(10, 30)
    };
    let past = Timestamp(world.now.0 - 120_000);
    let bad = [
        (
            ReservationEdit {
                start: Some(past),
                ..good.clone()
            },
            "which is past",
        ),
        (
            ReservationEdit {
                duration: Some(Duration::ZERO),
                ..good.clone()
            },
            "it would end when it begins, or before",
        ),
        (
            ReservationEdit {
                duration: None,
                end: good.start,
                ..good.clone()
            },
            "it would end when it begins, or before",
        ),
        (
            ReservationEdit {
                duration: None,
                ..good.clone()
            },
            "it is not said until when",
        ),
        (
            ReservationEdit {
                duration: Some(Duration::from_hours(400 * 24)),
                ..good.clone()
            },
            "more than a year",
        ),
        (
            ReservationEdit {
                duration: Some(minutes(61)),
                every: Some(Some(Every::Hourly)),
                ..good.clone()
            },
            "longer than from one beginning to the next (hourly)",
        ),
        (
            ReservationEdit {
                wanted: Some(nodes(&["n1", "n9"])),
                ..good.clone()
            },
            "there is no node n9",
        ),
        (
            ReservationEdit {
                wanted: Some(nodes(&[])),
                ..good.clone()
            },
            "no node is named",
        ),
        (
            ReservationEdit {
                wanted: None,
                ..good.clone()
            },
            "it is not said what it holds",
        ),
        (
            ReservationEdit {
                wanted: Some(Wanted::Count(2)),
                ..good.clone()
            },
            "2 nodes are not free",
        ),
        (
            ReservationEdit {
                wanted: Some(some_gpus(0)),
                ..good.clone()
            },
            "0 GPUs h100 are not free",
        ),
        (
            ReservationEdit {
                accounts: Some(["physics".parse().expect("an account")].into()),
                ..good.clone()
            },
            "there is no account physics",
        ),
        (
            ReservationEdit {
                users: None,
                ..good.clone()
            },
            "nobody is named",
        ),
        (
            ReservationEdit {
                maintenance: Some(true),
                ..good.clone()
            },
            "a maintenance is for nobody",
        ),
        (
            ReservationEdit {
                overlap: Some(true),
                ..good.clone()
            },
            "only a maintenance may overlap",
        ),
        (
            ReservationEdit {
                partition: Some("none".parse().expect("a name")),
                wanted: Some(Wanted::Count(1)),
                ..good.clone()
            },
            "there is no partition none",
        ),
    ];
    for (edit, why) in bad {
        let refused = world.try_reserve("ops", "bad", edit).expect_err(why);
        assert!(refused.message.contains(why), "{refused}: {why}");
    }
    assert!(world.broker.state().reservations.is_empty());
    world.reserve("good", good.clone());
    let again = world.try_reserve("ops", "good", good).expect_err("there is one");
    assert_eq!(again.kind, RejectKind::AlreadyExists);
    for (user, named, why) in [
        (
            "bob",
            "good",
            "reservation good is not for bob on account default",
        ),
        ("bob", "none", "there is no reservation none"),
    ] {
        let asked = open("x", inside(for_minutes(5, 1, 1), named));
        let refused = world.handle(Input::OpenSession(caller(user), asked));
        assert_eq!(refused.expect_err(why).message, why);
    }
}

#[test]
fn who_waits_for_one_that_is_taken_back_says_so() {
    let mut world = World::new(&["n1"]);
    let course = ReservationEdit {
        wanted: Some(nodes(&["n1"])),
        users: Some(alices()),
        ..world.in_minutes(10, 60)
    };
    world.reserve("course", course.clone());
    let (_, waiting) = world.open("alice", open("w", inside(for_minutes(5, 1, 8), "course")));
    let told = world.edit_as("ops", Edit::DeleteReservation(name("course")));
    assert_eq!(
        told.expect("taken back"),
        [format!("job {waiting} waits for it in vain")]
    );
    assert!(world.reason(waiting).starts_with("ReservationDeleted"));
    assert_eq!(world.start_of(waiting), None);
    // Another one of the name will do, as long as it is hers.
    world.reserve(
        "course",
        ReservationEdit {
            users: Some(["bob".parse().expect("a user")].into()),
            ..course.clone()
        },
    );
    assert!(world.reason(waiting).starts_with("ReservationInvalid"));
    let hers = ReservationEdit {
        users: Some(alices()),
        ..ReservationEdit::default()
    };
    let set = Edit::Reservation(name("course"), Way::Set, hers);
    world.edit_as("ops", set).expect("changed");
    world.tick_in(10);
    assert_eq!(world.state(waiting), JobState::Configuring);
}

#[test]
fn an_end_that_moves_takes_its_jobs_with_it() {
    let mut world = World::new(&["n1"]);
    let course = ReservationEdit {
        wanted: Some(nodes(&["n1"])),
        users: Some(alices()),
        ..world.in_minutes(0, 60)
    };
    world.reserve("course", course);
    let (_, own) = world.open("alice", open("own", inside(for_minutes(600, 1, 8), "course")));
    let set = |edit| Edit::Reservation(name("course"), Way::Set, edit);
    let end = world.now.after(minutes(20));
    let sooner = ReservationEdit {
        end: Some(end),
        ..ReservationEdit::default()
    };
    let told = world.edit_as("ops", set(sooner)).expect("changed");
    assert!(
        told.contains(&format!("job {own} in it ends at {} now", end.utc())),
        "{told:?}"
    );
    assert_eq!(world.job(own).placed().expect("placed").deadline, end);
    let later = ReservationEdit {
        start: Some(world.now.after(minutes(5))),
        ..ReservationEdit::default()
    };
    let refused = world.edit_as("ops", set(later)).expect_err("it has begun");
    assert_eq!(refused.message, "reservation course has begun");
}

#[test]
fn a_session_is_not_extended_into_what_is_reserved() {
    let mut world = World::new(&["n1"]);
    world.open("bob", open("own", for_minutes(60, 1, 1)));
    let upgrade = ReservationEdit {
        wanted: Some(nodes(&["n1"])),
        maintenance: Some(true),
        ..world.in_minutes(120, 60)
    };
    world.reserve("upgrade", upgrade);
    let extend = |world: &mut World, by: &str, time: u64| {
        let session = "own.bob".parse().expect("a session");
        world.handle(Input::ExtendSession(caller(by), session, minutes(time)))
    };
    let refused = extend(&mut world, "bob", 60).expect_err("it would be in the way");
    assert!(
        refused
            .message
            .starts_with("reserved for maintenance (upgrade) from "),
        "{refused}"
    );
    assert_eq!(refused.hint, "59 minutes can be added without it");
    extend(&mut world, "bob", 59).expect("just enough");
    extend(&mut world, "ops", 60).expect("operators decide for all");
}

#[test]
fn accounts_below_may_use_it_and_restarts_keep_it() {
    let mut world = World::new(&["n1"]);
    let account = |named: &str, parent: Option<&str>| {
        let edit = AccountEdit {
            parent: parent.map(|parent| Some(parent.parse().expect("an account"))),
            ..AccountEdit::default()
        };
        Edit::Account(named.parse().expect("an account"), Way::Add, edit)
    };
    world.edit_as("root", account("physics", None)).expect("made");
    world
        .edit_as("root", account("lab", Some("physics")))
        .expect("made");
    let lab = Edit::Members(
        "lab".parse().expect("an account"),
        Way::Add,
        ["bob".parse().expect("a user")].into(),
        MemberEdit::default(),
    );
    world.edit_as("root", lab).expect("put in");
    assert_eq!(Member::default().shares, 1);
    assert_eq!(Account::new("x".parse().expect("a name")).shares, 1);
    let course = ReservationEdit {
        wanted: Some(nodes(&["n1"])),
        accounts: Some(["physics".parse().expect("an account")].into()),
        ..world.in_minutes(10, 60)
    };
    world.reserve("course", course);
    let (_, own) = world.open("bob", open("own", inside(for_minutes(5, 1, 8), "course")));
    world.restart(8);
    world.report("n1", vec![]);
    assert!(
        world.reason(own).starts_with("Reservation: "),
        "{}",
        world.reason(own)
    );
    world.tick_in(10);
    assert_eq!(world.state(own), JobState::Configuring);
}
