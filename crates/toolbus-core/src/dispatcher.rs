//! The path of one call, from its delivery to its acknowledgement.
//!
//! Read [`Dispatcher::handle`] and [`Dispatcher::run`] first: they name every step in order.

mod call;
mod ending;
mod entering;
mod inner;
mod known;
mod log;
mod progress;
mod recorder;
mod splitting;

use std::collections::hash_map::RandomState;
use std::num::NonZeroUsize;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolbus_protocol::{Envelope, Random};

use self::call::{Attached, Call};
pub use self::inner::{InnerCall, InnerOrigin, Invoker};
use self::log::{Log, LoggedCall};
use self::progress::ProgressReporter;
use self::recorder::Recorder;
use crate::audit::Audit;
use crate::bulkhead::{self, StopReason};
use crate::bus::{Bus, Delivery};
use crate::caller::Caller;
use crate::clock::Clock;
use crate::deadline::{self, Budgets};
use crate::failure::{self, Cause, Effect, ToolFailure, verdict};
use crate::gates::Gates;
use crate::gates::permit::{AgentGate, Permit, Permits};
use crate::ledger::{LedgerEntry, LedgerSettings};
use crate::notify::{ChangeNotifier, NotificationSource, NotifyHandle, RecentCallers, ToolNames};
use crate::pending_tools::PendingTools;
use crate::policy::{EffectiveTools, PolicyHandle};
use crate::redact::Redactor;
use crate::replay::Replay;
use crate::reply::{REPLY_GRACE, Replier, Replies, Reply, ReplyTo};
use crate::request::{Decoded, Decoder, ReplyRules, Request};
use crate::request_key::LocalKeys;
use crate::results::ResultSettings;
use crate::running::RunningCalls;
use crate::telemetry::{CallSummary, Load, Telemetry};
use crate::tool::{Tool, ToolCall, ToolOutput};

/// A request that was delivered this often before is answered instead of tried again.
const MAX_EARLIER_DELIVERIES: u32 = 4;
/// One in so many calls in hand may wait for a queue that rejects its reply.
const WAIT_FOR_ROOM: usize = 8;
/// Memory of kept replies, in bytes.
const MAX_KEPT_BYTES: usize = 64 * 1024 * 1024;

/// Settings of the dispatcher.
#[derive(Debug, Clone)]
pub struct DispatcherSettings {
    /// This daemon's name: the source of its replies.
    pub name: String,
    /// Which addresses answers may go to.
    pub replies: ReplyRules,
    /// Time that calls may take.
    pub budgets: Budgets,
    /// Largest body of a request, in bytes.
    pub max_body: usize,
    /// Calls that run at a time.
    pub max_in_flight: usize,
    /// Calls that wait at a time.
    pub max_waiting: usize,
    /// Removes the daemon's own secrets from what callers receive.
    pub redactor: Redactor,
    /// Whether requests for MCP servers that this daemon does not have are left to other bridges, unanswered.
    pub ignores_unknown_servers: bool,
    /// Ledger of calls that must not run twice; `None`: nothing is recorded.
    pub ledger: Option<LedgerSettings>,
    /// Splitting of results that are too long for a model; `None`: none is split.
    pub results: Option<ResultSettings>,
    /// Tells the time.
    pub clock: Clock,
    /// Makes ids.
    pub random: Random,
}

/// Handles calls. Cheap to clone.
#[derive(Clone)]
pub struct Dispatcher {
    parts: Arc<Parts>,
}

struct Parts {
    settings: DispatcherSettings,
    gates: Arc<Gates>,
    replier: Replier,
    telemetry: Arc<dyn Telemetry>,
    permits: Permits,
    replay: Replay<Attached>,
    local_keys: LocalKeys,
    recorder: Recorder,
    /// Digests where replies go.
    reply_digests: RandomState,
    running: Arc<RunningCalls>,
    load: Arc<Load>,
    callers: RecentCallers,
    arrivals: Arc<dyn PendingTools>,
    audit: Arc<dyn Audit>,
    log: Log,
    /// Calls from outside that no message brought.
    direct: TaskTracker,
    /// Calls within calls, and reports of progress: they end with the call around them, or soon after.
    tasks: TaskTracker,
    /// Cancelled when the time to finish calls is over.
    shutdown: CancellationToken,
}

