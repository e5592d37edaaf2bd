//! What a node is to be.
//!
//! The model's `DesiredJob` does not say everything that the message does: who
//! a login name is in numbers, and who may enter over SSH, is the shell's to
//! know. The broker adds both; an agent keeps the message beside the model.

use carrel_core::model::activity::Thresholds;
use carrel_core::model::batch::BatchRun;
use carrel_core::model::gpu_unit::GpuUnit;
use carrel_core::model::ids::{Generation, JobId, JobKey, SessionId};
use carrel_core::model::job::{Sent, Signalled};
use carrel_core::model::node::{Desired, DesiredJob, Peer, Tombstone};
use carrel_core::model::session::ContainerOptions;
use carrel_core::model::time::Timestamp;

use super::{ConvertError, cluster, gang, session, session_number, text};
use crate::v1;

/// The message for a node. `extras` says of a job who its user is and who may
/// enter; a job of which it says nothing is left out, which ends nothing on the node.
pub fn desired(
    desired: &Desired,
    mut extras: impl FnMut(&DesiredJob) -> Option<(v1::Identity, v1::SshAccess)>,
    gateways: Vec<v1::GatewayEndpoint>,
) -> v1::Desired {
    let jobs = desired.jobs.iter().filter_map(|job| {
        let (identity, ssh) = extras(job)?;
        Some(desired_job(job, identity, ssh))
    });
    v1::Desired {
        cluster: desired.cluster.to_string(),
        incarnation: Some(desired.incarnation.into()),
        generation: desired.generation,
        renews: desired.renews,
        lease_ms: desired.lease_ms,
        jobs: jobs.collect(),
        tombstones: desired.tombstones.iter().map(|tomb| (*tomb).into()).collect(),
        removed_sessions: desired.removed_sessions.iter().map(|session| session.0).collect(),
        gateways,
        use_gpu_percent: Some(desired.thresholds.gpu_percent),
        use_cpu_percent: Some(desired.thresholds.cpu_percent),
    }
}

fn desired_job(job: &DesiredJob, identity: v1::Identity, ssh: v1::SshAccess) -> v1::DesiredJob {
    v1::DesiredJob {
        job: job.key.job.0,
        generation: job.key.generation.0,
        session: session_number(job.session),
        name: job.name.clone(),
        identity: Some(identity),
        image: job.image.clone(),
        gpus: job.gpus.iter().map(ToString::to_string).collect(),
        cpus: job.cpus,
        memory_bytes: job.memory_bytes,
        rank: job.rank,
        peers: job.peers.iter().map(Into::into).collect(),
        gang_subnet: job.gang_subnet.to_string(),
        env: job.env.iter().map(env_message).collect(),
        deadline_ms: job.deadline.millis(),
        go: job.go,
        ssh: Some(ssh),
        workdir: job.workdir.clone(),
        ready: job.ready,
        mounts: job.container.mounts.iter().map(Into::into).collect(),
        root: job.container.root,
        // Not the core's matter: the broker sets it.
        warn_before_s: Vec::new(),
        end_signal: job.container.end_signal.map(Into::into),
        idle_ends_ms: job.idle_ends.map_or(0, Timestamp::millis),
        idle_warn_before_s: Vec::new(),
        batch: job.batch.as_ref().map(Into::into),
        user_signal: job.signalled.map(Into::into),
    }
}

impl From<Signalled> for v1::UserSignal {
    fn from(signalled: Signalled) -> Self {
        Self {
            count: signalled.count,
            signal: signalled.sent.signal,
            shells: signalled.sent.shells,
            others: signalled.sent.others,
        }
    }
}

impl From<v1::UserSignal> for Signalled {
    fn from(message: v1::UserSignal) -> Self {
        Self {
            count: message.count,
            sent: Sent {
                signal: message.signal,
                shells: message.shells,
                others: message.others,
            },
        }
    }
}

impl From<&BatchRun> for v1::BatchRun {
    fn from(run: &BatchRun) -> Self {
        Self {
            command: run.command.clone(),
            script: run.script.clone(),
            stdout: run.stdout.clone(),
            stderr: run.stderr.clone(),
            append: run.append,
        }
    }
}

impl From<v1::BatchRun> for BatchRun {
    fn from(run: v1::BatchRun) -> Self {
        Self {
            command: run.command,
            script: run.script,
            stdout: run.stdout,
            stderr: run.stderr,
            append: run.append,
        }
    }
}

fn env_message((name, value): &(String, String)) -> v1::EnvVar {
    v1::EnvVar {
        name: name.clone(),
        value: value.clone(),
    }
}

