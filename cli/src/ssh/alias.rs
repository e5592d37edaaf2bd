//! Aliases: `ssh carrel-dev` from anywhere, for as long as the session exists.
//!
//! Our SSH config is written whole from our own list of sessions, and nothing else is in it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::SshDir;
use super::client::{Route, quoted};
use crate::error::{CliError, Result};
use crate::paths;
use crate::terminal::say;

/// A session that has an alias.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Cluster id.
    pub cluster: String,
    /// The broker's address.
    pub broker: String,
    /// SSH user name.
    pub user: String,
    /// Principal of its host certificate, without rank.
    pub host_principal: String,
    /// Nodes of its last shape; members of a gang have aliases of their own.
    pub nodes: u32,
}

type Entries = BTreeMap<String, Entry>;

/// The alias of a session's first node.
pub fn name_of(session: &str) -> String {
    format!("carrel-{session}")
}

/// Gives a session its alias.
pub fn add(dir: &SshDir, carrel: &Path, session: &str, entry: Entry) -> Result<()> {
    change(dir, carrel, |entries| {
        entries.insert(session.to_owned(), entry);
    })
}

/// Takes a session's alias away.
pub fn remove(dir: &SshDir, carrel: &Path, session: &str) -> Result<()> {
    if !dir.sessions().exists() {
        return Ok(());
    }
    change(dir, carrel, |entries| {
        entries.remove(session);
    })
}

/// Names of the sessions that have an alias.
pub fn names(dir: &SshDir) -> Vec<String> {
    read(dir).into_keys().collect()
}

fn read(dir: &SshDir) -> Entries {
    let Ok(bytes) = std::fs::read(dir.sessions()) else {
        return Entries::new();
    };
    serde_json::from_slice(&bytes).unwrap_or_else(|error| {
        say(format_args!(
            "carrel: {} is damaged and is written anew: {error}",
            dir.sessions().display()
        ));
        Entries::new()
    })
}

fn change(dir: &SshDir, carrel: &Path, change: impl FnOnce(&mut Entries)) -> Result<()> {
    let _lock = dir.lock()?;
    let mut entries = read(dir);
    change(&mut entries);
    let config = render(dir, carrel, &entries)?;
    if std::fs::read(dir.config()).is_ok_and(|old| old == config.as_bytes()) {
        return Ok(());
    }
    let list = serde_json::to_vec_pretty(&entries).map_err(|e| CliError::failed(format!("JSON: {e}")))?;
    paths::write_private(&dir.sessions(), &list)?;
    paths::write_private(&dir.config(), config.as_bytes())
}

fn render(dir: &SshDir, carrel: &Path, entries: &Entries) -> Result<String> {
    let mut text = String::from(
        "# Written by carrel, which overwrites it. Settings of your own belong into ~/.ssh/config.\n",
    );
    // OpenSSH reads the certificate before a ProxyCommand could renew it, so a Match does.
    let mut by_cluster: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
    for (session, entry) in entries {
        let aliases = by_cluster.entry((&entry.cluster, &entry.broker)).or_default();
        aliases.extend(
            aliases_of(session, entry, entries)
                .into_iter()
                .map(|(alias, _)| alias),
        );
    }
    for ((cluster, broker), aliases) in by_cluster {
        let command = format!(
            "{} --broker {} proxy --renew {}",
            quoted(&carrel.to_string_lossy())?,
            quoted(broker)?,
            quoted(cluster)?
        );
        let _ = writeln!(
            text,
            "\nMatch originalhost {} exec \"{command}\"",
            aliases.join(",")
        );
    }
    for (session, entry) in entries {
        for (alias, rank) in aliases_of(session, entry, entries) {
            let route = Route {
                carrel: carrel.into(),
                broker: entry.broker.clone(),
                session: session.clone(),
                rank,
                user: entry.user.clone(),
                host_principal: entry.host_principal.clone(),
                cluster: dir.cluster(&entry.cluster)?,
                start: true,
            };
            let _ = writeln!(text, "\nHost {alias}");
            for (key, value) in route.options()? {
                let _ = writeln!(text, "  {key} {value}");
            }
        }
    }
    Ok(text)
}

