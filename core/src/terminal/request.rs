//! What a client asks of the terminals of a session: the name of an SSH subsystem.
//!
//! ```text
//! carrel-terminal [list] [new] [id=N] [name=NAME] [command=LINE] [read-only] [marks] [seen=N] [job=N]
//! ```
//!
//! With neither `new`, `id` nor `name`, the terminal that was used last, or a new one if there is
//! none. A command line has every byte but letters, digits and `-._/` as `%XX`.

use std::fmt::{self, Write as _};
use std::str::FromStr;

use thiserror::Error;

/// The subsystem's name, and first word.
pub const SUBSYSTEM: &str = "carrel-terminal";

/// Longest command line, as [`Request`] takes it: what a login shell's `-c` is given at most.
const MAX_COMMAND: usize = 64 * 1024;

/// A terminal's name: up to 32 letters, digits and hyphens, the first a letter, so that no name is
/// a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TerminalName(String);

impl TerminalName {
    const MAX: usize = 32;

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for TerminalName {
    type Err = RequestError;

    fn from_str(text: &str) -> Result<Self, RequestError> {
        let valid = text.len() <= Self::MAX
            && text.starts_with(|c: char| c.is_ascii_lowercase())
            && text
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if valid {
            Ok(Self(text.to_owned()))
        } else {
            Err(RequestError::Name(text.to_owned()))
        }
    }
}

/// Which terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// A new one.
    New {
        /// Its name.
        name: Option<TerminalName>,
        /// A command line for the user's shell; else a login shell.
        command: Option<Vec<u8>>,
    },
    /// The one that was used last, or a new one.
    Latest,
    /// This one.
    Number(u32),
    /// The newest of this name.
    Named(TerminalName),
}

/// A request to see a terminal, and to type into it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attach {
    /// Which one.
    pub which: Which,
    /// Only to see.
    pub read_only: bool,
    /// [`Mark`](super::Mark)s are wanted.
    pub marks: bool,
    /// Its output is known up to this position.
    pub seen: Option<u64>,
    /// The job that it is expected in.
    pub job: Option<u64>,
}

impl Attach {
    /// A plain request for a terminal.
    pub fn new(which: Which) -> Self {
        Self {
            which,
            read_only: false,
            marks: false,
            seen: None,
            job: None,
        }
    }
}

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// All terminals, as a `carrel.v1.TerminalList` on the channel.
    List,
    /// One terminal.
    Attach(Attach),
}

/// Why a subsystem's name is no request.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RequestError {
    /// Another subsystem.
    #[error("not the subsystem {SUBSYSTEM}")]
    OtherSubsystem,
    /// A word that means nothing.
    #[error("{0:?} is no option of {SUBSYSTEM}")]
    Word(String),
    /// A value that is none.
    #[error("{0}={1:?}: not a value for it")]
    Value(&'static str, String),
    /// No name of a terminal.
    #[error(
        "{0:?} is no name for a terminal: up to 32 lowercase letters, digits and hyphens, a letter first"
    )]
    Name(String),
    /// Options that exclude each other.
    #[error("{0} does not go with {1}")]
    Conflict(&'static str, &'static str),
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SUBSYSTEM)?;
        let attach = match self {
            Self::List => return f.write_str(" list"),
            Self::Attach(attach) => attach,
        };
        match &attach.which {
            Which::New { name, command } => {
                f.write_str(" new")?;
                if let Some(name) = name {
                    write!(f, " name={}", name.as_str())?;
                }
                if let Some(command) = command {
                    write!(f, " command={}", escape(command))?;
                }
            }
            Which::Latest => {}
            Which::Number(number) => write!(f, " id={number}")?,
            Which::Named(name) => write!(f, " name={}", name.as_str())?,
        }
        if attach.read_only {
            f.write_str(" read-only")?;
        }
        if attach.marks {
            f.write_str(" marks")?;
        }
        if let Some(seen) = attach.seen {
            write!(f, " seen={seen}")?;
        }
        if let Some(job) = attach.job {
            write!(f, " job={job}")?;
        }
        Ok(())
    }
}

impl FromStr for Request {
    type Err = RequestError;

