//! Lines of JSON over the standard input and output of a child process.

mod reader;
#[cfg(test)]
mod tests;
pub(super) mod writer;

use std::sync::Arc;
use std::time::Duration;

use rmcp::RoleClient;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::Transport;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::TransportFailure;
use super::fast_path::PendingCalls;
use crate::process::Exited;

pub(crate) use super::fast_path::FastPath;

/// Messages that wait to be written. Whoever sends more waits.
const OUTGOING: usize = 64;
/// Messages that wait to be taken. The server waits when there are more.
const INCOMING: usize = 64;
/// Time for what was sent before the end to be written.
const FLUSH: Duration = Duration::from_millis(200);

/// A message, and its part of the memory that messages may take until they are taken.
type Received = (ServerJsonRpcMessage, OwnedSemaphorePermit);

/// Messages to and from a child process. A task reads and another one writes whole lines, so that dropping a future of
/// this transport never leaves half a line behind. Dropping the transport closes the server's standard input.
pub(crate) struct StdioTransport {
    outgoing: mpsc::Sender<Vec<u8>>,
    pending: Arc<PendingCalls>,
    incoming: mpsc::Receiver<Received>,
    closing: CancellationToken,
    writer: JoinHandle<()>,
    failure: TransportFailure,
}

/// Why a message is not sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotSent {
    /// The server takes no messages any more.
    #[error("the connection to the server has ended")]
    Ended,
    /// It has no form in JSON.
    #[error("the message cannot be written: {0}")]
    Unwritable(#[from] serde_json::Error),
}

impl StdioTransport {
    /// Begins to read and to write. `closing` ends both, and is cancelled when nothing comes any more; `exited` tells why the server
    /// has.
    pub(crate) fn new(
        from: impl AsyncRead + Send + Unpin + 'static,
        to: impl AsyncWrite + Send + Unpin + 'static,
        server: Arc<str>,
        closing: CancellationToken,
        exited: Exited,
    ) -> Self {
        let (outgoing, to_write) = mpsc::channel(OUTGOING);
        let (read, incoming) = mpsc::channel(INCOMING);
        let failure = TransportFailure::default();
        let pending = Arc::<PendingCalls>::default();
        let reader = reader::Reader::new(from, server, Arc::clone(&pending), read);
        tokio::spawn(reader.run(closing.clone(), exited, failure.clone()));
        let writer = tokio::spawn(writer::write_lines(to, to_write, closing.clone()));
        Self { outgoing, pending, incoming, closing, writer, failure }
    }

    /// A way for requests beside this transport's own messages.
    pub(crate) fn fast_path(&self) -> FastPath {
        FastPath::new(self.outgoing.clone(), Arc::clone(&self.pending))
    }

    /// Where it will be said why the transport has ended.
    pub(crate) fn failure(&self) -> TransportFailure {
        self.failure.clone()
    }
}

impl Transport<RoleClient> for StdioTransport {
    type Error = NotSent;

    /// Queues a message, in the order of the calls while there is room. The future waits for room.
    fn send(&mut self, message: ClientJsonRpcMessage) -> impl Future<Output = Result<(), NotSent>> + Send + 'static {
        self.pending.note(&message);
        let queued = writer::line(&message).map(|line| self.outgoing.try_send(line));
        let outgoing = self.outgoing.clone();
        async move {
            match queued? {
                Ok(()) => Ok(()),
                Err(TrySendError::Full(line)) => outgoing.send(line).await.map_err(|_| NotSent::Ended),
                Err(TrySendError::Closed(_)) => Err(NotSent::Ended),
            }
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        self.incoming.recv().await.map(|(message, _)| message)
    }

    /// Writes what was queued, as far as the server takes it at once, and closes its standard input.
    async fn close(&mut self) -> Result<(), NotSent> {
        self.closing.cancel();
        // A second call finds the task gone, and a task that failed has closed its end too.
        if !self.writer.is_finished() {
            let _ = (&mut self.writer).await;
        }
        Ok(())
    }
}

impl Drop for StdioTransport {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}
