//! What the stream protects: no byte is lost or repeated, however a transport is cut; a slow
//! reader stops its peer and only it; hostile bytes are an error and never a panic.

use bytes::Bytes;
use proptest::prelude::*;

use super::frame::Header;
use super::*;

const ID: StreamId = StreamId([9; 16]);
const SMALL: Limits = Limits {
    replay: INITIAL_CREDIT,
    window: INITIAL_CREDIT,
};

/// Two ends and the bytes under way between them.
struct Pair {
    ends: [Endpoint; 2],
    wires: [Vec<u8>; 2],
    written: [Vec<u8>; 2],
    read: [Vec<u8>; 2],
    ended: [bool; 2],
}

impl Pair {
    fn new(limits: Limits) -> Self {
        Self {
            ends: [
                Endpoint::new(ID, [1; KEY_BYTES], limits),
                Endpoint::new(ID, [2; KEY_BYTES], limits),
            ],
            wires: [Vec::new(), Vec::new()],
            written: [Vec::new(), Vec::new()],
            read: [Vec::new(), Vec::new()],
            ended: [false, false],
        }
    }

    fn attach(&mut self) {
        for side in 0..2 {
            self.wires[side].clear();
            self.ends[side].attach();
        }
    }

    fn write(&mut self, side: usize, data: &[u8]) {
        let data = &data[..data.len().min(self.ends[side].writable())];
        self.ends[side].write(Bytes::copy_from_slice(data));
        self.written[side].extend_from_slice(data);
    }

    fn transmit(&mut self, side: usize) {
        while let Some(transmit) = self.ends[side].poll_transmit() {
            self.wires[side].extend_from_slice(transmit.head());
            self.wires[side].extend_from_slice(&transmit.body);
        }
    }

    /// Moves at most `count` bytes of what `side` transmitted to the other.
    fn deliver(&mut self, side: usize, count: usize) {
        self.transmit(side);
        let count = count.min(self.wires[side].len());
        let bytes: Vec<u8> = self.wires[side].drain(..count).collect();
        self.ends[1 - side].handle_bytes(&bytes).unwrap();
    }

    fn take(&mut self, side: usize) {
        loop {
            match self.ends[side].read() {
                Read::Data(bytes) => self.read[side].extend_from_slice(&bytes),
                Read::Pending => return,
                Read::End => {
                    self.ended[side] = true;
                    return;
                }
            }
        }
    }

    fn settle(&mut self) {
        loop {
            for side in 0..2 {
                self.deliver(side, usize::MAX);
            }
            for side in 0..2 {
                self.take(side);
                self.transmit(side);
            }
            if self.wires.iter().all(Vec::is_empty) {
                return;
            }
        }
    }

    fn check_complete(&self) {
        assert_eq!(self.read[1], self.written[0], "first direction");
        assert_eq!(self.read[0], self.written[1], "second direction");
    }
}

fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 31 + seed * 7 + i / 251) as u8).collect()
}

#[test]
fn bytes_and_ends_arrive_and_both_sides_know() {
    let mut pair = Pair::new(Limits::default());
    pair.attach();
    pair.write(0, &pattern(1_000_000, 1));
    pair.write(1, b"hello");
    pair.ends[0].finish();
    pair.settle();
    assert!(pair.ended[1] && !pair.ended[0]);
    pair.write(1, b", and goodbye");
    pair.ends[1].finish();
    pair.settle();
    pair.check_complete();
    assert!(pair.ends.iter().all(Endpoint::is_finished));
}

