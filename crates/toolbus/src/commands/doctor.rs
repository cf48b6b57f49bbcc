//! `toolbus doctor`: the problems of an installation, and how to mend them.

mod broker;
mod configuration;
mod daemon;
mod network;
mod programs;
mod store;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use serde::Serialize;
use toolbus_core::redact::Redactor;
use toolbus_core::text::shortened;

use super::check::Checked;
use super::target::{DaemonArgs, Operator, TargetError};
use super::{RED, YELLOW, as_json, one_line};
use crate::app;
use crate::config::Config;
use crate::terminal::{OutputFormat, ignore_broken_pipe};

/// Subject of findings on the store, which the daemon has, too.
const STORE: &str = "store";
/// Longest wait for a broker, a store, a server or a daemon.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest text of a finding, in characters.
const MAX_TEXT: usize = 800;

/// Finds what is wrong with an installation, and names the command or the setting that mends it.
///
/// Looks at the configuration, the broker and the rights of the daemon's user there, the collector, the sandbox, MCP
/// servers, the store, and the daemon if one runs. Changes nothing that lasts. The exit code is 0 without a problem, and 1
/// with one.
#[derive(Debug, clap::Args)]
pub struct DoctorArgs {
    #[command(flatten)]
    daemon: DaemonArgs,
}

/// One result of the examination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    /// Part of the installation.
    subject: &'static str,
    verdict: Verdict,
    text: String,
    /// Command or setting that mends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    mend: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    Warning,
    Problem,
}

/// All findings, with the numbers of problems and warnings.
#[derive(Debug, Serialize)]
struct Report {
    problems: usize,
    warnings: usize,
    findings: Vec<Finding>,
}

/// Examines the installation, and prints the findings.
///
/// # Errors
///
/// If the options cannot be used, or nothing can be printed.
pub async fn run(args: DoctorArgs, operator: &Operator) -> Result<ExitCode, TargetError> {
    let sources = &operator.sources;
    let running = daemon::examine(&args.daemon, operator).await?;
    let (findings, redactor) = match Config::load(sources) {
        Ok(loaded) => {
            let checked = Checked::new(loaded, sources);
            let config = &checked.loaded.config;
            let (broker, telemetry, programs, servers, store) = tokio::join!(
                broker::examine(config),
                network::telemetry(&checked.targets),
                programs::examine(config),
                network::servers(config, &running.servers),
                store::examine(config, sources, &running),
            );
            let configuration = configuration::examine(&checked, sources);
            let redactor = app::redactor(config);
            ([configuration, broker, telemetry, programs, servers, store].concat(), redactor)
        }
        // The other parts are found by the configuration.
        Err(problems) => (configuration::mistakes(&problems), Redactor::default()),
    };
    let report = Report::new(findings.into_iter().chain(running.findings), &redactor);
    let text = match operator.output {
        OutputFormat::Json => as_json(&report),
        OutputFormat::Table => report.in_words(),
    };
    ignore_broken_pipe(writeln!(anstream::stdout(), "{text}"))?;
    Ok(ExitCode::from(u8::from(report.problems > 0)))
}

impl Finding {
    fn new(subject: &'static str, verdict: Verdict, text: impl Into<String>) -> Self {
        Self { subject, verdict, text: text.into(), mend: None }
    }

    fn ok(subject: &'static str, text: impl Into<String>) -> Self {
        Self::new(subject, Verdict::Ok, text)
    }

    fn warning(subject: &'static str, text: impl Into<String>) -> Self {
        Self::new(subject, Verdict::Warning, text)
    }

    fn problem(subject: &'static str, text: impl Into<String>) -> Self {
        Self::new(subject, Verdict::Problem, text)
    }

    /// The same, with advice.
    fn mended_by(self, mend: impl Into<String>) -> Self {
        Self { mend: Some(mend.into()), ..self }
    }
}

impl Report {
    /// Counts findings, whose texts may quote others: without secrets, control characters and endless lines.
    fn new(findings: impl Iterator<Item = Finding>, redactor: &Redactor) -> Self {
        let clean = |text: &str| one_line(&shortened(&redactor.text(text), MAX_TEXT));
        let findings: Vec<Finding> =
            findings.map(|it| Finding { text: clean(&it.text), mend: it.mend.as_deref().map(clean), ..it }).collect();
        let count = |verdict| findings.iter().filter(|finding| finding.verdict == verdict).count();
        Self { problems: count(Verdict::Problem), warnings: count(Verdict::Warning), findings }
    }

    /// A line for each finding, with its advice below; then their number.
    fn in_words(&self) -> String {
        let line = |Finding { subject, verdict, text, mend }: &Finding| {
            let (style, verdict) = match verdict {
                Verdict::Ok => (AnsiColor::Green.on_default(), "ok"),
                Verdict::Warning => (YELLOW, "warning"),
                Verdict::Problem => (RED, "problem"),
            };
            let mend = mend.as_ref().map(|mend| format!("\n{:24}mend: {mend}", "")).unwrap_or_default();
            format!("{style}{verdict:<7}{style:#}  {subject:<13}  {text}{mend}")
        };
        let lines: Vec<String> = self.findings.iter().map(line).collect();
        let style = if self.problems > 0 { RED } else { Style::new() };
        let summary = format!("{}, {}", counted(self.problems, "problem"), counted(self.warnings, "warning"));
        format!("{}\n\n{style}{summary}{style:#}", lines.join("\n"))
    }
}

fn counted(count: usize, what: &str) -> String {
    match count {
        0 => format!("no {what}s"),
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}

/// Rights of a file or folder; `None` if they cannot be read.
fn mode(path: &Path) -> Option<u32> {
    Some(fs::metadata(path).ok()?.permissions().mode())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_a_line_with_its_advice_below() {
        let findings = [
            Finding::ok("broker", "RabbitMQ 3.10.8"),
            Finding::warning("configuration", "two\nlines\u{7}").mended_by("chmod o-r \u{1b}x"),
            Finding::problem("store", "it is full"),
        ];
        let report = Report::new(findings.into_iter(), &Redactor::default());
        insta::assert_snapshot!(anstream::adapter::strip_str(&report.in_words()), @r"
        ok       broker         RabbitMQ 3.10.8
        warning  configuration  two lines\u{7}
                                mend: chmod o-r \u{1b}x
        problem  store          it is full

        1 problem, 1 warning
        ");
    }

    #[test]
    fn no_text_has_a_secret_or_is_without_end() {
        let redactor = Redactor::default();
        redactor.configure([toolbus_core::secret::Secret::new("hunter2-and-more")]);
        let text = format!("hunter2-and-more {}", "x".repeat(2 * MAX_TEXT));
        let report = Report::new([Finding::problem("broker", &text).mended_by(&text)].into_iter(), &redactor);
        let shown = as_json(&report);
        assert!(!shown.contains("hunter2") && shown.chars().count() < 2 * MAX_TEXT + 300, "{shown}");
    }

    #[test]
    fn programs_read_verdicts_and_numbers() {
        let report = Report::new([Finding::ok("store", "memory")].into_iter(), &Redactor::default());
        let shown = serde_json::to_value(&report).unwrap();
        let finding = serde_json::json!({"subject": "store", "verdict": "ok", "text": "memory"});
        assert_eq!(shown, serde_json::json!({"problems": 0, "warnings": 0, "findings": [finding]}));
    }
}
