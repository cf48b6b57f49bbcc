//! `toolbus top`: a live view of calls, in the terminal.

use std::io::{self, IsTerminal as _, Write};
use std::process::ExitCode;
use std::time::Duration;

use axum::http::Method;
use toolbus_core::Clock;

use self::rates::Grouping;
use self::state::{DaemonState, State};
use super::as_json;
use super::target::{DaemonArgs, Operator, TargetError};
use crate::config::HumanDuration;
use crate::http::admin::client::{AdminClient, AdminClientError};
use crate::http::admin::view::{CallRates, DaemonStatus};
use crate::terminal::{OutputFormat, ignore_broken_pipe};

mod live;
mod rates;
mod state;
#[cfg(test)]
mod tests;
mod view;

/// Shortest interval: the daemon keeps its figures for as long.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// Longest interval.
const MAX_INTERVAL: Duration = Duration::from_secs(60);
/// Longest wait for a response.
const PATIENCE: Duration = Duration::from_secs(5);

/// Shows live which tools are called by whom, how often, how long they take and how many calls fail.
///
/// The figures are of the calls that ended in the last 10 s. Press `?` for the keys. Without a terminal, or with --once or
/// --output json, one table is printed after one interval. The daemon must have metrics: the key `http.metrics`.
#[derive(Debug, clap::Args)]
pub struct TopArgs {
    /// Time between two questions to the daemon, from `1s` to `60s`.
    #[arg(long, value_name = "TIME", default_value = "2s")]
    interval: HumanDuration,
    /// Grouping of the rows at first.
    #[arg(long, value_enum, default_value_t = Grouping::Tool)]
    by: Grouping,
    /// Print one table after one interval, and end.
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

/// Shows the calls until the operator quits.
///
/// # Errors
///
/// If the daemon does not respond at first or has no metrics, or the terminal cannot be used.
pub async fn run(args: TopArgs, operator: &Operator) -> Result<ExitCode, TargetError> {
    let interval = args.interval.get();
    if !(MIN_INTERVAL..=MAX_INTERVAL).contains(&interval) {
        return Err(TargetError::Usage("--interval is from 1s to 60s".to_owned()));
    }
    let client = args.daemon.open(operator).await?;
    let mut state = State::new(client.to_string(), args.by, Clock::SYSTEM);
    state.polled(Ok(poll(&client).await?));
    let has_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    if !args.once && has_terminal && operator.output == OutputFormat::Table {
        live::run(client, interval, state).await?;
        return Ok(ExitCode::SUCCESS);
    }
    tokio::time::sleep(interval).await;
    state.polled(Ok(poll(&client).await?));
    let text = match operator.output {
        OutputFormat::Json => as_json(&view::as_value(&state)),
        OutputFormat::Table => view::text(&state),
    };
    ignore_broken_pipe(writeln!(io::stdout(), "{text}"))?;
    Ok(ExitCode::SUCCESS)
}

async fn poll(client: &AdminClient) -> Result<(CallRates, DaemonState), AdminClientError> {
    let rates = client.send_within(PATIENCE, Method::GET, "/v1/rates");
    let status = client.send_within::<DaemonStatus>(PATIENCE, Method::GET, "/v1/status");
    let (rates, status) = tokio::try_join!(rates, status)?;
    Ok((rates, status.into()))
}
