//! A cluster of this machine: broker, gateway and agent as children, the same programs as in
//! production, with a state directory of their own.
//!
//! ```text
//! DIR/lock         held while it is up
//! DIR/broker.sock  the broker's API
//! DIR/streams.sock the gateway's byte streams
//! DIR/broker.toml DIR/node.toml  their settings; empty until somebody writes some
//! DIR/broker/ DIR/gateway/ DIR/node/  their state, private to them
//! DIR/log/         their logs
//! ```

pub mod child;

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use carrel_core::model::ids::JobId;
use carrel_proto::v1;

use self::child::Program;
use crate::connect::{self, Address, Client};
use crate::context::request;
use crate::error::{CliError, Context as _, Result};
use crate::terminal::say;
use crate::wait;

/// How long a program may take to come up; a store of 20,000 jobs takes half a second.
const START_PATIENCE: Duration = Duration::from_mins(1);
/// How long jobs may take to end: their grace is 30 seconds at most.
const STOP_PATIENCE: Duration = Duration::from_secs(45);
/// How long a program may take to end.
const END_PATIENCE: Duration = Duration::from_secs(15);
/// Between looks.
const STEP: Duration = Duration::from_millis(20);

/// What the cluster is to be.
#[derive(Clone, Debug)]
pub struct Plan {
    /// State directory, absolute.
    pub dir: PathBuf,
    /// NVML library for the agent.
    pub nvml_library: Option<PathBuf>,
    /// The agent's config file.
    pub node_config: PathBuf,
    /// Images to import: names and archives.
    pub imports: Vec<(String, PathBuf)>,
    /// Image for sessions that name none.
    pub default_image: Option<String>,
}

/// A cluster that is up, or coming up, or going down.
#[derive(Debug)]
pub struct Cluster {
    plan: Plan,
    node_program: PathBuf,
    broker: Option<Program>,
    gateway: Option<Program>,
    agent: Option<Program>,
    // Its lock goes with it.
    _lock: File,
}

impl Cluster {
    /// Takes the state directory. Starts nothing yet.
    pub fn new(plan: Plan) -> Result<Self> {
        let dir = plan.dir.clone();
        for dir in [dir.clone(), dir.join("log")] {
            std::fs::create_dir_all(&dir).context(format_args!("cannot create {}", dir.display()))?;
        }
        // Users other than root reach the sockets in it; what is private is so in directories of its own.
        #[cfg(unix)]
        std::fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .context(format_args!("cannot open {} to users", dir.display()))?;
        let lock = lock(&dir)?;
        // Its own, so that it is not the machine's in /etc/carrel that counts.
        for name in ["broker.toml", "node.toml"] {
            let path = dir.join(name);
            let what = format!("cannot create {}", path.display());
            File::options()
                .create(true)
                .append(true)
                .open(path)
                .context(what)?;
        }
        let node_program = child::find("carrel-node")?;
        Ok(Self {
            plan,
            node_program,
            broker: None,
            gateway: None,
            agent: None,
            _lock: lock,
        })
    }

    /// The broker's address.
    pub fn address(&self) -> Address {
        Address::Unix(self.socket())
    }

    fn socket(&self) -> PathBuf {
        self.plan.dir.join("broker.sock")
    }

    fn log(&self, name: &str) -> PathBuf {
        self.plan.dir.join("log").join(format!("{name}.log"))
    }

    /// Starts everything and waits until the node can be used. Returns the node.
    pub async fn start(&mut self) -> Result<v1::Node> {
        let programs = child::find("carrel-broker")?;
        let mut client = self.start_broker(&programs).await?;
        self.start_gateway(&programs, &mut client).await?;
        let name = self.join(&mut client).await?;
        self.import_images().await?;
        self.start_agent(&mut client, name).await
    }

    async fn start_broker(&mut self, program: &Path) -> Result<Client> {
        let listen = format!("127.0.0.1:{}", port(&self.plan.dir)?);
        let mut args = arguments(
            &["serve"],
            &[
                ("--state", self.plan.dir.join("broker").into()),
                ("--config", self.plan.dir.join("broker.toml").into()),
                ("--socket", self.socket().into()),
                ("--listen", listen.into()),
            ],
        );
        if let Some(image) = &self.plan.default_image {
            args.extend(["--default-image".into(), image.into()]);
        }
        // A socket of a run before this one must not be taken for this one's.
        std::fs::remove_file(self.socket()).ok();
        let (address, log) = (self.address(), self.log("broker"));
        let broker = self.broker.insert(Program::start("broker", program, &args, log)?);
        patiently("the broker does not answer", broker, async || {
            let mut client = connect::connect(&address).await.ok()?;
            client.get_cluster(v1::GetClusterRequest {}).await.ok()?;
            Some(client)
        })
        .await
    }

