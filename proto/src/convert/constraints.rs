//! Which nodes a request may get, and for how long it insists.

use std::time::Duration;

use carrel_core::model::constraints::{Constraints, Patience};
use carrel_core::model::host_list;

use super::ConvertError;
use crate::v1;

/// Most leaf switches, or nodes of a segment, that are told from any number.
const MAX_COUNT: u32 = 65_536;

impl From<&Constraints> for v1::NodeConstraints {
    fn from(constraints: &Constraints) -> Self {
        let features = constraints.features.as_ref();
        Self {
            nodelist: host_list::format(&constraints.nodelist),
            exclude: host_list::format(&constraints.exclude),
            features: features.map(ToString::to_string).unwrap_or_default(),
            switches: constraints.switches,
            segment: constraints.segment,
            contiguous: constraints.contiguous,
        }
    }
}

impl TryFrom<v1::NodeConstraints> for Constraints {
    type Error = ConvertError;

    fn try_from(message: v1::NodeConstraints) -> Result<Self, ConvertError> {
        let features = Some(message.features).filter(|text| !text.is_empty());
        Ok(Self {
            nodelist: host_list::parse(&message.nodelist)?,
            exclude: host_list::parse(&message.exclude)?,
            features: features.map(|text| text.parse()).transpose()?,
            switches: message.switches.min(MAX_COUNT),
            segment: message.segment.min(MAX_COUNT),
            contiguous: message.contiguous,
        })
    }
}

impl From<&Patience> for v1::Patience {
    fn from(patience: &Patience) -> Self {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self {
            nvlink_ms: patience.nvlink.map(millis),
            switches_ms: patience.switches.map(millis),
        }
    }
}

impl From<v1::Patience> for Patience {
    fn from(message: v1::Patience) -> Self {
        Self {
            nvlink: message.nvlink_ms.map(Duration::from_millis),
            switches: message.switches_ms.map(Duration::from_millis),
        }
    }
}
