//! `toolbus agents`: the tools that each agent may use, and why.

use std::io::{self, Write};
use std::process::ExitCode;

use comfy_table::Table;
use comfy_table::presets::NOTHING;

use super::target::{Operator, RoleArgs, TargetArgs, TargetError};
use super::{as_json, one_line, plain};
use crate::http::admin::view::{AgentOverview, AgentSummary, AgentTools, AppliedRules, NamedRule, Switched};
use crate::terminal::OutputFormat;
use crate::terminal::ignore_broken_pipe;

/// Lists the agents; with a name, that agent's tools: which it may use, which not, and why.
///
/// `default` is every agent without a section in the configuration. RUNNING and WAITING are its calls now, and the limits.
/// The answer is that of the daemon that runs the configuration. Where none runs, and with --offline, it is what the
/// configuration alone says: without calls, tools that are only known once connected, and what is switched off.
#[derive(Debug, clap::Args)]
pub struct AgentsArgs {
    /// Name of an agent.
    name: Option<String>,
    #[command(flatten)]
    role: RoleArgs,
    #[command(flatten)]
    target: TargetArgs,
}

/// Prints the list.
///
/// # Errors
///
/// If the daemon does not respond or refuses, or standard output is closed.
pub async fn run(args: AgentsArgs, operator: &Operator) -> Result<ExitCode, TargetError> {
    let is_for_one = args.role.binding.is_some() || args.role.profile.is_some();
    if args.name.is_none() && is_for_one {
        return Err(TargetError::Usage("--binding and --profile need the name of an agent".to_owned()));
    }
    let target = args.target.open(operator).await?;
    let text = match args.name {
        None => {
            let agents = target.agents().await?;
            if operator.output == OutputFormat::Json { as_json(&agents) } else { of_all(&agents) }
        }
        Some(name) => {
            let agent = target.agent(&name, &args.role.role(None)).await?;
            if operator.output == OutputFormat::Json { as_json(&agent) } else { of_one(&agent) }
        }
    };
    ignore_broken_pipe(writeln!(io::stdout(), "{text}"))?;
    Ok(ExitCode::SUCCESS)
}

fn of_all(overview: &AgentOverview) -> String {
    let mut table = Table::new();
    let header = ["AGENT", "TOOLS", "PROFILE", "RUNNING", "WAITING", "RATE LIMITS", "BINDINGS", ""];
    table.load_style(NOTHING).set_header(header);
    for agent in &overview.agents {
        table.add_row(row(agent));
    }
    let mut text = plain(&table);
    if !overview.disabled.is_empty() {
        text = format!("{text}\n\nswitched off: {}", switches(&overview.disabled));
    }
    text
}

fn row(agent: &AgentSummary) -> [String; 8] {
    let listed = |names: &[String]| if names.is_empty() { "-".to_owned() } else { one_line(&names.join(", ")) };
    let of_limit =
        |now: Option<usize>, limit: usize| now.map_or_else(|| limit.to_string(), |now| format!("{now}/{limit}"));
    [
        one_line(&agent.agent),
        format!("{}/{}", agent.tools, agent.total),
        agent.profile.as_deref().map_or_else(|| "-".to_owned(), one_line),
        of_limit(agent.running, agent.max_in_flight),
        of_limit(agent.waiting, agent.max_queued),
        listed(&agent.rate_limits),
        listed(&agent.bindings),
        if agent.disabled { "switched off".to_owned() } else { String::new() },
    ]
}

/// Formats the switches that are off, in one line.
pub(super) fn switches(disabled: &[Switched]) -> String {
    let names: Vec<String> =
        disabled.iter().map(|switch| one_line(&format!("{} {}", switch.kind, switch.name))).collect();
    names.join(", ")
}

fn of_one(agent: &AgentTools) -> String {
    let allowed = agent.tools.iter().filter(|tool| tool.allowed).count();
    let name = one_line(&agent.agent);
    let mut lines = vec![format!("{name}: {allowed} of {} tools", agent.tools.len())];
    if !agent.configured {
        lines.push(format!("{name} has no section in `agents`: it is one of `default`"));
    }
    lines.extend(agent.nothing.as_deref().map(one_line));
    lines.extend([String::new(), rules(&agent.rules)]);
    if !agent.tools.is_empty() {
        let mut table = Table::new();
        table.load_style(NOTHING).set_header(["TOOL", "SOURCE", "ALLOWED", "WHY"]);
        for tool in &agent.tools {
            let allowed = if tool.allowed { "yes" } else { "no" };
            // The reason that leaves no tool is above the table.
            let is_shown = agent.nothing.as_ref() == Some(&tool.because);
            let because = if is_shown { String::new() } else { one_line(&tool.because) };
            let because = format!("{because}{}{}", shadows(&tool.shadows), mark(&tool.suspect));
            table.add_row([&one_line(&tool.tool), &one_line(&tool.source), allowed, because.trim_start()]);
        }
        lines.extend([String::new(), plain(&table)]);
    }
    lines.join("\n")
}

/// Note on a tool whose name other sources have, too.
fn shadows(sources: &[String]) -> String {
    if sources.is_empty() { String::new() } else { format!(" (shadows: {})", one_line(&sources.join(", "))) }
}

/// Note on a suspect tool, beside the reason.
fn mark(suspect: &[String]) -> String {
    if suspect.is_empty() { String::new() } else { format!(" (suspect: {})", one_line(&suspect.join(", "))) }
}

