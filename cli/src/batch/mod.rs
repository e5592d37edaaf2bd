//! What is asked of a batch job, and where it is said: on the command line, over the script's own lines, over the
//! environment's `SBATCH_*`, over the defaults.

pub mod components;
pub mod directives;
pub mod environment;
pub mod notebook;
mod noted;
pub mod script;

use std::path::PathBuf;

use carrel_core::model::array::ArraySpec;
use carrel_core::model::mail::{MailTypes, MailWish};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args as _, FromArgMatches as _};

pub use self::noted::NotedArgs;
use crate::error::CliError;
use crate::request::RequestArgs;
use crate::start::StartArgs;
use crate::units::{self, GpuCount};

/// What can be said on the command line and in a script alike, as sbatch has it.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SubmitOptions {
    /// Name of the job [default: the script's, or the command's]
    #[arg(short = 'J', long, visible_alias = "job-name", value_name = "NAME")]
    pub name: Option<String>,
    /// Tasks of an array: 0-99, 1,3,5-7, 0-15:4; with %5 behind, five run at once at most (%0: as many as there is room
    /// for). Each has SLURM_ARRAY_TASK_ID
    #[arg(short = 'a', long, value_name = "INDICES[%COUNT]")]
    pub array: Option<ArraySpec>,
    /// File of its output, in the working directory unless it is absolute; patterns: %j %x %u %N %A %a, as sbatch has
    /// them; in a script, --output [default: carrel-%j.out, and carrel-%A_%a.out of an array]
    #[arg(short = 'o', long, value_name = "FILE")]
    pub stdout: Option<String>,
    /// File of what it writes to standard error [default: with its output]
    #[arg(short = 'e', long, visible_alias = "error", value_name = "FILE")]
    pub stderr: Option<String>,
    /// What becomes of what the files hold [default: truncate, and append when the job runs again]
    #[arg(long, value_name = "MODE", ignore_case = true)]
    pub open_mode: Option<OpenMode>,
    /// Of a notebook: where it is written with its outputs [default: its own file]
    #[arg(long, value_name = "FILE")]
    pub notebook_output: Option<PathBuf>,
    /// Which of this shell's variables it has: ALL (but for those that say where one is), NONE, or names, with values if
    /// wanted: ALL,SEED=7 [default: ALL]
    #[arg(long, value_name = "NAMES")]
    pub export: Option<String>,
    /// Queue it again when a node of it is lost; the default
    #[arg(long, overrides_with = "no_requeue")]
    pub requeue: bool,
    /// Do not
    #[arg(long, overrides_with = "requeue")]
    pub no_requeue: bool,
    /// Of what mail is sent, where the cluster sends any: BEGIN, END, FAIL, REQUEUE, ALL (these four), TIME_LIMIT,
    /// TIME_LIMIT_90, _80, _50, ARRAY_TASKS (of each task of an array), NONE; commas between them
    #[arg(long, value_name = "TYPES", action = clap::ArgAction::Append)]
    pub mail_type: Vec<MailTypes>,
    /// To whom [default: you, by name]
    #[arg(long, value_name = "USER", value_parser = parse_mail_user)]
    pub mail_user: Option<String>,
    /// Words that are kept with it: squeue and sacct show them
    #[arg(long, value_name = "TEXT")]
    pub comment: Option<String>,
    /// Wait for its end, and exit with its exit code
    #[arg(short = 'W', long)]
    pub wait: bool,
    /// Print the job's id and nothing else
    #[arg(long)]
    pub parsable: bool,
    /// Say when it would start, on what, and what keeps it; submit nothing
    #[arg(long)]
    pub test_only: bool,
    /// GPUs on each node, as Slurm writes them: gpu:h100:4
    #[arg(long, value_name = "gpu[:MODEL]:K", value_parser = parse_gres)]
    pub gres: Option<GpuCount>,
    /// refused unless it is none: a job's standard input is /dev/null
    #[arg(short = 'i', long, hide = true, value_name = "FILE", value_parser = parse_input)]
    pub input: Option<String>,
    /// What Slurm knows, and means nothing here.
    #[command(flatten)]
    pub noted: NotedArgs,
    /// What is asked for.
    #[command(flatten)]
    pub request: RequestArgs,
    /// Tasks for each GPU: where GPUs are counted it counts the tasks, and else by these the GPUs
    #[arg(long, value_name = "N", value_parser = crate::units::parse_count)]
    pub ntasks_per_gpu: Option<u32>,
    /// When.
    #[command(flatten)]
    pub start: StartArgs,
    /// Nothing but errors is said: of a script's own `--quiet`.
    #[arg(skip)]
    pub quiet: bool,
    /// The components after the first.
    #[arg(skip)]
    pub more: Vec<SubmitOptions>,
}

