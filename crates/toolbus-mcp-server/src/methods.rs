//! The methods of the protocol, responses with messages before them, and pages of lists.

pub(crate) mod call;
pub(crate) mod initialize;
pub(crate) mod listen;
mod resources;
mod tools;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;
use toolbus_core::Clock;
use toolbus_core::events::{McpServerEvents, McpServerRequest};

use crate::backend::Backend;
use crate::rpc::{self, Id, RpcError, RpcRequest};
use crate::session::{InFlightRequest, Peer, Sessions};

pub(crate) use self::call::CallFlow;
pub(crate) use self::listen::ListenFlow;

/// Time for which a client may cache a list, in milliseconds. A client that listens is notified of changes.
const FRESH_MS: u64 = 5_000;

/// Name, version and limits of the server.
#[derive(Debug, Clone)]
pub struct McpServerSettings {
    /// The daemon's name in `serverInfo`.
    pub name: String,
    /// Version of the daemon.
    pub version: String,
    /// Largest message, in bytes.
    pub max_body: usize,
    /// Measures sessions and requests.
    pub clock: Clock,
}

pub(crate) struct ServerParts {
    pub(crate) settings: McpServerSettings,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) events: Arc<dyn McpServerEvents>,
    pub(crate) sessions: Sessions,
    /// Cancelled when the server closes.
    pub(crate) closing: CancellationToken,
}

impl ServerParts {
    /// Notes that a request is under way.
    pub(crate) fn enter(peer: &Peer, id: &Id) -> Result<InFlightRequest, RpcError> {
        match &peer.session {
            Some(session) => session.enter(id),
            None => Ok(InFlightRequest::alone()),
        }
    }
}

/// A method that there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum McpMethod {
    Initialize,
    Discover,
    Ping,
    ListTools,
    CallTool,
    ListResources,
    ListResourceTemplates,
    ReadResource,
    Listen,
}

impl McpMethod {
    const ALL: [Self; 9] = [
        Self::Initialize,
        Self::Discover,
        Self::Ping,
        Self::ListTools,
        Self::CallTool,
        Self::ListResources,
        Self::ListResourceTemplates,
        Self::ReadResource,
        Self::Listen,
    ];

    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.as_str() == text)
    }

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Initialize => "initialize",
            Self::Discover => "server/discover",
            Self::Ping => "ping",
            Self::ListTools => "tools/list",
            Self::CallTool => "tools/call",
            Self::ListResources => "resources/list",
            Self::ListResourceTemplates => "resources/templates/list",
            Self::ReadResource => "resources/read",
            Self::Listen => "subscriptions/listen",
        }
    }

    /// Whether the peer's protocol version has the method.
    pub(crate) const fn is_for(self, peer: &Peer) -> bool {
        match self {
            Self::Initialize => false,
            Self::Ping => !peer.is_alone(),
            Self::Discover | Self::Listen => peer.is_alone(),
            _ => true,
        }
    }
}

/// Responds to a request whose response needs no waiting.
pub(crate) async fn respond(
    parts: &ServerParts,
    peer: &Peer,
    method: McpMethod,
    call: &RpcRequest<'_>,
) -> Result<Bytes, RpcError> {
    match method {
        McpMethod::Ping => Ok(rpc::success(&call.id, json!({}))),
        McpMethod::Discover => Ok(rpc::success(&call.id, initialize::discovered(&parts.settings))),
        McpMethod::ListTools => tools::list(parts, peer, call).await,
        McpMethod::ListResources => resources::list(parts, peer, call).await,
        McpMethod::ListResourceTemplates => resources::templates(peer, call),
        McpMethod::ReadResource => resources::read(parts, peer, call).await,
        McpMethod::Initialize | McpMethod::CallTool | McpMethod::Listen => {
            Err(RpcError::method_not_found(&call.method))
        }
    }
}

/// The request that a client cancels.
pub(crate) fn cancelled(params: &RawValue) -> Option<Id> {
    #[derive(Deserialize)]
    struct Cancelled<'a> {
        #[serde(borrow, rename = "requestId")]
        request_id: &'a RawValue,
    }
    let cancelled: Cancelled<'_> = serde_json::from_str(params.get()).ok()?;
    Id::of(cancelled.request_id)
}

/// Parameters of a list.
#[derive(Debug, Default, Deserialize)]
#[serde(expecting = "an object")]
struct ListParams {
    cursor: Option<String>,
}

/// Parameters that may be absent.
fn optional<P: DeserializeOwned + Default>(params: Option<&RawValue>) -> Result<P, RpcError> {
    params.map_or_else(|| Ok(P::default()), required)
}

fn required<P: DeserializeOwned>(params: &RawValue) -> Result<P, RpcError> {
    serde_json::from_str(params.get()).map_err(|error| RpcError::unreadable_params(&error))
}

