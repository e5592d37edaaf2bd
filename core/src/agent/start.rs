//! Starts: when everything that a job needs is free.

use super::entry::{Entry, Phase};
use super::{Action, Agent, Now, RETRY_MS, Removal};
use crate::model::gpu::{GpuInfo, MigInstance, MigProfile};
use crate::model::gpu_unit::{Slice, WHOLE_MILLI};
use crate::model::ids::{GpuUuid, JobKey, SessionId};
use crate::model::node::{DesiredJob, EndCause};

/// Whether a GPU can be given in this way.
fn can_be(gpu: &GpuInfo, slice: &Slice) -> Result<(), String> {
    let index = gpu.index;
    match (slice, &gpu.mig) {
        (Slice::Whole, None) => Ok(()),
        (Slice::Whole, Some(_)) => Err(format!("GPU {index} is in MIG mode and is not given as a whole")),
        (Slice::Share { sharing, .. }, _) if gpu.mig.is_some() || gpu.sharing != Some(*sharing) => {
            Err(format!("GPU {index} is not shared by {}", sharing.name()))
        }
        (Slice::Share { .. }, _) => Ok(()),
        (Slice::Mig { profile, .. }, None) => Err(format!(
            "GPU {index} is not in MIG mode, and has no slice {profile}"
        )),
        (Slice::Mig { profile, start, .. }, Some(mig)) => {
            let there = |instance: &&MigInstance| instance.profile == *profile && instance.start == *start;
            if mig.instances.iter().any(|instance| there(&instance)) {
                return Ok(());
            }
            if !mig.recut {
                return Err(format!(
                    "GPU {index} has no slice {slice}, and this node's configuration does not let it be cut anew"
                ));
            }
            let offered = |offer: &&MigProfile| offer.name == *profile && offer.starts.contains(start);
            match mig.profiles.iter().find(offered) {
                Some(_) => Ok(()),
                None => Err(format!("GPU {index} cannot be cut into {slice}")),
            }
        }
    }
}

/// Why a job is not started.
enum WhyNot {
    /// It may be, later.
    Wait(String),
    /// It never can be, on this node.
    Never(String),
}

impl Agent {
    pub(super) fn start_what_can(&mut self, now: Now) {
        let keys: Vec<JobKey> = self.entries.keys().copied().collect();
        for key in keys {
            let entry = &self.entries[&key];
            let Some(job) = entry.job.clone() else { continue };
            match entry.phase {
                Phase::Waiting => {}
                Phase::Held { retry_at } if retry_at <= now.boot_ms => {}
                Phase::Held { .. }
                | Phase::Starting
                | Phase::Ready
                | Phase::Stopping { .. }
                | Phase::Removing { .. }
                | Phase::Released => continue,
            }
            match self.why_not(now, &job) {
                Ok(()) => self.start(job),
                Err(WhyNot::Wait(why)) => self.wait(now, key, why),
                Err(WhyNot::Never(why)) => self.remove(now, key, EndCause::StartFailed, &why),
            }
        }
    }

    fn start(&mut self, job: DesiredJob) {
        self.bind(&job);
        let places = self.places_of(&job.gpus);
        let Some(entry) = self.entries.get_mut(&job.key) else {
            return;
        };
        let held = entry.phase.holds();
        entry.phase = Phase::Starting;
        let moved = entry.holding.places != places;
        entry.holding.places = places;
        if !held {
            entry.say("starting");
            self.changed();
        } else if moved {
            self.persist(false);
        }
        self.act(Action::Start(Box::new(job)));
    }

