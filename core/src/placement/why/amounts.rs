//! Amounts in words.

use std::fmt;

use crate::model::gpu_unit::WHOLE_MILLI;

/// "0.5".
pub fn share(milli: u16) -> f64 {
    f64::from(milli) / f64::from(WHOLE_MILLI)
}

/// Memory of a GPU, in the units of its makers' names: 80 GB.
pub struct GpuMemory(pub u64);

impl fmt::Display for GpuMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} GB", self.0 as f64 / 1e9)
    }
}

/// An amount of memory for people: binary units, rounded down to what is shown.
pub struct Bytes(
    /// How many.
    pub u64,
);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        let Some((shift, unit)) = units.into_iter().find(|(shift, _)| self.0 >> shift > 0) else {
            return write!(f, "{} bytes", self.0);
        };
        let tenths = (u128::from(self.0) * 10) >> shift;
        if tenths % 10 == 0 {
            write!(f, "{} {unit}", tenths / 10)
        } else {
            write!(f, "{}.{} {unit}", tenths / 10, tenths % 10)
        }
    }
}
