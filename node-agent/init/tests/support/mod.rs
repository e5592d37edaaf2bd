//! A carrel-init outside of any container, and the real OpenSSH client to reach it.

#![allow(dead_code)]

pub mod terminal;

use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use carrel_proto::v1::{EnvVar, Identity, InitConfig, InitRequest, InitStatus, SshAccess};
use prost::Message;
use tempfile::TempDir;

/// Longest wait for anything; far beyond what it takes.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// How a relay speaks to `ssh.sock`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Raw SSH, as through a jump host.
    Raw,
    /// The resumable stream, as `carrel proxy` does.
    Framed,
}

/// One running carrel-init.
pub struct World {
    pub dir: TempDir,
    init: Option<Child>,
    config: InitConfig,
    port: u16,
}

impl World {
    /// One that lets in certificates of `ca` for "alice" and the plain key `plain`.
    pub fn start() -> Self {
        Self::start_with(Way::Raw, |_| {})
    }

    pub fn start_with(way: Way, change: impl FnOnce(&mut InitConfig)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in ["run", "home"] {
            fs::create_dir(path(name)).unwrap();
            fs::set_permissions(path(name), fs::Permissions::from_mode(0o700)).unwrap();
        }
        for key in ["ca", "other-ca", "host-ca", "user", "plain"] {
            keygen(&["-q", "-t", "ed25519", "-N", "", "-C", key, "-f"], &path(key));
        }
        let public = |name: &str| fs::read_to_string(path(&format!("{name}.pub"))).unwrap();
        let mut config = InitConfig {
            job: 7,
            generation: 1,
            identity: Some(Identity {
                name: "alice".into(),
                uid: nix::unistd::geteuid().as_raw(),
                gid: nix::unistd::getegid().as_raw(),
                groups: Vec::new(),
                home: path("home").to_string_lossy().into_owned(),
                shell: "/bin/bash".into(),
                group_name: String::new(),
                ..Identity::default()
            }),
            env: vec![EnvVar {
                name: "SLURM_JOB_ID".into(),
                value: "7".into(),
            }],
            workdir: String::new(),
            first_lease_end_ms: 0,
            ssh: Some(SshAccess {
                user_cas: vec![public("ca")],
                principals: vec!["alice".into()],
                keys: vec![public("plain")],
                host_certificate: String::new(),
                ..SshAccess::default()
            }),
            banner: String::new(),
            root: false,
            ..InitConfig::default()
        };
        change(&mut config);
        fs::write(path("run/init.pb"), config.encode_to_vec()).unwrap();
        let log = fs::File::create(path("init.log")).unwrap();
        let init = Command::new(env!("CARGO_BIN_EXE_carrel-init"))
            .arg("--run-dir")
            .arg(path("run"))
            .env("RUST_LOG", "debug,russh=info")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let port = relay(path("run/ssh.sock"), way);
        let mut world = Self {
            dir,
            init: Some(init),
            config,
            port,
        };
        let status = world.control().next();
        assert!(status.ready, "{status:?}");
        world.certify("user", &["-n", "alice", "-V", "-5m:+1h"]);
        world.write_config(&status.host_public_key);
        world
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Signs a key as `KEY-cert.pub`, by the CA unless `-s` is among the arguments.
    pub fn certify(&self, key: &str, arguments: &[&str]) {
        let mut command = Command::new("ssh-keygen");
        command.args(["-q", "-I", "alice@test"]);
        if !arguments.contains(&"-s") {
            command.arg("-s").arg(self.path("ca"));
        }
        let output = command
            .args(arguments)
            .arg(self.path(&format!("{key}.pub")))
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    fn write_config(&mut self, host_key: &str) {
        let known = format!("dev.alice.carrel {host_key}\n");
        fs::write(self.path("known_hosts"), known).unwrap();
        let dir = self.dir.path().display();
        let text = format!(
            "Host *\n  HostName 127.0.0.1\n  Port {}\n  User alice\n  HostKeyAlias dev.alice.carrel\n  \
             UserKnownHostsFile {dir}/known_hosts\n  GlobalKnownHostsFile /dev/null\n  StrictHostKeyChecking yes\n  \
             IdentitiesOnly yes\n  IdentityAgent none\n  IdentityFile {dir}/user\n  BatchMode yes\n  LogLevel ERROR\n",
            self.port
        );
        fs::write(self.path("ssh_config"), text).unwrap();
    }

    /// A program of OpenSSH's with the configuration for this world.
    pub fn client(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .arg("-F")
            .arg(self.path("ssh_config"))
            .stdin(Stdio::null());
        command
    }

    /// `ssh ARGUMENTS…`; the host is `s`.
    pub fn ssh(&self, arguments: &[&str]) -> Output {
        self.client("ssh").args(arguments).output().unwrap()
    }

    /// What a command prints that must succeed.
    pub fn say(&self, command: &str) -> String {
        let output = self.ssh(&["s", command]);
        self.check(&output);
        String::from_utf8(output.stdout).unwrap()
    }

    /// Fails with the log, if a command failed.
    pub fn check(&self, output: &Output) {
        assert!(
            output.status.success(),
            "{}: {}\n{}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
            self.log()
        );
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.path("init.log")).unwrap_or_default()
    }

    pub fn config(&self) -> InitConfig {
        self.config.clone()
    }

    pub fn control(&self) -> Control {
        let socket = self.path("run/ctl.sock");
        wait_for("ctl.sock", || UnixStream::connect(&socket).is_ok());
        let stream = UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Control { stream }
    }

    pub fn init_pid(&self) -> i32 {
        self.init.as_ref().unwrap().id() as i32
    }

    /// The server: the keeper's child of that name.
    pub fn server_pid(&self) -> i32 {
        let mut found = 0;
        wait_for("the server", || {
            found = children(self.init_pid())
                .into_iter()
                .find(|pid| {
                    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                    name.trim() == "carrel-ssh"
                })
                .unwrap_or(0);
            found != 0
        });
        found
    }

    pub fn wait_exit(&mut self) -> ExitStatus {
        let mut init = self.init.take().unwrap();
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = init.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < until, "carrel-init does not end\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let Some(mut init) = self.init.take() else { return };
        // It ends everything that it started.
        let _ = nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(init.id() as i32),
            nix::sys::signal::Signal::SIGTERM,
        );
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until && matches!(init.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A control connection, as the agent's.
pub struct Control {
    stream: UnixStream,
}

impl Control {
    /// The next status.
    pub fn next(&mut self) -> InitStatus {
        self.try_next().unwrap()
    }

    pub fn try_next(&mut self) -> io::Result<InitStatus> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let mut status = vec![0; u32::from_be_bytes(length) as usize];
        self.stream.read_exact(&mut status)?;
        Ok(InitStatus::decode(&status[..]).unwrap())
    }

    /// Reads statuses until one fits.
    pub fn until(&mut self, fits: impl Fn(&InitStatus) -> bool) -> InitStatus {
        loop {
            let status = self.next();
            if fits(&status) {
                return status;
            }
        }
    }

    /// Waits until all that was sent is done, and hangs up.
    pub fn finish(mut self) {
        self.stream.shutdown(std::net::Shutdown::Write).unwrap();
        while self.try_next().is_ok() {}
    }

    pub fn send(&mut self, request: &InitRequest) {
        let body = request.encode_to_vec();
        let mut frame = (body.len() as u32).to_be_bytes().to_vec();
        frame.extend_from_slice(&body);
        self.stream.write_all(&frame).unwrap();
    }
}

/// Waits until something is so.
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "no {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn keygen(arguments: &[&str], file: &Path) {
    let status = Command::new("ssh-keygen")
        .args(arguments)
        .arg(file)
        .status()
        .unwrap();
    assert!(status.success());
}

pub fn children(parent: i32) -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &i32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let after = stat.rsplit(')').next().unwrap_or_default();
            after.split_ascii_whitespace().nth(1) == Some(&parent.to_string())
        })
        .collect()
}

