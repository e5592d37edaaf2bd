//! What is done in jobs is looked at, and counted.

use super::*;
use crate::model::activity::{Activity, HostUse, Signals, Used};
use crate::model::gpu_unit::{GpuUnit, Sharing, Slice};

const LOOK: u64 = 15_000;

fn rig() -> (Rig, DesiredJob) {
    let mut rig = Rig::new();
    let job = job(1, &[0, 1]);
    rig.run(&job);
    (rig, job)
}

fn whole(index: u32, gpu: GpuReading) -> (GpuUnit, GpuReading) {
    (uuid(index).into(), gpu)
}

fn look(rig: &mut Rig, reading: Reading) -> Vec<Action> {
    rig.pass(LOOK);
    rig.input(Input::Measured(vec![(key(1), reading)]))
}

fn said(rig: &mut Rig) -> Activity {
    let observed = rig.agent.observed(rig.now);
    observed.activity[&key(1)].clone()
}

/// So many seconds of CPU time, GPUs at rest.
fn at_rest(cpu_us: u64) -> Reading {
    Reading {
        cpu_us: Some(cpu_us),
        gpus: vec![whole(0, GpuReading::Busy(0)), whole(1, GpuReading::Busy(0))],
        ..Reading::default()
    }
}

#[test]
fn each_sign_of_use_is_told_from_rest() {
    let (mut rig, _) = rig();
    assert!(
        rig.agent.observed(rig.now).activity.is_empty(),
        "nobody has looked yet"
    );
    look(&mut rig, at_rest(0));
    look(&mut rig, at_rest(100_000));
    let seen = said(&mut rig).seen.expect("seen");
    assert_eq!((seen.for_ms, seen.ago_ms), (LOOK, Signals::default()));
    assert_eq!((seen.gpu_percent, seen.cpu_percent), (Some(0), Some(0)));

    // The busiest of its GPUs counts.
    let mut reading = at_rest(200_000);
    reading.gpus[1].1 = GpuReading::Busy(97);
    look(&mut rig, reading);
    // A tenth of one thread's time.
    look(&mut rig, at_rest(200_000 + LOOK * 100));
    let mut reading = at_rest(200_000 + LOOK * 100);
    (reading.input_ago_ms, reading.connection_ago_ms) = (Some(2_000), Some(7_000));
    look(&mut rig, reading);
    let seen = said(&mut rig).seen.expect("seen");
    assert_eq!(
        seen.ago_ms,
        Signals {
            gpu: Some(2 * LOOK),
            cpu: Some(LOOK),
            input: Some(2_000),
            connection: Some(7_000),
        }
    );
    // carrel-init begins anew and has forgotten: what was known stays.
    look(&mut rig, at_rest(200_000 + LOOK * 100));
    let seen = said(&mut rig).seen.expect("seen");
    assert_eq!(seen.ago_ms.input, Some(LOOK + 2_000));
}

#[test]
fn where_no_time_is_measured_changes_of_memory_are_use() {
    let (mut rig, _) = rig();
    let slice = |bytes| Reading {
        cpu_us: Some(0),
        gpus: vec![whole(0, GpuReading::Memory(bytes))],
        ..Reading::default()
    };
    look(&mut rig, slice(0));
    look(&mut rig, slice(0));
    let activity = said(&mut rig);
    assert_eq!(activity.seen.expect("seen").ago_ms.gpu, None);
    assert_eq!(activity.seen.expect("seen").gpu_percent, None);
    look(&mut rig, slice(1 << 30));
    look(&mut rig, slice(1 << 30));
    let activity = said(&mut rig);
    assert_eq!(activity.seen.expect("seen").ago_ms.gpu, Some(LOOK));
    assert!(
        activity.counter.by_model.is_empty(),
        "not measured is not nothing"
    );
}

#[test]
fn what_cannot_be_told_is_use() {
    let (mut rig, _) = rig();
    let reading = Reading {
        cpu_us: None,
        gpus: vec![whole(0, GpuReading::Unknown)],
        ..Reading::default()
    };
    look(&mut rig, reading);
    let ago = said(&mut rig).seen.expect("seen").ago_ms;
    assert_eq!((ago.gpu, ago.cpu), (Some(0), Some(0)));
}

#[test]
fn a_gap_is_not_rest() {
    let (mut rig, _) = rig();
    for _ in 0..10 {
        look(&mut rig, at_rest(0));
    }
    assert_eq!(said(&mut rig).seen.expect("seen").for_ms, 9 * LOOK);
    rig.pass(91_000);
    assert_eq!(said(&mut rig).seen, None, "nobody looks any more");
    look(&mut rig, at_rest(0));
    let seen = said(&mut rig).seen.expect("seen");
    assert_eq!((seen.for_ms, seen.ago_ms), (0, Signals::default()));
}

