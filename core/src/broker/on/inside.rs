//! What is submitted from inside a job: as its owner, and no more than the job itself.

use crate::broker::input::{Caller, SubmitJob};
use crate::broker::{Reject, RejectKind, State};
use crate::model::job::Job;
use crate::model::session::{ContainerOptions, Mount};
use crate::model::terms::Terms;

impl State {
    /// A request as it is meant where it comes from: from inside a job, what it leaves open is as that job has it, and
    /// what it says is no wider. From outside it stays as it is.
    ///
    /// # Errors
    /// The job is over, or the request reaches for another account or partition, or for directories that the job does
    /// not have.
    pub(super) fn as_inside(&self, caller: &Caller, mut request: SubmitJob) -> Result<SubmitJob, Reject> {
        let Some(own) = caller.job() else {
            return Ok(request);
        };
        let job = self.jobs.get(&own.job).filter(|job| job.key() == Some(own));
        let job = job.ok_or_else(|| Reject::new(RejectKind::Denied, "the job that submits this is over"))?;
        let (image, container) = self.inside_of(job).ok_or_else(|| {
            Reject::new(
                RejectKind::Denied,
                "the session that submits this is not known any more",
            )
        })?;
        if request.spec.image.is_empty() {
            image.clone_into(&mut request.spec.image);
        }
        for mount in &request.spec.container.mounts {
            must_be_had(mount, &container.mounts)?;
        }
        narrow_terms(job, &mut request)?;
        Ok(request)
    }

    /// The image of a job, and what else its containers are.
    fn inside_of<'a>(&'a self, job: &'a Job) -> Option<(&'a str, &'a ContainerOptions)> {
        if let Some(batch) = &job.batch {
            return Some((&batch.image, &batch.container));
        }
        let session = job.session.and_then(|id| self.sessions.get(&id))?;
        Some((&session.spec.image, &session.spec.container))
    }
}

fn narrow_terms(job: &Job, request: &mut SubmitJob) -> Result<(), Reject> {
    let Terms {
        account,
        qos,
        partition,
        reservation,
        ..
    } = &job.terms;
    let asked = &mut request.spec.terms;
    must_be_own("account", asked.account.as_ref(), account)?;
    must_be_own("partition", asked.partition.as_ref(), partition)?;
    if asked.reservation.is_some() && asked.reservation != *reservation {
        return Err(no_wider("another reservation than its own"));
    }
    asked.account = Some(account.clone());
    asked.partition = Some(partition.clone());
    if asked.qos.is_none() {
        asked.qos = Some(qos.clone());
    }
    Ok(())
}

fn must_be_own<T: PartialEq + std::fmt::Display>(
    what: &str,
    asked: Option<&T>,
    own: &T,
) -> Result<(), Reject> {
    match asked {
        Some(other) if other != own => Err(no_wider(&format!("another {what} than its own, {own}"))),
        Some(_) | None => Ok(()),
    }
}

/// A directory that the job itself has, and no more of it.
fn must_be_had(asked: &Mount, own: &[Mount]) -> Result<(), Reject> {
    let had = own
        .iter()
        .any(|mount| mount.source == asked.source && (asked.read_only || !mount.read_only));
    if had {
        return Ok(());
    }
    let how = if asked.read_only { "" } else { ", to write in" };
    Err(no_wider(&format!("the directory {}{how}", asked.source)))
}

fn no_wider(what: &str) -> Reject {
    Reject::new(
        RejectKind::Denied,
        format!("a job submits from inside what is no wider than itself: this asks for {what}"),
    )
    .hint("submit it from outside")
}
