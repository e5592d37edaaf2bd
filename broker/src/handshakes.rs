//! Connections that have not yet said who they are.
//!
//! There is room for a bounded number of them. Who comes when the room is full is let in, and the
//! oldest of whichever source has the most is cut: a handshake takes milliseconds, so that those who
//! lose their place are those who came to hold it. One address, however many connections it opens,
//! keeps nobody else out.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// Where connections come from, as far as it can be told before they speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// This machine, by a Unix socket.
    Local,
    /// An address; of IPv6 the network of 64 bits, which is one customer's.
    Address(IpAddr),
}

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V6(address) => {
                let network = u128::from(address) & (u128::MAX << 64);
                IpAddr::V6(Ipv6Addr::from(network))
            }
            address @ IpAddr::V4(_) => address,
        })
    }
}

/// The room of one listener. Cheap to clone; all clones are one room.
#[derive(Clone, Debug)]
pub struct Handshakes {
    most: usize,
    waiting: Arc<Mutex<Waiting>>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Grows with every connection, so that the smallest number of a source is its oldest.
    next: u64,
    all: usize,
    by: BTreeMap<Source, BTreeMap<u64, CancellationToken>>,
}

/// One connection's place; given back when dropped.
#[derive(Debug)]
pub struct Handshake {
    source: Source,
    number: u64,
    cut: CancellationToken,
    waiting: Arc<Mutex<Waiting>>,
}

impl Handshakes {
    /// Room for `most` connections, at least one.
    pub fn new(most: usize) -> Self {
        Self {
            most: most.max(1),
            waiting: Arc::default(),
        }
    }

    /// A place for one more; somebody else's when the room is full.
    pub fn enter(&self, source: impl Into<Source>) -> Handshake {
        let source = source.into();
        let cut = CancellationToken::new();
        let mut waiting = lock(&self.waiting);
        if waiting.all >= self.most {
            waiting.cut_one();
        }
        let number = waiting.next;
        waiting.next += 1;
        waiting.all += 1;
        waiting.by.entry(source).or_default().insert(number, cut.clone());
        Handshake {
            source,
            number,
            cut,
            waiting: Arc::clone(&self.waiting),
        }
    }

    /// Connections in the room now.
    pub fn held(&self) -> usize {
        lock(&self.waiting).all
    }
}

impl Waiting {
    /// Cuts the oldest of the source with the most; of several such sources, that with the oldest.
    fn cut_one(&mut self) {
        let oldest = |of: &BTreeMap<u64, CancellationToken>| of.first_key_value().map(|(number, _)| *number);
        let greediest = self
            .by
            .iter()
            .min_by_key(|(_, of)| (usize::MAX - of.len(), oldest(of)))
            .and_then(|(source, of)| Some((*source, oldest(of)?)));
        if let Some((source, number)) = greediest
            && let Some(cut) = self.remove(source, number)
        {
            cut.cancel();
        }
    }

    fn remove(&mut self, source: Source, number: u64) -> Option<CancellationToken> {
        let of = self.by.get_mut(&source)?;
        let found = of.remove(&number)?;
        if of.is_empty() {
            self.by.remove(&source);
        }
        self.all -= 1;
        Some(found)
    }
}

impl Handshake {
    /// Until the place is somebody else's; the connection is to be closed then. Safe to cancel.
    pub async fn cut(&self) {
        self.cut.cancelled().await;
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        // It may have been cut before.
        lock(&self.waiting).remove(self.source, self.number);
    }
}

fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    // Nothing panics between two changes that belong together.
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> Source {
        IpAddr::from([10, 0, 0, last]).into()
    }

    #[test]
    fn the_greediest_source_loses_its_oldest() {
        let room = Handshakes::new(4);
        let one = room.enter(address(1));
        let many: Vec<_> = (0..3).map(|_| room.enter(address(2))).collect();
        let newcomer = room.enter(address(3));
        let cut: Vec<bool> = many.iter().map(|held| held.cut.is_cancelled()).collect();
        assert_eq!(cut, [true, false, false]);
        assert!(!one.cut.is_cancelled() && !newcomer.cut.is_cancelled());
        assert_eq!(room.held(), 4);
        drop((one, many, newcomer));
        assert_eq!(room.held(), 0);
        assert!(lock(&room.waiting).by.is_empty());
    }

    #[test]
    fn a_flood_cuts_itself_alone() {
        let room = Handshakes::new(8);
        let honest = room.enter(address(1));
        let flood: Vec<_> = (0..1000).map(|_| room.enter(address(2))).collect();
        assert!(!honest.cut.is_cancelled());
        assert_eq!(flood.iter().filter(|held| !held.cut.is_cancelled()).count(), 7);
    }

    #[test]
    fn an_ipv6_network_is_one_source() {
        let of = |text: &str| Source::from(text.parse::<IpAddr>().expect("an address"));
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::9"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    }
}
