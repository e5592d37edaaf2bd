//! What a node is.

use std::collections::BTreeMap;

use carrel_core::model::activity::{Activity, Counter, HostUse, Seen, Signals, Used};
use carrel_core::model::cpus::{Binding, CpuSet};
use carrel_core::model::gpu_unit::GpuUnit;
use carrel_core::model::ids::{Generation, Incarnation, JobId, JobKey};
use carrel_core::model::job::{Containment, FenceReport};
use carrel_core::model::node::{EndCause, Observed, ObservedJob, ObservedPhase};
use carrel_core::model::time::Timestamp;

use super::{ConvertError, cluster, gang, session, session_number, text};
use crate::v1;

impl From<ObservedPhase> for v1::ObservedPhase {
    fn from(phase: ObservedPhase) -> Self {
        match phase {
            ObservedPhase::Preparing => Self::Preparing,
            ObservedPhase::Ready => Self::Ready,
            ObservedPhase::Stopping => Self::Stopping,
            ObservedPhase::Released => Self::Released,
        }
    }
}

fn phase(value: i32) -> Result<ObservedPhase, ConvertError> {
    match v1::ObservedPhase::try_from(value) {
        Ok(v1::ObservedPhase::Preparing) => Ok(ObservedPhase::Preparing),
        Ok(v1::ObservedPhase::Ready) => Ok(ObservedPhase::Ready),
        Ok(v1::ObservedPhase::Stopping) => Ok(ObservedPhase::Stopping),
        Ok(v1::ObservedPhase::Released) => Ok(ObservedPhase::Released),
        Ok(v1::ObservedPhase::Unspecified) | Err(_) => Err(ConvertError::Unknown {
            field: "phase",
            value,
        }),
    }
}

fn cause_message(cause: Option<EndCause>) -> v1::EndCause {
    match cause {
        None => v1::EndCause::Unspecified,
        Some(EndCause::StartFailed) => v1::EndCause::StartFailed,
        Some(EndCause::Exited) => v1::EndCause::Exited,
        Some(EndCause::OutOfMemory) => v1::EndCause::OutOfMemory,
        Some(EndCause::Deadline) => v1::EndCause::Deadline,
        Some(EndCause::Lease) => v1::EndCause::Lease,
        Some(EndCause::Tombstone) => v1::EndCause::Tombstone,
        Some(EndCause::NodeRestarted) => v1::EndCause::NodeRestarted,
    }
}

fn cause(value: i32) -> Result<Option<EndCause>, ConvertError> {
    match v1::EndCause::try_from(value) {
        Ok(v1::EndCause::Unspecified) => Ok(None),
        Ok(v1::EndCause::StartFailed) => Ok(Some(EndCause::StartFailed)),
        Ok(v1::EndCause::Exited) => Ok(Some(EndCause::Exited)),
        Ok(v1::EndCause::OutOfMemory) => Ok(Some(EndCause::OutOfMemory)),
        Ok(v1::EndCause::Deadline) => Ok(Some(EndCause::Deadline)),
        Ok(v1::EndCause::Lease) => Ok(Some(EndCause::Lease)),
        Ok(v1::EndCause::Tombstone) => Ok(Some(EndCause::Tombstone)),
        Ok(v1::EndCause::NodeRestarted) => Ok(Some(EndCause::NodeRestarted)),
        Err(_) => Err(ConvertError::Unknown {
            field: "end cause",
            value,
        }),
    }
}

impl From<FenceReport> for v1::FenceReport {
    fn from(FenceReport { checks, micros }: FenceReport) -> Self {
        Self { checks, micros }
    }
}

impl From<v1::FenceReport> for FenceReport {
    fn from(v1::FenceReport { checks, micros }: v1::FenceReport) -> Self {
        Self { checks, micros }
    }
}

fn cpu_set(field: &'static str, text: &str) -> Result<CpuSet, ConvertError> {
    let why = "a kernel cpulist such as 0-3,8";
    text.parse().map_err(|_| ConvertError::Invalid { field, why })
}

impl From<&ObservedJob> for v1::ObservedJob {
    fn from(job: &ObservedJob) -> Self {
        Self {
            job: job.key.job.0,
            generation: job.key.generation.0,
            session: session_number(job.session),
            phase: v1::ObservedPhase::from(job.phase).into(),
            detail: job.detail.clone(),
            host_public_key: job.host_key.clone(),
            cause: cause_message(job.cause).into(),
            exit_code: job.exit_code,
            gpus: job.gpus.iter().map(ToString::to_string).collect(),
            cpus: job.cpus,
            memory_bytes: job.memory_bytes,
            user: job.user.as_ref().map(ToString::to_string).unwrap_or_default(),
            name: job.name.clone(),
            deadline_ms: job.deadline.millis(),
            cluster: job.cluster.to_string(),
            connections: job.connections,
            rank: job.rank,
            nodes: job.nodes,
            started_ms: job.started.millis(),
            image: job.image.clone(),
            fence: job.containment.fence.map(Into::into),
            oom_kills: job.containment.oom_kills,
            cpuset: job.binding.cpus.to_string(),
            mems: job.binding.mems.to_string(),
            network: gang::rank_network(job.network),
        }
    }
}

impl TryFrom<v1::ObservedJob> for ObservedJob {
    type Error = ConvertError;

