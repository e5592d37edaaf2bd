//! Finding the broker and connecting to it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use carrel_proto::inside;
use carrel_proto::v1::broker_client::BrokerClient;
use hyper_util::rt::TokioIo;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};

use crate::config::{Config, Credential, Credentials};
use crate::error::{CliError, Context as _, Kind, Result, innermost};
use crate::paths;

/// The system's broker on its own machine.
const SYSTEM_SOCKET: &str = "/run/carrel/broker.sock";
/// Long enough for a TLS handshake over a bad line.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Until an answer begins; streams may last longer.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);
/// Notices a broker that vanished under a watch.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// So long the socket of a session is waited for: an agent that was restarted has it again within moments.
const AGENT_PATIENCE: Duration = Duration::from_secs(5);
/// Between two attempts at it.
const AGENT_RETRY: Duration = Duration::from_millis(100);
/// A thousand nodes' inventories fit many times.
const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// The broker's API.
pub type Client = BrokerClient<InterceptedService<Channel, Bearer>>;

/// Where a broker is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Its Unix socket on this machine.
    Unix(PathBuf),
    /// TLS: `https://host:port`, no path.
    Tls(String),
}

impl Address {
    /// The session's own way to the broker, in its container.
    pub fn is_inside(&self) -> bool {
        match self {
            Self::Unix(path) => path == Path::new(inside::SOCKET),
            Self::Tls(_) => false,
        }
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const RULE: &str = "a broker's address is unix:/path/to/broker.sock or https://host:port";
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.starts_with('/') {
                Ok(Self::Unix(path.into()))
            } else {
                Err(RULE.into())
            };
        }
        if text.starts_with('/') {
            return Ok(Self::Unix(text.into()));
        }
        let url = text.trim_end_matches('/');
        let uri: tonic::transport::Uri = url.parse().map_err(|_| RULE)?;
        let plain = uri.path_and_query().is_none_or(|p| p.as_str() == "/");
        match (uri.scheme_str(), uri.host()) {
            (Some("https"), Some(host)) if plain && !host.is_empty() => Ok(Self::Tls(url.into())),
            _ => Err(RULE.into()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tls(url) => f.write_str(url),
        }
    }
}

/// Adds the token to every call.
#[derive(Clone)]
pub struct Bearer(Option<MetadataValue<Ascii>>);

impl Bearer {
    /// For a token, or for none.
    pub fn new(token: Option<&str>) -> Result<Self> {
        let Some(token) = token else { return Ok(Self(None)) };
        let mut value: MetadataValue<Ascii> = format!("Bearer {}", token.trim())
            .parse()
            .map_err(|_| CliError::usage("the token holds characters that no token has"))?;
        value.set_sensitive(true);
        Ok(Self(Some(value)))
    }
}

impl Interceptor for Bearer {
    fn call(&mut self, mut request: tonic::Request<()>) -> Result<tonic::Request<()>, tonic::Status> {
        if let Some(value) = &self.0 {
            request.metadata_mut().insert("authorization", value.clone());
        }
        Ok(request)
    }
}

/// The broker's address: from the flag (or `CARREL_BROKER`), the session that this runs in, the config,
/// the last sign-in, the system's socket, or the user's own `carrel up`, in this order.
pub fn find(flag: Option<&Address>, config: &Config) -> Result<Address> {
    if let Some(address) = flag {
        return Ok(address.clone());
    }
    if Path::new(inside::DIR).is_dir() {
        return Ok(Address::Unix(inside::SOCKET.into()));
    }
    if let Some(text) = &config.broker {
        return text
            .parse()
            .map_err(|rule| CliError::usage(format!("broker = {text:?} in config.toml: {rule}")));
    }
    if let Some(text) = Credentials::load()?.default {
        return text
            .parse()
            .map_err(|rule| CliError::usage(format!("{text:?} in credentials.toml: {rule}")));
    }
    let own = paths::up_dir()?.join("broker.sock");
    for socket in [Path::new(SYSTEM_SOCKET), &own] {
        if socket.exists() {
            return Ok(Address::Unix(socket.into()));
        }
    }
    Err(CliError::new(
        Kind::Unreachable,
        format!("no broker is known: nothing at {SYSTEM_SOCKET} or {}", own.display()),
    )
    .hint("`carrel login https://HOST:PORT` signs in to a cluster, `carrel up` starts one here; --broker or CARREL_BROKER names one"))
}

