//! The two SSH certificate authorities, for users and for hosts (ed25519;
//! format: OpenSSH's PROTOCOL.certkeys), and the reading of keys that clients give.

use std::fmt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use carrel_core::model::ids::UserName;
use russh::keys::ssh_key::certificate::{Builder, CertType};
use russh::keys::ssh_key::public::KeyData;
use russh::keys::ssh_key::{self, Fingerprint, LineEnding};
use russh::keys::{Algorithm, Certificate, HashAlg, PrivateKey, PublicKey};

use super::files::{private_directory, read_text_if_there, write_secret};
use super::{BACKDATE, unix_seconds};

/// Validity of a user's certificate: a working day, and no more to be revoked by waiting.
pub const USER_VALIDITY: Duration = Duration::from_hours(12);
/// Validity of a session's or gateway's host certificate: longer than a session
/// lives. A session's key dies with its process, so little is won by less.
pub const HOST_VALIDITY: Duration = Duration::from_hours(365 * 24);
/// Shortest RSA modulus, bits (NIST SP 800-131A).
const MIN_RSA_BITS: u32 = 2048;
/// Longest RSA modulus, bits, as in OpenSSH: longer ones only burn time.
const MAX_RSA_BITS: u32 = 16384;
/// Longest text that is looked at: an RSA-16384 key with a comment is under 4 KiB.
const MAX_KEY_TEXT: usize = 8 * 1024;

const USER_KEY_FILE: &str = "ssh-user-ca";
const HOST_KEY_FILE: &str = "ssh-host-ca";
/// What a user may ask of a session. X11 is not among them: carrel-init does not serve it.
const USER_EXTENSIONS: [&str; 3] = ["permit-agent-forwarding", "permit-port-forwarding", "permit-pty"];

/// Why a text is not accepted as a public key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Longer than any key.
    #[error("the key is longer than {MAX_KEY_TEXT} bytes")]
    TooLong,
    /// More or less than one line of text.
    #[error("a public key is one line, as in an id_ed25519.pub file")]
    NotOneLine,
    /// The private half.
    #[error("this is a private key: keep it secret, and give the .pub file instead")]
    PrivateKey,
    /// A certificate instead of the key that it is for.
    #[error("this is a certificate: give the plain public key that it was made for")]
    Certificate,
    /// Not an OpenSSH public key.
    #[error("this is no OpenSSH public key (\"ssh-ed25519 AAAA…\"): {0}")]
    Malformed(String),
    /// A type that is not accepted.
    #[error(
        "keys of type {0} are not accepted: use ed25519, ecdsa, rsa of {MIN_RSA_BITS} bits or more, or sk-*"
    )]
    Type(String),
    /// RSA of a wrong length.
    #[error("RSA keys need {MIN_RSA_BITS} to {MAX_RSA_BITS} bits; this one has {0}")]
    RsaBits(u32),
}

/// Reads one plain public key, given by a client as OpenSSH text with or without a comment.
pub fn parse_public_key(text: &str) -> Result<PublicKey, KeyError> {
    if text.len() > MAX_KEY_TEXT {
        return Err(KeyError::TooLong);
    }
    let line = text.trim();
    if line.contains("PRIVATE KEY") {
        return Err(KeyError::PrivateKey);
    }
    if line.is_empty() || line.chars().any(char::is_control) {
        return Err(KeyError::NotOneLine);
    }
    let kind = line.split(' ').next().unwrap_or_default();
    if kind.contains("-cert-v0") {
        return Err(KeyError::Certificate);
    }
    let key = PublicKey::from_openssh(line).map_err(|error| KeyError::Malformed(error.to_string()))?;
    check_type(key.key_data())?;
    Ok(key)
}

/// Whether keys of this type and length are accepted.
pub fn check_type(key: &KeyData) -> Result<(), KeyError> {
    match key {
        KeyData::Ed25519(_) | KeyData::Ecdsa(_) => Ok(()),
        KeyData::SkEd25519(_) | KeyData::SkEcdsaSha2NistP256(_) => Ok(()),
        KeyData::Rsa(rsa) if (MIN_RSA_BITS..=MAX_RSA_BITS).contains(&rsa.key_size()) => Ok(()),
        KeyData::Rsa(rsa) => Err(KeyError::RsaBits(rsa.key_size())),
        KeyData::Certificate(_) => Err(KeyError::Certificate),
        // KeyData is not ours and may grow: what is not known is not accepted.
        other => Err(KeyError::Type(other.algorithm().to_string())),
    }
}

