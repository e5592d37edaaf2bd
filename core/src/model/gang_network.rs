//! How the nodes of one job reach each other.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Fewest addresses that a range is of use with: its own, the gateway's, two members', and the last.
const LONGEST_PREFIX: u8 = 29;
/// Shortest prefix that is taken: a longer range is a slip.
const SHORTEST_PREFIX: u8 = 8;

/// A range of IPv4 addresses, "10.214.0.0/16".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subnet {
    base: Ipv4Addr,
    prefix: u8,
}

/// A text that is no range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no range of IPv4 addresses: write its first address and a prefix of 8 to 29 bits, as 10.214.0.0/16"
)]
pub struct BadSubnet(pub String);

impl Subnet {
    /// Where gangs' addresses are from if nobody says: private (RFC 1918), and next to the nodes' own ranges.
    pub const GANGS: Self = Self {
        base: Ipv4Addr::new(10, 214, 0, 0),
        prefix: 16,
    };

    /// Addresses that members of gangs can have: neither the range's own, nor the gateway's (the first one, which each
    /// node has at its end of a member's pair of interfaces), nor the last one.
    pub fn usable(self) -> u32 {
        (1u32 << (32 - u32::from(self.prefix))) - 3
    }

    /// The n-th of them, counted from 0; begins anew after the last.
    pub fn nth(self, n: u32) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.base) + 2 + n % self.usable())
    }

    /// Whether an address is one of them.
    pub fn has(self, address: Ipv4Addr) -> bool {
        let first = u32::from(self.base) + 2;
        let address = u32::from(address);
        first <= address && address < first + self.usable()
    }
}

impl FromStr for Subnet {
    type Err = BadSubnet;

    fn from_str(text: &str) -> Result<Self, BadSubnet> {
        let read = || {
            let (base, prefix) = text.split_once('/')?;
            let (base, prefix) = (base.parse::<Ipv4Addr>().ok()?, prefix.parse::<u8>().ok()?);
            let fits = (SHORTEST_PREFIX..=LONGEST_PREFIX).contains(&prefix);
            let is_first = fits && u32::from(base).trailing_zeros() >= 32 - u32::from(prefix);
            is_first.then_some(Self { base, prefix })
        };
        read().ok_or_else(|| BadSubnet(text.to_owned()))
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix)
    }
}

impl Serialize for Subnet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Subnet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// What one node's container has of its gang's network. All members of a gang have the same kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum RankNetwork {
    /// Nothing: its job has one node, or its nodes cannot reach each other.
    #[default]
    Own,
    /// An address that no other container of the cluster has, and routes to those of its peers.
    Routed(Ipv4Addr),
    /// Its host's network.
    Host,
}

impl RankNetwork {
    /// The address that it was given for it.
    pub fn address(self) -> Option<Ipv4Addr> {
        match self {
            Self::Routed(address) => Some(address),
            Self::Own | Self::Host => None,
        }
    }

    /// The kind, for people and JSON: "own", "routed", "host".
    pub fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Routed(_) => "routed",
            Self::Host => "host",
        }
    }
}

/// What a node says of how the members of a gang can reach each other there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reach {
    /// It can give containers addresses of gangs, and routes between them.
    pub routed: bool,
    /// Its operator lets gangs of whole nodes have the host's network.
    pub host: bool,
    /// By which other nodes reach it.
    pub address: Option<Ipv4Addr>,
    /// Its network namespace: agents with the same one are on one host, and need no route between them.
    pub namespace: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_written() {
        let subnet: Subnet = "10.214.0.0/16".parse().expect("a range");
        assert_eq!(subnet, Subnet::GANGS);
        assert_eq!(subnet.to_string(), "10.214.0.0/16");
        for bad in [
            "",
            "10.0.0.0",
            "10.0.0.1/16",
            "10.0.0.0/30",
            "0.0.0.0/0",
            "fd00::/64",
            "10.0.0.0/x",
        ] {
            assert!(bad.parse::<Subnet>().is_err(), "{bad}");
        }
    }

    #[test]
    fn neither_the_first_two_addresses_nor_the_last_are_given_out() {
        let subnet: Subnet = "192.168.7.8/29".parse().expect("a range");
        let all: Vec<String> = (0..subnet.usable()).map(|n| subnet.nth(n).to_string()).collect();
        assert_eq!(all.len(), 5);
        assert_eq!((&*all[0], &*all[4]), ("192.168.7.10", "192.168.7.14"));
        assert_eq!(subnet.nth(5), subnet.nth(0), "after the last comes the first");
        let has = |last: u8| subnet.has(Ipv4Addr::new(192, 168, 7, last));
        assert!(!has(8) && !has(9) && has(10) && has(14) && !has(15) && !has(16));
    }
}
