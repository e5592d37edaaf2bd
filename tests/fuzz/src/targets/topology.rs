//! The text of `nvidia-smi topo -m`.

use carrel_core::model::topology::Topology;

use super::with_text;
use crate::Target;

/// Read from operators' files.
pub const TOPOLOGY: Target = Target {
    name: "topology",
    run: |data| {
        with_text(data, |text| {
            let Ok(topology) = Topology::parse(text) else {
                return;
            };
            let again = Topology::parse(&topology.to_string());
            assert_eq!(
                again.as_ref().map(|topology| &topology.links),
                Ok(&topology.links)
            );
        });
    },
    seeds: || {
        vec![
            b"\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV12\tPXB\t0-31\t0\nGPU1\tNV12\t X \tSYS\t32-63\t1\nNIC0\tPXB\tSYS\t X \n\nLegend:\n\nNIC Legend:\n\n  NIC0: mlx5_0\n".to_vec(),
            b"\x1b[4m\tGPU0\tGPU1\tCPU Affinity\x1b[0m\nGPU0\t X \tPHB\t0-7\nGPU1\tPHB\t X \t0-7\n".to_vec(),
        ]
    },
};
