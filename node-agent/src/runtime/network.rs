//! A job's network: its own namespace, always with lo; with the distribution's
//! CNI plugins a way out by NAT, and none in.
//!
//! Each container is joined to the host by a pair of its own (CNI's `ptp`),
//! not to a bridge: whatever goes from one job to another passes the host's
//! forwarding rules, which refuse it. They refuse the cloud's metadata service,
//! too: it takes whoever asks for the node itself.
//!
//! A member of a gang has an address that no other container of the cluster has
//! instead of one of its node's. Its peers' are let through to it and reached by
//! routes through their hosts; everybody else is refused as ever.

mod gang;
mod reach;
mod routes;
mod rules;
mod under_way;

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use carrel_core::model::gang_network::{RankNetwork, Reach};
use carrel_core::model::ids::JobKey;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::sync::{Mutex, OnceCell};

use super::client::find_program;
use super::netns::NetworkNamespace;
use super::record::container_id;
use gang::GangFiles;
use routes::Routes;
use rules::Rules;
use under_way::UnderWay;

pub use gang::{Gang, GangPeer};
pub use reach::own_address;

/// Where distributions and administrators put CNI plugins.
const PLUGIN_DIRS: [&str; 3] = ["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"];
/// Plugins that are needed: a pair of interfaces, and addresses.
const PLUGINS: [&str; 2] = ["ptp", "host-local"];
/// Where clouds answer questions about a node, its credentials among them: the link-local address of
/// most, Azure's WireServer, and Alibaba's.
pub(super) const METADATA: [&str; 3] = ["169.254.169.254", "168.63.129.16", "100.100.100.200"];
/// What is refused for its sake: containers' credentials have other link-local addresses.
const METADATA_NETWORKS: [&str; 3] = ["169.254.0.0/16", "168.63.129.16/32", "100.100.100.200/32"];
/// The network's name for the plugins.
const NETWORK: &str = "carrel";
/// Interface in the container.
const INTERFACE: &str = "eth0";

/// What network jobs get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkMode {
    /// NAT where the plugins and iptables are installed, else loopback alone.
    #[default]
    Auto,
    /// NAT; a start fails without it.
    Nat,
    /// Loopback alone.
    Loopback,
}

/// What gangs get between this node and others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum GangMode {
    /// Addresses of their own and routes, where jobs have NAT.
    #[default]
    Routed,
    /// Gangs that have all of their nodes for themselves get the hosts' network, others as `Routed`.
    Host,
    /// Nothing.
    None,
}

/// The network of one node.
pub(crate) struct Network {
    /// None: loopback alone.
    nat: Option<Nat>,
    reach: Reach,
    /// Why gangs have no routes here; empty: they have, or are not to.
    no_routes: &'static str,
}

/// How a [`Network`] is set up.
pub(crate) struct NetworkOptions<'a> {
    pub mode: NetworkMode,
    /// Of the jobs' addresses, "10.0.0.0/20".
    pub subnet: String,
    /// Tells this node's rules from another agent's on the same host.
    pub suffix: &'a str,
    pub state_dir: &'a Path,
    /// Jobs may reach the metadata service.
    pub allow_metadata: bool,
    pub gangs: GangMode,
    /// By which other nodes reach this one.
    pub address: Option<Ipv4Addr>,
    /// The kernel's.
    pub boot_id: &'a str,
}

struct Nat {
    plugins: PathBuf,
    iptables: PathBuf,
    /// Its companion that replaces rules all at once.
    restore: PathBuf,
    allow_metadata: bool,
    /// "10.0.0.0/20".
    subnet: String,
    /// Chain of our forwarding rules.
    chain: String,
    /// Where host-local keeps which address is whose.
    addresses: PathBuf,
    /// Plugins that run.
    under_way: UnderWay,
    /// Whether the host's rules are in place.
    ready: OnceCell<()>,
    /// What is known of gangs with a container here.
    files: GangFiles,
    /// None: iproute2 is not installed, and no gang has a route.
    routes: Option<Routes>,
    /// Held while rules and routes are made what the files say.
    changing: Mutex<()>,
}