impl Parts {
    fn decoder(&self) -> Decoder<'_> {
        let DispatcherSettings { max_body, clock, random, .. } = self.settings;
        Decoder { rules: self.replier.rules(), max_body, clock, random }
    }
}

/// Why a call ends without a result of its own.
enum Abort {
    /// The caller gets this failure.
    Failed(ToolFailure),
    /// The message goes back to its queue, for another daemon or a later start, or has gone back with its connection.
    Requeued,
    /// Settled without a reply, because another bridge may have what the call asks for.
    Ignored(ToolFailure),
    /// Another daemon has begun it, or answered it.
    Known(LedgerEntry),
}

impl From<ToolFailure> for Abort {
    fn from(failure: ToolFailure) -> Self {
        Self::Failed(failure)
    }
}

impl Dispatcher {
    /// Puts the parts together.
    #[must_use]
    pub fn new(
        settings: DispatcherSettings,
        gates: Arc<Gates>,
        bus: Arc<dyn Bus>,
        telemetry: Arc<dyn Telemetry>,
        audit: Arc<dyn Audit>,
        load: Arc<Load>,
        arrivals: Arc<dyn PendingTools>,
    ) -> Self {
        // Whatever can be unsettled at once can be redelivered at once.
        let unsettled = settings.max_in_flight.saturating_add(settings.max_waiting);
        let kept = NonZeroUsize::new(unsettled.saturating_mul(2)).unwrap_or(NonZeroUsize::MIN);
        let replies = Replies::new(bus, settings.replies.clone(), unsettled / WAIT_FOR_ROOM);
        let shutdown = CancellationToken::new();
        let (ledger, clock, random) = (settings.ledger.clone(), settings.clock, settings.random);
        let recorder = Recorder::new(ledger, Arc::clone(&telemetry), clock, random);
        let parts = Parts {
            gates,
            replier: Replier::new(replies, Arc::clone(&telemetry), settings.clock, shutdown.clone()),
            telemetry,
            permits: Permits::new(settings.max_in_flight, settings.max_waiting, Arc::clone(&load), settings.clock),
            replay: Replay::new(kept, MAX_KEPT_BYTES),
            local_keys: LocalKeys::default(),
            recorder,
            reply_digests: RandomState::new(),
            running: Arc::new(RunningCalls::new(settings.clock)),
            load,
            callers: RecentCallers::new(settings.clock),
            arrivals,
            audit,
            log: Log::default(),
            direct: TaskTracker::new(),
            tasks: TaskTracker::new(),
            shutdown,
            settings,
        };
        Self { parts: Arc::new(parts) }
    }

    /// Ends the calls that are still under way: those that did not begin or can be repeated go back to their queue, the
    /// others are answered `cancelled`.
    pub fn shut_down(&self) {
        self.parts.shutdown.cancel();
    }

    /// Calls from outside that no message brought. Once this is closed, further ones are refused.
    pub(crate) fn direct(&self) -> &TaskTracker {
        &self.parts.direct
    }

    /// Cancels the calls of `caller` with this id; false when there is none here. `sent` says when the cancellation was
    /// sent, in seconds since 1970: then it also cancels a call that was sent no later, and arrives after it.
    #[must_use]
    pub fn cancel(&self, caller: &Caller, call_id: &str, sent: Option<u64>) -> bool {
        self.parts.running.cancel(&caller.owner, call_id, sent)
    }

    /// Notifies agents of changes of what they may use.
    #[must_use]
    pub fn notifier(&self, bus: Arc<dyn Bus>) -> ChangeNotifier<ToolNames> {
        self.notifier_of(ToolNames, bus).0
    }

