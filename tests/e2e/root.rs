//! Root in the container, and nobody more than oneself outside.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use carrel_tests::cluster::{Cluster, Options, Session};
use carrel_tests::image::Image;
use carrel_tests::user::{ALICE, BOB, ROOT};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::fence::{ATTACH, hostile, python};
use crate::shared::{self, SMALL};

/// First of the ids that stand for nobody (`userns.base`).
const RANGE: u32 = 0x7800_0000;

/// Makes a Debian package with a user and a file of that user's, and installs it as people do.
const INSTALL: &str = r"
set -e
mkdir -p /tmp/p/DEBIAN /tmp/p/usr/bin
printf 'Package: of-tests\nVersion: 1\nArchitecture: all\nMaintainer: A <a@example.org>\nDescription: a test\n' >/tmp/p/DEBIAN/control
printf '#!/bin/sh\nset -e\nuseradd --system oftests\ninstall -d -o oftests -g oftests -m 700 /var/lib/of-tests\n' >/tmp/p/DEBIAN/postinst
printf '#!/bin/sh\necho installed\n' >/tmp/p/usr/bin/of-tests
chmod 755 /tmp/p/DEBIAN/postinst /tmp/p/usr/bin/of-tests
dpkg-deb --root-owner-group --build /tmp/p /tmp/of-tests.deb >/dev/null
apt-get install -y /tmp/of-tests.deb >/tmp/apt.log 2>&1 || { cat /tmp/apt.log; exit 1; }
of-tests
stat -c '%U %G' /var/lib/of-tests /usr/bin/of-tests
su oftests -s /bin/sh -c 'id -un; touch /var/lib/of-tests/mine'
";

fn small<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&SMALL[..], &["--root"], more].concat()
}

fn owner(path: &Path) -> u32 {
    let metadata = fs::symlink_metadata(path);
    metadata
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        .uid()
}

/// What people ask for root for: packages, users, owners. What lands in the home is one's own outside.
#[test]
fn packages_are_installed_and_the_home_stays_one_s_own() {
    let cluster = shared::cluster();
    let home = cluster.sandbox().home(ALICE);
    let script = format!(
        "{INSTALL}\nwhoami; echo $USER $LOGNAME $HOME; getent passwd root | cut -d: -f6\n\
         touch ~/by-root; touch ~/given; chown oftests ~/given; stat -c %U ~/given ~"
    );
    let output = cluster
        .carrel(ALICE, ["alloc"])
        .args(small(&["--", "sh", "-c", &script]))
        .ok();
    let home_text = home.display().to_string();
    assert_eq!(
        output.lines().collect::<Vec<_>>(),
        [
            "installed",
            "oftests oftests",
            "root root",
            "oftests",
            "root",
            &format!("root root {home_text}"),
            &home_text,
            "oftests",
            "root",
        ]
    );
    assert_eq!(owner(&home.join("by-root")), ALICE.uid);
    let given = owner(&home.join("given"));
    assert!((RANGE + 1..RANGE + (1 << 30)).contains(&given), "{given}");
    cluster.cmd(ALICE, "rm").arg(home.join("by-root")).ok();
}

/// A session's files are the same ones with root and without; OpenSSH, SFTP and rsync write as root.
#[test]
fn a_session_goes_on_without_root() {
    let cluster = shared::cluster();
    let session = cluster.open(ALICE, "rooted", &small(&[]));
    assert_eq!(session.ssh(["id -un; id -u"]).ok(), "root\n0");
    session.ssh([INSTALL]).ok();
    let home = cluster.sandbox().home(ALICE);
    fs::write(home.join("sent"), "sent").expect("a home");
    for copy in [
        cluster.cmd(ALICE, "scp").args(["-q", "-o", "BatchMode=yes"]),
        cluster.cmd(ALICE, "rsync").args(["-e", "ssh -o BatchMode=yes"]),
    ] {
        copy.arg(home.join("sent"))
            .arg(format!("{}:/opt/sent", session.alias()))
            .ok();
        assert_eq!(
            session
                .ssh(["stat -c %U /opt/sent; cat /opt/sent; rm /opt/sent"])
                .ok(),
            "root\nsent"
        );
    }
    session
        .ssh(["echo kept >/etc/kept; install -o oftests -m 600 /etc/kept /etc/theirs"])
        .ok();

    cluster.carrel(ALICE, ["stop", "rooted"]).ok();
    cluster.ready("it has stopped", |_| session.record()["state"] == "STOPPED");
    // As the last time, unless something else is asked for.
    cluster.carrel(ALICE, ["open", "rooted", "--editor", "none"]).ok();
    assert_eq!(session.ssh(["id -u; of-tests"]).ok(), "0\ninstalled");
    cluster.carrel(ALICE, ["rm", "-f", "rooted"]).ok();
}

