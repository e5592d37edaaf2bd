//! Slurm's words for states and reasons, and how it writes times.

use std::time::Duration;

use carrel_proto::v1::{self, JobState};

use crate::error::{CliError, Result};
use crate::{times, units, view};

/// All states that a job may have, with squeue's short name of each.
pub const STATES: [(JobState, &str); 12] = [
    (JobState::Pending, "PD"),
    (JobState::Configuring, "CF"),
    (JobState::Running, "R"),
    (JobState::Suspended, "S"),
    (JobState::Completing, "CG"),
    (JobState::Completed, "CD"),
    (JobState::Failed, "F"),
    (JobState::Cancelled, "CA"),
    (JobState::Timeout, "TO"),
    (JobState::Preempted, "PR"),
    (JobState::NodeFail, "NF"),
    (JobState::OutOfMemory, "OOM"),
];

/// Slurm's states that no job has here: they match nothing.
const OTHERS: [(&str, &str); 10] = [
    ("BF", "BOOT_FAIL"),
    ("DL", "DEADLINE"),
    ("RQ", "REQUEUED"),
    ("RD", "RESV_DEL_HOLD"),
    ("RF", "REQUEUE_FED"),
    ("RH", "REQUEUE_HOLD"),
    ("RS", "RESIZING"),
    ("RV", "REVOKED"),
    ("SE", "SPECIAL_EXIT"),
    ("ST", "STOPPED"),
];

/// "PD"
pub fn short_state(state: JobState) -> &'static str {
    let known = STATES.iter().find(|(one, _)| *one == state);
    known.map_or("?", |(_, short)| short)
}

/// Reads states with either kind of name; none: all of them.
///
/// # Errors
/// A word that is no state of Slurm's.
pub fn states(words: &[String]) -> Result<Option<Vec<JobState>>> {
    let mut wanted = Vec::new();
    for word in words {
        let upper = word.to_ascii_uppercase();
        if upper == "ALL" {
            return Ok(None);
        }
        let known = STATES
            .iter()
            .find(|(state, short)| upper == *short || upper == view::job_state(*state));
        match known {
            Some((state, _)) => wanted.push(*state),
            // Only the one that is written "CA" or "CANCELLED" is often written otherwise.
            None if upper == "CANCELED" => wanted.push(JobState::Cancelled),
            None if upper == "OUT_OF_ME+" => wanted.push(JobState::OutOfMemory),
            None if OTHERS
                .iter()
                .any(|(short, long)| upper == *short || upper == *long) => {}
            None => {
                let all: Vec<&str> = STATES.iter().map(|(state, _)| view::job_state(*state)).collect();
                return Err(CliError::usage(format!("Invalid job state specified: {word}"))
                    .hint(format!("Valid job states include: {}", all.join(","))));
            }
        }
    }
    Ok(Some(wanted))
}

/// Whether a job waits or holds something.
pub fn is_live(state: JobState) -> bool {
    match state {
        JobState::Pending
        | JobState::Configuring
        | JobState::Running
        | JobState::Suspended
        | JobState::Completing => true,
        JobState::Unspecified
        | JobState::Completed
        | JobState::Failed
        | JobState::Cancelled
        | JobState::Timeout
        | JobState::Preempted
        | JobState::NodeFail
        | JobState::OutOfMemory => false,
    }
}

/// Slurm's word for why a job is in its state: ours begin with it where there is one.
pub fn reason(state: JobState, said: &str) -> String {
    match state {
        JobState::Pending => {
            let word = said.split(':').next().unwrap_or_default().trim();
            match word {
                "" => "None".to_owned(),
                "Headroom" => "Resources".to_owned(),
                "ReservationInvalid" => "Reservation".to_owned(),
                word if word.chars().all(|c| c.is_ascii_alphanumeric()) => word.to_owned(),
                _ => "None".to_owned(),
            }
        }
        JobState::Failed => "NonZeroExitCode".to_owned(),
        JobState::Timeout => "TimeLimit".to_owned(),
        JobState::NodeFail => "NodeDown".to_owned(),
        JobState::OutOfMemory => "OutOfMemory".to_owned(),
        JobState::Unspecified
        | JobState::Configuring
        | JobState::Running
        | JobState::Suspended
        | JobState::Completing
        | JobState::Completed
        | JobState::Cancelled
        | JobState::Preempted => "None".to_owned(),
    }
}

