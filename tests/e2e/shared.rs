//! The cluster that most tests share, and what they ask of it.

use std::sync::OnceLock;

use carrel_tests::cluster::{Cluster, Options};
use carrel_tests::image::Image;
pub use carrel_tests::jobs::SMALL;

/// A described HGX H100 host and one without GPUs. Ends with the test program.
pub fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| {
        Cluster::start(&Options {
            hosts: vec![Some("hgx-h100"), None],
            images: vec![Image::Debian, Image::BusyboxOnly, Image::Empty],
            ..Options::default()
        })
    })
}
