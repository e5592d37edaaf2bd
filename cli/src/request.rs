//! What a session is to be: the flags that `alloc` and `open` share.

mod idle;
mod pyxis;
mod tasks;
mod terms;
mod whole;

use std::time::Duration;

use carrel_proto::v1;
use carrel_proto::v1::gpu_unit_request::Unit;

use crate::constraints::ConstraintArgs;
use crate::error::{CliError, Result};
use crate::units::{self, GpuCount, GpuUnit};

pub use idle::IdleArgs;
pub use tasks::TaskArgs;
pub use terms::TermsArgs;
pub use whole::{Cpus, Exclusive, Memory};

/// Resources and image, in Slurm's spelling.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "What to ask for")]
pub struct RequestArgs {
    /// Number of nodes [default: 1]
    #[arg(short = 'N', long, value_name = "N", value_parser = units::parse_nodes, allow_hyphen_values = true)]
    pub nodes: Option<u32>,
    /// GPUs over all nodes, with a model if wanted: 4, h100:4; MIG slices: 1g.10gb:2; or a share of a GPU: 0.5
    #[arg(short = 'G', long, value_name = "[MODEL:][PROFILE:]K", value_parser = units::parse_gpus_or_none, allow_hyphen_values = true)]
    pub gpus: Option<GpuCount>,
    /// GPUs on each node, or slices, or a share; beside --gpus it says how many nodes these are on
    #[arg(long, value_name = "[MODEL:][PROFILE:]K", value_parser = units::parse_gpus_or_none, allow_hyphen_values = true)]
    pub gpus_per_node: Option<GpuCount>,
    /// Part of the GPU model's name, such as h100 or a100-80gb; several with '|' between them
    #[arg(long, value_name = "MODEL", value_parser = units::parse_model)]
    pub gpu_model: Option<String>,
    /// Memory of each GPU at least: 20G; what has the least that is enough is given, MIG slice or whole GPU
    #[arg(long, value_name = "SIZE", value_parser = units::parse_gpu_memory, allow_hyphen_values = true)]
    pub gpu_mem: Option<u64>,
    /// How the GPUs are to be kept from others [default: what was asked for decides]
    #[arg(long, value_name = "CLASS")]
    pub isolation: Option<Isolation>,
    /// Every pair of a node's GPUs joined by NVLink
    #[arg(long)]
    pub nvlink: bool,
    /// CPUs (hardware threads) on each node [default: by the GPUs]
    #[arg(long, value_name = "CPUS", value_parser = units::parse_count, allow_hyphen_values = true)]
    pub cpus: Option<u32>,
    #[command(flatten)]
    pub tasks: TaskArgs,
    /// Whole nodes: nothing of another job runs on them, and all of their CPUs and GPUs are this one's, and their memory
    /// unless some of it is asked for; other counts are then the least that a node has
    #[arg(long, value_name = "user", hide_possible_values = true, num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub exclusive: Option<Exclusive>,
    /// Memory on each node: 64G; without a unit, in megabytes; 0: all of it [default: by the GPUs]
    #[arg(long, value_name = "SIZE", value_parser = units::parse_memory, allow_hyphen_values = true)]
    pub mem: Option<u64>,
    /// Time limit: minutes, HH:MM:SS, D-HH:MM, 4h, 90m [default: the cluster's]
    #[arg(short = 't', long, value_name = "TIME", value_parser = units::parse_time, allow_hyphen_values = true)]
    pub time: Option<Duration>,
    /// Container image [default: the config's, or the cluster's]
    #[arg(long, alias = "container-image", value_name = "IMAGE", value_parser = pyxis::parse_image)]
    pub image: Option<String>,
    /// A variable for every process; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_variable)]
    pub env: Vec<v1::EnvVar>,
    /// Where logins and commands start [default: the home]
    #[arg(
        short = 'D',
        long,
        visible_alias = "chdir",
        alias = "container-workdir",
        value_name = "DIR"
    )]
    pub workdir: Option<String>,
    /// A directory of the nodes, as the cluster's policy allows; may be repeated
    #[arg(long, value_name = "SRC[:DST][:ro]", value_parser = parse_mount)]
    pub mount: Vec<v1::Mount>,
    /// Directories of the nodes, as users of Pyxis write them
    #[arg(long, value_name = "SRC:DST[:FLAGS][,…]", value_delimiter = ',', value_parser = pyxis::parse_mount)]
    pub container_mounts: Vec<v1::Mount>,
    /// Be root in the container, as for `apt-get install`; outside, and in your home, you stay yourself
    #[arg(long, alias = "container-remap-root", overrides_with = "no_root")]
    pub root: bool,
    /// Be yourself in a session that was started with --root before; its files stay
    #[arg(long, alias = "no-container-remap-root", overrides_with = "root")]
    pub no_root: bool,
    /// Before the deadline, send SIG to everything but the shells of terminals, or with B: to these alone
    /// [default time: 60]
    #[arg(long, value_name = "[B:]SIG[@SECONDS]", value_parser = crate::end_signal::parse)]
    pub signal: Option<v1::EndSignal>,
    /// Which nodes.
    #[command(flatten)]
    pub constraints: ConstraintArgs,
    /// On what terms.
    #[command(flatten)]
    pub terms: TermsArgs,
    /// The components after the first.
    #[arg(skip)]
    pub more: Vec<RequestArgs>,
}

