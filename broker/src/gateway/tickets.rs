//! Which tickets open a stream here: those that this cluster's broker made,
//! that have not expired, and that were not used before.
//!
//! Used ids are remembered in memory only. After a restart a ticket could be
//! used a second time before it expires, but only by who has its secret.

use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use carrel_core::model::ids::{Generation, JobId, JobKey, NodeName, SessionId};
use carrel_core::model::time::Timestamp;
use carrel_proto::stream::{Id, Nonce, Secret, parse_ticket, ticket_secret, verify_proof};
use carrel_proto::v1::StreamTicket;

use super::limits;

/// What a ticket permits: byte streams to one job on one node, for one user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub job: JobKey,
    pub node: NodeName,
    pub user: String,
    pub session: SessionId,
}

impl Grant {
    /// From a ticket's content.
    pub fn new(ticket: StreamTicket) -> Result<Self, TicketError> {
        Ok(Self {
            job: JobKey {
                job: JobId(ticket.job),
                generation: Generation(ticket.generation),
            },
            node: ticket.node.parse().map_err(|_| TicketError::NotOurs)?,
            user: ticket.user,
            session: SessionId(ticket.session),
        })
    }
}

/// Why a ticket was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TicketError {
    #[error(
        "the stream ticket is not valid at this gateway: ask the broker that it belongs to for a new one"
    )]
    NotOurs,
    #[error("the stream ticket has expired: ask the broker for a new one")]
    Expired,
    #[error("the stream ticket was used already: ask the broker for a new one")]
    Used,
    #[error("the gateway has seen too many tickets in a short time: try again in some minutes")]
    Busy,
}

/// The tickets used. Cheap to clone; all clones remember together.
#[derive(Clone, Debug, Default)]
pub(super) struct Tickets(Arc<Mutex<Used>>);

#[derive(Debug, Default)]
struct Used {
    ids: HashSet<Id>,
    by_expiry: BTreeSet<(Timestamp, Id)>,
}

/// A ticket in use. Unless [kept](Reservation::keep), it may be used again
/// after this is dropped: no stream came of it.
#[derive(Debug)]
pub(super) struct Reservation {
    entry: Option<(Timestamp, Id)>,
    used: Arc<Mutex<Used>>,
}

fn lock(used: &Mutex<Used>) -> MutexGuard<'_, Used> {
    // Both collections change together, without a panic in between.
    used.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tickets {
    /// Checks a client's ticket and proof, and takes the ticket.
    pub fn take(
        &self,
        stream_key: &Secret,
        ticket: &[u8],
        proof: &Secret,
        nonce: &Nonce,
        now: Timestamp,
    ) -> Result<(Grant, Reservation), TicketError> {
        let secret = ticket_secret(stream_key, ticket);
        if !verify_proof(&secret, nonce, proof) {
            return Err(TicketError::NotOurs);
        }
        let (id, ticket) = parse_ticket(ticket).map_err(|_| TicketError::NotOurs)?;
        let expires = Timestamp::from_millis(ticket.expires_ms);
        if expires < now {
            return Err(TicketError::Expired);
        }
        let grant = Grant::new(ticket)?;
        Ok((grant, self.reserve(id, expires, now)?))
    }

    fn reserve(&self, id: Id, expires: Timestamp, now: Timestamp) -> Result<Reservation, TicketError> {
        let mut used = lock(&self.0);
        while let Some(first) = used.by_expiry.first().copied()
            && first.0 < now
        {
            used.by_expiry.remove(&first);
            used.ids.remove(&first.1);
        }
        if used.ids.contains(&id) {
            return Err(TicketError::Used);
        }
        if used.ids.len() >= limits::USED_TICKETS {
            return Err(TicketError::Busy);
        }
        used.ids.insert(id);
        used.by_expiry.insert((expires, id));
        Ok(Reservation {
            entry: Some((expires, id)),
            used: Arc::clone(&self.0),
        })
    }
}

