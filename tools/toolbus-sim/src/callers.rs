//! Callers: they publish requests until these are confirmed, repeat some, and cancel some.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;
use toolbus_core::bus::{Bus as _, Outgoing, Routing, Target};
use toolbus_core::tool::Effect;
use toolbus_protocol::{Envelope, header, message_type, topic};

use crate::bus::SimBus;
use crate::chance::Chance;
use crate::context::{Fault, ScheduleContext};
use crate::tools::{Ending, TOOLS, arguments};

/// The callers.
pub(crate) const CALLERS: [&str; 2] = ["ana", "bob"];
/// Publishes of one request until a caller gives up.
const MAX_PUBLISHES: usize = 30;

/// Request that a caller is going to make.
#[derive(Debug, Clone)]
pub(crate) struct PlannedRequest {
    pub(crate) number: usize,
    /// Number under which its tool records its runs: that of the first request with the same key, or its own.
    pub(crate) request: usize,
    /// Whether the request has an idempotency key.
    pub(crate) has_key: bool,
    pub(crate) caller: &'static str,
    /// The model's id of the call, which comes back in later calls.
    pub(crate) call_id: &'static str,
    pub(crate) tool: &'static str,
    pub(crate) effect: Effect,
    time: Duration,
    ending: Ending,
    /// Time at which it is published.
    at: Duration,
    timeout: Option<Duration>,
    /// Whether the same message is published once more, although it was confirmed.
    is_repeated: bool,
    cancelled_after: Option<Duration>,
    /// Whether the broker has confirmed it.
    pub(crate) confirmed: Arc<AtomicBool>,
}

impl PlannedRequest {
    /// Draws one that begins within `horizon`.
    pub(crate) fn draw(chance: Chance, number: usize, horizon: Duration) -> Self {
        let (tool, effect) = chance.pick(("pay", Effect::Effectful), &TOOLS);
        let [ana, bob] = CALLERS;
        let ending = match chance.percent(60) {
            true => Ending::Result,
            false => chance.pick(
                Ending::OwnError,
                &[Ending::Failure, Ending::Refused, Ending::Panic, Ending::Hang, Ending::Result],
            ),
        };
        let slow = chance.percent(30);
        Self {
            number,
            request: number,
            has_key: chance.percent(15),
            caller: chance.pick(ana, &[bob]),
            call_id: chance.pick("call_0", &["call_1", "call_2"]),
            tool,
            effect,
            time: chance.millis(if slow { 500..=15_000 } else { 0..=200 }),
            ending,
            at: chance.millis(0..=u64::try_from(horizon.as_millis()).unwrap_or_default()),
            timeout: chance.percent(40).then(|| chance.millis(50..=30_000)),
            is_repeated: chance.percent(15),
            cancelled_after: chance.percent(15).then(|| chance.millis(0..=3_000)),
            confirmed: Arc::default(),
        }
    }

    /// Draws several, of which some repeat the call of an earlier one, by its key.
    pub(crate) fn draw_all(chance: Chance, count: usize, horizon: Duration) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::with_capacity(count);
        for number in 0..count {
            let plan = Self::draw(chance, number, horizon);
            let earlier = all.iter().find(|earlier| earlier.has_key && chance.percent(25));
            all.push(match earlier {
                Some(&Self { request, has_key, caller, tool, effect, time, ending, .. }) => {
                    Self { request, has_key, caller, tool, effect, time, ending, ..plan }
                }
                None => plan,
            });
        }
        all
    }

    /// The id of its message, and its correlation id: it is the same each time.
    pub(crate) fn id(&self) -> String {
        format!("request-{}", self.number)
    }

    fn request(&self, context: &ScheduleContext) -> Outgoing {
        let mut envelope = self.envelope(message_type::TOOL_INVOKE_REQUEST, self.id(), context);
        if let Some(timeout) = self.timeout {
            envelope = envelope.with_header(header::TIMEOUT_MS, timeout.as_millis().to_string());
        }
        if self.has_key {
            envelope = envelope.with_header(header::IDEMPOTENCY_KEY, format!("key-{}", self.request));
        }
        let arguments = arguments(self.request, self.time, self.ending);
        let body = json!({"toolCallId": self.call_id, "toolName": self.tool, "arguments": arguments});
        outgoing(topic::TOOL_INVOKE, envelope, &body)
    }

    fn cancellation(&self, context: &ScheduleContext) -> Outgoing {
        let id = format!("cancel-{}", self.number);
        let envelope = self.envelope(message_type::TOOL_CANCEL_REQUEST, id, context);
        outgoing(topic::TOOL_CANCEL, envelope, &json!({"toolCallId": self.call_id}))
    }

    fn envelope(&self, kind: &str, id: String, context: &ScheduleContext) -> Envelope {
        let mut envelope = Envelope::outgoing(kind, self.caller, id.clone(), context.clock.wall());
        envelope.correlation_id = id;
        envelope.reply_to = format!("{}.{}", topic::TOOL_RESULT, self.caller);
        envelope
    }

    /// Publishes the request, its repetition and its cancellation, as planned.
    pub(crate) async fn perform(self, bus: Arc<SimBus>, context: Arc<ScheduleContext>) {
        tokio::time::sleep(self.at).await;
        context.note(self.caller, format_args!("asks for {self}"));
        let request = self.request(&context);
        if !publish(&bus, &request).await {
            return context.note(self.caller, format_args!("gives {} up", self.id()));
        }
        self.confirmed.store(true, Ordering::Relaxed);
        if let Some(wait) = self.cancelled_after {
            tokio::time::sleep(wait).await;
            context.count(Fault::CallCancelled, self.caller, self.id());
            let _ = publish(&bus, &self.cancellation(&context)).await;
        }
        if self.is_repeated {
            tokio::time::sleep(context.chance.millis(0..=5_000)).await;
            context.count(Fault::RequestRepeated, self.caller, self.id());
            let _ = publish(&bus, &request).await;
        }
    }
}

impl std::fmt::Display for PlannedRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { number, request, has_key, call_id, tool, time, ending, timeout, .. } = self;
        write!(f, "request {number}: {tool} as {call_id}, {time:?}, {ending:?}, timeout {timeout:?}")?;
        if *has_key { write!(f, ", key-{request}") } else { Ok(()) }
    }
}

/// Publishes until a queue has taken it; false if the caller gives up.
async fn publish(bus: &SimBus, message: &Outgoing) -> bool {
    for _ in 0..MAX_PUBLISHES {
        if bus.publish(message).await == Ok(Routing::Routed) {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    false
}

fn outgoing(topic: &str, envelope: Envelope, body: &serde_json::Value) -> Outgoing {
    let mut properties = envelope.into_properties();
    properties.persistent = true;
    Outgoing {
        target: Target::Topic(topic.to_owned()),
        mandatory: true,
        proven: true,
        properties: properties.into(),
        body: body.to_string().into(),
    }
}
