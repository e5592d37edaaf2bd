//! Partitions.

use std::time::Duration;

use super::accounts::{must_be_few, record, some_of, unknown};
use super::limits::{limits_text, must_be_at_most, must_be_description};
use super::qos::NO_QOS;
use crate::broker::change::Change;
use crate::broker::edit::{PartitionEdit, Way};
use crate::broker::input::Caller;
use crate::broker::{Broker, Reject, RejectKind, State};
use crate::model::audit::Action;
use crate::model::ids::{JobId, NodeName, PartitionName, QosName};
use crate::model::partition::{NodeSet, Partition};
use crate::model::qos::MAX_PRIORITY;
use crate::queue::Holder;

/// Partitions that there may be.
const MAX_PARTITIONS: usize = 1_000;

const NO_PARTITION: &str = "`carrel admin partition list` lists them, `carrel admin partition add` makes one";

impl Broker {
    pub(super) fn edit_partition(
        &mut self,
        caller: &Caller,
        name: PartitionName,
        way: Way,
        edit: PartitionEdit,
    ) -> Result<Vec<String>, Reject> {
        let known = self
            .state
            .partitions
            .get(&name)
            .map(|partition| (**partition).clone());
        let new = || Partition::new(name.clone());
        let known = record(known, way, "partition", &name, NO_PARTITION, new)?;
        must_be_few("partitions", self.state.partitions.len(), MAX_PARTITIONS, way)?;
        let moved = edit.only.is_some() || edit.without.is_some() || edit.features.is_some();
        let partition = self.state.edited(known, edit)?;
        let nodes = if partition.nodes.is_all() {
            "all nodes"
        } else {
            "some nodes"
        };
        let default = if partition.default { ", the default" } else { "" };
        let detail = format!("{nodes}, priority {}{default}", partition.priority)
            + &limits_text("all jobs", &partition.limits)
            + &limits_text("each user's", &partition.per_user);
        self.audit(caller, Action::PartitionPut, format!("partition {name}"), detail);
        let mut told = self
            .state
            .over(&Holder::Partition(name.clone()), &partition.limits);
        let theirs = |holder: &Holder| matches!(holder, Holder::PartitionUser(own, _) if *own == name);
        told.extend(self.state.over_by_user(&partition.per_user, theirs));
        if moved || way == Way::Add {
            told.extend(self.state.about_nodes(&name, &partition.nodes));
            self.state.forget_promises(&name);
        }
        if partition.default {
            let others = self
                .state
                .partitions
                .values()
                .filter(|other| other.default && other.name != name);
            let others: Vec<Partition> = others.map(|other| (**other).clone()).collect();
            for other in others {
                told.push(format!("partition {} is the default no more", other.name));
                self.put_partition(Partition {
                    default: false,
                    ..other
                });
            }
        }
        self.put_partition(partition);
        Ok(told)
    }

    pub(super) fn delete_partition(
        &mut self,
        caller: &Caller,
        name: &PartitionName,
    ) -> Result<Vec<String>, Reject> {
        if !self.state.partitions.contains_key(name) {
            return Err(unknown("partition", name, NO_PARTITION));
        }
        self.state.must_have_no_jobs(
            &format!("partition {name}"),
            |job| job.terms.partition == *name,
            "stop them, or wait for their end; --accounts keeps others from using it",
        )?;
        self.audit(caller, Action::PartitionDelete, format!("partition {name}"), "");
        self.state.partitions.remove(name);
        self.state.hosts.note_change();
        self.record(Change::DeletePartition(name.clone()));
        Ok(Vec::new())
    }
}

impl State {
    /// A partition with something changed.
    fn edited(&self, mut partition: Partition, edit: PartitionEdit) -> Result<Partition, Reject> {
        let PartitionEdit {
            description,
            only,
            without,
            features,
            default,
            priority,
            default_time,
            accounts,
            qos,
            limits,
            per_user,
        } = edit;
        if let Some(description) = description {
            must_be_description(&description)?;
            partition.description = description;
        }
        if let Some(priority) = priority {
            must_be_at_most("a priority", priority, MAX_PRIORITY)?;
            partition.priority = priority;
        }
        if let Some(accounts) = accounts {
            self.must_be_accounts(&accounts)?;
            partition.accounts = accounts;
        }
        if let Some(qos) = qos {
            let usual = QosName::normal();
            if let Some(name) = qos
                .as_ref()
                .filter(|name| **name != usual && !self.qos.contains_key(*name))
            {
                return Err(unknown("QOS", name, NO_QOS));
            }
            partition.qos = qos;
        }
        if let Some(time) = default_time {
            let most = self.settings.max_time;
            if time.is_some_and(|time| time.is_zero() || time > most) {
                let minutes = |time: Duration| time.as_secs() / 60;
                return Err(Reject::new(
                    RejectKind::Invalid,
                    format!(
                        "a default time limit is more than nothing and at most the cluster's longest, {} min",
                        minutes(most)
                    ),
                ));
            }
            partition.default_time = time;
        }
        partition.default = default.unwrap_or(partition.default);
        let nodes = &mut partition.nodes;
        nodes.only = only.unwrap_or(nodes.only.take());
        nodes.without = without.unwrap_or_else(|| std::mem::take(&mut nodes.without));
        nodes.features = features.unwrap_or(nodes.features.take());
        partition.limits = limits.on(&partition.limits)?;
        partition.per_user = per_user.on(&partition.per_user)?;
        Ok(partition)
    }

    /// What whoever names nodes should know of them.
    fn about_nodes(&self, name: &PartitionName, nodes: &NodeSet) -> Vec<String> {
        let named = nodes.only.iter().flatten().chain(&nodes.without);
        let missing = named.filter(|node| !self.nodes.contains_key(*node));
        let missing: Vec<&str> = missing.map(NodeName::as_str).collect();
        let mut told = Vec::new();
        if !missing.is_empty() {
            told.push(format!(
                "the cluster has no node {}: those that join under such a name are meant",
                some_of(&missing)
            ));
        }
        if !self.nodes.is_empty() && self.nodes_in(nodes).next().is_none() {
            told.push(format!("partition {name} has no node now: its jobs wait"));
        }
        told
    }

    /// The nodes that are meant by name and feature.
    pub fn nodes_in<'a>(&'a self, nodes: &'a NodeSet) -> impl Iterator<Item = &'a NodeName> {
        let meant = self.nodes.values().filter(|node| {
            let named = nodes.only.as_ref().is_none_or(|only| only.contains(&node.name));
            let fits =
                |features: &crate::model::features::FeatureExpression| features.holds(&node.offer().features);
            named && !nodes.without.contains(&node.name) && nodes.features.as_ref().is_none_or(fits)
        });
        meant.map(|node| &node.name)
    }

    /// What was promised to jobs of a partition may be on nodes that are no longer its.
    fn forget_promises(&mut self, name: &PartitionName) {
        let is_there = |id: &&JobId| {
            let job = self.jobs.get(*id);
            job.is_some_and(|job| job.terms.partition == *name)
        };
        let moved: Vec<JobId> = self.promises.keys().filter(is_there).copied().collect();
        for job in moved {
            self.promises.remove(&job);
        }
    }
}
