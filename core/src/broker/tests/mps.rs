//! A GPU that jobs share by MPS is one user's at a time, and nobody waits for one that could have it.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::model::resources::UnitRequest;

const USERS: [&str; 3] = ["alice", "bob", "carol"];

/// What live jobs hold of each GPU, by the allocations alone: whose, and thousandths.
fn shares(world: &World) -> BTreeMap<String, Vec<(String, u32)>> {
    let mut shares: BTreeMap<String, Vec<(String, u32)>> = BTreeMap::new();
    for job in world.broker.state().jobs.values() {
        for unit in job
            .placed()
            .into_iter()
            .flat_map(|placed| &placed.allocation.nodes[0].gpus)
        {
            let of_it = shares.entry(unit.gpu.to_string()).or_default();
            of_it.push((job.owner.to_string(), unit.slice.share_milli()));
        }
    }
    shares
}

/// Whether a share of a user's could be had beside these.
fn has_room(there: &[(String, u32)], user: &str, milli: u32) -> bool {
    let sum: u32 = there.iter().map(|(_, milli)| milli).sum();
    there.iter().all(|(of, _)| of == user) && sum + milli <= 1000
}

fn start(world: &mut World, n: usize, user: &str, milli: u16) -> JobId {
    let mut spec = gpus(1);
    spec.request.nvlink = false;
    spec.request.unit = UnitRequest::Share {
        milli,
        sharing: Some(Sharing::Mps),
    };
    world.open(user, open(&format!("s{n}"), spec)).1
}

/// The node has started all that it is to start, and this one job has ended there.
fn report(world: &mut World, ended: Option<JobId>) {
    let state = world.broker.state();
    let held = state.jobs.values().filter(|job| job.placed().is_some());
    let jobs: Vec<JobId> = held.map(|job| job.id).collect();
    let seen = jobs.into_iter().map(|id| {
        let over = ended == Some(id);
        let phase = if over {
            ObservedPhase::Released
        } else {
            ObservedPhase::Ready
        };
        let mut seen = world.seen(id, "mps1", phase);
        if over {
            seen.cause = Some(crate::model::node::EndCause::Exited);
            seen.exit_code = Some(0);
        }
        seen
    });
    let seen: Vec<ObservedJob> = seen.collect();
    world.report("mps1", seen);
}

#[test]
fn what_is_left_of_a_gpu_is_its_users() {
    let mut world = World::new(&["mps1"]);
    let alices = start(&mut world, 1, "alice", 300);
    start(&mut world, 2, "bob", 300);
    start(&mut world, 3, "alice", 300);
    let carols = start(&mut world, 4, "carol", 300);
    assert_eq!(
        shares(&world)
            .into_values()
            .map(|of_it| of_it.len())
            .collect::<Vec<_>>(),
        [2, 1]
    );
    let reason = world.reason(carols);
    assert!(reason.contains("no shared GPU with 0.3 of it free"), "{reason}");
    report(&mut world, Some(alices));
    assert!(
        world.job(carols).placed().is_none(),
        "alice has another one there"
    );
}

proptest! {
    #[test]
    fn a_gpu_shared_by_mps_is_one_users_at_a_time(
        steps in proptest::collection::vec((0..4_usize, 0..3_usize, 1..1000_u16, any::<prop::sample::Index>()), 1..60),
    ) {
        let mut world = World::new(&["mps1"]);
        for (n, (kind, user, milli, which)) in steps.into_iter().enumerate() {
            let live: Vec<JobId> = {
                let jobs = world.broker.state().jobs.values();
                jobs.filter(|job| job.placed().is_some()).map(|job| job.id).collect()
            };
            if kind == 0 && !live.is_empty() {
                report(&mut world, Some(live[which.index(live.len())]));
            } else {
                start(&mut world, n, USERS[user], milli);
                report(&mut world, None);
            }
            let shares = shares(&world);
            for (gpu, there) in &shares {
                let sum: u32 = there.iter().map(|(_, milli)| milli).sum();
                prop_assert!(sum <= 1000, "{gpu}: {there:?}");
                prop_assert!(there.iter().all(|(of, _)| *of == there[0].0), "{gpu}: {there:?}");
            }
            // The first of the queue has no room anywhere.
            if let Some(first) = world.broker.state().in_order().first() {
                let job = world.job(*first);
                let milli = job.request.unit.milli().into();
                for gpu in 0..2 {
                    let there = shares.get(&format!("GPU-mps1-{gpu}")).cloned().unwrap_or_default();
                    prop_assert!(!has_room(&there, job.owner.as_str(), milli), "{first} waits: {there:?}");
                }
            }
        }
    }
}