/// How well GPUs are kept from other users.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Isolation {
    /// There are none: whole GPUs
    Exclusive,
    /// By the hardware: MIG slices
    Mig,
    /// By NVIDIA's Multi-Process Service
    Mps,
    /// By good behaviour: jobs take turns
    Cooperative,
}

/// "NAME=VALUE".
fn parse_variable(text: &str) -> std::result::Result<v1::EnvVar, String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok(v1::EnvVar {
            name: name.to_owned(),
            value: value.to_owned(),
        }),
        _ => Err("write NAME=VALUE".to_owned()),
    }
}

/// `SOURCE[:TARGET][:ro]`.
fn parse_mount(text: &str) -> std::result::Result<v1::Mount, String> {
    let parts: Vec<&str> = text.split(':').collect();
    let (source, target, read_only) = match parts[..] {
        [source] => (source, source, false),
        [source, "ro"] => (source, source, true),
        [source, target] => (source, target, false),
        [source, target, "ro"] => (source, target, true),
        _ => return Err("write SOURCE, SOURCE:TARGET, or either with :ro".to_owned()),
    };
    if [source, target].iter().any(|path| !path.starts_with('/')) {
        return Err("both directories are absolute".to_owned());
    }
    Ok(v1::Mount {
        source: source.to_owned(),
        target: target.to_owned(),
        read_only,
    })
}

