//! State of one request on its way.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use toolbus_protocol::{Envelope, Outcome, TraceContext, header};

use super::{InnerCall, InnerOrigin, Parts};
use crate::bus::Delivery;
use crate::clock::Clock;
use crate::deadline::{Budgets, TimeBudget};
use crate::failure::{ToolFailure, Verdict};
use crate::gates::permit::Permit;
use crate::ledger::RunToken;
use crate::progress::ProgressSink;
use crate::replay;
use crate::reply::{Reply, ReplyPath, Run};
use crate::request::{Address, Dialect, Request, RequestedSource};
use crate::request_key::{DeliveredContent, IdentityKind, LocalIdentity, RequestIdentity};
use crate::results::ResultRoom;
use crate::telemetry::{CallEnd, CallSpan, CallSummary, Load};
use crate::tool::{Effect, Tool, ToolDescriptor};

/// Entry of a running call, with the duplicates that get its reply.
pub(super) type Slot = replay::Slot<Attached>;

/// A duplicate of a running call, which gets the same reply.
pub(super) type Attached = Box<Call>;

/// A request on its way through the steps.
pub(super) struct Call {
    pub(super) request: Request,
    pub(super) span: Box<dyn CallSpan>,
    pub(super) identity: CallIdentity,
    pub(super) timing: Timing,
    pub(super) delivery: CallDelivery,
    pub(super) execution: Execution,
    load: Arc<Load>,
}

/// Keys by which a request is recognised, and what earlier deliveries did.
pub(super) struct CallIdentity {
    /// Identity within this process.
    pub(super) local: Option<LocalIdentity>,
    /// Identity in the ledger and in other processes, once it was needed.
    everywhere: Option<RequestIdentity>,
    /// Content of a request that has neither key nor `message_id`, of which the identity is made.
    content: Option<DeliveredContent>,
    /// Whether the broker has delivered the request before.
    pub(super) is_redelivered: bool,
    /// Run that the ledger has, once the tool may begin.
    pub(super) run: Option<RunToken>,
    /// Whether the reply is one that was given before.
    pub(super) replayed: bool,
    /// Key of the call around this one, by which its backend recognises it.
    outer_key: Option<Arc<str>>,
}

/// Times of a call.
pub(super) struct Timing {
    pub(super) clock: Clock,
    pub(super) arrived: Instant,
    pub(super) deadline: Instant,
    /// Time spent waiting for a permit.
    pub(super) waited: Duration,
    /// Time that the tool took, once it began.
    pub(super) ran: Option<Duration>,
}

/// Where a request came from, and where its reply goes.
pub(super) struct CallDelivery {
    pub(super) slot: Arc<Slot>,
    pub(super) queue: Arc<str>,
    /// Size of the request's body, in bytes.
    pub(super) body_size: usize,
    /// Takes the reply of a call with a key that no message brought, instead of the bus.
    pub(super) direct: Option<oneshot::Sender<Arc<Reply>>>,
}

/// Tool of a call with its arguments, and rules for its result.
#[derive(Default)]
pub(super) struct Execution {
    pub(super) tool: Option<Arc<ToolDescriptor>>,
    /// Arguments, once they are known to be valid.
    pub(super) arguments: Option<Arc<Map<String, Value>>>,
    /// Permit of a call whose result is large: kept until the reply is delivered, which bounds what replies hold.
    pub(super) permit: Option<Permit>,
    /// Room for a result that is larger than its executor takes by itself, until the reply is sent.
    pub(super) room: Option<ResultRoom>,
    /// Cancels a call within a call, with the one around it.
    pub(super) cancelled: Option<CancellationToken>,
    /// Takes the progress of a call within a call.
    pub(super) progress: Option<ProgressSink>,
    /// Length above which the result is split, in characters; `None` if it never is, but for what its tool says.
    pub(super) split_above: Option<usize>,
    /// Whether a tool or a daemon calls, which gets the result as it is, whatever its length.
    pub(super) gets_whole: bool,
    /// Whether the caller can read the parts of a result that is too long.
    pub(super) reads_parts: bool,
}

