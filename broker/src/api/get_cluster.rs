//! Who the caller is, and what a client needs to know of the cluster.

use carrel_proto::v1::{Cluster, GetClusterRequest};
use tonic::Status;

use super::{Call, convert};

pub(super) async fn get_cluster(call: Call, _: GetClusterRequest) -> Result<Cluster, Status> {
    let snapshot = call.snapshot();
    let state = snapshot.state();
    let settings = &state.settings;
    let gateway = call.context.gateways.list().into_iter().next();
    Ok(Cluster {
        id: state.cluster.id.to_string(),
        name: settings.cluster_name.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        user: Some(convert::user(&call.asker.user, call.asker.caller.role)),
        host_cas: vec![call.context.ssh.host_ca()],
        ssh_gateway: gateway.map(|gateway| gateway.ssh).unwrap_or_default(),
        domain: settings.domain.clone(),
        default_image: settings.default_image.clone(),
        default_time_s: settings.default_time.as_secs(),
        max_time_s: settings.max_time.as_secs(),
    })
}
