//! The store: what is put comes back, and other files are left alone.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use carrel_broker::store::{
    AUDIT_PAGE, AuditFilter, AuditLog, History, SCHEMA_VERSION, STORE_FILE, Store, StoreError,
};
use carrel_core::broker::{Change, ClusterRecord};
use carrel_core::model::account::{Account, Limits, Member, Person};
use carrel_core::model::activity::{Counter, HostUse, Metered, Used};
use carrel_core::model::array::{ArrayPart, ArrayRecord, Shape};
use carrel_core::model::audit::{Action, AuditRecord, Origin};
use carrel_core::model::batch::{Batch, Output, Place};
use carrel_core::model::cpus::Binding;
use carrel_core::model::gang_network::RankNetwork;
use carrel_core::model::gpu::Inventory;
use carrel_core::model::ids::{ClusterId, Generation, Incarnation, JobId, SessionId};
use carrel_core::model::indices::IndexSet;
use carrel_core::model::job::{
    Charge, Containment, Ending, FenceReport, Job, JobKind, JobState, Leaving, PastRun, Phase, Placed,
    RankStatus,
};
use carrel_core::model::node::NodeRecord;
use carrel_core::model::partition::{NodeSet, Partition};
use carrel_core::model::qos::{Preemption, Qos};
use carrel_core::model::reservation::{Every, Reservation, Times};
use carrel_core::model::resources::{Allocation, NodeAllocation, ResourceRequest};
use carrel_core::model::session::{ContainerOptions, Session, SessionSpec, Share};
use carrel_core::model::start::{Conditions, Dependency, DependencyKind};
use carrel_core::model::terms::{Terms, TermsRequest};
use carrel_core::model::time::Timestamp;
use carrel_core::model::user::{ApiToken, NodeToken, Role, Scope, User};
use carrel_core::queue::headroom::Demand;
use carrel_core::queue::past::{PastKey, PastUse};
use carrel_core::queue::{Decay, Usage};
use rusqlite::Connection;

fn request() -> ResourceRequest {
    ResourceRequest {
        nodes: 1,
        gpus_per_node: 1,
        gpu_model: "h100".into(),
        nvlink: true,
        cpus_per_node: 4,
        memory_bytes_per_node: u64::MAX,
        ..ResourceRequest::default()
    }
}

fn job(id: u64, phase: Phase) -> Change {
    Change::PutJob(Arc::new(Job {
        id: JobId(id),
        name: "dev".into(),
        kind: JobKind::Interactive,
        owner: "alice".parse().expect("a name"),
        session: Some(SessionId(3)),
        request: request().into(),
        time_limit: Duration::from_mins(1),
        submitted: Timestamp(1_000),
        after: None,
        terms: Terms::default(),
        hold: None,
        begin: None,
        conditions: Conditions {
            dependencies: vec![Dependency {
                task: None,
                kind: DependencyKind::AfterOk,
                job: JobId(1),
            }],
            ..Conditions::default()
        },
        give_up: Some(Timestamp(9)),
        past_runs: vec![PastRun {
            generation: Generation::first_of(6).next(),
            started: Timestamp(1_100),
            ended: Timestamp(1_200),
            billing_milli: 1_000,
            state: JobState::Preempted,
            for_job: Some(JobId(2)),
            failed_soon_on: vec!["n1".parse().expect("a name")],
        }],
        requeue: true,
        batch: Some(Arc::new(Batch {
            command: vec!["python".into(), "train it.py".into()],
            image: "i".into(),
            env: BTreeMap::from([("A".into(), "b".into())]),
            workdir: "/w".into(),
            container: ContainerOptions::default(),
            script: Some("#!/bin/sh\necho é\n".into()),
            output: Output {
                stdout: "%j".into(),
                ..Output::default()
            },
            submitted_from: Place {
                host: "login".into(),
                directory: "/home/alice".into(),
            },
            submitted_by: None,
            comment: "a sweep".into(),
            mail: None,
            request_key: "k".into(),
        })),
        array: Some(Arc::new(ArrayPart {
            array: JobId(1),
            tasks: IndexSet::one(id as u32),
            throttle: Some(2),
            shape: Shape::of(&"0-9".parse().expect("a set")),
        })),
        phase,
    }))
}