/// Options that say the same in different ways: of those the place counts that counts over the others.
pub const ALIKE: [[&str; 3]; 3] = [
    ["gpus", "gpus_per_node", "gres"],
    ["cpus", "cpus_per_task", "cpus_per_gpu"],
    ["mem", "mem_per_cpu", "mem_per_gpu"],
];

/// What becomes of what an output file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum OpenMode {
    /// It is lost
    #[value(alias = "t")]
    Truncate,
    /// The output comes after it
    #[value(alias = "a")]
    Append,
}

fn parse_mail_user(text: &str) -> Result<String, String> {
    let wish = MailWish {
        types: MailTypes::default(),
        to: text.to_owned(),
    };
    wish.wrong().map_or_else(|| Ok(text.to_owned()), Err)
}

/// `gpu`, `gpu:4`, `gpu:h100:4`, `gres/gpu=4`, `none`, `gpu:0`; as in Slurm one is meant where no number is said.
pub fn parse_gres(text: &str) -> Result<GpuCount, String> {
    let mut gpus = None;
    for one in text.split(',').map(str::trim).filter(|one| !one.is_empty()) {
        let one = one
            .strip_prefix("gres/")
            .or(one.strip_prefix("gres:"))
            .unwrap_or(one);
        // Slurm takes either before the number (`slurm_get_next_tres`).
        let one = one.replace('=', ":");
        let (name, rest) = one.split_once(':').unwrap_or((&one, ""));
        let read = match (name, rest) {
            ("none", "") | ("gpu", "none") => GpuCount::default(),
            ("gpu", "") => units::parse_gpus("1")?,
            ("gpu", rest) => {
                units::parse_gpus_or_none(rest).or_else(|_| units::parse_gpus(&format!("{rest}:1")))?
            }
            (other, _) => {
                return Err(format!(
                    "of Slurm's generic resources there are GPUs (gpu:4, gpu:h100:4), and no {other:?}"
                ));
            }
        };
        if gpus.replace(read).is_some() {
            return Err("one kind of GPUs is asked for at a time".to_owned());
        }
    }
    gpus.ok_or_else(|| "GPUs are asked for as gpu:4 or gpu:h100:4".to_owned())
}

/// What a job reads from its standard input: nothing.
fn parse_input(text: &str) -> Result<String, String> {
    if text.eq_ignore_ascii_case("none") || text == "/dev/null" {
        Ok(text.to_owned())
    } else {
        Err(
            "a job's standard input is /dev/null: let the script read the file, as in ./program < FILE"
                .to_owned(),
        )
    }
}

