//! `toolbus pins`: which tools are not as they were pinned, how they changed, and letting them through.

use std::io::{self, BufRead, IsTerminal as _, Write};
use std::process::ExitCode;

use axum::http::Method;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use toolbus_trust::pins::{Digest, ToolState, Unified};

use super::target::{AdminTarget, Operator, TargetArgs, TargetError, escaped};
use super::{as_json, one_line, plain, warn};
use crate::http::admin::view::{Approval, Approved, Changed, Changes, Pinned, PinnedTools};
use crate::terminal::{OutputFormat, ignore_broken_pipe, is_yes};

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
    Diff(PinnedArgs),
    /// Pin a tool, or a whole source, as it is now, so that it is no longer quarantined
    ///
    /// Shows what changed, and asks. With --digest, it must be what `toolbus pins diff` showed, and is neither shown
    /// again nor asked for; with --yes, it is shown and not asked for.
    Approve(ApproveArgs),
}

#[derive(Debug, clap::Args)]
struct PinnedArgs {
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
    named: PinnedArgs,
    /// The digest that `toolbus pins diff` showed: anything else is refused.
    #[arg(long)]
    digest: Option<Digest>,
    /// Approve whatever there is, without a question.
    #[arg(long, short = 'y', conflicts_with = "digest")]
    yes: bool,
}

/// Sends the request, and prints the response.
///
/// # Errors
///
/// If the daemon does not respond or refuses, or standard output is closed.
pub async fn run(args: PinsArgs, operator: &Operator) -> Result<ExitCode, TargetError> {
    let is_json = operator.output == OutputFormat::Json;
    let text = match args.command {
        None => {
            let all = args.target.open(operator).await?.pins(args.source.as_deref()).await?;
            if is_json { as_json(&all) } else { table(&all) }
        }
        Some(PinsCommand::Diff(PinnedArgs { name, source, target })) => {
            let changes = target.open(operator).await?.pin_changes(&name, source.as_deref()).await?;
            if is_json { as_json(&changes) } else { differences(&changes) }
        }
        Some(PinsCommand::Approve(args)) => approve(args, operator, is_json).await?,
    };
    ignore_broken_pipe(writeln!(io::stdout(), "{text}"))?;
    Ok(ExitCode::SUCCESS)
}

async fn approve(args: ApproveArgs, operator: &Operator, is_json: bool) -> Result<String, TargetError> {
    let ApproveArgs { named: PinnedArgs { name, source, target }, digest, yes } = args;
    let target = target.open(operator).await?;
    // A given digest is not shown again: the daemon compares it with the current one.
    let digest = match digest {
        Some(digest) => digest,
        None => {
            let changes = target.pin_changes(&name, source.as_deref()).await?;
            let shown = shown_changes(&changes);
            if shown.is_open {
                // With `--output json`, standard output has nothing but JSON.
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
                    let text = format!("nothing was approved: {}; or give --yes", how_to_see_all(&changes));
                    return Err(TargetError::Usage(text));
                }
                let is_terminal = io::stdin().is_terminal() && io::stderr().is_terminal();
                confirm(&name, is_terminal, &mut io::stdin().lock(), &mut io::stderr())?;
            }
            changes.digest
        }
    };
    let approved = target.approve_pin(&name, Approval { source, digest }).await?;
    Ok(if is_json { as_json(&approved) } else { approved_lines(&approved) })
}

/// Prompts for the approval of the shown changes.
///
/// # Errors
///
/// If the operator does not confirm, or there is no terminal.
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
    if is_yes("Approve this? [y/N] ", input, output)? {
        Ok(())
    } else {
        Err(TargetError::Declined("nothing was approved"))
    }
}

impl AdminTarget {
    async fn pins(&self, source: Option<&str>) -> Result<PinnedTools, TargetError> {
        match self {
            Self::Daemon(client) => Ok(client.send(Method::GET, &format!("/v1/pins{}", of(source))).await?),
            Self::Files(admin) => Ok(admin.pins(source)?),
        }
    }

