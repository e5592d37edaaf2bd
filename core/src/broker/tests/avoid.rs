//! A job that fails at once on one node gets another one next, and is never kept from starting by that.

use super::*;
use crate::model::job::{KEEPS_OFF, SOON};

fn whole_node() -> SessionSpec {
    let mut spec = gpus(8);
    spec.request.nvlink = false;
    spec.request.cpus_per_node = 1;
    spec.time_limit = Duration::from_hours(4);
    spec
}

impl World {
    fn node_of(&self, id: JobId) -> String {
        let placed = self.job(id).placed();
        let placed = placed.unwrap_or_else(|| panic!("job {id} is placed: {}", self.reason(id)));
        placed.allocation.nodes[0].node.to_string()
    }

    /// Its container is ready.
    fn ready(&mut self, id: JobId) {
        let name = self.node_of(id);
        let seen = self.seen(id, &name, ObservedPhase::Ready);
        self.report(&name, vec![seen]);
    }

    /// Its node says that it has ended; `ran`: so long after its container was ready.
    fn fail(&mut self, id: JobId, ran: Duration) -> String {
        self.ready(id);
        self.wait(ran);
        let name = self.node_of(id);
        self.end(id, &name, Some(1));
        assert_eq!(self.state(id), JobState::Failed);
        name
    }

    fn requeue(&mut self, id: JobId) {
        self.must(Input::RequeueJob(caller("alice"), id.into()));
    }

    fn explained(&self, id: JobId) -> String {
        explain(self.broker.state(), self.job(id), self.now).summary
    }

    fn kept_off(&self, id: JobId) -> Vec<String> {
        let kept_off = self.broker.state().nodes_kept_off(self.job(id));
        kept_off.into_iter().map(|(node, _)| node.to_string()).collect()
    }
}

#[test]
fn what_failed_at_once_gets_another_node() {
    let mut world = World::new(&["n1", "n2", "n3"]);
    let id = world.submit("alice", whole_node());
    let first = world.fail(id, Duration::from_secs(2));
    world.requeue(id);
    let second = world.node_of(id);
    assert_ne!(second, first);
    assert_eq!(world.job(id).past_runs[0].failed_soon_on, [node(&first)]);
    // It fails there as well: off both, and still after a restart.
    world.fail(id, SOON);
    world.restart(11);
    world.report(&first, vec![]);
    world.report(&second, vec![]);
    for name in ["n1", "n2", "n3"] {
        world.report(name, vec![]);
    }
    world.requeue(id);
    let third = world.node_of(id);
    assert!(
        third != first && third != second,
        "{third} after {first}, {second}"
    );
    // It runs for longer there: what is wrong is not the node.
    let last = world.fail(id, SOON + Duration::from_secs(1));
    world.requeue(id);
    assert_eq!(world.node_of(id), last);
}

#[test]
fn a_start_that_fails_counts_however_long_it_took() {
    let mut world = World::new(&["n1", "n2"]);
    let id = world.submit("alice", whole_node());
    let first = world.node_of(id);
    world.wait(Duration::from_mins(20));
    let mut seen = world.seen(id, &first, ObservedPhase::Released);
    seen.cause = Some(EndCause::StartFailed);
    world.report(&first, vec![seen]);
    world.requeue(id);
    assert_ne!(world.node_of(id), first);
}

/// A node that restarts under a job takes it no second time at once; what its user ends is no failure.
#[test]
fn lost_jobs_keep_off_their_node_and_stopped_ones_do_not() {
    let mut world = World::new(&["n1", "n2"]);
    let id = world.submit("alice", whole_node());
    let first = world.node_of(id);
    world.ready(id);
    let mut seen = world.seen(id, &first, ObservedPhase::Released);
    seen.cause = Some(EndCause::NodeRestarted);
    world.report(&first, vec![seen]);
    let second = world.node_of(id);
    assert_ne!(second, first, "it is queued again by itself");
    world.requeue(id);
    let seen = world.seen(id, &second, ObservedPhase::Released);
    world.report(&second, vec![seen]);
    assert_eq!(
        world.node_of(id),
        second,
        "off the first one, and back where it was stopped"
    );
    assert_eq!(world.job(id).past_runs.len(), 2);
}

