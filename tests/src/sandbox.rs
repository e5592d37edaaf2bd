//! Namespaces of its own for each test cluster: the tests' users exist in it,
//! its loopback is its own, and its end is the end of everything in it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sched::{CloneFlags, setns};

use crate::programs::{Programs, repository};
use crate::user::User;
use crate::wait;

/// Programs that a sandbox's processes find.
const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Enters the sandbox's cgroups, which `sandbox.sh` lists in the directory `$0`, and leads a session
/// of its own: what a terminal's keys and its end send is for the command, not for `nsenter`.
const ENTER: &str = r#"
while read -r procs; do echo $$ >"$procs"; done <"$0/cgroups"
[ -t 0 ] && exec setsid --ctty "$@"
exec setsid "$@"
"#;

/// A running sandbox.
#[derive(Debug)]
pub struct Sandbox {
    root: PathBuf,
    programs: Programs,
    holder: Child,
    init: u32,
}

impl Sandbox {
    /// Starts one in which `users` exist.
    ///
    /// # Panics
    /// The host does not let it: tests need root.
    pub fn start(programs: &Programs, users: &[User]) -> Self {
        assert!(
            nix::unistd::geteuid().is_root(),
            "cluster tests need root: run ./dev test"
        );
        let root = tempfile::Builder::new()
            .prefix("carrel-test-")
            .tempdir()
            .expect("a directory under /tmp")
            .keep();
        // Users reach their homes and the programs through it; each part has its own mode.
        fs::set_permissions(&root, fs::Permissions::from_mode(0o711)).expect("own directory");
        for dir in ["etc", "target", "home", "logs", "bin"] {
            fs::create_dir(root.join(dir)).expect("own directory");
        }
        // Where hosts with GPUs have it: on PATH.
        let smi = root
            .join("target")
            .join(programs.below_target("carrel-fake-nvidia-smi"));
        std::os::unix::fs::symlink(smi, root.join("bin/nvidia-smi")).expect("own directory");
        let lines = |file: &str, extra: &dyn Fn(&User) -> String| {
            let mut text = fs::read_to_string(file).unwrap_or_default();
            text.extend(users.iter().map(extra));
            text
        };
        let passwd = lines("/etc/passwd", &|user| {
            let home = root.join("home").join(user.name);
            format!(
                "{}:x:{}:{}::{}:/bin/bash\n",
                user.name,
                user.uid,
                user.uid,
                home.display()
            )
        });
        fs::write(root.join("etc/passwd"), passwd).expect("own file");
        let mut group = lines("/etc/group", &|user| format!("{}:x:{}:\n", user.name, user.uid));
        // All of them are in one more.
        let names: Vec<&str> = users.iter().map(|user| user.name).collect();
        group += &format!("readers:x:61999:{}\n", names.join(","));
        fs::write(root.join("etc/group"), group).expect("own file");
        for user in users {
            let home = root.join("home").join(user.name);
            fs::create_dir(&home).expect("own directory");
            fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).expect("own directory");
            std::os::unix::fs::chown(&home, Some(user.uid), Some(user.uid)).expect("root may give away");
        }

        let mut holder = Command::new("bash")
            .arg(repository().join("tests/src/sandbox.sh"))
            .args([root.as_os_str(), programs.target().as_os_str()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A terminal's Ctrl-C is not for it: it cleans up after whoever it ended.
            .process_group(0)
            .spawn()
            .expect("bash is there");
        let mut ready = String::new();
        let stdout = holder.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut ready).expect("a pipe");
        assert_eq!(
            ready.trim(),
            "ready",
            "namespaces cannot be made here; unshare's reason is above"
        );
        let init = only_child(holder.id())
            .and_then(only_child)
            .expect("unshare has one child");
        Self {
            root,
            programs: programs.clone(),
            holder,
            init,
        }
    }

