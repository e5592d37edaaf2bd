//! docs/cli.md: its chapter on commands is what the program says of itself.

use std::fmt::Write as _;

use clap::CommandFactory as _;

use crate::cli::Cli;

const BEGIN: &str =
    "<!-- begin: written by the program; `CARREL_WRITE_REFERENCE=1 cargo test -p carrel-cli reference` -->\n";
const END: &str = "<!-- end -->\n";

fn reference() -> String {
    let mut command = Cli::command().term_width(100).mut_args(without_environment);
    command.build();
    let mut text = format!("```text\n{}```\n", tidy(&command.render_help().to_string()));
    let globals = ["broker", "output", "help", "version"];
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        chapter(&mut text, verb, 3, &globals);
    }
    text
}

/// A verb's help, and that of its own verbs.
fn chapter(text: &mut String, verb: &clap::Command, depth: usize, globals: &[&str]) {
    let name = verb.get_bin_name().unwrap_or(verb.get_name()).to_owned();
    let mut shown = verb.clone().term_width(100).mut_args(without_environment);
    // What every verb takes is said once.
    for id in globals {
        if shown.get_arguments().any(|arg| arg.get_id() == id) {
            shown = shown.mut_arg(id, |arg| arg.hide(true));
        }
    }
    let help = tidy(&shown.render_long_help().to_string());
    let _ = write!(text, "\n{} {name}\n\n```text\n{help}```\n", "#".repeat(depth));
    for verb in verb.get_subcommands().filter(|verb| verb.get_name() != "help") {
        chapter(text, verb, depth + 1, globals);
    }
}

/// The value that a variable happens to have is nothing for a reference.
fn without_environment(arg: clap::Arg) -> clap::Arg {
    arg.hide_env_values(true)
}

fn tidy(help: &str) -> String {
    let lines: Vec<_> = help.trim().lines().map(str::trim_end).collect();
    lines.join("\n") + "\n"
}

#[test]
fn the_reference_says_what_the_program_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/cli.md");
    let page = std::fs::read_to_string(path).expect("docs/cli.md");
    let (before, rest) = page.split_once(BEGIN).expect("where the reference begins");
    let (_, after) = rest.split_once(END).expect("where the reference ends");
    let wanted = format!("{before}{BEGIN}{}{END}{after}", reference());
    if std::env::var_os("CARREL_WRITE_REFERENCE").is_some() {
        std::fs::write(path, wanted).expect("docs/cli.md can be written");
    } else {
        assert!(
            page == wanted,
            "docs/cli.md is out of date: CARREL_WRITE_REFERENCE=1 cargo test -p carrel-cli reference"
        );
    }
}