    fn try_from(job: v1::ObservedJob) -> Result<Self, ConvertError> {
        let gpus = job.gpus.iter().map(|unit| unit.parse::<GpuUnit>());
        let user = if job.user.is_empty() {
            None
        } else {
            Some(job.user.parse()?)
        };
        Ok(Self {
            key: JobKey {
                job: JobId(job.job),
                generation: Generation(job.generation),
            },
            session: session(job.session),
            phase: phase(job.phase)?,
            detail: text(job.detail),
            host_key: text(job.host_public_key),
            cause: cause(job.cause)?,
            exit_code: job.exit_code,
            gpus: gpus.collect::<Result<_, _>>()?,
            cpus: job.cpus,
            memory_bytes: job.memory_bytes,
            user,
            name: text(job.name),
            deadline: Timestamp::from_millis(job.deadline_ms),
            cluster: cluster(&job.cluster)?,
            connections: job.connections,
            rank: job.rank,
            nodes: job.nodes,
            started: Timestamp::from_millis(job.started_ms),
            image: text(job.image),
            containment: Containment {
                fence: job.fence.map(Into::into),
                oom_kills: job.oom_kills,
            },
            binding: Binding {
                cpus: cpu_set("cpuset", &job.cpuset)?,
                mems: cpu_set("mems", &job.mems)?,
            },
            network: gang::network(job.network)?,
        })
    }
}

impl From<HostUse> for v1::HostUse {
    fn from(host: HostUse) -> Self {
        Self {
            cpu_user_us: host.user_us,
            cpu_system_us: host.system_us,
            memory_bytes: host.memory_bytes,
            memory_peak_bytes: host.peak_bytes,
        }
    }
}

impl From<v1::HostUse> for HostUse {
    fn from(host: v1::HostUse) -> Self {
        Self {
            user_us: host.cpu_user_us,
            system_us: host.cpu_system_us,
            memory_bytes: host.memory_bytes,
            peak_bytes: host.memory_peak_bytes,
        }
    }
}

fn activity_message((key, activity): (&JobKey, &Activity)) -> v1::ObservedActivity {
    let Activity { seen, counter, host } = activity;
    let ago = seen.map(|seen| seen.ago_ms).unwrap_or_default();
    let uses = counter.by_model.iter().map(|(model, used)| v1::GpuUse {
        model: model.clone(),
        busy: used.busy,
        measured: used.measured,
    });
    v1::ObservedActivity {
        job: key.job.0,
        generation: key.generation.0,
        seen_for_ms: seen.map(|seen| seen.for_ms),
        gpu_ago_ms: ago.gpu,
        cpu_ago_ms: ago.cpu,
        input_ago_ms: ago.input,
        connection_ago_ms: ago.connection,
        gpu_percent: seen.and_then(|seen| seen.gpu_percent),
        cpu_percent: seen.and_then(|seen| seen.cpu_percent),
        counted_since: counter.since,
        uses: uses.collect(),
        host: (!host.is_nothing()).then(|| (*host).into()),
    }
}

fn activity(message: v1::ObservedActivity) -> (JobKey, Activity) {
    let key = JobKey {
        job: JobId(message.job),
        generation: Generation(message.generation),
    };
    let ago_ms = Signals {
        gpu: message.gpu_ago_ms,
        cpu: message.cpu_ago_ms,
        input: message.input_ago_ms,
        connection: message.connection_ago_ms,
    };
    let (gpu_percent, cpu_percent) = (message.gpu_percent, message.cpu_percent);
    let used = |one: v1::GpuUse| {
        let used = Used {
            busy: one.busy,
            measured: one.measured,
        };
        (text(one.model), used)
    };
    let by_model: BTreeMap<String, Used> = message.uses.into_iter().map(used).collect();
    let activity = Activity {
        seen: message.seen_for_ms.map(|for_ms| Seen {
            for_ms,
            ago_ms,
            gpu_percent,
            cpu_percent,
        }),
        counter: Counter {
            since: message.counted_since,
            by_model,
        },
        host: message.host.map(Into::into).unwrap_or_default(),
    };
    (key, activity)
}

impl From<&Observed> for v1::Observed {
    fn from(observed: &Observed) -> Self {
        let (cluster, incarnation) = match &observed.accepted {
            Some((cluster, incarnation)) => (cluster.to_string(), Some((*incarnation).into())),
            None => (String::new(), None),
        };
        Self {
            node: observed.node.to_string(),
            boot_id: observed.boot_id.clone(),
            seq: observed.seq,
            cluster,
            incarnation,
            generation: observed.generation,
            inventory: Some((&observed.inventory).into()),
            jobs: observed.jobs.iter().map(Into::into).collect(),
            version: observed.version.clone(),
            images: observed.images.clone(),
            activity: observed.activity.iter().map(activity_message).collect(),
        }
    }
}

impl TryFrom<v1::Observed> for Observed {
    type Error = ConvertError;

    fn try_from(message: v1::Observed) -> Result<Self, ConvertError> {
        let accepted = if message.cluster.is_empty() {
            None
        } else {
            let incarnation = message.incarnation.ok_or(ConvertError::Missing("incarnation"))?;
            Some((cluster(&message.cluster)?, Incarnation::from(incarnation)))
        };
        let jobs = message.jobs.into_iter().map(TryInto::try_into);
        let activity = message.activity.into_iter().map(activity);
        Ok(Self {
            node: message.node.parse()?,
            boot_id: text(message.boot_id),
            seq: message.seq,
            accepted,
            generation: message.generation,
            inventory: message
                .inventory
                .ok_or(ConvertError::Missing("inventory"))?
                .try_into()?,
            jobs: jobs.collect::<Result<_, _>>()?,
            version: text(message.version),
            images: message.images.into_iter().map(text).collect(),
            activity: activity.collect(),
        })
    }
}
