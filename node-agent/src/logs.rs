//! What the node keeps of batch jobs' output, told to whoever asks through a gateway: while a job runs, and after it.
//!
//! carrel-init's logger writes two files in turn (`node-agent/init/src/logger.rs`). A reader names a position in all
//! that was ever written, and gets what is kept from there on; what follows is looked for a few times a second. What tasks
//! of steps wrote is kept in the same way, by rank (`node-agent/init/src/ranks/`).

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use carrel_core::model::ids::JobKey;
use carrel_proto::inside::RANKS_BEGUN;
use carrel_proto::socket::{Socket, read_frame};
use carrel_proto::v1::{LogAsk, LogPart, RanksBegun};
use prost::Message;
use tokio::io::AsyncWriteExt;
use tokio::sync::watch;

use crate::jobs::Held;
use crate::runtime::{OUTPUT, Runtime};

/// Bytes told at a time.
const PART: usize = 256 * 1024;
/// Between two looks for more.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A reader that has not said what it wants by then does not.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes before the output in each file: the position of its first byte.
const HEADER: usize = 8;
/// Most of the end in which lines are counted.
const MAX_TAIL: u64 = 32 << 20;
/// Longest list of tasks: more of them than a node remembers, none beside another.
const MAX_BEGUN: u64 = 1 << 20;

/// The kept output of this node's jobs. Cheap to clone.
#[derive(Clone)]
pub struct Logs {
    runtime: Runtime,
    /// Jobs that may still write.
    held: watch::Receiver<Held>,
}

/// Some of a job's output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Part {
    /// Position of its first byte.
    at: u64,
    bytes: Vec<u8>,
}

impl Logs {
    /// Of these containers.
    pub fn new(runtime: Runtime, held: watch::Receiver<Held>) -> Self {
        Self { runtime, held }
    }

    /// Whether anything is, or will be, kept of a job.
    pub fn has(&self, key: JobKey) -> bool {
        self.runtime.output_dir(key).is_some()
            || self.runtime.ranks_dir(key).is_some()
            || self.held.borrow().contains_key(&key)
    }

    /// Tells one reader what it asks for.
    pub async fn tell(&self, key: JobKey, to: &mut Socket) -> Result<()> {
        let asked = tokio::time::timeout(ASK_TIMEOUT, read_frame(to)).await;
        let asked = LogAsk::decode(&*asked.context("it asked for nothing")??)?;
        if asked.list {
            let part = self.ranks(key, asked.rank).await?;
            send(to, &part).await?;
            return Ok(to.finish()?);
        }
        let rank = asked.rank;
        let mut at = match asked.tail {
            Some(lines) => self.tail(key, rank, lines).await?,
            None => asked.from,
        };
        loop {
            // Before the look: what is written until then is seen by it.
            let may_write = self.held.borrow().contains_key(&key);
            let part = self.read(key, rank, at).await?;
            if !part.bytes.is_empty() {
                at = part.at + part.bytes.len() as u64;
                send(to, &part.message(false)).await?;
            } else if asked.follow && may_write {
                tokio::time::sleep(LOOK_EVERY).await;
            } else {
                send(to, &part.message(true)).await?;
                return Ok(to.finish()?);
            }
        }
    }

    /// The two files of what a job's command wrote, or one of its tasks; none: nothing is kept.
    fn files(&self, key: JobKey, rank: Option<u32>) -> Option<[PathBuf; 2]> {
        match rank {
            None => self
                .runtime
                .output_dir(key)
                .map(|dir| OUTPUT.map(|name| dir.join(name))),
            Some(rank) => self.runtime.ranks_dir(key).map(|dir| files_of(&dir, rank)),
        }
    }

    /// What is kept from a position on, as much as is told at a time.
    async fn read(&self, key: JobKey, rank: Option<u32>, at: u64) -> Result<Part> {
        let Some(files) = self.files(key, rank) else {
            return Ok(Part {
                at,
                bytes: Vec::new(),
            });
        };
        let read = tokio::task::spawn_blocking(move || read_at(&files, at, PART as u64));
        Ok(read.await??)
    }

