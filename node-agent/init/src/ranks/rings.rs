//! The newest output of each task, in two files in turn, within limits that hold for all of them together.
//!
//! No file stays open: a container may have few descriptors, and many tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::SystemTime;

use carrel_proto::inside::RANKS_BEGUN;
use carrel_proto::v1::{LogRanks, RankOutput, RanksBegun};
use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};
use prost::Message;

use crate::logger::Kept;

/// How much is kept.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes in each of a task's two files: it keeps between one and two of these.
    pub segment: u64,
    /// Tasks of which output is kept; of more, that goes which was silent for longest.
    pub ranks: usize,
    /// Bytes of all, likewise.
    pub bytes: u64,
    /// Tasks that are remembered to have begun.
    pub begun: usize,
}

/// Of one job on one node.
pub const LIMITS: Limits = Limits {
    segment: 1 << 20,
    ranks: 1024,
    bytes: 256 << 20,
    begun: 65_536,
};

/// Longest part of a command that a marker shows, characters.
const MAX_COMMAND: usize = 120;

/// Whose output it is.
#[derive(Clone, Debug)]
pub struct Step {
    number: u32,
    marker: String,
}

impl Step {
    /// `command`: for people.
    pub fn new(number: u32, command: &str) -> Self {
        let mut shown: String = command
            .chars()
            .take(MAX_COMMAND)
            .map(|one| if one.is_control() { ' ' } else { one })
            .collect();
        if command.chars().nth(MAX_COMMAND).is_some() {
            shown.push('…');
        }
        Self {
            number,
            marker: format!("--- step {number}: {shown} ---\n"),
        }
    }
}

/// What is kept of one task.
#[derive(Debug)]
struct Ring {
    bytes: u64,
    /// When it was written last, by a count.
    used: u64,
    /// Step that wrote last; none: not known here.
    step: Option<u32>,
}

/// All of them.
#[derive(Debug)]
pub struct Rings {
    dir: OwnedFd,
    limits: Limits,
    rings: BTreeMap<u32, Ring>,
    begun: BTreeSet<u32>,
    uses: u64,
}

impl Rings {
    /// Goes on with what is in a directory.
    pub fn open(dir: OwnedFd, limits: Limits) -> io::Result<Self> {
        let mut found: BTreeMap<u32, (SystemTime, u64)> = BTreeMap::new();
        // No path leads there.
        for entry in std::fs::read_dir(format!("/proc/self/fd/{}", dir.as_raw_fd()))? {
            let name = entry?.file_name();
            let Some((rank, _)) = name.to_str().and_then(|name| name.split_once('.')) else {
                continue;
            };
            let Ok(rank) = rank.parse() else { continue };
            let metadata = file(&dir, &name, OFlag::O_RDONLY)?.metadata()?;
            let one = found.entry(rank).or_insert((SystemTime::UNIX_EPOCH, 0));
            one.0 = one.0.max(metadata.modified()?);
            one.1 += metadata.len();
        }
        let mut order: Vec<_> = found.into_iter().collect();
        order.sort_by_key(|(_, (last, _))| *last);
        let mut rings = Self {
            dir,
            limits,
            rings: BTreeMap::new(),
            begun: BTreeSet::new(),
            uses: 0,
        };
        for (rank, (_, bytes)) in order {
            rings.uses += 1;
            let used = rings.uses;
            let ring = Ring {
                bytes,
                used,
                step: None,
            };
            rings.rings.insert(rank, ring);
        }
        rings.begun = rings.read_begun();
        Ok(rings)
    }

    fn read_begun(&self) -> BTreeSet<u32> {
        let mut bytes = Vec::new();
        let read = file(&self.dir, RANKS_BEGUN.as_ref(), OFlag::O_RDONLY)
            .and_then(|mut file| io::Read::read_to_end(&mut file, &mut bytes));
        let begun = read
            .ok()
            .and_then(|_| RanksBegun::decode(&bytes[..]).ok())
            .unwrap_or_default();
        let all = begun.ranks.iter().flat_map(|part| part.first..=part.last);
        all.take(self.limits.begun).collect()
    }

