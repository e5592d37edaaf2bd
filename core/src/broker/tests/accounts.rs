//! What administrators set: it holds from the next pass on, it is kept, and what makes no sense is refused.

use std::collections::BTreeSet;

use super::rights::log;
use super::*;
use crate::broker::{AccountEdit, Edit, LimitsEdit, MemberEdit, PartitionEdit, PersonEdit, QosEdit, Way};
use crate::model::account::{Limits, MAX_DEPTH, MAX_SHARES};
use crate::model::audit::Action;
use crate::model::ids::{AccountName, BadName, PartitionName, QosName};
use crate::model::qos::Preemption;
use crate::queue::Limit;

fn name<T: std::str::FromStr<Err = BadName>>(text: &str) -> T {
    text.parse().expect("a name")
}

fn names<T: std::str::FromStr<Err = BadName> + Ord>(texts: &[&str]) -> BTreeSet<T> {
    texts.iter().map(|text| name(text)).collect()
}

fn gpus_at_most(count: u64) -> LimitsEdit {
    LimitsEdit {
        set: Limits {
            gpu_milli: Some(count * 1_000),
            ..Limits::default()
        },
        clear: Vec::new(),
    }
}

fn below(parent: &str) -> AccountEdit {
    AccountEdit {
        parent: Some((!parent.is_empty()).then(|| name(parent))),
        ..AccountEdit::default()
    }
}

fn on(account: &str, count: u32) -> SessionSpec {
    let mut spec = gpus(count);
    spec.terms.account = Some(name(account));
    spec
}

impl World {
    fn edit(&mut self, edit: Edit) -> Result<Vec<String>, Reject> {
        let output = self.handle(Input::Edit(caller("root"), Box::new(edit)))?;
        Ok(match output.reply {
            Reply::Told(told) => told,
            Reply::Done => Vec::new(),
            other => panic!("{other:?}"),
        })
    }

    fn refuses(&mut self, edit: Edit, kind: RejectKind, says: &[&str]) {
        let before = self.store.len();
        let reject = self.edit(edit.clone()).expect_err("refused");
        assert_eq!(reject.kind, kind, "{edit:?}: {reject}");
        for part in says {
            assert!(reject.message.contains(part), "{edit:?}: {reject} lacks {part}");
        }
        assert!(
            !reject.message.contains('\n') && self.store.len() == before,
            "{edit:?}"
        );
    }

    fn account(&mut self, account: &str, edit: AccountEdit) -> Vec<String> {
        let edit = Edit::Account(name(account), Way::Add, edit);
        self.edit(edit).expect("an account")
    }

    fn put_in(&mut self, account: &str, users: &[&str]) -> Vec<String> {
        let edit = Edit::Members(name(account), Way::Add, names(users), MemberEdit::default());
        self.edit(edit).expect("members")
    }
}

