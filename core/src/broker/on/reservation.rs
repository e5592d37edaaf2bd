//! Reservations: made, changed, taken back, over.

use std::time::Duration;

use super::accounts::{must_be_few, record, some_of, unknown};
use super::limits::must_be_description;
use crate::broker::change::Change;
use crate::broker::edit::{ReservationEdit, Wanted, Way};
use crate::broker::input::Caller;
use crate::broker::reservations::{NO_RESERVATION, for_whom};
use crate::broker::{Broker, Call, Reject, RejectKind, State};
use crate::model::audit::Action;
use crate::model::ids::{JobId, ReservationName, UserName};
use crate::model::job::Phase;
use crate::model::partition::NodeSet;
use crate::model::reservation::{Reservation, Times};
use crate::model::time::Timestamp;
use crate::model::user::Role;

/// Reservations: each is looked at by every pass.
const MAX_RESERVATIONS: usize = 1_000;
/// Users and accounts of one.
const MAX_NAMES: usize = 1_000;
/// Longest reservation.
const MAX_TIME: Duration = Duration::from_hours(366 * 24);
/// Beyond this a beginning is a slip of the keyboard.
const MAX_AHEAD: Duration = Duration::from_hours(10 * 366 * 24);
/// So long ago is now: a request takes its time.
const JUST_NOW: Duration = Duration::from_mins(1);

fn invalid(why: impl Into<String>) -> Reject {
    Reject::new(RejectKind::Invalid, why)
}

impl Broker {
    pub(super) fn edit_reservation(
        &mut self,
        caller: &Caller,
        name: ReservationName,
        way: Way,
        edit: ReservationEdit,
    ) -> Result<Vec<String>, Reject> {
        let now = self.output.now;
        let known = self.state.reservations.get(&name).map(|one| (**one).clone());
        must_be_few(
            "reservations",
            self.state.reservations.len(),
            MAX_RESERVATIONS,
            way,
        )?;
        let new = || Reservation {
            name: name.clone(),
            description: String::new(),
            by: caller.user.clone(),
            times: Times {
                start: now,
                duration: Duration::ZERO,
                every: None,
            },
            nodes: NodeSet::default(),
            parts: None,
            accounts: [].into(),
            users: [].into(),
            maintenance: false,
            overlap: false,
        };
        let one = record(known, way, "reservation", &name, NO_RESERVATION, new)?;
        let operator = caller.role >= Role::Operator;
        if way == Way::Set {
            must_be_theirs(caller, &one)?;
        }
        if !operator {
            must_be_for_users(&edit)?;
        }
        let one = self.state.edited_reservation(caller, now, one, way, &edit)?;
        if !operator {
            self.state.must_be_within(&one, now)?;
        }
        let detail = self.state.describe(&one);
        self.audit(
            caller,
            Action::ReservationPut,
            format!("reservation {name}"),
            detail.clone(),
        );
        let mut told = vec![format!("{name} holds {detail}")];
        told.extend(self.state.overrun(&one, now));
        told.extend(self.state.promises_moved(&one));
        self.put_reservation(one);
        told.extend(self.shorten(&name, now));
        Ok(told)
    }

    pub(super) fn delete_reservation(
        &mut self,
        caller: &Caller,
        name: &ReservationName,
    ) -> Result<Vec<String>, Reject> {
        let Some(one) = self.state.reservations.get(name).cloned() else {
            return Err(unknown("reservation", name, NO_RESERVATION));
        };
        must_be_theirs(caller, &one)?;
        let (running, waiting) = self.state.jobs_of(name);
        self.audit(
            caller,
            Action::ReservationDelete,
            format!("reservation {name}"),
            "",
        );
        self.forget_reservation(name);
        let mut told = Vec::new();
        if !running.is_empty() {
            told.push(format!(
                "{} in it until their deadlines",
                counted(&running, "job goes on", "jobs go on")
            ));
        }
        if !waiting.is_empty() {
            told.push(format!(
                "{} for it in vain",
                counted(&waiting, "job waits", "jobs wait")
            ));
        }
        Ok(told)
    }

    fn forget_reservation(&mut self, name: &ReservationName) {
        self.state.reservations.remove(name);
        self.state.hosts.note_change();
        self.record(Change::DeleteReservation(name.clone()));
    }

    /// Time passed: some begin and end, and those that never come again are forgotten.
    pub(super) fn end_reservations(&mut self, now: Timestamp) {
        let grace = self.state.settings.grace;
        let all = self.state.reservations.values();
        let over = all.filter(|one| one.closed(grace).next(now).is_none());
        let over: Vec<ReservationName> = over.map(|one| one.name.clone()).collect();
        for name in &over {
            self.audit_own(
                None,
                Action::ReservationDelete,
                format!("reservation {name}"),
                "it is over",
            );
            self.forget_reservation(name);
        }
        let due = self.state.let_reservations(now);
        if !over.is_empty() {
            self.state.look_again_reserved();
        }
        self.output.room |= due || !over.is_empty();
    }

