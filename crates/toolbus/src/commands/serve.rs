//! `toolbus serve`: the daemon.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use toolbus_core::caller::IdentitySource;
use toolbus_core::{Drained, lifecycle, milliseconds};
use tracing::Instrument as _;
use tracing::field::Empty;

use super::Context;
use crate::app::{App, AppError, Mode, Recording, Shutdown};
use crate::config::{BusUrl, Config};
use crate::limits;
use crate::service_manager::ServiceManager;
use crate::signals::Signals;

/// Runs the daemon until a signal stops it.
///
/// SIGTERM and SIGINT end it in order: calls under way may finish within invoke.drain_timeout. A second signal ends it
/// at once.
#[derive(Debug, clap::Args)]
pub struct ServeArgs {}

/// Reason why the daemon did not start, or stopped by itself.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The configuration cannot be put into practice.
    #[error(transparent)]
    App(#[from] AppError),
    /// Signals cannot be received.
    #[error("cannot listen for signals: {0}")]
    Signals(#[from] io::Error),
    /// The broker holds something that no retry mends.
    #[error("{0}")]
    Broker(String),
}

/// Runs the daemon.
///
/// # Errors
///
/// If the daemon cannot start, or meets a mistake that no retry mends.
pub async fn run(_: ServeArgs, context: &Context) -> Result<ExitCode, ServeError> {
    let mut signals = Signals::listen()?;
    let recording = Recording::start(&context.config)?;
    log_warnings(&context.warnings);
    let mode = Mode::Daemon { sources: &context.sources, recording };
    let mut app = tokio::select! {
        app = App::build(&context.config, mode) => app?,
        signal = signals.stop() => {
            tracing::info!(signal, "stopped while starting");
            return Ok(ExitCode::SUCCESS);
        }
    };
    log_start(&context.config, &app);
    app.start().await;
    app.listen();
    let mut manager = ServiceManager::starting(app.bus().state());
    let ending = app.run(&mut signals).await;
    manager.stopping();
    tokio::select! {
        result = end(app, ending, context.config.invoke.drain_timeout.get()) => result,
        signal = signals.stop() => {
            tracing::warn!(signal, "stopping at once: another signal came");
            Ok(ExitCode::from(130))
        }
    }
}

/// Drains the app, in order after a signal and at once after a fatal error, and closes it.
async fn end(mut app: App, ending: Shutdown, drain_timeout: Duration) -> Result<ExitCode, ServeError> {
    let span = tracing::info_span!(
        target: lifecycle::TARGET,
        "drain",
        toolbus.drain.cut = Empty,
        otel.status_description = Empty
    );
    let patience = match &ending {
        Shutdown::Signal(signal) => {
            let timeout_ms = milliseconds(drain_timeout);
            span.in_scope(|| tracing::info!(signal, timeout_ms, "draining"));
            drain_timeout
        }
        Shutdown::Fatal(reason) => {
            lifecycle::fail(&span, reason);
            Duration::ZERO
        }
    };
    let drained = app.drain(patience).instrument(span.clone()).await;
    let calls = if let Drained::Cut(calls) = drained { calls } else { 0 };
    span.record("toolbus.drain.cut", lifecycle::count(calls));
    let result = match ending {
        Shutdown::Signal(_) => {
            span.in_scope(|| match drained {
                Drained::Finished => tracing::info!("drained: every call came to its end"),
                Drained::Cut(calls) => tracing::warn!(calls, "drained: calls were requeued or cancelled"),
            });
            Ok(ExitCode::SUCCESS)
        }
        Shutdown::Fatal(reason) => Err(ServeError::Broker(reason)),
    };
    // Before the exporters end.
    drop(span);
    app.close().await;
    result
}

/// Logs a low limit of open files, and suspicious settings.
fn log_warnings(warnings: &[String]) {
    if let Some(limit) = limits::raise().filter(|limit| *limit < limits::ENOUGH) {
        tracing::warn!(
            limit,
            needed = limits::ENOUGH,
            "the limit of open files is low; raise it to what is needed (LimitNOFILE= of systemd, ulimit -n)"
        );
    }
    for warning in warnings {
        tracing::warn!(warning, "a suspicious setting");
    }
}

/// Logs the start of the daemon, and which peers can reach it.
fn log_start(config: &Config, app: &App) {
    tracing::info!(
        version = crate::VERSION,
        bus = %config.bus.url,
        name = config.bus.name,
        tools = app.tools(),
        "starting"
    );
    tracing::info!(callers = config.callers(), "who may use tools");
    let is_from_broker = config.identity.source == IdentitySource::Broker;
    if config.bus.url == BusUrl::Embedded {
        if config.http.takes_clients() {
            tracing::info!("the bus is embedded: MCP clients alone reach this daemon; set bus.url to use RabbitMQ");
        } else {
            tracing::warn!("the bus is embedded: no other process can reach this daemon; set bus.url to use RabbitMQ");
        }
        if is_from_broker {
            tracing::warn!("the embedded bus verifies no user_id: every caller is unknown");
        }
    }
    if is_from_broker && config.denies_unknown() {
        tracing::info!(
            "requests without user_id are refused every tool, as are those of logins without a section in agents"
        );
    }
}
