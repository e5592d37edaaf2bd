//! `salloc`: `carrel alloc`, as Slurm's users know it.

use clap::{Arg, ArgAction, Args as _, FromArgMatches as _};

use super::Called;
use super::sbatch::wrong;
use crate::batch::{NotedArgs, SubmitOptions, parse_gres};
use crate::commands::alloc::{self, AllocArgs};
use crate::error::Result;
use crate::terminal::say;
use crate::units::GpuCount;
use crate::{components, output};

/// Options of sbatch's that say nothing here.
const MAIL: [&str; 2] = ["mail-type", "mail-user"];

/// The command line. What it takes is what `carrel alloc` takes, under Slurm's names alone.
pub fn command() -> clap::Command {
    let command = clap::Command::new("salloc")
        .no_binary_name(true)
        .infer_long_args(true);
    // Of what somebody sits in front of no mail is sent.
    let mail = MAIL.map(|long| Arg::new(long).long(long).action(ArgAction::Set).hide(true));
    let command = AllocArgs::augment_args(command).args(mail);
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
                .conflicts_with_all(["gpus", "gpus_per_node"])
                .help("GPUs on each node, as Slurm writes them: gpu:h100:4"),
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
    let matches = match command().try_get_matches_from(words) {
        Ok(matches) => matches,
        Err(error) if !error.use_stderr() => return output::text(error.render()).map(|()| 0),
        Err(error) => return Err(wrong("salloc", &error)),
    };
    let read = |error: clap::Error| wrong("salloc", &error);
    let mut args = AllocArgs::from_arg_matches(&matches).map_err(read)?;
    if let Some(gres) = matches.get_one::<GpuCount>("gres") {
        args.request.gpus_per_node = Some(gres.clone());
    }
    let others = others.iter().map(|one| components::component(one));
    let mut components = SubmitOptions {
        request: args.request.clone(),
        ..SubmitOptions::default()
    };
    components.take_more(&others.collect::<std::result::Result<Vec<_>, _>>().map_err(read)?)?;
    args.request = components.request()?;
    let mail = MAIL.iter().filter(|name| matches.contains_id(name));
    for name in mail {
        say(format_args!(
            "salloc: --{name} is ignored: mail is sent of batch jobs"
        ));
    }
    for note in NotedArgs::from_arg_matches(&matches).map_err(read)?.notes() {
        say(format_args!("salloc: {note}"));
    }
    Box::pin(alloc::run(&called.context, args)).await
}

#[cfg(test)]
mod tests {
    use super::*;

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