    fn wait(&mut self, now: Now, key: JobKey, why: String) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        if let Phase::Held { retry_at } = &mut entry.phase {
            *retry_at = now.boot_ms + RETRY_MS;
        }
        self.out.report |= entry.say(why);
    }

    fn why_not(&self, now: Now, job: &DesiredJob) -> Result<(), WhyNot> {
        let lease = self.lease.end.is_some_and(|end| end > now.boot_ms);
        if !lease {
            return Err(WhyNot::Wait(
                "waits for an answer of the broker to this node's reports".to_owned(),
            ));
        }
        self.fits(job).map_err(WhyNot::Never)?;
        let others = || {
            let held = self
                .entries
                .iter()
                .filter(|(key, entry)| **key != job.key && entry.phase.holds());
            held.map(|(key, entry)| (*key, entry))
        };
        for unit in &job.gpus {
            let gpu = self.inventory.gpus.iter().find(|gpu| gpu.uuid == unit.gpu);
            if let Some((gpu, (other, former))) =
                gpu.and_then(|gpu| Some((gpu, self.former_in_place_of(gpu)?)))
                && other != job.key
            {
                let (index, other) = (gpu.index, other.job);
                let why = format!("waits for job {other} to release GPU {index}, which was {former}");
                return Err(WhyNot::Wait(why));
            }
            let held = |entry: &Entry| entry.holding.gpus.iter().any(|held| held.excludes(unit));
            let anothers = |entry: &Entry| {
                let (user, units) = (entry.holding.user.as_ref(), &entry.holding.gpus);
                let mut units = units.iter();
                units.any(|held| held.is_anothers(user, unit, Some(&job.owner)))
            };
            if let Some((other, _)) = others().find(|(_, entry)| anothers(entry)) {
                let gpu = self.index_of(&unit.gpu);
                let why = format!(
                    "waits for job {} to release GPU {gpu}: MPS serves one user at a time",
                    other.job
                );
                return Err(WhyNot::Wait(why));
            }
            let overdrawn = |entry: &Entry| entry.holding.gpus.iter().any(|held| held.gpu == unit.gpu);
            let there = others().flat_map(|(_, entry)| &entry.holding.gpus);
            let there = there.filter(|held| held.gpu == unit.gpu).chain([unit]);
            let shares: u32 = there.map(|held| held.slice.share_milli()).sum();
            let too_many = shares > u32::from(WHOLE_MILLI);
            let in_the_way = others().find(|(_, entry)| held(entry) || too_many && overdrawn(entry));
            if let Some((other, _)) = in_the_way {
                let gpu = self.index_of(&unit.gpu);
                let why = format!("waits for job {} to release GPU {gpu}", other.job);
                return Err(WhyNot::Wait(why));
            }
        }
        if job.session.is_some()
            && let Some((other, _)) = others().find(|(_, entry)| entry.holding.session == job.session)
        {
            return Err(WhyNot::Wait(format!(
                "waits for job {} to release the session's files",
                other.job
            )));
        }
        let cpus: u64 = others().map(|(_, entry)| u64::from(entry.holding.cpus)).sum();
        if cpus + u64::from(job.cpus) > u64::from(self.inventory.cpus) {
            return Err(WhyNot::Wait(format!(
                "waits for {}",
                self.holders_of("CPUs", job.key)
            )));
        }
        let memory: u128 = others()
            .map(|(_, entry)| u128::from(entry.holding.memory_bytes))
            .sum();
        if memory + u128::from(job.memory_bytes) > u128::from(self.inventory.memory_bytes) {
            return Err(WhyNot::Wait(format!(
                "waits for {}",
                self.holders_of("memory", job.key)
            )));
        }
        Ok(())
    }

    /// Whether the node, empty, could hold it.
    fn fits(&self, job: &DesiredJob) -> Result<(), String> {
        for (n, unit) in job.gpus.iter().enumerate() {
            if job.gpus[..n].iter().any(|other| other.excludes(unit)) {
                return Err(format!("GPU {unit} is asked for twice"));
            }
            let Some(gpu) = self.inventory.gpus.iter().find(|gpu| gpu.uuid == unit.gpu) else {
                return Err(format!("this node has no GPU {}", unit.gpu));
            };
            if let Some(reason) = &gpu.drained {
                return Err(format!("GPU {} is drained: {reason}", gpu.index));
            }
            can_be(gpu, &unit.slice)?;
        }
        if job.cpus > self.inventory.cpus {
            return Err(format!(
                "it needs {} CPUs and this node offers {}",
                job.cpus, self.inventory.cpus
            ));
        }
        if job.memory_bytes > self.inventory.memory_bytes {
            let (needs, has) = (job.memory_bytes >> 20, self.inventory.memory_bytes >> 20);
            return Err(format!(
                "it needs {needs} MiB of memory and this node offers {has} MiB"
            ));
        }
        Ok(())
    }

    /// The driver's index of a GPU, for people; its UUID where it is not there.
    fn index_of(&self, uuid: &GpuUuid) -> String {
        let known = self.inventory.gpus.iter().find(|gpu| gpu.uuid == *uuid);
        known.map_or_else(|| uuid.to_string(), |gpu| gpu.index.to_string())
    }

    /// "job 3, job 4 to release CPUs".
    fn holders_of(&self, what: &str, without: JobKey) -> String {
        const SHOWN: usize = 4;
        let mut jobs: Vec<String> = self
            .holders()
            .filter(|(key, _)| *key != without)
            .map(|(key, _)| format!("job {}", key.job))
            .collect();
        let more = jobs.len().saturating_sub(SHOWN);
        jobs.truncate(SHOWN);
        if more > 0 {
            jobs.push(format!("{more} more"));
        }
        format!("{} to release {what}", jobs.join(", "))
    }

    pub(super) fn remove_sessions(&mut self, now: Now) {
        let due: Vec<SessionId> = self
            .removals
            .iter()
            .filter(|(_, removal)| matches!(removal, Removal::Due(at) if *at <= now.boot_ms))
            .map(|(session, _)| *session)
            .collect();
        for session in due {
            let used = self
                .entries
                .values()
                .any(|entry| entry.phase.holds() && entry.holding.session == Some(session));
            if used {
                // Its release comes by again.
                self.removals
                    .insert(session, Removal::Due(now.boot_ms + RETRY_MS));
            } else {
                self.removals.insert(session, Removal::Running);
                self.act(Action::RemoveSession(session));
            }
        }
    }

    pub(super) fn on_session_removed(&mut self, now: Now, session: SessionId, result: &Result<(), String>) {
        let Some(removal) = self.removals.get_mut(&session) else {
            return;
        };
        *removal = match result {
            Ok(()) => Removal::Done,
            Err(_) => Removal::Due(now.boot_ms + RETRY_MS),
        };
    }

    /// The newest desired state counts as acted on once nothing that it wants deleted is left:
    /// the broker takes the generation for that.
    pub(super) fn apply(&mut self) {
        let done = self.removals.values().all(|removal| *removal == Removal::Done);
        if done && self.applied != self.newest {
            self.applied = self.newest;
            self.out.report = true;
        }
    }
}
