//! `toolbus tools`: the tools that the configuration registers.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use serde_json::{Value, json};
use toolbus_core::caller::AgentName;
use toolbus_core::tool::{Effect, ToolDescriptor};

use super::target::of_files;
use super::{Context, one_line, plain, warn};
use crate::assembly::{self, AssemblyError};
use crate::cli::Output;
use crate::config::{Config, HumanDuration, Sources};
use crate::http::admin::AdminError;
use crate::http::admin::view::Role;
use crate::printed::unless_gone;

/// Longest description in the table, in characters; `--output json` has it whole.
const MAX_DESCRIPTION: usize = 60;

/// Lists the tools that the configuration registers; with --as, those of them that this agent gets.
///
/// Nothing is connected to. What the agent gets of a running daemon is told by `toolbus agents NAME`.
#[derive(Debug, Default, clap::Args)]
pub struct ToolsArgs {
    /// The agent; `default` for one without a section in the configuration.
    #[arg(long = "as", value_name = "AGENT", value_parser = AgentName::parse)]
    agent: Option<AgentName>,
    /// The agent's binding.
    #[arg(long, value_name = "CHANNEL:ACCOUNT", requires = "agent")]
    binding: Option<String>,
    /// The profile that the request names.
    #[arg(long, value_name = "NAME", requires = "agent")]
    profile: Option<String>,
}

/// Why there is no list.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// The configuration cannot be put into practice.
    #[error(transparent)]
    Assembly(#[from] AssemblyError),
    /// The agent cannot be asked about.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// Nothing can be printed.
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}

/// Prints the list.
///
/// # Errors
///
/// When a tool cannot be made or registered, or nothing can be printed.
pub fn run(args: &ToolsArgs, context: &Context) -> Result<ExitCode, ListError> {
    let rows = args.rows(&context.config, &context.sources)?;
    let text = match context.output {
        Output::Json => format!("{:#}", Value::Array(rows.iter().map(|row| as_json(row)).collect())),
        Output::Table => table(&rows),
    };
    unless_gone(writeln!(io::stdout(), "{text}"))?;
    Ok(ExitCode::SUCCESS)
}

impl ToolsArgs {
    /// What is known of every tool, sorted by name.
    fn rows(&self, config: &Config, sources: &Sources) -> Result<Vec<Arc<ToolDescriptor>>, ListError> {
        let Some(agent) = &self.agent else {
            return Ok(assembly::registry(config)?.snapshot().list());
        };
        let role = Role { binding: self.binding.clone(), profile: self.profile.clone(), session: None };
        let effective = of_files(config, sources)?.effective(agent.as_str(), &role)?;
        if let Some(nothing) = effective.nothing() {
            warn(&format!("{agent} has no tools. {nothing}"));
        }
        let shown = effective.tools().into_iter().map(|granted| {
            let mut tool = ToolDescriptor::clone(&granted.tool.descriptor);
            tool.parameters = effective.definition(granted).parameters;
            Arc::new(tool)
        });
        Ok(shown.collect())
    }
}

fn table(rows: &[Arc<ToolDescriptor>]) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["NAME", "SOURCE", "EFFECT", "TIMEOUT", "AT A TIME", "DESCRIPTION"]);
    for tool in rows {
        let timeout = tool.timeout.map_or_else(|| "-".to_owned(), in_words);
        let at_a_time = tool.max_in_flight.map_or_else(|| "-".to_owned(), |calls| calls.to_string());
        let description = one_line(&shortened(&tool.description));
        table.add_row([
            &one_line(&tool.name),
            &one_line(&tool.source),
            effect(tool.effect),
            &timeout,
            &at_a_time,
            &description,
        ]);
    }
    plain(&table)
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
        insta::assert_snapshot!(table(&ToolsArgs::default().rows(&config, &Sources::default()).unwrap()), @r#"
        NAME          SOURCE  EFFECT     TIMEOUT  AT A TIME  DESCRIPTION
        convert_time  time    read-only  5s       2          Converts a local date and time from one time zone to another…
        current_time  time    read-only  5s       2          The present date and time in a time zone, as JSON with `date…
        echo          echo    read-only  -        -          Answers with the given text, unchanged.
        "#);
    }

    #[test]
    fn the_list_for_programs_has_schemas_and_limits() {
        let config = Config::default();
        let rows = ToolsArgs::default().rows(&config, &Sources::default()).unwrap();
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
