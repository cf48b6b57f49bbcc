//! Transports over HTTP, and how Streamable HTTP is distinguished from HTTP+SSE.

pub(crate) mod client;
mod error;
mod events;
pub(crate) mod sse;
mod streamable;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::Either;
use parking_lot::Mutex;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Method, Response, StatusCode};
use rmcp::RoleClient;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage, ServerNotification};
use rmcp::transport::Transport;
use rmcp::transport::common::client_side_sse::ExponentialBackoff;
use rmcp::transport::streamable_http_client::{StreamableHttpClientTransport, StreamableHttpClientTransportConfig};
use serde_json::Value;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_util::sync::DropGuard;
use toolbus_core::Clock;
use toolbus_core::redact::Redactor;

use self::client::Requester;
use self::sse::SseTransport;
use self::streamable::{EVENT_STREAM, JSON, SESSION};
use super::{LargeMessages, TransportFailure};
use crate::spec::{Credential, HttpKind, HttpSpec};

pub(crate) use self::client::{McpHttpClient, OutgoingRequest};
pub(crate) use self::error::{HttpError, HttpErrorKind, classify};
pub(crate) use self::streamable::is_of_type;

/// Requests that may be on their way at a time. Calls are limited elsewhere, and must not wait here.
const MAX_POSTS: usize = 1024;
/// Longest wait between two attempts at the stream of notifications.
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(30);
/// Longest wait for the end of a connection: the server has 5 s to delete its session.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(6);

/// A connection to an HTTP server.
pub(crate) enum HttpTransport {
    /// By Streamable HTTP.
    Streamable(StreamableTransport),
    /// By HTTP+SSE.
    Sse(SseTransport),
}

/// Least time between two notifications of changes that may have been missed.
const MISSED_PERIOD: Duration = Duration::from_secs(60);

/// A connection by Streamable HTTP.
pub(crate) struct StreamableTransport {
    worker: StreamableHttpClientTransport<McpHttpClient>,
    client: McpHttpClient,
    /// Limits how often a server whose streams or sessions soon end has to list its tools.
    missed_pace: Interval,
    /// Ends requests that the worker waits for without listening, so that it ends as well.
    _guard: DropGuard,
}

impl HttpTransport {
    fn streamable(client: McpHttpClient) -> Self {
        let mut config = StreamableHttpClientTransportConfig::with_uri(client.url().as_str());
        config.max_concurrent_requests = MAX_POSTS;
        config.reinit_on_expired_session = !client.ends_with_session();
        let mut backoff = ExponentialBackoff::default();
        backoff.max_delay = Some(MAX_RECONNECT_DELAY);
        config.retry_config = std::sync::Arc::new(backoff);
        let worker = StreamableHttpClientTransport::with_client(client.clone(), config);
        let guard = client.closed().clone().drop_guard();
        let mut missed_pace = interval(MISSED_PERIOD);
        missed_pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self::Streamable(StreamableTransport { worker, client, missed_pace, _guard: guard })
    }

    /// Holds the reason once the connection has ended.
    pub(crate) fn failure(&self) -> TransportFailure {
        match self {
            Self::Streamable(transport) => transport.client.failure().clone(),
            Self::Sse(transport) => transport.failure().clone(),
        }
    }
}

impl StreamableTransport {
    /// The next message. Notifications that are lost, because the session is new or the stream of notifications
    /// was interrupted, count as a change of its list.
    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        let Self { worker, client, missed_pace, .. } = self;
        let missed = async {
            client.missed().await;
            missed_pace.tick().await;
        };
        tokio::select! {
            biased;
            message = worker.receive() => message.map(|message| client.event_responses().whole(message)),
            // The worker goes on when the server has forgotten the only session.
            () = client.closed().cancelled() => None,
            () = missed => {
                client.set_missed(false);
                let changed = ServerNotification::ToolListChangedNotification(Default::default());
                Some(ServerJsonRpcMessage::notification(changed))
            }
        }
    }
}

