//! `carrel admin reservation`: nodes and GPUs that are kept for some, or for nobody, at some times.

use std::time::Duration;

use carrel_proto::v1;
use carrel_proto::v1::edit_reservation_request::Edit;
use carrel_proto::v1::reservation_edit::Wanted;
use clap::{Subcommand, ValueEnum};

use super::{limits, not_there, tell};
use crate::context::Context;
use crate::error::Result;
use crate::{output, start, units, view};

/// Reservations: nodes and GPUs that are kept for some, or for nobody, at some times.
///
/// Jobs run in one with `--reservation NAME`, on what it holds, and end when it does. Everybody else keeps off: no
/// job starts that would still run when it begins. Operators make them; users as far as the cluster lets them.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    carrel admin reservation add upgrade --maintenance -w 'gpu[01-16]' --start 2026-12-24T08:00 --duration 4h\n  \
    carrel admin reservation add course --gpus h100:8 --users alice,bob --start 09:00 --duration 2h --every weekday\n  \
    carrel admin reservation set course --end now+30m\n  \
    carrel admin reservation rm upgrade")]
pub struct ReservationArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: ReservationCommand,
}

/// What is done to reservations.
#[derive(Clone, Debug, Subcommand)]
pub enum ReservationCommand {
    /// Make a reservation
    Add(Box<EditArgs>),
    /// Change a reservation; what is not named stays
    Set(Box<EditArgs>),
    /// Take a reservation back; jobs that run in it go on until their deadlines
    Rm {
        /// Reservation
        #[arg(value_name = "RESERVATION")]
        name: String,
    },
    /// List reservations that are not over
    #[command(visible_alias = "ls")]
    List,
    /// Show a reservation
    Show {
        /// Reservation
        #[arg(value_name = "RESERVATION")]
        name: String,
    },
}

/// When it comes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Every {
    /// Never.
    None,
    /// Each hour.
    Hourly,
    /// Each day.
    Daily,
    /// Each week.
    Weekly,
    /// From Monday to Friday.
    Weekday,
    /// Saturday and Sunday.
    Weekend,
}

/// What is set of a reservation.
#[derive(Clone, Debug, clap::Args)]
pub struct EditArgs {
    /// Reservation
    #[arg(value_name = "RESERVATION")]
    pub name: String,
    /// From when on: now+2h, 16:00 (UTC), 2026-12-24T16:00 [default: now]
    #[arg(short = 'S', long, value_name = "TIME", value_parser = start::parse_begin)]
    pub start: Option<i64>,
    /// Until when; of one that recurs, the first or the next time
    #[arg(short = 'E', long, value_name = "TIME", value_parser = start::parse_begin, conflicts_with = "duration")]
    pub end: Option<i64>,
    /// For how long
    #[arg(long, value_name = "TIME", value_parser = units::parse_time)]
    pub duration: Option<Duration>,
    /// When it comes again; days are those of UTC
    #[arg(long, value_name = "WHEN")]
    pub every: Option<Every>,
    /// These nodes, a host list
    #[arg(short = 'w', long, value_name = "NODES", group = "what")]
    pub nodelist: Option<String>,
    /// So many nodes of which nothing will be held
    #[arg(short = 'N', long, value_name = "COUNT", group = "what")]
    pub nodes: Option<u32>,
    /// So many GPUs, on as few nodes as it takes, with the CPUs and memory that jobs get with them
    #[arg(short = 'G', long, value_name = "[MODEL:]COUNT", value_parser = parse_gpus, group = "what")]
    pub gpus: Option<v1::ReservedGpus>,
    /// Look for nodes or GPUs in this partition
    #[arg(short = 'p', long, value_name = "PARTITION")]
    pub partition: Option<String>,
    /// Users whose jobs may run in it; "none": of any
    #[arg(short = 'u', long, value_name = "USER,…")]
    pub users: Option<String>,
    /// Accounts whose jobs may run in it, with those below them; "none": of any
    #[arg(short = 'A', long, value_name = "ACCOUNT,…")]
    pub accounts: Option<String>,
    /// Nobody's jobs may run in it
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub maintenance: Option<bool>,
    /// A maintenance may hold what other reservations hold
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub overlap: Option<bool>,
    /// Also if jobs will still run when it begins: they run on
    #[arg(long)]
    pub ignore_jobs: bool,
    /// What it is for
    #[arg(long, value_name = "TEXT")]
    pub description: Option<String>,
}

fn parse_gpus(text: &str) -> Result<v1::ReservedGpus, String> {
    let (model, count) = text.rsplit_once(':').unwrap_or(("", text));
    let count = count.parse().ok().filter(|count| *count > 0);
    let count = count.ok_or("write COUNT or MODEL:COUNT, as in h100:8")?;
    Ok(v1::ReservedGpus {
        count,
        model: model.to_owned(),
    })
}

/// Runs the verb.
pub async fn run(context: &Context, args: ReservationArgs) -> Result<u8> {
    let (edit, done) = match args.command {
        ReservationCommand::List => return list(context).await,
        ReservationCommand::Show { name } => return show(context, &name).await,
        ReservationCommand::Add(edit) => {
            let done = format!("reservation {} is made", edit.name);
            (Edit::Reservation(edit.message(true)), done)
        }
        ReservationCommand::Set(edit) => {
            let done = format!("reservation {} is changed", edit.name);
            (Edit::Reservation(edit.message(false)), done)
        }
        ReservationCommand::Rm { name } => {
            let done = format!("reservation {name} is taken back");
            (Edit::Delete(name), done)
        }
    };
    let request = v1::EditReservationRequest { edit: Some(edit) };
    let answer = context.client().await?.edit_reservation(request).await?;
    tell(context, &done, answer.into_inner())
}

