//! What nodes are told of a step.

use std::io::IsTerminal as _;
use std::os::fd::AsFd as _;
use std::path::Path;

use carrel_proto::v1;

use super::files::{by_nodes, readers};
use super::ground::{Ground, own_address, variable};
use super::{RunArgs, StepGres};
use crate::batch::{OpenMode, environment};
use crate::error::Result;
use crate::step::layout::{Asked, Part};
use crate::step::window;

/// What all nodes of one of a step's programs are told: the step's parts, and those that are this one's.
pub(super) fn start(
    args: &RunArgs,
    asked: &Asked,
    place: &Ground,
    (parts, own_parts): (&[Part], &[Part]),
    here: &Path,
) -> Result<v1::StepStart> {
    let own = environment::own();
    let whole = place.own.is_some()
        && args
            .export
            .as_deref()
            .is_none_or(|names| names.starts_with("ALL"));
    let mut env = if whole {
        let mut all = own.clone();
        if let Some(more) = args
            .export
            .as_deref()
            .and_then(|names| names.strip_prefix("ALL,"))
        {
            all.extend(environment::exported(Some(more), &own)?);
        }
        all
    } else {
        environment::exported(args.export.as_deref(), &own)?
    };
    env.extend(
        args.request
            .env
            .iter()
            .map(|one| (one.name.clone(), one.value.clone())),
    );
    if let Some(each) = args.request.tasks.ntasks_per_node {
        env.insert("SLURM_NTASKS_PER_NODE".to_owned(), each.to_string());
    }
    if let Some(address) = place.own.and_then(|_| own_address()) {
        env.insert("SLURM_LAUNCH_NODE_IPADDR".to_owned(), address);
    }
    let nodes = u32::try_from(own_parts.len()).unwrap_or(u32::MAX).max(1);
    let each = args.request.gpus_per_node.as_ref().map(|gpus| gpus.count);
    let gpus = match (&args.gres, &args.request.gpus) {
        (Some(StepGres::None), _) => Some(0),
        (Some(StepGres::Gpus(gpus)), _) => Some(gpus.count),
        (None, Some(all)) => Some(all.count.div_ceil(nodes)),
        (None, None) => each,
    };
    let workdir = here.join(args.request.workdir.as_deref().unwrap_or_default());
    let terminal = args.pty.then(|| {
        let size = window::get(std::io::stdin().as_fd());
        size.unwrap_or(v1::StepWindow {
            columns: 80,
            rows: 24,
        })
    });
    Ok(v1::StepStart {
        nodes: parts.iter().map(|part| part.node.name.clone()).collect(),
        tasks_per_node: parts
            .iter()
            .map(|part| u32::try_from(part.ranks.len()).unwrap_or(u32::MAX))
            .collect(),
        command: args.command.clone(),
        env: env
            .into_iter()
            .map(|(name, value)| v1::EnvVar { name, value })
            .collect(),
        whole_env: whole,
        workdir: workdir.to_string_lossy().into_owned(),
        cpus_per_task: asked.cpus_per_task,
        gpus_per_task: (asked.gpus_per_task > 0).then_some(asked.gpus_per_task),
        gpus: gpus.filter(|_| asked.gpus_per_task == 0),
        // What somebody looks at is beside what runs.
        overlap: args.overlap,
        bind: args
            .cpu_bind
            .as_deref()
            .is_none_or(|how| !matches!(how, "none" | "no" | "off")),
        immediate: args.immediate.is_some(),
        overcommit: args.overcommit,
        terminal,
        term: variable("TERM")
            .filter(|_| std::io::stdin().is_terminal())
            .unwrap_or_else(|| "dumb".to_owned()),
        stdout: by_nodes(args.stdout.as_deref(), place),
        stderr: by_nodes(args.stderr.as_deref(), place),
        append: args.open_mode == Some(OpenMode::Append),
        input: readers(args, parts)?,
        ..Default::default()
    })
}