impl Transport<RoleClient> for HttpTransport {
    type Error = HttpError;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        match self {
            Self::Streamable(transport) => {
                let sent = transport.worker.send(message);
                Either::Left(async { sent.await.map_err(HttpError::from) })
            }
            Self::Sse(transport) => Either::Right(transport.send(message)),
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        match self {
            Self::Streamable(transport) => transport.receive().await,
            Self::Sse(transport) => transport.receive().await,
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        match self {
            Self::Streamable(transport) => {
                transport.client.closed().cancel();
                match tokio::time::timeout(CLOSE_TIMEOUT, transport.worker.close()).await {
                    Ok(closed) => Ok(closed?),
                    Err(_) => Err(HttpError::closed()),
                }
            }
            Self::Sse(transport) => transport.close().await,
        }
    }
}

/// Longest wait for each step of opening a connection; longer than that for a connection or a token, whose texts have
/// details.
const PATIENCE: Duration = Duration::from_secs(15);

/// Opens connections to one server with one credential, and remembers the server's transport.
pub(crate) struct Opener {
    requester: Arc<Requester>,
    large: LargeMessages,
    /// Whether a connection ends when the server forgets its session.
    ends_with_session: bool,
    configured: HttpKind,
    /// Transport that was detected, if none is configured.
    found: Mutex<HttpKind>,
}

/// Reason why there is no connection. The texts are for operators: no secret, and of a URL only its origin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HttpOpenError {
    /// A person has to give or renew a credential.
    #[error("{text}")]
    AuthRequired {
        /// Instruction on what to do.
        text: String,
    },
    /// Nothing listens there, or there is no such host.
    #[error("{0}")]
    Refused(String),
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

impl Opener {
    /// Prepares connections. Nothing is sent. `redactor` learns the tokens that are fetched, and `clock` measures how long
    /// they last.
    ///
    /// # Errors
    ///
    /// If the URL, a header or the credential is invalid.
    pub(crate) fn new(
        endpoint: &HttpSpec,
        credential: Option<Credential>,
        redactor: &Redactor,
        clock: Clock,
    ) -> Result<Self, HttpOpenError> {
        let requester = Arc::new(Requester::new(endpoint, credential, redactor, clock)?);
        let found = Mutex::new(endpoint.kind);
        Ok(Self {
            requester,
            large: LargeMessages::default(),
            ends_with_session: false,
            configured: endpoint.kind,
            found,
        })
    }

    /// The same, with this for large responses.
    pub(crate) fn with_large(self, large: LargeMessages) -> Self {
        Self { large, ..self }
    }

    /// The same, for connections that end when the server forgets their session, instead of opening another one.
    pub(crate) fn ending_with_session(self) -> Self {
        Self { ends_with_session: true, ..self }
    }

    /// Opens a connection by the transport that is configured or remembered; where that is neither, by Streamable HTTP
    /// if the server takes messages at its URL, else by HTTP+SSE. Streamable HTTP that is known connects when the first
    /// message is sent.
    pub(crate) async fn open(&self) -> Result<HttpTransport, HttpOpenError> {
        let client = McpHttpClient::new(Arc::clone(&self.requester), self.large.clone(), self.ends_with_session);
        match self.kind() {
            HttpKind::Streamable => Ok(HttpTransport::streamable(client)),
            HttpKind::Sse => {
                let opened = within(SseTransport::open(client)).await;
                let transport = opened.inspect_err(|_| self.forget())?;
                Ok(HttpTransport::Sse(transport))
            }
            HttpKind::Detect => Ok(self.detect(client).await?),
        }
    }

    /// Forgets the detected transport: the server may have been replaced.
    pub(crate) fn forget(&self) {
        self.remember(self.configured);
    }

    /// `http`, `sse`, or `http?` while that is not known.
    pub(crate) fn kind_name(&self) -> &'static str {
        match self.kind() {
            HttpKind::Streamable => "http",
            HttpKind::Sse => "sse",
            HttpKind::Detect => "http?",
        }
    }

