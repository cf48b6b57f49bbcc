//! `toolbus breaker`: tools and MCP servers of the running daemon that get no calls because they failed again and again.

use std::io::{self, Write};
use std::process::ExitCode;

use axum::http::Method;
use comfy_table::Table;
use comfy_table::presets::NOTHING;

use super::target::{DaemonArgs, Operator, TargetError, escaped};
use super::{as_json, one_line, plain};
use crate::http::admin::view::{BreakerReset, OpenBreakers};
use crate::terminal::{OutputFormat, ignore_broken_pipe};

/// Shows which tools and MCP servers get no calls for now because they failed again and again, and lets calls through.
#[derive(Debug, clap::Args)]
pub struct BreakerArgs {
    #[command(subcommand)]
    action: BreakerAction,
}

#[derive(Debug, clap::Subcommand)]
enum BreakerAction {
    /// List the tools and servers that get no calls, with the time of the next trial
    List {
        #[command(flatten)]
        daemon: DaemonArgs,
    },
    /// Let calls through again, as if none had failed
    Reset {
        /// A tool, or a server as `mcp:NAME`.
        name: String,
        #[command(flatten)]
        daemon: DaemonArgs,
    },
}

/// Sends the request, and prints the response.
///
/// # Errors
///
/// If the daemon does not respond or refuses, or standard output is closed.
pub async fn run(args: BreakerArgs, operator: &Operator) -> Result<ExitCode, TargetError> {
    let is_json = operator.output == OutputFormat::Json;
    let text = match args.action {
        BreakerAction::List { daemon } => {
            let all: OpenBreakers = daemon.open(operator).await?.send(Method::GET, "/v1/breakers").await?;
            if is_json { as_json(&all) } else { listed(&all) }
        }
        BreakerAction::Reset { name, daemon } => {
            let path = format!("/v1/breakers/{}", escaped(&name));
            let reset: BreakerReset = daemon.open(operator).await?.send(Method::DELETE, &path).await?;
            if is_json { as_json(&reset) } else { in_words(&reset) }
        }
    };
    ignore_broken_pipe(writeln!(io::stdout(), "{text}"))?;
    Ok(ExitCode::SUCCESS)
}

fn listed(all: &OpenBreakers) -> String {
    if all.breakers.is_empty() {
        return "every tool and server gets its calls".to_owned();
    }
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["NAME", "FAILURES", "OPEN FOR", "NEXT TRIAL"]);
    for breaker in &all.breakers {
        let next = match (breaker.on_trial, breaker.next_trial_ms) {
            (true, _) => "under way".to_owned(),
            (false, 0) => "with the next call".to_owned(),
            (false, milliseconds) => format!("in {} s", milliseconds.div_ceil(1_000)),
        };
        let open = format!("{} s", breaker.open_ms / 1_000);
        table.add_row([one_line(&breaker.name), breaker.failures.to_string(), open, next]);
    }
    plain(&table)
}

fn in_words(reset: &BreakerReset) -> String {
    let name = one_line(&reset.name);
    if reset.was_open { format!("{name} gets calls again") } else { format!("{name} got its calls already") }
}

#[cfg(test)]
mod tests {
    use crate::http::OpenBreaker;

    use super::*;

    #[test]
    fn the_next_trial_is_shown() {
        let breaker = |name: &str, next_trial_ms, on_trial| OpenBreaker {
            name: name.to_owned(),
            failures: 5,
            open_ms: 61_900,
            next_trial_ms,
            on_trial,
        };
        let breakers = vec![breaker("mcp:files", 1_500, false), breaker("pay", 0, false), breaker("slow\n", 0, true)];
        insta::assert_snapshot!(listed(&OpenBreakers { breakers }), @"
        NAME       FAILURES  OPEN FOR  NEXT TRIAL
        mcp:files  5         61 s      in 2 s
        pay        5         61 s      with the next call
        slow       5         61 s      under way
        ");
        assert_eq!(listed(&OpenBreakers { breakers: Vec::new() }), "every tool and server gets its calls");
    }
}
