//! The user's key for sessions, and the certificate that the broker signs for it.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use carrel_proto::v1;
use russh::keys::ssh_key::LineEnding;
use russh::keys::{Algorithm, Certificate, PrivateKey};

use super::ClusterDir;
use crate::connect::Client;
use crate::error::{CliError, Context as _, Result};
use crate::paths;

/// A certificate with less left than this is renewed: long enough for a login to finish, and for
/// clocks that differ.
pub const MARGIN: Duration = Duration::from_mins(5);

/// Sees that there is a key and a certificate of `user`'s that is valid for a while; asks the
/// broker only if not. Returns the SSH user name.
pub async fn ensure(client: &mut Client, dir: &ClusterDir, user: &str) -> Result<String> {
    // Whoever signed in as somebody else since then needs another certificate.
    if let Some(current) = current_user(dir).filter(|current| current == user) {
        return Ok(current);
    }
    let key = ensure_key(dir.key())?;
    let public_key = key.public_key().to_openssh().context("the SSH key")?;
    let signed = client
        .sign_ssh_key(v1::SignSshKeyRequest { public_key })
        .await?
        .into_inner();
    let certificate =
        Certificate::from_openssh(signed.certificate.trim()).context("the broker's certificate")?;
    let line = certificate.to_openssh().context("the broker's certificate")?;
    if let Some(parent) = dir.certificate().parent() {
        paths::create_private_dir(parent)?;
    }
    paths::write_private(&dir.certificate(), format!("{}\n", line.trim_end()).as_bytes())?;
    if signed.user.is_empty() {
        return principal(&certificate)
            .ok_or_else(|| CliError::failed("the broker's certificate names no user"));
    }
    Ok(signed.user)
}

/// The SSH user name, if key and certificate are there, belong together and have more than
/// [`MARGIN`] left. Only reads files.
pub fn current_user(dir: &ClusterDir) -> Option<String> {
    let certificate =
        Certificate::from_openssh(std::fs::read_to_string(dir.certificate()).ok()?.trim()).ok()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    let valid =
        certificate.valid_after() <= now.as_secs() && certificate.valid_before() > (now + MARGIN).as_secs();
    let public = std::fs::read_to_string(dir.key().with_extension("pub")).ok()?;
    let public = russh::keys::PublicKey::from_openssh(public.trim()).ok()?;
    let ours = public.key_data() == certificate.public_key() && dir.key().exists();
    if valid && ours {
        principal(&certificate)
    } else {
        None
    }
}

fn principal(certificate: &Certificate) -> Option<String> {
    certificate.valid_principals().first().cloned()
}

/// Reads the key, or makes it. Two programs at once end with the same one.
fn ensure_key(path: &Path) -> Result<PrivateKey> {
    if !path.exists() {
        let mut key =
            PrivateKey::random(&mut rand::rng(), Algorithm::Ed25519).context("cannot make an SSH key")?;
        key.set_comment("carrel");
        let text = key.to_openssh(LineEnding::LF).context("cannot make an SSH key")?;
        let dir = path.parent().unwrap_or(Path::new("."));
        let what = format!("cannot write {}", path.display());
        let mut file = tempfile::NamedTempFile::new_in(dir).context(&what)?;
        std::io::Write::write_all(&mut file, text.as_bytes()).context(&what)?;
        match file.persist_noclobber(path) {
            Ok(_) => {}
            Err(error) if error.error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error.error).context(&what),
        }
    }
    let key = russh::keys::load_secret_key(path, None)
        .context(format_args!("cannot use the SSH key {}", path.display()))
        .map_err(|e| e.hint("remove it: a new one is made"))?;
    let public = key.public_key().to_openssh().context("the SSH key")?;
    paths::write_private(&path.with_extension("pub"), format!("{public}\n").as_bytes())?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use russh::keys::ssh_key::certificate::{Builder, CertType};

    fn dir_with_certificate(valid_for: Duration) -> (tempfile::TempDir, ClusterDir) {
        let temp = tempfile::tempdir().unwrap();
        let dir = super::super::SshDir::at(temp.path()).cluster("c0ffee").unwrap();
        let key = ensure_key(dir.key()).unwrap();
        let ca = PrivateKey::random(&mut rand::rng(), Algorithm::Ed25519).unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let mut builder = Builder::new_with_random_nonce(
            &mut rand::rng(),
            key.public_key().key_data().clone(),
            now - 60,
            now + valid_for.as_secs(),
        )
        .unwrap();
        builder.cert_type(CertType::User).unwrap();
        builder.valid_principal("alice").unwrap();
        let line = builder.sign(&ca).unwrap().to_openssh().unwrap();
        std::fs::create_dir_all(dir.certificate().parent().unwrap()).unwrap();
        std::fs::write(dir.certificate(), line).unwrap();
        (temp, dir)
    }

    #[test]
    fn a_certificate_is_used_until_its_margin() {
        let (_temp, dir) = dir_with_certificate(Duration::from_hours(1));
        assert_eq!(current_user(&dir).as_deref(), Some("alice"));
        let (_temp, dir) = dir_with_certificate(Duration::from_secs(MARGIN.as_secs() - 10));
        assert_eq!(current_user(&dir), None);
    }

    #[test]
    fn a_certificate_for_another_key_is_not_ours() {
        let (_temp, dir) = dir_with_certificate(Duration::from_hours(1));
        std::fs::remove_file(dir.key()).unwrap();
        assert_eq!(current_user(&dir), None);
        ensure_key(dir.key()).unwrap();
        assert_eq!(current_user(&dir), None);
    }

    #[cfg(unix)]
    #[test]
    fn the_key_is_private() {
        use std::os::unix::fs::PermissionsExt as _;
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("id_ed25519");
        let first = ensure_key(&path).unwrap();
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(ensure_key(&path).unwrap().public_key(), first.public_key());
    }
}
