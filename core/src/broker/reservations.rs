//! What reservations mean to jobs: who may use one, when its jobs start and end, and what keeps off.

use std::sync::Arc;
use std::time::Duration;

use super::index::Aside;
use super::reject::{Reject, RejectKind};
use super::reserved::in_each_others_way;
use super::state::State;
use crate::model::ids::{AccountName, JobId, ReservationName, UserName};
use crate::model::job::Job;
use crate::model::reservation::{Reservation, Span};
use crate::model::time::Timestamp;
use crate::placement::{Assume, Needs, Room, fits};
use crate::queue::tally::above;

/// What to do about a reservation that is not there.
pub(super) const NO_RESERVATION: &str = "`carrel admin reservation list` lists them";

impl State {
    /// The reservation that a user's job may use, where one is asked for.
    ///
    /// # Errors
    /// There is none of that name, or it is not for this user's jobs on this account.
    pub(super) fn reservation_for(
        &self,
        user: &UserName,
        account: &AccountName,
        asked: Option<&ReservationName>,
    ) -> Result<Option<ReservationName>, Reject> {
        let Some(name) = asked else { return Ok(None) };
        let Some(one) = self.reservations.get(name) else {
            let why = format!("there is no reservation {name}");
            return Err(Reject::new(RejectKind::NotFound, why)
                .hint(format!("{NO_RESERVATION}; `--reservation none` is for none")));
        };
        if one.maintenance {
            let why = format!("reservation {name} is for maintenance: no job runs in it");
            return Err(Reject::new(RejectKind::Denied, why));
        }
        if !self.may_use(one, user, account) {
            let why = format!("reservation {name} is not for {user} on account {account}");
            return Err(Reject::new(RejectKind::Denied, why).hint(format!("it is for {}", for_whom(one))));
        }
        Ok(Some(name.clone()))
    }

    fn may_use(&self, one: &Reservation, user: &UserName, account: &AccountName) -> bool {
        let accounts = std::iter::once(account.clone()).chain(above(&self.accounts, account));
        one.is_for(user, accounts)
    }

    /// Why a job that asks for a reservation may not start yet.
    pub(super) fn outside(&self, job: &Job) -> Option<Aside> {
        let name = job.terms.reservation.as_ref()?;
        let Some(one) = self.reservations.get(name) else {
            return Some(Aside::NoReservation(name.clone()));
        };
        if !self.may_use(one, &job.owner, &job.terms.account) {
            return Some(Aside::NotFor(name.clone()));
        }
        match one.times.next(self.reserved_at) {
            Some(span) if span.start > self.reserved_at => Some(Aside::Reservation(name.clone(), span.start)),
            Some(_) => None,
            None => Some(Aside::NoReservation(name.clone())),
        }
    }

    /// How long a job may run that starts at a time: no longer than the reservation that it is in.
    pub(super) fn time_from(&self, job: &Job, at: Timestamp) -> Duration {
        let Some(name) = &job.terms.reservation else {
            return job.time_limit;
        };
        let span = self.reservations.get(name).and_then(|one| one.times.current(at));
        span.map_or(Duration::ZERO, |span| span.end.since(at).min(job.time_limit))
    }

