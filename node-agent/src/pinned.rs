//! The broker's CA, fetched from the broker itself and checked by its fingerprint.
//!
//! The broker's TLS chain ends with its CA's certificate. A host that is to join
//! knows that certificate's SHA-256 from whoever made its token; it believes no
//! other, and whatever follows is checked against it in the ordinary way.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use base64::Engine;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use sha2::{Digest, Sha256};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Longest wait for the broker's TLS handshake.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The CA certificate (PEM) of the broker at `uri` ("https://host:port"), whose
/// fingerprint must be `fingerprint` ("sha256:" and hexadecimal digits).
pub async fn authority(uri: &str, fingerprint: &str) -> Result<String> {
    let parsed: tonic::transport::Uri = uri.parse().with_context(|| format!("{uri} is not an address"))?;
    let (Some("https"), Some(host), Some(port)) = (parsed.scheme_str(), parsed.host(), parsed.port_u16())
    else {
        bail!("{uri} is not of the form https://host:port");
    };
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let wanted = parse_fingerprint(fingerprint)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Arc::new(Pinned {
        wanted,
        found: Mutex::new(None),
        provider: Arc::clone(&provider),
    });
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::clone(&verifier) as Arc<dyn ServerCertVerifier>)
        .with_no_client_auth();
    let name = ServerName::try_from(host.clone()).with_context(|| format!("{host} is not a host name"))?;
    let handshake = async {
        let stream = TcpStream::connect((host.as_str(), port))
            .await
            .with_context(|| format!("connecting to the broker at {uri}"))?;
        let connected = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
        connected
            .map(drop)
            .with_context(|| format!("TLS with the broker at {uri}"))
    };
    tokio::time::timeout(TIMEOUT, handshake)
        .await
        .with_context(|| format!("the broker at {uri} does not answer"))??;
    let found = verifier.found.lock().ok().and_then(|mut found| found.take());
    let der = found.context("the broker sent no CA certificate")?;
    let body = base64::engine::general_purpose::STANDARD.encode(&der);
    let lines: Vec<&str> = body
        .as_bytes()
        .chunks(64)
        .filter_map(|line| std::str::from_utf8(line).ok())
        .collect();
    Ok(format!(
        "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n",
        lines.join("\n")
    ))
}

fn parse_fingerprint(text: &str) -> Result<[u8; 32]> {
    let digits = text.strip_prefix("sha256:").unwrap_or(text);
    let byte = |at: usize| {
        digits
            .get(2 * at..2 * at + 2)
            .and_then(|pair| u8::from_str_radix(pair, 16).ok())
    };
    let bytes: Vec<u8> = (0..32).map_while(byte).collect();
    match <[u8; 32]>::try_from(bytes) {
        Ok(bytes) if digits.len() == 64 => Ok(bytes),
        _ => bail!("{text:?} is not a fingerprint: it is sha256: and 64 hexadecimal digits"),
    }
}

/// Believes a chain whose CA has the wanted fingerprint, and keeps that CA.
#[derive(Debug)]
struct Pinned {
    wanted: [u8; 32],
    found: Mutex<Option<Vec<u8>>>,
    provider: Arc<rustls::crypto::CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let pinned = intermediates
            .iter()
            .find(|one| Sha256::digest(one.as_ref()).as_slice() == self.wanted);
        let Some(authority) = pinned else {
            return Err(Error::General(
                "the broker's CA has another fingerprint than the one given: this is another cluster's broker, \
                 or somebody is between"
                    .to_owned(),
            ));
        };
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&self.provider))
                .build()
                .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        verifier.verify_server_cert(end_entity, &[], server_name, ocsp_response, now)?;
        if let Ok(mut found) = self.found.lock() {
            *found = Some(authority.to_vec());
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            cert,
            dss,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            cert,
            dss,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_are_read_with_and_without_their_prefix() {
        let hex = "ab".repeat(32);
        assert_eq!(parse_fingerprint(&hex).ok(), Some([0xab; 32]));
        assert_eq!(parse_fingerprint(&format!("sha256:{hex}")).ok(), Some([0xab; 32]));
        for bad in [
            "",
            "sha256:",
            "abc",
            &"ab".repeat(33),
            &"zz".repeat(32),
            &"é".repeat(32),
        ] {
            assert!(parse_fingerprint(bad).is_err(), "{bad}");
        }
    }
}
