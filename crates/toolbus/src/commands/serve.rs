//! `toolbus serve`: the daemon.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use toolbus_core::Drained;
use toolbus_core::bus::BusState;
use toolbus_core::telemetry::Load;

use super::Context;
use crate::assembly::{self, AssemblyError};
use crate::daemon::Daemon;
use crate::http::{HttpError, HttpServer};
use crate::signals::Signals;

/// Time for the last metrics and spans to leave.
const FLUSH_TIME: Duration = Duration::from_secs(5);

/// Runs the daemon until it is told to stop.
///
/// SIGTERM and SIGINT end it in order: calls under way may finish within invoke.drain_timeout. A second signal ends it
/// at once.
#[derive(Debug, clap::Args)]
pub struct ServeArgs {}

/// Why the daemon did not start, or stopped by itself.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The configuration cannot be put into practice.
    #[error(transparent)]
    Assembly(#[from] AssemblyError),
    /// The HTTP server cannot listen.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// Signals cannot be received.
    #[error("cannot listen for signals: {0}")]
    Signals(#[from] std::io::Error),
    /// The broker holds something that no retry mends.
    #[error("{0}")]
    Broker(String),
}

/// What ends the daemon.
enum Ending {
    Signal(&'static str),
    Fatal(String),
}

/// Runs the daemon.
///
/// # Errors
///
/// When it cannot start, or meets something that only a person can mend.
pub async fn run(_: ServeArgs, context: &Context) -> Result<ExitCode, ServeError> {
    let config = &context.config;
    let mut signals = Signals::listen()?;
    assembly::logging(config)?;
    let registry = assembly::registry(config)?;
    let server = HttpServer::bind(config.http.listen).await?;
    let load = Arc::<Load>::default();
    let pipeline = assembly::telemetry(config)?;
    let bus = assembly::bus(config)?;
    let telemetry = assembly::recorder(config, &pipeline, &load, &bus.state());

    let stop_http = CancellationToken::new();
    let health = assembly::health(config, bus.state(), registry.clone(), Arc::clone(&load));
    let server = tokio::spawn(server.run(Arc::clone(&health), stop_http.clone()));

    tracing::info!(
        version = crate::VERSION,
        bus = %config.bus.url,
        name = config.bus.name,
        tools = registry.snapshot().len(),
        message = "starting"
    );
    let daemon = Daemon::start(config, Arc::clone(&bus), registry, telemetry, load);
    let ending = wait(&mut signals, bus.state()).await;
    health.start_draining();

    let result = match ending {
        Ending::Signal(signal) => {
            tracing::info!(signal, timeout_ms = config.invoke.drain_timeout.get().as_millis(), message = "draining");
            drain(daemon, config.invoke.drain_timeout.get(), &mut signals).await
        }
        Ending::Fatal(reason) => {
            daemon.drain(Duration::ZERO).await;
            Err(ServeError::Broker(reason))
        }
    };
    stop_http.cancel();
    let _ = server.await;
    if let Err(error) = pipeline.shutdown(FLUSH_TIME).await {
        tracing::warn!(%error, message = "the last metrics and spans were not exported");
    }
    result
}

async fn wait(signals: &mut Signals, mut bus: watch::Receiver<BusState>) -> Ending {
    let fatal = async {
        let state = bus.wait_for(|state| state.fatal.is_some()).await.map(|state| state.fatal.clone());
        match state {
            Ok(Some(reason)) => reason,
            _ => std::future::pending().await,
        }
    };
    tokio::select! {
        signal = signals.next() => Ending::Signal(signal),
        reason = fatal => Ending::Fatal(reason),
    }
}

/// Drains in order, unless a second signal asks to end at once.
async fn drain(daemon: Daemon, patience: Duration, signals: &mut Signals) -> Result<ExitCode, ServeError> {
    tokio::select! {
        drained = daemon.drain(patience) => match drained {
            Drained::Finished => tracing::info!(message = "drained: every call came to its end"),
            Drained::Cut(calls) => tracing::warn!(calls, message = "drained: calls were put back or cancelled"),
        },
        signal = signals.next() => {
            tracing::warn!(signal, message = "stopping at once: a second signal came");
            return Ok(ExitCode::from(130));
        }
    }
    Ok(ExitCode::SUCCESS)
}
