//! HTTP+SSE, as of protocol version 2024-11-05: a stream of events brings the messages of the server, and its first
//! event has the address to post messages to.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use parking_lot::{Mutex, MutexGuard};
use reqwest::Method;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use rmcp::RoleClient;
use rmcp::model::{ClientJsonRpcMessage, ClientNotification, RequestId, ServerJsonRpcMessage};
use rmcp::transport::Transport;
use sse_stream::Sse;
use tokio_util::sync::{CancellationToken, DropGuard};
use url::Url;

use super::events::events;
use super::{HttpError, HttpErrorKind, McpHttpClient, OutgoingRequest, is_of_type};
use crate::client::message;
use crate::transport::{LargeMessages, MAX_VALUES, TransportFailure, has_few_values};

/// Messages in a row that may be unreadable before the connection is given up.
const MAX_UNREADABLE: u32 = 1000;
/// Most unknown events before the one with the address.
const MAX_BEFORE: u32 = 100;
/// Longest address to post to, in bytes.
const MAX_ADDRESS: usize = 4096;

/// A connection by HTTP+SSE.
pub(crate) struct SseTransport {
    client: McpHttpClient,
    /// Where messages are posted.
    address: Url,
    events: BoxStream<'static, Result<ReadEvent, HttpError>>,
    unreadable: u32,
    posts: Posts,
    _guard: DropGuard,
}

impl SseTransport {
    /// Opens the stream, and waits for its first event.
    pub(crate) async fn open(client: McpHttpClient) -> Result<Self, HttpError> {
        let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static("text/event-stream"))]);
        let outgoing = OutgoingRequest { method: Method::GET, url: client.url().clone(), headers, body: None };
        let response = client.exchange(&outgoing).await?;
        if !response.status().is_success() {
            return Err(client.refusal(&response));
        }
        let origin = client.origin();
        if !is_of_type(&response, "text/event-stream") {
            let text = format!("the MCP server at {origin} answered no events: check the path of its URL");
            return Err(HttpError::invalid(text));
        }
        let closed = client.closed().clone();
        let mut events = events(origin, response, client.large().clone())
            .take_until(closed.clone().cancelled_owned())
            .fuse()
            .boxed();
        let mut before = 0;
        let first = loop {
            let event = events.next().await.unwrap_or_else(|| {
                let text = format!("the MCP server at {origin} ended its stream of events at once");
                Err(HttpError::new(HttpErrorKind::ConnectionLost, text))
            })?;
            before += 1;
            // Other events, such as keep-alives, are ignored.
            if matches!(event.event.as_deref(), None | Some("" | "message" | "endpoint")) || before > MAX_BEFORE {
                break event;
            }
        };
        let address = address(&client, &first)?;
        let large = client.large().clone();
        let events = events
            .then(move |event| {
                let large = large.clone();
                async move { Ok(ReadEvent::of(event?, &large).await) }
            })
            .boxed();
        Ok(Self { client, address, events, unreadable: 0, posts: Posts::default(), _guard: closed.drop_guard() })
    }

    pub(crate) const fn failure(&self) -> &TransportFailure {
        self.client.failure()
    }

    /// A message of the server, if the event is one. An error ends the connection.
    fn take(&mut self, event: ReadEvent) -> Result<Option<ServerJsonRpcMessage>, HttpError> {
        let origin = self.client.origin();
        match event {
            ReadEvent::Other => return Ok(None),
            ReadEvent::TooLarge => {
                let text = format!("the MCP server at {origin} sent an event of more than {MAX_VALUES} values");
                return Err(HttpError::new(HttpErrorKind::TooLarge, text));
            }
            ReadEvent::Message(message) => {
                self.unreadable = 0;
                return Ok(Some(*message));
            }
            ReadEvent::Unreadable => {}
        }
        self.unreadable += 1;
        if self.unreadable == 1 {
            tracing::warn!(origin, "an MCP server sends events that are no messages; they are left out");
        }
        if self.unreadable > MAX_UNREADABLE {
            let text = format!("the MCP server at {origin} sent {MAX_UNREADABLE} events in a row that are no messages");
            return Err(HttpError::invalid(text));
        }
        Ok(None)
    }
}

/// An event as it was read.
enum ReadEvent {
    Message(Box<ServerJsonRpcMessage>),
    /// No message.
    Unreadable,
    /// A message of too many values.
    TooLarge,
    /// Of no use.
    Other,
}

