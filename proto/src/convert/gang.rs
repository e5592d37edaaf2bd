//! How the members of a gang reach each other.

use std::net::Ipv4Addr;

use carrel_core::model::gang_network::{RankNetwork, Reach, Subnet};

use super::{ConvertError, text};
use crate::v1::{self, rank_network::Kind};

fn address(text: &str) -> Result<Ipv4Addr, ConvertError> {
    text.parse().map_err(|_| ConvertError::Invalid {
        field: "address",
        why: "an IPv4 address",
    })
}

/// The range of gangs' addresses; the usual one of brokers that name none.
pub(super) fn subnet(text: &str) -> Result<Subnet, ConvertError> {
    if text.is_empty() {
        return Ok(Subnet::GANGS);
    }
    text.parse().map_err(|_| ConvertError::Invalid {
        field: "range of gangs' addresses",
        why: "an IPv4 range such as 10.214.0.0/16",
    })
}

/// The message; none where there is nothing to say.
pub fn rank_network(network: RankNetwork) -> Option<v1::RankNetwork> {
    let kind = match network {
        RankNetwork::Own => return None,
        RankNetwork::Routed(address) => Kind::Address(address.to_string()),
        RankNetwork::Host => Kind::Host(true),
    };
    Some(v1::RankNetwork { kind: Some(kind) })
}

pub(super) fn network(message: Option<v1::RankNetwork>) -> Result<RankNetwork, ConvertError> {
    match message.and_then(|message| message.kind) {
        None | Some(Kind::Host(false)) => Ok(RankNetwork::Own),
        Some(Kind::Host(true)) => Ok(RankNetwork::Host),
        Some(Kind::Address(text)) => Ok(RankNetwork::Routed(address(&text)?)),
    }
}

impl From<&Reach> for v1::Reach {
    fn from(reach: &Reach) -> Self {
        Self {
            routed: reach.routed,
            host: reach.host,
            address: reach
                .address
                .map(|address| address.to_string())
                .unwrap_or_default(),
            network_namespace: reach.namespace.clone(),
        }
    }
}

impl TryFrom<v1::Reach> for Reach {
    type Error = ConvertError;

    fn try_from(message: v1::Reach) -> Result<Self, ConvertError> {
        Ok(Self {
            routed: message.routed,
            host: message.host,
            address: match message.address.as_str() {
                "" => None,
                given => Some(address(given)?),
            },
            namespace: text(message.network_namespace),
        })
    }
}
