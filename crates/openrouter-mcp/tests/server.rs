//! The real program, against a server that behaves as OpenRouter's API does.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "a test fails by panicking"
)]

use std::collections::HashMap;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, Query};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::TcpListener;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

/// Longest wait for a response or an end.
const PATIENCE: Duration = Duration::from_secs(30);
const HASH: &str = "f01d52606dc8f0a8303a7b5cc3fa07109c2e346cec7c0a16b40de462992ce943";

fn error(status: u16, message: &str) -> Response {
    let body = json!({"error": {"code": status, "message": message}}).to_string();
    (StatusCode::from_u16(status).unwrap(), [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// Responds to a request if its key has the right.
fn respond(headers: &HeaderMap, is_for_management: bool, body: &Value) -> Response {
    match headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()) {
        None => error(401, "No cookie auth credentials found"),
        Some("Bearer sk-or-v1-management") => body.to_string().into_response(),
        Some("Bearer sk-or-v1-plain") if is_for_management => {
            error(403, "Only management keys can perform this operation")
        }
        Some("Bearer sk-or-v1-plain") => body.to_string().into_response(),
        Some("Bearer sk-or-v1-busy") => {
            let mut refused = error(429, "Rate limit exceeded");
            refused.headers_mut().insert(header::RETRY_AFTER, "7".parse().unwrap());
            refused
        }
        Some("Bearer sk-or-v1-html") => "<html>Bad gateway</html>".into_response(),
        Some("Bearer sk-or-v1-moved") => (StatusCode::FOUND, [(header::LOCATION, "/api/v1/models")]).into_response(),
        Some("Bearer sk-or-v1-large") => "x".repeat(9 * 1024 * 1024).into_response(),
        Some("Bearer sk-or-v1-down") => error(503, "Service unavailable"),
        Some(_) => error(401, "User not found."),
    }
}

async fn openrouter() -> SocketAddr {
    let credits = |headers: HeaderMap| async move {
        respond(&headers, true, &json!({"data": {"total_credits": 100.5, "total_usage": 25.75}}))
    };
    let key = |headers: HeaderMap| async move {
        respond(&headers, false, &json!({"data": {"label": "sk-or-v1-pla...ain", "limit": 10, "usage": 2.5}}))
    };
    let models = |headers: HeaderMap| async move {
        respond(&headers, false, &json!({"data": [{"id": "openai/gpt-5", "context_length": 400_000}]}))
    };
    let keys = |headers: HeaderMap| async move {
        respond(&headers, true, &json!({"data": [{"hash": HASH, "name": "ci", "disabled": false}]}))
    };
    let one = |Path(hash): Path<String>, headers: HeaderMap| async move {
        match hash.as_str() {
            HASH => respond(&headers, true, &json!({"data": {"hash": HASH, "name": "ci", "usage": 1.5}})),
            _ => error(404, "API key not found"),
        }
    };
    let generation = |Query(query): Query<HashMap<String, String>>, headers: HeaderMap| async move {
        match query.get("id").map(String::as_str) {
            Some("gen-1") => respond(&headers, false, &json!({"data": {"id": "gen-1", "total_cost": 0.0015}})),
            _ => error(404, "Generation not found"),
        }
    };
    let api = Router::new()
        .route("/credits", get(credits))
        .route("/key", get(key))
        .route("/models", get(models))
        .route("/keys", get(keys))
        .route("/keys/{hash}", get(one))
        .route("/generation", get(generation));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, Router::new().nest("/api/v1", api)).await });
    address
}

