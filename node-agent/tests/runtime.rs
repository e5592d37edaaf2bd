//! Containers for real: containerd, runc, and a busybox as the image.

mod rig;

use std::os::unix::fs::MetadataExt;

use carrel_core::model::cpus::{Binding, CpuSet};
use carrel_core::model::ids::SessionId;
use carrel_core::model::time::Timestamp;
use carrel_node::cpus::Kernel;
use carrel_node::runtime::{BindMount, ContainerState, Exit, HostEntry, NetworkMode, Runtime, RuntimeEvent};
use rig::{PATIENCE, busybox_layer, cut_off, described_gpu, eventually, is_running, job, run_of, with_rig};

/// What a job's first process finds is the contract with carrel-init and with users: who it is, what it
/// may do, its limits, its files. The image has nothing but a busybox.
#[test]
fn process_1_finds_its_environment_limits_and_files() {
    with_rig(
        |_| {},
        |rig| async move {
            rig.import_busybox("tiny").await;
            let script = r#"
            set -e
            busybox grep -E '^(Uid|CapEff|CapBnd|CapAmb|NoNewPrivs|Seccomp):' /proc/1/status
            echo "env FOO=$FOO PATH=$PATH NV=$NVIDIA_VISIBLE_DEVICES"
            echo "host $(busybox hostname)"
            echo "nofile $(ulimit -n)"
            echo "memory $(busybox cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null)"
            echo "pids $(busybox cat /sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/pids.max 2>/dev/null)"
            echo "init $(busybox cat /.carrel/run/init.pb) $(busybox stat -c '%a %u' /.carrel/run /.carrel/run/init.pb | busybox tr '\n' ' ')"
            echo "program $(busybox stat -c '%a %u' /.carrel/bin/carrel-init)"
            busybox touch /.carrel/bin/x 2>/dev/null || echo "bin is read-only"
            echo "home $(busybox stat -c '%a %u %g' /home/alice)"
            echo "tmp $(busybox stat -c '%a' /tmp)"
            busybox grep -q '^alice:x:12345:12346:alice:/home/alice:' /etc/passwd && echo "passwd ok"
            busybox grep -q '^g12347:x:12347:alice$' /etc/group && echo "group ok"
            busybox grep -q '10.9.8.7.peer' /etc/hosts && echo "hosts ok"
            busybox ip link show lo | busybox grep -q "[<,]UP[,>]" && echo "lo is up"
            echo "data $(busybox cat /data/file)"
            echo "links $(busybox ls /sys/class/net)"
            echo "shm $(busybox df -m /dev/shm | busybox tail -n 1 | busybox awk '{print $2}')"
            busybox unshare -U busybox true 2>/dev/null || echo "no namespaces"
            exit 3
        "#;
            let data = rig.dir.join("data");
            std::fs::create_dir(&data).unwrap();
            std::fs::write(data.join("file"), "from the host").unwrap();
            let mut spec = job(1, "tiny", script);
            spec.env = vec![("FOO".into(), "bar".into())];
            spec.mounts = vec![BindMount {
                source: data.display().to_string(),
                target: "/data".into(),
                read_only: true,
            }];
            spec.hosts = vec![HostEntry {
                address: "10.9.8.7".into(),
                names: vec!["peer".into()],
            }];
            let mut events = rig.runtime.events();
            assert_eq!(events.next().await, RuntimeEvent::Resync);

            rig.runtime.create(&spec, &rig.progress()).await.unwrap();
            let output = rig.ended(spec.record.key).await;
            eprintln!("{output}");
            for expected in [
                "Uid:\t0",
                "CapEff:\t00000000000001c0",
                "CapBnd:\t00000000000001c0",
                "CapAmb:\t0000000000000000",
                "NoNewPrivs:\t1",
                "Seccomp:\t2",
                "env FOO=bar PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/.carrel/bin NV=void",
                "host job1",
                "memory 134217728",
                "pids 100",
                "init configuration 700 0 600 0",
                "program 755 0",
                "bin is read-only",
                "home 700 12345 12346",
                "tmp 1777",
                "passwd ok",
                "group ok",
                "hosts ok",
                "lo is up",
                "data from the host",
                "links lo",
                "shm 64",
                "no namespaces",
            ] {
                assert!(output.contains(expected), "{expected:?} is missing");
            }
            let key = spec.record.key;
            assert_eq!(events.next().await, RuntimeEvent::Exited { key, code: 3 });
            let Some(ContainerState::Ended(exit)) = rig.state(key).await else {
                panic!("it has ended");
            };
            assert_eq!(
                (exit.code, exit.out_of_memory, exit.command),
                (Some(3), false, false)
            );
            assert!(exit.host.cpu_us().is_some(), "{exit:?}");
            assert!(
                rig.runtime.create(&spec, &rig.progress()).await.is_err(),
                "what has run is not started again"
            );
            let removed = rig.runtime.remove(key).await.unwrap();
            assert_eq!((removed.code, removed.out_of_memory), (Some(3), false));
            assert!(removed.host.cpu_us() >= exit.host.cpu_us(), "{removed:?}");
            rig.assert_gone(key).await;
            assert_eq!(
                rig.runtime.remove(key).await.unwrap(),
                Exit::default(),
                "removing may be repeated"
            );
        },
    );
}

