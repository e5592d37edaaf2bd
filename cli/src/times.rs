//! Points in time as people write them, in Slurm's spellings. All are UTC.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::units;

/// Milliseconds.
const DAY: i64 = 86_400_000;
const HOUR: i64 = 3_600_000;

/// Now, Unix milliseconds.
pub fn now_ms() -> i64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}

/// When the day began, Unix milliseconds.
pub fn midnight(now: i64) -> i64 {
    now.div_euclid(DAY) * DAY
}

/// When the month began, Unix milliseconds.
pub fn first_of_month(now: i64) -> i64 {
    let date = units::rfc3339(now);
    let mut numbers = date.split(['-', 'T']).map(|number| number.parse().unwrap_or(1));
    let (year, month) = (numbers.next().unwrap_or(1_970), numbers.next().unwrap_or(1));
    units::days(year, month, 1) * DAY
}

/// Unix milliseconds of a time to come; one without a date, or a date without a year, is the next of its kind.
pub fn to_come(text: &str, now: i64) -> Result<i64, String> {
    const RULE: &str = "write now+2h, 16:00, tomorrow, or 2026-12-24T16:00[:00]; times are UTC";
    match point(text, now).ok_or(RULE)? {
        Point::At(at) => Ok(at),
        Point::OfDay(of_day) if midnight(now) + of_day > now => Ok(midnight(now) + of_day),
        Point::OfDay(of_day) => Ok(midnight(now) + of_day + DAY),
        Point::OfYear(month, day, of_day) => {
            let this = days_of(year(now), month, day).map(|days| days * DAY + of_day);
            let next = || days_of(year(now) + 1, month, day).map(|days| days * DAY + of_day);
            Ok(this.filter(|at| *at >= midnight(now)).or_else(next).ok_or(RULE)?)
        }
    }
}

/// Unix milliseconds of a time that was; one without a date is today's, a date without a year the last of its kind, and
/// a length of time is so long ago.
pub fn gone_by(text: &str, now: i64) -> Result<i64, String> {
    const RULE: &str =
        "write 7d (so long ago), now-2h, today, 16:00, or 2026-12-24[T16:00[:00]]; times are UTC";
    let ago = |length: Duration| now.saturating_sub(i64::try_from(length.as_millis()).unwrap_or(i64::MAX));
    let is_word = |c: char| c.is_ascii_alphabetic();
    let is_length = !text.contains([':', '-', '/', '.'])
        && text.ends_with(is_word)
        && text.starts_with(|c: char| c.is_ascii_digit());
    if is_length && !is_of_half_day(text) {
        return units::parse_time(&slurm_unit(text))
            .map(ago)
            .map_err(|_| RULE.to_owned());
    }
    match point(text, now).ok_or(RULE)? {
        Point::At(at) => Ok(at),
        Point::OfDay(of_day) => Ok(midnight(now) + of_day),
        Point::OfYear(month, day, of_day) => {
            let this = days_of(year(now), month, day).map(|days| days * DAY + of_day);
            let last = || days_of(year(now) - 1, month, day).map(|days| days * DAY + of_day);
            let past = this.filter(|at| *at < midnight(now) + DAY);
            Ok(past.or_else(last).ok_or(RULE)?)
        }
    }
}

fn is_of_half_day(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    lower.ends_with("am") || lower.ends_with("pm")
}

fn year(at: i64) -> i64 {
    let date = units::rfc3339(at);
    date.get(..4).and_then(|year| year.parse().ok()).unwrap_or(1_970)
}

/// Days since the epoch of a date; none: there is no such.
fn days_of(year: i64, month: i64, day: i64) -> Option<i64> {
    if !matches!((year, month, day), (1_970..=9_999, 1..=12, 1..=31)) {
        return None;
    }
    let days = units::days(year, month, day);
    // The 31st of a shorter month is none.
    let same = units::rfc3339(days * DAY)
        .get(8..10)
        .and_then(|text| text.parse().ok())
        == Some(day);
    same.then_some(days)
}

enum Point {
    /// Unix milliseconds.
    At(i64),
    /// Milliseconds after midnight, of a day that is not said.
    OfDay(i64),
    /// Month, day, and milliseconds after its midnight, of a year that is not said.
    OfYear(i64, i64, i64),
}

/// A day, as far as it is said.
#[derive(Clone, Copy)]
enum Day {
    /// Since the epoch.
    At(i64),
    /// Month and day.
    OfYear(i64, i64),
}

