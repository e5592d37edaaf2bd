//! Reservations: operators and users make them and take them back, and nobody else holds what they hold.

use std::time::Duration;

use carrel_core::broker::{Broker, Caller, Edit, Input, OpenSession, ReservationEdit, State, Wanted, Way};
use carrel_core::model::ids::ReservationName;
use carrel_core::model::job::Job;
use carrel_core::model::reservation::{Every, Reservation, Span};
use carrel_core::model::resources::NodeAllocation;
use carrel_core::model::time::Timestamp;

use super::world::{USERS, World, caller};

/// GPUs that one user may reserve.
pub(super) const USERS_GPUS: u32 = 4;

impl World {
    /// Somebody makes a reservation, or takes one back.
    pub(super) fn reserve(&mut self) {
        self.know_users();
        if self.rng.one_in(4) {
            self.take_back();
            return;
        }
        self.requests += 1;
        let name: ReservationName = format!("r{}", self.requests).parse().expect("a name");
        let operator = self.rng.one_in(2);
        let user = USERS[self.rng.below(USERS.len() as u64) as usize];
        let by = caller(if operator { "root" } else { user });
        let maintenance = operator && self.rng.one_in(3);
        let begin = self.rng.below(20) * 60_000;
        let edit = ReservationEdit {
            start: Some(Timestamp(self.clock.now(self.now) + begin)),
            duration: Some(Duration::from_mins(2 + self.rng.below(20))),
            every: (operator && self.rng.one_in(3)).then_some(Some(Every::Hourly)),
            wanted: Some(self.wanted(operator)),
            users: (!maintenance).then(|| [user.parse().expect("a user")].into()),
            maintenance: Some(maintenance),
            overlap: Some(maintenance && self.rng.one_in(2)),
            ignore_jobs: operator && self.rng.one_in(2),
            ..ReservationEdit::default()
        };
        let ignores = edit.ignore_jobs;
        let edit = Edit::Reservation(name.clone(), Way::Add, edit);
        match self.input(Input::Edit(by, Box::new(edit))) {
            Some(Ok(_)) => {
                self.note(format!("reservation {name} is made"));
                self.counts.add("reservation made");
            }
            Some(Err(reject)) => {
                self.note(format!("reservation {name} is refused: {reject}"));
                self.counts.add("reservation refused");
            }
            None => {}
        }
        // Whatever ran when it was made may have been in its way, and was let be.
        if ignores {
            self.excuse_all();
        }
    }

    fn wanted(&mut self, operator: bool) -> Wanted {
        let nodes: Vec<_> = self.nodes.values().map(|node| node.name.clone()).collect();
        match self.rng.below(3) {
            0 if operator => Wanted::Nodes(self.rng.pick(&nodes).cloned().into_iter().collect()),
            1 if operator => Wanted::Count(1 + self.rng.below(2) as u32),
            _ => Wanted::Gpus {
                count: 1 + self.rng.below(5) as u32,
                model: String::new(),
            },
        }
    }

    fn take_back(&mut self) {
        let Some(name) = self.some_reservation().map(|one| one.name.clone()) else {
            return;
        };
        if let Some(Ok(_)) = self.input(Input::Edit(
            caller("root"),
            Box::new(Edit::DeleteReservation(name.clone())),
        )) {
            self.note(format!("reservation {name} is taken back"));
            self.counts.add("reservation taken back");
        }
    }

    /// All of them, so that whatever waits may start.
    pub(super) fn take_all_back(&mut self) {
        let Some(broker) = &self.broker else { return };
        let names: Vec<ReservationName> = broker.state().reservations.keys().cloned().collect();
        for name in names {
            self.input(Input::Edit(
                caller("root"),
                Box::new(Edit::DeleteReservation(name)),
            ));
        }
    }

    /// One of them, for whoever may use it.
    pub(super) fn some_reservation(&mut self) -> Option<Reservation> {
        let state = self.broker.as_ref()?.state();
        let all: Vec<Reservation> = state.reservations.values().map(|one| (**one).clone()).collect();
        self.rng.pick(&all).cloned()
    }

