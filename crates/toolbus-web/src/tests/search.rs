//! `web_search`, against answers as the engines document them.

use std::time::Duration;

use serde_json::json;
use toolbus_core::Clock;
use toolbus_outbound::HttpClient;
use toolbus_outbound::egress::{EgressConfig, EgressRules, HostLists};

use super::server::{Answer, Server, response};
use super::{discard, error, names, text};
use crate::config::WebConfig;
use crate::search::{SearchEngine, SearchError, SearchProvider};

const BRAVE: &str = r#"{"type":"search","query":{"original":"rust amqp"},"web":{"type":"search","results":[
    {"title":"lapin - <strong>Rust</strong>","url":"https://docs.rs/lapin","description":"<strong>AMQP</strong> client &amp; more for Rust"},
    {"title":"No address"},
    {"title":"amqprs [crate]","url":"https://docs.rs/amqprs/(x)","description":""}]}}"#;
const TAVILY: &str = r#"{"query":"rust amqp","follow_up_questions":null,"answer":null,"images":[],"results":[
    {"url":"https://docs.rs/lapin","title":"lapin","content":"AMQP client","score":0.99,"raw_content":null}],"response_time":1.1}"#;
const SEARXNG: &str = r#"{"query":"rust amqp","number_of_results":0,"results":[
    {"url":"https://docs.rs/lapin","title":"lapin","content":"AMQP client","engine":"duckduckgo","score":1.0}],"answers":[]}"#;
const BRAVE_429: &str = r#"{"id":"5c6e","status":429,"error":{"id":"5c6e","status":429,"code":"RATE_LIMITED",
    "detail":"Request rate limit exceeded for plan.","meta":{"plan":"Free","rate_limit":1,"rate_current":1,"quota_limit":2000,
    "quota_current":12,"component":"rate_limiter"}},"type":"ErrorResponse"}"#;
const BRAVE_QUOTA: &str = r#"{"error":{"status":429,"code":"RATE_LIMITED","detail":"Request quota exceeded for plan.",
    "meta":{"plan":"Free","quota_limit":2000,"quota_current":2000}},"type":"ErrorResponse"}"#;
const BRAVE_TOKEN: &str = r#"{"error":{"status":422,"code":"SUBSCRIPTION_TOKEN_INVALID",
    "detail":"The provided subscription token is invalid."},"type":"ErrorResponse"}"#;
const TAVILY_401: &str = r#"{"detail":{"error":"Unauthorized: missing or invalid API key."}}"#;
const TAVILY_432: &str = r#"{"detail":{"error":"This request exceeds your plan's set usage limit."}}"#;

fn answer(status: &str, body: &str) -> Vec<u8> {
    response(status, &[("content-type", "application/json")], body.as_bytes())
}

