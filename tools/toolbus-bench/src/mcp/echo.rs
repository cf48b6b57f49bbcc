//! The server that is measured with: one tool, which returns the text that it is given.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::process::ExitCode;

use serde_json::{Value, json};

/// The word that makes this executable the server.
pub(super) const WORD: &str = "__mcp_echo";
/// Name of the tool.
pub(super) const TOOL: &str = "bench_echo";

/// Runs as the server, if the arguments (with the program's name first) select it. Absent: they do not.
#[must_use]
pub(crate) fn take_over(mut args: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    if args.nth(1)? != WORD {
        return None;
    }
    let served = serve(io::stdin().lock(), io::stdout().lock());
    Some(if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Responds line by line. Responses leave once no more input has come, so that many calls share a write.
fn serve(input: impl Read, output: impl Write) -> io::Result<()> {
    let (mut input, mut output) = (BufReader::with_capacity(64 * 1024, input), BufWriter::new(output));
    let mut line = String::new();
    while input.read_line(&mut line)? > 0 {
        if let Some(response) = respond(&line) {
            writeln!(output, "{response}")?;
        }
        if input.buffer().is_empty() {
            output.flush()?;
        }
        line.clear();
    }
    output.flush()
}

/// Nothing for notifications, and for what is no JSON.
fn respond(line: &str) -> Option<Value> {
    let request: Value = serde_json::from_str(line).ok()?;
    let id = request.get("id")?;
    let params = |pointer: &str| request.pointer(pointer).cloned().unwrap_or_default();
    let result = match request.get("method")?.as_str()? {
        "initialize" => json!({
            "protocolVersion": params("/params/protocolVersion"),
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "toolbus-bench", "version": env!("CARGO_PKG_VERSION")},
        }),
        "ping" => json!({}),
        "tools/list" => json!({"tools": [{
            "name": TOOL,
            "description": "Answers with the given text.",
            "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
            "annotations": {"readOnlyHint": true},
        }]}),
        "tools/call" => json!({"content": [{"type": "text", "text": params("/params/arguments/text")}]}),
        _ => {
            let error = json!({"code": -32601, "message": "there is no such method"});
            return Some(json!({"jsonrpc": "2.0", "id": id, "error": error}));
        }
    };
    Some(json!({"jsonrpc": "2.0", "id": id, "result": result}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_first_argument_starts_the_server() {
        for arguments in [&["toolbus"][..], &["toolbus", "bench"], &["toolbus", "bench", WORD]] {
            assert!(take_over(arguments.iter().map(OsString::from)).is_none());
        }
    }

    #[test]
    fn each_request_gets_one_response_and_a_notification_none() {
        let requests = [
            r#"{"jsonrpc":"2.0","id":0,"method":"server/discover"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
            "no JSON",
            r#"{"jsonrpc":"2.0","id":"2","method":"tools/call","params":{"name":"bench_echo","arguments":{"text":"hi"}}}"#,
        ];
        let mut responses = Vec::new();
        serve(requests.join("\n").as_bytes(), &mut responses).unwrap();
        let responses = String::from_utf8(responses).unwrap();
        let responses: Vec<Value> = responses.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(responses.len(), 3);
        assert_eq!(responses[0]["error"]["code"], -32601);
        assert_eq!(responses[1]["result"]["protocolVersion"], "2025-11-25");
        assert_eq!((&responses[2]["id"], &responses[2]["result"]["content"][0]["text"]), (&json!("2"), &json!("hi")));
    }
}
