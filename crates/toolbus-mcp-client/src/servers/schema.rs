//! Whether a server's schema can be trusted with arguments.
//!
//! Schemas come from outside and are run on every call, so all that makes one costly is bounded before it is compiled.

mod branching;
mod graph;
mod identity;
mod keywords;
#[cfg(test)]
mod tests;

use std::io::{self, Write};

use serde_json::{Map, Value};
use toolbus_core::SchemaError;
use toolbus_core::tool::Validation;

use self::graph::Graph;
pub(crate) use self::identity::without_identities;

/// Longest schema, in bytes of compact JSON.
const MAX_SIZE: usize = 64 * 1024;
/// Most values within values.
const MAX_DEPTH: usize = 64;
/// Most values.
const MAX_VALUES: usize = 10_000;
/// Most references.
const MAX_REFERENCES: usize = 256;
/// Most patterns.
const MAX_PATTERNS: usize = 64;
/// Most schemas that apply to one value, each counted as often as it is reached.
const MAX_EXPANDED: usize = 1000;

/// Reason why a schema cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SchemaProblem {
    #[error("its schema has more than {} KiB", MAX_SIZE / 1024)]
    Size,
    #[error("its schema is nested more than {MAX_DEPTH} levels deep")]
    Depth,
    #[error("its schema has more than {MAX_VALUES} values")]
    Values,
    #[error("its schema is not one of objects: `type` must be \"object\"")]
    Type,
    #[error("its schema has more than {MAX_REFERENCES} references")]
    References,
    #[error("its schema has more than {MAX_PATTERNS} patterns")]
    Patterns,
    #[error("its schema refers to `{0}`, which is not within it")]
    Elsewhere(String),
    #[error("its schema refers to `{0}`, where there is no schema")]
    Nowhere(String),
    #[error("its schema has two anchors `{0}`")]
    Anchor(String),
    #[error("its schema has a part with a `{0}` of its own, which would change what references mean")]
    Identity(&'static str),
    #[error("its schema applies itself to the same value without end")]
    Endless,
    #[error("its schema applies more than {MAX_EXPANDED} schemas to one value")]
    Expanded,
    #[error("its schema repeats itself more than once for one value within another; each level would double the work")]
    Branching,
    #[error("its schema is not usable: {0}")]
    Unusable(#[from] SchemaError),
}

/// Checks a schema. What passes compiles without fetching anything, and validates in time that grows with the arguments
/// and not faster. With [`Validation::Off`] nothing is ever validated, so that only its size counts.
pub(crate) fn check(schema: &Map<String, Value>, validation: Validation) -> Result<(), SchemaProblem> {
    let mut values = 0;
    schema.values().try_for_each(|value| count(value, 2, &mut values))?;
    serde_json::to_writer(SizeLimit(MAX_SIZE), schema).map_err(|_| SchemaProblem::Size)?;
    if validation == Validation::Off {
        return Ok(());
    }
    if schema.get("type").is_some_and(|kind| kind != "object") {
        return Err(SchemaProblem::Type);
    }
    let document = Value::Object(schema.clone());
    let graph = Graph::read(&document)?;
    branching::check(&graph)?;
    Ok(toolbus_core::check_schema(&document)?)
}

fn count(value: &Value, depth: usize, values: &mut usize) -> Result<(), SchemaProblem> {
    if depth > MAX_DEPTH {
        return Err(SchemaProblem::Depth);
    }
    *values += 1;
    if *values > MAX_VALUES {
        return Err(SchemaProblem::Values);
    }
    match value {
        Value::Array(items) => items.iter().try_for_each(|item| count(item, depth + 1, values)),
        Value::Object(fields) => fields.values().try_for_each(|field| count(field, depth + 1, values)),
        _ => Ok(()),
    }
}

/// Takes as many bytes as it has room for, and keeps none.
struct SizeLimit(usize);

impl Write for SizeLimit {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
