//! What an allocation holds, in one line.

use std::time::Duration;

use carrel_core::model::ids::JobId;
use carrel_proto::v1;

use crate::connect::Client;
use crate::context::request;
use crate::output::visible;
use crate::progress::Progress;
use crate::units;
use crate::view::rank_network;

/// The line is for people; nothing waits for it longer.
const PATIENCE: Duration = Duration::from_millis(300);

/// Says what a session was granted.
pub async fn announce(client: &mut Client, session: &v1::Session, progress: &mut Progress) {
    let Some(job) = &session.job else { return };
    let explained = tokio::time::timeout(PATIENCE, client.explain_job(request(&JobId(job.id).into()))).await;
    let links = match explained {
        Ok(Ok(why)) => why
            .into_inner()
            .seats
            .into_iter()
            .map(|seat| seat.worst_link)
            .collect(),
        Ok(Err(_)) | Err(_) => Vec::new(),
    };
    progress.say(format_args!(
        "Granted job allocation {}: {}",
        job.id,
        describe(job, &links)
    ));
}

/// "h100-01 GPUs 0-3 (NV18, exclusive)"; empty: it holds nothing.
pub fn describe(job: &v1::Job, worst_links: &[String]) -> String {
    let mut text = holdings(job);
    if text.is_empty() {
        return text;
    }
    let mut classes: Vec<&str> = Vec::new();
    for link in worst_links
        .iter()
        .map(String::as_str)
        .chain([job.isolation.as_str()])
    {
        if !link.is_empty() && !classes.contains(&link) {
            classes.push(link);
        }
    }
    let network = gang_network(job);
    if !network.is_empty() {
        classes.push(&network);
    }
    if !classes.is_empty() {
        text += &visible(&format!(" ({})", classes.join(", ")));
    }
    text
}

/// "gang network: routed"; empty: it has one node, or none yet.
fn gang_network(job: &v1::Job) -> String {
    match job.nodes.as_slice() {
        [] | [_] => String::new(),
        [first, ..] => {
            let network = rank_network(first.network.as_ref()).unwrap_or("none");
            format!("gang network: {network}")
        }
    }
}

/// "h100-01 GPUs 0-3, h100-02 GPUs 0-3"; CPUs and memory where there are no GPUs.
pub fn holdings(job: &v1::Job) -> String {
    let nodes = job.nodes.iter().map(|held| {
        let indices: Vec<u32> = indices(&held.gpus);
        let parts = held.gpus.iter().any(|gpu| !gpu.slice.is_empty());
        if parts {
            let gpus = each_gpu(&held.gpus)
                .map(|(gpu, slices)| format!("{} ({slices})", gpu_name(gpu, "GPU ")))
                .collect::<Vec<_>>();
            return format!("{} {}", held.node, gpus.join(", "));
        }
        let there = match indices.as_slice() {
            [] if held.gpus.is_empty() => {
                let cpus = units::counted(held.cpus, "CPU");
                format!("{cpus} {}", units::bytes(held.memory_bytes))
            }
            [] => String::new(),
            [one] => format!("GPU {one}"),
            several => format!("GPUs {}", units::ranges(several)),
        };
        let gone = held
            .gpus
            .iter()
            .filter(|gpu| gpu.gone)
            .map(|gpu| gpu_name(gpu, ""));
        let all: Vec<String> = std::iter::once(there)
            .filter(|text| !text.is_empty())
            .chain(gone)
            .collect();
        format!("{} {}", held.node, all.join(", "))
    });
    nodes.collect::<Vec<_>>().join(", ")
}

/// The indices of those of a job's GPUs that their node has.
pub fn indices(gpus: &[v1::Gpu]) -> Vec<u32> {
    let there = gpus.iter().filter(|gpu| !gpu.gone);
    there.map(|gpu| gpu.index).collect()
}

/// "GPU 3", with what stands before the index; "GPU-7f3a1b2c… (gone)" where its node does not have it any more.
pub fn gpu_name(gpu: &v1::Gpu, before: &str) -> String {
    /// "GPU-", and what tells one GPU of a cluster from another.
    const SHOWN: usize = 12;
    if !gpu.gone {
        return format!("{before}{}", gpu.index);
    }
    let short: String = gpu.uuid.chars().take(SHOWN).collect();
    let more = if short.len() < gpu.uuid.len() { "…" } else { "" };
    visible(&format!("{short}{more} (gone)"))
}

