//! What was used: decayed, for fair-share, and by period, for limits.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::time::Timestamp;

/// Use of GPUs over time. While something is held it grows by itself: nothing has to be counted between
/// a job's start and its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Until when it is counted.
    at: Timestamp,
    /// What is held, thousandths of GPU-equivalents.
    rate_milli: u64,
    /// GPU-equivalent seconds, decayed.
    decayed: f64,
    /// Thousandths of GPU-equivalents times milliseconds, in the period in which `at` is.
    in_period: u128,
}

// What is decayed is never less than zero, and always a number.
impl Eq for Usage {}

/// How use is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decay {
    /// After so long half of what was used is forgotten; zero: nothing ever is.
    pub half_life: Duration,
    /// Limits of GPU-minutes begin anew after so long, counted from the Unix epoch; zero: never.
    pub period: Duration,
}

impl Decay {
    /// What is left of 1 after so long.
    fn left(self, time: Duration) -> f64 {
        if self.half_life.is_zero() {
            return 1.0;
        }
        (-time.as_secs_f64() / self.half_life.as_secs_f64()).exp2()
    }

    /// What holding one GPU for so long comes to at its end: the integral of [`Self::left`].
    pub(super) fn held(self, time: Duration) -> f64 {
        if self.half_life.is_zero() {
            return time.as_secs_f64();
        }
        self.half_life.as_secs_f64() / std::f64::consts::LN_2 * (1.0 - self.left(time))
    }

    /// When the period begins in which a time is.
    pub fn period_start(self, time: Timestamp) -> Timestamp {
        match u64::try_from(self.period.as_millis()).unwrap_or(u64::MAX) {
            0 => Timestamp(0),
            length => Timestamp(time.0 / length * length),
        }
    }

    /// When the next period begins; none: never.
    pub fn next_period(self, time: Timestamp) -> Option<Timestamp> {
        (!self.period.is_zero()).then(|| self.period_start(time).after(self.period))
    }
}

impl Usage {
    /// GPU-equivalents are held from a time on.
    pub fn begin(&mut self, at: Timestamp, rate_milli: u64, decay: Decay) {
        self.advance(at, decay);
        self.add(at, rate_milli, decay, 1.0);
        self.rate_milli += rate_milli;
    }

    /// They are held no more.
    pub fn end(&mut self, at: Timestamp, rate_milli: u64, decay: Decay) {
        self.advance(at, decay);
        self.add(at, rate_milli, decay, -1.0);
        self.rate_milli = self.rate_milli.saturating_sub(rate_milli);
    }

    /// What lies between a time and the one that it is counted to, which is not before it.
    fn add(&mut self, from: Timestamp, rate_milli: u64, decay: Decay, sign: f64) {
        let held = decay.held(self.at.since(from)) * rate_milli as f64 / 1_000.0;
        self.decayed = (self.decayed + sign * held).max(0.0);
        let from = from.max(decay.period_start(self.at));
        let amount = u128::from(rate_milli) * self.at.since(from).as_millis();
        self.in_period = if sign > 0.0 {
            self.in_period + amount
        } else {
            self.in_period.saturating_sub(amount)
        };
    }

    /// What another holds and has used is counted here as well.
    pub fn merge(&mut self, mut other: Self, decay: Decay) {
        let at = self.at.max(other.at);
        self.advance(at, decay);
        other.advance(at, decay);
        self.rate_milli += other.rate_milli;
        self.decayed += other.decayed;
        self.in_period += other.in_period;
    }

    fn advance(&mut self, to: Timestamp, decay: Decay) {
        if to <= self.at {
            return;
        }
        let time = to.since(self.at);
        let rate = self.rate_milli as f64 / 1_000.0;
        self.decayed = self.decayed * decay.left(time) + rate * decay.held(time);
        let start = decay.period_start(to);
        if start > self.at {
            self.in_period = 0;
        }
        let from = start.max(self.at);
        self.in_period += u128::from(self.rate_milli) * to.since(from).as_millis();
        self.at = to;
    }

    /// Decayed GPU-equivalent seconds.
    pub fn decayed(mut self, now: Timestamp, decay: Decay) -> f64 {
        self.advance(now, decay);
        self.decayed
    }

    /// GPU-equivalents held now, thousandths.
    pub fn rate_milli(self) -> u64 {
        self.rate_milli
    }

    /// GPU-equivalent milliseconds in this period.
    pub fn in_period(mut self, now: Timestamp, decay: Decay) -> u128 {
        self.advance(now, decay);
        self.in_period / 1_000
    }
}
