//! A thousand simulated worlds: no invariant is broken in any, and every fault occurred.

use carrel_tests::sim::{Counts, EXPECTED, run};

const SEEDS: u64 = 1_000;

#[test]
fn a_thousand_worlds_keep_their_promises() {
    let mut counts = Counts::default();
    for seed in 0..SEEDS {
        match run(seed) {
            Ok(seen) => counts.merge(&seen),
            Err(finding) => panic!("{finding}"),
        }
    }
    assert!(
        counts.never(EXPECTED).is_empty(),
        "never occurred: {:?}",
        counts.never(EXPECTED)
    );
}

#[test]
fn a_seed_gives_the_same_world_again() {
    for seed in [1, 2, 3] {
        let (once, again) = (run(seed), run(seed));
        assert_eq!(format!("{once:?}"), format!("{again:?}"), "seed {seed}");
    }
}
