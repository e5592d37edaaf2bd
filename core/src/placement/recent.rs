//! Requests that came lately: the best guess at those to come.
//!
//! What a host is worth with this or that left of it depends on who will want it. Nobody knows, so the last requests
//! stand for the next. What is remembered is bounded, follows from the order of the requests alone, and is built anew
//! at a start of the broker from the jobs that it knows.

use std::sync::Arc;

use imbl::Vector;

use super::demand::Demand;
use super::kind::OutfitGpu;
use super::table::MAX_TABLE_GPUS;
use crate::model::gpu_unit::{Sharing, WHOLE_MILLI};
use crate::model::resources::{ResourceRequest, UnitRequest, model_matches};

/// Requests that are remembered: enough that a kind that is one in a hundred is among them more often than not.
const REMEMBERED: usize = 256;
/// Of those for several GPUs of a host, which are rarer and harder to place.
const SEVERAL: usize = 128;
/// After so many requests expectations are drawn up anew: each time, what hosts are worth is worked out again.
const FRESH: u64 = 64;
/// The same for [`Demand`], from which whole tables are built.
const FRESH_DEMAND: u64 = 1024;
/// Of a gang so many nodes are remembered: one wide gang is not to be all that is.
const GANG: u32 = 4;
/// Once GPUs were asked for so many times, thousandths, what was before counts half.
const FADING: u64 = 8192 * WHOLE_MILLI as u64;
/// Thousandths asked for without any experience: one GPU at a time, and several.
const PRIOR: [u64; 2] = [192_000, 64_000];
/// GPUs a request without any experience.
const PRIOR_SIZES: [u32; 8] = [1, 1, 1, 1, 2, 1, 1, 4];
/// The same of those for several.
const PRIOR_SEVERAL: [u32; 4] = [2, 4, 8, 16];

/// What a request wants of one node, as far as it is about whole GPUs or shares.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ask {
    /// Number of GPUs.
    pub gpus: u32,
    /// Of each, thousandths.
    pub milli: u16,
    /// In this way, where it is a share; none: in any.
    pub sharing: Option<Sharing>,
    /// Memory of each GPU at least, bytes.
    pub gpu_memory_bytes: u64,
    /// Models, as [`model_matches`] takes them.
    pub models: Arc<str>,
    /// Hardware threads, and bytes of memory; none: as large a part of the host's as the GPUs are.
    pub with: Option<(u32, u64)>,
}

impl Ask {
    /// None where it is about no GPU, or about what may be a slice.
    fn of(request: &ResourceRequest) -> Option<Self> {
        let (milli, sharing) = match &request.unit {
            UnitRequest::Whole => (WHOLE_MILLI, None),
            UnitRequest::Share { milli, sharing } => (*milli, *sharing),
            UnitRequest::Mig(_) | UnitRequest::Least => return None,
        };
        (request.gpus_per_node > 0).then(|| Self {
            gpus: request.gpus_per_node,
            milli,
            sharing,
            gpu_memory_bytes: request.gpu_memory_bytes,
            models: request.gpu_model.as_str().into(),
            with: Some((request.cpus_per_node, request.memory_bytes_per_node)),
        })
    }

    /// A GPU will do, as far as it is about it alone.
    pub fn may_have(&self, gpu: &OutfitGpu) -> bool {
        let shared = self.milli == WHOLE_MILLI
            || gpu
                .sharing
                .is_some_and(|by| self.sharing.is_none_or(|wanted| wanted == by));
        shared && gpu.memory_bytes >= self.gpu_memory_bytes && model_matches(&self.models, &gpu.model)
    }

    fn prior(gpus: u32) -> Self {
        Self {
            gpus,
            milli: WHOLE_MILLI,
            sharing: None,
            gpu_memory_bytes: 0,
            models: "".into(),
            with: None,
        }
    }

    /// Thousandths of GPUs.
    pub fn volume(&self) -> u64 {
        u64::from(self.gpus) * u64::from(self.milli)
    }
}

/// What is expected of requests to come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// For one GPU, for a share, and for several.
    pub(super) asks: Vector<Ask>,
    /// For several GPUs of a host.
    pub(super) several: Vector<Ask>,
    /// Thousandths asked for one GPU at a time, and several.
    pub(super) volumes: [u64; 2],
    /// Sizes of requests, for tables.
    pub(super) sizes: Demand,
}

impl Default for Outlook {
    /// Without any experience.
    fn default() -> Self {
        Recent::default().outlook()
    }
}

