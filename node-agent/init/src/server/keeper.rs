//! The way to process 1, which forks for this server.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use prost::Message;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;
use tracing::{debug, warn};

use super::shared::Shared;
use crate::files;
use crate::wire::{self, Command, Event, Exited, FromKeeper, Kept, Request, Spawn, ToKeeper};

/// Who waits for a process.
struct Waiting {
    started: Option<oneshot::Sender<io::Result<()>>>,
    exited: oneshot::Sender<Exited>,
}

/// A process that was started.
pub struct Process {
    /// For signals.
    pub id: u64,
    /// How it ended; an error if the keeper is gone.
    pub exited: oneshot::Receiver<Exited>,
}

/// The keeper, as seen from the server.
pub struct Keeper {
    socket: AsyncFd<OwnedFd>,
    next_id: AtomicU64,
    waiting: Mutex<HashMap<u64, Waiting>>,
    processes: AtomicU32,
}

impl Keeper {
    #[allow(unsafe_code)]
    pub fn new(socket: OwnedFd, processes: u32) -> io::Result<Self> {
        Ok(Self {
            // SAFETY: the descriptor is owned, and neither closed nor replaced before its end.
            socket: unsafe { AsyncFd::register(socket) }?,
            next_id: AtomicU64::new(1),
            waiting: Mutex::default(),
            processes: AtomicU32::new(processes),
        })
    }

    /// Live processes that were started through SSH.
    pub fn processes(&self) -> u32 {
        self.processes.load(Ordering::Relaxed)
    }

    /// The terminals that the keeper kept, with our side of each and its memory: its first messages.
    pub async fn adopt(&self, count: u32) -> io::Result<Vec<(Kept, Vec<OwnedFd>)>> {
        let mut all = Vec::new();
        for _ in 0..count {
            let received = self.receive().await?;
            let (message, files) = received.ok_or(io::ErrorKind::UnexpectedEof)?;
            let message = FromKeeper::decode(&message[..]).map_err(io::Error::other)?;
            let Some(Event::Kept(kept)) = message.event else {
                return Err(io::Error::other("the keeper said something else first"));
            };
            all.push((kept, files));
        }
        Ok(all)
    }

