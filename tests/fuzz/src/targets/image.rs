//! Images: what registries answer, what archives hold, what a root file system says of its users.

use carrel_node::fuzzing;

use super::with_text;
use crate::Target;

/// A manifest, an index or a configuration.
pub const DOCUMENT: Target = Target {
    name: "manifest",
    run: fuzzing::image_document,
    seeds: || {
        let digest = format!("sha256:{}", "a".repeat(64));
        vec![
            format!(r#"{{"schemaVersion":2,"config":{{"mediaType":"x","digest":"{digest}","size":2}},"layers":[{{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","digest":"{digest}","size":7}}]}}"#).into_bytes(),
            format!(r#"{{"schemaVersion":2,"manifests":[{{"mediaType":"x","digest":"{digest}","size":7,"platform":{{"architecture":"amd64","os":"linux"}}}}]}}"#).into_bytes(),
            format!(r#"{{"architecture":"amd64","os":"linux","config":{{"Env":["A=b"],"WorkingDir":"/w"}},"rootfs":{{"type":"layers","diff_ids":["{digest}","{digest}"]}}}}"#).into_bytes(),
        ]
    },
};

/// An archive.
pub const ARCHIVE: Target = Target {
    name: "archive",
    run: fuzzing::image_archive,
    seeds: || {
        let layout = [
            ("oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#),
            ("index.json", r#"{"schemaVersion":2,"manifests":[]}"#),
            ("blobs/sha256/aa", "x"),
        ];
        vec![
            tar(&layout),
            tar(&[(
                "manifest.json",
                r#"[{"Config":"c","RepoTags":["a:b"],"Layers":["l"]}]"#,
            )]),
            tar(&[("bin/sh", "#!")]),
        ]
    },
};

/// `/etc/passwd` and `/etc/group` of an image, and an image's name.
pub const ACCOUNTS: Target = Target {
    name: "accounts",
    run: |data| with_text(data, fuzzing::image_accounts),
    seeds: || {
        vec![
            b"root:x:0:0:root:/root:/bin/sh\nalice:x:5:5::/:/bin/false\nx:y:1001:1\n\0root:x:0:\nusers:x:100:alice,bob\ng:x:1001:\n".to_vec(),
            b"nvcr.io/nvidia/pytorch:24.05-py3".to_vec(),
        ]
    },
};

fn tar(files: &[(&str, &str)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, text) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        builder
            .append_data(&mut header, path, text.as_bytes())
            .expect("memory");
    }
    builder.into_inner().expect("memory")
}
