use std::time::Duration;

use insta::{assert_json_snapshot, assert_snapshot};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};
use toolbus_testing::patience::eventually;

use super::{How, Script, discovered, initialized, open, probed, session, stateless, wire};
use crate::client::{RequestError, SessionMode};

async fn finish(script: &mut Script, request: &Value) {
    script.respond(request, initialized());
    script.expect("notifications/initialized").await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_of_the_old_generation_is_initialized_after_a_second() {
    let began = Instant::now();
    let (opened, mut script, _) = probed(How::default()).await;
    let request = script.expect("initialize").await;
    assert_eq!(began.elapsed().as_secs(), 1);
    finish(&mut script, &request).await;
    assert_eq!(opened.await.unwrap().unwrap().session_mode(), SessionMode::Sessions);
}

#[tokio::test]
async fn a_server_that_refuses_the_probe_is_initialized_at_once() {
    let how = How::default();
    let (opened, mut script, probe) = probed(how.clone()).await;
    script.refuse(&probe, -32601, "Method not found");
    let mut request = script.expect("initialize").await;
    assert_json_snapshot!(request["params"].take(), @r#"
    {
      "capabilities": {},
      "clientInfo": {
        "name": "toolbus",
        "version": "0.1.0"
      },
      "protocolVersion": "2025-11-25"
    }
    "#);
    finish(&mut script, &request).await;
    let connection = opened.await.unwrap().unwrap();
    assert_eq!(connection.session_mode(), SessionMode::Sessions);
    let about = connection.server_info();
    assert_eq!(
        (about.protocol_version.as_str(), about.name.as_deref(), about.instructions.as_deref()),
        ("2025-06-18", Some("scripted"), Some("Call gently."))
    );
    assert_eq!(how.seen.lines(), ["initialize - scripted 2025-06-18 -"]);
}

#[tokio::test]
async fn a_server_of_the_new_generation_is_not_initialized() {
    let how = How::default();
    let (opened, script, probe) = probed(how.clone()).await;
    assert_json_snapshot!(probe, @r#"
    {
      "id": 0,
      "jsonrpc": "2.0",
      "method": "server/discover",
      "params": {
        "_meta": {
          "io.modelcontextprotocol/clientCapabilities": {},
          "io.modelcontextprotocol/clientInfo": {
            "name": "toolbus",
            "version": "0.1.0"
          },
          "io.modelcontextprotocol/protocolVersion": "2026-07-28"
        }
      }
    }
    "#);
    script.respond(&probe, discovered());
    let connection = opened.await.unwrap().unwrap();
    assert_eq!(connection.session_mode(), SessionMode::Stateless);
    assert_eq!(connection.server_info().protocol_version, "2026-07-28");
    assert_eq!(how.seen.lines(), ["server/discover - scripted 2026-07-28 -"]);
}

#[tokio::test]
async fn a_remembered_generation_needs_no_probe() {
    let (old, _old_script) = session(How::default()).await;
    assert_eq!(old.session_mode(), SessionMode::Sessions);
    let (new, _new_script, _) = stateless(How::default()).await;
    assert_eq!(new.session_mode(), SessionMode::Stateless);
}

#[tokio::test(start_paused = true)]
async fn the_late_response_to_the_probe_is_dropped() {
    for is_refused in [false, true] {
        let (opened, mut script, probe) = probed(How::default()).await;
        let request = script.expect("initialize").await;
        if is_refused {
            script.refuse(&probe, -32601, "Method not found");
        } else {
            script.respond(&probe, discovered());
        }
        finish(&mut script, &request).await;
        assert_eq!(opened.await.unwrap().unwrap().session_mode(), SessionMode::Sessions);
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_server_that_dies_of_the_probe_is_tried_without_it_next() {
    let (opened, mut script, _) = probed(How::default()).await;
    script.expect("initialize").await;
    drop(script);
    assert_eq!(opened.await.unwrap().err().and_then(|error| error.next()), Some(SessionMode::Sessions));
}

#[tokio::test(start_paused = true)]
async fn a_slow_stateless_server_is_tried_as_stateless_next() {
    let (opened, mut script, probe) = probed(How::default()).await;
    let request = script.expect("initialize").await;
    script.respond(&probe, discovered());
    script.refuse(&request, -32601, "Method not found");
    assert_eq!(opened.await.unwrap().err().and_then(|error| error.next()), Some(SessionMode::Stateless));
}

#[tokio::test(start_paused = true)]
async fn over_http_a_silent_server_fails_the_probe() {
    let (opened, _script, _) = probed(How { is_tcp: true, ..How::default() }).await;
    let Err(RequestError::ProbeFailed(text)) = opened.await.unwrap() else { panic!("it was silent") };
    assert_snapshot!(text, @"the server kept silent for 1 s; `server/discover` was not answered");
}

#[tokio::test]
async fn a_server_that_dies_of_the_probe_fails_it() {
    let how = How::default();
    how.failure.set("the server ended with exit code 1");
    let (opened, script, _) = probed(how.clone()).await;
    drop(script);
    let Err(RequestError::ProbeFailed(text)) = opened.await.unwrap() else { panic!("it died") };
    assert_snapshot!(text, @"the server ended with exit code 1; `server/discover` was not answered");
    assert_eq!(how.seen.lines(), ["server/discover - scripted 2026-07-28 connect_failed"]);
}

#[tokio::test]
async fn invalid_handshake_responses_are_reported() {
    let mut texts = Vec::new();
    let responses = [
        json!({ "jsonrpc": "2.0", "id": 77, "result": initialized() }),
        json!({ "jsonrpc": "2.0", "id": 0, "result": { "tools": "none" } }),
        json!({ "jsonrpc": "2.0", "id": 0, "error": { "code": -32603, "message": "not\u{1b}[2J today" } }),
        json!({ "jsonrpc": "2.0", "id": 0, "result": {
            "protocolVersion": "1999-01-01", "capabilities": {}, "serverInfo": { "name": "x", "version": "1" },
        } }),
    ];
    for response in responses {
        let (wire, mut script) = wire();
        let opened = open(wire, How { session_mode: Some(SessionMode::Sessions), ..How::default() });
        script.expect("initialize").await;
        script.send(response);
        match opened.await.unwrap() {
            Err(RequestError::Failed(text)) => texts.push(text),
            other => panic!("{:?}", other.err()),
        }
    }
    assert_snapshot!(texts.join("\n"), @"
    the server answered `initialize` with the id 77 instead of 0
    the server answered `initialize` with something else than its result
    the server refused `initialize`: not\\u{1b}[2J today (-32603)
    the server speaks version \"1999-01-01\" of the protocol; known here are 2024-11-05, 2025-03-26, 2025-06-18, 2025-11-25, 2026-07-28
    ");
}

#[tokio::test]
async fn a_remembered_generation_that_is_outdated_fails() {
    let how = How { session_mode: Some(SessionMode::Stateless), ..How::default() };
    let (opened, script, probe) = probed(how).await;
    script.refuse(&probe, -32601, "Method not found");
    assert!(matches!(opened.await.unwrap(), Err(RequestError::Failed(_))));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_left_of_a_handshake_that_takes_too_long() {
    let (wire, mut script) = wire();
    let opened = open(wire, How::default());
    let handle = opened.abort_handle();
    assert!(timeout(Duration::from_secs(20), opened).await.is_err());
    handle.abort();
    script.expect("server/discover").await;
    script.expect("initialize").await;
    eventually("the transport is dropped", async || script.sender.is_closed().then_some(())).await;
}

#[tokio::test]
async fn roots_are_offered_only_where_there_are_some() {
    let (wire, mut script) = wire();
    let roots = vec!["/srv/data".into(), "not/absolute".into()];
    let opened = open(wire, How { session_mode: Some(SessionMode::Sessions), roots, ..How::default() });
    let request = script.expect("initialize").await;
    assert_eq!(request["params"]["capabilities"], json!({ "roots": {} }));
    finish(&mut script, &request).await;
    let _connection = opened.await.unwrap().unwrap();
    script.send(json!({ "jsonrpc": "2.0", "id": "r1", "method": "roots/list" }));
    assert_json_snapshot!(script.receive().await, @r#"
    {
      "id": "r1",
      "jsonrpc": "2.0",
      "result": {
        "roots": [
          {
            "uri": "file:///srv/data"
          }
        ]
      }
    }
    "#);
}
