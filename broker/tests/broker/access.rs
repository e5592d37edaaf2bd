//! Who may do what.

use carrel_proto::v1;
use carrel_proto::v1::broker_client::BrokerClient;
use tonic::Code;

use crate::agent::join;
use crate::daemon::{Daemon, by_name, hint, open};

const KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ alice@home";

#[tokio::test]
async fn tls_needs_a_token_that_holds() {
    let dir = tempfile::tempdir().expect("a directory");
    let broker = Daemon::start(&dir.path().join("s"), &[]).await;
    let ask = v1::GetClusterRequest {};
    let none = BrokerClient::new(broker.tls(None).await.expect("TLS"))
        .get_cluster(ask)
        .await;
    let none = none.expect_err("no token");
    assert_eq!(none.code(), Code::Unauthenticated);
    assert!(hint(&none).contains("carrel login"));
    for wrong in [
        "",
        "nonsense",
        "carrel_0000000000000000000000000000000000000000000",
    ] {
        let refused = broker
            .client_with(wrong)
            .await
            .get_cluster(ask)
            .await
            .expect_err(wrong);
        assert_eq!(refused.code(), Code::Unauthenticated, "{wrong}");
    }

    let mut alice = broker.user("alice", 70_001).await;
    let cluster = alice.get_cluster(ask).await.expect("known").into_inner();
    let user = cluster.user.expect("a user");
    assert_eq!(
        (user.name.as_str(), user.uid, user.role()),
        ("alice", 70_001, v1::Role::User)
    );
    assert_eq!(cluster.default_image, "busybox");
    assert!(cluster.host_cas[0].starts_with("ssh-ed25519 "));

    // Only the hash is kept.
    let made = alice
        .create_token(v1::CreateTokenRequest::default())
        .await
        .expect("made")
        .into_inner();
    let store = std::fs::read(broker.state.join("broker.db-wal")).expect("a log");
    let held = |bytes: &[u8]| store.windows(bytes.len()).any(|window| window == bytes);
    assert!(held(made.info.as_ref().expect("info").id.as_bytes()) && !held(&made.token.as_bytes()[7..]));
    assert!(!broker.log_text().contains(&made.token[7..]));

    let id = made.info.expect("info").id;
    let mut second = broker.client_with(&made.token).await;
    second.get_cluster(ask).await.expect("known");
    alice
        .revoke_token(v1::RevokeTokenRequest { id })
        .await
        .expect("revoked");
    let refused = second.get_cluster(ask).await.expect_err("revoked");
    assert_eq!(refused.code(), Code::Unauthenticated);
}

#[tokio::test]
async fn users_see_and_do_their_own_only() {
    let dir = tempfile::tempdir().expect("a directory");
    let broker = Daemon::start(&dir.path().join("s"), &[]).await;
    let mut agent = join(&broker, "n1").await.link(&broker).await.expect("linked");
    agent.exchange().await;
    let mut alice = broker.user("alice", 70_001).await;
    let mut bob = broker.user("bob", 70_002).await;
    alice.open_session(open("dev", 1)).await.expect("opened");
    bob.open_session(open("dev", 1))
        .await
        .expect("names are each user's own");

    for name in ["dev.alice", "#1"] {
        let refused = bob.get_session(by_name(name)).await.expect_err(name);
        assert_eq!(refused.code(), Code::PermissionDenied, "{name}");
        let stream = v1::OpenStreamRequest {
            name: name.into(),
            rank: 0,
            job: 0,
        };
        assert_eq!(
            bob.open_stream(stream).await.expect_err(name).code(),
            Code::PermissionDenied
        );
        let stop = v1::StopSessionRequest {
            name: name.into(),
            job: 0,
            exit_code: None,
        };
        assert_eq!(
            bob.stop_session(stop).await.expect_err(name).code(),
            Code::PermissionDenied
        );
        let remove = v1::RemoveSessionRequest { name: name.into() };
        assert_eq!(
            bob.remove_session(remove).await.expect_err(name).code(),
            Code::PermissionDenied
        );
    }
    let all = v1::ListSessionsRequest { all_users: true };
    let own = bob
        .list_sessions(all)
        .await
        .expect("listed")
        .into_inner()
        .sessions;
    assert!(own.len() == 1 && own[0].user == "bob", "{own:?}");
    let mut root = broker.client().await;
    assert_eq!(
        root.list_sessions(all)
            .await
            .expect("listed")
            .into_inner()
            .sessions
            .len(),
        2
    );
    let users = bob
        .list_users(v1::ListUsersRequest {})
        .await
        .expect("listed")
        .into_inner()
        .users;
    assert_eq!(users.len(), 1);

    for refused in [
        bob.create_node_token(v1::CreateNodeTokenRequest::default())
            .await
            .err(),
        bob.update_node(v1::UpdateNodeRequest {
            name: "n1".into(),
            action: 3,
            ..v1::UpdateNodeRequest::default()
        })
        .await
        .err(),
        bob.create_token(v1::CreateTokenRequest {
            user: "alice".into(),
            ..v1::CreateTokenRequest::default()
        })
        .await
        .err(),
        bob.put_user(v1::PutUserRequest { user: None }).await.err(),
    ] {
        assert_eq!(refused.expect("refused").code(), Code::PermissionDenied);
    }
    // Gateways' business is not on TLS at all.
    let mut control =
        v1::gateway_control_client::GatewayControlClient::new(broker.tls(None).await.expect("TLS"));
    let refused = control
        .enroll(v1::EnrollRequest::default())
        .await
        .expect_err("not here");
    assert_eq!(refused.code(), Code::Unimplemented);
}

