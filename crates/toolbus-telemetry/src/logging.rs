//! The log: text or JSON on standard error, and log records over OTLP. What is logged, and how, is in
//! `docs/logging.md`.

use std::io;

use toolbus_core::audit;
use toolbus_core::lifecycle;
use toolbus_core::redact::Redactor;
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing::subscriber::set_global_default;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Directive;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::{LookupSpan, Registry};

use crate::exporters::Exporters;
use crate::redacted::RedactedLines;
pub use crate::settings::LogFormat;

/// Verbose libraries: logged from `warn` on, unless the filter names them.
const CHATTY: [&str; 9] =
    ["h2", "hyper", "hyper_util", "reqwest", "rustls", "tonic", "tower", "opentelemetry", "opentelemetry_sdk"];

/// The AMQP and the MCP client: not logged, unless the filter names them. They log whole messages of other parties at
/// `warn`, as many as those send. The bus and the MCP client crate log what an operator needs.
const SILENT: [&str; 2] = ["lapin", "rmcp"];

/// Choice of the logged events, and of their form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSettings {
    /// Directives with commas between them: `LEVEL` or `TARGET=LEVEL`, such as `info,toolbus_core=debug`.
    pub filter: String,
    /// Format of a line.
    pub format: LogFormat,
    /// Whether text is coloured.
    pub coloured: bool,
}

/// Reason why the log could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    /// The filter cannot be read.
    #[error("the log filter is not valid ({0}); use for example `info` or `info,toolbus_core=debug`")]
    Filter(String),
    /// The process has a log already.
    #[error("the log has been set up before")]
    Twice,
}

/// Sends the log of the whole process to standard error, without the secrets that `redactor` knows. `exporters`, if any,
/// get the same events as log records, and the lifecycle spans.
///
/// # Errors
///
/// If the filter cannot be read, or the process has a log already.
pub fn init(settings: &LogSettings, redactor: Redactor, exporters: Option<&Exporters>) -> Result<(), LoggingError> {
    let subscriber = subscriber(settings, redactor, exporters, io::stderr)?;
    set_global_default(subscriber).map_err(|_| LoggingError::Twice)
}

/// Checks a filter without using it.
///
/// # Errors
///
/// If the filter cannot be read.
pub fn check_filter(filter: &str) -> Result<(), LoggingError> {
    read_filter(filter).map(drop)
}

/// Builds what [`init`] makes the subscriber of the process, with another writer than standard error. With exporters
/// each layer has a filter of its own; without, there is one filter for everything.
///
/// # Errors
///
/// If the filter cannot be read.
pub fn subscriber<W>(
    settings: &LogSettings,
    redactor: Redactor,
    exporters: Option<&Exporters>,
    writer: W,
) -> Result<Box<dyn Subscriber + Send + Sync>, LoggingError>
where
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    let filter = read_filter(&settings.filter)?;
    let writer = RedactedLines { inner: writer, redactor, format: settings.format };
    let Some(exporters) = exporters.filter(|exporters| exporters.has_layers()) else {
        return Ok(Box::new(Registry::default().with(filter).with(lines(settings, writer))));
    };
    let mut layers = vec![lines(settings, writer).with_filter(filter).boxed()];
    if let Some(records) = exporters.log_layer() {
        layers.push(records.with_filter(read_filter(&settings.filter)?).boxed());
    }
    layers.extend(exporters.lifecycle_layer().map(Layer::boxed));
    Ok(Box::new(Registry::default().with(layers)))
}

fn lines<S, W>(settings: &LogSettings, writer: W) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    let layer = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(settings.coloured);
    match settings.format {
        LogFormat::Text => layer.boxed(),
        LogFormat::Json => layer.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed(),
    }
}

