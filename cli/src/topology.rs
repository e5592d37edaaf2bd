//! A node's GPUs, how they are joined, and who holds them, drawn for people.

use std::collections::BTreeMap;

use carrel_core::model::gpu::{GpuInfo, Inventory, Mig, MigInstance, MigProfile};
use carrel_core::model::gpu_unit::{Isolation, Sharing};
use carrel_core::model::topology::{Link, LinkMatrix};
use carrel_proto::v1;

use crate::{grant, output, units};

/// What `carrel nodes --topology` shows of a node in so many columns: where the links do not fit beside what else is
/// said of each GPU they stand above it, and where they do not fit at all the islands that they make have to do.
pub fn draw(node: &v1::Node, columns: usize) -> String {
    let title = format!("{}  {}", node.name, node.state);
    let inventory = node.inventory.clone().unwrap_or_default();
    let note = inventory.gpu_note.clone();
    let inventory = match Inventory::try_from(inventory) {
        Ok(inventory) if !inventory.gpus.is_empty() => inventory,
        Ok(_) if note.is_empty() => return format!("{title}, no GPUs\n{}", cpus(node)),
        Ok(_) => return format!("{title}, no GPUs: {note}\n{}", cpus(node)),
        Err(error) => return format!("{title}, which told of its GPUs what cannot be: {error}\n"),
    };
    let names: Vec<String> = inventory
        .gpus
        .iter()
        .map(|gpu| format!("GPU{}", gpu.index))
        .collect();
    let links: Vec<Vec<String>> = std::iter::once(names.clone())
        .chain((0..names.len()).map(|at| links_of(&inventory, at)))
        .collect();
    let facts = facts(node, &inventory);
    let table = |parts: &[&[Vec<String>]]| {
        let labels = std::iter::once(String::new()).chain(names.iter().cloned());
        let mut rows = labels.enumerate().map(|(at, label)| {
            let cells = parts.iter().flat_map(|part| part[at].iter().cloned());
            std::iter::once(label).chain(cells).collect::<Vec<_>>()
        });
        output::grid(rows.next().unwrap_or_default(), rows)
    };
    let mut drawn = table(&[&links, &facts]);
    if !output::fits(&drawn, columns) {
        drawn = Some(table(&[&links]))
            .filter(|links| output::fits(links, columns))
            .unwrap_or_default();
        drawn += &table(&[&facts]);
    }
    format!(
        "{title}, {}\n{drawn}{}{}",
        models(&inventory.gpus),
        islands(&inventory),
        cpus(node)
    )
}

/// Of each GPU what is said beside its links, under a row of headers; columns in which nothing stands are left out.
fn facts(node: &v1::Node, inventory: &Inventory) -> Vec<Vec<String>> {
    let holders = node.gpu_holders.iter().map(|gpu| gpu.holders.as_slice());
    let holders = holders.chain(std::iter::repeat(&[][..]));
    let row = |(at, (gpu, holders)): (usize, (&GpuInfo, &[v1::GpuHolder]))| {
        vec![
            gpu.numa_node.map(|node| node.to_string()).unwrap_or_default(),
            gpu.cpu_affinity.clone(),
            nearest_nics(inventory, at),
            held_by(gpu, holders),
        ]
    };
    let rows: Vec<Vec<String>> = inventory.gpus.iter().zip(holders).enumerate().map(row).collect();
    let header = ["NUMA", "CPUS", "NICS", "HELD BY"].map(str::to_owned).to_vec();
    let shown: Vec<bool> = (0..header.len())
        .map(|column| rows.iter().any(|row| !row[column].is_empty()))
        .collect();
    let pick = |row: Vec<String>| row.into_iter().zip(&shown).filter(|(_, shown)| **shown);
    let all = std::iter::once(header).chain(rows);
    all.map(|row| pick(row).map(|(cell, _)| cell).collect()).collect()
}

