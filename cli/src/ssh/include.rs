//! The one line of ours in the user's SSH config.
//!
//! The file is the user's: it is read as bytes, whatever they are; it changes only by one line at
//! its very top, where an Include holds for every host; a link is written through; the write is
//! whole or not at all.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::error::{CliError, Context as _, Result};
use crate::paths;

/// Sees that the user's SSH config includes `ours`. Returns whether it had to be added.
pub fn ensure(users: &Path, ours: &Path) -> Result<bool> {
    let ours = ours
        .to_str()
        .filter(|p| !p.contains(['"', '\\', '\n', '*', '?', '[', '$', '%']))
        .ok_or_else(|| {
            CliError::failed(format!("{} cannot be named in an SSH config", ours.display()))
                .hint("a home directory without quotes, backslashes, wildcards, $ and % is needed")
        })?;
    let target = follow(users)?;
    let what = format!("cannot change {}", target.display());
    let existing = match std::fs::read(&target) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error).context(format_args!("cannot read {}", target.display())),
    };
    let Some(changed) = with_include(&existing, ours) else {
        return Ok(false);
    };
    if let Some(dir) = target.parent().filter(|dir| !dir.exists()) {
        paths::create_private_dir(dir)?;
    }
    replace(&target, &changed).context(what)?;
    Ok(true)
}

/// The config with our line at its top; none when it is in force already.
fn with_include(existing: &[u8], ours: &str) -> Option<Vec<u8>> {
    if is_included(existing, ours) {
        return None;
    }
    let first_line = existing
        .split_inclusive(|b| *b == b'\n')
        .next()
        .unwrap_or_default();
    let end = if first_line.ends_with(b"\r\n") {
        "\r\n"
    } else {
        "\n"
    };
    let mut changed = format!("{}{end}", include_line(ours)).into_bytes();
    changed.extend_from_slice(existing);
    Some(changed)
}

fn include_line(ours: &str) -> String {
    if ours.contains(' ') {
        format!("Include \"{ours}\"")
    } else {
        format!("Include {ours}")
    }
}

/// Whether an Include of `ours` stands before the first Host or Match: below one, it would hold
/// for those hosts only.
fn is_included(existing: &[u8], ours: &str) -> bool {
    for line in existing.split(|b| *b == b'\n') {
        let line = String::from_utf8_lossy(line);
        let line = line.trim_matches(|c: char| c.is_ascii_whitespace() || c == '\x0c');
        let end = line
            .find(|c: char| c.is_ascii_whitespace() || c == '=')
            .unwrap_or(line.len());
        let (keyword, rest) = line.split_at(end);
        match keyword.to_ascii_lowercase().as_str() {
            "host" | "match" => return false,
            "include" => {
                let rest = rest.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == '=');
                if arguments(rest).iter().any(|path| path == ours) {
                    return true;
                }
            }
            _ => {}
        }
    }
    false
}

/// Words, or words in double quotes, up to a comment.
fn arguments(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() && !rest.starts_with('#') {
        let (word, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => rest.split_at(rest.find(|c: char| c.is_ascii_whitespace()).unwrap_or(rest.len())),
        };
        words.push(word.to_owned());
        rest = after.trim_start();
    }
    words
}

/// Where a path leads through links; a link may lead to a file that is not there yet.
fn follow(path: &Path) -> Result<PathBuf> {
    /// As many as Linux follows.
    const MOST_LINKS: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        match std::fs::read_link(&path) {
            Ok(next) => path = path.parent().unwrap_or(Path::new(".")).join(next),
            Err(_) => return Ok(path),
        }
    }
    Err(CliError::failed(format!(
        "{} is a circle of links",
        path.display()
    )))
}

/// Replaces a file's content by renaming a complete new file over it, with its mode and owner. A
/// file that cannot be replaced (a mount point, a second hard link, somebody else's directory) is
/// written in place.
fn replace(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    let old = std::fs::metadata(path).ok();
    if replaceable(old.as_ref())
        && let Ok(mut file) = tempfile::NamedTempFile::new_in(dir)
    {
        file.write_all(content)?;
        if let Some(old) = &old {
            file.as_file().set_permissions(old.permissions())?;
        }
        file.as_file().sync_all()?;
        if same_owner(file.path(), old.as_ref()) && file.persist(path).is_ok() {
            return Ok(());
        }
    }
    let mut file = std::fs::File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    // Longer than before: nothing of the old is lost when this breaks off between.
    file.write_all(content)?;
    file.set_len(content.len() as u64)?;
    file.sync_all()
}

#[cfg(unix)]
fn replaceable(old: Option<&std::fs::Metadata>) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    old.is_none_or(|old| old.nlink() == 1 && old.is_file())
}

#[cfg(not(unix))]
fn replaceable(_old: Option<&std::fs::Metadata>) -> bool {
    true
}

