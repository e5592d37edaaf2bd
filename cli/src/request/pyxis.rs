//! Containers as users of Pyxis ask for them, NVIDIA's plugin for Slurm (<https://github.com/NVIDIA/pyxis>): its
//! options name the same things as ours, in other words.

use std::path::Path;

use carrel_proto::v1;

/// An image. What stands before a '#' is its registry (enroot's `[docker://][USER@][REGISTRY#]IMAGE[:TAG]`).
pub fn parse_image(text: &str) -> Result<String, String> {
    let text = text.strip_prefix("docker://").unwrap_or(text);
    let ends = |kind: &&str| {
        Path::new(text)
            .extension()
            .is_some_and(|end| end.eq_ignore_ascii_case(kind))
    };
    let is_file = text.starts_with(['/', '.']) || ["sqsh", "squashfs", "sif"].iter().any(ends);
    if is_file {
        return Err(format!(
            "images come from a registry, and {text:?} is a file: push it to one that the nodes reach"
        ));
    }
    if text.contains("://") {
        return Err(format!("{text:?} is no image of a registry: REGISTRY/IMAGE:TAG"));
    }
    match text.split_once('#') {
        Some((registry, _)) if registry.contains('@') => {
            Err("who signs in to a registry is the node's config to say: leave \"USER@\" out".to_owned())
        }
        Some((registry, image)) => Ok(format!("{registry}/{image}")),
        None => Ok(text.to_owned()),
    }
}

/// A directory: `SOURCE[:TARGET[:FLAGS]]`, flags with '+' between them. Of these "ro" is meant; the others are what is
/// so here in any case.
pub fn parse_mount(text: &str) -> Result<v1::Mount, String> {
    let mut parts = text.splitn(3, ':');
    let source = parts.next().unwrap_or_default();
    let target = parts.next().unwrap_or(source);
    let flags = parts.next().unwrap_or_default();
    if [source, target].iter().any(|path| !path.starts_with('/')) {
        return Err("write SOURCE:TARGET[:ro], both absolute".to_owned());
    }
    Ok(v1::Mount {
        source: source.to_owned(),
        target: target.to_owned(),
        read_only: flags.split(['+', ',']).any(|flag| flag == "ro"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_of_registries() {
        for (text, is) in [
            (
                "nvcr.io#nvidia/pytorch:24.05-py3",
                "nvcr.io/nvidia/pytorch:24.05-py3",
            ),
            ("docker://ubuntu:24.04", "ubuntu:24.04"),
            (
                "nvcr.io/nvidia/pytorch:24.05-py3",
                "nvcr.io/nvidia/pytorch:24.05-py3",
            ),
            ("registry.here:5000#team/image", "registry.here:5000/team/image"),
        ] {
            assert_eq!(parse_image(text).as_deref(), Ok(is));
        }
        for (text, why) in [
            ("/data/images/torch.sqsh", "is a file"),
            ("./torch.sqsh", "is a file"),
            ("torch.sqsh", "is a file"),
            ("dockerd://torch", "no image of a registry"),
            ("me@nvcr.io#nvidia/pytorch", "signs in"),
        ] {
            let error = parse_image(text).expect_err(text);
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn mounts_have_flags() {
        let mount = |text| parse_mount(text).map(|one| (one.source, one.target, one.read_only));
        let is = |source: &str, target: &str, ro| Ok((source.to_owned(), target.to_owned(), ro));
        assert_eq!(mount("/data"), is("/data", "/data", false));
        assert_eq!(mount("/data:/mnt"), is("/data", "/mnt", false));
        assert_eq!(mount("/data:/mnt:ro+nosuid"), is("/data", "/mnt", true));
        assert_eq!(mount("/data:/mnt:rw"), is("/data", "/mnt", false));
        for text in ["", "data:/mnt", "/data:mnt", "tmpfs:/tmp:size=1G"] {
            assert!(mount(text).is_err(), "{text}");
        }
    }
}
