//! Configurations of TLS listeners, and their renewal. All use ring.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::x509::{Authority, SERVER_VALIDITY};

/// A key and its certificate.
pub struct Identity {
    /// The certificate, followed by those that lead to the authority.
    pub chain: Vec<CertificateDer<'static>>,
    /// The private key.
    pub key: PrivateKeyDer<'static>,
    /// Not valid after.
    pub expires: SystemTime,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

impl Identity {
    /// From the PEM texts of certificates and key.
    pub fn from_pem(certificate_pem: &str, key_pem: &str) -> Result<Self> {
        let chain = certificates(certificate_pem)?;
        let leaf = chain.first().context("there is no certificate")?;
        let expires = expiry(leaf)?;
        let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).context("there is no private key")?;
        Ok(Self { chain, key, expires })
    }
}

/// The certificates of a PEM text.
pub fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .context("the text is no PEM of certificates")
}

fn expiry(certificate: &[u8]) -> Result<SystemTime> {
    use x509_parser::prelude::{FromDer, X509Certificate};
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else {
        bail!("the certificate cannot be read");
    };
    let seconds = u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or(0);
    Ok(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
}

/// Whether peers must show a certificate of the authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clients {
    /// They may: the broker, whose users come with tokens and whose nodes with certificates.
    MayHaveCertificate,
    /// They must: the gateway's link.
    MustHaveCertificate,
}

/// A TLS server's configuration. `authority_pem` is what clients' certificates
/// are checked against; one that is shown must hold, whatever `clients` says.
/// Speaks HTTP/2, and where certificates are optional also HTTP/1.1.
pub fn server_config(identity: Identity, authority_pem: &str, clients: Clients) -> Result<Arc<ServerConfig>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    for certificate in certificates(authority_pem)? {
        roots
            .add(certificate)
            .context("the authority's certificate is not usable")?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let verifier = match clients {
        Clients::MayHaveCertificate => verifier.allow_unauthenticated(),
        Clients::MustHaveCertificate => verifier,
    };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier.build()?)
        .with_single_cert(identity.chain, identity.key)
        .context("key and certificate do not belong together")?;
    config.alpn_protocols = match clients {
        Clients::MayHaveCertificate => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        Clients::MustHaveCertificate => vec![b"h2".to_vec()],
    };
    Ok(Arc::new(config))
}

/// The configuration that a listener uses for each new connection, replaced
/// when its certificate is renewed. Cheap to clone; all clones change together.
#[derive(Clone, Debug)]
pub struct CurrentTls(Arc<RwLock<Arc<ServerConfig>>>);

impl CurrentTls {
    /// Begins with this one.
    pub fn new(config: Arc<ServerConfig>) -> Self {
        Self(Arc::new(RwLock::new(config)))
    }

    /// For the next connection.
    pub fn acceptor(&self) -> TlsAcceptor {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner)).into()
    }

    /// Connections from now on use this one.
    pub fn replace(&self, config: Arc<ServerConfig>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = config;
    }
}

/// The broker's TLS listener: its certificate is made at the start and again
/// whenever half of its time is over.
#[derive(Debug)]
pub struct ServerTls {
    authority: Arc<Authority>,
    names: Vec<String>,
    current: CurrentTls,
}

impl ServerTls {
    /// A certificate for these host names and IP addresses.
    pub fn new(authority: Arc<Authority>, names: Vec<String>) -> Result<Self> {
        let current = CurrentTls::new(fresh(&authority, &names)?);
        Ok(Self {
            authority,
            names,
            current,
        })
    }

    /// What the listener is to use.
    pub fn current(&self) -> CurrentTls {
        self.current.clone()
    }

    /// Makes a new certificate now.
    pub fn renew(&self) -> Result<()> {
        self.current.replace(fresh(&self.authority, &self.names)?);
        Ok(())
    }

    /// Renews until cancelled.
    pub async fn run(&self, cancel: CancellationToken) {
        loop {
            // Both arms only wait.
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(SERVER_VALIDITY / 2) => {}
            }
            if let Err(error) = self.renew() {
                tracing::error!(
                    error = format!("{error:#}"),
                    "the broker's TLS certificate was not renewed"
                );
            }
        }
    }
}

fn fresh(authority: &Authority, names: &[String]) -> Result<Arc<ServerConfig>> {
    let identity = authority.issue_server(names, SystemTime::now())?;
    server_config(identity, authority.certificate_pem(), Clients::MayHaveCertificate)
}