/// Connects to a broker, with the user's sign-in where it needs one.
pub async fn connect(address: &Address) -> Result<Client> {
    match address {
        Address::Unix(path) => {
            let begun = tokio::time::Instant::now();
            let channel = loop {
                match unix_channel(path.clone()).await {
                    Ok(channel) => break channel,
                    Err(_) if address.is_inside() && begun.elapsed() < AGENT_PATIENCE => {
                        tokio::time::sleep(AGENT_RETRY).await;
                    }
                    Err(error) => return Err(unreachable_error(address, &error)),
                }
            };
            Ok(client(channel, Bearer::new(None)?))
        }
        Address::Tls(url) => {
            let credential = credential(url)?;
            connect_tls(url, &credential).await
        }
    }
}

/// Connects over TLS with a given sign-in.
pub async fn connect_tls(url: &str, credential: &Credential) -> Result<Client> {
    let channel = tls_channel(url, &credential.ca).await?;
    Ok(client(channel, Bearer::new(Some(&credential.token))?))
}

/// Connects over TLS to a broker whose certificate leads to one of these (PEM).
pub async fn tls_channel(url: &str, ca: &str) -> Result<Channel> {
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca));
    let endpoint = Endpoint::from_shared(url.to_owned()).context("address")?;
    let endpoint = tuned(endpoint).tls_config(tls).context("TLS")?;
    endpoint
        .connect()
        .await
        .map_err(|error| unreachable_error(&Address::Tls(url.into()), &error))
}

fn client(channel: Channel, bearer: Bearer) -> Client {
    BrokerClient::with_interceptor(channel, bearer).max_decoding_message_size(MAX_MESSAGE_BYTES)
}

fn tuned(endpoint: Endpoint) -> Endpoint {
    endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(ANSWER_TIMEOUT)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_while_idle(true)
}

async fn unix_channel(path: PathBuf) -> Result<Channel, tonic::transport::Error> {
    // The URI is never dialled; HTTP/2 wants one.
    let endpoint = tuned(Endpoint::from_static("http://broker"));
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move { Ok::<_, std::io::Error>(TokioIo::new(tokio::net::UnixStream::connect(path).await?)) }
    });
    endpoint.connect_with_connector(connector).await
}

/// The sign-in at a broker: `CARREL_TOKEN` and `CARREL_CA` (a PEM file), or what `carrel login` kept.
fn credential(url: &str) -> Result<Credential> {
    let kept = Credentials::load()?.brokers.remove(url);
    let token = std::env::var("CARREL_TOKEN").ok().filter(|t| !t.is_empty());
    let ca = match std::env::var_os("CARREL_CA").filter(|path| !path.is_empty()) {
        Some(path) => Some(
            std::fs::read_to_string(&path)
                .context(format_args!("CARREL_CA: cannot read {}", path.display()))?,
        ),
        None => None,
    };
    let (kept_token, kept_ca) = kept.map_or((None, None), |c| (Some(c.token), Some(c.ca)));
    match (token.or(kept_token), ca.or(kept_ca)) {
        (Some(token), Some(ca)) => Ok(Credential { token, ca }),
        _ => Err(CliError::new(Kind::Denied, format!("not signed in at {url}"))
            .hint(format!("carrel login {url}"))),
    }
}

fn unreachable_error(address: &Address, error: &tonic::transport::Error) -> CliError {
    let error = CliError::new(
        Kind::Unreachable,
        format!("no broker answers at {address}: {}", innermost(error)),
    );
    match address {
        Address::Unix(_) if address.is_inside() => {
            error.hint("this node's agent is away; the session goes on without it: try again in a moment")
        }
        Address::Unix(_) => {
            error.hint("is it running? `carrel up` starts one here; --broker or CARREL_BROKER names another")
        }
        Address::Tls(_) => error
            .hint("--broker or CARREL_BROKER names another; `carrel login` renews what is known of this one"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_sockets_or_https() {
        assert_eq!(
            "unix:/run/b.sock".parse(),
            Ok(Address::Unix("/run/b.sock".into()))
        );
        assert_eq!(
            "unix:///run/b.sock".parse(),
            Ok(Address::Unix("/run/b.sock".into()))
        );
        assert_eq!("/run/b.sock".parse(), Ok(Address::Unix("/run/b.sock".into())));
        assert_eq!(
            "https://b:7070/".parse(),
            Ok(Address::Tls("https://b:7070".into()))
        );
        for bad in [
            "",
            "b:7070",
            "http://b:7070",
            "unix:b.sock",
            "https://",
            "https://b/x",
            "ftp://b",
        ] {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
    }
}
