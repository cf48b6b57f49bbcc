//! Runs pipelines: their steps one after another, and several pipelines side by side.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::Semaphore;
use toolbus_core::failure::{Cause, Effect, ToolFailure};
use toolbus_core::progress::Progress;
use toolbus_core::text::shortened;
use toolbus_core::tool::{ToolCall, ToolOutput};
use toolbus_core::turns::SMALL;
use toolbus_core::{InnerCall, InnerOrigin};
use toolbus_protocol::{Code, Outcome, with_large_integers_as_strings};

use super::condition::StepCondition;
use super::definition::{PipelinePlan, StepPlan};
use super::template::{RenderError, StepValues, ValueRef, ValueTemplate};
use super::{Pipelines, RunningPipeline, Taken};

/// Largest arguments of a step, in bytes.
const MAX_ARGUMENTS: usize = 1024 * 1024;
/// Largest result that takes no room for large results, in bytes.
const MAX_RESULT: usize = 1024 * 1024;
/// Longest text of a failure in the result, in characters.
const MAX_ERROR: usize = 500;
/// First and longest wait before another attempt where the failure has no `retry_after`.
const PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(5)];
/// Memory of one value within a larger one, in bytes.
const NODE: usize = size_of::<Value>();

/// One call of the tool.
pub(super) struct PipelineRun<'a> {
    pipelines: &'a Pipelines,
    call: &'a ToolCall,
    running: &'a RunningPipeline,
    /// Taken while a tool runs.
    slots: Semaphore,
    steps: usize,
    ended: AtomicUsize,
}

/// End of a step.
enum StepEnd {
    Ok {
        value: Value,
        attempts: u32,
        failed_items: usize,
    },
    Failed(StepFailure),
    /// Step that did not run, in a pipeline that goes on.
    Skipped(String),
    /// Step that did not run; what comes after it does not run either.
    NotRun(String),
}

/// Reason why a step has no value.
#[derive(Clone)]
struct StepFailure {
    /// The code of a refused call; `None` where the tool returned an error.
    code: Option<Code>,
    text: String,
    /// Known facts about side effects.
    effects: Option<Outcome>,
    attempts: u32,
}

#[derive(Serialize)]
struct PipelineReport {
    description: String,
    outcome: &'static str,
    steps: Vec<StepReport>,
    /// The values that have a name of their own.
    #[serde(skip_serializing_if = "Map::is_empty")]
    outputs: Map<String, Value>,
    /// The last value, where that has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<Value>,
    /// Reason why the values are not in the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    omitted: Option<String>,
    /// The other values, which are dropped in a turn, like these.
    #[serde(skip)]
    _others: Vec<Arc<Value>>,
}

#[derive(Clone, Serialize)]
struct StepReport {
    id: String,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<Code>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    effects: Option<Outcome>,
    /// Where there was more than one.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failed_items: Option<usize>,
}

impl<'a> PipelineRun<'a> {
    pub(super) fn new(
        pipelines: &'a Pipelines,
        call: &'a ToolCall,
        running: &'a RunningPipeline,
        plans: &[PipelinePlan],
    ) -> Self {
        Self {
            pipelines,
            call,
            running,
            slots: Semaphore::new(pipelines.config.max_parallel),
            steps: plans.iter().map(|plan| plan.steps.len()).sum(),
            ended: AtomicUsize::new(0),
        }
    }

    /// Runs all of them to their ends.
    pub(super) async fn run(&self, plans: &[PipelinePlan]) -> ToolOutput {
        let running = plans.iter().enumerate().map(|(number, plan)| self.pipeline(number, plan));
        let reports = join_all(running).await;
        let is_error = reports.iter().all(|report| report.outcome != "ok");
        // The outcomes are what must arrive: what was done is not to be done again.
        let bare: Vec<_> = reports.iter().map(PipelineReport::without_values).collect();
        let room = self.call.room.clone();
        let complete = move || {
            let text = written(&reports);
            let has_room =
                text.len() <= MAX_RESULT || room.is_some_and(|room| room.take(super::NAME, text.len()).is_ok());
            if has_room {
                return Ok(text);
            }
            Err(format!("The answer has {} bytes with its values. Ask for less, or keep them by a step.", text.len()))
        };
        let text = match self.call.in_turn(self.running.bytes(), complete).await {
            Ok(text) => text,
            Err(late) => Err(late.message),
        };
        let text = text.unwrap_or_else(|reason| {
            let with_reason = |report: PipelineReport| PipelineReport { omitted: Some(reason.clone()), ..report };
            written(&bare.into_iter().map(with_reason).collect::<Vec<_>>())
        });
        ToolOutput { is_error, ..ToolOutput::text(text) }
    }

