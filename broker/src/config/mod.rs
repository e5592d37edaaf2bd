//! What an operator sets: flags and environment first, then the file, then the defaults.

mod file;
mod idle;
mod queue;
mod units;

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use carrel_core::broker::Settings;
use carrel_core::model::fabric::Fabric;
use carrel_core::model::gang_network::Subnet;
use carrel_core::model::ids::UserName;
use carrel_core::model::policy::Policy;
use carrel_core::placement::Reserve;
use serde::Serialize;

pub use file::ConfigFile;
pub use idle::IdleConfig;
pub use queue::QueueConfig;
pub use units::{Size, Span};

use crate::signin::oidc::{OidcConfig, OidcFile};

/// Read when no other is named, if it is there.
const DEFAULT_FILE: &str = "/etc/carrel/broker.toml";
const DEFAULT_STATE: &str = "/var/lib/carrel/broker";
const DEFAULT_SOCKET: &str = "/run/carrel/broker.sock";
const DEFAULT_LISTEN: &str = "0.0.0.0:7070";
/// The socket's name in a state directory that was named.
const SOCKET_FILE: &str = "broker.sock";
/// Domain of host principals; clients' known_hosts name it.
const DOMAIN: &str = "carrel";
/// Longest path of a Unix socket (`sun_path`, unix(7)), less the closing zero.
const MAX_SOCKET_PATH: usize = 107;
/// A lease shorter than this is lost to one slow answer.
const SHORTEST_LEASE: Duration = Duration::from_secs(2);
/// Warnings of one deadline.
const MAX_WARNINGS: usize = 16;
/// Longest of any time that is set; beyond it is a slip of the keyboard.
const LONGEST: Duration = Duration::from_hours(10 * 365 * 24);

/// `carrel-broker serve`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ServeArgs {
    /// Config file (TOML) [default: /etc/carrel/broker.toml, if it is there]
    #[arg(long, env = "CARREL_BROKER_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// State directory: store, keys, lock [default: /var/lib/carrel/broker]
    #[arg(long, env = "CARREL_BROKER_STATE", value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Unix socket for users and gateways on this machine
    /// [default: broker.sock in the state directory that was given; else /run/carrel/broker.sock]
    #[arg(long, env = "CARREL_BROKER_SOCKET", value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Address of the TLS listener for agents and users; port 0: any free one, see STATE/listen;
    /// "none": no TLS [default: 0.0.0.0:7070]
    #[arg(long, env = "CARREL_BROKER_LISTEN", value_name = "ADDR:PORT")]
    pub listen: Option<String>,
    /// Where agents and users dial the TLS listener [default: this machine's name and the port]
    #[arg(long, env = "CARREL_BROKER_ADVERTISE", value_name = "HOST[:PORT]")]
    pub advertise: Option<String>,
    /// Cluster name, for people and SLURM_CLUSTER_NAME [default: carrel]
    #[arg(long, env = "CARREL_BROKER_CLUSTER", value_name = "NAME")]
    pub cluster: Option<String>,
    /// Image of sessions that ask for none
    #[arg(long, env = "CARREL_BROKER_DEFAULT_IMAGE", value_name = "IMAGE")]
    pub default_image: Option<String>,
    /// Time limit of sessions that ask for none [default: 8h]
    #[arg(long, env = "CARREL_BROKER_DEFAULT_TIME", value_name = "TIME")]
    pub default_time: Option<Span>,
    /// Longest time limit, extensions included [default: 7d]
    #[arg(long, env = "CARREL_BROKER_MAX_TIME", value_name = "TIME")]
    pub max_time: Option<Span>,
    /// How long a node may go on without contact before it ends its jobs [default: 10m]
    #[arg(long, env = "CARREL_BROKER_LEASE", value_name = "TIME")]
    pub lease: Option<Span>,
    /// A node that was not heard of for so long gets no new jobs [default: 20s]
    #[arg(long, env = "CARREL_BROKER_CONTACT_TIMEOUT", value_name = "TIME")]
    pub contact_timeout: Option<Span>,
    /// Between the terminate signal and the kill of an ended job [default: 10s]
    #[arg(long, env = "CARREL_BROKER_GRACE", value_name = "TIME")]
    pub grace: Option<Span>,
    /// A user who may administer the cluster, besides root and the broker's own user; repeatable
    #[arg(
        long = "admin",
        env = "CARREL_BROKER_ADMINS",
        value_name = "USER",
        value_delimiter = ','
    )]
    pub admins: Vec<String>,
    /// Print the configuration that results, as TOML, and exit
    #[arg(long)]
    pub print_config: bool,
}

