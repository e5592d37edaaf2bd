//! By SSH key: the broker's challenge, signed by the ssh-agent or with a key file, as
//! `ssh-keygen -Y sign` signs (PROTOCOL.sshsig).

use std::path::{Path, PathBuf};

use carrel_proto::v1;
use russh::keys::agent::AgentIdentity;
use russh::keys::agent::client::AgentClient;
use russh::keys::ssh_key::{LineEnding, SshSig};
use russh::keys::{Algorithm, HashAlg, PrivateKey, PublicKey};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use std::io::IsTerminal as _;
use tokio::net::UnixStream;
use tonic::Code;

use super::{Client, Wanted};
use crate::error::{CliError, Context as _, Kind, Result};
use crate::{paths, terminal, tls};

/// Keeps these signatures apart from all others that a key may make.
const NAMESPACE: &str = "signin@carrel";
/// Keys that are tried: as many as sshd lets one try, and some more.
const MAX_KEYS: usize = 20;
/// Key files that OpenSSH looks for as well.
const USUAL_FILES: [&str; 3] = ["id_ed25519", "id_ecdsa", "id_rsa"];

/// Where keys come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// The ssh-agent, and then the files that OpenSSH looks for.
    Usual,
    /// This file: a private key, or a public one whose private half the ssh-agent has.
    File(PathBuf),
}

/// A key that can sign.
enum Key {
    Agent(PublicKey),
    File(PathBuf),
}

type Agent = AgentClient<UnixStream>;

/// Tries one key after the other.
pub async fn sign_in(
    client: &mut Client,
    ca: &str,
    user: &str,
    source: &KeySource,
    wanted: &Wanted,
) -> Result<v1::SignedIn> {
    let mut agent = agent().await;
    let keys = keys(agent.as_mut(), source).await?;
    let mut refused = None;
    for key in keys.iter().take(MAX_KEYS) {
        let answer = client
            .start_ssh_key(v1::StartSshKeyRequest {})
            .await?
            .into_inner();
        check(&answer.challenge, ca)?;
        let signature = match sign(agent.as_mut(), key, &answer.challenge).await {
            Ok(signature) => signature,
            // The next one may do.
            Err(error) if keys.len() > 1 => {
                refused.get_or_insert(error);
                continue;
            }
            Err(error) => return Err(error),
        };
        let request = v1::FinishSshKeyRequest {
            user: user.to_owned(),
            challenge: answer.challenge,
            signature,
            token: Some(wanted.into()),
        };
        match client.finish_ssh_key(request).await {
            Ok(signed_in) => return Ok(signed_in.into_inner()),
            Err(status) if status.code() == Code::Unauthenticated => refused = Some(status.into()),
            Err(status) => return Err(status.into()),
        }
    }
    Err(refused.unwrap_or_else(|| {
        CliError::new(Kind::Denied, "no SSH key is there to sign in with")
            .hint("`ssh-add` gives the ssh-agent one; --ssh-key FILE names one")
    }))
}

/// Refuses to sign what is not for the broker at the other end: its challenge names the authority
/// that its certificate comes from. Somebody in between, with another, could only pass it on.
fn check(challenge: &[u8], ca: &str) -> Result<()> {
    let text = String::from_utf8_lossy(challenge);
    let named = text
        .lines()
        .find_map(|line| line.strip_prefix("authority "))
        .filter(|_| text.starts_with("carrel sign-in\n"));
    let mut trusted = CertificateDer::pem_slice_iter(ca.as_bytes()).filter_map(Result::ok);
    if named.is_some_and(|named| trusted.any(|certificate| tls::fingerprint(&certificate) == named)) {
        return Ok(());
    }
    Err(
        CliError::failed("the broker asks for a signature that would be for another broker")
            .hint("nothing was signed; do not go on unless you know why: somebody may be in between"),
    )
}

/// The user's ssh-agent, if one answers.
async fn agent() -> Option<Agent> {
    let socket = std::env::var_os("SSH_AUTH_SOCK").filter(|path| !path.is_empty())?;
    let stream = UnixStream::connect(Path::new(&socket)).await.ok()?;
    Some(AgentClient::connect(stream))
}

