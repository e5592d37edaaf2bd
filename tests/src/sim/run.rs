//! Many worlds: on all cores, in the order of their seeds.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::count::Counts;
use super::mutant::Mutant;
use super::world::{Finding, run};

/// Seeds that are lived through at one go by one core.
const CHUNK: u64 = 4;

/// Lives through worlds; what occurred in them, and what was found, by seed. After the first finding at
/// least, with `until_first`, no further worlds are begun.
pub fn run_seeds(seeds: Range<u64>, mutant: Option<Mutant>, until_first: bool) -> (Counts, Vec<Finding>) {
    let next = AtomicU64::new(seeds.start);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let live = || {
        let mut counts = Counts::default();
        let mut findings: Vec<Finding> = Vec::new();
        loop {
            let first = next.fetch_add(CHUNK, Ordering::Relaxed);
            if first >= seeds.end {
                return (counts, findings);
            }
            for seed in first..(first + CHUNK).min(seeds.end) {
                match run(seed, mutant) {
                    Ok(seen) => counts.merge(&seen),
                    Err(finding) => {
                        findings.push(*finding);
                        if until_first {
                            next.store(seeds.end, Ordering::Relaxed);
                            return (counts, findings);
                        }
                    }
                }
            }
        }
    };
    let (mut counts, mut findings) = (Counts::default(), Vec::new());
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(live)).collect();
        for thread in threads {
            let (seen, found) = thread.join().expect("a world panicked: its trace is above");
            counts.merge(&seen);
            findings.extend(found);
        }
    });
    findings.sort_by_key(|finding| finding.seed);
    (counts, findings)
}

/// How a bug was noticed.
#[derive(Clone, Debug)]
pub struct Caught {
    /// The bug.
    pub mutant: Mutant,
    /// By what; none: it was not noticed.
    pub by: Option<Finding>,
}

/// Looks for a planted bug in so many worlds at most.
pub fn catch(mutant: Mutant, seeds: u64) -> Caught {
    let (_, findings) = run_seeds(0..seeds, Some(mutant), true);
    Caught {
        mutant,
        by: findings.into_iter().next(),
    }
}
