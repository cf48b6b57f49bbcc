use std::time::Duration;

use reqwest::redirect::{Action, Attempt, Policy};

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Unused connections that are kept per host, and for how long.
const MAX_IDLE: usize = 32;
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Redirects that one call follows.
const MAX_REDIRECTS: usize = 5;

/// The HTTP client and connection pool of all endpoints. Clones share the pool.
///
/// * Redirects are followed within one origin (scheme, host and port) only, so that credentials and arguments never
///   reach another server.
/// * Proxies of the environment are not used: a request goes where the configuration says, and nowhere else.
/// * There are no cookies: a call knows nothing of the calls before it.
/// * `TCP_NODELAY` is on.
#[derive(Debug, Clone)]
pub struct Client(reqwest::Client);

/// Why there is no client: the system's trusted certificates cannot be read, most likely.
#[derive(Debug, thiserror::Error)]
#[error("the HTTP client cannot be set up")]
pub struct ClientError(#[from] reqwest::Error);

impl Client {
    /// Sets the client up.
    ///
    /// # Errors
    ///
    /// When TLS cannot be set up.
    pub fn new() -> Result<Self, ClientError> {
        let client = reqwest::Client::builder()
            .user_agent(concat!("toolbus/", env!("CARGO_PKG_VERSION")))
            .redirect(Policy::custom(within_origin))
            .referer(false)
            .no_proxy()
            .tcp_nodelay(true)
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_max_idle_per_host(MAX_IDLE)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .build()?;
        Ok(Self(client))
    }

    /// Sends one request, and follows redirects as far as allowed.
    pub(super) async fn execute(&self, request: reqwest::Request) -> Result<reqwest::Response, reqwest::Error> {
        self.0.execute(request).await
    }
}

/// A redirect that is not followed ends as the answer that it came with.
fn within_origin(attempt: Attempt<'_>) -> Action {
    let same = attempt.previous().first().is_some_and(|first| first.origin() == attempt.url().origin());
    if same && attempt.previous().len() <= MAX_REDIRECTS { attempt.follow() } else { attempt.stop() }
}
