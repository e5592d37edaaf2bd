//! `srun`: `carrel run`, as Slurm's users know it.

use std::collections::BTreeMap;
use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, CommandFactory as _};

use super::Called;
use super::options::Takes::{Nothing, Perhaps, Value};
use super::options::{NONE, ONE_CLUSTER, Opt, Standing, Takes, noted, refused};
use crate::batch::environment::{self, Reader};
use crate::cli::{Cli, Command};
use crate::commands::submit;
use crate::error::{CliError, Result};
use crate::terminal::say;
use crate::{batch, commands, components, output};

/// Why sockets, cores and threads are not told apart.
const CPUS_ALONE: &str = "CPUs are counted, and near to their GPUs; not sockets, cores and threads";
/// Why programs of a site's are not run.
const NO_PROLOGS: &str = "nothing but the command is run";
const NO_MAIL: &str = "no mail is sent";
const NOT_COUNTED: &str = "it is not counted";
const AS_IT_IS: &str = "frequencies are as they are";

/// What `man srun` has and `carrel run` has not.
const OTHERS: &[Opt] = &[
    noted(
        NONE,
        "acctg-freq",
        Value,
        "how often use is measured, the node's agent says",
    ),
    noted(NONE, "bb", Value, "there are no burst buffers"),
    noted(NONE, "bbf", Value, "there are no burst buffers"),
    noted(NONE, "bcast", Perhaps, "programs are read from where they are"),
    noted(
        NONE,
        "send-libs",
        Perhaps,
        "programs are read from where they are",
    ),
    noted(NONE, "compress", Perhaps, "programs are read from where they are"),
    noted(NONE, "cluster-constraint", Value, ONE_CLUSTER),
    noted('M', "clusters", Value, ONE_CLUSTER),
    refused(NONE, "container", Value, "--image names the job's image"),
    noted(NONE, "container-mount-home", Nothing, "the home is there"),
    noted(NONE, "no-container-mount-home", Nothing, "the home is there"),
    noted(NONE, "container-writable", Nothing, "it can be written in"),
    noted(
        NONE,
        "no-container-entrypoint",
        Nothing,
        "an image's entrypoint is not run",
    ),
    noted(
        NONE,
        "container-name",
        Value,
        "a job has one container on each node, with all of its steps",
    ),
    noted(NONE, "container-env", Value, "--export names variables"),
    noted('S', "core-spec", Value, CPUS_ALONE),
    noted(NONE, "thread-spec", Value, CPUS_ALONE),
    noted(NONE, "cores-per-socket", Value, CPUS_ALONE),
    noted(NONE, "sockets-per-node", Value, CPUS_ALONE),
    noted(NONE, "threads-per-core", Value, CPUS_ALONE),
    noted('B', "extra-node-info", Value, CPUS_ALONE),
    noted(NONE, "ntasks-per-core", Value, CPUS_ALONE),
    noted(NONE, "ntasks-per-socket", Value, CPUS_ALONE),
    noted(NONE, "cpu-freq", Value, AS_IT_IS),
    noted(NONE, "gpu-freq", Value, AS_IT_IS),
    noted(NONE, "deadline", Value, "--time says for how long"),
    noted(NONE, "delay-boot", Value, "nodes are not booted for jobs"),
    noted(NONE, "reboot", Nothing, "nodes are not booted for jobs"),
    noted('X', "disable-status", Nothing, "Ctrl-C is the tasks'"),
    noted(NONE, "quit-on-interrupt", Nothing, "Ctrl-C is the tasks'"),
    noted(NONE, "prolog", Value, NO_PROLOGS),
    noted(NONE, "epilog", Value, NO_PROLOGS),
    noted(NONE, "task-prolog", Value, NO_PROLOGS),
    noted(NONE, "task-epilog", Value, NO_PROLOGS),
    noted(NONE, "external-launcher", Nothing, NO_PROLOGS),
    refused(NONE, "gid", Value, "a step is its job's user's"),
    refused(NONE, "uid", Value, "a step is its job's user's"),
    noted(NONE, "gres-flags", Value, "CPUs follow the GPUs"),
    noted(NONE, "tres-bind", Value, "CPUs follow the GPUs"),
    noted(NONE, "interactive", Nothing, "--pty says it"),
    refused('L', "licenses", Value, "there are no licenses"),
    noted(NONE, "mail-type", Value, NO_MAIL),
    noted(NONE, "mail-user", Value, NO_MAIL),
    noted(NONE, "mcs-label", Value, NOT_COUNTED),
    noted(NONE, "wckey", Value, NOT_COUNTED),
    noted(NONE, "power", Value, NOT_COUNTED),
    noted(NONE, "profile", Value, NOT_COUNTED),
    noted(NONE, "msg-timeout", Value, "a node that is cut off is waited for"),
    noted(NONE, "network", Value, "a job's network is the cluster's to say"),
    noted(
        NONE,
        "resv-ports",
        Perhaps,
        "a job's network is its own, with all ports",
    ),
    refused('Z', "no-allocate", Nothing, "nothing runs without an allocation"),
    refused('F', "nodefile", Value, "--nodelist names nodes"),
    noted(NONE, "whole", Nothing, "steps share nodes, and not CPUs"),
    noted(NONE, "accel-bind", Value, "CPUs follow the GPUs"),
    refused(NONE, "gpus-per-socket", Value, CPUS_ALONE),
    refused(
        NONE,
        "tres-per-task",
        Value,
        "-c and --gpus-per-task say the same",
    ),
    noted(
        'E',
        "preserve-env",
        Nothing,
        "the number of nodes and tasks is the step's",
    ),
    noted(NONE, "priority", Value, "--nice moves it"),
    noted(NONE, "propagate", Perhaps, "limits are the container's"),
    noted('s', "share", Nothing, "--overlap shares what other steps have"),
    noted(NONE, "slurmd-debug", Value, "nothing more is said"),
    noted(NONE, "spread-job", Nothing, "jobs are packed"),
    noted(
        'T',
        "threads",
        Value,
        "connections are as many as there are nodes",
    ),
    noted(NONE, "tmp", Value, "a container's disk is not counted"),
    noted(
        NONE,
        "use-min-nodes",
        Nothing,
        "jobs have the nodes that they ask for",
    ),
    noted(
        NONE,
        "wait-all-nodes",
        Value,
        "a step begins when all of its nodes are ready",
    ),
    noted(NONE, "x11", Perhaps, "ssh -X leads displays on"),
];

