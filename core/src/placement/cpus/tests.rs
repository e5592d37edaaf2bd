//! Against brute force on small hosts: every set of free CPUs is looked at.

use proptest::prelude::*;

use super::*;
use crate::model::cpus::NumaNode;

fn set(text: &str) -> CpuSet {
    text.parse().expect(text)
}

/// A host of equal NUMA nodes. The second threads of cores come after all first ones, as on x86.
fn host(nodes: u32, cores_each: u32, threads: u32) -> HostCpus {
    let cores = nodes * cores_each;
    let core = |n: u32| (0..threads).map(|thread| thread * cores + n).collect::<CpuSet>();
    let node = |id: u32| NumaNode {
        id,
        cpus: (id * cores_each..(id + 1) * cores_each)
            .flat_map(|n| core(n).iter().collect::<Vec<_>>())
            .collect(),
        memory_bytes: 64 << 30,
        distances: (0..nodes)
            .map(|to| (to, if to == id { 10 } else { 20 + id.abs_diff(to) }))
            .collect(),
    };
    HostCpus {
        usable: (0..cores * threads).collect(),
        cores: (0..cores).map(core).collect(),
        nodes: (0..nodes).map(node).collect(),
        can_bind: true,
    }
}

/// A host, and what a job finds there.
#[derive(Debug)]
struct Case {
    host: HostCpus,
    held: CpuSet,
    own: Vec<CpuSet>,
    free: Vec<CpuSet>,
    cpus: u32,
}

impl Case {
    fn choose(&self) -> Option<CpuSet> {
        choose_cpus(&CpuRequest {
            host: &self.host,
            held: &self.held,
            own_gpus: &self.own,
            free_gpus: &self.free,
            cpus: self.cpus,
        })
    }

    /// All sets of so many free CPUs.
    fn all(&self) -> Vec<CpuSet> {
        let free: Vec<u32> = self.host.usable.without(&self.held).iter().collect();
        let sets = 0u32..1 << free.len();
        sets.filter(|bits| bits.count_ones() == self.cpus)
            .map(|bits| {
                (0..free.len())
                    .filter(|at| bits >> at & 1 == 1)
                    .map(|at| free[at])
                    .collect()
            })
            .collect()
    }

    fn is_near(&self, cpu: u32) -> bool {
        self.own.iter().any(|near| near.contains(cpu))
    }

    /// (Far from every GPU of the job, how far in all).
    fn farness(&self, chosen: &CpuSet) -> (usize, u32) {
        let far: Vec<u32> = chosen.iter().filter(|cpu| !self.is_near(*cpu)).collect();
        let node_of = |cpu: u32| self.host.nodes.iter().find(|node| node.cpus.contains(cpu));
        let distance = |cpu: &u32| {
            let near = self.own.iter().flat_map(CpuSet::iter).filter_map(node_of);
            let own = node_of(*cpu).expect("a node").id;
            near.map(|node| node.distances[&own]).min().unwrap_or(0)
        };
        (far.len(), far.iter().map(distance).sum())
    }

    /// How far the GPU that has the fewest CPUs of its own is below its share, in cores.
    fn shortfall(&self, chosen: &CpuSet) -> usize {
        let mut groups: Vec<(&CpuSet, usize)> = Vec::new();
        for near in &self.own {
            match groups.iter_mut().find(|(known, _)| *known == near) {
                Some((_, gpus)) => *gpus += 1,
                None => groups.push((near, 1)),
            }
        }
        let threads = self.host.cores[0].len();
        let least = groups.iter().map(|(near, gpus)| {
            let fair = self.cpus as usize * gpus / self.own.len();
            fair.saturating_sub(chosen.and(near).len()).div_ceil(threads)
        });
        least.max().unwrap_or(0)
    }

    /// CPUs in cores that the job has whole, and cores that are left in part.
    fn cores(&self, chosen: &CpuSet) -> (usize, usize) {
        let whole = self
            .host
            .cores
            .iter()
            .filter(|core| core.is_subset(chosen))
            .map(CpuSet::len);
        let left = self.host.usable.without(&self.held).without(chosen);
        let parts = self
            .host
            .cores
            .iter()
            .filter(|core| !core.is_disjoint(&left) && !core.is_subset(&left));
        (whole.sum(), parts.count())
    }

    /// How many CPUs of each node, near to a GPU of its own or not.
    fn counts(&self, chosen: &CpuSet) -> Vec<usize> {
        let nodes = self.host.nodes.iter();
        nodes.map(|node| chosen.and(&node.cpus).len()).collect()
    }

    fn next_to_free_gpus(&self, chosen: &CpuSet) -> usize {
        chosen
            .iter()
            .filter(|cpu| self.free.iter().any(|near| near.contains(*cpu)))
            .count()
    }
}

