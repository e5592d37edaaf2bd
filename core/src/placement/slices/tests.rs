//! Protects: slices lie where the hardware takes them, never on what is held, as many as fit do, and no
//! other way would leave more to requests to come: by enumeration of all ways, from the rules alone.

use proptest::prelude::*;

use super::*;
use crate::model::gpu::{Inventory, Mig, MigInstance};
use crate::model::resources::{ResourceRequest, UnitRequest};
use crate::placement::{Assume, Hosts, PartRoom, Room, Units, place};

/// Name, compute slices, memory slices, starts, most: A100 and H100 with 80 GB (NVIDIA MIG User Guide).
const PROFILES: [(&str, u8, u8, &[u8], u8); 7] = [
    ("1g.10gb", 1, 1, &[0, 1, 2, 3, 4, 5, 6], 7),
    ("1g.10gb+me", 1, 1, &[0, 1, 2, 3, 4, 5, 6], 1),
    ("1g.20gb", 1, 2, &[0, 2, 4, 6], 4),
    ("2g.20gb", 2, 2, &[0, 2, 4], 3),
    ("3g.40gb", 3, 4, &[0, 4], 2),
    ("4g.40gb", 4, 4, &[0], 1),
    ("7g.80gb", 7, 8, &[0], 1),
];

fn profiles() -> Vec<MigProfile> {
    let profile =
        |(at, (name, compute, width, starts, most)): (usize, &(&str, u8, u8, &[u8], u8))| MigProfile {
            name: (*name).to_owned(),
            id: at as u32,
            compute: *compute,
            memory_bytes: u64::from(*width) << 30,
            width: *width,
            starts: starts.to_vec(),
            most: *most,
        };
    PROFILES.iter().enumerate().map(profile).collect()
}

fn gpu(recut: bool, instances: &[Cut]) -> GpuInfo {
    let instance = |cut: &Cut| MigInstance {
        profile: PROFILES[usize::from(cut.profile)].0.to_owned(),
        start: cut.start,
        width: PROFILES[usize::from(cut.profile)].2,
        uuid: format!("MIG-{}-{}", cut.profile, cut.start)
            .parse()
            .expect("a UUID"),
    };
    GpuInfo {
        uuid: "GPU-0".parse().expect("a UUID"),
        index: 0,
        model: "NVIDIA H100".into(),
        memory_bytes: 80 << 30,
        pci_address: String::new(),
        numa_node: None,
        minor: None,
        mig: Some(Mig {
            profiles: profiles(),
            instances: instances.iter().map(instance).collect(),
            recut,
        }),
        sharing: None,
        drained: None,
        cpu_affinity: String::new(),
        nvlink_version: 0,
    }
}

fn host(gpus: Vec<GpuInfo>) -> HostKind {
    HostKind::of(&Inventory {
        gpus,
        ..Inventory::default()
    })
}

/// Memory slices of an instance, by the table above.
fn slices(cut: Cut) -> Vec<u8> {
    (cut.start..cut.start + PROFILES[usize::from(cut.profile)].2).collect()
}

/// Whether these instances can be on one GPU at once.
fn possible(cuts: &[Cut]) -> bool {
    let mut all: Vec<u8> = cuts.iter().flat_map(|cut| slices(*cut)).collect();
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    let compute: u32 = cuts
        .iter()
        .map(|cut| u32::from(PROFILES[usize::from(cut.profile)].1))
        .sum();
    let media = cuts.iter().filter(|cut| cut.profile == 1).count();
    all.len() == count && compute <= 7 && media <= 1
}

fn every_cut(profile: u8) -> impl Iterator<Item = Cut> {
    let starts = PROFILES[usize::from(profile)].3.iter();
    starts.map(move |start| Cut {
        profile,
        start: *start,
    })
}

/// All ways to add `count` instances of a profile.
fn enumerate(held: &[Cut], profile: u8, count: usize) -> Vec<Vec<Cut>> {
    if count == 0 {
        return vec![vec![]];
    }
    let mut ways = Vec::new();
    for way in enumerate(held, profile, count - 1) {
        for cut in every_cut(profile).filter(|cut| way.last().is_none_or(|last| cut > last)) {
            let mut next = way.clone();
            next.push(cut);
            let together: Vec<Cut> = held.iter().chain(&next).copied().collect();
            if possible(&together) {
                ways.push(next);
            }
        }
    }
    ways
}

