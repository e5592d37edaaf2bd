//! By which address other nodes reach this host.

use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};

/// Any host beyond this one (RFC 5737): nothing is sent there.
const ELSEWHERE: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 1), 9);

/// The address from which this host reaches the broker; where that is on this host, the one from which it reaches others.
/// None: it has no IPv4 address. Blocks while a name is looked up.
pub fn own_address(broker: &str) -> Option<Ipv4Addr> {
    let uri: Option<tonic::transport::Uri> = broker.parse().ok();
    let towards_broker = uri.and_then(|uri| {
        let (host, port) = (uri.host()?.to_owned(), uri.port_u16().unwrap_or(443));
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let mut found = (host, port).to_socket_addrs().ok()?;
        found.find(SocketAddr::is_ipv4).and_then(source_towards)
    });
    towards_broker
        .filter(|address| !address.is_loopback())
        .or_else(|| source_towards(ELSEWHERE.into()))
        .or(towards_broker)
}

/// Where a packet to there would say that it is from.
fn source_towards(to: SocketAddr) -> Option<Ipv4Addr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect(to).ok()?;
    match socket.local_addr().ok()? {
        SocketAddr::V4(own) => Some(*own.ip()),
        SocketAddr::V6(_) => None,
    }
}

/// This host's network namespace, as no other has it: the kernel's boot id and the namespace's number there.
pub(super) fn namespace(boot_id: &str) -> String {
    let link = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    format!("{boot_id} {}", link.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_here_is_reached_from_here() {
        let source = source_towards((Ipv4Addr::LOCALHOST, 7070).into());
        assert_eq!(source, Some(Ipv4Addr::LOCALHOST));
        assert!(own_address("https://127.0.0.1:7070").is_some());
        assert_eq!(own_address("no address"), source_towards(ELSEWHERE.into()));
    }
}