#[test]
fn it_waits_for_others_for_a_while_and_says_so() {
    let mut world = World::new(&["n1", "n2"]);
    let id = world.submit("alice", whole_node());
    let first = world.fail(id, Duration::ZERO);
    let other = if first == "n1" { "n2" } else { "n1" };
    let blocker = world.submit(
        "bob",
        SessionSpec {
            request: {
                let mut request = (*whole_node().request).clone();
                request.constraints.nodelist.insert(node(other));
                request.into()
            },
            ..whole_node()
        },
    );
    assert_eq!(world.node_of(blocker), other);
    world.requeue(id);
    assert_eq!(world.state(id), JobState::Pending);
    assert_eq!(world.kept_off(id), [first.as_str()]);
    let said = world.explained(id);
    assert!(
        said.contains(&format!(
            "it failed at once where it ran, and keeps off {first} until"
        )),
        "{said}"
    );
    assert!(!said.contains("switches"), "{said}");
    assert_eq!(
        start_of(world.broker.state(), id, world.now).map(|start| start.allocation.nodes[0].node.to_string()),
        Some(other.to_owned()),
        "it is promised the other node"
    );
    world.wait(KEEPS_OFF);
    world.must(Input::Tick);
    for name in [first.as_str(), other] {
        let placed = world
            .broker
            .state()
            .placed_on
            .get(&node(name))
            .cloned()
            .unwrap_or_default();
        let jobs = placed
            .iter()
            .map(|id| world.seen(*id, name, ObservedPhase::Ready))
            .collect();
        world.report(name, jobs);
    }
    assert_eq!(world.node_of(id), first, "it has waited for long enough");
}

/// Whatever has become of the others, and whatever else it insists on.
#[test]
fn no_job_is_kept_from_starting() {
    let mut world = World::new(&["n1"]);
    let id = world.submit("alice", whole_node());
    world.fail(id, Duration::ZERO);
    world.requeue(id);
    assert_eq!(world.node_of(id), "n1", "there is no other");

    let mut world = World::new(&["n1", "n2"]);
    let mut listed = (*whole_node().request).clone();
    listed.constraints.nodelist.insert(node("n2"));
    let id = world.submit(
        "alice",
        SessionSpec {
            request: listed.into(),
            ..whole_node()
        },
    );
    world.fail(id, Duration::ZERO);
    world.requeue(id);
    assert_eq!(world.node_of(id), "n2", "it asks for that one");

    // The other one goes while it waits for it.
    let mut world = World::new(&["n1", "n2"]);
    let id = world.submit("alice", whole_node());
    let first = world.fail(id, Duration::ZERO);
    let other = if first == "n1" { "n2" } else { "n1" };
    world.must(Input::DrainNode(caller("root"), node(other), "broken".into()));
    world.requeue(id);
    assert_eq!(world.node_of(id), first, "no other one is in service");
    let mut gang = (*whole_node().request).clone();
    gang.nodes = 2;
    let mut world = World::new(&["n1", "n2"]);
    let id = world.submit(
        "alice",
        SessionSpec {
            request: gang.into(),
            ..whole_node()
        },
    );
    for name in ["n1", "n2"] {
        let seen = world.seen(id, name, ObservedPhase::Ready);
        world.report(name, vec![seen]);
    }
    world.end(id, "n1", Some(1));
    let seen = world.seen(id, "n2", ObservedPhase::Released);
    world.report("n2", vec![seen]);
    assert_eq!(world.state(id), JobState::Failed);
    world.requeue(id);
    assert_eq!(world.job(id).past_runs[0].failed_soon_on, [node("n1")]);
    assert_eq!(world.job(id).placed().map(|placed| placed.ranks.len()), Some(2));
}
