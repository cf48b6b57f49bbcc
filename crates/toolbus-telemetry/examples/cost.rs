//! Cost of telemetry for a call, and for a request of an MCP client beside it, in microseconds of one thread, with a
//! collector that takes everything.
//!
//! `cargo run --profile dist -p toolbus-telemetry --example cost`

#[path = "../tests/telemetry/support.rs"]
#[expect(dead_code, clippy::unwrap_used, reason = "the tests use more of it, and may panic")]
mod support;

use toolbus_core::Clock;
use toolbus_core::events::Discard;
use toolbus_core::events::{McpServerEvents, McpServerOperation};
use toolbus_core::telemetry::Telemetry;
use toolbus_telemetry::{McpServerRecorder, Protocol};
use toolbus_testing::otlp::Receiver;

use support::{Daemon, OK, SAMPLED, Script, UNSAMPLED, parent, tool};

const CALLS: u32 = 200_000;

/// Microseconds of one call.
fn per_call(telemetry: &dyn Telemetry, sampled_in_100: u32) -> f64 {
    let weather = tool("weather");
    let (sampled, unsampled) = (parent(SAMPLED), parent(UNSAMPLED));
    let started = Clock::SYSTEM.now();
    for number in 0..CALLS {
        let sender = if number % 100 < sampled_in_100 { &sampled } else { &unsampled };
        let call = Script { parent: Some(sender.clone()), ..Script::of(Some(&weather), OK) };
        call.tell(telemetry);
    }
    Clock::SYSTEM.since(started).as_secs_f64() * 1e6 / f64::from(CALLS)
}

/// Microseconds of one request.
fn per_request(recorder: &McpServerRecorder, sampled_in_100: u32) -> f64 {
    let (sampled, unsampled) = (parent(SAMPLED), parent(UNSAMPLED));
    let started = Clock::SYSTEM.now();
    for number in 0..CALLS {
        let operation = McpServerOperation {
            method: "tools/call",
            protocol_version: "2025-11-25",
            transport: "tcp",
            session: Some("7f3a9be64c4b4f0d8a1c5e2b9d6f0a13"),
            request: "7",
            parent: Some(if number % 100 < sampled_in_100 { &sampled } else { &unsampled }),
        };
        let request = recorder.started(&operation);
        let _ = request.trace();
        request.finished(Some("weather"), None);
    }
    Clock::SYSTEM.since(started).as_secs_f64() * 1e6 / f64::from(CALLS)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Making up the calls takes time as well.
    let floor = per_call(&Discard, 0);
    println!("{:<34} {floor:>6.2} µs (taken off below)", "calls without telemetry");
    let nothing = Daemon::with(None, Protocol::Grpc, &[], support::rabbit());
    let (call, request) = (per_call(&*nothing.telemetry, 0) - floor, per_request(&nothing.exporters.mcp_server(), 0));
    println!("{:<34} {call:>6.2} µs, {request:>6.2} µs of a client's request", "no endpoint");
    for (name, variables, sampled) in [
        ("metrics alone", &[("OTEL_TRACES_EXPORTER", "none")][..], 0),
        ("metrics, 0 % of traces sampled", &[], 0),
        ("metrics, 1 % of traces sampled", &[], 1),
        ("metrics, 100 % of traces sampled", &[], 100),
    ] {
        let receiver = Receiver::start().await?;
        let daemon = Daemon::start(&receiver, Protocol::Grpc, variables);
        let call = per_call(&*daemon.telemetry, sampled) - floor;
        let request = per_request(&daemon.exporters.mcp_server(), sampled);
        println!("{name:<34} {call:>6.2} µs, {request:>6.2} µs of a client's request");
        daemon.end().await;
    }
    Ok(())
}
