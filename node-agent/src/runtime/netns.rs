//! A network namespace made ahead of its container, so that its interfaces are
//! set up while the container is made.

use std::fs::File;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result, anyhow};
use nix::sched::{CloneFlags, unshare};
use tokio::sync::oneshot;

/// A network namespace with `lo` up and nothing else. It lives as long as this value or a process in it.
pub(super) struct NetworkNamespace(File);

impl NetworkNamespace {
    /// Makes one, on a thread that ends at once.
    pub async fn make() -> Result<Self> {
        let (answer, answered) = oneshot::channel();
        std::thread::Builder::new()
            .name("netns".into())
            .spawn(move || {
                // Nobody listens any more when the container's creation was given up.
                let _unheard = answer.send(on_own_thread());
            })
            .context("starting a thread")?;
        let made = answered
            .await
            .map_err(|_| anyhow!("making a network namespace failed"))?;
        made.map(Self)
    }

    /// That of a process.
    pub fn of(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/ns/net");
        File::open(&path).map(Self).context(path)
    }

    /// Where other programs of this host find it, while this value lives.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }
}

fn on_own_thread() -> Result<File> {
    unshare(CloneFlags::CLONE_NEWNET).context("making a network namespace")?;
    loopback_up().context("setting lo up")?;
    File::open("/proc/thread-self/ns/net").context("opening the network namespace")
}

/// `ip link set lo up` in this thread's network namespace (netdevice(7), SIOCSIFFLAGS).
#[allow(unsafe_code)]
fn loopback_up() -> std::io::Result<()> {
    let flags = libc::IFF_UP | libc::IFF_RUNNING;
    // SAFETY: `ifreq` is plain data for which zeros are valid; the kernel reads the terminated name and
    // the flags of it, and `fd` is an open socket.
    unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        let socket = OwnedFd::from_raw_fd(fd);
        let mut request: libc::ifreq = mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
            *to = *from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = flags as libc::c_short;
        if libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) < 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}
