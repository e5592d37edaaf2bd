//! What there is of a batch job's command: its script, how it ended, and what it wrote.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use carrel_core::model::ids::JobKey;
use carrel_proto::inside::{RANKS_BEGUN, RANKS_DIR};
use carrel_proto::v1::MainEnd;
use prost::Message;

use super::Runtime;
use super::record::dir_name;

/// Where a container finds the script that it runs, by the name that Slurm gives it.
pub const SCRIPT: &str = "/.carrel/api/slurm_script";
/// The host's name of it, in the job's directory.
pub(super) const SCRIPT_NAME: &str = "api/slurm_script";
/// What carrel-init writes about its end, in the run directory.
const END: &str = "end.pb";
/// Longest such message: some sentences.
const MAX_END: u64 = 64 * 1024;
/// What carrel-init's logger keeps of the output, in the run directory.
pub(crate) const OUTPUT: [&str; 2] = ["output.0", "output.1"];
/// Output of jobs that are over is kept for so long,
const KEPT_FOR: Duration = Duration::from_hours(14 * 24);
/// and of so many bytes in all: what is oldest goes first.
const KEPT_BYTES: u64 = 4 << 30;

/// How a job's command ended by itself, or that it could not begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandEnd {
    /// Exit code, or 128 + signal.
    pub code: i32,
    /// Why it could not begin, or what ended it; may be empty.
    pub detail: String,
}

impl Runtime {
    /// How a job's command ended; none: it did not, or it was asked to, or there is none.
    pub fn end_of_command(&self, key: JobKey) -> Option<CommandEnd> {
        let path = self.run_dir(key).join(END);
        let length = fs::metadata(&path).ok()?.len();
        if length == 0 || length > MAX_END {
            return None;
        }
        let end = MainEnd::decode(&*fs::read(path).ok()?).ok()?;
        let detail = match (end.failure, end.signal) {
            (failure, 0) => failure,
            (_, signal) => format!("by signal {signal}"),
        };
        let code = match end.signal {
            0 => i32::try_from(end.status).unwrap_or(i32::MAX),
            signal => 128 + signal,
        };
        Some(CommandEnd { code, detail })
    }

    /// Where the output of a job is that has one: of one that runs, or is over.
    pub(crate) fn output_dir(&self, key: JobKey) -> Option<PathBuf> {
        let kept = self.logs_dir().join(dir_name(key));
        [self.run_dir(key), kept]
            .into_iter()
            .find(|dir| dir.join(OUTPUT[0]).exists())
    }

    /// Where what the tasks of a job's steps wrote here is, if any has begun: of one that runs, or is over.
    pub(crate) fn ranks_dir(&self, key: JobKey) -> Option<PathBuf> {
        let kept = self.logs_dir().join(dir_name(key));
        [self.run_dir(key), kept]
            .into_iter()
            .map(|dir| dir.join(RANKS_DIR))
            .find(|dir| dir.join(RANKS_BEGUN).exists())
    }

    pub(super) fn logs_dir(&self) -> PathBuf {
        self.inner.options.state_dir.join("logs")
    }
}

/// Keeps the output of a job that is over, if it has any. May be repeated.
pub(super) fn keep_output(run_dir: &Path, logs: &Path, key: JobKey) -> Result<()> {
    let ranks = run_dir.join(RANKS_DIR);
    let has_ranks = ranks.join(RANKS_BEGUN).exists();
    let has_output = run_dir.join(OUTPUT[0]).exists();
    if !has_ranks && !has_output {
        return Ok(());
    }
    let dir = logs.join(dir_name(key));
    fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
    if has_ranks {
        // It was open to the user, with nothing but process 1 on the way.
        let shut = fs::set_permissions(&ranks, fs::Permissions::from_mode(0o700));
        shut.and_then(|()| fs::rename(&ranks, dir.join(RANKS_DIR)))
            .context("keeping the output of the job's ranks")?;
    }
    if !has_output {
        return Ok(());
    }
    // The first one last: where it is, all is.
    for name in OUTPUT.iter().rev() {
        match fs::rename(run_dir.join(name), dir.join(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).context("keeping the job's output");
            }
            _ => {}
        }
    }
    Ok(())
}

