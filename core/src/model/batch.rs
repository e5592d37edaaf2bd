//! What batch jobs run, and where what they write goes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::ids::{JobId, NodeName, UserName};
use super::mail::MailWish;
use super::session::ContainerOptions;

/// Where a job's output goes when nothing else is asked for, in its working directory.
pub const DEFAULT_OUTPUT: &str = "carrel-%j.out";
/// The same of a task of an array.
pub const DEFAULT_ARRAY_OUTPUT: &str = "carrel-%A_%a.out";
/// What Slurm writes for the array index of a job that is in no array (`NO_VAL`).
pub const NO_INDEX: u32 = 4_294_967_294;
/// Widest number that a pattern may ask for, as in Slurm.
const MAX_WIDTH: usize = 10;

/// What a batch job runs, and in what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// The command and its arguments; of a script, its arguments only.
    pub command: Vec<String>,
    /// A script with the interpreter in its first line, as it was when it was submitted.
    #[serde(default)]
    pub script: Option<String>,
    /// Image reference.
    pub image: String,
    /// Variables, besides the allocation's own.
    pub env: BTreeMap<String, String>,
    /// Working directory; empty: the home.
    pub workdir: String,
    /// What else its containers are to be.
    pub container: ContainerOptions,
    /// Where its output goes.
    #[serde(default)]
    pub output: Output,
    /// From where it was submitted.
    #[serde(default)]
    pub submitted_from: Place,
    /// The job from inside of which it was submitted; none: from outside.
    #[serde(default)]
    pub submitted_by: Option<JobId>,
    /// What its user wants to be told by mail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mail: Option<MailWish>,
    /// What its user says of it: for people and their programs; empty: nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub comment: String,
    /// Made by the client: a repeated request with one key has one effect; empty: not repeated.
    #[serde(default)]
    pub request_key: String,
}

/// Where the output of a batch job goes, beside what its node keeps of it: files, as their names are asked for
/// ([`file_name`]).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Output {
    /// Of standard output; empty: [`DEFAULT_OUTPUT`].
    pub stdout: String,
    /// Of standard error; empty: where standard output goes.
    pub stderr: String,
    /// Whether it is added to what the files hold; none: only where the job runs again.
    pub append: Option<bool>,
}

/// A directory of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Place {
    /// The host's name.
    pub host: String,
    /// The directory, absolute.
    pub directory: String,
}

/// What the first node of a batch job runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchRun {
    /// As [`Batch::command`].
    pub command: Vec<String>,
    /// As [`Batch::script`].
    pub script: Option<String>,
    /// File of standard output; a relative one is in the working directory.
    pub stdout: String,
    /// File of standard error; empty: where standard output goes.
    pub stderr: String,
    /// The files' content stays, and the output comes after it.
    pub append: bool,
}

/// What the patterns in a file's name stand for.
#[derive(Clone, Copy, Debug)]
pub struct OutputOf<'a> {
    /// `%j`, and `%A` of what is in no array.
    pub job: JobId,
    /// The array, `%A`, and the task's index, `%a`; none: it is in none.
    pub task: Option<(JobId, u32)>,
    /// `%x`
    pub name: &'a str,
    /// `%u`
    pub user: &'a UserName,
    /// `%N`
    pub node: &'a NodeName,
}

/// The name of an output file, with its patterns filled in as `man sbatch` says ("filename pattern"): `%%`, `%A`, `%a`,
/// `%b`, `%J`, `%j`, `%N`, `%n`, `%s`, `%t`, `%u`, `%x`, numbers padded with zeros where a width stands before the letter. A
/// backslash anywhere leaves the name as it is, less the backslashes. Anything else stays as it is written.
pub fn file_name(pattern: &str, of: OutputOf<'_>) -> String {
    if pattern.contains('\\') {
        return pattern.replace('\\', "");
    }
    let index = of.task.map_or(NO_INDEX, |(_, index)| index);
    fill(pattern, |letter, number| match letter {
        '%' => Some("%".to_owned()),
        'j' => Some(number(of.job.0)),
        'A' => Some(number(of.task.map_or(of.job, |(array, _)| array).0)),
        'J' => Some(format!("{}.batch", of.job)),
        's' => Some("batch".to_owned()),
        'a' => Some(number(u64::from(index))),
        'b' => Some(number(u64::from(index % 10))),
        'n' | 't' => Some(number(0)),
        'N' => Some(short(of.node).to_owned()),
        'u' => Some(of.user.to_string()),
        'x' => Some(of.name.to_owned()),
        _ => None,
    })
}

/// A text with its patterns filled in: a percent sign, digits that say how wide a number is, and a letter. `with` gives what
/// a letter stands for, with the number's width applied by its second argument; none: the pattern stays.
pub fn fill(pattern: &str, mut with: impl FnMut(char, &dyn Fn(u64) -> String) -> Option<String>) -> String {
    let mut filled = String::with_capacity(pattern.len() + 16);
    let mut rest = pattern;
    while let Some(at) = rest.find('%') {
        filled.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let digits = after.len() - after.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let width = after[..digits].parse().unwrap_or(0_usize).min(MAX_WIDTH);
        let number = |value: u64| format!("{value:0width$}");
        // A percent sign has no width.
        let letter = after[digits..]
            .chars()
            .next()
            .filter(|letter| *letter != '%' || digits == 0);
        if let Some((letter, meant)) = letter.and_then(|letter| Some((letter, with(letter, &number)?))) {
            filled.push_str(&meant);
            rest = &after[digits + letter.len_utf8()..];
        } else {
            filled.push('%');
            rest = after;
        }
    }
    filled + rest
}

/// A host's name without its domain.
fn short(node: &NodeName) -> &str {
    let name = node.as_str();
    name.split_once('.').map_or(name, |(short, _)| short)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_filled_in_as_in_slurm() {
        let user: UserName = "alice".parse().expect("a name");
        let node: NodeName = "n7.example.org".parse().expect("a name");
        let of = OutputOf {
            job: JobId(42),
            task: None,
            name: "train",
            user: &user,
            node: &node,
        };
        for (pattern, name) in [
            ("carrel-%j.out", "carrel-42.out"),
            ("/data/%u/%x-%6j.log", "/data/alice/train-000042.log"),
            ("%A_%a", "42_4294967294"),
            ("%N.%n.%t.%s.%J", "n7.0.0.batch.42.batch"),
            ("100%%", "100%"),
            ("%", "%"),
            ("%5", "%5"),
            ("%q%é%j", "%q%é42"),
            ("%99999999999999999999j", "42"),
            ("a\\%j", "a%j"),
            ("%12j", "0000000042"),
            ("", ""),
        ] {
            assert_eq!(file_name(pattern, of), name, "{pattern}");
        }
        let task = OutputOf {
            task: Some((JobId(40), 13)),
            ..of
        };
        for (pattern, name) in [
            (DEFAULT_ARRAY_OUTPUT, "carrel-40_13.out"),
            ("%j/%4A.%4a.%b", "42/0040.0013.3"),
        ] {
            assert_eq!(file_name(pattern, task), name, "{pattern}");
        }
    }
}
