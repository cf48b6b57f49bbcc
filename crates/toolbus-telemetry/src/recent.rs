//! The calls of the last minutes, kept in memory for operators.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use toolbus_core::Clock;
use toolbus_core::bus::Delivery;
use toolbus_core::caller::Caller;
use toolbus_core::failure::{ToolFailure, error_type};
use toolbus_core::redact::Redactor;
use toolbus_core::telemetry::{CallEnd, CallSpan, CallSummary, DeadReason, LedgerEvent, Telemetry};
use toolbus_core::tool::{ToolDescriptor, ToolOutput};
use toolbus_protocol::{MAX_SHORT_STRING, TraceContext, bounded};

/// Calls that are kept. With ids and names of the greatest length they take less than 4 MiB.
const KEPT: usize = 1_000;
/// Steps of a call that are kept.
const MAX_STEPS: usize = 16;
/// Bytes that are kept of the arguments of a call, and of its result.
const MAX_PAYLOAD: usize = 4 * 1024;
/// Bytes that are kept of a refusal's message.
const MAX_REFUSAL: usize = 500;
/// Bytes of arguments in which secrets are looked for: a secret that begins within what is kept has its end here, or so
/// much of it that it is known, in whichever way it is encoded.
const MAX_SEARCHED: usize = 64 * 1024;

// All payloads together.
const _: () = assert!(KEPT * 2 * MAX_PAYLOAD <= 8 * 1024 * 1024);

/// The calls that began to run, or ended without that, last; the oldest go first. Clones share them.
#[derive(Clone, Default)]
pub struct RecentCalls(Arc<RecentState>);

#[derive(Default)]
struct RecentState {
    calls: Mutex<VecDeque<Arc<Mutex<RecentCall>>>>,
    /// Number of the last call.
    last: AtomicU64,
}

/// A call that ended lately, or that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecentCall {
    /// Number of the call among those since the start, from 1.
    pub number: u64,
    /// Number of the call around it; absent for a call that no tool made.
    pub around: Option<u64>,
    /// Arrival of its request.
    pub arrived: SystemTime,
    /// The queue that the request came from; absent for a call that no message brought.
    pub queue: Option<Arc<str>>,
    /// Id of the request's message.
    pub message_id: Option<Box<str>>,
    /// Correlation id of the request.
    pub correlation_id: Option<Box<str>>,
    /// The caller's id of the call.
    pub call_id: Option<Box<str>>,
    /// Key by which its caller identifies it, once it has ended.
    pub idempotency_key: Option<Box<str>>,
    /// Whether the broker had delivered its request before.
    pub redelivered: bool,
    /// Earlier deliveries of its request, as far as the broker counts them.
    pub earlier_deliveries: u32,
    /// Trace of the call, 32 hexadecimal digits.
    pub trace_id: Option<Box<str>>,
    /// The caller's name, whether or not it is believed.
    pub caller: Arc<str>,
    /// The tool, or the requested name that no tool has.
    pub tool: Arc<str>,
    /// Source of the tool.
    pub source: Option<Arc<str>>,
    /// End of the call; absent while it runs.
    pub end: Option<RecentEnd>,
    /// The parts of its time that are known, in order.
    pub steps: Vec<RecentStep>,
    /// Message for the caller of a call that did not run, without secrets, at most 500 bytes.
    pub refusal: Option<Box<str>>,
    /// Arguments as the caller wrote them, where payloads are kept.
    pub arguments: Option<Arc<RecentPayload>>,
    /// Text of its result, or of its failure, where payloads are kept.
    pub result: Option<Arc<RecentPayload>>,
}

/// Arguments or result of a call, without secrets.
#[derive(Debug, PartialEq, Eq)]
pub struct RecentPayload {
    /// Beginning of the text, at most 4 KiB.
    pub text: Box<str>,
    /// Bytes of the whole text.
    pub size: usize,
    /// Whether the text goes on behind its beginning.
    pub is_cut: bool,
}

/// End of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecentEnd {
    /// `ok`, `error`, a code of the wire, `requeued`, or `attached`: another call of its identity ran, and was replied.
    pub status: &'static str,
    /// Value of `error.type` in metrics.
    pub cause: Option<&'static str>,
    /// Whether the reply is one that was given before.
    pub replayed: bool,
    /// Whether another call of its identity ran instead.
    pub attached: bool,
    /// From the arrival to the settled delivery.
    pub total: Duration,
}

