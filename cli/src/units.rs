//! Numbers, sizes and times as people write them: Slurm's spellings, and the
//! short ones that everybody tries first (`4h`, `64GiB`).

use std::fmt;
use std::time::Duration;

use carrel_core::model::gpu_unit::is_profile;

/// Longest time limit that is taken for meant: ten years.
const LONGEST: u64 = 10 * 366 * 24 * 3600;
/// More nodes, GPUs or CPUs than this are a slip of the keyboard.
pub const MOST: u32 = 1_000_000;

/// A time limit: `30` (minutes), `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM`, `D-HH:MM:SS`
/// as in Slurm, or units: `2d`, `4h`, `90m`, `30s`, `1h30m`.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    if is_unlimited(text.trim()) {
        return Err("there is no time without end: say the longest that it may take".into());
    }
    let seconds = seconds_of(text.trim())
        .ok_or("a time is minutes (30), HH:MM:SS, D-HH:MM, or has units (4h, 90m, 1d12h)")?;
    match seconds {
        0 => Err("the time must be more than zero".into()),
        1..=LONGEST => Ok(Duration::from_secs(seconds)),
        _ => Err("the time is longer than ten years".into()),
    }
}

/// Slurm's words for no limit.
fn is_unlimited(text: &str) -> bool {
    text == "-1"
        || ["unlimited", "infinite"]
            .iter()
            .any(|word| text.eq_ignore_ascii_case(word))
}

/// Like [`parse_time`], with an optional leading '+', as in `extend dev +2h`.
pub fn parse_extension(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    parse_time(text.strip_prefix('+').unwrap_or(text))
}

fn seconds_of(text: &str) -> Option<u64> {
    if let Some((days, rest)) = text.split_once('-') {
        let days = number(days)?.checked_mul(86_400)?;
        let parts = rest.split(':').map(number).collect::<Option<Vec<_>>>()?;
        let within = match parts[..] {
            [h] => h.checked_mul(3600)?,
            [h, m] => h.checked_mul(3600)?.checked_add(m.checked_mul(60)?)?,
            [h, m, s] => h
                .checked_mul(3600)?
                .checked_add(m.checked_mul(60)?)?
                .checked_add(s)?,
            _ => return None,
        };
        return days.checked_add(within);
    }
    if text.contains(':') {
        let parts = text.split(':').map(number).collect::<Option<Vec<_>>>()?;
        return match parts[..] {
            [m, s] => m.checked_mul(60)?.checked_add(s),
            [h, m, s] => h
                .checked_mul(3600)?
                .checked_add(m.checked_mul(60)?)?
                .checked_add(s),
            _ => None,
        };
    }
    if let Some(minutes) = number(text) {
        return minutes.checked_mul(60);
    }
    with_units(text)
}

/// `1d12h`, `90m`, `4h30`: no; every number has its unit, and units come once, largest first.
fn with_units(text: &str) -> Option<u64> {
    let mut total: u64 = 0;
    let mut smallest = u64::MAX;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let count = number(&rest[..digits])?;
        rest = &rest[digits..];
        let letters = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
        let unit = match rest[..letters].to_ascii_lowercase().as_str() {
            "w" => 7 * 86_400,
            "d" | "day" | "days" => 86_400,
            "h" | "hr" | "hour" | "hours" => 3600,
            "m" | "min" | "minute" | "minutes" => 60,
            "s" | "sec" | "second" | "seconds" => 1,
            _ => return None,
        };
        if unit >= smallest {
            return None;
        }
        smallest = unit;
        rest = &rest[letters..];
        total = total.checked_add(count.checked_mul(unit)?)?;
    }
    Some(total)
}

