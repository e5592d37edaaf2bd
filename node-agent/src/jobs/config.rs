//! From a wish to what a container and its carrel-init are made of.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use carrel_core::model::batch::BatchRun;
use carrel_core::model::cpus::Binding;
use carrel_core::model::gpu::{GpuInfo, Inventory};
use carrel_core::model::gpu_unit::{GpuUnit, Slice, WHOLE_MILLI};
use carrel_core::model::ids::NodeName;
use carrel_core::model::node::DesiredJob;
use carrel_core::model::session::Mount;
use carrel_core::model::time::Timestamp;
use carrel_proto::{inside, v1};
use prost::Message;

use super::{Shared, Wish, gang};
use crate::gpu::Given;
use crate::runtime::{
    BindMount, ContainerRecord, ContainerSpec, Gang, LeaseEnd, Runtime, SCRIPT, root_inside,
};

/// A host's GPUs, as one job sees them.
pub(super) struct Gpus {
    /// What it has of them, in the container's order.
    pub own: Vec<Given>,
    /// Those of which it has nothing.
    pub others: Vec<GpuInfo>,
}

/// The GPUs of which a job has nothing.
pub(super) fn others(inventory: &Inventory, units: &[GpuUnit]) -> Vec<GpuInfo> {
    let others = inventory.gpus.iter();
    let others = others.filter(|gpu| units.iter().all(|unit| unit.gpu != gpu.uuid));
    others.cloned().collect()
}

/// A job's units on GPUs that are there, in the container's order.
pub(super) fn on_gpus<'a>(inventory: &'a Inventory, units: &'a [GpuUnit]) -> Vec<(&'a GpuInfo, &'a Slice)> {
    let find = |unit: &'a GpuUnit| {
        let gpu = inventory.gpus.iter().find(|gpu| gpu.uuid == unit.gpu)?;
        Some((gpu, &unit.slice))
    };
    units.iter().filter_map(find).collect()
}

/// What the container is made of.
pub(super) fn container(
    shared: &Shared,
    wish: &Wish,
    binding: Binding,
    Gpus { own, others }: Gpus,
    config: &v1::InitConfig,
    lease: LeaseEnd,
    shm: Option<PathBuf>,
) -> Result<ContainerSpec> {
    let Wish { job, message } = wish;
    let identity = message
        .identity
        .clone()
        .context("the broker does not say who the user is")?;
    ensure!(
        identity.uid != 0 || shared.allow_root,
        "this node runs no jobs of user 0 (root): ask as another user, or set allow_root in the agent's configuration"
    );
    let mut mounts: Vec<BindMount> = BindMount::home(&identity).into_iter().collect();
    for Mount {
        source,
        target,
        read_only,
    } in &job.container.mounts
    {
        let (source, target, read_only) = (source.clone(), target.clone(), *read_only);
        ensure!(
            Path::new(&source).is_dir(),
            "node {} has no directory {source}, which --mount asks for",
            shared.node
        );
        mounts.push(BindMount {
            source,
            target,
            read_only,
        });
    }
    Ok(ContainerSpec {
        record: ContainerRecord {
            key: job.key,
            session: job.session,
            name: job.name.clone(),
            user: job.owner.to_string(),
            cluster: shared.cluster.to_string(),
            image: job.image.clone(),
            rank: job.rank,
            gpus: job.gpus.clone(),
            cpus: job.cpus,
            memory_bytes: job.memory_bytes,
            deadline: job.deadline,
            nodes: u32::try_from(job.peers.len().max(1)).unwrap_or(u32::MAX),
            started: crate::clock::now().wall,
            binding,
            visible: own.iter().map(|given| given.visible().clone()).collect(),
            network: job.network(),
        },
        hostname: host_name(job),
        aliases: gang::aliases(job, &shared.node),
        address: gang::address(job, shared.runtime.reach()),
        gang: Gang::of(job, shared.runtime.reach())?,
        hostfile: gang::hostfile(job),
        mounts,
        identity,
        root: job.container.root,
        gpus: own,
        others,
        shm,
        pids_limit: shared.runtime.pids_limit(),
        env: config
            .env
            .iter()
            .map(|variable| (variable.name.clone(), variable.value.clone()))
            .collect(),
        hosts: gang::hosts(job),
        init_config: config.encode_to_vec(),
        lease,
        script: job.batch.as_ref().and_then(|run| run.script.clone()),
        command: None,
    })
}