/// A part of a call's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecentStep {
    /// `check`: reading the request and the gates; `wait`: for a permit; `run`: the tool; `reply`: writing it;
    /// `confirm`: until the broker has it; `settle`: the rest.
    pub name: &'static str,
    /// From the arrival to its beginning.
    pub from: Duration,
    /// Length of the step; absent while it lasts.
    pub took: Option<Duration>,
}

impl RecentCalls {
    /// Keeps the calls that are reported, and passes everything on. With `payloads`, which removes secrets from them, the
    /// beginnings of arguments and results are kept, too.
    #[must_use]
    pub fn recording(&self, inner: Arc<dyn Telemetry>, clock: Clock, payloads: Option<Redactor>) -> Arc<dyn Telemetry> {
        Arc::new(RecentRecorder { calls: self.clone(), inner, clock, payloads })
    }

    /// The newest calls that `is_wanted`, newest first, `limit` at most.
    #[must_use]
    pub fn newest(&self, limit: usize, is_wanted: impl Fn(&RecentCall) -> bool) -> Vec<RecentCall> {
        let calls: Vec<_> = self.0.calls.lock().iter().rev().cloned().collect();
        calls.iter().map(|call| call.lock().clone()).filter(is_wanted).take(limit).collect()
    }

    fn add(&self, call: &Arc<Mutex<RecentCall>>) {
        let mut calls = self.0.calls.lock();
        if calls.len() >= KEPT {
            // One that runs is looked for, and cancelled, by its page.
            let oldest = calls.iter().position(|call| call.lock().end.is_some()).unwrap_or(0);
            calls.remove(oldest);
        }
        calls.push_back(Arc::clone(call));
    }
}

impl RecentPayload {
    /// The beginning of a text that may have secrets.
    fn redacted(text: &str, redactor: &Redactor) -> Arc<Self> {
        let searched = text.get(..text.floor_char_boundary(MAX_SEARCHED)).unwrap_or_default();
        Self::new(&redactor.beginning(searched, MAX_PAYLOAD), text.len())
    }

    /// The beginning of a text of so many bytes.
    fn new(text: &str, size: usize) -> Arc<Self> {
        let beginning = text.get(..text.floor_char_boundary(MAX_PAYLOAD)).unwrap_or_default();
        let is_cut = beginning.len() < text.len() || size > MAX_PAYLOAD;
        Arc::new(Self { text: beginning.into(), size, is_cut })
    }

    /// The text of a result, which has no secrets.
    fn of_output(output: &ToolOutput) -> Arc<Self> {
        if let Some(content) = &output.content {
            return Self::new(content, content.len());
        }
        let texts = || output.blocks.iter().filter_map(|block| block.text.as_deref());
        let mut beginning = String::new();
        for text in texts() {
            if beginning.len() > MAX_PAYLOAD {
                break;
            }
            beginning.extend([text.get(..text.floor_char_boundary(MAX_PAYLOAD)).unwrap_or_default(), "\n"]);
        }
        Self::new(beginning.trim_end(), texts().map(str::len).sum())
    }
}

impl RecentCall {
    /// Whether its tool began.
    #[must_use]
    pub fn ran(&self) -> bool {
        self.steps.iter().any(|step| step.name == "run")
    }

    /// Whether `id` is one of the ids of this call.
    #[must_use]
    pub fn has_id(&self, id: &str) -> bool {
        let id = bounded(id);
        [&self.call_id, &self.message_id, &self.correlation_id, &self.trace_id]
            .into_iter()
            .any(|own| own.as_deref() == Some(id))
    }
}

struct RecentRecorder {
    calls: RecentCalls,
    inner: Arc<dyn Telemetry>,
    clock: Clock,
    /// Removes secrets from payloads; `None`: payloads are not kept.
    payloads: Option<Redactor>,
}

