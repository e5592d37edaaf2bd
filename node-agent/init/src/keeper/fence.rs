//! The fence's trial: before anything of the user's runs, process 1 tries what must fail.
//!
//! The list of what is the host's or another job's comes from the agent (`fence.pb`); what no
//! container may do is known here. Whatever can be tried with root's rights is tried before they
//! are dropped: file modes then prove nothing, only the fence does. The arguments of system calls
//! are such that a call that is let through fails harmlessly, with another error than a refusal.
//!
//! A fence that leaks ends the container before its user gets in.

use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use carrel_proto::v1::{Fence, FenceProbe, FenceReport};
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, getsockopt, socket, sockopt,
};
use prost::Message;

use super::privileges::ROOT_CAPABILITIES;
use super::syscalls;

/// Longest list of things to try: the devices of the largest hosts, and some.
const MAX_FILE: u64 = 256 << 10;
/// What answers within this time on the same host is reached; rules that refuse answer at once.
const CONNECT_WAIT: Duration = Duration::from_millis(10);

/// Kernel interfaces of the whole host. With root's user id, modes do not protect them.
const KERNEL_FILES: [&str; 12] = [
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/hotplug",
    "/proc/sys/vm/drop_caches",
    "/proc/sys/fs/binfmt_misc/register",
    "/proc/sysrq-trigger",
    "/proc/irq/default_smp_affinity",
    "/sys/kernel/uevent_helper",
    "/sys/kernel/profiling",
    "/sys/power/state",
    "/sys/fs/cgroup/release_agent",
    "/sys/fs/cgroup/devices/devices.allow",
];
/// Kernel memory and secrets, which appear empty.
const MASKED_FILES: [&str; 4] = [
    "/proc/kcore",
    "/proc/keys",
    "/proc/timer_list",
    "/proc/sched_debug",
];
/// Directories that appear empty.
const MASKED_DIRS: [&str; 3] = ["/sys/firmware", "/proc/scsi", "/sys/devices/virtual/powercap"];
/// Directories in which no cgroup can be made.
const SEALED_DIRS: [&str; 3] = [
    "/sys/fs/cgroup",
    "/sys/fs/cgroup/devices",
    "/sys/fs/cgroup/memory",
];

/// A trial that is under way.
pub struct Trial {
    fence: Fence,
    began: Instant,
    checks: u32,
    leaks: Vec<String>,
}

impl Trial {
    /// Begins the trial that `fence.pb` asks for; none: nobody asked for one.
    pub fn begin(run_dir: &Path) -> anyhow::Result<Option<Self>> {
        let path = run_dir.join("fence.pb");
        let mut content = Vec::new();
        match fs::File::open(&path) {
            Ok(file) => file.take(MAX_FILE + 1).read_to_end(&mut content),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => Err(error),
        }
        .with_context(|| format!("reading {}", path.display()))?;
        ensure!(content.len() as u64 <= MAX_FILE, "{} is too long", path.display());
        let fence =
            Fence::decode(&content[..]).with_context(|| format!("{} is not a Fence", path.display()))?;
        Ok(Some(Self {
            fence,
            began: Instant::now(),
            checks: 0,
            leaks: Vec::new(),
        }))
    }

