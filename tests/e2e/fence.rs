//! What is not a job's, tried from inside: as its user, and as root in its container, with the programs that people
//! would use.
//!
//! Each test says what it protects, and has a control: the same thing where it must succeed, so that
//! a refusal is the fence's and not the test's own mistake.

use std::collections::BTreeMap;
use std::net::IpAddr;

use carrel_tests::cluster::{Cluster, Options, Session};
use carrel_tests::image::Image;
use carrel_tests::process::Running;
use carrel_tests::user::{ALICE, BOB, ROOT};
use carrel_tests::wait;

use crate::shared::{self, SMALL};

/// As its user, and as root in its container.
const RIGHTS: [(&str, &[&str]); 2] = [("user", &[]), ("root", &["--root"])];

/// A cluster whose nodes have an image with other people's devices and setuid programs in it.
pub fn hostile() -> &'static Cluster {
    static CLUSTER: std::sync::OnceLock<Cluster> = std::sync::OnceLock::new();
    CLUSTER.get_or_init(|| {
        Cluster::start(&Options {
            images: vec![Image::Hostile],
            ..Options::default()
        })
    })
}

/// Calls the kernel as a container may not; prints the name and the error of each call. Null pointers and closed
/// files make a call that is let through fail in another way.
const CALLS: &str = r#"
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
def call(name, number, *arguments):
    ctypes.set_errno(0)
    libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) for a in arguments])
    print(name, errno.errorcode.get(ctypes.get_errno(), "OK"))
x86 = os.uname().machine == "x86_64"
call("bpf", 321 if x86 else 280, -1, 0, 0)
call("perf_event_open", 298 if x86 else 241, 0, 0, -1, -1, 0)
call("keyctl", 250 if x86 else 219, -1, 0, 0, 0, 0)
call("io_uring_setup", 425, 0, 0)
call("userfaultfd", 323 if x86 else 282, -1)
call("open_by_handle_at", 304 if x86 else 265, -1, 0, 0)
call("setns", 308 if x86 else 268, -1, 0)
call("unshare", 272 if x86 else 97, -1)
call("init_module", 175 if x86 else 105, 0, 0, 0)
call("syslog", 103 if x86 else 116, 10, 0, 0)
call("open_tree", 428, -1, 0, -1)
"#;

/// Tries to become a debugger of the processes named; prints "attached" or the error of each.
pub const ATTACH: &str = r#"
import ctypes, errno, os, signal, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
child = subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
for pid in [*map(int, sys.argv[1:]), child.pid]:
    ctypes.set_errno(0)
    result = libc.ptrace(ctypes.c_long(16), ctypes.c_long(pid), None, None)
    print("attached" if result == 0 else errno.errorcode[ctypes.get_errno()])
os.kill(child.pid, signal.SIGKILL)
"#;

pub fn python(session: &Session<'_>, code: &str, arguments: &str) -> String {
    session.ssh([format!("python3 - {arguments}")]).stdin(code).ok()
}

/// Whether a TCP connection comes about; a program in the session tries it.
fn connects(session: &Session<'_>, address: &str, port: u16) -> bool {
    let code = format!("timeout 3 bash -c 'echo </dev/tcp/{address}/{port}'");
    session.ssh([code]).run().code == 0
}

/// The session's address in its network.
fn address(session: &Session<'_>) -> IpAddr {
    let hosts = session.ssh(["cat /etc/hosts"]).ok();
    let own = hosts.lines().find_map(|line| {
        let (address, names) = line.split_once('\t')?;
        names
            .contains(session.name())
            .then(|| address.parse().ok())
            .flatten()
    });
    own.unwrap_or_else(|| panic!("no address in {hosts}"))
}

/// A server of single connections inside a session, listening when this returns.
fn server(session: &Session<'_>, at: &str, port: u16) -> Running {
    let running = session
        .ssh([format!("exec python3 -m http.server {port} --bind {at}")])
        .spawn();
    wait::until("a server listens", || connects(session, "127.0.0.1", port));
    running
}

