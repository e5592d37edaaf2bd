//! Protects: whatever matrix a host has, discovery through NVML finds that
//! matrix; a fact that is missing costs that fact only; and a host whose NVML
//! fails is a node without GPUs that says what to do.
//!
//! The hosts are described ones, served by tests/fake-nvml in a process of
//! their own: `carrel-node probe`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use carrel_core::model::topology::Topology;
use carrel_node::gpu::{self, NvmlSource};
use serde_json::Value;

/// Cargo builds the library because this test depends on its crate, and puts it beside the test.
fn library() -> PathBuf {
    let own = std::env::current_exe().expect("this test's path");
    let library = own.with_file_name("libnvidia_ml.so");
    assert!(library.exists(), "{} is not built", library.display());
    library
}

fn probe_with(host: &Path, library: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_carrel-node"));
    command
        .arg("probe")
        .arg("--nvml-library")
        .arg(library)
        .args(arguments);
    command
        .env("CARREL_FAKE_NVML", host)
        .output()
        .expect("carrel-node")
}

fn probe(host: &Path) -> Value {
    let output = probe_with(host, &library(), &["--output", "json"]);
    let talk = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {talk}", host.display());
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// A description in a file of its own.
struct Described {
    directory: tempfile::TempDir,
}

impl Described {
    fn new(text: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("host.toml"), text).expect("a description");
        Self { directory }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("host.toml")
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Files of a folder with an ending, in order.
fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(repository().join(folder)).expect(folder);
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect(folder).path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == ending));
    files.sort();
    assert!(!files.is_empty(), "{folder}");
    files
}

/// What was discovered is the host of the text.
fn assert_is(found: &Value, expected: &Topology, name: &str) {
    let count = expected.links.len();
    assert_eq!(found["gpus"].as_array().map(Vec::len), Some(count), "{name}");
    for a in 0..count {
        for b in 0..count {
            let link = if a == b {
                "X".to_owned()
            } else {
                expected.links.link(a, b).to_string()
            };
            assert_eq!(found["links"][a][b], link, "{name}: GPUs {a} and {b}");
        }
        let gpu = &found["gpus"][a];
        assert_eq!(
            gpu["numa_node"],
            serde_json::json!(expected.numa_affinity[a]),
            "{name}: GPU {a}"
        );
        assert_eq!(gpu["cpu_affinity"], expected.cpu_affinity[a], "{name}: GPU {a}");
        assert_eq!(
            (&gpu["index"], &gpu["drained"]),
            (&a.into(), &Value::Null),
            "{name}"
        );
    }
    assert_eq!(found["gpu_note"], "", "{name}");
}

#[test]
fn every_matrix_is_discovered_as_it_is() {
    for file in files("core/src/model/topology/testdata", "txt") {
        let text = std::fs::read_to_string(&file).expect("a matrix");
        let expected = Topology::parse(&text).expect("a matrix");
        assert_is(&probe(&file), &expected, &file.display().to_string());
    }
}

#[test]
fn hosts_that_are_described_whole() {
    for file in files("tests/hosts", "toml") {
        let text = std::fs::read_to_string(&file).expect("a description");
        let described: toml::Table = text.parse().expect("TOML");
        let expected = Topology::parse(described["topology"].as_str().expect("a matrix")).expect("a matrix");
        let found = probe(&file);
        assert_is(&found, &expected, &file.display().to_string());
        for (gpu, described_gpu) in described["gpus"].as_array().expect("GPUs").iter().enumerate() {
            assert_eq!(
                found["gpus"][gpu]["uuid"],
                described_gpu["uuid"].as_str().expect("a UUID")
            );
            assert_eq!(
                found["gpus"][gpu]["pci_address"],
                described_gpu["pci"].as_str().expect("an address")
            );
            assert_eq!(
                found["gpus"][gpu]["model"],
                described["model"].as_str().expect("a model")
            );
        }
    }
    let h100 = probe(&repository().join("tests/hosts/hgx-h100.toml"));
    assert_eq!(h100["gpus"][7]["memory_bytes"], 81_559_u64 << 20);
    assert_eq!(h100["gpus"][7]["nvlink_version"], 4);
    assert_eq!(h100["driver_version"], "570.124.06");
    assert_eq!(h100["nvml_library"], library().display().to_string());
}

