//! Cost of keeping a call for operators: its part in the time of every call, whether or not an operator looks.
//!
//! `cargo bench -p toolbus-telemetry`. Each sample is a call, reported as the dispatcher reports it: `kept` to
//! [`RecentCalls`], `discarded` to nothing.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use divan::Bencher;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use toolbus_core::Clock;
use toolbus_core::bus::{Delivery, Settle};
use toolbus_core::caller::Caller;
use toolbus_core::events::Discard;
use toolbus_core::failure::Status;
use toolbus_core::telemetry::{CallEnd, CallSummary, Telemetry};
use toolbus_core::tool::{ToolDescriptor, ToolOutput};
use toolbus_protocol::Properties;
use toolbus_telemetry::RecentCalls;

const ID: &str = "5f0c4f5e-6f3c-4b8e-9d2a-3b1f6f0a7c11";
const OK: CallEnd = CallEnd { status: Status::Ok, cause: None };

struct Settled;

impl Settle for Settled {
    fn acknowledge(self: Box<Self>) -> BoxFuture<'static, ()> {
        ready(()).boxed()
    }

    fn requeue(self: Box<Self>) -> BoxFuture<'static, ()> {
        ready(()).boxed()
    }
}

fn delivery() -> Delivery {
    let id = || Some(ID.to_owned());
    let properties = Properties { message_id: id(), correlation_id: id(), ..Properties::default() };
    Delivery {
        properties: Arc::new(properties),
        body: Bytes::new(),
        size: 0,
        queue: "toolbus.tool.invoke".into(),
        routing_key: "tool.invoke".into(),
        redelivered: false,
        earlier_deliveries: 0,
        delivery_tag: 1,
        arrived: Clock::SYSTEM.now(),
        settle: Box::new(Settled),
    }
}

/// Reports a call to `telemetry`.
fn call(telemetry: &dyn Telemetry, delivery: &Delivery, tool: &ToolDescriptor, caller: &Caller, output: &ToolOutput) {
    let mut span = telemetry.arrived(delivery, None);
    span.requested(Some("{}"));
    span.executing(tool, ID, caller);
    span.executed(&OK, Duration::from_millis(1));
    span.shaped(Ok(output));
    span.publishing(ID);
    span.published(true, Duration::from_millis(1));
    let unanswered = CallSummary::unanswered(Duration::from_millis(3));
    let summary = CallSummary { caller: Some(caller), tool: Some(tool), call_id: ID, end: Some(OK), ..unanswered };
    span.finished(&summary);
}

fn measure(bencher: Bencher<'_, '_>, telemetry: &dyn Telemetry) {
    let (delivery, caller) = (delivery(), Caller::unknown());
    let (tool, output) = (ToolDescriptor::new("echo", "Repeats", "local"), ToolOutput::text("a"));
    // Every later call replaces one.
    (0..2_000).for_each(|_| call(telemetry, &delivery, &tool, &caller, &output));
    bencher.bench_local(|| call(telemetry, &delivery, &tool, &caller, &output));
}

#[divan::bench(sample_count = 1000)]
fn kept(bencher: Bencher<'_, '_>) {
    let calls = RecentCalls::default();
    measure(bencher, &*calls.recording(Arc::new(Discard), Clock::SYSTEM, None));
}

#[divan::bench(sample_count = 1000)]
fn discarded(bencher: Bencher<'_, '_>) {
    measure(bencher, &Discard);
}

fn main() {
    divan::main();
}
