//! Pipelines that a caller wants to be run, read and checked before anything runs.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use toolbus_core::failure::ToolFailure;
use toolbus_core::text::{excerpt, shown};
use toolbus_protocol::EXECUTE_PYTHON_SCRIPT;

use super::NAME;
use super::condition::StepCondition;
use super::config::PipelinesConfig;
use super::template::{ValueOrigin, ValueRef, ValueTemplate};

/// Problems that a result names.
const MAX_PROBLEMS: usize = 20;
/// Longest id of a step, in characters.
const MAX_ID: usize = 64;
/// Longest text of a reader's mistake, in characters.
const MAX_TEXT: usize = 200;
/// The name of what a step has from `input_from`.
const INPUT: &str = "input";
/// The name of the element that a step with `for_each` is called for.
const ITEM: &str = "item";
/// Most attempts after the first.
const MAX_RETRIES: u32 = 5;
/// The tool of the gateway `A2A` where a step names none.
const AGENT_TOOL: &str = "invoke_agent";

/// A pipeline that can be run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PipelinePlan {
    pub(super) description: String,
    /// Time that the pipeline may take; `None`: as long as the call.
    pub(super) timeout: Option<Duration>,
    pub(super) steps: Vec<StepPlan>,
}

/// A step of it. Its references are to steps before it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct StepPlan {
    pub(super) id: String,
    /// The MCP server that has the tool; `None`: any tool of the name.
    pub(super) server: Option<String>,
    pub(super) tool: String,
    pub(super) params: Arc<ValueTemplate>,
    /// Another name of its value, under which the result has it.
    pub(super) output_to: Option<String>,
    /// The elements that the tool is called for, one by one; `None`: it is called once.
    pub(super) for_each: Option<ValueRef>,
    /// Under which conditions it runs: all of them.
    pub(super) when: Arc<[StepCondition]>,
    /// Attempts after the first.
    pub(super) retries: u32,
    /// Whether the pipeline goes on if it fails.
    pub(super) continues: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DefinitionArguments {
    description: String,
    #[serde(default)]
    tools: Vec<String>,
    timeout_seconds: Option<u32>,
    steps: Vec<Value>,
}

/// A step as a caller writes it, with the fields that the peers have.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StepArguments {
    id: String,
    mode: Option<String>,
    gateway: Option<String>,
    server: Option<String>,
    tool: Option<String>,
    params: Option<Map<String, Value>>,
    prompt: Option<String>,
    agent: Option<String>,
    skill: Option<String>,
    message: Option<String>,
    input_from: Option<String>,
    output_to: Option<String>,
    for_each: Option<String>,
    #[serde(default)]
    when: Vec<Value>,
    on_failure: Option<String>,
}

/// Reads the pipelines of a call.
///
/// # Errors
///
/// [`Cause::InvalidArguments`], with what is wrong and where, if anything is.
pub(super) fn read(arguments: &Map<String, Value>, config: &PipelinesConfig) -> Result<Vec<PipelinePlan>, ToolFailure> {
    let Some(Value::Array(definitions)) = arguments.get("definitions") else {
        return Err(ToolFailure::invalid("Argument `definitions` is missing: a list of pipelines."));
    };
    if definitions.is_empty() || definitions.len() > config.max_pipelines {
        let (is, most) = (definitions.len(), config.max_pipelines);
        return Err(ToolFailure::invalid(format!("There are {is} pipelines in `definitions`; give 1 to {most}.")));
    }
    let (mut plans, mut problems) = (Vec::new(), Vec::new());
    for (number, definition) in definitions.iter().enumerate() {
        let location = format!("definitions/{number}");
        match read_definition(definition, config, &location, &mut problems) {
            Ok(plan) => plans.push(plan),
            Err(problem) => problems.push(format!("{location}: {problem}")),
        }
    }
    if problems.is_empty() {
        return Ok(plans);
    }
    let more = problems.len().saturating_sub(MAX_PROBLEMS);
    problems.truncate(MAX_PROBLEMS);
    if more > 0 {
        problems.push(format!("and {more} more"));
    }
    Err(ToolFailure::invalid(format!("Nothing was run. {}.", problems.join("; "))))
}

