//! `carrel run`: a command over the tasks of an allocation.

mod files;
mod ground;
mod parts;
mod start;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use carrel_core::model::indices::IndexSet;

use self::files::{input, places};
use self::ground::{Ground, in_its_container, inside, of_job, of_message};
use self::parts::programs_of;
use self::start::start;
use super::alloc::Allocation;
use crate::batch::{OpenMode, parse_gres};
use crate::context::{Context, JobOrSession};
use crate::error::{CliError, Context as _, Result};
use crate::request::{IdleArgs, RequestArgs};
use crate::start::StartArgs;
use crate::step::layout::{Distribution, Part};
use crate::step::link::{Doors, Ticket};
use crate::step::master::Step;
use crate::step::signals::Signals;
use crate::step::{master, programs};
use crate::terminal;
use crate::units::{self, GpuCount};

/// Run a command over the tasks of an allocation: a step.
///
/// Inside a session or a batch job, or with --job, its tasks run on what that has: each in the container of its node,
/// with SLURM_PROCID, RANK and the like, on CPUs of its own. A step waits until what it needs is not held by another of
/// the same job. Anywhere else the resources are asked for, as `carrel alloc` does, and freed afterwards.
///
/// What tasks write comes back here, line by line; the exit code is the highest of theirs. Ctrl-C goes to the tasks, and
/// a second one within a second kills them.
#[derive(Clone, Debug, clap::Args)]
#[command(
    args_override_self = true,
    after_help = "Examples:\n  \
    carrel run -n 8 ./train                      eight tasks in this allocation\n  \
    carrel run -l -N2 --ntasks-per-node=1 hostname   one on each of two nodes; lines say whose they are\n  \
    carrel run --gpus-per-task 1 -n 4 python eval.py\n  \
    carrel run --job 12 --overlap --pty bash     a look at what a running job does\n  \
    carrel run -N2 --gpus-per-node 8 -t 1h -- torchrun --nnodes 2 train.py   with an allocation of its own"
)]
pub struct RunArgs {
    /// The job, or the session, whose allocation it runs on
    #[arg(long, visible_alias = "jobid", value_name = "JOB|NAME", add = super::completion::sessions(), help_heading = "The step")]
    pub job: Option<JobOrSession>,
    /// Lines begin with their task's rank
    #[arg(short = 'l', long, help_heading = "The step")]
    pub label: bool,
    /// Show output as it comes, not line by line
    #[arg(short = 'u', long, help_heading = "The step")]
    pub unbuffered: bool,
    /// Run the first task at this terminal
    #[arg(long, help_heading = "The step")]
    pub pty: bool,
    /// What tasks read: all (this program's input, each of them), none, a task's rank, or a file
    #[arg(
        short = 'i',
        long,
        value_name = "WHAT",
        default_value = "all",
        help_heading = "The step"
    )]
    pub input: String,
    /// File of their output; patterns: %j %J %s %t %n %N %x %u %A %a, as srun has them; with %t each its own
    #[arg(short = 'o', long, value_name = "FILE", help_heading = "The step")]
    pub stdout: Option<String>,
    /// File of what they write to standard error [default: with the output]
    #[arg(
        short = 'e',
        long,
        visible_alias = "error",
        value_name = "FILE",
        help_heading = "The step"
    )]
    pub stderr: Option<String>,
    /// What becomes of what the files hold [default: truncate]
    #[arg(long, value_name = "MODE", help_heading = "The step")]
    pub open_mode: Option<OpenMode>,
    /// End all tasks when one ends badly
    #[arg(short = 'K', long, value_name = "0|1", num_args = 0..=1, require_equals = true, default_missing_value = "1", help_heading = "The step")]
    pub kill_on_bad_exit: Option<u8>,
    /// End all tasks so many seconds after the first one's end; 0: never
    #[arg(short = 'W', long, value_name = "SECONDS", help_heading = "The step")]
    pub wait: Option<u64>,
    /// How tasks follow each other over the nodes: block, cyclic, plane=SIZE
    #[arg(short = 'm', long, value_name = "ORDER", help_heading = "The step")]
    pub distribution: Option<Distribution>,
    /// Do not wait for other steps: share what they have
    #[arg(long, alias = "oversubscribe", help_heading = "The step")]
    pub overlap: bool,
    /// More tasks than CPUs
    #[arg(short = 'O', long, help_heading = "The step")]
    pub overcommit: bool,
    /// Whether tasks stay on their CPUs: none, or any other word for yes
    #[arg(long, value_name = "HOW", help_heading = "The step")]
    pub cpu_bind: Option<String>,
    /// Fail if what it needs is not free at once, or within so many seconds
    #[arg(short = 'I', long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "0", help_heading = "The step")]
    pub immediate: Option<u32>,
    /// Leave out so many of the allocation's first nodes
    #[arg(
        short = 'r',
        long,
        value_name = "N",
        default_value_t = 0,
        hide_default_value = true,
        help_heading = "The step"
    )]
    pub relative: u32,
    /// On which of the job's components: 0,2; several programs with ':' between them run on one each
    #[arg(
        long,
        visible_alias = "pack-group",
        value_name = "GROUPS",
        help_heading = "The step"
    )]
    pub het_group: Option<IndexSet>,
    /// CMD is a file that says which tasks run what: lines `0-3,8 PROGRAM [ARGUMENT…]`; %t is the task, %o its place there
    #[arg(long, help_heading = "The step")]
    pub multi_prog: bool,
    /// Which of this shell's variables they have, as in `carrel submit` [default: ALL]
    #[arg(long, value_name = "NAMES", help_heading = "The step")]
    pub export: Option<String>,
    /// GPUs on each node, as Slurm writes them: gpu:4, none
    #[arg(long, value_name = "gpu[:MODEL]:K", value_parser = parse_step_gres, conflicts_with_all = ["gpus", "gpus_per_node"], help_heading = "The step")]
    pub gres: Option<StepGres>,
    /// Tasks for each GPU that the step may have
    #[arg(long, value_name = "N", value_parser = units::parse_count, help_heading = "The step")]
    pub ntasks_per_gpu: Option<u32>,
    /// Name of the allocation, if it needs one
    #[arg(
        short = 'J',
        long,
        visible_alias = "job-name",
        value_name = "NAME",
        help_heading = "The step"
    )]
    pub name: Option<String>,
    /// What Slurm knows, and means nothing here.
    #[command(flatten)]
    pub noted: NotedArgs,
    /// What is asked for.
    #[command(flatten)]
    pub request: RequestArgs,
    /// For how long when nobody uses it.
    #[command(flatten)]
    pub idle: IdleArgs,
    /// When.
    #[command(flatten)]
    pub start: StartArgs,
    /// The command and its arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true)]
    pub command: Vec<String>,
    /// The step's programs after the first, with the options of each.
    #[arg(skip)]
    pub others: Vec<RunArgs>,
    /// Of several components the first is meant where nothing is said, as srun does.
    #[arg(skip)]
    pub of_first_group: bool,
}

