//! Queues a batch job.

use carrel_core::broker::{Input, Reply, SubmitJob};
use carrel_core::model::array::ArraySpec;
use carrel_core::model::batch::{Output, Place};
use carrel_core::model::mail::{BadMailType, MailTypes, MailWish};
use carrel_core::model::start::StartWish;
use carrel_proto::v1::{Job, SubmitJobRequest};
use tonic::Status;

use super::open_session::{MAX_REQUEST_KEY, spec, unreadable};
use super::refuse::invalid;
use super::{Call, convert, refuse};

pub(super) async fn submit_job(call: Call, request: SubmitJobRequest) -> Result<Job, Status> {
    if request.request_key.len() > MAX_REQUEST_KEY {
        return Err(invalid(format!(
            "a request key has at most {MAX_REQUEST_KEY} characters"
        )));
    }
    let asked = request
        .spec
        .ok_or_else(|| invalid("the request does not say what the job runs on"))?;
    let mut start: StartWish = request.start.unwrap_or_default().try_into().map_err(unreadable)?;
    start.conditions = call.settled(start.conditions).await?;
    let array = match request.array.as_str() {
        "" => None,
        text => Some(
            text.parse::<ArraySpec>()
                .map_err(|error| invalid(error.to_string()))?,
        ),
    };
    let types: MailTypes = match request.mail_type.as_str() {
        "" => MailTypes::default(),
        text => text
            .parse()
            .map_err(|error: BadMailType| invalid(error.to_string()))?,
    };
    let mail = (!types.events.is_empty()).then_some(MailWish {
        types,
        to: request.mail_user,
    });
    let submit = SubmitJob {
        name: request.name,
        spec: spec(asked)?,
        command: request.command,
        script: request.script,
        output: Output {
            stdout: request.stdout,
            stderr: request.stderr,
            append: request.append,
        },
        submitted_from: Place {
            host: request.submit_host,
            directory: request.submit_dir,
        },
        comment: request.comment,
        requeue: request.requeue,
        mail,
        start,
        array,
        request_key: request.request_key,
    };
    let input = Input::SubmitJob(call.asker.caller.clone(), Box::new(submit));
    match call.input(input).await? {
        Reply::Job(id) => {
            tracing::info!(job = id.0, "submitted");
            // Its place is not counted: that takes as long as the queue is, and nobody waits to hear it.
            let snapshot = call.snapshot();
            let state = snapshot.state();
            let job = state
                .find_job(&call.asker.caller, &id.into())
                .map_err(refuse::status)?;
            Ok(convert::job(state, job, None))
        }
        Reply::Done | Reply::Session(..) | Reply::Told(_) | Reply::Deadline(_) => {
            Err(Status::internal("the broker's core gave another answer"))
        }
    }
}