/// "job 7 dev, alice (exclusive)", "job 7 (1g.10gb at 0, 1; mig), free: 3g.40gb at 4", "free".
fn held_by(gpu: &GpuInfo, holders: &[v1::GpuHolder]) -> String {
    let same = holders.chunk_by(|a, b| (a.job, &a.isolation) == (b.job, &b.isolation));
    let each = same.map(|held| {
        let slices = grant::slices(held.iter().map(|holder| holder.slice.as_str()));
        let mut how = vec![slices, held[0].isolation.clone()];
        how.retain(|how| !how.is_empty());
        let how = if how.is_empty() {
            String::new()
        } else {
            format!(" ({})", how.join("; "))
        };
        format!("{}{how}", job(&held[0]))
    });
    let mut parts: Vec<String> = each.collect();
    if let Some(reason) = &gpu.drained {
        parts.push(format!("drained: {reason}"));
        return parts.join(", ");
    }
    let Some(mig) = &gpu.mig else {
        match gpu.sharing {
            None if parts.is_empty() => parts.push("free".to_owned()),
            None => {}
            Some(sharing) => parts.extend(free_to_share(sharing, holders)),
        }
        return parts.join(", ");
    };
    let place = |instance: &MigInstance| format!("{} at {}", instance.profile, instance.start);
    let mut idle: Vec<String> = mig.instances.iter().map(place).collect();
    idle.retain(|place| holders.iter().all(|holder| holder.slice != *place));
    let idle = grant::slices(idle.iter().map(String::as_str));
    parts.push(match (idle.as_str(), mig.recut) {
        ("", true) if holders.is_empty() => "free, may be cut".to_owned(),
        ("", true) if may_be_cut(mig, holders) => "the rest may be cut".to_owned(),
        ("", true) => "no slice is free".to_owned(),
        ("", false) => "no slice is free".to_owned(),
        (idle, true) => format!("free: {idle}, or cut anew"),
        (idle, false) => format!("free: {idle}"),
    });
    parts.join(", ")
}

/// Whether there is room for a slice beside those that are held.
fn may_be_cut(mig: &Mig, holders: &[v1::GpuHolder]) -> bool {
    let place = |holder: &v1::GpuHolder| {
        let (name, start) = holder.slice.split_once(" at ")?;
        let profile = mig.profiles.iter().find(|profile| profile.name == name)?;
        Some((profile, start.parse::<u8>().ok()?))
    };
    // Whatever is no slice of it as it is now holds all of it.
    let Some(held) = holders.iter().map(place).collect::<Option<Vec<_>>>() else {
        return false;
    };
    let compute = |profile: &MigProfile| u32::from(profile.compute);
    let used: u32 = held.iter().map(|(profile, _)| compute(profile)).sum();
    // A GPU's compute slices are those of its largest instance.
    let all = mig.profiles.iter().map(compute).max().unwrap_or(0);
    let beside = |start: u8, width: u8| {
        let end = start.saturating_add(width);
        held.iter()
            .all(|(profile, at)| end <= *at || at.saturating_add(profile.width) <= start)
    };
    mig.profiles.iter().any(|profile| {
        let mut starts = profile.starts.iter();
        used + compute(profile) <= all && starts.any(|start| beside(*start, profile.width))
    })
}

/// "job 7 dev, alice".
fn job(holder: &v1::GpuHolder) -> String {
    let mut text = format!("job {}", holder.job);
    if !holder.name.is_empty() {
        text += &format!(" {}", holder.name);
    }
    if !holder.user.is_empty() {
        text += &format!(", {}", holder.user);
    }
    text
}

/// "free, for shares by time-slice (cooperative)", "0.5 free"; none: nothing of it is.
fn free_to_share(sharing: Sharing, holders: &[v1::GpuHolder]) -> Option<String> {
    if holders.is_empty() {
        let class = Isolation::from(sharing).name();
        return Some(format!("free, for shares by {} ({class})", sharing.name()));
    }
    // What is held says how much of it first; nothing: all.
    let milli = |holder: &v1::GpuHolder| {
        let share = holder
            .slice
            .split(' ')
            .next()
            .and_then(|share| share.parse::<f64>().ok());
        (share.unwrap_or(1.0) * 1000.0).round() as u64
    };
    let left = 1000_u64.saturating_sub(holders.iter().map(milli).sum());
    (left > 0).then(|| format!("{} free", units::thousandths(left)))
}

/// Who has CPUs of its own, a job a line.
fn cpus(node: &v1::Node) -> String {
    let line = |held: &v1::CpuHolder| {
        let memory = grant::memory_of(&held.mems);
        format!("CPU ids {}: job {}{memory}\n", held.cpuset, held.job)
    };
    node.cpu_holders.iter().map(line).collect()
}

/// "8 NVIDIA H100 80GB HBM3".
fn models(gpus: &[GpuInfo]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for gpu in gpus {
        *counts.entry(&gpu.model).or_default() += 1;
    }
    let counts: Vec<String> = counts
        .iter()
        .map(|(model, count)| format!("{count} {model}"))
        .collect();
    counts.join(", ")
}

