//! What an operator may set: a file, and flags and environment that come before it.

mod gpus;

use std::collections::BTreeSet;
use std::io::Read;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use carrel_core::model::features::{MAX_FEATURES, is_feature};
use carrel_core::model::gang_network::Subnet;
use clap::Args;
use serde::Deserialize;

use crate::gpu::{HostSizes, NvmlSource};
use crate::image::ImageOptions;
use crate::runtime::{GangMode, NetworkMode, RuntimeOptions, UserRanges};
use crate::units::{Size, Span};
use gpus::{MigSection, SharingSection};

/// Where the state is when nobody says.
const DEFAULT_STATE: &str = "/var/lib/carrel/node";
/// Read when it is there and no other is named.
const DEFAULT_CONFIG: &str = "/etc/carrel/node.toml";
/// A Unix socket's path has at most 107 bytes (unix(7)), and "/jobs/<job>-<generation>/run/ctl.sock"
/// comes after the state directory's.
const MAX_STATE_PATH: usize = 60;
/// Between two reports when nothing changes: a fraction of the broker's contact timeout.
const DEFAULT_HEARTBEAT: Duration = Duration::from_secs(3);
/// Between two looks at what jobs do: what is begun is seen soon, and the looking costs nothing.
const DEFAULT_MEASURE_EVERY: Duration = Duration::from_secs(15);
/// Longest time between two looks: beyond it they are no longer taken for one after the other.
const LONGEST_MEASURE_EVERY: Duration = Duration::from_mins(1);

/// Flags that every verb with a runtime has.
#[derive(Args, Clone, Debug, Default)]
pub struct NodeArgs {
    /// State directory [default: /var/lib/carrel/node]
    #[arg(long, value_name = "DIR", env = "CARREL_NODE_STATE")]
    pub state: Option<PathBuf>,
    /// Configuration file [default: /etc/carrel/node.toml, if it is there]
    #[arg(long, value_name = "FILE", env = "CARREL_NODE_CONFIG")]
    pub config: Option<PathBuf>,
    /// NVML library to load [default: libnvidia-ml.so.1, as the dynamic linker finds it]
    #[arg(long, value_name = "FILE", env = "CARREL_NVML_LIBRARY")]
    pub nvml_library: Option<PathBuf>,
    /// CPUs (hardware threads) to offer [default: the machine's]
    #[arg(long, value_name = "N")]
    pub cpus: Option<u32>,
    /// Memory to offer, "512G" [default: the machine's]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Size>,
    /// containerd's socket [default: the system's where it answers, else a private one is started]
    #[arg(long, value_name = "FILE", conflicts_with = "private_containerd")]
    pub containerd_socket: Option<PathBuf>,
    /// Start a containerd of our own though the system has one
    #[arg(long)]
    pub private_containerd: bool,
    /// Directory of CDI specifications, instead of /etc/cdi and /var/run/cdi; may be repeated, later ones first
    #[arg(long, value_name = "DIR")]
    pub cdi_dir: Vec<PathBuf>,
    /// The static carrel-init [default: beside this program]
    #[arg(long, value_name = "FILE", env = "CARREL_INIT")]
    pub init_binary: Option<PathBuf>,
    /// The static carrel, for use inside sessions [default: beside carrel-init or this program]
    #[arg(long, value_name = "FILE", env = "CARREL_CLI")]
    pub cli_binary: Option<PathBuf>,
}

/// The file. Every key may be left out.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    state: Option<PathBuf>,
    nvml_library: Option<PathBuf>,
    cpus: Option<u32>,
    memory: Option<Size>,
    reserved_cpus: u32,
    reserved_memory: Option<Size>,
    containerd_socket: Option<PathBuf>,
    private_containerd: bool,
    cdi_dirs: Option<Vec<PathBuf>>,
    init_binary: Option<PathBuf>,
    cli_binary: Option<PathBuf>,
    network: NetworkMode,
    subnet: Option<String>,
    gang_network: GangMode,
    address: Option<Ipv4Addr>,
    cgroup_parent: Option<String>,
    insecure_registries: Vec<String>,
    registry_auth: Option<PathBuf>,
    heartbeat: Option<Span>,
    measure_every: Option<Span>,
    pids_limit: Option<u64>,
    allow_metadata: bool,
    userns: UserRanges,
    allow_root: Option<bool>,
    features: Vec<String>,
    mig: MigSection,
    sharing: SharingSection,
}