async fn keys(agent: Option<&mut Agent>, source: &KeySource) -> Result<Vec<Key>> {
    let of_agent = match agent {
        Some(agent) => agent.request_identities().await.context("the ssh-agent")?,
        None => Vec::new(),
    };
    let of_agent = of_agent.into_iter().filter_map(|identity| match identity {
        AgentIdentity::PublicKey { key, .. } => Some(key),
        // The key of a certificate is there by itself as well.
        AgentIdentity::Certificate { .. } => None,
    });
    match source {
        KeySource::Usual => {
            let dir = paths::home()?.join(".ssh");
            let files = USUAL_FILES.iter().map(|name| dir.join(name));
            let files = files.filter(|path| path.exists()).map(Key::File);
            Ok(of_agent.map(Key::Agent).chain(files).collect())
        }
        KeySource::File(path) if path.extension().is_some_and(|extension| extension == "pub") => {
            let text =
                std::fs::read_to_string(path).context(format_args!("cannot read {}", path.display()))?;
            let wanted = PublicKey::from_openssh(text.trim())
                .context(format_args!("{} holds no SSH public key", path.display()))?;
            let found = of_agent
                .into_iter()
                .find(|key| key.key_data() == wanted.key_data());
            let found = found.ok_or_else(|| {
                CliError::failed(format!(
                    "the ssh-agent does not have the key of {}",
                    path.display()
                ))
                .hint("`ssh-add` gives it one; or name the private key's file")
            })?;
            Ok(vec![Key::Agent(found)])
        }
        KeySource::File(path) => Ok(vec![Key::File(path.clone())]),
    }
}

/// A signature over a challenge, armored.
async fn sign(agent: Option<&mut Agent>, key: &Key, challenge: &[u8]) -> Result<String> {
    let signature = match key {
        Key::Agent(key) => {
            let agent = agent.ok_or_else(|| CliError::failed("the ssh-agent is gone"))?;
            let data = SshSig::signed_data(NAMESPACE, HashAlg::Sha512, challenge).context("the signature")?;
            // SHA-1, which an RSA key would sign with otherwise, is not accepted.
            let hash = matches!(key.algorithm(), Algorithm::Rsa { .. }).then_some(HashAlg::Sha512);
            let signature = agent
                .sign_request_signature(key, hash, &data)
                .await
                .map_err(|_| {
                    CliError::failed("the ssh-agent did not sign")
                        .hint("it may have asked you first: `ssh-add -l` shows its keys")
                })?;
            SshSig::new(key.key_data().clone(), NAMESPACE, HashAlg::Sha512, signature)
                .context("the signature")?
        }
        Key::File(path) => {
            let key = load(path)?;
            key.sign(NAMESPACE, HashAlg::Sha512, challenge)
                .context("the signature")?
        }
    };
    signature.to_pem(LineEnding::LF).context("the signature")
}

/// Reads a private key; asks for its passphrase if it has one and somebody is there to ask.
fn load(path: &Path) -> Result<PrivateKey> {
    let what = format!("cannot use the SSH key {}", path.display());
    match russh::keys::load_secret_key(path, None) {
        Err(russh::keys::Error::KeyIsEncrypted) if std::io::stdin().is_terminal() => {
            let question = format!("Passphrase of {}: ", path.display());
            let passphrase = terminal::ask_secret(&question).context("cannot read the passphrase")?;
            let passphrase = passphrase.trim_end_matches(['\r', '\n']);
            russh::keys::load_secret_key(path, Some(passphrase)).context(what)
        }
        Err(russh::keys::Error::KeyIsEncrypted) => {
            Err(CliError::failed(format!("{what}: it has a passphrase"))
                .hint("`ssh-add` gives it to the ssh-agent, which signs for you"))
        }
        key => key.context(what),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nAAEC\n-----END CERTIFICATE-----\n";

    /// A challenge is signed only if it is for the broker that was asked.
    #[test]
    fn only_the_trusted_broker_s_challenge_is_signed() {
        let fingerprint = tls::fingerprint(&CertificateDer::from(vec![0, 1, 2]));
        let ours = format!("carrel sign-in\ncluster c\nauthority {fingerprint}\nnonce 00\n");
        assert!(check(ours.as_bytes(), CERTIFICATE).is_ok());
        let others = ours.replace(&fingerprint[10..14], "zzzz");
        for bad in [others.as_str(), "", "carrel sign-in\n", &ours[1..]] {
            assert!(check(bad.as_bytes(), CERTIFICATE).is_err(), "{bad}");
        }
        assert!(check(ours.as_bytes(), "").is_err());
    }
}
