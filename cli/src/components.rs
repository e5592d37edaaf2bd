//! Several components in one allocation: `carrel alloc -N1 -c8 : -N2 --gpus-per-node=8`, as Slurm writes it; the same
//! of batch jobs, and steps of several programs.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory as _, FromArgMatches as _, Parser as _};

use crate::batch::SubmitOptions;
use crate::cli::{Cli, Command};
use crate::commands::{run, submit};
use crate::request::RequestArgs;

/// What stands between components.
const COLON: &str = ":";

/// What stands after a colon.
#[derive(Debug, clap::Parser)]
#[command(name = "carrel", no_binary_name = true, disable_help_flag = true)]
struct Component {
    #[command(flatten)]
    request: RequestArgs,
}

/// The command line, with the components that follow the first one in its request.
pub fn parse(args: Vec<OsString>) -> Result<Cli, clap::Error> {
    let words: Result<Vec<String>, _> = args.iter().cloned().map(OsString::into_string).collect();
    let args = match words {
        Ok(words) => match submit::verb_of(&words) {
            Some(verb) if words[verb] == "submit" => return batch(&words, verb),
            Some(verb) if words[verb] == "run" => return programs(&words, verb),
            _ => words.into_iter().map(Into::into).collect(),
        },
        // clap says what is no text.
        Err(_) => args,
    };
    let end = args.iter().position(|arg| arg == "--").unwrap_or(args.len());
    let mut groups = args[..end].split(|arg| arg == ":");
    let mut first = groups.next().unwrap_or_default().to_vec();
    let rest: Vec<&[OsString]> = groups.collect();
    if rest.is_empty() {
        return parse_plain(args);
    }
    let first_words = first.clone();
    first.extend_from_slice(&args[end..]);
    let mut cli = match Cli::try_parse_from(first) {
        Ok(cli) => cli,
        Err(error) if args.iter().any(|arg| arg == "alloc" || arg == "open") => return Err(error),
        Err(_) => return parse_plain(args),
    };
    let (verb, request) = match &mut cli.command {
        Command::Alloc(alloc) => ("alloc", &mut alloc.request),
        Command::Open(open) => ("open", &mut open.request),
        // A colon is what it is.
        _ => return parse_plain(args),
    };
    // Before the first one stands the verb, and what is said of the whole.
    let bare = first_words.iter().position(|arg| arg == verb) == Some(first_words.len() - 1);
    if bare || rest.iter().any(|group| group.is_empty()) {
        return Err(empty_component());
    }
    for group in rest {
        let component = Component::try_parse_from(group)
            .map_err(|error| of_the_whole(verb, error))?
            .request;
        if let Some(flag) = component.of_the_whole() {
            return Err(said_too_late(flag));
        }
        request.more.push(component);
    }
    Ok(cli)
}

fn said_too_late(flag: &str) -> clap::Error {
    let text = format!("{flag} is said of the whole allocation: write it before the first ':'\n");
    Cli::command().error(ErrorKind::ArgumentConflict, text)
}

fn empty_component() -> clap::Error {
    let text = "a component is empty: write what it asks for on both sides of each ':'\n";
    Cli::command().error(ErrorKind::MissingRequiredArgument, text)
}

/// What a component does not know may be an option of its verb.
fn of_the_whole(verb: &str, error: clap::Error) -> clap::Error {
    let named = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(named)) if error.kind() == ErrorKind::UnknownArgument => named.clone(),
        _ => return error,
    };
    let cli = Cli::command();
    let knows = |command: &clap::Command| {
        command.get_arguments().any(|arg| {
            let long = arg.get_long().is_some_and(|long| named == format!("--{long}"));
            long || arg.get_short().is_some_and(|short| named == format!("-{short}"))
        })
    };
    if knows(&cli) || cli.find_subcommand(verb).is_some_and(knows) {
        said_too_late(&named)
    } else {
        error
    }
}

