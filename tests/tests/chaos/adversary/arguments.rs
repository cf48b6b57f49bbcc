//! Arguments that an operator sets or bounds: those set for the caller, and recipients. And rates, which arguments do not
//! escape.

use serde_json::{Value, json};

use super::row::{Back, INVALID, NOT_ALLOWED, NOT_FOUND, Row, call, call_with, raw, row};

pub(crate) fn rows() -> Vec<Row> {
    forced().into_iter().chain(recipients()).chain(rates()).collect()
}

/// `read_note` has `folder` set to `ana`, and its backend is known by the folder.
fn forced() -> Vec<Row> {
    let arguments = |text: &str| raw(format!(r#"{{"toolName":"read_note","arguments":{text}}}"#));
    let refused = [
        ("the same field", r#"{"folder":"bruno"}"#),
        ("the same field with the same value", r#"{"folder":"ana"}"#),
        ("the same field with null", r#"{"folder":null}"#),
        ("the same field, escaped", r#"{"f\u006flder":"bruno"}"#),
        ("the same field in a text", r#""{\"folder\":\"bruno\"}""#),
        ("the same field twice", r#"{"folder":"ana","folder":"bruno"}"#),
        ("the same field in another case", r#"{"Folder":"bruno"}"#),
        ("the same field with a blank", r#"{"folder ":"bruno"}"#),
        ("the same field nested", r#"{"note":{"folder":"bruno"}}"#),
        ("the same field as a path", r#"{"/folder":"bruno"}"#),
        ("the same field as a form's list", r#"{"folder[]":"bruno"}"#),
        ("the same field with NUL", r#"{"folder\u0000":"bruno"}"#),
        ("the same field with a character without width", r#"{"fol\u200bder":"bruno"}"#),
        ("the same field in full width", r#"{"ｆｏｌｄｅｒ":"bruno"}"#),
        ("the same field with a Cyrillic letter", r#"{"fоlder":"bruno"}"#),
        ("the same field with an underscore", r#"{"f_older":"bruno"}"#),
        ("the same field as a pair of a query", r#"{"folder=bruno&x":"1"}"#),
        ("a prototype", r#"{"__proto__":{"folder":"bruno"}}"#),
        ("a list of arguments", r#"[{"folder":"bruno"}]"#),
    ];
    let mut rows: Vec<_> = refused
        .into_iter()
        .map(|(what, text)| row(format!("an argument set by the operator, and {what}"), arguments(text), INVALID))
        .collect();
    rows.push(row("an argument set by the operator is used", arguments(r#"{"note":"../bruno"}"#), Back::Runs("ana")));
    rows.push(row(
        "an argument set by the operator, and arguments beside the arguments",
        raw(r#"{"toolName":"read_note","folder":"bruno","args":{"folder":"bruno"}}"#),
        Back::Runs("ana"),
    ));
    rows
}

/// `ana` may write to +57 300 111 2233 alone.
fn recipients() -> Vec<Row> {
    let (friend, stranger) = ("+573001112233", "+573009998877");
    let refused: Vec<(&str, Value)> = vec![
        ("a stranger", json!({"to": stranger})),
        ("a stranger behind a friend", json!({"to": format!("{friend},{stranger}")})),
        ("a stranger behind a friend and a line end", json!({"to": format!("{friend}\n{stranger}")})),
        ("a stranger in the copy", json!({"to": friend, "cc": [friend, stranger]})),
        ("a stranger in the copy alone", json!({"cc": [stranger]})),
        ("a stranger in a list in the copy", json!({"to": friend, "cc": [[stranger]]})),
        ("a stranger in an object in the copy", json!({"to": friend, "cc": [{"to": stranger}]})),
        ("a copy that is no list", json!({"to": friend, "cc": stranger})),
        ("a stranger in a list", json!({"to": [stranger]})),
        ("a friend in a list", json!({"to": [friend]})),
        ("a stranger in an object", json!({"to": {"number": stranger}})),
        ("a stranger as a number", json!({"to": 573_009_998_877_u64})),
        ("null", json!({"to": null})),
        ("nothing", json!({"to": ""})),
        ("nobody", json!({"text": "hello"})),
        ("a stranger in a field in another case", json!({"To": stranger})),
        ("everybody", json!({"to": "*"})),
        ("a friend with a digit more", json!({"to": format!("{friend}4")})),
        ("a friend without the country", json!({"to": "3001112233"})),
        ("a friend in Arabic digits", json!({"to": "٥٧٣٠٠١١١٢٢٣٣"})),
        ("a friend in full-width digits", json!({"to": "５７３００１１１２２３３"})),
        ("a friend with a space without width", json!({"to": "57300\u{200b}1112233"})),
        ("a friend with NUL", json!({"to": format!("{friend}\0")})),
        ("a friend as a display name", json!({"to": format!("{friend} <{stranger}>")})),
        ("a friend as a link", json!({"to": format!("tel:{friend}")})),
        ("a friend with an extension", json!({"to": format!("{friend};ext=1")})),
        ("a broadcast", json!({"to": "status@broadcast"})),
        ("a group", json!({"to": "573001112233-1500000000@g.us"})),
        ("a friend at another host", json!({"to": "573001112233@evil.example"})),
    ];
    let mut rows: Vec<_> = refused
        .into_iter()
        .map(|(what, arguments)| {
            row(format!("a message to {what}"), call_with("send_message", &arguments), NOT_ALLOWED)
        })
        .collect();
    let twice = format!(r#"{{"toolName":"send_message","arguments":{{"to":"{friend}","to":"{stranger}"}}}}"#);
    let unread = format!(r#"{{"toolName":"send_message","to":"{friend}","arguments":{{"to":"{stranger}"}}}}"#);
    let stranger = json!({"to": stranger});
    rows.extend([
        row("a message to two in one field", raw(twice), INVALID),
        row("a message to a stranger, with a friend beside the arguments", raw(unread), NOT_ALLOWED),
        row(
            "a message to a stranger in arguments that are a text",
            raw(json!({"toolName": "send_message", "arguments": stranger.to_string()}).to_string()),
            NOT_ALLOWED,
        ),
        row(
            "a message to a stranger, under the profile main",
            call_with("send_message", &stranger).header("rb-tool-profile", "main"),
            NOT_ALLOWED,
        ),
        row(
            "a message to a stranger, under a binding that has no list",
            call_with("send_message", &stranger).header("rb-binding", "whatsapp:treasury"),
            NOT_FOUND,
        ),
        row(
            "a message to a stranger, in a session",
            raw(json!({"toolName": "send_message", "arguments": stranger, "sessionId": "s"}).to_string()),
            NOT_ALLOWED,
        ),
        row(
            "a message to a friend as people write it",
            call_with("send_message", &json!({"to": "+57 300 111-2233"})),
            Back::Runs("send_message"),
        ),
        row(
            "a message to a friend as a number",
            call_with("send_message", &json!({"to": 573_001_112_233_u64})),
            Back::Runs("send_message"),
        ),
    ]);
    rows
}

/// `ana` may call `files.stamp` once.
fn rates() -> Vec<Row> {
    let over = Back::Refused("rate_limited");
    let with = |field: &str| raw(format!(r#"{{"toolName":"files.stamp",{field}}}"#));
    vec![
        row("a limited tool, the first time", call("files.stamp"), Back::Runs("stamp")),
        row("a limited tool, again", call("files.stamp"), over.clone()),
        row("a limited tool, by the name that models know", call("files_stamp_5bd1e1de35da"), over.clone()),
        row("a limited tool, by its bare name", call("stamp"), NOT_FOUND),
        row("a limited tool, in another case", call("FILES.stamp"), NOT_FOUND),
        row("a limited tool, with a space", call("files.stamp "), NOT_FOUND),
        row("a limited tool, in a session", with(r#""sessionId":"s-1""#), over.clone()),
        row("a limited tool, in another session", with(r#""sessionId":"s-2""#), over.clone()),
        row("a limited tool, with another call id", with(r#""toolCallId":"another""#), over.clone()),
        row("a limited tool, in a batch", with(r#""batchId":"b""#), over.clone()),
        row("a limited tool, with other arguments", with(r#""arguments":{"x":1}"#), over.clone()),
        row(
            "a limited tool, under the profile main",
            call("files.stamp").header("rb-tool-profile", "main"),
            over.clone(),
        ),
        row("a limited tool, under an empty binding", call("files.stamp").header("rb-binding", ""), NOT_FOUND),
        row(
            "a limited tool, under another spelling of a binding",
            call("files.stamp").header("rb-binding", "Whatsapp:sales"),
            NOT_FOUND,
        ),
        row("a limited tool, for a model", call("files.stamp").header("rb-rb-model", "gpt"), over.clone()),
        row("a limited tool, as a peer", call("files.stamp").of_type("RockBot.Tools.ToolInvokeRequest"), over.clone()),
        row("a limited tool, with a longer budget", call("files.stamp").header("rb-rb-timeout-ms", "60000"), over),
    ]
}
