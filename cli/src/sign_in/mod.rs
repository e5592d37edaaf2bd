//! Proving who one is, for a token: by SSH key, or through an OpenID Connect provider.

mod device;
mod ssh_key;

use carrel_proto::v1;
use carrel_proto::v1::sign_in_client::SignInClient;
use tonic::transport::Channel;

use crate::connect;
use crate::error::Result;

pub use ssh_key::KeySource;

/// The broker's sign-in service, which needs no token.
type Client = SignInClient<Channel>;

/// How somebody signs in.
#[derive(Clone, Debug)]
pub enum Method {
    /// With an SSH key that is registered for this user.
    SshKey(String, KeySource),
    /// At the cluster's provider, in a browser, wherever that is; one of this machine's is opened
    /// if this says so.
    Device {
        /// Open one.
        open_browser: bool,
    },
}

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

/// Signs in at a broker that is known by these authorities (PEM).
pub async fn sign_in(url: &str, ca: &str, method: &Method, wanted: &Wanted) -> Result<v1::SignedIn> {
    let mut client = SignInClient::new(connect::tls_channel(url, ca).await?);
    match method {
        Method::SshKey(user, source) => ssh_key::sign_in(&mut client, ca, user, source, wanted).await,
        Method::Device { open_browser } => device::sign_in(&mut client, *open_browser, wanted).await,
    }
}

/// Whether the cluster has an OpenID Connect provider.
pub async fn has_provider(url: &str, ca: &str) -> Result<bool> {
    let mut client = SignInClient::new(connect::tls_channel(url, ca).await?);
    let methods = client.get_sign_in_methods(v1::GetSignInMethodsRequest {}).await?;
    Ok(!methods.into_inner().oidc_provider.is_empty())
}
