//! Requests to one server, with their headers and bounded bodies.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use reqwest::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName,
    HeaderValue, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use reqwest::{Method, Response, StatusCode};
use rmcp::model::{RequestId, ServerJsonRpcMessage};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use toolbus_core::Clock;
use toolbus_core::redact::Redactor;
use toolbus_core::results::ReservedRoom;
use toolbus_core::secret::Secret;
use toolbus_outbound::headers::{HeaderError, parse_name, parse_value};
use toolbus_outbound::{Authorizer, http_client, read_growing, read_up_to};
use url::Url;

use super::HttpOpenError;
use super::error::{HttpError, HttpErrorKind};
use crate::spec::{Credential, HttpSpec};
use crate::transport::{LargeMessages, MAX_MESSAGE, TransportFailure};

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for which unused connections are kept: less than the 5 s after which Node and uvicorn close them, because a
/// request on a connection that is just being closed is lost.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

/// Client and limits that all connections to a server share.
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
        endpoint: &HttpSpec,
        credential: Option<Credential>,
        redactor: &Redactor,
        clock: Clock,
    ) -> Result<Self, HttpOpenError> {
        let http = http_client(CONNECT_TIMEOUT, IDLE_TIMEOUT).map_err(|_| {
            HttpOpenError::Other("the HTTP client cannot be set up: can the certificates be read?".into())
        })?;
        let mut url = endpoint.url.clone();
        if !matches!(url.scheme(), "http" | "https") {
            return Err(HttpOpenError::Other("the URL must begin with http:// or https://".into()));
        }
        let mut headers = configured(&endpoint.headers).map_err(|error| HttpOpenError::Other(error.to_string()))?;
        if let Some(value) = from_user_info(&http, &url) {
            headers.entry(AUTHORIZATION).or_insert(value);
        }
        // Both are there: the URL has a host.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        let origin = url.origin().ascii_serialization();
        let authorizer = Authorizer::new(credential, &http, redactor, clock)
            .map_err(|error| HttpOpenError::Other(error.to_string()))?;
        Ok(Self { http, url, origin, headers, authorizer })
    }

    fn has_credential(&self) -> bool {
        self.authorizer.has_credential() || self.headers.contains_key(AUTHORIZATION)
    }

    /// Sends a request. A token that the server does not accept is fetched anew, once.
    async fn exchange(&self, outgoing: &OutgoingRequest) -> Result<Response, HttpError> {
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
        outgoing: &OutgoingRequest,
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
        request.send().await.map_err(|error| HttpError::no_response(&self.origin, &error))
    }
}

/// User name and password of a URL as a header, so that they are nowhere else.
fn from_user_info(http: &reqwest::Client, url: &Url) -> Option<HeaderValue> {
    let mut value = http.get(url.clone()).build().ok()?.headers_mut().remove(AUTHORIZATION)?;
    value.set_sensitive(true);
    Some(value)
}

/// A request, besides what every request has.
pub(crate) struct OutgoingRequest {
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Option<Bytes>,
}

/// One connection to a server, in the sense of MCP. Clones are the same connection.
#[derive(Clone)]
pub(crate) struct McpHttpClient {
    requester: Arc<Requester>,
    large: LargeMessages,
    ends_with_session: bool,
    closed: CancellationToken,
    failure: TransportFailure,
    history: Arc<History>,
    responses: EventResponses,
}

/// Responses that came as events, by the id of their request. `rmcp` reads events on a thread that serves every call, so
/// it gets a short response instead of each, which is exchanged for the whole one once `rmcp` has passed it on.
#[derive(Clone, Default)]
pub(super) struct EventResponses(pub(super) Arc<Mutex<HashMap<RequestId, ServerJsonRpcMessage>>>);

impl EventResponses {
    /// Returns the response that `message` stands for, or `message` itself.
    pub(super) fn whole(&self, message: ServerJsonRpcMessage) -> ServerJsonRpcMessage {
        let response = match &message {
            ServerJsonRpcMessage::Response(response) => self.0.lock().remove(&response.id),
            _ => None,
        };
        response.unwrap_or(message)
    }
}

/// Whether a connection has opened a session and a stream.
#[derive(Debug, Default)]
struct History {
    has_session: AtomicBool,
    has_stream: AtomicBool,
    /// Whether the server may have announced a change that was missed.
    is_missed: watch::Sender<bool>,
}

impl McpHttpClient {
    pub(super) fn new(requester: Arc<Requester>, large: LargeMessages, ends_with_session: bool) -> Self {
        let (closed, failure) = (CancellationToken::new(), TransportFailure::default());
        let (history, responses) = (Arc::default(), EventResponses::default());
        Self { requester, large, ends_with_session, closed, failure, history, responses }
    }

    /// Notes that the server has responded to `initialize`. If it is not the first time, changes may have been missed.
    pub(super) fn session_opened(&self) {
        if self.history.has_session.swap(true, Ordering::Relaxed) {
            // The stream of the new session is not the second one of the old.
            self.history.has_stream.store(false, Ordering::Relaxed);
            self.set_missed(true);
        }
    }

    /// Notes the begin of a stream of notifications. If it is not the first one, changes may have been missed.
    pub(super) fn stream_opened(&self) {
        if self.history.has_stream.swap(true, Ordering::Relaxed) {
            self.set_missed(true);
        }
    }

