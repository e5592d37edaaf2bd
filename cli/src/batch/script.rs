//! Reading a script: what can be run, and one clear message for what cannot.

use std::io::Read;
use std::path::Path;

use crate::error::{CliError, Kind, Result};

/// Longest script, bytes: as the broker takes it.
const MAX_SCRIPT: u64 = 256 * 1024;

/// Reads a script from a file.
pub fn from_file(path: &Path) -> Result<String> {
    let name = path.display().to_string();
    let cannot = |error: std::io::Error| {
        let kind = match error.kind() {
            std::io::ErrorKind::NotFound => Kind::NotFound,
            _ => Kind::Failed,
        };
        CliError::new(kind, format!("cannot read {name}: {error}"))
            .hint("to run a command, write it after --, or use --wrap")
    };
    if path.is_dir() {
        return Err(CliError::usage(format!("{name} is a directory, and no script")));
    }
    from_reader(std::fs::File::open(path).map_err(cannot)?, &name).map_err(|error| match error {
        Unreadable::Io(error) => cannot(error),
        Unreadable::Wrong(error) => error,
    })
}

/// Reads a script from standard input, as sbatch does where no file is named.
pub fn from_stdin() -> Result<String> {
    let name = "the standard input";
    from_reader(std::io::stdin().lock(), name).map_err(|error| match error {
        Unreadable::Io(error) => CliError::failed(format!("cannot read {name}: {error}")),
        Unreadable::Wrong(error) => error,
    })
}

enum Unreadable {
    Io(std::io::Error),
    Wrong(CliError),
}

/// No more of it than a script may have: it may have no end.
fn from_reader(from: impl Read, name: &str) -> Result<String, Unreadable> {
    let mut bytes = Vec::new();
    from.take(MAX_SCRIPT + 1)
        .read_to_end(&mut bytes)
        .map_err(Unreadable::Io)?;
    check(bytes, name).map_err(Unreadable::Wrong)
}

fn check(bytes: Vec<u8>, name: &str) -> Result<String> {
    if bytes.contains(&0) {
        return Err(CliError::usage(format!("{name} is a binary file, and no script"))
            .hint(format!("to run a program: carrel submit -- {name}")));
    }
    if bytes.len() as u64 > MAX_SCRIPT {
        return Err(CliError::usage(format!(
            "{name} is longer than a script may be ({MAX_SCRIPT} bytes)"
        ))
        .hint("put what is long into files beside it"));
    }
    let line_of = |at: usize| bytes[..at].split(|byte| *byte == b'\n').count();
    if let Some(at) = bytes.windows(2).position(|pair| pair == b"\r\n") {
        return Err(CliError::usage(format!(
            "{name} has DOS line breaks (CR LF), from line {} on",
            line_of(at)
        ))
        .hint(format!("`sed -i 's/\\r$//' {name}` makes them Unix ones")));
    }
    let text = String::from_utf8(bytes.clone()).map_err(|error| {
        let line = line_of(error.utf8_error().valid_up_to());
        CliError::usage(format!("{name}:{line}: this line is no UTF-8 text"))
            .hint(format!("`iconv -f latin1 -t utf8 {name}` may make it that"))
    })?;
    let interpreter = text.lines().next().and_then(|line| line.strip_prefix("#!"));
    if !interpreter.is_some_and(|rest| rest.trim_start().starts_with('/')) {
        return Err(
            CliError::usage(format!("{name} does not begin with #! and its interpreter"))
                .hint("make #!/bin/bash its first line; to run a command, write it after --"),
        );
    }
    Ok(text)
}

/// A script that runs one command line, as sbatch's --wrap makes it.
pub fn wrapped(line: &str) -> String {
    format!("#!/bin/sh\n{line}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_script_is_refused_with_what_it_is() {
        let long = [b"#!/bin/sh\n".to_vec(), vec![b'x'; 300_000]].concat();
        for (bytes, part) in [
            (&b"\x7fELF\0\0"[..], "job.sh is a binary file"),
            (b"", "does not begin with #!"),
            (b"echo\n", "does not begin with #!"),
            (b"#!bash\n", "does not begin with #!"),
            (b"#!/bin/sh\necho\r\n", "DOS line breaks (CR LF), from line 2"),
            (b"#!/bin/sh\n# caf\xe9\n", "job.sh:2: this line is no UTF-8"),
            (&long, "longer than a script may be"),
        ] {
            let Err(Unreadable::Wrong(error)) = from_reader(bytes, "job.sh") else {
                panic!("{part}");
            };
            assert!(error.message.contains(part) && error.hint.is_some(), "{error}");
        }
        assert!(matches!(from_reader(&b"#! /bin/sh\n"[..], "job.sh"), Ok(text) if text.len() == 11));
    }

    #[test]
    fn what_has_no_end_is_not_read_to_it() {
        let Err(Unreadable::Wrong(error)) = from_reader(std::io::repeat(b'x'), "endless") else {
            panic!("it has an end");
        };
        assert!(error.message.contains("longer"), "{error}");
    }
}
