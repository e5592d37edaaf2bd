//! Becoming the user, irrevocably.

use anyhow::{Context, bail, ensure};
use carrel_proto::v1::Identity;
use nix::errno::Errno;
use nix::sys::prctl;
use nix::unistd::{Gid, Uid, getresgid, getresuid, setgroups, setresgid, setresuid};

use super::accounts;

/// Capabilities that a kernel may know, with room for later ones.
const MAX_CAPABILITY: libc::c_ulong = 63;

/// Drops to the user: no capabilities in any set, no way to gain any, not traceable by others.
/// Started as that user already (a pod with `runAsUser`, a test), there is nothing to drop.
pub fn drop_to(identity: &Identity) -> anyhow::Result<()> {
    let (uid, gid) = (Uid::from_raw(identity.uid), Gid::from_raw(identity.gid));
    let was_root = nix::unistd::geteuid().is_root();
    if was_root {
        clear_bounding_and_ambient();
        let groups: Vec<Gid> = identity.groups.iter().copied().map(Gid::from_raw).collect();
        setgroups(&groups).context("setting the groups (CAP_SETGID is needed)")?;
        setresgid(gid, gid, gid).context("setting the group (CAP_SETGID is needed)")?;
        setresuid(uid, uid, uid).context("setting the user (CAP_SETUID is needed)")?;
        clear_capabilities().context("clearing the capabilities")?;
    } else if nix::unistd::geteuid() != uid {
        bail!(
            "started as user {}, but the session is user {uid}'s, and only root can change",
            nix::unistd::geteuid()
        );
    }
    prctl::set_no_new_privs().context("setting no_new_privs")?;
    prctl::set_dumpable(false).context("becoming untraceable")?;

    let (users, groups) = (getresuid()?, getresgid()?);
    ensure!(
        [users.real, users.effective, users.saved] == [uid; 3],
        "the user did not change"
    );
    ensure!(
        !was_root || [groups.real, groups.effective, groups.saved] == [gid; 3],
        "the group did not change"
    );
    if !uid.is_root() {
        ensure!(
            setresuid(Uid::from_raw(0), Uid::from_raw(0), Uid::from_raw(0)).is_err(),
            "root could come back"
        );
    }
    accounts::close_home(identity);
    Ok(())
}

#[allow(unsafe_code)]
fn clear_bounding_and_ambient() {
    for capability in 0..=MAX_CAPABILITY {
        // Without CAP_SETPCAP this fails, and no_new_privs alone has to keep capabilities out.
        // SAFETY: prctl with plain numbers touches no memory of this process.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
    }
    // SAFETY: as above.
    unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) };
}

/// Empties the permitted, effective and inheritable sets: a change of user does so too, but not
/// where the user is root.
#[allow(unsafe_code)]
fn clear_capabilities() -> nix::Result<()> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    /// `_LINUX_CAPABILITY_VERSION_3`: two words for each of three sets.
    const VERSION_3: u32 = 0x2008_0522;
    let header = Header {
        version: VERSION_3,
        pid: 0,
    };
    let sets = [0_u32; 6];
    // SAFETY: both point to live structures of the layout that version 3 of capset(2) reads.
    let result = unsafe { libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr()) };
    Errno::result(result).map(drop)
}
