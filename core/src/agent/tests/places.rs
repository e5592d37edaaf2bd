//! GPUs are not what they were: another UUID stands in a place, a GPU is gone, MIG mode was switched.

use super::*;
use crate::model::gpu::Mig;
use crate::model::gpu_unit::{GpuUnit, Slice};

/// The host, each GPU with an address and a device number.
fn host() -> Inventory {
    let mut host = inventory();
    for gpu in &mut host.gpus {
        gpu.pci_address = format!("00000000:{:02X}:00.0", 16 + gpu.index);
        gpu.minor = Some(gpu.index);
    }
    host
}

fn rig() -> Rig {
    let mut rig = Rig::new();
    look(&mut rig, host());
    rig
}

fn look(rig: &mut Rig, host: Inventory) {
    rig.input(Input::Inventory(Box::new(host)));
}

/// The host, its GPU 0 with the UUID "GPU-9".
fn swapped() -> Inventory {
    let mut host = host();
    host.gpus[0].uuid = uuid(9);
    host
}

const WHY: &str = "it was GPU-0 and is GPU-9: job 1 goes on, and until its end nothing else is placed there";

#[test]
fn a_place_is_its_jobs_whatever_stands_there() {
    let by_minor_only = |mut host: Inventory| {
        for gpu in &mut host.gpus {
            gpu.pci_address.clear();
        }
        host
    };
    let moved = |mut host: Inventory| {
        // The board is elsewhere, and has its device node.
        host.gpus[0].pci_address = "00000000:77:00.0".into();
        host
    };
    for change in [|host| host, by_minor_only, moved] {
        let mut rig = rig();
        rig.run(&job(1, &[0, 1]));
        look(&mut rig, change(swapped()));
        let told = rig.agent.inventory();
        assert_eq!(
            told.gpus[0].drained.as_deref(),
            Some(WHY),
            "the broker places nothing there"
        );
        assert!(told.gpus[1..].iter().all(|gpu| gpu.drained.is_none()), "{told:?}");
        assert_eq!(told.gpu_note, "", "it is said at the GPU");

        // Whom the broker has placed there before it heard of it waits.
        let mut other = job(2, &[]);
        other.gpus = vec![uuid(9).into()];
        let actions = rig.want(vec![job(1, &[0, 1]), other.clone()], Vec::new());
        assert!(!starts(&actions, key(2)), "{actions:?}");
        let why = "waits for job 1 to release GPU 0, which was GPU-0";
        assert_eq!(rig.seen(key(2)).expect("reported").detail, why);
        assert_eq!(rig.phase(key(1)), Some(ObservedPhase::Ready), "it goes on");

        // Nor does the next agent start it.
        rig.restart(1_000, "boot-1");
        look(&mut rig, change(swapped()));
        rig.input(Input::World(vec![found(&job(1, &[0, 1]), FoundState::Running)]));
        let actions = rig.want(vec![job(1, &[0, 1]), other], Vec::new());
        assert!(!starts(&actions, key(2)), "{actions:?}");
        assert_eq!(rig.agent.inventory().gpus[0].drained.as_deref(), Some(WHY));

        // It is free when nothing of the job is left, which the GPU that is there now is asked about too.
        rig.event(key(1), ready());
        rig.event(key(1), exited(0));
        let asked = rig.agent.units_to_verify(key(1));
        assert_eq!(asked, [uuid(0), uuid(1), uuid(9)].map(GpuUnit::from));
        let actions = rig.event(key(1), released());
        assert!(starts(&actions, key(2)), "at once: {actions:?}");
        assert_eq!(rig.agent.inventory().gpus[0].drained, None);
    }
}

#[test]
fn a_ledger_without_places_is_read_and_completed() {
    let mut rig = rig();
    rig.run(&job(1, &[0]));
    let mut ledger = rig.ledger.clone().expect("a ledger");
    ledger.entries[0].holding.places.clear();
    rig.ledger = Some(ledger);
    rig.restart(1_000, "boot-1");
    rig.input(Input::World(vec![found(&job(1, &[0]), FoundState::Running)]));
    look(&mut rig, host());
    let places = |ledger: &Option<Ledger>| {
        ledger.as_ref().expect("a ledger").entries[0]
            .holding
            .places
            .clone()
    };
    assert_eq!(places(&rig.ledger)[&uuid(0)].pci_address, "00000000:10:00.0");
    look(&mut rig, swapped());
    assert_eq!(rig.agent.inventory().gpus[0].drained.as_deref(), Some(WHY));
}

#[test]
fn gpus_that_are_gone_are_named_with_who_holds_them() {
    let mut rig = rig();
    rig.run(&job(1, &[2, 3]));
    let without = |gone: &[usize]| {
        let mut host = host();
        let left: Vec<usize> = (0..4).filter(|gpu| !gone.contains(gpu)).collect();
        host.links = LinkMatrix::from_fn(left.len(), |_, _| Link::NvLink(18));
        host.gpus = left.iter().map(|gpu| host.gpus[*gpu].clone()).collect();
        host
    };
    look(&mut rig, without(&[1, 3]));
    assert_eq!(
        rig.agent.inventory().gpu_note,
        "2 of 4 GPUs are left: NVML does not list GPU 1 (GPU-1), GPU 3 (GPU-3, held by job 1) any more; see dmesg \
         on the node"
    );
    // The next agent knows of what a job holds.
    rig.restart(1_000, "boot-1");
    look(&mut rig, without(&[1, 3]));
    rig.input(Input::World(vec![found(&job(1, &[2, 3]), FoundState::Running)]));
    // The inventory of `Rig::unadopted` was whole: this agent has seen all of them.
    assert!(rig.agent.inventory().gpu_note.contains("held by job 1"));
    look(&mut rig, host());
    assert_eq!(rig.agent.inventory().gpu_note, "");
}

#[test]
fn jobs_under_which_mig_mode_was_switched_off_are_named_once() {
    let mut rig = rig();
    let mut in_mig_mode = host();
    let profile = crate::model::gpu::MigProfile {
        name: "1g.10gb".into(),
        id: 19,
        compute: 1,
        memory_bytes: 10 << 30,
        width: 1,
        starts: (0..7).collect(),
        most: 7,
    };
    in_mig_mode.gpus[0].mig = Some(Mig {
        profiles: vec![profile],
        instances: Vec::new(),
        recut: true,
    });
    look(&mut rig, in_mig_mode);
    let of_slices = |id: u64, starts: &[u8]| {
        let mut job = job(id, &[]);
        let unit = |start: &u8| GpuUnit {
            gpu: uuid(0),
            slice: Slice::Mig {
                profile: "1g.10gb".into(),
                start: *start,
                width: 1,
            },
        };
        job.gpus = starts.iter().map(unit).collect();
        job
    };
    let jobs = [of_slices(6, &[0, 1]), of_slices(7, &[2]), of_slices(30, &[3])];
    rig.want(jobs.to_vec(), Vec::new());
    for job in &jobs {
        rig.event(job.key, ready());
    }
    look(&mut rig, host());
    assert_eq!(
        rig.agent.inventory().gpu_note,
        "GPU 0 is not in MIG mode any more, and was given in slices: jobs 6, 7, 30 go on, and until their end nothing \
         else is placed there"
    );
}
