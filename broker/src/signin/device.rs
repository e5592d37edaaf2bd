//! By OpenID Connect's device flow: a call that lasts until somebody has been to the provider. The
//! sign-in is the call's: when its client ends it, or its connection breaks, nothing is left of it.

use std::pin::Pin;
use std::sync::Arc;

use carrel_core::model::audit::Origin;
use carrel_core::model::ids::UserName;
use carrel_proto::v1;
use carrel_proto::v1::device_progress::What;
use futures::stream::{self, Stream, StreamExt as _};
use serde_json::Value;
use tonic::{Code, Status};

use super::oidc::{self, Flow, NoAccount, NotSignedIn, Oidc, Stranger};
use super::{Proved, failed, give};
use crate::api::create_token::check_wanted;
use crate::api::refuse;
use crate::context::Context;
use crate::handshakes::Source;
use crate::listen::Peer;

/// New users that may come at the very same moment, and take each other's user id: who loses tries again.
const TRIES: usize = 5;
/// What else there is.
const OTHER_WAYS: &str = "`carrel login --ssh-key` signs in with a registered SSH key, `--token` with a token; an administrator \
     of the cluster can look into the broker's log";

/// What the client reads.
pub type Progress = Pin<Box<dyn Stream<Item = Result<v1::DeviceProgress, Status>> + Send>>;

/// Begins a sign-in: gives the code, and then the token.
pub async fn sign_in(
    context: Arc<Context>,
    oidc: Option<Arc<Oidc>>,
    peer: &Peer,
    request: v1::SignInByDeviceRequest,
) -> Result<Progress, Status> {
    let oidc = oidc.ok_or_else(|| {
        refuse::with_hint(
            Code::FailedPrecondition,
            "this cluster has no OpenID Connect provider",
            "`carrel login --ssh-key` signs in with a registered SSH key, `--token` with a token",
        )
    })?;
    let wanted = request.token.unwrap_or_default();
    // Before somebody goes to the provider for nothing.
    check_wanted(&wanted)?;
    let origin = peer.origin();
    let source = match peer {
        Peer::Local { .. } => Source::Local,
        Peer::Remote { address, .. } => (*address).into(),
    };
    let flow = match oidc.begin(source).await {
        Ok(flow) => flow,
        Err(not) => return Err(refused(&context, origin, &not).await),
    };
    let code = progress(What::Code(flow.code()));
    let rest = async move {
        // Both arms only wait; the broker's end makes what the first had of no use.
        let signed_in = tokio::select! {
            signed_in = finish(&context, &oidc, &flow, origin, &wanted) => signed_in?,
            () = context.stopping.cancelled() => return Err(Status::unavailable("the broker is stopping")),
        };
        Ok(progress(What::SignedIn(signed_in)))
    };
    Ok(Box::pin(stream::iter([Ok(code)]).chain(stream::once(rest))))
}

fn progress(what: What) -> v1::DeviceProgress {
    v1::DeviceProgress { what: Some(what) }
}

/// Waits for the provider's word, and finds out whose token it is to be.
async fn finish(
    context: &Context,
    oidc: &Oidc,
    flow: &Flow,
    origin: Origin,
    wanted: &v1::WantedToken,
) -> Result<v1::SignedIn, Status> {
    let claims = match oidc.wait(flow).await {
        Ok(claims) => claims,
        Err(not) => return Err(refused(context, origin, &not).await),
    };
    let (name, role) = match identify(oidc, &claims) {
        Ok(person) => person,
        Err((name, stranger)) => {
            let why = format!("{}: {stranger}", method(oidc, &claims));
            failed(context, origin, subject(name.as_ref()), &why).await;
            return Err(stranger_status(&stranger));
        }
    };
    let mut tries = 1..=TRIES;
    loop {
        let newcomer = match oidc::newcomer(context, oidc.config(), &name).await {
            Ok(newcomer) => newcomer,
            Err(no) => {
                let why = format!("{}: {no}", method(oidc, &claims));
                failed(context, origin, subject(Some(&name)), &why).await;
                return Err(account_status(&no, &name));
            }
        };
        let is_new = newcomer.is_some();
        let proved = Proved {
            user: name.clone(),
            method: method(oidc, &claims),
            newcomer,
            role,
        };
        match give(context, proved, origin.clone(), wanted).await {
            Err(status) if is_new && status.code() == Code::AlreadyExists && tries.next().is_some() => {}
            given => return given,
        }
    }
}

type Person = (UserName, Option<carrel_core::model::user::Role>);

/// Who the claims speak of; who is refused has a name as well, if the claims had one.
fn identify(oidc: &Oidc, claims: &Value) -> Result<Person, (Option<UserName>, Stranger)> {
    let name = oidc::login_name(oidc.config(), claims).map_err(|stranger| (None, stranger))?;
    match oidc::role(oidc.config(), claims) {
        Ok(role) => Ok((name, role)),
        Err(stranger) => Err((Some(name), stranger)),
    }
}

/// For the audit log: by whom, and under which name there, which stays when the login name does not.
fn method(oidc: &Oidc, claims: &Value) -> String {
    // At most 255 ASCII characters (OpenID Connect Core, 2); a provider may think otherwise.
    let subject: String = claims["sub"]
        .as_str()
        .unwrap_or_default()
        .chars()
        .take(255)
        .collect();
    format!("OpenID Connect, {} {subject:?}", oidc.host())
}

fn subject(name: Option<&UserName>) -> String {
    match name {
        Some(name) => format!("user {name}"),
        None => "OpenID Connect".to_owned(),
    }
}

/// Notes why the provider does not vouch for somebody.
async fn refused(context: &Context, origin: Origin, not: &NotSignedIn) -> Status {
    failed(context, origin, subject(None), &not.to_string()).await;
    let (code, hint) = match not {
        NotSignedIn::NoAnswer(..) => (Code::Aborted, OTHER_WAYS),
        NotSignedIn::Refused(..) => (Code::FailedPrecondition, OTHER_WAYS),
        NotSignedIn::Denied(_) => (Code::PermissionDenied, "sign in again, and agree there"),
        NotSignedIn::Expired => (Code::DeadlineExceeded, "sign in again for a new one"),
        NotSignedIn::TooMany(_) => (Code::ResourceExhausted, "try again in a few minutes"),
    };
    refuse::with_hint(code, not.to_string(), hint)
}

fn stranger_status(stranger: &Stranger) -> Status {
    let hint = match stranger {
        Stranger::Unverified => "verify it at the provider, and sign in again",
        Stranger::NoClaim(_) | Stranger::Name(_) | Stranger::Domain(_) | Stranger::Group => {
            "ask an administrator of the cluster; or sign in at the provider as somebody else"
        }
    };
    refuse::with_hint(Code::PermissionDenied, stranger.to_string(), hint)
}

fn account_status(no: &NoAccount, name: &UserName) -> Status {
    match no {
        NoAccount::System(_) => refuse::with_hint(
            Code::PermissionDenied,
            no.to_string(),
            "on the broker's machine it needs no sign-in",
        ),
        NoAccount::Unknown(_) => refuse::with_hint(
            Code::PermissionDenied,
            no.to_string(),
            &format!("an administrator of the cluster can add you: carrel user add {name} --uid UID"),
        ),
        NoAccount::NameService(_) => {
            refuse::with_hint(Code::Aborted, no.to_string(), "try again in a minute")
        }
        NoAccount::NoId => refuse::with_hint(
            Code::ResourceExhausted,
            no.to_string(),
            "an administrator of the cluster has to set oidc.first_uid to where ids are free",
        ),
    }
}
