//! What users do meanwhile.

use std::time::Duration;

use serde_json::Value;

use super::Stage;
use crate::sim::rng::Rng;
use crate::user::ALICE;
use crate::wait;

/// Threads that hold GPUs for a moment, again and again.
pub(super) const HOLDERS: usize = 3;
/// Threads that keep book of what they were told.
pub(super) const BOOKKEEPERS: usize = 2;

/// Bytes of one transfer: long enough to meet a kill now and then.
const TRANSFER: usize = 48 << 20;

/// Locks its GPUs by files in the home, which all of a user's jobs share; the lock lives as long as
/// a process that has it. The hosts are of one description: a GPU is known by its host and its UUID.
const LOCK: &str = r#"
mkdir -p ~/held
for gpu in ${CUDA_VISIBLE_DEVICES//,/ }; do
  gpu=$SLURMD_NODENAME-$gpu
  exec {lock}>>~/held/$gpu
  flock -n $lock || echo "$gpu was given to job $SLURM_JOB_ID while another held it" >>~/violations
done
"#;

/// A session that is to live through all of it.
pub(super) struct Kept {
    name: String,
    job: Value,
}

impl Kept {
    /// Opens it, with a process in it that holds its GPU.
    pub fn open(stage: &Stage, n: usize) -> Self {
        let name = format!("kept-{n}");
        let request = ["--editor", "none", "--gpus", "1", "-c", "1", "--mem", "256M"];
        stage.carrel(["open", &name]).args(request).ok();
        let holder = format!(
            "cat >/tmp/hold <<'END'\n{LOCK}\nexec sleep 1000000\nEND\n\
             setsid bash /tmp/hold </dev/null >/dev/null 2>&1 & echo $! >/tmp/holder"
        );
        stage.ssh(&name, &holder).ok();
        let record = stage.json(ALICE, &["show", &name]);
        let job = record.expect("the broker runs")["job"]["id"].clone();
        Self { name, job }
    }

    /// Whether it is the same job, with the same process.
    pub fn look(&self, stage: &Stage) {
        let record = wait::poll(wait::PATIENCE, || stage.json(ALICE, &["show", &self.name]));
        let record = record.unwrap_or_default();
        if record["state"] != "RUNNING" || record["job"]["id"] != self.job {
            stage
                .findings()
                .session_lost(format!("{}, once job {}: {record}", self.name, self.job));
            return;
        }
        let holds = wait::poll(wait::PATIENCE, || {
            let output = stage
                .ssh(&self.name, "kill -0 $(cat /tmp/holder) && echo holds")
                .run();
            (output.stdout == "holds\n").then_some(())
        });
        if holds.is_none() {
            stage
                .findings()
                .session_lost(format!("{}: its process is gone", self.name));
        }
    }

    /// Ends it.
    pub fn remove(self, stage: &Stage) {
        stage.carrel(["rm", "-f", &self.name]).run();
    }
}

/// Allocates, holds for a moment, and frees, until the end; then says what the locks found.
pub(super) fn hold(stage: &Stage, rng: &mut Rng, n: usize) {
    while !stage.is_ending() {
        let gpus = rng.below(4) + 1;
        let script = format!("{LOCK}\nsleep 0.{}", rng.below(10));
        let command = stage
            .carrel(["alloc", "-c", "1", "--mem", "64M", "--gpus", &gpus.to_string()])
            .args(["--name", &format!("held-{n}"), "--", "bash", "-c", &script]);
        // It may meet a kill and fail: then nothing was promised.
        if command.run().code == 0 {
            stage.findings().done("allocations held");
        } else {
            free_name(stage, &format!("held-{n}"));
        }
    }
    let violations = stage.cluster().sandbox().home(ALICE).join("violations");
    if n == 0
        && let Ok(text) = std::fs::read_to_string(violations)
    {
        for line in text.lines() {
            stage.findings().double_held(line.into());
        }
    }
}

/// Ends a session of this name, if there is one, however long that takes.
fn free_name(stage: &Stage, name: &str) -> bool {
    let freed = wait::poll(wait::PATIENCE, || {
        let code = stage.carrel(["rm", "-f", name]).run().code;
        let gone = stage
            .json(ALICE, &["ps"])?
            .as_array()?
            .iter()
            .all(|job| job["name"] != *name);
        (code == 0 || gone).then_some(())
    });
    freed.is_some()
}

/// Makes, extends and removes sessions, and holds the broker to what it has said.
pub(super) fn keep_books(stage: &Stage, n: usize) {
    for turn in 0_u64.. {
        if stage.is_ending() {
            return;
        }
        let name = format!("book-{n}-{turn}");
        let request = [
            "--no-shell",
            "-c",
            "1",
            "--mem",
            "64M",
            "-t",
            "30",
            "--name",
            &name,
        ];
        let allocated = stage.carrel(["alloc"]).args(request).run();
        if allocated.code == 0 {
            stage.findings().done("sessions acknowledged");
            there(stage, &name, |_| true, "was granted");
            extend(stage, &name);
        }
        if free_name(stage, &name) {
            stage.findings().done("removals acknowledged");
            // It may still be on its way out.
            let back = show(stage, &name).is_some_and(|record| record["state"] != "STOPPING");
            if back {
                stage
                    .findings()
                    .acknowledged_lost(format!("{name} was removed, and is there again"));
            }
        }
    }
}

/// Extends a session and, if that was granted, looks for it.
fn extend(stage: &Stage, name: &str) {
    let Some(before) = show(stage, name).and_then(|record| deadline(&record)) else {
        return;
    };
    if stage.carrel(["extend", name, "60"]).run().code == 0 {
        stage.findings().done("extensions acknowledged");
        let later = |record: &Value| deadline(record).is_some_and(|now| now > before);
        there(stage, name, later, "was extended");
    }
}

fn deadline(record: &Value) -> Option<String> {
    record["job"]["deadline"].as_str().map(Into::into)
}

/// A session's record, as soon as a broker says something about it; none: it says that there is none.
fn show(stage: &Stage, name: &str) -> Option<Value> {
    wait::poll(wait::PATIENCE, || {
        let record = stage.json(ALICE, &["show", name]);
        // No answer may mean no broker; a list without it means that it is not there.
        record.map(Some).or_else(|| {
            let jobs = stage.json(ALICE, &["ps"])?;
            let known = jobs.as_array()?.iter().any(|job| job["name"] == *name);
            (!known).then_some(None)
        })
    })?
}

/// Finds fault with a session that is not as the broker has said.
fn there(stage: &Stage, name: &str, is: impl Fn(&Value) -> bool, said: &str) {
    let record = show(stage, name);
    if !record.as_ref().is_some_and(is) {
        stage
            .findings()
            .acknowledged_lost(format!("{name} {said}; now it is {record:?}"));
    }
}

/// Sends bytes into a session, and has them summed there, until the end.
pub(super) fn transfer(stage: &Stage, into: &Kept) {
    let mut rng = Rng::new(1);
    let bytes: Vec<u8> = (0..TRANSFER / 8).flat_map(|_| rng.bits().to_le_bytes()).collect();
    // What one way gives is held against what the other takes.
    let sum = |text: &str| text.split_whitespace().next().map(str::to_owned);
    let own = stage.cluster().cmd(ALICE, "sha256sum").stdin(bytes.clone());
    let expected = sum(&own.ok());
    while !stage.is_ending() {
        let output = stage
            .ssh(&into.name, "echo connected; sha256sum")
            .stdin(bytes.clone())
            .run();
        let Some(summed) = output.stdout.strip_prefix("connected\n") else {
            // It never came about: nothing was promised. Not in a loop as fast as refusals come.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        if output.code == 0 && sum(summed) == expected {
            stage.findings().done("transfers");
        } else {
            stage.findings().transfer_lost(format!(
                "into {}: code {}: {}",
                into.name, output.code, output.stderr
            ));
        }
    }
}
