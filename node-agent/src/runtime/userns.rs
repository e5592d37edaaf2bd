//! Root in a container, by a user namespace: which user ids of the host stand for which inside, and
//! the image's files as such a container sees them.
//!
//! Inside, 0 is the user outside: what root writes to the mounted home is the user's. 1 to 65535 are
//! a range of the node's that is nobody's, another one for each user. The user's supplementary groups
//! keep their numbers, so that files shared by group stay so.
//!
//! No file is copied or given away for it. The image's layers and the container's own are mounted once
//! more, with owners as the namespace maps them, and the container's overlay is made of these mounts.
//! On the disk the container's own layer so holds the same numbers as inside: a session may be run
//! as root now and without root then, and finds its files as they are.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use carrel_proto::v1::Identity;
use containerd_client::types::Mount;
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::syscall;

/// User ids of a container: as many as distributions give to a user (`SUB_UID_COUNT`).
const RANGE: u32 = 65_536;
/// Supplementary groups that keep their numbers. Each takes two lines of a map, which may be a page
/// long (user_namespaces(7)).
const MAX_GROUPS: usize = 32;
/// Who the kernel is on a container's own layer, where it makes things for itself (whiteouts): a number that
/// stands for nobody inside.
const MOUNTER: u32 = u32::MAX - 1;
/// Root's home in images.
const ROOT_HOME: &str = "/root";
/// Whose range is whose, in the state directory.
const FILE: &str = "userns.json";

/// User ids of the host that stand for others' in containers whose user is root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UserRanges {
    /// The first.
    pub base: u32,
    /// Users who get a range of 65,536 each.
    pub users: u32,
}

impl Default for UserRanges {
    /// Above what directories and other container programs give out, and below where numbers become
    /// negative in some programs (systemd, "Users, Groups, UIDs and GIDs on systemd Systems"; SSSD's `ldap_idmap_range_max`).
    fn default() -> Self {
        Self {
            base: 0x7800_0000,
            users: 1024,
        }
    }
}

impl UserRanges {
    /// The first id after them.
    ///
    /// # Errors
    /// They are no ids that files and programs take.
    fn end(self) -> Result<u32> {
        let size = self.users.checked_mul(RANGE);
        let end = size.and_then(|size| self.base.checked_add(size));
        let end = end.filter(|end| *end <= 1 << 31 && self.base >= RANGE);
        end.with_context(|| {
            format!(
                "userns in the agent's configuration: {} times {RANGE} ids from {} on are not all between {RANGE} and {}",
                self.users,
                self.base,
                i32::MAX
            )
        })
    }
}

/// A line of a map: `count` ids from `inside` on are those from `outside` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line {
    inside: u32,
    outside: u32,
    count: u32,
}

/// Which ids stand for which in one user's containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    uids: Vec<Line>,
    gids: Vec<Line>,
    /// The user outside, who is root inside.
    pub uid: u32,
    pub gid: u32,
}

impl Mapping {
    /// The mapping for a user whose range begins at `first`.
    fn new(identity: &Identity, first: u32) -> Self {
        Self {
            uids: lines(identity.uid, first, &[]),
            gids: lines(identity.gid, first, &groups(identity)),
            uid: identity.uid,
            gid: identity.gid,
        }
    }

    /// As OCI has it (`uidMappings`, `gidMappings`).
    pub fn oci(&self) -> (Value, Value) {
        let value = |lines: &[Line]| {
            lines
                .iter()
                .map(|line| json!({"containerID": line.inside, "hostID": line.outside, "size": line.count}))
                .collect()
        };
        (value(&self.uids), value(&self.gids))
    }

