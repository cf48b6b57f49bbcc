//! A collector that hangs, refuses or is not there disturbs neither calls nor the end.

use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use toolbus_telemetry::Protocol;
use toolbus_testing::otlp::{Behaviour, Receiver};
use toolbus_testing::patience::eventually;

use crate::observed::metrics;
use crate::support::{Daemon, OK, SAMPLED, Script, parent, rabbit, tool};

const SHORT: Duration = Duration::from_millis(200);
/// More than any machine needs beyond [`SHORT`], and less than an exporter's own limits.
const SOON: Duration = Duration::from_secs(8);
const OFTEN: [(&str, &str); 2] = [("OTEL_METRIC_EXPORT_INTERVAL", "20"), ("OTEL_BSP_SCHEDULE_DELAY", "20")];

fn call(daemon: &Daemon, times: usize) {
    let weather = tool("weather");
    for _ in 0..times {
        let call = Script { parent: Some(parent(SAMPLED)), ..Script::of(Some(&weather), OK) };
        call.tell(&*daemon.telemetry);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_hangs_delays_neither_calls_nor_the_end() {
    for protocol in [Protocol::Grpc, Protocol::HttpProtobuf] {
        let receiver = Receiver::start().await.unwrap();
        receiver.behave(Behaviour::Hang);
        let daemon = Daemon::start(&receiver, protocol, &OFTEN);
        call(&daemon, 1);
        eventually("an export that hangs", async || (receiver.attempts() >= 2).then_some(())).await;
        // Far more spans than may wait.
        let started = Instant::now();
        call(&daemon, 2_000);
        assert!(started.elapsed() < SOON, "{protocol:?}: calls took {:?}", started.elapsed());
        let started = Instant::now();
        daemon.exporters.shutdown(SHORT).await.unwrap_err();
        assert!(started.elapsed() < SOON, "{protocol:?}: the end took {:?}", started.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pipeline_that_is_only_dropped_does_not_block() {
    let receiver = Receiver::start().await.unwrap();
    receiver.behave(Behaviour::Hang);
    for protocol in [Protocol::Grpc, Protocol::HttpProtobuf] {
        let daemon = Daemon::start(&receiver, protocol, &[]);
        call(&daemon, 10);
        let started = Instant::now();
        drop(daemon);
        assert!(started.elapsed() < SOON, "the end took {:?}", started.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_exports_are_counted_and_metrics_catch_up() {
    for protocol in [Protocol::Grpc, Protocol::HttpProtobuf] {
        let receiver = Receiver::start().await.unwrap();
        receiver.behave(Behaviour::Refuse);
        let daemon = Daemon::start(&receiver, protocol, &OFTEN);
        call(&daemon, 3);
        // A failed export is tried again three times; both signals have then given one up.
        eventually("exports that fail", async || (receiver.attempts() >= 10).then_some(())).await;
        receiver.behave(Behaviour::Accept);
        call(&daemon, 1);
        eventually("the counts of losses", async || {
            let metrics = metrics(&receiver);
            let of = |name: &str| metrics.get(name).and_then(|series| series.value(&[])).unwrap_or_default();
            let (failed, lost) = (of("toolbus.telemetry.failed_exports"), of("toolbus.telemetry.dropped_spans"));
            // Metrics are cumulative: none of the calls is lost.
            (failed >= 1.0 && lost >= 3.0 && of("rockbot.tool.invocations") == 4.0).then_some(())
        })
        .await;
        daemon.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_that_find_no_room_are_dropped_and_counted() {
    let receiver = Receiver::start().await.unwrap();
    let daemon = Daemon::start(
        &receiver,
        Protocol::Grpc,
        &[("OTEL_BSP_MAX_QUEUE_SIZE", "4"), ("OTEL_BSP_SCHEDULE_DELAY", "3600000"), OFTEN[0]],
    );
    receiver.behave(Behaviour::Hang);
    call(&daemon, 10);
    receiver.behave(Behaviour::Accept);
    let dropped = || metrics(&receiver).get("toolbus.telemetry.dropped_spans")?.value(&[]);
    eventually("the count of dropped spans", async || dropped().filter(|count| *count > 0.0)).await;
    daemon.end().await;
    // The first count may have been taken in the middle of the calls.
    let dropped = dropped().unwrap();
    #[expect(clippy::cast_precision_loss, reason = "there are thirty")]
    let arrived = receiver.spans().len() as f64;
    assert_eq!(arrived + dropped, 30.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_is_not_there_delays_nothing() {
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", unused.local_addr().unwrap());
    drop(unused);
    for protocol in [Protocol::Grpc, Protocol::HttpProtobuf] {
        let daemon = Daemon::with(Some(endpoint.clone()), protocol, &[], rabbit());
        call(&daemon, 10);
        let started = Instant::now();
        // The exporter may give up before the limit or after it.
        drop(daemon.exporters.shutdown(SHORT).await);
        assert!(started.elapsed() < SOON, "the end took {:?}", started.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_after_the_end_are_no_trouble() {
    let (receiver, daemon) = Daemon::with_receiver(&[]).await;
    call(&daemon, 1);
    let telemetry = daemon.telemetry.clone();
    daemon.end().await;
    let weather = tool("weather");
    let late = Script { parent: Some(parent(SAMPLED)), ..Script::of(Some(&weather), OK) }.tell(&*telemetry);
    assert_eq!(late.tool, Some(parent(SAMPLED)));
    assert_eq!(receiver.spans().len(), 3);
}

#[tokio::test]
async fn the_end_is_flushed_on_a_single_thread_too() {
    let (receiver, daemon) = Daemon::with_receiver(&[]).await;
    call(&daemon, 2);
    daemon.end().await;
    assert_eq!(receiver.spans().len(), 6);
    assert_eq!(metrics(&receiver)["rockbot.tool.invocations"].value(&[]), Some(2.0));
}
