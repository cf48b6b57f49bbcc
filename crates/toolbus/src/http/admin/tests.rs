#![expect(clippy::disallowed_methods, reason = "tasks of a test end with its runtime")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use axum::http::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use toolbus_core::bus::BusState;
use toolbus_core::caller::Identity;
use toolbus_core::events::Discard;
use toolbus_core::pattern::Pattern;
use toolbus_core::policy::{AgentPolicy, Allowed, BindingPolicy, Capacity, Policy, PolicyHandle};
use toolbus_core::registry::Registry;
use toolbus_core::tool::{Tool, ToolDescriptor, ToolOutput};
use toolbus_telemetry::RecentCalls;

use super::*;
use crate::config::{Config, HttpConfig, Secret};
use crate::http::admin::client::{AdminClient, AdminClientError};
use crate::http::tests::auth::Kept;
use crate::http::tests::{example, http_state, sources};
use crate::http::{AdminSocket, HttpAuth, HttpServer, HttpState, NoServers};

mod families;
mod over_http;
mod pins;
mod servers;

const TOKEN: &str = "s3cret-of-the-operator";
const READ_TOKEN: &str = "looks and does nothing";

fn tool(name: &str, source: &str) -> Tool {
    let parameters = json!({"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]});
    let descriptor =
        ToolDescriptor { parameters: Some(parameters.into()), ..ToolDescriptor::new(name, source, "local") };
    Tool::new(descriptor, ToolOutput::default())
}

/// Ana may use the web, less of it for sales, and never as a subagent; every other caller may use everything.
fn policy() -> PolicyHandle {
    let registry = Registry::new();
    for (name, source) in [("web_search", "web"), ("web_browse", "web"), ("echo", "test"), ("spawn", "subagent")] {
        registry.register(tool(name, source)).unwrap();
    }
    let only = |pattern: &str| Allowed::Only(vec![Pattern::parse(pattern).unwrap()]);
    let sales = BindingPolicy {
        channel: "whatsapp".into(),
        account: "sales".into(),
        tools: only("web_search"),
        ..BindingPolicy::default()
    };
    let ana = AgentPolicy {
        tools: Allowed::Only(vec![Pattern::parse("web_*").unwrap(), Pattern::parse("spawn").unwrap()]),
        max_in_flight: Some(3),
        max_queued: Some(5),
        bindings: vec![sales],
        ..AgentPolicy::default()
    };
    let agents = BTreeMap::from([(AgentName::parse("ana").unwrap(), ana)]);
    let capacity = Capacity { max_in_flight: 100, max_waiting: 10 };
    PolicyHandle::new(registry, Identity::default(), Policy { agents, ..Policy::default() }, capacity)
}

/// An admin API of this policy and nothing else.
fn admin(policy: &PolicyHandle) -> Admin {
    Admin {
        gates: Arc::new(Gates::new(policy.clone())),
        switches: Arc::new(SwitchStore::unkept()),
        pins: None,
        servers: Arc::new(NoServers),
        recent: RecentCalls::default(),
        metrics: None,
        families: FamilyViews::default(),
        dead_letters: None,
        audit: Arc::new(Discard),
        daemon: None,
    }
}

/// An admin API on a socket and one on a port, which end with the test.
struct Fixture {
    policy: PolicyHandle,
    folder: TempDir,
    address: SocketAddr,
    audit: Arc<Kept>,
    stop: CancellationToken,
    _bus: watch::Sender<BusState>,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Fixture {
    async fn new() -> Self {
        Self::with(Arc::new(NoServers)).await
    }

    async fn with(servers: Arc<dyn McpAdmin>) -> Self {
        let (policy, folder, stop) = (policy(), tempfile::tempdir().unwrap(), CancellationToken::new());
        let audit = Arc::new(Kept::default());
        let audited = Arc::clone(&audit) as Arc<dyn Audit>;
        let admin = Arc::new(Admin { servers, audit: audited, ..admin(&policy) });
        let socket = AdminSocket::bind(&folder.path().join("s")).await.unwrap();
        tokio::spawn(socket.run(open(Arc::clone(&admin)), stop.clone()));
        let (bus, state) = watch::channel(BusState::default());
        let health = Arc::new(Health::new(sources(state, Registry::new())));
        let server = HttpServer::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let address = server.address();
        let config = HttpConfig {
            admin_token: Some(Secret::new(TOKEN)),
            read_token: Some(Secret::new(READ_TOKEN)),
            ..HttpConfig::default()
        };
        let auth = HttpAuth::new(&Config::default(), Arc::clone(&audit) as Arc<dyn Audit>, stop.clone());
        let state = HttpState { admin: Some(guarded(admin, &config, &auth)), ..http_state(health) };
        tokio::spawn(server.run(state, Handle::current(), stop.clone()));
        Self { policy, folder, address, audit, stop, _bus: bus }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("s")
    }

    fn socket(&self) -> AdminClient {
        AdminClient::Socket(self.path())
    }

    fn http(&self, token: &str) -> AdminClient {
        AdminClient::Http { url: format!("http://{}", self.address).parse().unwrap(), token: Secret::new(token) }
    }

    async fn get(&self, path: &str) -> Value {
        self.socket().send(Method::GET, path).await.unwrap()
    }

    /// Sends a request over the socket as it stands, and reads the response to its end.
    async fn raw(&self, request: &str) -> String {
        let mut stream = UnixStream::connect(self.path()).await.unwrap();
        // A server that refuses early may have closed by now.
        let _ = stream.write_all(last(request).as_bytes()).await;
        let mut response = Vec::new();
        let _ = stream.read_to_end(&mut response).await;
        String::from_utf8(response).unwrap()
    }

    async fn over_tcp(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(last(request).as_bytes()).await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        response
    }
}

/// The last request of its connection.
fn last(request: &str) -> String {
    request.replacen("\r\n", "\r\nConnection: close\r\n", 1)
}

#[tokio::test]
async fn every_agent_is_listed_with_its_rules() {
    let fixture = Fixture::new().await;
    fixture.policy.disable(Switch::Tool("echo".into())).unwrap();
    insta::assert_json_snapshot!(fixture.get("/v1/agents").await, @r#"
    {
      "agents": [
        {
          "agent": "ana",
          "bindings": [
            "whatsapp:sales"
          ],
          "disabled": false,
          "maxInFlight": 3,
          "maxQueued": 5,
          "profile": null,
          "rateLimits": [],
          "tools": 3,
          "total": 4
        },
        {
          "agent": "default",
          "bindings": [],
          "disabled": false,
          "maxInFlight": 75,
          "maxQueued": 5,
          "profile": null,
          "rateLimits": [],
          "tools": 3,
          "total": 4
        }
      ],
      "disabled": [
        {
          "kind": "tool",
          "name": "echo"
        }
      ],
      "unknown": "open"
    }
    "#);
}

#[tokio::test]
async fn each_tool_of_an_agent_is_allowed_or_refused_for_a_reason() {
    let fixture = Fixture::new().await;
    insta::assert_json_snapshot!(fixture.get("/v1/agents/ana").await, @r#"
    {
      "agent": "ana",
      "configured": true,
      "nothing": null,
      "rules": {
        "arguments": [],
        "bindings": [
          "whatsapp:sales"
        ],
        "maxInFlight": 3,
        "maxQueued": 5,
        "profile": null,
        "rateLimits": [],
        "recipients": [],
        "toolSets": []
      },
      "tools": [
        {
          "allowed": false,
          "because": "not in allowed_tools",
          "source": "test",
          "tool": "echo"
        },
        {
          "allowed": true,
          "because": "allowed by `spawn`",
          "source": "subagent",
          "tool": "spawn"
        },
        {
          "allowed": true,
          "because": "allowed by `web_*`",
          "source": "web",
          "tool": "web_browse"
        },
        {
          "allowed": true,
          "because": "allowed by `web_*`",
          "source": "web",
          "tool": "web_search"
        }
      ]
    }
    "#);
    let because = async |path: &str| {
        let response = fixture.get(path).await;
        let tools = response["tools"].as_array().unwrap().clone();
        let line = |tool: &Value| format!("{} {} {}", tool["tool"], tool["allowed"], tool["because"]);
        tools.iter().map(line).collect::<Vec<_>>().join("\n")
    };
    insta::assert_snapshot!(because("/v1/agents/ana?binding=whatsapp%3Asales&profile=subagent").await, @r#"
    "echo" false "not in allowed_tools"
    "spawn" false "not in allowed_tools of the binding"
    "web_browse" false "not in allowed_tools of the binding"
    "web_search" true "allowed by `web_search`"
    "#);
    insta::assert_snapshot!(because("/v1/agents/ana?profile=nobody").await, @r#"
    "echo" false "There is no profile of the name that the request gives; there are main, subagent, scheduled and a2a-synthesis."
    "spawn" false "There is no profile of the name that the request gives; there are main, subagent, scheduled and a2a-synthesis."
    "web_browse" false "There is no profile of the name that the request gives; there are main, subagent, scheduled and a2a-synthesis."
    "web_search" false "There is no profile of the name that the request gives; there are main, subagent, scheduled and a2a-synthesis."
    "#);
}

#[tokio::test]
async fn an_agent_without_a_section_gets_the_rules_of_default() {
    let fixture = Fixture::new().await;
    for name in ["bruno", "default"] {
        let response = fixture.get(&format!("/v1/agents/{name}")).await;
        assert_eq!(
            (&response["configured"], response["tools"][0]["allowed"].clone()),
            (&json!(name == "default"), json!(true))
        );
    }
}

#[tokio::test]
async fn a_call_is_explained_up_to_the_gate_that_refuses() {
    let fixture = Fixture::new().await;
    let explained = async |question: Value| -> Value { fixture.socket().post("/v1/explain", &question).await.unwrap() };
    let pass = explained(json!({"agent": "ana", "tool": "web_search", "arguments": {"query": "x"}})).await;
    assert_eq!(pass["passes"], true, "{pass}");
    let text = explained(json!({"agent": "ana", "tool": "web_search", "arguments": "{\"query\": \"x\"}"})).await;
    assert_eq!(text, pass);
    let twice = r#"{"agent": "ana", "tool": "web_search", "arguments": {"query": "x", "query": "y"}}"#;
    let response = fixture
        .raw(&format!("POST /v1/explain HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{twice}", twice.len()))
        .await;
    assert!(response.contains("duplicate member"), "{response}");
    insta::assert_json_snapshot!(explained(json!({"agent": "ana", "tool": "web_search", "arguments": {"query": 7}})).await, @r#"
    {
      "agent": "ana",
      "passes": false,
      "steps": [
        {
          "passes": true,
          "step": "caller",
          "text": "agent ana, profile main, 3 tools",
          "told": null
        },
        {
          "passes": true,
          "step": "resolve",
          "text": "allowed by `web_*`",
          "told": null
        },
        {
          "passes": false,
          "step": "arguments",
          "text": "The arguments do not fit the tool's parameters: /query: value is not of type \"string\"",
          "told": "The arguments do not fit the tool's parameters: /query: value is not of type \"string\""
        }
      ],
      "tool": "web_search"
    }
    "#);
    insta::assert_json_snapshot!(explained(json!({"agent": "ana", "tool": "echo"})).await, @r#"
    {
      "agent": "ana",
      "passes": false,
      "steps": [
        {
          "passes": true,
          "step": "caller",
          "text": "agent ana, profile main, 3 tools",
          "told": null
        },
        {
          "passes": false,
          "step": "resolve",
          "text": "not in allowed_tools",
          "told": "Tool 'echo' is not registered."
        }
      ],
      "tool": "echo"
    }
    "#);
}

#[tokio::test]
async fn a_switch_acts_at_once_and_is_listed() {
    let fixture = Fixture::new().await;
    let set = async |method: Method, path: &str| -> Value { fixture.socket().send(method, path).await.unwrap() };
    let path = "/v1/disabled/tool/web_search";
    insta::assert_json_snapshot!(set(Method::PUT, path).await, @r#"
    {
      "changed": true,
      "disabled": true,
      "kind": "tool",
      "known": true,
      "name": "web_search"
    }
    "#);
    assert_eq!(fixture.policy.disabled(), [Switch::Tool("web_search".into())]);
    assert_eq!(set(Method::PUT, path).await["changed"], false);
    assert_eq!(fixture.get("/v1/disabled").await, json!({"disabled": [{"kind": "tool", "name": "web_search"}]}));
    let tool = fixture.get("/v1/agents/ana").await["tools"][3].clone();
    assert_eq!((&tool["tool"], &tool["allowed"]), (&json!("web_search"), &json!(false)));
    assert_eq!(set(Method::DELETE, path).await["changed"], true);
    assert_eq!(set(Method::DELETE, path).await["changed"], false);
    assert!(fixture.policy.disabled().is_empty());
    assert_eq!(set(Method::PUT, "/v1/disabled/source/no%2Fsuch").await["known"], false);
    assert_eq!(fixture.policy.disabled(), [Switch::Source("no/such".into())]);
}

#[tokio::test]
async fn requests_that_cannot_be_read_are_refused_in_words() {
    let fixture = Fixture::new().await;
    let refused = async |method: Method, path: &str| match fixture.socket().send::<Value>(method, path).await {
        Err(AdminClientError::Refused(text)) => text,
        other => panic!("{path}: {other:?}"),
    };
    let all = [
        refused(Method::GET, "/v1/nothing").await,
        refused(Method::GET, "/v1/agents/a%20b").await,
        refused(Method::GET, "/v1/agents/ana?bnding=x").await,
        refused(Method::GET, "/v1/agents/%FF").await,
        refused(Method::DELETE, "/v1/agents").await,
        refused(Method::PUT, "/v1/disabled/tools/echo").await,
        refused(Method::PUT, "/v1/disabled/tool/a%0Ab").await,
        refused(Method::POST, "/v1/explain").await,
    ];
    insta::assert_snapshot!(all.join("\n"), @r#"
    no such path: there are /v1/status, /v1/reload, /v1/tools, /v1/agents, /v1/agents/NAME, /v1/calls, /v1/rates, /v1/explain, /v1/disabled, /v1/disabled/KIND/NAME, /v1/breakers, /v1/breakers/NAME, /v1/mcp, /v1/mcp/NAME, /v1/mcp/NAME/restart, /v1/pins, /v1/pins/NAME and /v1/pins/NAME/approve
    `a b` is no name of an agent; expected 1 to 64 letters, digits, `.`, `_` or `-`
    Failed to deserialize query string: bnding: unknown field `bnding`, expected one of `binding`, `profile`, `session`
    Invalid URL: Invalid UTF-8 in `name`
    the method is not one of this path
    only a tool, an agent or a source can be switched off
    the name must have 1 to 255 bytes and no control character
    the body is not usable: EOF while parsing a value at line 1 column 0
    "#);
}

#[tokio::test]
async fn without_metrics_the_key_that_turns_them_on_is_named() {
    let fixture = Fixture::new().await;
    let error = fixture.socket().send::<Value>(Method::GET, "/v1/rates").await.unwrap_err();
    assert!(matches!(&error, AdminClientError::Failed(text) if text.contains("http.metrics")), "{error}");
}

#[tokio::test]
async fn a_body_is_bounded() {
    let fixture = Fixture::new().await;
    let question = |bytes| json!({"agent": "ana", "tool": "web_search", "arguments": {"query": "x".repeat(bytes)}});
    let fits = fixture.socket().post::<Explained>("/v1/explain", &question(60_000)).await.unwrap();
    assert!(fits.passes);
    let kept = fixture.socket().post::<Explained>("/v1/explain", &question(70_000)).await.unwrap_err();
    assert!(matches!(&kept, AdminClientError::Refused(text) if text.contains("64 KiB")), "{kept}");
    let announced = "POST /v1/explain HTTP/1.1\r\nHost: localhost\r\nContent-Length: 65537\r\n\r\n";
    let chunks = format!("10001\r\n{}\r\n0\r\n\r\n", "x".repeat(0x10001));
    let chunked = format!("POST /v1/explain HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}");
    for request in [format!("{announced}{}", "x".repeat(65_537)), chunked] {
        let response = fixture.raw(&request).await;
        assert!(response.starts_with("HTTP/1.1 413 ") && response.contains("64 KiB"), "{response}");
    }
}
