//! How many may be signing in at once, in all and from one address.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::handshakes::Source;

/// Sign-ins under way: each asks the provider every few seconds for up to a quarter of an hour,
/// and this many are some fifty requests a second.
pub const MAX_FLOWS: usize = 256;
/// Of those from one address, so that nobody keeps the others out: a login node's users on the
/// morning of a course.
pub const MAX_FLOWS_PER_ADDRESS: usize = 32;

/// The sign-ins under way.
#[derive(Clone, Debug, Default)]
pub struct Flows(Arc<Mutex<BTreeMap<Source, usize>>>);

/// A place taken; free again when dropped.
#[derive(Debug)]
pub struct Place {
    flows: Flows,
    source: Source,
}

impl Flows {
    /// Takes a place; otherwise says how many others have theirs.
    pub fn take(&self, source: Source) -> Result<Place, String> {
        let mut taken = self.lock();
        if taken.values().sum::<usize>() >= MAX_FLOWS {
            return Err(format!("{MAX_FLOWS} people are signing in at this moment"));
        }
        let own = taken.entry(source).or_default();
        if *own >= MAX_FLOWS_PER_ADDRESS {
            return Err(format!(
                "{MAX_FLOWS_PER_ADDRESS} people are signing in from your address at this moment"
            ));
        }
        *own += 1;
        Ok(Place {
            flows: self.clone(),
            source,
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Source, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.flows.lock();
        if let Some(own) = taken.get_mut(&self.source) {
            *own -= 1;
            if *own == 0 {
                taken.remove(&self.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    fn address(number: u32) -> Source {
        IpAddr::from(Ipv4Addr::from(number)).into()
    }

    #[test]
    fn one_address_does_not_keep_the_others_out() {
        let flows = Flows::default();
        let mut own: Vec<_> = std::iter::from_fn(|| flows.take(address(1)).ok()).collect();
        assert_eq!(own.len(), MAX_FLOWS_PER_ADDRESS);
        let refused = flows.take(address(1)).expect_err("full");
        assert!(refused.contains("your address"), "{refused}");
        assert!(flows.take(address(2)).is_ok());
        own.pop();
        own.push(flows.take(address(1)).expect("a place is free again"));
        drop(own);
        assert!(flows.lock().is_empty());
    }

    #[test]
    fn all_of_them_are_limited() {
        let flows = Flows::default();
        let all: Vec<_> = (0..)
            .map_while(|number| flows.take(address(number)).ok())
            .collect();
        assert_eq!(all.len(), MAX_FLOWS);
        let refused = flows.take(address(u32::MAX)).expect_err("full");
        assert!(!refused.contains("your address"), "{refused}");
    }
}
