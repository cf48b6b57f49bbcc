//! Every metric: its name, unit and bounds.

use std::sync::Arc;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{AsyncInstrument, Counter, Histogram, Meter};
use tokio::sync::watch;
use toolbus_core::bus::BusState;
use toolbus_core::ledger::{LedgerLimits, LedgerUsage};
use toolbus_core::telemetry::Load;

use crate::health::ExportHealth;
use crate::process;

/// Milliseconds, from 1 ms to 300 s.
pub(crate) const INVOKE_BOUNDS: [f64; 17] = [
    1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1_000.0, 2_500.0, 5_000.0, 10_000.0, 30_000.0, 60_000.0,
    120_000.0, 300_000.0,
];
/// Seconds, as the conventions for generative AI advise.
const EXECUTE_BOUNDS: [f64; 14] =
    [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92];
/// Seconds, as the conventions for messaging advise.
const MESSAGING_BOUNDS: [f64; 14] = [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];
/// Seconds, from 50 µs to 10 s.
const OVERHEAD_BOUNDS: [f64; 17] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];
/// Seconds, from one, the resolution of senders, to an hour.
const AGE_BOUNDS: [f64; 10] = [1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3_600.0];

/// Instruments that calls are recorded with.
pub(crate) struct CallInstruments {
    pub(crate) invoke_duration: Histogram<f64>,
    pub(crate) invocations: Counter<u64>,
    pub(crate) execute_duration: Histogram<f64>,
    pub(crate) process_duration: Histogram<f64>,
    pub(crate) operation_duration: Histogram<f64>,
    pub(crate) consumed: Counter<u64>,
    pub(crate) sent: Counter<u64>,
    pub(crate) overhead: Histogram<f64>,
    pub(crate) queue_age: Histogram<f64>,
    pub(crate) dead_letters: Counter<u64>,
    pub(crate) ledger_events: Counter<u64>,
}

impl CallInstruments {
    pub(crate) fn new(meter: &Meter) -> Self {
        let histogram = |name: &'static str, unit: &'static str, bounds: &[f64], description: &'static str| {
            let builder = meter.f64_histogram(name).with_unit(unit).with_description(description);
            builder.with_boundaries(bounds.to_vec()).build()
        };
        let counter = |name: &'static str, unit: &'static str, description: &'static str| {
            meter.u64_counter(name).with_unit(unit).with_description(description).build()
        };
        Self {
            invoke_duration: histogram(
                "rockbot.tool.invoke.duration",
                "ms",
                &INVOKE_BOUNDS,
                "From the arrival of a request to its finished answer.",
            ),
            invocations: counter("rockbot.tool.invocations", "{invocation}", "Requests that were answered."),
            execute_duration: histogram("gen_ai.execute_tool.duration", "s", &EXECUTE_BOUNDS, "The tool's own time."),
            process_duration: histogram(
                "messaging.process.duration",
                "s",
                &MESSAGING_BOUNDS,
                "From the arrival of a message to its settlement.",
            ),
            operation_duration: histogram(
                "messaging.client.operation.duration",
                "s",
                &MESSAGING_BOUNDS,
                "From publishing an answer to the broker's confirm.",
            ),
            consumed: counter("messaging.client.consumed.messages", "{message}", "Messages taken from a queue."),
            sent: counter("messaging.client.sent.messages", "{message}", "Answers published."),
            overhead: histogram(
                "toolbus.overhead.duration",
                "s",
                &OVERHEAD_BOUNDS,
                "The part of a call's time that is the daemon's and not the tool's.",
            ),
            queue_age: histogram(
                "toolbus.queue.age",
                "s",
                &AGE_BOUNDS,
                "From the sending of a message, as its sender says, to its arrival.",
            ),
            dead_letters: counter(
                "toolbus.dead_letters",
                "{message}",
                "Messages that were dead-lettered by the daemon.",
            ),
            ledger_events: counter(
                "toolbus.ledger.events",
                "{event}",
                "Requests that were known, and that the ledger could not take.",
            ),
        }
    }
}

