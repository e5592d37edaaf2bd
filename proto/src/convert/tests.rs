use carrel_core::model::activity::{Activity, Counter, HostUse, Seen, Signals, Thresholds, Used};
use carrel_core::model::batch::BatchRun;
use carrel_core::model::cpus::Binding;
use carrel_core::model::gang_network::{RankNetwork, Reach};
use carrel_core::model::gpu::{GpuInfo, Inventory, NicInfo};
use carrel_core::model::ids::{Generation, Incarnation, JobId, JobKey, SessionId};
use carrel_core::model::job::{Containment, FenceReport};
use carrel_core::model::node::{
    Desired, DesiredJob, EndCause, Observed, ObservedJob, ObservedPhase, Peer, Tombstone,
};
use carrel_core::model::session::{ContainerOptions, EndSignal, Mount};
use carrel_core::model::time::Timestamp;
use carrel_core::model::topology::{Link, LinkMatrix};

use super::*;

fn gpu(index: u32) -> GpuInfo {
    GpuInfo {
        uuid: format!("GPU-{index}").parse().expect("a UUID"),
        index,
        model: "NVIDIA H100 80GB HBM3".into(),
        memory_bytes: 80 << 30,
        pci_address: format!("00000000:{index:02X}:00.0"),
        numa_node: Some(0),
        minor: Some(index),
        mig: None,
        sharing: None,
        drained: (index == 1).then(|| "job 3 did not release it".into()),
        cpu_affinity: "0-51".into(),
        nvlink_version: 4,
    }
}

fn observed() -> Observed {
    Observed {
        node: "n1".parse().expect("a name"),
        boot_id: "boot".into(),
        seq: 9,
        accepted: Some((ClusterId("c1".into()), Incarnation { number: 2, nonce: 7 })),
        generation: 4,
        inventory: Inventory {
            cpus: 8,
            memory_bytes: 1 << 30,
            gpus: (0..3).map(gpu).collect(),
            links: LinkMatrix::from_fn(3, |i, _| if i == 0 { Link::NvLink(18) } else { Link::Phb }),
            nics: vec![NicInfo {
                name: "mlx5_0".into(),
                gpu_links: vec![Link::Pix, Link::Node, Link::Sys],
                numa_node: None,
            }],
            driver_version: "550".into(),
            os: "Debian".into(),
            gpu_note: String::new(),
            nvml_library: "/lib/nvml".into(),
            isolation: "all of it".into(),
            no_root: "an old kernel".into(),
            features: ["ib", "rack1"].map(str::to_owned).into(),
            nvlink_domain: "00112233-4455-6677-8899-aabbccddeeff.7".into(),
            reach: Reach {
                routed: true,
                host: false,
                address: Some([192, 0, 2, 1].into()),
                namespace: "boot net:[1]".into(),
            },
        },
        jobs: vec![ObservedJob {
            key: key(),
            session: Some(SessionId(5)),
            phase: ObservedPhase::Stopping,
            detail: "ends".into(),
            host_key: "ssh-ed25519 AAAA".into(),
            cause: Some(EndCause::Lease),
            exit_code: Some(143),
            gpus: vec!["GPU-0".parse().expect("a UUID")],
            cpus: 2,
            memory_bytes: 1 << 20,
            user: Some("alice".parse().expect("a name")),
            name: "dev".into(),
            deadline: Timestamp(1_000),
            cluster: ClusterId("c1".into()),
            connections: 1,
            rank: 1,
            nodes: 2,
            started: Timestamp(900),
            image: "busybox".into(),
            containment: Containment {
                fence: Some(FenceReport {
                    checks: 40,
                    micros: 900,
                }),
                oom_kills: 2,
            },
            binding: Binding {
                cpus: "0-3,48-51".parse().expect("a list"),
                mems: "0".parse().expect("a list"),
            },
            network: RankNetwork::Routed([10, 214, 0, 7].into()),
        }],
        version: "0.1.0".into(),
        images: vec!["busybox".into()],
        activity: [(key(), activity())].into(),
    }
}

fn activity() -> Activity {
    Activity {
        seen: Some(Seen {
            for_ms: 60_000,
            ago_ms: Signals {
                gpu: Some(0),
                cpu: None,
                input: Some(3),
                connection: Some(4),
            },
            gpu_percent: Some(97),
            cpu_percent: Some(340),
        }),
        counter: Counter {
            since: 7,
            by_model: [("NVIDIA H100".to_owned(), Used { busy: 5, measured: 9 })].into(),
        },
        host: HostUse {
            user_us: 11,
            system_us: 12,
            memory_bytes: 13,
            peak_bytes: 14,
        },
    }
}

fn key() -> JobKey {
    JobKey {
        job: JobId(3),
        generation: Generation::first_of(2),
    }
}

