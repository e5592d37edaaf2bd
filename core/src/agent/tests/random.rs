//! Whatever is lost, delayed, repeated or restarted: what must hold, holds.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// One thing that happens.
#[derive(Clone, Debug)]
enum Step {
    /// The broker makes a state: wanted jobs by bits, ended ones by bits.
    Say { wanted: u8, ended: u8 },
    /// One of its last states arrives, for the first or another time.
    Deliver(prop::sample::Index),
    /// A container goes on with what it was told last.
    Go(prop::sample::Index, bool),
    /// A container ends by itself.
    Exit(prop::sample::Index),
    /// Time passes.
    Pass(u64),
    /// The agent restarts.
    Restart,
    /// The node restarts.
    Reboot,
    /// A new broker.
    Broker,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (any::<u8>(), any::<u8>()).prop_map(|(wanted, ended)| Step::Say { wanted, ended }),
        8 => any::<prop::sample::Index>().prop_map(Step::Deliver),
        10 => (any::<prop::sample::Index>(), prop::bool::weighted(0.8)).prop_map(|(which, well)| Step::Go(which, well)),
        2 => any::<prop::sample::Index>().prop_map(Step::Exit),
        3 => prop_oneof![Just(1_000), Just(15_000), Just(LEASE_MS / 2), Just(LEASE_MS)].prop_map(Step::Pass),
        1 => Just(Step::Restart),
        1 => Just(Step::Reboot),
        1 => Just(Step::Broker),
    ]
}

/// The real containers, and what the shell was told to do with them.
#[derive(Default)]
struct World {
    /// Made, and not removed.
    containers: BTreeMap<JobKey, (DesiredJob, Binding, bool)>,
    /// Actions under way, in order.
    pending: Vec<Action>,
    /// Ever removed.
    over: BTreeSet<JobKey>,
    boots: u32,
}

/// Eight jobs that fight for four GPUs, eight CPUs.
fn contender(n: u64) -> DesiredJob {
    let gpus = [&[0][..], &[1], &[2, 3], &[0, 1], &[3], &[], &[], &[0, 1, 2, 3]];
    let cpus = [1, 2, 3, 4, 1, 8, 5, 2];
    DesiredJob {
        cpus: cpus[n as usize],
        deadline: Timestamp(1_000_000_000 + (n + 1) * LEASE_MS),
        ..job(n + 1, gpus[n as usize])
    }
}

impl World {
    fn obey(&mut self, actions: Vec<Action>) {
        for action in actions {
            if let Action::Start(job) = &action {
                assert!(
                    !self.over.contains(&job.key),
                    "job {} starts a second time",
                    job.key
                );
            }
            if !matches!(
                action,
                Action::Persist { .. } | Action::Report | Action::Configure(_)
            ) {
                self.pending.push(action);
            }
        }
    }

    /// Does one of the actions under way; those before it on the same job first.
    fn go(&mut self, rig: &mut Rig, which: prop::sample::Index, well: bool) {
        if self.pending.is_empty() {
            return;
        }
        let of = |action: &Action| match action {
            Action::Start(job) => Some(job.key),
            Action::Adopt(key) | Action::Stop { key, .. } | Action::Remove(key) => Some(*key),
            Action::Persist { .. } | Action::Configure(_) | Action::RemoveSession(_) | Action::Report => None,
        };
        let chosen = of(&self.pending[which.index(self.pending.len())]);
        let at = self
            .pending
            .iter()
            .position(|action| of(action) == chosen)
            .expect("it is there");
        let action = self.pending.remove(at);
        let (key, event) = match action {
            Action::Start(job) if well => {
                let binding = rig.agent.holding(job.key).expect("it holds").binding.clone();
                self.containers.insert(job.key, ((*job).clone(), binding, true));
                (job.key, ready())
            }
            Action::Start(job) => (job.key, ContainerEvent::Blocked("used".into())),
            Action::Adopt(key) => (key, ready()),
            Action::Stop { key, .. } => {
                if let Some((_, _, runs)) = self.containers.get_mut(&key) {
                    *runs = false;
                }
                (key, exited(143))
            }
            Action::Remove(key) if well => {
                self.containers.remove(&key);
                self.over.insert(key);
                (
                    key,
                    ContainerEvent::Released {
                        code: None,
                        out_of_memory: false,
                        command: false,
                    },
                )
            }
            Action::Remove(key) => (key, ContainerEvent::NotReleased("stuck".into())),
            Action::Persist { .. } | Action::Configure(_) | Action::RemoveSession(_) | Action::Report => {
                return;
            }
        };
        let actions = rig.event(key, event);
        self.obey(actions);
    }

