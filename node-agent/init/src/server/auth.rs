//! Who may enter.
//!
//! russh has verified the client's signature and the certificate's own when it asks; everything
//! else about a certificate is decided here, as OpenSSH's PROTOCOL.certkeys wants it: the CA, the
//! type, the principal, the time, and every critical option. `source-address` is refused: no
//! client's address reaches the container, since relays see only ciphertext, and an option that
//! cannot be checked must not pass.

use std::time::{SystemTime, UNIX_EPOCH};

use carrel_proto::v1::SshAccess;
use russh::keys::ssh_key::certificate::CertType;
use russh::keys::ssh_key::public::KeyData;
use russh::keys::{Certificate, PublicKey};
use tracing::warn;

/// What an authenticated connection may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// Terminals.
    pub terminal: bool,
    /// Forwards of ports and sockets, both ways.
    pub forwarding: bool,
    /// Forwarding of the client's agent.
    pub agent: bool,
    /// Runs in place of whatever is asked.
    pub forced_command: Option<String>,
    /// Looks on: at terminals, without typing, and at nothing else.
    pub looks_on: bool,
}

impl Permissions {
    /// Whether terminals that outlive their connections are to be had.
    pub fn sees_terminals(&self) -> bool {
        (self.terminal || self.looks_on) && self.forced_command.is_none()
    }

    /// A plain key's.
    pub const ALL: Self = Self {
        terminal: true,
        forwarding: true,
        agent: true,
        forced_command: None,
        looks_on: false,
    };

    /// Of whom the session is shared with to look at.
    pub const LOOKS_ON: Self = Self {
        terminal: false,
        forwarding: false,
        agent: false,
        forced_command: None,
        looks_on: true,
    };
}

/// The way by which somebody got in. It has to stay open for as long as they stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// A plain key.
    Key(KeyData),
    /// A certificate.
    Certificate {
        /// Who has signed it.
        authority: KeyData,
        /// Its principals.
        principals: Vec<String>,
        /// It lets them look on only.
        looks_on: bool,
    },
}

/// Who may enter: the user name, the CAs with their principals, and plain keys.
#[derive(Clone, Debug, Default)]
pub struct Access {
    user: String,
    authorities: Vec<KeyData>,
    principals: Vec<String>,
    read_only_principals: Vec<String>,
    keys: Vec<KeyData>,
}

impl Access {
    /// Lines that are no public keys are left out, and told.
    pub fn new(user: &str, access: &SshAccess) -> Self {
        Self {
            user: user.to_owned(),
            authorities: parse(&access.user_cas, "CA"),
            principals: names(&access.principals),
            read_only_principals: names(&access.read_only_principals),
            keys: parse(&access.keys, "plain"),
        }
    }

    /// Whether a plain key may enter as this user.
    pub fn allows_key(&self, user: &str, key: &PublicKey) -> bool {
        user == self.user && self.keys.contains(key.key_data())
    }

    /// Whether somebody who got in may stay, now that the rules are these.
    pub fn still_admits(&self, way: &Way) -> bool {
        match way {
            Way::Key(key) => self.keys.contains(key),
            Way::Certificate {
                authority,
                principals,
                looks_on,
            } => {
                let may = |among: &[String]| principals.iter().any(|name| among.contains(name));
                self.authorities.contains(authority)
                    && (may(&self.principals) || (*looks_on && may(&self.read_only_principals)))
            }
        }
    }

    /// What a certificate may do as this user; an error says why nothing.
    pub fn check_certificate(&self, user: &str, certificate: &Certificate) -> Result<Permissions, String> {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        self.check_certificate_at(now, user, certificate)
    }

    fn check_certificate_at(
        &self,
        now: u64,
        user: &str,
        certificate: &Certificate,
    ) -> Result<Permissions, String> {
        if user != self.user {
            return Err(format!("the session is {}'s, not {user:?}'s", self.user));
        }
        if certificate.cert_type() != CertType::User {
            return Err("it is a host's certificate".into());
        }
        if !self.authorities.contains(certificate.signature_key()) {
            return Err("its CA is not known here".into());
        }
        if certificate.verify_signature().is_err() {
            return Err("its signature is wrong".into());
        }
        if now < certificate.valid_after() {
            return Err("it is not valid yet".into());
        }
        if now >= certificate.valid_before() {
            return Err("it has expired".into());
        }
        // No principals would mean any, and none of ours gives that.
        let may = |among: &[String]| {
            let mut principals = certificate.valid_principals().iter();
            principals.any(|name| among.contains(name))
        };
        let inside = may(&self.principals);
        if !inside && !may(&self.read_only_principals) {
            return Err(format!(
                "none of its principals {:?} may enter",
                certificate.valid_principals()
            ));
        }
        let mut forced_command = None;
        for (name, value) in certificate.critical_options().iter() {
            match name.as_str() {
                "force-command" => forced_command = Some(value.clone()),
                "source-address" => {
                    return Err("it is bound to a source address, which cannot be seen from here".into());
                }
                other => return Err(format!("its critical option {other:?} is not known")),
            }
        }
        if !inside {
            return Ok(Permissions::LOOKS_ON);
        }
        let extension = |name: &str| certificate.extensions().contains_key(name);
        Ok(Permissions {
            terminal: extension("permit-pty"),
            forwarding: extension("permit-port-forwarding"),
            agent: extension("permit-agent-forwarding"),
            forced_command,
            looks_on: false,
        })
    }
}

