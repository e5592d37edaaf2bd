//! The files of /etc that a container gets: the image's own, with what only the node knows.
//!
//! They are made beside the container and bind-mounted, so that a session's
//! kept changes hold none of them.

use std::fmt::Write as _;
use std::net::IpAddr;

use anyhow::{Result, bail, ensure};
use carrel_proto::v1::Identity;

use super::record::HostEntry;

/// Shells to choose from where none is asked for, or the image lacks it.
pub(super) const SHELLS: [&str; 5] = [
    "/bin/bash",
    "/usr/bin/bash",
    "/bin/sh",
    "/usr/bin/sh",
    "/bin/busybox",
];

/// Fails on an identity that would break the files it is written to.
pub(super) fn check_identity(identity: &Identity) -> Result<()> {
    let fields = [
        &identity.name,
        &identity.home,
        &identity.shell,
        &identity.group_name,
    ];
    if fields.iter().any(|field| field.contains([':', '\n', '\0', ','])) {
        bail!(
            "user {:?}: name, home, shell and group must not contain ':', ',' or line ends",
            identity.name
        );
    }
    ensure!(!identity.name.is_empty(), "user {} has no name", identity.uid);
    ensure!(
        identity.home.starts_with('/'),
        "user {:?} has no home: {:?}",
        identity.name,
        identity.home
    );
    Ok(())
}

/// passwd: the image's, without its entries for this name or id, and the user's.
pub(crate) fn passwd(image: Option<&str>, identity: &Identity, shell: &str) -> String {
    let uid = identity.uid.to_string();
    let kept = image.unwrap_or_default().lines().filter(|line| {
        let mut fields = line.split(':');
        let (name, id) = (fields.next(), fields.nth(1));
        name != Some(&identity.name) && id != Some(&uid) && !line.trim().is_empty()
    });
    let mut text = lines(kept);
    if identity.uid != 0 && !text.lines().any(|line| line.split(':').nth(2) == Some("0")) {
        text.insert_str(0, "root:x:0:0:root:/root:/bin/sh\n");
    }
    let Identity { name, gid, home, .. } = identity;
    let _ = writeln!(text, "{name}:x:{uid}:{gid}:{name}:{home}:{shell}");
    text
}

/// group: the image's, the user's primary group, and the user in each supplementary one.
/// `name_of` says what the cluster, or else the host, calls a group.
pub(crate) fn group(
    image: Option<&str>,
    identity: &Identity,
    name_of: impl Fn(u32) -> Option<String>,
) -> String {
    struct Entry {
        name: String,
        rest: String,
        id: Option<u32>,
        members: Vec<String>,
    }
    let mut entries: Vec<Entry> = Vec::new();
    for line in image.unwrap_or_default().lines() {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, password, id, members] = fields.as_slice() else {
            continue;
        };
        let members = members
            .split(',')
            .filter(|member| !member.is_empty() && *member != identity.name);
        entries.push(Entry {
            name: (*name).to_owned(),
            rest: format!("{password}:{id}"),
            id: id.parse().ok(),
            members: members.map(str::to_owned).collect(),
        });
    }
    if identity.gid != 0 && !entries.iter().any(|entry| entry.id == Some(0)) {
        entries.insert(
            0,
            Entry {
                name: "root".into(),
                rest: "x:0".into(),
                id: Some(0),
                members: Vec::new(),
            },
        );
    }
    let primary = match identity.group_name.as_str() {
        "" => identity.name.as_str(),
        given => given,
    };
    if identity.gid != 0 {
        // The site's name for the id wins over the image's.
        entries.retain(|entry| entry.id != Some(identity.gid) && entry.name != primary);
        entries.push(Entry {
            name: primary.to_owned(),
            rest: format!("x:{}", identity.gid),
            id: Some(identity.gid),
            members: Vec::new(),
        });
    }
    for gid in identity.groups.iter().copied().filter(|gid| *gid != identity.gid) {
        if let Some(entry) = entries.iter_mut().find(|entry| entry.id == Some(gid)) {
            entry.members.push(identity.name.clone());
            continue;
        }
        let named = name_of(gid).filter(|name| !name.contains([':', ',', '\n']));
        let taken = |name: &String| entries.iter().any(|entry| entry.name == *name);
        let name = named
            .filter(|name| !taken(name))
            .unwrap_or_else(|| format!("g{gid}"));
        let members = vec![identity.name.clone()];
        entries.push(Entry {
            name,
            rest: format!("x:{gid}"),
            id: Some(gid),
            members,
        });
    }
    lines(
        entries
            .iter()
            .map(|e| format!("{}:{}:{}", e.name, e.rest, e.members.join(","))),
    )
}

/// hosts: the loopback names, the container's own, and its peers'.
pub(super) fn hosts(names: &[String], address: Option<IpAddr>, others: &[HostEntry]) -> String {
    let mut text = String::from(
        "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\n\
         ff02::1\tip6-allnodes\nff02::2\tip6-allrouters\n",
    );
    // Debian's address for a name without one: on lo, but not localhost itself.
    let own = address.map_or_else(|| "127.0.1.1".to_owned(), |address| address.to_string());
    let _ = writeln!(text, "{own}\t{}", names.join(" "));
    for entry in others {
        let _ = writeln!(text, "{}\t{}", entry.address, entry.names.join(" "));
    }
    text
}

