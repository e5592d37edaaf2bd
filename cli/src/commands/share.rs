//! `carrel share` and `carrel unshare`: a session with named users.

use std::str::FromStr;

use carrel_core::model::ids::UserName;
use carrel_proto::v1;

use crate::context::{Context, no_session, parse_session};
use crate::error::{CliError, Result};
use crate::terminal::say;
use crate::{output, view};

/// Share a session with named users.
///
/// In full, they enter it as your user there: they can do what you can, with your files. Read-only,
/// they see it and look at its terminals, and can do nothing else. They name it NAME.YOU, as in
/// `carrel ssh dev.alice`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    carrel share dev bob              bob may enter dev\n  \
    carrel share dev bob:ro carol:ro  they may look on\n  \
    carrel share dev --list           with whom it is shared")]
pub struct ShareArgs {
    /// Session
    #[arg(value_name = "NAME", value_parser = parse_session, add = super::completion::sessions())]
    pub name: String,
    /// With whom, and how far: full (the default), or ro
    #[arg(value_name = "USER[:ro|:full]", required_unless_present = "list")]
    pub with: Vec<With>,
    /// List with whom it is shared
    #[arg(long, conflicts_with = "with")]
    pub list: bool,
}

/// Take a share back.
///
/// Who it was shared with gets in no more, and is cut off at once.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  carrel unshare dev bob")]
pub struct UnshareArgs {
    /// Session
    #[arg(value_name = "NAME", value_parser = parse_session, add = super::completion::sessions())]
    pub name: String,
    /// With whom it is not to be shared any more
    #[arg(value_name = "USER", required = true)]
    pub users: Vec<UserName>,
}

/// Somebody, and how far: `bob`, `bob:ro`, `bob:full`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct With {
    user: String,
    mode: v1::ShareMode,
}

impl FromStr for With {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (user, mode) = match text.split_once(':') {
            None => (text, v1::ShareMode::Full),
            Some((user, "full")) => (user, v1::ShareMode::Full),
            Some((user, "ro")) => (user, v1::ShareMode::ReadOnly),
            Some((_, other)) => return Err(format!("{other:?} is no way to share: ro or full")),
        };
        user.parse::<UserName>().map_err(|bad| bad.to_string())?;
        Ok(Self {
            user: user.to_owned(),
            mode,
        })
    }
}

/// Runs `share`.
pub async fn run(context: &Context, args: ShareArgs) -> Result<u8> {
    let mut client = context.client().await?;
    let name = args.name;
    let mut session = client
        .get_session(v1::GetSessionRequest { name: name.clone() })
        .await
        .map_err(|status| no_session(&name, status))?
        .into_inner();
    for With { user, mode } in args.with {
        let request = v1::ShareSessionRequest {
            name: name.clone(),
            user,
            mode: mode.into(),
        };
        session = client.share_session(request).await?.into_inner();
    }
    print(context, &session, args.list)?;
    Ok(0)
}

/// Runs `unshare`.
pub async fn unshare(context: &Context, args: UnshareArgs) -> Result<u8> {
    let mut client = context.client().await?;
    let mut last = None;
    for user in args.users {
        let request = v1::UnshareSessionRequest {
            name: args.name.clone(),
            user: user.to_string(),
        };
        last = Some(client.unshare_session(request).await?.into_inner());
    }
    let session = last.ok_or_else(|| CliError::usage("no user is named"))?;
    print(context, &session, false)?;
    Ok(0)
}

fn print(context: &Context, session: &v1::Session, list: bool) -> Result<()> {
    if context.json() {
        let shares = session.shares.iter().cloned().map(view::Share::from);
        return output::json(&shares.collect::<Vec<_>>());
    }
    if list && !session.shares.is_empty() {
        let rows = session
            .shares
            .iter()
            .map(|share| [share.user.clone(), view::share_mode(share.mode()).to_owned()]);
        return output::text(output::table(["USER", "HOW"], rows));
    }
    if session.shares.is_empty() {
        say(format_args!(
            "carrel: session {} is shared with nobody",
            session.name
        ));
    } else {
        say(format_args!(
            "carrel: session {} is shared with {}; they name it {}.{}",
            session.name,
            self::list(&session.shares),
            session.name,
            session.user
        ));
    }
    Ok(())
}

/// "bob (full), carol (ro)"; empty: nobody.
pub fn list(shares: &[v1::Share]) -> String {
    let shares = shares
        .iter()
        .map(|share| format!("{} ({})", share.user, view::share_mode(share.mode())));
    shares.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_whom_and_how_far() {
        let with = |user: &str, mode| {
            Ok(With {
                user: user.into(),
                mode,
            })
        };
        assert_eq!("bob".parse(), with("bob", v1::ShareMode::Full));
        assert_eq!("bob:full".parse(), with("bob", v1::ShareMode::Full));
        assert_eq!("b.ob:ro".parse(), with("b.ob", v1::ShareMode::ReadOnly));
        for bad in ["", ":ro", "bob:rw", "bob:", "B/ob"] {
            assert!(bad.parse::<With>().is_err(), "{bad}");
        }
    }
}
