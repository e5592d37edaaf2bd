//! Reservations, and what is changed of them.

use std::time::Duration;

use carrel_core::broker::{Edit, ReservationEdit, Wanted, Way};
use carrel_core::model::host_list;
use carrel_core::model::reservation::Every;
use carrel_core::model::time::Timestamp;

use super::ConvertError;
use super::queue::names;
use super::terms::named;
use crate::v1;

impl From<Option<Every>> for v1::Recurrence {
    fn from(every: Option<Every>) -> Self {
        match every {
            None => Self::Never,
            Some(Every::Hourly) => Self::Hourly,
            Some(Every::Daily) => Self::Daily,
            Some(Every::Weekly) => Self::Weekly,
            Some(Every::Weekday) => Self::Weekday,
            Some(Every::Weekend) => Self::Weekend,
        }
    }
}

/// None: it stays as it is.
#[allow(clippy::option_option)] // As the core's edits have it.
fn every(value: i32) -> Result<Option<Option<Every>>, ConvertError> {
    Ok(match v1::Recurrence::try_from(value) {
        Ok(v1::Recurrence::Unspecified) => None,
        Ok(v1::Recurrence::Never) => Some(None),
        Ok(v1::Recurrence::Hourly) => Some(Some(Every::Hourly)),
        Ok(v1::Recurrence::Daily) => Some(Some(Every::Daily)),
        Ok(v1::Recurrence::Weekly) => Some(Some(Every::Weekly)),
        Ok(v1::Recurrence::Weekday) => Some(Some(Every::Weekday)),
        Ok(v1::Recurrence::Weekend) => Some(Some(Every::Weekend)),
        Err(_) => {
            return Err(ConvertError::Unknown {
                field: "every",
                value,
            });
        }
    })
}

impl TryFrom<v1::EditReservationRequest> for Edit {
    type Error = ConvertError;

    fn try_from(request: v1::EditReservationRequest) -> Result<Self, ConvertError> {
        use v1::edit_reservation_request::Edit as Message;
        use v1::reservation_edit::Wanted as What;
        let edit = match request.edit.ok_or(ConvertError::Missing("edit"))? {
            Message::Delete(name) => return Ok(Self::DeleteReservation(name.parse()?)),
            Message::Reservation(edit) => edit,
        };
        let wanted = match edit.wanted {
            None => None,
            Some(What::Nodes(nodes)) => Some(Wanted::Nodes(host_list::parse(&nodes)?)),
            Some(What::NodeCount(count)) => Some(Wanted::Count(count)),
            Some(What::Gpus(v1::ReservedGpus { count, model })) => Some(Wanted::Gpus { count, model }),
        };
        let set = |list: Option<v1::Names>| list.map(|list| list.names);
        let reservation = ReservationEdit {
            description: edit.description,
            start: edit.start_ms.map(Timestamp::from_millis),
            end: edit.end_ms.map(Timestamp::from_millis),
            duration: edit.duration_s.map(Duration::from_secs),
            every: every(edit.every)?,
            wanted,
            partition: named(&edit.partition)?,
            accounts: set(edit.accounts).map(names).transpose()?,
            users: set(edit.users).map(names).transpose()?,
            maintenance: edit.maintenance,
            overlap: edit.overlap,
            ignore_jobs: edit.ignore_jobs,
        };
        let way = if edit.create { Way::Add } else { Way::Set };
        Ok(Self::Reservation(edit.name.parse()?, way, reservation))
    }
}
