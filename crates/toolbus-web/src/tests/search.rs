//! `web_search`, against responses of the engines.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use toolbus_core::Clock;
use toolbus_outbound::HttpClient;
use toolbus_outbound::egress::{EgressConfig, EgressRules, HostLists};

use super::server::{Server, TestResponse, response};
use super::{call_for, discard, error, names, text};
use crate::config::WebConfig;
use crate::search::{SearchEngine, SearchError, SearchProvider};

/// A response that is kept in `tests/answers`: its status, and all of it as a server sends it.
fn kept(name: &str) -> (u16, Vec<u8>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/answers").join(name).with_extension("json");
    let kept: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let body = kept["body"].as_str().map_or_else(|| kept["body"].to_string(), str::to_owned);
    let kind = kept["headers"]["content-type"].as_str().unwrap_or("application/json");
    let status = u16::try_from(kept["status"].as_u64().unwrap()).unwrap();
    (status, response(&format!("{status} Status"), &[("content-type", kind)], body.as_bytes()))
}

fn found(name: &str) -> TestResponse {
    TestResponse::Bytes(kept(name).1)
}

fn json_response(status: &str, body: &str) -> Vec<u8> {
    response(status, &[("content-type", "application/json")], body.as_bytes())
}

fn ok(body: &str) -> TestResponse {
    TestResponse::Bytes(json_response("200 OK", body))
}

fn provider(value: serde_json::Value) -> SearchProvider {
    serde_json::from_value(value).unwrap()
}

fn brave(server: &Server) -> SearchProvider {
    provider(json!({"provider": "brave", "key": "k3y", "url": server.url("/brave")}))
}

fn tool(search: Vec<SearchProvider>) -> toolbus_core::tool::Tool {
    let config = WebConfig { search, ..WebConfig::default() };
    let rules = EgressRules::new(EgressConfig::default(), Default::default(), HostLists::default());
    crate::tools(&config, rules, Some(names(&[])), &discard()).unwrap().remove(1)
}

/// One query to an engine that waits next to nothing between two requests.
async fn ask(provider: SearchProvider) -> Result<usize, SearchError> {
    let wait = Duration::from_millis(1);
    let engine = SearchEngine::new(provider, HttpClient::new().unwrap()).with_waits(wait, wait);
    let until = Clock::SYSTEM.now() + Duration::from_secs(120);
    engine.search("q", 5, until).await.map(|results| results.len())
}

fn tavily(server: &Server) -> SearchProvider {
    provider(json!({"provider": "tavily", "key": "k3y", "url": server.url("/tavily")}))
}

fn searxng(server: &Server) -> SearchProvider {
    provider(json!({"provider": "searxng", "url": server.url("/searx/")}))
}