fn number(text: &str) -> Option<u64> {
    if text.is_empty() || text.len() > 15 || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// A size of memory in bytes: `64G`, `512M`, `64GiB`; without a unit, mebibytes, as in Slurm.
/// All units are powers of 1024.
pub fn parse_size(text: &str) -> Result<u64, String> {
    const RULE: &str = "a size is a whole number with K, M, G or T (64G); without a unit it is in megabytes";
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let count = number(&text[..digits]).ok_or(RULE)?;
    let shift = match text[digits..].trim_start().to_ascii_lowercase().as_str() {
        "k" | "kb" | "kib" => 10,
        "" | "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(RULE.into()),
    };
    let bytes = count
        .checked_mul(1 << shift)
        .filter(|b| *b <= 1 << 50)
        .ok_or("the size is absurd")?;
    if bytes == 0 {
        return Err("the size must be more than zero".into());
    }
    Ok(bytes)
}

/// The same of a node's memory, of which 0, as in Slurm, is all.
pub fn parse_memory(text: &str) -> Result<u64, String> {
    let digits = text.trim().trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let zero = !digits.is_empty() && digits.bytes().all(|digit| digit == b'0');
    if zero && parse_size(&text.replacen('0', "1", 1)).is_ok() {
        return Ok(0);
    }
    parse_size(text)
}

/// A number of GPUs or MIG slices, or a share of a GPU, with a model in front if wanted: `4`, `h100:4`,
/// `1g.10gb:2`, `a100:3g.40gb`, `0.5`; `gpu:` before any is Slurm's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuCount {
    /// Part of the model's name; empty: any.
    pub model: String,
    /// How many.
    pub count: u32,
    /// Of what.
    pub unit: GpuUnit,
}

impl GpuCount {
    /// Whether what another place says is the same, as far as both say it.
    pub fn agrees_with(&self, other: &Self) -> bool {
        let alike = self.model.is_empty() || other.model.is_empty() || self.model == other.model;
        alike && (self.count, &self.unit) == (other.count, &other.unit)
    }
}

/// What of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GpuUnit {
    /// All of it.
    #[default]
    Whole,
    /// A MIG slice of this profile.
    Mig(String),
    /// So many thousandths, beside others.
    Share(u32),
}

/// Parses a [`GpuCount`].
pub fn parse_gpus(text: &str) -> Result<GpuCount, String> {
    read_gpus(text, parse_count)
}

/// The same, or none: `0`, `h100:0`.
pub fn parse_gpus_or_none(text: &str) -> Result<GpuCount, String> {
    let none = |text: &str| match text.trim() {
        "0" => Ok(0),
        other => parse_count(other),
    };
    let gpus = read_gpus(text, none)?;
    // Of none it does not matter what each would be.
    Ok(if gpus.count == 0 {
        GpuCount::default()
    } else {
        gpus
    })
}

fn read_gpus(text: &str, count: impl Fn(&str) -> Result<u32, String>) -> Result<GpuCount, String> {
    let text = text.trim();
    let text = text.strip_prefix("gpu:").unwrap_or(text);
    let split = |text: &'_ str| -> (String, String) {
        let (before, last) = text.rsplit_once(':').unwrap_or(("", text));
        (before.to_owned(), last.to_owned())
    };
    let rule = |why: String| {
        format!(
            "GPUs are a number (4), a model and a number (h100:4), MIG slices (1g.10gb:2) or a share (0.5): {why}"
        )
    };
    let (before, last) = split(text);
    if let Some((named, profile)) = profile_of(&last) {
        return Ok(GpuCount {
            model: parse_model(either(&before, named).map_err(rule)?)?,
            count: 1,
            unit: GpuUnit::Mig(profile.to_owned()),
        });
    }
    if last.contains('.') {
        return Ok(GpuCount {
            model: parse_model(&before)?,
            count: 1,
            unit: GpuUnit::Share(parse_share(&last).map_err(rule)?),
        });
    }
    let count = count(&last).map_err(rule)?;
    let (model, profile) = split(&before);
    if parse_share(&profile).is_ok() {
        return Err(format!("a share is of one GPU: {profile}"));
    }
    let (model, unit) = match profile_of(&profile) {
        Some((named, profile)) => {
            let model = either(&model, named).map_err(rule)?;
            (model.to_owned(), GpuUnit::Mig(profile.to_owned()))
        }
        None => (before, GpuUnit::Whole),
    };
    Ok(GpuCount {
        model: parse_model(&model)?,
        count,
        unit,
    })
}

