//! What the jump host does on one connection.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::Result;
use russh::keys::ssh_key::public::KeyData;
use russh::keys::{Algorithm, Certificate};
use russh::server::{Auth, ChannelOpenHandle, Msg, PublicKeyOffer, Session, VerifiedPublicKey};
use russh::{Channel, ChannelId, ChannelOpenFailure, Pty};
use tokio::io::copy_bidirectional_with_sizes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, debug, info, info_span, warn};

use super::certificate::admits;
use super::{Jump, is_sha1, key_text};
use crate::ca::ssh::check_type;
use crate::gateway::limits;
use crate::gateway::tickets::Grant;

/// Buffer of each direction of a channel's relay: two SSH packets.
const RELAY_BUFFER: usize = 64 * 1024;
/// RFC 4254, 5.1: SSH_OPEN_CONNECT_FAILED.
const CONNECT_FAILED: u32 = 2;
/// RFC 4254, 5.1: SSH_OPEN_RESOURCE_SHORTAGE.
const RESOURCE_SHORTAGE: u32 = 4;
/// Longest target name looked up: a host name (RFC 1035).
const MAX_TARGET: usize = 253;

const NO_SHELL: &str = "This is a Carrel gateway: there is no shell here, only the way to your sessions.\r\n\
                        Use it as a jump host:  ssh -J USER@GATEWAY SESSION\r\n";

/// One connection's state.
pub(super) struct Handler {
    jump: Jump,
    peer: IpAddr,
    /// Cancelled when somebody has logged in.
    logged_in: CancellationToken,
    /// Cancelled when the connection ends.
    cut: CancellationToken,
    /// The plain key that the broker has said is this user's.
    known: Option<(String, KeyData)>,
    /// Who has logged in.
    user: Arc<str>,
    channels: Arc<Semaphore>,
}

impl Handler {
    pub fn new(jump: Jump, peer: IpAddr, logged_in: CancellationToken, cut: CancellationToken) -> Self {
        let channels = Arc::new(Semaphore::new(limits::CHANNELS_PER_CONNECTION));
        Self {
            jump,
            peer,
            logged_in,
            cut,
            known: None,
            user: "".into(),
            channels,
        }
    }

    /// Whether a certificate admits a user.
    fn admits(&self, user: &str, certificate: &Certificate) -> bool {
        let Some(material) = self.jump.material.borrow().clone() else {
            return false;
        };
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = since.map_or(0, |since| since.as_secs());
        match admits(certificate, user, self.peer, &material.user_cas, now) {
            Ok(()) => true,
            Err(reason) => {
                info!(user, %reason, "a certificate was refused");
                false
            }
        }
    }

    /// Whether a plain key is registered for a user, as the broker says.
    async fn is_registered(&mut self, user: &str, key: &KeyData, algorithm: &Algorithm) -> bool {
        if is_sha1(algorithm) || check_type(key).is_err() {
            return false;
        }
        if self
            .known
            .as_ref()
            .is_some_and(|(name, known)| name == user && known == key)
        {
            return true;
        }
        let owner = match self.jump.control.owner_of_key(key_text(key), user).await {
            Ok(owner) => owner,
            Err(status) => {
                warn!(user, reason = %status.message(), "the broker cannot be asked whose key it is");
                return false;
            }
        };
        let is_users = owner.as_deref() == Some(user);
        if is_users {
            self.known = Some((user.to_owned(), key.clone()));
        }
        is_users
    }

    fn accept(&mut self, user: &str, how: &'static str) -> Auth {
        info!(user, how, "logged in");
        self.user = user.into();
        Auth::Accept
    }

    /// Opens the stream of one channel. The error is for the user.
    async fn open(
        jump: &Jump,
        user: &str,
        target: &str,
    ) -> Result<(crate::gateway::quota::Place, carrel_proto::socket::Socket, Grant), String> {
        let resolved = jump.control.resolve(user, target).await.map_err(|status| {
            warn!(reason = %status.message(), "the broker cannot be asked for a target");
            format!("the gateway cannot ask its broker where {target} is: try again")
        })?;
        let grant = Grant::new(resolved?).map_err(|error| error.to_string())?;
        let place = jump
            .quota
            .take(user, &grant.node)
            .map_err(|error| error.to_string())?;
        let node = jump
            .links
            .open(&grant.node, grant.job, grant.what)
            .await
            .map_err(|error| error.to_string())?;
        Ok((place, node, grant))
    }

