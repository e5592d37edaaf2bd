//! A real Slurm on the same machine, started and measured by the scripts of a directory: `slurm-peer.sh start NODES GPUS
//! BASE` and `stop`, and `measure.sh BASE TEST…`, which leaves its figures in `BASE/measure-TUNE-PROFILE.json`.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};

use anyhow::{Context, bail, ensure};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;

use super::figures::Figures;
use super::interrupt;
use super::{Options, Part};
use crate::report::quantile;

const START: &str = "slurm-peer.sh";
const MEASURE: &str = "measure.sh";
/// Virtual nodes: what `measure.sh` needs for its restarts.
const NODES: &str = "16";
/// GPUs of each.
const GPUS: &str = "8";
/// How long `measure.sh` waits for a GPU behind two-node jobs, seconds: quick, and else.
const STUCK_LIMIT: [f64; 2] = [60.0, 120.0];

/// What is run now, its process group; 0: nothing.
static RUNNING: AtomicI32 = AtomicI32::new(0);

/// Where the scripts are.
pub struct Peer {
    dir: PathBuf,
}

/// What they measured.
pub struct Measured {
    figures: Value,
    quick: bool,
    behind: u64,
    memory: u64,
}

impl Peer {
    /// Looks for the scripts.
    pub fn find(dir: &Path) -> anyhow::Result<Self> {
        for script in [START, MEASURE] {
            ensure!(
                dir.join(script).is_file(),
                "--slurm {}: there is no {script}; name the directory of scripts that start and measure a Slurm",
                dir.display()
            );
        }
        Ok(Self { dir: dir.to_owned() })
    }

    /// Starts a Slurm, measures what compares to these parts, and ends it, whatever happened.
    pub fn measure(&self, parts: &[Part], options: &Options) -> anyhow::Result<Measured> {
        self.during(|base| self.measured(base, parts, options))
    }

    /// Does something with a Slurm that is started for it, whose `env.sh` lies in a directory, and ends that.
    pub fn during<T>(&self, work: impl FnOnce(&Path) -> anyhow::Result<T>) -> anyhow::Result<T> {
        let base = tempfile::Builder::new().prefix("carrel-slurm-").tempdir()?.keep();
        let (script, place) = (self.dir.join(START), base.clone());
        interrupt::set(move || end(&script, &place));
        let done = self.start(&base).and_then(|()| work(&base));
        interrupt::clean_up();
        done
    }

    fn start(&self, base: &Path) -> anyhow::Result<()> {
        eprintln!("Slurm: starting {NODES} virtual nodes of {GPUS} GPUs");
        let place = base.to_str().context("a path in UTF-8")?;
        run(&self.dir.join(START), &["start", NODES, GPUS, place], &[]).context("Slurm did not start")
    }

    fn measured(&self, base: &Path, parts: &[Part], options: &Options) -> anyhow::Result<Measured> {
        let behind = options.scaled(options.behind);
        // What is more of them comes after what is less.
        let memory = options.scaled(options.restart).max(behind + 1);
        let mut env = vec![("NPEND", behind.to_string()), ("NMEM", memory.to_string())];
        if options.quick {
            env.push(("QUICK", "1".to_owned()));
        }
        let place = base.to_str().context("a path in UTF-8")?;
        let args: Vec<&str> = std::iter::once(place).chain(tests_of(parts)).collect();
        run(&self.dir.join(MEASURE), &args, &env).context("Slurm was not measured")?;
        Ok(Measured {
            figures: read(base)?,
            quick: options.quick,
            behind,
            memory,
        })
    }
}

/// The test of `measure.sh` that measures what a part does.
fn test(part: Part) -> &'static str {
    match part {
        Part::Accept => "sbatch",
        Part::Handover => "handoff",
        Part::Grant => "stuck",
        Part::Memory => "mem",
        Part::Restart => "restart",
        Part::Kill9 => "lossy",
    }
}

/// The tests that compare to these parts; that of memory first, while the controller has seen nothing else.
fn tests_of(parts: &[Part]) -> Vec<&'static str> {
    let (memory, rest): (Vec<&Part>, Vec<&Part>) = parts.iter().partition(|part| **part == Part::Memory);
    memory.into_iter().chain(rest).map(|part| test(*part)).collect()
}

