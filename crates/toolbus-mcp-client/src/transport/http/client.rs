//! Requests to one server.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Method, Response, StatusCode};
use tokio_util::sync::CancellationToken;
use toolbus_core::redact::Redactor;
use url::Url;

use super::credentials::Authorizer;
use super::error::HttpError;
use super::headers;
use super::opener::OpenError;
use crate::spec::{Credential, Endpoint};
use crate::transport::TransportFailure;

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Unused connections that are kept, and for how long: less than the 5 s after which Node and uvicorn close them, because
/// a request on a connection that is just being closed is lost.
const MAX_IDLE: usize = 32;
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

/// What all connections to a server have in common.
///
/// * Every request stays on the origin (scheme, host and port) of the configured URL. Redirects are not followed.
/// * Proxies of the environment are not used, and there are no cookies.
pub(super) struct Requester {
    http: reqwest::Client,
    url: Url,
    origin: String,
    headers: HeaderMap,
    authorizer: Authorizer,
}

impl Requester {
    pub(super) fn new(
        endpoint: &Endpoint,
        credential: Option<Credential>,
        redactor: &Redactor,
    ) -> Result<Self, OpenError> {
        let http = reqwest::Client::builder()
            .user_agent(concat!("toolbus/", env!("CARGO_PKG_VERSION")))
            .redirect(Policy::none())
            .no_proxy()
            .tcp_nodelay(true)
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_max_idle_per_host(MAX_IDLE)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .build()
            .map_err(|_| OpenError::Other("the HTTP client cannot be set up: can the certificates be read?".into()))?;
        let mut url = endpoint.url.clone();
        if !matches!(url.scheme(), "http" | "https") {
            return Err(OpenError::Other("the URL must begin with http:// or https://".into()));
        }
        let mut headers =
            headers::configured(&endpoint.headers).map_err(|error| OpenError::Other(error.to_string()))?;
        if let Some(value) = from_user_info(&http, &url) {
            headers.entry(AUTHORIZATION).or_insert(value);
        }
        // Both are there: the URL has a host.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        let origin = url.origin().ascii_serialization();
        let authorizer =
            Authorizer::new(credential, &http, redactor).map_err(|error| OpenError::Other(error.to_string()))?;
        Ok(Self { http, url, origin, headers, authorizer })
    }

    fn has_credential(&self) -> bool {
        self.authorizer.has_credential() || self.headers.contains_key(AUTHORIZATION)
    }

    /// Sends a request. A token that the server does not accept is fetched anew, once.
    async fn exchange(&self, outgoing: &Outgoing) -> Result<Response, HttpError> {
        let credential = self.authorizer.header().await?;
        let response = self.attempt(outgoing, credential.clone()).await?;
        if response.status() == StatusCode::UNAUTHORIZED
            && let Some((_, refused)) = credential
            && self.authorizer.forget(&refused).await
        {
            let credential = self.authorizer.header().await?;
            return self.attempt(outgoing, credential).await;
        }
        Ok(response)
    }

    async fn attempt(
        &self,
        outgoing: &Outgoing,
        credential: Option<(reqwest::header::HeaderName, HeaderValue)>,
    ) -> Result<Response, HttpError> {
        if outgoing.url.origin() != self.url.origin() {
            return Err(HttpError::invalid(format!("a URL outside of {} is not used", self.origin)));
        }
        let mut headers = self.headers.clone();
        headers.extend(outgoing.headers.clone());
        if let Some((name, value)) = credential {
            headers.insert(name, value);
        }
        let mut request = self.http.request(outgoing.method.clone(), outgoing.url.clone()).headers(headers);
        if let Some(body) = &outgoing.body {
            request = request.body(body.clone());
        }
        request.send().await.map_err(|error| HttpError::unanswered(&self.origin, &error))
    }
}

/// User name and password of a URL as a header, so that they are nowhere else.
fn from_user_info(http: &reqwest::Client, url: &Url) -> Option<HeaderValue> {
    let mut value = http.get(url.clone()).build().ok()?.headers_mut().remove(AUTHORIZATION)?;
    value.set_sensitive(true);
    Some(value)
}

/// A request, besides what every request has.
pub(crate) struct Outgoing {
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Option<Bytes>,
}

/// One connection to a server, in the sense of MCP. Clones are the same connection.
#[derive(Clone)]
pub(crate) struct HttpClient {
    requester: Arc<Requester>,
    closed: CancellationToken,
    failure: TransportFailure,
}

impl HttpClient {
    pub(super) fn new(requester: Arc<Requester>) -> Self {
        Self { requester, closed: CancellationToken::new(), failure: TransportFailure::default() }
    }

    /// The configured URL, without user name and password.
    pub(crate) fn url(&self) -> &Url {
        &self.requester.url
    }

    /// Its scheme, host and port.
    pub(crate) fn origin(&self) -> &str {
        &self.requester.origin
    }

    /// Ends every request and stream when it is cancelled.
    pub(crate) const fn closed(&self) -> &CancellationToken {
        &self.closed
    }

    /// Why the connection has ended.
    pub(crate) const fn failure(&self) -> &TransportFailure {
        &self.failure
    }

    /// Runs `work` until the connection is closed.
    pub(crate) async fn while_open<T, E: From<HttpError>>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        tokio::select! {
            biased;
            () = self.closed.cancelled() => Err(HttpError::closed().into()),
            result = work => result,
        }
    }

    /// Sends a request, and gives the answer whatever its status is.
    pub(crate) async fn exchange(&self, outgoing: &Outgoing) -> Result<Response, HttpError> {
        self.requester.exchange(outgoing).await
    }

    /// The error that an answer without success is.
    pub(crate) fn refusal(&self, response: &Response) -> HttpError {
        let has_credential = self.requester.has_credential();
        HttpError::refused(self.origin(), response.status(), response.headers(), has_credential)
    }
}
