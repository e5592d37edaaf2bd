//! The logger: copies what a batch job's command writes, to the user's files and to what the node keeps.
//!
//! It is the reader of the command's pipes, with the user's rights, and ends when nobody can write into them any
//! more. What the node keeps of both is one text, in the order in which it came, in two files of limited length of
//! which one is written at a time: the newest of it. Each begins with the position of its first byte in all
//! that was ever written, so a logger that takes over from one that died knows where it is.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigHandler, Signal, signal};

use crate::wire;

/// Names of what the node keeps, in the run directory.
pub const KEPT: [&str; 2] = ["output.0", "output.1"];
/// Bytes of output in each of the two: a job keeps between one and two of these of its newest output.
const SEGMENT_BYTES: u64 = 16 << 20;
/// Before the output: the position of its first byte, big-endian.
const HEADER_BYTES: u64 = 8;
/// Read at a time: what a pipe holds.
const BUFFER: usize = 1 << 20;

/// Descriptors that the logger is started with.
pub mod fds {
    /// What the command writes to standard output.
    pub const OUT_PIPE: i32 = 3;
    /// The file that it goes to.
    pub const OUT_FILE: i32 = 4;
    /// Two files of what is kept.
    pub const KEPT: i32 = 5;
    /// What the command writes to standard error; not open: it goes to standard output.
    pub const ERR_PIPE: i32 = 7;
    /// The file that it goes to.
    pub const ERR_FILE: i32 = 8;
}

/// Runs as the logger until everything is written.
pub fn main() -> ExitCode {
    // Executing the binary made the process traceable again.
    if prctl::set_dumpable(false).is_err() {
        return ExitCode::from(1);
    }
    // Only a name in `ps`.
    let _ = prctl::set_name(c"carrel-log");
    ignore_signals();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("carrel-init log: {error}");
            ExitCode::from(1)
        }
    }
}

/// A user's `kill -1`, and the end of the container, are for the command: what it says last is to be heard.
#[allow(unsafe_code)]
pub fn ignore_signals() {
    for number in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM, Signal::SIGQUIT] {
        // SAFETY: to ignore a signal runs no code.
        let _ = unsafe { signal(number, SigHandler::SigIgn) };
    }
}

