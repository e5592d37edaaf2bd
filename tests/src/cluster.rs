//! A real cluster for a test: the real programs, in a sandbox.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::gates::Gates;
use crate::image::Image;
use crate::process::{Cmd, Daemon};
use crate::programs::{Profile, Programs, repository};
use crate::sandbox::Sandbox;
use crate::terminal::Terminal;
use crate::user::{ALICE, BOB, ROOT, User};
use crate::wait;

/// Ports on the sandbox's own loopback: no two clusters meet.
pub const BROKER_PORT: u16 = 7070;
/// Port of the SSH jump host.
pub const JUMP_PORT: u16 = 7022;
/// Port of the agents' links to the gateway.
pub const LINK_PORT: u16 = 7443;
/// Port of byte streams.
pub const STREAM_PORT: u16 = 7444;

/// The broker's address where nodes have networks of their own.
const BRIDGE: &str = "10.77.0.1";

/// A node's address where nodes have networks of their own.
pub fn node_address(index: usize) -> String {
    format!("10.77.0.{}", index + 10)
}

/// What a cluster is to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// One a node: a described host, by its file's name in `tests/hosts` without ".toml"; none: no GPUs. Each node
    /// has the description in [`Cluster::host`], so that what its GPUs are cut into is its own.
    pub hosts: Vec<Option<&'static str>>,
    /// Images that every node has; the first is the default.
    pub images: Vec<Image>,
    /// Which build of the programs.
    pub profile: Profile,
    /// The broker's configuration file; empty: none. Relative paths in it are below the cluster's directory.
    pub broker_config: String,
    /// Files in the cluster's directory: names and what is in them.
    pub files: Vec<(&'static str, String)>,
    /// Flags added to the broker's.
    pub broker_flags: Vec<String>,
    /// Flags added to the gateway's.
    pub gateway_flags: Vec<String>,
    /// Flags added to every agent's.
    pub agent_flags: Vec<String>,
    /// Nodes offer the machine's CPUs and not more, so that jobs get CPUs of their own.
    pub own_cpus: bool,
    /// Configuration files of the first agents, "n0" first; others have none. HOST in them is [`Cluster::host`].
    pub agent_configs: Vec<&'static str>,
    /// Room on a disk of the broker's own, MiB; none: it shares the host's.
    pub broker_room_mib: Option<u32>,
    /// Each node has a network namespace of its own, as a host has, on one bridge with the broker's: [`node_address`].
    pub networks: bool,
    /// What nodes ask of runc can be held up: [`Cluster::gates`].
    pub gates: bool,
}

impl Default for Options {
    /// One described HGX H100 with an image of busybox.
    fn default() -> Self {
        Self {
            hosts: vec![Some("hgx-h100")],
            images: vec![Image::Busybox],
            profile: Profile::Debug,
            broker_config: String::new(),
            files: Vec::new(),
            broker_flags: Vec::new(),
            gateway_flags: Vec::new(),
            agent_flags: Vec::new(),
            own_cpus: false,
            agent_configs: Vec::new(),
            broker_room_mib: None,
            networks: false,
            gates: false,
        }
    }
}

/// A running cluster. Dropping it ends everything.
#[derive(Debug)]
pub struct Cluster {
    /// Killed and restarted by tests that own the cluster.
    pub broker: Daemon,
    /// The same.
    pub gateway: Daemon,
    /// One a node, "n0" first.
    pub agents: Vec<Daemon>,
    sandbox: Sandbox,
    networks: bool,
}

