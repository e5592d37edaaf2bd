//! What operators let jobs have: images, directories of the hosts, root in the container.

use serde::{Deserialize, Serialize};

use super::ids::UserName;
use super::session::{ContainerOptions, Mount};

/// Most mounts of one session; each is a line in every list of its mounts.
pub const MAX_MOUNTS: usize = 32;
/// Stands for the user's name in a rule's path.
const USER: &str = "%u";
/// Where nothing of a host may be put: what containers stand on.
const RESERVED: [&str; 7] = ["/proc", "/sys", "/dev", "/.carrel", "/etc", "/run", "/var/run"];

/// What operators let jobs have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// Images, as patterns in which `*` stands for anything; none: any image.
    pub images: Vec<String>,
    /// Users may be root in their containers.
    pub root: bool,
    /// Directories of the hosts; none: the users' homes alone.
    pub mounts: Vec<MountRule>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            images: Vec::new(),
            root: true,
            mounts: Vec::new(),
        }
    }
}

/// A directory of the hosts that jobs may have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MountRule {
    /// The rule's name, for people.
    pub name: String,
    /// The directory; "%u" stands for the user's name. It alone can be asked for, and nothing below it: whoever may
    /// write in it could put a link to somewhere else there.
    pub path: String,
    /// Who may have it; none: everybody.
    #[serde(default)]
    pub users: Vec<UserName>,
    /// It can be had for reading only.
    #[serde(default)]
    pub read_only: bool,
}

/// Why a wish is not granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What was wrong, with what, by which rule.
    pub message: String,
    /// What to do.
    pub hint: String,
}

impl Policy {
    /// Whether a user may have this image and these options.
    ///
    /// # Errors
    /// Not, and by which rule.
    pub fn allows(&self, user: &UserName, image: &str, options: &ContainerOptions) -> Result<(), Refusal> {
        self.allows_image(image)?;
        if options.root && !self.root {
            return Err(refusal(
                "this cluster does not let users be root in their containers (policy.root)",
                "leave --root out, and choose an image that has what you need",
            ));
        }
        if options.mounts.len() > MAX_MOUNTS {
            return Err(refusal(
                format!("{} mounts are too many", options.mounts.len()),
                format!("a session has at most {MAX_MOUNTS}"),
            ));
        }
        options
            .mounts
            .iter()
            .try_for_each(|mount| self.allows_mount(user, mount))
    }

    fn allows_image(&self, image: &str) -> Result<(), Refusal> {
        let whole = whole_name(image);
        let name = without_version(&whole);
        let fits = |pattern: &String| {
            let pattern = if pattern.starts_with('*') {
                pattern.clone()
            } else {
                whole_name(pattern)
            };
            matches(&pattern, &whole) || matches(&pattern, name)
        };
        if self.images.is_empty() || self.images.iter().any(fits) {
            return Ok(());
        }
        Err(refusal(
            format!("image {image} is not allowed on this cluster (policy.images)"),
            format!("allowed are {}", self.images.join(", ")),
        ))
    }