    async fn pin_changes(&self, name: &str, source: Option<&str>) -> Result<Changes, TargetError> {
        match self {
            Self::Daemon(client) => {
                Ok(client.send(Method::GET, &format!("/v1/pins/{}{}", escaped(name), of(source))).await?)
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

/// Every tool in a line, first those that need attention.
fn table(all: &PinnedTools) -> String {
    let mut lines = Vec::new();
    if let Some(problem) = &all.problem {
        lines.push(format!("pins are not kept: {}", one_line(problem)));
    }
    let is_any_kept = all.tools.is_empty() || all.tools.iter().any(|tool| tool.state != ToolState::Unrecorded);
    match &all.file {
        Some(file) if !is_any_kept => {
            lines.push(format!("nothing is recorded yet; the daemon keeps what it sees first in {}", one_line(file)));
        }
        Some(file) => lines.push(format!("kept in {}", one_line(file))),
        None => lines.push("not kept in a file: forgotten with the process".to_owned()),
    }
    if all.tools.is_empty() {
        lines.push("no tool is pinned yet: what the daemon sees first is".to_owned());
        return lines.join("\n");
    }
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["SOURCE", "TOOL", "STATE", "SINCE"]);
    let mut tools: Vec<&Pinned> = all.tools.iter().collect();
    tools.sort_by_key(|tool| (!tool.held, !tool.state.is_open(), tool.shadowed_by.is_none()));
    for tool in tools {
        let since = tool.since.as_deref().map_or_else(|| "-".to_owned(), one_line);
        table.add_row([one_line(&tool.source), one_line(&tool.name), state(tool), since]);
    }
    lines.push(plain(&table));
    lines.join("\n")
}

fn state(tool: &Pinned) -> String {
    let state = match (tool.state.is_open(), tool.held) {
        (_, true) => format!("{}, quarantined", tool.state.as_str()),
        (true, false) if tool.state != ToolState::Missing => format!("{}, not quarantined", tool.state.as_str()),
        _ => tool.state.as_str().to_owned(),
    };
    match &tool.shadowed_by {
        Some(owner) => format!("{state}, shadowed by {}", one_line(owner)),
        None => state,
    }
}

/// Changes of tools, as text.
struct Shown {
    /// Text on each tool.
    text: String,
    /// Whether the text leaves nothing out.
    is_whole: bool,
    /// Whether there is anything to approve.
    is_open: bool,
}

/// Formats the change of each tool.
fn shown_changes(changes: &Changes) -> Shown {
    let (mut parts, left_out): (Vec<String>, Vec<usize>) = changes.changes.iter().map(difference).unzip();
    if changes.more > 0 {
        parts.push(format!("… and {} more tools; `toolbus pins` lists them", changes.more));
    }
    Shown {
        text: parts.join("\n\n"),
        is_whole: changes.more == 0 && left_out.iter().all(|lines| *lines == 0),
        is_open: changes.changes.iter().any(|change| change.is.state.is_open()),
    }
}

/// Hint on how to see changes that were left out.
fn how_to_see_all(changes: &Changes) -> String {
    let name = one_line(&changes.name);
    match changes.more {
        0 => format!(
            "more changed than is shown here; all of it, and its digest, is printed by `toolbus pins diff {name} --output json`"
        ),
        _ => "more changed than is shown here; look at the tools one by one, with `toolbus pins diff TOOL`".to_owned(),
    }
}

/// Formats the change of each tool and, if all of it is shown, the command that approves it.
fn differences(changes: &Changes) -> String {
    let Shown { text, is_whole, is_open } = shown_changes(changes);
    let (name, digest) = (one_line(&changes.name), changes.digest);
    // An approval is suggested only for shown changes. The digest is whole: the author of both definitions could find
    // two whose digests begin alike.
    let is_unrecorded = |change: &Changed| change.is.state == ToolState::Unrecorded;
    let end = match (is_open, is_whole) {
        (false, _) if changes.changes.iter().any(is_unrecorded) => {
            format!("{name} is not recorded yet; the daemon pins what it sees first")
        }
        (false, _) => format!("{name} is as it was pinned"),
        (true, false) => how_to_see_all(changes),
        (true, true) => format!("To approve exactly this: toolbus pins approve {name} --digest {digest}"),
    };
    [text, end].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n\n")
}

/// Formats the change of a tool, and counts the lines that were left out.
fn difference(change: &Changed) -> (String, usize) {
    let Pinned { source, name, since, pinned, reason, .. } = &change.is;
    let since_when = |what: &str, when: &str| format!("{what} since {}", one_line(when));
    let state = match (state(&change.is), since, pinned) {
        (state, Some(since), _) => since_when(&state, since),
        (state, None, Some(pinned)) => format!("{}; {state} now", since_when("pinned", pinned)),
        (state, None, None) => state,
    };
    let head = format!("{} of {}: {state}", one_line(name), one_line(source));
    let Unified { text, left_out } = change.unified();
    let reason = reason.iter().filter(|_| change.is.state == ToolState::Suspect).map(|reason| one_line(reason));
    let parts = [head].into_iter().chain(reason).chain((!text.is_empty()).then_some(text));
    (parts.collect::<Vec<_>>().join("\n"), left_out)
}

/// Lines on an approval.
fn approved_lines(approved: &Approved) -> String {
    let line = |tool: &Pinned| {
        let (name, source) = (one_line(&tool.name), one_line(&tool.source));
        match tool.state {
            ToolState::Missing => format!("{name} of {source} is forgotten"),
            _ => format!("{name} of {source} is pinned as it is now"),
        }
    };
    approved.approved.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command};
    use serde_json::value::RawValue;
    use toolbus_trust::pins::offer_digest;

    use super::*;

    fn is_taken(digest: &str) -> bool {
        let command = PinsArgs::augment_args(Command::new("pins"));
        command.try_get_matches_from(["pins", "approve", "read", "--digest", digest]).is_ok()
    }

    #[test]
    fn only_yes_on_a_terminal_confirms() {
        let confirmed = |is_terminal: bool, typed: &str| {
            let mut question = Vec::new();
            let result = confirm("read", is_terminal, &mut typed.as_bytes(), &mut question);
            let refused = result.err().map(|error| (error.report(), error.to_string()));
            (refused, String::from_utf8(question).unwrap())
        };
        let question = "Approve this? [y/N] ".to_owned();
        for typed in ["y\n", "Yes\n", "YES", " y \n"] {
            assert_eq!(confirmed(true, typed), (None, question.clone()), "{typed:?}");
        }
        let long = format!("{}y\n", " ".repeat(100));
        for typed in ["\n", "", "n\n", "yess\n", "no y\n", &long] {
            assert_eq!(
                confirmed(true, typed),
                (Some((1, "nothing was approved".to_owned())), question.clone()),
                "{typed:?}"
            );
        }
        let (refused, question) = confirmed(false, "y\n");
        assert_eq!(question, "");
        let (code, text) = refused.unwrap();
        assert_eq!(code, 2);
        insta::assert_snapshot!(text, @"nothing was approved, because there is no terminal to ask on: look at `toolbus pins diff read` and give the --digest that it ends with, or --yes to approve whatever there is");
    }

    #[test]
    fn a_digest_counts_as_a_whole() {
        let digest = format!("sha256:{}", "0a".repeat(32));
        assert!(is_taken(&digest));
        for part in ["0a0a0a0a0a0a0a0a", &digest[..23], &digest[..70], &digest[7..]] {
            assert!(!is_taken(part), "{part}");
        }
    }

    fn pinned(tool: &str, state: ToolState, held: bool) -> Pinned {
        Pinned {
            source: "mcp:files".to_owned(),
            tool: tool.to_owned(),
            name: tool.to_owned(),
            state,
            held,
            since: (state != ToolState::Missing).then(|| "2026-01-02T03:04:05Z".to_owned()),
            pinned: Some("2026-01-01T00:00:00Z".to_owned()),
            reason: None,
            shadowed_by: None,
        }
    }

    /// The difference that is shown of a tool `read`, beside so many others that changed.
    fn difference(is: Pinned, before: Option<&str>, after: Option<&str>, more: usize) -> String {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        let changes = vec![Changed { is, before: before.map(raw), after: after.map(raw) }];
        differences(&Changes { name: "read".to_owned(), digest: offer_digest(&[]), changes, more })
    }

    const BEFORE: &str = r#"{"description":"Reads a file. Nothing else.","effect":"read-only","name":"read"}"#;
    const AFTER: &str = r#"{"description":"Reads a file. Sends it away.","effect":"read-only","name":"read"}"#;

    #[test]
    fn quarantined_tools_come_first() {
        let tools = vec![
            pinned("read", ToolState::Pinned, false),
            Pinned { shadowed_by: Some("mcp:zzz".to_owned()), ..pinned("write", ToolState::Recorded, false) },
            pinned("old", ToolState::Missing, false),
            pinned("sto\u{1b}[2Jre", ToolState::New, true),
        ];
        let all = PinnedTools { file: Some("/var/lib/toolbus/toolbus.pins.json".to_owned()), problem: None, tools };
        insta::assert_snapshot!(table(&all), @r"
        kept in /var/lib/toolbus/toolbus.pins.json
        SOURCE     TOOL            STATE                          SINCE
        mcp:files  sto\u{1b}[2Jre  new, quarantined               2026-01-02T03:04:05Z
        mcp:files  old             missing                        -
        mcp:files  write           recorded, shadowed by mcp:zzz  2026-01-02T03:04:05Z
        mcp:files  read            pinned                         2026-01-02T03:04:05Z
        ");
    }

    #[test]
    fn a_difference_ends_with_the_command_that_approves_it() {
        let changed = pinned("read", ToolState::Changed, true);
        insta::assert_snapshot!(difference(changed, Some(BEFORE), Some(AFTER), 0), @r"
        read of mcp:files: changed, quarantined since 2026-01-02T03:04:05Z
        @@ -2,4 +2,4 @@
         effect: read-only
         description:
           Reads a file.
        -   Nothing else.
        +   Sends it away.

        To approve exactly this: toolbus pins approve read --digest sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
        ");
    }

    #[test]
    fn unrecorded_definitions_are_shown_as_such() {
        let unrecorded = Pinned { since: None, pinned: None, ..pinned("read", ToolState::Unrecorded, false) };
        let all =
            PinnedTools { file: Some("toolbus.pins.json".to_owned()), problem: None, tools: vec![unrecorded.clone()] };
        insta::assert_snapshot!(table(&all), @r"
        nothing is recorded yet; the daemon keeps what it sees first in toolbus.pins.json
        SOURCE     TOOL  STATE       SINCE
        mcp:files  read  unrecorded  -
        ");
        insta::assert_snapshot!(difference(unrecorded, Some(BEFORE), Some(BEFORE), 0), @r"
        read of mcp:files: unrecorded

        read is not recorded yet; the daemon pins what it sees first
        ");
        let missing = difference(pinned("read", ToolState::Missing, false), Some(BEFORE), None, 0);
        assert!(
            missing.starts_with("read of mcp:files: pinned since 2026-01-01T00:00:00Z; missing now\n"),
            "{missing}"
        );
    }

    #[test]
    fn approval_is_not_suggested_for_changes_that_are_not_shown() {
        let end = |after: &str, more| {
            let text = difference(pinned("read", ToolState::Changed, true), Some(BEFORE), Some(after), more);
            assert!(!text.contains("approve"), "{text}");
            text.lines().last().unwrap().to_owned()
        };
        insta::assert_snapshot!(end(AFTER, 2), @"more changed than is shown here; look at the tools one by one, with `toolbus pins diff TOOL`");
        let long = format!(r#"{{"description":"{}","name":"read"}}"#, r"a\n".repeat(1_000));
        insta::assert_snapshot!(end(&long, 0), @"more changed than is shown here; all of it, and its digest, is printed by `toolbus pins diff read --output json`");
    }

    #[test]
    fn an_approval_names_every_tool() {
        let tools = vec![pinned("read", ToolState::Changed, true), pinned("old", ToolState::Missing, false)];
        insta::assert_snapshot!(approved_lines(&Approved { approved: tools }), @"
        read of mcp:files is pinned as it is now
        old of mcp:files is forgotten
        ");
    }
}
