//! `sbatch`: `carrel submit`, as Slurm's scripts and tools know it.

use clap::{Arg, ArgAction, Args as _, FromArgMatches as _};

use super::Called;
use crate::batch::in_one_line;
use crate::commands::submit::{self, Face, SubmitArgs};
use crate::error::{CliError, Kind, Result};
use crate::{components, output};

/// What `--output` is: its default is not that of `carrel submit`.
const OUTPUT: &str = "File of its output, in the working directory unless it is absolute; patterns: %j %x %u %N %A %a \
                      [default: slurm-%j.out, and slurm-%A_%a.out of an array]";

/// The command line. What it takes is what `carrel submit` takes, under Slurm's names alone.
pub fn command() -> clap::Command {
    let command = clap::Command::new("sbatch")
        .no_binary_name(true)
        .infer_long_args(true);
    SubmitArgs::augment_args(command)
        .after_help("")
        .override_usage("sbatch [OPTIONS] [SCRIPT [ARGS]]")
        .mut_arg("stdout", |arg| {
            arg.long("output").alias("stdout").value_name("FILE").help(OUTPUT)
        })
        .mut_arg("what", |arg| {
            arg.value_name("SCRIPT [ARGS]")
                .help("The script and its arguments")
        })
        .arg(
            Arg::new("quiet")
                .short('Q')
                .long("quiet")
                .action(ArgAction::SetTrue)
                .help("Print errors alone"),
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

/// What a command line says, and as whom to submit it.
///
/// # Errors
/// What is wrong with it, or what is to be shown in its place.
pub fn read(args: &[String]) -> std::result::Result<(SubmitArgs, Face), clap::Error> {
    let (args, others) = components::split(&[&command()], args);
    let matches = command().try_get_matches_from(args)?;
    let others = others.iter().map(|one| components::component(one));
    let others = others.collect::<std::result::Result<Vec<_>, _>>()?;
    let quiet = matches.get_flag("quiet");
    let mut args = SubmitArgs::from_arg_matches(&matches)?;
    args.given = matches;
    args.more_given = others;
    Ok((args, Face::Sbatch { quiet }))
}

/// Runs it.
pub async fn run(called: &Called, args: &[String]) -> Result<u8> {
    let (args, face) = match read(args) {
        Ok(read) => read,
        Err(error) if !error.use_stderr() => return output::text(error.render()).map(|()| 0),
        Err(error) => return Err(wrong("sbatch", &error)),
    };
    let submitted = Box::pin(submit::run_as(&called.context, args, face)).await;
    submitted.map_err(|error| match error.kind {
        // What the broker has said.
        Kind::Failed | Kind::Denied | Kind::Unreachable => CliError {
            message: format!("Batch job submission failed: {}", error.message),
            ..error
        },
        Kind::Usage | Kind::NotFound | Kind::Interrupted | Kind::Terminated | Kind::Connection => error,
    })
}

/// What clap says, as getopt would.
pub fn wrong(name: &str, error: &clap::Error) -> CliError {
    let said = in_one_line(error);
    let said = match said.strip_prefix("there is no option ") {
        Some(option) if option.starts_with("--") => format!("unrecognized option '{option}'"),
        Some(option) => format!("invalid option -- '{}'", option.trim_start_matches('-')),
        None => said,
    };
    CliError::usage(said).hint(format!("Try \"{name} --help\" for more information"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<SubmitArgs> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let (mut args, _) = super::read(&words).map_err(|error| wrong("sbatch", &error))?;
        args.options
            .take(&args.given)
            .map_err(|error| wrong("sbatch", &error))?;
        Ok(args)
    }

    #[test]
    fn slurm_s_spellings_are_taken() {
        let args = read("--output=json -J x --job-name=y --mem-per-cpu=1G --ntasks-per-nod 2 -n4 --qos=normal a.sh --output=b -N")
            .expect("read");
        assert_eq!(args.options.stdout.as_deref(), Some("json"));
        assert_eq!(args.options.name.as_deref(), Some("y"));
        assert_eq!(args.options.request.tasks.ntasks, Some(4));
        assert_eq!(args.what, ["a.sh", "--output=b", "-N"], "the script's own");
        let args = read("-Q --comment=x --wckey y --export=NONE --hint=nomultithread a.sh").expect("read");
        assert_eq!(args.options.noted.notes().len(), 2);
        assert_eq!(args.options.comment.as_deref(), Some("x"));
    }

    #[test]
    fn an_option_that_there_is_not_is_named() {
        for (line, said) in [
            ("--nonsense a.sh", "unrecognized option '--nonsense'"),
            ("-Z a.sh", "invalid option -- 'Z'"),
        ] {
            assert_eq!(read(line).expect_err("unknown").message, said);
        }
        for (line, why) in [
            ("-L matlab a.sh", "there are no licenses"),
            ("--nodefile=x a.sh", "--nodelist"),
        ] {
            let refused = read(line).expect_err("refused");
            assert!(refused.message.contains(why), "{line}: {}", refused.message);
        }
        assert!(
            read("--time=soon a.sh")
                .expect_err("no time")
                .message
                .contains("soon")
        );
    }
}
