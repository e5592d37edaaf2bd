//! A connection that can be cut from outside, whoever reads and writes it.

use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Wraps a connection; after the token is cancelled every operation fails.
pub(super) struct Cut<S> {
    inner: S,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    token: CancellationToken,
}

impl<S> Cut<S> {
    pub fn new(inner: S, token: CancellationToken) -> Self {
        Self {
            inner,
            cut: Box::pin(token.clone().cancelled_owned()),
            token,
        }
    }

    /// Fails when cut; else sees to it that a cut wakes the task.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        // Once finished, the future must not be polled again.
        if self.token.is_cancelled() || self.cut.as_mut().poll(cx).is_ready() {
            return Err(ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Cut<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Cut<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
