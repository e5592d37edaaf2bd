//! Limits on the command line, and as tables show them.

use std::time::Duration;

use carrel_proto::v1;

use crate::units;

/// What becomes of something that may be there or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setting<T> {
    /// It is this.
    To(T),
    /// There is none any more.
    None,
}

/// Reads a value, or "none".
pub(super) fn setting<T>(
    text: &str,
    read: impl FnOnce(&str) -> Result<T, String>,
) -> Result<Setting<T>, String> {
    match text {
        "none" => Ok(Setting::None),
        text => read(text)
            .map(Setting::To)
            .map_err(|why| format!("{why}; or \"none\"")),
    }
}

/// A number of GPUs, in thousandths.
fn parse_gpus(text: &str) -> Result<Setting<u64>, String> {
    setting(text, |text| {
        let rule = || format!("{text:?} is no number of GPUs: 8, or 0.5");
        let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(part) || part.len() > 3 {
            return Err(rule());
        }
        let whole: u64 = whole.parse().map_err(|_| rule())?;
        let part: u64 = format!("{part:0<3}").parse().map_err(|_| rule())?;
        whole
            .checked_mul(1_000)
            .map(|milli| milli + part)
            .ok_or_else(rule)
    })
}

fn parse_jobs(text: &str) -> Result<Setting<u32>, String> {
    setting(text, |text| {
        text.parse().map_err(|_| format!("{text:?} is no number of jobs"))
    })
}

fn parse_minutes(text: &str) -> Result<Setting<u64>, String> {
    setting(text, |text| {
        text.parse()
            .map_err(|_| format!("{text:?} is no number of minutes"))
    })
}

/// A time, or "none".
pub fn parse_time(text: &str) -> Result<Setting<Duration>, String> {
    setting(text, units::parse_time)
}

/// A name, or "none".
pub fn parse_name(text: &str) -> Result<Setting<String>, String> {
    setting(text, |text| Ok(text.to_owned()))
}

/// A name as a change carries it: empty stands for none.
pub fn name_of(setting: Option<Setting<String>>) -> Option<String> {
    setting.map(|setting| match setting {
        Setting::To(name) => name,
        Setting::None => String::new(),
    })
}

/// Names with commas between them; "none" alone: no names.
pub fn names_of(list: Option<&str>) -> Option<v1::Names> {
    let names = |list: &str| match list {
        "none" => Vec::new(),
        list => list.split(',').map(|name| name.trim().to_owned()).collect(),
    };
    list.map(|list| v1::Names { names: names(list) })
}

/// Limits of all jobs together.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Limits (\"none\" takes one away)")]
pub struct LimitArgs {
    /// GPUs held at once
    #[arg(long, value_name = "GPUS", value_parser = parse_gpus)]
    pub max_gpus: Option<Setting<u64>>,
    /// Jobs that run at once
    #[arg(long, value_name = "JOBS", value_parser = parse_jobs)]
    pub max_running: Option<Setting<u32>>,
    /// Jobs that wait or run
    #[arg(long, value_name = "JOBS", value_parser = parse_jobs)]
    pub max_jobs: Option<Setting<u32>>,
    /// Longest time limit of a job
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub max_time: Option<Setting<Duration>>,
    /// GPU-minutes used in each period of the cluster
    #[arg(long, value_name = "MINUTES", value_parser = parse_minutes)]
    pub max_gpu_minutes: Option<Setting<u64>>,
}

/// Limits of each user's jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Limits of each user (\"none\" takes one away)")]
pub struct UserLimitArgs {
    /// GPUs held at once
    #[arg(long, value_name = "GPUS", value_parser = parse_gpus)]
    pub user_max_gpus: Option<Setting<u64>>,
    /// Jobs that run at once
    #[arg(long, value_name = "JOBS", value_parser = parse_jobs)]
    pub user_max_running: Option<Setting<u32>>,
    /// Jobs that wait or run
    #[arg(long, value_name = "JOBS", value_parser = parse_jobs)]
    pub user_max_jobs: Option<Setting<u32>>,
    /// Longest time limit of a job
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub user_max_time: Option<Setting<Duration>>,
    /// GPU-minutes used in each period of the cluster
    #[arg(long, value_name = "MINUTES", value_parser = parse_minutes)]
    pub user_max_gpu_minutes: Option<Setting<u64>>,
}