/// A restarted agent must find every container with all that it holds, and go on as before.
#[test]
fn a_second_runtime_adopts_what_the_first_started() {
    with_rig(
        |_| {},
        |rig| async move {
            rig.import_busybox("tiny").await;
            let mut spec = run_of(
                9,
                2,
                "tiny",
                "trap 'exit 7' TERM; while :; do busybox sleep 0.05; done",
            );
            rig.runtime.create(&spec, &rig.progress()).await.unwrap();
            rig.runtime
                .create(&spec, &rig.progress())
                .await
                .expect("a running container stays as it is");

            let second = Runtime::open(rig.options.clone()).await.unwrap();
            let found = second.list().await.unwrap();
            assert_eq!(found.len(), 1);
            assert!(is_running(&found[0]));
            assert_eq!(found[0].record, spec.record);
            assert_eq!(second.images().await.unwrap(), ["tiny"]);

            spec.record.deadline = Timestamp(2_000_000_000_000);
            second.update_record(&spec.record).await.unwrap();
            assert_eq!(
                rig.runtime.list().await.unwrap()[0].record.deadline,
                spec.record.deadline
            );

            let key = spec.record.key;
            let mut events = second.events();
            assert_eq!(events.next().await, RuntimeEvent::Resync);
            assert!(!second.cgroup_empty(key).await.unwrap());
            second.kill(key, libc::SIGTERM).await.unwrap();
            assert_eq!(events.next().await, RuntimeEvent::Exited { key, code: 7 });
            eventually("its cgroup is empty", || async {
                second.cgroup_empty(key).await.unwrap()
            })
            .await;
            assert_eq!(second.remove(key).await.unwrap().code, Some(7));
            rig.assert_gone(key).await;
        },
    );
}

/// Programs see the CPUs and the memory nodes that the container is bound to, and nothing more; a second agent
/// finds them in its record; its memory can be freed while it runs.
#[test]
fn a_container_has_the_cpus_that_it_is_bound_to() {
    with_rig(
        |_| {},
        |rig| async move {
            rig.import_busybox("tiny").await;
            let limits = rig.runtime.limits().expect("cgroups with cpusets");
            let usable = Kernel::default().usable(&limits);
            let mems = limits.mems.first().expect("a memory node");
            let script = "busybox grep -E '^(Cpus|Mems)_allowed_list' /proc/1/status; busybox nproc; busybox sleep 1000";
            for (number, cpu) in (20..).zip(usable.iter().take(2)) {
                let mut spec = job(number, "tiny", script);
                spec.record.binding = Binding {
                    cpus: CpuSet::from_iter([cpu]),
                    mems: CpuSet::from_iter([mems]),
                };
                let key = spec.record.key;
                rig.runtime.create(&spec, &rig.progress()).await.unwrap();
                let expected = format!("Cpus_allowed_list:\t{cpu}\nMems_allowed_list:\t{mems}\n1");
                eventually("it has said what it sees", || async {
                    rig.runtime.init_log(key, 9).lines().count() == 3
                })
                .await;
                assert_eq!(rig.runtime.init_log(key, 9), expected);
                let second = Runtime::open(rig.options.clone()).await.unwrap();
                let found = second.get(key).await.unwrap().expect("it is there");
                assert_eq!(found.record.binding, spec.record.binding);

                rig.runtime.free_memory(key).unwrap();
                let process = rig.runtime.processes(key).await.unwrap()[0];
                let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
                let line = |name: &str| {
                    status
                        .lines()
                        .find_map(|line| line.strip_prefix(name))
                        .map(str::to_owned)
                };
                assert_eq!(line("Mems_allowed_list:\t"), Some(limits.mems.to_string()));
                assert_eq!(line("Cpus_allowed_list:\t"), Some(cpu.to_string()));
            }
            for number in 20..22 {
                let key = job(number, "tiny", "").record.key;
                rig.runtime.remove(key).await.unwrap();
                rig.assert_gone(key).await;
            }
            rig.runtime
                .free_memory(job(20, "tiny", "").record.key)
                .expect("absent is fine");
        },
    );
}

