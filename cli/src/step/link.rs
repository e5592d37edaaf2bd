//! The way to a step's node: a child in one's own container, a channel of SSH to the others.

use std::process::Stdio;
use std::sync::Arc;

use bytes::BytesMut;
use carrel_core::stream::StreamId;
use carrel_proto::v1;
use russh::client::{self, Handle, Msg};
use russh::keys::{Algorithm, Certificate, PrivateKey, PublicKey, PublicKeyOrCertificate};
use russh::{Channel, ChannelMsg, ChannelWriteHalf};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{ChildStdin, Command};
use tokio::sync::mpsc;
use v1::step_event::What as Event;
use v1::step_says::What as Says;

use super::frames;
use crate::connect::{Address, Client};
use crate::error::{CliError, Context as _, Result};
use crate::stream::{Begin, Ending, pump};
use crate::way::Way;

/// What is run in a container.
const NODE: &str = "/.carrel/bin/carrel step-node";
/// Bytes between SSH and its stream.
const BUFFER: usize = 256 * 1024;
/// Read at once.
const READ: usize = 64 * 1024;
/// Exit status of a shell that does not find a program.
const NOT_FOUND: u32 = 127;

/// What comes from a node.
#[derive(Debug)]
pub enum From {
    /// The node's word.
    Said(Event),
    /// Nothing more comes. None: it has ended in order.
    Gone(Option<String>),
}

/// Where a node's words go: with the node's position in the step.
pub type Heard = mpsc::Sender<(usize, From)>;

/// The way to one node. Dropping it ends what runs there.
pub struct Link {
    to: To,
    /// Of SSH, for as long as the channel lives.
    _session: Option<Handle<Host>>,
}

enum To {
    Child(ChildStdin),
    Channel(ChannelWriteHalf<Msg>),
}

impl Link {
    /// Says something. A node that is gone says so itself.
    pub async fn say(&mut self, what: Says) {
        let frame = frames::encode(&v1::StepSays { what: Some(what) });
        match &mut self.to {
            To::Child(input) => drop(input.write_all(&frame).await),
            To::Channel(channel) => drop(channel.data_bytes(frame).await),
        }
    }

    /// In this container: as a child.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn here(index: usize, heard: Heard) -> Result<Self> {
        let program = std::env::current_exe().context("where this program is")?;
        let mut command = Command::new(program);
        // A group of its own: Ctrl-C is for this program, which hands it on.
        command
            .arg("step-node")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0);
        let mut child = command.spawn().context("a step cannot be started")?;
        let taken = child.stdin.take().zip(child.stdout.take());
        let (input, mut output) = taken.ok_or_else(|| CliError::failed("a child without pipes"))?;
        tokio::spawn(async move {
            let mut read = BytesMut::new();
            let end = loop {
                read.reserve(READ);
                match output.read_buf(&mut read).await {
                    Ok(0) | Err(_) => break None,
                    Ok(_) => match hand_on(index, &mut read, &heard).await {
                        Ok(()) => {}
                        Err(why) => break Some(why),
                    },
                }
            };
            // It has nothing to lose: its tasks are over, or it was killed with them.
            let status = child.wait().await;
            let failed = status.ok().filter(|status| !status.success());
            let why = end.or_else(|| failed.map(|status| format!("what ran the tasks ended with {status}")));
            heard.send((index, From::Gone(why))).await.ok();
        });
        Ok(Self {
            to: To::Child(input),
            _session: None,
        })
    }
}

/// Hands whole messages on.
async fn hand_on(index: usize, read: &mut BytesMut, heard: &Heard) -> std::result::Result<(), String> {
    loop {
        match frames::decode::<v1::StepEvent>(read) {
            Ok(Some(event)) => {
                if let Some(what) = event.what
                    && heard.send((index, From::Said(what))).await.is_err()
                {
                    return Err("nobody listens".to_owned());
                }
            }
            Ok(None) => return Ok(()),
            Err(error) => return Err(format!("it speaks another language: {error}")),
        }
    }
}

/// A key with a certificate, made for one step.
pub struct Ticket {
    key: Arc<PrivateKey>,
    certificate: Certificate,
    user: String,
}

impl Ticket {
    /// Has a new key signed.
    ///
    /// # Errors
    /// The broker does not sign it.
    pub async fn get(client: &mut Client) -> Result<Self> {
        let key =
            PrivateKey::random(&mut rand::rng(), Algorithm::Ed25519).context("cannot make an SSH key")?;
        let public_key = key.public_key().to_openssh().context("the SSH key")?;
        let signed = client
            .sign_ssh_key(v1::SignSshKeyRequest { public_key })
            .await?
            .into_inner();
        let certificate =
            Certificate::from_openssh(signed.certificate.trim()).context("the broker's certificate")?;
        Ok(Self {
            key: Arc::new(key),
            certificate,
            user: signed.user,
        })
    }

