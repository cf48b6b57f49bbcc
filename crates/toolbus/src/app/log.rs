//! The log of a process that stays, panics included, and what exports it.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::Write as _;

use toolbus_core::redact::Redactor;
use toolbus_telemetry::{Exporters, logging};

use super::parts::redactor;
use super::{AppError, telemetry};
use crate::config::Config;

/// What a daemon starts before everything else: its log, and the exporters of telemetry.
pub struct Recording {
    /// Removes the secrets of the configuration, from the log too.
    pub(super) redactor: Redactor,
    /// The exporters of metrics, traces and logs.
    pub(super) exporters: Exporters,
}

impl Recording {
    /// Starts the log and the exporters.
    ///
    /// # Errors
    ///
    /// If a setting cannot be honoured, or the process has a log already.
    pub fn start(config: &Config) -> Result<Self, AppError> {
        let redactor = redactor(config);
        // Before the log, which they export too. A problem with them is logged all the same.
        let exporters = telemetry::exporters(config, &redactor);
        logging(config, &redactor, exporters.as_ref().ok())?;
        Ok(Self { redactor, exporters: exporters? })
    }
}

/// Starts the log without the secrets that `redactor` knows. `exporters` export it, too.
///
/// # Errors
///
/// If the filter cannot be parsed, or this process has a log already.
pub fn logging(config: &Config, redactor: &Redactor, exporters: Option<&Exporters>) -> Result<(), AppError> {
    let format = config.telemetry.log_format;
    log_panics(redactor.clone(), format);
    let coloured = anstream::AutoStream::choice(&std::io::stderr()) != anstream::ColorChoice::Never;
    let settings = logging::Settings { filter: config.telemetry.log.clone(), format, coloured };
    Ok(logging::init(&settings, redactor.clone(), exporters)?)
}

/// Writes panics to standard error in the usual form, but without secrets: their texts may quote anything. With JSON they
/// are lines of the log.
fn log_panics(redactor: Redactor, format: logging::Format) {
    std::panic::set_hook(Box::new(move |panic| {
        let thread = std::thread::current();
        let text = format!("thread '{}' {panic}", thread.name().unwrap_or("<unnamed>"));
        let trace = Backtrace::capture();
        let trace = if trace.status() == BacktraceStatus::Captured { format!("\n{trace}") } else { String::new() };
        if format == logging::Format::Json {
            return tracing::error!(panic = format!("{text}{trace}"), "a panic");
        }
        // Standard error is the last resort.
        let _ = writeln!(std::io::stderr(), "{}{trace}", redactor.text(&text));
    }));
}
