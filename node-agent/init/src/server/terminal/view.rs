//! One viewer: an SSH channel that shows a terminal.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use carrel_core::terminal::{Attach, Mark, Screen};
use russh::server::{Handle, Msg};
use russh::{ChannelMsg, ChannelReadHalf, ChannelWriteHalf};
use tracing::debug;

use super::one::{Beginning, Next, Terminal};
use super::viewers::ViewerId;
use crate::server::pty::Size;
use crate::server::session;
use crate::server::shared::Shared;
use crate::wire::Exited;

/// What a client is told when it missed output.
const MISSED: &[u8] = b"\r\n[carrel: some output was too fast for this connection and is left out here]\r\n";

/// A channel's window and what it shows, for what is asked of the channel besides its bytes.
#[derive(Debug, Default)]
pub struct Window {
    size: Mutex<Size>,
    shown: OnceLock<Shown>,
}

#[derive(Debug)]
struct Shown {
    terminal: Weak<Terminal>,
    viewer: ViewerId,
    read_only: bool,
}

impl Window {
    /// The size that the client said last.
    pub fn size(&self) -> Size {
        *self.size.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client says its size.
    pub fn resize(&self, size: Size) {
        *self.size.lock().unwrap_or_else(PoisonError::into_inner) = size;
        if let Some(shown) = self.shown.get()
            && let Some(terminal) = shown.terminal.upgrade()
        {
            terminal.resize(shown.viewer, size);
        }
    }

    /// The terminal whose program the client may signal.
    pub fn signalled(&self) -> Option<u32> {
        let shown = self.shown.get().filter(|shown| !shown.read_only)?;
        Some(shown.terminal.upgrade()?.number)
    }
}

/// A viewer as long as it looks.
struct Viewer<'a> {
    terminal: &'a Terminal,
    id: ViewerId,
}

impl Drop for Viewer<'_> {
    fn drop(&mut self) {
        self.terminal.leave(self.id);
    }
}

/// Shows a terminal until it or the channel ends. An error is the reason why it cannot be shown.
/// Dropping it ends the view and nothing else.
pub async fn show(
    shared: &Shared,
    terminal: &Arc<Terminal>,
    window: &Window,
    asked: &Attach,
    (from, to): (&mut ChannelReadHalf, &ChannelWriteHalf<Msg>),
    handle: &Handle,
) -> Result<(), String> {
    let beginning = terminal.join(asked.read_only, window.size(), asked.seen)?;
    let viewer = Viewer {
        terminal,
        id: beginning.id,
    };
    // One channel shows one terminal.
    let _ = window.shown.set(Shown {
        terminal: Arc::downgrade(terminal),
        viewer: viewer.id,
        read_only: asked.read_only,
    });
    // It may have been said in between.
    terminal.resize(viewer.id, window.size());
    let repaint = async {
        if beginning.repaint && !asked.read_only {
            terminal.repaint().await;
        }
    };
    let job = asked.marks.then(|| shared.settings().config.job);
    let output = async { tokio::join!(send(terminal, &beginning, job, to), repaint).0 };
    let exited = tokio::select! {
        // Safe to cancel: either way the channel is over.
        exited = output => exited,
        () = feed(shared, terminal, &viewer, asked.read_only, from) => None,
    };
    if let Some(exited) = exited {
        if asked.marks {
            let (status, signal) = (exited.status, exited.signal);
            mark(to, &Mark::Exited { status, signal }).await;
        }
        session::report(handle, to.id(), Some(exited)).await;
    }
    Ok(())
}

/// Says something to a client that understands it. The channel may be gone.
pub async fn mark(to: &ChannelWriteHalf<Msg>, mark: &Mark) {
    let _ = to
        .extended_data_bytes(session::STDERR, mark.to_string().into_bytes())
        .await;
}

/// Output to the channel, no faster than its window: gives how the command ended, unless the
/// channel did first. `marks`: the job that they name, if they are wanted.
async fn send(
    terminal: &Terminal,
    beginning: &Beginning,
    marks: Option<u64>,
    to: &ChannelWriteHalf<Msg>,
) -> Option<Exited> {
    let mut changes = terminal.watch();
    let mut sent = 0;
    let mut screen = Screen::default();
    let begin = (beginning.position, beginning.prefix.clone());
    place(terminal, begin, marks, &mut sent, to).await?;
    screen.advance(&beginning.prefix);
    loop {
        changes.mark_unchanged();
        match terminal.next(beginning.id) {
            Next::Output(output, after) => {
                screen.advance(&output);
                sent += output.len() as u64;
                to.data_bytes(output).await.ok()?;
                terminal.took(beginning.id, after);
            }
            Next::Missed(position, there) => {
                debug!(terminal = terminal.number, "a viewer fell behind");
                let text = [&screen.undo(), MISSED, &there.restore()].concat();
                screen = there;
                place(terminal, (position, text), marks, &mut sent, to).await?;
            }
            Next::Nothing => changes.changed().await.ok()?,
            Next::End(exited) => return Some(exited),
        }
    }
}

/// Sends what goes before the output at a position, and says so.
async fn place(
    terminal: &Terminal,
    (position, before): (u64, Vec<u8>),
    marks: Option<u64>,
    sent: &mut u64,
    to: &ChannelWriteHalf<Msg>,
) -> Option<()> {
    *sent += before.len() as u64;
    if let Some(job) = marks {
        let at = Mark::At {
            job,
            terminal: terminal.number,
            sent: *sent,
            position,
        };
        mark(to, &at).await;
    }
    if !before.is_empty() {
        to.data_bytes(before).await.ok()?;
    }
    Some(())
}

/// Input to the terminal; comes back only when the channel is closed.
async fn feed(
    shared: &Shared,
    terminal: &Terminal,
    viewer: &Viewer<'_>,
    read_only: bool,
    from: &mut ChannelReadHalf,
) {
    loop {
        match from.wait().await {
            Some(ChannelMsg::Data { data }) if !read_only => {
                shared.touch();
                if let Err(error) = terminal.type_in(viewer.id, &data).await {
                    // Nobody reads it any more; the end is on its way.
                    debug!(%error, "input");
                }
            }
            Some(ChannelMsg::Close) | None => return,
            Some(_) => {}
        }
    }
}
