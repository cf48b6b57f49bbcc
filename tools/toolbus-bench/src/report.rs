//! Output that every measurement prints and saves: its figures, and whether they are good enough.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use serde::Serialize;
use toolbus::commands::as_json;
use toolbus::terminal::OutputFormat;
use toolbus::terminal::ignore_broken_pipe;

use crate::args::MeasureArgs;
use crate::error::MeasureError;
use crate::save;

/// The figures of a measurement.
pub(crate) trait Measured: Serialize {
    /// Entry of the measurement in a file of measurements, unless another name is given.
    const NAME: &'static str;

    /// Prints the figures for people.
    fn print(&self, out: &mut dyn Write) -> io::Result<()>;

    /// Returns the gates that the figures are held to.
    fn gates(&self) -> Vec<Gate> {
        Vec::new()
    }

    /// The last line for people, which begins with or contains how long was measured, such as `5 rounds of 3 s`.
    fn conditions(&self, rounds: String) -> String {
        rounds
    }
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report<M> {
    version: &'static str,
    rounds: u16,
    seconds: u64,
    #[serde(flatten)]
    pub(crate) measured: M,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) gates: Vec<Gate>,
}

/// Condition that must hold.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Gate {
    pub(crate) what: String,
    pub(crate) wanted: &'static str,
    pub(crate) measured: String,
    pub(crate) is_met: bool,
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, wanted, measured, is_met } = self;
        write!(f, "{}: {what} {measured}, wanted {wanted}", if *is_met { "met" } else { "MISSED" })
    }
}

impl<M: Measured> Report<M> {
    pub(crate) fn new(args: &MeasureArgs, measured: M) -> Self {
        let gates = measured.gates();
        Self { version: toolbus::VERSION, rounds: args.rounds, seconds: args.seconds, measured, gates }
    }

    /// Prints the report, and saves it on request. The exit code shows whether every gate is met.
    pub(crate) fn finish(&self, args: &MeasureArgs, output: OutputFormat) -> Result<ExitCode, MeasureError> {
        let mut out = anstream::stdout().lock();
        let printed = match output {
            OutputFormat::Json => writeln!(out, "{}", as_json(self)),
            OutputFormat::Table => self.print(&mut out),
        };
        ignore_broken_pipe(printed)?;
        if let Some(file) = &args.save {
            save::save(file, args.name.as_deref().unwrap_or(M::NAME), self)?;
        }
        Ok(if self.is_met() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    pub(crate) fn is_met(&self) -> bool {
        self.gates.iter().all(|gate| gate.is_met)
    }

    pub(crate) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        self.measured.print(out)?;
        for gate in &self.gates {
            writeln!(out, "{gate}")?;
        }
        writeln!(out, "{}", self.measured.conditions(format!("{} rounds of {} s", self.rounds, self.seconds)))
    }
}
