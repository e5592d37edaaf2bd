//! What each input does, one subject a file.

mod accounts;
mod adopt;
mod batch;
mod constraints;
mod directory;
mod end;
mod forget;
mod inside;
mod job;
mod limits;
mod node;
mod observed;
mod open;
mod partition;
mod qos;
mod reservation;
mod reserve;
mod session;
mod share;
mod signal;
mod tick;
mod token;

pub(super) use forget::MAX_ENDED;
pub(super) use tick::AUDIT_TRIM;

use super::{Broker, Input, Reject, Reply};
use crate::model::time::Timestamp;

impl Broker {
    pub(super) fn dispatch(&mut self, now: Timestamp, input: Input) -> Result<Reply, Reject> {
        match input {
            Input::OpenSession(caller, request) => self.on_open(now, &caller, request),
            Input::SubmitJob(caller, request) => self.on_submit_job(now, &caller, *request),
            Input::RequeueJob(caller, job) => self.on_requeue_job(now, &caller, &job),
            Input::CancelJob(caller, job) => self.on_cancel_job(now, &caller, &job),
            Input::SignalJob(caller, job, sent) => self.on_signal_job(&caller, &job, sent),
            Input::UpdateJob(caller, job, update) => self.on_update_job(now, &caller, &job, &update),
            Input::ExtendSession(caller, session, add) => self.on_extend(now, &caller, &session, add),
            Input::StopSession(caller, session, job) => self.on_stop(now, &caller, &session, job),
            Input::EndSession(caller, session, job, code) => self.on_end(now, &caller, &session, job, code),
            Input::RemoveSession(caller, session) => self.on_remove(now, &caller, &session),
            Input::ShareSession(caller, session, user, share) => {
                self.on_share(&caller, &session, &user, share)
            }
            Input::UnshareSession(caller, session, user) => self.on_unshare(&caller, &session, &user),
            Input::Observed(observed) => self.on_observed(now, observed),
            Input::Contact(observed) => self.on_contact(now, &observed),
            Input::Disconnected(node) => self.on_disconnected(&node),
            Input::Tick => self.on_tick(now),
            Input::ClockStepped(by) => Ok(self.on_clock_stepped(by)),
            Input::CreateNodeToken(caller, token) => self.on_create_node_token(now, &caller, token),
            Input::JoinNode {
                token,
                node,
                certificate,
                origin,
            } => self.on_join(now, &token, node, certificate, origin),
            Input::RenewNode {
                node,
                old,
                certificate,
            } => self.on_renew(&node, &old, certificate),
            Input::FindNode { node, certificate } => self.on_find_node(now, &node, certificate),
            Input::AdoptNode(caller, node) => self.on_adopt_node(&caller, &node),
            Input::AdoptJob(caller, key) => self.on_adopt_job(now, &caller, key),
            Input::EndFound(caller, key) => self.on_end_found(&caller, key),
            Input::DrainNode(caller, node, reason) => self.on_drain(&caller, &node, Some(reason)),
            Input::ResumeNode(caller, node) => self.on_drain(&caller, &node, None),
            Input::ChangeFeatures(caller, node, change) => self.on_change_features(&caller, &node, &change),
            Input::RemoveNode(caller, node) => self.on_remove_node(&caller, &node),
            Input::PutUser(caller, user) => self.on_put_user(caller.as_ref(), user),
            Input::SetUserRole(caller, user, role) => self.on_set_role(&caller, &user, role),
            Input::Edit(caller, edit) => self.on_edit(&caller, *edit),
            Input::AddSshKey(caller, key) => self.on_add_ssh_key(&caller, key),
            Input::RemoveSshKey(caller, key) => self.on_remove_ssh_key(&caller, &key),
            Input::CreateToken(caller, token) => self.on_create_token(&caller, token),
            Input::RevokeToken(caller, id) => self.on_revoke_token(&caller, &id),
            Input::UseToken(id, origin) => {
                self.on_use_token(now, &id, origin);
                Ok(Reply::Done)
            }
            Input::SignIn(sign_in) => self.on_sign_in(now, *sign_in),
            Input::Note(record) => {
                self.note(*record);
                Ok(Reply::Done)
            }
        }
    }
}
