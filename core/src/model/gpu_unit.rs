//! GPU units: what a job is given of a GPU.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::gpu::MAX_MEMORY_SLICES;
use super::ids::{BadName, GpuUuid, UserName};

/// How jobs that share a GPU are kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Sharing {
    /// The driver's scheduler takes turns. Nothing keeps one job from the memory that another needs, nor from its turns.
    TimeSlice,
    /// NVIDIA's Multi-Process Service: processes run side by side, with limits on memory and on threads.
    Mps,
}

impl Sharing {
    /// As it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TimeSlice => "time-slice",
            Self::Mps => "mps",
        }
    }

    /// From [`Sharing::name`].
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::TimeSlice, Self::Mps]
            .into_iter()
            .find(|sharing| sharing.name() == name)
    }
}

/// How well a GPU unit is kept from the other users of its GPU; the better, the later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Isolation {
    /// By the good behaviour of all of them.
    Cooperative,
    /// By NVIDIA's Multi-Process Service.
    Mps,
    /// By the GPU's hardware.
    Mig,
    /// There are none.
    Exclusive,
}

impl Isolation {
    /// As it is written and shown.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cooperative => "cooperative",
            Self::Mps => "mps",
            Self::Mig => "mig",
            Self::Exclusive => "exclusive",
        }
    }
}

impl From<Sharing> for Isolation {
    fn from(sharing: Sharing) -> Self {
        match sharing {
            Sharing::TimeSlice => Self::Cooperative,
            Sharing::Mps => Self::Mps,
        }
    }
}

/// A whole GPU's thousandths.
pub const WHOLE_MILLI: u16 = 1000;

/// What of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Slice {
    /// All of it.
    Whole,
    /// A MIG GPU instance.
    Mig {
        /// Its profile's name, "1g.10gb".
        profile: String,
        /// First of its memory slices.
        start: u8,
        /// Number of its memory slices.
        width: u8,
    },
    /// So much of its time, beside others.
    Share {
        /// Thousandths of the GPU, 1 to 999.
        milli: u16,
        /// How.
        sharing: Sharing,
    },
}

impl Slice {
    /// How well it is kept from others.
    pub fn isolation(&self) -> Isolation {
        match self {
            Self::Whole => Isolation::Exclusive,
            Self::Mig { .. } => Isolation::Mig,
            Self::Share { sharing, .. } => (*sharing).into(),
        }
    }

    /// Thousandths that it takes of a GPU that is shared.
    pub fn share_milli(&self) -> u32 {
        match self {
            Self::Share { milli, .. } => (*milli).into(),
            Self::Whole | Self::Mig { .. } => 0,
        }
    }

    /// About how much of a GPU it is, in thousandths; a MIG slice counts by its compute slices.
    pub fn milli(&self) -> u16 {
        match self {
            Self::Whole => WHOLE_MILLI,
            Self::Mig { profile, .. } => mig_milli(profile),
            Self::Share { milli, .. } => *milli,
        }
    }

    /// Its memory slices, a bit each; none unless it is a MIG instance.
    pub fn memory_slices(&self) -> u32 {
        match self {
            Self::Mig { start, width, .. } => span(*start, *width),
            Self::Whole | Self::Share { .. } => 0,
        }
    }

    /// The two cannot be there at once on one GPU, by themselves: shares can, as long as their sum allows it.
    pub fn excludes(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Mig { .. }, Self::Mig { .. }) => self.memory_slices() & other.memory_slices() != 0,
            (Self::Share { sharing, .. }, Self::Share { sharing: others, .. }) => sharing != others,
            (Self::Whole, _) | (_, Self::Whole) => true,
            (Self::Mig { .. }, Self::Share { .. }) | (Self::Share { .. }, Self::Mig { .. }) => true,
        }
    }

    /// The two cannot be there at once on one GPU because of whose they are, or may be: MPS serves one user at a time.
    pub fn is_anothers(&self, user: Option<&UserName>, other: &Self, others: Option<&UserName>) -> bool {
        let mps = |slice: &Self| slice.isolation() == Isolation::Mps;
        mps(self) && mps(other) && (user.is_none() || user != others)
    }
}

