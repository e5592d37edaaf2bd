//! A file's attributes, on the wire and for people.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

use bytes::{BufMut, BytesMut};

use super::wire::{Failure, Reader};

const SIZE: u32 = 1;
const OWNER: u32 = 2;
const PERMISSIONS: u32 = 4;
const TIMES: u32 = 8;
const EXTENDED: u32 = 0x8000_0000;

/// What a client wants set.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    pub size: Option<u64>,
    pub owner: Option<(u32, u32)>,
    pub permissions: Option<u32>,
    /// Access and modification, seconds since the epoch.
    pub times: Option<(u32, u32)>,
}

impl Wanted {
    pub fn read(reader: &mut Reader<'_>) -> Result<Self, Failure> {
        let flags = reader.number()?;
        let mut wanted = Self::default();
        if flags & SIZE != 0 {
            wanted.size = Some(reader.long()?);
        }
        if flags & OWNER != 0 {
            wanted.owner = Some((reader.number()?, reader.number()?));
        }
        if flags & PERMISSIONS != 0 {
            wanted.permissions = Some(reader.number()? & 0o7777);
        }
        if flags & TIMES != 0 {
            wanted.times = Some((reader.number()?, reader.number()?));
        }
        if flags & EXTENDED != 0 {
            for _ in 0..reader.number()? {
                reader.string()?;
                reader.string()?;
            }
        }
        Ok(wanted)
    }
}

/// Writes a file's attributes.
pub fn put(out: &mut BytesMut, found: &Metadata) {
    let seconds = |time: i64| u32::try_from(time.max(0)).unwrap_or(u32::MAX);
    out.put_u32(SIZE | OWNER | PERMISSIONS | TIMES);
    out.put_u64(found.size());
    out.put_u32(found.uid());
    out.put_u32(found.gid());
    out.put_u32(found.mode());
    out.put_u32(seconds(found.atime()));
    out.put_u32(seconds(found.mtime()));
}

/// A line as of `ls -l`, for people. The time is UTC.
pub fn long_name(name: &[u8], found: &Metadata) -> Vec<u8> {
    let mode = found.mode();
    let kind = match mode & libc::S_IFMT {
        libc::S_IFDIR => 'd',
        libc::S_IFLNK => 'l',
        libc::S_IFCHR => 'c',
        libc::S_IFBLK => 'b',
        libc::S_IFIFO => 'p',
        libc::S_IFSOCK => 's',
        _ => '-',
    };
    let mut line = String::from(kind);
    for shift in [6, 3, 0] {
        let bits = mode >> shift;
        let special = match shift {
            6 => (libc::S_ISUID, 's'),
            3 => (libc::S_ISGID, 's'),
            _ => (libc::S_ISVTX, 't'),
        };
        line.push(if bits & 4 != 0 { 'r' } else { '-' });
        line.push(if bits & 2 != 0 { 'w' } else { '-' });
        line.push(match (mode & special.0 != 0, bits & 1 != 0) {
            (true, true) => special.1,
            (true, false) => special.1.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    let (nlink, uid, gid, size) = (found.nlink(), found.uid(), found.gid(), found.size());
    let rest = format!(" {nlink:>4} {uid:<8} {gid:<8} {size:>8} {} ", date(found.mtime()));
    [line.as_bytes(), rest.as_bytes(), name].concat()
}

/// "Nov 21  2026", from days since the epoch by the civil calendar.
fn date(seconds: i64) -> String {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    // Years begin in March here, so that leap days come last; eras are 400 years.
    let days = seconds.div_euclid(86_400) + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12;
    let year = era * 400 + year_of_era + i64::from(month < 2);
    format!("{} {day:>2}  {year}", MONTHS[month as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "Jan  1  1970"),
            (951_782_400, "Feb 29  2000"),
            (1_795_219_200, "Nov 21  2026"),
            (-1, "Dec 31  1969"),
        ] {
            assert_eq!(date(seconds), text);
        }
    }
}
