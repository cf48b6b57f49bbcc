//! Values of earlier steps in the arguments of a step: references and templates, which run no code.

use std::io::{self, Write};
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};
use toolbus_core::text::shown;

/// Begins a reference in a string.
const OPEN: &str = "{{";
/// Ends it.
const CLOSE: &str = "}}";

/// Origin at which a reference begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueOrigin {
    /// The value of the step of this number.
    Step(usize),
    /// The element that the step is called for.
    Item,
}

/// A location in a value: `step`, or `step/json/pointer`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ValueRef {
    pub(super) origin: ValueOrigin,
    /// A JSON pointer; empty: all of the value.
    pub(super) pointer: String,
    /// As it is written.
    pub(super) text: String,
}

/// Arguments with references in them.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ValueTemplate {
    /// Without references: a number, `true`, a string.
    Fixed(Value),
    /// A string that is one reference: the value itself replaces it, whatever its type is.
    Ref(ValueRef),
    /// A string with references in it.
    Text(Vec<TextPart>),
    List(Vec<Self>),
    Object(Vec<(String, Self)>),
}

/// A part of a string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TextPart {
    Fixed(String),
    Ref(ValueRef),
}

/// The values that references find.
#[derive(Clone, Copy)]
pub(super) struct StepValues<'a> {
    /// Values of steps, by number; `None` for a step without one.
    pub(super) steps: &'a [Option<Arc<Value>>],
    /// The element that the step is called for.
    pub(super) item: Option<&'a Value>,
}

/// Reason why arguments cannot be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RenderError {
    /// The step of this reference has no value.
    NoValue(String),
    /// The pointer of this reference finds nothing.
    NotFound(String),
    /// The arguments are larger than this many bytes.
    TooLarge(usize),
}

impl<'a> StepValues<'a> {
    /// The value that a reference means.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub(super) fn find(&self, reference: &ValueRef) -> Result<&'a Value, RenderError> {
        let value = match reference.origin {
            ValueOrigin::Step(number) => self.steps.get(number).and_then(Option::as_deref),
            ValueOrigin::Item => self.item,
        };
        let value = value.ok_or_else(|| RenderError::NoValue(shown(&reference.text)))?;
        value.pointer(&reference.pointer).ok_or_else(|| RenderError::NotFound(shown(&reference.text)))
    }
}

impl ValueTemplate {
    /// Reads arguments. `resolve` finds the value of a reference.
    ///
    /// # Errors
    ///
    /// If a reference has no end, or `resolve` refuses it.
    pub(super) fn parse(
        value: &Value,
        resolve: &mut impl FnMut(&str) -> Result<ValueRef, String>,
    ) -> Result<Self, String> {
        match value {
            Value::String(text) => Self::parse_text(text, resolve),
            Value::Array(elements) => {
                let elements = elements.iter().map(|element| Self::parse(element, resolve));
                Ok(Self::List(elements.collect::<Result<_, _>>()?))
            }
            Value::Object(fields) => Self::parse_object(fields, resolve),
            scalar => Ok(Self::Fixed(scalar.clone())),
        }
    }

    /// Reads an object of arguments.
    ///
    /// # Errors
    ///
    /// See [`Self::parse`].
    pub(super) fn parse_object(
        fields: &Map<String, Value>,
        resolve: &mut impl FnMut(&str) -> Result<ValueRef, String>,
    ) -> Result<Self, String> {
        let fields = fields.iter().map(|(name, value)| Ok((name.clone(), Self::parse(value, resolve)?)));
        Ok(Self::Object(fields.collect::<Result<_, String>>()?))
    }

    fn parse_text(text: &str, resolve: &mut impl FnMut(&str) -> Result<ValueRef, String>) -> Result<Self, String> {
        let mut parts = Vec::new();
        let (mut fixed, mut rest) = (String::new(), text);
        while let Some((before, after)) = rest.split_once(OPEN) {
            fixed.push_str(before);
            // Twice: the braces themselves.
            if let Some(after) = after.strip_prefix(OPEN) {
                fixed.push_str(OPEN);
                rest = after;
                continue;
            }
            let Some((reference, after)) = after.split_once(CLOSE) else {
                return Err(format!("`{OPEN}{}` has no `{CLOSE}`: write `{OPEN}{OPEN}` for the braces", shown(after)));
            };
            if !fixed.is_empty() {
                parts.push(TextPart::Fixed(std::mem::take(&mut fixed)));
            }
            parts.push(TextPart::Ref(resolve(reference.trim())?));
            rest = after;
        }
        fixed.push_str(rest);
        if parts.is_empty() {
            return Ok(Self::Fixed(Value::String(fixed)));
        }
        if !fixed.is_empty() {
            parts.push(TextPart::Fixed(fixed));
        }
        Ok(match <[TextPart; 1]>::try_from(parts) {
            Ok([TextPart::Ref(reference)]) => Self::Ref(reference),
            Ok(parts) => Self::Text(parts.into()),
            Err(parts) => Self::Text(parts),
        })
    }

    /// Writes the arguments as JSON of at most `max` bytes.
    ///
    /// # Errors
    ///
    /// If a value is not there, or they are larger.
    pub(super) fn render(&self, values: StepValues<'_>, max: usize) -> Result<String, RenderError> {
        let mut json = BoundedJson { bytes: Vec::new(), max };
        self.write(values, &mut json)?;
        Ok(json.into_text())
    }

