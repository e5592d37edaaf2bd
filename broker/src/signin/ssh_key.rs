//! By SSH key: a challenge, signed as `ssh-keygen -Y sign` does (PROTOCOL.sshsig).

use carrel_core::model::ids::UserName;
use carrel_proto::v1::FinishSshKeyRequest;
use russh::keys::ssh_key::{Algorithm, HashAlg, PublicKey, SshSig};
use tonic::Status;

use super::challenge::{Challenges, NotOurs};
use crate::api::refuse;
use crate::ca::ssh::{canonical, check_type};
use crate::context::Context;

/// Keeps these signatures apart from all others that a key may make.
const NAMESPACE: &str = "signin@carrel";
/// Longest armored signature that is looked at: that of an RSA key of 16384 bits has 6 KiB.
const MAX_SIGNATURE: usize = 16 << 10;

/// Why somebody was not signed in. For the audit log; who asks is told less.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotProved {
    /// The challenge does not count.
    #[error(transparent)]
    Challenge(#[from] NotOurs),
    /// It is no signature, or one that is not accepted.
    #[error("the signature cannot be read")]
    Unreadable,
    /// It was not made with the key that it names, or for something else.
    #[error("the signature by key {0} is wrong")]
    Signature(String),
    /// Nobody's key, or another user's.
    #[error("key {0} is not registered for that user")]
    Key(String),
}

impl NotProved {
    /// What who asks is told: the same whether the user, the key or the signature is wrong.
    pub fn status(&self) -> Status {
        match self {
            Self::Challenge(not @ (NotOurs::Foreign | NotOurs::Expired | NotOurs::Used)) => {
                refuse::unauthenticated(not.to_string(), "try again")
            }
            Self::Challenge(not @ NotOurs::TooMany) => refuse::with_hint(
                tonic::Code::ResourceExhausted,
                not.to_string(),
                "try again in a minute",
            ),
            Self::Unreadable | Self::Signature(_) | Self::Key(_) => refuse::unauthenticated(
                "that key does not sign that user in here",
                "`carrel key add` registers one, where you are signed in already",
            ),
        }
    }
}

/// Who has signed, and with what.
pub fn prove(
    context: &Context,
    challenges: &Challenges,
    request: &FinishSshKeyRequest,
) -> Result<(UserName, String), NotProved> {
    let now = context.clock.now();
    let challenge = challenges.check(&request.challenge, now)?;
    let key = signer(&request.challenge, &request.signature)?;
    let fingerprint = key.fingerprint(HashAlg::Sha256).to_string();
    let text = canonical(key.key_data());
    let snapshot = context.handle.snapshot();
    let name = request.user.parse::<UserName>().ok();
    let user = name.and_then(|name| snapshot.state().users.get(&name).cloned());
    let user = user.filter(|user| user.ssh_keys.iter().any(|own| **own == text));
    let Some(user) = user else {
        return Err(NotProved::Key(fingerprint));
    };
    challenges.take(&challenge, now)?;
    Ok((user.name.clone(), format!("SSH key {fingerprint}")))
}

/// The key that has signed a message.
fn signer(message: &[u8], armored: &str) -> Result<PublicKey, NotProved> {
    if armored.len() > MAX_SIGNATURE {
        return Err(NotProved::Unreadable);
    }
    let signature = SshSig::from_pem(armored.trim()).map_err(|_| NotProved::Unreadable)?;
    let sha1 = signature.algorithm() == (Algorithm::Rsa { hash: None });
    if sha1 || check_type(signature.public_key()).is_err() {
        return Err(NotProved::Unreadable);
    }
    let key = PublicKey::new(signature.public_key().clone(), "");
    match key.verify(NAMESPACE, message, &signature) {
        Ok(()) => Ok(key),
        Err(_) => Err(NotProved::Signature(key.fingerprint(HashAlg::Sha256).to_string())),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::{Command, Stdio};

    use super::*;

    /// A key of `ssh-keygen`'s, and a signature of its.
    fn signed(dir: &Path, kind: &str, namespace: &str, message: &[u8]) -> String {
        let file = dir.join(kind);
        if !file.exists() {
            let made = Command::new("ssh-keygen")
                .args(["-q", "-N", "", "-t", kind, "-f"])
                .arg(&file)
                .status();
            assert!(made.expect("ssh-keygen").success());
        }
        std::fs::write(dir.join("message"), message).expect("written");
        let _ = std::fs::remove_file(dir.join("message.sig"));
        let signed = Command::new("ssh-keygen")
            .args(["-Y", "sign", "-n", namespace, "-f"])
            .arg(&file)
            .arg(dir.join("message"))
            .stderr(Stdio::null())
            .status();
        assert!(signed.expect("ssh-keygen").success());
        std::fs::read_to_string(dir.join("message.sig")).expect("a signature")
    }

    #[test]
    fn openssh_s_own_signatures_hold_for_what_they_were_made_for() {
        let dir = tempfile::tempdir().expect("a directory");
        for kind in ["ed25519", "ecdsa", "rsa"] {
            let good = signed(dir.path(), kind, NAMESPACE, b"challenge");
            let key = signer(b"challenge", &good).expect(kind);
            let public = std::fs::read_to_string(dir.path().join(format!("{kind}.pub"))).expect("a key");
            let public = PublicKey::from_openssh(&public).expect("a key");
            assert_eq!(key.key_data(), public.key_data());
            assert!(
                matches!(signer(b"challenge2", &good), Err(NotProved::Signature(_))),
                "{kind}"
            );
            let other = signed(dir.path(), kind, "git", b"challenge");
            assert!(
                matches!(signer(b"challenge", &other), Err(NotProved::Signature(_))),
                "{kind}"
            );
        }
    }

    #[test]
    fn what_is_no_signature_is_refused() {
        let long = "x".repeat(MAX_SIGNATURE + 1);
        for bad in [
            "",
            "x",
            "-----BEGIN SSH SIGNATURE-----\nAAAA\n-----END SSH SIGNATURE-----",
            &long,
        ] {
            assert_eq!(signer(b"c", bad), Err(NotProved::Unreadable));
        }
    }

    /// Nothing that is told tells users apart.
    #[test]
    fn refusals_do_not_say_who_exists() {
        let told = |not: NotProved| not.status().message().to_owned();
        let key = told(NotProved::Key("a".into()));
        assert_eq!(told(NotProved::Signature("b".into())), key);
        assert_eq!(told(NotProved::Unreadable), key);
    }
}