    /// Notes that tasks have begun, whether they write or not.
    pub fn begin(&mut self, ranks: &[u32]) -> io::Result<()> {
        let before = self.begun.len();
        for rank in ranks {
            if self.begun.len() < self.limits.begun {
                self.begun.insert(*rank);
            }
        }
        if self.begun.len() == before {
            return Ok(());
        }
        self.note_begun()
    }

    /// Replaces the file whole: whoever reads it finds one or the other.
    fn note_begun(&self) -> io::Result<()> {
        let message = RanksBegun {
            ranks: parts(&self.begun),
        };
        let new = OsStr::new("begun.new");
        let mut file = file(&self.dir, new, OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_TRUNC)?;
        file.write_all(&message.encode_to_vec())?;
        Ok(renameat(&self.dir, new, &self.dir, RANKS_BEGUN)?)
    }

    /// Keeps what a task has written.
    pub fn write(&mut self, step: &Step, output: &RankOutput) -> io::Result<()> {
        let rank = output.rank;
        if !self.begun.contains(&rank) {
            self.begin(&[rank])?;
        }
        let last = self.rings.get(&rank).and_then(|ring| ring.step);
        if !self.rings.contains_key(&rank) {
            self.make_room(rank, self.limits.ranks.saturating_sub(1), u64::MAX)?;
        }
        let open = |which| {
            let name = format!("{rank}.{which}");
            file(&self.dir, name.as_ref(), OFlag::O_RDWR | OFlag::O_CREAT)
        };
        let mut kept = Kept::open([open(0)?, open(1)?], self.limits.segment)?;
        let mut notes = String::new();
        if last != Some(step.number) && !kept.is_new() {
            notes.push_str(&step.marker);
        }
        if output.left_out > 0 {
            notes.push_str(&format!("--- {} bytes left out ---\n", output.left_out));
        }
        if !notes.is_empty() {
            if !kept.is_at_line_start()? {
                kept.add(b"\n");
            }
            kept.add(notes.as_bytes());
        }
        kept.add(&output.data);
        let bytes = kept.held()?;
        self.uses += 1;
        let ring = Ring {
            bytes,
            used: self.uses,
            step: Some(step.number),
        };
        self.rings.insert(rank, ring);
        self.make_room(rank, self.limits.ranks, self.limits.bytes)
    }

    /// Drops those that were silent for longest, but this one, until so many tasks and bytes are left.
    fn make_room(&mut self, but: u32, ranks: usize, bytes: u64) -> io::Result<()> {
        let mut sum: u64 = self.rings.values().map(|ring| ring.bytes).sum();
        let mut dropped = false;
        while self.rings.len() > ranks || sum > bytes {
            let others = self.rings.iter().filter(|(rank, _)| **rank != but);
            let Some((rank, held)) = others
                .min_by_key(|(_, ring)| ring.used)
                .map(|(rank, ring)| (*rank, ring.bytes))
            else {
                break;
            };
            for which in 0..2 {
                unlinkat(
                    &self.dir,
                    format!("{rank}.{which}").as_str(),
                    UnlinkatFlags::NoRemoveDir,
                )
                .ok();
            }
            self.rings.remove(&rank);
            self.begun.remove(&rank);
            sum -= held;
            dropped = true;
        }
        if dropped { self.note_begun() } else { Ok(()) }
    }
}

/// Numbers as ranges.
fn parts(ranks: &BTreeSet<u32>) -> Vec<LogRanks> {
    let mut parts: Vec<LogRanks> = Vec::new();
    for rank in ranks.iter().copied() {
        match parts.last_mut() {
            Some(part) if part.last.checked_add(1) == Some(rank) => part.last = rank,
            _ => parts.push(LogRanks {
                first: rank,
                last: rank,
            }),
        }
    }
    parts
}

