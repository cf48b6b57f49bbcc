//! The path of one call, from its delivery to its acknowledgement.
//!
//! Read [`Dispatcher::handle`] and [`Dispatcher::run`] first: they name every step in order.

mod call;
mod ending;

use std::num::NonZeroUsize;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio_util::sync::CancellationToken;
use toolbus_protocol::Envelope;

use self::call::Call;
use crate::answer::Answer;
use crate::arguments::Arguments;
use crate::bulkhead::{self, Stop};
use crate::bus::{Bus, Delivery};
use crate::deadline::{self, Budgets};
use crate::decode::{Decoded, decode};
use crate::failure::{Cause, ToolFailure, verdict};
use crate::log::{Log, Subject, shown};
use crate::permit::Permits;
use crate::registry::Registry;
use crate::replay::{Replay, Seen, Slot};
use crate::reply::{Replies, ReplyRules};
use crate::running::Running;
use crate::suggest::Suggestions;
use crate::telemetry::{Load, Summary, Telemetry};
use crate::tool::{Effect, Tool, ToolCall, ToolOutput};

/// A request that was delivered this often before is answered instead of tried again.
const MAX_EARLIER_DELIVERIES: u32 = 4;
/// Memory of kept answers, in bytes.
const MAX_KEPT_BYTES: usize = 64 * 1024 * 1024;

/// How calls are handled.
#[derive(Debug, Clone)]
pub struct Settings {
    /// This daemon's name: the source of its answers.
    pub name: String,
    /// Which addresses answers may go to.
    pub replies: ReplyRules,
    /// How long calls may take.
    pub budgets: Budgets,
    /// Largest body of a request, in bytes.
    pub max_body: usize,
    /// Calls that run at a time.
    pub max_in_flight: usize,
    /// Calls that wait at a time.
    pub max_waiting: usize,
}

/// Handles calls. Cheap to clone.
#[derive(Clone)]
pub struct Dispatcher {
    parts: Arc<Parts>,
}

struct Parts {
    settings: Settings,
    registry: Registry,
    replies: Replies,
    telemetry: Arc<dyn Telemetry>,
    arguments: Arguments,
    permits: Permits,
    replay: Replay,
    running: Arc<Running>,
    suggestions: Suggestions,
    log: Log,
    /// Cancelled when the time to finish calls is over.
    shutdown: CancellationToken,
}

/// Why a call ends without a result of its own.
enum Ended {
    /// It is answered with this failure.
    Failed(ToolFailure),
    /// It goes back to its queue, for another daemon or a later start.
    Requeued,
}

impl From<ToolFailure> for Ended {
    fn from(failure: ToolFailure) -> Self {
        Self::Failed(failure)
    }
}

impl Dispatcher {
    /// Puts the parts together.
    #[must_use]
    pub fn new(
        settings: Settings,
        registry: Registry,
        bus: Arc<dyn Bus>,
        telemetry: Arc<dyn Telemetry>,
        load: Arc<Load>,
    ) -> Self {
        // Whatever can be unsettled at once can be redelivered at once.
        let unsettled = settings.max_in_flight.saturating_add(settings.max_waiting);
        let kept = NonZeroUsize::new(unsettled.saturating_mul(2)).unwrap_or(NonZeroUsize::MIN);
        let parts = Parts {
            registry,
            replies: Replies::new(bus, settings.replies.clone()),
            telemetry,
            arguments: Arguments::new(),
            permits: Permits::new(settings.max_in_flight, settings.max_waiting, load),
            replay: Replay::new(kept, MAX_KEPT_BYTES),
            running: Arc::default(),
            suggestions: Suggestions::new(),
            log: Log::default(),
            shutdown: CancellationToken::new(),
            settings,
        };
        Self { parts: Arc::new(parts) }
    }

    /// Ends the calls that are still under way: those that did not begin or can be repeated go back to their queue, the
    /// others are answered `cancelled`.
    pub fn shut_down(&self) {
        self.parts.shutdown.cancel();
    }

    /// Cancels the calls of `caller` with this id; false when there is none here.
    #[must_use]
    pub fn cancel(&self, caller: &str, call_id: &str) -> bool {
        self.parts.running.cancel(caller, call_id)
    }

