//! What was shown of a terminal: from where its output goes on after a break, and what it left the
//! user's own terminal in.

use carrel_core::terminal::{Mark, Screen};

/// A line up to this long is shown again after a break, so that a prompt is whole.
const LONGEST_LINE: u64 = 4096;

/// The terminal that is shown, over all connections to it.
#[derive(Clone, Debug, Default)]
pub struct Follower {
    shown: Option<Shown>,
    screen: Screen,
    /// Where output was asked to go on.
    asked: Option<u64>,
    /// Bytes of this connection.
    received: u64,
    /// Bytes of it up to the last place between two characters or sequences.
    whole: u64,
    /// Bytes of it up to the last line's beginning.
    line: u64,
    /// Bytes of it, and the position in the terminal's output that follows them.
    places: Vec<(u64, u64)>,
    /// The last byte was a line's end.
    at_line: bool,
}

/// Names a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Whose it is.
    pub job: u64,
    /// Its number.
    pub terminal: u32,
}

impl Follower {
    /// A new connection, on which output is to go on at `seen`.
    pub fn connect(&mut self, seen: Option<u64>) {
        (self.received, self.whole, self.line) = (0, 0, 0);
        self.places.clear();
        self.asked = seen;
    }

    /// This connection shows it.
    pub fn is_attached(&self) -> bool {
        !self.places.is_empty()
    }

    /// The terminal, once a connection has shown it.
    pub fn shown(&self) -> Option<Shown> {
        self.shown
    }

    /// Takes in where output stands. Gives what the user's own terminal is to get before it.
    pub fn place(&mut self, mark: &Mark) -> Vec<u8> {
        let Mark::At {
            job,
            terminal,
            sent,
            position,
        } = *mark
        else {
            return Vec::new();
        };
        self.shown = Some(Shown { job, terminal });
        let first = self.places.is_empty();
        // Those before the last line's beginning are of no use any more.
        let used = self.places.iter().rposition(|(at, _)| *at <= self.line);
        self.places.drain(..used.unwrap_or(0));
        self.places.push((sent, position));
        match self.asked.filter(|_| first) {
            Some(asked) if asked == position && sent == 0 => self.screen.restore(),
            Some(_) => {
                // It goes on elsewhere, and begins anew.
                self.screen = Screen::default();
                Vec::new()
            }
            None => Vec::new(),
        }
    }

    /// Takes in output that is shown.
    pub fn output(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.screen.push(*byte);
            self.received += 1;
            self.at_line = *byte == b'\n';
            if self.screen.is_ground() {
                self.whole = self.received;
                if self.at_line {
                    self.line = self.received;
                }
            }
        }
    }

    /// Up to where the output has been seen, so that the next connection goes on there: at the
    /// beginning of the last line, or on a full screen, and in a long line, right behind what was
    /// shown. `None`: it has to begin anew.
    pub fn seen(&self) -> Option<u64> {
        let (sent, position) = self
            .places
            .iter()
            .rfind(|(sent, _)| *sent <= self.whole)
            .copied()
            // A connection that showed nothing leaves it where it was.
            .or_else(|| self.asked.map(|asked| (self.whole, asked)))?;
        let line = self.line.max(sent);
        let again = self.whole - line <= LONGEST_LINE && !self.screen.is_alternate();
        Some(position + if again { line } else { self.whole } - sent)
    }

    /// What puts the user's own terminal in order after a break: its modes, and a line's beginning.
    pub fn leave(&self) -> Vec<u8> {
        let mut out = self.screen.undo();
        if self.received > 0 && !self.at_line {
            out.extend_from_slice(b"\r\n");
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(sent: u64, position: u64) -> Mark {
        Mark::At {
            job: 17,
            terminal: 3,
            sent,
            position,
        }
    }

    #[test]
    fn output_goes_on_at_the_last_line() {
        let mut follower = Follower::default();
        follower.connect(None);
        assert!(!follower.is_attached());
        assert_eq!(follower.seen(), None);
        // A replay from the middle: five bytes of modes come first.
        follower.place(&at(5, 1000));
        assert!(follower.is_attached());
        assert_eq!(follower.seen(), None, "the modes are not there yet");
        follower.output(b"\x1b[?1h");
        assert_eq!(follower.seen(), Some(1000));
        follower.output(b"one\r\n$ ma");
        assert_eq!(follower.seen(), Some(1005), "the prompt is shown again");
        follower.output(b"ke\r\n\x1b[3");
        assert_eq!(follower.seen(), Some(1013), "no half sequence");
        assert_eq!(follower.shown(), Some(Shown { job: 17, terminal: 3 }));
    }

    #[test]
    fn a_connection_that_shows_nothing_changes_nothing() {
        let mut follower = Follower::default();
        follower.connect(None);
        follower.place(&at(0, 0));
        follower.output(b"one\r\n");
        for _ in 0..2 {
            let seen = follower.seen();
            assert_eq!(seen, Some(5));
            follower.connect(seen);
        }
        follower.place(&at(0, 5));
        assert_eq!(follower.seen(), Some(5));
    }

    #[test]
    fn what_was_missed_is_not_counted() {
        let mut follower = Follower::default();
        follower.connect(None);
        follower.place(&at(0, 0));
        // The mark comes on another way, before the bytes that it is about.
        follower.place(&at(14, 5000));
        follower.output(b"one\r\ntwo\r");
        assert_eq!(follower.seen(), Some(5));
        follower.output(b"\nskip");
        assert_eq!(follower.seen(), Some(5000), "nothing of the line is left to show");
        follower.output(b"more");
        assert_eq!(follower.seen(), Some(5000));
        follower.output(b"\r\n");
        assert_eq!(follower.seen(), Some(5006));
    }

    /// vim is open when the connection breaks: one's own terminal is put in order, and back.
    #[test]
    fn modes_are_left_and_entered_again() {
        let mut follower = Follower::default();
        follower.connect(None);
        follower.place(&at(0, 0));
        let enter = b"$ vim\r\n\x1b[?1049h\x1b[?2004h";
        follower.output(enter);
        let left = follower.leave();
        assert_eq!(left, b"\x1b[r\x1b[?1049l\x1b[?2004l\x1b[m\x1b(B\r\n");
        let seen = follower.seen();
        assert_eq!(seen, Some(enter.len() as u64), "a full screen is drawn anew");
        follower.connect(seen);
        let position = seen.unwrap();
        assert_eq!(follower.place(&at(0, position)), b"\x1b[?1049h\x1b[?2004h");
        // Had the server that output no more, it would begin anew.
        follower.connect(seen);
        assert_eq!(follower.place(&at(7, 9000)), b"");
    }

    #[test]
    fn a_long_line_is_not_shown_again() {
        let mut follower = Follower::default();
        follower.connect(None);
        follower.place(&at(0, 0));
        follower.output(&[b'x'; 5000]);
        assert_eq!(follower.seen(), Some(5000));
    }
}
