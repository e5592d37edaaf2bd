//! How often what happened.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

/// How often each fault and transition occurred.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(BTreeMap<Cow<'static, str>, u64>);

impl Counts {
    /// Counts one.
    pub fn add(&mut self, what: &'static str) {
        *self.0.entry(Cow::Borrowed(what)).or_default() += 1;
    }

    /// The same, of something that has no fixed text.
    pub fn add_text(&mut self, what: String) {
        *self.0.entry(Cow::Owned(what)).or_default() += 1;
    }

    /// Adds another's.
    pub fn merge(&mut self, other: &Self) {
        for (what, times) in &other.0 {
            *self.0.entry(what.clone()).or_default() += times;
        }
    }

    /// Those of a list that never occurred.
    pub fn never<'a>(&self, expected: &[&'a str]) -> Vec<&'a str> {
        expected
            .iter()
            .filter(|what| !self.0.contains_key(**what))
            .copied()
            .collect()
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, times) in &self.0 {
            writeln!(f, "{times:>12}  {what}")?;
        }
        Ok(())
    }
}
