//! A daemon in a process of its own.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::process::{Child, Command};

use crate::error::MeasureError;
use crate::errors::Errors;
use toolbus::http::admin::client::probe;

/// Longest wait for a side to start.
pub(crate) const START_TIME: Duration = Duration::from_secs(60);
/// Longest wait for a side to end.
const STOP_TIME: Duration = Duration::from_secs(10);
/// Interval at which readiness is polled: also the accuracy of the time to readiness.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The daemon.
pub(crate) struct Daemon {
    child: Child,
    errors: Errors,
    settings: PathBuf,
    ready_after: Duration,
}

impl Daemon {
    /// Has `program` serve with this configuration, and waits until it is ready on its address.
    pub(crate) async fn launch(
        mut program: Command,
        id: &str,
        address: SocketAddr,
        configuration: &str,
    ) -> Result<Self, MeasureError> {
        let settings = std::env::temp_dir().join(format!("toolbus-bench-{id}.toml"));
        std::fs::write(&settings, configuration)?;
        let begun = Instant::now();
        let mut child = program.arg("--config").arg(&settings).arg("serve").spawn()?;
        let errors = Errors::of(&mut child);
        let mut daemon = Self { child, errors, settings, ready_after: Duration::ZERO };
        while !matches!(probe(address, "/readyz", START_TIME).await, Ok((200, _))) {
            if begun.elapsed() > START_TIME || daemon.child.try_wait()?.is_some() {
                let _ = daemon.child.kill().await;
                return Err(MeasureError::Start(TOOLBUS, daemon.errors.last_words().await));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        daemon.ready_after = begun.elapsed();
        Ok(daemon)
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id().unwrap_or_default()
    }

    /// From its start to its readiness.
    pub(crate) fn ready_after(&self) -> Duration {
        self.ready_after
    }

    /// Has it drain, and ends it if it does not.
    pub(crate) async fn stop(&mut self) {
        let signalled = Command::new("kill").arg(self.process().to_string()).status().await;
        let ended = tokio::time::timeout(STOP_TIME, self.child.wait()).await;
        if signalled.is_err() || ended.is_err() {
            let _ = self.child.kill().await;
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.settings);
    }
}

/// The daemon's program: what `TOOLBUS_BIN` names, which `toolbus bench` sets, or the one beside this program, or the one
/// on the path.
pub(crate) fn toolbus() -> io::Result<Command> {
    if let Some(named) = std::env::var_os("TOOLBUS_BIN").filter(|name| !name.is_empty()) {
        return Ok(command(named.as_ref()));
    }
    let beside = std::env::current_exe()?.with_file_name("toolbus");
    Ok(command(if beside.is_file() { &beside } else { Path::new("toolbus") }))
}

/// This program again.
pub(crate) fn this_program() -> io::Result<Command> {
    Ok(command(&std::env::current_exe()?))
}

/// A program that ends with what holds it.
fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// An address on which no program listens.
pub(crate) async fn free_address() -> io::Result<SocketAddr> {
    tokio::net::TcpListener::bind("127.0.0.1:0").await?.local_addr()
}

/// Name of the side that is measured.
pub(crate) const TOOLBUS: &str = "toolbus";
