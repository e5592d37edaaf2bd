//! Figures by name, so that ratios can be made of them.

use std::collections::BTreeMap;

use crate::report::{measured, quantile};

/// What was printed so far.
#[derive(Debug, Default)]
pub struct Figures(BTreeMap<String, f64>);

impl Figures {
    /// Prints a figure, and keeps it. `how` says what was measured, from when to when.
    pub fn put(&mut self, name: &str, value: f64, unit: &str, budget: &str, how: &str) {
        let name = format!("queue.{name}");
        measured(&name, value, unit, budget, how);
        self.0.insert(name, value);
    }

    /// Median and 99th percentile of times, milliseconds.
    pub fn times(&mut self, name: &str, times: &[f64], budget: &str, how: &str) {
        self.put(&format!("{name}.p50_ms"), quantile(times, 0.5), "ms", budget, how);
        self.put(
            &format!("{name}.p99_ms"),
            quantile(times, 0.99),
            "ms",
            budget,
            how,
        );
    }

    /// A figure that was printed; the name is given without "queue.".
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.get(&format!("queue.{name}")).copied()
    }

    /// Names, without "queue.", of what was printed that begin and end so.
    pub fn names(&self, begin: &str, end: &str) -> Vec<String> {
        let own = self.0.keys().filter_map(|name| name.strip_prefix("queue."));
        let wanted = own.filter(|name| name.starts_with(begin) && name.ends_with(end));
        wanted.map(str::to_owned).collect()
    }
}