fn past_use() -> PastUse {
    let mut usage = Usage::default();
    // Nothing decays: what is used is a whole number, which JSON keeps to the last bit.
    let decay = Decay {
        half_life: Duration::ZERO,
        period: Duration::from_hours(24),
    };
    usage.begin(Timestamp(1_000), 3_000, decay);
    usage.end(Timestamp(5_000_000), 3_000, decay);
    PastUse {
        key: PastKey {
            user: "alice".parse().expect("a name"),
            account: "lab".parse().expect("a name"),
            qos: "normal".parse().expect("a name"),
            partition: "all".parse().expect("a name"),
        },
        usage,
    }
}

fn past_demand() -> Demand {
    let decay = Decay {
        half_life: Duration::ZERO,
        period: Duration::ZERO,
    };
    let mut demand = Demand::default();
    demand.begin(Timestamp(1_000), 2_000, decay);
    demand.end(Timestamp(9_000), 2_000, decay);
    demand
}

fn array(id: u64) -> ArrayRecord {
    ArrayRecord {
        id: JobId(id),
        tasks: "0-9".parse().expect("a set"),
        completed: "3-5".parse().expect("a set"),
        failed: IndexSet::default(),
        exit_code: 7,
        lowered: true,
    }
}

/// One of each kind.
fn entities() -> Vec<Change> {
    let part = NodeAllocation {
        node: "n1".parse().expect("a name"),
        gpus: vec!["GPU-1".parse().expect("a name")],
        cpus: 4,
        memory_bytes: 5,
    };
    let mut metered = Metered::default();
    let used = Used { busy: 5, measured: 9 };
    for since in [3, 4] {
        metered.take(&Counter {
            since,
            by_model: [("H100".to_owned(), used)].into(),
        });
    }
    metered.host = HostUse {
        user_us: 1,
        system_us: 2,
        memory_bytes: 3,
        peak_bytes: 4,
    };
    let placed = Placed {
        generation: Generation::first_of(7).next(),
        allocation: Allocation { nodes: vec![part] },
        started: Timestamp(2_000),
        deadline: Timestamp(62_000),
        billing_milli: 1_000,
        charges: vec![Charge {
            model: "H100".into(),
            gpu_milli: 1_000,
            billing_milli: 1_000,
        }],
        ranks: vec![RankStatus {
            ready: true,
            released: false,
            host_key: "ssh-ed25519 A".into(),
            containment: Containment {
                fence: Some(FenceReport {
                    checks: 40,
                    micros: 900,
                }),
                oom_kills: 2,
            },
            binding: Binding {
                cpus: "0-3".parse().unwrap(),
                mems: "1".parse().unwrap(),
            },
            metered,
            network: RankNetwork::Routed([10, 214, 0, 7].into()),
            ready_at: Some(Timestamp(2_100)),
            failed_soon: true,
        }],
        ending: None,
        leaving: Some(Leaving {
            killed: Timestamp(3_000),
            again: true,
            for_job: Some(JobId(9)),
        }),
        extended: Some(Timestamp(2_500)),
        signalled: None,
    };
    let ending = Ending {
        state: JobState::Failed,
        reason: "it's \"so\" – ü".into(),
        exit_code: Some(-1),
    };
    vec![
        Change::PutCluster(Box::new(ClusterRecord {
            id: ClusterId("c".into()),
            incarnation: Incarnation {
                number: 7,
                nonce: u64::MAX,
            },
            next_job: 3,
            next_session: 4,
            lease_ms: 600_000,
        })),
        Change::PutUser(Arc::new(User {
            name: "alice".parse().expect("a name"),
            uid: u32::MAX - 1,
            gid: 5,
            groups: vec![1, 2],
            group_names: [(5, "lab".to_owned())].into(),
            home: "/home/alice".into(),
            shell: String::new(),
            role: Role::Admin,
            ssh_keys: vec!["ssh-ed25519 AAAA".into()],
        })),
        Change::PutToken(Arc::new(ApiToken {
            id: "t".into(),
            hash: [0xab; 32],
            user: "alice".parse().expect("a name"),
            label: "laptop".into(),
            scope: Scope::Sessions,
            by_sign_in: true,
            created: Timestamp(5),
            expires: Timestamp::MAX,
            last_used: Some((Timestamp(6), Origin::Remote([10, 0, 0, 1].into()))),
        })),
        Change::PutNodeToken(Arc::new(NodeToken {
            hash: [0; 32],
            node: None,
            expires: Timestamp(9),
        })),
        Change::PutNode(Arc::new(NodeRecord {
            name: "n1".parse().expect("a name"),
            inventory: Inventory::default(),
            drained: Some("fan".into()),
            certificate: "ab".into(),
            former_certificate: String::new(),
            revoked: vec!["cd".into()],
            boot_id: "b".into(),
            version: "v".into(),
            images: vec!["i".into()],
            found: Some(Timestamp(8)),
            features: ["ib".to_owned()].into(),
        })),
        Change::PutAccount(Arc::new(Account {
            parent: Some("dept".parse().expect("a name")),
            members: [("alice".parse().expect("a name"), Member::default())].into(),
            ..Account::new("lab".parse().expect("a name"))
        })),
        Change::PutPerson(Arc::new(Person {
            limits: Limits {
                gpu_milli: Some(4_500),
                time: Some(Duration::from_hours(3)),
                ..Limits::default()
            },
            ..Person::new("alice".parse().expect("a name"))
        })),
        Change::PutQos(Arc::new(Qos {
            preemptible: Some(Preemption::Requeue),
            ..Qos::new("spare".parse().expect("a name"))
        })),
        Change::PutPartition(Arc::new(Partition {
            nodes: NodeSet {
                features: Some("ib&h100".parse().expect("an expression")),
                ..NodeSet::default()
            },
            ..Partition::new("big".parse().expect("a name"))
        })),
        Change::PutReservation(Arc::new(Reservation {
            name: "course".parse().expect("a name"),
            description: "on Mondays".into(),
            by: "alice".parse().expect("a name"),
            times: Times {
                start: Timestamp(9),
                duration: Duration::from_hours(2),
                every: Some(Every::Weekly),
            },
            nodes: NodeSet {
                only: Some(["n1".parse().expect("a name")].into()),
                ..NodeSet::default()
            },
            parts: Some(Allocation {
                nodes: vec![NodeAllocation {
                    node: "n1".parse().expect("a name"),
                    gpus: vec![],
                    cpus: 8,
                    memory_bytes: 1 << 30,
                }],
            }),
            accounts: ["lab".parse().expect("a name")].into(),
            users: ["alice".parse().expect("a name")].into(),
            maintenance: false,
            overlap: false,
        })),
        Change::PutSession(Arc::new(Session {
            id: SessionId(3),
            name: "dev".parse().expect("a name"),
            owner: "alice".parse().expect("a name"),
            spec: SessionSpec {
                request: request().into(),
                image: "i".into(),
                time_limit: Duration::from_millis(1_500),
                env: [("A".to_owned(), "1".to_owned())].into(),
                workdir: String::new(),
                terms: TermsRequest::default(),
                container: ContainerOptions::default(),
            },
            created: Timestamp(1),
            ephemeral: false,
            removing: true,
            job: Some(JobId(1)),
            kept_on: vec!["n1".parse().expect("a name")],
            request_key: "k".into(),
            shares: [("bob".parse().expect("a name"), Share::ReadOnly)].into(),
        })),
        Change::PutPastUse(Arc::new(past_use())),
        Change::PutPastDemand("H100".into(), Box::new(past_demand())),
        Change::PutArray(Arc::new(array(1))),
        job(1, Phase::Placed(Box::new(placed.clone()))),
        job(
            2,
            Phase::Ended {
                ending,
                at: Timestamp(3),
                last: Some(Box::new(placed)),
            },
        ),
        Change::PutRemoval("n1".parse().expect("a name"), SessionId(2)),
        Change::PutTombstone("n1".parse().expect("a name"), "9@7.1f".parse().expect("a key")),
    ]
}

