//! Runs fuzz targets.
//!
//! Built as usual, it lists the targets, writes a target's seeds, or runs inputs through one: a
//! crash that was found, again. Built with `--cfg fuzzing` (`./dev fuzz`) it is libFuzzer's program
//! for the target that `CARREL_FUZZ` names.

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    static RUN: std::sync::OnceLock<fn(&[u8])> = std::sync::OnceLock::new();
    let run = RUN.get_or_init(|| {
        let name = std::env::var("CARREL_FUZZ").unwrap_or_default();
        carrel_fuzz::target(&name)
            .unwrap_or_else(|| panic!("CARREL_FUZZ={name:?} names no target"))
            .run
    });
    run(data);
});

#[cfg(not(fuzzing))]
fn main() -> std::process::ExitCode {
    use std::{env, fs, process::ExitCode};

    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["list"] => {
            for target in carrel_fuzz::TARGETS {
                println!("{}", target.name);
            }
            Ok(())
        }
        ["seeds", name, into] => named(name).and_then(|target| {
            (target.seeds)().iter().enumerate().try_for_each(|(n, seed)| {
                fs::write(format!("{into}/seed-{n}"), seed).map_err(|error| format!("{into}: {error}"))
            })
        }),
        ["run", name, files @ ..] if !files.is_empty() => named(name).and_then(|target| {
            files.iter().try_for_each(|file| {
                let input = fs::read(file).map_err(|error| format!("{file}: {error}"))?;
                (target.run)(&input);
                Ok(())
            })
        }),
        _ => Err("usage: fuzz list | seeds TARGET DIR | run TARGET FILE…".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fuzz: {error}");
            ExitCode::from(2)
        }
    }
}

#[cfg(not(fuzzing))]
fn named(name: &str) -> Result<&'static carrel_fuzz::Target, String> {
    carrel_fuzz::target(name).ok_or_else(|| format!("there is no target {name:?}; `fuzz list` names them"))
}
