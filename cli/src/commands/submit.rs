//! `carrel submit`: batch jobs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use carrel_core::model::ids::JobId;
use carrel_proto::v1;
use clap::CommandFactory as _;

use crate::batch::notebook::Notebook;
use crate::batch::{SubmitOptions, directives, environment, notebook, script};
use crate::connect::Client;
use crate::context::Context;
use crate::error::{CliError, Context as _, Result};
use crate::signals::Signals;
use crate::terminal::{is_interactive, say};
use crate::{batch, output, plan, request, view, wait};

/// Queue a batch job: a script, a notebook, or a command.
///
/// It runs by itself, on its first node, once its resources are free. SCRIPT is taken as it is now. Its lines that begin
/// with #SBATCH or #CARREL, before its first command, hold options; what the command line says counts over them, and
/// they count over the environment's SBATCH_* variables. Without SCRIPT or CMD the script is read from the standard
/// input. The job's output goes to a file in its working directory, and `carrel logs` shows it from anywhere.
#[derive(Clone, Debug, clap::Args)]
#[command(
    args_override_self = true,
    after_help = "Examples:\n  \
    carrel submit train.sh                      with the options in its #SBATCH lines\n  \
    carrel submit --gpus 4 -t 4h train.sh --lr 3   ARGS after SCRIPT are the script's\n  \
    carrel submit --gpus 1 -- python train.py   a command\n  \
    carrel submit --wrap 'make && ./run' -W     a line for the shell; wait, and exit with its code\n  \
    carrel submit --gpus 1 exp.ipynb            a notebook; its outputs are written back to it\n  \
    JOB=$(carrel submit --parsable a.sh) && carrel submit -d afterok:$JOB b.sh\n  \
    carrel submit --array=0-99%5 sweep.sh       100 tasks, five of them at once\n  \
    carrel submit -N2 --gpus-per-node 8 --test-only train.sh"
)]
pub struct SubmitArgs {
    /// A command line for the shell, in place of a script
    #[arg(long, value_name = "LINE", conflicts_with = "what")]
    pub wrap: Option<String>,
    /// What can stand in a script, too.
    #[command(flatten)]
    pub options: SubmitOptions,
    /// The script and its arguments; or, after --, a command and its arguments
    #[arg(value_name = "SCRIPT [ARGS] | -- CMD [ARGS]", trailing_var_arg = true)]
    pub what: Vec<String>,
    /// What of these was given: it counts over what a script says.
    #[arg(skip)]
    pub given: clap::ArgMatches,
    /// The same of each component after the first.
    #[arg(skip)]
    pub more_given: Vec<clap::ArgMatches>,
}

/// Stands after "--" where a command is meant and no script: what clap leaves out of what it gives.
const COMMAND_MARK: &str = "\u{1}command";

/// What is to be run.
#[derive(Debug, PartialEq, Eq)]
enum What {
    /// A script's text, its arguments, and what it is called.
    Script(String, Vec<String>, String),
    Command(Vec<String>),
    /// A notebook's name, what was read of it, and what it finds in `sys.argv`.
    Notebook(PathBuf, Notebook, Vec<String>),
}

/// Prepares a command line for parsing, if it is this verb's or a step's: marks a command, and tells the name of the
/// output's file from how data is printed.
pub fn prepare(args: Vec<String>) -> Vec<String> {
    let Some(verb) = verb_of(&args).filter(|at| matches!(args[*at].as_str(), "submit" | "run")) else {
        return args;
    };
    let words = &args[verb + 1..];
    // What follows the script, or the command, is its own.
    let end = verb + 1 + options_end(&args[verb], words);
    let mut prepared = args[..=verb].to_vec();
    prepared.extend(batch::name_output(&args[verb + 1..end], true));
    let mark = args[verb] == "submit" && args.get(end).is_some_and(|word| word == "--");
    if mark {
        prepared.extend(["--".to_owned(), COMMAND_MARK.to_owned()]);
        prepared.extend_from_slice(&args[end + 1..]);
    } else {
        prepared.extend_from_slice(&args[end..]);
    }
    prepared
}

