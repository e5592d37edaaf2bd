//! Signing in by SSH key.

use carrel_proto::v1;
use carrel_proto::v1::sign_in_client::SignInClient;
use russh::keys::ssh_key::{LineEnding, private::Ed25519Keypair};
use russh::keys::{HashAlg, PrivateKey};
use tonic::Code;
use tonic::transport::Channel;

use crate::daemon::{Daemon, hint};

const NAMESPACE: &str = "signin@carrel";

fn key(seed: u8) -> PrivateKey {
    PrivateKey::from(Ed25519Keypair::from_seed(&[seed; 32]))
}

fn sign(key: &PrivateKey, namespace: &str, message: &[u8]) -> String {
    let signature = key.sign(namespace, HashAlg::Sha512, message).expect("signed");
    signature.to_pem(LineEnding::LF).expect("text")
}

struct World {
    _dir: tempfile::TempDir,
    broker: Daemon,
    client: SignInClient<Channel>,
}

/// A broker at which alice has registered a key.
async fn world() -> World {
    let dir = tempfile::tempdir().expect("a directory");
    let broker = Daemon::start(&dir.path().join("s"), &[]).await;
    let mut alice = broker.user("alice", 70_001).await;
    broker.put_user("bob", 70_002, v1::Role::User).await;
    let public_key = key(1).public_key().to_openssh().expect("text");
    alice
        .add_ssh_key(v1::AddSshKeyRequest { public_key })
        .await
        .expect("added");
    let client = SignInClient::new(broker.tls(None).await.expect("TLS"));
    World {
        _dir: dir,
        broker,
        client,
    }
}

impl World {
    async fn challenge(&mut self) -> Vec<u8> {
        let made = self.client.start_ssh_key(v1::StartSshKeyRequest {}).await;
        made.expect("a challenge").into_inner().challenge
    }

    async fn finish(
        &mut self,
        user: &str,
        challenge: &[u8],
        signature: String,
    ) -> Result<v1::SignedIn, tonic::Status> {
        let token = v1::WantedToken {
            label: "laptop".into(),
            ttl_s: 60,
            scope: v1::TokenScope::Sessions.into(),
        };
        let request = v1::FinishSshKeyRequest {
            user: user.into(),
            challenge: challenge.into(),
            signature,
            token: Some(token),
        };
        let finished = self.client.finish_ssh_key(request).await;
        finished.map(tonic::Response::into_inner)
    }
}

#[tokio::test]
async fn a_registered_key_signs_its_user_in() {
    let mut world = world().await;
    let challenge = world.challenge().await;
    let text = String::from_utf8(challenge.clone()).expect("text");
    let mut root = world.broker.client().await;
    let cluster = root
        .get_cluster(v1::GetClusterRequest {})
        .await
        .expect("known")
        .into_inner();
    assert!(text.contains(&format!("cluster {}\n", cluster.id)), "{text}");

    let signature = sign(&key(1), NAMESPACE, &challenge);
    let signed_in = world
        .finish("alice", &challenge, signature.clone())
        .await
        .expect("signed in");
    let info = signed_in.info.expect("info");
    assert_eq!((signed_in.user.as_str(), info.by_sign_in), ("alice", true));
    assert_eq!(
        (info.scope(), info.label.as_str()),
        (v1::TokenScope::Sessions, "laptop")
    );
    let mut alice = world.broker.client_with(&signed_in.token).await;
    let cluster = alice
        .get_cluster(v1::GetClusterRequest {})
        .await
        .expect("known")
        .into_inner();
    assert_eq!(cluster.user.expect("a user").name, "alice");

    // Once only.
    let again = world
        .finish("alice", &challenge, signature.clone())
        .await
        .expect_err("used");
    assert_eq!(again.code(), Code::Unauthenticated);

    let request = v1::ReadAuditRequest {
        action: "sign-in".into(),
        ..v1::ReadAuditRequest::default()
    };
    let mut records = root.read_audit(request).await.expect("read").into_inner();
    let mut told = Vec::new();
    while let Some(record) = records.message().await.expect("a record") {
        told.push(record);
    }
    let fingerprint = key(1).fingerprint(HashAlg::Sha256).to_string();
    assert!(
        told.iter()
            .any(|r| r.user == "alice" && r.detail.contains(&fingerprint)),
        "{told:?}"
    );
    assert!(
        told.iter()
            .any(|r| r.outcome == "refused" && r.subject == "user alice"),
        "{told:?}"
    );
    let text = format!("{told:?}{}", world.broker.log_text());
    assert!(
        !text.contains(&signed_in.token[7..]) && !text.contains(signature.lines().nth(2).expect("a line"))
    );
}

/// Every wrong thing alone is refused, and nothing that is told says who exists.
#[tokio::test]
async fn nothing_else_does() {
    let mut world = world().await;
    let mut told = Vec::new();
    for (what, user, signer, namespace) in [
        ("another's key", "bob", 1, NAMESPACE),
        ("no registered key", "alice", 2, NAMESPACE),
        ("no such user", "mallory", 2, NAMESPACE),
        ("no user's name", "../..", 1, NAMESPACE),
        ("for something else", "alice", 1, "git"),
    ] {
        let challenge = world.challenge().await;
        let signature = sign(&key(signer), namespace, &challenge);
        let refused = world.finish(user, &challenge, signature).await.expect_err(what);
        assert_eq!(refused.code(), Code::Unauthenticated, "{what}");
        told.push((refused.message().to_owned(), hint(&refused).to_owned()));
    }
    assert!(told.windows(2).all(|pair| pair[0] == pair[1]), "{told:?}");

    // A challenge of our own making, one that was changed, a signature over another.
    let challenge = world.challenge().await;
    let other = world.challenge().await;
    let signature = sign(&key(1), NAMESPACE, &other);
    world
        .finish("alice", &challenge, signature)
        .await
        .expect_err("another's signature");
    let mut changed = challenge.clone();
    let last = changed.len() - 2;
    changed[last] ^= 1;
    for made_up in [&b"carrel sign-in\n"[..], b"", &changed] {
        let signature = sign(&key(1), NAMESPACE, made_up);
        world
            .finish("alice", made_up, signature)
            .await
            .expect_err("not the broker's");
    }
    // Nothing of that has used the challenge up.
    let signature = sign(&key(1), NAMESPACE, &challenge);
    world
        .finish("alice", &challenge, signature)
        .await
        .expect("signed in");
}
