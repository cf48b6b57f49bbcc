use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, duplex};
use tokio::sync::watch;
use toolbus_testing::mutation::check_inputs;

use super::*;
use crate::process::Exit;
use toolbus_core::results::ResultBudget;

/// The server's side of a transport.
pub(crate) struct Server {
    pub(crate) output: DuplexStream,
    pub(crate) input: BufReader<DuplexStream>,
    pub(crate) closing: CancellationToken,
    /// Dropped, or sent the exit.
    exit: watch::Sender<Option<Exit>>,
}

pub(crate) fn connect() -> (StdioTransport, Server) {
    connect_with(None)
}

fn connect_with(results: Option<ResultBudget>) -> (StdioTransport, Server) {
    let (from, output) = duplex(8 * 1024);
    let (to, input) = duplex(8 * 1024);
    let (exit, exited) = watch::channel(None);
    let closing = CancellationToken::new();
    let transport = StdioTransport::new(
        from,
        to,
        closing.clone(),
        Exited::new(exited),
        LargeMessages { results, ..LargeMessages::default() },
        Clock::SYSTEM,
    );
    (transport, Server { output, input: BufReader::new(input), closing, exit })
}

fn message(value: serde_json::Value) -> ClientJsonRpcMessage {
    serde_json::from_value(value).unwrap()
}

fn ping(id: usize) -> ClientJsonRpcMessage {
    message(json!({ "jsonrpc": "2.0", "id": id, "method": "ping" }))
}

async fn received(transport: &mut StdioTransport) -> String {
    serde_json::to_string(&transport.receive().await.unwrap()).unwrap()
}

async fn failure(transport: &mut StdioTransport) -> String {
    assert!(transport.receive().await.is_none());
    transport.failure().get().unwrap().to_owned()
}

