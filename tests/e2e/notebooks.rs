//! Notebooks as batch jobs, with the kernel of Debian's own packages.

use carrel_tests::cluster::{Cluster, Options};
use carrel_tests::image::Image;
use carrel_tests::user::{ALICE, ROOT};
use serde_json::{Value, json};

use crate::drivers;

struct Lab {
    cluster: Cluster,
    /// Where the nodes have the kernel's packages.
    software: String,
}

impl Lab {
    fn start() -> Self {
        let software = drivers::torch();
        let policy =
            format!("[[policy.mounts]]\nname = \"software\"\npath = \"{software}\"\nread_only = true\n");
        let cluster = Cluster::start(&Options {
            images: vec![Image::Debian],
            broker_config: policy,
            ..Options::default()
        });
        Self { cluster, software }
    }

    fn read(&self, name: &str) -> String {
        self.cluster.read(ALICE, name)
    }

    fn write(&self, name: &str, text: &str) {
        self.cluster.write(ALICE, name, text);
    }

    /// A notebook of these cells.
    fn notebook(&self, name: &str, cells: &[&str]) {
        let cell = |source: &&str| {
            json!({
                "cell_type": "code", "execution_count": 7, "metadata": {}, "source": source,
                "outputs": [{"output_type": "stream", "name": "stdout", "text": "of the last time"}],
            })
        };
        let cells: Vec<Value> = cells.iter().map(cell).collect();
        let notebook = json!({"nbformat": 4, "nbformat_minor": 4, "metadata": {}, "cells": cells});
        self.write(name, &notebook.to_string());
    }

    fn submit(&self, words: &[&str]) -> String {
        let mount = format!("{}:/opt/software:ro", self.software);
        let python = "PYTHONPATH=/opt/software/usr/lib/python3/dist-packages";
        let libraries = "LD_LIBRARY_PATH=/opt/software/usr/lib/x86_64-linux-gnu";
        let own = [
            "submit",
            "--parsable",
            "--mount",
            &mount,
            "--env",
            python,
            "--env",
            libraries,
        ];
        let id = self.cluster.carrel(ALICE, [&own[..], words].concat()).ok();
        id.trim().to_owned()
    }

    fn until(&self, id: &str, state: &str, log: &str) -> Value {
        let mut last = Value::Null;
        self.cluster.ready(&format!("job {id} is {state}"), |this| {
            last = this.json(ROOT, ["show", id]);
            let now = last["state"].as_str().unwrap_or_default();
            let over = ["FAILED", "COMPLETED", "CANCELLED"].contains(&now);
            assert!(now == state || !over, "{last}\n{}", self.read(log));
            now == state
        });
        last
    }

    /// What each cell of a notebook has said.
    fn outputs(&self, name: &str) -> Vec<Value> {
        let text = self.read(name);
        let notebook: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        let cells = notebook["cells"].as_array().expect("cells");
        cells.iter().map(|cell| cell["outputs"].clone()).collect()
    }
}

/// A notebook's outputs are in it while it still runs, and in the job's log; a cell that fails ends the job, and one that
/// is cancelled leaves what it has said.
#[test]
fn a_notebook_is_run_and_written_back() {
    let lab = Lab::start();
    lab.notebook(
        "lab.ipynb",
        &[
            "#SBATCH -J lab --mem=512M -o lab.out\nimport os, sys, time\nprint('job', os.environ['SLURM_JOB_ID'])",
            "while not os.path.exists('lab.go'): time.sleep(0.1)\nsys.argv[1:]",
        ],
    );
    let id = lab.submit(&["lab.ipynb", "--lr", "3"]);
    lab.cluster.ready("what the first cell says is written", |this| {
        let state = this.json(ROOT, ["show", &id])["state"].clone();
        assert_ne!(state, "FAILED", "{}", lab.read("lab.out"));
        lab.outputs("lab.ipynb")[0]
            .to_string()
            .contains(&format!("job {id}"))
    });
    assert_eq!(lab.outputs("lab.ipynb")[1], json!([]), "not of the last time");
    lab.write("lab.go", "");
    let job = lab.until(&id, "COMPLETED", "lab.out");
    assert_eq!(job["name"], "lab");
    let outputs = lab.outputs("lab.ipynb");
    assert_eq!(
        outputs[1][0]["data"]["text/plain"],
        json!(["['--lr', '3']"]),
        "{outputs:?}"
    );
    assert_eq!(lab.read("lab.out"), format!("job {id}\n['--lr', '3']\n"));

    lab.notebook(
        "bad.ipynb",
        &[
            "print('before')",
            "raise ValueError('on purpose')",
            "print('never')",
        ],
    );
    let id = lab.submit(&["-o", "bad.out", "--notebook-output", "done-%j.ipynb", "bad.ipynb"]);
    let job = lab.until(&id, "FAILED", "bad.out");
    assert_eq!(job["exit_code"], 1, "{job}");
    let outputs = lab.outputs(&format!("done-{id}.ipynb"));
    assert_eq!(outputs[1][0]["ename"], "ValueError", "{outputs:?}");
    assert_eq!(outputs[2], json!([]));
    assert!(
        lab.read("bad.out").contains("ValueError: on purpose"),
        "{}",
        lab.read("bad.out")
    );
    assert!(
        lab.read("bad.ipynb").contains("of the last time"),
        "the notebook itself is as it was"
    );

    lab.notebook(
        "long.ipynb",
        &["import time\nprint('kept', flush=True)\ntime.sleep(1000)"],
    );
    let id = lab.submit(&["-o", "long.out", "long.ipynb"]);
    lab.cluster.ready("it runs", |this| {
        let state = this.json(ROOT, ["show", &id])["state"].clone();
        assert_ne!(state, "FAILED", "{}", lab.read("long.out"));
        lab.read("long.out").contains("kept")
    });
    lab.cluster.carrel(ALICE, ["cancel", &id]).ok();
    lab.until(&id, "CANCELLED", "long.out");
    assert!(lab.outputs("long.ipynb")[0].to_string().contains("kept"));
}
