//! Arguments as the validator reads them: every look costs a step, and a check that costs too much ends.
//!
//! The validator collects every error of every branch before it gives out the first, and has no way to be stopped. It
//! reads values through a trait, however, so what bounds it is in the reading: lists seem to end once enough errors are
//! known, and a check over its budget is left by unwinding.

use std::any::Any;
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe};
use std::rc::Rc;
use std::slice;
use std::time::Instant;

use jsonschema::json::{self, Array, Json, NodeIdentity, Object, SerdeJson};
use jsonschema::types::JsonType;
use serde_json::{Map, Number, Value, map};

use crate::Clock;
use crate::ecma_pattern::{MAX_BACKTRACKED, MAX_BACKTRACKS};

/// Bytes of text that cost a step.
const BYTES_PER_STEP: usize = 16;
/// Steps between two looks at the clock; a power of two.
const STEPS_PER_LOOK: u64 = 4096;
/// Bytes of a pattern's compiled form times bytes of the text that it is compared with: some tenths of a second at the
/// worst, when each byte visits all of the form. A comparison cannot be stopped.
const MAX_COMPARISON: u64 = 8 * 1024 * 1024 * 1024;
/// The clock is looked at before comparisons that take more than this together, in the same unit.
const COMPARED_PER_LOOK: u64 = 16 * 1024 * 1024;

/// Bytes of a pattern's compiled form that cost as much as one step back costs for each byte of the text.
const BACKTRACK_COST: usize = 16;

/// Reason why a check ended before it was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spent {
    /// The check took too many steps, or too long.
    Work,
    /// A text is too long for the patterns of the schema.
    Text,
}

/// Limits of one check.
#[derive(Clone, Copy)]
pub(super) struct CheckLimits {
    /// Looks at values and at 16 bytes of a text.
    pub(super) steps: u64,
    /// Bytes of texts times bytes of the compiled patterns that they are compared with, of all comparisons.
    pub(super) comparisons: u64,
    pub(super) clock: Clock,
    pub(super) until: Instant,
    /// Whether a check that reaches these limits is done again with larger ones.
    pub(super) at_once: bool,
}

/// Bytes that the compiled patterns of a schema may take at the most; zero where nothing is compared.
#[derive(Clone, Copy)]
pub(super) struct PatternBytes {
    /// The largest pattern. A text is compared with one at a time.
    pub(super) of_texts: usize,
    /// All patterns of `patternProperties`. A name may be compared with all of them.
    pub(super) of_names: usize,
}

thread_local! {
    /// The meter of the check that runs on this thread. The validator makes nodes of names out of nothing but their
    /// text.
    static RUNNING: RefCell<Option<Rc<Meter>>> = const { RefCell::new(None) };
}

/// Counts what one check costs.
pub(super) struct Meter {
    steps: Cell<u64>,
    comparisons: Cell<u64>,
    /// Comparisons since they last led to a look at the clock.
    compared: Cell<u64>,
    errors: Cell<usize>,
    clock: Clock,
    until: Instant,
    patterns: PatternBytes,
}

impl Meter {
    /// A meter for a schema with `patterns`. Lists seem to end after about `errors` errors.
    pub(super) fn new(limits: CheckLimits, errors: usize, patterns: PatternBytes) -> Rc<Self> {
        Rc::new(Self {
            steps: Cell::new(limits.steps),
            comparisons: Cell::new(limits.comparisons),
            compared: Cell::new(0),
            errors: Cell::new(errors),
            clock: limits.clock,
            until: limits.until,
            patterns,
        })
    }

    /// Runs a check over `value`.
    ///
    /// # Errors
    ///
    /// If it costs more than the meter has.
    pub(super) fn run<'a, T>(
        self: &'a Rc<Self>,
        value: &'a Value,
        check: impl FnOnce(MeteredValue<'a>) -> T,
    ) -> Result<T, Spent> {
        let node = MeteredValue { value, meter: Some(self) };
        let before = RUNNING.replace(Some(Rc::clone(self)));
        let checked = panic::catch_unwind(AssertUnwindSafe(|| check(node)));
        RUNNING.set(before);
        checked.map_err(spent)
    }

    /// Whether errors are left out because there are so many.
    pub(super) fn is_full(&self) -> bool {
        self.errors.get() == 0
    }