/// Runs a script to its end, with all that it says on standard error: standard output is for figures.
fn run(script: &Path, args: &[&str], env: &[(&str, String)]) -> anyhow::Result<()> {
    let said = io::stderr().as_fd().try_clone_to_owned()?;
    let mut child = Command::new("bash")
        .arg(script)
        .args(args)
        .envs(env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(said)
        // Ctrl-C ends it when its Slurm can be ended as well, and not before.
        .process_group(0)
        .spawn()
        .with_context(|| script.display().to_string())?;
    RUNNING.store(child.id() as i32, Ordering::SeqCst);
    let ended = child.wait();
    RUNNING.store(0, Ordering::SeqCst);
    let status = ended?;
    ensure!(
        status.success(),
        "{} {}: {status}; what it said is above",
        script.display(),
        args.first().copied().unwrap_or_default()
    );
    Ok(())
}

/// Ends what runs, the Slurm, and its directory.
fn end(script: &Path, base: &Path) {
    let group = RUNNING.load(Ordering::SeqCst);
    if group > 0 {
        // It may have ended just now.
        killpg(Pid::from_raw(group), Signal::SIGKILL).ok();
    }
    let stopped = Command::new("bash")
        .arg(script)
        .args(["stop", NODES, GPUS])
        .arg(base)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .process_group(0)
        .status();
    match stopped {
        Ok(status) if status.success() => {
            fs::remove_dir_all(base).ok();
        }
        Ok(_) | Err(_) => eprintln!(
            "Slurm may still run: {} stop {NODES} {GPUS} {}",
            script.display(),
            base.display()
        ),
    }
}

/// The figures that `measure.sh` left.
fn read(base: &Path) -> anyhow::Result<Value> {
    let left = fs::read_dir(base)?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| {
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            name.starts_with("measure-") && path.extension().is_some_and(|kind| kind == "json")
        });
    let Some(path) = left else {
        bail!(
            "{MEASURE} left no figures in {}; what it said is above",
            base.display()
        );
    };
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()))
}

impl Measured {
    /// Prints its figures, and ours over them. Fails, at the end, where one is missing.
    pub fn compare(&self, parts: &[Part], figures: &mut Figures) -> anyhow::Result<()> {
        let mut missing = Vec::new();
        for part in parts {
            let compared = match part {
                Part::Accept => self.accept(figures),
                Part::Handover => self.handover(figures),
                Part::Grant => self.grant(figures),
                Part::Memory => self.memory(figures),
                Part::Restart => self.restart(figures),
                Part::Kill9 => self.kill9(figures),
            };
            if compared.is_none() {
                missing.push(test(*part));
            }
        }
        ensure!(
            missing.is_empty(),
            "Slurm has not all figures of these tests of {MEASURE}: {}; what it said of them is above",
            missing.join(", ")
        );
        Ok(())
    }

    fn number(&self, pointer: &str) -> Option<f64> {
        self.figures.pointer(pointer)?.as_f64()
    }

    fn list(&self, pointer: &str) -> Option<&Vec<Value>> {
        self.figures.pointer(pointer)?.as_array()
    }

    fn accept(&self, figures: &mut Figures) -> Option<()> {
        let rates = [
            self.number("/d_sbatch_rate_1client")?,
            self.number("/d_sbatch_rate_4client")?,
        ];
        for (clients, rate) in [1, 4].into_iter().zip(rates) {
            let how = "`sbatch` processes, from the start of the first to the end of the last";
            figures.put(&format!("slurm.accept.c{clients}"), rate, "1/s", "", how);
        }
        let best = rates[0].max(rates[1]);
        for (ours, theirs, budget) in [
            ("accept.api.c1", rates[0], ""),
            ("accept.api.c16", best, ">= 20"),
            ("accept.command.c1", rates[0], ">= 1"),
            ("accept.command.c16", best, ">= 1"),
        ] {
            let ratio = figures.get(ours)? / theirs;
            let how = "ours over sbatch's: one client's over one client's, 16 clients' over the best of one and four";
            figures.put(&format!("{ours}.to_sbatch"), ratio, "ratio", budget, how);
        }
        Some(())
    }

