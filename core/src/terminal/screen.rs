//! What a terminal's output has done to the terminal: modes, and whether it may be cut here.

/// DEC private modes that outlive the program that set them, with what a terminal starts with
/// (xterm, "Control Sequences", DECSET). The order is the one in which they are set.
const MODES: [(u16, bool); 17] = [
    (47, false),   // alternate screen, of old
    (1047, false), // alternate screen
    (1049, false), // alternate screen with the cursor saved
    (1, false),    // cursor keys
    (7, true),     // wrapping
    (25, true),    // the cursor is shown
    (66, false),   // keypad
    (9, false),    // the mouse, of old
    (1000, false), // the mouse: clicks
    (1002, false), // drags
    (1003, false), // motion
    (1004, false), // focus
    (1005, false), // encodings of the mouse
    (1006, false),
    (1015, false),
    (1016, false),
    (2004, false), // bracketed paste
];
/// How many of [`MODES`], from the first, choose the alternate screen.
const ALTERNATES: u32 = 0b111;
/// The bit of the keypad's mode, which has sequences of its own.
const KEYPAD: u32 = 1 << 6;

const ESCAPE: u8 = 0x1b;
/// Ends any sequence, and shows nothing.
const CANCEL: u8 = 0x18;
const SUBSTITUTE: u8 = 0x1a;
const BELL: u8 = 0x07;

/// Where in a sequence the output stands (ECMA-48, 5.4; the parser is that of DEC's terminals).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Between characters and sequences.
    Ground,
    /// In a character of several bytes.
    Character,
    /// After ESC.
    Escape,
    /// After ESC and intermediate bytes.
    Intermediate,
    /// Right after CSI.
    Control,
    /// In the parameters of CSI ?.
    Private,
    /// In a CSI that is of no interest here.
    Other,
    /// In a string (OSC, DCS, SOS, PM, APC).
    Text,
    /// After ESC in a string.
    TextEscape,
}

impl State {
    const ALL: [Self; 9] = [
        Self::Ground,
        Self::Character,
        Self::Escape,
        Self::Intermediate,
        Self::Control,
        Self::Private,
        Self::Other,
        Self::Text,
        Self::TextEscape,
    ];
}

/// A terminal after some output, as far as it matters for beginning again elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Screen {
    state: State,
    /// The number being read; in a character, the bytes that it still lacks.
    number: u16,
    /// Modes named by the sequence being read.
    named: u32,
    /// Modes that are on, as bits in the order of [`MODES`].
    modes: u32,
}

impl Default for Screen {
    /// A terminal to which nothing was written.
    fn default() -> Self {
        Self {
            state: State::Ground,
            number: 0,
            named: 0,
            modes: initial(),
        }
    }
}

fn initial() -> u32 {
    let on = MODES.iter().enumerate().filter(|(_, (_, initial))| *initial);
    on.fold(0, |modes, (index, _)| modes | 1 << index)
}

impl Screen {
    /// Length of [`Screen::encode`].
    pub const BYTES: usize = 11;

    /// Takes in output.
    pub fn advance(&mut self, output: &[u8]) {
        for byte in output {
            self.push(*byte);
        }
    }

    /// Takes in one byte of output.
    pub fn push(&mut self, byte: u8) {
        match byte {
            CANCEL | SUBSTITUTE => self.state = State::Ground,
            ESCAPE if self.state == State::Text => self.state = State::TextEscape,
            ESCAPE => self.state = State::Escape,
            _ => self.state = self.after(byte),
        }
        if self.state == State::Ground {
            (self.number, self.named) = (0, 0);
        }
    }

    /// Between two characters or sequences, where output may be cut.
    pub fn is_ground(&self) -> bool {
        self.state == State::Ground
    }

    /// The alternate screen is shown: a program draws the whole of it.
    pub fn is_alternate(&self) -> bool {
        self.modes & ALTERNATES != 0
    }

    /// What puts a fresh terminal into this one's modes.
    pub fn restore(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.switch(self.modes, &mut out);
        out
    }

