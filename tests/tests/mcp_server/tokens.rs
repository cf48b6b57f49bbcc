//! Tokens: wrong ones delay no call, changed ones count at once, and none is written anywhere.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::http::{Connection, hello};
use toolbus_testing::patience::{PATIENCE, eventually};

/// The token of ana.
pub(crate) const ANA: &str = "Authorization: Bearer s3cret-token-of-ana";
/// An MCP server for ana. Lines of `[http]` may follow.
pub(crate) const RULES: &str =
    "[audit]\nfile = \"audit.jsonl\"\n[tools]\necho = true\n[http]\ntokens = { ana = \"s3cret-token-of-ana\" }\n";
/// Time for which a wrong token waits for its response.
const PENALTY: Duration = Duration::from_secs(2);

fn audited(daemon: &Daemon) -> Vec<Value> {
    let text = std::fs::read_to_string(daemon.folder().join("audit.jsonl")).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
    let records = whole.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    records.filter(|record| record["event"] == "refused_entry").collect()
}

#[tokio::test]
async fn a_flood_of_wrong_tokens_delays_no_call_with_a_right_one() {
    let daemon = Daemon::alone(RULES).await;
    let mut known = Connection::open(daemon.listen()).await;
    let began = known.post(&[ANA], &hello()).await;
    let session = format!("Mcp-Session-Id: {}", began.header("mcp-session-id").unwrap());
    let flood: Vec<_> = (0..1000)
        .map(|number| {
            let listen = daemon.listen().to_owned();
            tokio::spawn(async move {
                let wrong = format!("Authorization: Bearer wrong-token-{number}");
                Connection::open(&listen).await.post(&[&wrong], &hello()).await.code
            })
        })
        .collect();
    let mut times = Vec::new();
    for id in 2..52 {
        let params = json!({"name": "echo", "arguments": {"text": "x"}});
        let call = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        let started = Instant::now();
        let response = known.post(&[ANA, &session], &call).await;
        assert_eq!(response.json()["result"]["content"][0]["text"], "x");
        times.push(started.elapsed());
        // And new connections. One that sends no request in time may have to make room, as those of the flood.
        eventually("an entry", async || {
            (Connection::open(daemon.listen()).await.post(&[ANA], &hello()).await.code == 200).then_some(())
        })
        .await;
    }
    // A penalty would be on each of them; one may be slow where a thousand connections are opened at once.
    times.sort();
    assert!(times[times.len() / 2] < PENALTY, "{times:?}");
    let mut refused = 0;
    for outcome in flood {
        match outcome.await.unwrap() {
            401 | 429 => refused += 1,
            0 => {}
            other => panic!("{other}"),
        }
    }
    assert!(refused > 100, "{refused}");
    let records = eventually("the records", async || {
        let records = audited(&daemon);
        let counted: u64 = records.iter().map(|record| record["left_out"].as_u64().unwrap_or(1)).sum();
        (counted >= refused).then_some(records)
    })
    .await;
    assert!(records.len() < 20 && records[0]["remote"] == "127.0.0.1", "{records:?}");
    let lines = daemon.logged("MCP server: a wrong token was given").len();
    assert!((1..5).contains(&lines), "{lines} lines");
    let written = daemon.text() + &std::fs::read_to_string(daemon.folder().join("audit.jsonl")).unwrap();
    assert!(!written.contains("wrong-token-") && !written.contains("s3cret"), "a token was written");
    daemon.end().await;
}

#[tokio::test]
async fn a_token_that_is_taken_away_counts_no_more_for_sessions_and_streams_either() {
    let daemon = Daemon::alone(RULES).await;
    let mut connection = Connection::open(daemon.listen()).await;
    let session = connection.post(&[ANA], &hello()).await.header("mcp-session-id").unwrap().to_owned();
    let mut stream = Connection::open(daemon.listen()).await;
    let head = format!("{ANA}\r\nMcp-Session-Id: {session}\r\nAccept: text/event-stream");
    stream.write(&format!("GET /mcp HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n")).await;
    let response = stream.response().await;
    assert_eq!((response.code, response.header("content-type")), (200, Some("text/event-stream")));

    // Both count while one replaces the other.
    let both = RULES.replace("\"s3cret-token-of-ana\"", "[\"s3cret-token-of-ana\", \"the-next-token-of-ana\"]");
    daemon.reload(&both).await;
    let next = "Authorization: Bearer the-next-token-of-ana";
    let of_session = format!("Mcp-Session-Id: {session}");
    let ping = json!({"jsonrpc": "2.0", "id": 2, "method": "ping"});
    assert_eq!(connection.post(&[ANA, &of_session], &ping).await.code, 200);
    assert_eq!(connection.post(&[next, &of_session], &ping).await.code, 404, "the session is of the other token");
    assert_eq!(connection.post(&[next], &hello()).await.code, 200);

    daemon.reload(&RULES.replace("s3cret-token-of-ana", "the-next-token-of-ana")).await;
    // The last chunk of the stream, which ends in order.
    let over = tokio::time::timeout(PATIENCE, stream.saw("\r\n0\r\n")).await;
    assert_eq!(over, Ok(true));
    assert_eq!(connection.post(&[ANA, &of_session], &ping).await.code, 401);
    let mut connection = Connection::open(daemon.listen()).await;
    assert_eq!(connection.post(&[next], &hello()).await.code, 200);
    assert!(!daemon.text().contains("the-next-token"), "{}", daemon.text());
    daemon.end().await;
}
