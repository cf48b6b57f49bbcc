//! `toolbus pins`: which tools are not as they were pinned, how they changed, and letting them through.

mod show;

use std::io::{self, Write};
use std::process::ExitCode;

use axum::http::Method;
use toolbus_trust::pins::Digest;

use super::target::{Operator, Target, TargetArgs, TargetError, escaped};
use super::{as_json, warn};
use crate::cli::Output;
use crate::http::admin::view::pins::{Approval, Approved, Changes, PinnedTools};
use crate::printed::unless_gone;

/// Shows which tools are not as they were pinned, how they changed, and lets them through.
///
/// Without a command it lists every tool that is pinned, what needs a look first. With --config, the pin file alone is
/// looked at and changed, for when no daemon runs.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct PinsArgs {
    #[command(subcommand)]
    command: Option<PinsCommand>,
    /// Only tools of this source, such as `rest` or `mcp:files`.
    #[arg(long)]
    source: Option<String>,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, clap::Subcommand)]
enum PinsCommand {
    /// Show how a tool, or every tool of a source, changed since it was pinned
    Diff(NamedArgs),
    /// Pin a tool, or a whole source, as it is now, so that it is no longer held back
    ///
    /// What is pinned is printed. With --digest, it must be what `toolbus pins diff` showed, and is not printed again.
    Approve(ApproveArgs),
}

#[derive(Debug, clap::Args)]
struct NamedArgs {
    /// Name of a tool or of a source.
    name: String,
    /// The source that has the tool.
    #[arg(long)]
    source: Option<String>,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, clap::Args)]
struct ApproveArgs {
    #[command(flatten)]
    named: NamedArgs,
    /// The digest that `toolbus pins diff` showed: anything else is refused.
    #[arg(long)]
    digest: Option<Digest>,
}

/// Asks, and prints the answer.
///
/// # Errors
///
/// When there is no answer, or nothing can be printed.
pub async fn run(args: PinsArgs, operator: &Operator) -> Result<ExitCode, TargetError> {
    let is_json = operator.output == Output::Json;
    let text = match args.command {
        None => {
            let all = args.target.open(operator)?.pins(args.source.as_deref()).await?;
            if is_json { as_json(&all) } else { show::table(&all) }
        }
        Some(PinsCommand::Diff(NamedArgs { name, source, target })) => {
            let changes = target.open(operator)?.pin_changes(&name, source.as_deref()).await?;
            if is_json { as_json(&changes) } else { show::differences(&changes) }
        }
        Some(PinsCommand::Approve(args)) => approve(args, operator, is_json).await?,
    };
    unless_gone(writeln!(io::stdout(), "{text}"))?;
    Ok(ExitCode::SUCCESS)
}

async fn approve(args: ApproveArgs, operator: &Operator, is_json: bool) -> Result<String, TargetError> {
    let ApproveArgs { named: NamedArgs { name, source, target }, digest } = args;
    let target = target.open(operator)?;
    // What was looked at before is not looked at again: it is for the daemon to say whether it is still the same.
    let (changes, digest) = match digest {
        Some(digest) => (None, digest),
        None => {
            let changes = target.pin_changes(&name, source.as_deref()).await?;
            let digest = changes.digest;
            (Some(changes), digest)
        }
    };
    let approved = target.approve_pin(&name, Approval { source, digest }).await?;
    if let Some(more) = changes.as_ref().map(|changes| changes.more).filter(|more| *more > 0) {
        warn(&format!("{more} more tools were approved than are shown"));
    }
    Ok(if is_json { as_json(&approved) } else { show::approved(changes.as_ref(), &approved) })
}

impl Target {
    async fn pins(&self, source: Option<&str>) -> Result<PinnedTools, TargetError> {
        match self {
            Self::Daemon(door) => Ok(door.ask(Method::GET, &format!("/v1/pins{}", of(source))).await?),
            Self::Files(admin) => Ok(admin.pins(source)?),
        }
    }

    async fn pin_changes(&self, name: &str, source: Option<&str>) -> Result<Changes, TargetError> {
        match self {
            Self::Daemon(door) => {
                Ok(door.ask(Method::GET, &format!("/v1/pins/{}{}", escaped(name), of(source))).await?)
            }
            Self::Files(admin) => Ok(admin.pin_changes(name, source)?),
        }
    }

    async fn approve_pin(&self, name: &str, approval: Approval) -> Result<Approved, TargetError> {
        match self {
            Self::Daemon(door) => Ok(door.post(&format!("/v1/pins/{}/approve", escaped(name)), &approval).await?),
            Self::Files(admin) => Ok(admin.approve_pin(name, approval).await?),
        }
    }
}

fn of(source: Option<&str>) -> String {
    source.map(|source| format!("?source={}", escaped(source))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command};

    use super::*;

    fn is_taken(digest: &str) -> bool {
        let command = PinsArgs::augment_args(Command::new("pins"));
        command.try_get_matches_from(["pins", "approve", "read", "--digest", digest]).is_ok()
    }

    #[test]
    fn a_digest_counts_as_a_whole() {
        let digest = format!("sha256:{}", "0a".repeat(32));
        assert!(is_taken(&digest));
        for part in ["0a0a0a0a0a0a0a0a", &digest[..23], &digest[..70], &digest[7..]] {
            assert!(!is_taken(part), "{part}");
        }
    }
}
