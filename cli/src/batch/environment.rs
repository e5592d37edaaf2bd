//! What a batch job has of the environment that it is submitted from, and what is asked for by it (`SBATCH_*`).

use std::collections::BTreeMap;

use carrel_core::model::host_list;
use carrel_proto::v1;
use clap::ArgMatches;
use clap::parser::ValueSource;

use super::{ALIKE, SubmitOptions, in_one_line};
use crate::error::{CliError, Result};
use crate::request::{RequestArgs, TaskArgs};

/// Variables that a job may have, and bytes of them: as the broker takes them.
const MAX_VARIABLES: usize = 256;
const MAX_BYTES: usize = 32 * 1024;

/// Who reads variables as options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// `SBATCH_*`
    Sbatch,
    /// `SALLOC_*`
    Salloc,
    /// `SLURM_*`, where there is no allocation yet: in one they say what it is.
    Srun,
}

/// What the man pages of these commands list under INPUT ENVIRONMENT VARIABLES, as far as we have the option: all of them,
/// each behind a beginning of its own.
const INPUT: [(&str, &str); 17] = [
    ("ACCOUNT", "--account"),
    ("CONSTRAINT", "--constraint"),
    ("CPUS_PER_GPU", "--cpus-per-gpu"),
    ("EXCLUSIVE", "--exclusive"),
    ("GPUS", "--gpus"),
    ("GPUS_PER_NODE", "--gpus-per-node"),
    ("GPUS_PER_TASK", "--gpus-per-task"),
    ("GRES", "--gres"),
    ("MEM_PER_CPU", "--mem-per-cpu"),
    ("MEM_PER_GPU", "--mem-per-gpu"),
    ("MEM_PER_NODE", "--mem"),
    ("PARTITION", "--partition"),
    ("QOS", "--qos"),
    ("RESERVATION", "--reservation"),
    ("SEGMENT_SIZE", "--segment"),
    ("SIGNAL", "--signal"),
    ("TIMELIMIT", "--time"),
];
/// sbatch alone, and what is our own.
const INPUT_OF_SBATCH: [(&str, &str); 13] = [
    ("ARRAY_INX", "--array"),
    ("ERROR", "--stderr"),
    ("EXPORT", "--export"),
    ("INPUT", "--input"),
    ("JOB_NAME", "--name"),
    ("OPEN_MODE", "--open-mode"),
    ("OUTPUT", "--stdout"),
    ("BEGIN", "--begin"),
    ("DEPENDENCY", "--dependency"),
    ("EXCLUDE", "--exclude"),
    ("NODELIST", "--nodelist"),
    ("CHDIR", "--workdir"),
    ("NICE", "--nice"),
];
/// Those that are flags: set at all, they are given.
const FLAGS_OF_SBATCH: [(&str, &str); 4] = [
    ("REQUEUE", "--requeue"),
    ("NO_REQUEUE", "--no-requeue"),
    ("WAIT", "--wait"),
    ("HOLD", "--hold"),
];
/// salloc and srun.
const IMMEDIATE: [(&str, &str); 1] = [("IMMEDIATE", "--immediate")];

/// What a variable asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The variable.
    pub variable: String,
    /// The option, as on a command line.
    pub option: &'static str,
    /// Its value; none: it has none.
    pub value: Option<String>,
}

impl Asked {
    /// `--time=10`
    pub fn word(&self) -> String {
        match &self.value {
            Some(value) => format!("{}={value}", self.option),
            None => self.option.to_owned(),
        }
    }

    /// By which name the option is known to who reads it.
    pub fn id(&self) -> String {
        self.option.trim_start_matches('-').replace('-', "_")
    }

    /// What is said where the option does not take it.
    pub fn wrong(&self, why: &str) -> CliError {
        CliError::usage(format!("the variable {}: {why}", self.variable))
    }
}