fn wanted() -> Desired {
    Desired {
        cluster: ClusterId("c1".into()),
        incarnation: Incarnation { number: 2, nonce: 7 },
        generation: 4,
        renews: 9,
        lease_ms: 600_000,
        jobs: vec![DesiredJob {
            key: key(),
            session: None,
            name: "dev".into(),
            owner: "alice".parse().expect("a name"),
            image: "busybox".into(),
            gpus: vec!["GPU-0".parse().expect("a UUID")],
            cpus: 2,
            memory_bytes: 1 << 20,
            rank: 1,
            peers: vec![Peer {
                rank: 1,
                node: "n1".parse().expect("a name"),
                host_name: "dev-1".into(),
                network: RankNetwork::Host,
                reach: Reach {
                    routed: true,
                    host: true,
                    address: Some([192, 0, 2, 1].into()),
                    namespace: "n1".into(),
                },
                slots: 8,
            }],
            gang_subnet: "10.9.0.0/24".parse().expect("a range"),
            env: vec![("SLURM_JOB_ID".into(), "3".into())],
            deadline: Timestamp(1_000),
            go: true,
            host_key: String::new(),
            host_principals: Vec::new(),
            workdir: "/work".into(),
            ready: true,
            container: ContainerOptions {
                mounts: vec![Mount {
                    source: "/data".into(),
                    target: "/mnt".into(),
                    read_only: true,
                }],
                root: true,
                end_signal: Some(EndSignal {
                    signal: 10,
                    before_s: 90,
                    shells: true,
                }),
                idle: None,
            },
            batch: Some(BatchRun {
                command: vec!["a b".into()],
                script: Some("#!/bin/sh\n".into()),
                stdout: "x-3.out".into(),
                stderr: String::new(),
                append: true,
            }),
            idle_ends: Some(Timestamp(2_000)),
            signalled: Some(carrel_core::model::job::Signalled {
                count: 2,
                sent: carrel_core::model::job::Sent {
                    signal: 12,
                    shells: false,
                    others: true,
                },
            }),
        }],
        tombstones: vec![Tombstone {
            key: key(),
            grace_ms: 10_000,
        }],
        removed_sessions: vec![SessionId(8)],
        thresholds: Thresholds {
            gpu_percent: 1,
            cpu_percent: 200,
        },
    }
}

fn alice() -> (v1::Identity, v1::SshAccess) {
    let identity = v1::Identity {
        name: "alice".into(),
        ..v1::Identity::default()
    };
    (identity, v1::SshAccess::default())
}

/// What one side says, the other understands, whole.
#[test]
fn states_come_back_as_sent() {
    let said = observed();
    assert_eq!(Observed::try_from(v1::Observed::from(&said)), Ok(said));
    let said = wanted();
    assert_eq!(
        Desired::try_from(desired(&said, |_| Some(alice()), Vec::new())),
        Ok(said)
    );
}

#[test]
fn a_job_of_an_unknown_user_is_left_out() {
    let message = desired(&wanted(), |_| None, Vec::new());
    assert!(message.jobs.is_empty());
    assert_eq!(message.tombstones.len(), 1);
}

/// A peer's nonsense is an error with the field's name, never a panic.
#[test]
fn nonsense_is_refused() {
    type Break = fn(&mut v1::Observed);
    let cases: [(&str, Break); 9] = [
        ("node name", |o| o.node = "no/name".into()),
        ("inventory", |o| o.inventory = None),
        ("incarnation", |o| o.incarnation = None),
        ("phase", |o| o.jobs[0].phase = 77),
        ("end cause", |o| o.jobs[0].cause = -1),
        ("cluster", |o| o.jobs[0].cluster = String::new()),
        ("GPU links", |o| {
            inventory(o).gpu_links.pop();
        }),
        ("NIC's GPU links", |o| inventory(o).nics[0].gpu_links.clear()),
        ("each UUID once", |o| inventory(o).gpus[1].uuid = "GPU-0".into()),
    ];
    for (what, spoil) in cases {
        let mut message = v1::Observed::from(&observed());
        spoil(&mut message);
        let error = Observed::try_from(message).expect_err(what).to_string();
        assert!(error.contains(what), "{what}: {error}");
    }
    let mut message = desired(&wanted(), |_| Some(alice()), Vec::new());
    message.jobs[0].env[0].name = "A=B".into();
    assert!(Desired::try_from(message).is_err());
}

fn inventory(observed: &mut v1::Observed) -> &mut v1::Inventory {
    observed.inventory.as_mut().expect("an inventory")
}

#[test]
fn long_texts_are_cut_at_a_character() {
    let cut = text("ü".repeat(MAX_TEXT));
    assert_eq!(cut.len(), MAX_TEXT);
}

/// Nodes that are counted by their features become components, and what makes no sense beside them is refused.
#[test]
fn nodes_counted_by_features_are_components() {
    let asked = |nodes, features: &str, switches| {
        let message = v1::ResourceRequest {
            nodes,
            gpus_per_node: 8,
            constraints: Some(v1::NodeConstraints {
                features: features.into(),
                exclude: "n9".into(),
                switches,
                ..v1::NodeConstraints::default()
            }),
            ..v1::ResourceRequest::default()
        };
        carrel_core::model::resources::ResourceRequest::try_from(message)
    };
    let request = asked(8, "[rack1*2&(rack2|rack3)*4]", 0).expect("a request");
    let components: Vec<_> = request
        .components()
        .map(|one| {
            let features = one.constraints.features.as_ref();
            assert_eq!((one.gpus_per_node, one.constraints.exclude.len()), (8, 1));
            (one.nodes, features.map(ToString::to_string).unwrap_or_default())
        })
        .collect();
    let expected = [(2, "rack1"), (4, "rack2|rack3"), (2, "")];
    assert_eq!(components, expected.map(|(nodes, text)| (nodes, text.to_owned())));
    for (nodes, features, switches, why) in [
        (5, "a*2&b*4", 0, "no more nodes"),
        (6, "a*2&b*4", 1, "--switches"),
        (9, "a&b&c&d&e&f&g&h&i*1", 0, "its count"),
        (9, "a*1&b*1&c*1&d*1&e*1&f*1&g*1&h*1&i*1", 0, "at most 8"),
    ] {
        let error = asked(nodes, features, switches).expect_err(features).to_string();
        assert!(error.contains(why), "{features}: {error}");
    }
}
