//! Who this node is to its cluster: certificate, key, CA, and where the broker is.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use carrel_core::model::ids::NodeName;
use carrel_proto::v1;
use carrel_proto::v1::node_join_client::NodeJoinClient;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256};
use serde::{Deserialize, Serialize};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};
use x509_parser::pem::parse_x509_pem;

use crate::pinned;
use crate::streams::TlsMaterial;

/// Longest wait for the broker's answer to a join or a renewal.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// What a node keeps of its membership, in `STATE/identity.json` (0600): one
/// file, replaced whole, so that key and certificate never belong to two joins.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// The node's name, as in its certificate.
    pub node: NodeName,
    /// Cluster id.
    pub cluster: String,
    /// The broker: "https://host:port".
    pub broker: String,
    ca_pem: String,
    certificate_pem: String,
    key_pem: String,
}

/// What a join needs.
pub struct JoinOptions {
    /// The broker: "https://host:port".
    pub broker: String,
    /// The one-time token.
    pub token: String,
    /// Node name wanted.
    pub node: NodeName,
    /// "sha256:" and hexadecimal digits of the broker's CA certificate, from whoever made the token.
    pub ca_fingerprint: String,
}

impl Membership {
    fn path(state_dir: &Path) -> PathBuf {
        state_dir.join("identity.json")
    }

    /// What was kept; none: this host has not joined.
    pub fn load(state_dir: &Path) -> Result<Option<Self>> {
        let path = Self::path(state_dir);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
        };
        let kept = serde_json::from_str(&text).with_context(|| {
            format!(
                "{} is damaged; remove it and join again with a new token",
                path.display()
            )
        })?;
        Ok(Some(kept))
    }

    /// Keeps it, synced to the disk.
    pub fn store(&self, state_dir: &Path) -> Result<()> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(state_dir)?;
        let path = Self::path(state_dir);
        let next = path.with_extension("json.next");
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&next)?;
        std::io::Write::write_all(&mut file, &serde_json::to_vec_pretty(self)?)?;
        file.sync_all()?;
        fs::rename(&next, &path)?;
        fs::File::open(state_dir)?.sync_all()?;
        Ok(())
    }

    /// For mutual TLS with broker and gateways.
    pub fn tls(&self) -> TlsMaterial {
        TlsMaterial {
            ca_pem: self.ca_pem.clone(),
            certificate_pem: self.certificate_pem.clone(),
            key_pem: self.key_pem.clone(),
        }
    }

    /// When the certificate has had two thirds of its life.
    pub fn renew_at(&self) -> Result<SystemTime> {
        let (_, pem) = parse_x509_pem(self.certificate_pem.as_bytes()).context("this node's certificate")?;
        let certificate = pem.parse_x509().context("this node's certificate")?;
        let validity = certificate.validity();
        let from = u64::try_from(validity.not_before.timestamp()).unwrap_or(0);
        let until = u64::try_from(validity.not_after.timestamp()).unwrap_or(0);
        let at = from + until.saturating_sub(from) / 3 * 2;
        Ok(SystemTime::UNIX_EPOCH + Duration::from_secs(at))
    }

    /// Makes this host a node.
    pub async fn join(options: &JoinOptions) -> Result<Self> {
        let ca_pem = pinned::authority(&options.broker, &options.ca_fingerprint).await?;
        let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&ca_pem));
        let channel = Endpoint::from_shared(options.broker.clone())
            .with_context(|| format!("{} is not an address", options.broker))?
            .tls_config(tls)?
            .timeout(ANSWER_TIMEOUT)
            .connect()
            .await
            .with_context(|| format!("connecting to the broker at {}", options.broker))?;
        let (key, csr_der) = request(&options.node)?;
        let answer = NodeJoinClient::new(channel)
            .join(v1::JoinRequest {
                token: options.token.clone(),
                node: options.node.to_string(),
                csr_der,
            })
            .await
            .map_err(explain)?
            .into_inner();
        Self::from_answer(answer, &key, &options.broker)
    }

    /// A new key and certificate in place of the old.
    pub async fn renew(&self) -> Result<Self> {
        let channel = self.tls().channel(&self.broker)?;
        let (key, csr_der) = request(&self.node)?;
        let mut message = tonic::Request::new(v1::RenewRequest { csr_der });
        message.set_timeout(ANSWER_TIMEOUT);
        let answer = NodeJoinClient::new(channel)
            .renew(message)
            .await
            .map_err(explain)?;
        let answer = answer.into_inner();
        if answer.cluster != self.cluster {
            bail!(
                "the broker's store is of another cluster, {}: nothing is taken from it",
                answer.cluster
            );
        }
        Self::from_answer(answer, &key, &self.broker)
    }

    fn from_answer(answer: v1::JoinResponse, key: &KeyPair, broker: &str) -> Result<Self> {
        if answer.certificate_pem.is_empty() || answer.ca_pem.is_empty() || answer.cluster.is_empty() {
            bail!("the broker's answer holds no certificate");
        }
        Ok(Self {
            node: answer.node.parse().context("the name in the broker's answer")?,
            cluster: answer.cluster,
            broker: broker.to_owned(),
            ca_pem: answer.ca_pem,
            certificate_pem: answer.certificate_pem,
            key_pem: key.serialize_pem(),
        })
    }
}

/// A new key, and a certificate request for it.
fn request(node: &NodeName) -> Result<(KeyPair, Vec<u8>)> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, node.as_str());
    let request = params.serialize_request(&key)?;
    Ok((key, request.der().to_vec()))
}

/// A status with its hint, as people read it.
pub fn explain(status: tonic::Status) -> anyhow::Error {
    let hint = status
        .metadata()
        .get("carrel-hint")
        .and_then(|hint| hint.to_str().ok());
    match hint {
        Some(hint) => anyhow::anyhow!("the broker says: {} ({hint})", status.message()),
        None if status.message().is_empty() => anyhow::anyhow!("the broker says: {}", status.code()),
        None => anyhow::anyhow!("the broker says: {}", status.message()),
    }
}
