//! The cluster's own certificate authority for TLS (ECDSA P-256, RFC 5280).
//!
//! It signs three kinds of certificate, told apart by their extended key usage
//! and organizational unit, so that none serves as another: the broker's own
//! (server), gateways' (server), nodes' (client).

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use carrel_core::model::ids::{ClusterId, NodeName};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertificateSigningRequestParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
    PublicKeyData, SerialNumber,
};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::files::{private_directory, read_text_if_there, write_secret};
use super::tls::Identity;
use super::{BACKDATE, unix_seconds};
use crate::start::Origin;

/// Validity of the authority itself. Nodes hold its certificate, so it must outlive them.
const AUTHORITY_VALIDITY: Duration = Duration::from_hours(20 * 365 * 24);
/// Validity of a node's certificate; the agent renews it long before.
pub const NODE_VALIDITY: Duration = Duration::from_hours(30 * 24);
/// Validity of a gateway's certificate. It is renewed at every enrolment; this
/// is how long a gateway can serve without its broker.
pub const GATEWAY_VALIDITY: Duration = Duration::from_hours(30 * 24);
/// Validity of the broker's own certificate, renewed by the broker itself.
pub const SERVER_VALIDITY: Duration = Duration::from_hours(7 * 24);
/// Longest certificate request that is looked at: one for RSA-4096 is under 2 KiB.
const MAX_CSR: usize = 8 * 1024;

/// Of the certificate's SHA-256: no two clusters share as many.
const CLUSTER_DIGITS: usize = 32;

const KEY_FILE: &str = "ca-key.pem";
const CERTIFICATE_FILE: &str = "ca.pem";
const UNIT_BROKER: &str = "broker";
const UNIT_GATEWAY: &str = "gateway";
const UNIT_NODE: &str = "node";

/// A certificate's serial number, lower-case hexadecimal without leading zeros.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Serial(String);

impl Serial {
    /// From a certificate's big-endian bytes.
    fn from_bytes(bytes: &[u8]) -> Self {
        Self::from_text(&hexadecimal(bytes))
    }

    /// From hexadecimal digits, as [`Serial`] prints them.
    pub fn from_text(text: &str) -> Self {
        Self(text.trim_start_matches('0').to_ascii_lowercase())
    }

    /// Hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Serial numbers of revoked certificates.
pub type Revoked = BTreeSet<Serial>;

/// A certificate made for somebody else's key.
#[derive(Clone, Debug)]
pub struct SignedCertificate {
    /// The certificate, PEM.
    pub pem: String,
    /// Its serial number, to be revoked by.
    pub serial: Serial,
    /// Not valid after.
    pub expires: SystemTime,
}

/// Why a certificate request was refused.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// The request is not one, or its signature does not hold.
    #[error("the certificate request is not valid: {0}")]
    BadRequest(String),
    /// The authority failed.
    #[error("the certificate could not be signed")]
    Failed(#[source] rcgen::Error),
}

/// The certificate authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    pem: String,
    /// Made by this start.
    is_new: bool,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority")
            .field("fingerprint", &self.fingerprint())
            .finish_non_exhaustive()
    }
}

impl Authority {
    /// Opens the authority of a state directory; makes it when there is none.
    pub fn open(state: &Path) -> Result<Self> {
        private_directory(state)?;
        let (key_file, certificate_file) = (state.join(KEY_FILE), state.join(CERTIFICATE_FILE));
        let mut is_new = false;
        let key = match read_text_if_there(&key_file)? {
            Some(pem) => KeyPair::from_pem(&pem)
                .with_context(|| format!("{} holds no private key", key_file.display()))?,
            None if certificate_file.exists() => bail!(
                "{} is there but {} is not: restore it from a backup, or remove both for a new authority \
                 (every node must then join again)",
                certificate_file.display(),
                key_file.display()
            ),
            None => {
                let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
                write_secret(&key_file, key.serialize_pem().as_bytes())?;
                is_new = true;
                key
            }
        };
        let pem = if let Some(pem) = read_text_if_there(&certificate_file)? {
            pem
        } else {
            // Also after a crash between the two files.
            let pem = authority_params(SystemTime::now())?.self_signed(&key)?.pem();
            write_secret(&certificate_file, pem.as_bytes())?;
            pem
        };
        let certificate = super::tls::certificates(&pem)?
            .into_iter()
            .next()
            .with_context(|| format!("{} holds no certificate", certificate_file.display()))?;
        let public = X509Certificate::from_der(&certificate)
            .map_err(|_| anyhow::anyhow!("{} holds no certificate", certificate_file.display()))?
            .1
            .public_key()
            .subject_public_key
            .data
            .to_vec();
        if public != key.public_key_raw() {
            bail!(
                "{} and {} do not belong together",
                certificate_file.display(),
                key_file.display()
            );
        }
        let issuer = Issuer::from_ca_cert_der(&certificate, key)?;
        Ok(Self {
            issuer,
            certificate,
            pem,
            is_new,
        })
    }

