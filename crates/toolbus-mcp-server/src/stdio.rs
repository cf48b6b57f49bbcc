//! Standard input and output: one message on each line, for clients that start their servers as child processes.
//!
//! It works on any pair of streams. Nothing but messages is ever written.

mod connection;
#[cfg(test)]
mod tests;

use std::io;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader, BufWriter};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use toolbus_core::caller::AgentName;

use self::connection::StdioConnection;
use crate::server::McpServer;

/// Way in which requests come, as telemetry names it.
const TRANSPORT: &str = "pipe";
/// Messages that wait to be read by the client; with more, senders wait.
const MAX_OUTGOING: usize = 16;
/// Time that requests under way get at the end of the input, so that requests written in one go get their responses.
const DRAIN_TIME: Duration = Duration::from_secs(5);
/// Time that cancelled calls get to end in order.
const CANCEL_TIME: Duration = Duration::from_millis(500);
/// Time that a client gets to read the last responses.
const FLUSH_TIME: Duration = Duration::from_secs(1);

/// Reason why it is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StdioEnd {
    /// The client closed its end of the input.
    Input,
    /// The client no longer reads the output.
    Output,
    /// The server was closed.
    Closed,
}

impl McpServer {
    /// Serves one client as this agent, until it disconnects or the server closes. Then each request under way
    /// has its response or was cancelled, and the client's session has ended.
    pub async fn serve(
        self,
        agent: Option<AgentName>,
        input: impl AsyncRead + Unpin,
        output: impl AsyncWrite + Send + Unpin + 'static,
    ) -> StdioEnd {
        let (outgoing, messages) = mpsc::channel(MAX_OUTGOING);
        #[expect(clippy::disallowed_methods, reason = "awaited below, and aborted if it takes too long")]
        let writer = tokio::spawn(write(output, messages));
        let closing = self.parts.closing.clone();
        let mut lines = BoundedLines::new(input, self.parts.settings.max_body);
        let mut connection = StdioConnection::new(self, agent, outgoing.clone());
        let end = serve(&mut connection, &mut lines, &outgoing, &closing).await;
        if end == StdioEnd::Input {
            tokio::select! {
                () = connection.drain(DRAIN_TIME) => {}
                () = outgoing.closed() => {}
                () = closing.cancelled() => {}
            }
        }
        connection.end(CANCEL_TIME).await;
        drop((connection, outgoing));
        let abort = writer.abort_handle();
        if tokio::time::timeout(FLUSH_TIME, writer).await.is_err() {
            abort.abort();
        }
        end
    }
}

/// Takes messages until there are no more.
async fn serve(
    connection: &mut StdioConnection,
    lines: &mut BoundedLines<impl AsyncRead + Unpin>,
    outgoing: &mpsc::Sender<Bytes>,
    closing: &CancellationToken,
) -> StdioEnd {
    let taking = async {
        // What cannot be read any more is over.
        while let Ok(Some(line)) = lines.next().await {
            connection.take(line).await;
        }
    };
    tokio::select! {
        biased;
        () = closing.cancelled() => StdioEnd::Closed,
        () = outgoing.closed() => StdioEnd::Output,
        () = taking => StdioEnd::Input,
    }
}

/// Writes messages until the channel or the output is closed.
async fn write(output: impl AsyncWrite + Unpin, mut messages: mpsc::Receiver<Bytes>) -> io::Result<()> {
    let mut output = BufWriter::new(output);
    while let Some(message) = messages.recv().await {
        let mut next = Some(message);
        while let Some(message) = next {
            output.write_all(&message).await?;
            output.write_all(b"\n").await?;
            next = messages.try_recv().ok();
        }
        output.flush().await?;
    }
    Ok(())
}

/// Lines of bounded length.
struct BoundedLines<R> {
    reader: BufReader<R>,
    limit: usize,
}

/// Input until the end of a line.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    /// The line, without its end.
    Whole(Vec<u8>),
    /// A line over the limit, which was discarded.
    TooLong,
}

impl<R: AsyncRead + Unpin> BoundedLines<R> {
    fn new(reader: R, limit: usize) -> Self {
        Self { reader: BufReader::new(reader), limit }
    }

    /// The next line; none at the end of the input. What stands before that is a line, too.
    async fn next(&mut self) -> io::Result<Option<Line>> {
        let mut line = Some(Vec::new());
        loop {
            let read = self.reader.fill_buf().await?;
            if read.is_empty() {
                return Ok(match line {
                    Some(line) if line.is_empty() => None,
                    line => Some(line.map_or(Line::TooLong, Line::Whole)),
                });
            }
            let mut parts = read.splitn(2, |byte| *byte == b'\n');
            let part = parts.next().unwrap_or_default();
            let is_end = parts.next().is_some();
            if let Some(kept) = &mut line {
                if kept.len() + part.len() > self.limit {
                    line = None;
                } else {
                    kept.extend_from_slice(part);
                }
            }
            let used = part.len() + usize::from(is_end);
            self.reader.consume(used);
            if is_end {
                return Ok(Some(line.map_or(Line::TooLong, Line::Whole)));
            }
        }
    }
}
