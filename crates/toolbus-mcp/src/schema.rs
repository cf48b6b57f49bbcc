//! Whether a server's schema can be trusted with arguments.

use serde_json::{Map, Value};
use toolbus_core::tool::Validation;

/// Why a schema cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SchemaProblem {
    /// The validator does not take it.
    #[error("its schema is not usable: {0}")]
    Unusable(#[from] toolbus_core::SchemaError),
}

/// Checks a schema, as far as `validation` needs it.
pub(crate) fn check(schema: &Map<String, Value>, validation: Validation) -> Result<(), SchemaProblem> {
    if validation == Validation::Off {
        return Ok(());
    }
    toolbus_core::check_schema(&Value::Object(schema.clone()))?;
    Ok(())
}
