//! Protects: what is left of a host is worth what the last requests can use of it, whichever way it is arranged.

use proptest::prelude::*;

use super::*;
use crate::model::gpu_unit::Sharing;
use crate::model::resources::{ResourceRequest, UnitRequest};
use crate::placement::Recent;
use crate::placement::kind::OutfitGpu;

fn outfit(cpus: u32, gpus: usize, model: &str) -> Outfit {
    let gpu = OutfitGpu {
        model: model.into(),
        memory_bytes: 16 << 30,
        sharing: Some(Sharing::TimeSlice),
    };
    Outfit {
        cpus,
        memory_bytes: 256 << 30,
        gpus: vec![gpu; gpus],
    }
}

fn request(gpus: u32, milli: u16, cpus: u32, model: &str) -> ResourceRequest {
    ResourceRequest {
        gpus_per_node: gpus,
        unit: match milli {
            WHOLE_MILLI => UnitRequest::Whole,
            milli => UnitRequest::Share { milli, sharing: None },
        },
        gpu_model: model.into(),
        cpus_per_node: cpus,
        ..ResourceRequest::default()
    }
}

/// After these requests, again and again.
fn outlook(requests: &[ResourceRequest]) -> Outlook {
    let mut recent = Recent::default();
    for request in requests.iter().cycle().take(2048) {
        recent.note(request);
    }
    recent.outlook()
}

fn prospects(outlook: &Outlook, outfits: &[(&Outfit, usize)]) -> Prospects {
    Prospects::new(outlook, &outfits.iter().copied().collect())
}

fn free(whole: u32, shared: &[u16]) -> FreeGpus {
    FreeGpus::new(whole, shared.iter().copied())
}

/// What comes to be used of a host of which all CPUs are free, thousandths of a GPU.
fn used(requests: &[ResourceRequest], outfit: &Outfit, gpus: FreeGpus, cpus: u32) -> u64 {
    let all = prospects(&outlook(requests), &[(outfit, 1)]);
    let prospect = all.of(outfit).expect("it has GPUs");
    prospect.used(gpus, outfit.class(cpus, outfit.memory_bytes)) / MILLI
}

#[test]
fn what_is_used_ends_where_something_is_short() {
    let host = outfit(32, 4, "A");
    // Eight CPUs a GPU: all of it, or as many GPUs as there are CPUs for.
    let even = [request(1, WHOLE_MILLI, 8, "")];
    assert_eq!(used(&even, &host, free(4, &[]), 32), 4000);
    assert_eq!(used(&even, &host, free(4, &[]), 23), 2000);
    // Four hundred thousandths go into a GPU twice, and not into a rest of three hundred.
    let shares = [request(1, 400, 1, "")];
    assert_eq!(used(&shares, &host, free(1, &[300, 400]), 32), 1200);
    // Nobody wants this model.
    let other = [request(1, WHOLE_MILLI, 1, "B")];
    assert_eq!(used(&other, &host, free(4, &[]), 32), 0);
    // Several at once need that many whole ones.
    let pairs = [request(2, WHOLE_MILLI, 1, "")];
    assert_eq!(used(&pairs, &host, free(3, &[900, 900]), 32), 2000);
}

#[test]
fn gpus_that_are_in_demand_are_worth_more() {
    let (common, rare) = (outfit(32, 4, "common"), outfit(32, 4, "rare"));
    let requests = [
        request(1, WHOLE_MILLI, 8, ""),
        request(1, WHOLE_MILLI, 8, ""),
        request(1, WHOLE_MILLI, 8, "rare"),
    ];
    let all = prospects(&outlook(&requests), &[(&common, 90), (&rare, 10)]);
    let lost = |outfit: &Outfit| {
        let class = outfit.class(outfit.cpus, outfit.memory_bytes);
        let prospect = all.of(outfit).expect("it has GPUs");
        prospect.lost(class, free(4, &[]), free(3, &[]), 8, 1)
    };
    assert!(lost(&rare) > lost(&common));
    // Where what is asked for names no model, all are alike.
    let all = prospects(&outlook(&requests[..2]), &[(&common, 90), (&rare, 10)]);
    let demand = |outfit: &Outfit| all.of(outfit).expect("it has GPUs").demand;
    assert_eq!(demand(&rare), demand(&common));
}

#[test]
fn whole_hosts_are_worth_more_than_their_gpus_one_by_one() {
    let host = outfit(64, 8, "A");
    let requests: Vec<_> = (0..20)
        .map(|n| {
            request(
                if n == 0 { 8 } else { 1 },
                WHOLE_MILLI,
                if n == 0 { 64 } else { 8 },
                "",
            )
        })
        .collect();
    let all = prospects(&outlook(&requests), &[(&host, 10)]);
    let prospect = all.of(&host).expect("it has GPUs");
    let lost = |whole, cpus| {
        prospect.lost(
            host.class(cpus, host.memory_bytes),
            free(whole, &[]),
            free(whole - 1, &[]),
            8,
            1,
        )
    };
    assert!(lost(8, 64) > lost(7, 56));
}

