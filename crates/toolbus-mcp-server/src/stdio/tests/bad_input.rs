//! Input that is no message, or an untimely one.

use super::fixture::{Fixture, INITIALIZE, MAX_BODY, call, plain};

#[tokio::test(start_paused = true)]
async fn an_invalid_message_gets_an_error_and_the_next_one_is_read() {
    let mut world = Fixture::begun().await;
    let mut table = String::new();
    for bad in [
        &b"{"[..],
        b"hello",
        b"7",
        b"[]",
        b"[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}]",
        b"{\"id\":1,\"method\":\"ping\"}",
        b"{\"jsonrpc\":\"2.0\",\"id\":1}",
        b"{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"ping\"}",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"p\xff\"}",
        b"\xff\xfe",
        b"\0",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"} {}",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":7}}",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":[]}",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\"}",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"echo\",\"arguments\":[]}}",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\",\"params\":{\"cursor\":\"none\"}}",
    ] {
        world.write(bad).await;
        world.write(b"\n").await;
        let response = world.receive().await;
        table += &format!("{}\n  {response}\n", String::from_utf8_lossy(bad).escape_debug());
        assert!(world.request(&plain(9, "ping")).await.contains(r#""id":9,"result""#));
    }
    insta::assert_snapshot!(table, @r#"
    {
      {"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"The message is no JSON: EOF while parsing an object at line 1 column 1."}}
    hello
      {"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"The message is no JSON: expected value at line 1 column 1."}}
    7
      {"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"The message is no JSON-RPC message: invalid type: integer `7`, expected an object at line 1 column 1."}}
    []
      {"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Batches are not taken: send one message at a time."}}
    [{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}]
      {"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Batches are not taken: send one message at a time."}}
    {\"id\":1,\"method\":\"ping\"}
      {"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"The message has no member `jsonrpc` with the value \"2.0\"."}}
    {\"jsonrpc\":\"2.0\",\"id\":1}
      {"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"The message has no member `method`."}}
    {\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"ping\"}
      {"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"The id of a request is a string or a whole number, of at most 256 bytes."}}
    {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"p�\"}
      {"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"The message is no JSON: invalid unicode code point at line 1 column 36."}}
    ��
      {"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"The message is no JSON: expected value at line 1 column 1."}}
    \0
      {"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"The message is no JSON: expected value at line 1 column 1."}}
    {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"} {}
      {"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"The message is no JSON: trailing characters at line 1 column 42."}}
    {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":7}}
      {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"The parameters are not what the method takes: invalid type: integer `7`, expected a string at line 1 column 9."}}
    {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":[]}
      {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"The parameters are no JSON object."}}
    {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\"}
      {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"The parameter `name` is missing."}}
    {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"echo\",\"arguments\":[]}}
      {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"The arguments are no JSON object."}}
    {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\",\"params\":{\"cursor\":\"none\"}}
      {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"The cursor is none of ours. Begin the list anew, without one."}}
    "#);
}

#[tokio::test(start_paused = true)]
async fn responses_and_notifications_get_no_response() {
    let mut world = Fixture::begun().await;
    for line in [
        "",
        "  \t\r",
        r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":""}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/none"}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":{}}}"#,
        r#"{"jsonrpc":"2.0","method":"tools/call","params":{"name":"echo"}}"#,
    ] {
        world.send(line).await;
    }
    world.receive_nothing().await;
}

#[tokio::test(start_paused = true)]
async fn a_line_that_is_too_long_is_passed_over() {
    let mut world = Fixture::begun().await;
    let padded = |length: usize| format!("{}{}", plain(1, "ping"), " ".repeat(length - plain(1, "ping").len()));
    assert!(world.request(&padded(MAX_BODY)).await.contains("result"));
    insta::assert_snapshot!(world.request(&padded(MAX_BODY + 1)).await, @r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"The message has more than 4096 bytes. Send less."}}"#);
    world.write(&vec![b'x'; 500_000]).await;
    world.send("").await;
    assert!(world.receive().await.contains("-32600"));
    assert!(world.request(&plain(2, "ping")).await.contains("result"));
}

#[tokio::test(start_paused = true)]
async fn a_client_initializes_first_and_once() {
    let mut world = Fixture::new();
    assert!(world.request(&plain(1, "ping")).await.contains("result"), "ping needs no session");
    insta::assert_snapshot!(world.request(&call(2, "echo")).await, @r#"{"jsonrpc":"2.0","id":2,"error":{"code":-32600,"message":"There is no session. Begin with `initialize`, or say in the request's `_meta` which revision it is written in."}}"#);
    insta::assert_snapshot!(world.request(&plain(3, "initialize")).await, @r#"{"jsonrpc":"2.0","id":3,"error":{"code":-32602,"message":"The parameters are not what the method takes: missing field `protocolVersion` at line 1 column 2."}}"#);
    world.request(INITIALIZE).await;
    insta::assert_snapshot!(world.request(INITIALIZE).await, @r#"{"jsonrpc":"2.0","id":0,"error":{"code":-32600,"message":"There is a session already, which lasts as long as this connection."}}"#);
    assert!(world.request(&call(2, "echo")).await.contains("result"));
}
