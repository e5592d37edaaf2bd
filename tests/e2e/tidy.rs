//! What a session leaves behind: nothing.

use carrel_tests::cluster::{Cluster, Options};
use carrel_tests::user::{ALICE, ROOT};

/// Mounts, network, processes and containers of an ended session are gone.
#[test]
fn nothing_is_left() {
    let cluster = Cluster::start(&Options::default());
    let look = || {
        let inside = |program: &str, args: &[&str]| cluster.cmd(ROOT, program).args(args).ok();
        let processes = inside("ps", &["-eo", "comm="]);
        let count = |name: &str| processes.lines().filter(|line| line.trim() == name).count();
        (
            cluster.sandbox().mounts().lines().count(),
            inside("busybox", &["ip", "link"])
                .lines()
                .filter(|line| line.contains("veth"))
                .count(),
            inside("sh", &["-c", "ls /run/netns 2>/dev/null | wc -l"]),
            count("carrel-init") + count("containerd-shim"),
        )
    };
    for rights in [&[][..], &["--root"]] {
        tidy(&cluster, look, rights);
    }
}

fn tidy<T: PartialEq + std::fmt::Debug>(cluster: &Cluster, look: impl Fn() -> T, rights: &[&str]) {
    let small = [&["-c", "1", "--mem", "64M"], rights].concat();
    // The first session makes what stays for all (a bridge).
    drop(cluster.open(ALICE, "first", &[&["--gpus", "1"], &small[..]].concat()));
    cluster.ready("the first is gone", |this| {
        this.json(ROOT, ["nodes"])[0]["gpus_free"] == 8
    });
    let before = look();
    {
        let session = cluster.open(ALICE, "second", &[&["--gpus", "8"], &small[..]].concat());
        assert_ne!(look(), before, "a running session is seen");
        session.ssh(["sleep 100000 </dev/null >/dev/null 2>&1 &"]).ok();
    }
    cluster.ready("the second is gone", |this| {
        this.json(ROOT, ["nodes"])[0]["gpus_free"] == 8
    });
    cluster.ready("all is as before", |_| look() == before);
}
