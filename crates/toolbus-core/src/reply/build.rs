//! Replies: built once, and published again unchanged if need be.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;
use toolbus_protocol::{
    Code, ContentBlock, Envelope, Outcome, Properties, ScriptInvokeResponse, ToolError, ToolInvokeResponse,
    TraceContext, bounded, derived_message_id, header, message_type,
};

use crate::caller::{AgentName, Caller};
use crate::failure::{Cause, Status, ToolFailure, Verdict};
use crate::request::{Dialect, Request};
use crate::telemetry::CallEnd;
use crate::text::shortened;
use crate::tool::{Program, ToolOutput, rounded_text};
use crate::{Clock, milliseconds};

/// Largest body of a reply, in bytes: what a broker accepts by default, less room for its own framing.
pub(crate) const MAX_REPLY: usize = 16 * 1024 * 1024 - 64 * 1024;

/// Longest text of an error, in characters.
const MAX_MESSAGE: usize = 4_000;

/// Warning for a caller before it repeats a call that may have had its effect. In the text, because a peer shows its
/// model nothing else.
const OUTCOME_UNKNOWN: &str = " Whether it had its effect is not known: find out before calling again.";
/// The same, for a call that is reported as retryable.
const MAY_REPEAT: &str = " It may have had its effect: calling again may repeat that.";

/// The words by which peers know that a script had too little time.
const TIMED_OUT: &str = "timed out";

/// A reply, ready to be published.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    /// Shared, because a reply that is kept is published as it is.
    pub(crate) properties: Arc<Properties>,
    pub(crate) body: Bytes,
    pub(crate) end: CallEnd,
    /// Known side effects, as the reply names them.
    pub(crate) outcome: Option<Outcome>,
    /// The call that the body names.
    pub(crate) call_id: Arc<str>,
}

/// The caller and the call that a reply is for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReplyContext<'a> {
    /// Name of the daemon.
    pub(crate) source: &'a str,
    pub(crate) clock: Clock,
    pub(crate) envelope: &'a Envelope,
    pub(crate) caller: &'a Caller,
    pub(crate) call_id: &'a Arc<str>,
    pub(crate) tool_name: &'a str,
    pub(crate) dialect: Dialect,
}

/// Facts on the run for the reply's headers.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Run {
    pub(crate) provider: Option<&'static str>,
    pub(crate) queued: Duration,
    pub(crate) ran: Option<Duration>,
}