#[test]
fn what_is_set_is_kept_and_what_is_not_named_stays() {
    let mut world = World::new(&["n1"]);
    world.account("science", AccountEdit::default());
    let physics = AccountEdit {
        description: Some("Physics".into()),
        shares: Some(3),
        limits: gpus_at_most(8),
        per_user: gpus_at_most(4),
        ..below("science")
    };
    world.account("physics", physics);
    world.put_in("physics", &["alice", "bob"]);
    let set = AccountEdit {
        shares: Some(5),
        limits: LimitsEdit {
            set: Limits {
                running: Some(7),
                ..Limits::default()
            },
            clear: vec![Limit::Gpus],
        },
        ..AccountEdit::default()
    };
    world
        .edit(Edit::Account(name("physics"), Way::Set, set))
        .expect("set");
    let member = MemberEdit {
        shares: Some(9),
        limits: gpus_at_most(2),
    };
    world
        .edit(Edit::Members(
            name("physics"),
            Way::Set,
            names(&["alice"]),
            member,
        ))
        .expect("set");
    let person = PersonEdit {
        default_account: Some(Some(name("physics"))),
        limits: gpus_at_most(6),
    };
    world.edit(Edit::Person(name("alice"), person)).expect("set");
    let qos = QosEdit {
        priority: Some(500),
        preemptible: Some(Some(Preemption::Requeue)),
        grace: Some(Some(Duration::from_mins(2))),
        usage_milli: Some(250),
        ..QosEdit::default()
    };
    world
        .edit(Edit::Qos(name("scavenger"), Way::Add, qos))
        .expect("a QOS");
    let grace = |grace| QosEdit {
        grace: Some(grace),
        ..QosEdit::default()
    };
    let days = Edit::Qos(name("scavenger"), Way::Set, grace(Some(Duration::from_hours(25))));
    assert!(world.edit(days).is_err());
    let known = world.broker.state().qos[&name::<QosName>("scavenger")].clone();
    assert_eq!(known.grace, Some(Duration::from_mins(2)));
    let none = Edit::Qos(name("scavenger"), Way::Set, grace(None));
    world.edit(none).expect("as for all jobs");
    assert_eq!(
        world.broker.state().qos[&name::<QosName>("scavenger")].grace,
        None
    );
    let partition = PartitionEdit {
        only: Some(Some([node("n1")].into())),
        qos: Some(Some(name("scavenger"))),
        accounts: Some(names(&["science"])),
        default: Some(true),
        ..PartitionEdit::default()
    };
    world
        .edit(Edit::Partition(name("idle"), Way::Add, partition))
        .expect("a partition");
    world.restart(5);
    let state = world.broker.state();
    let physics = &state.accounts[&name::<AccountName>("physics")];
    assert_eq!((physics.shares, physics.description.as_str()), (5, "Physics"));
    assert_eq!(
        (physics.limits.gpu_milli, physics.limits.running),
        (None, Some(7))
    );
    assert_eq!(physics.per_user.gpu_milli, Some(4_000));
    let alice = &physics.members[&name::<UserName>("alice")];
    assert_eq!((alice.shares, alice.limits.gpu_milli), (9, Some(2_000)));
    assert_eq!(physics.members[&name::<UserName>("bob")].shares, 1);
    assert_eq!(
        state.people[&name::<UserName>("alice")].default_account,
        Some(name("physics"))
    );
    assert_eq!(state.qos[&name::<QosName>("scavenger")].usage_milli, 250);
    assert!(state.partitions[&name::<PartitionName>("idle")].default);
    // Members of the account below are meant, and get the partition and its QOS unasked.
    let (_, id) = world.open("alice", open("dev", gpus(1)));
    let terms = &world.job(id).terms;
    assert_eq!(
        (
            terms.account.as_str(),
            terms.qos.as_str(),
            terms.partition.as_str()
        ),
        ("physics", "scavenger", "idle")
    );
    let put: Vec<&str> = log(&world)
        .into_iter()
        .filter(|record| record.action == Action::AccountPut)
        .map(|record| record.detail.as_str())
        .collect();
    assert_eq!(
        put[1],
        "below science, 3 shares; all jobs: 8 GPUs; each user's: 4 GPUs"
    );
}

#[test]
fn accounts_that_make_no_tree_are_refused() {
    let mut world = World::new(&[]);
    world.account("top", AccountEdit::default());
    world.account("middle", below("top"));
    world.account("low", below("middle"));
    let move_to = |account: &str, parent: &str| Edit::Account(name(account), Way::Set, below(parent));
    for parent in ["top", "middle", "low"] {
        world.refuses(
            move_to("top", parent),
            RejectKind::Invalid,
            &[parent, "above top"],
        );
    }
    world.refuses(move_to("low", "nowhere"), RejectKind::NotFound, &["nowhere"]);
    world.refuses(move_to("nobody", "top"), RejectKind::NotFound, &["nobody"]);
    let again = Edit::Account(name("low"), Way::Add, AccountEdit::default());
    world.refuses(again, RejectKind::AlreadyExists, &["low"]);
    // A chain as deep as may be, and one more; the same by hanging it below something.
    for depth in 1..=MAX_DEPTH {
        let parent = if depth == 1 {
            String::new()
        } else {
            format!("d{}", depth - 1)
        };
        world.account(&format!("d{depth}"), below(&parent));
    }
    let deeper = Edit::Account(name("deeper"), Way::Add, below(&format!("d{MAX_DEPTH}")));
    world.refuses(deeper, RejectKind::Invalid, &["17 deep", "16"]);
    world.refuses(move_to("d1", "top"), RejectKind::Invalid, &["17 deep"]);
    world
        .edit(move_to("d2", "top"))
        .expect("one less is not too deep");
    world.edit(move_to("low", "")).expect("to the top");
    assert_eq!(
        world.broker.state().accounts[&name::<AccountName>("low")].parent,
        None
    );
}