    /// A namespace that maps files' owners so, without a process in it. Blocks.
    fn namespace(&self) -> Result<File> {
        // A program that ends when its input does.
        let mut holder = Command::new("cat");
        holder
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        syscall::in_new_user_namespace(&mut holder);
        let mut holder = holder
            .spawn()
            .context("user namespaces cannot be made (see /proc/sys/user/max_user_namespaces)")?;
        let write = |file: &str, own: u32, lines: &[Line]| {
            let mounter = Line {
                inside: MOUNTER,
                outside: 0,
                count: 1,
            };
            let text: String = lines
                .iter()
                .chain((own != 0).then_some(&mounter))
                .map(|line| format!("{} {} {}\n", line.inside, line.outside, line.count))
                .collect();
            fs::write(format!("/proc/{}/{file}", holder.id()), text)
                .with_context(|| format!("writing a user namespace's {file}"))
        };
        let made = write("uid_map", self.uid, &self.uids)
            .and_then(|()| write("gid_map", self.gid, &self.gids))
            .and_then(|()| Ok(File::open(format!("/proc/{}/ns/user", holder.id()))?));
        drop(holder.stdin.take());
        holder
            .wait()
            .context("ending the user namespace's first process")?;
        made
    }
}

/// The groups that keep their numbers.
fn groups(identity: &Identity) -> Vec<u32> {
    let mut groups = identity.groups.clone();
    groups.sort_unstable();
    groups.dedup();
    groups.retain(|gid| *gid != 0 && *gid != identity.gid);
    groups.truncate(MAX_GROUPS);
    groups
}

/// A user, as his processes are to be inside. Who is let in, and by which name, stays.
pub fn inside(identity: &Identity, home_is_mounted: bool) -> Identity {
    let home = if home_is_mounted {
        &identity.home
    } else {
        ROOT_HOME
    };
    Identity {
        uid: 0,
        gid: 0,
        groups: groups(identity),
        home: home.to_owned(),
        group_name: "root".to_owned(),
        ..identity.clone()
    }
}

/// 0 is `own`; the others lie in the range, but for `kept`, which stay what they are. The range's first
/// stands for what `own` is called without root, where that lies beyond the others.
fn lines(own: u32, first: u32, kept: &[u32]) -> Vec<Line> {
    let line = |inside, outside, count| Line {
        inside,
        outside,
        count,
    };
    let mut lines = vec![line(0, own, 1)];
    let mut next = 1;
    for id in kept {
        if *id < RANGE && *id > next {
            lines.push(line(next, first + next, id - next));
        }
        lines.push(line(*id, *id, 1));
        if *id < RANGE {
            next = id + 1;
        }
    }
    if next < RANGE {
        lines.push(line(next, first + next, RANGE - next));
    }
    if own >= RANGE {
        lines.push(line(own, first, 1));
    }
    lines
}

#[derive(Default, Serialize, Deserialize)]
struct Table {
    /// Number of the range of each user id.
    ranges: BTreeMap<u32, u32>,
}

