//! Protects: constraints on nodes are kept, what can never be is refused at once with the reason, and a
//! wish that is held out for delays its own job alone.

use std::collections::BTreeSet;

use super::*;
use crate::broker::FeatureChange;
use crate::model::constraints::{Constraints, Patience};
use crate::model::fabric::{Fabric, FabricText, SwitchText};
use crate::model::host_list;

/// Nodes n1, ib2 and ib3, the latter two on one leaf switch and with the feature "ib".
fn leaves() -> World {
    let switch = |name: &str, nodes: &str| SwitchText {
        name: name.into(),
        nodes: nodes.into(),
        switches: String::new(),
    };
    let text = FabricText {
        switch: vec![switch("leaf1", "n1"), switch("leaf2", "ib[2-3]")],
        block: Vec::new(),
    };
    let settings = Settings {
        fabric: Arc::new(Fabric::try_from(text).expect("a fabric")),
        ..settings()
    };
    World::with(settings, &["n1", "ib2", "ib3"])
}

fn names(list: &str) -> BTreeSet<NodeName> {
    host_list::parse(list).expect("a host list")
}

fn whole(nodes: u32, constraints: Constraints) -> SessionSpec {
    let mut spec = gpus(8);
    spec.request.nodes = nodes;
    spec.request.constraints = constraints;
    spec
}

fn on_switches(switches: u32) -> Constraints {
    Constraints {
        switches,
        ..Constraints::default()
    }
}

impl World {
    fn nodes_of(&self, id: JobId) -> Vec<String> {
        let placed = self.job(id).placed().expect("it holds something");
        let nodes = placed.allocation.nodes.iter();
        nodes.map(|part| part.node.to_string()).collect()
    }

    /// Every node says that it runs what it holds of these.
    fn all_report(&mut self, jobs: &[JobId]) {
        for name in ["n1", "ib2", "ib3"] {
            let here = jobs
                .iter()
                .filter(|id| self.nodes_of(**id).contains(&name.to_owned()));
            let here = here
                .map(|id| self.seen(*id, name, ObservedPhase::Ready))
                .collect();
            self.report(name, here);
        }
    }

    fn refused(&mut self, spec: SessionSpec) -> Reject {
        let request = Input::OpenSession(caller("alice"), open("never", spec));
        let reject = self.handle(request).expect_err("a refusal");
        assert!(self.broker.state().pending.is_empty(), "nothing waits");
        reject
    }
}

#[test]
fn nodes_are_chosen_by_name_and_feature() {
    let mut world = leaves();
    let (_, one) = world.open(
        "alice",
        open(
            "one",
            whole(
                1,
                Constraints {
                    nodelist: names("ib3"),
                    ..Constraints::default()
                },
            ),
        ),
    );
    assert_eq!(world.nodes_of(one), ["ib3"]);
    let ib = Constraints {
        features: Some("ib".parse().expect("a feature")),
        ..Constraints::default()
    };
    let (_, two) = world.open("alice", open("two", whole(1, ib.clone())));
    assert_eq!(world.nodes_of(two), ["ib2"]);
    // The other node is free and has not the feature.
    let (_, waits) = world.open("alice", open("waits", whole(1, ib)));
    assert_eq!(
        world.reason(waits),
        "Resources: fewer than 8 free GPUs on 2 nodes, no feature ib on 1 node"
    );
    let elsewhere = Constraints {
        exclude: names("ib[2-3]"),
        ..Constraints::default()
    };
    let (_, behind) = world.open("bob", open("behind", whole(1, elsewhere)));
    assert_eq!(
        world.nodes_of(behind),
        ["n1"],
        "it takes nothing from the one before it"
    );
}

#[test]
fn a_gang_has_all_that_it_names_and_others_near_by() {
    let mut world = leaves();
    let with_ib2 = Constraints {
        nodelist: names("ib2"),
        ..Constraints::default()
    };
    let (_, pair) = world.open("alice", open("pair", whole(2, with_ib2)));
    assert_eq!(world.nodes_of(pair), ["ib2", "ib3"]);
}