/// How many words are options and their values: up to the first that is neither, or "--".
fn options_end(verb: &str, words: &[String]) -> usize {
    let cli = crate::cli::Cli::command();
    let Some(command) = cli.find_subcommand(verb) else {
        return words.len();
    };
    let options: Vec<&clap::Arg> = command.get_arguments().chain(cli.get_arguments()).collect();
    options_end_of(&options, words)
}

/// The same where these are the options.
pub fn options_end_of(options: &[&clap::Arg], words: &[String]) -> usize {
    let options = || options.iter().copied();
    // Whether an option's value is the next word.
    let takes_next = |arg: &clap::Arg| arg.get_action().takes_values() && !arg.is_require_equals_set();
    let mut at = 0;
    while let Some(word) = words.get(at) {
        if word == "--" || !word.starts_with('-') || word == "-" {
            return at;
        }
        let next = match word.strip_prefix("--") {
            Some(long) if long.contains('=') => false,
            // srun and sbatch call the output's file so.
            Some("output") => true,
            Some(long) => {
                let names = |arg: &clap::Arg| -> Vec<String> {
                    let mut names = arg.get_long_and_visible_aliases().unwrap_or_default();
                    names.extend(arg.get_all_aliases().unwrap_or_default());
                    names.into_iter().map(str::to_owned).collect()
                };
                let exact = options().find(|arg| names(arg).iter().any(|name| name == long));
                let begun = || options().find(|arg| names(arg).iter().any(|name| name.starts_with(long)));
                exact.or_else(begun).is_some_and(takes_next)
            }
            None => {
                let mut letters = word[1..].chars();
                let valued = letters.find_map(|letter| {
                    options().find(|arg| arg.get_short() == Some(letter) && arg.get_action().takes_values())
                });
                valued.is_some_and(|arg| takes_next(arg) && letters.as_str().is_empty())
            }
        };
        at += 1 + usize::from(next);
    }
    words.len()
}

/// Where the verb stands: the first word that is neither an option nor the value of one.
pub fn verb_of(args: &[String]) -> Option<usize> {
    let mut at = 1;
    while let Some(arg) = args.get(at) {
        match arg.as_str() {
            "--broker" | "--output" => at += 2,
            other if other.starts_with('-') => at += 1,
            _ => return Some(at),
        }
    }
    None
}

/// As whom it speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Face {
    /// `carrel submit`
    Carrel,
    /// Slurm's `sbatch`.
    Sbatch {
        /// It says nothing but errors.
        quiet: bool,
    },
}

/// Files of output where none are asked for, of `sbatch`.
const SBATCH_OUTPUT: &str = "slurm-%j.out";
/// The same of an array's tasks.
const SBATCH_ARRAY_OUTPUT: &str = "slurm-%A_%a.out";

/// The job's name where it is read from the standard input, of `sbatch`.
const SBATCH_NAME: &str = "sbatch";

/// Runs the verb.
pub async fn run(context: &Context, args: SubmitArgs) -> Result<u8> {
    Box::pin(run_as(context, args, Face::Carrel)).await
}