/// The model, which may be empty, and the MIG profile of `1g.10gb`, or of `a100_1g.10gb` as Slurm calls what it finds by NVML
/// (`gpu_nvml.c`).
fn profile_of(text: &str) -> Option<(&str, &str)> {
    let (model, profile) = text.rsplit_once('_').unwrap_or(("", text));
    is_profile(profile).then_some((model, profile))
}

/// A model that may be named in either of two places.
fn either<'a>(one: &'a str, other: &'a str) -> Result<&'a str, String> {
    match (one, other) {
        (model, "") | ("", model) => Ok(model),
        _ => Err("the model is named twice".to_owned()),
    }
}

/// A share of a GPU, "0.5", in thousandths.
fn parse_share(text: &str) -> Result<u32, String> {
    const RULE: &str = "a share of a GPU is 0.001 to 0.999, such as 0.5";
    let digits = text.strip_prefix("0.").or(text.strip_prefix('.')).ok_or(RULE)?;
    if digits.is_empty() || digits.len() > 3 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(RULE.into());
    }
    match format!("{digits:0<3}").parse() {
        Ok(0) | Err(_) => Err(RULE.into()),
        Ok(milli) => Ok(milli),
    }
}

impl fmt::Display for GpuCount {
    /// "4 GPUs", "1 slice 1g.10gb", "0.5 of a GPU"; without the model.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.unit {
            GpuUnit::Whole => f.write_str(&counted(self.count, "GPU")),
            GpuUnit::Mig(profile) => write!(f, "{} {profile}", counted(self.count, "slice")),
            GpuUnit::Share(milli) => write!(f, "{} of a GPU", thousandths(u64::from(*milli))),
        }
    }
}

/// "20 GB": memory of a GPU in the units of GPUs' names.
pub fn gpu_bytes(bytes: u64) -> String {
    format!("{} GB", bytes as f64 / 1e9)
}

/// Memory of a GPU, bytes, in the units of GPUs' names: 20G is what a GPU or slice of "20GB" has.
pub fn parse_gpu_memory(text: &str) -> Result<u64, String> {
    const RULE: &str = "memory of a GPU is a number with M, G or T (20G); without a unit it is in megabytes";
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let count = number(&text[..digits]).filter(|count| *count > 0).ok_or(RULE)?;
    let unit: u64 = match text[digits..].trim_start().to_ascii_lowercase().as_str() {
        "" | "m" | "mb" => 1_000_000,
        "g" | "gb" => 1_000_000_000,
        "t" | "tb" => 1_000_000_000_000,
        _ => return Err(RULE.into()),
    };
    let bytes = count.checked_mul(unit).filter(|bytes| *bytes <= 1 << 50);
    bytes.ok_or_else(|| "no GPU has so much memory".into())
}

/// Part of a GPU model's name; empty is allowed.
pub fn parse_model(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || " -_.+()|".contains(c);
    if text.len() <= 80 && text.chars().all(plain) {
        Ok(text.to_owned())
    } else {
        Err("a GPU model is part of its name, such as h100, a100-80gb or a100|h100".into())
    }
}

/// A number of nodes. Of Slurm's "2-4", from so many to so many, the least is taken: it is enough for whoever writes so.
pub fn parse_nodes(text: &str) -> Result<u32, String> {
    match text.split_once('-') {
        Some((least, most)) if !least.is_empty() => match (parse_count(least)?, parse_count(most)?) {
            (least, most) if least <= most => Ok(least),
            (least, most) => Err(format!("{least} to {most} nodes are none")),
        },
        _ => parse_count(text),
    }
}

/// A count of at least one.
pub fn parse_count(text: &str) -> Result<u32, String> {
    match text.trim().parse::<i128>() {
        Ok(n) if n < 0 => Err(format!("{n} is negative")),
        Ok(0) => Err("it must be at least 1".into()),
        Ok(n) if n <= i128::from(MOST) => Ok(n as u32),
        Ok(_) => Err(format!("it is more than {MOST}")),
        Err(_) => Err(format!("{text:?} is not a whole number")),
    }
}