    /// Starts a process with one terminal or three files. `E2BIG`: arguments and environment are
    /// too long; `EAGAIN`: too many processes.
    pub async fn spawn(&self, command: &Command, files: Vec<OwnedFd>) -> io::Result<Process> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let terminal = files.len() == 1;
        let exited = self
            .start(
                Spawn {
                    id,
                    terminal,
                    keep: None,
                },
                command,
                files,
            )
            .await?;
        Ok(Process { id, exited })
    }

    /// Starts a process in a terminal that is kept by this number, with the child's side of the
    /// terminal, ours, and its memory. [`Terminals`](super::terminal::Terminals) are told of its
    /// end. Errors as in [`spawn`](Self::spawn), and `ENOSPC`: too many terminals.
    pub async fn spawn_kept(&self, command: &Command, number: u32, files: [OwnedFd; 3]) -> io::Result<()> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let spawn = Spawn {
            id,
            terminal: true,
            keep: Some(number),
        };
        let started = self.start(spawn, command, files.into()).await;
        self.lock().remove(&id);
        started.map(drop)
    }

    async fn start(
        &self,
        spawn: Spawn,
        command: &Command,
        files: Vec<OwnedFd>,
    ) -> io::Result<oneshot::Receiver<Exited>> {
        let id = spawn.id;
        let encoded = command.encode_to_vec();
        if encoded.len() > wire::MAX_COMMAND {
            return Err(io::Error::from_raw_os_error(libc::E2BIG));
        }
        let mut all = vec![files::sealed("carrel-command", &encoded)?];
        all.extend(files);
        let (started, start) = oneshot::channel();
        let (exited, exit) = oneshot::channel();
        self.lock().insert(
            id,
            Waiting {
                started: Some(started),
                exited,
            },
        );
        let sent = self.send(Request::Spawn(spawn), &all).await;
        drop(all);
        if let Err(error) = sent {
            self.lock().remove(&id);
            return Err(error);
        }
        start
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))?;
        Ok(exit)
    }

    /// Signals the process group of a process, if it lives.
    pub async fn signal(&self, id: u64, signal: i32) -> io::Result<()> {
        let kept = None;
        self.send(Request::Signal(wire::Signal { id, signal, kept }), &[])
            .await
    }

    /// Signals the process group of a kept terminal's command, if it lives.
    pub async fn signal_kept(&self, number: u32, signal: i32) -> io::Result<()> {
        let (id, kept) = (0, Some(number));
        self.send(Request::Signal(wire::Signal { id, signal, kept }), &[])
            .await
    }

    /// Signals the shells of all terminals, or everything but these.
    pub async fn signal_all(&self, signal: i32, shells: bool) -> io::Result<()> {
        self.send(Request::SignalAll(wire::SignalAll { signal, shells }), &[])
            .await
    }

    /// Has a terminal closed whose command has ended.
    pub async fn forget(&self, number: u32) -> io::Result<()> {
        self.send(Request::Forget(number), &[]).await
    }

    /// Has the job's command started, with its files beside it, unless it was before.
    pub async fn start_main(&self, main: wire::Main, files: &[OwnedFd]) -> io::Result<()> {
        self.send(Request::Main(main), files).await
    }

    /// Has a configuration kept for the next server.
    pub async fn keep_config(&self, config: &[u8]) -> io::Result<()> {
        let file = files::sealed("carrel-config", config)?;
        self.send(Request::Config(true), &[file]).await
    }

    /// Sets the lease's end, boot time in ms.
    pub async fn lease_end(&self, end: u64) -> io::Result<()> {
        self.send(Request::LeaseEnd(end), &[]).await
    }

    /// Ends everything.
    pub async fn stop(&self, grace_ms: u64) -> io::Result<()> {
        self.send(Request::Stop(grace_ms), &[]).await
    }

    /// Takes in what the keeper says, until it hangs up.
    pub async fn run(&self, shared: &Shared) {
        loop {
            let message = match self.receive().await {
                Ok(Some((message, _))) => message,
                Ok(None) => return,
                Err(error) => {
                    warn!(%error, "reading from the keeper");
                    return;
                }
            };
            match FromKeeper::decode(&message[..]) {
                Ok(message) => self.take(message, shared),
                Err(error) => warn!(%error, "the keeper's message"),
            }
        }
    }

    async fn receive(&self) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
        self.socket
            .async_io(Interest::READABLE, |socket| {
                Ok(wire::receive(socket.as_raw_fd())?)
            })
            .await
    }

    fn take(&self, message: FromKeeper, shared: &Shared) {
        if let Some(processes) = message.processes {
            self.processes.store(processes, Ordering::Relaxed);
        }
        shared.notify();
        match message.event {
            Some(Event::Started(id)) => {
                let started = self
                    .lock()
                    .get_mut(&id)
                    .and_then(|waiting| waiting.started.take());
                tell(started, Ok(()));
            }
            Some(Event::Failed(failed)) => {
                let started = self.lock().remove(&failed.id).and_then(|waiting| waiting.started);
                tell(started, Err(io::Error::from_raw_os_error(failed.errno)));
            }
            Some(Event::Exited(exited)) => {
                if let Some(waiting) = self.lock().remove(&exited.id) {
                    // Nobody waits any more where the connection is gone.
                    let _ = waiting.exited.send(exited);
                }
            }
            Some(Event::Ended(exited)) => shared.terminals.ended(exited),
            Some(Event::Kept(kept)) => warn!(terminal = kept.number, "the keeper tells of a terminal late"),
            Some(Event::Stopping(_)) => debug!("stopping"),
            None => {}
        }
    }

    async fn send(&self, request: Request, files: &[OwnedFd]) -> io::Result<()> {
        let message = ToKeeper {
            request: Some(request),
        }
        .encode_to_vec();
        let files = wire::raw(files);
        self.socket
            .async_io(Interest::WRITABLE, |socket| {
                Ok(wire::send(socket.as_raw_fd(), &message, &files)?)
            })
            .await
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tell(waiting: Option<oneshot::Sender<io::Result<()>>>, result: io::Result<()>) {
    if let Some(waiting) = waiting {
        // The session that asked may be gone.
        let _ = waiting.send(result);
    }
}