#[test]
fn everything_comes_back_as_it_was_put() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut store = Store::open(dir.path()).expect("opened");
    store.commit(&entities()).expect("committed");
    drop(store);
    let mut store = Store::open(dir.path()).expect("opened again");
    assert_eq!(store.load().expect("loaded"), entities());

    let deletions = [
        Change::DeleteUser("alice".parse().expect("a name")),
        Change::DeleteToken("t".into()),
        Change::DeleteNodeToken([0; 32]),
        Change::DeleteNode("n1".parse().expect("a name")),
        Change::DeleteAccount("lab".parse().expect("a name")),
        Change::DeleteQos("spare".parse().expect("a name")),
        Change::DeletePartition("big".parse().expect("a name")),
        Change::DeleteReservation("course".parse().expect("a name")),
        Change::DeleteSession(SessionId(3)),
        Change::DeleteRemoval("n1".parse().expect("a name"), SessionId(2)),
        Change::DeleteTombstone("n1".parse().expect("a name"), "9@7.1f".parse().expect("a key")),
    ];
    store.commit(&deletions).expect("committed");
    let left = store.load().expect("loaded");
    assert!(
        left.iter().all(|change| matches!(
            change,
            Change::PutCluster(_)
                | Change::PutJob(_)
                | Change::PutPerson(_)
                | Change::PutPastUse(_)
                | Change::PutPastDemand(..)
                | Change::PutArray(_)
        )),
        "{left:?}"
    );
}

