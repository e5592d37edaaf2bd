//! What a batch job has of the environment that it is submitted from, and what is asked for by it (`SBATCH_*`).

use std::collections::BTreeMap;

use carrel_proto::v1;

use super::SubmitOptions;
use crate::error::{CliError, Result};
use crate::request::{RequestArgs, TaskArgs};

/// Variables that a job may have, and bytes of them: as the broker takes them.
const MAX_VARIABLES: usize = 256;
const MAX_BYTES: usize = 32 * 1024;

/// What `man sbatch` lists under INPUT ENVIRONMENT VARIABLES, as far as we have the option.
const INPUT: [(&str, &str); 27] = [
    ("SBATCH_ACCOUNT", "--account"),
    ("SBATCH_ARRAY_INX", "--array"),
    ("SBATCH_CONSTRAINT", "--constraint"),
    ("SBATCH_CPUS_PER_GPU", "--cpus-per-gpu"),
    ("SBATCH_ERROR", "--stderr"),
    ("SBATCH_EXCLUSIVE", "--exclusive"),
    ("SBATCH_EXPORT", "--export"),
    ("SBATCH_GPUS", "--gpus"),
    ("SBATCH_GPUS_PER_NODE", "--gpus-per-node"),
    ("SBATCH_GPUS_PER_TASK", "--gpus-per-task"),
    ("SBATCH_GRES", "--gres"),
    ("SBATCH_JOB_NAME", "--name"),
    ("SBATCH_MEM_PER_CPU", "--mem-per-cpu"),
    ("SBATCH_MEM_PER_GPU", "--mem-per-gpu"),
    ("SBATCH_MEM_PER_NODE", "--mem"),
    ("SBATCH_OPEN_MODE", "--open-mode"),
    ("SBATCH_OUTPUT", "--stdout"),
    ("SBATCH_PARTITION", "--partition"),
    ("SBATCH_QOS", "--qos"),
    ("SBATCH_REQ_SWITCH", "--switches"),
    ("SBATCH_TIMELIMIT", "--time"),
    ("SBATCH_BEGIN", "--begin"),
    ("SBATCH_DEPENDENCY", "--dependency"),
    ("SBATCH_EXCLUDE", "--exclude"),
    ("SBATCH_NODELIST", "--nodelist"),
    ("SBATCH_CHDIR", "--workdir"),
    ("SBATCH_NICE", "--nice"),
];
/// Those that are flags: set at all, they are given.
const INPUT_FLAGS: [(&str, &str); 4] = [
    ("SBATCH_REQUEUE", "--requeue"),
    ("SBATCH_NO_REQUEUE", "--no-requeue"),
    ("SBATCH_WAIT", "--wait"),
    ("SBATCH_HOLD", "--hold"),
];

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
    let valued = INPUT.iter().filter_map(|(variable, option)| {
        let value = own.get(*variable).filter(|value| !value.is_empty())?;
        Some((*variable, format!("{option}={value}")))
    });
    let flags = INPUT_FLAGS
        .iter()
        .filter(|(variable, _)| own.contains_key(*variable));
    let flags = flags.map(|(variable, option)| (*variable, (*option).to_owned()));
    for (variable, word) in valued.chain(flags) {
        options
            .read(&[word])
            .map_err(|why| CliError::usage(format!("the variable {variable}: {why}")))?;
    }
    Ok(())
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
    let each = per_node.or_else(|| all.map(|all| all.div_ceil(nodes)));
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
    let each = each.unwrap_or(1);
    env.push(v1::EnvVar {
        name: "SLURM_TASKS_PER_NODE".to_owned(),
        value: if nodes > 1 {
            format!("{each}(x{nodes})")
        } else {
            each.to_string()
        },
    });
    env
}

#[cfg(test)]
mod tests {
    use super::*;

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
        // Every option that is named is one.
        for (_, option) in INPUT_FLAGS {
            options.read(&[option.to_owned()]).expect(option);
        }
        for (_, option) in INPUT {
            let why = options.read(&[format!("{option}=?")]).err().unwrap_or_default();
            assert!(!why.contains("no option"), "{why}");
        }
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