/// Registers how many tools and servers get no calls because they fail, and how often that began.
pub(crate) fn observe_breakers(
    meter: &Meter,
    open: impl Fn() -> u64 + Send + Sync + 'static,
    trips: impl Fn() -> u64 + Send + Sync + 'static,
) {
    let gauge = meter.u64_observable_gauge("toolbus.breaker.open").with_unit("{breaker}");
    let gauge = gauge.with_description("Tools and MCP servers that get no calls because they fail again and again.");
    gauge.with_callback(move |gauge| gauge.observe(open(), &[])).build();
    let counter = meter.u64_observable_counter("toolbus.breaker.trips").with_unit("{trip}");
    let counter = counter.with_description("How often a tool or MCP server got no more calls, since the start.");
    counter.with_callback(move |counter| counter.observe(trips(), &[])).build();
}

/// Registers the instruments that are observed at each export instead of being recorded.
pub(crate) fn observe(meter: &Meter, load: &Arc<Load>, bus: &watch::Receiver<BusState>, health: &Arc<ExportHealth>) {
    process::observe(meter);
    let gauge = |name: &'static str, unit: &'static str, description: &'static str| {
        meter.u64_observable_gauge(name).with_unit(unit).with_description(description)
    };
    let counter = |name: &'static str, unit: &'static str, description: &'static str| {
        meter.u64_observable_counter(name).with_unit(unit).with_description(description)
    };
    let of_load = |look: fn(&Load) -> usize| {
        let load = Arc::clone(load);
        move || u64::try_from(look(&load)).unwrap_or(u64::MAX)
    };
    let of_bus = |look: fn(&BusState) -> u64| {
        let bus = bus.clone();
        move || look(&bus.borrow())
    };
    let of_health = |look: fn(&ExportHealth) -> u64| {
        let health = Arc::clone(health);
        move || look(&health)
    };

    let value = of_load(Load::in_flight);
    let in_flight = gauge("toolbus.calls.in_flight", "{call}", "Tools running now.");
    in_flight.with_callback(move |gauge| gauge.observe(value(), &[])).build();

    let value = of_load(Load::waiting);
    let waiting = gauge("toolbus.calls.waiting", "{call}", "Calls waiting for a permit now.");
    waiting.with_callback(move |gauge| gauge.observe(value(), &[])).build();

    let (load, clock) = (Arc::clone(load), health.clock());
    let oldest = meter.f64_observable_gauge("toolbus.calls.waiting.age").with_unit("s");
    let oldest = oldest.with_description("How long the call has waited that has waited longest.");
    oldest.with_callback(move |gauge| gauge.observe(load.oldest_wait(clock.now()).as_secs_f64(), &[])).build();

    let value = of_bus(|state| u64::from(state.connected));
    let connected = gauge("toolbus.broker.connected", "1", "1 while both connections to the broker are open.");
    connected.with_callback(move |gauge| gauge.observe(value(), &[])).build();

    let value = of_bus(|state| u64::from(state.blocked.is_some()));
    let blocked = gauge("toolbus.broker.blocked", "1", "1 while the broker takes no messages.");
    blocked.with_callback(move |gauge| gauge.observe(value(), &[])).build();

    let value = of_bus(|state| u64::from(state.is_ready()));
    let ready = gauge("toolbus.broker.ready", "1", "1 while a request could be taken and answered.");
    ready.with_callback(move |gauge| gauge.observe(value(), &[])).build();

    let value = of_bus(|state| state.reconnects);
    let reconnects = counter("toolbus.broker.reconnects", "{reconnect}", "Connections lost since the start.");
    reconnects.with_callback(move |counter| counter.observe(value(), &[])).build();

    let depth = gauge("toolbus.queue.depth", "{message}", "Messages that wait in a queue of the broker.");
    let bus = bus.clone();
    depth
        .with_callback(move |gauge| {
            for (queue, messages) in &bus.borrow().depths {
                gauge.observe(u64::from(*messages), &[KeyValue::new("queue", queue.clone())]);
            }
        })
        .build();

    let value = of_health(ExportHealth::dropped_spans);
    let dropped = counter("toolbus.telemetry.dropped_spans", "{span}", "Spans that could not be exported.");
    dropped.with_callback(move |counter| counter.observe(value(), &[])).build();

    let value = of_health(ExportHealth::dropped_logs);
    let dropped = counter("toolbus.telemetry.dropped_logs", "{record}", "Log records that could not be exported.");
    dropped.with_callback(move |counter| counter.observe(value(), &[])).build();

    let value = of_health(ExportHealth::failed_exports);
    let failed = counter("toolbus.telemetry.failed_exports", "{export}", "Exports that failed.");
    failed.with_callback(move |counter| counter.observe(value(), &[])).build();
}