    async fn start_gateway(&mut self, program: &Path, client: &mut Client) -> Result<()> {
        let dir = &self.plan.dir;
        let unix = |path: PathBuf| {
            let mut text = OsString::from("unix:");
            text.push(path);
            text
        };
        let args = arguments(
            &["gateway"],
            &[
                ("--state", dir.join("gateway").into()),
                ("--broker", unix(self.socket())),
                ("--listen-ssh", "127.0.0.1:0".into()),
                ("--listen-link", "127.0.0.1:0".into()),
                ("--listen-streams", unix(dir.join("streams.sock"))),
            ],
        );
        let log = self.log("gateway");
        let gateway = self
            .gateway
            .insert(Program::start("gateway", program, &args, log)?);
        patiently("the gateway does not enrol at the broker", gateway, async || {
            let cluster = client.get_cluster(v1::GetClusterRequest {}).await.ok()?;
            (!cluster.into_inner().ssh_gateway.is_empty()).then_some(())
        })
        .await
    }

    /// Makes this machine a node, unless it is one already. Returns its name.
    async fn join(&mut self, client: &mut Client) -> Result<String> {
        let name = host_name()?;
        let request = v1::CreateNodeTokenRequest {
            node: name.clone(),
            ttl_s: 600,
        };
        let token = client.create_node_token(request).await?.into_inner();
        let args = arguments(
            &["join"],
            &[
                ("--state", self.node_state()),
                ("--config", self.plan.node_config.clone().into()),
                ("--broker", token.broker.into()),
                ("--ca-fingerprint", token.ca_fingerprint.into()),
                ("--node", name.clone().into()),
            ],
        );
        let env = [("CARREL_JOIN_TOKEN", token.token.as_str())];
        child::run(
            "agent's joining",
            &self.node_program,
            &args,
            &env,
            self.log("join"),
        )
        .await?;
        Ok(name)
    }

    async fn import_images(&self) -> Result<()> {
        for (name, archive) in &self.plan.imports {
            say(format_args!("carrel: importing {} as {name}", archive.display()));
            let mut args = self.node_arguments(&["image", "import"]);
            args.extend(["--name".into(), name.into(), archive.into()]);
            child::run(
                "import of an image",
                &self.node_program,
                &args,
                &[],
                self.log("import"),
            )
            .await?;
        }
        Ok(())
    }

    async fn start_agent(&mut self, client: &mut Client, name: String) -> Result<v1::Node> {
        let args = self.node_arguments(&["run"]);
        let log = self.log("node");
        let agent = self
            .agent
            .insert(Program::start("agent", &self.node_program, &args, log)?);
        let begun = now_ms();
        patiently("the node does not come up", agent, async || {
            let nodes = client
                .list_nodes(v1::ListNodesRequest {})
                .await
                .ok()?
                .into_inner()
                .nodes;
            nodes
                .into_iter()
                .find(|node| node.name == name && node.last_contact_ms >= begun && is_up(node))
        })
        .await
    }

    fn node_state(&self) -> OsString {
        self.plan.dir.join("node").into()
    }

    fn node_arguments(&self, verb: &[&str]) -> Vec<OsString> {
        let config = self.plan.node_config.clone();
        let mut args = arguments(
            verb,
            &[("--state", self.node_state()), ("--config", config.into())],
        );
        if let Some(library) = &self.plan.nvml_library {
            args.extend(["--nvml-library".into(), library.into()]);
        }
        args
    }

    /// Waits until one of the programs ends by itself, which none should. Safe to cancel.
    pub async fn broken(&mut self) -> CliError {
        let (Some(broker), Some(gateway), Some(agent)) =
            (&mut self.broker, &mut self.gateway, &mut self.agent)
        else {
            return CliError::failed("the cluster is not up");
        };
        tokio::select! {
            error = broker.ended_by_itself() => error,
            error = gateway.ended_by_itself() => error,
            error = agent.ended_by_itself() => error,
        }
    }

    /// Ends every job, in the broker's own way, and waits for their release.
    pub async fn stop_jobs(&self) {
        if self.broker.is_none() || self.agent.is_none() {
            return;
        }
        let Ok(mut client) = connect::connect(&self.address()).await else {
            return;
        };
        let begun = tokio::time::Instant::now();
        let mut asked = std::collections::BTreeSet::new();
        while begun.elapsed() < STOP_PATIENCE {
            let all = v1::ListJobsRequest {
                all_users: true,
                ended: false,
            };
            let Ok(jobs) = client.list_jobs(all).await else {
                return;
            };
            let jobs = jobs.into_inner().jobs;
            if jobs.is_empty() {
                return;
            }
            for job in jobs {
                if !asked.insert(job.id) || wait::is_over(job.state()) {
                    continue;
                }
                // One that cannot be ended is ended with its node.
                if job.session == 0 {
                    client.cancel_job(request(&JobId(job.id).into())).await.ok();
                } else {
                    let request = v1::StopSessionRequest {
                        name: format!("#{}", job.session),
                        job: job.id,
                        exit_code: None,
                    };
                    client.stop_session(request).await.ok();
                }
            }
            tokio::time::sleep(STEP).await;
        }
    }

