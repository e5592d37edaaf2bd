//! What an image must hold: nothing. And what is said when it holds less than was asked of it.

use carrel_tests::image::Image;
use carrel_tests::terminal::Terminal;
use carrel_tests::user::ALICE;

use crate::shared::{self, SMALL};

fn with_image(image: Image) -> Vec<&'static str> {
    [&["--image", image.name()][..], &SMALL].concat()
}

/// One static busybox: commands, a terminal, and files by SFTP, which carrel-init serves itself.
#[test]
fn busybox_alone() {
    let cluster = shared::cluster();
    let session = cluster.open(ALICE, "busybox", &with_image(Image::BusyboxOnly));
    assert_eq!(session.ssh(["echo $((40 + 2)); exit 3"]).run().stdout, "42\n");
    assert_eq!(session.ssh(["/bin/busybox ls /bin"]).ok(), "busybox");
    let mut terminal = Terminal::start(&cluster.ssh(ALICE, ["-tt"]).arg(session.alias()));
    terminal.ask("/bin/busybox stty size", "24 80");
    terminal.line("exit 4");
    assert_eq!(terminal.wait(), 4, "{terminal}");
    let there = format!("{}:/tmp/passwd", session.alias());
    cluster
        .cmd(ALICE, "scp")
        .args(["-q", "-B", "-s", "/etc/passwd"])
        .arg(&there)
        .ok();
    assert_eq!(session.ssh(["/bin/busybox test -s /tmp/passwd"]).run().code, 0);
}

/// `alloc` gives a shell there too.
#[test]
fn a_shell_of_busybox() {
    let cluster = shared::cluster();
    let args = [&["alloc"][..], &with_image(Image::BusyboxOnly)].concat();
    let mut terminal = cluster.terminal(ALICE, args);
    terminal.expect("Granted job allocation");
    terminal.ask("echo $((40 + 2))", "42");
    terminal.line("exit 9");
    assert_eq!(terminal.wait(), 9, "{terminal}");
}

/// An image without a shell: the session runs, and says what is missing instead of hanging.
#[test]
fn an_image_without_a_shell() {
    let cluster = shared::cluster();
    let session = cluster.open(ALICE, "empty", &with_image(Image::Empty));
    session
        .ssh(["echo hello | cat"])
        .run()
        .fails(127, &["shell", "image"]);
    session
        .ssh(["no-such-program"])
        .run()
        .fails(127, &["no-such-program", "not found"]);
    let mut terminal = Terminal::start(&cluster.ssh(ALICE, ["-tt"]).arg(session.alias()));
    terminal.expect("shell");
    assert_eq!(terminal.wait(), 127, "{terminal}");
}

/// An image that is not there fails the job, says which image and why, and frees what it held.
#[test]
fn an_image_that_is_not_there() {
    let cluster = shared::cluster();
    let output = cluster
        .carrel(ALICE, ["alloc", "--image", "local/no-such-image"])
        .args(SMALL)
        .args(["--", "true"])
        .run();
    assert_ne!(output.code, 0, "{output}");
    assert!(output.stderr.contains("local/no-such-image"), "{output}");
    let output = cluster
        .carrel(ALICE, ["alloc", "--image", "127.0.0.1:1/nothing:1"])
        .args(SMALL)
        .args(["--", "true"])
        .run();
    assert_ne!(output.code, 0, "{output}");
    assert!(output.stderr.contains("127.0.0.1:1"), "{output}");
}
