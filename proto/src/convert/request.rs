//! What users ask for, and the states that they see.

use carrel_core::model::features::FeatureRequest;
use carrel_core::model::gpu_unit::{WHOLE_MILLI, is_profile};
use carrel_core::model::job::{JobKind, JobState};
use carrel_core::model::resources::{ResourceRequest, UnitRequest};
use carrel_core::model::session::{EndSignal, Mount, SessionSpec, SessionState};
use carrel_core::placement::MAX_COMPONENTS;

use super::ConvertError;
use super::inventory::{sharing, sharing_message};
use crate::v1;
use crate::v1::gpu_unit_request::Unit;

impl From<&ResourceRequest> for v1::ResourceRequest {
    fn from(request: &ResourceRequest) -> Self {
        Self {
            nodes: request.nodes,
            gpus_per_node: request.gpus_per_node,
            gpu_model: request.gpu_model.clone(),
            nvlink: request.nvlink,
            cpus_per_node: request.cpus_per_node,
            memory_bytes_per_node: request.memory_bytes_per_node,
            exclusive: request.exclusive,
            all_memory: request.all_memory,
            unit: unit_message(&request.unit).map(|unit| v1::GpuUnitRequest { unit: Some(unit) }),
            gpu_memory_bytes: request.gpu_memory_bytes,
            constraints: Some((&request.constraints).into())
                .filter(|one| *one != v1::NodeConstraints::default()),
            patience: Some((&request.patience).into()).filter(|one| *one != v1::Patience::default()),
            more: request.more.iter().map(Into::into).collect(),
        }
    }
}

fn unit_message(unit: &UnitRequest) -> Option<Unit> {
    match unit {
        UnitRequest::Whole => None,
        UnitRequest::Mig(profile) => Some(Unit::MigProfile(profile.clone())),
        UnitRequest::Least => Some(Unit::Least(true)),
        UnitRequest::Share { milli, sharing } => Some(Unit::Share(v1::GpuShareRequest {
            milli: (*milli).into(),
            sharing: sharing_message(*sharing).into(),
        })),
    }
}

impl TryFrom<v1::GpuUnitRequest> for UnitRequest {
    type Error = ConvertError;

    fn try_from(message: v1::GpuUnitRequest) -> Result<Self, ConvertError> {
        let invalid = |field, why| Err(ConvertError::Invalid { field, why });
        match message.unit {
            None | Some(Unit::Least(false)) => Ok(Self::Whole),
            Some(Unit::Least(true)) => Ok(Self::Least),
            Some(Unit::MigProfile(profile)) if is_profile(&profile) => Ok(Self::Mig(profile)),
            Some(Unit::MigProfile(_)) => invalid("MIG profile", "a name such as 1g.10gb"),
            Some(Unit::Share(share)) => match u16::try_from(share.milli) {
                Ok(milli) if (1..WHOLE_MILLI).contains(&milli) => Ok(Self::Share {
                    milli,
                    sharing: sharing(share.sharing)?,
                }),
                Ok(_) | Err(_) => invalid("share of a GPU", "1 to 999 thousandths"),
            },
        }
    }
}

/// Where nodes are counted by their features, a component for each count: the rest of the nodes may have any.
fn counted(mut request: v1::ResourceRequest) -> Result<v1::ResourceRequest, ConvertError> {
    let Some(constraints) = request.constraints.as_mut() else {
        return Ok(request);
    };
    if !constraints.features.contains('*') {
        return Ok(request);
    }
    let FeatureRequest::Counted(parts) = constraints.features.parse()? else {
        return Ok(request);
    };
    let invalid = |why| {
        Err(ConvertError::Invalid {
            field: "constraint",
            why,
        })
    };
    let wants_more = !constraints.nodelist.is_empty()
        || constraints.switches > 0
        || constraints.contiguous
        || constraints.segment > 1;
    if wants_more || !request.more.is_empty() {
        return invalid(
            "where nodes are counted by features: no --nodelist, --switches, --segment, --contiguous, or other components",
        );
    }
    let mut rest = request.nodes;
    let mut components = Vec::new();
    for (features, count) in parts {
        let Some(left) = rest.checked_sub(count) else {
            return invalid("its counts are of no more nodes than are asked for");
        };
        rest = left;
        components.push((features.to_string(), count));
    }
    if rest > 0 {
        components.push((String::new(), rest));
    }
    if components.len() > MAX_COMPONENTS {
        return invalid("at most 8 counts");
    }
    let with = |(features, nodes): (String, u32)| {
        let mut one = request.clone();
        one.nodes = nodes;
        if let Some(constraints) = &mut one.constraints {
            constraints.features = features;
        }
        one
    };
    let mut components = components.into_iter().map(with);
    let first = components.next().unwrap_or_else(|| request.clone());
    Ok(v1::ResourceRequest {
        more: components.collect(),
        ..first
    })
}

/// Zero CPUs or bytes, the cluster's defaults, are for the core to fill in.
impl TryFrom<v1::ResourceRequest> for ResourceRequest {
    type Error = ConvertError;