fn file(dir: &OwnedFd, name: &OsStr, flags: OFlag) -> io::Result<File> {
    let flags = flags | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    let opened = openat(dir.as_fd(), name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?;
    Ok(File::from(opened))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const SMALL: Limits = Limits {
        segment: 100,
        ranks: 4,
        bytes: 600,
        begun: 8,
    };

    fn open(dir: &Path) -> Rings {
        Rings::open(File::open(dir).unwrap().into(), SMALL).unwrap()
    }

    fn said(rank: u32, data: &str) -> RankOutput {
        RankOutput {
            rank,
            left_out: 0,
            data: data.into(),
        }
    }

    fn text(dir: &Path, rank: u32) -> String {
        let read = |which| std::fs::read(dir.join(format!("{rank}.{which}"))).unwrap_or_default();
        let mut both = [read(0), read(1)];
        both.sort_by_key(|bytes| bytes.first_chunk::<8>().copied());
        let bytes = both
            .iter()
            .flat_map(|bytes| bytes.get(8..).unwrap_or_default().to_vec());
        String::from_utf8(bytes.collect()).unwrap()
    }

    fn begun(dir: &Path) -> Vec<(u32, u32)> {
        let begun = RanksBegun::decode(&std::fs::read(dir.join(RANKS_BEGUN)).unwrap()[..]).unwrap();
        begun.ranks.iter().map(|part| (part.first, part.last)).collect()
    }

    #[test]
    fn a_further_step_has_a_marker_and_what_is_missing_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let mut rings = open(dir.path());
        let (first, second) = (Step::new(0, "a"), Step::new(3, "b\nc"));
        rings.write(&first, &said(0, "one\n")).unwrap();
        rings.write(&first, &said(0, "tw")).unwrap();
        assert_eq!(text(dir.path(), 0), "one\ntw");
        rings.write(&second, &said(0, "x\n")).unwrap();
        let gap = RankOutput {
            left_out: 7,
            ..said(0, "y\n")
        };
        rings.write(&second, &gap).unwrap();
        let all = "one\ntw\n--- step 3: b c ---\nx\n--- 7 bytes left out ---\ny\n";
        assert_eq!(text(dir.path(), 0), all);
        rings.write(&second, &said(1, "z\n")).unwrap();
        assert_eq!(text(dir.path(), 1), "z\n", "this rank's only step");
    }

    #[test]
    fn limits_hold_over_deaths() {
        let dir = tempfile::tempdir().unwrap();
        let step = Step::new(0, "a");
        for round in 0..200_u32 {
            // Each time another one, as after a death.
            let mut rings = open(dir.path());
            let rank = round * 7 % 9;
            rings
                .write(&step, &said(rank, &"x".repeat(round as usize * 13 % 250)))
                .unwrap();
            let (mut bytes, mut ranks) = (0, BTreeSet::new());
            for entry in std::fs::read_dir(dir.path()).unwrap() {
                let entry = entry.unwrap();
                let name = entry.file_name().into_string().unwrap();
                if let Ok(rank) = name.split('.').next().unwrap().parse::<u32>() {
                    bytes += entry.metadata().unwrap().len();
                    ranks.insert(rank);
                }
            }
            assert!(
                bytes <= SMALL.bytes && ranks.len() <= SMALL.ranks,
                "{round}: {bytes} {ranks:?}"
            );
            assert!(ranks.contains(&rank), "the newest stays");
        }
    }

    #[test]
    fn who_has_begun_is_known_until_it_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let mut rings = open(dir.path());
        rings.begin(&[4, 5, 6, 9]).unwrap();
        assert_eq!(begun(dir.path()), [(4, 6), (9, 9)]);
        let mut rings = open(dir.path());
        let many: Vec<u32> = (10..100).collect();
        rings.begin(&many).unwrap();
        assert_eq!(begun(dir.path()), [(4, 6), (9, 13)], "there is an end to it");
        let step = Step::new(0, "a");
        for rank in [9, 10, 11, 12, 13] {
            rings.write(&step, &said(rank, "x")).unwrap();
        }
        assert_eq!(begun(dir.path()), [(4, 6), (10, 13)], "the oldest went");
    }
}