    /// Handles one delivery to its end: every delivery is answered, dead-lettered or put back, and then settled.
    pub async fn handle(&self, delivery: Delivery) {
        let parts = &*self.parts;
        let envelope = Envelope::read(&delivery.properties);
        let span = parts.telemetry.arrived(&delivery, envelope.trace.as_ref());
        // 1. decode
        match decode(&delivery, envelope, parts.replies.rules(), parts.settings.max_body) {
            Decoded::Call(request) => {
                // 3. replay
                if let Some(mut call) = self.replay(Call::new(parts, request, span, &delivery), delivery).await {
                    // A panic of our own must not leave the call hanging, either.
                    let result = AssertUnwindSafe(self.run(&mut call)).catch_unwind().await;
                    let result = result.unwrap_or_else(|panic| Err(bulkhead::broken(&*panic).into()));
                    self.finish(call, result).await;
                }
            }
            Decoded::Refused(request, failure) => {
                let mut call = Call::new(parts, request, span, &delivery);
                call.slot = Slot::new(delivery.settle);
                self.finish(call, Err(Ended::Failed(failure))).await;
            }
            Decoded::Ignored => {
                tracing::debug!(queue = %delivery.queue, "settled a message that is no request");
                delivery.settle.acknowledge().await;
                span.finished(&Summary::unanswered(delivery.arrived.elapsed()));
            }
            Decoded::Dead(reason, detail) => {
                let arrived = delivery.arrived;
                self.bury(delivery, reason, &detail).await;
                span.finished(&Summary::unanswered(arrived.elapsed()));
            }
        }
    }

    /// Steps 4 to 10: from a decoded request to a result, or to the first step that refuses.
    async fn run(&self, call: &mut Call) -> Result<ToolOutput, Ended> {
        // 4. resolve
        let tool = self.resolve(&call.request.tool_name)?;
        call.resolved(&tool, self.parts.settings.budgets);
        // 5. arguments
        let arguments = self.parts.arguments.check(&tool, call.request.arguments.as_deref())?;
        // 8. permit
        let entry = self.parts.running.enter(&call.request.caller, &call.request.call_id);
        let permit = self.permit(call, &tool, entry.token()).await?;
        // 10. execute
        let result = self.execute(call, &tool, arguments, entry.token()).await;
        drop(permit);
        result
    }

    /// Step 3. Gives the call its delivery, unless the request was answered or is running already.
    async fn replay(&self, mut call: Box<Call>, delivery: Delivery) -> Option<Box<Call>> {
        let replay = &self.parts.replay;
        call.key = replay.key(&delivery, call.request.has_call_id);
        let redelivered = delivery.redelivered || delivery.earlier_deliveries > 0;
        let seen = match call.key {
            Some(key) if redelivered => replay.look_up(key, delivery.settle),
            _ => Seen::Never(delivery.settle),
        };
        match seen {
            Seen::Never(settle) => call.slot = Slot::new(settle),
            Seen::Running(stale) => {
                // The running call has taken the delivery over, and settles it with its answer.
                if let Some(stale) = stale {
                    stale.acknowledge().await;
                }
                call.conclude(None, Instant::now(), Duration::ZERO);
                return None;
            }
            Seen::Answered(settle, answer) => {
                call.slot = Slot::new(settle);
                call.replayed = true;
                if let Some(key) = call.key {
                    replay.resume(key, &call.slot);
                }
                // The answer is repeated as it was: with the trace that it had.
                let _ = call.span.publishing(answer.properties.message_id.as_deref().unwrap_or_default());
                self.send(call, answer).await;
                return None;
            }
            Seen::Forgotten(settle) => {
                call.slot = Slot::new(settle);
                if let Some(key) = call.key {
                    replay.resume(key, &call.slot);
                }
                self.give_up(call, "It was answered before, and the answer is no longer kept").await;
                return None;
            }
        }
        if let Some(key) = call.key {
            replay.begin(key, &call.slot);
        }
        if delivery.earlier_deliveries >= MAX_EARLIER_DELIVERIES {
            self.give_up(call, "It was delivered too often without an answer").await;
            return None;
        }
        Some(call)
    }

    /// Answers a request that must not be run once more.
    async fn give_up(&self, mut call: Box<Call>, reason: &str) {
        let text = format!("This request is not run again. {reason}.");
        let mut answer = self.refusal(&call, &ToolFailure::new(Cause::DeliveredTooOften, text), true);
        call.trace(&mut answer);
        self.send(call, Arc::new(answer)).await;
    }

    /// Step 4. The tool of this name.
    fn resolve(&self, name: &str) -> Result<Tool, ToolFailure> {
        let snapshot = self.parts.registry.snapshot();
        if let Some(tool) = snapshot.get(name) {
            return Ok(tool.clone());
        }
        let near = self.parts.suggestions.near(name, snapshot.names());
        let mut text = format!("Tool '{}' is not registered.", shown(name));
        if !near.is_empty() {
            let offered: Vec<String> = near.iter().map(|name| format!("'{name}'")).collect();
            text = format!("{text} Did you mean {}?", offered.join(" or "));
        }
        Err(ToolFailure::new(Cause::UnknownTool, text))
    }