const FOUR: &str = "topology = \"\"\"
\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV18\tNV18\tNV18\t0-3\t0
GPU1\tNV18\t X \tNV18\tNV18\t0-3\t0
GPU2\tNV18\tNV18\t X \tNV18\t4-7\t1
GPU3\tNV18\tNV18\tNV18\t X \t4-7\t1
\"\"\"
";

#[test]
fn what_a_driver_does_not_know_costs_that_fact_only() {
    let missing = [
        "nvmlDeviceGetMemoryAffinity",
        "nvmlDeviceGetCpuAffinity",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetMinorNumber",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetArchitecture",
        "nvmlDeviceGetNvLinkRemoteDeviceType",
        "nvmlDeviceGetP2PStatus",
        "nvmlSystemGetDriverVersion",
    ];
    let found = probe(&Described::new(&format!("unsupported = {missing:?}\n{FOUR}")).path());
    let gpu = &found["gpus"][2];
    assert_eq!(found["gpus"].as_array().map(Vec::len), Some(4));
    for unknown in ["numa_node", "minor", "drained"] {
        assert_eq!(gpu[unknown], Value::Null, "{unknown}");
    }
    assert_eq!(
        (&gpu["cpu_affinity"], &gpu["memory_bytes"], &gpu["mig_enabled"]),
        (&"".into(), &0.into(), &false.into())
    );
    // The links are still found by the switches that they share, and the version by NVML's other call.
    assert_eq!(found["links"][0][3], "NV18");
    assert_eq!(gpu["nvlink_version"], 5);
    assert_eq!(
        (&found["driver_version"], &found["gpu_note"]),
        (&"".into(), &"".into())
    );
}

#[test]
fn without_remote_ends_the_drivers_word_joins_gpus() {
    let missing = [
        "nvmlDeviceGetNvLinkRemotePciInfo_v2",
        "nvmlDeviceGetNvLinkRemoteDeviceType",
    ];
    let found = probe(&Described::new(&format!("unsupported = {missing:?}\n{FOUR}")).path());
    assert_eq!(found["links"][0][3], "NV18");
}

#[test]
fn gpus_in_mig_mode_and_lost_gpus_are_said_to_be() {
    let text = format!("{FOUR}\n[[gpus]]\nmig = true\n[[gpus]]\nlost = true\n");
    let found = probe(&Described::new(&text).path());
    assert_eq!(found["gpus"][0]["mig_enabled"], true);
    assert_eq!(found["gpus"][0]["drained"], Value::Null);
    let reason = found["gpus"][1]["drained"].as_str().expect("a reason");
    assert!(reason.contains("fell off the bus"), "{reason}");
    assert_eq!(found["links"][2][3], "NV18");
    assert_ne!(found["links"][1][2], "NV18");
}

#[test]
fn nvlinks_without_a_fabric_manager_do_not_count() {
    let found = probe(&Described::new(&format!("nvlink_works = false\n{FOUR}")).path());
    assert_eq!(
        (&found["links"][0][1], &found["links"][0][2]),
        (&"NODE".into(), &"SYS".into())
    );
    let note = found["gpu_note"].as_str().expect("a note");
    assert!(
        note.contains("0-1, 0-2") && note.contains("fabricmanager"),
        "{note}"
    );
}

#[test]
fn the_nvlink_domain_of_several_hosts_is_told() {
    let fabric = |cluster: &str, more: &str| {
        let text = format!("{more}{FOUR}\n[fabric]\ncluster = \"{cluster}\"\nclique = 7\n");
        probe(&Described::new(&text).path())["nvlink_domain"].clone()
    };
    let cluster = "00112233445566778899aabbccddeeff";
    let named = Value::from("00112233-4455-6677-8899-aabbccddeeff.7");
    assert_eq!(fabric(cluster, ""), named);
    // A driver that knows only the older call.
    assert_eq!(
        fabric(cluster, "unsupported = [\"nvmlDeviceGetGpuFabricInfoV\"]\n"),
        named
    );
    // A host by itself has a fabric of its own, which is no domain of several.
    assert_eq!(fabric(&"0".repeat(32), ""), "");
    assert_eq!(probe(&Described::new(FOUR).path())["nvlink_domain"], "");
}