/// A point in time, Unix milliseconds, in UTC: as `SLURM_TIME_FORMAT` says, or "2026-11-22T09:08:07".
pub fn stamp(millis: i64) -> String {
    match std::env::var("SLURM_TIME_FORMAT") {
        Ok(pattern) if pattern.contains('%') => strftime(&pattern, millis),
        Ok(_) | Err(_) => units::rfc3339(millis).trim_end_matches('Z').to_owned(),
    }
}

/// The same, and a word where there is none.
pub fn stamp_or(millis: Option<i64>, none: &str) -> String {
    millis.map_or_else(|| none.to_owned(), stamp)
}

/// The letters of strftime(3) that people write there; others stay as they are.
fn strftime(pattern: &str, millis: i64) -> String {
    let text = units::rfc3339(millis);
    let (date, time) = text.trim_end_matches('Z').split_once('T').unwrap_or((&text, ""));
    let mut date_parts = date.split('-');
    let mut time_parts = time.split(':');
    let [year, month, day] = [(); 3].map(|()| date_parts.next().unwrap_or_default());
    let [hour, minute, second] = [(); 3].map(|()| time_parts.next().unwrap_or_default());
    let seconds = millis.div_euclid(1_000).to_string();
    let mut out = String::new();
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('Y') => out.push_str(year),
            Some('y') => out.push_str(year.get(2..).unwrap_or_default()),
            Some('m') => out.push_str(month),
            Some('d') => out.push_str(day),
            Some('H') => out.push_str(hour),
            Some('M') => out.push_str(minute),
            Some('S') => out.push_str(second),
            Some('s') => out.push_str(&seconds),
            Some('F') => out.push_str(date),
            Some('T') => out.push_str(time),
            Some('R') => out.push_str(&format!("{hour}:{minute}")),
            Some('Z') => out.push_str("UTC"),
            Some('z') => out.push_str("+0000"),
            Some('%') => out.push('%'),
            Some(other) => out.extend(['%', other]),
            None => out.push('%'),
        }
    }
    out
}

/// "0:05", "1:00:00", "2-03:00:00", as squeue has it.
pub fn clock(seconds: u64) -> String {
    units::clock(Duration::from_secs(seconds))
}

/// "00:00:05", "1-00:00:00", as sacct and scontrol have it.
pub fn long_clock(seconds: u64) -> String {
    let (days, hours, minutes, rest) = (
        seconds / 86_400,
        seconds / 3_600 % 24,
        seconds / 60 % 60,
        seconds % 60,
    );
    match days {
        0 => format!("{hours:02}:{minutes:02}:{rest:02}"),
        _ => format!("{days}-{hours:02}:{minutes:02}:{rest:02}"),
    }
}

/// Whether others may be on a job's nodes.
pub fn over_subscribe(request: &v1::ResourceRequest) -> &'static str {
    if request.exclusive { "NO" } else { "OK" }
}

/// Memory as Slurm writes it: "512M", "1.50G"; in megabytes where it is no whole number of gigabytes.
pub fn memory(bytes: u64) -> String {
    const MEGA: u64 = 1 << 20;
    const GIGA: u64 = 1 << 30;
    match bytes {
        0 => "0".to_owned(),
        whole if whole % GIGA == 0 => format!("{}G", whole / GIGA),
        other => format!("{}M", other.div_ceil(MEGA)),
    }
}

/// How sacct and sstat write numbers of bytes that were measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Units {
    /// In the largest unit in which it is a whole number: "1234K".
    #[default]
    Whole,
    /// As it is (`--noconvert`).
    Bytes,
    /// In this one, which is 1024 to the power of so much (`--units`): "1.21M".
    Power(usize),
}

impl Units {
    const LETTERS: [&str; 6] = ["", "K", "M", "G", "T", "P"];

    /// Reads what `--units` takes: K, M, G, T or P.
    ///
    /// # Errors
    /// Another word.
    pub fn parse(text: &str) -> Result<Self> {
        let known = Self::LETTERS
            .iter()
            .skip(1)
            .position(|letter| letter.eq_ignore_ascii_case(text));
        let power = known.ok_or_else(|| {
            CliError::usage(format!("Invalid unit type: {text}")).hint("one of K, M, G, T, P")
        })?;
        Ok(Self::Power(power + 1))
    }

