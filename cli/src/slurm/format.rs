//! What is shown of what: formats as Slurm's commands read them, and tables by them.

use std::fmt::Write as _;

use crate::error::{CliError, Result};

/// Something that can be shown of a `T`.
#[derive(Debug)]
pub struct Field<T> {
    /// In `%i`; none: it has a long name only.
    pub letter: Option<char>,
    /// Its long name, as sacct prints it.
    pub name: &'static str,
    /// In a header of `%i`.
    pub header: &'static str,
    /// Characters where none are asked for; below zero: at the left.
    pub width: i32,
    /// What it says.
    pub value: fn(&T) -> String,
}

/// A part of a line.
#[derive(Debug)]
pub enum Part<T: 'static> {
    /// As it stands.
    Text(String),
    /// A field.
    Column(Column<T>),
}

/// A field in a line.
#[derive(Debug)]
pub struct Column<T: 'static> {
    /// Which.
    pub field: &'static Field<T>,
    /// Characters; none: as many as it needs.
    pub width: Option<usize>,
    /// At the right.
    pub right: bool,
}

/// What a line is made of.
pub type Layout<T> = Vec<Part<T>>;

/// Reads a format of squeue, sinfo and sprio: `%.18i %-10j`.
///
/// # Errors
/// A letter that stands for nothing, with the command's name.
pub fn letters<T>(text: &str, fields: &'static [Field<T>]) -> Result<Layout<T>> {
    let mut parts = Vec::new();
    let mut plain = String::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            plain.push(c);
            continue;
        }
        if chars.peek() == Some(&'%') {
            chars.next();
            plain.push('%');
            continue;
        }
        let mut right = false;
        // '#' is of another kind of width, which tools do not ask for.
        while let Some(mark) = chars.next_if(|c| matches!(c, '.' | '-' | '#')) {
            right |= mark == '.';
        }
        let mut digits = String::new();
        while let Some(digit) = chars.next_if(char::is_ascii_digit) {
            digits.push(digit);
        }
        let letter = chars
            .next()
            .ok_or_else(|| CliError::usage(format!("the format {text:?} ends within a field")))?;
        let field = fields.iter().find(|field| field.letter == Some(letter));
        let field =
            field.ok_or_else(|| CliError::usage(format!("Invalid job format specification: {letter}")))?;
        if !plain.is_empty() {
            parts.push(Part::Text(std::mem::take(&mut plain)));
        }
        parts.push(Part::Column(Column {
            field,
            width: digits.parse().ok(),
            right,
        }));
    }
    if !plain.is_empty() {
        parts.push(Part::Text(plain));
    }
    Ok(parts)
}

/// Reads a long format of squeue and sinfo: `jobid:.18,name:10,state`; twenty characters where nothing is said.
///
/// # Errors
/// A name that stands for nothing.
pub fn long<T>(text: &str, fields: &'static [Field<T>]) -> Result<Layout<T>> {
    const USUAL: usize = 20;
    let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
    let mut parts = Vec::new();
    for word in words {
        let (name, size) = word.split_once(':').unwrap_or((word, ""));
        let field = named(name, fields)
            .ok_or_else(|| CliError::usage(format!("Invalid job format specification: {name}")))?;
        let rest = size.trim_start_matches(['.', '-']);
        let behind = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        let width = rest[..rest.len() - behind.len()].parse().unwrap_or(USUAL);
        parts.push(Part::Column(Column {
            field,
            width: (width > 0).then_some(width),
            right: size.starts_with('.'),
        }));
        if !behind.is_empty() {
            parts.push(Part::Text(behind.to_owned()));
        }
    }
    Ok(parts)
}

/// Reads a format of sacct, sstat and sshare: `JobID%30,State,Elapsed%-12`. A beginning of a name is the first that has it,
/// and `ALL` all of them.
///
/// # Errors
/// A name that stands for nothing.
pub fn names<T>(words: &[String], fields: &'static [Field<T>]) -> Result<Vec<Column<T>>> {
    let all = |word: &String| word.eq_ignore_ascii_case("all");
    let words: Vec<String> = if words.iter().any(all) {
        fields.iter().map(|field| field.name.to_owned()).collect()
    } else {
        words.to_vec()
    };
    let column = |word: &String| {
        let (name, size) = word.split_once('%').unwrap_or((word, ""));
        let begun = || {
            let begins = |field: &&Field<T>| {
                let start = field.name.get(..name.len());
                !name.is_empty() && start.is_some_and(|start| start.eq_ignore_ascii_case(name))
            };
            fields.iter().find(begins)
        };
        let field = named(name, fields)
            .or_else(begun)
            .ok_or_else(|| CliError::usage(format!("Invalid field requested: \"{name}\"")))?;
        let width: i32 = match size {
            "" => field.width,
            size => size
                .parse()
                .map_err(|_| CliError::usage(format!("{word:?}: after '%' stands a number of characters")))?,
        };
        Ok(Column {
            field,
            width: Some(width.unsigned_abs() as usize),
            right: width >= 0,
        })
    };
    words.iter().map(column).collect()
}

