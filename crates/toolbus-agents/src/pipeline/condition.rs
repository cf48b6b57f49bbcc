//! Conditions under which a step runs.

use std::cmp::Ordering;

use serde_json::{Number, Value};
use toolbus_core::text::shown;
use toolbus_core::turns::is_small;

use super::template::{StepValues, ValueRef};

/// A condition on a value. All but [`ConditionTest::Exists`] are not met by a value that is not there.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct StepCondition {
    value: ValueRef,
    test: ConditionTest,
}

#[derive(Debug, Clone, PartialEq)]
enum ConditionTest {
    Equals(Value),
    NotEquals(Value),
    /// A text that has this one in it, a list that has this element, an object that has this field.
    Contains(Value),
    Above(Number),
    Below(Number),
    /// Whether there is a value; `null` is none.
    Exists(bool),
}

impl StepCondition {
    /// Reads `{"value": REFERENCE, TEST: …}`. `resolve` finds the value of a reference.
    ///
    /// # Errors
    ///
    /// If it is something else, or `resolve` refuses its reference.
    pub(super) fn parse(
        condition: &Value,
        resolve: impl FnOnce(&str) -> Result<ValueRef, String>,
    ) -> Result<Self, String> {
        let expected = "a condition of `when` is an object with `value`, a reference, and one of `equals`, \
                        `not_equals`, `contains`, `above`, `below` and `exists`";
        let fields = condition.as_object().ok_or(expected)?;
        let reference = fields.get("value").and_then(Value::as_str).ok_or(expected)?;
        let mut tests = fields.iter().filter(|(name, _)| *name != "value");
        let (Some((name, test)), None) = (tests.next(), tests.next()) else { return Err(expected.to_owned()) };
        let number = || test.as_number().cloned().ok_or_else(|| format!("`{name}` of `when` is a number"));
        let test = match name.as_str() {
            "equals" => ConditionTest::Equals(test.clone()),
            "not_equals" => ConditionTest::NotEquals(test.clone()),
            "contains" => ConditionTest::Contains(test.clone()),
            "above" => ConditionTest::Above(number()?),
            "below" => ConditionTest::Below(number()?),
            "exists" => ConditionTest::Exists(test.as_bool().ok_or("`exists` of `when` is true or false")?),
            _ => return Err(expected.to_owned()),
        };
        Ok(Self { value: resolve(reference)?, test })
    }

    /// Whether little has to be looked at.
    pub(super) fn is_small(&self, values: StepValues<'_>) -> bool {
        values.find(&self.value).map_or(true, is_small)
    }

    /// Checks whether the condition is met; returns the reason if not.
    ///
    /// # Errors
    ///
    /// If it is not met.
    pub(super) fn check(&self, values: StepValues<'_>) -> Result<(), String> {
        let found = values.find(&self.value).ok();
        let value = found.filter(|value| !value.is_null());
        let is_met = match (&self.test, value) {
            (ConditionTest::Exists(exists), value) => value.is_some() == *exists,
            (ConditionTest::Equals(other), Some(value)) => is_same(value, other),
            (ConditionTest::Equals(other), None) => other.is_null() && found.is_some(),
            (ConditionTest::NotEquals(other), Some(value)) => !is_same(value, other),
            (ConditionTest::Contains(part), Some(value)) => contains(value, part),
            (ConditionTest::Above(bound), Some(value)) => compared(value, bound) == Some(Ordering::Greater),
            (ConditionTest::Below(bound), Some(value)) => compared(value, bound) == Some(Ordering::Less),
            (_, None) => false,
        };
        if is_met { Ok(()) } else { Err(format!("its condition on `{}` is not met", shown(&self.value.text))) }
    }
}

/// Whether two values are the same; of numbers, whatever their form.
fn is_same(one: &Value, other: &Value) -> bool {
    one == other || other.as_number().is_some_and(|other| compared(one, other) == Some(Ordering::Equal))
}

