//! Creates or changes a user of the directory.

use carrel_core::broker::Input;
use carrel_core::model::user::User;
use carrel_proto::v1::{self, PutUserRequest};
use tonic::Status;

use super::refuse::{bad_name, invalid};
use super::{Call, convert};
use crate::name_service::{self, is_group_name};

/// As many as Linux has (`NGROUPS_MAX`).
const MAX_GROUPS: usize = 65_536;
/// Longest path (`PATH_MAX`).
const MAX_PATH: usize = 4096;
/// Stands for "no change" in chown(2), and for no user anywhere.
const NO_ID: u32 = u32::MAX;

pub(super) async fn put_user(call: Call, request: PutUserRequest) -> Result<v1::User, Status> {
    let message = request.user.ok_or_else(|| invalid("the request names no user"))?;
    let mut user = user(message)?;
    let ids: Vec<u32> = user.groups.iter().copied().chain([user.gid]).collect();
    let known = tokio::task::spawn_blocking(move || name_service::group_names(ids)).await;
    let known = known.map_err(|error| Status::internal(format!("name service: {error}")))?;
    for (id, name) in known {
        user.group_names.entry(id).or_insert(name);
    }
    let role = call.context.auth.role(&user);
    let shown = convert::user(&user, role);
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
        role,
        group_names,
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
    let own = |id: &u32| *id == gid || groups.contains(id);
    if group_names
        .iter()
        .any(|(id, name)| !own(id) || !is_group_name(name))
    {
        return Err(invalid(
            "names of groups are those of the user's own, without ':' and ','",
        ));
    }
    let role = v1::Role::try_from(role).map_err(|_| invalid("there is no such role"))?;
    let name = name.parse().map_err(bad_name)?;
    // Plain keys are the user's own to register.
    Ok(User {
        name,
        uid,
        gid,
        groups,
        group_names,
        home,
        shell,
        role: role.into(),
        ssh_keys: Vec::new(),
    })
}