/// The same as who is named.
pub async fn run_as(context: &Context, args: SubmitArgs, face: Face) -> Result<u8> {
    let own = environment::own();
    let here = std::env::current_dir().context("cannot find the working directory")?;
    let what = what(&args)?;
    let (options, notes) = asked(&args, &what, &own, face)?;
    let quiet = options.quiet || face == (Face::Sbatch { quiet: true });
    for note in notes {
        say(format_args!("carrel: {note}"));
    }
    let image = context.config.image.clone().unwrap_or_default();
    let mut spec = spec(image, &options, &here, (&own, context.is_inside()))?;
    let mut client = context.client().await?;
    if context.is_inside() {
        let partition = own.get("SLURM_JOB_PARTITION");
        plan::settle_partition_inside(&mut spec, partition.map(String::as_str));
    } else if let Some(note) = plan::settle_partition(&mut client, &mut spec).await?
        && !quiet
    {
        say(format_args!("carrel: {note}"));
    }
    if options.test_only {
        let plan = plan::of(&mut client, &spec).await?;
        if face != Face::Carrel {
            return would_start(&plan);
        }
        return if context.json() {
            output::json(&view::Plan::from(plan))
        } else {
            output::text(plan::text(&plan))
        }
        .map(|()| 0);
    }
    let job = wait::submit_job(&mut client, message(&options, what, spec, &here)?).await?;
    if let Some(note) = mail_note(&options, &job) {
        say(format_args!("carrel: {note}"));
    }
    // Of an array whatever of it is answered with.
    let id = job.array.as_ref().map_or(job.id, |part| part.array);
    if options.parsable {
        output::text(format_args!("{id}\n"))?;
    } else if context.json() && !options.wait {
        output::json(&view::Job::from(job.clone()))?;
    } else if !context.json() && !quiet {
        output::text(format_args!("Submitted batch job {id}\n"))?;
    }
    if !options.wait {
        return Ok(0);
    }
    let job = until_over(context, &mut client, id).await?;
    let Some(job) = job else { return Ok(130) };
    if context.json() && !options.parsable {
        output::json(&view::Job::from(job.clone()))?;
    }
    Ok(exit_code(&job))
}

/// What would be sent to the broker, and what would be said.
#[cfg(test)]
pub fn request_of(
    args: &SubmitArgs,
    face: Face,
    own: &BTreeMap<String, String>,
    here: &Path,
) -> Result<(v1::SubmitJobRequest, Vec<String>)> {
    let what = what(args)?;
    let (options, notes) = asked(args, &what, own, face)?;
    let spec = spec(String::new(), &options, here, (own, false))?;
    Ok((message(&options, what, spec, here)?, notes))
}

/// What all places say, one over the other, and what is to be said of it.
fn asked(
    args: &SubmitArgs,
    what: &What,
    own: &BTreeMap<String, String>,
    face: Face,
) -> Result<(SubmitOptions, Vec<String>)> {
    let mut options = SubmitOptions::default();
    environment::take(&mut options, own)?;
    let mut notes = Vec::new();
    match what {
        What::Script(text, _, name) => notes = directives::take(&mut options, text, name)?,
        What::Notebook(path, read, _) => {
            notes.clone_from(&read.notes);
            let cell = format!("{}, first cell", path.display());
            notes.extend(directives::take(&mut options, &read.first_cell, &cell)?);
        }
        What::Command(_) => {}
    }
    options
        .take(&args.given)
        .map_err(|error| CliError::usage(error.to_string()))?;
    options.take_more(&args.more_given)?;
    if options.notebook_output.is_some() && !matches!(what, What::Notebook(..)) {
        return Err(
            CliError::usage("--notebook-output is for notebooks, and this is none")
                .hint("-o names the file of a job's output"),
        );
    }
    notes.extend(options.noted.notes());
    notes.extend(options.more.iter().flat_map(|one| one.noted.notes()));
    notes.extend(options.unused_names());
    notes.extend(options.request()?.notes());
    if face != Face::Carrel {
        let usual = if options.array.is_some() {
            SBATCH_ARRAY_OUTPUT
        } else {
            SBATCH_OUTPUT
        };
        options.stdout.get_or_insert_with(|| usual.to_owned());
        if args.what.is_empty() && args.wrap.is_none() {
            options.name.get_or_insert_with(|| SBATCH_NAME.to_owned());
        }
    }
    // Slurm's word for output that goes nowhere.
    for file in [&mut options.stdout, &mut options.stderr].into_iter().flatten() {
        if file.eq_ignore_ascii_case("none") {
            "/dev/null".clone_into(file);
        }
    }
    Ok((options, notes))
}

