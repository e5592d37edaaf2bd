//! OpenSSH's client in a terminal, as a person has it.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex};

use portable_pty::{CommandBuilder, PtySize, native_pty_system};

use super::{World, wait_for};

/// The size that a terminal has at first.
pub const SIZE: (u16, u16) = (101, 33);

/// A terminal with an ssh in it.
pub struct Terminal {
    pub child: Box<dyn portable_pty::Child + Send + Sync>,
    pub master: Box<dyn portable_pty::MasterPty + Send>,
    pub input: Box<dyn Write + Send>,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    pub fn open(world: &World, arguments: &[&str]) -> Self {
        let mut terminal = Self::open_unread(world, SIZE, arguments);
        terminal.read();
        terminal
    }

    /// One whose screen nobody draws until [`read`](Self::read).
    pub fn open_unread(world: &World, (columns, rows): (u16, u16), arguments: &[&str]) -> Self {
        let pair = native_pty_system().openpty(size(columns, rows)).unwrap();
        let mut command = CommandBuilder::new("ssh");
        command.arg("-F");
        command.arg(world.path("ssh_config"));
        command.args(arguments);
        command.env("TERM", "xterm-256color");
        let child = pair.slave.spawn_command(command).unwrap();
        let input = pair.master.take_writer().unwrap();
        Self {
            child,
            master: pair.master,
            input,
            seen: Arc::default(),
        }
    }

    /// Draws the screen from now on.
    pub fn read(&mut self) {
        let mut reader = self.master.try_clone_reader().unwrap();
        let sink = Arc::clone(&self.seen);
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                sink.lock().unwrap().extend_from_slice(&buffer[..count]);
            }
        });
    }

    /// All that was shown.
    pub fn seen(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap()).into_owned()
    }

    pub fn wait(&self, text: &str) {
        wait_for(&format!("{text:?}\n{}", self.last()), || {
            self.seen().contains(text)
        });
    }

    fn last(&self) -> String {
        let seen = self.seen();
        let start = seen.ceil_char_boundary(seen.len().saturating_sub(2000));
        seen[start..].to_owned()
    }

    pub fn write(&mut self, text: &str) {
        self.input.write_all(text.as_bytes()).unwrap();
    }

    pub fn line(&mut self, text: &str) {
        self.write(text);
        self.write("\r");
    }

    pub fn resize(&self, columns: u16, rows: u16) {
        self.master.resize(size(columns, rows)).unwrap();
    }

    /// The connection is cut: the client is killed.
    pub fn cut(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// The client's exit code.
    pub fn code(&mut self) -> u32 {
        let mut status = None;
        wait_for("end of ssh", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().exit_code()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
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