/// A variable that a process can have (`environ(7)`).
fn env(variable: v1::EnvVar) -> Result<(String, String), ConvertError> {
    let v1::EnvVar { name, value } = variable;
    if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
        let why = "a name without '=', and no NUL byte";
        return Err(ConvertError::Invalid {
            field: "environment variable",
            why,
        });
    }
    Ok((name, value))
}

impl From<&Peer> for v1::Peer {
    fn from(peer: &Peer) -> Self {
        Self {
            rank: peer.rank,
            node: peer.node.to_string(),
            host_name: peer.host_name.clone(),
            network: gang::rank_network(peer.network),
            reach: Some((&peer.reach).into()),
            slots: peer.slots,
        }
    }
}

impl TryFrom<v1::Peer> for Peer {
    type Error = ConvertError;

    fn try_from(peer: v1::Peer) -> Result<Self, ConvertError> {
        Ok(Self {
            rank: peer.rank,
            node: peer.node.parse()?,
            host_name: peer.host_name,
            network: gang::network(peer.network)?,
            reach: peer.reach.unwrap_or_default().try_into()?,
            slots: peer.slots,
        })
    }
}

impl From<Tombstone> for v1::Tombstone {
    fn from(tombstone: Tombstone) -> Self {
        Self {
            job: tombstone.key.job.0,
            generation: tombstone.key.generation.0,
            grace_ms: tombstone.grace_ms,
        }
    }
}

impl From<v1::Tombstone> for Tombstone {
    fn from(tombstone: v1::Tombstone) -> Self {
        Self {
            key: key(tombstone.job, tombstone.generation),
            grace_ms: tombstone.grace_ms,
        }
    }
}

fn key(job: u64, generation: u64) -> JobKey {
    JobKey {
        job: JobId(job),
        generation: Generation(generation),
    }
}

/// What the message says beside (identity, SSH access) is left behind.
impl TryFrom<v1::DesiredJob> for DesiredJob {
    type Error = ConvertError;

    fn try_from(job: v1::DesiredJob) -> Result<Self, ConvertError> {
        let identity = job.identity.ok_or(ConvertError::Missing("identity"))?;
        let gpus = job.gpus.iter().map(|unit| unit.parse::<GpuUnit>());
        let peers = job.peers.into_iter().map(TryInto::try_into);
        Ok(Self {
            key: key(job.job, job.generation),
            session: session(job.session),
            name: text(job.name),
            owner: identity.name.parse()?,
            image: text(job.image),
            gpus: gpus.collect::<Result<_, _>>()?,
            cpus: job.cpus,
            memory_bytes: job.memory_bytes,
            rank: job.rank,
            peers: peers.collect::<Result<_, _>>()?,
            gang_subnet: gang::subnet(&job.gang_subnet)?,
            env: job.env.into_iter().map(env).collect::<Result<_, _>>()?,
            deadline: Timestamp::from_millis(job.deadline_ms),
            go: job.go,
            host_key: String::new(),
            host_principals: Vec::new(),
            workdir: job.workdir,
            ready: job.ready,
            container: ContainerOptions {
                mounts: job.mounts.into_iter().map(Into::into).collect(),
                root: job.root,
                end_signal: job.end_signal.map(TryInto::try_into).transpose()?,
                // The broker's matter.
                idle: None,
            },
            batch: job.batch.map(Into::into),
            idle_ends: (job.idle_ends_ms > 0).then(|| Timestamp::from_millis(job.idle_ends_ms)),
            signalled: job.user_signal.map(Into::into),
        })
    }
}

/// One job that cannot be understood spoils the message: half of a whole state is none.
impl TryFrom<v1::Desired> for Desired {
    type Error = ConvertError;

    fn try_from(message: v1::Desired) -> Result<Self, ConvertError> {
        let jobs = message.jobs.into_iter().map(TryInto::try_into);
        let incarnation = message.incarnation.ok_or(ConvertError::Missing("incarnation"))?;
        let usual = Thresholds::default();
        Ok(Self {
            thresholds: Thresholds {
                gpu_percent: message.use_gpu_percent.unwrap_or(usual.gpu_percent),
                cpu_percent: message.use_cpu_percent.unwrap_or(usual.cpu_percent),
            },
            cluster: cluster(&message.cluster)?,
            incarnation: incarnation.into(),
            generation: message.generation,
            renews: message.renews,
            lease_ms: message.lease_ms,
            jobs: jobs.collect::<Result<_, _>>()?,
            tombstones: message.tombstones.into_iter().map(Into::into).collect(),
            removed_sessions: message.removed_sessions.into_iter().map(SessionId).collect(),
        })
    }
}
