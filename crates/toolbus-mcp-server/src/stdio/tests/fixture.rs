//! One client of a server with a scripted backend.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, Lines};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use toolbus_core::caller::AgentName;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::progress::Progress;
use toolbus_core::tool::ToolOutput;

use crate::backend::BackendCall;
use crate::stdio::StdioEnd;
use crate::testing::Fake;

/// Longest message that is taken.
pub(super) const MAX_BODY: usize = 4_096;
/// Longest wait for a message; time is paused.
const PATIENCE: Duration = Duration::from_secs(600);

/// The handshake of a client.
pub(super) const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}"#;
pub(super) const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// Runs the tool of this name to its end, also when its call was given up.
fn run(fake: Arc<Fake>, call: BackendCall) -> BoxFuture<'static, Result<ToolOutput, ToolFailure>> {
    let running = tokio::spawn(async move {
        let BackendCall { tool, arguments, cancelled, progress, .. } = call;
        match &*tool {
            "echo" => Ok(ToolOutput::text(arguments.unwrap_or_default())),
            "second" => {
                tokio::time::sleep(Duration::from_secs(1)).await;
                fake.note("second: done");
                Ok(ToolOutput::text("done"))
            }
            "large" => Ok(ToolOutput::text("x".repeat(100_000))),
            "counts" => {
                for count in 1..=3_u32 {
                    if let Some(progress) = &progress {
                        progress.report(Progress { progress: count.into(), total: Some(3.0), message: None });
                    }
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                Ok(ToolOutput::text("counted"))
            }
            "waits" => {
                cancelled.cancelled().await;
                fake.note("waits: cancelled");
                Err(ToolFailure::new(Cause::Cancelled, "The call was cancelled."))
            }
            _ => Err(ToolFailure::new(Cause::UnknownTool, format!("There is no tool `{tool}`."))),
        }
    });
    async move { running.await.unwrap() }.boxed()
}

/// The client's side.
pub(super) struct Fixture {
    pub(super) fake: Arc<Fake>,
    pub(super) closing: CancellationToken,
    served: JoinHandle<StdioEnd>,
    input: Option<DuplexStream>,
    output: Option<Lines<BufReader<DuplexStream>>>,
}

impl Fixture {
    pub(super) fn new() -> Self {
        Self::with_pipe(1 << 20)
    }

    /// A fixture whose client has initialized.
    pub(super) async fn begun() -> Self {
        let mut world = Self::new();
        world.send(INITIALIZE).await;
        world.receive().await;
        world
    }

    /// Builds a fixture with a pipe of so many bytes for unread output.
    pub(super) fn with_pipe(bytes: usize) -> Self {
        let fake = Fake::new(run, &["counts", "echo", "waits"]);
        let closing = CancellationToken::new();
        let server = fake.serve("1", MAX_BODY, &closing);
        let (input, server_input) = tokio::io::duplex(bytes);
        let (server_output, output) = tokio::io::duplex(bytes);
        let agent = AgentName::parse("ana").unwrap();
        let served = tokio::spawn(server.serve(Some(agent), server_input, server_output));
        let output = Some(BufReader::new(output).lines());
        Self { fake, closing, served, input: Some(input), output }
    }

    pub(super) async fn send(&mut self, line: &str) {
        self.write(format!("{line}\n").as_bytes()).await;
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) {
        self.input.as_mut().unwrap().write_all(bytes).await.unwrap();
    }

    /// The next line of the server's.
    pub(super) async fn receive(&mut self) -> String {
        let line = self.output.as_mut().unwrap().next_line();
        tokio::time::timeout(PATIENCE, line).await.expect("a message in time").unwrap().expect("a message")
    }

    /// Sends a line, and returns the next one: the response, if nothing else is under way.
    pub(super) async fn request(&mut self, line: &str) -> String {
        self.send(line).await;
        self.receive().await
    }

    /// Asserts that the server sends nothing.
    pub(super) async fn receive_nothing(&mut self) {
        let line = tokio::time::timeout(Duration::from_secs(60), self.output.as_mut().unwrap().next_line()).await;
        assert!(line.is_err(), "{line:?}");
    }

    /// Closes the input.
    pub(super) fn close_input(&mut self) {
        self.input = None;
    }

    /// Closes the output.
    pub(super) fn close_output(&mut self) {
        self.output = None;
    }

    /// Waits for the end of the server. Returns its last messages, and the reason of its end.
    pub(super) async fn ended(mut self) -> (Vec<String>, StdioEnd, Vec<String>) {
        let mut rest = Vec::new();
        if let Some(output) = &mut self.output {
            while let Some(line) = tokio::time::timeout(PATIENCE, output.next_line()).await.unwrap().unwrap() {
                rest.push(line);
            }
        }
        let end = tokio::time::timeout(PATIENCE, &mut self.served).await.expect("an end in time").unwrap();
        (rest, end, self.fake.log())
    }

    /// Waits for the end of the server without reading its output.
    pub(super) async fn served_to_its_end(&mut self) -> StdioEnd {
        tokio::time::timeout(PATIENCE, &mut self.served).await.expect("an end in time").unwrap()
    }
}

/// A call of a tool.
pub(super) fn call(id: u32, tool: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"{tool}","arguments":{{"n":{id}}}}}}}"#
    )
}

/// A request without parameters.
pub(super) fn plain(id: u32, method: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}"}}"#)
}

pub(super) fn cancel(id: u32) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#)
}

/// A request of the generation without sessions; `params` are further ones, each followed by a comma.
pub(super) fn alone(id: u32, method: &str, params: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{{params}"_meta":{{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{{}}}}}}}}"#
    )
}