#[tokio::test]
async fn each_recorded_response_becomes_its_results_or_its_error() {
    let files = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/answers")).unwrap();
    let names = files.map(|file| file.unwrap().path()).filter(|path| path.extension().is_some_and(|ext| ext == "json"));
    let mut names: Vec<_> = names.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    let mut lines = String::new();
    for name in names {
        let (path, provider): (_, fn(&Server) -> SearchProvider) = match name.split('-').next().unwrap() {
            "brave" => ("/brave?q=q&count=5", brave),
            "tavily" => ("/tavily", tavily),
            _ => ("/searx/search?q=q&format=json", searxng),
        };
        let server = Server::start(|_| vec![(path, found(&name))]).await;
        let provider = provider(&server);
        let (status, _) = kept(&name);
        let outcome = if status == 200 && !name.ends_with("away") {
            text(&tool(vec![provider]), json!({"query": "q"})).await
        } else {
            ask(provider).await.unwrap_err().to_string()
        };
        lines.push_str(&format!("{name} {status}: {outcome}\n"));
    }
    insta::assert_snapshot!(lines, @r#"
    brave-invalid-query 422: Brave answered HTTP 422 Unprocessable Entity (“Unable to validate request parameter(s): query.q: String should have at most 400 characters”)
    brave-key-missing 422: Brave refused the key (“Unable to validate request parameter(s): header.x-subscription-token: Field required”): the operator has to replace it
    brave-key-refused 422: Brave refused the key (“The provided subscription token is invalid.”): the operator has to replace it
    brave-no-subscription 404: Brave refused the key (“No subscription found.”): the operator has to replace it
    brave-not-in-plan 400: Brave answered HTTP 400 Bad Request (“The option is not subscribed in the plan.”)
    brave-nothing-found 200: No results found.
    brave-over-quota 429: the quota of Brave is used up (“Request quota limit exceeded for plan.”)
    brave-over-quota-documented 429: the quota of Brave is used up (“Request quota limit exceeded for plan.”)
    brave-rate-limited 429: web_search was rate-limited by Brave (HTTP 429) after 3 retries — wait a few seconds and retry this query, or continue with web_browse on a known URL
    brave-rate-limited-uncapped 429: web_search was rate-limited by Brave (HTTP 429) after 3 retries — wait a few seconds and retry this query, or continue with web_browse on a known URL
    brave-results 200: 1. [The "Quorum" Queue - AMQP Almanac](https://almanac.example/wiki/Quorum_queue_%28AMQP%29) — A queue that is copied to several nodes. It's ready when most of them have a message; 2 < 3 & so on.
    2. [Queues (part 2) · Handbook](https://handbook.example/amqp/queues?part=2&lang=en)
    3. [キュー](https://queue.example/ja/) — メッセージのキューとは…
    searxng-engines-away 200: SearXNG found nothing, and engines that it asks did not answer (away: HTTP error)
    searxng-limiter 429: web_search was rate-limited by SearXNG (HTTP 429) after 3 retries — wait a few seconds and retry this query, or continue with web_browse on a known URL
    searxng-no-json 403: SearXNG answered HTTP 403: the format `json` seems not to be among the `search.formats` of the instance
    searxng-no-query 400: SearXNG answered HTTP 400 Bad Request (“No query”)
    searxng-results 200: 1. [An AMQP client](https://lib.example/amqp) — Publishes & consumes; "quorum" queues too.
    2. [Questions (old)](https://lib.example/amqp/faq_%28old%29)
    tavily-broken 500: Tavily answered HTTP 500 Internal Server Error (“Internal Server Error”)
    tavily-budget-used-up 433: the quota of Tavily is used up (“This request exceeds the pay-as-you-go limit. You can increase your limit on the Tavily dashboard.”)
    tavily-invalid 422: Tavily answered HTTP 422 Unprocessable Entity (“body.query: Input should be a valid string”)
    tavily-key-refused 401: Tavily refused the key (“Unauthorized: missing or invalid API key.”): the operator has to replace it
    tavily-plan-used-up 432: the quota of Tavily is used up (“This request exceeds your plan's set usage limit. Please upgrade your plan or contact support@tavily.com”)
    tavily-query-too-long 400: Tavily answered HTTP 400 Bad Request (“Query is too long. Max query length is 400 characters.”)
    tavily-rate-limited 429: web_search was rate-limited by Tavily (HTTP 429) after 3 retries — wait a few seconds and retry this query, or continue with web_browse on a known URL
    tavily-results 200: 1. [The "Quorum" Queue - AMQP Almanac](https://almanac.example/wiki/Quorum_queue_%28AMQP%29) — # Quorum queue A queue that is copied to several nodes. It is ready when *most* of them have a message.
    2. [Queues (part 2)](https://handbook.example/amqp/queues?part=2)
    "#);
}

#[tokio::test]
async fn every_engine_is_queried_by_its_own_api() {
    let server = Server::start(|_| {
        vec![
            ("/brave?q=rust%20amqp%26x&count=5", found("brave-results")),
            ("/tavily", found("tavily-results")),
            ("/searx/search?q=q&format=json", found("searxng-results")),
            ("/own?q=a%20b%26c&n=3", ok(r#"{"data":{"hits":[{"name":"lapin","meta":{"link":"https://docs.rs/lapin"},"text":"AMQP client"}]}}"#)),
        ]
    })
    .await;
    let request = |nth: usize| server.requests.lock()[nth].to_lowercase();
    text(&tool(vec![brave(&server)]), json!({"query": " rust amqp&x "})).await;
    assert!(request(0).contains("x-subscription-token: k3y") && request(0).contains("accept: application/json"));
    text(&tool(vec![tavily(&server)]), json!({"query": "q", "count": 1})).await;
    assert!(request(1).contains("authorization: bearer k3y"));
    let one = text(&tool(vec![searxng(&server)]), json!({"query": "q", "count": 1})).await;
    assert_eq!(one, "1. [An AMQP client](https://lib.example/amqp) — Publishes & consumes; \"quorum\" queues too.");
    let own = provider(json!({
        "provider": "json", "url": server.url("/own?q={query}&n={count}"), "headers": {"x-key": "s3cret"},
        "results": {"list": "/data/hits", "title": "/name", "url": "/meta/link", "snippet": "/text"},
    }));
    let found = text(&tool(vec![own]), json!({"query": "a b&c", "count": 3})).await;
    assert_eq!(found, "1. [lapin](https://docs.rs/lapin) — AMQP client");
    assert!(request(3).contains("x-key: s3cret"));
}

#[tokio::test]
async fn too_many_requests_are_sent_again_three_times() {
    let limited = || kept("brave-rate-limited").1;
    let path = "/brave?q=q&count=5";
    let server = Server::start(|_| {
        vec![(
            path,
            TestResponse::InTurn(vec![
                limited(),
                json_response("503 Service Unavailable", "{}"),
                kept("brave-results").1,
            ]),
        )]
    })
    .await;
    assert_eq!(ask(brave(&server)).await, Ok(3));
    assert_eq!(server.count(path), 3);
    let server = Server::start(|_| vec![(path, TestResponse::Bytes(limited()))]).await;
    ask(brave(&server)).await.unwrap_err();
    assert_eq!(server.count(path), 4);
}

#[tokio::test]
async fn an_engine_is_not_queried_before_its_retry_after() {
    let after = response("429 Too Many Requests", &[("retry-after", "3600")], b"{}");
    let path = "/brave?q=q&count=5";
    let server = Server::start(|_| vec![(path, TestResponse::Bytes(after))]).await;
    let engine = SearchEngine::new(brave(&server), HttpClient::new().unwrap());
    // The wait is at most 8 s, which is more than this call has.
    let until = Clock::SYSTEM.now() + Duration::from_secs(4);
    assert_eq!(engine.search("q", 5, until).await, Err(SearchError::Timeout("Brave")));
    assert_eq!(server.count(path), 1);
}

#[tokio::test]
async fn a_response_without_results_is_an_error() {
    let table = [
        ("500 Internal Server Error", "<html>", "Brave answered HTTP 500 Internal Server Error"),
        ("200 OK", "<html>", "Brave answered with something that is no list of results"),
        ("200 OK", "{}", "Brave answered with something that is no list of results"),
    ];
    for (status, body, expected) in table {
        let sent = TestResponse::Bytes(json_response(status, body));
        let server = Server::start(|_| vec![("/brave?q=q&count=5", sent)]).await;
        assert_eq!(ask(brave(&server)).await.unwrap_err().to_string(), expected, "{status}");
        assert_eq!(server.requests.lock().len(), 1, "{status}");
    }
}

#[tokio::test]
async fn an_engine_that_found_nothing_for_others_are_silent_is_followed_by_the_next() {
    let server = Server::start(|_| {
        vec![("/searx/search?q=q&format=json", found("searxng-engines-away")), ("/tavily", found("tavily-results"))]
    })
    .await;
    let found = text(&tool(vec![searxng(&server), tavily(&server)]), json!({"query": "q"})).await;
    assert!(found.starts_with("1. [The \"Quorum\" Queue"), "{found}");
}

#[tokio::test]
async fn a_failed_engine_is_followed_by_the_next_and_the_last_failure_lists_all_errors() {
    let server = Server::start(|_| vec![("/tavily", found("tavily-results"))]).await;
    let empty = provider(json!({"provider": "brave", "key": " ", "url": server.url("/brave")}));
    let found = text(&tool(vec![empty.clone(), tavily(&server)]), json!({"query": "q"})).await;
    assert!(found.starts_with("1. [The \"Quorum\" Queue"), "{found}");
    let gone = provider(json!({"provider": "searxng", "url": server.url("/gone")}));
    let failed = error(&tool(vec![empty, gone]), json!({"query": "q"})).await;
    assert_eq!(
        failed,
        "Search failed: Brave has no key: the operator has to set one; SearXNG answered HTTP 404 Not Found."
    );
}

#[tokio::test]
async fn a_silent_engine_leaves_the_next_its_share_of_the_time() {
    let server = Server::start(|_| vec![("/tavily", found("tavily-results"))]).await;
    let silent = Server::start(|_| vec![("/brave?q=q&count=5", TestResponse::Stalled(Vec::new()))]).await;
    let tool = tool(vec![brave(&silent), tavily(&server)]);
    let output = call_for(&tool, json!({"query": "q"}), Duration::from_secs(8)).await.unwrap();
    assert!(output.content.unwrap().starts_with("1. [The \"Quorum\" Queue"));
}

#[tokio::test]
async fn an_empty_result_is_no_error_and_results_are_cached() {
    let path = "/brave?q=q&count=5";
    let server = Server::start(|_| vec![(path, found("brave-nothing-found"))]).await;
    let tool = tool(vec![brave(&server)]);
    for _ in 0..3 {
        assert_eq!(text(&tool, json!({"query": "q"})).await, "No results found.");
    }
    assert_eq!(server.count(path), 1);
}
