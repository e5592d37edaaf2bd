//! `carrel admin audit`: the audit log.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use carrel_core::model::ids::UserName;
use carrel_proto::v1;

use crate::context::Context;
use crate::error::{CliError, Result};
use crate::signals::Signals;
use crate::{output, units, view};

/// Read the audit log.
///
/// Who did what to the cluster, from where, and whether it was done: grants, sign-ins,
/// certificates, shares, and what operators and administrators do. For operators.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    carrel admin audit --since 7d --user alice\n  \
    carrel admin audit --action sign-in -f\n  \
    carrel admin audit --output json | jq 'select(.outcome == \"refused\")'")]
pub struct AuditArgs {
    /// How far back
    #[arg(long, value_name = "TIME", value_parser = units::parse_time, default_value = "1d")]
    pub since: Duration,
    /// Only what this user did, or what was done to their record
    #[arg(long, value_name = "USER")]
    pub user: Option<UserName>,
    /// Only this action; a wrong one lists them all
    #[arg(long, value_name = "ACTION", default_value = "", hide_default_value = true)]
    pub action: String,
    /// Go on with what comes, until Ctrl-C
    #[arg(short, long)]
    pub follow: bool,
}

/// Runs the verb. JSON is one object a line: the log has no end.
pub async fn run(context: &Context, args: AuditArgs) -> Result<u8> {
    let mut signals = Signals::catch()?;
    let mut client = context.client().await?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let request = v1::ReadAuditRequest {
        since_ms: now.saturating_sub(args.since).as_millis() as i64,
        user: args.user.map(|user| user.to_string()).unwrap_or_default(),
        action: args.action,
        follow: args.follow,
    };
    let mut records = client.read_audit(request).await?.into_inner();
    loop {
        // Both arms only wait: cancelled, they have taken nothing.
        let record = tokio::select! {
            record = records.message() => record?,
            signal = signals.next() => return Ok(signal.exit_code()),
        };
        let Some(record) = record else { return Ok(0) };
        if context.json() {
            let line = serde_json::to_string(&view::AuditRecord::from(record))
                .map_err(|error| CliError::failed(format!("JSON: {error}")))?;
            output::text(format_args!("{line}\n"))?;
        } else {
            output::text(line(&record))?;
        }
    }
}

/// A record on one line, for people.
fn line(record: &v1::AuditRecord) -> String {
    let user = if record.user.is_empty() { "-" } else { &record.user };
    let refused = if record.outcome == "done" { "" } else { " REFUSED" };
    let detail = if record.detail.is_empty() {
        String::new()
    } else {
        format!(": {}", record.detail)
    };
    let line = format!(
        "{}  {}{refused}  {user} ({})  {}{detail}",
        units::rfc3339(record.at_ms),
        record.action,
        record.origin,
        record.subject,
    );
    output::visible(&line) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_a_line() {
        let mut record = v1::AuditRecord {
            number: 1,
            at_ms: 1_767_225_600_000,
            user: "alice".into(),
            origin: "10.0.0.1".into(),
            action: "sign-in".into(),
            subject: "token 3f2a".into(),
            outcome: "done".into(),
            detail: "by token".into(),
        };
        assert_eq!(
            line(&record),
            "2026-01-01T00:00:00Z  sign-in  alice (10.0.0.1)  token 3f2a: by token\n"
        );
        record.user.clear();
        record.outcome = "refused".into();
        record.detail = "this\ntoken".into();
        assert_eq!(
            line(&record),
            "2026-01-01T00:00:00Z  sign-in REFUSED  - (10.0.0.1)  token 3f2a: this token\n"
        );
    }
}
