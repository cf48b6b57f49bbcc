//! The log as log records.

use toolbus_core::lifecycle::TARGET;
use toolbus_telemetry::Protocol;
use toolbus_testing::otlp::proto::common::v1::any_value::Value;
use toolbus_testing::otlp::proto::logs::v1::LogRecord;
use toolbus_testing::otlp::{Behaviour, Receiver};
use toolbus_testing::patience::eventually;

use crate::observed::{attributes, hex, metrics, span};
use crate::support::{Daemon, rabbit};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

fn body(record: &LogRecord) -> &str {
    match record.body.as_ref().and_then(|body| body.value.as_ref()) {
        Some(Value::StringValue(text)) => text,
        other => panic!("a body is {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_is_a_record_with_severity_body_and_attributes() {
    for protocol in [Protocol::Grpc, Protocol::HttpProtobuf] {
        let receiver = Receiver::start().await.unwrap();
        let daemon = Daemon::start(&receiver, protocol, &[]);
        let log = daemon.logged("info", &[], || {
            tracing::warn!(target: "toolbus_core::log", tool = "echo", wait_ms = 5, cached = true, "a call failed");
            tracing::info!(target: "toolbus::audit", "a tool was called");
            tracing::debug!("a step");
        });
        daemon.end().await;
        assert_eq!(log.lines().count(), 2, "{log}");
        let mut records = receiver.logs();
        assert_eq!(records.len(), 2);
        records.sort_by_key(|(_, record)| record.time_unix_nano);
        let (target, warning) = &records[0];
        assert_eq!((target.as_str(), body(warning)), ("toolbus_core::log", "a call failed"));
        assert_eq!((warning.severity_number, warning.severity_text.as_str()), (13, "WARN"));
        let found = attributes(warning.attributes.clone());
        assert_eq!((&*found["tool"], &*found["wait_ms"], &*found["cached"], found.len()), ("echo", "5", "true", 3));
        assert!(warning.time_unix_nano > 0 && warning.observed_time_unix_nano > 0);
        assert_eq!(warning.event_name, "");
        assert!(warning.trace_id.is_empty());
        let (target, record) = &records[1];
        assert_eq!((target.as_str(), record.severity_number), ("toolbus::audit", 9));
        let resource = receiver.resources().pop().unwrap();
        assert_eq!(attributes(resource.attributes)["service.name"], "toolbus");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_record_holds_a_secret_or_a_text_without_end() {
    let (receiver, daemon) = Daemon::with_receiver(&[]).await;
    let secret = "s3cr3t-t0ken-of-the-broker";
    daemon.logged("info", &[secret], || {
        let split = format!("{}{secret}", "x".repeat(4_090));
        tracing::error!(error = ?Some(secret), url = %format!("amqp://svc:{secret}@host"), split, "refused {secret}");
        tracing::error!("{}", "é".repeat(1_000_000));
    });
    daemon.end().await;
    let records = receiver.logs();
    assert!(!format!("{records:?}").contains("s3cr3"), "{records:?}");
    assert_eq!(body(&records[0].1), "refused [redacted]");
    let found = attributes(records[0].1.attributes.clone());
    assert_eq!((&*found["error"], &*found["url"]), ("Some(\"[redacted]\")", "amqp://svc:[redacted]@host"));
    assert_eq!(body(&records[1].1).len(), 4_096);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_has_the_trace_of_its_call_or_of_the_span_around_it() {
    let (receiver, daemon) = Daemon::with_receiver(&[]).await;
    daemon.logged("info", &[], || {
        tracing::warn!(trace_id = Some(TRACE), "a call failed");
        tracing::warn!(trace_id = "none", "no trace");
        tracing::info_span!(target: TARGET, "drain").in_scope(|| tracing::info!("draining"));
    });
    daemon.end().await;
    let (records, spans) = (receiver.logs(), receiver.spans());
    let record = |text: &str| records.iter().find(|(_, record)| body(record) == text).unwrap().1.clone();
    assert_eq!(hex(&record("a call failed").trace_id), TRACE);
    assert!(record("no trace").trace_id.is_empty());
    let (draining, drain) = (record("draining"), span(&spans, "drain"));
    assert_eq!((draining.trace_id, draining.span_id), (drain.trace_id.clone(), drain.span_id.clone()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_of_the_exporters_are_not_exported() {
    let (receiver, daemon) = Daemon::with_receiver(&[]).await;
    let log = daemon.logged("trace", &[], || {
        tracing::warn!(target: "toolbus_telemetry::health", "could not export telemetry");
        tracing::error!(target: "h2::client", "went away");
        tracing::warn!("heard");
    });
    daemon.end().await;
    assert!(log.contains("could not export telemetry") && log.contains("went away"), "{log}");
    let targets: Vec<String> = receiver.logs().into_iter().map(|(target, _)| target).collect();
    assert_eq!(targets, [module_path!()]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_that_find_no_room_or_are_refused_are_dropped_and_counted() {
    let variables = [
        ("OTEL_BLRP_MAX_QUEUE_SIZE", "4"),
        ("OTEL_BLRP_SCHEDULE_DELAY", "3600000"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "20"),
    ];
    let (receiver, daemon) = Daemon::with_receiver(&variables).await;
    receiver.behave(Behaviour::Hang);
    let log = daemon.logged("info", &[], || (0..30).for_each(|number| tracing::info!(number, "said")));
    assert_eq!(log.lines().count(), 30);
    receiver.behave(Behaviour::Accept);
    let dropped = || metrics(&receiver).get("toolbus.telemetry.dropped_logs")?.value(&[]);
    eventually("the count of dropped records", async || dropped().filter(|count| *count > 0.0)).await;
    daemon.end().await;
    // The first count may have been taken in the middle of the records.
    let dropped = dropped().unwrap();
    #[expect(clippy::cast_precision_loss, reason = "there are thirty")]
    let arrived = receiver.logs().len() as f64;
    assert_eq!(arrived + dropped, 30.0);

    let often = [("OTEL_BLRP_SCHEDULE_DELAY", "20"), ("OTEL_METRIC_EXPORT_INTERVAL", "20")];
    let daemon = Daemon::start(&receiver, Protocol::Grpc, &often);
    receiver.behave(Behaviour::Refuse);
    daemon.logged("info", &[], || tracing::info!("said"));
    // A failed export is tried again three times; both signals have then given one up.
    let before = receiver.attempts();
    eventually("exports that fail", async || (receiver.attempts() >= before + 10).then_some(())).await;
    receiver.behave(Behaviour::Accept);
    eventually("the counts of losses", async || {
        let metrics = metrics(&receiver);
        let of = |name: &str| metrics.get(name).and_then(|series| series.value(&[])).unwrap_or_default();
        let (failed, lost) = (of("toolbus.telemetry.failed_exports"), of("toolbus.telemetry.dropped_logs"));
        (failed >= 1.0 && lost == 1.0).then_some(())
    })
    .await;
    daemon.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_have_switches_of_their_own_and_are_nothing_without_a_collector() {
    let receiver = Receiver::start().await.unwrap();
    let silent = Daemon::start(&receiver, Protocol::Grpc, &[("OTEL_LOGS_EXPORTER", "none")]);
    let log = silent.logged("info", &[], || tracing::info!("said"));
    silent.end().await;
    assert_eq!((log.lines().count(), receiver.logs().len()), (1, 0));
    let endpoint = receiver.http_endpoint() + "/v1/logs";
    let variables =
        [("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", &*endpoint), ("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "http/protobuf")];
    let alone = Daemon::with(None, Protocol::Grpc, &variables, rabbit());
    alone.logged("info", &[], || {
        tracing::info!("said");
        drop(tracing::info_span!(target: TARGET, "unexported"));
    });
    alone.end().await;
    assert_eq!((receiver.logs().len(), receiver.spans().len()), (1, 0));
    let nothing = Daemon::with(None, Protocol::Grpc, &[], rabbit());
    assert!(!nothing.exporters.is_exporting());
    assert_eq!(nothing.logged("info", &[], || tracing::info!("said")).lines().count(), 1);
    nothing.end().await;
}