#[test]
fn what_contradicts_itself_or_can_never_be_is_refused_at_once() {
    let mut world = leaves();
    let default = Constraints::default;
    for (nodes, constraints, why) in [
        (
            2,
            Constraints {
                nodelist: names("n1,n9"),
                ..default()
            },
            "there is no node n9 (--nodelist)",
        ),
        (
            1,
            Constraints {
                exclude: names("gpu[1-9]"),
                ..default()
            },
            "there are no nodes gpu[1-5] and 4 more (--exclude)",
        ),
        (
            1,
            Constraints {
                nodelist: names("n1,ib2"),
                ..default()
            },
            "--nodelist names 2 nodes, and 1 are asked for",
        ),
        (
            2,
            Constraints {
                nodelist: names("n1"),
                exclude: names("n1"),
                ..default()
            },
            "node n1 is in --nodelist and in --exclude",
        ),
        (
            3,
            Constraints {
                segment: 2,
                ..default()
            },
            "3 nodes are no multiple of --segment=2",
        ),
        (
            1,
            Constraints {
                features: Some("gold".parse().expect("a feature")),
                ..default()
            },
            "no feature gold on 3 nodes",
        ),
        (
            3,
            on_switches(1),
            "fits, but no 3 such nodes are on one leaf switch (--switches=1) on 3 nodes",
        ),
        (
            2,
            Constraints {
                segment: 2,
                ..default()
            },
            "fits, but no block has 2 such nodes (--segment=2) on 3 nodes",
        ),
    ] {
        let reject = world.refused(whole(nodes, constraints));
        assert!(reject.message.contains(why), "{reject}");
    }
    let reject = world.refused(whole(3, on_switches(1)));
    assert_eq!(
        reject.hint,
        "the nearest that this cluster has: 3 nodes further apart: on each of n1, ib2, ib3"
    );
}

#[test]
fn a_job_holds_out_for_fewer_switches_and_then_takes_what_there_is() {
    let mut world = leaves();
    let on_ib3 = Constraints {
        nodelist: names("ib3"),
        ..Constraints::default()
    };
    let (_, first) = world.open("bob", open("first", whole(1, on_ib3)));
    assert_eq!(world.nodes_of(first), ["ib3"]);
    let patience = Duration::from_mins(5);
    let mut spec = whole(2, on_switches(1));
    spec.request.gpus_per_node = 4;
    spec.request.patience = Patience {
        switches: Some(patience),
        ..Patience::default()
    };
    let submitted = world.now;
    let (_, waits) = world.open("alice", open("waits", spec));
    assert_eq!(world.state(waits), JobState::Pending);
    assert!(
        world
            .reason(waits)
            .ends_with("it could start now, and holds out for nodes on fewer switches for 5 min at most"),
        "{}",
        world.reason(waits)
    );
    // Who comes later starts now.
    let (_, later) = world.open("bob", open("later", gpus(2)));
    assert_eq!(world.state(later), JobState::Configuring);
    assert!(
        world
            .broker
            .state()
            .patience
            .contains(&(submitted.after(patience), waits))
    );

    // It is nothing that a restart forgets, and nothing that is over again after it.
    world.restart_with(leaves().broker.state().settings.clone(), 8);
    assert!(
        world
            .broker
            .state()
            .patience
            .contains(&(submitted.after(patience), waits))
    );
    world.all_report(&[first, later]);
    assert_eq!(world.state(waits), JobState::Pending);
    world.now = submitted.after(patience);
    assert!(
        world.broker.next_deadline() <= Some(world.now),
        "the broker wakes for it"
    );
    world.all_report(&[first, later]);
    assert_eq!(world.state(waits), JobState::Pending);
    world.must(Input::Tick);
    assert_eq!(world.nodes_of(waits), ["n1", "ib2"]);
    assert!(world.broker.state().patience.is_empty());
}

#[test]
fn nobody_holds_out_for_what_can_never_be() {
    let mut world = leaves();
    let mut spec = whole(3, on_switches(1));
    spec.request.patience.switches = Some(Duration::from_hours(1));
    let (_, id) = world.open("alice", open("all", spec));
    assert_eq!(world.nodes_of(id), ["n1", "ib2", "ib3"]);
}

#[test]
fn components_hold_nodes_of_their_own_all_or_none() {
    let mut world = leaves();
    let ib = Constraints {
        features: Some("ib".parse().expect("a feature")),
        ..Constraints::default()
    };
    // The first would do anywhere, and leaves the second what that needs.
    let mut spec = gpus(0);
    spec.request.nvlink = false;
    spec.request.more = vec![(*whole(2, ib.clone()).request).clone()];
    let (_, id) = world.open("alice", open("mixed", spec.clone()));
    assert_eq!(world.nodes_of(id), ["n1", "ib2", "ib3"]);
    let held = world.job(id).placed().expect("placed").allocation.clone();
    let gpus: Vec<usize> = held.nodes.iter().map(|part| part.gpus.len()).collect();
    assert_eq!(gpus, [0, 8, 8]);
    // Each would have a place by itself, now or later, and both together never.
    let mut never = spec.clone();
    never.request.nodes = 2;
    let reject = world.handle(Input::OpenSession(caller("bob"), open("never", never)));
    let reject = reject.expect_err("a refusal");
    assert!(
        reject.message.contains("no 4 nodes for all components at once"),
        "{reject}"
    );
    let mut twice = spec;
    twice.request.constraints.nodelist = names("ib2");
    twice.request.more[0].constraints.nodelist = names("ib2");
    let reject = world.handle(Input::OpenSession(caller("bob"), open("twice", twice)));
    let reject = reject.expect_err("a refusal");
    assert_eq!(
        reject.message,
        "two components name node ib2; each has nodes of its own"
    );
}

