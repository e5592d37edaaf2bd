//! `session`: the budgets of a session's start and of its byte path.

use carrel_tests::cluster::{Cluster, Options as ClusterOptions};
use carrel_tests::image::Image;
use carrel_tests::programs::Profile;

use crate::{latency, throughput};

/// How much of it to do.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Starts measured.
    #[arg(long, default_value_t = 30)]
    starts: usize,
    /// Bytes of one transfer, in MiB.
    #[arg(long, default_value_t = 2048)]
    transfer_mib: u64,
    /// Rounds of transfers; the median counts.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

/// Runs all of it on one cluster.
pub fn run(options: &Options) -> anyhow::Result<()> {
    eprintln!("starting a cluster of one described HGX H100");
    let cluster = Cluster::start(&ClusterOptions {
        images: vec![Image::Debian],
        profile: Profile::Release,
        ..ClusterOptions::default()
    });
    latency::to_prompt(&cluster, options.starts);
    latency::per_second(&cluster, 1, options.starts);
    latency::per_second(&cluster, 16, options.starts * 4);
    throughput::measure(&cluster, options.transfer_mib << 20, options.rounds)
}