impl SubmitOptions {
    /// Takes over what is given in one place, over what was said in others before.
    ///
    /// # Errors
    /// What was given contradicts itself.
    pub fn take(&mut self, given: &ArgMatches) -> Result<(), clap::Error> {
        let before = self.clone();
        self.update_from_arg_matches(given)?;
        let is_given = |id: &str| given.value_source(id) == Some(ValueSource::CommandLine);
        // A flag that is not given here is as it was.
        let either = |id: &str, not: &str, was: bool| is_given(id) || was && !is_given(not);
        let flag = |id: &str, was: bool| is_given(id) || was;
        self.requeue = either("requeue", "no_requeue", before.requeue);
        self.no_requeue = either("no_requeue", "requeue", before.no_requeue);
        self.wait = flag("wait", before.wait);
        self.parsable = flag("parsable", before.parsable);
        self.test_only = flag("test_only", before.test_only);
        self.start.hold = flag("hold", before.start.hold);
        // Of a script's own, whose reader knows it.
        self.quiet |= matches!(given.try_get_one::<u8>("silent"), Ok(Some(1..)));
        let (request, was) = (&mut self.request, before.request);
        request.root = either("root", "no_root", was.root);
        request.no_root = either("no_root", "root", was.no_root);
        request.nvlink = flag("nvlink", was.nvlink);
        request.constraints.contiguous = flag("contiguous", was.constraints.contiguous);
        if is_given("env") {
            request.env.splice(0..0, was.env);
        }
        if is_given("mount") {
            request.mount.splice(0..0, was.mount);
        }
        self.drop_overruled(is_given);
        Ok(())
    }

    /// Of options that say the same in different ways, those count that are given in the last place.
    fn drop_overruled(&mut self, is_given: impl Fn(&str) -> bool) {
        let request = &mut self.request;
        let [gpus, cpus, memory] = ALIKE;
        if gpus.iter().any(|id| is_given(id)) {
            request.gpus = request.gpus.take().filter(|_| is_given("gpus"));
            request.gpus_per_node = request.gpus_per_node.take().filter(|_| is_given("gpus_per_node"));
            self.gres = self.gres.take().filter(|_| is_given("gres"));
        }
        if cpus.iter().any(|id| is_given(id)) {
            let tasks = &mut request.tasks;
            request.cpus = request.cpus.filter(|_| is_given("cpus"));
            tasks.cpus_per_task = tasks.cpus_per_task.filter(|_| is_given("cpus_per_task"));
            tasks.cpus_per_gpu = tasks.cpus_per_gpu.filter(|_| is_given("cpus_per_gpu"));
        }
        if memory.iter().any(|id| is_given(id)) {
            let tasks = &mut request.tasks;
            request.mem = request.mem.filter(|_| is_given("mem"));
            tasks.mem_per_cpu = tasks.mem_per_cpu.filter(|_| is_given("mem_per_cpu"));
            tasks.mem_per_gpu = tasks.mem_per_gpu.filter(|_| is_given("mem_per_gpu"));
        }
        if is_given("prefer") {
            request.nvlink = false;
        } else if is_given("nvlink") {
            request.constraints.prefer = None;
        }
    }

    /// Reads options without a verb.
    pub fn parser() -> clap::Command {
        let command = clap::Command::new("carrel submit")
            .no_binary_name(true)
            .disable_help_flag(true)
            .infer_long_args(true)
            .args_override_self(true);
        let count = |id: &'static str, long: &'static str, short: char| {
            let arg = clap::Arg::new(id).long(long).short(short);
            arg.action(clap::ArgAction::Count).hide(true)
        };
        Self::augment_args(command)
            .arg(count("silent", "quiet", 'Q'))
            .arg(count("verbose", "verbose", 'v'))
    }

    /// Reads options that stand somewhere else than on the command line.
    ///
    /// # Errors
    /// What is wrong with them, in one line.
    pub fn read(&mut self, words: &[String]) -> Result<(), String> {
        let words = name_output(words, false);
        let given = Self::parser().try_get_matches_from(words);
        given
            .and_then(|given| self.take(&given))
            .map_err(|error| in_one_line(&error))
    }

    /// Of what mail is sent; none: nothing is said of it. All that one place says counts, as in Slurm.
    pub fn mail_types(&self) -> Option<MailTypes> {
        let mut all = self.mail_type.iter().cloned();
        let first = all.next()?;
        Some(all.fold(first, |mut types, more| {
            types.events.extend(more.events);
            types.array_tasks |= more.array_tasks;
            types
        }))
    }