impl RecentRecorder {
    fn span(
        &self,
        inner: Box<dyn CallSpan>,
        arrived: Instant,
        delivery: Option<&Delivery>,
        around: Option<u64>,
    ) -> Box<dyn CallSpan> {
        let properties = delivery.map(|delivery| &delivery.properties);
        let number = self.calls.0.last.fetch_add(1, Ordering::Relaxed) + 1;
        let call = RecentCall {
            number,
            around,
            arrived: self.clock.wall(),
            queue: delivery.map(|delivery| Arc::clone(&delivery.queue)),
            message_id: properties.and_then(|properties| properties.message_id.as_deref()).map(short),
            correlation_id: properties.and_then(|properties| properties.correlation_id.as_deref()).map(short),
            call_id: None,
            idempotency_key: None,
            redelivered: delivery.is_some_and(|delivery| delivery.redelivered),
            earlier_deliveries: delivery.map_or(0, |delivery| delivery.earlier_deliveries),
            trace_id: inner.trace_id().map(short),
            caller: Arc::default(),
            tool: Arc::default(),
            source: None,
            end: None,
            steps: vec![RecentStep { name: "check", from: Duration::ZERO, took: None }],
            refusal: None,
            arguments: None,
            result: None,
        };
        Box::new(RecentSpan {
            calls: self.calls.clone(),
            inner,
            clock: self.clock,
            payloads: self.payloads.clone(),
            arrived,
            number,
            is_kept: false,
            call: Arc::new(Mutex::new(call)),
        })
    }
}

impl Telemetry for RecentRecorder {
    fn arrived(&self, delivery: &Delivery, parent: Option<&TraceContext>) -> Box<dyn CallSpan> {
        self.span(self.inner.arrived(delivery, parent), delivery.arrived, Some(delivery), None)
    }

    fn nested(&self, parent: Option<&TraceContext>, around: Option<u64>) -> Box<dyn CallSpan> {
        self.span(self.inner.nested(parent, around), self.clock.now(), None, around)
    }

    fn consuming(&self, queue: &str) {
        self.inner.consuming(queue);
    }

    fn dead_lettered(&self, queue: &str, reason: DeadReason) {
        self.inner.dead_lettered(queue, reason);
    }

    fn ledger(&self, event: LedgerEvent) {
        self.inner.ledger(event);
    }
}

struct RecentSpan {
    calls: RecentCalls,
    inner: Box<dyn CallSpan>,
    clock: Clock,
    payloads: Option<Redactor>,
    arrived: Instant,
    number: u64,
    /// Whether the call is among those that are kept.
    is_kept: bool,
    call: Arc<Mutex<RecentCall>>,
}

impl RecentSpan {
    fn keep(&mut self) {
        if !std::mem::replace(&mut self.is_kept, true) {
            self.calls.add(&self.call);
        }
    }

    /// Ends the step that lasts, and begins another one.
    fn begin(&self, name: &'static str) {
        let now = self.clock.since(self.arrived);
        let mut call = self.call.lock();
        end_last(&mut call.steps, now);
        if call.steps.len() < MAX_STEPS {
            call.steps.push(RecentStep { name, from: now, took: None });
        }
    }
}

impl CallSpan for RecentSpan {
    fn trace_id(&self) -> Option<&str> {
        self.inner.trace_id()
    }

    fn number(&self) -> Option<u64> {
        Some(self.number)
    }

    fn requested(&mut self, arguments: Option<&str>) {
        if let (Some(redactor), Some(arguments)) = (&self.payloads, arguments) {
            let kept = RecentPayload::redacted(arguments, redactor);
            self.call.lock().arguments = Some(kept);
        }
    }

    fn shaped(&mut self, result: Result<&ToolOutput, &ToolFailure>) {
        if let Err(ToolFailure { message, .. }) = result {
            let mut call = self.call.lock();
            if !call.ran() {
                call.refusal = message.get(..message.floor_char_boundary(MAX_REFUSAL)).map(Into::into);
            }
        }
        if self.payloads.is_some() {
            let kept = match result {
                Ok(output) => RecentPayload::of_output(output),
                Err(failure) => RecentPayload::new(&failure.message, failure.message.len()),
            };
            self.call.lock().result = Some(kept);
        }
    }

