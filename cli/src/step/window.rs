//! Sizes of terminals.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use carrel_proto::v1;
use nix::libc;
use nix::pty::Winsize;

/// As the system has it.
pub fn of(size: v1::StepWindow) -> Winsize {
    let short = |value: u32| u16::try_from(value).unwrap_or(u16::MAX);
    Winsize {
        ws_row: short(size.rows),
        ws_col: short(size.columns),
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

/// Gives a terminal another size; its foreground processes get SIGWINCH.
#[allow(unsafe_code)]
pub fn set(terminal: BorrowedFd<'_>, size: v1::StepWindow) {
    let size = of(size);
    // SAFETY: TIOCSWINSZ reads one winsize, which lives through the call. One that fails changes nothing.
    unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
}

/// The size of a terminal; none: it is none, or does not know.
#[allow(unsafe_code)]
pub fn get(terminal: BorrowedFd<'_>) -> Option<v1::StepWindow> {
    let mut size = Winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: TIOCGWINSZ writes one winsize, which lives through the call.
    let got = unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    (got == 0 && size.ws_col > 0).then(|| v1::StepWindow {
        columns: size.ws_col.into(),
        rows: size.ws_row.into(),
    })
}
