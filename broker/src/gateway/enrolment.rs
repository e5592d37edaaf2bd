//! What the broker hands to the gateway, and how the gateway keeps it: the
//! last answer is in the state directory, so that a gateway starts and serves
//! streams while its broker is down.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use carrel_proto::stream::{SECRET_LEN, Secret};
use carrel_proto::v1::{EnrollRequest, EnrollResponse};
use prost::Message;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use russh::keys::ssh_key::public::KeyData;
use russh::keys::{Certificate, PrivateKey};
use rustls::ServerConfig;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::control::Control;
use super::limits;
use super::options::Endpoints;
use crate::ca::files::{private_directory, read_if_there, read_text_if_there, write_secret};
use crate::ca::ssh::{canonical, open_or_create_key, parse_public_key};
use crate::ca::tls::{Clients, Identity, server_config};
use crate::ca::x509::{Revoked, Serial, certificate_request};

const TLS_KEY_FILE: &str = "gateway-key.pem";
const SSH_KEY_FILE: &str = "gateway-ssh-host-key";
const CACHE_FILE: &str = "enrolled.pb";

/// The gateway's own keys, which stay when it restarts.
pub(super) struct Keys {
    tls: KeyPair,
    /// The jump host's key.
    pub ssh: PrivateKey,
}

impl Keys {
    /// Reads the keys of a state directory; makes those that are not there.
    pub fn open(state: &Path) -> Result<Self> {
        private_directory(state)?;
        let path = state.join(TLS_KEY_FILE);
        let tls = if let Some(pem) = read_text_if_there(&path)? {
            KeyPair::from_pem(&pem).with_context(|| format!("{} holds no private key", path.display()))?
        } else {
            let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
            write_secret(&path, key.serialize_pem().as_bytes())?;
            key
        };
        Ok(Self {
            tls,
            ssh: open_or_create_key(&state.join(SSH_KEY_FILE), "carrel gateway")?,
        })
    }
}

/// What the gateway serves with.
pub(super) struct Material {
    /// For agents' links.
    pub tls: Arc<ServerConfig>,
    /// For tickets.
    pub stream_key: Secret,
    /// Who signs users' certificates.
    pub user_cas: Vec<KeyData>,
    /// For the jump host's key; none: the plain key only.
    pub host_certificate: Option<Certificate>,
    /// Nodes' certificates that no longer count.
    pub revoked: Revoked,
}

impl fmt::Debug for Material {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Material")
            .field("revoked", &self.revoked.len())
            .finish_non_exhaustive()
    }
}

impl Material {
    fn new(answer: &EnrollResponse, keys: &Keys) -> Result<Self> {
        let identity = Identity::from_pem(&answer.certificate_pem, &keys.tls.serialize_pem())
            .context("the gateway's certificate is not usable")?;
        let tls = server_config(identity, &answer.ca_pem, Clients::MustHaveCertificate)?;
        let Ok(stream_key) = Secret::try_from(answer.stream_key.as_slice()) else {
            bail!(
                "the stream key has {} bytes instead of {SECRET_LEN}",
                answer.stream_key.len()
            );
        };
        let user_cas = answer
            .user_cas
            .iter()
            .map(|text| Ok(parse_public_key(text)?.key_data().clone()));
        let user_cas = user_cas
            .collect::<Result<_>>()
            .context("a user CA is not usable")?;
        let host_certificate = match answer.ssh_host_certificate.trim() {
            "" => None,
            text => Some(Certificate::from_openssh(text).context("the SSH host certificate is not usable")?),
        };
        if let Some(certificate) = &host_certificate
            && certificate.public_key() != keys.ssh.public_key().key_data()
        {
            bail!("the SSH host certificate is for another key");
        }
        let revoked = answer
            .revoked_serials
            .iter()
            .map(|serial| Serial::from_text(serial))
            .collect();
        Ok(Self {
            tls,
            stream_key,
            user_cas,
            host_certificate,
            revoked,
        })
    }
}

