//! Streamable HTTP: what the worker of `rmcp` has us send. Its own client holds bodies of any size.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Response, StatusCode};
use rmcp::model::{
    ClientJsonRpcMessage, ClientRequest, ErrorData, JsonRpcResponse, RequestId, ServerJsonRpcMessage, ServerResult,
};
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};
use serde_json::json;
use sse_stream::Sse;

use super::client::{self, EventResponses, McpHttpClient, OutgoingRequest};
use super::error::{HttpError, HttpErrorKind};
use super::events::events;
use crate::client::message;
use crate::transport::{LargeMessages, MAX_VALUES, has_few_values};

/// The header that names a session.
pub(super) const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");
/// Code of JSON-RPC errors with which servers refuse requests for other reasons than a failure of a tool.
const REFUSED: i32 = -32_000;
/// Longest name of a session, in bytes.
const MAX_SESSION: usize = 1024;
pub(super) const JSON: &str = "application/json";
pub(super) const EVENT_STREAM: &str = "text/event-stream";

type Failure = StreamableHttpError<HttpError>;

impl From<HttpError> for Failure {
    fn from(error: HttpError) -> Self {
        Self::Client(error)
    }
}

impl StreamableHttpClient for McpHttpClient {
    type Error = HttpError;

    async fn post_message(
        &self,
        _: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        _: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        self.while_open(self.post(message, session, headers)).await
    }

