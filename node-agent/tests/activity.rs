//! Protects: what a job does is seen and counted as what it is, by GPU, slice and share, and what is not measured is
//! not taken for nothing.
//!
//! The agent is the real program, with tests/fake-nvml as its NVML, against a broker that says what the test wants said.

mod broker;
mod host;

use std::fs;

use carrel_proto::v1;
use host::Node;

const SHARED: &str = "[sharing]\ngpus = \"all\"\nmode = \"time-slice\"";

fn busy(node: &Node, lines: &str) {
    let (new, place) = (node.at("utilization.new"), node.at("utilization"));
    fs::write(&new, lines).expect("written");
    fs::rename(new, place).expect("in its place");
}

fn of(seen: &v1::Observed, job: u64) -> Option<&v1::ObservedActivity> {
    seen.activity.iter().find(|one| one.job == job)
}

fn gpu_percent(seen: &v1::Observed, job: u64) -> Option<u32> {
    of(seen, job)?.gpu_percent
}

#[tokio::test(flavor = "multi_thread")]
async fn use_is_seen_and_counted_by_unit() {
    let Some(mut node) = Node::start(&["1g.10gb@0"], SHARED).await else {
        return;
    };
    // A MIG slice, and two shares of another GPU.
    node.want(1, &["1g.10gb@0+1"]);
    node.want(2, &["1/500/1000,time-slice"]);
    node.want(3, &["1/250/1000,time-slice"]);
    for job in 1..=3 {
        node.phase(job, v1::ObservedPhase::Ready).await;
    }
    let own = node.pid(2).await;
    busy(&node, &format!("1 40 {own}\n"));
    let seen = node
        .observed("the share's work is its own", |seen| {
            gpu_percent(seen, 2) == Some(40)
                && of(seen, 2).is_some_and(|one| one.uses.iter().any(|used| used.busy > 0))
                && of(seen, 3).is_some_and(|one| one.uses.iter().any(|used| used.measured > 0))
                && of(seen, 1).is_some_and(|one| one.seen_for_ms.is_some_and(|time| time > 0))
        })
        .await;
    assert_eq!(gpu_percent(&seen, 3), Some(0), "the other's is not");
    let idle = of(&seen, 3).expect("seen");
    assert!(idle.uses.iter().all(|used| used.busy == 0), "{idle:?}");
    assert_eq!(idle.gpu_ago_ms, None);
    // 40 % of a GPU is more than the half that is held: less than all of it.
    let used = &of(&seen, 2).expect("seen").uses[0];
    assert_eq!(used.model, "NVIDIA H100 80GB HBM3");
    assert!(used.busy <= used.measured, "{used:?}");
    let slice = of(&seen, 1).expect("seen");
    assert_eq!(
        (slice.gpu_percent, slice.uses.len()),
        (None, 0),
        "slices are not measured"
    );
    assert!(slice.cpu_percent.is_some() || slice.seen_for_ms.is_some());

    // It stops: how long ago that was grows, what was counted stays.
    busy(&node, "");
    let ago = |seen: &v1::Observed| of(seen, 2).and_then(|one| one.gpu_ago_ms);
    let rests = node
        .observed("the share rests", |seen| {
            gpu_percent(seen, 2) == Some(0) && ago(seen).is_some_and(|ago| ago > 500)
        })
        .await;
    let counted = of(&rests, 2).expect("seen").uses[0].busy;
    assert!(counted >= used.busy);

    // A new agent counts anew, and says so.
    let since = of(&rests, 2).expect("seen").counted_since;
    node.kill_agent();
    node.start_agent();
    let anew = node
        .observed("a new agent has looked", |seen| {
            of(seen, 2).is_some_and(|one| one.counted_since > since && one.seen_for_ms > Some(0))
        })
        .await;
    assert_eq!(ago(&anew), None, "what was before it, it does not know");
    node.down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_gpu_is_as_busy_as_its_driver_says() {
    let Some(mut node) = Node::start(&[], "").await else {
        return;
    };
    node.want(1, &["1/"]);
    node.phase(1, v1::ObservedPhase::Ready).await;
    node.observed("it rests", |seen| gpu_percent(seen, 1) == Some(0))
        .await;
    busy(&node, "1 97\n");
    node.observed("it works", |seen| {
        gpu_percent(seen, 1) == Some(97)
            && of(seen, 1).is_some_and(|one| one.uses.iter().any(|used| used.busy > 0))
    })
    .await;
    node.down().await;
}
