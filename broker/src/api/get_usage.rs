//! GPU-hours that were held.

use carrel_proto::v1::{GetUsageRequest, GetUsageResponse, UsageBy, UsageRow};
use tonic::Status;

use super::Call;
use super::convert::measured_use;
use super::list_history::{MAX_WANTED, users};
use super::refuse::{invalid, with_hint};
use crate::store::{By, UsageFilter, UsageKey, UsageSum};

/// Sums of one answer: more would outgrow what clients accept.
const MOST: usize = 20_000;
/// Thousandths times milliseconds of a GPU-hour.
const HOUR: f64 = 1_000.0 * 3_600_000.0;

pub(super) async fn get_usage(call: Call, request: GetUsageRequest) -> Result<GetUsageResponse, Status> {
    if request.accounts.len() > MAX_WANTED {
        return Err(invalid(format!(
            "one request names at most {MAX_WANTED} accounts"
        )));
    }
    let by = request.by.iter().map(|by| match UsageBy::try_from(*by) {
        Ok(UsageBy::User) => Ok(By::User),
        Ok(UsageBy::Account) => Ok(By::Account),
        Ok(UsageBy::Day) => Ok(By::Day),
        Ok(UsageBy::Model) => Ok(By::Model),
        Ok(UsageBy::Unspecified) | Err(_) => {
            Err(invalid("use is told apart by user, account, day and model"))
        }
    });
    let filter = UsageFilter {
        since_ms: request.since_ms,
        until_ms: request.until_ms,
        by: by.collect::<Result<_, _>>()?,
        users: users(&call, request.all_users, request.users)?,
        accounts: request.accounts,
    };
    let now = call.context.clock.now().millis();
    let sums = call
        .context
        .look_up(move |history| history.usage(&filter, now, MOST))
        .await?;
    let sums = sums.ok_or_else(|| {
        with_hint(
            tonic::Code::ResourceExhausted,
            format!("the report has more than {MOST} lines"),
            "ask for a shorter time, for fewer users or accounts, or tell less apart",
        )
    })?;
    Ok(GetUsageResponse {
        rows: sums.into_iter().map(row).collect(),
    })
}

fn row((key, sum): (UsageKey, UsageSum)) -> UsageRow {
    UsageRow {
        user: key.user.unwrap_or_default(),
        account: key.account.unwrap_or_default(),
        model: key.model.unwrap_or_default(),
        day_ms: key.day_ms,
        gpu_hours: sum.gpu as f64 / HOUR,
        billed_gpu_hours: sum.billed as f64 / HOUR,
        runs: sum.runs,
        measured: measured_use(sum.used.iter()),
    }
}