/// About how much of a GPU a MIG profile is, in thousandths: it has seven compute slices.
pub(crate) fn mig_milli(profile: &str) -> u16 {
    let compute = profile
        .split_once('g')
        .and_then(|(compute, _)| compute.parse().ok());
    compute.map_or(WHOLE_MILLI, |compute: u16| WHOLE_MILLI * compute.clamp(1, 7) / 7)
}

/// Bits `start` to `start + width`; those beyond 32 are left out.
pub(crate) fn span(start: u8, width: u8) -> u32 {
    let ones = (1_u64 << width.min(32)) - 1;
    (ones << start.min(32)) as u32
}

/// A GPU unit: a whole GPU, a MIG slice, or a share of a GPU.
///
/// Written as the GPU's UUID, and what of it: `GPU-…`, `GPU-…:1g.10gb@4+1` (a MIG instance's profile,
/// first memory slice and their number), `GPU-…:500/1000,time-slice` (a share).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct GpuUnit {
    /// The GPU.
    pub gpu: GpuUuid,
    /// What of it.
    pub slice: Slice,
}

impl From<GpuUuid> for GpuUnit {
    /// The whole GPU.
    fn from(gpu: GpuUuid) -> Self {
        Self {
            gpu,
            slice: Slice::Whole,
        }
    }
}

impl GpuUnit {
    /// The two cannot be there at once, by themselves.
    pub fn excludes(&self, other: &Self) -> bool {
        self.gpu == other.gpu && self.slice.excludes(&other.slice)
    }

    /// As [`Slice::is_anothers`], on one GPU.
    pub fn is_anothers(&self, user: Option<&UserName>, other: &Self, others: Option<&UserName>) -> bool {
        self.gpu == other.gpu && self.slice.is_anothers(user, &other.slice, others)
    }
}

impl fmt::Display for Slice {
    /// For people: "1g.10gb at 4", "0.5 by time-slice"; nothing for a whole GPU.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => Ok(()),
            Self::Mig { profile, start, .. } => write!(f, "{profile} at {start}"),
            Self::Share { milli, sharing } => {
                write!(f, "{} by {}", f64::from(*milli) / 1000.0, sharing.name())
            }
        }
    }
}

impl fmt::Display for GpuUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gpu = &self.gpu;
        match &self.slice {
            Slice::Whole => write!(f, "{gpu}"),
            Slice::Mig {
                profile,
                start,
                width,
            } => write!(f, "{gpu}:{profile}@{start}+{width}"),
            Slice::Share { milli, sharing } => {
                write!(f, "{gpu}:{milli}/{WHOLE_MILLI},{}", sharing.name())
            }
        }
    }
}

impl From<GpuUnit> for String {
    fn from(unit: GpuUnit) -> Self {
        unit.to_string()
    }
}

impl TryFrom<String> for GpuUnit {
    type Error = BadName;

    fn try_from(text: String) -> Result<Self, BadName> {
        text.parse()
    }
}

impl FromStr for GpuUnit {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let Some((gpu, what)) = text.split_once(':') else {
            return Ok(text.parse::<GpuUuid>()?.into());
        };
        let slice = mig(what).or_else(|| share(what)).ok_or_else(|| BadName {
            what: "GPU unit",
            text: text.chars().take(160).collect(),
            rule: "UUID, UUID:PROFILE@START+WIDTH, or UUID:MILLI/1000,HOW",
        })?;
        Ok(Self {
            gpu: gpu.parse()?,
            slice,
        })
    }
}

fn mig(text: &str) -> Option<Slice> {
    let (profile, place) = text.split_once('@')?;
    let (start, width) = place.split_once('+')?;
    let (start, width) = (start.parse::<u8>().ok()?, width.parse::<u8>().ok()?);
    let fits = width > 0 && start.checked_add(width)? <= MAX_MEMORY_SLICES;
    (is_profile(profile) && fits).then(|| Slice::Mig {
        profile: profile.to_owned(),
        start,
        width,
    })
}