#[tokio::test]
async fn keys_are_registered_signed_and_found() {
    let dir = tempfile::tempdir().expect("a directory");
    let broker = Daemon::start(&dir.path().join("s"), &[]).await;
    let mut alice = broker.user("alice", 70_001).await;
    let mut bob = broker.user("bob", 70_002).await;
    let add = v1::AddSshKeyRequest {
        public_key: KEY.into(),
    };
    let fingerprint = alice
        .add_ssh_key(add.clone())
        .await
        .expect("added")
        .into_inner()
        .fingerprint;
    assert!(fingerprint.starts_with("SHA256:"));
    assert_eq!(
        bob.add_ssh_key(add).await.expect_err("taken").code(),
        Code::AlreadyExists
    );
    let listed = alice
        .list_ssh_keys(v1::ListSshKeysRequest {})
        .await
        .expect("listed")
        .into_inner();
    assert_eq!(listed.public_keys, [KEY.rsplit_once(' ').expect("a comment").0]);

    let mut control = broker.control().await;
    let ask = |user: &str| v1::AuthenticateKeyRequest {
        public_key: KEY.into(),
        user: user.into(),
    };
    assert_eq!(
        control
            .authenticate_key(ask("alice"))
            .await
            .expect("asked")
            .into_inner()
            .user,
        "alice"
    );
    assert_eq!(
        control
            .authenticate_key(ask("bob"))
            .await
            .expect("asked")
            .into_inner()
            .user,
        ""
    );
    let target = v1::ResolveTargetRequest {
        user: "alice".into(),
        target: "carrel-dev".into(),
    };
    let resolved = control.resolve_target(target).await.expect("asked").into_inner();
    assert!(resolved.ticket.is_none() && !resolved.error.is_empty());

    let signed = bob
        .sign_ssh_key(v1::SignSshKeyRequest {
            public_key: KEY.into(),
        })
        .await
        .expect("signed");
    let signed = signed.into_inner();
    assert_eq!(signed.user, "bob");
    assert!(
        signed
            .certificate
            .starts_with("ssh-ed25519-cert-v01@openssh.com ")
    );
    let private = v1::SignSshKeyRequest {
        public_key: "-----BEGIN OPENSSH PRIVATE KEY-----".into(),
    };
    let refused = bob.sign_ssh_key(private).await.expect_err("private");
    assert!(
        refused.code() == Code::InvalidArgument && refused.message().contains(".pub"),
        "{refused:?}"
    );

    let remove = v1::RemoveSshKeyRequest { fingerprint };
    assert_eq!(
        bob.remove_ssh_key(remove.clone())
            .await
            .expect_err("not his")
            .code(),
        Code::NotFound
    );
    alice.remove_ssh_key(remove).await.expect("removed");
}