fn stop(running: Running) {
    running.signal(nix::sys::signal::Signal::SIGTERM);
    running.wait();
}

/// The trial at the start is seen by the owner, in words and for programs.
#[test]
fn the_trial_is_shown() {
    let cluster = shared::cluster();
    for (name, rights) in RIGHTS {
        let session = cluster.open(ALICE, name, &[&["--gpus", "1"], &SMALL[..], rights].concat());
        let fence = &session.record()["job"]["nodes"][0]["fence"];
        assert!(
            fence["checks"].as_u64().is_some_and(|checks| checks > 50),
            "{fence}"
        );
        assert!(
            fence["micros"].as_u64().is_some_and(|micros| micros > 0),
            "{fence}"
        );
        let shown = cluster.carrel(ALICE, ["show", name]).ok();
        assert!(shown.contains("checks passed at the start"), "{shown}");
    }
    let nodes = cluster.json(ROOT, ["nodes"]);
    assert!(
        nodes[0]["isolation"]
            .as_str()
            .is_some_and(|text| text.contains("disk: not limited") && text.contains("root inside by a user")),
        "{nodes}"
    );
}

/// Other jobs' GPUs, the host's memory, log and disk: not by any node, be it in the image. The control is the job's
/// own GPU, at which the kernel looks for a driver, and /dev/null.
#[test]
fn devices_that_are_not_the_job_s() {
    for (name, rights) in RIGHTS {
        let name = format!("devices-{name}");
        devices_of(&hostile().open(ALICE, &name, &[&["--gpus", "2"], &SMALL[..], rights].concat()));
    }
}

fn devices_of(session: &Session<'_>) {
    let outcome = |path: &str| {
        session
            .ssh([format!("/bin/busybox dd if={path} of=/dev/null bs=1 count=1")])
            .run()
    };
    let listed = session.ssh(["/bin/busybox ls /dev"]).ok();
    let own: Vec<u32> = listed
        .lines()
        .filter_map(|name| name.strip_prefix("nvidia")?.parse().ok())
        .collect();
    assert_eq!(own.len(), 2, "{listed}");
    assert!(!listed.contains("carrel-fence"), "{listed}");
    for gpu in 0..8 {
        let refused = if own.contains(&gpu) {
            "No such device or address"
        } else {
            "Operation not permitted"
        };
        let tried = outcome(&format!("/nodes/gpu{gpu}"));
        assert!(tried.stderr.contains(refused), "GPU {gpu}, own {own:?}: {tried}");
    }
    for node in ["mem", "kmsg", "disk"] {
        let tried = outcome(&format!("/nodes/{node}"));
        assert!(
            tried.stderr.contains("Operation not permitted"),
            "{node}: {tried}"
        );
    }
    assert_eq!(outcome("/nodes/null").code, 0);
    let made = session.ssh(["/bin/busybox mknod /tmp/gpu c 60 7"]).run();
    assert!(made.stderr.contains("Operation not permitted"), "{made}");
}

/// A setuid program of the image makes nobody root. The control: it is one, and runs.
#[test]
fn setuid_programs() {
    let session = hostile().open(ALICE, "setuid", &SMALL);
    let mode = session
        .ssh(["/bin/busybox stat -c '%a %u' /bin/setuid-busybox"])
        .ok();
    assert_eq!(mode, "4755 0");
    // By the name that it is called by, it knows what it is to be.
    session
        .ssh(["/bin/busybox ln -s /bin/setuid-busybox /tmp/id; /bin/busybox ln -s /bin/setuid-busybox /tmp/grep"])
        .ok();
    let id = session.ssh(["/tmp/id"]).ok();
    assert!(id.contains("uid=61001") && !id.contains("euid"), "{id}");
    let caps = session
        .ssh(["/tmp/grep -E 'Cap(Prm|Eff|Bnd)|NoNewPrivs' /proc/self/status"])
        .ok();
    let values: Vec<_> = caps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1))
        .collect();
    assert_eq!(
        values,
        ["0000000000000000", "0000000000000000", "0000000000000000", "1"]
    );
}