impl RequestArgs {
    /// A flag that is given, and says something of the whole allocation and not of some nodes.
    pub fn of_the_whole(&self) -> Option<&'static str> {
        let given = [
            ("--time", self.time.is_some()),
            ("--image", self.image.is_some()),
            ("--env", !self.env.is_empty()),
            ("--workdir", self.workdir.is_some()),
            ("--mount", !self.mount.is_empty()),
            ("--container-mounts", !self.container_mounts.is_empty()),
            ("--root", self.root),
            ("--no-root", self.no_root),
            ("--signal", self.signal.is_some()),
            ("--account", self.terms.account.is_some()),
            ("--qos", self.terms.qos.is_some()),
            ("--partition", self.terms.partition.is_some()),
            ("--reservation", self.terms.reservation.is_some()),
            ("--nice", self.terms.nice.is_some()),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(flag, _)| flag)
    }

    /// A flag that says something of the whole allocation, and in another component something else than in this one.
    pub fn said_otherwise(&self, other: &Self) -> Option<&'static str> {
        let mut other = other.clone();
        let (own, terms) = (&self.terms, &mut other.terms);
        // What is said alike is said once.
        forget(&mut other.time, self.time.as_ref());
        forget(&mut other.image, self.image.as_ref());
        forget(&mut other.workdir, self.workdir.as_ref());
        forget(&mut other.signal, self.signal.as_ref());
        forget(&mut terms.account, own.account.as_ref());
        forget(&mut terms.qos, own.qos.as_ref());
        forget(&mut terms.partition, own.partition.as_ref());
        forget(&mut terms.reservation, own.reservation.as_ref());
        forget(&mut terms.nice, own.nice.as_ref());
        other.env.retain(|one| !self.env.contains(one));
        other.mount.retain(|one| !self.mount.contains(one));
        other
            .container_mounts
            .retain(|one| !self.container_mounts.contains(one));
        other.root &= !self.root;
        other.no_root &= !self.no_root;
        other.of_the_whole()
    }

    /// As `--ntasks-per-gpu` has it: counts the tasks by the GPUs that are asked for, or the GPUs by the tasks.
    pub fn count_by_gpus(&mut self, each: u32) {
        let tasks = &mut self.tasks;
        match (&self.gpus_per_node, &self.gpus, tasks.ntasks) {
            (_, _, None) if tasks.ntasks_per_node.is_some() => {}
            (Some(gpus), _, None) => tasks.ntasks_per_node = Some(gpus.count.saturating_mul(each).max(1)),
            (None, Some(gpus), None) => tasks.ntasks = Some(gpus.count.saturating_mul(each).max(1)),
            (None, None, Some(tasks)) => {
                self.gpus = units::parse_gpus(&tasks.div_ceil(each).to_string()).ok();
            }
            _ => {}
        }
    }

    /// Keeps what is said of the nodes alone.
    pub fn drop_what_is_of_the_whole(&mut self) {
        *self = Self {
            nodes: self.nodes,
            gpus: self.gpus.take(),
            gpus_per_node: self.gpus_per_node.take(),
            gpu_model: self.gpu_model.take(),
            gpu_mem: self.gpu_mem,
            isolation: self.isolation,
            nvlink: self.nvlink,
            cpus: self.cpus,
            tasks: self.tasks.clone(),
            exclusive: self.exclusive,
            mem: self.mem,
            constraints: self.constraints.clone(),
            ..Self::default()
        };
    }

    /// Nothing is asked for.
    pub fn is_empty(&self) -> bool {
        let Self {
            nodes,
            gpus,
            gpus_per_node,
            gpu_model,
            gpu_mem,
            isolation,
            nvlink,
            cpus,
            tasks,
            exclusive,
            mem,
            time,
            image,
            env,
            workdir,
            mount,
            container_mounts,
            root,
            no_root,
            signal,
            constraints,
            terms,
            more,
        } = self;
        if *terms != TermsArgs::default() {
            return false;
        }
        if *constraints != ConstraintArgs::default() || !more.is_empty() || signal.is_some() {
            return false;
        }
        let mounts = mount.is_empty() && container_mounts.is_empty();
        if !tasks.is_empty() || !env.is_empty() || workdir.is_some() || !mounts || *root || *no_root {
            return false;
        }
        let counts = nodes.or(*cpus).is_none() && gpus.is_none() && gpus_per_node.is_none();
        let kinds = gpu_mem.is_none() && isolation.is_none() && exclusive.is_none();
        counts
            && kinds
            && gpu_model.is_none()
            && !nvlink
            && mem.is_none()
            && time.is_none()
            && image.is_none()
    }

    /// `base` with what is asked for here changed. Zeros are the cluster's defaults.
    pub fn over(&self, mut base: v1::SessionSpec) -> Result<v1::SessionSpec> {
        let mut resources = base.resources.take().unwrap_or_default();
        let asked = self.nodes.map(|nodes| self.tasks.nodes_of(nodes));
        let asked = asked.or(self.tasks.nodes()).or(self.nodes_by_gpus());
        let asked = asked.or(self.constraints.named());
        resources.nodes = asked.unwrap_or(resources.nodes).max(1);
        let nodes = resources.nodes;
        let gpus = self.gpus_of_each(nodes)?;
        let by_tasks = self.tasks.gpus(nodes, gpus)?;
        if let Some((gpus, per_node)) = gpus.or(by_tasks) {
            resources.gpus_per_node = per_node;
            resources.unit = unit_message(&gpus.unit);
            resources.gpu_memory_bytes = 0;
            resources.gpu_model.clone_from(&gpus.model);
            // Other GPUs have other CPUs and memory near to them.
            resources.cpus_per_node = 0;
            resources.memory_bytes_per_node = 0;
            resources.all_memory = false;
        }
        resources.exclusive |= self.exclusive == Some(Exclusive::Nodes);
        if let Some(model) = self.model()? {
            model.clone_into(&mut resources.gpu_model);
        }
        resources.nvlink |= self.nvlink;
        self.set_unit(&mut resources)?;
        self.constraints.over(&mut resources, self.nvlink);
        self.terms.over(&mut base.terms);
        let wants_nvlink = self.nvlink || self.constraints.prefer.is_some();
        if resources.gpus_per_node == 0 && (wants_nvlink || self.gpu_model.is_some()) {
            let flag = match (self.nvlink, wants_nvlink) {
                (true, _) => "--nvlink",
                (false, true) => "--prefer nvlink",
                (false, false) => "--gpu-model",
            };
            return Err(
                CliError::usage(format!("{flag} says something of GPUs, but none are asked for"))
                    .hint("say how many, such as --gpus 4"),
            );
        }
        self.tasks.set(&mut resources, self.cpus, self.mem)?;
        if !self.more.is_empty() {
            let components = self.more.iter().map(|one| {
                let spec = one.over(v1::SessionSpec::default())?;
                Ok(spec.resources.unwrap_or_default())
            });
            resources.more = components.collect::<Result<_>>()?;
        }
        base.resources = Some(resources);
        base.time_limit_s = self.time.map_or(base.time_limit_s, |time| time.as_secs());
        if let Some(image) = &self.image {
            if image.is_empty()
                || image.len() > 512
                || image.chars().any(|c| c.is_whitespace() || c.is_control())
            {
                return Err(CliError::usage(format!("{image:?} is no image reference")));
            }
            base.image.clone_from(image);
        }
        for variable in &self.env {
            base.env.retain(|known| known.name != variable.name);
            base.env.push(variable.clone());
        }
        if let Some(workdir) = &self.workdir {
            base.workdir.clone_from(workdir);
        }
        for mount in self.mount.iter().chain(&self.container_mounts) {
            base.mounts.retain(|known| known.target != mount.target);
            base.mounts.push(mount.clone());
        }
        base.root = self.root || base.root && !self.no_root;
        base.end_signal = self.signal.or(base.end_signal);
        Ok(base)
    }

    /// What is taken and means nothing here, a sentence each.
    pub fn notes(&self) -> Vec<String> {
        let all = std::iter::once(self).chain(&self.more);
        let notes = all.flat_map(|one| {
            let fewer = one.nodes.and_then(|nodes| one.tasks.fewer_nodes(nodes));
            one.exclusive.and_then(Exclusive::note).into_iter().chain(fewer)
        });
        notes.collect()
    }

    /// Nodes that GPUs take where both all of them and those of each node are counted, as in Slurm (`_test_gres_cnt`).
    fn nodes_by_gpus(&self) -> Option<u32> {
        let (total, each) = self.gpus.as_ref().zip(self.gpus_per_node.as_ref())?;
        let even = each.count > 0 && total.count.is_multiple_of(each.count);
        even.then(|| total.count / each.count).filter(|nodes| *nodes > 0)
    }

    /// What GPUs --gpus and --gpus-per-node ask for, and how many of them on each of so many nodes.
    fn gpus_of_each(&self, nodes: u32) -> Result<Option<(&GpuCount, u32)>> {
        const HINT: &str = "--gpus counts the GPUs of all nodes; --gpus-per-node those of each";
        let (total, each) = match (&self.gpus, &self.gpus_per_node) {
            (None, None) => return Ok(None),
            (None, Some(each)) => return Ok(Some((each, each.count))),
            (Some(total), each) => (total, each.as_ref()),
        };
        if let Some(each) = each
            && (each.unit != total.unit || u64::from(each.count) * u64::from(nodes) != u64::from(total.count))
        {
            return Err(CliError::usage(format!(
                "{total} over all nodes, and {each} on each of {nodes}, are not the same"
            ))
            .hint(HINT));
        }
        if total.count % nodes != 0 {
            return Err(CliError::usage(format!(
                "{total} cannot be spread evenly over {}",
                units::counted(nodes, "node")
            ))
            .hint(HINT));
        }
        // What names a model says more, and is looked for in both.
        Ok(Some((total, total.count / nodes)))
    }

    /// The GPU model that is asked for, by whichever flags; none: any.
    fn model(&self) -> Result<Option<&str>> {
        let counts = [&self.gpus, &self.gpus_per_node, &self.tasks.gpus_per_task];
        let models = counts
            .into_iter()
            .flatten()
            .map(|gpus| &gpus.model)
            .chain(&self.gpu_model);
        let mut models = models.map(String::as_str).filter(|model| !model.is_empty());
        let first = models.next();
        match models.find(|other| Some(*other) != first) {
            Some(other) => Err(CliError::usage(format!(
                "two GPU models are asked for: {} and {other}",
                first.unwrap_or_default()
            ))),
            None => Ok(first),
        }
    }
}