/// A user's mapping, with a range that is his on this node for good. One caller at a time. Blocks.
///
/// # Errors
/// The ranges are given out, or the user's own ids lie in them.
pub(super) fn mapping(state_dir: &Path, ranges: UserRanges, identity: &Identity) -> Result<Mapping> {
    let end = ranges.end()?;
    let taken = |id: u32| ranges.base <= id && id < end;
    let own = [identity.uid, identity.gid];
    if let Some(id) = own
        .into_iter()
        .chain(groups(identity))
        .find(|id| taken(*id) || *id >= MOUNTER)
    {
        bail!(
            "id {id} of user {} lies among those that --root needs: userns.base in the agent's configuration moves them",
            identity.name
        );
    }
    let path = state_dir.join(FILE);
    let mut table: Table = match fs::read(&path) {
        Ok(bytes) => {
            serde_json::from_slice(&bytes).with_context(|| format!("{} is damaged", path.display()))?
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Table::default(),
        Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
    };
    let known = table.ranges.get(&identity.uid).copied();
    let number = known.map_or_else(|| give_out(&path, &mut table, ranges, identity.uid), Ok)?;
    ensure!(
        number < ranges.users,
        "user {}'s ids for --root lie beyond userns.users in the agent's configuration",
        identity.name
    );
    Ok(Mapping::new(identity, ranges.base + number * RANGE))
}

/// Gives a range to a user for good.
fn give_out(path: &Path, table: &mut Table, ranges: UserRanges, uid: u32) -> Result<u32> {
    let number = table.ranges.values().max().map_or(0, |last| last + 1);
    ensure!(
        number < ranges.users,
        "this node has no user ids left for --root: {number} users have some (userns.users in the agent's configuration)"
    );
    table.ranges.insert(uid, number);
    store(path, table).with_context(|| format!("writing {}", path.display()))?;
    Ok(number)
}

fn store(path: &Path, table: &Table) -> Result<()> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(dir)?;
    file.write_all(&serde_json::to_vec(table)?)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

/// A snapshot's layers, as a mapping shows them, mounted below a directory of the host; gone with this value.
pub(super) struct Shifted {
    dir: PathBuf,
    /// The snapshot's mounts, with these layers instead of its own.
    pub mounts: Vec<Mount>,
}

impl Shifted {
    /// Blocks.
    ///
    /// # Errors
    /// The kernel or the file system cannot, or the snapshot is no overlay.
    pub fn new(mapping: &Mapping, mut mounts: Vec<Mount>, dir: PathBuf) -> Result<Self> {
        let namespace = mapping.namespace()?;
        clear(&dir)?;
        let mut shifted = Self {
            dir,
            mounts: Vec::new(),
        };
        let [mount] = mounts.as_mut_slice() else {
            bail!("the snapshot is no overlay, and cannot be shifted");
        };
        let show = |path: &Path, name: &str| -> Result<PathBuf> {
            let at = shifted.dir.join(name);
            fs::create_dir_all(&at)?;
            syscall::mount_idmapped(path, &at, namespace.as_fd())
                .with_context(|| format!("showing {} to a user namespace", path.display()))?;
            Ok(at)
        };
        // Both of the container's own directories must lie on one mount.
        let mut own: Option<(PathBuf, PathBuf)> = None;
        let mut has_layers = false;
        for option in &mut mount.options {
            let Some((name, value)) = option.split_once('=') else {
                continue;
            };
            let shown = match name {
                "lowerdir" => {
                    has_layers = true;
                    let layers = value.split(':').enumerate();
                    let shown: Result<Vec<_>> = layers
                        .map(|(n, layer)| Ok(show(Path::new(layer), &n.to_string())?.display().to_string()))
                        .collect();
                    shown?.join(":")
                }
                "upperdir" | "workdir" => {
                    let path = Path::new(value);
                    let (parent, name) = path
                        .parent()
                        .zip(path.file_name())
                        .context("the snapshot's own directory has no parent")?;
                    let at = match &own {
                        Some((of, at)) if of == parent => at.clone(),
                        Some(_) => bail!("the snapshot's own directories lie apart, and cannot be shifted"),
                        None => show(parent, "own")?,
                    };
                    let shown = at.join(name).display().to_string();
                    own = Some((parent.to_owned(), at));
                    shown
                }
                _ => continue,
            };
            *option = format!("{name}={shown}");
        }
        ensure!(
            has_layers && own.is_some(),
            "the snapshot is no overlay, and cannot be shifted"
        );
        shifted.mounts = mounts;
        Ok(shifted)
    }
}

impl Drop for Shifted {
    /// An overlay that was mounted of them holds them by itself.
    fn drop(&mut self) {
        if let Err(error) = clear(&self.dir) {
            tracing::warn!(error = format!("{error:#}"), "a layer stays mounted");
        }
    }
}

/// Takes away what is left of a [`Shifted`]. Absent is fine.
pub(super) fn clear(dir: &Path) -> Result<()> {
    let listed = match fs::read_dir(dir) {
        Ok(listed) => listed,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("reading {}", dir.display())),
    };
    for entry in listed {
        let at = entry?.path();
        match umount2(&at, MntFlags::MNT_DETACH) {
            Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => {}
            Err(error) => return Err(error).with_context(|| format!("unmounting {}", at.display())),
        }
        // Never with what may be in it: that would be the image's.
        fs::remove_dir(&at).with_context(|| format!("removing {}", at.display()))?;
    }
    fs::remove_dir(dir).with_context(|| format!("removing {}", dir.display()))
}