/// The kernel that all jobs share: its settings, memory, log, modules, namespaces. The controls are the same calls
/// by the host's root, which are let through, and a file of the container's own.
#[test]
fn the_kernel_s_interfaces() {
    let cluster = shared::cluster();
    for (name, rights) in RIGHTS {
        let name = format!("kernel-{name}");
        kernel_of(
            cluster,
            &cluster.open(ALICE, &name, &[&SMALL[..], rights].concat()),
        );
    }
}

fn kernel_of(cluster: &Cluster, session: &Session<'_>) {
    let calls = |output: String| -> BTreeMap<String, String> {
        let lines = output.lines().filter_map(|line| line.split_once(' '));
        lines
            .map(|(name, error)| (name.to_owned(), error.to_owned()))
            .collect()
    };
    let host = calls(cluster.cmd(ROOT, "python3").arg("-").stdin(CALLS).ok());
    for (name, error) in calls(python(session, CALLS, "")) {
        assert_eq!(error, "EPERM", "{name}");
        // Some ask for a capability before they look at anything; root of a virtual machine has them all.
        assert_ne!(host[&name], "EPERM", "{name}: the host's root is let through");
    }
    for refused in [
        "mount -t tmpfs none /mnt",
        "mount --bind / /mnt",
        "mount -o remount,rw /proc/sys",
        "umount /proc/sysrq-trigger",
        "umount -l /.carrel/bin",
        "pivot_root / /mnt",
        "mknod /tmp/null c 1 3 && cat /tmp/null",
        "nsenter -t 1 -m true",
        "hostname other",
        "echo 1 >/proc/sys/net/ipv4/ip_forward",
        "echo other >/proc/sys/kernel/hostname",
        "echo 1 >/sys/kernel/mm/ksm/run",
        "unshare -U true",
        "unshare -m true",
        "dmesg",
        "echo core >/proc/sys/kernel/core_pattern",
        "echo b >/proc/sysrq-trigger",
        "echo 3 >/proc/sys/vm/drop_caches",
        "echo 1 >/proc/irq/default_smp_affinity",
        "mkdir /sys/fs/cgroup/x && test -e /sys/fs/cgroup/x/cgroup.procs",
        "mkdir /sys/fs/cgroup/pids/x",
        "echo 0 >/sys/fs/cgroup/pids/pids.max",
        "echo mem >/sys/power/state",
        "cat /dev/mem",
        "cat /dev/kmsg",
    ] {
        assert_ne!(
            session.ssh([format!("bash -c '{refused}'")]).run().code,
            0,
            "{refused}"
        );
    }
    for empty in ["/proc/kcore", "/proc/keys", "/proc/timer_list"] {
        assert_eq!(
            session
                .ssh([format!("head -c 1 {empty} 2>/dev/null | wc -c")])
                .ok(),
            "0",
            "{empty}"
        );
    }
    assert_eq!(
        session.ssh(["echo mine >/tmp/mine && cat /tmp/mine"]).ok(),
        "mine"
    );
}

/// Process 1 holds the lease and starts the user's processes: it is not theirs to look into, to change or to end.
/// The control is a child of one's own, which can be debugged.
#[test]
fn process_1() {
    let session = shared::cluster().open(ALICE, "init", &SMALL);
    let server = session.ssh(["pgrep -x carrel-ssh"]).ok();
    assert_eq!(
        python(&session, ATTACH, &format!("1 {server}")),
        "EPERM\nEPERM\nattached"
    );
    for pid in ["1", &server] {
        for secret in [
            "cat mem",
            "cat environ",
            "cat maps",
            "ls fd/",
            "ls root/",
            "ls cwd/",
        ] {
            let secret = secret.replacen(' ', &format!(" /proc/{pid}/"), 1);
            assert_ne!(session.ssh([&secret]).run().code, 0, "{secret}");
        }
    }
    for refused in [
        "ls /.carrel/run",
        "cat /.carrel/run/init.pb",
        "touch /.carrel/x",
        "touch /.carrel/bin/x",
        "echo >>/.carrel/bin/carrel-init",
        "rm /.carrel/bin/carrel-init",
        "mv /.carrel /tmp/x",
        "echo x:x:0:0::/:/bin/sh >>/etc/passwd",
        "echo 127.0.0.1 x >>/etc/hosts",
    ] {
        assert_ne!(session.ssh([refused]).run().code, 0, "{refused}");
    }
    session.ssh(["kill -KILL 1; kill -STOP 1; true"]).ok();
    assert_eq!(session.ssh(["echo still here"]).ok(), "still here");
}

