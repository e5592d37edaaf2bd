//! `salloc`: `carrel alloc`, as Slurm's users know it.

use std::collections::BTreeMap;

use clap::{Arg, ArgAction, ArgMatches, Args as _, FromArgMatches as _};

use super::Called;
use super::sbatch::wrong;
use crate::batch::environment::{self, Reader};
use crate::batch::{NotedArgs, SubmitOptions, parse_gres};
use crate::commands::alloc::{self, AllocArgs};
use crate::error::Result;
use crate::terminal::say;
use crate::units::{self, GpuCount};
use crate::{components, output};

/// Options of sbatch's that say nothing here.
const OF_BATCH: [&str; 3] = ["mail-type", "mail-user", "comment"];

/// The command line. What it takes is what `carrel alloc` takes, under Slurm's names alone.
pub fn command() -> clap::Command {
    let command = clap::Command::new("salloc")
        .no_binary_name(true)
        .infer_long_args(true);
    // Of what somebody sits in front of no mail is sent, and nothing is to be remembered.
    let of_batch = OF_BATCH.map(|long| Arg::new(long).long(long).action(ArgAction::Set).hide(true));
    let command = AllocArgs::augment_args(command).args(of_batch);
    NotedArgs::augment_args(command)
        .after_help("")
        .args_override_self(true)
        .override_usage("salloc [OPTIONS] [COMMAND [ARGS]]")
        .mut_arg("command", |arg| {
            arg.last(false).trailing_var_arg(true).allow_hyphen_values(false)
        })
        .arg(
            Arg::new("gres")
                .long("gres")
                .value_name("gpu[:MODEL]:K")
                .value_parser(parse_gres)
                .help("GPUs on each node, as Slurm writes them: gpu:h100:4"),
        )
        .arg(
            Arg::new("ntasks-per-gpu")
                .long("ntasks-per-gpu")
                .value_name("N")
                .value_parser(units::parse_count)
                .help("Tasks for each GPU: where GPUs are counted it counts the tasks, and else by these the GPUs"),
        )
        .arg(
            Arg::new("quiet")
                .short('Q')
                .long("quiet")
                .action(ArgAction::SetTrue)
                .hide(true),
        )
        .arg(
            Arg::new("verbose")
                .short('v')
                .long("verbose")
                .action(ArgAction::Count)
                .hide(true),
        )
        .arg(Arg::new("usage").long("usage").action(ArgAction::Help).hide(true))
}

/// Runs it.
pub async fn run(called: &Called, args: &[String]) -> Result<u8> {
    let (words, others) = components::split(&[&command()], args);
    let matches = match with_environment(words, &environment::own()) {
        Ok(matches) => matches?,
        Err(error) if !error.use_stderr() => return output::text(error.render()).map(|()| 0),
        Err(error) => return Err(wrong("salloc", &error)),
    };
    let args = asked(&matches, &others)?;
    for name in OF_BATCH.iter().filter(|name| matches.contains_id(name)) {
        say(format_args!("salloc: --{name} is ignored: it is for batch jobs"));
    }
    let noted = NotedArgs::from_arg_matches(&matches).map_err(|error| wrong("salloc", &error))?;
    for note in noted.notes() {
        say(format_args!("salloc: {note}"));
    }
    Box::pin(alloc::run(&called.context, args)).await
}

/// What the command line says, over what the environment does (`SALLOC_*`).
///
/// # Errors
/// The command line is wrong, or, within, a variable.
fn with_environment(
    words: Vec<String>,
    own: &BTreeMap<String, String>,
) -> std::result::Result<Result<ArgMatches>, clap::Error> {
    let given = command().try_get_matches_from(&words)?;
    let reads = |word: &str| command().try_get_matches_from([word]).map(drop);
    match Reader::Salloc.words(own, &given, reads) {
        Ok(before) => command()
            .try_get_matches_from(before.into_iter().chain(words))
            .map(Ok),
        Err(error) => Ok(Err(error)),
    }
}

/// What is asked for, with the components after the first.
fn asked(matches: &ArgMatches, others: &[Vec<String>]) -> Result<AllocArgs> {
    let read = |error: clap::Error| wrong("salloc", &error);
    let mut args = AllocArgs::from_arg_matches(matches).map_err(read)?;
    let others = others.iter().map(|one| components::component(one));
    let mut components = SubmitOptions {
        request: args.request.clone(),
        gres: matches.get_one::<GpuCount>("gres").cloned(),
        ntasks_per_gpu: matches.get_one("ntasks-per-gpu").copied(),
        ..SubmitOptions::default()
    };
    components.take_more(&others.collect::<std::result::Result<Vec<_>, _>>().map_err(read)?)?;
    args.request = components.request()?;
    Ok(args)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_asks_and_the_command_line_counts_over_it() {
        let own: BTreeMap<String, String> = [
            ("SALLOC_ACCOUNT", "lab"),
            ("SALLOC_TIMELIMIT", "30"),
            ("SALLOC_GRES", "gpu:4"),
            ("SALLOC_EXCLUSIVE", ""),
            ("SBATCH_QOS", "not-read"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let read = |line: &str| {
            let matches = with_environment(words(line), &own).expect(line).expect(line);
            asked(&matches, &[]).expect(line)
        };
        let args = read("-t 5 hostname");
        assert_eq!(args.request.terms.account.as_deref(), Some("lab"));
        assert_eq!(args.request.time.map(|time| time.as_secs()), Some(300));
        assert_eq!(args.request.gpus_per_node.map(|gpus| gpus.count), Some(4));
        assert!(args.request.exclusive.is_some() && args.request.terms.qos.is_none());
        let args = read("--gpus 2");
        assert!(args.request.gpus_per_node.is_none() && args.command.is_empty());
        let bad = [("SALLOC_TIMELIMIT".to_owned(), "soon".to_owned())].into();
        let error = with_environment(words("-N1"), &bad)
            .expect("a command line")
            .expect_err("no time");
        assert!(
            error.message.starts_with("the variable SALLOC_TIMELIMIT: "),
            "{error}"
        );
        assert!(
            with_environment(words("-N1 -t 5"), &bad)
                .expect("a command line")
                .is_ok()
        );
    }

    #[test]
    fn a_command_stands_behind_the_options() {
        let read = |line: &str| {
            let matches = command()
                .try_get_matches_from(line.split_whitespace())
                .expect(line);
            AllocArgs::from_arg_matches(&matches).expect(line)
        };
        let args = read("-N2 --gres=gpu:2 -t 10 hostname -f --time 3");
        assert_eq!(args.command, ["hostname", "-f", "--time", "3"]);
        assert_eq!(args.request.nodes, Some(2));
        assert!(read("--job-name=x").command.is_empty());
        let unknown = command()
            .try_get_matches_from(["--nonsense"])
            .expect_err("unknown");
        assert_eq!(
            wrong("salloc", &unknown).message,
            "unrecognized option '--nonsense'"
        );
    }
}
