//! Messages from the server.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rmcp::model::ServerJsonRpcMessage;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader, copy_buf, sink};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::coop::consume_budget;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use toolbus_core::log::shown;

use super::{PendingCalls, Received, TransportFailure};
use crate::client::message;
use crate::process::Exited;
use crate::transport::values::{self, MAX_VALUES};

/// Longest line, with its end, in bytes. Also what messages that wait to be taken may take together.
pub(super) const MAX_LINE: usize = 16 * 1024 * 1024;
/// Bytes that are read at once.
const CHUNK: usize = 64 * 1024;
/// Longer lines are read on a thread of their own kind, in bytes: they would keep this one from every other call for
/// milliseconds.
const LONG: usize = 64 * 1024;
/// After a long line that was dropped, reading rests for so many times as long as that took, so that a flood of them gets
/// a part of the processor.
const REST: u32 = 3;
/// Memory that is kept between lines, in bytes.
const KEPT_LINE: usize = 256 * 1024;
/// Lines without a message that end the connection, when they follow one another.
pub(super) const MAX_SKIPPED: u32 = 1000;
/// Lines without a message that are logged.
const MAX_LOGGED: u64 = 3;
/// Time between the end of a server and that of its standard output, whichever comes first.
const EXIT: Duration = Duration::from_millis(250);

/// Why reading has ended.
#[derive(Debug)]
enum End {
    /// The server's standard output has ended, perhaps within a line.
    Closed { is_within_line: bool },
    /// Nobody takes messages any more.
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

/// Why a line is not read.
enum Unread {
    /// It would take too much memory.
    TooLarge,
    /// It is a long notification, which nobody needs.
    Unneeded,
    /// It is no message.
    Noise(serde_json::Error),
}

/// The message of a line; none in an empty one.
fn parse(line: &[u8]) -> Result<Option<ServerJsonRpcMessage>, Unread> {
    let line = line.trim_ascii();
    if line.is_empty() {
        return Ok(None);
    }
    if !values::are_few(line) {
        return Err(Unread::TooLarge);
    }
    message::read(line).map(Some).map_err(Unread::Noise)
}

/// Reads one server's lines.
pub(super) struct Reader<R> {
    from: BufReader<R>,
    line: Vec<u8>,
    server: Arc<str>,
    pending: Arc<PendingCalls>,
    to: mpsc::Sender<Received>,
    room: Arc<Semaphore>,
    skipped: u64,
    skipped_in_a_row: u32,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub(super) fn new(from: R, server: Arc<str>, pending: Arc<PendingCalls>, to: mpsc::Sender<Received>) -> Self {
        Self {
            from: BufReader::with_capacity(CHUNK, from),
            line: Vec::new(),
            server,
            pending,
            to,
            room: Arc::new(Semaphore::new(MAX_LINE)),
            skipped: 0,
            skipped_in_a_row: 0,
        }
    }

    /// Reads until the end, and says why it came. Whoever waits for a message learns of the end after that.
    pub(super) async fn run(mut self, closing: CancellationToken, exited: Exited, failure: TransportFailure) {
        // A process that has outlived the server may still hold its standard output.
        let left = async {
            exited.wait().await;
            sleep(EXIT).await;
        };
        let end = tokio::select! {
            biased;
            () = closing.cancelled() => End::Abandoned,
            end = self.read() => end,
            () = left => End::Closed { is_within_line: false },
        };
        if self.skipped > 0 {
            tracing::info!(server = &*self.server, lines = self.skipped, "skipped lines that were no MCP messages");
        }
        let is_abandoned = matches!(end, End::Abandoned);
        failure.set(match end {
            End::Abandoned => "the connection was closed".to_owned(),
            End::LongLine => format!("the server wrote a line over {} MiB", MAX_LINE / (1024 * 1024)),
            End::LargeMessage => format!("the server wrote a message of more than {MAX_VALUES} values"),
            End::Noise => format!("the server wrote {MAX_SKIPPED} lines in a row that are no MCP messages"),
            End::Failed(error) => format!("reading from the server failed: {error}"),
            End::Closed { is_within_line } => {
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
            // A server that says something while it ends must neither wait nor stumble.
            let mut nowhere = sink();
            tokio::select! {
                _ = copy_buf(&mut self.from, &mut nowhere) => {}
                _ = exited.wait() => {}
            }
        }
    }

    async fn read(&mut self) -> End {
        loop {
            // A flood of what nobody waits for must not keep this thread from everything else.
            consume_budget().await;
            self.line.clear();
            self.line.shrink_to(KEPT_LINE);
            // A limit that a usize holds, a u64 holds.
            let mut from = (&mut self.from).take(MAX_LINE as u64);
            if let Err(error) = from.read_until(b'\n', &mut self.line).await {
                return End::Failed(error);
            }
            if self.line.last() != Some(&b'\n') {
                let is_long = self.line.len() == MAX_LINE;
                return if is_long { End::LongLine } else { End::Closed { is_within_line: !self.line.is_empty() } };
            }
            let began = Instant::now();
            let message = if self.line.len() > LONG { self.parse_elsewhere().await } else { parse(&self.line) };
            match message {
                Ok(None) => {}
                Err(Unread::TooLarge) => return End::LargeMessage,
                Err(Unread::Unneeded) => {
                    self.skipped_in_a_row = 0;
                    sleep(began.elapsed() * REST).await;
                }
                Ok(Some(message)) => {
                    self.skipped_in_a_row = 0;
                    if let Some(message) = self.pending.take(message)
                        && self.give(message).await.is_none()
                    {
                        return End::Abandoned;
                    }
                }
                Err(Unread::Noise(error)) => {
                    self.skip(&error);
                    if self.skipped_in_a_row == MAX_SKIPPED {
                        return End::Noise;
                    }
                }
            }
        }
    }

    /// The same as [`parse`] for a long line, off this thread.
    async fn parse_elsewhere(&mut self) -> Result<Option<ServerJsonRpcMessage>, Unread> {
        let line = std::mem::take(&mut self.line);
        let parsed = spawn_blocking(move || {
            let message = if message::is_long_notification(&line) { Err(Unread::Unneeded) } else { parse(&line) };
            (message, line)
        });
        // A thread that did not come back is one of a runtime that ends.
        let (message, line) = parsed.await.unwrap_or((Ok(None), Vec::new()));
        self.line = line;
        message
    }

    async fn give(&mut self, message: ServerJsonRpcMessage) -> Option<()> {
        let size = u32::try_from(self.line.len()).ok()?;
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
            tracing::warn!(server = &*self.server, line, error, "skipped a line that is no MCP message");
        }
    }
}