    /// Notifies agents of changes of something else, and agents that ask of everything.
    #[must_use]
    pub fn notifier_of<N: NotificationSource>(
        &self,
        source: N,
        bus: Arc<dyn Bus>,
    ) -> (ChangeNotifier<N>, NotifyHandle) {
        let parts = &self.parts;
        let (name, policy, callers) = (parts.settings.name.clone(), self.policy().clone(), parts.callers.clone());
        ChangeNotifier::new(source, name, policy, bus, parts.settings.random, callers)
    }

    /// Tells the time.
    pub(crate) fn clock(&self) -> Clock {
        self.parts.settings.clock
    }

    /// Makes ids.
    pub(crate) fn random(&self) -> Random {
        self.parts.settings.random
    }

    /// Observes messages and calls.
    pub(crate) fn telemetry(&self) -> &dyn Telemetry {
        &*self.parts.telemetry
    }

    /// Notes that a caller has listed all of its tools out of this set, so that changes are reported relative to them.
    pub(crate) fn note_list(&self, caller: &Caller, effective: &EffectiveTools) {
        if let Some(agent) = &caller.agent {
            self.parts.callers.note_list(agent, effective.catalogue());
            if effective.is_everybody() {
                self.parts.callers.note(agent, effective.catalogue());
            }
        }
    }

    /// Delivers replies and dead letters.
    pub(crate) fn replier(&self) -> &Replier {
        &self.parts.replier
    }

    /// Current load.
    pub(crate) fn load(&self) -> &Load {
        &self.parts.load
    }

    /// Whether a caller may list its tools again by now.
    ///
    /// # Errors
    ///
    /// [`Cause::RateLimited`], with the time after which it may.
    pub(crate) fn topic_rate(&self, effective: &EffectiveTools, topic: &str) -> Result<(), ToolFailure> {
        self.parts.gates.topic_rate(effective, topic, self.clock().now())
    }

    /// Who may use what.
    #[must_use]
    pub fn policy(&self) -> &PolicyHandle {
        self.parts.gates.policy()
    }

    /// Handles one delivery to its end: it is answered, dead-lettered, ignored or requeued, then acked or
    /// nacked.
    pub async fn handle(&self, mut delivery: Delivery) {
        let parts = &*self.parts;
        let envelope = Envelope::read(&delivery.properties);
        let span = parts.telemetry.arrived(&delivery, envelope.trace.as_ref());
        // 2. caller: before the body is read, because a sidecar leaves alone what is not its agent's
        let user_id = delivery.properties.user_id.as_deref();
        let Some(caller) = self.policy().identify(user_id, &envelope, &delivery.routing_key) else {
            delivery.settle.acknowledge().await;
            span.finished(&CallSummary::unanswered(self.clock().since(delivery.arrived)));
            return;
        };
        // 1. decode
        match parts.decoder().decode_in_turn(&delivery, envelope, caller, self.policy().turns()).await {
            Decoded::Call(request) => {
                let call = Call::new(parts, request, span, &delivery);
                // 3. replay
                let Some(call) = self.replay(call, &mut delivery).await else { return };
                match self.address_refused(&call).await {
                    None => self.run_to_end(call).await,
                    Some(refused) => self.refuse_address(call, delivery, &refused).await,
                }
            }
            Decoded::Refused(request, failure) => {
                let call = Call::new(parts, request, span, &delivery);
                let _ = call.delivery.slot.replace(delivery.settle, false);
                self.finish(call, Err(Abort::Failed(failure))).await;
            }
            Decoded::Ignored => {
                tracing::debug!(queue = %delivery.queue, "settled a message that is no request");
                delivery.settle.acknowledge().await;
                span.finished(&CallSummary::unanswered(self.clock().since(delivery.arrived)));
            }
            Decoded::Dead(reason, detail) => {
                let arrived = delivery.arrived;
                parts.replier.dead_letter_request(delivery, reason, &detail).await;
                span.finished(&CallSummary::unanswered(self.clock().since(arrived)));
            }
        }
    }

