//! Options as Slurm's commands take them: short ones in a row, long ones by any beginning that is plain, values glued or
//! apart, and words between them (getopt_long(3)).

use crate::error::{CliError, Result};

/// Whether an option has a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// None.
    Nothing,
    /// One: `-o X`, `-oX`, `--format X`, `--format=X`.
    Value,
    /// One or none: `-i5`, `--iterate=5`.
    Perhaps,
}

/// What becomes of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It does what it does in Slurm.
    Used,
    /// It is taken, and nothing is said: without it the same comes out, in Slurm on a cluster like this one as well.
    Taken,
    /// It is taken, and means nothing here; that is said.
    Noted,
    /// It is known, and cannot be had here.
    Refused,
}

/// One option.
#[derive(Clone, Copy, Debug)]
pub struct Opt {
    /// `-o`
    pub short: Option<char>,
    /// `--format`, by which it is asked for.
    pub long: &'static str,
    /// Its value.
    pub takes: Takes,
    /// What becomes of it.
    pub is: Standing,
    /// What it does, or why it does not.
    pub text: &'static str,
}

const fn opt(short: char, long: &'static str, takes: Takes, is: Standing, text: &'static str) -> Opt {
    Opt {
        short: if short == NONE { None } else { Some(short) },
        long,
        takes,
        is,
        text,
    }
}

/// In the place of a short name: there is none.
pub const NONE: char = ' ';

/// An option that does what it does in Slurm.
pub const fn used(short: char, long: &'static str, takes: Takes, text: &'static str) -> Opt {
    opt(short, long, takes, Standing::Used, text)
}

/// One that changes nothing.
pub const fn taken(short: char, long: &'static str, takes: Takes, why: &'static str) -> Opt {
    opt(short, long, takes, Standing::Taken, why)
}

/// One that means nothing here.
pub const fn noted(short: char, long: &'static str, takes: Takes, why: &'static str) -> Opt {
    opt(short, long, takes, Standing::Noted, why)
}

/// One that cannot be had here.
pub const fn refused(short: char, long: &'static str, takes: Takes, why: &'static str) -> Opt {
    opt(short, long, takes, Standing::Refused, why)
}

/// A command as its users see it.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// `squeue`
    pub name: &'static str,
    /// What follows the name.
    pub line: &'static str,
    /// What it does, in a sentence.
    pub about: &'static str,
    /// Its options.
    pub options: &'static [Opt],
}

/// What is said of an option that Slurm has and one cluster cannot mean.
pub const ONE_CLUSTER: &str = "there is one cluster";
/// What is said of more or less talk.
pub const NO_MORE_TALK: &str = "nothing more is said";

/// What was given.
#[derive(Debug, Default)]
pub struct Given {
    /// By long name, in order.
    options: Vec<(&'static str, String)>,
    /// What is no option.
    pub words: Vec<String>,
    /// Options that mean nothing here, and why.
    pub notes: Vec<String>,
}

impl Given {
    /// Whether an option is there.
    pub fn has(&self, long: &str) -> bool {
        self.options.iter().any(|(name, _)| *name == long)
    }

    /// The value of an option: the last one counts.
    pub fn value(&self, long: &str) -> Option<&str> {
        let mut given = self.options.iter().rev();
        given
            .find(|(name, _)| *name == long)
            .map(|(_, value)| value.as_str())
    }

    /// All its values, taken apart at commas.
    pub fn list(&self, long: &str) -> Vec<String> {
        let given = self.options.iter().filter(|(name, _)| *name == long);
        let parts = given.flat_map(|(_, value)| value.split(','));
        parts
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .map(str::to_owned)
            .collect()
    }

    /// All its values as one, with commas between them.
    pub fn all(&self, long: &str) -> String {
        let given = self.options.iter().filter(|(name, _)| *name == long);
        let values: Vec<&str> = given.map(|(_, value)| value.as_str()).collect();
        values.join(",")
    }