/// Table of the restricting rules beside the tools.
fn rules(rules: &AppliedRules) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    let mut add = |what: &str, text: String| {
        if !text.is_empty() {
            table.add_row([what, &one_line(&text)]);
        }
    };
    let named =
        |rules: &[NamedRule]| rules.iter().map(|rule| format!("{}: {}", rule.name, rule.value)).collect::<Vec<_>>();
    add("profile", rules.profile.clone().unwrap_or_default());
    add("tool sets", rules.tool_sets.join(", "));
    add("bindings", rules.bindings.join(", "));
    add("at a time", format!("{} running, {} waiting", rules.max_in_flight, rules.max_queued));
    add("rates", named(&rules.rate_limits).join("; "));
    add("recipients", named(&rules.recipients).join("; "));
    add("arguments set", named(&rules.arguments).join("; "));
    plain(&table)
}

#[cfg(test)]
mod tests {
    use toolbus_core::policy::UnknownCallers;

    use super::*;
    use crate::http::admin::view::ToolVerdict;

    #[test]
    fn every_agent_is_one_line() {
        let agent = AgentSummary {
            agent: "ana".to_owned(),
            tools: 2,
            total: 3,
            profile: Some("subagent".to_owned()),
            max_in_flight: 32,
            max_queued: 64,
            running: Some(32),
            waiting: Some(7),
            rate_limits: vec!["web_*".to_owned()],
            bindings: vec!["whatsapp:sales".to_owned(), "whatsapp:support".to_owned()],
            disabled: true,
        };
        let unlisted = AgentSummary {
            agent: "default".to_owned(),
            profile: None,
            running: None,
            waiting: None,
            rate_limits: Vec::new(),
            bindings: Vec::new(),
            disabled: false,
            ..agent.clone()
        };
        let off = |kind: &str, name: &str| Switched { kind: kind.to_owned(), name: name.to_owned() };
        let disabled = vec![off("agent", "ana"), off("tool", "web\u{1b}[2J\nsearch")];
        insta::assert_snapshot!(of_all(&AgentOverview { agents: vec![agent, unlisted], unknown: UnknownCallers::Restricted, disabled }), @r#"
        AGENT    TOOLS  PROFILE   RUNNING  WAITING  RATE LIMITS  BINDINGS
        ana      2/3    subagent  32/32    7/64     web_*        whatsapp:sales, whatsapp:support  switched off
        default  2/3    -         32       64       -            -

        switched off: agent ana, tool web\u{1b}[2J search
        "#);
    }

    #[test]
    fn the_reason_that_leaves_an_agent_no_tool_is_shown_once() {
        let because = "An operator has switched this agent off.".to_owned();
        let tool = ToolVerdict {
            tool: "echo".to_owned(),
            source: "echo".to_owned(),
            allowed: false,
            because: because.clone(),
            shadows: Vec::new(),
            suspect: Vec::new(),
        };
        let rules = AppliedRules { max_in_flight: 3, max_queued: 4, ..AppliedRules::default() };
        let agent =
            AgentTools { agent: "ana".to_owned(), configured: true, nothing: Some(because), rules, tools: vec![tool] };
        insta::assert_snapshot!(of_one(&agent), @r"
        ana: 0 of 1 tools
        An operator has switched this agent off.

        at a time  3 running, 4 waiting

        TOOL  SOURCE  ALLOWED  WHY
        echo  echo    no
        ");
    }

    #[test]
    fn every_tool_of_an_agent_is_one_line_with_the_reason() {
        let verdict = |tool: &str, allowed, because: &str| ToolVerdict {
            tool: tool.to_owned(),
            source: "web".to_owned(),
            allowed,
            because: because.to_owned(),
            shadows: Vec::new(),
            suspect: Vec::new(),
        };
        let tools = vec![
            verdict("web_search", true, "allowed by `web_*`"),
            verdict("a\nb\u{9b}", false, "not in allowed_tools"),
            ToolVerdict {
                shadows: vec!["mcp:aaa".to_owned()],
                suspect: vec!["conceal".to_owned(), "file".to_owned()],
                ..verdict("web_read", true, "allowed by `web_*`")
            },
        ];
        let named = |name: &str, value: &str| vec![NamedRule { name: name.to_owned(), value: value.to_owned() }];
        let rules = AppliedRules {
            profile: Some("subagent".to_owned()),
            max_in_flight: 3,
            max_queued: 4,
            rate_limits: named("web_*", "1 per second, 3 at once"),
            recipients: named("whatsapp", "2 listed"),
            ..AppliedRules::default()
        };
        let agent = AgentTools { agent: "ana".to_owned(), configured: false, nothing: None, rules, tools };
        insta::assert_snapshot!(of_one(&agent), @r#"
        ana: 2 of 3 tools
        ana has no section in `agents`: it is one of `default`

        profile     subagent
        at a time   3 running, 4 waiting
        rates       web_*: 1 per second, 3 at once
        recipients  whatsapp: 2 listed

        TOOL        SOURCE  ALLOWED  WHY
        web_search  web     yes      allowed by `web_*`
        a b\u{9b}   web     no       not in allowed_tools
        web_read    web     yes      allowed by `web_*` (shadows: mcp:aaa) (suspect: conceal, file)
        "#);
    }
}
