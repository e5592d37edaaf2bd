//! Sessions, and their terminals.

use carrel_proto::v1;
use serde::Serialize;

use super::job::Job;
use super::some;
use super::words::{session_state, share_mode};
use crate::units::rfc3339;

/// A session, with its live or last job.
#[derive(Debug, Serialize)]
pub struct Session {
    id: u64,
    name: String,
    state: &'static str,
    user: String,
    reason: String,
    image: String,
    created: String,
    ephemeral: bool,
    host_principal: String,
    ssh_alias: String,
    shares: Vec<Share>,
    job: Option<Job>,
}

/// One user whom a session is shared with.
#[derive(Debug, Serialize)]
pub struct Share {
    user: String,
    mode: &'static str,
}

/// A terminal of a session.
#[derive(Debug, Serialize)]
pub struct Terminal {
    id: u32,
    name: Option<String>,
    command: Option<String>,
    columns: u32,
    rows: u32,
    viewers: u32,
    read_only_viewers: u32,
    created: String,
    idle_seconds: u64,
    running: bool,
    exit_code: Option<u32>,
    exit_signal: Option<i32>,
}

impl From<v1::Terminal> for Terminal {
    fn from(terminal: v1::Terminal) -> Self {
        let by_signal = terminal.exit.filter(|exit| exit.signal != 0);
        let by_itself = terminal.exit.filter(|exit| exit.signal == 0);
        Self {
            id: terminal.id,
            name: some(terminal.name),
            command: some(terminal.command),
            columns: terminal.columns,
            rows: terminal.rows,
            viewers: terminal.writers + terminal.readers,
            read_only_viewers: terminal.readers,
            created: rfc3339(terminal.created_ms),
            idle_seconds: terminal.idle_ms / 1000,
            running: terminal.exit.is_none(),
            exit_code: by_itself.map(|exit| exit.status),
            exit_signal: by_signal.map(|exit| exit.signal),
        }
    }
}

/// Whether a terminal's command runs, or how it ended.
pub fn terminal_state(terminal: &v1::Terminal) -> String {
    match terminal.exit {
        None => "running".into(),
        Some(v1::TerminalExit { status, signal: 0 }) => format!("exited {status}"),
        Some(v1::TerminalExit { signal, .. }) => format!("killed by signal {signal}"),
    }
}

impl From<v1::Session> for Session {
    fn from(session: v1::Session) -> Self {
        Self {
            state: session_state(session.state()),
            id: session.id,
            ssh_alias: crate::ssh::alias::name_of(&session.called),
            name: session.name,
            user: session.user,
            reason: session.reason,
            image: session.image,
            created: rfc3339(session.created_ms),
            ephemeral: session.ephemeral,
            host_principal: session.host_principal,
            shares: session.shares.into_iter().map(Into::into).collect(),
            job: session.job.map(Into::into),
        }
    }
}

impl From<v1::Share> for Share {
    fn from(share: v1::Share) -> Self {
        Self {
            mode: share_mode(share.mode()),
            user: share.user,
        }
    }
}
