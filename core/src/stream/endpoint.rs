//! One end of a stream.

use bytes::{Buf, Bytes, BytesMut};

use super::error::StreamError;
use super::frame::{
    CloseReason, HEADER_BYTES, Header, INITIAL_CREDIT, KEY_BYTES, MAX_CLOSE_TEXT, MAX_DATA, PREFACE_BYTES,
    Preface, StreamId,
};
use super::queue::ByteQueue;

/// Consumed bytes after which the peer is told even if there is nothing else to send. Half of the
/// least credit, so that a peer with the smallest buffer never waits for good.
const ACK_STEP: u64 = INITIAL_CREDIT as u64 / 2;

/// Room that a read from the transport finds: two of the largest frames.
const RECEIVE_ROOM: usize = 2 * MAX_DATA;

/// Room below which a new receive buffer is taken.
const LEAST_ROOM: usize = 16 * 1024;

/// How much an endpoint holds. Never below [`INITIAL_CREDIT`].
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes kept for replay: sent or waiting, and not yet consumed by the peer.
    pub replay: u32,
    /// Bytes received and not yet read: the window that the peer is given.
    pub window: u32,
}

impl Default for Limits {
    /// 4 MiB each: 100 ms of delay at 320 Mbit/s; SSH's own channel windows are half of it.
    fn default() -> Self {
        Self {
            replay: 4 << 20,
            window: 4 << 20,
        }
    }
}

/// What [`Endpoint::read`] finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// The next bytes.
    Data(Bytes),
    /// Nothing now.
    Pending,
    /// The peer's end: nothing ever.
    End,
}

/// A piece to write to the transport: first the head, then the body.
#[derive(Clone, Debug)]
pub struct Transmit {
    head: [u8; PREFACE_BYTES],
    head_length: usize,
    /// The body; often empty.
    pub body: Bytes,
}

impl Transmit {
    fn new(head: &[u8], body: Bytes) -> Self {
        let mut padded = [0; PREFACE_BYTES];
        padded[..head.len()].copy_from_slice(head);
        Self {
            head: padded,
            head_length: head.len(),
            body,
        }
    }

    fn frame(header: Header, body: Bytes) -> Self {
        Self::new(&header.encode(), body)
    }

    /// The head.
    pub fn head(&self) -> &[u8] {
        &self.head[..self.head_length]
    }
}

#[derive(Debug)]
enum Link {
    /// No transport.
    Detached,
    /// A transport stands.
    Attached {
        /// The own preface was transmitted.
        greeted: bool,
        /// The peer's was received.
        heard: bool,
        /// Nothing is sent before the peer said where to go on from: not the first transport.
        wait: bool,
    },
}

#[derive(Debug)]
enum Input {
    /// At the start of a frame (or the preface).
    Head,
    /// Inside of data.
    Data { left: usize },
    /// Inside of a close's text.
    Close { reason: CloseReason, length: usize },
}

/// One end of a stream. See [the module](super).
#[derive(Debug)]
pub struct Endpoint {
    id: StreamId,
    key: [u8; KEY_BYTES],
    limits: Limits,
    link: Link,
    /// There was a transport.
    attached: bool,
    /// The peer's public key, once its preface was seen.
    met: Option<[u8; KEY_BYTES]>,
    input: Input,
    buffer: BytesMut,

    /// Written from above and not acknowledged: bytes `acked` to `written`.
    replay: ByteQueue,
    acked: u64,
    sent: u64,
    /// The most that was ever sent.
    sent_high: u64,
    written: u64,
    peer_window: u64,
    finished: bool,
    end_sent: bool,
    end_acked: bool,

    /// Received and not read: bytes `consumed` to `received`.
    inbox: ByteQueue,
    received: u64,
    consumed: u64,
    ack_sent: u64,
    peer_finished: bool,
    end_consumed: bool,
    end_ack_sent: bool,

    heartbeat_due: bool,
    closing: Option<(CloseReason, Bytes)>,
    closed: Option<StreamError>,
}

