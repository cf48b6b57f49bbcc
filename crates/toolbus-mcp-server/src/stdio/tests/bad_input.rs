//! Input that is no message, or none at this time.

use super::fixture::{Fixture, INITIALIZE, MAX_BODY, call, plain};

#[tokio::test(start_paused = true)]
async fn whatever_is_no_message_is_answered_with_what_is_wrong_and_the_next_one_is_taken() {
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
        let response = world.hear().await;
        table += &format!("{}\n  {response}\n", String::from_utf8_lossy(bad).escape_debug());
        assert!(world.ask(&plain(9, "ping")).await.contains(r#""id":9,"result""#));
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
async fn what_needs_no_answer_gets_none() {
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
        world.say(line).await;
    }
    world.hear_nothing().await;
}

#[tokio::test(start_paused = true)]
async fn a_line_that_is_too_long_is_passed_over() {
    let mut world = Fixture::begun().await;
    let padded = |length: usize| format!("{}{}", plain(1, "ping"), " ".repeat(length - plain(1, "ping").len()));
    assert!(world.ask(&padded(MAX_BODY)).await.contains("result"));
    insta::assert_snapshot!(world.ask(&padded(MAX_BODY + 1)).await, @r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"The message has more than 4096 bytes. Send less."}}"#);
    world.write(&vec![b'x'; 500_000]).await;
    world.say("").await;
    assert!(world.hear().await.contains("-32600"));
    assert!(world.ask(&plain(2, "ping")).await.contains("result"));
}

#[tokio::test(start_paused = true)]
async fn a_client_says_hello_first_and_once() {
    let mut world = Fixture::new();
    assert!(world.ask(&plain(1, "ping")).await.contains("result"), "a client may ask whether anybody is there");
    insta::assert_snapshot!(world.ask(&call(2, "echo")).await, @r#"{"jsonrpc":"2.0","id":2,"error":{"code":-32600,"message":"There is no session. Begin with `initialize`, or say in the request's `_meta` which revision it is written in."}}"#);
    insta::assert_snapshot!(world.ask(&plain(3, "initialize")).await, @r#"{"jsonrpc":"2.0","id":3,"error":{"code":-32602,"message":"The parameters are not what the method takes: missing field `protocolVersion` at line 1 column 2."}}"#);
    world.ask(INITIALIZE).await;
    insta::assert_snapshot!(world.ask(INITIALIZE).await, @r#"{"jsonrpc":"2.0","id":0,"error":{"code":-32600,"message":"There is a session already, which lasts as long as this connection."}}"#);
    assert!(world.ask(&call(2, "echo")).await.contains("result"));
}
