//! What a benchmark prints.

use serde::Serialize;

/// One figure.
#[derive(Debug, Serialize)]
struct Figure<'a> {
    name: &'a str,
    value: f64,
    unit: &'a str,
    /// What it is held against ("<= 150"); empty: for comparison only.
    budget: &'a str,
    /// What was measured, from when to when; empty: the name says it.
    #[serde(skip_serializing_if = "str::is_empty")]
    measured: &'a str,
}

/// Prints a figure.
pub fn figure(name: &str, value: f64, unit: &str, budget: &str) {
    measured(name, value, unit, budget, "");
}

/// Prints a figure, and what it is of.
pub fn measured(name: &str, value: f64, unit: &str, budget: &str, measured: &str) {
    let rounded = (value * 1000.0).round() / 1000.0;
    let line = serde_json::to_string(&Figure {
        name,
        value: rounded,
        unit,
        budget,
        measured,
    });
    println!("{}", line.expect("numbers and text"));
}

/// The value that a share of the others does not exceed; `share` from 0 to 1.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    sorted
        .get((last as f64 * share).round() as usize)
        .copied()
        .unwrap_or(f64::NAN)
}