/// Drops what is too old, or too much, of the output of jobs that are over.
pub(super) fn prune(logs: &Path) -> Result<()> {
    prune_to(logs, KEPT_FOR, KEPT_BYTES)
}

fn prune_to(logs: &Path, kept_for: Duration, kept_bytes: u64) -> Result<()> {
    let listed = match fs::read_dir(logs) {
        Ok(listed) => listed,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).context("looking at the kept output"),
    };
    let mut all: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
    for entry in listed {
        let dir = entry?.path();
        let mut files: Vec<fs::Metadata> = OUTPUT
            .iter()
            .filter_map(|name| fs::metadata(dir.join(name)).ok())
            .collect();
        if let Ok(ranks) = fs::read_dir(dir.join(RANKS_DIR)) {
            files.extend(ranks.filter_map(|entry| entry.and_then(|entry| entry.metadata()).ok()));
        }
        let (mut last, mut bytes) = (SystemTime::UNIX_EPOCH, 0);
        for file in files {
            last = last.max(file.modified()?);
            bytes += file.len();
        }
        all.push((last, bytes, dir));
    }
    // The newest first.
    all.sort_by(|one, other| other.cmp(one));
    let now = SystemTime::now();
    let mut sum = 0;
    for (last, bytes, dir) in all {
        sum += bytes;
        let is_old = now.duration_since(last).is_ok_and(|age| age > kept_for);
        if is_old || sum > kept_bytes {
            fs::remove_dir_all(&dir).with_context(|| format!("dropping {}", dir.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use carrel_core::model::ids::{Generation, JobId};

    use super::*;

    fn key(job: u64) -> JobKey {
        JobKey {
            job: JobId(job),
            generation: Generation(1),
        }
    }

    #[test]
    fn ranks_output_is_kept_and_counts() {
        let dir = tempfile::tempdir().expect("a directory");
        let (run, logs) = (dir.path().join("run"), dir.path().join("logs"));
        for job in 1..=2 {
            let ranks = run.join(RANKS_DIR);
            fs::create_dir_all(&ranks).expect("made");
            fs::write(ranks.join("0.0"), [0; 50]).expect("written");
            if job == 1 {
                keep_output(&run, &logs, key(9)).expect("none has begun");
                assert!(!logs.exists());
            }
            fs::write(ranks.join(RANKS_BEGUN), []).expect("written");
            keep_output(&run, &logs, key(job)).expect("kept");
            keep_output(&run, &logs, key(job)).expect("kept");
            let kept = logs.join(dir_name(key(job))).join(RANKS_DIR);
            let mode = fs::metadata(&kept).expect("kept").permissions().mode();
            assert_eq!(mode & 0o777, 0o700);
            assert!(kept.join("0.0").exists() && !ranks.exists());
        }
        let long = Duration::from_secs(u64::from(u32::MAX));
        prune_to(&logs, long, 99).expect("pruned");
        assert_eq!(fs::read_dir(&logs).expect("listed").count(), 1);
    }

    #[test]
    fn output_is_kept_until_it_is_old_or_too_much() {
        let dir = tempfile::tempdir().expect("a directory");
        let (run, logs) = (dir.path().join("run"), dir.path().join("logs"));
        fs::create_dir(&run).expect("made");
        keep_output(&run, &logs, key(1)).expect("nothing to keep");
        assert!(!logs.exists());
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        for job in 1..=4 {
            for name in OUTPUT {
                let file = fs::File::create(run.join(name)).expect("made");
                file.set_len(50).expect("written");
                file.set_modified(at(1_000_000_000 + job)).expect("set");
            }
            keep_output(&run, &logs, key(job)).expect("kept");
            // Cut off and repeated.
            keep_output(&run, &logs, key(job)).expect("kept");
        }
        let kept = || {
            (1..=4)
                .filter(|job| logs.join(dir_name(key(*job))).exists())
                .collect::<Vec<_>>()
        };
        let long = Duration::from_secs(u64::from(u32::MAX));
        prune_to(&logs, long, 300).expect("pruned");
        assert_eq!(kept(), [2, 3, 4]);
        prune_to(&logs, Duration::from_secs(1), 300).expect("pruned");
        assert_eq!(kept(), [] as [u64; 0]);
    }
}
