//! A queue of bytes that keeps large pieces as they came and gathers small ones.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// Pieces below this are gathered: a queue of single keystrokes must not cost a piece each.
const SMALL: usize = 4 * 1024;

/// A gathered piece grows no further than this.
const GATHERED: usize = 32 * 1024;

/// Bytes in order; see the module.
#[derive(Debug, Default)]
pub(super) struct ByteQueue {
    chunks: VecDeque<Bytes>,
    length: usize,
}

impl ByteQueue {
    pub(super) fn len(&self) -> usize {
        self.length
    }

    pub(super) fn push(&mut self, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        self.length += bytes.len();
        if bytes.len() < SMALL
            && let Some(last) = self.chunks.pop_back()
        {
            if last.len() + bytes.len() <= GATHERED {
                self.chunks.push_back(join(last, &bytes));
                return;
            }
            self.chunks.push_back(last);
        }
        // A small piece of a large read buffer would keep all of the buffer.
        let piece = if bytes.len() < SMALL {
            Bytes::copy_from_slice(&bytes)
        } else {
            bytes
        };
        self.chunks.push_back(piece);
    }

    /// The next piece, taken out.
    pub(super) fn pop(&mut self) -> Option<Bytes> {
        let chunk = self.chunks.pop_front()?;
        self.length -= chunk.len();
        Some(chunk)
    }

    /// Forgets the first `count` bytes, or all there are.
    pub(super) fn discard(&mut self, mut count: usize) {
        while count > 0 {
            let Some(front) = self.chunks.front_mut() else {
                return;
            };
            if front.len() > count {
                let rest = front.split_off(count);
                *front = rest;
                self.length -= count;
                return;
            }
            count -= front.len();
            self.length -= front.len();
            self.chunks.pop_front();
        }
    }

    /// At most `max` bytes that stand together from `offset` on; empty only at the end.
    pub(super) fn piece_at(&self, mut offset: usize, max: usize) -> Bytes {
        for chunk in &self.chunks {
            if offset < chunk.len() {
                let end = chunk.len().min(offset.saturating_add(max));
                return chunk.slice(offset..end);
            }
            offset -= chunk.len();
        }
        Bytes::new()
    }
}

/// Appends in place when nobody else holds the first piece, as is so once it was sent.
fn join(first: Bytes, second: &Bytes) -> Bytes {
    let mut joined = first.try_into_mut().unwrap_or_else(|shared| {
        let mut copy = BytesMut::with_capacity(GATHERED);
        copy.extend_from_slice(&shared);
        copy
    });
    joined.extend_from_slice(second);
    joined.freeze()
}