impl RequestArgs {
    /// What each GPU is to be: of `--gpu-mem` and `--isolation`.
    fn set_unit(&self, resources: &mut v1::ResourceRequest) -> Result<()> {
        if let Some(bytes) = self.gpu_mem {
            let asked = resources.unit.as_ref().and_then(|unit| unit.unit.as_ref());
            if matches!(asked, Some(Unit::MigProfile(_) | Unit::Share(_))) {
                return Err(CliError::usage(
                    "--gpu-mem says how large a GPU or slice is to be, and --gpus says it too",
                )
                .hint("--gpus 2 --gpu-mem 20G: two slices or GPUs of 20 GB at least"));
            }
            resources.gpus_per_node = resources.gpus_per_node.max(1);
            resources.gpu_memory_bytes = bytes;
            // NVLink joins whole GPUs only.
            resources.unit = (!resources.nvlink).then_some(LEAST);
        }
        let slice = resources.unit.is_some();
        if slice && resources.nvlink {
            return Err(CliError::usage(
                "--nvlink is for whole GPUs: slices and shares are not joined by it",
            ));
        }
        let Some(isolation) = self.isolation else {
            return Ok(());
        };
        let unit = resources.unit.clone().and_then(|unit| unit.unit);
        let contradiction = |what: &str, is: &str| {
            Err(CliError::usage(format!(
                "{what} {is}, and --isolation asks for something else"
            )))
        };
        match (unit, isolation) {
            _ if resources.gpus_per_node == 0 => Err(CliError::usage(
                "--isolation says something of GPUs, but none are asked for",
            )
            .hint("say how many, such as --gpus 1")),
            (None, Isolation::Exclusive) | (Some(Unit::MigProfile(_)), Isolation::Mig) => Ok(()),
            (Some(Unit::Least(_)), Isolation::Exclusive) => {
                resources.unit = None;
                Ok(())
            }
            (Some(Unit::Least(_)), _) => {
                contradiction("what --gpu-mem asks for", "is a MIG slice or a whole GPU")
            }
            (Some(Unit::Share(share)), Isolation::Mps | Isolation::Cooperative) => {
                let sharing = match isolation {
                    Isolation::Mps => v1::Sharing::Mps,
                    Isolation::Cooperative | Isolation::Exclusive | Isolation::Mig => v1::Sharing::TimeSlice,
                };
                let share = v1::GpuShareRequest {
                    sharing: sharing.into(),
                    ..share
                };
                resources.unit = Some(v1::GpuUnitRequest {
                    unit: Some(Unit::Share(share)),
                });
                Ok(())
            }
            (None, _) => contradiction("a whole GPU", "is exclusive"),
            (Some(Unit::MigProfile(_)), _) => contradiction("a MIG slice", "is kept apart by the hardware"),
            (Some(Unit::Share(_)), _) => contradiction("a share of a GPU", "is mps or cooperative"),
        }
    }
}