/// A port on the loopback that leads to `ssh.sock`, as gateway and agent would.
fn relay(socket: PathBuf, way: Way) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = UnixStream::connect(&socket) else {
                continue;
            };
            std::thread::spawn(move || match way {
                Way::Raw => raw(&near, &far),
                Way::Framed => super::support::framed::pump(near, far),
            });
        }
    });
    port
}

fn raw(near: &TcpStream, far: &UnixStream) {
    let (mut near_in, mut far_out) = (near.try_clone().unwrap(), far.try_clone().unwrap());
    std::thread::spawn(move || {
        let _ = io::copy(&mut near_in, &mut far_out);
        let _ = far_out.shutdown(std::net::Shutdown::Write);
    });
    let (mut far_in, mut near_out) = (far, near);
    let _ = io::copy(&mut far_in, &mut near_out);
    let _ = near_out.shutdown(std::net::Shutdown::Both);
}

pub mod framed {
    //! The dialler's side of the resumable stream, with two threads that read and one that acts.

    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::sync_channel;

    use bytes::Bytes;
    use carrel_core::stream::{Endpoint, Limits, Read, StreamId};
    use carrel_proto::claim::StreamKey;

    enum Event {
        Near(Vec<u8>),
        Far(Vec<u8>),
    }

    pub fn pump(near: TcpStream, far: UnixStream) {
        let (events, happened) = sync_channel(4);
        let (mut near_in, mut far_in) = (near.try_clone().unwrap(), far.try_clone().unwrap());
        let from_near = events.clone();
        std::thread::spawn(move || {
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(length) = near_in.read(&mut buffer) {
                if from_near.send(Event::Near(buffer[..length].to_vec())).is_err() || length == 0 {
                    return;
                }
            }
        });
        std::thread::spawn(move || {
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(length) = far_in.read(&mut buffer) {
                if events.send(Event::Far(buffer[..length].to_vec())).is_err() || length == 0 {
                    return;
                }
            }
        });
        let mut id = [0; 16];
        std::fs::File::open("/dev/urandom")
            .unwrap()
            .read_exact(&mut id)
            .unwrap();
        let key = StreamKey::new([id, id].concat().try_into().unwrap());
        let mut end = Endpoint::new(StreamId(id), key.public(), Limits::default());
        end.attach();
        let (mut near, mut far) = (near, far);
        let mut waiting = Vec::new();
        loop {
            while !waiting.is_empty() && end.writable() > 0 {
                let count = end.writable().min(waiting.len());
                end.write(Bytes::from(waiting.drain(..count).collect::<Vec<u8>>()));
            }
            loop {
                match end.read() {
                    Read::Data(bytes) => {
                        if near.write_all(&bytes).is_err() {
                            return;
                        }
                    }
                    Read::Pending => break,
                    Read::End => {
                        let _ = near.shutdown(std::net::Shutdown::Write);
                        break;
                    }
                }
            }
            while let Some(transmit) = end.poll_transmit() {
                if far
                    .write_all(transmit.head())
                    .and_then(|()| far.write_all(&transmit.body))
                    .is_err()
                {
                    return;
                }
            }
            match happened.recv() {
                Ok(Event::Near(bytes)) if bytes.is_empty() => end.finish(),
                Ok(Event::Near(bytes)) => waiting.extend_from_slice(&bytes),
                Ok(Event::Far(bytes)) if bytes.is_empty() => return,
                Ok(Event::Far(bytes)) => {
                    if end.handle_bytes(&bytes).is_err() {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
    }
}