impl From<UserLimitArgs> for LimitArgs {
    fn from(args: UserLimitArgs) -> Self {
        Self {
            max_gpus: args.user_max_gpus,
            max_running: args.user_max_running,
            max_jobs: args.user_max_jobs,
            max_time: args.user_max_time,
            max_gpu_minutes: args.user_max_gpu_minutes,
        }
    }
}

impl LimitArgs {
    /// As a change.
    pub fn edit(self) -> v1::LimitsEdit {
        let mut clear = Vec::new();
        let set = v1::Limits {
            gpu_milli: split(self.max_gpus, v1::LimitKind::Gpus, &mut clear),
            running: split(self.max_running, v1::LimitKind::Running, &mut clear),
            submitted: split(self.max_jobs, v1::LimitKind::Submitted, &mut clear),
            time_s: split(self.max_time, v1::LimitKind::Time, &mut clear).map(|time| time.as_secs()),
            gpu_minutes: split(self.max_gpu_minutes, v1::LimitKind::GpuMinutes, &mut clear),
        };
        v1::LimitsEdit {
            set: Some(set),
            clear,
        }
    }
}

/// What is to be set; what is to be taken away is noted.
fn split<T>(setting: Option<Setting<T>>, kind: v1::LimitKind, clear: &mut Vec<i32>) -> Option<T> {
    match setting? {
        Setting::To(value) => Some(value),
        Setting::None => {
            clear.push(kind.into());
            None
        }
    }
}

/// GPUs in thousandths: "8", "0.5".
pub fn gpus(milli: u64) -> String {
    (milli as f64 / 1_000.0).to_string()
}

/// "8 GPUs, 4 running, 20 jobs, 12:00:00 each, 1000 GPU-minutes"; empty: none.
pub fn text(limits: Option<&v1::Limits>) -> String {
    let Some(limits) = limits else {
        return String::new();
    };
    let parts = [
        limits.gpu_milli.map(|milli| format!("{} GPUs", gpus(milli))),
        limits.running.map(|jobs| format!("{jobs} running")),
        limits.submitted.map(|jobs| format!("{jobs} jobs")),
        limits
            .time_s
            .map(|time| format!("{} each", units::clock(Duration::from_secs(time)))),
        limits.gpu_minutes.map(|minutes| format!("{minutes} GPU-minutes")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// What is held: "4 GPUs, 2 of 3 jobs run, 17.5 GPU-hours used".
pub fn held(held: Option<&v1::Held>) -> String {
    let held = held.copied().unwrap_or_default();
    format!(
        "{} GPUs, {} of {} jobs run, {:.1} GPU-hours used",
        gpus(held.gpu_milli),
        held.running,
        held.submitted,
        held.used_gpu_hours
    )
}

/// The columns of a table that say what is held: GPUs, jobs that run, all jobs, GPU-hours.
pub fn columns(held: Option<&v1::Held>) -> [String; 4] {
    let held = held.copied().unwrap_or_default();
    [
        gpus(held.gpu_milli),
        held.running.to_string(),
        held.submitted.to_string(),
        format!("{:.1}", held.used_gpu_hours),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_set_and_taken_away() {
        assert_eq!(parse_gpus("8"), Ok(Setting::To(8_000)));
        assert_eq!(parse_gpus("0.5"), Ok(Setting::To(500)));
        assert_eq!(parse_gpus("none"), Ok(Setting::None));
        for bad in ["", "-1", "1.", ".5", "1.2345", "many", "99999999999999999999"] {
            assert!(parse_gpus(bad).expect_err(bad).contains("none"), "{bad}");
        }
        let args = LimitArgs {
            max_gpus: Some(Setting::To(8_000)),
            max_time: Some(Setting::None),
            ..LimitArgs::default()
        };
        let edit = args.edit();
        assert_eq!(edit.clear, [i32::from(v1::LimitKind::Time)]);
        assert_eq!(text(edit.set.as_ref()), "8 GPUs");
    }
}
