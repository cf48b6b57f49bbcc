//! Requests beside rmcp, which starts a task for each request and takes three turns of its loop, several times the work
//! of the request itself.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use rmcp::model::{ClientJsonRpcMessage, ErrorData, RequestId, ServerJsonRpcMessage, ServerResult};
use rmcp::service::ServiceError;
use serde::Serialize;
use serde_json::json;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use super::{GIVEN_UP, line};

/// The first id and how many there are. Those of rmcp count from 0. Ids stay below 2³¹, because servers that keep them
/// in 32 bits with a sign work with other clients.
const FIRST: i64 = 1 << 30;
/// So many ids of rmcp before the first of these, requests go its way: those under way end long before it is there.
const MARGIN: i64 = 1 << 20;

/// Sends requests to a server's standard input. Responses may overtake notifications that the server wrote before them.
/// Clones share the transport, and do not keep it open.
#[derive(Clone)]
pub(crate) struct FastPath {
    outgoing: mpsc::Sender<Vec<u8>>,
    pending: Arc<PendingCalls>,
}

/// The requests on the fast path that wait for a response.
#[derive(Default)]
pub(super) struct PendingCalls(Mutex<Requests>);

#[derive(Default)]
struct Requests {
    /// The senders by request id. Bounded by the requests in flight.
    waiting: HashMap<i64, oneshot::Sender<RequestResult>>,
    /// The number of requests so far.
    count: i64,
    /// Whether the ids of rmcp come near this range.
    is_over: bool,
}

type RequestResult = Result<ServerResult, ErrorData>;

#[derive(Serialize)]
struct FastRequest<'a, P> {
    jsonrpc: &'static str,
    id: i64,
    method: &'a str,
    params: &'a P,
}

impl FastPath {
    pub(super) const fn new(outgoing: mpsc::Sender<Vec<u8>>, pending: Arc<PendingCalls>) -> Self {
        Self { outgoing, pending }
    }

    /// Whether requests may take the fast path.
    pub(crate) fn is_open(&self) -> bool {
        !self.pending.lock().is_over
    }

    /// Sends a request and waits for its response without a timeout. If dropped before, it sends
    /// `notifications/cancelled`.
    ///
    /// # Errors
    ///
    /// If the server responds with an error, or its standard input is closed. The caller watches for the end of a
    /// server that does not respond.
    pub(crate) async fn request<P: Serialize>(&self, method: &str, params: &P) -> Result<ServerResult, ServiceError> {
        let (sender, response) = oneshot::channel();
        let mut waiting = FastPathCall { fast_path: self, id: self.pending.lock().begin(sender), is_sent: false };
        let request = FastRequest { jsonrpc: "2.0", id: waiting.id, method, params };
        let request = line(&request).map_err(|_| ServiceError::UnexpectedResponse)?;
        self.outgoing.send(request).await.map_err(|_| ServiceError::TransportClosed)?;
        waiting.is_sent = true;
        let response = response.await;
        waiting.is_sent = false;
        match response {
            Ok(response) => response.map_err(ServiceError::McpError),
            Err(_) => Err(ServiceError::TransportClosed),
        }
    }

    /// Sends `notifications/cancelled` for a request.
    fn give_up(&self, id: i64) {
        let params = json!({ "requestId": id, "reason": GIVEN_UP });
        let cancelled = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params });
        let Ok(cancelled) = line(&cancelled) else { return };
        if let Err(mpsc::error::TrySendError::Full(cancelled)) = self.outgoing.try_send(cancelled)
            && let Ok(runtime) = Handle::try_current()
        {
            let outgoing = self.outgoing.clone();
            // Fails only if the connection has ended.
            runtime.spawn(async move { outgoing.send(cancelled).await });
        }
    }
}

/// A request that waits for its response.
struct FastPathCall<'a> {
    fast_path: &'a FastPath,
    id: i64,
    /// Whether the request was sent and has no response yet.
    is_sent: bool,
}

impl Drop for FastPathCall<'_> {
    fn drop(&mut self) {
        self.fast_path.pending.lock().waiting.remove(&self.id);
        if self.is_sent {
            self.fast_path.give_up(self.id);
        }
    }
}

impl PendingCalls {
    /// Delivers a response to the call that waits for it. Returns every other message.
    pub(super) fn take(&self, message: ServerJsonRpcMessage) -> Option<ServerJsonRpcMessage> {
        let id = match &message {
            ServerJsonRpcMessage::Response(response) => number(&response.id),
            ServerJsonRpcMessage::Error(error) => error.id.as_ref().and_then(number),
            ServerJsonRpcMessage::Request(_) | ServerJsonRpcMessage::Notification(_) => None,
        };
        let waiting = id.filter(|id| *id >= FIRST).and_then(|id| self.lock().waiting.remove(&id));
        let Some(waiting) = waiting else { return Some(message) };
        // The waiting call may have been given up meanwhile.
        let _ = match message {
            ServerJsonRpcMessage::Response(response) => waiting.send(Ok(response.result)),
            ServerJsonRpcMessage::Error(error) => waiting.send(Err(error.error)),
            ServerJsonRpcMessage::Request(_) | ServerJsonRpcMessage::Notification(_) => return None,
        };
        None
    }

    /// Notes the id of a request that rmcp sends.
    pub(super) fn note(&self, message: &ClientJsonRpcMessage) {
        if let ClientJsonRpcMessage::Request(request) = message
            && number(&request.id).is_some_and(|id| id >= FIRST - MARGIN)
        {
            self.lock().is_over = true;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Requests> {
        self.0.lock()
    }
}

impl Requests {
    /// Registers a request and returns its id. Its response goes to `sender`.
    fn begin(&mut self, sender: oneshot::Sender<RequestResult>) -> i64 {
        loop {
            let id = FIRST + self.count % FIRST;
            self.count += 1;
            if let Entry::Vacant(vacant) = self.waiting.entry(id) {
                vacant.insert(sender);
                return id;
            }
        }
    }
}

/// The numeric id of a request. Some servers turn it into a string.
fn number(id: &RequestId) -> Option<i64> {
    match id {
        RequestId::Number(number) => Some(*number),
        RequestId::String(text) => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ping(id: i64) -> ClientJsonRpcMessage {
        serde_json::from_value(json!({ "jsonrpc": "2.0", "id": id, "method": "ping" })).unwrap()
    }

    #[test]
    fn ids_have_31_bits_and_are_used_again_unless_they_are_still_waited_for() {
        let mut requests = Requests::default();
        let mut begin = |count| {
            requests.count = count;
            let (sender, waiting) = oneshot::channel();
            let id = requests.begin(sender);
            (id, waiting)
        };
        let (first, _waiting) = begin(0);
        assert_eq!(first, FIRST);
        assert_eq!(begin(FIRST - 1).0, i64::from(i32::MAX));
        assert_eq!(begin(FIRST).0, FIRST + 1, "the first still waits");
    }

    #[test]
    fn the_fast_path_closes_before_ids_of_the_sdk_reach_its_own() {
        let pending = Arc::<PendingCalls>::default();
        let fast_path = FastPath::new(mpsc::channel(1).0, Arc::clone(&pending));
        pending.note(&ping(FIRST - MARGIN - 1));
        assert!(fast_path.is_open());
        pending.note(&ping(FIRST - MARGIN));
        pending.note(&ping(1));
        assert!(!fast_path.is_open());
    }
}
