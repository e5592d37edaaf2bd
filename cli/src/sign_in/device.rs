//! OpenID Connect's device flow (RFC 8628): the person goes elsewhere with a code, and this waits.

use std::time::Duration;

use carrel_proto::v1;
use carrel_proto::v1::device_progress::What;

use super::{Client, Wanted};
use crate::error::{CliError, Kind, Result};
use crate::output::visible;
use crate::progress::Progress;
use crate::signals::{Signal, Signals};
use crate::terminal::say;
use crate::{browser, units};

/// Shows where to go with which code, and waits until that was done. A signal ends it: the broker
/// sees that nobody waits any more.
pub async fn sign_in(client: &mut Client, open_browser: bool, wanted: &Wanted) -> Result<v1::SignedIn> {
    let mut signals = Signals::catch()?;
    let request = v1::SignInByDeviceRequest {
        token: Some(wanted.into()),
    };
    let mut progress = Progress::begin();
    let waiting = async {
        let mut messages = client.sign_in_by_device(request).await?.into_inner();
        loop {
            let message = messages.message().await?.and_then(|message| message.what);
            match message {
                Some(What::Code(code)) => show(&mut progress, open_browser, &code)?,
                Some(What::SignedIn(signed_in)) => return Ok(signed_in),
                None => return Err(CliError::failed("the broker ended the sign-in without a result")),
            }
        }
    };
    // Both arms only wait; what the first had when the second comes is of no use any more.
    let result = tokio::select! {
        result = waiting => result,
        signal = signals.next() => Err(interrupted(signal)),
    };
    progress.end();
    result
}

fn show(progress: &mut Progress, open_browser: bool, code: &v1::DeviceCode) -> Result<()> {
    let place = match code.verification_uri_complete.as_str() {
        "" => &code.verification_uri,
        complete => complete,
    };
    if !browser::is_web_address(place) {
        return Err(CliError::failed(format!(
            "the provider names an address that is none of the web's: {}",
            visible(place)
        )));
    }
    let opened = open_browser && browser::open(place);
    let what = if opened {
        "Your browser opens this page; if it does not, open it anywhere:"
    } else {
        "To sign in, open this page in any browser:"
    };
    let code_text = visible(&code.user_code);
    let then = if place == code.verification_uri {
        "and enter this code there:"
    } else {
        "It asks you to confirm this code:"
    };
    say(format_args!(
        "{what}\n\n  {}\n\n{then}\n\n  {code_text}\n",
        visible(place)
    ));
    let left = units::clock(Duration::from_secs(code.expires_s));
    progress.show_now(
        "waiting",
        &format!("waiting for you to sign in there, for {left} at most"),
    );
    Ok(())
}

fn interrupted(signal: Signal) -> CliError {
    let kind = match signal {
        Signal::Interrupt => Kind::Interrupted,
        Signal::Terminate | Signal::HangUp => Kind::Terminated,
    };
    CliError::new(kind, "not signed in")
}