/// Slurm's spellings (`parse_time` in its `src/common/parse_time.c`): a date, a time of day, or both in any order, with
/// "T", "-" or spaces between them. Dates are 2026-12-24, `12/24[/26]`, `12.24[.26]`, 1224 and 122426; times are `16:00[:00]`,
/// 4:00pm, 4pm, midnight, noon, elevenses, fika and teatime.
fn point(text: &str, now: i64) -> Option<Point> {
    let text = text.trim().to_ascii_lowercase();
    if let Some(rest) = text.strip_prefix("now") {
        return from_now(rest, now).map(Point::At);
    }
    let utc = text
        .strip_suffix('z')
        .filter(|text| text.ends_with(|c: char| c.is_ascii_digit()));
    let (mut rest, mut day, mut of_day) = (utc.unwrap_or(&text), None, None);
    loop {
        rest = rest.trim_start_matches([' ', '-']);
        let after = rest.strip_prefix('t');
        rest = after
            .filter(|after| day.is_some() && after.starts_with(|c: char| c.is_ascii_digit()))
            .unwrap_or(rest);
        if rest.is_empty() {
            break;
        }
        let is_first_of_word = rest.starts_with(|c: char| c.is_ascii_alphabetic());
        let end = |is_of: fn(char) -> bool| rest.find(|c| !is_of(c)).unwrap_or(rest.len());
        if is_first_of_word {
            let (word, after) = rest.split_at(end(|c| c.is_ascii_alphabetic()));
            rest = after;
            match (word, hour(word)) {
                ("today", _) if day.is_none() => day = Some(Day::At(now.div_euclid(DAY))),
                ("tomorrow", _) if day.is_none() => day = Some(Day::At(now.div_euclid(DAY) + 1)),
                (_, Some(hour)) if of_day.is_none() => of_day = Some(hour * HOUR),
                _ => return None,
            }
            continue;
        }
        if let Some((date, after)) = iso_date(rest).filter(|_| day.is_none()) {
            (day, rest) = (Some(Day::At(date)), after);
            continue;
        }
        let (word, after) = rest.split_at(end(|c| c.is_ascii_digit() || matches!(c, ':' | '/' | '.')));
        let half = ["am", "pm"]
            .into_iter()
            .find(|half| after.trim_start().starts_with(half));
        if word.contains(':') || half.is_some() {
            let time = clock(word, half).filter(|_| of_day.is_none())?;
            of_day = Some(time);
            rest = after;
            if half.is_some() {
                rest = &after.trim_start()[2..];
            }
        } else {
            day = Some(american_date(word).filter(|_| day.is_none())?);
            rest = after;
        }
    }
    match (day, of_day) {
        (Some(Day::At(day)), of_day) => Some(Point::At(day * DAY + of_day.unwrap_or(0))),
        (Some(Day::OfYear(month, day)), of_day) => Some(Point::OfYear(month, day, of_day.unwrap_or(0))),
        (None, of_day) => of_day.map(Point::OfDay),
    }
}

fn from_now(rest: &str, now: i64) -> Option<i64> {
    if rest.is_empty() {
        return Some(now);
    }
    let (sign, length) = match (rest.strip_prefix('+'), rest.strip_prefix('-')) {
        (Some(length), _) => (1, length),
        (None, length) => (-1, length?),
    };
    // Slurm counts in seconds where no unit is given.
    let seconds: Option<u64> = length.parse().ok();
    let length = match seconds {
        Some(seconds) => Duration::from_secs(seconds),
        None => units::parse_time(&slurm_unit(length)).ok()?,
    };
    Some(now.saturating_add(sign * i64::try_from(length.as_millis()).ok()?))
}

/// What Slurm calls hours of the day.
fn hour(word: &str) -> Option<i64> {
    Some(match word {
        "midnight" => 0,
        "elevenses" => 11,
        "noon" => 12,
        "fika" => 15,
        "teatime" => 16,
        _ => return None,
    })
}

fn numbers(text: &str, between: &[char]) -> Option<Vec<i64>> {
    let number = |part: &str| part.parse::<u16>().ok().map(i64::from);
    text.split(between).map(number).collect()
}

/// Days since the epoch of the "2026-12-24" that a text begins with, and the rest of it.
fn iso_date(text: &str) -> Option<(i64, &str)> {
    let is_year = text.as_bytes().get(4) == Some(&b'-');
    let end = text.get(5..).filter(|_| is_year)?;
    let day = end.find('-')? + 6;
    let length = text.get(day..)?.find(|c: char| !c.is_ascii_digit());
    let (date, rest) = text.split_at(length.map_or(text.len(), |length| day + length));
    let date = numbers(date, &['-'])?;
    let [year, month, day] = date[..] else {
        return None;
    };
    Some((days_of(year, month, day)?, rest))
}

