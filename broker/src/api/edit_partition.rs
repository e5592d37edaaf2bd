//! Changes partitions.

use carrel_proto::v1::{EditPartitionRequest, EditResponse};
use tonic::Status;

use super::Call;
use super::edit_account::edit;

pub(super) async fn edit_partition(
    call: Call,
    request: EditPartitionRequest,
) -> Result<EditResponse, Status> {
    edit(call, request).await
}