    /// The reservation at whose end a job ends, and not before.
    pub(super) fn ended_with<'a>(&self, job: &'a Job) -> Option<&'a ReservationName> {
        let name = job.terms.reservation.as_ref()?;
        let placed = job.placed()?;
        let span = self.reservations.get(name)?.times.current(placed.started)?;
        (span.end == placed.deadline).then_some(name)
    }

    /// When a reservation next begins, ends, or is open to others again, after the last time that was seen.
    pub(super) fn next_reservation(&self) -> Option<Timestamp> {
        let grace = self.settings.grace;
        let edges = self.reservations.values().flat_map(|one| {
            let own = one.times.edge(self.reserved_at);
            [own, one.closed(grace).edge(self.reserved_at)]
        });
        edges.flatten().min()
    }

    /// Jobs whose reservation has begun may start, those whose has ended wait for the next time. Whether anything is
    /// otherwise.
    pub(super) fn let_reservations(&mut self, now: Timestamp) -> bool {
        let due = self.next_reservation().is_some_and(|at| at <= now);
        if due {
            self.reserved_at = now;
            self.look_again_reserved();
        }
        due
    }

    /// Puts pending jobs that ask for reservations where they belong by now.
    pub(super) fn look_again_reserved(&mut self) {
        let asks = |id: &JobId| {
            let job = self.jobs.get(id);
            job.is_some_and(|job| job.terms.reservation.is_some())
        };
        let all: Vec<JobId> = self.pending.ids().filter(asks).collect();
        for id in all {
            self.look_again(id);
        }
    }

    /// Refuses what does not fit into the reservation that it is to run in, were all of it free.
    pub(super) fn must_fit_reserved(
        &self,
        needs: Needs<'_>,
        name: Option<&ReservationName>,
    ) -> Result<(), Reject> {
        let Some(one) = name.and_then(|name| self.reservations.get(name)) else {
            return Ok(());
        };
        if one.parts.is_none() {
            return Ok(());
        }
        let parts = self.parts_of(one);
        let mut hosts = self.hosts.only(parts.iter().map(|part| &part.node));
        for part in &parts {
            let Some(node) = self.nodes.get(&part.node) else {
                continue;
            };
            let gpus = node.inventory.gpus.iter().enumerate();
            let own = gpus.filter(|(_, gpu)| part.gpus.iter().any(|unit| unit.gpu == gpu.uuid));
            let room = Room {
                gpus: own.fold(0, |mask, (position, _)| mask | 1 << position),
                cpus: part.cpus,
                memory_bytes: part.memory_bytes,
                ..Room::default()
            };
            hosts.set_room(&part.node, room);
        }
        if fits(&hosts, needs, Assume::Now) {
            return Ok(());
        }
        let held = parts.iter().map(|part| {
            format!(
                "{} GPUs, {} CPUs and {} GiB of {}",
                part.gpus.len(),
                part.cpus,
                part.memory_bytes >> 30,
                part.node
            )
        });
        let held: Vec<String> = held.collect();
        let why = format!("reservation {} can never hold that", one.name);
        Err(Reject::new(RejectKind::Invalid, why).hint(format!("it has {}", held.join("; "))))
    }

    /// Refuses to move a deadline beyond the end of the job's own reservation, or into another one.
    pub(super) fn must_keep_off(&self, now: Timestamp, job: &Job, deadline: Timestamp) -> Result<(), Reject> {
        let Some(placed) = job.placed() else { return Ok(()) };
        let wrong = |why: String| Reject::new(RejectKind::WrongState, why);
        let minutes = |until: Timestamp| match until.since(placed.deadline).as_secs() / 60 {
            0 => "nothing can be added without it".to_owned(),
            minutes => format!("{minutes} minutes can be added without it"),
        };
        let own = job
            .terms
            .reservation
            .as_ref()
            .and_then(|name| self.reservations.get(name));
        let span = own.and_then(|own| own.times.current(now));
        if let (Some(own), Some(span)) = (own, span)
            && deadline > span.end
        {
            let why = format!(
                "reservation {}, in which it runs, ends at {}",
                own.name,
                span.end.utc()
            );
            return Err(wrong(why).hint(minutes(span.end)));
        }
        let grace = self.settings.grace;
        let added = Span {
            start: placed.deadline.after(grace),
            end: deadline.after(grace),
        };
        let others = self.reservations.values();
        let others = others.filter(|one| Some(&one.name) != job.terms.reservation.as_ref());
        for one in others.filter(|one| one.closed(grace).overlaps(added)) {
            let in_the_way = self.parts_of(one).iter().any(|part| {
                let mut own = placed.unreleased().filter(|own| own.node == part.node);
                let node = self.nodes.get(&part.node);
                node.is_some_and(|node| own.any(|own| in_each_others_way(own, part, &node.inventory)))
            });
            if let Some(next) = one.closed(grace).next(added.start).filter(|_| in_the_way) {
                let free = Timestamp(next.start.0.saturating_sub(grace.as_millis() as u64));
                return Err(wrong(format!("{} from {}", reserved(one), next.start.utc())).hint(minutes(free)));
            }
        }
        Ok(())
    }

    /// Why a job waits that a reservation keeps from starting.
    pub(super) fn say_reserved(&self, name: &ReservationName) -> String {
        let one = self.reservations.get(name);
        let span = one.and_then(|one| Some((one, one.times.next(self.ticked)?)));
        span.map_or_else(
            || "ReqNodeNotAvail: a reservation has just ended".to_owned(),
            |(one, span)| {
                let (start, end) = (span.start.utc(), span.end.utc());
                format!("ReqNodeNotAvail: {} from {start} to {end}", reserved(one))
            },
        )
    }

    /// Reservations of a node, those that are in force or come next, by time.
    pub fn reservations_on(
        &self,
        node: &crate::model::ids::NodeName,
        now: Timestamp,
    ) -> Vec<(Span, Arc<Reservation>)> {
        let all = self.reservations.values();
        let on = all.filter(|one| one.nodes.only.as_ref().is_some_and(|nodes| nodes.contains(node)));
        let mut on: Vec<(Span, Arc<Reservation>)> = on
            .filter_map(|one| Some((one.times.next(now)?, Arc::clone(one))))
            .collect();
        on.sort_by(|a, b| (a.0, &a.1.name).cmp(&(b.0, &b.1.name)));
        on
    }
}

/// "reserved for maintenance (upgrade)", "reserved (course)"
fn reserved(one: &Reservation) -> String {
    let what = if one.maintenance { " for maintenance" } else { "" };
    format!("reserved{what} ({})", one.name)
}

/// For whose jobs a reservation is: "alice, bob on accounts physics".
pub(super) fn for_whom(one: &Reservation) -> String {
    if one.maintenance {
        return "nobody".to_owned();
    }
    let users: Vec<&str> = one.users.iter().map(UserName::as_str).collect();
    let accounts: Vec<&str> = one.accounts.iter().map(AccountName::as_str).collect();
    match (users.is_empty(), accounts.is_empty()) {
        (true, true) => "everybody".to_owned(),
        (false, true) => users.join(", "),
        (true, false) => format!("accounts {}", accounts.join(", ")),
        (false, false) => format!("{} on accounts {}", users.join(", "), accounts.join(", ")),
    }
}
