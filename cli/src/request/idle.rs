//! When a session ends that nobody uses.

use std::time::Duration;

use carrel_proto::v1;

use crate::units;

/// Sessions alone have it: batch jobs run to their end.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "What to ask for")]
pub struct IdleArgs {
    /// End it when nobody and nothing has used it for so long: no terminal input, connection, GPU or CPU; it is told
    /// of that before ["none" or default: as the cluster says; never longer than that]
    #[arg(long, value_name = "TIME", value_parser = parse, allow_hyphen_values = true)]
    pub idle: Option<Duration>,
}

/// A time, or zero for none of one's own.
fn parse(text: &str) -> Result<Duration, String> {
    match text {
        "none" => Ok(Duration::ZERO),
        time => units::parse_time(time),
    }
}

impl IdleArgs {
    /// Nothing is said.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Changes what is asked for.
    pub fn over(&self, spec: &mut v1::SessionSpec) {
        spec.idle_s = self.idle.map_or(spec.idle_s, |idle| idle.as_secs());
    }
}