fn share(text: &str) -> Option<Slice> {
    let (milli, sharing) = text.split_once("/1000,")?;
    let milli = milli
        .parse()
        .ok()
        .filter(|milli| (1..WHOLE_MILLI).contains(milli))?;
    let sharing = Sharing::from_name(sharing)?;
    Some(Slice::Share { milli, sharing })
}

/// A MIG GPU instance profile's name, as `nvidia-smi mig -lgip` prints it without "MIG ": "1g.10gb", "1g.10gb+me".
pub fn is_profile(name: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.len() <= 4 && text.bytes().all(|b| b.is_ascii_digit());
    let (name, attributes) = match name.split_once(['+', '-']) {
        Some((name, attributes)) => (name, attributes),
        None => (name, "none"),
    };
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b".+-".contains(&b);
    let known = !attributes.is_empty() && attributes.len() <= 16 && attributes.bytes().all(plain);
    let parts = name.split_once("g.");
    let parts = parts.and_then(|(compute, memory)| Some((compute, memory.strip_suffix("gb")?)));
    known && parts.is_some_and(|(compute, memory)| digits(compute) && digits(memory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_written_and_read() {
        for text in [
            "GPU-1",
            "GPU-1:1g.10gb@4+1",
            "GPU-1:1g.10gb+me@0+1",
            "GPU-1:7g.80gb@0+8",
            "GPU-1:500/1000,time-slice",
            "GPU-1:1/1000,mps",
        ] {
            let unit: GpuUnit = text.parse().expect(text);
            assert_eq!(unit.to_string(), text);
        }
        for text in [
            "",
            "GPU-1:",
            "GPU-1:1g.10gb",
            "GPU-1:1g.10gb@4",
            "GPU-1:1g.10gb@4+0",
            "GPU-1:1g.10gb@250+8",
            "GPU-1:g.10gb@4+1",
            "GPU-1:0/1000,mps",
            "GPU-1:1000/1000,mps",
            "GPU-1:5/1000,luck",
            "GPU 1",
        ] {
            assert!(text.parse::<GpuUnit>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_there_at_once() {
        let unit = |text: &str| text.parse::<GpuUnit>().unwrap();
        let excludes = |a: &str, b: &str| unit(a).excludes(&unit(b)) && unit(b).excludes(&unit(a));
        assert!(excludes("GPU-1", "GPU-1"));
        assert!(!unit("GPU-1").excludes(&unit("GPU-2")));
        assert!(excludes("GPU-1", "GPU-1:1g.10gb@4+1"));
        assert!(excludes("GPU-1:3g.40gb@4+4", "GPU-1:1g.10gb@6+1"));
        assert!(!unit("GPU-1:3g.40gb@4+4").excludes(&unit("GPU-1:1g.10gb@3+1")));
        assert!(!unit("GPU-1:600/1000,mps").excludes(&unit("GPU-1:600/1000,mps")));
        assert!(excludes("GPU-1:600/1000,mps", "GPU-1:1/1000,time-slice"));
    }

    #[test]
    fn mps_is_one_users_at_a_time() {
        let unit = |text: &str| text.parse::<GpuUnit>().unwrap();
        let (alice, bob) = (Some("alice".parse().unwrap()), Some("bob".parse().unwrap()));
        let apart = |a: &str, of: &Option<UserName>, b: &str, others: &Option<UserName>| {
            unit(a).is_anothers(of.as_ref(), &unit(b), others.as_ref())
        };
        let (mps, slice) = ("GPU-1:1/1000,mps", "GPU-1:1/1000,time-slice");
        assert!(apart(mps, &alice, mps, &bob));
        assert!(apart(mps, &alice, mps, &None));
        assert!(apart(mps, &None, mps, &None));
        assert!(!apart(mps, &alice, mps, &alice));
        assert!(!apart(mps, &alice, "GPU-2:1/1000,mps", &bob));
        assert!(!apart(slice, &alice, slice, &bob));
    }
}