/// Whether this host can do it, tried on the directory that holds the snapshots; an error says what is missing.
/// `at` is an empty directory. To be called on a thread with mounts of its own. Blocks.
pub(super) fn probe(ranges: UserRanges, snapshots: &Path, at: &Path) -> Result<()> {
    let somebody = Identity {
        uid: 1,
        gid: 1,
        ..Identity::default()
    };
    ranges.end()?;
    let namespace = Mapping::new(&somebody, ranges.base).namespace()?;
    let none: Option<&str> = None;
    let tmpfs = nix::mount::MsFlags::empty();
    nix::mount::mount(Some("tmpfs"), at, Some("tmpfs"), tmpfs, none).context("mounting a tmpfs")?;
    let [lower, upper, work, whole] = ["lower", "upper", "work", "whole"].map(|name| at.join(name));
    for dir in [&lower, &upper, &work, &whole] {
        fs::create_dir(dir)?;
    }
    syscall::mount_idmapped(snapshots, &lower, namespace.as_fd()).with_context(|| {
        format!(
            "the file system of {} cannot show files with other owners (idmapped mounts: ext4, xfs and btrfs of Linux 5.19 can)",
            snapshots.display()
        )
    })?;
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        lower.display(),
        upper.display(),
        work.display()
    );
    let overlay = nix::mount::MsFlags::empty();
    nix::mount::mount(
        Some("overlay"),
        &whole,
        Some("overlay"),
        overlay,
        Some(options.as_str()),
    )
    .context("the kernel cannot make an overlay of files with other owners: Linux 5.19 or newer can")
}

/// Whether device nodes in a directory of the host can be opened.
pub(super) fn can_hold_devices(dir: &Path) -> Result<()> {
    use nix::sys::statvfs::{FsFlags, statvfs};
    let flags = statvfs(dir)?.flags();
    ensure!(
        !flags.contains(FsFlags::ST_NODEV),
        "{} is mounted nodev, and a container's device nodes are made there",
        dir.display()
    );
    Ok(())
}

