//! What an agent's log says of jobs, and when.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};

/// Microseconds of a day.
const DAY: u64 = 24 * 60 * 60 * 1_000_000;
/// Between two looks: times are the log's own, so it shortens none.
const LOOK: Duration = Duration::from_millis(2);
/// How long a line is waited for.
const PATIENCE: Duration = Duration::from_mins(2);

/// What befell a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The agent has taken it from the broker, and asks for its container.
    Starting,
    /// Its container is there.
    Ready,
    /// Nothing is left of it: its GPUs are free.
    Released,
}

/// A line of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What it says.
    pub what: What,
    /// Of which job.
    pub job: u64,
    /// When it says so.
    pub at: TimeOfDay,
}

/// A time, microseconds since midnight UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeOfDay(u64);

impl TimeOfDay {
    /// Now.
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self((since.as_micros() % u128::from(DAY)) as u64)
    }

    /// How long after `earlier`, milliseconds; over midnight, too.
    pub fn since(self, earlier: Self) -> f64 {
        ((self.0 + DAY - earlier.0) % DAY) as f64 / 1e3
    }

    /// From "2026-01-31T23:59:59.999999Z".
    fn parse(text: &str) -> Option<Self> {
        let (_, time) = text.strip_suffix('Z')?.split_once('T')?;
        let (whole, micros) = time.split_once('.')?;
        let mut parts = whole.split(':').map(|part| part.parse::<u64>().ok());
        let (hours, minutes, seconds) = (parts.next()??, parts.next()??, parts.next()??);
        let micros: u64 = format!("{micros:0<6}").get(..6)?.parse().ok()?;
        Some(Self(((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + micros))
    }
}

impl Event {
    /// From "TIME  INFO job{job=17@2}: carrel_node::jobs::worker: released exit_code=0", or with the job after the words.
    fn parse(line: &str) -> Option<Self> {
        let (time, rest) = line.split_once(' ')?;
        let (_, said) = rest.split_once("carrel_node::")?;
        let (_, said) = said.split_once(": ")?;
        let what = match said.split_whitespace().next()? {
            "starting" => What::Starting,
            "ready" => What::Ready,
            "released" => What::Released,
            _ => return None,
        };
        let (_, key) = rest.split_once("job=")?;
        let (id, _) = key.split_once('@')?;
        Some(Self {
            what,
            job: id.parse().ok()?,
            at: TimeOfDay::parse(time)?,
        })
    }
}

/// Follows a log from where it ends now.
pub struct Follower {
    file: File,
    rest: String,
    waiting: VecDeque<Event>,
}

impl Follower {
    /// Of an agent's log.
    pub fn new(path: &Path) -> anyhow::Result<Self> {
        let mut file = File::open(path).with_context(|| path.display().to_string())?;
        std::io::Seek::seek(&mut file, std::io::SeekFrom::End(0))?;
        Ok(Self {
            file,
            rest: String::new(),
            waiting: VecDeque::new(),
        })
    }

    /// The next event that is as wanted; those before it are dropped.
    pub fn next(&mut self, what: &str, wanted: impl Fn(&Event) -> bool) -> anyhow::Result<Event> {
        let end = Instant::now() + PATIENCE;
        loop {
            while let Some(event) = self.waiting.pop_front() {
                if wanted(&event) {
                    return Ok(event);
                }
            }
            if Instant::now() > end {
                bail!(
                    "the agent's log does not say after {} s: {what}",
                    PATIENCE.as_secs()
                );
            }
            self.read()?;
            if self.waiting.is_empty() {
                std::thread::sleep(LOOK);
            }
        }
    }

    fn read(&mut self) -> anyhow::Result<()> {
        let mut bytes = Vec::new();
        self.file.read_to_end(&mut bytes)?;
        self.rest += &String::from_utf8_lossy(&bytes);
        while let Some((line, rest)) = self.rest.split_once('\n') {
            self.waiting.extend(Event::parse(line));
            self.rest = rest.to_owned();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_an_agent_are_understood() {
        let lines = [
            "2026-11-22T05:14:00.000250Z  INFO job{job=17@4294967298}: carrel_node::jobs::worker: released exit_code=143",
            "2026-11-22T05:14:00.001500Z  INFO carrel_node::service: starting job=18@3 name=\"job-9: x\" image=\"i\" gpus=1",
            "2026-11-22T05:14:00.2Z  INFO job{job=18@3}: carrel_node::jobs::worker: ready",
            "2026-11-22T05:14:00.3Z  INFO carrel_node::service: stopping job=18@3 grace_ms=10000",
            "  starting of something else: job=1@1",
            "",
        ];
        let events: Vec<Event> = lines.iter().filter_map(|line| Event::parse(line)).collect();
        let told: Vec<_> = events.iter().map(|event| (event.what, event.job)).collect();
        assert_eq!(
            told,
            [(What::Released, 17), (What::Starting, 18), (What::Ready, 18)]
        );
        assert!((events[1].at.since(events[0].at) - 1.25).abs() < 1e-9);
        assert!((events[2].at.since(events[1].at) - 198.5).abs() < 1e-9);
    }

    #[test]
    fn midnight_is_no_day() {
        let time = |text| TimeOfDay::parse(text).expect("a time");
        let (before, after) = (
            time("2026-01-31T23:59:59.999000Z"),
            time("2026-02-01T00:00:00.001Z"),
        );
        assert!((after.since(before) - 2.0).abs() < 1e-9);
        for wrong in [
            "",
            "12:00:00.0Z",
            "2026-01-31T12:00Z",
            "2026-01-31Tx:00:00.0Z",
            "2026-01-31T12:00:00.0",
        ] {
            assert_eq!(TimeOfDay::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_log_is_followed_by_whole_lines() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("n0.log");
        let line =
            |job: u32| format!("2026-11-22T05:14:00.1Z  INFO carrel_node::service: starting job={job}@1\n");
        std::fs::write(&path, line(1)).expect("written");
        let mut log = Follower::new(&path).expect("opened");
        let mut file = File::options().append(true).open(&path).expect("opened");
        let (text, half) = (line(2) + &line(3), line(2).len() + 10);
        std::io::Write::write_all(&mut file, &text.as_bytes()[..half]).expect("written");
        assert_eq!(log.next("a start", |_| true).expect("read").job, 2);
        std::io::Write::write_all(&mut file, &text.as_bytes()[half..]).expect("written");
        assert_eq!(log.next("a start", |event| event.job == 3).expect("read").job, 3);
    }
}