/// resolv.conf: the host's, without resolvers that listen on the host's loopback,
/// which is another one in the container.
pub(super) fn resolv_conf(host: &str, upstream: Option<&str>) -> String {
    let is_loopback = |line: &str| {
        let mut words = line.split_whitespace();
        words.next() == Some("nameserver")
            && words.next().is_some_and(|address| {
                let address = address.split('%').next().unwrap_or(address);
                address
                    .parse::<IpAddr>()
                    .is_ok_and(|address| address.is_loopback())
            })
    };
    // systemd-resolved keeps the real servers in a file of its own.
    let source = match upstream {
        Some(upstream) if host.lines().any(is_loopback) => upstream,
        _ => host,
    };
    lines(source.lines().filter(|line| !is_loopback(line)))
}

/// Lines, each with its end.
fn lines<T: AsRef<str>>(lines: impl Iterator<Item = T>) -> String {
    let mut text = String::new();
    for line in lines {
        text.push_str(line.as_ref());
        text.push('\n');
    }
    text
}

/// What login shells read at their end: a distribution's /etc/profile sets PATH anew.
pub(super) fn profile(path_additions: &str) -> String {
    format!(
        "# Carrel's programs; written at each start.\ncase \":$PATH:\" in\n  *\":{path_additions}:\"*) ;;\n  \
         *) PATH=\"$PATH:{path_additions}\"; export PATH ;;\nesac\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alice() -> Identity {
        Identity {
            name: "alice".into(),
            uid: 1000,
            gid: 1000,
            groups: vec![1000, 27, 5000, 5001],
            home: "/home/alice".into(),
            ..Identity::default()
        }
    }

    #[test]
    fn the_users_entries_replace_the_images_for_the_same_name_or_id() {
        let image = "root:x:0:0:root:/root:/bin/bash\nubuntu:x:1000:1000:U:/home/ubuntu:/bin/bash\nalice:x:7:7::/x:/bin/sh\n";
        let merged = passwd(Some(image), &alice(), "/bin/bash");
        assert_eq!(
            merged,
            "root:x:0:0:root:/root:/bin/bash\nalice:x:1000:1000:alice:/home/alice:/bin/bash\n"
        );
    }

    #[test]
    fn an_image_without_files_gets_root_and_the_user() {
        let merged = passwd(None, &alice(), "/bin/sh");
        assert!(merged.starts_with("root:x:0:0:"), "{merged}");
        let groups = group(None, &alice(), |_| None);
        assert_eq!(
            groups,
            "root:x:0:\nalice:x:1000:\ng27:x:27:alice\ng5000:x:5000:alice\ng5001:x:5001:alice\n"
        );
    }

    #[test]
    fn supplementary_groups_keep_the_images_name_or_take_the_hosts() {
        let image = "root:x:0:\nsudo:x:27:bob\nubuntu:x:1000:\nlab:x:99:\n";
        let named = |gid| {
            (gid == 5000)
                .then(|| "physics".to_owned())
                .or((gid == 5001).then(|| "lab".to_owned()))
        };
        let merged = group(Some(image), &alice(), named);
        let lines: Vec<_> = merged.lines().collect();
        assert_eq!(
            lines,
            [
                "root:x:0:",
                "sudo:x:27:bob,alice",
                "lab:x:99:",
                "alice:x:1000:",
                "physics:x:5000:alice",
                "g5001:x:5001:alice"
            ]
        );
    }

    #[test]
    fn root_stays_root() {
        let root = Identity {
            name: "root".into(),
            home: "/root".into(),
            ..Identity::default()
        };
        let merged = passwd(Some("root:x:0:0:root:/root:/bin/bash\n"), &root, "/bin/bash");
        assert_eq!(merged, "root:x:0:0:root:/root:/bin/bash\n");
        assert_eq!(group(Some("root:x:0:\n"), &root, |_| None), "root:x:0:\n");
    }

    #[test]
    fn line_breaks_in_an_identity_are_refused() {
        let evil = Identity {
            home: "/home/a\nroot2:x:0:0::/:/bin/sh".into(),
            ..alice()
        };
        assert!(check_identity(&evil).is_err());
        assert!(check_identity(&alice()).is_ok());
    }

    #[test]
    fn loopback_resolvers_give_way_to_the_real_ones() {
        let host = "nameserver 127.0.0.53\nsearch lab.example\n";
        assert_eq!(
            resolv_conf(host, Some("nameserver 10.0.0.1\n")),
            "nameserver 10.0.0.1\n"
        );
        assert_eq!(resolv_conf(host, None), "search lab.example\n");
        assert_eq!(
            resolv_conf("nameserver 1.1.1.1\n", Some("nameserver 2.2.2.2\n")),
            "nameserver 1.1.1.1\n"
        );
    }

    #[test]
    fn a_container_knows_its_own_name_and_its_peers() {
        let peer = HostEntry {
            address: "10.0.0.9".into(),
            names: vec!["carrel-dev-1".into(), "dev-1".into()],
        };
        let text = hosts(&["dev".to_owned(), "n0".to_owned()], None, &[peer]);
        assert!(
            text.contains("127.0.1.1\tdev n0\n") && text.contains("10.0.0.9\tcarrel-dev-1 dev-1\n"),
            "{text}"
        );
        assert!(hosts(&["dev".to_owned()], "10.0.0.2".parse().ok(), &[]).contains("10.0.0.2\tdev\n"));
    }
}
