//! The way of `carrel proxy`'s bytes: SSH's pipes on one side, a framed stream to carrel-init on the
//! other, over one transport after another.

mod outgoing;
mod redial;
#[cfg(test)]
mod tests;

use std::io;
use std::pin::Pin;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use carrel_core::stream::{
    Beat, CloseReason, Endpoint, Limits, Pulse, Read, SILENCE_MS, StreamError, StreamId,
};
use carrel_proto::claim::StreamKey;
use carrel_proto::socket::Socket;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior};

use self::outgoing::{Outgoing, farewell, send};
pub use self::redial::{Dialler, Failure};
use self::redial::{Lost, redial};
use crate::clock;
use crate::signals::Signal;
use crate::terminal::{leave_line, say};

/// How much is read from SSH at a time: its largest packets, several of them.
const READ_BYTES: usize = 128 * 1024;
/// How long the far side is given for its last words after SSH has hung up, or after its own end.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// Between looks at the clock: a machine that wakes up notices within this.
const TICK: Duration = Duration::from_secs(1);
/// A connection that is away for longer, in milliseconds, is spoken of: nobody notices less.
const NOTICE_MS: u64 = 3_000;

/// How a stream ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The far side ended it.
    FarEnd,
    /// SSH on this side hung up.
    NearEnd,
    /// This program was told to end.
    Left(Signal),
    /// It broke, for this reason.
    Broken(String),
}

/// What a stream begins with.
pub struct Begin<D, I, O> {
    /// Its name.
    pub id: StreamId,
    /// Its first transport.
    pub socket: Socket,
    /// Makes others.
    pub dialler: D,
    /// SSH's end.
    pub input: I,
    /// SSH's other end.
    pub output: O,
    /// The session, for people.
    pub session: String,
}

/// Copies both ways until one side ends, or `leave` comes. Not safe to cancel but by giving up the stream.
pub async fn pump<D, I, O>(begin: Begin<D, I, O>, leave: impl Future<Output = Signal>) -> Ending
where
    D: Dialler,
    I: AsyncRead + Unpin,
    O: AsyncWrite + Unpin,
{
    let mut pump = Pump::new(begin);
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tokio::pin!(leave);
    loop {
        if let Some(ending) = pump.prepare() {
            return ending;
        }
        let event = pump.next(&mut ticks, leave.as_mut()).await;
        if let Some(ending) = pump.handle(event).await {
            return ending;
        }
    }
}

struct Pump<D, I, O> {
    endpoint: Endpoint,
    key: StreamKey,
    link: Link<D>,
    input: I,
    output: O,
    session: String,
    pending: Option<Outgoing>,
    for_ssh: Bytes,
    from_ssh: BytesMut,
    input_open: bool,
    /// How it ends, and until when last words are waited for.
    ending: Option<(Ending, Instant)>,
}

/// The transport of now, or the search for another.
enum Link<D> {
    Up(Transport<D>),
    Down(Outage<D>),
    /// Between the two.
    Changing,
}

struct Transport<D> {
    from: ReadHalf<Socket>,
    to: WriteHalf<Socket>,
    pulse: Pulse,
    /// Writes went well so far. After a failure there may still be something to be read, which says more.
    writes: bool,
    dialler: D,
}

type Redial<D> = Pin<Box<dyn Future<Output = (D, Result<Socket, String>)> + Send>>;

struct Outage<D> {
    since: u64,
    said: bool,
    why: watch::Receiver<String>,
    redial: Redial<D>,
}

/// What happens next.
enum Event<D> {
    Received(io::Result<usize>),
    Sent(io::Result<()>),
    Input(io::Result<usize>),
    Output(io::Result<usize>),
    Redialled(D, Result<Socket, String>),
    Tick,
    LastWordsOver,
    Leave(Signal),
}

impl<D> Transport<D> {
    fn new(socket: Socket, dialler: D) -> Self {
        let (from, to) = tokio::io::split(socket);
        Self {
            from,
            to,
            pulse: Pulse::begin(clock::now_ms()),
            writes: true,
            dialler,
        }
    }
}

