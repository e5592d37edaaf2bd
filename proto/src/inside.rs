//! How a job speaks to the broker: where its container has the socket, and how the node's agent
//! says for whom it relays.
//!
//! The container's `carrel` speaks `carrel.v1.Broker` to [`SOCKET`]. The agent hands each call on over
//! its own connection to the broker, with nothing of the request but its message, and adds [`HEADER`].
//! The broker takes that header from nodes' certificates only, and only for an allocation that runs on
//! that node.

/// Directory in the container that holds the socket, and nothing else. It is mounted whole, so that an
/// agent that was restarted can bind the socket again.
pub const DIR: &str = "/.carrel/api";
/// The socket's name there.
pub const SOCKET_NAME: &str = "api.sock";
/// The socket, as programs in the container find it.
pub const SOCKET: &str = "/.carrel/api/api.sock";
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
    }
}
