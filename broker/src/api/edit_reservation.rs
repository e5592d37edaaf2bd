//! Makes, changes and takes back reservations.

use carrel_proto::v1::{EditReservationRequest, EditResponse};
use tonic::Status;

use super::Call;
use super::edit_account::edit;

pub(super) async fn edit_reservation(
    call: Call,
    request: EditReservationRequest,
) -> Result<EditResponse, Status> {
    edit(call, request).await
}
