//! HTTP clients with a pool of connections.

use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Request, Response, StatusCode};

use crate::redirect::{self, RedirectError};

/// Longest wait for a connection of [`HttpClient`].
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for which [`HttpClient`] keeps unused connections.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Unused connections that are kept per host.
const MAX_IDLE: usize = 32;

/// Reason why there is no client: the system's trusted certificates cannot be read, most likely.
#[derive(Debug, thiserror::Error)]
#[error("the HTTP client cannot be set up")]
pub struct HttpClientError(#[from] reqwest::Error);

/// A client that follows no redirect. Clones share the pool of connections.
///
/// * Proxies of the environment are not used: a request goes where the configuration directs it, and nowhere else.
/// * There are no cookies: a request is independent of those before it.
/// * `TCP_NODELAY` is on.
///
/// # Errors
///
/// If TLS cannot be set up.
pub fn http_client(connect_timeout: Duration, idle_timeout: Duration) -> Result<reqwest::Client, HttpClientError> {
    let client = reqwest::Client::builder()
        .user_agent(concat!("toolbus/", env!("CARGO_PKG_VERSION")))
        .redirect(Policy::none())
        .no_proxy()
        .tcp_nodelay(true)
        .connect_timeout(connect_timeout)
        .pool_max_idle_per_host(MAX_IDLE)
        .pool_idle_timeout(idle_timeout)
        .build()?;
    Ok(client)
}

/// A client that follows redirects within one origin (scheme, host and port), so that credentials and arguments reach no
/// other server. Otherwise it is as [`http_client`] builds it.
#[derive(Debug, Clone)]
pub struct HttpClient(reqwest::Client);

impl HttpClient {
    /// Sets the client up.
    ///
    /// # Errors
    ///
    /// If TLS cannot be set up.
    pub fn new() -> Result<Self, HttpClientError> {
        http_client(CONNECT_TIMEOUT, IDLE_TIMEOUT).map(Self)
    }

    /// The client beneath it, which follows no redirect.
    #[must_use]
    pub const fn without_redirects(&self) -> &reqwest::Client {
        &self.0
    }

    /// Sends a request, and follows redirects as far as allowed.
    ///
    /// # Errors
    ///
    /// If there is no response.
    pub async fn send(&self, mut request: Request) -> Result<HttpReply, SendError> {
        let mut followed = 0;
        loop {
            let next = request.try_clone();
            let response =
                self.0.execute(request).await.map_err(|error| SendError { error, is_first: followed == 0 })?;
            // Bodies are held in memory, so a request can always be sent again.
            let (Some(location), Some(next)) = (redirect::location(&response), next) else {
                return Ok(HttpReply::Response(response));
            };
            match redirect::follow(next, &response, location, followed) {
                Ok(next) => request = next,
                Err(error) => return Ok(HttpReply::Redirect(response.status(), error)),
            }
            followed += 1;
        }
    }
}

/// The response to a request.
#[derive(Debug)]
pub enum HttpReply {
    /// A response whose body is to be read.
    Response(Response),
    /// A redirect that is not followed, with its status.
    Redirect(StatusCode, RedirectError),
}

/// A request that failed.
#[derive(Debug)]
pub struct SendError {
    /// The error of the client.
    pub error: reqwest::Error,
    /// Whether no request was sent before: after a redirect, the server may have acted on the first one.
    pub is_first: bool,
}