    /// To a rank of a job, by SSH over a stream that survives cuts.
    ///
    /// # Errors
    /// There is no way there, or it is not let in.
    pub async fn open(
        &self,
        address: &Address,
        job: u64,
        (rank, name): (u32, &str),
        index: usize,
        heard: Heard,
    ) -> Result<Link> {
        let what =
            |error: &dyn std::fmt::Display| CliError::failed(format!("no connection to {name}: {error}"));
        let mut way = Way::to_job(address.clone(), job, rank);
        let id = StreamId(rand::random());
        let socket = way.first(id, None).await?;
        let host_key = PublicKey::from_openssh(way.host_key().trim()).map_err(|error| what(&error))?;
        let (near, far) = tokio::io::duplex(BUFFER);
        let (input, output) = tokio::io::split(far);
        let begin = Begin {
            id,
            socket,
            dialler: way,
            input,
            output,
            session: name.to_owned(),
        };
        let (broken, why_broken) = tokio::sync::watch::channel(None);
        tokio::spawn(async move {
            if let Ending::Broken(why) = pump(begin, std::future::pending()).await {
                broken.send_replace(Some(why));
            }
        });
        let config = Arc::new(client::Config::default());
        let mut session = client::connect_stream(config, near, Host { key: host_key })
            .await
            .map_err(|error| what(&error))?;
        let entered = session
            .authenticate_openssh_cert(&self.user, Arc::clone(&self.key), self.certificate.clone())
            .await
            .map_err(|error| what(&error))?;
        if !entered.success() {
            return Err(what(&"the container does not let this key in"));
        }
        let channel = session
            .channel_open_session()
            .await
            .map_err(|error| what(&error))?;
        channel.exec(true, NODE).await.map_err(|error| what(&error))?;
        Ok(Link {
            to: To::Channel(listen(channel, index, heard, why_broken)),
            _session: Some(session),
        })
    }
}

/// Hands on what comes from a channel; returns its other half.
fn listen(
    channel: Channel<Msg>,
    index: usize,
    heard: Heard,
    why_broken: tokio::sync::watch::Receiver<Option<String>>,
) -> ChannelWriteHalf<Msg> {
    let (mut from, to) = channel.split();
    tokio::spawn(async move {
        let mut read = BytesMut::new();
        let mut said = String::new();
        let mut status = None;
        let mut wrong = None;
        while let Some(message) = from.wait().await {
            match message {
                ChannelMsg::Data { data } => {
                    read.extend_from_slice(&data);
                    if let Err(why) = hand_on(index, &mut read, &heard).await {
                        wrong = Some(why);
                        break;
                    }
                }
                ChannelMsg::ExtendedData { data, .. } => said.push_str(&String::from_utf8_lossy(&data)),
                ChannelMsg::ExitStatus { exit_status } => status = Some(exit_status),
                _ => {}
            }
        }
        let why = match (wrong, status) {
            (Some(why), _) => Some(why),
            (None, Some(0)) => None,
            (None, Some(NOT_FOUND)) => {
                Some("its containers have no carrel: the agent's `cli_binary` names it".to_owned())
            }
            (None, Some(status)) => Some(format!(
                "what ran the tasks exited with {status}: {}",
                said.trim()
            )),
            (None, None) => Some(
                why_broken
                    .borrow()
                    .clone()
                    .unwrap_or_else(|| "the connection broke".to_owned()),
            ),
        };
        heard.send((index, From::Gone(why))).await.ok();
    });
    to
}

/// The SSH server in a container, as the broker knows it.
struct Host {
    key: PublicKey,
}

impl client::Handler for Host {
    type Error = russh::Error;

    async fn check_server_key(
        &mut self,
        shown: &PublicKeyOrCertificate,
    ) -> std::result::Result<bool, russh::Error> {
        Ok(match shown {
            PublicKeyOrCertificate::PublicKey { key, .. } => key.key_data() == self.key.key_data(),
            PublicKeyOrCertificate::Certificate(certificate) => {
                certificate.public_key() == self.key.key_data()
            }
        })
    }
}

/// The ways to the containers of one job.
pub struct Doors {
    job: u64,
    /// The rank of the container in which this runs; none: it runs elsewhere.
    own: Option<u32>,
    /// For the others; none: there are none.
    ticket: Option<(Address, Ticket)>,
}

impl Doors {
    /// Of a job's containers, from the inside of one or from elsewhere.
    pub fn new(job: u64, own: Option<u32>, ticket: Option<(Address, Ticket)>) -> Self {
        Self { job, own, ticket }
    }

    /// Opens the way to one.
    ///
    /// # Errors
    /// There is none.
    pub async fn open(&self, rank: u32, name: &str, index: usize, heard: Heard) -> Result<Link> {
        if self.own == Some(rank) {
            return Link::here(index, heard);
        }
        let Some((address, ticket)) = &self.ticket else {
            return Err(CliError::failed(format!("{name} cannot be reached from here")));
        };
        ticket.open(address, self.job, (rank, name), index, heard).await
    }
}
