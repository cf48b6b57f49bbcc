//! Example arguments, made from the schema of a tool.

use std::cell::Cell;

use serde_json::{Map, Value, json};

/// Deepest nesting that an example follows; references may lead in a circle.
const MAX_DEPTH: usize = 8;
/// Most values of an example, with the schemas on the way to them. Beyond, arguments are `null` and their fields left
/// out.
const MAX_VALUES: usize = 200;
/// Longest value that is taken from the schema itself, such as a default, in bytes.
const MAX_GIVEN: usize = 1024;
/// Most items of a list that are made up for `minItems`.
const MAX_ITEMS: u64 = 4;
/// Most characters that are made up for `minLength`.
const MAX_LENGTH: u64 = 64;

/// The required arguments of a schema; where it requires none, its first one.
pub(crate) fn example_arguments(schema: Option<&Value>) -> Map<String, Value> {
    let Some(root) = schema else { return Map::new() };
    let example = Example { root, left: Cell::new(MAX_VALUES) };
    let fields = example.object(root, 0);
    if !fields.is_empty() {
        return fields;
    }
    let first = properties(root).next().map(|(key, schema)| (key.clone(), example.value(schema, 0)));
    first.into_iter().collect()
}

fn properties(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema.get("properties").and_then(Value::as_object).into_iter().flatten()
}

/// Makes values from the parts of one schema.
struct Example<'a> {
    root: &'a Value,
    /// Values that may still be made.
    left: Cell<usize>,
}

impl Example<'_> {
    /// Counts a value that is made; false when there are enough.
    fn take(&self) -> bool {
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        left > 0
    }

    /// The required fields of an object.
    fn object(&self, schema: &Value, depth: usize) -> Map<String, Value> {
        let required = schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        let field = |key: &str| {
            let known = schema.get("properties").and_then(|properties| properties.get(key));
            let value = match known {
                Some(schema) => self.value(schema, depth + 1),
                None if self.take() => json!("text"),
                None => Value::Null,
            };
            (key.to_owned(), value)
        };
        required.take_while(|_| depth == 0 || self.left.get() > 0).map(field).collect()
    }

    /// A value that the schema is likely to accept.
    fn value(&self, schema: &Value, depth: usize) -> Value {
        if !self.take() || depth > MAX_DEPTH {
            return Value::Null;
        }
        let first_of = |key: &str| schema.get(key).and_then(Value::as_array).and_then(|values| values.first());
        let given =
            [schema.get("const"), first_of("examples"), schema.get("example"), schema.get("default"), first_of("enum")];
        if let Some(given) = given.into_iter().flatten().find(|given| given.to_string().len() <= MAX_GIVEN) {
            return given.clone();
        }
        let referred = schema.get("$ref").and_then(Value::as_str);
        let referred = referred.and_then(|it| self.root.pointer(it.strip_prefix('#')?));
        if let Some(inner) =
            referred.or_else(|| first_of("anyOf")).or_else(|| first_of("oneOf")).or_else(|| first_of("allOf"))
        {
            return self.value(inner, depth + 1);
        }
        let kind = schema.get("type").and_then(|kind| kind.as_str().or_else(|| kind.as_array()?.first()?.as_str()));
        match kind {
            Some("integer" | "number") => number(schema),
            Some("boolean") => Value::Bool(true),
            Some("null") => Value::Null,
            Some("array") => {
                let count = schema.get("minItems").and_then(Value::as_u64).unwrap_or(1).clamp(1, MAX_ITEMS);
                let items = schema.get("items");
                (0..count).map(|_| items.map_or_else(|| json!("text"), |items| self.value(items, depth + 1))).collect()
            }
            Some("object") => Value::Object(self.object(schema, depth)),
            None if schema.get("properties").is_some() => Value::Object(self.object(schema, depth)),
            _ => Value::String(text(schema)),
        }
    }
}

fn number(schema: &Value) -> Value {
    let bound = |key: &str| schema.get(key).filter(|bound| bound.is_number());
    let above = bound("exclusiveMinimum").and_then(Value::as_i64).map(|least| json!(least.saturating_add(1)));
    let most = bound("maximum").filter(|most| most.as_f64().is_some_and(|most| most < 1.0));
    above.or_else(|| bound("minimum").cloned()).or_else(|| most.cloned()).unwrap_or_else(|| json!(1))
}

fn text(schema: &Value) -> String {
    let of_format = match schema.get("format").and_then(Value::as_str) {
        Some("date") => "2026-01-31",
        Some("date-time") => "2026-01-31T12:00:00Z",
        Some("time") => "12:00:00Z",
        Some("duration") => "PT1H",
        Some("email") => "ana@example.com",
        Some("hostname") => "example.com",
        Some("ipv4") => "192.0.2.1",
        Some("ipv6") => "2001:db8::1",
        Some("uri" | "url") => "https://example.com/",
        Some("uuid") => "123e4567-e89b-12d3-a456-426614174000",
        _ => "text",
    };
    let length = |key: &str| schema.get(key).and_then(Value::as_u64).map(|length| length.min(MAX_LENGTH));
    let least = length("minLength").and_then(|least| usize::try_from(least).ok()).unwrap_or(0);
    let mut text = format!("{of_format:x<least$}");
    if let Some(most) = length("maxLength").and_then(|most| usize::try_from(most).ok()) {
        text.truncate(most);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_example_fits_the_schema_that_it_was_made_from() {
        let schemas = [
            json!({"type": "object"}),
            json!({"properties": {"city": {"type": "string", "minLength": 9}, "days": {"type": "integer", "minimum": 3}},
                   "required": ["city", "days"]}),
            json!({"properties": {"a": {"type": "string", "format": "date"}, "b": {"type": ["number", "null"], "exclusiveMinimum": 7},
                   "c": {"type": "string", "enum": ["it's", "y"]}, "d": {"type": "boolean"}, "e": {"type": "string", "const": "5"}},
                   "required": ["a", "b", "c", "d", "e"]}),
            json!({"properties": {"to": {"$ref": "#/$defs/people"}}, "required": ["to"], "$defs": {
                   "people": {"type": "array", "minItems": 2, "items": {"$ref": "#/$defs/person"}},
                   "person": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 2}}, "required": ["name"]}}}),
            json!({"properties": {"when": {"anyOf": [{"type": "integer", "maximum": -4}, {"type": "null"}]}}, "required": ["when"]}),
            json!({"properties": {"only": {"type": "string", "default": "@home"}}}),
        ];
        for schema in schemas {
            let made = Value::Object(example_arguments(Some(&schema)));
            assert!(jsonschema::is_valid(&schema, &made), "{schema}: {made}");
        }
    }
}
