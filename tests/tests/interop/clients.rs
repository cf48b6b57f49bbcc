//! Clients that others wrote use the MCP server: each lists, calls, is refused, hears of progress and changes, cancels
//! and reads.

use serde_json::{Value, json};
use toolbus_e2e::mcp_client::{ClientKind, inspect};

use crate::fixture::{Fixture, TOKEN};

/// The newest revision of the protocol that has sessions, and the one that has none.
pub(crate) const WITH_SESSIONS: &str = "2025-11-25";
pub(crate) const STATELESS: &str = "2026-07-28";

/// Builds what users of clients copy from the examples, for this server and this token.
fn of_example(url: &str) -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/mcp_client.json");
    let json = std::fs::read_to_string(path).unwrap();
    let (address, token) = ("http://127.0.0.1:8471/mcp", "${ANA_TOKEN}");
    assert!(json.contains(address) && json.contains(token), "{json}");
    json.replace(address, url).replace(token, TOKEN)
}

/// Runs a client, and gives what it saw; in place of the many tools that are there for their number alone, how many of them
/// it saw.
pub(crate) async fn saw(fixture: &Fixture, client: ClientKind, arguments: &[&str]) -> Value {
    let mut seen = client.run(arguments, async || fixture.allow("get-sum").await).await;
    for list in ["tools", "after"] {
        let tools = seen[list].as_array_mut().unwrap();
        let count = tools.len();
        tools.retain(|tool| !tool.as_str().unwrap().starts_with("many_"));
        let many = count - tools.len();
        tools.push(format!("and {many} more").into());
    }
    seen
}

/// Has a client do everything, and checks that it saw what all clients see.
async fn use_mcp_server(client: ClientKind, mode: &[&str], protocol: &str) {
    let fixture = Fixture::new().await;
    let url = fixture.url();
    let configuration = of_example(&url);
    let server = if client == ClientKind::FastMcp { vec![configuration.as_str()] } else { vec![url.as_str(), TOKEN] };
    let mut seen = saw(&fixture, client, &[&server, mode].concat()).await;
    fixture.eventually_heard("notifications/cancelled").await;
    // A tool set of a session ends with it; without sessions it belongs to the token, and stays.
    fixture.eventually_desks(u64::from(protocol == STATELESS)).await;
    let mut take = |field: &str| seen.as_object_mut().unwrap().remove(field).unwrap();
    assert_eq!(take("resources"), json!(["toolbus://servers/everything/instructions"]));
    assert!(take("read").as_str().unwrap().starts_with("# Everything Server"));
    check_progress(&mut seen, false);
    check(seen, protocol);
    fixture.daemon.end().await;
}

/// Checks the reports of progress that a client saw, of which those close upon each other are one.
///
/// `loses_last` is for a client that reads lines in blocks and forgets a call at its result, before it looks at a report of
/// the same block: the SDK for TypeScript, over pipes.
pub(crate) fn check_progress(seen: &mut Value, loses_last: bool) {
    let progress: Vec<[u64; 2]> = serde_json::from_value(seen["progress"].take()).unwrap();
    let least = if loses_last { 1 } else { 4 };
    assert!(progress.is_sorted() && progress.last().is_some_and(|last| last[0] >= least), "{progress:?}");
    assert!(progress.iter().all(|[progress, total]| *progress <= 4 && *total == 4), "{progress:?}");
    seen.as_object_mut().unwrap().remove("progress");
}