/// Every mixture of requests has prospects, also where more for several GPUs are among the last than are remembered
/// apart, and where none is.
#[test]
fn all_mixtures_have_prospects() {
    let host = outfit(64, 8, "A");
    for several in [0, 1, 100, 150, 256] {
        let requests: Vec<_> = (0..256)
            .map(|n| request(if n < several { 2 + n % 7 } else { 1 }, WHOLE_MILLI, 1 + n, ""))
            .collect();
        let all = prospects(&outlook(&requests), &[(&host, 1)]);
        let prospect = all.of(&host).expect("it has GPUs");
        let class = host.class(64, host.memory_bytes);
        assert!(prospect.worth(free(8, &[]), class) > prospect.worth(free(4, &[]), class));
    }
}

#[test]
fn there_is_an_end_to_what_is_kept() {
    let host = outfit(128, 8, "A");
    let all = prospects(&Outlook::default(), &[(&host, 1)]);
    let prospect = all.of(&host).expect("it has GPUs");
    for shared in 1..1000 {
        for cpus in 0..16 {
            prospect.worth(free(1, &[shared]), host.class(cpus * 8, host.memory_bytes));
        }
    }
    let known = prospect.known.lock().expect("nobody panicked");
    assert!((1..=MAX_KNOWN).contains(&known.len()));
    drop(known);
    let many: Vec<Outfit> = (1..1000).map(|cpus| outfit(cpus, 1, "A")).collect();
    let outfits: Vec<(&Outfit, usize)> = many.iter().map(|outfit| (outfit, 1)).collect();
    assert_eq!(prospects(&Outlook::default(), &outfits).0.len(), MAX_PROSPECTS);
}

proptest! {
    /// What is held of shared GPUs is what each request takes, of the tightest that is enough.
    #[test]
    fn shares_are_taken_as_they_are_placed(
        whole in 0..4_u32, shared in proptest::collection::vec(1..1000_u16, 0..8),
        gpus in 1..4_u32, milli in 1..=WHOLE_MILLI,
    ) {
        let mut rooms: Vec<u16> = shared.clone();
        rooms.extend(std::iter::repeat_n(WHOLE_MILLI, whole as usize));
        rooms.sort_unstable();
        let enough: Vec<usize> = (0..rooms.len()).filter(|at| rooms[*at] >= milli).take(gpus as usize).collect();
        let fits = enough.len() == gpus as usize;
        if fits {
            for at in &enough {
                rooms[*at] -= milli;
            }
        }
        let left = rooms.iter().filter(|room| **room < WHOLE_MILLI).copied();
        let expected = FreeGpus::new(rooms.iter().filter(|room| **room == WHOLE_MILLI).count() as u32, left);
        let mut free = free(whole, &shared);
        let wanted = Wanted { gpus, milli, cpus: 1, memory_bytes: 1 };
        prop_assert_eq!(free.take(&wanted), fits);
        prop_assert_eq!(free, expected);
    }

    /// A class stands for no more than each of its hosts has, and more makes no lower class.
    #[test]
    fn classes_promise_nothing_that_is_not_there(
        cpus in 1..200_000_u32, memory in 1_u64..1 << 42, free_cpus: u32, free_memory: u64, taken: u32,
    ) {
        let host = Outfit { cpus, memory_bytes: memory, gpus: Vec::new() };
        let (free_cpus, free_memory) = (free_cpus % (cpus + 1), free_memory % (memory + 1));
        let class = host.class(free_cpus, free_memory);
        let (least_cpus, least_memory) = host.least(class);
        prop_assert!(least_cpus <= free_cpus && least_memory <= free_memory);
        prop_assert_eq!(host.class(least_cpus, least_memory), class);
        let left = host.left(class, taken % (free_cpus + 1), free_memory / 2);
        prop_assert!(left <= class && left.1 <= class.1);
    }

    /// The more is free the more is used, and never more than there is; at whatever order it is asked.
    #[test]
    fn worths_do_not_depend_on_what_was_asked_before(
        sizes in proptest::collection::vec((1..4_u32, 1..20_u32, any::<bool>()), 1..40),
        states in proptest::collection::vec((0..5_u32, 0..1000_u16, 0..64_u32), 1..12),
    ) {
        let requests: Vec<_> = sizes
            .iter()
            .map(|(gpus, cpus, share)| if *share { request(1, 300, *cpus, "") } else { request(*gpus, WHOLE_MILLI, *cpus, "") })
            .collect();
        let outlook = outlook(&requests);
        let host = outfit(64, 4, "A");
        let (one, other) = (prospects(&outlook, &[(&host, 3)]), prospects(&outlook, &[(&host, 3)]));
        let worth = |all: &Prospects, (whole, shared, cpus): (u32, u16, u32)| {
            let prospect = all.of(&host).expect("it has GPUs");
            let (gpus, class) = (free(whole, &[shared]), host.class(cpus, host.memory_bytes));
            assert!(prospect.used(gpus, class) <= gpus.milli() * MILLI);
            prospect.worth(gpus, class)
        };
        let forwards: Vec<u64> = states.iter().map(|state| worth(&one, *state)).collect();
        let mut backwards: Vec<u64> = states.iter().rev().map(|state| worth(&other, *state)).collect();
        backwards.reverse();
        prop_assert_eq!(forwards, backwards);
    }
}
