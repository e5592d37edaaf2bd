//! The way of `carrel proxy`'s bytes: stdin and stdout on one side, a framed stream to
//! carrel-init on the other.

use std::io;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use carrel_core::stream::{CloseReason, Endpoint, Limits, Read, StreamError, StreamId, Transmit};
use carrel_proto::socket::Socket;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// How much is read from SSH at a time: its largest packets, several of them.
const READ_BYTES: usize = 128 * 1024;
/// How long the far side is given for its last words after SSH has hung up, or after its own end.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// How a stream ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The far side ended it.
    FarEnd,
    /// SSH on this side hung up.
    NearEnd,
    /// It broke, for this reason.
    Broken(String),
}

/// Copies both ways until one side ends.
///
/// `input` and `output` are SSH's ends. Not safe to cancel but by giving up the stream.
pub async fn pump(
    socket: Socket,
    mut input: impl AsyncRead + Unpin,
    mut output: impl AsyncWrite + Unpin,
) -> Ending {
    let (mut from_far, mut to_far) = tokio::io::split(socket);
    let mut endpoint = Endpoint::new(StreamId(rand::random()), Limits::default());
    endpoint.attach();
    let mut pending: Option<Outgoing> = None;
    let mut for_ssh = Bytes::new();
    let mut from_ssh = BytesMut::new();
    let mut input_open = true;
    let mut writes = true;
    let mut ending: Option<(Ending, tokio::time::Instant)> = None;
    loop {
        if pending.is_none() && writes {
            pending = endpoint.poll_transmit().map(Outgoing::new);
        }
        if for_ssh.is_empty() {
            match endpoint.read() {
                Read::Data(bytes) => {
                    for_ssh = bytes;
                    // What was read may have to be acknowledged.
                    continue;
                }
                Read::Pending => {}
                Read::End if ending.is_none() => {
                    endpoint.finish();
                    input_open = false;
                    ending = Some((Ending::FarEnd, tokio::time::Instant::now() + LAST_WORDS));
                    continue;
                }
                Read::End => {}
            }
        }
        if let Some((how, _)) = &ending
            && pending.is_none()
            && endpoint.is_finished()
        {
            return how.clone();
        }
        let take = endpoint.writable().min(READ_BYTES);
        let last_words = ending.as_ref().map(|(_, until)| *until);
        // Every arm is safe to cancel: reads and writes of sockets and pipes happen whole or not
        // at all, and what is half sent stays in `pending` and `for_ssh`.
        tokio::select! {
            read = from_far.read_buf(endpoint.receive_buffer()) => {
                let result = match read {
                    Ok(0) => Err("the connection to the session ended".to_owned()),
                    Ok(_) => endpoint.handle_received().map_err(|error| describe(&error)),
                    Err(error) => Err(format!("the connection to the session broke: {error}")),
                };
                if let Err(why) = result {
                    // After an orderly end there is nothing left to lose.
                    let how = match ending {
                        Some((how @ (Ending::FarEnd | Ending::NearEnd), _)) => how,
                        Some((Ending::Broken(_), _)) | None => Ending::Broken(why),
                    };
                    if let Some(rest) = pending.take().or_else(|| endpoint.poll_transmit().map(Outgoing::new)) {
                        farewell(rest, &mut to_far).await;
                    }
                    return how;
                }
            }
            sent = send(&mut pending, &mut to_far), if pending.is_some() => {
                // A failing write says less than what is still to be read, which may be the reason.
                if sent.is_err() {
                    pending = None;
                    writes = false;
                    let until = tokio::time::Instant::now() + LAST_WORDS;
                    ending.get_or_insert((Ending::Broken("the connection to the session broke".into()), until));
                }
            }
            read = read_some(&mut input, &mut from_ssh, take), if input_open && take > 0 => {
                if let Ok(1..) = read {
                    endpoint.write(from_ssh.split().freeze());
                } else {
                    input_open = false;
                    endpoint.finish();
                    ending.get_or_insert((Ending::NearEnd, tokio::time::Instant::now() + LAST_WORDS));
                }
            }
            written = output.write(&for_ssh), if !for_ssh.is_empty() => {
                if let Ok(count) = written {
                    for_ssh.advance(count);
                } else {
                    // Nobody reads: SSH has gone.
                    endpoint.close(CloseReason::Abandoned, "the SSH client has gone");
                    if let Some(rest) = pending.take() {
                        farewell(rest, &mut to_far).await;
                    }
                    if let Some(close) = endpoint.poll_transmit() {
                        farewell(Outgoing::new(close), &mut to_far).await;
                    }
                    return Ending::NearEnd;
                }
            }
            () = sleep_until(last_words) => {
                return ending.map_or(Ending::NearEnd, |(how, _)| how);
            }
        }
    }
}