fn links_of(inventory: &Inventory, at: usize) -> Vec<String> {
    let links = (0..inventory.gpus.len()).map(|other| match link(inventory, at, other) {
        Some(link) => link.to_string(),
        None => "·".to_owned(),
    });
    links.collect()
}

/// Links of each GPU to each, as the driver names them; none to itself.
pub fn links(inventory: &v1::Inventory) -> Vec<Vec<Option<String>>> {
    let gpus = inventory.gpus.len();
    let Ok(inventory) = Inventory::try_from(inventory.clone()) else {
        return vec![Vec::new(); gpus];
    };
    let name = |a, b| link(&inventory, a, b).map(|link| link.to_string());
    (0..gpus)
        .map(|a| (0..gpus).map(|b| name(a, b)).collect())
        .collect()
}

/// None on the diagonal.
fn link(inventory: &Inventory, a: usize, b: usize) -> Option<Link> {
    let told = inventory.links.len() == inventory.gpus.len();
    (a != b).then(|| {
        if told {
            inventory.links.link(a, b)
        } else {
            Link::Sys
        }
    })
}

/// "mlx5_0, mlx5_1 (PIX)": those with the best link.
fn nearest_nics(inventory: &Inventory, gpu: usize) -> String {
    let of = |nic: &carrel_core::model::gpu::NicInfo| nic.gpu_links.get(gpu).copied();
    let Some(best) = inventory.nics.iter().filter_map(of).max() else {
        return String::new();
    };
    let names = inventory.nics.iter().filter(|nic| of(nic) == Some(best));
    let names: Vec<&str> = names.map(|nic| nic.name.as_str()).collect();
    format!("{} ({best})", names.join(", "))
}