    /// A number of bytes.
    pub fn write(self, bytes: u64) -> String {
        const KILO: u64 = 1_024;
        let last = Self::LETTERS.len() - 1;
        let power = match self {
            _ if bytes == 0 => return "0".to_owned(),
            Self::Bytes => 0,
            Self::Power(power) => power.min(last),
            Self::Whole => {
                let whole = |power: &usize| bytes.is_multiple_of(KILO.pow(*power as u32));
                (1..=last).take_while(whole).last().unwrap_or(0)
            }
        };
        let unit = KILO.pow(power as u32);
        if bytes.is_multiple_of(unit) {
            format!("{}{}", bytes / unit, Self::LETTERS[power])
        } else {
            format!("{:.2}{}", bytes as f64 / unit as f64, Self::LETTERS[power])
        }
    }
}

/// CPU time as sacct has it, of microseconds: "1-02:03:04", "02:03:04", "03:04.567", and "00:03:04" where there is no
/// part of a second.
pub fn cpu_clock(micros: u64) -> String {
    let (seconds, millis) = (micros / 1_000_000, micros / 1_000 % 1_000);
    if millis > 0 && seconds < 3_600 {
        return format!("{:02}:{:02}.{millis:03}", seconds / 60, seconds % 60);
    }
    long_clock(seconds)
}

/// Exit code and signal, "1:0": a code above 128 is a signal's, as shells say it.
pub fn exit_code(state: JobState, code: Option<i32>) -> (i32, i32) {
    match code {
        Some(code @ 129..=192) => (0, code - 128),
        Some(code) => (code, 0),
        None if state == JobState::Failed => (1, 0),
        None => (0, 0),
    }
}

/// A time that was, as sacct's -S takes it, Unix milliseconds.
///
/// # Errors
/// It is none.
pub fn time_gone_by(text: &str) -> Result<i64> {
    times::gone_by(text.trim(), times::now_ms())
        .map_err(|rule| CliError::usage(format!("Invalid time specification ({text})")).hint(rule))
}

/// What a node has, as its `CfgTRES`.
pub fn node_tres(node: &v1::Node) -> String {
    let inventory = node.inventory.clone().unwrap_or_default();
    tres(inventory.cpus, inventory.memory_bytes, inventory.gpus.len())
}

/// What jobs hold of a node, as its `AllocTRES`.
pub fn node_tres_held(node: &v1::Node) -> String {
    let held = node.gpu_holders.iter().filter(|gpu| !gpu.holders.is_empty());
    tres(node.cpus_held, node.memory_held, held.count())
}

