//! Requests that the tools of a specification send.

use std::sync::Arc;

use serde_json::{Value, json};
use toolbus_core::tool::Tool;
use toolbus_outbound::egress::EgressRules;

use super::server::TestServer;
use crate::rest::{RestClient, openapi};
use crate::testing::{call, run};

/// The only tool of a specification with one operation, at a server.
fn tool(server: Option<&str>, path: &str, operation: Value, auth: Value) -> Tool {
    let scheme = json!({"key": {"type": "apiKey", "in": "header", "name": "X-Key"}});
    let document = json!({
        "openapi": "3.1.0", "servers": [{"url": "https://rebound.example"}], "security": [{"key": []}],
        "paths": {path: operation}, "components": {"securitySchemes": scheme}
    });
    let config = serde_json::from_value(json!({"server": server, "auth": auth})).unwrap();
    let client = RestClient::new(EgressRules::default()).unwrap();
    let described =
        openapi::read("spec.json", &document.to_string(), &config, &EgressRules::default(), &client).unwrap();
    crate::rest::tool(&described.endpoints[0], &client).unwrap()
}

#[tokio::test]
async fn every_argument_goes_where_the_specification_puts_it() {
    let server = TestServer::saying("done").await;
    let operation = json!({"post": {
        "operationId": "op",
        "parameters": [
            {"name": "ids", "in": "path", "required": true, "schema": {"type": "array"}},
            {"name": "tag", "in": "query", "schema": {"type": "array"}},
            {"name": "sort", "in": "query", "explode": false, "schema": {"type": "array"}},
            {"name": "filter", "in": "query", "style": "deepObject", "schema": {"type": "object"}},
            {"name": "where", "in": "query", "content": {"application/json": {"schema": {"type": "object"}}}},
            {"name": "X-Trace", "in": "header", "schema": {"type": "string"}}
        ],
        "requestBody": {"content": {"application/vnd.api+json": {"schema": {
            "type": "object", "properties": {"name": {"type": "string"}, "size": {"type": "integer"}}
        }}}}
    }});
    let tool = tool(Some(&server.origin), "/pets/{ids}/x", operation, json!({"key": {"key": "k3y-of-tests"}}));
    let arguments = json!({
        "ids": [1, 2], "tag": ["a", "b&c"], "sort": ["x", "y"], "filter": {"age": 3}, "where": {"a": [1]},
        "X-Trace": "t-1", "name": "Rex", "size": null
    });
    assert_eq!(run(&tool, arguments).await.unwrap().content.as_deref(), Some("done"));
    let seen = server.only();
    assert_eq!(
        (&*seen.method, &*seen.target),
        ("POST", "/pets/1%2C2/x?filter%5Bage%5D=3&sort=x%2Cy&tag=a&tag=b%26c&where=%7B%22a%22%3A%5B1%5D%7D")
    );
    assert_eq!(seen.headers["x-trace"], "t-1");
    assert_eq!(seen.headers["x-key"], "k3y-of-tests");
    assert_eq!(seen.headers["content-type"], "application/vnd.api+json");
    assert_eq!(serde_json::from_str::<Value>(&seen.body).unwrap(), json!({"name": "Rex", "size": null}));
}

