//! Jobs as traces have them.

use std::path::Path;

use anyhow::{Context, ensure};
use clap::ValueEnum;
use serde::Deserialize;

use crate::lists::{Row, read, unpacked};

/// How a trace is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Microsoft's Philly clusters: the published JSON (<https://github.com/msr-fiddle/philly-traces>), or CSV with
    /// timestamp, duration, num_gpus and cluster
    Philly,
    /// Pods of Alibaba's gpu-v2023: CSV with num_gpu, qos, creation_time, scheduled_time and deletion_time
    Openb,
    /// Standard Workload Format (<https://www.cs.huji.ac.il/labs/parallel/workload/swf.html>); a processor counts as a
    /// GPU
    Swf,
}

/// A job as it stands in a trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entry {
    /// Submitted, seconds from any zero.
    pub arrival: f64,
    /// It ran for so many seconds; none: that is not known.
    pub runtime: Option<f64>,
    /// GPUs, whole.
    pub gpus: u32,
    /// Whose; none: the trace does not say.
    pub user: Option<String>,
    /// Who else is in that one's place: a virtual cluster.
    pub group: String,
    /// Somebody sits in front of it; none: the trace does not say.
    pub interactive: Option<bool>,
    /// The time limit that its user set, seconds; none: the trace does not say.
    pub limit: Option<f64>,
}

impl Format {
    /// Reads a trace.
    pub fn read(self, path: &Path) -> anyhow::Result<Vec<Entry>> {
        match self {
            Self::Philly => {
                let text = unpacked(path).with_context(|| path.display().to_string())?;
                if text.trim_start().starts_with('[') {
                    philly_json(&text).with_context(|| path.display().to_string())
                } else {
                    read(path, &["timestamp", "duration", "num_gpus", "cluster"], philly)
                }
            }
            Self::Openb => read(
                path,
                &[
                    "num_gpu",
                    "qos",
                    "creation_time",
                    "scheduled_time",
                    "deletion_time",
                ],
                openb,
            ),
            Self::Swf => {
                let text = unpacked(path).with_context(|| path.display().to_string())?;
                swf(&text).with_context(|| path.display().to_string())
            }
        }
    }
}

fn seconds(row: &Row<'_>, column: &str) -> anyhow::Result<Option<f64>> {
    let text = row.text(column).unwrap_or_default();
    if text.is_empty() {
        return Ok(None);
    }
    let value: f64 = text
        .parse()
        .with_context(|| format!("{column}: {text:?} is no number"))?;
    ensure!(value.is_finite(), "{column}: {text:?} is no time");
    Ok(Some(value))
}

fn philly(row: &Row<'_>) -> anyhow::Result<Entry> {
    let when = row.text("timestamp").unwrap_or_default();
    Ok(Entry {
        arrival: date(when)
            .with_context(|| format!("timestamp: {when:?} is not like 2017-10-09 07:01:55"))?,
        runtime: seconds(row, "duration")?,
        gpus: row.number("num_gpus")?,
        group: row.text("cluster").unwrap_or_default().to_owned(),
        ..Entry::default()
    })
}

/// A pod that was never scheduled has no runtime; one that still ran at the end of the trace ran until then. Parts of
/// a GPU count as a whole one.
fn openb(row: &Row<'_>) -> anyhow::Result<Entry> {
    let scheduled = seconds(row, "scheduled_time")?;
    let deleted = seconds(row, "deletion_time")?;
    Ok(Entry {
        arrival: seconds(row, "creation_time")?.context("creation_time: is empty")?,
        runtime: scheduled.zip(deleted).map(|(from, until)| until - from),
        gpus: row.number("num_gpu")?,
        interactive: Some(row.text("qos") == Some("LS")),
        ..Entry::default()
    })
}

#[derive(Deserialize)]
struct PhillyJob {
    submitted_time: String,
    #[serde(default)]
    user: String,
    #[serde(default)]
    vc: String,
    #[serde(default)]
    attempts: Vec<PhillyAttempt>,
}

#[derive(Deserialize)]
struct PhillyAttempt {
    #[serde(default)]
    start_time: Option<String>,
    #[serde(default)]
    end_time: Option<String>,
    #[serde(default)]
    detail: Vec<PhillyNode>,
}

#[derive(Deserialize)]
struct PhillyNode {
    #[serde(default)]
    gpus: Vec<String>,
}

/// A job ran for as long as all its attempts together, on as many GPUs as the largest.
fn philly_json(text: &str) -> anyhow::Result<Vec<Entry>> {
    let jobs: Vec<PhillyJob> = serde_json::from_str(text)?;
    let entry = |job: PhillyJob| {
        let when = &job.submitted_time;
        let arrival = date(when)
            .with_context(|| format!("submitted_time: {when:?} is not like 2017-10-09 07:01:55"))?;
        let ran = |attempt: &PhillyAttempt| {
            let from = date(attempt.start_time.as_deref()?)?;
            Some(date(attempt.end_time.as_deref()?)? - from)
        };
        // One attempt of unknown length leaves the whole unknown.
        let times: Option<Vec<f64>> = job.attempts.iter().map(ran).collect();
        let gpus = |attempt: &PhillyAttempt| attempt.detail.iter().map(|node| node.gpus.len()).sum::<usize>();
        Ok(Entry {
            arrival,
            runtime: times
                .filter(|times| !times.is_empty())
                .map(|times| times.iter().sum()),
            gpus: job.attempts.iter().map(gpus).max().unwrap_or(0) as u32,
            user: (!job.user.is_empty()).then_some(job.user),
            group: job.vc,
            ..Entry::default()
        })
    };
    jobs.into_iter().map(entry).collect()
}

