//! Parsers of what images say, as the fuzz targets reach them.

use std::io::Write;

use carrel_proto::v1::Identity;

use crate::image::archive::{Archive, Kind};
use crate::image::manifest::{Config, Document, Index};
use crate::image::name;
use crate::runtime::etc;

/// A manifest, an index or a configuration.
pub fn image_document(bytes: &[u8]) {
    match Document::parse(bytes) {
        Ok(Document::Index(index)) => drop(index.for_this_platform().is_ok()),
        Ok(Document::Manifest(manifest)) => assert!(!manifest.layers.is_empty()),
        Err(_) => {}
    }
    if let Ok(config) = serde_json::from_slice::<Config>(bytes) {
        assert_eq!(config.rootfs.chain_ids().len(), config.rootfs.diff_ids.len());
    }
}

/// An archive: opened, and the documents read that its kind has.
pub fn image_archive(bytes: &[u8]) {
    let Ok(mut file) = tempfile::NamedTempFile::new() else {
        return;
    };
    if file.write_all(bytes).is_err() {
        return;
    }
    let Ok(archive) = Archive::open(file.path(), &std::env::temp_dir()) else {
        return;
    };
    let document = match archive.kind() {
        Ok(Kind::OciLayout) => archive.document("index.json"),
        Ok(Kind::DockerSave) => archive.document("manifest.json"),
        Ok(Kind::RootFs) | Err(_) => return,
    };
    if let Ok(document) = document {
        // An error is an answer.
        let _ = serde_json::from_slice::<Index>(&document);
    }
}

/// An image's passwd, a zero byte and its group; and the whole as an image's name.
pub fn image_accounts(text: &str) {
    if let Ok(reference) = name::parse(text) {
        assert!(name::parse(&reference.whole()).is_ok(), "{reference}");
    }
    let identity = Identity {
        name: "alice".into(),
        uid: 1001,
        gid: 1001,
        groups: vec![100, 2000],
        home: "/home/alice".into(),
        ..Identity::default()
    };
    let (passwd, group) = text.split_once('\0').unwrap_or((text, ""));
    let (passwd, group) = (
        etc::passwd(Some(passwd), &identity, "/bin/sh"),
        etc::group(Some(group), &identity, |_| None),
    );
    let own = |text: &str, id: &str| {
        let lines = text.lines().filter(|line| line.split(':').nth(2) == Some(id));
        lines
            .map(|line| line.split(':').next().unwrap_or_default().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        own(&passwd, "1001"),
        ["alice"],
        "the user is who the cluster says"
    );
    assert_eq!(own(&group, "1001"), ["alice"], "and the group as well");
}
