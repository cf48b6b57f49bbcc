//! `toolbus mcp test`: one server of a configuration, tried alone.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use toolbus_config::nearest;
use toolbus_core::redact::Redactor;
use toolbus_mcp_client::process::Launcher;
use toolbus_mcp_client::spec::{ServerName, ServerSpec};
use toolbus_mcp_client::standalone::probe;
use toolbus_mcp_client::status::ProbeReport;
use toolbus_trust::scan::Scanner;

use super::{milliseconds, show};
use crate::app;
use crate::commands::target::{Operator, TargetError};
use crate::commands::{as_json, one_line, plain};
use crate::config::{Config, McpServers};
use crate::terminal::OutputFormat;
use crate::terminal::ignore_broken_pipe;

/// Starts or connects one server of the configuration and tells each step: connect, list of tools, ping.
///
/// The running daemon is not asked, and its own process of this server goes on. The exit code is 0 when every step worked,
/// 1 when one failed, 2 for a mistake in the command or the configuration.
#[derive(Debug, clap::Args)]
pub(super) struct TestArgs {
    /// Name of the server, in any case. One that is disabled can be tried, too.
    name: String,
}

/// Tries the server, and prints the report.
pub(super) async fn run(args: TestArgs, operator: &Operator) -> Result<ExitCode, TargetError> {
    let loaded = Config::load_for(&operator.sources, &["mcp"]).map_err(TargetError::Mistakes)?;
    let spec = find(&loaded.config.mcp_servers(), &args.name)?;
    let redactor = app::redactor(&loaded.config);
    let launcher = Launcher::new().map_err(|error| TargetError::Usage(format!("cannot start programs: {error}")))?;
    let launcher = launcher.redacting(redactor.clone());
    let scanner = Scanner::new().map_err(|error| TargetError::Usage(error.to_string()))?;
    let report = without_secrets(&probe(&spec, &launcher, &scanner).await, &redactor)?;
    let printed = match operator.output {
        OutputFormat::Json => writeln!(io::stdout(), "{}", as_json(&report)),
        OutputFormat::Table => writeln!(anstream::stdout(), "{}", in_words(&report)),
    };
    ignore_broken_pipe(printed)?;
    Ok(ExitCode::from(u8::from(!report.passed())))
}

fn find(servers: &McpServers, name: &str) -> Result<ServerSpec, TargetError> {
    let wanted = ServerName::parse(name).ok();
    if let Some(spec) = servers.specs.iter().find(|spec| Some(&spec.name) == wanted.as_ref()) {
        return Ok(spec.clone());
    }
    let names: Vec<&str> = servers.specs.iter().map(|spec| &**spec.name.as_str()).collect();
    let others = match nearest(name, names.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None if names.is_empty() => "add one under mcp.servers, or name a file in mcp.servers_file".to_owned(),
        None => format!("there are {}", names.join(", ")),
    };
    Err(TargetError::Usage(format!("the configuration has no MCP server `{name}` that can be used: {others}")))
}

/// The report, whose texts may quote anything that the server sent. There is none where a secret is a word of its form.
fn without_secrets(report: &ProbeReport, redactor: &Redactor) -> Result<ProbeReport, TargetError> {
    let cleaned = serde_json::to_value(report).and_then(|mut value| {
        redactor.clean_value(&mut value);
        serde_json::from_value(value)
    });
    cleaned.map_err(|_| TargetError::Usage("the report cannot be shown without the secrets in it".to_owned()))
}

fn in_words(report: &ProbeReport) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    for step in &report.steps {
        let time = milliseconds(Duration::from_micros(step.duration_us));
        table.add_row([if step.passed { "pass" } else { "fail" }, &one_line(&step.name), &time, &one_line(&step.text)]);
    }
    let mut parts = vec![plain(&table)];
    parts.extend(show::hidden(&report.status.hidden));
    parts.extend(show::suspect(&report.status));
    parts.extend(show::cleaned(&report.status));
    let failed = report.steps.iter().find(|step| !step.passed);
    let (colour, verdict) = match failed {
        Some(step) => {
            parts.extend(show::stderr(&report.status.stderr));
            (AnsiColor::Red.on_default(), format!("failed at {}", one_line(&step.name)))
        }
        None => (Style::new(), "works".to_owned()),
    };
    parts.push(format!("{colour}{verdict}{colour:#}"));
    parts.join("\n\n")
}

#[cfg(test)]
mod tests {
    use toolbus_mcp_client::status::{ProbeStep, ServerStatus};

    use super::*;
    use crate::http::tests::example;

    fn step(name: &str, passed: bool, text: &str) -> ProbeStep {
        ProbeStep { name: name.to_owned(), duration_us: 12_345, passed, text: text.to_owned() }
    }

    #[test]
    fn every_step_is_one_line_and_hidden_tools_are_named() {
        let steps = vec![step("connect", true, "2025-11-25 with sessions; a\u{7} 1"), step("ping", true, "answered")];
        let report = ProbeReport { steps, status: example("files") };
        insta::assert_snapshot!(anstream::adapter::strip_str(&in_words(&report)), @r#"
        pass  connect  12.3 ms  2025-11-25 with sessions; a\u{7} 1
        pass  ping     12.3 ms  answered

        HIDDEN TOOL  WHY
        move_file    denied by deniedTools

        works
        "#);
    }

    #[test]
    fn a_failure_comes_with_the_servers_last_words() {
        let steps = vec![step("connect", false, "the server ended with exit code 3")];
        let status = ServerStatus { hidden: Vec::new(), stderr: vec!["no such module".to_owned()], ..example("files") };
        let report = ProbeReport { steps, status };
        insta::assert_snapshot!(anstream::adapter::strip_str(&in_words(&report)), @r#"
        fail  connect  12.3 ms  the server ended with exit code 3

        standard error, its end:
          no such module

        failed at connect
        "#);
    }

    #[test]
    fn an_unknown_name_is_reported_with_the_next_step() {
        let refused = |text: &str, name: &str| {
            let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
            std::fs::write(file.path(), text).unwrap();
            let sources = crate::config::Sources { files: vec![file.path().to_owned()], ..Default::default() };
            find(&Config::load(&sources).unwrap().config.mcp_servers(), name).err().map(|error| error.to_string())
        };
        let two = "[mcp.servers.files]\ncommand = \"a\"\n[mcp.servers.git]\ncommand = \"b\"\n";
        assert_eq!(refused(two, "FILES"), None);
        let all =
            [refused(two, "fils"), refused(two, "weather"), refused("", "weather")].map(Option::unwrap).join("\n");
        insta::assert_snapshot!(all, @r#"
        the configuration has no MCP server `fils` that can be used: did you mean `files`?
        the configuration has no MCP server `weather` that can be used: there are files, git
        the configuration has no MCP server `weather` that can be used: add one under mcp.servers, or name a file in mcp.servers_file
        "#);
    }
}
