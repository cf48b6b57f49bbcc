//! Labels of metrics, and what metrics count.

use toolbus_core::bus::BusState;
use toolbus_core::caller::Caller;
use toolbus_core::failure::{Cause, Status};
use toolbus_core::telemetry::CallEnd;
use toolbus_protocol::Code;
use toolbus_testing::patience::eventually;

use crate::observed::metrics;
use crate::support::{Daemon, OK, Script, agent, refused, tool};

/// No spans, and metrics as often as can be.
const QUICK: [(&str, &str); 2] = [("OTEL_TRACES_EXPORTER", "none"), ("OTEL_METRIC_EXPORT_INTERVAL", "20")];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tools_that_end_in_every_way_stay_below_the_limit_of_series() {
    let (receiver, daemon) = Daemon::with_receiver(&QUICK[..1]).await;
    let statuses: Vec<Status> = Code::ALL.into_iter().map(Status::Refused).chain([Status::Ok, Status::Error]).collect();
    let mut calls = 0.0;
    for number in 0..300 {
        let tool = tool(&format!("tool_{number}"));
        let failures = Cause::ALL.into_iter().map(|cause| refused(Code::ExecutionFailed, cause));
        let ends = statuses.iter().map(|status| CallEnd { status: *status, cause: None });
        for end in ends.chain(failures) {
            Script::of(Some(&tool), end).tell(&*daemon.telemetry);
            calls += 1.0;
        }
    }
    daemon.end().await;

    let metrics = metrics(&receiver);
    for (name, series) in &metrics {
        assert!(series.values("otel.metric.overflow").is_empty(), "{name} has too many series");
    }
    let invocations = &metrics["rockbot.tool.invocations"];
    assert_eq!(invocations.value(&[]), Some(calls));
    assert_eq!(invocations.values("tool_name").len(), 201);
    assert_eq!(invocations.value(&[("tool_name", "_other"), ("tool_source", "_other"), ("status", "ok")]), Some(100.0));
    assert_eq!(invocations.value(&[("tool_name", "tool_199"), ("status", "timeout")]), Some(1.0));
    assert_eq!(metrics["gen_ai.execute_tool.duration"].values("gen_ai.tool.name").len(), 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_are_counted_by_agents_of_the_configuration_and_those_of_all_others_together() {
    let (receiver, daemon) = Daemon::with_receiver(&QUICK[..1]).await;
    let weather = tool("weather");
    let stranger = Caller { has_section: false, ..agent("eve") };
    for caller in [agent("ana"), agent("ana"), agent("bob"), stranger, Caller::unknown()] {
        Script { caller, ..Script::of(Some(&weather), OK) }.tell(&*daemon.telemetry);
    }
    Script { caller: agent("bob"), ..Script::of(None, refused(Code::ToolNotFound, Cause::UnknownTool)) }
        .tell(&*daemon.telemetry);
    daemon.end().await;

    let metrics = metrics(&receiver);
    for name in ["rockbot.tool.invocations", "rockbot.tool.invoke.duration"] {
        let of = |agent, tool| metrics[name].value(&[("agent", agent), ("tool_name", tool)]);
        let found = [("ana", "weather"), ("bob", "weather"), ("_other", "weather"), ("bob", "_unknown")];
        assert_eq!(found.map(|(agent, tool)| of(agent, tool)), [Some(2.0), Some(1.0), Some(2.0), Some(1.0)], "{name}");
        assert_eq!(metrics[name].values("agent").len(), 3);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_are_no_tools_share_one_label() {
    let (receiver, daemon) = Daemon::with_receiver(&QUICK[..1]).await;
    for _ in 0..50 {
        Script::of(None, refused(Code::ToolNotFound, Cause::UnknownTool)).tell(&*daemon.telemetry);
    }
    daemon.end().await;

    let metrics = metrics(&receiver);
    let invocations = &metrics["rockbot.tool.invocations"];
    assert_eq!(invocations.points.len(), 1);
    let labels = [("tool_name", "_unknown"), ("tool_source", "_unknown"), ("status", "tool_not_found")];
    assert_eq!(invocations.value(&labels), Some(50.0));
    assert!(!metrics.contains_key("gen_ai.execute_tool.duration"), "no tool ran");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tools_own_error_has_a_status_of_its_own() {
    let (receiver, daemon) = Daemon::with_receiver(&QUICK[..1]).await;
    let weather = tool("weather");
    Script::of(Some(&weather), OK).tell(&*daemon.telemetry);
    Script::of(Some(&weather), CallEnd { status: Status::Error, cause: None }).tell(&*daemon.telemetry);
    daemon.end().await;

    let metrics = metrics(&receiver);
    assert_eq!(metrics["rockbot.tool.invocations"].value(&[("status", "error")]), Some(1.0));
    assert_eq!(metrics["rockbot.tool.invocations"].value(&[("status", "ok")]), Some(1.0));
    assert_eq!(metrics["gen_ai.execute_tool.duration"].value(&[("error.type", "tool_error")]), Some(1.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kept_result_that_is_sent_again_is_no_second_invocation() {
    let (receiver, daemon) = Daemon::with_receiver(&QUICK[..1]).await;
    Script::of(Some(&tool("weather")), OK).tell(&*daemon.telemetry);
    Script { replayed: true, ..Script::of(None, OK) }.tell(&*daemon.telemetry);
    daemon.end().await;

    let metrics = metrics(&receiver);
    assert_eq!(metrics["rockbot.tool.invocations"].value(&[]), Some(1.0));
    assert_eq!(metrics["messaging.client.sent.messages"].value(&[]), Some(2.0));
    assert_eq!(metrics["messaging.client.consumed.messages"].value(&[]), Some(2.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gauges_follow_the_broker() {
    let (receiver, daemon) = Daemon::with_receiver(&QUICK).await;
    let states = async |expected: [f64; 4]| {
        let names = ["connected", "blocked", "ready", "reconnects"];
        eventually("the state of the broker", async || {
            let metrics = metrics(&receiver);
            let value = |name| metrics.get(&format!("toolbus.broker.{name}")).and_then(|series| series.value(&[]));
            (names.map(value) == expected.map(Some)).then_some(())
        })
        .await;
    };
    states([0.0, 0.0, 0.0, 0.0]).await;
    let consumers = vec![("toolbus.invoke".to_owned(), true)];
    let up = BusState { connected: true, reconnects: 2, consumers, ..BusState::default() };
    daemon.bus.send_replace(up.clone());
    states([1.0, 0.0, 1.0, 2.0]).await;
    let depths = [("toolbus.invoke".to_owned(), 7)].into();
    daemon.bus.send_replace(BusState { blocked: Some("memory".into()), depths, ..up });
    states([1.0, 1.0, 0.0, 2.0]).await;
    let depth = metrics(&receiver)["toolbus.queue.depth"].value(&[("queue", "toolbus.invoke")]);
    assert_eq!(depth, Some(7.0));
    daemon.end().await;
}
