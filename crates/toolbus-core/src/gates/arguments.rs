//! Arguments: one parse into an object, valid against the tool's schema.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use toolbus_protocol::parse_object;

use super::compiled::{Cache, Compiled};
pub use super::compiled::{SchemaError, check_schema};
use super::meter::{CheckLimits, Meter, Spent};
use crate::clock::Clock;
use crate::deadline;
use crate::failure::{Cause, ToolFailure};
use crate::policy::Forced;
use crate::text::shortened;
use crate::throttle::Throttle;
use crate::tool::{Schema, Tool, Validation};
use crate::turns::Turns;

/// Most violations that a reply lists.
const MAX_VIOLATIONS: usize = 20;
/// Longest text about one violation, in characters.
const MAX_VIOLATION: usize = 200;
/// Most errors that are looked for, with those within branches of `anyOf` and its like.
const MAX_ERRORS: usize = 200;

/// Arguments up to this size are checked on the task's own thread, in bytes.
const MAX_AT_ONCE: usize = 16 * 1024;
/// Steps of such a check: a few milliseconds. One that needs more gets its turn.
const STEPS_AT_ONCE: u64 = 50_000;
/// Bytes of texts times bytes of the compiled patterns that such a check compares them with: a few milliseconds, too.
const COMPARISONS_AT_ONCE: u64 = 16 * 1024 * 1024;
/// Steps of a check that has its turn: each value of the largest arguments, some twenty times.
const STEPS_IN_TURN: u64 = 10_000_000;
/// Steps of looking for what is wrong.
const STEPS_FOR_ERRORS: u64 = 1_000_000;
/// Longest check, but for a comparison that it has begun.
const MAX_CHECK: Duration = Duration::from_secs(3);

/// Checks arguments. Large ones take turns, beside the threads that everything else runs on.
pub(crate) struct Arguments {
    checker: Arc<ArgumentChecker>,
    turns: Turns,
}

/// Compiles each schema at its first use, and checks arguments against it.
struct ArgumentChecker {
    clock: Clock,
    schemas: Cache,
    warned: Throttle,
}

/// Why arguments are refused.
enum ArgumentRefusal {
    Failure(ToolFailure),
    /// The check cost more than it may.
    Spent(Spent),
}

impl From<ToolFailure> for ArgumentRefusal {
    fn from(failure: ToolFailure) -> Self {
        Self::Failure(failure)
    }
}

impl Arguments {
    pub(crate) fn new(clock: Clock) -> Self {
        let checker = ArgumentChecker { clock, schemas: Cache::new(), warned: Throttle::default() };
        Self { checker: Arc::new(checker), turns: Turns::new() }
    }

    /// Parses `text`, adds what is set for the caller, and validates all of it against the tool's schema. No text is an
    /// empty object.
    ///
    /// # Errors
    ///
    /// [`Cause::InvalidArguments`], naming the violated paths and never the values.
    pub(crate) fn check(
        &self,
        tool: &Tool,
        text: Option<&str>,
        forced: Option<&Forced>,
    ) -> Result<Map<String, Value>, ToolFailure> {
        let limits = CheckLimits::in_turn(self.checker.clock, MAX_CHECK);
        self.checker.check(tool, text, forced, limits).map_err(ArgumentRefusal::into_failure)
    }