fn names(given: &[String]) -> Vec<String> {
    given.iter().filter(|name| !name.is_empty()).cloned().collect()
}

fn parse(lines: &[String], what: &str) -> Vec<KeyData> {
    lines
        .iter()
        .filter_map(|line| match PublicKey::from_openssh(line.trim()) {
            Ok(key) => Some(key.key_data().clone()),
            Err(error) => {
                warn!(%error, "a {what} key in the configuration cannot be read");
                None
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use russh::keys::ssh_key::certificate::Builder;
    use russh::keys::ssh_key::{Algorithm, PrivateKey};

    use super::*;

    struct World {
        authority: PrivateKey,
        user: PrivateKey,
        access: Access,
    }

    fn world() -> World {
        let key = || PrivateKey::random(&mut rand::rng(), Algorithm::Ed25519).unwrap();
        let authority = key();
        let access = SshAccess {
            user_cas: vec![authority.public_key().to_openssh().unwrap(), "nonsense".into()],
            principals: vec!["alice".into()],
            read_only_principals: vec!["carol".into(), String::new()],
            ..SshAccess::default()
        };
        World {
            access: Access::new("alice", &access),
            authority,
            user: key(),
        }
    }

    impl World {
        fn certificate(&self, change: impl FnOnce(&mut Builder)) -> Certificate {
            self.certificate_for(CertType::User, "alice", change)
        }

        fn certificate_for(
            &self,
            kind: CertType,
            principal: &str,
            change: impl FnOnce(&mut Builder),
        ) -> Certificate {
            let mut builder =
                Builder::new_with_random_nonce(&mut rand::rng(), self.user.public_key().clone(), 1000, 2000)
                    .unwrap();
            builder.cert_type(kind).unwrap();
            builder.valid_principal(principal).unwrap();
            change(&mut builder);
            builder.sign(&self.authority).unwrap()
        }

        fn check(&self, certificate: &Certificate) -> Result<Permissions, String> {
            self.access.check_certificate_at(1500, "alice", certificate)
        }
    }

    #[test]
    fn a_good_certificate_may_do_what_it_says() {
        let world = world();
        let certificate = world.certificate(|builder| {
            builder.extension("permit-pty", "").unwrap();
            builder.critical_option("force-command", "uptime").unwrap();
        });
        let permissions = world.check(&certificate).unwrap();
        assert_eq!(
            permissions,
            Permissions {
                terminal: true,
                forwarding: false,
                agent: false,
                forced_command: Some("uptime".into()),
                looks_on: false,
            }
        );
    }

    #[test]
    fn each_wrong_thing_alone_is_refused() {
        let world = world();
        let good = world.certificate(|_| {});
        assert!(world.check(&good).is_ok());
        assert!(
            world.access.check_certificate_at(1500, "bob", &good).is_err(),
            "user"
        );
        assert!(
            world.access.check_certificate_at(999, "alice", &good).is_err(),
            "too early"
        );
        assert!(
            world.access.check_certificate_at(2000, "alice", &good).is_err(),
            "too late"
        );
        let other = World {
            authority: world.user.clone(),
            ..self::world()
        };
        assert!(world.check(&other.certificate(|_| {})).is_err(), "CA");
        assert!(
            world
                .check(&world.certificate_for(CertType::User, "bob", |_| {}))
                .is_err(),
            "principal"
        );
        for (name, value) in [
            ("source-address", "10.0.0.0/8"),
            ("verify-required", ""),
            ("x@example.com", ""),
        ] {
            let certificate = world.certificate(|builder| {
                builder.critical_option(name, value).unwrap();
            });
            assert!(world.check(&certificate).is_err(), "{name}");
        }
        let host = world.certificate_for(CertType::Host, "alice", |_| {});
        assert!(world.check(&host).is_err(), "type");
    }

    /// Who a session is shared with to look at gets in with nothing, whatever the certificate says.
    #[test]
    fn a_read_only_principal_may_look_on_only() {
        let world = world();
        let certificate = world.certificate_for(CertType::User, "carol", |builder| {
            builder.extension("permit-pty", "").unwrap();
            builder.extension("permit-port-forwarding", "").unwrap();
            builder.extension("permit-agent-forwarding", "").unwrap();
        });
        assert_eq!(world.check(&certificate).unwrap(), Permissions::LOOKS_ON);
        assert!(
            world
                .access
                .check_certificate_at(1500, "carol", &certificate)
                .is_err(),
            "as herself"
        );
    }

    #[test]
    fn who_is_inside_stays_as_long_as_the_rules_let_them_in() {
        let world = world();
        let authority = world.authority.public_key().key_data().clone();
        let way = |name: &str, looks_on| Way::Certificate {
            authority: authority.clone(),
            principals: vec![name.into()],
            looks_on,
        };
        assert!(world.access.still_admits(&way("alice", false)));
        assert!(world.access.still_admits(&way("carol", true)));
        assert!(
            !world.access.still_admits(&way("carol", false)),
            "no longer in full"
        );
        assert!(
            !world.access.still_admits(&way("bob", false)) && !world.access.still_admits(&way("bob", true))
        );
        let key = world.user.public_key().key_data().clone();
        assert!(!world.access.still_admits(&Way::Key(key)), "taken back");
        let other = self::world();
        assert!(!other.access.still_admits(&way("alice", false)), "another CA");
    }
}