/// What results.
#[derive(Clone, Debug)]
pub struct Config {
    /// State directory, absolute.
    pub state: PathBuf,
    /// Where GPUs are looked for, and how much of the host is offered.
    pub nvml: NvmlSource,
    /// How containers are made.
    pub runtime: RuntimeOptions,
    /// Between two reports when nothing changes.
    pub heartbeat: Duration,
    /// Between two looks at what jobs do.
    pub measure_every: Duration,
    /// Whether jobs may be user 0's: root in the container, without capabilities. None: when the broker
    /// runs on this machine, so that its root is this machine's (`carrel up`); elsewhere the broker's
    /// root is a stranger to this host's files.
    pub allow_root: Option<bool>,
}

impl Config {
    /// Flags and environment first, then the file, then the defaults.
    pub fn load(args: &NodeArgs) -> Result<Self> {
        let Checked {
            file,
            nvml,
            subnet,
            measure_every,
        } = check(args)?;
        let state = state_dir(args, &file)?;
        let init_binary = args.init_binary.clone().or(named(file.init_binary));
        let init_binary = find_init(init_binary, &state)?;
        let cli_binary = args.cli_binary.clone().or(named(file.cli_binary));
        let cli_binary = find_cli(cli_binary, &init_binary)?;
        let mut runtime = RuntimeOptions::new(&state, init_binary);
        runtime.cli_binary = cli_binary;
        runtime.private_containerd =
            args.private_containerd || file.private_containerd && args.containerd_socket.is_none();
        runtime.containerd_socket = if args.private_containerd {
            None
        } else {
            args.containerd_socket.clone().or(named(file.containerd_socket))
        };
        if args.cdi_dir.is_empty() {
            runtime.cdi_dirs = file.cdi_dirs.unwrap_or(runtime.cdi_dirs);
        } else {
            runtime.cdi_dirs.clone_from(&args.cdi_dir);
        }
        runtime.network = file.network;
        runtime.subnet = subnet.map(|subnet| subnet.to_string());
        runtime.gang_network = file.gang_network;
        runtime.address = file.address;
        runtime.cgroup_parent = file.cgroup_parent.filter(|parent| !parent.is_empty());
        runtime.pids_limit = file.pids_limit.unwrap_or(runtime.pids_limit);
        runtime.allow_metadata = file.allow_metadata;
        runtime.userns = file.userns;
        runtime.images = ImageOptions {
            insecure_registries: file.insecure_registries,
            registry_auth: named(file.registry_auth),
        };
        Ok(Self {
            state,
            nvml,
            runtime,
            heartbeat: file.heartbeat.map_or(DEFAULT_HEARTBEAT, |span| span.0),
            measure_every,
            allow_root: file.allow_root,
        })
    }
}

/// Names that an expression over features can name.
fn features(names: Vec<String>) -> Result<BTreeSet<String>> {
    if let Some(bad) = names.iter().find(|name| !is_feature(name)) {
        bail!("{bad:?} is no feature: write 1 to 64 letters, digits and . _ - = + : / @");
    }
    ensure!(
        names.len() <= MAX_FEATURES,
        "{} are too many, {MAX_FEATURES} at most",
        names.len()
    );
    Ok(names.into_iter().collect())
}

/// What the configuration says of the host, for what needs nothing else of it; all of it is checked.
pub fn source_of(args: &NodeArgs) -> Result<NvmlSource> {
    check(args).map(|checked| checked.nvml)
}

/// A file of which every value is of use on this machine, and what was made of some.
struct Checked {
    file: File,
    nvml: NvmlSource,
    subnet: Option<Subnet>,
    measure_every: Duration,
}