/// A flag of a later program of a step that is said of the whole step, and not as of the first program.
pub fn said_otherwise(first: &RunArgs, other: &RunArgs) -> Option<&'static str> {
    let given = [
        ("--job", other.job.is_some() && other.job != first.job),
        ("--pty", other.pty && !first.pty),
        ("--input", other.input != "all" && other.input != first.input),
        ("--multi-prog", other.multi_prog),
    ];
    let given = given.into_iter().find(|(_, given)| *given).map(|(flag, _)| flag);
    given.or_else(|| {
        let mut request = other.request.clone();
        // Each program has its own.
        request.env.clear();
        request.workdir = None;
        first.request.said_otherwise(&request)
    })
}

/// Brings together what several programs of a step say: those after the first write where it does unless they say
/// something else, and what one says of how the step is shown and ended counts for all.
fn bring_together(args: &mut RunArgs) {
    let mut others = std::mem::take(&mut args.others);
    for other in &mut others {
        args.label |= other.label;
        args.unbuffered |= other.unbuffered;
        args.kill_on_bad_exit = args.kill_on_bad_exit.max(other.kill_on_bad_exit);
        let waits = [args.wait, other.wait]
            .into_iter()
            .flatten()
            .filter(|wait| *wait > 0);
        args.wait = waits.min();
        if other.stdout.is_none() && other.stderr.is_none() {
            other.stderr.clone_from(&args.stderr);
        }
        if other.stdout.is_none() {
            other.stdout.clone_from(&args.stdout);
        }
        other.open_mode = other.open_mode.or(args.open_mode);
    }
    args.others = others;
}