impl Cluster {
    /// Starts one and waits until every node is ready for work.
    ///
    /// # Panics
    /// It does not come up: with the programs' logs.
    pub fn start(options: &Options) -> Self {
        let archives: Vec<_> = options
            .images
            .iter()
            .map(|image| (image.name(), image.archive()))
            .collect();
        let sandbox = Sandbox::start(&Programs::find(options.profile), &[ALICE, BOB]);
        let logs = sandbox.root().join("logs");
        if let Some(room) = options.broker_room_mib {
            let state = sandbox.root().join("broker");
            fs::create_dir(&state).expect("own directory");
            Cmd::new(sandbox.argv(ROOT, &[], "mount".as_ref()))
                .args(["-t", "tmpfs", "-o"])
                .arg(format!("mode=0755,size={room}m"))
                .arg("tmpfs")
                .arg(state)
                .ok();
        }
        for (name, text) in &options.files {
            fs::write(sandbox.root().join(name), text).expect("own file");
        }
        if options.networks {
            networks(&sandbox, options.hosts.len());
        }
        if options.gates {
            Gates::of(sandbox.root()).install();
        }
        let daemon = |name: &str, env: &[(String, OsString)], program: &str, args: &[OsString]| {
            let mut argv = sandbox.argv(ROOT, env, sandbox.program(program).as_os_str());
            argv.extend_from_slice(args);
            Daemon::start(name, argv, &logs)
        };

        let broker = daemon(
            "broker",
            &[],
            "carrel-broker",
            &broker_args(sandbox.root(), options),
        );
        let gateway = daemon(
            "gateway",
            &[],
            "carrel-broker",
            &gateway_args(sandbox.root(), options),
        );
        let mut cluster = Self {
            broker,
            gateway,
            agents: Vec::new(),
            sandbox,
            networks: options.networks,
        };
        cluster.ready("the broker answers", |this| {
            this.carrel(ROOT, ["nodes"]).run().code == 0
        });

        for (index, host) in options.hosts.iter().enumerate() {
            let state = cluster.node_state(index);
            fs::create_dir(&state).expect("own directory");
            cluster.join(index);
            let env = cluster.node_env(index);
            if let Some(host) = host {
                cluster.describe(index, host, &env);
            }
            for (name, archive) in &archives {
                let import = cluster.on_node(index, &env, cluster.sandbox.program("carrel-node"));
                let flags = cluster.node_flags(index, options);
                Cmd::new(import)
                    .args(["image", "import"])
                    .args(flags)
                    .arg("--name")
                    .arg(name)
                    .arg(archive)
                    .ok();
            }
            let mut argv = cluster.on_node(index, &env, cluster.sandbox.program("carrel-node"));
            argv.push("run".into());
            argv.extend(cluster.node_flags(index, options));
            cluster.agents.push(Daemon::start(
                &format!("n{index}"),
                argv,
                &cluster.root().join("logs"),
            ));
        }
        let wanted = options.hosts.len();
        cluster.ready("every node is idle", |this| {
            let nodes = this.json(ROOT, ["nodes"]);
            nodes
                .as_array()
                .is_some_and(|nodes| nodes.iter().filter(|node| node["state"] == "IDLE").count() == wanted)
        });
        cluster
    }

    /// Waits for a condition; when it does not come, shows the logs.
    #[track_caller]
    pub fn ready(&self, what: &str, mut condition: impl FnMut(&Self) -> bool) {
        let held = wait::poll(wait::PATIENCE, || condition(self).then_some(()));
        let seconds = wait::PATIENCE.as_secs();
        assert!(
            held.is_some(),
            "after {seconds} s still not so: {what}
{}",
            self.last_logs()
        );
    }

    /// Its directory.
    pub fn root(&self) -> &Path {
        self.sandbox.root()
    }

    /// What holds up its nodes' containers; made with [`Options::gates`].
    pub fn gates(&self) -> Gates {
        Gates::of(self.root())
    }

    /// The namespaces that it lives in.
    pub fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// The broker's address for clients on its machine.
    pub fn address(&self) -> String {
        format!("unix:{}", self.root().join("broker/broker.sock").display())
    }

    /// The broker's address over TLS.
    pub fn tls_address(&self) -> String {
        format!("https://{}:{BROKER_PORT}", host(self.networks))
    }

    /// A program of a node's host, with its network.
    pub fn node_cmd(&self, index: usize, program: impl AsRef<OsStr>) -> Cmd {
        Cmd::new(self.on_node(index, &[], program))
    }

    fn on_node(&self, index: usize, env: &[(String, OsString)], program: impl AsRef<OsStr>) -> Vec<OsString> {
        if !self.networks {
            return self.sandbox.argv(ROOT, env, program.as_ref());
        }
        let mut argv = self.sandbox.argv(ROOT, env, "nsenter".as_ref());
        argv.push(format!("--net=/run/netns/n{index}").into());
        argv.push(program.as_ref().to_owned());
        argv
    }

    /// State directory of a node's agent.
    pub fn node_state(&self, index: usize) -> PathBuf {
        self.root().join(format!("n{index}"))
    }

    /// The directory of a node's described host: "host.toml", and beside it the files that it names.
    pub fn host(&self, index: usize) -> PathBuf {
        self.root().join("hosts").join(format!("n{index}"))
    }

    /// `nvidia-smi` on a node's described host.
    pub fn nvidia_smi(&self, index: usize) -> Cmd {
        let argv = self
            .sandbox
            .argv(ROOT, &self.node_env(index), "nvidia-smi".as_ref());
        Cmd::new(argv)
    }

    /// Any program inside, as a user, with the broker's address in the environment.
    pub fn cmd(&self, user: User, program: impl AsRef<OsStr>) -> Cmd {
        self.cmd_with(user, &[], program)
    }