/// Refuses what would make the node useless, or fail each of its jobs, by its key.
fn check(args: &NodeArgs) -> Result<Checked> {
    let path = config_path(args);
    let text = path.map(text_of).transpose()?;
    let mut file = file_of(args)?;
    let at = |key: &str| match (path, &text) {
        (Some(path), Some(text)) => format!("{}{}: {key}", path.display(), line_of(text, key)),
        (None, _) | (_, None) => key.to_owned(),
    };
    let sizes = HostSizes {
        cpus: args.cpus.or(file.cpus),
        memory_bytes: args.memory.or(file.memory).map(|size| size.0),
        reserved_cpus: file.reserved_cpus,
        reserved_memory_bytes: file.reserved_memory.map_or(0, |size| size.0),
    };
    if let Some((key, why)) = sizes.useless() {
        match key {
            "cpus" if args.cpus.is_some() => bail!("--cpus: {why}"),
            "memory" if args.memory.is_some() => bail!("--memory: {why}"),
            key => bail!("{}: {why}", at(key)),
        }
    }
    let subnet = file.subnet.as_deref().filter(|subnet| !subnet.is_empty());
    let subnet = subnet.map(str::parse::<Subnet>).transpose();
    let subnet = subnet.with_context(|| at("subnet"))?;
    let measure_every = file.measure_every.map_or(DEFAULT_MEASURE_EVERY, |span| span.0);
    ensure!(
        measure_every <= LONGEST_MEASURE_EVERY,
        "{}: it is {} s, at most {} s",
        at("measure_every"),
        measure_every.as_secs(),
        LONGEST_MEASURE_EVERY.as_secs()
    );
    let features = features(std::mem::take(&mut file.features)).with_context(|| at("features"))?;
    let policy = gpus::policy(std::mem::take(&mut file.mig), std::mem::take(&mut file.sharing));
    let policy = match path {
        Some(path) => policy.with_context(|| format!("{} is not valid", path.display()))?,
        None => policy?,
    };
    let library = args.nvml_library.clone().or(named(file.nvml_library.take()));
    Ok(Checked {
        nvml: NvmlSource {
            library,
            sizes,
            features,
            policy,
        },
        file,
        subnet,
        measure_every,
    })
}

/// ", line 3", where the file says something under a key; empty: it does not, or in another way.
fn line_of(text: &str, key: &str) -> String {
    let says = |line: &str| {
        let after = line.trim_start().strip_prefix(key);
        after.is_some_and(|rest| rest.trim_start().starts_with('='))
    };
    let line = text.lines().position(says);
    line.map_or_else(String::new, |line| format!(", line {}", line + 1))
}

/// The file that is read; none: there is none.
fn config_path(args: &NodeArgs) -> Option<&Path> {
    let usual = || Some(Path::new(DEFAULT_CONFIG)).filter(|path| path.exists());
    args.config.as_deref().or_else(usual)
}

fn file_of(args: &NodeArgs) -> Result<File> {
    config_path(args).map_or_else(|| Ok(File::default()), read)
}

/// The state directory alone, for what needs no containers.
pub fn state_of(args: &NodeArgs) -> Result<PathBuf> {
    state_dir(args, &file_of(args)?)
}

fn state_dir(args: &NodeArgs, file: &File) -> Result<PathBuf> {
    let state = args
        .state
        .clone()
        .or(named(file.state.clone()))
        .unwrap_or_else(|| DEFAULT_STATE.into());
    let state =
        std::path::absolute(&state).with_context(|| format!("the state directory {}", state.display()))?;
    ensure!(
        state.as_os_str().len() <= MAX_STATE_PATH,
        "the state directory {} has too long a path for the sockets below it: at most {MAX_STATE_PATH} bytes",
        state.display()
    );
    Ok(state)
}

/// An empty path stands for none.
fn named(path: Option<PathBuf>) -> Option<PathBuf> {
    path.filter(|path| !path.as_os_str().is_empty())
}

