//! `toolbus mcp serve --stdio`, as the client that started it has it.

use std::process::Stdio as Pipe;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;
use toolbus_testing::patience::PATIENCE;

use crate::namespace::BrokerNamespace;
use crate::program::binary;

/// The server's process, and the client's end of it. It ends when dropped.
pub struct Stdio {
    child: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
    log: Arc<Mutex<String>>,
    reader: JoinHandle<()>,
    heard: Vec<Value>,
    last_id: u64,
    _folder: TempDir,
}

impl Drop for Stdio {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("the log of the server on standard output:\n{}", self.log());
        }
    }
}

impl Stdio {
    /// Starts one for this agent.
    #[must_use]
    pub fn start(site: &BrokerNamespace, agent: &str) -> Self {
        Self::start_with(site, &["--agent", agent])
    }

    /// Starts one with these arguments.
    ///
    /// # Panics
    ///
    /// When no process can be started.
    #[must_use]
    pub fn start_with(site: &BrokerNamespace, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new(binary())
            .args(["mcp", "serve", "--stdio"])
            .args(arguments)
            .args(site.arguments())
            .env_clear()
            .envs(std::env::var("TOOLBUS_TEST_RUN").map(|run| ("TOOLBUS_TEST_RUN", run)))
            .current_dir(folder.path())
            .stdin(Pipe::piped())
            .stdout(Pipe::piped())
            .stderr(Pipe::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let log = Arc::<Mutex<String>>::default();
        let kept = Arc::clone(&log);
        let reader = tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                let mut log = kept.lock().unwrap_or_else(PoisonError::into_inner);
                log.push_str(&line);
                log.push('\n');
            }
        });
        Self { child, input, output, log, reader, heard: Vec::new(), last_id: 0, _folder: folder }
    }

    /// Initialises in the last revision with a handshake, and gives the response.
    pub async fn begin(&mut self) -> Value {
        let client = json!({"name": "tests", "version": "1"});
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client});
        let response = self.exchange("initialize", &params).await;
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
        response
    }

    /// Sends a message.
    ///
    /// # Panics
    ///
    /// When the input is closed.
    pub async fn send(&mut self, message: &Value) {
        let input = self.input.as_mut().expect("an open input");
        input.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    /// Sends a request, and gives its id.
    pub async fn request(&mut self, method: &str, params: &Value) -> u64 {
        self.last_id += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params})).await;
        self.last_id
    }

    /// Sends a request, and gives its response.
    pub async fn exchange(&mut self, method: &str, params: &Value) -> Value {
        let id = self.request(method, params).await;
        self.response(id).await
    }

    /// Calls a tool, and gives the result.
    pub async fn call(&mut self, tool: &str, arguments: &Value) -> Value {
        let mut response = self.exchange("tools/call", &json!({"name": tool, "arguments": arguments})).await;
        match response.get_mut("result") {
            Some(result) => result.take(),
            None => response,
        }
    }

    /// The names of the tools that are listed, or the error.
    pub async fn names(&mut self) -> Value {
        let response = self.exchange("tools/list", &json!({})).await;
        match response["result"]["tools"].as_array() {
            Some(tools) => tools.iter().map(|tool| tool["name"].clone()).collect(),
            None => response["error"]["message"].clone(),
        }
    }

    /// Waits for the response to a request.
    pub async fn response(&mut self, id: u64) -> Value {
        self.wait_for(|message| message["id"] == id).await
    }

    /// Waits for a notification.
    pub async fn notification(&mut self, method: &str) -> Value {
        self.wait_for(|message| message["method"] == method).await
    }

    async fn wait_for(&mut self, is_it: impl Fn(&Value) -> bool) -> Value {
        loop {
            if let Some(index) = self.heard.iter().position(&is_it) {
                return self.heard.remove(index);
            }
            let line = tokio::time::timeout(PATIENCE, self.output.next_line()).await.expect("a message in time");
            self.heard.push(message(&line.unwrap().expect("a message")));
        }
    }

    /// Returns the messages that no test waited for.
    #[must_use]
    pub fn rest(&self) -> &[Value] {
        &self.heard
    }

    /// Returns what the server wrote to standard error so far.
    #[must_use]
    pub fn log(&self) -> String {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends a signal, such as `TERM`.
    ///
    /// # Panics
    ///
    /// When it cannot be sent.
    pub async fn signal(&self, name: &str) {
        let pid = self.child.id().expect("a running server").to_string();
        assert!(Command::new("kill").args([format!("-{name}"), pid]).status().await.unwrap().success());
    }

    /// Closes the input.
    pub fn close(&mut self) {
        self.input = None;
    }

    /// Waits for the end: the exit code, and the messages that no test waited for.
    ///
    /// # Panics
    ///
    /// When it does not come in time, or something was written that is no message.
    pub async fn ended(mut self) -> (Option<i32>, Vec<Value>) {
        let end = async {
            while let Some(line) = self.output.next_line().await.unwrap() {
                self.heard.push(message(&line));
            }
            let status = self.child.wait().await.unwrap();
            (&mut self.reader).await.unwrap();
            status.code()
        };
        let code = tokio::time::timeout(PATIENCE, end).await.expect("an end in time");
        (code, std::mem::take(&mut self.heard))
    }
}

/// Nothing but messages may ever be on standard output.
fn message(line: &str) -> Value {
    let message: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("no message ({error}): {line}"));
    assert_eq!(message["jsonrpc"], "2.0", "{line}");
    message
}