/// The configuration that results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Config {
    /// Cluster name.
    pub cluster: String,
    /// State directory.
    pub state: PathBuf,
    /// Unix socket.
    pub socket: PathBuf,
    /// TLS listener.
    pub listen: Listen,
    /// Host, or host and port, by which the listener is dialled.
    pub advertise: Option<String>,
    /// More names and addresses that its certificate is to carry.
    pub tls_names: Vec<String>,
    /// Image of sessions that ask for none.
    pub default_image: String,
    /// Time limit of sessions that ask for none.
    pub default_time: Span,
    /// Longest time limit.
    pub max_time: Span,
    /// Length of leases.
    pub lease: Span,
    /// Silence after which a node gets no new jobs.
    pub contact_timeout: Span,
    /// Between terminate and kill.
    pub grace: Span,
    /// So long before a deadline terminals are warned.
    pub warn_before: Vec<Span>,
    /// Where the addresses are from by which the containers of a gang reach each other.
    pub gang_subnet: Subnet,
    /// Sends mail: run with `-s SUBJECT USER`, as Slurm's `MailProg`; none: no mail is sent.
    pub mail_program: Option<PathBuf>,
    /// Hardware threads a GPU by default.
    pub cpus_per_gpu: u32,
    /// Memory a GPU by default.
    pub memory_per_gpu: Size,
    /// Hardware threads that a free GPU keeps from jobs that do not hold it.
    pub cpus_reserved_per_gpu: u32,
    /// Memory that it keeps from them.
    pub memory_reserved_per_gpu: Size,
    /// Hardware threads of jobs without GPUs by default.
    pub cpus: u32,
    /// Memory of jobs without GPUs by default.
    pub memory: Size,
    /// How long records of the audit log are kept.
    pub audit_retention: Span,
    /// How long jobs that are over stay in memory.
    pub jobs_in_memory: Span,
    /// Users who may administer the cluster.
    pub admins: Vec<UserName>,
    /// When sessions end that are not used.
    pub idle: IdleConfig,
    /// How the queue is ordered.
    pub queue: QueueConfig,
    /// What users may have.
    pub policy: Policy,
    /// Where people sign in, besides SSH keys and tokens.
    pub oidc: Option<OidcConfig>,
    /// Switches and blocks over the nodes; none: nothing is said of them.
    pub fabric: Option<Fabric>,
}

/// Where the TLS listener is, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen(pub Option<SocketAddr>);

impl FromStr for Listen {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        if text == "none" {
            return Ok(Self(None));
        }
        let address = text.parse().map_err(|_| {
            anyhow::anyhow!(
                "listen = {text:?}: write an IP address and a port (\"0.0.0.0:7070\"), or \"none\""
            )
        })?;
        Ok(Self(Some(address)))
    }
}

impl Serialize for Listen {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Some(address) => serializer.collect_str(&address),
            None => serializer.serialize_str("none"),
        }
    }
}

impl Config {
    /// From flags, the file that they name or the default one, and defaults.
    pub fn load(args: &ServeArgs) -> Result<Self> {
        let file = match &args.config {
            Some(path) => ConfigFile::read(path)?,
            None if Path::new(DEFAULT_FILE).exists() => ConfigFile::read(Path::new(DEFAULT_FILE))?,
            None => ConfigFile::default(),
        };
        Self::resolve(args.clone(), file)
    }