    /// Like [`Self::check`], but never holds up a task for more than some milliseconds: what may take longer waits for its
    /// turn among `caller` and others, and runs on a thread of its own.
    ///
    /// # Errors
    ///
    /// Those of [`Self::check`]; [`Cause::Overloaded`] when too many wait; [`Cause::Expired`] at `deadline`.
    pub(crate) async fn check_in_turn(
        &self,
        tool: &Tool,
        text: Option<&str>,
        forced: Option<Arc<Forced>>,
        caller: Arc<str>,
        deadline: Instant,
    ) -> Result<Map<String, Value>, ToolFailure> {
        let clock = self.checker.clock;
        let now = clock.now();
        let size = text.map_or(0, str::len);
        if size <= MAX_AT_ONCE && self.checker.is_ready(tool) {
            match self.checker.check(tool, text, forced.as_deref(), CheckLimits::at_once(clock, now + MAX_CHECK)) {
                Err(ArgumentRefusal::Spent(Spent::Work)) => {}
                checked => return checked.map_err(ArgumentRefusal::into_failure),
            }
        }
        if deadline <= now {
            return Err(deadline::passed());
        }
        let (checker, tool, text) = (Arc::clone(&self.checker), tool.clone(), text.map(str::to_owned));
        let check = move || {
            let limits = CheckLimits::in_turn(clock, deadline.saturating_duration_since(clock.now()).min(MAX_CHECK));
            checker.check(&tool, text.as_deref(), forced.as_deref(), limits)
        };
        match self.turns.run(caller, size, deadline, check).await {
            Ok((Err(ArgumentRefusal::Spent(Spent::Work)), _)) if clock.now() >= deadline => Err(expired()),
            Ok((checked, _)) => checked.map_err(ArgumentRefusal::into_failure),
            Err(late) if late.cause == Cause::Expired => Err(expired()),
            Err(failure) => Err(failure),
        }
    }
}

impl ArgumentChecker {
    /// Whether nothing has to be compiled for this tool.
    fn is_ready(&self, tool: &Tool) -> bool {
        match (&tool.schema, tool.descriptor.validation) {
            (None, _) | (_, Validation::Off) => true,
            (Some(schema), _) => self.schemas.get(schema).is_some(),
        }
    }

    fn check(
        &self,
        tool: &Tool,
        text: Option<&str>,
        forced: Option<&Forced>,
        limits: CheckLimits,
    ) -> Result<Map<String, Value>, ArgumentRefusal> {
        let text = text.map_or("", str::trim);
        let mut members = if text.is_empty() {
            Map::new()
        } else {
            parse_object(text.as_bytes()).map_err(|error| invalid(format!("The arguments are not usable: {error}.")))?
        };
        for (argument, value) in forced.into_iter().flat_map(|forced| &forced.0) {
            // Refused and not replaced: the tool would do something else than its caller asked for.
            if members.insert(argument.clone(), value.clone()).is_some() {
                let text = format!("The argument `{argument}` is set by the operator. Leave it out.");
                return Err(invalid(text).into());
            }
        }
        let validation = tool.descriptor.validation;
        let (Some(schema), Validation::Enforce | Validation::Warn) = (&tool.schema, validation) else {
            return Ok(members);
        };
        let compiled = self.compiled(tool, schema)?;
        let value = Value::Object(members);
        let refused = match compiled.check(&value, limits) {
            Ok(None) => None,
            Ok(Some(violations)) => Some((ArgumentRefusal::Failure(invalid(violations.clone())), violations)),
            Err(Spent::Work) if limits.at_once => return Err(ArgumentRefusal::Spent(Spent::Work)),
            Err(spent) => Some((ArgumentRefusal::Spent(spent), spent.text().to_owned())),
        };
        match refused {
            Some((refused, _)) if validation == Validation::Enforce => return Err(refused),
            Some((_, text)) => self.warn(tool, &text),
            None => {}
        }
        match value {
            Value::Object(members) => Ok(members),
            _ => Ok(Map::new()),
        }
    }

    fn compiled(&self, tool: &Tool, schema: &Schema) -> Result<Arc<Compiled>, ToolFailure> {
        self.schemas.compiled(schema).map_err(|error| {
            let text = format!("Tool '{}' has a parameter schema that cannot be used.", tool.descriptor.name);
            ToolFailure::new(Cause::Failed, text).with_detail(error)
        })
    }

    fn warn(&self, tool: &Tool, violations: &str) {
        if let Some(left_out) = self.warned.due() {
            let tool = &*tool.descriptor.name;
            tracing::warn!(tool, violations, left_out, "ran a tool with arguments that its schema does not allow");
        }
    }
}

