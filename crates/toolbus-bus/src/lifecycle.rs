//! Spans of what happens off the path of a call: the start of an MCP server, an installation of packages, a reload, a
//! connection to the broker, the drain.
//!
//! They are `tracing` spans with the target [`TARGET`]. `toolbus-telemetry` exports them, the log leaves them out, and
//! without a collector they are disabled. The spans of a call are recorded through the `telemetry` of
//! `toolbus-core` instead. Names and attributes are listed in `docs/telemetry.md`.
//!
//! A span is entered (`instrument`) only around code whose libraries start no tasks: `rmcp` and `lapin` keep the current
//! span for tasks that last as long as a connection, and the span would last as long. Otherwise it is held, and ends when
//! it is dropped.

use std::fmt::Display;

use tracing::Span;

/// Target of every lifecycle span.
pub const TARGET: &str = "toolbus::lifecycle";
/// Field that describes why what a span stands for failed. A span declares it as `tracing::field::Empty`.
const DESCRIPTION: &str = "otel.status_description";
/// Longest description, in bytes. The exporter removes secrets and cuts further.
const MAX_DESCRIPTION: usize = 4_096;

/// A count as an attribute: OpenTelemetry has signed numbers only.
#[must_use]
pub fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Sets the status of a span to *error*, with a description. The span declares `otel.status_description` as empty.
pub fn fail(span: &Span, error: impl Display) {
    if span.is_disabled() {
        return;
    }
    let mut description = error.to_string();
    description.truncate(description.floor_char_boundary(MAX_DESCRIPTION));
    span.record(DESCRIPTION, description);
}

/// Fails the span if there is an error, and passes the result on.
///
/// # Errors
///
/// As `result`.
pub fn checked<T, E: Display>(span: &Span, result: Result<T, E>) -> Result<T, E> {
    result.inspect_err(|error| fail(span, error))
}
