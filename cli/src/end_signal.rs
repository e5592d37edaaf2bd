//! `--signal`: what is sent before the deadline, in Slurm's spelling.

use carrel_core::model::session::EndSignal;
use carrel_proto::v1;

/// Slurm's, where no time is given, seconds.
const BEFORE: u32 = 60;

/// Names and Linux's numbers, of x86-64 and arm64.
const SIGNALS: [(&str, i32); 16] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ABRT", 6),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("URG", 23),
    ("XCPU", 24),
];

/// `[B:]SIG[@SECONDS]`
pub fn parse(text: &str) -> Result<v1::EndSignal, String> {
    const RULE: &str = "write [B:]SIGNAL[@SECONDS], such as USR1@120, TERM, or B:10@60";
    let (shells, rest) = match text.split_once(':') {
        Some(("B" | "b", rest)) => (true, rest),
        Some(("R" | "r", _)) => return Err("R: is not known here".to_owned()),
        Some(_) => return Err(RULE.to_owned()),
        None => (false, text),
    };
    let (name, before) = match rest.split_once('@') {
        Some((name, before)) => (name, before.parse().map_err(|_| RULE)?),
        None => (rest, BEFORE),
    };
    let signal = named(name).ok_or(RULE)?;
    let sent = EndSignal {
        signal,
        before_s: before,
        shells,
    };
    if !sent.is_valid() {
        let most = EndSignal::MAX_BEFORE;
        return Err(format!(
            "a signal is 1 to 31 or a name, and at most {most} seconds before the end"
        ));
    }
    Ok(sent.into())
}

/// A signal's number, of its name or of that number: 1 to 31.
pub fn number(text: &str) -> Option<i32> {
    named(text).filter(|number| (1..=31).contains(number))
}

fn named(name: &str) -> Option<i32> {
    let upper = name.to_ascii_uppercase();
    let upper = upper.strip_prefix("SIG").unwrap_or(&upper);
    let known = SIGNALS.iter().find(|(known, _)| *known == upper);
    known.map(|(_, number)| *number).or_else(|| name.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_written_as_in_slurm() {
        for (text, signal, before_s, shells) in [
            ("USR1", 10, 60, false),
            ("SIGUSR1@120", 10, 120, false),
            ("b:term@5", 15, 5, true),
            ("B:12", 12, 60, true),
            ("31@0", 31, 0, false),
        ] {
            let wanted = v1::EndSignal {
                signal,
                before_s,
                shells,
            };
            assert_eq!(parse(text), Ok(wanted), "{text}");
        }
        for text in [
            "",
            "@60",
            "0",
            "32",
            "NONE",
            "USR1@",
            "USR1@x",
            "USR1@65536",
            "X:USR1",
            "R:USR1",
            "USR1@-1",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
