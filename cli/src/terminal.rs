//! Talking to the person: stderr, which may be gone, and is coloured only when it is a terminal.

use std::io::{IsTerminal as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::OnceLock;

use crate::error::CliError;

/// The name that is said in place of "carrel", where the program was called by another.
static NAME: OnceLock<&str> = OnceLock::new();

/// Lines that begin with "carrel:" begin with this name from now on.
pub fn speak_as(name: &'static str) {
    // Once a run: the first name stays.
    NAME.get_or_init(|| name);
}

/// The same line, as who this is called.
fn named(line: String) -> String {
    match (NAME.get(), line.strip_prefix("carrel: ")) {
        (Some(name), Some(rest)) => format!("{name}: {rest}"),
        _ => line,
    }
}

/// Writes a line to stderr. A closed stderr ends nothing: there is nobody to tell.
pub fn say(line: impl std::fmt::Display) {
    let line = named(line.to_string());
    // Not eprintln!, which panics when the terminal has gone, and leaves GPUs behind.
    if stderr_is_raw() {
        let line = line.replace('\n', "\r\n");
        drop(write!(std::io::stderr(), "{line}\r\n"));
    } else {
        drop(writeln!(std::io::stderr(), "{line}"));
    }
}

/// Leaves the line on which the cursor may stand anywhere, in a terminal that a program draws on.
pub fn leave_line() {
    if stderr_is_raw() {
        say("");
    }
}

/// Whether stderr is a terminal on which line ends are not put right: ssh's, during a session.
fn stderr_is_raw() -> bool {
    use nix::sys::termios::{OutputFlags, tcgetattr};
    stderr_is_terminal()
        && tcgetattr(std::io::stderr())
            .is_ok_and(|terminal| !terminal.output_flags.contains(OutputFlags::OPOST))
}

/// Shows an error and its hint.
pub fn show_error(error: &CliError) {
    let (red, cyan, off) = if coloured() {
        ("\x1b[1;31m", "\x1b[1;36m", "\x1b[0m")
    } else {
        ("", "", "")
    };
    say(format_args!("{red}error{off}: {}", error.message));
    if let Some(hint) = &error.hint {
        say(format_args!("{cyan}hint{off}: {hint}"));
    }
}

/// Whether stderr is a terminal that likes colour (<https://no-color.org>).
pub fn coloured() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|v| v == "dumb");
    stderr_is_terminal() && !refused && !dumb
}

/// Whether a person watches stderr.
pub fn stderr_is_terminal() -> bool {
    std::io::stderr().is_terminal()
}

/// Columns of the terminal that stderr is; none: it is none, or does not know.
pub fn stderr_columns() -> Option<usize> {
    columns_of(std::io::stderr().as_fd())
}

/// Columns of the terminal that stdout is; none: it is none, or does not know.
pub fn stdout_columns() -> Option<usize> {
    columns_of(std::io::stdout().as_fd())
}

fn columns_of(terminal: BorrowedFd<'_>) -> Option<usize> {
    let size = crate::step::window::get(terminal)?;
    usize::try_from(size.columns).ok()
}

/// Whether a person is at both ends of a command.
pub fn is_interactive() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}

/// Asks a yes-or-no question on the terminal; anything but "y" and "yes" is no.
pub fn confirm(question: &str) -> bool {
    drop(write!(std::io::stderr(), "{question} [y/N] "));
    let mut answer = String::new();
    match std::io::stdin().read_line(&mut answer) {
        Ok(_) => matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"),
        Err(_) => false,
    }
}

/// Asks for a line that is not shown.
pub fn ask_secret(question: &str) -> std::io::Result<String> {
    use nix::sys::termios::{LocalFlags, SetArg, tcgetattr, tcsetattr};
    let stdin = std::io::stdin();
    let shown = tcgetattr(&stdin)?;
    let mut hidden = shown.clone();
    hidden.local_flags.remove(LocalFlags::ECHO);
    drop(write!(std::io::stderr(), "{question}"));
    tcsetattr(&stdin, SetArg::TCSANOW, &hidden)?;
    let mut line = String::new();
    let read = stdin.read_line(&mut line);
    tcsetattr(&stdin, SetArg::TCSANOW, &shown)?;
    say("");
    read.map(|_| line)
}
