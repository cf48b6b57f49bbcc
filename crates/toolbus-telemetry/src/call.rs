//! One call, as metrics and spans record it.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_sdk::trace::SdkTracer;
use toolbus_core::Clock;
use toolbus_core::bus::Delivery;
use toolbus_core::caller::Caller;
use toolbus_core::failure::Status;
use toolbus_core::telemetry::{CallEnd, CallSpan, CallSummary, DeadReason, LedgerEvent, Passing, Telemetry};
use toolbus_core::tool::ToolDescriptor;
use toolbus_protocol::TraceContext;

use crate::attributes::{ErrorLabel, Prebuilt, STATUSES, status_index};
use crate::destination::{Destination, Destinations};
use crate::exemplars::Exemplars;
use crate::instruments::CallInstruments;
use crate::settings::BusIdentity;
use crate::spans::Trace;
use crate::tools::{LabelledTools, ToolLabels};

/// `error.type` of a reply that the broker did not take.
const NOT_DELIVERED: &str = "not_delivered";

/// Records calls.
pub(crate) struct CallRecorder {
    shared: Arc<CallRecorderShared>,
}

struct CallRecorderShared {
    identity: Arc<BusIdentity>,
    tracer: Option<SdkTracer>,
    instruments: Option<CallInstruments>,
    /// Traces of calls, for scrapers.
    exemplars: Option<Arc<Exemplars>>,
    destinations: Destinations,
    tools: LabelledTools,
    /// Attributes of delivered replies, and of those that were not.
    sent: [Vec<KeyValue>; 2],
    by_status: Prebuilt<STATUSES>,
    clock: Clock,
}

/// One call on its way.
struct CallTelemetry {
    shared: Arc<CallRecorderShared>,
    /// Queue and topic of its request; absent for a call within a call.
    destination: Option<Arc<Destination>>,
    trace: Trace,
    /// The tool's labels, once it was to run.
    tool: Option<Arc<ToolLabels>>,
}

impl CallRecorder {
    pub(crate) fn new(
        identity: BusIdentity,
        tracer: Option<SdkTracer>,
        instruments: Option<CallInstruments>,
        exemplars: Option<Arc<Exemplars>>,
        clock: Clock,
    ) -> Self {
        let identity = Arc::new(identity);
        let destinations = Destinations::new(Arc::clone(&identity));
        let (sent, by_status) = (sent(&identity), Prebuilt::default());
        if let Some(instruments) = &instruments {
            sent.iter().for_each(|labels| instruments.sent.add(0, labels));
            LedgerEvent::ALL.iter().for_each(|event| instruments.ledger_events.add(0, &[ledger_label(*event)]));
        }
        let shared = CallRecorderShared {
            identity,
            tracer,
            instruments,
            exemplars,
            destinations,
            tools: LabelledTools::new(),
            sent,
            by_status,
            clock,
        };
        Self { shared: Arc::new(shared) }
    }
}

fn ledger_label(event: LedgerEvent) -> KeyValue {
    KeyValue::new("event", event.as_str())
}

fn sent(identity: &BusIdentity) -> [Vec<KeyValue>; 2] {
    let fixed = [
        KeyValue::new("messaging.operation.name", "publish"),
        KeyValue::new("messaging.operation.type", "send"),
        KeyValue::new("messaging.system", identity.system),
        KeyValue::new("messaging.destination.template", "reply"),
    ];
    let address = identity.server_address.clone().map(|address| KeyValue::new("server.address", address));
    let delivered: Vec<KeyValue> = fixed.into_iter().chain(address).collect();
    let mut lost = delivered.clone();
    lost.push(KeyValue::new("error.type", NOT_DELIVERED));
    [delivered, lost]
}

impl Telemetry for CallRecorder {
    fn arrived(&self, delivery: &Delivery, parent: Option<&TraceContext>) -> Box<dyn CallSpan> {
        let shared = &self.shared;
        if shared.tracer.is_none() && shared.instruments.is_none() {
            return Box::new(Passing::new(parent));
        }
        let destination = shared.destinations.of(&delivery.queue, &delivery.routing_key);
        shared.record_age(delivery);
        let trace = match &shared.tracer {
            Some(tracer) => Trace::begin(tracer, &shared.identity, &destination, delivery, parent),
            None => Trace::Carried(parent.cloned()),
        };
        Box::new(CallTelemetry { shared: Arc::clone(shared), destination: Some(destination), trace, tool: None })
    }

    fn nested(&self, parent: Option<&TraceContext>, _: Option<u64>) -> Box<dyn CallSpan> {
        let trace = match &self.shared.tracer {
            Some(tracer) => Trace::within(tracer, parent),
            None => Trace::Carried(parent.cloned()),
        };
        Box::new(CallTelemetry { shared: Arc::clone(&self.shared), destination: None, trace, tool: None })
    }

