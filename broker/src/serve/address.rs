//! By which names the TLS listener is dialled.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, bail};

/// "host:port" by which agents and users dial a listener: what the operator
/// says, or the address, or this machine's name where that is every address.
pub(super) fn advertised(bound: SocketAddr, wanted: Option<&str>) -> Result<String> {
    let port = bound.port();
    let Some(wanted) = wanted else {
        return Ok(if bound.ip().is_unspecified() {
            join(&host_name()?, port)
        } else {
            bound.to_string()
        });
    };
    if wanted.parse::<IpAddr>().is_ok() {
        return Ok(join(wanted, port));
    }
    let (host, port) = match wanted.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().ok()),
        None => (wanted, Some(port)),
    };
    match port {
        Some(port) if !host.is_empty() && !host.contains('/') => Ok(join(host, port)),
        _ => bail!("advertise = {wanted:?}: write a host name or an IP address, with or without a port"),
    }
}

/// Names and addresses that the listener's certificate is to carry.
pub(super) fn certificate_names(bound: SocketAddr, advertised: &str, more: &[String]) -> Result<Vec<String>> {
    let host = advertised.rsplit_once(':').map_or(advertised, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let mut names = vec![
        host.to_owned(),
        host_name()?,
        "localhost".into(),
        "127.0.0.1".into(),
        "::1".into(),
    ];
    if bound.ip().is_unspecified() {
        names.extend(own_addresses());
    } else {
        names.push(bound.ip().to_string());
    }
    names.extend(more.iter().cloned());
    names.sort();
    names.dedup();
    Ok(names)
}

fn join(host: &str, port: u16) -> String {
    match host
        .trim_start_matches('[')
        .trim_end_matches(']')
        .parse::<IpAddr>()
    {
        Ok(address) => SocketAddr::new(address, port).to_string(),
        Err(_) => format!("{host}:{port}"),
    }
}

fn host_name() -> Result<String> {
    let name = nix::unistd::gethostname().context("this machine's name cannot be read")?;
    Ok(name.to_string_lossy().into_owned())
}

fn own_addresses() -> Vec<String> {
    let interfaces = match nix::ifaddrs::getifaddrs() {
        Ok(interfaces) => interfaces,
        Err(error) => {
            tracing::warn!(%error, "this machine's addresses cannot be listed: its certificate will lack them");
            return Vec::new();
        }
    };
    let addresses = interfaces.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::from(address.ip()));
        v4.or_else(|| {
            address
                .as_sockaddr_in6()
                .map(|address| IpAddr::from(address.ip()))
        })
    });
    addresses.map(|address| address.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_advertised_can_be_dialled() {
        let bound = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let own = bound("127.0.0.1:70");
        assert_eq!(advertised(own, None).expect("it"), "127.0.0.1:70");
        assert_eq!(advertised(own, Some("head")).expect("it"), "head:70");
        assert_eq!(advertised(own, Some("head:99")).expect("it"), "head:99");
        assert_eq!(advertised(own, Some("::1")).expect("it"), "[::1]:70");
        assert_eq!(advertised(own, Some("[::1]:9")).expect("it"), "[::1]:9");
        assert!(
            !advertised(bound("0.0.0.0:70"), None)
                .expect("it")
                .contains("0.0.0.0")
        );
        for bad in ["head:x", "https://head:1/", ":1"] {
            assert!(advertised(own, Some(bad)).is_err(), "{bad}");
        }
        let names = certificate_names(own, "[::1]:9", &["other".into()]).expect("names");
        for name in ["::1", "127.0.0.1", "localhost", "other"] {
            assert!(names.iter().any(|own| own == name), "{name}");
        }
    }
}