    fn from_str(text: &str) -> Result<Self, RequestError> {
        let mut words = text.split_ascii_whitespace();
        if words.next() != Some(SUBSYSTEM) {
            return Err(RequestError::OtherSubsystem);
        }
        let (mut list, mut new) = (false, false);
        let (mut id, mut name, mut command) = (None, None, None);
        let mut attach = Attach::new(Which::Latest);
        for word in words {
            match word.split_once('=') {
                None if word == "list" => list = true,
                None if word == "new" => new = true,
                None if word == "read-only" => attach.read_only = true,
                None if word == "marks" => attach.marks = true,
                Some(("id", value)) => id = Some(number("id", value)?),
                Some(("name", value)) => name = Some(value.parse()?),
                Some(("command", value)) => command = Some(unescape(value)?),
                Some(("seen", value)) => attach.seen = Some(number("seen", value)?),
                Some(("job", value)) => attach.job = Some(number("job", value)?),
                None | Some(_) => return Err(RequestError::Word(word.to_owned())),
            }
        }
        if list {
            return Ok(Self::List);
        }
        attach.which = match (new, id, name, command) {
            (true, None, name, command) => Which::New { name, command },
            (true, Some(_), ..) => return Err(RequestError::Conflict("new", "id")),
            (false, .., Some(_)) => return Err(RequestError::Conflict("command", "an old terminal")),
            (false, Some(_), Some(_), None) => return Err(RequestError::Conflict("id", "name")),
            (false, Some(id), None, None) => Which::Number(id),
            (false, None, Some(name), None) => Which::Named(name),
            (false, None, None, None) => Which::Latest,
        };
        if new && attach.read_only {
            return Err(RequestError::Conflict("read-only", "new"));
        }
        Ok(Self::Attach(attach))
    }
}

fn number<T: FromStr>(name: &'static str, value: &str) -> Result<T, RequestError> {
    value
        .parse()
        .map_err(|_| RequestError::Value(name, value.to_owned()))
}

fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._/".contains(byte) {
            text.push(char::from(*byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(text, "%{byte:02x}");
        }
    }
    text
}

fn unescape(text: &str) -> Result<Vec<u8>, RequestError> {
    let wrong = || RequestError::Value("command", text.chars().take(64).collect());
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        if *first == b'%' {
            let (digits, after) = after.split_at_checked(2).ok_or_else(wrong)?;
            let digits = std::str::from_utf8(digits).map_err(|_| wrong())?;
            bytes.push(u8::from_str_radix(digits, 16).map_err(|_| wrong())?);
            rest = after;
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    if bytes.is_empty() || bytes.len() > MAX_COMMAND || bytes.contains(&0) {
        return Err(wrong());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_arrives_as_it_was_asked() {
        let name = || "build".parse::<TerminalName>().unwrap();
        let command = "sh -c 'echo \"ü % = \\\n'".as_bytes().to_vec();
        for which in [
            Which::Latest,
            Which::Number(3),
            Which::Named(name()),
            Which::New {
                name: None,
                command: None,
            },
            Which::New {
                name: Some(name()),
                command: Some(command),
            },
        ] {
            let mut attach = Attach::new(which);
            attach.marks = true;
            attach.seen = Some(u64::MAX);
            attach.job = Some(17);
            let request = Request::Attach(attach);
            let text = request.to_string();
            assert_eq!(text.parse(), Ok(request), "{text}");
        }
        assert_eq!(Request::List.to_string().parse(), Ok(Request::List));
        assert_eq!(
            "carrel-terminal id=3 read-only".parse(),
            Ok(Request::Attach(Attach {
                read_only: true,
                ..Attach::new(Which::Number(3))
            }))
        );
    }

    #[test]
    fn nonsense_is_refused_with_what_is_wrong() {
        assert_eq!("sftp".parse::<Request>(), Err(RequestError::OtherSubsystem));
        assert_eq!("".parse::<Request>(), Err(RequestError::OtherSubsystem));
        let error = |words: &str| {
            format!("{SUBSYSTEM} {words}")
                .parse::<Request>()
                .unwrap_err()
                .to_string()
        };
        assert_eq!(error("id=-1"), "id=\"-1\": not a value for it");
        assert_eq!(error("id=1 name=x"), "id does not go with name");
        assert_eq!(error("new read-only"), "read-only does not go with new");
        assert_eq!(error("--help"), "\"--help\" is no option of carrel-terminal");
        assert!(error("name=7").contains("a letter first"));
        for words in [
            "command=ls",
            "new command=%4",
            "new command=%zz",
            "new command=",
            "new command=a%00",
            "new id=1",
            "read-only=yes",
        ] {
            error(words);
        }
    }
}
