//! Terminals that outlive their connections: what carrel-init and its clients agree on.
//!
//! A terminal's output is one long stream of bytes with positions. carrel-init keeps the last of
//! it; a viewer is sent what is kept and then what comes. A client that says which bytes it has
//! seen goes on after them.
//!
//! The SSH subsystem's name is a [`Request`]. Bytes of the terminal are the channel's data; what
//! else there is to know are [`Mark`]s, sent as its stderr to those that asked for them. A
//! [`Screen`] follows the bytes on either side, to know which modes they left a terminal in.

mod mark;
mod notice;
mod request;
mod screen;

pub use mark::{Mark, Marks};
pub use notice::notice;
pub use request::{Attach, Request, RequestError, SUBSYSTEM, TerminalName, Which};
pub use screen::Screen;