/// `12/24[/26]`, `12.24[.2026]`, "1224" or "122426".
fn american_date(word: &str) -> Option<Day> {
    let parts = match word.len() {
        4 | 6 if word.bytes().all(|b| b.is_ascii_digit()) => {
            let pair = |at: usize| word.get(at..at + 2).and_then(|pair| pair.parse().ok());
            (0..word.len()).step_by(2).map(pair).collect::<Option<Vec<i64>>>()
        }
        _ => numbers(word, &['/', '.']),
    }?;
    match parts[..] {
        [month, day] => {
            // Of a leap year, so that no day of any year is missing.
            days_of(2_028, month, day)?;
            Some(Day::OfYear(month, day))
        }
        [month, day, year] if year < 100 => days_of(2_000 + year, month, day).map(Day::At),
        [month, day, year] => days_of(year, month, day).map(Day::At),
        _ => None,
    }
}

/// Milliseconds after midnight of `16:00[:00]`, or of `4[:00[:00]]` in the first or second half of the day.
fn clock(word: &str, half: Option<&str>) -> Option<i64> {
    let parts = numbers(word, &[':'])?;
    let (hour, minute, second) = match parts[..] {
        [hour] if half.is_some() => (hour, 0, 0),
        [hour, minute] => (hour, minute, 0),
        [hour, minute, second] => (hour, minute, second),
        _ => return None,
    };
    let hour = match (half, hour) {
        (None, 0..=23) => hour,
        (Some("am"), 1..=12) => hour % 12,
        (Some(_), 1..=12) => hour % 12 + 12,
        _ => return None,
    };
    matches!((minute, second), (0..=59, 0..=59)).then_some(hour * HOUR + minute * 60_000 + second * 1_000)
}

/// "2hours" as "2h": Slurm's words for units.
fn slurm_unit(text: &str) -> String {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "second" | "seconds" => "s",
        "minute" | "minutes" => "m",
        "hour" | "hours" => "h",
        "day" | "days" => "d",
        "week" | "weeks" => "w",
        other => other,
    };
    format!("{digits}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-21T12:00:00Z
    fn noon() -> i64 {
        units::days(2026, 11, 21) * DAY + 12 * 3_600_000
    }

    #[test]
    fn times_to_come_are_written_as_in_slurm() {
        for (text, hours) in [
            ("now", 0),
            ("now+7200", 2),
            ("now+2h", 2),
            ("now+3hours", 3),
            ("now+1day", 24),
            ("16:00", 4),
            ("11:00", 23),
            ("2026-11-22", 12),
            ("2026-11-22T13:00", 25),
            ("2026-11-22T13:00:00Z", 25),
            ("2026-11-22-13:00:00", 25),
            ("2026-11-22 13:00", 25),
            ("13:00 2026-11-22", 25),
            ("tomorrow", 12),
            ("tomorrow 1pm", 25),
            ("noon", 24),
            ("teatime", 4),
            ("4:00 PM 11/21/26", 4),
            ("1121-16:00", 4),
            ("01/01", 41 * 24 - 12),
            ("010127", 41 * 24 - 12),
        ] {
            assert_eq!(to_come(text, noon()), Ok(noon() + hours * 3_600_000), "{text}");
        }
        for text in [
            "",
            "later",
            "25:00",
            "12",
            "2026-13-01",
            "now+x",
            "now2h",
            "2026-02-30",
            "2026-11-22 2026-11-23",
            "16:00 17:00",
            "13pm",
            "4:60",
            "1/2/3/4",
            "tomorrow today",
            "é",
        ] {
            assert!(to_come(text, noon()).is_err(), "{text}");
        }
    }

    #[test]
    fn months_begin_with_their_first_day() {
        assert_eq!(first_of_month(noon()), units::days(2026, 11, 1) * DAY);
        assert_eq!(first_of_month(0), 0);
    }

    #[test]
    fn times_that_were_are_today_s_or_so_long_ago() {
        for (text, hours) in [
            ("now", 0),
            ("now-2h", -2),
            ("now-2days", -48),
            ("7d", -7 * 24),
            ("2weeks", -14 * 24),
            ("today", -12),
            ("midnight", -12),
            ("16:00", 4),
            ("11:00", -1),
            ("2026-11-20", -36),
            ("1120", -36),
            ("11.20.2026-00:00", -36),
            ("11am", -1),
            ("12/01", -355 * 24 - 12),
        ] {
            assert_eq!(gone_by(text, noon()), Ok(noon() + hours * 3_600_000), "{text}");
        }
        for text in ["", "yesterday", "7", "7x", "d", "now-", "2026-11"] {
            assert!(gone_by(text, noon()).is_err(), "{text}");
        }
    }
}