/// Another job's files, processes, loopback and network, and the other way round. The controls are one's own.
#[test]
fn other_jobs() {
    let cluster = shared::cluster();
    // On one node, so that they are neighbours.
    for (name, rights) in RIGHTS {
        let gpu = [&["--gpus", "1"], &SMALL[..], rights].concat();
        let [alice, bob] = [(ALICE, "a"), (BOB, "b")]
            .map(|(user, side)| cluster.open(user, &format!("near-{side}-{name}"), &gpu));
        neighbours(cluster, alice, bob);
    }
}

fn neighbours(cluster: &Cluster, alice: Session<'_>, bob: Session<'_>) {
    let servers = [server(&bob, "0.0.0.0", 4400), server(&alice, "127.0.0.1", 4401)];
    let bobs = address(&bob).to_string();
    assert_ne!(address(&alice).to_string(), bobs);
    assert!(!connects(&alice, &bobs, 4400), "a neighbour's port");
    assert!(connects(&bob, &bobs, 4400), "one's own");
    // From the host itself, there is a way to it: what refuses is the rule.
    let from_host = cluster
        .cmd(ROOT, "bash")
        .arg("-c")
        .arg(format!("echo </dev/tcp/{bobs}/4400"));
    assert_eq!(from_host.run().code, 0);
    assert!(!connects(&alice, "127.0.0.1", 4400), "a neighbour's loopback");
    assert!(connects(&alice, "127.0.0.1", 4401), "one's own loopback");

    let seen = alice.ssh(["ps -eo args"]).ok();
    assert!(!seen.contains("4400") && seen.contains("4401"), "{seen}");
    let home = cluster.sandbox().home(BOB);
    assert_ne!(alice.ssh([format!("ls {}", home.display())]).run().code, 0);
    assert_eq!(bob.ssh([format!("ls {}", home.display())]).run().code, 0);
    for name in ["ipcs -q", "ipcs -m"] {
        assert_eq!(
            alice
                .ssh([format!("{name} 2>/dev/null | grep -c 0x")])
                .run()
                .stdout,
            "0\n"
        );
    }
    servers.into_iter().for_each(stop);
}

/// The host's own services: its loopback, where the broker listens here, and its sockets, containerd's and the
/// agent's among them. The control: they answer on the host.
#[test]
fn the_host_s_ports_and_sockets() {
    let cluster = shared::cluster();
    for (name, rights) in RIGHTS {
        let name = format!("host-{name}");
        let session = cluster.open(ALICE, &name, &[&["--gpus", "1"], &SMALL[..], rights].concat());
        host_from(cluster, &session);
    }
}

fn host_from(cluster: &Cluster, session: &Session<'_>) {
    let port = carrel_tests::cluster::BROKER_PORT;
    assert!(cluster.sandbox().connect(port).is_ok());
    let own = address(session).to_string();
    let gateway = format!("{}.1", own.rsplit_once('.').expect("an IPv4 address").0);
    for host in ["127.0.0.1", &gateway, "10.213.0.1"] {
        assert!(!connects(session, host, port), "the broker at {host}");
    }
    let sockets = cluster
        .cmd(ROOT, "find")
        .arg(cluster.root())
        // Homes are seen by their owners' jobs, with what they have in them.
        .args(["-xdev", "-name", "home", "-prune", "-o", "-type", "s", "-print"])
        .ok();
    assert!(
        sockets.contains("containerd/c.sock") && sockets.contains("broker.sock"),
        "{sockets}"
    );
    assert!(sockets.contains("ctl.sock"), "{sockets}");
    for socket in sockets.lines() {
        assert_ne!(session.ssh([format!("ls {socket}")]).run().code, 0, "{socket}");
    }
}