/// An out-of-memory kill is named as such, by event and afterwards.
#[test]
fn running_out_of_memory_is_told() {
    with_rig(
        |_| {},
        |rig| async move {
            rig.import_busybox("tiny").await;
            let mut spec = job(
                3,
                "tiny",
                "x=$(busybox yes aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa | busybox head -c 300000000); echo survived",
            );
            spec.record.memory_bytes = 32 << 20;
            let key = spec.record.key;
            let mut events = rig.runtime.events();
            assert_eq!(events.next().await, RuntimeEvent::Resync);
            rig.runtime.create(&spec, &rig.progress()).await.unwrap();
            let mut seen = Vec::new();
            // The kernel may kill more than one process.
            while !seen
                .iter()
                .any(|event| matches!(event, RuntimeEvent::Exited { .. }))
            {
                seen.push(
                    tokio::time::timeout(PATIENCE, events.next())
                        .await
                        .expect("its end is told"),
                );
            }
            assert!(seen.contains(&RuntimeEvent::OutOfMemory { key }), "{seen:?}");
            assert!(
                seen.contains(&RuntimeEvent::Exited { key, code: 137 }),
                "{seen:?}"
            );
            assert!(!rig.ended(key).await.contains("survived"));
            let exit = rig.runtime.remove(key).await.unwrap();
            assert_eq!(
                (exit.code, exit.out_of_memory, exit.command),
                (Some(137), true, false)
            );
            // Its memory is gone, and the kernel's mark tells that it was all that it had.
            assert!((24 << 20..=33 << 20).contains(&exit.host.peak_bytes), "{exit:?}");
            rig.assert_gone(key).await;
        },
    );
}

/// Killing ends every process of a container, also those that ignore signals and have left process 1's session.
#[test]
fn removing_a_running_container_leaves_nothing() {
    with_rig(
        |_| {},
        |rig| async move {
            rig.import_busybox("tiny").await;
            let before = rig.snapshots();
            let script = "trap '' TERM HUP; busybox setsid busybox sleep 1000 & busybox sleep 1000 & while :; do busybox sleep 1; done";
            let spec = job(4, "tiny", script);
            let key = spec.record.key;
            rig.runtime.create(&spec, &rig.progress()).await.unwrap();
            eventually("three processes run", || async {
                rig.runtime.processes(key).await.unwrap().len() >= 3
            })
            .await;
            let run_dir = std::fs::metadata(rig.runtime.run_dir(key)).unwrap();
            assert_eq!((run_dir.mode() & 0o777, run_dir.uid()), (0o700, 0));
            let exit = rig.runtime.remove(key).await.unwrap();
            assert_eq!(exit.code, Some(137));
            rig.assert_gone(key).await;
            eventually("its own layer is deleted", || async { rig.snapshots() == before }).await;
            rig.runtime
                .kill(key, libc::SIGKILL)
                .await
                .expect("killing what is gone is fine");
        },
    );
}