/// A key as one line without comment: equal keys have equal texts.
pub fn canonical(key: &KeyData) -> String {
    // Encoding what was decoded cannot fail; an empty line equals no key.
    PublicKey::new(key.clone(), "").to_openssh().unwrap_or_default()
}

/// `SHA256:…`, as ssh-keygen prints it.
pub fn fingerprint(key: &PublicKey) -> Fingerprint {
    key.fingerprint(HashAlg::Sha256)
}

/// A signed certificate.
#[derive(Clone, Debug)]
pub struct SignedSshCertificate {
    /// One line, "ssh-…-cert-v01@openssh.com AAAA…".
    pub text: String,
    /// Random; in logs of who used it.
    pub serial: u64,
    /// Not valid after.
    pub expires: SystemTime,
}

/// Both authorities.
pub struct SshAuthorities {
    user: PrivateKey,
    host: PrivateKey,
}

impl fmt::Debug for SshAuthorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SshAuthorities")
            .field("user", &self.user.fingerprint(HashAlg::Sha256))
            .field("host", &self.host.fingerprint(HashAlg::Sha256))
            .finish()
    }
}

impl SshAuthorities {
    /// Opens the authorities of a state directory; makes those that are not there.
    pub fn open(state: &Path) -> Result<Self> {
        private_directory(state)?;
        Ok(Self {
            user: open_or_create_key(&state.join(USER_KEY_FILE), "carrel user CA")?,
            host: open_or_create_key(&state.join(HOST_KEY_FILE), "carrel host CA")?,
        })
    }

    /// The users' authority: its public key, OpenSSH text.
    pub fn user_ca(&self) -> String {
        canonical(self.user.public_key().key_data())
    }

    /// The hosts' authority: its public key, OpenSSH text.
    pub fn host_ca(&self) -> String {
        canonical(self.host.public_key().key_data())
    }

    /// Certifies a user's key: key id is the user, `principals` the names to
    /// log in as, valid from [`BACKDATE`] before `now` until `validity` after it.
    pub fn sign_user(
        &self,
        key: &PublicKey,
        user: &UserName,
        principals: &[String],
        now: SystemTime,
        validity: Duration,
    ) -> Result<SignedSshCertificate> {
        let request = Request {
            kind: CertType::User,
            key,
            key_id: user.as_str(),
            principals,
            now,
            validity,
        };
        request.sign(&self.user)
    }

    /// Certifies a host's key for the host names `principals`, the first of which is the key id.
    pub fn sign_host(
        &self,
        key: &PublicKey,
        principals: &[String],
        now: SystemTime,
        validity: Duration,
    ) -> Result<SignedSshCertificate> {
        let key_id = principals.first().map_or("", String::as_str);
        Request {
            kind: CertType::Host,
            key,
            key_id,
            principals,
            now,
            validity,
        }
        .sign(&self.host)
    }
}

struct Request<'a> {
    kind: CertType,
    key: &'a PublicKey,
    key_id: &'a str,
    principals: &'a [String],
    now: SystemTime,
    validity: Duration,
}

impl Request<'_> {
    fn sign(&self, authority: &PrivateKey) -> Result<SignedSshCertificate> {
        // A certificate without principals would be good for every name.
        anyhow::ensure!(
            !self.principals.is_empty(),
            "a certificate needs at least one principal"
        );
        let expires = self.now + self.validity;
        let serial = rand::random();
        self.build(authority, serial, expires)
            .and_then(|certificate| certificate.to_openssh())
            .map(|text| SignedSshCertificate {
                text,
                serial,
                expires,
            })
            .context("the SSH certificate could not be signed")
    }

    fn build(
        &self,
        authority: &PrivateKey,
        serial: u64,
        expires: SystemTime,
    ) -> ssh_key::Result<Certificate> {
        let (after, before) = (unix_seconds(self.now - BACKDATE), unix_seconds(expires));
        let nonce: [u8; 32] = rand::random();
        let mut builder = Builder::new(nonce, self.key.key_data().clone(), after, before)?;
        builder
            .serial(serial)?
            .cert_type(self.kind)?
            .key_id(self.key_id)?;
        for principal in self.principals {
            builder.valid_principal(principal)?;
        }
        if self.kind == CertType::User {
            for extension in USER_EXTENSIONS {
                builder.extension(extension, "")?;
            }
        }
        builder.sign(authority)
    }
}