/// Calls `look` at each export for the reloads of the configuration, by outcome.
pub(crate) fn observe_reloads(meter: &Meter, look: impl Fn() -> [(&'static str, u64); 2] + Send + Sync + 'static) {
    let reloads = meter.u64_observable_counter("toolbus.config.reloads").with_unit("{reload}");
    let reloads = reloads.with_description("Reloads of the configuration.");
    reloads.with_callback(move |counter| observe_by("outcome", look(), counter)).build();
}

/// Calls `look` at each export for the other daemons that take calls of this one, by what they share with it.
pub(crate) fn observe_other_daemons(
    meter: &Meter,
    look: impl Fn() -> [(&'static str, u64); 2] + Send + Sync + 'static,
) {
    let daemons = meter.u64_observable_gauge("toolbus.other_daemons").with_unit("{daemon}");
    let daemons = daemons.with_description("Other daemons that take the same calls under another configuration.");
    daemons.with_callback(move |gauge| observe_by("shares", look(), gauge)).build();
}

/// Calls `look` at each export for the replicas that share a store, by whether they have the configuration of this one.
pub(crate) fn observe_replicas(meter: &Meter, look: impl Fn() -> [(&'static str, u64); 2] + Send + Sync + 'static) {
    let replicas = meter.u64_observable_gauge("toolbus.replicas").with_unit("{replica}");
    let replicas = replicas.with_description("Replicas that share a store.");
    replicas.with_callback(move |gauge| observe_by("configuration", look(), gauge)).build();
}

/// Calls `has_store` at each export for whether the store can be used, and `skews` for the seconds by which the clock
/// of this daemon is ahead of others.
pub(crate) fn observe_store(
    meter: &Meter,
    has_store: impl Fn() -> bool + Send + Sync + 'static,
    skews: impl Fn() -> [(&'static str, Option<i64>); 2] + Send + Sync + 'static,
) {
    let available = meter.u64_observable_gauge("toolbus.store.available").with_unit("1");
    let available = available.with_description("1 while the store can be used.");
    available.with_callback(move |gauge| gauge.observe(u64::from(has_store()), &[])).build();

    let skew = meter.i64_observable_gauge("toolbus.clock.skew").with_unit("s");
    let skew = skew.with_description("Time by which the clock of this daemon is ahead of another one.");
    let by_clock = skew.with_callback(move |gauge| {
        for (clock, seconds) in skews() {
            if let Some(seconds) = seconds {
                gauge.observe(seconds, &[KeyValue::new("clock", clock)]);
            }
        }
    });
    by_clock.build();
}

fn observe_by(label: &'static str, counts: [(&'static str, u64); 2], observer: &dyn AsyncInstrument<u64>) {
    for (value, count) in counts {
        observer.observe(count, &[KeyValue::new(label, value)]);
    }
}

/// Calls `look` at each export for the usage and the limits of the ledger.
pub(crate) fn observe_ledger(
    meter: &Meter,
    limits: LedgerLimits,
    look: impl Fn() -> LedgerUsage + Send + Sync + 'static,
) {
    let LedgerLimits { max_entries, max_bytes } = limits;
    let look = Arc::new(look);
    let (of_bytes, of_shed) = (Arc::clone(&look), Arc::clone(&look));
    let gauge = |name: &'static str, unit: &'static str, description: &'static str| {
        meter.u64_observable_gauge(name).with_unit(unit).with_description(description)
    };
    let entries = gauge("toolbus.ledger.entries", "{entry}", "Calls that the ledger knows.");
    entries.with_callback(move |gauge| gauge.observe(look().entries, &[])).build();
    let bytes = gauge("toolbus.ledger.size", "By", "What the ledger keeps of them.");
    bytes.with_callback(move |gauge| gauge.observe(of_bytes().bytes, &[])).build();
    let entries = gauge("toolbus.ledger.entries.limit", "{entry}", "Calls that the ledger may know.");
    entries.with_callback(move |gauge| gauge.observe(max_entries, &[])).build();
    let bytes = gauge("toolbus.ledger.size.limit", "By", "What the ledger may keep of them.");
    bytes.with_callback(move |gauge| gauge.observe(max_bytes, &[])).build();
    let shed = meter.u64_observable_counter("toolbus.ledger.shed").with_unit("{entry}");
    let shed = shed.with_description("Answered calls that the ledger forgot before their time, to make room.");
    shed.with_callback(move |counter| counter.observe(of_shed().shed, &[])).build();
}
