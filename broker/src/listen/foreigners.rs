//! Hosts of another cluster that dial this broker: the log names each once.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use rustls::{AlertDescription, CertificateError, Error};

/// Addresses that are remembered: beyond it is no news.
const MAX_NAMED: usize = 256;

/// Hosts of another cluster that the log has named.
#[derive(Debug, Default)]
pub(super) struct Foreigners(Mutex<BTreeSet<IpAddr>>);

impl Foreigners {
    /// Notes why a handshake failed.
    pub(super) fn note(&self, address: IpAddr, error: &std::io::Error) {
        let mut named = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if is_of_another_cluster(error) && named.len() < MAX_NAMED && named.insert(address) {
            tracing::warn!(
                %address, %error,
                "a host of another cluster was refused: its certificates are of another authority; join it again \
                 with a token of `carrel node token`, or restore this broker's ca.pem and ca-key.pem"
            );
        } else {
            tracing::debug!(%address, %error, "TLS handshake failed");
        }
    }
}

/// One side does not know the authority of the other.
fn is_of_another_cluster(error: &std::io::Error) -> bool {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    matches!(
        tls,
        Some(
            Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature)
                | Error::AlertReceived(AlertDescription::UnknownCA | AlertDescription::DecryptError)
        )
    )
}