impl Network {
    /// Looks for what the mode needs.
    pub fn new(options: NetworkOptions<'_>) -> Result<Self> {
        let nat = Nat::find(&options)?;
        let has_ip = nat.as_ref().is_some_and(|nat| nat.routes.is_some());
        let no_routes = match (options.gangs, &nat) {
            (GangMode::None, _) => "",
            (GangMode::Routed | GangMode::Host, None) => "jobs have loopback alone",
            (GangMode::Routed | GangMode::Host, Some(_)) if !has_ip => "iproute2 is not installed",
            (GangMode::Routed | GangMode::Host, Some(_)) if options.address.is_none() => {
                "this host has no IPv4 address by which others reach it"
            }
            (GangMode::Routed | GangMode::Host, Some(_)) => "",
        };
        let reach = Reach {
            routed: options.gangs != GangMode::None && no_routes.is_empty(),
            host: options.gangs == GangMode::Host,
            address: options.address,
            namespace: reach::namespace(options.boot_id),
        };
        Ok(Self {
            nat,
            reach,
            no_routes,
        })
    }

    /// For people: what jobs get.
    pub fn describe(&self) -> &'static str {
        match self.nat {
            Some(_) => "own namespace, NAT out, nothing in",
            None => "own namespace, loopback only",
        }
    }

    /// For people: what gangs get here.
    pub fn describe_gangs(&self) -> String {
        let Reach {
            routed,
            host,
            address,
            ..
        } = &self.reach;
        let at = address
            .map(|address| format!(" (this node is at {address})"))
            .unwrap_or_default();
        match (host, routed) {
            (true, true) => format!("the hosts' for whole nodes, else routed{at}"),
            (true, false) => format!("the hosts' for whole nodes{at}"),
            (false, true) => format!("routed{at}"),
            (false, false) if self.no_routes.is_empty() => "none".to_owned(),
            (false, false) => format!("none ({})", self.no_routes),
        }
    }

    /// For people: what one job has.
    pub fn describe_of(&self, network: RankNetwork, nodes: usize) -> String {
        let own = self.describe();
        match network {
            RankNetwork::Own if nodes > 1 => format!("{own}, none between its nodes"),
            RankNetwork::Own => own.to_owned(),
            RankNetwork::Routed(address) => format!("{own} but from its gang (routed, {address})"),
            RankNetwork::Host => "the host's".to_owned(),
        }
    }

    /// How the members of a gang can reach each other here.
    pub fn reach(&self) -> &Reach {
        &self.reach
    }

    /// A namespace to be joined and then given to a container; none: the container's own, with loopback alone, will do.
    pub async fn namespace(&self) -> Result<Option<NetworkNamespace>> {
        match self.nat {
            Some(_) => NetworkNamespace::make().await.map(Some),
            None => Ok(None),
        }
    }

    /// Joins a job's network namespace to the host, and to its gang; gives its address.
    ///
    /// # Errors
    /// Also: a peer's host is not reached without a router between.
    pub async fn join(
        &self,
        key: JobKey,
        namespace: &NetworkNamespace,
        gang: Option<&Gang>,
    ) -> Result<Option<IpAddr>> {
        let Some(nat) = &self.nat else {
            ensure!(
                gang.is_none(),
                "this node has no network for gangs: {}",
                self.no_routes
            );
            return Ok(None);
        };
        nat.prepare().await?;
        if let Some(gang) = gang {
            gang.check()?;
            nat.files.put(key, gang)?;
            nat.change(None, Some(gang)).await?;
        }
        let result = nat.plugin("ADD", key, &namespace.path(), gang).await?;
        let address = result["ips"][0]["address"]
            .as_str()
            .and_then(|text| text.split('/').next()?.parse().ok());
        let address: IpAddr = address.context("the CNI plugin gave no address")?;
        let wanted = gang.map(|gang| IpAddr::V4(gang.own));
        ensure!(
            wanted.is_none_or(|wanted| wanted == address),
            "the CNI plugin gave {address}, and the gang's address is {}",
            gang.map_or(Ipv4Addr::UNSPECIFIED, |gang| gang.own)
        );
        Ok(Some(address))
    }

    /// Makes rules and routes for a container that is joined what they are to be by now.
    pub async fn follow(&self, key: JobKey, gang: &Gang) -> Result<()> {
        let Some(nat) = &self.nat else { return Ok(()) };
        // One that was never joined, or has left: nothing is to be made for it.
        let Some(known) = nat.files.get(key)? else {
            return Ok(());
        };
        // The range may be another one by now: its addresses are of that of its start.
        let gang = Gang {
            subnet: known.subnet,
            ..gang.clone()
        };
        if gang == known {
            return Ok(());
        }
        nat.prepare().await?;
        nat.files.put(key, &gang)?;
        nat.change(None, Some(&gang)).await
    }

    /// Waits for plugins of an agent before this one, and puts the host's rules and routes in place if there is anything
    /// that they are for: it may have died over them.
    pub async fn resume(&self) -> Result<()> {
        let Some(nat) = &self.nat else { return Ok(()) };
        // What they do is to be done before anything is looked at.
        nat.under_way.over().await?;
        if nat.files.keys()?.is_empty() && nat.files.routes()?.is_empty() {
            return Ok(());
        }
        nat.prepare().await
    }

    /// Jobs that something of a gang's network is kept of.
    pub fn members(&self) -> Result<Vec<JobKey>> {
        self.nat.as_ref().map_or(Ok(Vec::new()), |nat| nat.files.keys())
    }

    /// The addresses of jobs on this node, but for this one.
    pub fn neighbours(&self, own: Option<IpAddr>) -> Vec<IpAddr> {
        let Some(nat) = &self.nat else { return Vec::new() };
        // host-local keeps a file of each address that is given out, in a directory of the network's name.
        let listed = std::fs::read_dir(nat.addresses.join(NETWORK));
        let names = listed.into_iter().flatten().flatten();
        names
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|address| Some(*address) != own)
            .collect()
    }

    /// Jobs are kept from the metadata service.
    pub fn refuses_metadata(&self) -> bool {
        self.nat.as_ref().is_none_or(|nat| !nat.allow_metadata)
    }

    /// Gives a container's address back. Its interfaces go with its namespace. Absent is fine.
    pub async fn leave(&self, key: JobKey) -> Result<()> {
        let Some(nat) = &self.nat else { return Ok(()) };
        if nat.files.get(key)?.is_some() {
            nat.change(Some(key), None).await?;
            nat.files.remove(key)?;
        }
        if !nat.addresses.exists() {
            return Ok(());
        }
        nat.plugin("DEL", key, "", None).await.map(drop)
    }

    /// Takes the host's rules away.
    pub async fn down(&self) -> Result<()> {
        let Some(nat) = &self.nat else { return Ok(()) };
        for (table, from, rule) in nat.jumps() {
            if nat.has_rule(table, from, &rule).await? {
                nat.iptables(table, "-D", from, &rule).await?;
            }
        }
        for (table, command) in [("filter", "-F"), ("filter", "-X"), ("nat", "-F"), ("nat", "-X")] {
            // The chain may never have been made.
            if nat.iptables(table, "-S", &nat.chain, &[]).await.is_ok() {
                nat.iptables(table, command, &nat.chain, &[]).await?;
            }
        }
        match tokio::fs::remove_dir_all(&nat.addresses).await {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

impl Nat {
    /// What the mode needs; none: loopback alone.
    fn find(options: &NetworkOptions<'_>) -> Result<Option<Self>> {
        let mode = options.mode;
        if mode == NetworkMode::Loopback {
            return Ok(None);
        }
        let plugins = PLUGIN_DIRS
            .iter()
            .map(PathBuf::from)
            .find(|dir| PLUGINS.iter().all(|plugin| dir.join(plugin).is_file()));
        let programs = find_program("iptables").zip(find_program("iptables-restore"));
        match (plugins, programs) {
            (Some(plugins), Some((iptables, restore))) => {
                let files = GangFiles::new(options.state_dir);
                Ok(Some(Self {
                    plugins,
                    iptables,
                    restore,
                    allow_metadata: options.allow_metadata,
                    subnet: options.subnet.clone(),
                    chain: format!("CARREL{}", options.suffix),
                    addresses: options.state_dir.join("cni"),
                    under_way: UnderWay::new(options.state_dir),
                    ready: OnceCell::new(),
                    routes: find_program("ip").map(|ip| Routes {
                        ip,
                        files: files.clone(),
                    }),
                    files,
                    changing: Mutex::new(()),
                }))
            }
            (plugins, _) if mode == NetworkMode::Nat => bail!(
                "network = \"nat\" needs {}: install the packages `containernetworking-plugins` and `iptables`",
                if plugins.is_none() {
                    "the CNI plugins ptp and host-local"
                } else {
                    "iptables"
                }
            ),
            _ => {
                tracing::info!("jobs get loopback alone: CNI plugins or iptables are not installed");
                Ok(None)
            }
        }
    }

    /// Puts the host's rules in place, once.
    async fn prepare(&self) -> Result<()> {
        let ready = self.ready.get_or_try_init(|| self.rules()).await;
        ready.context("setting up NAT").copied()
    }

    /// Makes our chains and routes what the files say, but for one container's. Fails where a route of `first` cannot be.
    async fn change(&self, without: Option<JobKey>, first: Option<&Gang>) -> Result<()> {
        let _one_at_a_time = self.changing.lock().await;
        let mut gangs = self.files.all()?;
        gangs.retain(|key, _| Some(*key) != without);
        self.replace_chains(gangs.values().collect()).await?;
        let Some(routes) = &self.routes else { return Ok(()) };
        let is_firsts = |to| first.is_none_or(|gang| gang.peers.iter().any(|peer| peer.address == to));
        let failed = routes.set(gangs.values(), is_firsts).await?;
        for (to, why) in &failed {
            tracing::warn!(%to, why, "a gang's container on another node is not reached");
        }
        let peers = first.into_iter().flat_map(|gang| &gang.peers);
        for peer in peers {
            if let (Some(why), Some(via)) = (failed.get(&peer.address), peer.via) {
                bail!(
                    "this node cannot send to the gang's container on node {node} through {via} ({why}): nodes of a \
                     gang need a network without a router between them. `address` in node.toml names the address in it, \
                     and gang_network = \"host\" lets gangs of whole nodes have the hosts' network instead",
                    node = peer.node
                );
            }
        }
        Ok(())
    }

    /// Rules that lead from the host's chains to ours: table, chain, rule.
    fn jumps(&self) -> [(&'static str, &'static str, Vec<&str>); 5] {
        let subnet = self.subnet.as_str();
        [
            // Those of gangs' containers, whose addresses are not of the subnet.
            (
                "filter",
                "INPUT",
                vec!["-d", METADATA_NETWORKS[0], "-j", &self.chain],
            ),
            ("nat", "POSTROUTING", vec!["-j", &self.chain]),
            // Some clouds have the service on an address of the node itself.
            (
                "filter",
                "INPUT",
                vec!["-s", subnet, "-d", METADATA_NETWORKS[0], "-j", &self.chain],
            ),
            (
                "nat",
                "POSTROUTING",
                vec!["-s", subnet, "!", "-d", subnet, "-j", "MASQUERADE"],
            ),
            ("filter", "FORWARD", vec!["-j", &self.chain]),
        ]
    }

    /// Puts the host's rules in place; those that are there stay.
    async fn rules(&self) -> Result<()> {
        // The chains first: the jumps lead there.
        self.change(None, None).await?;
        for (table, from, rule) in self.jumps() {
            if !self.has_rule(table, from, &rule).await? {
                self.iptables(table, "-I", from, &rule).await?;
            }
        }
        Ok(())
    }

    /// Makes our chains what they are to be, each at one stroke: what an agent before this one left has gone, and at
    /// no moment is there less than a whole chain.
    async fn replace_chains(&self, gangs: Vec<&Gang>) -> Result<()> {
        let rules = Rules {
            chain: &self.chain,
            subnet: &self.subnet,
            allow_metadata: self.allow_metadata,
            gangs,
        };
        let text = rules.text();
        let mut child = Command::new(&self.restore)
            .args(["-w", "--noflush"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("running iptables-restore")?;
        let mut stdin = child.stdin.take().context("iptables-restore has no input")?;
        stdin.write_all(text.as_bytes()).await?;
        drop(stdin);
        let output = child
            .wait_with_output()
            .await
            .context("running iptables-restore")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("iptables-restore of chain {}: {}", self.chain, said.trim());
        }
        Ok(())
    }

    async fn has_rule(&self, table: &str, chain: &str, rule: &[&str]) -> Result<bool> {
        let mut command = Command::new(&self.iptables);
        command.args(["-w", "-t", table, "-C", chain]).args(rule);
        let status = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .await
            .context("running iptables")?;
        Ok(status.success())
    }

    async fn iptables(&self, table: &str, action: &str, chain: &str, rule: &[&str]) -> Result<()> {
        let mut command = Command::new(&self.iptables);
        // -w: another program may hold the lock.
        command
            .args(["-w", "-t", table, action, chain])
            .args(rule)
            .kill_on_drop(true);
        let output = command.output().await.context("running iptables")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!(
                "iptables -t {table} {action} {chain} {}: {}",
                rule.join(" "),
                said.trim()
            );
        }
        Ok(())
    }

    /// Runs the plugin by CNI's protocol (SPEC.md 0.4.0, "Parameters").
    async fn plugin(&self, action: &str, key: JobKey, namespace: &str, gang: Option<&Gang>) -> Result<Value> {
        // One network of the plugins in any case, so that whoever removes needs not know which it was.
        let subnet = gang.map_or_else(|| self.subnet.clone(), |gang| gang.subnet.to_string());
        let addresses: Vec<Ipv4Addr> = gang.iter().map(|gang| gang.own).collect();
        let config = json!({
            "cniVersion": "0.4.0",
            "name": NETWORK,
            "type": "ptp",
            "ipMasq": false,
            "ipam": {
                "type": "host-local",
                "dataDir": self.addresses,
                "ranges": [[{"subnet": subnet}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
            // By name where there is one (CONVENTIONS.md, "ips").
            "args": {"cni": {"ips": addresses}},
        });
        let mut command = Command::new(self.plugins.join("ptp"));
        command
            .env("CNI_COMMAND", action)
            .env("CNI_CONTAINERID", container_id(key))
            .env("CNI_NETNS", namespace)
            .env("CNI_IFNAME", INTERFACE)
            .env("CNI_PATH", &self.plugins)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        self.under_way.held_by(&mut command)?;
        let mut child = command.spawn().context("running the CNI plugin ptp")?;
        // The lock is the plugin's alone from now on.
        drop(command);
        let mut stdin = child.stdin.take().context("the CNI plugin has no input")?;
        stdin.write_all(config.to_string().as_bytes()).await?;
        drop(stdin);
        let output = child
            .wait_with_output()
            .await
            .context("running the CNI plugin ptp")?;
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            let said = answer["msg"]
                .as_str()
                .map_or_else(|| stderr.trim().to_owned(), str::to_owned);
            bail!("the CNI plugin ptp failed at {action} of job {key}: {said}");
        }
        Ok(answer)
    }
}