    /// Its directory, the same path inside and outside; removed at its end.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Path of a program under test, as seen inside.
    pub fn program(&self, name: &str) -> PathBuf {
        self.root.join("target").join(self.programs.below_target(name))
    }

    /// The same as seen outside.
    pub fn program_outside(&self, name: &str) -> PathBuf {
        self.programs.target().join(self.programs.below_target(name))
    }

    /// Path of the static carrel-init, as seen inside.
    pub fn carrel_init(&self) -> PathBuf {
        self.root.join("target").join(self.programs.init_below_target())
    }

    /// A user's home.
    pub fn home(&self, user: User) -> PathBuf {
        if user.uid == 0 {
            self.root.clone()
        } else {
            self.root.join("home").join(user.name)
        }
    }

    /// A command line that runs `program` inside, as `user`, in the user's home, with an
    /// environment of `env` and the few variables that every login has.
    pub fn argv(&self, user: User, env: &[(String, OsString)], program: &OsStr) -> Vec<OsString> {
        let home = self.home(user);
        let mut argv: Vec<OsString> = Vec::new();
        argv.extend(["nsenter", "--target"].map(Into::into));
        argv.push(self.init.to_string().into());
        argv.extend(
            [
                "--mount", "--pid", "--net", "--ipc", "--cgroup", "--", "sh", "-c", ENTER,
            ]
            .map(Into::into),
        );
        argv.push(self.root.clone().into());
        if user.uid != 0 {
            argv.push("setpriv".into());
            argv.push(format!("--reuid={}", user.uid).into());
            argv.push(format!("--regid={}", user.uid).into());
            argv.push("--clear-groups".into());
        }
        argv.extend(["env", "--ignore-environment", "--chdir"].map(Into::into));
        argv.push(home.clone().into());
        let mut variable = |name: &str, value: &OsStr| {
            let mut pair = OsString::from(name);
            pair.push("=");
            pair.push(value);
            argv.push(pair);
        };
        let programs = self.program("carrel");
        let mut path = programs.parent().unwrap_or(&self.root).as_os_str().to_owned();
        path.push(":");
        path.push(self.root.join("bin"));
        path.push(":");
        path.push(SYSTEM_PATH);
        variable("PATH", &path);
        variable("HOME", home.as_os_str());
        variable("USER", OsStr::new(user.name));
        variable("LOGNAME", OsStr::new(user.name));
        variable("SHELL", OsStr::new("/bin/bash"));
        variable("LANG", OsStr::new("C.UTF-8"));
        variable("TERM", OsStr::new("xterm"));
        for (name, value) in env {
            variable(name, value);
        }
        argv.push(program.to_owned());
        argv
    }

    /// A TCP connection from the sandbox's own network.
    ///
    /// # Errors
    /// As [`TcpStream::connect`].
    pub fn connect(&self, port: u16) -> io::Result<TcpStream> {
        let network = fs::File::open(format!("/proc/{}/ns/net", self.init))?;
        // A thread may change its network namespace; its sockets stay in it.
        let connecting = std::thread::spawn(move || {
            setns(network, CloneFlags::CLONE_NEWNET)?;
            TcpStream::connect((Ipv4Addr::LOCALHOST, port))
        });
        connecting.join().expect("it does not panic")
    }

    /// Its first process, as the host counts.
    pub fn init(&self) -> u32 {
        self.init
    }

    /// Its mounts: what a cluster has mounted, for looking for leftovers.
    pub fn mounts(&self) -> String {
        fs::read_to_string(format!("/proc/{}/mountinfo", self.init)).unwrap_or_default()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // Its end of file ends the namespaces, and then the script cleans up.
        drop(self.holder.stdin.take());
        if let Err(error) = self.holder.wait() {
            eprintln!("sandbox {}: {error}", self.root.display());
        }
    }
}

/// A process's child, once it has one.
pub(crate) fn only_child(pid: u32) -> Option<u32> {
    wait::poll(wait::PATIENCE, || {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        children.split_whitespace().next()?.parse().ok()
    })
}
