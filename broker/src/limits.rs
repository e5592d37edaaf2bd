//! Limits on what peers may ask of the broker, each with its reason.

use std::time::Duration;

/// Longest message of a user: the largest request (a session with all of its
/// environment) is under 100 KiB.
pub const MAX_USER_MESSAGE: usize = 1 << 20;
/// Longest message of an agent: a node with 64 GPUs, 1,000 jobs and 1,000 images is under 1 MiB.
pub const MAX_AGENT_MESSAGE: usize = 4 << 20;
/// Longest message of a host that joins, and of a gateway: a certificate
/// request or a key, and names.
pub const MAX_JOIN_MESSAGE: usize = 64 << 10;
/// All headers of one request: a token and what gRPC adds are under 1 KiB.
pub const MAX_HEADERS: u32 = 16 << 10;
/// Requests under way on one connection.
pub const MAX_STREAMS: u32 = 256;
/// Connections of one listener: each costs some 40 KiB and a file descriptor.
pub const MAX_CONNECTIONS: usize = 8192;
/// Connections of one user on the Unix socket, or of one address on TLS, so
/// that none keeps the others out.
pub const MAX_CONNECTIONS_PER_PEER: usize = 1024;
/// TLS handshakes under way: they take milliseconds, so that this many at once is a storm or an
/// attack. Who comes then takes the place of the oldest of the address that has the most.
pub const MAX_HANDSHAKES: usize = 1024;
/// A TLS handshake takes a few round trips; who needs longer holds a place for nothing.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// A peer that vanished is noticed after two of these.
pub const KEEPALIVE: Duration = Duration::from_secs(15);
/// Inputs that wait for the writer: some seconds of work. Whoever comes then waits in turn.
pub const MAX_WAITING_INPUTS: usize = 4096;
/// Inputs of one transaction: bounds the time until the first of them is answered.
pub const MAX_BATCH: usize = 512;
/// Ended jobs in one list: the newest; more would outgrow what clients accept.
pub const MAX_LISTED_JOBS: usize = 10_000;
/// Time that streams and requests get to end when the broker stops.
pub const SHUTDOWN_GRACE: Duration = Duration::from_secs(3);
/// Mails that wait to be sent: those of a large array that ends at once, task by task. More are dropped, and logged.
pub const MAX_WAITING_MAILS: usize = 4096;
/// Programs that send mail at a time: a mail server that hangs must not fill the host with them.
pub const MAX_MAIL_PROGRAMS: usize = 8;
/// A program that sends mail ends by then, or is killed.
pub const MAIL_TIMEOUT: Duration = Duration::from_mins(1);
