//! `toolbus tools`: the tools of the running daemon, or of its configuration.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use serde::Serialize;
use serde_json::{Map, Value};
use toolbus_core::caller::AgentName;

use super::target::{Operator, RoleArgs, TargetArgs, TargetError};
use super::{as_json, one_line, plain, shell_word, warn};
use crate::config::HumanDuration;
use crate::example::example_arguments;
use crate::http::admin::view::{ToolDetails, ToolsFound, ToolsQuery};
use crate::terminal::OutputFormat;
use crate::terminal::{ignore_broken_pipe, printable};

/// Longest description in the table, in characters; `toolbus tools NAME` has it whole.
const MAX_DESCRIPTION: usize = 60;

/// Lists the tools; with a name, all that is known of that tool, and an example of a call.
///
/// The answer is that of the daemon that runs the configuration. Where none runs, and with --offline, it is what the
/// configuration registers, without the tools of MCP servers.
#[derive(Debug, Default, clap::Args)]
pub struct ToolsArgs {
    /// Name of a tool.
    name: Option<String>,
    /// Only tools that this agent may use, as it is shown them; `default` for one without a section in the configuration.
    #[arg(long = "as", value_name = "AGENT", value_parser = AgentName::parse)]
    agent: Option<AgentName>,
    #[command(flatten)]
    role: RoleArgs,
    #[command(flatten)]
    target: TargetArgs,
}

/// All that is known of a tool, with arguments of a call.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Exemplified<'a> {
    #[serde(flatten)]
    tool: &'a ToolDetails,
    example_arguments: Map<String, Value>,
}

/// Prints the list.
///
/// # Errors
///
/// If there is no response or no such tool, or nothing can be printed.
pub async fn run(args: ToolsArgs, operator: &Operator) -> Result<ExitCode, TargetError> {
    let RoleArgs { binding, profile } = args.role;
    if args.agent.is_none() && (binding.is_some() || profile.is_some()) {
        return Err(TargetError::Usage("--binding and --profile need --as AGENT".to_owned()));
    }
    let agent = args.agent.map(|agent| agent.to_string());
    let query = ToolsQuery { name: args.name, agent, binding, profile };
    let ToolsFound { nothing, tools } = args.target.open_always(operator).await?.tools(&query).await?;
    if let Some(nothing) = nothing {
        warn(&format!("{} has no tools. {nothing}", query.agent.as_deref().unwrap_or_default()));
    }
    let text = match (operator.output, &query.name, tools.as_slice()) {
        (OutputFormat::Json, None, tools) => as_json(&tools),
        (OutputFormat::Json, Some(_), tools) => {
            let example = |tool: &ToolDetails| example_arguments(tool.parameters.as_ref());
            as_json(&tools.first().map(|tool| Exemplified { tool, example_arguments: example(tool) }))
        }
        (OutputFormat::Table, Some(_), [tool, ..]) => in_full(tool),
        (OutputFormat::Table, _, tools) => table(tools),
    };
    ignore_broken_pipe(writeln!(io::stdout(), "{text}"))?;
    Ok(ExitCode::SUCCESS)
}

fn table(tools: &[ToolDetails]) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["NAME", "SOURCE", "EFFECT", "TIMEOUT", "AT A TIME", "DESCRIPTION"]);
    for tool in tools {
        let description = match &tool.unavailable {
            Some(reason) => format!("({}) {}", shortened(reason), shortened(&tool.description)),
            None => shortened(&tool.description),
        };
        table.add_row([
            &one_line(&tool.name),
            &one_line(&tool.source),
            &one_line(&tool.effect),
            &timeout(tool),
            &at_a_time(tool),
            &one_line(&description),
        ]);
    }
    plain(&table)
}

/// All that is known of a tool.
fn in_full(tool: &ToolDetails) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    let state = tool.unavailable.as_deref().map_or_else(|| "can be called".to_owned(), one_line);
    let rows = [
        ("tool", one_line(&tool.name)),
        ("source", one_line(&tool.source)),
        ("effect", one_line(&tool.effect)),
        ("timeout", timeout(tool)),
        ("at a time", at_a_time(tool)),
        ("state", state),
    ];
    for (name, value) in rows {
        table.add_row([name, &value]);
    }
    let schema = tool.parameters.as_ref().map_or_else(|| "any object".to_owned(), |schema| format!("{schema:#}"));
    let parts = [
        plain(&table),
        printable(tool.description.trim_end()).into_owned(),
        format!("Arguments:\n{}", printable(&schema)),
        format!("Example:\n  {}", printable(&example_command(&tool.name, tool.parameters.as_ref()))),
    ];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n\n")
}

/// The beginning of a text: one line of the table.
fn shortened(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    match line.char_indices().nth(MAX_DESCRIPTION) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default().trim_end()),
        None => line.to_owned(),
    }
}

fn timeout(tool: &ToolDetails) -> String {
    let in_words =
        |timeout| HumanDuration::try_from(timeout).map_or_else(|_| format!("{timeout:?}"), |it| it.to_string());
    tool.timeout_ms.map_or_else(|| "-".to_owned(), |ms| in_words(Duration::from_millis(ms)))
}

fn at_a_time(tool: &ToolDetails) -> String {
    tool.max_in_flight.map_or_else(|| "-".to_owned(), |calls| calls.to_string())
}

/// The command that makes the call.
fn example_command(name: &str, schema: Option<&Value>) -> String {
    let pairs = example_arguments(schema).into_iter().map(|(key, value)| shell_word(&pair(&key, &value)));
    [shell_word(name)].into_iter().chain(pairs).fold("toolbus call".to_owned(), |line, word| format!("{line} {word}"))
}