/// Of several changes of one thing in one transaction the last counts.
#[test]
fn the_last_change_of_an_entity_counts() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut store = Store::open(dir.path()).expect("opened");
    let waiting = |name: &str| match job(1, Phase::Pending) {
        Change::PutJob(job) => Change::PutJob(Arc::new(Job {
            name: name.into(),
            ..(*job).clone()
        })),
        other => other,
    };
    let (node, session) = ("n1".parse().expect("a name"), SessionId(1));
    let changes = [
        waiting("one"),
        Change::PutRemoval(node, session),
        waiting("two"),
        Change::DeleteRemoval("n1".parse().expect("a name"), session),
    ];
    store.commit(&changes).expect("committed");
    assert_eq!(store.load().expect("loaded"), [waiting("two")]);
}

#[test]
fn files_of_others_and_of_later_versions_are_refused_untouched() {
    let dir = tempfile::tempdir().expect("a directory");
    drop(Store::open(dir.path()).expect("made"));
    let file = dir.path().join(STORE_FILE);
    let raw = Connection::open(&file).expect("opened");
    raw.pragma_update(None, "user_version", SCHEMA_VERSION + 1)
        .expect("set");
    drop(raw);
    let newer = Store::open(dir.path()).expect_err("newer");
    assert!(
        matches!(newer, StoreError::Newer { found, .. } if found == SCHEMA_VERSION + 1),
        "{newer}"
    );
    assert!(newer.to_string().contains("version"), "{newer}");

    let other = tempfile::tempdir().expect("a directory");
    let raw = Connection::open(other.path().join(STORE_FILE)).expect("opened");
    raw.execute_batch("CREATE TABLE theirs (a)").expect("made");
    drop(raw);
    let foreign = Store::open(other.path()).expect_err("foreign");
    assert!(matches!(foreign, StoreError::Foreign { .. }), "{foreign}");

    let text = tempfile::tempdir().expect("a directory");
    std::fs::write(
        text.path().join(STORE_FILE),
        "no database, but long enough to be looked at".repeat(40),
    )
    .expect("written");
    assert!(Store::open(text.path()).is_err());
}