/// A session's files survive from run to run, and only there.
#[test]
fn a_sessions_changes_are_kept_until_it_is_removed() {
    with_rig(
        |_| {},
        |rig| async move {
            rig.import_busybox("tiny").await;
            let read = "busybox cat /kept 2>/dev/null || echo nothing";
            let write = run_of(5, 10, "tiny", "echo precious > /kept");
            assert_eq!(rig.run(&write).await.0, Some(0));
            assert_eq!(rig.run(&run_of(5, 11, "tiny", read)).await.1, "precious");
            assert_eq!(
                rig.run(&run_of(6, 12, "tiny", read)).await.1,
                "nothing",
                "another session has its own"
            );
            assert_eq!(rig.run(&job(13, "tiny", read)).await.1, "nothing");

            let holder = run_of(5, 14, "tiny", "busybox sleep 1000");
            rig.runtime.create(&holder, &rig.progress()).await.unwrap();
            let both = rig
                .runtime
                .create(&run_of(5, 15, "tiny", read), &rig.progress())
                .await
                .unwrap_err();
            assert!(both.to_string().contains("still in use"), "{both:#}");
            assert!(
                rig.runtime.remove_session(SessionId(5)).await.is_err(),
                "not under a live container"
            );
            rig.runtime.remove(holder.record.key).await.unwrap();

            rig.runtime.remove_session(SessionId(5)).await.unwrap();
            rig.runtime
                .remove_session(SessionId(5))
                .await
                .expect("removing may be repeated");
            assert_eq!(rig.run(&run_of(5, 16, "tiny", read)).await.1, "nothing");

            let other = rig.dir.join("other.tar");
            std::fs::write(&other, busybox_layer(&[("other", b"image")])).unwrap();
            rig.runtime
                .import_image(&other, "other", &rig.progress())
                .await
                .unwrap();
            assert_eq!(
                rig.run(&run_of(5, 17, "tiny", "echo precious > /kept")).await.0,
                Some(0)
            );
            assert!(!rig.was_told("image has changed"));
            assert_eq!(rig.run(&run_of(5, 18, "other", read)).await.1, "nothing");
            assert!(rig.was_told("image has changed"), "the loss is said");
        },
    );
}

/// The agent may die at any point of a start: what it then finds can be started again, or cleared.
#[test]
fn a_start_that_was_cut_off_can_be_repeated_or_cleared() {
    with_rig(
        |_| {},
        |rig| async move {
            rig.import_busybox("tiny").await;
            let before = rig.snapshots();
            for (number, point) in [(20, "preparing files"), (21, "starting container"), (22, "")] {
                for again in [true, false] {
                    let spec = job(number, "tiny", "echo ran; busybox sleep 1000");
                    let key = spec.record.key;
                    // Time passes between the calls to containerd: each of several moments is a cut.
                    for polls in [0, 1, 3, 6, 12] {
                        cut_off(&rig, &spec, point, polls).await;
                    }
                    if again {
                        rig.runtime.create(&spec, &rig.progress()).await.unwrap();
                        eventually("it ran", || async { rig.runtime.init_log(key, 9) == "ran" }).await;
                    }
                    rig.runtime.remove(key).await.unwrap();
                    rig.assert_gone(key).await;
                    eventually("its own layer is deleted", || async { rig.snapshots() == before }).await;
                }
            }
            assert_eq!(rig.runtime.leftovers().await.unwrap(), []);
        },
    );
}

/// containerd's death ends no container, and costs the agent no event for good.
#[test]
fn containers_and_events_survive_containerds_death() {
    with_rig(
        |_| {},
        |rig| async move {
            rig.import_busybox("tiny").await;
            let spec = job(
                30,
                "tiny",
                "while ! [ -e /.carrel/run/go ]; do busybox sleep 0.05; done; exit 4",
            );
            let key = spec.record.key;
            let mut events = rig.runtime.events();
            assert_eq!(events.next().await, RuntimeEvent::Resync);
            rig.runtime.create(&spec, &rig.progress()).await.unwrap();

            let pid = std::fs::read_to_string(rig.dir.join("s/containerd/pid")).unwrap();
            let pid = nix::unistd::Pid::from_raw(pid.trim().parse().unwrap());
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
            let next = tokio::time::timeout(PATIENCE, events.next()).await.unwrap();
            assert_eq!(next, RuntimeEvent::Resync, "the interruption is told");
            assert!(is_running(&rig.runtime.list().await.unwrap()[0]));
            std::fs::write(rig.runtime.run_dir(key).join("go"), "").unwrap();
            let next = tokio::time::timeout(PATIENCE, events.next()).await.unwrap();
            assert_eq!(next, RuntimeEvent::Exited { key, code: 4 });
            assert_eq!(rig.runtime.remove(key).await.unwrap().code, Some(4));
            rig.assert_gone(key).await;
        },
    );
}

