//! Becoming the user, irrevocably.

use anyhow::{Context, bail, ensure};
use carrel_proto::v1::Identity;
use nix::errno::Errno;
use nix::sys::prctl;
use nix::unistd::{Gid, Uid, getresgid, getresuid, setgroups, setresgid, setresuid};

use super::accounts;

/// Capabilities that a kernel may know, with room for later ones.
const MAX_CAPABILITY: libc::c_ulong = 63;

/// What root keeps in a user namespace of its own: what Docker gives (`profiles` of moby, "default capabilities")
/// but for devices, raw sockets and the audit log. By number (`linux/capability.h`): CHOWN 0, DAC_OVERRIDE 1, FOWNER 3,
/// FSETID 4, KILL 5, SETGID 6, SETUID 7, SETPCAP 8, NET_BIND_SERVICE 10, SYS_CHROOT 18, SETFCAP 31.
pub const ROOT_CAPABILITIES: u64 = 1 << 31 | 1 << 18 | 1 << 10 | 0b1_1111_1011;

/// Drops to the user: no capabilities in any set, no way to gain any, not traceable by others. `is_root`: the user is
/// root of this user namespace, and keeps [`ROOT_CAPABILITIES`] in it. Started as that user already (a pod with `runAsUser`, a test), there is nothing to drop.
pub fn drop_to(identity: &Identity, is_root: bool) -> anyhow::Result<()> {
    let kept = if is_root { ROOT_CAPABILITIES } else { 0 };
    let (uid, gid) = (Uid::from_raw(identity.uid), Gid::from_raw(identity.gid));
    let was_root = nix::unistd::geteuid().is_root();
    if was_root {
        clear_bounding_and_ambient(kept);
        let groups: Vec<Gid> = identity.groups.iter().copied().map(Gid::from_raw).collect();
        setgroups(&groups).context("setting the groups (CAP_SETGID is needed)")?;
        setresgid(gid, gid, gid).context("setting the group (CAP_SETGID is needed)")?;
        setresuid(uid, uid, uid).context("setting the user (CAP_SETUID is needed)")?;
        keep_capabilities(kept).context("clearing the capabilities")?;
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
fn clear_bounding_and_ambient(kept: u64) {
    for capability in (0..=MAX_CAPABILITY).filter(|capability| kept >> capability & 1 == 0) {
        // Without CAP_SETPCAP this fails, and no_new_privs alone has to keep capabilities out.
        // SAFETY: prctl with plain numbers touches no memory of this process.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
    }
    // SAFETY: as above.
    unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) };
}

/// Leaves these in the permitted and effective sets, and empties the inheritable one: a change of user empties all,
/// but not where the user is root.
#[allow(unsafe_code)]
fn keep_capabilities(kept: u64) -> nix::Result<()> {
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
    // Effective, permitted, inheritable; then the same of the higher half.
    let (low, high) = (kept as u32, (kept >> 32) as u32);
    let sets = [low, low, 0, high, high, 0];
    // SAFETY: both point to live structures of the layout that version 3 of capset(2) reads.
    let result = unsafe { libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr()) };
    Errno::result(result).map(drop)
}
