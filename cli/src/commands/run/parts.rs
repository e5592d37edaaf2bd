//! Which tasks of which program a step runs where.

use std::collections::BTreeSet;

use carrel_core::model::host_list;
use carrel_core::model::indices::IndexSet;

use super::ground::{Ground, number};
use super::{RunArgs, StepGres};
use crate::error::{CliError, Result};
use crate::step::groups::{chosen, deal};
use crate::step::layout::{Asked, Node, Part};
use crate::units;

/// Programs of a step, once for each component that it runs on, with what it asks for, and its tasks there.
pub(super) type Programs<'a> = Vec<(&'a RunArgs, Asked, Vec<Part>)>;

/// What the step asks for, over what the allocation says.
fn asked(args: &RunArgs, inside: bool, group: Option<u32>) -> Asked {
    let tasks = &args.request.tasks;
    // What was asked for of each component stands behind its number.
    let group = group.filter(|_| number("SLURM_HET_SIZE").is_some());
    let env = |name: &str| {
        let value = match group {
            Some(group) => number(&format!("{name}_HET_GROUP_{group}")),
            None => number(name),
        };
        value.filter(|_| inside)
    };
    let per_node = tasks.ntasks_per_node;
    let by_env = || match per_node {
        Some(_) => None,
        None => env("SLURM_NTASKS"),
    };
    Asked {
        tasks: tasks.ntasks.or_else(by_env),
        per_node: per_node.or_else(|| match (tasks.ntasks, env("SLURM_NTASKS")) {
            (None, None) => env("SLURM_NTASKS_PER_NODE"),
            _ => None,
        }),
        nodes: args.request.nodes,
        cpus_per_task: tasks
            .cpus_per_task
            .or_else(|| env("SLURM_CPUS_PER_TASK"))
            .unwrap_or(1),
        gpus_per_task: tasks.gpus_per_task.as_ref().map_or(0, |gpus| gpus.count),
        overcommit: args.overcommit,
        distribution: args.distribution.unwrap_or_default(),
    }
}

/// The nodes that the step may have, those that are named first.
fn nodes_for(args: &RunArgs, nodes: &[Node]) -> Result<Vec<Node>> {
    let left = nodes
        .get(args.relative as usize..)
        .filter(|left| !left.is_empty());
    let nodes = left.ok_or_else(|| {
        CliError::failed(format!(
            "--relative={} leaves none of the {} nodes that the job may use here",
            args.relative,
            nodes.len()
        ))
    })?;
    let hosts = |list: &Option<String>| {
        let read = list.as_deref().map(host_list::parse).transpose();
        read.map_err(|bad| CliError::usage(bad.why))
    };
    let constraints = &args.request.constraints;
    let excluded: BTreeSet<String> = hosts(&constraints.exclude)?
        .into_iter()
        .flatten()
        .map(|host| host.to_string())
        .collect();
    let may = |node: &&Node| !excluded.contains(&node.name);
    let Some(named) = hosts(&constraints.nodelist)? else {
        return Ok(nodes.iter().filter(may).cloned().collect());
    };
    let named: Vec<String> = named.into_iter().map(|host| host.to_string()).collect();
    if let Some(other) = named
        .iter()
        .find(|name| !nodes.iter().any(|node| node.name == **name))
    {
        return Err(CliError::failed(format!(
            "the job has nothing on node {other} (--nodelist)"
        )));
    }
    let is_named = |node: &&Node| named.contains(&node.name);
    let first = nodes.iter().filter(is_named).filter(may);
    // With more nodes than are named, others too.
    let others = nodes.iter().filter(|node| !is_named(node)).filter(may);
    let count = args.request.nodes.map_or(named.len(), |count| count as usize);
    let mut all: Vec<Node> = first.chain(others).take(count).cloned().collect();
    all.sort_by_key(|node| node.rank);
    Ok(all)
}

