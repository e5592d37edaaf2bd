//! A job's network: its own namespace, always with lo; with the distribution's
//! CNI plugins a way out by NAT, and none in.
//!
//! Each container is joined to the host by a pair of its own (CNI's `ptp`),
//! not to a bridge: whatever goes from one job to another passes the host's
//! forwarding rules, which refuse it. They refuse the cloud's metadata service,
//! too: it takes whoever asks for the node itself.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use carrel_core::model::ids::JobKey;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::sync::OnceCell;

use super::client::find_program;
use super::netns::NetworkNamespace;
use super::record::container_id;

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

/// The network of one node.
pub(crate) struct Network {
    /// None: loopback alone.
    nat: Option<Nat>,
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
    /// Whether the host's rules are in place.
    ready: OnceCell<()>,
}

impl Network {
    /// Looks for what the mode needs.
    pub fn new(options: NetworkOptions<'_>) -> Result<Self> {
        let mode = options.mode;
        if mode == NetworkMode::Loopback {
            return Ok(Self { nat: None });
        }
        let plugins = PLUGIN_DIRS
            .iter()
            .map(PathBuf::from)
            .find(|dir| PLUGINS.iter().all(|plugin| dir.join(plugin).is_file()));
        let programs = find_program("iptables").zip(find_program("iptables-restore"));
        match (plugins, programs) {
            (Some(plugins), Some((iptables, restore))) => Ok(Self {
                nat: Some(Nat {
                    plugins,
                    iptables,
                    restore,
                    allow_metadata: options.allow_metadata,
                    subnet: options.subnet,
                    chain: format!("CARREL{}", options.suffix),
                    addresses: options.state_dir.join("cni"),
                    ready: OnceCell::new(),
                }),
            }),
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
                Ok(Self { nat: None })
            }
        }
    }

    /// For people: what jobs get.
    pub fn describe(&self) -> &'static str {
        match self.nat {
            Some(_) => "own namespace, NAT out, nothing in",
            None => "own namespace, loopback only",
        }
    }

    /// A namespace to be joined and then given to a container; none: the container's own, with loopback alone, will do.
    pub async fn namespace(&self) -> Result<Option<NetworkNamespace>> {
        match self.nat {
            Some(_) => NetworkNamespace::make().await.map(Some),
            None => Ok(None),
        }
    }

    /// Joins a job's network namespace to the host; gives its address.
    pub async fn join(&self, key: JobKey, namespace: &NetworkNamespace) -> Result<Option<IpAddr>> {
        let Some(nat) = &self.nat else { return Ok(None) };
        nat.ready
            .get_or_try_init(|| nat.rules())
            .await
            .context("setting up NAT")?;
        let result = nat.plugin("ADD", key, &namespace.path()).await?;
        let address = result["ips"][0]["address"]
            .as_str()
            .and_then(|text| text.split('/').next()?.parse().ok());
        Ok(Some(address.context("the CNI plugin gave no address")?))
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
        if !nat.addresses.exists() {
            return Ok(());
        }
        nat.plugin("DEL", key, "").await.map(drop)
    }

    /// Takes the host's rules away.
    pub async fn down(&self) -> Result<()> {
        let Some(nat) = &self.nat else { return Ok(()) };
        for (table, from, rule) in nat.jumps() {
            if nat.has_rule(table, from, &rule).await? {
                nat.iptables(table, "-D", from, &rule).await?;
            }
        }
        for command in ["-F", "-X"] {
            // The chain may never have been made.
            if nat.iptables("filter", "-S", &nat.chain, &[]).await.is_ok() {
                nat.iptables("filter", command, &nat.chain, &[]).await?;
            }
        }
        match tokio::fs::remove_dir_all(&nat.addresses).await {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

impl Nat {
    /// Rules that lead from the host's chains to ours: table, chain, rule.
    fn jumps(&self) -> [(&'static str, &'static str, Vec<&str>); 3] {
        let subnet = self.subnet.as_str();
        [
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
        self.replace_chain().await?;
        for (table, from, rule) in self.jumps() {
            if !self.has_rule(table, from, &rule).await? {
                self.iptables(table, "-I", from, &rule).await?;
            }
        }
        Ok(())
    }

    /// Our chain's rules, in order.
    fn chain_rules(&self) -> Vec<String> {
        let subnet = &self.subnet;
        let mut rules = vec![
            format!("-d {subnet} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"),
            // Refused and not dropped: who tries, the fence's trial above all, knows at once.
            format!("-s {subnet} -d {subnet} -j REJECT --reject-with icmp-admin-prohibited"),
        ];
        for network in METADATA_NETWORKS.into_iter().filter(|_| !self.allow_metadata) {
            // Some clouds' name servers have these addresses.
            rules.extend(
                ["udp", "tcp"].map(|kind| format!("-s {subnet} -d {network} -p {kind} --dport 53 -j ACCEPT")),
            );
            rules.push(format!(
                "-s {subnet} -d {network} -j REJECT --reject-with icmp-admin-prohibited"
            ));
        }
        rules.push(format!("-s {subnet} -j ACCEPT"));
        rules.push(format!("-d {subnet} -j DROP"));
        rules
    }

    /// Makes our chain what it is to be, at one stroke: what an agent before this one left has gone, and at
    /// no moment is there less than a whole chain.
    async fn replace_chain(&self) -> Result<()> {
        let mut text = format!("*filter\n:{} - [0:0]\n", self.chain);
        for rule in self.chain_rules() {
            text += &format!("-A {} {rule}\n", self.chain);
        }
        text += "COMMIT\n";
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
    async fn plugin(&self, action: &str, key: JobKey, namespace: &str) -> Result<Value> {
        let config = json!({
            "cniVersion": "0.4.0",
            "name": NETWORK,
            "type": "ptp",
            "ipMasq": false,
            "ipam": {
                "type": "host-local",
                "dataDir": self.addresses,
                "ranges": [[{"subnet": self.subnet}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        });
        let mut child = Command::new(self.plugins.join("ptp"))
            .env("CNI_COMMAND", action)
            .env("CNI_CONTAINERID", container_id(key))
            .env("CNI_NETNS", namespace)
            .env("CNI_IFNAME", INTERFACE)
            .env("CNI_PATH", &self.plugins)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("running the CNI plugin ptp")?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(allow_metadata: bool) -> Vec<String> {
        Nat {
            plugins: PathBuf::new(),
            iptables: PathBuf::new(),
            restore: PathBuf::new(),
            allow_metadata,
            subnet: "10.0.0.0/20".into(),
            chain: "CARREL".into(),
            addresses: PathBuf::new(),
            ready: OnceCell::new(),
        }
        .chain_rules()
    }

    /// The first rule that fits counts: what is refused comes before what is let out.
    #[test]
    fn what_is_refused_comes_before_what_is_let_out() {
        let rules = rules(false);
        let at = |part: &str| rules.iter().position(|rule| rule.contains(part)).expect(part);
        let out = at("-s 10.0.0.0/20 -j ACCEPT");
        assert!(at("-d 10.0.0.0/20 -j REJECT") < out);
        for network in METADATA_NETWORKS {
            assert!(
                at(&format!("-d {network} -p udp --dport 53 -j ACCEPT"))
                    < at(&format!("-d {network} -j REJECT"))
            );
            assert!(at(&format!("-d {network} -j REJECT")) < out);
        }
        assert_eq!(rules.last().map(String::as_str), Some("-d 10.0.0.0/20 -j DROP"));
    }

    #[test]
    fn operators_may_open_the_metadata_service() {
        assert!(!rules(true).iter().any(|rule| rule.contains("169.254")));
        assert!(
            rules(true)
                .iter()
                .any(|rule| rule.contains("-d 10.0.0.0/20 -j REJECT"))
        );
    }
}