impl ReplyContext<'_> {
    /// Builds the reply of a tool that ran.
    ///
    /// # Errors
    ///
    /// If the result is larger than a reply may be.
    pub(crate) fn result(&self, output: ToolOutput, run: Run) -> Result<Reply, ToolFailure> {
        let status = if output.is_error { Status::Error } else { Status::Ok };
        let (message_type, body) = match self.dialect {
            Dialect::Tool => {
                checked(output.size())?;
                let ToolOutput { content, blocks, is_error, structured, .. } = output;
                let response = ToolInvokeResponse {
                    tool_call_id: self.call_id.to_string(),
                    tool_name: self.tool_name.to_owned(),
                    content_blocks: self.blocks(blocks, content.as_deref(), structured.as_deref()),
                    content,
                    is_error,
                };
                (message_type::TOOL_INVOKE_RESPONSE, encode(&response))
            }
            Dialect::Script => {
                let response = script_result(self.call_id, output, run.ran.unwrap_or_default());
                checked(script_size(&response))?;
                (message_type::SCRIPT_INVOKE_RESPONSE, encode(&response))
            }
        };
        checked(body.len())?;
        let end = CallEnd { status, cause: None };
        let properties = self.properties(message_type, run);
        Ok(Reply { properties, body, end, outcome: None, call_id: Arc::clone(self.call_id) })
    }

    /// All of a result, when there is more than text: for a caller that wants it, its structured part by itself, too.
    fn blocks(
        &self,
        mut blocks: Vec<ContentBlock>,
        text: Option<&str>,
        structured: Option<&Value>,
    ) -> Option<Vec<ContentBlock>> {
        let is_wanted = || self.envelope.header(header::STRUCTURED_CONTENT).is_some_and(|value| value.trim() == "1");
        let is_missing = || !blocks.iter().any(ContentBlock::is_structured);
        if let Some(structured) = structured.filter(|_| is_wanted() && is_missing()) {
            if let Some(text) = text.filter(|_| blocks.is_empty()) {
                blocks.push(ContentBlock::text(text));
            }
            blocks.push(ContentBlock::structured(structured.to_string()));
        }
        (!blocks.is_empty()).then_some(blocks)
    }

    /// Builds the reply of a failure.
    pub(crate) fn error(&self, failure: &ToolFailure, verdict: Verdict, run: Run) -> Reply {
        let mut message = shortened(&failure.message, MAX_MESSAGE).into_owned();
        if verdict.outcome == Some(Outcome::Unknown) {
            message.push_str(if verdict.is_retryable { MAY_REPEAT } else { OUTCOME_UNKNOWN });
        }
        let (message_type, body) = match self.dialect {
            Dialect::Tool => {
                let error = ToolError {
                    tool_call_id: self.call_id.to_string(),
                    tool_name: self.tool_name.to_owned(),
                    code: verdict.code,
                    message,
                    is_retryable: verdict.is_retryable,
                    retry_after_ms: failure.retry_after.map(whole_milliseconds),
                    outcome: verdict.outcome,
                };
                (message_type::TOOL_ERROR, encode(&error))
            }
            Dialect::Script => {
                let ran = run.ran.unwrap_or_default();
                let error = script_error(self.call_id, verdict.code, message, failure.retry_after, ran);
                (message_type::SCRIPT_INVOKE_RESPONSE, encode(&error))
            }
        };
        let end = CallEnd { status: Status::Refused(verdict.code), cause: Some(failure.cause) };
        let properties = self.properties(message_type, run);
        Reply { properties, body, end, outcome: verdict.outcome, call_id: Arc::clone(self.call_id) }
    }

    fn properties(&self, message_type: &str, run: Run) -> Arc<Properties> {
        let request_id = self.envelope.message_id.as_deref().unwrap_or(&self.envelope.correlation_id);
        let message_id = derived_message_id(&self.caller.owner, self.call_id, request_id);
        let mut envelope = Envelope::outgoing(message_type, self.source, message_id, self.clock.wall())
            .replying_to(self.envelope, destination(self.envelope, self.caller));
        envelope.headers.reserve_exact(4);
        envelope = envelope.with_header(header::CONTENT_TRUST, header::TRUST_TOOL_OUTPUT);
        if let Some(provider) = run.provider {
            envelope = envelope.with_header(header::TOOL_PROVIDER, provider);
        }
        envelope = envelope.with_header(header::QUEUE_MS, milliseconds(run.queued).to_string());
        if let Some(ran) = run.ran {
            envelope = envelope.with_header(header::DURATION_MS, milliseconds(ran).to_string());
        }
        envelope.into_properties().into()
    }
}

