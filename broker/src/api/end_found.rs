//! Ends a found job.

use carrel_core::broker::Input;
use carrel_proto::v1::{EndFoundRequest, EndFoundResponse};
use tonic::Status;

use super::{Call, list_found};

pub(super) async fn end_found(call: Call, request: EndFoundRequest) -> Result<EndFoundResponse, Status> {
    let key = list_found::meant(call.snapshot().state(), &request.key)?;
    call.input(Input::EndFound(call.asker.caller.clone(), key))
        .await?;
    tracing::info!(job = %key, "a found job is being ended");
    Ok(EndFoundResponse {})
}
