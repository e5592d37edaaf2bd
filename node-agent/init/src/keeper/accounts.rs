//! The user's entries in the image's passwd and group, and the home directory.
//!
//! What the image brought is respected: entries are added, never changed or removed. Programs that
//! look up a user must still find ours, so an entry goes first when the image uses its name or id
//! for somebody else. Failures are told and survived: a read-only image is no reason not to start.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use carrel_proto::v1::Identity;
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};

use super::say;

/// Longest passwd or group that is read.
const MAX_FILE: u64 = 16 << 20;

/// Sees to it that the user, the groups and the home exist, as far as this process may. Who is root
/// here goes by root's own entry, whose home becomes his.
pub fn ensure(etc: &Path, identity: &Identity, is_root: bool) {
    edit(&etc.join("passwd"), |text| {
        if is_root {
            with_root(text, identity)
        } else {
            with_user(text, identity)
        }
    });
    edit(&etc.join("group"), |text| with_groups(text, identity));
    if let Err(error) = make_home(identity) {
        say(&format!(
            "the home {} does not exist and cannot be made: {error}",
            identity.home
        ));
    }
}

/// Rewrites a file if `change` says so.
fn edit(path: &Path, change: impl Fn(&str) -> Option<String>) {
    if let Err(error) = try_edit(path, change) {
        say(&format!("{} is left as it is: {error}", path.display()));
    }
}

fn try_edit(path: &Path, change: impl Fn(&str) -> Option<String>) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o644)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .open(path)?;
    let mut bytes = Vec::new();
    (&mut file).take(MAX_FILE).read_to_end(&mut bytes)?;
    // A file in another encoding is kept byte for byte: only whole lines are added.
    let text = String::from_utf8_lossy(&bytes);
    let Some(changed) = change(&text) else {
        return Ok(());
    };
    let out = match (
        changed.strip_prefix(text.as_ref()),
        changed.strip_suffix(text.as_ref()),
    ) {
        (Some(after), _) => [&bytes[..], after.as_bytes()].concat(),
        (None, Some(before)) => [before.as_bytes(), &bytes[..]].concat(),
        (None, None) => changed.into_bytes(),
    };
    file.seek(SeekFrom::Start(0))?;
    file.write_all(&out)?;
    file.set_len(out.len() as u64)
}

/// Name and id of each entry of passwd or group: the first and third field.
fn entries(text: &str) -> impl Iterator<Item = (&str, u32)> {
    text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let id = fields.nth(1)?.parse().ok()?;
        Some((name, id))
    })
}

fn with_user(text: &str, identity: &Identity) -> Option<String> {
    let (name, uid) = (identity.name.as_str(), identity.uid);
    if entries(text).any(|entry| entry == (name, uid)) {
        return None;
    }
    let shell = if identity.shell.is_empty() {
        "/bin/sh"
    } else {
        &identity.shell
    };
    let line = format!(
        "{name}:x:{uid}:{}:{name}:{}:{shell}\n",
        identity.gid, identity.home
    );
    if line.matches(':').count() != 6 || line.matches('\n').count() != 1 {
        say("the identity has characters that passwd cannot hold");
        return None;
    }
    let taken = entries(text).any(|(other, id)| other == name || id == uid);
    Some(if taken { line + text } else { appended(text, &line) })
}

/// Programs that ask for root's home, OpenSSH's client among them, are to find the user's.
fn with_root(text: &str, identity: &Identity) -> Option<String> {
    let root = Identity {
        name: "root".to_owned(),
        ..identity.clone()
    };
    let is_root = |line: &str| line.starts_with("root:") && line.split(':').nth(2) == Some("0");
    let Some(line) = text.lines().find(|line| is_root(line)) else {
        return with_user(text, &root);
    };
    let mut fields: Vec<&str> = line.split(':').collect();
    // Text that was not UTF-8 could not be written back as it was.
    if fields.len() != 7
        || fields[5] == root.home
        || root.home.contains([':', '\n'])
        || text.contains('\u{fffd}')
    {
        return None;
    }
    fields[5] = &root.home;
    Some(text.replacen(line, &fields.join(":"), 1))
}

fn with_groups(text: &str, identity: &Identity) -> Option<String> {
    let mut out = text.to_owned();
    let primary = if identity.group_name.is_empty() {
        &identity.name
    } else {
        &identity.group_name
    };
    for (position, gid) in std::iter::once(&identity.gid).chain(&identity.groups).enumerate() {
        if entries(&out).any(|(_, id)| id == *gid) {
            continue;
        }
        let free = |name: &str| !entries(&out).any(|(other, _)| other == name);
        let known = if position == 0 {
            Some(primary)
        } else {
            identity.group_names.get(gid)
        };
        let known = known.filter(|name| free(name) && !name.is_empty() && !name.contains([':', '\n', ',']));
        let name = known.cloned().unwrap_or_else(|| format!("gid{gid}"));
        out = appended(&out, &format!("{name}:x:{gid}:\n"));
    }
    (out != text).then_some(out)
}

