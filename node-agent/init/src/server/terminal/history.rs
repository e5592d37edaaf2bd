//! A terminal's last output, in memory that outlives the server.
//!
//! A ring in a file in memory, which the keeper holds as well. Positions count the terminal's
//! bytes from its first. Beside the ring stands the [`Screen`] as it was at the ring's oldest byte,
//! so that a replay of what is left shows what a terminal would that had seen everything.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, compiler_fence};

use bytes::Bytes;
use carrel_core::terminal::Screen;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use prost::Message;

/// Output that is kept: some ten thousand lines, and on usual links less than a second to replay.
pub const SCROLLBACK: usize = 1 << 20;

/// Before the ring: a page, of which the first bytes are numbers.
const HEADER: usize = 4096;
/// Position after the newest byte.
const HEAD: usize = 0;
/// Position of the oldest byte.
const TAIL: usize = 8;
/// The screen at the oldest byte.
const SCREEN: usize = 16;
/// Length of what is known about the terminal, and that itself.
const ABOUT: usize = 32;

/// How far a beginning of a line is looked for, before any place between two characters will do.
const LONGEST_LINE: u64 = 64 * 1024;

/// What is known about a terminal from its beginning.
#[derive(Clone, PartialEq, Message)]
pub struct About {
    /// Name that it was given; may be empty.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Command line; empty: a login shell.
    #[prost(string, tag = "2")]
    pub command: String,
    /// When it was made, Unix time in ms.
    #[prost(int64, tag = "3")]
    pub created_ms: i64,
}

impl About {
    /// Longest command that is remembered.
    pub const MAX_COMMAND: usize = 1024;
}

/// The last output of a terminal.
#[derive(Debug)]
pub struct History {
    memory: Memory,
    head: u64,
    tail: u64,
    oldest: Screen,
}

impl History {
    /// An empty one, and the file that it is in. The memory is taken at once: where the job has none
    /// left, this fails, and nothing later.
    pub fn create(about: &About) -> io::Result<(Self, OwnedFd)> {
        let file = memfd_create(
            "carrel-terminal",
            MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING,
        )?;
        fallocate(
            &file,
            FallocateFlags::empty(),
            0,
            (HEADER + SCROLLBACK) as libc::off_t,
        )?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        let mut memory = Memory::map(file.as_fd(), HEADER + SCROLLBACK)?;
        let about = about.encode_to_vec();
        if about.len() > HEADER - ABOUT - 4 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        memory.put(ABOUT, &(about.len() as u32).to_le_bytes());
        memory.put(ABOUT + 4, &about);
        let mut history = Self {
            memory,
            head: 0,
            tail: 0,
            oldest: Screen::default(),
        };
        history.mark_tail();
        Ok((history, file))
    }

    /// The one that a server before this has written.
    pub fn open(file: OwnedFd) -> io::Result<(Self, About)> {
        let file = File::from(file);
        if file.metadata()?.len() != (HEADER + SCROLLBACK) as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let memory = Memory::map(file.as_fd(), HEADER + SCROLLBACK)?;
        let length = u32::from_le_bytes(memory.get(ABOUT)) as usize;
        let about = memory
            .bytes()
            .get(ABOUT + 4..HEADER)
            .and_then(|about| about.get(..length))
            .ok_or(io::ErrorKind::InvalidData)?;
        let about = About::decode(about).map_err(io::Error::other)?;
        let head = u64::from_le_bytes(memory.get(HEAD));
        let tail = u64::from_le_bytes(memory.get(TAIL));
        if tail > head || head - tail > SCROLLBACK as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let oldest = Screen::decode(memory.get(SCREEN));
        let history = Self {
            memory,
            head,
            tail,
            oldest,
        };
        Ok((history, about))
    }

    /// Position after the newest byte.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Position of the oldest byte that is left.
    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// The screen after all of it.
    pub fn newest(&self) -> Screen {
        let mut screen = self.oldest;
        let mut at = self.tail;
        while at < self.head {
            let part = self.part(at, SCROLLBACK);
            screen.advance(part);
            at += part.len() as u64;
        }
        screen
    }