/// The last requests. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Recent {
    asks: Vector<Ask>,
    several: Vector<Ask>,
    /// Where the next are put, over the oldest.
    next: [usize; 2],
    /// Thousandths asked for one GPU at a time, and several, the older the less.
    volumes: [u64; 2],
    /// Thousandths asked for, by GPUs of a host, the older the less.
    by_size: [u64; MAX_TABLE_GPUS + 1],
    sizes: Demand,
    /// How many there were.
    noted: u64,
}

impl Default for Recent {
    /// Without any experience.
    fn default() -> Self {
        let ring = |length, sizes: &[u32]| (0..length).map(|n| Ask::prior(sizes[n % sizes.len()])).collect();
        Self {
            asks: ring(REMEMBERED, &PRIOR_SIZES),
            several: ring(SEVERAL, &PRIOR_SEVERAL),
            next: [0; 2],
            volumes: PRIOR,
            by_size: [0; MAX_TABLE_GPUS + 1],
            sizes: Demand::default(),
            noted: 0,
        }
    }
}

impl Recent {
    /// Remembers a request that was accepted. Gives what is to be expected from now on, each time that it is worth
    /// drawing up anew.
    pub fn note(&mut self, request: &ResourceRequest) -> Option<Outlook> {
        let before = self.noted;
        for component in request.components() {
            if let Some(ask) = Ask::of(component) {
                (0..component.nodes.clamp(1, GANG)).for_each(|_| self.remember(&ask));
            }
        }
        let passed = |period: u64| before / period != self.noted / period;
        if passed(FRESH_DEMAND) {
            self.sizes = Demand::from_volumes(&self.by_size);
        }
        passed(FRESH).then(|| self.outlook())
    }

    /// What is to be expected now.
    pub fn outlook(&self) -> Outlook {
        Outlook {
            asks: self.asks.clone(),
            several: self.several.clone(),
            volumes: self.volumes,
            sizes: self.sizes.clone(),
        }
    }

    fn remember(&mut self, ask: &Ask) {
        let several = ask.gpus > 1;
        self.asks.set(self.next[0], ask.clone());
        self.next[0] = (self.next[0] + 1) % REMEMBERED;
        if several {
            self.several.set(self.next[1], ask.clone());
            self.next[1] = (self.next[1] + 1) % SEVERAL;
        }
        self.volumes[usize::from(several)] += ask.volume();
        if self.volumes.iter().sum::<u64>() > FADING {
            self.volumes = self.volumes.map(|volume| volume / 2);
        }
        if let Some(volume) = self.by_size.get_mut(ask.gpus as usize) {
            *volume += ask.volume();
        }
        if self.by_size.iter().sum::<u64>() > FADING {
            self.by_size = self.by_size.map(|volume| volume / 2);
        }
        self.noted += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(gpus: u32, nodes: u32) -> ResourceRequest {
        ResourceRequest {
            nodes,
            gpus_per_node: gpus,
            ..ResourceRequest::default()
        }
    }

    #[test]
    fn what_is_remembered_has_an_end() {
        let mut recent = Recent::default();
        let mut drawn_up = 0;
        for n in 0..10_000 {
            let outlook = recent.note(&request(1 + n % 70, u32::MAX));
            drawn_up += u64::from(outlook.is_some());
        }
        let outlook = recent.outlook();
        assert_eq!((outlook.asks.len(), outlook.several.len()), (REMEMBERED, SEVERAL));
        assert!(recent.volumes.iter().sum::<u64>() <= FADING);
        assert!(recent.by_size.iter().sum::<u64>() <= FADING);
        assert_eq!(drawn_up, 10_000 * u64::from(GANG) / FRESH);
    }

    #[test]
    fn only_gpus_and_shares_are_remembered() {
        let mut recent = Recent::default();
        recent.note(&request(0, 1));
        let unit = UnitRequest::Mig("1g.10gb".into());
        recent.note(&ResourceRequest {
            unit,
            ..request(1, 1)
        });
        assert_eq!(recent.noted, 0);
        let unit = UnitRequest::Share {
            milli: 250,
            sharing: None,
        };
        recent.note(&ResourceRequest {
            unit,
            ..request(2, 1)
        });
        assert_eq!((recent.noted, recent.asks[0].volume()), (1, 500));
    }

    /// The last requests decide, however many there were before of another kind.
    #[test]
    fn the_old_is_forgotten() {
        let mut recent = Recent::default();
        for _ in 0..5000 {
            recent.note(&request(8, 1));
        }
        for _ in 0..REMEMBERED {
            recent.note(&request(1, 1));
        }
        assert!(recent.outlook().asks.iter().all(|ask| ask.gpus == 1));
        assert!(recent.outlook().several.iter().all(|ask| ask.gpus == 8));
    }
}