    fn executing(&mut self, tool: &ToolDescriptor, call_id: &str, caller: &Caller) -> Option<TraceContext> {
        {
            let mut call = self.call.lock();
            call.call_id = Some(short(call_id));
            call.caller = short_name(&caller.name);
            call.tool = Arc::clone(&tool.name);
            call.source = Some(Arc::clone(&tool.source));
        }
        self.begin("run");
        self.keep();
        self.inner.executing(tool, call_id, caller)
    }

    fn executed(&mut self, end: &CallEnd, duration: Duration) {
        // Reported when the reply is written.
        let mut call = self.call.lock();
        if let Some(run) = call.steps.last_mut().filter(|step| step.name == "run") {
            run.took = Some(duration);
            let from = run.from + duration;
            call.steps.push(RecentStep { name: "reply", from, took: None });
        }
        drop(call);
        self.inner.executed(end, duration);
    }

    fn publishing(&mut self, message_id: &str) -> Option<TraceContext> {
        self.begin("confirm");
        self.inner.publishing(message_id)
    }

    fn published(&mut self, delivered: bool, duration: Duration) {
        self.begin("settle");
        self.inner.published(delivered, duration);
    }

    fn finished(mut self: Box<Self>, summary: &CallSummary<'_>) {
        // A message that is no call of an agent's, or of another daemon's agent.
        if let Some(caller) = summary.caller {
            self.end(caller, summary);
            self.keep();
        }
        self.inner.finished(summary);
    }
}

impl RecentSpan {
    fn end(&self, caller: &Caller, summary: &CallSummary<'_>) {
        let mut call = self.call.lock();
        end_last(&mut call.steps, summary.total);
        split_wait(&mut call.steps, summary.waited);
        call.caller = short_name(&caller.name);
        call.tool = summary.tool.map_or_else(|| short(summary.requested).into(), |tool| Arc::clone(&tool.name));
        call.source = summary.tool.map(|tool| Arc::clone(&tool.source));
        call.call_id = Some(short(summary.call_id));
        call.idempotency_key = summary.idempotency_key.map(short);
        let without_reply = if summary.attached { "attached" } else { "requeued" };
        let status = summary.end.map_or(without_reply, |end| end.status.as_str());
        let cause = summary.end.and_then(|end| end.cause).map(error_type);
        let CallSummary { replayed, attached, total, .. } = *summary;
        call.end = Some(RecentEnd { status, cause, replayed, attached, total });
    }
}

fn end_last(steps: &mut [RecentStep], now: Duration) {
    if let Some(last) = steps.last_mut().filter(|last| last.took.is_none()) {
        last.took = Some(now.saturating_sub(last.from));
    }
}

/// Splits the wait for a permit, with which the checks end, from the checks: of a call that ran, and of one that waited
/// in vain.
fn split_wait(steps: &mut Vec<RecentStep>, waited: Duration) {
    let ran = steps.iter().any(|step| step.name == "run");
    if let Some(RecentStep { name: "check", took: Some(took), .. }) = steps.first_mut()
        && (ran || !waited.is_zero())
    {
        *took = took.saturating_sub(waited);
        let wait = RecentStep { name: "wait", from: *took, took: Some(waited) };
        steps.insert(1, wait);
    }
}

fn short(text: &str) -> Box<str> {
    bounded(text).into()
}

fn short_name(name: &Arc<str>) -> Arc<str> {
    if name.len() <= MAX_SHORT_STRING { Arc::clone(name) } else { bounded(name).into() }
}

#[cfg(test)]
mod tests {
    use toolbus_core::events::Discard;
    use toolbus_core::failure::{Cause, Status};
    use toolbus_core::secret::Secret;
    use toolbus_protocol::{Code, ContentBlock};

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn recorded() -> (RecentCalls, Arc<dyn Telemetry>, Clock) {
        let (calls, clock) = (RecentCalls::default(), Clock::manual());
        (calls.clone(), calls.recording(Arc::new(Discard), clock, None), clock)
    }

    /// The record of a call with these arguments and this result.
    fn kept(payloads: Option<Redactor>, arguments: &str, output: &ToolOutput) -> RecentCall {
        let calls = RecentCalls::default();
        let telemetry = calls.recording(Arc::new(Discard), Clock::manual(), payloads);
        let mut span = telemetry.nested(None, None);
        span.requested(Some(arguments));
        span.shaped(Ok(output));
        span.finished(&ended(&Caller::unknown(), CallEnd { status: Status::Ok, cause: None }, MS));
        calls.newest(1, |_| true).remove(0)
    }