    async fn detect(&self, client: McpHttpClient) -> Result<HttpTransport, HttpError> {
        let refusal = match within(probe(&client)).await? {
            ProbeResult::Streamable => {
                self.remember(HttpKind::Streamable);
                return Ok(HttpTransport::streamable(client));
            }
            ProbeResult::NoMessages(refusal) => Some(refusal),
            ProbeResult::Unclear => None,
        };
        match (within(SseTransport::open(client.clone())).await, refusal) {
            (Ok(transport), _) => {
                self.remember(HttpKind::Sse);
                Ok(HttpTransport::Sse(transport))
            }
            (Err(_), None) => Ok(HttpTransport::streamable(client)),
            (Err(error), Some(_)) if error.kind == HttpErrorKind::AuthRequired => Err(error),
            (Err(_), Some(refusal)) => Err(refusal),
        }
    }

    fn kind(&self) -> HttpKind {
        *self.found.lock()
    }

    fn remember(&self, kind: HttpKind) {
        *self.found.lock() = kind;
    }
}

async fn within<T>(step: impl Future<Output = Result<T, HttpError>>) -> Result<T, HttpError> {
    tokio::time::timeout(PATIENCE, step).await.unwrap_or_else(|_| {
        let text = format!("the MCP server did not answer within {} s", PATIENCE.as_secs());
        Err(HttpError::new(HttpErrorKind::ConnectionLost, text))
    })
}

impl From<HttpError> for HttpOpenError {
    fn from(error: HttpError) -> Self {
        let text = error.to_string();
        match error.kind {
            HttpErrorKind::AuthRequired => Self::AuthRequired { text },
            HttpErrorKind::ConnectFailed => Self::Refused(text),
            _ => Self::Other(text),
        }
    }
}

/// A request that changes nothing and opens no session. A server of Streamable HTTP responds, or refuses it in its
/// own words.
const PING: &str = r#"{"jsonrpc":"2.0","id":"probe","method":"ping"}"#;

/// Response of a server to a message that was posted to its URL.
enum ProbeResult {
    /// The server supports Streamable HTTP.
    Streamable,
    /// The server accepts no messages at its URL; with the refusal.
    NoMessages(HttpError),
    /// The response shows neither.
    Unclear,
}

/// Posts a ping.
async fn probe(client: &McpHttpClient) -> Result<ProbeResult, HttpError> {
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    let body = Some(Bytes::from_static(PING.as_bytes()));
    let outgoing = OutgoingRequest { method: Method::POST, url: client.url().clone(), headers, body };
    let response = client.exchange(&outgoing).await?;
    let refusal = client.refusal(&response);
    let status = response.status();
    delete_session(client, &response).await;
    match status {
        StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => {
            let body = client::read_refusal(client.origin(), response).await.unwrap_or_default();
            Ok(if is_json_rpc(&body) {
                ProbeResult::Streamable
            } else if status == StatusCode::BAD_REQUEST {
                ProbeResult::Unclear
            } else {
                ProbeResult::NoMessages(refusal)
            })
        }
        StatusCode::NOT_ACCEPTABLE | StatusCode::UNSUPPORTED_MEDIA_TYPE | StatusCode::UNPROCESSABLE_ENTITY => {
            Ok(ProbeResult::Streamable)
        }
        StatusCode::ACCEPTED | StatusCode::NO_CONTENT => Ok(ProbeResult::Streamable),
        status if status.is_success() => {
            let is_expected = is_of_type(&response, JSON) || is_of_type(&response, EVENT_STREAM);
            // Anything else may be the page of a proxy whose server is away.
            Ok(if is_expected { ProbeResult::Streamable } else { ProbeResult::Unclear })
        }
        _ => Err(refusal),
    }
}

/// Some servers open a session for any first request.
async fn delete_session(client: &McpHttpClient, response: &Response) {
    let Some(session) = response.headers().get(SESSION) else { return };
    let headers = HeaderMap::from_iter([(SESSION, session.clone())]);
    let outgoing = OutgoingRequest { method: Method::DELETE, url: client.url().clone(), headers, body: None };
    if let Err(error) = client.exchange(&outgoing).await {
        tracing::debug!(%error, "the session of a probe was not deleted");
    }
}

fn is_json_rpc(body: &[u8]) -> bool {
    serde_json::from_slice::<Value>(body).is_ok_and(|message| message.get("jsonrpc").is_some())
}
