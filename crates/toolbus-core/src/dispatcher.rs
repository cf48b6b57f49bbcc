//! The path of one call, from its delivery to its acknowledgement.
//!
//! Read [`Dispatcher::handle`] and [`Dispatcher::run`] first: they name every step in order.

mod call;
mod completing;
mod duplicates;
mod earlier;
mod finding;
mod inner;
mod log;
mod parts;
mod progress;
mod replying;
mod shaping;

use std::collections::hash_map::RandomState;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolbus_protocol::{Envelope, Random};

use self::call::Call;
use self::completing::Completer;
use self::duplicates::Duplicates;
use self::earlier::EarlierRuns;
use self::finding::ToolFinder;
pub use self::inner::{InnerCall, InnerOrigin, Invoker};
use self::progress::ProgressReporter;
use self::replying::ReplyBuilder;
use self::shaping::Shaper;
use crate::Clock;
use crate::audit::Audit;
use crate::bulkhead::{self, StopReason};
use crate::bus::{Bus, Delivery};
use crate::caller::Caller;
use crate::deadline::{self, Budgets};
use crate::failure::{self, Cause, ToolFailure};
use crate::gates::Gates;
use crate::gates::breaker::{BackendState, BreakerChange, Passage, backend_state};
use crate::gates::permit::{Permit, Permits};
use crate::idempotency::ledger::{LedgerEntry, LedgerSettings};
use crate::idempotency::{LocalKeys, NotBegun, Recorder};
use crate::notify::{ChangeNotifier, NotificationSource, NotifyHandle, RecentCallers, ToolNames};
use crate::pending_tools::PendingTools;
use crate::policy::{AllowedTool, EffectiveTools, PolicyHandle};
use crate::redact::Redactor;
use crate::reply::Replier;
use crate::reply_address::ReplyRules;
use crate::request::Decoded;
use crate::results::ResultSettings;
use crate::running::RunningCalls;
use crate::telemetry::{CallSummary, Load, Telemetry};
use crate::tool::{Tool, ToolCall, ToolOutput};

/// A request that was delivered this often before gets a reply instead of another try.
const MAX_EARLIER_DELIVERIES: u32 = 4;

/// Settings of the dispatcher.
#[derive(Debug, Clone)]
pub struct DispatcherSettings {
    /// This daemon's name: the source of its replies.
    pub name: String,
    /// Rules of the addresses that replies may go to.
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
    /// The clock.
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
    telemetry: Arc<dyn Telemetry>,
    permits: Arc<Permits>,
    duplicates: Duplicates,
    earlier: Arc<EarlierRuns>,
    finder: ToolFinder,
    recorder: Arc<Recorder>,
    shaper: Shaper,
    replies: Arc<ReplyBuilder>,
    replier: Arc<Replier>,
    completer: Completer,
    local_keys: LocalKeys,
    /// Digests where replies go.
    reply_digests: RandomState,
    running: Arc<RunningCalls>,
    load: Arc<Load>,
    callers: RecentCallers,
    /// Calls from outside that no message brought.
    direct: TaskTracker,
    /// Calls within calls, and reports of progress: they end with the call around them, or soon after.
    tasks: TaskTracker,
    /// Cancelled when the time to finish calls is over.
    shutdown: CancellationToken,
}

/// Reason why a call ends without a result of its own.
enum Abort {
    /// The caller gets this failure.
    Failed(ToolFailure),
    /// The message goes back to its queue, for another daemon or a later start, or has gone back with its connection.
    Requeued,
    /// Settled without a reply, because another bridge may have the tool.
    Ignored(ToolFailure),
    /// Another daemon has begun it, or answered it.
    Known(LedgerEntry),
}

impl From<ToolFailure> for Abort {
    fn from(failure: ToolFailure) -> Self {
        Self::Failed(failure)
    }
}

impl From<NotBegun> for Abort {
    fn from(reason: NotBegun) -> Self {
        match reason {
            NotBegun::Known(entry) => Self::Known(entry),
            NotBegun::Refused(failure) => Self::Failed(failure),
        }
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
        let parts = Parts::new(settings, gates, bus, telemetry, audit, load, arrivals);
        Self { parts: Arc::new(parts) }
    }

    /// Ends the calls that are still under way: those that did not begin or can be repeated go back to their queue, the
    /// others get the reply `cancelled`.
    pub fn shut_down(&self) {
        self.parts.shutdown.cancel();
    }

    /// Calls from outside that no message brought. Once this is closed, further ones are refused.
    pub(crate) fn direct(&self) -> &TaskTracker {
        &self.parts.direct
    }

