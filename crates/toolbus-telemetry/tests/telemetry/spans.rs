//! Connections between the spans of a call, and what goes on to others.

use std::time::Duration;

use toolbus_core::caller::Caller;
use toolbus_core::failure::{Cause, Status};
use toolbus_core::telemetry::{CallEnd, CallSummary};
use toolbus_protocol::{Code, TraceContext};
use toolbus_telemetry::Protocol;
use toolbus_testing::otlp::proto::trace::v1::status::StatusCode;

use crate::observed::{attributes, hex, metrics, span};
use crate::support::{
    Carried, Daemon, OK, SAMPLED, Script, UNSAMPLED, agent, delivery, parent, rabbit, refused, request, tool,
};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sampled_call_continues_its_senders_trace() {
    let (receiver, daemon) = Daemon::with_receiver(&[]).await;
    let weather = tool("weather");
    let call = Script { parent: Some(parent(SAMPLED)), ..Script::of(Some(&weather), OK) };
    let carried = call.tell(&*daemon.telemetry);
    daemon.end().await;

    let spans = receiver.spans();
    assert_eq!(spans.len(), 3);
    assert!(spans.iter().all(|span| hex(&span.trace_id) == TRACE));
    let process = span(&spans, "process rockbot:tool.invoke:toolbus.invoke");
    let execute = span(&spans, "execute_tool weather");
    let publish = span(&spans, "publish reply");
    assert_eq!(hex(&process.parent_span_id), "b7ad6b7169203331");
    assert_eq!(execute.parent_span_id, process.span_id);
    assert_eq!(publish.parent_span_id, process.span_id);
    assert_eq!(execute.end_time_unix_nano - execute.start_time_unix_nano, 20_000_000);
    assert!(spans.iter().all(|span| span.status.as_ref().is_none_or(|status| status.code() == StatusCode::Unset)));

    let expected = |id: &[u8]| TraceContext::parse(&format!("00-{TRACE}-{}-01", hex(id)), Some("vendor=1"));
    assert_eq!(carried.trace_id.as_deref(), Some(TRACE));
    assert_eq!(carried.tool, expected(&execute.span_id));
    assert_eq!(carried.reply, expected(&publish.span_id));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_within_a_call_is_a_tool_that_runs_and_no_message() {
    let (receiver, daemon) = Daemon::with_receiver(&[]).await;
    let weather = tool("weather");
    for around in [SAMPLED, UNSAMPLED] {
        let around = parent(around);
        let mut call = daemon.telemetry.nested(Some(&around), None);
        assert_eq!(call.trace_id(), Some(TRACE));
        assert!(call.executing(&weather, "c", &agent("ana")).is_some());
        call.executed(&OK, Duration::from_millis(20));
        call.finished(&CallSummary { tool: Some(&weather), end: Some(OK), ..CallSummary::unanswered(Duration::ZERO) });
    }
    daemon.end().await;

    let spans = receiver.spans();
    assert_eq!(spans.len(), 1);
    assert_eq!(hex(&span(&spans, "execute_tool weather").parent_span_id), "b7ad6b7169203331");
    let metrics = metrics(&receiver);
    assert_eq!(metrics["rockbot.tool.invocations"].value(&[("tool_name", "weather")]), Some(2.0));
    assert!(!metrics.contains_key("messaging.client.consumed.messages"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unsampled_call_has_no_spans_and_its_context_goes_on() {
    let (receiver, daemon) = Daemon::with_receiver(&[]).await;
    let weather = tool("weather");
    let call = Script { parent: Some(parent(UNSAMPLED)), ..Script::of(Some(&weather), OK) };
    let carried = call.tell(&*daemon.telemetry);
    daemon.end().await;

    assert_eq!(receiver.spans(), []);
    assert_eq!(metrics(&receiver)["rockbot.tool.invocations"].value(&[("tool_name", "weather")]), Some(1.0));
    assert_eq!(carried.trace_id.as_deref(), Some(TRACE));
    for context in [carried.tool.unwrap(), carried.reply.unwrap()] {
        assert_eq!(context.trace_id(), TRACE);
        assert!(context.traceparent().ends_with("-00"), "{context:?}");
        assert_eq!(context.tracestate(), Some("vendor=1"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sampler_of_the_environment_decides_where_no_sender_did() {
    let (receiver, daemon) = Daemon::with_receiver(&[("OTEL_TRACES_SAMPLER", "parentbased_always_off")]).await;
    let weather = tool("weather");
    let alone = Script::of(Some(&weather), OK).tell(&*daemon.telemetry);
    let call = Script { parent: Some(parent(SAMPLED)), ..Script::of(Some(&weather), OK) };
    call.tell(&*daemon.telemetry);
    daemon.end().await;

    assert_eq!(receiver.spans().len(), 3);
    // The decision goes on, so that a tool does not begin a trace of its own.
    assert!(alone.tool.unwrap().traceparent().ends_with("-00"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_call_marks_its_spans() {
    let (receiver, daemon) = Daemon::with_receiver(&[]).await;
    let weather = tool("weather");
    let end = refused(Code::Timeout, Cause::DeadlineExceeded);
    Script { delivered: false, ..Script::of(Some(&weather), end) }.tell(&*daemon.telemetry);
    daemon.end().await;

    let spans = receiver.spans();
    for (name, error) in [("process", "timeout"), ("execute_tool", "timeout"), ("publish", "not_delivered")] {
        let span = span(&spans, name);
        assert_eq!(attributes(span.attributes.clone())["error.type"], error, "{name}");
        assert_eq!(span.status.as_ref().unwrap().code(), StatusCode::Error, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_of_any_length_are_cut_before_they_are_recorded() {
    let (receiver, daemon) = Daemon::with_receiver(&[]).await;
    let mut call = daemon.telemetry.arrived(&delivery(request()), None);
    let caller = Caller { session: Some("y".repeat(1_000_000).into()), ..agent("ana") };
    call.executing(&tool("weather"), &"x".repeat(1_000_000), &caller);
    call.executed(&OK, Duration::ZERO);
    call.finished(&CallSummary { end: Some(OK), replayed: true, ..CallSummary::unanswered(Duration::ZERO) });
    daemon.end().await;
    let spans = receiver.spans();
    let attributes = attributes(span(&spans, "execute_tool").attributes.clone());
    assert_eq!(attributes["gen_ai.tool.call.id"].len(), 255);
    assert_eq!(attributes["gen_ai.conversation.id"].len(), 255);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_goes_back_to_its_queue_leaves_no_span_open() {
    let (receiver, daemon) = Daemon::with_receiver(&[]).await;
    let mut call = daemon.telemetry.arrived(&delivery(request()), None);
    call.executing(&tool("weather"), "call-1", &agent("ana"));
    call.finished(&CallSummary::unanswered(Duration::from_millis(3)));
    daemon.end().await;

    assert_eq!(receiver.spans().len(), 2);
    let metrics = metrics(&receiver);
    assert!(!metrics.contains_key("rockbot.tool.invocations"));
    assert_eq!(metrics["messaging.client.consumed.messages"].value(&[]), Some(1.0));
}

#[tokio::test]
async fn without_an_endpoint_the_senders_context_still_goes_on() {
    let daemon = Daemon::with(None, Protocol::Grpc, &[], rabbit());
    assert!(!daemon.exporters.is_exporting());
    let weather = tool("weather");
    let end = CallEnd { status: Status::Error, cause: None };
    for sender in [Some(parent(SAMPLED)), Some(parent(UNSAMPLED)), None] {
        let call = Script { parent: sender.clone(), ..Script::of(Some(&weather), end) };
        let trace_id = sender.as_ref().map(|sender| sender.trace_id().to_owned());
        let expected = Carried { trace_id, tool: sender.clone(), reply: sender };
        assert_eq!(call.tell(&*daemon.telemetry), expected);
    }
    daemon.end().await;
}

#[tokio::test]
async fn a_disabled_sdk_exports_nothing() {
    let (receiver, daemon) = Daemon::with_receiver(&[("OTEL_SDK_DISABLED", "true")]).await;
    assert!(!daemon.exporters.is_exporting());
    Script::of(Some(&tool("weather")), OK).tell(&*daemon.telemetry);
    daemon.end().await;
    assert_eq!(receiver.attempts(), 0);
}
