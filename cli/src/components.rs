//! Several components in one allocation: `carrel alloc -N1 -c8 : -N2 --gpus-per-node=8`, as Slurm writes it.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, FromArgMatches as _, Parser as _};

use crate::cli::{Cli, Command};
use crate::commands::submit;
use crate::request::RequestArgs;

/// What stands after a colon.
#[derive(Debug, clap::Parser)]
#[command(name = "carrel", no_binary_name = true, disable_help_flag = true)]
struct Component {
    #[command(flatten)]
    request: RequestArgs,
}

/// The command line, with the components that follow the first one in its request.
pub fn parse(args: Vec<OsString>) -> Result<Cli, clap::Error> {
    let args = match args
        .iter()
        .cloned()
        .map(OsString::into_string)
        .collect::<Result<_, _>>()
    {
        Ok(words) => submit::prepare(words).into_iter().map(Into::into).collect(),
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
    first.extend_from_slice(&args[end..]);
    let mut cli = match Cli::try_parse_from(first) {
        Ok(cli) => cli,
        Err(error) if args.iter().any(|arg| arg == "alloc" || arg == "open") => return Err(error),
        Err(_) => return parse_plain(args),
    };
    let request = match &mut cli.command {
        Command::Alloc(alloc) => &mut alloc.request,
        Command::Open(open) => &mut open.request,
        // A colon is what it is.
        _ => return parse_plain(args),
    };
    for group in rest {
        let component = Component::try_parse_from(group)?.request;
        if let Some(flag) = component.of_the_whole() {
            let text = format!("{flag} is said of the whole allocation: write it before the first ':'\n");
            return Err(Cli::command().error(ErrorKind::ArgumentConflict, text));
        }
        request.more.push(component);
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

    #[test]
    fn what_is_said_of_the_whole_comes_first() {
        for (line, why) in [
            ("carrel alloc -N1 : -t 4h", "--time"),
            ("carrel alloc -N1 : --image x", "--image"),
            ("carrel alloc -N1 : --gpus nonsense", "nonsense"),
            ("carrel alloc --nonsense : -N1", "nonsense"),
        ] {
            let error = resources(line).expect_err(line);
            assert!(error.contains(why), "{line}: {error}");
        }
    }
}
