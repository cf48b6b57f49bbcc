//! Lines of JSON over the standard input and output of a child process.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rmcp::RoleClient;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::Transport;
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader, copy_buf, sink,
};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::task::coop::consume_budget;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use toolbus_core::Clock;
use toolbus_core::results::ReservedRoom;
use toolbus_core::text::shown;
use toolbus_core::turns::SMALL;

use super::fast_path::PendingCalls;
use super::{LargeMessages, MAX_MESSAGE, MAX_VALUES, TransportFailure, has_few_values, line};
use crate::client::message;
use crate::process::Exited;

pub(crate) use super::fast_path::FastPath;

/// Messages that wait to be written; further senders wait.
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

/// Reason why a message is not sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotSent {
    /// The server takes no messages any more.
    #[error("the connection to the server has ended")]
    Ended,
    /// The message has no form in JSON.
    #[error("the message cannot be written: {0}")]
    Unwritable(#[from] serde_json::Error),
}

impl StdioTransport {
    /// Begins to read and to write. `closing` ends both, and is cancelled when nothing comes any more; `exited` reports
    /// why the server has.
    pub(crate) fn new(
        from: impl AsyncRead + Send + Unpin + 'static,
        to: impl AsyncWrite + Send + Unpin + 'static,
        closing: CancellationToken,
        exited: Exited,
        large: LargeMessages,
        clock: Clock,
    ) -> Self {
        let (outgoing, to_write) = mpsc::channel(OUTGOING);
        let (read, incoming) = mpsc::channel(INCOMING);
        let failure = TransportFailure::default();
        let pending = Arc::<PendingCalls>::default();
        let reader = LineReader::new(from, Arc::clone(&pending), read, large, clock);
        #[expect(
            clippy::disallowed_methods,
            reason = "`closing` ends both, when the transport is dropped at the latest"
        )]
        let writer = {
            tokio::spawn(reader.run(closing.clone(), exited, failure.clone()));
            tokio::spawn(write_lines(to, to_write, closing.clone()))
        };
        Self { outgoing, pending, incoming, closing, writer, failure }
    }

    /// A way for requests beside this transport's own messages.
    pub(crate) fn fast_path(&self) -> FastPath {
        FastPath::new(self.outgoing.clone(), Arc::clone(&self.pending))
    }

    /// Holds the reason once the transport has ended.
    pub(crate) fn failure(&self) -> TransportFailure {
        self.failure.clone()
    }
}

impl Transport<RoleClient> for StdioTransport {
    type Error = NotSent;

