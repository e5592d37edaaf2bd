//! SFTP, scp and forwards with the real OpenSSH clients.

mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Stdio};

use support::{World, wait_for};

fn noise(length: usize) -> Vec<u8> {
    (0..length as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 23) as u8)
        .collect()
}

#[test]
fn scp_copies_both_ways_with_times_and_modes() {
    let world = World::start();
    let data = noise(3_000_001);
    fs::create_dir_all(world.path("tree/sub")).unwrap();
    fs::write(world.path("tree/sub/data"), &data).unwrap();
    fs::write(world.path("tree/script"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(world.path("tree/script"), fs::Permissions::from_mode(0o751)).unwrap();
    let output = world
        .client("scp")
        .args(["-q", "-r", "-p"])
        .arg(world.path("tree"))
        .arg("s:copy")
        .output()
        .unwrap();
    world.check(&output);
    let copy = world.path("home/copy");
    assert!(fs::read(copy.join("sub/data")).unwrap() == data);
    let (here, there) = (
        fs::metadata(world.path("tree/script")).unwrap(),
        fs::metadata(copy.join("script")).unwrap(),
    );
    assert_eq!((here.mode(), here.mtime()), (there.mode(), there.mtime()));
    let output = world
        .client("scp")
        .args(["-q", "s:copy/sub/data"])
        .arg(world.path("back"))
        .output()
        .unwrap();
    world.check(&output);
    assert!(fs::read(world.path("back")).unwrap() == data);
}

#[test]
fn sftp_does_all_that_its_client_can_ask() {
    let world = World::start();
    fs::write(world.path("up"), noise(100_000)).unwrap();
    fs::write(world.path("more"), b"and more").unwrap();
    let home = world.path("home");
    fs::write(home.join("old"), noise(3)).unwrap();
    let batch = format!(
        "pwd\nput {0}/up data\nrename data moved\nrename old moved\nput {0}/up data\nmkdir d\nput {0}/more d/m\n\
         ln -s d/m link\nln data hard\nchmod 640 data\nls -la\nls -l d\nget data {0}/down\n-get missing\nrm d/m\nrmdir d\n\
         df\nput -a {0}/up moved\n",
        world.dir.path().display()
    );
    fs::write(world.path("batch"), batch).unwrap();
    let output = world
        .client("sftp")
        .arg("-b")
        .arg(world.path("batch"))
        .arg("s")
        .output()
        .unwrap();
    world.check(&output);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        text.contains(&format!("Remote working directory: {}", home.display())),
        "{text}"
    );
    assert!(
        text.contains("lrwxrwxrwx") && text.contains("-rw-r-----"),
        "{text}"
    );
    assert!(fs::read(world.path("down")).unwrap() == noise(100_000));
    assert!(
        fs::read(home.join("moved")).unwrap() == noise(100_000),
        "renamed over, then continued"
    );
    assert_eq!(fs::read_link(home.join("link")).unwrap().to_str(), Some("d/m"));
    assert_eq!(fs::metadata(home.join("hard")).unwrap().nlink(), 2);
    assert!(!home.join("d").exists());
}

#[test]
fn names_that_are_not_utf8_are_reached() {
    use std::os::unix::ffi::OsStrExt;
    let world = World::start();
    let name = std::ffi::OsStr::from_bytes(b"caf\xe9");
    fs::write(world.path("home").join(name), b"latin").unwrap();
    let output = world
        .client("scp")
        .args(["-q", "-r", "s:."])
        .arg(world.path("got"))
        .output()
        .unwrap();
    world.check(&output);
    assert_eq!(fs::read(world.path("got").join(name)).unwrap(), b"latin");
}

/// A client that only forwards, until dropped.
struct Forwarding(Child);

impl Forwarding {
    fn start(world: &World, arguments: &[&str]) -> Self {
        let child = world
            .client("ssh")
            .args(["-N", "-o", "ExitOnForwardFailure=yes"])
            .args(arguments)
            .arg("s")
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        Self(child)
    }
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

/// A server that gives back what it was given, upside down, after the end of its input.
fn reverser() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut data = Vec::new();
                stream.read_to_end(&mut data).unwrap();
                data.reverse();
                stream.write_all(&data).unwrap();
            });
        }
    });
    port
}

