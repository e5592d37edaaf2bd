//! `carrel run`: a command over the tasks of an allocation.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::IsTerminal as _;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use carrel_core::model::host_list;
use carrel_core::model::indices::IndexSet;
use carrel_proto::v1;

use super::alloc::Allocation;
use crate::batch::{OpenMode, environment, parse_gres};
use crate::context::{Context, Found, JobOrSession};
use crate::error::{CliError, Context as _, Result};
use crate::request::{IdleArgs, RequestArgs};
use crate::start::StartArgs;
use crate::step::groups::{Groups, chosen, deal};
use crate::step::layout::{Asked, Distribution, Node, Part};
use crate::step::link::{Doors, Ticket};
use crate::step::master::{Input, Step};
use crate::step::output::{OfTasks, Place};
use crate::step::signals::Signals;
use crate::step::{file_name, master, programs, window};
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

/// The allocation that a step runs on.
struct Ground {
    job: u64,
    /// The rank of the container that this runs in.
    own: Option<u32>,
    nodes: Vec<Node>,
    groups: Groups,
    about: file_name::Job,
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

/// A step runs in the containers that its job has.
///
/// # Errors
/// It asks for another image, or for a directory that is not there.
async fn in_its_container(context: &Context, args: &RunArgs, job: u64) -> Result<()> {
    let all = std::iter::once(args).chain(&args.others);
    for request in all.map(|args| &args.request) {
        if let Some(wanted) = &request.image {
            let mut client = context.client().await?;
            let of_job = v1::GetJobRequest {
                id: job,
                tasks: String::new(),
            };
            let image = client.get_job(of_job).await?.into_inner().image;
            if image != *wanted {
                return Err(CliError::usage(format!(
                    "a step runs in its job's containers: those of job {job} are of {image}, not of {wanted}"
                ))
                .hint(format!(
                    "name it where the job is asked for: --image {wanted}, or #SBATCH --container-image={wanted}"
                )));
            }
        }
        let mounts = request.mount.iter().chain(&request.container_mounts);
        let missing = |mount: &&v1::Mount| context.is_inside() && !Path::new(&mount.target).exists();
        if let Some(mount) = mounts.into_iter().find(missing) {
            let target = &mount.target;
            return Err(CliError::usage(format!(
                "a step runs in its job's containers, and those of job {job} have no {target}"
            ))
            .hint(format!(
                "name it where the job is asked for: --mount {}:{target}",
                mount.source
            )));
        }
    }
    Ok(())
}

/// The allocation of a job that runs.
async fn of_job(context: &Context, named: &JobOrSession) -> Result<Ground> {
    let mut client = context.client().await?;
    let job = match named.find(&mut client).await? {
        Found::Job(job) => *job,
        Found::Session(session) => {
            let name = session.name.clone();
            session.job.ok_or_else(|| {
                CliError::failed(format!("session {name} is stopped"))
                    .hint(format!("`carrel open {name}` starts it"))
            })?
        }
    };
    let own = variable("CARREL_JOB_ID").filter(|_| context.is_inside());
    let is_own = own.is_some_and(|id| id == job.id.to_string());
    let rank = is_own.then(|| number("CARREL_RANK")).flatten();
    of_message(&job, rank)
}

fn of_message(job: &v1::Job, own: Option<u32>) -> Result<Ground> {
    if job.nodes.is_empty() {
        return Err(
            CliError::failed(format!("job {} holds nothing: it is {}", job.id, state_of(job)))
                .hint(format!("`carrel show {}` says more", job.id)),
        );
    }
    let request = job.request.clone().unwrap_or_default();
    let counts: Vec<u32> = std::iter::once(request.nodes)
        .chain(request.more.iter().map(|one| one.nodes))
        .collect();
    let ranks = 0_u32..;
    let nodes = job.nodes.iter().zip(ranks).map(|(node, rank)| Node {
        name: node.node.clone(),
        rank,
        cpus: node.cpus,
        gpus: u32::try_from(node.gpus.len()).unwrap_or(u32::MAX),
        memory: Some(node.memory_bytes),
    });
    let nodes: Vec<Node> = nodes.collect();
    Ok(Ground {
        job: job.id,
        own,
        groups: Groups::of(&nodes, &counts),
        nodes,
        about: file_name::Job {
            id: job.id,
            array: job
                .array
                .as_ref()
                .and_then(|part| Some((part.array, part.tasks.parse().ok()?))),
            name: job.name.clone(),
            user: job.user.clone(),
        },
    })
}

fn state_of(job: &v1::Job) -> &'static str {
    job.state().as_str_name().trim_start_matches("JOB_STATE_")
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn number(name: &str) -> Option<u32> {
    variable(name)?.parse().ok()
}

/// The allocation that this runs in. Of one node the environment says all: no broker is needed.
async fn inside(context: &Context) -> Result<Ground> {
    let job = number("CARREL_JOB_ID").ok_or_else(|| {
        CliError::failed("CARREL_JOB_ID is not set, and so it is not known in which job this runs")
            .hint("leave the allocation's variables as they are, or name the job with --job")
    })?;
    let own = number("CARREL_RANK").unwrap_or(0);
    if number("SLURM_JOB_NUM_NODES") == Some(1) {
        let gpus = variable("CUDA_VISIBLE_DEVICES").map_or(0, |gpus| gpus.split(',').count());
        let array = variable("SLURM_ARRAY_JOB_ID").and_then(|array| array.parse().ok());
        let nodes = vec![Node {
            name: variable("CARREL_NODE").unwrap_or_default(),
            rank: 0,
            cpus: number("SLURM_CPUS_ON_NODE").unwrap_or(1),
            gpus: u32::try_from(gpus).unwrap_or(u32::MAX),
            memory: number("SLURM_MEM_PER_NODE").map(|mebibytes| u64::from(mebibytes) << 20),
        }];
        return Ok(Ground {
            job: job.into(),
            own: Some(0),
            groups: Groups::of(&nodes, &[1]),
            nodes,
            about: file_name::Job {
                id: job.into(),
                array: array.zip(number("SLURM_ARRAY_TASK_ID")),
                name: variable("SLURM_JOB_NAME").unwrap_or_default(),
                user: variable("SLURM_JOB_USER").unwrap_or_default(),
            },
        });
    }
    let mut client = context.client().await?;
    let request = v1::GetJobRequest {
        id: job.into(),
        tasks: String::new(),
    };
    of_message(&client.get_job(request).await?.into_inner(), Some(own))
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

/// What the step asks for, over what the allocation says.
fn asked(args: &RunArgs, inside: bool, group: Option<u32>) -> Asked {
    let tasks = &args.request.tasks;
    // What was asked for of each component stands behind its number.
    let group = group.filter(|_| number("SLURM_HET_SIZE").is_some());
    let env = |name: &str| {
        let value = match group {
            Some(group) => number(&format!("{name}_HET_GROUP_{group}")),
            None => number(name),
        };
        value.filter(|_| inside)
    };
    let per_node = tasks.ntasks_per_node;
    let by_env = || match per_node {
        Some(_) => None,
        None => env("SLURM_NTASKS"),
    };
    Asked {
        tasks: tasks.ntasks.or_else(by_env),
        per_node: per_node.or_else(|| match (tasks.ntasks, env("SLURM_NTASKS")) {
            (None, None) => env("SLURM_NTASKS_PER_NODE"),
            _ => None,
        }),
        nodes: args.request.nodes,
        cpus_per_task: tasks
            .cpus_per_task
            .or_else(|| env("SLURM_CPUS_PER_TASK"))
            .unwrap_or(1),
        gpus_per_task: tasks.gpus_per_task.as_ref().map_or(0, |gpus| gpus.count),
        overcommit: args.overcommit,
        distribution: args.distribution.unwrap_or_default(),
    }
}

/// The nodes that the step may have, those that are named first.
fn nodes_for(args: &RunArgs, nodes: &[Node]) -> Result<Vec<Node>> {
    let left = nodes
        .get(args.relative as usize..)
        .filter(|left| !left.is_empty());
    let nodes = left.ok_or_else(|| {
        CliError::failed(format!(
            "--relative={} leaves none of the {} nodes that the job may use here",
            args.relative,
            nodes.len()
        ))
    })?;
    let hosts = |list: &Option<String>| {
        let read = list.as_deref().map(host_list::parse).transpose();
        read.map_err(|bad| CliError::usage(bad.why))
    };
    let constraints = &args.request.constraints;
    let excluded: BTreeSet<String> = hosts(&constraints.exclude)?
        .into_iter()
        .flatten()
        .map(|host| host.to_string())
        .collect();
    let may = |node: &&Node| !excluded.contains(&node.name);
    let Some(named) = hosts(&constraints.nodelist)? else {
        return Ok(nodes.iter().filter(may).cloned().collect());
    };
    let named: Vec<String> = named.into_iter().map(|host| host.to_string()).collect();
    if let Some(other) = named
        .iter()
        .find(|name| !nodes.iter().any(|node| node.name == **name))
    {
        return Err(CliError::failed(format!(
            "the job has nothing on node {other} (--nodelist)"
        )));
    }
    let is_named = |node: &&Node| named.contains(&node.name);
    let first = nodes.iter().filter(is_named).filter(may);
    // With more nodes than are named, others too.
    let others = nodes.iter().filter(|node| !is_named(node)).filter(may);
    let count = args.request.nodes.map_or(named.len(), |count| count as usize);
    let mut all: Vec<Node> = first.chain(others).take(count).cloned().collect();
    all.sort_by_key(|node| node.rank);
    Ok(all)
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

/// Programs of a step, once for each component that it runs on, with what it asks for, and its tasks there.
type Programs<'a> = Vec<(&'a RunArgs, Asked, Vec<Part>)>;

/// Deals out the tasks of a step's programs.
fn programs_of<'a>(args: &'a RunArgs, place: &Ground) -> Result<Programs<'a>> {
    let inside = place.own.is_some();
    let all: Vec<&RunArgs> = std::iter::once(args).chain(&args.others).collect();
    if all.len() > place.groups.count() {
        return Err(CliError::failed(format!(
            "the step has {} programs, and the job {} component{}",
            all.len(),
            place.groups.count(),
            if place.groups.count() == 1 { "" } else { "s" }
        ))
        .hint("each program runs on a component of its own; --multi-prog runs several on the same nodes, and -- stands before a command that has a ':' of its own"));
    }
    let usual = (args.of_first_group && inside && number("SLURM_HET_SIZE").is_some()).then_some(0);
    let groups: Vec<Option<&IndexSet>> = all.iter().map(|one| one.het_group.as_ref()).collect();
    let mut programs: Programs<'a> = Vec::new();
    let mut next = 0;
    for (one, groups) in all.into_iter().zip(chosen(&groups, usual)?) {
        let sets: Vec<(Option<u32>, Vec<Node>)> = match groups {
            None => vec![(None, nodes_for(one, &place.nodes)?)],
            Some(groups) => {
                let of = |group: u32| Ok((Some(group), nodes_for(one, place.groups.nodes(group)?)?));
                groups.into_iter().map(of).collect::<Result<_>>()?
            }
        };
        for (group, nodes) in sets {
            let mut asked = asked(one, inside, group);
            if let Some(each) = one.ntasks_per_gpu.filter(|_| one.request.tasks.ntasks.is_none()) {
                asked.tasks = Some(by_gpus(one, &nodes, each)?);
                asked.per_node = one.request.tasks.ntasks_per_node;
            }
            let mut parts = deal(&asked, &nodes, &mut next);
            if parts.is_err() && inside && one.request.tasks.cpus_per_task.is_none() {
                // What the allocation was asked for with counts for as many tasks as it was asked for.
                asked.cpus_per_task = 1;
                parts = deal(&asked, &nodes, &mut next).or(parts);
            }
            let parts = parts?;
            must_have_memory(one, &asked, &parts, place.job)?;
            programs.push((one, asked, parts));
        }
    }
    Ok(programs)
}

