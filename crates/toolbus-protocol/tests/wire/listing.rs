//! The messages about tools, daemons and sessions: `tool.list`, `tool.ping`, `tool.session.end`, `tool.meta.tools`.

use serde::Serialize;
use serde_json::json;
use toolbus_protocol::message_type::{self, Kind, kind};
use toolbus_protocol::{
    Format, MAX_LISTED_NAMES, ParseError, Ping, Pong, SessionEnd, ToolHintsRequest, ToolHintsResponse, ToolListRequest,
    ToolListResponse, ToolsChanged, header, topic,
};

use crate::round_trip;

fn written(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap()
}

fn parsed(body: &str) -> ToolListRequest {
    ToolListRequest::parse(body.as_bytes()).unwrap_or_else(|error| panic!("{body}: {error}"))
}

fn refusal(body: &str) -> String {
    match ToolListRequest::parse(body.as_bytes()) {
        Ok(request) => panic!("{body}: read as {request:?}"),
        Err(error) => error.to_string(),
    }
}

fn with_names(count: usize) -> String {
    written(&json!({"names": vec!["hunter2"; count]}))
}

#[test]
fn a_request_for_tools_is_read_with_field_names_in_any_case() {
    let expected = ToolListRequest {
        session_id: Some("s".to_owned()),
        profile: Some("subagent".to_owned()),
        binding: Some("whatsapp:sales".to_owned()),
        format: Some(Format::OpenAi),
        names: Some(vec!["a".to_owned(), "b".to_owned()]),
        if_version: Some("v".to_owned()),
    };
    for body in [
        r#"{"sessionId":"s","profile":"subagent","binding":"whatsapp:sales","format":"openai","names":["a","b"],"ifVersion":"v"}"#,
        r#"{"SessionId":"s","Profile":"subagent","Binding":"whatsapp:sales","Format":"openai","Names":["a","b"],"IfVersion":"v"}"#,
        r#" {"IFVERSION":"v","names":["a","b"],"format":"openai","extra":[{}],"sessionid":"s","binding":"whatsapp:sales","profile":"subagent"} "#,
    ] {
        assert_eq!(parsed(body), expected, "{body}");
    }
}

#[test]
fn absent_null_and_empty_fields_of_a_request_for_tools_read_alike() {
    for body in [
        "{}",
        r#"{"sessionId":null,"profile":null,"binding":null,"format":null,"names":null,"ifVersion":null}"#,
        r#"{"sessionId":"","profile":"","binding":"","format":"","names":[],"ifVersion":""}"#,
    ] {
        assert_eq!(parsed(body), ToolListRequest::default(), "{body}");
    }
}