    /// Steps 4 to 13.
    async fn run_to_end(&self, mut call: Box<Call>) {
        loop {
            let result = self.run_contained(&mut call).await;
            let (Err(Abort::Known(entry)), Some(identity)) = (&result, call.everywhere()) else {
                return self.finish(call, result).await;
            };
            // It was not there at step 3: another daemon was faster.
            let known = self.resolve_entry(&mut call, identity, entry.clone()).await;
            let Some(again) = self.end_known(call, known).await else { return };
            call = again;
        }
    }

    /// As [`Self::run`]. A panic of our own must not leave the call hanging, either.
    async fn run_contained(&self, call: &mut Call) -> Result<ToolOutput, Abort> {
        let result = AssertUnwindSafe(self.run(call)).catch_unwind().await;
        result.unwrap_or_else(|panic| Err(failure::panicked(&*panic).into()))
    }

    /// Steps 4 to 11: from a decoded request to a result, or to the first step that refuses.
    async fn run(&self, call: &mut Call) -> Result<ToolOutput, Abort> {
        let mut result = self.attempt(call).await;
        // 11. shape
        let redactor = &self.parts.settings.redactor;
        match &mut result {
            Ok(output) => {
                if let Err(failure) = self.shape(call, output).await {
                    result = Err(failure.into());
                }
            }
            Err(Abort::Failed(failure) | Abort::Ignored(failure)) => failure.redact(redactor),
            Err(Abort::Requeued | Abort::Known(_)) => {}
        }
        result
    }

    /// Steps 4 to 10.
    async fn attempt(&self, call: &mut Call) -> Result<ToolOutput, Abort> {
        let gates = &self.parts.gates;
        let request = &call.request;
        let sent = request.envelope.timestamp;
        let entry = self.parts.running.enter(&request.caller.owner, &request.call_id, sent);
        let cancel = call.execution.cancelled.clone().unwrap_or_else(|| entry.token().clone());
        // 4. resolve
        let effective = self.enter(call, &cancel).await?;
        let allowed = gates.resolve(&effective, &call.request.caller, call.request.wanted());
        let allowed = allowed.map_err(|failure| self.not_found(call, &effective, failure))?;
        call.resolved(allowed.tool, self.parts.settings.budgets);
        // 5. arguments
        let (text, sharer) = (call.request.arguments.as_deref(), call.request.sharer());
        let arguments = gates.arguments(&effective, allowed, text, sharer, call.timing.deadline).await?;
        let arguments = call.checked(arguments);
        // 6. recipients
        gates.recipients(&effective, allowed, &arguments)?;
        // 7. rate limit: what the breaker of the tool refuses uses up nothing
        gates.breakers().check(&allowed.tool.descriptor)?;
        gates.rate(&effective, allowed, self.clock().now())?;
        // 8. permit
        let permit = self.permit(call, allowed.tool, effective.gate(), &cancel).await?;
        gates.still_on(&call.request.caller, allowed, call.request.wanted())?;
        let passage = gates.breakers().enter(&allowed.tool.descriptor)?;
        // 9. start
        self.parts.recorder.start(call, allowed.tool.descriptor.effect.is_repeatable()).await?;
        if cancel.is_cancelled() {
            return Err(cancelled_before_start().into());
        }
        if call.is_lost() {
            return Err(Abort::Requeued);
        }
        // 10. execute
        let caller = effective.with_own_profile(&call.request.caller);
        let result = self.execute(call, allowed.tool, caller, arguments, &cancel).await;
        self.note_breaker(call, passage, &result);
        if let Ok(output) = &result {
            call.note_length(output, &effective);
        }
        if let Ok(output) = &result
            && output.is_large()
        {
            call.execution.permit = permit;
            call.execution.permit.iter_mut().for_each(Permit::release_tool);
        }
        result
    }