/// The cloud's metadata service makes whoever asks it the node. Operators may let jobs ask. The control is another
/// address beyond the same way out, and the service's own for the host.
#[test]
fn the_metadata_service() {
    let cluster = Cluster::start(&Options {
        hosts: vec![None],
        images: vec![Image::Debian],
        ..Options::default()
    });
    // A network namespace that stands for the world outside, joined to the sandbox as CNI joins any.
    let outside = r#"
        set -eu
        unshare --net busybox sleep 100000 </dev/null >/dev/null 2>&1 &
        pid=$!
        until [ "$(readlink /proc/$pid/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do busybox usleep 1000; done
        for dir in /opt/cni/bin /usr/lib/cni /usr/libexec/cni; do [ -x $dir/ptp ] && plugins=$dir; done
        export CNI_COMMAND=ADD CNI_CONTAINERID=outside CNI_NETNS=/proc/$pid/ns/net CNI_IFNAME=eth0 CNI_PATH=$plugins
        echo '{"cniVersion": "0.4.0", "name": "outside", "type": "ptp", "ipam": {"type": "host-local",
               "dataDir": "/run/outside", "ranges": [[{"subnet": "198.51.100.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}' |
          $plugins/ptp >/dev/null
        for address in 169.254.169.254 203.0.113.7; do
          nsenter --net=/proc/$pid/ns/net busybox ip address add $address/32 dev lo
          busybox ip route add $address via 198.51.100.2
        done
        nsenter --net=/proc/$pid/ns/net busybox ip link set lo up
        for port in 80 53; do
          nsenter --net=/proc/$pid/ns/net busybox httpd -p $port -h /run </dev/null >/dev/null 2>&1
        done
    "#;
    cluster.cmd(ROOT, "bash").args(["-c", outside]).stdin("").ok();
    for (name, rights) in RIGHTS {
        let name = format!("cloud-{name}");
        metadata_of(
            &cluster,
            &cluster.open(ALICE, &name, &[&SMALL[..], rights].concat()),
        );
    }
}

fn metadata_of(cluster: &Cluster, session: &Session<'_>) {
    let from_host = cluster
        .cmd(ROOT, "bash")
        .args(["-c", "echo </dev/tcp/169.254.169.254/80"]);
    assert_eq!(from_host.run().code, 0, "the service is there");
    assert!(connects(session, "203.0.113.7", 80), "there is a way out");
    assert!(connects(session, "169.254.169.254", 53), "names are found");
    assert!(
        !connects(session, "169.254.169.254", 80),
        "the service is not the job's"
    );
    // Nothing in, from there.
    let job = address(session);
    let inward = server(session, "0.0.0.0", 4500);
    let try_in = format!(
        "pid=$(pgrep -f 'busybox sleep 100000'); nsenter --net=/proc/$pid/ns/net timeout 2 bash -c 'echo </dev/tcp/{job}/4500'"
    );
    assert_ne!(
        cluster.cmd(ROOT, "bash").arg("-c").arg(try_in).run().code,
        0,
        "nothing in"
    );
    stop(inward);
}

/// A process that takes more memory than was granted ends, the session does not, and its owner is told.
#[test]
fn out_of_memory_is_named() {
    let cluster = shared::cluster();
    for (name, rights) in RIGHTS {
        let name = format!("greedy-{name}");
        greedy(
            cluster,
            &cluster.open(ALICE, &name, &[&["-c", "1", "--mem", "128M"], rights].concat()),
        );
    }
}

fn greedy(cluster: &Cluster, session: &Session<'_>) {
    let greedy = session.ssh(["python3 -c 'x = bytearray(1 << 30)'"]).run();
    assert_ne!(greedy.code, 0, "{greedy}");
    assert_eq!(session.ssh(["echo still here"]).ok(), "still here");
    cluster.ready("the kill is told", |_| {
        session.record()["job"]["nodes"][0]["oom_kills"].as_u64() > Some(0)
    });
    let shown = cluster.carrel(ALICE, ["show", session.name()]).ok();
    assert!(
        shown.contains("for want of memory (") && shown.contains("limit 128M)"),
        "{shown}"
    );
    let mut terminal =
        carrel_tests::terminal::Terminal::start(&cluster.ssh(ALICE, ["-tt"]).arg(session.alias()));
    terminal.expect("for want of memory; the limit is 128 MiB");
    terminal.line("exit");
    terminal.wait();
}

/// More processes than a job may have are refused to it, and to nobody else.
#[test]
fn processes_are_limited() {
    let cluster = shared::cluster();
    for (name, rights) in RIGHTS {
        let name = format!("forks-{name}");
        let session = cluster.open(ALICE, &name, &[&SMALL[..], rights].concat());
        let limit = session
            .ssh(["cat /sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/pids.max 2>/dev/null"])
            .run()
            .stdout;
        assert_eq!(limit.trim(), "32768");
        let more = session
            .ssh(["echo 99999 >$(ls /sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/pids.max 2>/dev/null)"]);
        assert_ne!(more.run().code, 0);
    }
}

/// What the operator's policy does not allow is refused before anything is asked for, by the rule's name; what it
/// allows is had.
#[test]
fn the_operator_s_policy() {
    let cluster = Cluster::start(&Options {
        hosts: vec![None],
        images: vec![Image::Busybox, Image::BusyboxOnly],
        broker_config: r#"
            [policy]
            images = ["local/busybox"]
            root = false
            mounts = [
              { name = "data", path = "/run/data", read_only = true },
              { name = "own", path = "/run/own/%u" },
            ]
        "#
        .into(),
        ..Options::default()
    });
    let prepare =
        "mkdir -p /run/data /run/own/alice && echo shared >/run/data/file && chown alice /run/own/alice";
    cluster.cmd(ROOT, "sh").args(["-c", prepare]).ok();
    let refused = |args: &[&str], words: &[&str]| {
        let output = cluster
            .carrel(ALICE, ["alloc"])
            .args(args)
            .args(["--", "true"])
            .run();
        assert_ne!(output.code, 0, "{output}");
        for word in words {
            assert!(output.stderr.contains(word), "{word}: {output}");
        }
    };
    refused(
        &["--image", "local/busybox-only"],
        &["local/busybox-only", "policy.images", "local/busybox"],
    );
    refused(
        &["--mount", "/run/data:/data"],
        &["rule \"data\"", "/run/data:ro"],
    );
    refused(
        &["--mount", "/run/own/bob:/own"],
        &["/run/own/bob", "policy.mounts", "/run/own/alice"],
    );
    refused(&["--root"], &["policy.root", "leave --root out"]);
    refused(&["--mount", "/etc:/mnt"], &["/etc", "policy.mounts"]);
    refused(
        &["--mount", "/run/data:/proc/x:ro"],
        &["/proc is the container's own"],
    );
    let session = cluster.open(
        ALICE,
        "rules",
        &[
            &[
                "--mount",
                "/run/data:/data:ro",
                "--mount",
                "/run/own/alice:/own",
                "--env",
                "COLOUR=dark blue",
            ][..],
            &["--workdir", "/own"][..],
            &SMALL[..],
        ]
        .concat(),
    );
    assert_eq!(
        session.ssh(["cat /data/file; pwd; echo $COLOUR"]).ok(),
        "shared\n/own\ndark blue"
    );
    assert_ne!(session.ssh(["touch /data/x"]).run().code, 0);
    session.ssh(["touch /own/mine"]).ok();
    let owner = cluster
        .cmd(ROOT, "stat")
        .args(["-c", "%U", "/run/own/alice/mine"])
        .ok();
    assert_eq!(owner, "alice");
}