impl Reader {
    /// What the environment asks of it.
    pub fn asked(self, own: &BTreeMap<String, String>) -> Vec<Asked> {
        let (begin, more, flags): (_, &[_], &[_]) = match self {
            Self::Sbatch => ("SBATCH", &INPUT_OF_SBATCH, &FLAGS_OF_SBATCH),
            Self::Salloc => ("SALLOC", &IMMEDIATE, &[]),
            Self::Srun => ("SLURM", &IMMEDIATE, &[]),
        };
        let variable = |end: &str| format!("{begin}_{end}");
        let value = |end: &str| own.get(&variable(end));
        let mut asked = Vec::new();
        for (end, option) in INPUT.iter().chain(more) {
            // Of these two the option alone says something, too.
            let alone = matches!(*end, "EXCLUSIVE" | "IMMEDIATE");
            let value = value(end).filter(|value| alone || !value.is_empty());
            asked.extend(value.map(|value| Asked {
                variable: variable(end),
                option,
                value: Some(value.clone()).filter(|value| !value.is_empty()),
            }));
        }
        // How long that is insisted on has a variable of its own.
        asked.extend(
            value("REQ_SWITCH")
                .filter(|count| !count.is_empty())
                .map(|count| Asked {
                    variable: variable("REQ_SWITCH"),
                    option: "--switches",
                    value: Some(match value("WAIT4SWITCH").filter(|time| !time.is_empty()) {
                        Some(time) => format!("{count}@{time}"),
                        None => count.clone(),
                    }),
                }),
        );
        let flags = flags.iter().filter(|(end, _)| value(end).is_some());
        asked.extend(flags.map(|(end, option)| Asked {
            variable: variable(end),
            option,
            value: None,
        }));
        asked
    }

    /// The words that stand for it before those of a command line, of which `given` says what they say, and which counts
    /// over them; each is tried on its own with `reads`.
    ///
    /// # Errors
    /// A variable that is not understood, by its name.
    pub fn words(
        self,
        own: &BTreeMap<String, String>,
        given: &ArgMatches,
        reads: impl Fn(&str) -> Result<(), clap::Error>,
    ) -> Result<Vec<String>> {
        let mut words = Vec::new();
        for asked in self.asked(own) {
            let id = asked.id();
            let is_given = |id: &str| {
                // Those of Slurm's alone are known by their long names.
                let mut known = given.ids().filter(|known| known.as_str().replace('-', "_") == id);
                known.any(|known| given.value_source(known.as_str()) == Some(ValueSource::CommandLine))
            };
            let same = ALIKE.iter().find(|ids| ids.contains(&id.as_str()));
            if is_given(&id) || same.is_some_and(|ids| ids.iter().any(|id| is_given(id))) {
                continue;
            }
            let word = asked.word();
            reads(&word).map_err(|error| asked.wrong(&in_one_line(&error)))?;
            words.push(word);
        }
        Ok(words)
    }
}

/// Say where one is and who, and not what is to be done: of another host, or of nothing, in a container.
const OF_THIS_PLACE: [&str; 27] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "PWD",
    "OLDPWD",
    "SHLVL",
    "_",
    "HOSTNAME",
    "HOST",
    "TMPDIR",
    "TMP",
    "TEMP",
    "TERM",
    "COLORTERM",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "MAIL",
    "MANPATH",
    "INFOPATH",
    "LS_COLORS",
    "EDITOR",
    "PAGER",
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
];
/// Begins of the names of such variables.
const OF_THIS_PLACE_BEGIN: [&str; 11] = [
    "LD_", "DYLD_", "XDG_", "SSH_", "DBUS_", "VSCODE_", "TERM_", "SLURM_", "SBATCH_", "CARREL_", "NVIDIA_",
];

