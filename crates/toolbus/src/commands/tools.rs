//! `toolbus tools`: the tools that the configuration registers.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use serde_json::{Value, json};
use toolbus_core::registry::{Registry, RegistryError};
use toolbus_core::tool::{Effect, ToolDescriptor};

use super::{Context, plain};
use crate::cli::Output;
use crate::config::{Config, HumanDuration, ToolsError};
use crate::printed::unless_gone;

/// Longest description in the table, in characters; `--output json` has it whole.
const MAX_DESCRIPTION: usize = 60;

/// Why there is no list.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// A tool cannot be made.
    #[error(transparent)]
    Tools(#[from] ToolsError),
    /// A tool cannot be registered.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// Nothing can be printed.
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}

/// Prints the list.
///
/// # Errors
///
/// When a tool cannot be made or registered, or nothing can be printed.
pub fn run(context: &Context) -> Result<ExitCode, ListError> {
    let text = match context.output {
        Output::Json => format!("{:#}", Value::Array(rows(&context.config)?.iter().map(|row| as_json(row)).collect())),
        Output::Table => table(&context.config)?,
    };
    unless_gone(writeln!(io::stdout(), "{text}"))?;
    Ok(ExitCode::SUCCESS)
}

/// What is known of every tool, sorted by name.
fn rows(config: &Config) -> Result<Vec<Arc<ToolDescriptor>>, ListError> {
    let registry = Registry::new();
    for tool in config.tools()? {
        registry.register(tool)?;
    }
    Ok(registry.snapshot().list())
}

fn table(config: &Config) -> Result<String, ListError> {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["NAME", "SOURCE", "EFFECT", "TIMEOUT", "AT A TIME", "DESCRIPTION"]);
    for tool in rows(config)? {
        let timeout = tool.timeout.map_or_else(|| "-".to_owned(), in_words);
        let at_a_time = tool.max_in_flight.map_or_else(|| "-".to_owned(), |calls| calls.to_string());
        let description = shortened(&tool.description);
        table.add_row([&*tool.name, &tool.source, effect(tool.effect), &timeout, &at_a_time, &description]);
    }
    Ok(plain(&table))
}

/// The beginning of a description: one line of the table.
fn shortened(description: &str) -> String {
    let line = description.lines().next().unwrap_or_default();
    match line.char_indices().nth(MAX_DESCRIPTION) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default().trim_end()),
        None => line.to_owned(),
    }
}

fn in_words(timeout: Duration) -> String {
    HumanDuration::try_from(timeout).map_or_else(|_| format!("{timeout:?}"), |timeout| timeout.to_string())
}

const fn effect(effect: Effect) -> &'static str {
    match effect {
        Effect::ReadOnly => "read-only",
        Effect::Idempotent => "idempotent",
        Effect::Effectful => "effectful",
        Effect::Undeclared => "undeclared",
    }
}

fn as_json(tool: &ToolDescriptor) -> Value {
    json!({
        "name": &*tool.name,
        "description": tool.description,
        "source": &*tool.source,
        "provider": tool.provider,
        "effect": effect(tool.effect),
        "timeoutMs": tool.timeout.map(|timeout| timeout.as_millis() as u64),
        "maxInFlight": tool.max_in_flight,
        "parameters": tool.parameters.as_deref(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_names_every_tool_with_its_limits() {
        let mut config = Config::default();
        config.tools.echo = true;
        config.tools.limits.insert(
            crate::config::ToolPattern::parse("*_time").unwrap(),
            crate::config::ToolLimits { timeout: Some(HumanDuration::from_secs(5)), max_in_flight: Some(2) },
        );
        insta::assert_snapshot!(table(&config).unwrap(), @r#"
        NAME          SOURCE  EFFECT     TIMEOUT  AT A TIME  DESCRIPTION
        convert_time  time    read-only  5s       2          Converts a local date and time from one time zone to another…
        current_time  time    read-only  5s       2          The present date and time in a time zone, as JSON with `date…
        echo          echo    read-only  -        -          Answers with the given text, unchanged.
        "#);
    }

    #[test]
    fn the_list_for_programs_has_schemas_and_limits() {
        let config = Config::default();
        let rows = rows(&config).unwrap();
        let first = as_json(rows.first().unwrap());
        assert_eq!((&first["name"], &first["parameters"]["type"]), (&json!("convert_time"), &json!("object")));
        assert_eq!(first["timeoutMs"], Value::Null);
    }

    #[test]
    fn a_long_description_is_shortened() {
        assert_eq!(shortened("short\nmore"), "short");
        assert_eq!(shortened(&"é".repeat(MAX_DESCRIPTION + 1)), format!("{}…", "é".repeat(MAX_DESCRIPTION)));
    }
}
