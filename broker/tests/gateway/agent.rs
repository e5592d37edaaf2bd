//! An agent as the gateway sees one.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::SystemTime;

use carrel_broker::ca::x509::certificate_request;
use carrel_proto::relay::relay;
use carrel_proto::socket::{Socket, open_as_asked};
use carrel_proto::v1::gateway_link_client::GatewayLinkClient;
use carrel_proto::v1::{AgentHello, AgentSays, GatewayAsks, StreamRefused, agent_says};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Identity};

use crate::world::{GENERATION, JOB, Running, World, eventually};

/// What stands behind an agent.
#[derive(Clone, Debug)]
pub enum Behind {
    /// Sends back what comes.
    Echo,
    /// A real sshd, one for each connection, with this configuration.
    Sshd(PathBuf),
    /// Refuses every stream.
    Refusal(&'static str),
}

/// A node's key and certificate.
#[derive(Clone)]
pub struct Node {
    pub name: &'static str,
    pub serial: String,
    identity: Identity,
}

impl Node {
    pub fn new(world: &World, name: &'static str) -> Self {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
        let csr = certificate_request(&key, name).expect("a request");
        let node = name.parse().expect("a name");
        let signed = world
            .authority
            .sign_node(&csr, &node, SystemTime::now())
            .expect("signed");
        let identity = Identity::from_pem(&signed.pem, key.serialize_pem());
        Self {
            name,
            serial: signed.serial.to_string(),
            identity,
        }
    }

    /// Connects to a gateway's link, with or without the certificate.
    pub async fn dial(
        &self,
        world: &World,
        gateway: &Running,
        with_certificate: bool,
    ) -> Result<Channel, tonic::transport::Error> {
        let ca = Certificate::from_pem(world.authority.certificate_pem());
        let mut tls = ClientTlsConfig::new().ca_certificate(ca);
        if with_certificate {
            tls = tls.identity(self.identity.clone());
        }
        let url = gateway.handle.endpoints().link.clone();
        tonic::transport::Endpoint::from_shared(url)?
            .tls_config(tls)?
            .connect()
            .await
    }

    /// Says who it is; the link's requests.
    pub async fn link(
        &self,
        channel: Channel,
        name: &str,
    ) -> Result<(mpsc::Sender<AgentSays>, tonic::Streaming<GatewayAsks>), Status> {
        let (says, said) = mpsc::channel(8);
        let hello = agent_says::What::Hello(AgentHello { node: name.into() });
        says.send(AgentSays { what: Some(hello) }).await.expect("room");
        let asks = GatewayLinkClient::new(channel)
            .connect(ReceiverStream::new(said))
            .await?;
        Ok((says, asks.into_inner()))
    }
}

/// An agent with a link to a gateway; it ends when dropped or cut off.
pub struct Agent {
    task: JoinHandle<()>,
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Agent {
    /// Connects and serves.
    pub async fn start(world: &World, gateway: &Running, node: &Node, behind: Behind) -> Self {
        let channel = node.dial(world, gateway, true).await.expect("connected");
        let (says, mut asks) = node.link(channel, node.name).await.expect("welcome");
        let task = tokio::spawn(async move {
            let mut streams = JoinSet::new();
            while let Ok(Some(ask)) = asks.message().await {
                assert_eq!((ask.job, ask.generation), (JOB, GENERATION));
                let (says, behind) = (says.clone(), behind.clone());
                streams.spawn(async move {
                    if let Behind::Refusal(reason) = behind {
                        let refused = StreamRefused {
                            stream_id: ask.stream_id.to_vec(),
                            reason: reason.into(),
                            gone: true,
                        };
                        let refused = agent_says::What::Refused(refused);
                        says.send(AgentSays { what: Some(refused) }).await.expect("room");
                    } else {
                        serve(ask, behind).await;
                    }
                });
            }
        });
        let name = node.name;
        eventually("the node is connected", || {
            gateway.handle.nodes().iter().any(|node| node.as_str() == name)
        })
        .await;
        Self { task }
    }

    /// Whether its link has ended.
    pub fn has_ended(&self) -> bool {
        self.task.is_finished()
    }
}

/// Serves one stream, to its end.
async fn serve(ask: GatewayAsks, behind: Behind) {
    let (near, far) = UnixStream::pair().expect("a pair");
    let mut child = None;
    match behind {
        Behind::Echo => {
            let (mut reader, mut writer) = far.into_split();
            // The writer is dropped, and with it shut down, at the reader's end.
            tokio::spawn(async move { tokio::io::copy(&mut reader, &mut writer).await });
        }
        Behind::Sshd(config) => child = Some(sshd(far, &config)),
        Behind::Refusal(_) => return,
    }
    let endpoint = ask.streams.parse().expect("an endpoint");
    let id = ask.stream_id[..].try_into().expect("an id");
    let secret = ask.secret[..].try_into().expect("a secret");
    let gateway = open_as_asked(&endpoint, &id, &secret).await.expect("a stream");
    // Ends in an error when the gateway cuts it, as some tests have it do.
    relay(&gateway, &Socket::from(near)).await.ok();
    drop(gateway);
    if let Some(mut child) = child {
        child.wait().await.expect("sshd's end");
    }
}

/// `sshd -i` on a socket.
fn sshd(socket: UnixStream, config: &std::path::Path) -> tokio::process::Child {
    let socket = socket.into_std().expect("a socket");
    socket.set_nonblocking(false).expect("blocking");
    let input: OwnedFd = socket.try_clone().expect("a copy").into();
    tokio::process::Command::new("/usr/sbin/sshd")
        .args(["-i", "-e", "-f"])
        .arg(config)
        .stdin(Stdio::from(input))
        .stdout(Stdio::from(OwnedFd::from(socket)))
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("sshd")
}