fn text_of(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn read(path: &Path) -> Result<File> {
    toml::from_str(&text_of(path)?).with_context(|| format!("{} is not valid", path.display()))
}

/// carrel-init: the one that was named; or beside this program, where packages put it, or as an
/// earlier start installed it.
fn find_init(named: Option<PathBuf>, state: &Path) -> Result<PathBuf> {
    if let Some(path) = named {
        if !path.is_file() {
            bail!(
                "carrel-init is not at {}: correct --init-binary or CARREL_INIT",
                path.display()
            );
        }
        return Ok(path);
    }
    let own = std::env::current_exe().context("this program's own path")?;
    let dir = own.parent().unwrap_or(Path::new("/"));
    let places = [
        dir.join("carrel-init"),
        dir.join("../lib/carrel/carrel-init"),
        PathBuf::from("/usr/lib/carrel/carrel-init"),
        state.join("bin/carrel-init"),
    ];
    let found = places.iter().find(|path| path.is_file() && is_static(path));
    found.cloned().with_context(|| {
        let places: Vec<String> = places.iter().map(|path| path.display().to_string()).collect();
        format!(
            "no static carrel-init is in any of {}; name it with --init-binary or CARREL_INIT",
            places.join(", ")
        )
    })
}

/// carrel, for use inside sessions: the one that was named; or beside carrel-init, or where packages put
/// it. None: sessions do without.
fn find_cli(named: Option<PathBuf>, init: &Path) -> Result<Option<PathBuf>> {
    if let Some(path) = named {
        ensure!(
            path.is_file(),
            "carrel is not at {}: correct --cli-binary, CARREL_CLI or cli_binary",
            path.display()
        );
        ensure!(
            is_static(&path),
            "{} is not static: it would start in few images only",
            path.display()
        );
        return Ok(Some(path));
    }
    let own = std::env::current_exe().context("this program's own path")?;
    let beside = |program: &Path| program.parent().map(|dir| dir.join("carrel"));
    let places = [
        beside(init),
        beside(&own),
        Some(PathBuf::from("/usr/lib/carrel/carrel")),
    ];
    Ok(places
        .into_iter()
        .flatten()
        .find(|path| path.is_file() && is_static(path)))
}

/// Whether an ELF file names no interpreter (a `PT_INTERP` program header; elf(5)): one that does
/// starts only in images that have its C library.
fn is_static(path: &Path) -> bool {
    const INTERP: u32 = 3;
    // The headers come first; the programs have many megabytes.
    const HEADERS: u64 = 64 << 10;
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(HEADERS).read_to_end(&mut bytes));
    if read.is_err() {
        return false;
    }
    let number = |at: usize, len: usize| {
        let field = bytes.get(at..at + len)?;
        Some(
            field
                .iter()
                .rev()
                .fold(0u64, |value, byte| value << 8 | u64::from(*byte)),
        )
    };
    // 64-bit, little-endian: all that we build for.
    let headers = || {
        let table = number(32, 8)? as usize;
        let (size, count) = (number(54, 2)? as usize, number(56, 2)? as usize);
        let kinds = (0..count).map(|n| number(table.checked_add(n * size)?, 4));
        kinds.collect::<Option<Vec<u64>>>()
    };
    bytes.starts_with(b"\x7fELF\x02\x01")
        && headers().is_some_and(|kinds| !kinds.contains(&u64::from(INTERP)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str, args: NodeArgs) -> Result<Config> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("node.toml");
        std::fs::write(&path, text).expect("written");
        let init = dir.path().join("carrel-init");
        std::fs::write(&init, "").expect("written");
        Config::load(&NodeArgs {
            config: Some(path),
            init_binary: Some(init),
            ..args
        })
    }

    #[test]
    fn flags_come_before_the_file() {
        let text = "cpus = 4\nmemory = \"8G\"\nprivate_containerd = true\nheartbeat = \"500ms\"\nnetwork = \"loopback\"\n";
        let config = load(
            text,
            NodeArgs {
                cpus: Some(2),
                ..NodeArgs::default()
            },
        )
        .expect("a configuration");
        assert_eq!(config.nvml.sizes.cpus, Some(2));
        assert_eq!(config.nvml.sizes.memory_bytes, Some(8 << 30));
        assert_eq!(config.heartbeat, Duration::from_millis(500));
        assert!(config.runtime.private_containerd && config.runtime.network == NetworkMode::Loopback);
    }

    #[test]
    fn features_are_names_that_users_can_ask_for() {
        let config = load("features = [\"ib\", \"rack1\"]\n", NodeArgs::default()).expect("a configuration");
        assert_eq!(config.nvml.features.len(), 2);
        let error = load("features = [\"a&b\"]\n", NodeArgs::default()).expect_err("refused");
        let error = format!("{error:#}");
        assert!(
            error.contains("line 1: features: \"a&b\" is no feature"),
            "{error}"
        );
    }

    #[test]
    fn what_would_make_the_node_useless_is_refused_by_its_line() {
        for (line, why) in [
            ("cpus = 0", "line 2: cpus: no CPU is left for jobs"),
            ("memory = \"0G\"", "line 2: memory: no memory is left"),
            (
                "reserved_cpus = 100000",
                "line 2: reserved_cpus: 100000 of this machine's",
            ),
            ("reserved_memory = \"9000T\"", "line 2: reserved_memory: "),
            (
                "subnet = \"10.0.0.0/33\"",
                "line 2: subnet: \"10.0.0.0/33\" is no range of IPv4",
            ),
            (
                "subnet = \"banana\"",
                "line 2: subnet: \"banana\" is no range of IPv4",
            ),
            ("subnet=\"10.0.0.1/24\"", "write its first address"),
            ("measure_every = \"2h\"", "line 2: measure_every: it is 7200 s"),
        ] {
            let text = format!("# a node\n{line}\n");
            let error = load(&text, NodeArgs::default()).expect_err(line);
            let error = format!("{error:#}");
            assert!(
                error.contains(why) && error.contains("node.toml"),
                "{line}: {error}"
            );
        }
        let zero = NodeArgs {
            cpus: Some(0),
            ..NodeArgs::default()
        };
        let error = load("", zero).expect_err("refused").to_string();
        assert!(error.starts_with("--cpus: "), "{error}");
        // Described hosts have more than the machine.
        load(
            "cpus = 100000\nmemory = \"900T\"\nsubnet = \"10.0.0.0/20\"\n",
            NodeArgs::default(),
        )
        .expect("a configuration");
    }

    #[test]
    fn a_state_directory_has_room_for_sockets_below_it() {
        let state = Some(PathBuf::from(format!("/{}", "s".repeat(MAX_STATE_PATH))));
        let error = load(
            "",
            NodeArgs {
                state,
                ..NodeArgs::default()
            },
        )
        .expect_err("refused");
        assert!(error.to_string().contains("too long"), "{error}");
    }

    #[test]
    fn unknown_keys_are_refused_by_name() {
        let error = load("heartbeet = \"3s\"\n", NodeArgs::default()).expect_err("refused");
        let error = format!("{error:#}");
        assert!(error.contains("heartbeet") && error.contains("line 1"), "{error}");
    }

    /// What the operators' page shows is what is read.
    #[test]
    fn the_documented_file_is_valid() {
        let page = include_str!("../../docs/operate.md");
        let after = page
            .split("/etc/carrel/node.toml")
            .nth(1)
            .expect("the page names the file");
        let example = after
            .split("```toml\n")
            .nth(1)
            .and_then(|rest| rest.split("```").next())
            .expect("an example");
        let config = load(example, NodeArgs::default()).expect("a configuration");
        assert_eq!(config.nvml.library, None);
        assert!(config.nvml.features.contains("rack1"));
        assert_eq!(
            (config.heartbeat, config.runtime.pids_limit),
            (DEFAULT_HEARTBEAT, RuntimeOptions::new("/s", "/i").pids_limit)
        );
        assert_eq!(config.runtime.userns, UserRanges::default());
        assert_eq!(config.allow_root, Some(false));
    }

    #[test]
    fn dynamic_programs_are_told_from_static_ones() {
        assert!(!is_static(&std::env::current_exe().expect("this test")));
        assert!(!is_static(Path::new("/etc/passwd")));
        if Path::new("/bin/busybox").exists() {
            assert!(is_static(Path::new("/bin/busybox")), "Debian's busybox-static");
        }
    }
}