#[test]
fn numbers_out_of_range_are_refused() {
    let mut world = World::new(&[]);
    world.account("a", AccountEdit::default());
    let account = |edit| Edit::Account(name("a"), Way::Set, edit);
    let limits = |set| {
        account(AccountEdit {
            limits: LimitsEdit { set, clear: vec![] },
            ..AccountEdit::default()
        })
    };
    let shares = AccountEdit {
        shares: Some(MAX_SHARES + 1),
        ..AccountEdit::default()
    };
    world.refuses(
        account(shares),
        RejectKind::Invalid,
        &["shares", "1000001", "1000000"],
    );
    let description = AccountEdit {
        description: Some("two\nlines".into()),
        ..AccountEdit::default()
    };
    world.refuses(account(description), RejectKind::Invalid, &["one line"]);
    let none = Limits::default;
    for (set, says) in [
        (
            Limits {
                gpu_milli: Some(u64::MAX),
                ..none()
            },
            "GPUs",
        ),
        (
            Limits {
                time: Some(Duration::ZERO),
                ..none()
            },
            "time",
        ),
        (
            Limits {
                time: Some(Duration::MAX),
                ..none()
            },
            "ten years",
        ),
        (
            Limits {
                gpu_minutes: Some(u64::MAX),
                ..none()
            },
            "GPU-minutes",
        ),
    ] {
        world.refuses(limits(set), RejectKind::Invalid, &[says]);
    }
    let both = LimitsEdit {
        clear: vec![Limit::Gpus],
        ..gpus_at_most(1)
    };
    let both = AccountEdit {
        limits: both,
        ..AccountEdit::default()
    };
    world.refuses(account(both), RejectKind::Invalid, &["set and to be taken away"]);
    let qos = |edit| Edit::Qos(name("q"), Way::Add, edit);
    let priority = QosEdit {
        priority: Some(1_001),
        ..QosEdit::default()
    };
    world.refuses(qos(priority), RejectKind::Invalid, &["priority", "1001", "1000"]);
    let both = QosEdit {
        preempts: Some(true),
        preemptible: Some(Some(Preemption::Cancel)),
        ..QosEdit::default()
    };
    world.refuses(qos(both), RejectKind::Invalid, &["give way itself"]);
    let nowhere = QosEdit {
        accounts: Some(names(&["a", "nowhere"])),
        ..QosEdit::default()
    };
    world.refuses(qos(nowhere), RejectKind::NotFound, &["no account nowhere"]);
    let partition = PartitionEdit {
        qos: Some(Some(name("none"))),
        ..PartitionEdit::default()
    };
    let partition = Edit::Partition(name("p"), Way::Add, partition);
    world.refuses(partition, RejectKind::NotFound, &["no QOS none"]);
    let time = PartitionEdit {
        default_time: Some(Some(Duration::from_hours(24 * 365))),
        ..PartitionEdit::default()
    };
    let time = Edit::Partition(name("p"), Way::Add, time);
    world.refuses(time, RejectKind::Invalid, &["longest, 10080 min"]);
}

#[test]
fn what_is_in_use_is_not_forgotten() {
    let mut world = World::new(&["n1"]);
    world.account("science", AccountEdit::default());
    world.account("physics", below("science"));
    world.put_in("physics", &["alice", "bob"]);
    world
        .edit(Edit::Qos(name("high"), Way::Add, QosEdit::default()))
        .expect("a QOS");
    let partition = PartitionEdit {
        qos: Some(Some(name("high"))),
        accounts: Some(names(&["physics"])),
        ..PartitionEdit::default()
    };
    world
        .edit(Edit::Partition(name("gpu"), Way::Add, partition))
        .expect("a partition");
    let (_, first) = world.open("alice", open("a", gpus(8)));
    world.open("alice", open("b", gpus(8)));
    world.open("bob", open("c", gpus(8)));
    let wrong = RejectKind::WrongState;
    let account = |account: &str| Edit::DeleteAccount(name(account));
    world.refuses(account("science"), wrong, &["1 account below it: physics"]);
    let jobs = format!("3 jobs that wait or run (alice 2, bob 1), such as job {first}");
    world.refuses(account("physics"), wrong, &[&jobs]);
    world.refuses(account("nowhere"), RejectKind::NotFound, &["nowhere"]);
    let out = |users: &[&str]| Edit::RemoveMembers(name("physics"), names(users));
    world.refuses(out(&["alice"]), wrong, &["alice in account physics has 2 jobs"]);
    world.refuses(
        out(&["carol"]),
        RejectKind::NotFound,
        &["carol is not in account physics"],
    );
    world.refuses(out(&[]), RejectKind::Invalid, &["no user"]);
    world.refuses(Edit::DeleteQos(name("high")), wrong, &["that of partition gpu"]);
    world.refuses(
        Edit::DeletePartition(name("gpu")),
        wrong,
        &["partition gpu has 3 jobs"],
    );
    for (user, session) in [("alice", "a"), ("alice", "b"), ("bob", "c")] {
        world.must(Input::StopSession(caller(user), name(session), None));
    }
    let seen = world.seen(first, "n1", ObservedPhase::Released);
    world.report("n1", vec![seen]);
    world.refuses(account("physics"), wrong, &["2 users: alice, bob"]);
    world.edit(out(&["alice", "bob"])).expect("taken out");
    world.refuses(
        account("physics"),
        wrong,
        &["partition gpu is for account physics"],
    );
    world.edit(Edit::DeletePartition(name("gpu"))).expect("forgotten");
    world.edit(Edit::DeleteQos(name("high"))).expect("forgotten");
    world.edit(account("physics")).expect("forgotten");
    world.edit(account("science")).expect("forgotten");
    world.restart(3);
    let state = world.broker.state();
    assert!(state.accounts.is_empty() && state.qos.is_empty() && state.partitions.is_empty());
}