    /// The cluster that this is the authority of. Its id is drawn from the certificate: whoever has the
    /// authority is the cluster's broker, with its store or without.
    pub fn origin(&self) -> Origin {
        let digits = hexadecimal(&Sha256::digest(&self.certificate));
        Origin {
            cluster: ClusterId(digits[..CLUSTER_DIGITS].into()),
            is_new: self.is_new,
        }
    }

    /// The authority's certificate, PEM.
    pub fn certificate_pem(&self) -> &str {
        &self.pem
    }

    /// SHA-256 of the certificate's DER: `sha256:<hex>`.
    pub fn fingerprint(&self) -> String {
        fingerprint(&self.certificate)
    }

    /// A new key and certificate for a TLS server of the broker, to be held in
    /// memory only. `names` are the host names and IP addresses it is dialled by.
    ///
    /// The chain ends with the authority's own certificate, so that a node that
    /// knows only its fingerprint can check it while joining.
    pub fn issue_server(&self, names: &[String], now: SystemTime) -> Result<Identity> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let params = leaf_params(UNIT_BROKER, "carrel-broker", names, now, SERVER_VALIDITY)
            .context("a name of the broker's TLS listener is not valid")?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        Ok(Identity {
            chain: vec![certificate.der().clone(), self.certificate.clone()],
            key: key.into(),
            expires: now + SERVER_VALIDITY,
        })
    }

    /// Signs a node's certificate request. Of the request only the key counts.
    pub fn sign_node(
        &self,
        csr_der: &[u8],
        node: &NodeName,
        now: SystemTime,
    ) -> Result<SignedCertificate, SignError> {
        self.sign(csr_der, UNIT_NODE, node.as_str(), &[], now, NODE_VALIDITY)
    }

    /// Signs a gateway's certificate request. `names` are the host names and IP
    /// addresses that agents dial it by. Of the request only the key counts.
    pub fn sign_gateway(
        &self,
        csr_der: &[u8],
        name: &str,
        names: &[String],
        now: SystemTime,
    ) -> Result<SignedCertificate, SignError> {
        self.sign(csr_der, UNIT_GATEWAY, name, names, now, GATEWAY_VALIDITY)
    }

    fn sign(
        &self,
        csr_der: &[u8],
        unit: &str,
        name: &str,
        names: &[String],
        now: SystemTime,
        validity: Duration,
    ) -> Result<SignedCertificate, SignError> {
        if csr_der.len() > MAX_CSR {
            return Err(SignError::BadRequest(format!(
                "it is longer than {MAX_CSR} bytes"
            )));
        }
        let request = CertificateSigningRequestParams::from_der(&csr_der.into())
            .map_err(|error| SignError::BadRequest(error.to_string()))?;
        let params = leaf_params(unit, name, names, now, validity)
            .map_err(|error| SignError::BadRequest(format!("a name is not valid: {error}")))?;
        let certificate = self
            .sign_key(&params, &request.public_key)
            .map_err(SignError::Failed)?;
        let serial = params
            .serial_number
            .as_ref()
            .map(SerialNumber::to_bytes)
            .unwrap_or_default();
        let pem = certificate.pem();
        Ok(SignedCertificate {
            pem,
            serial: Serial::from_bytes(&serial),
            expires: now + validity,
        })
    }

    fn sign_key(
        &self,
        params: &CertificateParams,
        key: &impl PublicKeyData,
    ) -> Result<Certificate, rcgen::Error> {
        params.signed_by(key, &self.issuer)
    }
}

/// `sha256:<hex>` of a certificate's DER.
pub fn fingerprint(certificate: &[u8]) -> String {
    format!("sha256:{}", hexadecimal(&Sha256::digest(certificate)))
}

/// A certificate request for a key, DER. The name is for people; whoever signs decides.
pub fn certificate_request(key: &KeyPair, name: &str) -> Result<Vec<u8>> {
    let mut params = CertificateParams::default();
    params.distinguished_name = distinguished_name(UNIT_GATEWAY, name);
    Ok(params.serialize_request(key)?.der().to_vec())
}

/// Who a verified client certificate belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePeer {
    /// The node's name.
    pub node: NodeName,
    /// The certificate's serial number.
    pub serial: Serial,
}

/// Why a certificate is no node's.
#[derive(Debug, thiserror::Error)]
pub enum NotANode {
    /// Not a certificate.
    #[error("the peer's certificate cannot be read")]
    Unreadable,
    /// A certificate of another kind.
    #[error("the peer's certificate is not a node's")]
    OtherKind,
}