    /// Where the last so many lines begin.
    async fn tail(&self, key: JobKey, rank: Option<u32>, lines: u32) -> Result<u64> {
        let Some(files) = self.files(key, rank) else {
            return Ok(0);
        };
        let find = tokio::task::spawn_blocking(move || -> io::Result<u64> {
            let mut at = 0;
            let mut all = Part::default();
            loop {
                let part = read_at(&files, at, MAX_TAIL)?;
                if part.bytes.is_empty() {
                    break;
                }
                if part.at != all.at + all.bytes.len() as u64 {
                    all = Part {
                        at: part.at,
                        bytes: Vec::new(),
                    };
                }
                at = part.at + part.bytes.len() as u64;
                all.bytes.extend(part.bytes);
            }
            Ok(all.at + last_lines(&all.bytes, lines) as u64)
        });
        Ok(find.await??)
    }

    /// Which tasks something is kept of, and how long ago one of them last wrote.
    async fn ranks(&self, key: JobKey, rank: Option<u32>) -> Result<LogPart> {
        let list = match self.runtime.ranks_dir(key) {
            Some(dir) => tokio::task::spawn_blocking(move || ranks_in(&dir, rank)).await??,
            None => LogPart::default(),
        };
        Ok(LogPart { end: true, ..list })
    }
}

impl Part {
    fn message(&self, end: bool) -> LogPart {
        LogPart {
            at: self.at,
            data: self.bytes.clone(),
            end,
            ..LogPart::default()
        }
    }
}

/// The two files of a task.
fn files_of(dir: &Path, rank: u32) -> [PathBuf; 2] {
    [0, 1].map(|which| dir.join(format!("{rank}.{which}")))
}

fn ranks_in(dir: &Path, rank: Option<u32>) -> io::Result<LogPart> {
    let path = dir.join(RANKS_BEGUN);
    let mut bytes = Vec::new();
    open(&path)?.take(MAX_BEGUN).read_to_end(&mut bytes)?;
    let begun = RanksBegun::decode(&bytes[..]).map_err(io::Error::other)?;
    let asked = rank.filter(|rank| {
        begun
            .ranks
            .iter()
            .any(|part| (part.first..=part.last).contains(rank))
    });
    let rank_age_ms = asked.map(|rank| {
        let times = files_of(dir, rank)
            .into_iter()
            .filter_map(|path| path.metadata().ok()?.modified().ok());
        // One that has written nothing has only begun.
        let last = times.max().or_else(|| path.metadata().ok()?.modified().ok());
        let age = last.and_then(|last| last.elapsed().ok()).unwrap_or_default();
        u64::try_from(age.as_millis()).unwrap_or(u64::MAX)
    });
    Ok(LogPart {
        ranks: begun.ranks,
        rank_age_ms,
        ..LogPart::default()
    })
}

/// Opens a plain file: who wrote it is the job's user, and leads to nothing else.
fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    let file = options
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(file)
}

async fn send(to: &mut Socket, message: &LogPart) -> Result<()> {
    let mut frame = (message.encoded_len() as u32).to_be_bytes().to_vec();
    message.encode(&mut frame)?;
    to.write_all(&frame).await?;
    Ok(())
}

/// Where the last so many lines of a text begin.
fn last_lines(text: &[u8], lines: u32) -> usize {
    if lines == 0 {
        return text.len();
    }
    // The end of the last line does not begin another one.
    let body = text.strip_suffix(b"\n").unwrap_or(text);
    let mut breaks = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    breaks.nth(lines as usize - 1).map_or(0, |(at, _)| at + 1)
}

/// What two files hold from a position on, at most so many bytes; from the first that is still kept if that is later.
/// The files may be written meanwhile.
fn read_at(files: &[PathBuf; 2], at: u64, most: u64) -> io::Result<Part> {
    loop {
        let mut segments = Vec::with_capacity(2);
        for path in files {
            if let Ok(mut file) = open(path)
                && let Some(base) = base_of(&mut file)?
            {
                let length = file.metadata()?.len().saturating_sub(HEADER as u64);
                segments.push((base, length, file));
            }
        }
        segments.sort_by_key(|(base, ..)| *base);
        let found = segments.into_iter().find(|(base, length, _)| at < base + length);
        let Some((base, _, mut file)) = found else {
            return Ok(Part {
                at,
                bytes: Vec::new(),
            });
        };
        let from = at.max(base);
        file.seek(SeekFrom::Start(HEADER as u64 + from - base))?;
        let mut bytes = Vec::new();
        (&file).take(most).read_to_end(&mut bytes)?;
        // Written anew while it was read: what was read is of no use.
        if base_of(&mut file)? == Some(base) {
            return Ok(Part { at: from, bytes });
        }
    }
}