    /// Serves one direct-tcpip channel, to its end.
    async fn serve(
        jump: Jump,
        user: Arc<str>,
        target: String,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _place: OwnedSemaphorePermit,
    ) {
        let (_stream, mut node, grant) = match Self::open(&jump, &user, &target).await {
            Ok(opened) => opened,
            Err(reason) => {
                info!(%reason, "no stream");
                return reply
                    .reject(ChannelOpenFailure::Other {
                        code: CONNECT_FAILED,
                        reason,
                    })
                    .await;
            }
        };
        debug!(node = %grant.node, job = %grant.job, "stream opened");
        reply.accept().await;
        let mut client = channel.into_stream();
        match copy_bidirectional_with_sizes(&mut client, &mut node, RELAY_BUFFER, RELAY_BUFFER).await {
            Ok((sent, received)) => debug!(sent, received, "stream ended"),
            Err(error) => debug!(%error, "stream cut"),
        }
    }

    fn no_shell(channel: ChannelId, session: &mut Session) -> Result<()> {
        session.channel_success(channel)?;
        session.extended_data(channel, 1, NO_SHELL.as_bytes())?;
        session.exit_status_request(channel, 1)?;
        session.eof(channel)?;
        session.close(channel)?;
        Ok(())
    }
}

impl russh::server::Handler for Handler {
    type Error = anyhow::Error;

    async fn auth_publickey_offered(&mut self, user: &str, offer: PublicKeyOffer<'_>) -> Result<Auth> {
        let welcome = match offer.certificate {
            Some(certificate) => !is_sha1(offer.algorithm) && self.admits(user, certificate),
            None => {
                self.is_registered(user, offer.public_key.key_data(), offer.algorithm)
                    .await
            }
        };
        Ok(if welcome { Auth::Accept } else { Auth::reject() })
    }

    async fn auth_publickey(&mut self, user: &str, key: VerifiedPublicKey<'_>) -> Result<Auth> {
        let registered = self
            .is_registered(user, key.public_key.key_data(), key.algorithm)
            .await;
        Ok(if registered {
            self.accept(user, "registered key")
        } else {
            Auth::reject()
        })
    }

    async fn auth_openssh_certificate(&mut self, user: &str, certificate: &Certificate) -> Result<Auth> {
        let admitted = self.admits(user, certificate);
        Ok(if admitted {
            self.accept(user, "certificate")
        } else {
            Auth::reject()
        })
    }

    async fn auth_succeeded(&mut self, _: &mut Session) -> Result<()> {
        self.logged_in.cancel();
        Ok(())
    }

    async fn channel_open_direct_tcpip(
        &mut self,
        channel: Channel<Msg>,
        host: &str,
        port: u32,
        _originator: &str,
        _originator_port: u32,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<()> {
        let Ok(place) = Arc::clone(&self.channels).try_acquire_owned() else {
            let most = limits::CHANNELS_PER_CONNECTION;
            let reason = format!("this connection has {most} channels open, the most that it may");
            reply
                .reject(ChannelOpenFailure::Other {
                    code: RESOURCE_SHORTAGE,
                    reason,
                })
                .await;
            return Ok(());
        };
        // Names are asked of the broker; what is none is not worth asking.
        if host.len() > MAX_TARGET || host.chars().any(|c| c.is_control() || c.is_whitespace()) {
            let reason = "this is no session's name".to_owned();
            reply
                .reject(ChannelOpenFailure::Other {
                    code: CONNECT_FAILED,
                    reason,
                })
                .await;
            return Ok(());
        }
        let span = info_span!("stream", user = %self.user, target = host, port);
        let (jump, user, cut) = (self.jump.clone(), Arc::clone(&self.user), self.cut.clone());
        let serve = Self::serve(jump, user, host.to_owned(), channel, reply, place);
        self.jump.tasks.spawn(
            async move {
                // A stream dies with its connection: both arms just end it.
                tokio::select! {
                    () = cut.cancelled() => {}
                    () = serve => {}
                }
            }
            .instrument(span),
        );
        Ok(())
    }

    async fn channel_open_session(
        &mut self,
        _channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<()> {
        reply.accept().await;
        Ok(())
    }

    async fn pty_request(
        &mut self,
        channel: ChannelId,
        _term: &str,
        _columns: u32,
        _rows: u32,
        _width: u32,
        _height: u32,
        _modes: &[(Pty, u32)],
        session: &mut Session,
    ) -> Result<()> {
        // A refusal would make the client complain before it shows the message.
        Ok(session.channel_success(channel)?)
    }

    async fn shell_request(&mut self, channel: ChannelId, session: &mut Session) -> Result<()> {
        Self::no_shell(channel, session)
    }

    async fn exec_request(&mut self, channel: ChannelId, _: &[u8], session: &mut Session) -> Result<()> {
        Self::no_shell(channel, session)
    }

    async fn subsystem_request(&mut self, channel: ChannelId, _: &str, session: &mut Session) -> Result<()> {
        Self::no_shell(channel, session)
    }
}