/// By its long name in any case, or the letter's.
fn named<T>(name: &str, fields: &'static [Field<T>]) -> Option<&'static Field<T>> {
    let plain = |name: &str| name.replace(['_', '-', '/'], "").to_ascii_lowercase();
    let wanted = plain(name);
    fields.iter().find(|field| plain(field.name) == wanted)
}

/// A line of a layout: the header's, or that of a `T`.
pub fn line<T>(layout: &Layout<T>, of: Option<&T>) -> String {
    let mut text = String::new();
    for part in layout {
        match part {
            Part::Text(plain) => text.push_str(plain),
            Part::Column(column) => {
                let value = match of {
                    None => column.field.header.to_owned(),
                    Some(of) => clean(&(column.field.value)(of)),
                };
                text.push_str(&fit(&value, column.width, column.right, false));
            }
        }
    }
    text.push('\n');
    text
}

/// How a table of columns is printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Style {
    /// In columns, a line of dashes under the header.
    Columns,
    /// With this between the fields, and at the end as well where said.
    Parsable {
        /// Between them.
        delimiter: String,
        /// At the end, too.
        trailing: bool,
    },
}

/// A table as sacct prints it.
pub fn table<T>(columns: &[Column<T>], rows: &[T], style: &Style, header: bool) -> String {
    let mut text = String::new();
    let mut put = |cells: Vec<String>, marked: bool| match style {
        Style::Parsable { delimiter, trailing } => {
            text.push_str(&cells.join(delimiter));
            if *trailing {
                text.push_str(delimiter);
            }
            text.push('\n');
        }
        Style::Columns => {
            for (cell, column) in cells.iter().zip(columns) {
                let _ = write!(text, "{} ", fit(cell, column.width, column.right, marked));
            }
            text.push('\n');
        }
    };
    if header {
        let names = columns.iter().map(|column| column.field.header.to_owned());
        put(names.collect(), false);
        if *style == Style::Columns {
            let dashes = columns
                .iter()
                .map(|column| "-".repeat(column.width.unwrap_or(column.field.header.len())));
            put(dashes.collect(), false);
        }
    }
    for row in rows {
        let cells = columns.iter().map(|column| clean(&(column.field.value)(row)));
        put(cells.collect(), true);
    }
    text
}

/// Without what would break lines apart.
fn clean(value: &str) -> String {
    crate::output::visible(value)
}

/// In so many characters; what is cut off may be said by a '+'.
fn fit(value: &str, width: Option<usize>, right: bool, marked: bool) -> String {
    let Some(width) = width else {
        return value.to_owned();
    };
    let count = value.chars().count();
    if count > width {
        let kept = if marked { width.saturating_sub(1) } else { width };
        let mut cut: String = value.chars().take(kept).collect();
        if marked {
            cut.push('+');
        }
        return cut;
    }
    if right {
        format!("{value:>width$}")
    } else {
        format!("{value:<width$}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELDS: &[Field<(u32, &str)>] = &[
        Field {
            letter: Some('i'),
            name: "JobID",
            header: "JOBID",
            width: 12,
            value: |job| job.0.to_string(),
        },
        Field {
            letter: Some('j'),
            name: "Name",
            header: "NAME",
            width: 10,
            value: |job| job.1.to_owned(),
        },
    ];

    #[test]
    fn letters_have_widths_and_sides() {
        let layout = letters("%.5i|%4j %%%j", FIELDS).expect("read");
        assert_eq!(line(&layout, None), "JOBID|NAME %NAME\n");
        assert_eq!(line(&layout, Some(&(7, "training"))), "    7|trai %training\n");
        assert!(
            letters("%i %Q", FIELDS)
                .expect_err("no such")
                .message
                .contains("specification: Q")
        );
        assert!(letters("%i %", FIELDS).is_err());
    }

    #[test]
    fn long_names_have_twenty_characters() {
        let layout = long("jobid:.4,name:3,Name", FIELDS).expect("read");
        assert_eq!(
            line(&layout, Some(&(7, "train"))),
            "   7tratrain               \n"
        );
        let marked = long("jobid:2|,name:0/", FIELDS).expect("read");
        assert_eq!(line(&marked, Some(&(7, "train"))), "7 |train/\n");
        assert!(long("nonsense", FIELDS).is_err());
    }

    #[test]
    fn tables_are_as_sacct_has_them() {
        let words: Vec<String> = ["JobID%4", "name%-6"].map(str::to_owned).into();
        let columns = names(&words, FIELDS).expect("read");
        let begun: Vec<String> = ["n", "ALL"].map(str::to_owned).into();
        assert_eq!(
            names(&begun[..1], FIELDS).expect("a beginning")[0].field.name,
            "Name"
        );
        assert_eq!(names(&begun, FIELDS).expect("all").len(), FIELDS.len());
        let rows = [(7, "a"), (12345, "longest")];
        assert_eq!(
            table(&columns, &rows, &Style::Columns, true),
            "JOBI NAME   \n---- ------ \n   7 a      \n123+ longe+ \n"
        );
        let parsable = |trailing| Style::Parsable {
            delimiter: "|".into(),
            trailing,
        };
        assert_eq!(
            table(&columns, &rows, &parsable(false), true),
            "JOBID|NAME\n7|a\n12345|longest\n"
        );
        assert_eq!(table(&columns, &rows[..1], &parsable(true), false), "7|a|\n");
        let unknown = names(&["Nonsense".to_owned()], FIELDS).expect_err("no such");
        assert_eq!(unknown.message, "Invalid field requested: \"Nonsense\"");
    }
}
