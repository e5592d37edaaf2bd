//! Every target lives through its seeds and through some thousand variations of them.

use std::panic::catch_unwind;

use carrel_fuzz::TARGETS;
use carrel_fuzz::mutate::Mutator;

/// Of each target: some seconds all told.
const VARIATIONS: usize = 20_000;

#[test]
fn whatever_comes_is_read_or_refused() {
    for target in TARGETS {
        let seeds = (target.seeds)();
        assert!(!seeds.is_empty(), "{} has no seeds", target.name);
        let mut mutator = Mutator::new(1, seeds.clone());
        let variations = (0..VARIATIONS).map(|_| mutator.vary());
        for input in seeds.into_iter().chain(variations) {
            if catch_unwind(|| (target.run)(&input)).is_err() {
                let kept = format!("{}/{}-panic", env!("CARGO_TARGET_TMPDIR"), target.name);
                std::fs::write(&kept, &input).expect("room for it");
                panic!("again with: fuzz run {} {kept}", target.name);
            }
        }
    }
}

#[test]
fn names_are_told_apart() {
    for (n, target) in TARGETS.iter().enumerate() {
        assert!(
            TARGETS[n + 1..].iter().all(|other| other.name != target.name),
            "{}",
            target.name
        );
    }
}