/// The container's host name: a session's own; of a batch job, and in a gang, that of the node, by which its programs and its
/// peers know it. torchrun takes itself for the host of a rendezvous only if this is the name that was given for it.
fn host_name(job: &DesiredJob) -> String {
    let own = job.peers.iter().find(|peer| peer.rank == job.rank);
    match own {
        Some(peer) if job.peers.len() > 1 || job.batch.is_some() => peer.node.to_string(),
        Some(peer) => peer.host_name.clone(),
        None => job.name.clone(),
    }
}

/// What carrel-init is told. `gpu_env` is what programs find the GPUs by.
pub(super) fn init(
    node: &NodeName,
    runtime: &Runtime,
    wish: &Wish,
    inventory: &Inventory,
    gpu_env: &[(String, String)],
) -> v1::InitConfig {
    let Wish { job, message } = wish;
    let gpus = &on_gpus(inventory, &job.gpus)[..];
    v1::InitConfig {
        job: job.key.job.0,
        generation: job.key.generation.0,
        identity: message.identity.as_ref().map(|identity| inside(job, identity)),
        root: job.container.root,
        env: environment(job, gpus, gpu_env),
        workdir: job.workdir.clone(),
        ssh: message.ssh.clone(),
        banner: banner(node, &runtime.network(job.network(), job.peers.len()), job, gpus),
        main: job.batch.as_ref().map(|run| main_command(run, job.go)),
        // Known when the container is made.
        first_lease_end_ms: 0,
        deadline_ms: job.deadline.millis(),
        warn_before_s: message.warn_before_s.clone(),
        end_signal: message.end_signal,
        idle_ends_ms: message.idle_ends_ms,
        idle_warn_before_s: message.idle_warn_before_s.clone(),
        user_signal: message.user_signal,
    }
}

/// What a batch job's container is there for.
fn main_command(run: &BatchRun, go: bool) -> v1::MainCommand {
    let script = run.script.is_some().then(|| SCRIPT.to_owned());
    v1::MainCommand {
        script: script.is_some(),
        command: script.into_iter().chain(run.command.iter().cloned()).collect(),
        stdout: run.stdout.clone(),
        stderr: run.stderr.clone(),
        append: run.append,
        go,
    }
}

/// The user, as his processes are in the container.
fn inside(job: &DesiredJob, identity: &v1::Identity) -> v1::Identity {
    if !job.container.root {
        return identity.clone();
    }
    let covers = |mount: &Mount| Path::new(&identity.home).starts_with(&mount.target);
    let home_is_mounted = BindMount::home(identity).is_some() || job.container.mounts.iter().any(covers);
    root_inside(identity, home_is_mounted)
}

/// The broker's variables, and over them what only the node knows: GPU visibility, the
/// host's own GPU indices, the way to the broker, and whether the gang is complete.
fn environment(
    job: &DesiredJob,
    gpus: &[(&GpuInfo, &Slice)],
    gpu_env: &[(String, String)],
) -> Vec<v1::EnvVar> {
    let mut env: Vec<v1::EnvVar> = Vec::with_capacity(job.env.len() + gpu_env.len() + 2);
    let mut set = |name: &str, value: &str| match env.iter_mut().find(|known| known.name == name) {
        Some(known) => value.clone_into(&mut known.value),
        None => env.push(v1::EnvVar {
            name: name.to_owned(),
            value: value.to_owned(),
        }),
    };
    for (name, value) in job.env.iter().chain(gpu_env) {
        set(name, value);
    }
    if !gpus.is_empty() {
        let mut indices: Vec<String> = gpus.iter().map(|(gpu, _)| gpu.index.to_string()).collect();
        // Slices of one GPU.
        indices.dedup();
        set("SLURM_JOB_GPUS", &indices.join(","));
    }
    set("CARREL_BROKER", &inside::address());
    set("CARREL_DEADLINE_FILE", inside::DEADLINE);
    set("CARREL_HOSTFILE", inside::HOSTFILE);
    if job.peers.len() > 1 {
        set("CARREL_GO", if job.go { "1" } else { "0" });
    }
    env
}

