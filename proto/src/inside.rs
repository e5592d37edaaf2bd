//! How a job speaks to the broker: where its container has the socket, and how the node's agent
//! says for whom it relays.
//!
//! The container's `carrel` speaks `carrel.v1.Broker` to [`SOCKET`]. The agent hands each call on over
//! its own connection to the broker, with nothing of the request but its message, and adds [`HEADER`].
//! The broker takes that header from nodes' certificates only, and only for an allocation that runs on
//! that node.

use carrel_core::model::ids::JobKey;

/// Directory in the container that holds the socket and what the job may read of itself. It is mounted whole, so that an
/// agent that was restarted can bind the socket again.
pub const DIR: &str = "/.carrel/api";
/// The socket's name there.
pub const SOCKET_NAME: &str = "api.sock";
/// The socket, as programs in the container find it.
pub const SOCKET: &str = "/.carrel/api/api.sock";
/// The socket beside it that leads to a gateway: what OpenStream answers with to who asks from inside.
pub const STREAMS_NAME: &str = "streams.sock";
/// The file that says when the job ends, beside the socket: JSON, replaced whole when that changes.
pub const DEADLINE_NAME: &str = "deadline.json";
/// The same, as programs in the container find it: the value of `CARREL_DEADLINE_FILE` in every channel.
pub const DEADLINE: &str = "/.carrel/api/deadline.json";
/// The file of the job's nodes, beside the socket: one a line, with the processes that it has room for, as MPI's launchers
/// read it.
pub const HOSTFILE_NAME: &str = "hostfile";
/// The same, as programs in the container find it: the value of `CARREL_HOSTFILE` in every channel.
pub const HOSTFILE: &str = "/.carrel/api/hostfile";
/// Where the container takes what tasks of steps write (`RanksSays`), to be kept by rank.
pub const RANKS_SOCKET: &str = "/.carrel/ranks.sock";
/// Directory in process 1's run directory with what is kept of them: `RANK.0` and `RANK.1` each, two files in turn as
/// those of the job's own output, and [`RANKS_BEGUN`].
pub const RANKS_DIR: &str = "ranks";
/// Which tasks have begun: a `RanksBegun`, replaced whole.
pub const RANKS_BEGUN: &str = "begun";
/// Metadata key of the allocation that a call comes from, a [`JobKey`] as text:
/// set by agents alone.
pub const HEADER: &str = "carrel-job";

/// The way of byte streams from inside, as an endpoint.
pub fn streams() -> String {
    format!("unix:{DIR}/{STREAMS_NAME}")
}

/// SSH principal that opens the containers of one allocation and nothing else: what a certificate that was asked for
/// from inside carries. No user is called so.
pub fn principal(key: JobKey) -> String {
    format!("job/{key}")
}

/// The socket as an address: the value of `CARREL_BROKER` in every channel.
pub fn address() -> String {
    format!("unix:{SOCKET}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_user_has_the_name_of_a_jobs_principal() {
        use carrel_core::model::ids::{Generation, JobId, UserName};
        let key = JobKey {
            job: JobId(7),
            generation: Generation(1),
        };
        assert!(principal(key).parse::<UserName>().is_err());
    }

    #[test]
    fn the_socket_lies_in_its_directory() {
        assert_eq!(SOCKET, format!("{DIR}/{SOCKET_NAME}"));
        assert_eq!(DEADLINE, format!("{DIR}/{DEADLINE_NAME}"));
        assert_eq!(HOSTFILE, format!("{DIR}/{HOSTFILE_NAME}"));
    }
}
