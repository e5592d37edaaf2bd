//! Whether a user's certificate admits its holder (OpenSSH's PROTOCOL.certkeys).
//! That the holder has the key, russh checks.

use std::net::IpAddr;

use russh::keys::ssh_key::certificate::CertType;
use russh::keys::ssh_key::public::KeyData;
use russh::keys::{Certificate, HashAlg};

use crate::ca::ssh::check_type;

/// Why a certificate does not admit; for logs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotAdmitted {
    #[error("it is a host's certificate")]
    Host,
    #[error("it is not signed by a user CA of this cluster")]
    Authority,
    #[error("it is not valid now, or its signature does not hold")]
    Validity,
    #[error("it does not name the user")]
    Principal,
    #[error("it does not admit from this address")]
    Address,
    #[error("it has the critical option {0:?}, which is not known here")]
    Option(String),
    #[error("its key is not acceptable: {0}")]
    Key(#[from] crate::ca::ssh::KeyError),
}

/// Checks everything but the possession of the key. `now` is in Unix seconds.
pub(super) fn admits(
    certificate: &Certificate,
    user: &str,
    from: IpAddr,
    authorities: &[KeyData],
    now: u64,
) -> Result<(), NotAdmitted> {
    if certificate.cert_type() != CertType::User {
        return Err(NotAdmitted::Host);
    }
    check_type(certificate.public_key())?;
    let authority = authorities.iter().find(|key| *key == certificate.signature_key());
    let authority = authority
        .ok_or(NotAdmitted::Authority)?
        .fingerprint(HashAlg::Sha256);
    certificate
        .validate_at(now, [&authority])
        .map_err(|_| NotAdmitted::Validity)?;
    // No principals would mean every user; no certificate of ours is so.
    if !certificate
        .valid_principals()
        .iter()
        .any(|principal| principal == user)
    {
        return Err(NotAdmitted::Principal);
    }
    for (name, value) in certificate.critical_options().iter() {
        match name.as_str() {
            "source-address" if matches_address(value, from) => {}
            "source-address" => return Err(NotAdmitted::Address),
            other => return Err(NotAdmitted::Option(other.chars().take(64).collect())),
        }
    }
    Ok(())
}

/// Whether an address is in a comma-separated list of addresses and CIDR
/// blocks. A list that cannot be read matches nothing.
fn matches_address(list: &str, address: IpAddr) -> bool {
    let address = address.to_canonical();
    let blocks: Option<Vec<_>> = list.split(',').map(block).collect();
    blocks.is_some_and(|blocks| {
        blocks
            .iter()
            .any(|(network, bits)| within(address, *network, *bits))
    })
}

fn block(text: &str) -> Option<(IpAddr, u32)> {
    let (network, bits) = match text.split_once('/') {
        Some((network, bits)) => (network, Some(bits.parse::<u32>().ok()?)),
        None => (text, None),
    };
    let network: IpAddr = network.trim().parse().ok()?;
    let most = if network.is_ipv4() { 32 } else { 128 };
    let bits = bits.unwrap_or(most);
    (bits <= most).then_some((network, bits))
}

fn within(address: IpAddr, network: IpAddr, bits: u32) -> bool {
    match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            let shift = 32 - bits;
            (u64::from(address.to_bits()) >> shift) == (u64::from(network.to_bits()) >> shift)
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => {
            let shift = 128 - bits;
            bits == 0 || (address.to_bits() >> shift) == (network.to_bits() >> shift)
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    use russh::keys::ssh_key::certificate::Builder;
    use russh::keys::{Algorithm, PrivateKey};

    use super::*;

    const NOW: u64 = 1_800_000_000;
    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 2, 3));

    fn key() -> PrivateKey {
        PrivateKey::random(&mut rand::rng(), Algorithm::Ed25519).expect("a key")
    }

    struct Made {
        kind: CertType,
        principals: Vec<&'static str>,
        options: Vec<(&'static str, &'static str)>,
        from: u64,
    }

    impl Default for Made {
        fn default() -> Self {
            Self {
                kind: CertType::User,
                principals: vec!["alice"],
                options: Vec::new(),
                from: NOW - 10,
            }
        }
    }

    /// Makes a certificate and asks whether alice gets in with it from [`HERE`].
    fn ask(made: Made) -> Result<(), NotAdmitted> {
        let authority = key();
        let subject = key();
        let subject = subject.public_key().key_data().clone();
        let mut builder = Builder::new([1; 16], subject, made.from, made.from + 100).expect("a builder");
        builder.cert_type(made.kind).expect("a type");
        for principal in made.principals {
            builder.valid_principal(principal).expect("a principal");
        }
        for (name, value) in made.options {
            builder.critical_option(name, value).expect("an option");
        }
        let certificate = builder.sign(&authority).expect("a certificate");
        let authorities = [key(), authority].map(|key| key.public_key().key_data().clone());
        assert_eq!(
            admits(&certificate, "alice", HERE, &authorities[..1], NOW),
            Err(if made.kind == CertType::User {
                NotAdmitted::Authority
            } else {
                NotAdmitted::Host
            })
        );
        admits(&certificate, "alice", HERE, &authorities, NOW)
    }

    #[test]
    fn a_users_certificate_admits_its_principal_now() {
        assert_eq!(ask(Made::default()), Ok(()));
        assert_eq!(
            ask(Made {
                kind: CertType::Host,
                ..Made::default()
            }),
            Err(NotAdmitted::Host)
        );
        assert_eq!(
            ask(Made {
                principals: vec!["bob"],
                ..Made::default()
            }),
            Err(NotAdmitted::Principal)
        );
        assert_eq!(
            ask(Made {
                from: NOW + 10,
                ..Made::default()
            }),
            Err(NotAdmitted::Validity)
        );
        assert_eq!(
            ask(Made {
                from: NOW - 200,
                ..Made::default()
            }),
            Err(NotAdmitted::Validity)
        );
    }

    #[test]
    fn critical_options_are_obeyed_or_refused() {
        let with = |name, value| {
            ask(Made {
                options: vec![(name, value)],
                ..Made::default()
            })
        };
        assert_eq!(with("source-address", "192.168.0.0/16,10.0.0.0/8"), Ok(()));
        assert_eq!(with("source-address", "10.1.2.4"), Err(NotAdmitted::Address));
        assert_eq!(
            with("force-command", "true"),
            Err(NotAdmitted::Option("force-command".into()))
        );
        assert_eq!(
            with("new@example.com", ""),
            Err(NotAdmitted::Option("new@example.com".into()))
        );
    }

    #[test]
    fn addresses_match_blocks() {
        let matches = |list, address: &str| matches_address(list, address.parse().expect("an address"));
        assert!(matches("10.0.0.0/8", "10.255.0.1") && !matches("10.0.0.0/8", "11.0.0.1"));
        assert!(matches("0.0.0.0/0", "1.2.3.4") && !matches("0.0.0.0/0", "::1"));
        assert!(matches("::/0", "::1") && matches("fd00::/8,::1", "::1") && !matches("fd00::/8", "fe80::1"));
        assert!(matches("10.1.2.3", "::ffff:10.1.2.3"));
        for unreadable in ["", "10.0.0.0/33", "10.0.0.0/8,x", "*"] {
            assert!(!matches(unreadable, "10.0.0.1"), "{unreadable}");
        }
    }
}