    async fn pipeline(&self, number: usize, plan: &PipelinePlan) -> PipelineReport {
        let now = self.pipelines.clock.now();
        let deadline = plan.timeout.map_or(self.call.deadline, |timeout| self.call.deadline.min(now + timeout));
        let mut values: Vec<Option<Arc<Value>>> = Vec::with_capacity(plan.steps.len());
        let mut reports = Vec::with_capacity(plan.steps.len());
        let mut stopped = None;
        for (index, step) in plan.steps.iter().enumerate() {
            let end = match &stopped {
                Some(reason) => StepEnd::NotRun(String::clone(reason)),
                None => self.step(step, (number, index), &values, deadline).await,
            };
            match &end {
                StepEnd::Failed(_) if !step.continues => stopped = Some(format!("Step `{}` failed.", step.id)),
                StepEnd::NotRun(reason) => stopped = Some(reason.clone()),
                _ => {}
            }
            let (value, report) = reported(&step.id, end);
            self.report_progress(number, step, report.outcome);
            values.push(value.map(Arc::new));
            reports.push(report);
        }
        let last = values.iter().rposition(Option::is_some);
        let is_named = |step: usize| plan.steps.get(step).is_some_and(|step| step.output_to.is_some());
        let unnamed = last.filter(|step| !is_named(*step)).and_then(|step| values.get_mut(step));
        let output = unnamed.and_then(Option::take).map(Arc::unwrap_or_clone);
        let mut outputs = Map::new();
        for (step, value) in plan.steps.iter().zip(&mut values) {
            if let Some(name) = &step.output_to
                && let Some(value) = value.take()
            {
                outputs.insert(name.clone(), Arc::unwrap_or_clone(value));
            }
        }
        let others: Vec<Arc<Value>> = values.into_iter().flatten().collect();
        PipelineReport {
            description: plan.description.clone(),
            outcome: if stopped.is_some() { "failed" } else { "ok" },
            steps: reports,
            outputs,
            output,
            omitted: None,
            _others: others,
        }
    }

    fn report_progress(&self, number: usize, step: &StepPlan, outcome: &str) {
        let ended = self.ended.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(progress) = &self.call.progress {
            #[expect(clippy::cast_precision_loss, reason = "there are not that many steps")]
            let (ended, total) = (ended as f64, self.steps as f64);
            let message = format!("Pipeline {}, step `{}`: {outcome}", number + 1, step.id);
            progress.report(Progress { progress: ended, total: Some(total), message: Some(message) });
        }
    }

    async fn step(
        &self,
        step: &StepPlan,
        position: (usize, usize),
        steps: &[Option<Arc<Value>>],
        deadline: Instant,
    ) -> StepEnd {
        if self.pipelines.clock.now() >= deadline {
            return StepEnd::NotRun("The time of the pipeline was over.".to_owned());
        }
        let values = StepValues { steps, item: None };
        match self.unmet(step, values).await {
            Ok(None) => {}
            Ok(Some(reason)) => return StepEnd::Skipped(reason),
            Err(late) => return StepEnd::NotRun(late.message),
        }
        let key = self.call.idempotency_key.as_ref().map(|key| format!("{key}.{}.{}", position.0, position.1));
        let Some(items) = &step.for_each else {
            return match self.rendered(step, steps, None).await {
                Ok(arguments) => self.called(step, key, arguments, deadline).await,
                Err(end) => end,
            };
        };
        let count = match values.find(items) {
            Ok(Value::Array(items)) => items.len(),
            Ok(_) => return failed(format!("`{}` is no list.", items.text)),
            Err(error) => return refused(error),
        };
        let most = self.pipelines.config.max_items;
        if count > most {
            return failed(format!("The list of `for_each` has {count} elements, and the limit is {most}."));
        }
        self.each(step, key.as_deref(), (steps, count), deadline).await
    }

