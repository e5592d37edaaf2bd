//! How much requests of each size are expected to ask for.

use super::table::MAX_TABLE_GPUS;

/// Thousandths of GPUs asked for that are experience.
const ENOUGH: u64 = 256_000;

/// How much requests for so many GPUs of a host are expected to ask for, one size against the other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Demand(pub(super) [u8; MAX_TABLE_GPUS + 1]);

impl Default for Demand {
    /// Without experience: powers of two above all.
    fn default() -> Self {
        Self(std::array::from_fn(|size| match size {
            0 => 0,
            1 | 2 | 4 | 8 | 16 => 8,
            _ => 1,
        }))
    }
}

impl Demand {
    /// From how much was asked for by requests of each size, thousandths of GPUs. Shares are rounded, to a sixteenth of
    /// all, so that little experience changes little; with too little of it, as without.
    pub fn from_volumes(volumes: &[u64; MAX_TABLE_GPUS + 1]) -> Self {
        let all: u64 = volumes[1..].iter().sum();
        if all < ENOUGH {
            return Self::default();
        }
        Self(std::array::from_fn(|size| match size {
            0 => 0,
            _ => (volumes[size] * 64).div_ceil(all).div_ceil(4) as u8,
        }))
    }

    pub(super) fn weight(&self, size: usize) -> u64 {
        self.0[size].into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experience_counts_once_there_is_enough_of_it() {
        let volumes = |scale: u64| {
            std::array::from_fn(|size| match size {
                3 => 90 * scale,
                1 => 10 * scale,
                _ => 0,
            })
        };
        assert_eq!(Demand::from_volumes(&volumes(1000)), Demand::default());
        let learned = Demand::from_volumes(&volumes(5000));
        assert!(learned.weight(3) > learned.weight(1) && learned.weight(1) > learned.weight(2));
        assert_eq!(learned.weight(2), 0);
    }
}
