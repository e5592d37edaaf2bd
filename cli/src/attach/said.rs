//! What ssh and its proxy say on stderr: shown as it comes, and remembered in case it is the last.

use std::io::Write as _;

/// What is remembered: some lines.
const REMEMBERED: usize = 2048;

/// A stderr.
#[derive(Debug)]
pub struct Said {
    quiet: bool,
    /// What ssh says when a connection was closed in order.
    closing: String,
    closed: bool,
    /// Since it was attached, or before if it was not.
    remembered: String,
    attached: bool,
    /// A line's beginning that may become the closing one.
    held: Vec<u8>,
    at_line: bool,
    /// The last byte went back to the line's beginning.
    returned: bool,
}

impl Said {
    /// Nothing yet. `quiet`: nothing is shown until it is attached.
    pub fn new(host: &str, quiet: bool) -> Self {
        Self {
            quiet,
            closing: format!("Connection to {host} closed."),
            closed: false,
            remembered: String::new(),
            attached: false,
            held: Vec::new(),
            at_line: true,
            returned: false,
        }
    }

    /// Takes in and shows what was read.
    pub fn take(&mut self, read: &[u8], attached: bool) {
        let show = self.sort(read, attached);
        if !show.is_empty() && (attached || !self.quiet) {
            // A closed stderr ends nothing.
            std::io::stderr().write_all(&show).ok();
        }
    }

    /// Remembers what was read. Gives what is to be shown of it.
    fn sort(&mut self, read: &[u8], attached: bool) -> Vec<u8> {
        if attached && !self.attached {
            self.attached = true;
            self.remembered.clear();
        }
        let mut show = Vec::new();
        for byte in read {
            if *byte != b'\n' {
                self.returned = *byte == b'\r';
                self.held.push(*byte);
                let hold = self.at_line && self.may_close();
                if !hold {
                    self.release(&mut show);
                    self.at_line = false;
                }
                continue;
            }
            let line = String::from_utf8_lossy(&self.held);
            if self.at_line && line.trim_end() == self.closing {
                self.closed = true;
                self.held.clear();
            } else {
                if !self.returned && attached {
                    // The terminal is in raw mode.
                    self.held.push(b'\r');
                }
                self.held.push(b'\n');
                self.release(&mut show);
            }
            (self.at_line, self.returned) = (true, false);
        }
        show
    }

    fn may_close(&self) -> bool {
        let held = self.held.strip_suffix(b"\r").unwrap_or(&self.held);
        self.closing.as_bytes().starts_with(held)
    }

    fn release(&mut self, show: &mut Vec<u8>) {
        self.remembered.push_str(&String::from_utf8_lossy(&self.held));
        let too_much = self.remembered.len().saturating_sub(REMEMBERED);
        self.remembered
            .drain(..self.remembered.ceil_char_boundary(too_much));
        show.append(&mut self.held);
    }

    /// The last line with something on it.
    pub fn last(&self) -> Option<String> {
        let line = self.remembered.lines().rfind(|line| !line.trim().is_empty())?;
        let line = line.trim();
        Some(line.strip_prefix("error: ").unwrap_or(line).to_owned())
    }

    /// ssh said that it closed the connection.
    pub fn is_closed(&self) -> bool {
        self.closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hear(said: &mut Said, text: &str, attached: bool) -> String {
        // As pipes give it, a byte at a time.
        let shown = text.bytes().flat_map(|byte| said.sort(&[byte], attached));
        String::from_utf8(shown.collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn the_closing_line_is_not_shown() {
        let mut said = Said::new("carrel-dev", false);
        assert_eq!(hear(&mut said, "carrel: waits\n", false), "carrel: waits\n");
        assert_eq!(said.last().as_deref(), Some("carrel: waits"));
        assert_eq!(hear(&mut said, "Connection to carrel-dev closed.\r\n", true), "");
        assert_eq!((said.last(), said.is_closed()), (None, true));
    }

    #[test]
    fn other_lines_are_shown_at_once_and_the_last_one_is_the_reason() {
        let mut said = Said::new("carrel-dev", false);
        assert_eq!(
            hear(
                &mut said,
                "Connection to carrel-dev closed by remote host.\r\n",
                true
            ),
            "Connection to carrel-dev closed by remote host.\r\n"
        );
        assert_eq!(hear(&mut said, "? for help", true), "? for help");
        assert_eq!(hear(&mut said, "\nTimeout, server not responding.\r\n", true), {
            "\r\nTimeout, server not responding.\r\n"
        });
        assert_eq!(said.last().as_deref(), Some("Timeout, server not responding."));
        assert!(!said.is_closed());
    }

    #[test]
    fn little_is_remembered() {
        let mut said = Said::new("h", true);
        hear(&mut said, &"ü\n".repeat(REMEMBERED), false);
        assert!(said.remembered.len() <= REMEMBERED);
    }
}
