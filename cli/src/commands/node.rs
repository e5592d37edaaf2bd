//! `carrel node`: the cluster's nodes, for administrators.

use std::time::Duration;

use carrel_core::model::features::is_feature;
use carrel_core::model::host_list;
use carrel_proto::v1;
use clap::Subcommand;
use serde::Serialize;

use crate::context::Context;
use crate::error::{CliError, Result};
use crate::terminal::{say, show_error};
use crate::{output, units, view};

/// Administer nodes.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    carrel node token                       how a new host joins\n  \
    carrel node drain h100-07 --reason 'GPU 3: ECC errors'\n  \
    carrel node resume 'gb[01-18]'\n  \
    carrel node feature h100-07 +ib -test")]
pub struct NodeArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: NodeCommand,
}

/// What is done to nodes.
#[derive(Clone, Debug, Subcommand)]
pub enum NodeCommand {
    /// Make a one-time token with which a host becomes a node
    Token {
        /// The only node name that it is good for
        #[arg(value_name = "NODE")]
        node: Option<String>,
        /// How long it is good for
        #[arg(long, value_name = "TIME", value_parser = units::parse_time, default_value = "1h")]
        ttl: Duration,
    },
    /// Start nothing new on nodes; what runs goes on
    Drain {
        /// Nodes, as a list: h100-07, gb[01-04],gb9
        #[arg(value_name = "NODES", value_parser = parse_nodes)]
        nodes: Nodes,
        /// Why, for those who ask
        #[arg(long, value_name = "TEXT", default_value = "")]
        reason: String,
    },
    /// Take drained nodes back into use
    Resume {
        /// Nodes, as a list: h100-07, gb[01-04],gb9
        #[arg(value_name = "NODES", value_parser = parse_nodes)]
        nodes: Nodes,
    },
    /// Give a node features that jobs can ask for with --constraint, or take them away
    ///
    /// Beside those that its own configuration names. Jobs that run are not asked.
    #[command(visible_alias = "features")]
    Feature {
        /// Node
        #[arg(value_name = "NODE")]
        node: String,
        /// "+ib" gives, "-ib" takes away
        #[arg(value_name = "+FEATURE|-FEATURE", required = true, value_parser = parse_change, allow_hyphen_values = true)]
        changes: Vec<FeatureChange>,
    },
    /// Take a node into service that came with a certificate of this cluster and that no record knows
    Adopt {
        /// Node
        #[arg(value_name = "NODE")]
        node: String,
    },
    /// Revoke a node's certificates and forget it
    Remove {
        /// Node
        #[arg(value_name = "NODE")]
        node: String,
    },
}

/// One feature, given or taken away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FeatureChange {
    /// "+ib"
    Add(String),
    /// "-ib"
    Remove(String),
}

/// Nodes that one argument names, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes(Vec<String>);

fn parse_nodes(text: &str) -> std::result::Result<Nodes, String> {
    let mut names: Vec<String> = host_list::parse(text)
        .map_err(|bad| bad.why)?
        .into_iter()
        .map(Into::into)
        .collect();
    if names.is_empty() {
        return Err("name a node".to_owned());
    }
    names.sort_by(|a, b| host_list::natural(a, b));
    Ok(Nodes(names))
}

fn parse_change(text: &str) -> std::result::Result<FeatureChange, String> {
    let (change, name): (fn(String) -> FeatureChange, &str) = match text.split_at_checked(1) {
        Some(("+", name)) => (FeatureChange::Add, name),
        Some(("-", name)) => (FeatureChange::Remove, name),
        Some(_) | None => return Err("write +FEATURE to give it, or -FEATURE to take it away".to_owned()),
    };
    if !is_feature(name) {
        return Err("a feature's name is 1 to 64 letters, digits and . _ - = + : / @".to_owned());
    }
    Ok(change(name.to_owned()))
}

/// What `node token --output json` prints.
#[derive(Debug, Serialize)]
struct NodeToken {
    token: String,
    expires: String,
    ca_fingerprint: String,
    broker: String,
}

/// Runs the verb.
pub async fn run(context: &Context, args: NodeArgs) -> Result<u8> {
    let (mut add_features, mut remove_features) = (Vec::new(), Vec::new());
    let (names, action, reason) = match args.command {
        NodeCommand::Token { node, ttl } => return token(context, node.unwrap_or_default(), ttl).await,
        NodeCommand::Drain { nodes, reason } => (nodes, v1::NodeAction::Drain, reason),
        NodeCommand::Resume { nodes } => (nodes, v1::NodeAction::Resume, String::new()),
        NodeCommand::Feature { node, changes } => {
            for change in changes {
                match change {
                    FeatureChange::Add(name) => add_features.push(name),
                    FeatureChange::Remove(name) => remove_features.push(name),
                }
            }
            (Nodes(vec![node]), v1::NodeAction::Feature, String::new())
        }
        NodeCommand::Adopt { node } => (Nodes(vec![node]), v1::NodeAction::Adopt, String::new()),
        NodeCommand::Remove { node } => (Nodes(vec![node]), v1::NodeAction::Remove, String::new()),
    };
    let mut client = context.client().await?;
    let several = names.0.len() > 1;
    let (mut done, mut failure): (Vec<view::Node>, Option<CliError>) = (Vec::new(), None);
    for name in names.0 {
        let request = v1::UpdateNodeRequest {
            name,
            action: action.into(),
            reason: reason.clone(),
            add_features: add_features.clone(),
            remove_features: remove_features.clone(),
        };
        match client.update_node(request).await {
            Ok(node) if context.json() => done.push(node.into_inner().into()),
            Ok(node) => tell(action, &node.into_inner()),
            Err(status) => {
                if let Some(earlier) = failure.replace(status.into()) {
                    show_error(&earlier);
                }
            }
        }
    }
    // One node is one document, several are a list of them.
    match done.as_slice() {
        _ if several && context.json() => output::json(&done)?,
        [node] => output::json(node)?,
        _ => {}
    }
    failure.map_or(Ok(0), Err)
}

fn tell(action: v1::NodeAction, node: &v1::Node) {
    if action == v1::NodeAction::Remove {
        say(format_args!("carrel: node {} is removed", node.name));
    } else if action == v1::NodeAction::Feature {
        let features = match node.features.as_slice() {
            [] => "no features".to_owned(),
            features => format!("features {}", features.join(", ")),
        };
        say(format_args!("carrel: node {} has {features}", node.name));
    } else {
        say(format_args!("carrel: node {} is {}", node.name, node.state));
    }
}

async fn token(context: &Context, node: String, ttl: Duration) -> Result<u8> {
    let mut client = context.client().await?;
    let request = v1::CreateNodeTokenRequest {
        node,
        ttl_s: ttl.as_secs(),
    };
    let made = client.create_node_token(request).await?.into_inner();
    if context.json() {
        output::json(&NodeToken {
            token: made.token,
            expires: units::rfc3339(made.expires_ms),
            ca_fingerprint: made.ca_fingerprint,
            broker: made.broker,
        })?;
        return Ok(0);
    }
    say(format_args!(
        "carrel: once, until {}, as root on the new node:",
        units::rfc3339(made.expires_ms)
    ));
    output::text(format_args!(
        "carrel-node join --broker {} --token {} --ca-fingerprint {}\n",
        made.broker, made.token, made.ca_fingerprint
    ))?;
    Ok(0)
}