impl ReadEvent {
    async fn of(event: Sse, large: &LargeMessages) -> Self {
        let data = event.data.filter(|_| matches!(event.event.as_deref(), None | Some("" | "message")));
        let Some(data) = data.map(String::into_bytes) else { return Self::Other };
        let read = move |data: &[u8]| {
            if message::is_long_notification(data) {
                return Self::Other;
            }
            if !has_few_values(data) {
                return Self::TooLarge;
            }
            message::read(data).map_or(Self::Unreadable, |message| Self::Message(Box::new(message)))
        };
        large.read(data.len(), move || read(&data)).await.unwrap_or(Self::Unreadable)
    }
}

/// Where messages are posted: on the origin of the stream and nowhere else.
fn address(client: &McpHttpClient, event: &Sse) -> Result<Url, HttpError> {
    let origin = client.origin();
    let given = match (event.event.as_deref(), &event.data) {
        (Some("endpoint"), Some(address)) if address.len() <= MAX_ADDRESS => address,
        _ => {
            let text = format!("the MCP server at {origin} does not begin its stream with where to post messages");
            return Err(HttpError::invalid(text));
        }
    };
    match client.url().join(given.trim()) {
        Ok(address) if address.origin() == client.url().origin() => Ok(address),
        Ok(_) => {
            let text = format!("the MCP server at {origin} wants messages posted to another server, which is refused");
            Err(HttpError::invalid(text))
        }
        Err(_) => Err(HttpError::invalid(format!("the MCP server at {origin} gives no usable place to post messages"))),
    }
}

impl Transport<RoleClient> for SseTransport {
    type Error = HttpError;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let (client, url) = (self.client.clone(), self.address.clone());
        let posting = self.posts.begin(&message);
        async move {
            let body = serde_json::to_vec(&message)
                .map_err(|_| HttpError::invalid("a message to an MCP server could not be written"))?;
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
            let outgoing = OutgoingRequest { method: Method::POST, url, headers, body: Some(body.into()) };
            let post = client.while_open(client.exchange(&outgoing));
            // A cancelled request is no longer waited for.
            let Some(response) = posting.unless_cancelled(post).await else { return Ok(()) };
            let response = response?;
            if response.status().is_success() { Ok(()) } else { Err(client.refusal(&response)) }
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        while let Some(event) = self.events.next().await {
            match event.and_then(|event| self.take(event)) {
                Ok(Some(message)) => return Some(message),
                Ok(None) => {}
                Err(error) => {
                    self.failure().set(error.to_string());
                    self.client.closed().cancel();
                    return None;
                }
            }
        }
        self.failure().set("the MCP server ended its stream of events");
        None
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.client.closed().cancel();
        Ok(())
    }
}

type RunningRequests = HashMap<RequestId, CancellationToken>;

/// The posts of requests that are on their way.
#[derive(Clone, Default)]
struct Posts(Arc<Mutex<RunningRequests>>);

/// One message on its way.
struct Posting {
    posts: Posts,
    request: Option<(RequestId, CancellationToken)>,
}

impl Posts {
    /// Begins with a message. One that cancels a request ends the post of that request.
    fn begin(&self, message: &ClientJsonRpcMessage) -> Posting {
        let mut request = None;
        match message {
            ClientJsonRpcMessage::Request(begun) => {
                let token = CancellationToken::new();
                self.running().insert(begun.id.clone(), token.clone());
                request = Some((begun.id.clone(), token));
            }
            ClientJsonRpcMessage::Notification(notification) => {
                if let ClientNotification::CancelledNotification(cancelled) = &notification.notification
                    && let Some(id) = &cancelled.params.request_id
                    && let Some(token) = self.running().remove(id)
                {
                    token.cancel();
                }
            }
            _ => {}
        }
        Posting { posts: self.clone(), request }
    }

    fn running(&self) -> MutexGuard<'_, RunningRequests> {
        self.0.lock()
    }
}

impl Posting {
    /// Runs `post`; nothing comes back when the request was cancelled meanwhile.
    async fn unless_cancelled<T>(&self, post: impl Future<Output = T>) -> Option<T> {
        match &self.request {
            Some((_, cancelled)) => cancelled.run_until_cancelled(post).await,
            None => Some(post.await),
        }
    }
}

impl Drop for Posting {
    fn drop(&mut self) {
        if let Some((id, _)) = &self.request {
            self.posts.running().remove(id);
        }
    }
}
