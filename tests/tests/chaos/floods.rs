//! Servers that send too many unsolicited messages.

use std::time::Instant;

use serde_json::json;

use crate::fixture::Fixture;

/// Part of a processor that the daemon spent while its neighbour served.
async fn share(fixture: &Fixture) -> f64 {
    let (began, before) = (Instant::now(), fixture.processor_seconds());
    fixture.neighbour_serves().await;
    let share = (fixture.processor_seconds() - before) / began.elapsed().as_secs_f64();
    println!("processor: {share:.2}");
    share
}

#[tokio::test]
async fn a_flood_of_standard_error_is_read_and_mostly_left_out() {
    let fixture = Fixture::besieged("stderr").await;
    let shown = fixture.seen("ready", "").await;
    let lines = shown["stderr"].as_array().unwrap();
    assert!(lines.len() <= 50 && !shown.to_string().contains('\u{1b}'), "{shown}");
    assert!(share(&fixture).await < 1.5);
    assert!(fixture.daemon.text().len() < 32 * 1024 * 1024);
    assert_eq!(fixture.strike().await.content(), "done");
    fixture.end().await;
}

#[tokio::test]
async fn a_list_announced_as_changed_again_and_again_is_requested_seldom() {
    let fixture = Fixture::besieged("changes").await;
    fixture.seen("ready", "").await;
    let listed = async || fixture.client.call("many_0", &json!({})).await.content().parse::<f64>().unwrap();
    let (began, before) = (Instant::now(), listed().await);
    fixture.neighbour_serves().await;
    let (times, seconds) = (listed().await - before, began.elapsed().as_secs_f64());
    println!("asked {times} times in {seconds:.1} s");
    // Changes within 200 ms are one.
    assert!(times <= seconds * 5.0 + 1.0, "requested {times} times in {seconds} s");
    fixture.end().await;
}

#[tokio::test]
async fn a_flood_of_progress_reaches_no_caller_that_did_not_request_it() {
    let fixture = Fixture::besieged("reports").await;
    fixture.seen("ready", "").await;
    let reply = fixture.strike_beside_neighbour(json!({})).await;
    assert_eq!(reply.content(), "done");
    let reports = fixture.client.received().into_iter().filter(|message| message.kind().contains("rogress")).count();
    assert_eq!(reports, 0);
    fixture.end().await;
}

#[tokio::test]
async fn unsolicited_messages_of_a_server_delay_no_other_call() {
    // Notifications, also of a megabyte, which are dropped as they come; and requests for models and people, of which
    // the server gets neither.
    for siege in ["notices", "blasts", "asks"] {
        let fixture = Fixture::besieged(siege).await;
        fixture.seen("ready", "").await;
        let share = share(&fixture).await;
        assert!(share < 1.5, "{siege}: {share}");
        assert_eq!(fixture.strike().await.content(), "done", "{siege}");
        fixture.end().await;
    }
}

#[tokio::test]
async fn a_server_that_sends_requests_and_reads_no_response_delays_no_other_call() {
    let fixture = Fixture::besieged_with("deaf", "-", "tool_timeout = \"2s\"").await;
    fixture.seen("ready", "").await;
    let reply = fixture.strike_beside_neighbour(json!({})).await;
    assert_eq!(reply.code(), "timeout", "{:?}", reply.body());
    fixture.end().await;
}