/// What becomes of a wish for mail that is not met.
fn mail_note(options: &SubmitOptions, job: &v1::Job) -> Option<&'static str> {
    let types = options.mail_types();
    let wanted = types.as_ref().is_some_and(|types| !types.events.is_empty());
    let sent = job.batch.as_ref().is_some_and(|batch| batch.mail_sent);
    match (wanted, options.mail_user.is_some(), sent) {
        (true, _, false) => {
            Some("--mail-type: no mail is sent, since this cluster's operator has named no program for it")
        }
        (false, true, _) if types.is_none() => Some("--mail-user: no mail is sent without --mail-type"),
        (true | false, _, _) => None,
    }
}

/// The job, or the array, once it is over; none: the person left, and it goes on.
async fn until_over(context: &Context, client: &mut Client, id: u64) -> Result<Option<v1::Job>> {
    let mut signals = Signals::catch()?;
    let name = JobId(id).into();
    tokio::select! {
        over = wait::until_over(client, &name, context.is_inside()) => over.map(Some),
        _ = signals.next() => {
            say(format_args!("carrel: job {id} goes on; `carrel cancel {id}` ends it"));
            Ok(None)
        }
    }
}

/// Says when it would start, in sbatch's words.
fn would_start(plan: &v1::Plan) -> Result<u8> {
    let Some(choice) = plan.choices.first() else {
        let why = plan
            .refusals
            .first()
            .map_or("it fits on no node", |refusal| refusal.reason.as_str());
        return Err(CliError::failed(format!("allocation failure: {why}")));
    };
    let start = choice.start_ms.or_else(|| choice.now.then(crate::times::now_ms));
    let start = start.map_or_else(|| "an unknown time".to_owned(), crate::units::rfc3339);
    let nodes: Vec<&str> = choice.seats.iter().map(|seat| seat.node.as_str()).collect();
    let cpus: u32 = choice.seats.iter().map(|seat| seat.cpus).sum();
    say(format_args!(
        "carrel: Job to start at {} using {cpus} processors on nodes {}",
        start.trim_end_matches('Z'),
        nodes.join(",")
    ));
    Ok(0)
}

/// The exit code of a job that is over: its own, or 1 where it has none and did not end well; of an array the highest of
/// its tasks.
fn exit_code(job: &v1::Job) -> u8 {
    if job.state() == v1::JobState::Completed {
        return 0;
    }
    say(format_args!("carrel: {}", wait::ending(job)));
    let code = job.exit_code.filter(|code| *code != 0);
    code.map_or(1, |code| u8::try_from(code).unwrap_or(1))
}

/// Reads what is to be run.
fn what(args: &SubmitArgs) -> Result<What> {
    if let Some(line) = &args.wrap {
        return Ok(What::Script(script::wrapped(line), Vec::new(), "wrap".to_owned()));
    }
    let mut words = args.what.clone();
    match words.iter().position(|word| word == COMMAND_MARK) {
        Some(0) => {
            words.remove(0);
            if words.is_empty() {
                return Err(CliError::usage("there is no command after --"));
            }
            return Ok(What::Command(words));
        }
        // Of a script's arguments.
        Some(at) if words[at - 1] == "--" => drop(words.remove(at)),
        Some(at) => "--".clone_into(&mut words[at]),
        None => {}
    }
    if words.is_empty() {
        if is_interactive() {
            return Err(CliError::usage("there is nothing to run")
                .hint("name a script, or write a command after --: carrel submit -- python train.py"));
        }
        return Ok(What::Script(
            script::from_stdin()?,
            Vec::new(),
            "script".to_owned(),
        ));
    }
    let path = words.remove(0);
    if notebook::is_notebook(Path::new(&path)) {
        let read = notebook::from_file(Path::new(&path))?;
        return Ok(What::Notebook(path.into(), read, words));
    }
    Ok(What::Script(script::from_file(Path::new(&path))?, words, path))
}

