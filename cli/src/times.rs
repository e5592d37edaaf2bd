//! Points in time as people write them, in Slurm's spellings. All are UTC.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::units;

const DAY: i64 = 86_400_000;

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

/// Unix milliseconds of a time to come; one without a date is the next of its kind.
pub fn to_come(text: &str, now: i64) -> Result<i64, String> {
    const RULE: &str = "write now+2h, 16:00, or 2026-12-24T16:00[:00]; times are UTC";
    point(text, now, RULE).map(|point| match point {
        Point::At(at) => at,
        Point::OfDay(of_day) if midnight(now) + of_day > now => midnight(now) + of_day,
        Point::OfDay(of_day) => midnight(now) + of_day + DAY,
    })
}

/// Unix milliseconds of a time that was; one without a date is today's, a length of time is so long ago.
pub fn gone_by(text: &str, now: i64) -> Result<i64, String> {
    const RULE: &str =
        "write 7d (so long ago), now-2h, today, 16:00, or 2026-12-24[T16:00[:00]]; times are UTC";
    if matches!(text, "today" | "midnight") {
        return Ok(midnight(now));
    }
    let ago = |length: Duration| now.saturating_sub(i64::try_from(length.as_millis()).unwrap_or(i64::MAX));
    let unit = |c: char| c.is_ascii_alphabetic();
    if !text.contains([':', '-']) && text.ends_with(unit) && text.starts_with(|c: char| c.is_ascii_digit()) {
        return units::parse_time(&slurm_unit(text))
            .map(ago)
            .map_err(|_| RULE.to_owned());
    }
    point(text, now, RULE).map(|point| match point {
        Point::At(at) => at,
        Point::OfDay(of_day) => midnight(now) + of_day,
    })
}

enum Point {
    /// Unix milliseconds.
    At(i64),
    /// Milliseconds after midnight, of a day that is not said.
    OfDay(i64),
}

fn point(text: &str, now: i64, rule: &str) -> Result<Point, String> {
    if let Some(rest) = text.strip_prefix("now") {
        if rest.is_empty() {
            return Ok(Point::At(now));
        }
        let (sign, length) = match (rest.strip_prefix('+'), rest.strip_prefix('-')) {
            (Some(length), _) => (1, length),
            (None, Some(length)) => (-1, length),
            (None, None) => return Err(rule.to_owned()),
        };
        // Slurm counts in seconds where no unit is given.
        let seconds: Option<u64> = length.parse().ok();
        let length = match seconds {
            Some(seconds) => Duration::from_secs(seconds),
            None => units::parse_time(&slurm_unit(length)).map_err(|_| rule)?,
        };
        let length = i64::try_from(length.as_millis()).map_err(|_| rule)?;
        return Ok(Point::At(now.saturating_add(sign * length)));
    }
    let (date, time) = match text.trim_end_matches('Z').split_once(['T', ' ']) {
        Some((date, time)) => (Some(date), time),
        None if text.contains('-') => (Some(text), "00:00"),
        None => (None, text),
    };
    let numbers = |text: &str, between: char| -> Option<Vec<i64>> {
        text.split(between).map(|part| part.parse().ok()).collect()
    };
    let time =
        numbers(time, ':').filter(|time| matches!(time[..], [0..=23, 0..=59] | [0..=23, 0..=59, 0..=59]));
    let time = time.ok_or(rule)?;
    let of_day = (time[0] * 3_600 + time[1] * 60 + time.get(2).unwrap_or(&0)) * 1_000;
    let Some(date) = date else {
        return Ok(Point::OfDay(of_day));
    };
    let date = numbers(date, '-').filter(|date| matches!(date[..], [1970..=9999, 1..=12, 1..=31]));
    let date = date.ok_or(rule)?;
    Ok(Point::At(units::days(date[0], date[1], date[2]) * DAY + of_day))
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
            "2026-11-22T",
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
        ] {
            assert_eq!(gone_by(text, noon()), Ok(noon() + hours * 3_600_000), "{text}");
        }
        for text in ["", "yesterday", "7", "7x", "d", "now-", "2026-11"] {
            assert!(gone_by(text, noon()).is_err(), "{text}");
        }
    }
}