    /// Ends the programs and whatever the agent left on this machine.
    pub async fn end(&mut self, hurried: bool) -> Result<()> {
        let patience = if hurried {
            Duration::from_millis(500)
        } else {
            END_PATIENCE
        };
        if let Some(mut agent) = self.agent.take() {
            agent.end(patience).await;
        }
        let args = self.node_arguments(&["down"]);
        let down = if Path::new(&self.node_state()).exists() {
            child::run(
                "agent's clean-up",
                &self.node_program,
                &args,
                &[],
                self.log("down"),
            )
            .await
        } else {
            Ok(())
        };
        for program in [&mut self.gateway, &mut self.broker] {
            if let Some(mut program) = program.take() {
                program.end(patience).await;
            }
        }
        down
    }
}

fn is_up(node: &v1::Node) -> bool {
    matches!(
        node.state.as_str(),
        "IDLE" | "MIXED" | "ALLOCATED" | "RESERVED" | "MAINT" | "DRAINING" | "DRAINED"
    )
}

/// A verb and its flags.
fn arguments(verb: &[&str], pairs: &[(&str, OsString)]) -> Vec<OsString> {
    let verb = verb.iter().map(OsString::from);
    verb.chain(
        pairs
            .iter()
            .flat_map(|(name, value)| [OsString::from(name), value.clone()]),
    )
    .collect()
}

/// Waits for something that a program brings about, as long as the program lives.
async fn patiently<T>(
    what: &str,
    program: &mut Program,
    mut look: impl AsyncFnMut() -> Option<T>,
) -> Result<T> {
    let begun = tokio::time::Instant::now();
    loop {
        if let Some(found) = look().await {
            return Ok(found);
        }
        if let Some(error) = program.death() {
            return Err(error);
        }
        if begun.elapsed() > START_PATIENCE {
            return Err(CliError::failed(format!(
                "{what}, after {} s",
                START_PATIENCE.as_secs()
            )));
        }
        tokio::time::sleep(STEP).await;
    }
}

/// Takes the directory for this process.
fn lock(dir: &Path) -> Result<File> {
    let path = dir.join("lock");
    let what = format!("cannot lock {}", path.display());
    let mut file = File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(&path)
        .context(&what)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(std::fs::TryLockError::WouldBlock) => {
            let mut holder = String::new();
            file.read_to_string(&mut holder).ok();
            return Err(CliError::failed(format!(
                "another `carrel up` (process {}) uses {}",
                holder.trim(),
                dir.display()
            ))
            .hint(format!(
                "use it with CARREL_BROKER=unix:{}/broker.sock, or give --state another directory",
                dir.display()
            )));
        }
        Err(std::fs::TryLockError::Error(error)) => return Err(error).context(&what),
    }
    file.set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .context(&what)?;
    Ok(file)
}

/// The broker's TLS port: the one of last time, since the agent remembers it, or a free one.
fn port(dir: &Path) -> Result<u16> {
    let path = dir.join("port");
    let last = std::fs::read_to_string(&path)
        .ok()
        .and_then(|text| text.trim().parse::<u16>().ok());
    let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).and_then(|listener| listener.local_addr());
    let found = match last.map(free) {
        Some(Ok(address)) => address,
        Some(Err(_)) | None => free(0).context("cannot find a free port")?,
    };
    std::fs::write(&path, found.port().to_string())
        .context(format_args!("cannot write {}", path.display()))?;
    Ok(found.port())
}

fn host_name() -> Result<String> {
    let name = nix::unistd::gethostname().context("cannot find this machine's name")?;
    let name = name.to_string_lossy().into_owned();
    Ok(if name.parse::<carrel_core::model::ids::NodeName>().is_ok() {
        name
    } else {
        "localhost".into()
    })
}

fn now_ms() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |since| since.as_millis() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_up_is_told_of_the_first() {
        let temp = tempfile::tempdir().unwrap();
        let _first = lock(temp.path()).unwrap();
        let error = lock(temp.path()).unwrap_err();
        assert!(
            error.message.contains(&format!("process {}", std::process::id())),
            "{error}"
        );
    }

    #[test]
    fn the_port_is_kept() {
        let temp = tempfile::tempdir().unwrap();
        let first = port(temp.path()).unwrap();
        assert_eq!(port(temp.path()).unwrap(), first);
    }
}
