//! One terminal: its output on the way into the scrollback, and what viewers do to it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use carrel_core::terminal::{Screen, notice};
use carrel_proto::v1;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tracing::debug;

use super::history::{About, History};
use super::viewers::{MAX_VIEWERS, ViewerId, Viewers};
use crate::clock::boot_ms;
use crate::server::pty::{Master, Size};
use crate::wire::Exited;

/// Read from a terminal at once: more than the kernel holds of it.
const CHUNK: usize = 16 * 1024;
/// Sent to a viewer at once: of what it has not seen, the window holds the rest back.
const SEND: usize = 16 * 1024;
/// What a viewer that fell behind is shown of what it missed: some screens full.
const CATCH_UP: u64 = 64 * 1024;
/// How long a program sees another size, so that it draws its screen anew: signals that come closer
/// together are one to it.
const REPAINT: std::time::Duration = std::time::Duration::from_millis(60);

/// A terminal.
#[derive(Debug)]
pub struct Terminal {
    /// Its number.
    pub number: u32,
    /// What is known from its beginning.
    pub about: About,
    master: Arc<AsyncFd<Master>>,
    state: Mutex<State>,
    /// There is output, or an end.
    changed: watch::Sender<()>,
    /// A viewer has taken something, or has gone.
    progress: Notify,
}

#[derive(Debug)]
struct State {
    history: History,
    newest: Screen,
    viewers: Viewers,
    size: Size,
    /// All output is in the history.
    drained: bool,
    exited: Option<Exited>,
    /// When it was typed into or wrote last, boot time in ms.
    active_at: u64,
    /// What its viewers are to be told, as soon as its output is between two sequences.
    notice: Option<String>,
}

impl State {
    /// Adds output.
    fn write(&mut self, output: &[u8]) {
        let head = self.history.head();
        self.viewers.written(head, Instant::now());
        self.newest.advance(output);
        self.history.append(output);
    }

    /// Tells viewers what they are to be told, if that can be done here.
    fn tell(&mut self) {
        let told = self.notice.as_ref().and_then(|text| notice(text, &self.newest));
        if let Some(told) = told {
            self.notice = None;
            self.write(&told);
        }
    }
}

/// Where a viewer begins.
#[derive(Debug)]
pub struct Beginning {
    /// Its name here.
    pub id: ViewerId,
    /// What puts its terminal into the right modes, before the output.
    pub prefix: Vec<u8>,
    /// Position of the output that follows.
    pub position: u64,
    /// A program draws the whole screen: it has to do so again.
    pub repaint: bool,
}

/// What a viewer gets next.
#[derive(Debug)]
pub enum Next {
    /// Output, and the position after it.
    Output(Bytes, u64),
    /// What it was to get is gone: it goes on from a later position, in these modes.
    Missed(u64, Screen),
    /// Nothing yet.
    Nothing,
    /// Nothing any more.
    End(Exited),
}