/// Checks what clients see, whatever the transport.
pub(crate) fn check(mut seen: Value, protocol: &str) {
    let mut take = |field: &str| seen.as_object_mut().unwrap().remove(field).unwrap();
    assert_eq!(take("protocol"), protocol);
    // One client puts words of its own before those of the server.
    let unknown = seen["unknown"].as_object_mut().unwrap().remove("message").unwrap();
    assert!(unknown.as_str().unwrap().ends_with("Tool 'no_such_tool' is not registered."), "{unknown}");
    insta::allow_duplicates! {
        insta::assert_json_snapshot!(seen, @r##"
        {
          "after": [
            "convert_time",
            "desk.about",
            "echo",
            "get-structured-content",
            "get-sum",
            "trigger-long-running-operation",
            "and 250 more"
          ],
          "cancelled": true,
          "described": {
            "annotations": {
              "readOnlyHint": true
            },
            "description": "Returns structured content along with an output schema for client data validation",
            "inputSchema": {
              "$schema": "http://json-schema.org/draft-07/schema#",
              "properties": {
                "location": {
                  "description": "Choose city",
                  "enum": [
                    "New York",
                    "Chicago",
                    "Los Angeles"
                  ],
                  "type": "string"
                }
              },
              "required": [
                "location"
              ],
              "type": "object"
            },
            "name": "get-structured-content",
            "outputSchema": {
              "$schema": "http://json-schema.org/draft-07/schema#",
              "additionalProperties": false,
              "properties": {
                "conditions": {
                  "description": "Weather conditions description",
                  "type": "string"
                },
                "humidity": {
                  "description": "Humidity percentage",
                  "type": "number"
                },
                "temperature": {
                  "description": "Temperature in celsius",
                  "type": "number"
                }
              },
              "required": [
                "temperature",
                "conditions",
                "humidity"
              ],
              "type": "object"
            },
            "title": "Get Structured Content Tool"
          },
          "desk": [
            1,
            2
          ],
          "echo": [
            "Echo: hello"
          ],
          "failed": "Argument `to_timezone`: there is no time zone `Nowhere/At_All`. Use an IANA name such as `Europe/Berlin`.",
          "server": "toolbus",
          "structured": {
            "conditions": "Light rain / drizzle",
            "humidity": 82,
            "temperature": 36
          },
          "tools": [
            "convert_time",
            "desk.about",
            "echo",
            "get-structured-content",
            "trigger-long-running-operation",
            "and 250 more"
          ],
          "unknown": {
            "code": -32602
          }
        }
        "##);
    }
}

#[tokio::test]
async fn the_python_sdk_uses_the_mcp_server_in_a_session() {
    use_mcp_server(ClientKind::Python, &["legacy"], WITH_SESSIONS).await;
}

#[tokio::test]
async fn the_python_sdk_uses_the_mcp_server_without_a_session() {
    use_mcp_server(ClientKind::Python, &["auto"], STATELESS).await;
}

#[tokio::test]
async fn the_python_sdk_of_the_first_generation_uses_the_mcp_server() {
    use_mcp_server(ClientKind::PythonOne, &[], WITH_SESSIONS).await;
}

#[tokio::test]
async fn fastmcp_uses_the_mcp_server_in_a_session() {
    use_mcp_server(ClientKind::FastMcp, &["legacy"], WITH_SESSIONS).await;
}

#[tokio::test]
async fn fastmcp_uses_the_mcp_server_without_a_session() {
    use_mcp_server(ClientKind::FastMcp, &["auto"], STATELESS).await;
}

#[tokio::test]
async fn the_typescript_sdk_of_the_first_generation_uses_the_mcp_server() {
    use_mcp_server(ClientKind::TypeScript, &["1"], WITH_SESSIONS).await;
}

#[tokio::test]
async fn the_typescript_sdk_uses_the_mcp_server_in_a_session() {
    use_mcp_server(ClientKind::TypeScript, &["legacy"], WITH_SESSIONS).await;
}

#[tokio::test]
async fn the_typescript_sdk_uses_the_mcp_server_without_a_session() {
    use_mcp_server(ClientKind::TypeScript, &["auto"], STATELESS).await;
}

#[tokio::test]
async fn the_inspector_lists_and_calls() {
    let fixture = Fixture::new().await;
    let listed = inspect(&fixture.url(), TOKEN, "tools/list", &[]).await.json();
    let names = listed["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap());
    assert!(names.is_sorted() && listed["nextCursor"].is_string(), "{listed}");
    let call = ["--tool-name", "echo", "--tool-arg", "message=hello"];
    let called = inspect(&fixture.url(), TOKEN, "tools/call", &call).await;
    insta::assert_json_snapshot!(called.json(), @r#"
    {
      "_meta": {
        "toolbus/content-trust": "tool-output"
      },
      "content": [
        {
          "text": "Echo: hello",
          "type": "text"
        }
      ],
      "isError": false
    }
    "#);
    let refused = inspect(&fixture.url(), "no-token-of-anybody", "tools/list", &[]).await;
    assert!(refused.code != 0 && refused.err.contains("token"), "{refused:?}");
    fixture.daemon.end().await;
}
