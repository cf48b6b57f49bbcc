//! The daemon's own secrets, which others try to hand on: endpoints, an MCP server, the broker's address, a caller.

use axum::Router;
use axum::extract::Query;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::mcp::with_progress;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::otlp::Receiver;
use toolbus_testing::patience::eventually;

const BEARER: &str = "be4rer-t0ken-of-the-endpoint";
const BASIC: &str = "b4sic-p%ss/word";
const LEAK: &str = "l3ak-t0ken-of-the-server";
const ADMIN: &str = "4dmin-t0ken-of-the-operators";
const BROKER: &str = "br0ker-p4ssword-of-nobody";
const SECRETS: [&str; 5] = [BEARER, BASIC, LEAK, ADMIN, BROKER];
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/python/mcp_leaking.py");

/// A server that responds with the request's headers, or with the given text.
struct Parrot {
    base: String,
    _server: JoinSet<()>,
}

impl Parrot {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let credential = |headers: &HeaderMap| headers[header::AUTHORIZATION].to_str().unwrap().to_owned();
        let routes = Router::new()
            .route("/headers", get(async move |headers: HeaderMap| format!("{headers:?}")))
            .route("/refused", get(async move |headers: HeaderMap| (StatusCode::FORBIDDEN, credential(&headers))))
            .route(
                "/elsewhere",
                get(async move |headers: HeaderMap| {
                    let location = format!("http://127.0.0.1:1/?was={}", credential(&headers));
                    (StatusCode::FOUND, [(header::LOCATION, location)]).into_response()
                }),
            )
            .route("/say", get(async |Query(query): Query<Vec<(String, String)>>| query[0].1.clone()));
        let mut server = JoinSet::new();
        server.spawn(async move { drop(axum::serve(listener, routes).await) });
        Self { base, _server: server }
    }

    fn tool(&self, name: &str, more: &str) -> String {
        let base = &self.base;
        format!(
            "[[rest.endpoints]]\nname = \"{name}\"\ndescription = \"A tool\"\nurl = \"{base}/{name}\"\neffect = \"read-only\"\n{more}\n"
        )
    }

    fn config(&self) -> String {
        let bearer = format!("auth = {{ type = \"bearer\", token = \"{BEARER}\" }}");
        let basic = format!("auth = {{ type = \"basic\", username = \"svc\", password = \"{BASIC}\" }}");
        let say = r#"parameters = '{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}'"#;
        let tools = [
            self.tool("headers", &basic),
            self.tool("refused", &bearer),
            self.tool("elsewhere", &bearer),
            self.tool("say", say),
        ];
        let python = std::env::var("TOOLBUS_PYTHON").unwrap();
        let run = std::env::var("TOOLBUS_TEST_RUN").unwrap_or_default();
        format!(
            "[http]\nadmin_token = \"{ADMIN}\"\n[audit]\nfile = \"audit.jsonl\"\n{}[mcp.servers.leaking]\n\
             command = {python:?}\nargs = [{PROGRAM:?}]\n\
             env = {{ LEAK_TOKEN = \"{LEAK}\", TOOLBUS_TEST_RUN = {run:?}, PLAIN = \"an-ordinary-word\" }}\n",
            tools.concat()
        )
    }
}

/// A daemon with a client, the endpoints and the server, once the server is ready.
async fn started(more: &str) -> (BrokerNamespace, Parrot, Daemon, Client) {
    let parrot = Parrot::start().await;
    let (site, daemon, client) = Daemon::with_client(&format!("{}{more}", parrot.config())).await;
    eventually("the server to be ready", async || {
        let (_, status) = daemon.get("/status").await?;
        status["mcp"].as_array()?.iter().any(|server| server["phase"] == "ready").then_some(())
    })
    .await;
    (site, parrot, daemon, client)
}

#[track_caller]
fn assert_no_secret(what: &str, text: &str) {
    for secret in SECRETS {
        assert!(!text.contains(secret), "{what} holds {secret}: {text}");
    }
}

