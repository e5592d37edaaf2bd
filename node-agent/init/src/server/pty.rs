//! Terminals.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::libc;
use nix::sys::stat::Mode;
use nix::sys::termios::{
    BaudRate, ControlFlags, InputFlags, LocalFlags, OutputFlags, SetArg, SpecialCharacterIndices as Char,
    Termios, cfsetispeed, cfsetospeed, tcgetattr, tcsetattr,
};
use russh::Pty;
use tokio::io::unix::AsyncFd;

/// Size of a terminal, in characters and in pixels (0: not known).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    pub columns: u32,
    pub rows: u32,
    pub width: u32,
    pub height: u32,
}

/// The side of a terminal that this server holds. Its end hangs the terminal up.
#[derive(Debug)]
pub struct Master(OwnedFd);

impl AsFd for Master {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Master {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Master {
    /// Sets the size; the foreground processes get SIGWINCH.
    #[allow(unsafe_code)]
    pub fn resize(&self, size: Size) -> io::Result<()> {
        let short = |value: u32| u16::try_from(value).unwrap_or(u16::MAX);
        let size = libc::winsize {
            ws_row: short(size.rows),
            ws_col: short(size.columns),
            ws_xpixel: short(size.width),
            ws_ypixel: short(size.height),
        };
        // SAFETY: TIOCSWINSZ reads one winsize, which lives through the call.
        Errno::result(unsafe { libc::ioctl(self.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) })?;
        Ok(())
    }

    /// The size that it has.
    #[allow(unsafe_code)]
    pub fn size(&self) -> io::Result<Size> {
        let mut size = libc::winsize {
            ws_row: 0,
            ws_col: 0,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        // SAFETY: TIOCGWINSZ writes one winsize, which lives through the call.
        Errno::result(unsafe { libc::ioctl(self.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) })?;
        Ok(Size {
            columns: size.ws_col.into(),
            rows: size.ws_row.into(),
            width: size.ws_xpixel.into(),
            height: size.ws_ypixel.into(),
        })
    }
}

/// Our side of a terminal that a server before this has made.
pub fn adopt(master: OwnedFd) -> io::Result<AsyncFd<Master>> {
    watch(Master(master))
}

/// A new terminal: our side, and the one for the child.
pub fn create(size: Size, modes: &[(Pty, u32)]) -> io::Result<(AsyncFd<Master>, OwnedFd)> {
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let master = open("/dev/ptmx", flags | OFlag::O_NONBLOCK, Mode::empty())?;
    unlock(&master)?;
    let slave = peer(&master, flags)?;
    let master = Master(master);
    master.resize(size)?;
    apply_modes(&slave, modes)?;
    Ok((watch(master)?, slave))
}

#[allow(unsafe_code)]
fn watch(master: Master) -> io::Result<AsyncFd<Master>> {
    // SAFETY: the descriptor is owned, and neither closed nor replaced before its end.
    Ok(unsafe { AsyncFd::register(master) }?)
}

#[allow(unsafe_code)]
fn unlock(master: &OwnedFd) -> io::Result<()> {
    let locked: libc::c_int = 0;
    // SAFETY: TIOCSPTLCK reads one int, which lives through the call.
    Errno::result(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &raw const locked) })?;
    Ok(())
}

/// Opens the other side without a path: right whatever is mounted at /dev/pts.
#[allow(unsafe_code)]
fn peer(master: &OwnedFd, flags: OFlag) -> io::Result<OwnedFd> {
    // SAFETY: TIOCGPTPEER takes open flags and gives a new descriptor.
    let fd = Errno::result(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags.bits()) })?;
    // SAFETY: just made, and ours alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets the modes that a client sent (RFC 4254, 8), with a new terminal's for the rest.
fn apply_modes(slave: &OwnedFd, modes: &[(Pty, u32)]) -> io::Result<()> {
    let mut termios = tcgetattr(slave)?;
    for (mode, value) in modes {
        apply_mode(&mut termios, *mode, *value);
    }
    tcsetattr(slave, SetArg::TCSANOW, &termios)?;
    Ok(())
}