    /// Adds output, in place of the oldest.
    pub fn append(&mut self, output: &[u8]) {
        for part in output.chunks(SCROLLBACK) {
            let room = SCROLLBACK - (self.head - self.tail) as usize;
            if part.len() > room {
                self.evict(part.len() - room);
            }
            let at = (self.head % SCROLLBACK as u64) as usize;
            let first = part.len().min(SCROLLBACK - at);
            self.memory.put(HEADER + at, &part[..first]);
            self.memory.put(HEADER, &part[first..]);
            self.head += part.len() as u64;
            // This process may be killed between any two of these stores: the tail moves before
            // its bytes go, and the head after its bytes are there.
            compiler_fence(Ordering::SeqCst);
            self.memory.put(HEAD, &self.head.to_le_bytes());
        }
    }

    fn evict(&mut self, mut count: usize) {
        while count > 0 {
            let part = self.part(self.tail, count);
            let length = part.len();
            let mut oldest = self.oldest;
            oldest.advance(part);
            self.oldest = oldest;
            self.tail += length as u64;
            count -= length;
        }
        self.mark_tail();
        compiler_fence(Ordering::SeqCst);
    }

    fn mark_tail(&mut self) {
        self.memory.put(TAIL, &self.tail.to_le_bytes());
        self.memory.put(SCREEN, &self.oldest.encode());
    }

    /// Bytes from a position on, in one piece of the ring.
    fn part(&self, from: u64, most: usize) -> &[u8] {
        let at = (from % SCROLLBACK as u64) as usize;
        let length = ((self.head - from) as usize).min(most).min(SCROLLBACK - at);
        &self.memory.bytes()[HEADER + at..HEADER + at + length]
    }

    /// Up to `most` bytes from a position on, which is between tail and head.
    pub fn read(&self, from: u64, most: usize) -> Bytes {
        Bytes::copy_from_slice(self.part(from, most))
    }

    /// The first place from a position on where a replay may begin, and the screen there: between
    /// two characters and sequences, and at the beginning of a line if one is near.
    pub fn beginning(&self, from: u64) -> (u64, Screen) {
        let mut screen = self.oldest;
        let mut at = self.tail;
        let mut line = at == 0;
        let (mut before, mut any) = ((at, screen), None);
        while at < self.head {
            for byte in self.part(at, SCROLLBACK) {
                if at < from && screen.is_ground() {
                    before = (at, screen);
                }
                if at >= from && screen.is_ground() {
                    let (first, _) = *any.get_or_insert((at, screen));
                    if line {
                        return (at, screen);
                    }
                    if at - first > LONGEST_LINE {
                        return any.unwrap_or((at, screen));
                    }
                }
                screen.push(*byte);
                line = *byte == b'\n';
                at += 1;
            }
        }
        if screen.is_ground() {
            before = (at, screen);
        }
        any.unwrap_or(before)
    }
}

/// A file in memory, mapped. It is sealed against shrinking, and written by one server at a time.
#[derive(Debug)]
struct Memory {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping belongs to this value alone, as a box would.
#[allow(unsafe_code)]
unsafe impl Send for Memory {}

impl Memory {
    #[allow(unsafe_code)]
    fn map(file: BorrowedFd<'_>, length: usize) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping of a file that has this length, at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                access,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, length })
    }

    #[allow(unsafe_code)]
    fn bytes(&self) -> &[u8] {
        // SAFETY: mapped for as long as `self` lives; nobody else writes it meanwhile.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    #[allow(unsafe_code)]
    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }

    fn get<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut value = [0; N];
        value.copy_from_slice(&self.bytes()[at..at + N]);
        value
    }

    fn put(&mut self, at: usize, value: &[u8]) {
        self.bytes_mut()[at..at + value.len()].copy_from_slice(value);
    }
}

impl Drop for Memory {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and used no more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about() -> About {
        About {
            name: "build".into(),
            command: "make".into(),
            created_ms: 7,
        }
    }

