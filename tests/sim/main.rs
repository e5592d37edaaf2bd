//! `sim [--seeds N] [--seed S] [--mutants] [--mutant NAME]`: simulated worlds under faults.

use std::process::ExitCode;

use carrel_tests::sim::{EXPECTED, Mutant, catch, run, run_seeds};
use clap::Parser;

/// Worlds in which a planted bug must have been noticed.
const MUTANT_SEEDS: u64 = 400;

/// Lives simulated worlds, and says what went wrong in them.
#[derive(Parser)]
struct Arguments {
    /// How many seeds [default: 1000; with --mutants: 400 for each]
    #[arg(long)]
    seeds: Option<u64>,
    /// Only this seed
    #[arg(long)]
    seed: Option<u64>,
    /// Plant one bug after the other, and see whether each is noticed
    #[arg(long)]
    mutants: bool,
    /// Plant this bug
    #[arg(long, value_parser = parse_mutant)]
    mutant: Option<Mutant>,
}

fn parse_mutant(text: &str) -> Result<Mutant, String> {
    let known = Mutant::ALL.into_iter().find(|mutant| mutant.name() == text);
    known.ok_or_else(|| format!("the bugs are: {}", Mutant::ALL.map(Mutant::name).join(", ")))
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let well = match (arguments.seed, arguments.mutants) {
        (Some(seed), _) => one(seed, arguments.mutant),
        (None, true) => mutants(arguments.seeds.unwrap_or(MUTANT_SEEDS)),
        (None, false) => many(arguments.seeds.unwrap_or(1_000), arguments.mutant),
    };
    if well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn one(seed: u64, mutant: Option<Mutant>) -> bool {
    match run(seed, mutant) {
        Ok(counts) => {
            print!("{counts}");
            println!("seed {seed}: no finding");
            true
        }
        Err(finding) => {
            eprintln!("{finding}");
            false
        }
    }
}

fn many(seeds: u64, mutant: Option<Mutant>) -> bool {
    let (counts, findings) = run_seeds(0..seeds, mutant, false);
    for finding in &findings {
        eprintln!("{finding}\n");
    }
    print!("{counts}");
    println!("{seeds} seeds, {} findings", findings.len());
    let never = counts.never(EXPECTED);
    if !never.is_empty() {
        eprintln!("never occurred: {}", never.join(", "));
    }
    findings.is_empty() && never.is_empty()
}

fn mutants(seeds: u64) -> bool {
    let mut missed = 0;
    for mutant in Mutant::ALL {
        if let Some(finding) = catch(mutant, seeds).by {
            println!("{mutant:<26} seed {:>3}: {}", finding.seed, finding.what);
        } else {
            println!("{mutant:<26} NOT NOTICED in {seeds} seeds");
            missed += 1;
        }
    }
    println!(
        "{} of {} bugs noticed",
        Mutant::ALL.len() - missed,
        Mutant::ALL.len()
    );
    missed == 0
}