#[tokio::test]
async fn no_endpoint_and_no_caller_brings_a_secret_into_a_reply() {
    let (site, _parrot, daemon, client) = started("").await;
    for (tool, expected) in [("headers", "[redacted]"), ("refused", "[redacted]"), ("elsewhere", "HTTP 302 Found")] {
        let reply = client.call(tool, &json!({})).await.body().to_string();
        assert!(reply.contains(expected), "{tool}: {reply}");
        assert_no_secret(tool, &reply);
        assert!(!reply.contains("YjRzaWMtcCVzcy93b3Jk"), "{tool}: {reply}");
    }
    // An endpoint that has none of them.
    for secret in [BEARER, "b4sic-p%25ss%2Fword", LEAK, ADMIN, "bDNhay10MGtlbi1vZi10aGUtc2VydmVy"] {
        let reply = client.call("say", &json!({"text": format!("<{secret}>")})).await;
        assert_eq!(reply.content(), "<[redacted]>", "{secret}");
    }
    let ordinary = "an-ordinary-word, 12345678901 \"quoted\" \\ ünï [redacted] l3ak-t0ken";
    assert_eq!(client.call("say", &json!({"text": ordinary})).await.content(), ordinary);
    assert_no_secret("the log", &daemon.text());
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_server_that_repeats_its_token_everywhere_leaks_nothing() {
    let (site, _parrot, daemon, client) = started("").await;
    let request = client.request("leak", &json!({"how": "environment"})).header("rb-rb-progress", "1");
    client.send(&request).await;
    let (reports, reply) = with_progress(&client, &request).await;
    assert_eq!(reports[0]["message"], "as [redacted]");
    let environment: Value = serde_json::from_str(&reply.content()).unwrap();
    assert_eq!((&environment["LEAK_TOKEN"], &environment["PLAIN"]), (&json!("[redacted]"), &json!("an-ordinary-word")));
    assert_eq!(client.call("leak", &json!({"how": "error"})).await.content(), "refused: [redacted]");
    assert_eq!(client.call("leak", &json!({"how": "encoded"})).await.content(), "?token=[redacted]");
    let structured = client.call("leak", &json!({"how": "structured"})).await.body().to_string();
    assert!(structured.contains("[redacted]") && structured.contains("count"), "{structured}");
    assert_no_secret("structured content", &structured);
    let failed = client.call("leak", &json!({"how": "none"})).await.body();
    let message = failed["message"].as_str().unwrap();
    assert!(message.starts_with("Tool 'leak' failed: no way for [redacted]"), "{message}");

    let listed = client.exchange(&client.request("", &json!({})).on("tool.list")).await.body().to_string();
    assert!(listed.contains("Works with [redacted]."), "{listed}");
    assert_no_secret("the list of tools", &listed);
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let shown = http.get(format!("http://{}/v1/mcp/leaking", daemon.listen())).bearer_auth(ADMIN).send().await.unwrap();
    let shown = shown.text().await.unwrap();
    let status: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(status["stderr"][0], "started with [redacted]");
    assert_eq!(status["hidden"][0]["name"], "leak_[redacted]");
    assert_no_secret("the server's status", &shown);
    assert_no_secret("/status", &daemon.get("/status").await.unwrap().1.to_string());
    assert_no_secret("the log", &daemon.text());
    daemon.stop(&site).await;
}

#[tokio::test]
async fn spans_and_audit_records_hold_no_secret_that_a_caller_wrote() {
    let receiver = Receiver::start().await.unwrap();
    let export = format!("[telemetry]\notlp_endpoint = \"{}\"\n", receiver.grpc_endpoint());
    let (site, _parrot, daemon, client) = started(&export).await;
    let request =
        client.raw(json!({"toolName": "leak", "toolCallId": format!("call-{LEAK}"), "arguments": {}}).to_string());
    client.exchange(&request).await;
    let file = daemon.folder().join("audit.jsonl");
    let audit = eventually("an audit record", async || {
        std::fs::read_to_string(&file).ok().filter(|text| text.contains("call-"))
    })
    .await;
    assert!(audit.contains("call-[redacted]"), "{audit}");
    assert_no_secret("the audit file", &audit);
    assert_no_secret("the log", &daemon.text());
    daemon.stop(&site).await;
    let spans = receiver.spans();
    let shown = format!("{spans:?}");
    assert!(shown.contains("call-[redacted]"), "{shown}");
    assert_no_secret("the spans", &shown);
}

#[tokio::test]
async fn a_broker_that_cannot_be_reached_is_logged_without_its_password_at_every_level() {
    let site = BrokerNamespace::shared().await;
    let more = format!(
        "[bus]\nurl = \"amqp://svc:{BROKER}@127.0.0.1:1/v\"\n[telemetry]\nlog = \"trace,lapin=trace,rmcp=trace\"\n"
    );
    let daemon = Daemon::launch(&site, &more, &[]).await;
    daemon.blocked_by("disconnected").await;
    let log =
        eventually("a line about the broker", async || Some(daemon.text()).filter(|text| text.contains("127.0.0.1:1")))
            .await;
    assert_no_secret("the log", &log);
    assert_no_secret("/readyz", &daemon.get("/readyz").await.unwrap().1.to_string());
    assert_no_secret("/status", &daemon.get("/status").await.unwrap().1.to_string());
    daemon.end().await;
}

#[tokio::test]
async fn a_secret_that_a_reload_brings_is_removed_from_then_on() {
    let (site, parrot, daemon, client) = started("").await;
    let new = "n3w-t0ken-of-the-endpoint";
    let say = async || client.call("say", &json!({"text": format!("{new} {BEARER}")})).await.content();
    assert_eq!(say().await, format!("{new} [redacted]"));
    let line = daemon.reload(&parrot.config().replace(BEARER, new)).await;
    assert_eq!(line["message"], "reload: done", "{line}");
    assert_eq!(say().await, "[redacted] [redacted]", "the old one may be in use elsewhere");
    // The log names the requested tool of a refused call.
    assert_eq!(client.call(new, &json!({})).await.code(), "tool_not_found");
    let refused = eventually("the refusal", async || daemon.logged("a call was refused").into_iter().next()).await;
    assert_eq!(refused["asked"], "[redacted]");
    assert!(!daemon.text().contains(new), "{}", daemon.text());
    daemon.stop(&site).await;
}
