//! What a pass knows not to fit does not fit.

use proptest::prelude::*;

use super::*;
use crate::broker::unfit::Unfit;
use crate::model::constraints::Constraints;
use crate::model::ids::{PartitionName, QosName};
use crate::model::job::JobKind;
use crate::placement::{Assume, Reserve, fits};
use crate::queue::LineKey;

fn request() -> impl Strategy<Value = ResourceRequest> {
    let unit = prop_oneof![
        4 => Just(UnitRequest::Whole),
        1 => (1..=1000_u16).prop_map(|milli| UnitRequest::Share { milli, sharing: None }),
        1 => Just(UnitRequest::Mig("3g.40gb".into())),
    ];
    let constraints = prop_oneof![
        3 => Just(Constraints::default()),
        1 => Just(Constraints { contiguous: true, ..Constraints::default() }),
    ];
    (
        1..=3_u32,
        0..=8_u32,
        unit,
        any::<bool>(),
        1..=104_u32,
        1..=1024_u64,
        constraints,
    )
        .prop_map(
            |(nodes, gpus_per_node, unit, nvlink, cpus_per_node, memory, constraints)| ResourceRequest {
                nodes,
                gpus_per_node,
                nvlink: nvlink && unit == UnitRequest::Whole,
                unit,
                cpus_per_node,
                memory_bytes_per_node: memory << 30,
                constraints,
                ..ResourceRequest::default()
            },
        )
}

fn line(request: &ResourceRequest) -> LineKey {
    let is_shared = matches!(request.unit, UnitRequest::Share { .. });
    LineKey {
        time_limit: Duration::from_hours(1),
        request: request.clone().into(),
        kind: JobKind::Batch,
        root: false,
        qos: QosName::normal(),
        partition: PartitionName::all(),
        reservation: None,
        owner: is_shared.then(|| "alice".parse().expect("a name")),
        alone: None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_known_not_to_fit_does_not(
        held in proptest::collection::vec(request(), 0..12),
        asked in proptest::collection::vec(request(), 1..60),
        keep in 0..=8_u32,
    ) {
        let reserve = Reserve { cpus: keep, memory_bytes: u64::from(keep) << 30 };
        let settings = Settings { reserve, ..settings() };
        let mut world = World::with(settings, &["n1", "pair1", "mig1"]);
        for (number, request) in held.into_iter().enumerate() {
            let spec = SessionSpec { request: request.into(), ..gpus(1) };
            // What can never be held is refused.
            world.handle(Input::OpenSession(caller("alice"), open(&format!("h{number}"), spec))).ok();
        }
        let hosts = &world.broker.state().hosts;
        let mut unfit = Unfit::default();
        for request in &asked {
            let line = line(request);
            let fits = fits(hosts, request, Assume::Now);
            let asked = unfit.asked(request, &line);
            prop_assert!(!(unfit.known(asked).now && fits), "{request:?}");
            if !fits {
                unfit.learn_now(asked);
                prop_assert!(unfit.known(asked).now);
            }
            let emptied = crate::placement::fits(hosts, request, Assume::Emptied);
            prop_assert_eq!(unfit.fits_when_free(asked, || emptied), emptied, "{:?}", request);
        }
    }
}
