//! What is done once, at the start, with root's rights where there are any.

use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use carrel_proto::v1::{FenceReport, InitConfig};
use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, umount2};
use nix::sys::stat::Mode;
use prost::Message;

use super::fence::Trial;
use super::main_command::MainFiles;
use super::ranks::RanksFiles;
use super::{Options, accounts, privileges, say};
use crate::{files, wire};

/// What the loop works with.
#[derive(Debug)]
pub struct Prepared {
    /// This program, to be executed as the server.
    pub program: OwnedFd,
    /// The listening `ssh.sock`.
    pub ssh: OwnedFd,
    /// The listening `ctl.sock`.
    pub ctl: OwnedFd,
    /// Seed of the host key.
    pub seed: OwnedFd,
    /// Configuration.
    pub config: OwnedFd,
    /// End of the first lease, milliseconds of `CLOCK_BOOTTIME`.
    pub lease_end: Option<u64>,
    /// How the fence stood its trial; none: nobody asked for one.
    pub fence: Option<FenceReport>,
    /// Of a container that is there for a command.
    pub main: Option<MainFiles>,
    /// Where what tasks of steps write is taken and kept; none: nowhere.
    pub ranks: Option<RanksFiles>,
}

/// Bytes of randomness from which the host key is made.
const SEED_BYTES: usize = 32;

/// Reads the configuration, makes the sockets and the key's seed, sees to the user's account,
/// becomes the user, and makes sure that nothing leads out of the container.
pub fn prepare(options: &Options) -> anyhow::Result<Prepared> {
    occupy_standard_files()?;
    let mut config = read_config(&options.run_dir)?;
    // It is spent here: what is kept of the configuration equals what later requests say.
    let first = std::mem::take(&mut config.first_lease_end_ms);
    let lease_end = (first > 0).then_some(first);
    let identity = config.identity.clone().context("init.pb names no identity")?;
    ensure!(!identity.name.is_empty(), "init.pb names no user");
    ensure!(
        identity.home.starts_with('/'),
        "the home {:?} is not an absolute path",
        identity.home
    );

    let is_root = config.root;
    ensure!(
        !is_root || has_user_namespace()?,
        "root in the container needs a user namespace, and there is none"
    );
    let program = open("/proc/self/exe", OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())
        .context("opening /proc/self/exe; is /proc mounted?")?;
    let ssh = listen(&options.run_dir, "ssh.sock")?;
    let ctl = listen(&options.run_dir, "ctl.sock")?;
    let mut seed = [0; SEED_BYTES];
    fs::File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut seed))
        .context("reading /dev/urandom")?;
    let seed = files::sealed("carrel-host-key", &seed).context("keeping the host key")?;
    let main = match config.main {
        Some(_) => Some(MainFiles::make(&options.run_dir).context("making the files of the job's output")?),
        None => None,
    };
    let ranks = options.ranks.as_ref().and_then(|socket| {
        let made = RanksFiles::make(&options.run_dir, socket);
        // A job is worth more than what is kept of its words.
        made.inspect_err(|error| say(&format!("what tasks of steps write is not kept: {error}")))
            .ok()
    });
    let config =
        files::sealed("carrel-config", &config.encode_to_vec()).context("keeping the configuration")?;

    let mut trial = Trial::begin(&options.run_dir)?;
    if let Some(trial) = &mut trial {
        trial.as_root();
    }
    if is_root {
        // Root here could take the sockets' place, or speak to them: the way to them goes.
        umount2(&options.run_dir, MntFlags::MNT_DETACH).context("taking the run directory out of sight")?;
    }
    if let Some(etc) = &options.etc {
        accounts::ensure(etc, &identity, is_root);
    }
    privileges::drop_to(&identity, is_root)?;
    let fence = trial
        .map(|trial| trial.finish(&options.run_dir, is_root))
        .transpose()?;
    Ok(Prepared {
        program,
        ssh,
        ctl,
        seed,
        config,
        lease_end,
        fence,
        main,
        ranks,
    })
}

/// Whether the ids here are not the host's (user_namespaces(7): the first namespace maps all to themselves).
fn has_user_namespace() -> anyhow::Result<bool> {
    let map = fs::read_to_string("/proc/self/uid_map").context("reading /proc/self/uid_map")?;
    let numbers: Vec<&str> = map.split_whitespace().collect();
    Ok(numbers != ["0", "0", "4294967295"])
}

fn read_config(run_dir: &Path) -> anyhow::Result<InitConfig> {
    let path = run_dir.join("init.pb");
    let file = fs::File::open(&path).with_context(|| format!("opening {}", path.display()))?;
    let content = files::read_all(file.as_fd(), wire::MAX_CONFIG)
        .with_context(|| format!("reading {}", path.display()))?;
    InitConfig::decode(&content[..]).with_context(|| format!("{} is not an InitConfig", path.display()))
}

/// A listening socket that only its owner can reach.
fn listen(run_dir: &Path, name: &str) -> anyhow::Result<OwnedFd> {
    let path = run_dir.join(name);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            bail!("removing the old {}: {error}", path.display())
        }
        _ => {}
    }
    let before = nix::sys::stat::umask(Mode::from_bits_truncate(0o177));
    let listener = UnixListener::bind(&path);
    nix::sys::stat::umask(before);
    let listener = listener.with_context(|| format!("listening on {}", path.display()))?;
    let mode = fs::metadata(&path)?.permissions().mode() & 0o777;
    if mode != 0o600 {
        say(&format!("{} has mode {mode:o}", path.display()));
    }
    listener.set_nonblocking(true)?;
    Ok(listener.into())
}

/// Opens /dev/null for each of 0, 1 and 2 that is closed, so that nothing else gets their numbers.
fn occupy_standard_files() -> anyhow::Result<()> {
    use std::os::fd::{AsRawFd, IntoRawFd};
    loop {
        let null = open("/dev/null", OFlag::O_RDWR, Mode::empty()).context("opening /dev/null")?;
        if null.as_raw_fd() > 2 {
            return Ok(());
        }
        // It stays open, as one of the three.
        let _ = null.into_raw_fd();
    }
}
