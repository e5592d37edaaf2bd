//! Makes a record of a found job.

use carrel_core::broker::{Input, found_jobs};
use carrel_core::model::ids::JobKey;
use carrel_proto::v1::{AdoptFoundRequest, Session};
use tonic::Status;

use super::{Call, convert, list_found};
use crate::name_service;

pub(super) async fn adopt_found(call: Call, request: AdoptFoundRequest) -> Result<Session, Status> {
    let key = list_found::meant(call.snapshot().state(), &request.key)?;
    know_owner(&call, key).await?;
    call.input(Input::AdoptJob(call.asker.caller.clone(), key))
        .await?;
    tracing::info!(job = %key, "a found job was adopted");
    let snapshot = call.snapshot();
    let job = snapshot.state().jobs.get(&key.job);
    let session = job
        .and_then(|job| job.session)
        .and_then(|id| snapshot.state().sessions.get(&id));
    session
        .map(|session| convert::session(snapshot.state(), session, &call.asker.caller.user))
        .ok_or_else(|| Status::aborted("it was adopted, and has ended meanwhile"))
}

/// With the store the directory was lost: this machine's name service may know the job's owner.
async fn know_owner(call: &Call, key: JobKey) -> Result<(), Status> {
    let snapshot = call.snapshot();
    let found = found_jobs(snapshot.state())
        .into_iter()
        .find(|job| job.key == key);
    let Some(owner) = found.and_then(|job| job.owner) else {
        return Ok(());
    };
    if snapshot.state().users.contains_key(&owner) {
        return Ok(());
    }
    let looked_up = tokio::task::spawn_blocking(move || name_service::user_named(&owner)).await;
    match looked_up.map_err(|error| Status::internal(format!("name service: {error}")))? {
        Ok(user) => call.input(Input::PutUser(None, user)).await.map(drop),
        Err(error) => {
            // The core says what to do.
            tracing::debug!(%error, "the job's owner is not in the name service");
            Ok(())
        }
    }
}
