//! What commands print on stdout: tables for people, JSON for programs.

use std::io::Write as _;

use clap::ValueEnum;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

use crate::error::{CliError, Result};

/// How data is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people; may change.
    #[default]
    Text,
    /// For programs: one JSON document, its fields as documented.
    Json,
}

/// Prints text to stdout. A reader that has gone away is no error: `carrel ps | head`.
pub fn text(text: impl std::fmt::Display) -> Result<()> {
    write(format_args!("{text}"))
}

/// Prints a JSON document and a newline.
pub fn json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(|e| CliError::failed(format!("JSON: {e}")))?;
    write(format_args!("{text}\n"))
}

fn write(content: std::fmt::Arguments<'_>) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_fmt(content).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(CliError::failed(format!("cannot write to stdout: {error}")))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// A table without lines, one row a line, as `ps` and `squeue` print.
pub fn table<const N: usize>(header: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    grid(header.map(str::to_owned).into(), rows.into_iter().map(Vec::from))
}

/// The same with as many columns as the header has.
pub fn grid(header: Vec<String>, rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header);
    for row in rows {
        table.add_row(row.iter().map(|cell| visible(cell)));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    lines_of(&table)
}

/// Whether no line of a text is longer than so many columns.
pub fn fits(text: &str, columns: usize) -> bool {
    text.lines().all(|line| line.chars().count() <= columns)
}

/// Pairs of a name and a value, one a line; empty values are left out.
pub fn fields(pairs: impl IntoIterator<Item = (&'static str, String)>) -> String {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled);
    for (name, value) in pairs {
        if !value.is_empty() {
            table.add_row([format!("{name}:"), visible(&value)]);
        }
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    lines_of(&table)
}

fn lines_of(table: &Table) -> String {
    table
        .lines()
        .map(|line| line.trim_end().to_owned() + "\n")
        .collect()
}

/// Text from elsewhere without what could drive the reader's terminal.
pub fn visible(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_align_and_end_without_blanks() {
        let text = table(
            ["JOB", "NAME"],
            [["7".into(), "dev".into()], ["100".into(), "x\x1b[2Jy".into()]],
        );
        assert_eq!(text, "JOB  NAME\n7    dev\n100  x [2Jy\n");
    }

    #[test]
    fn fields_leave_out_what_is_empty() {
        assert_eq!(
            fields([
                ("job", "7".into()),
                ("reason", String::new()),
                ("name", "dev".into())
            ]),
            "job:   7\nname:  dev\n"
        );
    }
}