/// Fields: 1 number, 2 submitted, 3 waited, 4 ran, 5 processors had, 6 CPU time, 7 memory, 8 processors asked for,
/// 9 time asked for, 10 memory asked for, 11 status, 12 user. -1: unknown.
fn swf(text: &str) -> anyhow::Result<Vec<Entry>> {
    let lines = text.lines().enumerate();
    let jobs = lines.filter(|(_, line)| !line.trim().is_empty() && !line.trim_start().starts_with(';'));
    let entry = |(number, line): (usize, &str)| {
        let fields: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
        let fields = fields.with_context(|| format!("line {}: a field is no number", number + 1))?;
        ensure!(
            fields.len() >= 12,
            "line {}: {} fields, and at least 12 are needed",
            number + 1,
            fields.len()
        );
        let known = |field: usize| Some(fields[field - 1]).filter(|value| *value >= 0.0);
        Ok(Entry {
            arrival: fields[1],
            runtime: known(4),
            gpus: known(8).filter(|asked| *asked > 0.0).or(known(5)).unwrap_or(0.0) as u32,
            user: known(12).map(|user| user.to_string()),
            limit: known(9).filter(|asked| *asked > 0.0),
            ..Entry::default()
        })
    };
    jobs.map(entry).collect()
}

/// "2017-10-09 07:01:55", with or without a zone, which is the same for all: seconds since 1970.
fn date(text: &str) -> Option<f64> {
    let mut words = text.split([' ', 'T']);
    let mut day = words.next()?.split('-').map(|part| part.parse::<i64>().ok());
    let (year, month, date) = (day.next()??, day.next()??, day.next()??);
    let time = words.next()?.trim_end_matches('Z');
    let mut time = time.split(':').map(|part| part.parse::<f64>().ok());
    let (hours, minutes, seconds) = (time.next()??, time.next()??, time.next()??);
    let right = (1..=12).contains(&month) && (1..=31).contains(&date);
    right.then(|| days(year, month, date) as f64 * 86_400.0 + hours * 3_600.0 + minutes * 60.0 + seconds)
}

/// Days from 1970 to a date of the Gregorian calendar, by Hinnant's `days_from_civil`
/// (<https://howardhinnant.github.io/date_algorithms.html>).
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_counted_from_1970() {
        assert_eq!(date("1970-01-01 00:00:00"), Some(0.0));
        assert_eq!(date("2017-10-09 07:01:55"), Some(1_507_532_515.0));
        assert_eq!(date("2000-03-01T00:00:00Z"), Some(951_868_800.0));
        assert_eq!(date("None"), None);
    }

    #[test]
    fn a_job_of_several_attempts_ran_for_all_of_them() {
        let text = r#"[{"status": "Pass", "vc": "ee9e8c", "jobid": "application_1", "user": "ce2f4f",
            "submitted_time": "2017-10-09 07:00:00", "attempts": [
            {"start_time": "2017-10-09 07:01:00", "end_time": "2017-10-09 07:02:00",
             "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}, {"ip": "m2", "gpus": ["gpu7"]}]},
            {"start_time": "2017-10-09 07:03:00", "end_time": "2017-10-09 07:03:30", "detail": []}]},
            {"submitted_time": "2017-10-09 08:00:00",
             "attempts": [{"start_time": "2017-10-09 08:01:00", "end_time": null}]}]"#;
        let jobs = philly_json(text).expect("jobs");
        assert_eq!((jobs[0].runtime, jobs[0].gpus), (Some(90.0), 3));
        assert_eq!(jobs[0].user.as_deref(), Some("ce2f4f"));
        assert_eq!((jobs[1].runtime, jobs[1].gpus), (None, 0));
    }

    #[test]
    fn fields_of_the_standard_workload_format() {
        let text = "; MaxProcs: 128\n\n 1 60 -1 1451 16 -1 -1 32 3600 -1 1 7 1 1 1 -1 -1 -1\n 2 61 -1 -1 4 -1 -1 -1 -1 -1 0 -1 1 1 1 -1 -1 -1\n";
        let jobs = swf(text).expect("jobs");
        assert_eq!(
            (jobs[0].runtime, jobs[0].gpus, jobs[0].limit),
            (Some(1451.0), 32, Some(3600.0))
        );
        assert_eq!((jobs[1].runtime, jobs[1].gpus, jobs[1].limit), (None, 4, None));
        assert!(swf("1 2 3").is_err());
    }
}