    fn charge(&self, steps: u64) {
        let before = self.steps.get();
        let left = before.saturating_sub(steps);
        self.steps.set(left);
        let looks = before / STEPS_PER_LOOK != left / STEPS_PER_LOOK;
        if left == 0 || (looks && self.clock.now() >= self.until) {
            stop(Spent::Work);
        }
    }

    /// Charges a text of `length` bytes, and its comparison with patterns of `size` bytes, before they are compared.
    fn charge_text(&self, length: usize, size: usize) {
        let comparison = (length as u64).saturating_mul(size as u64);
        if comparison > MAX_COMPARISON {
            stop(Spent::Text);
        }
        let Some(left) = self.comparisons.get().checked_sub(comparison) else { stop(Spent::Work) };
        self.comparisons.set(left);
        self.compared.set(self.compared.get() + comparison);
        if self.compared.get() > COMPARED_PER_LOOK {
            self.compared.set(0);
            if self.clock.now() >= self.until {
                stop(Spent::Work);
            }
        }
        self.charge(1 + (length / BYTES_PER_STEP) as u64);
    }

    /// Charges the comparison of a text of `length` bytes with a pattern that backtracks, before they are compared.
    fn charge_backtracking(&self, length: usize) {
        self.charge_text(length.min(MAX_BACKTRACKED), MAX_BACKTRACKS * BACKTRACK_COST);
    }
}

/// Leaves the check, whatever depth of the validator it is in. No hook is called, so nothing is logged.
fn stop(spent: Spent) -> ! {
    panic::resume_unwind(Box::new(spent))
}

fn spent(payload: Box<dyn Any + Send>) -> Spent {
    match payload.downcast::<Spent>() {
        Ok(spent) => *spent,
        Err(panic) => panic::resume_unwind(panic),
    }
}

/// The representation of values that the validator is made for.
pub(super) struct Metered;

/// A value and its meter.
#[derive(Clone, Copy)]
pub(super) struct MeteredValue<'a> {
    value: &'a Value,
    /// Absent while no check runs.
    meter: Option<&'a Meter>,
}

impl<'a> MeteredValue<'a> {
    /// Charges the comparison of a text of `length` bytes with a pattern that backtracks.
    pub(super) fn charge_backtracking(&self, length: usize) {
        if let Some(meter) = self.meter {
            meter.charge_backtracking(length);
        }
    }

    fn look(&self) -> &'a Value {
        if let Some(meter) = self.meter {
            meter.charge(1);
        }
        self.value
    }
}

impl Json for Metered {
    type Node<'a> = MeteredValue<'a>;
    type PreparedKey = String;
    type StringBuffer = Value;

    fn prepare_key(key: &str) -> String {
        key.to_owned()
    }

    fn with_string_node<T>(buffer: &mut Value, string: &str, f: impl FnOnce(MeteredValue<'_>) -> T) -> T {
        let meter = RUNNING.with_borrow(Option::clone);
        SerdeJson::with_string_node(buffer, string, |value| f(MeteredValue { value, meter: meter.as_deref() }))
    }
}

impl<'a> json::Node<'a, Metered> for MeteredValue<'a> {
    type Object = MeteredObject<'a>;
    type Array = Elements<'a>;
    type Number = &'a Number;

    fn as_object(&self) -> Option<MeteredObject<'a>> {
        self.look().as_object().map(|members| MeteredObject { members, meter: self.meter })
    }

    fn as_array(&self) -> Option<Elements<'a>> {
        self.look().as_array().map(|elements| Elements { elements, meter: self.meter })
    }

    fn as_string(&self) -> Option<Cow<'a, str>> {
        let text = self.look().as_str()?;
        if let Some(meter) = self.meter {
            meter.charge_text(text.len(), meter.patterns.of_texts);
        }
        Some(Cow::Borrowed(text))
    }

    fn as_number(&self) -> Option<&'a Number> {
        self.look().as_number()
    }

    fn as_boolean(&self) -> Option<bool> {
        self.look().as_bool()
    }

    fn is_null(&self) -> bool {
        self.look().is_null()
    }

    fn json_type(&self) -> JsonType {
        json::Node::<SerdeJson>::json_type(&self.look())
    }

    fn string_length(&self) -> Option<u64> {
        json::Node::<SerdeJson>::string_length(&self.look())
    }

    fn equals_value(&self, expected: &Value) -> bool {
        json::Node::<SerdeJson>::equals_value(&self.look(), expected)
    }

    /// Called for each error that the validator makes, and for nothing else.
    fn to_value(&self) -> Cow<'a, Value> {
        if let Some(meter) = self.meter {
            meter.errors.set(meter.errors.get().saturating_sub(1));
        }
        Cow::Borrowed(self.value)
    }

    fn identity(&self) -> Option<NodeIdentity> {
        json::Node::<SerdeJson>::identity(&self.value)
    }
}