    /// Queues a message, in the order of the calls while there is room. The future waits for room.
    fn send(&mut self, message: ClientJsonRpcMessage) -> impl Future<Output = Result<(), NotSent>> + Send + 'static {
        self.pending.note(&message);
        let queued = line(&message).map(|line| self.outgoing.try_send(line));
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

/// Bytes that are written at once, unless one message is longer.
const BATCH: usize = 64 * 1024;
/// Memory that is kept between writes, in bytes.
const KEPT_BATCH: usize = 256 * 1024;

/// Writes until `closing` is cancelled or the server closes its standard input.
async fn write_lines(to: impl AsyncWrite + Unpin, messages: mpsc::Receiver<Vec<u8>>, closing: CancellationToken) {
    let too_late = async {
        closing.cancelled().await;
        sleep(FLUSH).await;
    };
    tokio::select! {
        // The reader reports the failure: it sees the end of the server.
        _ = write_batches(to, messages, &closing) => {}
        () = too_late => {}
    }
}

async fn write_batches(
    mut to: impl AsyncWrite + Unpin,
    mut messages: mpsc::Receiver<Vec<u8>>,
    closing: &CancellationToken,
) -> io::Result<()> {
    let mut lines = Vec::new();
    loop {
        let first = tokio::select! {
            biased;
            message = messages.recv() => message,
            () = closing.cancelled(), if !messages.is_closed() => {
                messages.close();
                continue;
            }
        };
        let Some(first) = first else { return Ok(()) };
        lines.extend_from_slice(&first);
        while lines.len() < BATCH
            && let Ok(next) = messages.try_recv()
        {
            lines.extend_from_slice(&next);
        }
        to.write_all(&lines).await?;
        to.flush().await?;
        lines.clear();
        lines.shrink_to(KEPT_BATCH);
    }
}

/// Bytes that are read at once.
const CHUNK: usize = 64 * 1024;
/// After a long line that was dropped, reading rests for so many times as long as that took, so that a flood of them
/// gets a part of the processor.
const REST: u32 = 3;
/// Memory that is kept between lines, in bytes.
const KEPT_LINE: usize = 256 * 1024;
/// Lines without a message that end the connection, when they follow one another.
const MAX_SKIPPED: u32 = 1000;
/// Lines without a message that are logged.
const MAX_LOGGED: u64 = 3;
/// Time between the end of a server and that of its standard output, whichever comes first.
const EXIT: Duration = Duration::from_millis(250);

/// Reason why reading has ended.
#[derive(Debug)]
enum ReadEnd {
    /// The server's standard output has ended, perhaps within a line.
    Closed { is_within_line: bool },
    /// The receiver of messages is gone.
    Abandoned,
    /// A line was too long.
    LongLine,
    /// A message would take too much memory.
    LargeMessage,
    /// Line after line was no message.
    Noise,
    /// The operating system failed.
    Failed(io::Error),
}

/// Reason why a line is not read.
enum LineError {
    /// The message would take too much memory.
    TooLarge,
    /// A notification over the size limit.
    Unneeded,
    /// The line is no message.
    Noise(serde_json::Error),
}

/// The message of a line; none in an empty one.
fn parse(line: &[u8]) -> Result<Option<ServerJsonRpcMessage>, LineError> {
    let line = line.trim_ascii();
    if line.is_empty() {
        return Ok(None);
    }
    if !has_few_values(line) {
        return Err(LineError::TooLarge);
    }
    message::read(line).map(Some).map_err(LineError::Noise)
}

/// Reads one server's lines.
struct LineReader<R> {
    from: BufReader<R>,
    line: Vec<u8>,
    pending: Arc<PendingCalls>,
    to: mpsc::Sender<Received>,
    /// Memory for messages that wait to be taken.
    room: Arc<Semaphore>,
    large: LargeMessages,
    /// Room of the last line.
    reserved: Option<ReservedRoom>,
    skipped: u64,
    skipped_in_a_row: u32,
    clock: Clock,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    fn new(
        from: R,
        pending: Arc<PendingCalls>,
        to: mpsc::Sender<Received>,
        large: LargeMessages,
        clock: Clock,
    ) -> Self {
        Self {
            from: BufReader::with_capacity(CHUNK, from),
            line: Vec::new(),
            pending,
            to,
            room: Arc::new(Semaphore::new(MAX_MESSAGE)),
            large,
            reserved: None,
            skipped: 0,
            skipped_in_a_row: 0,
            clock,
        }
    }

    /// Reads until the end and sets `failure` before it closes the channel of messages.
    async fn run(mut self, closing: CancellationToken, exited: Exited, failure: TransportFailure) {
        // A process that has outlived the server may still hold its standard output.
        let left = async {
            exited.wait().await;
            sleep(EXIT).await;
        };
        let end = tokio::select! {
            biased;
            () = closing.cancelled() => ReadEnd::Abandoned,
            end = self.read() => end,
            () = left => ReadEnd::Closed { is_within_line: false },
        };
        if self.skipped > 0 {
            tracing::info!(
                server = &*self.large.server,
                lines = self.skipped,
                "skipped lines that were no MCP messages"
            );
        }
        let is_abandoned = matches!(end, ReadEnd::Abandoned);
        failure.set(match end {
            ReadEnd::Abandoned => "the connection was closed".to_owned(),
            ReadEnd::LongLine => {
                format!("the server wrote a line over {} MiB", self.large.max() / (1024 * 1024))
            }
            ReadEnd::LargeMessage => format!("the server wrote a message of more than {MAX_VALUES} values"),
            ReadEnd::Noise => format!("the server wrote {MAX_SKIPPED} lines in a row that are no MCP messages"),
            ReadEnd::Failed(error) => format!("reading from the server failed: {error}"),
            ReadEnd::Closed { is_within_line } => {
                let why = match timeout(EXIT, exited.wait()).await {
                    Ok(exit) => exit.to_string(),
                    Err(_) => "the server closed its standard output".to_owned(),
                };
                if is_within_line { why + " in the middle of a message" } else { why }
            }
        });
        closing.cancel();
        drop(self.to);
        if is_abandoned {
            // A server that writes while it ends must neither block nor get SIGPIPE.
            let mut nowhere = sink();
            tokio::select! {
                _ = copy_buf(&mut self.from, &mut nowhere) => {}
                _ = exited.wait() => {}
            }
        }
    }

