//! Changes accounts, who is in them, and what users may have.

use carrel_core::broker::{Edit, Input, Reply};
use carrel_proto::convert::ConvertError;
use carrel_proto::v1::{EditAccountRequest, EditResponse};
use tonic::Status;

use super::Call;
use super::refuse::invalid;

pub(super) async fn edit_account(call: Call, request: EditAccountRequest) -> Result<EditResponse, Status> {
    edit(call, request).await
}

/// Has the core do what a message says.
pub(super) async fn edit(
    call: Call,
    request: impl TryInto<Edit, Error = ConvertError>,
) -> Result<EditResponse, Status> {
    let edit = request.try_into().map_err(|bad| invalid(bad.to_string()))?;
    let input = Input::Edit(call.asker.caller.clone(), Box::new(edit));
    let told = match call.input(input).await? {
        Reply::Done => Vec::new(),
        Reply::Told(told) => told,
        Reply::Session(..) | Reply::Job(_) | Reply::Deadline(_) => {
            return Err(Status::internal("the broker's core gave another answer"));
        }
    };
    Ok(EditResponse { told })
}