    /// The same with more environment.
    pub fn cmd_with(&self, user: User, env: &[(&str, &str)], program: impl AsRef<OsStr>) -> Cmd {
        let mut all = vec![("CARREL_BROKER".to_owned(), OsString::from(self.address()))];
        all.extend(
            env.iter()
                .map(|(name, value)| ((*name).to_owned(), OsString::from(value))),
        );
        Cmd::new(self.sandbox.argv(user, &all, program.as_ref()))
    }

    /// `carrel` with arguments.
    pub fn carrel<S: AsRef<OsStr>>(&self, user: User, args: impl IntoIterator<Item = S>) -> Cmd {
        self.cmd(user, self.sandbox.program("carrel")).args(args)
    }

    /// What `carrel … --output json` prints.
    ///
    /// # Panics
    /// It fails, or prints no JSON.
    #[track_caller]
    pub fn json<S: AsRef<OsStr>>(&self, user: User, args: impl IntoIterator<Item = S>) -> Value {
        let output = self.carrel(user, args).args(["--output", "json"]).run();
        let text = output.clone().ok();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("no JSON ({error}): {output}"))
    }

    /// `carrel` with arguments, in a terminal.
    pub fn terminal<S: AsRef<OsStr>>(&self, user: User, args: impl IntoIterator<Item = S>) -> Terminal {
        Terminal::start(&self.carrel(user, args))
    }

    /// OpenSSH's client, which must never have to ask anything.
    pub fn ssh<S: AsRef<OsStr>>(&self, user: User, args: impl IntoIterator<Item = S>) -> Cmd {
        self.cmd(user, "ssh").args(["-o", "BatchMode=yes"]).args(args)
    }

    /// Opens a session with an SSH alias; it is removed when the value goes.
    #[track_caller]
    pub fn open(&self, user: User, name: &str, args: &[&str]) -> Session<'_> {
        self.carrel(user, ["open", name, "--editor", "none"])
            .args(args)
            .ok();
        Session {
            cluster: self,
            user,
            name: name.into(),
        }
    }

    /// All that every program has logged.
    pub fn logs(&self) -> String {
        let agents = self.agents.iter().map(Daemon::log);
        [self.broker.log(), self.gateway.log()]
            .into_iter()
            .chain(agents)
            .collect()
    }

    /// The last lines of every program's log.
    pub fn last_logs(&self) -> String {
        let agents = self.agents.iter().map(Daemon::last_log);
        [self.broker.last_log(), self.gateway.last_log()]
            .into_iter()
            .chain(agents)
            .collect()
    }
}

/// A session that a test opened.
#[derive(Debug)]
pub struct Session<'a> {
    cluster: &'a Cluster,
    user: User,
    name: String,
}

impl Session<'_> {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its SSH alias.
    pub fn alias(&self) -> String {
        format!("carrel-{}", self.name)
    }

    /// A command in it, through OpenSSH and the alias.
    pub fn ssh<S: AsRef<OsStr>>(&self, command: impl IntoIterator<Item = S>) -> Cmd {
        self.cluster.ssh(self.user, [self.alias()]).args(command)
    }

    /// Its record.
    #[track_caller]
    pub fn record(&self) -> Value {
        self.cluster.json(self.user, ["show", &self.name])
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        let removed = self.cluster.carrel(self.user, ["rm", "-f", &self.name]).run();
        assert!(removed.code == 0 || std::thread::panicking(), "{removed}");
    }
}

/// Where broker and gateway are dialled.
fn host(networks: bool) -> &'static str {
    if networks { BRIDGE } else { "127.0.0.1" }
}

/// Gives so many nodes a network namespace each, and joins them on a bridge with the sandbox's own.
fn networks(sandbox: &Sandbox, nodes: usize) {
    let mut script = format!(
        "set -eu\nip link add lan type bridge\nip addr add {BRIDGE}/24 dev lan\nip link set lan up\n"
    );
    for index in 0..nodes {
        let address = node_address(index);
        script += &format!(
            "ip netns add n{index}\nip link add lan{index} type veth peer name nic netns n{index}\n\
             ip link set lan{index} master lan up\nip -n n{index} link set lo up\n\
             ip -n n{index} addr add {address}/24 dev nic\nip -n n{index} link set nic up\n"
        );
    }
    Cmd::new(sandbox.argv(ROOT, &[], "bash".as_ref()))
        .args(["-c", &script])
        .ok();
}

