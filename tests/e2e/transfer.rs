//! Files in and out: scp, sftp, rsync.

use std::fs;
use std::path::PathBuf;

use carrel_tests::cluster::Cluster;
use carrel_tests::user::ALICE;

use crate::shared::{self, SMALL};

/// A directory of Alice's outside the session's home, with files in it.
fn files(cluster: &Cluster, name: &str) -> PathBuf {
    let dir = cluster.root().join(name);
    fs::create_dir_all(dir.join("sub")).expect("own directory");
    let bytes: Vec<u8> = (0..700_000_u32)
        .map(|n| (n.wrapping_mul(40_503) >> 7) as u8)
        .collect();
    fs::write(dir.join("data"), bytes).expect("own file");
    fs::write(dir.join("sub/with space"), "text\n").expect("own file");
    std::os::unix::fs::symlink("data", dir.join("link")).expect("own link");
    for path in [
        dir.clone(),
        dir.join("sub"),
        dir.join("data"),
        dir.join("sub/with space"),
    ] {
        std::os::unix::fs::chown(path, Some(ALICE.uid), Some(ALICE.uid)).expect("root may give away");
    }
    dir
}

fn same(one: &PathBuf, other: &PathBuf) {
    let (a, b) = (fs::read(one).expect("a file"), fs::read(other).expect("a file"));
    assert!(a == b, "{} and {} differ", one.display(), other.display());
}

/// `scp`, by SFTP and by its old protocol, there and back.
#[test]
fn scp() {
    let cluster = shared::cluster();
    let session = cluster.open(ALICE, "scp", &SMALL);
    let dir = files(cluster, "scp-files");
    let scp = || cluster.cmd(ALICE, "scp").args(["-q", "-B"]);
    for (mode, name) in [("-s", "by-sftp"), ("-O", "by-scp")] {
        let there = format!("{}:/tmp/{name}", session.alias());
        scp().args([mode, "-r"]).arg(&dir).arg(&there).ok();
        let back = dir.with_extension(name);
        fs::create_dir(&back).expect("own directory");
        std::os::unix::fs::chown(&back, Some(ALICE.uid), Some(ALICE.uid)).expect("root may give away");
        scp()
            .args([mode, "-r"])
            .arg(format!("{there}/data"))
            .arg(format!("{there}/sub"))
            .arg(&back)
            .ok();
        same(&dir.join("data"), &back.join("data"));
        same(&dir.join("sub/with space"), &back.join("sub/with space"));
    }
    scp()
        .arg(format!("{}:/tmp/nothing", session.alias()))
        .arg("/tmp/")
        .run()
        .fails(1, &["no such file"]);
}

/// `sftp` in a batch: directories, renames, links, modes, and a clear failure.
#[test]
fn sftp() {
    let cluster = shared::cluster();
    let session = cluster.open(ALICE, "sftp", &SMALL);
    let dir = files(cluster, "sftp-files");
    let data = dir.join("data");
    let batch = format!(
        "cd /tmp\nmkdir box\nput {data} box/data\nchmod 640 box/data\nrename box/data box/moved\n\
         symlink moved box/link\nls -l box\nget box/moved {data}.back\nrm box/link\nrm box/moved\nrmdir box\n",
        data = data.display()
    );
    let listed = cluster
        .cmd(ALICE, "sftp")
        .args(["-b", "-"])
        .arg(session.alias())
        .stdin(batch)
        .ok();
    assert!(
        listed.contains("-rw-r-----") && listed.contains("moved"),
        "{listed}"
    );
    same(&data, &PathBuf::from(format!("{}.back", data.display())));
    assert_eq!(session.ssh(["test -e /tmp/box"]).run().code, 1);
    let failed = cluster
        .cmd(ALICE, "sftp")
        .args(["-b", "-"])
        .arg(session.alias())
        .stdin("get /etc/shadow /tmp/x\n")
        .run();
    assert_ne!(failed.code, 0);
    assert!(
        failed.stderr.to_lowercase().contains("permission denied"),
        "{failed}"
    );
}

/// `rsync` both ways; a second run sends nothing.
#[test]
fn rsync() {
    let cluster = shared::cluster();
    let session = cluster.open(ALICE, "rsync", &SMALL);
    let dir = files(cluster, "rsync-files");
    let from = format!("{}/", dir.display());
    let there = format!("{}:/tmp/synced/", session.alias());
    let rsync = || cluster.cmd(ALICE, "rsync").args(["-a", "--itemize-changes"]);
    let first = rsync().arg(&from).arg(&there).ok();
    assert!(first.contains("data"), "{first}");
    assert_eq!(rsync().arg(&from).arg(&there).ok(), "");
    assert_eq!(session.ssh(["readlink /tmp/synced/link"]).ok(), "data");
    let back = dir.with_extension("back");
    fs::create_dir(&back).expect("own directory");
    std::os::unix::fs::chown(&back, Some(ALICE.uid), Some(ALICE.uid)).expect("root may give away");
    rsync().arg(&there).arg(format!("{}/", back.display())).ok();
    same(&dir.join("data"), &back.join("data"));
    same(&dir.join("sub/with space"), &back.join("sub/with space"));
}