/// Each GPU once, and in words what of it; empty: all.
pub fn each_gpu(gpus: &[v1::Gpu]) -> impl Iterator<Item = (&v1::Gpu, String)> {
    let same = gpus.chunk_by(|a, b| (a.gone, a.index) == (b.gone, b.index) && (!a.gone || a.uuid == b.uuid));
    same.map(|gpus| (&gpus[0], slices(gpus.iter().map(|gpu| gpu.slice.as_str()))))
}

/// "1g.10gb at 0, 1, 3g.40gb at 4": what follows each other of one profile has its name once.
pub fn slices<'a>(slices: impl Iterator<Item = &'a str>) -> String {
    let mut last = "";
    let mut texts: Vec<String> = Vec::new();
    for slice in slices {
        match slice.split_once(" at ") {
            Some((profile, start)) if profile == last => texts.push(visible(start)),
            _ => texts.push(visible(slice)),
        }
        last = slice.split_once(" at ").map_or("", |(profile, _)| profile);
    }
    texts.join(", ")
}

/// "0-3,48-51 (its own), memory of NUMA node 0"; with the nodes' names where there are several. Empty: none of its own.
pub fn own_cpus(job: &v1::Job) -> String {
    let bound = job.nodes.iter().filter(|held| !held.cpuset.is_empty());
    let told = bound.map(|held| {
        let place = match job.nodes.len() {
            0 | 1 => String::new(),
            _ => format!("{} ", held.node),
        };
        format!("{place}{} (its own){}", held.cpuset, memory_of(&held.mems))
    });
    told.collect::<Vec<_>>().join("; ")
}

/// ", memory of NUMA node 0".
pub fn memory_of(mems: &str) -> String {
    match mems {
        "" => String::new(),
        one if one.parse::<u32>().is_ok() => format!(", memory of NUMA node {one}"),
        several => format!(", memory of NUMA nodes {several}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_in_one_line() {
        let gpu = |index| v1::Gpu {
            index,
            ..Default::default()
        };
        let node = |node: &str, gpus: Vec<u32>| v1::NodeAllocation {
            node: node.into(),
            gpus: gpus.into_iter().map(gpu).collect(),
            cpus: 8,
            memory_bytes: 16 << 30,
            ..Default::default()
        };
        let mut job = v1::Job {
            nodes: vec![node("h100-01", vec![0, 1, 2, 3])],
            isolation: "exclusive".into(),
            ..Default::default()
        };
        assert_eq!(
            describe(&job, &["NV18".into()]),
            "h100-01 GPUs 0-3 (NV18, exclusive)"
        );
        let gone = v1::Gpu {
            uuid: "GPU-7f3a1b2c-0b38-4c55-8f5d-2a7e4b6c8d02".into(),
            gone: true,
            ..Default::default()
        };
        job.nodes[0].gpus.push(gone.clone());
        assert_eq!(holdings(&job), "h100-01 GPUs 0-3, GPU-7f3a1b2c… (gone)");
        job.nodes[0].gpus = vec![gone];
        assert_eq!(holdings(&job), "h100-01 GPU-7f3a1b2c… (gone)");
        let slice = |index, slice: &str| v1::Gpu {
            index,
            slice: slice.into(),
            ..Default::default()
        };
        job.nodes[0].gpus = vec![
            slice(0, "1g.10gb at 0"),
            slice(0, "1g.10gb at 1"),
            slice(0, "3g.40gb at 4"),
            slice(2, "3g.40gb at 4"),
        ];
        assert_eq!(
            holdings(&job),
            "h100-01 GPU 0 (1g.10gb at 0, 1, 3g.40gb at 4), GPU 2 (3g.40gb at 4)"
        );
        job.nodes[0].gpus = vec![slice(3, "0.5 by time-slice")];
        assert_eq!(holdings(&job), "h100-01 GPU 3 (0.5 by time-slice)");
        job.nodes = vec![node("a", vec![5]), node("b", vec![0, 2])];
        assert_eq!(
            describe(&job, &[]),
            "a GPU 5, b GPUs 0,2 (exclusive, gang network: none)"
        );
        job = v1::Job {
            nodes: vec![node("a", vec![])],
            ..Default::default()
        };
        assert_eq!(describe(&job, &[]), "a 8 CPUs 16G");
        job = v1::Job {
            isolation: "exclusive".into(),
            ..Default::default()
        };
        assert_eq!(describe(&job, &[]), "", "it waits");
    }
}
