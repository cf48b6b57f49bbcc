//! Handling of a response.

use std::time::Duration;

use axum::body::Body;
use axum::http::Response;
use serde_json::json;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::tool::ToolOutput;

use super::server::TestServer;
use super::{bearer, header, tool};
use crate::rest::{Auth, Method};
use crate::testing::run;

async fn result_of(
    status: u16,
    headers: &'static [(&'static str, &'static str)],
    body: impl AsRef<[u8]>,
) -> Result<ToolOutput, ToolFailure> {
    let body = body.as_ref().to_vec();
    let server = TestServer::start(move |_| {
        let mut response = Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        response.body(Body::from(body.clone())).unwrap()
    })
    .await;
    run(&tool(&server.origin, |s| s.max_response = Some("10000B".parse().unwrap())), json!({})).await
}

#[tokio::test]
async fn success_of_every_kind_is_a_result() {
    for (status, body) in [(200, "x"), (201, "{}"), (202, ""), (204, ""), (206, "part")] {
        assert_eq!(result_of(status, &[], body).await, Ok(ToolOutput::text(body)), "{status}");
    }
}

#[tokio::test]
async fn the_response_to_head_is_an_empty_text() {
    let server = TestServer::saying("not sent").await;
    let tool = tool(&server.origin, |s| (s.method, s.max_response) = (Method::Head, Some("1B".parse().unwrap())));
    assert_eq!(run(&tool, json!({})).await, Ok(ToolOutput::text("")));
}

#[tokio::test]
async fn other_statuses_are_errors_of_the_tool_with_status_and_body() {
    let table: [(u16, &str, &str); 9] = [
        (304, "", "HTTP 304 Not Modified"),
        (400, "{\"error\":\"no city\"}", "HTTP 400 Bad Request: {\"error\":\"no city\"}"),
        (401, "who?", "HTTP 401 Unauthorized: who?"),
        (403, "", "HTTP 403 Forbidden"),
        (404, " gone \n", "HTTP 404 Not Found: gone"),
        (409, "x", "HTTP 409 Conflict: x"),
        (422, "x", "HTTP 422 Unprocessable Entity: x"),
        (500, "oops", "HTTP 500 Internal Server Error: oops"),
        (599, "x", "HTTP 599 <unknown status code>: x"),
    ];
    for (status, body, text) in table {
        assert_eq!(result_of(status, &[], body).await, Ok(ToolOutput::error(text)));
    }
}

#[tokio::test]
async fn a_server_that_cannot_serve_now_is_unavailable() {
    for status in [502, 503, 504] {
        let failure = result_of(status, &[], "internal details").await.unwrap_err();
        assert_eq!((failure.cause, failure.retry_after), (Cause::Unavailable, None));
        assert!(failure.message.contains(&format!("HTTP {status}")), "{}", failure.message);
        assert!(!failure.message.contains("internal details"), "{}", failure.message);
    }
}

#[tokio::test]
async fn a_wait_that_the_server_asks_for_is_passed_on_within_bounds() {
    type Headers = &'static [(&'static str, &'static str)];
    let table: [(Headers, Option<u64>); 4] = [
        (&[("retry-after", "7")], Some(7)),
        (&[("retry-after", "999999999")], Some(3600)),
        (&[("retry-after", "-1")], None),
        (&[("retry-after", "Fri, 31 Dec 1999 23:59:59 GMT")], None),
    ];
    for (headers, seconds) in table {
        let failure = result_of(503, headers, "").await.unwrap_err();
        assert_eq!(failure.retry_after, seconds.map(Duration::from_secs), "{headers:?}");
    }
    let limited = result_of(429, &[("retry-after", "7")], "slow down").await.unwrap();
    assert_eq!(limited, ToolOutput::error("HTTP 429 Too Many Requests, try again after 7 s: slow down"));
}

