//! Protects: a job gets the MIG slice that it was given and no other; GPUs are cut only where nobody is, and a
//! cut that fails, or whose agent is killed, leaves nothing in parts.
//!
//! The agent is the real program, with tests/fake-nvml as its NVML and its `nvidia-smi`, against a broker that
//! says what the test wants said.

mod broker;
mod host;

use std::fs;
use std::process::Command;

use carrel_proto::v1;
use host::{Node, file, note};

fn gpu(observed: &v1::Observed) -> v1::Mig {
    let inventory = observed.inventory.as_ref();
    inventory
        .and_then(|inventory| inventory.gpus.first()?.mig.clone())
        .unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn slices_are_used_cut_and_used_again_beside_neighbours() {
    let Some(mut node) = Node::start(&["1g.10gb@0", "1g.10gb@1", "3g.40gb@4"], "recut = [0]").await else {
        return;
    };
    node.want(1, &["3g.40gb@4+4"]);
    node.phase(1, v1::ObservedPhase::Ready).await;
    assert_eq!(
        node.cut(),
        ["1g.10gb@0", "1g.10gb@1", "3g.40gb@4"],
        "nothing was cut"
    );
    let neighbour = node.pid(1).await;

    node.want(2, &["2g.20gb@0+2", "1g.10gb@2+1"]);
    node.phase(2, v1::ObservedPhase::Ready).await;
    let now = ["2g.20gb@0", "1g.10gb@2", "3g.40gb@4"];
    assert_eq!(node.cut(), now);
    assert_eq!(node.pid(1).await, neighbour, "the neighbour goes on");
    // The broker hears of it at once, long before the next look of its own.
    let told = node.observed("the new slices", |seen| {
        gpu(seen).instances.len() == 3 && gpu(seen).instances[0].profile == "2g.20gb"
    });
    let instances = gpu(&told.await).instances;
    let (nodes, visible) = node.inside(2).await;
    assert_eq!(visible, format!("{},{}", instances[0].uuid, instances[1].uuid));
    assert_eq!(
        nodes.len(),
        6,
        "one GPU, what is shared, and two nodes for each slice: {nodes:?}"
    );
    let (of_neighbour, _) = node.inside(1).await;
    let caps = |nodes: &[String]| -> Vec<String> {
        nodes
            .iter()
            .filter(|name| name.contains("cap"))
            .cloned()
            .collect()
    };
    assert!(
        caps(&nodes)
            .iter()
            .all(|name| !caps(&of_neighbour).contains(name)),
        "{nodes:?} {of_neighbour:?}"
    );

    // Its end leaves the slices, and the next job has them though nothing could be cut now.
    node.end(2);
    node.phase(2, v1::ObservedPhase::Released).await;
    assert_eq!(node.cut(), now);
    fs::write(
        node.at("faults"),
        "cgi * Unknown Error\ndgi * Unknown Error\ndci * Unknown Error\n",
    )
    .expect("written");
    node.want(3, &["2g.20gb@0+2"]);
    node.phase(3, v1::ObservedPhase::Ready).await;
    let (_, visible) = node.inside(3).await;
    assert_eq!(visible, instances[0].uuid);
    node.down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_that_fails_is_undone_and_reported() {
    let Some(mut node) = Node::start(&["1g.10gb@0", "1g.10gb@4"], "recut = true").await else {
        return;
    };
    node.want(1, &["1g.10gb@4+1"]);
    node.phase(1, v1::ObservedPhase::Ready).await;
    fs::write(node.at("faults"), "cgi 9:0 Insufficient Resources\n").expect("written");
    node.want(2, &["3g.40gb@0+4"]);
    let failed = node.phase(2, v1::ObservedPhase::Released).await;
    assert_eq!(failed.cause(), v1::EndCause::StartFailed);
    for part in [
        "GPU 0 could not be cut into 3g.40gb at 0, and is as before",
        "-cgi 9:0 -C",
        "Insufficient Resources",
    ] {
        assert!(failed.detail.contains(part), "{part}: {}", failed.detail);
    }
    assert_eq!(node.cut(), ["1g.10gb@0", "1g.10gb@4"]);

    // Between its two halves: the instance is there, its device is made again.
    fs::write(node.at("faults"), "dgi * In use by another client\n").expect("written");
    node.want(3, &["3g.40gb@0+4"]);
    let failed = node.phase(3, v1::ObservedPhase::Released).await;
    assert!(failed.detail.contains("is as before"), "{}", failed.detail);
    assert_eq!(node.cut(), ["1g.10gb@0", "1g.10gb@4"]);

    // When even that fails, the GPU is left alone until somebody has looked.
    fs::write(node.at("faults"), "cgi * Unknown Error\n").expect("written");
    node.want(4, &["3g.40gb@0+4"]);
    let failed = node.phase(4, v1::ObservedPhase::Released).await;
    assert!(failed.detail.contains("nor made as before"), "{}", failed.detail);
    let left = node.observed("no more cuts", |seen| !gpu(seen).recut).await;
    assert!(
        note(&left).contains("GPU 0 is not cut anew until an operator has seen to it"),
        "{}",
        note(&left)
    );
    assert_eq!(gpu(&left).instances.len(), 1);
    node.pid(1).await;
    node.down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_in_the_way_is_waited_for_and_what_may_not_be_cut_is_not() {
    let Some(mut node) = Node::start(&["1g.10gb@0", "1g.10gb@4"], "recut = true").await else {
        return;
    };
    let mut stranger = Command::new("sleep").arg("1000").spawn().expect("sleep");
    // GPU instance 7 is the one at 0.
    fs::write(node.at("busy"), format!("0 {} 7\n", stranger.id())).expect("written");
    node.want(1, &["3g.40gb@0+4"]);
    let says = format!(
        "slice 1g.10gb at 0 of GPU 0 is in use by process {}",
        stranger.id()
    );
    let told = |seen: &v1::Observed| seen.jobs.iter().any(|job| job.detail.contains(&says));
    node.observed("who is in the way", told).await;
    assert_eq!(node.cut(), ["1g.10gb@0", "1g.10gb@4"]);
    // He is in nobody else's way.
    node.want(2, &["1g.10gb@4+1"]);
    node.phase(2, v1::ObservedPhase::Ready).await;
    stranger.kill().expect("killed");
    stranger.wait().expect("ended");
    node.phase(1, v1::ObservedPhase::Ready).await;
    assert_eq!(node.cut(), ["3g.40gb@0", "1g.10gb@4"]);

    // A slice is free when nobody is in it any more, whoever is in the others.
    let mut lingerer = Command::new("sleep").arg("1000").spawn().expect("sleep");
    fs::write(node.at("busy"), format!("0 {} 2\n", lingerer.id())).expect("written");
    node.end(2);
    node.phase(2, v1::ObservedPhase::Released).await;
    node.end(1);
    let says = format!(
        "slice 3g.40gb at 0 of GPU 0 is in use by process {}",
        lingerer.id()
    );
    let told = |seen: &v1::Observed| seen.jobs.iter().any(|job| job.detail.contains(&says));
    node.observed("who keeps it", told).await;
    lingerer.kill().expect("killed");
    lingerer.wait().expect("ended");
    node.phase(1, v1::ObservedPhase::Released).await;
    node.down().await;
}

/// Killed when a device was removed and its instance was not, and when the instance was, too.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_killed_in_the_middle_of_a_cut_goes_on_from_what_is_there() {
    let Some(mut node) = Node::start(&["1g.10gb@0", "1g.10gb@4"], "recut = true").await else {
        return;
    };
    node.want(1, &["1g.10gb@4+1"]);
    node.phase(1, v1::ObservedPhase::Ready).await;
    for (number, fault, unit, left, then) in [
        (
            2,
            "dgi 7",
            "3g.40gb@0+4",
            &["1g.10gb@0?", "1g.10gb@4"][..],
            &["3g.40gb@0", "1g.10gb@4"][..],
        ),
        (
            3,
            "cgi 14:2",
            "2g.20gb@2+2",
            &["1g.10gb@4"],
            &["2g.20gb@2", "1g.10gb@4"],
        ),
    ] {
        let gate = node.at(&format!("gate{number}"));
        fs::write(node.at("faults"), format!("{fault} wait {}\n", gate.display())).expect("written");
        node.want(number, &[unit]);
        let smi = file(&gate.with_extension("reached")).await;
        node.kill_agent();
        Command::new("kill").args(["-9", &smi]).status().expect("kill");
        fs::remove_file(node.at("faults")).expect("removed");
        assert_eq!(node.cut(), left);
        node.start_agent();
        node.phase(number, v1::ObservedPhase::Ready).await;
        assert_eq!(node.cut(), then);
        node.pid(1).await;
        node.end(number);
        node.phase(number, v1::ObservedPhase::Released).await;
    }
    node.down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_goes_on_when_mig_mode_changes_behind_its_back() {
    let Some(mut node) = Node::start(&["1g.10gb@0"], "").await else {
        return;
    };
    node.want(1, &["1g.10gb@0+1"]);
    node.phase(1, v1::ObservedPhase::Ready).await;
    let (_, visible) = node.inside(1).await;
    // What is not allowed is said to be.
    node.want(2, &["2g.20gb@2+2"]);
    let refused = node.phase(2, v1::ObservedPhase::Released).await;
    assert!(
        refused.detail.contains("does not let it be cut anew"),
        "{}",
        refused.detail
    );
    node.kill_agent();
    fs::write(node.at("mig"), "gpu 0 off off\ngpu 1 on on\n").expect("written");
    node.start_agent();
    let changed = node
        .observed("the change", |seen| {
            note(seen).contains("GPU 0 is not in MIG mode any more")
        })
        .await;
    assert!(note(&changed).contains("job 1 goes on"), "{}", note(&changed));
    node.phase(1, v1::ObservedPhase::Ready).await;
    assert_eq!(node.inside(1).await.1, visible);
    node.end(1);
    node.phase(1, v1::ObservedPhase::Released).await;
    node.observed("no note", |seen| note(seen).is_empty()).await;
    node.down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shares_of_a_gpu_are_side_by_side_and_end_each_for_itself() {
    let Some(mut node) = Node::start(&[], "[sharing]\ngpus = \"all\"").await else {
        return;
    };
    node.want(1, &["1/500/1000,time-slice"]);
    node.want(2, &["1/500/1000,time-slice"]);
    node.want(3, &["1/1/1000,time-slice"]);
    // Of a GPU in MIG mode there are none, whatever the configuration says of it.
    node.want(4, &["500/1000,time-slice"]);
    let refused = node.phase(4, v1::ObservedPhase::Released).await;
    assert!(
        refused.detail.contains("GPU 0 is not shared by time-slice"),
        "{}",
        refused.detail
    );
    let uuid = node.host().gpus[1].uuid.clone();
    for number in [1, 2] {
        node.phase(number, v1::ObservedPhase::Ready).await;
        let (nodes, visible) = node.inside(number).await;
        assert_eq!(nodes, ["nvidia1", "nvidiactl"]);
        assert_eq!(visible, uuid);
    }
    let waits = |seen: &v1::Observed| {
        seen.jobs
            .iter()
            .any(|job| job.job == 3 && job.detail.contains("to release GPU 1"))
    };
    node.observed("there is no room for a third", waits).await;
    // What NVML lists is the neighbour's.
    fs::write(node.at("busy"), format!("1 {}\n", node.pid(2).await)).expect("written");
    node.end(1);
    node.phase(1, v1::ObservedPhase::Released).await;
    node.phase(3, v1::ObservedPhase::Ready).await;
    node.down().await;
}