impl Reservation {
    /// A stream was opened: the ticket is used up.
    pub fn keep(mut self) {
        self.entry = None;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(entry) = self.entry.take() {
            let mut used = lock(&self.used);
            used.by_expiry.remove(&entry);
            used.ids.remove(&entry.1);
        }
    }
}

#[cfg(test)]
mod tests {
    use carrel_proto::stream::{NONCE_LEN, SECRET_LEN, proof};
    use prost::Message;

    use super::*;

    const KEY: Secret = [5; SECRET_LEN];
    const NONCE: Nonce = [6; NONCE_LEN];
    const NOW: Timestamp = Timestamp(1_000_000);

    fn ticket(id: u8, node: &str) -> Vec<u8> {
        let ticket = StreamTicket {
            id: vec![id; 16],
            job: 7,
            generation: 8,
            node: node.into(),
            user: "alice".into(),
            session: 9,
            expires_ms: NOW.millis() + 1000,
        };
        ticket.encode_to_vec()
    }

    fn take(tickets: &Tickets, ticket: &[u8], now: Timestamp) -> Result<(Grant, Reservation), TicketError> {
        let proof = proof(&ticket_secret(&KEY, ticket), &NONCE);
        tickets.take(&KEY, ticket, &proof, &NONCE, now)
    }

    #[test]
    fn a_ticket_opens_one_stream() {
        let tickets = Tickets::default();
        let (grant, in_use) = take(&tickets, &ticket(1, "n1"), NOW).expect("a grant");
        assert_eq!(
            (grant.job.job, grant.node.as_str(), grant.user.as_str()),
            (JobId(7), "n1", "alice")
        );
        assert_eq!(
            take(&tickets, &ticket(1, "n1"), NOW).err(),
            Some(TicketError::Used)
        );
        // Nothing came of it: it is still good.
        drop(in_use);
        let (_, in_use) = take(&tickets, &ticket(1, "n1"), NOW).expect("a grant");
        in_use.keep();
        assert_eq!(
            take(&tickets, &ticket(1, "n1"), NOW).err(),
            Some(TicketError::Used)
        );
        take(&tickets, &ticket(2, "n1"), NOW).expect("another ticket");
    }

    #[test]
    fn forged_altered_and_expired_tickets_are_refused() {
        let tickets = Tickets::default();
        let good = ticket(1, "n1");
        let proof_of_good = proof(&ticket_secret(&KEY, &good), &NONCE);
        let refused =
            |key: &Secret, ticket: &[u8], nonce| tickets.take(key, ticket, &proof_of_good, nonce, NOW).err();
        assert_eq!(
            refused(&[4; SECRET_LEN], &good, &NONCE),
            Some(TicketError::NotOurs)
        );
        assert_eq!(
            refused(&KEY, &ticket(1, "n2"), &NONCE),
            Some(TicketError::NotOurs)
        );
        assert_eq!(refused(&KEY, &good, &[7; NONCE_LEN]), Some(TicketError::NotOurs));
        assert_eq!(take(&tickets, b"\xff", NOW).err(), Some(TicketError::NotOurs));
        assert_eq!(
            take(&tickets, &ticket(1, "no/name"), NOW).err(),
            Some(TicketError::NotOurs)
        );
        assert_eq!(
            take(&tickets, &good, Timestamp(NOW.0 + 1001)).err(),
            Some(TicketError::Expired)
        );
    }

    #[test]
    fn used_tickets_are_forgotten_when_they_could_not_be_used_anyway() {
        let tickets = Tickets::default();
        take(&tickets, &ticket(1, "n1"), NOW).expect("a grant").1.keep();
        let later = Timestamp(NOW.0 + 1001);
        tickets.reserve([9; 16], later, later).expect("a place").keep();
        assert_eq!(lock(&tickets.0).ids.len(), 1);
        assert_eq!(lock(&tickets.0).by_expiry.len(), 1);
    }
}