impl Endpoint {
    /// A stream without a transport. The public key `key` is told to the peer.
    pub fn new(id: StreamId, key: [u8; KEY_BYTES], limits: Limits) -> Self {
        let limits = Limits {
            replay: limits.replay.max(INITIAL_CREDIT),
            window: limits.window.max(INITIAL_CREDIT),
        };
        Self {
            id,
            key,
            limits,
            link: Link::Detached,
            attached: false,
            met: None,
            input: Input::Head,
            buffer: BytesMut::new(),
            replay: ByteQueue::default(),
            acked: 0,
            sent: 0,
            sent_high: 0,
            written: 0,
            peer_window: u64::from(INITIAL_CREDIT),
            finished: false,
            end_sent: false,
            end_acked: false,
            inbox: ByteQueue::default(),
            received: 0,
            consumed: 0,
            ack_sent: 0,
            peer_finished: false,
            end_consumed: false,
            end_ack_sent: false,
            heartbeat_due: false,
            closing: None,
            closed: None,
        }
    }

    /// The stream's id.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// The peer's public key; none before it was heard, and as long as it was not, there is nothing
    /// to come back to.
    pub fn peer_key(&self) -> Option<[u8; KEY_BYTES]> {
        self.met
    }

    /// Begins anew as another stream, with what was written. Only a peer that was never heard can
    /// be left so.
    pub fn begin_anew(&mut self, id: StreamId) {
        debug_assert!(self.met.is_none(), "the peer was heard");
        self.id = id;
        self.link = Link::Detached;
        self.attached = false;
    }

    /// What to write to a peer whose preface cannot be served, before hanging up.
    pub fn refuse(id: StreamId, reason: CloseReason, text: &str) -> Vec<u8> {
        let preface = Preface {
            id,
            resume: false,
            end_consumed: false,
            refused: true,
            window: INITIAL_CREDIT,
            consumed: 0,
            key: [0; KEY_BYTES],
        };
        let text = cut(text);
        let mut out = preface.encode().to_vec();
        out.extend_from_slice(
            &Header::Close {
                reason,
                length: text.len() as u32,
            }
            .encode(),
        );
        out.extend_from_slice(&text);
        out
    }

    /// A new transport stands: the own preface is transmitted first, the peer's is awaited.
    /// What was received and not read is dropped: the peer sends it again.
    pub fn attach(&mut self) {
        self.inbox = ByteQueue::default();
        self.received = self.consumed;
        self.peer_finished = self.end_consumed;
        self.sent = self.acked;
        self.end_sent = self.end_acked;
        self.input = Input::Head;
        self.buffer.clear();
        self.heartbeat_due = false;
        self.link = Link::Attached {
            greeted: false,
            heard: false,
            wait: self.attached,
        };
        self.attached = true;
    }

    /// The transport is gone. What was not transmitted, or only in part, is sent again on the
    /// next one; what was received can still be read.
    pub fn detach(&mut self) {
        self.link = Link::Detached;
    }

    // Sending.

    /// Bytes that [`write`](Self::write) takes now. 0: nothing may be read from above.
    pub fn writable(&self) -> usize {
        if self.finished || self.closed.is_some() {
            return 0;
        }
        (self.limits.replay as usize).saturating_sub(self.replay.len())
    }

    /// Takes bytes to send: all of `bytes`, which should be at most [`writable`](Self::writable).
    /// After [`finish`](Self::finish), none.
    pub fn write(&mut self, bytes: Bytes) {
        if self.finished {
            return;
        }
        self.written += bytes.len() as u64;
        self.replay.push(bytes);
    }

    /// Nothing more will be written.
    pub fn finish(&mut self) {
        self.finished = true;
    }

    /// Gives the stream up: the peer is told, and then nothing more is transmitted.
    pub fn close(&mut self, reason: CloseReason, text: &str) {
        self.finished = true;
        self.closing = Some((reason, cut(text)));
    }

    /// The peer is due a sign of life, by the next piece that is transmitted.
    pub fn beat(&mut self) {
        self.heartbeat_due = true;
    }