/// The fields of an object.
pub(super) struct MeteredObject<'a> {
    members: &'a Map<String, Value>,
    meter: Option<&'a Meter>,
}

/// Iterates over the fields of an object, until there are errors enough.
pub(super) struct EachMember<'a> {
    members: map::Iter<'a>,
    meter: Option<&'a Meter>,
}

impl<'a> Object<'a, Metered> for MeteredObject<'a> {
    type Node = MeteredValue<'a>;
    type MemberName = &'a str;
    type MembersIter = EachMember<'a>;

    fn len(&self) -> usize {
        self.members.len()
    }

    fn get(&self, key: &String) -> Option<MeteredValue<'a>> {
        self.members.get(key).map(|value| MeteredValue { value, meter: self.meter })
    }

    fn members(&self) -> EachMember<'a> {
        EachMember { members: self.members.iter(), meter: self.meter }
    }
}

impl<'a> Iterator for EachMember<'a> {
    type Item = (&'a str, MeteredValue<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.meter.is_some_and(Meter::is_full) {
            return None;
        }
        let (name, value) = self.members.next()?;
        if let Some(meter) = self.meter {
            meter.charge_text(name.len(), meter.patterns.of_names);
        }
        Some((name, MeteredValue { value, meter: self.meter }))
    }
}

/// The elements of an array.
pub(super) struct Elements<'a> {
    elements: &'a [Value],
    meter: Option<&'a Meter>,
}

/// Goes through the elements of an array, until there are errors enough.
pub(super) struct EachElement<'a> {
    elements: slice::Iter<'a, Value>,
    meter: Option<&'a Meter>,
}

impl<'a> Array<'a, Metered> for Elements<'a> {
    type Node = MeteredValue<'a>;
    type ElementsIter = EachElement<'a>;

    fn len(&self) -> usize {
        self.elements.len()
    }

    fn elements(&self) -> EachElement<'a> {
        EachElement { elements: self.elements.iter(), meter: self.meter }
    }

    fn is_unique(&self) -> bool {
        if let Some(meter) = self.meter {
            meter.charge(self.elements.len() as u64);
        }
        Array::<SerdeJson>::is_unique(&self.elements)
    }
}

impl<'a> Iterator for EachElement<'a> {
    type Item = MeteredValue<'a>;

    fn next(&mut self) -> Option<MeteredValue<'a>> {
        if self.meter.is_some_and(Meter::is_full) {
            return None;
        }
        let value = self.elements.next()?;
        if let Some(meter) = self.meter {
            meter.charge(1);
        }
        Some(MeteredValue { value, meter: self.meter })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::super::compiled::Compiled;
    use super::*;

    const NONE: PatternBytes = PatternBytes { of_texts: 0, of_names: 0 };

    /// A meter with this many steps and comparisons, whose time is over.
    fn late(steps: u64, comparisons: u64) -> Rc<Meter> {
        let clock = Clock::manual();
        let limits = CheckLimits { steps, comparisons, until: clock.now(), clock, at_once: false };
        Meter::new(limits, 1, NONE)
    }

    fn ended(charge: impl FnOnce()) -> Option<Spent> {
        panic::catch_unwind(AssertUnwindSafe(charge)).err().map(spent)
    }

    #[test]
    fn a_text_costs_a_step_and_one_for_each_sixteen_bytes() {
        for (length, cost) in [(0, 1), (15, 1), (16, 2), (31, 2), (160, 11)] {
            let meter = late(100, 0);
            assert_eq!(ended(|| meter.charge_text(length, 0)), None);
            assert_eq!(meter.steps.get(), 100 - cost, "{length} bytes");
        }
        assert_eq!(ended(|| late(2, 0).charge_text(16, 0)), Some(Spent::Work), "no step is left");
    }