/// The image's and root's files are root's for who is not root, whatever ran before.
#[test]
fn what_root_made_is_root_s_later() {
    let cluster = hostile();
    let rooted = cluster.open(ALICE, "later", &small(&[]));
    rooted
        .ssh(["/bin/busybox sh -c 'echo kept >/kept; busybox chown 7 /bin/setuid-busybox'"])
        .ok();
    cluster.carrel(ALICE, ["stop", "later"]).ok();
    cluster.ready("it has stopped", |_| rooted.record()["state"] == "STOPPED");
    let plain = cluster
        .carrel(ALICE, ["open", "later", "--editor", "none", "--no-root"])
        .run();
    assert_eq!(plain.code, 0, "{plain}");
    assert_eq!(
        rooted
            .ssh(["/bin/busybox stat -c '%n %u' /kept /bin/setuid-busybox /bin/busybox; /bin/busybox id -u"])
            .ok(),
        "/kept 0\n/bin/setuid-busybox 7\n/bin/busybox 0\n61001"
    );
    assert_ne!(rooted.ssh(["echo x >/kept"]).run().code, 0);
}

/// A setuid program gives nothing to the users that root makes: no_new_privs holds for all. The control: it is one.
#[test]
fn setuid_programs_give_nothing() {
    let session = hostile().open(ALICE, "setuid-root", &small(&[]));
    session
        .ssh([
            "/bin/busybox ln -s /bin/setuid-busybox /tmp/id; echo other:x:1000:1000::/:/bin/sh >>/etc/passwd",
        ])
        .ok();
    let mode = session
        .ssh(["/bin/busybox stat -c '%a %u' /bin/setuid-busybox"])
        .ok();
    assert_eq!(mode, "4755 0");
    let id = session
        .ssh(["/bin/busybox start-stop-daemon -S -c other -x /tmp/id"])
        .ok();
    assert!(id.contains("uid=1000") && !id.contains("euid"), "{id}");
    let status = session
        .ssh(["/bin/busybox grep -E 'Cap(Prm|Eff|Bnd)|NoNewPrivs' /proc/self/status"])
        .ok();
    let values: Vec<_> = status
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1))
        .collect();
    // What carrel-init keeps (keeper/privileges.rs).
    assert_eq!(
        values,
        ["00000000800405fb", "00000000800405fb", "00000000800405fb", "1"]
    );
}

/// Process 1 holds the lease, and is not root's to look into, to change or to end; its directory is gone.
#[test]
fn process_1_is_out_of_reach() {
    let session = shared::cluster().open(ALICE, "init-root", &small(&[]));
    let server = session.ssh(["pgrep -x carrel-ssh"]).ok();
    assert_eq!(
        python(&session, ATTACH, &format!("1 {server}")),
        "EPERM\nEPERM\nattached"
    );
    for pid in ["1", &server] {
        for secret in ["cat mem", "cat environ", "cat maps", "ls root/", "ls cwd/"] {
            let secret = secret.replacen(' ', &format!(" /proc/{pid}/"), 1);
            assert_ne!(session.ssh([&secret]).run().code, 0, "{secret}");
        }
        // Its files can be counted, and none of them opened.
        let opened = session
            .ssh([format!(
                "for n in $(seq 0 40); do head -c 1 /proc/{pid}/fd/$n 2>/dev/null | wc -c; readlink /proc/{pid}/fd/$n; done | grep -vx 0"
            )])
            .run();
        assert_eq!(opened.stdout, "", "{opened}");
    }
    assert_eq!(
        session
            .ssh(["ls -A /.carrel/run; find / -xdev -name '*.sock' -o -xdev -name init.pb"])
            .ok(),
        ""
    );
    for refused in [
        "touch /.carrel/bin/x",
        "echo >>/.carrel/bin/carrel-init",
        "rm /.carrel/bin/carrel-init",
        "mv /.carrel /tmp/x",
        "umount /.carrel",
    ] {
        assert_ne!(session.ssh([refused]).run().code, 0, "{refused}");
    }
    session.ssh(["kill -KILL 1; kill -STOP 1; true"]).ok();
    assert_eq!(session.ssh(["echo still here"]).ok(), "still here");
}

