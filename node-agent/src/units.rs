//! Times and sizes as people write them in flags and the configuration.

use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer};

/// A time, "3s", "500ms" or "1m".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

/// A size in bytes, "128G"; units are powers of 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

fn number_and_unit<'a>(text: &'a str, units: &[(&str, u64)]) -> Option<(u64, u64, &'a str)> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    Some((number.parse().ok()?, *factor, unit))
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];
        number_and_unit(text, &UNITS)
            .and_then(|(number, factor, _)| number.checked_mul(factor))
            .filter(|millis| *millis > 0)
            .map(|millis| Self(Duration::from_millis(millis)))
            .ok_or_else(|| format!("{text:?} is not a time: write it as \"3s\", \"500ms\" or \"1m\""))
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const UNITS: [(&str, u64); 4] = [("K", 1 << 10), ("M", 1 << 20), ("G", 1 << 30), ("T", 1 << 40)];
        let short = text
            .trim()
            .trim_end_matches("iB")
            .trim_end_matches('B')
            .to_ascii_uppercase();
        number_and_unit(&short, &UNITS)
            .and_then(|(number, factor, _)| number.checked_mul(factor))
            .map(Self)
            .ok_or_else(|| format!("{text:?} is not a size: write it with a unit, \"512M\" or \"128G\""))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_need_a_unit() {
        assert_eq!("3s".parse(), Ok(Span(Duration::from_secs(3))));
        assert_eq!("500ms".parse(), Ok(Span(Duration::from_millis(500))));
        assert_eq!("128G".parse(), Ok(Size(128 << 30)));
        assert_eq!("16GiB".parse(), Ok(Size(16 << 30)));
        for bad in ["", "3", "s", "0s", "-1s", "99999999999999999h"] {
            assert!(bad.parse::<Span>().is_err(), "{bad}");
        }
        for bad in ["", "3", "G", "1.5G", "99999999999T"] {
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
    }
}