/// Gives the new file to the old one's owner (root changes a user's file under sudo).
#[cfg(unix)]
fn same_owner(new: &Path, old: Option<&std::fs::Metadata>) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let Some(old) = old else { return true };
    let Ok(made) = std::fs::metadata(new) else {
        return false;
    };
    (made.uid(), made.gid()) == (old.uid(), old.gid())
        || std::os::unix::fs::chown(new, Some(old.uid()), Some(old.gid())).is_ok()
}

#[cfg(not(unix))]
fn same_owner(_new: &Path, _old: Option<&std::fs::Metadata>) -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OURS: &str = "/home/a/.ssh/carrel/config";

    #[test]
    fn the_line_goes_to_the_top_in_the_file_s_own_line_ends() {
        let text = |b: Option<Vec<u8>>| String::from_utf8(b.unwrap()).unwrap();
        assert_eq!(text(with_include(b"", OURS)), format!("Include {OURS}\n"));
        assert_eq!(
            text(with_include(b"Host x\n User y", OURS)),
            format!("Include {OURS}\nHost x\n User y")
        );
        assert_eq!(
            text(with_include(b"Host x\r\n", OURS)),
            format!("Include {OURS}\r\nHost x\r\n")
        );
        assert_eq!(
            text(with_include(b"", "/home/a b/c")),
            "Include \"/home/a b/c\"\n"
        );
    }

    #[test]
    fn an_include_in_force_is_recognised() {
        for there in [
            "Include X\n",
            "  include=X # ours\n",
            "# c\n\nInclude a/* \"X\"\nHost y\n",
            "Include X\r\nHost z\r\n",
        ] {
            assert!(
                is_included(there.replace('X', OURS).as_bytes(), OURS),
                "{there:?}"
            );
        }
        for not in [
            "# Include X\n",
            "Host y\n Include X\n",
            "Include X2\n",
            "Match all\nInclude X\n",
            "Include # X\n",
        ] {
            assert!(!is_included(not.replace('X', OURS).as_bytes(), OURS), "{not:?}");
        }
    }

    proptest! {
        /// Whatever the user's file holds stays, byte for byte, and a second run changes nothing.
        #[test]
        fn nothing_of_the_user_s_is_lost(existing in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Some(changed) = with_include(&existing, OURS) {
                prop_assert!(changed.ends_with(&existing));
                prop_assert!(is_included(&changed, OURS));
                prop_assert_eq!(with_include(&changed, OURS), None);
            }
        }

        #[test]
        fn nothing_of_a_likely_config_is_lost(
            lines in prop::collection::vec("(Host|Match|Include|#|User|  ProxyCommand|\u{e9})?[ =]{0,2}[a-z\"*/]{0,9}\r?", 0..20),
        ) {
            let existing = lines.join("\n").into_bytes();
            if let Some(changed) = with_include(&existing, OURS) {
                prop_assert!(changed.ends_with(&existing));
                prop_assert_eq!(with_include(&changed, OURS), None);
            }
        }
    }

    #[cfg(unix)]
    #[test]
    fn links_are_written_through_and_modes_kept() {
        use std::os::unix::fs::PermissionsExt as _;
        let temp = tempfile::tempdir().unwrap();
        let (real, link) = (temp.path().join("dotfiles"), temp.path().join("config"));
        std::fs::write(&real, "Host x\n").unwrap();
        std::fs::set_permissions(&real, std::fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("dotfiles", &link).unwrap();
        assert!(ensure(&link, Path::new(OURS)).unwrap());
        assert!(!ensure(&link, Path::new(OURS)).unwrap());
        assert!(link.is_symlink());
        assert_eq!(
            std::fs::read_to_string(&real).unwrap(),
            format!("Include {OURS}\nHost x\n")
        );
        assert_eq!(
            std::fs::metadata(&real).unwrap().permissions().mode() & 0o777,
            0o640
        );
    }

    #[cfg(unix)]
    #[test]
    fn a_missing_config_is_made_private_and_a_hard_link_stays_one() {
        use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("dot ssh/config");
        assert!(ensure(&path, Path::new(OURS)).unwrap());
        let mode = |p: &Path| std::fs::metadata(p).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));

        let (one, two) = (temp.path().join("one"), temp.path().join("two"));
        std::fs::write(&one, "Host x\n").unwrap();
        std::fs::hard_link(&one, &two).unwrap();
        assert!(ensure(&one, Path::new(OURS)).unwrap());
        assert_eq!(std::fs::metadata(&two).unwrap().nlink(), 2);
        assert!(std::fs::read_to_string(&two).unwrap().starts_with("Include "));
    }

    #[test]
    fn a_circle_of_links_is_said_not_followed() {
        #[cfg(unix)]
        {
            let temp = tempfile::tempdir().unwrap();
            let (a, b) = (temp.path().join("a"), temp.path().join("b"));
            std::os::unix::fs::symlink(&a, &b).unwrap();
            std::os::unix::fs::symlink(&b, &a).unwrap();
            assert!(
                ensure(&a, Path::new(OURS))
                    .unwrap_err()
                    .message
                    .contains("circle")
            );
        }
    }
}