fn run() -> io::Result<()> {
    let file = |number| wire::inherited(number).map(File::from);
    let mut kept = Kept::open([file(fds::KEPT)?, file(fds::KEPT + 1)?], SEGMENT_BYTES)?;
    let mut sources = vec![Source::new(wire::inherited(fds::OUT_PIPE)?, file(fds::OUT_FILE)?)];
    if let (Ok(pipe), Ok(file)) = (wire::inherited(fds::ERR_PIPE), file(fds::ERR_FILE)) {
        sources.push(Source::new(pipe, file));
    }
    let mut buffer = vec![0; BUFFER];
    while !sources.is_empty() {
        let mut polled: Vec<PollFd> = sources
            .iter()
            .map(|source| PollFd::new(source.pipe.as_fd(), PollFlags::POLLIN))
            .collect();
        match poll(&mut polled, PollTimeout::NONE) {
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<bool> = polled.iter().map(|one| one.any().unwrap_or(true)).collect();
        let mut ready = ready.into_iter();
        sources.retain_mut(|source| !ready.next().unwrap_or(false) || source.copy(&mut buffer, &mut kept));
    }
    Ok(())
}

/// One of the command's two streams.
struct Source {
    pipe: OwnedFd,
    file: File,
    /// What went wrong with the file was told.
    told: bool,
}

impl Source {
    fn new(pipe: OwnedFd, file: File) -> Self {
        Self {
            pipe,
            file,
            told: false,
        }
    }

    /// Copies what is there; whether there may be more.
    fn copy(&mut self, buffer: &mut [u8], kept: &mut Kept) -> bool {
        let read = match nix::unistd::read(&self.pipe, buffer) {
            Ok(0) => return false,
            Ok(read) => read,
            Err(Errno::EINTR | Errno::EAGAIN) => return true,
            Err(_) => return false,
        };
        kept.add(&buffer[..read]);
        if let Err(error) = self.file.write_all(&buffer[..read])
            && !std::mem::replace(&mut self.told, true)
        {
            kept.add(format!("carrel: the output file cannot be written: {error}\n").as_bytes());
        }
        true
    }
}

/// What the node keeps: the newest of one text, in two files in turn.
pub struct Kept {
    files: [File; 2],
    /// The one that is written.
    current: usize,
    /// Position of its first byte.
    base: u64,
    /// Bytes of output in it.
    length: u64,
    /// Bytes of output that one holds.
    segment: u64,
}

impl Kept {
    /// Goes on after what is there. `segment`: bytes of output in each.
    pub fn open(mut files: [File; 2], segment: u64) -> io::Result<Self> {
        let found = [content(&mut files[0])?, content(&mut files[1])?];
        let current = match found {
            [Some(first), Some(second)] if second.0 > first.0 => 1,
            [None, Some(_)] => 1,
            _ => 0,
        };
        let mut kept = Self {
            files,
            current,
            base: 0,
            length: 0,
            segment,
        };
        match found[current] {
            Some((base, length)) => {
                (kept.base, kept.length) = (base, length);
                kept.files[current].seek(SeekFrom::Start(HEADER_BYTES + length))?;
            }
            None => kept.begin(0, 0)?,
        }
        Ok(kept)
    }

    /// Empties a file, and writes into it from now on.
    fn begin(&mut self, which: usize, base: u64) -> io::Result<()> {
        let file = &mut self.files[which];
        file.set_len(0)?;
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&base.to_be_bytes())?;
        (self.current, self.base, self.length) = (which, base, 0);
        Ok(())
    }

    /// Bytes that both files hold.
    pub fn held(&self) -> io::Result<u64> {
        Ok(self.files[0].metadata()?.len() + self.files[1].metadata()?.len())
    }

    /// Whether nothing was ever written.
    pub fn is_new(&self) -> bool {
        self.base + self.length == 0
    }

    /// Whether the last byte ends a line, or there is none.
    pub fn is_at_line_start(&mut self) -> io::Result<bool> {
        if self.is_new() {
            return Ok(true);
        }
        let which = if self.length == 0 {
            1 - self.current
        } else {
            self.current
        };
        let file = &mut self.files[which];
        file.seek(SeekFrom::End(-1))?;
        let mut last = [0];
        file.read_exact(&mut last)?;
        Ok(last == *b"\n")
    }

    /// What cannot be kept is not: the user's own file has it.
    pub fn add(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.length >= self.segment && self.begin(1 - self.current, self.base + self.length).is_err() {
                return;
            }
            let room = usize::try_from(self.segment - self.length).unwrap_or(usize::MAX);
            let part = &bytes[..room.min(bytes.len())];
            if self.files[self.current].write_all(part).is_err() {
                return;
            }
            self.length += part.len() as u64;
            bytes = &bytes[part.len()..];
        }
    }
}

/// Position of a file's first byte of output, and how many it has; none: it was not begun.
fn content(file: &mut File) -> io::Result<Option<(u64, u64)>> {
    let length = file.metadata()?.len();
    if length < HEADER_BYTES {
        return Ok(None);
    }
    let mut header = [0; HEADER_BYTES as usize];
    file.seek(SeekFrom::Start(0))?;
    file.read_exact(&mut header)?;
    Ok(Some((u64::from_be_bytes(header), length - HEADER_BYTES)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(kept: &mut [File; 2]) -> (u64, Vec<u8>) {
        let mut parts: Vec<(u64, Vec<u8>)> = kept
            .iter_mut()
            .filter_map(|file| {
                let (base, _) = content(file).expect("readable")?;
                let mut text = Vec::new();
                file.read_to_end(&mut text).expect("readable");
                Some((base, text))
            })
            .collect();
        parts.sort();
        let first = parts[0].0;
        let mut at = first;
        for (base, text) in &parts {
            assert_eq!(*base, at, "one goes on where the other ends");
            at += text.len() as u64;
        }
        (first, parts.into_iter().flat_map(|(_, text)| text).collect())
    }

    #[test]
    fn the_newest_output_is_kept_whoever_writes_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let open = || {
            KEPT.map(|name| {
                let mut options = std::fs::OpenOptions::new();
                let options = options.read(true).write(true).create(true).truncate(false);
                options.open(dir.path().join(name)).expect("a file")
            })
        };
        let mut said = Vec::new();
        for round in 0..40_u8 {
            // Each time another logger, as after a death.
            let mut kept = Kept::open(open(), 100).expect("kept");
            let bytes = vec![b'a' + round % 26; usize::from(round) * 7 % 230];
            kept.add(&bytes);
            said.extend(bytes);
            let (first, text) = all(&mut open());
            assert_eq!(text, said[first as usize..], "round {round}");
            assert!(said.len() as u64 - first <= 200);
            assert!(first == 0 || said.len() as u64 - first >= 100, "round {round}");
        }
    }
}
