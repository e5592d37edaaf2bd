//! How much is kept for those who come at any time and want to start at once: Erlang's loss formula
//! (A. K. Erlang, 1917) over what was asked for lately.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::usage::{Decay, Usage};
use crate::model::time::Timestamp;

/// Servers at most: more than any cluster has GPUs.
const MAX_SERVERS: u32 = 1_000_000;

/// The share of arrivals that find all servers busy, Erlang's B formula, by its recursion over servers
/// (B(0) = 1, B(n) = a B(n-1) / (n + a B(n-1)) with the load a in erlangs): the least number of servers with which it
/// is no more than `blocking`.
pub fn servers(load: f64, blocking: f64) -> u32 {
    if !load.is_finite() || load <= 0.0 {
        return 0;
    }
    let (mut share, mut servers) = (1.0, 0);
    while share > blocking && servers < MAX_SERVERS {
        servers += 1;
        share = load * share / (f64::from(servers) + load * share);
    }
    servers
}

/// What is kept of one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The model.
    pub model: String,
    /// GPUs that are kept for interactive jobs.
    pub kept: u64,
    /// Of so many that are in service.
    pub of: u64,
}

/// What jobs of one sort have held lately of one sort of GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demand {
    /// Each counts as one.
    jobs: Usage,
    /// Thousandths of GPUs.
    gpus: Usage,
    /// When the first one came.
    since: Option<Timestamp>,
}

impl Demand {
    /// A job begins to hold so much.
    pub fn begin(&mut self, at: Timestamp, gpu_milli: u64, decay: Decay) {
        self.since = Some(self.since.map_or(at, |since| since.min(at)));
        self.jobs.begin(at, 1_000, decay);
        self.gpus.begin(at, gpu_milli, decay);
    }

    /// It does no more.
    pub fn end(&mut self, at: Timestamp, gpu_milli: u64, decay: Decay) {
        self.jobs.end(at, 1_000, decay);
        self.gpus.end(at, gpu_milli, decay);
    }

    /// GPUs with which no more than `blocking` of such jobs would find too few: arrivals times holding time is how
    /// many there are at once on average, and each wants what they want on average.
    pub fn wanted(&self, now: Timestamp, blocking: f64, decay: Decay) -> u64 {
        let Some(since) = self.since else { return 0 };
        // Of the first few nobody knows how often they come.
        let seen = now.since(since).max(decay.half_life).max(Duration::from_mins(1));
        let window = decay.held(seen);
        let (jobs, gpus) = (self.jobs.decayed(now, decay), self.gpus.decayed(now, decay));
        let load = jobs / window;
        // Less than one job in a thousand windows is none.
        if load < 0.001 {
            return 0;
        }
        (f64::from(servers(load, blocking)) * gpus / jobs).ceil() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum form of the formula, as it is in books.
    fn by_definition(load: f64, servers: u32) -> f64 {
        let mut term = 1.0;
        let mut sum = 1.0;
        for n in 1..=servers {
            term *= load / f64::from(n);
            sum += term;
        }
        term / sum
    }

    #[test]
    fn as_many_servers_as_it_takes_and_no_more() {
        for load in [0.05, 0.4, 1.0, 3.3, 10.0, 42.0, 100.0] {
            for blocking in [0.5, 0.1, 0.05, 0.01] {
                let enough = servers(load, blocking);
                assert!(
                    by_definition(load, enough) <= blocking + 1e-9,
                    "{load} {blocking}"
                );
                assert!(
                    by_definition(load, enough - 1) > blocking - 1e-9,
                    "{load} {blocking}"
                );
            }
        }
        assert_eq!(
            (servers(0.0, 0.05), servers(f64::NAN, 0.05), servers(-1.0, 0.05)),
            (0, 0, 0)
        );
        assert_eq!(servers(1e12, 0.0), MAX_SERVERS);
    }

    #[test]
    fn demand_that_is_steady_is_what_it_is_and_fades_when_nobody_comes() {
        let decay = Decay {
            half_life: Duration::from_hours(12),
            period: Duration::ZERO,
        };
        let hour = |hour: u64| Timestamp(hour * 3_600_000);
        let mut demand = Demand::default();
        // Two at any time, of two GPUs each.
        for at in 0..300 {
            demand.begin(hour(at), 2_000, decay);
            demand.end(hour(at + 2), 2_000, decay);
        }
        let wanted = demand.wanted(hour(300), 0.05, decay);
        assert_eq!(wanted, u64::from(servers(2.0, 0.05)) * 2);
        let later = demand.wanted(hour(324), 0.05, decay);
        assert!(later < wanted && later > 0, "{later}");
        assert_eq!(demand.wanted(hour(600), 0.05, decay), 0);
    }
}
