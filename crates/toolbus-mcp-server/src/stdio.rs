//! Standard input and output: one message on each line, for clients that start their servers as child processes.
//!
//! It works on any pair of streams. Nothing but messages is ever written.

mod connection;
mod lines;

use std::io;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, BufWriter};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use toolbus_core::caller::AgentName;

use crate::door::Door;
use connection::Connection;
use lines::Lines;

/// How requests come, as telemetry names it.
const TRANSPORT: &str = "pipe";
/// Messages that wait to be read by the client; while there are more, those who have more to say wait.
const MAX_OUTGOING: usize = 16;
/// Time that requests under way get at the end of the input, so that what is written in one go is answered.
const DRAIN_TIME: Duration = Duration::from_secs(5);
/// Time that cancelled calls get to end in order.
const CANCEL_TIME: Duration = Duration::from_millis(500);
/// Time that a client gets to read the last answers.
const FLUSH_TIME: Duration = Duration::from_secs(1);

/// Why it is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The client closed its end of the input.
    Input,
    /// Nobody reads the output any more.
    Output,
    /// The door was closed.
    Closed,
}

impl Door {
    /// Serves one client, which is this agent, until it goes away or the door is closed. Then what is under way has been
    /// answered or cancelled, and the client's session has ended.
    pub async fn serve(
        self,
        agent: Option<AgentName>,
        input: impl AsyncRead + Unpin,
        output: impl AsyncWrite + Send + Unpin + 'static,
    ) -> End {
        let (outgoing, messages) = mpsc::channel(MAX_OUTGOING);
        let writer = tokio::spawn(write(output, messages));
        let closing = self.parts.closing.clone();
        let mut lines = Lines::new(input, self.parts.settings.max_body);
        let mut connection = Connection::new(self, agent, outgoing.clone());
        let end = serve(&mut connection, &mut lines, &outgoing, &closing).await;
        if end == End::Input {
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
    connection: &mut Connection,
    lines: &mut Lines<impl AsyncRead + Unpin>,
    outgoing: &mpsc::Sender<Bytes>,
    closing: &CancellationToken,
) -> End {
    let taking = async {
        // What cannot be read any more is over.
        while let Ok(Some(line)) = lines.next().await {
            connection.take(line).await;
        }
    };
    tokio::select! {
        biased;
        () = closing.cancelled() => End::Closed,
        () = outgoing.closed() => End::Output,
        () = taking => End::Input,
    }
}

/// Writes messages until there are no more, or nobody reads them.
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

#[cfg(test)]
mod tests;
