//! This machine's name service: users as NSS knows them (files, LDAP, SSSD).

use std::collections::BTreeMap;
use std::ffi::CString;

use carrel_core::model::ids::UserName;
use carrel_core::model::user::{Role, User};
use nix::unistd::{self, Gid, Uid};

/// Longest name of a group that is taken over: Active Directory's have 256 characters.
const MAX_GROUP_NAME: usize = 256;

/// Why a user id is nobody's. Continues "you are user id N here, and …".
#[derive(Debug, thiserror::Error)]
pub enum Unknown {
    /// The kernel shows this id for users that do not exist here (user_namespaces(7)).
    #[error("that stands for users of another user namespace, who cannot be told apart")]
    Overflow,
    /// Nobody.
    #[error("neither this machine's name service nor the cluster's directory knows that")]
    Nobody,
    /// The name is not one that a user can have.
    #[error("its name in this machine's name service is of no use: {0}")]
    Name(#[from] carrel_core::model::ids::BadName),
    /// The name service failed.
    #[error("this machine's name service fails: {0}")]
    Failed(#[from] nix::Error),
}

/// What the name service says of a user id. May take as long as a directory
/// server does: not for an asynchronous thread.
pub fn user(uid: u32) -> Result<User, Unknown> {
    if uid == overflow_uid() {
        return Err(Unknown::Overflow);
    }
    described(unistd::User::from_uid(Uid::from_raw(uid))?.ok_or(Unknown::Nobody)?)
}

/// The same, of a login name.
pub fn user_named(name: &UserName) -> Result<User, Unknown> {
    described(unistd::User::from_name(name.as_str())?.ok_or(Unknown::Nobody)?)
}

fn described(found: unistd::User) -> Result<User, Unknown> {
    let name = CString::new(found.name.as_bytes()).map_err(|_| Unknown::Nobody)?;
    let mut groups: Vec<u32> = unistd::getgrouplist(&name, found.gid)?
        .into_iter()
        .map(unistd::Gid::as_raw)
        .collect();
    groups.retain(|group| *group != found.gid.as_raw());
    groups.sort_unstable();
    groups.dedup();
    let gid = found.gid.as_raw();
    Ok(User {
        name: found.name.parse()?,
        uid: found.uid.as_raw(),
        gid,
        group_names: group_names(groups.iter().copied().chain([gid])),
        groups,
        home: found.dir.to_string_lossy().into_owned(),
        shell: found.shell.to_string_lossy().into_owned(),
        role: Role::User,
        ssh_keys: Vec::new(),
    })
}

/// Names of groups, as far as the name service knows them and /etc/group can hold them.
/// May take as long as a directory server does.
pub fn group_names(ids: impl IntoIterator<Item = u32>) -> BTreeMap<u32, String> {
    let name = |id: u32| {
        let group = unistd::Group::from_gid(Gid::from_raw(id)).ok().flatten()?;
        is_group_name(&group.name).then_some((id, group.name))
    };
    ids.into_iter().filter_map(name).collect()
}

/// A name that a line of /etc/group can hold (group(5)).
pub fn is_group_name(name: &str) -> bool {
    let held = |c: char| !c.is_control() && c != ':' && c != ',';
    (1..=MAX_GROUP_NAME).contains(&name.len()) && name.chars().all(held)
}

fn overflow_uid() -> u32 {
    const USUAL: u32 = 65534;
    let text = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
    text.ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(USUAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_known_and_the_overflow_user_is_nobody() {
        let root = user(0).expect("root");
        assert_eq!(root.name.as_str(), "root");
        assert_eq!(root.group_names.get(&0).map(String::as_str), Some("root"));
        assert_eq!(user_named(&root.name).expect("root").uid, 0);
        assert!(!is_group_name("a:b") && !is_group_name("") && is_group_name("domain users"));
        assert!(matches!(user(overflow_uid()), Err(Unknown::Overflow)));
        assert!(matches!(user(3_999_999_999), Err(Unknown::Nobody)));
    }
}
