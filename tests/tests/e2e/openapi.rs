//! A specification at an address becomes tools, which are called over RabbitMQ with the credential of its scheme.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse as _;
use axum::routing::get;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use toolbus_e2e::daemon::Daemon;

const SPECIFICATION: &str = r#"
openapi: 3.0.3
servers: [{url: /v2}]
security: [{key: []}]
paths:
  /pets/{petId}:
    get:
      operationId: getPet
      summary: A pet by its id
      parameters:
        - {name: petId, in: path, required: true, schema: {type: integer}}
        - {name: fields, in: query, schema: {type: array, items: {type: string}}}
components:
  securitySchemes:
    key: {type: apiKey, in: header, name: X-Pets-Key}
"#;
const KEY: &str = "k3y-of-the-pets-service";

/// A service with a specification, which can be away.
struct Service {
    origin: String,
    is_away: Arc<AtomicBool>,
    _server: JoinSet<()>,
}

impl Service {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        let is_away = Arc::new(AtomicBool::new(false));
        let away = Arc::clone(&is_away);
        let specification = async move || match away.load(Ordering::Relaxed) {
            true => StatusCode::BAD_GATEWAY.into_response(),
            false => SPECIFICATION.into_response(),
        };
        let pet = async |Path(id): Path<String>, uri: axum::http::Uri, headers: HeaderMap| {
            let has_key = headers.get("x-pets-key").is_some_and(|key| key == KEY);
            format!("pet {id}, {}, {}", uri.query().unwrap_or_default(), if has_key { "with key" } else { "without" })
        };
        let routes = Router::new().route("/openapi.yaml", get(specification)).route("/v2/pets/{id}", get(pet));
        let mut server = JoinSet::new();
        server.spawn(async move { drop(axum::serve(listener, routes).await) });
        Self { origin, is_away, _server: server }
    }

    fn section(&self, more: &str) -> String {
        let url = format!("{}/openapi.yaml", self.origin);
        format!("[rest.openapi.pets]\nurl = \"{url}\"\nauth = {{ key = {{ key = \"{KEY}\" }} }}\n{more}")
    }
}

#[tokio::test]
async fn the_operations_of_a_specification_are_called_with_its_credential() {
    let service = Service::start().await;
    let (site, daemon, client) = Daemon::with_client(&service.section("")).await;
    let call = |tool: &str| client.request(tool, &json!({"petId": 7, "fields": ["name", "a&b"]}));
    let reply = client.exchange(&call("getPet")).await;
    assert_eq!(reply.content(), "pet 7, fields=name&fields=a%26b, with key");
    let listed = daemon.operate(&["tools"]).await;
    assert!(listed.out.contains("getPet") && listed.out.contains("A pet by its id"), "{}", listed.out);
    let refused = client.exchange(&client.request("getPet", &json!({"petId": "x"}))).await;
    assert_eq!(refused.code(), "invalid_arguments");

    // The service is away: what it described stays, unless its section has changed.
    service.is_away.store(true, Ordering::Relaxed);
    daemon.reload(&service.section("")).await;
    let warnings = daemon.logged("reload: a suspicious setting");
    let expected = "rest.openapi.pets: the answer was HTTP 502 Bad Gateway; its tools stay as they were";
    assert!(warnings.iter().any(|line| line.to_string().contains(expected)), "{warnings:?}");
    assert_eq!(client.exchange(&call("getPet")).await.content(), "pet 7, fields=name&fields=a%26b, with key");
    daemon.reload(&service.section("prefix = \"pets\"\n")).await;
    assert_eq!(client.exchange(&call("getPet")).await.code(), "tool_not_found");
    service.is_away.store(false, Ordering::Relaxed);
    daemon.reload(&service.section("prefix = \"pets\"\n")).await;
    assert_eq!(client.exchange(&call("pets_getPet")).await.content(), "pet 7, fields=name&fields=a%26b, with key");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_daemon_starts_without_a_specification_that_is_away() {
    let service = Service::start().await;
    service.is_away.store(true, Ordering::Relaxed);
    let (site, daemon, client) = Daemon::with_client(&service.section("[tools]\necho = true\n")).await;
    assert!(!daemon.logged("a specification").is_empty(), "{}", daemon.text());
    let reply = client.exchange(&client.request("echo", &json!({"text": "here"}))).await;
    assert_eq!(reply.content(), "here");
    daemon.stop(&site).await;
}