/// Which GPUs are joined by NVLink, each with each.
fn islands(inventory: &Inventory) -> String {
    let gpus = inventory.gpus.len();
    let links = LinkMatrix::from_fn(gpus, |a, b| link(inventory, a, b).unwrap_or(Link::Sys));
    let mut left: Vec<usize> = (0..gpus).collect();
    let (mut islands, mut meshed) = (Vec::new(), false);
    while let Some(first) = left.first().copied() {
        // All that NVLink reaches from here.
        let mut island = vec![first];
        let mut next = 0;
        while let Some(from) = island.get(next).copied() {
            let near = left
                .iter()
                .filter(|gpu| **gpu != from && links.link(from, **gpu).is_nvlink());
            let new: Vec<usize> = near.copied().filter(|gpu| !island.contains(gpu)).collect();
            island.extend(new);
            next += 1;
        }
        island.sort_unstable();
        left.retain(|gpu| !island.contains(gpu));
        if island.len() > 1 {
            meshed |= links.worst(&island).is_some_and(|worst| !worst.is_nvlink());
            let numbers: Vec<String> = island
                .iter()
                .map(|at| inventory.gpus[*at].index.to_string())
                .collect();
            islands.push(numbers.join(" "));
        }
    }
    match (islands.is_empty(), meshed) {
        (true, _) => "no NVLink\n".into(),
        (false, false) => format!("joined by NVLink, each with each: {}\n", islands.join("; ")),
        (false, true) => format!("reached by NVLink, not each from each: {}\n", islands.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All of a GPU, by a job; 0: it is free.
    fn held(job: u64) -> v1::GpuHolders {
        let holder = v1::GpuHolder {
            job,
            ..Default::default()
        };
        v1::GpuHolders {
            holders: (job > 0).then_some(holder).into_iter().collect(),
        }
    }

    fn node(links: &str, gpus: usize, holders: &[u64]) -> v1::Node {
        let links: Vec<Link> = links
            .split_whitespace()
            .map(|name| Link::from_name(name).unwrap())
            .collect();
        let gpu = |index: usize| GpuInfo {
            uuid: format!("GPU-{index}").parse().unwrap(),
            index: index as u32,
            model: "NVIDIA A100".into(),
            memory_bytes: 40 << 30,
            pci_address: String::new(),
            numa_node: Some(index as u32 / 2),
            minor: None,
            mig: None,
            sharing: None,
            drained: (index == 3).then(|| "fell off".into()),
            cpu_affinity: "0-7".into(),
            nvlink_version: 3,
        };
        let inventory = Inventory {
            gpus: (0..gpus).map(gpu).collect(),
            links: LinkMatrix::from_upper(gpus, links).unwrap(),
            nics: vec![carrel_core::model::gpu::NicInfo {
                name: "mlx5_0".into(),
                gpu_links: vec![Link::Pix; gpus],
                numa_node: None,
            }],
            ..Inventory::default()
        };
        v1::Node {
            name: "n1".into(),
            state: "MIXED".into(),
            inventory: Some((&inventory).into()),
            gpu_holders: holders.iter().map(|job| held(*job)).collect(),
            cpu_holders: vec![v1::CpuHolder {
                job: 7,
                cpuset: "0-3,48-51".into(),
                mems: "0".into(),
            }],
            ..v1::Node::default()
        }
    }

    #[test]
    fn a_host_is_drawn_with_its_holders() {
        let drawn = draw(&node("NV4 SYS SYS SYS SYS NV4", 4, &[7, 0, 0, 0]), usize::MAX);
        assert_eq!(
            drawn,
            "n1  MIXED, 4 NVIDIA A100\n\
             \x20     GPU0  GPU1  GPU2  GPU3  NUMA  CPUS  NICS          HELD BY\n\
             GPU0  ·     NV4   SYS   SYS   0     0-7   mlx5_0 (PIX)  job 7\n\
             GPU1  NV4   ·     SYS   SYS   0     0-7   mlx5_0 (PIX)  free\n\
             GPU2  SYS   SYS   ·     NV4   1     0-7   mlx5_0 (PIX)  free\n\
             GPU3  SYS   SYS   NV4   ·     1     0-7   mlx5_0 (PIX)  drained: fell off\n\
             joined by NVLink, each with each: 0 1; 2 3\n\
             CPU ids 0-3,48-51: job 7, memory of NUMA node 0\n"
        );
    }

    #[test]
    fn slices_are_drawn_with_their_holders() {
        let mut node = node("SYS", 2, &[0, 0]);
        let inventory = node.inventory.take().unwrap();
        let mut inventory = Inventory::try_from(inventory).unwrap();
        let instance = |profile: &str, start| MigInstance {
            profile: profile.into(),
            start,
            width: 1,
            uuid: format!("MIG-{start}").parse().unwrap(),
        };
        inventory.gpus[0].mig = Some(Mig {
            profiles: Vec::new(),
            instances: vec![
                instance("1g.5gb", 0),
                instance("1g.5gb", 1),
                instance("1g.5gb", 2),
            ],
            recut: true,
        });
        inventory.gpus[1].mig = Some(Mig::default());
        let holder = |job, slice: &str| v1::GpuHolder {
            job,
            slice: slice.into(),
            isolation: "mig".into(),
            ..v1::GpuHolder::default()
        };
        let mut shown = |holders: Vec<v1::GpuHolder>| {
            node.inventory = Some((&inventory).into());
            node.gpu_holders[0] = v1::GpuHolders { holders };
            let drawn = draw(&node, usize::MAX);
            let ends = drawn
                .lines()
                .skip(2)
                .take(2)
                .map(|line| line.rsplit_once("  ").unwrap().1);
            ends.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(
            shown(vec![holder(7, "1g.5gb at 0"), holder(7, "1g.5gb at 1")]),
            [
                "job 7 (1g.5gb at 0, 1; mig), free: 1g.5gb at 2, or cut anew",
                "no slice is free"
            ]
        );
        assert_eq!(shown(Vec::new())[0], "free: 1g.5gb at 0, 1, 2, or cut anew");
    }

    /// Whose it is, in what class, and how what is free can be shared.
    #[test]
    fn holders_have_names_and_classes() {
        let mut node = node("SYS SYS SYS", 3, &[7, 8, 0]);
        node.gpu_holders[0].holders[0] = v1::GpuHolder {
            job: 7,
            isolation: "exclusive".into(),
            user: "alice".into(),
            name: "dev".into(),
            ..v1::GpuHolder::default()
        };
        node.gpu_holders[1].holders[0] = v1::GpuHolder {
            job: 8,
            slice: "0.25 by time-slice".into(),
            isolation: "cooperative".into(),
            ..v1::GpuHolder::default()
        };
        let mut inventory = Inventory::try_from(node.inventory.take().unwrap()).unwrap();
        inventory.gpus[1].sharing = Some(Sharing::TimeSlice);
        inventory.gpus[2].sharing = Some(Sharing::Mps);
        node.inventory = Some((&inventory).into());
        let drawn = draw(&node, usize::MAX);
        let ends: Vec<&str> = drawn
            .lines()
            .skip(2)
            .take(3)
            .map(|line| line.rsplit_once("  ").unwrap().1)
            .collect();
        assert_eq!(
            ends,
            [
                "job 7 dev, alice (exclusive)",
                "job 8 (0.25 by time-slice; cooperative), 0.75 free",
                "free, for shares by mps (mps)"
            ]
        );
    }

    /// No row is broken: what does not fit beside the links stands below, and links that do not fit are left out.
    #[test]
    fn a_narrow_terminal_shows_what_matters() {
        let mut node = node("NV4 SYS SYS SYS SYS NV4", 4, &[7, 0, 0, 0]);
        let whole = draw(&node, 80);
        assert_eq!(whole, draw(&node, usize::MAX));
        let below = draw(&node, 50);
        assert!(output::fits(&below, 50), "{below}");
        assert!(below.contains("GPU0  ·     NV4   SYS   SYS\n"), "{below}");
        assert!(
            below.contains("\nGPU0  0     0-7   mlx5_0 (PIX)  job 7\n"),
            "{below}"
        );
        // A host without network cards, whose driver tells nothing of its nodes, has no columns for them.
        let mut inventory = Inventory::try_from(node.inventory.take().unwrap()).unwrap();
        inventory.nics.clear();
        inventory.gpus.iter_mut().for_each(|gpu| gpu.numa_node = None);
        node.inventory = Some((&inventory).into());
        let least = draw(&node, 28);
        assert!(
            least.contains("\n      CPUS  HELD BY\nGPU0  0-7   job 7\n"),
            "{least}"
        );
        assert!(least.contains("each: 0 1; 2 3"), "{least}");
    }

    #[test]
    fn what_may_still_be_cut_is_said() {
        let profile = |name: &str, compute, width, starts: &[u8]| MigProfile {
            name: name.into(),
            id: 0,
            compute,
            memory_bytes: 0,
            width,
            starts: starts.to_vec(),
            most: 7,
        };
        let mig = Mig {
            profiles: vec![
                profile("1g.5gb", 1, 1, &[0, 1, 2, 3, 4, 5, 6]),
                profile("3g.20gb", 3, 4, &[0, 4]),
                profile("7g.40gb", 7, 8, &[0]),
            ],
            instances: Vec::new(),
            recut: true,
        };
        let said = |held: &[&str]| {
            let mut host = node("SYS", 2, &[0, 0]);
            let mut inventory = Inventory::try_from(host.inventory.take().unwrap()).unwrap();
            inventory.gpus[0].mig = Some(mig.clone());
            host.inventory = Some((&inventory).into());
            let holder = |slice: &&str| v1::GpuHolder {
                job: 7,
                slice: (*slice).to_owned(),
                isolation: "mig".into(),
                ..v1::GpuHolder::default()
            };
            host.gpu_holders[0].holders = held.iter().map(holder).collect();
            let drawn = draw(&host, usize::MAX);
            drawn
                .lines()
                .nth(2)
                .unwrap()
                .rsplit_once("  ")
                .unwrap()
                .1
                .to_owned()
        };
        assert_eq!(said(&[]), "free, may be cut");
        assert_eq!(
            said(&["3g.20gb at 0"]),
            "job 7 (3g.20gb at 0; mig), the rest may be cut"
        );
        let full = [
            &["7g.40gb at 0"][..],
            &["3g.20gb at 0", "3g.20gb at 4"],
            &[
                "1g.5gb at 0",
                "1g.5gb at 1",
                "1g.5gb at 2",
                "1g.5gb at 3",
                "1g.5gb at 4",
                "1g.5gb at 5",
                "1g.5gb at 6",
            ],
        ];
        // Of the second compute slices are left, and no memory; of the third it is the other way round.
        for held in full {
            assert!(said(held).ends_with("; mig), no slice is free"), "{}", said(held));
        }
    }

    #[test]
    fn a_held_gpu_that_is_broken_is_shown_as_both() {
        let drawn = draw(&node("NV4 SYS SYS SYS SYS NV4", 4, &[0, 0, 0, 9]), usize::MAX);
        assert!(drawn.contains("job 9, drained: fell off\n"), "{drawn}");
    }

    #[test]
    fn what_is_joined_is_said() {
        let last = |links: &str, gpus| {
            let drawn = draw(&node(links, gpus, &[]), usize::MAX);
            drawn.lines().rev().nth(1).unwrap().to_owned()
        };
        assert_eq!(last("PHB", 2), "no NVLink");
        assert_eq!(
            last("NV1 NV1 SYS", 3),
            "reached by NVLink, not each from each: 0 1 2"
        );
        assert_eq!(draw(&v1::Node::default(), usize::MAX), "  , no GPUs\n");
    }
}
