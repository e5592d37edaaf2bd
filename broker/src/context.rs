//! What every service of the broker shares.

use std::sync::Arc;

use carrel_core::model::audit::AuditRecord;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::actor::Handle;
use crate::agents::Agents;
use crate::auth::Auth;
use crate::ca::ssh::SshAuthorities;
use crate::ca::x509::Authority;
use crate::clock::Clock;
use crate::control::Gateways;
use crate::notes::Notes;
use crate::start::Start;
use crate::store::{AuditLog, History, StoreError};

/// Forecasts at once: each may be a thousand passes, and users may ask for as many as they like.
const FORESEEN_AT_ONCE: usize = 2;
/// Reads of the history at once: each keeps a thread and the disk busy.
const READ_AT_ONCE: usize = 4;

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
    /// Jobs that are over, to be read.
    pub history: History,
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
    /// Works out what is to come, which may take many passes: beside the broker, and few at a time.
    ///
    /// # Errors
    /// It failed of itself.
    pub async fn foresee<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Status> {
        static TURNS: Semaphore = Semaphore::const_new(FORESEEN_AT_ONCE);
        let failed =
            |error: &dyn std::fmt::Display| Status::internal(format!("working it out failed: {error}"));
        let turn = TURNS.acquire().await.map_err(|error| failed(&error))?;
        let worked = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work()
        });
        worked.await.map_err(|error| failed(&error))
    }

    /// Reads the history, beside the broker, and few at a time.
    ///
    /// # Errors
    /// It cannot be read.
    pub async fn look_up<T: Send + 'static>(
        &self,
        read: impl FnOnce(&History) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Status> {
        static TURNS: Semaphore = Semaphore::const_new(READ_AT_ONCE);
        let failed =
            |error: &dyn std::fmt::Display| Status::internal(format!("the history cannot be read: {error}"));
        let turn = TURNS.acquire().await.map_err(|error| failed(&error))?;
        let history = self.history.clone();
        let found = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            read(&history)
        });
        let found = found.await.map_err(|error| failed(&error))?;
        found.map_err(|error| {
            tracing::error!(%error, "the history cannot be read");
            failed(&error)
        })
    }

    /// Writes a record into the audit log.
    pub async fn note(&self, record: AuditRecord) {
        self.notes.write(&self.handle, record).await;
    }
}