#[test]
fn limits_hold_from_the_next_pass_on_and_end_nothing() {
    let mut world = World::new(&["n1"]);
    world.account("physics", AccountEdit::default());
    world.account("biology", AccountEdit::default());
    world.put_in("physics", &["alice"]);
    world.put_in("biology", &["alice"]);
    let (_, first) = world.open("alice", open("a", on("physics", 4)));
    let set = |limits: LimitsEdit| {
        let edit = AccountEdit {
            limits,
            ..AccountEdit::default()
        };
        Edit::Account(name("physics"), Way::Set, edit)
    };
    let told = world.edit(set(gpus_at_most(2))).expect("set");
    assert_eq!(
        told,
        [
            "account physics holds 4 GPUs and may now hold 2: nothing is ended, and nothing more starts until it fits"
        ]
    );
    assert_ne!(world.state(first), JobState::Completing);
    let (_, second) = world.open("alice", open("b", on("physics", 2)));
    assert_eq!(
        world.reason(second),
        "AssocGrpGRES: account physics holds 4 of the 2 GPUs that it may (alice 4); this job wants 2"
    );
    let refused = world.handle(Input::OpenSession(caller("alice"), open("c", on("physics", 3))));
    let refused = refused.expect_err("more than the account may have");
    assert!(
        refused.message.contains("account physics may hold 2 GPUs"),
        "{refused}"
    );
    // Another account's jobs start; raising the limit lets the one start that waits, at once.
    let (_, other) = world.open("alice", open("d", on("biology", 1)));
    assert_eq!(world.state(other), JobState::Configuring);
    let told = world.edit(set(gpus_at_most(6))).expect("set");
    assert_eq!((told.len(), world.state(second)), (0, JobState::Configuring));
    // A limit for one user in one account, and for the user everywhere.
    let none = LimitsEdit {
        set: Limits {
            running: Some(0),
            ..Limits::default()
        },
        clear: vec![],
    };
    let person = PersonEdit {
        limits: none,
        ..PersonEdit::default()
    };
    let told = world.edit(Edit::Person(name("alice"), person)).expect("set");
    assert!(
        told[0].contains("alice runs 3 jobs and may now run 0"),
        "{told:?}"
    );
    let refused = world.handle(Input::OpenSession(caller("alice"), open("e", on("biology", 1))));
    assert_eq!(refused.expect_err("none at all").kind, RejectKind::Denied);
}

#[test]
fn partitions_tell_of_nodes_that_are_not_there() {
    let mut world = World::new(&["n1", "n2"]);
    let of = |only: &[&str]| PartitionEdit {
        only: Some(Some(only.iter().map(|name| node(name)).collect())),
        default: Some(true),
        ..PartitionEdit::default()
    };
    let told = world
        .edit(Edit::Partition(name("a"), Way::Add, of(&["n1", "n8", "n9"])))
        .expect("made");
    assert_eq!(
        told,
        ["the cluster has no node n8, n9: those that join under such a name are meant"]
    );
    let told = world
        .edit(Edit::Partition(name("b"), Way::Add, of(&["n7"])))
        .expect("made");
    assert_eq!(
        told,
        [
            "the cluster has no node n7: those that join under such a name are meant",
            "partition b has no node now: its jobs wait",
            "partition a is the default no more",
        ]
    );
    // What waits for a node of its partition gets it when the partition does.
    let mut spec = gpus(8);
    spec.terms.partition = Some(name("a"));
    world.open("alice", open("first", spec.clone()));
    let (_, waits) = world.open("alice", open("second", spec));
    assert_eq!(world.state(waits), JobState::Pending);
    assert!(world.broker.state().promises.contains_key(&waits));
    world
        .edit(Edit::Partition(name("a"), Way::Set, of(&["n1", "n2"])))
        .expect("set");
    assert_eq!(world.state(waits), JobState::Configuring);
}

