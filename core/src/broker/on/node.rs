//! How hosts become nodes, and what operators do to them.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::broker::change::Change;
use crate::broker::desired::held_on;
use crate::broker::input::{Caller, FeatureChange};
use crate::broker::state::NodeLink;
use crate::broker::{Broker, Call, Effect, Reject, RejectKind, Reply};
use crate::model::audit::{Action, AuditRecord, Origin};
use crate::model::features::{MAX_FEATURES, is_feature};
use crate::model::gpu::Inventory;
use crate::model::ids::NodeName;
use crate::model::node::NodeRecord;
use crate::model::time::Timestamp;
use crate::model::user::NodeToken;

/// One-time tokens that may be open at a time.
const MAX_NODE_TOKENS: usize = 10_000;

impl Broker {
    pub(super) fn on_create_node_token(
        &mut self,
        now: Timestamp,
        caller: &Caller,
        token: NodeToken,
    ) -> Result<Reply, Reject> {
        caller.must(Call::CreateNodeToken)?;
        if token.expires <= now {
            return Err(Reject::new(
                RejectKind::Invalid,
                "the token would have expired already",
            ));
        }
        if self.state.node_tokens.len() >= MAX_NODE_TOKENS {
            return Err(Reject::new(
                RejectKind::Exhausted,
                format!("{MAX_NODE_TOKENS} node tokens are open"),
            ));
        }
        let subject = match &token.node {
            Some(node) => format!("node {node}"),
            None => "any node".to_owned(),
        };
        self.audit(caller, Action::NodeToken, subject, "");
        let token = Arc::new(token);
        self.state.node_tokens.insert(token.hash, Arc::clone(&token));
        self.record(Change::PutNodeToken(token));
        Ok(Reply::Done)
    }

    pub(super) fn on_join(
        &mut self,
        now: Timestamp,
        hash: &[u8; 32],
        name: NodeName,
        certificate: String,
        origin: Origin,
    ) -> Result<Reply, Reject> {
        let refused = |why: String| {
            Err(Reject::new(RejectKind::Denied, why)
                .hint("an operator of the cluster makes a new one with `carrel node token`"))
        };
        let Some(token) = self
            .state
            .node_tokens
            .get(hash)
            .filter(|token| token.expires > now)
            .cloned()
        else {
            return refused("this join token is not known, was used, or has expired".to_owned());
        };
        if let Some(only) = token.node.as_ref().filter(|only| **only != name) {
            return refused(format!("this join token is for node {only}, not {name}"));
        }
        if let Some(link) = self.state.links.get(&name).filter(|link| link.connected) {
            let seen = now.since(link.last_contact).as_secs();
            return Err(Reject::new(
                RejectKind::AlreadyExists,
                format!("a node named {name} is connected (last heard of {seen} s ago)"),
            )
            .hint("give this host another name, or stop the other's agent first"));
        }
        self.state.node_tokens.remove(hash);
        self.record(Change::DeleteNodeToken(*hash));
        let mut record = match self.state.nodes.get(&name) {
            Some(record) => (**record).clone(),
            None => NodeRecord {
                name: name.clone(),
                inventory: Inventory::default(),
                drained: None,
                certificate: String::new(),
                former_certificate: String::new(),
                revoked: Vec::new(),
                boot_id: String::new(),
                version: String::new(),
                images: Vec::new(),
                found: None,
                features: BTreeSet::new(),
            },
        };
        record.found = None;
        let old = [
            std::mem::take(&mut record.certificate),
            std::mem::take(&mut record.former_certificate),
        ];
        record
            .revoked
            .extend(old.into_iter().filter(|serial| !serial.is_empty()));
        let detail = format!("joined, serial {certificate}");
        self.note(AuditRecord::new(
            None,
            origin,
            Action::NodeCertificate,
            format!("node {name}"),
            detail,
        ));
        record.certificate = certificate;
        self.put_node(record);
        if !self.state.links.contains_key(&name) {
            self.state.put_link(&name, NodeLink::new(now));
        }
        Ok(Reply::Done)
    }

