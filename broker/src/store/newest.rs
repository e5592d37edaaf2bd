//! Of several changes of one entity only the last has to be written.

use std::collections::BTreeSet;

use carrel_core::broker::Change;
use carrel_core::model::ids::{
    AccountName, JobId, JobKey, NodeName, PartitionName, QosName, ReservationName, SessionId, UserName,
};
use carrel_core::queue::past::PastKey;

/// What a change is of.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Entity<'a> {
    Cluster,
    User(&'a UserName),
    Token(&'a str),
    NodeToken(&'a [u8; 32]),
    Node(&'a NodeName),
    Session(SessionId),
    Job(JobId),
    Array(JobId),
    PastUse(&'a PastKey),
    PastDemand(&'a str),
    Removal(&'a NodeName, SessionId),
    Tombstone(&'a NodeName, JobKey),
    Account(&'a AccountName),
    Person(&'a UserName),
    Qos(&'a QosName),
    Partition(&'a PartitionName),
    Reservation(&'a ReservationName),
}

/// None for what is not an entity: every record of a log is written.
fn entity(change: &Change) -> Option<Entity<'_>> {
    Some(match change {
        Change::PutCluster(_) => Entity::Cluster,
        Change::PutUser(user) => Entity::User(&user.name),
        Change::DeleteUser(name) => Entity::User(name),
        Change::PutToken(token) => Entity::Token(&token.id),
        Change::DeleteToken(id) => Entity::Token(id),
        Change::PutNodeToken(token) => Entity::NodeToken(&token.hash),
        Change::DeleteNodeToken(hash) => Entity::NodeToken(hash),
        Change::PutNode(node) => Entity::Node(&node.name),
        Change::DeleteNode(name) => Entity::Node(name),
        Change::PutSession(session) => Entity::Session(session.id),
        Change::DeleteSession(id) => Entity::Session(*id),
        Change::PutJob(job) | Change::ForgetJob(job) => Entity::Job(job.id),
        Change::PutArray(array) | Change::ForgetArray(array) => Entity::Array(array.id),
        Change::PutPastUse(past) => Entity::PastUse(&past.key),
        Change::PutPastDemand(model, _) => Entity::PastDemand(model),
        Change::PutRemoval(node, session) | Change::DeleteRemoval(node, session) => {
            Entity::Removal(node, *session)
        }
        Change::PutTombstone(node, key) | Change::DeleteTombstone(node, key) => Entity::Tombstone(node, *key),
        Change::PutAccount(account) => Entity::Account(&account.name),
        Change::DeleteAccount(name) => Entity::Account(name),
        Change::PutPerson(person) => Entity::Person(&person.user),
        Change::PutQos(qos) => Entity::Qos(&qos.name),
        Change::DeleteQos(name) => Entity::Qos(name),
        Change::PutPartition(partition) => Entity::Partition(&partition.name),
        Change::DeletePartition(name) => Entity::Partition(name),
        Change::PutReservation(reservation) => Entity::Reservation(&reservation.name),
        Change::DeleteReservation(name) => Entity::Reservation(name),
        Change::Audit(_) | Change::TrimAudit(..) => return None,
    })
}

/// The last change of each entity, in their order.
pub(super) fn newest(changes: &[Change]) -> Vec<&Change> {
    let mut seen = BTreeSet::new();
    let mut newest: Vec<&Change> = changes
        .iter()
        .rev()
        .filter(|change| entity(change).is_none_or(|entity| seen.insert(entity)))
        .collect();
    newest.reverse();
    newest
}