/// How many tasks `--ntasks-per-gpu` means on these nodes.
fn by_gpus(args: &RunArgs, nodes: &[Node], each: u32) -> Result<u32> {
    let request = &args.request;
    let gpus = match (&args.gres, &request.gpus_per_node, &request.gpus) {
        (Some(StepGres::None), ..) => 0,
        (Some(StepGres::Gpus(gpus)), ..) | (None, Some(gpus), _) => gpus
            .count
            .saturating_mul(u32::try_from(nodes.len()).unwrap_or(u32::MAX)),
        (None, None, Some(gpus)) => gpus.count,
        (None, None, None) => nodes.iter().map(|node| node.gpus).sum(),
    };
    match gpus.saturating_mul(each) {
        0 => Err(
            CliError::usage("--ntasks-per-gpu says something of GPUs, but the step has none")
                .hint("-n says how many tasks it is to have"),
        ),
        tasks => Ok(tasks),
    }
}

/// Refuses a step that asks for more memory than the job has on one of its nodes. Steps share what there is.
fn must_have_memory(args: &RunArgs, asked: &Asked, parts: &[Part], job: u64) -> Result<()> {
    let tasks = &args.request.tasks;
    for Part { node, ranks } in parts {
        let count = u64::try_from(ranks.len()).unwrap_or(u64::MAX);
        let by_cpus = tasks
            .mem_per_cpu
            .map(|each| each.saturating_mul(u64::from(asked.cpus_per_task.max(1)).saturating_mul(count)));
        let by_gpus = tasks
            .mem_per_gpu
            .map(|each| each.saturating_mul(u64::from(node.gpus)));
        // All of it is what there is.
        let wanted = args.request.mem.or(by_cpus).or(by_gpus).unwrap_or(0);
        let Some(has) = node.memory.filter(|has| wanted > *has) else {
            continue;
        };
        return Err(CliError::failed(format!(
            "Unable to create step for job {job}: Memory required by task is not available: {} on {}, and the job has {} there",
            units::bytes(wanted),
            node.name,
            units::bytes(has)
        ))
        .hint("ask the job for more with --mem, or the step for less: steps share the job's memory"));
    }
    Ok(())
}

