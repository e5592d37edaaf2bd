//! System calls that no container may make, with arguments that do no harm where one is let through.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_long};

use nix::errno::Errno;

/// "No such file", "no such address": for a call that must not reach its work.
const NONE: c_long = -1;

/// Each call that must be refused, and how it went: `EPERM`, `EACCES` or `ENOSYS` where it was.
pub fn forbidden() -> Vec<(&'static str, nix::Result<()>)> {
    let with_user = c_long::from(libc::CLONE_NEWUSER | libc::CLONE_FS);
    // A place that nothing is mounted at (umount2(2), EINVAL).
    let no_mount = c"/proc/self".as_ptr() as c_long;
    let calls: [(&'static str, c_long, [c_long; 5]); 25] = [
        ("mount", libc::SYS_mount, [0; 5]),
        ("umount2", libc::SYS_umount2, [no_mount, 0, 0, 0, 0]),
        ("pivot_root", libc::SYS_pivot_root, [0; 5]),
        ("open_tree", libc::SYS_open_tree, [NONE, 0, NONE, 0, 0]),
        ("fsopen", libc::SYS_fsopen, [0, NONE, 0, 0, 0]),
        ("unshare", libc::SYS_unshare, [NONE, 0, 0, 0, 0]),
        ("setns", libc::SYS_setns, [NONE, 0, 0, 0, 0]),
        // A new user namespace and a shared root do not go together (clone(2), EINVAL).
        (
            "clone with a user namespace",
            libc::SYS_clone,
            [with_user, 0, 0, 0, 0],
        ),
        ("clone3", libc::SYS_clone3, [0; 5]),
        ("bpf", libc::SYS_bpf, [NONE, 0, 0, 0, 0]),
        (
            "perf_event_open",
            libc::SYS_perf_event_open,
            [0, 0, NONE, NONE, 0],
        ),
        ("init_module", libc::SYS_init_module, [0; 5]),
        ("finit_module", libc::SYS_finit_module, [NONE, 0, 0, 0, 0]),
        ("delete_module", libc::SYS_delete_module, [0; 5]),
        ("kexec_load", libc::SYS_kexec_load, [0, NONE, 0, 0, 0]),
        ("keyctl", libc::SYS_keyctl, [NONE, 0, 0, 0, 0]),
        ("add_key", libc::SYS_add_key, [0; 5]),
        ("request_key", libc::SYS_request_key, [0; 5]),
        (
            "open_by_handle_at",
            libc::SYS_open_by_handle_at,
            [NONE, 0, 0, 0, 0],
        ),
        ("io_uring_setup", libc::SYS_io_uring_setup, [0; 5]),
        ("userfaultfd", libc::SYS_userfaultfd, [NONE, 0, 0, 0, 0]),
        // SYSLOG_ACTION_SIZE_BUFFER: tells a size.
        ("syslog", libc::SYS_syslog, [10, 0, 0, 0, 0]),
        ("clock_settime", libc::SYS_clock_settime, [NONE, 0, 0, 0, 0]),
        ("swapon", libc::SYS_swapon, [0; 5]),
        // Without its magic numbers it does nothing (reboot(2), EINVAL).
        ("reboot", libc::SYS_reboot, [0; 5]),
    ];
    let made = calls.map(|(name, number, [a, b, c, d, e])| {
        // SAFETY: null pointers, descriptors that are not open, and unknown flags: the kernel takes
        // none of them for memory or an object, whichever call it is; the one string is a constant.
        let result = unsafe { libc::syscall(number, a, b, c, d, e) };
        (name, Errno::result(result).map(drop))
    });
    let vsock = {
        // SAFETY: takes numbers only.
        let result = unsafe { libc::socket(libc::AF_VSOCK, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
        Errno::result(result).map(drop)
    };
    made.into_iter()
        .chain([("socket of the host's VM", vsock)])
        .collect()
}

/// Makes a node of the device that is the host's memory; takes it away again.
pub fn make_memory_device(path: &CStr) -> nix::Result<()> {
    // SAFETY: `path` is a string that lives until the calls return.
    unsafe {
        let made = libc::mknod(path.as_ptr(), libc::S_IFCHR | 0o600, libc::makedev(1, 1));
        if made == 0 {
            libc::unlink(path.as_ptr());
        }
        Errno::result(made).map(drop)
    }
}
