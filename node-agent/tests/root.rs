//! Containers whose user is root in them, by a user namespace.

mod rig;

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};

use carrel_node::runtime::{BindMount, ContainerSpec, ContainerState, RuntimeEvent, UserRanges, root_inside};
use carrel_proto::v1::InitConfig;
use nix::mount::{MsFlags, mount};
use prost::Message;
use rig::{PATIENCE, Rig, cut_off, described_gpu, eventually, is_running, job, run_of, with_rig};

/// What carrel-init keeps (keeper/privileges.rs).
const CAPABILITIES: &str = "CapEff:\t00000000800405fb";

fn as_root(mut spec: ContainerSpec) -> ContainerSpec {
    spec.root = true;
    spec
}

/// The user's home on the host, mounted.
fn with_home(rig: &Rig, mut spec: ContainerSpec) -> (ContainerSpec, PathBuf) {
    let home = rig.dir.join("home");
    fs::create_dir_all(&home).unwrap();
    chown(&home, Some(spec.identity.uid), Some(spec.identity.gid)).unwrap();
    spec.mounts = vec![BindMount {
        source: home.display().to_string(),
        target: spec.identity.home.clone(),
        read_only: false,
    }];
    (spec, home)
}

/// A busybox, and a file of user 33's.
async fn import(rig: &Rig) {
    let mut layer = tar::Builder::new(Vec::new());
    let busybox = fs::read("/bin/busybox").expect("install the package busybox-static");
    for (path, owner, bytes) in [("bin/busybox", 0, &busybox[..]), ("srv/data", 33, b"web")] {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o755);
        header.set_uid(owner);
        header.set_gid(owner);
        header.set_cksum();
        layer.append_data(&mut header, path, bytes).unwrap();
    }
    let path = rig.dir.join("image.tar");
    fs::write(&path, layer.into_inner().unwrap()).unwrap();
    rig.runtime
        .import_image(&path, "tiny", &rig.progress())
        .await
        .unwrap();
}

fn owner(path: impl AsRef<Path>) -> (u32, u32) {
    let path = path.as_ref();
    let metadata = fs::symlink_metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    (metadata.uid(), metadata.gid())
}

/// The image's files have their owners inside, root may do with them what root does, and in the home outside all of
/// it is the user's or nobody's. What a session keeps has the same owners with root and without.
#[test]
fn root_inside_is_the_user_outside() {
    with_rig(
        |_| {},
        |rig| async move {
            import(&rig).await;
            let script = r#"
            set -e
            echo "id $(busybox id -u):$(busybox id -g)"
            echo "map $(busybox cat /proc/self/uid_map | busybox tr -s ' ')"
            for path in / /bin/busybox /srv/data /etc /tmp /home/alice /etc/hosts; do
              echo "$path $(busybox stat -c '%u:%g' $path)"
            done
            echo more >>/srv/data && busybox chown 7:8 /srv/data
            echo new >/made && busybox chown 5 /made && busybox mkdir -m 700 /made.d
            echo 'web:x:33:33::/srv:/bin/sh' >>/etc/passwd
            echo '10.1.2.3 peer' >>/etc/hosts
            echo mine >/home/alice/mine && echo other >/home/alice/other && busybox chown 5:6 /home/alice/other
            busybox mknod /dev/x c 1 3 2>/dev/null || echo "no devices"
            busybox stat -c 'null %t:%T' /dev/null; echo >/dev/null
            echo done
        "#;
            let (spec, home) = with_home(&rig, as_root(run_of(5, 1, "tiny", script)));
            let (code, output) = rig.run(&spec).await;
            eprintln!("{output}");
            assert_eq!(code, Some(0), "{output}");
            let base = UserRanges::default().base;
            for expected in [
                "id 0:0".to_owned(),
                format!("map  0 12345 1\n 1 {} 65535", base + 1),
                "/ 0:0".into(),
                "/bin/busybox 0:0".into(),
                "/srv/data 33:33".into(),
                "/etc 0:0".into(),
                "/tmp 0:0".into(),
                "/home/alice 0:0".into(),
                "/etc/hosts 0:0".into(),
                "no devices".into(),
                "null 1:3".into(),
                "done".into(),
            ] {
                assert!(output.contains(&expected), "{expected:?} is missing");
            }
            assert_eq!(owner(home.join("mine")), (12_345, 12_346));
            assert_eq!(owner(home.join("other")), (base + 5, base + 6));
            rig.assert_gone(spec.record.key).await;
            assert_eq!(fs::read_dir(rig.dir.join("s/shifted")).unwrap().count(), 0);

            let look = "for path in /srv/data /made /made.d /bin/busybox; do busybox stat -c '%n %u:%g' $path; done; busybox tail -n 1 /srv/data";
            let seen = "/srv/data 7:8\n/made 5:0\n/made.d 0:0\n/bin/busybox 0:0\nwebmore";
            assert_eq!(rig.run(&run_of(5, 2, "tiny", look)).await.1, seen, "without root");
            assert_eq!(
                rig.run(&as_root(run_of(5, 3, "tiny", look))).await.1,
                seen,
                "again"
            );
            let untouched = "busybox stat -c '%u' /srv/data; busybox cat /srv/data";
            assert_eq!(
                rig.run(&as_root(job(4, "tiny", untouched))).await.1,
                "33\nweb",
                "the image"
            );

            // Another user has other numbers, in another session's files the same ones.
            let mut bob = as_root(job(
                5,
                "tiny",
                "busybox cat /proc/self/uid_map; busybox stat -c '%u' /srv/data",
            ));
            bob.identity.name = "bob".into();
            bob.identity.uid = 1_234_567;
            let output = rig.run(&bob).await.1;
            let numbers: Vec<&str> = output.split_whitespace().collect();
            let second = (base + 65_536).to_string();
            assert_eq!(numbers[..4], ["0", "1234567", "1", "1"], "{output}");
            assert_eq!(numbers[6..], ["1234567", second.as_str(), "1", "33"], "{output}");
        },
    );
}