    fn look(&self, rebooted: bool) -> Vec<Found> {
        let containers = self.containers.values();
        containers
            .map(|(job, binding, runs)| {
                let ended = FoundState::Ended {
                    code: Some(143),
                    out_of_memory: false,
                    command: false,
                };
                let state = match (rebooted, runs) {
                    (true, _) => FoundState::Lost,
                    (false, true) => FoundState::Running,
                    (false, false) => ended,
                };
                let mut found = found(job, state);
                found.holding.binding = binding.clone();
                found
            })
            .collect()
    }

    fn check(&self, rig: &Rig) {
        let mut gpus = BTreeSet::new();
        let mut bound = CpuSet::default();
        for (key, (job, binding, _)) in &self.containers {
            let cpus = &binding.cpus;
            let own = cpus.len() == job.cpus as usize && cpus.is_disjoint(&bound);
            assert!(own, "job {key} has CPUs {cpus}; others have {bound}");
            bound = bound.or(cpus);
            for gpu in &job.gpus {
                assert!(
                    gpus.insert(gpu.clone()),
                    "{gpu} is held twice, by job {key} and another"
                );
            }
            assert!(
                rig.agent.holders().any(|(holder, _)| holder == *key),
                "job {key} has a container and holds nothing"
            );
        }
        let held: u32 = rig.agent.holders().map(|(_, holding)| holding.cpus).sum();
        assert!(held <= 8, "{held} CPUs are held");
        let mut seen = BTreeSet::new();
        for (key, holding) in rig.agent.holders() {
            for gpu in &holding.gpus {
                assert!(
                    seen.insert(gpu.clone()),
                    "{gpu} is held twice in the ledger, by job {key} and another"
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn resources_have_one_holder_and_jobs_one_life(steps in prop::collection::vec(step(), 1..120)) {
        let mut rig = Rig::new();
        let mut world = World::default();
        let mut said: Vec<Desired> = Vec::new();
        for step in steps {
            match step {
                Step::Say { wanted, ended } => {
                    let bit = |bits: u8, n: u64| bits >> n & 1 == 1;
                    let jobs = (0..8).filter(|n| bit(wanted, *n) && !bit(ended, *n)).map(contender).collect();
                    let tombstones = (0..8).filter(|n| bit(ended, *n)).map(|n| tombstone(n + 1)).collect();
                    let desired = rig.desired(jobs, tombstones);
                    said.push(desired);
                }
                Step::Deliver(which) => {
                    if !said.is_empty() {
                        let last = said.len().saturating_sub(6);
                        let desired = said[last + which.index(said.len() - last)].clone();
                        let actions = rig.input(Input::Desired(Box::new(desired)));
                        world.obey(actions);
                    }
                }
                Step::Go(which, well) => world.go(&mut rig, which, well),
                Step::Exit(which) => {
                    let running: Vec<JobKey> = world.containers.keys().copied().collect();
                    if !running.is_empty() {
                        let key = running[which.index(running.len())];
                        if let Some((_, _, runs)) = world.containers.get_mut(&key) {
                            *runs = false;
                        }
                        let actions = rig.event(key, exited(1));
                        world.obey(actions);
                    }
                }
                Step::Pass(ms) => {
                    let actions = rig.pass(ms);
                    world.obey(actions);
                }
                Step::Restart | Step::Reboot => {
                    let rebooted = matches!(step, Step::Reboot);
                    world.pending.clear();
                    world.boots += u32::from(rebooted);
                    let boot = format!("boot-{}", world.boots + 1);
                    let (now, ledger) = (rig.now, rig.ledger.clone());
                    let boot_ms = if rebooted { 1_000 } else { now.boot_ms + 100 };
                    let now = Now { wall: Timestamp(now.wall.0 + 100), boot_ms };
                    let (incarnation, generation) = (rig.incarnation, rig.generation);
                    rig = Rig { incarnation, generation, ledger: ledger.clone(), ..Rig::unadopted(ledger, &boot, now) };
                    let actions = rig.input(Input::World(world.look(rebooted)));
                    world.obey(actions);
                }
                Step::Broker => {
                    rig.incarnation.number += 1;
                    rig.generation = 0;
                }
            }
            world.check(&rig);
        }
    }
}
