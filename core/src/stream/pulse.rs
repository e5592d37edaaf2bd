//! Whether a transport still lives: a network that changed, or a machine that slept, says nothing.

/// A side that has sent nothing for so long, in milliseconds, sends a heartbeat. A frame of 16 bytes
/// every so often costs nobody anything, and keeps a NAT's entry.
pub const HEARTBEAT_MS: u64 = 5_000;

/// A transport over which nothing came for so long, in milliseconds, is dead: two heartbeats may be
/// late, and a retransmission fits in.
pub const SILENCE_MS: u64 = 15_000;

/// When a transport was last heard, and last used. Times are milliseconds of a clock that runs on
/// while the machine is suspended: after hours of sleep the silence is as long as it was.
#[derive(Clone, Copy, Debug)]
pub struct Pulse {
    heard: u64,
    said: u64,
}

/// What [`Pulse::look`] finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beat {
    /// All is well; look again after so many milliseconds.
    Rest(u64),
    /// A heartbeat is due.
    Due,
    /// The transport is dead.
    Dead,
}

impl Pulse {
    /// Of a transport that stands since now.
    pub fn begin(now: u64) -> Self {
        Self {
            heard: now,
            said: now,
        }
    }

    /// Bytes came.
    pub fn heard(&mut self, now: u64) {
        self.heard = now;
    }

    /// Bytes went.
    pub fn said(&mut self, now: u64) {
        self.said = now;
    }

    /// What is to be done now.
    pub fn look(&self, now: u64) -> Beat {
        let silence = now.saturating_sub(self.heard);
        let idle = now.saturating_sub(self.said);
        if silence >= SILENCE_MS {
            Beat::Dead
        } else if idle >= HEARTBEAT_MS {
            Beat::Due
        } else {
            Beat::Rest((SILENCE_MS - silence).min(HEARTBEAT_MS - idle))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn silence_kills_and_idleness_asks_for_a_heartbeat() {
        let mut pulse = Pulse::begin(1_000);
        assert_eq!(pulse.look(1_000), Beat::Rest(HEARTBEAT_MS));
        assert_eq!(pulse.look(1_000 + HEARTBEAT_MS), Beat::Due);
        pulse.said(1_000 + HEARTBEAT_MS);
        assert_eq!(pulse.look(1_000 + HEARTBEAT_MS), Beat::Rest(HEARTBEAT_MS));
        pulse.said(SILENCE_MS);
        assert_eq!(pulse.look(1_000 + SILENCE_MS), Beat::Dead);
        pulse.heard(1_000 + SILENCE_MS);
        assert_ne!(pulse.look(1_000 + SILENCE_MS), Beat::Dead);
        // A clock that does not jump back by itself is asked for; one that does harms nobody.
        assert_eq!(pulse.look(0), Beat::Rest(HEARTBEAT_MS));
    }

    proptest! {
        /// Whoever looks again when told is never late, and two that live never think each other dead.
        #[test]
        fn two_that_look_when_told_live_on(delays in prop::collection::vec(0..4_000_u64, 1..200)) {
            let mut ends = [Pulse::begin(0), Pulse::begin(0)];
            let mut looks = [0_u64; 2];
            let mut arrivals: Vec<(u64, usize)> = Vec::new();
            let mut delays = delays.into_iter().cycle();
            let mut now = 0;
            while now < 100_000 {
                let arrival = arrivals.iter().map(|(at, _)| *at).min().unwrap_or(u64::MAX);
                now = arrival.min(looks[0]).min(looks[1]);
                let here: Vec<_> = arrivals.iter().filter(|(at, _)| *at == now).map(|(_, to)| *to).collect();
                arrivals.retain(|(at, _)| *at != now);
                for to in here {
                    ends[to].heard(now);
                }
                for side in 0..2 {
                    if looks[side] > now {
                        continue;
                    }
                    match ends[side].look(now) {
                        Beat::Rest(pause) => looks[side] = now + pause.max(1),
                        Beat::Due => {
                            ends[side].said(now);
                            arrivals.push((now + delays.next().unwrap_or(0), 1 - side));
                        }
                        Beat::Dead => prop_assert!(false, "side {side} gave up at {now}"),
                    }
                }
            }
        }
    }
}