impl Compiled {
    /// What is wrong with `value`, if anything is.
    fn check(&self, value: &Value, limits: CheckLimits) -> Result<Option<String>, Spent> {
        let meter = Meter::new(limits, MAX_ERRORS, self.patterns);
        if meter.run(value, |node| self.validator.is_valid(node))? {
            return Ok(None);
        }
        let steps = STEPS_FOR_ERRORS.min(limits.steps);
        let meter = Meter::new(CheckLimits { steps, ..limits }, MAX_ERRORS, self.patterns);
        let lines = meter.run(value, |node| {
            let lines = self.validator.iter_errors(node).take(MAX_VIOLATIONS + 1).map(|error| {
                let path = error.instance_path().to_string();
                let path = if path.is_empty() { "/" } else { &path };
                printable(&shortened(&format!("{path}: {}", error.masked()), MAX_VIOLATION))
            });
            lines.collect::<Vec<_>>()
        });
        if limits.at_once && lines == Err(Spent::Work) {
            return Err(Spent::Work);
        }
        // That they do not fit is known; only where is not.
        let mut lines = lines.unwrap_or_default();
        if lines.is_empty() {
            return Ok(Some(
                "The arguments do not fit the tool's parameters, in too many ways to say where.".to_owned(),
            ));
        }
        if lines.len() > MAX_VIOLATIONS || meter.is_full() {
            lines.truncate(MAX_VIOLATIONS);
            lines.push("… and more".to_owned());
        }
        Ok(Some(format!("The arguments do not fit the tool's parameters: {}", lines.join("; "))))
    }
}

/// A text with names that a caller chose: what is not visible is escaped, and quotes stay.
fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '"' | '\'' | '\\' => printable.push(character),
            _ => printable.extend(character.escape_debug()),
        }
    }
    printable
}

impl CheckLimits {
    /// Of a check on the task's own thread.
    const fn at_once(clock: Clock, until: Instant) -> Self {
        Self { steps: STEPS_AT_ONCE, comparisons: COMPARISONS_AT_ONCE, clock, until, at_once: true }
    }

    /// Of a check that has its turn. What all of its comparisons take is bounded by the clock.
    fn in_turn(clock: Clock, most: Duration) -> Self {
        Self { steps: STEPS_IN_TURN, comparisons: u64::MAX, clock, until: clock.now() + most, at_once: false }
    }
}

impl Spent {
    const fn text(self) -> &'static str {
        match self {
            Self::Work => "The arguments take too much work to check. Send fewer values, or shorter ones.",
            Self::Text => "A text in the arguments is too long for the patterns of the tool's parameters. Shorten it.",
        }
    }
}

impl ArgumentRefusal {
    fn into_failure(self) -> ToolFailure {
        match self {
            Self::Failure(failure) => failure,
            Self::Spent(spent) => invalid(spent.text().to_owned()),
        }
    }
}

fn expired() -> ToolFailure {
    let text = "The deadline of the call passed while its arguments were checked. The tool was not run.";
    ToolFailure::new(Cause::Expired, text)
}