/// Whether processes of any user can get to a directory: runc's, which is root inside, must.
pub(super) fn can_be_entered(dir: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    for dir in dir.ancestors() {
        let mode = fs::metadata(dir)?.permissions().mode();
        ensure!(
            mode & 0o001 != 0,
            "other users cannot pass through {}: `chmod o+x` lets them",
            dir.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(groups: &[u32]) -> Identity {
        Identity {
            name: "alice".into(),
            uid: 61_001,
            gid: 100,
            groups: groups.to_vec(),
            home: "/home/alice".into(),
            ..Identity::default()
        }
    }

    fn shown(lines: &[Line]) -> Vec<(u32, u32, u32)> {
        let lines = lines.iter();
        lines
            .map(|line| (line.inside, line.outside, line.count))
            .collect()
    }

    /// Each of 0 to 65535 is mapped once, and no two to one id.
    fn is_whole(lines: &[Line]) -> bool {
        let mut inside: Vec<u32> = lines
            .iter()
            .flat_map(|line| line.inside..line.inside + line.count)
            .collect();
        let mut outside: Vec<u32> = lines
            .iter()
            .flat_map(|line| line.outside..line.outside + line.count)
            .collect();
        for ids in [&mut inside, &mut outside] {
            ids.sort_unstable();
            if ids.windows(2).any(|pair| pair[0] == pair[1]) {
                return false;
            }
        }
        (0..RANGE).eq(inside.into_iter().take(RANGE as usize))
    }

    #[test]
    fn root_is_the_user_and_groups_keep_their_numbers() {
        let alice = identity(&[200_000, 100, 27, 28, 27, 0]);
        let mapping = Mapping::new(&alice, 1 << 20);
        assert_eq!(shown(&mapping.uids), [(0, 61_001, 1), (1, (1 << 20) + 1, 65_535)]);
        assert_eq!(
            shown(&mapping.gids),
            [
                (0, 100, 1),
                (1, (1 << 20) + 1, 26),
                (27, 27, 1),
                (28, 28, 1),
                (200_000, 200_000, 1),
                (29, (1 << 20) + 29, 65_507),
            ]
        );
        assert!(is_whole(&mapping.uids) && is_whole(&mapping.gids));
        let inside = inside(&alice, true);
        assert_eq!(
            (inside.uid, inside.gid, inside.groups),
            (0, 0, vec![27, 28, 200_000])
        );
        assert_eq!(
            (inside.name.as_str(), inside.home.as_str()),
            ("alice", "/home/alice")
        );
        assert_eq!(super::inside(&alice, false).home, "/root");
    }

    /// A large id of a directory's is itself inside, too: it owns what was written without root.
    #[test]
    fn large_ids_and_the_last_one_are_mapped() {
        let large = Identity {
            uid: 1_234_567,
            ..identity(&[65_535])
        };
        let mapping = Mapping::new(&large, 1 << 20);
        assert!(is_whole(&mapping.uids) && is_whole(&mapping.gids));
        assert_eq!(shown(&mapping.uids)[2], (1_234_567, 1 << 20, 1));
        assert_eq!(shown(&mapping.gids).last(), Some(&(65_535, 65_535, 1)));
        // The node's root.
        assert!(is_whole(&lines(0, 1 << 20, &[])));
    }

    #[test]
    fn a_map_fits_into_a_page() {
        let many: Vec<u32> = (0..1000).map(|n| 4_000_000 + n * 2).collect();
        let mapping = Mapping::new(&identity(&many), 0x7bff_0000);
        // The longest line, twice for each group.
        assert!(mapping.gids.len() <= 2 * MAX_GROUPS + 4 && (2 * MAX_GROUPS + 4) * 34 < 4096);
    }

    #[test]
    fn ranges_are_kept_and_never_shared() {
        let dir = tempfile::tempdir().unwrap();
        let ranges = UserRanges {
            base: 1 << 20,
            users: 2,
        };
        let of = |uid| {
            let identity = Identity { uid, ..identity(&[]) };
            mapping(dir.path(), ranges, &identity)
        };
        let first = of(1000).unwrap();
        let second = of(1001).unwrap();
        assert_eq!(first.uids[1].outside, (1 << 20) + 1);
        assert_eq!(second.uids[1].outside, (1 << 20) + 65_536 + 1);
        assert_eq!(of(1000).unwrap(), first);
        assert!(of(1002).unwrap_err().to_string().contains("userns.users"));
        assert!(of((1 << 20) + 5).unwrap_err().to_string().contains("userns.base"));
        assert_eq!(UserRanges::default().base % RANGE, 0);
        mapping(dir.path(), UserRanges::default(), &identity(&[])).unwrap();
    }

    #[test]
    fn nothing_but_empty_directories_is_cleared() {
        let dir = tempfile::tempdir().unwrap();
        let shifted = dir.path().join("7-1");
        clear(&shifted).unwrap();
        fs::create_dir_all(shifted.join("0")).unwrap();
        clear(&shifted).unwrap();
        assert!(!shifted.exists());
        fs::create_dir_all(shifted.join("0/bin")).unwrap();
        assert!(clear(&shifted).is_err() && shifted.join("0/bin").exists());
    }
}
