//! Whom and what a caller means, and whether it is theirs.

use std::sync::Arc;

use super::input::{Caller, SessionRef};
use super::reject::{Reject, RejectKind};
use super::rights::Call;
use super::state::State;
use crate::model::ids::{NodeName, SessionName, UserName};
use crate::model::node::NodeRecord;
use crate::model::session::Session;

impl State {
    /// The session that a caller means, if this call may be made of it: it is
    /// theirs, it is shared with them far enough, or their role reaches it.
    ///
    /// Another user's session is denied by the name that the caller gave, and
    /// says no more than that name did.
    pub fn session_for(
        &self,
        caller: &Caller,
        wanted: &SessionRef,
        call: Call,
    ) -> Result<&Arc<Session>, Reject> {
        let found = match wanted {
            SessionRef::Id(id) => self.sessions.get(id),
            SessionRef::Own(name) => self.session_named(&caller.user, name),
            SessionRef::Of(name, user) => self.session_named(user, name),
        };
        let needs = call.needs();
        let all = caller.reaches_others(call);
        let foreign = |user: &str| {
            let who = needs
                .others
                .map_or(String::new(), |role| format!("; others' take the role {role}"));
            Reject::new(
                RejectKind::Denied,
                format!("that session belongs to another user{user}"),
            )
            .hint(format!("`carrel ps` lists your own sessions{who}"))
        };
        let shared = found.and_then(|session| session.shares.get(&caller.user));
        match (found, wanted) {
            (Some(session), _) if session.owner == caller.user || all => Ok(session),
            (Some(session), _) if shared.is_some() => {
                if needs.share.is_some_and(|least| shared >= Some(&least)) {
                    return Ok(session);
                }
                Err(Reject::new(
                    RejectKind::Denied,
                    format!(
                        "session {} is shared with you, but is {}'s",
                        session.name, session.owner
                    ),
                )
                .hint(format!("only {} may do this", session.owner)))
            }
            (Some(_), SessionRef::Id(_)) => Err(foreign("")),
            (_, SessionRef::Of(_, user)) if *user != caller.user && !all => {
                Err(foreign(&format!(", {user}")))
            }
            (_, SessionRef::Id(id)) => Err(missing(&format!("with id {id}"))),
            (_, SessionRef::Own(name)) => Err(missing(&format!("named {name}"))),
            (_, SessionRef::Of(name, user)) => Err(missing(&format!("named {name} of {user}"))),
        }
    }

    /// A user's sessions, by name.
    pub fn sessions_of<'a>(&'a self, user: &'a UserName) -> impl Iterator<Item = &'a Arc<Session>> + 'a {
        let all = self.session_names.range((user.clone(), SessionName::first())..);
        all.take_while(move |((owner, _), _)| owner == user)
            .filter_map(|(_, id)| self.sessions.get(id))
    }

    fn session_named(&self, user: &UserName, name: &SessionName) -> Option<&Arc<Session>> {
        let id = self.session_names.get(&(user.clone(), name.clone()))?;
        self.sessions.get(id)
    }

    /// The node of that name.
    pub(super) fn node_named(&self, name: &NodeName) -> Result<&Arc<NodeRecord>, Reject> {
        self.nodes.get(name).ok_or_else(|| {
            Reject::new(RejectKind::NotFound, format!("there is no node named {name}"))
                .hint("`carrel nodes` lists the nodes")
        })
    }
}

fn missing(what: &str) -> Reject {
    Reject::new(RejectKind::NotFound, format!("there is no session {what}"))
        .hint("`carrel ps` lists your sessions; `carrel open NAME --gpus N` makes one")
}