    /// The same request, or one for a reservation of somebody whose jobs may run in it.
    pub(super) fn perhaps_reserved(
        &mut self,
        (asks, mut request): (Caller, OpenSession),
    ) -> (Caller, OpenSession) {
        let one = self.rng.one_in(5).then(|| self.some_reservation()).flatten();
        let Some(one) = one else { return (asks, request) };
        let (Some(user), Some(spec)) = (one.users.first(), &mut request.spec) else {
            return (asks, request);
        };
        spec.terms.reservation = Some(one.name);
        (caller(user.as_str()), request)
    }

    /// What runs is not judged by reservations: it was there before, or came from elsewhere.
    pub(super) fn excuse_all(&mut self) {
        if let Some(broker) = &self.broker {
            let jobs = broker.state().jobs.values();
            self.excused.extend(jobs.filter_map(|job| job.key()));
        }
        // Of what the store does not know to run, the broker hears later.
        for node in self.nodes.values() {
            self.excused.extend(node.running().map(|(key, _)| *key));
        }
    }

    /// Nobody holds what is reserved for others in its time, and whoever is in a reservation holds nothing else.
    pub(super) fn judge_reservations(&mut self) -> Result<(), String> {
        let wall = Timestamp(self.clock.now(self.now));
        let Some(state) = self.broker.as_ref().map(Broker::state) else {
            return Ok(());
        };
        if state.reservations.is_empty() {
            return Ok(());
        }
        let running = state.jobs.values().filter(|job| {
            let placed = job.placed();
            placed.is_some_and(|placed| placed.ending.is_none())
        });
        let judged = running.filter(|job| job.key().is_some_and(|key| !self.excused.contains(&key)));
        let mut inside = 0;
        for job in judged {
            for one in state.reservations.values() {
                if job.terms.reservation.as_ref() == Some(&one.name) {
                    inside += 1;
                    is_inside(state, job, one)?;
                } else {
                    keeps_off(state, job, one, wall)?;
                }
            }
        }
        for _ in 0..inside {
            self.counts.add("job in a reservation");
        }
        Ok(())
    }
}

fn is_inside(state: &State, job: &Job, one: &Reservation) -> Result<(), String> {
    let Some(placed) = job.placed() else { return Ok(()) };
    let span = one.times.current(placed.started);
    if span.is_none_or(|span| placed.deadline > span.end) {
        return Err(format!(
            "job {} runs in {} until {}, which is in force {}",
            job.id, one.name, placed.deadline, one.times
        ));
    }
    let parts = state.parts_of(one);
    for held in &placed.allocation.nodes {
        let own = parts.iter().find(|part| part.node == held.node);
        let within = own.is_some_and(|own| {
            let mut units = held.gpus.iter();
            units.all(|unit| own.gpus.iter().any(|own| own.gpu == unit.gpu))
        });
        if !within {
            return Err(format!(
                "job {} in {} holds {held:?}, which is not its",
                job.id, one.name
            ));
        }
    }
    Ok(())
}

fn keeps_off(state: &State, job: &Job, one: &Reservation, wall: Timestamp) -> Result<(), String> {
    let Some(placed) = job.placed() else { return Ok(()) };
    let grace = state.settings.grace;
    // The broker's clock may have been set back since it was over and the job started.
    let held = Span {
        start: wall.max(placed.started),
        end: placed.deadline.after(grace),
    };
    if !one.times.overlaps(held) {
        return Ok(());
    }
    let parts = state.parts_of(one);
    let is_held = |part: &NodeAllocation| {
        let mut own = placed
            .allocation
            .nodes
            .iter()
            .filter(|held| held.node == part.node);
        own.any(|held| {
            let mut units = held.gpus.iter();
            one.parts.is_none() || units.any(|unit| part.gpus.iter().any(|own| own.gpu == unit.gpu))
        })
    };
    match parts.iter().find(|part| is_held(part)) {
        Some(part) => Err(format!(
            "job {} holds something of {} until {}, and reservation {} holds it {}",
            job.id,
            part.node,
            placed.deadline.utc(),
            one.name,
            one.times
        )),
        None => Ok(()),
    }
}