/// Memory slices that could still be given, over all profiles.
fn worth(held: &[Cut]) -> u64 {
    let most = |profile: u8| {
        (0..=7)
            .rev()
            .find(|count| !enumerate(held, profile, *count).is_empty())
    };
    (0..PROFILES.len() as u8)
        .map(|profile| most(profile).unwrap_or(0) as u64 * u64::from(PROFILES[usize::from(profile)].2))
        .sum()
}

/// A GPU on which something is held.
fn held() -> impl Strategy<Value = Vec<Cut>> {
    let any = (0..PROFILES.len() as u8).prop_flat_map(|profile| {
        let cuts: Vec<Cut> = every_cut(profile).collect();
        prop::sample::select(cuts)
    });
    prop::collection::vec(any, 0..5).prop_map(|cuts| {
        let mut held: Vec<Cut> = Vec::new();
        for cut in cuts {
            held.push(cut);
            if !possible(&held) {
                held.pop();
            }
        }
        held.sort_unstable();
        held
    })
}

proptest! {
    #[test]
    fn slices_are_placed_as_well_as_enumeration_finds(
        gpus in prop::collection::vec(held(), 1..4),
        profile in 0..PROFILES.len() as u8,
        count in 1..8_usize,
    ) {
        let host = host(gpus.iter().map(|_| gpu(true, &[])).collect());
        let rooms: Vec<(u8, MigRoom)> = gpus
            .iter()
            .enumerate()
            .map(|(at, held)| (at as u8, MigRoom { held: held.clone(), idle: vec![] }))
            .collect();
        let name = PROFILES[usize::from(profile)].0;
        let found = best_slices(&host, &rooms, u64::MAX, name, count);
        // The cheapest ways over all GPUs, by counting on.
        let mut cheapest: Vec<Option<u64>> = vec![None; count + 1];
        cheapest[0] = Some(0);
        for held in &gpus {
            let before = worth(held);
            let cost = |way: &Vec<Cut>| {
                let together: Vec<Cut> = held.iter().chain(way).copied().collect();
                (before - worth(&together)) * WHOLE / worth(&[])
            };
            let here: Vec<Option<u64>> = (0..=count)
                .map(|some| enumerate(held, profile, some).iter().map(cost).min())
                .collect();
            cheapest = (0..=count)
                .map(|all| {
                    (0..=all)
                        .filter_map(|some| Some(cheapest[all - some]? + here[some]?))
                        .min()
                })
                .collect();
        }
        prop_assert_eq!(found.as_ref().map(|found| found.cost), cheapest[count]);
        if let Some(found) = found {
            prop_assert_eq!(found.cuts.len(), count);
            for (at, held) in gpus.iter().enumerate() {
                let own = found.cuts.iter().filter(|(gpu, _)| usize::from(*gpu) == at);
                let together: Vec<Cut> = held.iter().copied().chain(own.map(|(_, cut)| *cut)).collect();
                prop_assert!(possible(&together), "{together:?}");
            }
        }
    }

    #[test]
    fn fixed_instances_are_all_that_there_is(cut in held(), taken in any::<prop::sample::Index>(), profile in 0..7_u8) {
        let host = host(vec![gpu(false, &cut)]);
        let mut held = vec![];
        if !cut.is_empty() {
            held.push(cut[taken.index(cut.len())]);
        }
        let idle: Vec<Cut> = cut.iter().copied().filter(|one| !held.contains(one)).collect();
        let free = idle.iter().filter(|one| one.profile == profile).count();
        let rooms = [(0, MigRoom { held, idle: idle.clone() })];
        let name = PROFILES[usize::from(profile)].0;
        for count in 1..8 {
            let found = best_slices(&host, &rooms, u64::MAX, name, count);
            prop_assert_eq!(found.is_some(), count <= free);
            prop_assert!(found.is_none_or(|found| found.cuts.iter().all(|(_, cut)| idle.contains(cut))));
        }
    }
}

fn on(rooms: &[MigRoom], profile: &str, count: usize) -> Option<Vec<(u8, u8)>> {
    let host = host(rooms.iter().map(|_| gpu(true, &[])).collect());
    let rooms: Vec<(u8, MigRoom)> = (0..).zip(rooms.iter().cloned()).collect();
    let found = best_slices(&host, &rooms, u64::MAX, profile, count)?;
    Some(found.cuts.iter().map(|(gpu, cut)| (*gpu, cut.start)).collect())
}