/// Runs it.
pub async fn run(called: &Called, args: &[String]) -> Result<u8> {
    let (mut words, mut notes) = (Vec::new(), Vec::new());
    for program in of_programs(args) {
        let (kept, said) = sift(program)?;
        if !words.is_empty() {
            words.push(":".to_owned());
        }
        words.extend(kept);
        notes.extend(said);
    }
    if !words.iter().any(|word| word == "-Q" || word == "--quiet") {
        for note in notes {
            say(format_args!("srun: {note}"));
        }
    }
    // In an allocation these say what it is.
    if !called.context.is_inside() {
        let before = of_environment(&words, &environment::own())?;
        words.splice(0..0, before);
    }
    let own = ["carrel", "run"].map(OsString::from);
    let words = own.into_iter().chain(words.iter().map(OsString::from));
    match components::parse(words.collect()) {
        Ok(cli) => match cli.command {
            Command::Run(mut args) => {
                args.of_first_group = true;
                Box::pin(commands::run::run(&called.context, *args)).await
            }
            _ => Err(CliError::usage("this is no step")),
        },
        Err(error) if error.kind() == ErrorKind::DisplayHelp => output::text(error.to_string()).map(|()| 0),
        Err(error) => Err(wrong(batch::in_one_line(&error))),
    }
}

/// The options that the environment gives (`SLURM_*`), where a step has an allocation of its own.
///
/// # Errors
/// A variable that is not understood.
fn of_environment(words: &[String], own: &BTreeMap<String, String>) -> Result<Vec<String>> {
    let read = |words: &[String]| -> std::result::Result<ArgMatches, clap::Error> {
        let line = ["carrel", "run"].into_iter().map(str::to_owned);
        let line = submit::prepare(line.chain(words.iter().cloned()).collect());
        let mut read = Cli::command().try_get_matches_from(line)?;
        Ok(read.remove_subcommand().map(|(_, run)| run).unwrap_or_default())
    };
    // What is wrong with them says who reads all of the line.
    let Ok(given) = read(of_programs(words).first().copied().unwrap_or_default()) else {
        return Ok(Vec::new());
    };
    if given.value_source("job").is_some() {
        return Ok(Vec::new());
    }
    let reads = |word: &str| read(&[word.to_owned(), "true".to_owned()]).map(drop);
    Reader::Srun.words(own, &given, reads)
}

