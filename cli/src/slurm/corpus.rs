//! Scripts as people write them for Slurm, and what `sbatch` makes of each: `tests/corpus`. What is expected was held
//! against Slurm's manual page and its source, and is to be again where it changes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use carrel_proto::v1;
use carrel_proto::v1::gpu_unit_request::Unit;

use super::sbatch;
use crate::commands::submit::request_of;
use crate::constraints::describe;
use crate::request::{Cpus, Memory};
use crate::units;

/// How a script is called, in the script: variables, "sbatch", and its words, with THIS for its name.
const CALL: &str = "#> ";

#[test]
fn scripts_come_to_what_slurm_would_make_of_them() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/corpus");
    let mut scripts: Vec<PathBuf> = std::fs::read_dir(&corpus)
        .expect("tests/corpus")
        .map(|entry| entry.expect("a file").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "sh"))
        .collect();
    scripts.sort();
    assert!(scripts.len() > 50, "{} scripts", scripts.len());
    let said: String = scripts.iter().map(|path| told(&corpus, path)).collect();
    let golden = corpus.join("expected.txt");
    if std::env::var_os("CARREL_WRITE_REFERENCE").is_some() {
        std::fs::write(&golden, said).expect("tests/corpus/expected.txt can be written");
        return;
    }
    let wanted = std::fs::read_to_string(&golden).expect("tests/corpus/expected.txt");
    let sections = |text: &str| -> BTreeMap<String, String> {
        let sections = text.split("== ").filter(|section| !section.is_empty());
        let named = sections.filter_map(|section| section.split_once('\n'));
        named
            .map(|(name, said)| (name.to_owned(), said.to_owned()))
            .collect()
    };
    let (said, wanted) = (sections(&said), sections(&wanted));
    for name in wanted.keys().chain(said.keys()) {
        assert_eq!(
            said.get(name),
            wanted.get(name),
            "{name}: if this is what Slurm would do, CARREL_WRITE_REFERENCE=1 cargo test -p carrel-cli scripts_come"
        );
    }
}

/// What comes of a script, under its name.
fn told(corpus: &Path, path: &Path) -> String {
    let name = path
        .file_name()
        .map(|name| name.to_string_lossy())
        .expect("a name");
    let text = std::fs::read_to_string(path).expect("a script");
    let call = text
        .lines()
        .find_map(|line| line.strip_prefix(CALL))
        .unwrap_or("sbatch THIS");
    let is_variable = |word: &&str| word.contains('=') && !word.starts_with('-');
    let mut words = call.split(' ').peekable();
    let mut own = BTreeMap::new();
    while let Some((name, value)) = words
        .next_if(|word| is_variable(word))
        .and_then(|word| word.split_once('='))
    {
        own.insert(name.to_owned(), value.to_owned());
    }
    assert_eq!(words.next(), Some("sbatch"), "{name}");
    let path = path.to_string_lossy();
    let words: Vec<String> = words.map(|word| word.replace("THIS", &path)).collect();
    let read = sbatch::read(&words)
        .map_err(|error| sbatch::wrong("sbatch", &error))
        .and_then(|(args, face)| request_of(&args, face, &own, Path::new("/here")));
    let mut told = format!("== {name}\n");
    match read {
        Ok((request, notes)) => {
            for note in notes {
                let _ = writeln!(told, "note: {note}");
            }
            write_request(&mut told, &request);
        }
        Err(error) => {
            let _ = writeln!(told, "refused: {}", error.message);
            if let Some(hint) = error.hint {
                let _ = writeln!(told, "hint: {hint}");
            }
        }
    }
    told.push('\n');
    told.replace(&format!("{}/", corpus.display()), "")
}

