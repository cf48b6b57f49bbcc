//! View that a client has of each way in which a call can fail.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::json;
use toolbus_core::failure::{Cause, ToolFailure, verdict};
use toolbus_core::tool::Effect;

use super::fixture::{Fixture, call};

/// Returns the response to a call that fails so, in a session.
async fn seen(failure: ToolFailure) -> String {
    let (world, session) = Fixture::begun().await;
    world.backend.script(Err(failure));
    let response = world.request(&world.ana, &session, &call(1, "scripted")).await;
    assert_eq!(response.status.as_u16(), 200);
    response.text().await
}

#[tokio::test(start_paused = true)]
async fn every_failure_has_its_code_retry_hint_and_outcome() {
    let mut table = String::new();
    for cause in Cause::ALL {
        let failure = ToolFailure::new(cause, "What happened.").with_detail("a secret of the log");
        let verdict_of_cause = verdict(cause, Effect::Effectful, true);
        let text = seen(ToolFailure { verdict: Some(verdict_of_cause), ..failure }).await;
        assert!(!text.contains("secret"), "{text}");
        let seen: serde_json::Value = serde_json::from_str(&text).unwrap();
        let seen = match &seen["error"] {
            serde_json::Value::Null => seen["result"]["_meta"]["toolbus/error"].to_string(),
            error => error.to_string(),
        };
        writeln!(table, "{cause:?} {seen}").unwrap();
    }
    insta::assert_snapshot!(table, @r#"
    MalformedRequest {"code":"invalid_arguments","isRetryable":false}
    UnknownTool {"code":-32602,"message":"What happened."}
    UnknownServer {"code":-32602,"message":"What happened."}
    InvalidArguments {"code":"invalid_arguments","isRetryable":false}
    Expired {"code":"timeout","isRetryable":true,"outcome":"not_started"}
    DeadlineExceeded {"code":"timeout","isRetryable":false,"outcome":"unknown"}
    NotAllowed {"code":"not_allowed","isRetryable":false,"outcome":"not_started"}
    RateLimited {"code":"rate_limited","isRetryable":true,"outcome":"not_started"}
    Overloaded {"code":"overloaded","isRetryable":true,"outcome":"not_started"}
    CancelledBeforeStart {"code":"cancelled","isRetryable":false,"outcome":"not_started"}
    Cancelled {"code":"cancelled","isRetryable":false,"outcome":"unknown"}
    ConnectFailed {"code":"execution_failed","isRetryable":true,"outcome":"not_started"}
    ConnectionLost {"code":"execution_failed","isRetryable":false,"outcome":"unknown"}
    Unavailable {"code":"execution_failed","isRetryable":false,"outcome":"unknown"}
    AuthRequired {"code":"auth_required","isRetryable":false,"outcome":"not_started"}
    Panicked {"code":"execution_failed","isRetryable":false,"outcome":"unknown"}
    ResultTooLarge {"code":"execution_failed","isRetryable":false,"outcome":"unknown"}
    InvalidResult {"code":"execution_failed","isRetryable":false,"outcome":"unknown"}
    DeliveredTooOften {"code":"execution_failed","isRetryable":false,"outcome":"unknown"}
    OutcomeUnknown {"code":"execution_failed","isRetryable":false,"outcome":"unknown"}
    KeyReused {"code":"invalid_arguments","isRetryable":false}
    LedgerUnavailable {"code":"execution_failed","isRetryable":true,"outcome":"not_started"}
    BreakerOpen {"code":"execution_failed","isRetryable":true,"outcome":"not_started"}
    Failed {"code":"execution_failed","isRetryable":false,"outcome":"unknown"}
    "#);
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_a_result_with_its_text_for_the_model() {
    let failure = ToolFailure::new(Cause::RateLimited, "Tool 'scripted' was called too often. Try again later.");
    let verdict_of_cause = verdict(Cause::RateLimited, Effect::ReadOnly, false);
    let failure =
        ToolFailure { verdict: Some(verdict_of_cause), ..failure.with_retry_after(Duration::from_millis(1_500)) };
    insta::assert_snapshot!(seen(failure).await, @r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"Tool 'scripted' was called too often. Try again later."}],"isError":true,"_meta":{"toolbus/content-trust":"tool-output","toolbus/error":{"code":"rate_limited","isRetryable":true,"retryAfterMs":1500,"outcome":"not_started"}}}}"#);
}

#[tokio::test(start_paused = true)]
async fn a_forbidden_tool_looks_like_an_absent_one() {
    let (world, session) = Fixture::begun().await;
    let absent = world.request(&world.ana, &session, &call(1, "secret")).await.text().await;
    world.backend.has("bea", &["secret"]);
    let forbidden = world.request(&world.ana, &session, &call(1, "secret")).await.text().await;
    assert_eq!(absent, forbidden);
    let alone = world.alone(&world.ana, 1, "tools/call", json!({"name": "secret"})).await;
    insta::assert_snapshot!(alone.refusal().await, @"200 1 -32602 Tool 'secret' is not registered.");
}
