//! Finds or creates a session, and sees that it has a live job.

use std::time::Duration;

use carrel_core::broker::{Input, OpenSession, Reply};
use carrel_core::model::resources::ResourceRequest;
use carrel_core::model::session::{ContainerOptions, SessionSpec};
use carrel_core::model::start::StartWish;
use carrel_proto::convert::ConvertError;
use carrel_proto::v1::{self, OpenSessionRequest, OpenSessionResponse};
use tonic::Status;

use super::Call;
use super::environment::{directory, image, variables};
use super::refuse::{bad_name, invalid};

/// Longest key of a repeated request, as the wire says.
pub(super) const MAX_REQUEST_KEY: usize = 64;

pub(super) async fn open_session(
    call: Call,
    request: OpenSessionRequest,
) -> Result<OpenSessionResponse, Status> {
    if request.request_key.len() > MAX_REQUEST_KEY {
        return Err(invalid(format!(
            "a request key has at most {MAX_REQUEST_KEY} characters"
        )));
    }
    let name = match request.name.as_str() {
        "" => None,
        name => Some(name.parse().map_err(bad_name)?),
    };
    if name.is_none() && request.spec.is_none() {
        return Err(invalid(
            "a new session without a name needs to say what it is to be",
        ));
    }
    let mut start: StartWish = request.start.unwrap_or_default().try_into().map_err(unreadable)?;
    start.conditions = call.settled(start.conditions).await?;
    let open = OpenSession {
        // A name that was made up is used once.
        ephemeral: request.ephemeral || name.is_none(),
        name,
        spec: request.spec.map(spec).transpose()?,
        must_start: request.must_start,
        request_key: request.request_key,
        start,
    };
    match call
        .input(Input::OpenSession(call.asker.caller.clone(), open))
        .await?
    {
        Reply::Session(id, started) => {
            let session = call.session_message(id, None)?;
            tracing::info!(
                session = id.0,
                job = session.job.as_ref().map(|job| job.id),
                started,
                "opened"
            );
            Ok(OpenSessionResponse {
                session: Some(session),
                started,
            })
        }
        Reply::Done | Reply::Job(_) | Reply::Told(_) | Reply::Deadline(_) => {
            Err(Status::internal("the broker's core gave another answer"))
        }
    }
}

pub(super) fn unreadable(error: ConvertError) -> Status {
    invalid(error.to_string())
}

pub(super) fn spec(spec: v1::SessionSpec) -> Result<SessionSpec, Status> {
    let resources = spec
        .resources
        .ok_or_else(|| invalid("the request does not say what resources it is for"))?;
    image(&spec.image)?;
    directory(&spec.workdir)?;
    Ok(SessionSpec {
        request: ResourceRequest::try_from(resources).map_err(unreadable)?.into(),
        image: spec.image,
        time_limit: Duration::from_secs(spec.time_limit_s),
        env: variables(spec.env)?,
        workdir: spec.workdir,
        container: ContainerOptions {
            mounts: spec.mounts.into_iter().map(Into::into).collect(),
            root: spec.root,
            end_signal: spec
                .end_signal
                .map(TryInto::try_into)
                .transpose()
                .map_err(unreadable)?,
            idle: (spec.idle_s > 0).then(|| Duration::from_secs(spec.idle_s)),
        },
        terms: spec.terms.unwrap_or_default().try_into().map_err(unreadable)?,
    })
}