/// A session's aliases and the ranks that they lead to. One that is another session's name ("dev-0") is that session's.
fn aliases_of(session: &str, entry: &Entry, all: &Entries) -> Vec<(String, u32)> {
    let mut aliases = vec![(name_of(session), 0)];
    if entry.nodes > 1 {
        let members = (0..entry.nodes).map(|rank| (format!("{session}-{rank}"), rank));
        aliases.extend(
            members
                .filter(|(name, _)| !all.contains_key(name))
                .map(|(name, rank)| (name_of(&name), rank)),
        );
    }
    aliases
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(nodes: u32) -> Entry {
        Entry {
            cluster: "c0ffee".into(),
            broker: "unix:/run/carrel/broker.sock".into(),
            user: "alice".into(),
            host_principal: "dev.alice.carrel".into(),
            nodes,
        }
    }

    #[test]
    fn the_config_of_one_session() {
        let dir = SshDir::at(Path::new("/home/a b/.ssh/carrel"));
        let entries = Entries::from([("dev".to_owned(), entry(1))]);
        let text = render(&dir, Path::new("/opt/carrel bin/carrel"), &entries).unwrap();
        insta::assert_snapshot!(text, @r#"
        # Written by carrel, which overwrites it. Settings of your own belong into ~/.ssh/config.

        Match originalhost carrel-dev exec "'/opt/carrel bin/carrel' --broker unix:/run/carrel/broker.sock proxy --renew c0ffee"

        Host carrel-dev
          User alice
          HostKeyAlias dev.alice.carrel
          IdentityFile "/home/a b/.ssh/carrel/id_ed25519"
          CertificateFile "/home/a b/.ssh/carrel/c0ffee/id_ed25519-cert.pub"
          UserKnownHostsFile "/home/a b/.ssh/carrel/c0ffee/known_hosts"
          IdentitiesOnly yes
          StrictHostKeyChecking yes
          UpdateHostKeys no
          PreferredAuthentications publickey
          ServerAliveInterval 0
          ProxyCommand '/opt/carrel bin/carrel' --broker unix:/run/carrel/broker.sock proxy dev
        "#);
    }

    #[test]
    fn members_of_a_gang_have_aliases_that_no_session_s_name_gives_way_to() {
        let entries = Entries::from([("dev".to_owned(), entry(3)), ("dev-1".to_owned(), entry(1))]);
        let aliases = aliases_of("dev", &entries["dev"], &entries);
        let expected = [("carrel-dev", 0), ("carrel-dev-0", 0), ("carrel-dev-2", 2)];
        assert_eq!(aliases, expected.map(|(name, rank)| (name.to_owned(), rank)));
        let text = render(&SshDir::at(Path::new("/s")), Path::new("/c"), &entries).unwrap();
        assert!(text.contains("HostKeyAlias 2.dev.alice.carrel\n"));
        assert!(text.contains("proxy dev --rank 2\n"));
    }

    #[test]
    fn aliases_come_and_go_and_damage_is_mended() {
        let temp = tempfile::tempdir().unwrap();
        let dir = SshDir::at(temp.path());
        add(&dir, Path::new("/c"), "dev", entry(1)).unwrap();
        add(&dir, Path::new("/c"), "exp", entry(1)).unwrap();
        remove(&dir, Path::new("/c"), "dev").unwrap();
        assert_eq!(names(&dir), ["exp"]);
        std::fs::write(dir.sessions(), "{").unwrap();
        add(&dir, Path::new("/c"), "new", entry(1)).unwrap();
        assert_eq!(names(&dir), ["new"]);
        assert!(
            std::fs::read_to_string(dir.config())
                .unwrap()
                .contains("Host carrel-new\n")
        );
    }
}