/// Hosts of up to twelve CPUs; GPUs of each node are the job's, free, or held, by bits.
fn cases() -> impl Strategy<Value = Case> {
    let shapes = prop_oneof![
        Just((1, 6, 2)),
        Just((2, 3, 2)),
        Just((2, 5, 1)),
        Just((3, 2, 2)),
        Just((4, 3, 1))
    ];
    (
        shapes,
        any::<u16>(),
        prop::collection::vec(0..3u8, 0..5),
        any::<prop::sample::Index>(),
    )
        .prop_map(|((nodes, cores, threads), held, gpus, count)| {
            let host = host(nodes, cores, threads);
            let held: CpuSet = host
                .usable
                .iter()
                .filter(|cpu| held >> cpu & 1 == 1 && held >> (15 - cpu) & 1 == 1)
                .collect();
            let near = |at: usize| host.nodes[at % host.nodes.len()].cpus.clone();
            let of = |kind: u8| {
                let some = gpus.iter().enumerate().filter(|(_, gpu)| **gpu == kind);
                some.map(|(at, _)| near(at)).collect::<Vec<_>>()
            };
            let free = host.usable.len() - held.len();
            Case {
                cpus: count.index(free + 1) as u32,
                own: of(0),
                free: of(1),
                host,
                held,
            }
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_choice_is_exact_near_and_of_whole_cores(case in cases()) {
        let chosen = case.choose().expect("there are as many");
        prop_assert_eq!(chosen.len(), case.cpus as usize);
        prop_assert!(chosen.is_disjoint(&case.held) && chosen.is_subset(&case.host.usable));
        let all = case.all();
        if case.own.is_empty() {
            let least = all.iter().map(|other| case.next_to_free_gpus(other)).min();
            prop_assert_eq!(Some(case.next_to_free_gpus(&chosen)), least);
        } else {
            let nearest = all.iter().map(|other| case.farness(other)).min();
            prop_assert_eq!(Some(case.farness(&chosen)), nearest);
            let fairest = all.iter().filter(|other| Some(case.farness(other)) == nearest).map(|other| case.shortfall(other)).min();
            // A share is a number of whole cores: at most one core beside the even one.
            prop_assert!(case.shortfall(&chosen) <= fairest.unwrap_or(0) + 1, "{} {:?}", chosen, fairest);
        }
        let alike = all.iter().filter(|other| case.counts(other) == case.counts(&chosen));
        let best = alike.map(|other| case.cores(other)).max_by_key(|(whole, parts)| (*whole, Reverse(*parts)));
        prop_assert_eq!(Some(case.cores(&chosen)), best);
    }

    #[test]
    fn no_more_than_there_are(case in cases()) {
        let free = case.host.usable.len() - case.held.len();
        let more = Case { cpus: free as u32 + 1, ..case };
        prop_assert_eq!(more.choose(), None);
    }
}

/// Two sockets of 24 cores with two threads each, two GPUs to each.
fn dual() -> HostCpus {
    host(2, 24, 2)
}

#[test]
fn a_job_s_cpus_are_near_to_its_gpus() {
    let host = dual();
    let near = |node: usize| host.nodes[node].cpus.clone();
    let case = |own: &[usize], held: &str, cpus| {
        Case {
            host: dual(),
            held: set(held),
            own: own.iter().map(|node| near(*node)).collect(),
            free: vec![near(0), near(1)],
            cpus,
        }
        .choose()
        .map(|chosen| chosen.to_string())
    };
    assert_eq!(case(&[1], "", 4).as_deref(), Some("24-25,72-73"));
    assert_eq!(case(&[0, 1], "", 8).as_deref(), Some("0-1,24-25,48-49,72-73"));
    // In whole cores, though the halves are uneven so; by the number of GPUs.
    assert_eq!(case(&[0, 1], "", 6).as_deref(), Some("0-1,24,48-49,72"));
    assert_eq!(case(&[0, 0, 1], "", 12).as_deref(), Some("0-3,24-25,48-51,72-73"));
    // One CPU fills a core that is shared already.
    assert_eq!(case(&[1], "24-25,72", 1).as_deref(), Some("73"));
    // What is missing comes from the other node.
    assert_eq!(case(&[1], "24-46,72-94", 4).as_deref(), Some("0,47-48,95"));
    assert_eq!(case(&[0], "0-95", 1), None);
}

#[test]
fn jobs_without_gpus_stay_away_from_free_gpus() {
    let host = dual();
    let near = |node: usize| host.nodes[node].cpus.clone();
    let choose = |free: &[usize], held: &str, cpus| {
        let case = Case {
            host: dual(),
            held: set(held),
            own: Vec::new(),
            free: free.iter().map(|node| near(*node)).collect(),
            cpus,
        };
        case.choose().expect("there are as many").to_string()
    };
    // The GPUs of node 0 are taken.
    assert_eq!(choose(&[1, 1], "0-3,48-51", 4), "4-5,52-53");
    // More than node 0 has left: the rest beside the free GPUs.
    assert_eq!(choose(&[1, 1], "0-22,48-70", 4), "23-24,71-72");
    // Node 1 has more left for each of its free GPUs; the job stays on one node.
    assert_eq!(choose(&[0, 0, 1], "", 4), "24-25,72-73");
    assert_eq!(choose(&[0, 1], "24-25,72-73", 40), "0-19,48-67");
    // None is free: the node that it fills best.
    assert_eq!(choose(&[], "0-19,48-67", 8), "20-23,68-71");
}

#[test]
fn gpus_whose_cpus_are_not_here_do_not_matter() {
    let case = Case {
        host: host(1, 2, 1),
        held: CpuSet::default(),
        own: vec![CpuSet::default(); 2],
        free: Vec::new(),
        cpus: 2,
    };
    assert_eq!(case.choose(), Some(set("0-1")));
}

mod memory {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn claim(mems: &str, gib: u64) -> Claim {
        Claim {
            mems: set(mems),
            bytes: gib * GIB,
        }
    }

    fn settle(near: &str, gib: u64, others: &[Claim]) -> (String, Vec<usize>) {
        let host = host(2, 2, 1);
        let nodes = MemoryNodes {
            host: &host,
            offered: 124 * GIB,
        };
        let settled = nodes.settle(&set(near), gib * GIB, others);
        (settled.mems.to_string(), settled.freed)
    }

    #[test]
    fn memory_is_bound_where_there_is_room_whatever_others_do() {
        // Two nodes of 64 GiB; 4 GiB are kept back, and may lie on either.
        assert_eq!(settle("0-1", 60, &[]), ("0".into(), vec![]));
        assert_eq!(settle("0-1", 61, &[]), (String::new(), vec![]));
        assert_eq!(settle("2", 30, &[claim("0", 60)]), ("1".into(), vec![]));
        assert_eq!(settle("2", 30, &[claim("1", 30)]), ("1".into(), vec![]));
        // Both nodes are near: nothing to bind to.
        assert_eq!(settle("1-2", 8, &[]), (String::new(), vec![]));
        // One that is not bound may fill any node.
        assert_eq!(settle("2", 30, &[claim("", 31)]), (String::new(), vec![]));
        assert_eq!(settle("2", 30, &[claim("", 30)]), ("1".into(), vec![]));
    }

    #[test]
    fn who_relied_on_room_that_goes_is_bound_no_longer() {
        let others = [claim("0", 40), claim("1", 10), claim("0", 10)];
        // 30 more on node 0, where 54 of 64 are spoken for: it is not bound, and may lie on node 0 and 1.
        assert_eq!(settle("0-1", 30, &others), (String::new(), vec![0, 1, 2]));
        // Not more than is left: nobody is in the way of anybody.
        assert_eq!(settle("0-1", 10, &others), ("0".into(), vec![]));
    }

    #[test]
    fn memory_without_cpus_or_beyond_what_there_is_is_not_bound() {
        let mut host = host(2, 2, 1);
        let nodes = MemoryNodes {
            host: &host,
            offered: 129 * GIB,
        };
        assert_eq!(nodes.settle(&set("0"), GIB, &[]), Settled::default());
        host.nodes.push(NumaNode {
            id: 2,
            memory_bytes: 96 * GIB,
            ..NumaNode::default()
        });
        let nodes = MemoryNodes {
            host: &host,
            offered: 100 * GIB,
        };
        assert_eq!(nodes.settle(&set("0"), GIB, &[]), Settled::default());
    }

    proptest! {
        /// Whatever comes and goes: what a bound job may be refused, it would be refused unbound.
        #[test]
        fn everybody_has_the_room_that_he_relies_on(
            jobs in prop::collection::vec((0..3u32, 1..70u64, any::<bool>()), 1..12),
        ) {
            let host = host(3, 1, 1);
            let nodes = MemoryNodes { host: &host, offered: 190 * GIB };
            let mut claims: Vec<Claim> = Vec::new();
            for (cpu, gib, leaves) in jobs {
                if leaves && !claims.is_empty() {
                    claims.remove(0);
                }
                if claims.iter().map(|claim| claim.bytes / GIB).sum::<u64>() + gib > 190 {
                    continue;
                }
                let settled = nodes.settle(&CpuSet::from_iter([cpu]), gib * GIB, &claims);
                for at in settled.freed {
                    claims[at].mems = CpuSet::default();
                }
                claims.push(Claim { mems: settled.mems, bytes: gib * GIB });
                // However the others spread over the nodes that they may use, each bound job's node holds it.
                for claim in claims.iter().filter(|claim| !claim.mems.is_empty()) {
                    let worst: u64 = claims
                        .iter()
                        .filter(|other| other.mems.is_empty() || other.mems == claim.mems)
                        .map(|other| other.bytes)
                        .sum();
                    prop_assert!(worst + 2 * GIB <= 64 * GIB, "{claims:?}");
                }
            }
        }
    }
}
