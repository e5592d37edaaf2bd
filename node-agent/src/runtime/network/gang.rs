//! What this node knows of the gangs that have a container here: the addresses of their members, and by which hosts
//! these are reached.
//!
//! It is kept in a file for each container, written before its interfaces are made and removed after its rules are. So
//! these files are at any moment all that the host's rules and routes are made of, whoever was killed when.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Write};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use carrel_core::model::gang_network::{RankNetwork, Reach, Subnet};
use carrel_core::model::ids::{JobKey, NodeName};
use carrel_core::model::node::DesiredJob;
use serde::{Deserialize, Serialize};

use crate::runtime::record::{dir_name, key_of_dir};

/// A gang, as one of its containers has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gang {
    /// The range that all gangs' addresses are from.
    pub subnet: Subnet,
    /// The container's.
    pub own: Ipv4Addr,
    /// The others.
    pub peers: Vec<GangPeer>,
}

/// Another container of the gang.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GangPeer {
    /// Its address.
    pub address: Ipv4Addr,
    /// The node that it is on.
    pub node: NodeName,
    /// That node's address; none: it is on this host, which has a route to it.
    pub via: Option<Ipv4Addr>,
}

impl Gang {
    /// That of a job on a node that is reached so; none: it has no network of its own.
    ///
    /// # Errors
    /// A peer's node says that it is reached by an address that cannot be another host's.
    pub fn of(job: &DesiredJob, here: &Reach) -> Result<Option<Self>> {
        let RankNetwork::Routed(own) = job.network() else {
            return Ok(None);
        };
        let mut peers = Vec::with_capacity(job.peers.len());
        for peer in job.peers.iter().filter(|peer| peer.rank != job.rank) {
            let (Some(address), node) = (peer.network.address(), peer.node.clone()) else {
                bail!("node {} has no address in this gang's network", peer.node);
            };
            let via = if peer.reach.namespace == here.namespace {
                None
            } else {
                Some(address_of(&node, &peer.reach)?)
            };
            peers.push(GangPeer { address, node, via });
        }
        let subnet = job.gang_subnet;
        Ok(Some(Self { subnet, own, peers }))
    }

    /// All of its addresses are of the range.
    ///
    /// # Errors
    /// One is not: the range was changed between.
    pub(super) fn check(&self) -> Result<()> {
        let mut all = self.peers.iter().map(|peer| peer.address).chain([self.own]);
        match all.find(|address| !self.subnet.has(*address)) {
            Some(outside) => bail!("the gang's address {outside} is not of the range {}", self.subnet),
            None => Ok(()),
        }
    }
}

/// By which address another host is reached.
fn address_of(node: &NodeName, reach: &Reach) -> Result<Ipv4Addr> {
    let address = reach.address.with_context(|| {
        format!(
            "node {node} does not say by which address other nodes reach it: `address` in its node.toml does"
        )
    })?;
    ensure!(
        !address.is_loopback() && !address.is_unspecified(),
        "node {node} says that other nodes reach it at {address}, which is every host's own: set `address` in its \
         node.toml"
    );
    Ok(address)
}

/// The files, below the state directory.
#[derive(Clone, Debug)]
pub(super) struct GangFiles(PathBuf);

impl GangFiles {
    pub fn new(state_dir: &Path) -> Self {
        Self(state_dir.join("gangs"))
    }

    fn path(&self, key: JobKey) -> PathBuf {
        self.0.join(format!("{}.json", dir_name(key)))
    }

    /// Whose files are there.
    pub fn keys(&self) -> Result<Vec<JobKey>> {
        let listed = match fs::read_dir(&self.0) {
            Ok(listed) => listed,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error).context(self.0.display().to_string()),
        };
        let mut keys = Vec::new();
        for entry in listed {
            let name = entry?.file_name();
            let name = name.to_string_lossy();
            keys.extend(name.strip_suffix(".json").and_then(key_of_dir));
        }
        Ok(keys)
    }

    pub fn get(&self, key: JobKey) -> Result<Option<Gang>> {
        read(&self.path(key))
    }

    pub fn all(&self) -> Result<BTreeMap<JobKey, Gang>> {
        let mut all = BTreeMap::new();
        for key in self.keys()? {
            all.extend(self.get(key)?.map(|gang| (key, gang)));
        }
        Ok(all)
    }

    pub fn put(&self, key: JobKey, gang: &Gang) -> Result<()> {
        write(&self.path(key), gang)
    }

    /// Absent is fine.
    pub fn remove(&self, key: JobKey) -> Result<()> {
        match fs::remove_file(self.path(key)) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| self.path(key).display().to_string())
            }
            _ => Ok(()),
        }
    }

    /// Routes that were made, or were about to be: destinations and the hosts that lead there.
    pub fn routes(&self) -> Result<BTreeMap<Ipv4Addr, Ipv4Addr>> {
        Ok(read(&self.0.join(ROUTES))?.unwrap_or_default())
    }

    pub fn put_routes(&self, routes: &BTreeMap<Ipv4Addr, Ipv4Addr>) -> Result<()> {
        write(&self.0.join(ROUTES), routes)
    }
}

/// Beside the containers' files; no container's name.
const ROUTES: &str = "routes";

fn read<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Option<T>> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    };
    let read = serde_json::from_slice(&bytes);
    read.map(Some).with_context(|| path.display().to_string())
}

/// Replaces a file whole.
fn write<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let dir = path.parent().context("a file's directory")?;
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(dir)?;
    file.write_all(&serde_json::to_vec(value)?)?;
    file.persist(path).with_context(|| path.display().to_string())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use carrel_core::model::ids::{Generation, JobId};

    use super::*;

    fn key(job: u64) -> JobKey {
        JobKey {
            job: JobId(job),
            generation: Generation(1),
        }
    }

    fn gang(last: u8) -> Gang {
        Gang {
            subnet: Subnet::GANGS,
            own: Ipv4Addr::new(10, 214, 0, last),
            peers: vec![GangPeer {
                address: Ipv4Addr::new(10, 214, 0, last + 1),
                node: "n1".parse().expect("a name"),
                via: None,
            }],
        }
    }

    #[test]
    fn what_was_put_is_there_until_it_is_removed() {
        let dir = tempfile::tempdir().expect("a directory");
        let files = GangFiles::new(dir.path());
        assert!(files.all().expect("none").is_empty());
        files.remove(key(1)).expect("absent is fine");
        files.put(key(1), &gang(3)).expect("written");
        files.put(key(2), &gang(5)).expect("written");
        files
            .put_routes(&[(gang(3).own, gang(5).own)].into())
            .expect("written");
        files.put(key(1), &gang(7)).expect("replaced");
        assert_eq!(
            files.all().expect("read"),
            [(key(1), gang(7)), (key(2), gang(5))].into()
        );
        assert_eq!(files.routes().expect("read").len(), 1);
        files.remove(key(1)).expect("removed");
        assert_eq!(files.keys().expect("read"), [key(2)]);
    }

    #[test]
    fn an_address_that_is_every_hosts_own_leads_nowhere() {
        let node: NodeName = "n1".parse().expect("a name");
        let reach = |address: Option<Ipv4Addr>| Reach {
            address,
            ..Reach::default()
        };
        assert!(address_of(&node, &reach(Some([192, 0, 2, 1].into()))).is_ok());
        for bad in [None, Some(Ipv4Addr::LOCALHOST), Some(Ipv4Addr::UNSPECIFIED)] {
            let error = address_of(&node, &reach(bad)).expect_err("refused").to_string();
            assert!(error.contains("n1") && error.contains("node.toml"), "{error}");
        }
    }
}
