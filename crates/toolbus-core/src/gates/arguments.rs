//! Arguments: one parse into an object, valid against the tool's schema.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use toolbus_protocol::parse_arguments;

use super::compiled::{Cache, Compiled};
pub use super::compiled::{SchemaError, check_schema};
use super::meter::{CheckLimits, Meter, Spent};
use super::recipients::declared;
use crate::Clock;
use crate::argument_names;
use crate::deadline;
use crate::failure::{Cause, ToolFailure};
use crate::policy::Forced;
use crate::text::{shortened, shown};
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

/// Reason why arguments are refused.
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
    pub(crate) fn new(clock: Clock, turns: Turns) -> Self {
        let checker = ArgumentChecker { clock, schemas: Cache::new(), warned: Throttle::default() };
        Self { checker: Arc::new(checker), turns }
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

    /// Like [`Self::check`], but never holds up a task for more than some milliseconds: what may take longer waits for
    /// its turn among `caller` and others, and runs on a thread of its own.
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
        let mut fields = if text.is_empty() {
            Map::new()
        } else {
            parse_arguments(text)
                .map_err(|error| ToolFailure::invalid(format!("The arguments are not usable: {error}.")))?
        };
        if let Some(parameters) = tool.descriptor.parameters.as_deref() {
            argument_names::restore(&mut fields, || declared(parameters));
        }
        for (argument, value) in forced.into_iter().flat_map(|forced| &forced.0) {
            // Refused and not replaced: the tool would do something else than its caller requested.
            if fields.insert(argument.clone(), value.clone()).is_some() {
                let text = format!("The argument `{argument}` is set by the operator. Leave it out.");
                return Err(ToolFailure::invalid(text).into());
            }
        }
        let validation = tool.descriptor.validation;
        let (Some(schema), Validation::Enforce | Validation::Warn) = (&tool.schema, validation) else {
            return Ok(fields);
        };
        let compiled = self.compiled(tool, schema)?;
        let value = Value::Object(fields);
        let refused = match compiled.check(&value, limits) {
            Ok(None) => None,
            Ok(Some(violations)) => {
                Some((ArgumentRefusal::Failure(ToolFailure::invalid(violations.clone())), violations))
            }
            Err(Spent::Work) if limits.at_once => return Err(ArgumentRefusal::Spent(Spent::Work)),
            Err(spent) => Some((ArgumentRefusal::Spent(spent), spent.text().to_owned())),
        };
        match refused {
            Some((refused, _)) if validation == Validation::Enforce => return Err(refused),
            Some((_, text)) => self.warn(tool, &text),
            None => {}
        }
        match value {
            Value::Object(fields) => Ok(fields),
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
    /// Describes the faults of `value`, if it has any.
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

/// Refuses arguments beside those that are set for the caller, unless the tool's schema declares them or `is_recipient`
/// holds for their name: a tool may take an undeclared one for one that is set, however it is written.
///
/// # Errors
///
/// [`Cause::InvalidArguments`], naming the first such argument.
pub(crate) fn declared_beside(
    forced: &Forced,
    tool: &Tool,
    is_recipient: impl Fn(&str) -> bool,
    arguments: &Map<String, Value>,
) -> Result<(), ToolFailure> {
    let declared = tool.descriptor.parameters.as_deref().map(declared).unwrap_or_default();
    let is_known = |name: &str| declared.contains(name) || forced.0.contains_key(name) || is_recipient(name);
    let Some(name) = arguments.keys().find(|name| !is_known(name)) else { return Ok(()) };
    let name = shown(name);
    let text = format!(
        "The tool's parameters do not declare the argument `{name}`, which the tool could take for one that the operator \
         sets. Leave it out."
    );
    Err(ToolFailure::invalid(text))
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
            Self::Spent(spent) => ToolFailure::invalid(spent.text().to_owned()),
        }
    }
}

fn expired() -> ToolFailure {
    let text = "The deadline of the call passed while its arguments were checked. The tool was not run.";
    ToolFailure::new(Cause::Expired, text)
}

#[cfg(test)]
mod tests;
