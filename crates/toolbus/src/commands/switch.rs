//! `toolbus disable` and `toolbus enable`: switches of the running daemon.

use std::io::{self, Write};
use std::process::ExitCode;

use axum::http::Method;
use clap::ValueEnum;

use super::target::{DaemonArgs, Operator, TargetError, escaped};
use super::{as_json, one_line, warn};
use crate::http::admin::view::Switching;
use crate::terminal::OutputFormat;
use crate::terminal::ignore_broken_pipe;

/// Switches a tool, an agent or all tools of a source off or on, at once and without a restart.
///
/// The daemon keeps it in its store: with `store.url = "memory:"`, until it ends. `toolbus agents` and `toolbus explain`
/// show what is off.
#[derive(Debug, clap::Args)]
pub struct SwitchArgs {
    /// Kind of thing to switch.
    kind: SwitchKind,
    /// Name of the tool, agent or source.
    name: String,
    #[command(flatten)]
    daemon: DaemonArgs,
}

/// Things that can be switched off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SwitchKind {
    /// Tools, by the name that they are called by or the one that their MCP server or tool set knows them by.
    Tool,
    /// One agent: it sees and calls nothing. `default` is every agent without a section.
    Agent,
    /// Every tool of one source.
    Source,
}

impl SwitchKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Tool => "tool",
            Self::Agent => "agent",
            Self::Source => "source",
        }
    }
}

/// Switches, and prints what changed.
///
/// # Errors
///
/// If the daemon does not respond or refuses, or standard output is closed.
pub async fn run(args: SwitchArgs, off: bool, operator: &Operator) -> Result<ExitCode, TargetError> {
    let path = format!("/v1/disabled/{}/{}", args.kind.name(), escaped(&args.name));
    let method = if off { Method::PUT } else { Method::DELETE };
    let switching: Switching = args.daemon.open(operator).await?.send(method, &path).await?;
    let text = match operator.output {
        OutputFormat::Json => as_json(&switching),
        OutputFormat::Table => in_words(&switching),
    };
    ignore_broken_pipe(writeln!(io::stdout(), "{text}"))?;
    if off && !switching.known {
        warn(&format!("there is no {} of this name now", args.kind.name()));
    }
    Ok(ExitCode::SUCCESS)
}

fn in_words(switching: &Switching) -> String {
    let name = one_line(&format!("{} {}", switching.kind, switching.name));
    match (switching.disabled, switching.changed) {
        (true, true) => format!("{name} is switched off"),
        (true, false) => format!("{name} was switched off already"),
        (false, true) => format!("{name} is switched on again"),
        (false, false) => format!("{name} was not switched off"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_of_a_switch_is_reported() {
        let words = |disabled, changed| {
            in_words(&Switching { kind: "tool".into(), name: "web\n".into(), disabled, changed, known: true })
        };
        assert_eq!(words(true, true), "tool web  is switched off");
        assert_eq!(words(true, false), "tool web  was switched off already");
        assert_eq!(words(false, true), "tool web  is switched on again");
        assert_eq!(words(false, false), "tool web  was not switched off");
    }
}