/// An array that has left the state is not read back at a start, and what was known of it is found; its tasks are found by
/// their names.
#[test]
fn an_array_leaves_and_is_found() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut store = Store::open(dir.path()).expect("opened");
    let ended = |id: u64, tasks: &str| {
        let Change::PutJob(job) = job(id, Phase::Pending) else {
            panic!("a job")
        };
        let mut job = Arc::unwrap_or_clone(job);
        let part = job.array.take().expect("a part");
        job.array = Some(Arc::new(ArrayPart {
            tasks: tasks.parse().expect("a set"),
            ..(*part).clone()
        }));
        job.phase = Phase::Ended {
            ending: Ending {
                state: JobState::Cancelled,
                reason: String::new(),
                exit_code: None,
            },
            at: Timestamp(id),
            last: None,
        };
        Change::ForgetJob(Arc::new(job))
    };
    let changes = [
        Change::PutArray(Arc::new(array(1))),
        Change::PutArray(Arc::new(array(20))),
        ended(1, "9"),
        ended(2, "3-7"),
        ended(3, "8"),
        Change::ForgetArray(Arc::new(array(1))),
    ];
    store.commit(&changes).expect("committed");
    assert_eq!(
        store.load().expect("loaded"),
        [Change::PutArray(Arc::new(array(20)))]
    );
    let history = History::new(dir.path());
    assert_eq!(history.arrays(&[JobId(1), JobId(7)]).expect("read"), [array(1)]);
    let found = |name: &str| -> Vec<u64> {
        let name = name.parse().expect(name);
        let jobs = history.named(&name, 10).expect("read");
        jobs.iter().map(|job| job.id.0).collect()
    };
    assert_eq!(found("1"), [3, 2, 1], "what ended last comes first");
    assert_eq!(found("1_8"), [3]);
    assert_eq!(found("1_5"), [2]);
    assert_eq!(found("1_[7-9]"), [3, 2, 1]);
    assert_eq!(found("3"), [3], "by its own number");
    assert_eq!(found("1_0"), Vec::<u64>::new());
}

#[test]
fn a_damaged_record_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut store = Store::open(dir.path()).expect("opened");
    store.commit(&entities()).expect("committed");
    drop(store);
    let raw = Connection::open(dir.path().join(STORE_FILE)).expect("opened");
    raw.execute("UPDATE sessions SET body = '{\"id\": 3}'", [])
        .expect("damaged");
    drop(raw);
    let error = Store::open(dir.path())
        .expect("opened")
        .load()
        .expect_err("damaged");
    assert!(error.to_string().contains("table sessions"), "{error}");
    assert!(
        error
            .source()
            .is_some_and(|source| source.to_string().contains("missing field"))
    );
}

