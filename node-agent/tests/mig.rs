//! Protects: what a GPU in MIG mode can be cut into and is cut into is found as NVML says it, and what is
//! not one device for a job is not offered as one.
//!
//! The hosts are described ones, served by tests/fake-nvml in a process of their own: `carrel-node probe`.

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

/// Cargo builds the library because this test depends on its crate, and puts it beside the test.
fn library() -> PathBuf {
    let own = std::env::current_exe().expect("this test's path");
    own.with_file_name("libnvidia_ml.so")
}

/// Four GPUs, whose NVLinks would join all of them.
fn described(model: &str, memory_mib: u32, gpus: &str) -> String {
    let row = |n: usize| {
        let cell = |other: usize| if n == other { " X " } else { "NV18" };
        let cells: Vec<&str> = (0..4).map(cell).collect();
        format!("GPU{n}\t{}\t0-3\t0\n", cells.join("\t"))
    };
    let rows: String = (0..4).map(row).collect();
    format!(
        "model = \"{model}\"\nmemory_mib = {memory_mib}\ntopology = \"\"\"\n\
         \tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\n{rows}\"\"\"\n{gpus}"
    )
}

fn probe_as(host: &str, node: &str, output: &str) -> Result<String, String> {
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("written");
        path
    };
    let run = Command::new(env!("CARGO_BIN_EXE_carrel-node"))
        .args(["probe", "--output", output, "--nvml-library"])
        .arg(library())
        .arg("--config")
        .arg(file("node.toml", node))
        .env("CARREL_FAKE_NVML", file("host.toml", host))
        .output()
        .expect("carrel-node");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if run.status.success() {
        Ok(text(&run.stdout))
    } else {
        Err(text(&run.stderr))
    }
}

fn probe(host: &str, node: &str) -> Value {
    let text = probe_as(host, node, "json").expect("a probe");
    serde_json::from_str(&text).expect("JSON")
}

const CUT: &str = r#"
[[gpus]]
mig = { instances = ["3g.40gb@4", "1g.10gb+me@0", "1g.10gb@1"] }
[[gpus]]
mig = { instances = ["2g.20gb@0:1,1", "1g.10gb@2:", "3g.40gb@4:2"] }
[[gpus]]
mig = { mode = "pending-on" }
"#;

#[test]
fn profiles_and_instances_are_the_drivers() {
    let found = probe(&described("NVIDIA H100 80GB HBM3", 81_559, CUT), "");
    let mig = &found["gpus"][0]["mig"];
    let profiles: Vec<String> = mig["profiles"]
        .as_array()
        .expect("profiles")
        .iter()
        .map(|profile| {
            let number = |key: &str| profile[key].as_u64().expect(key);
            let name = profile["name"].as_str().expect("a name");
            let (id, most, width) = (number("id"), number("most"), number("width"));
            format!("{name} {id} {most} {}:{width}", profile["starts"])
        })
        .collect();
    assert_eq!(
        profiles,
        [
            "1g.10gb 19 7 [0,1,2,3,4,5,6]:1",
            "2g.20gb 14 3 [0,2,4]:2",
            "3g.40gb 9 2 [0,4]:4",
            "4g.40gb 5 1 [0]:4",
            "7g.80gb 0 1 [0]:8",
            "1g.10gb+me 20 1 [0,1,2,3,4,5,6]:1",
            "1g.20gb 15 4 [0,2,4,6]:2",
        ]
    );
    let place = |instance: &Value| {
        format!(
            "{}@{}+{}",
            instance["profile"], instance["start"], instance["width"]
        )
    };
    let instances = mig["instances"].as_array().expect("instances");
    let places: Vec<String> = instances.iter().map(place).collect();
    assert_eq!(
        places,
        ["\"1g.10gb+me\"@0+1", "\"1g.10gb\"@1+1", "\"3g.40gb\"@4+4"]
    );
    let uuids: std::collections::BTreeSet<&str> = instances
        .iter()
        .filter_map(|instance| instance["uuid"].as_str())
        .collect();
    assert!(uuids.len() == 3 && uuids.iter().all(|uuid| uuid.starts_with("MIG-")));
    // A GPU in MIG mode has no peers; the others keep theirs. Over switches, and from GPU to GPU.
    let few = described("NVIDIA H100 80GB HBM3", 81_559, CUT).replace("NV18", "NV4");
    let direct = probe(&format!("nvswitch = false\n{few}"), "");
    for (found, link) in [(&found, "NV18"), (&direct, "NV4")] {
        assert_ne!(found["links"][0][3], link);
        assert_eq!(found["links"][2][3], link);
    }
    assert_eq!(found["gpus"][3]["mig"], Value::Null);
}

