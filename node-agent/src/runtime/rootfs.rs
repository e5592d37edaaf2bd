//! A look into a snapshot before its container starts.
//!
//! The snapshot is mounted in a mount namespace that one thread has for itself:
//! whatever happens to the agent, no mount stays behind. The thread's root is
//! the snapshot's, so that no symbolic link that a user left in it leads out.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use carrel_proto::v1::Identity;
use containerd_client::types::Mount;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{chroot, fchdir};
use tokio::sync::oneshot;

use super::etc::SHELLS;

/// A mount that is busy for longer is held by more than a program that starts.
const BUSY_PATIENCE: Duration = Duration::from_secs(5);
/// Between two attempts.
const BUSY_PAUSE: Duration = Duration::from_millis(1);
/// Largest file read from an image's /etc, bytes.
const MAX_FILE: u64 = 4 << 20;

/// What to see to, and what to look for.
pub(super) struct Visit {
    /// Its mounts, as the snapshotter gives them.
    pub mounts: Vec<Mount>,
    /// An empty directory to mount at.
    pub at: PathBuf,
    /// Whose home is made, unless it is mounted anyhow.
    pub identity: Identity,
    /// The home comes from the host.
    pub home_is_mounted: bool,
    /// Who is root inside, by user and group id outside; none: root is.
    pub root: Option<(u32, u32)>,
}

/// What a snapshot had.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub passwd: Option<String>,
    pub group: Option<String>,
    /// The user's shell: the one asked for, else the best that is there.
    pub shell: String,
    /// Login shells read /etc/profile.d.
    pub profile_dir: bool,
}

/// Mounts a snapshot, readies it, reads what is needed, and unmounts it.
pub(super) async fn visit(visit: Visit) -> Result<Found> {
    with_own_mounts(move || on_own_thread(&visit)).await
}

/// Does something on a thread with a mount namespace of its own: what it mounts ends with it.
pub(super) async fn with_own_mounts<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (answer, answered) = oneshot::channel();
    std::thread::Builder::new()
        .name("mounts".into())
        .spawn(move || {
            // Nobody listens any more when the container's creation was given up.
            let _unheard = answer.send(unshare_mounts().and_then(|()| work()));
        })
        .context("starting a thread")?;
    answered
        .await
        .map_err(|_| anyhow!("a thread with mounts of its own failed"))?
}

fn unshare_mounts() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).context("making a mount namespace")?;
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).context("making mounts private")
}

fn on_own_thread(visit: &Visit) -> Result<Found> {
    fs::create_dir_all(&visit.at)?;
    for part in &visit.mounts {
        mount_one(part, &visit.at).context("mounting the snapshot")?;
    }
    let outside = fs::File::open("/")?;
    chroot(&visit.at).context("entering the snapshot")?;
    std::env::set_current_dir("/")?;
    let found = inside(visit);
    // Unmounted before the container mounts the same layers; the namespace's end alone would race with it.
    fchdir(&outside)?;
    chroot(".")?;
    unmount(&visit.at).context("unmounting the snapshot")?;
    found
}

/// Unmounts. A program that another thread starts just now has this process's open files until it
/// executes, and keeps the mount busy for so long.
fn unmount(at: &Path) -> nix::Result<()> {
    let gives_up = Instant::now() + BUSY_PATIENCE;
    loop {
        match umount2(at, MntFlags::empty()) {
            Err(Errno::EBUSY) if Instant::now() < gives_up => std::thread::sleep(BUSY_PAUSE),
            ended => return ended,
        }
    }
}

fn inside(visit: &Visit) -> Result<Found> {
    let make = |path: &str, mode: u32| -> io::Result<bool> {
        if Path::new(path).is_dir() {
            return Ok(false);
        }
        fs::create_dir_all(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        if let Some((uid, gid)) = visit.root {
            chown(path, Some(uid), Some(gid))?;
        }
        Ok(true)
    };
    make("/etc", 0o755)?;
    make("/tmp", 0o1777)?;
    let identity = &visit.identity;
    if !visit.home_is_mounted && make(&identity.home, 0o700).context("making the home")? {
        chown(&identity.home, Some(identity.uid), Some(identity.gid)).context("making the home")?;
    }
    let wanted = [identity.shell.as_str()]
        .into_iter()
        .filter(|shell| !shell.is_empty());
    let shell = wanted
        .chain(SHELLS)
        .find(|shell| Path::new(shell).is_file())
        .unwrap_or("/bin/sh");
    Ok(Found {
        passwd: read_text("/etc/passwd")?,
        group: read_text("/etc/group")?,
        shell: shell.to_owned(),
        profile_dir: Path::new("/etc/profile.d").is_dir(),
    })
}

fn read_text(path: &str) -> Result<Option<String>> {
    // Not to wait for a writer, should it be a pipe.
    let file = match fs::OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path)
    {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("reading the image's {path}")),
    };
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut bytes)?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

fn mount_one(part: &Mount, at: &Path) -> Result<()> {
    let mut flags = MsFlags::empty();
    let mut data = Vec::new();
    for option in &part.options {
        match option.as_str() {
            "ro" => flags |= MsFlags::MS_RDONLY,
            "rw" => {}
            "bind" => flags |= MsFlags::MS_BIND,
            "rbind" => flags |= MsFlags::MS_BIND | MsFlags::MS_REC,
            other => data.push(other.to_owned()),
        }
    }
    // The kernel takes one page of options; the paths of many layers do not fit unless they are short.
    if let Some(base) = common_dir(&data) {
        std::env::set_current_dir(&base)?;
        let prefix = format!("{}/", base.display());
        for option in &mut data {
            if option.starts_with("lowerdir=") {
                *option = option.replace(&prefix, "");
            }
        }
    }
    let data = data.join(",");
    let kind = (!flags.contains(MsFlags::MS_BIND)).then_some(part.r#type.as_str());
    mount(
        Some(part.source.as_str()),
        at,
        kind,
        flags,
        Some(data.as_str()).filter(|data| !data.is_empty()),
    )?;
    Ok(())
}

/// The directory that all lower layers ("…/snapshots/7/fs") are in.
fn common_dir(options: &[String]) -> Option<PathBuf> {
    let layers = options
        .iter()
        .find_map(|option| option.strip_prefix("lowerdir="))?;
    let mut bases = layers.split(':').map(|layer| Path::new(layer).ancestors().nth(2));
    let first = bases.next()??;
    bases.all(|base| base == Some(first)).then(|| first.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_of_one_snapshotter_share_a_directory() {
        let options = |layers: &str| vec!["index=off".to_owned(), format!("lowerdir={layers}")];
        assert_eq!(
            common_dir(&options("/a/s/2/fs:/a/s/1/fs")),
            Some(PathBuf::from("/a/s"))
        );
        assert_eq!(common_dir(&options("/a/s/2/fs:/b/s/1/fs")), None);
        assert_eq!(common_dir(&["rw".to_owned()]), None);
    }
}