#[tokio::test]
async fn an_idempotency_key_is_the_daemon_s_whatever_the_specification_declares() {
    let server = TestServer::saying("").await;
    let at = |method: &str, required: bool| {
        let parameters = json!([{"name": "idempotency-key", "in": "header", "required": required}]);
        // Without a schema that refuses it: what a caller gives is not sent either.
        let body = json!({"content": {"application/json": {"schema": {
            "type": "object", "properties": {"a": {}}, "additionalProperties": true
        }}}});
        let operation = json!({method: {"operationId": "op", "parameters": parameters, "requestBody": body}});
        tool(Some(&server.origin), "/x", operation, json!({}))
    };
    let properties = |tool: &Tool| tool.descriptor.parameters.as_ref().unwrap()["properties"].clone();
    for required in [true, false] {
        let tool = at("post", required);
        assert_eq!(properties(&tool), json!({"a": {}}));
        let mut with_key = call(&tool, json!({"idempotency-key": "order-1"}));
        with_key.idempotency_key = Some("k".repeat(64).into());
        Arc::clone(&tool.executor).execute_boxed(with_key).await.unwrap();
        run(&tool, json!({})).await.unwrap();
        run(&tool, json!({})).await.unwrap();
    }
    // A read-only operation has no key of the daemon.
    run(&at("get", true), json!({"idempotency-key": "mine"})).await.unwrap();
    let seen = server.seen();
    let keys: Vec<_> = seen.iter().map(|seen| Some(seen.headers.get("idempotency-key")?.to_str().unwrap())).collect();
    let [given, Some(one), Some(other), also_given, None, None, Some("mine")] = keys[..] else { panic!("{keys:?}") };
    assert_eq!([given, also_given], [Some("k".repeat(64).as_str()); 2]);
    assert!(one != other && [one, other].iter().all(|key| key.len() == 64), "{keys:?}");
}

#[tokio::test]
async fn an_object_in_the_query_is_no_second_way_to_give_another_argument() {
    let server = TestServer::saying("").await;
    let parameters = json!([
        {"name": "owner", "in": "query", "schema": {"type": "string"}},
        {"name": "filter", "in": "query", "schema": {"type": "object"}}
    ]);
    let operation = json!({"get": {"operationId": "op", "parameters": parameters}});
    let tool = tool(Some(&server.origin), "/x", operation, json!({}));
    let failure = run(&tool, json!({"owner": "maria", "filter": {"owner": "boss"}})).await.unwrap_err();
    insta::assert_snapshot!(failure.message, @"Argument `filter` has a member `owner`, which is another argument in the address. Leave it out.");
    // Also where the argument itself is not given.
    run(&tool, json!({"filter": {"owner": "boss"}})).await.unwrap_err();
    run(&tool, json!({"owner": "maria", "filter": {"size": 3}})).await.unwrap();
    assert_eq!(server.only().target, "/x?size=3&owner=maria");
}

#[tokio::test]
async fn a_body_that_is_optional_is_left_out_where_nothing_of_it_is_given() {
    let server = TestServer::saying("").await;
    let operation = json!({"post": {"requestBody": {"content": {"application/json": {"schema": {"type": "array"}}}}}});
    let tool = tool(Some(&server.origin), "/x", operation, json!({}));
    run(&tool, json!({})).await.unwrap();
    run(&tool, json!({"body": [1]})).await.unwrap();
    let bodies: Vec<_> = server.seen().into_iter().map(|seen| seen.body).collect();
    assert_eq!(bodies, ["", "[1]"]);
}

#[tokio::test]
async fn a_host_that_the_specification_chose_is_reached_by_the_rules_for_such_hosts() {
    let get = json!({"get": {"operationId": "op"}});
    let denied = EgressRules::new(
        serde_json::from_value(json!({"deny_hosts": ["rebound.example"]})).unwrap(),
        Default::default(),
        Default::default(),
    );
    let described = {
        let document =
            json!({"openapi": "3.0.0", "servers": [{"url": "https://rebound.example"}], "paths": {"/": get}});
        let client = RestClient::new(EgressRules::default()).unwrap();
        let config = serde_json::from_value(json!({})).unwrap();
        openapi::read("spec.json", &document.to_string(), &config, &EgressRules::default(), &client).unwrap()
    };
    // The rules of the moment of the call decide, those for the resolved address included.
    let tool = crate::rest::tool(&described.endpoints[0], &RestClient::new(denied).unwrap()).unwrap();
    let failure = run(&tool, json!({})).await.unwrap_err();
    insta::assert_snapshot!(failure.message, @"Tool 'op' may not be reached for you: the configuration denies `rebound.example`. Only an operator can allow it.");
}
