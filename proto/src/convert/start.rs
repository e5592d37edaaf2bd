//! When jobs may start.

use std::time::Duration;

use carrel_core::model::ids::JobId;
use carrel_core::model::start::{Conditions, Dependency, DependencyKind, MAX_DEPENDENCIES, StartWish};
use carrel_core::model::time::Timestamp;

use super::ConvertError;
use crate::v1;

impl From<DependencyKind> for v1::DependencyKind {
    fn from(kind: DependencyKind) -> Self {
        match kind {
            DependencyKind::After => Self::After,
            DependencyKind::AfterAny => Self::AfterAny,
            DependencyKind::AfterOk => Self::AfterOk,
            DependencyKind::AfterNotOk => Self::AfterNotOk,
            DependencyKind::AfterCorr => Self::AfterCorr,
        }
    }
}

impl TryFrom<v1::Dependency> for Dependency {
    type Error = ConvertError;

    fn try_from(dependency: v1::Dependency) -> Result<Self, ConvertError> {
        let kind = match dependency.kind() {
            v1::DependencyKind::After => DependencyKind::After,
            v1::DependencyKind::AfterAny => DependencyKind::AfterAny,
            v1::DependencyKind::AfterOk => DependencyKind::AfterOk,
            v1::DependencyKind::AfterNotOk => DependencyKind::AfterNotOk,
            v1::DependencyKind::AfterCorr => DependencyKind::AfterCorr,
            v1::DependencyKind::Unspecified => {
                return Err(ConvertError::Unknown {
                    field: "dependency.kind",
                    value: dependency.kind,
                });
            }
        };
        Ok(Self {
            kind,
            job: JobId(dependency.job),
            task: dependency.task,
        })
    }
}

impl From<&Conditions> for v1::Conditions {
    fn from(conditions: &Conditions) -> Self {
        let dependencies = conditions.dependencies.iter().map(|one| v1::Dependency {
            kind: v1::DependencyKind::from(one.kind).into(),
            job: one.job.0,
            task: one.task,
        });
        Self {
            dependencies: dependencies.collect(),
            any: conditions.any,
            singleton: conditions.singleton,
        }
    }
}

impl TryFrom<v1::Conditions> for Conditions {
    type Error = ConvertError;

    fn try_from(conditions: v1::Conditions) -> Result<Self, ConvertError> {
        if conditions.dependencies.len() > MAX_DEPENDENCIES {
            return Err(ConvertError::Invalid {
                field: "dependencies",
                why: "at most 256",
            });
        }
        let dependencies = conditions.dependencies.into_iter().map(TryInto::try_into);
        Ok(Self {
            dependencies: dependencies.collect::<Result<_, ConvertError>>()?,
            any: conditions.any,
            singleton: conditions.singleton,
        })
    }
}

impl TryFrom<v1::StartWish> for StartWish {
    type Error = ConvertError;

    fn try_from(wish: v1::StartWish) -> Result<Self, ConvertError> {
        let begin = Timestamp::from_millis(wish.begin_ms);
        Ok(Self {
            begin: (begin > Timestamp(0)).then_some(begin),
            hold: wish.hold,
            conditions: wish.conditions.unwrap_or_default().try_into()?,
            within: wish.within_ms.map(Duration::from_millis),
        })
    }
}