    /// What is asked for of the first component's nodes, GPUs in all spellings.
    ///
    /// # Errors
    /// Two of them say something else.
    fn own_request(&self) -> Result<RequestArgs, CliError> {
        let mut request = self.request.clone();
        match (&self.gres, &mut request.gpus_per_node) {
            (Some(gres), Some(named)) if !named.agrees_with(gres) => {
                return Err(CliError::usage(
                    "--gres and --gpus-per-node both say what GPUs each node has, and not the same",
                )
                .hint("leave one of them out"));
            }
            (None, _) => {}
            // What names a model says more.
            (Some(gres), Some(_)) if gres.model.is_empty() => {}
            (Some(gres), named) => *named = Some(gres.clone()),
        }
        if let Some(each) = self.ntasks_per_gpu {
            request.count_by_gpus(each);
        }
        Ok(request)
    }

    /// The working directory: as asked for, or where this runs.
    pub fn workdir(&self, here: &std::path::Path) -> PathBuf {
        // A relative one is in this one.
        here.join(self.request.workdir.as_deref().unwrap_or_default())
    }
}

/// sbatch calls the output's file `--output`, which on our command lines says how data is printed: with `formats` what
/// names a format is one.
pub fn name_output(words: &[String], formats: bool) -> Vec<String> {
    let is_format = |value: &str| formats && matches!(value, "json" | "text");
    let mut named = Vec::with_capacity(words.len());
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        match word.strip_prefix("--output") {
            Some("") if words.peek().is_some_and(|value| !is_format(value)) => {
                named.push("--stdout".to_owned());
            }
            Some(rest) if rest.strip_prefix('=').is_some_and(|value| !is_format(value)) => {
                named.push(format!("--stdout{rest}"));
            }
            _ => named.push(word.clone()),
        }
    }
    named
}

