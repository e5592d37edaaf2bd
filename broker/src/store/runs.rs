//! Times in which jobs held something, one row a model of GPU: what reports of use are made of.

use carrel_core::model::job::{Charge, Job, Phase, Placed};
use carrel_core::model::time::Timestamp;
use rusqlite::{Transaction, params};

use super::write::integer;

/// Model of what was given before models were kept.
const UNKNOWN: &str = "unknown";

/// Writes what a job holds or last held, and how its former runs ended. Writing it again changes nothing.
pub(super) fn write(transaction: &Transaction<'_>, job: &Job) -> rusqlite::Result<()> {
    if !job.past_runs.is_empty() {
        let mut end = transaction.prepare_cached(
            "UPDATE runs SET ended_ms = ?3 WHERE started_ms = ?1 AND job = ?2 AND ended_ms IS NULL",
        )?;
        for run in &job.past_runs {
            end.execute(params![
                integer(run.started.0),
                integer(job.id.0),
                integer(run.ended.0)
            ])?;
        }
    }
    match &job.phase {
        Phase::Pending => Ok(()),
        Phase::Placed(placed) => write_run(transaction, job, placed, None),
        Phase::Ended { last: None, .. } => Ok(()),
        Phase::Ended {
            last: Some(last), at, ..
        } => write_run(transaction, job, last, Some(*at)),
    }
}

fn write_run(
    transaction: &Transaction<'_>,
    job: &Job,
    placed: &Placed,
    ended: Option<Timestamp>,
) -> rusqlite::Result<()> {
    let unknown = [Charge {
        model: UNKNOWN.to_owned(),
        gpu_milli: placed.allocation.gpu_milli(),
        billing_milli: placed.billing_milli,
    }];
    let charges = match placed.charges.as_slice() {
        [] => &unknown,
        known => known,
    };
    let mut put = transaction.prepare_cached(
        "INSERT OR REPLACE INTO runs
             (started_ms, job, model, ended_ms, user, account, gpu_milli, billing_milli, used_busy, used_measured)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
    )?;
    let used = placed.used();
    for charge in charges {
        let used = used.get(&charge.model);
        put.execute(params![
            integer(placed.started.0),
            integer(job.id.0),
            charge.model,
            ended.map(|at| integer(at.0)),
            job.owner.as_str(),
            job.terms.account.as_str(),
            integer(charge.gpu_milli),
            integer(charge.billing_milli),
            used.map(|used| integer(used.busy)),
            used.map(|used| integer(used.measured))
        ])?;
    }
    Ok(())
}