/// The agent may die at any point of such a start, too: no layer stays mounted.
#[test]
fn a_start_that_was_cut_off_leaves_no_layer_mounted() {
    with_rig(
        |_| {},
        |rig| async move {
            import(&rig).await;
            for (number, point) in [(20, "preparing files"), (21, "starting container")] {
                for again in [true, false] {
                    let spec = as_root(job(number, "tiny", "echo ran; busybox sleep 1000"));
                    let key = spec.record.key;
                    for polls in [0, 1, 4, 12] {
                        cut_off(&rig, &spec, point, polls).await;
                    }
                    if again {
                        rig.runtime.create(&spec, &rig.progress()).await.unwrap();
                        eventually("it ran", || async { rig.runtime.init_log(key, 9) == "ran" }).await;
                    }
                    rig.runtime.remove(key).await.unwrap();
                    rig.assert_gone(key).await;
                }
            }
            // As a killed agent leaves it: mounted, and not yet anything else of the job's.
            let key = job(22, "tiny", "").record.key;
            let left = rig
                .dir
                .join(format!("s/shifted/{}-{}/0", key.job, key.generation.0));
            let layer = rig.dir.join("layer");
            fs::create_dir_all(&left).unwrap();
            fs::create_dir(&layer).unwrap();
            fs::write(layer.join("of the image"), "").unwrap();
            let none: Option<&str> = None;
            mount(Some(&layer), &left, none, MsFlags::MS_BIND, none).unwrap();
            assert_eq!(rig.runtime.leftovers().await.unwrap(), [key]);
            rig.runtime.remove(key).await.unwrap();
            rig.assert_gone(key).await;
            assert!(layer.join("of the image").exists());
            assert_eq!(rig.runtime.leftovers().await.unwrap(), []);
        },
    );
}

/// containerd's death and the next agent's start leave it running, and removable with all that it has.
#[test]
fn it_survives_containerds_death() {
    with_rig(
        |_| {},
        |rig| async move {
            import(&rig).await;
            let spec = as_root(job(
                30,
                "tiny",
                "while ! [ -e /.carrel/run/go ]; do busybox sleep 0.05; done; busybox stat -c 'is %u' /bin/busybox; exit 4",
            ));
            let key = spec.record.key;
            let mut events = rig.runtime.events();
            assert_eq!(events.next().await, RuntimeEvent::Resync);
            rig.runtime.create(&spec, &rig.progress()).await.unwrap();
            let pid = fs::read_to_string(rig.dir.join("s/containerd/pid")).unwrap();
            let pid = nix::unistd::Pid::from_raw(pid.trim().parse().unwrap());
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
            let next = tokio::time::timeout(PATIENCE, events.next()).await.unwrap();
            assert_eq!(next, RuntimeEvent::Resync, "the interruption is told");
            assert!(is_running(&rig.runtime.list().await.unwrap()[0]));
            fs::write(rig.runtime.run_dir(key).join("go"), "").unwrap();
            assert_eq!(rig.ended(key).await, "is 0");
            assert_eq!(rig.runtime.remove(key).await.unwrap().code, Some(4));
            rig.assert_gone(key).await;
        },
    );
}

