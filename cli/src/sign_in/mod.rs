//! Proving who one is, for a token.

mod ssh_key;

use carrel_proto::v1;
use carrel_proto::v1::sign_in_client::SignInClient;
use tonic::transport::Channel;

use crate::connect;
use crate::error::Result;

pub use ssh_key::KeySource;

/// The broker's sign-in service, which needs no token.
type Client = SignInClient<Channel>;

/// What the token is to be.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// What it is for.
    pub label: String,
    /// Seconds that it is good for.
    pub ttl_s: u64,
    /// What it is good for.
    pub scope: carrel_core::model::user::Scope,
}

impl From<&Wanted> for v1::WantedToken {
    fn from(wanted: &Wanted) -> Self {
        Self {
            label: wanted.label.clone(),
            ttl_s: wanted.ttl_s,
            scope: v1::TokenScope::from(wanted.scope).into(),
        }
    }
}

/// Signs a user in with an SSH key, at a broker that is known by these authorities (PEM).
pub async fn by_ssh_key(
    url: &str,
    ca: &str,
    user: &str,
    source: &KeySource,
    wanted: &Wanted,
) -> Result<v1::SignedIn> {
    let mut client = SignInClient::new(connect::tls_channel(url, ca).await?);
    ssh_key::sign_in(&mut client, ca, user, source, wanted).await
}
