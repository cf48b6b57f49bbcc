//! Cleans, scans and pins the texts of tools and their servers before a model reads them.

pub mod pins;
pub mod scan;
pub mod schema;
pub mod text;

use std::sync::Arc;

use serde_json::Value;
use toolbus_core::tool::ToolDescriptor;

use crate::scan::Scanner;
use crate::text::{Cleaned, Removed};

/// Longest description, in bytes.
const MAX_DESCRIPTION: usize = 8 * 1024;
/// Longest title, in bytes.
const MAX_TITLE: usize = 256;

/// Cleans every text of a definition that is not compared with arguments, and sets its suspicions. Returns what was
/// removed.
pub fn vet(tool: &mut ToolDescriptor, scanner: &Scanner) -> Removed {
    let mut removed = Removed::default();
    tool.description = cleaned(&tool.description, MAX_DESCRIPTION, &mut removed);
    if let Some(title) = tool.title.take() {
        tool.title = Some(cleaned(&title, MAX_TITLE, &mut removed)).filter(|title| !title.is_empty());
    }
    for schema in [&mut tool.parameters, &mut tool.output_schema] {
        clean_schema(schema, &mut removed);
    }
    tool.suspicions = scanner.tool(tool, &removed);
    removed
}

fn cleaned(text: &str, limit: usize, all: &mut Removed) -> String {
    let Cleaned { text, removed } = text::clean(text, limit);
    all.add(&removed);
    text.into_owned()
}

fn clean_schema(schema: &mut Option<Arc<Value>>, removed: &mut Removed) {
    if let Some(schema) = schema {
        removed.add(&schema::clean(Arc::make_mut(schema)));
    }
}
