//! Where a jump host's target is.

use carrel_core::broker::{Call, Caller, SessionRef};
use carrel_core::model::audit::Origin;
use carrel_core::model::ids::UserName;
use carrel_core::model::user::Role;
use carrel_proto::v1::{ResolveTargetRequest, ResolveTargetResponse};
use tonic::Status;

use crate::api::refuse::bad_name;
use crate::api::ticket::ticket_for;
use crate::context::Context;

pub(super) fn resolve_target(
    context: &Context,
    request: &ResolveTargetRequest,
) -> Result<ResolveTargetResponse, Status> {
    let user: UserName = request.user.parse().map_err(bad_name)?;
    let snapshot = context.handle.snapshot();
    let state = snapshot.state();
    // A jump host serves its user, whoever that is: nobody administers through it.
    let caller = Caller {
        user,
        role: Role::User,
        origin: Origin::Broker,
    };
    let found = candidates(&request.target, &state.settings.domain);
    let mut error = format!("{:?} names no session", shown(&request.target));
    for (reference, rank) in found {
        match state.session_for(&caller, &reference, Call::OpenStream) {
            Ok(session) => {
                return Ok(
                    match ticket_for(state, session, rank, &caller.user, context.clock.now()) {
                        Ok(ticket) => ResolveTargetResponse {
                            ticket: Some(ticket),
                            error: String::new(),
                        },
                        Err(status) => refused(status.message()),
                    },
                );
            }
            Err(reject) => error = reject.message,
        }
    }
    Ok(refused(&error))
}

fn refused(why: &str) -> ResolveTargetResponse {
    ResolveTargetResponse {
        ticket: None,
        error: why.to_owned(),
    }
}

fn shown(text: &str) -> String {
    text.chars().take(80).collect()
}

/// What a target may mean, the most literal first: session and rank.
fn candidates(target: &str, domain: &str) -> Vec<(SessionRef, u32)> {
    let target = target.to_ascii_lowercase();
    let mut found = Vec::new();
    if let Some(rest) = target
        .strip_suffix(domain)
        .and_then(|rest| rest.strip_suffix('.'))
    {
        // "dev.alice.carrel", "1.dev.alice.carrel"; users' names may hold dots.
        found.extend(rest.parse().map(|reference| (reference, 0)));
        if let Some((rank, rest)) = rest.split_once('.')
            && let (Ok(rank), Ok(reference @ SessionRef::Of(..))) = (rank.parse(), rest.parse())
        {
            found.push((reference, rank));
        }
        return found;
    }
    let bare = target.strip_prefix("carrel-");
    for name in [Some(target.as_str()), bare].into_iter().flatten() {
        found.extend(name.parse().map(|name| (SessionRef::Own(name), 0)));
    }
    for name in [bare, Some(target.as_str())].into_iter().flatten() {
        if let Some((name, rank)) = name.rsplit_once('-')
            && let (Ok(name), Ok(rank)) = (name.parse(), rank.parse())
        {
            found.push((SessionRef::Own(name), rank));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use carrel_core::broker::{Broker, Change, Settings, State};
    use carrel_core::model::ids::{ClusterId, SessionId};
    use carrel_core::model::resources::ResourceRequest;
    use carrel_core::model::session::{ContainerOptions, Session, SessionSpec};
    use carrel_core::model::time::Timestamp;

    use super::*;

    /// The first meaning of a target that is a session of the user's.
    fn first(state: &State, user: &str, target: &str) -> Option<(u64, u32)> {
        let caller = Caller {
            user: user.parse().ok()?,
            role: Role::User,
            origin: Origin::Broker,
        };
        candidates(target, "carrel")
            .into_iter()
            .find_map(|(reference, rank)| {
                state
                    .session_for(&caller, &reference, Call::OpenStream)
                    .ok()
                    .map(|found| (found.id.0, rank))
            })
    }

    fn session(id: u64, name: &str, owner: &str) -> Change {
        let request = ResourceRequest {
            nodes: 1,
            gpus_per_node: 0,
            gpu_model: String::new(),
            nvlink: false,
            cpus_per_node: 1,
            memory_bytes_per_node: 1,
            ..ResourceRequest::default()
        };
        let spec = SessionSpec {
            request: request.into(),
            image: "i".into(),
            time_limit: std::time::Duration::from_secs(1),
            env: std::collections::BTreeMap::new(),
            workdir: String::new(),
            terms: carrel_core::model::terms::TermsRequest::default(),
            container: ContainerOptions::default(),
        };
        Change::PutSession(Arc::new(Session {
            id: SessionId(id),
            name: name.parse().expect("a name"),
            owner: owner.parse().expect("a name"),
            spec,
            created: Timestamp(0),
            ephemeral: false,
            removing: false,
            job: None,
            kept_on: Vec::new(),
            request_key: String::new(),
            shares: std::collections::BTreeMap::new(),
        }))
    }

    #[test]
    fn every_form_of_a_target_finds_its_session_and_no_other() {
        let records = vec![
            session(1, "dev", "alice"),
            session(2, "dev", "bob"),
            session(3, "dev-1", "bob"),
            session(4, "7", "a.b"),
        ];
        let id = ClusterId("c".into());
        let (core, _) = Broker::start(Settings::default(), records, id, 1, Timestamp(0));
        let state = core.state();
        for (user, target, found) in [
            ("alice", "dev", Some((1, 0))),
            ("alice", "carrel-dev", Some((1, 0))),
            ("alice", "dev.alice.carrel", Some((1, 0))),
            ("alice", "3.dev.alice.carrel", Some((1, 3))),
            ("alice", "carrel-dev-1", Some((1, 1))),
            ("alice", "dev-1", Some((1, 1))),
            ("alice", "DEV", Some((1, 0))),
            ("bob", "carrel-dev-1", Some((3, 0))),
            ("bob", "dev-1", Some((3, 0))),
            ("bob", "dev.alice.carrel", None),
            ("bob", "1.dev.alice.carrel", None),
            ("a.b", "7.a.b.carrel", Some((4, 0))),
            ("a.b", "0.7.a.b.carrel", Some((4, 0))),
            ("alice", "", None),
            ("alice", "carrel-", None),
            ("alice", "localhost", None),
            ("alice", "../../etc", None),
        ] {
            assert_eq!(first(state, user, target), found, "{user} {target}");
        }
    }
}
