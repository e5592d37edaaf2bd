//! What a user may do to the cluster.

use carrel_core::broker::Input;
use carrel_core::model::ids::UserName;
use carrel_proto::v1::{self, SetUserRoleRequest};
use tonic::Status;

use super::refuse::{bad_name, invalid};
use super::{Call, convert};

pub(super) async fn set_user_role(call: Call, request: SetUserRoleRequest) -> Result<v1::User, Status> {
    let name: UserName = request.user.parse().map_err(bad_name)?;
    let role = match v1::Role::try_from(request.role) {
        Ok(v1::Role::Unspecified) | Err(_) => {
            return Err(invalid("the request does not say which role"));
        }
        Ok(role) => role.into(),
    };
    let input = Input::SetUserRole(call.asker.caller.clone(), name.clone(), role);
    call.input(input).await?;
    tracing::info!(user = %name, %role, "a user's role was set");
    let snapshot = call.snapshot();
    let user = snapshot.state().users.get(&name);
    let user = user.ok_or_else(|| Status::not_found("the user was removed meanwhile"))?;
    Ok(convert::user(user, call.context.auth.role(user)))
}
