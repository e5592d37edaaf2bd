//! Another program for each task (`man srun`, MULTIPLE PROGRAM CONFIGURATION): what `--multi-prog` reads.

use carrel_core::model::indices::IndexSet;

use crate::error::{CliError, Result};

/// Chooses a task's program.
const SHELL: &str = "/bin/sh";
/// Exit code of a task without a program, as of a program that is not found.
const NOT_FOUND: u8 = 127;

/// Programs for the tasks from one to another.
struct Range {
    first: u32,
    /// None: all that no line before is for.
    last: Option<u32>,
    /// For a shell.
    program: String,
}

/// The command that every task runs so that each runs its own: a shell that chooses by `SLURM_PROCID`. What follows the
/// file's name on the command line comes after each program's own arguments.
///
/// # Errors
/// A line is not `TASKS PROGRAM [ARGUMENT…]`, or two are for the same task.
pub fn command(name: &str, text: &str, arguments: &[String]) -> Result<Vec<String>> {
    let mut ranges: Vec<Range> = Vec::new();
    for (line, number) in text.lines().map(str::trim).zip(1_u32..) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |why: &str| {
            CliError::usage(format!("{name}, line {number}: {why}"))
                .hint("a line is TASKS PROGRAM [ARGUMENT…], as in `0-3,8 ./train --rank %t`")
        };
        let (tasks, program) = line
            .split_once(char::is_whitespace)
            .ok_or_else(|| wrong("no program is named"))?;
        let words = words(program).ok_or_else(|| wrong("a quote is not closed"))?;
        for (first, last, offset) in tasks_of(tasks).map_err(|why| wrong(&why))? {
            let taken = |other: &Range| match (other.last, last) {
                (Some(end), Some(own)) => other.first <= own && first <= end,
                (None, None) => true,
                // The others' are for whom no line is.
                (None, Some(_)) | (Some(_), None) => false,
            };
            if ranges.iter().any(taken) {
                return Err(wrong("another line is for the same tasks"));
            }
            ranges.push(Range {
                first,
                last,
                program: words
                    .iter()
                    .map(|word| word.for_shell(first, offset))
                    .collect::<Vec<_>>()
                    .join(" "),
            });
        }
    }
    if ranges.is_empty() {
        return Err(CliError::usage(format!("{name} has no program for any task")));
    }
    ranges.sort_by_key(|range| (range.last.is_none(), range.first));
    let mut script = String::new();
    for range in &ranges {
        let condition = match range.last {
            Some(last) => format!(
                "[ \"$SLURM_PROCID\" -ge {} ] && [ \"$SLURM_PROCID\" -le {last} ]",
                range.first
            ),
            None => "true".to_owned(),
        };
        script += &format!("if {condition}; then exec {} \"$@\"; fi\n", range.program);
    }
    script += &format!(
        "echo \"{}: no program is for task $SLURM_PROCID\" >&2; exit {NOT_FOUND}\n",
        name.replace(['"', '$', '`', '\\'], "?")
    );
    let shell = [SHELL, "-c", &script, SHELL].map(str::to_owned);
    Ok(shell.into_iter().chain(arguments.iter().cloned()).collect())
}

/// Ranges without gaps, each with its first one's place in all.
fn tasks_of(text: &str) -> std::result::Result<Vec<(u32, Option<u32>, u32)>, String> {
    if text == "*" {
        return Ok(vec![(0, None, 0)]);
    }
    let set: IndexSet = text
        .parse()
        .map_err(|_| format!("{text:?} are no tasks: write 0-3,8 or *"))?;
    let mut ranges: Vec<(u32, Option<u32>, u32)> = Vec::new();
    for (task, place) in set.iter().zip(0_u32..) {
        match ranges.last_mut() {
            Some((_, Some(last), _)) if *last + 1 == task => *last = task,
            _ => ranges.push((task, Some(task), place)),
        }
    }
    Ok(ranges)
}

/// A word of a line: what stood in quotes is taken as it is.
#[derive(Debug, Default, PartialEq, Eq)]
struct Word(Vec<Piece>);

#[derive(Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    /// `%t`: the task's rank.
    Task,
    /// `%o`: its place in what the line is for.
    Offset,
}

impl Word {
    fn push(&mut self, c: char) {
        match self.0.last_mut() {
            Some(Piece::Text(text)) => text.push(c),
            _ => self.0.push(Piece::Text(c.into())),
        }
    }

    fn for_shell(&self, first: u32, offset: u32) -> String {
        let pieces = self.0.iter().map(|piece| match piece {
            Piece::Text(text) => format!("'{}'", text.replace('\'', r"'\''")),
            Piece::Task => "\"$SLURM_PROCID\"".to_owned(),
            Piece::Offset => format!("\"$((SLURM_PROCID - {first} + {offset}))\""),
        });
        let all: String = pieces.collect();
        if all.is_empty() { "''".to_owned() } else { all }
    }
}

/// Words between blanks; none: a quote is open at the end.
fn words(text: &str) -> Option<Vec<Word>> {
    let mut words = Vec::new();
    let mut word: Option<Word> = None;
    let mut quote = None;
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (None, '%') => {
                let word = word.get_or_insert_default();
                match rest.clone().next() {
                    Some('t') => word.0.push(Piece::Task),
                    Some('o') => word.0.push(Piece::Offset),
                    _ => {
                        word.push('%');
                        continue;
                    }
                }
                rest.next();
            }
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a task of this rank would write, by a real shell.
    fn ran(text: &str, rank: u32, more: &[&str]) -> (String, Option<i32>) {
        let more: Vec<String> = more.iter().map(|&word| word.to_owned()).collect();
        let command = command("prog.conf", text, &more).expect("a file");
        let output = std::process::Command::new(&command[0])
            .args(&command[1..])
            .env("SLURM_PROCID", rank.to_string())
            .output()
            .expect("a shell");
        (
            String::from_utf8(output.stdout).expect("text"),
            output.status.code(),
        )
    }

    #[test]
    fn each_task_runs_its_own_program() {
        let text = "# ranks   program\n\
            4-6       printf '%s|' task:%t 'off%set' %o\n\
            0,2       echo   zero\n\n\
            *         echo rest %t '%t' \"a  b\" $HOME\n";
        assert_eq!(ran(text, 5, &[]).0, "task:5|off%set|1|");
        assert_eq!(ran(text, 0, &["more  of", "it"]).0, "zero more  of it\n");
        assert_eq!(ran(text, 2, &[]).0, "zero\n");
        assert_eq!(ran(text, 1, &[]).0, "rest 1 %t a  b $HOME\n");
        let places = "0-1,5-6 echo %o\n";
        assert_eq!(
            (ran(places, 1, &[]).0, ran(places, 6, &[]).0),
            ("1\n".into(), "3\n".into())
        );
        assert_eq!(ran(places, 3, &[]), (String::new(), Some(127)));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, why) in [
            ("", "no program for any task"),
            ("\n0-3", "line 2: no program"),
            ("0-3 a\n2 b", "line 2: another line"),
            ("* a\n* b", "line 2: another line"),
            ("x a", "\"x\" are no tasks"),
            ("0 echo 'a", "line 1: a quote"),
        ] {
            let error = command("prog.conf", text, &[]).expect_err(text).to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