/// The real process 1 comes up with what it is given here: its binary runs in an image that has nothing,
/// reads its configuration, binds its sockets, and becomes the user.
#[test]
fn carrel_init_runs_as_process_1() {
    let init = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../target/x86_64-unknown-linux-musl/debug/carrel-init"
    );
    if !std::path::Path::new(init).exists() {
        eprintln!("skipped: carrel-init is not built (./dev build)");
        return;
    }
    with_rig(
        |options| options.init_binary = init.into(),
        |rig| async move {
            rig.import_busybox("tiny").await;
            let mut spec = job(60, "tiny", "");
            spec.command = None;
            spec.init_config = prost::Message::encode_to_vec(&carrel_proto::v1::InitConfig {
                job: 60,
                generation: spec.record.key.generation.0,
                identity: Some(spec.identity.clone()),
                ..carrel_proto::v1::InitConfig::default()
            });
            let key = spec.record.key;
            rig.runtime.create(&spec, &rig.progress()).await.unwrap();
            for socket in ["ctl.sock", "ssh.sock"] {
                let path = rig.runtime.run_dir(key).join(socket);
                eventually(
                    &format!("{socket} takes connections; {}", rig.runtime.init_log(key, 20)),
                    || async { tokio::net::UnixStream::connect(&path).await.is_ok() },
                )
                .await;
            }
            let Some(ContainerState::Running { pid }) = rig.state(key).await else {
                panic!("it has ended")
            };
            eventually("it has become the user", || async {
                let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
                status.contains("Uid:\t12345\t12345\t12345\t12345")
                    && status.contains("CapEff:\t0000000000000000")
            })
            .await;
            rig.runtime.remove(key).await.unwrap();
            rig.assert_gone(key).await;
        },
    );
}

