//! What a caller is told of a run.

pub(super) mod measure;
#[cfg(test)]
mod tests;

use std::time::Duration;

use toolbus_core::tool::{Program, ToolOutput};
use toolbus_sandbox::{Artifact, Ending, Limits, Outcome, Stop, Stream};

use super::artifacts;
use measure::{number, seconds, size};

/// What a script is said to have written that wrote nothing.
const NO_OUTPUT: &str = "(no output)";
/// Most characters of each stream that are shown of a script that failed; what is in the middle is left out.
const MAX_SHOWN: usize = 16_000;
/// The same of one that wrote too much, of which the beginning says enough.
const MAX_BEGINNING: usize = 4_000;
/// Most files that are named.
const MAX_NAMED: usize = 20;
/// The exit code of a script that did not end in time.
const NOT_ENDED: i32 = -1;
/// The exit code of a script that was ended: what a shell says of one that was killed.
const KILLED: i32 = 137;

/// What the script was given.
#[derive(Debug, Clone, Copy)]
pub(super) struct Given<'a> {
    pub(super) limits: &'a Limits,
    pub(super) time: Duration,
    pub(super) cpu: Duration,
}

/// The result of a script that ran.
pub(super) fn output(outcome: &Outcome, installing: Duration, given: Given<'_>) -> ToolOutput {
    let (stdout, stderr) = (text(&outcome.stdout), text(&outcome.stderr));
    let is_error = outcome.ending != Ending::Exited(0);
    let content = match outcome.ending {
        Ending::Exited(0) => success(outcome, &stdout, given.limits),
        Ending::Exited(code) => format!("Script failed (exit {code}):\n{}", both(&stdout, &stderr)),
        Ending::Signalled(signal) => format!("Script failed ({}):\n{}", signal_name(signal), both(&stdout, &stderr)),
        Ending::Stopped(Stop::Time) => timed_out(outcome.elapsed, given.time),
        Ending::Stopped(stop) => stopped(stop, &stdout, &stderr, given),
    };
    let program = program(outcome, &content, stdout, stderr, given.time);
    let content = match outcome.ending {
        // Peers compare these words.
        Ending::Stopped(Stop::Time) => content,
        _ => content + &left_out(outcome.left_out, given.limits),
    };
    let blocks = match &*outcome.artifacts {
        [] => Vec::new(),
        files => std::iter::once(artifacts::text(&*content)).chain(files.iter().map(artifacts::block)).collect(),
    };
    let elapsed = outcome.elapsed + installing;
    ToolOutput { content: Some(content), blocks, is_error, ..ToolOutput::default() }
        .of_program(Program { elapsed, ..program })
}

fn success(outcome: &Outcome, stdout: &str, limits: &Limits) -> String {
    let cut = if outcome.stdout.is_cut {
        format!("\n[The output was cut after {}.]", size(limits.output))
    } else {
        String::new()
    };
    match (stdout.is_empty(), &*outcome.artifacts) {
        (false, _) => format!("{stdout}{cut}"),
        (true, []) => NO_OUTPUT.to_owned(),
        (true, files) => named(files),
    }
}

fn timed_out(elapsed: Duration, time: Duration) -> String {
    format!(
        "execute_python_script timed out after {}s. Either increase timeout_seconds, simplify the script, or consider an \
         alternative approach that does not require script execution.",
        time_had(elapsed, time)
    )
}

/// Whole seconds of the time that it had: less than it was given, if its call had to end sooner.
fn time_had(elapsed: Duration, time: Duration) -> u64 {
    let was_cut_short = elapsed + Duration::from_secs(1) < time;
    let had = if was_cut_short { elapsed } else { time };
    had.as_secs().max(1)
}