    async fn get_stream(
        &self,
        _: Arc<str>,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        _: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Failure> {
        self.while_open(self.listen(session, last_event, headers)).await
    }

    /// Runs on a closed connection as well: that is when a session is deleted.
    async fn delete_session(
        &self,
        _: Arc<str>,
        session: Arc<str>,
        _: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Failure> {
        let mut headers = HeaderMap::from_iter(headers);
        headers.insert(SESSION, header(&session)?);
        let outgoing = OutgoingRequest { method: Method::DELETE, url: self.url().clone(), headers, body: None };
        let response = self.exchange(&outgoing).await?;
        match response.status() {
            // A server need not let sessions be deleted, and may have forgotten this one.
            StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_FOUND => Ok(()),
            status if status.is_success() => Ok(()),
            _ => Err(self.refusal(&response).into()),
        }
    }
}

impl McpHttpClient {
    async fn post(
        &self,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let mut headers = HeaderMap::from_iter(headers);
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
        if let Some(session) = &session {
            headers.insert(SESSION, header(session)?);
        }
        let body = Some(serde_json::to_vec(&message)?.into());
        let response =
            self.exchange(&OutgoingRequest { method: Method::POST, url: self.url().clone(), headers, body }).await?;
        let status = response.status();
        if status == StatusCode::NOT_FOUND && session.is_some() {
            return Err(self.expired());
        }
        let request = match message {
            ClientJsonRpcMessage::Request(request) => Some(request),
            _ => None,
        };
        match request {
            None if status.is_success() => Ok(StreamableHttpPostResponse::Accepted),
            None => Err(self.refusal(&response).into()),
            Some(request) => {
                let opens =
                    matches!(request.request, ClientRequest::InitializeRequest(_) | ClientRequest::DiscoverRequest(_));
                let is_discovery = matches!(request.request, ClientRequest::DiscoverRequest(_));
                if status.is_success() {
                    if matches!(request.request, ClientRequest::InitializeRequest(_)) {
                        self.session_opened();
                    }
                    self.receive_response(response, request.id, opens).await
                } else {
                    match self.refused(response, request.id, is_discovery).await {
                        Ok(refusal) if session.is_some() && is_forgotten(status, &refusal) => Err(self.expired()),
                        refused => refused,
                    }
                }
            }
        }
    }

    /// The server no longer knows the session.
    fn expired(&self) -> Failure {
        if self.ends_with_session() {
            self.failure().set("the server no longer knows the session");
            self.closed().cancel();
        }
        Failure::SessionExpired
    }

    async fn receive_response(
        &self,
        response: Response,
        id: RequestId,
        opens: bool,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        if matches!(response.status(), StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        let session = self.session(&response)?;
        if is_of_type(&response, EVENT_STREAM) {
            return Ok(StreamableHttpPostResponse::Sse(self.responses(response, id, opens), session));
        }
        let origin = self.origin();
        if !is_of_type(&response, JSON) {
            let text =
                format!("the MCP server at {origin} answered neither JSON nor events: check the path of its URL");
            return Err(HttpError::invalid(text).into());
        }
        // Its room is kept until it has been read as a message.
        let (body, _room) = client::read_response(self, response).await?;
        let size = body.len();
        let read = move || has_few_values(&body).then(|| message::read(&body).ok());
        let Some(message) = self.large().read(size, read).await.unwrap_or(Some(None)) else {
            return Err(client::too_large(origin, &format!("{MAX_VALUES} values")).into());
        };
        match message {
            Some(ServerJsonRpcMessage::Response(response)) if response.id.to_string() == id.to_string() => {
                Ok(StreamableHttpPostResponse::Json(ServerJsonRpcMessage::Response(response), session))
            }
            Some(ServerJsonRpcMessage::Error(error)) => Ok(correlated(error.error, id, session)),
            _ => {
                let text = format!("the MCP server at {origin} answered JSON that is no answer to the request");
                Err(HttpError::invalid(text).into())
            }
        }
    }

    /// Reads the JSON-RPC error in a response without success, which is more precise than the status.
    async fn refused(
        &self,
        response: Response,
        id: RequestId,
        is_discovery: bool,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let refusal = self.refusal(&response);
        if refusal.kind != HttpErrorKind::Refused || response.status().is_redirection() {
            return Err(refusal.into());
        }
        let is_client_error = response.status().is_client_error();
        let body = client::read_refusal(self.origin(), response).await.unwrap_or_default();
        match serde_json::from_slice(&body) {
            Ok(ServerJsonRpcMessage::Error(error)) => Ok(correlated(error.error, id, None)),
            // A server of an older protocol version: the handshake continues with `initialize`.
            _ if is_discovery && is_client_error => {
                Ok(correlated(ErrorData::invalid_request(refusal.to_string(), None), id, None))
            }
            _ => Err(refusal.into()),
        }
    }

    /// The events with the response to a request. The worker requests a failed stream again, at once and for ever; a
    /// stream that ends it leaves alone, or resumes later.
    fn responses(&self, response: Response, id: RequestId, opens: bool) -> BoxStream<'static, Result<Sse, SseError>> {
        let failure = self.failure().clone();
        // rmcp takes the response to a handshake from the stream itself.
        let reader = StreamReader::new(self, self.large().clone(), !opens);
        let responses = events(self.origin(), response, reader.large.clone()).filter_map(move |event| {
            let (id, failure, reader) = (id.clone(), failure.clone(), reader.clone());
            async move {
                let message = match event {
                    Ok(event) => reader.read(event, move |_| Some(id)).await,
                    Err(error) => {
                        tracing::debug!(%error, "an answer was cut short");
                        let is_too_large = error.kind == HttpErrorKind::TooLarge;
                        if opens && !is_too_large {
                            failure.set(error.to_string());
                        }
                        is_too_large
                            .then(|| Sse::default().data(too_large(&id, &format!("{} bytes", reader.large.max()))))
                    }
                };
                message.map(Ok)
            }
        });
        responses.take_until(self.closed().clone().cancelled_owned()).boxed()
    }

    async fn listen(
        &self,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Failure> {
        let mut headers = HeaderMap::from_iter(headers);
        headers.insert(ACCEPT, HeaderValue::from_static(EVENT_STREAM));
        if let Some(session) = session {
            headers.insert(SESSION, header(&session)?);
        }
        // The server sends what came after that event.
        let is_resumed = last_event.is_some();
        if let Some(last_event) = last_event {
            headers.insert(LAST_EVENT, header(&last_event)?);
        }
        let response = self
            .exchange(&OutgoingRequest { method: Method::GET, url: self.url().clone(), headers, body: None })
            .await?;
        let refusal = self.refusal(&response);
        let status = response.status();
        if status.is_success() && is_of_type(&response, EVENT_STREAM) {
            if !is_resumed {
                self.stream_opened();
            }
            let large = LargeMessages { results: None, ..self.large().clone() };
            let reader = StreamReader::new(self, large.clone(), true);
            let events = events(self.origin(), response, large).filter_map(move |event| {
                let reader = reader.clone();
                async move {
                    let event = event.inspect_err(|error| tracing::debug!(%error, "a stream of notifications ended"));
                    // It brings responses as well, where it continues the stream of a request.
                    let id = move |data: &[u8]| if is_resumed { message::response_id(data) } else { None };
                    reader.read(event.ok()?, id).await.map(Ok)
                }
            });
            return Ok(events.take_until(self.closed().clone().cancelled_owned()).boxed());
        }
        // The stream is optional, and servers without one refuse in many ways.
        if status.is_success() || refusal.kind == HttpErrorKind::Refused {
            return Err(Failure::ServerDoesNotSupportSse);
        }
        Err(refusal.into())
    }

    fn session(&self, response: &Response) -> Result<Option<String>, HttpError> {
        let Some(session) = response.headers().get(SESSION) else { return Ok(None) };
        match session.to_str() {
            Ok(session) if session.len() <= MAX_SESSION => Ok(Some(session.to_owned())),
            _ => Err(HttpError::invalid(format!("the MCP server at {} named an unusable session", self.origin()))),
        }
    }
}

/// Reads the events of one stream.
#[derive(Clone)]
struct StreamReader {
    large: LargeMessages,
    responses: EventResponses,
    /// Whether the next response may bypass `rmcp`, which delivers the first response of a stream and drops later ones.
    may_pass: Arc<AtomicBool>,
}

impl StreamReader {
    fn new(client: &McpHttpClient, large: LargeMessages, may_pass: bool) -> Self {
        Self { large, responses: client.event_responses().clone(), may_pass: Arc::new(AtomicBool::new(may_pass)) }
    }

    /// Returns an event with the message that `rmcp` reads instead, if it is of use. One with too many values
    /// becomes the failure of the request that it responds to, if any.
    async fn read(&self, event: Sse, request: impl FnOnce(&[u8]) -> Option<RequestId> + Send + 'static) -> Option<Sse> {
        // rmcp ends a handshake for an event that is no message.
        let is_message = matches!(event.event.as_deref(), None | Some("" | "message"));
        let data = event.data.filter(|_| is_message);
        let event = Sse { data: None, ..event };
        let Some(data) = data else { return Some(event) };
        let (size, may_pass) = (data.len(), self.may_pass.load(Ordering::Relaxed));
        let read = move || {
            if message::is_long_notification(data.as_bytes()) {
                return Some(EventMessage::default());
            }
            if has_few_values(data.as_bytes()) {
                return Some(EventMessage::of(data, may_pass));
            }
            let id = request(data.as_bytes())?;
            let text = Some(too_large(&id, &format!("{MAX_VALUES} values")));
            Some(EventMessage { text, is_response: true, whole: None })
        };
        let EventMessage { text, is_response, whole } = self.large.read(size, read).await.flatten()?;
        if is_response {
            self.may_pass.store(false, Ordering::Relaxed);
        }
        if let Some((id, response)) = whole {
            self.responses.0.lock().insert(id, response);
        }
        Some(Sse { data: text, ..event })
    }
}
/// Replacement of an event for `rmcp`.
#[derive(Default)]
struct EventMessage {
    /// The message that `rmcp` reads; `None` if there is none.
    text: Option<String>,
    /// Whether the message is a response.
    is_response: bool,
    /// The response that the message stands for, and the id of its request.
    whole: Option<(RequestId, ServerJsonRpcMessage)>,
}

impl EventMessage {
    fn of(text: String, may_pass: bool) -> Self {
        let Ok(message) = message::read(text.as_bytes()) else { return Self::default() };
        let id = match &message {
            // rmcp takes the names of headers from lists of tools.
            ServerJsonRpcMessage::Response(JsonRpcResponse { result: ServerResult::ListToolsResult(_), .. }) => None,
            ServerJsonRpcMessage::Response(response) => Some(&response.id),
            ServerJsonRpcMessage::Error(error) => error.id.as_ref(),
            _ => return Self { text: Some(text), ..Self::default() },
        };
        match id.filter(|_| may_pass).cloned() {
            Some(id) => {
                let short = json!({ "jsonrpc": "2.0", "id": id, "result": {} });
                Self { text: Some(short.to_string()), is_response: true, whole: Some((id, message)) }
            }
            None => Self { text: serde_json::to_string(&message).ok(), is_response: true, whole: None },
        }
    }
}

fn correlated(error: ErrorData, id: RequestId, session: Option<String>) -> StreamableHttpPostResponse {
    StreamableHttpPostResponse::Json(ServerJsonRpcMessage::error(error, Some(id)), session)
}

/// Whether a server rejects an unknown session. Many respond 400 instead of 404, recognisable only by the text.
fn is_forgotten(status: StatusCode, refusal: &StreamableHttpPostResponse) -> bool {
    let StreamableHttpPostResponse::Json(ServerJsonRpcMessage::Error(message), _) = refusal else { return false };
    let ErrorData { code, message, .. } = &message.error;
    status == StatusCode::BAD_REQUEST && code.0 == REFUSED && message.to_ascii_lowercase().contains("session")
}

/// The error that replaces an event that was too large: the reason for the caller, without the origin.
fn too_large(id: &RequestId, most: &str) -> String {
    let text = format!("its server sent an event of more than {most}. Ask for less.");
    let message = ServerJsonRpcMessage::error(ErrorData::internal_error(text, None), Some(id.clone()));
    serde_json::to_string(&message).unwrap_or_default()
}

fn header(value: &str) -> Result<HeaderValue, HttpError> {
    HeaderValue::from_bytes(value.as_bytes())
        .map_err(|_| HttpError::invalid("the MCP server named something that no header can carry"))
}

pub(crate) fn is_of_type(response: &Response, kind: &str) -> bool {
    let value = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = value.and_then(|value| value.split(';').next());
    essence.is_some_and(|essence| essence.trim().eq_ignore_ascii_case(kind))
}
