//! API tokens, and the sign-ins that make them.

use std::sync::Arc;

use super::directory::user_detail;
use crate::broker::change::Change;
use crate::broker::input::{Caller, SignIn};
use crate::broker::{Broker, Call, Reject, RejectKind, Reply};
use crate::model::audit::{Action, AuditRecord, Origin};
use crate::model::ids::UserName;
use crate::model::time::Timestamp;
use crate::model::user::{ApiToken, Role, User};

/// API tokens that one user may have: each is a way in that somebody has to keep an eye on.
const MAX_TOKENS: usize = 64;

impl Broker {
    pub(super) fn on_create_token(&mut self, caller: &Caller, token: ApiToken) -> Result<Reply, Reject> {
        caller.must(Call::CreateToken)?;
        if token.user != caller.user {
            caller.must_reach_others(Call::CreateToken)?;
        }
        if !self.state.users.contains_key(&token.user) {
            return Err(
                Reject::new(RejectKind::NotFound, format!("there is no user {}", token.user))
                    .hint("`carrel user add` creates one"),
            );
        }
        let held = self.tokens_of(&token.user).count();
        if held >= MAX_TOKENS {
            return Err(Reject::new(
                RejectKind::Exhausted,
                format!("{} has {held} tokens already", token.user),
            )
            .hint("`carrel token revoke ID` ends one"));
        }
        let (subject, detail) = (token_subject(&token), token_detail(&token));
        self.audit(caller, Action::TokenCreate, subject, detail);
        self.put_token(token);
        Ok(Reply::Done)
    }

    pub(super) fn on_revoke_token(&mut self, caller: &Caller, id: &Arc<str>) -> Result<Reply, Reject> {
        caller.must(Call::RevokeToken)?;
        let reaches = caller.reaches_others(Call::RevokeToken);
        let token = self.state.tokens.get(id).cloned();
        let Some(token) = token.filter(|token| token.user == caller.user || reaches) else {
            return Err(
                Reject::new(RejectKind::NotFound, format!("there is no token {id}"))
                    .hint("`carrel token list` lists yours"),
            );
        };
        self.audit(caller, Action::TokenRevoke, token_subject(&token), "");
        self.delete_token(id);
        Ok(Reply::Done)
    }

    /// Keeps when and from where a token was last used, coarsely; its first use, and one from
    /// elsewhere than the last, are sign-ins.
    pub(super) fn on_use_token(&mut self, now: Timestamp, id: &Arc<str>, origin: Origin) {
        let Some(token) = self.state.tokens.get(id).cloned() else {
            return;
        };
        if !token.use_is_due(now) {
            return;
        }
        let former = token.last_used.as_ref().map(|(_, from)| from);
        let new = former != Some(&origin) && !(former.is_none() && token.by_sign_in);
        if new {
            self.note(AuditRecord::new(
                Some(token.user.clone()),
                origin.clone(),
                Action::SignIn,
                token_subject(&token),
                "by token",
            ));
        }
        self.put_token(ApiToken {
            last_used: Some((now, origin)),
            ..(*token).clone()
        });
    }

    pub(super) fn on_sign_in(&mut self, now: Timestamp, sign_in: SignIn) -> Result<Reply, Reject> {
        let SignIn {
            method,
            origin,
            newcomer,
            role,
            token,
        } = sign_in;
        self.welcome(&token.user, newcomer, role, &origin)?;
        if token.expires <= now {
            return Err(Reject::new(
                RejectKind::Invalid,
                "the token would have expired already",
            ));
        }
        self.make_room_for_sign_in(&token.user)?;
        let detail = format!("by {method}: {}", token_detail(&token));
        self.note(AuditRecord::new(
            Some(token.user.clone()),
            origin,
            Action::SignIn,
            token_subject(&token),
            detail,
        ));
        self.put_token(token);
        Ok(Reply::Done)
    }

    /// Sees that who signs in has a record, and the role that they are to have.
    fn welcome(
        &mut self,
        name: &UserName,
        newcomer: Option<User>,
        role: Option<Role>,
        origin: &Origin,
    ) -> Result<(), Reject> {
        let subject = format!("user {name}");
        let note = |action, detail| {
            AuditRecord::new(
                Some(name.clone()),
                origin.clone(),
                action,
                subject.clone(),
                detail,
            )
        };
        let known = self.state.users.get(name).cloned();
        let Some(user) = known else {
            let Some(user) = newcomer.filter(|user| user.name == *name) else {
                return Err(Reject::new(
                    RejectKind::NotFound,
                    format!("there is no user {name}"),
                ));
            };
            self.check_uid(&user)?;
            let user = User {
                role: role.unwrap_or(user.role),
                ..user
            };
            let detail = user_detail(&user) + ", at their first sign-in";
            self.note(note(Action::UserPut, detail));
            self.put_user(user);
            return Ok(());
        };
        if let Some(role) = role.filter(|role| *role != user.role) {
            let detail = format!("{role} instead of {}, at their sign-in", user.role);
            self.note(note(Action::UserRole, detail));
            self.put_user(User {
                role,
                ..(*user).clone()
            });
        }
        Ok(())
    }

    /// Sign-ins must not fail for tokens that earlier ones left behind.
    fn make_room_for_sign_in(&mut self, user: &UserName) -> Result<(), Reject> {
        if self.tokens_of(user).count() < MAX_TOKENS {
            return Ok(());
        }
        let mut earlier: Vec<_> = self.tokens_of(user).filter(|token| token.by_sign_in).collect();
        earlier.sort_by_key(|token| token.last_used.as_ref().map_or(token.created, |(at, _)| *at));
        let Some(oldest) = earlier.first().map(|token| Arc::clone(&token.id)) else {
            return Err(Reject::new(
                RejectKind::Exhausted,
                format!("{user} has {MAX_TOKENS} tokens already"),
            )
            .hint("`carrel token revoke ID` on the broker's machine ends one"));
        };
        self.delete_token(&oldest);
        Ok(())
    }

    fn tokens_of<'a>(&'a self, user: &'a UserName) -> impl Iterator<Item = &'a Arc<ApiToken>> + 'a {
        self.state
            .tokens
            .values()
            .filter(move |token| token.user == *user)
    }

    fn put_token(&mut self, token: ApiToken) {
        let token = Arc::new(token);
        self.state.token_hashes.insert(token.hash, Arc::clone(&token.id));
        self.state
            .tokens
            .insert(Arc::clone(&token.id), Arc::clone(&token));
        self.record(Change::PutToken(token));
    }

    pub(super) fn delete_token(&mut self, id: &Arc<str>) {
        if let Some(token) = self.state.tokens.remove(id) {
            self.state.token_hashes.remove(&token.hash);
            self.record(Change::DeleteToken(Arc::clone(id)));
        }
    }
}

fn token_subject(token: &ApiToken) -> String {
    format!("token {} of {}", token.id, token.user)
}

fn token_detail(token: &ApiToken) -> String {
    let label = if token.label.is_empty() {
        String::new()
    } else {
        format!(", {:?}", token.label)
    };
    format!("scope {}{label}", token.scope)
}