    /// Cancels the calls of `caller` with this id; false when there is none here. `sent` is the time at which the
    /// cancellation was sent, in seconds since 1970: then it also cancels a call that was sent no later, and arrives
    /// after it.
    #[must_use]
    pub fn cancel(&self, caller: &Caller, call_id: &str, sent: Option<u64>) -> bool {
        self.parts.running.cancel(&caller.owner, call_id, sent)
    }

    /// Cancels the calls with this id of callers that logs show with this name, as an operator may; gives their number.
    #[must_use]
    pub fn cancel_named(&self, name: &str, call_id: &str) -> usize {
        self.parts.running.cancel_named(name, call_id)
    }

    /// Notifies agents of changes of what they may use.
    #[must_use]
    pub fn notifier(&self, bus: Arc<dyn Bus>) -> ChangeNotifier<ToolNames> {
        self.notifier_of(ToolNames, bus).0
    }

    /// A notifier of changes of `source`, which also sends everything to agents that request it.
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

    /// The clock.
    pub(crate) fn clock(&self) -> Clock {
        self.parts.settings.clock
    }

    /// Makes ids.
    pub(crate) fn random(&self) -> Random {
        self.parts.settings.random
    }

    /// Notes that a caller has listed all of its tools out of this set, so that changes are reported relative to them.
    pub(crate) fn note_list(&self, caller: &Caller, effective: &EffectiveTools) {
        if let Some(agent) = &caller.agent {
            self.parts.callers.note_list(agent, effective.catalogue());
            if effective.has_no_section() {
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

    /// The policy for callers.
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
                let call = Call::new(parts, request, span, &mut delivery);
                // 3. replay
                let Some(call) = self.unless_known(call).await else { return };
                // What a request that is running or was answered did must not be lost with its address.
                match parts.replier.refusal(&call.request.address).await {
                    None => self.run_to_end(call).await,
                    Some(refused) => parts.completer.refuse_address(call, delivery, &refused).await,
                }
            }
            Decoded::Refused(request, mut failure) => {
                failure.redact(&parts.settings.redactor);
                let mut call = Call::new(parts, request, span, &mut delivery);
                call.span.shaped(Err(&failure));
                parts.completer.finish(call, Err(Abort::Failed(failure))).await;
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

    /// Step 3. Ends a call whose request was answered or is running already; gives back one that is to be run.
    async fn unless_known(&self, call: Box<Call>) -> Option<Box<Call>> {
        let (call, earlier) = self.parts.duplicates.enter(call).await?;
        self.parts.completer.end_known(call, earlier).await
    }

    /// Steps 4 to 13.
    async fn run_to_end(&self, mut call: Box<Call>) {
        let Parts { completer, earlier, .. } = &*self.parts;
        loop {
            let result = self.run_contained(&mut call).await;
            let (Err(Abort::Known(entry)), Some(identity)) = (&result, call.everywhere()) else {
                return completer.finish(call, result).await;
            };
            // It was not there at step 3: another daemon was faster.
            let known = earlier.resolve(&mut call, identity, entry.clone()).await;
            let Some(again) = completer.end_known(call, known).await else { return };
            call = again;
        }
    }

    /// As [`Self::run`]. A panic of the daemon's own code must not leave the call hanging, either.
    async fn run_contained(&self, call: &mut Call) -> Result<ToolOutput, Abort> {
        let result = AssertUnwindSafe(self.run(call)).catch_unwind().await;
        result.unwrap_or_else(|panic| Err(failure::panicked(&*panic).into()))
    }

    /// Steps 4 to 11: from a decoded request to a result, or to the first step that refuses.
    async fn run(&self, call: &mut Call) -> Result<ToolOutput, Abort> {
        call.span.requested(call.request.arguments.as_deref());
        let mut result = self.attempt(call).await;
        // 11. shape
        let redactor = &self.parts.settings.redactor;
        match &mut result {
            Ok(output) => {
                if let Err(failure) = self.parts.shaper.shape(call, output).await {
                    result = Err(failure.into());
                }
            }
            Err(Abort::Failed(failure) | Abort::Ignored(failure)) => failure.redact(redactor),
            Err(Abort::Requeued | Abort::Known(_)) => {}
        }
        match &result {
            Ok(output) => call.span.shaped(Ok(output)),
            Err(Abort::Failed(failure) | Abort::Ignored(failure)) => call.span.shaped(Err(failure)),
            Err(Abort::Requeued | Abort::Known(_)) => {}
        }
        result
    }

    /// Steps 4 to 10.
    async fn attempt(&self, call: &mut Call) -> Result<ToolOutput, Abort> {
        let Parts { gates, running, finder, recorder, settings, .. } = &*self.parts;
        let request = &call.request;
        let sent = request.envelope.timestamp;
        let entry = running.enter(&request.caller.owner, &request.call_id, sent);
        let cancel = call.execution.cancelled.clone().unwrap_or_else(|| entry.token().clone());
        // 4. resolve
        let effective = finder.enter(call, &cancel).await?;
        let allowed = finder.resolve(call, &effective)?;
        call.resolved(allowed.tool, settings.budgets);
        // 5. arguments
        let (text, sharer) = (call.request.arguments.as_deref(), call.request.sharer());
        let arguments = gates.arguments(&effective, allowed, text, sharer, call.timing.deadline).await?;
        let arguments = call.checked(arguments);
        // 6. recipients, breaker, 7. rate limit
        gates.admit(&effective, allowed, &arguments)?;
        // 8. permit
        let (permit, passage) = self.permit(call, &effective, allowed, &cancel).await?;
        // 9. start
        let is_repeatable = allowed.tool.descriptor.effect.is_repeatable();
        let begun = recorder.start(&mut call.identity, &call.request, call.timing.deadline, is_repeatable).await;
        begun.map_err(Abort::from).and_then(|()| call.may_begin(&cancel))?;
        // 10. execute
        let caller = effective.with_own_profile(&call.request.caller);
        let mut result = self.execute(call, allowed.tool, caller, arguments, &cancel).await;
        note_breaker(call, passage, &result, settings.budgets);
        if let Ok(output) = &mut result {
            call.drop_unwanted(output);
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

    /// Step 8. A slot to run in, waited for during at most half of the time that is left, so that a refusal leaves the
    /// caller time for another try. Afterwards, what may have changed meanwhile is checked again.
    async fn permit<'a>(
        &'a self,
        call: &mut Call,
        effective: &EffectiveTools,
        allowed: AllowedTool<'_>,
        cancel: &CancellationToken,
    ) -> Result<(Option<Permit>, Passage<'a>), Abort> {
        let Parts { gates, permits, shutdown, .. } = &*self.parts;
        let tool = &allowed.tool.descriptor;
        let now = self.clock().now();
        if call.request.budget.is_spent() || call.timing.deadline <= now {
            return Err(deadline::passed().into());
        }
        let permit = if tool.delegates {
            call.may_begin(cancel)?;
            None
        } else {
            let latest = now + call.timing.deadline.saturating_duration_since(now) / 2;
            let (agent, caller) = (effective.gate(), call.request.sharer());
            let acquiring = permits.acquire(Some(tool), agent, caller, call.delivery.body_size, latest);
            let permit = call.before_start(cancel, shutdown, acquiring).await;
            call.timing.waited = self.clock().since(now);
            Some(permit??)
        };
        gates.still_on(&call.request.caller, allowed, call.request.wanted())?;
        Ok((permit, gates.breakers().enter(tool)?))
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
        let idempotency_key = call.identity.onward_key(&call.request, descriptor.effect);
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
            number: call.span.number(),
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
}

/// Notes at its breaker how a tool did, and writes to the log if that opens or closes it.
fn note_breaker(call: &Call, passage: Passage<'_>, result: &Result<ToolOutput, Abort>, budgets: Budgets) {
    let Some(tool) = &call.execution.tool else { return };
    let granted = tool.timeout.unwrap_or(budgets.default).min(budgets.max);
    let had_its_time = call.timing.ran.is_some_and(|ran| ran >= granted / 2);
    let backend = match result {
        Ok(_) => BackendState::Works,
        Err(Abort::Failed(failure)) => backend_state(failure.cause, tool, had_its_time),
        Err(Abort::Requeued | Abort::Ignored(_) | Abort::Known(_)) => BackendState::Unknown,
    };
    match passage.ended(tool, backend) {
        Some(BreakerChange::Tripped { name, failures, pause }) => {
            let next_trial_ms = pause.as_millis();
            tracing::warn!(name = &*name, failures, next_trial_ms, "circuit breaker opened");
        }
        Some(BreakerChange::Closed { name, open_for }) => {
            tracing::info!(name = &*name, open_ms = open_for.as_millis(), "circuit breaker closed");
        }
        None => {}
    }
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
    cancelled("The call was cancelled. Another one with its idempotency key goes on.").begun()
}