fn command(api: SocketAddr, key: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_openrouter-mcp"));
    command
        .env_clear()
        .env("OPENROUTER_API_KEY", key)
        .env("OPENROUTER_BASE_URL", format!("http://{api}/api/v1"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// A client over standard input and output.
struct Client {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    requests: u64,
}

impl Client {
    async fn start(key: &str) -> Self {
        let mut child = command(openrouter().await, key).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut client = Self { child, input, output: BufReader::new(output).lines(), requests: 0 };
        let parameters = json!({
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        });
        assert_eq!(client.request("initialize", parameters).await["result"]["serverInfo"]["name"], "openrouter");
        client
    }

    async fn request(&mut self, method: &str, params: Value) -> Value {
        self.requests += 1;
        let request = json!({"jsonrpc": "2.0", "id": self.requests, "method": method, "params": params});
        self.input.write_all(format!("{request}\n").as_bytes()).await.unwrap();
        let line = timeout(PATIENCE, self.output.next_line()).await.unwrap().unwrap().unwrap();
        serde_json::from_str(&line).unwrap()
    }

    /// Calls a tool; returns its text, and of a failure the code and how long to wait.
    async fn call(&mut self, tool: &str, arguments: Value) -> (String, String) {
        let response = self.request("tools/call", json!({"name": tool, "arguments": arguments})).await;
        let result = &response["result"];
        let text = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{response}")).to_owned();
        let error = &result["_meta"]["toolbus/error"];
        let code = error["code"].as_str().unwrap_or_default();
        (text, error["retryAfterMs"].as_u64().map_or(code.to_owned(), |wait| format!("{code}, {wait} ms")))
    }
}

#[tokio::test]
async fn a_client_lists_six_tools_that_only_read() {
    let mut client = Client::start("sk-or-v1-plain").await;
    let response = client.request("tools/list", json!({})).await;
    let tools = response["result"]["tools"].as_array().unwrap();
    assert!(tools.iter().all(|tool| tool["annotations"]["readOnlyHint"] == true), "{response}");
    let of = |tool: &Value| format!("{} {}", tool["name"].as_str().unwrap(), tool["inputSchema"]["required"]);
    insta::assert_snapshot!(tools.iter().map(of).collect::<Vec<_>>().join("\n"), @r#"
    get_api_key ["keyHash"]
    get_api_key_info []
    get_credits []
    get_generation ["generationId"]
    list_api_keys []
    list_models []
    "#);
}

#[tokio::test]
async fn each_tool_returns_the_json_of_the_api() {
    let mut client = Client::start("sk-or-v1-management").await;
    let calls = [
        ("get_credits", json!({}), json!({"data": {"total_credits": 100.5, "total_usage": 25.75}})),
        ("get_api_key_info", json!({}), json!({"data": {"label": "sk-or-v1-pla...ain", "limit": 10, "usage": 2.5}})),
        ("list_models", json!({}), json!({"data": [{"id": "openai/gpt-5", "context_length": 400_000}]})),
        ("list_api_keys", json!({}), json!({"data": [{"hash": HASH, "name": "ci", "disabled": false}]})),
        ("get_api_key", json!({"keyHash": HASH}), json!({"data": {"hash": HASH, "name": "ci", "usage": 1.5}})),
        ("get_generation", json!({"generationId": "gen-1"}), json!({"data": {"id": "gen-1", "total_cost": 0.0015}})),
    ];
    for (tool, arguments, expected) in calls {
        let (text, code) = client.call(tool, arguments).await;
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected, "{tool}");
        assert_eq!(code, "", "{tool}");
    }
}

#[tokio::test]
async fn a_failure_names_the_right_or_the_thing_that_is_missing() {
    let mut refusals = Vec::new();
    let calls = [
        ("sk-or-v1-plain", "get_credits", json!({})),
        ("sk-or-v1-plain", "list_api_keys", json!({})),
        ("sk-or-v1-revoked", "get_credits", json!({})),
        ("sk-or-v1-revoked", "list_models", json!({})),
        ("sk-or-v1-management", "get_api_key", json!({"keyHash": "abc"})),
        ("sk-or-v1-management", "get_generation", json!({"generationId": "gen-2"})),
        ("sk-or-v1-management", "get_api_key", json!({"keyHash": "../credits"})),
        ("sk-or-v1-management", "get_credits", json!({"account": 1})),
        ("sk-or-v1-busy", "list_models", json!({})),
        ("sk-or-v1-down", "list_models", json!({})),
        ("sk-or-v1-html", "list_models", json!({})),
        ("sk-or-v1-moved", "list_models", json!({})),
        ("sk-or-v1-large", "list_models", json!({})),
    ];
    for (key, tool, arguments) in calls {
        let (text, code) = Client::start(key).await.call(tool, arguments).await;
        refusals.push(format!("{tool}, {key}: {code} {text}"));
    }
    insta::assert_snapshot!(refusals.join("\n"), @"
    get_credits, sk-or-v1-plain: not_allowed The API key lacks the right to read the account. This tool needs a management key, which an administrator makes at https://openrouter.ai/settings/management-keys. It says: Only management keys can perform this operation
    list_api_keys, sk-or-v1-plain: not_allowed The API key lacks the right to read the account. This tool needs a management key, which an administrator makes at https://openrouter.ai/settings/management-keys. It says: Only management keys can perform this operation
    get_credits, sk-or-v1-revoked: not_allowed OpenRouter refuses the API key. This tool needs a valid management key, which an administrator makes at https://openrouter.ai/settings/management-keys. It says: User not found.
    list_models, sk-or-v1-revoked: not_allowed OpenRouter refuses the API key: it is wrong, disabled or expired. The operator of this server has to give another one. It says: User not found.
    get_api_key, sk-or-v1-management: invalid_arguments No API key of the account has this hash. `list_api_keys` lists the hashes. It says: API key not found
    get_generation, sk-or-v1-management: invalid_arguments No generation of this key has this id. A new one can be read after some seconds. It says: Generation not found
    get_api_key, sk-or-v1-management: invalid_arguments `keyHash` must be a string of 1 to 128 ASCII letters, digits, underscores and hyphens.
    get_credits, sk-or-v1-management: invalid_arguments `get_credits` takes no argument.
    list_models, sk-or-v1-busy: rate_limited, 7000 ms OpenRouter receives too many requests with this key. It says: Rate limit exceeded
    list_models, sk-or-v1-down: execution_failed OpenRouter cannot answer now (HTTP 503). It says: Service unavailable
    list_models, sk-or-v1-html: execution_failed OpenRouter's response is no JSON.
    list_models, sk-or-v1-moved: execution_failed OpenRouter answers with HTTP 302.
    list_models, sk-or-v1-large: execution_failed OpenRouter's response has more than 8 MiB.
    ");
}

#[tokio::test]
async fn an_api_that_cannot_be_reached_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let mut child = command(address, "sk-or-v1-plain").arg("--listen").arg("127.0.0.1:0").spawn().unwrap();
    let url = url_of(&mut child).await;
    let (_, response) = post(&url, &[], &call("list_models")).await;
    assert!(response.contains("OpenRouter cannot be reached."), "{response}");
}

#[tokio::test]
async fn invalid_arguments_are_errors_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let (empty, missing) = (folder.path().join("empty"), folder.path().join("missing"));
    std::fs::write(&empty, " \n").unwrap();
    let api = "127.0.0.1:9".parse().unwrap();
    let mut errors = Vec::new();
    for (name, arguments) in [
        ("no key", vec![]),
        ("a key of two words", vec![]),
        ("an empty file", vec!["--api-key-file", empty.to_str().unwrap()]),
        ("no file", vec!["--api-key-file", missing.to_str().unwrap()]),
        ("a public address", vec!["--listen", "0.0.0.0:0"]),
        ("another scheme", vec!["--base-url", "file:///etc/passwd"]),
    ] {
        let mut command = command(api, if name == "a key of two words" { "a b" } else { "sk-or-v1-plain" });
        if name == "no key" {
            command.env_remove("OPENROUTER_API_KEY");
        }
        let output = timeout(PATIENCE, command.args(arguments).output()).await.unwrap().unwrap();
        assert_eq!(output.status.code(), Some(1), "{name}");
        let text = String::from_utf8(output.stderr).unwrap();
        errors.push(text.replace(folder.path().to_str().unwrap(), "FOLDER").trim().to_owned());
    }
    insta::assert_snapshot!(errors.join("\n"), @"
    openrouter-mcp: there is no API key: set OPENROUTER_API_KEY, or give --api-key-file
    openrouter-mcp: the API key must have 1 to 512 printable ASCII characters and no blanks
    openrouter-mcp: FOLDER/empty: the file is empty
    openrouter-mcp: FOLDER/missing: No such file or directory (os error 2)
    openrouter-mcp: other machines reach this address: give --token-file with a token for clients, or listen on 127.0.0.1
    openrouter-mcp: --base-url must begin with https:// or http://
    ");
}

#[tokio::test]
async fn http_clients_are_served_with_the_token_alone() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "let-me-in\n").unwrap();
    let mut command = command(openrouter().await, "sk-or-v1-management");
    let mut child = command.args(["--listen", "127.0.0.1:0", "--token-file"]).arg(&token).spawn().unwrap();
    let url = url_of(&mut child).await;
    let body = call("get_credits");
    let statuses = [
        post(&url, &[], &body).await.0,
        post(&url, &[("authorization", "Bearer wrong")], &body).await.0,
        post(&url, &[("authorization", "Bearer let-me-in"), ("host", "evil.example")], &body).await.0,
        post(&url, &[("authorization", "Bearer let-me-in"), ("origin", "https://evil.example")], &body).await.0,
        post(&url, &[("authorization", "Bearer let-me-in")], &"x".repeat(1024 * 1024 + 1)).await.0,
    ];
    assert_eq!(statuses, [401, 401, 421, 403, 413]);
    let (status, response) = post(&url, &[("authorization", "Bearer let-me-in")], &body).await;
    assert!(status == 200 && response.contains(r#"\"total_credits\":100.5"#), "{status} {response}");
}

#[tokio::test]
async fn the_server_ends_with_its_input_or_on_a_signal() {
    let Client { mut child, input, .. } = Client::start("sk-or-v1-plain").await;
    drop(input);
    assert!(timeout(PATIENCE, child.wait()).await.unwrap().unwrap().success());
    let Client { mut child, input, .. } = Client::start("sk-or-v1-plain").await;
    let id = child.id().unwrap().to_string();
    assert!(Command::new("kill").arg(id).status().await.unwrap().success());
    assert!(timeout(PATIENCE, child.wait()).await.unwrap().unwrap().success());
    drop(input);
}

/// A call that stands alone.
fn call(tool: &str) -> String {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": {}, "_meta": meta}})
        .to_string()
}

/// URL of a server, read from its log.
async fn url_of(child: &mut Child) -> String {
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    loop {
        let line = timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().expect("it listens");
        if let Some((_, address)) = line.split_once("address=") {
            tokio::spawn(drain(lines));
            return format!("http://{}/mcp", address.trim());
        }
    }
}

async fn drain(lines: Lines<BufReader<ChildStderr>>) {
    let mut rest = Vec::new();
    let _ = lines.into_inner().read_to_end(&mut rest).await;
}

async fn post(url: &str, headers: &[(&str, &str)], body: &str) -> (u16, String) {
    let tool = serde_json::from_str::<Value>(body).map(|call| call["params"]["name"].clone()).unwrap_or_default();
    let mut request = reqwest::Client::new()
        .post(url)
        .header("accept", "application/json, text/event-stream")
        .header("content-type", "application/json")
        .header("mcp-protocol-version", "2026-07-28")
        .header("mcp-method", "tools/call")
        .header("mcp-name", tool.as_str().unwrap_or("x"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = timeout(PATIENCE, request.body(body.to_owned()).send()).await.unwrap().unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}
