//! The store: what is put comes back, and other files are left alone.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use carrel_broker::store::{SCHEMA_VERSION, STORE_FILE, Store, StoreError};
use carrel_core::broker::{Change, ClusterRecord};
use carrel_core::model::gpu::Inventory;
use carrel_core::model::ids::{ClusterId, Generation, Incarnation, JobId, SessionId};
use carrel_core::model::job::{
    Containment, Ending, FenceReport, Job, JobKind, JobState, Phase, Placed, RankStatus,
};
use carrel_core::model::node::NodeRecord;
use carrel_core::model::resources::{Allocation, NodeAllocation, ResourceRequest};
use carrel_core::model::session::{ContainerOptions, Session, SessionSpec};
use carrel_core::model::time::Timestamp;
use carrel_core::model::user::{ApiToken, NodeToken, User};
use rusqlite::Connection;

fn request() -> ResourceRequest {
    ResourceRequest {
        nodes: 1,
        gpus_per_node: 1,
        gpu_model: "h100".into(),
        nvlink: true,
        cpus_per_node: 4,
        memory_bytes_per_node: u64::MAX,
    }
}

fn job(id: u64, phase: Phase) -> Change {
    Change::PutJob(Arc::new(Job {
        id: JobId(id),
        name: "dev".into(),
        kind: JobKind::Interactive,
        owner: "alice".parse().expect("a name"),
        session: Some(SessionId(3)),
        request: request(),
        time_limit: Duration::from_mins(1),
        submitted: Timestamp(1_000),
        after: None,
        phase,
    }))
}

/// One of each kind.
fn entities() -> Vec<Change> {
    let part = NodeAllocation {
        node: "n1".parse().expect("a name"),
        gpus: vec!["GPU-1".parse().expect("a name")],
        cpus: 4,
        memory_bytes: 5,
    };
    let placed = Placed {
        generation: Generation::first_of(7).next(),
        allocation: Allocation { nodes: vec![part] },
        started: Timestamp(2_000),
        deadline: Timestamp(62_000),
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
        }],
        ending: None,
    };
    let ending = Ending {
        state: JobState::Failed,
        reason: "it's \"so\" – ü".into(),
        exit_code: Some(-1),
    };
    vec![
        Change::PutCluster(ClusterRecord {
            id: ClusterId("c".into()),
            incarnation: Incarnation {
                number: 7,
                nonce: u64::MAX,
            },
            next_job: 3,
            next_session: 4,
            lease_ms: 600_000,
        }),
        Change::PutUser(Arc::new(User {
            name: "alice".parse().expect("a name"),
            uid: u32::MAX - 1,
            gid: 5,
            groups: vec![1, 2],
            home: "/home/alice".into(),
            shell: String::new(),
            admin: true,
            ssh_keys: vec!["ssh-ed25519 AAAA".into()],
        })),
        Change::PutToken(Arc::new(ApiToken {
            id: "t".into(),
            hash: [0xab; 32],
            user: "alice".parse().expect("a name"),
            label: "laptop".into(),
            expires: Timestamp::MAX,
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
        })),
        Change::PutSession(Arc::new(Session {
            id: SessionId(3),
            name: "dev".parse().expect("a name"),
            owner: "alice".parse().expect("a name"),
            spec: SessionSpec {
                request: request(),
                image: "i".into(),
                time_limit: Duration::from_millis(1_500),
                env: [("A".to_owned(), "1".to_owned())].into(),
                workdir: String::new(),
                container: ContainerOptions::default(),
            },
            created: Timestamp(1),
            ephemeral: false,
            removing: true,
            job: Some(JobId(1)),
            kept_on: vec!["n1".parse().expect("a name")],
            request_key: "k".into(),
        })),
        job(1, Phase::Placed(placed.clone())),
        job(
            2,
            Phase::Ended {
                ending,
                at: Timestamp(3),
                last: Some(placed),
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
        Change::DeleteSession(SessionId(3)),
        Change::DeleteRemoval("n1".parse().expect("a name"), SessionId(2)),
        Change::DeleteTombstone("n1".parse().expect("a name"), "9@7.1f".parse().expect("a key")),
    ];
    store.commit(&deletions).expect("committed");
    let left = store.load().expect("loaded");
    assert!(
        left.iter()
            .all(|change| matches!(change, Change::PutCluster(_) | Change::PutJob(_))),
        "{left:?}"
    );
}

/// Of several changes of one thing in one transaction the last counts.
#[test]
fn the_last_change_of_an_entity_counts() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut store = Store::open(dir.path()).expect("opened");
    let waiting = |reason: &str| {
        job(
            1,
            Phase::Pending {
                reason: reason.into(),
            },
        )
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
