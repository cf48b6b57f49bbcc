use std::time::Duration;

use toolbus_protocol::{Code, ScriptInvokeResponse};

use super::whole_milliseconds;
use crate::tool::{Program, ToolOutput};

/// The words by which peers know that a script had too little time.
const TIMED_OUT: &str = "timed out";

/// What became of a script that was run.
pub(super) fn result(call_id: &str, output: ToolOutput, ran: Duration) -> ScriptInvokeResponse {
    let ToolOutput { content, blocks: _, is_error, structured: _, program } = output;
    let program = program.map_or_else(
        || Program { stdout: content, stderr: None, exit_code: i32::from(is_error), elapsed: ran },
        |program| *program,
    );
    let written = |text: Option<String>| text.filter(|text| !text.is_empty());
    ScriptInvokeResponse {
        tool_call_id: call_id.to_owned(),
        output: written(program.stdout),
        stderr: written(program.stderr),
        exit_code: program.exit_code,
        elapsed_ms: milliseconds(program.elapsed),
    }
}

/// What is said where there is no result. Peers look at nothing but the text.
pub(super) fn error(
    call_id: &str,
    code: Code,
    mut message: String,
    retry_after: Option<Duration>,
    ran: Duration,
) -> ScriptInvokeResponse {
    if code == Code::Timeout && !message.to_ascii_lowercase().contains(TIMED_OUT) {
        message = format!("Script {TIMED_OUT}: {message}");
    }
    if let Some(wait) = retry_after {
        message = format!("{message} Wait at least {} ms.", whole_milliseconds(wait));
    }
    ScriptInvokeResponse {
        tool_call_id: call_id.to_owned(),
        output: None,
        stderr: Some(message),
        exit_code: ScriptInvokeResponse::NOT_RUN,
        elapsed_ms: milliseconds(ran),
    }
}

/// Bytes of text in what became of a script.
pub(super) fn size(response: &ScriptInvokeResponse) -> usize {
    [&response.output, &response.stderr].into_iter().flatten().map(String::len).sum()
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    const RAN: Duration = Duration::from_millis(12);

    fn written(response: &ScriptInvokeResponse) -> String {
        serde_json::to_string(response).unwrap()
    }

    fn of_program(stdout: &str, stderr: &str, exit_code: i32) -> String {
        let program = Program {
            stdout: Some(stdout.to_owned()),
            stderr: Some(stderr.to_owned()),
            exit_code,
            elapsed: Duration::from_micros(2_140_900),
        };
        written(&result("c", ToolOutput::error("unused").of_program(program), RAN))
    }

    fn refused(code: Code, message: &str, retry_after: Option<Duration>) -> String {
        written(&error("c", code, message.to_owned(), retry_after, RAN))
    }

    #[test]
    fn what_a_program_wrote_is_told_stream_by_stream() {
        assert_snapshot!(of_program("out\n", "err\n", 3), @r#"{"toolCallId":"c","output":"out\n","stderr":"err\n","exitCode":3,"isSuccess":false,"elapsedMs":2140}"#);
        assert_snapshot!(of_program("", "", 0), @r#"{"toolCallId":"c","output":null,"stderr":null,"exitCode":0,"isSuccess":true,"elapsedMs":2140}"#);
    }

    #[test]
    fn a_tool_that_ran_no_program_is_told_by_its_content() {
        let told = |output| written(&result("c", output, RAN));
        assert_snapshot!(told(ToolOutput::text("done")), @r#"{"toolCallId":"c","output":"done","stderr":null,"exitCode":0,"isSuccess":true,"elapsedMs":12}"#);
        assert_snapshot!(told(ToolOutput::error("sad")), @r#"{"toolCallId":"c","output":"sad","stderr":null,"exitCode":1,"isSuccess":false,"elapsedMs":12}"#);
        assert_snapshot!(told(ToolOutput::default()), @r#"{"toolCallId":"c","output":null,"stderr":null,"exitCode":0,"isSuccess":true,"elapsedMs":12}"#);
    }

    #[test]
    fn too_little_time_is_told_in_the_words_that_peers_look_for() {
        assert_snapshot!(refused(Code::Timeout, "The deadline passed.", None), @r#"{"toolCallId":"c","output":null,"stderr":"Script timed out: The deadline passed.","exitCode":-1,"isSuccess":false,"elapsedMs":12}"#);
        assert_snapshot!(refused(Code::Timeout, "It Timed Out after 30 s.", None), @r#"{"toolCallId":"c","output":null,"stderr":"It Timed Out after 30 s.","exitCode":-1,"isSuccess":false,"elapsedMs":12}"#);
    }

    #[test]
    fn any_other_refusal_is_told_as_it_is_and_with_the_wait_where_there_is_one() {
        assert_snapshot!(refused(Code::ToolNotFound, "There is no such tool.", None), @r#"{"toolCallId":"c","output":null,"stderr":"There is no such tool.","exitCode":-1,"isSuccess":false,"elapsedMs":12}"#);
        let wait = Some(Duration::from_micros(1_500_001));
        assert_snapshot!(refused(Code::RateLimited, "Too often.", wait), @r#"{"toolCallId":"c","output":null,"stderr":"Too often. Wait at least 1501 ms.","exitCode":-1,"isSuccess":false,"elapsedMs":12}"#);
    }
}