#[test]
fn use_of_gpus_adds_up_by_model() {
    let (mut rig, _) = rig();
    let busy = |first, second| Reading {
        gpus: vec![
            whole(0, GpuReading::Busy(first)),
            (
                GpuUnit {
                    gpu: uuid(1),
                    slice: Slice::Share {
                        milli: 250,
                        sharing: Sharing::TimeSlice,
                    },
                },
                second,
            ),
        ],
        ..Reading::default()
    };
    // The first look says nothing of the time before it.
    look(&mut rig, busy(100, GpuReading::Busy(10)));
    assert!(said(&mut rig).counter.by_model.is_empty());
    look(&mut rig, busy(50, GpuReading::Busy(10)));
    look(&mut rig, busy(0, GpuReading::Unknown));
    let counter = said(&mut rig).counter;
    let expected = Used {
        busy: LOOK * 600,
        measured: LOOK * (1_000 + 250 + 1_000),
    };
    assert_eq!(counter.by_model.values().copied().collect::<Vec<_>>(), [expected]);
    // Nothing is counted of a gap, and nothing is lost.
    rig.pass(200_000);
    look(&mut rig, busy(100, GpuReading::Busy(100)));
    assert_eq!(said(&mut rig).counter, counter);
}

/// Whoever is about to be ended and works again is not left waiting for the next report.
#[test]
fn use_after_a_warning_is_reported_at_once() {
    let (mut rig, job) = rig();
    look(&mut rig, at_rest(0));
    assert!(!look(&mut rig, at_rest(0)).contains(&Action::Report));
    let mut reading = at_rest(0);
    reading.input_ago_ms = Some(1);
    assert!(!look(&mut rig, reading.clone()).contains(&Action::Report));
    rig.want(
        vec![DesiredJob {
            idle_ends: Some(Timestamp(rig.now.wall.0 + 60_000)),
            ..job
        }],
        Vec::new(),
    );
    assert!(!look(&mut rig, at_rest(0)).contains(&Action::Report));
    assert!(look(&mut rig, reading).contains(&Action::Report));
}

#[test]
fn a_new_agent_knows_nothing_of_what_was() {
    let (mut rig, job) = rig();
    look(&mut rig, at_rest(0));
    look(&mut rig, at_rest(0));
    let before = said(&mut rig).counter.since;
    rig.pass(LOOK);
    rig.restart(LOOK, "boot-1");
    rig.input(Input::World(vec![found(&job, FoundState::Running)]));
    assert!(rig.agent.observed(rig.now).activity.is_empty());
    look(&mut rig, at_rest(0));
    let activity = said(&mut rig);
    assert!(activity.counter.since > before);
    assert_eq!(activity.seen.expect("seen").for_ms, 0);
}

/// CPU time and memory are told of as they are seen, without a report of their own, and to the end.
#[test]
fn what_a_job_uses_of_its_host_is_told_to_its_end() {
    let (mut rig, _) = rig();
    let used = |user_us, memory_bytes| HostUse {
        user_us,
        system_us: 7,
        memory_bytes,
        peak_bytes: memory_bytes,
    };
    let see = |rig: &mut Rig, host| rig.input(Input::HostUse(vec![(key(1), host), (key(9), host)]));
    assert_eq!(see(&mut rig, HostUse::default()), []);
    assert!(
        rig.agent.observed(rig.now).activity.is_empty(),
        "nothing is counted here"
    );
    assert_eq!(see(&mut rig, used(10, 500)), []);
    assert_eq!(see(&mut rig, used(20, 300)), []);
    let activity = said(&mut rig);
    assert_eq!(
        (activity.host.cpu_us(), activity.host.peak_bytes),
        (Some(27), 500)
    );
    // It was seen, but not whether somebody uses it.
    assert_eq!((activity.seen, activity.counter.since), (None, 0));
    look(&mut rig, at_rest(0));
    assert_eq!(said(&mut rig).host.peak_bytes, 500);
    // What it had last comes with its end, in the same report.
    rig.event(key(1), ContainerEvent::Used(used(40, 0)));
    assert!(rig.event(key(1), exited(0)).contains(&Action::Report));
    let host = said(&mut rig).host;
    assert_eq!(
        (host.cpu_us(), host.memory_bytes, host.peak_bytes),
        (Some(47), 0, 500)
    );
    rig.event(key(1), ContainerEvent::Used(used(50, 0)));
    rig.event(key(1), released());
    assert_eq!(rig.phase(key(1)), Some(ObservedPhase::Released));
    assert_eq!(said(&mut rig).host.cpu_us(), Some(57));
    // Of a container that is gone nothing more is seen.
    see(&mut rig, used(90, 900));
    assert_eq!(said(&mut rig).host.peak_bytes, 500);
}