    /// What puts a terminal in this state back into a fresh one's modes, and its text into plain
    /// colours.
    pub fn undo(&self) -> Vec<u8> {
        let mut out = Vec::new();
        if !self.is_ground() {
            out.push(CANCEL);
        }
        if self.is_alternate() {
            // A scroll region would stay with some terminals; clearing it moves the cursor, which
            // leaving the alternate screen puts back.
            out.extend_from_slice(b"\x1b[r");
        }
        self.switch(initial(), &mut out);
        out.extend_from_slice(b"\x1b[m\x1b(B");
        out
    }

    /// Switches every mode in which this or `modes` differs from a fresh terminal.
    fn switch(&self, modes: u32, out: &mut Vec<u8>) {
        for (index, (number, _)) in MODES.iter().enumerate() {
            let bit = 1 << index;
            if (self.modes ^ initial()) & bit == 0 {
                continue;
            }
            let on = modes & bit != 0;
            if bit == KEYPAD {
                out.extend_from_slice(if on { b"\x1b=" } else { b"\x1b>" });
            } else {
                let end = if on { 'h' } else { 'l' };
                out.extend_from_slice(format!("\x1b[?{number}{end}").as_bytes());
            }
        }
    }

    /// As bytes, for who must know it again after a restart.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0] = self.state as u8;
        bytes[1..3].copy_from_slice(&self.number.to_le_bytes());
        bytes[3..7].copy_from_slice(&self.named.to_le_bytes());
        bytes[7..].copy_from_slice(&self.modes.to_le_bytes());
        bytes
    }

    /// From [`Screen::encode`]; anything else gives some screen.
    pub fn decode(bytes: [u8; Self::BYTES]) -> Self {
        let [state, n0, n1, a0, a1, a2, a3, m0, m1, m2, m3] = bytes;
        let known = (1 << MODES.len()) - 1;
        Self {
            state: State::ALL
                .get(usize::from(state))
                .copied()
                .unwrap_or(State::Ground),
            number: u16::from_le_bytes([n0, n1]),
            named: u32::from_le_bytes([a0, a1, a2, a3]) & known,
            modes: u32::from_le_bytes([m0, m1, m2, m3]) & known,
        }
    }

    fn after(&mut self, byte: u8) -> State {
        match self.state {
            State::Ground => self.character(byte),
            State::Character if byte & 0xc0 == 0x80 => {
                self.number = self.number.saturating_sub(1);
                if self.number == 0 {
                    State::Ground
                } else {
                    State::Character
                }
            }
            // No UTF-8: each byte for itself.
            State::Character => self.character(byte),
            State::Escape => self.escape(byte),
            State::Intermediate => match byte {
                0x30..=0x7e => State::Ground,
                _ => State::Intermediate,
            },
            State::Control => match byte {
                b'?' => {
                    (self.number, self.named) = (0, 0);
                    State::Private
                }
                0x40..=0x7e => State::Ground,
                _ => State::Other,
            },
            State::Private => self.private(byte),
            State::Other => match byte {
                0x40..=0x7e => State::Ground,
                _ => State::Other,
            },
            State::Text => match byte {
                BELL => State::Ground,
                _ => State::Text,
            },
            State::TextEscape => match byte {
                b'\\' => State::Ground,
                _ => self.escape(byte),
            },
        }
    }

    fn character(&mut self, byte: u8) -> State {
        self.number = match byte {
            0xc2..=0xdf => 1,
            0xe0..=0xef => 2,
            0xf0..=0xf4 => 3,
            _ => return State::Ground,
        };
        State::Character
    }

    fn escape(&mut self, byte: u8) -> State {
        match byte {
            b'[' => State::Control,
            b']' | b'P' | b'X' | b'^' | b'_' => State::Text,
            b'=' => {
                self.modes |= KEYPAD;
                State::Ground
            }
            b'>' => {
                self.modes &= !KEYPAD;
                State::Ground
            }
            // RIS: all as it was.
            b'c' => {
                self.modes = initial();
                State::Ground
            }
            0x20..=0x2f => State::Intermediate,
            0x30..=0x7e => State::Ground,
            // A control character within a sequence acts, and the sequence goes on.
            _ => State::Escape,
        }
    }

    fn private(&mut self, byte: u8) -> State {
        match byte {
            b'0'..=b'9' => {
                let digit = u16::from(byte - b'0');
                self.number = self.number.saturating_mul(10).saturating_add(digit);
                State::Private
            }
            b';' => {
                self.name_mode();
                State::Private
            }
            b'h' => {
                self.name_mode();
                self.modes |= self.named;
                State::Ground
            }
            b'l' => {
                self.name_mode();
                if self.named & ALTERNATES != 0 {
                    // Each of them leaves it, whichever entered.
                    self.named |= ALTERNATES;
                }
                self.modes &= !self.named;
                State::Ground
            }
            0x40..=0x7e => State::Ground,
            // `CSI ? … $ p` asks for a mode.
            0x20..=0x2f => State::Other,
            _ => State::Private,
        }
    }

    fn name_mode(&mut self) {
        if let Some(index) = MODES.iter().position(|(number, _)| *number == self.number) {
            self.named |= 1 << index;
        }
        self.number = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(output: &[u8]) -> Screen {
        let mut screen = Screen::default();
        screen.advance(output);
        screen
    }

    #[test]
    fn plain_output_leaves_no_trace() {
        let screen = after("plain \x1b[1;32mgreen\x1b[0m ü €\r\n".as_bytes());
        assert_eq!(screen, Screen::default());
        assert_eq!(screen.restore(), b"");
    }

    /// What vim does, and then its end.
    #[test]
    fn a_full_screen_program_s_modes_are_known_until_it_ends() {
        let screen = after(b"$ vim\r\n\x1b[?1049h\x1b[?1;2004h\x1b=\x1b[?25l");
        assert!(screen.is_alternate());
        assert_eq!(
            screen.restore(),
            b"\x1b[?1049h\x1b[?1h\x1b[?25l\x1b=\x1b[?2004h",
            "the alternate screen first"
        );
        assert_eq!(after(&screen.restore()), screen, "it is what it says");
        assert_eq!(
            after(&[screen.restore(), screen.undo()].concat()),
            Screen::default()
        );
        let mut ended = screen;
        ended.advance(b"\x1b[?25h\x1b>\x1b[?1l\x1b[?2004l\x1b[?47l");
        assert_eq!(ended, Screen::default());
        let mut reset = screen;
        reset.advance(b"\x1bc");
        assert_eq!(reset, Screen::default());
    }

    #[test]
    fn output_may_be_cut_between_characters_and_sequences_only() {
        for (cut, whole) in [
            (&b"\x1b"[..], &b"c"[..]),
            (b"\x1b[", b"m"),
            (b"\x1b[38;5;", b"1m"),
            (b"\x1b[?10", b"49h"),
            (b"\x1b]0;title", b"\x07"),
            (b"\x1b]0;ti\x1b", b"\\"),
            (b"\x1bPq\n#0", b"\x1b\\"),
            (b"\x1b(", b"B"),
            ("€".as_bytes().split_at(2).0, "€".as_bytes().split_at(2).1),
        ] {
            let mut screen = after(cut);
            assert!(!screen.is_ground(), "{cut:?}");
            assert!(screen.undo().starts_with(&[CANCEL]), "{cut:?}");
            screen.advance(whole);
            assert!(screen.is_ground(), "{cut:?} {whole:?}");
        }
        // Cancelled, or no UTF-8 after all.
        assert!(after(b"\x1b[12\x18").is_ground());
        assert!(after(b"\xe4a").is_ground());
    }

    #[test]
    fn what_is_no_mode_of_a_terminal_is_left_alone() {
        for output in [
            &b"\x1b[1049h"[..],
            b"\x1b[?9999h",
            b"\x1b[?99999999999999999999h",
            b"\x1b[?25$p",
            b"\x1b[>4;2m",
        ] {
            let screen = after(output);
            assert_eq!(
                (screen.modes, screen.state),
                (initial(), State::Ground),
                "{output:?}"
            );
        }
    }

    #[test]
    fn it_is_the_same_after_a_restart() {
        let screen = after(b"\x1b[?1049h\x1b[?25;10");
        assert_eq!(Screen::decode(screen.encode()), screen);
        for (index, state) in State::ALL.into_iter().enumerate() {
            assert_eq!(state as usize, index);
        }
        // Whatever the bytes are, it goes on.
        let mut odd = Screen::decode([0xff; Screen::BYTES]);
        odd.advance(b"\x1b[?25l text");
    }
}
