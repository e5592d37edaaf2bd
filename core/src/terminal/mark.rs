//! What a server says of a terminal besides its bytes.

use std::fmt;

/// Begins a mark: a character that no message for people holds (record separator, as in RFC 7464).
const BEGIN: u8 = 0x1e;
/// Ends it.
const END: u8 = b'\n';
/// Longest mark: a refusal's text, and some.
const MAX: usize = 1024;

/// One line on a channel's stderr.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// After so many bytes of the channel's data, the terminal's output at this position follows.
    /// The first of a channel says that it is attached.
    At {
        /// Which job's.
        job: u64,
        /// Which terminal of it.
        terminal: u32,
        /// Bytes of data before this, counted from the channel's first.
        sent: u64,
        /// Position in the terminal's output.
        position: u64,
    },
    /// Its command has ended.
    Exited {
        /// Exit status, if no signal ended it.
        status: u32,
        /// Number of the signal that did; 0: none.
        signal: i32,
    },
    /// Nothing was attached: why.
    Refused(String),
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\u{1e}")?;
        match self {
            Self::At {
                job,
                terminal,
                sent,
                position,
            } => write!(f, "at {job} {terminal} {sent} {position}")?,
            Self::Exited { status, signal } => write!(f, "exited {status} {signal}")?,
            Self::Refused(text) => {
                let text: String = text
                    .chars()
                    .map(|c| if c.is_control() { ' ' } else { c })
                    .take(MAX / 8)
                    .collect();
                write!(f, "refused {text}")?;
            }
        }
        f.write_str("\n")
    }
}

impl Mark {
    fn parse(line: &[u8]) -> Option<Self> {
        let line = std::str::from_utf8(line).ok()?;
        let (word, rest) = line.split_once(' ')?;
        let mut words = rest.split(' ');
        Some(match word {
            "at" => Self::At {
                job: words.next()?.parse().ok()?,
                terminal: words.next()?.parse().ok()?,
                sent: words.next()?.parse().ok()?,
                position: words.next()?.parse().ok()?,
            },
            "exited" => Self::Exited {
                status: words.next()?.parse().ok()?,
                signal: words.next()?.parse().ok()?,
            },
            "refused" => Self::Refused(rest.to_owned()),
            _ => return None,
        })
    }
}

/// Takes marks out of a stderr that others write to as well.
#[derive(Clone, Debug, Default)]
pub struct Marks {
    /// A mark's beginning, from its first byte on.
    begun: Vec<u8>,
}

impl Marks {
    /// Takes in what was read: gives the marks that are complete and what else there was.
    pub fn take(&mut self, read: &[u8]) -> (Vec<Mark>, Vec<u8>) {
        let (mut marks, mut rest) = (Vec::new(), Vec::new());
        for byte in read {
            match (*byte, self.begun.is_empty()) {
                (BEGIN, true) => self.begun.push(BEGIN),
                (_, true) => rest.push(*byte),
                (END, false) => {
                    if let Some(mark) = Mark::parse(&self.begun[1..]) {
                        marks.push(mark);
                    } else {
                        rest.append(&mut self.begun);
                        rest.push(END);
                    }
                    self.begun.clear();
                }
                (_, false) => {
                    self.begun.push(*byte);
                    if self.begun.len() > MAX {
                        rest.append(&mut self.begun);
                    }
                }
            }
        }
        (marks, rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_come_out_of_whatever_else_is_said() {
        let all = [
            Mark::At {
                job: 17,
                terminal: 3,
                sent: 12,
                position: 1 << 40,
            },
            Mark::Exited {
                status: 0,
                signal: 15,
            },
            Mark::Refused("there is no terminal 9;\nreally\u{1e}".into()),
        ];
        let text = format!("ssh: hm{}\nbye{}{}.", all[0], all[1], all[2]);
        let mut marks = Marks::default();
        let (mut found, mut rest) = (Vec::new(), Vec::new());
        // As pipes give it, a byte at a time.
        for byte in text.bytes() {
            let (more, other) = marks.take(&[byte]);
            found.extend(more);
            rest.extend(other);
        }
        assert_eq!(rest, b"ssh: hm\nbye.");
        assert_eq!(found[..2], all[..2]);
        assert_eq!(found[2], Mark::Refused("there is no terminal 9; really ".into()));
    }

    #[test]
    fn what_only_looks_like_a_mark_is_passed_on() {
        let mut marks = Marks::default();
        assert_eq!(marks.take(b"\x1eat 1\n"), (vec![], b"\x1eat 1\n".to_vec()));
        assert_eq!(marks.take(b"\x1ehello\n"), (vec![], b"\x1ehello\n".to_vec()));
        let long = [&[BEGIN][..], &[b'x'; 3 * MAX]].concat();
        let (found, rest) = marks.take(&long);
        assert_eq!((found, rest.len()), (vec![], long.len()));
    }
}