/// Drops a value that is another's, too.
fn forget<T: PartialEq>(value: &mut Option<T>, other: Option<&T>) {
    if value.as_ref() == other {
        *value = None;
    }
}

/// The slice or GPU with the least memory that is enough.
const LEAST: v1::GpuUnitRequest = v1::GpuUnitRequest {
    unit: Some(Unit::Least(true)),
};

/// Absent for whole GPUs.
fn unit_message(unit: &GpuUnit) -> Option<v1::GpuUnitRequest> {
    let unit = match unit {
        GpuUnit::Whole => return None,
        GpuUnit::Mig(profile) => Unit::MigProfile(profile.clone()),
        GpuUnit::Share(milli) => Unit::Share(v1::GpuShareRequest {
            milli: *milli,
            ..Default::default()
        }),
    };
    Some(v1::GpuUnitRequest { unit: Some(unit) })
}

/// What a session was last time.
pub fn last_spec(session: &v1::Session) -> v1::SessionSpec {
    if let Some(spec) = &session.spec {
        return spec.clone();
    }
    let job = session.job.clone().unwrap_or_default();
    v1::SessionSpec {
        resources: job.request,
        image: session.image.clone(),
        time_limit_s: job.time_limit_s,
        ..Default::default()
    }
}

/// Fresh text for `OpenSessionRequest.request_key`.
pub fn new_key() -> String {
    format!("{:032x}", rand::random::<u128>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser as _;

    /// What a command line says, or that it is wrong.
    pub(super) fn read(line: &str) -> std::result::Result<RequestArgs, clap::Error> {
        let cli = Cli::try_parse_from(format!("carrel alloc {line}").split_whitespace())?;
        match cli.command {
            Command::Alloc(args) => Ok(args.request),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn args(line: &str) -> RequestArgs {
        let cli = Cli::try_parse_from(format!("carrel alloc {line}").split_whitespace()).expect(line);
        match cli.command {
            Command::Alloc(args) => args.request,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn spec(line: &str) -> Result<v1::SessionSpec> {
        args(line).over(v1::SessionSpec::default())
    }

    pub(super) fn resources(line: &str) -> v1::ResourceRequest {
        spec(line).unwrap().resources.unwrap()
    }

    #[test]
    fn slurm_s_spellings() {
        let r = resources("-N 2 --gpus-per-node=h100:8 -c 16 --mem 64G -t 4:00:00 --nvlink");
        assert_eq!((r.nodes, r.gpus_per_node, r.cpus_per_node), (2, 8, 16));
        assert_eq!(
            (r.gpu_model.as_str(), r.nvlink, r.memory_bytes_per_node),
            ("h100", true, 64 << 30)
        );
        assert_eq!(resources("-N2 -G 8").gpus_per_node, 4);
        assert_eq!(resources("").nodes, 1);
        assert_eq!(spec("-t 90").unwrap().time_limit_s, 5400);
        assert_eq!(resources("--gpus 2 --gpu-model a100").gpu_model, "a100");
    }

    #[test]
    fn slices_and_shares() {
        let unit = |line: &str| resources(line).unit.and_then(|unit| unit.unit);
        assert_eq!(unit("--gpus 2"), None);
        let r = resources("-N 2 --gpus 1g.10gb:4");
        assert_eq!(r.gpus_per_node, 2);
        assert_eq!(
            r.unit.and_then(|unit| unit.unit),
            Some(Unit::MigProfile("1g.10gb".into()))
        );
        let share = |milli, sharing: v1::Sharing| {
            let sharing = sharing.into();
            Some(Unit::Share(v1::GpuShareRequest { milli, sharing }))
        };
        assert_eq!(unit("--gpus 0.25"), share(250, v1::Sharing::Unspecified));
        assert_eq!(unit("--gpus 0.25 --isolation mps"), share(250, v1::Sharing::Mps));
        let r = resources("--gpu-mem 20G");
        assert_eq!((r.gpus_per_node, r.gpu_memory_bytes), (1, 20_000_000_000));
        assert_eq!(unit("--gpu-mem 20G"), Some(Unit::Least(true)));
        assert_eq!(unit("--gpu-mem 20G --isolation exclusive"), None);
        assert_eq!(unit("--gpus 2 --gpu-mem 20G --nvlink"), None);
        for line in [
            "--gpus 1g.10gb --nvlink",
            "--gpus 0.5 --gpu-mem 20G",
            "--gpus 1g.10gb --gpu-mem 20G",
            "--gpus 1 --isolation mig",
            "--gpus 0.5 --isolation exclusive",
            "--isolation mps",
            "-N 2 --gpus 0.5",
        ] {
            assert!(spec(line).is_err(), "{line}");
        }
    }

    #[test]
    fn containers_are_described() {
        let spec =
            spec("--env A=1 --env B=x=y --workdir /w --mount /data:ro --mount /a:/b --mount /c:/d:ro --root")
                .unwrap();
        let env: Vec<_> = spec
            .env
            .iter()
            .map(|v| (v.name.as_str(), v.value.as_str()))
            .collect();
        assert_eq!(env, [("A", "1"), ("B", "x=y")]);
        let mounts: Vec<_> = spec
            .mounts
            .iter()
            .map(|m| (m.source.as_str(), m.target.as_str(), m.read_only))
            .collect();
        assert_eq!(
            mounts,
            [("/data", "/data", true), ("/a", "/b", false), ("/c", "/d", true)]
        );
        assert_eq!((spec.workdir.as_str(), spec.root), ("/w", true));
        let over = |line: &str, base: v1::SessionSpec| args(line).over(base).unwrap().root;
        assert!(over("", spec.clone()) && !over("--no-root", spec.clone()) && over("--no-root --root", spec));
        for line in [
            "--env A",
            "--env =x",
            "--mount data",
            "--mount /a:b",
            "--mount /a:/b:rw",
            "--mount /a:/b:ro:x",
        ] {
            assert!(
                Cli::try_parse_from(format!("carrel alloc {line}").split_whitespace()).is_err(),
                "{line}"
            );
        }
    }

    #[test]
    fn contradictions_are_refused() {
        for line in [
            "-N 3 --gpus 4",
            "--nvlink",
            "--gpu-model h100",
            "--gpus h100:4 --gpu-model a100",
            "--image a\tb",
        ] {
            if line.contains('\t') {
                let args = RequestArgs {
                    image: Some("a\tb".into()),
                    ..Default::default()
                };
                assert!(args.over(v1::SessionSpec::default()).is_err());
            } else {
                assert!(spec(line).is_err(), "{line}");
            }
        }
        let parse = |line: &str| Cli::try_parse_from(format!("carrel alloc {line}").split_whitespace());
        for line in [
            "--gpus -1",
            "--gpus-per-task 0",
            "-N 0",
            "-c -4",
            "--mem -1",
            "-t 0",
            "--gpus 1e9",
            "-N 4294967296",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
        // Over all and of each is no contradiction where it is the same, and says on how many nodes.
        let both = resources("--gpus 8 --gpus-per-node a100:4");
        assert_eq!(
            (both.nodes, both.gpus_per_node, both.gpu_model.as_str()),
            (2, 4, "a100")
        );
        assert_eq!(resources("-N 2 --gpus 8 --gpus-per-node 4").nodes, 2);
        for line in [
            "-N 1 --gpus 8 --gpus-per-node 4",
            "--gpus 6 --gpus-per-node 4",
            "--gpus 1g.10gb:2 --gpus-per-node 2",
        ] {
            assert!(spec(line).is_err(), "{line}");
        }
    }

    #[test]
    fn flags_change_what_a_session_was() {
        let was = v1::SessionSpec {
            resources: Some(v1::ResourceRequest {
                nodes: 1,
                gpus_per_node: 4,
                cpus_per_node: 32,
                ..Default::default()
            }),
            image: "torch".into(),
            time_limit_s: 3600,
            ..Default::default()
        };
        let args = RequestArgs {
            gpus: Some(GpuCount {
                count: 2,
                ..GpuCount::default()
            }),
            ..Default::default()
        };
        let now = args.over(was).unwrap();
        assert_eq!((now.image.as_str(), now.time_limit_s), ("torch", 3600));
        let resources = now.resources.unwrap();
        assert_eq!((resources.gpus_per_node, resources.cpus_per_node), (2, 0));
    }
}
