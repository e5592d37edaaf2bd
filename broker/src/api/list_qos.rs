//! Qualities of service.

use carrel_core::model::qos::Qos;
use carrel_core::queue::Holder;
use carrel_proto::v1::{self, ListQosRequest, ListQosResponse};
use tonic::Status;

use super::Call;
use super::list_accounts::held;

pub(super) async fn list_qos(call: Call, _: ListQosRequest) -> Result<ListQosResponse, Status> {
    let snapshot = call.snapshot();
    let state = snapshot.state();
    let now = call.context.clock.now();
    let message = |qos: &Qos| v1::Qos {
        name: qos.name.to_string(),
        description: qos.description.clone(),
        priority: qos.priority,
        preemptible: v1::Preemption::from(qos.preemptible).into(),
        preempts: qos.preempts,
        accounts: qos.accounts.iter().map(ToString::to_string).collect(),
        limits: Some((&qos.limits).into()),
        per_user: Some((&qos.per_user).into()),
        usage_milli: qos.usage_milli,
        grace_s: qos.grace.map(|grace| grace.as_secs()),
        held: Some(held(state, &Holder::Qos(qos.name.clone()), now)),
    };
    Ok(ListQosResponse {
        qos: state.qos.values().map(|qos| message(qos)).collect(),
    })
}
