//! Mail to users of batch jobs, by a program of the operator's.

use std::os::unix::fs::PermissionsExt as _;

use carrel_tests::cluster::{Cluster, Options};
use carrel_tests::user::{ALICE, ROOT};

use crate::shared::{self, SMALL};

/// Writes down who is told what; of END it fails, as a mail server may.
const PROGRAM: &str = "#!/bin/sh\n\
    echo \"$# $1 $3 $SLURM_JOB_MAIL_TYPE $CARREL_JOB_STATE $2\" >> \"$0.sent\"\n\
    [ \"$SLURM_JOB_MAIL_TYPE\" = END ] && { echo no server >&2; exit 7; }\n\
    exit 0\n";

#[test]
fn users_are_told_by_the_operators_program() {
    // The broker looks for the program at its start.
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).expect("own directory");
    let program = dir.path().join("mail");
    std::fs::write(&program, PROGRAM).expect("own file");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("own file");
    let cluster = Cluster::start(&Options {
        broker_config: format!("mail_program = \"{}\"\n", program.display()),
        ..Options::default()
    });
    let submit = |args: &[&str]| {
        let all = [&["submit", "--parsable", "-J", "train"][..], &SMALL, args].concat();
        let submitted = cluster.carrel(ALICE, all).run();
        assert_eq!(
            (submitted.code, submitted.stderr.as_str()),
            (0, ""),
            "{submitted}"
        );
        submitted.stdout.trim().to_owned()
    };
    let sent = dir.path().join("mail.sent");
    let told = |wanted: &str| {
        cluster.ready(&format!("the mail {wanted:?}"), |_| {
            std::fs::read_to_string(&sent).is_ok_and(|sent| sent.lines().any(|line| line.starts_with(wanted)))
        });
    };
    let first = submit(&["--mail-type=ALL", "--mail-user=a@example.org", "--wrap", "exit 3"]);
    let subject = format!("Slurm Job_id={first} Name=train");
    told(&format!(
        "3 -s a@example.org BEGIN RUNNING {subject} Began, Queued time 00:00:0"
    ));
    told(&format!(
        "3 -s a@example.org FAIL FAILED {subject} Failed, Run time 00:00:"
    ));
    // Nobody waits for the program, whatever becomes of it; and where no address is said it is the user's name.
    let second = submit(&["--mail-type=END", "--wrap", "true"]);
    let subject = format!("Slurm Job_id={second} Name=train");
    told(&format!(
        "3 -s alice END COMPLETED {subject} Ended, Run time 00:00:"
    ));
    // What is wanted can be changed while it runs.
    let third = submit(&["--wrap", "until [ -e told ]; do sleep 0.1; done; exit 4"]);
    cluster.until(&third, "RUNNING");
    let job = format!("JobId={third}");
    let update = [
        "slurm",
        "scontrol",
        "update",
        &job,
        "MailUser=b@example.org",
        "MailType=FAIL",
    ];
    cluster.carrel(ALICE, update).ok();
    cluster.write(ALICE, "told", "");
    told(&format!(
        "3 -s b@example.org FAIL FAILED Slurm Job_id={third} Name=train Failed, Run time 00:00:"
    ));
    let shown = cluster.json(ROOT, ["show", &first]);
    assert_eq!(shown["batch"]["mail_type"], "BEGIN,END,FAIL,REQUEUE", "{shown}");
    assert_eq!(shown["batch"]["mail_user"], "a@example.org", "{shown}");
    let sent = std::fs::read_to_string(&sent).expect("what was sent");
    assert_eq!(sent.lines().count(), 4, "each thing is told once: {sent}");
}

#[test]
fn where_no_mail_is_sent_that_is_said() {
    let cluster = shared::cluster();
    let submit = |args: &[&str]| {
        let all = [&["submit"][..], &SMALL, args, &["--wrap", "true"]].concat();
        cluster.carrel(ALICE, all).run()
    };
    let noted = submit(&["--mail-type=END"]);
    assert_eq!(noted.code, 0, "{noted}");
    assert!(noted.stderr.contains("--mail-type: no mail is sent"), "{noted}");
    let alone = submit(&["--mail-user=alice"]);
    assert!(alone.stderr.contains("without --mail-type"), "{alone}");
    assert_eq!(submit(&["--mail-type=NONE"]).stderr, "");
    submit(&["--mail-type=SOMETIMES"]).fails(2, &["no mail of type", "BEGIN"]);
    submit(&["--mail-type=END", "--mail-user=-t"]).fails(2, &["nobody to send mail to"]);
}