/// Sees to it that the gateway has what it serves with.
pub(super) struct Enrolment {
    pub keys: Arc<Keys>,
    pub control: Control,
    pub request: EnrollRequest,
    pub state: PathBuf,
    pub material: watch::Sender<Option<Arc<Material>>>,
}

impl Enrolment {
    /// What the gateway tells the broker of itself.
    pub fn request(name: &str, keys: &Keys, endpoints: &Endpoints) -> Result<EnrollRequest> {
        Ok(EnrollRequest {
            name: name.to_owned(),
            csr_der: certificate_request(&keys.tls, name)?,
            ssh_host_public_key: canonical(keys.ssh.public_key().key_data()),
            link: endpoints.link.clone(),
            streams: endpoints.streams.to_string(),
            ssh: endpoints.ssh.clone(),
            client_streams: endpoints.client_streams.iter().map(ToString::to_string).collect(),
        })
    }

    /// Serves with what the last broker handed out, until there is an answer of the current one.
    pub fn use_cache(&self) {
        match self.cached() {
            Ok(Some(material)) => {
                self.material.send_replace(Some(Arc::new(material)));
                info!("serving with what the broker handed out last, until it answers");
            }
            Ok(None) => {}
            Err(error) => warn!(
                error = format!("{error:#}"),
                "the kept answer of the broker is not usable"
            ),
        }
    }

    fn cached(&self) -> Result<Option<Material>> {
        let Some(bytes) = read_if_there(&self.state.join(CACHE_FILE))? else {
            return Ok(None);
        };
        Material::new(&EnrollResponse::decode(bytes.as_slice())?, &self.keys).map(Some)
    }

    /// Enrols now, every few minutes, and whenever the broker's socket is made
    /// anew, until cancelled.
    pub async fn run(&self, cancel: CancellationToken) {
        let mut pause = limits::ENROL_RETRY.0;
        loop {
            let broker = socket_identity(self.control.socket());
            // Safe to cancel: an answer that was not taken is asked for again.
            let enrolled = tokio::select! {
                () = cancel.cancelled() => return,
                enrolled = self.enrol() => enrolled,
            };
            let next = match enrolled {
                Ok(()) => {
                    pause = limits::ENROL_RETRY.0;
                    limits::ENROL_EVERY
                }
                Err(error) => {
                    warn!(
                        error = format!("{error:#}"),
                        "the broker did not enrol this gateway; trying again"
                    );
                    let next = pause;
                    pause = (pause * 2).min(limits::ENROL_RETRY.1);
                    next
                }
            };
            // Both arms only wait.
            tokio::select! {
                () = cancel.cancelled() => return,
                () = until_due_or_changed(self.control.socket(), broker, next) => {}
            }
        }
    }

    async fn enrol(&self) -> Result<()> {
        let answer = self.control.enrol(self.request.clone()).await?;
        let material = Material::new(&answer, &self.keys)?;
        // Kept first: what is served with must survive a restart.
        if let Err(error) = write_secret(&self.state.join(CACHE_FILE), &answer.encode_to_vec()) {
            warn!(
                error = format!("{error:#}"),
                "a restart while the broker is down would serve with old keys"
            );
        }
        if self.material.send_replace(Some(Arc::new(material))).is_none() {
            info!("enrolled with the broker");
        }
        Ok(())
    }
}

/// Tells one binding of a socket's path from the next.
type SocketIdentity = Option<(u64, u64, i64, i64)>;

fn socket_identity(path: &Path) -> SocketIdentity {
    let metadata = std::fs::metadata(path).ok()?;
    Some((
        metadata.dev(),
        metadata.ino(),
        metadata.ctime(),
        metadata.ctime_nsec(),
    ))
}

async fn until_due_or_changed(socket: &Path, seen: SocketIdentity, pause: Duration) {
    let due = Instant::now() + pause;
    while Instant::now() < due {
        let look = (Instant::now() + limits::BROKER_WATCH).min(due);
        tokio::time::sleep_until(look).await;
        let now = socket_identity(socket);
        if now.is_some() && now != seen {
            return;
        }
    }
}
