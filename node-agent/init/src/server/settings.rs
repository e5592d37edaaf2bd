//! The configuration, in the form that connections use.

use std::borrow::Cow;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use carrel_proto::v1::{Identity, InitConfig, MainCommand};
use prost::Message;
use russh::keys::ssh_key::private::Ed25519Keypair;
use russh::keys::{Certificate, PrivateKey};
use russh::{MethodKind, MethodSet, Preferred, cipher, compression, kex, server};
use tracing::warn;

use super::auth::Access;
use crate::{files, wire};

/// What a client may send on a channel before its data is read: as OpenSSH's.
const WINDOW: u32 = 2 << 20;
/// Largest channel packet, as OpenSSH's.
const MAX_PACKET: u32 = 32 * 1024;
/// Messages from sessions that wait for the connection's turn: some reads of a full pipe.
const EVENTS: usize = 64;
/// Failed attempts to authenticate on one connection. Clients offer every key of an agent; offers
/// that are refused count.
const MAX_AUTH_ATTEMPTS: usize = 20;
/// Delay after a refusal; there are no passwords to guess.
const REJECTION: Duration = Duration::from_millis(20);

/// Fast first where the CPU has AES, which a host of GPUs has; the client's order decides.
const CIPHERS: &[cipher::Name] = &[
    cipher::AES_128_GCM,
    cipher::AES_256_GCM,
    cipher::CHACHA20_POLY1305,
    cipher::AES_256_CTR,
    cipher::AES_128_CTR,
];

/// Key exchanges, post-quantum first.
const KEY_EXCHANGES: &[kex::Name] = &[
    kex::MLKEM768X25519_SHA256,
    kex::CURVE25519,
    kex::CURVE25519_PRE_RFC_8731,
    kex::EXTENSION_SUPPORT_AS_SERVER,
    kex::EXTENSION_OPENSSH_STRICT_KEX_AS_SERVER,
];

/// The configuration of now.
pub struct Settings {
    /// As received; who the user is, is as at the start.
    pub config: InitConfig,
    /// Who may enter.
    pub access: Access,
    /// For russh.
    pub ssh: Arc<server::Config>,
    host_key: PrivateKey,
}

impl Settings {
    /// From what the keeper holds.
    pub fn load(seed: OwnedFd, config: OwnedFd) -> anyhow::Result<Self> {
        let seed = files::read_all(seed, 32).context("reading the host key's seed")?;
        let seed = <[u8; 32]>::try_from(seed).map_err(|_| anyhow!("the host key's seed is too short"))?;
        let host_key = PrivateKey::from(Ed25519Keypair::from_seed(&seed));
        let config = files::read_all(config, wire::MAX_CONFIG).context("reading the configuration")?;
        let config = InitConfig::decode(&config[..]).context("decoding the configuration")?;
        Ok(Self::new(config, host_key))
    }

    /// The same with another configuration; the identity stays.
    pub fn with(&self, mut config: InitConfig) -> Self {
        config.identity.clone_from(&self.config.identity);
        config.root = self.config.root;
        let go = config.main.is_some_and(|main| main.go);
        config.main = self.config.main.clone().map(|main| MainCommand {
            go: main.go || go,
            ..main
        });
        Self::new(config, self.host_key.clone())
    }

    fn new(config: InitConfig, host_key: PrivateKey) -> Self {
        let identity = config.identity.clone().unwrap_or_default();
        let ssh = config.ssh.clone().unwrap_or_default();
        let access = Access::new(&identity.name, &ssh);
        let certificates = host_certificate(&ssh.host_certificate, &host_key)
            .into_iter()
            .collect();
        let ssh = Arc::new(ssh_config(host_key.clone(), certificates));
        Self {
            config,
            access,
            ssh,
            host_key,
        }
    }

    /// Who the session's processes are: its user, or root.
    pub fn identity(&self) -> Identity {
        let mut identity = self.config.identity.clone().unwrap_or_default();
        if self.config.root {
            "root".clone_into(&mut identity.name);
        }
        identity
    }

    /// Clients that know the host CA know this host.
    pub fn has_host_certificate(&self) -> bool {
        !self.ssh.certificates.is_empty()
    }

    /// The host key's public half, OpenSSH text.
    pub fn host_public_key(&self) -> String {
        self.host_key.public_key().to_openssh().unwrap_or_default()
    }
}

/// The certificate, if it is one for our key.
fn host_certificate(text: &str, host_key: &PrivateKey) -> Option<Certificate> {
    if text.is_empty() {
        return None;
    }
    match Certificate::from_openssh(text.trim()) {
        Ok(certificate) if certificate.public_key() == host_key.public_key().key_data() => Some(certificate),
        Ok(_) => {
            warn!("the host certificate is for another key and is not offered");
            None
        }
        Err(error) => {
            warn!(%error, "the host certificate cannot be read and is not offered");
            None
        }
    }
}

fn ssh_config(host_key: PrivateKey, certificates: Vec<Certificate>) -> server::Config {
    server::Config {
        server_id: russh::SshId::Standard(Cow::Borrowed(concat!(
            "SSH-2.0-Carrel_",
            env!("CARGO_PKG_VERSION")
        ))),
        methods: MethodSet::from(&[MethodKind::PublicKey][..]),
        auth_rejection_time: REJECTION,
        auth_rejection_time_initial: Some(Duration::ZERO),
        keys: vec![host_key],
        certificates,
        window_size: WINDOW,
        maximum_packet_size: MAX_PACKET,
        window_on_read: true,
        // A message carries at least a byte of window: the queue never fills.
        channel_buffer_size: WINDOW as usize,
        event_buffer_size: EVENTS,
        preferred: Preferred {
            kex: Cow::Borrowed(KEY_EXCHANGES),
            cipher: Cow::Borrowed(CIPHERS),
            compression: Cow::Borrowed(&[compression::NONE, compression::ZLIB_LEGACY]),
            ..Preferred::DEFAULT
        },
        max_auth_attempts: MAX_AUTH_ATTEMPTS,
        // A sleeping laptop's connection waits for it; relays end those whose client is gone.
        inactivity_timeout: None,
        keepalive_interval: None,
        ..server::Config::default()
    }
}