#[test]
fn a_cut_at_any_byte_loses_and_repeats_nothing() {
    let whole = {
        let mut pair = Pair::new(SMALL);
        pair.attach();
        pair.write(0, &pattern(300, 1));
        pair.ends[0].finish();
        pair.transmit(0);
        pair.wires[0].len()
    };
    for first in 0..=whole {
        for second in [0, 1, PREFACE_BYTES, PREFACE_BYTES + 20, whole] {
            let mut pair = Pair::new(SMALL);
            pair.attach();
            pair.write(0, &pattern(300, 1));
            pair.write(1, &pattern(200, 2));
            pair.ends[0].finish();
            pair.deliver(0, first);
            pair.deliver(1, second);
            pair.take(first % 2);
            pair.ends[0].detach();
            pair.ends[1].detach();
            pair.attach();
            // A second cut, while the streams find each other again.
            pair.deliver(0, second);
            pair.deliver(1, first);
            pair.attach();
            pair.settle();
            pair.ends[1].finish();
            pair.settle();
            pair.check_complete();
            assert!(
                pair.ends.iter().all(Endpoint::is_finished),
                "cut at {first} and {second}"
            );
        }
    }
}

#[test]
fn a_reader_that_stalls_stops_its_peer_but_not_the_other_direction() {
    let mut pair = Pair::new(SMALL);
    pair.attach();
    let window = INITIAL_CREDIT as usize;
    for _ in 0..4 {
        pair.write(0, &pattern(window, 3));
        pair.deliver(0, usize::MAX);
    }
    assert_eq!(pair.ends[0].writable(), 0);
    assert_eq!(pair.written[0].len(), window);
    // The stalled side sends far more than a window: its peer's acknowledgements get through.
    for _ in 0..8 {
        pair.write(1, &pattern(window / 2, 4));
        pair.deliver(1, usize::MAX);
        pair.take(0);
        pair.deliver(0, usize::MAX);
    }
    assert_eq!(pair.read[0].len(), 4 * window);
    pair.settle();
    assert_eq!(pair.ends[0].writable(), window);
    pair.check_complete();
}

#[test]
fn single_keystrokes_are_held_cheaply_and_in_order() {
    let mut pair = Pair::new(SMALL);
    pair.attach();
    for i in 0..20_000_usize {
        pair.write(0, &[i as u8]);
        if i % 3 == 0 {
            pair.transmit(0);
        }
    }
    pair.settle();
    pair.check_complete();
}

#[test]
fn a_refusal_is_read_at_any_point_of_the_stream() {
    let mut pair = Pair::new(SMALL);
    pair.attach();
    pair.write(0, b"abc");
    pair.settle();
    pair.ends[0].attach();
    pair.transmit(0);
    let answer = Endpoint::refuse(ID, CloseReason::UnknownStream, "restarted");
    let error = pair.ends[0].handle_bytes(&answer).unwrap_err();
    assert_eq!(
        error,
        StreamError::Closed {
            reason: CloseReason::UnknownStream,
            text: "restarted".into()
        }
    );
}

#[test]
fn a_heartbeat_is_one_frame_and_changes_nothing() {
    let mut pair = Pair::new(SMALL);
    pair.attach();
    pair.settle();
    pair.ends[0].beat();
    pair.transmit(0);
    assert_eq!(pair.wires[0], Header::Heartbeat.encode());
    pair.write(0, b"abc");
    pair.settle();
    pair.check_complete();
    // While it waits for where to go on from, a side keeps still.
    pair.attach();
    pair.ends[0].beat();
    pair.transmit(0);
    assert_eq!(pair.wires[0].len(), PREFACE_BYTES);
}

#[test]
fn who_never_heard_its_peer_begins_anew_with_all_that_was_written() {
    let mut pair = Pair::new(SMALL);
    pair.attach();
    pair.write(0, b"abc");
    pair.transmit(0);
    assert_eq!(pair.ends[0].peer_key(), None);
    let other = StreamId([8; 16]);
    pair.ends[0].begin_anew(other);
    pair.ends[1] = Endpoint::new(other, [2; KEY_BYTES], SMALL);
    pair.attach();
    pair.settle();
    pair.check_complete();
    assert_eq!(pair.ends[0].peer_key(), Some([2; KEY_BYTES]));
}