/// A batch job: what each component's options say; the script, or the command, stands behind the last.
fn batch(words: &[String], verb: usize) -> Result<Cli, clap::Error> {
    let cli = Cli::command();
    let command = cli.find_subcommand("submit").unwrap_or(&cli);
    let (verb, own) = words.split_at(verb + 1);
    let (first, others) = split(&[command, &cli], own);
    let words: Vec<String> = verb.iter().cloned().chain(first).collect();
    let words = submit::prepare(words).into_iter().map(Into::into);
    let mut cli = parse_plain(words.collect())?;
    if others.iter().any(Vec::is_empty) || own.first().is_some_and(|word| word == COLON) {
        return Err(empty_component());
    }
    if let Command::Submit(submit) = &mut cli.command {
        submit.more_given = others
            .iter()
            .map(|one| component(one))
            .collect::<Result<_, _>>()?;
    }
    Ok(cli)
}

/// The words of the first component with what follows the last, and the options of each of the others. What is an
/// option, these commands say.
pub fn split(commands: &[&clap::Command], words: &[String]) -> (Vec<String>, Vec<Vec<String>>) {
    let options: Vec<&clap::Arg> = commands.iter().flat_map(|one| one.get_arguments()).collect();
    let mut groups = Vec::new();
    let mut rest = words;
    loop {
        let (group, left) = rest.split_at(submit::options_end_of(&options, rest));
        groups.push(group.to_vec());
        rest = left;
        match left.split_first() {
            Some((colon, left)) if colon == COLON => rest = left,
            _ => break,
        }
    }
    let mut first = groups.remove(0);
    first.extend_from_slice(rest);
    (first, groups)
}

/// What the options of a batch job's component say.
///
/// # Errors
/// They are none.
pub fn component(words: &[String]) -> Result<clap::ArgMatches, clap::Error> {
    SubmitOptions::parser().try_get_matches_from(crate::batch::name_output(words, false))
}

/// A step: each of its programs with the options before it.
fn programs(words: &[String], verb: usize) -> Result<Cli, clap::Error> {
    let (own, words) = words.split_at(verb + 1);
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let mut groups: Vec<Vec<String>> = words[..end]
        .split(|word| word == COLON)
        .map(<[String]>::to_vec)
        .collect();
    if groups.iter().skip(1).any(Vec::is_empty) {
        // A colon is what it is.
        groups = vec![words[..end].to_vec()];
    }
    if let Some(last) = groups.last_mut() {
        last.extend_from_slice(&words[end..]);
    }
    let mut parsed = groups.into_iter().map(|group| {
        let words: Vec<String> = own.iter().cloned().chain(group).collect();
        parse_plain(submit::prepare(words).into_iter().map(Into::into).collect())
    });
    let mut cli = parsed.next().unwrap_or_else(|| parse_plain(Vec::new()))?;
    if let Command::Run(first) = &mut cli.command {
        for other in parsed {
            if let Command::Run(other) = other?.command {
                if let Some(flag) = run::said_otherwise(first, &other) {
                    let text = format!("{flag} is said of the whole step: write it before the first ':'\n");
                    return Err(Cli::command().error(ErrorKind::ArgumentConflict, text));
                }
                first.others.push(*other);
            }
        }
    }
    Ok(cli)
}

/// Without components; of a batch job it is kept what was given, since a script may say the rest.
fn parse_plain(args: Vec<OsString>) -> Result<Cli, clap::Error> {
    let matches = Cli::command().try_get_matches_from(args)?;
    let mut cli = Cli::from_arg_matches(&matches)?;
    if let (Command::Submit(submit), Some(given)) = (&mut cli.command, matches.subcommand_matches("submit")) {
        submit.given = given.clone();
    }
    Ok(cli)
}

#[cfg(test)]
mod tests {
    use carrel_proto::v1;

    use super::*;