/// Reads node name and serial number from a peer's certificate, DER, that TLS has verified.
pub fn node_of(certificate: &[u8]) -> Result<NodePeer, NotANode> {
    let (_, certificate) = X509Certificate::from_der(certificate).map_err(|_| NotANode::Unreadable)?;
    let subject = certificate.subject();
    let unit = subject
        .iter_organizational_unit()
        .next()
        .and_then(|unit| unit.as_str().ok());
    if unit != Some(UNIT_NODE) {
        return Err(NotANode::OtherKind);
    }
    let name = subject
        .iter_common_name()
        .next()
        .and_then(|name| name.as_str().ok());
    let node = name
        .and_then(|name| name.parse().ok())
        .ok_or(NotANode::OtherKind)?;
    Ok(NodePeer {
        node,
        serial: Serial::from_bytes(certificate.raw_serial()),
    })
}

fn distinguished_name(unit: &str, name: &str) -> DistinguishedName {
    let mut distinguished_name = DistinguishedName::new();
    distinguished_name.push(DnType::OrganizationName, "Carrel");
    distinguished_name.push(DnType::OrganizationalUnitName, unit);
    distinguished_name.push(DnType::CommonName, name);
    distinguished_name
}

fn hexadecimal(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
    digits
        .map(|digit| char::from(DIGITS[usize::from(digit)]))
        .collect()
}

/// Sixteen random bytes, positive as RFC 5280 wants them.
fn random_serial() -> SerialNumber {
    let mut bytes: [u8; 16] = rand::random();
    bytes[0] = bytes[0] & 0x7f | 0x40;
    SerialNumber::from_slice(&bytes)
}

fn authority_params(now: SystemTime) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.not_before = (now - BACKDATE).into();
    params.not_after = (now + AUTHORITY_VALIDITY).into();
    params.serial_number = Some(random_serial());
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    // The name is unique, so that two clusters' authorities are never taken for one.
    let name = format!("Carrel CA {:016x}", rand::random::<u64>() ^ unix_seconds(now));
    params.distinguished_name = distinguished_name("authority", &name);
    Ok(params)
}

fn leaf_params(
    unit: &str,
    name: &str,
    names: &[String],
    now: SystemTime,
    validity: Duration,
) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(names)?;
    params.not_before = (now - BACKDATE).into();
    params.not_after = (now + validity).into();
    params.serial_number = Some(random_serial());
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![if unit == UNIT_NODE {
        ExtendedKeyUsagePurpose::ClientAuth
    } else {
        ExtendedKeyUsagePurpose::ServerAuth
    }];
    params.distinguished_name = distinguished_name(unit, name);
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ca::tls;

    fn authority() -> (tempfile::TempDir, Authority) {
        let dir = tempfile::tempdir().expect("a directory");
        let authority = Authority::open(dir.path()).expect("an authority");
        (dir, authority)
    }

    fn request() -> Vec<u8> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
        certificate_request(&key, "whatever").expect("a request")
    }

    #[test]
    fn an_authority_is_made_once_and_survives_a_lost_certificate_file() {
        let (dir, first) = authority();
        let again = Authority::open(dir.path()).expect("the same");
        assert_eq!(first.fingerprint(), again.fingerprint());
        assert!(first.fingerprint().starts_with("sha256:") && first.fingerprint().len() == 71);

        std::fs::remove_file(dir.path().join(CERTIFICATE_FILE)).expect("removed");
        Authority::open(dir.path()).expect("made again from the key");
        std::fs::remove_file(dir.path().join(KEY_FILE)).expect("removed");
        let error = Authority::open(dir.path()).expect_err("no key").to_string();
        assert!(error.contains("restore it from a backup"), "{error}");
    }

    #[test]
    fn a_node_certificate_names_node_and_serial() {
        let (_dir, authority) = authority();
        let node: NodeName = "h100-01.example".parse().expect("a name");
        let signed = authority
            .sign_node(&request(), &node, SystemTime::now())
            .expect("signed");
        let der = tls::certificates(&signed.pem).expect("PEM").remove(0);
        let peer = node_of(&der).expect("a node");
        assert_eq!(
            peer,
            NodePeer {
                node,
                serial: signed.serial.clone()
            }
        );
        assert_eq!(Serial::from_text(signed.serial.as_str()), signed.serial);
    }

    #[test]
    fn certificates_of_other_kinds_are_no_nodes() {
        let (_dir, authority) = authority();
        let names = ["gateway.example".to_owned()];
        let signed = authority
            .sign_gateway(&request(), "gw", &names, SystemTime::now())
            .expect("signed");
        let der = tls::certificates(&signed.pem).expect("PEM").remove(0);
        assert!(matches!(node_of(&der), Err(NotANode::OtherKind)));
        assert!(matches!(node_of(b"nonsense"), Err(NotANode::Unreadable)));
    }

    #[test]
    fn hostile_requests_are_refused_with_the_reason() {
        let (_dir, authority) = authority();
        let node: NodeName = "n".parse().expect("a name");
        let mut forged = request();
        let last = forged.len() - 1;
        forged[last] ^= 1;
        for csr in [&b""[..], b"nonsense", &forged, &vec![0; MAX_CSR + 1]] {
            let refused = authority.sign_node(csr, &node, SystemTime::now());
            assert!(matches!(refused, Err(SignError::BadRequest(_))), "{refused:?}");
        }
    }
}
