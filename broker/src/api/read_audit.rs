//! Records of the audit log, and those that come.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use carrel_core::model::audit::Action;
use carrel_proto::v1::{AuditRecord, ReadAuditRequest};
use tokio::sync::watch;
use tonic::Status;

use super::refuse::{self, invalid};
use super::{Answers, Call, convert};
use crate::actor::{Refusal, Snapshot};
use crate::context::Context;
use crate::store::{AUDIT_PAGE, AuditFilter, AuditRow};

/// Who follows the log looks for new records so often at most, however busy the broker is.
const LOOK_EVERY: Duration = Duration::from_millis(200);

pub(super) async fn read_audit(
    call: Call,
    request: ReadAuditRequest,
) -> Result<Answers<AuditRecord>, Status> {
    let known = |action: &Action| action.name() == request.action;
    if !request.action.is_empty() && !Action::ALL.iter().any(known) {
        let all: Vec<&str> = Action::ALL.into_iter().map(Action::name).collect();
        return Err(invalid(format!(
            "there is no such action; there are {}",
            all.join(", ")
        )));
    }
    let reader = Reader {
        states: call.context.handle.watch(),
        context: call.context,
        filter: AuditFilter {
            since_ms: request.since_ms,
            user: request.user,
            action: request.action,
        },
        follow: request.follow,
        after: 0,
        page: VecDeque::new(),
        over: false,
    };
    Ok(Box::pin(futures::stream::unfold(reader, Reader::next)))
}

/// A reader. It works only while its client takes what it sends.
struct Reader {
    context: Arc<Context>,
    /// Wakes when something was written.
    states: watch::Receiver<Snapshot>,
    filter: AuditFilter,
    follow: bool,
    /// Number of the last record that was sent.
    after: u64,
    /// Read and not sent yet.
    page: VecDeque<AuditRow>,
    /// There is nothing more to read.
    over: bool,
}

impl Reader {
    async fn next(mut self) -> Option<(Result<AuditRecord, Status>, Self)> {
        loop {
            if let Some(row) = self.page.pop_front() {
                self.after = row.number;
                return Some((Ok(convert::audit(row)), self));
            }
            if self.over {
                return None;
            }
            self.states.mark_unchanged();
            match self.read().await {
                Ok(page) => {
                    let last = page.len() < AUDIT_PAGE;
                    self.page = page.into();
                    self.over = last && !self.follow;
                    if last
                        && self.follow
                        && self.page.is_empty()
                        && let Err(status) = self.wait().await
                    {
                        self.over = true;
                        return Some((Err(status), self));
                    }
                }
                Err(status) => {
                    self.over = true;
                    return Some((Err(status), self));
                }
            }
        }
    }

    async fn read(&self) -> Result<Vec<AuditRow>, Status> {
        let (log, filter, after) = (self.context.audit.clone(), self.filter.clone(), self.after);
        let read = tokio::task::spawn_blocking(move || log.page(after, &filter)).await;
        let read = read.map_err(|error| Status::internal(error.to_string()))?;
        read.map_err(|error| Status::internal(format!("the audit log cannot be read: {error}")))
    }

    /// Waits until something was written.
    async fn wait(&mut self) -> Result<(), Status> {
        tokio::time::sleep(LOOK_EVERY).await;
        // Each arm only waits.
        let stopping = tokio::select! {
            changed = self.states.changed() => changed.is_err(),
            () = self.context.stopping.cancelled() => true,
        };
        if stopping {
            return Err(refuse::status(Refusal::Stopping));
        }
        Ok(())
    }
}
