//! Container images for tests, made without a registry.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::programs::repository;

/// An image that `tests/images/make-image` makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Image {
    /// Debian with what editors and file transfers call.
    Debian,
    /// A static busybox with a link for each of its commands.
    Busybox,
    /// `/bin/busybox` and nothing else.
    BusyboxOnly,
    /// No program at all.
    Empty,
    /// A static busybox, nodes in `/nodes` of devices that are not a container's, and `/bin/setuid-busybox`.
    Hostile,
}

impl Image {
    /// The name under which clusters import it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Debian => "local/debian",
            Self::Busybox => "local/busybox",
            Self::BusyboxOnly => "local/busybox-only",
            Self::Empty => "local/empty",
            Self::Hostile => "local/hostile",
        }
    }

    fn kind(self) -> &'static str {
        match self {
            Self::Debian => "debian",
            Self::Busybox => "busybox",
            Self::BusyboxOnly => "busybox-only",
            Self::Empty => "empty",
            Self::Hostile => "hostile",
        }
    }

    /// Its archive; made at the first call on this machine.
    ///
    /// # Panics
    /// It cannot be made.
    pub fn archive(self) -> PathBuf {
        let output = Command::new(repository().join("tests/images/cached-image"))
            .arg(self.kind())
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .expect("tests/images/cached-image can be run");
        assert!(output.status.success(), "no {} image could be made", self.kind());
        PathBuf::from(
            String::from_utf8(output.stdout)
                .expect("a path in UTF-8")
                .trim_end(),
        )
    }
}
