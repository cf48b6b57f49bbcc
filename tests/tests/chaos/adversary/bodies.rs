//! Bodies that might name one tool to the gates and another to the executor.

use serde_json::json;

use super::row::{Back, INVALID, NOT_FOUND, Row, raw, row};

pub(crate) fn rows() -> Vec<Row> {
    let refused = [
        ("the name twice, the hidden one last", r#"{"toolName":"get_weather","toolName":"transfer_money"}"#),
        ("the name twice, the hidden one first", r#"{"toolName":"transfer_money","toolName":"get_weather"}"#),
        ("the name in two cases, the hidden one last", r#"{"toolName":"get_weather","ToolName":"transfer_money"}"#),
        ("the name in two cases, the hidden one first", r#"{"TOOLNAME":"transfer_money","toolName":"get_weather"}"#),
        ("the name twice, once escaped", r#"{"toolName":"get_weather","\u0074oolName":"transfer_money"}"#),
        (
            "the name twice, around the arguments",
            r#"{"toolName":"get_weather","arguments":{},"toolname":"transfer_money"}"#,
        ),
        ("a list of names", r#"{"toolName":["get_weather","transfer_money"]}"#),
        ("a name in an object", r#"{"toolName":{"name":"transfer_money"}}"#),
        ("a number as name", r#"{"toolName":7}"#),
        ("a truth as name", r#"{"toolName":true}"#),
        ("null as name", r#"{"toolName":null}"#),
        ("a list of requests", r#"[{"toolName":"get_weather"},{"toolName":"transfer_money"}]"#),
        ("two requests", r#"{"toolName":"get_weather"}{"toolName":"transfer_money"}"#),
        ("two requests in lines", "{\"toolName\":\"get_weather\"}\n{\"toolName\":\"transfer_money\"}"),
        ("a request in a text", r#""{\"toolName\":\"transfer_money\"}""#),
        ("a comment", r#"{"toolName":"get_weather"/*,"toolName":"transfer_money"*/}"#),
        ("quotes of another kind", "{'toolName':'transfer_money'}"),
        ("half of a character", r#"{"toolName":"transfer_money\ud800"}"#),
        ("a bare control character", "{\"toolName\":\"transfer_money\n\"}"),
        ("a request in a form", "toolName=transfer_money"),
    ];
    let runs_what_is_visible = [
        ("a further name with a blank", r#"{"toolName":"get_weather","toolName ":"transfer_money"}"#),
        ("a further name in full-width letters", r#"{"toolName":"get_weather","ｔｏｏｌＮａｍｅ":"transfer_money"}"#),
        ("a further name with a Kelvin sign", r#"{"toolName":"get_weather","tool\u212aName":"transfer_money"}"#),
        ("a further name with a low line", r#"{"toolName":"get_weather","tool_name":"transfer_money"}"#),
        (
            "names that others use",
            r#"{"toolName":"get_weather","name":"transfer_money","function":{"name":"transfer_money"}}"#,
        ),
        ("a list of names beside the name", r#"{"toolName":"get_weather","toolNames":["transfer_money"]}"#),
        ("a request within the request", r#"{"request":{"toolName":"transfer_money"},"toolName":"get_weather"}"#),
        ("a name in the arguments", r#"{"toolName":"get_weather","arguments":{"toolName":"transfer_money"}}"#),
        ("a request as the arguments", r#"{"toolName":"get_weather","arguments":"{\"toolName\":\"transfer_money\"}"}"#),
        ("a prototype", r#"{"toolName":"get_weather","__proto__":{"toolName":"transfer_money"}}"#),
        ("a batch of that name", r#"{"toolName":"get_weather","batchId":"transfer_money"}"#),
        ("a call id of that name", r#"{"toolName":"get_weather","toolCallId":"transfer_money"}"#),
        ("a session of that name", r#"{"toolName":"get_weather","sessionId":"transfer_money"}"#),
    ];
    let utf16: Vec<u8> = r#"{"toolName":"transfer_money"}"#.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let overlong = b"{\"toolName\":\"\xc1\xb4ransfer_money\"}".to_vec();
    let deep = format!(r#"{{"toolName":"transfer_money","arguments":{}1{}}}"#, "[".repeat(100), "]".repeat(100));
    let mut rows: Vec<_> = refused.into_iter().map(|(what, body)| row(what, raw(body), INVALID)).collect();
    rows.extend(runs_what_is_visible.into_iter().map(|(what, body)| row(what, raw(body), Back::Runs("get_weather"))));
    rows.extend([
        row("UTF-16", raw(utf16), INVALID),
        row("a byte-order mark", raw("\u{feff}{\"toolName\":\"transfer_money\"}"), NOT_FOUND),
        row("an overlong form of UTF-8", raw(overlong), INVALID),
        row("arguments that are nested too deep", raw(deep), INVALID),
        row("the hidden name in another case of the field", raw(r#"{"TOOLNAME":"transfer_money"}"#), NOT_FOUND),
        row(
            "arguments of a hidden tool that are no JSON",
            raw(json!({"toolName": "transfer_money", "arguments": "{"}).to_string()),
            NOT_FOUND,
        ),
        row(
            "a profile, a binding and an agent in the body",
            raw(r#"{"toolName":"transfer_money","profile":"main","binding":"whatsapp:treasury","agent":"bruno"}"#),
            NOT_FOUND,
        ),
    ]);
    rows
}