    fn resolve(args: ServeArgs, file: ConfigFile) -> Result<Self> {
        let defaults = Settings::default();
        let named_state = args.state.or(file.state);
        let socket = args.socket.or(file.socket).unwrap_or_else(|| match &named_state {
            Some(state) => state.join(SOCKET_FILE),
            None => DEFAULT_SOCKET.into(),
        });
        let listen = args
            .listen
            .or(file.listen)
            .unwrap_or_else(|| DEFAULT_LISTEN.into());
        let admins = if args.admins.is_empty() {
            file.admins.unwrap_or_default()
        } else {
            args.admins
        };
        let admins = admins
            .iter()
            .map(|name| name.parse())
            .collect::<Result<_, _>>()
            .context("admins")?;
        let config = Self {
            cluster: args.cluster.or(file.cluster).unwrap_or(defaults.cluster_name),
            state: named_state.unwrap_or_else(|| DEFAULT_STATE.into()),
            socket,
            listen: listen.parse()?,
            advertise: args.advertise.or(file.advertise),
            tls_names: file.tls_names.unwrap_or_default(),
            default_image: args
                .default_image
                .or(file.default_image)
                .unwrap_or(defaults.default_image),
            default_time: args
                .default_time
                .or(file.default_time)
                .unwrap_or(Span(defaults.default_time)),
            max_time: args.max_time.or(file.max_time).unwrap_or(Span(defaults.max_time)),
            lease: args.lease.or(file.lease).unwrap_or(Span(defaults.lease)),
            contact_timeout: args
                .contact_timeout
                .or(file.contact_timeout)
                .unwrap_or(Span(defaults.contact_timeout)),
            grace: args.grace.or(file.grace).unwrap_or(Span(defaults.grace)),
            warn_before: file
                .warn_before
                .unwrap_or_else(|| defaults.warn_before.iter().copied().map(Span).collect()),
            cpus_per_gpu: file.cpus_per_gpu.unwrap_or(defaults.cpus_per_gpu),
            memory_per_gpu: file.memory_per_gpu.unwrap_or(Size(defaults.memory_per_gpu)),
            cpus_reserved_per_gpu: file.cpus_reserved_per_gpu.unwrap_or(defaults.reserve.cpus),
            memory_reserved_per_gpu: file
                .memory_reserved_per_gpu
                .unwrap_or(Size(defaults.reserve.memory_bytes)),
            cpus: file.cpus.unwrap_or(defaults.cpus),
            memory: file.memory.unwrap_or(Size(defaults.memory)),
            audit_retention: file.audit_retention.unwrap_or(Span(defaults.audit_retention)),
            jobs_in_memory: file.jobs_in_memory.unwrap_or(Span(defaults.jobs_in_memory)),
            admins,
            idle: file.idle.unwrap_or_default(),
            queue: file.queue.unwrap_or_default(),
            policy: file.policy.unwrap_or_default(),
            gang_subnet: file.gang_subnet.unwrap_or(defaults.gang_subnet),
            mail_program: file.mail_program,
            oidc: file.oidc.map(OidcFile::resolve).transpose()?,
            fabric: file.fabric,
        };
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<()> {
        let printable = |text: &str| text.chars().all(|c| c.is_ascii_graphic());
        if self.cluster.is_empty() || self.cluster.len() > 63 || !printable(&self.cluster) {
            bail!(
                "cluster = {:?}: a name has 1 to 63 printable characters and no spaces",
                self.cluster
            );
        }
        let length = self.socket.as_os_str().len();
        if length > MAX_SOCKET_PATH {
            bail!(
                "socket = \"{}\": a socket's path has at most {MAX_SOCKET_PATH} bytes, this one {length}: \
                 set a shorter one with --socket",
                self.socket.display()
            );
        }
        for (key, Span(span)) in [
            ("default_time", self.default_time),
            ("max_time", self.max_time),
            ("lease", self.lease),
            ("contact_timeout", self.contact_timeout),
            ("audit_retention", self.audit_retention),
            ("jobs_in_memory", self.jobs_in_memory),
        ] {
            if span.is_zero() || span > LONGEST {
                bail!(
                    "{key} = \"{}\": it is to be more than nothing and at most {}",
                    Span(span),
                    Span(LONGEST)
                );
            }
        }
        if self.default_time.0 > self.max_time.0 {
            bail!(
                "default_time = \"{}\" is over max_time = \"{}\"",
                self.default_time,
                self.max_time
            );
        }
        if self.lease.0 < SHORTEST_LEASE {
            bail!(
                "lease = \"{}\": the shortest is {}",
                self.lease,
                Span(SHORTEST_LEASE)
            );
        }
        let whole = |Span(before): &Span| *before >= Duration::from_secs(1) && *before <= LONGEST;
        if self.warn_before.len() > MAX_WARNINGS || !self.warn_before.iter().all(whole) {
            bail!(
                "warn_before: at most {MAX_WARNINGS} times, each of a second or more, such as [\"10m\", \"1m\"]"
            );
        }
        if self.cpus_per_gpu == 0 || self.cpus == 0 || self.memory_per_gpu.0 == 0 || self.memory.0 == 0 {
            bail!("cpus, cpus_per_gpu, memory and memory_per_gpu are to be more than nothing");
        }
        if let Some(program) = &self.mail_program {
            let executable =
                |found: std::fs::Metadata| found.is_file() && found.permissions().mode() & 0o111 != 0;
            if !program.is_absolute() || !std::fs::metadata(program).is_ok_and(executable) {
                bail!(
                    "mail_program = \"{}\": it is to be the absolute path of a program that may be run",
                    program.display()
                );
            }
        }
        self.idle.check()?;
        self.queue.check()?;
        for rule in &self.policy.mounts {
            if rule.name.is_empty() || !rule.path.starts_with('/') || rule.path.len() < 2 {
                bail!(
                    "policy.mounts: a rule needs a name and the absolute path of a directory; this one has name = {:?}, \
                     path = {:?}",
                    rule.name,
                    rule.path
                );
            }
        }
        Ok(())
    }

    /// What the core is to know of it.
    pub fn settings(&self) -> Settings {
        Settings {
            cluster_name: self.cluster.clone(),
            domain: DOMAIN.to_owned(),
            default_image: self.default_image.clone(),
            default_time: self.default_time.0,
            max_time: self.max_time.0,
            lease: self.lease.0,
            contact_timeout: self.contact_timeout.0,
            grace: self.grace.0,
            warn_before: self.warn_before.iter().map(|Span(before)| *before).collect(),
            cpus_per_gpu: self.cpus_per_gpu,
            memory_per_gpu: self.memory_per_gpu.0,
            reserve: Reserve {
                cpus: self.cpus_reserved_per_gpu,
                memory_bytes: self.memory_reserved_per_gpu.0,
            },
            cpus: self.cpus,
            memory: self.memory.0,
            policy: self.policy.clone(),
            gang_subnet: self.gang_subnet,
            mail: self.mail_program.is_some(),
            audit_retention: self.audit_retention.0,
            jobs_in_memory: self.jobs_in_memory.0,
            idle: self.idle.settings(),
            queue: self.queue.settings(),
            fabric: self.fabric.clone().unwrap_or_default().into(),
            ..Settings::default()
        }
    }

    /// As TOML, for `--print-config`; a config file of this text has the same effect.
    pub fn print(&self) -> Result<String> {
        Ok(toml::to_string(self)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(toml: &str) -> Result<Config> {
        Config::resolve(
            ServeArgs::default(),
            ConfigFile::parse(toml, Path::new("broker.toml"))?,
        )
    }

    /// What `--print-config` prints can be used as a file.
    #[test]
    fn a_printed_configuration_reads_back() {
        let config = resolve(
            "cluster = \"lab\"\nlease = \"90s\"\nmemory = \"8G\"\nadmins = [\"ann\"]\nlisten = \"none\"\n\
             [idle]\nafter = \"8h\"\ncpu_percent = 50\n\
             [queue]\nhalf_life = \"14d\"\ncpu_weight = 0.05\nweights.age = 5\n\
             gpu_weights = [{ model = \"h100\", weight = 2.5 }, { model = \"h\", weight = 1 }]\n\
             [queue.preemption]\nmin_runtime = \"1m\"\n[queue.headroom]\nfloor = 2\nblocking = 0.01\n\
             [oidc]\nissuer = \"https://sso.example\"\nclient_id = \"carrel\"\ngroups = [\"gpu\"]\n\
             [[fabric.switch]]\nname = \"leaf1\"\nnodes = \"gpu[01-16]\"\n\
             [[fabric.switch]]\nname = \"spine\"\nswitches = \"leaf1\"\n\
             [[fabric.block]]\nname = \"nvl1\"\nnodes = \"gpu[01-08]\"",
        )
        .expect("a configuration");
        assert_eq!(resolve(&config.print().expect("TOML")).expect("the same"), config);
        assert_eq!(config.settings().lease, Duration::from_secs(90));
        assert_eq!(config.settings().memory, 8 << 30);
        let idle = config.settings().idle;
        assert_eq!(
            (idle.after, idle.warn),
            (Some(Duration::from_hours(8)), Duration::from_mins(30))
        );
        assert_eq!(
            (idle.thresholds.gpu_percent, idle.thresholds.cpu_percent),
            (5, 50)
        );
        let queue = config.settings().queue;
        assert_eq!(
            (queue.half_life, queue.cpu_weight),
            (Duration::from_hours(14 * 24), 50)
        );
        assert_eq!(
            (queue.preemption.min_runtime, queue.preemption.max_preemptions),
            (Duration::from_mins(1), 5)
        );
        assert_eq!((queue.headroom.floor, queue.headroom.blocking_milli), (2, 10));
        assert_eq!((queue.weights.age, queue.weights.fair_share), (5, 100_000));
        assert_eq!(
            queue.gpu_weights,
            [("h100".to_owned(), 2_500), ("h".to_owned(), 1_000)]
        );
        let node = "gpu07".parse().expect("a name");
        assert_eq!(config.settings().fabric.path(&node), "leaf1 < spine");
    }

    #[test]
    fn who_sends_mail_is_a_program_that_is_there() {
        let config = resolve("mail_program = \"/bin/sh\"").expect("a configuration");
        assert!(config.settings().mail);
        assert_eq!(resolve(&config.print().expect("TOML")).expect("the same"), config);
        for program in ["mail", "/nowhere/mail", "/etc/passwd", "/etc"] {
            let error = resolve(&format!("mail_program = \"{program}\"")).expect_err(program);
            assert!(error.to_string().contains("mail_program"), "{error}");
        }
        assert!(!resolve("").expect("a configuration").settings().mail);
    }

    #[test]
    fn flags_come_before_the_file() {
        let args = ServeArgs {
            cluster: Some("flag".into()),
            state: Some("/s".into()),
            ..ServeArgs::default()
        };
        let file =
            ConfigFile::parse("cluster = \"file\"\nmax_time = \"2d\"", Path::new("x")).expect("a file");
        let config = Config::resolve(args, file).expect("a configuration");
        assert_eq!(
            (config.cluster.as_str(), config.max_time),
            ("flag", Span(Duration::from_hours(48)))
        );
        assert_eq!(config.socket, Path::new("/s/broker.sock"));
    }

    #[test]
    fn mistakes_are_named_with_file_line_and_key() {
        for (toml, parts) in [
            (
                "cluster = \"lab\"\nleese = \"10m\"\n",
                &["broker.toml:2:", "`leese`", "`lease`"][..],
            ),
            ("lease = 10\n", &["broker.toml:1:", "lease", "\"10m\""]),
            ("lease = \"10 parsecs\"\n", &["broker.toml:1:", "10 parsecs"]),
            ("lease = \"1s\"\n", &["lease", "2s"]),
            ("warn_before = [\"0s\"]\n", &["warn_before", "10m"]),
            ("[idle]\nafter = \"0s\"\n", &["idle.after", "3650d"]),
            ("[idle]\ngpu_percent = 101\n", &["idle.gpu_percent", "1 to 100"]),
            ("[idle]\ncpu_percent = 0\n", &["idle.cpu_percent"]),
            (
                "[idle]\nafter = \"1h\"\nwarn = \"2h\"\n",
                &["idle.warn", "idle.after"],
            ),
            (
                "default_time = \"3h\"\nmax_time = \"1h\"\n",
                &["default_time", "max_time"],
            ),
            ("listen = \"here\"\n", &["listen", "0.0.0.0:7070"]),
            ("cluster = \"a b\"\n", &["cluster"]),
            ("[queue]\nhalflife = \"1d\"\n", &["broker.toml:2:", "halflife"]),
            ("[queue]\nhalf_life = \"1s\"\n", &["queue.half_life", "1m", "0s"]),
            (
                "[queue.weights]\nage = 4000000000\n",
                &["queue.weights.age", "100000000"],
            ),
            ("[queue.weights]\nage = -1\n", &["broker.toml:2:", "-1"]),
            ("[queue.weights]\nage_unit = \"0s\"\n", &["age_unit", "1m"]),
            (
                "[queue.headroom]\nceiling_percent = 101\n",
                &["queue.headroom.ceiling_percent", "100"],
            ),
            (
                "[queue.headroom]\nblocking = 0\n",
                &["queue.headroom.blocking", "0.999"],
            ),
            (
                "[queue.preemption]\nmin_run = \"1m\"\n",
                &["broker.toml:2:", "min_run", "min_runtime"],
            ),
            ("[queue]\npromises = 5000\n", &["queue.promises", "1000"]),
            ("[queue]\ncpu_weight = -0.5\n", &["broker.toml:2:", "-0.5"]),
            (
                "[[queue.gpu_weights]]\nmodel = \"\"\nweight = 1\n",
                &["gpu_weights", "model"],
            ),
            ("[[[", &["broker.toml:1:"]),
            (
                "[oidc]\nissuer = \"https://sso.example\"\n",
                &["broker.toml:1:", "client_id"],
            ),
            ("[fabric]\n", &["broker.toml:1:", "neither a switch nor a block"]),
            (
                "[[fabric.switch]]\nname = \"spine\"\nswitches = \"leaf9\"\n",
                &["switch spine", "leaf9", "not described"],
            ),
            (
                "[[fabric.switch]]\nname = \"a\"\nnodes = \"n1\"\n\n[[fabric.switch]]\nname = \"a\"\nnodes = \"n2\"\n",
                &["broker.toml:5:", "switch a is described twice"],
            ),
            (
                "[[fabric.switch]]\nname = \"a\"\nnodes = \"n1\"\n[[fabric.block]]\nname = \"b\"\nnodes = \"n1,n1\"\n",
                &["broker.toml:4:", "b names n1 twice"],
            ),
            (
                "[[fabric.block]]\nname = \"b\"\nnodes = \"gpu[9-1]\"\n",
                &["gpu[9-1]", "counts down"],
            ),
            (
                "[[fabric.switch]]\nname = \"s\"\nports = \"n1\"\n",
                &["broker.toml:", "ports"],
            ),
            (
                "[oidc]\nissuer = \"http://sso.example\"\nclient_id = \"c\"",
                &["oidc.issuer", "https://"],
            ),
        ] {
            let error = format!("{:#}", resolve(toml).expect_err(toml));
            for part in parts {
                assert!(error.contains(part), "{toml:?}: {error:?} lacks {part:?}");
            }
        }
    }
}
