//! A terminal with a command in it, as a person has it.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};

use crate::process::Cmd;
use crate::wait;

/// What a terminal has shown, and when.
#[derive(Default)]
struct Shown {
    bytes: Vec<u8>,
    /// Length and time after each read.
    times: Vec<(usize, SystemTime)>,
}

/// A command in a terminal.
pub struct Terminal {
    command: String,
    master: Box<dyn MasterPty + Send>,
    input: Box<dyn Write + Send>,
    shown: Arc<Mutex<Shown>>,
    child: Box<dyn Child + Send + Sync>,
    /// How much of `shown` earlier waits have passed.
    seen: usize,
}

impl Terminal {
    /// Starts a command in a terminal of 80 columns and 24 rows.
    ///
    /// # Panics
    /// It cannot be started.
    pub fn start(command: &Cmd) -> Self {
        let pair = native_pty_system().openpty(size(80, 24)).expect("a terminal");
        let mut builder = CommandBuilder::new(&command.argv()[0]);
        builder.args(&command.argv()[1..]);
        let child = pair
            .slave
            .spawn_command(builder)
            .unwrap_or_else(|error| panic!("{command}: {error}"));
        drop(pair.slave);
        let input = pair.master.take_writer().expect("taken once");
        let mut output = pair.master.try_clone_reader().expect("a terminal");
        let shown = Arc::new(Mutex::new(Shown::default()));
        let screen = Arc::clone(&shown);
        // Ends with the terminal: a closed one reads as an error.
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = output.read(&mut buffer) {
                let now = SystemTime::now();
                let mut shown = screen.lock().unwrap_or_else(PoisonError::into_inner);
                shown.bytes.extend_from_slice(&buffer[..n]);
                let length = shown.bytes.len();
                shown.times.push((length, now));
            }
        });
        Self {
            command: command.to_string(),
            master: pair.master,
            input,
            shown,
            child,
            seen: 0,
        }
    }

    /// Types text.
    ///
    /// # Panics
    /// The terminal is closed.
    #[track_caller]
    pub fn write(&mut self, text: &str) {
        let written = self
            .input
            .write_all(text.as_bytes())
            .and_then(|()| self.input.flush());
        written.unwrap_or_else(|error| panic!("cannot type {text:?}: {error}\n{self}"));
    }

    /// Types a line.
    #[track_caller]
    pub fn line(&mut self, text: &str) {
        self.write(&format!("{text}\r"));
    }

    /// Waits until `text` is shown, after what earlier waits have found.
    ///
    /// # Panics
    /// It is not shown in time.
    #[track_caller]
    pub fn expect(&mut self, text: &str) {
        let found = wait::poll(wait::PATIENCE, || {
            let shown = self.screen();
            let at = shown.get(self.seen..)?.find(text)?;
            Some(self.seen + at + text.len())
        });
        self.seen = found.unwrap_or_else(|| panic!("{text:?} is not shown\n{self}"));
    }

    /// Types a line and waits for an answer that the line itself does not hold.
    #[track_caller]
    pub fn ask(&mut self, line: &str, answer: &str) {
        self.line(line);
        self.expect(answer);
    }

    /// When the text that the last [`Terminal::expect`] found was there.
    pub fn last_found_at(&self) -> SystemTime {
        let shown = self.shown();
        let found = shown.times.iter().find(|(length, _)| *length >= self.seen);
        found.map_or_else(SystemTime::now, |(_, time)| *time)
    }

    /// Everything shown so far.
    pub fn screen(&self) -> String {
        // A byte a character, so that positions do not move between two looks.
        self.shown()
            .bytes
            .iter()
            .map(|byte| if byte.is_ascii() { *byte as char } else { '?' })
            .collect()
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes its size.
    ///
    /// # Panics
    /// The terminal is closed.
    pub fn resize(&self, columns: u16, rows: u16) {
        self.master.resize(size(columns, rows)).expect("an open terminal");
    }

    /// Waits for the command's end and gives its exit code.
    ///
    /// # Panics
    /// It does not end in time.
    #[track_caller]
    pub fn wait(&mut self) -> u32 {
        let status = wait::poll(wait::PATIENCE, || self.child.try_wait().expect("an own child"));
        status
            .unwrap_or_else(|| panic!("it does not end\n{self}"))
            .exit_code()
    }
}

impl std::fmt::Display for Terminal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "--- terminal of `{}` ---\n{}\n", self.command, self.screen())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A hangup, as when its window is closed; it may have ended by itself.
        drop(self.child.kill());
    }
}

fn size(columns: u16, rows: u16) -> PtySize {
    PtySize {
        rows,
        cols: columns,
        pixel_width: 0,
        pixel_height: 0,
    }
}
