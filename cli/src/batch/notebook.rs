//! Reading a notebook, and the script that runs it.
//!
//! A notebook runs in the job's container, with that container's Python: a driver (`notebook.py`), which the job's script
//! carries, has its cells executed by the kernel that it names and writes their outputs back as they come.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use serde::Deserialize;

use crate::error::{CliError, Kind, Result};

/// How the file of a notebook's name ends.
const EXTENSION: &str = "ipynb";
/// Longest notebook, bytes: more is outputs that no browser opens.
const MAX_NOTEBOOK: u64 = 256 << 20;
/// The oldest format that the driver reads as it is: of January 2014.
const OLDEST_FORMAT: u64 = 4;
/// Runs in the container.
const DRIVER: &str = include_str!("notebook.py");
/// Ends the driver in the script; no line of it is this.
const END: &str = "CARREL_NOTEBOOK";

/// What of a notebook matters before it runs.
#[derive(Debug, PartialEq, Eq)]
pub struct Notebook {
    /// Its first cell, whose comment lines may hold options.
    pub first_cell: String,
    /// What its user should know.
    pub notes: Vec<String>,
}

/// Whether a file's name is a notebook's.
pub fn is_notebook(path: &Path) -> bool {
    path.extension()
        .is_some_and(|end| end.eq_ignore_ascii_case(EXTENSION))
}