#[test]
fn small_slices_leave_room_for_large_ones() {
    let empty = MigRoom::default();
    let half = MigRoom {
        held: vec![Cut { profile: 4, start: 0 }],
        idle: vec![],
    };
    // Beside what is held, not on the empty GPU, and where two large ones do not fit anyway.
    assert_eq!(
        on(&[empty.clone(), half.clone()], "1g.10gb", 1).map(|cuts| cuts[0].0),
        Some(1)
    );
    // The seventh place is good for nothing but 1g: it is where the first of them goes.
    assert_eq!(on(std::slice::from_ref(&empty), "1g.10gb", 1), Some(vec![(0, 6)]));
    assert_eq!(on(std::slice::from_ref(&empty), "1g.10gb", 8), None);
    assert_eq!(
        on(&[empty.clone(), half.clone()], "4g.40gb", 1),
        Some(vec![(0, 0)])
    );
    assert_eq!(on(&[half], "4g.40gb", 1), None);
    assert_eq!(on(&[empty], "5g.50gb", 1), None);
}

#[test]
fn what_is_there_is_taken_before_anything_is_cut() {
    let idle = |profile: u8, start: u8| MigRoom {
        held: vec![],
        idle: vec![Cut { profile, start }],
    };
    let empty = MigRoom::default();
    assert_eq!(on(&[empty.clone(), idle(4, 4)], "3g.40gb", 1), Some(vec![(1, 4)]));
    // Though the seventh place would leave more.
    assert_eq!(on(&[idle(0, 0)], "1g.10gb", 1), Some(vec![(0, 0)]));
    assert_eq!(on(&[idle(0, 0)], "1g.10gb", 2), Some(vec![(0, 0), (0, 1)]));
    assert_eq!(on(&[empty, idle(0, 0)], "1g.10gb", 1), Some(vec![(1, 0)]));
}

/// What a host with one such GPU gives to a request, where nothing is held.
fn given(gpu: GpuInfo, unit: UnitRequest, gpu_memory_bytes: u64) -> Result<Units, String> {
    let inventory = Inventory {
        gpus: vec![gpu],
        cpus: 8,
        memory_bytes: 8 << 30,
        ..Inventory::default()
    };
    let layout = MigLayout::of(&inventory.gpus[0]).expect("it is in MIG mode");
    let instances = inventory.gpus[0].mig.iter().flat_map(|mig| &mig.instances);
    let room = MigRoom {
        held: vec![],
        idle: instances
            .filter_map(|instance| layout.cut(&instance.profile, instance.start))
            .collect(),
    };
    let node = "n1".parse().expect("a name");
    let mut hosts = Hosts::default();
    hosts.set_inventory(&node, &inventory);
    let room = Room {
        gpus: 0,
        parts: [(0, PartRoom::Mig(room))].into(),
        cpus: 8,
        memory_bytes: 8 << 30,
        unavailable: None,
    };
    hosts.set_room(&node, room);
    let request = ResourceRequest {
        nodes: 1,
        gpus_per_node: 1,
        unit,
        gpu_memory_bytes,
        ..ResourceRequest::default()
    };
    let parts = place(&hosts, &request, Assume::Now).map_err(|why| why.to_string())?;
    Ok(parts[0].units.clone())
}

#[test]
fn of_slices_with_as_much_memory_one_that_is_there_is_given() {
    let two = Cut { profile: 3, start: 2 };
    let four = Cut { profile: 4, start: 4 };
    let seven = Cut { profile: 6, start: 0 };
    let given = |bytes| given(gpu(true, &[two, four]), UnitRequest::Least, bytes);
    assert_eq!(given(2 << 30), Ok(Units::Mig(vec![(0, two)])));
    assert_eq!(given((2 << 30) + 1), Ok(Units::Mig(vec![(0, four)])));
    assert_eq!(given((4 << 30) + 1), Ok(Units::Mig(vec![(0, seven)])));
}

#[test]
fn what_is_not_cut_anew_is_the_reason() {
    let there = [Cut { profile: 0, start: 0 }];
    let refused = |recut, profile: &str| {
        let profile = UnitRequest::Mig(profile.into());
        given(gpu(recut, &there), profile, 0).expect_err("there is none")
    };
    assert_eq!(
        refused(false, "3g.40gb"),
        "no slice 3g.40gb and no GPU that may be cut anew (1 node)"
    );
    for recut in [false, true] {
        assert_eq!(refused(recut, "5g.50gb"), "no slice 5g.50gb (1 node)");
    }
}