/// Reads a pipeline. What is wrong with steps is added to `problems`; the error is what is wrong with all of it.
fn read_definition(
    definition: &Value,
    config: &PipelinesConfig,
    location: &str,
    problems: &mut Vec<String>,
) -> Result<PipelinePlan, String> {
    // Counted before they are read: there may be many.
    let count = definition.get("steps").and_then(Value::as_array).map_or(0, Vec::len);
    if count == 0 || count > config.max_steps {
        return Err(format!("it has {count} `steps`; give 1 to {}", config.max_steps));
    }
    let DefinitionArguments { description, tools, timeout_seconds, steps } = parsed(definition)?;
    if timeout_seconds == Some(0) {
        return Err("`timeout_seconds` is at least 1".to_owned());
    }
    let mut names = StepNames { all: steps.iter().flat_map(names_of).collect(), earlier: HashMap::new() };
    let mut plans = Vec::with_capacity(count);
    for (number, step) in steps.iter().enumerate() {
        match read_step(step, &tools, &names) {
            Ok(plan) => plans.push(plan),
            Err(problem) => {
                let id = step.get("id").and_then(Value::as_str).map(|id| format!(" (`{}`)", shown(id)));
                problems.push(format!("{location}/steps/{number}{}: {problem}", id.unwrap_or_default()));
            }
        }
        for name in names_of(step) {
            names.earlier.entry(name).or_insert(number);
        }
    }
    let timeout = timeout_seconds.map(|seconds| Duration::from_secs(seconds.into()));
    Ok(PipelinePlan { description, timeout, steps: plans })
}

fn parsed<'a, T: Deserialize<'a>>(value: &'a Value) -> Result<T, String> {
    T::deserialize(value).map_err(|error| excerpt(&error.to_string(), MAX_TEXT))
}

/// The names that a step gives its value.
fn names_of(step: &Value) -> impl Iterator<Item = &str> {
    ["id", "output_to"].into_iter().filter_map(|field| step.get(field).and_then(Value::as_str))
}

/// The names of values in a pipeline.
struct StepNames<'a> {
    all: HashSet<&'a str>,
    /// Names of values of earlier steps, with the numbers of these steps.
    earlier: HashMap<&'a str, usize>,
}

impl StepNames<'_> {
    /// Resolves a reference. `input` is the value of the step's `input_from`; `has_items` means that it has `for_each`.
    fn resolve(&self, text: &str, input: Option<&ValueRef>, has_items: bool) -> Result<ValueRef, String> {
        let text = text.trim();
        let (name, pointer) = text.split_at(text.find('/').unwrap_or(text.len()));
        let (origin, pointer) = match (name, input, self.earlier.get(name)) {
            (INPUT, Some(input), _) => (input.origin, format!("{}{pointer}", input.pointer)),
            (INPUT, None, _) => return Err("`input` has no value, because the step has no `input_from`".to_owned()),
            (ITEM, ..) if has_items => (ValueOrigin::Item, pointer.to_owned()),
            (ITEM, ..) => return Err("`item` has no value here, because it is for steps with `for_each`".to_owned()),
            (_, _, Some(step)) => (ValueOrigin::Step(*step), pointer.to_owned()),
            _ if self.all.contains(name) => {
                let name = shown(name);
                return Err(format!("the value of `{name}` is not there yet: a step uses values of steps before it"));
            }
            _ if !is_name(name) => {
                let text = shown(text);
                return Err(format!(
                    "`{text}` is no reference: expected `STEP` or `STEP/POINTER`, such as `find/items/0`"
                ));
            }
            _ => return Err(format!("there is no step `{}`", shown(name))),
        };
        Ok(ValueRef { origin, pointer, text: text.to_owned() })
    }
}