impl Timing {
    const fn new(clock: Clock, arrived: Instant, deadline: Instant) -> Self {
        Self { clock, arrived, deadline, waited: Duration::ZERO, ran: None }
    }
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
            identity: CallIdentity {
                local: identity,
                everywhere,
                content: is_content.then(|| DeliveredContent::of(delivery)),
                is_redelivered: delivery.redelivered || delivery.earlier_deliveries > 0,
                run: None,
                replayed: false,
                outer_key: None,
            },
            timing: Timing::new(parts.settings.clock, delivery.arrived, deadline),
            delivery: CallDelivery {
                slot: Arc::new(Slot::new(None, reply_digest(parts, &request))),
                queue: Arc::clone(&delivery.queue),
                body_size: delivery.size,
                direct: None,
            },
            execution: Execution {
                split_above: results.and_then(|results| results.threshold(Some(&delivery.routing_key), model)),
                gets_whole,
                ..Execution::default()
            },
            request,
            span,
            load: Arc::clone(&parts.load),
        })
    }

    /// A call that was not delivered as a message: its maker alone gets its reply.
    pub(super) fn within(parts: &Parts, inner: InnerCall, span: Box<dyn CallSpan>) -> Box<Self> {
        let InnerCall { caller, call_id, server, tool, arguments, deadline, cancelled, progress, .. } = inner;
        let (outer_key, idempotency_key) = match inner.origin {
            InnerOrigin::Tool => (inner.idempotency_key, None),
            InnerOrigin::McpClient | InnerOrigin::Schedule => (None, inner.idempotency_key),
        };
        let now = parts.settings.clock.now();
        let body_size = arguments.as_ref().map_or(0, String::len);
        let budget = deadline.map_or(TimeBudget::UNLIMITED, |deadline| TimeBudget::until(deadline, now));
        // The reply of a call with a key is kept as a message, which has the structured part in a block: for MCP clients.
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
            identity: CallIdentity {
                local: everywhere.map(|given| parts.local_keys.of(given)),
                everywhere,
                content: None,
                is_redelivered: false,
                run: None,
                replayed: false,
                outer_key,
            },
            timing: Timing::new(parts.settings.clock, now, budget.deadline(now, None, parts.settings.budgets)),
            delivery: CallDelivery {
                // A digest of its own, whatever its id is: each maker waits for its own reply.
                slot: Arc::new(Slot::new(None, parts.reply_digests.hash_one(parts.settings.random.bits()))),
                queue: Arc::default(),
                body_size,
                direct: None,
            },
            execution: Execution {
                cancelled: Some(cancelled),
                progress,
                split_above: results.and_then(|results| results.threshold(None, || None)),
                gets_whole,
                ..Execution::default()
            },
            request,
            span,
            load: Arc::clone(&parts.load),
        })
    }

    /// Notes the tool, whose limit may shorten or lengthen the deadline.
    pub(super) fn resolved(&mut self, tool: &Tool, budgets: Budgets) {
        self.grant(tool.descriptor.timeout, budgets);
        self.execution.tool = Some(Arc::clone(&tool.descriptor));
    }

    /// Sets the deadline by the limit of its tool.
    pub(super) fn grant(&mut self, limit: Option<Duration>, budgets: Budgets) {
        self.timing.deadline = self.request.budget.deadline(self.timing.arrived, limit, budgets);
    }

    /// Notes the arguments.
    pub(super) fn checked(&mut self, arguments: Map<String, Value>) -> Arc<Map<String, Value>> {
        let arguments = Arc::new(arguments);
        self.execution.arguments = Some(Arc::clone(&arguments));
        arguments
    }

    /// Identity of the request for the ledger and other processes. Computed when it is first needed: calls of read-only
    /// tools mostly end without.
    pub(super) fn everywhere(&mut self) -> Option<RequestIdentity> {
        let identity = self.identity.local?;
        if self.identity.everywhere.is_none() {
            self.identity.everywhere =
                RequestIdentity::of(&self.request, identity.kind, self.identity.content.as_ref());
        }
        self.identity.everywhere
    }

    /// The run that the ledger has, and its request.
    pub(super) fn recorded(&self) -> Option<(RequestIdentity, RunToken)> {
        self.identity.everywhere.zip(self.identity.run)
    }

    /// The key by which a backend recognises a repetition.
    pub(super) fn onward_key(&mut self, effect: Effect) -> Option<Arc<str>> {
        if effect == Effect::ReadOnly {
            return None;
        }
        self.identity.outer_key.clone().or_else(|| self.everywhere()?.onward())
    }

    pub(super) fn run(&self) -> Run {
        let provider = self.execution.tool.as_ref().filter(|_| self.timing.ran.is_some()).map(|tool| tool.provider);
        Run { provider, queued: self.timing.waited, ran: self.timing.ran }
    }

    /// Verdict that the caller receives for a failure: the one decided already, or else by the effect of the tool.
    pub(super) fn verdict(&self, failure: &ToolFailure, started: bool) -> Verdict {
        let effect = self.execution.tool.as_ref().map_or(Effect::Undeclared, |tool| tool.effect);
        let mut verdict = failure.verdict(effect, started);
        // An earlier delivery may have begun: of a tool that may run again, nothing is recorded.
        if self.identity.is_redelivered && effect == Effect::Idempotent && verdict.outcome == Some(Outcome::NotStarted)
        {
            verdict.outcome = Some(Outcome::Unknown);
        }
        verdict
    }

    pub(super) fn executed(&mut self, end: &CallEnd) {
        if let Some(ran) = self.timing.ran {
            self.span.executed(end, ran);
        }
    }

    /// Where the reply goes, and what the log says of the call.
    pub(super) fn reply_path(&self) -> ReplyPath<'_> {
        ReplyPath {
            address: &self.request.address,
            queue: &self.delivery.queue,
            call_id: &self.request.call_id,
            trace_id: self.span.trace_id(),
            deadline: self.timing.deadline,
        }
    }

    pub(super) fn trace(&mut self, reply: &mut Reply) {
        if let Some(trace) = self.publishing(reply) {
            reply.set_trace(&trace);
        }
    }

    /// Notes that a reply is about to be published; gives the trace that it carries.
    pub(super) fn publishing(&mut self, reply: &Reply) -> Option<TraceContext> {
        if self.delivery.direct.is_some() {
            return None;
        }
        self.span.publishing(reply.properties.message_id.as_deref().unwrap_or_default())
    }

    /// Whether the request is no longer this daemon's, and its tool did not run here. It comes again, perhaps to another
    /// daemon, so that whatever is published of it here may be wrong.
    pub(super) fn is_lost(&self) -> bool {
        self.timing.ran.is_none() && self.delivery.slot.is_lost()
    }

    /// Publishes something of the call, and gives up once [`Self::is_lost`] holds: it is not published on the next
    /// connection.
    pub(super) async fn unless_lost<T>(&self, publishing: impl Future<Output = T>) -> Option<T> {
        if self.timing.ran.is_some() {
            return Some(publishing.await);
        }
        tokio::select! {
            biased;
            () = self.delivery.slot.lost() => None,
            published = publishing => Some(published),
        }
    }

    pub(super) async fn settle(&mut self, done: bool) {
        match self.delivery.slot.take() {
            Some(settle) if done => settle.acknowledge().await,
            Some(settle) => settle.requeue().await,
            None => {}
        }
    }

    /// Settles and concludes without a reply of its own.
    pub(super) async fn settle_without_reply(mut self: Box<Self>, done: bool) {
        self.settle(done).await;
        self.end(None);
    }

    /// Concludes without a time of the reply's own.
    pub(super) fn end(self: Box<Self>, end: Option<CallEnd>) {
        let now = self.timing.clock.now();
        self.conclude(end, now, Duration::ZERO);
    }

    pub(super) fn conclude(self: Box<Self>, end: Option<CallEnd>, answered: Instant, confirmed: Duration) {
        let total = self.timing.clock.since(self.timing.arrived);
        let others = self.timing.waited + self.timing.ran.unwrap_or_default();
        if end.is_some() && !self.identity.replayed {
            self.load.ended(
                &self.request.caller,
                self.execution.tool.as_ref().map(|tool| &tool.name),
                self.timing.clock.now(),
            );
        }
        let summary = CallSummary {
            caller: Some(&self.request.caller),
            tool: self.execution.tool.as_deref(),
            end,
            replayed: self.identity.replayed,
            invoke: answered.saturating_duration_since(self.timing.arrived),
            total,
            overhead: total.saturating_sub(others + confirmed),
        };
        self.span.finished(&summary);
    }
}

/// Digest of where the reply goes, and how it is addressed.
fn reply_digest(parts: &Parts, request: &Request) -> u64 {
    let Request { envelope, address, call_id, .. } = request;
    parts.reply_digests.hash_one((&address.written, &envelope.correlation_id, &envelope.source, call_id))
}