/// The words of each of a step's programs, with its options: between them stands a ':', and none behind "--".
fn of_programs(args: &[String]) -> Vec<&[String]> {
    let end = args.iter().position(|arg| arg == "--").unwrap_or(args.len());
    let mut programs: Vec<&[String]> = Vec::new();
    let mut from = 0;
    for at in (0..end).filter(|at| args[*at] == ":" && at + 1 < args.len()) {
        programs.push(&args[from..at]);
        from = at + 1;
    }
    programs.push(&args[from..]);
    programs
}

fn wrong(what: String) -> CliError {
    CliError::usage(what).hint("Try \"srun --help\" for more information")
}

/// An option, of ours or not.
enum Known {
    /// Of `carrel run`; whether its value is a word of its own.
    Own(bool),
    /// Of `carrel run`, with a value or none: behind a short name it is glued (`-K1`).
    OwnPerhaps,
    Other(&'static Opt),
}

/// Takes out what Slurm has and means nothing here, up to the command. What is left, and what is to be said of the rest.
fn sift(args: &[String]) -> Result<(Vec<String>, Vec<String>)> {
    let cli = Cli::command();
    let run = cli.find_subcommand("run");
    let own: Vec<&Arg> = run
        .into_iter()
        .chain(std::iter::once(&cli))
        .flat_map(clap::Command::get_arguments)
        .collect();
    let (mut kept, mut notes) = (Vec::new(), Vec::new());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if let Some(long) = arg.strip_prefix("--").filter(|long| !long.is_empty()) {
            let (name, value) = long
                .split_once('=')
                .map_or((long, None), |(name, value)| (name, Some(value)));
            match by_long(&own, name) {
                Some(Known::Other(other)) => {
                    notes.push(said(other)?);
                    if other.takes == Takes::Value && value.is_none() {
                        args.next();
                    }
                }
                Some(Known::Own(true)) if value.is_none() => {
                    kept.push(arg.clone());
                    kept.extend(args.next().cloned());
                }
                Some(Known::Own(_) | Known::OwnPerhaps) | None => kept.push(arg.clone()),
            }
        } else if arg.len() > 1 && arg.starts_with('-') && !arg.starts_with("--") {
            let mut left = String::from("-");
            let mut letters = arg[1..].chars();
            let mut follows = false;
            while let Some(letter) = letters.next() {
                match by_short(&own, letter) {
                    Some(Known::Own(true)) => {
                        left.push(letter);
                        left.push_str(letters.as_str());
                        follows = letters.as_str().is_empty();
                        break;
                    }
                    Some(Known::OwnPerhaps) if !letters.as_str().is_empty() => {
                        left.push(letter);
                        left.push('=');
                        left.push_str(letters.as_str().trim_start_matches('='));
                        break;
                    }
                    Some(Known::Own(false) | Known::OwnPerhaps) | None => left.push(letter),
                    Some(Known::Other(other)) => {
                        notes.push(said(other)?);
                        if other.takes == Takes::Value {
                            if letters.as_str().is_empty() {
                                args.next();
                            }
                            break;
                        }
                    }
                }
            }
            if left.len() > 1 {
                kept.push(left);
            }
            if follows {
                kept.extend(args.next().cloned());
            }
        } else {
            // The command, or the end of options.
            kept.push(arg.clone());
            kept.extend(args.by_ref().cloned());
        }
    }
    Ok((kept, notes))
}

fn said(option: &Opt) -> Result<String> {
    match option.is {
        Standing::Used | Standing::Taken | Standing::Noted => {
            Ok(format!("--{} is ignored: {}", option.long, option.text))
        }
        Standing::Refused => Err(wrong(format!(
            "option '--{}' cannot be had here: {}",
            option.long, option.text
        ))),
    }
}

/// What an option of ours takes.
fn of_own(arg: &Arg) -> Known {
    match (arg.get_action().takes_values(), arg.is_require_equals_set()) {
        (true, true) => Known::OwnPerhaps,
        (takes, _) => Known::Own(takes),
    }
}

