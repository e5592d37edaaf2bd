//! Qualities of service.

use std::time::Duration;

use super::accounts::{must_be_few, record, unknown};
use super::limits::{limits_text, must_be_at_most, must_be_description};
use crate::broker::change::Change;
use crate::broker::edit::{QosEdit, Way};
use crate::broker::input::Caller;
use crate::broker::{Broker, Reject, RejectKind};
use crate::model::audit::Action;
use crate::model::ids::QosName;
use crate::model::qos::{MAX_PRIORITY, Preemption, Qos};
use crate::queue::Holder;

/// QOS that there may be.
const MAX_QOS: usize = 1_000;
/// Longest time in which a job may go on that gives way: who it gives way to waits for it.
const MAX_GRACE: Duration = Duration::from_hours(24);
/// What is used may count a hundredfold.
const MAX_USAGE_MILLI: u32 = 100_000;

/// Where QOS are to be found.
pub(super) const NO_QOS: &str = "`carrel admin qos list` lists them, `carrel admin qos add` makes one";

impl Broker {
    pub(super) fn edit_qos(
        &mut self,
        caller: &Caller,
        name: QosName,
        way: Way,
        edit: QosEdit,
    ) -> Result<Vec<String>, Reject> {
        let known = self.state.qos.get(&name).map(|qos| (**qos).clone());
        let mut qos = record(known, way, "QOS", &name, NO_QOS, || Qos::new(name.clone()))?;
        must_be_few("QOS", self.state.qos.len(), MAX_QOS, way)?;
        let QosEdit {
            description,
            priority,
            preemptible,
            grace,
            preempts,
            accounts,
            limits,
            per_user,
            usage_milli,
        } = edit;
        if let Some(description) = description {
            must_be_description(&description)?;
            qos.description = description;
        }
        if let Some(priority) = priority {
            must_be_at_most("a priority", priority, MAX_PRIORITY)?;
            qos.priority = priority;
        }
        if let Some(accounts) = accounts {
            self.state.must_be_accounts(&accounts)?;
            qos.accounts = accounts;
        }
        if let Some(usage) = usage_milli {
            must_be_at_most("a factor of usage, in thousandths,", usage, MAX_USAGE_MILLI)?;
            qos.usage_milli = usage;
        }
        qos.preemptible = preemptible.unwrap_or(qos.preemptible);
        if let Some(grace) = grace {
            if grace.is_some_and(|grace| grace > MAX_GRACE) {
                let why = "the grace of jobs that give way is a day at most";
                return Err(Reject::new(RejectKind::Invalid, why));
            }
            qos.grace = grace;
        }
        qos.preempts = preempts.unwrap_or(qos.preempts);
        if qos.preempts && qos.preemptible.is_some() {
            let why = format!("QOS {name} would have others end, and give way itself");
            return Err(Reject::new(RejectKind::Invalid, why).hint("it can be one or the other"));
        }
        qos.limits = limits.on(&qos.limits)?;
        qos.per_user = per_user.on(&qos.per_user)?;
        let gives_way = match qos.preemptible {
            Some(Preemption::Requeue) => ", gives way and waits again",
            Some(Preemption::Cancel) => ", gives way",
            None if qos.preempts => ", has others give way",
            None => "",
        };
        let grace = qos.grace.filter(|_| qos.preemptible.is_some());
        let grace = grace.map_or(String::new(), |grace| format!(" within {} s", grace.as_secs()));
        let detail = format!("priority {}{gives_way}{grace}", qos.priority)
            + &limits_text("all jobs", &qos.limits)
            + &limits_text("each user's", &qos.per_user);
        self.audit(caller, Action::QosPut, format!("QOS {name}"), detail);
        let mut told = self.state.over(&Holder::Qos(name.clone()), &qos.limits);
        let theirs = |holder: &Holder| matches!(holder, Holder::QosUser(qos, _) if *qos == name);
        told.extend(self.state.over_by_user(&qos.per_user, theirs));
        self.put_qos(qos);
        Ok(told)
    }

    pub(super) fn delete_qos(&mut self, caller: &Caller, name: &QosName) -> Result<Vec<String>, Reject> {
        if !self.state.qos.contains_key(name) {
            return Err(unknown("QOS", name, NO_QOS));
        }
        let mut partitions = self.state.partitions.values();
        if let Some(partition) = partitions.find(|partition| partition.qos.as_ref() == Some(name)) {
            let why = format!("QOS {name} is that of partition {}", partition.name);
            return Err(Reject::new(RejectKind::WrongState, why)
                .hint("`carrel admin partition set … --qos` gives it another one"));
        }
        self.state.must_have_no_jobs(
            &format!("QOS {name}"),
            |job| job.terms.qos == *name,
            "stop them, or wait for their end; --accounts keeps others from using it",
        )?;
        self.audit(caller, Action::QosDelete, format!("QOS {name}"), "");
        self.state.qos.remove(name);
        self.record(Change::DeleteQos(name.clone()));
        Ok(Vec::new())
    }
}
