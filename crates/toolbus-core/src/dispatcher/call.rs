//! What is known of one request on its way.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio_util::sync::CancellationToken;
use toolbus_protocol::{Envelope, Outcome, TraceContext, header};

use super::{InnerCall, InnerOrigin, Parts};
use crate::answer::{Reply, Run};
use crate::bus::Delivery;
use crate::clock::Clock;
use crate::deadline::{Budgets, TimeBudget};
use crate::failure::{ToolFailure, Verdict};
use crate::gates::permit::Permit;
use crate::ledger::RunToken;
use crate::progress::ProgressSink;
use crate::replay;
use crate::request::{Address, Dialect, Request, RequestedSource};
use crate::request_key::{DeliveredContent, IdentityKind, LocalIdentity, RequestIdentity};
use crate::results::ResultRoom;
use crate::telemetry::{CallEnd, CallSpan, CallSummary};
use crate::tool::{Effect, Tool, ToolDescriptor};

/// What a running call settles and answers in the end.
pub(super) type Slot = replay::Slot<Attached>;

/// A duplicate of a running call, which gets the same answer.
pub(super) type Attached = Box<Call>;

/// A request on its way through the steps.
pub(super) struct Call {
    pub(super) request: Request,
    pub(super) span: Box<dyn CallSpan>,
    pub(super) slot: Arc<Slot>,
    /// What this process knows its request by.
    pub(super) identity: Option<LocalIdentity>,
    /// What everyone knows it by, once that was needed.
    everywhere: Option<RequestIdentity>,
    /// Of which that is made, if it has neither key nor `message_id`.
    content: Option<DeliveredContent>,
    /// Whether the broker has delivered it before.
    pub(super) is_redelivered: bool,
    /// The run that the ledger has, once the tool may begin.
    pub(super) run: Option<RunToken>,
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
    /// Length above which its result is split, in characters; `None` if it never is, but for what its tool says.
    pub(super) split_above: Option<usize>,
    /// Whether it is a tool or a daemon that calls: it gets the result as it is, whatever its length.
    pub(super) gets_whole: bool,
    /// Whether the caller can read what its result is split into, if that is too long.
    pub(super) reads_parts: bool,
    /// Room for a result that is larger than its executor takes by itself, until the call is answered.
    pub(super) room: Option<ResultRoom>,
    /// Cancels a call within a call, with the one around it.
    pub(super) cancelled: Option<CancellationToken>,
    /// Takes the reports of a call within a call.
    pub(super) progress: Option<ProgressSink>,
    /// The key of the call around it, by which its backend recognises it.
    pub(super) outer_key: Option<Arc<str>>,
    /// Takes the answer of a call with a key that no message brought, in the place of the bus.
    pub(super) direct: Option<oneshot::Sender<Arc<Reply>>>,
}

impl Call {
    /// A call whose delivery is still in the caller's hands. On the heap: it is handed from step to step.
    pub(super) fn new(parts: &Parts, request: Request, span: Box<dyn CallSpan>, delivery: &Delivery) -> Box<Self> {
        let deadline = request.budget.deadline(delivery.arrived, None, parts.settings.budgets);
        if request.budget.is_unusable {
            parts.log.unusable_budget(&request);
        }
        let (keys, everywhere) = (&parts.local_keys, RequestIdentity::given(&request));
        let identity = everywhere.map(|given| keys.of(given)).or_else(|| keys.identify(&request, delivery));
        let is_content = identity.is_some_and(|identity| identity.kind == IdentityKind::Content);
        // A daemon that passes the call on splits what it answers.
        let gets_whole = request.caller.hops > 0;
        let results = parts.settings.results.as_ref().filter(|_| request.dialect == Dialect::Tool && !gets_whole);
        let model = || request.envelope.header(header::MODEL);
        Box::new(Self {
            split_above: results.and_then(|results| results.threshold(Some(&delivery.routing_key), model)),
            gets_whole,
            reads_parts: false,
            room: None,
            identity,
            everywhere,
            content: is_content.then(|| DeliveredContent::of(delivery)),
            slot: Arc::new(Slot::new(None, recipient(parts, &request))),
            span,
            request,
            is_redelivered: delivery.redelivered || delivery.earlier_deliveries > 0,
            run: None,
            queue: Arc::clone(&delivery.queue),
            clock: parts.settings.clock,
            arrived: delivery.arrived,
            deadline,
            body_size: delivery.size,
            tool: None,
            arguments: None,
            replayed: false,
            waited: Duration::ZERO,
            ran: None,
            turn: None,
            permit: None,
            cancelled: None,
            progress: None,
            outer_key: None,
            direct: None,
        })
    }

