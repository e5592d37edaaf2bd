//! The programs under test, as `./dev` builds them.

use std::path::{Path, PathBuf};

/// Top of the repository.
pub fn repository() -> &'static Path {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap_or(tests)
}

/// Which build of the programs is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// What tests run.
    Debug,
    /// What benchmarks run.
    Release,
}

impl Profile {
    fn folder(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Release => "release",
        }
    }
}

/// Where the programs are, relative to the target directory, so that a
/// sandbox can show them elsewhere.
#[derive(Clone, Debug)]
pub struct Programs {
    target: PathBuf,
    profile: Profile,
    init: PathBuf,
}

impl Programs {
    /// Finds them all.
    ///
    /// # Panics
    /// One is missing: it says which, and what builds it.
    pub fn find(profile: Profile) -> Self {
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository().join("target"), PathBuf::from);
        let folder = profile.folder();
        for program in [
            "carrel",
            "carrel-broker",
            "carrel-node",
            "libnvidia_ml.so",
            "carrel-fake-nvidia-smi",
            "carrel-fake-mps-control",
        ] {
            let path = target.join(folder).join(program);
            assert!(
                path.exists(),
                "{} is not built: ./dev test builds it",
                path.display()
            );
        }
        Self {
            init: find_init(&target, folder),
            target,
            profile,
        }
    }

    /// The target directory.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// A program's path below the target directory.
    pub fn below_target(&self, program: &str) -> PathBuf {
        Path::new(self.profile.folder()).join(program)
    }

    /// The static carrel-init's path below the target directory.
    pub fn init_below_target(&self) -> &Path {
        &self.init
    }
}

/// The static carrel-init: built for musl, or for glibc where musl cannot be had.
fn find_init(target: &Path, folder: &str) -> PathBuf {
    let arch = std::env::consts::ARCH;
    let candidates = ["musl", "gnu"].map(|libc| format!("{arch}-unknown-linux-{libc}/{folder}/carrel-init"));
    let found = candidates.iter().find(|path| target.join(path).exists());
    found.map_or_else(
        || {
            panic!(
                "the static carrel-init is not built: ./dev test builds it ({})",
                candidates[0]
            )
        },
        PathBuf::from,
    )
}
