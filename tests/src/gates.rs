//! Holding up what a node does with its containers, so that a test can look, or kill, in the middle of it.
//!
//! A node's containerd has every container made, started, signalled and taken away by `runc`. In a cluster with gates
//! the nodes find a script of that name first: it waits while the gate of its node and verb is shut, or fails if that is
//! what the test wants, and else becomes the real one. So a container is stopped where a slow host would stop it, for
//! as long as the test likes, and no part of Carrel knows.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::wait;

/// `$0 --root DIR --log FILE … VERB …`; every node's runc has its files below the node's state directory.
const RUNC: &str = r#"#!/bin/sh
node= verb= log= before=
for word; do
  case $word in
    ROOT/n[0-9]*/*) node=${word#ROOT/} node=${node%%/*} ;;
    create | start | kill | delete) [ "$verb" ] || verb=$word ;;
  esac
  [ "$before" = --log ] && log=$word
  before=$word
done
gate=ROOT/gates/$node-$verb
if [ -e "$gate.fails" ]; then
  printf '{"level":"error","msg":"%s"}\n' "$(cat "$gate.fails")" >>"$log"
  exit 1
fi
while [ -e "$gate.shut" ]; do
  : >"$gate.reached"
  sleep 0.02
done
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin exec runc "$@"
"#;

/// What containerd has runc do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// A container's namespaces, mounts and cgroup are made; nothing runs in it.
    Create,
    /// Process 1 begins.
    Start,
    /// What is left of it is taken away.
    Delete,
}

impl Verb {
    fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Start => "start",
            Self::Delete => "delete",
        }
    }
}

/// The gates of a cluster's nodes: all open, until they are shut.
#[derive(Clone, Debug)]
pub struct Gates {
    root: PathBuf,
}

impl Gates {
    pub(crate) fn of(root: &Path) -> Self {
        Self { root: root.into() }
    }

    pub(crate) fn install(&self) {
        fs::create_dir(self.root.join("gates")).expect("own directory");
        let script = RUNC.replace("ROOT", &self.root.display().to_string());
        let path = self.root.join("bin/runc");
        fs::write(&path, script).expect("own directory");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("own file");
    }

    fn file(&self, node: usize, verb: Verb, what: &str) -> PathBuf {
        let name = format!("n{node}-{}.{what}", verb.name());
        self.root.join("gates").join(name)
    }

    /// From now on a node gets so far, and no further.
    pub fn shut(&self, node: usize, verb: Verb) {
        fs::remove_file(self.file(node, verb, "reached")).ok();
        fs::write(self.file(node, verb, "shut"), "").expect("own directory");
    }

    /// Waits until a node stands before a gate that is shut.
    ///
    /// # Panics
    /// It does not come.
    #[track_caller]
    pub fn reached(&self, node: usize, verb: Verb) {
        let file = self.file(node, verb, "reached");
        wait::until(&format!("n{node} is held up before {verb:?}"), || file.exists());
    }

    /// A node goes on.
    pub fn open(&self, node: usize, verb: Verb) {
        fs::remove_file(self.file(node, verb, "shut")).ok();
    }

    /// From now on this fails on a node, in these words (no quotes), or does not any more.
    pub fn fails(&self, node: usize, verb: Verb, words: Option<&str>) {
        let file = self.file(node, verb, "fails");
        match words {
            Some(words) => fs::write(file, words).expect("own directory"),
            None => fs::remove_file(file).unwrap_or_default(),
        }
    }
}