    fn allows_mount(&self, user: &UserName, mount: &Mount) -> Result<(), Refusal> {
        let Mount {
            source,
            target,
            read_only,
        } = mount;
        for path in [source, target] {
            if !is_plain(path) {
                return Err(refusal(
                    format!("{path:?} is no directory to mount"),
                    "a mount is SOURCE[:TARGET][:ro]; both are absolute, without . and ..",
                ));
            }
        }
        let below = |dir: &&&str| {
            let rest = target.strip_prefix(**dir);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if let Some(dir) = RESERVED.iter().find(below) {
            return Err(refusal(
                format!("nothing can be mounted at {target}: {dir} is the container's own"),
                "choose another target, such as /data",
            ));
        }
        let named: Vec<_> = self
            .mounts
            .iter()
            .filter(|rule| rule.path_for(user) == *source)
            .collect();
        let Some(rule) = named.iter().find(|rule| rule.is_for(user)).or(named.first()) else {
            return Err(refusal(
                format!("{source} is not among the directories that jobs may mount (policy.mounts)"),
                self.mounts_of(user),
            ));
        };
        if !rule.is_for(user) {
            return Err(refusal(
                format!("{source} is not for {user} to mount (rule {:?})", rule.name),
                self.mounts_of(user),
            ));
        }
        if rule.read_only && !read_only {
            return Err(refusal(
                format!("{source} can be mounted for reading only (rule {:?})", rule.name),
                format!("add :ro, as in --mount {source}:ro"),
            ));
        }
        Ok(())
    }

    /// What a user may mount, for people.
    fn mounts_of(&self, user: &UserName) -> String {
        let theirs = self.mounts.iter().filter(|rule| rule.is_for(user));
        let named: Vec<_> = theirs
            .map(|rule| {
                format!(
                    "{}{}",
                    rule.path_for(user),
                    if rule.read_only { ":ro" } else { "" }
                )
            })
            .collect();
        if named.is_empty() {
            "your home is there without being asked for; administrators allow more".to_owned()
        } else {
            format!("you may mount {}", named.join(", "))
        }
    }
}

impl MountRule {
    /// The directory that it means for a user.
    pub fn path_for(&self, user: &UserName) -> String {
        self.path.replace(USER, user.as_str())
    }