#[tokio::test]
async fn the_body_of_an_error_is_cut_at_a_character() {
    let text = result_of(500, &[], "é".repeat(5000)).await.unwrap().content.unwrap();
    assert_eq!(text, format!("HTTP 500 Internal Server Error: {}… (cut)", "é".repeat(2048)));
    let text = result_of(500, &[], format!("x{}", "é".repeat(5000))).await.unwrap().content.unwrap();
    assert_eq!(text, format!("HTTP 500 Internal Server Error: x{}… (cut)", "é".repeat(2047)));
}

#[tokio::test]
async fn a_response_of_the_largest_size_is_a_result_and_one_byte_more_is_not() {
    assert_eq!(result_of(200, &[], "x".repeat(10_000)).await.unwrap().size(), 10_000);
    let failure = result_of(200, &[], "x".repeat(10_001)).await.unwrap_err();
    assert_eq!(failure.cause, Cause::ResultTooLarge);
    assert!(failure.message.contains("10000 bytes"), "{}", failure.message);
}

#[tokio::test]
async fn a_response_that_is_no_text_is_invalid_and_its_type_is_named() {
    let failure = result_of(200, &[("content-type", "image/png")], b"\x89PNG\r\n\x1a\n\0").await.unwrap_err();
    assert_eq!(failure.cause, Cause::InvalidResult);
    assert!(failure.message.contains("image/png"), "{}", failure.message);
    let failure = result_of(200, &[("content-type", "application/json")], b"\"gr\xfcn\"").await.unwrap_err();
    assert_eq!(failure.cause, Cause::InvalidResult);
    let error = result_of(500, &[("content-type", "image/png")], b"\x89PNG\0").await;
    let text = "HTTP 500 Internal Server Error: (a body of image/png, which is not text)";
    assert_eq!(error, Ok(ToolOutput::error(text)));
}

#[tokio::test]
async fn a_credential_that_a_server_echoes_does_not_come_back() {
    let credentials = [
        bearer("hunter2-hunter2"),
        Auth::ApiKey { header: "x-api-key".into(), key: Some("hunter2-hunter2".into()), per_agent: None },
        Auth::Basic { username: Some("user".into()), password: Some("hunter2-hunter2".into()), per_agent: None },
    ];
    for status in [200, 400] {
        for auth in credentials.clone() {
            let server = TestServer::start(move |seen| {
                let echo = format!("{:?} hunter2-hunter2", seen.headers);
                Response::builder().status(status).body(Body::from(echo)).unwrap()
            })
            .await;
            let content =
                run(&tool(&server.origin, |s| s.auth = Some(auth)), json!({})).await.unwrap().content.unwrap();
            assert!(content.contains("[redacted]"), "{content}");
            for secret in ["hunter2", "dXNlcjpodW50ZXIyLWh1bnRlcjI="] {
                assert!(!content.contains(secret), "{content}");
            }
        }
    }
}

#[tokio::test]
async fn the_value_of_a_header_that_a_server_echoes_does_not_come_back() {
    let server = TestServer::start(|seen| {
        let key = seen.headers["x-key"].to_str().unwrap();
        let accept = seen.headers["accept"].to_str().unwrap();
        Response::new(Body::from(format!("{key} {accept}")))
    })
    .await;
    let tool = tool(&server.origin, |s| {
        s.headers = [header("x-key", "hunter2-hunter2"), header("accept", "application/json")].into();
    });
    assert_eq!(run(&tool, json!({})).await, Ok(ToolOutput::text("[redacted] application/json")));
}

#[tokio::test]
async fn a_credential_that_the_end_of_a_long_error_cuts_does_not_come_back_in_part() {
    for before in 4080..4100 {
        let server = TestServer::start(move |_| {
            let body = format!("{}hunter2-hunter2{}", "x".repeat(before), "y".repeat(100));
            Response::builder().status(400).body(Body::from(body)).unwrap()
        })
        .await;
        let tool = tool(&server.origin, |s| s.auth = Some(bearer("hunter2-hunter2")));
        let content = run(&tool, json!({})).await.unwrap().content.unwrap();
        assert!(content.contains("xxx") && content.ends_with("… (cut)"), "{content}");
        assert!(!content.contains('h') && !content.contains("hun"), "{before}: {content}");
    }
}

