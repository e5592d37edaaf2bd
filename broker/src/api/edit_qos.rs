//! Changes qualities of service.

use carrel_proto::v1::{EditQosRequest, EditResponse};
use tonic::Status;

use super::Call;
use super::edit_account::edit;

pub(super) async fn edit_qos(call: Call, request: EditQosRequest) -> Result<EditResponse, Status> {
    edit(call, request).await
}
