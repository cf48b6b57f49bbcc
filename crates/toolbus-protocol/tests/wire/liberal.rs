//! Requests are read liberally, and what cannot be read is refused in words.

use serde_json::{Value, json};
use toolbus_protocol::{
    Envelope, MAX_DEPTH, ParseError, Properties, ToolCancelRequest, ToolInvokeRequest, header, parse_object,
};

fn parsed(body: &str) -> ToolInvokeRequest {
    ToolInvokeRequest::parse(body.as_bytes()).unwrap_or_else(|error| panic!("{body}: {error}"))
}

fn refusal(body: &[u8]) -> String {
    match ToolInvokeRequest::parse(body) {
        Ok(request) => panic!("{}: read as {request:?}", String::from_utf8_lossy(body)),
        Err(error) => error.to_string(),
    }
}

/// An object in which `depth` objects are nested, itself included.
fn nested(depth: usize) -> String {
    format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth))
}

fn properties(headers: &[(&str, &str)]) -> Properties {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Properties { headers, ..Properties::default() }
}

#[test]
fn field_names_are_read_in_any_case() {
    for body in [
        r#"{"toolCallId":"1","toolName":"t","arguments":"{}","sessionId":"s","batchId":"b"}"#,
        r#"{"ToolCallId":"1","ToolName":"t","Arguments":"{}","SessionId":"s","BatchId":"b"}"#,
        r#"{"TOOLCALLID":"1","toolname":"t","aRGUMENTS":"{}","sessionid":"s","BATCHID":"b"}"#,
        r#"{"\u0074oolCallId":"1","tool\u004eame":"t","arguments":"{}","sessionId":"s","batchId":"b"}"#,
    ] {
        let expected = ToolInvokeRequest {
            tool_call_id: Some("1".to_owned()),
            tool_name: "t".to_owned(),
            arguments: Some("{}".to_owned()),
            session_id: Some("s".to_owned()),
            batch_id: Some("b".to_owned()),
        };
        assert_eq!(parsed(body), expected, "{body}");
    }
}

#[test]
fn unknown_fields_and_white_space_are_ignored() {
    let body = " \r\n\t{ \"extra\" : [1, {\"toolName\": \"not me\"}] , \"toolName\" : \"t\" , \"\" : null } \n";
    assert_eq!(parsed(body), ToolInvokeRequest { tool_name: "t".to_owned(), ..ToolInvokeRequest::default() });
}