/// A point in time (Unix milliseconds) as RFC 3339 in UTC, to the second.
pub fn rfc3339(millis: i64) -> String {
    let seconds = millis.div_euclid(1000);
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let (h, m, s) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}Z")
}

/// Year, month and day of a number of days since 1970-01-01
/// (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`).
fn civil(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Days since 1970-01-01 of a date (the same, `days_from_civil`).
pub fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// A duration as squeue shows it: `MM:SS`, `H:MM:SS`, `D-HH:MM:SS`.
pub fn clock(duration: Duration) -> String {
    let s = duration.as_secs();
    let (days, hours, minutes, seconds) = (s / 86_400, s / 3600 % 24, s / 60 % 60, s % 60);
    match (days, hours) {
        (0, 0) => format!("{minutes}:{seconds:02}"),
        (0, _) => format!("{hours}:{minutes:02}:{seconds:02}"),
        _ => format!("{days}-{hours:02}:{minutes:02}:{seconds:02}"),
    }
}

/// Bytes for people: the largest unit in which it is at least 1, one decimal where it says something.
pub fn bytes(count: u64) -> String {
    let mut value = count as f64;
    let mut unit = 0;
    const UNITS: [&str; 6] = ["B", "K", "M", "G", "T", "P"];
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value >= 100.0 || (value - value.round()).abs() < 0.05 {
        format!("{value:.0}{}", UNITS[unit])
    } else {
        format!("{value:.1}{}", UNITS[unit])
    }
}

/// Thousandths as people write them: 4, 0.5.
pub fn thousandths(milli: u64) -> String {
    let text = format!("{}.{:03}", milli / 1_000, milli % 1_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Indices as ranges: 0-3,6.
pub fn ranges(indices: &[u32]) -> String {
    let mut sorted = indices.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for i in sorted {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == i => *last = i,
            _ => runs.push((i, i)),
        }
    }
    let text = runs
        .iter()
        .map(|(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") });
    text.collect::<Vec<_>>().join(",")
}

/// "1 node", "8 nodes".
pub fn counted(count: u32, what: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {what}{s}")
}

/// How long it takes, for people, rounded up: "40 s", "12 min", "1 h 5 min".
pub fn about(time: Duration) -> String {
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    let minutes = seconds.div_ceil(60);
    match (minutes / 60, minutes % 60) {
        _ if seconds < 60 => format!("{seconds} s"),
        (0, minutes) => format!("{minutes} min"),
        (hours, 0) => format!("{hours} h"),
        (hours, minutes) => format!("{hours} h {minutes} min"),
    }
}

/// 1st, 2nd, 3rd, 4th, 11th, 21st.
pub fn ordinal(n: u32) -> String {
    let ending = match (n % 100, n % 10) {
        (11..=13, _) => "th",
        (_, 1) => "st",
        (_, 2) => "nd",
        (_, 3) => "rd",
        _ => "th",
    };
    format!("{n}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_as_slurm_reads_them() {
        for (text, seconds) in [
            ("30", 1800),
            ("01:30", 90),
            ("90:00", 5400),
            ("4:00:00", 14_400),
            ("1-0", 86_400),
            ("1-12", 129_600),
            ("1-12:30", 131_400),
            ("2-03:04:05", 183_845),
            ("4h", 14_400),
            ("90m", 5400),
            ("30s", 30),
            ("2d", 172_800),
            ("1h30m", 5400),
            ("1d12H", 129_600),
            ("2hours", 7200),
        ] {
            assert_eq!(parse_time(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
    }

    #[test]
    fn times_that_mean_nothing_are_refused() {
        for text in [
            "",
            "0",
            "0:00",
            "-5",
            "-1-0",
            "1-",
            "1-2:3:4:5",
            "1:2:3:4",
            "h",
            "4x",
            "4h4h",
            "30m1h",
            "1.5h",
            "99999999999999999999",
            "9999999999",
            "99999999999-0",
            "4h30",
            "é",
            "4hé",
        ] {
            assert!(parse_time(text).is_err(), "{text}");
        }
        assert_eq!(parse_extension("+2h"), Ok(Duration::from_hours(2)));
        assert!(parse_extension("-2h").is_err());
    }

    #[test]
    fn sizes_read_as_slurm_reads_them() {
        for (text, bytes) in [
            ("512", 512 << 20),
            ("512M", 512 << 20),
            ("64G", 64 << 30),
            ("64GiB", 64 << 30),
            ("64 gb", 64 << 30),
            ("8k", 8 << 10),
            ("2T", 2 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "0",
            "0G",
            "-1G",
            "1.5G",
            "G",
            "64X",
            "99999999T",
            "99999999999999999999G",
            "é",
        ] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn gpus_may_carry_their_model() {
        let gpus = |model: &str, count| {
            Ok(GpuCount {
                model: model.into(),
                count,
                unit: GpuUnit::Whole,
            })
        };
        assert_eq!(parse_gpus("4"), gpus("", 4));
        assert_eq!(parse_gpus("h100:4"), gpus("h100", 4));
        assert_eq!(parse_gpus("a100|h100:4"), gpus("a100|h100", 4));
        assert_eq!(parse_gpus("gpu:a100-80gb:2"), gpus("a100-80gb", 2));
        let mig = |model: &str, profile: &str, count| {
            Ok(GpuCount {
                model: model.into(),
                count,
                unit: GpuUnit::Mig(profile.into()),
            })
        };
        assert_eq!(parse_gpus("1g.10gb:2"), mig("", "1g.10gb", 2));
        assert_eq!(parse_gpus("a100:3g.40gb"), mig("a100", "3g.40gb", 1));
        assert_eq!(parse_gpus("gpu:h100:1g.10gb+me:1"), mig("h100", "1g.10gb+me", 1));
        let share = |model: &str, milli| {
            Ok(GpuCount {
                model: model.into(),
                count: 1,
                unit: GpuUnit::Share(milli),
            })
        };
        assert_eq!(parse_gpus("0.5"), share("", 500));
        assert_eq!(parse_gpus("t4:.125"), share("t4", 125));
        for text in ["1.5", "0.0", "0.", "0.1234", "1g.10gb:0", "0.5:2"] {
            assert!(parse_gpus(text).is_err(), "{text}");
        }
        assert_eq!(parse_gpu_memory("20G"), Ok(20_000_000_000));
        for text in ["", "G", "0", "20X", "-1", "99999999T"] {
            assert!(parse_gpu_memory(text).is_err(), "{text}");
        }
        for text in [
            "", "0", "-1", "h100", "h100:", "h100:0", "h\n100:1", "99999999", "1e3",
        ] {
            assert!(parse_gpus(text).is_err(), "{text}");
        }
    }

    #[test]
    fn thousandths_print_without_what_says_nothing() {
        let texts = [0, 500, 1_000, 2_125, 10_000].map(thousandths);
        assert_eq!(texts, ["0", "0.5", "1", "2.125", "10"]);
    }

    #[test]
    fn times_print_as_rfc_3339() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_782_400_000), "2000-02-29T00:00:00Z");
        assert_eq!(rfc3339(1_767_225_599_999), "2025-12-31T23:59:59Z");
        assert_eq!(rfc3339(-1), "1969-12-31T23:59:59Z");
    }

    #[test]
    fn numbers_print_for_people() {
        assert_eq!(clock(Duration::from_secs(65)), "1:05");
        assert_eq!(clock(Duration::from_secs(3_725)), "1:02:05");
        assert_eq!(clock(Duration::from_secs(180_005)), "2-02:00:05");
        assert_eq!(bytes(512), "512B");
        assert_eq!(bytes(64 << 30), "64G");
        assert_eq!(bytes(80 * 1024 * 1024 * 1024 + (1 << 29)), "80.5G");
        assert_eq!(ranges(&[3, 0, 1, 2, 6]), "0-3,6");
        assert_eq!(ranges(&[]), "");
        assert_eq!(
            [1, 2, 3, 4, 11, 12, 21, 102].map(ordinal).join(" "),
            "1st 2nd 3rd 4th 11th 12th 21st 102nd"
        );
    }
}