#[test]
fn an_nvml_that_fails_makes_a_node_without_gpus_that_says_why() {
    for (init, says) in [
        ("driver-not-loaded", "modprobe nvidia"),
        ("lib-rm-version-mismatch", "driver/library version mismatch"),
        ("no-permission", "run the agent as root"),
    ] {
        let found = probe(&Described::new(&format!("init = \"{init}\"\n")).path());
        let note = found["gpu_note"].as_str().expect("a note");
        assert!(note.contains(says), "{init}: {note}");
        assert_eq!(found["gpus"], Value::Array(Vec::new()));
        assert!(found["cpus"].as_u64() > Some(0) && found["memory_bytes"].as_u64() > Some(0));
    }
    let nowhere = probe_with(
        Path::new("/"),
        Path::new("/nowhere/libnvidia-ml.so.1"),
        &["--output", "json"],
    );
    assert!(nowhere.status.success());
    let found: Value = serde_json::from_slice(&nowhere.stdout).expect("JSON");
    assert!(
        found["gpu_note"]
            .as_str()
            .expect("a note")
            .contains("/nowhere/libnvidia-ml.so.1")
    );
}

#[test]
fn one_description_serves_several_hosts_by_name() {
    let uuids = |name: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_carrel-node"));
        command
            .args(["probe", "--output", "json", "--nvml-library"])
            .arg(library());
        command.env("CARREL_FAKE_NVML", repository().join("tests/hosts/hgx-h100.toml"));
        let output = command
            .env("CARREL_FAKE_NVML_HOST", name)
            .output()
            .expect("carrel-node");
        let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let gpus = found["gpus"].as_array().expect("GPUs").clone();
        gpus.iter()
            .map(|gpu| gpu["uuid"].to_string())
            .collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(uuids("n1"), uuids("n1"));
    assert_eq!(uuids("n1").union(&uuids("n2")).count(), 16);
}

#[test]
fn people_get_the_matrix_as_nvidia_smi_prints_it() {
    let host = repository().join("tests/hosts/dgx1-v100.toml");
    let output = probe_with(&host, &library(), &[]);
    let text = String::from_utf8(output.stdout).expect("text");
    let found = Topology::parse(&text).expect("the matrix in the text");
    let described: toml::Table = std::fs::read_to_string(&host)
        .expect("a description")
        .parse()
        .expect("TOML");
    assert_eq!(
        Ok(found),
        Topology::parse(described["topology"].as_str().expect("a matrix"))
    );
    assert!(text.contains("Tesla V100-SXM2-32GB"), "{text}");
}

/// Run by the test below in a process of its own, whose environment names the host.
#[test]
#[ignore = "only a part of who_uses_a_gpu_is_known_while_it_lives"]
fn print_processes() {
    let source = NvmlSource {
        library: Some(library()),
        ..NvmlSource::default()
    };
    for (uuid, processes) in gpu::processes(&source).expect("processes") {
        println!("{uuid} used by {:?}", gpu::pids_in(&processes, None));
    }
}

#[test]
fn who_uses_a_gpu_is_known_while_it_lives() {
    let host = Described::new(&format!("processes = \"busy.txt\"\n{FOUR}"));
    let own_uuids = probe(&host.path())["gpus"].clone();
    let uuid = |gpu: usize| own_uuids[gpu]["uuid"].as_str().expect("a UUID").to_owned();
    let users = || {
        let mut command = Command::new(std::env::current_exe().expect("this test's path"));
        command.args([
            "--exact",
            "print_processes",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ]);
        let output = command
            .env("CARREL_FAKE_NVML", host.path())
            .output()
            .expect("this test");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stdout)
        );
        String::from_utf8(output.stdout).expect("text")
    };
    assert!(users().contains(&format!("{} used by []", uuid(2))));

    let mut user = Command::new("sleep").arg("1000").spawn().expect("sleep");
    let lines = format!("2 {}\n{} {}\n", user.id(), uuid(0), std::process::id());
    std::fs::write(host.directory.path().join("busy.txt"), lines).expect("busy.txt");
    let busy = users();
    user.kill().expect("its end");
    user.wait().expect("its end");
    assert!(
        busy.contains(&format!("{} used by [{}]", uuid(2), user.id())),
        "{busy}"
    );
    assert!(
        busy.contains(&format!("{} used by [{}]", uuid(0), std::process::id())),
        "{busy}"
    );
    assert!(busy.contains(&format!("{} used by []", uuid(1))), "{busy}");
    assert!(users().contains(&format!("{} used by []", uuid(2))));
}