/// No key or token of the node, the broker or somebody else is in any file or any process's environment: nothing to
/// speak to the broker's interface with as somebody else. The control is one that was put there.
#[test]
fn no_credential_of_others_is_inside() {
    let cluster = shared::cluster();
    let session = cluster.open(ALICE, "keys", &small(&[]));
    let _bobs = cluster.open(BOB, "keys-b", &small(&[]));
    // The longest word of each file that only root or another user can read.
    let find = "find . -xdev \\( -path ./home/alice -o -path '*/containerd' -o -path './target' \\) -prune -o \
                -type f -size -64k \\( -perm 600 -o -name '*.db' -o -name init.pb \\) -print";
    let listed = cluster
        .cmd(ROOT, "bash")
        .args(["-c", &format!("cd {} && {find}", cluster.root().display())])
        .ok();
    let mut needles: Vec<String> = Vec::new();
    for file in listed.lines() {
        let bytes = fs::read(cluster.root().join(file)).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || "+/=_-".contains(c)));
        let longest = words.max_by_key(|word| word.len()).unwrap_or_default();
        if longest.len() >= 40 {
            needles.push(longest.to_owned());
        }
    }
    assert!(needles.len() >= 3, "{listed}");
    session
        .ssh(["cat >/root-of-tests-needle"])
        .stdin("a-needle-of-the-test-that-must-be-found-by-it\n")
        .ok();
    needles.push("a-needle-of-the-test-that-must-be-found-by-it".to_owned());
    let search = format!(
        "set -f; cat >/dev/shm/needles; set +f; \
         {{ find / -xdev -type f -size -4096k ! -path '/proc/*' ! -path '/sys/*'; ls -d /proc/[0-9]*/environ /proc/[0-9]*/cmdline; \
         find /.carrel /etc -type f; }} | xargs -d '\\n' grep -lFf /dev/shm/needles 2>/dev/null | grep -v '^{}' | sort -u; true",
        "/dev/shm"
    );
    let found = session.ssh([search]).stdin(needles.join("\n") + "\n").ok();
    assert_eq!(found, "/root-of-tests-needle");
}

/// Agent and containerd die under it: it goes on, is taken over, and leaves nothing when it ends.
#[test]
fn it_survives_the_agent_and_containerd() {
    let mut cluster = Cluster::start(&Options {
        images: vec![Image::Busybox],
        ..Options::default()
    });
    let gpus = ["--gpus", "2", "-c", "1", "--mem", "64M", "--root"];
    std::mem::forget(cluster.open(ALICE, "dev", &gpus));
    let ssh = |cluster: &Cluster, command: &str| cluster.ssh(ALICE, ["carrel-dev", command]);
    let mut terminal = cluster.terminal(ALICE, ["attach", "dev"]);
    terminal.ask("echo start-$((40 + 2))-$(id -u)", "start-42-0");
    ssh(&cluster, "echo mine >/mark && chown 7 /mark").ok();
    let mounts = || {
        let all = cluster.sandbox().mounts();
        let points = all.lines().filter_map(|line| line.split(' ').nth(4));
        points.filter(|point| point.contains("/shifted/")).count()
    };
    assert_eq!(mounts(), 0, "no layer stays mounted beside the container's");
    let containerd = fs::read_to_string(cluster.node_state(0).join("containerd/pid")).expect("its number");
    let inside = cluster.cmd(ROOT, "kill").args(["-KILL", containerd.trim()]);
    inside.ok();
    cluster.agents[0].kill9();
    cluster.agents[0].restart();
    cluster.ready("connections through the new agent", |this| {
        ssh(this, "true").run().code == 0
    });
    terminal.ask("echo after-$((40 + 2))-$(id -u)", "after-42-0");
    terminal.line("exit");
    terminal.wait();
    assert_eq!(ssh(&cluster, "stat -c %u /mark; id -u").ok(), "7\n0");
    // The SSH server is started again by process 1, with root's rights.
    for pid in crate::processes::ssh_servers(&cluster) {
        kill(Pid::from_raw(pid), Signal::SIGKILL).expect("it runs");
    }
    cluster.ready("its server is there again", |this| {
        ssh(this, "id -u").run().stdout == "0\n"
    });
    cluster.carrel(ALICE, ["rm", "-f", "dev"]).ok();
    cluster.ready("its GPUs are free", |this| {
        this.json(ROOT, ["nodes"])[0]["gpus_free"] == 8
    });
    cluster.ready("no mount of it is left", |this| {
        let jobs = this.node_state(0).join("jobs");
        fs::read_dir(jobs).is_ok_and(|mut left| left.next().is_none())
    });
}

/// The node's own root may have a user namespace, too: root there as well, with no more than he has without it.
#[test]
fn the_node_s_root_is_root_inside() {
    let cluster = shared::cluster();
    let output = cluster
        .carrel(ROOT, ["alloc"])
        .args(small(&["--", "sh", "-c", "id -u; chown 7 /srv && stat -c %u /srv; echo x 2>/dev/null >/proc/sys/kernel/core_pattern || echo refused"]))
        .ok();
    assert_eq!(output, "0\n7\nrefused");
}

/// What is asked for on the second `open` counts from the next start, and is said to.
#[test]
fn a_live_session_stays_as_it_is() {
    let cluster = shared::cluster();
    let session: Session<'_> = cluster.open(ALICE, "as-is", &SMALL);
    let again = cluster
        .carrel(ALICE, ["open", "as-is", "--editor", "none", "--root"])
        .run();
    assert!(again.stderr.contains("goes on as it was started"), "{again}");
    assert_ne!(session.ssh(["id -u"]).ok(), "0");
}
