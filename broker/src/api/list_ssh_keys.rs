//! The caller's plain SSH keys.

use carrel_proto::v1::{ListSshKeysRequest, ListSshKeysResponse};
use tonic::Status;

use super::Call;

pub(super) async fn list_ssh_keys(call: Call, _: ListSshKeysRequest) -> Result<ListSshKeysResponse, Status> {
    let keys = call.asker.user.ssh_keys.iter().map(ToString::to_string);
    Ok(ListSshKeysResponse {
        public_keys: keys.collect(),
    })
}
