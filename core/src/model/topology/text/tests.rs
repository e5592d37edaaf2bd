//! Protects: any text that `nvidia-smi topo -m` prints somewhere is read as the
//! host that it describes, and anything else is refused with its place.

use super::*;

fn links(topology: &Topology, gpu: usize) -> String {
    let name = |other| {
        if other == gpu {
            "X".into()
        } else {
            topology.links.link(gpu, other).to_string()
        }
    };
    (0..topology.links.len()).map(name).collect::<Vec<_>>().join(" ")
}

fn parse(text: &str) -> Topology {
    Topology::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn problem(text: &str) -> (usize, usize, String) {
    let error = Topology::parse(text).expect_err(text);
    (error.line, error.column, error.problem)
}

macro_rules! host {
    ($name:literal) => {
        parse(include_str!(concat!("../testdata/", $name, ".txt")))
    };
}

#[test]
fn hosts_with_two_gpus() {
    for (host, link) in [
        (host!("2gpu-nv2"), Link::NvLink(2)),
        (host!("2gpu-phb"), Link::Phb),
    ] {
        assert_eq!(host.links.upper(), [link]);
        assert_eq!(host.numa_affinity, [None, None]);
        assert!(host.nics.is_empty());
    }
    assert_eq!(host!("2gpu-nv2").cpu_affinity, ["0-23", "0-23"]);
}

#[test]
fn hosts_whose_gpus_are_all_joined_alike() {
    for (host, gpus, link, cpus) in [
        (host!("h100-8x-nv18-noNIC"), 8, 18, ["0-51", "52-103"]),
        (host!("a100-8x-nv12-noNIC"), 8, 12, ["0-23", "24-47"]),
        (host!("gb200-tray-4x-nv18"), 4, 18, ["0-71", "72-143"]),
    ] {
        assert_eq!(host.links, LinkMatrix::from_fn(gpus, |_, _| Link::NvLink(link)));
        for gpu in 0..gpus {
            let half = gpu / (gpus / 2);
            assert_eq!(host.numa_affinity[gpu], Some(half as u32));
            assert_eq!(host.cpu_affinity[gpu], cpus[half]);
        }
    }
}

#[test]
fn a_cube_mesh_with_four_nics_and_no_numa_column() {
    let host = host!("dgx1-v100-8x-4ib");
    assert_eq!(links(&host, 0), "X NV1 NV1 NV2 NV2 SYS SYS SYS");
    assert_eq!(links(&host, 6), "SYS SYS NV1 SYS NV1 NV2 X NV2");
    let names: Vec<_> = host.nics.iter().map(|n| n.name.as_str()).collect();
    assert_eq!(names, ["mlx5_0", "mlx5_2", "mlx5_1", "mlx5_3"]);
    assert_eq!(host.nics[1].gpu_links[4], Link::Pix);
    assert_eq!(host.nics[1].gpu_links[6], Link::Phb);
    assert_eq!(host.cpu_affinity[7], "20-39,60-79");
    assert_eq!(host.numa_affinity, [None; 8]);
}

#[test]
fn a_header_without_its_first_tab_and_with_spaces_between_affinities() {
    let host = host!("a100-4x-polaris-nv4");
    assert_eq!(host.links, LinkMatrix::from_fn(4, |_, _| Link::NvLink(4)));
    assert_eq!(host.numa_affinity, [Some(3), Some(2), Some(1), Some(0)]);
    assert_eq!(host.cpu_affinity[1], "16-23,48-55");
    assert_eq!(
        host.nics[1].gpu_links,
        [Link::Sys, Link::Phb, Link::Sys, Link::Sys]
    );
}

#[test]
fn bridged_pairs_nic_legends_and_unknown_numa_nodes() {
    let pairs = host!("a100pcie-4x-bridge-pairs");
    assert_eq!(links(&pairs, 2), "SYS SYS X NV12");
    assert_eq!(pairs.numa_affinity, [Some(0), Some(0), Some(1), Some(1)]);

    let ada = host!("rtx6000ada-4x-2numa-4nic");
    assert_eq!(links(&ada, 0), "X NODE SYS SYS");
    assert_eq!(
        ada.nics[2],
        TopologyNic {
            name: "mlx5_2".into(),
            gpu_links: vec![Link::Sys, Link::Sys, Link::Node, Link::Node]
        }
    );

    let l40s = host!("l40s-4x-2numa-2nic");
    assert_eq!(l40s.nics[0].name, "NIC0");
    assert_eq!(l40s.cpu_affinity[3], "96-191,288-383");

    let aws = host!("v100-4x-aws-p3.8xlarge");
    assert_eq!(links(&aws, 3), "NV2 NV1 NV2 X");
    assert_eq!(
        (aws.cpu_affinity[0].as_str(), aws.numa_affinity[0]),
        ("0-31", None)
    );
}

#[test]
fn colour_codes_carriage_returns_and_leading_talk() {
    let host = parse(
        "$ nvidia-smi topo -m\r\n\r\n\u{1b}[4m\tGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\u{1b}[0m\r\n\
         GPU0\t X \tPIX\tNODE\t0-23,48-71\t0\t\tN/A\r\nGPU1\tPIX\t X \tNODE\t0-23,48-71\t0\t\tN/A\r\n\
         GPU2\tNODE\tNODE\t X \t0-23,48-71\t0\t\tN/A\r\n",
    );
    assert_eq!(host.links.upper(), [Link::Pix, Link::Node, Link::Node]);
    assert_eq!(host.numa_affinity, [Some(0); 3]);
}

/// What terminals and those who copy from them make of the header's underline.
#[test]
fn colours_that_lost_their_escape_and_other_sequences() {
    for (begin, end) in [
        ("\t[4mGPU0", "[0m"),
        ("[4m\tGPU0", "[0m"),
        ("\u{1b}[1;4m\tGPU0", "\u{1b}(B\u{1b}[m"),
        ("\u{1b}]0;root@host\u{7}\tGPU0", ""),
        ("\u{1b}]0;root@host\u{1b}\\\tGPU0", ""),
        ("\u{feff}\tGPU0", ""),
    ] {
        let host = parse(&format!(
            "{begin}\tGPU1\tCPU Affinity\tNUMA Affinity{end}\nGPU0\t X \tNV4\t0-7\t0\nGPU1\tNV4\t X \t8-15\t1\n"
        ));
        assert_eq!(host.links.upper(), [Link::NvLink(4)], "{begin:?}");
        assert_eq!(host.numa_affinity, [Some(0), Some(1)]);
    }
}

#[test]
fn what_follows_the_matrix_ends_it() {
    let matrix = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-7, 16-23\nGPU1\tNV4\t X \tn/a\n";
    for after in ["```", "root@host:~# ", "=== next ===", matrix, "> GPU0 again"] {
        let host = parse(&format!("{matrix}{after}"));
        assert_eq!(host.links.upper(), [Link::NvLink(4)], "{after:?}");
        assert_eq!(host.cpu_affinity, ["0-7,16-23", ""]);
    }
    // But not in the midst of it, nor a row too many.
    problem(&matrix.replace("\nGPU1", "\n```\nGPU1"));
    problem(&format!("{matrix}GPU2\tNV4\tNV4\t0-7\n"));
    problem(&format!("{matrix}GPU1\tNV4\t X \t0-7\n"));
}

#[test]
fn the_old_name_of_sys_and_no_affinities_at_all() {
    let host = parse("\tGPU0\tGPU1\nGPU0\t X \tSOC\nGPU1\tSOC\t X\nLegend:\n  X = Self\n");
    assert_eq!(host.links.upper(), [Link::Sys]);
    assert_eq!(host.cpu_affinity, ["", ""]);
}

#[test]
fn empty_and_single_affinities() {
    // A CPU list missing, the NUMA node there: a GB200 tray in a container.
    let tabs = parse(
        "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n\
         GPU0\t X \tNV18\t0-35\t0\t\tN/A\nGPU1\tNV18\t X \t\t1\t\tN/A\n",
    );
    assert_eq!(tabs.cpu_affinity, ["0-35", ""]);
    assert_eq!(tabs.numa_affinity, [Some(0), Some(1)]);

    // One core.
    let core = parse("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0\t\tN/A\n");
    assert_eq!(
        (core.cpu_affinity[0].as_str(), core.numa_affinity[0]),
        ("0", None)
    );
    let core = parse("\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t7\t\tN/A\n");
    assert_eq!(
        (core.cpu_affinity[0].as_str(), core.numa_affinity[0]),
        ("7", None)
    );

    // Nothing known, as under WSL.
    let none = parse(
        "        GPU0    CPU Affinity    NUMA Affinity   GPU NUMA ID\n\
         GPU0     X                              N/A\n",
    );
    assert_eq!((none.cpu_affinity[0].as_str(), none.numa_affinity[0]), ("", None));
    assert!(none.links.upper().is_empty());

    // Several NUMA nodes are no NUMA node.
    let wide = parse("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-7\t0-1\n");
    assert_eq!(wide.numa_affinity, [None]);
}

#[test]
fn cells_that_a_narrow_terminal_glued_together() {
    let host = parse(
        "        GPU0    GPU1    NIC0    NIC1    CPU Affinity\n\
         GPU0     X      NV18    NODEPIX         0-7\n\
         GPU1    NV18     X      SYSSYS          0-7\n",
    );
    assert_eq!(host.nics[0].gpu_links, [Link::Node, Link::Sys]);
    assert_eq!(host.nics[1].gpu_links, [Link::Pix, Link::Sys]);
    let header = parse(
        "        GPU0    NIC8    NIC9NIC10   CPU Affinity\n\
         GPU0     X      NODE    PIX     SYS     0-7\n",
    );
    assert_eq!(header.nics.len(), 3);
    assert_eq!(header.nics[2].name, "NIC10");
}

#[test]
fn what_is_written_is_read_again() {
    for host in [
        host!("dgx1-v100-8x-4ib"),
        host!("rtx6000ada-4x-2numa-4nic"),
        host!("2gpu-phb"),
        host!("gb200-tray-4x-nv18"),
    ] {
        assert_eq!(parse(&host.to_string()), host);
    }
}

#[test]
fn malformed_matrices_are_refused_with_their_place() {
    let (line, column, text) = problem("\tGPU0\tGPU1\nGPU0\t X \tNV2\nGPU1\tNV1\t X\n");
    assert_eq!((line, column), (3, 6));
    assert_eq!(
        text,
        "the matrix is not symmetric: GPU1 to GPU0 is NV1 here and NV2 in line 2, column 10"
    );

    for (text, place, contains) in [
        ("", (1, 1), "no header"),
        ("hello\n", (1, 1), "no header"),
        ("GPU0\t X \tNV2\nGPU1\tNV2\t X\n", (1, 1), "no header"),
        ("\tGPU0\tGPU1\nGPU0\t X \tNVX\n", (2, 10), "\"NVX\" is no link"),
        ("\tGPU0\tGPU1\nGPU0\t X \tNV0\n", (2, 10), "\"NV0\" is no link"),
        ("\tGPU0\tGPU1\nGPU0\t X \tNV999\n", (2, 10), "no link"),
        ("\tGPU0\tGPU1\nGPU0\t X\n", (2, 8), "ends after 1 of 2 cells"),
        ("\tGPU0\tGPU1\nGPU0\t X \tSYS\n", (1, 1), "no row for GPU1"),
        (
            "\tGPU0\tGPU1\nGPU0\tX\tX\nGPU1\tX\tX\n",
            (2, 8),
            "only a device itself is X",
        ),
        ("\tGPU0\tGPU1\nGPU0\tSYS\tX\n", (2, 6), "GPU0 must be X to itself"),
        (
            "\tGPU0\tGPU1\nGPU0\tX\tSYS\nGPU0\tX\tSYS\n",
            (3, 1),
            "a second row GPU0",
        ),
        (
            "\tGPU0\tGPU1\nGPU0\tX\tSYS\nGPU2\tX\tSYS\n",
            (3, 1),
            "no column in the header",
        ),
        ("\tGPU0\tGPU0\nGPU0\tX\tSYS\n", (1, 7), "twice"),
        ("\tGPU0\tCPU Affinity\nGPU0\tX\t9-3\n", (2, 8), "is not a list"),
        (
            "\tGPU0\tCPU Affinity\nGPU0\tX\t0-3\t0\n",
            (2, 12),
            "no column in the header",
        ),
        ("\tGPU0\tGPU1\nGPU0\tX\tSYSSYS\n", (2, 11), "more cells"),
    ] {
        let (line, column, found) = problem(text);
        assert!(found.contains(contains), "{text:?}: {found}");
        assert_eq!((line, column), place, "{text:?}: {found}");
    }
}
