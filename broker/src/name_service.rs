//! This machine's name service: users as NSS knows them (files, LDAP, SSSD).

use std::ffi::CString;

use carrel_core::model::ids::UserName;
use carrel_core::model::user::User;
use nix::unistd::{self, Uid};

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
    record(unistd::User::from_uid(Uid::from_raw(uid))?.ok_or(Unknown::Nobody)?)
}

/// The same, by login name.
pub fn named(name: &UserName) -> Result<User, Unknown> {
    record(unistd::User::from_name(name.as_str())?.ok_or(Unknown::Nobody)?)
}

fn record(found: unistd::User) -> Result<User, Unknown> {
    let uid = found.uid.as_raw();
    let name = CString::new(found.name.as_bytes()).map_err(|_| Unknown::Nobody)?;
    let mut groups: Vec<u32> = unistd::getgrouplist(&name, found.gid)?
        .into_iter()
        .map(unistd::Gid::as_raw)
        .collect();
    groups.retain(|group| *group != found.gid.as_raw());
    groups.sort_unstable();
    groups.dedup();
    Ok(User {
        name: found.name.parse()?,
        uid,
        gid: found.gid.as_raw(),
        groups,
        home: found.dir.to_string_lossy().into_owned(),
        shell: found.shell.to_string_lossy().into_owned(),
        admin: false,
        ssh_keys: Vec::new(),
    })
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
        assert_eq!(user(0).expect("root").name.as_str(), "root");
        assert!(matches!(user(overflow_uid()), Err(Unknown::Overflow)));
        assert!(matches!(user(3_999_999_999), Err(Unknown::Nobody)));
    }
}