fn ok(body: &str) -> Answer {
    Answer::Bytes(answer("200 OK", body))
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

const PATH: &str = "/brave?q=rust%20amqp%26x&count=5";

#[tokio::test]
async fn results_are_a_line_each() {
    let server = Server::start(|_| vec![(PATH, ok(BRAVE))]).await;
    let found = text(&tool(vec![brave(&server)]), json!({"query": " rust amqp&x "})).await;
    assert_eq!(
        found,
        "1. [lapin - Rust](https://docs.rs/lapin) — AMQP client & more for Rust\n\
         2. [amqprs (crate)](https://docs.rs/amqprs/%28x%29)"
    );
    let request = server.requests.lock()[0].to_lowercase();
    assert!(request.contains("x-subscription-token: k3y") && request.contains("accept: application/json"), "{request}");
}

#[tokio::test]
async fn every_engine_is_asked_in_its_own_way() {
    let server = Server::start(|_| {
        vec![
            ("/tavily", ok(TAVILY)),
            ("/searx/search?q=q&format=json", ok(SEARXNG)),
            ("/own?q=a%20b%26c&n=3", ok(r#"{"data":{"hits":[{"name":"lapin","meta":{"link":"https://docs.rs/lapin"},"text":"AMQP client"}]}}"#)),
        ]
    })
    .await;
    let expected = "1. [lapin](https://docs.rs/lapin) — AMQP client";
    let tavily = provider(json!({"provider": "tavily", "key": "k3y", "url": server.url("/tavily")}));
    assert_eq!(text(&tool(vec![tavily]), json!({"query": "q", "count": 3})).await, expected);
    assert!(server.requests.lock()[0].contains("authorization: Bearer k3y"));
    let searxng = provider(json!({"provider": "searxng", "url": server.url("/searx/")}));
    assert_eq!(text(&tool(vec![searxng]), json!({"query": "q"})).await, expected);
    let own = provider(json!({
        "provider": "json", "url": server.url("/own?q={query}&n={count}"), "headers": {"x-key": "s3cret"},
        "results": {"list": "/data/hits", "title": "/name", "url": "/meta/link", "snippet": "/text"},
    }));
    assert_eq!(text(&tool(vec![own]), json!({"query": "a b&c", "count": 3})).await, expected);
    assert!(server.requests.lock()[2].contains("x-key: s3cret"));
}

#[tokio::test]
async fn too_many_requests_are_sent_again_and_at_last_reported() {
    let limited = || answer("429 Too Many Requests", BRAVE_429);
    let path = "/brave?q=q&count=5";
    let server = Server::start(|_| {
        vec![(path, Answer::InTurn(vec![limited(), answer("503 Service Unavailable", "{}"), answer("200 OK", BRAVE)]))]
    })
    .await;
    assert_eq!(ask(brave(&server)).await, Ok(2));
    assert_eq!(server.count(path), 3);
    let server = Server::start(|_| vec![(path, Answer::Bytes(limited()))]).await;
    let error = ask(brave(&server)).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "web_search was rate-limited by Brave (HTTP 429) after 3 retries — wait a few seconds and retry this query, or \
         continue with web_browse on a known URL"
    );
    assert_eq!(server.count(path), 4);
}

#[tokio::test]
async fn an_engine_is_not_asked_before_the_time_that_it_names() {
    let after = response("429 Too Many Requests", &[("retry-after", "3600")], b"{}");
    let path = "/brave?q=q&count=5";
    let server = Server::start(|_| vec![(path, Answer::Bytes(after))]).await;
    let engine = SearchEngine::new(brave(&server), HttpClient::new().unwrap());
    // The wait is at most 8 s, which is more than this call has.
    let until = Clock::SYSTEM.now() + Duration::from_secs(4);
    assert_eq!(engine.search("q", 5, until).await, Err(SearchError::Timeout("Brave")));
    assert_eq!(server.count(path), 1);
}

#[tokio::test]
async fn errors_of_engines_say_what_the_operator_has_to_do() {
    let table = [
        (
            "422 Unprocessable Entity",
            BRAVE_TOKEN,
            "Brave refused the key (“The provided subscription token is invalid.”): the operator has to replace it",
        ),
        (
            "401 Unauthorized",
            TAVILY_401,
            "Brave refused the key (“Unauthorized: missing or invalid API key.”): the operator has to replace it",
        ),
        ("429 Too Many Requests", BRAVE_QUOTA, "the quota of Brave is used up (“Request quota exceeded for plan.”)"),
        (
            "432 Limit",
            TAVILY_432,
            "the quota of Brave is used up (“This request exceeds your plan's set usage limit.”)",
        ),
        ("500 Internal Server Error", "<html>", "Brave answered HTTP 500 Internal Server Error"),
        ("200 OK", "<html>", "Brave answered with something that is no list of results"),
        ("200 OK", "{}", "Brave answered with something that is no list of results"),
    ];
    for (status, body, expected) in table {
        let sent = Answer::Bytes(answer(status, body));
        let server = Server::start(|_| vec![("/brave?q=q&count=5", sent)]).await;
        assert_eq!(ask(brave(&server)).await.unwrap_err().to_string(), expected, "{status}");
        assert_eq!(server.requests.lock().len(), 1, "{status}");
    }
}

#[tokio::test]
async fn the_next_engine_is_asked_when_one_fails_and_all_errors_are_told_when_none_is_left() {
    let server = Server::start(|_| vec![("/tavily", ok(TAVILY))]).await;
    let empty = provider(json!({"provider": "brave", "key": " ", "url": server.url("/brave")}));
    let tavily = provider(json!({"provider": "tavily", "key": "k3y", "url": server.url("/tavily")}));
    let found = text(&tool(vec![empty.clone(), tavily]), json!({"query": "q"})).await;
    assert!(found.starts_with("1. [lapin]"), "{found}");
    let gone = provider(json!({"provider": "searxng", "url": server.url("/gone")}));
    let failed = error(&tool(vec![empty, gone]), json!({"query": "q"})).await;
    assert_eq!(
        failed,
        "Search failed: Brave has no key: the operator has to set one; SearXNG answered HTTP 404 Not Found."
    );
}

#[tokio::test]
async fn nothing_found_is_a_result_and_answers_are_kept_for_a_while() {
    let path = "/brave?q=q&count=5";
    let server = Server::start(|_| vec![(path, ok(r#"{"type":"search","query":{}}"#))]).await;
    let tool = tool(vec![brave(&server)]);
    for _ in 0..3 {
        assert_eq!(text(&tool, json!({"query": "q"})).await, "No results found.");
    }
    assert_eq!(server.count(path), 1);
}