/// All nodes of a job meet the same choice, though more nodes meet any of them; and one that is not there is no wait.
#[test]
fn all_nodes_meet_the_same_choice() {
    let mut world = leaves();
    for (name, feature) in [("n1", "r1"), ("ib2", "r2"), ("ib3", "r2")] {
        let change = FeatureChange {
            add: BTreeSet::from([feature.to_owned()]),
            remove: BTreeSet::new(),
        };
        world.must(Input::ChangeFeatures(caller("root"), node(name), change));
    }
    let wants = |nodes, text: &str| {
        let features = Some(text.parse().expect("features"));
        whole(
            nodes,
            Constraints {
                features,
                ..Constraints::default()
            },
        )
    };
    let (_, both) = world.open("alice", open("both", wants(2, "[r1|r2]")));
    assert_eq!(
        world.nodes_of(both),
        ["ib2", "ib3"],
        "the first choice has one node"
    );
    let (_, one) = world.open("alice", open("one", wants(1, "[r2|r1]")));
    assert_eq!(world.nodes_of(one), ["n1"], "the second choice is free");
    let three = world.handle(Input::OpenSession(
        caller("bob"),
        open("three", wants(3, "[r1|r2]")),
    ));
    assert_eq!(
        three.expect_err("no choice has three nodes").kind,
        RejectKind::Invalid
    );
    let (_, waits) = world.open("bob", open("waits", wants(2, "[r1|r2]")));
    assert_eq!(world.state(waits), JobState::Pending);
    world.must(Input::StopSession(
        caller("alice"),
        "both".parse().expect("a name"),
        None,
    ));
    for name in ["ib2", "ib3"] {
        let over = world.seen(both, name, ObservedPhase::Released);
        world.report(name, vec![over]);
    }
    assert_eq!(world.nodes_of(waits), ["ib2", "ib3"]);
}

/// An operator's features are asked for as the node's own are, outlive a restart and a report, and start who waits.
#[test]
fn operators_give_nodes_features() {
    let mut world = leaves();
    let kind = |result: Result<Output, Reject>| result.expect_err("a refusal").kind;
    let change = |who: &str, add: &[&str], remove: &[&str]| {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let change = FeatureChange {
            add: names(add),
            remove: names(remove),
        };
        Input::ChangeFeatures(caller(who), node("n1"), change)
    };
    let gold = |name: &str| {
        let wants = Constraints {
            features: Some("gold".parse().expect("a feature")),
            ..Constraints::default()
        };
        open(name, whole(1, wants))
    };
    let refused = world.handle(Input::OpenSession(caller("alice"), gold("early")));
    assert!(refused.is_err(), "nobody has it");
    assert_eq!(
        kind(world.handle(change("alice", &["gold"], &[]))),
        RejectKind::Denied
    );
    world.must(change("root", &["gold", "ib"], &[]));
    let (_, first) = world.open("alice", gold("first"));
    assert_eq!(world.nodes_of(first), ["n1"]);
    let (_, second) = world.open("alice", gold("second"));
    world.restart(9);
    let seen = world.seen(first, "n1", ObservedPhase::Ready);
    world.report("n1", vec![seen]);
    let offer = |world: &World| world.broker.state().nodes[&node("n1")].offer().features.clone();
    assert_eq!(offer(&world).into_iter().collect::<Vec<_>>(), ["gold", "ib"]);
    assert_eq!(world.state(second), JobState::Pending);

    for (add, remove, refusal) in [
        (&[][..], &["silver"][..], RejectKind::NotFound),
        (&["gold"], &["gold"], RejectKind::Invalid),
        (&["a b"], &[], RejectKind::Invalid),
    ] {
        assert_eq!(kind(world.handle(change("root", add, remove))), refusal);
    }
    world.must(change("root", &[], &["gold"]));
    assert_eq!(offer(&world).into_iter().collect::<Vec<_>>(), ["ib"]);
    // What its own configuration says is not the broker's to take.
    let own = FeatureChange {
        remove: ["ib".to_owned()].into(),
        ..FeatureChange::default()
    };
    let refused = world.handle(Input::ChangeFeatures(caller("root"), node("ib2"), own));
    let refused = refused.expect_err("its own");
    assert!(
        refused.message.contains("the node's own configuration"),
        "{refused}"
    );
    let many: Vec<String> = (0..65).map(|n| format!("f{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(
        kind(world.handle(change("root", &many, &[]))),
        RejectKind::Exhausted
    );
}