/// Deals out the tasks of a step's programs.
pub(super) fn programs_of<'a>(args: &'a RunArgs, place: &Ground) -> Result<Programs<'a>> {
    let inside = place.own.is_some();
    let all: Vec<&RunArgs> = std::iter::once(args).chain(&args.others).collect();
    if all.len() > place.groups.count() {
        return Err(CliError::failed(format!(
            "the step has {} programs, and the job {} component{}",
            all.len(),
            place.groups.count(),
            if place.groups.count() == 1 { "" } else { "s" }
        ))
        .hint("each program runs on a component of its own; --multi-prog runs several on the same nodes, and -- stands before a command that has a ':' of its own"));
    }
    let usual = (args.of_first_group && inside && number("SLURM_HET_SIZE").is_some()).then_some(0);
    let groups: Vec<Option<&IndexSet>> = all.iter().map(|one| one.het_group.as_ref()).collect();
    let mut programs: Programs<'a> = Vec::new();
    let mut next = 0;
    for (one, groups) in all.into_iter().zip(chosen(&groups, usual)?) {
        let sets: Vec<(Option<u32>, Vec<Node>)> = match groups {
            None => vec![(None, nodes_for(one, &place.nodes)?)],
            Some(groups) => {
                let of = |group: u32| Ok((Some(group), nodes_for(one, place.groups.nodes(group)?)?));
                groups.into_iter().map(of).collect::<Result<_>>()?
            }
        };
        for (group, nodes) in sets {
            let mut asked = asked(one, inside, group);
            if let Some(each) = one.ntasks_per_gpu.filter(|_| one.request.tasks.ntasks.is_none()) {
                asked.tasks = Some(by_gpus(one, &nodes, each)?);
                asked.per_node = one.request.tasks.ntasks_per_node;
            }
            let mut parts = deal(&asked, &nodes, &mut next);
            if parts.is_err() && inside && one.request.tasks.cpus_per_task.is_none() {
                // What the allocation was asked for with counts for as many tasks as it was asked for.
                asked.cpus_per_task = 1;
                parts = deal(&asked, &nodes, &mut next).or(parts);
            }
            let parts = parts?;
            must_have_memory(one, &asked, &parts, place.job)?;
            programs.push((one, asked, parts));
        }
    }
    Ok(programs)
}

/// How many tasks `--ntasks-per-gpu` means on these nodes.
fn by_gpus(args: &RunArgs, nodes: &[Node], each: u32) -> Result<u32> {
    let request = &args.request;
    let gpus = match (&args.gres, &request.gpus_per_node, &request.gpus) {
        (Some(StepGres::None), ..) => 0,
        (Some(StepGres::Gpus(gpus)), ..) | (None, Some(gpus), _) => gpus
            .count
            .saturating_mul(u32::try_from(nodes.len()).unwrap_or(u32::MAX)),
        (None, None, Some(gpus)) => gpus.count,
        (None, None, None) => nodes.iter().map(|node| node.gpus).sum(),
    };
    match gpus.saturating_mul(each) {
        0 => Err(
            CliError::usage("--ntasks-per-gpu says something of GPUs, but the step has none")
                .hint("-n says how many tasks it is to have"),
        ),
        tasks => Ok(tasks),
    }
}

/// Refuses a step that asks for more memory than the job has on one of its nodes. Steps share what there is.
fn must_have_memory(args: &RunArgs, asked: &Asked, parts: &[Part], job: u64) -> Result<()> {
    let tasks = &args.request.tasks;
    for Part { node, ranks } in parts {
        let count = u64::try_from(ranks.len()).unwrap_or(u64::MAX);
        let by_cpus = tasks
            .mem_per_cpu
            .map(|each| each.saturating_mul(u64::from(asked.cpus_per_task.max(1)).saturating_mul(count)));
        let by_gpus = tasks
            .mem_per_gpu
            .map(|each| each.saturating_mul(u64::from(node.gpus)));
        // All of it is what there is.
        let wanted = args.request.mem.or(by_cpus).or(by_gpus).unwrap_or(0);
        let Some(has) = node.memory.filter(|has| wanted > *has) else {
            continue;
        };
        return Err(CliError::failed(format!(
            "Unable to create step for job {job}: Memory required by task is not available: {} on {}, and the job has {} there",
            units::bytes(wanted),
            node.name,
            units::bytes(has)
        ))
        .hint("ask the job for more with --mem, or the step for less: steps share the job's memory"));
    }
    Ok(())
}
