//! The users' API: what a client says of the session it wants.

use carrel_core::model::resources::ResourceRequest;
use carrel_core::model::session::Mount;
use carrel_proto::v1;
use prost::Message;

use crate::Target;

/// A request for a session.
pub const REQUESTS: Target = Target {
    name: "request",
    run: request,
    seeds: || {
        let spec = v1::SessionSpec {
            resources: Some(v1::ResourceRequest {
                nodes: 2,
                gpus_per_node: 4,
                gpu_model: "h100".into(),
                nvlink: true,
                cpus_per_node: 16,
                memory_bytes_per_node: 64 << 30,
                exclusive: true,
                all_memory: true,
                unit: Some(v1::GpuUnitRequest {
                    unit: Some(v1::gpu_unit_request::Unit::MigProfile("1g.10gb".into())),
                }),
                gpu_memory_bytes: 10 << 30,
                constraints: Some(v1::NodeConstraints {
                    nodelist: "gpu[01-16,20],r[1-2]n[1-2]".into(),
                    exclude: "gpu7".into(),
                    features: "ib&(rack1|rack2)".into(),
                    switches: 1,
                    segment: 2,
                    contiguous: true,
                }),
                patience: Some(v1::Patience {
                    nvlink_ms: Some(600_000),
                    switches_ms: None,
                }),
                more: vec![v1::ResourceRequest {
                    nodes: 1,
                    ..v1::ResourceRequest::default()
                }],
            }),
            image: "nvcr.io/nvidia/pytorch:24.05-py3".into(),
            ..v1::SessionSpec::default()
        };
        let open = v1::OpenSessionRequest {
            name: "dev".into(),
            spec: Some(spec),
            ..v1::OpenSessionRequest::default()
        };
        vec![open.encode_to_vec()]
    },
};

fn request(data: &[u8]) {
    let Ok(open) = v1::OpenSessionRequest::decode(data) else {
        return;
    };
    let Some(spec) = open.spec else { return };
    for mount in spec.mounts {
        let mount = Mount::from(mount);
        assert_eq!(Mount::from(v1::Mount::from(&mount)), mount);
    }
    if let Some(Ok(request)) = spec.resources.map(ResourceRequest::try_from) {
        let again = ResourceRequest::try_from(v1::ResourceRequest::from(&request));
        assert_eq!(again, Ok(request));
    }
}
