//! Which tickets open a stream here: those that this cluster's broker made, or
//! a gateway of it for going on with a stream, that have not expired, and that
//! were not used before.
//!
//! Used ids are remembered in memory only. So none of the broker's tickets is
//! taken that was made before this gateway started: a client simply gets
//! another. A resumption ticket is: it must serve while the broker is away, and
//! used again it opens nothing, for it only leads to a stream that carrel-init
//! gives to nobody but who began it.

use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use carrel_core::model::ids::{Generation, JobId, JobKey, NodeName, SessionId};
use carrel_core::model::time::Timestamp;
use carrel_core::stream::StreamId;
use carrel_proto::stream::{Id, Nonce, Secret, Ticket, parse_ticket, stream_of, ticket_secret, verify_proof};
use carrel_proto::v1::StreamTicket;

use super::limits;
use super::links::What;

/// What a ticket permits: a byte stream to one job on one node, for one user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub job: JobKey,
    pub node: NodeName,
    pub user: String,
    pub session: SessionId,
    /// Only to go on with this one.
    pub resumes: Option<StreamId>,
    /// What it leads to.
    pub what: What,
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
            resumes: stream_of(&ticket.stream).map_err(|_| TicketError::NotOurs)?,
            what: if ticket.log { What::Log } else { What::Job },
        })
    }

    /// A ticket to go on with one stream of this grant.
    pub fn resumption(
        &self,
        stream_key: &Secret,
        stream: StreamId,
        now: Timestamp,
        validity: Duration,
    ) -> Ticket {
        let content = StreamTicket {
            id: rand::random::<Id>().to_vec(),
            job: self.job.job.0,
            generation: self.job.generation.0,
            node: self.node.to_string(),
            user: self.user.clone(),
            session: self.session.0,
            expires_ms: now.after(validity).millis(),
            made_ms: now.millis(),
            stream: stream.0.to_vec(),
            log: false,
        };
        Ticket::new(stream_key, &content)
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
    #[error("the stream ticket is from before the gateway's start: ask the broker for a new one")]
    BeforeStart,
    #[error("the stream ticket is for another stream")]
    OtherStream,
    #[error("the gateway has seen too many tickets in a short time: try again in some minutes")]
    Busy,
}

/// The tickets used since the gateway's start. Cheap to clone; all clones remember together.
#[derive(Clone, Debug)]
pub(super) struct Tickets {
    used: Arc<Mutex<Used>>,
    started: Instant,
}

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

/// What a client showed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown<'a> {
    pub ticket: &'a [u8],
    /// The stream that it is about to begin or to go on with.
    pub stream: Option<StreamId>,
    pub proof: &'a Secret,
    /// What the proof is over.
    pub nonce: &'a Nonce,
}

impl Tickets {
    /// None used, at a gateway that starts now.
    pub fn new() -> Self {
        Self {
            used: Arc::default(),
            started: Instant::now(),
        }
    }

    /// Checks a client's ticket and proof, and takes the ticket.
    pub fn take(
        &self,
        stream_key: &Secret,
        shown: &Shown<'_>,
        now: Timestamp,
    ) -> Result<(Grant, Reservation), TicketError> {
        let secret = ticket_secret(stream_key, shown.ticket);
        let stream = shown.stream.as_ref().map_or(&[][..], |stream| &stream.0);
        if !verify_proof(&secret, shown.nonce, stream, shown.proof) {
            return Err(TicketError::NotOurs);
        }
        let (id, ticket) = parse_ticket(shown.ticket).map_err(|_| TicketError::NotOurs)?;
        let expires = Timestamp::from_millis(ticket.expires_ms);
        if expires < now {
            return Err(TicketError::Expired);
        }
        let made = Timestamp::from_millis(ticket.made_ms);
        let grant = Grant::new(ticket)?;
        match grant.resumes {
            Some(stream) if shown.stream != Some(stream) => return Err(TicketError::OtherStream),
            Some(_) => {}
            // By how long it runs, not by when it began: a wall clock that was set since then
            // would refuse all tickets for a while.
            None if made.after(self.started.elapsed()) < now => return Err(TicketError::BeforeStart),
            None => {}
        }
        Ok((grant, self.reserve(id, expires, now)?))
    }

