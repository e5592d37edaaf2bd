//! Sharing sessions with named users.

use crate::broker::audit::session_subject;
use crate::broker::input::{Caller, SessionRef};
use crate::broker::{Broker, Call, Reject, RejectKind, Reply};
use crate::model::audit::Action;
use crate::model::ids::UserName;
use crate::model::session::{Session, Share};

/// Users that one session is shared with: their principals and keys travel with each Desired.
const MAX_SHARES: usize = 64;

impl Broker {
    pub(super) fn on_share(
        &mut self,
        caller: &Caller,
        wanted: &SessionRef,
        user: &UserName,
        share: Share,
    ) -> Result<Reply, Reject> {
        let session = self.state.session_for(caller, wanted, Call::ShareSession)?;
        let mut session = (**session).clone();
        let id = session.id;
        if *user == session.owner {
            return Err(Reject::new(
                RejectKind::Invalid,
                format!("session {} is {user}'s own", session.name),
            ));
        }
        if !self.state.users.contains_key(user) {
            return Err(
                Reject::new(RejectKind::NotFound, format!("there is no user {user}")).hint(
                    "users are known here once they have used the cluster, or were added to its directory",
                ),
            );
        }
        if session.shares.get(user) == Some(&share) {
            return Ok(Reply::Session(id, false));
        }
        if session.shares.len() >= MAX_SHARES && !session.shares.contains_key(user) {
            return Err(Reject::new(
                RejectKind::Exhausted,
                format!(
                    "session {} is shared with {MAX_SHARES} users already",
                    session.name
                ),
            )
            .hint("`carrel unshare NAME USER` takes one back"));
        }
        session.shares.insert(user.clone(), share);
        let detail = format!("with {user}, {}", share.name());
        self.audit(caller, Action::Share, session_subject(&session), detail);
        self.change_shares(session);
        Ok(Reply::Session(id, false))
    }

    pub(super) fn on_unshare(
        &mut self,
        caller: &Caller,
        wanted: &SessionRef,
        user: &UserName,
    ) -> Result<Reply, Reject> {
        let session = self.state.session_for(caller, wanted, Call::UnshareSession)?;
        let mut session = (**session).clone();
        let id = session.id;
        if session.shares.remove(user).is_none() {
            return Err(Reject::new(
                RejectKind::NotFound,
                format!("session {} is not shared with {user}", session.name),
            )
            .hint(format!(
                "`carrel share {} --list` says with whom it is",
                session.name
            )));
        }
        let detail = format!("with {user}");
        self.audit(caller, Action::Unshare, session_subject(&session), detail);
        self.change_shares(session);
        Ok(Reply::Session(id, false))
    }

    /// Puts a session whose shares changed, and tells the nodes on which it runs.
    fn change_shares(&mut self, session: Session) {
        let live = self.state.live_job(&session).cloned();
        self.put_session(session);
        let nodes = live.iter().filter_map(|job| job.placed()).flat_map(|placed| {
            let parts = placed.allocation.nodes.iter();
            parts.map(|part| part.node.clone())
        });
        let nodes: Vec<_> = nodes.collect();
        for node in nodes {
            self.touch(&node);
        }
    }
}