    /// Step 8. A place to run, waited for during at most half of the time that is left, so that a refusal leaves the
    /// caller time for another try.
    async fn permit(
        &self,
        call: &mut Call,
        tool: &Tool,
        cancel: &CancellationToken,
    ) -> Result<crate::permit::Permit, Ended> {
        let now = Instant::now();
        if call.request.granted.is_spent() || call.deadline <= now {
            let text = "The deadline of the call had passed before the tool could begin. It was not run.";
            return Err(ToolFailure::new(Cause::Expired, text).into());
        }
        let latest = now + call.deadline.saturating_duration_since(now) / 2;
        // Biased: the place that a stopped call gives up must not go to a call that is stopped as well.
        let permit = tokio::select! {
            biased;
            () = cancel.cancelled() => {
                let text = "The call was cancelled before the tool began.";
                Err(ToolFailure::new(Cause::CancelledBeforeStart, text).into())
            }
            () = self.parts.shutdown.cancelled() => Err(Ended::Requeued),
            permit = self.parts.permits.acquire(&tool.descriptor, call.body_size, latest) => permit.map_err(Ended::from),
        };
        call.waited = now.elapsed();
        permit
    }

    /// Step 10. Runs the tool inside its bulkhead.
    async fn execute(
        &self,
        call: &mut Call,
        tool: &Tool,
        arguments: serde_json::Map<String, serde_json::Value>,
        cancel: &CancellationToken,
    ) -> Result<ToolOutput, Ended> {
        let descriptor = &tool.descriptor;
        let started = Instant::now();
        let request = &call.request;
        let trace = call.span.executing(descriptor, &request.call_id, request.session_id.as_deref());
        let tool_call = ToolCall {
            tool: Arc::clone(descriptor.bare_name()),
            caller: Arc::new(crate::caller::Caller::unknown()),
            call_id: Arc::clone(&request.call_id),
            arguments: Arc::new(arguments),
            deadline: deadline::inner(call.deadline, started),
            cancelled: cancel.child_token(),
            trace,
        };
        let stopped = bulkhead::run(Arc::clone(&tool.executor), tool_call, call.deadline, &self.parts.shutdown).await;
        call.ran = Some(started.elapsed());
        match stopped {
            Ok(result) => result.map_err(Ended::from),
            Err(Stop::ShuttingDown) if descriptor.effect.is_repeatable() => Err(Ended::Requeued),
            Err(Stop::ShuttingDown) => Err(cancelled("The daemon shut down while the tool ran.").into()),
            Err(Stop::Cancelled) => Err(cancelled("The call was cancelled while the tool ran.").into()),
        }
    }

    /// Steps 12 and 13 for whatever became of a call.
    async fn finish(&self, mut call: Box<Call>, result: Result<ToolOutput, Ended>) {
        let answer = match result {
            Ok(output) => self.result(&mut call, output),
            Err(Ended::Failed(failure)) => self.failure(&mut call, &failure),
            Err(Ended::Requeued) => return self.requeue(call).await,
        };
        self.send(call, Arc::new(answer)).await;
    }

    fn result(&self, call: &mut Call, output: ToolOutput) -> Answer {
        match call.recipient().result(&self.parts.settings.name, output, call.run()) {
            Ok(mut answer) => {
                call.executed(&answer.end);
                call.trace(&mut answer);
                answer
            }
            Err(too_large) => self.failure(call, &too_large),
        }
    }

    fn failure(&self, call: &mut Call, failure: &ToolFailure) -> Answer {
        let mut answer = self.refusal(call, failure, call.ran.is_some());
        call.executed(&answer.end);
        call.trace(&mut answer);
        answer
    }

    /// Builds the answer of a call without a result, and writes its one line to the log.
    fn refusal(&self, call: &Call, failure: &ToolFailure, started: bool) -> Answer {
        let effect = call.tool.as_ref().map_or(Effect::Undeclared, |tool| tool.effect);
        let verdict = verdict(failure.cause, effect, started);
        let subject = Subject { tool: call.tool.as_deref(), request: &call.request, trace_id: call.span.trace_id() };
        self.parts.log.failure(&subject, failure, self.parts.shutdown.is_cancelled());
        call.recipient().error(&self.parts.settings.name, failure, verdict, call.run())
    }
}

fn cancelled(text: &str) -> ToolFailure {
    ToolFailure::new(Cause::Cancelled, text)
}
