//! The broker's certificate authorities: one for TLS ([`x509`], [`tls`]), two
//! for SSH ([`ssh`]). Their keys are files of the state directory that only its
//! owner may read.

pub mod files;
pub mod ssh;
pub mod tls;
pub mod x509;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How far a certificate's beginning lies before its signing: clocks of nodes
/// and clients may be behind the broker's by this much.
pub const BACKDATE: Duration = Duration::from_mins(5);

/// Seconds since the Unix epoch.
fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