    fn handover(&self, figures: &mut Figures) -> Option<()> {
        let median = self.number("/handoff_release_to_grant/median")?;
        let how = "from the start of scancel of an allocation without a process to the first line of the waiting salloc's command; nothing else waits; median";
        figures.put("slurm.handover.p50_ms", median, "ms", "", how);
        let ours: Vec<String> = figures.names("handover.pending", ".p50_ms");
        for name in ours {
            let ratio = figures.get(&name)? / median;
            let budget = if name.contains("from_cancel") {
                ""
            } else {
                "<= 0.02"
            };
            figures.put(
                &format!("{name}.to_slurm"),
                ratio,
                "ratio",
                budget,
                "our median over Slurm's",
            );
        }
        Some(())
    }

    fn grant(&self, figures: &mut Figures) -> Option<()> {
        let behind = self.behind;
        let limit = STUCK_LIMIT[usize::from(!self.quick)];
        let times = self.list("/stuck_salloc_grant_main")?;
        let granted: Vec<f64> = times.iter().filter_map(Value::as_f64).collect();
        let stuck = times.len() - granted.len();
        figures.put(
            &format!("slurm.grant.behind{behind}.not_granted"),
            stuck as f64,
            "count",
            "",
            &format!(
                "salloc of one GPU, with 8 free, that was not granted within {limit} s; of {}",
                times.len()
            ),
        );
        let waited: Vec<f64> = times
            .iter()
            .map(|time| time.as_f64().unwrap_or(limit) * 1e3)
            .collect();
        let median = quantile(&waited, 0.5);
        let how =
            format!("from salloc's start to its command's, median; what was not granted counts as {limit} s");
        figures.put(
            &format!("slurm.grant.behind{behind}.p50_ms"),
            median,
            "ms",
            "",
            &how,
        );
        let ours = format!("grant.behind{behind}.command.p99_ms");
        let ratio = figures.get(&ours)? / median;
        figures.put(
            &format!("{ours}.to_slurm"),
            ratio,
            "ratio",
            "",
            "our 99th percentile over Slurm's median",
        );
        Some(())
    }

    fn memory(&self, figures: &mut Figures) -> Option<()> {
        let (jobs, mib) = (self.memory, f64::from(1 << 20));
        let idle = self.number("/h_pending_0/rss_mib")?;
        let full = self.number(&format!("/h_pending_{jobs}/rss_mib"))?;
        let how = "VmRSS of slurmctld";
        figures.put("slurm.memory.pending0.mib", idle, "MiB", "", how);
        figures.put(&format!("slurm.memory.pending{jobs}.mib"), full, "MiB", "", how);
        let each = (full - idle) * mib / jobs as f64;
        figures.put(
            &format!("slurm.memory.pending{jobs}.bytes_per_job"),
            each,
            "bytes",
            "",
            how,
        );
        for name in figures.names("memory.pending", ".bytes_per_job") {
            let ratio = figures.get(&name)? / each;
            figures.put(
                &format!("{name}.to_slurm"),
                ratio,
                "ratio",
                "",
                "ours over Slurm's",
            );
        }
        Some(())
    }

    fn restart(&self, figures: &mut Figures) -> Option<()> {
        let behind = self.behind;
        let answers = self.list("/i_restart_s/squeue_answers")?;
        let times: Vec<f64> = answers
            .iter()
            .filter_map(Value::as_f64)
            .map(|time| time * 1e3)
            .collect();
        let median = (!times.is_empty()).then(|| quantile(&times, 0.5))?;
        let how = "from the start of slurmctld to the first answer to squeue; median";
        figures.put(&format!("slurm.restart.jobs{behind}.ms"), median, "ms", "", how);
        for name in figures.names("restart.jobs", ".ms") {
            let ratio = figures.get(&name)? / median;
            let how = "ours over Slurm's, which has other numbers of jobs";
            figures.put(&format!("{name}.to_slurm"), ratio, "ratio", "", how);
        }
        Some(())
    }

