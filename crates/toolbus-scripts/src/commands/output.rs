//! Result of a command that has ended.

use std::time::Duration;

use serde_json::Value;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::tool::{Program, ToolOutput, time_text};
use toolbus_sandbox::{Ending, Limits, Outcome, Stop, Stream};

use super::Output;
use crate::text::{size, without_middle};

/// Most characters of a program's output in an error: of its end, where the cause is.
const MAX_SHOWN: usize = 4000;
/// The text of a program without output.
const NOTHING: &str = "(no output)";

/// Makes a result of an outcome.
pub(super) fn read(
    outcome: &Outcome,
    output: Output,
    success_codes: &[u8],
    time: Duration,
    limits: &Limits,
) -> Result<ToolOutput, ToolFailure> {
    let is_success = |code| u8::try_from(code).is_ok_and(|code| success_codes.contains(&code));
    let output = match outcome.ending {
        Ending::Exited(code) if is_success(code) => match output {
            Output::Text => ToolOutput::text(text_of(&outcome.stdout).unwrap_or_else(|| NOTHING.to_owned())),
            Output::Json => json(&outcome.stdout)?,
        },
        Ending::Exited(code) => failed(&format!("Command failed (exit {code})"), outcome),
        Ending::Signalled(signal) => failed(&format!("Command was ended by signal {signal}"), outcome),
        Ending::Stopped(Stop::Time) => {
            let text = format!("The command was ended: it took longer than {}.", time_text(time));
            return Err(ToolFailure::new(Cause::DeadlineExceeded, text));
        }
        Ending::Stopped(stop) => failed(&format!("Command was ended: {}", used_up(stop, limits)), outcome),
    };
    Ok(output.of_program(program(outcome)))
}

fn program(outcome: &Outcome) -> Program {
    let exit_code = match outcome.ending {
        Ending::Exited(code) => code,
        Ending::Signalled(_) | Ending::Stopped(_) => -1,
    };
    Program { stdout: text_of(&outcome.stdout), stderr: text_of(&outcome.stderr), exit_code, elapsed: outcome.elapsed }
}

/// One JSON value, written again without what is not needed.
fn json(stdout: &Stream) -> Result<ToolOutput, ToolFailure> {
    match serde_json::from_slice::<Value>(&stdout.bytes) {
        Ok(value) => Ok(ToolOutput::text(value.to_string())),
        Err(error) => {
            let text = "The command printed something else than one JSON value.";
            let detail = format!(
                "{error}: {}",
                text_of(stdout).map_or_else(|| NOTHING.to_owned(), |text| without_middle(&text, 0, 200))
            );
            Err(ToolFailure::new(Cause::InvalidResult, text).with_detail(detail))
        }
    }
}

/// An error with the program's standard error, or else its output.
fn failed(what: &str, outcome: &Outcome) -> ToolOutput {
    let text = text_of(&outcome.stderr).or_else(|| text_of(&outcome.stdout));
    ToolOutput::error(
        text.map_or_else(|| what.to_owned(), |text| format!("{what}:\n{}", without_middle(&text, 0, MAX_SHOWN))),
    )
}

/// Text of a stream, without the line ends after it; `None` if that is all.
fn text_of(stream: &Stream) -> Option<String> {
    let text = String::from_utf8_lossy(&stream.bytes);
    let text = text.trim_end_matches(['\n', '\r']);
    (!text.trim().is_empty()).then(|| text.to_owned())
}

fn used_up(stop: Stop, limits: &Limits) -> String {
    match stop {
        Stop::Time => "it took too long".to_owned(),
        Stop::Cpu => "it used up its CPU time".to_owned(),
        Stop::Memory => format!("it needed more than {} of memory", size(limits.memory)),
        Stop::Processes => format!("it started more than {} processes", limits.processes),
        Stop::Disk => format!("it wrote more than {} or {} files", size(limits.disk), limits.files),
        Stop::Output => format!("it printed more than {}", size(limits.output)),
    }
}