    /// The reason for which a step is skipped, if there is one.
    async fn unmet(&self, step: &StepPlan, values: StepValues<'_>) -> Result<Option<String>, ToolFailure> {
        fn unmet(when: &[StepCondition], values: StepValues<'_>) -> Option<String> {
            when.iter().find_map(|condition| condition.check(values).err())
        }
        if step.when.iter().all(|condition| condition.is_small(values)) {
            return Ok(unmet(&step.when, values));
        }
        let (when, steps) = (Arc::clone(&step.when), values.steps.to_vec());
        self.call.in_turn(usize::MAX, move || unmet(&when, StepValues { steps: &steps, item: None })).await
    }

    /// The arguments of a step; with `item`, for the element of this number.
    async fn rendered(
        &self,
        step: &StepPlan,
        steps: &[Option<Arc<Value>>],
        item: Option<usize>,
    ) -> Result<String, StepEnd> {
        fn rendered(
            (params, for_each): (&ValueTemplate, Option<&ValueRef>),
            (steps, item): (&[Option<Arc<Value>>], Option<usize>),
            max: usize,
        ) -> Result<String, RenderError> {
            let values = StepValues { steps, item: None };
            let list = for_each.map(|items| values.find(items)).transpose()?;
            let item = list.zip(item).and_then(|(list, number)| list.get(number));
            params.render(StepValues { item, ..values }, max)
        }
        let few = rendered((&step.params, step.for_each.as_ref()), (steps, item), SMALL);
        let all = match few {
            Err(RenderError::TooLarge(_)) => {
                let (params, for_each, steps) = (Arc::clone(&step.params), step.for_each.clone(), steps.to_vec());
                let render = move || rendered((&params, for_each.as_ref()), (&steps, item), MAX_ARGUMENTS);
                self.call.in_turn(usize::MAX, render).await.map_err(|late| StepEnd::NotRun(late.message))?
            }
            few => few,
        };
        all.map_err(refused)
    }

    /// Calls the tool of a step for each element. After a failure that stops the pipeline, no further call begins.
    async fn each(
        &self,
        step: &StepPlan,
        key: Option<&str>,
        (steps, count): (&[Option<Arc<Value>>], usize),
        deadline: Instant,
    ) -> StepEnd {
        let stopped = &AtomicBool::new(false);
        let calls = (0..count).map(|number| async move {
            if stopped.load(Ordering::Relaxed) {
                return StepEnd::NotRun(String::new());
            }
            let end = match self.rendered(step, steps, Some(number)).await {
                Ok(arguments) => self.called(step, key.map(|key| format!("{key}.{number}")), arguments, deadline).await,
                Err(end) => end,
            };
            if !matches!(end, StepEnd::Ok { .. }) && !step.continues {
                stopped.store(true, Ordering::Relaxed);
            }
            end
        });
        let mut ends = stream::iter(calls).buffered(self.pipelines.config.max_parallel);
        let (mut all, mut most_attempts, mut first, mut failures) = (Vec::with_capacity(count), 1, None, 0);
        let (mut has_effects, mut is_unknown) = (false, false);
        while let Some(end) = ends.next().await {
            match &end {
                StepEnd::Ok { .. } => has_effects = true,
                StepEnd::Failed(failure) => {
                    has_effects |= failure.effects != Some(Outcome::NotStarted);
                    is_unknown |= failure.effects == Some(Outcome::Unknown);
                }
                StepEnd::Skipped(_) | StepEnd::NotRun(_) => {}
            }
            match end {
                StepEnd::Ok { value, attempts, .. } => {
                    most_attempts = most_attempts.max(attempts);
                    all.push(value);
                }
                other => {
                    failures += 1;
                    all.push(Value::Null);
                    first = first.or(Some(other));
                }
            }
        }
        match first {
            Some(StepEnd::Failed(failure)) if !step.continues || failures == count => {
                let text = format!("{failures} of {count} calls failed or did not begin. {}", failure.text);
                // The outcome of the first failed call does not hold for the whole list.
                let effects = match failure.effects {
                    _ if is_unknown => Some(Outcome::Unknown),
                    Some(Outcome::NotStarted) if has_effects => {
                        (!self.effect_of(step).is_repeatable()).then_some(Outcome::Unknown)
                    }
                    known => known,
                };
                StepEnd::Failed(StepFailure { text, effects, ..failure })
            }
            Some(other) if !step.continues || failures == count => other,
            _ => StepEnd::Ok { value: Value::Array(all), attempts: most_attempts, failed_items: failures },
        }
    }

