//! Creates or changes a user of the directory.

use carrel_core::broker::Input;
use carrel_core::model::user::User;
use carrel_proto::v1::{self, PutUserRequest};
use tonic::Status;

use super::refuse::{bad_name, invalid};
use super::{Call, convert};

/// As many as Linux has (`NGROUPS_MAX`).
const MAX_GROUPS: usize = 65_536;
/// Longest path (`PATH_MAX`).
const MAX_PATH: usize = 4096;
/// Stands for "no change" in chown(2), and for no user anywhere.
const NO_ID: u32 = u32::MAX;

pub(super) async fn put_user(call: Call, request: PutUserRequest) -> Result<v1::User, Status> {
    call.must_administer()?;
    let message = request.user.ok_or_else(|| invalid("the request names no user"))?;
    let user = user(message)?;
    let admin = call.context.auth.is_admin(&user);
    let shown = convert::user(&user, admin);
    call.input(Input::PutUser(Some(call.asker.caller.clone()), user))
        .await?;
    tracing::info!(
        user = shown.name,
        uid = shown.uid,
        "a user was put into the directory"
    );
    Ok(shown)
}

fn user(message: v1::User) -> Result<User, Status> {
    let v1::User {
        name,
        uid,
        gid,
        groups,
        home,
        shell,
        admin,
    } = message;
    let path = |what: &str, text: &str| {
        let whole = text.starts_with('/') && text.len() <= MAX_PATH && !text.contains(char::is_control);
        let whole = whole && !text.contains(':');
        if whole {
            Ok(())
        } else {
            Err(invalid(format!(
                "a user's {what} is an absolute path without ':'"
            )))
        }
    };
    path("home", &home)?;
    if !shell.is_empty() {
        path("shell", &shell)?;
    }
    if groups.len() > MAX_GROUPS || [uid, gid].iter().chain(&groups).any(|id| *id == NO_ID) {
        return Err(invalid(
            "a user's ids are at most 4294967294, its groups at most 65536",
        ));
    }
    let name = name.parse().map_err(bad_name)?;
    // Plain keys are the user's own to register.
    Ok(User {
        name,
        uid,
        gid,
        groups,
        home,
        shell,
        admin,
        ssh_keys: Vec::new(),
    })
}