    fn is_for(&self, user: &UserName) -> bool {
        self.users.is_empty() || self.users.contains(user)
    }
}

fn refusal(message: impl Into<String>, hint: impl Into<String>) -> Refusal {
    Refusal {
        message: message.into(),
        hint: hint.into(),
    }
}

/// Absolute, below the root, and without parts that mean another place.
fn is_plain(path: &str) -> bool {
    let Some(rest) = path.strip_prefix('/') else {
        return false;
    };
    !path.contains(['\0', '\n', ':'])
        && path.len() <= 1024
        && rest.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

/// An image's name as Docker completes it: "debian" is "docker.io/library/debian"
/// (distribution/reference, `ParseNormalizedNamed`).
fn whole_name(image: &str) -> String {
    match image.split_once('/') {
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => image.to_owned(),
        Some(_) => format!("docker.io/{image}"),
        None => format!("docker.io/library/{image}"),
    }
}

/// Without tag and digest.
fn without_version(image: &str) -> &str {
    let image = image.split_once('@').map_or(image, |(name, _)| name);
    let last = image.rfind('/').map_or(0, |slash| slash + 1);
    image[last..]
        .find(':')
        .map_or(image, |colon| &image[..last + colon])
}

/// Whether all of a text fits a pattern in which `*` stands for any characters, or none.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        // The first place leaves the most for what follows.
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> UserName {
        name.parse().expect("a name")
    }

    fn images(patterns: &[&str]) -> Policy {
        Policy {
            images: patterns.iter().map(|pattern| (*pattern).to_owned()).collect(),
            ..Policy::default()
        }
    }

    #[test]
    fn images_are_known_by_their_whole_names() {
        let policy = images(&["nvcr.io/nvidia/*", "debian", "local/*", "ghcr.io/lab/tool:1.*"]);
        for good in [
            "nvcr.io/nvidia/pytorch:25.01-py3",
            "debian",
            "debian:12",
            "docker.io/library/debian@sha256:00",
            "local/debian",
            "ghcr.io/lab/tool:1.2",
        ] {
            assert_eq!(policy.allows_image(good), Ok(()), "{good}");
        }
        for bad in [
            "nvcr.io.evil.example/nvidia/pytorch",
            "evil.example/nvcr.io/nvidia/pytorch",
            "debian.evil.example/debian",
            "me/debian",
            "debian2",
            "localhost/debian",
            "ghcr.io/lab/tool",
            "ghcr.io/lab/tool:2.1",
            // The digest decides, whatever the tag says.
            "ghcr.io/lab/tool@sha256:00",
        ] {
            let refused = policy.allows_image(bad).expect_err(bad);
            assert!(
                refused.message.contains(bad) && refused.message.contains("policy.images"),
                "{refused:?}"
            );
            assert!(refused.hint.contains("nvcr.io/nvidia/*"), "{refused:?}");
        }
        assert_eq!(images(&[]).allows_image("anything"), Ok(()));
        assert_eq!(images(&["*"]).allows_image("anything/else:1"), Ok(()));
    }

    #[test]
    fn stars_stand_for_anything() {
        for (pattern, text, fits) in [
            ("a*c", "abc", true),
            ("a*c", "ac", true),
            ("a*c", "abcd", false),
            ("*b*", "abc", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b", "aab", true),
            ("ab", "ab", true),
            ("ab", "abc", false),
            ("a*a", "a", false),
        ] {
            assert_eq!(matches(pattern, text), fits, "{pattern} {text}");
        }
    }

    fn mounts() -> Policy {
        let rule = |name: &str, path: &str, users: &[&str], read_only| MountRule {
            name: name.into(),
            path: path.into(),
            users: users.iter().map(|name| user(name)).collect(),
            read_only,
        };
        Policy {
            mounts: vec![
                rule("data", "/data", &[], true),
                rule("scratch", "/scratch/%u", &[], false),
                rule("staff", "/staff", &["bob"], false),
            ],
            ..Policy::default()
        }
    }

    fn mount(source: &str, target: &str, read_only: bool) -> Mount {
        Mount {
            source: source.into(),
            target: target.into(),
            read_only,
        }
    }

    #[test]
    fn directories_are_had_by_rule() {
        let (policy, alice, bob) = (mounts(), user("alice"), user("bob"));
        for (who, good) in [
            (&alice, mount("/data", "/mnt/data", true)),
            (&alice, mount("/scratch/alice", "/scratch/alice", false)),
            (&bob, mount("/staff", "/staff", true)),
        ] {
            assert_eq!(policy.allows_mount(who, &good), Ok(()), "{good:?}");
        }
        for (bad, part) in [
            (mount("/data", "/data", false), "rule \"data\""),
            (mount("/staff", "/staff", false), "rule \"staff\""),
            (mount("/scratch/bob", "/scratch", false), "policy.mounts"),
            (mount("/data/below", "/below", true), "policy.mounts"),
            (mount("/etc", "/mnt", true), "policy.mounts"),
            (mount("/data", "/etc/x", true), "/etc is the container's own"),
            (mount("/data", "/proc", true), "/proc is the container's own"),
            (mount("/data", "/a/../etc", true), "no directory"),
            (mount("data", "/data", true), "no directory"),
            (mount("/", "/data", true), "no directory"),
            (mount("/data", "/", true), "no directory"),
            (mount("/data/", "/data", true), "no directory"),
        ] {
            let refused = policy.allows_mount(&alice, &bad).expect_err(&format!("{bad:?}"));
            assert!(refused.message.contains(part), "{refused:?}");
        }
        let hint = policy
            .allows_mount(&alice, &mount("/x", "/x", true))
            .expect_err("refused")
            .hint;
        assert_eq!(hint, "you may mount /data:ro, /scratch/alice");
    }

    #[test]
    fn root_and_numbers_are_limited() {
        let alice = user("alice");
        let root = ContainerOptions {
            root: true,
            ..ContainerOptions::default()
        };
        let strict = Policy {
            root: false,
            ..Policy::default()
        };
        assert_eq!(Policy::default().allows(&alice, "i", &root), Ok(()));
        assert!(
            strict
                .allows(&alice, "i", &root)
                .expect_err("refused")
                .message
                .contains("policy.root")
        );
        let many = ContainerOptions {
            mounts: vec![mount("/data", "/d", true); MAX_MOUNTS + 1],
            ..ContainerOptions::default()
        };
        assert!(mounts().allows(&alice, "i", &many).is_err());
    }
}