/// "2 x NVIDIA H100 (exclusive)", "1g.10gb of NVIDIA H100 (mig)", "0.5 of NVIDIA H100 (cooperative, by time-slice)".
fn gpus_in_words(gpus: &[(&GpuInfo, &Slice)]) -> String {
    let in_words = |(gpu, slice): &(&GpuInfo, &Slice)| {
        let (model, isolation) = (&gpu.model, slice.isolation().name());
        match slice {
            Slice::Whole => format!("{model} ({isolation})"),
            Slice::Mig { profile, .. } => format!("{profile} of {model} ({isolation})"),
            Slice::Share { milli, sharing } => {
                let part = f64::from(*milli) / f64::from(WHOLE_MILLI);
                format!("{part} of {model} ({isolation}, by {})", sharing.name())
            }
        }
    };
    let words: Vec<String> = gpus.iter().map(in_words).collect();
    let kinds = words
        .chunk_by(|a, b| a == b)
        .map(|same| match (same.len(), &same[0]) {
            (1, one) if !gpus.iter().any(|(_, slice)| **slice == Slice::Whole) => one.clone(),
            (count, one) => format!("{count} x {one}"),
        });
    kinds.collect::<Vec<_>>().join(", ")
}

/// Where one is, what one has, and until when.
fn banner(node: &NodeName, network: &str, job: &DesiredJob, gpus: &[(&GpuInfo, &Slice)]) -> String {
    let gpus = match gpus {
        [] => String::new(),
        gpus => format!("{}, ", gpus_in_words(gpus)),
    };
    let memory = job.memory_bytes as f64 / f64::from(1 << 30);
    format!(
        "carrel: {} on {node}: {gpus}{} CPUs, {memory:.4} GiB; network: {network}\ncarrel: ends {}; `carrel extend {}` moves that\n",
        job.name,
        job.cpus,
        utc(job.deadline),
        job.name
    )
    .replace(".0000 GiB", " GiB")
}

/// What the job's programs may read of its end, as JSON: editors warn by it.
pub(super) fn deadline(job: &DesiredJob, config: &v1::InitConfig) -> String {
    serde_json::json!({
        "job": job.key.job.0,
        "name": job.name,
        "deadline_ms": config.deadline_ms,
        "warn_before_seconds": config.warn_before_s,
        "idle_ends_ms": (config.idle_ends_ms > 0).then_some(config.idle_ends_ms),
    })
    .to_string()
        + "\n"
}

/// A further line for those who come in; empty: nothing was ended.
pub(super) fn out_of_memory(job: &DesiredJob, kills: u32) -> String {
    let processes = match kills {
        0 => return String::new(),
        1 => "1 process".to_owned(),
        more => format!("{more} processes"),
    };
    format!(
        "carrel: the kernel has ended {processes} here for want of memory; the limit is {} MiB (--mem)\n",
        job.memory_bytes >> 20
    )
}

/// "2026-11-21 09:42 UTC", by the civil calendar (H. Hinnant, "chrono-Compatible Low-Level Date
/// Algorithms", `civil_from_days`).
fn utc(time: Timestamp) -> String {
    let minutes = time.0 / 60_000;
    let (days, minute) = (minutes / 1440, minutes % 1440);
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02} UTC",
        minute / 60,
        minute % 60
    )
}

/// A further line for those who come in; empty: nothing befell what it uses.
pub(super) fn trouble(text: &str) -> String {
    match text {
        "" => String::new(),
        text => format!("carrel: {text}\n"),
    }
}

#[cfg(test)]
mod tests {
    use carrel_core::model::gang_network::{RankNetwork, Reach, Subnet};
    use carrel_core::model::ids::{Generation, JobId, JobKey};
    use carrel_core::model::node::Peer;
    use carrel_core::model::session::ContainerOptions;

    use super::*;

    fn job() -> DesiredJob {
        DesiredJob {
            key: JobKey {
                job: JobId(7),
                generation: Generation(1),
            },
            session: None,
            name: "dev".into(),
            owner: "alice".parse().expect("a name"),
            image: "busybox".into(),
            gpus: Vec::new(),
            cpus: 4,
            memory_bytes: 8 << 30,
            rank: 1,
            peers: Vec::new(),
            gang_subnet: Subnet::GANGS,
            env: vec![
                ("CUDA_VISIBLE_DEVICES".into(), "all of them".into()),
                ("CARREL_BROKER".into(), "https://elsewhere".into()),
                ("SLURM_JOB_ID".into(), "7".into()),
            ],
            deadline: Timestamp(1_795_254_120_000),
            go: false,
            host_key: String::new(),
            host_principals: Vec::new(),
            workdir: String::new(),
            ready: false,
            container: ContainerOptions::default(),
            batch: None,
            idle_ends: None,
            signalled: None,
        }
    }

