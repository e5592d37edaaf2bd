//! Checks of what a session's processes are to be given.

use std::collections::BTreeMap;

use carrel_proto::v1::EnvVar;
use tonic::Status;

use super::refuse::invalid;

/// Variables of one request, before anything is looked at.
const MAX_VARIABLES: usize = 256;
/// Longest name of a variable.
const MAX_NAME: usize = 256;

/// Variables by name; of a name given twice the last counts.
pub(super) fn variables(given: Vec<EnvVar>) -> Result<BTreeMap<String, String>, Status> {
    if given.len() > MAX_VARIABLES {
        return Err(invalid(format!(
            "{} variables are too many ({MAX_VARIABLES} at most)",
            given.len()
        )));
    }
    given
        .into_iter()
        .map(|EnvVar { name, value }| {
            let mut bytes = name.bytes();
            let first = bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
            if !first || name.len() > MAX_NAME || !bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_') {
                let shown: String = name.chars().take(80).collect();
                return Err(invalid(format!(
                    "{shown:?} is no name of a variable: letters, digits and _"
                )));
            }
            if value.contains('\0') {
                return Err(invalid(format!("the value of {name} contains a zero byte")));
            }
            Ok((name, value))
        })
        .collect()
}

/// An image reference: what registries and imported archives may be called
/// (OCI distribution specification, "Pulling manifests").
pub(super) fn image(text: &str) -> Result<(), Status> {
    let characters = text
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b"._-/:@+".contains(&b));
    let ends = text.bytes().next().is_none_or(|b| b.is_ascii_alphanumeric())
        && text.bytes().last().is_none_or(|b| b.is_ascii_alphanumeric());
    if characters && ends {
        return Ok(());
    }
    let shown: String = text.chars().take(80).collect();
    Err(invalid(format!(
        "{shown:?} is no image reference, such as \"ubuntu:24.04\" or \"nvcr.io/nvidia/pytorch:25.01-py3\""
    )))
}

/// A working directory; empty: the home.
pub(super) fn directory(text: &str) -> Result<(), Status> {
    if text.is_empty() || (text.starts_with('/') && !text.contains('\0')) {
        return Ok(());
    }
    let shown: String = text.chars().take(80).collect();
    Err(invalid(format!(
        "the working directory {shown:?} is not an absolute path"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(name: &str, value: &str) -> EnvVar {
        EnvVar {
            name: name.into(),
            value: value.into(),
        }
    }

    #[test]
    fn only_what_a_process_can_be_given_is_taken() {
        let good = variables(vec![variable("A", "1"), variable("_b2", ""), variable("A", "2")]);
        assert_eq!(good.expect("good").get("A").map(String::as_str), Some("2"));
        for bad in ["", "1A", "A=B", "A B", "ü"] {
            assert!(variables(vec![variable(bad, "")]).is_err(), "{bad}");
        }
        assert!(variables(vec![variable("A", "a\0b")]).is_err());
        assert!(variables(vec![variable("A", ""); MAX_VARIABLES + 1]).is_err());
    }

    #[test]
    fn images_and_directories_have_their_form() {
        for good in [
            "",
            "ubuntu",
            "nvcr.io/nvidia/pytorch:25.01-py3",
            "a/b@sha256:0123",
            "localhost:5000/x:y",
        ] {
            assert!(image(good).is_ok(), "{good}");
        }
        for bad in ["-x", "a b", "a;b", "$(id)", "../x", "a/", "ü"] {
            assert!(image(bad).is_err(), "{bad}");
        }
        assert!(directory("/a b").is_ok() && directory("").is_ok());
        assert!(directory("a").is_err() && directory("/a\0").is_err());
    }
}
