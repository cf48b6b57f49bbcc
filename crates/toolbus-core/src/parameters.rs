//! The JSON Schema of a tool's arguments, as a configuration gives it, and the placeholders that arguments fill.

use std::sync::Arc;

use serde_json::{Map, Value};
use toolbus_protocol::{ParseError, parse_object};

use crate::gates::arguments::{SchemaError, check_schema};

/// The JSON Schema of a tool's arguments: one of objects, which can be compiled.
#[derive(Debug, Clone, Default)]
pub struct Parameters(Option<Map<String, Value>>);

/// Reason why a schema cannot be that of arguments.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParametersError {
    /// The schema is no JSON object.
    #[error("`parameters` must be a JSON Schema object: {0}")]
    Json(#[from] ParseError),
    /// The schema is not one of objects.
    #[error("`parameters` must have `\"type\": \"object\"`: arguments are an object")]
    Type,
    /// The schema cannot be compiled.
    #[error("`parameters` is not a usable JSON Schema: {0}")]
    Schema(#[from] SchemaError),
}

impl Parameters {
    /// Reads a schema; `None` admits any object, and has no property.
    ///
    /// # Errors
    ///
    /// If `text` is no JSON Schema of objects.
    pub fn parse(text: Option<&str>) -> Result<Self, ParametersError> {
        let Some(text) = text else { return Ok(Self(None)) };
        let schema = parse_object(text.as_bytes())?;
        if schema.get("type").is_none_or(|kind| kind != "object") {
            return Err(ParametersError::Type);
        }
        let schema = Value::Object(schema);
        check_schema(&schema)?;
        match schema {
            Value::Object(fields) => Ok(Self(Some(fields))),
            _ => Err(ParametersError::Type),
        }
    }

    /// The schema of the property `name`, which the placeholder `{name}` needs.
    #[must_use]
    pub fn property(&self, name: &str) -> Option<&Value> {
        self.properties()?.get(name)
    }

    /// The names of the properties.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.properties().into_iter().flat_map(Map::keys)
    }

    /// The schema, for a [`ToolDescriptor`](crate::tool::ToolDescriptor).
    #[must_use]
    pub fn into_schema(self) -> Option<Arc<Value>> {
        self.0.map(|schema| Arc::new(Value::Object(schema)))
    }

    fn properties(&self) -> Option<&Map<String, Value>> {
        self.0.as_ref()?.get("properties")?.as_object()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Parameters, ParametersError> {
        Parameters::parse(Some(text))
    }

    #[test]
    fn a_schema_of_objects_has_its_properties() {
        let parameters = parse(r#"{"type": "object", "properties": {"city": {"type": "string"}}}"#).unwrap();
        assert_eq!(parameters.names().collect::<Vec<_>>(), ["city"]);
        assert!(parameters.property("city").is_some() && parameters.property("zip").is_none());
        assert_eq!(parameters.into_schema().unwrap()["type"], "object");
        let any = Parameters::parse(None).unwrap();
        assert!(any.names().next().is_none() && any.into_schema().is_none());
    }

    #[test]
    fn another_schema_is_refused() {
        assert!(matches!(parse("[]"), Err(ParametersError::Json(_))));
        for text in ["{}", r#"{"type": "string"}"#, r#"{"type": ["object", "null"]}"#] {
            assert_eq!(parse(text).unwrap_err(), ParametersError::Type, "{text}");
        }
        assert!(matches!(parse(r#"{"type": "object", "required": 1}"#), Err(ParametersError::Schema(_))));
    }
}