    /// Jobs of a reservation end when it does, also if that is sooner now.
    fn shorten(&mut self, name: &ReservationName, now: Timestamp) -> Option<String> {
        let one = self.state.reservations.get(name)?;
        let end = one.times.current(now)?.end;
        let (running, _) = self.state.jobs_of(name);
        let late = |id: &JobId| {
            let placed = self.state.jobs.get(id).and_then(|job| job.placed());
            placed.is_some_and(|placed| placed.deadline > end && placed.ending.is_none())
        };
        let late: Vec<JobId> = running.into_iter().filter(late).collect();
        for id in &late {
            let Some(job) = self.state.jobs.get(id).cloned() else {
                continue;
            };
            let Phase::Placed(placed) = &job.phase else {
                continue;
            };
            let mut placed = (**placed).clone();
            placed.deadline = end;
            let nodes: Vec<_> = placed
                .allocation
                .nodes
                .iter()
                .map(|part| part.node.clone())
                .collect();
            self.put_job(job.with_placed(placed));
            for node in nodes {
                self.touch_job(&node, *id);
            }
        }
        (!late.is_empty()).then(|| {
            format!(
                "{} at {} now",
                counted(&late, "job in it ends", "jobs in it end"),
                end.utc()
            )
        })
    }
}

/// "job 7 waits", "jobs 7, 9 wait"
fn counted(jobs: &[JobId], one: &str, many: &str) -> String {
    let ids: Vec<String> = jobs.iter().map(ToString::to_string).collect();
    let (noun, rest) = if jobs.len() == 1 { one } else { many }
        .split_once(' ')
        .unwrap_or_default();
    format!("{noun} {} {rest}", some_of(&ids))
}

/// Whose it is changes it, and operators.
fn must_be_theirs(caller: &Caller, one: &Reservation) -> Result<(), Reject> {
    if one.by == caller.user {
        return Ok(());
    }
    caller.must_reach_others(Call::EditReservation)
}

/// What users who are no operators may say of one.
fn must_be_for_users(edit: &ReservationEdit) -> Result<(), Reject> {
    let said = [
        ("maintenance", edit.maintenance.unwrap_or(false)),
        ("--overlap", edit.overlap.unwrap_or(false)),
        ("--ignore-jobs", edit.ignore_jobs),
        ("--every", matches!(edit.every, Some(Some(_)))),
        (
            "whole nodes",
            matches!(edit.wanted, Some(Wanted::Nodes(_) | Wanted::Count(_))),
        ),
    ];
    said.iter().find(|(_, said)| *said).map_or(Ok(()), |(what, _)| {
        let why = format!("{what}: that takes the role operator");
        Err(Reject::new(RejectKind::Denied, why).hint("users reserve GPUs (--gpus), once"))
    })
}

impl State {
    /// A reservation with something changed.
    fn edited_reservation(
        &self,
        caller: &Caller,
        now: Timestamp,
        mut one: Reservation,
        way: Way,
        edit: &ReservationEdit,
    ) -> Result<Reservation, Reject> {
        if let Some(description) = &edit.description {
            must_be_description(description)?;
            one.description.clone_from(description);
        }
        let former = one.clone();
        one.times = Self::edited_times(&one, way, edit, now)?;
        if let Some(accounts) = &edit.accounts {
            self.must_be_accounts(accounts)?;
            one.accounts.clone_from(accounts);
        }
        one.users = edit.users.clone().unwrap_or(one.users);
        one.maintenance = edit.maintenance.unwrap_or(one.maintenance);
        one.overlap = edit.overlap.unwrap_or(one.overlap);
        let nobody = one.users.is_empty() && one.accounts.is_empty();
        if nobody && caller.role < Role::Operator {
            one.users.insert(caller.user.clone());
        } else if nobody && !one.maintenance {
            return Err(invalid("nobody is named whose jobs may run in it")
                .hint("--users, --accounts, or --maintenance: nobody's"));
        }
        if one.users.len() > MAX_NAMES || one.accounts.len() > MAX_NAMES {
            return Err(invalid(format!(
                "a reservation is for at most {MAX_NAMES} users and accounts by name"
            )));
        }
        if one.maintenance && !(one.users.is_empty() && one.accounts.is_empty()) {
            return Err(invalid(
                "a maintenance is for nobody: leave users and accounts out",
            ));
        }
        if one.overlap && !one.maintenance {
            return Err(invalid("only a maintenance may overlap another reservation"));
        }
        let (running, _) = self.jobs_of(&one.name);
        if one.maintenance && !running.is_empty() {
            let why = format!("{} in it", counted(&running, "job runs", "jobs run"));
            return Err(Reject::new(RejectKind::WrongState, why)
                .hint("make another one for the maintenance, that begins when they have ended"));
        }
        match &edit.wanted {
            Some(wanted) => self.choose(caller, &mut one, wanted, edit, now)?,
            None if way == Way::Add => {
                return Err(invalid("it is not said what it holds").hint("--nodelist, --nodes or --gpus"));
            }
            None => {}
        }
        let same = (one.times, &one.nodes, &one.parts, one.overlap)
            == (former.times, &former.nodes, &former.parts, former.overlap);
        if !same {
            self.must_not_overlap(&one, now)?;
        }
        if !same && !edit.ignore_jobs {
            self.must_be_free(&one, now)?;
        }
        Ok(one)
    }

