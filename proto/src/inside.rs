//! How a job speaks to the broker: where its container has the socket, and how the node's agent
//! says for whom it relays.
//!
//! The container's `carrel` speaks `carrel.v1.Broker` to [`SOCKET`]. The agent hands each call on over
//! its own connection to the broker, with nothing of the request but its message, and adds [`HEADER`].
//! The broker takes that header from nodes' certificates only, and only for an allocation that runs on
//! that node.

/// Directory in the container that holds the socket and what the job may read of itself. It is mounted whole, so that an
/// agent that was restarted can bind the socket again.
pub const DIR: &str = "/.carrel/api";
/// The socket's name there.
pub const SOCKET_NAME: &str = "api.sock";
/// The socket, as programs in the container find it.
pub const SOCKET: &str = "/.carrel/api/api.sock";
/// The file that says when the job ends, beside the socket: JSON, replaced whole when that changes.
pub const DEADLINE_NAME: &str = "deadline.json";
/// The same, as programs in the container find it: the value of `CARREL_DEADLINE_FILE` in every channel.
pub const DEADLINE: &str = "/.carrel/api/deadline.json";
/// Metadata key of the allocation that a call comes from, a [`JobKey`](carrel_core::model::ids::JobKey) as text:
/// set by agents alone.
pub const HEADER: &str = "carrel-job";

/// The socket as an address: the value of `CARREL_BROKER` in every channel.
pub fn address() -> String {
    format!("unix:{SOCKET}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_lies_in_its_directory() {
        assert_eq!(SOCKET, format!("{DIR}/{SOCKET_NAME}"));
        assert_eq!(DEADLINE, format!("{DIR}/{DEADLINE_NAME}"));
    }
}
