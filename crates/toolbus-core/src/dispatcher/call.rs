//! What is known of one request on its way.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use toolbus_protocol::Envelope;

use super::{InnerCall, Parts};
use crate::answer::{Reply, Run};
use crate::bus::Delivery;
use crate::clock::Clock;
use crate::deadline::{Budgets, TimeBudget};
use crate::failure::{ToolFailure, Verdict, verdict};
use crate::gates::permit::Permit;
use crate::progress::ProgressSink;
use crate::replay::{Key, Slot};
use crate::request::{Address, Dialect, Request, RequestedSource};
use crate::telemetry::{CallEnd, CallSpan, CallSummary};
use crate::tool::{Effect, Tool, ToolDescriptor};

/// A request on its way through the steps.
pub(super) struct Call {
    pub(super) request: Request,
    pub(super) span: Box<dyn CallSpan>,
    pub(super) slot: Arc<Slot>,
    pub(super) key: Option<Key>,
    pub(super) queue: Arc<str>,
    pub(super) clock: Clock,
    pub(super) arrived: Instant,
    pub(super) deadline: Instant,
    pub(super) body_size: usize,
    pub(super) tool: Option<Arc<ToolDescriptor>>,
    /// The arguments, once they are known to be valid.
    pub(super) arguments: Option<Arc<Map<String, Value>>>,
    /// Whether its answer is one that was given before.
    pub(super) replayed: bool,
    /// Time spent waiting for a permit.
    pub(super) waited: Duration,
    /// Time that the tool took, once it began.
    pub(super) ran: Option<Duration>,
    /// Held until a large result is cleaned and encoded.
    pub(super) turn: Option<OwnedSemaphorePermit>,
    /// Its place to run, where its result is large: kept until the answer is delivered, which bounds what answers hold.
    pub(super) permit: Option<Permit>,
    /// Cancels a call within a call, with the one around it.
    pub(super) cancelled: Option<CancellationToken>,
    /// Takes the reports of a call within a call.
    pub(super) progress: Option<ProgressSink>,
}

impl Call {
    /// A call whose delivery is still in the caller's hands. On the heap: it is handed from step to step.
    pub(super) fn new(parts: &Parts, request: Request, span: Box<dyn CallSpan>, delivery: &Delivery) -> Box<Self> {
        let deadline = request.budget.deadline(delivery.arrived, None, parts.settings.budgets);
        if request.budget.is_unusable {
            parts.log.unusable_budget(&request);
        }
        Box::new(Self {
            span,
            request,
            slot: Arc::default(),
            key: None,
            queue: Arc::clone(&delivery.queue),
            clock: parts.settings.clock,
            arrived: delivery.arrived,
            deadline,
            body_size: delivery.body.len(),
            tool: None,
            arguments: None,
            replayed: false,
            waited: Duration::ZERO,
            ran: None,
            turn: None,
            permit: None,
            cancelled: None,
            progress: None,
        })
    }

    /// A call that nobody delivered, so that nobody but who makes it gets its answer.
    pub(super) fn within(parts: &Parts, inner: InnerCall, span: Box<dyn CallSpan>) -> Box<Self> {
        let InnerCall { caller, call_id, server, tool, arguments, deadline, cancelled, progress, .. } = inner;
        let now = parts.settings.clock.now();
        let body_size = arguments.as_ref().map_or(0, String::len);
        let budget = deadline.map_or(TimeBudget::UNLIMITED, |deadline| TimeBudget::until(deadline, now));
        let request = Request {
            envelope: Envelope::default(),
            address: Address::none(),
            caller,
            call_id,
            has_call_id: true,
            tool_name: tool,
            route: server.map_or(RequestedSource::Any, RequestedSource::Server),
            arguments,
            budget,
            dialect: Dialect::Tool,
            wants_progress: false,
        };
        Box::new(Self {
            span,
            request,
            slot: Arc::default(),
            key: None,
            queue: Arc::default(),
            clock: parts.settings.clock,
            arrived: now,
            deadline: budget.deadline(now, None, parts.settings.budgets),
            body_size,
            tool: None,
            arguments: None,
            replayed: false,
            waited: Duration::ZERO,
            ran: None,
            turn: None,
            permit: None,
            cancelled: Some(cancelled),
            progress,
        })
    }

    /// Notes the tool, whose limit may shorten or lengthen the deadline.
    pub(super) fn resolved(&mut self, tool: &Tool, budgets: Budgets) {
        self.deadline = self.request.budget.deadline(self.arrived, tool.descriptor.timeout, budgets);
        self.tool = Some(Arc::clone(&tool.descriptor));
    }

    /// Notes the arguments.
    pub(super) fn checked(&mut self, arguments: Map<String, Value>) -> Arc<Map<String, Value>> {
        let arguments = Arc::new(arguments);
        self.arguments = Some(Arc::clone(&arguments));
        arguments
    }

    pub(super) fn run(&self) -> Run {
        let provider = self.tool.as_ref().filter(|_| self.ran.is_some()).map(|tool| tool.provider);
        Run { provider, queued: self.waited, ran: self.ran }
    }

    /// What the caller is told of a failure: what was decided already, or else by the effect of the tool.
    pub(super) fn verdict(&self, failure: &ToolFailure, started: bool) -> Verdict {
        let effect = self.tool.as_ref().map_or(Effect::Undeclared, |tool| tool.effect);
        failure.verdict.unwrap_or_else(|| verdict(failure.cause, effect, started))
    }

    pub(super) fn executed(&mut self, end: &CallEnd) {
        if let Some(ran) = self.ran {
            self.span.executed(end, ran);
        }
    }

    pub(super) fn trace(&mut self, answer: &mut Reply) {
        let message_id = answer.properties.message_id.as_deref().unwrap_or_default();
        if let Some(trace) = self.span.publishing(message_id) {
            answer.set_trace(&trace);
        }
    }

    pub(super) async fn settle(&mut self, done: bool) {
        match self.slot.take() {
            Some(settle) if done => settle.acknowledge().await,
            Some(settle) => settle.requeue().await,
            None => {}
        }
    }

    /// Concludes without a time of the answer's own.
    pub(super) fn end(self: Box<Self>, end: Option<CallEnd>) {
        let now = self.clock.now();
        self.conclude(end, now, Duration::ZERO);
    }

    pub(super) fn conclude(self: Box<Self>, end: Option<CallEnd>, answered: Instant, confirmed: Duration) {
        let total = self.clock.since(self.arrived);
        let others = self.waited + self.ran.unwrap_or_default();
        let summary = CallSummary {
            tool: self.tool.as_deref(),
            end,
            replayed: self.replayed,
            invoke: answered.saturating_duration_since(self.arrived),
            total,
            overhead: total.saturating_sub(others + confirmed),
        };
        self.span.finished(&summary);
    }
}