    pub(super) fn set_missed(&self, is_missed: bool) {
        self.history.is_missed.send_replace(is_missed);
    }

    /// Returns when changes may have been missed.
    pub(super) async fn missed(&self) {
        // The sender is the connection's, so the wait does not fail.
        let _ = self.history.is_missed.subscribe().wait_for(|is_missed| *is_missed).await;
    }

    /// Whether the connection ends when the server forgets its session.
    pub(crate) const fn ends_with_session(&self) -> bool {
        self.ends_with_session
    }

    /// Room and turns for large responses.
    pub(crate) const fn large(&self) -> &LargeMessages {
        &self.large
    }

    /// Responses that came as events and that `rmcp` has not passed on yet.
    pub(super) const fn event_responses(&self) -> &EventResponses {
        &self.responses
    }

    /// The configured URL, without user name and password.
    pub(crate) fn url(&self) -> &Url {
        &self.requester.url
    }

    /// Scheme, host and port of the server.
    pub(crate) fn origin(&self) -> &str {
        &self.requester.origin
    }

    /// Ends every request and stream when it is cancelled.
    pub(crate) const fn closed(&self) -> &CancellationToken {
        &self.closed
    }

    /// Reason why the connection has ended.
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

    /// Sends a request, and returns the response with any status.
    pub(crate) async fn exchange(&self, outgoing: &OutgoingRequest) -> Result<Response, HttpError> {
        self.requester.exchange(outgoing).await
    }

    /// The error that a response without success is.
    pub(crate) fn refusal(&self, response: &Response) -> HttpError {
        let has_credential = self.requester.has_credential();
        HttpError::refused(self.origin(), response.status(), response.headers(), has_credential)
    }
}

/// Headers that the transport itself sets. Configurations written for other clients have some of them, so they are
/// passed over.
const OWN: [HeaderName; 10] =
    [ACCEPT, ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, TE, TRAILER, TRANSFER_ENCODING, UPGRADE];
const OWN_OF_MCP: [&str; 3] = ["mcp-session-id", "mcp-protocol-version", "last-event-id"];

/// Checks the headers of a configuration.
pub(super) fn configured(headers: &BTreeMap<String, Secret>) -> Result<HeaderMap, HeaderError> {
    let mut checked = HeaderMap::new();
    for (name, value) in headers {
        let name = parse_name(name)?;
        if OWN.contains(&name) || OWN_OF_MCP.contains(&name.as_str()) {
            tracing::warn!(header = %name, "a configured header is left out: the transport sets it itself");
            continue;
        }
        let value = parse_value(&name, value.expose())?;
        checked.insert(name, value);
    }
    Ok(checked)
}

/// Largest response to a request that failed, in bytes after decompression.
const MAX_REFUSAL: usize = 64 * 1024;

/// Reads the body of a request that failed, if it is short.
pub(super) async fn read_refusal(origin: &str, mut response: Response) -> Result<Vec<u8>, HttpError> {
    match read_up_to(&mut response, MAX_REFUSAL).await.map_err(|error| HttpError::no_response(origin, &error))? {
        (body, true) => Ok(body),
        (_, false) => Err(too_large(origin, &format!("{MAX_REFUSAL} bytes"))),
    }
}

/// Reads a response in JSON. What it returns with a large one keeps room for it.
pub(super) async fn read_response(
    client: &McpHttpClient,
    mut response: Response,
) -> Result<(Vec<u8>, Option<ReservedRoom>), HttpError> {
    let (results, most) = (client.large().results.as_ref(), client.large().max());
    let mut reserved = None;
    let grow = async {
        if let Some(results) = results {
            reserved = Some(results.reserve().await);
        }
        most
    };
    let read = read_growing(&mut response, MAX_MESSAGE, grow).await;
    match read.map_err(|error| HttpError::no_response(client.origin(), &error))? {
        (body, true) => Ok((body, reserved)),
        (_, false) => Err(too_large(client.origin(), &format!("{most} bytes"))),
    }
}

pub(super) fn too_large(origin: &str, limit: &str) -> HttpError {
    let text = format!("the MCP server at {origin} answered more than {limit}");
    HttpError::new(HttpErrorKind::TooLarge, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, value: &str) -> Result<HeaderMap, HeaderError> {
        configured(&BTreeMap::from([(name.to_owned(), Secret::from(value))]))
    }

    #[test]
    fn a_header_is_sent_as_configured_and_marked_as_sensitive() {
        let headers = of("X-Api-Key", "k3y").unwrap();
        assert_eq!(headers["x-api-key"], "k3y");
        assert!(headers["x-api-key"].is_sensitive());
    }

    #[test]
    fn a_header_that_the_transport_sets_is_left_out() {
        for name in ["Accept", "content-type", "Host", "Content-Length", "MCP-Session-Id", "Mcp-Protocol-Version"] {
            assert_eq!(of(name, "x"), Ok(HeaderMap::new()), "{name}");
        }
    }

    #[test]
    fn a_header_that_cannot_be_sent_is_refused_without_its_value() {
        assert_eq!(of("a b", "x"), Err(HeaderError::Name("a b".to_owned())));
        assert_eq!(of("x-a", "hunter2\r\nevil: 1"), Err(HeaderError::Value("x-a".to_owned())));
    }
}
