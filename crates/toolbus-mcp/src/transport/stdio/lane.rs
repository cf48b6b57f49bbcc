//! Requests beside the SDK, which starts a task for each request and takes three turns of its loop, several times the work
//! of the request itself.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rmcp::model::{ErrorData, RequestId, ServerJsonRpcMessage, ServerResult};
use rmcp::service::ServiceError;
use serde::Serialize;
use serde_json::json;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use super::writer::line;
use crate::transport::GIVEN_UP;

/// The first id: those of the SDK have 32 bits.
const FIRST: i64 = 1 << 32;

/// Asks a server on its standard input. Answers come as they are read, so that they may overtake notifications that the
/// server wrote before them. Clones share the transport, and do not keep it open.
#[derive(Clone)]
pub(crate) struct Lane {
    outgoing: mpsc::Sender<Vec<u8>>,
    asked: Arc<Asked>,
}

/// Who waits for which answer. Bounded by the requests under way.
#[derive(Default)]
pub(super) struct Asked {
    waiting: Mutex<HashMap<i64, oneshot::Sender<Answer>>>,
    requests: AtomicI64,
}

type Answer = Result<ServerResult, ErrorData>;

#[derive(Serialize)]
struct Request<'a, P> {
    jsonrpc: &'static str,
    id: i64,
    method: &'a str,
    params: &'a P,
}

impl Lane {
    pub(super) const fn new(outgoing: mpsc::Sender<Vec<u8>>, asked: Arc<Asked>) -> Self {
        Self { outgoing, asked }
    }

    /// Sends a request and waits for its answer, without limit. Dropped before, it tells the server.
    ///
    /// # Errors
    ///
    /// When the server refuses, or takes no messages any more. The end of a server that does not answer any more has to be
    /// watched for by the caller.
    pub(crate) async fn ask<P: Serialize>(&self, method: &str, params: &P) -> Result<ServerResult, ServiceError> {
        let id = FIRST + self.asked.requests.fetch_add(1, Ordering::Relaxed);
        let request = Request { jsonrpc: "2.0", id, method, params };
        let request = line(&request).map_err(|_| ServiceError::UnexpectedResponse)?;
        let (sender, answer) = oneshot::channel();
        self.asked.waiting().insert(id, sender);
        let mut waiting = Waiting { lane: self, id, is_sent: false };
        self.outgoing.send(request).await.map_err(|_| ServiceError::TransportClosed)?;
        waiting.is_sent = true;
        let answer = answer.await;
        waiting.is_sent = false;
        match answer {
            Ok(answer) => answer.map_err(ServiceError::McpError),
            Err(_) => Err(ServiceError::TransportClosed),
        }
    }

    /// Tells the server that nobody waits for the answer to a request.
    fn give_up(&self, id: i64) {
        let params = json!({ "requestId": id, "reason": GIVEN_UP });
        let told = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params });
        let Ok(told) = line(&told) else { return };
        if let Err(mpsc::error::TrySendError::Full(told)) = self.outgoing.try_send(told)
            && let Ok(runtime) = Handle::try_current()
        {
            let outgoing = self.outgoing.clone();
            // It fails where the connection is over, and then there is nobody to tell.
            runtime.spawn(async move { outgoing.send(told).await });
        }
    }
}

/// A request that is waited for.
struct Waiting<'a> {
    lane: &'a Lane,
    id: i64,
    /// Whether the server has it, and has not answered.
    is_sent: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.lane.asked.waiting().remove(&self.id);
        if self.is_sent {
            self.lane.give_up(self.id);
        }
    }
}

impl Asked {
    /// Hands an answer to whoever waits for it, and drops one that nobody waits for any more. Whatever is not an answer to a
    /// request from here comes back.
    pub(super) fn take(&self, message: ServerJsonRpcMessage) -> Option<ServerJsonRpcMessage> {
        let id = match &message {
            ServerJsonRpcMessage::Response(response) => ours(&response.id),
            ServerJsonRpcMessage::Error(error) => error.id.as_ref().and_then(ours),
            ServerJsonRpcMessage::Request(_) | ServerJsonRpcMessage::Notification(_) => None,
        };
        let Some(id) = id else { return Some(message) };
        let Some(waiting) = self.waiting().remove(&id) else { return None };
        // Who waited may have given up just now.
        let _ = match message {
            ServerJsonRpcMessage::Response(response) => waiting.send(Ok(response.result)),
            ServerJsonRpcMessage::Error(error) => waiting.send(Err(error.error)),
            ServerJsonRpcMessage::Request(_) | ServerJsonRpcMessage::Notification(_) => return None,
        };
        None
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<i64, oneshot::Sender<Answer>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number of a request from here. Some servers turn it into a text.
fn ours(id: &RequestId) -> Option<i64> {
    let number = match id {
        RequestId::Number(number) => *number,
        RequestId::String(text) => text.parse().ok()?,
    };
    (number >= FIRST).then_some(number)
}
