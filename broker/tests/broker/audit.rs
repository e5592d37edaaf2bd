//! The audit log, as operators read it.

use carrel_proto::v1;
use tonic::{Code, Streaming};

use crate::daemon::{Daemon, PATIENCE};

fn everything() -> v1::ReadAuditRequest {
    v1::ReadAuditRequest::default()
}

async fn all(stream: &mut Streaming<v1::AuditRecord>) -> Vec<v1::AuditRecord> {
    let mut records = Vec::new();
    while let Some(record) = stream.message().await.expect("a record") {
        records.push(record);
    }
    records
}

/// What happened is there with who, from where, what and how it ended; and no secret is.
#[tokio::test]
async fn what_happens_is_written_down() {
    let dir = tempfile::tempdir().expect("a directory");
    let broker = Daemon::start(&dir.path().join("s"), &[]).await;
    let mut root = broker.client().await;
    broker.put_user("alice", 70_001, v1::Role::User).await;
    let secret = broker.token("alice", v1::TokenScope::Full).await;
    let mut alice = broker.client_with(&secret).await;
    alice.get_cluster(v1::GetClusterRequest {}).await.expect("known");
    let refused = alice.read_audit(everything()).await.expect_err("refused");
    assert_eq!(refused.code(), Code::PermissionDenied);
    let forged = broker
        .client_with("carrel_forged")
        .await
        .get_cluster(v1::GetClusterRequest {})
        .await;
    forged.expect_err("refused");

    let read = async |root: &mut v1::broker_client::BrokerClient<_>, request| {
        all(&mut root.read_audit(request).await.expect("read").into_inner()).await
    };
    let records = read(&mut root, everything()).await;
    let find = |action: &str, outcome: &str| {
        let found = records
            .iter()
            .find(|r| r.action == action && r.outcome == outcome);
        found
            .unwrap_or_else(|| panic!("no {action} {outcome} in {records:#?}"))
            .clone()
    };
    find("broker-start", "done");
    let put = records
        .iter()
        .find(|r| r.action == "user-put" && r.subject == "user alice");
    let put = put.expect("alice was put");
    assert!(put.origin.starts_with("uid ") && put.at_ms > 0, "{put:?}");
    let made = find("token-create", "done");
    assert!(made.subject.contains("of alice"), "{made:?}");
    let came = find("sign-in", "done");
    assert_eq!((came.user.as_str(), came.origin.as_str()), ("alice", "127.0.0.1"));
    let failed = find("sign-in", "refused");
    assert_eq!((failed.user.as_str(), failed.origin.as_str()), ("", "127.0.0.1"));
    let denied = find("denied", "refused");
    assert_eq!(
        (denied.user.as_str(), denied.subject.as_str()),
        ("alice", "read_audit")
    );
    let text = format!("{records:?}");
    assert!(!text.contains(&secret[7..]) && !text.contains("forged"), "{text}");
    assert!(!broker.log_text().contains(&secret[7..]));
    assert!(records.windows(2).all(|pair| pair[0].number < pair[1].number));

    let only = v1::ReadAuditRequest {
        user: "alice".into(),
        action: "sign-in".into(),
        ..everything()
    };
    assert_eq!(read(&mut root, only).await, [came]);
    let wrong = v1::ReadAuditRequest {
        action: "sign-inn".into(),
        ..everything()
    };
    let refused = root.read_audit(wrong).await.expect_err("no such action");
    assert!(refused.message().contains("sign-in,"), "{refused:?}");
}

/// Who follows gets what comes, and ends with the broker.
#[tokio::test]
async fn the_log_can_be_followed() {
    let dir = tempfile::tempdir().expect("a directory");
    let broker = Daemon::start(&dir.path().join("s"), &[]).await;
    let mut root = broker.client().await;
    let request = v1::ReadAuditRequest {
        action: "user-role".into(),
        follow: true,
        ..everything()
    };
    let mut followed = root.read_audit(request).await.expect("read").into_inner();
    broker.put_user("alice", 70_001, v1::Role::User).await;
    for role in [v1::Role::Operator, v1::Role::User, v1::Role::Admin] {
        let request = v1::SetUserRoleRequest {
            user: "alice".into(),
            role: role.into(),
        };
        root.set_user_role(request).await.expect("set");
        let record = tokio::time::timeout(PATIENCE, followed.message())
            .await
            .expect("in time");
        let record = record.expect("a record").expect("not the end");
        assert_eq!(record.subject, "user alice");
    }
    broker.terminate().await;
    let end = tokio::time::timeout(PATIENCE, followed.message())
        .await
        .expect("in time");
    assert!(!matches!(end, Ok(Some(_))), "{end:?}");
}

/// Failures of people who have not signed in cannot fill it.
#[tokio::test]
async fn failed_sign_ins_are_counted_and_not_all_written() {
    let dir = tempfile::tempdir().expect("a directory");
    let broker = Daemon::start(&dir.path().join("s"), &[]).await;
    let mut nobody = broker.client_with("carrel_wrong").await;
    for _ in 0..200 {
        let refused = nobody
            .get_cluster(v1::GetClusterRequest {})
            .await
            .expect_err("refused");
        assert_eq!(refused.code(), Code::Unauthenticated);
    }
    let mut root = broker.client().await;
    let request = v1::ReadAuditRequest {
        action: "sign-in".into(),
        ..everything()
    };
    let written = all(&mut root.read_audit(request).await.expect("read").into_inner()).await;
    assert!((1..=20).contains(&written.len()), "{}", written.len());
}
