//! Requests that an endpoint sends.

use std::sync::Arc;

use serde_json::{Value, json};
use toolbus_core::failure::Cause;
use toolbus_core::tool::ToolOutput;
use toolbus_protocol::TraceContext;

use super::server::TestServer;
use super::{bearer, header, tool};
use crate::rest::{Auth, Body, Endpoint, Method, RestClient};
use crate::testing::{call, run};

#[tokio::test]
async fn arguments_fill_the_url_and_the_body_is_the_result() {
    let server = TestServer::saying("sunny").await;
    let tool = tool(format!("{}/v1/{{a}}?city={{b}}", server.origin), |_| {});
    assert_eq!(run(&tool, json!({"a": "x/y", "b": "São Paulo"})).await, Ok(ToolOutput::text("sunny")));
    let seen = server.only();
    assert_eq!((&*seen.method, &*seen.target, &*seen.body), ("GET", "/v1/x%2Fy?city=S%C3%A3o%20Paulo", ""));
}

#[tokio::test]
async fn every_method_is_sent_as_configured() {
    let server = TestServer::saying("").await;
    for method in [Method::Get, Method::Post, Method::Put, Method::Patch, Method::Delete, Method::Head] {
        run(&tool(&server.origin, |s| s.method = method), json!({})).await.unwrap();
        assert_eq!(server.seen().last().unwrap().method, method.as_str());
    }
}

#[tokio::test]
async fn arguments_left_over_become_the_json_body() {
    let server = TestServer::saying("").await;
    for method in [Method::Post, Method::Put, Method::Patch, Method::Delete] {
        let tool = tool(format!("{}/{{a}}?b={{b}}", server.origin), |s| {
            (s.method, s.body) = (method, Body::Json);
        });
        run(&tool, json!({"a": 1, "b": null, "c": [true, null], "d": {"e": "f"}})).await.unwrap();
        let seen = server.seen().pop().unwrap();
        assert_eq!((&*seen.method, &*seen.target), (method.as_str(), "/1"));
        assert_eq!(seen.headers["content-type"], "application/json");
        assert_eq!(serde_json::from_str::<Value>(&seen.body).unwrap(), json!({"c": [true, null], "d": {"e": "f"}}));
    }
}

#[tokio::test]
async fn a_json_body_without_arguments_is_an_empty_object() {
    let server = TestServer::saying("").await;
    let tool = tool(&server.origin, |s| {
        (s.method, s.body) = (Method::Post, Body::Json);
        s.headers = [header("Content-Type", "application/vnd.api+json")].into();
    });
    run(&tool, json!({})).await.unwrap();
    let seen = server.only();
    assert_eq!(seen.body, "{}");
    assert_eq!(seen.headers.get_all("content-type").iter().collect::<Vec<_>>(), ["application/vnd.api+json"]);
}

#[tokio::test]
async fn arguments_left_over_join_the_query_when_there_is_no_body() {
    let server = TestServer::saying("").await;
    for method in [Method::Get, Method::Post, Method::Delete] {
        let tool = tool(format!("{}/x?a={{a}}", server.origin), |s| s.method = method);
        run(&tool, json!({"a": 1, "c": ["u", "v"], "d": {"e": 1}, "f": null, "g": false})).await.unwrap();
        let seen = server.seen().pop().unwrap();
        assert_eq!(seen.target, "/x?a=1&c=u&c=v&d=%7B%22e%22%3A1%7D&g=false");
        assert_eq!(seen.body, "");
    }
}

#[tokio::test]
async fn credentials_and_headers_are_sent_and_name_the_daemon() {
    let server = TestServer::saying("").await;
    let credentials = [
        (bearer("t0ken"), "authorization", "Bearer t0ken"),
        (Auth::ApiKey { header: "X-Key".into(), key: Some("k3y".into()), per_agent: None }, "x-key", "k3y"),
        (
            Auth::Basic { username: Some("u".into()), password: Some("p".into()), per_agent: None },
            "authorization",
            "Basic dTpw",
        ),
    ];
    for (auth, name, value) in credentials {
        let tool = tool(&server.origin, |s| {
            s.auth = Some(auth);
            s.headers = [header("accept", "application/json")].into();
        });
        run(&tool, json!({})).await.unwrap();
        let headers = server.seen().pop().unwrap().headers;
        assert_eq!(headers.get_all(name).iter().collect::<Vec<_>>(), [value]);
        assert_eq!(headers.get_all("accept").iter().collect::<Vec<_>>(), ["application/json"]);
        assert_eq!(headers["user-agent"], concat!("toolbus/", env!("CARGO_PKG_VERSION")));
        for absent in ["cookie", "referer"] {
            assert!(!headers.contains_key(absent), "{absent}");
        }
    }
}

#[tokio::test]
async fn the_trace_of_the_call_is_carried_on() {
    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let server = TestServer::saying("").await;
    let tool = tool(&server.origin, |_| {});
    let mut with_trace = call(&tool, json!({}));
    with_trace.trace = TraceContext::parse(PARENT, Some("vendor=1"));
    Arc::clone(&tool.executor).execute_boxed(with_trace).await.unwrap();
    run(&tool, json!({})).await.unwrap();
    let seen = server.seen();
    assert_eq!(seen[0].headers["traceparent"], PARENT);
    assert_eq!(seen[0].headers["tracestate"], "vendor=1");
    assert!(!seen[1].headers.contains_key("traceparent"));
}

#[tokio::test]
async fn arguments_that_do_not_fit_are_refused_before_anything_is_sent() {
    let server = TestServer::saying("").await;
    let tool = tool(format!("{}/files/{{a}}?fixed=1", server.origin), |_| {});
    let table = [
        (json!({}), "`a` is missing"),
        (json!({"a": null}), "`a` is missing"),
        (json!({"a": ""}), "`a` is empty"),
        (json!({"a": ".."}), "`a` must not contain"),
        (json!({"a": "%2e%2e"}), "`a` must not contain"),
        (json!({"a": "x", "fixed": 2}), "`fixed` has a fixed value"),
        (json!({"a": "x".repeat(20_000)}), "Shorten"),
    ];
    for (arguments, expected) in table {
        let failure = run(&tool, arguments).await.unwrap_err();
        assert_eq!(failure.cause, Cause::InvalidArguments);
        assert!(failure.message.contains(expected), "{}", failure.message);
    }
    assert_eq!(server.connections(), 0);
}

#[test]
fn proxies_of_the_environment_are_not_used() {
    // The environment is set for a process of its own, which runs one of the tests above.
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "rest::tests::requests::arguments_fill_the_url_and_the_body_is_the_result"])
        .envs(["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"].map(|name| (name, "http://127.0.0.1:1")))
        .env_remove("no_proxy")
        .env_remove("NO_PROXY")
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && output.contains("1 passed"), "{output}");
}

#[tokio::test]
async fn endpoints_of_one_client_share_their_connections() {
    let server = TestServer::saying("x").await;
    let client = RestClient::new(Default::default()).unwrap();
    for name in ["one", "two"] {
        let tool = crate::rest::tool(&Endpoint::new(name, &server.origin), &client).unwrap();
        for _ in 0..3 {
            run(&tool, json!({})).await.unwrap();
        }
    }
    assert_eq!((server.seen().len(), server.connections()), (6, 1));
}