#[tokio::test]
async fn messages_are_lines_of_json() {
    let (mut transport, mut server) = connect();
    transport.send(ping(1)).await.unwrap();
    let text = message(json!({
        "jsonrpc": "2.0", "id": "a", "method": "tools/call", "params": { "name": "say", "arguments": { "text": "ü\n\"" } },
    }));
    transport.send(text).await.unwrap();
    let mut lines = String::new();
    server.input.read_line(&mut lines).await.unwrap();
    server.input.read_line(&mut lines).await.unwrap();
    insta::assert_snapshot!(lines, @r#"
{"jsonrpc":"2.0","id":1,"method":"ping"}
{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"arguments":{"text":"ü\n\""},"name":"say"}}
"#);

    server.output.write_all(b" {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}} \r\n").await.unwrap();
    insta::assert_snapshot!(received(&mut transport).await, @r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
    let error = b"\n{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"error\":{\"code\":-32603,\"message\":\"no\"}}\n";
    server.output.write_all(error).await.unwrap();
    insta::assert_snapshot!(received(&mut transport).await, @r#"{"jsonrpc":"2.0","id":"a","error":{"code":-32603,"message":"no"}}"#);
    let changed = b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n";
    server.output.write_all(changed).await.unwrap();
    insta::assert_snapshot!(received(&mut transport).await, @r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#);
    let ping = b"{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"ping\"}\n";
    server.output.write_all(ping).await.unwrap();
    insta::assert_snapshot!(received(&mut transport).await, @r#"{"jsonrpc":"2.0","id":9,"method":"ping"}"#);
}

#[tokio::test]
async fn a_message_in_pieces_survives_cancelled_receives() {
    let (mut transport, mut server) = connect();
    for piece in [&b"{\"jsonrpc\":\"2.0\","[..], b"\"id\":1,\"res", b"ult\":{}}"] {
        server.output.write_all(piece).await.unwrap();
        let mut receiving = pin!(transport.receive());
        assert!(poll_fn(|context| Poll::Ready(receiving.as_mut().poll(context).is_pending())).await);
    }
    server.output.write_all(b"\n").await.unwrap();
    assert!(transport.receive().await.is_some());
}

#[tokio::test]
async fn a_sender_that_gives_up_leaves_no_part_of_a_message_behind() {
    let (mut transport, mut server) = connect();
    let large = || {
        let arguments = json!({ "text": "x".repeat(100_000) });
        message(json!({
            "jsonrpc": "2.0", "id": 0, "method": "tools/call", "params": { "name": "say", "arguments": arguments },
        }))
    };
    let mut given_up = 0;
    while given_up < 10 {
        let mut sending = pin!(transport.send(large()));
        if poll_fn(|context| Poll::Ready(sending.as_mut().poll(context).is_pending())).await {
            given_up += 1;
        }
    }
    tokio::spawn(transport.send(ping(1)));
    let mut lines = 0;
    let last = loop {
        let mut line = String::new();
        server.input.read_line(&mut line).await.unwrap();
        let message = serde_json::from_str::<serde_json::Value>(&line).unwrap();
        if message["method"] == "ping" {
            break line;
        }
        lines += 1;
    };
    assert_eq!(lines, OUTGOING);
    insta::assert_snapshot!(last, @r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#);
}

#[tokio::test]
async fn a_line_of_the_limit_is_read_and_a_longer_one_ends_the_connection() {
    for (extra, is_read) in [(0, true), (1, false)] {
        let (mut transport, mut server) = connect();
        let (start, end) = (r#"{"jsonrpc":"2.0","id":1,"result":{"x":""#, "\"}}\n");
        let text = "x".repeat(MAX_MESSAGE - start.len() - end.len() + extra);
        let line = format!("{start}{text}{end}");
        let writing = tokio::spawn(async move { server.output.write_all(line.as_bytes()).await });
        let message = transport.receive().await;
        assert_eq!(message.is_some(), is_read);
        if !is_read {
            assert_eq!(transport.failure().get(), Some("the server wrote a line over 16 MiB"));
        }
        drop((message, transport));
        let _ = writing.await.unwrap();
    }
}

#[tokio::test]
async fn a_line_over_the_limit_is_read_where_results_have_room_and_waits_for_it() {
    let budget = ResultBudget::new(32 << 20, 32 << 20);
    let (mut transport, mut server) = connect_with(Some(budget.clone()));
    let others = budget.reserve().await;
    let text = "x".repeat(MAX_MESSAGE);
    let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{{\"x\":\"{text}\"}}}}\n");
    let writing = tokio::spawn(async move {
        server.output.write_all(line.as_bytes()).await.unwrap();
        server
    });
    let mut receiving = pin!(transport.receive());
    assert!(poll_fn(|context| Poll::Ready(receiving.as_mut().poll(context).is_pending())).await);
    drop(others);
    assert!(receiving.await.is_some());
    drop(writing.await.unwrap());
    toolbus_testing::patience::eventually("all room to be free", async || budget.room().take("t", 32 << 20).ok()).await;
}

#[tokio::test]
async fn a_message_among_lines_that_are_none_starts_the_count_again() {
    let (mut transport, mut server) = connect();
    let skipped = "no message\n".repeat(MAX_SKIPPED as usize - 1);
    let message = "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n";
    let text = format!("{skipped}{message}{skipped}{message}{skipped}one more\nand more\n");
    tokio::spawn(async move { server.output.write_all(text.as_bytes()).await });
    assert!(transport.receive().await.is_some());
    assert!(transport.receive().await.is_some());
    assert_eq!(failure(&mut transport).await, "the server wrote 1000 lines in a row that are no MCP messages");
}

#[tokio::test]
async fn the_server_waits_while_its_messages_are_not_received() {
    let (mut transport, mut server) = connect();
    let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{{\"x\":\"{}\"}}}}\n", "x".repeat(3 * 1024 * 1024));
    let sent = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let writing = tokio::spawn(async move {
        while server.output.write_all(line.as_bytes()).await.is_ok() {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    });
    // Five such lines fit into the limit of the queue, one is held, and one may be on its way.
    toolbus_testing::patience::eventually("the queue to be full", async || {
        (sent.load(std::sync::atomic::Ordering::Relaxed) >= 6).then_some(())
    })
    .await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(sent.load(std::sync::atomic::Ordering::Relaxed) <= 7);
    assert!(transport.receive().await.is_some());
    drop(transport);
    writing.abort();
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_output_is_explained_by_the_end_of_the_server() {
    for (exit, expected) in [
        (Some(Exit::Code(3)), "the server ended with exit code 3 in the middle of a message"),
        (None, "the server closed its standard output in the middle of a message"),
    ] {
        let (mut transport, mut server) = connect();
        server.output.write_all(b"{\"jsonrpc\"").await.unwrap();
        if exit.is_some() {
            server.exit.send_replace(exit);
        }
        drop(server.output);
        assert_eq!(failure(&mut transport).await, expected);
        assert!(server.closing.is_cancelled());
    }
}

#[tokio::test(start_paused = true)]
async fn closing_flushes_the_queue_but_does_not_wait_for_a_server_that_does_not_read() {
    let (mut transport, server) = connect();
    for id in 0..40 {
        let text = "x".repeat(1000);
        let arguments = json!({ "text": text });
        let call = json!({
            "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "name": "say", "arguments": arguments },
        });
        transport.send(message(call)).await.unwrap();
    }
    let started = tokio::time::Instant::now();
    transport.close().await.unwrap();
    assert_eq!(started.elapsed().as_millis() / 10 * 10, FLUSH.as_millis());
    drop(server);
}

#[tokio::test]
async fn long_notifications_are_dropped_and_responses_between_them_read() {
    let (mut transport, server) = connect();
    let notice = format!(
        "{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{{\"data\":\"{}\"}}}}\n",
        "x".repeat(1024 * 1024)
    );
    let response =
        |id: usize, text: &str| format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"text\":\"{text}\"}}}}\n");
    let long = "y".repeat(100_000);
    let texts = [notice.clone(), response(1, "short"), notice.clone(), notice, response(2, &long)].concat();
    let mut output = server.output;
    let written = tokio::spawn(async move { output.write_all(texts.as_bytes()).await.unwrap() });
    assert!(received(&mut transport).await.contains("short"));
    assert!(received(&mut transport).await.contains(&long));
    written.await.unwrap();
}

const MESSAGES: &[&[u8]] = &[
    b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"a\"}],\"isError\":false}}\r\n\
      log\n",
    b"{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"error\":{\"code\":-32601,\"message\":\"no\",\"data\":{\"a\":[1]}}}\n\n",
    b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":7,\"progress\":0.5}}\n",
    b"{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"ping\"}\n\
      {\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"roots/list\",\"params\":{}}\n",
    b"{\"jsonrpc\":\"2.0\",\"id\":4,\"result\":{\"tools\":[{\"name\":\"x\",\"inputSchema\":{\"type\":\"object\"}}],\
      \"nextCursor\":\"c\"}}\n",
];

#[test]
fn any_bytes_are_messages_that_can_be_read_again_or_short_noise() {
    check_inputs(MESSAGES, 2_000, |bytes| {
        for line in bytes.split(|byte| *byte == b'\n') {
            match parse(line) {
                Ok(Some(message)) => {
                    let written = serde_json::to_vec(&message).unwrap();
                    assert!(matches!(parse(&written), Ok(Some(_))), "{}", String::from_utf8_lossy(&written));
                }
                Err(LineError::Noise(error)) => assert!(shown(&error.to_string()).len() <= 1024, "{error}"),
                Ok(None) | Err(LineError::TooLarge | LineError::Unneeded) => {}
            }
        }
    });
}