#[test]
fn arguments_are_read_as_text_or_as_a_value() {
    for (written, read) in [
        (r#""{\"a\":1}""#, Some(r#"{"a":1}"#)),
        (r#"{"a":1}"#, Some(r#"{"a":1}"#)),
        (r#"{ "a" : 1.50 }"#, Some(r#"{ "a" : 1.50 }"#)),
        ("null", None),
        ("[1]", Some("[1]")),
        ("5", Some("5")),
        ("true", Some("true")),
        (r#""""#, Some("")),
        (r#""not json""#, Some("not json")),
        (r#""null""#, Some("null")),
    ] {
        let request = parsed(&format!(r#"{{"toolName":"t","arguments":{written}}}"#));
        assert_eq!(request.arguments.as_deref(), read, "{written}");
    }
    assert_eq!(parsed(r#"{"toolName":"t"}"#).arguments, None);
}

#[test]
fn absent_null_and_empty_fields_read_alike() {
    let plain = parsed(r#"{"toolName":"t"}"#);
    assert_eq!(parsed(r#"{"toolName":"t","toolCallId":null,"arguments":null,"sessionId":null,"batchId":null}"#), plain);
    assert_eq!(parsed(r#"{"toolName":"t","toolCallId":""}"#), plain);
}

#[test]
fn a_byte_order_mark_before_the_body_is_no_part_of_it() {
    let plain = r#"{"toolName":"t"}"#;
    assert_eq!(parsed(&format!("\u{feff}{plain}")), parsed(plain));
}

#[test]
fn a_request_without_a_tools_name_is_refused() {
    for body in [
        "{}",
        r#"{"toolName":null}"#,
        r#"{"toolName":""}"#,
        r#"{"tool_name":"t"}"#,
        r#"{"arguments":{"toolName":"t"}}"#,
    ] {
        assert_eq!(ToolInvokeRequest::parse(body.as_bytes()), Err(ParseError::Missing("toolName")), "{body}");
    }
}

#[test]
fn a_body_that_is_not_a_request_is_refused_in_words() {
    let table: [(&[u8], &str); 23] = [
        (b"", "EOF while parsing a value at line 1 column 0"),
        (b"   ", "EOF while parsing a value at line 1 column 3"),
        (b"{", "EOF while parsing an object at line 1 column 1"),
        (b"hello", "expected value at line 1 column 1"),
        (b"{\"toolName\":\"t\"} x", "trailing characters at line 1 column 18"),
        (b"{\"toolName\":\"t\"}{}", "trailing characters at line 1 column 17"),
        (b"{\"toolName\":\"t\",}", "trailing comma at line 1 column 17"),
        (b"{'toolName':'t'}", "key must be a string at line 1 column 2"),
        (b"{\"toolName\":\"\xff\"}", "not UTF-8: invalid byte at offset 13"),
        (b"{\"toolName\":\"\xed\xa0\x80\"}", "not UTF-8: invalid byte at offset 13"),
        (b"\xff", "not UTF-8: invalid byte at offset 0"),
        (b"\x1f\x8b\x08\x00", "compressed with gzip: send the JSON itself"),
        (b"{\"toolName\":\"\xe2\x82", "not UTF-8: invalid byte at offset 13"),
        (b"[]", "expected a JSON object, found an array"),
        (b" \n[{\"toolName\":\"t\"}]", "expected a JSON object, found an array"),
        (b"null", "expected a JSON object, found null"),
        (b"true", "expected a JSON object, found a boolean"),
        (b"-5", "expected a JSON object, found a number"),
        (b"\"hunter2\"", "expected a JSON object, found a string"),
        (b"{\"toolName\":\"a\",\"ToolName\":\"b\"}", "duplicate member `ToolName` at line 1 column 26"),
        (b"{\"toolName\":5}", "invalid type: integer `5`, expected a string at line 1 column 13"),
        (b"{\"toolName\":\"\\ud800\"}", "unexpected end of hex escape at line 1 column 20"),
        (
            b"{\"toolName\":\"a\nb\"}",
            "control character (\\u0000-\\u001F) found while parsing a string at line 2 column 0",
        ),
    ];
    for (body, expected) in table {
        assert_eq!(refusal(body), expected, "{}", String::from_utf8_lossy(body));
    }
}

#[test]
fn a_refusal_never_repeats_values() {
    let secret = "hunter2".repeat(1000);
    for body in [
        format!("\"{secret}\""),
        format!(r#"{{"toolName":{{"{secret}":"{secret}"}}}}"#),
        format!(r#"{{"toolName":["{secret}"]}}"#),
        format!(r#"{{"toolName":"{secret}" "{secret}"}}"#),
        format!(r#"{{"toolName":1{secret}}}"#),
    ] {
        let text = refusal(body.as_bytes());
        assert!(!text.contains("hunter2") && text.len() < 200, "{text}");
    }
}

#[test]
fn a_duplicate_field_is_refused_at_every_level() {
    for (body, name) in [
        (r#"{"toolName":"a","toolName":"b"}"#, "toolName"),
        (r#"{"toolName":"a","ToolName":"a"}"#, "ToolName"),
        (r#"{"toolName":"a","tool\u004eame":"b"}"#, "toolName"),
        (r#"{"toolName":"a","arguments":null,"Arguments":"{}"}"#, "Arguments"),
        (r#"{"extra":1,"toolName":"a","extra":1}"#, "extra"),
    ] {
        assert!(refusal(body.as_bytes()).starts_with(&format!("duplicate member `{name}` at line 1")), "{body}");
    }
    for (arguments, name) in [
        (r#"{"a":1,"a":1}"#, "a"),
        (r#"{"a":1,"\u0061":2}"#, "a"),
        (r#"{"a":{"b":1,"b":2}}"#, "b"),
        (r#"{"a":[{"b":[{"c":1,"c":2}]}]}"#, "c"),
    ] {
        let error = parse_object(arguments.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with(&format!("duplicate member `{name}` at line 1")), "{arguments}: {error}");
    }
    assert!(parse_object(br#"{"a":1,"A":2,"b":{"a":3}}"#).is_ok(), "arguments are case-sensitive");
}

#[test]
fn a_long_or_strange_name_is_shown_short_and_escaped() {
    let name = "x".repeat(10_000);
    let error = parse_object(format!(r#"{{"{name}":1,"{name}":2}}"#).as_bytes()).unwrap_err().to_string();
    assert!(error.len() < 200 && error.contains("xxx…`"), "{error}");
    let error = parse_object(br#"{"\n\u001b":1,"\n\u001b":2}"#).unwrap_err().to_string();
    assert!(error.starts_with(r"duplicate member `\n\u{1b}`"), "{error}");
}

#[test]
fn nesting_is_read_down_to_the_limit_and_no_deeper() {
    assert!(parse_object(nested(MAX_DEPTH).as_bytes()).is_ok());
    let offset = MAX_DEPTH * "{\"a\":".len();
    assert_eq!(parse_object(nested(MAX_DEPTH + 1).as_bytes()), Err(ParseError::TooDeep { offset }));
    assert_eq!(parse_object("[".repeat(1_000_000).as_bytes()), Err(ParseError::TooDeep { offset: MAX_DEPTH }));

    let body = |depth| format!(r#"{{"toolName":"t","arguments":{}}}"#, nested(depth));
    assert!(ToolInvokeRequest::parse(body(MAX_DEPTH - 1).as_bytes()).is_ok());
    assert!(refusal(body(MAX_DEPTH).as_bytes()).starts_with("nested deeper than 64 levels at offset "));
    let unknown = format!(r#"{{"toolName":"t","extra":{}}}"#, "[".repeat(100));
    assert!(refusal(unknown.as_bytes()).starts_with("nested deeper than 64 levels"));
    let endless = format!(r#"{{"toolName":"t","arguments":{}"#, "[".repeat(1_000_000));
    assert_eq!(refusal(endless.as_bytes()), "nested deeper than 64 levels at offset 91");
}

#[test]
fn brackets_inside_text_are_not_nesting() {
    let text = r#"[{\"\\"#.repeat(100);
    let object = parse_object(format!(r#"{{"a":"{text}"}}"#).as_bytes()).unwrap();
    assert_eq!(object["a"].as_str().unwrap().len(), 400);
}

#[test]
fn arguments_are_read_as_values_without_surprises() {
    for (text, expected) in [
        ("{}", json!({})),
        (r#"{"a":18446744073709551615,"b":-9223372036854775808}"#, json!({"a": u64::MAX, "b": i64::MIN})),
        (r#"{"a":1.5,"b":-0.0,"c":1e3,"d":0.1}"#, json!({"a": 1.5, "b": -0.0, "c": 1000.0, "d": 0.1})),
        (r#"{"a":"\ud83d\ude00\u0000"}"#, json!({"a": "😀\0"})),
        (r#"{"a":[null,true,[],{}]}"#, json!({"a": [null, true, [], {}]})),
        (r#"{"$serde_json::private::RawValue":"[1]"}"#, json!({"$serde_json::private::RawValue": "[1]"})),
        (r#"{"$serde_json::private::Number":"1"}"#, json!({"$serde_json::private::Number": "1"})),
        (" {\"\":\"ü\"} ", json!({"": "ü"})),
    ] {
        let object = parse_object(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"));
        let expected = expected.as_object().unwrap();
        assert_eq!(object.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{text}");
        assert!(object.values().eq(expected.values()), "{text}: {object:?}");
    }
}

#[test]
fn arguments_that_are_no_object_are_refused_in_words() {
    for (text, expected) in [
        ("", "EOF while parsing a value at line 1 column 0"),
        ("[]", "expected a JSON object, found an array"),
        ("null", "expected a JSON object, found null"),
        (r#""{}""#, "expected a JSON object, found a string"),
        ("0", "expected a JSON object, found a number"),
        ("false", "expected a JSON object, found a boolean"),
        ("{} {}", "trailing characters at line 1 column 4"),
        ("{\"a\":1e999}", "number out of range at line 1 column 10"),
        ("{\"a\":NaN}", "expected value at line 1 column 6"),
        ("{\"a\":01}", "invalid number at line 1 column 7"),
        (r#"{"a":"\ud800"}"#, "unexpected end of hex escape at line 1 column 13"),
        (r#"{"a":"\udc00x"}"#, "lone leading surrogate in hex escape at line 1 column 12"),
        ("{\"a\":1 /* no */}", "expected `,` or `}` at line 1 column 8"),
    ] {
        assert_eq!(parse_object(text.as_bytes()).unwrap_err().to_string(), expected, "{text}");
    }
}

#[test]
fn an_unusable_text_in_arguments_is_left_for_the_check_of_arguments() {
    let request = parsed(r#"{"toolName":"t","arguments":"\ud800"}"#);
    assert!(parse_object(request.arguments.unwrap().as_bytes()).is_err());
}

#[test]
fn headers_are_read_in_both_spellings_and_the_doubled_one_first() {
    for (headers, expected) in [
        (&[("rb-timeout-ms", "1")][..], Some("1")),
        (&[("rb-rb-timeout-ms", "2")], Some("2")),
        (&[("rb-timeout-ms", "1"), ("rb-rb-timeout-ms", "2")], Some("2")),
        (&[("rb-rb-timeout-ms", "2"), ("rb-timeout-ms", "1")], Some("2")),
        (&[("timeout-ms", "3"), ("RB-TIMEOUT-MS", "4"), ("x-death", "5")], None),
        (&[], None),
    ] {
        let properties = properties(headers);
        assert_eq!(Envelope::read(&properties).header(header::TIMEOUT_MS), expected, "{headers:?}");
    }
}

#[test]
fn the_senders_name_is_read_in_single_spelling_only() {
    let envelope =
        Envelope::read(&properties(&[("rb-rb-source", "other"), ("rb-source", "ana"), ("rb-destination", "b")]));
    assert_eq!(envelope.source.as_deref(), Some("ana"));
    assert_eq!(envelope.destination.as_deref(), Some("b"));
    assert_eq!(Envelope::read(&properties(&[("rb-rb-source", "other")])).source, None);
}

#[test]
fn a_trace_is_read_from_a_peer_first_and_from_a_plain_client_otherwise() {
    let peer = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let plain = "00-1bf7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
    for (headers, expected) in [
        (&[("traceparent", plain), ("rb-traceparent", peer)][..], Some(peer)),
        (&[("traceparent", plain)], Some(plain)),
        (&[("rb-traceparent", peer)], Some(peer)),
        (&[("rb-traceparent", "garbage")], None),
        (&[("rb-rb-traceparent", peer)], None),
    ] {
        let envelope = Envelope::read(&properties(headers));
        assert_eq!(envelope.trace.as_ref().map(|trace| trace.traceparent()), expected, "{headers:?}");
        assert!(envelope.trace.is_none() || envelope.headers.is_empty(), "trace headers are not repeated");
    }
    let envelope = Envelope::read(&properties(&[("traceparent", plain), ("tracestate", "v=1")]));
    assert_eq!(envelope.trace.unwrap().tracestate(), Some("v=1"));
}

#[test]
fn a_plain_client_needs_no_property_at_all() {
    assert_eq!(Envelope::read(&Properties::default()), Envelope::default());
    let empty = Properties {
        message_id: Some(String::new()),
        message_type: Some(String::new()),
        correlation_id: Some(String::new()),
        reply_to: Some(String::new()),
        timestamp: Some(0),
        ..Properties::default()
    };
    assert_eq!(Envelope::read(&empty), Envelope::default());
}

#[test]
fn a_flood_of_headers_is_not_kept() {
    let headers: Vec<_> = (0..5000).map(|n| (format!("rb-{n}"), "x".to_owned())).collect();
    let envelope = Envelope::read(&Properties { headers, ..Properties::default() });
    assert!(envelope.headers.len() <= 64, "{}", envelope.headers.len());
}

#[test]
fn profile_and_binding_are_read_behind_any_number_of_headers() {
    for doubled in ["", "rb-"] {
        let mut headers: Vec<_> = (0..5000).map(|n| (format!("rb-{n}"), "x".to_owned())).collect();
        headers.push((format!("{doubled}rb-tool-profile"), "subagent".to_owned()));
        headers.push((format!("{doubled}rb-binding"), "whatsapp:sales".to_owned()));
        let envelope = Envelope::read(&Properties { headers, ..Properties::default() });
        assert_eq!(envelope.header("rb-tool-profile"), Some("subagent"));
        assert_eq!(envelope.header("rb-binding"), Some("whatsapp:sales"));
        assert!(envelope.headers.len() <= 66, "{}", envelope.headers.len());
    }
}

#[test]
fn a_cancel_request_is_read_as_liberally() {
    let cancelled = |body: &str| ToolCancelRequest::parse(body.as_bytes());
    let expected = ToolCancelRequest { tool_call_id: "c".to_owned() };
    assert_eq!(cancelled(r#"{"ToolCallId":"c","reason":"bored"}"#), Ok(expected));
    for body in ["{}", r#"{"toolCallId":null}"#, r#"{"toolCallId":""}"#] {
        assert_eq!(cancelled(body), Err(ParseError::Missing("toolCallId")), "{body}");
    }
    assert_eq!(cancelled("[]"), Err(ParseError::NotAnObject("an array")));
    assert!(cancelled(r#"{"toolCallId":"a","toolCallId":"b"}"#).is_err());
    assert!(matches!(cancelled(r#"{"toolCallId":7}"#), Err(ParseError::NotJson(_))));
    let value: Value = serde_json::to_value(ToolCancelRequest { tool_call_id: "c".to_owned() }).unwrap();
    assert_eq!(value, json!({"toolCallId": "c"}));
}