impl Terminal {
    /// A terminal whose output so far is in `history`.
    pub fn new(number: u32, about: About, master: Arc<AsyncFd<Master>>, history: History) -> Self {
        let size = master.get_ref().size().unwrap_or_default();
        let newest = history.newest();
        Self {
            number,
            about,
            master,
            state: Mutex::new(State {
                history,
                newest,
                viewers: Viewers::default(),
                size,
                drained: false,
                exited: None,
                active_at: boot_ms(),
                notice: None,
            }),
            changed: watch::Sender::new(()),
            progress: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Our side of it, once more, for the keeper.
    pub fn master(&self) -> io::Result<OwnedFd> {
        self.master.get_ref().as_fd().try_clone_to_owned()
    }

    /// Takes its output in until there will be no more. Safe to cancel: what was read is kept.
    pub async fn follow(&self) {
        let mut buffer = vec![0; CHUNK];
        loop {
            self.hold_back().await;
            let read = self
                .master
                .async_io(Interest::READABLE, |master| {
                    Ok(nix::unistd::read(master, &mut buffer)?)
                })
                .await;
            match read {
                Ok(length) if length > 0 => self.append(&buffer[..length]),
                // EIO: no process has it open any more.
                ended => {
                    debug!(terminal = self.number, ?ended, "no more output");
                    break;
                }
            }
        }
        self.lock().drained = true;
        self.changed.send_replace(());
    }

    /// Waits while the foremost viewer is too far behind.
    async fn hold_back(&self) {
        loop {
            let now = Instant::now();
            let held = {
                let state = self.lock();
                state.viewers.hold(state.history.head(), now)
            };
            let Some(until) = held else { return };
            tokio::select! {
                // Both only wake: what counts is looked at again. A progress between the look and
                // this wait has left its permit.
                () = self.progress.notified() => {}
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }

    /// Adds output.
    pub fn append(&self, output: &[u8]) {
        let mut state = self.lock();
        state.write(output);
        state.tell();
        state.active_at = boot_ms();
        drop(state);
        self.changed.send_replace(());
    }

    /// Tells whoever looks at it something, now or once its output allows.
    pub fn announce(&self, text: &str) {
        let mut state = self.lock();
        if state.exited.is_some() {
            return;
        }
        state.notice = Some(text.to_owned());
        state.tell();
        drop(state);
        self.changed.send_replace(());
    }

    /// Its command has ended.
    pub fn ended(&self, exited: Exited) {
        self.lock().exited = Some(exited);
        self.changed.send_replace(());
    }

    /// How its command ended, if it has.
    pub fn exited(&self) -> Option<Exited> {
        self.lock().exited.clone()
    }

    /// When it was typed into or wrote last, boot time in ms.
    pub fn active_at(&self) -> u64 {
        self.lock().active_at
    }

    /// Wakes at output and at the end.
    pub fn watch(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// One more viewer, from the position that it has seen or from the oldest output; an error is
    /// the reason why not.
    pub fn join(&self, read_only: bool, size: Size, seen: Option<u64>) -> Result<Beginning, String> {
        let mut state = self.lock();
        let (tail, head) = (state.history.tail(), state.history.head());
        let seen = seen.filter(|position| (tail..=head).contains(position));
        let (position, prefix) = if let Some(position) = seen {
            // Its terminal is as that output left it.
            (position, Vec::new())
        } else {
            let (position, screen) = state.history.beginning(tail);
            (position, screen.restore())
        };
        let id = state
            .viewers
            .join(read_only, size, position, Instant::now())
            .ok_or_else(|| {
                format!(
                    "terminal {} has {MAX_VIEWERS} viewers, which is the most",
                    self.number
                )
            })?;
        let repaint = state.newest.is_alternate() && state.exited.is_none();
        self.fit(&mut state);
        Ok(Beginning {
            id,
            prefix,
            position,
            repaint,
        })
    }

    /// One viewer less.
    pub fn leave(&self, id: ViewerId) {
        let mut state = self.lock();
        state.viewers.leave(id);
        self.fit(&mut state);
        drop(state);
        self.progress.notify_one();
        self.changed.send_replace(());
    }

    /// Waits until nobody looks any more.
    pub async fn left(&self) {
        let mut changes = self.watch();
        loop {
            changes.mark_unchanged();
            if self.lock().viewers.count() == (0, 0) || changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// What a viewer gets next.
    pub fn next(&self, id: ViewerId) -> Next {
        let mut state = self.lock();
        let position = state.viewers.position(id).unwrap_or(u64::MAX);
        let head = state.history.head();
        if position < state.history.tail() {
            let (position, screen) = state.history.beginning(head.saturating_sub(CATCH_UP));
            state.viewers.took(id, position, Instant::now());
            return Next::Missed(position, screen);
        }
        if position < head {
            let output = state.history.read(position, SEND);
            let after = position + output.len() as u64;
            return Next::Output(output, after);
        }
        match &state.exited {
            Some(exited) if state.drained => Next::End(exited.clone()),
            Some(_) | None => Next::Nothing,
        }
    }

    /// A viewer has been sent all before a position.
    pub fn took(&self, id: ViewerId, position: u64) {
        self.lock().viewers.took(id, position, Instant::now());
        self.progress.notify_one();
    }

    /// Somebody typed.
    pub async fn type_in(&self, id: ViewerId, mut bytes: &[u8]) -> io::Result<()> {
        {
            let mut state = self.lock();
            state.viewers.active(id);
            state.active_at = boot_ms();
            self.fit(&mut state);
        }
        while !bytes.is_empty() {
            let written = self
                .master
                .async_io(Interest::WRITABLE, |master| {
                    Ok(nix::unistd::write(master.as_fd(), bytes)?)
                })
                .await?;
            bytes = &bytes[written..];
        }
        Ok(())
    }

    /// A viewer's own terminal has another size.
    pub fn resize(&self, id: ViewerId, size: Size) {
        let mut state = self.lock();
        state.viewers.resize(id, size);
        self.fit(&mut state);
    }

    /// Has a program that draws the whole screen do so again: for a moment the screen is smaller.
    ///
    /// Safe to cancel with the viewer: its leaving sets the size.
    pub async fn repaint(&self) {
        let size = self.lock().size;
        let other = Size {
            rows: if size.rows > 1 { size.rows - 1 } else { 2 },
            ..size
        };
        self.set_size(other);
        tokio::time::sleep(REPAINT).await;
        self.set_size(self.lock().size);
    }

    /// Gives it the size that its viewers want.
    fn fit(&self, state: &mut State) {
        if let Some(size) = state.viewers.size() {
            state.size = size;
        }
        if self.master.get_ref().size().ok() != Some(state.size) {
            self.set_size(state.size);
        }
    }

    fn set_size(&self, size: Size) {
        if let Err(error) = self.master.get_ref().resize(size) {
            debug!(%error, "resizing a terminal");
        }
    }

    /// What a list says of it.
    pub fn describe(&self) -> v1::Terminal {
        let state = self.lock();
        let (writers, readers) = state.viewers.count();
        v1::Terminal {
            id: self.number,
            name: self.about.name.clone(),
            command: self.about.command.clone(),
            columns: state.size.columns,
            rows: state.size.rows,
            writers: writers as u32,
            readers: readers as u32,
            created_ms: self.about.created_ms,
            idle_ms: boot_ms().saturating_sub(state.active_at),
            exit: state.exited.as_ref().map(|exited| v1::TerminalExit {
                status: exited.status,
                signal: exited.signal,
            }),
        }
    }
}