#[derive(Deserialize)]
struct Format {
    nbformat: u64,
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    cells: Vec<Cell>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    kernelspec: KernelSpec,
    language_info: LanguageInfo,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct KernelSpec {
    name: String,
    language: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct LanguageInfo {
    name: String,
}

#[derive(Deserialize)]
struct Cell {
    cell_type: String,
    #[serde(default)]
    source: Text,
}

/// A text, or its lines with their ends (nbformat's `multiline_string`).
#[derive(Deserialize)]
#[serde(untagged)]
enum Text {
    Whole(String),
    Lines(Vec<String>),
}

impl Default for Text {
    fn default() -> Self {
        Self::Whole(String::new())
    }
}

impl Text {
    fn text(&self) -> String {
        match self {
            Self::Whole(text) => text.clone(),
            Self::Lines(lines) => lines.concat(),
        }
    }
}

/// Reads a notebook and looks whether it can be run.
///
/// # Errors
/// It cannot: what is wrong with it.
pub fn from_file(path: &Path) -> Result<Notebook> {
    let name = path.display().to_string();
    let cannot = |error: std::io::Error| {
        let kind = match error.kind() {
            std::io::ErrorKind::NotFound => Kind::NotFound,
            _ => Kind::Failed,
        };
        CliError::new(kind, format!("cannot read {name}: {error}"))
    };
    let file = File::open(path).map_err(cannot)?;
    let mut bytes = Vec::new();
    file.take(MAX_NOTEBOOK + 1)
        .read_to_end(&mut bytes)
        .map_err(cannot)?;
    if bytes.len() as u64 > MAX_NOTEBOOK {
        let most = MAX_NOTEBOOK >> 20;
        return Err(CliError::usage(format!("{name} is longer than {most} MiB"))
            .hint("`jupyter nbconvert --clear-output --inplace` takes its outputs out"));
    }
    check(&bytes, &name)
}

fn check(bytes: &[u8], name: &str) -> Result<Notebook> {
    let wrong = |why: &str, hint: &str| Err(CliError::usage(format!("{name} {why}")).hint(hint));
    let notebook: Format = match serde_json::from_slice(bytes) {
        Ok(notebook) => notebook,
        Err(error) => {
            let why = format!("is no Jupyter notebook: {error}");
            return wrong(&why, "save it in Jupyter or the editor, and submit it again");
        }
    };
    if notebook.nbformat < OLDEST_FORMAT {
        let why = format!("is a notebook of format {}, from before 2014", notebook.nbformat);
        return wrong(
            &why,
            "`jupyter nbconvert --to notebook --inplace` makes it a newer one",
        );
    }
    let code = |cell: &&Cell| cell.cell_type == "code" && !cell.source.text().trim().is_empty();
    if !notebook.cells.iter().any(|cell| code(&cell)) {
        return wrong(
            "has no code to run",
            "a notebook that was not saved yet is empty: save it",
        );
    }
    let Metadata {
        kernelspec,
        language_info,
    } = &notebook.metadata;
    let languages = [&kernelspec.language, &language_info.name];
    let language = languages.into_iter().find(|language| !language.is_empty());
    let other = language.filter(|language| !language.eq_ignore_ascii_case("python"));
    let notes = other.map(|language| {
        format!(
            "{name} is written in {language}: its image must have the kernel {:?}, and Python with nbclient to run it",
            kernelspec.name
        )
    });
    let first = notebook.cells.first().filter(|cell| cell.cell_type != "markdown");
    Ok(Notebook {
        first_cell: first.map(|cell| cell.source.text()).unwrap_or_default(),
        notes: notes.into_iter().collect(),
    })
}

/// The script that runs a notebook; its arguments are the driver's.
pub fn script() -> String {
    format!(
        "#!/bin/sh\n\
         # Runs a notebook, with the Python of its environment.\n\
         python=python3\n\
         for root in \"$VIRTUAL_ENV\" \"$CONDA_PREFIX\"; do\n\
         \x20 if [ -n \"$root\" ] && [ -x \"$root/bin/python3\" ]; then python=$root/bin/python3; break; fi\n\
         done\n\
         if ! command -v \"$python\" >/dev/null; then\n\
         \x20 echo \"carrel: a notebook needs Python 3 with nbclient and ipykernel, and this image has no python3\" >&2\n\
         \x20 exit 1\n\
         fi\n\
         exec \"$python\" - \"$@\" <<'{END}'\n\
         {DRIVER}{END}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notebook(rest: &str) -> String {
        format!("{{\"nbformat\": 4, \"nbformat_minor\": 5, {rest}}}")
    }

    const CODE: &str =
        r##""cells": [{"cell_type": "code", "source": ["#SBATCH -t 5\n", "#CARREL --gpus 1\n", "x = 1"]}]"##;

    #[test]
    fn what_cannot_be_run_is_refused_with_what_it_is() {
        for (text, part) in [
            ("print(1)".to_owned(), "x.ipynb is no Jupyter notebook: expected"),
            ("{}".to_owned(), "missing field `nbformat`"),
            (String::new(), "is no Jupyter notebook: EOF"),
            ("{\"nbformat\": 3, \"worksheets\": []}".to_owned(), "of format 3"),
            (notebook("\"cells\": []"), "has no code to run"),
            (
                notebook(
                    r#""cells": [{"cell_type": "markdown", "source": "x"}, {"cell_type": "code", "source": " \n"}]"#,
                ),
                "has no code to run",
            ),
        ] {
            let error = check(text.as_bytes(), "x.ipynb").expect_err(&text);
            assert!(error.message.contains(part) && error.hint.is_some(), "{error}");
        }
    }

    #[test]
    fn its_first_cell_may_hold_options_and_another_language_is_noted() {
        let read = check(notebook(CODE).as_bytes(), "x.ipynb").expect("a notebook");
        assert_eq!(read.first_cell, "#SBATCH -t 5\n#CARREL --gpus 1\nx = 1");
        assert!(read.notes.is_empty());
        let other = format!(r#""metadata": {{"kernelspec": {{"name": "ir", "language": "R"}}}}, {CODE}"#);
        let read = check(notebook(&other).as_bytes(), "x.ipynb").expect("a notebook");
        assert!(
            read.notes[0].contains("written in R") && read.notes[0].contains("\"ir\""),
            "{:?}",
            read.notes
        );
        assert!(is_notebook(Path::new("a/b.ipynb")) && !is_notebook(Path::new("ipynb")));
    }

    #[test]
    fn the_driver_is_in_the_script_as_it_is() {
        let script = script();
        assert!(script.starts_with("#!/bin/sh\n") && script.ends_with(&format!("\nmain()\n{END}\n")));
        assert_eq!(script.lines().filter(|line| *line == END).count(), 1);
        assert!(script.len() < 64 << 10, "it travels with the job");
    }
}
