//! Programs of this machine: the interpreter of scripts, and the sandbox of scripts and commands.

use std::time::Duration;

use toolbus_sandbox::{Layers, Level, Probed, Sandbox};
use toolbus_scripts::commands;
use toolbus_scripts::config::RunnerKind;
use toolbus_scripts::interpreter::{Interpreter, InterpreterError};
use toolbus_scripts::runner::sandbox;

use super::Finding;
use crate::config::Config;
use crate::families::script_section;

const SUBJECT: &str = "sandbox";
/// Time for the programs that try out the sandbox, each of which has a limit of its own.
const TRIAL_TIME: Duration = Duration::from_secs(30);
/// Advice on missing rights of the sandbox.
const MEND: &str = "allow what is missing, as docs/sandbox.md says under Levels";

/// Examines the runners of scripts and commands, where there are any.
pub(super) async fn examine(config: &Config) -> Vec<Finding> {
    let section = script_section(config).filter(|section| section.runner != RunnerKind::Kubernetes);
    let mut findings = Vec::new();
    let mut scripts = None;
    if let Some(section) = section {
        match Interpreter::find(&section.python).await {
            Ok(found) => {
                let text = format!("scripts run with Python {}, `{}`", found.version, found.program.display());
                findings.push(Finding::ok(SUBJECT, text));
                scripts = (section.runner == RunnerKind::Sandbox).then(|| (found, section.limits()));
            }
            // A mistake of the configuration.
            Err(InterpreterError::Program(_)) => {}
            Err(error) => findings.push(Finding::problem(SUBJECT, error.to_string()).mended_by("set script.python")),
        }
    }
    if scripts.is_none() && !config.commands.iter().any(|command| command.sandbox) {
        return findings;
    }
    let sandbox = match Sandbox::new(Level::Full) {
        Ok(sandbox) => sandbox,
        Err(error) => {
            let text = format!("no sandbox can be made: {error}");
            findings
                .push(Finding::problem(SUBJECT, text).mended_by("mount /proc, and set TMPDIR to a writable folder"));
            return findings;
        }
    };
    let trial = async {
        match &scripts {
            Some((interpreter, limits)) => sandbox::probe(interpreter, *limits, &sandbox).await,
            None => commands::try_sandbox(&sandbox).await,
        }
    };
    let probed = tokio::time::timeout(TRIAL_TIME, trial).await;
    let require = config.script.as_ref().map(|script| script.sandbox).unwrap_or_default().require;
    findings.push(match probed {
        Ok(probed) => verdict(&probed, require, sandbox.cgroups_missing()),
        Err(_) => Finding::problem(SUBJECT, format!("it was not ready within {} s", TRIAL_TIME.as_secs())),
    });
    sandbox.close().await;
    findings
}

/// Judges the sandbox of programs.
fn verdict(probed: &Probed, require: Level, cgroups_missing: Option<&str>) -> Finding {
    let why = sandbox::hindrance(probed);
    let level = probed.layers.map(Layers::level);
    let cgroups = cgroups_missing
        .map(|why| format!("; cgroups do not limit memory and CPU time of its programs: {why}"))
        .unwrap_or_default();
    match level {
        Some(Level::Full) => Finding::ok(SUBJECT, format!("reaches the level `full`{cgroups}")),
        Some(level) if level >= require => {
            Finding::warning(SUBJECT, format!("reaches the level `{level}`, not `full`: {why}{cgroups}"))
                .mended_by(MEND)
        }
        level => {
            let reached = level.map_or("no level".to_owned(), |level| format!("the level `{level}`"));
            let text = format!("reaches {reached}, and script.sandbox.require asks for `{require}`: {why}");
            Finding::problem(SUBJECT, text).mended_by(format!("{MEND}, or set script.sandbox.require"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::Verdict;

    #[test]
    fn a_sandbox_is_judged_by_the_level_that_is_required() {
        let judged = |reached: Option<Level>, require| {
            let refused = vec![("full", "no user namespaces".to_owned())];
            let refused = if reached == Some(Level::Full) { Vec::new() } else { refused };
            verdict(&Probed { layers: reached.map(Layers::of), refused }, require, Some("not writable"))
        };
        let full = judged(Some(Level::Full), Level::Full);
        let cgroups = "cgroups do not limit memory and CPU time of its programs: not writable";
        assert_eq!((full.verdict, full.text), (Verdict::Ok, format!("reaches the level `full`; {cgroups}")));
        let weaker = judged(Some(Level::NoNamespaces), Level::NoNamespaces);
        let text = format!("reaches the level `no-namespaces`, not `full`: full: no user namespaces; {cgroups}");
        assert_eq!((weaker.verdict, weaker.text), (Verdict::Warning, text));
        let weak = judged(Some(Level::NoNamespaces), Level::Full);
        assert_eq!(weak.verdict, Verdict::Problem);
        assert!(weak.mend.unwrap().ends_with("or set script.sandbox.require"));
        assert!(judged(None, Level::LimitsOnly).text.starts_with("reaches no level, and "));
    }
}
