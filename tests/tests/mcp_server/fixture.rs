//! A daemon with an MCP server for two agents.

use serde_json::{Value, json};
use toolbus_e2e::backend::Backend;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::http::{Connection, hello, posted};

pub(crate) const ANA: &str = "Authorization: Bearer the-token-of-ana";
pub(crate) const BEA: &str = "Authorization: Bearer the-token-of-bea";

pub(crate) struct Fixture {
    pub(crate) backend: Backend,
    pub(crate) daemon: Daemon,
}

/// Rules by which ana has these tools and `more`, further keys of her section, and bea has `echo`.
pub(crate) fn rules(backend: &Backend, tools: &[&str], more: &str) -> String {
    let gate = backend.tool("gate", "/gate?id={id}", "");
    let large = backend.endpoint(
        "large",
        "/bytes/{count}",
        r#"{"type":"object","properties":{"count":{"type":"integer"}}}"#,
        "max_response = \"32MiB\"",
    );
    format!(
        "[audit]\nfile = \"audit.jsonl\"\n[tools]\necho = true\n[identity]\ntrust_headers = true\n\
         [http]\ntokens = {{ ana = \"the-token-of-ana\", bea = \"the-token-of-bea\" }}\n\
         [agents.ana]\nallowed_tools = {tools:?}\n{more}\n[agents.bea]\nallowed_tools = [\"echo\"]\n{gate}{large}"
    )
}

impl Fixture {
    pub(crate) async fn new(tools: &[&str]) -> Self {
        let backend = Backend::start().await;
        let daemon = Daemon::alone(&rules(&backend, tools, "")).await;
        Self { backend, daemon }
    }

    pub(crate) async fn client(&self) -> Connection {
        Connection::open(self.daemon.listen()).await
    }

    /// Begins a session, and gives the header that names it.
    pub(crate) async fn session(&self, token: &str) -> String {
        let began = self.client().await.post(&[token], &hello()).await;
        format!("Mcp-Session-Id: {}", began.header("mcp-session-id").unwrap())
    }

    pub(crate) async fn exchange(&self, head: &[&str], message: &Value) -> Value {
        self.client().await.post(head, message).await.json()
    }

    /// Listens for the news of a session.
    pub(crate) async fn listen(&self, token: &str, session: &str) -> Connection {
        let mut stream = self.client().await;
        let head = format!("{token}\r\n{session}\r\nAccept: text/event-stream");
        stream.write(&format!("GET /mcp HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n")).await;
        assert!(stream.saw(": here").await);
        stream
    }

    /// Sends a message, and does not wait for its response.
    pub(crate) async fn send(&self, head: &[&str], message: &Value) -> Connection {
        let (mut client, body) = (self.client().await, message.to_string());
        client.write(&posted(head, body.len())).await;
        client.write(&body).await;
        client
    }

    /// Returns what the audit has of calls of a tool.
    pub(crate) fn audited(&self, tool: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.daemon.folder().join("audit.jsonl")).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        let records = whole.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let of_tool = records.filter(|record| record["tool"] == tool);
        of_tool.map(|record| format!("{} {}", record["event"], record["status"]).replace('"', "")).collect()
    }
}

pub(crate) fn call(id: i64, tool: &str, arguments: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": tool, "arguments": arguments}})
}

/// A call of a client that has no session, and its headers.
pub(crate) fn alone(id: i64, tool: &str, arguments: &Value) -> ([String; 3], Value) {
    let mut message = call(id, tool, arguments);
    message["params"]["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let headers = ["MCP-Protocol-Version: 2026-07-28", "Mcp-Method: tools/call", &format!("Mcp-Name: {tool}")];
    (headers.map(str::to_owned), message)
}