/// A fence that leaks ends the start and says where: here another GPU has the device number of the job's own.
/// With numbers of their own, the same container stands the trial.
#[test]
fn a_fence_that_leaks_fails_the_start() {
    let init = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../target/x86_64-unknown-linux-musl/debug/carrel-init"
    );
    if !std::path::Path::new(init).exists() {
        eprintln!("skipped: carrel-init is not built (./dev build)");
        return;
    }
    with_rig(
        |options| options.init_binary = init.into(),
        |rig| async move {
            rig.import_busybox("tiny").await;
            std::fs::create_dir(rig.dir.join("cdi")).unwrap();
            for (number, minor, leaks) in [(61, 5, true), (62, 6, false)] {
                let device = |gpu: u32, minor: u32| {
                    let node =
                        format!(r#"{{"path":"/dev/nvidia{gpu}","type":"c","major":60,"minor":{minor}}}"#);
                    let uuid = described_gpu(gpu).uuid;
                    format!(r#"{{"name":"{uuid}","containerEdits":{{"deviceNodes":[{node}]}}}}"#)
                };
                let devices = [device(5, 5), device(6, minor)].join(",");
                let text =
                    format!(r#"{{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[{devices}]}}"#);
                std::fs::write(rig.dir.join("cdi/described.json"), text).unwrap();
                let mut spec = job(number, "tiny", "");
                spec.command = None;
                spec.gpus = vec![described_gpu(5).into()];
                spec.others = vec![described_gpu(6)];
                spec.record.gpus = spec
                    .gpus
                    .iter()
                    .map(|given| given.gpu.uuid.clone().into())
                    .collect();
                spec.init_config = prost::Message::encode_to_vec(&carrel_proto::v1::InitConfig {
                    job: number,
                    identity: Some(spec.identity.clone()),
                    ..carrel_proto::v1::InitConfig::default()
                });
                let key = spec.record.key;
                rig.runtime.create(&spec, &rig.progress()).await.unwrap();
                if leaks {
                    rig.ended(key).await;
                    // The shim writes the log, and may be a moment behind.
                    eventually("it says where", || async {
                        let said = rig.runtime.init_log(key, 20);
                        said.contains("the fence leaks: the device of GPU 6 is not refused")
                    })
                    .await;
                } else {
                    let log = || rig.runtime.init_log(key, 20);
                    eventually(&format!("its server serves; {}", log()), || async {
                        log().contains("serving")
                    })
                    .await;
                    let Some(ContainerState::Running { pid }) = rig.state(key).await else {
                        panic!("it has ended: {}", log())
                    };
                    let left = std::path::PathBuf::from(format!("/proc/{pid}/root/dev/carrel-fence"));
                    assert!(!left.exists(), "the trial's nodes are taken away");
                }
                rig.runtime.remove(key).await.unwrap();
                rig.assert_gone(key).await;
            }
        },
    );
}

/// A container sees the GPUs that it was given, under the names that programs look for, and no other.
#[test]
fn only_the_jobs_gpus_are_in_the_container() {
    with_rig(
        |_| {},
        |rig| async move {
            rig.import_busybox("tiny").await;
            // The form that `carrel_node::cdi` documents for described hosts.
            let device = |index: u32| {
                let node = format!(
                    r#"{{"path":"/dev/nvidia{index}","type":"c","major":1,"minor":3,"fileMode":438}}"#
                );
                let uuid = described_gpu(index).uuid;
                format!(r#"{{"name":"{uuid}","containerEdits":{{"deviceNodes":[{node}]}}}}"#)
            };
            let devices: Vec<_> = (0..8).map(device).collect();
            let shared = r#"{"deviceNodes":[{"path":"/dev/nvidiactl","type":"c","major":1,"minor":3,"fileMode":438}]}"#;
            let spec = format!(
                r#"{{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[{}],"containerEdits":{shared}}}"#,
                devices.join(",")
            );
            std::fs::create_dir(rig.dir.join("cdi")).unwrap();
            std::fs::write(rig.dir.join("cdi/described.json"), spec).unwrap();

            let mut spec = job(
                40,
                "tiny",
                "busybox ls /dev | busybox grep nvidia; echo x > /dev/nvidia5 && echo \"$CUDA_VISIBLE_DEVICES\"; busybox mknod /n c 195 0 2>&1",
            );
            spec.gpus = vec![described_gpu(5).into(), described_gpu(2).into()];
            spec.record.gpus = spec
                .gpus
                .iter()
                .map(|given| given.gpu.uuid.clone().into())
                .collect();
            let (_, output) = rig.run(&spec).await;
            let uuids = "GPU-00000005-1111-2222-3333-444444444444,GPU-00000002-1111-2222-3333-444444444444";
            assert!(
                output.starts_with(&format!("nvidia2\nnvidia5\nnvidiactl\n{uuids}\n")),
                "{output}"
            );
            assert!(output.contains("not permitted"), "{output}");
            let env = rig.runtime.gpu_environment(&spec.gpus).await.unwrap();
            assert!(
                env.contains(&("CUDA_VISIBLE_DEVICES".into(), uuids.into())),
                "{env:?}"
            );

            let unknown = rig
                .runtime
                .gpu_environment(&[described_gpu(9).into()])
                .await
                .unwrap_err();
            assert!(
                format!("{unknown:#}").contains("no CDI specification"),
                "{unknown:#}"
            );
        },
    );
}

/// A job reaches out through NAT and is not reached by its neighbours; its address comes back.
#[test]
fn jobs_are_joined_by_nat_and_kept_apart() {
    with_rig(
        |options| options.network = NetworkMode::Nat,
        |rig| async move {
            rig.import_busybox("tiny").await;
            let server = job(
                50,
                "tiny",
                "busybox ip -4 -o addr show eth0; busybox nc -l -p 8000 -e busybox echo reached",
            );
            rig.runtime.create(&server, &rig.progress()).await.unwrap();
            let key = server.record.key;
            eventually("it has an address", || async {
                rig.runtime.init_log(key, 9).contains("inet ")
            })
            .await;
            let log = rig.runtime.init_log(key, 9);
            let address = log
                .split("inet ")
                .nth(1)
                .unwrap()
                .split('/')
                .next()
                .unwrap()
                .to_owned();
            let hosts = std::fs::read_to_string(rig.runtime.run_dir(key).parent().unwrap().join("etc/hosts"))
                .unwrap();
            assert!(hosts.contains(&format!("{address}\tjob50\n")), "{hosts}");

            let connect = format!(
                "busybox ip route get 192.0.2.1; busybox nc -w 2 {address} 8000 </dev/null 2>&1 && echo got through; echo done"
            );
            let (_, output) = rig.run(&job(51, "tiny", &connect)).await;
            assert!(output.contains("dev eth0") && output.contains("done"), "{output}");
            assert!(!output.contains("got through"), "{output}");

            rig.runtime.remove(key).await.unwrap();
            rig.assert_gone(key).await;
            let leases = std::fs::read_dir(rig.dir.join("s/cni/carrel")).unwrap();
            let leases: Vec<_> = leases
                .map(|entry| entry.unwrap().file_name())
                .filter(|name| name.to_string_lossy().starts_with("10."))
                .collect();
            assert!(leases.is_empty(), "{leases:?}");
        },
    );
}