/// Reads a step; `tools` are those that its pipeline may use, or none if it may use all.
fn read_step(step: &Value, tools: &[String], names: &StepNames<'_>) -> Result<StepPlan, String> {
    let step: StepArguments = parsed(step)?;
    for name in [Some(&step.id), step.output_to.as_ref()].into_iter().flatten() {
        if !is_name(name) {
            let most = MAX_ID;
            return Err(format!(
                "`{}` is no name: expected 1 to {most} ASCII letters, digits, `_` or `-`",
                shown(name)
            ));
        }
        if [INPUT, ITEM].contains(&name.as_str()) {
            return Err(format!("`{name}` means something else in references: choose another name"));
        }
        if names.earlier.contains_key(name.as_str()) {
            return Err(format!("an earlier step has the name `{}` already", shown(name)));
        }
    }
    let is_llm = step.mode.as_deref().is_some_and(|mode| mode.eq_ignore_ascii_case("llm"));
    if is_llm || step.prompt.is_some() {
        let text = "a pipeline calls tools, and no model: do what `prompt` says yourself, between two pipelines";
        return Err(text.to_owned());
    }
    if let Some(mode) = step.mode.as_deref().filter(|mode| !mode.eq_ignore_ascii_case("direct")) {
        return Err(format!("`{}` is no `mode`: leave it out", shown(mode)));
    }
    let (tool, params) = target(&step)?;
    let server = step.server.filter(|server| !server.is_empty());
    if server.is_none() && tool == NAME {
        return Err(format!("a pipeline cannot begin others: `{NAME}`"));
    }
    if !tools.is_empty() && !tools.contains(&tool) {
        return Err(format!("`{}` is none of the `tools` of its pipeline", shown(&tool)));
    }
    let input = step.input_from.map(|text| names.resolve(&text, None, false)).transpose()?;
    let mut uses_input = false;
    let mut resolve = |text: &str, has_items| {
        uses_input |= text.trim().split('/').next() == Some(INPUT);
        names.resolve(text, input.as_ref(), has_items)
    };
    let for_each = step.for_each.map(|text| resolve(&text, false)).transpose()?;
    let params = ValueTemplate::parse_object(&params, &mut |text| resolve(text, for_each.is_some()))?.into();
    let when = step.when.iter().map(|condition| StepCondition::parse(condition, |text| resolve(text, false)));
    let when = when.collect::<Result<_, _>>()?;
    if input.is_some() && !uses_input {
        return Err("nothing uses `input_from`: put `{{input}}` where its value belongs in `params`".to_owned());
    }
    let (retries, continues) = on_failure(step.on_failure.as_deref().unwrap_or_default())?;
    Ok(StepPlan { id: step.id, server, tool, params, output_to: step.output_to, for_each, when, retries, continues })
}

/// The tool that a step calls, and its arguments.
fn target(step: &StepArguments) -> Result<(String, Map<String, Value>), String> {
    let gateway = step.gateway.as_deref().unwrap_or_default().to_ascii_lowercase();
    let mut params = step.params.clone().unwrap_or_default();
    let default = match gateway.as_str() {
        "" | "mcp" | "web" => None,
        "script" => Some(EXECUTE_PYTHON_SCRIPT),
        "a2a" => {
            let given = [("agent_name", &step.agent), ("skill", &step.skill), ("message", &step.message)];
            params
                .extend(given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), json!(value.as_ref()?)))));
            Some(AGENT_TOOL)
        }
        other => return Err(format!("`{}` is no `gateway`: leave it out, and name the tool", shown(other))),
    };
    let tool = step.tool.as_deref().filter(|tool| !tool.is_empty()).or(default);
    Ok((tool.ok_or("it has no `tool`")?.to_owned(), params))
}

/// The attempts after the first, and whether the pipeline goes on.
fn on_failure(text: &str) -> Result<(u32, bool), String> {
    let words: Vec<String> = text.split_whitespace().map(str::to_ascii_lowercase).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] | ["stop"] => Ok((0, false)),
        ["continue"] => Ok((0, true)),
        ["retry", times] if times.parse().is_ok_and(|times| (1..=MAX_RETRIES).contains(&times)) => {
            Ok((times.parse().unwrap_or(1), false))
        }
        _ => {
            let text = shown(text);
            Err(format!(
                "`{text}` is no `on_failure`: expected `stop`, `continue` or `retry 1` to `retry {MAX_RETRIES}`"
            ))
        }
    }
}

fn is_name(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    (1..=MAX_ID).contains(&text.len()) && text.bytes().all(is_part)
}