#[test]
fn users_whom_nobody_has_seen_are_told_of() {
    let mut world = World::new(&[]);
    world.account("physics", AccountEdit::default());
    let told = world.put_in("physics", &["alice", "zoe"]);
    assert_eq!(told.len(), 1);
    assert!(told[0].starts_with("zoe is not in the directory yet"), "{told:?}");
    let twice = Edit::Members(
        name("physics"),
        Way::Add,
        names(&["alice"]),
        MemberEdit::default(),
    );
    world.refuses(
        twice,
        RejectKind::AlreadyExists,
        &["alice is in account physics already"],
    );
    let missing = Edit::Members(name("physics"), Way::Set, names(&["bob"]), MemberEdit::default());
    world.refuses(missing, RejectKind::NotFound, &["bob is not in account physics"]);
    let default = PersonEdit {
        default_account: Some(Some(name("physics"))),
        ..PersonEdit::default()
    };
    let bob = Edit::Person(name("bob"), default.clone());
    world.refuses(bob, RejectKind::NotFound, &["bob is not in account physics"]);
    world.edit(Edit::Person(name("alice"), default)).expect("set");
    world
        .edit(Edit::RemoveMembers(name("physics"), names(&["alice"])))
        .expect("taken out");
    let alice = &world.broker.state().people[&name::<UserName>("alice")];
    assert_eq!(alice.default_account, None, "it is not theirs any more");
}

/// Reasons are those of classes, positions those of the order, starts those that were promised or are foreseen.
#[test]
fn the_queue_is_in_order_and_says_when() {
    let mut settings = settings();
    settings.queue.promises = 1;
    let mut world = World::with(settings, &["n1"]);
    let spec = |minutes: u64| SessionSpec {
        time_limit: Duration::from_mins(minutes),
        ..gpus(8)
    };
    world.open("alice", open("runs", spec(60)));
    let (_, promised) = world.open("alice", open("first", spec(30)));
    world.wait(Duration::from_secs(1));
    let (_, foreseen) = world.open("alice", open("second", spec(30)));
    let mut held = open("held", spec(30));
    held.start.hold = true;
    let (_, held) = world.open("alice", held);
    let state = world.broker.state();
    let queue = queued(state, world.now);
    let shown: Vec<_> = queue
        .iter()
        .map(|one| (one.job.id, one.position, one.reason.as_str()))
        .collect();
    let behind = format!("Priority: behind job {promised}");
    assert_eq!(shown[0], (promised, Some(1), "Resources"));
    assert!(
        shown[1] == (foreseen, Some(2), "Resources") || shown[1] == (foreseen, Some(2), behind.as_str()),
        "{shown:?}"
    );
    assert_eq!(shown[2], (held, None, "JobHeldUser"));
    assert!(queue[0].priority >= queue[1].priority && queue[2].priority.is_none());
    for one in &queue[..2] {
        let sum = state.priority(&one.job, world.now).total();
        assert_eq!(one.priority, Some(sum), "job {}", one.job.id);
    }
    let starts = starts_of(state, world.now, || true);
    assert_eq!(
        starts.get(&promised),
        state.promises.get(&promised).map(|promise| &promise.start)
    );
    assert_eq!(
        starts.get(&foreseen).copied(),
        start_of(state, foreseen, world.now).map(|start| start.at)
    );
    assert!(starts.get(&promised) < starts.get(&foreseen), "{starts:?}");
    assert_eq!(starts.get(&held), None);
    // Whoever has no time to wait for what is foreseen still hears what is promised.
    let starts = starts_of(state, world.now, || false);
    assert_eq!(starts.keys().copied().collect::<Vec<_>>(), [promised]);
    // Reasons in full are worked out once for jobs that are equal, and are those of each.
    let mut reasons = Reasons::of(state);
    for one in &queue {
        assert_eq!(reasons.reason(&one.job), state_reason(state, &one.job));
    }
}
