//! By OpenID Connect's device flow (RFC 8628): the provider vouches for somebody in whatever
//! browser they have at hand. The broker talks to the provider; its secret stays here.

mod account;
mod config;
mod flows;
mod http;
mod person;
mod types;

use std::error::Error;
use std::time::Duration;

use anyhow::{Context as _, Result};
use openidconnect::core::{CoreClientAuthMethod, CoreDeviceAuthorizationResponse};
use openidconnect::{
    AuthType, Client, ClientId, ClientSecret, ErrorResponse, ErrorResponseType, IssuerUrl, Nonce,
    OAuth2TokenResponse as _, RequestTokenError, Scope, StandardErrorResponse,
};
use serde_json::Value;

pub use account::{NoAccount, newcomer};
pub use config::{OidcConfig, OidcFile};
pub use person::{Stranger, login_name, role};

use crate::handshakes::Source;
use flows::{Flows, Place};
use http::{Http, Patient, innermost};
use types::{Metadata, OidcClient, Tokens, UserInfo};

/// Longest time that somebody is waited for, whatever the provider allows.
const LONGEST_WAIT: Duration = Duration::from_mins(15);
/// The provider is asked no more often, whatever it allows.
const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);
/// Longest text of the provider's that is repeated in a message.
const MAX_REPEATED: usize = 300;

/// The provider.
#[derive(Debug)]
pub struct Oidc {
    config: OidcConfig,
    issuer: IssuerUrl,
    secret: Option<ClientSecret>,
    http: Http,
    flows: Flows,
}

/// A sign-in under way.
pub struct Flow {
    client: OidcClient,
    details: CoreDeviceAuthorizationResponse,
    _place: Place,
}

/// Why somebody could not be signed in, for them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSignedIn {
    /// It cannot be reached, or is broken for now.
    #[error("the OpenID Connect provider {0} does not answer: {1}")]
    NoAnswer(String, String),
    /// It answers with what it should not: one of the two is not set up for the other.
    #[error("the OpenID Connect provider {0} does not sign people in for this cluster: {1}")]
    Refused(String, String),
    /// They said no there.
    #[error("the sign-in was refused at {0}")]
    Denied(String),
    /// They did not come.
    #[error("the code was not used in time")]
    Expired,
    /// Too many are under way.
    #[error("{0}")]
    TooMany(String),
}