/// What all nodes of one of a step's programs are told: the step's parts, and those that are this one's.
fn start(
    args: &RunArgs,
    asked: &Asked,
    place: &Ground,
    (parts, own_parts): (&[Part], &[Part]),
    here: &Path,
) -> Result<v1::StepStart> {
    let own = environment::own();
    let whole = place.own.is_some()
        && args
            .export
            .as_deref()
            .is_none_or(|names| names.starts_with("ALL"));
    let mut env = if whole {
        let mut all = own.clone();
        if let Some(more) = args
            .export
            .as_deref()
            .and_then(|names| names.strip_prefix("ALL,"))
        {
            all.extend(environment::exported(Some(more), &own)?);
        }
        all
    } else {
        environment::exported(args.export.as_deref(), &own)?
    };
    env.extend(
        args.request
            .env
            .iter()
            .map(|one| (one.name.clone(), one.value.clone())),
    );
    if let Some(each) = args.request.tasks.ntasks_per_node {
        env.insert("SLURM_NTASKS_PER_NODE".to_owned(), each.to_string());
    }
    if let Some(address) = place.own.and_then(|_| own_address()) {
        env.insert("SLURM_LAUNCH_NODE_IPADDR".to_owned(), address);
    }
    let nodes = u32::try_from(own_parts.len()).unwrap_or(u32::MAX).max(1);
    let each = args.request.gpus_per_node.as_ref().map(|gpus| gpus.count);
    let gpus = match (&args.gres, &args.request.gpus) {
        (Some(StepGres::None), _) => Some(0),
        (Some(StepGres::Gpus(gpus)), _) => Some(gpus.count),
        (None, Some(all)) => Some(all.count.div_ceil(nodes)),
        (None, None) => each,
    };
    let workdir = here.join(args.request.workdir.as_deref().unwrap_or_default());
    let terminal = args.pty.then(|| {
        let size = window::get(std::io::stdin().as_fd());
        size.unwrap_or(v1::StepWindow {
            columns: 80,
            rows: 24,
        })
    });
    Ok(v1::StepStart {
        nodes: parts.iter().map(|part| part.node.name.clone()).collect(),
        tasks_per_node: parts
            .iter()
            .map(|part| u32::try_from(part.ranks.len()).unwrap_or(u32::MAX))
            .collect(),
        command: args.command.clone(),
        env: env
            .into_iter()
            .map(|(name, value)| v1::EnvVar { name, value })
            .collect(),
        whole_env: whole,
        workdir: workdir.to_string_lossy().into_owned(),
        cpus_per_task: asked.cpus_per_task,
        gpus_per_task: (asked.gpus_per_task > 0).then_some(asked.gpus_per_task),
        gpus: gpus.filter(|_| asked.gpus_per_task == 0),
        // What somebody looks at is beside what runs.
        overlap: args.overlap,
        bind: args
            .cpu_bind
            .as_deref()
            .is_none_or(|how| !matches!(how, "none" | "no" | "off")),
        immediate: args.immediate.is_some(),
        overcommit: args.overcommit,
        terminal,
        term: variable("TERM")
            .filter(|_| std::io::stdin().is_terminal())
            .unwrap_or_else(|| "dumb".to_owned()),
        stdout: by_nodes(args.stdout.as_deref(), place),
        stderr: by_nodes(args.stderr.as_deref(), place),
        append: args.open_mode == Some(OpenMode::Append),
        input: readers(args, parts)?,
        ..Default::default()
    })
}

