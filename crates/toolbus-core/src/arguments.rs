//! Arguments: one parse into an object, valid against the tool's schema.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use jsonschema::{PatternOptions, Validator};
use lru::LruCache;
use serde_json::{Map, Value};
use toolbus_protocol::parse_object;

use crate::failure::{Cause, ToolFailure};
use crate::log::Throttle;
use crate::policy::Forced;
use crate::tool::{Schema, Tool, Validation};

/// Most violations that are told.
const MAX_VIOLATIONS: usize = 20;
/// Longest text about one violation, in characters.
const MAX_VIOLATION: usize = 200;
/// Compiled schemas that are kept.
const MAX_COMPILED: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

/// Largest compiled form of one pattern, in bytes: counted repetitions let a few characters grow to megabytes.
const MAX_PATTERN: usize = 2 * 1024 * 1024;

/// Why a schema cannot be used. Compiling never fetches anything: a reference to elsewhere is an error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SchemaError(String);

/// Checks arguments, compiling each schema at its first use. Equal schemas share one compiled form.
pub(crate) struct Arguments {
    compiled: Mutex<LruCache<[u8; 16], Arc<Validator>>>,
    warned: Throttle,
}

impl Arguments {
    pub(crate) fn new() -> Self {
        Self { compiled: Mutex::new(LruCache::new(MAX_COMPILED)), warned: Throttle::default() }
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
        let text = text.map_or("", str::trim);
        let mut members = if text.is_empty() {
            Map::new()
        } else {
            parse_object(text.as_bytes()).map_err(|error| invalid(format!("The arguments are not usable: {error}.")))?
        };
        for (argument, value) in forced.into_iter().flat_map(|forced| &forced.0) {
            // Refused and not replaced: the tool would do something else than its caller asked for.
            if members.insert(argument.clone(), value.clone()).is_some() {
                return Err(invalid(format!("The argument `{argument}` is set by the operator. Leave it out.")));
            }
        }
        match (&tool.schema, tool.descriptor.validation) {
            (None, _) | (_, Validation::Off) => Ok(members),
            (Some(schema), Validation::Enforce | Validation::Warn) => self.validate(tool, schema, members),
        }
    }

    fn validate(
        &self,
        tool: &Tool,
        schema: &Schema,
        members: Map<String, Value>,
    ) -> Result<Map<String, Value>, ToolFailure> {
        let validator = self.compiled(schema).map_err(|error| {
            let text = format!("Tool '{}' has a parameter schema that cannot be used.", tool.descriptor.name);
            ToolFailure::new(Cause::Failed, text).with_detail(error)
        })?;
        let value = Value::Object(members);
        if !validator.is_valid(&value) {
            let violations = violations(&validator, &value);
            if tool.descriptor.validation == Validation::Enforce {
                return Err(invalid(violations));
            }
            if let Some(left_out) = self.warned.due() {
                let tool = &*tool.descriptor.name;
                tracing::warn!(tool, violations, left_out, "ran a tool with arguments that its schema does not allow");
            }
        }
        match value {
            Value::Object(members) => Ok(members),
            _ => Ok(Map::new()),
        }
    }

    fn compiled(&self, schema: &Schema) -> Result<Arc<Validator>, SchemaError> {
        if let Some(validator) = self.lock().get(&schema.digest) {
            return Ok(Arc::clone(validator));
        }
        // Compiled outside the lock: a large schema must not hold up other tools. Twice does no harm.
        let validator = Arc::new(compile(&schema.value)?);
        self.lock().put(schema.digest, Arc::clone(&validator));
        Ok(validator)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, LruCache<[u8; 16], Arc<Validator>>> {
        self.compiled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks that a tool's schema can be used: valid JSON Schema, no reference to elsewhere, no pattern that would need
/// backtracking.
///
/// # Errors
///
/// When it cannot, saying where.
pub fn check_schema(schema: &Value) -> Result<(), SchemaError> {
    compile(schema).map(drop)
}

fn compile(schema: &Value) -> Result<Validator, SchemaError> {
    jsonschema::options()
        .offline()
        // Linear time: schemas and arguments are both somebody else's.
        .with_pattern_options(PatternOptions::regex().size_limit(MAX_PATTERN))
        .should_validate_formats(true)
        .build(schema)
        .map_err(|error| SchemaError(shortened(&format!("at `{}`: {error}", error.instance_path()))))
}

fn violations(validator: &Validator, value: &Value) -> String {
    let mut lines: Vec<String> = validator
        .iter_errors(value)
        .take(MAX_VIOLATIONS + 1)
        .map(|error| {
            let path = error.instance_path().to_string();
            let path = if path.is_empty() { "/" } else { &path };
            shortened(&format!("{path}: {}", error.masked()))
        })
        .collect();
    if lines.len() > MAX_VIOLATIONS {
        lines.truncate(MAX_VIOLATIONS);
        lines.push("… and more".to_owned());
    }
    format!("The arguments do not fit the tool's parameters: {}", lines.join("; "))
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_VIOLATION) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

fn invalid(message: String) -> ToolFailure {
    ToolFailure::new(Cause::InvalidArguments, message)
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use serde_json::json;

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
        let failure = Arguments::new().check(&tool(schema), Some(text), None).unwrap_err();
        assert_eq!(failure.cause, Cause::InvalidArguments);
        failure.message
    }

    #[test]
    fn absent_and_empty_arguments_are_an_empty_object() {
        for text in [None, Some(""), Some("  "), Some("{}")] {
            assert!(Arguments::new().check(&tool(json!({"type": "object"})), text, None).unwrap().is_empty());
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
    fn a_schema_that_refers_elsewhere_is_refused() {
        for reference in ["http://127.0.0.1:1/schema.json", "file:///etc/passwd"] {
            assert!(check_schema(&json!({"$ref": reference})).is_err(), "{reference}");
        }
    }

    #[test]
    fn a_pattern_that_would_need_backtracking_is_refused() {
        assert!(check_schema(&json!({"pattern": "(?=a)b"})).is_err());
    }

    #[test]
    fn a_pattern_that_grows_when_compiled_is_refused() {
        assert!(check_schema(&json!({"pattern": "^(.{1,1000}){1,20}$"})).is_err());
        assert!(check_schema(&json!({"pattern": "^.{1,1000}$"})).is_ok());
    }

    #[test]
    fn a_schema_that_refers_to_itself_ends() {
        let schema = json!({"type": "object", "properties": {"next": {"$ref": "#"}}});
        assert!(Arguments::new().check(&tool(schema), Some(r#"{"next": {"next": {}}}"#), None).is_ok());
        assert!(Arguments::new().check(&tool(json!({"$ref": "#"})), Some("{}"), None).is_ok());
    }

    #[test]
    fn equal_schemas_share_one_compiled_form() {
        let arguments = Arguments::new();
        for _ in 0..3 {
            arguments.check(&tool(json!({"type": "object"})), None, None).unwrap();
        }
        assert_eq!(arguments.lock().len(), 1);
    }
}
