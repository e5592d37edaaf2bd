//! The record of somebody for whom the provider vouches: the directory's, the name service's, or a
//! new one.

use std::collections::BTreeSet;

use carrel_core::model::ids::UserName;
use carrel_core::model::user::{Role, User};

use super::OidcConfig;
use super::config::FIRST_USER_UID;
use crate::context::Context;
use crate::name_service::{self, Unknown};

/// "nobody" on every distribution, and what the kernel shows for users of elsewhere.
const NOBODY: u32 = 65534;
/// Ids that are tried for a new user, of those that the directory does not have: a name service
/// that gives out more from the same range was given the wrong one.
const MAX_TRIED: usize = 100;

/// Why somebody cannot have a record here. For them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoAccount {
    /// Not to be reached from elsewhere by a name alone.
    #[error("{0} is an account of the system, and nobody signs in as that through a provider")]
    System(UserName),
    /// And users are not made here.
    #[error("user {0} is not known to this cluster")]
    Unknown(UserName),
    /// The name service fails.
    #[error("the name service of the broker's machine fails: {0}")]
    NameService(String),
    /// No id is left for a new user.
    #[error("there is no user id for you: the next {MAX_TRIED} are taken")]
    NoId,
}

/// Somebody's record, if the directory has none yet.
pub async fn newcomer(
    context: &Context,
    config: &OidcConfig,
    name: &UserName,
) -> Result<Option<User>, NoAccount> {
    let snapshot = context.handle.snapshot();
    let users = &snapshot.state().users;
    if let Some(user) = users.get(name) {
        check(user)?;
        return Ok(None);
    }
    let taken: BTreeSet<u32> = users.values().map(|user| user.uid).collect();
    let (wanted, first) = (name.clone(), config.create_users.then_some(config.first_uid));
    let looking = tokio::task::spawn_blocking(move || {
        match (name_service::user_named(&wanted), first) {
            (Ok(user), _) => Ok(user),
            // A name that the name service cannot have is none of its users'.
            (Err(Unknown::Nobody | Unknown::Name(_) | Unknown::Overflow), Some(first)) => {
                made(&wanted, first, &taken)
            }
            (Err(Unknown::Nobody | Unknown::Name(_) | Unknown::Overflow), None) => {
                Err(NoAccount::Unknown(wanted))
            }
            (Err(Unknown::Failed(error)), _) => Err(NoAccount::NameService(error.to_string())),
        }
    });
    let user = looking
        .await
        .map_err(|error| NoAccount::NameService(error.to_string()))??;
    check(&user)?;
    Ok(Some(user))
}

fn check(user: &User) -> Result<(), NoAccount> {
    if user.uid < FIRST_USER_UID || user.uid == NOBODY {
        return Err(NoAccount::System(user.name.clone()));
    }
    Ok(())
}

/// A new user, with an id that neither the directory nor the name service has for a user or a group.
/// May take as long as a directory server does.
fn made(name: &UserName, first: u32, taken: &BTreeSet<u32>) -> Result<User, NoAccount> {
    let free = |uid: &u32| {
        let unused = matches!(name_service::user(*uid), Err(Unknown::Nobody));
        unused && name_service::group_names([*uid]).is_empty()
    };
    // The last id stands for "no change" in chown(2).
    let ids = (first..u32::MAX).filter(|uid| !taken.contains(uid));
    let uid = ids.take(MAX_TRIED).find(free).ok_or(NoAccount::NoId)?;
    Ok(User {
        name: name.clone(),
        uid,
        gid: uid,
        groups: Vec::new(),
        group_names: [(uid, name.to_string())].into(),
        home: format!("/home/{name}"),
        shell: String::new(),
        role: Role::User,
        ssh_keys: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_users_have_ids_of_their_own() {
        let first = 3_999_999_990;
        let name: UserName = "nina".parse().expect("a name");
        let taken = BTreeSet::from([first, first + 1, first + 3]);
        let user = made(&name, first, &taken).expect("an id");
        assert_eq!(
            (user.uid, user.gid, user.role),
            (first + 2, first + 2, Role::User)
        );
        assert_eq!(user.home, "/home/nina");
        check(&user).expect("no account of the system");
        // root's and nobody's ids are the name service's.
        let user = made(&name, 0, &BTreeSet::new()).expect("an id");
        assert_ne!(user.uid, 0);
        assert!(matches!(
            check(&User {
                uid: 0,
                ..user.clone()
            }),
            Err(NoAccount::System(_))
        ));
        assert!(matches!(
            check(&User { uid: NOBODY, ..user }),
            Err(NoAccount::System(_))
        ));
        let all: BTreeSet<u32> = (u32::MAX - 5..u32::MAX).collect();
        assert_eq!(made(&name, u32::MAX - 5, &all).err(), Some(NoAccount::NoId));
    }
}
