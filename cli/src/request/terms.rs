//! On what terms jobs wait and run: account, QOS, partition, nice.

use carrel_proto::v1;

/// As in Slurm.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "On what terms")]
pub struct TermsArgs {
    /// Account that the use is counted on [default: yours]
    #[arg(short = 'A', long, value_name = "ACCOUNT")]
    pub account: Option<String>,
    /// Quality of service [default: the partition's, or normal]
    #[arg(short = 'q', long, value_name = "QOS")]
    pub qos: Option<String>,
    /// Part of the cluster; of several that one is taken in which it would start first [default: the cluster's default]
    #[arg(short = 'p', long, value_name = "PARTITION", value_parser = parse_partition)]
    pub partition: Option<String>,
    /// Reservation that it waits for and runs in; it ends when that does ["none": in none]
    #[arg(long, value_name = "RESERVATION")]
    pub reservation: Option<String>,
    /// Let others pass: taken from the priority; negative is for operators [without a number: 100]
    #[arg(long, value_name = "POINTS", num_args = 0..=1, require_equals = true, default_missing_value = "100", allow_hyphen_values = true)]
    pub nice: Option<i32>,
}

/// One, or several with ',' between them, each once.
fn parse_partition(text: &str) -> Result<String, String> {
    let mut names: Vec<&str> = Vec::new();
    for name in text.split(',').map(str::trim) {
        if name.is_empty() && text.contains(',') {
            return Err("there is a partition without a name".to_owned());
        }
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(names.join(","))
}

impl TermsArgs {
    /// Changes what is asked for.
    pub fn over(&self, terms: &mut Option<v1::Terms>) {
        if *self == Self::default() {
            return;
        }
        let terms = terms.get_or_insert_default();
        let set = |to: &mut String, from: &Option<String>| {
            if let Some(from) = from {
                to.clone_from(from);
            }
        };
        set(&mut terms.account, &self.account);
        set(&mut terms.qos, &self.qos);
        set(&mut terms.partition, &self.partition);
        set(&mut terms.reservation, &self.reservation);
        if terms.reservation == "none" {
            terms.reservation.clear();
        }
        terms.nice = self.nice.unwrap_or(terms.nice);
    }
}