    fn try_from(request: v1::ResourceRequest) -> Result<Self, ConvertError> {
        let invalid = |field, why| Err(ConvertError::Invalid { field, why });
        if request.nodes == 0 {
            return invalid("number of nodes", "at least 1");
        }
        if request.more.len() >= MAX_COMPONENTS || request.more.iter().any(|one| !one.more.is_empty()) {
            return invalid("components", "at most 8, without components of their own");
        }
        let request = counted(request)?;
        let choice = |one: &v1::ResourceRequest| {
            let constraints = one.constraints.as_ref();
            constraints.is_some_and(|constraints| constraints.features.starts_with('['))
        };
        if !request.more.is_empty() && request.more.iter().chain([&request]).any(choice) {
            return invalid("constraint", "[a|b] is of a request that has no other components");
        }
        let more = request.more.into_iter().map(Self::try_from);
        if request.gpu_model.len() > 128 {
            return invalid("GPU model", "at most 128 bytes");
        }
        Ok(Self {
            nodes: request.nodes,
            gpus_per_node: request.gpus_per_node,
            gpu_model: request.gpu_model,
            nvlink: request.nvlink,
            cpus_per_node: request.cpus_per_node,
            memory_bytes_per_node: request.memory_bytes_per_node,
            exclusive: request.exclusive,
            all_memory: request.all_memory,
            unit: request
                .unit
                .map(TryInto::try_into)
                .transpose()?
                .unwrap_or_default(),
            gpu_memory_bytes: request.gpu_memory_bytes,
            constraints: request.constraints.unwrap_or_default().try_into()?,
            patience: request.patience.unwrap_or_default().into(),
            more: more.collect::<Result<_, _>>()?,
        })
    }
}

impl From<&Mount> for v1::Mount {
    fn from(mount: &Mount) -> Self {
        Self {
            source: mount.source.clone(),
            target: mount.target.clone(),
            read_only: mount.read_only,
        }
    }
}

/// An empty target is the source's place.
impl From<v1::Mount> for Mount {
    fn from(mount: v1::Mount) -> Self {
        let target = if mount.target.is_empty() {
            mount.source.clone()
        } else {
            mount.target
        };
        Self {
            source: mount.source,
            target,
            read_only: mount.read_only,
        }
    }
}

/// What a session is, for its owner.
impl From<&SessionSpec> for v1::SessionSpec {
    fn from(spec: &SessionSpec) -> Self {
        let env = spec.env.iter().map(|(name, value)| v1::EnvVar {
            name: name.clone(),
            value: value.clone(),
        });
        Self {
            resources: Some((&*spec.request).into()),
            image: spec.image.clone(),
            time_limit_s: spec.time_limit.as_secs(),
            env: env.collect(),
            workdir: spec.workdir.clone(),
            mounts: spec.container.mounts.iter().map(Into::into).collect(),
            end_signal: spec.container.end_signal.map(Into::into),
            idle_s: spec.container.idle.map_or(0, |idle| idle.as_secs()),
            root: spec.container.root,
            terms: Some((&spec.terms).into()).filter(|terms| *terms != v1::Terms::default()),
        }
    }
}

impl From<EndSignal> for v1::EndSignal {
    fn from(sent: EndSignal) -> Self {
        Self {
            signal: sent.signal,
            before_s: sent.before_s,
            shells: sent.shells,
        }
    }
}

impl TryFrom<v1::EndSignal> for EndSignal {
    type Error = ConvertError;

    fn try_from(message: v1::EndSignal) -> Result<Self, ConvertError> {
        let sent = Self {
            signal: message.signal,
            before_s: message.before_s,
            shells: message.shells,
        };
        if sent.is_valid() {
            return Ok(sent);
        }
        Err(ConvertError::Invalid {
            field: "signal before the end",
            why: "signals are 1 to 31, at most 65535 seconds before it",
        })
    }
}

impl From<JobKind> for v1::JobKind {
    fn from(kind: JobKind) -> Self {
        match kind {
            JobKind::Interactive => Self::Interactive,
            JobKind::Batch => Self::Batch,
        }
    }
}

impl From<JobState> for v1::JobState {
    fn from(state: JobState) -> Self {
        match state {
            JobState::Pending => Self::Pending,
            JobState::Configuring => Self::Configuring,
            JobState::Running => Self::Running,
            JobState::Completing => Self::Completing,
            JobState::Completed => Self::Completed,
            JobState::Failed => Self::Failed,
            JobState::Cancelled => Self::Cancelled,
            JobState::Timeout => Self::Timeout,
            JobState::Preempted => Self::Preempted,
            JobState::NodeFail => Self::NodeFail,
            JobState::OutOfMemory => Self::OutOfMemory,
            JobState::Suspended => Self::Suspended,
        }
    }
}

impl TryFrom<v1::JobState> for JobState {
    type Error = ConvertError;

    fn try_from(state: v1::JobState) -> Result<Self, ConvertError> {
        Ok(match state {
            v1::JobState::Pending => Self::Pending,
            v1::JobState::Configuring => Self::Configuring,
            v1::JobState::Running => Self::Running,
            v1::JobState::Completing => Self::Completing,
            v1::JobState::Completed => Self::Completed,
            v1::JobState::Failed => Self::Failed,
            v1::JobState::Cancelled => Self::Cancelled,
            v1::JobState::Timeout => Self::Timeout,
            v1::JobState::Preempted => Self::Preempted,
            v1::JobState::NodeFail => Self::NodeFail,
            v1::JobState::OutOfMemory => Self::OutOfMemory,
            v1::JobState::Suspended => Self::Suspended,
            v1::JobState::Unspecified => return Err(ConvertError::Missing("state of a job")),
        })
    }
}

impl From<SessionState> for v1::SessionState {
    fn from(state: SessionState) -> Self {
        match state {
            SessionState::Stopped => Self::Stopped,
            SessionState::Pending => Self::Pending,
            SessionState::Starting => Self::Starting,
            SessionState::Running => Self::Running,
            SessionState::Parked => Self::Parked,
            SessionState::Stopping => Self::Stopping,
        }
    }
}