fn appended(text: &str, line: &str) -> String {
    let separator = if text.is_empty() || text.ends_with('\n') {
        ""
    } else {
        "\n"
    };
    format!("{text}{separator}{line}")
}

/// Makes the home, owned by the user, without the right to give files away: made as the user in
/// a directory that is open for the moment, and moved to its place.
fn make_home(identity: &Identity) -> io::Result<()> {
    let home = Path::new(&identity.home);
    if fs::symlink_metadata(home).is_ok() {
        return Ok(());
    }
    let parent = home.parent().ok_or(io::ErrorKind::InvalidInput)?;
    fs::create_dir_all(parent)?;
    if identity.uid == nix::unistd::geteuid().as_raw() {
        return fs::DirBuilder::new().mode(0o750).create(home);
    }
    let workshop = parent.join(".carrel-home");
    fs::DirBuilder::new().mode(0o700).create(&workshop)?;
    let made = make_as_user(&workshop, identity).and_then(|inner| fs::rename(inner, home));
    fs::remove_dir(&workshop)?;
    made
}

fn make_as_user(workshop: &Path, identity: &Identity) -> io::Result<PathBuf> {
    fs::set_permissions(workshop, fs::Permissions::from_mode(0o777))?;
    let inner = workshop.join("home");
    let group = setfsgid(Gid::from_raw(identity.gid));
    let user = setfsuid(Uid::from_raw(identity.uid));
    // Open to all for the moment of the move, which needs to write its "..".
    let made =
        fs::create_dir(&inner).and_then(|()| fs::set_permissions(&inner, fs::Permissions::from_mode(0o777)));
    setfsuid(user);
    setfsgid(group);
    made.map(|()| inner)
}

/// Takes back what [`make_home`] had to leave open. Called as the user.
pub fn close_home(identity: &Identity) {
    let home = Path::new(&identity.home);
    let open = fs::symlink_metadata(home).is_ok_and(|found| {
        use std::os::unix::fs::MetadataExt;
        found.is_dir() && found.uid() == identity.uid && found.mode() & 0o777 == 0o777
    });
    if open && let Err(error) = fs::set_permissions(home, fs::Permissions::from_mode(0o750)) {
        say(&format!("the home {} stays open to all: {error}", home.display()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alice() -> Identity {
        Identity {
            name: "alice".into(),
            uid: 1000,
            gid: 1000,
            groups: vec![44, 5000],
            home: "/home/alice".into(),
            shell: "/bin/bash".into(),
            group_name: "users".into(),
            ..Identity::default()
        }
    }

    #[test]
    fn a_user_is_added_once_and_found_by_name_and_id() {
        let image = "root:x:0:0:root:/root:/bin/bash\nubuntu:x:1000:1000::/home/ubuntu:/bin/bash";
        let first = with_user(image, &alice()).unwrap();
        assert!(
            first.starts_with("alice:x:1000:1000:alice:/home/alice:/bin/bash\nroot:"),
            "{first}"
        );
        assert!(first.ends_with(image));
        assert_eq!(with_user(&first, &alice()), None);
        let free = with_user("root:x:0:0::/:/bin/sh", &alice()).unwrap();
        assert_eq!(
            free,
            "root:x:0:0::/:/bin/sh\nalice:x:1000:1000:alice:/home/alice:/bin/bash\n"
        );
    }

    #[test]
    fn every_group_has_a_name_and_none_is_taken_from_the_image() {
        let text = with_groups("root:x:0:\nvideo:x:44:\nusers:x:100:\n", &alice()).unwrap();
        assert_eq!(
            text,
            "root:x:0:\nvideo:x:44:\nusers:x:100:\ngid1000:x:1000:\ngid5000:x:5000:\n"
        );
        assert_eq!(with_groups(&text, &alice()), None);
    }

    #[test]
    fn root_s_home_is_the_user_s() {
        let root = Identity {
            uid: 0,
            gid: 0,
            group_name: "root".into(),
            group_names: [(5000, "physics".to_owned())].into(),
            ..alice()
        };
        let image = "daemon:x:1:1::/:/bin/sh\nroot:x:0:0:root:/root:/bin/bash\nsync:x:4:0::/bin:/bin/sync\n";
        let changed = with_root(image, &root).unwrap();
        assert_eq!(
            changed,
            "daemon:x:1:1::/:/bin/sh\nroot:x:0:0:root:/home/alice:/bin/bash\nsync:x:4:0::/bin:/bin/sync\n"
        );
        assert_eq!(with_root(&changed, &root), None);
        assert_eq!(
            with_root("", &root).unwrap(),
            "root:x:0:0:root:/home/alice:/bin/bash\n"
        );
        assert_eq!(
            with_groups("root:x:0:\n", &root).unwrap(),
            "root:x:0:\ngid44:x:44:\nphysics:x:5000:\n"
        );
    }

    #[test]
    fn an_identity_cannot_smuggle_a_line() {
        let mut evil = alice();
        evil.home = "/home/a\nroot2:x:0:0::/:/bin/sh".into();
        assert_eq!(with_user("", &evil), None);
        evil.home = "/home/a:b".into();
        assert_eq!(with_user("", &evil), None);
    }
}