#[test]
fn what_is_not_one_device_is_not_offered_and_it_is_said() {
    let host = described("NVIDIA H100 80GB HBM3", 81_559, CUT);
    let found = probe(&host, "[mig]\nrecut = [1]\nnvidia_smi = \"/bin/true\"\n");
    let mig = &found["gpus"][1]["mig"];
    assert_eq!((&mig["instances"], &mig["recut"]), (&json!([]), &json!(true)));
    // Where the divided ones stand, nothing is cut; the empty one may be removed.
    assert_eq!(mig["profiles"][0]["starts"], json!([2, 3]));
    assert_eq!(found["gpus"][0]["mig"]["recut"], false);
    let note = found["gpu_note"].as_str().expect("a note");
    for part in [
        "GPU 1: its GPU instance 3 (2g.20gb at 0) is divided further, into 2 of its compute instances",
        "GPU 1: its GPU instance 1 (3g.40gb at 4) is divided further",
        "MIG mode of GPU 2 is off, and on once the GPU is reset",
    ] {
        assert!(note.contains(part), "{part}: {note}");
    }
    assert!(!note.contains("instance 9"), "{note}");
    let unable = probe(
        &host,
        "[mig]\nrecut = true\nnvidia_smi = \"/nowhere/nvidia-smi\"\n",
    );
    assert_eq!(unable["gpus"][0]["mig"]["recut"], false);
    assert!(
        unable["gpu_note"]
            .as_str()
            .is_some_and(|note| note.contains("nvidia-smi is not found"))
    );
    let without = probe(&host, "");
    let note = without["gpu_note"].as_str().expect("a note");
    assert!(
        note.contains("GPU instance 9 (1g.10gb at 2) has no compute instance"),
        "{note}"
    );
    let text = probe_as(&host, "[mig]\nrecut = true\nnvidia_smi = \"/bin/true\"\n", "text").expect("a probe");
    assert!(
        text.contains("ok, in MIG slices that are cut as jobs need them"),
        "{text}"
    );
    assert!(text.contains("1g.10gb+me   20"), "{text}");
}

/// Drivers before 525 name no profile; other GPUs have other slices.
#[test]
fn other_drivers_and_other_gpus() {
    let host = described(
        "NVIDIA A30",
        24_576,
        "[[gpus]]\nmig = { instances = [\"2g.12gb@2\"] }\n",
    );
    let old = format!("unsupported = [\"nvmlDeviceGetGpuInstancePossiblePlacements\"]\n{host}");
    let found = probe(&old, "");
    let mig = &found["gpus"][0]["mig"];
    let names: Vec<&str> = mig["profiles"]
        .as_array()
        .expect("profiles")
        .iter()
        .filter_map(|profile| profile["name"].as_str())
        .collect();
    assert_eq!(names, ["1g.6gb", "2g.12gb", "4g.24gb", "1g.6gb+me", "2g.12gb+me"]);
    assert_eq!(mig["instances"][0]["start"], 2);
    for call in ["nvmlDeviceGetGpuInstances", "nvmlDeviceGetMaxMigDeviceCount"] {
        let found = probe(&format!("unsupported = [\"{call}\"]\n{host}"), "");
        let gpu = &found["gpus"][0];
        assert_eq!(gpu["mig"]["instances"], json!([]));
        let why = gpu["drained"].as_str().expect("a reason");
        assert!(why.contains("its slices are not known"), "{why}");
        assert_eq!(found["gpus"][1]["drained"], Value::Null);
    }
}

#[test]
fn gpus_are_shared_as_the_operator_says() {
    let host = described("NVIDIA H100 80GB HBM3", 81_559, "[[gpus]]\nmig = true\n");
    let sharing = |found: &Value| -> Vec<Value> {
        let gpus = found["gpus"].as_array().expect("GPUs");
        gpus.iter().map(|gpu| gpu["sharing"].clone()).collect()
    };
    let all = probe(&host, "[sharing]\ngpus = \"all\"\n");
    assert_eq!(
        sharing(&all),
        [
            json!(null),
            json!("time-slice"),
            json!("time-slice"),
            json!("time-slice")
        ]
    );
    assert_eq!(all["gpu_note"], "");
    let some = probe(&host, "[sharing]\ngpus = [0, 2, 9]\nmode = \"time-slice\"\n");
    assert_eq!(
        sharing(&some)[1..],
        [json!(null), json!("time-slice"), json!(null)]
    );
    let note = some["gpu_note"].as_str().expect("a note");
    assert!(
        note.contains("GPU 0 is in MIG mode") && note.contains("names GPU 9"),
        "{note}"
    );
    let by_model = probe(&host, "[sharing]\ngpus = [\"h100\"]\n");
    assert_eq!(sharing(&by_model)[3], "time-slice");
    let mps = |program: &str| {
        let text = format!("[sharing]\ngpus = \"all\"\nmode = \"mps\"\nmps_control = \"{program}\"\n");
        probe(&host, &text)
    };
    assert_eq!(sharing(&mps("/bin/true"))[3], "mps");
    let without = mps("/nowhere");
    assert_eq!(sharing(&without)[3], serde_json::Value::Null);
    let note = without["gpu_note"].as_str().expect("a note");
    assert!(note.contains("nvidia-cuda-mps-control is not found"), "{note}");
    for (node, says) in [
        (
            "[sharing]\ngpus = [1]\n[mig]\nrecut = [1]\n",
            "is named in [mig] recut and in [sharing] gpus",
        ),
        ("[sharing]\nmode = \"luck\"\n", "\"luck\" is not known"),
        ("[sharing]\ngpus = \"some\"\n", "\"all\", or a list of GPUs"),
        ("[mig]\nrecut = \"yes\"\n", "true, false, or a list of GPUs"),
    ] {
        let error = probe_as(&host, node, "json").expect_err("refused");
        assert!(error.contains(says), "{says}: {error}");
    }
}