fn tres(cpus: u32, bytes: u64, gpus: usize) -> String {
    let gpus = if gpus > 0 {
        format!(",gres/gpu={gpus}")
    } else {
        String::new()
    };
    format!("cpu={cpus},mem={}{gpus}", memory(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_two_names() {
        let words = |text: &str| -> Vec<String> { text.split(',').map(str::to_owned).collect() };
        assert_eq!(
            states(&words("PD,running,OOM")).expect("states"),
            Some(vec![JobState::Pending, JobState::Running, JobState::OutOfMemory])
        );
        assert_eq!(states(&words("R,all")).expect("all"), None);
        assert_eq!(states(&words("BF")).expect("Slurm's"), Some(Vec::new()));
        assert!(
            states(&words("nonsense"))
                .expect_err("none")
                .message
                .contains("nonsense")
        );
    }

    #[test]
    fn reasons_are_slurm_s_words() {
        for (state, said, word) in [
            (
                JobState::Pending,
                "Resources: fewer than 4 free GPUs",
                "Resources",
            ),
            (JobState::Pending, "Headroom: 2 of 8 are kept", "Resources"),
            (
                JobState::Pending,
                "Dependency: it waits for job 4 (afterok)",
                "Dependency",
            ),
            (JobState::Pending, "JobHeldUser", "JobHeldUser"),
            (JobState::Pending, "it is about to be looked at", "None"),
            (JobState::Failed, "exit code 3", "NonZeroExitCode"),
            (JobState::Running, "", "None"),
        ] {
            assert_eq!(reason(state, said), word, "{said}");
        }
    }

    #[test]
    fn exits_have_a_code_and_a_signal() {
        assert_eq!(exit_code(JobState::Failed, Some(3)), (3, 0));
        assert_eq!(exit_code(JobState::Failed, Some(139)), (0, 11));
        assert_eq!(exit_code(JobState::Failed, None), (1, 0));
        assert_eq!(exit_code(JobState::Completed, Some(0)), (0, 0));
        assert_eq!(exit_code(JobState::Failed, Some(255)), (255, 0));
    }

    #[test]
    fn lengths_of_time_and_memory_are_as_slurm_writes_them() {
        assert_eq!(
            (clock(5), clock(3_600)),
            ("0:05".to_owned(), "1:00:00".to_owned())
        );
        assert_eq!(
            (long_clock(5), long_clock(90_061)),
            ("00:00:05".to_owned(), "1-01:01:01".to_owned())
        );
        assert_eq!(
            (memory(512 << 20), memory(3 << 30)),
            ("512M".to_owned(), "3G".to_owned())
        );
    }

    #[test]
    fn what_was_measured_is_written_as_slurm_writes_it() {
        const SECOND: u64 = 1_000_000;
        for (micros, text) in [
            (0, "00:00:00"),
            (999, "00:00:00"),
            (41_000, "00:00.041"),
            (59 * SECOND, "00:00:59"),
            (3_599 * SECOND + 500_000, "59:59.500"),
            (3_600 * SECOND + 500_000, "01:00:00"),
            (90_061 * SECOND, "1-01:01:01"),
        ] {
            assert_eq!(cpu_clock(micros), text, "{micros}");
        }
        let power = |text: &str| Units::parse(text).expect(text);
        for (units, bytes, text) in [
            (Units::Whole, 0, "0"),
            (Units::Whole, 1, "1"),
            (Units::Whole, 4_096, "4K"),
            (Units::Whole, 1_234 << 10, "1234K"),
            (Units::Whole, 12 << 20, "12M"),
            (Units::Whole, 3 << 30, "3G"),
            (Units::Bytes, 1_234 << 10, "1263616"),
            (power("M"), 1_234 << 10, "1.21M"),
            (power("k"), 3 << 30, "3145728K"),
            (power("P"), 0, "0"),
        ] {
            assert_eq!(units.write(bytes), text, "{units:?}");
        }
        assert!(Units::parse("X").is_err() && Units::parse("").is_err());
    }

    #[test]
    fn dates_are_written_in_all_of_slurm_s_ways() {
        let at = |text: &str| time_gone_by(text).map(units::rfc3339);
        for text in [
            "2026-11-22",
            "11/22/26",
            "11.22.26",
            "112226",
            "11/22/2026",
            "2026-11-22T00:00:00",
        ] {
            assert_eq!(at(text).expect(text), "2026-11-22T00:00:00Z", "{text}");
        }
        assert_eq!(at("11/22/26-16:30").expect("with a time"), "2026-11-22T16:30:00Z");
        assert_eq!(at("2026-11-22T09:08").expect("both"), "2026-11-22T09:08:00Z");
        for text in [
            "now",
            "now-1day",
            "now-2hours",
            "today",
            "midnight",
            "noon",
            "16:00",
            "1122",
        ] {
            assert!(at(text).is_ok(), "{text}");
        }
        for text in ["", "nonsense", "13/45/26", "yesterday"] {
            assert!(at(text).is_err(), "{text}");
        }
        assert_eq!(strftime("%d.%m.%y %H:%M %s %%", 0), "01.01.70 00:00 0 %");
    }

    #[test]
    fn nodes_say_what_they_have_and_what_jobs_hold() {
        let gpu = |holders: usize| v1::GpuHolders {
            holders: vec![v1::GpuHolder::default(); holders],
        };
        let node = v1::Node {
            inventory: Some(v1::Inventory {
                cpus: 104,
                memory_bytes: 2 << 40,
                gpus: vec![v1::GpuInfo::default(); 2],
                ..v1::Inventory::default()
            }),
            cpus_held: 4,
            memory_held: 1 << 30,
            gpu_holders: vec![gpu(1), gpu(0)],
            ..v1::Node::default()
        };
        assert_eq!(node_tres(&node), "cpu=104,mem=2048G,gres/gpu=2");
        assert_eq!(node_tres_held(&node), "cpu=4,mem=1G,gres/gpu=1");
    }
}