    fn write(&self, values: StepValues<'_>, json: &mut BoundedJson) -> Result<(), RenderError> {
        match self {
            Self::Fixed(value) => json.value(value),
            Self::Ref(reference) => json.value(values.find(reference)?),
            Self::Text(parts) => {
                let mut text = BoundedJson { bytes: Vec::new(), max: json.max };
                for part in parts {
                    match part {
                        TextPart::Fixed(fixed) => text.raw(fixed)?,
                        TextPart::Ref(reference) => match values.find(reference)? {
                            Value::String(value) => text.raw(value)?,
                            value => text.value(value)?,
                        },
                    }
                }
                json.value(&text.into_text())
            }
            Self::List(elements) => {
                json.raw("[")?;
                for (number, element) in elements.iter().enumerate() {
                    json.raw(if number > 0 { "," } else { "" })?;
                    element.write(values, json)?;
                }
                json.raw("]")
            }
            Self::Object(fields) => {
                json.raw("{")?;
                for (number, (name, value)) in fields.iter().enumerate() {
                    json.raw(if number > 0 { "," } else { "" })?;
                    json.value(name)?;
                    json.raw(":")?;
                    value.write(values, json)?;
                }
                json.raw("}")
            }
        }
    }
}

/// JSON that is written up to a size: a few references can name a large value often.
struct BoundedJson {
    bytes: Vec<u8>,
    max: usize,
}

impl BoundedJson {
    fn into_text(self) -> String {
        // Only texts and JSON are written, which are UTF-8.
        String::from_utf8(self.bytes).unwrap_or_default()
    }

    fn value(&mut self, value: &impl Serialize) -> Result<(), RenderError> {
        let max = self.max;
        serde_json::to_writer(self, value).map_err(|_| RenderError::TooLarge(max))
    }

    fn raw(&mut self, text: &str) -> Result<(), RenderError> {
        self.write_all(text.as_bytes()).map_err(|_| RenderError::TooLarge(self.max))
    }
}

impl Write for BoundedJson {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.max.saturating_sub(self.bytes.len()) {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// References to the only step, and to the element.
    fn resolve(text: &str) -> Result<ValueRef, String> {
        let (head, pointer) = text.split_at(text.find('/').unwrap_or(text.len()));
        let origin = match head {
            "a" => ValueOrigin::Step(0),
            "item" => ValueOrigin::Item,
            other => return Err(format!("no {other}")),
        };
        Ok(ValueRef { origin, pointer: pointer.to_owned(), text: text.to_owned() })
    }

    fn render(template: &Value, value: Option<Value>, max: usize) -> Result<String, RenderError> {
        let template = ValueTemplate::parse(template, &mut resolve).unwrap();
        template.render(StepValues { steps: &[value.map(Arc::new)], item: Some(&json!(7)) }, max)
    }

    #[test]
    fn a_reference_alone_becomes_the_value_and_in_a_longer_string_text() {
        let value = json!({"name": "An\"a", "list": [1, {"x": null}], "a/b": true});
        for (template, expected) in [
            (json!({"v": "{{a/list}}"}), r#"{"v":[1,{"x":null}]}"#),
            (json!({"v": "{{ a/name }}"}), r#"{"v":"An\"a"}"#),
            (json!({"v": "Hello {{a/name}}, {{a/list/1}}{{item}}!"}), r#"{"v":"Hello An\"a, {\"x\":null}7!"}"#),
            (json!({"v": ["{{a/a~1b}}", "x", {"y": "{{item}}"}]}), r#"{"v":[true,"x",{"y":7}]}"#),
            (json!({"v": "{{{{a}} and }}"}), r#"{"v":"{{a}} and }}"}"#),
            (json!({"{{a}}": 1, "x": ["{"]}), r#"{"x":["{"],"{{a}}":1}"#),
            (json!({}), "{}"),
        ] {
            assert_eq!(render(&template, Some(value.clone()), 1000).as_deref(), Ok(expected), "{template}");
        }
    }

    #[test]
    fn a_value_is_never_read_as_a_reference() {
        let value = json!("{{item}}");
        assert_eq!(render(&json!(["{{a}}", "-{{a}}"]), Some(value), 100).unwrap(), r#"["{{item}}","-{{item}}"]"#);
    }

    #[test]
    fn a_missing_or_too_large_value_is_refused() {
        let of = |template: Value, value| render(&template, value, 30);
        assert_eq!(of(json!("{{a/x}}"), None), Err(RenderError::NoValue("a/x".to_owned())));
        assert_eq!(of(json!("{{a/x}}"), Some(json!([1]))), Err(RenderError::NotFound("a/x".to_owned())));
        let long = json!("x".repeat(20));
        for template in [json!(["{{a}}", "{{a}}"]), json!("{{a}}{{a}}"), json!({"k": "{{a}}", "l": "{{a}}"})] {
            assert_eq!(of(template, Some(long.clone())), Err(RenderError::TooLarge(30)));
        }
    }

    #[test]
    fn a_reference_without_an_end_is_refused() {
        let refused = ValueTemplate::parse(&json!({"v": "x {{a"}), &mut resolve).unwrap_err();
        assert_eq!(refused, "`{{a` has no `}}`: write `{{{{` for the braces");
        assert_eq!(ValueTemplate::parse(&json!(["{{}}"]), &mut resolve).unwrap_err(), "no ");
    }
}