/// Reads an ed25519 private key from a file; makes it when there is none.
pub fn open_or_create_key(path: &Path, comment: &str) -> Result<PrivateKey> {
    if let Some(text) = read_text_if_there(path)? {
        return PrivateKey::from_openssh(&text)
            .with_context(|| format!("{} holds no unencrypted OpenSSH private key", path.display()));
    }
    let mut key = PrivateKey::random(&mut rand::rng(), Algorithm::Ed25519)?;
    key.set_comment(comment);
    write_secret(path, key.to_openssh(LineEnding::LF)?.as_bytes())?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn authorities() -> (tempfile::TempDir, SshAuthorities) {
        let dir = tempfile::tempdir().expect("a directory");
        let authorities = SshAuthorities::open(dir.path()).expect("authorities");
        (dir, authorities)
    }

    /// Runs ssh-keygen, which must succeed.
    fn keygen(dir: &Path, args: &[&str]) -> String {
        let output = Command::new("ssh-keygen")
            .current_dir(dir)
            .args(args)
            .output()
            .expect("ssh-keygen");
        assert!(
            output.status.success(),
            "ssh-keygen {args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn made_by_keygen(dir: &Path, kind: &str, bits: &str) -> String {
        let name = format!("{kind}-{bits}");
        keygen(
            dir,
            &[
                "-q",
                "-N",
                "",
                "-C",
                "someone@somewhere",
                "-t",
                kind,
                "-b",
                bits,
                "-f",
                &name,
            ],
        );
        std::fs::read_to_string(dir.join(name + ".pub")).expect("a public key")
    }

    #[test]
    fn keys_are_made_once_and_are_two() {
        let (dir, first) = authorities();
        let again = SshAuthorities::open(dir.path()).expect("the same");
        assert_eq!(first.user_ca(), again.user_ca());
        assert_eq!(first.host_ca(), again.host_ca());
        assert_ne!(first.user_ca(), first.host_ca());
    }

    /// OpenSSH reads our user certificates as they are meant.
    #[test]
    fn openssh_reads_a_user_certificate() {
        let (dir, authorities) = authorities();
        let key = parse_public_key(&made_by_keygen(dir.path(), "ed25519", "256")).expect("a key");
        let user: UserName = "alice".parse().expect("a name");
        let signed = authorities
            .sign_user(&key, &user, &["alice".into()], SystemTime::now(), USER_VALIDITY)
            .expect("signed");
        std::fs::write(dir.path().join("cert.pub"), &signed.text).expect("written");
        let shown = keygen(dir.path(), &["-L", "-f", "cert.pub"]);
        assert!(
            shown.contains("ssh-ed25519-cert-v01@openssh.com user certificate"),
            "{shown}"
        );
        assert!(shown.contains("Key ID: \"alice\""), "{shown}");
        assert!(shown.contains(&format!("Serial: {}", signed.serial)), "{shown}");
        assert!(shown.contains("Critical Options: (none)"), "{shown}");
        let lines: Vec<_> = shown.lines().map(str::trim).collect();
        let after = |heading: &str| {
            let at = lines
                .iter()
                .position(|line| line.starts_with(heading))
                .expect(heading);
            &lines[at + 1..]
        };
        assert_eq!(after("Principals:")[0], "alice");
        assert_eq!(after("Extensions:"), USER_EXTENSIONS);
    }

    #[test]
    fn openssh_reads_a_host_certificate() {
        let (dir, authorities) = authorities();
        let key = parse_public_key(&made_by_keygen(dir.path(), "ecdsa", "384")).expect("a key");
        let principals = ["dev.alice.carrel".to_owned(), "0.dev.alice.carrel".to_owned()];
        let signed = authorities
            .sign_host(&key, &principals, SystemTime::now(), HOST_VALIDITY)
            .expect("signed");
        std::fs::write(dir.path().join("cert.pub"), &signed.text).expect("written");
        let shown = keygen(dir.path(), &["-L", "-f", "cert.pub"]);
        assert!(shown.contains("host certificate"), "{shown}");
        for principal in principals {
            assert!(shown.contains(&principal), "{shown}");
        }
        assert!(shown.contains("Extensions: (none)"), "{shown}");
    }

    #[test]
    fn a_certificate_for_everybody_is_not_made() {
        let (dir, authorities) = authorities();
        let key = parse_public_key(&made_by_keygen(dir.path(), "ed25519", "256")).expect("a key");
        assert!(
            authorities
                .sign_host(&key, &[], SystemTime::now(), HOST_VALIDITY)
                .is_err()
        );
    }

    #[test]
    fn usual_keys_are_accepted_whatever_their_comment() {
        let dir = tempfile::tempdir().expect("a directory");
        for (kind, bits) in [
            ("ed25519", "256"),
            ("ecdsa", "256"),
            ("ecdsa", "521"),
            ("rsa", "2048"),
        ] {
            let text = made_by_keygen(dir.path(), kind, bits);
            let key = parse_public_key(&text).unwrap_or_else(|error| panic!("{kind} {bits}: {error}"));
            let plain = canonical(key.key_data());
            assert_eq!(plain.split(' ').count(), 2);
            assert_eq!(
                parse_public_key(&plain).map(|key| canonical(key.key_data())),
                Ok(plain)
            );
        }
        let sk = "sk-ssh-ed25519@openssh.com AAAAGnNrLXNzaC1lZDI1NTE5QG9wZW5zc2guY29tAAAAICFo/k5LU8863u66YC9e\
                  UO2170QduohPURkQnbLa/dczAAAABHNzaDo=";
        parse_public_key(sk).expect("a security key");
    }

    #[test]
    fn other_texts_are_refused_with_what_to_do() {
        let (dir, authorities) = authorities();
        let good = made_by_keygen(dir.path(), "ed25519", "256");
        let good = good.trim();
        let key = parse_public_key(good).expect("a key");
        let user: UserName = "alice".parse().expect("a name");
        let certificate = authorities
            .sign_user(&key, &user, &["alice".into()], SystemTime::now(), USER_VALIDITY)
            .expect("signed");
        assert_eq!(
            parse_public_key(&certificate.text).err(),
            Some(KeyError::Certificate)
        );
        let short = made_by_keygen(dir.path(), "rsa", "1024");
        assert_eq!(parse_public_key(&short).err(), Some(KeyError::RsaBits(1024)));
        let private = std::fs::read_to_string(dir.path().join("ed25519-256")).expect("a private key");
        assert_eq!(parse_public_key(&private).err(), Some(KeyError::PrivateKey));
        assert_eq!(
            parse_public_key(&format!("{good}\n{good}")).err(),
            Some(KeyError::NotOneLine)
        );
        assert_eq!(parse_public_key("").err(), Some(KeyError::NotOneLine));
        assert_eq!(
            parse_public_key(&"x".repeat(MAX_KEY_TEXT + 1)).err(),
            Some(KeyError::TooLong)
        );
        let options = format!("command=\"id\" {good}");
        for bad in [
            "ssh-ed25519",
            "ssh-ed25519 ????",
            "ssh-rsa AAAAC3NzaC1lZDI1NTE5AAAAIA==",
            &options,
        ] {
            let error = parse_public_key(bad).expect_err(bad);
            assert!(matches!(error, KeyError::Malformed(_)), "{bad}: {error:?}");
        }
        // One type's name on another's data.
        let relabelled = good.replacen("ssh-ed25519", "ssh-rsa", 1);
        assert!(parse_public_key(&relabelled).is_err());
    }
}
