//! What the gateway is started with.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use carrel_proto::stream::Endpoint;

use super::limits;

/// `carrel-broker gateway`: carries byte streams between users and nodes.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Directory for the gateway's keys and for what the broker handed out.
    #[arg(long, value_name = "DIR", env = "CARREL_GATEWAY_STATE")]
    pub state: PathBuf,

    /// The broker's Unix socket.
    #[arg(long, value_name = "unix:PATH", env = "CARREL_GATEWAY_BROKER")]
    pub broker: Endpoint,

    /// Name of this gateway, for logs and certificates.
    #[arg(long, default_value = "gateway")]
    pub name: String,

    /// Where the SSH jump host listens. Port 0: any free one.
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:7022")]
    pub listen_ssh: SocketAddr,

    /// Where agents' links are accepted (TLS). Port 0: any free one.
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:7443")]
    pub listen_link: SocketAddr,

    /// Where byte streams are accepted; may be given several times. Port 0: any free one.
    #[arg(long, value_name = "unix:PATH|ADDR", default_value = "0.0.0.0:7444")]
    pub listen_streams: Vec<Endpoint>,

    /// Host name or IP address by which clients and agents reach this machine.
    /// Default: the address listened on, or this machine's host name where that is every address.
    #[arg(long, value_name = "HOST")]
    pub advertise_host: Option<String>,

    /// Jump host as clients are to dial it, where that differs.
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise_ssh: Option<String>,

    /// Link as agents are to dial it, where that differs.
    #[arg(long, value_name = "https://HOST:PORT")]
    pub advertise_link: Option<String>,

    /// TCP stream endpoint as clients and agents are to dial it, where that differs.
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise_streams: Option<String>,

    /// Seconds to wait for the link of a node that is not connected.
    #[arg(long, hide = true, value_name = "SECONDS", value_parser = seconds, default_value = "5")]
    pub link_wait: Duration,

    /// Seconds for which a client can come back to its stream while the broker is away. Default: a day.
    #[arg(long, hide = true, value_name = "SECONDS", value_parser = validity)]
    pub resumption_validity: Option<Duration>,
}

fn seconds(text: &str) -> Result<Duration> {
    let seconds: f64 = text.parse()?;
    if seconds > limits::OPEN_TIMEOUT.as_secs_f64() {
        bail!("at most {}", limits::OPEN_TIMEOUT.as_secs());
    }
    Ok(Duration::try_from_secs_f64(seconds)?)
}

fn validity(text: &str) -> Result<Duration> {
    Ok(Duration::try_from_secs_f64(text.parse()?)?)
}

/// Where the gateway is to be dialled, as it tells the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// The jump host: "host:port".
    pub ssh: String,
    /// Agents' links: "https://host:port".
    pub link: String,
    /// Byte streams, for agents.
    pub streams: Endpoint,
    /// Byte streams, for clients: Unix sockets first, since they cost less and
    /// a client elsewhere sees at once that there is none.
    pub client_streams: Vec<Endpoint>,
}

impl Endpoints {
    /// From the options and what was bound in their place.
    pub(super) fn new(
        options: &Options,
        ssh: SocketAddr,
        link: SocketAddr,
        streams: &[Bound],
    ) -> Result<Self> {
        let reach = |address: SocketAddr| -> Result<String> {
            match &options.advertise_host {
                Some(host) => Ok(join(host, address.port())),
                None if address.ip().is_unspecified() => Ok(join(&host_name()?, address.port())),
                None => Ok(address.to_string()),
            }
        };
        let mut unix = Vec::new();
        let mut tcp = Vec::new();
        for bound in streams {
            match bound {
                Bound::Unix(path) => unix.push(Endpoint::Unix(path.clone())),
                Bound::Tcp(address) => tcp.push(Endpoint::Tcp(reach(*address)?)),
            }
        }
        if let Some(address) = &options.advertise_streams {
            tcp = vec![address.parse()?];
        }
        // An agent on another machine has no use for a Unix socket.
        let Some(for_agents) = tcp.first().or(unix.first()).cloned() else {
            bail!("the gateway needs at least one --listen-streams");
        };
        Ok(Self {
            ssh: options.advertise_ssh.clone().map_or_else(|| reach(ssh), Ok)?,
            link: match &options.advertise_link {
                Some(url) => url.clone(),
                None => format!("https://{}", reach(link)?),
            },
            streams: for_agents,
            client_streams: unix.into_iter().chain(tcp).collect(),
        })
    }
}

/// A bound stream listener.
#[derive(Clone, Debug)]
pub(super) enum Bound {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

/// `host:port`, with brackets where an IPv6 address needs them.
fn join(host: &str, port: u16) -> String {
    match host.parse::<IpAddr>() {
        Ok(address) => SocketAddr::new(address, port).to_string(),
        Err(_) => format!("{host}:{port}"),
    }
}

fn host_name() -> Result<String> {
    Ok(nix::unistd::gethostname()?.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        options: Options,
    }

    fn endpoints(args: &[&str]) -> Endpoints {
        let args = ["gateway", "--state=/s", "--broker=unix:/b"].iter().chain(args);
        let options = Command::try_parse_from(args)
            .unwrap_or_else(|error| panic!("{error}"))
            .options;
        let streams = [
            Bound::Tcp("10.0.0.1:3".parse().expect("it")),
            Bound::Unix("/u".into()),
        ];
        let any = |port: u16| SocketAddr::from(([0, 0, 0, 0], port));
        Endpoints::new(&options, any(1), any(2), &streams).expect("endpoints")
    }

    #[test]
    fn what_is_told_can_be_dialled() {
        let told = endpoints(&["--advertise-host=head.example"]);
        assert_eq!(told.ssh, "head.example:1");
        assert_eq!(told.link, "https://head.example:2");
        assert_eq!(told.streams.to_string(), "head.example:3");
        let clients: Vec<_> = told.client_streams.iter().map(ToString::to_string).collect();
        assert_eq!(clients, ["unix:/u", "head.example:3"]);

        let told = endpoints(&[]);
        assert_eq!(told.streams.to_string(), "10.0.0.1:3");
        assert!(!told.link.contains("0.0.0.0"), "{told:?}");

        let told = endpoints(&["--advertise-host=::1", "--advertise-streams=nat.example:99"]);
        assert_eq!(told.ssh, "[::1]:1");
        assert_eq!(told.streams.to_string(), "nat.example:99");
    }
}
