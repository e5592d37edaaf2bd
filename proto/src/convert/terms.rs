//! On what terms jobs wait and run.

use carrel_core::model::ids::BadName;
use carrel_core::model::terms::{Terms, TermsRequest};

use super::ConvertError;
use crate::v1;

/// A name, where one is given.
pub(super) fn named<T: std::str::FromStr<Err = BadName>>(text: &str) -> Result<Option<T>, BadName> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some)
}

fn text(name: Option<&impl ToString>) -> String {
    name.map(ToString::to_string).unwrap_or_default()
}

impl From<&TermsRequest> for v1::Terms {
    fn from(terms: &TermsRequest) -> Self {
        Self {
            account: text(terms.account.as_ref()),
            qos: text(terms.qos.as_ref()),
            partition: text(terms.partition.as_ref()),
            nice: terms.nice,
            reservation: text(terms.reservation.as_ref()),
        }
    }
}

impl TryFrom<v1::Terms> for TermsRequest {
    type Error = ConvertError;

    fn try_from(terms: v1::Terms) -> Result<Self, ConvertError> {
        Ok(Self {
            account: named(&terms.account)?,
            qos: named(&terms.qos)?,
            partition: named(&terms.partition)?,
            nice: terms.nice,
            reservation: named(&terms.reservation)?,
        })
    }
}

impl From<&Terms> for v1::Terms {
    fn from(terms: &Terms) -> Self {
        Self {
            account: terms.account.to_string(),
            qos: terms.qos.to_string(),
            partition: terms.partition.to_string(),
            nice: terms.nice,
            reservation: text(terms.reservation.as_ref()),
        }
    }
}
