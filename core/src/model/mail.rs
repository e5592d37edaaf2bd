//! What a job's user is told of it by mail, as sbatch's `--mail-type` and `--mail-user` say it.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Bytes of an address, as SMTP allows (RFC 5321, 4.5.3.1.3), for a few of them.
const MAX_USER: usize = 1_024;

/// What a mail tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum MailEvent {
    /// It runs: all of its containers are ready.
    Begin,
    /// It is over, and did not fail.
    End,
    /// It failed.
    Fail,
    /// It is queued again.
    Requeue,
    /// It has reached its time limit.
    TimeLimit,
    /// So many hundredths of its time are over: 50, 80 or 90.
    TimePart(u8),
}

impl MailEvent {
    /// sbatch's name.
    pub fn name(self) -> String {
        match self {
            Self::Begin => "BEGIN".to_owned(),
            Self::End => "END".to_owned(),
            Self::Fail => "FAIL".to_owned(),
            Self::Requeue => "REQUEUE".to_owned(),
            Self::TimeLimit => "TIME_LIMIT".to_owned(),
            Self::TimePart(part) => format!("TIME_LIMIT_{part}"),
        }
    }

    /// Slurm's words in the subject of a mail.
    pub fn phrase(self) -> String {
        match self {
            Self::Begin => "Began".to_owned(),
            Self::End => "Ended".to_owned(),
            Self::Fail => "Failed".to_owned(),
            Self::Requeue => "Requeued".to_owned(),
            Self::TimeLimit => "Reached time limit".to_owned(),
            Self::TimePart(part) => format!("Reached {part}% of time limit"),
        }
    }
}

/// What mail is sent of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MailTypes {
    /// Of these.
    pub events: BTreeSet<MailEvent>,
    /// Of each task of an array, and not of the array as a whole.
    #[serde(default)]
    pub array_tasks: bool,
}

/// What is no type of mail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no mail of type {0:?}: write BEGIN, END, FAIL, REQUEUE, ALL, TIME_LIMIT, TIME_LIMIT_90, TIME_LIMIT_80, \
     TIME_LIMIT_50, ARRAY_TASKS or NONE, with commas between them"
)]
pub struct BadMailType(String);

impl FromStr for MailTypes {
    type Err = BadMailType;

    /// As sbatch reads them: names with commas between them, in any case; NONE among them is none at all. What has no
    /// counterpart here (INVALID_DEPEND, STAGE_OUT) adds nothing.
    fn from_str(text: &str) -> Result<Self, BadMailType> {
        use MailEvent::{Begin, End, Fail, Requeue, TimeLimit, TimePart};
        let mut types = Self::default();
        let mut none = false;
        for word in text.split(',').map(str::trim) {
            match word.to_ascii_uppercase().as_str() {
                "NONE" => none = true,
                "ALL" => types.events.extend([Begin, End, Fail, Requeue]),
                "BEGIN" => drop(types.events.insert(Begin)),
                "END" => drop(types.events.insert(End)),
                "FAIL" => drop(types.events.insert(Fail)),
                "REQUEUE" => drop(types.events.insert(Requeue)),
                "TIME_LIMIT" => drop(types.events.insert(TimeLimit)),
                "TIME_LIMIT_90" => drop(types.events.insert(TimePart(90))),
                "TIME_LIMIT_80" => drop(types.events.insert(TimePart(80))),
                "TIME_LIMIT_50" => drop(types.events.insert(TimePart(50))),
                "ARRAY_TASKS" => types.array_tasks = true,
                "INVALID_DEPEND" | "STAGE_OUT" => {}
                _ => return Err(BadMailType(word.to_owned())),
            }
        }
        Ok(if none { Self::default() } else { types })
    }
}

impl fmt::Display for MailTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.events.iter().map(|event| event.name());
        let tasks = self.array_tasks.then(|| "ARRAY_TASKS".to_owned());
        let names: Vec<String> = names.chain(tasks).collect();
        f.write_str(if names.is_empty() { "NONE" } else { "" })?;
        f.write_str(&names.join(","))
    }
}

/// What a job's user wants to be told, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MailWish {
    /// Of what.
    pub types: MailTypes,
    /// To whom; empty: the job's owner, by name.
    #[serde(default)]
    pub to: String,
}

impl MailWish {
    /// What is wrong with it, for people; none: nothing. The address is an argument of the operator's program: it is no
    /// option of that, and has no blanks.
    pub fn wrong(&self) -> Option<String> {
        let bad = self.to.starts_with('-') || self.to.chars().any(|c| c.is_control() || c.is_whitespace());
        (bad || self.to.len() > MAX_USER).then(|| {
            format!(
                "{:?} is nobody to send mail to: write a user's name or an address, without blanks",
                self.to
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_read_as_sbatch_reads_them() {
        for (text, meant) in [
            ("ALL", "BEGIN,END,FAIL,REQUEUE"),
            ("end, fail", "END,FAIL"),
            (
                "TIME_LIMIT,TIME_LIMIT_90,time_limit_80,TIME_LIMIT_50",
                "TIME_LIMIT,TIME_LIMIT_50,TIME_LIMIT_80,TIME_LIMIT_90",
            ),
            ("BEGIN,ARRAY_TASKS", "BEGIN,ARRAY_TASKS"),
            ("ALL,NONE", "NONE"),
            ("STAGE_OUT", "NONE"),
        ] {
            let types: MailTypes = text.parse().expect(text);
            assert_eq!(types.to_string(), meant, "{text}");
        }
        for text in ["", "ALWAYS", "END,,FAIL", "TIME_LIMIT_70"] {
            assert!(text.parse::<MailTypes>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_address_is_no_option_of_the_program() {
        let wrong = |to: &str| {
            let wish = MailWish {
                types: MailTypes::default(),
                to: to.to_owned(),
            };
            wish.wrong().is_some()
        };
        for to in ["", "alice", "a.b@example.org,c@example.org"] {
            assert!(!wrong(to), "{to}");
        }
        for to in ["-t", "a b", "a\nb", &"x".repeat(2_000)] {
            assert!(wrong(to), "{to}");
        }
    }
}
