//! When a job may start: `--begin`, `--hold`, `--dependency`, in Slurm's spelling.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use carrel_proto::v1;

use crate::units;

/// As in Slurm.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "When")]
pub struct StartArgs {
    /// Not before: now+2h, 16:00 (UTC), 2026-12-24T16:00
    #[arg(long, value_name = "TIME", value_parser = parse_begin)]
    pub begin: Option<i64>,
    /// Not until `carrel release`
    #[arg(long, short = 'H')]
    pub hold: bool,
    /// Not before other jobs: afterok:12:13,afterany:14 (all of them), with ? between them (any), singleton
    #[arg(short = 'd', long, value_name = "KIND:JOB", value_parser = parse_dependencies)]
    pub dependency: Option<v1::Conditions>,
}

impl StartArgs {
    /// For the broker; none: whenever there is room.
    pub fn wish(&self) -> Option<v1::StartWish> {
        let wish = v1::StartWish {
            begin_ms: self.begin.unwrap_or(0),
            hold: self.hold,
            conditions: self.dependency.clone(),
            within_ms: None,
        };
        (wish != v1::StartWish::default()).then_some(wish)
    }
}

fn now_ms() -> i64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}

fn parse_begin(text: &str) -> Result<i64, String> {
    begin_at(text, now_ms())
}

/// Unix milliseconds of a time that is written as Slurm takes it, in UTC.
fn begin_at(text: &str, now: i64) -> Result<i64, String> {
    const RULE: &str = "write now+2h, 16:00, or 2026-12-24T16:00[:00]; times are UTC";
    const DAY: i64 = 86_400_000;
    if let Some(rest) = text.strip_prefix("now") {
        if rest.is_empty() {
            return Ok(now);
        }
        let later = rest.strip_prefix('+').ok_or(RULE)?;
        // Slurm counts in seconds where no unit is given.
        let seconds: Option<u64> = later.parse().ok();
        let later = match seconds {
            Some(seconds) => Duration::from_secs(seconds),
            None => units::parse_extension(&slurm_unit(later)).map_err(|_| RULE)?,
        };
        let later = i64::try_from(later.as_millis()).map_err(|_| RULE)?;
        return Ok(now.saturating_add(later));
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
    let time = time.ok_or(RULE)?;
    let of_day = (time[0] * 3_600 + time[1] * 60 + time.get(2).unwrap_or(&0)) * 1_000;
    let Some(date) = date else {
        let today = now.div_euclid(DAY) * DAY + of_day;
        return Ok(if today > now { today } else { today + DAY });
    };
    let date = numbers(date, '-').filter(|date| matches!(date[..], [1970..=9999, 1..=12, 1..=31]));
    let date = date.ok_or(RULE)?;
    Ok(units::days(date[0], date[1], date[2]) * DAY + of_day)
}

/// "2hours" as "2h": Slurm's words for units.
fn slurm_unit(text: &str) -> String {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "second" | "seconds" => "s",
        "minute" | "minutes" => "m",
        "hour" | "hours" => "h",
        "day" | "days" => "d",
        other => other,
    };
    format!("{digits}{unit}")
}

fn parse_dependencies(text: &str) -> Result<v1::Conditions, String> {
    const RULE: &str = "write afterok:JOB[:JOB…], afterany:…, afternotok:…, after:…, or singleton; with ',' between \
                        them all are waited for, with '?' any";
    let (all, any) = (text.contains(','), text.contains('?'));
    if all && any {
        return Err("use ',' or '?' between them, not both".to_owned());
    }
    let mut conditions = v1::Conditions {
        any,
        ..Default::default()
    };
    for part in text.split([',', '?']) {
        if part == "singleton" {
            conditions.singleton = true;
            continue;
        }
        let (kind, jobs) = part.split_once(':').ok_or(RULE)?;
        let kind = match kind {
            "after" => v1::DependencyKind::After,
            "afterany" => v1::DependencyKind::AfterAny,
            "afterok" => v1::DependencyKind::AfterOk,
            "afternotok" => v1::DependencyKind::AfterNotOk,
            _ => return Err(format!("{kind:?} is no kind of dependency: {RULE}")),
        };
        for job in jobs.split(':') {
            conditions.dependencies.push(v1::Dependency {
                kind: kind.into(),
                job: job.parse().map_err(|_| format!("{job:?} is no job id"))?,
            });
        }
    }
    if conditions.any && conditions.singleton {
        return Err("singleton stands with ',' only".to_owned());
    }
    Ok(conditions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn begins_are_written_as_in_slurm() {
        // 2026-11-21T12:00:00Z
        let now = units::days(2026, 11, 21) * 86_400_000 + 12 * 3_600_000;
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
            assert_eq!(begin_at(text, now), Ok(now + hours * 3_600_000), "{text}");
        }
        for text in [
            "",
            "later",
            "25:00",
            "12",
            "2026-13-01",
            "now-1",
            "now+x",
            "2026-11-22T",
        ] {
            assert!(begin_at(text, now).is_err(), "{text}");
        }
    }

    #[test]
    fn dependencies_are_written_as_in_slurm() {
        let kinds = |text: &str| {
            let conditions = parse_dependencies(text).expect(text);
            let jobs: Vec<(i32, u64)> = conditions
                .dependencies
                .iter()
                .map(|one| (one.kind, one.job))
                .collect();
            (jobs, conditions.any, conditions.singleton)
        };
        assert_eq!(kinds("afterok:12:13"), (vec![(3, 12), (3, 13)], false, false));
        assert_eq!(kinds("afterany:1,singleton"), (vec![(2, 1)], false, true));
        assert_eq!(kinds("after:1?afternotok:2"), (vec![(1, 1), (4, 2)], true, false));
        for text in [
            "",
            "12",
            "afterok",
            "afterok:",
            "afterok:x",
            "before:1",
            "after:1,after:2?after:3",
            "singleton?after:1",
        ] {
            assert!(parse_dependencies(text).is_err(), "{text}");
        }
    }
}