/// A store of the first schema, as a broker of then left it, is brought to this one.
#[test]
fn a_store_of_the_first_schema_is_taken_over() {
    let dir = tempfile::tempdir().expect("a directory");
    let raw = Connection::open(dir.path().join(STORE_FILE)).expect("opened");
    raw.execute_batch(include_str!("../../src/store/migrations/0001.sql"))
        .expect("made");
    raw.pragma_update(None, "application_id", 0x4352_524c)
        .expect("set");
    raw.pragma_update(None, "user_version", 1).expect("set");
    let user = |name: &str, uid: u32, admin: bool| {
        let body = serde_json::json!({
            "name": name, "uid": uid, "gid": uid, "groups": [7], "home": "/h", "shell": "",
            "admin": admin, "ssh_keys": ["ssh-ed25519 AAAA"],
        });
        raw.execute(
            "INSERT INTO users (name, uid, body) VALUES (?1, ?2, ?3)",
            rusqlite::params![name, uid, body.to_string()],
        )
        .expect("put");
    };
    user("alice", 1001, false);
    user("root", 0, true);
    let token = serde_json::json!({
        "id": "t", "hash": vec![0; 32], "user": "alice", "label": "l", "expires": 9,
    });
    raw.execute(
        "INSERT INTO tokens VALUES ('t', 'alice', 9, ?1)",
        [token.to_string()],
    )
    .expect("put");
    let session = serde_json::json!({
        "id": 3, "name": "dev", "owner": "alice",
        "spec": {
            "request": {
                "nodes": 1, "gpus_per_node": 1, "gpu_model": "", "nvlink": false,
                "cpus_per_node": 1, "memory_bytes_per_node": 1,
            },
            "image": "i", "time_limit": {"secs": 1, "nanos": 0}, "env": {}, "workdir": "",
        },
        "created": 1, "ephemeral": false, "removing": false, "job": null, "kept_on": [], "request_key": "",
    });
    raw.execute(
        "INSERT INTO sessions VALUES (3, 'alice', 'dev', NULL, ?1)",
        [session.to_string()],
    )
    .expect("put");
    drop(raw);

    let store = Store::open(dir.path()).expect("opened");
    let mut roles = Vec::new();
    for change in store.load().expect("loaded") {
        match change {
            Change::PutUser(user) => {
                assert_eq!((user.groups.as_slice(), user.ssh_keys.len()), (&[7][..], 1));
                roles.push((user.name.to_string(), user.role));
            }
            Change::PutToken(token) => {
                assert_eq!(
                    (token.scope, token.by_sign_in, &token.last_used),
                    (Scope::Full, false, &None)
                );
            }
            Change::PutSession(session) => assert!(session.shares.is_empty()),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(
        roles,
        [("alice".to_owned(), Role::User), ("root".to_owned(), Role::Admin)]
    );
}

fn noted(at: u64, user: &str, action: Action) -> Change {
    let mut record = AuditRecord::new(
        user.parse().ok(),
        Origin::Local(7),
        action,
        format!("user {user}"),
        format!("at {at}"),
    );
    record.at = Timestamp(at);
    Change::Audit(Box::new(record))
}

/// Records are kept in their order, every one, found by what is asked for, and dropped in time.
#[test]
fn the_audit_log_is_read_beside_the_writer() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut store = Store::open(dir.path()).expect("opened");
    let log = AuditLog::new(dir.path());
    let all = AuditFilter::default();
    assert!(log.page(0, &all).expect("read").is_empty());
    let mut changes = vec![
        noted(1, "alice", Action::SignIn),
        noted(2, "bob", Action::SignIn),
        noted(2, "alice", Action::Share),
        noted(2, "alice", Action::Share),
    ];
    store.commit(&changes).expect("committed");
    let read = log.page(0, &all).expect("read");
    assert_eq!(read.len(), 4, "equal records are two");
    assert_eq!(
        (
            read[0].user.as_str(),
            read[0].origin.as_str(),
            read[0].action.as_str(),
            read[0].outcome.as_str()
        ),
        ("alice", "uid 7", "sign-in", "done")
    );
    let find = |filter: AuditFilter| log.page(0, &filter).expect("read").len();
    assert_eq!(
        find(AuditFilter {
            since_ms: 2,
            ..all.clone()
        }),
        3
    );
    assert_eq!(
        find(AuditFilter {
            user: "bob".into(),
            ..all.clone()
        }),
        1
    );
    let shares = AuditFilter {
        user: "alice".into(),
        action: "share".into(),
        ..all.clone()
    };
    assert_eq!(find(shares), 2);
    assert_eq!(log.page(read[2].number, &all).expect("read"), read[3..]);

    // What is too old goes, and so does what is too much; numbers go on.
    changes = vec![
        Change::TrimAudit(Timestamp(2), 2),
        noted(3, "carol", Action::SignIn),
    ];
    store.commit(&changes).expect("committed");
    let left = log.page(0, &all).expect("read");
    assert_eq!(left.iter().map(|row| row.at_ms).collect::<Vec<_>>(), [2, 2, 3]);
    assert!(left[2].number > read[3].number);
    store
        .commit(&[Change::TrimAudit(Timestamp::MAX, 0)])
        .expect("committed");
    store
        .commit(&[noted(4, "dan", Action::SignIn)])
        .expect("committed");
    assert!(log.page(0, &all).expect("read")[0].number > left[2].number);
    let many: Vec<Change> = (0..AUDIT_PAGE as u64 + 5)
        .map(|at| noted(10 + at, "eve", Action::SignIn))
        .collect();
    store.commit(&many).expect("committed");
    assert_eq!(find(all), AUDIT_PAGE);
    assert!(
        store.load().expect("loaded").is_empty(),
        "the log is no part of the state"
    );
}