/// A line for each thing that is asked for; what is not said is not asked for.
fn write_request(told: &mut String, request: &v1::SubmitJobRequest) {
    let spec = request.spec.clone().unwrap_or_default();
    let terms = spec.terms.clone().unwrap_or_default();
    let start = request.start.clone().unwrap_or_default();
    let mut line = |what: &str, value: &str| {
        if !value.is_empty() {
            let _ = writeln!(told, "{what}: {value}");
        }
    };
    line("name", &request.name);
    line("array", &request.array);
    line("arguments", &request.command.join(" | "));
    let resources = spec.resources.unwrap_or_default();
    line("nodes", &nodes(&resources));
    for one in &resources.more {
        line("and nodes", &nodes(one));
    }
    let time = std::time::Duration::from_secs(spec.time_limit_s);
    line("time", &some(spec.time_limit_s > 0, || units::clock(time)));
    line("account", &terms.account);
    line("partition", &terms.partition);
    line("qos", &terms.qos);
    line("reservation", &terms.reservation);
    line("nice", &some(terms.nice != 0, || terms.nice.to_string()));
    line(
        "begin",
        &some(start.begin_ms > 0, || units::rfc3339(start.begin_ms)),
    );
    line("hold", &some(start.hold, || "yes".to_owned()));
    line("after", &start.conditions.as_ref().map(after).unwrap_or_default());
    let signal = spec.end_signal.map(|signal| {
        let whom = if signal.shells { "the script" } else { "the steps" };
        format!(
            "{} to {whom}, {} s before the end",
            signal.signal, signal.before_s
        )
    });
    line("signal", &signal.unwrap_or_default());
    line("image", &spec.image);
    let mounts = spec.mounts.iter().map(|mount| {
        let ro = some(mount.read_only, || ":ro".to_owned());
        format!("{}:{}{ro}", mount.source, mount.target)
    });
    line("mounts", &mounts.collect::<Vec<_>>().join(" | "));
    line("directory", &some(spec.workdir != "/here", || spec.workdir));
    line("output", &request.stdout);
    line("errors", &request.stderr);
    let append = request
        .append
        .map(|append| if append { "append" } else { "truncate" });
    line("files", append.unwrap_or_default());
    line("requeue", &some(!request.requeue, || "no".to_owned()));
    line("mail", &request.mail_type);
    line("mail to", &request.mail_user);
    let env: Vec<String> = spec
        .env
        .iter()
        .map(|one| format!("{}={}", one.name, one.value))
        .collect();
    line("environment", &env.join(" | "));
}

fn some(is: bool, text: impl FnOnce() -> String) -> String {
    if is { text() } else { String::new() }
}

/// "2; each: 4 GPUs (a100), 8 CPUs, 16G"
fn nodes(request: &v1::ResourceRequest) -> String {
    let mut parts = Vec::new();
    if request.gpus_per_node > 0 {
        let unit = match request.unit.as_ref().and_then(|unit| unit.unit.as_ref()) {
            None => String::new(),
            Some(Unit::MigProfile(profile)) => format!(" of {profile}"),
            Some(other) => format!(" {other:?}"),
        };
        let model = some(!request.gpu_model.is_empty(), || {
            format!(" ({})", request.gpu_model)
        });
        parts.push(format!("{} GPUs{unit}{model}", request.gpus_per_node));
    }
    if request.cpus_per_node > 0 || request.exclusive {
        parts.push(Cpus(request).to_string());
    }
    if request.memory_bytes_per_node > 0 || request.all_memory {
        parts.push(Memory(request).to_string());
    }
    parts.extend(Some(describe(request)).filter(|wishes| !wishes.is_empty()));
    if parts.is_empty() {
        return request.nodes.to_string();
    }
    format!("{}; each: {}", request.nodes, parts.join(", "))
}

fn after(conditions: &v1::Conditions) -> String {
    let jobs = conditions.dependencies.iter().map(|one| {
        let kind = one.kind().as_str_name().trim_start_matches("DEPENDENCY_KIND_");
        let task = one.task.map_or(String::new(), |task| format!("_{task}"));
        format!("{kind} {}{task}", one.job)
    });
    let mut all: Vec<String> = jobs.collect();
    all.extend(conditions.singleton.then(|| "SINGLETON".to_owned()));
    all.join(if conditions.any { " or " } else { " and " })
}

/// What `man sbatch` of 24.05 lists.
const OPTIONS: &str = "account acctg-freq array batch bb bbf begin chdir cluster-constraint clusters comment constraint container \
    container-id contiguous core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency \
    distribution error exclude exclusive export export-file extra extra-node-info get-user-env gid gpu-bind gpu-freq gpus \
    gpus-per-node gpus-per-socket gpus-per-task gres gres-flags help hint hold ignore-pbs input job-name kill-on-invalid-dep \
    licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network nice no-kill no-requeue \
    nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket oom-kill-step open-mode \
    output overcommit oversubscribe parsable partition prefer priority profile propagate qos quiet reboot requeue reservation \
    resv-ports segment signal sockets-per-node spread-job stepmgr switches test-only thread-spec threads-per-core time \
    time-min tmp tres-bind tres-per-task uid usage use-min-nodes verbose wait wait-all-nodes wckey wrap";

/// Each is used, noted or refused with a reason, and none is unknown.
#[test]
fn every_option_of_sbatch_is_known() {
    let command = sbatch::command();
    let known = |name: &str| {
        command.get_arguments().any(|arg| {
            let aliases = arg.get_all_aliases().unwrap_or_default();
            arg.get_long() == Some(name) || aliases.contains(&name)
        })
    };
    // clap's own.
    let missing: Vec<&str> = OPTIONS
        .split_whitespace()
        .filter(|name| *name != "help" && !known(name))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}
