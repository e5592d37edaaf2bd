//! A job's priority, factor by factor, as in Slurm's multifactor plugin
//! (<https://slurm.schedmd.com/priority_multifactor.html>), but for age: that has no end here. Two jobs grow older
//! at the same pace, so their order changes only when something else does; and a job that has waited for so long
//! that age outweighs all other factors is behind no job that comes after it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::time::Timestamp;

/// Most points of one factor, and of `nice`.
pub const MAX_WEIGHT: u32 = 100_000_000;

/// Points that a job gets for each factor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Weights {
    /// For whoever is served first by fair-share.
    pub fair_share: u32,
    /// For having waited for [`Self::age_unit`].
    pub age: u32,
    /// See [`Self::age`].
    pub age_unit: Duration,
    /// For asking for all GPUs of the cluster.
    pub size: u32,
    /// For the QOS with the highest priority.
    pub qos: u32,
    /// For the partition with the highest priority.
    pub partition: u32,
    /// For being interactive.
    pub interactive: u32,
}

impl Default for Weights {
    fn default() -> Self {
        Self {
            fair_share: 100_000,
            age: 70_000,
            age_unit: Duration::from_hours(7 * 24),
            size: 1_000,
            qos: 100_000,
            partition: 100_000,
            interactive: 100_000,
        }
    }
}

/// What is known of a job, each from 0 to 1 but for the last two.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Factors {
    /// Of its user's standing.
    pub fair_share: f64,
    /// GPUs of those in the cluster.
    pub size: f64,
    /// Its QOS's.
    pub qos: f64,
    /// Its partition's.
    pub partition: f64,
    /// 1 for an interactive job.
    pub interactive: f64,
    /// Since when it could have started.
    pub since: Timestamp,
    /// Its user's wish, in points.
    pub nice: i32,
}

/// One line of a priority.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Points {
    /// The factor's name.
    pub name: &'static str,
    /// The factor.
    pub factor: f64,
    /// Its weight.
    pub weight: u32,
    /// The two multiplied.
    pub points: i64,
}

impl Weights {
    /// A priority, whole, as it is at a time.
    pub fn priority(&self, factors: &Factors, now: Timestamp) -> Vec<Points> {
        let unit = self.age_unit.as_secs_f64().max(1.0);
        let age = now.since(factors.since).as_secs_f64() / unit;
        let lines = [
            ("fair-share", factors.fair_share, self.fair_share),
            ("age", age, self.age),
            ("size", factors.size, self.size),
            ("QOS", factors.qos, self.qos),
            ("partition", factors.partition, self.partition),
            ("interactive", factors.interactive, self.interactive),
        ];
        let mut points: Vec<Points> = lines
            .into_iter()
            .map(|(name, factor, weight)| Points {
                name,
                factor,
                weight,
                points: (factor * f64::from(weight)).round() as i64,
            })
            .collect();
        if factors.nice != 0 {
            points.push(Points {
                name: "nice",
                factor: f64::from(factors.nice),
                weight: 1,
                points: -i64::from(factors.nice),
            });
        }
        points
    }

    /// What orders jobs whatever the time: the priority at the Unix epoch, in thousandths of points.
    pub fn score(&self, factors: &Factors) -> i64 {
        self.score_since(self.rest(factors), factors.since)
    }

    /// All of a score but for the age, in thousandths of points.
    pub fn rest(&self, factors: &Factors) -> i64 {
        let rest = factors.fair_share * f64::from(self.fair_share)
            + factors.size * f64::from(self.size)
            + factors.qos * f64::from(self.qos)
            + factors.partition * f64::from(self.partition)
            + factors.interactive * f64::from(self.interactive);
        (rest * 1_000.0).round() as i64 - i64::from(factors.nice) * 1_000
    }

    /// The score of a job that could have started since a time, and the rest of whose score is known.
    pub fn score_since(&self, rest: i64, since: Timestamp) -> i64 {
        let unit = u128::from(
            u64::try_from(self.age_unit.as_millis())
                .unwrap_or(u64::MAX)
                .max(1),
        );
        let age = u128::from(since.0) * u128::from(self.age) * 1_000 / unit;
        rest.saturating_sub(i64::try_from(age).unwrap_or(i64::MAX))
    }

    /// A job that has waited for so much longer than another comes before it, whatever else they differ in but
    /// `nice` and an operator's hand; none: it may never.
    pub fn longest_overtaking(&self) -> Option<Duration> {
        let others = u64::from(self.fair_share)
            + u64::from(self.size)
            + u64::from(self.qos)
            + u64::from(self.partition)
            + u64::from(self.interactive);
        (self.age > 0).then(|| self.age_unit.mul_f64(others as f64 / f64::from(self.age)))
    }
}