/// Milliseconds after which a wait is over: rounded up, so that trying again after them is never too early.
pub(crate) fn whole_milliseconds(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Who a reply is for: as the sender calls itself, or else as the broker knows it.
pub(crate) fn destination(envelope: &Envelope, caller: &Caller) -> Option<String> {
    let agent = caller.agent.as_ref().map(AgentName::as_str);
    envelope.source.as_deref().or(agent).map(|name| bounded(name).to_owned())
}

impl Reply {
    /// Adds the trace that the reply carries.
    pub(crate) fn set_trace(&mut self, trace: &TraceContext) {
        let headers = &mut Arc::make_mut(&mut self.properties).headers;
        let parent = trace.traceparent();
        headers.push((header::PEER_TRACEPARENT.to_owned(), parent.to_owned()));
        headers.push((header::TRACEPARENT.to_owned(), parent.to_owned()));
        if let Some(state) = trace.tracestate() {
            headers.push((header::PEER_TRACESTATE.to_owned(), state.to_owned()));
            headers.push((header::TRACESTATE.to_owned(), state.to_owned()));
        }
    }

    /// The same reply for another request with the same content: with that request's ids.
    pub(crate) fn for_request(self: &Arc<Self>, request: &Request) -> Arc<Self> {
        let Request { envelope, caller, call_id, .. } = request;
        let correlation_id = bounded(&envelope.correlation_id);
        let destination = destination(envelope, caller);
        let is_same = self.properties.correlation_id.as_deref() == Some(correlation_id)
            && self.properties.header(header::DESTINATION) == destination.as_deref()
            && self.call_id == *call_id;
        if is_same {
            return Arc::clone(self);
        }
        let mut reply = Self::clone(self);
        let properties = Arc::make_mut(&mut reply.properties);
        properties.correlation_id = Some(correlation_id.to_owned());
        properties.headers.retain(|(name, _)| name != header::DESTINATION);
        properties.headers.extend(destination.map(|name| (header::DESTINATION.to_owned(), name)));
        if self.call_id != *call_id {
            reply.call_id = Arc::clone(call_id);
            reply.body = with_call_id(&self.properties, &self.body, call_id);
        }
        reply.into()
    }

    /// Reads the reply, for a caller in this process.
    ///
    /// # Errors
    ///
    /// If it is the reply of a failure.
    pub(crate) fn read(&self) -> Result<ToolOutput, ToolFailure> {
        let text = "The result cannot be read.";
        let unreadable = |error: serde_json::Error| ToolFailure::new(Cause::Failed, text).with_detail(error);
        match self.properties.message_type.as_deref() {
            Some(message_type::TOOL_ERROR) => {
                Err(serde_json::from_slice::<ToolError>(&self.body).map_or_else(unreadable, ToolFailure::from))
            }
            _ => serde_json::from_slice::<ToolInvokeResponse>(&self.body).map(ToolOutput::from).map_err(unreadable),
        }
    }

    /// Rough memory of a kept reply, in bytes.
    pub(crate) fn size(&self) -> usize {
        const PROPERTIES: usize = 512;
        self.body.len() + PROPERTIES
    }

    #[cfg(test)]
    pub(crate) fn for_test(bytes: usize) -> Self {
        let end = CallEnd { status: Status::Ok, cause: None };
        let body = Bytes::from(vec![b'x'; bytes]);
        Self { properties: Arc::default(), body, end, outcome: None, call_id: "1".into() }
    }
}

/// Refuses what no broker takes.
fn checked(size: usize) -> Result<(), ToolFailure> {
    if size <= MAX_REPLY {
        return Ok(());
    }
    let text = format!(
        "The result is too large to be sent: {size} bytes, and the limit is {MAX_REPLY}. Ask the tool for less at a time."
    );
    Err(ToolFailure::new(Cause::ResultTooLarge, text))
}

/// Serialises a message of the daemon's. These types hold strings, numbers and enums only, which cannot fail.
fn encode<T: Serialize>(message: &T) -> Bytes {
    serde_json::to_vec(message).unwrap_or_default().into()
}

/// A body of the daemon's with the id of another call. One that cannot be read stays as it is.
fn with_call_id(properties: &Properties, body: &Bytes, call_id: &str) -> Bytes {
    let id = || call_id.to_owned();
    let renamed = match properties.message_type.as_deref() {
        Some(message_type::TOOL_INVOKE_RESPONSE) => {
            serde_json::from_slice(body).map(|response| encode(&ToolInvokeResponse { tool_call_id: id(), ..response }))
        }
        Some(message_type::TOOL_ERROR) => {
            serde_json::from_slice(body).map(|error| encode(&ToolError { tool_call_id: id(), ..error }))
        }
        _ => serde_json::from_slice(body)
            .map(|response| encode(&ScriptInvokeResponse { tool_call_id: id(), ..response })),
    };
    renamed.unwrap_or_else(|_| body.clone())
}

/// Result of a script that was run.
fn script_result(call_id: &str, output: ToolOutput, ran: Duration) -> ScriptInvokeResponse {
    let ToolOutput { content, blocks: _, is_error, structured: _, program, split: _ } = output;
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

/// Error instead of a script's result. Peers look at nothing but the text.
fn script_error(
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
        message = format!("{message} Wait at least {}.", rounded_text(wait));
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
fn script_size(response: &ScriptInvokeResponse) -> usize {
    [&response.output, &response.stderr].into_iter().flatten().map(String::len).sum()
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use serde_json::json;

    use super::*;

    fn blocks(wanted: &str, output: ToolOutput) -> String {
        let headers = vec![(header::STRUCTURED_CONTENT.to_owned(), wanted.to_owned())];
        let (envelope, caller) = (Envelope { headers, ..Envelope::default() }, Caller::unknown());
        let dialect = Dialect::Tool;
        let reply_to = ReplyContext {
            source: "here",
            clock: Clock::SYSTEM,
            envelope: &envelope,
            caller: &caller,
            call_id: &"1".into(),
            tool_name: "t",
            dialect,
        };
        let reply = reply_to.result(output, Run::default()).unwrap();
        let body: Value = serde_json::from_slice(&reply.body).unwrap();
        body["contentBlocks"].to_string()
    }

    #[test]
    fn structured_content_is_sent_once_and_alone_to_callers_that_request_it() {
        let output = ToolOutput { structured: Some(Box::new(json!({"a": 1}))), ..ToolOutput::text("{\"a\":1}") };
        insta::assert_snapshot!(blocks("1", output.clone()), @r##"[{"text":"{\"a\":1}","type":"text"},{"mimeType":"application/json","text":"{\"a\":1}","type":"resource","uri":"toolbus:structured-content"}]"##);
        assert_eq!(blocks("0", output.clone()), "null");
        let block = vec![ContentBlock::structured("{\"a\":1}".to_owned())];
        let once = r#"[{"mimeType":"application/json","text":"{\"a\":1}","type":"resource","uri":"toolbus:structured-content"}]"#;
        assert_eq!(blocks("1", ToolOutput { blocks: block, ..output.clone() }), once);
        assert_eq!(blocks("1", ToolOutput { content: None, ..output }), once);
        assert_eq!(blocks("1", ToolOutput::text("plain")), "null");
    }

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
        written(&script_result("c", ToolOutput::error("unused").of_program(program), RAN))
    }

    fn refused(code: Code, message: &str, retry_after: Option<Duration>) -> String {
        written(&script_error("c", code, message.to_owned(), retry_after, RAN))
    }

    #[test]
    fn a_script_result_has_the_output_of_a_program_by_stream() {
        assert_snapshot!(of_program("out\n", "err\n", 3), @r#"{"toolCallId":"c","output":"out\n","stderr":"err\n","exitCode":3,"isSuccess":false,"elapsedMs":2140}"#);
        assert_snapshot!(of_program("", "", 0), @r#"{"toolCallId":"c","output":null,"stderr":null,"exitCode":0,"isSuccess":true,"elapsedMs":2140}"#);
    }

    #[test]
    fn a_script_result_without_a_program_has_the_content() {
        let shown = |output| written(&script_result("c", output, RAN));
        assert_snapshot!(shown(ToolOutput::text("done")), @r#"{"toolCallId":"c","output":"done","stderr":null,"exitCode":0,"isSuccess":true,"elapsedMs":12}"#);
        assert_snapshot!(shown(ToolOutput::error("sad")), @r#"{"toolCallId":"c","output":"sad","stderr":null,"exitCode":1,"isSuccess":false,"elapsedMs":12}"#);
        assert_snapshot!(shown(ToolOutput::default()), @r#"{"toolCallId":"c","output":null,"stderr":null,"exitCode":0,"isSuccess":true,"elapsedMs":12}"#);
    }

    #[test]
    fn a_timed_out_script_has_the_words_that_peers_look_for() {
        assert_snapshot!(refused(Code::Timeout, "The deadline passed.", None), @r#"{"toolCallId":"c","output":null,"stderr":"Script timed out: The deadline passed.","exitCode":-1,"isSuccess":false,"elapsedMs":12}"#);
        assert_snapshot!(refused(Code::Timeout, "It Timed Out after 30 s.", None), @r#"{"toolCallId":"c","output":null,"stderr":"It Timed Out after 30 s.","exitCode":-1,"isSuccess":false,"elapsedMs":12}"#);
    }

    #[test]
    fn any_other_refusal_has_its_message_and_the_wait_if_any() {
        assert_snapshot!(refused(Code::ToolNotFound, "There is no such tool.", None), @r#"{"toolCallId":"c","output":null,"stderr":"There is no such tool.","exitCode":-1,"isSuccess":false,"elapsedMs":12}"#);
        let wait = Some(Duration::from_micros(1_500_001));
        assert_snapshot!(refused(Code::RateLimited, "Too often.", wait), @r#"{"toolCallId":"c","output":null,"stderr":"Too often. Wait at least 2 s.","exitCode":-1,"isSuccess":false,"elapsedMs":12}"#);
    }
}