    /// Calls the tool of a step, more than once where the step allows it and it is safe.
    async fn called(&self, step: &StepPlan, key: Option<String>, arguments: String, deadline: Instant) -> StepEnd {
        let key: Option<Arc<str>> = key.map(Into::into);
        let [mut pause, longest] = PAUSES;
        let mut attempts = 1;
        loop {
            let effect = self.effect_of(step);
            let (mut failure, is_safe, wait) = match self.invoke(step, key.clone(), arguments.clone(), deadline).await {
                Ok(output) if !output.is_error => return self.keep(output, attempts).await,
                Ok(output) => {
                    let text = shortened(&text_of(output), MAX_ERROR).into_owned();
                    (StepFailure { code: None, text, effects: None, attempts }, effect.is_repeatable(), None)
                }
                Err(failure) => {
                    let verdict = failure.verdict(effect, true);
                    let has_not_begun = verdict.outcome == Some(Outcome::NotStarted);
                    let is_safe = verdict.is_retryable && (has_not_begun || effect.is_repeatable());
                    let text = shortened(&failure.message, MAX_ERROR).into_owned();
                    let (code, effects) = (Some(verdict.code), verdict.outcome);
                    (StepFailure { code, text, effects, attempts }, is_safe, failure.retry_after)
                }
            };
            failure.attempts = attempts;
            let wait = wait.unwrap_or(pause);
            let again = self.pipelines.clock.now() + wait;
            if !is_safe || attempts > step.retries || again >= deadline {
                return StepEnd::Failed(failure);
            }
            tokio::time::sleep_until(again.into()).await;
            pause = (pause * 2).min(longest);
            attempts += 1;
        }
    }

    /// Returns the effect that repeating the tool of a step would have.
    fn effect_of(&self, step: &StepPlan) -> Effect {
        let effective = self.pipelines.policy.effective(&self.call.caller);
        let allowed = match &step.server {
            Some(server) => effective.of_server(server, &step.tool),
            None => effective.get(&step.tool),
        };
        allowed.map_or(Effect::Undeclared, |allowed| allowed.tool.descriptor.effect)
    }

    async fn invoke(
        &self,
        step: &StepPlan,
        idempotency_key: Option<Arc<str>>,
        arguments: String,
        deadline: Instant,
    ) -> Result<ToolOutput, ToolFailure> {
        let slot = tokio::time::timeout_at(deadline.into(), self.slots.acquire()).await;
        let Ok(Ok(_slot)) = slot else {
            let text = "The time of the pipeline was over before the tool could begin. It was not run.";
            return Err(ToolFailure::new(Cause::Expired, text));
        };
        let call = InnerCall {
            origin: InnerOrigin::Tool,
            caller: Arc::clone(&self.call.caller),
            call_id: Arc::clone(&self.call.call_id),
            server: step.server.clone(),
            tool: step.tool.clone(),
            arguments: Some(arguments),
            deadline: Some(deadline),
            cancelled: self.call.cancelled.clone(),
            trace: self.call.trace.clone(),
            around: self.call.number,
            progress: None,
            idempotency_key,
        };
        self.pipelines.invoker.invoke(call).await
    }

