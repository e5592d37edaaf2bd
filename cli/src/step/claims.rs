//! What the steps of a job hold of one node's CPUs and GPUs: a file in the container, which every step there locks, reads
//! and writes. What a step held that is gone counts for nothing, so nothing has to be tidied up.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use crate::error::{Context as _, Result};

/// What a node of the allocation has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Whole {
    /// CPUs by number, where the container has them to itself; else as many numbers as it may use.
    pub cpus: Vec<u32>,
    /// GPUs as `CUDA_VISIBLE_DEVICES` names them.
    pub gpus: Vec<String>,
}

/// What a step needs of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// CPUs of its own.
    pub cpus: usize,
    /// GPUs of its own; none: it uses whatever there is.
    pub gpus: Option<usize>,
    /// Beside others.
    pub overlap: bool,
}

/// What it got.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Number of the step.
    pub step: u32,
    /// CPUs, as many as needed.
    pub cpus: Vec<u32>,
    /// GPUs; none: whatever there is.
    pub gpus: Option<Vec<String>>,
}

/// How a claim went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// It is held until this process ends.
    Yes(Claim),
    /// Others hold it: what, for people.
    Busy(String),
    /// There is not so much: why.
    Never(String),
}

/// The file's content.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Kept {
    /// The next step's number.
    next: u32,
    steps: Vec<Held>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Held {
    step: u32,
    holder: Process,
    overlap: bool,
    cpus: Vec<u32>,
    gpus: Vec<String>,
}

/// A process, told from a later one with its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    pid: u32,
    /// Clock ticks since boot (`man proc_pid_stat`, field 22).
    started: u64,
}

impl Process {
    /// This one.
    pub fn own() -> Self {
        let pid = std::process::id();
        Self {
            pid,
            started: started(pid).unwrap_or(0),
        }
    }

    fn lives(self) -> bool {
        started(self.pid) == Some(self.started)
    }
}