async fn sleep_until(time: Option<tokio::time::Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

fn describe(error: &StreamError) -> String {
    match error {
        StreamError::Closed { text, .. } if !text.is_empty() => text.clone(),
        other => other.to_string(),
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

/// A piece on its way to the far side.
struct Outgoing {
    head: Bytes,
    body: Bytes,
}

impl Outgoing {
    /// A body of up to this is copied behind its head, so that a keystroke is one packet.
    const SMALL: usize = 4096;

    fn new(transmit: Transmit) -> Self {
        if transmit.body.len() <= Self::SMALL {
            let mut whole = BytesMut::with_capacity(transmit.head().len() + transmit.body.len());
            whole.extend_from_slice(transmit.head());
            whole.extend_from_slice(&transmit.body);
            return Self {
                head: whole.freeze(),
                body: Bytes::new(),
            };
        }
        Self {
            head: Bytes::copy_from_slice(transmit.head()),
            body: transmit.body,
        }
    }
}

/// Writes some of what is pending, and clears it at its end. Safe to cancel.
async fn send(pending: &mut Option<Outgoing>, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    let Some(outgoing) = pending else { return Ok(()) };
    let part = if outgoing.head.is_empty() {
        &mut outgoing.body
    } else {
        &mut outgoing.head
    };
    let written = to.write(part).await?;
    if written == 0 {
        return Err(io::ErrorKind::WriteZero.into());
    }
    part.advance(written);
    if outgoing.head.is_empty() && outgoing.body.is_empty() {
        *pending = None;
    }
    Ok(())
}

/// Writes a last piece, if the far side still takes it; nothing depends on it.
async fn farewell(last: Outgoing, to: &mut (impl AsyncWrite + Unpin)) {
    let mut last = Some(last);
    let all = async { while last.is_some() && send(&mut last, to).await.is_ok() {} };
    tokio::time::timeout(Duration::from_millis(200), all).await.ok();
}

#[cfg(test)]
mod tests {
    use super::*;
    use carrel_core::stream::{PREFACE_BYTES, Preface};
    use tokio::net::UnixStream;

    /// The far side of a stream, as carrel-init is: echoes, and ends when told.
    async fn echo(mut socket: UnixStream, end_after: usize) -> io::Result<usize> {
        let mut preface = [0; PREFACE_BYTES];
        socket.read_exact(&mut preface).await?;
        let mut endpoint = Endpoint::new(
            Preface::decode(&preface).expect("a preface").id,
            Limits::default(),
        );
        endpoint.attach();
        endpoint.handle_bytes(&preface).expect("a preface");
        let mut echoed = 0;
        loop {
            loop {
                match endpoint.read() {
                    Read::Data(bytes) => {
                        echoed += bytes.len();
                        endpoint.write(bytes);
                        if echoed >= end_after {
                            endpoint.finish();
                        }
                    }
                    Read::Pending => break,
                    Read::End => {
                        endpoint.finish();
                        break;
                    }
                }
            }
            while let Some(transmit) = endpoint.poll_transmit() {
                socket.write_all(transmit.head()).await?;
                socket.write_all(&transmit.body).await?;
            }
            if endpoint.is_finished() {
                return Ok(echoed);
            }
            if socket.read_buf(endpoint.receive_buffer()).await? == 0 {
                return Ok(echoed);
            }
            endpoint.handle_received().expect("frames");
        }
    }

    #[tokio::test]
    async fn bytes_come_back_and_the_near_end_ends_it() {
        const LENGTH: usize = 3_000_001;
        let (near, far) = UnixStream::pair().unwrap();
        let far = tokio::spawn(echo(far, usize::MAX));
        let (mut ssh, ours) = tokio::io::duplex(64 * 1024);
        let (input, output) = tokio::io::split(ours);
        let pump = tokio::spawn(pump(near.into(), input, output));
        let sent: Vec<u8> = (0..LENGTH).map(|i| (i % 251) as u8).collect();
        let (mut from, mut to) = tokio::io::split(&mut ssh);
        let writer = async {
            to.write_all(&sent).await.unwrap();
        };
        let mut got = vec![0; LENGTH];
        let reader = async {
            from.read_exact(&mut got).await.unwrap();
        };
        tokio::join!(writer, reader);
        assert!(got == sent, "the bytes differ");
        drop(ssh);
        assert_eq!(pump.await.unwrap(), Ending::NearEnd);
        assert_eq!(far.await.unwrap().unwrap(), LENGTH);
    }

    #[tokio::test]
    async fn the_far_end_s_last_bytes_arrive_before_its_end() {
        let (near, far) = UnixStream::pair().unwrap();
        tokio::spawn(echo(far, 5));
        let mut output = Vec::new();
        // SSH says five bytes and waits.
        let input = tokio_test_reader(b"hello");
        assert_eq!(pump(near.into(), input, &mut output).await, Ending::FarEnd);
        assert_eq!(output, b"hello");
    }

    #[tokio::test]
    async fn a_cut_connection_is_said_to_be_one() {
        let (near, far) = UnixStream::pair().unwrap();
        drop(far);
        let ending = pump(near.into(), tokio_test_reader(b""), Vec::new()).await;
        assert!(matches!(ending, Ending::Broken(_)), "{ending:?}");
    }

    #[tokio::test]
    async fn a_refusal_s_text_reaches_the_user() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let far_side = async move {
            let mut preface = [0; PREFACE_BYTES];
            far.read_exact(&mut preface).await.unwrap();
            let id = Preface::decode(&preface).unwrap().id;
            far.write_all(&Endpoint::refuse(
                id,
                CloseReason::Refused,
                "too many connections",
            ))
            .await
            .unwrap();
        };
        let (ending, ()) = tokio::join!(pump(near.into(), tokio_test_reader(b""), Vec::new()), far_side);
        assert_eq!(ending, Ending::Broken("too many connections".into()));
    }

    /// A reader that gives these bytes and then nothing, without an end.
    fn tokio_test_reader(bytes: &'static [u8]) -> impl AsyncRead + Unpin {
        let (reader, mut writer) = tokio::io::duplex(1024);
        tokio::spawn(async move {
            writer.write_all(bytes).await.unwrap();
            std::future::pending::<()>().await;
        });
        reader
    }
}
