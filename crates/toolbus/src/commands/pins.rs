//! `toolbus pins`: which tools are not as they were pinned, how they changed, and letting them through.

mod show;

use std::io::{self, BufRead, IsTerminal as _, Read as _, Write};
use std::process::ExitCode;

use axum::http::Method;
use toolbus_trust::pins::Digest;

use super::target::{Operator, Target, TargetArgs, TargetError, escaped};
use super::{as_json, one_line, warn};
use crate::cli::Output;
use crate::http::admin::view::{Approval, Approved, Changes, PinnedTools};
use crate::terminal::ignore_broken_pipe;

/// Shows which tools are not as they were pinned, how they changed, and lets them through.
///
/// Without a command it lists every tool that is pinned, what needs a look first. Where no daemon runs the
/// configuration, and with --offline, the pin file alone is looked at and changed.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct PinsArgs {
    #[command(subcommand)]
    command: Option<PinsCommand>,
    /// Only tools of this source, such as `rest` or `mcp:files`; of an MCP server its name will do.
    #[arg(long)]
    source: Option<String>,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, clap::Subcommand)]
enum PinsCommand {
    /// Show how a tool, or every tool of a source, changed since it was pinned
    Diff(NamedArgs),
    /// Pin a tool, or a whole source, as it is now, so that it is no longer quarantined
    ///
    /// Shows what changed, and asks. With --digest, it must be what `toolbus pins diff` showed, and is neither shown again nor
    /// asked for; with --yes, it is shown and not asked for.
    Approve(ApproveArgs),
}

#[derive(Debug, clap::Args)]
struct NamedArgs {
    /// Name of a tool or of a source.
    name: String,
    /// The source that has the tool; of an MCP server its name will do.
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
    /// Approve whatever there is, without a question.
    #[arg(long, short = 'y', conflicts_with = "digest")]
    yes: bool,
}

/// Longest answer to a question, in bytes.
const MAX_ANSWER: u64 = 64;

/// Asks, and prints the answer.
///
/// # Errors
///
/// When there is no answer, or nothing can be printed.
pub async fn run(args: PinsArgs, operator: &Operator) -> Result<ExitCode, TargetError> {
    let is_json = operator.output == Output::Json;
    let text = match args.command {
        None => {
            let all = args.target.open(operator).await?.pins(args.source.as_deref()).await?;
            if is_json { as_json(&all) } else { show::table(&all) }
        }
        Some(PinsCommand::Diff(NamedArgs { name, source, target })) => {
            let changes = target.open(operator).await?.pin_changes(&name, source.as_deref()).await?;
            if is_json { as_json(&changes) } else { show::differences(&changes) }
        }
        Some(PinsCommand::Approve(args)) => approve(args, operator, is_json).await?,
    };
    ignore_broken_pipe(writeln!(io::stdout(), "{text}"))?;
    Ok(ExitCode::SUCCESS)
}

async fn approve(args: ApproveArgs, operator: &Operator, is_json: bool) -> Result<String, TargetError> {
    let ApproveArgs { named: NamedArgs { name, source, target }, digest, yes } = args;
    let target = target.open(operator).await?;
    // What was looked at before is not looked at again: it is for the daemon to say whether it is still the same.
    let digest = match digest {
        Some(digest) => digest,
        None => {
            let changes = target.pin_changes(&name, source.as_deref()).await?;
            let shown = show::changed(&changes);
            if shown.is_open {
                // Standard output has nothing but JSON where that was asked for.
                ignore_broken_pipe(match is_json {
                    true => writeln!(io::stderr(), "{}\n", shown.text),
                    false => writeln!(io::stdout(), "{}\n", shown.text),
                })?;
            }
            if yes && changes.more > 0 {
                warn(&format!("{} more tools are approved than are shown", changes.more));
            }
            if !yes && shown.is_open {
                if !shown.is_whole {
                    let text = format!("nothing was approved: {}; or give --yes", show::rest(&changes));
                    return Err(TargetError::Usage(text));
                }
                let is_terminal = io::stdin().is_terminal() && io::stderr().is_terminal();
                confirm(&name, is_terminal, &mut io::stdin().lock(), &mut io::stderr())?;
            }
            changes.digest
        }
    };
    let approved = target.approve_pin(&name, Approval { source, digest }).await?;
    Ok(if is_json { as_json(&approved) } else { show::approved(&approved) })
}

/// Asks whether what was shown is to be approved.
///
/// # Errors
///
/// If the answer is not yes, or there is no terminal to ask on.
fn confirm(
    name: &str,
    is_terminal: bool,
    input: &mut impl BufRead,
    output: &mut impl Write,
) -> Result<(), TargetError> {
    if !is_terminal {
        let name = one_line(name);
        return Err(TargetError::Usage(format!(
            "nothing was approved, because there is no terminal to ask on: look at `toolbus pins diff {name}` and give the \
             --digest that it ends with, or --yes to approve whatever there is"
        )));
    }
    write!(output, "Approve this? [y/N] ")?;
    output.flush()?;
    let mut answer = String::new();
    input.take(MAX_ANSWER).read_line(&mut answer)?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(TargetError::Usage("nothing was approved".to_owned())),
    }
}

impl Target {
    async fn pins(&self, source: Option<&str>) -> Result<PinnedTools, TargetError> {
        match self {
            Self::Daemon(client) => Ok(client.ask(Method::GET, &format!("/v1/pins{}", of(source))).await?),
            Self::Files(admin) => Ok(admin.pins(source)?),
        }
    }

    async fn pin_changes(&self, name: &str, source: Option<&str>) -> Result<Changes, TargetError> {
        match self {
            Self::Daemon(client) => {
                Ok(client.ask(Method::GET, &format!("/v1/pins/{}{}", escaped(name), of(source))).await?)
            }
            Self::Files(admin) => Ok(admin.pin_changes(name, source)?),
        }
    }

    async fn approve_pin(&self, name: &str, approval: Approval) -> Result<Approved, TargetError> {
        match self {
            Self::Daemon(client) => Ok(client.post(&format!("/v1/pins/{}/approve", escaped(name)), &approval).await?),
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
    fn only_a_yes_on_a_terminal_is_one() {
        let asked = |is_terminal: bool, answer: &str| {
            let mut question = Vec::new();
            let result = confirm("read", is_terminal, &mut answer.as_bytes(), &mut question);
            (result.err().map(|error| error.to_string()), String::from_utf8(question).unwrap())
        };
        let question = "Approve this? [y/N] ".to_owned();
        for answer in ["y\n", "Yes\n", "YES", " y \n"] {
            assert_eq!(asked(true, answer), (None, question.clone()), "{answer:?}");
        }
        let long = format!("{}y\n", " ".repeat(100));
        for answer in ["\n", "", "n\n", "yess\n", "no y\n", &long] {
            assert_eq!(asked(true, answer), (Some("nothing was approved".to_owned()), question.clone()), "{answer:?}");
        }
        let (refused, question) = asked(false, "y\n");
        assert_eq!(question, "");
        insta::assert_snapshot!(refused.unwrap(), @"nothing was approved, because there is no terminal to ask on: look at `toolbus pins diff read` and give the --digest that it ends with, or --yes to approve whatever there is");
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
