//! What the gateway bounds, and why.

use std::time::Duration;

/// Connections that have not yet said who they are, on each of the three
/// listeners. A handshake takes milliseconds, so that this many at once is a
/// storm or an attack; each costs a file descriptor and a few KiB. Who comes
/// then takes the place of the oldest of the address that has the most.
pub const HANDSHAKES: usize = 512;

/// Time for a dialler's hello or a TLS handshake: generous for a slow network,
/// short against those who connect and say nothing.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// Time to log in at the jump host: a person may have to touch a security key.
pub const LOGIN_TIMEOUT: Duration = Duration::from_mins(1);

/// Streams asked of agents and not yet there, for all nodes together. Each
/// waits for at most [`OPEN_TIMEOUT`].
pub const PENDING_STREAMS: usize = 4096;

/// Requests queued for one agent. They leave as fast as its link carries
/// them, so that a full queue means a link that is stuck.
pub const LINK_QUEUE: usize = 256;

/// Links of agents: far beyond any cluster that one gateway serves.
pub const LINKS: usize = 16 * 1024;

/// Time for a node that is not connected to come back: an agent's longest
/// pause before it dials again.
pub const LINK_WAIT: Duration = Duration::from_secs(5);

/// Time between asking an agent for a stream and its connection.
pub const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// Streams of one user: an editor with its forwards takes ten or so, a shell
/// on every node of a large gang some hundreds.
pub const STREAMS_PER_USER: usize = 1024;

/// Streams to one node: as many as its agent relays, so that the refusal names the node.
pub const STREAMS_PER_NODE: usize = 2000;

/// How long a client can come back to its stream while the broker is away,
/// counted from when it came last: a stream left alone overnight, and the
/// outage of the next day. The ticket opens nothing but that stream, and only to
/// who proves itself to carrel-init.
pub const RESUMPTION_VALIDITY: Duration = Duration::from_hours(24);

/// Streams of all users. The limit on open files may lower it.
pub const STREAMS: usize = 8192;

/// Open files that a stream takes: two sockets, and the ends of one pipe
/// while it carries bulk.
pub const FILES_PER_STREAM: u64 = 4;

/// Open files kept for all that is not a stream: links, listeners, handshakes.
pub const FILES_RESERVED: u64 = 2048;

/// Channels of one jump-host connection. `ssh -J` opens one; a multiplexing
/// client opens one for every session behind it.
pub const CHANNELS_PER_CONNECTION: usize = 64;

/// Jump-host connections that are logged in.
pub const JUMP_CONNECTIONS: usize = 4096;

/// Tries to log in on one jump-host connection: an SSH agent may hold many keys.
pub const LOGIN_ATTEMPTS: usize = 20;

/// Ids of used tickets that are remembered until the tickets expire, at about
/// 100 bytes each: of the broker's a hundred a second for half an hour, or of
/// resumptions every stream's, every hour.
pub const USED_TICKETS: usize = 200_000;

/// Longest message on an agent's link; they are a few hundred bytes.
pub const LINK_MESSAGE: usize = 64 * 1024;

/// Time for the broker to answer.
pub const BROKER_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause between enrolments: revocations and new certificate authorities are
/// known this soon, when the broker has not restarted.
pub const ENROL_EVERY: Duration = Duration::from_mins(3);

/// First and longest pause between tries to enrol while the broker does not answer.
pub const ENROL_RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(15));

/// How often the broker's socket is looked at, to notice that it was made anew.
pub const BROKER_WATCH: Duration = Duration::from_secs(1);

/// HTTP/2 pings on links, and the time for their answers: an agent that
/// vanished is noticed after the sum.
pub const LINK_PING: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(10));

/// Time for everything to end after a signal.
pub const SHUTDOWN: Duration = Duration::from_secs(5);

/// Time that a refused client has to read why.
pub const REFUSAL_LINGER: Duration = Duration::from_secs(2);

/// Pause after a failed accept (no file descriptors left, most likely).
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
