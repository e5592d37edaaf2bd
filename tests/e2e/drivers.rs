//! Programs that drive Slurm, as they are published: they must not notice the difference.

use std::process::{Command, Stdio};

use carrel_tests::cluster::{Cluster, Options};
use carrel_tests::image::Image;
use carrel_tests::programs::repository;
use carrel_tests::user::ALICE;

/// Puts what those programs are made of into a user's directory.
pub fn library(to: &std::path::Path) {
    copy(drivers().as_ref(), to);
}

/// The directory of those programs; fetched at the first call on this machine.
fn drivers() -> String {
    cached("cached-drivers", "what is in PyPI is not to be had")
}

/// The directory of Debian's PyTorch and all that it needs; made at the first call on this machine.
pub fn torch() -> String {
    cached("cached-torch", "no PyTorch could be made of Debian's packages")
}

/// What a program in `tests/drivers` prints: a directory.
fn cached(program: &str, otherwise: &str) -> String {
    let output = Command::new(repository().join("tests/drivers").join(program))
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{otherwise}");
    String::from_utf8(output.stdout)
        .expect("a path")
        .trim()
        .to_owned()
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    let copied = Command::new("cp").arg("-r").arg(from).arg(to).status();
    assert!(copied.is_ok_and(|status| status.success()), "{}", from.display());
}

/// submitit's SlurmExecutor from PyPI: jobs and their failures, arrays, tasks over two nodes, and a job that is told to
/// save its work, queues itself again from inside, and goes on.
#[test]
fn submitit_does_not_notice() {
    let cluster = Cluster::start(&Options {
        hosts: vec![None, None],
        images: vec![Image::Debian],
        ..Options::default()
    });
    let home = cluster.sandbox().home(ALICE);
    let links = home.join("slurm");
    cluster.carrel(ALICE, ["slurm", "install"]).arg(&links).ok();
    let library = home.join("python");
    self::library(&library);
    copy(
        &repository().join("tests/drivers/submitit_driver.py"),
        &home.join("driver.py"),
    );
    let path = format!("{}:/usr/bin:/bin", links.display());
    let library = library.display().to_string();
    let work = home.join("work");
    let env = [("PATH", path.as_str()), ("PYTHONPATH", library.as_str())];
    let driven = cluster
        .cmd_with(ALICE, &env, "/usr/bin/python3")
        .arg(home.join("driver.py"))
        .arg(&work)
        .within(std::time::Duration::from_mins(5))
        .run();
    let logs = || {
        let jobs = cluster
            .carrel(ALICE, ["history", "--output", "json"])
            .run()
            .stdout;
        let said = (1..8).map(|job| {
            cluster
                .carrel(ALICE, ["logs", &job.to_string()])
                .run()
                .to_string()
        });
        jobs + &said.collect::<String>()
    };
    assert_eq!(driven.code, 0, "{driven}\n{}", logs());
    assert_eq!(driven.stdout, "job\narray\ngang\nagain\nall\n", "{driven}");
}