/// None: there is no such process, or it has only to be waited for.
fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in brackets, may hold anything.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    if matches!(fields.next(), Some("Z" | "X")) {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Tries to hold what a step needs, and gives it a number unless it has one.
///
/// # Errors
/// The file cannot be used.
pub fn claim(file: &Path, holder: Process, step: Option<u32>, whole: &Whole, need: Need) -> Result<Claimed> {
    let mut file = open(file)?;
    let mut kept = read(&mut file)?;
    kept.steps.retain(|held| held.holder.lives());
    let number = step.unwrap_or(kept.next);
    let claimed = decide(&kept, number, whole, need);
    if let Claimed::Yes(claim) = &claimed {
        kept.next = kept.next.max(number.saturating_add(1));
        if need.cpus > 0 || need.gpus.is_some() {
            kept.steps.push(Held {
                step: number,
                holder,
                overlap: need.overlap,
                cpus: claim.cpus.clone(),
                gpus: claim.gpus.clone().unwrap_or_default(),
            });
        }
        write(&mut file, &kept)?;
    }
    Ok(claimed)
}

fn decide(kept: &Kept, step: u32, whole: &Whole, need: Need) -> Claimed {
    let gpus = need.gpus.unwrap_or(0);
    if need.cpus > whole.cpus.len() || gpus > whole.gpus.len() {
        return Claimed::Never(format!(
            "it needs {}, and the job has {} here",
            amount(need.cpus, gpus),
            amount(whole.cpus.len(), if gpus == 0 { 0 } else { whole.gpus.len() })
        ));
    }
    let alone = || kept.steps.iter().filter(|held| !held.overlap);
    let mut uses: BTreeMap<u32, usize> = whole.cpus.iter().map(|cpu| (*cpu, 0)).collect();
    for cpu in kept.steps.iter().flat_map(|held| &held.cpus) {
        *uses.entry(*cpu).or_default() += 1;
    }
    let taken: BTreeSet<u32> = alone().flat_map(|held| held.cpus.iter().copied()).collect();
    let taken_gpus: BTreeSet<&String> = alone().flat_map(|held| &held.gpus).collect();
    let mut cpus: Vec<u32> = whole.cpus.clone();
    let mut free_gpus: Vec<&String> = whole.gpus.iter().collect();
    if need.overlap {
        // The least used first; the sort keeps neighbours together.
        cpus.sort_by_key(|cpu| uses.get(cpu).copied().unwrap_or(0));
        free_gpus.sort_by_key(|gpu| taken_gpus.contains(gpu));
    } else {
        cpus.retain(|cpu| !taken.contains(cpu));
        free_gpus.retain(|gpu| !taken_gpus.contains(gpu));
    }
    if cpus.len() < need.cpus || free_gpus.len() < gpus {
        let steps: BTreeSet<u32> = alone().map(|held| held.step).collect();
        let steps: Vec<String> = steps.iter().map(ToString::to_string).collect();
        return Claimed::Busy(format!(
            "it needs {}, of which {} are free: step {} has the others",
            amount(need.cpus, gpus),
            amount(cpus.len(), if gpus == 0 { 0 } else { free_gpus.len() }),
            steps.join(", ")
        ));
    }
    cpus.truncate(need.cpus);
    cpus.sort_unstable();
    free_gpus.truncate(gpus);
    // In the order in which programs count them.
    let gpus = whole.gpus.iter().filter(|gpu| free_gpus.contains(gpu)).cloned();
    Claimed::Yes(Claim {
        step,
        cpus,
        gpus: need.gpus.map(|_| gpus.collect()),
    })
}

fn amount(cpus: usize, gpus: usize) -> String {
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    let cpus_text = format!("{cpus} CPU{}", plural(cpus));
    match gpus {
        0 => cpus_text,
        _ => format!("{cpus_text} and {gpus} GPU{}", plural(gpus)),
    }
}

fn open(path: &Path) -> Result<Flock<File>> {
    let what = || format!("the list of this job's steps, {}", path.display());
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .context(what())?;
    Flock::lock(file, FlockArg::LockExclusive)
        .map_err(|(_, error)| std::io::Error::from(error))
        .context(what())
}

/// What cannot be read was cut off in the middle of a write: those who wrote it are gone or ask again.
fn read(file: &mut File) -> Result<Kept> {
    let mut text = String::new();
    file.read_to_string(&mut text)
        .context("the list of this job's steps")?;
    Ok(serde_json::from_str(&text).unwrap_or_default())
}

fn write(file: &mut File, kept: &Kept) -> Result<()> {
    let write = |file: &mut File| {
        let text = serde_json::to_vec(kept)?;
        file.seek(SeekFrom::Start(0))?;
        file.set_len(0)?;
        file.write_all(&text)
    };
    write(file).context("the list of this job's steps")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole() -> Whole {
        Whole {
            cpus: vec![4, 5, 6, 7],
            gpus: vec!["GPU-b".into(), "GPU-a".into()],
        }
    }

    fn need(cpus: usize, gpus: Option<usize>) -> Need {
        Need {
            cpus,
            gpus,
            overlap: false,
        }
    }

    #[test]
    fn steps_hold_what_others_do_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("steps");
        let own = Process::own();
        let ask = |holder, need| claim(&file, holder, None, &whole(), need).expect("claimed");
        let Claimed::Yes(first) = ask(own, need(2, Some(1))) else {
            panic!("free")
        };
        assert_eq!((first.step, &first.cpus[..]), (0, &[4, 5][..]));
        assert_eq!(first.gpus, Some(vec!["GPU-b".to_owned()]));
        let Claimed::Busy(why) = ask(own, need(3, None)) else {
            panic!("busy")
        };
        assert!(why.contains("needs 3 CPUs") && why.contains("step 0"), "{why}");
        assert!(matches!(ask(own, need(1, Some(2))), Claimed::Busy(_)));
        assert!(matches!(ask(own, need(5, None)), Claimed::Never(_)));
        let beside = Need {
            overlap: true,
            ..need(3, Some(2))
        };
        let Claimed::Yes(beside) = ask(own, beside) else {
            panic!("overlaps")
        };
        assert_eq!((beside.step, &beside.cpus[..]), (1, &[4, 6, 7][..]));
        // What is beside others keeps nobody out.
        let Claimed::Yes(third) = ask(own, need(2, Some(1))) else {
            panic!("free")
        };
        assert_eq!(
            (third.cpus, third.gpus),
            (vec![6, 7], Some(vec!["GPU-a".to_owned()]))
        );
    }

    #[test]
    fn what_is_gone_holds_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("steps");
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("sleep");
        let process = Process {
            pid: child.id(),
            started: started(child.id()).expect("it runs"),
        };
        let ask = || claim(&file, process, None, &whole(), need(4, None)).expect("claimed");
        assert!(matches!(ask(), Claimed::Yes(_)));
        assert!(matches!(ask(), Claimed::Busy(_)));
        child.kill().expect("killed");
        child.wait().expect("waited");
        let Claimed::Yes(claim) = ask() else {
            panic!("free")
        };
        assert_eq!(claim.step, 1);
        // A step keeps the number that another node gave it.
        let numbered = super::claim(&file, process, Some(9), &whole(), need(0, None)).expect("claimed");
        assert!(matches!(numbered, Claimed::Yes(claim) if claim.step == 9));
        assert!(matches!(ask(), Claimed::Yes(claim) if claim.step == 10));
        std::fs::write(&file, "{cut").expect("written");
        assert!(matches!(ask(), Claimed::Yes(_)));
    }
}