/// GPUs of a step by `--gres`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepGres {
    /// No GPUs.
    None,
    /// So many on each node.
    Gpus(GpuCount),
}

fn parse_step_gres(text: &str) -> std::result::Result<StepGres, String> {
    match text {
        "none" => Ok(StepGres::None),
        _ => parse_gres(text).map(StepGres::Gpus),
    }
}

/// Taken, so that scripts need not be changed.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct NotedArgs {
    #[arg(long, hide = true)]
    exact: bool,
    #[arg(long, hide = true, value_name = "KIND")]
    mpi: Option<String>,
    #[arg(long, hide = true, value_name = "HOW")]
    gpu_bind: Option<String>,
    #[arg(long, hide = true, value_name = "HOW")]
    mem_bind: Option<String>,
    #[arg(long, hide = true, value_name = "KIND")]
    hint: Option<String>,
    #[arg(long, hide = true, value_name = "TEXT")]
    comment: Option<String>,
    #[arg(short = 'Q', long, hide = true)]
    quiet: bool,
    #[arg(short = 'v', long, hide = true, action = clap::ArgAction::Count)]
    verbose: u8,
    #[arg(short = 'k', long, hide = true)]
    no_kill: bool,
}

impl NotedArgs {
    fn notes(&self) -> Vec<String> {
        let pmi = self
            .mpi
            .as_deref()
            .filter(|kind| !matches!(*kind, "none" | "list"));
        let bound = self.gpu_bind.as_deref().filter(|how| *how != "none");
        let notes = [
            pmi.map(|kind| format!("--mpi={kind}: there is no PMI here; tasks have their rank in SLURM_PROCID, and mpirun finds hosts in the environment")),
            bound.map(|how| format!("--gpu-bind={how} is ignored: --gpus-per-task gives each task GPUs of its own")),
            self.mem_bind.as_ref().map(|_| "--mem-bind is ignored: memory is that near to the job's CPUs".to_owned()),
            self.no_kill.then(|| "--no-kill is ignored: a step ends with its nodes".to_owned()),
        ];
        notes.into_iter().flatten().collect()
    }
}

/// Runs the verb.
pub async fn run(context: &Context, mut args: RunArgs) -> Result<u8> {
    bring_together(&mut args);
    if let [file, more @ ..] = &args.command[..]
        && args.multi_prog
    {
        let text = std::fs::read_to_string(file);
        let text = text.context(format!("cannot read {file} (--multi-prog)"))?;
        args.command = programs::command(file, &text, more)?;
    }
    if !args.noted.quiet {
        for note in args.noted.notes() {
            terminal::say(format_args!("carrel: {note}"));
        }
    }
    let mut signals = Signals::catch()?;
    if let Some(named) = &args.job {
        let place = of_job(context, named).await?;
        in_its_container(context, &args, place.job).await?;
        return Box::pin(step(context, &args, place, &mut signals)).await;
    }
    if context.is_inside() {
        let place = inside(context).await?;
        in_its_container(context, &args, place.job).await?;
        return Box::pin(step(context, &args, place, &mut signals)).await;
    }
    alone(context, &args, &mut signals).await
}

