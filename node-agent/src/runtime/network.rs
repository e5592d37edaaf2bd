//! A job's network: its own namespace, always with lo; with the distribution's
//! CNI plugins a way out by NAT, and none in.
//!
//! Each container is joined to the host by a pair of its own (CNI's `ptp`),
//! not to a bridge: whatever goes from one job to another passes the host's
//! forwarding rules, which drop it.

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

struct Nat {
    plugins: PathBuf,
    iptables: PathBuf,
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
    /// Looks for what the mode needs. `suffix` tells this node's rules from another agent's on the same host.
    pub fn new(mode: NetworkMode, subnet: String, suffix: &str, state_dir: &Path) -> Result<Self> {
        if mode == NetworkMode::Loopback {
            return Ok(Self { nat: None });
        }
        let plugins = PLUGIN_DIRS
            .iter()
            .map(PathBuf::from)
            .find(|dir| PLUGINS.iter().all(|plugin| dir.join(plugin).is_file()));
        match (plugins, find_program("iptables")) {
            (Some(plugins), Some(iptables)) => Ok(Self {
                nat: Some(Nat {
                    plugins,
                    iptables,
                    subnet,
                    chain: format!("CARREL{suffix}"),
                    addresses: state_dir.join("cni"),
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
    fn jumps(&self) -> [(&'static str, &'static str, Vec<&str>); 2] {
        let subnet = self.subnet.as_str();
        [
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
        let subnet = self.subnet.as_str();
        if self.iptables("filter", "-S", &self.chain, &[]).await.is_err() {
            self.iptables("filter", "-N", &self.chain, &[]).await?;
        }
        let answers = [
            "-d",
            subnet,
            "-m",
            "conntrack",
            "--ctstate",
            "RELATED,ESTABLISHED",
            "-j",
            "ACCEPT",
        ];
        let sideways = ["-s", subnet, "-d", subnet, "-j", "DROP"];
        let out = ["-s", subnet, "-j", "ACCEPT"];
        let into = ["-d", subnet, "-j", "DROP"];
        for rule in [&answers[..], &sideways, &out, &into] {
            if !self.has_rule("filter", &self.chain, rule).await? {
                self.iptables("filter", "-A", &self.chain, rule).await?;
            }
        }
        for (table, from, rule) in self.jumps() {
            if !self.has_rule(table, from, &rule).await? {
                self.iptables(table, "-I", from, &rule).await?;
            }
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
            "name": "carrel",
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