    fn all(history: &History) -> Vec<u8> {
        let (mut at, mut found) = (history.tail(), Vec::new());
        while at < history.head() {
            let bytes = history.read(at, 1000);
            at += bytes.len() as u64;
            found.extend_from_slice(&bytes);
        }
        found
    }

    #[test]
    fn the_newest_output_is_kept_and_found_again_by_the_next_server() {
        let (mut history, file) = History::create(&about()).unwrap();
        let written: Vec<u8> = (0..3 * SCROLLBACK + 17).map(|i| (i % 251) as u8).collect();
        for part in written.chunks(4093) {
            history.append(part);
        }
        assert_eq!(history.head(), written.len() as u64);
        assert_eq!(history.tail(), (written.len() - SCROLLBACK) as u64);
        assert!(all(&history) == written[written.len() - SCROLLBACK..]);

        let newest = history.newest();
        drop(history);
        let (mut again, known) = History::open(file).unwrap();
        assert_eq!(known, about());
        assert_eq!(again.newest(), newest);
        again.append(b"more");
        let expected = [&written[written.len() - SCROLLBACK + 4..], b"more"].concat();
        assert!(all(&again) == expected);
    }

    #[test]
    fn more_than_all_of_it_at_once() {
        let (mut history, _file) = History::create(&about()).unwrap();
        let written: Vec<u8> = (0..2 * SCROLLBACK + 5).map(|i| (i % 241) as u8).collect();
        history.append(b"before");
        history.append(&written);
        assert!(all(&history) == written[written.len() - SCROLLBACK..]);
    }

    #[test]
    fn a_replay_begins_at_a_line_and_never_within_a_sequence() {
        let (mut history, _file) = History::create(&about()).unwrap();
        assert_eq!(history.beginning(0).0, 0);
        history.append(b"one\r\ntwo\x1b[3");
        assert_eq!(history.beginning(0).0, 0, "all of it is there");
        assert_eq!(history.beginning(1).0, 5, "the next line");
        assert_eq!(history.beginning(6).0, 6, "no other line: the next character");
        let (at, screen) = history.beginning(9);
        assert_eq!(at, 8, "not within a sequence");
        assert!(screen.is_ground());
        history.append(b"1m");
        assert_eq!(history.beginning(9).0, 13, "after it, once it is whole");
    }

    /// A program that took the screen long ago: what is left of its output says nothing of it.
    #[test]
    fn modes_whose_sequences_are_gone_are_still_known() {
        let (mut history, file) = History::create(&about()).unwrap();
        history.append(b"$ top\r\n\x1b[?1049h\x1b[?25l");
        for _ in 0..SCROLLBACK / 10 {
            history.append("\x1b[HLoad: äé".as_bytes());
        }
        let (at, screen) = history.beginning(history.tail());
        assert!(at > 0 && screen.is_alternate() && screen.is_ground());
        assert_eq!(screen.restore(), b"\x1b[?1049h\x1b[?25l");
        assert!(at - history.tail() < 10, "the first whole character or sequence");
        drop(history);
        let (again, _) = History::open(file).unwrap();
        assert_eq!(again.beginning(again.tail()), (at, screen));
    }

    #[test]
    fn a_line_without_end_is_cut_somewhere() {
        let (mut history, _file) = History::create(&about()).unwrap();
        history.append(&vec![b'x'; SCROLLBACK]);
        history.append(&[b'x'; 100]);
        assert_eq!(history.beginning(history.tail()).0, 100);
    }

    #[test]
    fn what_is_no_history_is_refused() {
        let file = memfd_create("x", MFdFlags::MFD_CLOEXEC).unwrap();
        assert!(History::open(file).is_err());
        let file = memfd_create("x", MFdFlags::MFD_CLOEXEC).unwrap();
        nix::unistd::ftruncate(&file, (HEADER + SCROLLBACK) as libc::off_t).unwrap();
        let mut memory = Memory::map(file.as_fd(), HEADER + SCROLLBACK).unwrap();
        memory.put(TAIL, &[0xff; 8]);
        assert!(History::open(file).is_err());
    }
}