    /// A call that was not delivered as a message: its maker alone gets its answer.
    pub(super) fn within(parts: &Parts, inner: InnerCall, span: Box<dyn CallSpan>) -> Box<Self> {
        let InnerCall { caller, call_id, server, tool, arguments, deadline, cancelled, progress, .. } = inner;
        let (outer_key, idempotency_key) = match inner.origin {
            InnerOrigin::Tool => (inner.idempotency_key, None),
            InnerOrigin::McpClient | InnerOrigin::Schedule => (None, inner.idempotency_key),
        };
        let now = parts.settings.clock.now();
        let body_size = arguments.as_ref().map_or(0, String::len);
        let budget = deadline.map_or(TimeBudget::UNLIMITED, |deadline| TimeBudget::until(deadline, now));
        // The answer of a call with a key is kept as a message, which has the structured part in a block: for MCP clients.
        let is_kept = idempotency_key.as_ref().filter(|_| inner.origin == InnerOrigin::McpClient);
        let headers = is_kept.map(|_| (header::STRUCTURED_CONTENT.to_owned(), "1".to_owned())).into_iter().collect();
        let request = Request {
            envelope: Envelope { headers, ..Envelope::default() },
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
            idempotency_key,
        };
        let everywhere = RequestIdentity::given(&request);
        // For what it does with them.
        let gets_whole = inner.origin == InnerOrigin::Tool;
        let results = parts.settings.results.as_ref().filter(|_| !gets_whole);
        Box::new(Self {
            gets_whole,
            split_above: results.and_then(|results| results.threshold(None, || None)),
            reads_parts: false,
            room: None,
            identity: everywhere.map(|given| parts.local_keys.of(given)),
            everywhere,
            content: None,
            // A recipient of its own, whatever its id is: each maker waits for its own answer.
            slot: Arc::new(Slot::new(None, parts.recipients.hash_one(parts.settings.random.bits()))),
            span,
            request,
            is_redelivered: false,
            run: None,
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
            outer_key,
            direct: None,
        })
    }

    /// Notes the tool, whose limit may shorten or lengthen the deadline.
    pub(super) fn resolved(&mut self, tool: &Tool, budgets: Budgets) {
        self.grant(tool.descriptor.timeout, budgets);
        self.tool = Some(Arc::clone(&tool.descriptor));
    }

    /// Sets the deadline by the limit of its tool.
    pub(super) fn grant(&mut self, limit: Option<Duration>, budgets: Budgets) {
        self.deadline = self.request.budget.deadline(self.arrived, limit, budgets);
    }

    /// Notes the arguments.
    pub(super) fn checked(&mut self, arguments: Map<String, Value>) -> Arc<Map<String, Value>> {
        let arguments = Arc::new(arguments);
        self.arguments = Some(Arc::clone(&arguments));
        arguments
    }

    /// What the ledger and other processes know its request by. Computed when it is first needed: calls of read-only tools
    /// mostly end without.
    pub(super) fn everywhere(&mut self) -> Option<RequestIdentity> {
        let identity = self.identity?;
        if self.everywhere.is_none() {
            self.everywhere = RequestIdentity::of(&self.request, identity.kind, self.content.as_ref());
        }
        self.everywhere
    }

    /// The run that the ledger has, and its request.
    pub(super) fn recorded(&self) -> Option<(RequestIdentity, RunToken)> {
        self.everywhere.zip(self.run)
    }

    /// The key by which a backend recognises a repetition.
    pub(super) fn onward_key(&mut self, effect: Effect) -> Option<Arc<str>> {
        if effect == Effect::ReadOnly {
            return None;
        }
        self.outer_key.clone().or_else(|| self.everywhere()?.onward())
    }

    pub(super) fn run(&self) -> Run {
        let provider = self.tool.as_ref().filter(|_| self.ran.is_some()).map(|tool| tool.provider);
        Run { provider, queued: self.waited, ran: self.ran }
    }

    /// What the caller receives for a failure: what was decided already, or else by the effect of the tool.
    pub(super) fn verdict(&self, failure: &ToolFailure, started: bool) -> Verdict {
        let effect = self.tool.as_ref().map_or(Effect::Undeclared, |tool| tool.effect);
        let mut verdict = failure.verdict(effect, started);
        // An earlier delivery may have begun: of a tool that may run again, nothing is recorded.
        if self.is_redelivered && effect == Effect::Idempotent && verdict.outcome == Some(Outcome::NotStarted) {
            verdict.outcome = Some(Outcome::Unknown);
        }
        verdict
    }

    pub(super) fn executed(&mut self, end: &CallEnd) {
        if let Some(ran) = self.ran {
            self.span.executed(end, ran);
        }
    }

    pub(super) fn trace(&mut self, answer: &mut Reply) {
        if let Some(trace) = self.publishing(answer) {
            answer.set_trace(&trace);
        }
    }

    /// Notes that an answer is about to be published; gives the trace that it carries.
    pub(super) fn publishing(&mut self, answer: &Reply) -> Option<TraceContext> {
        if self.direct.is_some() {
            return None;
        }
        self.span.publishing(answer.properties.message_id.as_deref().unwrap_or_default())
    }

    pub(super) async fn settle(&mut self, done: bool) {
        match self.slot.take() {
            Some(settle) if done => settle.acknowledge().await,
            Some(settle) => settle.requeue().await,
            None => {}
        }
    }

    /// Settles and concludes without an answer of its own.
    pub(super) async fn settle_unanswered(mut self: Box<Self>, done: bool) {
        self.settle(done).await;
        self.end(None);
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

/// Where the answer goes, and how it is addressed.
fn recipient(parts: &Parts, request: &Request) -> u64 {
    let Request { envelope, address, call_id, .. } = request;
    parts.recipients.hash_one((&address.written, &envelope.correlation_id, &envelope.source, call_id))
}
