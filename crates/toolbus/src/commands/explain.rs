//! `toolbus explain`: whether a call would be run, and the gate that refuses it.

use std::io::{self, Write};
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use serde_json::value::to_raw_value;
use toolbus_core::StepName;
use toolbus_protocol::Code;

use super::arguments;
use super::target::{Operator, RoleArgs, TargetArgs, TargetError};
use super::{as_json, one_line, plain};
use crate::http::admin::view::{Explained, GateResult, Question};
use crate::terminal::OutputFormat;
use crate::terminal::ignore_broken_pipe;

/// Walks the gates of a call without making it, and shows the first that refuses.
///
/// The exit code is 0 when the call would pass, 1 when it would be refused, 2 for a mistake in the command, 7 when no
/// daemon answers. Nothing is spent: neither a token of a rate limit nor a place to run.
#[derive(Debug, clap::Args)]
pub struct ExplainArgs {
    /// Name of the agent; `default` for one without a section in the configuration.
    agent: String,
    /// Name of the tool.
    tool: String,
    /// The arguments, as `toolbus call` takes them: one JSON object, `-`, or `key=value` pairs.
    arguments: Vec<String>,
    #[command(flatten)]
    role: RoleArgs,
    /// The agent's session.
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    #[command(flatten)]
    target: TargetArgs,
}

/// Sends the request, and prints the gates.
///
/// # Errors
///
/// If the daemon does not respond or refuses, or standard output is closed.
pub async fn run(args: ExplainArgs, operator: &Operator) -> Result<ExitCode, TargetError> {
    let words = args.arguments;
    let arguments = arguments::parse(&words).map_err(|error| TargetError::Usage(error.to_string()))?;
    let question = Question {
        agent: args.agent,
        tool: args.tool,
        arguments: arguments.and_then(|fields| to_raw_value(&fields).ok()),
        binding: args.role.binding,
        profile: args.role.profile,
        session: args.session,
    };
    let explained = args.target.open(operator).await?.explain(&question).await?;
    let printed = match operator.output {
        OutputFormat::Json => writeln!(io::stdout(), "{}", as_json(&explained)),
        OutputFormat::Table => writeln!(anstream::stdout(), "{}", gates(&explained)),
    };
    ignore_broken_pipe(printed)?;
    let refuses_arguments = |gate: &GateResult| !gate.passes && gate.step == StepName::Arguments.as_str();
    if operator.output == OutputFormat::Table
        && let Some(gate) = explained.steps.iter().find(|gate| refuses_arguments(gate))
        && let Some(hint) = arguments::hint(&words, Code::InvalidArguments, &gate.text)
    {
        ignore_broken_pipe(writeln!(io::stderr(), "hint: {hint}"))?;
    }
    Ok(ExitCode::from(u8::from(!explained.passes)))
}

fn gates(explained: &Explained) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    for gate in &explained.steps {
        table.add_row([if gate.passes { "pass" } else { "refuse" }, &one_line(&gate.step), &one_line(&gate.text)]);
    }
    let refusing: Option<&GateResult> = explained.steps.iter().find(|gate| !gate.passes);
    let (colour, verdict) = match refusing {
        Some(gate) => (AnsiColor::Red.on_default(), refusal(gate)),
        None => (Style::new(), "would be run".to_owned()),
    };
    format!("{}\n\n{colour}{verdict}{colour:#}", plain(&table))
}

/// Which gate refuses, and the message for the caller if that differs.
fn refusal(gate: &GateResult) -> String {
    let step = one_line(&gate.step);
    match &gate.told {
        Some(text) if *text != gate.text => format!("refused at {step}; the caller is told: {}", one_line(text)),
        _ => format!("refused at {step}"),
    }
}