/// The address that this host's name leads to.
fn own_address() -> Option<String> {
    let name = nix::unistd::gethostname().ok()?.into_string().ok()?;
    let mut found = std::net::ToSocketAddrs::to_socket_addrs(&(name.as_str(), 0)).ok()?;
    found.next().map(|address| address.ip().to_string())
}

/// A file that each node, or each task, has its own of; empty: there is none such.
fn by_nodes(pattern: Option<&str>, place: &Ground) -> String {
    let pattern = pattern.filter(|pattern| file_name::is_the_nodes(pattern));
    pattern
        .map(|pattern| file_name::of_job(pattern, &place.about))
        .unwrap_or_default()
}

/// Where what nodes do not write themselves goes, and which of these places each task has for its output and for what it
/// writes to standard error: a program's own, unless it says the same as the first.
fn places(programs: &Programs<'_>, place: &Ground, here: &Path) -> Result<(Vec<Place>, OfTasks)> {
    let said = |args: &RunArgs| (args.stdout.clone(), args.stderr.clone(), args.open_mode);
    let (mut places, mut of_tasks) = (Vec::new(), OfTasks::new());
    let mut known = Vec::new();
    for (args, _, parts) in programs {
        let own = if let Some((_, own)) = known.iter().find(|(other, _)| *other == said(args)) {
            *own
        } else {
            let (stdout, stderr) = files(args, place, here)?;
            let own = (places.len(), places.len() + 1);
            places.extend([stdout, stderr]);
            known.push((said(args), own));
            own
        };
        let ranks = parts.iter().flat_map(|part| &part.ranks);
        of_tasks.extend(ranks.map(|rank| (*rank, own)));
    }
    Ok((places, of_tasks))
}

