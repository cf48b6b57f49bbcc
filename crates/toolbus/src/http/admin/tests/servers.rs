use axum::http::Method;
use parking_lot::Mutex;
use toolbus_mcp_client::status::{PhaseName, ServerStatus};

use super::super::view::{McpRestart, McpServerList};
use super::*;

/// Three servers, and the names of those that were to be restarted.
#[derive(Default)]
struct Three(Mutex<Vec<String>>);

impl McpAdmin for Three {
    fn status(&self) -> Vec<ServerStatus> {
        vec![
            example("Files"),
            example("git hub"),
            ServerStatus { phase: PhaseName::Disabled, pid: None, ..example("old") },
        ]
    }

    fn restart(&self, name: &str) -> bool {
        self.0.lock().push(name.to_owned());
        true
    }
}

async fn refused(fixture: &Fixture, method: Method, path: &str) -> String {
    match fixture.socket().send::<Value>(method, path).await {
        Err(AdminClientError::Refused(text) | AdminClientError::Failed(text)) => text,
        other => panic!("{path}: {other:?}"),
    }
}

/// An API of a daemon with these servers.
async fn with_three() -> (Arc<Three>, Fixture) {
    let three = Arc::new(Three::default());
    let fixture = Fixture::with(Arc::clone(&three) as Arc<dyn McpAdmin>).await;
    (three, fixture)
}

#[tokio::test]
async fn every_server_is_listed_with_all_that_is_known() {
    let (_three, fixture) = with_three().await;
    let all: McpServerList = fixture.socket().send(Method::GET, "/v1/mcp").await.unwrap();
    let names: Vec<&str> = all.servers.iter().map(|server| server.name.as_str()).collect();
    assert_eq!(names, ["Files", "git hub", "old"]);
    insta::assert_json_snapshot!(fixture.get("/v1/mcp/files").await, @r#"
    {
      "cleaned": [],
      "cleanedTotal": 0,
      "hidden": [
        {
          "name": "move_file",
          "reason": "denied by deniedTools"
        }
      ],
      "implementation": "example 1.0",
      "inFlight": 1,
      "lastError": null,
      "latencyUs": 1234,
      "name": "Files",
      "origin": "configuration",
      "phase": "ready",
      "pid": 4242,
      "protocolVersion": "2025-11-25",
      "readySeconds": 3725,
      "restarts": 0,
      "sessions": 0,
      "shadowed": [],
      "shadowedTotal": 0,
      "stderr": [
        "listening"
      ],
      "suspect": [],
      "suspectTotal": 0,
      "tools": [
        "read_file",
        "write_file"
      ],
      "toolset": null,
      "transport": "stdio"
    }
    "#);
}

#[tokio::test]
async fn a_server_is_restarted_by_its_name_whatever_its_case() {
    let (three, fixture) = with_three().await;
    let restart: McpRestart = fixture.socket().send(Method::POST, "/v1/mcp/fiLES/restart").await.unwrap();
    assert_eq!(restart.restarting, "Files");
    let over_http: McpRestart = fixture.http(TOKEN).send(Method::POST, "/v1/mcp/git%20hub/restart").await.unwrap();
    assert_eq!(over_http.restarting, "git hub");
    assert_eq!(*three.0.lock(), ["Files", "git hub"]);
}

#[tokio::test]
async fn without_the_token_no_server_is_listed_or_restarted() {
    let (three, fixture) = with_three().await;
    for line in ["GET /v1/mcp", "GET /v1/mcp/Files", "POST /v1/mcp/Files/restart"] {
        let response = fixture.over_tcp(&format!("{line} HTTP/1.1\r\nHost: localhost\r\n\r\n")).await;
        assert!(response.starts_with("HTTP/1.1 401 ") && !response.contains("Files"), "{line}: {response}");
    }
    assert!(three.0.lock().is_empty());
}

#[tokio::test]
async fn unknown_and_disabled_servers_are_refused_in_words() {
    let (three, fixture) = with_three().await;
    let none = Fixture::new().await;
    let all = [
        refused(&fixture, Method::GET, "/v1/mcp/fils").await,
        refused(&fixture, Method::POST, "/v1/mcp/%1B[2Jnothing/restart").await,
        refused(&fixture, Method::POST, "/v1/mcp/old/restart").await,
        refused(&fixture, Method::GET, "/v1/mcp/files/restart").await,
        refused(&fixture, Method::GET, "/v1/mcp/%FF").await,
        refused(&none, Method::GET, "/v1/mcp/files").await,
    ];
    insta::assert_snapshot!(all.join("\n"), @r#"
    there is no MCP server `fils`: did you mean `Files`?
    there is no MCP server `\u{1b}[2Jnothing`: `toolbus mcp list` shows all
    the MCP server `old` is disabled in the configuration, so it is not started
    the method is not one of this path
    Invalid URL: Invalid UTF-8 in `name`
    the daemon has no MCP servers: add one to its configuration, under mcp.servers or in mcp.servers_file
    "#);
    assert!(three.0.lock().is_empty());
}
