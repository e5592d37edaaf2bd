//! Changes a job that waits.

use std::time::Duration;

use carrel_core::broker::{Input, JobUpdate, MailEdit};
use carrel_core::model::mail::BadMailType;
use carrel_core::model::time::Timestamp;
use carrel_proto::convert::ConvertError;
use carrel_proto::v1::{Job, UpdateJobRequest};
use tonic::Status;

use super::refuse::invalid;
use super::{Call, job_ref};

pub(super) async fn update_job(call: Call, request: UpdateJobRequest) -> Result<Job, Status> {
    let name = job_ref(request.id, &request.tasks)?;
    // One that has left the state is known, too: the core will say that it does not wait.
    let snapshot = call.snapshot();
    if snapshot.state().named(&name).is_err() {
        let past = call.job(snapshot.state(), &name).await?;
        let state = past.state().name();
        return Err(Status::failed_precondition(format!(
            "job {name} does not wait: it is {state}"
        )));
    }
    let conditions = request.conditions.map(TryInto::try_into).transpose();
    let conditions = conditions.map_err(|error: ConvertError| invalid(error.to_string()))?;
    let conditions = match conditions {
        Some(conditions) => Some(call.settled(conditions).await?),
        None => None,
    };
    let types = request.mail_type.map(|text| text.parse()).transpose();
    let mail = MailEdit {
        types: types.map_err(|error: BadMailType| invalid(error.to_string()))?,
        to: request.mail_user,
    };
    let update = JobUpdate {
        hold: request.hold,
        nice: request.nice,
        top: request.top,
        begin: request.begin_ms.map(Timestamp::from_millis),
        time_limit: request.time_limit_s.map(Duration::from_secs),
        conditions,
        throttle: request.array_throttle,
        mail: (mail != MailEdit::default()).then_some(mail),
    };
    call.input(Input::UpdateJob(call.asker.caller.clone(), name.clone(), update))
        .await?;
    call.job_message(&name).await
}
