//! A thousand simulated worlds: no invariant is broken in any, and every fault occurred. Planted bugs are noticed.

use carrel_tests::sim::{EXPECTED, Mutant, catch, run, run_seeds};

const SEEDS: u64 = 1_000;
/// Worlds in which each planted bug must have been noticed.
const MUTANT_SEEDS: u64 = 400;

#[test]
fn a_thousand_worlds_keep_their_promises() {
    let (counts, findings) = run_seeds(0..SEEDS, None, true);
    if let Some(finding) = findings.first() {
        panic!("{finding}");
    }
    let never = counts.never(EXPECTED);
    assert!(never.is_empty(), "never occurred: {never:?}");
}

/// A simulation that does not notice them is blind.
#[test]
fn planted_bugs_are_noticed() {
    let missed: Vec<Mutant> = Mutant::ALL
        .into_iter()
        .filter(|mutant| catch(*mutant, MUTANT_SEEDS).by.is_none())
        .collect();
    assert!(
        missed.is_empty(),
        "not noticed in {MUTANT_SEEDS} worlds: {missed:?}"
    );
}

#[test]
fn a_seed_gives_the_same_world_again() {
    for seed in [1, 2, 3] {
        let (once, again) = (run(seed, None), run(seed, None));
        assert_eq!(format!("{once:?}"), format!("{again:?}"), "seed {seed}");
    }
}
