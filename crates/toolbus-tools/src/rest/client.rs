use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Request, Response, StatusCode};

use super::redirect::{self, Refusal};

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Unused connections that are kept per host, and for how long.
const MAX_IDLE: usize = 32;
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

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
            .redirect(Policy::none())
            .no_proxy()
            .tcp_nodelay(true)
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_max_idle_per_host(MAX_IDLE)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .build()?;
        Ok(Self(client))
    }

    /// Sends one request, and follows redirects as far as allowed.
    pub(super) async fn send(&self, mut request: Request) -> Result<Reply, SendError> {
        let mut followed = 0;
        loop {
            let next = request.try_clone();
            let response =
                self.0.execute(request).await.map_err(|error| SendError { error, is_first: followed == 0 })?;
            // Bodies are held in memory, so a request can always be sent again.
            let (Some(location), Some(next)) = (redirect::location(&response), next) else {
                return Ok(Reply::Answer(response));
            };
            match redirect::follow(next, &response, location, followed) {
                Ok(next) => request = next,
                Err(refusal) => return Ok(Reply::Refused(response.status(), refusal)),
            }
            followed += 1;
        }
    }
}

/// What a request ended with.
pub(super) enum Reply {
    /// An answer, to be read.
    Answer(Response),
    /// A redirect that is not followed.
    Refused(StatusCode, Refusal),
}

/// A request that failed.
#[derive(Debug)]
pub(super) struct SendError {
    pub(super) error: reqwest::Error,
    /// False after a redirect: the server has had a request already, and may have acted on it.
    pub(super) is_first: bool,
}
