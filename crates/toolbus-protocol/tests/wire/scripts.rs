//! The messages about scripts: what peers write on `script.invoke`, and what they read on `script.result`.

use toolbus_protocol::message_type::{self, Kind, kind};
use toolbus_protocol::{ScriptInvokeRequest, ScriptInvokeResponse, topic};

const REQUEST_BODY: &str = r#"{"toolCallId":"3f2504e04f8941d39a0c0305e82c3301","script":"print(\u0027hi\u0027)","inputData":null,"timeoutSeconds":30,"pipPackages":null}"#;

const RESPONSE_BODY: &str = r#"{"toolCallId":"3f2504e04f8941d39a0c0305e82c3301","output":"hi\n","stderr":null,"exitCode":0,"isSuccess":true,"elapsedMs":2140}"#;

fn parsed(body: &str) -> ScriptInvokeRequest {
    ScriptInvokeRequest::parse(body.as_bytes()).unwrap_or_else(|error| panic!("{body}: {error}"))
}

fn refusal(body: &str) -> String {
    match ScriptInvokeRequest::parse(body.as_bytes()) {
        Ok(request) => panic!("{body}: read as {request:?}"),
        Err(error) => error.to_string(),
    }
}

fn full() -> ScriptInvokeRequest {
    ScriptInvokeRequest {
        tool_call_id: Some("1".to_owned()),
        script: Some("pass".to_owned()),
        input_data: Some("{}".to_owned()),
        timeout_seconds: Some(5),
        pip_packages: Some(vec!["a".to_owned(), "b".to_owned()]),
    }
}

fn response(exit_code: i32) -> ScriptInvokeResponse {
    ScriptInvokeResponse {
        tool_call_id: "3f2504e04f8941d39a0c0305e82c3301".to_owned(),
        output: Some("hi\n".to_owned()),
        stderr: None,
        exit_code,
        elapsed_ms: 2140,
    }
}

#[test]
fn a_peers_request_for_a_script_is_read_exactly() {
    let expected = ScriptInvokeRequest {
        tool_call_id: Some("3f2504e04f8941d39a0c0305e82c3301".to_owned()),
        script: Some("print('hi')".to_owned()),
        timeout_seconds: Some(30),
        ..ScriptInvokeRequest::default()
    };
    assert_eq!(parsed(REQUEST_BODY), expected);
}

#[test]
fn fields_of_a_request_for_a_script_are_read_in_any_case_and_unknown_ones_ignored() {
    for body in [
        r#"{"toolCallId":"1","script":"pass","inputData":"{}","timeoutSeconds":5,"pipPackages":["a","b"]}"#,
        r#"{"ToolCallId":"1","Script":"pass","InputData":"{}","TimeoutSeconds":5,"PipPackages":["a","b"]}"#,
        r#" {"PIPPACKAGES":["a","b"],"extra":[{"script":1}],"timeoutseconds":5,"inputdata":"{}","SCRIPT":"pass","toolcallid":"1"} "#,
    ] {
        assert_eq!(parsed(body), full(), "{body}");
    }
}

#[test]
fn absent_and_null_fields_of_a_request_for_a_script_read_alike() {
    let plain = ScriptInvokeRequest { script: Some(String::new()), ..ScriptInvokeRequest::default() };
    for body in [
        r#"{"script":""}"#,
        r#"{"script":"","toolCallId":null,"inputData":null,"timeoutSeconds":null,"pipPackages":null}"#,
        r#"{"script":"","toolCallId":""}"#,
    ] {
        assert_eq!(parsed(body), plain, "{body}");
    }
}

