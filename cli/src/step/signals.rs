//! Signals that a step hands on to its tasks.

use nix::sys::signal::Signal;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

use crate::error::{Context as _, Result};

/// What comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    /// For the tasks.
    Signal(Signal),
    /// The terminal has another size.
    Resized,
}

/// The signals, caught from the moment this is made.
#[derive(Debug)]
pub struct Signals {
    streams: Vec<(Signal, Stream)>,
    resized: Stream,
}

const CAUGHT: [Signal; 7] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
];

impl Signals {
    /// Begins to catch them.
    pub fn catch() -> Result<Self> {
        let catch = |kind| signal(kind).context("cannot catch signals");
        let streams = CAUGHT
            .into_iter()
            .map(|caught| Ok((caught, catch(SignalKind::from_raw(caught as i32))?)));
        Ok(Self {
            streams: streams.collect::<Result<_>>()?,
            resized: catch(SignalKind::window_change())?,
        })
    }

    /// The next one. Safe to cancel: none is lost.
    pub async fn next(&mut self) -> Came {
        std::future::poll_fn(|context| {
            for (caught, stream) in &mut self.streams {
                if stream.poll_recv(context).is_ready() {
                    return std::task::Poll::Ready(Came::Signal(*caught));
                }
            }
            self.resized.poll_recv(context).map(|_| Came::Resized)
        })
        .await
    }
}
