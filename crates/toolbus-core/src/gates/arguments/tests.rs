use insta::assert_snapshot;
use serde_json::json;
use tokio_util::task::TaskTracker;
use toolbus_testing::log::LogCapture;

use super::*;
use crate::tool::{ToolDescriptor, ToolOutput};

fn tool(schema: Value) -> Tool {
    let descriptor = ToolDescriptor::new("t", "test", "local");
    Tool::new(ToolDescriptor { parameters: Some(Arc::new(schema)), ..descriptor }, ToolOutput::default())
}

fn new() -> Arguments {
    Arguments::new(Clock::SYSTEM, Turns::default())
}

fn checked(tool: &Tool, text: &str) -> Result<Map<String, Value>, ToolFailure> {
    new().check(tool, Some(text), None)
}

fn refusal(schema: Value, text: &str) -> String {
    let failure = checked(&tool(schema), text).unwrap_err();
    assert_eq!(failure.cause, Cause::InvalidArguments);
    failure.message
}

#[test]
fn absent_and_empty_arguments_are_an_empty_object() {
    for text in [None, Some(""), Some("  "), Some("{}")] {
        assert!(new().check(&tool(json!({"type": "object"})), text, None).unwrap().is_empty());
    }
}

#[test]
fn arguments_that_are_no_json_no_object_or_have_a_field_twice_are_refused() {
    assert_snapshot!(refusal(json!({}), r#"{"a": }"#), @"The arguments are not usable: expected value at line 1 column 7.");
    assert_snapshot!(refusal(json!({}), "[1]"), @"The arguments are not usable: expected a JSON object, found an array.");
    assert_snapshot!(refusal(json!({}), r#"{"a": 1, "a": 2}"#), @"The arguments are not usable: duplicate member `a` at line 1 column 12.");
}

#[test]
fn an_integer_that_would_be_rounded_is_refused_and_every_other_number_passes() {
    assert_snapshot!(refusal(json!({}), r#"{"ids": ["\\\"1", 12345678901234567890123]}"#), @"The arguments are not usable: the integer `12345678901234567890123` has more than 64 bits, and its last digits would be lost; send it as a string, or with an exponent if it may be rounded.");
    for integer in ["-9223372036854775809", "18446744073709551616"] {
        let text = refusal(json!({}), &format!(r#"{{"a": {{"b":{integer}}}}}"#));
        assert!(text.contains(integer), "{text}");
    }
    let fits = r#"{"a": [18446744073709551615, -9223372036854775808, 1e30, 0.12345678901234567890123, true, "12345678901234567890123"]}"#;
    assert_eq!(checked(&tool(json!({})), fits).unwrap()["a"][0], json!(u64::MAX));
}

#[test]
fn an_undeclared_argument_beside_one_that_is_set_is_refused_however_it_is_written() {
    let Value::Object(set) = json!({"owner": "maria"}) else { panic!("an object") };
    let forced = Forced(set);
    let check = |tool: &Tool, name: &str| {
        let Value::Object(arguments) = json!({"owner": "maria", name: "boss"}) else { panic!("an object") };
        declared_beside(&forced, tool, |name| name == "to", &arguments)
    };
    let declares_day = tool(json!({"type": "object", "properties": {"owner": {}, "day": {}}}));
    let look_alikes = [
        "Owner",
        "owner[]",
        "[owner]",
        "owner.x",
        " owner",
        "owner\0",
        "owner\u{200b}",
        "\u{feff}owner",
        "ｏｗｎｅｒ",
        "оwner",
        "o_wner",
        "o-wner",
        "owner=boss&x",
        "owner&",
        "/owner",
        "$owner",
        "owner\n",
        "öwner",
        "owners",
        "note",
    ];
    for name in look_alikes {
        let failure = check(&declares_day, name).unwrap_err();
        assert_eq!(failure.cause, Cause::InvalidArguments);
        let start = format!("The tool's parameters do not declare the argument `{}`", shown(name));
        assert!(failure.message.starts_with(&start), "{}", failure.message);
    }
    for name in ["day", "owner", "to"] {
        assert!(check(&declares_day, name).is_ok(), "{name}");
    }
    // The tool distinguishes them.
    assert!(check(&tool(json!({"properties": {"owner": {}, "Owner": {}}})), "Owner").is_ok());
    let without_schema = Tool::new(ToolDescriptor::new("t", "test", "local"), ToolOutput::default());
    assert!(check(&without_schema, "day").is_err());
}

#[test]
fn a_pattern_that_looks_around_is_compared_as_far_as_that_is_cheap() {
    let schema = json!({
        "type": "object",
        "properties": {"to": {"pattern": "^(?!\\.)[a-z.]+@[a-z.]+$"}, "odd": {"pattern": "^(a|a)*\\1b"}, "id": {"pattern": "^[a-z]+$"}},
        "patternProperties": {"^(?=x)": {"type": "integer"}},
    });
    let check = |arguments: Value| checked(&tool(schema.clone()), &arguments.to_string());
    assert!(check(json!({"to": "ana@example.com", "id": "a", "x1": 1})).is_ok());
    // Left to the tool.
    assert!(check(json!({"odd": "a".repeat(60), "to": "a".repeat(10_000)})).is_ok());
    assert_snapshot!(check(json!({"to": ".ana@example.com"})).unwrap_err().message, @r#"The arguments do not fit the tool's parameters: /to: value does not match "^(?!\.)[a-z.]+@[a-z.]+$""#);
    assert!(check(json!({"id": "1"})).is_err() && check(json!({"x1": "a"})).is_err());
}

#[test]
fn a_name_for_providers_becomes_the_tools_own_before_any_check() {
    let schema = json!({"type": "object", "properties": {"page[size]": {"type": "integer"}}, "required": ["page[size]"], "additionalProperties": false});
    let shown = argument_names::shown_name("page[size]").into_owned();
    let text = json!({&*shown: 20}).to_string();
    assert_eq!(Value::Object(checked(&tool(schema.clone()), &text).unwrap()), json!({"page[size]": 20}));
    let Value::Object(set) = json!({"page[size]": 5}) else { panic!("an object") };
    let failure = new().check(&tool(schema), Some(&text), Some(&Forced(set))).unwrap_err();
    assert_snapshot!(failure.message, @"The argument `page[size]` is set by the operator. Leave it out.");
}

#[test]
fn violations_name_every_path_and_no_value() {
    let schema = json!({
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "maximum": 7}},
        "required": ["city", "days"],
        "additionalProperties": false
    });
    let message = refusal(schema, r#"{"days": 70007, "token": "s3cret"}"#);
    assert!(!message.contains("70007") && !message.contains("s3cret"), "{message}");
    assert_snapshot!(message, @r#"The arguments do not fit the tool's parameters: /: "city" is a required property; /days: value is greater than the maximum of 7; /: Additional properties are not allowed ('token' was unexpected)"#);
}

#[test]
fn at_most_twenty_violations_are_listed_and_whether_there_are_more() {
    let schema = json!({"type": "object", "additionalProperties": {"type": "string"}});
    let message_of = |count: usize| {
        let fields: Vec<String> = (0..count).map(|n| format!(r#""m{n}": {n}"#)).collect();
        refusal(schema.clone(), &format!("{{{}}}", fields.join(",")))
    };
    let message = message_of(50);
    assert_eq!(message.matches("; ").count(), MAX_VIOLATIONS);
    assert!(message.ends_with("… and more"), "{message}");
    let message = message_of(MAX_VIOLATIONS);
    assert_eq!(message.matches("; ").count(), MAX_VIOLATIONS - 1);
    assert!(!message.contains("more"), "{message}");
}

#[test]
fn a_schema_that_refers_to_itself_ends() {
    let schema = json!({"type": "object", "properties": {"next": {"$ref": "#"}}});
    assert!(checked(&tool(schema), r#"{"next": {"next": {}}}"#).is_ok());
    assert!(checked(&tool(json!({"$ref": "#"})), "{}").is_ok());
}

/// An array of numbers, as the arguments of a tool.
fn numbers(count: usize) -> String {
    format!(r#"{{"list":[{}]}}"#, vec!["1"; count].join(","))
}

fn list_of(items: &Value) -> Value {
    json!({"type": "object", "properties": {"list": {"type": "array", "items": items}}})
}

#[test]
fn half_a_million_wrong_values_are_refused_with_the_first_ones() {
    let began = Clock::SYSTEM.now();
    let message = refusal(list_of(&json!({"type": "string"})), &numbers(500_000));
    assert!(message.contains("/list/0: ") && message.contains("/list/19: "), "{message}");
    assert!(message.ends_with("… and more") && message.len() < 2_000, "{message}");
    assert!(Clock::SYSTEM.since(began) < Duration::from_secs(20), "{:?}", Clock::SYSTEM.since(began));
}

#[test]
fn many_values_that_fit_none_of_many_branches_are_refused() {
    let branches: Vec<Value> =
        (0..400).map(|n| json!({"type": "array", "items": {"type": "string", "minLength": n}})).collect();
    let schema = json!({"type": "object", "properties": {"list": {"anyOf": branches}}});
    let message = refusal(schema, &numbers(20_000));
    assert!(message.starts_with("The arguments do not fit the tool's parameters: /list: "), "{message}");
    let branches: Vec<Value> = (0..400).map(|n| json!({"type": "string", "minLength": n})).collect();
    let message = refusal(list_of(&json!({"anyOf": branches})), &numbers(20_000));
    assert!(message.contains("/list/0: "), "{message}");
}

/// 2^60 looks at what `applied` gives to the first definition.
fn without_end(applied: &Value) -> Value {
    let next = |n: usize| json!({"$ref": format!("#/$defs/d{}", n + 1)});
    let mut defs: Map<String, Value> =
        (0..60).map(|n| (format!("d{n}"), json!({"allOf": [next(n), next(n)]}))).collect();
    defs.insert("d60".to_owned(), json!({"minLength": 1}));
    let mut schema = applied.clone();
    schema["$defs"] = defs.into();
    schema
}

#[test]
fn a_schema_that_makes_work_without_end_is_left() {
    let first = json!({"$ref": "#/$defs/d0"});
    for applied in [json!({"properties": {"a": first}}), json!({"propertyNames": first})] {
        assert_eq!(refusal(without_end(&applied), r#"{"a": "x"}"#), Spent::Work.text(), "{applied}");
    }
}

#[test]
fn large_arguments_that_fit_pass() {
    let tool = tool(list_of(&json!({"anyOf": [{"type": "string"}, {"type": "integer"}]})));
    let fields = checked(&tool, &numbers(200_000)).unwrap();
    assert_eq!(fields["list"].as_array().unwrap().len(), 200_000);
}

/// Letters a and b without an order that a pattern could make use of.
fn random(length: usize) -> String {
    let next = |state: &mut u64| {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Some(if *state >> 63 == 0 { 'a' } else { 'b' })
    };
    std::iter::repeat_with(|| ()).scan(1, |state, ()| next(state)).take(length).collect()
}

/// Patterns of which each byte of a text makes a new state.
fn costly() -> Value {
    let pattern = |n: usize| json!({"pattern": format!("(?:a|b)*a(?:a|b){{{}}}c", 200 + n)});
    let all: Vec<Value> = (0..60).map(pattern).collect();
    json!({"type": "object", "properties": {"text": {"type": "string", "not": {"anyOf": all}}}})
}

#[test]
fn a_long_text_and_costly_patterns_end_in_some_seconds() {
    for length in [60_000, 500_000] {
        let text: String = (0..length).map(|n: u64| if n * n % 7 < 3 { 'a' } else { 'b' }).collect();
        let began = Clock::SYSTEM.now();
        let checked = checked(&tool(costly()), &json!({"text": text}).to_string());
        let took = Clock::SYSTEM.since(began);
        assert!(took < Duration::from_secs(30), "{length}: {took:?} {checked:?}");
    }
}

/// Turns that another task of this thread gets. A check on it would leave a single one.
async fn turns_until_end<T>(check: &tokio::task::JoinHandle<T>) -> u32 {
    let mut turns = 0;
    while !check.is_finished() {
        tokio::time::sleep(Duration::from_millis(1)).await;
        turns += 1;
    }
    turns
}

#[tokio::test]
async fn a_large_check_delays_no_other_task() {
    let arguments = Arc::new(new());
    let check = TaskTracker::new().spawn({
        let arguments = Arc::clone(&arguments);
        async move {
            let tool = tool(costly());
            let text = json!({"text": "ab".repeat(100_000)}).to_string();
            let deadline = Clock::SYSTEM.now() + Duration::from_secs(60);
            arguments.check_in_turn(&tool, Some(&text), None, "ana".into(), deadline).await.is_ok()
        }
    });
    let turns = turns_until_end(&check).await;
    assert!(turns > 3, "{turns}");
    check.await.unwrap();
}

/// Of some 50 KiB, of which each byte of a text visits all.
const COSTLY_PATTERN: &str = "(?:a|b)*a(?:a|b){400}c";

fn with_costly_pattern() -> Value {
    json!({"type": "object", "properties": {"text": {"type": "string", "pattern": COSTLY_PATTERN}}})
}

/// Turns that other tasks of the same thread get while these arguments are checked, once the schema is compiled.
async fn turns_beside(schema: Value, text: String) -> u32 {
    let arguments = Arc::new(new());
    let tool = tool(schema);
    arguments.check(&tool, Some("{}"), None).unwrap();
    assert!(text.len() <= MAX_AT_ONCE && arguments.checker.is_ready(&tool));
    let deadline = Clock::SYSTEM.now() + Duration::from_secs(60);
    let check = TaskTracker::new()
        .spawn(async move { arguments.check_in_turn(&tool, Some(&text), None, "ana".into(), deadline).await });
    let turns = turns_until_end(&check).await;
    assert!(!check.await.unwrap().unwrap_err().message.contains("work"));
    turns
}

#[tokio::test]
async fn a_costly_pattern_on_a_small_text_or_name_delays_no_other_task() {
    let of_names = json!({"propertyNames": {"pattern": COSTLY_PATTERN}});
    let (text, name) = (json!({"text": random(16_000)}), json!({random(16_000): 1}));
    for (schema, arguments) in [(with_costly_pattern(), text), (of_names, name)] {
        let turns = turns_beside(schema.clone(), arguments.to_string()).await;
        assert!(turns > 3, "{turns} {schema}");
    }
}

#[test]
fn each_costly_comparison_looks_at_the_clock_before_it_begins() {
    let compiled = Compiled::new(&with_costly_pattern()).unwrap();
    // Too short for a look after so many steps.
    let value = json!({"text": random(2_000)});
    assert_eq!(compiled.check(&value, CheckLimits::in_turn(Clock::SYSTEM, Duration::ZERO)), Err(Spent::Work));
}

#[test]
fn usual_patterns_are_compared_at_once() {
    let pattern = |of: &str| json!({"type": "string", "pattern": of});
    let schema = json!({"type": "object", "additionalProperties": false, "properties": {
        "email": pattern(r"^[^@\s]+@[^@\s]+\.[a-zA-Z]{2,}$"), "day": pattern(r"^\d{4}-\d{2}-\d{2}$"),
        "id": pattern("^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"), "name": pattern(r"^[\w .-]+$")
    }});
    let compiled = Compiled::new(&schema).unwrap();
    let value = json!({"email": "ana@example.com", "day": "2026-01-31", "name": "x".repeat(100),
        "id": "123e4567-e89b-12d3-a456-426614174000"});
    let limits = CheckLimits::at_once(Clock::SYSTEM, Clock::SYSTEM.now() + Duration::from_secs(60));
    assert_eq!(compiled.check(&value, limits), Ok(None));
}

/// Result of a check that gets no turn, because the deadline has passed: only a check that is done at once has one.
async fn at_once(tool: &Tool, text: &str, compiled: bool) -> Result<(), Cause> {
    let arguments = new();
    if compiled {
        drop(arguments.check(tool, Some("{}"), None));
    }
    let checked = arguments.check_in_turn(tool, Some(text), None, "ana".into(), Clock::SYSTEM.now()).await;
    checked.map(drop).map_err(|failure| failure.cause)
}

#[tokio::test]
async fn only_a_small_check_of_a_compiled_schema_is_made_at_once() {
    let integers = tool(list_of(&json!({"type": "integer"})));
    // So many values that the check looks at its clock, and at only that.
    assert_eq!(at_once(&integers, &numbers(6_000), true).await, Ok(()));
    assert_eq!(at_once(&integers, r#"{"list": ["x"]}"#, true).await, Err(Cause::InvalidArguments));
    assert_eq!(at_once(&integers, &numbers(6_000), false).await, Err(Cause::Expired));
    assert_eq!(at_once(&integers, &numbers(MAX_AT_ONCE), true).await, Err(Cause::Expired));
    let exact = format!("{:1$}", r#"{"list": [1]}"#, MAX_AT_ONCE);
    assert_eq!(at_once(&integers, &exact, true).await, Ok(()));
}

/// Takes every turn until the end of the test.
async fn without_a_turn() -> (Arguments, Vec<crate::turns::Turn>) {
    let arguments = new();
    let mut held = Vec::new();
    let soon = || Clock::SYSTEM.now() + Duration::from_millis(100);
    loop {
        match arguments.turns.run("ana".into(), 0, soon(), || ()).await {
            Ok(((), turn)) => held.push(turn),
            Err(failure) if failure.cause == Cause::Overloaded => break,
            // It had its turn, and not the processor.
            Err(_) => {}
        }
    }
    (arguments, held)
}

#[tokio::test]
async fn a_check_without_a_turn_in_time_fails_as_overloaded() {
    let (arguments, _held) = without_a_turn().await;
    let deadline = Clock::SYSTEM.now() + Duration::from_millis(500);
    let checked = arguments.check_in_turn(&tool(json!({})), Some("{}"), None, "bob".into(), deadline).await;
    assert_eq!(checked.unwrap_err().cause, Cause::Overloaded);
}

#[tokio::test]
async fn a_check_with_endless_work_fails_as_such_before_the_deadline() {
    let tool = tool(without_end(&json!({"properties": {"a": {"$ref": "#/$defs/d0"}}})));
    let check = async |wait| {
        let arguments = new();
        let deadline = Clock::SYSTEM.now() + wait;
        let checked = arguments.check_in_turn(&tool, Some(r#"{"a": "x"}"#), None, "ana".into(), deadline).await;
        checked.unwrap_err()
    };
    assert_snapshot!(check(Duration::from_secs(60)).await.message, @"The arguments take too much work to check. Send fewer values, or shorter ones.");
    assert_snapshot!(check(Duration::from_millis(50)).await.message, @"The deadline of the call passed while its arguments were checked. The tool was not run.");
}

#[test]
fn a_text_too_long_for_the_patterns_is_refused_as_such() {
    let pattern = "(?:a|b)*a(?:a|b){2000}c";
    let schema = json!({"type": "object", "properties": {"text": {"type": "string", "pattern": pattern}}});
    let message = refusal(schema, &json!({"text": "ab".repeat(100_000)}).to_string());
    assert_snapshot!(message, @"A text in the arguments is too long for the patterns of the tool's parameters. Shorten it.");
}

#[tokio::test]
async fn a_tool_that_only_warns_runs_with_arguments_that_its_schema_does_not_allow() {
    let warns = |schema| {
        let mut tool = tool(schema);
        Arc::make_mut(&mut tool.descriptor).validation = Validation::Warn;
        tool
    };
    let far = Clock::SYSTEM.now() + Duration::from_secs(60);
    let log = LogCapture::default();
    let _guard = tracing::subscriber::set_default(
        tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).without_time().finish(),
    );
    let wrong = warns(list_of(&json!({"type": "string"})));
    let arguments = new();
    assert_eq!(Value::Object(checked(&wrong, r#"{"list": [1]}"#).unwrap()), json!({"list": [1]}));
    assert_snapshot!(log.text(), @r#"WARN toolbus_core::gates::arguments: ran a tool with arguments that its schema does not allow tool="t" violations="The arguments do not fit the tool's parameters: /list/0: value is not of type \"string\"" left_out=0"#);
    assert!(arguments.check_in_turn(&wrong, Some(r#"{"list": [1]}"#), None, "ana".into(), far).await.is_ok());

    let endless = warns(without_end(&json!({"properties": {"a": {"$ref": "#/$defs/d0"}}})));
    assert!(checked(&endless, r#"{"a": "x"}"#).is_ok());
    // What is too much at once gets its turn before it is let through.
    assert_eq!(at_once(&endless, r#"{"a": "x"}"#, true).await, Err(Cause::Expired));
}

#[tokio::test(start_paused = true)]
async fn a_check_that_outlasts_the_call_fails_with_its_deadline() {
    let arguments = new();
    let tool = tool(costly());
    let text = json!({"text": "ab".repeat(100_000)}).to_string();
    let deadline = Clock::SYSTEM.now();
    let failure = arguments.check_in_turn(&tool, Some(&text), None, "ana".into(), deadline).await.unwrap_err();
    assert_eq!(failure.cause, Cause::Expired);
}

#[tokio::test]
async fn a_small_check_that_needs_many_steps_gets_its_turn() {
    let branches: Vec<Value> = (0..400).map(|n| json!({"type": "string", "minLength": n})).collect();
    let tool = tool(list_of(&json!({"anyOf": branches, "not": {"type": "number"}})));
    let arguments = new();
    let deadline = Clock::SYSTEM.now() + Duration::from_secs(60);
    for _ in 0..2 {
        let checked = arguments.check_in_turn(&tool, Some(&numbers(1_000)), None, "ana".into(), deadline).await;
        let message = checked.unwrap_err().message;
        assert!(message.contains("/list/0: "), "{message}");
    }
}