    /// The place of an option among all: of two that say the same the later one counts.
    pub fn place(&self, long: &str) -> Option<usize> {
        self.options.iter().rposition(|(name, _)| *name == long)
    }

    /// As if an option had been given, from the environment.
    pub fn set(&mut self, long: &'static str, value: &str) {
        self.options.insert(0, (long, value.to_owned()));
    }
}

/// Reads a command line. With `until_word` what follows the first word is no option any more.
///
/// # Errors
/// An option that there is not, or that is not had here, and values that are missing or too many.
pub fn parse(usage: &Usage, args: &[String], until_word: bool) -> Result<Given> {
    let mut given = Given::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--" {
            given.words.extend(args.by_ref().cloned());
        } else if let Some(long) = arg.strip_prefix("--") {
            let (name, value) = long
                .split_once('=')
                .map_or((long, None), |(name, value)| (name, Some(value)));
            let option = named(usage, name)?;
            let value = match (option.takes, value) {
                (Takes::Nothing, Some(_)) => {
                    return Err(usage.wrong(&format!("option '--{}' doesn't allow an argument", option.long)));
                }
                (Takes::Nothing | Takes::Perhaps, None) => String::new(),
                (Takes::Value | Takes::Perhaps, Some(value)) => value.to_owned(),
                (Takes::Value, None) => args.next().cloned().ok_or_else(|| {
                    usage.wrong(&format!("option '--{}' requires an argument", option.long))
                })?,
            };
            given.take(usage, option, value)?;
        } else if arg.len() > 1 && arg.starts_with('-') {
            let mut letters = arg[1..].chars();
            while let Some(letter) = letters.next() {
                let option = usage.options.iter().find(|one| one.short == Some(letter));
                let option = option.ok_or_else(|| usage.wrong(&format!("invalid option -- '{letter}'")))?;
                let rest = letters.as_str();
                let value = match option.takes {
                    Takes::Nothing => {
                        given.take(usage, option, String::new())?;
                        continue;
                    }
                    Takes::Value if rest.is_empty() => args
                        .next()
                        .cloned()
                        .ok_or_else(|| usage.wrong(&format!("option requires an argument -- '{letter}'")))?,
                    Takes::Value | Takes::Perhaps => rest.strip_prefix('=').unwrap_or(rest).to_owned(),
                };
                given.take(usage, option, value)?;
                break;
            }
        } else {
            given.words.push(arg.clone());
            if until_word {
                given.words.extend(args.by_ref().cloned());
            }
        }
    }
    Ok(given)
}

impl Given {
    fn take(&mut self, usage: &Usage, option: &Opt, value: String) -> Result<()> {
        match option.is {
            Standing::Used => self.options.push((option.long, value)),
            Standing::Taken => {}
            Standing::Noted => self
                .notes
                .push(format!("--{} is ignored: {}", option.long, option.text)),
            Standing::Refused => {
                return Err(usage.wrong(&format!(
                    "option '--{}' cannot be had here: {}",
                    option.long, option.text
                )));
            }
        }
        Ok(())
    }
}

/// By its whole name, or a beginning that no other has.
fn named<'a>(usage: &'a Usage, name: &str) -> Result<&'a Opt> {
    let options = || usage.options.iter();
    if let Some(exact) = options().find(|one| one.long == name) {
        return Ok(exact);
    }
    // Slurm takes several of them in the plural as well, and in the singular.
    let other =
        |one: &&Opt| one.long.strip_suffix('s') == Some(name) || name.strip_suffix('s') == Some(one.long);
    if let Some(other) = options().find(other) {
        return Ok(other);
    }
    let mut begun = options().filter(|one| !name.is_empty() && one.long.starts_with(name));
    match (begun.next(), begun.next()) {
        (Some(only), None) => Ok(only),
        (Some(_), Some(_)) => Err(usage.wrong(&format!("option '--{name}' is ambiguous"))),
        (None, _) => Err(usage.wrong(&format!("unrecognized option '--{name}'"))),
    }
}