impl Oidc {
    /// Reads the secret; asks nothing of the provider yet.
    pub fn open(config: &OidcConfig) -> Result<Self> {
        let secret = match &config.client_secret_file {
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .with_context(|| format!("oidc.client_secret_file: cannot read {}", path.display()))?;
                let text = text.trim();
                anyhow::ensure!(
                    !text.is_empty(),
                    "oidc.client_secret_file: {} is empty",
                    path.display()
                );
                Some(ClientSecret::new(text.to_owned()))
            }
            None => None,
        };
        Ok(Self {
            issuer: IssuerUrl::new(config.issuer.clone()).context("oidc.issuer")?,
            secret,
            http: Http::new(config.ca_file.as_deref())?,
            flows: Flows::default(),
            config: config.clone(),
        })
    }

    /// What the operator set.
    pub fn config(&self) -> &OidcConfig {
        &self.config
    }

    /// Host of the provider, for people.
    pub fn host(&self) -> String {
        self.issuer.url().host_str().unwrap_or_default().to_owned()
    }

    /// Asks the provider for a code, for somebody at an address.
    pub async fn begin(&self, source: Source) -> Result<Flow, NotSignedIn> {
        let place = self.flows.take(source).map_err(NotSignedIn::TooMany)?;
        // Anew each time: its keys and addresses may have changed.
        let metadata = Metadata::discover_async(self.issuer.clone(), &self.http).await;
        let metadata = metadata.map_err(|error| match &error {
            openidconnect::DiscoveryError::Request(cause) => self.no_answer(cause),
            other => self.refused(&innermost(other)),
        })?;
        let endpoint = metadata.additional_metadata().device_authorization_endpoint();
        let endpoint =
            endpoint.ok_or_else(|| self.refused("it does not offer the device flow (RFC 8628)"))?;
        let methods = metadata.token_endpoint_auth_methods_supported().cloned();
        let id = ClientId::new(self.config.client_id.clone());
        let by_header = by_header(methods.as_deref()) && self.secret.is_some();
        let mut client: OidcClient = Client::from_provider_metadata(metadata, id, self.secret.clone())
            .set_device_authorization_url(endpoint);
        if !by_header {
            client = client.set_auth_type(AuthType::RequestBody);
        }
        let scopes = self.config.scopes.iter().cloned().map(Scope::new);
        let mut asked = client.exchange_device_code().add_scopes(scopes);
        if by_header {
            // Some want it in the body all the same (Google's, as RFC 8628, 3.1, may be read).
            asked = asked.add_extra_param("client_id", self.config.client_id.as_str());
        }
        let details = asked.request_async(&self.http).await;
        let details = details.map_err(|error| self.failed(error))?;
        Ok(Flow {
            client,
            details,
            _place: place,
        })
    }

    /// Waits until somebody has come with the code; what the provider says of them, verified.
    /// Dropping it ends the wait.
    pub async fn wait(&self, flow: &Flow) -> Result<Value, NotSignedIn> {
        let asked = flow.client.exchange_device_access_token(&flow.details);
        let asked = asked.map_err(|error| self.refused(&error.to_string()))?;
        let limit = flow.limit();
        let http = Patient::new(&self.http);
        let pause = |interval: Duration| tokio::time::sleep(interval.max(SHORTEST_INTERVAL));
        let tokens = asked.request_async(&http, pause, Some(limit));
        // The library counts by the wall clock, which may be set back.
        let tokens = tokio::time::timeout(limit, tokens).await;
        let expired = || match http.failure() {
            Some(why) => NotSignedIn::NoAnswer(self.host(), why),
            None => NotSignedIn::Expired,
        };
        let tokens: Tokens = tokens
            .map_err(|_| expired())?
            .map_err(|error| match self.failed(error) {
                NotSignedIn::Expired => expired(),
                other => other,
            })?;
        let id_token = tokens.extra_fields().id_token();
        let id_token = id_token.ok_or_else(|| self.refused("it gives no ID token"))?;
        // The device flow has no nonce: the code itself, which nobody else has, binds the answer
        // to the question.
        let claims = id_token.claims(&flow.client.id_token_verifier(), |_: Option<&Nonce>| Ok(()));
        let claims = claims
            .map_err(|error| self.refused(&format!("its ID token does not hold: {}", innermost(&error))))?;
        let value = |claims| serde_json::to_value(claims).map_err(|error| self.refused(&error.to_string()));
        let claims = (claims.subject().clone(), value(claims)?);
        self.completed(flow, &tokens, claims).await
    }

    /// With what only the provider's userinfo endpoint says, where that is needed
    /// (OpenID Connect Core, 5.3 and 5.4).
    async fn completed(
        &self,
        flow: &Flow,
        tokens: &Tokens,
        (subject, mut claims): (openidconnect::SubjectIdentifier, Value),
    ) -> Result<Value, NotSignedIn> {
        let is_there = |claim: &&str| claims.get(claim).is_none_or(Value::is_null);
        if !self.config.needed_claims().iter().any(is_there) {
            return Ok(claims);
        }
        let Ok(asked) = flow
            .client
            .user_info(tokens.access_token().clone(), Some(subject))
        else {
            return Ok(claims);
        };
        let more: Result<UserInfo, _> = asked.request_async(&self.http).await;
        let more = more.map_err(|error| match &error {
            openidconnect::UserInfoError::Request(cause) => self.no_answer(cause),
            other => self.refused(&format!("its userinfo endpoint: {}", innermost(other))),
        })?;
        let more = serde_json::to_value(more).map_err(|error| self.refused(&error.to_string()))?;
        // What was signed stands.
        if let (Value::Object(claims), Value::Object(more)) = (&mut claims, more) {
            for (name, value) in more {
                let kept = claims.entry(name).or_insert(Value::Null);
                if kept.is_null() {
                    *kept = value;
                }
            }
        }
        Ok(claims)
    }

    fn failed<K>(&self, error: RequestTokenError<http::HttpError, StandardErrorResponse<K>>) -> NotSignedIn
    where
        K: ErrorResponseType + std::fmt::Display + 'static,
        StandardErrorResponse<K>: ErrorResponse,
    {
        match &error {
            RequestTokenError::ServerResponse(response) => match response.error().to_string().as_str() {
                "access_denied" => NotSignedIn::Denied(self.host()),
                "expired_token" => NotSignedIn::Expired,
                code => {
                    let more = response.error_description().map(|text| format!(" ({text})"));
                    self.refused(&format!("{code}{}", more.unwrap_or_default()))
                }
            },
            RequestTokenError::Request(cause) => self.no_answer(cause),
            RequestTokenError::Parse(..) => self.refused("what it answers cannot be read"),
            RequestTokenError::Other(why) => self.refused(why),
        }
    }

    fn no_answer(&self, cause: &(dyn Error + 'static)) -> NotSignedIn {
        NotSignedIn::NoAnswer(self.host(), innermost(cause))
    }

    fn refused(&self, why: &str) -> NotSignedIn {
        let why = why.chars().map(|c| if c.is_control() { ' ' } else { c });
        NotSignedIn::Refused(self.host(), why.take(MAX_REPEATED).collect())
    }
}

/// Whether the secret goes into a header (`client_secret_basic`), which is the default of the
/// standard (OpenID Connect Discovery, 3); otherwise it goes into the body.
fn by_header(methods: Option<&[CoreClientAuthMethod]>) -> bool {
    methods.is_none_or(|methods| {
        methods.contains(&CoreClientAuthMethod::ClientSecretBasic)
            || !methods.contains(&CoreClientAuthMethod::ClientSecretPost)
    })
}

impl Flow {
    /// What to tell the person.
    pub fn code(&self) -> carrel_proto::v1::DeviceCode {
        let complete = self.details.verification_uri_complete();
        carrel_proto::v1::DeviceCode {
            verification_uri: self.details.verification_uri().to_string(),
            user_code: self.details.user_code().secret().clone(),
            verification_uri_complete: complete.map(|uri| uri.secret().clone()).unwrap_or_default(),
            expires_s: self.limit().as_secs(),
        }
    }

    fn limit(&self) -> Duration {
        self.details.expires_in().min(LONGEST_WAIT)
    }
}