    /// Step 8. A place to run, waited for during at most half of the time that is left, so that a refusal leaves the
    /// caller time for another try.
    async fn permit(
        &self,
        call: &mut Call,
        tool: &Tool,
        agent: &Arc<AgentGate>,
        cancel: &CancellationToken,
    ) -> Result<Option<Permit>, Abort> {
        let now = self.clock().now();
        if call.request.budget.is_spent() || call.timing.deadline <= now {
            return Err(deadline::passed().into());
        }
        if cancel.is_cancelled() {
            return Err(cancelled_before_start().into());
        }
        if tool.descriptor.delegates {
            return Ok(None);
        }
        let latest = now + call.timing.deadline.saturating_duration_since(now) / 2;
        let caller = call.request.sharer();
        // Biased: the place that a stopped call gives up must not go to a call that is stopped as well.
        let permit = tokio::select! {
            biased;
            () = cancel.cancelled() => Err(cancelled_before_start().into()),
            () = self.parts.shutdown.cancelled() => Err(Abort::Requeued),
            () = call.delivery.slot.lost() => Err(Abort::Requeued),
            permit = self.parts.permits.acquire(Some(&tool.descriptor), agent, caller, call.delivery.body_size, latest) => permit.map(Some).map_err(Abort::from),
        };
        call.timing.waited = self.clock().since(now);
        permit
    }

    /// Step 10. Runs the tool inside its bulkhead.
    async fn execute(
        &self,
        call: &mut Call,
        tool: &Tool,
        caller: Arc<Caller>,
        arguments: Arc<Map<String, Value>>,
        cancel: &CancellationToken,
    ) -> Result<ToolOutput, Abort> {
        let descriptor = &tool.descriptor;
        let idempotency_key = call.onward_key(descriptor.effect);
        let started = self.clock().now();
        let request = &call.request;
        let trace = call.span.executing(descriptor, &request.call_id, &request.caller);
        let (sink, reporter) = match call.request.wants_progress {
            true => Some(ProgressReporter::begin(self, call)).unzip(),
            false => (call.execution.progress.clone(), None),
        };
        let results = call.execution.split_above.and(self.parts.settings.results.as_ref());
        call.execution.room = results.map(|results| results.budget.room());
        let sink = sink.map(|sink| sink.redacted_by(self.parts.settings.redactor.clone()));
        let request = &call.request;
        let tool_call = ToolCall {
            tool: Arc::clone(descriptor.bare_name()),
            caller,
            call_id: Arc::clone(&request.call_id),
            arguments,
            deadline: deadline::inner(call.timing.deadline, started),
            limit: call.timing.deadline.saturating_duration_since(call.timing.arrived),
            cancelled: cancel.child_token(),
            trace,
            room: call.execution.room.clone(),
            turns: self.parts.gates.policy().turns().clone(),
            progress: sink,
            idempotency_key,
        };
        let running = bulkhead::run(Arc::clone(&tool.executor), tool_call, call.timing.deadline, &self.parts.shutdown);
        let stopped = self.parts.recorder.running(call.identity.run.is_some(), running).await;
        call.timing.ran =
            (!matches!(stopped, Err(StopReason::ShuttingDownUnbegun))).then(|| self.clock().since(started));
        if let Some(reporter) = reporter {
            reporter.end().await;
        }
        match stopped {
            Ok(result) => result.map_err(Abort::from),
            Err(StopReason::ShuttingDownUnbegun) => Err(Abort::Requeued),
            Err(StopReason::ShuttingDown) if descriptor.effect.is_repeatable() => Err(Abort::Requeued),
            Err(StopReason::ShuttingDown) => Err(cancelled("The daemon shut down while the tool ran.").into()),
            Err(StopReason::Cancelled) => Err(cancelled("The call was cancelled while the tool ran.").into()),
        }
    }

    /// Steps 12 and 13 for whatever became of a call.
    async fn finish(&self, mut call: Box<Call>, result: Result<ToolOutput, Abort>) {
        if call.is_lost() {
            return self.requeue(call).await;
        }
        let reply = match result {
            Ok(output) => self.result(&mut call, output).await,
            Err(Abort::Failed(failure)) => self.failure(&mut call, &failure),
            Err(Abort::Ignored(failure)) if call.delivery.direct.is_some() => self.failure(&mut call, &failure),
            Err(Abort::Requeued) => return self.requeue(call).await,
            Err(Abort::Ignored(_)) => return self.ignore(call).await,
            // Resolved before, or the entry of a request without an identity, which there is not.
            Err(Abort::Known(_)) => return self.requeue(call).await,
        };
        let reply = self.parts.recorder.record(&mut call, Arc::new(reply)).await;
        self.send(call, reply).await;
    }

