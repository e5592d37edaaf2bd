//! Who may do what, and what the audit log says of it.

use super::*;
use crate::broker::{AccountEdit, Edit, FeatureChange, PartitionEdit, QosEdit, Way};
use crate::model::audit::{Action, AuditRecord, Outcome};

/// Every record that a world's store got, in order.
pub(super) fn log(world: &World) -> Vec<&AuditRecord> {
    let records = world.store.iter().filter_map(|change| match change {
        Change::Audit(record) => Some(&**record),
        _ => None,
    });
    records.collect()
}

fn actions(world: &World) -> Vec<Action> {
    log(world).iter().map(|record| record.action).collect()
}

fn name<T: std::str::FromStr<Err = crate::model::ids::BadName>>(text: &str) -> T {
    text.parse().expect("a name")
}

/// Each input that a role guards, by those who may and those who may not.
#[test]
fn roles_reach_as_far_as_the_table_says() {
    let user = User {
        name: name("carol"),
        uid: 1003,
        gid: 1003,
        groups: vec![],
        group_names: BTreeMap::new(),
        home: "/home/carol".into(),
        shell: String::new(),
        role: Role::User,
        ssh_keys: vec![],
    };
    let dev = || name::<SessionRef>("dev.alice");
    type Make<'a> = Box<dyn Fn(Caller) -> Input + 'a>;
    let guarded: Vec<(Role, Make<'_>)> = vec![
        (
            Role::Operator,
            Box::new(|by| Input::DrainNode(by, node("n1"), "fan".into())),
        ),
        (Role::Operator, Box::new(|by| Input::ResumeNode(by, node("n1")))),
        (
            Role::Operator,
            Box::new(|by| Input::ChangeFeatures(by, node("n1"), FeatureChange::default())),
        ),
        (
            Role::Operator,
            Box::new(|by| {
                let token = NodeToken {
                    hash: [77; 32],
                    node: None,
                    expires: Timestamp::MAX,
                };
                Input::CreateNodeToken(by, token)
            }),
        ),
        (
            Role::Operator,
            Box::new(move |by| Input::ExtendSession(by, dev(), Duration::from_mins(1))),
        ),
        (
            Role::Operator,
            Box::new(move |by| Input::StopSession(by, dev(), None)),
        ),
        (Role::Admin, Box::new(move |by| Input::RemoveSession(by, dev()))),
        (
            Role::Admin,
            Box::new(move |by| {
                Input::ShareSession(by, dev(), name("carol"), crate::model::session::Share::Full)
            }),
        ),
        (
            Role::Admin,
            Box::new(move |by| Input::PutUser(Some(by), user.clone())),
        ),
        (
            Role::Admin,
            Box::new(|by| Input::SetUserRole(by, name("alice"), Role::Operator)),
        ),
        (
            Role::Admin,
            Box::new(|by| {
                let edit = Edit::Account(name("physics"), Way::Add, AccountEdit::default());
                Input::Edit(by, Box::new(edit))
            }),
        ),
        (
            Role::Admin,
            Box::new(|by| {
                let edit = Edit::Qos(name("high"), Way::Add, QosEdit::default());
                Input::Edit(by, Box::new(edit))
            }),
        ),
        (
            Role::Admin,
            Box::new(|by| {
                let edit = Edit::Partition(name("gpu"), Way::Add, PartitionEdit::default());
                Input::Edit(by, Box::new(edit))
            }),
        ),
    ];
    for (number, (needed, make)) in guarded.iter().enumerate() {
        for (who, role) in [
            ("bob", Role::User),
            ("ops", Role::Operator),
            ("root", Role::Admin),
        ] {
            let mut world = World::new(&["n1"]);
            let (_, id) = world.open("alice", open("dev", gpus(1)));
            let seen = world.seen(id, "n1", ObservedPhase::Ready);
            world.report("n1", vec![seen]);
            let carol = User {
                name: name("carol"),
                ..(*world.broker.state().users[&name::<UserName>("bob")]).clone()
            };
            world.must(Input::PutUser(None, User { uid: 1003, ..carol }));
            let before = log(&world).len();
            let result = world.handle(make(caller(who)));
            if role >= *needed {
                result.unwrap_or_else(|reject| panic!("{number} as {who}: {reject}"));
                let unchanged = matches!(make(caller(who)), Input::PutUser(..));
                assert!(
                    unchanged || log(&world).len() > before,
                    "{number} as {who} is noted"
                );
            } else {
                let reject = result.expect_err("refused");
                assert_eq!(reject.kind, RejectKind::Denied, "{number} as {who}");
                let says = format!("{} {}", reject.message, reject.hint);
                assert!(says.contains(needed.name()), "{number} as {who}: {says}");
            }
        }
    }
}

#[test]
fn a_role_is_kept_when_the_name_service_speaks_again() {
    let mut world = World::new(&[]);
    world.must(Input::SetUserRole(caller("root"), name("alice"), Role::Operator));
    let former = world.broker.state().users[&name::<UserName>("alice")].clone();
    world.must(Input::PutUser(
        None,
        User {
            home: "/elsewhere".into(),
            role: Role::User,
            ..(*former).clone()
        },
    ));
    let now = &world.broker.state().users[&name::<UserName>("alice")];
    assert_eq!((now.role, now.home.as_str()), (Role::Operator, "/elsewhere"));
    world.restart(3);
    assert_eq!(
        world.broker.state().users[&name::<UserName>("alice")].role,
        Role::Operator
    );
}

/// A grant is noted with its units when it is given and when it is over, in the transaction of the change.
#[test]
fn grants_are_noted_with_their_units() {
    let mut world = World::new(&["n1"]);
    let output = world.must(Input::OpenSession(caller("alice"), open("dev", gpus(2))));
    let noted = output.changes.iter().find_map(|change| match change {
        Change::Audit(record) if record.action == Action::JobStart => Some(record),
        _ => None,
    });
    let record = noted.expect("the start");
    assert_eq!(record.at, world.now);
    assert_eq!(record.user.as_ref().map(UserName::as_str), Some("alice"));
    assert!(record.subject.contains("dev") && record.outcome == Outcome::Done);
    assert!(
        record.detail.contains("GPU-n1-") && record.detail.contains("24 CPUs"),
        "{record:?}"
    );
    let id = JobId(1);
    world.must(Input::StopSession(caller("alice"), name("dev"), None));
    let seen = world.seen(id, "n1", ObservedPhase::Released);
    world.report("n1", vec![seen]);
    let log = log(&world);
    let end = log.last().expect("records");
    assert_eq!(end.action, Action::JobEnd);
    assert!(
        end.detail.contains("stopped by alice") && end.detail.contains("GPU-n1-"),
        "{end:?}"
    );
    // What one does to one's own sessions shows there, and takes no record of its own.
    assert!(!actions(&world).contains(&Action::SessionStop));
}

#[test]
fn the_log_is_trimmed_every_hour() {
    let mut world = World::new(&[]);
    assert!(
        matches!(world.store.get(2), Some(Change::TrimAudit(..))),
        "at the start"
    );
    let due = world.broker.next_deadline().expect("a timer");
    assert!(due <= world.now.after(Duration::from_hours(1)));
    world.wait(Duration::from_hours(1));
    let output = world.must(Input::Tick);
    let trimmed = |change: &Change| matches!(change, Change::TrimAudit(before, _) if *before < world.now);
    assert!(output.changes.iter().any(trimmed));
    assert!(world.broker.next_deadline().expect("a timer") > world.now);
}
