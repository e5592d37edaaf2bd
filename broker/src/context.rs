//! What every service of the broker shares.

use std::sync::Arc;

use carrel_core::model::audit::AuditRecord;
use tokio_util::sync::CancellationToken;

use crate::actor::Handle;
use crate::agents::Agents;
use crate::auth::Auth;
use crate::ca::ssh::SshAuthorities;
use crate::ca::x509::Authority;
use crate::clock::Clock;
use crate::control::Gateways;
use crate::notes::Notes;
use crate::start::Start;
use crate::store::AuditLog;

/// What every service of the broker shares.
#[derive(Debug)]
pub struct Context {
    /// The writer, and the state.
    pub handle: Handle,
    /// The time.
    pub clock: Arc<Clock>,
    /// Who asks.
    pub auth: Auth,
    /// What the shell adds to the audit log.
    pub notes: Arc<Notes>,
    /// The audit log, to be read.
    pub audit: AuditLog,
    /// Signs nodes' and gateways' certificates.
    pub authority: Arc<Authority>,
    /// Signs SSH keys.
    pub ssh: SshAuthorities,
    /// Agents' links.
    pub agents: Arc<Agents>,
    /// Gateways that have enrolled.
    pub gateways: Gateways,
    /// What this start found.
    pub start: Start,
    /// "https://host:port" of the TLS listener; none: there is none.
    pub url: Option<String>,
    /// Cancelled when the broker stops: streams end.
    pub stopping: CancellationToken,
}

impl Context {
    /// Writes a record into the audit log.
    pub async fn note(&self, record: AuditRecord) {
        self.notes.write(&self.handle, record).await;
    }
}
