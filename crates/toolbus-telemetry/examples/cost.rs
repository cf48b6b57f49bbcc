//! What telemetry costs a call, in microseconds of one thread, with a collector that takes everything.
//!
//! `cargo run --release -p toolbus-telemetry --example cost`

#[path = "../tests/telemetry/support.rs"]
#[expect(dead_code, clippy::unwrap_used, reason = "the tests use more of it, and may panic")]
mod support;

use std::time::Instant;

use toolbus_core::telemetry::{Silent, Telemetry};
use toolbus_telemetry::Protocol;
use toolbus_testing::otlp::Receiver;

use support::{Daemon, OK, SAMPLED, Script, UNSAMPLED, parent, tool};

const CALLS: u32 = 200_000;

/// Microseconds of one call.
fn per_call(telemetry: &dyn Telemetry, sampled_in_100: u32) -> f64 {
    let weather = tool("weather");
    let (sampled, unsampled) = (parent(SAMPLED), parent(UNSAMPLED));
    let started = Instant::now();
    for number in 0..CALLS {
        let sender = if number % 100 < sampled_in_100 { &sampled } else { &unsampled };
        let call = Script { parent: Some(sender.clone()), ..Script::of(Some(&weather), OK) };
        call.tell(telemetry);
    }
    started.elapsed().as_secs_f64() * 1e6 / f64::from(CALLS)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Making up the calls takes time as well.
    let floor = per_call(&Silent, 0);
    println!("{:<34} {floor:>6.2} µs (taken off below)", "calls without telemetry");
    let nothing = Daemon::with(None, Protocol::Grpc, &[], support::rabbit());
    println!("{:<34} {:>6.2} µs", "no endpoint", per_call(&*nothing.telemetry, 0) - floor);
    for (name, variables, sampled) in [
        ("metrics alone", &[("OTEL_TRACES_EXPORTER", "none")][..], 0),
        ("metrics, 0 % of traces sampled", &[], 0),
        ("metrics, 1 % of traces sampled", &[], 1),
        ("metrics, 100 % of traces sampled", &[], 100),
    ] {
        let receiver = Receiver::start().await?;
        let daemon = Daemon::start(&receiver, Protocol::Grpc, variables);
        println!("{name:<34} {:>6.2} µs", per_call(&*daemon.telemetry, sampled) - floor);
        daemon.end().await;
    }
    Ok(())
}
