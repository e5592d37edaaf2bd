//! System calls that no crate of ours wraps.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Has a command run in a user namespace of its own, as nobody there until its maps are written.
pub(super) fn in_new_user_namespace(command: &mut Command) {
    let unshare = || match nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUSER) {
        Ok(()) => Ok(()),
        Err(error) => Err(error.into()),
    };
    // SAFETY: between fork and exec, one system call without allocation.
    unsafe { command.pre_exec(unshare) };
}

/// Mounts a directory at another place, its files' owners shown as a user namespace maps them
/// (mount_setattr(2), "ID-mapped mounts"). What is mounted below it is left out.
pub(super) fn mount_idmapped(source: &Path, at: &Path, namespace: BorrowedFd<'_>) -> io::Result<()> {
    let (source, at) = (
        CString::new(source.as_os_str().as_bytes())?,
        CString::new(at.as_os_str().as_bytes())?,
    );
    let succeeded = |result: libc::c_long| match result {
        result if result < 0 => Err(io::Error::last_os_error()),
        result => Ok(result),
    };
    // SAFETY: the strings and the structure live until the calls return, and their sizes are their
    // own; the first call's result is a descriptor that is nobody else's.
    unsafe {
        let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC;
        let tree = succeeded(libc::syscall(
            libc::SYS_open_tree,
            libc::AT_FDCWD,
            source.as_ptr(),
            flags,
        ))?;
        let tree = OwnedFd::from_raw_fd(tree as libc::c_int);
        let mut attributes: libc::mount_attr = mem::zeroed();
        attributes.attr_set = libc::MOUNT_ATTR_IDMAP;
        attributes.propagation = libc::MS_PRIVATE;
        attributes.userns_fd = namespace.as_raw_fd() as u64;
        succeeded(libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        ))?;
        succeeded(libc::syscall(
            libc::SYS_move_mount,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_FDCWD,
            at.as_ptr(),
            libc::MOVE_MOUNT_F_EMPTY_PATH,
        ))?;
    }
    Ok(())
}