fn invalid(message: String) -> ToolFailure {
    ToolFailure::new(Cause::InvalidArguments, message)
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use serde_json::json;

    use tokio_util::task::TaskTracker;

    use super::*;
    use crate::tool::{Executor, ToolCall, ToolDescriptor, ToolOutput};

    struct Nothing;

    impl Executor for Nothing {
        async fn execute(&self, _: ToolCall) -> Result<ToolOutput, ToolFailure> {
            Ok(ToolOutput::default())
        }
    }

    fn tool(schema: Value) -> Tool {
        let descriptor = ToolDescriptor::new("t", "test", "local");
        Tool::new(ToolDescriptor { parameters: Some(Arc::new(schema)), ..descriptor }, Nothing)
    }

    fn refusal(schema: Value, text: &str) -> String {
        let failure = Arguments::new(Clock::SYSTEM).check(&tool(schema), Some(text), None).unwrap_err();
        assert_eq!(failure.cause, Cause::InvalidArguments);
        failure.message
    }

    #[test]
    fn absent_and_empty_arguments_are_an_empty_object() {
        for text in [None, Some(""), Some("  "), Some("{}")] {
            assert!(
                Arguments::new(Clock::SYSTEM).check(&tool(json!({"type": "object"})), text, None).unwrap().is_empty()
            );
        }
    }

    #[test]
    fn arguments_that_are_not_json_are_refused_with_the_position() {
        assert_snapshot!(refusal(json!({}), r#"{"a": }"#), @"The arguments are not usable: expected value at line 1 column 7.");
    }

    #[test]
    fn arguments_that_are_no_object_are_refused() {
        assert_snapshot!(refusal(json!({}), "[1]"), @"The arguments are not usable: expected a JSON object, found an array.");
    }

    #[test]
    fn a_member_named_twice_is_refused() {
        assert_snapshot!(refusal(json!({}), r#"{"a": 1, "a": 2}"#), @"The arguments are not usable: duplicate member `a` at line 1 column 12.");
    }

    #[test]
    fn violations_name_every_path_and_no_value() {
        let schema = json!({
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "maximum": 7}},
            "required": ["city", "days"],
            "additionalProperties": false
        });
        let message = refusal(schema, r#"{"days": 70007, "token": "s3cret"}"#);
        assert!(!message.contains("70007") && !message.contains("s3cret"), "{message}");
        assert_snapshot!(message, @r#"The arguments do not fit the tool's parameters: /: "city" is a required property; /days: value is greater than the maximum of 7; /: Additional properties are not allowed ('token' was unexpected)"#);
    }

    #[test]
    fn at_most_twenty_violations_are_told() {
        let schema = json!({"type": "object", "additionalProperties": {"type": "string"}});
        let members: Vec<String> = (0..50).map(|n| format!(r#""m{n}": {n}"#)).collect();
        let message = refusal(schema, &format!("{{{}}}", members.join(",")));
        assert_eq!(message.matches("; ").count(), MAX_VIOLATIONS);
        assert!(message.ends_with("… and more"), "{message}");
    }

    #[test]
    fn a_schema_that_refers_to_itself_ends() {
        let schema = json!({"type": "object", "properties": {"next": {"$ref": "#"}}});
        assert!(Arguments::new(Clock::SYSTEM).check(&tool(schema), Some(r#"{"next": {"next": {}}}"#), None).is_ok());
        assert!(Arguments::new(Clock::SYSTEM).check(&tool(json!({"$ref": "#"})), Some("{}"), None).is_ok());
    }

    /// An array of numbers, as the arguments of a tool.
    fn numbers(count: usize) -> String {
        format!(r#"{{"list":[{}]}}"#, vec!["1"; count].join(","))
    }

    fn list_of(items: &Value) -> Value {
        json!({"type": "object", "properties": {"list": {"type": "array", "items": items}}})
    }

    #[test]
    fn half_a_million_wrong_values_are_refused_with_the_first_ones() {
        let began = Clock::SYSTEM.now();
        let message = refusal(list_of(&json!({"type": "string"})), &numbers(500_000));
        assert!(message.contains("/list/0: ") && message.contains("/list/19: "), "{message}");
        assert!(message.ends_with("… and more") && message.len() < 2_000, "{message}");
        assert!(Clock::SYSTEM.since(began) < Duration::from_secs(20), "{:?}", Clock::SYSTEM.since(began));
    }

    #[test]
    fn many_values_that_fit_none_of_many_branches_are_refused() {
        let branches: Vec<Value> =
            (0..400).map(|n| json!({"type": "array", "items": {"type": "string", "minLength": n}})).collect();
        let schema = json!({"type": "object", "properties": {"list": {"anyOf": branches}}});
        let message = refusal(schema, &numbers(20_000));
        assert!(message.starts_with("The arguments do not fit the tool's parameters: /list: "), "{message}");
        let branches: Vec<Value> = (0..400).map(|n| json!({"type": "string", "minLength": n})).collect();
        let message = refusal(list_of(&json!({"anyOf": branches})), &numbers(20_000));
        assert!(message.contains("/list/0: "), "{message}");
    }

    /// 2^60 looks at what `applied` gives to the first definition.
    fn without_end(applied: &Value) -> Value {
        let next = |n: usize| json!({"$ref": format!("#/$defs/d{}", n + 1)});
        let mut defs: Map<String, Value> =
            (0..60).map(|n| (format!("d{n}"), json!({"allOf": [next(n), next(n)]}))).collect();
        defs.insert("d60".to_owned(), json!({"minLength": 1}));
        let mut schema = applied.clone();
        schema["$defs"] = defs.into();
        schema
    }

    #[test]
    fn a_schema_that_makes_work_without_end_is_left() {
        let first = json!({"$ref": "#/$defs/d0"});
        for applied in [json!({"properties": {"a": first}}), json!({"propertyNames": first})] {
            assert_eq!(refusal(without_end(&applied), r#"{"a": "x"}"#), Spent::Work.text(), "{applied}");
        }
    }

    #[test]
    fn large_arguments_that_fit_pass() {
        let tool = tool(list_of(&json!({"anyOf": [{"type": "string"}, {"type": "integer"}]})));
        let members = Arguments::new(Clock::SYSTEM).check(&tool, Some(&numbers(200_000)), None).unwrap();
        assert_eq!(members["list"].as_array().unwrap().len(), 200_000);
    }

    /// Letters a and b without an order that a pattern could make use of.
    fn random(length: usize) -> String {
        let next = |state: &mut u64| {
            *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            Some(if *state >> 63 == 0 { 'a' } else { 'b' })
        };
        std::iter::repeat_with(|| ()).scan(1, |state, ()| next(state)).take(length).collect()
    }

    /// Patterns of which each byte of a text makes a new state.
    fn costly() -> Value {
        let pattern = |n: usize| json!({"pattern": format!("(?:a|b)*a(?:a|b){{{}}}c", 200 + n)});
        let all: Vec<Value> = (0..60).map(pattern).collect();
        json!({"type": "object", "properties": {"text": {"type": "string", "not": {"anyOf": all}}}})
    }

    #[test]
    fn a_long_text_and_costly_patterns_end_in_some_seconds() {
        for length in [60_000, 500_000] {
            let text: String = (0..length).map(|n: u64| if n * n % 7 < 3 { 'a' } else { 'b' }).collect();
            let began = Clock::SYSTEM.now();
            let checked =
                Arguments::new(Clock::SYSTEM).check(&tool(costly()), Some(&json!({"text": text}).to_string()), None);
            assert!(
                Clock::SYSTEM.since(began) < Duration::from_secs(30),
                "{length}: {:?} {checked:?}",
                Clock::SYSTEM.since(began)
            );
        }
    }

    #[tokio::test]
    async fn a_large_check_holds_up_no_other_task() {
        let arguments = Arc::new(Arguments::new(Clock::SYSTEM));
        let check = TaskTracker::new().spawn({
            let arguments = Arc::clone(&arguments);
            async move {
                let tool = tool(costly());
                let text = json!({"text": "ab".repeat(100_000)}).to_string();
                let deadline = Clock::SYSTEM.now() + Duration::from_secs(60);
                arguments.check_in_turn(&tool, Some(&text), None, "ana".into(), deadline).await.is_ok()
            }
        });
        // This test has one thread: a check on it would leave a single turn to the loop.
        let mut turns = 0;
        while !check.is_finished() {
            tokio::time::sleep(Duration::from_millis(1)).await;
            turns += 1;
        }
        assert!(turns > 3, "{turns}");
        check.await.unwrap();
    }

    /// Of some 50 KiB, of which each byte of a text visits all.
    const COSTLY_PATTERN: &str = "(?:a|b)*a(?:a|b){400}c";

    fn with_costly_pattern() -> Value {
        json!({"type": "object", "properties": {"text": {"type": "string", "pattern": COSTLY_PATTERN}}})
    }

    /// Turns that other tasks of the same thread get while these arguments are checked, once the schema is compiled.
    async fn turns_beside(schema: Value, text: String) -> u32 {
        let arguments = Arc::new(Arguments::new(Clock::SYSTEM));
        let tool = tool(schema);
        arguments.check(&tool, Some("{}"), None).unwrap();
        assert!(text.len() <= MAX_AT_ONCE && arguments.checker.is_ready(&tool));
        let deadline = Clock::SYSTEM.now() + Duration::from_secs(60);
        let check = TaskTracker::new()
            .spawn(async move { arguments.check_in_turn(&tool, Some(&text), None, "ana".into(), deadline).await });
        let mut turns = 0;
        while !check.is_finished() {
            tokio::time::sleep(Duration::from_millis(1)).await;
            turns += 1;
        }
        assert!(!check.await.unwrap().unwrap_err().message.contains("work"));
        turns
    }

    #[tokio::test]
    async fn a_small_text_and_a_costly_pattern_hold_up_no_other_task() {
        let text = json!({"text": random(16_000)}).to_string();
        let turns = turns_beside(with_costly_pattern(), text).await;
        assert!(turns > 3, "{turns}");
    }

    #[tokio::test]
    async fn a_small_name_and_a_costly_pattern_hold_up_no_other_task() {
        let text = json!({random(16_000): 1}).to_string();
        let turns = turns_beside(json!({"propertyNames": {"pattern": COSTLY_PATTERN}}), text).await;
        assert!(turns > 3, "{turns}");
    }

    #[test]
    fn each_costly_comparison_looks_at_the_clock_before_it_begins() {
        let compiled = Compiled::new(&with_costly_pattern()).unwrap();
        // Too short for a look after so many steps.
        let value = json!({"text": random(2_000)});
        assert_eq!(compiled.check(&value, CheckLimits::in_turn(Clock::SYSTEM, Duration::ZERO)), Err(Spent::Work));
    }

    #[test]
    fn usual_patterns_are_compared_at_once() {
        let pattern = |of: &str| json!({"type": "string", "pattern": of});
        let schema = json!({"type": "object", "additionalProperties": false, "properties": {
            "email": pattern(r"^[^@\s]+@[^@\s]+\.[a-zA-Z]{2,}$"), "day": pattern(r"^\d{4}-\d{2}-\d{2}$"),
            "id": pattern("^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"), "name": pattern(r"^[\w .-]+$")
        }});
        let compiled = Compiled::new(&schema).unwrap();
        let value = json!({"email": "ana@example.com", "day": "2026-01-31", "name": "x".repeat(100),
            "id": "123e4567-e89b-12d3-a456-426614174000"});
        let limits = CheckLimits::at_once(Clock::SYSTEM, Clock::SYSTEM.now() + Duration::from_secs(60));
        assert_eq!(compiled.check(&value, limits), Ok(None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_check_that_outlasts_the_call_is_told_as_its_deadline() {
        let arguments = Arguments::new(Clock::SYSTEM);
        let tool = tool(costly());
        let text = json!({"text": "ab".repeat(100_000)}).to_string();
        let deadline = Clock::SYSTEM.now();
        let failure = arguments.check_in_turn(&tool, Some(&text), None, "ana".into(), deadline).await.unwrap_err();
        assert_eq!(failure.cause, Cause::Expired);
    }

    #[tokio::test]
    async fn a_small_check_that_needs_many_steps_gets_its_turn() {
        let branches: Vec<Value> = (0..400).map(|n| json!({"type": "string", "minLength": n})).collect();
        let tool = tool(list_of(&json!({"anyOf": branches, "not": {"type": "number"}})));
        let arguments = Arguments::new(Clock::SYSTEM);
        let deadline = Clock::SYSTEM.now() + Duration::from_secs(60);
        for _ in 0..2 {
            let checked = arguments.check_in_turn(&tool, Some(&numbers(1_000)), None, "ana".into(), deadline).await;
            let message = checked.unwrap_err().message;
            assert!(message.contains("/list/0: "), "{message}");
        }
    }
}