/// An argument as `toolbus call` takes it: as text where that is taken for the value, else as JSON.
fn pair(key: &str, value: &Value) -> String {
    match value {
        Value::String(text) if !text.starts_with('@') && serde_json::from_str::<Value>(text).is_err() => {
            format!("{key}={text}")
        }
        value => format!("{key}:={value}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use toolbus_core::pattern::Pattern;

    use super::*;
    use crate::commands::arguments::parse;
    use crate::commands::target::of_files;
    use crate::config::{Config, Sources};

    fn all(config: &Config) -> Vec<ToolDetails> {
        of_files(config, &Sources::default()).unwrap().tools(&ToolsQuery::default()).unwrap().tools
    }

    #[test]
    fn the_table_names_every_tool_with_its_limits() {
        let mut config = Config::default();
        config.tools.echo = true;
        config.tools.limits.insert(
            Pattern::parse("*_time").unwrap(),
            crate::config::ToolLimits { timeout: Some(HumanDuration::from_secs(5)), max_in_flight: Some(2) },
        );
        insta::assert_snapshot!(table(&all(&config)), @r#"
        NAME          SOURCE  EFFECT     TIMEOUT  AT A TIME  DESCRIPTION
        convert_time  time    read-only  5s       2          Converts a local date and time from one time zone to another…
        current_time  time    read-only  5s       2          The present date and time in a time zone, as JSON with `date…
        echo          echo    read-only  -        -          Answers with the given text, unchanged.
        "#);
    }

    #[test]
    fn a_tool_is_shown_with_its_schema_and_a_call_that_can_be_copied() {
        let tool = ToolDetails {
            name: "send".to_owned(),
            description: "Sends\u{1b}[2J a text.\nTwice.".to_owned(),
            source: "rest".to_owned(),
            provider: "rest".to_owned(),
            effect: "effectful".to_owned(),
            timeout_ms: Some(1500),
            max_in_flight: None,
            unavailable: Some("quarantined: it is suspect".to_owned()),
            parameters: Some(json!({"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]})),
        };
        insta::assert_snapshot!(in_full(&tool), @r#"
        tool       send
        source     rest
        effect     effectful
        timeout    1500ms
        at a time  -
        state      quarantined: it is suspect

        Sends\u{1b}[2J a text.
        Twice.

        Arguments:
        {
          "properties": {
            "to": {
              "type": "string"
            }
          },
          "required": [
            "to"
          ],
          "type": "object"
        }

        Example:
          toolbus call send to=text
        "#);
        insta::assert_snapshot!(table(&[tool]), @r#"
        NAME  SOURCE  EFFECT     TIMEOUT  AT A TIME  DESCRIPTION
        send  rest    effectful  1500ms   -          (quarantined: it is suspect) Sends\u{1b}[2J a text.
        "#);
    }

    #[test]
    fn the_list_for_programs_has_schemas_and_limits() {
        let first = json!(all(&Config::default()).first().unwrap());
        assert_eq!((&first["name"], &first["parameters"]["type"]), (&json!("convert_time"), &json!("object")));
        assert_eq!(first["timeoutMs"], Value::Null);
    }

    #[test]
    fn a_long_description_is_shortened() {
        assert_eq!(shortened("short\nmore"), "short");
        assert_eq!(shortened(&"é".repeat(MAX_DESCRIPTION + 1)), format!("{}…", "é".repeat(MAX_DESCRIPTION)));
    }

    #[test]
    fn a_schema_that_refers_to_itself_comes_to_an_end() {
        let schema = json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}},
                            "properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"]});
        assert_eq!(example_command("t", Some(&schema)), "toolbus call t a:=null");
    }

    #[test]
    fn a_schema_that_requires_without_end_gets_a_short_example() {
        let names: Vec<String> = (0..240).map(|n| format!("m{n}")).collect();
        let fields: Map<String, Value> = names.iter().map(|n| (n.clone(), json!({"$ref": "#/$defs/a"}))).collect();
        let object = json!({"type": "object", "properties": fields, "required": names});
        let lists = json!({"type": "array", "minItems": 4, "items": {"$ref": "#/$defs/a"}});
        let long = json!({"default": {"of": ["x".repeat(45_000)]}, "type": "null"});
        for (properties, inner) in [(&fields, &object), (&fields, &lists), (&fields, &long)] {
            let schema = json!({"properties": properties, "required": names, "$defs": {"a": inner}});
            let line = example_command("t", Some(&schema));
            assert!(line.len() < 20_000, "{} bytes", line.len());
            assert!(line.contains("m0:=") && line.contains(" m239:=null"), "{line}");
        }
    }

    #[test]
    fn the_command_is_read_as_the_arguments_that_were_meant() {
        let schema = json!({"properties": {
            "city": {"const": "Bogotá d'ici"}, "zip": {"const": "0123"}, "n": {"const": "5"}, "at": {"const": "@ana"},
            "days": {"const": [1, 2]}, "empty": {"const": ""}
        }, "required": ["city", "zip", "n", "at", "days", "empty"]});
        let line = example_command("get weather", Some(&schema));
        let output =
            std::process::Command::new("sh").arg("-c").arg(line.replacen("toolbus call", "printf '%s\\n'", 1)).output();
        let printed = String::from_utf8(output.unwrap().stdout).unwrap();
        let words: Vec<String> = printed.lines().map(str::to_owned).collect();
        let (name, words) = words.split_first().unwrap();
        assert_eq!(name, "get weather");
        assert_eq!(parse(words).unwrap().unwrap(), example_arguments(Some(&schema)));
    }
}