fn check_reversed(mut stream: impl Read + Write, shutdown: impl FnOnce()) {
    let data = noise(2_000_000);
    stream.write_all(&data).unwrap();
    shutdown();
    let mut back = Vec::new();
    stream.read_to_end(&mut back).unwrap();
    back.reverse();
    assert!(back == data, "{} bytes", back.len());
}

fn connect(port: u16) -> TcpStream {
    let mut stream = None;
    wait_for("the forward", || {
        stream = TcpStream::connect(("127.0.0.1", port)).ok();
        stream.is_some()
    });
    stream.unwrap()
}

fn check_tcp(stream: &TcpStream) {
    check_reversed(stream, || stream.shutdown(std::net::Shutdown::Write).unwrap());
}

#[test]
fn local_and_dynamic_forwards_reach_ports_inside() {
    let world = World::start();
    let (target, local, dynamic) = (reverser(), free_port(), free_port());
    let spec = format!("{local}:localhost:{target}");
    let _forwarding = Forwarding::start(&world, &["-L", &spec, "-D", &dynamic.to_string()]);
    check_tcp(&connect(local));
    // SOCKS 5, no authentication, CONNECT to a name.
    let mut socks = connect(dynamic);
    socks.write_all(&[5, 1, 0]).unwrap();
    let mut answer = [0; 2];
    socks.read_exact(&mut answer).unwrap();
    let mut request = vec![5, 1, 0, 3, 9];
    request.extend_from_slice(b"localhost");
    request.extend_from_slice(&target.to_be_bytes());
    socks.write_all(&request).unwrap();
    let mut reply = [0; 10];
    socks.read_exact(&mut reply).unwrap();
    assert_eq!(reply[1], 0);
    check_tcp(&socks);
}

#[test]
fn remote_forwards_reach_the_client() {
    let world = World::start();
    let (target, remote) = (reverser(), free_port());
    let spec = format!("{remote}:127.0.0.1:{target}");
    let _forwarding = Forwarding::start(&world, &["-R", &spec]);
    check_tcp(&connect(remote));
}

#[test]
fn socket_forwards_work_both_ways() {
    let world = World::start();
    let target = world.path("target.sock");
    let listener = UnixListener::bind(&target).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut data = Vec::new();
            stream.read_to_end(&mut data).unwrap();
            data.reverse();
            stream.write_all(&data).unwrap();
        }
    });
    let (near, far) = (world.path("near.sock"), world.path("far.sock"));
    let local = format!("{}:{}", near.display(), target.display());
    let remote = format!("{}:{}", far.display(), target.display());
    let forwarding = Forwarding::start(&world, &["-L", &local, "-R", &remote]);
    for path in [&near, &far] {
        wait_for("socket", || path.exists());
        let stream = UnixStream::connect(path).unwrap();
        check_reversed(&stream, || stream.shutdown(std::net::Shutdown::Write).unwrap());
    }
    drop(forwarding);
    wait_for("end of the remote forward", || !far.exists());
}

#[test]
fn the_clients_agent_is_reached_and_its_socket_removed() {
    let world = World::start();
    let socket = world.path("agent.sock");
    let mut agent = std::process::Command::new("ssh-agent")
        .arg("-D")
        .arg("-a")
        .arg(&socket)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("the agent", || socket.exists());
    let added = std::process::Command::new("ssh-add")
        .arg("-q")
        .arg(world.path("plain"))
        .env("SSH_AUTH_SOCK", &socket)
        .status();
    assert!(added.unwrap().success());
    let option = format!("IdentityAgent={}", socket.display());
    let output = world
        .client("ssh")
        .env("SSH_AUTH_SOCK", &socket)
        .args(["-A", "-o", &option, "s", "echo $SSH_AUTH_SOCK; ssh-add -L"])
        .output()
        .unwrap();
    agent.kill().unwrap();
    agent.wait().unwrap();
    world.check(&output);
    let text = String::from_utf8(output.stdout).unwrap();
    let (path, keys) = text.split_once('\n').unwrap();
    assert!(
        keys.starts_with("ssh-ed25519 ") && keys.ends_with("plain\n"),
        "{keys}"
    );
    wait_for("end of the agent's socket", || {
        !std::path::Path::new(path).parent().unwrap().exists()
    });
}