/// Compares a value with a number; integers exactly, because 64 bits are more than `f64` has for them.
fn compared(value: &Value, other: &Number) -> Option<Ordering> {
    let number = value.as_number()?;
    match number.as_i128().zip(other.as_i128()) {
        Some((one, other)) => Some(one.cmp(&other)),
        None => number.as_f64()?.partial_cmp(&other.as_f64()?),
    }
}

fn contains(value: &Value, part: &Value) -> bool {
    match (value, part) {
        (Value::String(text), Value::String(part)) => text.contains(part.as_str()),
        (Value::Array(elements), part) => elements.iter().any(|element| is_same(element, part)),
        (Value::Object(fields), Value::String(name)) => fields.contains_key(name),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::pipeline::template::ValueOrigin;

    fn condition(condition: &Value) -> Result<StepCondition, String> {
        let resolve = |text: &str| {
            let (pointer, text) = (text.trim_start_matches('a').to_owned(), text.to_owned());
            Ok(ValueRef { origin: ValueOrigin::Step(0), pointer, text })
        };
        StepCondition::parse(condition, resolve)
    }

    #[test]
    fn each_test_is_met_by_its_values() {
        let ids = [9_007_199_254_740_992_u64, 9_007_199_254_740_993];
        let value = Arc::new(json!({
            "n": 5, "text": "all good", "list": ["x", 1], "null": null, "no": false,
            "id": ids[0], "next": ids[1], "ids": [ids[0]],
        }));
        for (value_ref, test, expected, is_met) in [
            ("a/n", "equals", json!(5.0), true),
            ("a/n", "equals", json!("5"), false),
            ("a/n", "not_equals", json!(4), true),
            ("a/x", "not_equals", json!(4), false),
            ("a/null", "equals", json!(null), true),
            ("a/x", "equals", json!(null), false),
            ("a/null", "exists", json!(false), true),
            ("a/no", "exists", json!(true), true),
            ("a/x", "exists", json!(false), true),
            ("a/text", "contains", json!("good"), true),
            ("a/text", "contains", json!(1), false),
            ("a/list", "contains", json!(1), true),
            ("a", "contains", json!("list"), true),
            ("a/n", "above", json!(4.5), true),
            ("a/n", "below", json!(5), false),
            ("a/text", "above", json!(0), false),
            ("a/id", "equals", json!(ids[1]), false),
            ("a/id", "equals", json!(ids[0]), true),
            ("a/ids", "contains", json!(ids[1]), false),
            ("a/next", "above", json!(ids[0]), true),
            ("a/id", "below", json!(ids[1]), true),
            ("a/id", "below", json!(u64::MAX), true),
            ("a/n", "above", json!(-1), true),
        ] {
            let condition = condition(&json!({"value": value_ref, test: expected})).unwrap();
            let checked = condition.check(StepValues { steps: &[Some(value.clone())], item: None });
            assert_eq!(checked.is_ok(), is_met, "{value_ref} {test} {expected}");
        }
        let exists = condition(&json!({"value": "a", "exists": false})).unwrap();
        assert_eq!(exists.check(StepValues { steps: &[None], item: None }), Ok(()));
        let unmet = condition(&json!({"value": "a/n", "below": 1})).unwrap();
        let unmet = unmet.check(StepValues { steps: &[Some(value)], item: None });
        assert_eq!(unmet.unwrap_err(), "its condition on `a/n` is not met");
    }

    #[test]
    fn an_invalid_condition_is_refused() {
        for refused in [
            json!(1),
            json!({"value": "a"}),
            json!({"equals": 1}),
            json!({"value": "a", "equals": 1, "above": 1}),
            json!({"value": "a", "above": "1"}),
            json!({"value": "a", "exists": 1}),
            json!({"value": "a", "matches": ".*"}),
            json!({"value": ["a"], "equals": 1}),
        ] {
            assert!(condition(&refused).is_err(), "{refused}");
        }
    }
}