/// A response that comes later.
pub(crate) enum Flow {
    /// The result of a call.
    Call(CallFlow),
    /// Notifications, until the client stops listening.
    Listen(ListenFlow),
}

/// Next step of a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FlowStep {
    /// A message before the response.
    Interim(Bytes),
    /// The response.
    Last(Bytes),
    /// No response: the request was cancelled.
    Nothing,
}

impl Flow {
    /// Returns the next step. Nothing comes after [`FlowStep::Last`] and [`FlowStep::Nothing`].
    pub(crate) async fn next(&mut self) -> FlowStep {
        match self {
            Self::Call(call) => call.next().await,
            Self::Listen(listen) => listen.next().await,
        }
    }

    /// Runs the call in its own task, so that a slow reader does not delay it.
    pub(crate) fn detach(&mut self) {
        match self {
            Self::Call(call) => call.detach(),
            Self::Listen(_) => {}
        }
    }

    pub(crate) fn observed(mut self, started: Box<dyn McpServerRequest>) -> Self {
        match &mut self {
            Self::Call(call) => call.started = Some(started),
            Self::Listen(listen) => listen.started = Some(started),
        }
        self
    }
}

/// Most entries of a page.
const MAX_ENTRIES: usize = 200;
/// Size from which a page is full, in bytes.
const MAX_BYTES: usize = 512 * 1024;

/// Rest after the last page that a client has: everything after this key. Entries that come or go meanwhile make no
/// other one appear twice or not at all.
#[derive(Debug, Default)]
pub(crate) struct Cursor(Option<String>);

impl Cursor {
    /// Reads what a client sent.
    pub(crate) fn read(text: Option<&str>) -> Result<Self, RpcError> {
        let Some(text) = text else { return Ok(Self(None)) };
        let key = URL_SAFE_NO_PAD.decode(text).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        match key {
            Some(key) => Ok(Self(Some(key))),
            None => Err(RpcError::invalid_params("The cursor is none of ours. Begin the list anew, without one.")),
        }
    }

    /// The next page of entries, which are sorted by their keys, and the cursor of the page after it.
    pub(crate) fn page<'t, T, E>(
        &self,
        sorted: &'t [T],
        key: impl Fn(&T) -> &str,
        entry: impl Fn(&'t T) -> E,
        size: impl Fn(&T) -> usize,
    ) -> (Vec<E>, Option<String>) {
        let begin = self.0.as_deref().map_or(0, |after| sorted.partition_point(|item| key(item) <= after));
        let (mut entries, mut bytes) = (Vec::new(), 0);
        let mut rest = sorted.get(begin..).unwrap_or_default().iter().peekable();
        let mut last = None;
        while let Some(item) = rest.next() {
            entries.push(entry(item));
            bytes += size(item);
            if entries.len() >= MAX_ENTRIES || bytes >= MAX_BYTES {
                last = rest.peek().is_some().then(|| key(item));
                break;
            }
        }
        (entries, last.map(|key| URL_SAFE_NO_PAD.encode(key)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(keys: &[String], size: usize) -> Vec<Vec<String>> {
        let (mut cursor, mut pages) = (Cursor::default(), Vec::new());
        loop {
            let (page, next) = cursor.page(keys, |key| key, String::clone, |_| size);
            pages.push(page);
            match next {
                Some(next) => cursor = Cursor::read(Some(&next)).unwrap(),
                None => return pages,
            }
        }
    }

    fn keys(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("{number:05}")).collect()
    }

    #[test]
    fn every_entry_is_on_one_page_in_order() {
        for (count, expected) in [(0, 1), (1, 1), (200, 1), (201, 2), (1000, 5)] {
            let pages = pages(&keys(count), 10);
            assert_eq!(pages.len(), expected, "{count}");
            assert_eq!(pages.concat(), keys(count), "{count}");
        }
    }

    #[test]
    fn large_entries_make_small_pages() {
        assert_eq!(pages(&keys(3), MAX_BYTES).len(), 3);
    }

    #[test]
    fn changes_between_two_pages_move_no_other_entry() {
        let mut all = keys(300);
        let (first, next) = Cursor::default().page(&all, |key| key, String::clone, |_| 1);
        all.remove(199);
        all.insert(0, "!".to_owned());
        let (second, _) = Cursor::read(next.as_deref()).unwrap().page(&all, |key| key, String::clone, |_| 1);
        assert_eq!([first, second].concat(), keys(300));
    }

    #[test]
    fn a_foreign_cursor_is_refused() {
        for text in ["!", "a", "_w"] {
            assert_eq!(Cursor::read(Some(text)).unwrap_err().code, RpcError::INVALID_PARAMS, "{text}");
        }
    }
}
