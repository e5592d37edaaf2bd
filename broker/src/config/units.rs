//! Times and sizes as people write them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

const TIME_UNITS: [(&str, u64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];
const SIZE_UNITS: [(&str, u64); 4] = [("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)];
const TIME_RULE: &str = "write a time with units, such as \"10m\", \"8h\", \"1d12h\" or \"90s\"";
const SIZE_RULE: &str = "write a size with a unit, such as \"512M\" or \"128G\"";

/// A time, "1d12h".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is not a time: {TIME_RULE}");
        let mut rest = text.trim();
        let mut millis: u64 = 0;
        if rest.is_empty() {
            return Err(bad());
        }
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
            let number: u64 = rest[..digits].parse().map_err(|_| bad())?;
            rest = &rest[digits..];
            let letters = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
            let (_, unit) = TIME_UNITS
                .iter()
                .find(|(name, _)| *name == &rest[..letters])
                .ok_or_else(bad)?;
            rest = &rest[letters..];
            millis = number
                .checked_mul(*unit)
                .and_then(|part| millis.checked_add(part))
                .ok_or_else(bad)?;
        }
        Ok(Self(Duration::from_millis(millis)))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        if rest == 0 {
            return f.write_str("0s");
        }
        for (name, unit) in TIME_UNITS {
            if rest >= unit {
                write!(f, "{}{name}", rest / unit)?;
                rest %= unit;
            }
        }
        Ok(())
    }
}

/// A size in bytes, "128G"; units are powers of 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is not a size: {SIZE_RULE}");
        let trimmed = text.trim();
        let digits = trimmed.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
        let number: u64 = trimmed[..digits].parse().map_err(|_| bad())?;
        let unit = trimmed[digits..]
            .trim_end_matches("iB")
            .trim_end_matches('B')
            .to_ascii_uppercase();
        let (_, unit) = SIZE_UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(bad)?;
        number.checked_mul(*unit).map(Self).ok_or_else(bad)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = SIZE_UNITS.iter().find(|(_, unit)| self.0.is_multiple_of(*unit));
        match fits {
            Some((name, unit)) => write!(f, "{}{name}", self.0 / unit),
            // Only sizes in whole kilobytes can be written.
            None => write!(f, "{}K", self.0.div_ceil(1 << 10)),
        }
    }
}

/// A factor, 0.02 or 2.5, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Factor(pub u32);

impl fmt::Display for Factor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(self.0) / 1_000.0)
    }
}

impl Serialize for Factor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(f64::from(self.0) / 1_000.0)
    }
}

impl<'de> Deserialize<'de> for Factor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number;
        impl serde::de::Visitor<'_> for Number {
            type Value = Factor;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a factor from 0 to 1000000, such as 0.5 or 2")
            }
            fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Factor, E> {
                if (0.0..=1e6).contains(&number) {
                    Ok(Factor((number * 1_000.0).round() as u32))
                } else {
                    Err(E::invalid_value(serde::de::Unexpected::Float(number), &self))
                }
            }
            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Factor, E> {
                self.visit_f64(number as f64)
            }
        }
        deserializer.deserialize_any(Number)
    }
}

macro_rules! as_text {
    ($name:ident, $rule:ident) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Text;
                impl serde::de::Visitor<'_> for Text {
                    type Value = $name;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($rule)
                    }
                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$name, E> {
                        text.parse().map_err(E::custom)
                    }
                }
                deserializer.deserialize_str(Text)
            }
        }
    };
}

as_text!(Span, TIME_RULE);
as_text!(Size, SIZE_RULE);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_read_as_they_print() {
        for text in ["10m", "8h", "1d12h", "1m30s", "500ms", "7d"] {
            assert_eq!(text.parse::<Span>().expect(text).to_string(), text);
        }
        for text in ["128G", "512M", "1T"] {
            assert_eq!(text.parse::<Size>().expect(text).to_string(), text);
        }
        assert_eq!("4GiB".parse::<Size>(), Ok(Size(4 << 30)));
        for bad in [
            "",
            "10",
            "m",
            "-5m",
            "1.5h",
            "10 m",
            "99999999999999999999d",
            "99999999999999d",
        ] {
            assert!(bad.parse::<Span>().is_err(), "{bad}");
        }
        for bad in ["", "10", "G", "-1G", "10X", "99999999999T"] {
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
    }
}
