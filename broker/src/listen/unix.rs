//! The Unix socket: peers are known by their user id.

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::places::{Places, Who};
use super::{ACCEPTED, Connection, Peer};

/// After an error that concerns this process (out of descriptors), before the next accept.
const PAUSE: Duration = Duration::from_millis(100);

/// A bound socket; its file goes when this is dropped.
#[derive(Debug)]
pub struct UnixListener {
    listener: tokio::net::UnixListener,
    path: PathBuf,
}

impl UnixListener {
    /// Binds, open to every user of this machine. A socket file that a dead
    /// process left is replaced, a living one is not.
    pub fn bind(path: &Path) -> Result<Self> {
        let what = || format!("cannot listen on the socket {}", path.display());
        if let Some(parent) = path.parent().filter(|parent| !parent.exists()) {
            fs::create_dir_all(parent).with_context(what)?;
            fs::set_permissions(parent, Permissions::from_mode(0o755)).with_context(what)?;
        }
        remove_stale(path)?;
        let listener = tokio::net::UnixListener::bind(path).with_context(what)?;
        fs::set_permissions(path, Permissions::from_mode(0o666)).with_context(what)?;
        Ok(Self {
            listener,
            path: path.to_owned(),
        })
    }

    /// Accepts until cancelled.
    pub fn serve(
        self,
        cancel: CancellationToken,
        tasks: &TaskTracker,
    ) -> ReceiverStream<std::io::Result<Connection<UnixStream>>> {
        let (sender, receiver) = mpsc::channel(ACCEPTED);
        tasks.spawn(async move {
            cancel.run_until_cancelled(self.accept(sender)).await;
        });
        ReceiverStream::new(receiver)
    }

    async fn accept(&self, sender: mpsc::Sender<std::io::Result<Connection<UnixStream>>>) {
        let places = Places::default();
        loop {
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "a connection to the socket could not be accepted");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let uid = match stream.peer_cred() {
                Ok(credentials) => credentials.uid(),
                Err(error) => {
                    tracing::warn!(%error, "a peer's user id could not be read");
                    continue;
                }
            };
            let Some(place) = places.take(Who::User(uid)) else {
                continue;
            };
            let connection = Connection::new(stream, Peer::Local { uid }, place);
            if sender.send(Ok(connection)).await.is_err() {
                return;
            }
        }
    }
}

impl Drop for UnixListener {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(%error, "the socket's file could not be removed");
        }
    }
}

fn remove_stale(path: &Path) -> Result<()> {
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("cannot look at {}", path.display())),
    };
    if !metadata.file_type().is_socket() {
        bail!(
            "{} is there and is no socket: remove it, or set another path with --socket",
            path.display()
        );
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => bail!(
            "another program listens on {}: stop it, or set another path with --socket",
            path.display()
        ),
        Err(_) => {
            fs::remove_file(path).with_context(|| format!("cannot remove the old socket {}", path.display()))
        }
    }
}
