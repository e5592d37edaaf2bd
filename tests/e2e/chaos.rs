//! Random kills under load: nothing that was promised is lost.

use carrel_tests::chaos::{self, Options};
use carrel_tests::programs::Profile;

/// As many rounds as fit into a test; `./dev bench chaos --rounds N` runs more.
const ROUNDS: u64 = 20;

#[test]
fn twenty_rounds_of_kills() {
    let report = chaos::run(
        &Options {
            rounds: ROUNDS,
            seed: 1,
            profile: Profile::Debug,
        },
        |line| println!("{line}"),
    );
    println!("{:?}", report.happened());
    for (what, n) in report.happened() {
        assert!(n > 0, "{what} never happened");
    }
    for (what, times) in report.broken() {
        assert!(times.is_empty(), "{what}: {times:#?}");
    }
}