    fn kill9(&self, figures: &mut Figures) -> Option<()> {
        let kills = self.list("/i2_acked_sbatch_lost_on_sigkill")?;
        let sum = |field: &str| kills.iter().map(|kill| kill[field].as_f64()).sum::<Option<f64>>();
        let how = "jobs that sbatch said were submitted, before SIGKILLs of slurmctld";
        figures.put("slurm.kill9.acknowledged", sum("acked")?, "count", "", how);
        figures.put(
            "slurm.kill9.acknowledged_lost",
            sum("lost")?,
            "count",
            "",
            "of these, not in squeue after the restart",
        );
        let sessions = self.list("/i2_live_shell_after_sigkill")?;
        let lost = sessions.iter().filter(|session| {
            session["job_after"] != "RUNNING" || session["task_alive_20s_later"] != Value::Bool(true)
        });
        let lost = lost.count() as f64;
        let how = "salloc with a running step, granted one second before the SIGKILL";
        figures.put("slurm.kill9.sessions", sessions.len() as f64, "count", "", how);
        figures.put(
            "slurm.kill9.sessions_lost",
            lost,
            "count",
            "",
            "of these, gone after the restart, or their process is",
        );
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use clap::ValueEnum;

    use super::*;

    /// What a run of `QUICK=1 measure.sh` with Debian's Slurm 22.05 left.
    const LEFT: &str = include_str!("testdata/measure-default-plain.json");

    fn measured(left: &str) -> Measured {
        Measured {
            figures: serde_json::from_str(left).expect("JSON"),
            quick: true,
            behind: 500,
            memory: 2000,
        }
    }

    /// Ours, as the parts print them.
    fn ours() -> Figures {
        let mut figures = Figures::default();
        for (name, value) in [
            ("accept.api.c1", 500.0),
            ("accept.api.c16", 3682.0),
            ("accept.command.c1", 25.0),
            ("accept.command.c16", 368.2),
            ("handover.pending0.p50_ms", 9.785),
            ("handover.pending0.from_cancel.p50_ms", 97.85),
            ("handover.pending1000.p50_ms", 19.57),
            ("grant.behind500.command.p99_ms", 60.0),
            ("memory.pending1000.bytes_per_job", 1861.0),
            ("restart.jobs2000.ms", 274.0),
        ] {
            figures.put(name, value, "", "", "");
        }
        figures
    }

    fn all() -> &'static [Part] {
        Part::value_variants()
    }

    #[test]
    fn what_a_real_slurm_left_is_compared() {
        let mut figures = ours();
        measured(LEFT).compare(all(), &mut figures).expect("all is there");
        for (name, wanted) in [
            ("slurm.accept.c1", 50.0),
            ("slurm.accept.c4", 184.1),
            ("accept.api.c1.to_sbatch", 10.0),
            ("accept.api.c16.to_sbatch", 20.0),
            ("accept.command.c1.to_sbatch", 0.5),
            ("accept.command.c16.to_sbatch", 2.0),
            ("slurm.handover.p50_ms", 978.5),
            ("handover.pending0.p50_ms.to_slurm", 0.01),
            ("handover.pending1000.p50_ms.to_slurm", 0.02),
            ("handover.pending0.from_cancel.p50_ms.to_slurm", 0.1),
            ("slurm.grant.behind500.not_granted", 2.0),
            ("slurm.grant.behind500.p50_ms", 60_000.0),
            ("grant.behind500.command.p99_ms.to_slurm", 0.001),
            ("slurm.memory.pending0.mib", 15.9),
            ("slurm.memory.pending2000.bytes_per_job", 3722.4448),
            ("slurm.restart.jobs500.ms", 137.0),
            ("restart.jobs2000.ms.to_slurm", 2.0),
            ("slurm.kill9.acknowledged", 379.0),
            ("slurm.kill9.acknowledged_lost", 100.0),
            ("slurm.kill9.sessions", 2.0),
            ("slurm.kill9.sessions_lost", 2.0),
        ] {
            let value = figures.get(name).unwrap_or_else(|| panic!("no {name}"));
            assert!((value - wanted).abs() < 1e-6, "{name}: {value}, and not {wanted}");
        }
        assert_eq!(figures.get("slurm.accept.c16"), None);
    }