/// The environment of this process, as far as it is text.
pub fn own() -> BTreeMap<String, String> {
    let all = std::env::vars_os();
    all.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// Takes over what the environment asks for.
///
/// # Errors
/// A variable that is not understood, by its name.
pub fn take(options: &mut SubmitOptions, own: &BTreeMap<String, String>) -> Result<()> {
    for asked in Reader::Sbatch.asked(own) {
        options.read(&[asked.word()]).map_err(|why| asked.wrong(&why))?;
    }
    Ok(())
}

/// What of this place is the same in another container of the image: where programs and libraries are found.
const OF_THIS_IMAGE: [&str; 2] = ["PATH", "LD_LIBRARY_PATH"];

/// The same of a job that has the image of the one that it is submitted from: there what was activated here is found.
///
/// # Errors
/// As in [`exported`].
pub fn exported_to_its_like(
    asked: Option<&str>,
    own: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>> {
    let all = asked.is_none_or(|asked| asked.split(',').any(|part| part == "ALL"));
    let mut out = exported(asked, own)?;
    let of_image = OF_THIS_IMAGE.iter().filter(|_| all);
    for (name, value) in of_image.filter_map(|name| own.get_key_value(*name)) {
        out.entry(name.clone()).or_insert_with(|| value.clone());
    }
    Ok(out)
}

/// What a job has of the environment, as `--export` says.
///
/// # Errors
/// A name that is not there; or more than a job may have.
pub fn exported(asked: Option<&str>, own: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>> {
    let mut out = BTreeMap::new();
    for part in asked.unwrap_or("ALL").split(',').filter(|part| !part.is_empty()) {
        match part {
            "ALL" => out.extend(
                own.iter()
                    .filter(|(name, _)| is_a_name(name) && !is_of_this_place(name))
                    .map(|(name, value)| (name.clone(), value.clone())),
            ),
            "NONE" | "NIL" => {}
            _ => {
                let (name, value) = match part.split_once('=') {
                    Some((name, value)) => (name, Some(value.to_owned())),
                    None => (part, own.get(part).cloned()),
                };
                if !is_a_name(name) {
                    return Err(CliError::usage(format!(
                        "--export: {name:?} is no name of a variable"
                    )));
                }
                // As sbatch does, one that is not set is not exported.
                if let Some(value) = value {
                    out.insert(name.to_owned(), value);
                }
            }
        }
    }
    let bytes: usize = out.iter().map(|(name, value)| name.len() + value.len()).sum();
    if out.len() > MAX_VARIABLES || bytes > MAX_BYTES {
        return Err(CliError::usage(format!(
            "the environment has {} variables of {bytes} bytes, and a job takes {MAX_VARIABLES} of {MAX_BYTES}",
            out.len()
        ))
        .hint("--export=NONE, or --export with the names that the job needs"));
    }
    Ok(out)
}

fn is_a_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    let first = bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    first && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

fn is_of_this_place(name: &str) -> bool {
    OF_THIS_PLACE.contains(&name) || OF_THIS_PLACE_BEGIN.iter().any(|begin| name.starts_with(begin))
}

/// Says in an allocation of how many tasks it was asked for with, where it was: steps in it are as many.
pub fn put_tasks(spec: &mut v1::SessionSpec, request: &RequestArgs) {
    if request.tasks.is_empty() && request.more.is_empty() {
        return;
    }
    for variable in of_request(request, spec.resources.as_ref()) {
        spec.env.retain(|known| known.name != variable.name);
        spec.env.push(variable);
    }
}

/// What Slurm calls an allocation that was given no name: the program that it is for, by its file name.
pub fn put_job_name(spec: &mut v1::SessionSpec, program: &str) {
    let name = program.rsplit('/').find(|part| !part.is_empty());
    if spec.env.iter().any(|known| known.name == "SLURM_JOB_NAME") {
        return;
    }
    spec.env.push(v1::EnvVar {
        name: "SLURM_JOB_NAME".to_owned(),
        value: name.unwrap_or("interactive").to_owned(),
    });
}

/// The same of what is asked for, and of each component where there are several: the broker adds what it gives to each.
pub fn of_request(request: &RequestArgs, resources: Option<&v1::ResourceRequest>) -> Vec<v1::EnvVar> {
    let nodes = resources.map_or(1, |resources| resources.nodes);
    let mut env = of_tasks(&request.tasks, nodes);
    if request.more.is_empty() {
        return env;
    }
    let mut put = |name: String, value: String| env.push(v1::EnvVar { name, value });
    let components = std::iter::once(request).chain(&request.more);
    put(
        "SLURM_HET_SIZE".to_owned(),
        components.clone().count().to_string(),
    );
    let more = resources
        .map(|resources| resources.more.as_slice())
        .unwrap_or_default();
    let nodes = std::iter::once(nodes).chain(more.iter().map(|one| one.nodes));
    for ((group, one), nodes) in components.enumerate().zip(nodes) {
        for variable in of_tasks(&one.tasks, nodes) {
            put(format!("{}_HET_GROUP_{group}", variable.name), variable.value);
        }
    }
    env
}

/// What Slurm says of tasks: the broker knows nodes and CPUs.
pub fn of_tasks(tasks: &TaskArgs, nodes: u32) -> Vec<v1::EnvVar> {
    let per_node = tasks.ntasks_per_node;
    let all = tasks
        .ntasks
        .or_else(|| per_node.map(|each| each.saturating_mul(nodes)));
    let mut env = Vec::new();
    let mut put = |name: &str, value: Option<u32>| {
        env.extend(value.map(|value| v1::EnvVar {
            name: name.to_owned(),
            value: value.to_string(),
        }));
    };
    put("SLURM_NTASKS", all);
    put("SLURM_NPROCS", all);
    put("SLURM_NTASKS_PER_NODE", per_node);
    put("SLURM_CPUS_PER_TASK", tasks.cpus_per_task);
    put("SLURM_CPUS_PER_GPU", tasks.cpus_per_gpu);
    // One after the other as long as there are some left: those that come first have one more.
    let (each, more) = all.map_or((1, 0), |all| (all / nodes, all % nodes));
    let counts: Vec<u32> = (0..nodes).map(|node| each + u32::from(node < more)).collect();
    env.push(v1::EnvVar {
        name: "SLURM_TASKS_PER_NODE".to_owned(),
        value: host_list::in_short(&counts),
    });
    env
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Exclusive;

    fn own() -> BTreeMap<String, String> {
        let pairs = [
            ("PATH", "/bin"),
            ("SEED", "7"),
            ("LD_LIBRARY_PATH", "/x"),
            ("SLURM_JOB_ID", "1"),
            ("BASH_FUNC_x%%", "() { :; }"),
            ("WANDB_KEY", "k"),
        ];
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn a_job_has_what_export_says() {
        let names = |asked: Option<&str>| {
            let out = exported(asked, &own()).expect("exported");
            out.into_iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(names(None), ["SEED=7", "WANDB_KEY=k"]);
        assert_eq!(names(Some("NONE")), [] as [&str; 0]);
        assert_eq!(
            names(Some("SEED,PATH,UNSET,A=b=c")),
            ["A=b=c", "PATH=/bin", "SEED=7"]
        );
        assert_eq!(names(Some("ALL,SEED=8")), ["SEED=8", "WANDB_KEY=k"]);
        assert!(exported(Some("A-B=1"), &own()).is_err());
        let large = BTreeMap::from([("X".to_owned(), "y".repeat(40_000))]);
        assert!(exported(None, &large).expect_err("large").hint.is_some());
    }

    #[test]
    fn the_environment_asks_as_sbatch_lets_it() {
        let env = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect()
        };
        let mut options = SubmitOptions::default();
        take(
            &mut options,
            &env(&[
                ("SBATCH_TIMELIMIT", "10"),
                ("SBATCH_NO_REQUEUE", ""),
                ("SBATCH_JOB_NAME", "x y"),
            ]),
        )
        .expect("understood");
        assert_eq!(options.name.as_deref(), Some("x y"));
        assert!(options.no_requeue && options.request.time.is_some());
        let error = take(&mut options, &env(&[("SBATCH_GPUS", "many")])).expect_err("no number");
        assert!(error.message.starts_with("the variable SBATCH_GPUS: "), "{error}");
        let whole = |value: &str| {
            let mut options = SubmitOptions::default();
            take(
                &mut options,
                &env(&[("SBATCH_EXCLUSIVE", value), ("SBATCH_QOS", "")]),
            )
            .expect(value);
            options.request.exclusive == Some(Exclusive::Nodes)
        };
        assert!(whole("") && whole("exclusive") && !whole("user"));
        let mut options = SubmitOptions::default();
        take(
            &mut options,
            &env(&[("SBATCH_REQ_SWITCH", "1"), ("SBATCH_WAIT4SWITCH", "5:00")]),
        )
        .expect("understood");
        let switches = options
            .read(&["--switches=1@5:00".to_owned()])
            .map(|()| options.request.constraints.switches);
        assert_eq!(switches, Ok(options.request.constraints.switches));
        assert!(options.request.constraints.switches.is_some());
    }

    #[test]
    fn every_option_that_a_variable_names_is_one() {
        let mut options = SubmitOptions::default();
        for (_, option) in FLAGS_OF_SBATCH {
            options.read(&[option.to_owned()]).expect(option);
        }
        for (_, option) in INPUT.iter().chain(&INPUT_OF_SBATCH) {
            let why = options.read(&[format!("{option}=?")]).err().unwrap_or_default();
            assert!(!why.contains("no option"), "{why}");
        }
    }

    #[test]
    fn what_was_activated_is_found_in_the_same_image() {
        let own = [("PATH", "/home/a/venv/bin:/bin"), ("HOME", "/home/a"), ("A", "1")];
        let own = own
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        let path = |asked| {
            let out = exported_to_its_like(asked, &own).expect("exported");
            assert!(!out.contains_key("HOME"));
            out.get("PATH").cloned()
        };
        assert_eq!(path(None).as_deref(), Some("/home/a/venv/bin:/bin"));
        assert_eq!(path(Some("ALL,PATH=/x")).as_deref(), Some("/x"));
        assert_eq!(path(Some("A")), None);
        assert_eq!(path(Some("NONE")), None);
    }

    #[test]
    fn tasks_are_in_the_environment() {
        let tasks = TaskArgs {
            ntasks: Some(8),
            cpus_per_task: Some(2),
            ..TaskArgs::default()
        };
        let env = of_tasks(&tasks, 2);
        let value = |name: &str| {
            env.iter()
                .find(|one| one.name == name)
                .map(|one| one.value.as_str())
        };
        assert_eq!(value("SLURM_NTASKS"), Some("8"));
        assert_eq!(value("SLURM_TASKS_PER_NODE"), Some("4(x2)"));
        assert_eq!(value("SLURM_CPUS_PER_TASK"), Some("2"));
        assert_eq!(value("SLURM_NTASKS_PER_NODE"), None);
    }
}