    /// What is tried with root's user id: devices and the kernel's files.
    pub fn as_root(&mut self) {
        for FenceProbe { name, target } in std::mem::take(&mut self.fence.devices) {
            let opened = OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
                .open(&target);
            // Of all errors only the device cgroup's says that it is the fence which refuses.
            let refused = matches!(&opened, Err(error) if error.raw_os_error() == Some(libc::EPERM));
            self.check(refused, || match opened {
                Ok(_) => format!("the device of {name} can be opened"),
                Err(error) => format!("the device of {name} is not refused: {error}"),
            });
            // Mounted where it could not be made.
            let _ = umount2(target.as_str(), MntFlags::MNT_DETACH);
            if let Err(error) = fs::remove_file(&target) {
                self.leaks.push(format!("{target} cannot be removed: {error}"));
            } else if let Some(dir) = Path::new(&target).parent() {
                // Only the last one's succeeds.
                let _ = fs::remove_dir(dir);
            }
        }
        for path in KERNEL_FILES {
            let opened = OpenOptions::new().write(true).open(path);
            self.check(opened.is_err(), || format!("{path} can be written"));
        }
        for path in MASKED_FILES {
            let mut byte = [0];
            let read = fs::File::open(path).and_then(|mut file| file.read(&mut byte));
            self.check(!matches!(read, Ok(1)), || format!("{path} can be read"));
        }
        for path in MASKED_DIRS {
            let shown = fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some());
            self.check(!shown, || format!("{path} is shown"));
        }
        for path in SEALED_DIRS {
            let probe = format!("{path}/carrel-fence");
            let made = fs::create_dir(&probe).is_ok();
            // In a user namespace, the directory above version 1's hierarchies is the container's own.
            let is_cgroup = made && fs::exists(format!("{probe}/cgroup.procs")).unwrap_or(true);
            if made {
                let _ = fs::remove_dir(&probe);
            }
            self.check(!is_cgroup, || format!("a cgroup can be made in {path}"));
        }
    }

    /// The rest, with the rights that the user's processes have; how it went, or what leaks.
    /// `is_root`: the user is root of this user namespace.
    pub fn finish(mut self, run_dir: &Path, is_root: bool) -> anyhow::Result<FenceReport> {
        let fence = std::mem::take(&mut self.fence);
        let connecting: Vec<_> = fence.addresses.iter().map(Connecting::begin).collect();
        self.privileges(if is_root { ROOT_CAPABILITIES } else { 0 });
        self.system_calls();
        self.namespaces(&fence.namespaces);
        for FenceProbe { name, target } in &fence.sockets {
            let reached = UnixStream::connect(target).is_ok();
            self.check(!reached, || format!("{name} at {target} can be reached"));
        }
        self.run_dir(run_dir, is_root);
        let until = Instant::now() + CONNECT_WAIT;
        for (probe, connecting) in fence.addresses.iter().zip(connecting) {
            let reached = connecting.reached(until);
            self.check(!reached, || {
                format!("{} at {} can be reached", probe.name, probe.target)
            });
        }
        if !self.leaks.is_empty() {
            bail!("the fence leaks: {}", self.leaks.join("; "));
        }
        let micros = self.began.elapsed().as_micros();
        Ok(FenceReport {
            checks: self.checks,
            micros: u32::try_from(micros).unwrap_or(u32::MAX),
        })
    }

    fn check(&mut self, held: bool, leak: impl FnOnce() -> String) {
        self.checks += 1;
        if !held {
            self.leaks.push(leak());
        }
    }

    /// Process 1's own directory is shut, or gone.
    fn run_dir(&mut self, run_dir: &Path, is_root: bool) {
        if is_root {
            for name in ["init.pb", "fence.pb", "ctl.sock", "ssh.sock"] {
                let path = run_dir.join(name);
                let gone =
                    fs::symlink_metadata(&path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
                self.check(gone, || format!("{} of process 1 can be reached", path.display()));
            }
        } else if !nix::unistd::geteuid().is_root() {
            // A node's root who runs a job of his own is the owner of it.
            let listed = fs::read_dir(run_dir).is_ok();
            self.check(!listed, || {
                format!("{} of process 1 can be entered", run_dir.display())
            });
        }
    }

    /// No capability but these, no way to another, and a filter over system calls.
    fn privileges(&mut self, capabilities: u64) {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let (none, these) = (format!("{:016x}", 0), format!("{capabilities:016x}"));
        for (field, wanted) in [
            ("CapInh", none.as_str()),
            ("CapPrm", &these),
            ("CapEff", &these),
            ("CapBnd", &these),
            ("CapAmb", &none),
            ("NoNewPrivs", "1"),
            ("Seccomp", "2"),
        ] {
            let value = status
                .lines()
                .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
                .unwrap_or_default()
                .trim();
            self.check(value == wanted, || format!("{field} of processes is {value:?}"));
        }
    }

    fn system_calls(&mut self) {
        for (name, outcome) in syscalls::forbidden() {
            let refused = matches!(outcome, Err(Errno::EPERM | Errno::EACCES | Errno::ENOSYS));
            self.check(refused, || match outcome {
                Ok(()) => format!("the system call {name} succeeds"),
                Err(error) => format!("the system call {name} is let through ({error})"),
            });
        }
        let made = syscalls::make_memory_device(c"/tmp/.carrel-fence");
        self.check(made.is_err(), || "device nodes can be made".to_owned());
    }

    /// This process is in none of the host's namespaces, and is the first in its own.
    fn namespaces(&mut self, hosts: &[FenceProbe]) {
        let first = nix::unistd::getpid().as_raw() == 1;
        self.check(first, || {
            "process 1 is not the first of its PID namespace".to_owned()
        });
        for FenceProbe { name, target } in hosts {
            let own = fs::read_link(format!("/proc/self/ns/{name}"));
            let apart = own.as_ref().is_ok_and(|own| own.as_os_str() != target.as_str());
            self.check(apart, || format!("the {name} namespace is the host's"));
        }
    }
}

/// A connection that is not waited for yet.
enum Connecting {
    Under(OwnedFd),
    Over(bool),
}

impl Connecting {
    fn begin(probe: &FenceProbe) -> Self {
        let Ok(address) = probe.target.parse::<SocketAddr>() else {
            // What cannot be tried must not pass.
            return Self::Over(true);
        };
        let family = if address.is_ipv4() {
            AddressFamily::Inet
        } else {
            AddressFamily::Inet6
        };
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let Ok(fd) = socket(family, SockType::Stream, flags, None) else {
            return Self::Over(true);
        };
        match connect(fd.as_raw_fd(), &SockaddrStorage::from(address)) {
            Err(Errno::EINPROGRESS) => Self::Under(fd),
            Ok(()) | Err(Errno::ECONNREFUSED) => Self::Over(true),
            Err(_) => Self::Over(false),
        }
    }

    /// Somebody answered, be it with a refusal. An answer of the network's rules is none.
    fn reached(self, until: Instant) -> bool {
        match self {
            Self::Over(reached) => reached,
            Self::Under(fd) => {
                let left = until.saturating_duration_since(Instant::now());
                let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
                let mut polled = [PollFd::new(fd.as_fd(), PollFlags::POLLOUT)];
                match poll(&mut polled, left) {
                    Ok(0) | Err(_) => false,
                    Ok(_) => matches!(
                        getsockopt(&fd, sockopt::SocketError),
                        Ok(0 | libc::ECONNREFUSED) | Err(_)
                    ),
                }
            }
        }
    }
}
