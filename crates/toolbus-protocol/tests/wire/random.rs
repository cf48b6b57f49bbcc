//! Properties that hold for any input.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use serde_json::{Map, Value};
use toolbus_protocol::{
    Envelope, Format, MAX_SHORT_STRING, Properties, ToolInvokeRequest, ToolListRequest, TraceContext, bounded,
    derived_message_id, message_type, parse_object, topic,
};

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 48, 6, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Value::from),
            vec((name(), inner), 0..6).prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// Names of fields: often those of a request, in some case.
fn name() -> impl Strategy<Value = String> {
    prop_oneof!["(?i)(toolName|toolCallId|arguments|sessionId|batchId|names|format|ifVersion)", any::<String>()]
}

fn topic_or_pattern(words: &'static str) -> impl Strategy<Value = String> {
    vec(words, 1..7).prop_map(|words| words.join("."))
}

/// The rule of the specification, word by word.
fn matches_naively(pattern: &[&str], topic: &[&str]) -> bool {
    match (pattern, topic) {
        ([], []) => true,
        (["#", rest @ ..], _) => (0..=topic.len()).any(|skipped| matches_naively(rest, &topic[skipped..])),
        ([first, rest @ ..], [word, words @ ..]) => (*first == "*" || first == word) && matches_naively(rest, words),
        _ => false,
    }
}

fn some_text() -> impl Strategy<Value = Option<String>> {
    option::of("\\PC{1,20}")
}

proptest! {
    #[test]
    fn parsing_anything_like_json_never_panics(text in r#"[\[\]{}",:\\ \tuad8e+-.0-9nulltrue]{0,80}"#) {
        let _ = (ToolInvokeRequest::parse(text.as_bytes()), parse_object(text.as_bytes()));
    }

    #[test]
    fn any_object_is_read_as_it_was_written(fields in vec((any::<String>(), json()), 0..8)) {
        let written: Map<String, Value> = fields.into_iter().collect();
        let read = parse_object(&serde_json::to_vec(&written).unwrap());
        prop_assert_eq!(read, Ok(written));
    }

    #[test]
    fn any_other_value_is_refused(value in json()) {
        let bytes = serde_json::to_vec(&value).unwrap();
        prop_assert_eq!(parse_object(&bytes).is_ok(), value.is_object());
    }

    #[test]
    fn a_refusal_is_short(value in json()) {
        let body = serde_json::to_vec(&value).unwrap();
        let refusals = [ToolInvokeRequest::parse(&body).err(), ToolListRequest::parse(&body).err()];
        for error in refusals.into_iter().flatten() {
            prop_assert!(error.to_string().len() < 1024);
        }
    }

    #[test]
    fn a_request_for_tools_survives_the_way(
        (session_id, profile, binding, if_version) in (some_text(), some_text(), some_text(), some_text()),
        format in option::of(prop::sample::select(&Format::ALL[..])),
        names in option::of(vec(any::<String>(), 1..20)),
    ) {
        let request = ToolListRequest { session_id, profile, binding, format, names, if_version };
        let body = serde_json::to_vec(&request).unwrap();
        prop_assert_eq!(ToolListRequest::parse(&body), Ok(request));
    }

    #[test]
    fn a_request_survives_the_way(
        tool_call_id in option::of("\\PC{1,20}"),
        tool_name in "\\PC{1,20}",
        arguments in option::of(any::<String>()),
        session_id in option::of(any::<String>()),
        batch_id in option::of(any::<String>()),
    ) {
        let request = ToolInvokeRequest { tool_call_id, tool_name, arguments, session_id, batch_id };
        let body = serde_json::to_vec(&request).unwrap();
        prop_assert_eq!(ToolInvokeRequest::parse(&body), Ok(request));
    }

    #[test]
    fn topics_match_as_the_specification_defines(
        pattern in topic_or_pattern("[ab*#]|"),
        name in topic_or_pattern("[abc]|"),
    ) {
        let words: Vec<&str> = pattern.split('.').collect();
        let naive = matches_naively(&words, &name.split('.').collect::<Vec<_>>());
        prop_assert_eq!(topic::matches(&pattern, &name), naive, "{} {}", pattern, name);
    }

    #[test]
    fn a_bounded_text_fits_and_begins_as_the_text_does(text in "\\PC{0,300}") {
        let cut = bounded(&text);
        prop_assert!(cut.len() <= MAX_SHORT_STRING);
        prop_assert!(text.starts_with(cut));
        prop_assert!(text.len() > MAX_SHORT_STRING || cut == text);
        prop_assert!(cut.len() == text.len() || cut.len() > MAX_SHORT_STRING - 4, "no more is cut than needed");
    }

    #[test]
    fn any_trace_is_read_or_dropped(parent in any::<String>(), state in option::of(any::<String>())) {
        prop_assert!(TraceContext::parse(&parent, state.as_deref()).is_none());
    }

    #[test]
    fn anything_like_a_trace_is_read_whole(parent in "0[01]-[0-9a-fA]{31,33}-[0-9a-f]{15,17}-[0-9a-f]{1,3}") {
        if let Some(context) = TraceContext::parse(&parent, None) {
            prop_assert_eq!(format!("00-{}-{}", context.trace_id(), context.span_id()), &parent[..52]);
        }
    }

    #[test]
    fn any_type_is_judged(name in any::<String>()) {
        let _ = message_type::kind(&name, message_type::TOOL_INVOKE_REQUEST);
    }

    #[test]
    fn any_envelope_that_we_write_is_read_back(
        names in vec("[a-z]{1,8}", 0..5),
        source in option::of("[a-z.]{1,8}"),
        correlation_id in "\\PC{0,20}",
        timestamp in option::of(1_u64..),
    ) {
        let mut headers: Vec<(String, String)> = Vec::new();
        for name in names {
            let name = format!("rb-x-{name}");
            if !headers.iter().any(|(known, _)| *known == name) {
                headers.push((name, "value".to_owned()));
            }
        }
        let envelope = Envelope { headers, source, correlation_id, timestamp, ..Envelope::default() };
        prop_assert_eq!(Envelope::read(&envelope.clone().into_properties()), envelope);
    }

    #[test]
    fn any_properties_are_read(
        headers in vec(("(rb-){0,3}[a-z]{0,5}", any::<String>()), 0..100),
        message_type in option::of(any::<String>()),
    ) {
        let envelope = Envelope::read(&Properties { headers, message_type, ..Properties::default() });
        for (name, value) in &envelope.headers {
            prop_assert_eq!(envelope.header(name), Some(value.as_str()), "names are unique");
        }
    }

    #[test]
    fn the_id_of_a_reply_depends_on_each_part(a in "[ab]{0,3}", b in "[ab]{0,3}", c in "[ab]{0,3}", d in "[ab]{0,3}") {
        let id = derived_message_id(&a, &b, &c);
        prop_assert_eq!(id.len(), 32);
        prop_assert!(id.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)));
        prop_assert_eq!(&id, &derived_message_id(&a, &b, &c));
        prop_assert_eq!(id == derived_message_id(&a, &d, &c), b == d);
        prop_assert_eq!(id == derived_message_id(&b, &a, &c), a == b, "parts do not run together");
    }
}