impl Usage {
    /// A mistake on the command line.
    pub fn wrong(&self, what: &str) -> CliError {
        CliError::usage(what).hint(format!("Try \"{} --help\" for more information", self.name))
    }

    /// What `--help` prints.
    pub fn help(&self) -> String {
        let mut text = format!(
            "Usage: {} {}\n\n{}\n\nOptions:\n",
            self.name, self.line, self.about
        );
        for option in self.options.iter().filter(|one| one.is == Standing::Used) {
            text += &format!("  {:<28} {}\n", spelled(option), option.text);
        }
        let others: Vec<&str> = self
            .options
            .iter()
            .filter(|one| matches!(one.is, Standing::Taken | Standing::Noted))
            .map(|one| one.long)
            .collect();
        if !others.is_empty() {
            text += &format!("\nTaken, and without a meaning here: --{}\n", others.join(", --"));
        }
        text
    }
}

/// `-o, --format=X`
pub fn spelled(option: &Opt) -> String {
    let value = match option.takes {
        Takes::Nothing => "",
        Takes::Value => "=X",
        Takes::Perhaps => "[=X]",
    };
    match option.short {
        Some(short) => format!("-{short}, --{}{value}", option.long),
        None => format!("    --{}{value}", option.long),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USAGE: Usage = Usage {
        name: "squeue",
        line: "[OPTIONS]",
        about: "Lists.",
        options: &[
            used('o', "format", Takes::Value, "what is shown"),
            used('h', "noheader", Takes::Nothing, "no header"),
            used('i', "iterate", Takes::Perhaps, "again"),
            used(NONE, "nodes", Takes::Value, "which"),
            noted('M', "clusters", Takes::Value, ONE_CLUSTER),
            taken('a', "all", Takes::Nothing, "nothing is hidden"),
            refused(NONE, "yaml", Takes::Nothing, "JSON is"),
        ],
    };

    fn read(line: &[&str]) -> Result<Given> {
        let words: Vec<String> = line.iter().map(|word| (*word).to_owned()).collect();
        parse(&USAGE, &words, false)
    }

    #[test]
    fn options_are_written_as_getopt_reads_them() {
        let given = read(&["-ho%i", "x", "--format", "%t,%u", "--nodes=a,b", "--", "-h"]).expect("read");
        assert!(given.has("noheader"));
        assert_eq!(given.value("format"), Some("%t,%u"));
        assert_eq!(given.list("nodes"), ["a", "b"]);
        assert_eq!(given.words, ["x", "-h"]);
        assert!(read(&["--node=a"]).expect("read").has("nodes"));
        assert!(read(&["--formats=a"]).expect("read").has("format"));
        let given = read(&["--noh", "-o", "%.18i", "-i5", "--iterate"]).expect("read");
        assert!(given.has("noheader"));
        assert_eq!(
            (given.value("format"), given.value("iterate")),
            (Some("%.18i"), Some(""))
        );
    }

    #[test]
    fn an_option_that_there_is_not_is_named() {
        for (line, said) in [
            (&["--nonsense"][..], "unrecognized option '--nonsense'"),
            (&["--no"], "option '--no' is ambiguous"),
            (&["-hZ"], "invalid option -- 'Z'"),
            (&["-o"], "option requires an argument -- 'o'"),
            (&["--format"], "option '--format' requires an argument"),
            (&["--noheader=1"], "option '--noheader' doesn't allow an argument"),
            (&["--yaml"], "option '--yaml' cannot be had here: JSON is"),
        ] {
            let error = read(line).expect_err(said);
            assert_eq!(error.message, said);
            assert!(error.hint.is_some());
        }
    }

    #[test]
    fn what_means_nothing_here_is_said() {
        let given = read(&["-M", "all"]).expect("taken");
        assert_eq!(given.notes, ["--clusters is ignored: there is one cluster"]);
        // What programs read is not mixed with what changes nothing.
        let given = read(&["-a", "--all"]).expect("taken");
        assert_eq!((given.notes.len(), given.words.len()), (0, 0));
    }
}
