//! Lists as traces have them: text with commas and a line of names, gzipped or not.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use flate2::read::MultiGzDecoder;

/// Largest text that is read, unpacked: the published traces have some ten megabytes.
const MAX_LIST_BYTES: u64 = 256 << 20;

/// A line of a list.
pub struct Row<'a> {
    columns: &'a [&'a str],
    fields: Vec<&'a str>,
}

impl<'a> Row<'a> {
    /// What stands in a column; none: the list has no such column. What is not a number to those who made the
    /// list is nothing.
    pub fn text(&self, column: &str) -> Option<&'a str> {
        let at = self.columns.iter().position(|name| *name == column)?;
        let text = self.fields.get(at).copied().unwrap_or_default();
        Some(if text == "nan" { "" } else { text })
    }

    /// A whole number.
    pub fn number(&self, column: &str) -> anyhow::Result<u32> {
        let text = self.text(column).unwrap_or_default();
        let number = text.parse().ok();
        number.with_context(|| format!("{column}: {text:?} is not a whole number of up to {}", u32::MAX))
    }
}

/// Reads a list, packed or not.
pub fn read<T>(
    path: &Path,
    needed: &[&str],
    mut parse: impl FnMut(&Row<'_>) -> anyhow::Result<T>,
) -> anyhow::Result<Vec<T>> {
    let place = path.display();
    let text = unpacked(path).with_context(|| place.to_string())?;
    let mut lines = text.lines().enumerate();
    let header = lines.next().map_or("", |(_, line)| line);
    let columns: Vec<&str> = header
        .trim_start_matches('\u{feff}')
        .split(',')
        .map(str::trim)
        .collect();
    for column in needed {
        ensure!(columns.contains(column), "{place}:1: names no column {column}");
    }
    let mut rows = Vec::new();
    for (number, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let mut row = || {
            ensure!(!line.contains('"'), "quotes are not understood");
            ensure!(
                fields.len() == columns.len(),
                "{} fields, and {} names in the first line",
                fields.len(),
                columns.len()
            );
            parse(&Row {
                columns: &columns,
                fields: fields.clone(),
            })
        };
        let row = row().with_context(|| format!("{place}:{}", number + 1))?;
        rows.push(row);
    }
    ensure!(!rows.is_empty(), "{place}: nothing but its first line");
    Ok(rows)
}

/// A text, packed or not.
pub fn unpacked(path: &Path) -> anyhow::Result<String> {
    let mut packed = Vec::new();
    File::open(path)?
        .take(MAX_LIST_BYTES + 1)
        .read_to_end(&mut packed)?;
    let mut text = String::new();
    let read = if packed.starts_with(&[0x1f, 0x8b]) {
        MultiGzDecoder::new(&packed[..])
            .take(MAX_LIST_BYTES + 1)
            .read_to_string(&mut text)?
    } else {
        (&packed[..]).read_to_string(&mut text)?
    };
    if read as u64 > MAX_LIST_BYTES {
        bail!("larger than {} MiB", MAX_LIST_BYTES >> 20);
    }
    Ok(text)
}
