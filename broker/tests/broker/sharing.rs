//! Sharing sessions: what the users see, and what the node is told.

use carrel_proto::v1;
use tonic::Code;

use crate::agent::join;
use crate::daemon::{Daemon, by_name, open};

#[tokio::test]
async fn a_share_is_seen_by_both_and_told_to_the_node() {
    let dir = tempfile::tempdir().expect("a directory");
    let broker = Daemon::start(&dir.path().join("s"), &[]).await;
    let mut agent = join(&broker, "n1").await.link(&broker).await.expect("linked");
    agent.exchange().await;
    let mut alice = broker.user("alice", 70_001).await;
    let mut bob = broker.user("bob", 70_002).await;
    broker.put_user("carol", 70_003, v1::Role::User).await;
    alice.open_session(open("dev", 1)).await.expect("opened");
    let share = |user: &str, mode: v1::ShareMode| v1::ShareSessionRequest {
        name: "dev".into(),
        user: user.into(),
        mode: mode.into(),
    };
    alice
        .share_session(share("bob", v1::ShareMode::Full))
        .await
        .expect("shared");
    alice
        .share_session(share("carol", v1::ShareMode::ReadOnly))
        .await
        .expect("shared");

    let seen = bob
        .get_session(by_name("dev.alice"))
        .await
        .expect("seen")
        .into_inner();
    assert_eq!((seen.user.as_str(), seen.shares.len()), ("alice", 2));
    let listed = bob
        .list_sessions(v1::ListSessionsRequest::default())
        .await
        .expect("listed");
    assert_eq!(listed.into_inner().sessions.len(), 1);
    let stop = v1::StopSessionRequest {
        name: "dev.alice".into(),
        job: 0,
        exit_code: None,
    };
    assert_eq!(
        bob.stop_session(stop).await.expect_err("hers").code(),
        Code::PermissionDenied
    );
    let on = v1::ShareSessionRequest {
        name: "dev.alice".into(),
        ..share("carol", v1::ShareMode::Full)
    };
    assert_eq!(
        bob.share_session(on).await.expect_err("hers").code(),
        Code::PermissionDenied
    );
    // Not ready yet: that it may be entered is all that is asked here.
    let stream = v1::OpenStreamRequest {
        name: "dev.alice".into(),
        rank: 0,
        job: 0,
    };
    assert_eq!(
        bob.open_stream(stream.clone())
            .await
            .expect_err("not ready")
            .code(),
        Code::FailedPrecondition
    );

    // What the node is told of who may enter: in full, and to look on.
    // Besides the job's own steps.
    let people = |ssh: v1::SshAccess| {
        let mut all = ssh.principals;
        all.retain(|name| !name.starts_with("job/"));
        (all, ssh.read_only_principals)
    };
    let rules = |told: &v1::Desired| told.jobs.first().and_then(|job| job.ssh.clone());
    let shared = |told: &v1::Desired| {
        rules(told)
            .map(people)
            .is_some_and(|(inside, looking)| inside == ["alice", "bob"] && looking == ["carol"])
    };
    agent.hear_until("the shares", shared).await;

    let unshare = v1::UnshareSessionRequest {
        name: "dev".into(),
        user: "bob".into(),
    };
    alice.unshare_session(unshare).await.expect("taken back");
    let hers = |told: &v1::Desired| {
        rules(told)
            .map(people)
            .is_some_and(|(inside, _)| inside == ["alice"])
    };
    agent.hear_until("the share's end", hers).await;
    assert_eq!(
        bob.open_stream(stream).await.expect_err("gone").code(),
        Code::PermissionDenied
    );
    let listed = bob
        .list_sessions(v1::ListSessionsRequest::default())
        .await
        .expect("listed");
    assert!(listed.into_inner().sessions.is_empty());
}
