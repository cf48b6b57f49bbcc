//! State of one request on its way.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use serde_json::{Map, Value};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use toolbus_protocol::{Envelope, Outcome, TraceContext, header};

use super::{Abort, InnerCall, InnerOrigin, Parts};
use crate::Clock;
use crate::bus::{Delivery, Settle};
use crate::deadline::{Budgets, TimeBudget};
use crate::failure::{Cause, ToolFailure, Verdict};
use crate::gates::find;
use crate::gates::permit::Permit;
use crate::idempotency::{self, CallIdentity, RequestIdentity};
use crate::policy::PolicyHandle;
use crate::progress::ProgressSink;
use crate::reply::{REPLY_GRACE, Reply, ReplyPath, Run};
use crate::reply_address::Address;
use crate::request::{Dialect, Request, RequestedSource};
use crate::results::ResultRoom;
use crate::telemetry::{CallEnd, CallSpan, CallSummary, Load};
use crate::tool::{Effect, Tool, ToolDescriptor};
use crate::turns::Turns;

/// Entry of a running call, with the duplicates that get its reply.
pub(super) type Slot = idempotency::Slot<Attached>;

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
    /// Earlier deliveries of the request, as far as the broker counts them.
    pub(super) earlier: u32,
    /// Size of the request's body, in bytes.
    pub(super) body_size: usize,
    /// Takes the reply of a call with a key that no message brought, instead of the bus.
    pub(super) direct: Option<oneshot::Sender<Arc<Reply>>>,
    /// Whether the reply is one that was given before.
    pub(super) replayed: bool,
    /// Whether another call ran instead.
    pub(super) attached: bool,
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
    /// Length above which the result is split, in characters; `None` if it never is, unless by a rule of its tool.
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
    /// A call of a delivery, which it settles from here on. On the heap: it is handed from step to step.
    pub(super) fn new(parts: &Parts, request: Request, span: Box<dyn CallSpan>, delivery: &mut Delivery) -> Box<Self> {
        let deadline = request.budget.deadline(delivery.arrived, None, parts.settings.budgets);
        if request.budget.is_unusable {
            parts.replies.log.unusable_budget(&request);
        }
        let settle = std::mem::replace(&mut delivery.settle, Box::new(Settled));
        // A daemon that passes the call on splits the result itself.
        let gets_whole = request.caller.hops > 0;
        let results = parts.settings.results.as_ref().filter(|_| request.dialect == Dialect::Tool && !gets_whole);
        let model = || request.envelope.header(header::MODEL);
        Box::new(Self {
            identity: CallIdentity::of_delivery(&parts.local_keys, &request, delivery),
            timing: Timing::new(parts.settings.clock, delivery.arrived, deadline),
            delivery: CallDelivery {
                slot: Arc::new(Slot::new(Some(settle), reply_digest(parts, &request))),
                queue: Arc::clone(&delivery.queue),
                earlier: delivery.earlier_deliveries,
                body_size: delivery.size,
                direct: None,
                replayed: false,
                attached: false,
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
        // The reply of a call with a key is kept as a message, which has the structured part in a block: for MCP
        // clients.
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
        // For what it does with them.
        let gets_whole = inner.origin == InnerOrigin::Tool;
        let results = parts.settings.results.as_ref().filter(|_| !gets_whole);
        Box::new(Self {
            identity: CallIdentity::of_inner(&parts.local_keys, &request, outer_key),
            timing: Timing::new(parts.settings.clock, now, budget.deadline(now, None, parts.settings.budgets)),
            delivery: CallDelivery {
                // A digest of its own, whatever its id is: each maker waits for its own reply.
                slot: Arc::new(Slot::new(None, parts.reply_digests.hash_one(parts.settings.random.bits()))),
                queue: Arc::default(),
                earlier: 0,
                body_size,
                direct: None,
                replayed: false,
                attached: false,
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

    /// Identity of the request for the ledger and other processes.
    pub(super) fn everywhere(&mut self) -> Option<RequestIdentity> {
        self.identity.everywhere(&self.request)
    }

    /// The tool that the caller means, as far as that is known before it is resolved.
    pub(super) fn wanted(&self, policy: &PolicyHandle) -> Option<Arc<ToolDescriptor>> {
        let effective = policy.effective(&self.request.caller);
        find(&effective, self.request.wanted()).map(|allowed| Arc::clone(&allowed.tool.descriptor))
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

    /// Address of the reply, and the fields of the call in the log.
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

    /// Whether the request is no longer this daemon's, and its tool did not run here. It comes again, perhaps to
    /// another daemon, so that whatever is published of it here may be wrong.
    pub(super) fn is_lost(&self) -> bool {
        self.timing.ran.is_none() && self.delivery.slot.is_lost()
    }

    /// Refuses to begin a call that was cancelled, or whose delivery is lost.
    pub(super) fn may_begin(&self, cancel: &CancellationToken) -> Result<(), Abort> {
        match self.is_lost() {
            _ if cancel.is_cancelled() => Err(cancelled_before_start().into()),
            true => Err(Abort::Requeued),
            false => Ok(()),
        }
    }

    /// Waits for something before the tool begins, unless the call is cancelled, given back or lost meanwhile. Biased:
    /// what a stopped call gives up must not go to a call that is stopped as well.
    pub(super) async fn before_start<T>(
        &self,
        cancel: &CancellationToken,
        shutdown: &CancellationToken,
        waiting: impl Future<Output = T>,
    ) -> Result<T, Abort> {
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(cancelled_before_start().into()),
            () = shutdown.cancelled() => Err(Abort::Requeued),
            () = self.delivery.slot.lost() => Err(Abort::Requeued),
            waited = waiting => Ok(waited),
        }
    }

    /// Does heavy work for a call whose tool has ended. It has time beyond the deadline, because the tool may have
    /// acted.
    pub(super) async fn finish_in_turn<T: Send + 'static>(
        &self,
        turns: &Turns,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ToolFailure> {
        let latest = self.timing.deadline.max(self.timing.clock.now()) + REPLY_GRACE;
        turns.finish(self.request.sharer(), usize::MAX, latest, work).await
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
        self.delivery.attached &= done;
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
        if end.is_some() && !self.delivery.replayed {
            self.load.ended(
                &self.request.caller,
                self.execution.tool.as_ref().map(|tool| &tool.name),
                self.timing.clock.now(),
            );
        }
        let summary = CallSummary {
            caller: Some(&self.request.caller),
            tool: self.execution.tool.as_deref(),
            requested: &self.request.tool_name,
            call_id: &self.request.call_id,
            end,
            replayed: self.delivery.replayed,
            attached: self.delivery.attached,
            idempotency_key: self.request.idempotency_key.as_deref(),
            invoke: answered.saturating_duration_since(self.timing.arrived),
            total,
            waited: self.timing.waited,
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

/// Failure of a call that was cancelled before its tool began.
fn cancelled_before_start() -> ToolFailure {
    ToolFailure::new(Cause::CancelledBeforeStart, "The call was cancelled before the tool began.")
}

/// Replaces the settlement of a delivery once its call has taken it.
struct Settled;

impl Settle for Settled {
    fn acknowledge(self: Box<Self>) -> BoxFuture<'static, ()> {
        ready(()).boxed()
    }

    fn requeue(self: Box<Self>) -> BoxFuture<'static, ()> {
        ready(()).boxed()
    }
}