#[test]
fn the_peer_is_told_what_it_did_wrong() {
    let mut pair = Pair::new(SMALL);
    pair.attach();
    pair.settle();
    let bad = Header::Data { offset: 5, length: 1 }.encode();
    assert_eq!(
        pair.ends[0].handle_bytes(&bad),
        Err(StreamError::Order { got: 5, expected: 0 })
    );
    pair.transmit(0);
    let wire = std::mem::take(&mut pair.wires[0]);
    let error = pair.ends[1].handle_bytes(&wire).unwrap_err();
    assert!(
        matches!(
            error,
            StreamError::Closed {
                reason: CloseReason::Protocol,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn more_than_the_window_is_an_error() {
    let mut end = Endpoint::new(ID, [1; KEY_BYTES], SMALL);
    end.attach();
    let mut other = Endpoint::new(ID, [1; KEY_BYTES], SMALL);
    other.attach();
    let preface = other.poll_transmit().unwrap();
    end.handle_bytes(preface.head()).unwrap();
    let mut offset = 0;
    let result = (0..4).try_for_each(|_| {
        let head = Header::Data {
            offset,
            length: MAX_DATA as u32,
        }
        .encode();
        offset += MAX_DATA as u64;
        end.handle_bytes(&head)?;
        end.handle_bytes(&vec![0; MAX_DATA])
    });
    assert_eq!(result, Err(StreamError::Window));
}

#[derive(Clone, Debug)]
enum Step {
    Write(usize, usize),
    Deliver(usize, usize),
    Take(usize),
    Beat(usize),
    Cut,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..2_usize, 0..70_000_usize).prop_map(|(side, n)| Step::Write(side, n)),
        6 => (0..2_usize, prop_oneof![0..80_usize, 0..200_000_usize]).prop_map(|(side, n)| Step::Deliver(side, n)),
        3 => (0..2_usize).prop_map(Step::Take),
        1 => (0..2_usize).prop_map(Step::Beat),
        1 => Just(Step::Cut),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_the_bytes_are_the_same(steps in steps()) {
        let mut pair = Pair::new(SMALL);
        pair.attach();
        for (i, step) in steps.into_iter().enumerate() {
            match step {
                Step::Write(side, n) => pair.write(side, &pattern(n, i)),
                Step::Deliver(side, n) => pair.deliver(side, n),
                Step::Take(side) => pair.take(side),
                Step::Beat(side) => pair.ends[side].beat(),
                Step::Cut => pair.attach(),
            }
        }
        pair.ends[0].finish();
        pair.ends[1].finish();
        pair.settle();
        pair.check_complete();
        prop_assert!(pair.ends.iter().all(Endpoint::is_finished));
    }

    #[test]
    fn hostile_bytes_never_panic(
        greeted in any::<bool>(),
        frames in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(any::<u8>(), 0..64),
                (1..7_u8, any::<u8>(), 0..300_u32, 0..400_u64).prop_map(|(kind, flags, length, offset)| {
                    let mut frame = vec![kind, flags, 0, 0];
                    frame.extend_from_slice(&length.to_be_bytes());
                    frame.extend_from_slice(&offset.to_be_bytes());
                    frame.extend(std::iter::repeat_n(7, length as usize));
                    frame
                }),
            ],
            0..20,
        ),
    ) {
        let mut end = Endpoint::new(ID, [1; KEY_BYTES], SMALL);
        end.attach();
        end.write(Bytes::from(vec![1; 300]));
        while end.poll_transmit().is_some() {}
        if greeted {
            let mut other = Endpoint::new(ID, [1; KEY_BYTES], SMALL);
            other.attach();
            let preface = other.poll_transmit().expect("a preface is due");
            end.handle_bytes(preface.head()).expect("it is well-formed");
        }
        for frame in frames {
            if end.handle_bytes(&frame).is_err() {
                break;
            }
            let _ = end.read();
            while end.poll_transmit().is_some() {}
        }
    }
}