    fn gpu(index: u32) -> GpuInfo {
        GpuInfo {
            uuid: format!("GPU-{index}").parse().expect("a UUID"),
            index,
            model: "NVIDIA H100".into(),
            memory_bytes: 0,
            pci_address: String::new(),
            numa_node: None,
            minor: None,
            mig: None,
            sharing: None,
            drained: None,
            cpu_affinity: String::new(),
            nvlink_version: 0,
        }
    }

    /// The user's own variables cannot widen what a job sees.
    #[test]
    fn the_nodes_variables_come_over_the_users() {
        let gpu_env = [("CUDA_VISIBLE_DEVICES".to_owned(), "GPU-5,GPU-2".to_owned())];
        let env = environment(
            &job(),
            &[(&gpu(5), &Slice::Whole), (&gpu(2), &Slice::Whole)],
            &gpu_env,
        );
        let value = |name: &str| {
            let found: Vec<_> = env.iter().filter(|variable| variable.name == name).collect();
            assert_eq!(found.len(), 1, "{name}");
            found[0].value.clone()
        };
        assert_eq!(value("CUDA_VISIBLE_DEVICES"), "GPU-5,GPU-2");
        assert_eq!(value("SLURM_JOB_GPUS"), "5,2");
        assert_eq!(value("SLURM_JOB_ID"), "7");
        assert_eq!(value("CARREL_BROKER"), "unix:/.carrel/api/api.sock");
    }

    #[test]
    fn a_gangs_member_has_its_own_name_and_the_barrier() {
        let peer = |rank: u32| Peer {
            rank,
            node: format!("n{rank}").parse().expect("a name"),
            host_name: format!("dev-{rank}"),
            network: RankNetwork::Own,
            reach: Reach::default(),
            slots: 1,
        };
        let gang = DesiredJob {
            peers: vec![peer(0), peer(1)],
            ..job()
        };
        assert_eq!(host_name(&gang), "n1");
        assert_eq!(host_name(&job()), "dev");
        let go = |go: bool| environment(&DesiredJob { go, ..gang.clone() }, &[], &[]);
        assert!(
            go(false)
                .iter()
                .any(|variable| variable.name == "CARREL_GO" && variable.value == "0")
        );
        assert!(
            go(true)
                .iter()
                .any(|variable| variable.name == "CARREL_GO" && variable.value == "1")
        );
    }

    #[test]
    fn the_banner_says_what_and_until_when() {
        let node = "n1".parse().expect("a name");
        let whole = [(&gpu(0), &Slice::Whole), (&gpu(1), &Slice::Whole)];
        let text = banner(&node, "NAT out", &job(), &whole);
        assert_eq!(
            text,
            "carrel: dev on n1: 2 x NVIDIA H100 (exclusive), 4 CPUs, 8 GiB; network: NAT out\n\
             carrel: ends 2026-11-21 09:42 UTC; `carrel extend dev` moves that\n"
        );
    }

    #[test]
    fn what_one_has_of_gpus_is_said_with_how_it_is_kept_from_others() {
        let gpu = gpu(0);
        let slice = |text: &str| format!("GPU-0:{text}").parse::<GpuUnit>().expect("a unit").slice;
        let words = |slices: &[Slice]| {
            let gpus: Vec<_> = slices.iter().map(|slice| (&gpu, slice)).collect();
            gpus_in_words(&gpus)
        };
        assert_eq!(words(&[Slice::Whole]), "1 x NVIDIA H100 (exclusive)");
        assert_eq!(
            words(&[slice("1g.10gb@0+1"), slice("1g.10gb@1+1"), slice("3g.40gb@4+4")]),
            "2 x 1g.10gb of NVIDIA H100 (mig), 3g.40gb of NVIDIA H100 (mig)"
        );
        assert_eq!(
            words(&[slice("500/1000,time-slice")]),
            "0.5 of NVIDIA H100 (cooperative, by time-slice)"
        );
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(utc(Timestamp(seconds * 1000)), text);
        }
    }
}