#[test]
fn every_format_is_read_as_it_is_written() {
    for format in Format::ALL {
        assert_eq!(parsed(&format!(r#"{{"format":"{format}"}}"#)).format, Some(format));
        assert_eq!(written(&format), format!("\"{format}\""));
    }
    assert_eq!(Format::default(), Format::Registration);
}

#[test]
fn an_unknown_format_is_refused_with_the_names_of_those_that_exist() {
    insta::assert_snapshot!(
        refusal(r#"{"format":"cohere"}"#),
        @"unknown format; expected `registration`, `openai`, `openai-responses`, `anthropic`, `gemini`, `bedrock` or `mcp` at line 1 column 19"
    );
    for format in ["OpenAI", "registration ", "hunter2"] {
        let text = refusal(&format!(r#"{{"format":"{format}"}}"#));
        assert!(text.starts_with("unknown format; ") && !text.contains(format), "{text}");
    }
}

#[test]
fn a_request_for_tools_holds_so_many_names_and_no_more() {
    assert_eq!(parsed(&with_names(MAX_LISTED_NAMES)).names.unwrap().len(), MAX_LISTED_NAMES);
    for count in [MAX_LISTED_NAMES + 1, 100_000] {
        let text = refusal(&with_names(count));
        assert!(text.starts_with("more than 1000 names at line 1"), "{text}");
    }
}

#[test]
fn a_body_that_is_no_request_for_tools_is_refused_in_words() {
    for (body, expected) in [
        ("", "EOF while parsing a value at line 1 column 0"),
        ("[]", "expected a JSON object, found an array"),
        (r#""hunter2""#, "expected a JSON object, found a string"),
        (r#"{"names":"hunter2"}"#, "expected a list of names, found a string at line 1 column 18"),
        (r#"{"names":[null]}"#, "invalid type: null, expected a string at line 1 column 14"),
        (r#"{"names":{"a":1}}"#, "invalid type: map, expected a list of names at line 1 column 10"),
        (r#"{"format":5}"#, "invalid type: integer `5`, expected a string at line 1 column 11"),
        (r#"{"profile":"a","Profile":"a"}"#, "duplicate member `Profile` at line 1 column 24"),
        (r#"{"extra":1,"extra":1}"#, "duplicate member `extra` at line 1 column 18"),
    ] {
        assert_eq!(refusal(body), expected, "{body}");
    }
    assert!(refusal(&format!(r#"{{"names":{}}}"#, "[".repeat(100))).starts_with("nested deeper than 64 levels"));
}

#[test]
fn a_request_for_tools_is_written_with_nulls_in_the_order_of_the_wire() {
    let request = ToolListRequest {
        format: Some(Format::Anthropic),
        names: Some(vec!["time".to_owned()]),
        ..ToolListRequest::default()
    };
    insta::assert_snapshot!(written(&request), @r#"{"sessionId":null,"profile":null,"binding":null,"format":"anthropic","names":["time"],"ifVersion":null}"#);
}

#[test]
fn a_list_of_tools_is_written_in_the_wire_format() {
    let response = ToolListResponse {
        agent: "ana".to_owned(),
        version: "5f1c".to_owned(),
        tools: vec![json!({"name": "time"})],
        ..ToolListResponse::default()
    };
    insta::assert_snapshot!(round_trip(&response), @r#"{"agent":"ana","version":"5f1c","tools":[{"name":"time"}]}"#);
}

#[test]
fn a_list_that_the_caller_has_already_is_not_sent_again() {
    let response: ToolListResponse = ToolListResponse {
        agent: "ana".to_owned(),
        version: "5f1c".to_owned(),
        notice: Some("Server `fs` is not connected.".to_owned()),
        not_modified: true,
        ..ToolListResponse::default()
    };
    insta::assert_snapshot!(round_trip(&response), @r#"{"agent":"ana","version":"5f1c","tools":[],"notice":"Server `fs` is not connected.","notModified":true}"#);
}

#[test]
fn a_ping_needs_no_body() {
    for body in ["", " \r\n", "{}", r#"{"nonce":1,"deep":[[{}]]}"#] {
        assert_eq!(Ping::parse(body.as_bytes()), Ok(Ping {}), "{body}");
    }
    assert_eq!(written(&Ping {}), "{}");
}

#[test]
fn a_ping_with_a_body_that_is_no_object_is_refused() {
    for (body, expected) in [
        (&b"[]"[..], "expected a JSON object, found an array"),
        (b"null", "expected a JSON object, found null"),
        (b"ping", "expected value at line 1 column 1"),
        (b"\xff", "not UTF-8: invalid byte at offset 0"),
        (br#"{"a":1,"a":1}"#, "duplicate member `a` at line 1 column 10"),
    ] {
        assert_eq!(Ping::parse(body).unwrap_err().to_string(), expected, "{}", String::from_utf8_lossy(body));
    }
    assert!(matches!(Ping::parse("[".repeat(100_000).as_bytes()), Err(ParseError::TooDeep { .. })));
}

#[test]
fn a_pong_survives_writing_and_reading() {
    let pong = Pong {
        name: "toolbus".to_owned(),
        version: "0.1.0".to_owned(),
        config_digest: "9d3a".to_owned(),
        roles: vec!["invoke".to_owned(), "mcp".to_owned()],
        uptime_seconds: 90,
        in_flight: 3,
        tools: 12,
        takes: None,
    };
    insta::assert_snapshot!(round_trip(&pong), @r#"{"name":"toolbus","version":"0.1.0","configDigest":"9d3a","roles":["invoke","mcp"],"uptimeSeconds":90,"inFlight":3,"tools":12}"#);
}

#[test]
fn the_end_of_a_session_is_read_as_liberally() {
    let ended = |body: &str| SessionEnd::parse(body.as_bytes());
    let expected = SessionEnd { session_id: "session/1".to_owned() };
    assert_eq!(ended(r#"{"SESSIONID":"session\/1","reason":"bored"}"#), Ok(expected.clone()));
    for body in ["{}", r#"{"sessionId":null}"#, r#"{"sessionId":""}"#] {
        assert_eq!(ended(body), Err(ParseError::Missing("sessionId")), "{body}");
    }
    assert_eq!(ended("[]"), Err(ParseError::NotAnObject("an array")));
    assert!(ended(r#"{"sessionId":"a","SessionId":"b"}"#).is_err());
    assert!(matches!(ended(r#"{"sessionId":7}"#), Err(ParseError::NotJson(_))));
    assert_eq!(written(&expected), r#"{"sessionId":"session/1"}"#);
}

#[test]
fn a_change_of_tools_lists_added_and_removed_names() {
    let changed = ToolsChanged {
        version: "5f1c".to_owned(),
        added: vec!["fs.read".to_owned()],
        removed: vec!["time".to_owned()],
    };
    insta::assert_snapshot!(round_trip(&changed), @r#"{"version":"5f1c","added":["fs.read"],"removed":["time"]}"#);
}

#[test]
fn a_request_for_hints_is_read_liberally_and_the_response_is_one_text() {
    let expected = ToolHintsRequest { text: "an issue".to_owned(), session_id: Some("s".to_owned()) };
    for body in [r#"{"text":"an issue","sessionId":"s"}"#, r#"{"SessionID":"s","Text":"an issue","more":[1]}"#] {
        assert_eq!(ToolHintsRequest::parse(body.as_bytes()).unwrap(), expected, "{body}");
    }
    assert_eq!(ToolHintsRequest::parse(br#"{"text":null}"#).unwrap(), ToolHintsRequest::default());
    assert!(ToolHintsRequest::parse(br#"{"text":7}"#).is_err() && ToolHintsRequest::parse(b"[]").is_err());
    assert_eq!(written(&ToolHintsResponse { hints: "a\nb".to_owned() }), r#"{"hints":"a\nb"}"#);
}

#[test]
fn topics_types_and_trust_are_named_as_on_the_wire() {
    let names: [&str; 15] = [
        topic::TOOL_LIST,
        topic::TOOL_HINTS,
        topic::TOOL_PING,
        topic::TOOL_SESSION_END,
        topic::TOOL_ANNOUNCE,
        message_type::TOOL_LIST_REQUEST,
        message_type::TOOL_LIST_RESPONSE,
        message_type::TOOL_HINTS_REQUEST,
        message_type::TOOL_HINTS_RESPONSE,
        message_type::PING,
        message_type::PONG,
        message_type::SESSION_END,
        message_type::TOOLS_CHANGED,
        message_type::TOOL_ANNOUNCEMENT,
        header::TRUST_SYSTEM,
    ];
    insta::assert_snapshot!(names.join(" "), @"tool.list tool.hints tool.ping tool.session.end tool.announce Toolbus.ToolListRequest Toolbus.ToolListResponse Toolbus.ToolHintsRequest Toolbus.ToolHintsResponse Toolbus.Ping Toolbus.Pong Toolbus.SessionEnd Toolbus.ToolsChanged Toolbus.ToolAnnouncement system");
    assert_eq!(topic::tools_changed("ana"), "tool.meta.tools.ana");
    for topic in [topic::TOOL_LIST, topic::TOOL_HINTS, topic::TOOL_PING, topic::TOOL_SESSION_END, topic::TOOL_ANNOUNCE]
    {
        assert!(topic::REQUEST_TOPICS.iter().any(|pattern| topic::matches(pattern, topic)), "{topic}");
    }
}

#[test]
fn a_reply_on_a_request_topic_is_never_taken_for_a_request() {
    for (reply, request) in [
        (message_type::TOOL_LIST_RESPONSE, message_type::TOOL_LIST_REQUEST),
        (message_type::PONG, message_type::PING),
        (message_type::TOOLS_CHANGED, message_type::SESSION_END),
    ] {
        assert_eq!(kind(reply, request), Kind::Reply, "{reply}");
        assert_eq!(kind(request, request), Kind::Request, "{request}");
    }
}