    fn reserve(&self, id: Id, expires: Timestamp, now: Timestamp) -> Result<Reservation, TicketError> {
        let mut used = lock(&self.used);
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
            used: Arc::clone(&self.used),
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

    const STREAM: StreamId = StreamId([8; 16]);

    fn ticket(id: u8, node: &str) -> Vec<u8> {
        let ticket = StreamTicket {
            id: vec![id; 16],
            job: 7,
            generation: 8,
            node: node.into(),
            user: "alice".into(),
            session: 9,
            expires_ms: NOW.millis() + 1000,
            made_ms: NOW.millis(),
            stream: Vec::new(),
            log: false,
        };
        ticket.encode_to_vec()
    }

    fn shows(
        tickets: &Tickets,
        ticket: &[u8],
        stream: Option<StreamId>,
        now: Timestamp,
    ) -> Result<(Grant, Reservation), TicketError> {
        let of = stream.as_ref().map_or(&[][..], |stream| &stream.0);
        let proof = proof(&ticket_secret(&KEY, ticket), &NONCE, of);
        let shown = Shown {
            ticket,
            stream,
            proof: &proof,
            nonce: &NONCE,
        };
        tickets.take(&KEY, &shown, now)
    }

    fn take(tickets: &Tickets, ticket: &[u8], now: Timestamp) -> Result<(Grant, Reservation), TicketError> {
        shows(tickets, ticket, None, now)
    }

    #[test]
    fn a_ticket_opens_one_stream() {
        let tickets = Tickets::new();
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
        let tickets = Tickets::new();
        let good = ticket(1, "n1");
        let proof_of_good = proof(&ticket_secret(&KEY, &good), &NONCE, &STREAM.0);
        let refused = |key: &Secret, ticket: &[u8], stream, nonce: &Nonce| {
            let shown = Shown {
                ticket,
                stream,
                proof: &proof_of_good,
                nonce,
            };
            tickets.take(key, &shown, NOW).err()
        };
        let (stream, not_ours) = (Some(STREAM), Some(TicketError::NotOurs));
        assert_eq!(refused(&[4; SECRET_LEN], &good, stream, &NONCE), not_ours);
        assert_eq!(refused(&KEY, &ticket(1, "n2"), stream, &NONCE), not_ours);
        assert_eq!(refused(&KEY, &good, stream, &[7; NONCE_LEN]), not_ours);
        assert_eq!(refused(&KEY, &good, None, &NONCE), not_ours);
        assert_eq!(refused(&KEY, &good, Some(StreamId([9; 16])), &NONCE), not_ours);
        assert_eq!(refused(&KEY, &good, stream, &NONCE), None);
        assert_eq!(take(&tickets, b"\xff", NOW).err(), not_ours);
        assert_eq!(take(&tickets, &ticket(1, "no/name"), NOW).err(), not_ours);
        assert_eq!(
            take(&tickets, &good, Timestamp(NOW.0 + 1001)).err(),
            Some(TicketError::Expired)
        );
    }

    /// What the gateway before this one has used, this one does not know.
    #[test]
    fn tickets_from_before_the_start_are_refused() {
        let tickets = Tickets::new();
        let later = Timestamp(NOW.0 + 900);
        let refused = take(&tickets, &ticket(1, "n1"), later).err();
        assert_eq!(refused, Some(TicketError::BeforeStart));
    }

    #[test]
    fn a_resumption_ticket_is_for_its_stream_and_outlives_the_gateway() {
        let tickets = Tickets::new();
        let (grant, _) = take(&tickets, &ticket(1, "n1"), NOW).expect("a grant");
        let next = grant
            .resumption(&KEY, STREAM, NOW, Duration::from_mins(1))
            .content;
        let later = Timestamp(NOW.0 + 50_000);
        for other in [None, Some(StreamId([9; 16]))] {
            let refused = shows(&tickets, &next, other, later).err();
            assert_eq!(refused, Some(TicketError::OtherStream));
        }
        let (resumed, in_use) = shows(&tickets, &next, Some(STREAM), later).expect("a grant");
        in_use.keep();
        let expected = Grant {
            resumes: Some(STREAM),
            what: What::Job,
            ..grant
        };
        assert_eq!(resumed, expected);
        let again = shows(&tickets, &next, Some(STREAM), later).err();
        assert_eq!(again, Some(TicketError::Used));
        let late = shows(&tickets, &next, Some(STREAM), Timestamp(NOW.0 + 60_001)).err();
        assert_eq!(late, Some(TicketError::Expired));
    }

    #[test]
    fn used_tickets_are_forgotten_when_they_could_not_be_used_anyway() {
        let tickets = Tickets::new();
        take(&tickets, &ticket(1, "n1"), NOW).expect("a grant").1.keep();
        let later = Timestamp(NOW.0 + 1001);
        tickets.reserve([9; 16], later, later).expect("a place").keep();
        assert_eq!(lock(&tickets.used).ids.len(), 1);
        assert_eq!(lock(&tickets.used).by_expiry.len(), 1);
    }
}
