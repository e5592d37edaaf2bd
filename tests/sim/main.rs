//! `sim [--seeds N] [--seed S]`: simulated worlds under faults.

use std::process::ExitCode;

use carrel_tests::sim::{Counts, EXPECTED, run};
use clap::Parser;

/// Lives simulated worlds, and says what went wrong in them.
#[derive(Parser)]
struct Arguments {
    /// How many seeds.
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// Only this seed.
    #[arg(long)]
    seed: Option<u64>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let seeds: Vec<u64> = arguments
        .seed
        .map_or_else(|| (0..arguments.seeds).collect(), |seed| vec![seed]);
    let mut counts = Counts::default();
    let mut findings = 0;
    for seed in &seeds {
        match run(*seed) {
            Ok(seen) => counts.merge(&seen),
            Err(finding) => {
                eprintln!("{finding}\n");
                findings += 1;
            }
        }
    }
    print!("{counts}");
    println!("{} seeds, {findings} findings", seeds.len());
    let never = counts.never(EXPECTED);
    if arguments.seed.is_none() && findings == 0 && !never.is_empty() {
        eprintln!("never occurred: {}", never.join(", "));
        return ExitCode::FAILURE;
    }
    if findings == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
