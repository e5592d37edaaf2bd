//! Meeting a broker for the first time: its certificate authority, known by a fingerprint.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use sha2::{Digest as _, Sha256};
use tokio::net::TcpStream;

use crate::error::{CliError, Context as _, Kind, Result};

const TIMEOUT: Duration = Duration::from_secs(10);

/// The certificates that a TLS server shows, its authority's last. None of them is checked, and
/// nothing is said to the server: the caller decides by their fingerprints.
pub async fn certificates_of(url: &str) -> Result<Vec<CertificateDer<'static>>> {
    let uri: tonic::transport::Uri = url.parse().context("address")?;
    let host = uri.host().unwrap_or_default().to_owned();
    let port = uri.port_u16().unwrap_or(443);
    let unreachable =
        |why: String| CliError::new(Kind::Unreachable, format!("no broker answers at {url}: {why}"));
    let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let name =
        ServerName::try_from(bare.clone()).map_err(|_| CliError::usage(format!("{host} is no host name")))?;

    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .context("TLS")?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(TakeAny(provider)))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let handshake = async {
        let stream = TcpStream::connect((bare.as_str(), port)).await?;
        tokio_rustls::TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
    };
    let stream = tokio::time::timeout(TIMEOUT, handshake)
        .await
        .map_err(|_| unreachable("it takes too long".into()))?
        .map_err(|error| unreachable(crate::error::innermost(&error)))?;
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    Ok(certificates.iter().map(|c| c.clone().into_owned()).collect())
}

/// `sha256:<hex>` of a certificate.
pub fn fingerprint(certificate: &CertificateDer<'_>) -> String {
    let hex: String = Sha256::digest(certificate)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("sha256:{hex}")
}

/// A certificate as PEM (RFC 7468).
pub fn pem(certificate: &CertificateDer<'_>) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(certificate);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(64));
        pem += line;
        pem.push('\n');
        rest = after;
    }
    pem + "-----END CERTIFICATE-----\n"
}

/// Takes whatever certificate comes, to look at it.
#[derive(Debug)]
struct TakeAny(Arc<rustls::crypto::CryptoProvider>);

impl ServerCertVerifier for TakeAny {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