/// The first paragraph of what clap says, less "error:" and how to write it right.
pub fn in_one_line(error: &clap::Error) -> String {
    use clap::error::{ContextKind, ContextValue, ErrorKind};
    if error.kind() == ErrorKind::UnknownArgument
        && let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg)
        && option.starts_with('-')
    {
        return format!("there is no option {option}");
    }
    let text = error.to_string();
    let text = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = text.split_whitespace().collect();
    let text = words.join(" ");
    text.strip_prefix("error: ").unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(layers: &[&str]) -> SubmitOptions {
        let mut options = SubmitOptions::default();
        for layer in layers {
            let words: Vec<String> = layer.split_whitespace().map(str::to_owned).collect();
            options.read(&words).expect(layer);
        }
        options
    }

    #[test]
    fn what_is_said_later_counts_and_the_rest_stays() {
        let options = layers(&[
            "-J one -N 2 --requeue --env A=1 --output=x.out -t 10",
            "--job-name two --no-requeue --env B=2 --nvlink",
            "-t 5 --hold",
        ]);
        assert_eq!(options.name.as_deref(), Some("two"));
        assert_eq!(options.stdout.as_deref(), Some("x.out"));
        assert_eq!(options.request.nodes, Some(2));
        assert!(options.no_requeue && !options.requeue && options.request.nvlink && options.start.hold);
        let env: Vec<&str> = options.request.env.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(env, ["A", "B"]);
        assert_eq!(options.request.time.map(|time| time.as_secs()), Some(300));
    }

    #[test]
    fn ways_to_say_the_same_overrule_each_other() {
        let options = layers(&[
            "--gres=gpu:h100:4 --mem 4G -c 2",
            "--gpus 2 --mem-per-cpu 1G --cpus 3",
        ]);
        assert!(options.gres.is_none() && options.request.gpus.is_some());
        assert!(options.request.mem.is_none() && options.request.tasks.mem_per_cpu.is_some());
        assert!(options.request.cpus.is_some() && options.request.tasks.cpus_per_task.is_none());
        let own = |lines: &[&str]| layers(lines).own_request().expect("no contradiction");
        let gpus = own(&["--gpus 2", "--gres gpu"]);
        assert_eq!(
            (gpus.gpus, gpus.gpus_per_node.map(|gpus| gpus.count)),
            (None, Some(1))
        );
        assert_eq!(
            own(&["--gres gpu:a100"]).gpus_per_node.map(|gpus| gpus.model),
            Some("a100".to_owned())
        );
        let both = own(&["--gres gpu:4 --gpus-per-node=a100:4"]).gpus_per_node;
        assert_eq!(
            both.map(|gpus| (gpus.model, gpus.count)),
            Some(("a100".to_owned(), 4))
        );
        assert!(layers(&["--gres gpu:4 --gpus-per-node=2"]).own_request().is_err());
    }

    #[test]
    fn what_is_wrong_is_said_in_one_line() {
        for (words, part) in [
            ("--nonsense=3", "there is no option --nonsense"),
            ("-Z", "there is no option -Z"),
            ("--time never", "'never'"),
            ("--gres=license:2", "GPUs"),
            ("--mem 1G --mem-per-cpu 1G", "cannot be used with"),
            ("--gres=gpu:1,nvme:5", "no \"nvme\""),
            ("--gres=gpu:a:1,gpu:b:1", "one kind"),
            ("-i data.txt", "/dev/null"),
            ("job.sh", "'job.sh'"),
        ] {
            let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
            let said = SubmitOptions::default().read(&words).expect_err("wrong");
            assert!(said.contains(part) && !said.contains('\n'), "{said}");
        }
    }

    #[test]
    fn an_output_that_is_no_format_is_a_file() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            name_output(&words("--output=a --output json"), true),
            words("--stdout=a --output json")
        );
        assert_eq!(
            name_output(&words("--output json -o x"), false),
            words("--stdout json -o x")
        );
        assert_eq!(name_output(&words("--output"), true), words("--output"));
    }

    #[test]
    fn what_means_nothing_here_is_noted() {
        let options = layers(&["--comment=slow --wckey=k --hint=compute_bound"]);
        let notes = options.noted.notes();
        assert_eq!(notes.len(), 2);
        assert!(notes[0].starts_with("--hint is ignored"), "{notes:?}");
        assert_eq!(options.comment.as_deref(), Some("slow"));
        let more = layers(&["--ntasks-per-core=1 -M all --x11 -S 2 -k --priority 3 --time-min=1"]);
        assert_eq!(more.noted.notes().len(), 7);
    }

    #[test]
    fn tasks_are_counted_by_gpus_and_gpus_by_tasks() {
        for (line, per_node, tasks, gpus) in [
            ("--ntasks-per-gpu=2 --gres=gpu:4 -N2", Some(8), None, None),
            ("--ntasks-per-gpu=1 --gpus=2", None, Some(2), Some(2)),
            ("--ntasks-per-gpu=2 -n 8", None, Some(8), Some(4)),
            ("--ntasks-per-gpu=2 -n 8 -G 8", None, Some(8), Some(8)),
        ] {
            let request = layers(&[line]).own_request().expect("no contradiction");
            let counted = (request.tasks.ntasks_per_node, request.tasks.ntasks);
            assert_eq!(counted, (per_node, tasks), "{line}");
            assert_eq!(request.gpus.map(|gpus| gpus.count), gpus, "{line}");
        }
    }

    #[test]
    fn no_gpus_may_be_said_as_slurm_says_it() {
        for gres in ["none", "gpu:0", "gpu:h100:0"] {
            assert_eq!(parse_gres(gres).map(|gpus| gpus.count), Ok(0), "{gres}");
            assert_eq!(
                layers(&[&format!("--gres={gres}")])
                    .own_request()
                    .expect("no contradiction")
                    .gpus_per_node
                    .map(|gpus| gpus.count),
                Some(0)
            );
        }
        assert_eq!(parse_gres("gpu:h100").map(|gpus| gpus.count), Ok(1));
        for gres in ["gres/gpu:a100:2", "gpu:a100=2", "gres:gpu:a100:2,"] {
            let gpus = parse_gres(gres).expect(gres);
            assert_eq!((gpus.model.as_str(), gpus.count), ("a100", 2), "{gres}");
        }
    }
}