#[test]
fn a_request_for_a_script_that_cannot_be_read_is_refused_in_words() {
    let table = [
        r#"{"toolCallId":"1"}"#,
        r#"{"script":null}"#,
        r#"{"script":5}"#,
        r#"{"script":"","Script":""}"#,
        r#"{"script":"","timeoutSeconds":"30"}"#,
        r#"{"script":"","timeoutSeconds":1.5}"#,
        r#"{"script":"","pipPackages":"a"}"#,
        r#"{"script":"","pipPackages":[null]}"#,
        r#"{"script":"","inputData":{}}"#,
        "[]",
    ];
    let errors: Vec<String> = table.into_iter().map(|body| format!("{body}: {}", refusal(body))).collect();
    insta::assert_snapshot!(errors.join("\n"), @r#"
    {"toolCallId":"1"}: missing member `script`
    {"script":null}: missing member `script`
    {"script":5}: invalid type: integer `5`, expected a string at line 1 column 11
    {"script":"","Script":""}: duplicate member `Script` at line 1 column 21
    {"script":"","timeoutSeconds":"30"}: invalid type: string "30", expected i64 at line 1 column 34
    {"script":"","timeoutSeconds":1.5}: invalid type: floating point `1.5`, expected i64 at line 1 column 33
    {"script":"","pipPackages":"a"}: invalid type: string "a", expected a sequence at line 1 column 30
    {"script":"","pipPackages":[null]}: invalid type: null, expected a string at line 1 column 32
    {"script":"","inputData":{}}: invalid type: map, expected a string at line 1 column 25
    []: expected a JSON object, found an array
    "#);
}

#[test]
fn a_request_without_a_script_still_has_its_call_id() {
    let request = ScriptInvokeRequest::parse_empty(br#"{"toolCallId":"1"}"#).unwrap();
    assert_eq!((request.tool_call_id.as_deref(), request.script), (Some("1"), None));
}

#[test]
fn a_request_for_a_script_is_written_with_nulls_and_always_with_a_time() {
    let request = ScriptInvokeRequest { input_data: None, timeout_seconds: None, pip_packages: None, ..full() };
    insta::assert_snapshot!(
        serde_json::to_string(&request).unwrap(),
        @r#"{"toolCallId":"1","script":"pass","inputData":null,"timeoutSeconds":30,"pipPackages":null}"#
    );
    assert_eq!(parsed(&serde_json::to_string(&full()).unwrap()), full());
}

#[test]
fn the_outcome_of_a_script_is_written_as_peers_write_it() {
    assert_eq!(serde_json::to_string(&response(0)).unwrap(), RESPONSE_BODY);
    insta::assert_snapshot!(
        serde_json::to_string(&ScriptInvokeResponse { stderr: Some("no\n".to_owned()), output: None, ..response(3) }).unwrap(),
        @r#"{"toolCallId":"3f2504e04f8941d39a0c0305e82c3301","output":null,"stderr":"no\n","exitCode":3,"isSuccess":false,"elapsedMs":2140}"#
    );
}

#[test]
fn the_exit_code_decides_whether_a_script_succeeded_whatever_the_sender_declares() {
    assert_eq!(serde_json::from_str::<ScriptInvokeResponse>(RESPONSE_BODY).unwrap(), response(0));
    let body = RESPONSE_BODY.replace("\"exitCode\":0", "\"exitCode\":3");
    let read: ScriptInvokeResponse = serde_json::from_str(&body).unwrap();
    assert_eq!((read.is_success(), read), (false, response(3)));
}

#[test]
fn requests_for_scripts_and_for_tools_do_not_belong_on_each_others_topics() {
    let (script, tool) = (message_type::SCRIPT_INVOKE_REQUEST, message_type::TOOL_INVOKE_REQUEST);
    assert_eq!((kind(script, script), kind(tool, script)), (Kind::Request, Kind::Foreign));
    assert_eq!((kind(script, tool), kind("", script)), (Kind::Foreign, Kind::Plain));
    assert_eq!(kind(message_type::SCRIPT_INVOKE_RESPONSE, script), Kind::Reply);
}

#[test]
fn no_reply_goes_to_the_request_topic_of_scripts() {
    let is_of_requests = |name: &str| topic::REQUEST_TOPICS.iter().any(|pattern| topic::matches(pattern, name));
    assert!(is_of_requests(topic::SCRIPT_INVOKE));
    assert!(!is_of_requests(topic::SCRIPT_RESULT));
}