impl EditArgs {
    fn message(self, create: bool) -> v1::ReservationEdit {
        let every = match self.every {
            None => v1::Recurrence::Unspecified,
            Some(Every::None) => v1::Recurrence::Never,
            Some(Every::Hourly) => v1::Recurrence::Hourly,
            Some(Every::Daily) => v1::Recurrence::Daily,
            Some(Every::Weekly) => v1::Recurrence::Weekly,
            Some(Every::Weekday) => v1::Recurrence::Weekday,
            Some(Every::Weekend) => v1::Recurrence::Weekend,
        };
        let nodes = self.nodelist.map(Wanted::Nodes);
        let count = self.nodes.map(Wanted::NodeCount);
        v1::ReservationEdit {
            name: self.name,
            create,
            description: self.description,
            start_ms: self.start,
            end_ms: self.end,
            duration_s: self.duration.map(|time| time.as_secs()),
            every: every.into(),
            wanted: nodes.or(count).or(self.gpus.map(Wanted::Gpus)),
            partition: self.partition.unwrap_or_default(),
            accounts: limits::names_of(self.accounts.as_deref()),
            users: limits::names_of(self.users.as_deref()),
            maintenance: self.maintenance,
            overlap: self.overlap,
            ignore_jobs: self.ignore_jobs,
        }
    }
}

async fn all(context: &Context) -> Result<Vec<v1::Reservation>> {
    let mut client = context.client().await?;
    let request = v1::ListReservationsRequest {};
    Ok(client.list_reservations(request).await?.into_inner().reservations)
}

fn every(one: &v1::Reservation) -> &'static str {
    view::recurrence(one.every()).unwrap_or("")
}

fn state(one: &v1::Reservation) -> &'static str {
    if one.active { "ACTIVE" } else { "INACTIVE" }
}

fn whom(one: &v1::Reservation) -> String {
    if one.maintenance {
        return "maintenance".to_owned();
    }
    let names = [one.users.join(","), one.accounts.join(",")];
    let names: Vec<String> = names.into_iter().filter(|names| !names.is_empty()).collect();
    names.join(" on ")
}

fn gpus(one: &v1::Reservation) -> usize {
    one.parts.iter().map(|part| part.gpus.len()).sum()
}

async fn list(context: &Context) -> Result<u8> {
    let all = all(context).await?;
    if context.json() {
        output::json(&all.into_iter().map(view::Reservation::from).collect::<Vec<_>>())?;
        return Ok(0);
    }
    if all.is_empty() {
        crate::terminal::say("carrel: nothing is reserved");
        return Ok(0);
    }
    let header = [
        "RESERVATION",
        "STATE",
        "START",
        "END",
        "EVERY",
        "NODES",
        "GPUS",
        "FOR",
        "JOBS",
    ];
    let rows = all.iter().map(|one| {
        [
            one.name.clone(),
            state(one).to_owned(),
            units::rfc3339(one.start_ms),
            units::rfc3339(one.end_ms),
            every(one).to_owned(),
            one.nodes.clone(),
            gpus(one).to_string(),
            whom(one),
            (one.running.len() + one.waiting.len()).to_string(),
        ]
    });
    output::text(output::table(header, rows))?;
    Ok(0)
}

async fn show(context: &Context, name: &str) -> Result<u8> {
    let one = all(context).await?.into_iter().find(|one| one.name == name);
    let one = one.ok_or_else(|| not_there("reservation", name))?;
    if context.json() {
        output::json(&view::Reservation::from(one))?;
        return Ok(0);
    }
    let jobs = |jobs: &[u64]| {
        let jobs: Vec<String> = jobs.iter().map(ToString::to_string).collect();
        jobs.join(", ")
    };
    let part = |part: &v1::ReservedPart| {
        let gpus: Vec<String> = part.gpus.iter().map(ToString::to_string).collect();
        format!(
            "{}: GPUs {}, {}, {}",
            part.node,
            gpus.join(","),
            units::counted(part.cpus, "CPU"),
            units::bytes(part.memory_bytes)
        )
    };
    let parts = one.parts.iter().filter(|_| one.partial).map(part);
    output::text(output::fields([
        ("reservation", one.name.clone()),
        ("description", one.description.clone()),
        ("state", state(&one).to_owned()),
        ("from", units::rfc3339(one.start_ms)),
        ("to", units::rfc3339(one.end_ms)),
        ("every", every(&one).to_owned()),
        ("nodes", format!("{} ({})", one.nodes, one.node_count)),
        ("GPUs", gpus(&one).to_string()),
        ("of them", parts.collect::<Vec<_>>().join("; ")),
        ("for", whom(&one)),
        ("made by", one.by.clone()),
        ("running", jobs(&one.running)),
        ("waiting", jobs(&one.waiting)),
    ]))?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_counted_and_may_be_of_a_model() {
        let gpus = |count, model: &str| {
            Ok(v1::ReservedGpus {
                count,
                model: model.into(),
            })
        };
        assert_eq!(parse_gpus("8"), gpus(8, ""));
        assert_eq!(parse_gpus("h100:16"), gpus(16, "h100"));
        for bad in ["", "0", "h100", "h100:", "-1", "1.5"] {
            assert!(parse_gpus(bad).is_err(), "{bad}");
        }
    }
}
