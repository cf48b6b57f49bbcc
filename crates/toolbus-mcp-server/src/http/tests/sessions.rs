//! Owners, limits and ends of sessions.

use std::time::Duration;

use serde_json::json;

use super::fixture::{Fixture, call, cancel, message};
use crate::auth::{Principal, TokenId};

#[tokio::test(start_paused = true)]
async fn an_unknown_session_and_a_session_of_another_token_look_the_same() {
    let (world, session) = Fixture::begun().await;
    let unknown = world.request(&world.ana, "made-up", &call(1, "echo")).await.refusal().await;
    insta::assert_snapshot!(unknown, @"404 null -32600 There is no such session, or none of this token: it has ended, perhaps. Begin with `initialize`.");
    let of_other = world.request(&world.bea, &session, &call(1, "echo")).await.refusal().await;
    let other_token = Principal { token: Some(TokenId(7)), ..world.ana.clone() };
    let by_other_token = world.request(&other_token, &session, &call(1, "echo")).await.refusal().await;
    let without = Principal { token: None, agent: None, ..world.ana.clone() };
    let by_stranger = world.request(&without, &session, &call(1, "echo")).await.refusal().await;
    assert_eq!([of_other, by_other_token, by_stranger], [unknown.clone(), unknown.clone(), unknown]);
    assert_eq!(world.get(&world.bea, &session).await.status.as_u16(), 404);
    assert_eq!(world.delete(&world.bea, &session).await.as_u16(), 404);
    assert_eq!(world.request(&world.ana, &session, &call(1, "echo")).await.status.as_u16(), 200);
}

#[tokio::test(start_paused = true)]
async fn an_id_in_other_letters_twice_or_empty_names_no_session() {
    let (world, session) = Fixture::begun().await;
    let upper = session.to_uppercase();
    assert_ne!(upper, session, "an id without letters would show nothing");
    assert_eq!(world.request(&world.ana, &upper, &call(1, "echo")).await.status.as_u16(), 404);
    assert_eq!(world.request(&world.ana, "", &call(1, "echo")).await.status.as_u16(), 404);
    let twice = [("mcp-session-id", &*session), ("mcp-session-id", &*session)];
    let refusal = world.post(&world.ana, &twice, &call(1, "echo")).await.refusal().await;
    insta::assert_snapshot!(refusal, @"400 null -32600 The header mcp-session-id must have one value, of ASCII.");
    let refusal = world.post(&world.ana, &[], &call(1, "echo")).await.refusal().await;
    insta::assert_snapshot!(refusal, @"400 null -32600 The header Mcp-Session-Id is missing. Begin with `initialize`, and send the id that it answers.");
}

