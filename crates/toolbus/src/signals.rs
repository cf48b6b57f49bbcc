//! Signals: the first SIGTERM or SIGINT requests an orderly end, the second ends at once; SIGHUP requests a reload.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Request that a signal makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalRequest {
    /// An end, by the signal of this name.
    Stop(&'static str),
    /// Reading the configuration again.
    Reload,
}

/// SIGTERM, SIGINT and SIGHUP.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// Starts listening: from here on a signal no longer ends the process by itself.
    ///
    /// # Errors
    ///
    /// If the system refuses to register a handler.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the next signal, and returns its request.
    pub async fn next(&mut self) -> SignalRequest {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => SignalRequest::Stop("SIGTERM"),
            _ = self.interrupt.recv() => SignalRequest::Stop("SIGINT"),
            _ = self.hangup.recv() => SignalRequest::Reload,
        }
    }

    /// Waits for the next signal that requests an end, and returns its name. Requests for a reload stay.
    pub async fn stop(&mut self) -> &'static str {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
