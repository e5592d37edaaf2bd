//! What the containers of a gang know of each other.

use std::fmt::Write as _;
use std::net::IpAddr;

use carrel_core::model::gang_network::{RankNetwork, Reach};
use carrel_core::model::ids::NodeName;
use carrel_core::model::node::{DesiredJob, Peer};

use crate::runtime::HostEntry;

/// Further names of this node's container.
pub(super) fn aliases(job: &DesiredJob, node: &NodeName) -> Vec<String> {
    let own = job.peers.iter().find(|peer| peer.rank == job.rank);
    let alias = own.map(|peer| peer.host_name.clone());
    [node.to_string()].into_iter().chain(alias).collect()
}

/// Its address, where the gang's network decides that.
pub(super) fn address(job: &DesiredJob, here: &Reach) -> Option<IpAddr> {
    address_in(job.network(), here)
}

fn address_in(network: RankNetwork, reach: &Reach) -> Option<IpAddr> {
    match network {
        RankNetwork::Own => None,
        RankNetwork::Routed(address) => Some(address.into()),
        RankNetwork::Host => reach.address.map(Into::into),
    }
}

/// The other members, by their nodes' names and their own. Without a network between them they have no addresses.
pub(super) fn hosts(job: &DesiredJob) -> Vec<HostEntry> {
    let others = job.peers.iter().filter(|peer| peer.rank != job.rank);
    let entry = |peer: &Peer| {
        let address = address_in(peer.network, &peer.reach)?;
        Some(HostEntry {
            address: address.to_string(),
            names: vec![peer.node.to_string(), peer.host_name.clone()],
        })
    };
    others.filter_map(entry).collect()
}

/// The job's nodes by rank, as launchers of MPI read them (Open MPI, `man mpirun`, "Specifying Hosts").
pub(super) fn hostfile(job: &DesiredJob) -> String {
    let mut text = String::new();
    for peer in &job.peers {
        let _ = writeln!(text, "{} slots={}", peer.node, peer.slots.max(1));
    }
    text
}