/// What the job runs on and in.
fn spec(
    image: String,
    options: &SubmitOptions,
    here: &Path,
    (own, inside): (&BTreeMap<String, String>, bool),
) -> Result<v1::SessionSpec> {
    // Where none is named, a job from inside has the image of that.
    let same_image = inside && image.is_empty() && options.request.image.is_none();
    let base = v1::SessionSpec {
        image,
        ..Default::default()
    };
    let request = options.request()?;
    let mut spec = request.over(base)?;
    let workdir = options.workdir(here);
    let workdir = workdir
        .to_str()
        .ok_or_else(|| CliError::usage(format!("{} is no UTF-8 text", workdir.display())))?;
    // "/home/alice/" joined with nothing.
    spec.workdir = match workdir.trim_end_matches('/') {
        "" => "/".to_owned(),
        path => path.to_owned(),
    };
    let exported = if same_image {
        environment::exported_to_its_like(options.export.as_deref(), own)?
    } else {
        environment::exported(options.export.as_deref(), own)?
    };
    let exported = exported
        .into_iter()
        .map(|(name, value)| v1::EnvVar { name, value });
    let mut env: Vec<v1::EnvVar> = exported.collect();
    // What is said with --env counts over what is exported.
    env.extend(environment::of_request(&request, spec.resources.as_ref()));
    env.append(&mut spec.env);
    spec.env = env;
    Ok(spec)
}

/// What a notebook's driver is told: the notebook, where its outputs go, the kernel's directory, and the notebook's own
/// arguments. Names are absolute, as they are here.
fn of_notebook(options: &SubmitOptions, path: &Path, own: Vec<String>, here: &Path) -> Result<Vec<String>> {
    let path = here.join(path);
    let output = options
        .notebook_output
        .as_ref()
        .map_or_else(|| path.clone(), |output| here.join(output));
    let directory = match &options.request.workdir {
        Some(_) => options.workdir(here),
        // Beside the notebook, as in Jupyter.
        None => path.parent().unwrap_or(here).to_owned(),
    };
    let text = |path: &Path| match path.to_str() {
        Some(text) => Ok(text.to_owned()),
        None => Err(CliError::usage(format!("{} is no UTF-8 text", path.display()))),
    };
    let mut arguments = vec![text(&path)?, text(&output)?, text(&directory)?];
    arguments.extend(own);
    Ok(arguments)
}

