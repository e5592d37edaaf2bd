//! Image references as people write them.

use anyhow::{Result, anyhow};
use oci_client::Reference;

/// Reads a reference as Docker does: "debian" is "docker.io/library/debian:latest".
pub(crate) fn parse(text: &str) -> Result<Reference> {
    let read = || {
        let reference: Reference = text.trim().parse()?;
        // What it is completed to has to be one as well: "Ab/c" is read as "docker.io/Ab/c", which is none.
        reference.whole().parse::<Reference>().map(|_| reference)
    };
    read().map_err(|error: oci_client::ParseError| {
        anyhow!(
            "image {text:?} is not a valid reference ({error}); it reads [registry/]name[:tag] or …@sha256:…"
        )
    })
}

/// Whether a registry is spoken to without TLS: on this machine, or named by the operator.
pub(crate) fn is_plain_http(registry: &str, insecure: &[String]) -> bool {
    let host = match registry.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => registry.split(':').next().unwrap_or(registry),
    };
    let loopback = host
        .parse::<std::net::IpAddr>()
        .is_ok_and(|address| address.is_loopback());
    loopback || host == "localhost" || insecure.iter().any(|name| name == registry || name == host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_completed_as_docker_does() {
        for (short, whole) in [
            ("debian", "docker.io/library/debian:latest"),
            ("me/tool:2", "docker.io/me/tool:2"),
            ("localhost:5000/a", "localhost:5000/a:latest"),
            (
                "nvcr.io/nvidia/pytorch:24.05-py3",
                "nvcr.io/nvidia/pytorch:24.05-py3",
            ),
        ] {
            assert_eq!(parse(short).unwrap().whole(), whole);
        }
        for wrong in ["Not A Name", "Ab/c", ""] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_loopback_and_named_registries_are_plain() {
        for plain in [
            "127.0.0.1:5000",
            "localhost",
            "localhost:80",
            "[::1]:5000",
            "lab.example:5000",
        ] {
            assert!(is_plain_http(plain, &["lab.example:5000".into()]), "{plain}");
        }
        for tls in ["docker.io", "localhost.example", "lab.example", "10.0.0.1:5000"] {
            assert!(!is_plain_http(tls, &["lab.example:5000".into()]), "{tls}");
        }
    }
}
