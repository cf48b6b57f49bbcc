//! Spans of what happens beside calls.

use std::time::{Duration, Instant};

use toolbus_core::lifecycle::{TARGET, checked};
use toolbus_telemetry::Protocol;
use toolbus_testing::otlp::Receiver;
use toolbus_testing::otlp::proto::trace::v1::status::StatusCode;
use tracing::field::Empty;
use tracing::{info_span, span_enabled};

use crate::observed::{attributes, kind, span};
use crate::support::{Daemon, OK, SAMPLED, Script, parent, rabbit, tool};

/// Returns when this time has passed.
fn take(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        std::thread::yield_now();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_span_has_its_parent_its_attributes_and_its_time() {
    for protocol in [Protocol::Grpc, Protocol::HttpProtobuf] {
        let receiver = Receiver::start().await.unwrap();
        let daemon = Daemon::start(&receiver, protocol, &[]);
        // Spans that the log leaves out are exported all the same.
        let log = daemon.logged("off", &[], || {
            let start = info_span!(target: TARGET, "mcp start", toolbus.mcp.server = "files", attempt = 2);
            start.in_scope(|| {
                info_span!(target: TARGET, "mcp handshake").in_scope(|| take(Duration::from_millis(20)));
            });
        });
        daemon.end().await;
        assert_eq!(log, "");
        let spans = receiver.spans();
        assert_eq!(spans.len(), 2);
        let (start, handshake) = (span(&spans, "mcp start"), span(&spans, "mcp handshake"));
        assert_eq!(handshake.parent_span_id, start.span_id);
        assert_eq!(handshake.trace_id, start.trace_id);
        assert!(start.parent_span_id.is_empty());
        assert!(handshake.end_time_unix_nano - handshake.start_time_unix_nano >= 20_000_000);
        assert!(start.end_time_unix_nano >= handshake.end_time_unix_nano);
        assert_eq!((kind(start), kind(handshake)), ("internal", "internal"));
        let found = attributes(start.attributes.clone());
        assert_eq!((found.len(), &*found["toolbus.mcp.server"], &*found["attempt"]), (2, "files", "2"));
        assert!(handshake.attributes.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_is_described_without_secrets_and_briefly() {
    let (receiver, daemon) = Daemon::with_receiver(&[]).await;
    daemon.logged("info", &["s3cr3t-t0ken"], || {
        let start = info_span!(target: TARGET, "mcp start", otel.status_description = Empty);
        let failed: Result<(), String> = Err(format!("refused s3cr3t-t0ken{}", "!".repeat(100_000)));
        checked(&start, failed).unwrap_err();
        let reload = info_span!(target: TARGET, "reload", otel.status_description = Empty);
        checked(&reload, Ok::<_, String>(())).unwrap();
    });
    daemon.end().await;
    let spans = receiver.spans();
    let status = span(&spans, "mcp start").status.as_ref().unwrap();
    assert_eq!(status.code(), StatusCode::Error);
    assert!(status.message.starts_with("refused [redacted]!") && status.message.len() <= 255, "{}", status.message);
    assert!(span(&spans, "reload").status.as_ref().is_none_or(|status| status.code() == StatusCode::Unset));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_lifecycle_spans_are_exported_and_the_trace_of_a_call_is_its_own() {
    let (receiver, daemon) = Daemon::with_receiver(&[]).await;
    let weather = tool("weather");
    daemon.logged("trace", &[], || {
        info_span!("of a library").in_scope(|| tracing::info!("an event"));
        let drain = info_span!(target: TARGET, "drain");
        drain.in_scope(|| {
            let call = Script { parent: Some(parent(SAMPLED)), ..Script::of(Some(&weather), OK) };
            call.tell(&*daemon.telemetry);
        });
    });
    daemon.end().await;
    let spans = receiver.spans();
    assert_eq!(spans.len(), 4);
    assert!(span(&spans, "drain").events.is_empty());
    assert_ne!(span(&spans, "execute_tool").trace_id, span(&spans, "drain").trace_id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unlogged_targets_stay_disabled_when_spans_are_exported() {
    let (receiver, daemon) = Daemon::with_receiver(&[]).await;
    daemon.logged("warn", &[], || {
        assert!(span_enabled!(target: TARGET, tracing::Level::INFO));
        assert!(!span_enabled!(target: TARGET, tracing::Level::DEBUG));
        assert!(!tracing::enabled!(target: "toolbus_core::dispatcher", tracing::Level::INFO));
    });
    daemon.end().await;
    let nothing = Daemon::with(None, Protocol::Grpc, &[], rabbit());
    nothing.logged("info", &[], || assert!(!span_enabled!(target: TARGET, tracing::Level::INFO)));
    nothing.end().await;
    let untraced = Daemon::start(&receiver, Protocol::Grpc, &[("OTEL_TRACES_EXPORTER", "none")]);
    untraced.logged("info", &[], || assert!(!span_enabled!(target: TARGET, tracing::Level::INFO)));
    untraced.end().await;
}