fn read_filter(text: &str) -> Result<EnvFilter, LoggingError> {
    let bad = |reason: String| LoggingError::Filter(reason);
    let mut general = None;
    let mut named = Vec::new();
    for part in text.split(',').map(str::trim) {
        // The library takes a lone misspelt level for a target, and would log nothing but that target.
        if part.is_empty() {
            return Err(bad("an empty directive".to_owned()));
        }
        match part.split_once('=') {
            None => general = Some(part.parse::<LevelFilter>().map_err(|_| bad(format!("`{part}` is no level")))?),
            Some((target, _)) => named.push(target.trim()),
        }
    }
    let mut filter = EnvFilter::builder().parse(text).map_err(|error| bad(error.to_string()))?;
    let chatty = CHATTY.into_iter().filter(|_| general > Some(LevelFilter::WARN)).map(|target| (target, "warn"));
    // A filter for warnings keeps audit records; `off` turns them off too.
    let audit = (general != Some(LevelFilter::OFF)).then_some((audit::TARGET, "info"));
    let silent = SILENT.map(|target| (target, "off"));
    let unnamed = chatty.chain(silent).chain(audit).filter(|(target, _)| !named.contains(target));
    // Lifecycle spans are exported, never logged.
    for (target, level) in unnamed.chain([(lifecycle::TARGET, "off")]) {
        let directive: Directive = format!("{target}={level}").parse().map_err(|_| bad(target.to_owned()))?;
        filter = filter.add_directive(directive);
    }
    Ok(filter)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use toolbus_core::redact::Redactor;
    use toolbus_core::secret::Secret;
    use toolbus_testing::log::LogCapture;

    use super::{LogFormat, LogSettings, check_filter, subscriber};

    fn logged(filter: &str, format: LogFormat, speak: impl FnOnce()) -> String {
        logged_without(&[], filter, format, speak)
    }

    fn logged_without(secrets: &[&str], filter: &str, format: LogFormat, speak: impl FnOnce()) -> String {
        let (page, redactor) = (LogCapture::default(), Redactor::default());
        redactor.configure(secrets.iter().map(|secret| Secret::new(*secret)));
        let settings = LogSettings { filter: filter.to_owned(), format, coloured: false };
        tracing::subscriber::with_default(subscriber(&settings, redactor, None, page.clone()).unwrap(), speak);
        page.text()
    }

    #[test]
    fn json_has_the_fields_of_an_event_beside_its_message() {
        let page = logged("info", LogFormat::Json, || {
            tracing::warn!(trace_id = Some("0af7651916cd43dd8448eb211c80319c"), wait_ms = 5, "a call failed");
        });
        let line: Value = serde_json::from_str(&page).unwrap();
        assert_eq!(line["message"], "a call failed");
        assert_eq!(line["trace_id"], "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(line["wait_ms"], 5);
        assert_eq!(line["level"], "WARN");
        assert!(line["timestamp"].is_string());
    }

    #[test]
    fn text_is_one_line_without_colours_by_default() {
        let page = logged("info", LogFormat::Text, || tracing::info!(tool = "echo", "refused a call"));
        assert!(page.contains("INFO") && page.contains("refused a call") && page.contains("tool=\"echo\""), "{page}");
        assert_eq!(page.lines().count(), 1);
        assert!(!page.contains('\u{1b}'));
    }

    #[test]
    fn a_line_break_in_a_field_stays_inside_its_line() {
        for format in [LogFormat::Text, LogFormat::Json] {
            let page = logged("info", format, || tracing::info!(detail = "one\ntwo", "a call failed"));
            assert_eq!(page.lines().count(), 1, "{page}");
        }
    }

    #[test]
    fn no_message_and_no_field_holds_a_secret_at_any_level() {
        let secrets = ["br0ker-p\"ss\\word", "12345678901"];
        let speak = || {
            tracing::trace!(url = "amqp://svc:br0ker-p%22ss%5Cword@host", "connecting");
            tracing::error!(error = ?Some("br0ker-p\"ss\\word"), code = 12_345_678_901_u64, "refused br0ker-p\"ss\\word");
        };
        let text = logged_without(&secrets, "trace", LogFormat::Text, speak);
        assert!(
            !text.contains("p%22ss") && !text.contains("ss\\") && text.matches("[redacted]").count() == 4,
            "{text}"
        );
        let page = logged_without(&secrets, "trace", LogFormat::Json, speak);
        let lines: Vec<Value> = page.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines[0]["url"], "amqp://svc:[redacted]@host");
        assert_eq!(lines[1]["error"], "Some(\"[redacted]\")");
        assert_eq!(lines[1]["message"], "refused [redacted]");
        assert_eq!(lines[1]["code"], 12_345_678_901_u64, "a number is no text");
    }

    #[test]
    fn libraries_are_quiet_unless_they_are_named() {
        let speak = || {
            tracing::info!(target: "lapin::channel", "opened");
            tracing::warn!(target: "h2", "went away");
            tracing::info!(target: "toolbus_core", "started");
        };
        let page = logged("info", LogFormat::Text, speak);
        assert!(!page.contains("opened") && page.contains("went away") && page.contains("started"), "{page}");
        let page = logged("info,lapin=info", LogFormat::Text, speak);
        assert!(page.contains("opened"), "{page}");
    }

    #[test]
    fn the_amqp_client_logs_nothing_because_it_would_log_bodies() {
        let speak = || tracing::error!(target: "lapin::returned_messages", "all of the body");
        for filter in ["info", "warn", "error", "debug,toolbus_core=trace"] {
            assert_eq!(logged(filter, LogFormat::Text, speak), "", "{filter}");
        }
    }

    #[test]
    fn lifecycle_spans_are_never_logged() {
        for filter in ["info", "trace,toolbus::lifecycle=trace"] {
            let page = logged(filter, LogFormat::Text, || {
                let span = tracing::info_span!(target: toolbus_core::lifecycle::TARGET, "drain", number = 7);
                span.in_scope(|| tracing::info!("draining"));
                assert!(span.is_disabled());
            });
            assert!(page.contains("draining") && !page.contains("number"), "{page}");
        }
    }

    #[test]
    fn audit_records_are_logged_unless_the_filter_excludes_them() {
        let speak = || {
            tracing::info!(target: toolbus_core::audit::TARGET, "a tool was called");
            tracing::info!(target: "toolbus::daemon", "started");
        };
        for filter in ["warn", "error", "toolbus_broker=debug", "warn,toolbus=off", "error,toolbus::audit=info"] {
            let page = logged(filter, LogFormat::Text, speak);
            assert!(page.contains("a tool was called") && page.lines().count() == 1, "{filter}: {page}");
        }
        for filter in ["off", "warn,toolbus::audit=off", "warn,toolbus::audit=warn", "off,toolbus_broker=debug"] {
            assert_eq!(logged(filter, LogFormat::Text, speak), "", "{filter}");
        }
        assert_eq!(logged("off,toolbus::audit=info", LogFormat::Text, speak).lines().count(), 1);
    }

    #[test]
    fn a_filter_for_errors_alone_is_not_widened() {
        let page = logged("error", LogFormat::Text, || tracing::warn!(target: "h2", "went away"));
        assert_eq!(page, "");
    }

    #[test]
    fn a_filter_that_cannot_be_read_is_an_error() {
        for filter in ["", "loud", "info,", "info,toolbus_core=loud", "inof"] {
            assert!(check_filter(filter).is_err(), "{filter:?}");
        }
        for filter in ["info", "off", "warn,toolbus_core=debug", "toolbus_broker=trace"] {
            assert!(check_filter(filter).is_ok(), "{filter:?}");
        }
    }
}