    async fn result(&self, call: &mut Call, output: ToolOutput) -> Reply {
        let built = match output.is_large() {
            false => self.reply_to(call).result(output, call.run()),
            true => {
                let (dispatcher, run) = (self.clone(), call.run());
                let Request { envelope, caller, call_id, tool_name, dialect, .. } = &call.request;
                let (envelope, tool_name, dialect) = (envelope.clone(), tool_name.clone(), *dialect);
                let (caller, call_id) = (Arc::clone(caller), Arc::clone(call_id));
                let encode = move || {
                    let (source, clock) = (&dispatcher.parts.settings.name, dispatcher.clock());
                    let reply_to = ReplyTo {
                        source,
                        clock,
                        envelope: &envelope,
                        caller: &caller,
                        call_id: &call_id,
                        tool_name: &tool_name,
                        dialect,
                    };
                    reply_to.result(output, run)
                };
                self.finish_in_turn(call, encode).await.and_then(|built| built)
            }
        };
        match built {
            Ok(mut reply) => {
                call.executed(&reply.end);
                call.trace(&mut reply);
                reply
            }
            Err(too_large) => self.failure(call, &too_large),
        }
    }

    /// Does heavy work for a call whose tool has ended. It has time beyond the deadline, because the tool may have acted.
    async fn finish_in_turn<T: Send + 'static>(
        &self,
        call: &Call,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ToolFailure> {
        let latest = call.timing.deadline.max(self.clock().now()) + REPLY_GRACE;
        self.parts.gates.policy().turns().finish(call.request.sharer(), usize::MAX, latest, work).await
    }

    fn reply_to<'a>(&'a self, call: &'a Call) -> ReplyTo<'a> {
        let Request { envelope, caller, call_id, tool_name, dialect, .. } = &call.request;
        let source = &self.parts.settings.name;
        ReplyTo { source, clock: self.clock(), envelope, caller, call_id, tool_name, dialect: *dialect }
    }

    fn failure(&self, call: &mut Call, failure: &ToolFailure) -> Reply {
        let mut reply = self.refusal(call, failure, call.timing.ran.is_some());
        call.executed(&reply.end);
        call.trace(&mut reply);
        reply
    }

    /// Builds the reply of a call without a result, and writes its one line to the log.
    fn refusal(&self, call: &Call, failure: &ToolFailure, started: bool) -> Reply {
        let verdict = call.verdict(failure, started);
        self.log_failure(call, failure);
        self.reply_to(call).error(failure, verdict, call.run())
    }

    fn log_failure(&self, call: &Call, failure: &ToolFailure) {
        let subject =
            LoggedCall { tool: call.execution.tool.as_deref(), request: &call.request, trace_id: call.span.trace_id() };
        self.parts.log.failure(&subject, failure, self.parts.shutdown.is_cancelled());
    }
}

fn cancelled_before_start() -> ToolFailure {
    ToolFailure::new(Cause::CancelledBeforeStart, "The call was cancelled before the tool began.")
}

fn cancelled(text: &str) -> ToolFailure {
    ToolFailure::new(Cause::Cancelled, text)
}

/// The failure of a call that the shutdown ended and that no queue takes back.
fn shut_down(has_begun: bool) -> ToolFailure {
    match has_begun {
        true => cancelled("The daemon shut down while the tool ran."),
        false => ToolFailure::new(Cause::Overloaded, "The daemon is shutting down. Try again soon."),
    }
}

/// The failure of a call that its client has given up while another one with its key was under way.
fn given_up_while_it_ran() -> ToolFailure {
    as_begun(cancelled("The call was cancelled. Another one with its idempotency key goes on."))
}

/// A failure of a call whose tool may have acted, though this call did not run it.
fn as_begun(failure: ToolFailure) -> ToolFailure {
    ToolFailure { verdict: Some(verdict(failure.cause, Effect::Undeclared, true)), ..failure }
}