    fn consuming(&self, queue: &str) {
        for reason in DeadReason::ALL {
            self.shared.count_dead_letters(queue, reason, 0);
        }
    }

    fn dead_lettered(&self, queue: &str, reason: DeadReason) {
        self.shared.count_dead_letters(queue, reason, 1);
    }

    fn ledger(&self, event: LedgerEvent) {
        if let Some(instruments) = &self.shared.instruments {
            instruments.ledger_events.add(1, &[ledger_label(event)]);
        }
    }
}

impl CallRecorderShared {
    /// Records the age of a message with a timestamp.
    fn record_age(&self, delivery: &Delivery) {
        let (Some(instruments), Some(sent)) = (&self.instruments, delivery.properties.timestamp) else { return };
        if sent > 0 {
            let age = self.clock.since_epoch().saturating_sub(Duration::from_secs(sent));
            let queue = KeyValue::new("queue", delivery.queue.to_string());
            instruments.queue_age.record(age.as_secs_f64(), &[queue]);
        }
    }

    fn count_dead_letters(&self, queue: &str, reason: DeadReason, number: u64) {
        if let Some(instruments) = &self.instruments {
            let labels = [KeyValue::new("reason", reason.as_str()), KeyValue::new("queue", queue.to_owned())];
            instruments.dead_letters.add(number, &labels);
        }
    }
}

impl CallSpan for CallTelemetry {
    fn trace_id(&self) -> Option<&str> {
        self.trace.trace_id()
    }

    fn executing(&mut self, tool: &ToolDescriptor, call_id: &str, caller: &Caller) -> Option<TraceContext> {
        if self.shared.instruments.is_some() {
            self.tool = Some(self.shared.tools.of(Some(tool)));
        }
        self.trace.execute(tool, call_id, caller, self.shared.clock)
    }

    fn executed(&mut self, end: &CallEnd, duration: Duration) {
        let failure = ErrorLabel::of(Some(end));
        if let (Some(instruments), Some(tool)) = (&self.shared.instruments, &self.tool) {
            instruments.execute_duration.record(duration.as_secs_f64(), tool.executed(failure));
        }
        self.trace.executed(failure, duration);
    }

    fn publishing(&mut self, message_id: &str) -> Option<TraceContext> {
        self.trace.publish(message_id)
    }

    fn published(&mut self, delivered: bool, duration: Duration) {
        if let Some(instruments) = &self.shared.instruments {
            let [taken, lost] = &self.shared.sent;
            let labels = if delivered { taken } else { lost };
            instruments.operation_duration.record(duration.as_secs_f64(), labels);
            instruments.sent.add(1, labels);
        }
        self.trace.published((!delivered).then_some(NOT_DELIVERED));
    }

    fn finished(mut self: Box<Self>, summary: &CallSummary<'_>) {
        let failure = ErrorLabel::of(summary.end.as_ref());
        if let Some(instruments) = &self.shared.instruments {
            if let Some(destination) = &self.destination {
                let processed = destination.processed(failure);
                instruments.process_duration.record(summary.total.as_secs_f64(), processed);
                instruments.consumed.add(1, processed);
            }
            if let Some(end) = invoked(summary) {
                self.record_invocation(instruments, end.status, summary);
            }
        }
        self.trace.finish(failure, summary.caller);
    }
}

impl CallTelemetry {
    fn record_invocation(&self, instruments: &CallInstruments, status: Status, summary: &CallSummary<'_>) {
        let tool = match &self.tool {
            Some(tool) => Arc::clone(tool),
            None => self.shared.tools.of(summary.tool),
        };
        let labels = tool.invoked(status, summary.caller.and_then(Caller::section));
        let milliseconds = summary.invoke.as_secs_f64() * 1_000.0;
        instruments.invoke_duration.record(milliseconds, &labels);
        if let (Some(exemplars), Some(trace_id)) = (&self.shared.exemplars, self.trace.sampled_id()) {
            exemplars.record(&labels, milliseconds, trace_id);
        }
        instruments.invocations.add(1, &labels);
        let index = status_index(status);
        let labels = self.shared.by_status.get(index, || [KeyValue::new("status", status.as_str())]);
        instruments.overhead.record(summary.overhead.as_secs_f64(), labels);
    }
}

/// Returns the end of an invocation. A kept reply that is sent once more is no second invocation.
fn invoked(summary: &CallSummary<'_>) -> Option<CallEnd> {
    summary.end.filter(|_| !summary.replayed)
}