    async fn read(&mut self) -> ReadEnd {
        loop {
            // A flood of messages must not starve other tasks on this thread.
            consume_budget().await;
            self.line.clear();
            self.line.shrink_to(KEPT_LINE);
            self.reserved = None;
            if let Err(error) = self.read_line().await {
                return ReadEnd::Failed(error);
            }
            if self.line.last() != Some(&b'\n') {
                let is_long = self.line.len() >= MAX_MESSAGE;
                return if is_long {
                    ReadEnd::LongLine
                } else {
                    ReadEnd::Closed { is_within_line: !self.line.is_empty() }
                };
            }
            let began = self.clock.now();
            let message = if self.line.len() > SMALL { self.parse_elsewhere().await } else { parse(&self.line) };
            match message {
                Ok(None) => {}
                Err(LineError::TooLarge) => return ReadEnd::LargeMessage,
                Err(LineError::Unneeded) => {
                    self.skipped_in_a_row = 0;
                    sleep(self.clock.since(began) * REST).await;
                }
                Ok(Some(message)) => {
                    self.skipped_in_a_row = 0;
                    if let Some(message) = self.pending.take(message)
                        && self.give(message).await.is_none()
                    {
                        return ReadEnd::Abandoned;
                    }
                }
                Err(LineError::Noise(error)) => {
                    self.skip(&error);
                    if self.skipped_in_a_row == MAX_SKIPPED {
                        return ReadEnd::Noise;
                    }
                }
            }
        }
    }

    /// Reads a line, or as much of it as a line may have. A long one waits for room.
    async fn read_line(&mut self) -> io::Result<()> {
        // A limit that a usize holds, a u64 holds.
        (&mut self.from).take(MAX_MESSAGE as u64).read_until(b'\n', &mut self.line).await?;
        if self.line.len() == MAX_MESSAGE
            && self.line.last() != Some(&b'\n')
            && let Some(results) = &self.large.results
        {
            self.reserved = Some(results.reserve().await);
            let more = self.large.max() - MAX_MESSAGE;
            self.line.reserve_exact(more);
            (&mut self.from).take(more as u64).read_until(b'\n', &mut self.line).await?;
        }
        Ok(())
    }

    /// The same as [`parse`] for a long line, in a turn.
    async fn parse_elsewhere(&mut self) -> Result<Option<ServerJsonRpcMessage>, LineError> {
        let line = std::mem::take(&mut self.line);
        let parsed = self.large.read(line.len(), move || {
            let message = if message::is_long_notification(&line) { Err(LineError::Unneeded) } else { parse(&line) };
            (message, line)
        });
        // Parsing fails only while the runtime ends.
        let (message, line) = parsed.await.unwrap_or((Ok(None), Vec::new()));
        self.line = line;
        message
    }

    async fn give(&mut self, message: ServerJsonRpcMessage) -> Option<()> {
        let size = u32::try_from(self.line.len().min(MAX_MESSAGE)).ok()?;
        let room = Arc::clone(&self.room).acquire_many_owned(size).await.ok()?;
        self.to.send((message, room)).await.ok()
    }

    fn skip(&mut self, error: &serde_json::Error) {
        self.skipped += 1;
        self.skipped_in_a_row += 1;
        if self.skipped <= MAX_LOGGED {
            let (start, _) = self.line.split_at(self.line.len().min(256));
            let line = shown(String::from_utf8_lossy(start).trim_ascii());
            let error = shown(&error.to_string());
            tracing::warn!(server = &*self.large.server, line, error, "skipped a line that is no MCP message");
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