#[cfg(test)]
mod tests {
    use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
    use rustls::ClientConfig;
    use rustls::pki_types::ServerName;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio_rustls::TlsConnector;
    use tokio_rustls::client::TlsStream;

    use super::*;
    use crate::ca::x509::{certificate_request, fingerprint};

    struct Cluster {
        _dir: tempfile::TempDir,
        authority: Arc<Authority>,
    }

    fn cluster() -> Cluster {
        let dir = tempfile::tempdir().expect("a directory");
        let authority = Arc::new(Authority::open(dir.path()).expect("an authority"));
        Cluster { _dir: dir, authority }
    }

    impl Cluster {
        fn node_identity(&self) -> Identity {
            let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
            let csr = certificate_request(&key, "n1").expect("a request");
            let node = "n1".parse().expect("a name");
            let signed = self
                .authority
                .sign_node(&csr, &node, SystemTime::now())
                .expect("signed");
            Identity::from_pem(&signed.pem, &key.serialize_pem()).expect("an identity")
        }

        fn client(&self, identity: Option<Identity>) -> TlsConnector {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(self.authority.certificate_pem()).expect("PEM") {
                roots.add(certificate).expect("a root");
            }
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let config = ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .expect("versions")
                .with_root_certificates(roots);
            let mut config = match identity {
                Some(identity) => config
                    .with_client_auth_cert(identity.chain, identity.key)
                    .expect("an identity"),
                None => config.with_no_client_auth(),
            };
            config.alpn_protocols = vec![b"h2".to_vec()];
            Arc::new(config).into()
        }
    }

    /// Connects, and returns the client's end once the server has answered.
    async fn connect(
        acceptor: TlsAcceptor,
        client: TlsConnector,
    ) -> std::io::Result<TlsStream<DuplexStream>> {
        let (near, far) = tokio::io::duplex(1 << 16);
        let server = tokio::spawn(async move {
            let mut stream = acceptor.accept(far).await?;
            stream.write_all(b"!").await?;
            stream.shutdown().await
        });
        let name = ServerName::try_from("broker.example").expect("a name");
        let mut stream = client.connect(name, near).await?;
        let mut byte = [0];
        stream.read_exact(&mut byte).await?;
        server.await.expect("no panic")?;
        Ok(stream)
    }

    #[tokio::test]
    async fn optional_clients_come_with_and_without_certificates() {
        let cluster = cluster();
        let server = ServerTls::new(Arc::clone(&cluster.authority), vec!["broker.example".into()]);
        let server = server.expect("a server");
        let stream = connect(server.current().acceptor(), cluster.client(None))
            .await
            .expect("connected");
        // A joining node knows the fingerprint only: the chain carries the authority.
        let chain = stream.get_ref().1.peer_certificates().expect("a chain");
        assert_eq!(fingerprint(&chain[1]), cluster.authority.fingerprint());

        let identity = cluster.node_identity();
        connect(server.current().acceptor(), cluster.client(Some(identity)))
            .await
            .expect("connected");
        server.renew().expect("renewed");
        let renewed = connect(server.current().acceptor(), cluster.client(None))
            .await
            .expect("connected");
        assert_ne!(
            renewed.get_ref().1.peer_certificates().expect("a chain")[0],
            chain[0]
        );
    }

    #[tokio::test]
    async fn certificates_of_another_authority_never_pass() {
        let (ours, theirs) = (cluster(), cluster());
        let server = ServerTls::new(Arc::clone(&ours.authority), vec!["broker.example".into()]);
        let current = server.expect("a server").current();
        let foreign = Some(theirs.node_identity());
        assert!(connect(current.acceptor(), ours.client(foreign)).await.is_err());
        assert!(connect(current.acceptor(), theirs.client(None)).await.is_err());
    }

    #[tokio::test]
    async fn mandatory_clients_need_a_certificate_for_clients() {
        let cluster = cluster();
        let config = || {
            let identity = cluster
                .authority
                .issue_server(&["broker.example".into()], SystemTime::now())
                .expect("issued");
            let pem = cluster.authority.certificate_pem();
            let config = server_config(identity, pem, Clients::MustHaveCertificate).expect("a configuration");
            CurrentTls::new(config).acceptor()
        };
        connect(config(), cluster.client(Some(cluster.node_identity())))
            .await
            .expect("connected");
        assert!(connect(config(), cluster.client(None)).await.is_err());
        // A server's certificate does not make a client.
        let server = cluster
            .authority
            .issue_server(&[], SystemTime::now())
            .expect("issued");
        assert!(connect(config(), cluster.client(Some(server))).await.is_err());
    }
}
