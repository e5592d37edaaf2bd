//! What a run of chaos found.

use std::collections::BTreeMap;

use super::Victim;

/// What the threads have seen so far.
#[derive(Debug, Default)]
pub struct Findings {
    kills: BTreeMap<Victim, u64>,
    done: BTreeMap<&'static str, u64>,
    acknowledged_lost: Vec<String>,
    double_held: Vec<String>,
    sessions_lost: Vec<String>,
    transfers_lost: Vec<String>,
    not_released: Vec<String>,
}

impl Findings {
    pub(super) fn killed(&mut self, victim: Victim) {
        *self.kills.entry(victim).or_default() += 1;
    }

    /// Something that a user wanted came about.
    pub(super) fn done(&mut self, what: &'static str) {
        *self.done.entry(what).or_default() += 1;
    }

    pub(super) fn acknowledged_lost(&mut self, what: String) {
        self.acknowledged_lost.push(what);
    }

    pub(super) fn double_held(&mut self, what: String) {
        self.double_held.push(what);
    }

    pub(super) fn session_lost(&mut self, what: String) {
        self.sessions_lost.push(what);
    }

    pub(super) fn transfer_lost(&mut self, what: String) {
        self.transfers_lost.push(what);
    }

    pub(super) fn not_released(&mut self, what: String) {
        self.not_released.push(what);
    }

    pub(super) fn report(self, rounds: u64) -> Report {
        Report {
            rounds,
            findings: self,
        }
    }
}

/// What a whole run found.
#[derive(Debug)]
pub struct Report {
    rounds: u64,
    findings: Findings,
}

impl Report {
    /// How often each thing happened that must happen for the run to mean something.
    pub fn happened(&self) -> Vec<(String, u64)> {
        let kills = self
            .findings
            .kills
            .iter()
            .map(|(victim, n)| (format!("killed {victim:?}"), *n));
        let done = self
            .findings
            .done
            .iter()
            .map(|(what, n)| ((*what).to_owned(), *n));
        std::iter::once(("rounds".to_owned(), self.rounds))
            .chain(kills)
            .chain(done)
            .collect()
    }

    /// What must not happen: its name, and each time that it did.
    pub fn broken(&self) -> [(&'static str, &[String]); 5] {
        let found = &self.findings;
        [
            ("acknowledged_lost", &found.acknowledged_lost),
            ("double_held", &found.double_held),
            ("sessions_lost", &found.sessions_lost),
            ("transfers_lost", &found.transfers_lost),
            ("not_released", &found.not_released),
        ]
    }
}
