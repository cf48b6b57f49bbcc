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
use crate::config::BusUrl;
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
    let server = tokio::spawn(server.run(Arc::clone(&health), None, stop_http.clone()));

    tracing::info!(
        version = crate::VERSION,
        bus = %config.bus.url,
        name = config.bus.name,
        tools = registry.snapshot().len(),
        "starting"
    );
    if config.bus.url == BusUrl::Embedded {
        tracing::warn!("the bus is embedded: no other process can reach this daemon; set bus.url to use RabbitMQ");
    }
    let daemon = Daemon::start(config, Arc::clone(&bus), registry, telemetry, load);
    let ending = wait(&mut signals, bus.state()).await;
    health.start_draining();

    let orderly = async {
        let result = end(daemon, ending, config.invoke.drain_timeout.get()).await;
        stop_http.cancel();
        let _ = server.await;
        if let Err(error) = pipeline.shutdown(FLUSH_TIME).await {
            tracing::warn!(%error, "the last metrics and spans were not exported");
        }
        result
    };
    tokio::select! {
        result = orderly => result,
        signal = signals.next() => {
            tracing::warn!(signal, "stopping at once: another signal came");
            Ok(ExitCode::from(130))
        }
    }
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

/// Ends the daemon as what ended it asks for.
async fn end(daemon: Daemon, ending: Ending, patience: Duration) -> Result<ExitCode, ServeError> {
    match ending {
        Ending::Signal(signal) => {
            let timeout_ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
            tracing::info!(signal, timeout_ms, "draining");
            match daemon.drain(patience).await {
                Drained::Finished => tracing::info!("drained: every call came to its end"),
                Drained::Cut(calls) => tracing::warn!(calls, "drained: calls were put back or cancelled"),
            }
            Ok(ExitCode::SUCCESS)
        }
        Ending::Fatal(reason) => {
            daemon.drain(Duration::ZERO).await;
            Err(ServeError::Broker(reason))
        }
    }
}