    /// The next piece to write to the transport, whole, before the one after it.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        let Link::Attached { greeted, heard, wait } = &mut self.link else {
            return None;
        };
        let silent = *wait && !*heard;
        if !*greeted {
            *greeted = true;
            self.ack_sent = self.consumed;
            self.end_ack_sent = self.end_consumed;
            return Some(Transmit::new(&self.preface().encode(), Bytes::new()));
        }
        if let Some((reason, text)) = self.closing.take() {
            self.link = Link::Detached;
            return Some(Transmit::frame(
                Header::Close {
                    reason,
                    length: text.len() as u32,
                },
                text,
            ));
        }
        if silent {
            return None;
        }
        if std::mem::take(&mut self.heartbeat_due) {
            return Some(Transmit::frame(Header::Heartbeat, Bytes::new()));
        }
        let room = (self.acked + self.peer_window).saturating_sub(self.sent);
        let data_due = self.sent < self.written && room > 0;
        if self.ack_due(data_due) {
            self.ack_sent = self.consumed;
            self.end_ack_sent = self.end_consumed;
            let header = Header::Ack {
                offset: self.consumed,
                end: self.end_consumed,
            };
            return Some(Transmit::frame(header, Bytes::new()));
        }
        if data_due {
            let most = MAX_DATA.min(usize::try_from(room).unwrap_or(MAX_DATA));
            let body = self.replay.piece_at((self.sent - self.acked) as usize, most);
            let header = Header::Data {
                offset: self.sent,
                length: body.len() as u32,
            };
            self.sent += body.len() as u64;
            self.sent_high = self.sent_high.max(self.sent);
            return Some(Transmit::frame(header, body));
        }
        if self.finished && !self.end_sent && self.sent == self.written {
            self.end_sent = true;
            return Some(Transmit::frame(
                Header::End { offset: self.written },
                Bytes::new(),
            ));
        }
        None
    }

    /// With data to send, whatever was consumed rides along; alone, only a step of it.
    fn ack_due(&self, data_due: bool) -> bool {
        let new = self.consumed - self.ack_sent;
        new >= ACK_STEP || (data_due && new > 0) || (self.end_consumed && !self.end_ack_sent)
    }

    fn preface(&self) -> Preface {
        Preface {
            id: self.id,
            resume: self.met.is_some(),
            end_consumed: self.end_consumed,
            refused: false,
            window: self.limits.window,
            consumed: self.consumed,
            key: self.key,
        }
    }

    // Receiving.

    /// Where to append what the transport gives; call [`handle_received`](Self::handle_received) then.
    pub fn receive_buffer(&mut self) -> &mut BytesMut {
        if self.buffer.capacity() - self.buffer.len() < LEAST_ROOM {
            self.buffer.reserve(RECEIVE_ROOM);
        }
        &mut self.buffer
    }

    /// Like appending to [`receive_buffer`](Self::receive_buffer) and [`handle_received`](Self::handle_received).
    pub fn handle_bytes(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        self.buffer.extend_from_slice(bytes);
        self.handle_received()
    }

    /// Takes in what was received. An error is final: the transport should be closed, after what
    /// [`poll_transmit`](Self::poll_transmit) still has to say.
    pub fn handle_received(&mut self) -> Result<(), StreamError> {
        if let Some(error) = &self.closed {
            return Err(error.clone());
        }
        let result = self.take_in();
        if let Err(error) = &result {
            if !matches!(error, StreamError::Closed { .. }) {
                self.close(CloseReason::Protocol, &error.to_string());
            }
            self.closed = Some(error.clone());
        }
        result
    }

    fn take_in(&mut self) -> Result<(), StreamError> {
        loop {
            match self.input {
                Input::Data { left } => {
                    if self.buffer.is_empty() {
                        return Ok(());
                    }
                    let piece = self.buffer.split_to(left.min(self.buffer.len())).freeze();
                    let left = left - piece.len();
                    self.input = if left == 0 {
                        Input::Head
                    } else {
                        Input::Data { left }
                    };
                    self.received += piece.len() as u64;
                    self.inbox.push(piece);
                }
                Input::Close { reason, length } => {
                    if self.buffer.len() < length {
                        return Ok(());
                    }
                    let text = self.buffer.split_to(length);
                    let text = String::from_utf8_lossy(&text).into_owned();
                    return Err(StreamError::Closed { reason, text });
                }
                Input::Head if matches!(self.link, Link::Attached { heard: true, .. }) => {
                    let Some(head) = self.buffer.first_chunk::<HEADER_BYTES>() else {
                        return Ok(());
                    };
                    let header = Header::decode(head)?;
                    self.buffer.advance(HEADER_BYTES);
                    self.take_frame(header)?;
                }
                Input::Head => {
                    let Some(head) = self.buffer.first_chunk::<PREFACE_BYTES>() else {
                        return Ok(());
                    };
                    let preface = Preface::decode(head)?;
                    self.buffer.advance(PREFACE_BYTES);
                    self.take_preface(preface)?;
                }
            }
        }
    }

    fn take_preface(&mut self, preface: Preface) -> Result<(), StreamError> {
        if preface.id != self.id {
            return Err(StreamError::WrongStream);
        }
        if !preface.refused {
            let (from, to) = (self.acked, self.sent_high);
            let wanted = preface.consumed;
            if !(from..=to).contains(&wanted) {
                return Err(StreamError::Offset { wanted, from, to });
            }
            self.replay.discard((wanted - from) as usize);
            self.acked = wanted;
            if preface.end_consumed && self.finished && wanted == self.written {
                self.end_sent = true;
                self.end_acked = true;
            }
            if matches!(self.link, Link::Attached { wait: true, .. }) {
                self.sent = wanted;
            }
            self.peer_window = u64::from(preface.window);
            self.met.get_or_insert(preface.key);
        }
        if let Link::Attached { heard, .. } = &mut self.link {
            *heard = true;
        }
        Ok(())
    }

    fn take_frame(&mut self, header: Header) -> Result<(), StreamError> {
        match header {
            Header::Data { offset, length } => {
                self.check_order(offset)?;
                let held = self.received - self.consumed;
                if held + u64::from(length) > u64::from(self.limits.window) {
                    return Err(StreamError::Window);
                }
                self.input = Input::Data {
                    left: length as usize,
                };
            }
            Header::Ack { offset, end } => {
                let (from, to) = (self.acked, self.sent);
                if !(from..=to).contains(&offset) || (end && !(self.end_sent && offset == self.written)) {
                    return Err(StreamError::Acknowledgement {
                        got: offset,
                        from,
                        to,
                    });
                }
                self.replay.discard((offset - from) as usize);
                self.acked = offset;
                self.end_acked |= end;
            }
            Header::End { offset } => {
                self.check_order(offset)?;
                self.peer_finished = true;
            }
            Header::Close { reason, length } => {
                self.input = Input::Close {
                    reason,
                    length: length as usize,
                };
            }
            Header::Heartbeat => {}
        }
        Ok(())
    }

    fn check_order(&self, offset: u64) -> Result<(), StreamError> {
        if self.peer_finished || offset != self.received {
            return Err(StreamError::Order {
                got: offset,
                expected: self.received,
            });
        }
        Ok(())
    }

    /// The next bytes for above. What is read is consumed: the peer may send as much again.
    pub fn read(&mut self) -> Read {
        if let Some(bytes) = self.inbox.pop() {
            self.consumed += bytes.len() as u64;
            return Read::Data(bytes);
        }
        if self.peer_finished {
            self.end_consumed = true;
            return Read::End;
        }
        Read::Pending
    }

    /// The peer has ended its direction, and all of it has arrived.
    pub fn has_peer_finished(&self) -> bool {
        self.peer_finished
    }

    /// All that was written was transmitted, with the end if there is one.
    pub fn is_flushed(&self) -> bool {
        self.sent == self.written && (self.end_sent || !self.finished)
    }

    /// Both directions ended, and each side knows it: the transport may be closed.
    pub fn is_finished(&self) -> bool {
        self.end_acked && self.end_consumed && self.end_ack_sent
    }
}

fn cut(text: &str) -> Bytes {
    let mut end = text.len().min(MAX_CLOSE_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    Bytes::copy_from_slice(&text.as_bytes()[..end])
}
