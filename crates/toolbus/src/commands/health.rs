//! `toolbus health`: is the daemon of this configuration ready?

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};

use super::Context;
use crate::http::admin::client::{ProbeError, probe};
use crate::terminal::OutputFormat;

/// Longest wait for the response.
const PATIENCE: Duration = Duration::from_secs(3);

/// Asks the daemon that listens on http.listen whether it is ready: exit code 0 when it is, 1 when it is not.
#[derive(Debug, clap::Args)]
pub struct HealthArgs {
    /// Ask whether the process is alive, not whether it could answer a call.
    #[arg(long)]
    live: bool,
}

/// Probes the daemon.
///
/// # Errors
///
/// If no daemon responds.
pub async fn run(args: HealthArgs, context: &Context) -> Result<ExitCode, ProbeError> {
    let path = if args.live { "/livez" } else { "/readyz" };
    let (status, body) = probe(context.config.http.listen, path, PATIENCE).await?;
    // A health check reads the exit code; the text is for people. Only that of /livez is no JSON.
    let text = body.trim_end();
    let shown = match context.output {
        OutputFormat::Json if serde_json::from_str::<Value>(text).is_err() => json!({"status": text}).to_string(),
        _ => text.to_owned(),
    };
    let _ = writeln!(anstream::stdout(), "{shown}");
    Ok(ExitCode::from(u8::from(status != 200)))
}