/// The files that all tasks of a program share: this program writes them.
fn files(args: &RunArgs, place: &Ground, here: &Path) -> Result<(Place, Place)> {
    let open = |pattern: &Option<String>| {
        let Some(pattern) = pattern
            .as_deref()
            .filter(|pattern| !file_name::is_the_nodes(pattern) && *pattern != "none")
        else {
            return Ok(None);
        };
        let name = file_name::of_task(&file_name::of_job(pattern, &place.about), 0, 0, 0, "");
        let path: PathBuf = here.join(name);
        let append = args.open_mode == Some(OpenMode::Append);
        let mut options = File::options();
        options.create(true).append(true);
        if !append {
            File::create(&path).map_err(|error| cannot_write(&path, &error))?;
        }
        options
            .open(&path)
            .map(Some)
            .map_err(|error| cannot_write(&path, &error))
    };
    let stdout = open(&args.stdout)?;
    let stderr = match &args.stderr {
        Some(_) => open(&args.stderr)?,
        None => stdout
            .as_ref()
            .map(File::try_clone)
            .transpose()
            .context("--output")?,
    };
    let place = |file: Option<File>| file.map_or(Place::Own, Place::File);
    Ok((place(stdout), place(stderr)))
}

fn cannot_write(path: &Path, error: &std::io::Error) -> CliError {
    CliError::failed(format!("cannot write {}: {error}", path.display()))
}

