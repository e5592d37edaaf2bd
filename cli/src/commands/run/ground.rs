//! The allocation that a step runs on.

use std::path::Path;

use carrel_proto::v1;

use super::RunArgs;
use crate::context::{Context, Found, JobOrSession};
use crate::error::{CliError, Result};
use crate::step::file_name;
use crate::step::groups::Groups;
use crate::step::layout::Node;

/// The allocation that a step runs on.
pub(super) struct Ground {
    pub job: u64,
    /// The rank of the container that this runs in.
    pub own: Option<u32>,
    pub nodes: Vec<Node>,
    pub groups: Groups,
    pub about: file_name::Job,
}

/// A step runs in the containers that its job has.
///
/// # Errors
/// It asks for another image, or for a directory that is not there.
pub(super) async fn in_its_container(context: &Context, args: &RunArgs, job: u64) -> Result<()> {
    let all = std::iter::once(args).chain(&args.others);
    for request in all.map(|args| &args.request) {
        if let Some(wanted) = &request.image {
            let mut client = context.client().await?;
            let of_job = v1::GetJobRequest {
                id: job,
                tasks: String::new(),
            };
            let image = client.get_job(of_job).await?.into_inner().image;
            if image != *wanted {
                return Err(CliError::usage(format!(
                    "a step runs in its job's containers: those of job {job} are of {image}, not of {wanted}"
                ))
                .hint(format!(
                    "name it where the job is asked for: --image {wanted}, or #SBATCH --container-image={wanted}"
                )));
            }
        }
        let mounts = request.mount.iter().chain(&request.container_mounts);
        let missing = |mount: &&v1::Mount| context.is_inside() && !Path::new(&mount.target).exists();
        if let Some(mount) = mounts.into_iter().find(missing) {
            let target = &mount.target;
            return Err(CliError::usage(format!(
                "a step runs in its job's containers, and those of job {job} have no {target}"
            ))
            .hint(format!(
                "name it where the job is asked for: --mount {}:{target}",
                mount.source
            )));
        }
    }
    Ok(())
}

/// The allocation of a job that runs.
pub(super) async fn of_job(context: &Context, named: &JobOrSession) -> Result<Ground> {
    let mut client = context.client().await?;
    let job = match named.find(&mut client).await? {
        Found::Job(job) => *job,
        Found::Session(session) => {
            let name = session.name.clone();
            session.job.ok_or_else(|| {
                CliError::failed(format!("session {name} is stopped"))
                    .hint(format!("`carrel open {name}` starts it"))
            })?
        }
    };
    let own = variable("CARREL_JOB_ID").filter(|_| context.is_inside());
    let is_own = own.is_some_and(|id| id == job.id.to_string());
    let rank = is_own.then(|| number("CARREL_RANK")).flatten();
    of_message(&job, rank)
}

pub(super) fn of_message(job: &v1::Job, own: Option<u32>) -> Result<Ground> {
    if job.nodes.is_empty() {
        return Err(
            CliError::failed(format!("job {} holds nothing: it is {}", job.id, state_of(job)))
                .hint(format!("`carrel show {}` says more", job.id)),
        );
    }
    let request = job.request.clone().unwrap_or_default();
    let counts: Vec<u32> = std::iter::once(request.nodes)
        .chain(request.more.iter().map(|one| one.nodes))
        .collect();
    let ranks = 0_u32..;
    let nodes = job.nodes.iter().zip(ranks).map(|(node, rank)| Node {
        name: node.node.clone(),
        rank,
        cpus: node.cpus,
        gpus: u32::try_from(node.gpus.len()).unwrap_or(u32::MAX),
        memory: Some(node.memory_bytes),
    });
    let nodes: Vec<Node> = nodes.collect();
    Ok(Ground {
        job: job.id,
        own,
        groups: Groups::of(&nodes, &counts),
        nodes,
        about: file_name::Job {
            id: job.id,
            array: job
                .array
                .as_ref()
                .and_then(|part| Some((part.array, part.tasks.parse().ok()?))),
            name: job.name.clone(),
            user: job.user.clone(),
        },
    })
}

fn state_of(job: &v1::Job) -> &'static str {
    job.state().as_str_name().trim_start_matches("JOB_STATE_")
}

pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

pub(super) fn number(name: &str) -> Option<u32> {
    variable(name)?.parse().ok()
}

/// The allocation that this runs in. Of one node the environment says all: no broker is needed.
pub(super) async fn inside(context: &Context) -> Result<Ground> {
    let job = number("CARREL_JOB_ID").ok_or_else(|| {
        CliError::failed("CARREL_JOB_ID is not set, and so it is not known in which job this runs")
            .hint("leave the allocation's variables as they are, or name the job with --job")
    })?;
    let own = number("CARREL_RANK").unwrap_or(0);
    if number("SLURM_JOB_NUM_NODES") == Some(1) {
        let gpus = variable("CUDA_VISIBLE_DEVICES").map_or(0, |gpus| gpus.split(',').count());
        let array = variable("SLURM_ARRAY_JOB_ID").and_then(|array| array.parse().ok());
        let nodes = vec![Node {
            name: variable("CARREL_NODE").unwrap_or_default(),
            rank: 0,
            cpus: number("SLURM_CPUS_ON_NODE").unwrap_or(1),
            gpus: u32::try_from(gpus).unwrap_or(u32::MAX),
            memory: number("SLURM_MEM_PER_NODE").map(|mebibytes| u64::from(mebibytes) << 20),
        }];
        return Ok(Ground {
            job: job.into(),
            own: Some(0),
            groups: Groups::of(&nodes, &[1]),
            nodes,
            about: file_name::Job {
                id: job.into(),
                array: array.zip(number("SLURM_ARRAY_TASK_ID")),
                name: variable("SLURM_JOB_NAME").unwrap_or_default(),
                user: variable("SLURM_JOB_USER").unwrap_or_default(),
            },
        });
    }
    let mut client = context.client().await?;
    let request = v1::GetJobRequest {
        id: job.into(),
        tasks: String::new(),
    };
    of_message(&client.get_job(request).await?.into_inner(), Some(own))
}

/// The address that this host's name leads to.
pub(super) fn own_address() -> Option<String> {
    let name = nix::unistd::gethostname().ok()?.into_string().ok()?;
    let mut found = std::net::ToSocketAddrs::to_socket_addrs(&(name.as_str(), 0)).ok()?;
    found.next().map(|address| address.ip().to_string())
}
