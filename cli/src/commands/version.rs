//! `carrel version`.

use carrel_proto::v1;
use serde::Serialize;

use crate::context::Context;
use crate::error::Result;
use crate::output;

/// Show the versions of this program and of the broker.
#[derive(Clone, Debug, clap::Args)]
pub struct VersionArgs {}

/// What `--output json` prints.
#[derive(Debug, Serialize)]
struct Version {
    carrel: &'static str,
    broker: Option<String>,
    broker_address: Option<String>,
    cluster: Option<String>,
}

/// Runs the verb. A broker that is not there is no error here.
pub async fn run(context: &Context, _args: VersionArgs) -> Result<u8> {
    let mut version = Version {
        carrel: env!("CARGO_PKG_VERSION"),
        broker: None,
        broker_address: None,
        cluster: None,
    };
    let mut missing = None;
    match ask(context).await {
        Ok((address, cluster)) => {
            version.broker = Some(cluster.version);
            version.broker_address = Some(address);
            version.cluster = Some(if cluster.name.is_empty() {
                cluster.id
            } else {
                cluster.name
            });
        }
        Err(error) => missing = Some(error),
    }
    if context.json() {
        output::json(&version)?;
        return Ok(0);
    }
    output::text(format_args!("carrel {}\n", version.carrel))?;
    match (&version.broker, missing) {
        (Some(broker), _) => output::text(format_args!(
            "broker {broker} ({}, cluster {})\n",
            version.broker_address.as_deref().unwrap_or_default(),
            version.cluster.as_deref().unwrap_or_default()
        ))?,
        (None, Some(error)) => crate::terminal::say(format_args!("broker: {error}")),
        (None, None) => {}
    }
    Ok(0)
}

async fn ask(context: &Context) -> Result<(String, v1::Cluster)> {
    let address = context.address()?;
    let mut client = crate::connect::connect(&address).await?;
    Ok((
        address.to_string(),
        client.get_cluster(v1::GetClusterRequest {}).await?.into_inner(),
    ))
}