    fn edited_times(
        one: &Reservation,
        way: Way,
        edit: &ReservationEdit,
        now: Timestamp,
    ) -> Result<Times, Reject> {
        let mut times = one.times;
        times.every = edit.every.unwrap_or(times.every);
        if let Some(start) = edit.start {
            if start.after(JUST_NOW) < now {
                let why = format!("it would begin at {}, which is past", start.utc());
                return Err(invalid(why).hint("write --start now, now+2h, or a date and time in UTC"));
            }
            if start > now.after(MAX_AHEAD) {
                return Err(invalid("it would begin in more than ten years"));
            }
            if way == Way::Set && one.times.current(now).is_some() {
                let why = format!("reservation {} has begun", one.name);
                return Err(Reject::new(RejectKind::WrongState, why)
                    .hint("its --end can be moved; or take it back and make another one"));
            }
            times.start = start.max(now);
        }
        match (edit.end, edit.duration) {
            (Some(_), Some(_)) => return Err(invalid("--end and --duration are said, and one is enough")),
            (None, Some(duration)) => times.duration = duration,
            (Some(end), None) => {
                let next = (way == Way::Set && edit.start.is_none())
                    .then(|| one.times.next(now))
                    .flatten();
                let start = next.map_or(times.start, |span| span.start);
                times.duration = end.since(start);
            }
            (None, None) if way == Way::Add => {
                return Err(invalid("it is not said until when").hint("--end or --duration"));
            }
            (None, None) => {}
        }
        if times.duration.is_zero() {
            return Err(invalid("it would end when it begins, or before"));
        }
        if times.duration > MAX_TIME {
            return Err(invalid("it would last for more than a year"));
        }
        if let Some(every) = times.every.filter(|every| times.duration > every.period()) {
            let why = format!("it would last longer than from one beginning to the next ({every})");
            return Err(invalid(why));
        }
        match times.next(now) {
            Some(_) => Ok(times),
            None => Err(invalid("it would be over already")),
        }
    }

    /// Refuses what users may not reserve.
    fn must_be_within(&self, one: &Reservation, now: Timestamp) -> Result<(), Reject> {
        let settings = &self.settings.queue.reservations;
        let denied =
            |why: String| Err(Reject::new(RejectKind::Denied, why).hint("operators reserve for others"));
        if settings.gpus == 0 {
            return denied("users reserve nothing here".to_owned());
        }
        let others = self.reservations.values();
        let others = others.filter(|other| other.by == one.by && other.name != one.name);
        let gpus =
            |one: &Reservation| -> usize { self.parts_of(one).iter().map(|part| part.gpus.len()).sum() };
        let all = gpus(one) + others.map(|other| gpus(other)).sum::<usize>();
        let hours = |time: Duration| format!("{:.1} h", time.as_secs_f64() / 3_600.0);
        if all > settings.gpus as usize {
            return denied(format!(
                "{} would reserve {all} GPUs, and may reserve {}",
                one.by, settings.gpus
            ));
        }
        if one.times.duration > settings.time {
            return denied(format!("users reserve for {} at most", hours(settings.time)));
        }
        if one.times.start > now.after(settings.ahead) {
            return denied(format!("users reserve at most {} ahead", hours(settings.ahead)));
        }
        Ok(())
    }

    /// Jobs of a reservation that hold something, and that wait.
    pub fn jobs_of(&self, name: &ReservationName) -> (Vec<JobId>, Vec<JobId>) {
        let own = |id: &JobId| {
            let job = self.jobs.get(id);
            job.is_some_and(|job| job.terms.reservation.as_ref() == Some(name))
        };
        let running = self.deadlines.iter().map(|(_, id)| *id).filter(own);
        (running.collect(), self.pending.ids().filter(own).collect())
    }

    /// "4 GPUs on gpu[1-2] from … to …, for alice"
    fn describe(&self, one: &Reservation) -> String {
        let parts = self.parts_of(one);
        let gpus: usize = parts.iter().map(|part| part.gpus.len()).sum();
        let nodes = crate::model::host_list::format(one.node_names());
        let what = if one.parts.is_some() {
            format!("{gpus} GPUs of {nodes}")
        } else {
            nodes
        };
        let whom = if one.maintenance {
            "maintenance".to_owned()
        } else {
            for_whom(one)
        };
        format!("{what} {}, for {whom}", one.times)
    }
}

/// "job 17 of bob"
pub(super) fn named(id: JobId, owner: &UserName) -> String {
    format!("job {id} of {owner}")
}
