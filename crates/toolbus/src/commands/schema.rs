//! `toolbus schema`: the JSON Schema of the configuration.

use std::io::{self, Write};
use std::process::ExitCode;

use crate::terminal::ignore_broken_pipe;

/// Reason why the schema was not printed.
#[derive(Debug, thiserror::Error)]
#[error("cannot write: {0}")]
pub struct PrintSchemaError(#[from] io::Error);

/// Prints the schema.
///
/// # Errors
///
/// If standard output is closed.
pub fn run() -> Result<ExitCode, PrintSchemaError> {
    ignore_broken_pipe(writeln!(io::stdout(), "{:#}", crate::config::schema()))?;
    Ok(ExitCode::SUCCESS)
}
