//! docs/slurm.md: its chapter on options is what the program says of itself.

use std::fmt::Write as _;

use super::options::{Standing, spelled};
use super::{USAGES, salloc, sbatch};

const BEGIN: &str =
    "<!-- begin: written by the program; `CARREL_WRITE_REFERENCE=1 cargo test -p carrel-cli reference` -->\n";
const END: &str = "<!-- end -->\n";

fn reference() -> String {
    let mut text = String::new();
    for command in [sbatch::command(), salloc::command()] {
        let _ = write!(text, "\n### {}\n\n| option | |\n|---|---|\n", command.get_name());
        for arg in command.get_arguments() {
            let Some(long) = arg.get_long() else { continue };
            let short = arg
                .get_short()
                .map_or(String::new(), |short| format!("-{short}, "));
            let what = match arg.get_help() {
                Some(help) if arg.is_hide_set() && help.to_string().starts_with("refused") => {
                    help.to_string()
                }
                _ if arg.is_hide_set() => "taken, with a note where it means nothing here".to_owned(),
                help => help
                    .map(ToString::to_string)
                    .unwrap_or_default()
                    .replace('\n', " "),
            };
            let _ = writeln!(text, "| `{short}--{long}` | {} |", what.replace('|', "\\|"));
        }
    }
    for usage in USAGES {
        let _ = write!(
            text,
            "\n### {}\n\n{}\n\n| option | | |\n|---|---|---|\n",
            usage.name, usage.about
        );
        for option in usage.options {
            let standing = match option.is {
                Standing::Used => "as in Slurm",
                Standing::Taken => "taken",
                Standing::Noted => "taken, with a note",
                Standing::Refused => "refused",
            };
            let _ = writeln!(
                text,
                "| `{}` | {standing} | {} |",
                spelled(option).trim(),
                option.text.replace('|', "\\|")
            );
        }
    }
    text
}

#[test]
fn the_reference_of_slurm_s_names_says_what_the_program_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/slurm.md");
    let page = std::fs::read_to_string(path).expect("docs/slurm.md");
    let (before, rest) = page.split_once(BEGIN).expect("where the reference begins");
    let (_, after) = rest.split_once(END).expect("where the reference ends");
    let wanted = format!("{before}{BEGIN}{}{END}{after}", reference());
    if std::env::var_os("CARREL_WRITE_REFERENCE").is_some() {
        std::fs::write(path, wanted).expect("docs/slurm.md can be written");
    } else {
        assert!(
            page == wanted,
            "docs/slurm.md is out of date: CARREL_WRITE_REFERENCE=1 cargo test -p carrel-cli reference"
        );
    }
}