/// Position of a file's first byte of output; none: it is being begun.
fn base_of(file: &mut File) -> io::Result<Option<u64>> {
    let mut header = [0; HEADER];
    file.seek(SeekFrom::Start(0))?;
    match file.read_exact(&mut header) {
        Ok(()) => Ok(Some(u64::from_be_bytes(header))),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use carrel_proto::v1::LogRanks;

    use super::*;

    #[test]
    fn output_is_read_over_the_seam_and_from_the_first_that_is_kept() {
        let dir = tempfile::tempdir().expect("a directory");
        let write = |name: &str, base: u64, text: &[u8]| {
            let bytes = [&base.to_be_bytes()[..], text].concat();
            std::fs::write(dir.path().join(name), bytes).expect("written");
        };
        let read = |at: u64, most: u64| {
            let part = read_at(&OUTPUT.map(|name| dir.path().join(name)), at, most).expect("readable");
            (part.at, String::from_utf8(part.bytes).expect("text"))
        };
        assert_eq!(read(0, 100), (0, String::new()), "nothing is there yet");
        std::fs::write(dir.path().join(OUTPUT[0]), [0; 3]).expect("written");
        assert_eq!(read(0, 100), (0, String::new()), "it is being begun");
        write(OUTPUT[0], 0, b"abcde");
        write(OUTPUT[1], 5, b"fgh");
        assert_eq!(read(0, 100), (0, "abcde".into()));
        assert_eq!(read(3, 1), (3, "d".into()));
        assert_eq!(read(5, 100), (5, "fgh".into()));
        assert_eq!(read(8, 100), (8, String::new()));
        write(OUTPUT[0], 8, b"i");
        assert_eq!(read(2, 100), (5, "fgh".into()), "what came before is gone");
        assert_eq!(read(8, 100), (8, "i".into()));
    }

    #[test]
    fn ranks_are_told_with_their_age() {
        let dir = tempfile::tempdir().expect("a directory");
        let part = |first, last| LogRanks { first, last };
        let begun = RanksBegun {
            ranks: vec![part(0, 3), part(8, 8)],
        };
        std::fs::write(dir.path().join(RANKS_BEGUN), begun.encode_to_vec()).expect("written");
        std::fs::write(dir.path().join("2.0"), b"x").expect("written");
        let hour = Duration::from_hours(1);
        let file = File::options()
            .write(true)
            .open(dir.path().join("2.0"))
            .expect("a file");
        file.set_modified(std::time::SystemTime::now() - hour)
            .expect("set");
        let told = |rank| ranks_in(dir.path(), rank).expect("readable");
        assert_eq!(told(None).ranks, begun.ranks);
        assert!(told(Some(2)).rank_age_ms >= Some(3_600_000));
        assert!(told(Some(8)).rank_age_ms < Some(3_600_000), "it has only begun");
        assert_eq!(told(Some(4)).rank_age_ms, None);
        // What is no plain file is nothing.
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("3.0")).expect("linked");
        let read = read_at(&files_of(dir.path(), 3), 0, 100).expect("readable");
        assert!(read.bytes.is_empty());
    }

    #[test]
    fn the_last_lines_are_counted_from_the_end() {
        for (text, lines, rest) in [
            ("a\nb\nc\n", 1, "c\n"),
            ("a\nb\nc", 2, "b\nc"),
            ("a\nb\n", 9, "a\nb\n"),
            ("a\n", 0, ""),
            ("", 3, ""),
        ] {
            assert_eq!(&text[last_lines(text.as_bytes(), lines)..], rest, "{text:?}");
        }
    }
}