#[tokio::test(start_paused = true)]
async fn a_session_that_was_ended_is_gone_and_its_calls_are_cancelled() {
    let (world, session) = Fixture::begun().await;
    let waiting = world.waiting(&session).await;
    let mut stream = world.get(&world.ana, &session).await;
    assert_eq!(world.delete(&world.ana, &session).await.as_u16(), 204);
    assert_eq!(stream.event().await, None);
    assert_eq!(waiting.await.event().await, None);
    assert_eq!(world.delete(&world.ana, &session).await.as_u16(), 404);
    assert_eq!(world.request(&world.ana, &session, &call(2, "echo")).await.status.as_u16(), 404);
    assert_eq!(world.get(&world.ana, &session).await.status.as_u16(), 404);
    assert_eq!(world.request(&world.ana, &session, &cancel(1)).await.status.as_u16(), 404);
    assert_eq!(world.backend.log(), ["began wait", "end of a session of ana", "ended wait cancelled"]);
    assert_eq!(world.server.sessions(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_token_over_its_session_limit_ends_only_its_own_idle_sessions() {
    let world = Fixture::new();
    let (of_bea, in_use) = (world.begin(&world.bea).await, world.begin(&world.ana).await);
    let _stream = world.get(&world.ana, &in_use).await;
    let mut first = None;
    for _ in 0..2_500 {
        tokio::time::advance(Duration::from_millis(1)).await;
        let session = world.begin(&world.ana).await;
        first.get_or_insert(session);
    }
    assert_eq!(world.server.sessions(), 2_001);
    assert_eq!(world.request(&world.bea, &of_bea, &message(1, "ping", json!({}))).await.status.as_u16(), 200);
    assert_eq!(world.request(&world.ana, &in_use, &message(1, "ping", json!({}))).await.status.as_u16(), 200);
    assert_eq!(world.request(&world.ana, &first.unwrap(), &message(1, "ping", json!({}))).await.status.as_u16(), 404);
    let ended = world.backend.log().iter().filter(|line| *line == "end of a session of ana").count();
    assert_eq!(ended, 501, "what was built for a session that made room is taken down");
}

#[tokio::test(start_paused = true)]
async fn a_token_whose_sessions_are_all_in_use_begins_no_other() {
    let world = Fixture::new();
    let mut streams = Vec::new();
    for _ in 0..2_000 {
        let session = world.begin(&world.ana).await;
        streams.push(world.get(&world.ana, &session).await);
    }
    let refusal = world.post(&world.ana, &[], &super::fixture::hello()).await.refusal().await;
    insta::assert_snapshot!(refusal, @"503 0 -32603 There are too many sessions. End one that is not used, or try again later.");
    world.begin(&world.bea).await;
    assert_eq!(world.server.sessions(), 2_001);
}

#[tokio::test(start_paused = true)]
async fn idle_sessions_end_by_themselves_and_all_sessions_with_the_server() {
    let world = Fixture::new();
    let running = tokio::spawn(world.server.clone().run());
    let (idle, listening) = (world.begin(&world.ana).await, world.begin(&world.bea).await);
    let mut stream = world.get(&world.bea, &listening).await;
    tokio::time::sleep(Duration::from_secs(61 * 60)).await;
    assert_eq!(world.server.sessions(), 1);
    assert_eq!(world.request(&world.ana, &idle, &call(1, "echo")).await.status.as_u16(), 404);
    world.closing.cancel();
    running.await.unwrap();
    assert_eq!(stream.event().await, None);
    assert_eq!(world.backend.log(), ["end of a session of ana", "end of a session of bea"]);
}

#[tokio::test(start_paused = true)]
async fn a_session_ends_an_hour_after_its_stream() {
    let world = Fixture::new();
    let running = tokio::spawn(world.server.clone().run());
    let session = world.begin(&world.ana).await;
    let mut stream = world.get(&world.ana, &session).await;
    let listening = tokio::time::timeout(Duration::from_secs(59 * 60), stream.event()).await;
    assert!(listening.is_err());
    drop(stream);
    tokio::time::sleep(Duration::from_secs(59 * 60)).await;
    assert_eq!(world.server.sessions(), 1, "it was in use until its stream ended");
    tokio::time::sleep(Duration::from_secs(2 * 60)).await;
    assert_eq!(world.server.sessions(), 0);
    assert_eq!(world.backend.log(), ["end of a session of ana"]);
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn sessions_of_a_revoked_token_end_soon() {
    let world = Fixture::new();
    let running = tokio::spawn(world.server.clone().run());
    world.begin(&world.ana).await;
    world.begin(&world.bea).await;
    world.ana.revoked.cancel();
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert_eq!(world.backend.log(), ["end of a session of ana"]);
    assert_eq!(world.server.sessions(), 1);
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn a_session_has_a_bounded_number_of_requests_under_way() {
    let (world, session) = Fixture::begun().await;
    let messages: Vec<_> = (0..512).map(|id| call(id, "wait")).collect();
    let mut waiting: Vec<_> =
        messages.iter().map(|message| Box::pin(world.request(&world.ana, &session, message))).collect();
    for request in &mut waiting {
        assert!(futures_util::poll!(request).is_pending());
    }
    let refusal = world.request(&world.ana, &session, &call(600, "echo")).await.refusal().await;
    insta::assert_snapshot!(refusal, @"200 600 -32600 512 requests of this session are under way. Wait until one is answered.");
    let other = world.begin(&world.ana).await;
    assert_eq!(world.request(&world.ana, &other, &call(600, "echo")).await.status.as_u16(), 200);
    world.request(&world.ana, &session, &cancel(7)).await;
    assert_eq!(waiting.remove(7).await.event().await, None);
    let response = world.request(&world.ana, &session, &call(7, "echo")).await.json().await;
    assert_eq!(response["result"]["isError"], false, "{response}");
}