/// The real process 1 keeps root's capabilities in its namespace and no other, hides its directory, and tries the
/// fence, which fails the start where it leaks: devices are mounted, not made.
#[test]
fn carrel_init_keeps_root_and_tries_the_fence() {
    let init = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../target/x86_64-unknown-linux-musl/debug/carrel-init"
    );
    if !Path::new(init).exists() {
        eprintln!("skipped: carrel-init is not built (./dev build)");
        return;
    }
    with_rig(
        |options| options.init_binary = init.into(),
        |rig| async move {
            import(&rig).await;
            fs::create_dir(rig.dir.join("cdi")).unwrap();
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
                fs::write(rig.dir.join("cdi/described.json"), text).unwrap();
                let mut spec = as_root(job(number, "tiny", ""));
                spec.command = None;
                spec.gpus = vec![described_gpu(5).into()];
                spec.others = vec![described_gpu(6)];
                spec.record.gpus = spec
                    .gpus
                    .iter()
                    .map(|given| given.gpu.uuid.clone().into())
                    .collect();
                let config = |root| InitConfig {
                    job: number,
                    identity: Some(root_inside(&spec.identity, false)),
                    root,
                    ..InitConfig::default()
                };
                spec.init_config = config(true).encode_to_vec();
                let key = spec.record.key;
                rig.runtime.create(&spec, &rig.progress()).await.unwrap();
                let log = || rig.runtime.init_log(key, 20);
                if leaks {
                    rig.ended(key).await;
                    eventually("it says where", || async {
                        log().contains("the fence leaks: the device of GPU 6 is not refused")
                    })
                    .await;
                } else {
                    eventually(&format!("its server serves; {}", log()), || async {
                        log().contains("serving")
                    })
                    .await;
                    let Some(ContainerState::Running { pid }) = rig.state(key).await else {
                        panic!("it has ended: {}", log())
                    };
                    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
                    assert!(status.contains("Uid:\t12345\t12345"), "{status}");
                    assert!(
                        status.contains(CAPABILITIES) && status.contains(&CAPABILITIES.replace("Eff", "Bnd")),
                        "{status}"
                    );
                    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
                    let inside = PathBuf::from(format!("/proc/{pid}/root"));
                    assert!(!inside.join("dev/carrel-fence").exists());
                    assert!(inside.join("dev/nvidia5").exists() && !inside.join("dev/nvidia6").exists());
                    assert_eq!(fs::read_dir(inside.join(".carrel/run")).unwrap().count(), 0);
                    assert!(rig.runtime.run_dir(key).join("ctl.sock").exists());
                    let passwd = fs::read_to_string(inside.join("etc/passwd")).unwrap();
                    assert!(passwd.starts_with("root:x:0:0:root:/root:"), "{passwd}");
                    let ctl = rig.runtime.run_dir(key).join("ctl.sock");
                    tokio::net::UnixStream::connect(&ctl).await.unwrap();
                }
                rig.runtime.remove(key).await.unwrap();
                rig.assert_gone(key).await;
            }

            // Told to keep root's capabilities where they would be the host's, it does not start.
            let mut spec = job(63, "tiny", "");
            spec.command = None;
            spec.init_config = InitConfig {
                identity: Some(root_inside(&spec.identity, false)),
                root: true,
                ..InitConfig::default()
            }
            .encode_to_vec();
            let key = spec.record.key;
            rig.runtime.create(&spec, &rig.progress()).await.unwrap();
            rig.ended(key).await;
            eventually("it says why", || async {
                rig.runtime.init_log(key, 20).contains("needs a user namespace")
            })
            .await;
            rig.runtime.remove(key).await.unwrap();
            rig.assert_gone(key).await;
        },
    );
}

/// A host that cannot do it says what is missing, before it pulls anything.
#[test]
fn a_host_that_cannot_says_what_is_missing() {
    with_rig(
        // Ids that the kernel does not take: too many.
        |options| options.userns.base = u32::MAX - 10,
        |rig| async move {
            import(&rig).await;
            let isolation = rig.runtime.isolation();
            assert!(isolation.contains("no root inside ("), "{isolation}");
            let refused = rig
                .runtime
                .create(&as_root(job(1, "missing", "")), &rig.progress())
                .await
                .unwrap_err();
            assert!(
                format!("{refused:#}").contains("cannot make its users root in containers (--root)"),
                "{refused:#}"
            );
            assert_eq!(rig.run(&job(2, "tiny", "echo ran")).await.1, "ran");
        },
    );
}
