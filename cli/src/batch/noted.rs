//! What Slurm has and means nothing here: taken, with a note, so that a script need not be changed; or refused, with the
//! reason.

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches};

use crate::slurm::options::Takes::{Perhaps, Value};
use crate::slurm::options::{NONE, Opt, Standing, Takes, noted, refused};

const OPTIONS: &[Opt] = &[
    noted(NONE, "get-user-env", Perhaps, "a login's variables are not read"),
    noted('k', "no-kill", Perhaps, "a job ends with its nodes"),
    noted(NONE, "propagate", Perhaps, "limits are those of the container"),
    noted(NONE, "hint", Value, "CPUs are chosen near to the GPUs"),
    noted(NONE, "wckey", Value, "use is counted on accounts"),
    noted(NONE, "gres-flags", Value, "CPUs are chosen near to the GPUs"),
    noted(NONE, "gpu-bind", Value, "each process sees the GPUs of its job"),
    noted(NONE, "gpu-freq", Value, "clocks are the operators'"),
    noted(NONE, "cpu-freq", Value, "clocks are the operators'"),
    noted(NONE, "mem-bind", Value, "memory is near to the CPUs"),
    noted('m', "distribution", Value, "CPUs are chosen near to the GPUs"),
    noted('s', "oversubscribe", Perhaps, "CPUs of a job are its own"),
    noted(NONE, "share", Perhaps, "CPUs of a job are its own"),
    noted('O', "overcommit", Perhaps, "CPUs of a job are its own"),
    noted(NONE, "threads-per-core", Value, "CPUs are hardware threads"),
    noted(NONE, "cores-per-socket", Value, "CPUs are hardware threads"),
    noted(NONE, "sockets-per-node", Value, "CPUs are hardware threads"),
    noted('B', "extra-node-info", Value, "CPUs are hardware threads"),
    noted(NONE, "tmp", Value, "disks are not counted"),
    noted(
        NONE,
        "kill-on-invalid-dep",
        Value,
        "what can never start says so, and waits",
    ),
    noted(NONE, "delay-boot", Value, "nodes are not booted for jobs"),
    noted(NONE, "profile", Value, "use is measured in any case"),
    noted(
        NONE,
        "wait-all-nodes",
        Value,
        "a job begins when all of its nodes are ready",
    ),
    noted(NONE, "spread-job", Perhaps, "jobs are packed"),
    noted(
        NONE,
        "use-min-nodes",
        Perhaps,
        "jobs have the nodes that they ask for",
    ),
    noted(
        NONE,
        "acctg-freq",
        Value,
        "how often use is measured, the node's agent says",
    ),
    noted(NONE, "batch", Value, "the first node runs the script"),
    noted(NONE, "bb", Value, "there are no burst buffers"),
    noted(NONE, "bbf", Value, "there are no burst buffers"),
    noted('M', "clusters", Value, "there is one cluster"),
    noted(NONE, "cluster-constraint", Value, "there is one cluster"),
    noted('S', "core-spec", Value, "no CPUs are set aside"),
    noted(NONE, "thread-spec", Value, "no CPUs are set aside"),
    noted(
        NONE,
        "deadline",
        Value,
        "--time says for how long, --begin from when",
    ),
    noted(NONE, "mcs-label", Value, "it is not kept"),
    noted(NONE, "network", Value, "a job's network is the cluster's to say"),
    noted(
        NONE,
        "ntasks-per-core",
        Value,
        "sockets, cores and threads are not told apart",
    ),
    noted(
        NONE,
        "ntasks-per-socket",
        Value,
        "sockets, cores and threads are not told apart",
    ),
    noted(NONE, "power", Value, "nodes' power is as it is"),
    noted(NONE, "priority", Value, "--nice moves it"),
    noted(NONE, "reboot", Perhaps, "nodes are not booted for jobs"),
    noted(NONE, "time-min", Value, "a job has the time that it asks for"),
    noted(NONE, "tres-bind", Value, "CPUs follow the GPUs"),
    noted(NONE, "x11", Perhaps, "ssh -X leads displays on"),
    noted(NONE, "ignore-pbs", Perhaps, "#PBS lines are not read"),
    noted(NONE, "bell", Perhaps, "no bell rings"),
    noted(NONE, "no-bell", Perhaps, "no bell rings"),
    noted(
        NONE,
        "oom-kill-step",
        Perhaps,
        "what runs out of memory ends its job",
    ),
    noted(NONE, "stepmgr", Perhaps, "steps are led by carrel run"),
    noted(NONE, "resv-ports", Perhaps, "ports are the job's to choose"),
    noted(NONE, "extra", Value, "it is not kept"),
    noted(NONE, "context", Value, "there are no labels of that kind"),
    refused('L', "licenses", Value, "there are no licenses"),
    refused(NONE, "container", Value, "--image names the image"),
    refused(NONE, "container-id", Value, "--image names the image"),
    noted(NONE, "container-mount-home", Perhaps, "the home is there"),
    noted(NONE, "no-container-mount-home", Perhaps, "the home is there"),
    noted(NONE, "container-writable", Perhaps, "it can be written in"),
    noted(
        NONE,
        "no-container-entrypoint",
        Perhaps,
        "an image's entrypoint is not run",
    ),
    noted(
        NONE,
        "container-name",
        Value,
        "a job has one container on each node, with all of its steps",
    ),
    noted(NONE, "container-env", Value, "--export names variables"),
    refused(NONE, "export-file", Value, "--export names variables"),
    refused(NONE, "gpus-per-socket", Value, "--gpus-per-node counts GPUs"),
    refused(
        NONE,
        "tres-per-task",
        Value,
        "-c and --gpus-per-task say the same",
    ),
    refused('F', "nodefile", Value, "--nodelist names nodes"),
    refused(NONE, "uid", Value, "a job is whose who asks for it is"),
    refused(NONE, "gid", Value, "a job has its user's groups"),
];

/// Those of them that are given.
#[derive(Clone, Debug, Default)]
pub struct NotedArgs(Vec<&'static Opt>);

impl NotedArgs {
    /// What is said of those that are there.
    pub fn notes(&self) -> Vec<String> {
        let note = |one: &&Opt| format!("--{} is ignored: {}", one.long, one.text);
        self.0.iter().map(note).collect()
    }
}

fn arg(option: &'static Opt) -> Arg {
    let arg = Arg::new(option.long).long(option.long).action(ArgAction::Set);
    let arg = option
        .short
        .into_iter()
        .fold(arg, Arg::short)
        .value_name("X")
        .hide(true);
    let arg = match option.takes {
        Takes::Perhaps => arg.num_args(0..=1).require_equals(true).default_missing_value(""),
        Takes::Value | Takes::Nothing => arg,
    };
    match option.is {
        Standing::Refused => arg
            .help(format!("refused: {}", option.text))
            .value_parser(|_: &str| Err::<String, _>(option.text)),
        Standing::Used | Standing::Taken | Standing::Noted => arg,
    }
}

impl Args for NotedArgs {
    fn augment_args(command: clap::Command) -> clap::Command {
        command.args(OPTIONS.iter().map(arg))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for NotedArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut noted = Self::default();
        noted.update_from_arg_matches(matches)?;
        Ok(noted)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        let given = |one: &Opt| matches.value_source(one.long) == Some(ValueSource::CommandLine);
        let known = |one: &Opt| self.0.iter().any(|known| known.long == one.long);
        self.0 = OPTIONS.iter().filter(|one| given(one) || known(one)).collect();
        Ok(())
    }
}