/// With an allocation of its own.
async fn alone(context: &Context, args: &RunArgs, signals: &mut Signals) -> Result<u8> {
    let of = |args: &RunArgs| {
        let mut request = args.request.clone();
        if let Some(StepGres::Gpus(gpus)) = &args.gres {
            request.gpus_per_node = Some(gpus.clone());
        }
        if let Some(each) = args.ntasks_per_gpu {
            request.count_by_gpus(each);
        }
        request
    };
    let mut request = of(args);
    for other in &args.others {
        let mut other = of(other);
        other.drop_what_is_of_the_whole();
        request.more.push(other);
    }
    let program = args.command.first().map_or("", String::as_str);
    let name = args.name.clone();
    let mut allocation = Allocation::ask(context, &request, &args.idle, &args.start, name, program).await?;
    // Caught from here on: what comes while the step runs is the step's.
    let mut leave = crate::signals::Signals::catch()?;
    if let Some(code) = allocation
        .wait(Allocation::limit(args.immediate), &mut leave)
        .await?
    {
        return Ok(code);
    }
    let ran = async {
        let job = allocation.job()?;
        let place = of_message(job, None)?;
        Box::pin(step(context, args, place, signals)).await
    };
    let ran = ran.await;
    let code = ran.as_ref().ok().copied();
    allocation
        .free(code, &mut crate::signals::Signals::catch()?)
        .await?;
    ran
}

async fn step(context: &Context, args: &RunArgs, place: Ground, signals: &mut Signals) -> Result<u8> {
    let programs = programs_of(args, &place)?;
    let mut parts: Vec<Part> = programs.iter().flat_map(|(.., parts)| parts.clone()).collect();
    // They are asked in the order of the job.
    parts.sort_by_key(|part| part.node.rank);
    let here = std::env::current_dir().context("cannot find the working directory")?;
    let elsewhere =
        parts.iter().any(|part| place.own != Some(part.node.rank)) || place.own.is_none_or(|own| own != 0);
    let ticket = if elsewhere {
        let mut client = context.client().await?;
        Some((context.address()?, Ticket::get(&mut client).await?))
    } else {
        None
    };
    let mut starts = programs
        .iter()
        .map(|(args, asked, own)| start(args, asked, &place, (&parts, own), &here));
    let first_start = starts
        .next()
        .ok_or_else(|| CliError::failed("a step without a program"))??;
    let mut others = BTreeMap::new();
    for (other, (.., own)) in starts.zip(&programs[1..]) {
        let other = other?;
        others.extend(own.iter().map(|part| (part.node.rank, other.clone())));
    }
    let first = place
        .nodes
        .first()
        .map(|node| (node.rank, node.name.clone()))
        .unwrap_or_default();
    let (places, of_tasks) = places(&programs, &place, &here)?;
    let step = Step {
        job: place.job,
        first,
        start: first_start,
        others,
        input: input(args, &parts)?,
        parts,
        terminal: args.pty,
        label: args.label,
        unbuffered: args.unbuffered,
        places,
        of_tasks,
        kill_on_bad_exit: args.kill_on_bad_exit.is_some_and(|on| on != 0),
        wait: args.wait.filter(|seconds| *seconds > 0).map(Duration::from_secs),
    };
    let doors = Arc::new(Doors::new(place.job, place.own, ticket));
    master::run(step, doors, signals).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Command;
    use crate::components;

    pub(super) fn parsed(line: &str) -> RunArgs {
        let words = line.split_whitespace().map(Into::into).collect();
        match components::parse(words).expect(line).command {
            Command::Run(mut args) => {
                bring_together(&mut args);
                *args
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_program_writes_where_the_first_does_unless_it_says_something_else() {
        let step = parsed("carrel run -o a -e ea --wait=0 a : -o b --wait=60 -K -l b : -e ec c : -W 30 d");
        let files: Vec<_> = step
            .others
            .iter()
            .map(|one| (one.stdout.as_deref(), one.stderr.as_deref()))
            .collect();
        assert_eq!(
            files,
            [
                (Some("b"), None),
                (Some("a"), Some("ec")),
                (Some("a"), Some("ea"))
            ]
        );
        assert_eq!(
            (step.wait, step.kill_on_bad_exit, step.label),
            (Some(30), Some(1), true)
        );
        assert_eq!(parsed("carrel run --wait=0 a : b").wait, None);
    }
}
