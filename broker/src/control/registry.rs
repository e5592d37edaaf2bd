//! Gateways that have enrolled, the key of stream tickets, and what gateways
//! are to know of revoked certificates. Kept in the state directory, so that a
//! restart of the broker takes no gateway away from the agents.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use carrel_core::broker::State;
use carrel_core::model::node::NodeRecord;
use carrel_core::model::time::Timestamp;
use carrel_proto::stream::{SECRET_LEN, Secret};
use carrel_proto::v1::GatewayEndpoint;
use serde::{Deserialize, Serialize};

use crate::ca::files::{read_if_there, write_secret};
use crate::ca::x509::NODE_VALIDITY;

const KEY_FILE: &str = "stream.key";
const GATEWAYS_FILE: &str = "gateways.json";
const REMOVED_FILE: &str = "removed-nodes.json";
/// A gateway enrols every few minutes; one that has not for so long is gone for good.
const FORGET_AFTER: Duration = Duration::from_hours(24);
/// More than any cluster has.
const MAX_GATEWAYS: usize = 64;

/// A gateway, and where it is dialled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gateway {
    /// Its name.
    pub name: String,
    /// Agents' gRPC endpoint: "https://host:port".
    pub link: String,
    /// Byte streams, for agents.
    pub streams: String,
    /// Jump host, "host:port".
    pub ssh: String,
    /// Byte streams, for clients, in order of preference.
    pub client_streams: Vec<String>,
}

/// The gateways of the cluster.
#[derive(Debug)]
pub struct Gateways {
    state: PathBuf,
    stream_key: Secret,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    gateways: BTreeMap<String, (Gateway, Instant)>,
    /// Serials of nodes that were removed, and until when they would be valid.
    removed: BTreeMap<String, Timestamp>,
}

impl Gateways {
    /// Reads what the state directory has; makes the key of stream tickets at the first start.
    pub fn open(state: &Path) -> Result<Self> {
        let key_file = state.join(KEY_FILE);
        let stream_key = if let Some(bytes) = read_if_there(&key_file)? {
            Secret::try_from(bytes)
                .map_err(|_| anyhow::anyhow!("{} is not {SECRET_LEN} bytes long", key_file.display()))?
        } else {
            let key: Secret = rand::random();
            write_secret(&key_file, &key)?;
            key
        };
        let gateways: Vec<Gateway> = read_json(&state.join(GATEWAYS_FILE))?;
        let removed = read_json(&state.join(REMOVED_FILE))?;
        // Those that still run enrol again; the time counts from now.
        let now = Instant::now();
        let gateways = gateways
            .into_iter()
            .map(|gateway| (gateway.name.clone(), (gateway, now)))
            .collect();
        Ok(Self {
            state: state.to_owned(),
            stream_key,
            inner: Mutex::new(Inner { gateways, removed }),
        })
    }

    /// The key of stream tickets.
    pub fn stream_key(&self) -> &Secret {
        &self.stream_key
    }

    /// Takes a gateway in. True when something changed for agents.
    pub fn enroll(&self, gateway: Gateway) -> Result<bool> {
        let mut inner = self.lock();
        let changed = inner.forget();
        let known = inner.gateways.get(&gateway.name);
        let same = known.is_some_and(|(known, _)| *known == gateway);
        anyhow::ensure!(
            known.is_some() || inner.gateways.len() < MAX_GATEWAYS,
            "{MAX_GATEWAYS} gateways are enrolled already"
        );
        inner
            .gateways
            .insert(gateway.name.clone(), (gateway, Instant::now()));
        if !same || changed {
            let list: Vec<&Gateway> = inner.gateways.values().map(|(gateway, _)| gateway).collect();
            write_json(&self.state.join(GATEWAYS_FILE), &list)?;
        }
        Ok(!same || changed)
    }

    /// The gateways, the one heard of last first.
    pub fn list(&self) -> Vec<Gateway> {
        let mut inner = self.lock();
        inner.forget();
        let mut list: Vec<&(Gateway, Instant)> = inner.gateways.values().collect();
        list.sort_by_key(|(_, heard)| std::cmp::Reverse(*heard));
        list.into_iter().map(|(gateway, _)| gateway.clone()).collect()
    }

    /// What agents are told, by name.
    pub fn for_agents(&self) -> Vec<GatewayEndpoint> {
        let inner = self.lock();
        let endpoint = |gateway: &Gateway| GatewayEndpoint {
            name: gateway.name.clone(),
            link: gateway.link.clone(),
            streams: gateway.streams.clone(),
        };
        inner
            .gateways
            .values()
            .map(|(gateway, _)| endpoint(gateway))
            .collect()
    }

    /// A node is about to be removed: gateways are to refuse its certificates.
    /// Called before, and without effect as long as a node may come with them.
    pub fn note_removal(&self, node: &NodeRecord, now: Timestamp) -> Result<()> {
        let mut inner = self.lock();
        let until = now.after(NODE_VALIDITY);
        inner.removed.retain(|_, until| *until > now);
        let own = [&node.certificate, &node.former_certificate];
        let serials = own
            .into_iter()
            .chain(&node.revoked)
            .filter(|serial| !serial.is_empty());
        inner
            .removed
            .extend(serials.map(|serial| (serial.clone(), until)));
        write_json(&self.state.join(REMOVED_FILE), &inner.removed)
    }

    /// A node that was removed had this serial.
    pub fn is_removed(&self, serial: &str) -> bool {
        self.lock().removed.contains_key(serial)
    }

    /// Serials that gateways are to refuse.
    pub fn revoked(&self, state: &State) -> Vec<String> {
        let inner = self.lock();
        let accepted = |serial: &str| state.nodes.values().any(|node| node.accepts(serial));
        let removed = inner.removed.keys().filter(|serial| !accepted(serial));
        removed
            .chain(state.nodes.values().flat_map(|node| &node.revoked))
            .cloned()
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Drops who is gone; true if anyone was.
    fn forget(&mut self) -> bool {
        let before = self.gateways.len();
        self.gateways
            .retain(|_, (_, heard)| heard.elapsed() < FORGET_AFTER);
        self.gateways.len() != before
    }
}

fn read_json<T: Default + serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    match read_if_there(path)? {
        Some(bytes) => {
            serde_json::from_slice(&bytes).with_context(|| format!("{} cannot be read", path.display()))
        }
        None => Ok(T::default()),
    }
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    write_secret(path, &serde_json::to_vec_pretty(value)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateway(name: &str, port: u16) -> Gateway {
        Gateway {
            name: name.into(),
            link: format!("https://head:{port}"),
            streams: "head:2".into(),
            ssh: "head:3".into(),
            client_streams: vec!["unix:/s".into(), "head:2".into()],
        }
    }

    #[test]
    fn gateways_and_the_key_survive_a_restart() {
        let dir = tempfile::tempdir().expect("a directory");
        let first = Gateways::open(dir.path()).expect("opened");
        assert!(first.enroll(gateway("a", 1)).expect("enrolled"));
        assert!(!first.enroll(gateway("a", 1)).expect("enrolled again"));
        assert!(first.enroll(gateway("a", 9)).expect("moved"));
        let second = Gateways::open(dir.path()).expect("opened again");
        assert_eq!(second.list(), [gateway("a", 9)]);
        assert_eq!(second.stream_key(), first.stream_key());
    }
}