fn apply_mode(termios: &mut Termios, mode: Pty, value: u32) {
    /// What clients send for "no such character".
    const DISABLED: u32 = 255;
    if let Some(index) = character(mode) {
        let off = libc::_POSIX_VDISABLE;
        termios.control_chars[index as usize] = if value == DISABLED { off } else { value as u8 };
        return;
    }
    let on = value != 0;
    if let Some(flag) = input_flag(mode) {
        termios.input_flags.set(flag, on);
    } else if let Some(flag) = local_flag(mode) {
        termios.local_flags.set(flag, on);
    } else if let Some(flag) = output_flag(mode) {
        termios.output_flags.set(flag, on);
    } else {
        match mode {
            Pty::CS7 if on => {
                termios.control_flags.remove(ControlFlags::CSIZE);
                termios.control_flags.insert(ControlFlags::CS7);
            }
            Pty::CS8 if on => {
                termios.control_flags.remove(ControlFlags::CSIZE);
                termios.control_flags.insert(ControlFlags::CS8);
            }
            Pty::PARENB => termios.control_flags.set(ControlFlags::PARENB, on),
            Pty::PARODD => termios.control_flags.set(ControlFlags::PARODD, on),
            // A speed that the kernel does not know is left.
            Pty::TTY_OP_ISPEED => drop(speed(value).map(|speed| cfsetispeed(termios, speed))),
            Pty::TTY_OP_OSPEED => drop(speed(value).map(|speed| cfsetospeed(termios, speed))),
            // Of other systems.
            _ => {}
        }
    }
}

fn character(mode: Pty) -> Option<Char> {
    Some(match mode {
        Pty::VINTR => Char::VINTR,
        Pty::VQUIT => Char::VQUIT,
        Pty::VERASE => Char::VERASE,
        Pty::VKILL => Char::VKILL,
        Pty::VEOF => Char::VEOF,
        Pty::VEOL => Char::VEOL,
        Pty::VEOL2 => Char::VEOL2,
        Pty::VSTART => Char::VSTART,
        Pty::VSTOP => Char::VSTOP,
        Pty::VSUSP => Char::VSUSP,
        Pty::VREPRINT => Char::VREPRINT,
        Pty::VWERASE => Char::VWERASE,
        Pty::VLNEXT => Char::VLNEXT,
        Pty::VDISCARD => Char::VDISCARD,
        _ => return None,
    })
}

fn input_flag(mode: Pty) -> Option<InputFlags> {
    Some(match mode {
        Pty::IGNPAR => InputFlags::IGNPAR,
        Pty::PARMRK => InputFlags::PARMRK,
        Pty::INPCK => InputFlags::INPCK,
        Pty::ISTRIP => InputFlags::ISTRIP,
        Pty::INLCR => InputFlags::INLCR,
        Pty::IGNCR => InputFlags::IGNCR,
        Pty::ICRNL => InputFlags::ICRNL,
        Pty::IXON => InputFlags::IXON,
        Pty::IXANY => InputFlags::IXANY,
        Pty::IXOFF => InputFlags::IXOFF,
        Pty::IMAXBEL => InputFlags::IMAXBEL,
        Pty::IUTF8 => InputFlags::IUTF8,
        _ => return None,
    })
}

fn local_flag(mode: Pty) -> Option<LocalFlags> {
    Some(match mode {
        Pty::ISIG => LocalFlags::ISIG,
        Pty::ICANON => LocalFlags::ICANON,
        Pty::ECHO => LocalFlags::ECHO,
        Pty::ECHOE => LocalFlags::ECHOE,
        Pty::ECHOK => LocalFlags::ECHOK,
        Pty::ECHONL => LocalFlags::ECHONL,
        Pty::NOFLSH => LocalFlags::NOFLSH,
        Pty::TOSTOP => LocalFlags::TOSTOP,
        Pty::IEXTEN => LocalFlags::IEXTEN,
        Pty::ECHOCTL => LocalFlags::ECHOCTL,
        Pty::ECHOKE => LocalFlags::ECHOKE,
        Pty::PENDIN => LocalFlags::PENDIN,
        _ => return None,
    })
}

fn output_flag(mode: Pty) -> Option<OutputFlags> {
    Some(match mode {
        Pty::OPOST => OutputFlags::OPOST,
        Pty::ONLCR => OutputFlags::ONLCR,
        Pty::OCRNL => OutputFlags::OCRNL,
        Pty::ONOCR => OutputFlags::ONOCR,
        Pty::ONLRET => OutputFlags::ONLRET,
        _ => return None,
    })
}

fn speed(bits_per_second: u32) -> Option<BaudRate> {
    Some(match bits_per_second {
        0 => BaudRate::B0,
        300 => BaudRate::B300,
        1200 => BaudRate::B1200,
        2400 => BaudRate::B2400,
        4800 => BaudRate::B4800,
        9600 => BaudRate::B9600,
        19200 => BaudRate::B19200,
        38400 => BaudRate::B38400,
        57600 => BaudRate::B57600,
        115_200 => BaudRate::B115200,
        230_400 => BaudRate::B230400,
        _ => return None,
    })
}