    pub(super) fn on_renew(
        &mut self,
        name: &NodeName,
        old: &str,
        certificate: String,
    ) -> Result<Reply, Reject> {
        let record = self.state.node_named(name)?;
        if !record.accepts(old) {
            return Err(Reject::new(
                RejectKind::Denied,
                format!("that is not the certificate of node {name}"),
            )
            .hint("join the node again with a new token"));
        }
        let mut record = (**record).clone();
        let unused = if record.certificate == old {
            &mut record.former_certificate
        } else {
            &mut record.certificate
        };
        let unused = std::mem::take(unused);
        record
            .revoked
            .extend(Some(unused).filter(|serial| !serial.is_empty()));
        let detail = format!("renewed, serial {certificate} after {old}");
        let origin = Origin::Node(name.clone());
        self.note(AuditRecord::new(
            None,
            origin,
            Action::NodeCertificate,
            format!("node {name}"),
            detail,
        ));
        record.certificate = certificate;
        old.clone_into(&mut record.former_certificate);
        self.put_node(record);
        Ok(Reply::Done)
    }

    pub(super) fn on_drain(
        &mut self,
        caller: &Caller,
        name: &NodeName,
        reason: Option<String>,
    ) -> Result<Reply, Reject> {
        caller.must(Call::UpdateNode)?;
        let (action, detail) = match &reason {
            Some(reason) => (Action::NodeDrain, reason.clone()),
            None => (Action::NodeResume, String::new()),
        };
        let record = NodeRecord {
            drained: reason,
            ..(**self.state.node_named(name)?).clone()
        };
        self.put_node(record);
        self.audit(caller, action, format!("node {name}"), detail);
        self.output.room = true;
        Ok(Reply::Done)
    }

    pub(super) fn on_change_features(
        &mut self,
        caller: &Caller,
        name: &NodeName,
        change: &FeatureChange,
    ) -> Result<Reply, Reject> {
        caller.must(Call::UpdateNode)?;
        let mut record = (**self.state.node_named(name)?).clone();
        let refused = |why: String| Reject::new(RejectKind::Invalid, why);
        for feature in change.add.iter().chain(&change.remove) {
            if !is_feature(feature) {
                let why = format!("{feature:?} is no feature's name");
                return Err(refused(why).hint("1 to 64 letters, digits and . _ - = + : / @"));
            }
        }
        if let Some(both) = change.add.intersection(&change.remove).next() {
            return Err(refused(format!("{both} is to be added and to be removed")));
        }
        for feature in &change.remove {
            if record.inventory.features.contains(feature) {
                let why = format!("feature {feature} is named by the node's own configuration");
                return Err(refused(why).hint(format!("take it out of `features` in {name}'s node.toml")));
            }
            if !record.features.remove(feature) {
                return Err(Reject::new(
                    RejectKind::NotFound,
                    format!("node {name} has no feature {feature}"),
                ));
            }
        }
        record.features.extend(change.add.iter().cloned());
        if record.features.len() > MAX_FEATURES {
            let why = format!("node {name} would have more than {MAX_FEATURES} features");
            return Err(Reject::new(RejectKind::Exhausted, why));
        }
        self.put_node(record);
        let signed = |sign: char, names: &BTreeSet<String>| -> Vec<String> {
            names.iter().map(|name| format!("{sign}{name}")).collect()
        };
        let detail = [signed('+', &change.add), signed('-', &change.remove)].concat();
        self.audit(
            caller,
            Action::NodeFeature,
            format!("node {name}"),
            detail.join(" "),
        );
        self.output.room = true;
        Ok(Reply::Done)
    }

    pub(super) fn on_remove_node(&mut self, caller: &Caller, name: &NodeName) -> Result<Reply, Reject> {
        caller.must(Call::UpdateNode)?;
        self.state.node_named(name)?;
        let held = held_on(&self.state, name);
        if !held.is_empty() {
            let jobs: Vec<String> = held.iter().map(ToString::to_string).collect();
            return Err(Reject::new(
                RejectKind::WrongState,
                format!("node {name} still holds job {}", jobs.join(", ")),
            )
            .hint("drain it, stop them, and then remove it"));
        }
        self.audit(caller, Action::NodeRemove, format!("node {name}"), "");
        self.state.remove_node(name);
        self.record(Change::DeleteNode(name.clone()));
        let removals: Vec<_> = self
            .state
            .removals
            .keys()
            .filter(|(node, _)| node == name)
            .cloned()
            .collect();
        for (node, session) in removals {
            self.state.removals.remove(&(node.clone(), session));
            self.record(Change::DeleteRemoval(node, session));
        }
        self.output.effects.insert(Effect::Disconnect(name.clone()));
        self.output.room = true;
        Ok(Reply::Done)
    }
}
