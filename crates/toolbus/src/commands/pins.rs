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
    /// What is pinned is printed. With --digest, it must be what `toolbus pins diff` showed.
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
    /// The digest that `toolbus pins diff` showed, or its first 8 digits or more: anything else is refused.
    #[arg(long, value_parser = Shown::parse)]
    digest: Option<Shown>,
}

/// The beginning of a digest, as somebody copied it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Shown(String);

impl Shown {
    fn parse(text: &str) -> Result<Self, &'static str> {
        let digits = text.strip_prefix("sha256:").unwrap_or(text).to_ascii_lowercase();
        let is_digest = (8..=64).contains(&digits.len()) && digits.bytes().all(|c| c.is_ascii_hexdigit());
        if is_digest { Ok(Self(digits)) } else { Err("expected 8 to 64 hexadecimal digits") }
    }

    fn is(&self, digest: Digest) -> bool {
        digest.to_string().strip_prefix("sha256:").is_some_and(|digits| digits.starts_with(&self.0))
    }
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
    let changes = target.pin_changes(&name, source.as_deref()).await?;
    if digest.is_some_and(|shown| !shown.is(changes.digest)) {
        let text = format!(
            "`{name}` is not what --digest says: it changed again, or something else was shown; look at `toolbus pins \
             diff {name}` once more"
        );
        return Err(TargetError::Usage(text));
    }
    let approved = target.approve_pin(&name, Approval { source, digest: changes.digest }).await?;
    if changes.more > 0 {
        warn(&format!("{} more tools were approved than are shown", changes.more));
    }
    Ok(if is_json { as_json(&approved) } else { show::approved(&changes, &approved) })
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
    use super::*;

    #[test]
    fn a_digest_may_be_shortened_and_written_in_either_case() {
        let digest: Digest = format!("sha256:{}", "0a".repeat(32)).parse().unwrap();
        for text in ["0a0a0a0a", "sha256:0A0A0A0A0a", &digest.to_string()] {
            assert!(Shown::parse(text).unwrap().is(digest), "{text}");
        }
        assert!(!Shown::parse("0b0a0a0a").unwrap().is(digest));
        for text in ["", "0a0a0a0", "0a0a0a0g", &"0".repeat(65)] {
            assert!(Shown::parse(text).is_err(), "{text}");
        }
    }
}