impl<D, I, O> Pump<D, I, O>
where
    D: Dialler,
    I: AsyncRead + Unpin,
    O: AsyncWrite + Unpin,
{
    fn new(begin: Begin<D, I, O>) -> Self {
        let key = StreamKey::new(rand::random());
        let mut endpoint = Endpoint::new(begin.id, key.public(), Limits::default());
        endpoint.attach();
        Self {
            endpoint,
            key,
            link: Link::Up(Transport::new(begin.socket, begin.dialler)),
            input: begin.input,
            output: begin.output,
            session: begin.session,
            pending: None,
            for_ssh: Bytes::new(),
            from_ssh: BytesMut::new(),
            input_open: true,
            ending: None,
        }
    }

    /// Takes what the endpoint has to give; the end, if all is done.
    fn prepare(&mut self) -> Option<Ending> {
        loop {
            if self.pending.is_none() && matches!(&self.link, Link::Up(transport) if transport.writes) {
                self.pending = self.endpoint.poll_transmit().map(Outgoing::new);
            }
            if !self.for_ssh.is_empty() {
                break;
            }
            match self.endpoint.read() {
                // What was read may have to be acknowledged.
                Read::Data(bytes) => self.for_ssh = bytes,
                Read::End if self.ending.is_none() => {
                    self.endpoint.finish();
                    self.input_open = false;
                    self.ending = Some((Ending::FarEnd, Instant::now() + LAST_WORDS));
                }
                Read::End | Read::Pending => break,
            }
        }
        match &self.ending {
            Some((how, _)) if self.pending.is_none() && self.endpoint.is_finished() => Some(how.clone()),
            Some(_) | None => None,
        }
    }

    async fn next(
        &mut self,
        ticks: &mut Interval,
        leave: Pin<&mut impl Future<Output = Signal>>,
    ) -> Event<D> {
        let take = self.endpoint.writable().min(READ_BYTES);
        let last_words = self.ending.as_ref().map(|(_, until)| *until);
        let (from, to, redial) = match &mut self.link {
            Link::Up(transport) => (Some(&mut transport.from), Some(&mut transport.to), None),
            Link::Down(outage) => (None, None, Some(&mut outage.redial)),
            Link::Changing => (None, None, None),
        };
        // Every arm is safe to cancel: reads and writes of sockets and pipes happen whole or not at
        // all, what is half sent stays in `pending` and `for_ssh`, and the search for a transport
        // goes on where it stood.
        tokio::select! {
            read = receive(from, self.endpoint.receive_buffer()) => Event::Received(read),
            sent = transmit(&mut self.pending, to) => Event::Sent(sent),
            read = read_some(&mut self.input, &mut self.from_ssh, take), if self.input_open && take > 0 => {
                Event::Input(read)
            }
            written = self.output.write(&self.for_ssh), if !self.for_ssh.is_empty() => Event::Output(written),
            (dialler, result) = redialled(redial) => Event::Redialled(dialler, result),
            _ = ticks.tick() => Event::Tick,
            () = sleep_until(last_words) => Event::LastWordsOver,
            signal = leave => Event::Leave(signal),
        }
    }

    /// Acts on it; the end, if it is one.
    async fn handle(&mut self, event: Event<D>) -> Option<Ending> {
        match event {
            Event::Received(Ok(0)) => self.cut("the connection to the session ended".into()),
            Event::Received(Err(error)) => self.cut(format!("the connection to the session broke: {error}")),
            Event::Received(Ok(_)) => {
                if let Link::Up(transport) = &mut self.link {
                    transport.pulse.heard(clock::now_ms());
                }
                let error = self.endpoint.handle_received().err()?;
                self.say_goodbye().await;
                Some(self.end_or(Ending::Broken(describe(&error))))
            }
            Event::Sent(sent) => {
                if let Link::Up(transport) = &mut self.link {
                    transport.pulse.said(clock::now_ms());
                    transport.writes = sent.is_ok();
                }
                if sent.is_err() {
                    self.pending = None;
                }
                None
            }
            Event::Input(Ok(1..)) => {
                self.endpoint.write(self.from_ssh.split().freeze());
                None
            }
            Event::Input(Ok(0) | Err(_)) => {
                self.input_open = false;
                self.endpoint.finish();
                self.ending
                    .get_or_insert((Ending::NearEnd, Instant::now() + LAST_WORDS));
                None
            }
            Event::Output(Ok(count)) => {
                self.for_ssh.advance(count);
                None
            }
            // Nobody reads: SSH has gone.
            Event::Output(Err(_)) => Some(self.abandon(Ending::NearEnd).await),
            Event::Leave(signal) => Some(self.abandon(Ending::Left(signal)).await),
            Event::Redialled(dialler, Ok(socket)) => {
                self.come_back(dialler, socket);
                None
            }
            Event::Redialled(_, Err(why)) => Some(self.end_or(Ending::Broken(why))),
            Event::Tick => self.look(),
            Event::LastWordsOver => Some(self.end_or(Ending::NearEnd)),
        }
    }

    /// The ending that has begun, or else this one.
    fn end_or(&mut self, ending: Ending) -> Ending {
        self.ending.take().map_or(ending, |(how, _)| how)
    }

    /// The transport is lost: another is sought, unless the end has begun.
    fn cut(&mut self, why: String) -> Option<Ending> {
        // After an orderly end there is nothing left to lose.
        if let Some((how, _)) = self.ending.take() {
            return Some(how);
        }
        let Link::Up(transport) = std::mem::replace(&mut self.link, Link::Changing) else {
            return None;
        };
        self.pending = None;
        self.endpoint.detach();
        let secret = if let Some(peer) = self.endpoint.peer_key() {
            match self.key.dialled(self.endpoint.id(), &peer) {
                Some(secret) => Some(secret),
                None => return Some(Ending::Broken(why)),
            }
        } else {
            self.endpoint.begin_anew(StreamId(rand::random()));
            None
        };
        let (sender, reason) = watch::channel(why);
        let lost = Lost {
            id: self.endpoint.id(),
            secret,
            why: sender,
        };
        self.link = Link::Down(Outage {
            since: clock::now_ms(),
            said: false,
            why: reason,
            redial: Box::pin(redial(transport.dialler, lost)),
        });
        None
    }

    fn come_back(&mut self, dialler: D, socket: Socket) {
        if let Link::Down(outage) = &self.link
            && outage.said
        {
            let seconds = clock::now_ms().saturating_sub(outage.since) / 1000;
            leave_line();
            say(format_args!(
                "carrel: connected to {} again after {seconds} s",
                self.session
            ));
        }
        self.endpoint.attach();
        self.link = Link::Up(Transport::new(socket, dialler));
    }

    /// A look at the clock.
    fn look(&mut self) -> Option<Ending> {
        let now = clock::now_ms();
        match &mut self.link {
            Link::Up(transport) => match transport.pulse.look(now) {
                Beat::Rest(_) => None,
                Beat::Due => {
                    self.endpoint.beat();
                    None
                }
                Beat::Dead => self.cut(format!(
                    "nothing was heard of the session for {} s",
                    SILENCE_MS / 1000
                )),
            },
            Link::Down(outage) => {
                if !outage.said && now.saturating_sub(outage.since) >= NOTICE_MS {
                    outage.said = true;
                    leave_line();
                    say(format_args!(
                        "carrel: waiting for the connection to {}: {}\n\
                         carrel: the session and all in it go on; Enter ~ . gives up",
                        self.session,
                        outage.why.borrow().as_str()
                    ));
                }
                None
            }
            Link::Changing => None,
        }
    }

    /// Gives the stream up, so that the far side does not wait for this one.
    async fn abandon(&mut self, ending: Ending) -> Ending {
        self.endpoint
            .close(CloseReason::Abandoned, "the SSH client has gone");
        self.say_goodbye().await;
        ending
    }

    /// Sends what is pending and due, if it still can be.
    async fn say_goodbye(&mut self) {
        let Link::Up(transport) = &mut self.link else {
            return;
        };
        while let Some(last) = self
            .pending
            .take()
            .or_else(|| self.endpoint.poll_transmit().map(Outgoing::new))
        {
            farewell(last, &mut transport.to).await;
        }
    }
}

fn describe(error: &StreamError) -> String {
    match error {
        StreamError::Closed { text, .. } if !text.is_empty() => text.clone(),
        other => other.to_string(),
    }
}

async fn receive(from: Option<&mut ReadHalf<Socket>>, buffer: &mut BytesMut) -> io::Result<usize> {
    match from {
        Some(from) => from.read_buf(buffer).await,
        None => std::future::pending().await,
    }
}

async fn transmit(pending: &mut Option<Outgoing>, to: Option<&mut WriteHalf<Socket>>) -> io::Result<()> {
    match to {
        Some(to) if pending.is_some() => send(pending, to).await,
        Some(_) | None => std::future::pending().await,
    }
}

async fn redialled<D>(redial: Option<&mut Redial<D>>) -> (D, Result<Socket, String>) {
    match redial {
        Some(redial) => redial.await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

async fn read_some(
    input: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
    most: usize,
) -> io::Result<usize> {
    buffer.reserve(most);
    input.take(most as u64).read_buf(buffer).await
}