    fn redactor(secret: &str) -> Redactor {
        let redactor = Redactor::default();
        redactor.configure([Secret::new(secret)]);
        redactor
    }

    fn ended<'a>(caller: &'a Caller, end: CallEnd, total: Duration) -> CallSummary<'a> {
        let unanswered = CallSummary::unanswered(total);
        CallSummary { caller: Some(caller), requested: "absent", call_id: "c-2", end: Some(end), ..unanswered }
    }

    #[test]
    fn an_attached_duplicate_is_distinguished_from_a_requeued_request() {
        let (calls, telemetry, _) = recorded();
        let caller = Caller::unknown();
        for attached in [true, false] {
            let unanswered = CallSummary::unanswered(MS);
            let summary =
                CallSummary { caller: Some(&caller), attached, idempotency_key: Some("order-7"), ..unanswered };
            telemetry.nested(None, None).finished(&summary);
        }
        let kept = calls.newest(9, |call| call.idempotency_key.as_deref() == Some("order-7"));
        let statuses: Vec<_> = kept.iter().map(|call| call.end.unwrap().status).collect();
        assert_eq!(statuses, ["requeued", "attached"]);
    }

    #[test]
    fn the_time_of_a_call_is_split_into_steps() {
        let (calls, telemetry, clock) = recorded();
        let (caller, tool) = (Caller::unknown(), ToolDescriptor::new("echo", "Repeats", "local"));
        let mut span = telemetry.nested(None, None);
        clock.advance(5 * MS);
        span.executing(&tool, "c-1", &caller);
        assert_eq!(calls.newest(9, |_| true)[0].end, None, "it is there while it runs");
        clock.advance(7 * MS);
        let ok = CallEnd { status: Status::Ok, cause: None };
        span.executed(&ok, 7 * MS);
        span.publishing("m-1");
        clock.advance(2 * MS);
        span.published(true, 2 * MS);
        let summary = CallSummary { tool: Some(&tool), call_id: "c-1", waited: 4 * MS, ..ended(&caller, ok, 14 * MS) };
        span.finished(&summary);
        let call = calls.newest(9, |call| call.has_id("c-1")).remove(0);
        let steps: Vec<_> = call.steps.iter().map(|step| (step.name, step.from, step.took.unwrap())).collect();
        assert_eq!(
            steps,
            [
                ("check", Duration::ZERO, MS),
                ("wait", MS, 4 * MS),
                ("run", 5 * MS, 7 * MS),
                ("reply", 12 * MS, Duration::ZERO),
                ("confirm", 12 * MS, 2 * MS),
                ("settle", 14 * MS, Duration::ZERO),
            ]
        );
        assert_eq!((&*call.tool, call.end.unwrap().status, call.end.unwrap().total), ("echo", "ok", 14 * MS));
    }

    #[test]
    fn a_refused_call_is_kept_with_the_requested_name_and_a_foreign_message_is_not() {
        let (calls, telemetry, _) = recorded();
        let refused = CallEnd { status: Status::Refused(Code::ToolNotFound), cause: Some(Cause::UnknownTool) };
        let caller = Caller::unknown();
        let summary = CallSummary { waited: 4 * MS, ..ended(&caller, refused, 5 * MS) };
        telemetry.nested(None, None).finished(&summary);
        telemetry.nested(None, None).finished(&CallSummary::unanswered(MS));
        let kept = calls.newest(9, |_| true);
        assert_eq!(kept.len(), 1);
        assert_eq!((&*kept[0].tool, kept[0].end.unwrap().status), ("absent", "tool_not_found"));
        let steps: Vec<_> = kept[0].steps.iter().map(|step| (step.name, step.took.unwrap())).collect();
        assert_eq!(steps, [("check", MS), ("wait", 4 * MS)]);
    }

    #[test]
    fn the_message_of_a_refusal_is_kept_and_that_of_a_tool_that_ran_is_not() {
        let (calls, telemetry, _) = recorded();
        let (caller, tool) = (Caller::unknown(), ToolDescriptor::new("echo", "local", "local"));
        let failure = ToolFailure::new(Cause::RateLimited, "ü".repeat(MAX_REFUSAL));
        for runs in [false, true] {
            let mut span = telemetry.nested(None, None);
            if runs {
                span.executing(&tool, "c-1", &caller);
            }
            span.shaped(Err(&failure));
            span.finished(&ended(&caller, CallEnd { status: Status::Error, cause: Some(failure.cause) }, MS));
        }
        let kept = calls.newest(2, |_| true);
        assert_eq!(kept[0].refusal, None);
        assert_eq!(kept[1].refusal.as_deref(), Some(&*"ü".repeat(MAX_REFUSAL / 2)));
    }

    #[test]
    fn payloads_are_kept_only_where_configured() {
        let output = ToolOutput::text("it is sunny");
        let call = kept(None, "{}", &output);
        assert_eq!((call.arguments, call.result), (None, None));
        let call = kept(Some(Redactor::default()), "{}", &output);
        let text = |payload: Option<Arc<RecentPayload>>| payload.unwrap().text.to_string();
        assert_eq!((text(call.arguments), text(call.result)), ("{}".to_owned(), "it is sunny".to_owned()));
    }

    #[test]
    fn no_part_of_a_secret_is_kept_wherever_the_arguments_are_cut() {
        let secret: String = ('a'..='z').chain('0'..='9').cycle().take(600).collect();
        let redactor = redactor(&secret);
        let escaped: String = secret.bytes().map(|byte| format!("\\u{byte:04x}")).collect();
        let escaped_twice = escaped.replace('\\', "\\\\");
        for written in [secret.clone(), escaped, escaped_twice] {
            for before in [0, MAX_PAYLOAD - 601, MAX_PAYLOAD - 300, MAX_PAYLOAD - 1, MAX_PAYLOAD] {
                let arguments = format!("{}{written}{}", "#".repeat(before), "#".repeat(100_000));
                let kept = RecentPayload::redacted(&arguments, &redactor);
                let rest = kept.text.trim_matches('#');
                assert!("[redacted]".starts_with(rest), "{before}: {rest}");
                assert!(kept.text.len() <= MAX_PAYLOAD && kept.is_cut);
            }
        }
    }

    #[test]
    fn a_payload_is_cut_at_a_character_whatever_it_is_made_of() {
        let long = "ü".repeat(MAX_SEARCHED);
        let cut = RecentPayload::redacted(&long, &redactor("12345678x"));
        assert_eq!((cut.text.len(), cut.size, cut.is_cut), (MAX_PAYLOAD, 2 * MAX_SEARCHED, true));
        let growing = "12345678x".repeat(MAX_PAYLOAD / 9);
        let cut = RecentPayload::redacted(&growing, &redactor("12345678x"));
        assert_eq!((cut.text.len(), cut.is_cut), (MAX_PAYLOAD, true));
        let block = |text: &str| ContentBlock { text: Some(text.to_owned()), ..ContentBlock::text("") };
        let blocks = ToolOutput { blocks: vec![block("one"), block("two")], ..ToolOutput::default() };
        assert_eq!(&*RecentPayload::of_output(&blocks).text, "one\ntwo");
        let many = ToolOutput { blocks: vec![block(&long); 3], ..ToolOutput::default() };
        let cut = RecentPayload::of_output(&many);
        assert_eq!((cut.text.len(), cut.size, cut.is_cut), (MAX_PAYLOAD, 6 * MAX_SEARCHED, true));
    }

    #[test]
    fn the_oldest_calls_make_room_for_new_ones() {
        let (calls, telemetry, _) = recorded();
        let (caller, ok) = (Caller::unknown(), CallEnd { status: Status::Ok, cause: None });
        for total in 0..=KEPT {
            telemetry.nested(None, None).finished(&ended(&caller, ok, Duration::from_secs(total as u64)));
        }
        let kept = calls.newest(usize::MAX, |_| true);
        let total = |call: &RecentCall| call.end.unwrap().total.as_secs();
        assert_eq!((kept.len(), total(&kept[0]), total(&kept[KEPT - 1])), (KEPT, KEPT as u64, 1));
    }
}
