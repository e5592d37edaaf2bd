//! The way to the provider: reqwest, over the same TLS as everything else.

use std::error::Error;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use openidconnect::http::{Response, StatusCode};
use openidconnect::{AsyncHttpClient, HttpRequest, HttpResponse};

/// Longest time of one request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest answer: discovery documents and key sets have some 10 KiB.
const MAX_ANSWER: usize = 512 << 10;

/// What a request may fail with.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// reqwest's.
    #[error(transparent)]
    Request(#[from] reqwest::Error),
    /// The provider is broken for now.
    #[error("it answers {0}")]
    Status(StatusCode),
    /// The answer is over [`MAX_ANSWER`].
    #[error("it gives an answer of over {MAX_ANSWER} bytes")]
    TooLong,
    /// What came is no HTTP response.
    #[error(transparent)]
    Http(#[from] openidconnect::http::Error),
}

/// Sends requests.
#[derive(Clone, Debug)]
pub struct Http(reqwest::Client);

type Answer<'a> = Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'a>>;

impl Http {
    /// Trusts the system's authorities, and those of a file.
    pub fn new(ca_file: Option<&Path>) -> Result<Self> {
        // Another part of the program may have done so.
        let _installed_before = rustls::crypto::ring::default_provider().install_default();
        let mut client = reqwest::Client::builder()
            .timeout(TIMEOUT)
            // What a provider sends elsewhere is not followed: it could lead inside.
            .redirect(reqwest::redirect::Policy::none());
        if let Some(path) = ca_file {
            let pem = std::fs::read(path)
                .with_context(|| format!("oidc.ca_file: cannot read {}", path.display()))?;
            let authorities = reqwest::Certificate::from_pem_bundle(&pem)
                .ok()
                .filter(|authorities| !authorities.is_empty())
                .with_context(|| format!("oidc.ca_file: {} holds no certificate in PEM", path.display()))?;
            client = client.tls_certs_merge(authorities);
        }
        Ok(Self(client.build().context("oidc: TLS")?))
    }

    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let mut response = self.0.execute(request.try_into()?).await?;
        if response.status().is_server_error() {
            return Err(HttpError::Status(response.status()));
        }
        let mut answer = Response::builder().status(response.status());
        for (name, value) in response.headers() {
            answer = answer.header(name, value);
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            if body.len() + chunk.len() > MAX_ANSWER {
                return Err(HttpError::TooLong);
            }
            body.extend_from_slice(&chunk);
        }
        Ok(answer.body(body)?)
    }
}

impl<'c> AsyncHttpClient<'c> for Http {
    type Error = HttpError;
    type Future = Answer<'c>;

    fn call(&'c self, request: HttpRequest) -> Self::Future {
        Box::pin(self.send(request))
    }
}

/// The same for a request that is repeated, whatever happens to it: remembers how the last one failed.
#[derive(Debug)]
pub struct Patient<'a> {
    http: &'a Http,
    failure: Mutex<Option<String>>,
}

impl<'a> Patient<'a> {
    /// Nothing has failed yet.
    pub fn new(http: &'a Http) -> Self {
        Self {
            http,
            failure: Mutex::default(),
        }
    }

    /// Why the last request failed; none: it was answered.
    pub fn failure(&self) -> Option<String> {
        self.failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl<'c> AsyncHttpClient<'c> for Patient<'_> {
    type Error = HttpError;
    type Future = Answer<'c>;

    fn call(&'c self, request: HttpRequest) -> Self::Future {
        Box::pin(async move {
            let answer = self.http.send(request).await;
            let failure = answer.as_ref().err().map(|error| innermost(error));
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
            answer
        })
    }
}

/// The first cause of an error, which says most.
pub fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
