//! Backfill beside a model that is slow and plain: a line of time for every GPU, on which everything is looked up.

use super::*;
use crate::broker::backfill::Promise;
use crate::model::ids::GpuUuid;
use crate::model::resources::Allocation;

const NODES: [&str; 3] = ["n1", "n2", "n3"];
const GPUS: usize = 8;

/// A small generator: the tests of the core have no other source of chance.
struct Chance(u64);

impl Chance {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

/// From when until when somebody holds a GPU.
type Span = (Timestamp, Timestamp);

/// What each GPU is held for.
#[derive(Default)]
struct Model(BTreeMap<GpuUuid, Vec<Span>>);

impl Model {
    /// What runs holds what it has until its time is up, and what it is given to end after that.
    fn of(world: &World) -> Self {
        let mut model = Self::default();
        let grace = world.broker.state().settings.grace;
        for job in world.broker.state().jobs.values() {
            let Some(placed) = job.placed() else { continue };
            let span = (Timestamp(0), placed.deadline.max(world.now).after(grace));
            model.hold(&placed.allocation, span);
        }
        model
    }

    fn hold(&mut self, allocation: &Allocation, span: Span) {
        for unit in allocation.nodes.iter().flat_map(|part| &part.gpus) {
            self.0.entry(unit.gpu.clone()).or_default().push(span);
        }
    }

    fn is_free(&self, gpu: &GpuUuid, (from, until): Span) -> bool {
        let held = self.0.get(gpu).into_iter().flatten();
        held.clone().all(|(begin, end)| *end <= from || *begin >= until)
    }

    /// Whether so many nodes have so many GPUs that nobody holds in that time.
    fn has_room(&self, world: &World, request: &ResourceRequest, span: Span) -> bool {
        let nodes = world.broker.state().nodes.values();
        let enough = nodes.filter(|node| {
            let free = node
                .inventory
                .gpus
                .iter()
                .filter(|gpu| self.is_free(&gpu.uuid, span));
            let least = if request.exclusive {
                node.inventory.gpus.len()
            } else {
                request.gpus_per_node as usize
            };
            free.count() >= least
        });
        enough.count() >= request.nodes as usize
    }

    /// When anything that is held comes free, after a time.
    fn ends(&self, after: Timestamp) -> BTreeSet<Timestamp> {
        let ends = self.0.values().flatten().map(|(_, end)| *end);
        ends.filter(|end| *end > after).collect()
    }
}

/// Goes through the queue as it stands: whoever waits could not start, whoever is promised something gets it from
/// nobody, and not before there is room. How many are promised something, and how many of those the earliest start that
/// there is.
fn judge(world: &World, what: &str) -> (usize, usize) {
    let state = world.broker.state();
    let most = state.settings.queue.promises as usize;
    let mut model = Model::of(world);
    let (mut promised, mut exact) = (0, 0);
    for id in state.in_order() {
        let job = world.job(id);
        let time = |from: Timestamp| (from, from.after(job.time_limit).after(state.settings.grace));
        assert!(
            !model.has_room(world, &job.request, time(world.now)),
            "{what}: there is room for job {id}, and it waits: {}",
            world.reason(id)
        );
        let promise: Option<&Arc<Promise>> = state.promises.get(&id);
        assert_eq!(
            promise.is_some(),
            promised < most,
            "{what}: of {promised} promises, job {id}"
        );
        let Some(promise) = promise else { continue };
        promised += 1;
        assert_eq!(
            (promise.start, promise.end),
            time(promise.start),
            "{what}: job {id}"
        );
        assert_eq!(promise.allocation.nodes.len(), job.request.nodes as usize);
        for unit in promise.allocation.nodes.iter().flat_map(|part| &part.gpus) {
            assert!(
                model.is_free(&unit.gpu, time(promise.start)),
                "{what}: job {id} is promised {} from {}, which somebody before it holds then",
                unit.gpu,
                promise.start
            );
        }
        let ends = model.ends(world.now);
        let earliest = ends
            .iter()
            .find(|at| model.has_room(world, &job.request, time(**at)));
        assert!(
            earliest.is_some_and(|at| *at <= promise.start),
            "{what}: job {id}"
        );
        exact += usize::from(earliest == Some(&promise.start));
        model.hold(&promise.allocation, time(promise.start));
    }
    (promised, exact)
}

fn spec(chance: &mut Chance) -> SessionSpec {
    let gang = chance.below(4) == 0;
    let mut spec = SessionSpec {
        time_limit: Duration::from_mins(5 + chance.below(120)),
        ..gpus(1 + chance.below(GPUS as u64) as u32)
    };
    spec.request.nodes = if gang {
        1 + chance.below(NODES.len() as u64) as u32
    } else {
        1
    };
    spec.request.nvlink = false;
    // GPUs alone decide: everybody has some, and whole nodes come with all.
    spec.request.exclusive = chance.below(8) == 0;
    spec.request.cpus_per_node = 1;
    spec.request.memory_bytes_per_node = 1 << 20;
    spec
}

#[test]
fn what_waits_has_no_room_and_what_is_promised_is_nobody_else_s() {
    let (mut promised, mut exact) = (0, 0);
    for seed in 0..24 {
        let mut chance = Chance(seed);
        let mut settings = settings();
        settings.queue.promises = [32, 3, 1][seed as usize % 3];
        let mut world = World::with(settings, &NODES);
        for step in 0..80 {
            let what = format!("seed {seed}, step {step}");
            match chance.below(5) {
                0..=2 => {
                    let user = ["alice", "bob"][chance.below(2) as usize];
                    world.open(user, open(&format!("s{step}"), spec(&mut chance)));
                }
                3 => {
                    world.wait(Duration::from_mins(chance.below(40)));
                    world.must(Input::Tick);
                }
                _ => {
                    let live = world.broker.state().jobs.values();
                    let live = live.filter(|job| !job.state().is_final());
                    let live: Vec<(UserName, String)> =
                        live.map(|job| (job.owner.clone(), job.name.clone())).collect();
                    if !live.is_empty() {
                        let (owner, name) = &live[chance.below(live.len() as u64) as usize];
                        world.must(Input::StopSession(
                            caller(owner.as_str()),
                            name.parse().expect("a name"),
                            None,
                        ));
                    }
                }
            }
            world.settle(&NODES);
            let judged = judge(&world, &what);
            (promised, exact) = (promised + judged.0, exact + judged.1);
        }
    }
    assert!(promised > 1_000, "{promised} promises were judged");
    // Starts are looked for in ever larger steps, and are not always the earliest that there are.
    assert!(
        exact * 100 >= promised * 75,
        "{exact} of {promised} are the earliest"
    );
}