fn by_long(own: &[&Arg], name: &str) -> Option<Known> {
    let names = |arg: &Arg| -> Vec<String> {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        let names = arg.get_long().into_iter().chain(aliases);
        names.map(str::to_owned).collect()
    };
    let is = |arg: &&&Arg, begins: bool| {
        let of = names(arg);
        of.iter()
            .any(|one| one == name || (begins && one.starts_with(name)))
    };
    let find = |begins: bool| {
        let mine = own.iter().find(|arg| is(arg, begins));
        let mine = mine.map(|arg| of_own(arg));
        let other = || {
            OTHERS
                .iter()
                .find(|one| one.long == name || (begins && one.long.starts_with(name)))
        };
        mine.or_else(|| other().map(Known::Other))
    };
    find(false).or_else(|| find(true))
}

fn by_short(own: &[&Arg], letter: char) -> Option<Known> {
    let is = |arg: &&&Arg| {
        let aliases = arg.get_all_short_aliases().unwrap_or_default();
        arg.get_short() == Some(letter) || aliases.contains(&letter)
    };
    let mine = own.iter().find(is).map(|arg| of_own(arg));
    mine.or_else(|| {
        OTHERS
            .iter()
            .find(|one| one.short == Some(letter))
            .map(Known::Other)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_asks_where_there_is_no_allocation() {
        let own: BTreeMap<String, String> = [
            ("SLURM_ACCOUNT", "lab"),
            ("SLURM_TIMELIMIT", "30"),
            ("SLURM_GPUS_PER_NODE", "4"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        let before = |line: &str| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            of_environment(&words, &own).expect(line).join(" ")
        };
        assert_eq!(
            before("-n 2 hostname"),
            "--account=lab --gpus-per-node=4 --time=30"
        );
        assert_eq!(
            before("-t 5 -G1 --output=x hostname -A other : b"),
            "--account=lab"
        );
        assert_eq!(before("--jobid 7 hostname"), "");
    }

    fn sifted(line: &str) -> (String, usize) {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let (kept, notes) = sift(&words).expect(line);
        (kept.join(" "), notes.len())
    }

    #[test]
    fn what_means_nothing_here_is_taken() {
        for (line, kept, notes) in [
            (
                "-n 2 --propagate=NONE --x11 -l hostname -X",
                "-n 2 -l hostname -X",
                2,
            ),
            (
                "-N1 -n1 --threads-per-core 1 --resv-ports true",
                "-N1 -n1 true",
                2,
            ),
            ("-ul -T4 -T 4 -XEu sh -c exit", "-ul -u sh -c exit", 4),
            (
                "-w n1 --wckey x --job-name y -o f%t --chdir /tmp pwd --wckey",
                "-w n1 --job-name y -o f%t --chdir /tmp pwd --wckey",
                1,
            ),
            (
                "--output x --het-group=0 --jobid 12 -J x echo --multi-prog",
                "--output x --het-group=0 --jobid 12 -J x echo --multi-prog",
                0,
            ),
            (
                "--ntasks 2 --exclusive --cpu-bind=q -- -x",
                "--ntasks 2 --exclusive --cpu-bind=q -- -x",
                0,
            ),
            ("--acctg 5 true", "true", 1),
            ("-lK1 -K -I5 -W 3 true -K1", "-lK=1 -K -I=5 -W 3 true -K1", 0),
            ("--nonsense true", "--nonsense true", 0),
        ] {
            assert_eq!(sifted(line), (kept.to_owned(), notes), "{line}");
        }
    }

    #[test]
    fn what_cannot_be_had_is_refused() {
        for line in ["-lZ true", "-L matlab true", "--nodefile=x true"] {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let error = sift(&words).expect_err(line);
            assert!(
                error.message.contains("cannot be had here"),
                "{line}: {}",
                error.message
            );
        }
    }

    #[test]
    fn no_option_stands_for_two() {
        let cli = Cli::command();
        let run = cli.find_subcommand("run").expect("the verb");
        for other in OTHERS {
            let both = run.get_arguments().any(|arg| {
                arg.get_long() == Some(other.long)
                    || (other.short.is_some() && arg.get_short() == other.short)
            });
            assert!(!both, "--{} is an option of our own", other.long);
        }
    }
}
