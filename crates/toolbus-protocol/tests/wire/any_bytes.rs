//! Requests and envelopes of any bytes.

use serde::Serialize;
use toolbus_protocol::{
    Envelope, ParseError, Ping, Properties, ScriptInvokeRequest, SessionEnd, ToolCancelRequest, ToolInvokeRequest,
    ToolListRequest, parse_object,
};
use toolbus_testing::mutation::check_inputs;

/// Longest text about an error, in bytes.
const MAX_ERROR: usize = 1024;
const INPUTS: u32 = 3_000;

const REQUESTS: &[&[u8]] = &[
    br#"{"toolCallId":"call_0","toolName":"get_weather","arguments":{"city":"Lima"},"sessionId":"s","batchId":"b"}"#,
    br#"{"toolName":"echo","arguments":"{\"text\":\"\\u00e9\\ud83d\\ude00\"}"}"#,
    br#"{"format":"openai","names":["echo","files.list"],"ifVersion":"v1","profile":"subagent","binding":"a:b"}"#,
    br#"{"toolCallId":"call_0","reason":"the user left"}"#,
    br#"{"script":"print(1)","timeoutSeconds":3.5,"arguments":{"a":[1,2,{"b":null}]},"sessionId":"s"}"#,
    br#"{"sessionId":"s","echo":"x","n":-1.5e300}"#,
];
const ENVELOPES: &[&[u8]] = &[
    b"id\nRockBot.Tools.ToolInvokeRequest\nc\nq\n1\nrb-source\nana\nrb-timeout-ms\n100\ntraceparent\n\
      00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\ntracestate\na=1",
    b"id\n\nc\n\n0\nrb-rb-source\nana\nrb-rb-x\n1\nrb-rb-rb-x\n2\nrb-x\n3\nx\n4\nrb-\n5",
];

/// Checks that what is written is the same when it is read and written again, and that an error is short.
fn is_read_again<T: Serialize>(bytes: &[u8], parse: fn(&[u8]) -> Result<T, ParseError>) {
    match parse(bytes) {
        Err(error) => assert!(error.to_string().len() <= MAX_ERROR, "{error}"),
        Ok(read) => {
            let written = serde_json::to_string(&read).unwrap();
            let again = parse(written.as_bytes()).map(|again| serde_json::to_string(&again).unwrap());
            assert_eq!(again, Ok(written));
        }
    }
}

#[test]
fn any_bytes_are_a_request_that_survives_the_way_or_a_short_error() {
    check_inputs(REQUESTS, INPUTS, |bytes| {
        is_read_again(bytes, ToolInvokeRequest::parse);
        is_read_again(bytes, ToolListRequest::parse);
        is_read_again(bytes, ToolCancelRequest::parse);
        is_read_again(bytes, ScriptInvokeRequest::parse);
        is_read_again(bytes, SessionEnd::parse);
        is_read_again(bytes, Ping::parse);
        drop(parse_object(bytes));
    });
}

/// Lines are properties, then names and values of headers.
#[test]
fn any_bytes_as_properties_are_an_envelope_with_each_header_once() {
    check_inputs(ENVELOPES, INPUTS, |bytes| {
        let text = String::from_utf8_lossy(bytes);
        let mut lines = text.split('\n').map(str::to_owned);
        let mut next = || lines.next();
        let properties = Properties {
            message_id: next(),
            message_type: next(),
            correlation_id: next(),
            reply_to: next(),
            timestamp: next().and_then(|text| text.parse().ok()),
            headers: std::iter::from_fn(|| Some((next()?, next()?))).collect(),
            ..Properties::default()
        };
        let given = properties.headers.len();
        let read = Envelope::read(&properties);
        assert!(read.headers.len() <= given, "a header that was not there");
        for (name, value) in &read.headers {
            assert_eq!(read.header(name), Some(value.as_str()), "{name} is there twice");
        }
        let again = Envelope::read(&read.into_properties());
        assert_eq!(Envelope::read(&again.clone().into_properties()), again);
    });
}
