//! `chaos`: random kills under load; what was promised and lost, which is nothing.

use carrel_tests::chaos;
use carrel_tests::programs::Profile;

use crate::report::figure;

/// How much of it.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Rounds of killing.
    #[arg(long, default_value_t = 100)]
    rounds: u64,
    /// Seed of what is killed, and when.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs it, and fails if a promise was broken.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let options = chaos::Options {
        rounds: options.rounds,
        seed: options.seed,
        profile: Profile::Release,
    };
    let report = chaos::run(&options, |line| eprintln!("{line}"));
    for (what, n) in report.happened() {
        figure(
            &format!("chaos.{}", what.replace(' ', "_").to_lowercase()),
            n as f64,
            "count",
            "",
        );
    }
    let mut broken = 0;
    for (what, times) in report.broken() {
        figure(&format!("chaos.{what}"), times.len() as f64, "count", "0");
        for time in times {
            eprintln!("{what}: {time}");
        }
        broken += times.len();
    }
    anyhow::ensure!(broken == 0, "{broken} promises were broken");
    Ok(())
}