/// The reason first, because what follows may be long.
fn stopped(stop: Stop, stdout: &str, stderr: &str, Given { limits, time: _, cpu }: Given<'_>) -> String {
    let (reason, advice) = match stop {
        Stop::Time => ("took too long".to_owned(), "Increase timeout_seconds, or do less work."),
        Stop::Cpu => (
            format!("used up its processor time of {}", seconds(cpu)),
            "Do less work, or increase timeout_seconds: the processor time grows with it.",
        ),
        Stop::Memory => (
            format!("used more than {} of memory", size(limits.memory)),
            "Work on less at a time, for example by reading files in pieces.",
        ),
        Stop::Processes => (format!("had more than {} processes and threads", limits.processes), "Start fewer."),
        Stop::Disk => (
            format!("wrote more than {}, or more than {} files, into its work folder", size(limits.disk), limits.files),
            "Write less, or delete what is not needed any more.",
        ),
        Stop::Output => (
            format!("wrote more than {} to its standard output or standard error", size(limits.output)),
            "Print less, or write to a file in the folder that TOOLBUS_OUTPUT names.",
        ),
    };
    let written = if stdout.is_empty() && stderr.is_empty() {
        String::new()
    } else if stop == Stop::Output {
        let beginning = |text: &str| text.chars().take(MAX_BEGINNING).collect::<String>();
        format!("\nIts output began:\n{}", both(&beginning(stdout), &beginning(stderr)))
    } else {
        format!("\nIts output until then:\n{}", both(stdout, stderr))
    };
    format!("The script {reason}, and was stopped. {advice}{written}")
}

/// What it wrote to both, in an order that does not depend on when it did.
fn both(stdout: &str, stderr: &str) -> String {
    match (stdout.is_empty(), stderr.is_empty()) {
        (true, true) => NO_OUTPUT.to_owned(),
        (false, true) => shown(stdout),
        (true, false) => shown(stderr),
        (false, false) => format!("{}\nstderr:\n{}", shown(stdout.trim_end_matches('\n')), shown(stderr)),
    }
}

/// Beginning and end of what is long: errors are told at the end.
fn shown(text: &str) -> String {
    let length = text.chars().count();
    if length <= MAX_SHOWN {
        return text.to_owned();
    }
    let beginning: String = text.chars().take(MAX_SHOWN / 2).collect();
    let end: String = text.chars().skip(length - MAX_SHOWN / 2).collect();
    format!("{beginning}\n[{} characters left out]\n{end}", length - MAX_SHOWN)
}

/// The text of a stream. What is no UTF-8 becomes replacement characters.
fn text(stream: &Stream) -> String {
    let mut text = String::from_utf8_lossy(&stream.bytes).into_owned();
    if stream.is_cut && text.ends_with(char::REPLACEMENT_CHARACTER) {
        // A character that was cut.
        text.pop();
    }
    text
}

fn named(files: &[Artifact]) -> String {
    let names = files.iter().take(MAX_NAMED).map(|file| file.name.escape_debug().to_string());
    let names = names.collect::<Vec<_>>().join(", ");
    match files.len().saturating_sub(MAX_NAMED) {
        0 => format!("Files: {names}"),
        more => format!("Files: {names} and {more} more"),
    }
}

fn left_out(count: u64, limits: &Limits) -> String {
    if count == 0 {
        return String::new();
    }
    let (files, most) = (number(count, "file"), size(limits.artifacts));
    format!(
        "\n[{files} in TOOLBUS_OUTPUT did not come back. Only regular files do, with names in UTF-8, at most {most} together.]"
    )
}

/// What callers of `script.invoke` are told: they see standard error only when there is no standard output.
fn program(outcome: &Outcome, content: &str, stdout: String, stderr: String, time: Duration) -> Program {
    let (stdout, stderr, exit_code) = match outcome.ending {
        Ending::Exited(code) => (Some(stdout), stderr, code),
        Ending::Signalled(signal) => (Some(stdout), stderr, 128 + signal),
        Ending::Stopped(Stop::Time) => {
            let time = time_had(outcome.elapsed, time);
            (Some(stdout), format!("Script timed out after {time}s"), NOT_ENDED)
        }
        Ending::Stopped(_) => (None, content.to_owned(), KILLED),
    };
    Program { stdout, stderr: Some(stderr), exit_code, elapsed: outcome.elapsed }
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        _ => return format!("signal {signal}"),
    };
    format!("signal {signal}, {name}")
}
