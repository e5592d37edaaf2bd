//! Messages of the step's wire in bytes: a length, then the message (`carrel/v1/step.proto`).

use std::io;

use bytes::{Buf as _, BytesMut};
use prost::Message;

/// Longest message: a step's environment and command, or a piece of output.
const MAX_FRAME: usize = 16 << 20;
/// Bytes of the length.
const LENGTH: usize = 4;

/// A message with its length before it.
pub fn encode(message: &impl Message) -> Vec<u8> {
    let length = message.encoded_len();
    let mut frame = Vec::with_capacity(LENGTH + length);
    frame.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    frame.extend(message.encode_to_vec());
    frame
}

/// Takes the next whole message from what was read; none: more has to be read.
///
/// # Errors
/// What was read is no such message.
pub fn decode<M: Message + Default>(read: &mut BytesMut) -> io::Result<Option<M>> {
    let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let Some(length) = read.first_chunk::<LENGTH>() else {
        return Ok(None);
    };
    let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    if length > MAX_FRAME {
        return Err(wrong(format!("a message of {length} bytes")));
    }
    if read.len() < LENGTH + length {
        read.reserve(LENGTH + length - read.len());
        return Ok(None);
    }
    read.advance(LENGTH);
    let frame = read.split_to(length).freeze();
    M::decode(frame)
        .map(Some)
        .map_err(|error| wrong(error.to_string()))
}

#[cfg(test)]
mod tests {
    use carrel_proto::v1;

    use super::*;

    #[test]
    fn messages_arrive_in_whatever_pieces() {
        let message = |rank| v1::StepExited {
            rank,
            failure: "x".repeat(300),
            ..Default::default()
        };
        let bytes = [encode(&message(1)), encode(&message(2))].concat();
        for piece in [1, 7, 400, bytes.len()] {
            let (mut read, mut got) = (BytesMut::new(), Vec::new());
            for part in bytes.chunks(piece) {
                read.extend_from_slice(part);
                while let Some(message) = decode::<v1::StepExited>(&mut read).expect("well formed") {
                    got.push(message.rank);
                }
            }
            assert_eq!(got, [1, 2]);
        }
        let mut endless = BytesMut::from(&b"\xff\xff\xff\xffxx"[..]);
        assert!(decode::<v1::StepExited>(&mut endless).is_err());
    }
}
