//! Limits, and what administrators change of accounts, QOS and partitions.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::time::Duration;

use carrel_core::broker::{
    AccountEdit, Edit, LimitsEdit, MemberEdit, PartitionEdit, PersonEdit, QosEdit, Way,
};
use carrel_core::model::account::Limits;
use carrel_core::model::host_list;
use carrel_core::model::ids::BadName;
use carrel_core::model::qos::Preemption;
use carrel_core::queue::Limit;

use super::ConvertError;
use super::terms::named;
use crate::v1;

impl From<&Limits> for v1::Limits {
    fn from(limits: &Limits) -> Self {
        Self {
            gpu_milli: limits.gpu_milli,
            running: limits.running,
            submitted: limits.submitted,
            time_s: limits.time.map(|time| time.as_secs()),
            gpu_minutes: limits.gpu_minutes,
        }
    }
}

impl From<v1::Limits> for Limits {
    fn from(limits: v1::Limits) -> Self {
        Self {
            gpu_milli: limits.gpu_milli,
            running: limits.running,
            submitted: limits.submitted,
            time: limits.time_s.map(Duration::from_secs),
            gpu_minutes: limits.gpu_minutes,
        }
    }
}

impl From<Option<Preemption>> for v1::Preemption {
    fn from(preemptible: Option<Preemption>) -> Self {
        match preemptible {
            None => Self::Never,
            Some(Preemption::Requeue) => Self::Requeue,
            Some(Preemption::Cancel) => Self::Cancel,
        }
    }
}

impl TryFrom<v1::EditAccountRequest> for Edit {
    type Error = ConvertError;

    fn try_from(request: v1::EditAccountRequest) -> Result<Self, ConvertError> {
        use v1::edit_account_request::Edit as Message;
        Ok(match request.edit.ok_or(ConvertError::Missing("edit"))? {
            Message::Account(edit) => {
                let account = AccountEdit {
                    parent: renamed(edit.parent.as_deref())?,
                    description: edit.description,
                    shares: edit.shares,
                    limits: limits(edit.limits)?,
                    per_user: limits(edit.per_user)?,
                };
                Self::Account(edit.name.parse()?, way(edit.create), account)
            }
            Message::Delete(name) => Self::DeleteAccount(name.parse()?),
            Message::Members(edit) => {
                let member = MemberEdit {
                    shares: edit.shares,
                    limits: limits(edit.limits)?,
                };
                let users = names(edit.users)?;
                Self::Members(edit.account.parse()?, way(edit.create), users, member)
            }
            Message::RemoveMembers(removal) => {
                Self::RemoveMembers(removal.account.parse()?, names(removal.users)?)
            }
            Message::Person(edit) => {
                let person = PersonEdit {
                    default_account: renamed(edit.default_account.as_deref())?,
                    limits: limits(edit.limits)?,
                };
                Self::Person(edit.user.parse()?, person)
            }
        })
    }
}

impl TryFrom<v1::EditQosRequest> for Edit {
    type Error = ConvertError;

    fn try_from(request: v1::EditQosRequest) -> Result<Self, ConvertError> {
        use v1::edit_qos_request::Edit as Message;
        let edit = match request.edit.ok_or(ConvertError::Missing("edit"))? {
            Message::Qos(edit) => edit,
            Message::Delete(name) => return Ok(Self::DeleteQos(name.parse()?)),
        };
        let preemptible = match v1::Preemption::try_from(edit.preemptible) {
            Ok(v1::Preemption::Unspecified) => None,
            Ok(v1::Preemption::Never) => Some(None),
            Ok(v1::Preemption::Requeue) => Some(Some(Preemption::Requeue)),
            Ok(v1::Preemption::Cancel) => Some(Some(Preemption::Cancel)),
            Err(_) => {
                return Err(ConvertError::Unknown {
                    field: "preemptible",
                    value: edit.preemptible,
                });
            }
        };
        let qos = QosEdit {
            description: edit.description,
            priority: edit.priority,
            preemptible,
            grace: edit.grace.map(|grace| grace.seconds.map(Duration::from_secs)),
            preempts: edit.preempts,
            accounts: edit.accounts.map(|list| names(list.names)).transpose()?,
            limits: limits(edit.limits)?,
            per_user: limits(edit.per_user)?,
            usage_milli: edit.usage_milli,
        };
        Ok(Self::Qos(edit.name.parse()?, way(edit.create), qos))
    }
}

impl TryFrom<v1::EditPartitionRequest> for Edit {
    type Error = ConvertError;

    fn try_from(request: v1::EditPartitionRequest) -> Result<Self, ConvertError> {
        use v1::edit_partition_request::Edit as Message;
        let edit = match request.edit.ok_or(ConvertError::Missing("edit"))? {
            Message::Partition(edit) => edit,
            Message::Delete(name) => return Ok(Self::DeletePartition(name.parse()?)),
        };
        let only = edit.only.map(|text| host_list::parse(&text)).transpose()?;
        let features = edit.features.map(|text| {
            if text.is_empty() {
                Ok(None)
            } else {
                text.parse().map(Some)
            }
        });
        let partition = PartitionEdit {
            description: edit.description,
            only: only.map(|nodes| (!nodes.is_empty()).then_some(nodes)),
            without: edit.without.map(|text| host_list::parse(&text)).transpose()?,
            features: features.transpose()?,
            default: edit.default,
            priority: edit.priority,
            default_time: edit
                .default_time_s
                .map(|seconds| (seconds > 0).then(|| Duration::from_secs(seconds))),
            accounts: edit.accounts.map(|list| names(list.names)).transpose()?,
            qos: renamed(edit.qos.as_deref())?,
            limits: limits(edit.limits)?,
            per_user: limits(edit.per_user)?,
        };
        Ok(Self::Partition(edit.name.parse()?, way(edit.create), partition))
    }
}

fn way(create: bool) -> Way {
    if create { Way::Add } else { Way::Set }
}

/// What a name is to be, where that is said; none inside: there is to be none.
#[allow(clippy::option_option)] // As the core's edits have it.
fn renamed<T: FromStr<Err = BadName>>(text: Option<&str>) -> Result<Option<Option<T>>, BadName> {
    text.map(named).transpose()
}

pub(super) fn names<T: FromStr<Err = BadName> + Ord>(names: Vec<String>) -> Result<BTreeSet<T>, BadName> {
    names.iter().map(|name| name.parse()).collect()
}

fn limits(edit: Option<v1::LimitsEdit>) -> Result<LimitsEdit, ConvertError> {
    let edit = edit.unwrap_or_default();
    let clear = edit
        .clear
        .into_iter()
        .map(|value| match v1::LimitKind::try_from(value) {
            Ok(v1::LimitKind::Gpus) => Ok(Limit::Gpus),
            Ok(v1::LimitKind::Running) => Ok(Limit::Running),
            Ok(v1::LimitKind::Submitted) => Ok(Limit::Submitted),
            Ok(v1::LimitKind::Time) => Ok(Limit::Time),
            Ok(v1::LimitKind::GpuMinutes) => Ok(Limit::GpuMinutes),
            Ok(v1::LimitKind::Unspecified) | Err(_) => Err(ConvertError::Unknown {
                field: "clear",
                value,
            }),
        });
    Ok(LimitsEdit {
        clear: clear.collect::<Result<_, _>>()?,
        set: edit.set.unwrap_or_default().into(),
    })
}