fn broker_args(root: &Path, options: &Options) -> Vec<OsString> {
    let mut args: Vec<OsString> = vec!["serve".into(), "--state".into(), root.join("broker").into()];
    let host = host(options.networks);
    args.extend(["--listen".into(), format!("{host}:{BROKER_PORT}").into()]);
    args.extend(["--advertise".into(), format!("{host}:{BROKER_PORT}").into()]);
    if let Some(image) = options.images.first() {
        args.extend(["--default-image".into(), image.name().into()]);
    }
    if !options.broker_config.is_empty() {
        let file = root.join("broker.toml");
        fs::write(&file, &options.broker_config).expect("own file");
        args.extend(["--config".into(), file.into()]);
    }
    args.extend(options.broker_flags.iter().map(Into::into));
    args
}

fn gateway_args(root: &Path, options: &Options) -> Vec<OsString> {
    let broker = format!("unix:{}", root.join("broker/broker.sock").display());
    let mut args: Vec<OsString> = vec!["gateway".into(), "--state".into(), root.join("gateway").into()];
    args.extend(["--broker".into(), broker.into()]);
    let host = host(options.networks);
    args.extend(["--listen-ssh".into(), format!("{host}:{JUMP_PORT}").into()]);
    args.extend(["--listen-link".into(), format!("{host}:{LINK_PORT}").into()]);
    let streams = format!("unix:{}", root.join("gateway/streams.sock").display());
    args.extend(["--listen-streams".into(), streams.into()]);
    args.extend(["--listen-streams".into(), format!("{host}:{STREAM_PORT}").into()]);
    args.extend(options.gateway_flags.iter().map(Into::into));
    args
}

impl Cluster {
    /// Makes the host a node: a token from the broker, a certificate for the agent.
    fn join(&self, index: usize) {
        let token = self.json(ROOT, ["node", "token"]);
        let text = |field: &str| token[field].as_str().unwrap_or_default().to_owned();
        let node = self.cmd(ROOT, self.sandbox.program("carrel-node"));
        node.args(["join", "--state"])
            .arg(self.node_state(index))
            .arg("--broker")
            .arg(self.tls_address())
            .arg("--token")
            .arg(text("token"))
            .arg("--ca-fingerprint")
            .arg(text("ca_fingerprint"))
            .arg("--node")
            .arg(format!("n{index}"))
            .ok();
    }

    /// Gives a node its described host, with the CDI specification of it.
    fn describe(&self, index: usize, host: &str, env: &[(String, OsString)]) {
        let dir = self.host(index);
        fs::create_dir_all(dir.join("cdi")).expect("own directory");
        let described = repository().join("tests/hosts").join(format!("{host}.toml"));
        fs::copy(&described, dir.join("host.toml"))
            .unwrap_or_else(|error| panic!("{}: {error}", described.display()));
        // Its own: what it is to fail at stands beside it.
        let mps = self.sandbox.program_outside("carrel-fake-mps-control");
        fs::copy(mps, dir.join("nvidia-cuda-mps-control")).expect("own directory");
        let argv = self.sandbox.argv(ROOT, env, "nvidia-smi".as_ref());
        let specification = Cmd::new(argv).arg("cdi-spec").ok();
        fs::write(dir.join("cdi/described.json"), specification).expect("own file");
    }

    fn node_env(&self, index: usize) -> Vec<(String, OsString)> {
        let host = self.host(index).join("host.toml");
        vec![
            (
                "CARREL_INIT".to_owned(),
                self.sandbox.carrel_init().into_os_string(),
            ),
            ("CARREL_FAKE_NVML".to_owned(), host.into_os_string()),
        ]
    }

    fn node_flags(&self, index: usize, options: &Options) -> Vec<OsString> {
        let mut flags: Vec<OsString> = vec!["--state".into(), self.node_state(index).into()];
        let described = options.hosts.get(index).is_some_and(Option::is_some);
        let library = if described {
            self.sandbox.program("libnvidia_ml.so")
        } else {
            PathBuf::from("/nonexistent/libnvidia-ml.so.1")
        };
        flags.extend(["--nvml-library".into(), library.into()]);
        // As many CPUs and as much memory as tests ask for: limits, not reservations, on the machine at hand.
        flags.extend(["--private-containerd", "--memory", "2T"].map(Into::into));
        if !options.own_cpus {
            flags.extend(["--cpus", "104"].map(Into::into));
        }
        if described {
            flags.extend(["--cdi-dir".into(), self.host(index).join("cdi").into()]);
        }
        if let Some(config) = options.agent_configs.get(index) {
            let file = self.root().join(format!("n{index}.toml"));
            let config = config.replace("HOST", &self.host(index).display().to_string());
            fs::write(&file, config).expect("own file");
            flags.extend(["--config".into(), file.into()]);
        }
        flags.extend(options.agent_flags.iter().map(Into::into));
        flags
    }
}