    /// The value of a step, if there is room for it.
    async fn keep(&self, output: ToolOutput, attempts: u32) -> StepEnd {
        let failed = |text| StepEnd::Failed(StepFailure { code: None, text, effects: None, attempts });
        let room = self.running.room();
        let size = if output.is_large() { usize::MAX } else { 0 };
        let read = move || {
            let value = value_of(output);
            room.take(weight(&value)).map(|()| value)
        };
        match self.call.in_turn(size, read).await {
            Ok(Ok(value)) => StepEnd::Ok { value, attempts, failed_items: 0 },
            Ok(Err(Taken::ByThis)) => {
                let most = self.pipelines.config.max_values;
                failed(format!("The tool ran; its value has no room: all values of a call take at most {most}."))
            }
            Ok(Err(Taken::ByAll)) => failed(
                "The tool ran; its value has no room now: other pipelines keep too much. Run fewer at a time."
                    .to_owned(),
            ),
            Err(late) => failed(late.message),
        }
    }
}

impl PipelineReport {
    fn without_values(&self) -> Self {
        Self {
            description: self.description.clone(),
            outcome: self.outcome,
            steps: self.steps.clone(),
            outputs: Map::new(),
            output: None,
            omitted: None,
            _others: Vec::new(),
        }
    }
}

/// All reports as JSON.
fn written(reports: &[PipelineReport]) -> String {
    // Strings, numbers and values are always JSON.
    format!(r#"{{"pipelines":{}}}"#, serde_json::to_string(reports).unwrap_or_default())
}

/// The value of a step, and its report.
fn reported(id: &str, end: StepEnd) -> (Option<Value>, StepReport) {
    let id = id.to_owned();
    let report =
        StepReport { id, outcome: "ok", code: None, text: None, effects: None, attempts: None, failed_items: None };
    let several = |attempts: u32| Some(attempts).filter(|attempts| *attempts > 1);
    match end {
        StepEnd::Ok { value, attempts, failed_items } => {
            let failed_items = Some(failed_items).filter(|failed| *failed > 0);
            (Some(value), StepReport { attempts: several(attempts), failed_items, ..report })
        }
        StepEnd::Failed(StepFailure { code, text, effects, attempts }) => {
            let (text, attempts) = (Some(text), several(attempts));
            (None, StepReport { outcome: "failed", code, text, effects, attempts, ..report })
        }
        StepEnd::Skipped(reason) => (None, StepReport { outcome: "skipped", text: Some(reason), ..report }),
        StepEnd::NotRun(reason) => (None, StepReport { outcome: "not_run", text: Some(reason), ..report }),
    }
}

/// The end of a step whose arguments cannot be made.
fn refused(error: RenderError) -> StepEnd {
    match error {
        RenderError::NoValue(reference) => StepEnd::Skipped(format!("`{reference}` has no value.")),
        RenderError::NotFound(reference) => failed(format!("`{reference}` finds nothing in the value.")),
        RenderError::TooLarge(most) => failed(format!("The arguments are larger than {most} bytes.")),
    }
}

fn failed(text: String) -> StepEnd {
    let (code, effects) = (Some(Code::InvalidArguments), Some(Outcome::NotStarted));
    StepEnd::Failed(StepFailure { code, text, effects, attempts: 1 })
}

/// The value of a result: its structured part, or its text, as JSON where that is an object or a list. Integers that 64
/// bits cannot hold are strings of their digits, as far as the text has them.
fn value_of(mut output: ToolOutput) -> Value {
    let structured = output.structured.take();
    let text = text_of(output);
    let is_json = text.trim_start().starts_with(['{', '[']);
    let exact = Some(&*text).filter(|_| is_json).map(with_large_integers_as_strings);
    let parsed = |json: &str| serde_json::from_str::<Value>(json).ok();
    let value = match (structured, exact) {
        (Some(structured), Some(Cow::Owned(exact))) if parsed(&text).as_ref() == Some(&*structured) => parsed(&exact),
        (Some(structured), _) => Some(*structured),
        (None, exact) => exact.and_then(|exact| parsed(&exact)),
    };
    value.unwrap_or(Value::String(text))
}

fn text_of(output: ToolOutput) -> String {
    output
        .content
        .unwrap_or_else(|| output.blocks.into_iter().filter_map(|block| block.text).collect::<Vec<_>>().join("\n"))
}

/// The memory that a value takes, in bytes.
fn weight(value: &Value) -> usize {
    NODE + match value {
        Value::String(text) => text.len(),
        Value::Array(elements) => elements.iter().map(weight).sum(),
        Value::Object(fields) => fields.iter().map(|(name, value)| NODE + name.len() + weight(value)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}