    fn resources(line: &str) -> Result<v1::ResourceRequest, String> {
        let args = line.split_whitespace().map(OsString::from).collect();
        match parse(args).map_err(|error| error.to_string())?.command {
            Command::Alloc(alloc) => {
                let spec = alloc.request.over(v1::SessionSpec::default());
                spec.map(|spec| spec.resources.expect("resources"))
                    .map_err(|error| error.to_string())
            }
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn components_stand_between_colons() {
        let request =
            resources("carrel alloc -N1 -c8 -t 4h : -N2 --gpus-per-node=8 -C ib -- echo : x").expect("three");
        assert_eq!((request.nodes, request.cpus_per_node), (1, 8));
        assert_eq!(request.more.len(), 1);
        assert_eq!((request.more[0].nodes, request.more[0].gpus_per_node), (2, 8));
        assert!(request.more[0].constraints.is_some());
        assert_eq!(
            resources("carrel alloc -N2 -- echo :").expect("one").more.len(),
            0
        );
    }

    fn parsed(line: &str) -> Command {
        let args = line.split_whitespace().map(OsString::from).collect();
        parse(args).expect(line).command
    }

    #[test]
    fn batch_jobs_have_components_before_their_script() {
        let Command::Submit(submit) =
            parsed("carrel submit -n1 -c 4 : -N2 --gpus-per-node 2 : -c1 a.sh : -N9")
        else {
            panic!("a batch job");
        };
        assert_eq!(submit.what, ["a.sh", ":", "-N9"]);
        assert_eq!(submit.options.request.tasks.cpus_per_task, Some(4));
        assert_eq!(submit.more_given.len(), 2);
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            split(
                &[&SubmitOptions::parser()],
                &words("-J x : --time 5 : -W -- echo : x")
            ),
            (words("-J x -- echo : x"), vec![words("--time 5"), words("-W")])
        );
        assert!(component(&words("--nonsense 3")).is_err());
    }

    #[test]
    fn programs_of_a_step_stand_between_colons() {
        let run = |line: &str| match parsed(line) {
            Command::Run(run) => *run,
            other => panic!("{other:?}"),
        };
        let step = run("carrel run -l -n1 ./a -x : -n 2 ./b : ./c 3");
        assert_eq!(step.command, ["./a", "-x"]);
        let others: Vec<_> = step.others.iter().map(|one| one.command.join(" ")).collect();
        assert_eq!(others, ["./b", "./c 3"]);
        assert_eq!(step.others[0].request.tasks.ntasks, Some(2));
        for line in ["carrel run sh -c :", "carrel run -- a : b"] {
            assert!(run(line).others.is_empty(), "{line}");
        }
        let step =
            run("carrel run -o a.%j -p all -K ./a : -o b.%j -e b.err -p all --label --wait=60 -K=1 ./b");
        assert_eq!(step.others[0].stderr.as_deref(), Some("b.err"));
        for (line, flag) in [
            ("carrel run a : --pty b", "--pty"),
            ("carrel run -p all a : -p other b", "--partition"),
        ] {
            let args = line.split(' ').map(OsString::from).collect();
            let error = parse(args).expect_err("of the step").to_string();
            assert!(error.contains(flag), "{error}");
        }
    }

    #[test]
    fn what_is_said_of_the_whole_comes_first() {
        for (line, why) in [
            ("carrel alloc -N1 : -t 4h", "--time"),
            ("carrel alloc -N1 : --image x", "--image"),
            ("carrel alloc -N1 : --gpus nonsense", "nonsense"),
            ("carrel alloc --nonsense : -N1", "nonsense"),
            ("carrel alloc -c 1 : -N2 --nonsense", "nonsense"),
            (
                "carrel alloc -c 1 : -N2 --test-only",
                "--test-only is said of the whole",
            ),
            (
                "carrel alloc -c 1 : -N2 --output json",
                "--output is said of the whole",
            ),
            ("carrel alloc : -N2", "is empty"),
            ("carrel alloc -c 1 :", "is empty"),
            ("carrel alloc -c 1 : : -N2", "is empty"),
        ] {
            let error = resources(line).expect_err(line);
            assert!(error.contains(why), "{line}: {error}");
        }
    }
}