    #[test]
    fn the_clock_is_looked_at_once_in_4096_steps() {
        for (before, steps, looks) in [(5_000, 100, false), (4_100, 4, false), (4_100, 5, true), (9_000, 4_500, true)] {
            let meter = late(before, 0);
            assert_eq!(ended(|| meter.charge(steps)), looks.then_some(Spent::Work), "{before} - {steps}");
        }
        let meter = late(4_100, 0);
        let limits = CheckLimits {
            steps: 4_100,
            comparisons: 0,
            until: meter.until + Duration::from_secs(1),
            clock: meter.clock,
            at_once: false,
        };
        assert_eq!(ended(|| Meter::new(limits, 1, NONE).charge(100)), None, "there is time");
    }

    #[test]
    fn comparisons_are_counted_in_all_bounded_each_and_timed_from_sixteen_megabytes_on() {
        let mebi = 1024 * 1024;
        assert_eq!(ended(|| late(100, 20).charge_text(4, 5)), None);
        assert_eq!(ended(|| late(100, 20).charge_text(3, 7)), Some(Spent::Work), "more than is left");

        let much = u64::MAX;
        assert_eq!(ended(|| late(much, much).charge_text(1, 8 * 1024 * mebi + 1)), Some(Spent::Text));
        let clock = Clock::manual();
        let until = clock.now() + Duration::from_secs(1);
        let in_time = CheckLimits { steps: much, comparisons: much, until, clock, at_once: false };
        assert_eq!(ended(|| Meter::new(in_time, 1, NONE).charge_text(1, 8 * 1024 * mebi)), None);

        let meter = late(100, much);
        assert_eq!(ended(|| meter.charge_text(1, 16 * mebi)), None, "the clock is not looked at yet");
        assert_eq!(ended(|| meter.charge_text(1, 1)), Some(Spent::Work));
    }

    #[test]
    fn with_a_meter_the_same_values_fit_the_same_schemas() {
        let schemas = json!([
            {"const": {"a": [1]}}, {"const": null}, {"const": true}, {"enum": [1, "two", null, false, [1], {}]},
            {"type": "null"}, {"type": "boolean"}, {"type": ["integer", "null"]}, {"type": "object"}, {"minLength": 2},
            {"maxLength": 1}, {"pattern": "^a"}, {"format": "date"}, {"minimum": 1}, {"multipleOf": 2}, {"maxItems": 1},
            {"uniqueItems": true}, {"contains": {"const": 1}}, {"items": {"type": "null"}}, {"prefixItems": [{"const": 1}]},
            {"required": ["a"]}, {"properties": {"a": {"type": "null"}}}, {"maxProperties": 1},
            {"properties": {"a": true}, "additionalProperties": false}, {"propertyNames": {"maxLength": 1}},
            {"patternProperties": {"^a": {"type": "number"}}}, {"not": {"type": "string"}},
            {"if": {"type": "array"}, "then": {"minItems": 1}, "else": {"type": "object"}},
        ]);
        let values = json!([
            null, true, false, 0, 1, 2, 1.5, "", "a", "ab", "two", "2026-01-31", [], [1], [1, 1], [null], [1, null], {},
            {"a": null}, {"a": 1}, {"ab": 1}, {"a": [1]}, {"a": 1, "b": 2},
        ]);
        for schema in schemas.as_array().unwrap() {
            let compiled = Compiled::new(schema).unwrap();
            let plain = jsonschema::options().offline().should_validate_formats(true).build(schema).unwrap();
            for value in values.as_array().unwrap() {
                let clock = Clock::manual();
                let until = clock.now() + Duration::from_secs(1);
                let limits = CheckLimits { steps: 10_000, comparisons: u64::MAX, until, clock, at_once: false };
                let meter = Meter::new(limits, 10, compiled.patterns);
                let fits = meter.run(value, |node| compiled.validator.is_valid(node));
                assert_eq!(fits, Ok(plain.is_valid(value)), "{schema} {value}");
            }
        }
    }
}