#[tokio::test]
async fn a_redirect_within_the_origin_is_followed_with_credentials() {
    let server = TestServer::start(|seen| match &*seen.target {
        "/old" => Response::builder().status(307).header("location", "/new?x=1").body(Body::empty()).unwrap(),
        _ => Response::new(Body::from("arrived")),
    })
    .await;
    let tool = tool(format!("{}/old", server.origin), |s| s.auth = Some(bearer("t0ken")));
    assert_eq!(run(&tool, json!({})).await, Ok(ToolOutput::text("arrived")));
    let seen = server.seen();
    assert_eq!(seen[1].target, "/new?x=1");
    assert_eq!(seen[1].headers["authorization"], "Bearer t0ken");
    assert!(!seen[1].headers.contains_key("referer"));
}

#[tokio::test]
async fn a_redirect_keeps_or_drops_method_and_body_by_its_status() {
    let table = [
        (301, Method::Post, "GET"),
        (302, Method::Post, "GET"),
        (302, Method::Put, "PUT"),
        (303, Method::Delete, "GET"),
        (307, Method::Post, "POST"),
        (308, Method::Patch, "PATCH"),
    ];
    for (status, method, then) in table {
        let server = TestServer::start(move |seen| match &*seen.target {
            "/" => Response::builder().status(status).header("location", "new").body(Body::empty()).unwrap(),
            _ => Response::new(Body::empty()),
        })
        .await;
        let tool = tool(&server.origin, |s| (s.method, s.body) = (method, crate::rest::Body::Json));
        run(&tool, json!({"c": 1})).await.unwrap();
        let seen = &server.seen()[1];
        let body = if then == "GET" { "" } else { "{\"c\":1}" };
        assert_eq!((&*seen.method, &*seen.target, &*seen.body), (then, "/new", body), "{status}");
        assert_eq!(seen.headers.contains_key("content-type"), then != "GET");
    }
}

#[tokio::test]
async fn a_redirect_to_another_server_is_not_followed_and_not_shown() {
    let other = TestServer::saying("stolen").await;
    let port = other.origin.rsplit_once(':').unwrap().1.to_owned();
    let targets = [
        format!("{}/steal?token=hunter2", other.origin),
        format!("//127.0.0.1:{port}/steal?token=hunter2"),
        format!("https://127.0.0.1:{port}/steal?token=hunter2"),
        format!("http://localhost:{port}/steal?token=hunter2"),
        "http://169.254.169.254/latest/meta-data?token=hunter2".to_owned(),
        "file:///etc/passwd?token=hunter2".to_owned(),
        "http://[hunter2".to_owned(),
    ];
    for target in targets {
        let location = target.clone();
        let server = TestServer::start(move |_| {
            Response::builder().status(302).header("location", &location).body(Body::from(location.clone())).unwrap()
        })
        .await;
        let output = run(&tool(&server.origin, |_| {}), json!({})).await.unwrap();
        assert!(output.is_error, "{target}");
        let content = output.content.unwrap();
        assert!(content.starts_with("HTTP 302 Found: the redirect was not followed"), "{content}");
        assert!(!content.contains("hunter2") && !content.contains(&port), "{content}");
        assert_eq!(server.seen().len(), 1);
    }
    assert_eq!(other.connections(), 0);
}

#[tokio::test]
async fn a_redirect_loop_ends_after_five() {
    let server = TestServer::start(|_| {
        Response::builder().status(302).header("location", "/again").body(Body::empty()).unwrap()
    })
    .await;
    let output = run(&tool(&server.origin, |_| {}), json!({})).await.unwrap();
    assert!(output.is_error && output.content.unwrap().contains("there were 5 before it"));
    assert_eq!(server.seen().len(), 6);
}