fn message(
    options: &SubmitOptions,
    what: What,
    spec: v1::SessionSpec,
    here: &Path,
) -> Result<v1::SubmitJobRequest> {
    let (name, script, command) = match what {
        What::Notebook(path, _, own) => {
            let arguments = of_notebook(options, &path, own, here)?;
            (path.display().to_string(), Some(notebook::script()), arguments)
        }
        What::Script(text, arguments, name) => (name, Some(text), arguments),
        What::Command(command) => (command.first().cloned().unwrap_or_default(), None, command),
    };
    let base = Path::new(&name)
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    let host = nix::unistd::gethostname().unwrap_or_default();
    Ok(v1::SubmitJobRequest {
        name: options.name.clone().or(base).unwrap_or(name),
        spec: Some(spec),
        command,
        script,
        stdout: options.stdout.clone().unwrap_or_default(),
        stderr: options.stderr.clone().unwrap_or_default(),
        append: options.open_mode.map(|mode| mode == batch::OpenMode::Append),
        requeue: !options.no_requeue,
        mail_type: options
            .mail_types()
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        mail_user: options.mail_user.clone().unwrap_or_default(),
        comment: options.comment.clone().unwrap_or_default(),
        start: options.start.wish(),
        submit_host: host.to_string_lossy().into_owned(),
        submit_dir: here.to_string_lossy().into_owned(),
        request_key: request::new_key(),
        array: options
            .array
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    fn parse(line: &str) -> SubmitArgs {
        let args = line.split_whitespace().map(std::ffi::OsString::from).collect();
        match crate::components::parse(args).expect(line).command {
            Command::Submit(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_command_is_told_from_a_script_with_its_arguments() {
        let command = |line| match what(&parse(line)).expect(line) {
            What::Command(command) => command,
            What::Script(..) | What::Notebook(..) => panic!("{line}: a script"),
        };
        assert_eq!(
            command("carrel submit --gpus 1 -- echo -n x"),
            ["echo", "-n", "x"]
        );
        assert_eq!(command("carrel submit -- a -- b"), ["a", "--", "b"]);
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("job.sh");
        std::fs::write(&path, "#!/bin/sh\n").expect("written");
        let script = |rest: &str| match what(&parse(&format!("carrel submit -N2 {} {rest}", path.display())))
        {
            Ok(What::Script(_, arguments, _)) => arguments,
            other => panic!("{rest}: {other:?}"),
        };
        assert_eq!(script("-N 7 --gpus x"), ["-N", "7", "--gpus", "x"]);
        assert_eq!(script("a -- b"), ["a", "--", "b"]);
        assert_eq!(script("a : b"), ["a", ":", "b"]);
        assert_eq!(
            script("--output=mine --output mine -J x"),
            ["--output=mine", "--output", "mine", "-J", "x"]
        );
        assert!(what(&parse("carrel submit --")).is_err());
    }

    #[test]
    fn a_notebook_s_names_are_absolute_and_its_cell_holds_options() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("sub/exp.ipynb");
        std::fs::create_dir(dir.path().join("sub")).expect("a directory");
        let text =
            r##"{"nbformat": 4, "cells": [{"cell_type": "code", "source": "#SBATCH -J lab\nx = 1"}]}"##;
        std::fs::write(&path, text).expect("written");
        let line = format!("carrel submit --gpus 1 {} --lr 3", path.display());
        let What::Notebook(name, read, own) = what(&parse(&line)).expect("a notebook") else {
            panic!("no notebook");
        };
        let mut options = SubmitOptions::default();
        directives::take(&mut options, &read.first_cell, "its cell").expect("understood");
        assert_eq!(options.name.as_deref(), Some("lab"));
        let here = dir.path();
        let told = |options: &SubmitOptions, name: &Path| {
            of_notebook(options, name, own.clone(), here)
                .expect("told")
                .join(" ")
        };
        let root = here.display();
        assert_eq!(
            told(&options, Path::new("sub/exp.ipynb")),
            format!("{root}/sub/exp.ipynb {root}/sub/exp.ipynb {root}/sub --lr 3")
        );
        options.notebook_output = Some("done.ipynb".into());
        options.request.workdir = Some("/data".into());
        let name = told(&options, &name);
        assert_eq!(
            name,
            format!("{root}/sub/exp.ipynb {root}/done.ipynb /data --lr 3")
        );
        std::fs::write(&path, "{").expect("written");
        assert!(what(&parse(&line)).is_err());
    }

    #[test]
    fn options_end_where_the_command_begins() {
        let end = |verb: &str, line: &str| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let end = options_end(verb, &words);
            words[end..].join(" ")
        };
        assert_eq!(
            end("run", "-n 4 -l hostname -f --output=x"),
            "hostname -f --output=x"
        );
        assert_eq!(end("run", "-n4 -lu --output x.out -K ./a -n 2"), "./a -n 2");
        assert_eq!(end("run", "-lun 4 --error=e --jobid 7 a"), "a");
        assert_eq!(end("run", "-N2 -- -a"), "-- -a");
        assert_eq!(end("submit", "-J x --begin now+1h job.sh -J y"), "job.sh -J y");
        assert_eq!(end("submit", "--wrap 'a"), "");
    }

    #[test]
    fn the_command_line_counts_over_the_script() {
        let args =
            parse("carrel --output json submit --output=yours.out --output=mine.out -t 7 -t 5 -- true");
        let mut options = SubmitOptions::default();
        let script = "#!/bin/sh\n#SBATCH --output=other.out -N 2 --time=10\n";
        directives::take(&mut options, script, "job.sh").expect("understood");
        options.take(&args.given).expect("taken");
        assert_eq!(options.stdout.as_deref(), Some("mine.out"));
        assert_eq!(options.request.nodes, Some(2));
        assert_eq!(options.request.time.map(|time| time.as_secs()), Some(300));
        assert!(Cli::try_parse_from(["carrel", "submit", "--output=mine.out", "x"]).is_err());
    }
}