    #[test]
    fn what_was_not_measured_is_named() {
        let mut left: Value = serde_json::from_str(LEFT).expect("JSON");
        let fields = left.as_object_mut().expect("an object");
        fields.remove("handoff_release_to_grant");
        fields.insert(
            "i_restart_s".into(),
            serde_json::json!({"squeue_answers": [null]}),
        );
        fields.insert("i2_live_shell_after_sigkill".into(), serde_json::json!("none"));
        let why = measured(&left.to_string())
            .compare(all(), &mut ours())
            .expect_err("not all is there");
        let why = why.to_string();
        for test in ["handoff", "restart", "lossy"] {
            assert!(why.contains(test), "{why}");
        }
        assert!(!why.contains("sbatch") && !why.contains("stuck"), "{why}");
        // Of what was not asked for nothing is missed.
        measured("{}")
            .compare(&[], &mut Figures::default())
            .expect("nothing is wanted");
    }

    #[test]
    fn memory_is_looked_at_first() {
        assert_eq!(
            tests_of(all()),
            ["mem", "sbatch", "handoff", "stuck", "restart", "lossy"]
        );
    }

    /// A directory of scripts that do as told.
    fn peer(start: &str, measure: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a directory");
        for (name, text) in [(START, start), (MEASURE, measure)] {
            let path = dir.path().join(name);
            std::fs::write(&path, format!("#!/bin/bash\n{text}\n")).expect("written");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("own file");
        }
        dir
    }

    fn options(line: &str) -> Options {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            options: Options,
        }
        let words = std::iter::once("queue").chain(line.split_whitespace());
        <Line as clap::Parser>::parse_from(words).options
    }

    /// Once one after another: what is to be done at the end is the program's, and there is one.
    #[test]
    fn a_slurm_is_ended_whatever_it_did() {
        let log = tempfile::NamedTempFile::new().expect("a file");
        let note = format!("echo \"$0 $* $NPEND $NMEM $QUICK\" >>{}", log.path().display());
        let measure = |start: &str, measure: &str| {
            std::fs::write(log.path(), "").expect("written");
            let dir = peer(
                &format!("{note}\n[ \"$1\" = stop ] && exit 0\n{start}"),
                &format!("{note}\n{measure}"),
            );
            let options = options("--quick --only accept,memory");
            let parts = options.parts();
            let outcome = Peer::find(dir.path())
                .expect("it is there")
                .measure(&parts, &options);
            let told = std::fs::read_to_string(log.path()).expect("read");
            let base = told.split_whitespace().nth(4).expect("a directory").to_owned();
            assert!(!Path::new(&base).exists(), "{base} is left behind");
            let last = told.lines().last().unwrap_or_default();
            assert!(
                last.contains(&format!("{START} stop 16 8 {base}")),
                "it is not ended: {told}"
            );
            (outcome, told)
        };
        let (outcome, told) = measure("true", "echo '{\"a\": 1}' >\"$1/measure-tuned-plain.json\"");
        assert_eq!(outcome.expect("measured").figures["a"], 1);
        assert!(told.contains(&format!("{MEASURE} /")), "{told}");
        assert!(told.contains(" mem sbatch 500 2000 1"), "{told}");
        for (start, end, words) in [
            ("exit 1", "true", "did not start"),
            ("true", "exit 3", "exit status: 3"),
            ("true", "true", "no figures"),
            ("true", "echo '{' >\"$1/measure-x.json\"", "no JSON"),
        ] {
            let (outcome, told) = measure(start, end);
            let why = format!("{:#}", outcome.err().unwrap_or_else(|| panic!("{words}: {told}")));
            assert!(why.contains(words), "{why}");
        }
    }

    #[test]
    fn scripts_that_are_not_there_are_named() {
        let dir = peer("true", "true");
        std::fs::remove_file(dir.path().join(MEASURE)).expect("removed");
        let why = Peer::find(dir.path()).err().expect("refused").to_string();
        assert!(
            why.contains(MEASURE) && why.contains(&dir.path().display().to_string()),
            "{why}"
        );
    }
}