/// Ranks of the tasks that read something.
fn readers(args: &RunArgs, parts: &[Part]) -> Result<Vec<u32>> {
    let all = || parts.iter().flat_map(|part| part.ranks.iter().copied()).collect();
    if args.pty {
        return Ok(parts
            .first()
            .and_then(|part| part.ranks.first())
            .copied()
            .into_iter()
            .collect());
    }
    Ok(match input(args, parts)? {
        Input::None => Vec::new(),
        Input::Rank(rank) => vec![rank],
        Input::All | Input::File(_) => all(),
    })
}

fn input(args: &RunArgs, parts: &[Part]) -> Result<Input> {
    let tasks: usize = parts.iter().map(|part| part.ranks.len()).sum();
    Ok(match args.input.as_str() {
        _ if args.pty => Input::All,
        "all" => Input::All,
        "none" => Input::None,
        other => match other.parse::<u32>() {
            Ok(rank) if (rank as usize) < tasks => Input::Rank(rank),
            Ok(rank) => {
                return Err(CliError::usage(format!(
                    "--input: there is no task {rank}: the step has {tasks}"
                )));
            }
            Err(_) => Input::File(other.into()),
        },
    })
}

#[cfg(test)]
mod tests {
    use crate::cli::Command;
    use crate::components;

    use super::*;

    fn parsed(line: &str) -> RunArgs {
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

    #[test]
    fn programs_with_the_same_words_write_to_the_same_place() {
        let dir = tempfile::tempdir().expect("a directory");
        let node = Node {
            name: "n1".into(),
            rank: 0,
            cpus: 4,
            gpus: 0,
            memory: None,
        };
        let ground = Ground {
            job: 12,
            own: None,
            nodes: vec![node.clone()],
            groups: Groups::of(std::slice::from_ref(&node), &[1]),
            about: file_name::Job {
                id: 12,
                array: None,
                name: "x".into(),
                user: "alice".into(),
            },
        };
        let step = parsed("carrel run -o a.%j a : b : -o b.%j c");
        let all = std::iter::once(&step).chain(&step.others);
        let programs: Programs<'_> = all
            .zip(0_u32..)
            .map(|(args, rank)| {
                let part = Part {
                    node: node.clone(),
                    ranks: vec![rank],
                };
                (args, Asked::default(), vec![part])
            })
            .collect();
        let (places, of_tasks) = places(&programs, &ground, dir.path()).expect("files");
        assert_eq!(places.len(), 4);
        assert_eq!(
            of_tasks.into_values().collect::<Vec<_>>(),
            [(0, 1), (0, 1), (2, 3)]
        );
        for file in ["a.12", "b.12"] {
            assert!(dir.path().join(file).exists(), "{file}");
        }
    }
}
